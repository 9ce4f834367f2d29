//! The CPU device: embedding, reranker and NLI models from Hugging Face folders, on our own encoder.
//!
//! It needs no library and no padding, runs everywhere, and is the oracle against which other devices are tested. A
//! lane is a thread (with helpers, if `threads_per_lane` says so) that runs one plan at a time; the device itself only
//! copies token ids in and vectors out. Its buckets are bounds: one row, as long as a plan may be.
//!
//! Invariant: whatever a plan holds, a lane computes only what its model knows; a plan with a token, type or length
//! beyond that is refused whole. A lane's panic is a fault of that plan, and the device stays ready.
//!
//! `cpu/` in the order of a run: `lane` (what its thread does), `encoder` (the model and its schedule), `team` (threads
//! that share a run), `product` and `kernels` (what it is made of), `matrix` (memory, and blocks of it).

mod encoder;
mod kernels;
mod lane;
mod matrix;
mod product;
mod team;

use std::sync::Arc;

use self::encoder::Encoder;
use self::lane::Work;
use super::lane::{Finished, LaneThread, Notify};
use super::{Bucket, Device, Fault, Health, Lane, Layout, LoadError, Offer, Pieces, Plan};
use crate::config;
use crate::job::ModelKey;
use crate::model::Model;

/// Sequences in one plan at most: bounds the outputs, and with texts of eight tokens still fills 4,096.
const SEQUENCES_MAX: u32 = 512;

/// A loaded model and the bounds that were offered for it.
#[derive(Debug)]
struct Loaded {
    generation: u32,
    encoder: Arc<Encoder>,
    bucket: Bucket,
}

#[derive(Debug)]
pub struct Cpu {
    lanes: Vec<LaneThread<Work>>,
    threads_per_lane: usize,
    tokens_max: u32,
    /// By [`ModelKey::index`].
    models: Vec<Option<Loaded>>,
}

impl Cpu {
    /// Starts the lanes' threads. `notify` is called, from a lane's thread, whenever a lane becomes [`Lane::Done`].
    pub fn new(settings: &config::Cpu, notify: Notify) -> Cpu {
        let threads_per_lane = settings.threads_per_lane.max(1);
        let lane = |index| lane::start(index, threads_per_lane, notify.clone());
        Cpu {
            lanes: (0..settings.lanes.max(1)).map(lane).collect(),
            threads_per_lane,
            tokens_max: settings.tokens_max,
            models: Vec::new(),
        }
    }

    fn loaded(&self, key: ModelKey) -> Option<&Loaded> {
        let loaded = self.models.get(key.index as usize)?.as_ref()?;
        (loaded.generation == key.generation).then_some(loaded)
    }
}

impl Device for Cpu {
    fn load(&mut self, key: ModelKey, model: &Arc<Model>) -> Result<Offer, LoadError> {
        let encoder = Encoder::load(model)?;
        let width = encoder.width() as u32;
        let length = self.tokens_max.max(encoder.length_max() as u32);
        let bucket = Bucket { rows: 1, length, sequences_max: SEQUENCES_MAX.min(length) };
        let needs = encoder.needs(length as usize, bucket.sequences_max as usize);
        for lane in &mut self.lanes {
            // A lane that is away makes room itself when it first meets the model.
            if let Some(work) = lane.idle() {
                work.scratch.reserve(needs, self.threads_per_lane);
                work.batch.reserve(length as usize, bucket.sequences_max as usize);
            }
        }
        let index = key.index as usize;
        if self.models.len() <= index {
            self.models.resize_with(index + 1, || None);
        }
        self.models[index] = Some(Loaded { generation: key.generation, encoder: Arc::new(encoder), bucket });
        Ok(Offer { layout: Layout::Packed, buckets: vec![bucket], width, costs_ns: Vec::new() })
    }

    fn unload(&mut self, key: ModelKey) {
        if self.loaded(key).is_some() {
            self.models[key.index as usize] = None;
        }
    }

    fn lanes(&self) -> usize {
        self.lanes.len()
    }

