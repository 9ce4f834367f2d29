//! The simulated device: virtual time, seeded faults, and a vector that depends on its own sequence only.
//!
//! It stands in for an accelerator wherever the server around it is tested or measured. The time of a plan is
//! `base_us + us_per_1k_tokens × tokens / 1000`; lanes overlap in the first part (copies, launches) and take turns in
//! the second (arithmetic), as measured lanes do. With both at zero a plan is done as soon as it is submitted.
//!
//! It may not look at a clock: time is what its caller passes in. It may not forgive: a plan that breaks the contract
//! of the seam (see [`verify`]) is a bug above it and panics. It allocates nothing after `load`.
//!
//! Invariants: [`vector`] of the same ids and types is bit-equal wherever, whenever and beside whomever it is placed;
//! the same options and the same calls give the same faults, times and outputs.

use std::sync::Arc;

use super::{Bucket, Device, Fault, Health, Lane, Layout, LoadError, Offer, Pieces, Plan};
use crate::config;
use crate::job::ModelKey;
use crate::model::{Model, Task};

/// Values per vector of an embedding model whose geometry nobody knows.
const EMBEDDING_WIDTH: usize = 384;

/// Longest sequence that the ladders give a step of their own for.
const LADDER_LENGTHS: [u32; 4] = [32, 64, 128, 256];

/// How the simulated device behaves.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    pub seed: u64,
    /// 1 to 4.
    pub lanes: usize,
    /// The part of a plan's time in which lanes overlap, in microseconds.
    pub base_us: u64,
    /// The part in which they take turns, in microseconds per 1,000 tokens.
    pub us_per_1k_tokens: u64,
    pub charge: Charge,
    /// Each plan's time is stretched by a random share of this, 0 for none: 0.5 makes it up to half as long again.
    pub jitter: f64,
    pub rates: Rates,
    /// Faults by number of submission, counted from 0 over all lanes; they go before `rates`.
    pub script: Vec<(u64, Fault)>,
    /// After how long a hung plan is given up, in microseconds.
    pub hang_us: u64,
    /// Share of sequences whose vector contains a NaN. Which ones depends on the seed and on their own tokens only.
    pub nan_rate: f64,
    pub shapes: Shapes,
}

/// Which tokens take time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// The bucket's: a device of fixed shapes.
    Bucket,
    /// The plan's: a device that skips padding.
    Useful,
}

/// Chance of each fault for one plan, 0 to 1; together at most 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// `submit` refuses.
    pub refused: f64,
    /// `collect` fails, after the usual time.
    pub failed: f64,
    /// `collect` fails, after `hang_us`.
    pub hung: f64,
    /// `submit` panics.
    pub panicked: f64,
    /// `submit` refuses, and the device is dead from then on, with whatever its other lanes hold.
    pub dead: f64,
}

/// Which buckets are offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shapes {
    /// A ladder of rows and lengths up to the model's length.
    Ladder(Layout),
    /// These, whatever the model's length.
    Listed(Layout, Vec<Bucket>),
}

impl Default for Options {
    /// One that takes no time and never fails.
    fn default() -> Options {
        Options {
            seed: 1,
            lanes: 2,
            base_us: 0,
            us_per_1k_tokens: 0,
            charge: Charge::Bucket,
            jitter: 0.0,
            rates: Rates::default(),
            script: Vec::new(),
            hang_us: 1_000_000,
            nan_rate: 0.0,
            shapes: Shapes::Ladder(Layout::Packed),
        }
    }
}

impl From<&config::Sim> for Options {
    /// The configured rate of faults is shared by the three kinds that a device recovers from.
    fn from(settings: &config::Sim) -> Options {
        let rate = settings.fault_rate / 3.0;
        Options {
            seed: settings.seed,
            lanes: settings.lanes,
            base_us: settings.base_us,
            us_per_1k_tokens: settings.us_per_1k_tokens,
            rates: Rates { refused: rate, failed: rate, hung: rate, ..Rates::default() },
            shapes: Shapes::Ladder(if settings.packed { Layout::Packed } else { Layout::Padded }),
            ..Options::default()
        }
    }
}

