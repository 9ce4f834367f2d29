//! GPUs as the loader sees them: which there are, one opened, and the engine that one runs a model by.
//!
//! Binaries built without TensorRT have none and say so. An engine that is missing is built once and kept in the engines'
//! folder, under a name that tells what it was made of: other weights, another library or another GPU look for another file.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;

use super::Error;
use crate::config::{DeviceName, ModelSettings, Settings};
use crate::device::Device;
use crate::device::gpu::GpuCounters;
use crate::device::lane::Notify;
use crate::model::Model;

#[cfg(not(feature = "gpu"))]
pub(super) use without::{all, check, engine, open, watch};

#[cfg(feature = "gpu")]
pub(super) use with::{all, check, engine, open, watch};

#[cfg(not(feature = "gpu"))]
mod without {
    use super::*;

    /// None, which is no reason to warn: this binary is one for CPUs.
    pub fn all() -> Result<Vec<DeviceName>, String> {
        Ok(Vec::new())
    }

    fn refused(index: u32) -> Error {
        let words = crate::model::build::WITHOUT;
        Error(format!("devices: cuda:{index} needs a binary built with TensorRT; {words}; this one serves on `cpu`"))
    }

    pub fn check(index: u32) -> Result<(), Error> {
        Err(refused(index))
    }

    pub fn open(index: u32, _: &Settings, _: Notify) -> Result<Box<dyn Device>, Error> {
        Err(refused(index))
    }

    pub fn engine(_: &Settings, _: &ModelSettings, _: &Model) -> Result<Model, Error> {
        unreachable!("without TensorRT no GPU is ever opened")
    }

    pub fn watch(_: &[(String, Arc<GpuCounters>)], _: &Arc<AtomicBool>) -> Option<JoinHandle<()>> {
        None
    }
}

#[cfg(feature = "gpu")]
mod with {
    use std::path::{Path, PathBuf};
    use std::sync::atomic::Ordering;
    use std::time::{Duration, Instant, UNIX_EPOCH};

    use super::*;
    use crate::device::LoadError;
    use crate::device::cuda::{self, Cuda};
    use crate::device::gpu::{self, Gpu};
    use crate::device::tensorrt::Library;
    use crate::model::build::{self, Options, Origin, Shapes};
    use crate::model::manifest::{self, Here, Manifest};

    /// Whether there is such a GPU is seen when it is opened.
    pub fn check(_: u32) -> Result<(), Error> {
        Ok(())
    }
    use crate::model::{Source, engine::Capability};

    /// How often memory and utilization are read.
    const WATCH: Duration = Duration::from_secs(1);

    /// A thread that keeps the GPUs' memory and utilization up to date until `quit`; none where the management library is
    /// missing, which is said.
    pub fn watch(gpus: &[(String, Arc<GpuCounters>)], quit: &Arc<AtomicBool>) -> Option<JoinHandle<()>> {
        if gpus.is_empty() {
            return None;
        }
        let nvml = nvml_wrapper::Nvml::init().map_err(|error| error.to_string());
        let found = cuda::devices().map_err(|error| error.0);
        let (nvml, found) = match (nvml, found) {
            (Ok(nvml), Ok(found)) => (nvml, found),
            (Err(error), _) | (_, Err(error)) => {
                crate::log::warn(format_args!("/metrics will not show the GPUs' memory and utilization: {error}"));
                return None;
            }
        };
        let (gpus, quit) = (gpus.to_vec(), Arc::clone(quit));
        let watched = move || {
            while !quit.load(Ordering::Relaxed) {
                for gpu in &found {
                    let name = format!("cuda:{}", gpu.index);
                    let counters = gpus.iter().find(|(known, _)| *known == name);
                    // The two libraries number GPUs differently; the bus is the same for both.
                    let (Some((_, counters)), Ok(device)) = (counters, nvml.device_by_pci_bus_id(gpu.bus.as_str()))
                    else {
                        continue;
                    };
                    if let Ok(memory) = device.memory_info() {
                        counters.memory_used_bytes.store(memory.used, Ordering::Relaxed);
                        counters.memory_total_bytes.store(memory.total, Ordering::Relaxed);
                    }
                    if let Ok(utilization) = device.utilization_rates() {
                        counters.utilization_percent.store(utilization.gpu.into(), Ordering::Relaxed);
                    }
                }
                std::thread::park_timeout(WATCH);
            }
        };
        std::thread::Builder::new().name("gpu-watch".into()).spawn(watched).ok()
    }

    fn words(error: LoadError) -> Error {
        Error(error.0)
    }

    /// Every GPU, if the library that runs engines is there too. The reason why not is for a warning: whoever built this
    /// binary wants GPUs.
    pub fn all() -> Result<Vec<DeviceName>, String> {
        let found = cuda::devices().map_err(|error| error.0)?;
        if found.is_empty() {
            return Err("the driver shows no GPU (CUDA_VISIBLE_DEVICES says which it may show)".into());
        }
        Library::open().map_err(|error| error.0)?;
        Ok(found.iter().map(|gpu| DeviceName::Cuda(gpu.index)).collect())
    }

