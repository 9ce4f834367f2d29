//! Load and lack: ten thousand idle connections, slow senders, more requests than the queue holds, no file descriptors, a full
//! disk, a sudden death. Over real sockets against the server as a process of its own, bounded in count and time.
//!
//! What is measured is printed (`cargo test --test faults -- --nocapture --test-threads 1`) and kept in `bench/record`; what is
//! asserted is looser, for a busy machine.

#![allow(unsafe_code)] // the limit of file descriptors is raised by a system call

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::Client;
use common::process::Process;

const EMBED: &str = "{\"documents\":[\"a\"]}";

/// Raises this process's limit of file descriptors, which its children inherit. False if the hard limit is lower.
fn descriptors(wanted: u64) -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls read or write only the struct they are given.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) != 0 || limit.rlim_max < wanted {
            return false;
        }
        limit.rlim_cur = limit.rlim_cur.max(wanted);
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit) == 0
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn ten_thousand_idle_connections_take_two_kilobytes_each() {
    const COUNT: usize = 10_000;
    if !descriptors(COUNT as u64 + 500) {
        println!("passed over: the hard limit of file descriptors is below {}", COUNT + 500);
        return;
    }
    // What a connection takes is taken at start; a server without them, and with buffers for as much, shows how much that is.
    let limits = |connections: usize| {
        let memory = 250_000_000 + connections * 2_048;
        format!("limits: {{connections_max: {connections}, memory_bytes_max: {memory}}}")
    };
    let few = Process::start("few-idle", &limits(100), &[]);
    let process = Process::start("idle", &limits(COUNT + 100), &[]);
    let ask = |client: &mut Client| assert_eq!(client.post("/infer/embed", EMBED).status, 200);
    // As warm as it gets: what is used once stays resident.
    for _ in 0..200 {
        ask(&mut few.connect());
        ask(&mut process.connect());
    }
    let at_start = process.memory_bytes("RssAnon").saturating_sub(few.memory_bytes("RssAnon"));
    let before = process.memory_bytes("RssAnon");
    let begun = Instant::now();
    let mut clients: Vec<Client> = (0..COUNT).map(|_| process.connect()).collect();
    clients.iter_mut().for_each(ask);
    let asked = begun.elapsed();
    until("all are there", || process.metric("reactrt_connections") as usize == COUNT + 1);
    assert_eq!(process.metric("reactrt_buffers_out"), 1, "an idle connection holds no buffer");
    let later = process.memory_bytes("RssAnon").saturating_sub(before);
    let each = (at_start + later) / COUNT as u64;
    let start = Instant::now();
    for _ in 0..200 {
        ask(&mut clients[17]);
    }
    let beside = start.elapsed() / 200;
    println!(
        "{COUNT} idle connections: {each} bytes each ({at_start} in all at start, {later} later); opened and asked once in {asked:.1?}; a request beside them {beside:.0?}"
    );
    assert!(each <= 2048, "{each} bytes for each connection");
}

