//! From settings to loaded devices: folders found or fetched, tokenizers read, weights on every device.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Error;
use crate::config::{DeviceName, Devices, ModelSettings, Settings};
use crate::device::cpu::Cpu;
use crate::device::sim::Sim;
use crate::device::{Device, Offer};
use crate::job::ModelKey;
use crate::model::fetch::{self, Wanted};
use crate::model::{Model, folder};
use crate::ring::Doorbell;
use crate::tokenize::Tokenizer;

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
}

pub struct LoadedDevice {
    pub device: Box<dyn Device>,
    pub offers: Vec<(ModelKey, Offer)>,
}

impl std::fmt::Debug for LoadedDevice {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let LoadedDevice { device, offers } = self;
        formatter.debug_struct("LoadedDevice").field("device", &device.name()).field("offers", offers).finish()
    }
}

/// The devices that the settings name, on this machine.
pub fn device_names(settings: &Settings) -> Result<Vec<DeviceName>, Error> {
    match &settings.devices {
        Devices::Auto => Ok(vec![DeviceName::Cpu]),
        Devices::List(names) => {
            for name in names {
                if let DeviceName::Cuda(index) = name {
                    return Err(Error(format!(
                        "devices: cuda:{index} needs a binary built with TensorRT; this one serves on `cpu`"
                    )));
                }
            }
            Ok(names.clone())
        }
    }
}

/// Loads every model onto every device. `bells`: one per device, rung when a lane ends.
pub fn load(settings: &Settings, bells: &[Arc<Doorbell>]) -> Result<Loaded, Error> {
    if settings.models.is_empty() {
        return Err(Error("the configuration names no model; `reactrt demo` brings one".into()));
    }
    let mut devices: Vec<LoadedDevice> = device_names(settings)?
        .into_iter()
        .zip(bells)
        .map(|(name, bell)| LoadedDevice { device: open(name, settings, bell), offers: Vec::new() })
        .collect();
    let mut models = Vec::new();
    for (index, entry) in settings.models.iter().enumerate() {
        let failed = |error: &dyn std::fmt::Display| Error(format!("{}: model `{}`: {error}", entry.place, entry.name));
        let model = Arc::new(load_model(entry).map_err(|error| failed(&error))?);
        let tokenizer = Tokenizer::load(&model.tokenizer).map_err(|error| failed(&error))?;
        let key = ModelKey { index: index as u32, generation: 0 };
        let mut width = 0;
        for device in &mut devices {
            let offer = device.device.load(key, &model).map_err(|error| failed(&error))?;
            check_offer(&model, &offer).map_err(|error| failed(&error))?;
            width = offer.width;
            device.offers.push((key, offer));
        }
        let vocabulary = vocabulary(&model, &tokenizer);
        models.push(LoadedModel { key, model, tokenizer, width, vocabulary });
    }
    Ok(Loaded { models, devices })
}

fn open(name: DeviceName, settings: &Settings, bell: &Arc<Doorbell>) -> Box<dyn Device> {
    let bell = Arc::clone(bell);
    match name {
        DeviceName::Cpu => Box::new(Cpu::new(&settings.cpu, Arc::new(move || bell.ring()))),
        DeviceName::Sim => Box::new(Sim::new((&settings.sim).into())),
        DeviceName::Cuda(_) => unreachable!("refused by device_names"),
    }
}

/// What the configuration's entry and the model's own files say together.
pub fn load_model(entry: &ModelSettings) -> Result<Model, Error> {
    let found = |text: &str, wanted| fetch::resolve(text, wanted).map_err(|error| Error(error.to_string()));
    let path = found(&entry.model_path, Wanted::Model)?;
    let tokenizer = entry.tokenizer_path.as_deref().map(|text| found(text, Wanted::Tokenizer)).transpose()?;
    if path.is_dir() {
        return folder::read(&path, tokenizer.as_deref(), entry).map_err(|error| Error(error.to_string()));
    }
    Err(Error(unsupported(&path)))
}

fn unsupported(path: &Path) -> String {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let path: PathBuf = path.to_owned();
    match extension {
        "onnx" => format!(
            "{} is an ONNX file: the CPU device runs model folders; a binary built with `--features onnxruntime` runs ONNX",
            path.display()
        ),
        "engine" | "plan" | "trt" => format!(
            "{} is a TensorRT engine, which runs on a GPU only; the CPU device runs model folders",
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

/// Ids that may be sent are below this.
fn vocabulary(model: &Model, tokenizer: &Tokenizer) -> u32 {
    let made = tokenizer.vocabulary();
    let Some(geometry) = &model.geometry else { return made };
    if made as usize > geometry.vocabulary {
        eprintln!(
            "warning: {} has {made} tokens, but model `{}` has rows for {}; a text that needs another is refused",
            model.tokenizer.display(),
            model.name,
            geometry.vocabulary
        );
    }
    geometry.vocabulary as u32
}
