//! What clients ask, as bytes, and what they may be answered.
//!
//! A good request of texts knows its texts, so its vectors can be told beforehand; everything else knows its status. What may
//! come instead, and in which words, is decided by what can go wrong in this world.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use base64::Engine as _;
use reactrt::config::ModelSettings;
use reactrt::device::sim;
use reactrt::model::{Model, Task};
use reactrt::serve::load_model;
use reactrt::tokenize::{Cut, Tokenizer};
use serde_json::{Value, json};

use super::random::Random;

/// A served model, read once for all worlds.
#[derive(Debug)]
pub struct Known {
    pub model: Arc<Model>,
    pub tokenizer: Tokenizer,
    pub width: usize,
    pub vocabulary: u32,
}

pub fn models() -> &'static [Known] {
    static MODELS: OnceLock<Vec<Known>> = OnceLock::new();
    MODELS.get_or_init(|| {
        let folders = [
            (Task::Embedding, "embed", "bert-embedding-mean"),
            (Task::Reranking, "rank", "bert-reranker"),
            (Task::Nli, "nli", "bert-nli"),
            (Task::Embedding, "wide", "roberta-embedding"),
        ];
        let known = folders.map(|(task, name, folder)| {
            let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models").join(folder);
            let model = load_model(&ModelSettings::new(task, name, &path.display().to_string(), "simulation"))
                .unwrap_or_else(|error| panic!("{folder}: {error}"));
            let tokenizer = Tokenizer::load(&model.tokenizer).unwrap_or_else(|error| panic!("{folder}: {error}"));
            let vocabulary = model.geometry.as_ref().map_or(0, |geometry| geometry.vocabulary) as u32;
            Known { width: sim::width(&model), model: Arc::new(model), tokenizer, vocabulary }
        });
        known.into()
    })
}

/// What one sequence is made of.
#[derive(Clone, Debug)]
pub enum Sequence {
    Text(String),
    Pair(String, String),
    Ids(Vec<u32>),
}

/// How the values lie in the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Native,
    OpenAi,
    Base64,
}

#[derive(Clone, Debug)]
pub enum Wanted {
    Values {
        model: usize,
        sequences: Vec<Sequence>,
        shape: Shape,
    },
    /// Refused with this status: by a worker that has looked into the body, or by the reactor alone.
    Refused {
        status: u16,
        by_worker: bool,
    },
    System,
    /// No key of this server's is shown; `or_too_large`: it may also be refused for its length, unseen.
    Unauthorized {
        or_too_large: bool,
    },
    /// No request at all: refused in some way, and then closed.
    Garbage,
}

/// What a server asks of all requests alike.
#[derive(Clone, Debug, Default)]
pub struct House {
    pub keys: Vec<String>,
    pub origins: Vec<String>,
    /// How long a request may take that does not say so itself.
    pub request_ms: Option<u32>,
}

/// One request.
#[derive(Clone, Debug)]
pub struct Ask {
    pub bytes: Vec<u8>,
    pub id: String,
    pub wanted: Wanted,
    pub is_head: bool,
    /// Where the client waits for leave to go on, if it does.
    pub hold_at: Option<usize>,
    pub expects_continue: bool,
    /// How long it may take; `None` too if nothing of it takes time.
    pub limit_ms: Option<u32>,
    /// The web page that may read its answer.
    pub permitted: Option<String>,
}

/// When an answer came to be, on the server's clock.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// The request's last byte was sent.
    pub sent_ns: u64,
    /// The server took that byte, and had nothing to do before it looked at it.
    pub taken_ns: Option<u64>,
    /// The answer's first byte was written.
    pub written_ns: u64,
    /// The turn before the one that wrote it, unless the answer may have waited for the network since then.
    pub turn_before_ns: Option<u64>,
}