    fn submit(&mut self, lane: usize, plan: &Plan, pieces: &Pieces, _now_ns: u64) -> Result<(), Fault> {
        let loaded = self.loaded(plan.model).ok_or(Fault::Refused)?;
        let (encoder, bucket) = (loaded.encoder.clone(), loaded.bucket);
        let lane = &mut self.lanes[lane];
        let work = lane.idle().ok_or(Fault::Refused)?;
        work.batch.clear();
        let fits = plan.tokens <= bucket.tokens() && plan.placements.len() <= bucket.sequences_max as usize;
        if plan.bucket != 0 || plan.placements.is_empty() || !fits {
            return Err(Fault::Refused);
        }
        for placement in &plan.placements {
            let piece = pieces.get(placement.piece);
            let range = piece.range(placement.sequence as usize);
            let room = bucket.tokens() as usize - work.batch.tokens();
            if range.is_empty() || range.len() > encoder.length_max().min(room) {
                return Err(Fault::Refused);
            }
            let (ids, types) = (&piece.ids[range.clone()], &piece.types[range]);
            if !ids.iter().zip(types).all(|(&id, &token_type)| encoder.knows(id, token_type)) {
                return Err(Fault::Refused);
            }
            encoder.push(&mut work.batch, ids, types);
        }
        work.width = encoder.width();
        work.encoder = Some(encoder);
        lane.start();
        Ok(())
    }

    fn poll(&mut self, lane: usize, _now_ns: u64) -> Lane {
        self.lanes[lane].state()
    }

    fn collect(&mut self, lane: usize, output: &mut dyn FnMut(usize, &[f32])) -> Result<u64, Fault> {
        let Finished { work, result, busy_ns } = self.lanes[lane].finish().ok_or(Fault::Refused)?;
        result?;
        let vectors = work.scratch.outputs().chunks_exact(work.width);
        for (index, vector) in vectors.take(work.batch.sequences()).enumerate() {
            output(index, vector);
        }
        Ok(busy_ns)
    }

    fn computed_tokens(&self, plan: &Plan, _bucket: Bucket) -> u64 {
        plan.tokens.into()
    }

    fn health(&self) -> Health {
        Health::Ready
    }

    fn name(&self) -> &str {
        "cpu"
    }
}

