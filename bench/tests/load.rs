//! Runs of the binary against small servers of known behaviour: what is measured is what happened.

mod common;

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use common::{Reply, answer, file, load, right, serve, vectors};
use reactrt_bench::record::{Counts, Load, Record};

fn adds_up(counts: &Counts) {
    assert_eq!(counts.sent, counts.answered + counts.aborted + counts.failed, "{counts:?}");
    assert_eq!(counts.answered, counts.correct + counts.wrong, "{counts:?}");
    assert_eq!(counts.errors.values().sum::<u64>(), counts.failed + counts.wrong, "{counts:?}");
}

#[test]
fn a_stall_shows_in_the_corrected_latency_and_not_in_the_other() {
    let stall = Mutex::new(());
    let address = serve(move |request| {
        let _turn = stall.lock().expect("no thread panics");
        if request.number == 250 {
            std::thread::sleep(Duration::from_millis(500));
        }
        Reply::Bytes(right(request))
    });
    let (outcome, record) =
        load(address, "stall", "--rate 200 --connections 1 --warmup 200ms --duration 2300ms --arrivals constant");
    assert_eq!(outcome.code, Some(0), "{}", outcome.error);
    let run = &record.runs[0];
    adds_up(&run.counts);
    assert_eq!((run.counts.sent, run.counts.unsent), (460, 0));
    let latency = run.latency.as_ref().unwrap();
    let [corrected, uncorrected] =
        [&latency.corrected, &latency.uncorrected].map(|of| [of.p50, of.p90, of.p99, of.max]);
    println!("p50, p90, p99, max in µs: corrected {corrected:.0?}, uncorrected {uncorrected:.0?}");
    assert!(latency.corrected.p99 > 300_000.0, "corrected p99 {} µs", latency.corrected.p99);
    assert!(latency.uncorrected.p99 < 250_000.0, "uncorrected p99 {} µs", latency.uncorrected.p99);
    assert!(latency.uncorrected.max > 450_000.0, "the one that was stalled: {} µs", latency.uncorrected.max);
    // A hundred moments lie within the stall; a busy machine may add to them.
    assert!(run.counts.late >= 80, "{}", run.counts.late);
    assert_eq!(latency.corrected.count, run.counts.correct);
}

#[test]
fn what_cannot_be_sent_in_time_is_said() {
    let address = serve(|request| Reply::After(Duration::from_millis(20), right(request)));
    let (outcome, record) =
        load(address, "overload", "--rate 1000 --connections 2 --warmup 0s --duration 1s --arrivals constant");
    assert_eq!(outcome.code, Some(0), "{}", outcome.error);
    let run = &record.runs[0];
    adds_up(&run.counts);
    assert_eq!(run.counts.sent + run.counts.unsent, 1000);
    assert!(run.counts.unsent > 500, "{:?}", run.counts);
    assert!(run.rates.requests < 120.0, "two connections, 20 ms each: {}", run.rates.requests);
    assert!(outcome.out.contains("of the schedule never left"), "{}", outcome.out);
}

#[test]
fn counts_add_up_with_aborts() {
    for flags in
        ["--rate 600", "--concurrency 8", "--concurrency 8 --threads 2", "--rate 600 --threads 3 --new-connections"]
    {
        // Moments of aborts lie within the time of the probe's answer, here long before those of the others.
        let address = serve(|request| match request.number {
            0 => Reply::Bytes(right(request)),
            _ => Reply::After(Duration::from_millis(30), right(request)),
        });
        let flags = format!("{flags} --abort-rate 0.3 --warmup 100ms --duration 600ms --texts-per-request uniform:1-5");
        let (outcome, record) = load(address, &format!("aborts-{}", flags.len()), &flags);
        assert_eq!(outcome.code, Some(0), "{flags}: {}", outcome.error);
        let counts = &record.runs[0].counts;
        adds_up(counts);
        let share = counts.aborted as f64 / counts.sent as f64;
        assert!((0.2..0.4).contains(&share), "{flags}: {share} of {} aborted", counts.sent);
        assert!(counts.texts > counts.correct * 2 && counts.failed == 0, "{flags}: {counts:?}");
    }
}