/// What can go wrong in a world, so that a client may be told so.
#[derive(Clone, Debug, Default)]
pub struct Excuses {
    pub seed: u64,
    pub nan_rate: f64,
    /// Words that a refusal for our reasons may have, by status.
    pub words: BTreeSet<(u16, &'static str)>,
}

pub const QUEUE_FULL: (u16, &str) = (429, "the queue is full");
pub const NO_BUFFERS: (u16, &str) = (503, "all buffers are in use");
pub const DRAINING: (u16, &str) = (503, "the server is shutting down");
pub const DEVICE_DEAD: (u16, &str) = (503, "the device that ran this model is gone");
pub const REFUSED: (u16, &str) = (503, "it refused the batch");
pub const FAILED: (u16, &str) = (503, "the batch failed");
pub const HUNG: (u16, &str) = (503, "the batch did not end in time");
pub const PANICKED: (u16, &str) = (500, "an internal error ended this request");
pub const TOO_SLOW: (u16, &str) = (408, "took too long to arrive");

const WORDS: [&str; 24] = [
    "the", "weather", "is", "lovely", "today", "a", "cat", "sat", "on", "mat", "rain", "in", "spain", "stays",
    "mainly", "plain", "who", "asks", "what", "nobody", "knows", "über", "naïve", "42",
];

fn text(random: &mut Random) -> String {
    let words = match random.below(12) {
        0 => 0,
        1 => random.between(40, 120),
        _ => random.between(1, 9),
    };
    (0..words).map(|_| random.pick(&WORDS)).collect::<Vec<_>>().join(" ")
}

/// Bounds that decide what is refused.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub texts_max: usize,
    pub text_bytes_max: usize,
    pub body_bytes_max: usize,
    pub answer_bytes_max: usize,
}

impl Ask {
    pub fn new(random: &mut Random, id: String, bounds: &Bounds, house: &House) -> Ask {
        let mut ask = match random.below(20) {
            0..=12 => good(random, id, bounds),
            13..=16 => bad(random, id, bounds),
            17 => return garbage(random, id),
            _ => system(random, id),
        };
        ask.show_key(random, house);
        ask.come_from_page(random, house);
        ask.limit(random, house);
        ask
    }

    /// Fields behind the first one.
    fn add(&mut self, fields: &str) {
        const FIRST: &[u8] = b"\r\nhost: x\r\n";
        let place = self.bytes.windows(FIRST.len()).position(|window| window == FIRST).expect("all name a host");
        let place = place + FIRST.len();
        self.bytes.splice(place..place, fields.bytes());
        self.hold_at = self.hold_at.map(|hold_at| hold_at + fields.len());
    }

    fn show_key(&mut self, random: &mut Random, house: &House) {
        let Some(key) = house.keys.first() else {
            if random.one_in(8) {
                self.add("authorization: Bearer of-nothing\r\n");
            }
            return;
        };
        let key = if random.one_in(2) { house.keys.last().unwrap_or(key) } else { key };
        let shown = match random.below(16) {
            0..=5 => format!("authorization: Bearer {key}\r\n"),
            6..=9 => format!("x-api-key: {key}\r\n"),
            10 => format!("authorization: Basic abc\r\nx-api-key: {key}\r\n"),
            11 => String::new(),
            12 => format!("authorization: Bearer {key}x\r\n"),
            13 => format!("x-api-key: {}\r\n", &key[..key.len() - 1]),
            14 => format!("authorization: Basic {key}\r\n"),
            _ => "x-api-key: another\r\n".to_owned(),
        };
        let is_right =
            shown.ends_with(&format!("Bearer {key}\r\n")) || shown.ends_with(&format!("x-api-key: {key}\r\n"));
        let is_open =
            self.bytes.starts_with(b"OPTIONS ") || self.bytes.windows(8).take(12).any(|path| path == b" /health");
        self.add(&shown);
        if !is_right && !is_open {
            let or_too_large = matches!(self.wanted, Wanted::Refused { status: 413, by_worker: false });
            self.wanted = Wanted::Unauthorized { or_too_large };
        }
    }

    fn come_from_page(&mut self, random: &mut Random, house: &House) {
        if random.one_in(4) {
            let origin = random.pick(&["https://a.example", "https://b.example", "null"]);
            self.add(&format!("origin: {origin}\r\n"));
            let is_permitted = |listed: &&String| *listed == "*" || *listed == origin;
            self.permitted = house.origins.iter().find(is_permitted).cloned();
        }
    }

