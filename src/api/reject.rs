//! The one table of refusals: for each, its status, its OpenAI type, parameter and code, whether the connection is kept,
//! when to come back, and its sentence.
//!
//! A [`Reject`] is `Copy`: it travels in parts and slots and owns nothing, so what it quotes of a client's is a few
//! [`Words`]. Statuses: 400 for what is wrong with the content, 413 for every limit of ours (the same content in smaller
//! requests is fine), 404 and 405 for the route, 429 and 503 for later, 500 for us.
//!
//! Invariant: a message says what was wrong, where, and what is allowed; it is never longer than
//! [`Reject::BODY_BYTES_MAX`] in either family's shape, and writing it allocates nothing in a buffer of that size.

use std::fmt::{self, Write as _};

use super::{Family, write};
use crate::device::Fault;
use crate::model::Task;

/// A field of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Documents,
    Query,
    Premises,
    Hypotheses,
    Input,
    Model,
    EncodingFormat,
    Dimensions,
    Truncate,
    PromptName,
}

impl Field {
    pub fn name(self) -> &'static str {
        match self {
            Field::Documents => "documents",
            Field::Query => "query",
            Field::Premises => "premises",
            Field::Hypotheses => "hypotheses",
            Field::Input => "input",
            Field::Model => "model",
            Field::EncodingFormat => "encoding_format",
            Field::Dimensions => "dimensions",
            Field::Truncate => "truncate",
            Field::PromptName => "prompt_name",
        }
    }
}

/// Where in a request something stands: `query`, `input[3]`, `input[3][5]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub field: Field,
    pub index: Option<u32>,
    pub inner: Option<u32>,
}

impl Place {
    pub fn of(field: Field) -> Place {
        Place { field, index: None, inner: None }
    }

    pub fn at(field: Field, index: u32) -> Place {
        Place { field, index: Some(index), inner: None }
    }

    /// The element of the list that stands here.
    pub fn element(self, index: u32) -> Place {
        match self.index {
            None => Place { index: Some(index), ..self },
            Some(_) => Place { inner: Some(index), ..self },
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.field.name())?;
        for index in [self.index, self.inner].into_iter().flatten() {
            write!(formatter, "[{index}]")?;
        }
        Ok(())
    }
}

/// What was found in a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Null,
    Boolean,
    /// A whole number.
    Number,
    /// A number written with a point or an exponent.
    Fraction,
    Text,
    List,
    Object,
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Kind::Null => "null",
            Kind::Boolean => "a boolean",
            Kind::Number => "a number",
            Kind::Fraction => "a number with a fraction",
            Kind::Text => "a string",
            Kind::List => "a list",
            Kind::Object => "an object",
        })
    }
}

/// What should have been there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    Text,
    Texts,
    /// Any form that `input` can take.
    Input,
    /// Any form that an element of `input` can take.
    InputElement,
    TokenId,
    TokenIds,
    Boolean,
    Count,
}

impl fmt::Display for Expected {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Expected::Text => "a string",
            Expected::Texts => "a string or a list of strings",
            Expected::Input => "a string, a list of strings, a list of token ids or a list of lists of token ids",
            Expected::InputElement => "a string, a token id or a list of token ids",
            Expected::TokenId => "a token id, which is a whole number",
            Expected::TokenIds => "a list of token ids",
            Expected::Boolean => "true or false",
            Expected::Count => "a whole number",
        })
    }
}

/// In which way a body is not JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonFault {
    Empty,
    ByteOrderMark,
    NotUtf8,
    Utf16,
    /// It begins with something that begins no JSON.
    NoBrace,
    /// A key without double quotes.
    Unquoted,
    Syntax,
    /// It ends before all brackets are closed.
    Cut,
    /// Something follows the closing bracket.
    Trailing,
    Number,
    /// A `\` that begins no escape.
    Escape,
    /// `\u` without four hexadecimal digits, or half of a surrogate pair.
    Codepoint,
    ControlCharacter,
    OpenString,
}

impl fmt::Display for JsonFault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            JsonFault::Empty => "it is empty",
            JsonFault::ByteOrderMark => "it begins with a byte order mark",
            JsonFault::NotUtf8 => "it is not UTF-8",
            JsonFault::Utf16 => "it is UTF-16, send UTF-8",
            JsonFault::NoBrace => "it does not begin with {",
            JsonFault::Unquoted => "keys and strings stand in double quotes",
            JsonFault::Syntax => "a syntax error",
            JsonFault::Cut => "it ends too early",
            JsonFault::Trailing => "something follows its end",
            JsonFault::Number => "a number that is malformed or too large",
            JsonFault::Escape => "a string has an unknown escape",
            JsonFault::Codepoint => {
                "a string has a \\u escape without four hexadecimal digits or half of a surrogate pair"
            }
            JsonFault::ControlCharacter => "a string has a control character, which must be escaped",
            JsonFault::OpenString => "a string is not closed",
        })
    }
}

