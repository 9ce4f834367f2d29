//! Text → token ids, as the model's own `tokenizer.json` says, with truncation; and the workers that do it.
//!
//! The tokenizer adds no specials and cuts nothing: both happen here, straight into a piece's memory. What `tokenizer.json`
//! says of truncation and padding is ignored, for files come with lengths baked in that are not the model's. Truncation is
//! on the right; of a pair the longer text is cut first (`longest_first`), as everybody's tokenizers do it.
//!
//! Invariant: what is cut away is never tokenized where that can be avoided: a text far longer than the model's length is
//! read up to a word boundary that certainly yields enough tokens. So one long text cannot hold a worker for long.

#[doc(hidden)]
pub mod fuzzing;
mod worker;

use std::path::Path;

use tokenizers::pipeline::{EncodeOptions, Override, PipelineToken, PipelineTokenizer, Template};

pub use worker::{Served, Worker, WorkerLimits, WorkerState, encode_answer};

use crate::device::LoadError;
use crate::model::files::{SIDE_FILE_BYTES_MAX, read_regular};

/// A model's tokenizer, shared by all workers.
#[derive(Clone)]
pub struct Tokenizer {
    pipeline: PipelineTokenizer,
    options: EncodeOptions,
    /// True exactly when words are tokenized independently of one another, so that the tokens of a text's beginning are
    /// the beginning of the text's tokens if it ends between two words.
    words_are_independent: bool,
    vocabulary: u32,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Tokenizer").finish_non_exhaustive()
    }
}

/// Memory that encoding needs besides its output; one per worker.
#[derive(Debug, Default)]
pub struct EncodeScratch {
    first: Vec<PipelineToken>,
    second: Vec<PipelineToken>,
    /// How much of a text the tokens in `first` are.
    first_read: Read,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Read {
    #[default]
    Nothing,
    Beginning,
    Whole,
}

/// What became of one text or pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Tokens written, specials included.
    pub length: usize,
    /// Tokens there would be without truncation; a lower bound if [`Cut::Early`] stopped reading.
    pub full_length: usize,
}

impl Encoded {
    pub fn truncated(self) -> bool {
        self.full_length > self.length
    }
}

/// How much of a text that is too long is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Only as far as its tokens can matter.
    Early,
    /// To its end, to learn its full length.
    Late,
}

/// The tokenizer could not encode a text at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodeError;

impl Tokenizer {
    /// Reads a `tokenizer.json`, of today's or an older format.
    pub fn load(path: &Path) -> Result<Tokenizer, LoadError> {
        let fail = |why: &dyn std::fmt::Display| LoadError(format!("{}: {why}", path.display()));
        let bytes = read_regular(path, SIDE_FILE_BYTES_MAX).map_err(|error| fail(&error))?;
        let text = String::from_utf8(bytes).map_err(|_| fail(&"not UTF-8 text"))?;
        let value: serde_json::Value = serde_json::from_str(&text).map_err(|error| fail(&error))?;
        let words_are_independent = words_are_independent(&value["pre_tokenizer"]);
        let canonical = tokenizers::canonicalize_str(&text).map_err(|error| fail(&error))?;
        let pipeline = tokenizers::from_json(&canonical).map_err(|error| fail(&error))?;
        let options = EncodeOptions {
            add_special_tokens: false,
            encode_special_tokens: false,
            padding: Override::Off,
            truncation: Override::Off,
        };
        let tokenizer = Tokenizer { pipeline, options, words_are_independent, vocabulary: vocabulary(&value) };
        // What is wrong inside a pattern shows when it is first used: better now than for every request.
        let trial = ("a trial: 1, 2", Some("another"));
        tokenizer
            .encode(&mut EncodeScratch::default(), trial, 64, Cut::Late, &mut Vec::new(), &mut Vec::new())
            .map_err(|_| fail(&"the tokenizer cannot encode a trial text; is a pattern in it invalid?"))?;
        Ok(tokenizer)
    }

    /// One more than the largest id it can make.
    pub fn vocabulary(&self) -> u32 {
        self.vocabulary
    }

    /// How many specials go around one text, and around a pair.
    pub fn specials(&self) -> (usize, usize) {
        let templates = self.pipeline.get_post_processor();
        (templates.single.n_special(), templates.pair.n_special())
    }

