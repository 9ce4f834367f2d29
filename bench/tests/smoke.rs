//! The scenarios that are measured on GPUs (bench/gpu/speed.sh), in small: the whole server over a simulated device whose time
//! is known, so that what the data path loses shows as a ratio that a busy machine does not change much.
//!
//! The device is slow on purpose. Its tokens a second are the limit of every run; a path that stalls, loses a wake-up, fills
//! batches badly or makes a lone text wait behind bulk cannot reach the bounds here, whatever the machine.

mod common;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;

use common::{bench, file};
use reactrt::config::{DeviceName, Devices, ModelSettings, Settings, When};
use reactrt::model::Task;
use reactrt::serve::{Account, Server};
use reactrt_bench::record::{Record, Run};

/// The simulated device's time for 1,000 tokens, in which its lanes take turns: 100,000 tokens a second.
const US_PER_1K_TOKENS: u64 = 10_000;

/// And for any batch, in which they overlap.
const BASE_US: u64 = 1_000;

fn with_server(test: impl FnOnce(SocketAddr)) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/bert-embedding-mean");
    let mut settings = Settings::defaults(2);
    settings.server.port = 0;
    settings.devices = Devices::List(vec![DeviceName::Sim]);
    settings.threads.pin = When::Never;
    settings.sim.base_us = BASE_US;
    settings.sim.us_per_1k_tokens = US_PER_1K_TOKENS;
    settings.models = vec![ModelSettings::new(Task::Embedding, "embed", &folder.display().to_string(), "tests")];
    let server = Server::start(settings).expect("the server starts");
    test(server.address());
    server.stopper().stop();
    assert_eq!(server.join().expect("the server ends well"), Account::default());
}

/// One run of the generator, every answer right.
fn run(address: SocketAddr, name: &str, words: &str) -> Run {
    let (url, json) = (format!("http://{address}"), file(&format!("smoke-{name}.json")));
    let mut arguments = vec!["load", "--url", &url, "--model", "embed", "--json", json.to_str().expect("a path")];
    arguments.extend(words.split_whitespace());
    let outcome = bench(&arguments);
    assert_eq!(outcome.code, Some(0), "{words}: {}{}", outcome.out, outcome.error);
    let text = std::fs::read_to_string(&json).expect("a record");
    let record: Record = serde_json::from_str(&text).expect("it can be read");
    let run = record.runs.into_iter().next().expect("one run");
    assert!(run.counts.bad() == 0 && run.counts.correct > 0, "{words}: {:?}", run.counts);
    run
}

const WORKLOADS: [(&str, &str); 3] = [("w1", "fixed:10"), ("w2", "fixed:30"), ("w3", "lognormal:8,0.9,2,30")];

#[test]
fn saturation_is_what_the_device_can() {
    with_server(|address| {
        let device = 1e9 / US_PER_1K_TOKENS as f64;
        for (name, words) in WORKLOADS {
            for (clients, texts, format) in
                [(256, 1, "native"), (32, 32, "native"), (256, 1, "openai --encoding-format base64")]
            {
                let load =
                    format!("--api {format} --words {words} --concurrency {clients} --texts-per-request {texts}");
                let run = run(address, name, &format!("{load} --warmup 500ms --duration 1500ms"));
                let server = run.server.as_ref().expect("the server counts");
                let fill = server.batch_fill.expect("batches ran");
                // The device counts the tokens of whole buckets, and fill is the useful part of them.
                let reached = run.rates.tokens / fill / device;
                println!("{name}, {clients} × {texts}, {format}: {reached:.3} of the device, fill {fill:.3}");
                assert!(reached > 0.75, "{name}, {clients} clients with {texts} texts: {reached:.3} of the device");
                // Texts of one length may not divide a row; mixed ones fill it.
                assert!(
                    name != "w3" || fill > 0.8,
                    "{clients} clients with {texts} texts: {fill:.3} of the tokens are useful"
                );
            }
        }
    });
}

#[test]
fn a_lone_text_waits_for_the_batches_under_way_and_no_others() {
    with_server(|address| {
        let alone = run(address, "alone", "--words fixed:10 --rate 20 --warmup 200ms --duration 1s");
        let bulk = "--words lognormal:8,0.9,2,30 --concurrency 2 --texts-per-request 2048 --warmup 0s --duration 4s";
        let beside = thread::scope(|scope| {
            let bulk = scope.spawn(|| run(address, "bulk", bulk));
            let beside = run(address, "beside", "--words fixed:10 --rate 20 --warmup 1s --duration 2s");
            bulk.join().expect("the bulk is answered");
            beside
        });
        let p50_ms = |run: &Run| run.latency.as_ref().expect("answers").corrected.p50 / 1e3;
        let (alone, beside) = (p50_ms(&alone), p50_ms(&beside));
        // The largest bucket is 32 rows of the model's 40 tokens: one runs, one is behind it, the next one carries the lone text.
        let batch_ms = (BASE_US + 32 * 40 * US_PER_1K_TOKENS / 1000) as f64 / 1e3;
        println!("alone {alone:.2} ms, beside bulk {beside:.2} ms, a full batch {batch_ms:.2} ms");
        assert!(alone < batch_ms, "{alone:.2} ms alone");
        assert!(beside < 5.0 * batch_ms, "{beside:.2} ms beside bulk, a batch takes {batch_ms:.2} ms");
    });
}
