//! What an operator relies on: time limits that shed work, clients that leave, the access log, keys that stay secret, signals
//! and exits.

mod common;

use std::net::Shutdown;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::process::Process;
use common::{Client, metric, settings, start};
use reactrt::config::DeviceName;
use reactrt::journal::Target;
use serde_json::Value;

const EMBED: &str = "{\"documents\":[\"a\"]}";

fn post(path: &str, body: &str, fields: &str) -> Vec<u8> {
    format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n{fields}\r\n{body}", body.len()).into_bytes()
}

/// Looks until something is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn work_that_is_late_is_dropped_before_the_device_sees_it() {
    let mut settings = settings(DeviceName::Sim);
    (settings.sim.lanes, settings.sim.base_us) = (1, 1_200_000);
    settings.batching.sequences_max = Some(1);
    let server = start(settings);
    let mut first = server.connect();
    first.send(&post("/infer/embed", EMBED, ""));
    until("the first one executes", || metric(&server.get("/metrics"), "reactrt_pieces_out") == 1);
    // These wait behind it in the device's queue, longer than they may.
    let mut late: Vec<Client> = (0..20).map(|_| server.connect()).collect();
    for client in &mut late {
        client.send(&post("/infer/embed", EMBED, "x-request-timeout-ms: 300\r\n"));
    }
    let asked = Instant::now();
    for client in &mut late {
        let answer = client.answer();
        assert_eq!(answer.status, 504, "{}", answer.text());
        assert_eq!(
            answer.json()["detail"],
            "no answer within 300 ms (x-request-timeout-ms, else deadlines.request_ms): given up"
        );
        // A worker may have its body still: then nothing is known of where the time went.
        let timing = answer.header("server-timing").unwrap_or("parse;dur=0");
        assert_eq!(timing.matches("parse;").count(), 1, "{timing}");
    }
    assert!(asked.elapsed() < Duration::from_millis(1_000), "told in time, not by the device: {:?}", asked.elapsed());
    assert_eq!(first.answer().status, 200);
    let mut last = late.pop().expect("twenty");
    assert_eq!(last.post("/infer/embed", EMBED).status, 200, "the connection goes on");
    let metrics = server.get("/metrics");
    assert_eq!(metric(&metrics, "reactrt_requests_expired_total"), 20);
    let dropped = metric(&metrics, "reactrt_dropped_sequences_total{device=\"sim\"}");
    assert!((1..=20).contains(&dropped), "{dropped} dropped at placement; a worker drops what it has not cut yet");
    assert_eq!(metric(&metrics, "reactrt_batch_sequences_total{device=\"sim\"}"), 2, "the first and the last");
}

#[test]
fn clients_that_leave_while_they_wait_cost_the_device_nothing() {
    let mut settings = settings(DeviceName::Sim);
    (settings.sim.lanes, settings.sim.base_us) = (1, 1_000_000);
    settings.batching.sequences_max = Some(1);
    let server = start(settings);
    let mut first = server.connect();
    first.send(&post("/infer/embed", EMBED, ""));
    until("the first one executes", || metric(&server.get("/metrics"), "reactrt_pieces_out") == 1);
    let mut gone: Vec<Client> = (0..4).map(|_| server.connect()).collect();
    for client in &mut gone {
        client.send(&post("/infer/embed", EMBED, ""));
    }
    until("they wait", || metric(&server.get("/metrics"), "reactrt_pieces_out") == 5);
    for (index, client) in gone.into_iter().enumerate() {
        // Half by a close, half by a FIN alone.
        match index % 2 {
            0 => drop(client),
            _ => client.stream().shutdown(Shutdown::Write).expect("open"),
        }
    }
    until("they are counted", || metric(&server.get("/metrics"), "reactrt_jobs_cancelled_total") == 4);
    assert_eq!(first.answer().status, 200);
    assert_eq!(server.post("/infer/embed", EMBED).status, 200);
    let metrics = server.get("/metrics");
    assert_eq!(metric(&metrics, "reactrt_batch_sequences_total{device=\"sim\"}"), 2, "the first and the last");
    // Those that a worker had not cut yet did not even come so far.
    assert!(metric(&metrics, "reactrt_dropped_sequences_total{device=\"sim\"}") <= 4);
}

