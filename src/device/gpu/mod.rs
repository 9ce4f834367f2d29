//! A GPU behind the seam: models as engines, lanes as streams, buckets as captured graphs.
//!
//! Everything that can be decided without a vendor's library is decided here, over a [`Backend`]; so all of it runs in this
//! room's tests, faults included. A plan's way: `submit` checks that it fits, writes its tokens into the lane's page-locked
//! memory and queues upload, run and download on the lane's stream; `poll` looks at the last event; `collect` reads the vectors
//! out of page-locked memory. While one lane runs, the copies of the other go on beside it. `arm` lets the end of what runs ring
//! the device thread's bell, on a stream of its own: a bell in the lane's stream would hold up the lane's next run.
//!
//! **Graphs.** Each bucket of each model on each lane has an execution context of its own, which never sees another shape:
//! graphs captured from one context whose shapes change later may replay the wrong thing. A bucket whose capture is refused
//! runs eagerly, with the same answers; that is said once and counted.
//!
//! **Costs.** What a batch of each bucket takes is measured when its model is loaded and offered to the planner: it depends on
//! the model, the GPU and the shape, not on tokens alone (64 × 128 tokens took 0.88 of what 16 × 512 did).
//!
//! **Faults.** Every return code is looked at. A call that fails is a fault of that plan alone; the lane's contexts and graphs
//! are made anew. A failure after which every further call fails, or a run that takes longer than it may, makes the device
//! [`Health::Dead`].
//!
//! Invariant: `submit`, `poll` and `collect` neither block nor allocate (models with `reuse_dynamic_buffer: false` take
//! device memory for each run, as they ask to; a lane is rebuilt after a fault).

pub mod backend;
mod counters;
mod fill;
mod lane;
mod shapes;
#[cfg(test)]
mod tests;

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use self::backend::Slices;
pub use self::backend::{Backend, Bell, Failure, Free};
pub use self::counters::{GpuCounters, SlotCounters};
use self::fill::Place;
use self::lane::{Addresses, Sizes, Station, Track};
use self::shapes::{Extent, Slot};
use super::ports::{self, Kind, Pool, Ports};
use super::{Bucket, Device, Fault, Health, Lane, LoadError, Offer, Pieces, Plan};
use crate::config;
use crate::job::ModelKey;
use crate::model::engine::ElementType;
use crate::model::{Model, Source};

/// How often, and with how many batches on each lane, a bucket's cost is measured when a model is loaded.
const COST_TRIALS: usize = 3;
const COST_REPLAYS: usize = 2;

/// A model on the GPU.
struct Loaded<B: Backend> {
    key: ModelKey,
    /// By lane, then by bucket. Before the engine, which they were made from.
    stations: Vec<Vec<Station<B>>>,
    slots: Vec<Prepared>,
    ports: Ports,
    unpositioned: Option<(u32, u32)>,
    /// Device memory is taken for each run and given back.
    is_frugal: bool,
    engine: B::Engine,
}

/// One bucket with all that a run of it needs to know.
struct Prepared {
    slot: Slot,
    extent: Extent,
    addresses: Addresses,
    sizes: Sizes,
    counters: Arc<SlotCounters>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    /// Running for this model (by index) and bucket.
    Busy {
        model: usize,
        slot: usize,
        submitted_ns: u64,
    },
    Done {
        model: usize,
        slot: usize,
        result: Result<u64, Fault>,
    },
}

/// One lane with what it is doing.
struct Work<B: Backend> {
    track: Track<B>,
    state: State,
    /// Of the plan in hand.
    places: Vec<Place>,
    /// Whether the end of the run under way rings.
    is_armed: bool,
}

/// See the module's head.
pub struct Gpu<B: Backend> {
    /// By [`ModelKey::index`]. Before the lanes, whose memory and streams they use.
    models: Vec<Option<Loaded<B>>>,
    lanes: Vec<Work<B>>,
    /// Room for one vector that is converted or pooled.
    vector: Vec<f32>,
    /// Room for the token vectors that a mean is taken of.
    tokens: Vec<f32>,
    settings: Settings,
    health: Health,
    counters: Arc<GpuCounters>,
    /// When this device was made; [`Run`]s count from here.
    origin: B::Event,
    /// The last runs, if anybody asked for them.
    trace: Option<Vec<Run>>,
    backend: B,
}

