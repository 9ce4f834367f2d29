//! What lies beside an engine that we built: `minilm.engine.json`.
//!
//! A plan tells neither which library and GPU it is for in a way that others can read, nor what its model needs to be served.
//! Owned here: the file's format, written by [`Manifest::to_json`] and read by [`parse`], the reasons for which an engine is
//! refused, and [`read_engine`], which makes a [`Model`] of an engine with or without one.
//!
//! Invariants: what is written is read back equal; [`parse`] takes any bytes and either gives a manifest that is consistent
//! in itself or names the key that is wrong; whatever the file says, nothing outside its folder is opened because of it.

#[doc(hidden)]
pub mod fuzzing;
mod read;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

pub use read::parse;

use super::convert::Dtype;
use super::engine::{Capability, ShapeRange, Tensor};
use super::files::{SIDE_FILE_BYTES_MAX, read_regular};
use super::folder::NLI_LABELS;
use super::{Head, Model, Pooling, Prompt, Source, Task};
use crate::config::ModelSettings;
use crate::device::{Bucket, Layout, LoadError};

/// The version of the format. A reader takes no other.
pub const FORMAT: u64 = 1;

/// No manifest comes near.
pub const BYTES_MAX: usize = 1 << 20;

/// [`Model::max_length`] of an engine that comes without manifest, where the configuration names none: the length is the
/// largest that the engine's profiles allow, which whoever loads it puts in its place.
pub const LENGTH_OF_THE_PROFILES: usize = 0;

/// What was built, by what, for what.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// Lower-case hexadecimal sha256 of the plan, and its length.
    pub digest: String,
    pub bytes: u64,
    /// `TensorRT` or `TensorRT-RTX`, and its version, `1.6.1.120`.
    pub library: String,
    pub version: String,
    /// True exactly if the plan may be run by later versions of the library, and by its lean runtime.
    pub version_compatible: bool,
    /// The GPU that it was built for.
    pub capability: Capability,
    /// How sequences lie in rows; `None` for an ONNX file that follows neither of our layouts.
    pub layout: Option<Layout>,
    /// `None` for an ONNX file that is not ours.
    pub dtype: Option<Dtype>,
    /// One for each optimization profile, in their order, where each allows just one shape; else empty.
    pub buckets: Vec<Bucket>,
    pub inputs: Vec<Tensor>,
    pub outputs: Vec<Tensor>,
    /// The tokenizer beside the engine.
    pub tokenizer: Option<TokenizerFile>,
    /// `None` if the engine was built from an ONNX file that says nothing of its model.
    pub model: Option<Facts>,
}

/// A file in the manifest's own folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenizerFile {
    pub file: String,
    pub digest: String,
}

/// What serving needs to know of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    pub name: String,
    pub task: Task,
    /// Of the weights' files, as the converter has it.
    pub digest: String,
    pub pooling: Pooling,
    pub normalize: bool,
    /// Tokens per sequence at most, specials included. In a packed engine of the RoBERTa families also the position of
    /// every `pad_token`.
    pub max_length: usize,
    pub labels: Vec<String>,
    pub prompts: Vec<Prompt>,
    /// Index into `prompts`.
    pub default_prompt: Option<usize>,
    /// The token that takes no position of its own, in the RoBERTa families.
    pub pad_token: Option<usize>,
    /// Rows of the table of tokens; `None` if it was built from an ONNX file, which does not say.
    pub vocabulary: Option<usize>,
    /// Values per sequence.
    pub width: usize,
    /// 1 where the engine has no input for them.
    pub token_types: usize,
}

/// What is there to run an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Here<'a> {
    /// `TensorRT` or `TensorRT-RTX`.
    pub library: &'a str,
    pub version: &'a str,
    /// `None` if there is no GPU to compare with.
    pub capability: Option<Capability>,
}

/// Where the manifest of an engine is.
pub fn path_of(engine: &Path) -> PathBuf {
    beside(engine, ".json")
}

/// Where `build` puts the tokenizer of an engine.
pub fn tokenizer_of(engine: &Path) -> PathBuf {
    beside(engine, ".tokenizer.json")
}

