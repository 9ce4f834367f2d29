//! The steps of a build, in a binary that has a library for it.
//!
//! Checks, then the ONNX file, then the network, its shapes, the plan, and last the files. Everything that is written before
//! the end lies in a staging folder beside the output, which goes when the build ends, however it ends.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::shapes;
use super::{Options, Origin, Progress, Report, Shapes};
use crate::device::tensorrt::{Build, Flavour, Library, Network, Progress as Phase, Severity, check_request, gpu};
use crate::device::{Bucket, Layout, LoadError};
use crate::model::convert::{self, Dtype, Metadata};
use crate::model::engine::{Capability, Profile, Target, Tensor};
use crate::model::fetch::Staging;
use crate::model::files::{Outputs, SIDE_FILE_BYTES_MAX, check_external, folder_of, read_regular, tokenizer_in};
use crate::model::manifest::{self, Facts, Manifest, TokenizerFile};
use crate::model::onnx::Summary;
use crate::model::{Model, Task};
use crate::tokenize::Tokenizer;

/// What the closure of a build is: told of the progress, it returns whether to go on.
type Told<'a> = &'a mut (dyn FnMut(Progress) -> bool + Send);

const INTERRUPTED: &str = "the build was interrupted";

fn at(path: &Path, words: impl std::fmt::Display) -> LoadError {
    LoadError(format!("{}: {words}", path.display()))
}

/// Builds, writes, and reports. `progress` returns whether to go on.
///
/// Errors name the file, the input, the node or the option at fault.
pub fn build(options: &Options, progress: Told<'_>) -> Result<Report, LoadError> {
    let started = Instant::now();
    check(options)?;
    let places = Places::check(options)?;
    let library = Library::open()?;
    library.show(options.verbose.then_some(Severity::Info));
    let builder = library.builder()?;
    let target = options.target.unwrap_or(Target::Current);
    let capability = capability(target)?;
    // TensorRT-RTX would keep an empty one, and ask for a GPU to do so.
    let times = options.timing_cache.as_deref().filter(|_| Flavour::built() == Flavour::Full);
    let earlier = times.map(read_cache).transpose()?;
    let staging = Staging::inside(places.folder()).map_err(|error| LoadError(error.to_string()))?;
    let material = Material::gather(options, &staging, progress)?;
    let mut network = builder.network(&material.onnx)?;
    let choice = Choice::make(&options.shapes, &network.inputs(), material.metadata.as_ref())
        .map_err(|words| at(&material.named, words))?;
    let request = Build {
        profiles: &choice.profiles,
        target,
        workspace_bytes: options.workspace_bytes,
        timing_cache: earlier.as_deref(),
        version_compatible: options.version_compatible,
    };
    let tokenizer = material.tokenizer.as_deref().map(read_tokenizer).transpose()?;
    let mut manifest = Manifest {
        // Of the plan that there is not yet.
        digest: manifest::digest(b""),
        bytes: 1,
        library: library.flavour().name().to_owned(),
        version: library.version(),
        version_compatible: options.version_compatible,
        capability,
        layout: choice.layout,
        dtype: material.metadata.as_ref().map(|metadata| metadata.dtype),
        buckets: choice.buckets,
        inputs: with_ranges(network.inputs(), &choice.profiles),
        outputs: network.outputs(),
        tokenizer: tokenizer.as_deref().map(|bytes| places.tokenizer_file(bytes)),
        model: material.facts(&network).map_err(|words| at(&material.named, words))?,
    };
    // What cannot be described is found before the minutes that a build takes.
    manifest.check_readable().map_err(|words| at(&material.named, words))?;
    let mut nest = Nest::default();
    let built = network
        .build(&request, &mut |phase| progress(nest.follow(phase)))
        .map_err(|error| at(&material.named, error))?;
    if !progress(Progress::Writing) {
        return Err(LoadError(INTERRUPTED.into()));
    }
    (manifest.digest, manifest.bytes) = (manifest::digest(&built.plan), built.plan.len() as u64);
    let files = places.write(&staging, &built.plan, &manifest, tokenizer.as_deref())?;
    let mut notes = material.notes(options, &manifest);
    if let (Some(place), Some(measured)) = (times, &built.timing_cache) {
        notes.extend(keep_cache(place, measured).err().map(|error| error.0));
    }
    Ok(Report { manifest, files, notes, elapsed: started.elapsed() })
}

