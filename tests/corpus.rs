//! Replays the fuzz corpora under plain `cargo test`: each file goes through the function that its fuzz target calls.
//!
//! A file's name says what becomes of it: `ok-` (it ends in a request that is taken), `more-` (its only request is not
//! complete), or the status of the refusal. What a fuzzer finds is added under such a name. Files that libFuzzer names
//! itself (a hash) are replayed too; for them the target's own checks are all.

use std::fs;
use std::path::{Path, PathBuf};

use reactrt::http::fuzzing::{self, Event};

#[test]
fn request() {
    let files = files("request");
    assert!(files.len() >= 80, "only {} files: has the corpus been lost?", files.len());
    for path in files {
        let input = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let name = path.file_name().and_then(|name| name.to_str()).expect("names in the corpus are ASCII");
        // Shown when a test fails: the last name is the one that did it.
        println!("{name}");
        check_request(name, &fuzzing::request(&input));
    }
}

fn check_request(name: &str, events: &[Event]) {
    let (said, _) = name.split_once('-').unwrap_or((name, ""));
    let status = match events.last() {
        Some(Event::Refuse(refusal)) => Some(refusal.status()),
        Some(Event::Head(_) | Event::Continue | Event::Request(_)) | None => None,
    };
    match said {
        "ok" => assert!(matches!(events.last(), Some(Event::Request(_))), "{name}: {events:#?}"),
        "more" => assert!(matches!(events.last(), None | Some(Event::Head(_))), "{name}: {events:#?}"),
        status_said if status_said.len() == 3 => {
            assert_eq!(status.map(|status| status.to_string()).as_deref(), Some(status_said), "{name}: {events:#?}");
        }
        hash => assert!(hash.len() == 40, "{name}: the name says neither what becomes of it nor is it a hash"),
    }
}

/// Every corpus has its test here.
#[test]
fn no_corpus_is_left_out() {
    let mut targets: Vec<_> =
        fs::read_dir(corpus()).expect("fuzz/corpus").map(|entry| entry.expect("an entry").file_name()).collect();
    targets.sort();
    assert_eq!(targets, ["request"]);
}

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus")
}

/// In the order of their names, so that the first failure is the same everywhere.
fn files(target: &str) -> Vec<PathBuf> {
    let folder = corpus().join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files
}
