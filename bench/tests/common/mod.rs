//! Small servers on loopback that behave, or misbehave, as a test wants, and the binary run against them.
#![allow(dead_code)] // each test uses its own part of this

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use reactrt_bench::record::Record;

/// What a server does with one request.
pub enum Reply {
    Bytes(Vec<u8>),
    /// Writes this and closes the connection.
    Last(Vec<u8>),
    After(Duration, Vec<u8>),
    /// Keeps the connection and says nothing.
    Silence,
}

#[derive(Debug)]
pub struct Request {
    /// Counted from 0 over all connections, `GET`s apart.
    pub number: u64,
    pub head: String,
    pub body: Vec<u8>,
}

impl Request {
    /// How many documents the body has.
    pub fn texts(&self) -> usize {
        let body: serde_json::Value = serde_json::from_slice(&self.body).expect("bodies are JSON");
        body["documents"].as_array().expect("documents").len()
    }
}

/// Listens on a port of the system's choosing until the test's process ends; a thread for each connection.
pub fn serve(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it has an address");
    let (answer, numbers) = (Arc::new(answer), Arc::new(AtomicU64::new(0)));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (answer, numbers) = (Arc::clone(&answer), Arc::clone(&numbers));
            std::thread::spawn(move || talk(stream.expect("a connection"), &*answer, &numbers));
        }
    });
    address
}

pub fn talk(mut stream: TcpStream, answer: &dyn Fn(&Request) -> Reply, numbers: &AtomicU64) {
    stream.set_nodelay(true).expect("a socket has no delay");
    let mut unread = Vec::new();
    // Whatever the client does to the connection ends only this thread.
    while let Some(request) = read_request(&mut stream, &mut unread, numbers) {
        let written = match answer(&request) {
            Reply::Bytes(bytes) => stream.write_all(&bytes),
            Reply::Last(bytes) => {
                let _ = stream.write_all(&bytes);
                return;
            }
            Reply::After(delay, bytes) => {
                std::thread::sleep(delay);
                stream.write_all(&bytes)
            }
            Reply::Silence => Ok(()),
        };
        if written.is_err() {
            return;
        }
    }
}

fn read_request(stream: &mut TcpStream, unread: &mut Vec<u8>, numbers: &AtomicU64) -> Option<Request> {
    let mut chunk = vec![0; 64 << 10];
    loop {
        if let Some(end) = unread.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8(unread[..end].to_vec()).expect("heads are ASCII");
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.map_or(0, |length| length.parse().expect("a length"));
            if unread.len() >= end + 4 + length {
                let body = unread[end + 4..end + 4 + length].to_vec();
                unread.drain(..end + 4 + length);
                let number = if head.starts_with("GET") { 0 } else { numbers.fetch_add(1, Ordering::Relaxed) };
                return Some(Request { number, head, body });
            }
        }
        match stream.read(&mut chunk) {
            Ok(count @ 1..) => unread.extend_from_slice(&chunk[..count]),
            Ok(0) | Err(_) => return None,
        }
    }
}

pub fn answer(status: u16, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len())
        .into()
}

/// So many vectors of four values.
pub fn vectors(count: usize) -> String {
    format!("{{\"embeddings\":[{}],\"elapsed_ms\":0.1}}", vec!["[0.25,-1.5e-3,0,12.125]"; count].join(","))
}

/// The right answer to a native request, 404 to anything else.
pub fn right(request: &Request) -> Vec<u8> {
    if request.head.starts_with("POST /infer/") {
        answer(200, &vectors(request.texts()))
    } else {
        answer(404, "{\"detail\":\"no such route\"}")
    }
}

pub fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()))
}

pub struct Outcome {
    pub code: Option<i32>,
    pub out: String,
    pub error: String,
}

pub fn bench(arguments: &[&str]) -> Outcome {
    let command = Command::new(env!("CARGO_BIN_EXE_reactrt-bench")).args(arguments).output();
    let Output { status, stdout, stderr } = command.expect("the binary runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is UTF-8");
    Outcome { code: status.code(), out: text(stdout), error: text(stderr) }
}

/// `load` against an address with words of flags, and its record.
pub fn load(address: SocketAddr, name: &str, flags: &str) -> (Outcome, Record) {
    let (url, json) = (format!("http://{address}"), file(&format!("{name}.json")));
    let mut arguments = vec!["load", "--url", &url, "--model", "m", "--json", json.to_str().expect("a path")];
    arguments.extend(flags.split_whitespace());
    let outcome = bench(&arguments);
    let text = std::fs::read_to_string(&json).unwrap_or_else(|error| panic!("{error}: {}", outcome.error));
    let _ = std::fs::remove_file(&json);
    let record = serde_json::from_str(&text).expect("a record can be read back");
    (outcome, record)
}