#[test]
fn the_share_that_is_asked_is_aborted_however_soon_answers_come() {
    for (share, load_flags) in [(1.0, "--concurrency 2"), (1.0, "--rate 500"), (0.5, "--concurrency 2")] {
        // The probe's answer is late, all others come at once: before most of the moments that are drawn.
        let address = serve(|request| match request.number {
            0 => Reply::After(Duration::from_millis(200), right(request)),
            _ => Reply::Bytes(right(request)),
        });
        let flags = format!("{load_flags} --abort-rate {share} --warmup 0s --duration 500ms");
        let (outcome, record) = load(address, &format!("all-aborted-{share}-{}", load_flags.len()), &flags);
        assert_eq!(outcome.code, Some(0), "{flags}: {}", outcome.error);
        let counts = &record.runs[0].counts;
        adds_up(counts);
        let found = counts.aborted as f64 / counts.sent as f64;
        assert!(
            counts.sent > 50 && (found - share).abs() < if share < 1.0 { 0.2 } else { 1e-9 },
            "{flags}: {counts:?}"
        );
    }
}

/// A server whose 100th request sends a signal to the process that it comes from, and that process.
fn interrupted(name: &str, load: &str) -> (Option<i32>, String, Option<Record>) {
    let process: Arc<OnceLock<u32>> = Arc::default();
    let known = Arc::clone(&process);
    let address = serve(move |request| {
        if request.number == 100 {
            let process = known.wait().to_string();
            assert!(Command::new("kill").args(["-INT", &process]).status().expect("kill runs").success());
        }
        Reply::Bytes(right(request))
    });
    let (url, json) = (format!("http://{address}"), file(name));
    let mut command = Command::new(env!("CARGO_BIN_EXE_reactrt-bench"));
    command.args(["load", "--url", &url, "--model", "m", "--duration", "60s", "--json"]).arg(&json);
    let command = command.args(load.split_whitespace()).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = command.spawn().expect("the binary runs");
    process.set(child.id()).expect("it is set once");
    let output = child.wait_with_output().expect("it ends");
    let record = std::fs::read(&json).ok().map(|text| serde_json::from_slice(&text).expect("a record"));
    let _ = std::fs::remove_file(&json);
    (output.status.code(), String::from_utf8(output.stderr).expect("text"), record)
}

#[test]
fn an_interrupted_run_leaves_what_it_measured() {
    for load in
        ["--rate 500 --warmup 0s", "--rate 500 --warmup 0s --threads 2 --rounds 3", "--concurrency 2 --warmup 0s"]
    {
        let began = Instant::now();
        let (code, error, record) = interrupted(&format!("interrupted-{}.json", load.len()), load);
        assert_eq!(code, Some(2), "{error}");
        assert!(error.contains("ended early by a signal") && began.elapsed() < Duration::from_secs(20), "{error}");
        let record = record.expect("a record");
        assert_eq!(record.runs.len(), 1, "no round begins after the signal");
        let run = &record.runs[0];
        adds_up(&run.counts);
        assert_eq!(run.label, "m (interrupted)");
        assert!(run.counts.correct >= 90 && run.counts.failed == 0, "{:?}", run.counts);
        assert!(run.duration_s > 0.0 && run.duration_s < 20.0, "{}", run.duration_s);
        assert!(run.counts.unsent <= run.counts.sent, "what was not due is not unsent: {:?}", run.counts);
    }
}