/// What is wrong with the options themselves, before anything is opened or built.
pub fn check(options: &Options) -> Result<(), LoadError> {
    let library = |words: String| LoadError(format!("{}: {words}", Flavour::built().name()));
    check_request(options.target.unwrap_or(Target::Current), options.version_compatible).map_err(library)?;
    if let Shapes::Buckets(asked) = &options.shapes {
        shapes::check_asked(asked).map_err(LoadError)?;
    }
    if let Origin::Folder { opset, max_length, .. } = &options.origin {
        convert::check_numbers(*opset, *max_length)?;
    }
    match options.tokenizer.as_deref().map(tokenizer_in).filter(|file| !file.is_file()) {
        Some(missing) => Err(at(&missing, "no such tokenizer")),
        None => Places::check(options).map(|_| ()),
    }
}

/// The GPU that the manifest names.
fn capability(target: Target) -> Result<Capability, LoadError> {
    match (target, Flavour::built()) {
        (Target::Capability(capability), _) => Ok(capability),
        (Target::Current, flavour) => gpu().map(|gpu| gpu.capability).map_err(|words| {
            let instead = match flavour {
                Flavour::Rtx => "; `--target 8.0`, or another GPU's compute capability, builds without one",
                Flavour::Full => "; TensorRT builds engines on a machine with the GPU that they are for",
            };
            LoadError(format!("no GPU to build for: {words}{instead}"))
        }),
    }
}

/// The files that a build leaves, checked to be replaceable.
struct Places {
    engine: PathBuf,
    manifest: PathBuf,
    tokenizer: PathBuf,
}

impl Places {
    fn check(options: &Options) -> Result<Places, LoadError> {
        let engine = options.output.clone();
        let mut outputs = Outputs::default();
        match &options.origin {
            Origin::Onnx(onnx) => reads_onnx(&mut outputs, onnx),
            Origin::Folder { folder, onnx, .. } => {
                outputs.reads_folder(folder);
                onnx.iter().for_each(|kept| outputs.onnx(kept));
            }
        }
        options.tokenizer.iter().for_each(|tokenizer| outputs.reads_tokenizer(tokenizer));
        outputs.engine(&engine);
        options.timing_cache.iter().for_each(|times| outputs.other("the timing cache", times));
        outputs.check()?;
        if engine.to_str().is_none() {
            return Err(at(&engine, "its name is not UTF-8, and a manifest could not say it; choose another"));
        }
        let (manifest, tokenizer) = (manifest::path_of(&engine), manifest::tokenizer_of(&engine));
        Ok(Places { engine, manifest, tokenizer })
    }

    fn folder(&self) -> &Path {
        folder_of(&self.engine)
    }

    /// The tokenizer as the manifest names it.
    fn tokenizer_file(&self, bytes: &[u8]) -> TokenizerFile {
        let name = self.tokenizer.file_name().unwrap_or_default();
        TokenizerFile { file: name.to_string_lossy().into_owned(), digest: manifest::digest(bytes) }
    }

    /// Writes all in the staging folder and moves it into its places, the manifest last.
    fn write(
        &self,
        staging: &Staging,
        plan: &[u8],
        manifest: &Manifest,
        tokenizer: Option<&[u8]>,
    ) -> Result<Vec<PathBuf>, LoadError> {
        let mut moves = Vec::new();
        if let Some(bytes) = tokenizer {
            moves.push((put(staging, "tokenizer", bytes, &self.tokenizer)?, &self.tokenizer));
        }
        moves.push((put(staging, "engine", plan, &self.engine)?, &self.engine));
        moves.push((put(staging, "manifest", manifest.to_json().as_bytes(), &self.manifest)?, &self.manifest));
        for (from, to) in &moves {
            std::fs::rename(from, to).map_err(|error| at(to, format!("cannot be written: {error}")))?;
        }
        let mut files: Vec<PathBuf> = moves.into_iter().map(|(_, to)| to.clone()).collect();
        files.sort_by_key(|file| *file != self.engine);
        Ok(files)
    }
}

/// The bytes of a file that is a tokenizer indeed.
fn read_tokenizer(path: &Path) -> Result<Vec<u8>, LoadError> {
    Tokenizer::load(path)?;
    read_regular(path, SIDE_FILE_BYTES_MAX).map_err(|error| at(path, error))
}

