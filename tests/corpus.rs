//! Replays the fuzz corpora under plain `cargo test`: each file goes through the function that its fuzz target calls.
//!
//! A file's name says what becomes of it: `ok-` (it is taken), `no-` or the status (it is refused), `more-` (the request in it is
//! not complete); of `connection`, `plan` and `truncation`, where nothing is refused, what it is. What a fuzzer finds is added
//! under such a name. Files that libFuzzer names itself (a hash) are replayed too; for them the target's own checks are all.

use std::fs;
use std::path::{Path, PathBuf};

use reactrt::http::fuzzing::Event;
use reactrt::tokenize::Tokenizer;
use reactrt::{api, config, http, model, plan, tokenize};

/// A fuzz target, as its corpus is replayed.
struct Target {
    name: &'static str,
    /// Files that its corpus has at least.
    files_min: usize,
    /// What becomes of an input, as names say it; empty where nothing is refused.
    outcome: fn(&[u8]) -> String,
}

const TARGETS: [Target; 9] = [
    Target { name: "body", files_min: 50, outcome: body },
    Target { name: "config", files_min: 12, outcome: config },
    Target { name: "connection", files_min: 15, outcome: connection },
    Target { name: "manifest", files_min: 8, outcome: |input| taken(model::manifest::fuzzing::manifest(input)) },
    Target { name: "onnx", files_min: 10, outcome: |input| taken(model::onnx::fuzzing::onnx(input).is_some()) },
    Target { name: "plan", files_min: 8, outcome: plan },
    Target { name: "request", files_min: 80, outcome: request },
    Target { name: "truncation", files_min: 15, outcome: truncation },
    Target {
        name: "weights",
        files_min: 12,
        outcome: |input| taken(model::weights::fuzzing::weights(input).is_some()),
    },
];

fn request(input: &[u8]) -> String {
    match http::fuzzing::request(input).last() {
        Some(Event::Request(_)) => "ok".to_owned(),
        Some(Event::Refuse(refusal, _)) => refusal.status().to_string(),
        None | Some(Event::Head(_) | Event::Continue) => "more".to_owned(),
    }
}

fn body(input: &[u8]) -> String {
    match api::fuzzing::body(input) {
        Ok(_) => "ok".to_owned(),
        Err(status) => status.to_string(),
    }
}

fn config(input: &[u8]) -> String {
    taken(config::fuzzing::config(input).is_some_and(|read| read.is_ok()))
}

fn connection(input: &[u8]) -> String {
    http::fuzzing::connection(input);
    String::new()
}

fn plan(input: &[u8]) -> String {
    plan::fuzzing::plan(input);
    String::new()
}

fn truncation(input: &[u8]) -> String {
    thread_local!(static TOKENIZERS: Vec<Tokenizer> = tokenizers());
    TOKENIZERS.with(|tokenizers| tokenize::fuzzing::truncation(tokenizers, input));
    String::new()
}

fn taken(taken: bool) -> String {
    if taken { "ok" } else { "no" }.to_owned()
}

fn tokenizers() -> Vec<Tokenizer> {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models");
    let load = |model: &&str| Tokenizer::load(&models.join(model).join("tokenizer.json")).expect("a tokenizer of ours");
    tokenize::fuzzing::MODELS.iter().map(load).collect()
}

#[test]
fn every_file_becomes_what_its_name_says() {
    let mut others = Vec::new();
    for Target { name: target, files_min, outcome } in TARGETS {
        let files = files(target);
        assert!(files.len() >= files_min, "{target}: only {} files: has the corpus been lost?", files.len());
        for path in files {
            let input = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let name = path.file_name().and_then(|name| name.to_str()).expect("names in the corpus are ASCII");
            // Shown when a test fails: the last name is the one that did it.
            println!("{target} {name}");
            let outcome = outcome(&input);
            let said = name.split('-').next().unwrap_or(name);
            let is_hash = name.len() == 40 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
            if !(outcome.is_empty() || is_hash || said == outcome) {
                others.push(format!("{target}/{name} becomes {outcome}"));
            }
        }
    }
    assert!(others.is_empty(), "{others:#?}");
}

/// Every corpus is replayed, and every target has one.
#[test]
fn no_corpus_is_left_out() {
    let replayed: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    assert_eq!(names("corpus"), replayed);
    let targets = names("fuzz_targets");
    let targets: Vec<&str> = targets.iter().filter_map(|name| name.strip_suffix(".rs")).collect();
    assert_eq!(targets, replayed);
}

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz")
}

fn names(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(fuzz().join(folder)).unwrap_or_else(|error| panic!("fuzz/{folder}: {error}"));
    let name =
        |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").file_name().into_string().expect("ASCII");
    let mut names: Vec<String> = entries.map(name).collect();
    names.sort();
    names
}

/// In the order of their names, so that the first failure is the same everywhere.
fn files(target: &str) -> Vec<PathBuf> {
    let folder = fuzz().join("corpus").join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files
}