/// Seven of eight answers are wrong or none, each in its own way; the first, which the probe meets, is right.
fn of_every_kind() -> SocketAddr {
    serve(|request| {
        if request.head.starts_with("GET") {
            return Reply::Bytes(answer(404, "{}"));
        }
        match request.number % 8 {
            1 => Reply::Bytes(answer(503, "{\"detail\":\"draining\"}")),
            2 => Reply::Bytes(answer(200, "{\"embeddings\":[[0.25,NaN,0,1]]}")),
            3 => Reply::Bytes(answer(200, "{\"embeddings\":[[0.25,1]]}")),
            4 => Reply::Bytes(answer(200, &vectors(2))),
            5 => Reply::Last(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"embed".to_vec()),
            6 => Reply::Last(Vec::new()),
            7 => Reply::Bytes(answer(200, "{\"embeddings\":[[0.25,1,2,3]}")),
            _ => Reply::Bytes(right(request)),
        }
    })
}

#[test]
fn errors_are_counted_by_kind_and_wrong_answers_are_not_latencies() {
    let flags = "--concurrency 3 --requests 400 --warmup 0s";
    let (outcome, record) = load(of_every_kind(), "kinds", flags);
    assert_eq!(outcome.code, Some(2));
    assert!(
        outcome.error.contains("--allow-errors takes that") && outcome.error.lines().count() == 1,
        "{}",
        outcome.error
    );
    let run = &record.runs[0];
    adds_up(&run.counts);
    assert_eq!(run.counts.sent, 400);
    for kind in [
        "status 503",
        "a value that is not a finite number",
        "dimension 2, not 4",
        "2 results, not 1",
        "closed mid-body",
        "closed before the answer",
        "malformed JSON",
    ] {
        assert_eq!(run.counts.errors.get(kind), Some(&50), "{kind}: {:?}", run.counts.errors);
    }
    assert_eq!((run.counts.correct, run.counts.failed), (50, 100));
    assert_eq!(run.latency.as_ref().unwrap().corrected.count, 50);
    let (allowed, _) = load(of_every_kind(), "kinds-allowed", &format!("{flags} --allow-errors"));
    assert_eq!(allowed.code, Some(0), "{}", allowed.error);
}

#[test]
fn a_run_without_one_right_answer_never_ends_well() {
    let address = serve(|request| match request.number {
        0 => Reply::Bytes(right(request)),
        _ => Reply::Bytes(answer(500, "{}")),
    });
    let (outcome, record) = load(address, "none", "--concurrency 2 --requests 20 --warmup 0s --allow-errors");
    assert_eq!(outcome.code, Some(2));
    assert!(outcome.error.contains("not one right answer (status 500: 20)"), "{}", outcome.error);
    assert!(record.runs[0].latency.is_none());
}