/// How a GPU is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub lanes: usize,
    pub slots_max: usize,
    pub hang_ns: u64,
    /// The batch that the configuration asks for, which engines must be able to hold.
    pub sequences_max: Option<u32>,
}

impl From<&config::Settings> for Settings {
    fn from(settings: &config::Settings) -> Settings {
        Settings {
            lanes: settings.gpu.lanes,
            slots_max: settings.gpu.buckets_per_model_max,
            hang_ns: settings.gpu.hang_ms * 1_000_000,
            sequences_max: settings.batching.sequences_max,
        }
    }
}

/// The four moments of one run on a lane, in nanoseconds since the device was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub lane: usize,
    pub began_ns: u64,
    pub uploaded_ns: u64,
    pub computed_ns: u64,
    pub done_ns: u64,
}

impl<B: Backend> Gpu<B> {
    /// Makes the lanes. The backend rings when a lane is done.
    pub fn new(backend: B, settings: Settings) -> Result<Gpu<B>, LoadError> {
        let refused = |failure: Failure| LoadError(format!("{}: {failure}", backend.name()));
        backend.enter().map_err(refused)?;
        let lane =
            |_| Ok(Work { track: Track::new(&backend)?, state: State::Idle, places: Vec::new(), is_armed: false });
        let lanes = (0..settings.lanes.max(1)).map(lane).collect::<Result<Vec<Work<B>>, Failure>>().map_err(refused)?;
        let origin = backend.event().map_err(refused)?;
        backend.record(&origin, &lanes[0].track.stream).map_err(refused)?;
        backend.synchronize(&lanes[0].track.stream).map_err(refused)?;
        Ok(Gpu {
            models: Vec::new(),
            lanes,
            vector: Vec::new(),
            tokens: Vec::new(),
            settings,
            health: Health::Ready,
            counters: Arc::new(GpuCounters::default()),
            origin,
            trace: None,
            backend,
        })
    }

    /// Keeps the times of the next `count` runs.
    pub fn trace(&mut self, count: usize) {
        self.trace = Some(Vec::with_capacity(count));
    }

    /// The runs since [`Gpu::trace`].
    pub fn runs(&self) -> &[Run] {
        self.trace.as_deref().unwrap_or_default()
    }

    /// What the library takes by itself: the bucket's graph, `count` times on each of the first `lanes` lanes, one behind the
    /// other and without any copy, on whatever was uploaded there last. Returns when all have ended. A bucket without a graph
    /// runs eagerly. For measurements: the lanes must be idle.
    ///
    /// # Errors
    /// A call that failed; the lanes are not made anew for it.
    ///
    /// # Panics
    /// When there is no such model, bucket or lane.
    pub fn replay(&mut self, key: ModelKey, bucket: usize, lanes: usize, count: usize) -> Result<(), Failure> {
        let Gpu { backend, lanes: works, models, .. } = self;
        let loaded = models[key.index as usize].as_mut().expect("the model is loaded");
        backend.enter()?;
        for _ in 0..count {
            for (work, stations) in works[..lanes].iter().zip(&mut loaded.stations) {
                stations[bucket].execute(backend, &work.track.stream)?;
            }
        }
        works[..lanes].iter().try_for_each(|work| backend.synchronize(&work.track.stream))
    }

    /// What `/metrics` shows of it.
    pub fn counters(&self) -> Arc<GpuCounters> {
        Arc::clone(&self.counters)
    }

    fn loaded(&self, key: ModelKey) -> Option<&Loaded<B>> {
        self.models.get(key.index as usize)?.as_ref().filter(|loaded| loaded.key == key)
    }

