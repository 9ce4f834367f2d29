//! `reactrt inspect`: what an engine, an ONNX file or a model folder is, and whether it runs on this machine.
//!
//! Folders and ONNX files are read without any library. An engine is loaded where there is a library and a GPU for it;
//! elsewhere its manifest speaks for it, and the report says why nothing else does. Nothing is changed.
//!
//! Invariant: that an engine cannot run is a finding, not an error; errors are for what cannot be read at all.

use std::fmt::Write;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::convert::{Dtype, Metadata};
use super::engine::{Description, ElementType, Tensor, looks_like_a_plan};
use super::files::{open_regular, read_regular};
use super::manifest::{self, Facts, Manifest};
use super::onnx::{Dimension, Element, Port, Summary};
use super::weights::Weights;
use super::{Model, folder};
use crate::config::ModelSettings;
use crate::device::{Bucket, Layout, LoadError};

/// What was found.
#[derive(Clone, Debug)]
pub struct Report {
    path: PathBuf,
    /// Of the file, or of all weights of a folder.
    bytes: u64,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Folder(Box<Model>),
    Onnx(Box<Summary>, Option<Box<Metadata>>),
    Engine(Box<Found>),
}

/// An engine, as far as it could be read.
#[derive(Clone, Debug)]
struct Found {
    /// `Err`: why there is none that can be used.
    manifest: Result<Manifest, String>,
    /// `Some` if it was loaded.
    description: Option<Description>,
    /// What there is to run it.
    machine: Machine,
    /// Why it does not run here.
    hindrance: Option<String>,
}

#[derive(Clone, Debug, Default)]
struct Machine {
    library: Option<(String, String)>,
    gpu: Option<(String, String)>,
}

fn at(path: &Path, words: impl std::fmt::Display) -> LoadError {
    LoadError(format!("{}: {words}", path.display()))
}

/// Looks at what is there.
pub fn inspect(path: &Path) -> Result<Report, LoadError> {
    let there = path.metadata().map_err(|error| at(path, error))?;
    let report = |bytes, kind| Report { path: path.to_owned(), bytes, kind };
    if there.is_dir() {
        let settings = ModelSettings::new(folder::task(path)?, &name(path), &path.display().to_string(), "inspect");
        let model = folder::read(path, None, &settings)?;
        let weights = match &model.source {
            super::Source::Folder(root) => Weights::open(root)?,
            super::Source::Onnx(_) | super::Source::Engine(_) => unreachable!("a folder was read"),
        };
        let bytes = weights.files().map(|(_, bytes)| bytes.len() as u64).sum();
        return Ok(report(bytes, Kind::Folder(Box::new(model))));
    }
    if !there.is_file() {
        return Err(at(path, "neither a file nor a folder"));
    }
    let is_onnx = path.extension().is_some_and(|extension| extension == "onnx");
    match Summary::read(path) {
        Ok(summary) if !summary.inputs.is_empty() => {
            let metadata = Metadata::of(&summary).map_err(|words| at(path, words))?;
            Ok(report(there.len(), Kind::Onnx(Box::new(summary), metadata.map(Box::new))))
        }
        Ok(_) if is_onnx => Err(at(path, "not an ONNX file, or one without inputs")),
        Err(error) if is_onnx => Err(at(path, format!("not an ONNX file: {error}"))),
        Ok(_) | Err(_) => Ok(report(there.len(), Kind::Engine(Box::new(engine(path)?)))),
    }
}

/// More than any GPU's memory holds beside the engine's own work.
const ENGINE_BYTES_MAX: u64 = 64 << 30;

