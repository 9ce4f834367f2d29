//! The CPU device against onnxruntime, on the same model, the same texts and the same number of threads.
//!
//! ```text
//! ORT_DYLIB_PATH=/path/to/libonnxruntime.so \
//!     cargo bench --bench encoder -- MODEL_FOLDER MODEL.onnx [THREADS …] [--only NAME]
//! ```
//!
//! Relative paths count from the repository's root, wherever cargo is called, that of the library too.
//!
//! The folder and the .onnx hold the same embedding model; the latter takes `input_ids`, `attention_mask` and perhaps
//! `token_type_ids`, all i64, and gives the last hidden state or the vector. Both engines run each scenario in turn, in
//! blocks, in one process: a block begins with a pause, in which the other's threads stop spinning, and with a run that
//! is not counted. Each scenario first compares the vectors; engines that disagree are not compared in speed. What is
//! printed is the median (and the least) time per batch, and onnxruntime's time over ours: above 1 we are faster.
//!
//! Ours is measured through the device's own interface, from `submit` to `collect`, waking of threads included; for
//! onnxruntime only `run` counts, and neither making its inputs nor pooling its output.

use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ort::session::Session;
use ort::session::builder::GraphOptimizationLevel;
use ort::value::Tensor;

use reactrt::config::{self, ModelSettings};
use reactrt::device::cpu::Cpu;
use reactrt::device::{Device, Lane, Pieces, Placement, Plan};
use reactrt::job::{ModelKey, Piece};
use reactrt::model::{Model, Pooling, Task, folder};

type Failure = Box<dyn std::error::Error>;

/// Lengths in tokens of the texts of one batch.
struct Scenario {
    name: &'static str,
    lengths: Vec<usize>,
}

const USAGE: &str = "usage: ORT_DYLIB_PATH=/path/to/libonnxruntime.so cargo bench --bench encoder -- MODEL_FOLDER MODEL.onnx \
                     [THREADS …] [--only NAME]";

const BLOCKS: usize = 9;
const BLOCK_PAUSE: Duration = Duration::from_millis(30);
/// A block lasts about this long, and at least three runs.
const BLOCK_TIME: Duration = Duration::from_millis(150);

fn scenarios() -> Vec<Scenario> {
    let equal = |name, count: usize, length: usize| Scenario { name, lengths: vec![length; count] };
    vec![
        equal("1 × 16", 1, 16),
        equal("1 × 128", 1, 128),
        equal("8 × 128", 8, 128),
        equal("32 × 128", 32, 128),
        equal("1 × 256", 1, 256),
        Scenario { name: "32 mixed", lengths: mixed(32) },
    ]
}

/// Log-normal lengths: median 30 words of 1.3 tokens, σ 0.9, 4 to 254 tokens, by equally spaced quantiles in a fixed
/// shuffle, so that every run has the same.
fn mixed(count: usize) -> Vec<usize> {
    (0..count)
        .map(|index| (index * 13 % count) as f64 + 0.5)
        .map(|place| (39.0 * (0.9 * normal_quantile(place / count as f64)).exp()).round().clamp(4.0, 254.0) as usize)
        .collect()
}

/// The standard normal distribution's quantile, by bisection of its integral.
fn normal_quantile(probability: f64) -> f64 {
    let density = |x: f64| (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let below = |x: f64| 0.5 + (0..1_000).map(|step| density(x * (f64::from(step) + 0.5) / 1e3)).sum::<f64>() * x / 1e3;
    let (mut low, mut high) = (-6.0, 6.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if below(middle) < probability { low = middle } else { high = middle }
    }
    low
}

/// Token ids of a batch, any but the special ones that come first in a vocabulary.
fn sequences(scenario: &Scenario, vocabulary: usize) -> Vec<Vec<u32>> {
    let mut state = 1u64;
    let mut id = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        1_000 + ((state >> 33) as usize % (vocabulary - 1_000)) as u32
    };
    scenario.lengths.iter().map(|&length| (0..length).map(|_| id()).collect()).collect()
}

struct Ours {
    device: Cpu,
    done: Receiver<()>,
    key: ModelKey,
}

impl Ours {
    fn new(model: &Arc<Model>, threads: usize) -> Result<Ours, Failure> {
        let (sender, done) = channel();
        let sender = Mutex::new(sender);
        let notify = move || {
            let _ = sender.lock().map(|sender| sender.send(()));
        };
        let settings = config::Cpu { lanes: 1, threads_per_lane: threads, tokens_max: 8_192 };
        let mut device = Cpu::new(&settings, Arc::new(notify));
        let key = ModelKey::default();
        device.load(key, model)?;
        Ok(Ours { device, done, key })
    }