    /// How long it is worth waiting for, in its own words or the server's.
    fn limit(&mut self, random: &mut Random, house: &House) {
        let mut limit_ms = house.request_ms;
        if random.one_in(3) {
            let most = u64::from(u32::MAX);
            let given_ms = random.pick(&[0, 1, 1, 2, 10, 40, 45, 100, 1_000, 60_000, most, most + 1, u64::MAX]);
            // More than a month is as good as for ever.
            limit_ms = Some(given_ms.min(most) as u32);
            self.add(&format!("x-request-timeout-ms: {given_ms}\r\n"));
        } else if !self.is_head && random.one_in(40) {
            let value = random.pick(&["", "soon", "-1", "1.5", "5\r\nX-Request-Timeout-Ms: 5"]);
            self.add(&format!("x-request-timeout-ms: {value}\r\n"));
            self.wanted = Wanted::Garbage;
        }
        let takes_time = matches!(self.wanted, Wanted::Values { .. } | Wanted::Refused { by_worker: true, .. });
        self.limit_ms = limit_ms.filter(|_| takes_time);
    }

    fn plain(bytes: Vec<u8>, id: String, wanted: Wanted) -> Ask {
        Ask {
            bytes,
            id,
            wanted,
            is_head: false,
            hold_at: None,
            expects_continue: false,
            limit_ms: None,
            permitted: None,
        }
    }

    /// A request of so many texts.
    pub fn of_texts(random: &mut Random, id: String, count: usize) -> Ask {
        let sequences = (0..count).map(|_| Sequence::Text(text(random))).collect();
        values(random, id, 0, sequences, Shape::Native)
    }
}

fn good(random: &mut Random, id: String, bounds: &Bounds) -> Ask {
    let count = match random.below(10) {
        0..=5 => 1,
        6..=8 => random.between(2, 8),
        _ => random.between(9, 60),
    };
    let model = random.below(models().len());
    let shape = random.pick(&[Shape::Native, Shape::Native, Shape::OpenAi, Shape::Base64]);
    let shape = if models()[model].model.task == Task::Nli { Shape::Native } else { shape };
    // An empty text is one that OpenAI's family refuses.
    let some = |random: &mut Random| {
        let text = text(random);
        if text.is_empty() && shape != Shape::Native { "x".to_owned() } else { text }
    };
    let query = some(random);
    let ids = shape != Shape::Native && models()[model].model.task == Task::Embedding && random.one_in(3);
    let sequences: Vec<Sequence> = (0..count)
        .map(|_| match models()[model].model.task {
            Task::Embedding if ids => {
                let length = random.between(1, 20);
                Sequence::Ids((0..length).map(|_| random.below(500) as u32).collect())
            }
            Task::Embedding => Sequence::Text(some(random)),
            Task::Reranking => Sequence::Pair(query.clone(), some(random)),
            Task::Nli => Sequence::Pair(some(random), some(random)),
        })
        .collect();
    let ask = values(random, id, model, sequences, shape);
    let too_large = ask.bytes.len() > bounds.body_bytes_max.min(bounds.answer_bytes_max / 2);
    if too_large { Ask::of_texts(random, ask.id, 1) } else { ask }
}

fn values(random: &mut Random, id: String, model: usize, sequences: Vec<Sequence>, shape: Shape) -> Ask {
    let known = &models()[model];
    let second = |sequence: &Sequence| match sequence {
        Sequence::Text(text) | Sequence::Pair(_, text) => json!(text),
        Sequence::Ids(ids) => json!(ids),
    };
    let firsts = || {
        sequences.iter().filter_map(|sequence| match sequence {
            Sequence::Pair(first, _) => Some(first.clone()),
            Sequence::Text(_) | Sequence::Ids(_) => None,
        })
    };
    let seconds: Vec<Value> = sequences.iter().map(second).collect();
    let query = firsts().next();
    let body = match (shape, known.model.task) {
        (Shape::Native, Task::Embedding) => json!({"documents": seconds}),
        (Shape::Native, Task::Reranking) => json!({"query": query, "documents": seconds}),
        (Shape::Native, Task::Nli) => json!({"premises": firsts().collect::<Vec<_>>(), "hypotheses": seconds}),
        (Shape::OpenAi | Shape::Base64, _) => {
            let format = if shape == Shape::Base64 { "base64" } else { "float" };
            let mut body = json!({"model": known.model.name, "input": seconds, "encoding_format": format});
            if let Some(query) = query {
                body["query"] = json!(query);
            }
            body
        }
    };
    let path = match shape {
        Shape::Native => format!("/infer/{}", known.model.name),
        Shape::OpenAi | Shape::Base64 => "/v1/embeddings".to_owned(),
    };
    post(random, id, &path, &body.to_string(), Wanted::Values { model, sequences, shape })
}