#[derive(Debug)]
struct Loaded {
    key: ModelKey,
    offer: Offer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    /// Until `done_ns`; `fault` is what [`Device::collect`] will say then.
    Busy {
        submitted_ns: u64,
        done_ns: u64,
        fault: Option<Fault>,
    },
    /// Seen to be done by `poll`.
    Done {
        busy_ns: u64,
        fault: Option<Fault>,
    },
}

#[derive(Debug)]
struct Track {
    state: State,
    width: usize,
    /// What a real device would have copied: of each placement as much as its vector depends on.
    digests: Vec<u64>,
}

/// See the module's head.
#[derive(Debug)]
pub struct Sim {
    options: Options,
    loaded: Vec<Loaded>,
    tracks: Vec<Track>,
    health: Health,
    /// Calls of `submit` so far.
    submissions: u64,
    /// When the arithmetic of all submitted plans is done.
    free_at_ns: u64,
    /// Scratch of `collect`.
    vector: Vec<f32>,
    /// Scratch of `verify`.
    seen: Vec<(u32, u32)>,
}

impl Sim {
    /// # Panics
    /// When the options make no sense: not 1 to 4 lanes, or chances that are none.
    pub fn new(options: Options) -> Sim {
        assert!((1..=4).contains(&options.lanes), "1 to 4 lanes, not {}", options.lanes);
        let Rates { refused, failed, hung, panicked, dead } = options.rates;
        let rates = [refused, failed, hung, panicked, dead];
        assert!(rates.iter().all(|rate| *rate >= 0.0) && rates.iter().sum::<f64>() <= 1.0, "chances: {rates:?}");
        assert!((0.0..=1.0).contains(&options.nan_rate) && options.jitter >= 0.0, "nan_rate or jitter");
        let track = |_| Track { state: State::Idle, width: 0, digests: Vec::new() };
        Sim {
            tracks: (0..options.lanes).map(track).collect(),
            options,
            loaded: Vec::new(),
            health: Health::Ready,
            submissions: 0,
            free_at_ns: 0,
            vector: Vec::new(),
            seen: Vec::new(),
        }
    }

    fn loaded(&self, key: ModelKey) -> &Loaded {
        self.loaded.iter().find(|loaded| loaded.key == key).expect("plans name models that are loaded")
    }

    /// What goes wrong with this submission: the script's word, else the dice's.
    fn fault(&self, submission: u64) -> Option<Fault> {
        if let Some((_, fault)) = self.options.script.iter().find(|(number, _)| *number == submission) {
            return Some(*fault);
        }
        let Rates { refused, failed, hung, panicked, dead } = self.options.rates;
        let mut dice = chance(mix(self.options.seed ^ mix(submission)));
        let kinds = [
            (refused, Fault::Refused),
            (failed, Fault::Failed),
            (hung, Fault::Hung),
            (panicked, Fault::Panicked),
            (dead, Fault::Dead),
        ];
        for (rate, fault) in kinds {
            if dice < rate {
                return Some(fault);
            }
            dice -= rate;
        }
        None
    }

    /// When a plan submitted now is done, by which the lanes' common arithmetic moves on.
    fn occupy(&mut self, plan: &Plan, bucket: Bucket, now_ns: u64) -> u64 {
        let tokens = match self.options.charge {
            Charge::Bucket => bucket.tokens(),
            Charge::Useful => plan.tokens,
        };
        let dice = chance(mix(!self.options.seed ^ mix(self.submissions)));
        let stretch = |ns: u64| ns + (ns as f64 * self.options.jitter * dice) as u64;
        let begin_ns = now_ns + stretch(self.options.base_us * 1_000);
        // Microseconds per 1,000 tokens are nanoseconds per token.
        self.free_at_ns = begin_ns.max(self.free_at_ns) + stretch(self.options.us_per_1k_tokens * u64::from(tokens));
        self.free_at_ns
    }

