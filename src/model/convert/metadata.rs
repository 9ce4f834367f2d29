//! What a converted file says of itself, so that whoever builds or serves it later need not ask for the folder again.
//!
//! Owned here: the keys in the ONNX file's `metadata_props`, written by [`Metadata::record`] and read by
//! [`Metadata::of`], and [`read`], which makes a [`Model`] of any `.onnx`: ours speaks for itself, for anybody else's the
//! configuration must say what the file does not.
//!
//! Invariant: what is recorded is read back equal; a file is ours exactly when a key says so, and then all of them must be
//! there.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use super::Dtype;
use crate::config::ModelSettings;
use crate::device::{Layout, LoadError};
use crate::model::files::{SIDE_FILE_BYTES_MAX, check_external, read_regular};
use crate::model::onnx::{Dimension, Element, Graph, Summary};
use crate::model::{Head, Model, Pooling, Prompt, Source, Task};

/// Facts of the conversion. Keys in the file: `reactrt.` and the field's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// The folder's name.
    pub model: String,
    pub task: Task,
    pub layout: Layout,
    pub dtype: Dtype,
    pub pooling: Pooling,
    pub normalize: bool,
    /// Tokens per sequence at most.
    pub max_length: usize,
    /// Class names by index, for NLI.
    pub labels: Vec<String>,
    /// Where the tokenizer was at the time.
    pub tokenizer: PathBuf,
    /// The token that takes no position of its own, in the RoBERTa families. Not in the file otherwise.
    pub pad_token: Option<usize>,
    /// Lower-case hexadecimal sha256 of the weights' files, one after another in the order of their names.
    pub digest: String,
}

impl Metadata {
    pub fn record(&self, graph: &mut Graph<'_>) {
        graph.metadata("reactrt.model", self.model.as_str());
        graph.metadata("reactrt.task", self.task.name());
        graph.metadata("reactrt.layout", self.layout.name());
        graph.metadata("reactrt.dtype", self.dtype.name());
        graph.metadata("reactrt.pooling", self.pooling.name());
        graph.metadata("reactrt.normalize", self.normalize.to_string());
        graph.metadata("reactrt.max_length", self.max_length.to_string());
        graph.metadata("reactrt.labels", serde_json::Value::from(self.labels.clone()).to_string());
        graph.metadata("reactrt.tokenizer", self.tokenizer.display().to_string());
        if let Some(pad_token) = self.pad_token {
            graph.metadata(PAD_TOKEN, pad_token.to_string());
        }
        graph.metadata("reactrt.digest", self.digest.as_str());
    }

    /// `None` if the file is not one of ours. A file of ours that lacks a key or holds an unknown word is an error naming
    /// the key.
    pub fn of(summary: &Summary) -> Result<Option<Metadata>, String> {
        if summary.metadata.iter().all(|(key, _)| !key.starts_with(PREFIX)) {
            return Ok(None);
        }
        let text = |key: &str| summary.get(key).ok_or_else(|| format!("its metadata has no `{key}`"));
        let unknown = |key: &str| format!("`{key}` is `{}` in its metadata", summary.get(key).unwrap_or_default());
        let number = |key: &str, allowed: RangeInclusive<usize>| {
            let number = text(key)?.parse().ok().filter(|number| allowed.contains(number));
            number.ok_or_else(|| {
                format!("{}; a number from {} to {} is needed", unknown(key), allowed.start(), allowed.end())
            })
        };
        Ok(Some(Metadata {
            model: text("reactrt.model")?.to_owned(),
            task: Task::named(text("reactrt.task")?).ok_or_else(|| unknown("reactrt.task"))?,
            layout: Layout::named(text("reactrt.layout")?).ok_or_else(|| unknown("reactrt.layout"))?,
            dtype: Dtype::named(text("reactrt.dtype")?).ok_or_else(|| unknown("reactrt.dtype"))?,
            pooling: Pooling::named(text("reactrt.pooling")?).ok_or_else(|| unknown("reactrt.pooling"))?,
            normalize: text("reactrt.normalize")?.parse().map_err(|_| unknown("reactrt.normalize"))?,
            max_length: number("reactrt.max_length", 1..=LENGTH_MAX)?,
            labels: serde_json::from_str(text("reactrt.labels")?).map_err(|_| unknown("reactrt.labels"))?,
            tokenizer: text("reactrt.tokenizer")?.into(),
            pad_token: match summary.get(PAD_TOKEN) {
                None => None,
                Some(_) => Some(number(PAD_TOKEN, 0..=TOKEN_MAX)?),
            },
            digest: match text("reactrt.digest")? {
                digest if is_digest(digest) => digest.to_owned(),
                _ => return Err(unknown("reactrt.digest")),
            },
        }))
    }
}