fn bad(random: &mut Random, id: String, bounds: &Bounds) -> Ask {
    let worker = |status| Wanted::Refused { status, by_worker: true };
    let long = vec!["word"; 400].join(" ");
    let (path, body, wanted) = match random.below(16) {
        0 => ("/infer/embed", "{\"documents\": [\"a\"".into(), worker(400)),
        1 => ("/infer/embed", "{\"documents\": [7]}".into(), worker(400)),
        2 => ("/infer/rank", "{\"documents\": [\"a\"]}".into(), worker(400)),
        3 => ("/infer/nli", "{\"premises\": [\"a\", \"b\"], \"hypotheses\": [\"c\"]}".into(), worker(400)),
        4 => ("/infer/embed", "{\"documents\": []}".into(), worker(400)),
        5 => ("/infer/embed", "not json at all".into(), worker(400)),
        6 => ("/infer/embed", json!({"documents": ["fine", long], "truncate": false}).to_string(), worker(400)),
        7 => ("/v1/embeddings", json!({"model": "embed", "input": [[1, 2], [99_999]]}).to_string(), worker(400)),
        8 => ("/v1/embeddings", json!({"model": "nobody", "input": "a"}).to_string(), worker(404)),
        9 => ("/v1/embeddings", json!({"model": "nli", "input": "a"}).to_string(), worker(400)),
        10 => {
            let texts = vec!["a"; bounds.texts_max + 1];
            ("/infer/embed", json!({"documents": texts}).to_string(), worker(413))
        }
        11 => {
            let text = "x".repeat(bounds.text_bytes_max + 1);
            ("/infer/embed", json!({"documents": [text]}).to_string(), worker(413))
        }
        12 => {
            let text = "x".repeat(bounds.body_bytes_max);
            (
                "/infer/embed",
                json!({"documents": [text]}).to_string(),
                Wanted::Refused { status: 413, by_worker: false },
            )
        }
        13 => ("/infer/nobody", "{}".into(), Wanted::Refused { status: 404, by_worker: false }),
        14 => ("/nowhere", "{}".into(), Wanted::Refused { status: 404, by_worker: false }),
        _ => ("/health/live", "{}".into(), Wanted::Refused { status: 405, by_worker: false }),
    };
    post(random, id, path, &body, wanted)
}

fn garbage(random: &mut Random, id: String) -> Ask {
    let bytes: Vec<u8> = match random.below(6) {
        0 => (0..random.between(1, 300)).map(|_| random.next() as u8).chain(*b"\r\n\r\n").collect(),
        1 => b"GET / HTTP/3.0\r\nhost: x\r\n\r\n".to_vec(),
        2 => b"POST /infer/embed HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcdef".to_vec(),
        3 => b"POST /infer/embed HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
        4 => [b"GET /".to_vec(), vec![b'a'; 20_000], b" HTTP/1.1\r\nhost: x\r\n\r\n".to_vec()].concat(),
        _ => b"POST /infer/embed HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n".to_vec(),
    };
    Ask::plain(bytes, id, Wanted::Garbage)
}

fn system(random: &mut Random, id: String) -> Ask {
    let path = random.pick(&["/health/live", "/health/ready", "/models", "/v1/models", "/metrics"]);
    let method = random.pick(&["GET", "GET", "HEAD", "OPTIONS"]);
    let bytes = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nx-request-id: {id}\r\n\r\n").into_bytes();
    Ask { is_head: method == "HEAD", ..Ask::plain(bytes, id, Wanted::System) }
}

fn post(random: &mut Random, id: String, path: &str, body: &str, wanted: Wanted) -> Ask {
    let is_old = random.one_in(12);
    let version = if is_old { "1.0" } else { "1.1" };
    let mut head = format!("POST {path} HTTP/{version}\r\nhost: x\r\nx-request-id: {id}\r\n");
    let expects_continue = !is_old && random.one_in(8);
    if expects_continue {
        head += "expect: 100-continue\r\n";
    }
    if random.one_in(10) {
        head += if is_old { "connection: keep-alive\r\n" } else { "connection: close\r\n" };
    }
    let mut bytes;
    let hold_at;
    if !is_old && random.one_in(6) {
        bytes = (head + "transfer-encoding: chunked\r\n\r\n").into_bytes();
        hold_at = bytes.len();
        let chunk_max = random.pick(&[3, 50, 100_000]);
        for chunk in body.as_bytes().chunks(chunk_max) {
            bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
            bytes.extend_from_slice(chunk);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"0\r\n\r\n");
    } else {
        write!(head, "content-length: {}\r\n\r\n", body.len()).expect("a string takes all");
        bytes = head.into_bytes();
        hold_at = bytes.len();
        bytes.extend_from_slice(body.as_bytes());
    }
    let hold_at = (expects_continue && random.one_in(2)).then_some(hold_at);
    Ask { hold_at, expects_continue, ..Ask::plain(bytes, id, wanted) }
}

