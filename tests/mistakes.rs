//! The commonest mistakes and their answers (`tests/mistakes.sh`) are those of the committed transcript. Passes over where there
//! is no curl; under `CI=true` that is a failure.
//!
//! `RECORD=1 cargo test --test mistakes` writes the transcript anew.

mod common;

use std::path::Path;
use std::process::Command;

use common::{settings, start};
use reactrt::config::{ApiKeys, DeviceName};

const RECORD: &str = "bench/record/2026-11-30-mistakes.md";

const HEAD: &str = "\
# The commonest mistakes, and what they are answered

Made by `RECORD=1 cargo test --test mistakes`, which runs `tests/mistakes.sh`; `cargo test` compares. Left out of the answers are
the fields date, content-type, content-length, connection, x-request-id and server-timing.

";

#[test]
fn mistakes_are_answered_as_the_transcript_says() {
    if !Command::new("curl").arg("--version").output().is_ok_and(|output| output.status.success()) {
        assert!(std::env::var_os("CI").is_none(), "curl is not installed");
        println!("passed over: curl is not installed");
        return;
    }
    let plain = start(settings(DeviceName::Sim));
    let mut keyed = settings(DeviceName::Sim);
    keyed.server.api_keys = ApiKeys::new(vec!["the-right-key".into()]).expect("a key");
    let keyed = start(keyed);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let url = |server: &common::Running| format!("http://{}", server.address);
    let output = Command::new("bash")
        .arg(root.join("tests/mistakes.sh"))
        .args([url(&plain), url(&keyed)])
        .output()
        .expect("bash runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{errors}");
    let transcript = format!("{HEAD}{}\n", String::from_utf8(output.stdout).expect("text").trim_end());
    if std::env::var_os("RECORD").is_some() {
        std::fs::write(root.join(RECORD), &transcript).expect("the record can be written");
    }
    let kept = std::fs::read_to_string(root.join(RECORD)).expect("the record is there");
    for (line, (now, then)) in transcript.lines().zip(kept.lines()).enumerate() {
        assert_eq!(now, then, "{RECORD}:{}: RECORD=1 cargo test --test mistakes writes it anew", line + 1);
    }
    assert_eq!(transcript.lines().count(), kept.lines().count());
    assert!(transcript.matches("    $ curl").count() >= 20);
}
