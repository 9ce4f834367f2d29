//! The onnxruntime device: any `.onnx`, ours or anybody's, on this machine's cores (feature `onnxruntime`).
//!
//! The library is not linked but opened when the first device is made; where it was looked for is in the error if it is not
//! there. A lane is a thread with a session of its own per model. What a file wants and gives is read from its ports, by
//! name, type and shape (`signature`): padded engines as users bring them, whose hidden states are pooled here where they
//! do not pool themselves, and our own packed layout.
//!
//! Invariants: dimensions that the file leaves open are bounds here, so a run is never larger than its plan; dimensions that
//! it fixes are filled up with padding. A file is run once when it is loaded, so what cannot run is a [`LoadError`], not a
//! fault under load. Token ids are not checked against the vocabulary, which the file does not state; onnxruntime refuses
//! those outside.

mod batch;
mod library;
mod signature;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use ort::environment::Environment;
use ort::session::{Session, SessionInputValue};
use ort::value::{Tensor, TensorElementType, TensorRef};

use self::batch::Batch;
use self::signature::Signature;
use super::lane::{LaneThread, Notify};
use super::ports::{self, Kind};
use super::{Bucket, Device, Fault, Health, Lane, LoadError, Offer, Pieces, Plan};
use crate::config;
use crate::job::ModelKey;
use crate::model::convert::Metadata;
use crate::model::onnx::Summary;
use crate::model::{Model, Source};

/// Everything one run needs and leaves behind.
#[derive(Debug, Default)]
struct Work {
    batch: Batch,
    /// Who computes; `None` at home between runs.
    order: Option<Order>,
    /// `width` values for each sequence of the batch.
    outputs: Vec<f32>,
    width: usize,
}

#[derive(Debug)]
struct Order {
    session: Arc<Mutex<Session>>,
    signature: Arc<Signature>,
}

#[derive(Debug)]
struct Loaded {
    generation: u32,
    signature: Arc<Signature>,
    buckets: Vec<Bucket>,
    length_max: u32,
    /// One per lane.
    sessions: Vec<Arc<Mutex<Session>>>,
}

#[derive(Debug)]
pub struct Onnx {
    environment: Environment,
    lanes: Vec<LaneThread<Work>>,
    threads_per_lane: usize,
    tokens_max: u32,
    /// By [`ModelKey::index`].
    models: Vec<Option<Loaded>>,
}

impl Onnx {
    /// Opens the library and starts the lanes' threads. `notify` is called, from a lane's thread, whenever a lane becomes
    /// [`Lane::Done`].
    ///
    /// `library` is the file to open; `None`: the one that `ORT_DYLIB_PATH` names, else the system's. A process opens one.
    pub fn new(settings: &config::Cpu, library: Option<&Path>, notify: Notify) -> Result<Onnx, LoadError> {
        let environment = library::environment(library)?;
        let lane = |index| LaneThread::new(format!("onnx-lane-{index}"), Work::default(), notify.clone(), run);
        Ok(Onnx {
            environment,
            lanes: (0..settings.lanes.max(1)).map(lane).collect(),
            threads_per_lane: settings.threads_per_lane.max(1),
            tokens_max: settings.tokens_max,
            models: Vec::new(),
        })
    }

    fn session(&self, path: &Path) -> Result<Session, LoadError> {
        let words = |error: String| LoadError(format!("{}: onnxruntime cannot load it: {error}", path.display()));
        Session::builder(&self.environment)
            .map_err(|error| words(error.to_string()))?
            .with_intra_threads(self.threads_per_lane)
            .map_err(|error| words(error.to_string()))?
            // Its threads would otherwise spin between runs, on the cores that the rest of the server needs.
            .with_intra_op_spinning(false)
            .map_err(|error| words(error.to_string()))?
            .commit_from_file(path)
            .map_err(|error| words(error.to_string()))
    }
}

