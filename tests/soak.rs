//! The binary under mixed traffic for a while: good requests, bad ones, clients that leave in the middle, bytes that are no
//! requests. Its memory must stay what it was, its counters must add up, nothing may fail, and it must end by itself.
//!
//! `cargo test` does this for seconds; `REACTRT_SOAK_MINUTES=20` for minutes, which is when the memory's two per cent mean
//! something. `REACTRT_SOAK_SERVER` names another binary than the one that cargo has just built.

mod common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Answer, Client};
use serde_json::json;

const CLIENTS: usize = 8;
const SECONDS: u64 = 20;

/// What memory may grow by, from the second minute on; of a run of seconds only that it does not run away can be said.
const GROWTH_MAX: f64 = 0.02;
const GROWTH_OF_SECONDS_MAX: f64 = 0.10;

struct Server {
    child: Child,
    address: SocketAddr,
    /// What else it says, so that it can say it.
    _output: Lines<BufReader<ChildStdout>>,
}

impl Server {
    fn start() -> Server {
        let binary = std::env::var("REACTRT_SOAK_SERVER").unwrap_or_else(|_| env!("CARGO_BIN_EXE_reactrt").into());
        let mut child = Command::new(&binary)
            .args(["serve", "--config", "tests/fixtures/three-tasks.yaml", "--port", "0", "--devices", "cpu"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            // To the server its own names are settings, and unknown ones mistakes.
            .env_remove("REACTRT_SOAK_SERVER")
            .env_remove("REACTRT_SOAK_MINUTES")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{binary} does not start: {error}"));
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let line = lines.find_map(|line| line.ok()?.strip_prefix("listening on http://").map(str::to_owned));
        let Some(line) = line else {
            let mut words = String::new();
            child.stderr.take().expect("it is piped").read_to_string(&mut words).expect("it is text");
            panic!("the server does not listen: {words}");
        };
        let address = line.parse().expect("an address");
        Server { child, address, _output: lines }
    }

    /// Memory that is resident now, in KiB.
    fn resident_kib(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).expect("the server runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("Linux tells it");
        line.trim_end_matches("kB").trim().parse().expect("a number")
    }

    fn metrics(&self) -> Metrics {
        let mut client = Client::connect(self.address);
        client.send(b"GET /metrics HTTP/1.1\r\nhost: soak\r\n\r\n");
        Metrics(client.answer().text().to_owned())
    }

    /// Asks it to end. What it said while it did, and whether it ended well.
    fn stop(mut self) -> (bool, String) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("there is `kill`").success());
        let until = Instant::now() + Duration::from_secs(15);
        while self.child.try_wait().expect("it is ours").is_none() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        let ended = self.child.try_wait().expect("it is ours").is_some_and(|status| status.success());
        let mut words = String::new();
        if ended {
            self.child.stderr.take().expect("it is piped").read_to_string(&mut words).expect("it is text");
        }
        (ended, words)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Has no effect on one that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Metrics(String);

impl Metrics {
    /// The sum over all labels.
    fn sum(&self, name: &str) -> u64 {
        self.lines(name).map(|(_, value)| value).sum()
    }

    fn lines(&self, name: &str) -> impl Iterator<Item = (&str, u64)> {
        let of_name = self.0.lines().filter_map(move |line| line.strip_prefix(name));
        of_name.filter(|rest| rest.starts_with(['{', ' '])).map(|rest| {
            let (labels, value) = rest.rsplit_once(' ').expect("a name and a value");
            (labels, value.parse().expect("a whole number"))
        })
    }
}

/// Small enough to be one's own, good enough to mix traffic (xorshift64*, Vigna 2016).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end
    }
}

/// A good request and the answer that it gets in any company, without the time it took.
struct Known {
    path: &'static str,
    body: String,
    answer: Vec<u8>,
}

fn timeless(answer: &Answer) -> &[u8] {
    let end = answer.body.windows(13).position(|window| window == b",\"elapsed_ms\"").unwrap_or(answer.body.len());
    &answer.body[..end]
}