    fn die(&mut self) {
        self.health = Health::Dead;
        for track in &mut self.tracks {
            if let State::Busy { .. } | State::Done { .. } = track.state {
                track.state = State::Done { busy_ns: 0, fault: Some(Fault::Dead) };
            }
        }
    }
}

impl Device for Sim {
    fn load(&mut self, key: ModelKey, model: &Arc<Model>) -> Result<Offer, LoadError> {
        if self.loaded.iter().any(|loaded| loaded.key == key) {
            return Err(LoadError(format!("model {} is loaded already", model.name)));
        }
        let width = width(model);
        let (layout, buckets) = match &self.options.shapes {
            Shapes::Ladder(layout) => (*layout, ladder(*layout, model.max_length.max(1) as u32)),
            Shapes::Listed(layout, buckets) => (*layout, buckets.clone()),
        };
        let placements = buckets.iter().map(|bucket| seats(layout, *bucket)).max().unwrap_or(0);
        let offer = Offer { layout, buckets, width: width as u32, costs_ns: Vec::new() };
        for track in &mut self.tracks {
            track.digests.reserve(placements.saturating_sub(track.digests.len()));
        }
        self.seen.reserve(placements);
        self.vector.resize(self.vector.len().max(width), 0.0);
        self.loaded.push(Loaded { key, offer: offer.clone() });
        Ok(offer)
    }

    fn unload(&mut self, key: ModelKey) {
        self.loaded.retain(|loaded| loaded.key != key);
    }

    fn lanes(&self) -> usize {
        self.tracks.len()
    }

    fn submit(&mut self, lane: usize, plan: &Plan, pieces: &Pieces, now_ns: u64) -> Result<(), Fault> {
        assert_eq!(self.tracks[lane].state, State::Idle, "lane {lane} is taken");
        if self.health == Health::Dead {
            return Err(Fault::Dead);
        }
        let mut seen = std::mem::take(&mut self.seen);
        let loaded = self.loaded(plan.model);
        verify(&loaded.offer, plan, pieces, &mut seen);
        let (bucket, width) = (loaded.offer.buckets[plan.bucket as usize], loaded.offer.width as usize);
        self.seen = seen;

        let fault = self.fault(self.submissions);
        let done_ns = match fault {
            Some(Fault::Hung) => now_ns + self.options.hang_us * 1_000,
            None | Some(Fault::Failed) => self.occupy(plan, bucket, now_ns),
            Some(Fault::Refused | Fault::Panicked | Fault::Dead) => now_ns,
        };
        self.submissions += 1;
        match fault {
            None | Some(Fault::Failed | Fault::Hung) => {}
            Some(Fault::Refused) => return Err(Fault::Refused),
            Some(Fault::Panicked) => panic!("the simulated device panics, as it was told to"),
            Some(Fault::Dead) => {
                self.die();
                return Err(Fault::Dead);
            }
        }
        let track = &mut self.tracks[lane];
        track.state = State::Busy { submitted_ns: now_ns, done_ns, fault };
        track.width = width;
        track.digests.clear();
        track.digests.extend(plan.placements.iter().map(|placement| {
            let piece = pieces.get(placement.piece);
            let range = piece.range(placement.sequence as usize);
            digest(&piece.ids[range.clone()], &piece.types[range])
        }));
        Ok(())
    }

    fn poll(&mut self, lane: usize, now_ns: u64) -> Lane {
        let state = &mut self.tracks[lane].state;
        match *state {
            State::Idle => Lane::Idle,
            State::Busy { done_ns, .. } if now_ns < done_ns => Lane::Busy,
            State::Busy { submitted_ns, done_ns, fault } => {
                *state = State::Done { busy_ns: done_ns - submitted_ns, fault };
                Lane::Done
            }
            State::Done { .. } => Lane::Done,
        }
    }