    fn plan(&self, sequences: &[Vec<u32>]) -> (Plan, Pieces) {
        let mut piece = Piece { model: self.key, ..Piece::default() };
        let mut placements = Vec::new();
        for (index, ids) in sequences.iter().enumerate() {
            let offset = piece.ids.len() as u32;
            placements.push(Placement { piece: 0, sequence: index as u32, row: 0, offset, length: ids.len() as u32 });
            piece.ids.extend(ids);
            piece.ends.push(piece.ids.len() as u32);
        }
        piece.types = vec![0; piece.ids.len()];
        let tokens = piece.ids.len() as u32;
        let mut pieces = Pieces::with_capacity(1);
        pieces.insert(Box::new(piece));
        (Plan { model: self.key, bucket: 0, placements, tokens }, pieces)
    }

    /// Runs once; the time that the device itself counts.
    fn run(&mut self, plan: &Plan, pieces: &Pieces, vectors: &mut Vec<f32>) -> Result<Duration, Failure> {
        vectors.clear();
        self.device.submit(0, plan, pieces, 0).map_err(|fault| format!("{fault:?}"))?;
        self.done.recv()?;
        assert_eq!(self.device.poll(0, 0), Lane::Done);
        let collected = self.device.collect(0, &mut |_, vector| vectors.extend(vector));
        collected.map(Duration::from_nanos).map_err(|fault| format!("{fault:?}").into())
    }
}

struct Theirs {
    session: Session,
    has_types: bool,
}

/// Ids, mask and types of a batch padded to its longest text.
struct Padded {
    inputs: Vec<(&'static str, Tensor<i64>)>,
    length: usize,
}

impl Theirs {
    fn new(environment: &ort::environment::Environment, path: &Path, threads: usize) -> Result<Theirs, Failure> {
        let builder = Session::builder(environment)?;
        let builder =
            builder.with_optimization_level(GraphOptimizationLevel::All).map_err(|error| error.to_string())?;
        let mut builder = builder.with_intra_threads(threads).map_err(|error| error.to_string())?;
        let session = builder.commit_from_file(path)?;
        let has_types = session.inputs().iter().any(|input| input.name() == "token_type_ids");
        Ok(Theirs { session, has_types })
    }

    fn padded(&self, sequences: &[Vec<u32>]) -> Result<Padded, Failure> {
        let length = sequences.iter().map(Vec::len).max().unwrap_or(0);
        let shape = [sequences.len(), length];
        let (mut ids, mut mask) = (Vec::new(), Vec::new());
        for sequence in sequences {
            let padding = length - sequence.len();
            ids.extend(sequence.iter().map(|&id| i64::from(id)).chain(std::iter::repeat_n(0, padding)));
            mask.extend(sequence.iter().map(|_| 1).chain(std::iter::repeat_n(0, padding)));
        }
        let types = vec![0i64; ids.len()];
        let mut inputs = vec![
            ("input_ids", Tensor::from_array((shape, ids))?),
            ("attention_mask", Tensor::from_array((shape, mask))?),
        ];
        if self.has_types {
            inputs.push(("token_type_ids", Tensor::from_array((shape, types))?));
        }
        Ok(Padded { inputs, length })
    }

    /// Runs once; `keep` copies the first output and its dimensions out.
    fn run(&mut self, padded: &Padded, keep: Option<(&mut Vec<f32>, &mut usize)>) -> Result<(), Failure> {
        let inputs: Vec<_> = padded.inputs.iter().map(|(name, tensor)| (*name, tensor.view())).collect();
        let outputs = self.session.run(inputs)?;
        if let Some((values, dimensions)) = keep {
            let (shape, data) = outputs[0].try_extract_tensor::<f32>()?;
            *dimensions = shape.len();
            values.extend_from_slice(data);
        }
        Ok(())
    }