/// One answer as it came.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    pub fn closes(&self) -> bool {
        self.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
    }

    fn words(&self) -> String {
        let body: Value = serde_json::from_slice(&self.body).unwrap_or(Value::Null);
        let native = body["detail"].as_str();
        native.or(body["error"]["message"].as_str()).unwrap_or_default().to_owned()
    }
}

impl Ask {
    /// Whether its head says its id.
    fn is_named(&self) -> bool {
        self.bytes.windows(self.id.len()).any(|bytes| bytes == self.id.as_bytes())
    }

    /// Whether this may be the answer; `is_whole`: the client had sent the request to its end.
    pub fn judge(&self, answer: &Answer, is_whole: bool, excuses: &Excuses) -> Result<(), String> {
        let words = answer.words();
        let is_known = |known| words.contains(known) || self.is_head;
        let excused = excuses.words.iter().any(|(status, known)| *status == answer.status && is_known(*known));
        let told = |what: &str| Err(format!("{what}, got {} {words:?}", answer.status));
        let id = answer.header("x-request-id");
        let echoes = id == Some(&self.id);
        // An id that the server made has no dash.
        if !echoes && id.is_some_and(|id| id.contains('-')) {
            return told("another request's answer");
        }
        if !is_whole && !answer.closes() {
            return told("a request is answered before its end, and the connection goes on");
        }
        let permitted = answer.header("access-control-allow-origin");
        // Of what was refused before its page had come nobody knows it; the id stands behind the page.
        if permitted != self.permitted.as_deref() && (permitted.is_some() || echoes) {
            return told("the answer lets another page read it than may");
        }
        let expired = |limit_ms| answer.status == 504 && words.contains(&format!("no answer within {limit_ms} ms"));
        if self.limit_ms.is_some_and(expired) {
            return Ok(());
        }
        match &self.wanted {
            Wanted::Values { .. } if answer.status == 200 && !echoes => told("an answer without its name"),
            Wanted::Values { model, sequences, shape } if answer.status == 200 => {
                check_values(&answer.body, &models()[*model], sequences, *shape, excuses)
            }
            Wanted::Values { model, sequences, .. } => {
                let is_poisoned = answer.status == 500 && words.contains("not a finite number");
                let poisoned = || sequences.iter().any(|sequence| computed(&models()[*model], sequence, excuses).1);
                if excused || (is_poisoned && poisoned()) { Ok(()) } else { told("a good request is refused") }
            }
            Wanted::Refused { status, .. } if answer.status == *status && !words.is_empty() => Ok(()),
            Wanted::Refused { by_worker: true, .. } if excused => Ok(()),
            Wanted::Refused { .. } if excused && answer.status != QUEUE_FULL.0 => Ok(()),
            Wanted::Refused { status, .. } => told(&format!("{status} was due")),
            Wanted::Unauthorized { .. } if answer.status == 401 => {
                if answer.header("www-authenticate").is_some() {
                    Ok(())
                } else {
                    told("it is not said what would help")
                }
            }
            Wanted::Unauthorized { or_too_large: true } if answer.status == 413 => Ok(()),
            // These come to whoever asks, before anybody looks at a key.
            Wanted::Unauthorized { .. }
                if excused && (answer.status == 408 || is_known(NO_BUFFERS.1) || is_known(DRAINING.1)) =>
            {
                Ok(())
            }
            Wanted::Unauthorized { .. } => told("401 was due"),
            Wanted::System if excused => Ok(()),
            Wanted::System if !matches!(answer.status, 200 | 503) || !echoes => told("200 was due"),
            Wanted::System => Ok(()),
            // Its head can be read, if not followed.
            Wanted::Garbage if answer.status == 400 && self.is_named() && !echoes => {
                told("a refusal without its request's name")
            }
            Wanted::Garbage if answer.status >= 400 && answer.closes() => Ok(()),
            Wanted::Garbage => told("garbage is served"),
        }
    }
}