/// Times of so many requests, one after another, sorted.
fn times(process: &Process, count: usize) -> Vec<Duration> {
    let mut client = process.connect();
    let mut times: Vec<Duration> = (0..count)
        .map(|_| {
            let start = Instant::now();
            assert_eq!(client.post("/infer/embed", EMBED).status, 200);
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    times
}

fn percentile(times: &[Duration], percent: usize) -> Duration {
    times[(times.len() * percent / 100).min(times.len() - 1)]
}

#[test]
fn two_hundred_slow_senders_do_not_slow_a_client() {
    let process = Process::start("slow", "", &[]);
    times(&process, 500);
    let without = times(&process, 4_000);
    let quit = AtomicBool::new(false);
    let address = process.address;
    let with = thread::scope(|scope| {
        scope.spawn(|| {
            // Each sends its request a byte at a time, about every 20 ms, and begins anew when it is answered or left.
            let request =
                format!("POST /infer/embed HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{EMBED}", EMBED.len());
            let connect = || TcpStream::connect(address).expect("the server listens");
            let mut senders: Vec<(TcpStream, usize)> = (0..200).map(|index| (connect(), index % 50)).collect();
            while !quit.load(Ordering::Relaxed) {
                for (stream, sent) in &mut senders {
                    if *sent == request.len() || stream.write_all(&request.as_bytes()[*sent..*sent + 1]).is_err() {
                        (*stream, *sent) = (connect(), 0);
                    } else {
                        *sent += 1;
                    }
                }
                thread::sleep(Duration::from_millis(20));
            }
        });
        until("the senders are there", || process.metric("reactrt_connections") > 200);
        let with = times(&process, 4_000);
        quit.store(true, Ordering::Relaxed);
        with
    });
    let shown = |times: &[Duration]| format!("p50 {:.0?}, p99 {:.0?}", percentile(times, 50), percentile(times, 99));
    println!("one client: {}; beside 200 slow senders: {}", shown(&without), shown(&with));
    let bound = (percentile(&without, 99) * 10).max(Duration::from_millis(20));
    assert!(percentile(&with, 99) <= bound, "{} and {}", shown(&without), shown(&with));
}

#[test]
fn liveness_is_told_while_the_device_has_more_than_it_can_do() {
    let process = Process::start("live", "sim: {base_us: 2000, lanes: 2}\nbatching: {max_batch_size: 8}", &[]);
    let quit = AtomicBool::new(false);
    let mut times = thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut clients: Vec<Client> = (0..64).map(|_| process.connect()).collect();
                let body = format!("{{\"documents\":[{}]}}", vec!["\"some words of a text\""; 30].join(","));
                while !quit.load(Ordering::Relaxed) {
                    clients.iter_mut().for_each(|client| client.send_post("/infer/embed", &body));
                    for client in &mut clients {
                        assert!(matches!(client.answer().status, 200 | 429));
                    }
                }
            });
        }
        until("it is busy", || process.metric("reactrt_jobs") > 100);
        let times: Vec<Duration> = (0..500)
            .map(|_| {
                let start = Instant::now();
                assert_eq!(process.get("/health/live").status, 200);
                start.elapsed()
            })
            .collect();
        quit.store(true, Ordering::Relaxed);
        times
    });
    times.sort_unstable();
    let (p50, p99) = (percentile(&times, 50), percentile(&times, 99));
    println!("/health/live on a new connection beside 256 clients of 30 texts: p50 {p50:.0?}, p99 {p99:.0?}");
    assert!(p50 <= Duration::from_millis(20), "p50 {p50:?}, p99 {p99:?}");
}

