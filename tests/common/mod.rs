//! A whole server inside a test: small models of our own, a simulated or the CPU device, a port of the system's choosing.
#![allow(dead_code)] // each test uses its own part of this

pub mod command;
pub mod process;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use reactrt::config::{DeviceName, Devices, ModelSettings, Settings, When};
use reactrt::model::Task;
use reactrt::serve::{Account, Server};

pub fn fixture(name: &str) -> String {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models").join(name).display().to_string()
}

/// Settings for three small models, one of each task, on the given device.
pub fn settings(device: DeviceName) -> Settings {
    let mut settings = Settings::defaults(2);
    settings.server.port = 0;
    settings.devices = Devices::List(vec![device]);
    settings.threads.pin = When::Never;
    settings.sim.base_us = 0;
    settings.sim.us_per_1k_tokens = 0;
    settings.models = vec![
        ModelSettings::new(Task::Embedding, "embed", &fixture("bert-embedding-mean"), "tests"),
        ModelSettings::new(Task::Reranking, "rank", &fixture("bert-reranker"), "tests"),
        ModelSettings::new(Task::Nli, "nli", &fixture("bert-nli"), "tests"),
    ];
    settings
}

/// A server that is stopped, joined and checked when the test ends.
pub struct Running {
    server: Option<Server>,
    pub address: SocketAddr,
}

pub fn start(settings: Settings) -> Running {
    let server = Server::start(settings).unwrap_or_else(|error| panic!("the server does not start: {error}"));
    Running { address: server.address(), server: Some(server) }
}

impl Running {
    pub fn connect(&self) -> Client {
        Client::connect(self.address)
    }

    /// One request on a connection of its own.
    pub fn post(&self, path: &str, body: &str) -> Answer {
        self.connect().post(path, body)
    }

    pub fn get(&self, path: &str) -> Answer {
        let mut client = self.connect();
        client.send(format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n").as_bytes());
        client.answer()
    }

    pub fn stopper(&self) -> reactrt::serve::Stopper {
        self.server.as_ref().expect("running").stopper()
    }

    /// Stops and shows what did not come home.
    pub fn stop(mut self) -> Account {
        let server = self.server.take().expect("stopped once");
        server.stopper().stop();
        server.join().expect("the server ends well")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stopper().stop();
            let account = server.join().expect("the server ends well");
            if !std::thread::panicking() {
                assert_eq!(account, Account::default(), "every part is home at exit");
            }
        }
    }
}

/// The value of a metric without labels, or with these: `name{label="x"}`.
pub fn metric(metrics: &Answer, name: &str) -> u64 {
    let found = metrics.text().lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("{name} is shown")).parse().expect("a whole number")
}

/// A plain blocking client that reads exactly one answer at a time.
pub struct Client {
    stream: TcpStream,
    unread: Vec<u8>,
}

#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("answers are UTF-8")
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

impl Client {
    pub fn connect(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout can be set");
        stream.set_nodelay(true).expect("a socket has no delay");
        Client { stream, unread: Vec::new() }
    }

    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    pub fn send_post(&mut self, path: &str, body: &str) {
        let length = body.len();
        let head = format!("POST {path} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n");
        self.send(format!("{head}content-length: {length}\r\n\r\n{body}").as_bytes());
    }

    pub fn post(&mut self, path: &str, body: &str) -> Answer {
        self.send_post(path, body);
        self.answer()
    }

    /// Reads one answer with its body.
    pub fn answer(&mut self) -> Answer {
        self.answer_to("GET")
    }

    /// Reads one answer to this method; one to HEAD has no body.
    pub fn answer_to(&mut self, method: &str) -> Answer {
        let end = loop {
            if let Some(end) = self.unread.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            assert!(self.read_more(), "closed inside a head: {:?}", String::from_utf8_lossy(&self.unread));
        };
        let head = String::from_utf8(self.unread[..end].to_vec()).expect("heads are ASCII");
        let status = head[9..12].parse().expect("a status");
        let mut answer = Answer { status, head, body: Vec::new() };
        let length: usize = answer.header("content-length").map_or(0, |length| length.parse().expect("a length"));
        let length = if method == "HEAD" || status == 100 { 0 } else { length };
        while self.unread.len() < end + length {
            assert!(self.read_more(), "closed inside a body");
        }
        answer.body = self.unread[end..end + length].to_vec();
        self.unread.drain(..end + length);
        answer
    }

    /// Everything until the server closes.
    pub fn rest(&mut self) -> Vec<u8> {
        while self.read_more() {}
        std::mem::take(&mut self.unread)
    }

    /// Whether the server has closed, with nothing more to read.
    pub fn is_closed(&mut self) -> bool {
        self.unread.is_empty() && !self.read_more()
    }

    fn read_more(&mut self) -> bool {
        let mut chunk = [0; 64 << 10];
        match self.stream.read(&mut chunk) {
            Ok(0) => false,
            Ok(read) => {
                self.unread.extend_from_slice(&chunk[..read]);
                true
            }
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => false,
            Err(error) => panic!("reading an answer: {error}"),
        }
    }
}
