//! Heads of three sizes, and whole requests as they come from a socket.

use reactrt::config::Settings;
use reactrt::http::{Connection, Limits, Step};

use super::{Amount, Case, Row, sentence};

pub fn rows() -> Vec<Row> {
    let small = b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1:8887\r\nAccept: */*\r\n\r\n".to_vec();
    let typical = head("POST /v1/embeddings HTTP/1.1", &[], "content-length: 46");
    let tracing: Vec<String> = (0..100).map(|index| format!("x-forwarded-trace-{index:02}: {index:040x}")).collect();
    // As many of them as make 4 KiB with one last line that fills up the rest.
    let room = 4096 - typical.len() - "x-rest: \r\n".len();
    let tracing = &tracing[..room / (tracing[0].len() + 2)];
    let rest = format!("x-rest: {}", "r".repeat(room - tracing.iter().map(|line| line.len() + 2).sum::<usize>()));
    let lines: Vec<&str> = tracing.iter().map(String::as_str).chain([rest.as_str()]).collect();
    let large = head("POST /v1/embeddings HTTP/1.1", &lines, "content-length: 46");
    assert_eq!(large.len(), 4096);

    let short = format!("{{\"documents\":[\"{}\"]}}", sentence(9)).into_bytes();
    let texts: Vec<String> = (0..700).map(|index| format!("\"{}\"", sentence(index))).collect();
    let mut long = format!("{{\"documents\":[{}", texts.join(",")).into_bytes();
    long.truncate((64 << 10) - 3);
    long.extend(b"\"]}");
    vec![
        Head::row("small GET", small, "/health/live"),
        Head::row("typical POST", typical, "/v1/embeddings"),
        Head::row("4 KiB POST", large, "/v1/embeddings"),
        Feed::row("one text in one read", sized(&short), usize::MAX, &short),
        Feed::row("one text byte by byte", sized(&short), 1, &short),
        Feed::row("64 KiB in reads of 4 KiB", sized(&long), 4096, &long),
        Feed::row("64 KiB chunked in reads of 4 KiB", chunked(&long), 4096, &long),
    ]
}

/// A head as the usual clients send it.
fn head(line: &str, extra: &[&str], last: &str) -> Vec<u8> {
    let usual = [
        "Host: 127.0.0.1:8887",
        "User-Agent: python-requests/2.32.3",
        "Accept-Encoding: gzip, deflate",
        "Accept: application/json",
        "Connection: keep-alive",
        "Content-Type: application/json",
        "Authorization: Bearer EMPTY",
        "X-Request-Id: 4f7d2c9a-7f0e-4c58-9d0b-6a1d0c2f3e44",
    ];
    let lines = [line].into_iter().chain(usual).chain(extra.iter().copied()).chain([last, "", ""]);
    lines.collect::<Vec<&str>>().join("\r\n").into_bytes()
}

fn sized(body: &[u8]) -> Vec<u8> {
    let mut bytes = head("POST /infer/model HTTP/1.1", &[], &format!("content-length: {}", body.len()));
    bytes.extend(body);
    bytes
}

/// The same body in chunks of 1,000 bytes.
fn chunked(body: &[u8]) -> Vec<u8> {
    let mut bytes = head("POST /infer/model HTTP/1.1", &[], "transfer-encoding: chunked");
    for chunk in body.chunks(1_000) {
        bytes.extend(format!("{:x}\r\n", chunk.len()).bytes());
        bytes.extend(chunk);
        bytes.extend(b"\r\n");
    }
    bytes.extend(b"0\r\n\r\n");
    bytes
}

fn limits() -> Limits {
    let limits = Settings::default().limits;
    Limits {
        head_bytes_max: limits.head_bytes_max,
        target_bytes_max: limits.head_bytes_max / 2,
        headers_max: 100,
        body_bytes_max: limits.body_bytes_max,
        chunk_extra_bytes_max: limits.head_bytes_max,
    }
}

/// A head that lies in the buffer as a whole: the search for its end, and its parse.
#[derive(Debug)]
struct Head {
    limits: Limits,
    bytes: Vec<u8>,
    path: &'static str,
    step: Step,
}

impl Head {
    fn row(what: &str, bytes: Vec<u8>, path: &'static str) -> Row {
        let amount = Amount::Bytes(bytes.len() as u64);
        let name = format!("head/{what}, {} bytes", bytes.len());
        Row::new(name, amount, Head { limits: limits(), bytes, path, step: Step::Nothing })
    }
}

impl Case for Head {
    fn run(&mut self, _slot: usize) -> u64 {
        self.step = Connection::new().advance(&mut self.bytes, &self.limits);
        u64::from(matches!(self.step, Step::Head(_) | Step::Request(_)))
    }

    fn check(&mut self, returned: u64) {
        let head = match self.step {
            Step::Head(head) => head,
            Step::Request(request) => request.head,
            Step::NeedMore { .. } | Step::Continue | Step::Refuse(_) | Step::Nothing => panic!("{:?}", self.step),
        };
        assert_eq!((returned, head.path.of(&self.bytes)), (1, self.path.as_bytes()));
        let body_bytes = if self.path == "/health/live" { 0 } else { 46 };
        assert_eq!(head.body_bytes, Some(body_bytes));
    }
}

/// A request on a connection that stays open, received in reads of a fixed size.
#[derive(Debug)]
struct Feed {
    limits: Limits,
    input: Vec<u8>,
    read_bytes: usize,
    body: Vec<u8>,
    connection: Connection,
    buffer: Vec<u8>,
    found: std::ops::Range<usize>,
}

impl Feed {
    fn row(what: &str, input: Vec<u8>, read_bytes: usize, body: &[u8]) -> Row {
        let amount = Amount::Bytes(input.len() as u64);
        let feed = Feed {
            limits: limits(),
            buffer: Vec::with_capacity(input.len()),
            input,
            read_bytes,
            body: body.to_vec(),
            connection: Connection::new(),
            found: 0..0,
        };
        Row::new(format!("request/{what}"), amount, feed)
    }

    /// What the reactor does after a read: the body's place once the request is complete.
    fn advance(&mut self) -> Option<std::ops::Range<usize>> {
        loop {
            match self.connection.advance(&mut self.buffer, &self.limits) {
                Step::NeedMore { filled, .. } => {
                    self.buffer.truncate(filled);
                    return None;
                }
                Step::Head(_) => {}
                Step::Request(request) => {
                    assert!(self.connection.finish().keep_alive);
                    return Some(request.body.range());
                }
                Step::Continue | Step::Refuse(_) | Step::Nothing => panic!("the request is in order"),
            }
        }
    }
}

impl Case for Feed {
    fn run(&mut self, _slot: usize) -> u64 {
        self.buffer.clear();
        let mut start = 0;
        while start < self.input.len() {
            let end = start.saturating_add(self.read_bytes).min(self.input.len());
            self.buffer.extend_from_slice(&self.input[start..end]);
            start = end;
            if let Some(found) = self.advance() {
                self.found = found;
            }
        }
        self.found.len() as u64
    }

    fn check(&mut self, returned: u64) {
        assert_eq!(returned, self.body.len() as u64);
        assert_eq!(self.buffer[self.found.clone()], self.body);
        self.found = 0..0;
    }
}