    /// Appends the ids of one text or pair, specials included and at most `max_length` of them, to `ids`, and their token
    /// types to `types`.
    ///
    /// # Errors
    /// [`EncodeError`] if the tokenizer refuses the text; nothing is appended then.
    pub fn encode(
        &self,
        scratch: &mut EncodeScratch,
        (first, second): (&str, Option<&str>),
        max_length: usize,
        cut: Cut,
        ids: &mut Vec<u32>,
        types: &mut Vec<u8>,
    ) -> Result<Encoded, EncodeError> {
        let full_length = self.prepare(scratch, (first, second), false, max_length, cut)?;
        let length = self.write(scratch, second.is_some(), max_length, ids, types);
        Ok(Encoded { length, full_length })
    }

    /// Tokenizes into `scratch` and returns the full length, specials included.
    ///
    /// `again` promises that `first` is the one of the last call, with the same `max_length` and `cut`: a query is
    /// tokenized once for all its documents.
    pub fn prepare(
        &self,
        scratch: &mut EncodeScratch,
        (first, second): (&str, Option<&str>),
        again: bool,
        max_length: usize,
        cut: Cut,
    ) -> Result<usize, EncodeError> {
        let specials = self.template(second.is_some()).n_special();
        let room = max_length.saturating_sub(specials);
        if !again || scratch.first_read == Read::Nothing {
            scratch.first_read = Read::Nothing;
            scratch.first_read = self.tokens(first, room, cut, &mut scratch.first)?;
        }
        scratch.second.clear();
        let mut second_read = Read::Whole;
        if let Some(second) = second {
            second_read = self.tokens(second, room, cut, &mut scratch.second)?;
            // With both too long, `longest_first` gives an odd token to the longer one: their lengths must be known.
            let first_is_long = scratch.first.len() > room;
            if second_read == Read::Beginning && first_is_long {
                second_read = self.tokens(second, room, Cut::Late, &mut scratch.second)?;
            }
            if scratch.first_read == Read::Beginning && scratch.second.len() > room {
                scratch.first_read = self.tokens(first, room, Cut::Late, &mut scratch.first)?;
            }
        }
        let ended_early = scratch.first_read == Read::Beginning || second_read == Read::Beginning;
        let found = scratch.first.len() + scratch.second.len();
        debug_assert!(!ended_early || found > room, "reading stops early only where more than enough was found");
        Ok(found + specials)
    }

    /// Writes what [`Tokenizer::prepare`] left in `scratch`; returns the tokens written.
    pub fn write(
        &self,
        scratch: &EncodeScratch,
        pair: bool,
        max_length: usize,
        ids: &mut Vec<u32>,
        types: &mut Vec<u8>,
    ) -> usize {
        let template = self.template(pair);
        let room = max_length.saturating_sub(template.n_special());
        let (first_length, second_length) = longest_first(scratch.first.len(), scratch.second.len(), room);
        let start = ids.len();
        write_specials(&template.prefix, ids, types);
        write_tokens(&scratch.first[..first_length], template.a_type_id, ids, types);
        write_specials(&template.infix, ids, types);
        write_tokens(&scratch.second[..second_length], template.b_type_id.unwrap_or(0), ids, types);
        write_specials(&template.suffix, ids, types);
        ids.len() - start
    }

    fn template(&self, pair: bool) -> &Template {
        let templates = self.pipeline.get_post_processor();
        if pair { &templates.pair } else { &templates.single }
    }

    /// Tokens of `text`, without specials. If only its beginning was read, they are more than `room`.
    fn tokens(&self, text: &str, room: usize, cut: Cut, tokens: &mut Vec<PipelineToken>) -> Result<Read, EncodeError> {
        // A token is 4 to 5 bytes in most languages; the margin covers an added token with spaces in it at the cut.
        let wanted = room + 32;
        let mut bytes = wanted * 8;
        if cut == Cut::Early && self.words_are_independent {
            while let Some(end) = word_end(text, bytes) {
                tokens.clear();
                self.pipeline.encode_into(&text[..end], &self.options, tokens).map_err(|_| EncodeError)?;
                if tokens.len() >= wanted {
                    return Ok(Read::Beginning);
                }
                bytes = end * 4;
            }
        }
        tokens.clear();
        self.pipeline.encode_into(text, &self.options, tokens).map_err(|_| EncodeError)?;
        Ok(Read::Whole)
    }
}

fn write_tokens(tokens: &[PipelineToken], kind: u8, ids: &mut Vec<u32>, types: &mut Vec<u8>) {
    ids.extend_from_slice(PipelineToken::cast_slice(tokens));
    types.resize(types.len() + tokens.len(), kind);
}

