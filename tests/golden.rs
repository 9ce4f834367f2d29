//! What this crate computes, against what `transformers` and `sentence-transformers` compute.
//!
//! The values are in `tests/fixtures`; `tests/golden/README.md` says field by field what they are and how they are made.
//! Three things are compared, each by itself and then all together on a real model: what a model folder says, token ids
//! (exactly equal), and vectors or logits (small models within 1e-4; all-MiniLM-L6-v2 cosine ≥ 0.99999 and within 2e-5).
//! A sequence is run alone, and packed among all others in two orders: its strangers must not show.
//!
//! The parts that need a fetched package say why and pass when it cannot be fetched; under `CI=true` that is a failure.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};

use reactrt::config::{self, ModelSettings};
use reactrt::device::cpu::Cpu;
use reactrt::device::{Device, Lane, Offer, Pieces, Placement, Plan};
use reactrt::job::{ModelKey, Piece};
use reactrt::model::fetch::{self, FetchError, MINILM, Wheel, XLMR_TOKENIZER};
use reactrt::model::{Activation, Architecture, Geometry, Head, Model, Pooling, Task, folder};
use reactrt::tokenize::{Cut, EncodeScratch, Tokenizer};
use safetensors::SafeTensors;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Logits and vectors of the small models, absolute.
const TINY_ERROR_MAX: f32 = 1e-4;
/// A sequence alone against the same among strangers, relative to the larger of 1 and its value.
const COMPANY_ERROR_MAX: f32 = 1e-5;
const MINILM_ERROR_MAX: f32 = 2e-5;
const MINILM_COSINE_MIN: f64 = 0.99999;
/// More tokens than any text of the fixtures has: no truncation.
const NO_LIMIT: usize = 1 << 20;

// --------------------------------------------------------------------------------------------------------------------
// The fixtures
// --------------------------------------------------------------------------------------------------------------------

#[derive(Deserialize)]
struct Expected {
    folder: String,
    task: String,
    geometry: ExpectedGeometry,
    pooling: Option<String>,
    normalize: bool,
    max_length: usize,
    labels: Vec<String>,
    prompts: Vec<(String, String)>,
    default_prompt: Option<String>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct ExpectedGeometry {
    architecture: String,
    hidden: usize,
    layers: usize,
    heads: usize,
    intermediate: usize,
    vocabulary: usize,
    positions: usize,
    token_types: usize,
    position_offset: usize,
    layer_norm_eps: f32,
    activation: String,
}

#[derive(Deserialize)]
struct Case {
    prompt: Option<String>,
    first: String,
    second: Option<String>,
    #[serde(flatten)]
    tokens: Tokens,
    output: Vec<f32>,
}

#[derive(Deserialize)]
struct Tokens {
    ids: Vec<u32>,
    /// Absent when all are 0.
    types: Option<Vec<u8>>,
    /// Absent where nothing can be truncated.
    full_length: Option<usize>,
}

impl Tokens {
    fn types(&self) -> Vec<u8> {
        self.types.clone().unwrap_or_else(|| vec![0; self.ids.len()])
    }

