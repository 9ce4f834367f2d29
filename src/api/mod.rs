//! Routes and JSON, one file per client family: pure functions from bytes to requests and from answers to bytes.
//!
//! Nothing here knows a socket, a thread or a device. Each family speaks its own error shape: `/infer` answers
//! `{"detail": message}`, `/v1` the nested OpenAI object.

mod json;
pub mod native;
pub mod openai;
mod reject;

pub use json::Scratch;
pub use reject::{Field, Reject, Words};

use crate::job::Span;
use crate::model::Task;

/// What a request's head asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// `POST /infer/{model}`, the model by its index in the catalog.
    Infer { model: u32 },
    /// `POST /v1/embeddings` (the model is named in the body).
    Embeddings,
    /// `GET /models`
    Models,
    /// `GET /v1/models`
    ModelsOpenAi,
    /// `GET /health` and `GET /health/ready`
    Ready,
    /// `GET /health/live`
    Live,
    /// `GET /metrics`
    Metrics,
}

/// Whose shapes an answer takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Native,
    OpenAi,
}

/// How vectors are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Float,
    /// Base64 of little-endian f32.
    Base64,
}

/// One sequence to be made: spans lie in the request's body after parsing (strings are unescaped in place there).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    Text(Span),
    /// Query and document, or premise and hypothesis.
    Pair(Span, Span),
    /// Token ids, taken as they are: a range of the list of ids that [`parse`] fills.
    Ids(Span),
}

/// What a parsed request asks for, besides its texts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outline {
    /// Index in the catalog.
    pub model: u32,
    pub task: Task,
    pub family: Family,
    /// How many sequences, one vector, score or label each.
    pub items: u32,
    pub format: Format,
    /// Values to keep of each vector before it is normalised again; `None` keeps all.
    pub dimensions: Option<u32>,
    /// Whether a text beyond the model's length is cut (and said so) or refused.
    pub truncate: bool,
    /// Index into the model's prompts.
    pub prompt: Option<u32>,
}
