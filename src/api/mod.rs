//! Routes and JSON, one file per client family: pure functions from bytes to requests and from answers to bytes.
//!
//! Nothing here knows a socket, a thread or a device. A request passes three functions: [`route`] reads its head,
//! [`parse`] its body, [`encode`] writes its answer; [`Reject::write`] writes what went wrong instead. Each family
//! speaks its own error shape: `/infer` answers `{"detail": message}`, `/v1` the nested OpenAI object.
//!
//! Invariants: no bytes of a client's can panic here. What a body makes us keep is bounded before it is built: the parser's
//! scratch by `json_values_max`, the inputs by `texts_max` and `text_bytes_max`, the answer by `answer_bytes_max`, and
//! no answer is ever longer than the [`answer_bytes_max`] promised for it. After warm-up nothing here allocates, but for
//! bodies above 1 MiB.

#[doc(hidden)]
pub mod fuzzing;
pub mod gate;
mod json;
pub mod native;
pub mod openai;
mod reject;
pub mod system;
#[cfg(test)]
mod tests;
mod write;

use std::ops::Range;

pub use json::Scratch;
pub use reject::{Allow, Expected, Field, JsonFault, Kind, Place, Reject, Words};

use crate::config::Limits;
use crate::job::Span;
use crate::model::{Model, Prompt, Task};

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

impl Route {
    /// Whose error shape this route answers in.
    pub fn family(self) -> Family {
        match self {
            Route::Embeddings | Route::ModelsOpenAi => Family::OpenAi,
            Route::Infer { .. } | Route::Models | Route::Ready | Route::Live | Route::Metrics => Family::Native,
        }
    }
}

/// Whose shapes an answer takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Native,
    OpenAi,
}

/// What OpenAI's clients ask for whose base URL does not end in `/v1`.
const WITHOUT_V1: [&[u8]; 3] = [b"/embeddings", b"/chat/completions", b"/completions"];

impl Family {
    /// The family whose client asks for `path`, known even where the route is not.
    pub fn of(path: &[u8]) -> Family {
        let is_openai = path == b"/v1" || path.starts_with(b"/v1/") || WITHOUT_V1.contains(&path);
        if is_openai { Family::OpenAi } else { Family::Native }
    }
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
    /// Token ids, taken as they are: a range of [`Inputs::ids`]. Never longer than the model's `max_length`.
    Ids(Span),
}

/// What [`parse`] fills: the sequences to be made, in the order in which they are answered. Reused between requests.
#[derive(Debug, Default)]
pub struct Inputs {
    pub items: Vec<Item>,
    /// What [`Item::Ids`] points into.
    pub ids: Vec<u32>,
}

impl Inputs {
    /// What the two lists can grow to, in bytes: vectors at most double when they grow.
    pub fn bytes_max(limits: &Limits) -> usize {
        2 * (limits.texts_max * size_of::<Item>() + limits.json_values_max * size_of::<u32>())
    }

    /// Forgets the contents, keeps the memory.
    pub fn clear(&mut self) {
        self.items.clear();
        self.ids.clear();
    }
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
    /// Index into the model's prompts: the one that was named, else the model's default one. Token ids take none.
    pub prompt: Option<u32>,
    /// How many lists of token ids were cut to the model's length here; texts are cut and counted where they are tokenized.
    pub lists_cut: u32,
}

impl Outline {
    /// What the client called sequence `index`, for messages.
    pub fn place(&self, index: u32) -> Place {
        let field = match (self.family, self.task) {
            (Family::OpenAi, _) => Field::Input,
            (Family::Native, Task::Embedding | Task::Reranking) => Field::Documents,
            (Family::Native, Task::Nli) => Field::Premises,
        };
        Place::at(field, index)
    }
}

/// What the API knows of one served model.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The route's name.
    pub name: String,
    pub task: Task,
    /// Class names by index (NLI), else empty. A class without a name is written `LABEL_i`.
    pub labels: Vec<String>,
    pub prompts: Vec<Prompt>,
    /// Index into `prompts` of the one that applies when a request names none.
    pub default_prompt: Option<u32>,
    /// Output values per sequence.
    pub width: u32,
    /// Token ids a client may send are below this.
    pub vocabulary: u32,
    /// Tokens per sequence, specials included.
    pub max_length: u32,
    /// Whether vectors are divided by their L2 norm, and so again after they are shortened.
    pub normalize: bool,
}

impl Entry {
    /// `width` is what the device offers and `vocabulary` what the model or its tokenizer has: an engine's own entry
    /// knows neither.
    pub fn new(model: &Model, width: u32, vocabulary: u32) -> Entry {
        Entry {
            name: model.name.clone(),
            task: model.task,
            labels: model.labels.clone(),
            prompts: model.prompts.clone(),
            default_prompt: model.default_prompt.map(|index| index as u32),
            width,
            vocabulary,
            max_length: model.max_length as u32,
            normalize: model.normalize,
        }
    }
}

