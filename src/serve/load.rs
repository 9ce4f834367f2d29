//! From settings to loaded devices: folders found or fetched, tokenizers read, weights on every device.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Error, gpu};
use crate::config::{DeviceName, Devices, ModelSettings, Settings};
use crate::device::cpu::Cpu;
use crate::device::sim::Sim;
use crate::device::{Device, Fault, Lane, LoadError, Offer, Pieces, Placement, Plan};
use crate::job::{ModelKey, Piece};
use crate::model::build::shapes::buckets;
use crate::model::fetch::{self, Wanted};
use crate::model::manifest::{self, LENGTH_OF_THE_PROFILES};
use crate::model::{Model, Source, Task, convert, folder};
use crate::ring::Doorbell;
use crate::tokenize::{Cut, EncodeScratch, Tokenizer};

/// Everything loaded, in the configuration's order.
#[derive(Debug)]
pub struct Loaded {
    pub models: Vec<LoadedModel>,
    pub devices: Vec<LoadedDevice>,
}

#[derive(Debug)]
pub struct LoadedModel {
    pub key: ModelKey,
    pub model: Arc<Model>,
    pub tokenizer: Tokenizer,
    /// Output values per sequence, and the number of token ids, as the devices have them.
    pub width: u32,
    pub vocabulary: u32,
    /// Indices of the devices that hold it.
    pub devices: Vec<usize>,
}

pub struct LoadedDevice {
    pub device: Box<dyn Device>,
    pub offers: Vec<(ModelKey, Offer)>,
}

/// The simulated device's name.
const SIMULATED: &str = "sim";

/// How long a trial run may take before the model is given up.
const WARM_UP: Duration = Duration::from_secs(60);

impl LoadedDevice {
    /// Runs one text on every lane, so that the first client does not pay for memory that is touched for the first time, and
    /// a model that cannot run is found before it is served.
    fn warm_up(&mut self, key: ModelKey, tokenizer: &Tokenizer, model: &Model) -> Result<(), LoadError> {
        let pair = if model.task == Task::Embedding { None } else { Some("up") };
        let mut piece = Box::new(Piece { model: key, ..Piece::default() });
        let Piece { ids, types, .. } = &mut *piece;
        tokenizer
            .encode(&mut EncodeScratch::default(), ("warm", pair), model.max_length, Cut::Late, ids, types)
            .map_err(|_| LoadError("the tokenizer cannot encode a trial text".into()))?;
        let length = piece.ids.len() as u32;
        piece.ends.push(length);
        let mut pieces = Pieces::with_capacity(1);
        let index = pieces.insert(piece);
        let placement = Placement { piece: index, sequence: 0, row: 0, offset: 0, length };
        let plan = Plan { model: key, bucket: 0, placements: vec![placement], tokens: length };
        let failed = |fault: Fault| LoadError(format!("a trial run failed: {fault:?}"));
        for lane in 0..self.device.lanes() {
            self.device.submit(lane, &plan, &pieces, 0).map_err(failed)?;
            let start = Instant::now();
            while self.device.poll(lane, 0) != Lane::Done {
                if start.elapsed() > WARM_UP {
                    return Err(failed(Fault::Hung));
                }
                std::thread::sleep(Duration::from_micros(100));
            }
            self.device.collect(lane, &mut |_, _| {}).map_err(failed)?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for LoadedDevice {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let LoadedDevice { device, offers } = self;
        formatter.debug_struct("LoadedDevice").field("device", &device.name()).field("offers", offers).finish()
    }
}

/// The devices that the settings name, on this machine.
fn device_names(settings: &Settings) -> Vec<DeviceName> {
    match &settings.devices {
        Devices::List(names) => names.clone(),
        Devices::Auto => match gpu::all() {
            Ok(names) if !names.is_empty() => names,
            Ok(_) => vec![DeviceName::Cpu],
            Err(reason) => {
                crate::log::warn(format_args!("no GPU is used, the CPU serves: {reason}"));
                vec![DeviceName::Cpu]
            }
        },
    }
}

/// Loads every model onto every device that can run it. `bell` makes the doorbell of the next device: it is asked once for
/// each, in order.
pub fn load(settings: &Settings, bell: &mut dyn FnMut() -> Arc<Doorbell>) -> Result<Loaded, Error> {
    if settings.models.is_empty() {
        return Err(Error("the configuration names no model; `reactrt demo` brings one".into()));
    }
    let mut loader = Loader { settings, bell, devices: Vec::new(), places: Vec::new(), onnx: None };
    for name in device_names(settings) {
        loader.open(name)?;
    }
    let (mut models, mut problems) = (Vec::new(), Vec::new());
    for (index, entry) in settings.models.iter().enumerate() {
        match loader.load(index, entry) {
            Ok(model) => models.push(model),
            Err(error) => problems.push(of_entry(entry, &error)),
        }
    }
    if problems.is_empty() { Ok(Loaded { models, devices: loader.devices }) } else { Err(Error(problems.join("\n"))) }
}

/// What a device takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Runs {
    Folders,
    Engines,
}

/// Devices in the making.
struct Loader<'a> {
    settings: &'a Settings,
    bell: &'a mut dyn FnMut() -> Arc<Doorbell>,
    devices: Vec<LoadedDevice>,
    /// What each of the configured ones runs.
    places: Vec<(usize, Runs)>,
    /// The one that runs ONNX files on the CPU, once there is such a model.
    onnx: Option<usize>,
}