    /// Everything of a model that fits or fails before any memory is taken.
    fn prepare(&self, key: ModelKey, model: &Model, path: &Path) -> Result<Loaded<B>, LoadError> {
        let at = |words: String| LoadError(format!("{}: {words}", path.display()));
        check_room(&self.backend, path)?;
        let engine = self.backend.engine(path)?;
        let description = self.backend.description(&engine);
        let mut ports = Ports::read(&description.inputs, &description.outputs, model).map_err(at)?;
        let slots = shapes::slots(&description, &ports, model, self.settings.sequences_max, self.settings.slots_max);
        let slots = slots.map_err(at)?;
        let name =
            |text: &str| CString::new(text).map_err(|_| at(format!("a tensor's name holds a zero byte: {text:?}")));
        let names: Vec<CString> = ports.inputs.iter().map(|input| name(&input.name)).collect::<Result<_, _>>()?;
        let output = name(&ports.output.name)?;
        if ports.output.width == 0 {
            // An engine that leaves its width open says it once shapes are given.
            let stream = &self.lanes[0].track.stream;
            let mut context = self.backend.context(&engine, slots[0].profile, stream)?;
            set_shapes(&self.backend, &mut context, &ports, &mut names.iter(), slots[0].bucket)?;
            let shape = self.backend.shape(&context, &output);
            ports.output.width = shape.last().and_then(|&size| usize::try_from(size).ok()).unwrap_or(0);
        }
        ports.check_width(model).map_err(at)?;
        if ports.output.width == 0 {
            return Err(at(format!("output `{}` has no values", ports.output.name)));
        }
        let is_frugal = !model.reuse_dynamic_buffer;
        let prepared = slots.into_iter().map(|slot| {
            let extent = shapes::extent(&ports, slot.bucket);
            let inputs = names.iter().cloned().zip(extent.inputs.iter().map(|(offset, _)| *offset)).collect();
            let addresses = Addresses { inputs, output: output.clone() };
            let counters = self.counters.slot(&model.name, slot.bucket);
            let sizes = Sizes { input: extent.input_bytes, output: extent.output_bytes, scratch: 0 };
            let slot = Slot { captured: slot.captured && !is_frugal, ..slot };
            Prepared { slot, extent, addresses, sizes, counters }
        });
        let slots: Vec<Prepared> = prepared.collect();
        Ok(Loaded { key, stations: Vec::new(), slots, ports, unpositioned: model.unpositioned, is_frugal, engine })
    }

    /// Makes a model's contexts for one lane, shaped but without addresses, and notes the scratch memory that they need.
    fn stations(&self, loaded: &mut Loaded<B>, lane: usize) -> Result<Vec<Station<B>>, LoadError> {
        let stream = &self.lanes[lane].track.stream;
        let mut stations = Vec::with_capacity(loaded.slots.len());
        for prepared in &mut loaded.slots {
            let mut context = self.backend.context(&loaded.engine, prepared.slot.profile, stream)?;
            let names = &mut prepared.addresses.names();
            set_shapes(&self.backend, &mut context, &loaded.ports, names, prepared.slot.bucket)?;
            let (found, output) = (self.backend.shape(&context, &prepared.addresses.output), &loaded.ports.output);
            let expected = shapes::output_shape(output, loaded.ports.layout, prepared.slot.bucket);
            if found != expected {
                return Err(LoadError(format!("output `{}` has shape {found:?}, expected {expected:?}", output.name)));
            }
            prepared.sizes.scratch = prepared.sizes.scratch.max(self.backend.scratch_bytes(&mut context)?);
            stations.push(Station { graph: None, context });
        }
        Ok(stations)
    }

