//! The generator against the real server: every task and family, and vectors that do not depend on how they were asked for.

mod common;

use std::net::SocketAddr;
use std::path::PathBuf;

use common::{Outcome, bench, file};
use reactrt::config::{DeviceName, Devices, ModelSettings, Settings, When};
use reactrt::model::Task;
use reactrt::serve::{Account, Server};
use reactrt_bench::record::Record;

/// A server with three small models on the simulated device, for one test.
fn with_server(test: impl FnOnce(SocketAddr)) {
    let model = |task, name: &str, folder: &str| {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models").join(folder);
        ModelSettings::new(task, name, &path.display().to_string(), "tests")
    };
    let mut settings = Settings::defaults(2);
    settings.server.port = 0;
    settings.devices = Devices::List(vec![DeviceName::Sim]);
    settings.threads.pin = When::Never;
    settings.sim.base_us = 0;
    settings.sim.us_per_1k_tokens = 0;
    settings.models = vec![
        model(Task::Embedding, "embed", "bert-embedding-mean"),
        model(Task::Reranking, "rank", "bert-reranker"),
        model(Task::Nli, "nli", "bert-nli"),
    ];
    let server = Server::start(settings).expect("the server starts");
    test(server.address());
    server.stopper().stop();
    assert_eq!(server.join().expect("the server ends well"), Account::default());
}

fn run(address: SocketAddr, name: &str, words: &str) -> (Outcome, Record) {
    let (url, json) = (format!("http://{address}"), file(&format!("server-{name}.json")));
    let (command, rest) = words.split_once(' ').expect("a command and flags");
    let mut arguments = vec![command, "--url", &url, "--json", json.to_str().expect("a path")];
    arguments.extend(rest.split_whitespace());
    let outcome = bench(&arguments);
    assert_eq!(outcome.code, Some(0), "{words}: {}{}", outcome.out, outcome.error);
    let record = serde_json::from_str(&std::fs::read_to_string(&json).expect("a record")).expect("it can be read");
    (outcome, record)
}

#[test]
fn every_task_and_family_and_the_same_vectors_however_asked_for() {
    with_server(|address| {
        let words =
            "--warmup 0s --requests 200 --texts-per-request uniform:1-5 --words uniform:1-20 --digest --keep-samples 7";
        let of = |name: &str, flags: &str| run(address, name, &format!("load {flags} {words}")).1;
        let families = [
            ("--model embed --concurrency 1", "--model embed --api openai --encoding-format base64 --concurrency 9"),
            ("--model embed --rate 2000 --threads 2", "--model embed --api openai --concurrency 4 --new-connections"),
            (
                "--model rank --task reranking --concurrency 1",
                "--model rank --task reranking --api openai --concurrency 7",
            ),
            ("--model nli --task nli --concurrency 1", "--model nli --task nli --rate 1000"),
        ];
        for (index, (one, other)) in families.into_iter().enumerate() {
            let (first, second) = (of(&format!("{index}-a"), one), of(&format!("{index}-b"), other));
            let (first, second) = (&first.runs[0], &second.runs[0]);
            assert_eq!((first.counts.correct, second.counts.correct), (200, 200), "{one}, {other}");
            assert!(first.digest.as_ref().unwrap().ends_with(" over 200 requests"), "{:?}", first.digest);
            assert_eq!(first.digest, second.digest, "{one}, {other}");
            assert_eq!((first.samples.len(), &first.samples), (7, &second.samples), "{one}, {other}");
            assert_eq!(first.counts.texts, second.counts.texts);
        }
        let (_, seed) = run(address, "seed", &format!("load --model embed --concurrency 2 --seed 2 {words}"));
        let (_, same) = run(address, "same", &format!("load --model embed --concurrency 2 {words}"));
        assert_ne!(seed.runs[0].digest, same.runs[0].digest, "other texts have other vectors");
    });
}

#[test]
fn stages_tokens_and_batches_come_from_the_server() {
    with_server(|address| {
        let words = "load --model embed --api openai --concurrency 4 --warmup 100ms --duration 500ms --words fixed:8";
        let (_, record) = run(address, "stages", words);
        let run = &record.runs[0];
        let names: Vec<&str> = run.stages.iter().map(|stage| stage.name.as_str()).collect();
        assert_eq!(names, ["parse", "tokenize", "queue", "device", "encode"]);
        let latency = run.latency.as_ref().unwrap();
        let staged: f64 = run.stages.iter().map(|stage| stage.mean).sum();
        assert!(staged > 0.0 && staged < latency.corrected.mean, "{staged} of {} µs", latency.corrected.mean);
        assert!(run.counts.tokens >= run.counts.texts * 10, "{:?}: eight words and two specials", run.counts);
        let server = run.server.as_ref().unwrap();
        assert!(server.mean_batch.is_some_and(|batch| (1.0..=4.0).contains(&batch)), "{server:?}");
        assert!(server.batch_fill.is_some_and(|fill| fill > 0.0 && fill <= 1.0), "{server:?}");
        assert_eq!(record.machine.version, env!("CARGO_PKG_VERSION"));
    });
}