    fn collect(&mut self, lane: usize, output: &mut dyn FnMut(usize, &[f32])) -> Result<u64, Fault> {
        let track = &mut self.tracks[lane];
        let State::Done { busy_ns, fault } = track.state else { panic!("lane {lane} is collected before it is done") };
        track.state = State::Idle;
        if let Some(fault) = fault {
            return Err(fault);
        }
        let vector = &mut self.vector[..track.width];
        for (index, digest) in track.digests.iter().enumerate() {
            spread(*digest, vector);
            if is_poisoned(*digest, self.options.seed, self.options.nan_rate) {
                vector[0] = f32::NAN;
            }
            output(index, vector);
        }
        Ok(busy_ns)
    }

    fn health(&self) -> Health {
        self.health
    }

    fn wake_at_ns(&self) -> Option<u64> {
        let wake = |track: &Track| match track.state {
            State::Idle => None,
            State::Busy { done_ns, .. } => Some(done_ns),
            // Nothing to wait for: its results are there.
            State::Done { .. } => Some(0),
        };
        self.tracks.iter().filter_map(wake).min()
    }

    fn name(&self) -> &str {
        "sim"
    }
}

/// The vector of a sequence: `width` values from -1 up to but not including 1, written over `out`.
pub fn vector(ids: &[u32], types: &[u8], width: usize, out: &mut Vec<f32>) {
    out.clear();
    out.resize(width, 0.0);
    spread(digest(ids, types), out);
}

/// Whether the device of this seed and rate puts a NaN into the vector of this sequence.
pub fn poisons(ids: &[u32], types: &[u8], seed: u64, nan_rate: f64) -> bool {
    is_poisoned(digest(ids, types), seed, nan_rate)
}

/// Values per vector that the device gives for a model.
pub fn width(model: &Model) -> usize {
    match model.task {
        Task::Embedding => model.geometry.as_ref().map_or(EMBEDDING_WIDTH, |geometry| geometry.hidden),
        Task::Reranking => 1,
        Task::Nli => model.labels.len(),
    }
}

/// Checks a plan against everything that the seam promises a device. `seen` is scratch.
///
/// # Panics
/// When a promise is broken.
pub fn verify(offer: &Offer, plan: &Plan, pieces: &Pieces, seen: &mut Vec<(u32, u32)>) {
    let bucket = offer.buckets[plan.bucket as usize];
    assert!(!plan.placements.is_empty(), "a plan holds something");
    assert!(plan.placements.len() <= seats(offer.layout, bucket), "{} in {bucket:?}", plan.placements.len());
    let (mut row, mut end, mut tokens) = (0, 0, 0);
    for placement in &plan.placements {
        assert!(placement.length > 0, "an empty sequence: {placement:?}");
        assert_eq!(placement.length, pieces.get(placement.piece).length(placement.sequence as usize), "{placement:?}");
        match offer.layout {
            Layout::Packed if placement.row == row => assert_eq!(placement.offset, end, "no gap: {placement:?}"),
            Layout::Padded if tokens == 0 => assert_eq!((placement.row, placement.offset), (0, 0), "{placement:?}"),
            Layout::Packed | Layout::Padded => {
                assert_eq!((placement.row, placement.offset), (row + 1, 0), "the next row from its start");
            }
        }
        (row, end) = (placement.row, placement.offset + placement.length);
        tokens += placement.length;
        assert!(row < bucket.rows && end <= bucket.length, "beyond {bucket:?}: {placement:?}");
    }
    assert_eq!(tokens, plan.tokens, "useful tokens are the sum of lengths");
    seen.clear();
    seen.extend(plan.placements.iter().map(|placement| (placement.piece, placement.sequence)));
    seen.sort_unstable();
    assert!(seen.windows(2).all(|pair| pair[0] != pair[1]), "a sequence is placed once");
}