impl Ask {
    /// Whether it was answered neither given up before its time nor kept waiting after it.
    pub fn judge_times(&self, status: u16, times: &Times) -> Result<(), String> {
        let Some(limit_ms) = self.limit_ms else { return Ok(()) };
        let limit_ns = u64::from(limit_ms) * 1_000_000;
        if status == 504 && times.written_ns < times.sent_ns + limit_ns {
            let early_ns = times.sent_ns + limit_ns - times.written_ns;
            return Err(format!("given up {early_ns} ns before its {limit_ms} ms were over"));
        }
        // The first turn after its time still takes what has come home by then.
        if let (Some(taken_ns), Some(turn_ns)) = (times.taken_ns, times.turn_before_ns)
            && limit_ms > 0
            && turn_ns >= taken_ns + limit_ns
        {
            let late_ns = turn_ns - taken_ns - limit_ns;
            return Err(format!("{status} although its {limit_ms} ms were over for {late_ns} ns at the turn before"));
        }
        Ok(())
    }
}

/// The vector of a sequence, and whether the device puts a NaN into it.
fn computed(known: &Known, sequence: &Sequence, excuses: &Excuses) -> (Vec<f32>, bool) {
    let (mut ids, mut types, mut vector) = (Vec::new(), Vec::new(), Vec::new());
    let max = known.model.max_length;
    let mut encode = |first: &str, second: Option<&str>| {
        let done =
            known.tokenizer.encode(&mut Default::default(), (first, second), max, Cut::Late, &mut ids, &mut types);
        done.expect("a text can be encoded");
    };
    let prompt = known.model.default_prompt.map_or("", |prompt| &known.model.prompts[prompt].text);
    match sequence {
        Sequence::Text(text) => encode(&format!("{prompt}{text}"), None),
        Sequence::Pair(first, second) => encode(first, Some(second)),
        Sequence::Ids(given) => {
            ids.extend(given.iter().take(max));
            types.resize(ids.len(), 0);
        }
    }
    sim::vector(&ids, &types, known.width, &mut vector);
    let is_poisoned = sim::poisons(&ids, &types, excuses.seed, excuses.nan_rate);
    (vector, is_poisoned)
}

fn check_values(
    body: &[u8],
    known: &Known,
    sequences: &[Sequence],
    shape: Shape,
    excuses: &Excuses,
) -> Result<(), String> {
    let body: Value = serde_json::from_slice(body).map_err(|error| format!("the answer is not JSON: {error}"))?;
    let found = found_values(&body, known.model.task, shape).ok_or(format!("not the shape of an answer: {body}"))?;
    if found.len() != sequences.len() {
        return Err(format!("{} vectors for {} texts", found.len(), sequences.len()));
    }
    for (index, (sequence, found)) in sequences.iter().zip(&found).enumerate() {
        let (expected, is_poisoned) = computed(known, sequence, excuses);
        if is_poisoned {
            return Err(format!("text {index}: a vector that is not finite has been answered"));
        }
        if expected != *found {
            return Err(format!("text {index}: not the vector of its own text"));
        }
    }
    Ok(())
}

fn found_values(body: &Value, task: Task, shape: Shape) -> Option<Vec<Vec<f32>>> {
    let list = |value: &Value| serde_json::from_value::<Vec<f32>>(value.clone()).ok();
    let one = |value: &Value| serde_json::from_value::<f32>(value.clone()).ok().map(|score| vec![score]);
    match (shape, task) {
        (Shape::Native, Task::Embedding) => body["embeddings"].as_array()?.iter().map(list).collect(),
        (Shape::Native, Task::Reranking) => body["scores"].as_array()?.iter().map(one).collect(),
        (Shape::Native, Task::Nli) => body["logits"].as_array()?.iter().map(list).collect(),
        (Shape::OpenAi | Shape::Base64, _) => {
            let items = body["data"].as_array()?.iter().enumerate().map(|(index, item)| {
                let value = &item["embedding"];
                if item["index"].as_u64()? != index as u64 {
                    return None;
                }
                match (task, shape) {
                    (Task::Reranking, _) => one(value),
                    (_, Shape::Base64) => {
                        let bytes = base64::engine::general_purpose::STANDARD.decode(value.as_str()?).ok()?;
                        Some(bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
                    }
                    (_, Shape::Native | Shape::OpenAi) => list(value),
                }
            });
            items.collect()
        }
    }
}
