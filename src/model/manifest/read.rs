//! Reading a manifest strictly: every key is there and of its kind, and no other.
//!
//! A manifest travels with an engine between machines and versions; one that was edited, cut or written by a later program
//! must not half work. Each error names the key by its path, `model.labels[2]`.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::{BYTES_MAX, FORMAT, Facts, Manifest, TokenizerFile};
use crate::device::{Bucket, Layout};
use crate::model::convert::Dtype;
use crate::model::engine::{ElementType, ShapeRange, Tensor};
use crate::model::{Pooling, Prompt, Task};

/// Sizes of models and engines are far below; keeps every product of two far from overflow.
const SIZE_MAX: u64 = 1 << 24;

/// Entries of one list: buckets, tensors, labels, prompts.
const ENTRIES_MAX: usize = 4096;

/// Bytes of one text; a prompt is the longest.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// The manifest in these bytes, or what is wrong with them.
pub fn parse(bytes: &[u8]) -> Result<Manifest, String> {
    if bytes.len() > BYTES_MAX {
        return Err(format!("more than {BYTES_MAX} bytes; this is no manifest of an engine"));
    }
    let value: Value = serde_json::from_slice(bytes).map_err(|error| format!("not a manifest: {error}"))?;
    let root = At { path: String::new(), value: &value };
    let fields = root.object()?;
    let format = fields.get("format")?.whole(0..=u64::MAX)?;
    if format != FORMAT {
        return Err(format!("`format` is {format}; this program reads {FORMAT}: build the engine anew with it"));
    }
    let plan = fields.get("plan")?.object()?;
    let library = fields.get("library")?.object()?;
    let manifest = Manifest {
        digest: plan.get("sha256")?.digest()?,
        bytes: plan.get("bytes")?.whole(1..=u64::MAX)?,
        library: library.get("name")?.text()?,
        version: library.get("version")?.text()?,
        version_compatible: library.get("version_compatible")?.switch()?,
        capability: fields.get("compute_capability")?.parsed(|text| text.parse().ok(), "such as 8.9")?,
        layout: fields.get("layout")?.option(|at| at.parsed(Layout::named, "padded or packed"))?,
        dtype: fields.get("dtype")?.option(|at| at.parsed(Dtype::named, "fp32 or fp16"))?,
        buckets: fields.get("buckets")?.list(bucket)?,
        inputs: fields.get("inputs")?.list(tensor)?,
        outputs: fields.get("outputs")?.list(tensor)?,
        tokenizer: fields.get("tokenizer")?.option(tokenizer)?,
        model: fields.get("model")?.option(facts)?,
    };
    plan.only(&["sha256", "bytes"])?;
    library.only(&["name", "version", "version_compatible"])?;
    fields.only(&[
        "format",
        "plan",
        "library",
        "compute_capability",
        "layout",
        "dtype",
        "buckets",
        "inputs",
        "outputs",
        "tokenizer",
        "model",
    ])?;
    Ok(manifest)
}

fn bucket(at: &At<'_>) -> Result<Bucket, String> {
    let fields = at.object()?;
    let size = |key| fields.get(key)?.whole(1..=SIZE_MAX).map(|size| size as u32);
    let bucket = Bucket { rows: size("rows")?, length: size("length")?, sequences_max: size("sequences")? };
    let tokens = u64::from(bucket.rows) * u64::from(bucket.length);
    if tokens > u64::from(u32::MAX) || u64::from(bucket.sequences_max) > tokens {
        return Err(at.wrong("a bucket of fewer tokens, and of no more sequences than tokens,"));
    }
    fields.only(&["rows", "length", "sequences"])?;
    Ok(bucket)
}

fn tensor(at: &At<'_>) -> Result<Tensor, String> {
    let fields = at.object()?;
    let tensor = Tensor {
        name: fields.get("name")?.text()?,
        element: fields.get("dtype")?.parsed(ElementType::named, "a type such as int32")?,
        shape: fields.get("shape")?.list(size)?,
        ranges: fields.get("profiles")?.list(range)?,
        on_host: false,
    };
    fields.only(&["name", "dtype", "shape", "profiles"])?;
    Ok(tensor)
}

fn range(at: &At<'_>) -> Result<ShapeRange, String> {
    let fields = at.object()?;
    let shape = |key| fields.get(key)?.list(size);
    let range = ShapeRange { min: shape("min")?, opt: shape("opt")?, max: shape("max")? };
    fields.only(&["min", "opt", "max"])?;
    match range.is_ascending() {
        true => Ok(range),
        false => Err(at.wrong("min ≤ opt ≤ max, of as many dimensions each,")),
    }
}

/// A dimension; -1: not decided.
fn size(at: &At<'_>) -> Result<i64, String> {
    let size = at.value.as_i64().filter(|size| (-1..=SIZE_MAX as i64).contains(size));
    size.ok_or_else(|| at.wrong(&format!("a whole number from -1 to {SIZE_MAX}")))
}

fn tokenizer(at: &At<'_>) -> Result<TokenizerFile, String> {
    let fields = at.object()?;
    let file = fields.get("file")?;
    let name = file.text()?;
    let is_plain = !matches!(name.as_str(), "" | "." | "..") && !name.contains(['/', '\\', '\0']);
    if !is_plain {
        return Err(file.wrong("the name of a file beside this one"));
    }
    let digest = fields.get("sha256")?.digest()?;
    fields.only(&["file", "sha256"])?;
    Ok(TokenizerFile { file: name, digest })
}