    pub fn open(index: u32, settings: &Settings, notify: Notify) -> Result<Box<dyn Device>, Error> {
        let at = |error: LoadError| Error(format!("devices: cuda:{index}: {}", error.0));
        let library = Library::open().map_err(at)?;
        let backend = Cuda::open(index, &library, notify).map_err(at)?;
        Ok(Box::new(Gpu::new(backend, gpu::Settings::from(settings)).map_err(at)?))
    }

    /// The model as an engine: its own, or the one that is kept, or one that is built now.
    pub fn engine(settings: &Settings, entry: &ModelSettings, model: &Model) -> Result<Model, Error> {
        let origin = match &model.source {
            Source::Engine(_) => return Ok(model.clone()),
            Source::Onnx(path) => Origin::Onnx(path.clone()),
            Source::Folder(folder) => Origin::Folder {
                folder: folder.clone(),
                task: model.task,
                dtype: settings.gpu.dtype,
                layout: settings.gpu.layout,
                opset: crate::model::convert::OPSET_DEFAULT,
                max_length: Some(model.max_length),
                pooling: entry.pooling,
                normalize: entry.normalize,
                onnx: None,
            },
        };
        let library = Library::open().map_err(words)?;
        let capability = oldest()?;
        let version = library.version();
        let here = Here { library: library.flavour().name(), version: &version, capability: Some(capability) };
        let file = file(settings, model, &origin, &here)?;
        if !is_good(&file, &here) {
            let mut options = Options::new(origin, &file);
            options.tokenizer = Some(model.tokenizer.clone());
            options.shapes = settings.gpu.buckets.clone().map_or(Shapes::Default, Shapes::Buckets);
            make(&options, &model.name)?;
        }
        // The configuration's own tokenizer goes before the copy that lies beside the engine.
        let (made, _) = manifest::read_engine(&file, Some(&model.tokenizer), entry).map_err(words)?;
        Ok(Model { cuda_graph_list: Vec::new(), ..made })
    }

    /// The GPU of the lowest capability: what is built for it runs on the others by TensorRT-RTX, and by TensorRT they must
    /// be equal, which loading checks.
    fn oldest() -> Result<Capability, Error> {
        let found = cuda::devices().map_err(words)?;
        let capabilities = found.iter().map(|gpu| gpu.capability);
        capabilities.min().ok_or_else(|| Error("there is no GPU to build an engine for".into()))
    }

    /// Whether a kept engine can be loaded. Its bytes are compared with its manifest when it is.
    fn is_good(file: &Path, here: &Here<'_>) -> bool {
        let manifest = Manifest::beside(file);
        file.is_file() && manifest.ok().flatten().is_some_and(|manifest| manifest.check_here(here).is_ok())
    }

    /// Where the engine is kept. The name holds everything that it depends on: digests of whole weights would cost every
    /// start seconds, so the source's files count by name, size and time.
    fn file(settings: &Settings, model: &Model, origin: &Origin, here: &Here<'_>) -> Result<PathBuf, Error> {
        let mut made_of = format!("{origin:?}\n{:?}\n{} {}\n", settings.gpu.buckets, here.library, here.version);
        let source = match origin {
            Origin::Folder { folder, .. } => folder,
            Origin::Onnx(file) => file,
        };
        let unreadable = |error: std::io::Error| Error(format!("{}: {error}", source.display()));
        let mut stamps = Vec::new();
        let folder = if source.is_dir() { source.as_path() } else { source.parent().unwrap_or(Path::new("")) };
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let stem = source.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for entry in std::fs::read_dir(folder).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            let (name, data) =
                (entry.file_name().to_string_lossy().into_owned(), entry.metadata().map_err(unreadable)?);
            // An ONNX file and its weights, or everything in a model's folder.
            if data.is_file() && (source.is_dir() || name.starts_with(&stem)) {
                let changed = data.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
                stamps.push(format!("{name} {} {:?}", data.len(), changed.unwrap_or_default()));
            }
        }
        stamps.sort();
        made_of.push_str(&stamps.join("\n"));
        let digest = manifest::digest(made_of.as_bytes());
        let plain = |letter: char| if letter.is_ascii_alphanumeric() || "-_.".contains(letter) { letter } else { '-' };
        let name: String = model.name.chars().map(plain).take(64).collect();
        let name = name.trim_start_matches('.');
        let capability = here.capability.map(|capability| capability.to_string()).unwrap_or_default();
        Ok(settings.engines.join(format!("{name}-{capability}-{}.engine", &digest[..12])))
    }

    fn make(options: &Options, name: &str) -> Result<(), Error> {
        if let Some(folder) = options.output.parent() {
            std::fs::create_dir_all(folder).map_err(|error| Error(format!("{}: {error}", folder.display())))?;
        }
        crate::log::info(format_args!("building an engine for `{name}`, once: {}", options.output.display()));
        let started = Instant::now();
        let report = build::build(options, &mut |_| true).map_err(words)?;
        let megabytes = report.manifest.bytes as f64 / 1e6;
        let buckets = report.manifest.buckets.len();
        let seconds = started.elapsed().as_secs_f64();
        crate::log::info(format_args!("built `{name}`: {buckets} buckets, {megabytes:.0} MB, in {seconds:.1} s"));
        report.notes.iter().for_each(|note| crate::log::info(format_args!("note: {note}")));
        Ok(())
    }
}