impl Device for Onnx {
    fn load(&mut self, key: ModelKey, model: &Arc<Model>) -> Result<Offer, LoadError> {
        let path = match &model.source {
            Source::Onnx(path) => path,
            Source::Folder(path) | Source::Engine(path) => {
                return Err(LoadError(format!("{}: onnxruntime runs .onnx files only", path.display())));
            }
        };
        let at = |words: String| LoadError(format!("{}: {words}", path.display()));
        let mut first = self.session(path)?;
        let summary = Summary::read(path).map_err(|error| at(error.to_string()))?;
        let metadata = Metadata::of(&summary).map_err(at)?;
        let mut signature = Signature::read(&first, model, metadata.as_ref()).map_err(at)?;
        let trial = trial(&mut first, &mut signature, model);
        trial.map_err(|words| at(format!("a trial run failed: {words}")))?;
        let buckets = signature.buckets(self.tokens_max, model.max_length as u32).map_err(at)?;
        let signature = Arc::new(signature);
        let mut sessions = vec![Arc::new(Mutex::new(first))];
        while sessions.len() < self.lanes.len() {
            sessions.push(Arc::new(Mutex::new(self.session(path)?)));
        }
        let offer = Offer {
            layout: signature.layout(),
            buckets: buckets.clone(),
            width: signature.ports.output.width as u32,
            costs_ns: Vec::new(),
        };
        let length_max = model.max_length as u32;
        let index = key.index as usize;
        if self.models.len() <= index {
            self.models.resize_with(index + 1, || None);
        }
        self.models[index] = Some(Loaded { generation: key.generation, signature, buckets, length_max, sessions });
        Ok(offer)
    }

    fn unload(&mut self, key: ModelKey) {
        if let Some(slot) = self.models.get_mut(key.index as usize)
            && slot.as_ref().is_some_and(|loaded| loaded.generation == key.generation)
        {
            *slot = None;
        }
    }

    fn lanes(&self) -> usize {
        self.lanes.len()
    }

    fn submit(&mut self, lane: usize, plan: &Plan, pieces: &Pieces, _now_ns: u64) -> Result<(), Fault> {
        let loaded = self.models.get(plan.model.index as usize).and_then(Option::as_ref);
        let loaded = loaded.filter(|loaded| loaded.generation == plan.model.generation).ok_or(Fault::Refused)?;
        let bucket = *loaded.buckets.get(plan.bucket as usize).ok_or(Fault::Refused)?;
        let too_long = plan.placements.iter().any(|placement| placement.length > loaded.length_max);
        let (session, signature) = (loaded.sessions[lane].clone(), loaded.signature.clone());
        let lane = &mut self.lanes[lane];
        let work = lane.idle().ok_or(Fault::Refused)?;
        if too_long || !work.batch.fill(&signature, bucket, plan, pieces) {
            return Err(Fault::Refused);
        }
        work.order = Some(Order { session, signature });
        lane.start();
        Ok(())
    }

    fn poll(&mut self, lane: usize, _now_ns: u64) -> Lane {
        self.lanes[lane].state()
    }

    fn collect(&mut self, lane: usize, output: &mut dyn FnMut(usize, &[f32])) -> Result<u64, Fault> {
        let finished = self.lanes[lane].finish().ok_or(Fault::Refused)?;
        // Also after a panic: an unloaded model's session goes with its last run.
        finished.work.order = None;
        finished.result?;
        let Work { batch, outputs, width, .. } = finished.work;
        for (index, vector) in outputs.chunks_exact(*width).take(batch.sequences()).enumerate() {
            output(index, vector);
        }
        Ok(finished.busy_ns)
    }

    fn health(&self) -> Health {
        Health::Ready
    }

    fn name(&self) -> &str {
        "onnxruntime"
    }
}