fn facts(at: &At<'_>) -> Result<Facts, String> {
    let fields = at.object()?;
    let size = |key, least| fields.get(key)?.whole(least..=SIZE_MAX).map(|size| size as usize);
    let prompts = fields.get("prompts")?.list(prompt)?;
    let default = fields.get("default_prompt")?;
    let default_prompt = default.option(|at| {
        let name = at.text()?;
        let index = prompts.iter().position(|prompt| prompt.name == name);
        index.ok_or_else(|| at.wrong("the name of one of `prompts`"))
    })?;
    let optional = |key| fields.get(key)?.option(|at| at.whole(0..=SIZE_MAX).map(|size| size as usize));
    let facts = Facts {
        name: fields.get("name")?.text()?,
        task: fields.get("task")?.parsed(Task::named, "embedding, reranking or nli")?,
        digest: fields.get("digest")?.digest()?,
        pooling: fields.get("pooling")?.parsed(Pooling::named, "cls or mean")?,
        normalize: fields.get("normalize")?.switch()?,
        max_length: size("max_length", 1)?,
        labels: fields.get("labels")?.list(At::text)?,
        default_prompt,
        pad_token: optional("pad_token")?,
        vocabulary: optional("vocabulary")?,
        width: size("width", 1)?,
        token_types: size("token_types", 1)?,
        prompts,
    };
    fields.only(&[
        "name",
        "task",
        "digest",
        "pooling",
        "normalize",
        "max_length",
        "labels",
        "prompts",
        "default_prompt",
        "pad_token",
        "vocabulary",
        "width",
        "token_types",
    ])?;
    match facts.task == Task::Nli && facts.labels.len() != facts.width {
        true => Err(fields.get("labels")?.wrong("one label for each of the `width` logits")),
        false => Ok(facts),
    }
}

fn prompt(at: &At<'_>) -> Result<Prompt, String> {
    let fields = at.object()?;
    let prompt = Prompt { name: fields.get("name")?.text()?, text: fields.get("text")?.text()? };
    fields.only(&["name", "text"])?;
    Ok(prompt)
}

/// A value and where it stands.
struct At<'a> {
    path: String,
    value: &'a Value,
}

/// An object and where it stands.
struct Fields<'a> {
    path: String,
    values: &'a Map<String, Value>,
}

impl<'a> At<'a> {
    fn wrong(&self, needed: &str) -> String {
        let shown: String = self.value.to_string().chars().take(60).collect();
        let path = if self.path.is_empty() { "the manifest" } else { &self.path };
        format!("`{path}` is {shown}; {needed} is needed")
    }

    fn object(&self) -> Result<Fields<'a>, String> {
        let values = self.value.as_object().ok_or_else(|| self.wrong("an object"))?;
        Ok(Fields { path: self.path.clone(), values })
    }

    fn text(&self) -> Result<String, String> {
        let text = self.value.as_str().filter(|text| text.len() <= TEXT_BYTES_MAX);
        text.map(str::to_owned).ok_or_else(|| self.wrong(&format!("a text of at most {TEXT_BYTES_MAX} bytes")))
    }

    fn digest(&self) -> Result<String, String> {
        let is_digest =
            |text: &str| text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        self.parsed(|text| is_digest(text).then(|| text.to_owned()), "a sha256 in lower-case hexadecimal")
    }

    fn parsed<T>(&self, parse: impl FnOnce(&str) -> Option<T>, needed: &str) -> Result<T, String> {
        self.value.as_str().and_then(parse).ok_or_else(|| self.wrong(needed))
    }

    fn switch(&self) -> Result<bool, String> {
        self.value.as_bool().ok_or_else(|| self.wrong("true or false"))
    }

    fn whole(&self, allowed: RangeInclusive<u64>) -> Result<u64, String> {
        let number = self.value.as_u64().filter(|number| allowed.contains(number));
        number.ok_or_else(|| self.wrong(&format!("a whole number from {} to {}", allowed.start(), allowed.end())))
    }

    /// `None` for null.
    fn option<T>(&self, read: impl FnOnce(&At<'a>) -> Result<T, String>) -> Result<Option<T>, String> {
        if self.value.is_null() { Ok(None) } else { read(self).map(Some) }
    }

    fn list<T>(&self, read: impl Fn(&At<'a>) -> Result<T, String>) -> Result<Vec<T>, String> {
        let values = self.value.as_array().filter(|values| values.len() <= ENTRIES_MAX);
        let values = values.ok_or_else(|| self.wrong(&format!("a list of at most {ENTRIES_MAX}")))?;
        let entry = |(index, value)| At { path: format!("{}[{index}]", self.path), value };
        values.iter().enumerate().map(|pair| read(&entry(pair))).collect()
    }
}

impl<'a> Fields<'a> {
    fn get(&self, key: &str) -> Result<At<'a>, String> {
        let path = self.below(key);
        match self.values.get(key) {
            Some(value) => Ok(At { path, value }),
            None => Err(format!("no `{path}`")),
        }
    }

    /// Refuses keys that nobody reads.
    fn only(&self, known: &[&str]) -> Result<(), String> {
        match self.values.keys().find(|key| !known.contains(&key.as_str())) {
            Some(key) => {
                let shown: String = self.below(key).chars().take(60).collect();
                Err(format!("`{shown}` is not a key of a manifest"))
            }
            None => Ok(()),
        }
    }

    fn below(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }
}