/// A complete file in the staging folder, on its way to `place`.
fn put(staging: &Staging, name: &str, bytes: &[u8], place: &Path) -> Result<PathBuf, LoadError> {
    let path = staging.path.join(name);
    let write = || {
        let mut file = File::create(&path)?;
        file.write_all(bytes)?;
        // The rename must not be on disk before the bytes are.
        file.sync_all()
    };
    write().map_err(|error: std::io::Error| at(place, format!("cannot be written: {error}")))?;
    Ok(path)
}

/// An ONNX file, the weights beside it, and the tokenizers that it may come with.
fn reads_onnx(outputs: &mut Outputs, onnx: &Path) {
    outputs.reads(onnx);
    outputs.reads_tokenizer(&onnx.with_file_name("tokenizer.json"));
    // What is wrong with the file is said when it is read in earnest.
    let Ok(summary) = Summary::read(onnx) else { return };
    summary.external.iter().for_each(|name| outputs.reads(onnx.with_file_name(name)));
    if let Ok(Some(metadata)) = Metadata::of(&summary) {
        outputs.reads_tokenizer(&metadata.tokenizer);
    }
}

/// Measured times of an earlier build; nothing if there is none.
fn read_cache(path: &Path) -> Result<Vec<u8>, LoadError> {
    match read_regular(path, SIDE_FILE_BYTES_MAX) {
        Ok(bytes) => Ok(bytes),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && folder_of(path).is_dir() => Ok(Vec::new()),
        Err(error) => Err(at(path, error)),
    }
}

fn keep_cache(path: &Path, times: &[u8]) -> Result<(), LoadError> {
    let staging = Staging::inside(folder_of(path)).map_err(|error| LoadError(error.to_string()))?;
    let from = put(&staging, "times", times, path)?;
    std::fs::rename(&from, path).map_err(|error| at(path, format!("cannot be written: {error}")))
}

/// What the engine is made from, and what is known of it.
struct Material {
    onnx: PathBuf,
    /// What the user calls it: the folder or the file.
    named: PathBuf,
    metadata: Option<Metadata>,
    /// Where there is a folder.
    model: Option<Model>,
    tokenizer: Option<PathBuf>,
}

impl Material {
    fn gather(options: &Options, staging: &Staging, progress: Told<'_>) -> Result<Material, LoadError> {
        match &options.origin {
            Origin::Onnx(onnx) => Material::of_onnx(onnx, options.tokenizer.as_deref()),
            Origin::Folder { folder, .. } => {
                // A conversion takes seconds; who wants to stop is heard at its end.
                let mut go_on = true;
                let report = convert::convert(&conversion(options, staging), &mut |step| {
                    go_on &= progress(Progress::Converting(step));
                })?;
                if !go_on {
                    return Err(LoadError(INTERRUPTED.into()));
                }
                Ok(Material {
                    onnx: conversion(options, staging).output,
                    named: folder.clone(),
                    metadata: Some(report.metadata),
                    tokenizer: Some(report.model.tokenizer.clone()),
                    model: Some(report.model),
                })
            }
        }
    }

    fn of_onnx(onnx: &Path, tokenizer: Option<&Path>) -> Result<Material, LoadError> {
        let summary = Summary::read(onnx).map_err(|error| at(onnx, format!("not an ONNX file: {error}")))?;
        if summary.inputs.is_empty() {
            return Err(at(onnx, "not an ONNX file, or one without inputs"));
        }
        let metadata = Metadata::of(&summary).map_err(|words| at(onnx, words))?;
        check_external(onnx, &summary)?;
        // What others wrote into the file is taken for a tokenizer only if it is one.
        let recorded = || metadata.as_ref().map(|metadata| tokenizer_in(&metadata.tokenizer));
        let beside = Some(onnx.with_file_name("tokenizer.json")).filter(|path| path.is_file());
        let tokenizer = tokenizer
            .map(tokenizer_in)
            .or(beside)
            .or_else(|| recorded().filter(|path| path.is_file() && Tokenizer::load(path).is_ok()));
        let (onnx, named) = (onnx.to_owned(), onnx.to_owned());
        Ok(Material { onnx, named, metadata, model: None, tokenizer })
    }