fn beside(engine: &Path, ending: &str) -> PathBuf {
    let mut name = engine.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Lower-case hexadecimal sha256.
pub fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Manifest {
    /// The manifest beside this engine; `None` if there is none.
    pub fn beside(engine: &Path) -> Result<Option<Manifest>, LoadError> {
        let path = path_of(engine);
        let at = |words: String| LoadError(format!("{}: {words}", path.display()));
        let bytes = match read_regular(&path, BYTES_MAX as u64) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(at(error.to_string())),
        };
        parse(&bytes).map(Some).map_err(at)
    }

    /// Whether this is the plan that was built, and whether it runs here. The reason names what was expected and what is
    /// there.
    pub fn check(&self, plan: &[u8], here: &Here<'_>) -> Result<(), String> {
        self.check_here(here)?;
        self.check_plan(plan)
    }

    /// Whether this is the plan that was built.
    pub fn check_plan(&self, plan: &[u8]) -> Result<(), String> {
        self.check_size(plan.len() as u64)?;
        let found = digest(plan);
        match found == self.digest {
            true => Ok(()),
            false => Err(format!("the engine's sha256 is {found} and its manifest says {}; {COPY_AGAIN}", self.digest)),
        }
    }

    /// Whether a plan of so many bytes can be the one that was built.
    pub fn check_size(&self, found: u64) -> Result<(), String> {
        match self.bytes {
            expected if expected == found => Ok(()),
            expected => Err(format!("the engine has {found} bytes and its manifest says {expected}; {COPY_AGAIN}")),
        }
    }

    /// Whether what is here can run it. TensorRT's engines run on the compute capability that they were built for;
    /// TensorRT-RTX compiles on the machine that runs, and takes those for a lower one too. Builds of one version (the
    /// fourth number) are taken for equal; whether they are, the library knows.
    pub fn check_here(&self, here: &Here<'_>) -> Result<(), String> {
        let Manifest { library, version, capability, .. } = self;
        if library != here.library {
            return Err(format!("built by {library} {version}; this binary has {} {}", here.library, here.version));
        }
        let (made, found) = (numbers(version), numbers(here.version));
        let fits = match self.version_compatible {
            true => made.first() == found.first() && made <= found,
            false => made.iter().take(3).eq(found.iter().take(3)),
        };
        if !fits {
            return Err(format!("built by {library} {version}, and {} is here; build it anew", here.version));
        }
        let compiles_here = library == RTX;
        match here.capability {
            Some(gpu) if gpu == *capability || (compiles_here && gpu > *capability) => Ok(()),
            Some(gpu) => Err(format!(
                "built for compute capability {capability}, and the GPU here has {gpu}; build it anew on this machine"
            )),
            None => Ok(()),
        }
    }

    /// Whether what would be written can be read back; the reason names the key.
    pub fn check_readable(&self) -> Result<(), String> {
        if let Some(tensor) = self.inputs.iter().find(|tensor| tensor.on_host) {
            return Err(format!("the input `{}` is read on the host, which no server of texts can do", tensor.name));
        }
        match parse(self.to_json().as_bytes()) {
            Ok(read) if read == *self => Ok(()),
            Ok(_) => Err("a manifest cannot describe this engine: it would be read back as another".into()),
            Err(words) => Err(format!("a manifest cannot describe this engine: {words}")),
        }
    }

    pub fn to_json(&self) -> String {
        let tokenizer = self.tokenizer.as_ref().map(|file| json!({"file": file.file, "sha256": file.digest}));
        let bucket =
            |bucket: &Bucket| json!({"rows": bucket.rows, "length": bucket.length, "sequences": bucket.sequences_max});
        let entries = [
            ("format", json!(FORMAT)),
            ("plan", json!({"sha256": self.digest, "bytes": self.bytes})),
            (
                "library",
                json!({"name": self.library, "version": self.version, "version_compatible": self.version_compatible}),
            ),
            ("compute_capability", json!(self.capability.to_string())),
            ("layout", json!(self.layout.map(Layout::name))),
            ("dtype", json!(self.dtype.map(Dtype::name))),
            ("buckets", self.buckets.iter().map(bucket).collect()),
            ("inputs", self.inputs.iter().map(tensor).collect()),
            ("outputs", self.outputs.iter().map(tensor).collect()),
            ("tokenizer", json!(tokenizer)),
            ("model", json!(self.model.as_ref().map(facts))),
        ];
        let lines: Vec<String> =
            entries.iter().map(|(key, value)| format!("  \"{key}\": {}", in_lines(value))).collect();
        format!("{{\n{}\n}}\n", lines.join(",\n"))
    }
}

/// One line for each entry of a list or an object: a manifest is read by people too.
fn in_lines(value: &Value) -> String {
    let (brackets, entries): ([char; 2], Vec<String>) = match value {
        Value::Array(values) if !values.is_empty() => (['[', ']'], values.iter().map(Value::to_string).collect()),
        Value::Object(values) => {
            (['{', '}'], values.iter().map(|(key, value)| format!("\"{key}\": {value}")).collect())
        }
        Value::Array(_) | Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            return value.to_string();
        }
    };
    format!("{}\n    {}\n  {}", brackets[0], entries.join(",\n    "), brackets[1])
}