#[test]
fn of_two_thousand_requests_at_once_each_is_answered_once() {
    const COUNT: usize = 2_000;
    if !descriptors(COUNT as u64 + 500) {
        println!("passed over: the hard limit of file descriptors is below {}", COUNT + 500);
        return;
    }
    let process = Process::start("burst", "sim: {base_us: 5000}\nbatching: {queue_tokens_max: 4096}", &[]);
    let body = format!("{{\"documents\":[{}]}}", vec!["\"some words of a text\""; 20].join(","));
    let mut clients: Vec<Client> = (0..COUNT).map(|_| process.connect()).collect();
    for (index, client) in clients.iter_mut().enumerate() {
        client.send(
            format!(
                "POST /infer/embed HTTP/1.1\r\nhost: x\r\nx-request-id: r{index}\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            )
            .as_bytes(),
        );
    }
    let (mut right, mut full) = (0, 0);
    for (index, client) in clients.iter_mut().enumerate() {
        let answer = client.answer();
        assert_eq!(answer.header("x-request-id").expect("an id"), format!("r{index}"));
        match answer.status {
            200 => {
                assert_eq!(answer.json()["embeddings"].as_array().expect("a list").len(), 20);
                right += 1;
            }
            429 => {
                assert!(answer.header("retry-after").is_some());
                full += 1;
            }
            other => panic!("request {index} is answered {other}: {}", answer.text()),
        }
    }
    // Whatever else came would be read here, before the answer to this.
    for client in &mut clients {
        client.send(b"GET /health/live HTTP/1.1\r\nhost: x\r\nx-request-id: last\r\n\r\n");
        assert_eq!(client.answer().header("x-request-id"), Some("last"));
    }
    println!(
        "{COUNT} requests at once, room for 4,096 tokens: {right} answered 200, {full} answered 429, none lost, none twice"
    );
    assert!(right > 0 && full > 0 && right + full == COUNT);
    assert_eq!((process.metric("reactrt_jobs"), process.metric("reactrt_queue_tokens")), (0, 0));
}

#[test]
fn a_killed_server_starts_again_on_its_port() {
    let process = Process::start("killed", "sim: {base_us: 300000}", &[]);
    let mut clients: Vec<Client> = (0..50).map(|_| process.connect()).collect();
    clients.iter_mut().for_each(|client| client.send_post("/infer/embed", EMBED));
    until("it works", || process.metric("reactrt_jobs") > 0);
    let port = process.address.port().to_string();
    process.signal("KILL");
    let (status, ..) = process.wait();
    assert_eq!(status.code(), None, "killed");
    for client in &mut clients {
        let rest = client.rest();
        assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 200"), "no half answer is taken for one");
    }
    let start = Instant::now();
    let again = Process::start("again", "", &["--port", &port]);
    println!(
        "killed with 50 requests under way; serves again on the same port {:.0?} after its start",
        start.elapsed()
    );
    assert_eq!(again.connect().post("/infer/embed", EMBED).status, 200);
}

#[test]
fn without_file_descriptors_it_waits_and_goes_on() {
    let process = Process::start_under("ulimit -n 64", "few", "", &[]);
    let mut clients: Vec<Client> = (0..100).map(|_| process.connect()).collect();
    for client in &mut clients {
        client.send_post("/infer/embed", EMBED);
    }
    // Some are served; the others wait in the kernel, and the server does not spin for them.
    assert_eq!(clients[0].answer().status, 200);
    let ticks = process.processor_ticks();
    thread::sleep(Duration::from_secs(1));
    let spent = process.processor_ticks() - ticks;
    assert!(spent <= 20, "{spent} of 100 ticks while nothing could be done");
    // The first leave one by one, and everybody is served in the end.
    let mut served = 1;
    drop(clients.remove(0));
    for mut client in clients {
        assert_eq!(client.answer().status, 200);
        served += 1;
    }
    let failures = process.metric("reactrt_accept_failures_total");
    println!(
        "64 file descriptors, 100 clients: {served} served; {spent} ticks of 10 ms in a second of want, {failures} tries in vain"
    );
    assert!(served == 100 && failures > 0);
    process.signal("TERM");
    let (status, _, errors) = process.wait();
    assert_eq!(status.code(), Some(0));
    assert_eq!(errors.matches("no file descriptor is left").count(), 1, "{errors}");
}

/// Lines and files alike.
#[test]
fn a_full_disk_stops_no_request_and_leaves_no_half_file() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("small-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("target/tmp can be written");
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(&folder).output();
    if !mounted.is_ok_and(|mounted| mounted.status.success()) {
        println!("passed over: a small file system can be mounted by root alone");
        return;
    }
    let log = folder.join("access.log");
    let process = Process::start("disk", "", &["--access-log", log.to_str().expect("UTF-8")]);
    let mut client = process.connect();
    let lines = |log: &std::path::Path| {
        let mut text = String::new();
        std::fs::File::open(log).and_then(|mut file| file.read_to_string(&mut text)).expect("a log");
        text
    };
    for _ in 0..600 {
        assert_eq!(client.post("/infer/embed", EMBED).status, 200);
    }
    until("lines are lost", || process.metric("reactrt_access_log_dropped_total") > 0);
    let dropped = process.metric("reactrt_access_log_dropped_total");
    // Somebody makes room.
    std::fs::write(&log, "").expect("emptied");
    until("it is written again", || {
        assert_eq!(client.post("/infer/embed", EMBED).status, 200);
        lines(&log).ends_with("}\n")
    });
    let text = lines(&log);
    let whole = |line: &&str| line.is_empty() || serde_json::from_str::<serde_json::Value>(line).is_ok();
    assert!(text.lines().all(|line| whole(&line)), "{text}");
    let model = common::fixture("bert-embedding-mean");
    let output = folder.join("model.onnx");
    std::fs::write(folder.join("filler"), vec![0; 60 << 10]).ok();
    let converted = common::command::reactrt()
        .args(["convert", "--task", "embedding", "--model", &model, "--output"])
        .arg(&output)
        .output()
        .expect("the binary runs");
    let said = String::from_utf8_lossy(&converted.stderr).into_owned();
    let left: Vec<_> =
        std::fs::read_dir(&folder).expect("there").map(|entry| entry.expect("readable").file_name()).collect();
    process.signal("TERM");
    let (status, _, errors) = process.wait();
    let unmounted = Command::new("umount").arg(&folder).status();
    assert!(unmounted.is_ok_and(|status| status.success()));
    std::fs::remove_dir(&folder).expect("empty");
    println!("a disk of 64 KiB: 600 requests answered, {dropped} of their lines lost; convert said: {}", said.trim());
    assert_eq!(
        (converted.status.code(), output.file_name().is_some_and(|name| left.contains(&name.to_owned()))),
        (Some(1), false)
    );
    assert!(said.contains("No space left"), "{said}");
    assert_eq!(status.code(), Some(0), "{errors}");
    assert_eq!(errors.matches("cannot be written: No space left").count(), 1, "{errors}");
    assert!(errors.contains("the access log is written again"), "{errors}");
}