#[cfg(test)]
mod reference;

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, channel};

    use super::encoder::{Batch, Scratch};
    use super::kernels::Level;
    use super::team::Team;
    use super::*;
    use crate::device::Placement;
    use crate::job::Piece;
    use crate::model::sample::{Random, Sample, TemporaryFolder};
    use crate::model::{Architecture, Pooling, Task, folder};

    type Sequence = (Vec<u32>, Vec<u8>);

    /// Both architectures with each head, pooling and activation; a hidden size that no vector width divides.
    fn samples() -> Vec<Sample> {
        let mut samples: Vec<Sample> = [Task::Embedding, Task::Reranking, Task::Nli]
            .into_iter()
            .flat_map(|task| [Sample::bert(task), Sample::roberta(task)])
            .collect();
        let (bert, roberta) = (Sample::bert(Task::Embedding), Sample::roberta(Task::Embedding));
        samples.push(Sample {
            hidden: 36,
            heads: 3,
            intermediate: 50,
            activation: "relu",
            normalize: false,
            ..bert.clone()
        });
        samples.push(Sample { layers: 1, pooling: Pooling::Cls, ..bert });
        samples.push(Sample { layers: 1, pooling: Pooling::Mean, token_types: 2, ..roberta });
        samples
    }

    fn written(sample: &Sample) -> (TemporaryFolder, Arc<Model>) {
        let place = TemporaryFolder::new();
        sample.write(&place);
        let model = folder::read(place.path(), None, &sample.settings()).expect("a sample is a good folder");
        (place, Arc::new(model))
    }

    fn sequence(random: &mut Random, sample: &Sample, length: usize) -> Sequence {
        let ids = (0..length).map(|_| random.below(sample.vocabulary) as u32).collect();
        let first_part = length / 2;
        let is_second = |index: usize| sample.architecture == Architecture::Bert && index >= first_part;
        (ids, (0..length).map(|index| u8::from(is_second(index))).collect())
    }

    fn batch_of(encoder: &Encoder, sequences: &[Sequence]) -> Batch {
        let mut batch = Batch::default();
        sequences.iter().for_each(|(ids, types)| encoder.push(&mut batch, ids, types));
        batch
    }

    fn run(encoder: &Encoder, sequences: &[Sequence], threads: usize) -> Vec<Vec<f32>> {
        let batch = batch_of(encoder, sequences);
        let mut scratch = Scratch::default();
        scratch.reserve(encoder.needs(batch.tokens(), batch.sequences()), threads);
        let mut team = Team::new(threads, "cpu-test");
        encoder.run(&batch, &mut scratch, &mut team).expect("nothing panics");
        let vectors = scratch.outputs().chunks(encoder.width()).take(sequences.len());
        vectors.map(<[f32]>::to_vec).collect()
    }

    /// Largest difference, relative to the largest value of the expected vector.
    fn difference(found: &[f32], expected: &[f64]) -> f64 {
        assert_eq!(found.len(), expected.len());
        let scale = expected.iter().fold(1e-3, |scale: f64, value| scale.max(value.abs()));
        let errors = found.iter().zip(expected).map(|(&found, expected)| (f64::from(found) - expected).abs());
        errors.fold(0.0, |worst: f64, error| if error.is_nan() { f64::INFINITY } else { worst.max(error) }) / scale
    }

    #[test]
    fn every_head_equals_the_naive_encoder_on_every_level_and_team() {
        for (number, sample) in samples().iter().enumerate() {
            let (_place, model) = written(sample);
            let mut random = Random(number as u64);
            // Short and long, across the blocks of rows and of queries; few enough tokens to share columns, and more.
            let few: Vec<Sequence> = [5, 1, 17].map(|length| sequence(&mut random, sample, length)).to_vec();
            let many: Vec<Sequence> =
                [70, 1, 2, 130, 9, 64].map(|length| sequence(&mut random, sample, length)).to_vec();
            for sequences in [few, many] {
                let expected: Vec<Vec<f64>> =
                    sequences.iter().map(|(ids, types)| reference::vector(&model, ids, types)).collect();
                for level in Level::available() {
                    let encoder = Encoder::load(&model).expect("a sample can be loaded").with_level(level);
                    for threads in [1, 2, 3] {
                        for (index, found) in run(&encoder, &sequences, threads).iter().enumerate() {
                            let error = difference(found, &expected[index]);
                            assert!(
                                error < 1e-5,
                                "sample {number}, sequence {index}, {} × {threads}: {error}",
                                level.name()
                            );
                        }
                    }
                }
            }
        }
    }

    /// Not only within an error: no sum anywhere depends on what else is in the batch, or on who computes it.
    #[test]
    fn a_text_alone_in_a_batch_and_among_strangers_is_the_same_to_the_bit() {
        let mean = Sample { hidden: 96, intermediate: 384, ..Sample::bert(Task::Embedding) };
        let first = Sample { hidden: 36, heads: 3, intermediate: 50, ..Sample::roberta(Task::Nli) };
        for sample in [mean, first] {
            let (_place, model) = written(&sample);
            let mut random = Random(11);
            for level in Level::available() {
                let encoder = Encoder::load(&model).expect("a sample can be loaded").with_level(level);
                for length in [1, 2, 7, 16, 33, 128, 200] {
                    let own = sequence(&mut random, &sample, length);
                    let alone = run(&encoder, std::slice::from_ref(&own), 1).remove(0);
                    for (threads, strangers) in [(1, 1), (1, 20), (2, 0), (2, 1), (2, 20), (3, 3)] {
                        let mut sequences: Vec<Sequence> = (0..strangers)
                            .map(|_| {
                                let length = 1 + random.below(60);
                                sequence(&mut random, &sample, length)
                            })
                            .collect();
                        let place = random.below(strangers + 1);
                        sequences.insert(place, own.clone());
                        let found = run(&encoder, &sequences, threads).remove(place);
                        assert!(found == alone, "{length} tokens among {strangers} on {threads} × {}", level.name());
                    }
                }
            }
        }
    }

    fn settings(lanes: usize, threads_per_lane: usize) -> config::Cpu {
        config::Cpu { lanes, threads_per_lane, tokens_max: 256 }
    }

    /// A device and the rings of its doorbell.
    fn device(settings: &config::Cpu) -> (Cpu, Receiver<()>) {
        let (sender, receiver) = channel();
        let sender = Mutex::new(sender);
        let notify = move || {
            let _ = sender.lock().map(|sender| sender.send(()));
        };
        (Cpu::new(settings, Arc::new(notify)), receiver)
    }

    const KEY: ModelKey = ModelKey { index: 1, generation: 4 };

    /// Each sequence a piece of its own, in one plan.
    fn plan_of(sequences: &[Sequence]) -> (Plan, Pieces) {
        let mut pieces = Pieces::with_capacity(sequences.len());
        let mut plan = Plan { model: KEY, ..Plan::default() };
        for (ids, types) in sequences {
            let ends = vec![ids.len() as u32];
            let piece = Piece { model: KEY, ids: ids.clone(), types: types.clone(), ends, ..Piece::default() };
            let (length, offset) = (ids.len() as u32, plan.tokens);
            let piece = pieces.insert(Box::new(piece));
            plan.placements.push(Placement { piece, sequence: 0, row: 0, offset, length });
            plan.tokens += length;
        }
        (plan, pieces)
    }

    fn collected(device: &mut Cpu, lane: usize) -> Result<Vec<Vec<f32>>, Fault> {
        let mut vectors = Vec::new();
        device.collect(lane, &mut |index, vector| {
            assert_eq!(index, vectors.len());
            vectors.push(vector.to_vec());
        })?;
        Ok(vectors)
    }

    #[test]
    fn lanes_run_plans_side_by_side_and_ring_when_done() {
        let sample = Sample::bert(Task::Embedding);
        let (_place, model) = written(&sample);
        let (mut device, rings) = device(&settings(2, 1));
        let offer = device.load(KEY, &model).expect("a sample can be loaded");
        let bucket = Bucket { rows: 1, length: 256, sequences_max: 256 };
        assert_eq!(offer, Offer { layout: Layout::Packed, buckets: vec![bucket], width: 48, costs_ns: Vec::new() });
        let mut random = Random(3);
        for round in 0..20 {
            let sequences: Vec<Vec<Sequence>> =
                (0..2).map(|_| (0..3 + round % 4).map(|_| sequence(&mut random, &sample, 20)).collect()).collect();
            let plans: Vec<(Plan, Pieces)> = sequences.iter().map(|sequences| plan_of(sequences)).collect();
            for (lane, (plan, pieces)) in plans.iter().enumerate() {
                assert_eq!(device.poll(lane, 0), Lane::Idle);
                assert_eq!(device.submit(lane, plan, pieces, 0), Ok(()));
                assert_eq!(device.submit(lane, plan, pieces, 0), Err(Fault::Refused), "a busy lane takes nothing");
            }
            (0..2).for_each(|_| rings.recv().expect("a lane rings"));
            for (lane, sequences) in sequences.iter().enumerate() {
                assert_eq!(device.poll(lane, 0), Lane::Done);
                let vectors = collected(&mut device, lane).expect("nothing goes wrong");
                assert_eq!(vectors.len(), sequences.len());
                for (vector, (ids, types)) in vectors.iter().zip(sequences) {
                    assert!(difference(vector, &reference::vector(&model, ids, types)) < 1e-5);
                }
                assert_eq!(device.poll(lane, 0), Lane::Idle);
            }
        }
    }

    #[test]
    fn what_a_model_does_not_know_is_refused_whole_and_the_lane_stays_idle() {
        let sample = Sample::bert(Task::Embedding);
        let (_place, model) = written(&sample);
        let (mut device, _rings) = device(&settings(1, 1));
        device.load(KEY, &model).expect("a sample can be loaded");
        let good = (vec![1, 2, 3], vec![0, 0, 1]);
        let bad: [(&str, Sequence); 4] = [
            ("an id beyond the vocabulary", (vec![1, 97], vec![0, 0])),
            ("a type beyond the table", (vec![1, 2], vec![0, 2])),
            ("an empty sequence", (vec![], vec![])),
            ("a sequence beyond the positions", (vec![1; 201], vec![0; 201])),
        ];
        for (what, bad) in bad {
            let (plan, pieces) = plan_of(&[good.clone(), bad]);
            assert_eq!(device.submit(0, &plan, &pieces, 0), Err(Fault::Refused), "{what}");
            assert_eq!(device.poll(0, 0), Lane::Idle, "{what}");
        }
        let (plan, pieces) = plan_of(&vec![(vec![1; 100], vec![0; 100]); 3]);
        assert_eq!(device.submit(0, &plan, &pieces, 0), Err(Fault::Refused), "more tokens than the bucket");
        let (plan, pieces) = plan_of(std::slice::from_ref(&good));
        let stale = Plan { model: ModelKey { generation: 3, ..KEY }, ..plan.clone() };
        assert_eq!(device.submit(0, &stale, &pieces, 0), Err(Fault::Refused), "a stale key");
        assert_eq!(collected(&mut device, 0), Err(Fault::Refused), "nothing to collect");
        device.unload(KEY);
        assert_eq!(device.submit(0, &plan, &pieces, 0), Err(Fault::Refused), "an unloaded model");
        assert_eq!(device.health(), Health::Ready);
    }

    #[test]
    fn a_panic_in_a_lane_is_a_fault_and_the_next_plan_runs() {
        for threads in [1, 3] {
            let sample = Sample::roberta(Task::Nli);
            let (_place, model) = written(&sample);
            let (mut device, rings) = device(&settings(1, threads));
            device.load(KEY, &model).expect("a sample can be loaded");
            let (plan, pieces) = plan_of(&[sequence(&mut Random(5), &sample, 30)]);
            // A batch that no `submit` would let through: the run's own checks panic in the lane's thread.
            let encoder = device.loaded(KEY).expect("it is loaded").encoder.clone();
            let work = device.lanes[0].idle().expect("it is idle");
            encoder.push(&mut work.batch, &[1_000_000], &[0]);
            (work.encoder, work.width) = (Some(encoder), 3);
            device.lanes[0].start();
            rings.recv().expect("a lane rings");
            assert_eq!(device.poll(0, 0), Lane::Done);
            assert_eq!(collected(&mut device, 0), Err(Fault::Panicked));
            assert_eq!(device.submit(0, &plan, &pieces, 0), Ok(()));
            rings.recv().expect("a lane rings");
            assert_eq!(device.poll(0, 0), Lane::Done);
            assert_eq!(collected(&mut device, 0).map(|vectors| vectors.len()), Ok(1));
        }
    }

    #[test]
    fn a_model_loaded_or_unloaded_while_a_lane_is_away_changes_nothing_for_it() {
        let (small, large) = (Sample::bert(Task::Embedding), Sample { hidden: 96, ..Sample::bert(Task::Reranking) });
        let ((_one, model), (_two, larger)) = (written(&small), written(&large));
        let (mut device, rings) = device(&settings(1, 2));
        device.load(KEY, &model).expect("a sample can be loaded");
        let own = sequence(&mut Random(9), &small, 150);
        let (plan, pieces) = plan_of(std::slice::from_ref(&own));
        device.submit(0, &plan, &pieces, 0).expect("it is idle");
        let other = ModelKey { index: 0, generation: 0 };
        device.load(other, &larger).expect("a sample can be loaded");
        device.unload(KEY);
        rings.recv().expect("a lane rings");
        assert_eq!(device.poll(0, 0), Lane::Done);
        let vectors = collected(&mut device, 0).expect("nothing goes wrong");
        assert!(difference(&vectors[0], &reference::vector(&model, &own.0, &own.1)) < 1e-5);
        let (plan, pieces) = plan_of(std::slice::from_ref(&own));
        device.submit(0, &Plan { model: other, ..plan }, &pieces, 0).expect("it is idle");
        rings.recv().expect("a lane rings");
        assert_eq!(device.poll(0, 0), Lane::Done);
        let vectors = collected(&mut device, 0).expect("nothing goes wrong");
        assert!(difference(&vectors[0], &reference::vector(&larger, &own.0, &own.1)) < 1e-5);
    }

    #[test]
    fn dropping_the_device_waits_for_a_running_plan() {
        let sample = Sample { hidden: 384, intermediate: 1536, heads: 12, layers: 4, ..Sample::bert(Task::Embedding) };
        let (_place, model) = written(&sample);
        let (mut device, rings) = device(&settings(1, 2));
        device.load(KEY, &model).expect("a sample can be loaded");
        let (plan, pieces) = plan_of(&[sequence(&mut Random(1), &sample, 200)]);
        device.submit(0, &plan, &pieces, 0).expect("it is idle");
        drop(device);
        assert_eq!(rings.iter().count(), 1, "the plan ended before its lane did, and the doorbell is let go");
    }

    #[test]
    fn a_source_that_is_no_folder_says_what_would_run_it() {
        let (_place, model) = written(&Sample::bert(Task::Embedding));
        let source = crate::model::Source::Onnx("model.onnx".into());
        let model = Arc::new(Model { source, ..Model::clone(&model) });
        let (mut device, _rings) = device(&settings(1, 1));
        let error = device.load(KEY, &model).expect_err("an .onnx is not a folder");
        assert!(error.0.contains("onnxruntime"), "{error}");
    }
}