/// Sequences that a bucket holds at most.
fn seats(layout: Layout, bucket: Bucket) -> usize {
    match layout {
        Layout::Padded => bucket.rows.min(bucket.sequences_max) as usize,
        Layout::Packed => bucket.tokens().min(bucket.sequences_max) as usize,
    }
}

/// Buckets for sequences up to `length_max`, ascending in cost: the shapes that engines are built for.
fn ladder(layout: Layout, length_max: u32) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = match layout {
        Layout::Packed => {
            [1, 2, 4, 8, 16, 32].map(|rows| bucket(rows, length_max, rows * length_max.div_ceil(8))).into()
        }
        Layout::Padded => {
            let shorter = LADDER_LENGTHS.into_iter().filter(|length| *length < length_max);
            let lengths = shorter.chain([length_max]);
            lengths.flat_map(|length| [1, 4, 8, 16, 32].map(|rows| bucket(rows, length, rows))).collect()
        }
    };
    // A lone short text shall not pay for a long row.
    if layout == Layout::Packed {
        let short = LADDER_LENGTHS.into_iter().filter(|length| *length < length_max);
        buckets.extend(short.map(|length| bucket(1, length, length.div_ceil(8))));
    }
    buckets.sort_by_key(|bucket| (bucket.tokens(), bucket.rows));
    buckets
}

fn bucket(rows: u32, length: u32, sequences_max: u32) -> Bucket {
    Bucket { rows, length, sequences_max }
}

/// All that a sequence's vector depends on.
fn digest(ids: &[u32], types: &[u8]) -> u64 {
    assert_eq!(ids.len(), types.len(), "each token has a type");
    ids.iter()
        .zip(types)
        .fold(mix(ids.len() as u64), |digest, (&id, &kind)| mix(digest ^ (u64::from(id) | u64::from(kind) << 32)))
}

fn spread(digest: u64, out: &mut [f32]) {
    let mut state = digest;
    for value in out {
        state = state.wrapping_add(GOLDEN);
        // 24 bits: as many as an f32 holds exactly.
        *value = (mix(state) >> 40) as f32 / (1 << 23) as f32 - 1.0;
    }
}

fn is_poisoned(digest: u64, seed: u64, nan_rate: f64) -> bool {
    chance(mix(digest ^ mix(seed))) < nan_rate
}