/// What a lane's thread does.
fn run(work: &mut Work) -> Result<(), Fault> {
    let Order { session, signature } = work.order.as_ref().expect("a work goes out with its model");
    let mut session = session.lock().unwrap_or_else(PoisonError::into_inner);
    work.width = signature.ports.output.width;
    // The library's words would go to a log; the seam knows only that the run failed.
    compute(&mut session, signature, &work.batch, &mut work.outputs).map_err(|_| Fault::Failed)
}

/// Runs one sequence of one token, or a whole batch of it where dimensions are fixed, and learns the output's width.
fn trial(session: &mut Session, signature: &mut Signature, model: &Model) -> Result<(), String> {
    let mut batch = Batch::default();
    batch.fill_trial(signature);
    let mut outputs = Vec::new();
    signature.ports.output.width = 0;
    compute(session, signature, &batch, &mut outputs)?;
    let width = outputs.len() / batch.sequences();
    signature.ports.output.width = width;
    signature.ports.check_width(model)
}

/// Runs the batch and leaves one vector for each of its sequences in `outputs`. A signature whose width is 0 takes any.
fn compute(session: &mut Session, signature: &Signature, batch: &Batch, outputs: &mut Vec<f32>) -> Result<(), String> {
    let words = |error: ort::Error| error.to_string();
    let mut inputs: Vec<(&str, SessionInputValue<'_>)> = Vec::with_capacity(signature.ports.inputs.len());
    for input in &signature.ports.inputs {
        let (shape, values) = batch.input(input.role);
        let value = match input.is_wide {
            true => {
                let wide: Vec<i64> = values.iter().map(|&value| i64::from(value)).collect();
                Tensor::from_array((shape, wide)).map_err(words)?.into()
            }
            false => TensorRef::from_array_view((shape, values)).map_err(words)?.into(),
        };
        inputs.push((input.name.as_str(), value));
    }
    let results = session.run(inputs).map_err(words)?;
    let output = &signature.ports.output;
    let value = results.get(&output.name).ok_or_else(|| format!("no output `{}`", output.name))?;
    let halves: Vec<f32>;
    let (shape, values) = match value.dtype().tensor_type() {
        Some(TensorElementType::Float16) => {
            let (shape, values) = value.try_extract_tensor::<half::f16>().map_err(words)?;
            halves = values.iter().map(|value| value.to_f32()).collect();
            (shape, halves.as_slice())
        }
        _ => value.try_extract_tensor::<f32>().map_err(words)?,
    };
    let shape: Vec<usize> = shape.iter().map(|&size| size as usize).collect();
    take(signature, batch, &shape, values, outputs)
}

/// Picks each sequence's vector out of the run's output.
fn take(
    signature: &Signature,
    batch: &Batch,
    shape: &[usize],
    values: &[f32],
    outputs: &mut Vec<f32>,
) -> Result<(), String> {
    let [rows, length] = batch.grid();
    let output = &signature.ports.output;
    let lines = batch.lines(signature.layout());
    let (expected, width) = match output.kind {
        Kind::Column => (vec![lines], 1),
        Kind::Pooled => (vec![lines, shape.last().copied().unwrap_or(0)], shape.last().copied().unwrap_or(0)),
        Kind::Hidden(_) => (vec![rows, length, shape.last().copied().unwrap_or(0)], shape.last().copied().unwrap_or(0)),
    };
    if shape != expected || width == 0 || (output.width != 0 && width != output.width) {
        return Err(format!("output `{}` has shape {shape:?}, expected {expected:?}", output.name));
    }
    outputs.clear();
    for (index, place) in batch.places().iter().enumerate() {
        match output.kind {
            Kind::Column | Kind::Pooled => {
                let line = batch.line(signature.layout(), index);
                outputs.extend_from_slice(&values[line * width..(line + 1) * width]);
            }
            Kind::Hidden(pooling) => {
                let start = place.row * length + place.offset;
                let tokens = &values[start * width..(start + place.length) * width];
                pooling.append(tokens, width, outputs);
            }
        }
    }
    if output.normalize {
        outputs.chunks_exact_mut(width).for_each(ports::normalize);
    }
    Ok(())
}