impl Loader<'_> {
    fn open(&mut self, name: DeviceName) -> Result<(), Error> {
        let bell = (self.bell)();
        let notify = Arc::new(move || bell.ring());
        let (device, runs): (Box<dyn Device>, Runs) = match name {
            DeviceName::Cpu => (Box::new(Cpu::new(&self.settings.cpu, notify)), Runs::Folders),
            DeviceName::Sim => (Box::new(Sim::new((&self.settings.sim).into())), Runs::Folders),
            DeviceName::Cuda(index) => (gpu::open(index, self.settings, notify)?, Runs::Engines),
        };
        self.places.push((self.devices.len(), runs));
        self.devices.push(LoadedDevice { device, offers: Vec::new() });
        Ok(())
    }

    /// Each device that can run the model, and the model as that device takes it: an engine for GPUs, made if need be.
    fn homes(&mut self, entry: &ModelSettings, model: &Arc<Model>) -> Result<Vec<(usize, Arc<Model>)>, Error> {
        let of = |runs| self.places.iter().filter(move |(_, known)| *known == runs).map(|(index, _)| *index);
        let engines: Vec<usize> = of(Runs::Engines).collect();
        let mut homes: Vec<(usize, Arc<Model>)> = match &model.source {
            Source::Folder(_) => of(Runs::Folders).map(|index| (index, Arc::clone(model))).collect(),
            Source::Onnx(_) if engines.is_empty() => vec![(self.onnx_device()?, Arc::clone(model))],
            Source::Engine(path) if engines.is_empty() => return Err(Error(unsupported(path))),
            Source::Onnx(_) | Source::Engine(_) => Vec::new(),
        };
        if !engines.is_empty() {
            let engine = Arc::new(gpu::engine(self.settings, entry, model)?);
            homes.extend(engines.into_iter().map(|index| (index, Arc::clone(&engine))));
        }
        Ok(homes)
    }

    fn load(&mut self, index: usize, entry: &ModelSettings) -> Result<LoadedModel, Error> {
        let (model, vocabulary) = load_model_with_vocabulary(entry)?;
        let mut model = Arc::new(model);
        let words = |error: LoadError| Error(error.0);
        let tokenizer = Tokenizer::load(&model.tokenizer).map_err(words)?;
        let key = ModelKey { index: index as u32, generation: 0 };
        let homes = self.homes(entry, &model)?;
        let mut width = 0;
        for (device, taken) in &homes {
            let device = &mut self.devices[*device];
            let offer = device.device.load(key, taken).map_err(words)?;
            if model.max_length == LENGTH_OF_THE_PROFILES {
                model = Arc::new(Model { max_length: offer.length_max() as usize, ..(*model).clone() });
            }
            check_offer(&model, &offer)?;
            width = offer.width;
            // The simulated device has nothing to warm, and its faults go by number of submission.
            if device.device.name() != SIMULATED {
                device.warm_up(key, &tokenizer, &model).map_err(words)?;
            }
            device.offers.push((key, offer));
        }
        let (single, pair) = tokenizer.specials();
        let specials = if model.task == Task::Embedding { single } else { pair };
        if model.max_length <= specials {
            let length = model.max_length;
            return Err(Error(format!("max_length {length} leaves no room for text beside {specials} special tokens")));
        }
        let rows = model.geometry.as_ref().map(|geometry| geometry.vocabulary).or(vocabulary);
        let vocabulary = usable_ids(&model, &tokenizer, rows);
        let devices = homes.iter().map(|(device, _)| *device).collect();
        Ok(LoadedModel { key, model, tokenizer, width, vocabulary, devices })
    }

    #[cfg(feature = "onnxruntime")]
    fn onnx_device(&mut self) -> Result<usize, Error> {
        if let Some(index) = self.onnx {
            return Ok(index);
        }
        let bell = (self.bell)();
        let device = crate::device::onnx::Onnx::new(&self.settings.cpu, None, Arc::new(move || bell.ring()))
            .map_err(|error| Error(error.0))?;
        self.devices.push(LoadedDevice { device: Box::new(device), offers: Vec::new() });
        self.onnx = Some(self.devices.len() - 1);
        Ok(self.devices.len() - 1)
    }

    #[cfg(not(feature = "onnxruntime"))]
    fn onnx_device(&mut self) -> Result<usize, Error> {
        match self.onnx {
            Some(index) => Ok(index),
            None => Err(Error(
                "an ONNX file runs on a GPU here, and no GPU is among the devices; a binary built with `--features \
                 onnxruntime` runs it on the CPU"
                    .into(),
            )),
        }
    }
}

