//! Reading a manifest strictly: every key is there and of its kind, and no other.
//!
//! A manifest travels with an engine between machines and versions; one that was edited, cut or written by a later program
//! must not half work. Each error names the key by its path, `model.labels[2]`.

use std::fmt;
use std::ops::RangeInclusive;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::{BYTES_MAX, FORMAT, Facts, Manifest, TokenizerFile};
use crate::device::{Bucket, Layout};
use crate::model::build::shapes;
use crate::model::convert::{Dtype, LENGTH_MAX};
use crate::model::engine::{ElementType, Profile, ShapeRange, Tensor};
use crate::model::inspect::bucket_words;
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
    let Unique(value) = serde_json::from_slice(bytes).map_err(|error| format!("not a manifest: {error}"))?;
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
    check_tensors(&manifest)?;
    manifest.model.as_ref().map_or(Ok(()), |facts| check_width(facts, &manifest.outputs))?;
    Ok(manifest)
}

/// Whether tensors, profiles, layout and buckets tell one story.
fn check_tensors(manifest: &Manifest) -> Result<(), String> {
    let Manifest { inputs, outputs, .. } = manifest;
    for (key, tensors) in [("inputs", inputs), ("outputs", outputs)] {
        if tensors.is_empty() {
            return Err(format!("`{key}` is empty; an engine has some"));
        }
    }
    let all: Vec<&Tensor> = inputs.iter().chain(outputs).collect();
    if let Some(index) = (1..all.len()).find(|&index| all[..index].iter().any(|known| known.name == all[index].name)) {
        return Err(format!("`inputs` and `outputs` have the name `{}` twice", shown(&all[index].name)));
    }
    let count = inputs.iter().map(|input| input.ranges.len()).max().unwrap_or(0);
    for (index, input) in inputs.iter().enumerate() {
        let expected = if shapes::is_fixed(input) { 0 } else { count.max(1) };
        let fits = |range: &ShapeRange| range.max.len() == input.shape.len();
        if input.ranges.len() != expected || !input.ranges.iter().all(fits) {
            return Err(format!("`inputs[{index}].profiles` must be {expected}, each of as many sizes as the shape"));
        }
    }
    let layout = shapes::layout(inputs);
    if layout != manifest.layout {
        let [stated, found] = [manifest.layout, layout].map(|layout| layout.map_or("null", Layout::name));
        return Err(format!("`layout` is {stated}, and by the names and shapes of `inputs` it is {found}"));
    }
    let profile = |index: usize| {
        let range = |input: &Tensor| Some((input.name.clone(), input.ranges.get(index)?.clone()));
        Profile { shapes: inputs.iter().filter_map(range).collect() }
    };
    let profiles: Vec<Profile> = (0..count).map(profile).collect();
    let buckets = layout.map(|layout| shapes::buckets_of(&profiles, layout, inputs)).unwrap_or_default();
    match buckets == manifest.buckets {
        true => Ok(()),
        false => Err(format!(
            "`buckets` are [{}], and the profiles of `inputs` are [{}]",
            bucket_words(&manifest.buckets),
            bucket_words(&buckets)
        )),
    }
}

/// Whether the first output, which is the one that was described, has as many values.
fn check_width(facts: &Facts, outputs: &[Tensor]) -> Result<(), String> {
    let Facts { width, .. } = facts;
    match outputs.first().and_then(|output| output.shape.get(1)) {
        Some(&found) if found >= 0 && found != *width as i64 => {
            Err(format!("`model.width` is {width}, and the output has {found} values"))
        }
        Some(_) | None => Ok(()),
    }
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
    let optional = |key, least| fields.get(key)?.option(|at| at.whole(least..=SIZE_MAX).map(|size| size as usize));
    let facts = Facts {
        name: fields.get("name")?.text()?,
        task: fields.get("task")?.parsed(Task::named, "embedding, reranking or nli")?,
        digest: fields.get("digest")?.digest()?,
        pooling: fields.get("pooling")?.parsed(Pooling::named, "cls or mean")?,
        normalize: fields.get("normalize")?.switch()?,
        max_length: fields.get("max_length")?.whole(1..=LENGTH_MAX as u64)? as usize,
        labels: fields.get("labels")?.list(At::text)?,
        default_prompt,
        pad_token: optional("pad_token", 0)?,
        vocabulary: optional("vocabulary", 1)?,
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
    let wrong = |key, needed| fields.get(key).and_then(|at| Err(at.wrong(needed)));
    let prompts = &facts.prompts;
    if facts.pad_token.is_some_and(|pad| facts.vocabulary.is_some_and(|rows| pad >= rows)) {
        return wrong("pad_token", "a token of the vocabulary");
    }
    if (1..prompts.len()).any(|index| prompts[..index].iter().any(|known| known.name == prompts[index].name)) {
        return wrong("prompts", "a list of different names");
    }
    match facts.task {
        Task::Nli if facts.labels.len() != facts.width => wrong("labels", "one label for each of the `width` logits"),
        Task::Embedding | Task::Reranking if !facts.labels.is_empty() => wrong("labels", "an empty list but for nli"),
        Task::Reranking if facts.width != 1 => wrong("width", "1 for reranking"),
        Task::Embedding | Task::Reranking | Task::Nli => Ok(facts),
    }
}

fn prompt(at: &At<'_>) -> Result<Prompt, String> {
    let fields = at.object()?;
    let prompt = Prompt { name: fields.get("name")?.text()?, text: fields.get("text")?.text()? };
    fields.only(&["name", "text"])?;
    Ok(prompt)
}

/// A JSON value in which no object has a key twice: of two, each reader takes another.
struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Unique, D::Error> {
        deserializer.deserialize_any(UniqueVisitor).map(Unique)
    }
}

struct UniqueVisitor;

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Unique(value)) = list.next_element()? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Value, A::Error> {
        let mut values = Map::new();
        while let Some((key, Unique(value))) = object.next_entry::<String, Unique>()? {
            if values.contains_key(&key) {
                return Err(A::Error::custom(format!("the key `{}` is there twice", shown(&key))));
            }
            values.insert(key, value);
        }
        Ok(values.into())
    }
}

/// The beginning of a text out of the file, fit for one line of a log.
fn shown(text: &str) -> String {
    let mut shown = String::new();
    for letter in text.chars().take(60) {
        match letter.is_control() {
            true => shown.extend(letter.escape_debug()),
            false => shown.push(letter),
        }
    }
    shown
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
        let shown = shown(&self.value.to_string());
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
            Some(key) => Err(format!("`{}` is not a key of a manifest", shown(&self.below(key)))),
            None => Ok(()),
        }
    }

    fn below(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }
}