    /// What the manifest says of the model; `None` if nobody knows.
    fn facts(&self, network: &Network) -> Result<Option<Facts>, String> {
        let Some(metadata) = &self.metadata else { return Ok(None) };
        let outputs = network.outputs();
        let width = match (metadata.task, outputs.first().and_then(|output| output.shape.get(1))) {
            (Task::Reranking, _) => 1,
            (Task::Embedding | Task::Nli, Some(&width)) if width > 0 => width as usize,
            (Task::Embedding | Task::Nli, _) => return Err("its output does not say how many values it has".into()),
        };
        let geometry = self.model.as_ref().and_then(|model| model.geometry.as_ref());
        let has_types = network.inputs().iter().any(|input| input.name == convert::TOKEN_TYPE_IDS);
        Ok(Some(Facts {
            name: metadata.model.clone(),
            task: metadata.task,
            digest: metadata.digest.clone(),
            pooling: metadata.pooling,
            normalize: metadata.normalize,
            max_length: metadata.max_length,
            labels: metadata.labels.clone(),
            prompts: self.model.as_ref().map(|model| model.prompts.clone()).unwrap_or_default(),
            default_prompt: self.model.as_ref().and_then(|model| model.default_prompt),
            pad_token: metadata.pad_token,
            vocabulary: geometry.map(|geometry| geometry.vocabulary),
            width,
            token_types: match (has_types, geometry) {
                (false, _) => 1,
                (true, Some(geometry)) => geometry.token_types,
                (true, None) => 2,
            },
        }))
    }

    fn notes(&self, options: &Options, manifest: &Manifest) -> Vec<String> {
        let mut notes = Vec::new();
        if options.fp16 && manifest.dtype != Some(Dtype::Fp16) {
            notes.push(
                "`--fp16` changed nothing: these libraries take each node's precision from the ONNX file. `--model FOLDER \
                 --dtype fp16` makes one in half precision"
                    .to_owned(),
            );
        }
        if options.timing_cache.is_some() && Flavour::built() == Flavour::Rtx {
            notes.push(
                "TensorRT-RTX measures nothing while it builds, so that there is no timing cache to read or to write"
                    .to_owned(),
            );
        }
        if manifest.model.is_none() {
            notes.push(
                "the ONNX file does not say what model it holds; the configuration must: pooling, normalize, max_length, \
                 labels, where they are not the defaults"
                    .to_owned(),
            );
        }
        if manifest.tokenizer.is_none() {
            notes.push("no tokenizer was found; the configuration must name one (`tokenizer_path`)".to_owned());
        }
        if manifest.buckets.is_empty() {
            notes
                .push("the engine leaves its shapes open; buckets of fixed shapes are faster (`--buckets`)".to_owned());
        }
        notes
    }
}

/// What the converter is asked for.
fn conversion(options: &Options, staging: &Staging) -> convert::Options {
    let Origin::Folder { folder, task, dtype, layout, opset, max_length, pooling, normalize, onnx } = &options.origin
    else {
        unreachable!("only folders are converted")
    };
    let output = onnx.clone().unwrap_or_else(|| staging.path.join("model.onnx"));
    let mut conversion = convert::Options::new(*task, folder, output);
    conversion.tokenizer.clone_from(&options.tokenizer);
    (conversion.dtype, conversion.layout, conversion.opset) = (*dtype, *layout, *opset);
    (conversion.max_length, conversion.pooling, conversion.normalize) = (*max_length, *pooling, *normalize);
    conversion
}

/// The shapes that are built.
struct Choice {
    layout: Option<Layout>,
    profiles: Vec<Profile>,
    buckets: Vec<Bucket>,
}

impl Choice {
    fn make(asked: &Shapes, inputs: &[Tensor], metadata: Option<&Metadata>) -> Result<Choice, String> {
        let layout = shapes::layout(inputs);
        let max_length = metadata.map(|metadata| metadata.max_length);
        let known = || {
            layout.ok_or_else(|| {
                let names = shapes::names(inputs);
                format!(
                    "its inputs ({names}) follow no layout that buckets are known for; --optShapes takes their shapes"
                )
            })
        };
        let of_buckets = |layout: Layout, buckets: Vec<Bucket>| {
            let profiles = shapes::fixed(&buckets, layout, inputs)?;
            Ok(Choice { layout: Some(layout), profiles, buckets })
        };
        match asked {
            Shapes::Buckets(asked) => of_buckets(known()?, shapes::buckets(asked, known()?, max_length)?),
            Shapes::Default if inputs.iter().all(shapes::is_fixed) => {
                let buckets = layout.map(|layout| shapes::buckets_of(&[], layout, inputs)).unwrap_or_default();
                Ok(Choice { layout, profiles: Vec::new(), buckets })
            }
            Shapes::Default => match max_length {
                Some(max_length) => of_buckets(known()?, shapes::ladder(known()?, max_length)),
                None => {
                    Err("its inputs have no fixed shapes; --buckets, or --minShapes, --optShapes and --maxShapes, say \
                             for which it is built"
                        .into())
                }
            },
            Shapes::Ranges(asked) => {
                let profile = shapes::ranges(asked, inputs)?;
                check_length(&profile, layout, max_length)?;
                let profiles = if profile.shapes.is_empty() { Vec::new() } else { vec![profile] };
                let buckets = layout.map(|layout| shapes::buckets_of(&profiles, layout, inputs)).unwrap_or_default();
                Ok(Choice { layout, profiles, buckets })
            }
        }
    }
}