#[test]
fn every_framing_is_understood_and_closed_connections_are_replaced() {
    let body = vectors(1);
    let replies: [(&str, Vec<u8>, bool); 4] = [
        ("length", answer(200, &body), false),
        (
            "chunks",
            format!(
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n8\r\n{}\r\n{:x}\r\n{}\r\n0\r\n\r\n",
                &body[..8],
                body.len() - 8,
                &body[8..]
            )
            .into(),
            false,
        ),
        ("close", format!("HTTP/1.1 200 OK\r\n\r\n{body}").into(), true),
        ("old", format!("HTTP/1.0 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into(), true),
    ];
    for (name, bytes, closes) in replies {
        let address = serve(move |_| if closes { Reply::Last(bytes.clone()) } else { Reply::Bytes(bytes.clone()) });
        for flags in ["--concurrency 4 --requests 100", "--rate 400 --requests 100"] {
            let (outcome, record) = load(address, &format!("framing-{name}"), &format!("{flags} --warmup 50ms"));
            assert_eq!(outcome.code, Some(0), "{name}: {}{}", outcome.out, outcome.error);
            assert_eq!(record.runs[0].counts.correct, 100, "{name}");
        }
    }
}

#[test]
fn a_silent_server_times_out() {
    let address = serve(|request| match request.number {
        0 => Reply::Bytes(right(request)),
        number if number % 2 == 0 => Reply::Silence,
        _ => Reply::Bytes(right(request)),
    });
    let (outcome, record) =
        load(address, "silence", "--rate 50 --timeout 150ms --duration 400ms --warmup 0s --arrivals constant");
    assert_eq!(outcome.code, Some(2));
    let counts = &record.runs[0].counts;
    adds_up(counts);
    assert_eq!((counts.sent, counts.errors.get("no answer within the timeout")), (20, Some(&10)), "{counts:?}");
}

#[test]
fn progress_is_a_line_each_second_where_stderr_is_no_terminal() {
    let address = serve(|request| Reply::Bytes(right(request)));
    let (outcome, _) = load(address, "progress", "--rate 50 --warmup 0s --duration 1300ms --progress");
    assert_eq!(outcome.code, Some(0), "{}", outcome.error);
    let lines: Vec<&str> = outcome.error.lines().collect();
    assert!(lines.len() == 1 && lines[0].starts_with("m: 1 s, "), "{}", outcome.error);
    let (outcome, _) = load(address, "no-progress", "--rate 50 --warmup 0s --duration 1300ms");
    assert_eq!(outcome.error, "");
}

#[test]
fn a_run_does_not_end_because_nobody_reads_what_it_prints() {
    let address = serve(|request| Reply::Bytes(right(request)));
    let json = file("unread.json");
    let line = format!(
        "{{ {} load --url http://{address} --model m --concurrency 1 --requests 5 --warmup 0s --json {}; echo $? >&2; }} | true",
        env!("CARGO_BIN_EXE_reactrt-bench"),
        json.display()
    );
    let output = std::process::Command::new("sh").args(["-c", &line]).output().unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "0\n");
    assert!(json.exists());
}

#[test]
fn targets_of_a_scenario_take_turns() {
    let (one, other) = (serve(|request| Reply::Bytes(right(request))), serve(|request| Reply::Bytes(right(request))));
    let (scenario, json, log) = (file("turns.yaml"), file("turns.json"), file("turns.hlog"));
    let text = format!(
        "concurrency: 2\nrequests: 50\nwarmup: 0s\nrounds: 3\ninterleave: true\ntargets:\n\
         \x20 - {{label: one, url: 'http://{one}', model: m}}\n  - {{label: other, url: 'http://{other}', model: m}}\n"
    );
    std::fs::write(&scenario, text).unwrap();
    let [scenario, json_path, log_path] = [&scenario, &json, &log].map(|path| path.to_str().unwrap());
    let outcome =
        common::bench(&["load", "--scenario", scenario, "--requests", "40", "--json", json_path, "--hdr", log_path]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.error);
    let record: Record = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    let labels: Vec<&str> = record.runs.iter().map(|run| run.label.as_str()).collect();
    assert_eq!(labels, ["one", "other", "one", "other", "one", "other"]);
    for run in &record.runs {
        assert_eq!((run.counts.correct, &run.load), (40, &Load::Closed { concurrency: 2 }));
    }
    let third = log.with_file_name(log.file_name().unwrap().to_str().unwrap().replace(".hlog", "-3.hlog"));
    let expected = &record.runs[2].latency.as_ref().unwrap().interval_log;
    assert_eq!(&std::fs::read_to_string(third).unwrap(), expected);
}

#[test]
fn the_search_finds_what_a_slow_server_bears() {
    // One request at a time, 4 ms each: 250 per second at most.
    let turn = Mutex::new(());
    let address = serve(move |request| {
        let _turn = turn.lock().expect("no thread panics");
        std::thread::sleep(Duration::from_millis(4));
        Reply::Bytes(right(request))
    });
    let flags = "--search-p99 100ms --rate 60 --arrivals constant --duration 700ms --warmup 0s --connections 8";
    let (outcome, record) = load(address, "search", flags);
    assert_eq!(outcome.code, Some(0), "{}", outcome.error);
    assert!((3..=16).contains(&record.runs.len()), "{}", record.runs.len());
    let found: f64 = outcome.out.rsplit("up to ").next().unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!((120.0..280.0).contains(&found), "{}", outcome.out);
}
