//! One request before a run, and a look at the server's counters around it: plain, blocking exchanges.
//!
//! The probe tells a wrong target at once, in the server's own words, and what a run must know beforehand: the dimension of
//! vectors, the stages that the server names, how large an answer is and how long one takes.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::check::{Checker, Shape};
use crate::client::{Answer, Reading};
use crate::drive::Check;
use crate::fault::Fault;
use crate::target::Place;

/// Stages of `Server-Timing` that are followed.
const STAGES_MAX: usize = 16;

/// What the probe has found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    pub address: SocketAddr,
    pub dimension: Option<u32>,
    pub stages: Vec<String>,
    pub answer_bytes: usize,
    pub latency_ns: u64,
}

/// A whole answer with its bytes.
struct Received {
    bytes: Vec<u8>,
    answer: Answer,
    took: Duration,
}

/// Sends `request`, which has `texts` texts, and looks at the answer.
///
/// # Errors
/// One line that says what is wrong with the target.
pub fn probe(
    place: &Place,
    request: &[u8],
    texts: u32,
    shape: Shape,
    dimension: Option<u32>,
    check: Check,
    timeout: Duration,
) -> Result<Probe, String> {
    let mut refused = None;
    for &address in &place.addresses {
        match exchange(address, request, timeout) {
            Ok(received) => {
                return look_at(received, address, texts, shape, dimension, check)
                    .map_err(|error| format!("{}{}: {error}", place.url, path_of(request)));
            }
            Err(fault) => refused = Some((address, fault)),
        }
    }
    let (address, fault) = refused.ok_or(format!("{}: the host has no address", place.url))?;
    let hint = match fault {
        Fault::Refused => "; nothing listens there",
        Fault::NotHttp => "; is this the right port?",
        _ => "",
    };
    Err(format!("{} ({address}): {fault}{hint}", place.url))
}

fn look_at(
    received: Received,
    address: SocketAddr,
    texts: u32,
    shape: Shape,
    dimension: Option<u32>,
    check: Check,
) -> Result<Probe, String> {
    let Received { bytes, answer, took } = received;
    let body = &bytes[answer.body.clone()];
    if answer.status != 200 && check != Check::None {
        return Err(format!("answered {}: {}", answer.status, words_of(body)));
    }
    let mut found = dimension;
    if check == Check::Full {
        let content = Checker::new(shape, dimension, texts, false).check(body, texts).map_err(|fault| {
            let begin = String::from_utf8_lossy(&body[..body.len().min(120)]).into_owned();
            format!("the answer is not what was asked for: {fault}; it begins {begin:?}")
        })?;
        found = dimension.or((content.dimension > 0).then_some(content.dimension));
    }
    let stages = stages_of(&bytes[answer.timing.clone()]);
    Ok(Probe { address, dimension: found, stages, answer_bytes: bytes.len(), latency_ns: took.as_nanos() as u64 })
}

/// The path of a request, for messages.
fn path_of(request: &[u8]) -> &str {
    let line = request.split(|&byte| byte == b'\r').next().unwrap_or_default();
    std::str::from_utf8(line).ok().and_then(|line| line.split(' ').nth(1)).unwrap_or_default()
}

fn stages_of(timing: &[u8]) -> Vec<String> {
    let text = std::str::from_utf8(timing).unwrap_or_default();
    let entries = text.split(',').filter(|entry| entry.contains("dur="));
    let names = entries.filter_map(|entry| entry.split(';').next()).map(|name| name.trim().to_owned());
    names.take(STAGES_MAX).collect()
}

/// What a server says in an error, in any family's shape; else the beginning of the body.
fn words_of(body: &[u8]) -> String {
    let parsed: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let from = |value: &serde_json::Value| {
        let places = [&value["error"]["message"], &value["error"], &value["detail"], &value["message"]];
        places.into_iter().find_map(|place| place.as_str().map(str::to_owned))
    };
    let words = parsed.as_ref().and_then(from).unwrap_or_else(|| String::from_utf8_lossy(body).into_owned());
    let line: String = words.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(300) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None if line.is_empty() => "without a word".to_owned(),
        None => line,
    }
}

fn exchange(address: SocketAddr, request: &[u8], timeout: Duration) -> Result<Received, Fault> {
    let blocked = |error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Fault::TimedOut,
        _ => Fault::from(&error),
    };
    let start = Instant::now();
    let mut stream = TcpStream::connect_timeout(&address, timeout).map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => Fault::ConnectTimedOut,
        _ => Fault::from(&error),
    })?;
    stream.set_nodelay(true).map_err(blocked)?;
    stream.set_write_timeout(Some(timeout)).map_err(blocked)?;
    let sent = stream.write_all(request);
    let (mut reading, mut bytes, mut chunk) = (Reading::new(), Vec::new(), vec![0; 64 << 10]);
    loop {
        let left = timeout.checked_sub(start.elapsed()).filter(|left| !left.is_zero()).ok_or(Fault::TimedOut)?;
        stream.set_read_timeout(Some(left)).map_err(blocked)?;
        let answer = match stream.read(&mut chunk) {
            Ok(0) => Some(reading.close(&bytes)?),
            Ok(count) => {
                bytes.extend_from_slice(&chunk[..count]);
                let mut filled = bytes.len();
                let answer = reading.advance(&mut bytes, &mut filled)?;
                bytes.truncate(filled);
                answer
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => None,
            // What kept the request from being written was first.
            Err(error) => return Err(blocked(sent.err().unwrap_or(error))),
        };
        if let Some(answer) = answer {
            return Ok(Received { bytes, answer, took: start.elapsed() });
        }
    }
}