/// The served models in the configuration's order, which is that of [`crate::job::ModelKey::index`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Catalog {
    entries: Vec<Entry>,
}

impl Catalog {
    pub fn new(entries: Vec<Entry>) -> Catalog {
        Catalog { entries }
    }

    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub fn entry(&self, index: u32) -> &Entry {
        &self.entries[index as usize]
    }

    /// The index of the model that goes by `name`. Names are few: a scan that compares lengths first beats a hash.
    pub fn find(&self, name: &str) -> Option<u32> {
        self.entries.iter().position(|entry| entry.name == name).map(|index| index as u32)
    }

    /// As [`Catalog::find`], for a name that is still percent-encoded.
    fn find_encoded(&self, name: &[u8]) -> Option<u32> {
        let named = |entry: &Entry| percent_decoded(name).eq(entry.name.bytes());
        self.entries.iter().position(named).map(|index| index as u32)
    }
}

/// The route of a request whose target is `path`: without its query, still percent-encoded. A model's name is all that
/// follows `/infer/`, slashes included. HEAD is allowed where GET is; OPTIONS, which asks of every route the same, has
/// [`allowed`].
pub fn route(method: &[u8], path: &[u8], catalog: &Catalog) -> Result<Route, Reject> {
    let get = |route| match method {
        b"GET" | b"HEAD" => Ok(route),
        _ => Err(Reject::MethodNotAllowed { allow: Allow::Get }),
    };
    match path {
        b"/v1/embeddings" if method == b"POST" => Ok(Route::Embeddings),
        b"/v1/embeddings" => Err(Reject::MethodNotAllowed { allow: Allow::Post }),
        b"/models" => get(Route::Models),
        b"/v1/models" => get(Route::ModelsOpenAi),
        b"/health" | b"/health/ready" => get(Route::Ready),
        b"/health/live" => get(Route::Live),
        b"/metrics" => get(Route::Metrics),
        _ if WITHOUT_V1.contains(&path) => Err(Reject::PathWithoutV1 { path: decoded_words(path) }),
        _ => match path.strip_prefix(b"/infer/") {
            None | Some(b"") => Err(Reject::UnknownPath { path: decoded_words(path) }),
            Some(_) if method != b"POST" => Err(Reject::MethodNotAllowed { allow: Allow::Post }),
            Some(name) => match catalog.find_encoded(name) {
                Some(model) => Ok(Route::Infer { model }),
                None => Err(Reject::UnknownModel { name: decoded_words(name) }),
            },
        },
    }
}

/// The methods of `path`, as OPTIONS asks for them. A model need not be served to be asked about: a browser asks before it
/// sends, and it is the answer to what it sends that must say so.
pub fn allowed(path: &[u8], catalog: &Catalog) -> Result<Allow, Reject> {
    if path == b"*" {
        return Ok(Allow::Any);
    }
    // A method that no route has is refused with those that it has.
    match route(b"", path, catalog) {
        Err(Reject::MethodNotAllowed { allow }) => Ok(allow),
        Err(reject) => Err(reject),
        Ok(_) => Ok(Allow::Any),
    }
}

/// The bytes that a percent-encoded text stands for. A `%` without two hexadecimal digits stands for itself.
fn percent_decoded(text: &[u8]) -> impl Iterator<Item = u8> {
    fn digit(byte: Option<&u8>) -> Option<u8> {
        byte.and_then(|&byte| char::from(byte).to_digit(16)).map(|digit| digit as u8)
    }
    let mut at = 0;
    std::iter::from_fn(move || {
        let byte = *text.get(at)?;
        at += 1;
        if byte != b'%' {
            return Some(byte);
        }
        match (digit(text.get(at)), digit(text.get(at + 1))) {
            (Some(high), Some(low)) => {
                at += 2;
                Some(high << 4 | low)
            }
            (_, None) | (None, _) => Some(byte),
        }
    })
}

fn decoded_words(text: &[u8]) -> Words {
    // Twice what `Words` keeps: enough for it to see that something was cut.
    let mut decoded = [0; 2 * Words::BYTES_MAX];
    let mut length = 0;
    for (slot, byte) in decoded.iter_mut().zip(percent_decoded(text)) {
        *slot = byte;
        length += 1;
    }
    Words::new(&decoded[..length])
}