#[test]
fn a_client_that_leaves_in_the_middle_of_a_batch_harms_nobody_in_it() {
    let mut settings = settings(DeviceName::Sim);
    (settings.sim.lanes, settings.sim.base_us) = (1, 150_000);
    let server = start(settings);
    let alone = server.post("/infer/embed", "{\"documents\":[\"text 1\"]}").json()["embeddings"].clone();
    // Whether the eight share a batch of their own is the scheduler's to say: it is tried until they did.
    until("half of a batch left", || {
        let before = metric(&server.get("/metrics"), "reactrt_jobs_cancelled_total");
        let mut first = server.connect();
        first.send(&post("/infer/embed", EMBED, ""));
        until("the lane is busy", || metric(&server.get("/metrics"), "reactrt_pieces_out") >= 1);
        let mut batch: Vec<Client> = (0..8).map(|_| server.connect()).collect();
        for (index, client) in batch.iter_mut().enumerate() {
            client.send(&post("/infer/embed", &format!("{{\"documents\":[\"text {index}\"]}}"), ""));
        }
        assert_eq!(first.answer().status, 200);
        // Now the eight execute together, and half of them leave.
        let mut stay: Vec<_> = batch.into_iter().enumerate().filter(|(index, _)| index % 2 == 1).collect();
        for (index, client) in &mut stay {
            let answer = client.answer();
            assert_eq!(answer.status, 200);
            if *index == 1 {
                assert_eq!(answer.json()["embeddings"], alone, "bit by bit");
            }
        }
        metric(&server.get("/metrics"), "reactrt_jobs_cancelled_total") == before + 4
    });
}

/// It takes a byte now and then, which is not enough.
#[test]
fn a_reader_that_trickles_is_left_and_holds_no_job() {
    let mut settings = settings(DeviceName::Sim);
    settings.deadlines.write_ms = 300;
    // An answer of more megabytes than the kernel takes from the server at once.
    settings.limits.texts_max = 30_000;
    let server = start(settings);
    let texts = vec!["\"some text\""; 30_000].join(",");
    let mut slow = server.connect();
    socket2::SockRef::from(slow.stream()).set_recv_buffer_size(4 << 10).expect("a size");
    slow.send(&post("/infer/embed", &format!("{{\"documents\":[{texts}]}}"), ""));
    until("its answer is on the way", || {
        server.get("/metrics").text().contains("reactrt_requests_total{model=\"embed\",status=\"200\"} 1\n")
    });
    assert_eq!(metric(&server.get("/metrics"), "reactrt_jobs"), 0, "the answer is the socket's, not a job's");
    let begun = Instant::now();
    let mut taken = 0;
    let mut byte = [0; 1];
    // One byte for each round of the server's: progress, but never 64 KiB within the time.
    while metric(&server.get("/metrics"), "reactrt_connections") > 1 {
        assert!(begun.elapsed() < Duration::from_secs(20), "it is not left");
        taken += std::io::Read::read(&mut slow.stream(), &mut byte).unwrap_or(0);
    }
    assert!(begun.elapsed() >= Duration::from_millis(250) && taken > 0, "{:?}, {taken} bytes", begun.elapsed());
}

fn log_file(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}.log", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