#[test]
fn a_run_leaves_a_record_a_page_and_a_log_that_tell_the_same() {
    with_server(|address| {
        let (page, log) = (file("files.html"), file("files.hlog"));
        let outputs = format!("--html {} --hdr {}", page.display(), log.display());
        let words = "load --model embed --rate 400 --warmup 100ms --duration 500ms --keep-samples 3 --digest";
        let (outcome, record) = run(address, "files", &format!("{words} {outputs}"));
        assert_eq!(outcome.error, "", "one run alone needs no notes");
        let counts = &record.runs[0].counts;
        let latency = record.runs[0].latency.as_ref().unwrap();
        assert!(counts.correct > 100 && latency.corrected.count == counts.correct, "{counts:?}");
        for part in ["p99.9", "open, 400/s", &reactrt_bench::words::time(latency.corrected.p50), "tokenize"] {
            assert!(outcome.out.contains(part), "{part}: {}", outcome.out);
        }

        let hdr = std::fs::read_to_string(&log).unwrap();
        assert_eq!(hdr, latency.interval_log);
        assert!(hdr.lines().any(|line| line.starts_with('#')) && hdr.contains("HIST"), "{hdr}");

        let html = std::fs::read_to_string(&page).unwrap();
        assert!(html.starts_with("<!DOCTYPE html>") && html.ends_with("</html>\n"));
        assert!(html.contains("<svg") && html.contains(&reactrt_bench::words::time(latency.corrected.p99)));
        assert!(html.contains("--html") && html.contains(&record.began), "how and when it was made");

        // The record holds all that the page shows.
        let (json, again) = (file("server-files.json"), file("files-again.html"));
        let json = json.to_str().unwrap();
        let outcome = bench(&["report", json, "--html", again.to_str().unwrap()]);
        assert_eq!(outcome.code, Some(0), "{}", outcome.error);
        assert!(std::fs::read_to_string(&again).unwrap() == html, "report makes another page of the record");

        // With itself it compares well, with another load not at all.
        let outcome = bench(&["compare", json, json]);
        assert_eq!(outcome.code, Some(0), "{}{}", outcome.out, outcome.error);
        assert!(outcome.out.contains("1.000 ×") && outcome.out.contains("digests: equal"), "{}", outcome.out);
        assert!(outcome.out.contains("vectors of 3 texts: smallest cosine 1.0000000"), "{}", outcome.out);
        let (_, _) = run(address, "files-other", "load --model embed --rate 300 --warmup 0s --duration 300ms");
        let other = file("server-files-other.json");
        let outcome = bench(&["compare", json, other.to_str().unwrap()]);
        assert_eq!(outcome.code, Some(2), "{}", outcome.out);
        assert!(outcome.out.contains("not comparable") && outcome.error.contains("1 load not comparable"));
    });
}

#[test]
fn vectors_of_another_model_do_not_pass_the_comparison() {
    with_server(|address| {
        let words = "load --concurrency 2 --requests 40 --warmup 0s --keep-samples 5 --model";
        let of = |name: &str| {
            run(address, name, &format!("{words} embed"));
            file(&format!("server-{name}.json"))
        };
        let (one, other) = (of("vectors-a"), of("vectors-b"));
        let mut record: Record = serde_json::from_str(&std::fs::read_to_string(&other).unwrap()).unwrap();
        record.runs[0].samples[2].values.reverse();
        std::fs::write(&other, serde_json::to_string(&record).unwrap()).unwrap();
        let outcome = bench(&["compare", one.to_str().unwrap(), other.to_str().unwrap()]);
        assert_eq!(outcome.code, Some(2), "{}", outcome.out);
        assert!(outcome.out.contains("VECTORS DIFFER") && outcome.error.contains("the vectors of 1 pair differ"));
    });
}

#[test]
fn the_sweep_has_two_runs_for_each_point() {
    with_server(|address| {
        let words =
            "sweep --model embedding=embed --model reranking=rank --model nli=nli --sizes 1,6 --repeat 4 --warmup 20ms";
        let (_, record) = run(address, "sweep", words);
        let points: Vec<(&str, &str)> =
            record.runs.iter().map(|run| (run.label.as_str(), run.workload.per_request.as_str())).collect();
        let of = |serial, batch| [(serial, "1"), (batch, "1"), (serial, "6"), (batch, "6")];
        let expected = [
            of("embedding serial", "embedding batch"),
            of("reranking serial", "reranking batch"),
            of("nli serial", "nli batch"),
        ];
        assert_eq!(points, expected.concat());
        for run in &record.runs {
            let latency = run.latency.as_ref().unwrap();
            assert!((4..=5).contains(&latency.corrected.count), "{}: {}", run.label, latency.corrected.count);
            assert_eq!(run.counts.wrong + run.counts.failed, 0);
            let expected = if run.workload.per_request == "6" { 30 } else { 5 };
            assert_eq!(run.counts.texts, expected, "{}", run.label);
        }
    });
}

#[test]
fn an_unknown_model_is_said_in_the_servers_words() {
    with_server(|address| {
        let url = format!("http://{address}");
        let outcome = bench(&["load", "--url", &url, "--model", "nope", "--rate", "10"]);
        assert_eq!(outcome.code, Some(2));
        assert!(outcome.error.contains("404") && outcome.error.contains("nope"), "{}", outcome.error);
        assert_eq!(outcome.error.lines().count(), 1, "{}", outcome.error);
    });
}