/// A padded row longer than the model's positions would read beyond their table.
fn check_length(profile: &Profile, layout: Option<Layout>, max_length: Option<usize>) -> Result<(), String> {
    let (Some(Layout::Padded), Some(most)) = (layout, max_length) else { return Ok(()) };
    let longer = |(_, range): &&(String, crate::model::engine::ShapeRange)| range.max.get(1) > Some(&(most as i64));
    match profile.shapes.iter().find(longer) {
        Some((name, range)) => {
            Err(format!("`{name}` of up to {} tokens is longer than the model's max_length {most}", range.max[1]))
        }
        None => Ok(()),
    }
}

/// The inputs as the engine has them.
fn with_ranges(mut inputs: Vec<Tensor>, profiles: &[Profile]) -> Vec<Tensor> {
    for input in &mut inputs {
        let of =
            |profile: &Profile| profile.shapes.iter().find(|(name, _)| *name == input.name).map(|(_, r)| r.clone());
        input.ranges = profiles.iter().filter_map(of).collect();
    }
    inputs
}

/// The library's nested phases as one number.
#[derive(Default)]
struct Nest {
    /// Name, steps, and steps done, from the outermost to the innermost.
    phases: Vec<(String, u32, u32)>,
    done: f64,
}

impl Nest {
    fn follow(&mut self, phase: Phase<'_>) -> Progress {
        match phase {
            Phase::Began { phase, inside, steps } => {
                // What is not inside the innermost phase has taken its place.
                let depth = inside.and_then(|name| self.phases.iter().position(|(known, _, _)| known == name));
                self.phases.truncate(depth.map_or(0, |depth| depth + 1));
                self.phases.push((phase.to_owned(), steps.max(1), 0));
            }
            Phase::Step { phase, step } => {
                if let Some((_, steps, done)) = self.phases.iter_mut().rfind(|(known, _, _)| known == phase) {
                    *done = (step + 1).min(*steps);
                }
            }
            Phase::Ended { phase } => {
                if let Some(depth) = self.phases.iter().rposition(|(known, _, _)| known == phase) {
                    self.phases.truncate(depth);
                }
            }
        }
        let mut share = 1.0;
        let mut done = 0.0;
        for (_, steps, finished) in &self.phases {
            done += share * f64::from(*finished) / f64::from(*steps);
            share /= f64::from(*steps);
        }
        // Phases may be repeated; a bar never runs backwards.
        self.done = self.done.max(done.min(1.0));
        let phase = self.phases.last().map(|(name, _, _)| name.clone()).unwrap_or_default();
        Progress::Building { phase, done: self.done }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_phases_are_one_number_that_only_grows() {
        let mut nest = Nest::default();
        let began = |phase, inside, steps| Phase::Began { phase, inside, steps };
        let done = |progress| match progress {
            Progress::Building { phase, done } => (phase, done),
            Progress::Converting(_) | Progress::Writing => unreachable!("a library builds"),
        };
        assert_eq!(done(nest.follow(began("all", None, 4))), ("all".into(), 0.0));
        assert_eq!(done(nest.follow(began("first", Some("all"), 2))), ("first".into(), 0.0));
        assert_eq!(done(nest.follow(Phase::Step { phase: "first", step: 0 })), ("first".into(), 0.125));
        assert_eq!(done(nest.follow(Phase::Ended { phase: "first" })), ("all".into(), 0.125));
        assert_eq!(done(nest.follow(Phase::Step { phase: "all", step: 0 })), ("all".into(), 0.25));
        // Steps that were not announced, phases that nobody began and phases that are repeated do not move it back.
        assert_eq!(done(nest.follow(Phase::Step { phase: "all", step: 99 })).1, 1.0);
        assert_eq!(done(nest.follow(Phase::Ended { phase: "none" })).1, 1.0);
        assert_eq!(done(nest.follow(began("again", None, 0))), ("again".into(), 1.0));
    }
}
