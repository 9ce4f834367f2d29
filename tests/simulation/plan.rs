//! What kind of world a seed makes: its settings, devices, clients, and the weights of its order.

use reactrt::config::Settings;
use reactrt::device::sim::{Charge, Options, Rates, Shapes, width};
use reactrt::device::{Bucket, Fault, Layout};
use reactrt::job::Buffers;

use super::asks::{self, Ask, Bounds, Excuses, House};
use super::client::{Departure, Patience, Style};
use super::device::Notice;
use super::random::Random;

/// Longer than every client and every device may take one after another: nothing is to be cut off by it.
pub const DRAIN_MS: u64 = 200_000;

#[derive(Clone, Debug)]
pub struct DeviceSetting {
    pub options: Options,
    pub notice: Notice,
    /// Its owner looks all the time while something executes.
    pub is_polled: bool,
    pub models: Vec<usize>,
}

#[derive(Clone, Copy, Debug)]
pub struct Weights {
    pub reactor: usize,
    pub worker: usize,
    pub driver: usize,
    pub client: usize,
}

/// An access log, and who reads it.
#[derive(Clone, Copy, Debug)]
pub struct JournalSetting {
    pub records_max: usize,
    /// Some lines are taken once in so many steps; `None`: all of them at the end.
    pub taken_one_in: Option<usize>,
}

#[derive(Clone, Debug)]
pub struct Setting {
    pub settings: Settings,
    pub house: House,
    pub journal: Option<JournalSetting>,
    pub devices: Vec<DeviceSetting>,
    pub clients: Vec<(Style, Vec<Ask>)>,
    pub weights: Weights,
    /// How far the clock may move between two steps; 0: only when everybody sleeps.
    pub tick_ns_max: u64,
    pub stops_after_steps: Option<u64>,
    pub excuses: Excuses,
    pub patience: Patience,
    pub has_little_memory: bool,
    pub runs_out_of_descriptors: bool,
}

impl Setting {
    pub fn new(random: &mut Random, seed: u64) -> Setting {
        let tick_ns_max = random.pick(&[0, 1_000, 20_000, 200_000]);
        let mut settings = server(random);
        settings.threads.spin_us = if tick_ns_max > 0 { random.pick(&[0, 0, 0, 20]) } else { 0 };
        let has_little_memory = random.one_in(4);
        let is_crowded = has_little_memory && random.one_in(2);
        if is_crowded {
            // Many at once, so that it is the buffers that run out.
            let limits = &mut settings.limits;
            (limits.connections_max, limits.jobs_max, limits.pieces_max) = (40, 40, 60);
        }
        bound_memory(&mut settings, if has_little_memory { 0 } else { 16 << 20 });
        let nan_rate = random.pick(&[0.0, 0.0, 0.02]);
        let mut excuses = Excuses { seed, nan_rate, ..Excuses::default() };
        excuses.words.insert(asks::QUEUE_FULL);
        if has_little_memory {
            excuses.words.insert(asks::NO_BUFFERS);
        }
        let count = random.pick(&[1, 1, 2]);
        let mut devices: Vec<DeviceSetting> =
            (0..count).map(|index| device(random, index, &excuses, &settings)).collect();
        if is_crowded {
            // And many done at once.
            devices.iter_mut().for_each(|device| device.options.base_us = 40_000);
        }
        devices.iter().for_each(|device| excuse(device, &mut excuses));
        settings.gpu.exit_when_dead = random.one_in(4);
        if settings.gpu.exit_when_dead && excuses.words.contains(&asks::DEVICE_DEAD) {
            excuses.words.insert(asks::DRAINING);
        }
        let ms = |ms: u64| ms * 1_000_000 / 10 * 9;
        let deadlines = &settings.deadlines;
        let patience = Patience {
            request_ns: ms(deadlines.head_ms.min(deadlines.body_ms)),
            idle_ns: ms(deadlines.idle_ms),
            write_ns: ms(deadlines.write_ms),
        };
        let limits = &settings.limits;
        let bounds = Bounds {
            texts_max: limits.texts_max,
            text_bytes_max: limits.text_bytes_max,
            body_bytes_max: limits.body_bytes_max,
            answer_bytes_max: limits.answer_bytes_max,
        };
        let house = house(random);
        let journal = random.one_in(2).then(|| JournalSetting {
            records_max: random.pick(&[1, 3, 40, 400]),
            taken_one_in: random.pick(&[None, Some(1), Some(20), Some(300)]),
        });
        let count = if is_crowded { 40 } else { random.pick(&[3, 8, 20, 35]) };
        let clients = (0..count).map(|index| client(random, index, &bounds, &patience, &house)).collect();
        let weight = |random: &mut Random| random.pick(&[1, 2, 4, 16]);
        let weights =
            Weights { reactor: weight(random), worker: weight(random), driver: weight(random), client: weight(random) };
        let stops_after_steps = random.one_in(3).then(|| random.between(50, 3_000) as u64);
        let runs_out_of_descriptors = random.one_in(4);
        Setting {
            settings,
            house,
            journal,
            devices,
            clients,
            weights,
            tick_ns_max,
            stops_after_steps,
            excuses,
            patience,
            has_little_memory,
            runs_out_of_descriptors,
        }
    }
}