    fn full_length(&self) -> usize {
        self.full_length.unwrap_or(self.ids.len())
    }
}

#[derive(Deserialize)]
struct Nasty {
    texts: Vec<String>,
    pairs: Vec<(usize, usize)>,
}

#[derive(Deserialize)]
struct TokenFile {
    tokenizer: Origin,
    single: Vec<Tokens>,
    pairs: Vec<Tokens>,
    truncated: Vec<Truncated>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Origin {
    Fixture { fixture: String },
    Package { wheel: String, sha256: String, member: String },
}

#[derive(Deserialize)]
struct Truncated {
    first: String,
    second: Option<String>,
    max_length: usize,
    #[serde(flatten)]
    tokens: Tokens,
}

#[derive(Deserialize)]
struct MiniLm {
    source: Origin,
    vectors: String,
    texts: Vec<String>,
    lengths: Vec<MiniLmLength>,
}

#[derive(Deserialize)]
struct MiniLmLength {
    max_length: usize,
    cases: Vec<Tokens>,
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn read_fixture<T: DeserializeOwned>(path: &Path) -> T {
    let text = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The JSON files of a folder below `fixtures/`, by name.
fn fixture_files(below: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(fixtures().join(below)).expect("the fixtures are part of the repository");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    paths.sort();
    paths
}

/// Every small model: what is expected of it, and itself as its folder says.
fn tiny_models() -> Vec<(Expected, Model)> {
    let models: Vec<(Expected, Model)> = fixture_files("expected")
        .iter()
        .map(|path| {
            let expected: Expected = read_fixture(path);
            let task = match expected.task.as_str() {
                "embedding" => Task::Embedding,
                "reranking" => Task::Reranking,
                "nli" => Task::Nli,
                other => panic!("{}: task {other}", path.display()),
            };
            let settings = ModelSettings::new(task, &expected.folder, &expected.folder, "golden.yaml:1");
            let model = folder::read(&fixtures().join(&expected.folder), None, &settings)
                .unwrap_or_else(|error| panic!("{}: {error}", expected.folder));
            (expected, model)
        })
        .collect();
    assert_eq!(models.len(), 11, "every family with every head");
    models
}

/// A part of a package, unpacked below cargo's own folder for tests, once for all tests of this file. `None`, and a word
/// why, if it cannot be had.
fn fetched(origin: &Origin) -> Option<PathBuf> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let (wheel, sha256, member) = match origin {
        Origin::Fixture { fixture } => return Some(fixtures().join(fixture)),
        Origin::Package { wheel, sha256, member } => (wheel, sha256, member),
    };
    let pinned: Option<Wheel> = [MINILM, XLMR_TOKENIZER].into_iter().find(|pinned| pinned.sha256 == sha256);
    let pinned = pinned.unwrap_or_else(|| panic!("{wheel} is not the package that the crate pins"));
    assert_eq!(*wheel, format!("{}=={}", pinned.package, pinned.version));
    let packages = Path::new(env!("CARGO_TARGET_TMPDIR")).join("packages");
    let unpacked = packages.join(pinned.package);
    let get = || -> Result<(), FetchError> {
        std::fs::create_dir_all(&packages).map_err(|error| FetchError::Io {
            action: "create",
            path: packages.clone(),
            error,
        })?;
        let archive = fetch::wheel(&pinned, &packages, &mut |_| {})?;
        fetch::extract(&archive, |name| Some(name), &unpacked)
    };
    let guard = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let outcome = get();
    drop(guard);
    match outcome {
        Ok(()) => Some(unpacked.join(member)),
        Err(error) => {
            assert!(std::env::var("CI").as_deref() != Ok("true"), "under CI=true every part is tested: {error}");
            eprintln!("passed over: {error}");
            None
        }
    }
}

// --------------------------------------------------------------------------------------------------------------------
// Running
// --------------------------------------------------------------------------------------------------------------------

/// A CPU device with one lane, and what it says when a lane is done.
struct Bench {
    device: Cpu,
    done: Receiver<()>,
    models: u32,
}

impl Bench {
    fn new() -> Bench {
        let (sender, done) = sync_channel(16);
        let settings = config::Cpu { lanes: 1, threads_per_lane: 1, tokens_max: 2048 };
        // A full channel has word enough; an ended test wants none.
        let notify = Arc::new(move || sender.try_send(()).unwrap_or_default());
        Bench { device: Cpu::new(&settings, notify), done, models: 0 }
    }

    fn load(&mut self, model: &Arc<Model>) -> (ModelKey, Offer) {
        let key = ModelKey { index: self.models, generation: 1 };
        self.models += 1;
        let offer = self.device.load(key, model).unwrap_or_else(|error| panic!("{}: {error}", model.name));
        (key, offer)
    }