/// 0 up to but not including 1.
fn chance(random: u64) -> f64 {
    (random >> 11) as f64 / (1u64 << 53) as f64
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finalizer of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::device::Placement;
    use crate::job::Piece;
    use crate::model::{Head, Pooling, Source};

    const KEY: ModelKey = ModelKey { index: 2, generation: 1 };

    /// A model without files, as the simulated device takes it.
    pub(crate) fn model(task: Task, max_length: usize) -> Arc<Model> {
        Arc::new(Model {
            name: "simulated".into(),
            task,
            source: Source::Onnx(PathBuf::new()),
            tokenizer: PathBuf::new(),
            geometry: None,
            head: Head::Embedding,
            pooling: Pooling::Mean,
            normalize: false,
            max_length,
            labels: vec!["contradiction".into(), "neutral".into(), "entailment".into()],
            prompts: Vec::new(),
            default_prompt: None,
            cuda_graph_list: Vec::new(),
            output: None,
            unpositioned: None,
            reuse_dynamic_buffer: false,
        })
    }

    /// One piece of three sequences of 4, 7 and 2 tokens.
    fn pieces() -> Pieces {
        let mut pieces = Pieces::with_capacity(1);
        let ids = (100..113).collect();
        let types = (0..13).map(|token| u8::from(token > 6)).collect();
        pieces.insert(Box::new(Piece { ids, types, ends: vec![4, 11, 13], ..Piece::default() }));
        pieces
    }

    /// All three in one row of the packed bucket that `bucket` names, in this order.
    fn plan(bucket: u32, order: [u32; 3]) -> Plan {
        let mut offset = 0;
        let placements = order.map(|sequence| {
            let length = [4, 7, 2][sequence as usize];
            let placement = Placement { piece: 0, sequence, row: 0, offset, length };
            offset += length;
            placement
        });
        Plan { model: KEY, bucket, placements: placements.into(), tokens: 13 }
    }

    fn listed() -> Shapes {
        let of = |rows, length| Bucket { rows, length, sequences_max: 8 };
        Shapes::Listed(Layout::Packed, vec![of(1, 16), of(2, 50), of(4, 250)])
    }

    fn device(options: Options) -> Sim {
        let mut device = Sim::new(Options { shapes: listed(), ..options });
        device.load(KEY, &model(Task::Embedding, 16)).expect("it loads anything once");
        device
    }

    fn collect(device: &mut Sim, lane: usize) -> Result<(u64, Vec<Vec<f32>>), Fault> {
        let mut vectors = Vec::new();
        let busy_ns = device.collect(lane, &mut |index, vector| {
            assert_eq!(index, vectors.len());
            vectors.push(vector.to_vec());
        })?;
        Ok((busy_ns, vectors))
    }

    #[test]
    fn a_vector_depends_on_its_own_tokens_and_types_only() {
        let pieces = pieces();
        let mut device = device(Options::default());
        for (bucket, order) in [(0, [0, 1, 2]), (2, [2, 0, 1]), (1, [1, 2, 0])] {
            device.submit(1, &plan(bucket, order), &pieces, 9).unwrap();
            assert_eq!(device.poll(1, 9), Lane::Done);
            let (busy_ns, vectors) = collect(&mut device, 1).unwrap();
            assert_eq!((busy_ns, device.poll(1, 9)), (0, Lane::Idle));
            for (sequence, got) in order.into_iter().zip(vectors) {
                let piece = pieces.get(0);
                let range = piece.range(sequence as usize);
                let mut expected = Vec::new();
                vector(&piece.ids[range.clone()], &piece.types[range], EMBEDDING_WIDTH, &mut expected);
                assert_eq!(got, expected);
                assert!(got.iter().all(|value| (-1.0..1.0).contains(value)));
            }
        }
    }

    #[test]
    fn vectors_tell_ids_types_and_lengths_apart() {
        let of = |ids: &[u32], types: &[u8]| {
            let mut out = Vec::new();
            vector(ids, types, 4, &mut out);
            out
        };
        let base = of(&[0, 0], &[0, 0]);
        for other in
            [of(&[0, 1], &[0, 0]), of(&[1, 0], &[0, 0]), of(&[0, 0], &[0, 1]), of(&[0], &[0]), of(&[0; 3], &[0; 3])]
        {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn width_follows_the_task() {
        let widths = [Task::Embedding, Task::Reranking, Task::Nli].map(|task| width(&model(task, 8)));
        assert_eq!(widths, [EMBEDDING_WIDTH, 1, 3]);
    }

    #[test]
    fn lanes_overlap_in_the_base_and_take_turns_in_the_rest() {
        let pieces = pieces();
        let mut device = device(Options { base_us: 10, us_per_1k_tokens: 100, ..Options::default() });
        // 100 tokens each: 10 + 10 µs.
        device.submit(0, &plan(1, [0, 1, 2]), &pieces, 0).unwrap();
        device.submit(1, &plan(1, [0, 1, 2]), &pieces, 5_000).unwrap();
        assert_eq!(device.wake_at_ns(), Some(20_000));
        assert_eq!((device.poll(0, 19_999), device.poll(0, 20_000)), (Lane::Busy, Lane::Done));
        assert_eq!(collect(&mut device, 0).unwrap().0, 20_000);
        // The second waits for the first one's arithmetic, from 15,000 to 20,000.
        assert_eq!(device.wake_at_ns(), Some(30_000));
        assert_eq!((device.poll(1, 29_999), device.poll(1, 30_000)), (Lane::Busy, Lane::Done));
        assert_eq!(collect(&mut device, 1).unwrap().0, 25_000);
        assert_eq!(device.wake_at_ns(), None);
    }

    #[test]
    fn charges_useful_tokens_where_asked_to() {
        let pieces = pieces();
        let mut device = device(Options { us_per_1k_tokens: 1_000, charge: Charge::Useful, ..Options::default() });
        device.submit(0, &plan(2, [0, 1, 2]), &pieces, 0).unwrap();
        assert_eq!(device.wake_at_ns(), Some(13_000));
    }

    #[test]
    fn jitter_stretches_and_repeats_with_its_seed() {
        let pieces = pieces();
        let times = |seed| {
            let mut device = device(Options { seed, base_us: 100, jitter: 0.5, ..Options::default() });
            let times: Vec<u64> = (0..50)
                .map(|_| {
                    device.submit(0, &plan(0, [0, 1, 2]), &pieces, 0).unwrap();
                    let done_ns = device.wake_at_ns().unwrap();
                    device.poll(0, u64::MAX);
                    collect(&mut device, 0).unwrap();
                    device.free_at_ns = 0;
                    done_ns
                })
                .collect();
            assert!(times.iter().all(|time| (100_000..150_000).contains(time)));
            assert!(times.iter().any(|time| *time > 140_000) && times.iter().any(|time| *time < 110_000));
            times
        };
        assert_eq!(times(3), times(3));
        assert_ne!(times(3), times(4));
    }

    #[test]
    fn scripted_faults_come_where_the_script_says() {
        let pieces = pieces();
        let script =
            vec![(0, Fault::Refused), (2, Fault::Failed), (3, Fault::Hung), (5, Fault::Panicked), (6, Fault::Dead)];
        let mut device = device(Options { script, base_us: 5, hang_us: 70, ..Options::default() });
        let plan = plan(0, [0, 1, 2]);
        assert_eq!(device.submit(0, &plan, &pieces, 0), Err(Fault::Refused));
        assert_eq!(device.poll(0, 0), Lane::Idle);
        for (wake_ns, expected) in
            [(5_000, None), (5_000, Some(Fault::Failed)), (70_000, Some(Fault::Hung)), (5_000, None)]
        {
            device.free_at_ns = 0;
            device.submit(0, &plan, &pieces, 0).unwrap();
            assert_eq!(device.wake_at_ns(), Some(wake_ns));
            assert_eq!((device.poll(0, wake_ns - 1), device.poll(0, wake_ns)), (Lane::Busy, Lane::Done));
            assert_eq!(collect(&mut device, 0).err(), expected);
            assert_eq!((device.poll(0, 0), device.health()), (Lane::Idle, Health::Ready));
        }
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| device.submit(0, &plan, &pieces, 0)));
        assert!(panic.is_err());
        assert_eq!(device.poll(0, 0), Lane::Idle);
        device.tracks[1].state = State::Busy { submitted_ns: 0, done_ns: 1 << 40, fault: None };
        assert_eq!(device.submit(0, &plan, &pieces, 0), Err(Fault::Dead));
        assert_eq!((device.health(), device.wake_at_ns()), (Health::Dead, Some(0)));
        assert_eq!(device.poll(1, 0), Lane::Done);
        assert_eq!(collect(&mut device, 1).err(), Some(Fault::Dead));
        assert_eq!(device.submit(0, &plan, &pieces, 0), Err(Fault::Dead));
    }

    #[test]
    fn seeded_faults_come_at_their_rates() {
        let settings =
            config::Sim { seed: 5, lanes: 3, base_us: 0, us_per_1k_tokens: 0, fault_rate: 0.3, packed: false };
        let device = Sim::new(Options::from(&settings));
        assert_eq!(device.lanes(), 3);
        let faults: Vec<_> = (0..20_000).map(|submission| device.fault(submission)).collect();
        for (fault, rate) in [(Fault::Refused, 0.1), (Fault::Failed, 0.1), (Fault::Hung, 0.1), (Fault::Dead, 0.0)] {
            let share = faults.iter().filter(|found| **found == Some(fault)).count() as f64 / 20_000.0;
            assert!((share - rate).abs() < 0.01, "{fault:?}: {share}");
        }
    }

    #[test]
    fn poisoned_sequences_are_the_same_everywhere() {
        let pieces = pieces();
        let (mut poisoned, nan_rate) = (0, 0.4);
        for seed in 0..40 {
            let mut device = device(Options { seed, nan_rate, ..Options::default() });
            for order in [[0, 1, 2], [2, 1, 0]] {
                device.submit(0, &plan(0, order), &pieces, 0).unwrap();
                device.poll(0, 0);
                for (sequence, vector) in order.into_iter().zip(collect(&mut device, 0).unwrap().1) {
                    let piece = pieces.get(0);
                    let range = piece.range(sequence as usize);
                    let expected = poisons(&piece.ids[range.clone()], &piece.types[range], seed, nan_rate);
                    assert_eq!(vector.iter().any(|value| value.is_nan()), expected);
                    poisoned += u32::from(expected);
                }
            }
        }
        assert!((60..130).contains(&poisoned), "{poisoned} of 240");
    }

    #[test]
    fn ladders_hold_the_longest_sequence_and_ascend() {
        for layout in [Layout::Padded, Layout::Packed] {
            for max_length in [1, 32, 100, 256, 512] {
                let shapes = Shapes::Ladder(layout);
                let mut device = Sim::new(Options { shapes, ..Options::default() });
                let offer = device.load(KEY, &model(Task::Reranking, max_length)).unwrap();
                assert_eq!((offer.length_max(), offer.width), (max_length as u32, 1));
                assert!(offer.buckets.is_sorted_by_key(|bucket| bucket.tokens()));
                assert!(offer.buckets.iter().all(|bucket| bucket.sequences_max > 0));
                assert!(device.load(KEY, &model(Task::Reranking, max_length)).is_err());
                device.unload(KEY);
                assert!(device.load(KEY, &model(Task::Reranking, max_length)).is_ok());
            }
        }
    }

    #[test]
    fn broken_plans_are_refused_loudly() {
        type Break = fn(&mut Plan);
        let breaks: [(&str, Break); 9] = [
            ("empty", |plan| plan.placements.clear()),
            ("a gap", |plan| plan.placements[1].offset += 1),
            ("an overlap", |plan| plan.placements[1].offset -= 1),
            ("out of order", |plan| plan.placements.swap(0, 1)),
            ("a row left out", |plan| plan.placements[2].row = 2),
            ("a wrong length", |plan| plan.placements[2].length = 1),
            ("a wrong sum", |plan| plan.tokens = 12),
            ("twice", |plan| plan.placements[2] = Placement { row: 1, offset: 0, ..plan.placements[0] }),
            ("no such bucket", |plan| plan.bucket = 3),
        ];
        let pieces = pieces();
        for (what, breaks) in breaks {
            let mut plan = plan(2, [0, 1, 2]);
            breaks(&mut plan);
            if what == "twice" {
                plan.tokens = 15;
            }
            let refused = std::panic::catch_unwind(|| device(Options::default()).submit(0, &plan, &pieces, 0));
            assert!(refused.is_err(), "{what}");
        }
        let mut long = plan(0, [0, 1, 2]);
        long.placements[0].offset = 4;
        let refused = std::panic::catch_unwind(|| device(Options::default()).submit(0, &long, &pieces, 0));
        assert!(refused.is_err(), "beyond the row");
    }
}