fn name(path: &Path) -> String {
    let canonical = path.canonicalize();
    canonical.as_deref().unwrap_or(path).file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn engine(path: &Path) -> Result<Found, LoadError> {
    let mut head = Vec::new();
    let file = open_regular(path).map_err(|error| at(path, error))?;
    let bytes = file.metadata().map_err(|error| at(path, error))?.len();
    (&file).take(4096).read_to_end(&mut head).map_err(|error| at(path, error))?;
    looks_like_a_plan(&head).map_err(|words| at(path, words))?;
    if bytes > ENGINE_BYTES_MAX {
        return Err(at(path, format!("{bytes} bytes, and no engine has more than {ENGINE_BYTES_MAX}")));
    }
    let manifest = match Manifest::beside(path) {
        Ok(Some(manifest)) => Ok(manifest),
        Ok(None) => Err(format!("there is no {}", manifest::path_of(path).display())),
        Err(LoadError(words)) => Err(words),
    };
    let mut found = Found { manifest, description: None, machine: Machine::default(), hindrance: None };
    // A file of another size need not be read.
    if let Ok(Err(words)) = found.manifest.as_ref().map(|manifest| manifest.check_size(bytes)) {
        found.hindrance = Some(words);
        return Ok(found);
    }
    let plan = read_regular(path, ENGINE_BYTES_MAX).map_err(|error| at(path, error))?;
    found.hindrance = try_here(&mut found.machine, &mut found.description, &found.manifest, path, &plan).err();
    Ok(found)
}

#[cfg(not(feature = "gpu"))]
fn try_here(
    _: &mut Machine,
    _: &mut Option<Description>,
    manifest: &Result<Manifest, String>,
    _: &Path,
    plan: &[u8],
) -> Result<(), String> {
    if let Ok(manifest) = manifest {
        manifest.check_plan(plan)?;
    }
    Err("this binary was built without TensorRT".into())
}

/// Loads the engine, if everything before that is right.
#[cfg(feature = "gpu")]
fn try_here(
    machine: &mut Machine,
    description: &mut Option<Description>,
    manifest: &Result<Manifest, String>,
    path: &Path,
    plan: &[u8],
) -> Result<(), String> {
    use crate::device::tensorrt::{Library, gpu};

    let gpu = gpu();
    machine.gpu = gpu.as_ref().ok().map(|gpu| (gpu.name.clone(), gpu.capability.to_string()));
    let library = Library::open();
    if let Ok(library) = &library {
        machine.library = Some((library.flavour().name().to_owned(), library.version()));
    }
    if let Ok(manifest) = manifest {
        manifest.check_plan(plan)?;
        if let Some((name, version)) = &machine.library {
            let capability = gpu.as_ref().ok().map(|gpu| gpu.capability);
            manifest.check_here(&manifest::Here { library: name, version, capability })?;
        }
    }
    let library = library.map_err(|error| error.0)?;
    gpu?;
    let runtime = library.runtime().map_err(|error| error.0)?;
    let engine = runtime.engine(plan, &name(path)).map_err(|error| error.0)?;
    *description = Some(engine.description().clone());
    Ok(())
}

impl Report {
    /// Lines for people.
    pub fn text(&self) -> String {
        let megabytes = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
        let path = self.path.display();
        let mut lines = Lines(String::new());
        match &self.kind {
            Kind::Folder(model) => {
                lines.head(format!("{path}: a model folder, {} of weights", megabytes(self.bytes)));
                folder_lines(model, &mut lines);
            }
            Kind::Onnx(summary, metadata) => {
                lines.head(format!("{path}: an ONNX file, {}", megabytes(self.bytes)));
                onnx_lines(summary, metadata.as_deref(), &mut lines);
            }
            Kind::Engine(found) => {
                lines.head(format!("{path}: an engine, {}", megabytes(self.bytes)));
                engine_lines(found, &mut lines);
            }
        }
        lines.0
    }

    /// The same for programs.
    pub fn json(&self) -> String {
        let mut value = match &self.kind {
            Kind::Folder(model) => folder_json(model),
            Kind::Onnx(summary, metadata) => onnx_json(summary, metadata.as_deref()),
            Kind::Engine(found) => engine_json(found),
        };
        value["path"] = json!(self.path.display().to_string());
        value["bytes"] = json!(self.bytes);
        format!("{value:#}\n")
    }
}

/// Lines of a label and what it labels.
struct Lines(String);

impl Lines {
    fn head(&mut self, text: String) {
        self.0.push_str(&text);
        self.0.push('\n');
    }

    fn add(&mut self, label: &str, text: impl std::fmt::Display) {
        let text = text.to_string().replace('\n', "\n             ");
        writeln!(self.0, "{label:<12} {text}").expect("a String takes all");
    }
}

fn folder_lines(model: &Model, lines: &mut Lines) {
    let mut words = format!("{}, {} values, at most {} tokens", model.task.name(), model.width(), model.max_length);
    if model.task == super::Task::Embedding {
        let normalize = if model.normalize { ", normalised" } else { "" };
        write!(words, ", {} pooling{normalize}", model.pooling.name()).expect("a String takes all");
    }
    lines.add("model", words);
    if let Some(geometry) = &model.geometry {
        let super::Geometry { layers, hidden, heads, vocabulary, .. } = geometry;
        let architecture = format!("{:?}", geometry.architecture).to_lowercase();
        lines
            .add("network", format!("{architecture}, {layers} layers of {hidden}, {heads} heads, {vocabulary} tokens"));
    }
    if !model.labels.is_empty() {
        lines.add("labels", model.labels.join(", "));
    }
    for prompt in &model.prompts {
        lines.add("prompt", format!("{}: {:?}", prompt.name, prompt.text));
    }
    lines.add("tokenizer", model.tokenizer.display());
    lines.add("runs here", "yes, on the CPU device; `reactrt build` makes an engine of it");
}

fn folder_json(model: &Model) -> Value {
    let prompt = |prompt: &super::Prompt| json!({"name": prompt.name, "text": prompt.text});
    let geometry = model.geometry.as_ref();
    json!({
        "kind": "folder",
        "model": {
            "name": model.name,
            "task": model.task.name(),
            "pooling": model.pooling.name(),
            "normalize": model.normalize,
            "max_length": model.max_length,
            "labels": model.labels,
            "prompts": model.prompts.iter().map(prompt).collect::<Vec<_>>(),
            "width": model.width(),
            "layers": geometry.map(|geometry| geometry.layers),
            "hidden": geometry.map(|geometry| geometry.hidden),
            "vocabulary": geometry.map(|geometry| geometry.vocabulary),
        },
        "tokenizer": model.tokenizer.display().to_string(),
        "runs_here": true,
    })
}

fn onnx_lines(summary: &Summary, metadata: Option<&Metadata>, lines: &mut Lines) {
    let producer = [summary.producer_name.as_str(), summary.producer_version.as_str()].join(" ");
    lines.add("made by", format!("{}, opset {}", producer.trim(), summary.opset));
    if let Some(metadata) = metadata {
        let Metadata { model, task, max_length, layout, dtype, digest, .. } = metadata;
        lines.add("model", format!("{model}: {}, at most {max_length} tokens", task.name()));
        lines.add("layout", format!("{}, {}", layout.name(), dtype.name()));
        lines.add("weights", format!("sha256 {digest}"));
        lines.add("tokenizer", metadata.tokenizer.display());
    }
    for (label, ports) in [("input", &summary.inputs), ("output", &summary.outputs)] {
        for port in ports {
            lines.add(label, format!("{} {} {}", port.name, element_word(port.element), dimensions(port)));
        }
    }
    let runs = match cfg!(feature = "onnxruntime") {
        true => "yes, through onnxruntime; `reactrt build --onnx` makes an engine of it",
        false => "no, but as an engine, which `reactrt build --onnx` of a binary with TensorRT makes of it",
    };
    lines.add("runs here", runs);
}

fn onnx_json(summary: &Summary, metadata: Option<&Metadata>) -> Value {
    let port = |port: &Port| {
        let size = |dimension: &Dimension| match dimension {
            Dimension::Fixed(size) => json!(size),
            Dimension::Named(name) => json!(name),
        };
        let dims: Vec<Value> = port.dims.iter().map(size).collect();
        json!({"name": port.name, "dtype": element_word(port.element), "shape": dims})
    };
    json!({
        "kind": "onnx",
        "producer": summary.producer_name,
        "producer_version": summary.producer_version,
        "opset": summary.opset,
        "metadata": metadata.map(|metadata| json!({
            "model": metadata.model,
            "task": metadata.task.name(),
            "layout": metadata.layout.name(),
            "dtype": metadata.dtype.name(),
            "max_length": metadata.max_length,
            "digest": metadata.digest,
        })),
        "inputs": summary.inputs.iter().map(port).collect::<Vec<_>>(),
        "outputs": summary.outputs.iter().map(port).collect::<Vec<_>>(),
        "runs_here": cfg!(feature = "onnxruntime"),
    })
}

/// The schema's number as a word.
fn element_word(number: i32) -> String {
    let known: [(Element, ElementType); 5] = [
        (Element::Float, ElementType::F32),
        (Element::Half, ElementType::F16),
        (Element::Int32, ElementType::I32),
        (Element::Int64, ElementType::I64),
        (Element::Bool, ElementType::Other("bool")),
    ];
    match known.iter().find(|(element, _)| *element as i32 == number) {
        Some((_, element)) => element.name().to_owned(),
        None => format!("type {number}"),
    }
}

fn dimensions(port: &Port) -> String {
    let word = |dimension: &Dimension| match dimension {
        Dimension::Fixed(size) => size.to_string(),
        Dimension::Named(name) if name.is_empty() => "?".to_owned(),
        Dimension::Named(name) => name.clone(),
    };
    format!("[{}]", port.dims.iter().map(word).collect::<Vec<_>>().join(", "))
}

/// A bucket as `build --buckets` takes it.
pub fn bucket_words(buckets: &[Bucket]) -> String {
    let words = |bucket: &Bucket| format!("{}x{}:{}", bucket.rows, bucket.length, bucket.sequences_max);
    buckets.iter().map(words).collect::<Vec<_>>().join(", ")
}

fn engine_lines(found: &Found, lines: &mut Lines) {
    match &found.manifest {
        Ok(manifest) => manifest_lines(manifest, lines),
        Err(reason) => lines.add("manifest", format!("none that helps: {reason}")),
    }
    let (inputs, outputs) = tensors(found);
    for (label, tensors) in [("input", inputs), ("output", outputs)] {
        for tensor in tensors {
            lines.add(label, tensor_words(tensor));
        }
    }
    match &found.description {
        Some(description) => lines.add("memory", memory_words(&description.context_bytes)),
        None if inputs.is_empty() => {
            lines.add("tensors", "not known: only a library that runs the engine, or its manifest, can say");
        }
        None => lines.add("memory", "of a context: not known, only a library that runs the engine can say"),
    }
    let Machine { library, gpu } = &found.machine;
    let pair = |(name, detail): &(String, String)| format!("{name} {detail}");
    lines.add("library", library.as_ref().map_or("none".into(), pair));
    lines.add(
        "GPU",
        gpu.as_ref().map_or("none".into(), |(name, detail)| format!("{name}, compute capability {detail}")),
    );
    match &found.hindrance {
        None => lines.add("runs here", "yes"),
        Some(reason) => lines.add("runs here", format!("no: {reason}")),
    }
}

fn manifest_lines(manifest: &Manifest, lines: &mut Lines) {
    let Manifest { library, version, capability, .. } = manifest;
    let compatible = if manifest.version_compatible { ", for later versions too" } else { "" };
    lines.add("built by", format!("{library} {version}{compatible}"));
    lines.add("built for", format!("compute capability {capability}"));
    if let Some(Facts { name, task, max_length, width, pooling, normalize, labels, digest, .. }) = &manifest.model {
        let mut words = format!("{name}: {}, {width} values, at most {max_length} tokens", task.name());
        if *task == super::Task::Embedding {
            let normalize = if *normalize { ", normalised" } else { "" };
            write!(words, ", {} pooling{normalize}", pooling.name()).expect("a String takes all");
        }
        lines.add("model", words);
        if !labels.is_empty() {
            lines.add("labels", labels.join(", "));
        }
        lines.add("weights", format!("sha256 {digest}"));
    }
    let kind = [manifest.layout.map(Layout::name), manifest.dtype.map(Dtype::name)];
    let kind: Vec<&str> = kind.into_iter().flatten().collect();
    if !kind.is_empty() {
        lines.add("layout", kind.join(", "));
    }
    if !manifest.buckets.is_empty() {
        lines.add("buckets", bucket_words(&manifest.buckets));
    }
    if let Some(tokenizer) = &manifest.tokenizer {
        lines.add("tokenizer", &tokenizer.file);
    }
}

/// The engine's own word on its tensors, else its manifest's.
fn tensors(found: &Found) -> (&[Tensor], &[Tensor]) {
    match (&found.description, &found.manifest) {
        (Some(description), _) => (&description.inputs, &description.outputs),
        (None, Ok(manifest)) => (&manifest.inputs, &manifest.outputs),
        (None, Err(_)) => (&[], &[]),
    }
}

fn tensor_words(tensor: &Tensor) -> String {
    let ranges: Vec<String> = tensor.ranges.iter().map(ToString::to_string).collect();
    let colon = if ranges.is_empty() { "" } else { ": " };
    let shape = super::engine::shape_words(&tensor.shape);
    format!("{} {} {shape}{colon}{}", tensor.name, tensor.element.name(), ranges.join(", "))
}

fn memory_words(bytes: &[u64]) -> String {
    let words: Vec<String> = bytes.iter().map(|bytes| format!("{:.1}", *bytes as f64 / 1e6)).collect();
    format!("of a context, by profile: {} MB", words.join(", "))
}

fn engine_json(found: &Found) -> Value {
    let (inputs, outputs) = tensors(found);
    let manifest = found
        .manifest
        .as_ref()
        .ok()
        .map(|manifest| serde_json::from_str::<Value>(&manifest.to_json()).expect("a manifest is JSON"));
    json!({
        "kind": "engine",
        "manifest": manifest,
        "manifest_missing": found.manifest.as_ref().err(),
        "inputs": inputs.iter().map(manifest::tensor).collect::<Vec<_>>(),
        "outputs": outputs.iter().map(manifest::tensor).collect::<Vec<_>>(),
        "context_bytes": found.description.as_ref().map(|description| &description.context_bytes),
        "library": found.machine.library.as_ref().map(|(name, version)| json!({"name": name, "version": version})),
        "gpu": found.machine.gpu.as_ref().map(|(name, capability)| {
            json!({"name": name, "compute_capability": capability})
        }),
        "runs_here": found.hindrance.is_none(),
        "reason": found.hindrance,
    })
}