fn house(random: &mut Random) -> House {
    let keys: &[&str] = match random.below(4) {
        0 => &["first-key"],
        1 => &["first-key", "the-second"],
        _ => &[],
    };
    let origins: &[&str] = random.pick(&[&[], &["*"], &["https://a.example", "https://b.example"]]);
    House {
        keys: keys.iter().map(|key| (*key).to_owned()).collect(),
        origins: origins.iter().map(|origin| (*origin).to_owned()).collect(),
        request_ms: random.pick(&[None, None, None, Some(1), Some(45), Some(400), Some(30_000)]),
    }
}

fn server(random: &mut Random) -> Settings {
    let mut settings = Settings::defaults(2);
    settings.threads.workers = random.between(1, 3);
    let limits = &mut settings.limits;
    limits.connections_max = random.pick(&[2, 8, 40]);
    limits.jobs_max = random.pick(&[1, 2, 4, 40]);
    limits.pieces_max = (2 * settings.threads.workers).max(random.pick(&[1, 5, 12, 60]));
    limits.piece_sequences_max = random.pick(&[1, 2, 4, 16]);
    limits.head_bytes_max = random.pick(&[600, 4_000]);
    limits.body_bytes_max = random.pick(&[8_000, 40_000]);
    limits.text_bytes_max = limits.body_bytes_max / 2;
    limits.texts_max = 64;
    limits.json_values_max = 2_048;
    limits.answer_bytes_max = 120_000;
    settings.cpu.tokens_max = random.pick(&[96, 200, 2_048]);
    let batching = &mut settings.batching;
    batching.queue_tokens_max = random.pick(&[150, 3_000, 1 << 20, 1 << 20]);
    batching.age_us_max = random.pick(&[100, 50_000]);
    batching.linger_us = random.pick(&[0, 0, 0, 300]);
    batching.sequences_max = random.pick(&[None, None, Some(1), Some(5)]);
    batching.tokens_max = random.pick(&[None, None, Some(128)]);
    let deadlines = &mut settings.deadlines;
    (deadlines.head_ms, deadlines.body_ms) = random.pick(&[(200, 300), (10_000, 30_000)]);
    deadlines.idle_ms = random.pick(&[500, 75_000]);
    deadlines.write_ms = random.pick(&[400, 30_000]);
    deadlines.drain_ms = random.pick(&[1, DRAIN_MS, DRAIN_MS, DRAIN_MS]);
    settings
}

/// As much memory as the limits need, and so many bytes more.
pub fn bound_memory(settings: &mut Settings, more_bytes: usize) {
    let longest = asks::models().iter().map(|known| known.model.max_length as u32).max().unwrap_or(1);
    let width_max = asks::models().iter().map(|known| width(&known.model)).max().unwrap_or(1);
    let bounds = settings.piece_bounds();
    let bounds = reactrt::job::PieceBounds { tokens_max: bounds.tokens_max.max(longest), ..bounds };
    let memory = settings.memory(bounds, width_max).total_bytes() as usize;
    let requests = settings.limits.body_bytes_max + settings.limits.answer_bytes_max;
    let buffers = Buffers::bytes_for(settings.largest_request_bytes());
    settings.limits.memory_bytes_max = Some(memory - requests + buffers + more_bytes);
}