/// The methods of a route, as the header `Allow` lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allow {
    Get,
    Post,
    /// Whatever any route allows: what `OPTIONS *` asks for.
    Any,
}

impl Allow {
    pub fn header(self) -> &'static str {
        match self {
            Allow::Get => "GET, HEAD, OPTIONS",
            Allow::Post => "POST, OPTIONS",
            Allow::Any => "GET, HEAD, POST, OPTIONS",
        }
    }

    /// What a person would use.
    fn words(self) -> &'static str {
        match self {
            Allow::Get => "GET",
            Allow::Post => "POST",
            Allow::Any => "GET or POST",
        }
    }
}

/// A few words of a client's own, kept short: UTF-8, at most 63 bytes, ending in `…` where something was left out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Words {
    bytes: [u8; Words::BYTES_MAX],
    length: u8,
    /// The longest whole prefix that leaves room for the mark of omission.
    cut: u8,
}

impl Words {
    pub const BYTES_MAX: usize = 63;
    const OMISSION: &str = "…";

    /// What is not UTF-8 becomes `U+FFFD`.
    pub fn new(text: &[u8]) -> Words {
        let mut words = Words { bytes: [0; Words::BYTES_MAX], length: 0, cut: 0 };
        for chunk in text.utf8_chunks() {
            let replaced = if chunk.invalid().is_empty() { "" } else { "\u{fffd}" };
            // An `Err` is the sign that the rest does not fit.
            if words.write_str(chunk.valid()).is_err() || words.write_str(replaced).is_err() {
                break;
            }
        }
        words
    }

    /// The names, with commas between them; `none` if there are none.
    pub fn list<'a>(names: impl Iterator<Item = &'a str>) -> Words {
        let mut words = Words::new(b"");
        for name in names {
            let separator = if words.length == 0 { "" } else { ", " };
            if words.write_str(separator).is_err() || words.write_str(name).is_err() {
                break;
            }
        }
        if words.length == 0 { Words::new(b"none") } else { words }
    }

    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.length as usize]).expect("only whole characters are kept")
    }

    fn set(&mut self, at: usize, text: &str) {
        self.bytes[at..at + text.len()].copy_from_slice(text.as_bytes());
        self.length = (at + text.len()) as u8;
    }
}