const COPY_AGAIN: &str = "it was damaged or exchanged: copy both again, or build anew";

/// The name of the library whose engines are compiled where they run.
const RTX: &str = "TensorRT-RTX";

/// `1.6.1.120` as numbers; what is none ends them.
fn numbers(version: &str) -> Vec<u32> {
    version.split('.').map_while(|part| part.parse().ok()).collect()
}

/// As a manifest and `inspect --json` have it.
pub(super) fn tensor(tensor: &Tensor) -> Value {
    let range = |range: &ShapeRange| json!({"min": range.min, "opt": range.opt, "max": range.max});
    json!({
        "name": tensor.name,
        "dtype": tensor.element.name(),
        "shape": tensor.shape,
        "profiles": tensor.ranges.iter().map(range).collect::<Vec<_>>(),
    })
}

fn facts(model: &Facts) -> Value {
    let prompt = |prompt: &Prompt| json!({"name": prompt.name, "text": prompt.text});
    json!({
        "name": model.name,
        "task": model.task.name(),
        "digest": model.digest,
        "pooling": model.pooling.name(),
        "normalize": model.normalize,
        "max_length": model.max_length,
        "labels": model.labels,
        "prompts": model.prompts.iter().map(prompt).collect::<Vec<_>>(),
        "default_prompt": model.default_prompt.and_then(|index| model.prompts.get(index)).map(|prompt| &prompt.name),
        "pad_token": model.pad_token,
        "vocabulary": model.vocabulary,
        "width": model.width,
        "token_types": model.token_types,
    })
}

/// The model in an engine as the configuration and its manifest describe it, and the manifest if there is one. The plan
/// itself is not read: [`Manifest::check`] is for whoever loads it.
///
/// `tokenizer` is what the configuration names, a `tokenizer.json` or its folder. Without one it is the one in the
/// manifest, whose digest must be right. Where neither the configuration nor a manifest says more: nothing is normalised,
/// NLI labels are the old server's three, and `max_length` is [`LENGTH_OF_THE_PROFILES`].
pub fn read_engine(
    path: &Path,
    tokenizer: Option<&Path>,
    settings: &ModelSettings,
) -> Result<(Model, Option<Manifest>), LoadError> {
    if !path.is_file() {
        return Err(LoadError(format!("{}: no such file", path.display())));
    }
    let manifest = Manifest::beside(path)?;
    check_size(path, manifest.as_ref())?;
    let asked = |words: String| LoadError(format!("{}: model `{}`: {words}", settings.place, settings.name));
    let facts = manifest.as_ref().and_then(|manifest| manifest.model.as_ref());
    if let Some(facts) = facts {
        agree(facts, settings).map_err(asked)?;
    }
    let (prompts, default_prompt) = prompts(facts, settings).map_err(asked)?;
    let is_embedding = settings.task == Task::Embedding;
    if !is_embedding && (settings.pooling.is_some() || settings.normalize.is_some()) {
        return Err(asked("`pooling` and `normalize` are for embedding models".into()));
    }
    let max_length = settings.max_length.or(facts.map(|facts| facts.max_length)).unwrap_or(LENGTH_OF_THE_PROFILES);
    let longest = manifest.iter().flat_map(|manifest| &manifest.buckets).map(|bucket| bucket.length as usize).max();
    if let Some(longest) = longest.filter(|&longest| longest < max_length) {
        let words = format!("max_length {max_length}; the engine's largest bucket holds {longest} tokens");
        return Err(asked(words));
    }
    let model = Model {
        name: settings.name.clone(),
        task: settings.task,
        source: Source::Engine(path.to_owned()),
        tokenizer: tokenizer_file(path, tokenizer, manifest.as_ref())?,
        geometry: None,
        head: Head::Embedding,
        pooling: settings.pooling.or(facts.map(|facts| facts.pooling)).unwrap_or(Pooling::Mean),
        normalize: settings.normalize.or(facts.map(|facts| facts.normalize)).unwrap_or(false),
        max_length,
        labels: labels(facts, settings).map_err(asked)?,
        prompts,
        default_prompt,
        output: settings.output.clone(),
        unpositioned: facts.and_then(|facts| Some((facts.pad_token? as u32, facts.max_length as u32))),
        cuda_graph_list: settings.cuda_graph_list.clone(),
        reuse_dynamic_buffer: settings.reuse_dynamic_buffer,
    };
    Ok((model, manifest))
}