/// Whether the model's tokenizer is one, which is a matter of a second for the largest.
///
/// # Errors
/// Why it cannot be read.
pub fn check_tokenizer(model: &Model) -> Result<(), Error> {
    Tokenizer::load(&model.tokenizer).map(drop).map_err(|error| Error(error.0))
}

/// An error of this entry of the configuration, said once.
pub fn of_entry(entry: &ModelSettings, error: &Error) -> String {
    let prefix = format!("{}: model `{}`: ", entry.place, entry.name);
    let words = error.to_string();
    if words.starts_with(&prefix) { words } else { prefix + &words }
}

/// Whether an engine of the buckets that are configured could be built of this model, where a GPU may need one.
pub fn check_buckets(settings: &Settings, model: &Model) -> Result<(), Error> {
    let has_gpu = |name: &DeviceName| matches!(name, DeviceName::Cuda(_));
    let may = match &settings.devices {
        Devices::List(names) => names.iter().any(has_gpu),
        Devices::Auto => cfg!(feature = "gpu"),
    };
    match (&settings.gpu.buckets, &model.source) {
        (Some(asked), Source::Folder(_)) if may => buckets(asked, settings.gpu.layout, Some(model.max_length))
            .map(|_| ())
            .map_err(|words| Error(format!("gpu.buckets: {words}"))),
        (Some(_) | None, Source::Folder(_) | Source::Onnx(_) | Source::Engine(_)) => Ok(()),
    }
}

/// What the configuration's entry and the model's own files say together.
pub fn load_model(entry: &ModelSettings) -> Result<Model, Error> {
    load_model_with_vocabulary(entry).map(|(model, _)| model)
}

/// The same, with the rows of the table of tokens where an engine's manifest says them.
fn load_model_with_vocabulary(entry: &ModelSettings) -> Result<(Model, Option<usize>), Error> {
    let found = |text: &str, wanted| fetch::resolve(text, wanted).map_err(|error| Error(error.to_string()));
    let path = found(&entry.model_path, Wanted::Model)?;
    let tokenizer = entry.tokenizer_path.as_deref().map(|text| found(text, Wanted::Tokenizer)).transpose()?;
    let words = |error: LoadError| Error(error.0);
    if path.is_dir() {
        return folder::read(&path, tokenizer.as_deref(), entry).map(|model| (model, None)).map_err(words);
    }
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    match extension {
        "onnx" if cfg!(any(feature = "onnxruntime", feature = "gpu")) => {
            convert::read(&path, tokenizer.as_deref(), entry).map(|model| (model, None)).map_err(words)
        }
        "engine" | "plan" | "trt" if cfg!(feature = "gpu") => {
            let (model, manifest) = manifest::read_engine(&path, tokenizer.as_deref(), entry).map_err(words)?;
            Ok((model, manifest.and_then(|manifest| manifest.model?.vocabulary)))
        }
        _ => Err(Error(unsupported(&path))),
    }
}

fn unsupported(path: &Path) -> String {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let path: PathBuf = path.to_owned();
    match extension {
        "onnx" => format!(
            "{} is an ONNX file: the CPU device runs model folders; a binary built with `--features onnxruntime` runs ONNX \
             on the CPU, one with `--features tensorrt` or `tensorrt-rtx` on a GPU",
            path.display()
        ),
        "engine" | "plan" | "trt" if cfg!(feature = "gpu") => {
            format!("{} is a TensorRT engine, which runs on a GPU, and no GPU is among the devices", path.display())
        }
        "engine" | "plan" | "trt" => format!(
            "{} is a TensorRT engine, which runs on a GPU only, by a binary built with TensorRT; the CPU device runs model \
             folders",
            path.display()
        ),
        _ => format!("{} is neither a model folder nor a file of a known kind", path.display()),
    }
}

fn check_offer(model: &Model, offer: &Offer) -> Result<(), Error> {
    if (offer.length_max() as usize) < model.max_length {
        return Err(Error(format!(
            "max_length {} is more than the {} tokens that the device's largest bucket holds",
            model.max_length,
            offer.length_max()
        )));
    }
    Ok(())
}

/// Ids that may be sent are below this. `rows`: of the table of tokens, where that is known.
fn usable_ids(model: &Model, tokenizer: &Tokenizer, rows: Option<usize>) -> u32 {
    let made = tokenizer.vocabulary();
    let Some(rows) = rows else { return made };
    if made as usize > rows {
        crate::log::warn(format_args!(
            "{} has {made} tokens, but model `{}` has rows for {}; a text that needs another is refused",
            model.tokenizer.display(),
            model.name,
            rows
        ));
    }
    rows as u32
}