    /// Gives a model's stations on a lane their addresses, runs each once and captures what is to be captured.
    fn ready(&mut self, loaded: &mut Loaded<B>, lane: usize) -> Result<(), LoadError> {
        let Gpu { backend, lanes, counters, .. } = self;
        let track = &mut lanes[lane].track;
        let failed = |failure: Failure| LoadError(format!("a trial run on {} failed: {failure}", backend.name()));
        if loaded.is_frugal {
            return Ok(());
        }
        // Zeros are tokens of every vocabulary; whatever else lay in fresh memory is not.
        track.input_host.fill(0);
        let bytes = track.sizes.input;
        backend.upload(&track.stream, &mut track.input, &track.input_host, bytes).map_err(failed)?;
        for (prepared, station) in loaded.slots.iter().zip(&mut loaded.stations[lane]) {
            let Track { input, output, scratch, .. } = &*track;
            prepared.addresses.set(&*backend, &mut station.context, input, output, scratch)?;
            // Also what a capture needs: the first run of a shape may do work that cannot be captured.
            backend.enqueue(&mut station.context, &track.stream).map_err(failed)?;
            backend.synchronize(&track.stream).map_err(failed)?;
            if !prepared.slot.captured {
                continue;
            }
            if let Err(failure) = track.capture(&*backend, station) {
                if failure.is_sticky {
                    return Err(failed(failure));
                }
                let (name, bucket) = (backend.name(), prepared.slot.bucket);
                let (rows, length) = (bucket.rows, bucket.length);
                crate::log::warn(format_args!(
                    "{name}: {rows} × {length} runs without a graph on lane {lane}: {failure}"
                ));
                counters.capture_failures.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Room for the model on every lane. Where memory had to move, the other models' stations are made ready again.
    fn grow(&mut self, wanted: Sizes) -> Result<(), LoadError> {
        for lane in 0..self.lanes.len() {
            if self.lanes[lane].track.grow(&self.backend, wanted)? {
                for model in 0..self.models.len() {
                    if let Some(mut other) = self.models[model].take() {
                        let again = self.ready(&mut other, lane);
                        self.models[model] = Some(other);
                        again?;
                    }
                }
            }
        }
        Ok(())
    }

    /// What a batch of each bucket takes while all lanes run, the best of a few.
    fn costs(&mut self, key: ModelKey, buckets: usize) -> Result<Vec<u64>, LoadError> {
        let lanes = self.lanes.len();
        let mut costs_ns = Vec::with_capacity(buckets);
        for bucket in 0..buckets {
            let mut best_ns = u64::MAX;
            for _ in 0..COST_TRIALS {
                let start = Instant::now();
                if let Err(failure) = self.replay(key, bucket, lanes, COST_REPLAYS) {
                    // Some of the lanes may still run it.
                    self.unload(key);
                    return Err(LoadError(format!("a trial run on {} failed: {failure}", self.backend.name())));
                }
                let batches = (lanes * COST_REPLAYS) as u64;
                best_ns = best_ns.min(start.elapsed().as_nanos() as u64 / batches);
            }
            costs_ns.push(best_ns.max(1));
        }
        Ok(costs_ns)
    }

    /// After a failed call: the lane's stream is emptied and all that was captured or bound on it is made anew.
    fn rebuild(&mut self, lane: usize) -> Result<(), LoadError> {
        self.counters.lane_rebuilds.fetch_add(1, Ordering::Relaxed);
        let failed = |failure: Failure| LoadError(failure.to_string());
        self.backend.synchronize(&self.lanes[lane].track.stream).map_err(failed)?;
        for model in 0..self.models.len() {
            if let Some(mut loaded) = self.models[model].take() {
                // The old ones go first: there may be no room for both.
                loaded.stations[lane].clear();
                let again = self.stations(&mut loaded, lane).and_then(|stations| {
                    loaded.stations[lane] = stations;
                    self.ready(&mut loaded, lane)
                });
                self.models[model] = Some(loaded);
                again?;
            }
        }
        Ok(())
    }

    /// What a failed call means for the plan at hand, and what is done about it.
    fn fault(&mut self, lane: usize, failure: Failure, mild: Fault) -> Fault {
        if failure.is_sticky {
            crate::log::error(format_args!("{} is given up: {failure}", self.backend.name()));
            self.health = Health::Dead;
            return Fault::Dead;
        }
        crate::log::warn(format_args!(
            "{}: a batch on lane {lane} failed: {failure}; its lane is made anew",
            self.backend.name()
        ));
        if let Err(error) = self.rebuild(lane) {
            crate::log::error(format_args!(
                "{} is given up: lane {lane} cannot be made anew: {error}",
                self.backend.name()
            ));
            self.health = Health::Dead;
            return Fault::Dead;
        }
        mild
    }

    /// The four times of the run that has just ended.
    fn times(&mut self, lane: usize) -> Result<u64, Failure> {
        let events = &self.lanes[lane].track.events;
        let upload_ns = self.backend.elapsed_ns(&events.began, &events.uploaded)?;
        let compute_ns = self.backend.elapsed_ns(&events.uploaded, &events.computed)?;
        let download_ns = self.backend.elapsed_ns(&events.computed, &events.done)?;
        self.counters.count_times(upload_ns, compute_ns, download_ns);
        if let Some(trace) = self.trace.as_mut().filter(|trace| trace.len() < trace.capacity()) {
            let began_ns = self.backend.elapsed_ns(&self.origin, &events.began)?;
            let (uploaded_ns, computed_ns) = (began_ns + upload_ns, began_ns + upload_ns + compute_ns);
            trace.push(Run { lane, began_ns, uploaded_ns, computed_ns, done_ns: computed_ns + download_ns });
        }
        Ok(upload_ns + compute_ns + download_ns)
    }

    fn start(&mut self, lane: usize, plan: &Plan, pieces: &Pieces) -> Result<(), Failure> {
        let Gpu { backend, lanes, models, .. } = self;
        let Work { track, places, .. } = &mut lanes[lane];
        let index = plan.model.index as usize;
        let loaded = models[index].as_mut().expect("submit has looked");
        let Prepared { slot, extent, addresses, sizes, counters } = &loaded.slots[plan.bucket as usize];
        let station = &mut loaded.stations[lane][plan.bucket as usize];
        let ports = &loaded.ports;
        fill::fill(&mut track.input_host, ports, extent, slot.bucket, plan, pieces, loaded.unpositioned);
        fill::places(plan, ports.layout, places);
        let slices = slices(ports, slot, places);
        counters.count(station.graph.is_some());
        let rows = places.last().map_or(1, |place| place.line + 1).max(slot.rows_min);
        if !slot.captured && slot.rows_min < slot.bucket.rows {
            // No graph was captured from this context, so it may change its shape.
            let bucket = Bucket { rows, ..slot.bucket };
            let set = set_shapes(backend, &mut station.context, ports, &mut addresses.names(), bucket);
            set.map_err(|_| Failure { call: "setInputShape", code: 0, is_sticky: false })?;
        }
        match loaded.is_frugal {
            true => track.run_frugally(backend, station, addresses, *sizes, slices),
            false => track.run(backend, station, extent.input_bytes, slices),
        }
    }
}

/// Gives a context the shapes of one bucket. `names` are the inputs', in the order of the ports.
fn set_shapes<B: Backend>(
    backend: &B,
    context: &mut B::Context,
    ports: &Ports,
    names: &mut dyn Iterator<Item = &CString>,
    bucket: Bucket,
) -> Result<(), LoadError> {
    for (input, name) in ports.inputs.iter().zip(names) {
        backend.set_shape(context, name, shapes::shape(input, bucket).as_slice())?;
    }
    Ok(())
}

/// The vectors of the plan's sequences among all that the engine gives.
fn slices(ports: &Ports, slot: &Slot, places: &[Place]) -> Slices {
    let lines = places.last().map_or(0, |place| place.line as usize + 1);
    let vector = ports.output.width * ports.output.element.bytes();
    let row = slot.bucket.length as usize * vector;
    match ports.output.kind {
        Kind::Column | Kind::Pooled => Slices { count: 1, bytes: lines * vector, distance: lines * vector },
        Kind::Hidden(Pool::First) => Slices { count: lines, bytes: vector, distance: row },
        Kind::Hidden(Pool::Mean) => Slices { count: 1, bytes: lines * row, distance: lines * row },
    }
}

/// A plan that cannot be held is refused with its size, instead of by the library in the middle.
fn check_room<B: Backend>(backend: &B, path: &Path) -> Result<(), LoadError> {
    let bytes = std::fs::metadata(path).map_err(|error| LoadError(format!("{}: {error}", path.display())))?.len();
    let Ok(Free { free, total }) = backend.free() else { return Ok(()) };
    match bytes > free {
        true => Err(LoadError(format!(
            "{} needs {bytes} bytes on {}, of whose {total} bytes {free} are free",
            path.display(),
            backend.name()
        ))),
        false => Ok(()),
    }
}

fn engine_path(model: &Model) -> Result<PathBuf, LoadError> {
    match &model.source {
        Source::Engine(path) => Ok(path.clone()),
        Source::Folder(path) | Source::Onnx(path) => {
            Err(LoadError(format!("{}: a GPU runs engines; `reactrt build` makes one", path.display())))
        }
    }
}

impl<B: Backend> Device for Gpu<B> {
    fn load(&mut self, key: ModelKey, model: &Arc<Model>) -> Result<Offer, LoadError> {
        let path = engine_path(model)?;
        self.backend.enter().map_err(|failure| LoadError(failure.to_string()))?;
        let mut loaded = self.prepare(key, model, &path)?;
        for lane in 0..self.lanes.len() {
            let stations = self.stations(&mut loaded, lane)?;
            loaded.stations.push(stations);
        }
        let sizes = loaded.slots.iter().map(|prepared| prepared.sizes).fold(Sizes::default(), Sizes::cover);
        // A frugal model keeps nothing on the GPU; the host's memory is small.
        let device = if loaded.is_frugal { Sizes { scratch: 0, ..sizes } } else { sizes };
        self.grow(device)?;
        for lane in 0..self.lanes.len() {
            self.ready(&mut loaded, lane)?;
        }
        self.backend.keep(&loaded.engine);
        let sequences_max = loaded.slots.iter().map(|prepared| prepared.slot.bucket.sequences_max).max().unwrap_or(0);
        for work in &mut self.lanes {
            work.places.reserve(sequences_max as usize);
        }
        let output = &loaded.ports.output;
        let row = loaded.slots.iter().map(|prepared| prepared.slot.bucket.length as usize).max().unwrap_or(0);
        self.vector.reserve(output.width);
        if output.kind == Kind::Hidden(Pool::Mean) {
            self.tokens.reserve(row * output.width);
        }
        let offer = Offer {
            layout: loaded.ports.layout,
            buckets: loaded.slots.iter().map(|prepared| prepared.slot.bucket).collect(),
            width: output.width as u32,
            costs_ns: Vec::new(),
        };
        let index = key.index as usize;
        if self.models.len() <= index {
            self.models.resize_with(index + 1, || None);
        }
        let is_frugal = loaded.is_frugal;
        self.models[index] = Some(loaded);
        // Nothing of a frugal model is ready to be run.
        let costs_ns = if is_frugal { Vec::new() } else { self.costs(key, offer.buckets.len())? };
        Ok(Offer { costs_ns, ..offer })
    }

    fn unload(&mut self, key: ModelKey) {
        if self.loaded(key).is_some() && self.backend.enter().is_ok() {
            // Nothing of it may still run: contexts die before their stream is idle otherwise.
            for work in &self.lanes {
                let _ = work.track.synchronize(&self.backend);
            }
            self.models[key.index as usize] = None;
        }
    }

    fn lanes(&self) -> usize {
        self.lanes.len()
    }

    fn submit(&mut self, lane: usize, plan: &Plan, pieces: &Pieces, now_ns: u64) -> Result<(), Fault> {
        if self.health == Health::Dead {
            return Err(Fault::Dead);
        }
        let loaded = self.loaded(plan.model).ok_or(Fault::Refused)?;
        let slot = &loaded.slots.get(plan.bucket as usize).ok_or(Fault::Refused)?.slot;
        if self.lanes[lane].state != State::Idle || !fill::fits(plan, pieces, slot.bucket, loaded.ports.layout) {
            return Err(Fault::Refused);
        }
        let started = self.backend.enter().and_then(|()| self.start(lane, plan, pieces));
        if let Err(failure) = started {
            return Err(self.fault(lane, failure, Fault::Refused));
        }
        let (model, slot) = (plan.model.index as usize, plan.bucket as usize);
        self.lanes[lane].state = State::Busy { model, slot, submitted_ns: now_ns };
        self.lanes[lane].is_armed = false;
        Ok(())
    }

    fn poll(&mut self, lane: usize, now_ns: u64) -> Lane {
        let State::Busy { model, slot, submitted_ns } = self.lanes[lane].state else {
            return if self.lanes[lane].state == State::Idle { Lane::Idle } else { Lane::Done };
        };
        let is_done = self.backend.enter().and_then(|()| self.backend.is_done(&self.lanes[lane].track.events.done));
        let result = match is_done {
            Ok(false) if now_ns.saturating_sub(submitted_ns) <= self.settings.hang_ns => return Lane::Busy,
            Ok(false) => {
                crate::log::error(format_args!(
                    "{} is given up: a batch on lane {lane} does not end",
                    self.backend.name()
                ));
                self.health = Health::Dead;
                Err(Fault::Hung)
            }
            Ok(true) => match self.times(lane) {
                Ok(busy_ns) => Ok(busy_ns),
                Err(failure) => Err(self.fault(lane, failure, Fault::Failed)),
            },
            Err(failure) => Err(self.fault(lane, failure, Fault::Failed)),
        };
        self.lanes[lane].state = State::Done { model, slot, result };
        Lane::Done
    }

    fn collect(&mut self, lane: usize, output: &mut dyn FnMut(usize, &[f32])) -> Result<u64, Fault> {
        let State::Done { model, slot, result } = self.lanes[lane].state else { return Err(Fault::Refused) };
        self.lanes[lane].state = State::Idle;
        let busy_ns = result?;
        let Gpu { models, lanes, vector, tokens, .. } = self;
        let Work { track, places, .. } = &lanes[lane];
        let loaded = models[model].as_ref().ok_or(Fault::Failed)?;
        let (ports, length) = (&loaded.ports, loaded.slots[slot].slot.bucket.length as usize);
        let (width, element) = (ports.output.width, ports.output.element);
        let bytes = width * element.bytes();
        for (index, place) in places.iter().enumerate() {
            let line = place.line as usize;
            vector.clear();
            match ports.output.kind {
                Kind::Column | Kind::Pooled | Kind::Hidden(Pool::First) => {
                    append(vector, &track.output_host[line * bytes..(line + 1) * bytes], element);
                }
                Kind::Hidden(Pool::Mean) => {
                    let start = line * length * bytes;
                    tokens.clear();
                    append(tokens, &track.output_host[start..start + place.length as usize * bytes], element);
                    Pool::Mean.append(tokens, width, vector);
                }
            }
            if ports.output.normalize {
                ports::normalize(vector);
            }
            output(index, vector);
        }
        Ok(busy_ns)
    }

    fn health(&self) -> Health {
        self.health
    }

    fn arm(&mut self) -> bool {
        for lane in 0..self.lanes.len() {
            let Work { state, track, is_armed, .. } = &mut self.lanes[lane];
            let State::Busy { model, slot, .. } = *state else { continue };
            if *is_armed {
                continue;
            }
            match self.backend.enter().and_then(|()| track.arm(&self.backend)) {
                Ok(()) => *is_armed = true,
                Err(failure) => {
                    let fault = self.fault(lane, failure, Fault::Failed);
                    self.lanes[lane].state = State::Done { model, slot, result: Err(fault) };
                    return false;
                }
            }
        }
        true
    }

    fn wake_at_ns(&self) -> Option<u64> {
        let deadline = |work: &Work<B>| match work.state {
            State::Busy { submitted_ns, .. } => Some(submitted_ns + self.settings.hang_ns + 1),
            State::Idle | State::Done { .. } => None,
        };
        self.lanes.iter().filter_map(deadline).min()
    }

    fn gpu(&self) -> Option<Arc<GpuCounters>> {
        Some(self.counters())
    }

    fn name(&self) -> &str {
        self.backend.name()
    }
}

/// Appends values as the GPU wrote them, little-endian, in single precision.
fn append(values: &mut Vec<f32>, bytes: &[u8], element: ElementType) {
    match element {
        ElementType::F32 => values.extend(bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes))),
        ElementType::F16 => {
            values.extend(bytes.as_chunks().0.iter().map(|&bytes| half::f16::from_le_bytes(bytes).to_f32()));
        }
        ElementType::Bf16 => {
            values.extend(bytes.as_chunks().0.iter().map(|&bytes| half::bf16::from_le_bytes(bytes).to_f32()));
        }
        ElementType::I32 | ElementType::I64 | ElementType::Other(_) => {
            unreachable!("outputs of other types are refused when ports are read")
        }
    }
}

impl<B: Backend> Drop for Gpu<B> {
    /// Nothing may still run when memory goes. A device that hangs would never end this; its process has to.
    fn drop(&mut self) {
        if self.health == Health::Dead || self.backend.enter().is_err() {
            // Something may still run in there, or nothing can be freed any more.
            #[allow(clippy::mem_forget)]
            std::mem::forget((std::mem::take(&mut self.models), std::mem::take(&mut self.lanes)));
            return;
        }
        for work in &self.lanes {
            // What fails here has failed before, and there is nobody left to tell.
            let _ = work.track.synchronize(&self.backend);
        }
    }
}

impl<B: Backend> std::fmt::Debug for Gpu<B> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Gpu").field("name", &self.backend.name()).finish_non_exhaustive()
    }
}