fn lines(path: &std::path::Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("a log");
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

#[test]
fn the_access_log_has_a_line_for_each_request() {
    let path = log_file("access");
    let mut settings = settings(DeviceName::Sim);
    settings.server.access_log = Some(Target::File(path.clone()));
    settings.sim.base_us = 1_000;
    let server = start(settings);
    let mut client = server.connect();
    let remote = client.stream().local_addr().expect("connected").to_string();
    client.send(&post("/infer/embed?a=1", EMBED, "x-request-id: first\r\n"));
    let bytes_out = {
        let answer = client.answer();
        answer.head.len() + answer.body.len()
    };
    client.send(b"HEAD /models HTTP/1.1\r\nhost: x\r\n\r\n");
    client.answer_to("HEAD");
    client.send(&post("/infer/nope%0a%1b", EMBED, "x-request-id: third\r\n"));
    assert_eq!(client.answer().status, 404);
    client.send(&post("/v1/embeddings", "{\"model\":\"rank\",\"query\":\"q\",\"input\":[\"a\"]}", ""));
    assert_eq!(client.answer().status, 200);
    client.send(b"GET /\x1b[31m\"x HTTP/1.1\r\n\r\n");
    assert_eq!(client.answer().status, 400);
    for (request, status) in [
        ("GET http://h?q=1 HTTP/1.1\r\nhost: x\r\n\r\n".to_owned(), 404),
        ("PROPFIND /models HTTP/1.1\r\nhost: x\r\n\r\n".to_owned(), 405),
        (format!("{} /models HTTP/1.1\r\nhost: x\r\n\r\n", "M".repeat(30)), 405),
        ("POST /v1/embeddings HTTP/1.1\r\nx-request-id: no-length\r\nhost: x\r\n\r\n".to_owned(), 411),
    ] {
        let mut client = server.connect();
        client.send(request.as_bytes());
        assert_eq!(client.answer().status, status, "{request}");
    }
    let mut gone = server.connect();
    gone.send(&post("/infer/embed", EMBED, "x-request-id: gone\r\nx-api-key: hunter2\r\n"));
    gone.stream().shutdown(Shutdown::Write).expect("open");
    gone.rest();
    drop(server);

    let lines = lines(&path);
    let of = |id: &str| lines.iter().find(|line| line["request_id"] == id).unwrap_or_else(|| panic!("{id}: {lines:?}"));
    let first = of("first");
    assert_eq!(first["target"], "/infer/embed?a=1");
    assert_eq!((&first["method"], &first["status"], &first["model"]), (&"POST".into(), &200.into(), &"embed".into()));
    assert_eq!(first["remote"], remote);
    assert_eq!(first["bytes_in"], post("/infer/embed?a=1", EMBED, "x-request-id: first\r\n").len());
    assert_eq!(first["bytes_out"], bytes_out);
    assert!(first["stages_ms"]["device"].as_f64().expect("a time") >= 0.9, "{first}");
    assert!(first["duration_ms"].as_f64().expect("a time") >= 0.9, "{first}");
    let third = of("third");
    assert_eq!((&third["target"], &third["status"]), (&"/infer/nope%0a%1b".into(), &404.into()));
    assert!(third.get("model").is_none() && third.get("stages_ms").is_none());
    let by_status = |status: u16| lines.iter().find(|line| line["status"] == status).expect("a line");
    assert_eq!(by_status(400)["target"], "/\u{1b}[31m\"x");
    assert_eq!(by_status(400)["method"], "GET");
    assert_eq!(lines.iter().filter(|line| line["model"] == "rank").count(), 1);
    assert_eq!(lines.iter().filter(|line| line["method"] == "HEAD").count(), 1);
    let gone = of("gone")["status"].as_u64().expect("a status");
    assert!(gone == 499 || gone == 200, "left before its answer, or just after: {gone}");
    let by_target = |target: &str| lines.iter().find(|line| line["target"] == target).expect("a line");
    assert_eq!(by_target("http://h?q=1")["method"], "GET", "a target is shown as it was sent");
    let methods: Vec<_> = lines.iter().filter(|line| line["status"] == 405).map(|line| &line["method"]).collect();
    assert_eq!(methods, [&Value::from("PROPFIND"), &Value::from(format!("{}...", "M".repeat(20)))]);
    let refused = of("no-length");
    assert_eq!((&refused["method"], &refused["target"]), (&"POST".into(), &"/v1/embeddings".into()));
    assert_eq!(refused["status"], 411);
    assert_eq!(lines.len(), 10);
    let text = std::fs::read_to_string(&path).expect("a log");
    assert!(text.bytes().all(|byte| byte == b'\n' || (b' '..=b'~').contains(&byte)), "printable");
    assert!(!text.contains("hunter2"));
    std::fs::remove_file(path).expect("its own file");
}

#[test]
fn a_log_that_cannot_be_written_loses_lines_and_no_request() {
    let process = Process::start("full", "", &["--access-log", "/dev/full"]);
    let mut client = process.connect();
    for _ in 0..50 {
        assert_eq!(client.post("/infer/embed", EMBED).status, 200);
    }
    until("lost lines are counted", || process.metric("reactrt_access_log_dropped_total") >= 50);
    process.signal("TERM");
    let (status, _, errors) = process.wait();
    assert_eq!(status.code(), Some(0), "{errors}");
    assert_eq!(
        errors.matches("the access log /dev/full cannot be written: No space left").count(),
        1,
        "once: {errors}"
    );
}

#[test]
fn the_access_log_may_be_the_output() {
    let process = Process::start("output", "", &["--access-log", "-"]);
    assert_eq!(process.get("/health/live").status, 200);
    process.signal("TERM");
    let (status, output, _) = process.wait();
    assert_eq!(status.code(), Some(0));
    let line: Value = serde_json::from_str(output.trim()).expect("one line of JSON");
    assert_eq!((&line["target"], &line["status"]), (&"/health/live".into(), &200.into()));
}

#[test]
fn keys_are_shown_nowhere_and_an_open_door_is_warned_of() {
    let log = log_file("keys");
    let flags = ["--access-log", log.to_str().expect("UTF-8"), "--log-level", "debug", "--host", "0.0.0.0"];
    let process = Process::start("keys", "server: {api_keys: [hunter2-the-key]}", &flags);
    let mut client = Client::connect(([127, 0, 0, 1], process.address.port()).into());
    for key in ["hunter2-the-key", "hunter2-guessed"] {
        client.send(format!("GET /models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n\r\n").as_bytes());
        let answer = client.answer();
        assert_eq!(answer.status, if key.ends_with("key") { 200 } else { 401 });
        assert!(!answer.text().contains("hunter2"));
    }
    process.signal("TERM");
    let (status, output, errors) = process.wait();
    assert_eq!(status.code(), Some(0));
    let written = std::fs::read_to_string(&log).expect("a log");
    assert_eq!(written.lines().count(), 2);
    assert!(![output, errors.clone(), written].iter().any(|text| text.contains("hunter2")));
    assert!(!errors.contains("without server.api_keys"), "{errors}");
    std::fs::remove_file(log).expect("its own file");

    let open = Process::start("open", "", &["--host", "0.0.0.0"]);
    open.signal("TERM");
    let (_, _, errors) = open.wait();
    assert!(errors.contains("without server.api_keys: whoever reaches this port may use every model"), "{errors}");
    let quiet = Process::start("quiet", "", &["--host", "0.0.0.0", "--log-level", "error"]);
    quiet.signal("TERM");
    assert_eq!(quiet.wait().2, "");
}

#[test]
fn a_stop_says_so_first_answers_what_it_accepted_and_ends_well() {
    let process = Process::start("stop", "sim: {base_us: 2000000}", &[]);
    let mut idle = process.connect();
    idle.send(b"GET /health/ready HTTP/1.1\r\nhost: x\r\n\r\n");
    assert_eq!(idle.answer().status, 200);
    let mut working = process.connect();
    working.send_post("/infer/embed", EMBED);
    until("it works", || process.metric("reactrt_jobs") == 1);
    let stopped = Instant::now();
    process.signal("TERM");
    assert!(idle.is_closed(), "an idle connection is closed at once");
    assert!(stopped.elapsed() < Duration::from_millis(1_500), "{:?}", stopped.elapsed());
    let ready = process.get("/health/ready");
    assert_eq!((ready.status, ready.header("connection")), (503, Some("close")));
    assert!(ready.text().contains("draining"), "{}", ready.text());
    assert_eq!(process.get("/health/live").status, 200);
    let late = process.connect().post("/infer/embed", EMBED);
    assert_eq!((late.status, late.header("retry-after")), (503, Some("1")));
    let answer = working.answer();
    assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    let (status, _, errors) = process.wait();
    assert_eq!(status.code(), Some(0), "{errors}");
    assert!(stopped.elapsed() < Duration::from_secs(5), "{:?}", stopped.elapsed());
}

/// Whoever cannot be answered in time is told so instead of being cut off, and the log says the same.
#[test]
fn at_the_end_of_a_stop_what_is_not_finished_is_refused() {
    let log = log_file("leave");
    let slow = "sim: {base_us: 30000000}\ndeadlines: {drain_ms: 1000}";
    let process = Process::start("leave", slow, &["--access-log", log.to_str().expect("UTF-8")]);
    let mut working = process.connect();
    working.send(&post("/infer/embed", EMBED, "x-request-id: working\r\n"));
    until("it works", || process.metric("reactrt_jobs") == 1);
    let mut sending = process.connect();
    let half = &post("/v1/embeddings", "{\"model\":\"embed\",\"input\":\"a\"}", "x-request-id: sending\r\n");
    sending.send(&half[..half.len() - 9]);
    let mut begun = process.connect();
    begun.send(b"GET /v1/models HT");
    until("they are here", || process.metric("reactrt_connections") >= 4);
    let stopped = Instant::now();
    process.signal("TERM");
    for (client, shape) in [(&mut working, "detail"), (&mut sending, "error"), (&mut begun, "error")] {
        let answer = client.answer();
        assert_eq!((answer.status, answer.header("connection")), (503, Some("close")), "{}", answer.text());
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert!(answer.json().get(shape).is_some() && answer.text().contains("shutting down"), "{}", answer.text());
        assert!(client.is_closed());
    }
    assert!(stopped.elapsed() >= Duration::from_millis(700), "they have had their time: {:?}", stopped.elapsed());
    let (status, _, errors) = process.wait();
    assert_eq!(status.code(), Some(0), "{errors}");
    let lines = lines(&log);
    for id in ["working", "sending"] {
        let line = lines.iter().find(|line| line["request_id"] == id).unwrap_or_else(|| panic!("{id}: {lines:?}"));
        assert_eq!((&line["status"], &line["method"]), (&503.into(), &"POST".into()), "{line}");
    }
    std::fs::remove_file(log).expect("its own file");
}

#[test]
fn a_stop_ends_in_time_whatever_still_computes_and_a_second_signal_at_once() {
    let slow = "sim: {base_us: 30000000}\ndeadlines: {drain_ms: 300}";
    let process = Process::start("drain", slow, &[]);
    let mut working = process.connect();
    working.send_post("/infer/embed", EMBED);
    until("it works", || process.metric("reactrt_jobs") == 1);
    let stopped = Instant::now();
    process.signal("INT");
    let (status, _, errors) = process.wait();
    assert_eq!(status.code(), Some(0), "{errors}");
    assert!(stopped.elapsed() < Duration::from_secs(3), "{:?}", stopped.elapsed());

    let process = Process::start("twice", "sim: {base_us: 30000000}", &[]);
    let mut working = process.connect();
    working.send_post("/infer/embed", EMBED);
    until("it works", || process.metric("reactrt_jobs") == 1);
    process.signal("TERM");
    until("it drains", || process.get("/health/ready").status == 503);
    process.signal("TERM");
    assert_eq!(process.wait().0.code(), Some(143));
}

#[test]
fn a_hangup_without_a_terminal_changes_nothing() {
    let process = Process::start("hangup", "", &[]);
    process.signal("HUP");
    process.signal("HUP");
    assert_eq!(process.get("/health/ready").status, 200);
    process.signal("TERM");
    let (status, _, errors) = process.wait();
    assert_eq!(status.code(), Some(0));
    assert!(errors.contains("SIGHUP: nothing is read again"), "{errors}");
}