fn known(address: SocketAddr) -> Vec<Known> {
    let mut random = Random(7);
    let words = ["rain", "in", "spain", "stays", "mainly", "on", "the", "plain", "über", "naïve", "42", "weather"];
    let mut text = move || {
        let count = if random.below(10) == 0 { 300 } else { 1 + random.below(25) };
        (0..count).map(|_| words[random.below(words.len())]).collect::<Vec<_>>().join(" ")
    };
    let mut client = Client::connect(address);
    let requests = (0..48).map(|index| {
        let count = [1, 1, 1, 2, 5, 40][index % 6];
        let texts: Vec<String> = (0..count).map(|_| text()).collect();
        match index % 4 {
            0 => ("/infer/tiny-embedding", json!({"documents": texts})),
            1 => ("/infer/tiny-reranker", json!({"query": text(), "documents": texts})),
            2 => ("/infer/tiny-nli", json!({"premises": texts, "hypotheses": vec![text(); count]})),
            _ => ("/v1/embeddings", json!({"model": "tiny-embedding", "input": texts, "encoding_format": "base64"})),
        }
    });
    let answered = requests.map(|(path, body)| {
        let body = body.to_string();
        let answer = client.post(path, &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        Known { path, body, answer: timeless(&answer).to_vec() }
    });
    answered.collect()
}

const BAD: [(&str, &str, u16); 6] = [
    ("/infer/tiny-embedding", "{\"documents\": [7]}", 400),
    ("/infer/tiny-embedding", "not json", 400),
    ("/infer/tiny-nli", "{\"premises\": [\"a\"], \"hypotheses\": []}", 400),
    ("/infer/nobody", "{}", 404),
    ("/v1/embeddings", "{\"model\": \"tiny-nli\", \"input\": \"a\"}", 400),
    ("/health/live", "{}", 405),
];

/// One client's traffic until it is told to stop. Returns how many answers it has seen.
fn traffic(address: SocketAddr, known: &[Known], seed: u64, stop: &AtomicBool, done: &AtomicU64) -> u64 {
    let mut random = Random(seed);
    let mut client = Client::connect(address);
    let mut answers = 0;
    while !stop.load(Ordering::Relaxed) {
        let request = &known[random.below(known.len())];
        match random.below(20) {
            0..=10 => {
                let answer = client.post(request.path, &request.body);
                assert_eq!(answer.status, 200, "{}", answer.text());
                assert!(timeless(&answer) == request.answer, "another answer than alone: {}", request.body);
                answers += 1;
            }
            11 | 12 => {
                let (path, body, status) = BAD[random.below(BAD.len())];
                let answer = client.post(path, body);
                assert_eq!(answer.status, status, "{path} {body}: {}", answer.text());
                answers += 1;
            }
            13 => {
                let ids: Vec<String> = (0..5).map(|index| format!("soak-{seed}-{index}")).collect();
                for id in &ids {
                    let length = request.body.len();
                    let head = format!("POST {} HTTP/1.1\r\nhost: x\r\nx-request-id: {id}\r\n", request.path);
                    client.send(format!("{head}content-length: {length}\r\n\r\n{}", request.body).as_bytes());
                }
                for id in &ids {
                    let answer = client.answer();
                    assert_eq!((answer.status, answer.header("x-request-id")), (200, Some(id.as_str())));
                    assert!(timeless(&answer) == request.answer, "another answer than alone: {}", request.body);
                    answers += 1;
                }
            }
            14 => {
                let path = ["/health/live", "/health/ready", "/models", "/v1/models"][random.below(4)];
                client.send(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes());
                assert_eq!(client.answer().status, 200);
                answers += 1;
            }
            15 => {
                let body = &known[0].body;
                let whole = format!(
                    "POST {} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
                    known[0].path,
                    body.len()
                );
                for piece in whole.as_bytes().chunks(1 + random.below(7)) {
                    client.send(piece);
                }
                assert_eq!(client.answer().status, 200);
                answers += 1;
            }
            16..=18 => leave(Client::connect(address), request, &mut random),
            _ => answers += garbage(Client::connect(address), &mut random),
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
    answers
}

/// A request, or a part of it, and then nobody is there any more.
fn leave(mut client: Client, request: &Known, random: &mut Random) {
    let length = request.body.len();
    let head = format!("POST {} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n", request.path);
    let bytes = [head.as_bytes(), request.body.as_bytes()].concat();
    let part = if random.below(2) == 0 { bytes.len() } else { random.below(bytes.len()) };
    client.send(&bytes[..part]);
    std::thread::sleep(Duration::from_micros(random.below(3_000) as u64));
    match random.below(3) {
        0 => {}
        1 => client.stream().shutdown(Shutdown::Write).expect("it was open"),
        // The close becomes a reset.
        _ => socket2::SockRef::from(client.stream()).set_linger(Some(Duration::ZERO)).expect("it can be set"),
    }
}

/// Bytes that are refused. Returns the answers to them: one.
fn garbage(mut client: Client, random: &mut Random) -> u64 {
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(40_000));
    let bytes =
        ["\u{1}\u{2}\r\n\r\n", "GET / HTTP/7.0\r\n\r\n", "POST / HTTP/1.1\r\nhost: x\r\n\r\n", &long][random.below(4)];
    // The server may have refused and closed before the last of it has left.
    let mut stream = client.stream();
    let _ = stream.write_all(bytes.as_bytes());
    let rest = client.rest();
    assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 4") || rest.starts_with(b"HTTP/1.1 5"), "{rest:?}");
    u64::from(!rest.is_empty())
}

/// Resident memory in the course of time, second by second.
#[derive(Default)]
struct Memory {
    kib: Vec<u64>,
}

impl Memory {
    /// How much more it is at the end than at this second, and the most that it has been since, as shares.
    fn growth(&self, from_s: usize) -> (f64, f64) {
        // Of neighbouring seconds the median, as a single one may have met a large request.
        let median = |range: &[u64]| {
            let mut sorted = range.to_vec();
            sorted.sort_unstable();
            sorted[sorted.len() / 2] as f64
        };
        let width = (self.kib.len() / 20).clamp(1, 30);
        let base = median(&self.kib[from_s..from_s + width]);
        let end = median(&self.kib[self.kib.len() - width..]);
        let most = *self.kib[from_s..].iter().max().expect("there are some") as f64;
        (end / base - 1.0, most / base - 1.0)
    }
}

#[test]
fn nothing_grows_and_everything_adds_up() {
    let minutes = std::env::var("REACTRT_SOAK_MINUTES").ok();
    let minutes = minutes.map(|text| text.parse::<u64>().expect("REACTRT_SOAK_MINUTES is a whole number"));
    let seconds = minutes.map_or(SECONDS, |minutes| minutes * 60);
    let (from_s, growth_max) = match minutes {
        Some(3..) => (120, GROWTH_MAX),
        Some(_) | None => (seconds as usize / 2, GROWTH_OF_SECONDS_MAX),
    };
    let server = Server::start();
    let known = known(server.address);
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut memory = Memory::default();
    let mut seen = known.len() as u64;
    std::thread::scope(|scope| {
        let clients: Vec<_> = (1..=CLIENTS as u64)
            .map(|seed| {
                let (address, known, stop, done) = (server.address, &known, &stop, &done);
                scope.spawn(move || traffic(address, known, seed, stop, done))
            })
            .collect();
        for second in 0..seconds {
            std::thread::sleep(Duration::from_secs(1));
            memory.kib.push(server.resident_kib());
            if second % 60 == 59 {
                println!(
                    "minute {}: {} KiB, {} acts",
                    second / 60 + 1,
                    server.resident_kib(),
                    done.load(Ordering::Relaxed)
                );
            }
            if clients.iter().any(|client| client.is_finished()) {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            seen += client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
    let metrics = quiet(&server);
    report(&metrics, &memory, from_s, seen, done.load(Ordering::Relaxed));
    check_metrics(&metrics, seen);
    let (growth, _) = memory.growth(from_s);
    assert!(growth.abs() <= growth_max, "memory went from {:?} KiB by {:.1} %", memory.kib.get(from_s), growth * 100.0);
    let (ended, words) = server.stop();
    assert!(ended, "the server ends well, and soon: {words}");
    assert!(!words.contains("not everything came home"), "{words}");
}

/// The numbers once nobody is served any more but who asks for them.
fn quiet(server: &Server) -> Metrics {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let metrics = server.metrics();
        if (metrics.sum("reactrt_jobs"), metrics.sum("reactrt_connections")) == (0, 1) {
            return metrics;
        }
        assert!(Instant::now() < until, "connections or requests stay: {}", metrics.0);
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn report(metrics: &Metrics, memory: &Memory, from_s: usize, seen: u64, acts: u64) {
    let mut by_status: BTreeMap<&str, u64> = BTreeMap::new();
    for (labels, count) in metrics.lines("reactrt_requests_total") {
        let status = labels.split("status=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
        *by_status.entry(status).or_default() += count;
    }
    let (growth, most) = memory.growth(from_s);
    println!("{} s, {acts} acts of clients, {seen} answers read; answered by status: {by_status:?}", memory.kib.len());
    println!(
        "memory: {} KiB at {from_s} s, {} at the end ({:+.2} %), at most {:+.2} % between",
        memory.kib[from_s.min(memory.kib.len() - 1)],
        memory.kib.last().expect("there are some"),
        growth * 100.0,
        most * 100.0
    );
    for name in ["connections_accepted", "connections_closed", "jobs_started", "jobs_answered", "jobs_cancelled"] {
        println!("{name}: {}", metrics.sum(&format!("reactrt_{name}_total")));
    }
}

fn check_metrics(metrics: &Metrics, seen: u64) {
    let total = |name: &str| metrics.sum(&format!("reactrt_{name}_total"));
    let gauge = |name: &str| metrics.sum(&format!("reactrt_{name}"));
    assert_eq!(total("connections_accepted"), total("connections_closed") + gauge("connections"), "connections");
    assert_eq!(total("jobs_started"), total("jobs_answered") + total("jobs_cancelled") + gauge("jobs"), "requests");
    assert_eq!((gauge("queue_tokens"), gauge("pieces_out")), (0, 0), "everything is home");
    // Who asks for the numbers is still being read.
    assert!(gauge("buffers_out") <= 2, "{} buffers are out", gauge("buffers_out"));
    assert!(total("jobs_cancelled") > 0, "nobody left in the middle");
    // The answer that these numbers are in is counted in them, and some were answered and never read.
    assert!(total("requests") > seen, "{} answered, {seen} read", total("requests"));
    for (labels, count) in metrics.lines("reactrt_requests_total") {
        let is_fault =
            ["\"500\"", "\"503\"", "\"504\"", "\"599\"", "\"429\""].iter().any(|status| labels.contains(status));
        assert!(!is_fault, "{count} answers of {labels}");
    }
    assert_eq!((total("worker_panics"), total("device_panics"), total("device_faults")), (0, 0, 0), "faults");
}