/// Reads the request's body, `bytes[body]`, and fills `inputs`; spans count from the start of `bytes`.
///
/// Strings are unescaped in place, so the body is no longer JSON afterwards, even after an `Err`. `bytes` may go on beyond
/// the body (the connection's buffer does): what lies there is left as it is, and 64 bytes of it save copying the body.
/// Of a key that is given twice the last one counts, as in every JSON library the clients use; `null` is the same as
/// leaving a key out; unknown keys are passed over.
///
/// # Panics
/// When `route` has no body to parse, or `body` does not lie in `bytes`.
pub fn parse(
    route: Route,
    bytes: &mut [u8],
    body: Range<usize>,
    catalog: &Catalog,
    limits: &Limits,
    scratch: &mut Scratch,
    inputs: &mut Inputs,
) -> Result<Outline, Reject> {
    inputs.clear();
    let origin = json::Origin::of(bytes);
    let outline = json::read(scratch, bytes, body, limits.json_values_max, |object| {
        let fields = json::Fields::collect(object);
        let mut reader = json::Reader { origin, limits, inputs };
        match route {
            Route::Infer { model } => native::parse(model, catalog.entry(model), &fields, &mut reader),
            Route::Embeddings => openai::parse(catalog, &fields, &mut reader),
            Route::Models | Route::ModelsOpenAi | Route::Ready | Route::Live | Route::Metrics => {
                unreachable!("{route:?} has no body")
            }
        }
    })?;
    refuse_large_answer(&outline, catalog.entry(outline.model), limits)?;
    Ok(outline)
}

/// Refuses what could not be answered within `answer_bytes_max` before anybody computes it.
fn refuse_large_answer(outline: &Outline, entry: &Entry, limits: &Limits) -> Result<(), Reject> {
    let max = limits.answer_bytes_max;
    let bytes = answer_bytes_max(outline, entry);
    if bytes <= max {
        return Ok(());
    }
    let base64_fits = outline.family == Family::OpenAi
        && outline.task == Task::Embedding
        && answer_bytes_max(&Outline { format: Format::Base64, ..*outline }, entry) <= max;
    Err(Reject::AnswerTooLarge { bytes: bytes as u64, max: max as u64, base64_fits })
}

/// The options that both families take.
struct Options {
    truncate: bool,
    prompt: Option<u32>,
    /// Whether the request itself named the prompt.
    prompt_named: bool,
    dimensions: Option<u32>,
}

impl Options {
    fn read(entry: &Entry, fields: &json::Fields<'_, '_>) -> Result<Options, Reject> {
        let truncate = match fields.truncate {
            None => true,
            Some(value) => value.boolean(Place::of(Field::Truncate))?,
        };
        let named = match fields.prompt_name {
            None => None,
            Some(value) => {
                let name = value.text(Place::of(Field::PromptName), Expected::Text)?;
                let known = || Words::list(entry.prompts.iter().map(|prompt| prompt.name.as_str()));
                let index = entry.prompts.iter().position(|prompt| prompt.name == name);
                Some(index.ok_or_else(|| Reject::UnknownPrompt { known: known() })? as u32)
            }
        };
        let dimensions = match fields.dimensions {
            None => None,
            Some(_) if entry.task != Task::Embedding => return Err(Reject::NoDimensions { task: entry.task }),
            Some(value) => {
                let wanted = value.whole(Place::of(Field::Dimensions), Expected::Count)?;
                let inside = (1..=i128::from(entry.width)).contains(&wanted);
                let outside = Reject::BadDimensions { found: wanted, max: entry.width };
                Some(if inside { wanted as u32 } else { return Err(outside) })
            }
        };
        let prompt = named.or(entry.default_prompt);
        Ok(Options { truncate, prompt, prompt_named: named.is_some(), dimensions })
    }
}

/// A computed request, ready to be written.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    pub outline: Outline,
    pub entry: &'a Entry,
    /// `outline.items × entry.width` values, f32 little endian, in the order of the inputs.
    pub values: &'a [u8],
    /// Tokens of all sequences, specials included.
    pub prompt_tokens: u64,
    /// How long a device was busy with it.
    pub device_ns: u64,
}

/// No answer that [`encode`] writes for this outline is longer, in bytes, whatever its values are.
pub fn answer_bytes_max(outline: &Outline, entry: &Entry) -> usize {
    match outline.family {
        Family::Native => native::answer_bytes_max(outline, entry),
        Family::OpenAi => openai::answer_bytes_max(outline, entry),
    }
}

/// Appends the answer's body to `out`, which grows only if it has not room for [`answer_bytes_max`].
///
/// # Errors
/// [`Reject::NonFinite`] when any value of any sequence is NaN or infinite; `out` is then as it was.
///
/// # Panics
/// When `values` is not `items × width` values long.
pub fn encode(answer: &Answer<'_>, out: &mut Vec<u8>) -> Result<(), Reject> {
    let Answer { outline, entry, values, .. } = answer;
    assert_eq!(values.len(), outline.items as usize * entry.width as usize * 4, "one vector for each sequence");
    let before = out.len();
    let written = match outline.family {
        Family::Native => native::encode(answer, out),
        Family::OpenAi => openai::encode(answer, out),
    };
    if written.is_err() {
        out.truncate(before);
    }
    written
}

impl Answer<'_> {
    /// The bytes of each sequence's values, in order.
    fn rows(&self) -> impl Iterator<Item = (u32, &[u8])> {
        (0..).zip(self.values.chunks_exact(self.entry.width as usize * 4))
    }
}

/// Values of each vector that are written.
fn kept(outline: &Outline, entry: &Entry) -> usize {
    outline.dimensions.unwrap_or(entry.width) as usize
}