fn write_specials(run: &[(PipelineToken, u8)], ids: &mut Vec<u32>, types: &mut Vec<u8>) {
    ids.extend(run.iter().map(|(id, _)| id.id()));
    types.extend(run.iter().map(|(_, kind)| *kind));
}

/// One more than the largest id in a `tokenizer.json`.
fn vocabulary(tokenizer: &serde_json::Value) -> u32 {
    let id = |value: &serde_json::Value| value.as_u64().unwrap_or(0);
    let model = match &tokenizer["model"]["vocab"] {
        serde_json::Value::Object(ids) => ids.values().map(id).max().map_or(0, |largest| largest + 1),
        // Unigram: pieces with their scores, the id is the place.
        serde_json::Value::Array(pieces) => pieces.len() as u64,
        _ => 0,
    };
    let added = tokenizer["added_tokens"].as_array().into_iter().flatten().map(|token| id(&token["id"]) + 1).max();
    model.max(added.unwrap_or(0)).try_into().unwrap_or(u32::MAX)
}

/// Whether a pre-tokenizer never looks across a space between two words.
fn words_are_independent(pre_tokenizer: &serde_json::Value) -> bool {
    let flag = |name: &str, default: bool| pre_tokenizer[name].as_bool().unwrap_or(default);
    match pre_tokenizer["type"].as_str() {
        Some("BertPreTokenizer" | "Whitespace" | "WhitespaceSplit") => true,
        Some("Metaspace") => flag("split", true),
        Some("ByteLevel") => flag("use_regex", true),
        Some("Sequence") => {
            pre_tokenizer["pretokenizers"].as_array().is_some_and(|list| list.iter().any(words_are_independent))
        }
        _ => false,
    }
}

/// The first place at or after byte `from`, if any, where a word ends and a single space and another word follow.
fn word_end(text: &str, from: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut start = from.max(1);
    while start < bytes.len() {
        let space = start + memchr::memchr(b' ', &bytes[start..])?;
        let before = text[..space].chars().next_back().is_some_and(char::is_alphanumeric);
        let after = text[space + 1..].chars().next().is_some_and(char::is_alphanumeric);
        if before && after {
            return Some(space);
        }
        start = space + 1;
    }
    None
}

/// How many tokens of each text stay when both may hold `room` together: the longer one is cut first, then both to equal
/// halves, an odd token going to the longer one (to the second if they are equal).
fn longest_first(first: usize, second: usize, room: usize) -> (usize, usize) {
    if first + second <= room {
        return (first, second);
    }
    if second == 0 {
        return (first.min(room), 0);
    }
    let (short, half) = (first.min(second), room / 2);
    let (short, long) = if short <= room && short + short.max(room - short) <= room {
        (short, room - short)
    } else {
        (half, half + room % 2)
    };
    if first > second { (long, short) } else { (short, long) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `longest_first` as it is usually written down: take from the longer one, one token at a time.
    #[test]
    fn the_longer_text_is_cut_first() {
        for (first, second, room, expected) in [
            (3, 4, 10, (3, 4)),
            (3, 20, 10, (3, 7)),
            (20, 3, 10, (7, 3)),
            (20, 20, 10, (5, 5)),
            (20, 20, 11, (5, 6)),
            (21, 20, 11, (6, 5)),
            (20, 21, 11, (5, 6)),
            (12, 6, 10, (5, 5)),
            (6, 12, 11, (5, 6)),
            (5, 12, 11, (5, 6)),
            (20, 0, 10, (10, 0)),
            (0, 20, 10, (0, 10)),
        ] {
            assert_eq!(longest_first(first, second, room), expected, "{first} and {second} into {room}");
        }
        for first in 0..30 {
            for second in 0..30 {
                let (a, b) = longest_first(first, second, 17);
                assert!(a <= first && b <= second && a + b == 17.min(first + second), "{first} {second}: {a} {b}");
            }
        }
    }

    #[test]
    fn words_end_between_words_only() {
        assert_eq!(word_end("one two three", 1), Some(3));
        assert_eq!(word_end("one two three", 4), Some(7));
        assert_eq!(word_end("one  two, three", 1), None, "a double space and a comma are no plain word ends");
        assert_eq!(word_end("één twee", 2), Some("één".len()), "a start inside a character is harmless");
        assert_eq!(word_end("", 1), None);
        assert_eq!(word_end("one", 100), None);
    }
}