/// Tokens of a sequence, at most.
pub const LENGTH_MAX: usize = 1 << 20;

/// No vocabulary has as many tokens.
const TOKEN_MAX: usize = (1 << 24) - 1;

fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

const PREFIX: &str = "reactrt.";
const PAD_TOKEN: &str = "reactrt.pad_token";

/// The model in an `.onnx` file, ours or not. The configuration wins over the file's own metadata.
///
/// `tokenizer` is a folder or a `tokenizer.json`; `None`: beside the file, else where the file's metadata says. Without
/// metadata the length is the one that the file's inputs fix, else the one in the tokenizer's `sentence_bert_config.json` or `tokenizer_config.json`, vectors that the file does not pool are pooled by mean, and nothing is
/// normalised unless the configuration says so.
pub fn read(path: &Path, tokenizer: Option<&Path>, settings: &ModelSettings) -> Result<Model, LoadError> {
    let at = |words: String| LoadError(format!("{}: {words}", path.display()));
    let summary = Summary::read(path).map_err(|error| at(error.to_string()))?;
    check_external(path, &summary)?;
    let metadata = Metadata::of(&summary).map_err(at)?;
    if let Some(metadata) = metadata.as_ref().filter(|metadata| metadata.task != settings.task) {
        let (made, asked) = (metadata.task.name(), settings.task.name());
        return Err(at(format!("converted for {made}, and {} lists it for {asked}", settings.place)));
    }
    let stated = metadata.as_ref();
    let tokenizer = tokenizer_file(path, tokenizer, stated)?;
    let max_length = match (settings.max_length, stated.map(|stated| stated.max_length)) {
        (Some(asked), Some(most)) if asked > most => {
            return Err(at(format!("converted for {most} tokens, and {} asks for {asked}", settings.place)));
        }
        (Some(length), _) | (None, Some(length)) => length,
        (None, None) => fixed_length(&summary).or_else(|| length_beside(&tokenizer)).ok_or_else(|| {
            at(format!("nothing says how long its sequences may be; give `max_length` in {}", settings.place))
        })?,
    };
    let prompts = settings.prompts.iter().flatten();
    let prompts: Vec<Prompt> = prompts.map(|(name, text)| Prompt { name: name.clone(), text: text.clone() }).collect();
    let default = settings.default_prompt.as_ref();
    let default_prompt = default
        .map(|name| {
            let index = prompts.iter().position(|prompt| prompt.name == *name);
            index.ok_or_else(|| LoadError(format!("{}: default_prompt `{name}` is not listed", settings.place)))
        })
        .transpose()?;
    Ok(Model {
        name: settings.name.clone(),
        task: settings.task,
        source: Source::Onnx(path.to_owned()),
        tokenizer,
        geometry: None,
        head: Head::Embedding,
        pooling: settings.pooling.or(stated.map(|stated| stated.pooling)).unwrap_or(Pooling::Mean),
        normalize: settings.normalize.or(stated.map(|stated| stated.normalize)).unwrap_or(false),
        max_length,
        labels: settings.labels.clone().or(stated.map(|stated| stated.labels.clone())).unwrap_or_default(),
        prompts,
        default_prompt,
        cuda_graph_list: settings.cuda_graph_list.clone(),
        output: settings.output.clone(),
        unpositioned: None,
        reuse_dynamic_buffer: settings.reuse_dynamic_buffer,
    })
}