impl fmt::Write for Words {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut encoded = [0; 4];
        for character in text.chars() {
            let at = self.length as usize;
            if at + character.len_utf8() > Words::BYTES_MAX {
                self.set(self.cut as usize, Words::OMISSION);
                return Err(fmt::Error);
            }
            self.set(at, character.encode_utf8(&mut encoded));
            if self.length as usize <= Words::BYTES_MAX - Words::OMISSION.len() {
                self.cut = self.length;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Words {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl fmt::Debug for Words {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}", self.as_str())
    }
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reject {
    // What the client sent is not what it should be.
    /// `offset` counts bytes from the body's start.
    Malformed {
        fault: JsonFault,
        offset: Option<u32>,
    },
    TooDeep {
        max: u32,
    },
    NotAnObject {
        found: Kind,
    },
    WrongType {
        place: Place,
        expected: Expected,
        found: Kind,
    },
    /// `takes` says in words what the model takes.
    Missing {
        field: Field,
        takes: &'static str,
    },
    EmptyList {
        place: Place,
    },
    EmptyText {
        place: Place,
    },
    /// Numbers of premises and hypotheses.
    UnequalLengths {
        premises: u32,
        hypotheses: u32,
    },
    TokenOutside {
        place: Place,
        id: i128,
        vocabulary: u32,
    },
    TextTooLong {
        place: Place,
        tokens: u32,
        max: u32,
    },
    /// `known` lists the model's prompts.
    UnknownPrompt {
        known: Words,
    },
    PromptWithIds,
    BadEncodingFormat {
        found: Words,
    },
    BadDimensions {
        found: i128,
        max: u32,
    },
    NoDimensions {
        task: Task,
    },
    /// The model is of a task that the route does not serve.
    WrongTask {
        name: Words,
        task: Task,
    },
    /// A reranker on `/v1/embeddings` without `query`.
    QueryMissing {
        name: Words,
    },
    /// `query` for a model that is no reranker.
    QueryUnwanted {
        name: Words,
    },

    // The route.
    UnknownModel {
        name: Words,
    },
    /// An OpenAI client's, whose base URL lacks its end.
    PathWithoutV1 {
        path: Words,
    },
    UnknownPath {
        path: Words,
    },
    MethodNotAllowed {
        allow: Allow,
    },
    /// `given`: there was a key, and it is none of ours.
    Unauthorized {
        given: bool,
    },
    /// The body says that it is something else than JSON.
    NotJson {
        found: Words,
    },

    // Limits of ours.
    TooManyTexts {
        place: Place,
        count: u64,
        max: u64,
    },
    TextTooLarge {
        place: Place,
        bytes: u64,
        max: u64,
    },
    TooManyValues {
        max: u64,
    },
    BodyTooLarge {
        max: u64,
    },
    /// `base64_fits`: the same answer would be small enough in base64.
    AnswerTooLarge {
        bytes: u64,
        max: u64,
        base64_fits: bool,
    },

    // The bytes are not HTTP as we speak it, or came too slowly.
    Framing {
        status: u16,
        message: &'static str,
        /// What is allowed, where that is a number: so many of these at most.
        max: Option<(u64, &'static str)>,
    },
    Deadline,

    // Later.
    /// The time that the client, or the configuration, gives an answer has passed.
    Expired {
        timeout_ms: u32,
    },
    QueueFull,
    NoBuffers,
    Draining,
    DeviceDead,

    // Our own fault.
    Device(Fault),
    NonFinite {
        place: Place,
    },
    Panicked,
}

impl From<Fault> for Reject {
    fn from(fault: Fault) -> Reject {
        match fault {
            Fault::Dead => Reject::DeviceDead,
            Fault::Panicked => Reject::Panicked,
            Fault::Refused | Fault::Failed | Fault::Hung => Reject::Device(fault),
        }
    }
}

/// OpenAI's `type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Request,
    Rate,
    Server,
}

impl Class {
    fn name(self) -> &'static str {
        match self {
            Class::Request => "invalid_request_error",
            Class::Rate => "rate_limit_error",
            Class::Server => "server_error",
        }
    }
}

/// One line of the table, but for its sentence.
#[derive(Clone, Copy, Debug)]
struct Row {
    status: u16,
    class: Class,
    param: Option<Field>,
    code: Option<&'static str>,
    close: bool,
    retry_after_s: Option<u32>,
}

impl Row {
    const fn new(status: u16, class: Class) -> Row {
        Row { status, class, param: None, code: None, close: false, retry_after_s: None }
    }

    const fn request(status: u16) -> Row {
        Row::new(status, Class::Request)
    }

    const fn server(status: u16) -> Row {
        Row::new(status, Class::Server)
    }

    const fn param(self, field: Field) -> Row {
        Row { param: Some(field), ..self }
    }

    const fn code(self, code: &'static str) -> Row {
        Row { code: Some(code), ..self }
    }

    const fn close(self) -> Row {
        Row { close: true, ..self }
    }

    const fn retry_after(self, seconds: u32) -> Row {
        Row { retry_after_s: Some(seconds), ..self }
    }
}

impl Reject {
    /// A body that [`Reject::write`] writes is never longer. A quotation whose every byte is escaped is the longest, twice in
    /// [`Reject::WrongTask`].
    pub const BODY_BYTES_MAX: usize = 1280;

    pub fn status(self) -> u16 {
        self.row().status
    }

    /// True exactly when the connection cannot be used for another request.
    pub fn closes(self) -> bool {
        self.row().close
    }

    /// Seconds, for the header `Retry-After`.
    pub fn retry_after_s(self) -> Option<u32> {
        self.row().retry_after_s
    }

    /// For the header `Allow`, which a 405 must have.
    pub fn allow(self) -> Option<&'static str> {
        if let Reject::MethodNotAllowed { allow } = self { Some(allow.header()) } else { None }
    }

    /// For the header `WWW-Authenticate`, which a 401 must have.
    pub fn authenticate(self) -> Option<&'static str> {
        if let Reject::Unauthorized { .. } = self { Some("Bearer realm=\"reactrt\"") } else { None }
    }