/// Whether the engine is all there, as far as its size tells.
fn check_size(engine: &Path, manifest: Option<&Manifest>) -> Result<(), LoadError> {
    let at = |words: String| LoadError(format!("{}: {words}", engine.display()));
    let found = engine.metadata().map_err(|error| at(error.to_string()))?.len();
    match manifest {
        _ if found == 0 => Err(at("the file is empty; it is no engine".into())),
        Some(manifest) => manifest.check_size(found).map_err(at),
        None => Ok(()),
    }
}

/// Whether the configuration asks for something that is built in otherwise.
fn agree(facts: &Facts, settings: &ModelSettings) -> Result<(), String> {
    if facts.task != settings.task {
        return Err(format!(
            "the engine was built for {}, and is listed for {}",
            facts.task.name(),
            settings.task.name()
        ));
    }
    if let Some(asked) = settings.max_length.filter(|&asked| asked > facts.max_length) {
        return Err(format!("max_length {asked}; the engine was built for {}", facts.max_length));
    }
    if let Some(asked) = settings.pooling.filter(|&asked| asked != facts.pooling) {
        return Err(format!("pooling {}; the engine was built with {}", asked.name(), facts.pooling.name()));
    }
    if settings.normalize == Some(false) && facts.normalize {
        return Err("normalize false; the engine was built with normalised vectors".into());
    }
    match &settings.labels {
        Some(asked) if asked.len() != facts.labels.len() => {
            Err(format!("{} labels; the engine was built with {}", asked.len(), facts.labels.len()))
        }
        Some(_) | None => Ok(()),
    }
}

fn labels(facts: Option<&Facts>, settings: &ModelSettings) -> Result<Vec<String>, String> {
    match settings.task {
        Task::Nli => Ok(settings
            .labels
            .clone()
            .or(facts.map(|facts| facts.labels.clone()))
            .unwrap_or_else(|| NLI_LABELS.map(str::to_owned).to_vec())),
        Task::Embedding | Task::Reranking if settings.labels.is_some() => Err("`labels` are for NLI models".into()),
        Task::Embedding | Task::Reranking => Ok(Vec::new()),
    }
}

/// The configuration's list, else the manifest's; a default that the configuration names must be in it.
fn prompts(facts: Option<&Facts>, settings: &ModelSettings) -> Result<(Vec<Prompt>, Option<usize>), String> {
    let built = facts.map(|facts| (facts.prompts.clone(), facts.default_prompt)).unwrap_or_default();
    let (prompts, default) = match &settings.prompts {
        None => built,
        Some(list) => {
            let prompt = |(name, text): &(String, String)| Prompt { name: name.clone(), text: text.clone() };
            let prompts: Vec<Prompt> = list.iter().map(prompt).collect();
            let name = built.1.map(|index| built.0[index].name.as_str());
            let default = name.and_then(|name| prompts.iter().position(|prompt| prompt.name == name));
            (prompts, default)
        }
    };
    let Some(name) = &settings.default_prompt else { return Ok((prompts, default)) };
    match prompts.iter().position(|prompt| prompt.name == *name) {
        Some(index) => Ok((prompts, Some(index))),
        None => Err(format!("default_prompt `{name}` is not among its prompts")),
    }
}

/// The file `tokenizer.json`: what is given, else the manifest's own, else one beside the engine.
fn tokenizer_file(engine: &Path, given: Option<&Path>, manifest: Option<&Manifest>) -> Result<PathBuf, LoadError> {
    if let Some(given) = given {
        let path = if given.is_dir() { given.join("tokenizer.json") } else { given.to_owned() };
        return match path.is_file() {
            true => Ok(path),
            false => Err(LoadError(format!("{}: no such tokenizer", path.display()))),
        };
    }
    let Some(named) = manifest.and_then(|manifest| manifest.tokenizer.as_ref()) else {
        let beside = engine.with_file_name("tokenizer.json");
        return match beside.is_file() {
            true => Ok(beside),
            false => Err(LoadError(format!("{}: no tokenizer belongs to it; give `tokenizer_path`", engine.display()))),
        };
    };
    let path = engine.with_file_name(&named.file);
    let bytes = read_regular(&path, SIDE_FILE_BYTES_MAX).map_err(|error| {
        LoadError(format!("{}: {error}; it belongs to the engine, or give `tokenizer_path`", path.display()))
    })?;
    let found = digest(&bytes);
    if found != named.digest {
        let expected = &named.digest;
        return Err(LoadError(format!(
            "{}: its sha256 is {found} and the engine's manifest says {expected}; give `tokenizer_path` if it is meant",
            path.display()
        )));
    }
    Ok(path)
}

#[cfg(test)]
mod tests;