/// The server's counters at one moment.
#[derive(Clone, Debug)]
pub struct Counters {
    at: Instant,
    /// By name, summed over labels; those of models by name and model too.
    values: BTreeMap<String, f64>,
}

/// What a server counted between two moments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counted {
    pub mean_batch: Option<f64>,
    pub batch_fill: Option<f64>,
    pub tokens: Option<u64>,
    pub elapsed_s: f64,
}

/// `/metrics`, where there is such a thing.
pub fn counters(place: &Place, address: SocketAddr) -> Option<Counters> {
    let request =
        format!("GET {}/metrics HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", place.base, place.authority);
    let received = exchange(address, request.as_bytes(), Duration::from_secs(2)).ok()?;
    let text = std::str::from_utf8(&received.bytes[received.answer.body.clone()]).ok()?;
    (received.answer.status == 200).then(|| Counters { at: Instant::now(), values: read(text) })
}

fn read(text: &str) -> BTreeMap<String, f64> {
    let mut values: BTreeMap<String, f64> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((key, value)) = line.rsplit_once(' ') else { continue };
        let Ok(value) = value.parse::<f64>() else { continue };
        let (name, labels) = key.split_once('{').unwrap_or((key, ""));
        *values.entry(name.to_owned()).or_default() += value;
        if let Some(model) = labels.split("model=\"").nth(1).and_then(|rest| rest.split('"').next()) {
            *values.entry(format!("{name} {model}")).or_default() += value;
        }
    }
    values
}

impl Counters {
    pub fn until(&self, later: &Counters, model: &str) -> Counted {
        let difference = |name: &str| Some(later.values.get(name)? - self.values.get(name).unwrap_or(&0.0));
        let ratio = |of: &str, to: &str| {
            let (of, to) = (difference(of)?, difference(to)?);
            (to > 0.0).then_some(of / to)
        };
        let ours = ratio("reactrt_batch_sequences_total", "reactrt_batches_total");
        Counted {
            mean_batch: ours.or_else(|| ratio("te_batch_next_size_sum", "te_batch_next_size_count")),
            batch_fill: ratio("reactrt_batch_tokens_total", "reactrt_bucket_tokens_total"),
            tokens: difference(&format!("reactrt_tokens_total {model}")).map(|tokens| tokens.max(0.0) as u64),
            elapsed_s: (later.at - self.at).as_secs_f64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_servers_own_words() {
        assert_eq!(words_of(br#"{"detail":"model nope not found"}"#), "model nope not found");
        assert_eq!(words_of(br#"{"error":{"message":"no","type":"x"}}"#), "no");
        assert_eq!(words_of(br#"{"error":"no","error_type":"x"}"#), "no");
        assert_eq!(words_of(br#"{"message":"no","code":1}"#), "no");
        assert_eq!(words_of(b"<html>\n  <h1>no</h1>"), "<html> <h1>no</h1>");
        assert_eq!(words_of(b""), "without a word");
        assert_eq!(words_of("é".repeat(1000).as_bytes()).chars().count(), 301);
    }

    #[test]
    fn counters_become_ratios() {
        let at = Instant::now();
        let before =
            "# HELP x y\nreactrt_batches_total{device=\"0\"} 10\nreactrt_batch_sequences_total{device=\"0\"} 10\n";
        let after = "reactrt_batches_total{device=\"0\"} 20\nreactrt_batches_total{device=\"1\"} 10\n\
            reactrt_batch_sequences_total{device=\"0\"} 90\nreactrt_batch_tokens_total{device=\"0\"} 30\n\
            reactrt_bucket_tokens_total{device=\"0\"} 40\nreactrt_tokens_total{model=\"a\"} 7\nreactrt_tokens_total{model=\"b\"} 9\n";
        let before = Counters { at, values: read(before) };
        let after = Counters { at: at + Duration::from_secs(2), values: read(after) };
        let counted = before.until(&after, "b");
        let expected = Counted { mean_batch: Some(4.0), batch_fill: Some(0.75), tokens: Some(9), elapsed_s: 2.0 };
        assert_eq!(counted, expected);
        let nothing = before.until(&before, "b");
        assert_eq!((nothing.mean_batch, nothing.batch_fill, nothing.tokens), (None, None, None));
    }
}