    /// Appends the body of the refusal in the family's shape.
    pub fn write(self, family: Family, out: &mut Vec<u8>) {
        self.look_up(&mut |row, message| match family {
            Family::Native => {
                out.extend_from_slice(b"{\"detail\":\"");
                write::escaped(out, message);
                out.extend_from_slice(b"\"}");
            }
            Family::OpenAi => {
                out.extend_from_slice(b"{\"error\":{\"message\":\"");
                write::escaped(out, message);
                out.extend_from_slice(b"\",\"type\":\"");
                out.extend_from_slice(row.class.name().as_bytes());
                out.extend_from_slice(b"\",\"param\":");
                write::string_or_null(out, row.param.map(Field::name));
                out.extend_from_slice(b",\"code\":");
                write::string_or_null(out, row.code);
                out.extend_from_slice(b"}}");
            }
        });
    }

    fn row(self) -> Row {
        let mut found = None;
        self.look_up(&mut |row, _| found = Some(row));
        found.expect("every refusal has its row")
    }

    /// The table. Calls `see` once.
    fn look_up(self, see: &mut dyn FnMut(Row, fmt::Arguments<'_>)) {
        const BAD: Row = Row::request(400);
        const LIMIT: Row = Row::request(413);
        match self {
            Reject::Malformed { fault, offset: Some(offset) } => {
                see(BAD, format_args!("the body is not valid JSON: {fault}, at byte {offset}"))
            }
            Reject::Malformed { fault, offset: None } => see(BAD, format_args!("the body is not valid JSON: {fault}")),
            Reject::TooDeep { max } => {
                see(BAD, format_args!("the body nests lists or objects more than {max} levels deep"))
            }
            Reject::NotAnObject { found } => see(BAD, format_args!("the body must be a JSON object, found {found}")),
            Reject::WrongType { place, expected, found } => {
                see(BAD.param(place.field), format_args!("{place}: expected {expected}, found {found}"))
            }
            Reject::Missing { field, takes } => {
                see(BAD.param(field), format_args!("{} is missing: {takes}", field.name()))
            }
            Reject::EmptyList { place } => see(BAD.param(place.field), format_args!("{place}: the list is empty")),
            Reject::EmptyText { place } => see(BAD.param(place.field), format_args!("{place}: the string is empty")),
            Reject::UnequalLengths { premises, hypotheses } => see(
                BAD.param(Field::Hypotheses),
                format_args!("{premises} premises but {hypotheses} hypotheses: each premise needs one hypothesis"),
            ),
            Reject::TokenOutside { place, id, vocabulary } => see(
                BAD.param(place.field),
                format_args!(
                    "{place}: token id {id} is outside the vocabulary, ids are 0 to {}",
                    vocabulary.max(1) - 1
                ),
            ),
            Reject::TextTooLong { place, tokens, max } => see(
                BAD.param(place.field).code("context_length_exceeded"),
                format_args!(
                    "{place}: {tokens} tokens, the model takes {max}; without \"truncate\":false it would be cut"
                ),
            ),
            Reject::UnknownPrompt { known } => see(
                BAD.param(Field::PromptName),
                format_args!("prompt_name names no prompt of this model; it has {known}"),
            ),
            Reject::PromptWithIds => see(
                BAD.param(Field::PromptName),
                format_args!("prompt_name applies to texts; token ids are taken as they are"),
            ),
            Reject::BadEncodingFormat { found } => see(
                BAD.param(Field::EncodingFormat),
                format_args!("encoding_format is {found}; it can be float or base64"),
            ),
            Reject::BadDimensions { found, max } => see(
                BAD.param(Field::Dimensions),
                format_args!("dimensions is {found}; this model's vectors can be cut to 1 to {max}"),
            ),
            Reject::NoDimensions { task } => see(
                BAD.param(Field::Dimensions),
                format_args!("dimensions applies to embedding models; this is {}", kind_of_model(task)),
            ),
            Reject::WrongTask { name, task } => see(
                BAD.param(Field::Model),
                format_args!(
                    "model {name} is {}; /v1/embeddings serves embedding models and rerankers, use POST /infer/{name}",
                    kind_of_model(task)
                ),
            ),
            Reject::QueryMissing { name } => see(
                BAD.param(Field::Query),
                format_args!("query is missing: model {name} is a reranker and scores each input against a query"),
            ),
            Reject::QueryUnwanted { name } => see(
                BAD.param(Field::Query),
                format_args!("model {name} is an embedding model and takes no query; rerankers do"),
            ),
            Reject::UnknownModel { name } => see(
                Row::request(404).code("model_not_found"),
                format_args!("model {name} not found; GET /models lists those that are served"),
            ),
            Reject::PathWithoutV1 { path } => see(
                Row::request(404),
                format_args!(
                    "no route {path}; the base URL of an OpenAI client ends in /v1 here, where there is /v1/embeddings"
                ),
            ),
            Reject::UnknownPath { path } => see(
                Row::request(404),
                format_args!(
                    "no route {path}; there are POST /infer/{{model}}, POST /v1/embeddings, GET /models, /v1/models, /health \
                     and /metrics"
                ),
            ),
            Reject::MethodNotAllowed { allow } => {
                see(Row::request(405).code("method_not_supported"), format_args!("use {}", allow.words()))
            }
            Reject::Unauthorized { given: false } => see(
                Row::request(401).code("invalid_api_key"),
                format_args!(
                    "this server wants an API key: send the header Authorization: Bearer KEY, or x-api-key: KEY"
                ),
            ),
            Reject::Unauthorized { given: true } => see(
                Row::request(401).code("invalid_api_key"),
                format_args!(
                    "the API key is none of this server's, or not sent as Authorization: Bearer KEY, or x-api-key: KEY"
                ),
            ),
            Reject::NotJson { found } => see(
                Row::request(415),
                format_args!("the body is said to be {found}; send JSON, with content-type: application/json"),
            ),
            Reject::TooManyTexts { place, count, max } => see(
                LIMIT.param(place.field),
                format_args!("{place}: {count} texts, one request may hold {max} (limits.texts_max)"),
            ),
            Reject::TextTooLarge { place, bytes, max } => see(
                LIMIT.param(place.field),
                format_args!("{place}: {bytes} bytes, one text may have {max} (limits.text_bytes_max)"),
            ),
            Reject::TooManyValues { max } => see(
                LIMIT,
                format_args!("the body holds more than {max} JSON keys, values and brackets (limits.json_values_max)"),
            ),
            Reject::BodyTooLarge { max } => {
                see(LIMIT.close(), format_args!("the body is larger than {max} bytes (limits.body_bytes_max)"))
            }
            Reject::AnswerTooLarge { bytes, max, base64_fits } => see(
                LIMIT,
                format_args!(
                    "the answer could take {bytes} bytes and may have {max} (limits.answer_bytes_max): send fewer texts{}",
                    if base64_fits { ", or ask for encoding_format base64, which is smaller" } else { "" }
                ),
            ),
            Reject::Framing { status, message, max } => match max {
                Some((max, unit)) => see(Row::request(status).close(), format_args!("{message}: at most {max} {unit}")),
                None => see(Row::request(status).close(), format_args!("{message}")),
            },
            Reject::Deadline => see(Row::request(408).close(), format_args!("the request took too long to arrive")),
            Reject::Expired { timeout_ms } => see(
                Row::server(504).code("timeout"),
                format_args!(
                    "no answer within {timeout_ms} ms (x-request-timeout-ms, else deadlines.request_ms): given up"
                ),
            ),
            Reject::QueueFull => see(
                Row::new(429, Class::Rate).code("rate_limit_exceeded").retry_after(1),
                format_args!("the queue is full (batching.queue_tokens_max, limits.jobs_max): try again"),
            ),
            Reject::NoBuffers => {
                see(Row::server(503).retry_after(1), format_args!("all buffers are in use: try again"))
            }
            Reject::Draining => {
                see(Row::server(503).close().retry_after(1), format_args!("the server is shutting down"))
            }
            Reject::DeviceDead => see(Row::server(503), format_args!("the device that ran this model is gone")),
            Reject::Device(fault) => {
                let row = match fault {
                    Fault::Panicked => Row::server(500),
                    Fault::Refused | Fault::Failed | Fault::Hung => Row::server(503).retry_after(1),
                    Fault::Dead => Row::server(503),
                };
                see(row, format_args!("the device could not compute this request: {}", fault_in_words(fault)))
            }
            Reject::NonFinite { place } => see(
                Row::server(500),
                format_args!("{place}: the model's result has a value that is not a finite number"),
            ),
            Reject::Panicked => see(Row::server(500), format_args!("an internal error ended this request")),
        }
    }
}

fn kind_of_model(task: Task) -> &'static str {
    match task {
        Task::Embedding => "an embedding model",
        Task::Reranking => "a reranker",
        Task::Nli => "an NLI model",
    }
}

fn fault_in_words(fault: Fault) -> &'static str {
    match fault {
        Fault::Refused => "it refused the batch",
        Fault::Failed => "the batch failed",
        Fault::Hung => "the batch did not end in time",
        Fault::Panicked => "an internal error",
        Fault::Dead => "it is gone",
    }
}