    /// The vectors of the sequences (ids and types), as few plans as they fit into.
    fn run(&mut self, key: ModelKey, offer: &Offer, sequences: &[(Vec<u32>, Vec<u8>)]) -> Vec<Vec<f32>> {
        let mut piece = Piece { model: key, ..Piece::default() };
        for (ids, types) in sequences {
            assert_eq!(ids.len(), types.len());
            piece.ids.extend_from_slice(ids);
            piece.types.extend_from_slice(types);
            piece.ends.push(piece.ids.len() as u32);
        }
        let mut pieces = Pieces::with_capacity(1);
        let held = pieces.insert(Box::new(piece));
        let mut vectors = vec![Vec::new(); sequences.len()];
        for plan in plans(key, offer, held, pieces.get(held)) {
            self.device.submit(0, &plan, &pieces, 0).expect("a plan within its bucket");
            while self.device.poll(0, 0) != Lane::Done {
                self.done.recv().expect("the device tells when a lane is done");
            }
            let mut collected = 0;
            let mut take = |index: usize, vector: &[f32]| {
                vectors[plan.placements[index].sequence as usize] = vector.to_vec();
                collected += 1;
            };
            self.device.collect(0, &mut take).expect("a run without fault");
            assert_eq!(collected, plan.placements.len());
        }
        vectors
    }
}

/// Sequences one after another into the rows of the last (largest) bucket.
fn plans(key: ModelKey, offer: &Offer, held: u32, piece: &Piece) -> Vec<Plan> {
    let bucket_index = offer.buckets.len() - 1;
    let bucket = offer.buckets[bucket_index];
    let empty = || Plan { model: key, bucket: bucket_index as u32, ..Plan::default() };
    let (mut plans, mut plan, mut row, mut offset) = (Vec::new(), empty(), 0, 0);
    for sequence in 0..piece.sequences() as u32 {
        let length = piece.length(sequence as usize);
        assert!(length <= bucket.length, "{length} tokens and a bucket of {}", bucket.length);
        if offset + length > bucket.length {
            (row, offset) = (row + 1, 0);
        }
        if row == bucket.rows || plan.placements.len() == bucket.sequences_max as usize {
            plans.push(std::mem::replace(&mut plan, empty()));
            (row, offset) = (0, 0);
        }
        plan.placements.push(Placement { piece: held, sequence, row, offset, length });
        plan.tokens += length;
        offset += length;
    }
    plans.push(plan);
    plans
}

fn assert_close(found: &[f32], expected: &[f32], error_max: f32, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        // Written so that a NaN fails.
        assert!((found - expected).abs() <= error_max, "{what}, value {index}: {found}, expected {expected}");
    }
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum() };
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

// --------------------------------------------------------------------------------------------------------------------
// Model folders
// --------------------------------------------------------------------------------------------------------------------

fn geometry(expected: &ExpectedGeometry) -> Geometry {
    Geometry {
        architecture: match expected.architecture.as_str() {
            "bert" => Architecture::Bert,
            "roberta" => Architecture::Roberta,
            other => panic!("architecture {other}"),
        },
        hidden: expected.hidden,
        layers: expected.layers,
        heads: expected.heads,
        intermediate: expected.intermediate,
        vocabulary: expected.vocabulary,
        positions: expected.positions,
        token_types: expected.token_types,
        position_offset: expected.position_offset,
        layer_norm_eps: expected.layer_norm_eps,
        activation: match expected.activation.as_str() {
            "gelu" => Activation::Gelu,
            "gelu_tanh" => Activation::GeluTanh,
            "relu" => Activation::Relu,
            other => panic!("activation {other}"),
        },
    }
}

#[test]
fn folders_say_what_transformers_reads_in_them() {
    for (expected, model) in tiny_models() {
        let name = &expected.folder;
        assert_eq!(model.geometry, Some(geometry(&expected.geometry)), "{name}");
        assert_eq!(model.max_length, expected.max_length, "{name}");
        assert_eq!(model.labels, expected.labels, "{name}");
        assert_eq!(model.normalize, expected.normalize, "{name}");
        let mut prompts: Vec<(String, String)> =
            model.prompts.iter().map(|prompt| (prompt.name.clone(), prompt.text.clone())).collect();
        let mut expected_prompts = expected.prompts.clone();
        prompts.sort();
        expected_prompts.sort();
        assert_eq!(prompts, expected_prompts, "{name}");
        let default = model.default_prompt.map(|index| model.prompts[index].name.clone());
        assert_eq!(default, expected.default_prompt, "{name}");
        let classes = expected.cases[0].output.len();
        let (head, pooling) = match (model.task, &model.geometry) {
            (Task::Embedding, _) => (Head::Embedding, expected.pooling.as_deref()),
            (Task::Reranking | Task::Nli, Some(Geometry { architecture: Architecture::Bert, .. })) => {
                (Head::BertClassifier { classes }, None)
            }
            (Task::Reranking | Task::Nli, Some(Geometry { architecture: Architecture::Roberta, .. })) => {
                (Head::RobertaClassifier { classes }, None)
            }
            (Task::Reranking | Task::Nli, None) => panic!("{name}: a folder says its geometry"),
        };
        assert_eq!(model.head, head, "{name}");
        if let Some(pooling) = pooling {
            let pooled = match model.pooling {
                Pooling::Cls => "cls",
                Pooling::Mean => "mean",
            };
            assert_eq!(pooled, pooling, "{name}");
        }
        assert_eq!(model.width(), classes, "{name}");
    }
}

// --------------------------------------------------------------------------------------------------------------------
// Token ids
// --------------------------------------------------------------------------------------------------------------------

/// Encodes once reading to the end and once stopping early, and compares both with the fixture.
fn assert_tokens(
    tokenizer: &Tokenizer,
    scratch: &mut EncodeScratch,
    text: (&str, Option<&str>),
    max_length: usize,
    expected: &Tokens,
    what: &str,
) {
    for cut in [Cut::Late, Cut::Early] {
        // Not empty: `encode` appends.
        let (mut ids, mut types) = (vec![7], vec![7]);
        let encoded = tokenizer
            .encode(scratch, text, max_length, cut, &mut ids, &mut types)
            .unwrap_or_else(|error| panic!("{what}: {error:?}"));
        assert_eq!(ids[1..], expected.ids, "{what}: ids of {text:?} at {max_length}, {cut:?}");
        assert_eq!(types[1..], expected.types(), "{what}: types of {text:?} at {max_length}, {cut:?}");
        assert_eq!(encoded.length, expected.ids.len(), "{what}: {text:?}");
        let full_length = expected.full_length();
        match cut {
            Cut::Late => assert_eq!(encoded.full_length, full_length, "{what}: {text:?}"),
            Cut::Early => {
                assert!(encoded.full_length <= full_length, "{what}: {text:?}");
                assert_eq!(encoded.truncated(), full_length > expected.ids.len(), "{what}: {text:?}");
            }
        }
    }
}

/// Compares one file of `fixtures/tokens`; false if its tokenizer cannot be had.
fn compare_token_file(path: &Path, nasty: &Nasty) -> bool {
    let file: TokenFile = read_fixture(path);
    let name = path.file_stem().and_then(|stem| stem.to_str()).expect("a readable name");
    let Some(tokenizer) = fetched(&file.tokenizer) else { return false };
    let tokenizer = Tokenizer::load(&tokenizer).unwrap_or_else(|error| panic!("{name}: {error}"));
    let scratch = &mut EncodeScratch::default();
    assert_eq!(file.single.len(), nasty.texts.len());
    assert_eq!(file.pairs.len(), nasty.pairs.len());
    for (text, expected) in nasty.texts.iter().zip(&file.single) {
        assert_tokens(&tokenizer, scratch, (text, None), NO_LIMIT, expected, name);
    }
    for (&(first, second), expected) in nasty.pairs.iter().zip(&file.pairs) {
        let pair = (nasty.texts[first].as_str(), Some(nasty.texts[second].as_str()));
        assert_tokens(&tokenizer, scratch, pair, NO_LIMIT, expected, name);
    }
    for case in &file.truncated {
        let pair = (case.first.as_str(), case.second.as_deref());
        assert_tokens(&tokenizer, scratch, pair, case.max_length, &case.tokens, name);
    }
    true
}

fn token_files(wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let named = |path: &PathBuf| path.file_stem().and_then(|stem| stem.to_str()).is_some_and(&wanted);
    fixture_files("tokens").into_iter().filter(named).collect()
}

#[test]
fn token_ids_of_the_small_tokenizers() {
    let nasty: Nasty = read_fixture(&fixtures().join("tokens/texts.json"));
    let files = token_files(|name| name.starts_with("tiny-"));
    assert_eq!(files.len(), 5);
    for path in files {
        assert!(compare_token_file(&path, &nasty));
    }
}

#[test]
fn token_ids_of_the_real_tokenizers() {
    let nasty: Nasty = read_fixture(&fixtures().join("tokens/texts.json"));
    let files = token_files(|name| name == "minilm" || name == "xlm-roberta");
    assert_eq!(files.len(), 2);
    for path in files {
        compare_token_file(&path, &nasty);
    }
}

// --------------------------------------------------------------------------------------------------------------------
// Vectors and logits
// --------------------------------------------------------------------------------------------------------------------

/// Texts through a model's own tokenizer, with their prompts: equal to the fixture's ids.
fn encode_cases(expected: &Expected, model: &Model) -> Vec<(Vec<u32>, Vec<u8>)> {
    let name = &expected.folder;
    let tokenizer = Tokenizer::load(&model.tokenizer).unwrap_or_else(|error| panic!("{name}: {error}"));
    let scratch = &mut EncodeScratch::default();
    let encode = |case: &Case| {
        let prompt = case.prompt.as_ref().map_or("", |wanted| {
            let of_model = model.prompts.iter().find(|prompt| prompt.name == *wanted);
            &of_model.unwrap_or_else(|| panic!("{name}: no prompt {wanted}")).text
        });
        let first = format!("{prompt}{}", case.first);
        assert_tokens(&tokenizer, scratch, (&first, case.second.as_deref()), model.max_length, &case.tokens, name);
        (case.tokens.ids.clone(), case.tokens.types())
    };
    expected.cases.iter().map(encode).collect()
}

#[test]
fn small_models_answer_as_transformers_does() {
    let mut bench = Bench::new();
    for (expected, model) in tiny_models() {
        let name = &expected.folder;
        let sequences = encode_cases(&expected, &model);
        assert!(expected.cases.iter().any(|case| case.tokens.full_length() > case.tokens.ids.len()), "{name}");
        let (key, offer) = bench.load(&Arc::new(model));
        let together = bench.run(key, &offer, &sequences);
        let reversed: Vec<_> = sequences.iter().rev().cloned().collect();
        let backwards = bench.run(key, &offer, &reversed);
        for (index, case) in expected.cases.iter().enumerate() {
            let what = format!("{name}: {:?}, {:?}", case.first, case.second);
            let alone = &bench.run(key, &offer, &sequences[index..=index])[0];
            assert_close(alone, &case.output, TINY_ERROR_MAX, &what);
            let scale = alone.iter().fold(1.0f32, |largest, value| largest.max(value.abs()));
            for company in [&together[index], &backwards[sequences.len() - 1 - index]] {
                assert_close(company, alone, COMPANY_ERROR_MAX * scale, &what);
            }
        }
    }
}

#[test]
fn minilm_answers_as_sentence_transformers_does() {
    let golden: MiniLm = read_fixture(&fixtures().join("minilm/cases.json"));
    let Some(folder) = fetched(&golden.source) else { return };
    let bytes = std::fs::read(fixtures().join(&golden.vectors)).expect("the fixtures are part of the repository");
    let vectors = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let tokenizer = Tokenizer::load(&folder.join("tokenizer.json")).unwrap_or_else(|error| panic!("{error}"));
    let scratch = &mut EncodeScratch::default();
    let mut bench = Bench::new();
    let (mut worst, mut cosine_min) = (0.0f32, 1.0f64);
    for MiniLmLength { max_length, cases } in &golden.lengths {
        let mut settings = ModelSettings::new(Task::Embedding, "MiniLM", "MiniLM", "golden.yaml:1");
        // The model says 256 by itself; anything else is an override.
        settings.max_length = (*max_length != 256).then_some(*max_length);
        let model = folder::read(&folder, None, &settings).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((model.max_length, model.pooling, model.normalize), (*max_length, Pooling::Mean, true));
        let (key, offer) = bench.load(&Arc::new(model));
        assert_eq!(cases.len(), golden.texts.len());
        let mut sequences = Vec::new();
        for (text, tokens) in golden.texts.iter().zip(cases) {
            assert_tokens(&tokenizer, scratch, (text, None), *max_length, tokens, "MiniLM");
            sequences.push((tokens.ids.clone(), tokens.types()));
        }
        let stored = vectors.tensor(&format!("max_length_{max_length}")).expect("vectors for each length");
        assert_eq!(stored.shape(), [golden.texts.len(), 384]);
        let stored: Vec<f32> = stored.data().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        let found = bench.run(key, &offer, &sequences);
        for ((text, found), expected) in golden.texts.iter().zip(&found).zip(stored.chunks_exact(384)) {
            assert_close(found, expected, MINILM_ERROR_MAX, text);
            let cosine = cosine(found, expected);
            assert!(cosine >= MINILM_COSINE_MIN, "{text}: cosine {cosine}");
            cosine_min = cosine_min.min(cosine);
            worst = found.iter().zip(expected).fold(worst, |worst, (a, b)| worst.max((a - b).abs()));
        }
    }
    println!("100 vectors: max abs {worst:.1e}, 1 - cosine {:.1e}", 1.0 - cosine_min);
}