fn device(random: &mut Random, index: usize, excuses: &Excuses, settings: &Settings) -> DeviceSetting {
    let rate = |random: &mut Random| random.pick(&[0.0, 0.0, 0.0, 0.05, 0.3]);
    let rates = Rates {
        refused: rate(random),
        failed: rate(random),
        hung: random.pick(&[0.0, 0.0, 0.05]),
        panicked: random.pick(&[0.0, 0.0, 0.05]),
        dead: 0.0,
    };
    let script = if random.one_in(6) { vec![(random.below(15) as u64, Fault::Dead)] } else { Vec::new() };
    let longest = asks::models().iter().map(|known| known.model.max_length as u32).max().unwrap_or(1);
    let bucket = |rows, sequences_max| Bucket { rows, length: longest, sequences_max };
    let shapes = match random.below(4) {
        0 => Shapes::Ladder(Layout::Padded),
        1 => Shapes::Listed(Layout::Padded, vec![bucket(3, 3)]),
        2 => Shapes::Listed(Layout::Packed, vec![bucket(1, 4), bucket(4, 60)]),
        _ => Shapes::Ladder(Layout::Packed),
    };
    // All models are on the first device, some on the next.
    let models = (0..asks::models().len()).filter(|_| index == 0 || random.one_in(2)).collect();
    let options = Options {
        seed: excuses.seed,
        lanes: random.between(1, settings.sim.lanes + 1),
        base_us: random.pick(&[0, 10, 300, 40_000]),
        us_per_1k_tokens: random.pick(&[0, 50, 5_000]),
        charge: random.pick(&[Charge::Bucket, Charge::Useful]),
        jitter: random.pick(&[0.0, 0.5]),
        rates,
        script,
        hang_us: random.pick(&[1_000, 1_000_000]),
        nan_rate: excuses.nan_rate,
        shapes,
    };
    let notice = random.pick(&[Notice::Clock, Notice::Bell, Notice::ArmedBell]);
    DeviceSetting { options, notice, is_polled: random.one_in(5), models }
}

/// What clients may be told because of this device.
fn excuse(device: &DeviceSetting, excuses: &mut Excuses) {
    let Options { rates, script, .. } = &device.options;
    for (rate, words) in [
        (rates.refused, asks::REFUSED),
        (rates.failed, asks::FAILED),
        (rates.hung, asks::HUNG),
        (rates.panicked, asks::PANICKED),
        (script.len() as f64, asks::DEVICE_DEAD),
    ] {
        if rate > 0.0 {
            excuses.words.insert(words);
        }
    }
}

fn client(random: &mut Random, index: usize, bounds: &Bounds, patience: &Patience, house: &House) -> (Style, Vec<Ask>) {
    let count = random.pick(&[1, 2, 5]);
    let asks = (0..count).map(|ask| Ask::new(random, format!("c{index}-{ask}"), bounds, house)).collect();
    let leave = |random: &mut Random| random.pick(&[Departure::FinishSending, Departure::Leave, Departure::Reset]);
    let leaves = random.one_in(5).then(|| (random.between(2, 30), leave(random)));
    let pause = random.one_in(6).then(|| {
        let pause_ns =
            random.pick(&[1_000_000, patience.request_ns / 3, 10 * patience.request_ns, 100 * patience.idle_ns]);
        (random.below(count), random.between(1, 200), pause_ns)
    });
    let style = Style {
        send_max: random.pick(&[1, 7, 200, 100_000]),
        receive_max: if random.one_in(12) { 1 } else { random.pick(&[40, 700, 100_000]) },
        depth: random.pick(&[1, 1, 1, 4]),
        leaves,
        leaves_waiting: random.one_in(2),
        never_reads: random.one_in(15),
        pause,
        connects_at_ns: random.pick(&[0, 0, 1_000, 5_000_000]),
        last: leave(random),
    };
    (style, asks)
}