    /// The vectors as the model's manifest wants them.
    fn vectors(&mut self, padded: &Padded, sequences: &[Vec<u32>], model: &Model) -> Result<Vec<f32>, Failure> {
        let (mut values, mut dimensions) = (Vec::new(), 0);
        self.run(padded, Some((&mut values, &mut dimensions)))?;
        if dimensions == 2 {
            return Ok(values);
        }
        let width = model.width();
        let mut vectors = Vec::new();
        for (sequence, rows) in sequences.iter().zip(values.chunks(padded.length * width)) {
            let count = if model.pooling == Pooling::Cls { 1 } else { sequence.len() };
            let mut vector = vec![0.0f32; width];
            for row in rows.chunks(width).take(count) {
                vector.iter_mut().zip(row).for_each(|(sum, value)| *sum += value / count as f32);
            }
            let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
            vectors.extend(vector.iter().map(|value| if model.normalize { value / length } else { *value }));
        }
        Ok(vectors)
    }
}

/// Times of single runs: one block of them.
fn block(mut run: impl FnMut() -> Result<(), Failure>) -> Result<Vec<Duration>, Failure> {
    std::thread::sleep(BLOCK_PAUSE);
    run()?;
    let (begin, mut times) = (Instant::now(), Vec::new());
    while times.len() < 3 || begin.elapsed() < BLOCK_TIME {
        let start = Instant::now();
        run()?;
        times.push(start.elapsed());
    }
    Ok(times)
}

/// Median and least, in milliseconds.
fn summary(mut times: Vec<Duration>) -> (f64, f64) {
    times.sort();
    (times[times.len() / 2].as_secs_f64() * 1e3, times[0].as_secs_f64() * 1e3)
}

fn compare(
    model: &Arc<Model>,
    environment: &ort::environment::Environment,
    onnx: &Path,
    threads: usize,
    only: Option<&str>,
) -> Result<(), Failure> {
    let mut ours = Ours::new(model, threads)?;
    let mut theirs = Theirs::new(environment, onnx, threads)?;
    let vocabulary = model.geometry.as_ref().ok_or("a folder has a geometry")?.vocabulary;
    for scenario in scenarios().into_iter().filter(|scenario| only.is_none_or(|name| name == scenario.name)) {
        let sequences = sequences(&scenario, vocabulary);
        let (plan, pieces) = ours.plan(&sequences);
        let padded = theirs.padded(&sequences)?;
        let mut vectors = Vec::new();
        ours.run(&plan, &pieces, &mut vectors)?;
        let expected = theirs.vectors(&padded, &sequences, model)?;
        let error = vectors.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        if vectors.len() != expected.len() || error.is_nan() || error > 1e-4 {
            return Err(format!("{}: the engines disagree by {error}", scenario.name).into());
        }
        let (mut our_times, mut their_times) = (Vec::new(), Vec::new());
        let mut device_times = Vec::new();
        for _ in 0..BLOCKS {
            our_times.extend(block(|| {
                device_times.push(ours.run(&plan, &pieces, &mut vectors)?);
                Ok(())
            })?);
            their_times.extend(block(|| theirs.run(&padded, None))?);
        }
        let ((our, our_least), (their, their_least)) = (summary(our_times), summary(their_times));
        let (device, device_least) = summary(device_times);
        print!("| {threads} | {} | {} | {our:.2} ({our_least:.2}) | ", scenario.name, plan.tokens);
        print!("{device:.2} ({device_least:.2}) | {their:.2} ({their_least:.2}) | ");
        println!("{:.2} ({:.2}) | {error:.0e} |", their / our, their_least / our_least);
    }
    Ok(())
}

fn run() -> Result<(), Failure> {
    // Cargo adds `--bench`.
    let mut arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let only = match arguments.iter().position(|argument| argument == "--only") {
        Some(place) if place + 1 < arguments.len() => arguments.drain(place..=place + 1).nth(1),
        Some(_) | None => None,
    };
    let [folder, onnx, threads @ ..] = arguments.as_slice() else {
        return Err(USAGE.into());
    };
    let library = std::env::var_os("ORT_DYLIB_PATH")
        .ok_or_else(|| format!("ORT_DYLIB_PATH is not set: it names the libonnxruntime.so to compare with\n{USAGE}"))?;
    // Cargo runs benchmarks in their package's folder.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (folder, onnx, library) = (root.join(folder), root.join(onnx), root.join(library));
    let environment = ort::init_from(library)?.build()?;
    let settings = ModelSettings::new(Task::Embedding, "model", &folder.display().to_string(), "the command line");
    let model = Arc::new(folder::read(&folder, None, &settings)?);
    let threads: Vec<usize> = threads.iter().map(|count| count.parse()).collect::<Result<_, _>>()?;
    println!(
        "| threads | texts × tokens | tokens | reactrt, ms | its device time, ms | onnxruntime, ms | ratio | max difference |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for &count in if threads.is_empty() { &[1, 2] } else { threads.as_slice() } {
        compare(&model, &environment, &onnx, count, only.as_deref())?;
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