fn tokenizer_file(model: &Path, given: Option<&Path>, stated: Option<&Metadata>) -> Result<PathBuf, LoadError> {
    let file = |path: &Path| if path.is_dir() { path.join("tokenizer.json") } else { path.to_owned() };
    if let Some(given) = given {
        let path = file(given);
        return match path.is_file() {
            true => Ok(path),
            false => Err(LoadError(format!("{}: no such tokenizer", path.display()))),
        };
    }
    let beside = model.with_file_name("tokenizer.json");
    let recorded = stated.map(|stated| file(&stated.tokenizer));
    let found = [Some(&beside), recorded.as_ref()].into_iter().flatten().find(|path| path.is_file());
    found.cloned().ok_or_else(|| {
        let also = recorded.map(|path| format!(", nor {}", path.display())).unwrap_or_default();
        LoadError(format!("{}: no tokenizer beside it{also}; give `tokenizer_path`", model.display()))
    })
}

/// Tokens per row, if the inputs fix it: the second dimension of the first input that has just two and says so.
fn fixed_length(summary: &Summary) -> Option<usize> {
    let integers = [Element::Int32 as i32, Element::Int64 as i32];
    summary.inputs.iter().find_map(|port| match port.dims.as_slice() {
        [_, Dimension::Fixed(length)] if integers.contains(&port.element) => Some(*length),
        _ => None,
    })
}

/// What the files beside a tokenizer say of the model's length. The huge number by which transformers says "unlimited" is
/// no `u32`.
fn length_beside(tokenizer: &Path) -> Option<usize> {
    let of_files = [("sentence_bert_config.json", "max_seq_length"), ("tokenizer_config.json", "model_max_length")];
    of_files.into_iter().find_map(|(file, key)| {
        let text = read_regular(&tokenizer.with_file_name(file), SIDE_FILE_BYTES_MAX).ok()?;
        let values: serde_json::Value = serde_json::from_slice(&text).ok()?;
        let length = u32::try_from(values.get(key)?.as_u64()?).ok()?;
        (length > 0).then_some(length as usize)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(key: &str, value: &str) -> Result<Option<Metadata>, String> {
        let digest = "0".repeat(64);
        let good = [
            ("reactrt.model", "m"),
            ("reactrt.task", "embedding"),
            ("reactrt.layout", "padded"),
            ("reactrt.dtype", "fp32"),
            ("reactrt.pooling", "cls"),
            ("reactrt.normalize", "true"),
            ("reactrt.max_length", "512"),
            ("reactrt.labels", "[]"),
            ("reactrt.tokenizer", "t"),
            ("reactrt.digest", &digest),
        ];
        let mut pairs: Vec<_> = good.into_iter().filter(|(known, _)| *known != key).collect();
        pairs.push((key, value));
        let metadata = pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        Metadata::of(&Summary { metadata, ..Summary::default() })
    }

    #[test]
    fn numbers_beyond_reason_are_refused_with_what_is_allowed() {
        for good in ["1", "512", "1048576"] {
            assert_eq!(with("reactrt.max_length", good).unwrap().unwrap().max_length.to_string(), good);
        }
        for wrong in ["0", "-1", "1048577", "4294967297", "18446744073709551615", "1e9", "", "99999999999999999999"] {
            let error = with("reactrt.max_length", wrong).unwrap_err();
            assert!(error.contains("`reactrt.max_length`") && error.contains("from 1 to 1048576"), "{error}");
        }
        assert_eq!(with(PAD_TOKEN, "1").unwrap().unwrap().pad_token, Some(1));
        assert!(with(PAD_TOKEN, "4294967296").unwrap_err().contains("reactrt.pad_token"));
        assert!(with("reactrt.digest", "nan").unwrap_err().contains("`reactrt.digest` is `nan`"));
    }
}
