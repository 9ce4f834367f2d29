//! An ONNX file becomes a plan.
//!
//! Owned here: the builder, the parsed network with its parser, and one build with its profiles. What is built, under which
//! name it is kept and what is written beside it is `model::build`'s business.
//!
//! Invariant: a network keeps its builder alive, and its parser, whose memory the weights are in, as long as itself.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_void};
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use tensorrt_sys::{Dims, MemoryPoolType, OptProfileSelector, nvinfer1, nvonnxparser};

use super::logger::Mark;
use super::{Library, Owned, element, shape};
use crate::device::LoadError;
#[cfg(feature = "tensorrt-rtx")]
use crate::model::engine::Capability;
use crate::model::engine::{Profile, Target, Tensor, shape_words};

type CreateParser =
    unsafe extern "C" fn(*mut nvinfer1::INetworkDefinition, *mut c_void, i32) -> *mut nvonnxparser::IParser;

/// Makes networks. Needs no GPU.
pub struct Builder {
    builder: Arc<Mutex<Owned<nvinfer1::IBuilder>>>,
    create_parser: CreateParser,
    library: Library,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Builder").field("library", &self.library).finish_non_exhaustive()
    }
}

impl Builder {
    pub(super) fn new(builder: Owned<nvinfer1::IBuilder>, create_parser: CreateParser, library: Library) -> Builder {
        Builder { builder: Arc::new(Mutex::new(builder)), create_parser, library }
    }

    /// Reads an ONNX file, and the weights beside it if it has some. Errors name the node and the operator at fault.
    pub fn network(&self, onnx: &Path) -> Result<Network, LoadError> {
        let refused = |words: String| LoadError(format!("{}: {words}", onnx.display()));
        let path = CString::new(onnx.as_os_str().as_bytes()).map_err(|_| refused("no file has such a name".into()))?;
        let mark = self.library.mark();
        let mut builder = self.builder.lock().unwrap_or_else(PoisonError::into_inner);
        // Every network is strongly typed in these versions: the graph says each node's precision.
        // SAFETY: what is returned is the caller's.
        let network = unsafe { Owned::new(builder.pin().createNetworkV2(0)) };
        let network = network.ok_or_else(|| self.library.refused("no network could be made", mark))?;
        drop(builder);
        // SAFETY: the logger lives for ever; the network lives as long as the parser (see `Network`), and the version is
        // that of the headers that the bindings were made of.
        let parser = unsafe {
            let version = tensorrt_sys::get_nvonnxparser_version() as i32;
            Owned::new((self.create_parser)(network.pointer(), self.library.logger_interface(), version))
        };
        let mut parser = parser.ok_or_else(|| self.library.refused("no ONNX parser could be made", mark))?;
        // SAFETY: a C string that lives for the call.
        let parsed = unsafe { parser.pin().parseFromFile(path.as_ptr(), 1.into()) };
        if !parsed {
            return Err(refused(format!(
                "this is not taken as a network: {}",
                complaints(&parser, &self.library, mark)
            )));
        }
        let network =
            Network { _parser: parser, network, builder: self.builder.clone(), library: self.library.clone() };
        match network.inputs().is_empty() {
            true => Err(refused("a network without inputs".into())),
            false => Ok(network),
        }
    }
}

/// Errors of a parser that are shown; the first is the cause, the rest mostly follow.
const COMPLAINTS_MAX: usize = 4;

/// The parser's errors with the node and the operator of each, else what was logged.
fn complaints(parser: &Owned<nvonnxparser::IParser>, library: &Library, mark: Mark) -> String {
    let handle = parser.pointer().cast::<c_void>();
    // SAFETY: the parser is alive.
    let count = unsafe { tensorrt_sys::parser_get_nb_errors(handle) }.max(0) as usize;
    let describe = |index: usize| {
        // SAFETY: the index is below the number of errors; the texts live as long as the parser.
        unsafe {
            let error = tensorrt_sys::parser_get_error(handle, index as i32);
            text(tensorrt_sys::parser_error_desc(error)).unwrap_or_default()
        }
    };
    let logged = library.errors_since(mark);
    // The bindings do not reach an error's node; the log names it before it says what is wrong with it.
    let nodes: Vec<&str> = logged.iter().filter_map(|line| node(line)).collect();
    let shown = count.min(COMPLAINTS_MAX);
    let mut words: Vec<String> = (0..shown)
        .map(|index| match nodes.get(index).filter(|_| nodes.len() == count) {
            Some(node) => format!("node {node}: {}", describe(index)),
            None => describe(index),
        })
        .filter(|words| !words.is_empty())
        .collect();
    if count > shown {
        words.push(format!("and {} more", count - shown));
    }
    if words.is_empty() { library.words_since(mark) } else { words.join("; ") }
}

/// Number, operator and name out of `… While parsing node number 26 [Softmax -> "shares"]:`.
fn node(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("While parsing node number ")?;
    Some(rest.trim_end_matches(':'))
}

/// What a C string says; `None` for a null.
///
/// # Safety
///
/// Null, or a C string that lives for the call.
unsafe fn text(pointer: *const c_char) -> Option<String> {
    // SAFETY: the caller's promise.
    (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) }.to_string_lossy().trim().to_owned())
}

/// What to build.
#[derive(Clone, Debug)]
pub struct Build<'a> {
    /// None: the network has fixed shapes.
    pub profiles: &'a [Profile],
    pub target: Target,
    /// Scratch memory that a kernel may ask for; `None`: as the library has it.
    pub workspace_bytes: Option<u64>,
    /// Measured times of an earlier build, or nothing to begin with; `None`: measured times are not kept.
    pub timing_cache: Option<&'a [u8]>,
    /// Whether later versions of the library, and its lean runtime, shall load the plan. TensorRT alone has this.
    pub version_compatible: bool,
}

/// How far a build is. Phases nest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<'a> {
    Began {
        phase: &'a str,
        inside: Option<&'a str>,
        steps: u32,
    },
    /// Steps are counted from 0; this one is done.
    Step {
        phase: &'a str,
        step: u32,
    },
    Ended {
        phase: &'a str,
    },
}

/// A serialized engine, in the library's own memory.
pub struct Plan(Owned<nvinfer1::IHostMemory>);

impl Plan {
    pub(super) fn new(memory: Owned<nvinfer1::IHostMemory>) -> Plan {
        Plan(memory)
    }
}

impl Deref for Plan {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let (data, bytes) = (self.0.get().data().cast::<u8>(), self.0.get().size());
        if data.is_null() || bytes == 0 {
            return &[];
        }
        // SAFETY: the library says that so many bytes are there; they live and stay as they are as long as the object.
        unsafe { std::slice::from_raw_parts(data, bytes) }
    }
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Plan").field("bytes", &self.len()).finish()
    }
}

/// What came of a build.
#[derive(Debug)]
pub struct Built {
    pub plan: Plan,
    /// What to give to the next build, if this one was given one.
    pub timing_cache: Option<Vec<u8>>,
}

/// A parsed network. Fields are dropped in this order: the parser before its network, both before their builder.
pub struct Network {
    _parser: Owned<nvonnxparser::IParser>,
    network: Owned<nvinfer1::INetworkDefinition>,
    builder: Arc<Mutex<Owned<nvinfer1::IBuilder>>>,
    library: Library,
}

impl std::fmt::Debug for Network {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Network").field("inputs", &self.inputs()).finish_non_exhaustive()
    }
}

impl Network {
    /// Inputs in the file's order, without ranges.
    pub fn inputs(&self) -> Vec<Tensor> {
        let network = self.network.get();
        (0..network.getNbInputs()).filter_map(|index| tensor(network.getInput(index))).collect()
    }

    pub fn outputs(&self) -> Vec<Tensor> {
        let network = self.network.get();
        (0..network.getNbOutputs()).filter_map(|index| tensor(network.getOutput(index))).collect()
    }

    /// Builds the plan. `progress` may be called from the library's threads, one call at a time, and returns whether to go
    /// on.
    pub fn build(
        &mut self,
        build: &Build<'_>,
        progress: &mut (dyn FnMut(Progress<'_>) -> bool + Send),
    ) -> Result<Built, LoadError> {
        let mark = self.library.mark();
        let mut builder = self.builder.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: what is returned is the caller's.
        let config = unsafe { Owned::new(builder.pin().createBuilderConfig()) };
        let mut config = config.ok_or_else(|| self.library.refused("no configuration could be made", mark))?;
        for (index, profile) in build.profiles.iter().enumerate() {
            add_profile(&mut builder, &mut config, profile, index).map_err(|what| self.library.refused(&what, mark))?;
        }
        if let Some(bytes) = build.workspace_bytes {
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            config.pin().setMemoryPoolLimit(MemoryPoolType::kWORKSPACE.into(), bytes);
        }
        set_target(&mut config, build.target).map_err(|what| self.library.refused(&what, mark))?;
        set_version_compatible(&mut config, build.version_compatible)
            .map_err(|what| self.library.refused(&what, mark))?;
        let cache = build.timing_cache.map(|bytes| TimingCache::new(&mut config, bytes)).transpose();
        let cache = cache.map_err(|what| self.library.refused(&what, mark))?;
        let monitor = Monitor::new(progress);
        let monitor = monitor.as_ref().ok_or_else(|| LoadError("no memory for a progress monitor".into()))?;
        // SAFETY: the monitor outlives the call below, which is the only one that uses it.
        unsafe { config.pin().setProgressMonitor(monitor.interface) };
        // SAFETY: what is returned is the caller's.
        let plan = unsafe { Owned::new(builder.pin().buildSerializedNetwork(self.network.pin(), config.pin())) };
        // SAFETY: null is how a monitor is taken away.
        unsafe { config.pin().setProgressMonitor(std::ptr::null_mut()) };
        match plan.map(Plan::new) {
            Some(plan) if !plan.is_empty() => {
                Ok(Built { plan, timing_cache: cache.and_then(|cache| cache.serialize()) })
            }
            Some(_) | None if monitor.stopped() => Err(LoadError("the build was interrupted".into())),
            Some(_) | None => {
                let LoadError(mut words) = self.library.refused("the engine could not be built", mark);
                if build.target == Target::Current && cfg!(feature = "tensorrt-rtx") && Library::misses_gpu(&words) {
                    words.push_str("; `--target 8.0`, or another GPU's compute capability, needs no GPU here");
                }
                Err(LoadError(words))
            }
        }
    }
}

fn tensor(pointer: *mut nvinfer1::ITensor) -> Option<Tensor> {
    // SAFETY: null, or a tensor that lives as long as the network, which the caller holds.
    let tensor = unsafe { pointer.as_ref() }?;
    // SAFETY: a C string of the tensor's.
    let name = unsafe { text(tensor.getName()) }?;
    Some(Tensor {
        name,
        element: element(tensor.getType().into()),
        shape: shape(&tensor.getDimensions()),
        ranges: Vec::new(),
        on_host: tensor.isShapeTensor(),
    })
}

fn add_profile(
    builder: &mut Owned<nvinfer1::IBuilder>,
    config: &mut Owned<nvinfer1::IBuilderConfig>,
    profile: &Profile,
    index: usize,
) -> Result<(), String> {
    let pointer = builder.pin().createOptimizationProfile();
    // SAFETY: null, or a profile that the builder owns and keeps; nobody else has it yet.
    let Some(made) = (unsafe { pointer.as_mut() }) else {
        return Err(format!("optimization profile {index} could not be made"));
    };
    // SAFETY: the object stays where it is.
    let mut made = unsafe { std::pin::Pin::new_unchecked(made) };
    for (name, range) in &profile.shapes {
        let c_name = CString::new(name.as_str()).map_err(|_| format!("no input is called `{name:?}`"))?;
        let selectors = [
            (OptProfileSelector::kMIN, &range.min),
            (OptProfileSelector::kOPT, &range.opt),
            (OptProfileSelector::kMAX, &range.max),
        ];
        for (selector, shape) in selectors {
            let fits = shape.len() <= 8;
            // SAFETY: a C string and a shape that live for the call.
            let set = fits
                && unsafe { made.as_mut().setDimensions(c_name.as_ptr(), selector.into(), &Dims::from_slice(shape)) };
            if !set {
                return Err(format!("`{name}` cannot be {} in profile {index}", shape_words(shape)));
            }
        }
    }
    // SAFETY: the profile is the builder's own and complete.
    match unsafe { config.pin().addOptimizationProfile(pointer) } {
        0.. => Ok(()),
        i32::MIN..0 => Err(format!("optimization profile {index} is not consistent in itself")),
    }
}

/// The compute capabilities that this library builds for.
#[cfg(feature = "tensorrt-rtx")]
const CAPABILITIES: [(Capability, tensorrt_sys::ComputeCapability); 6] = {
    use tensorrt_sys::ComputeCapability as Sm;
    [
        (Capability { major: 7, minor: 5 }, Sm::kSM75),
        (Capability { major: 8, minor: 0 }, Sm::kSM80),
        (Capability { major: 8, minor: 6 }, Sm::kSM86),
        (Capability { major: 8, minor: 9 }, Sm::kSM89),
        (Capability { major: 12, minor: 0 }, Sm::kSM120),
        (Capability { major: 12, minor: 1 }, Sm::kSM121),
    ]
};

/// Whether this library builds for it, and such engines, as far as that is known before it is opened.
pub fn check_request(target: Target, version_compatible: bool) -> Result<(), String> {
    check_target(target)?;
    match version_compatible && cfg!(feature = "tensorrt-rtx") {
        true => Err("its engines are for the version that builds them; leave `--version-compatible` away".into()),
        false => Ok(()),
    }
}

#[cfg(feature = "tensorrt-rtx")]
fn check_target(target: Target) -> Result<(), String> {
    match target {
        Target::Capability(wanted) if CAPABILITIES.iter().all(|(known, _)| *known != wanted) => {
            let all: Vec<String> = CAPABILITIES.iter().map(|(known, _)| known.to_string()).collect();
            let all = all.join(", ");
            Err(format!("it does not build for {wanted}, only for `current` (on a machine that has it) and {all}"))
        }
        Target::Capability(_) | Target::Current => Ok(()),
    }
}

#[cfg(not(feature = "tensorrt-rtx"))]
fn check_target(target: Target) -> Result<(), String> {
    match target {
        Target::Current => Ok(()),
        Target::Capability(wanted) => Err(format!(
            "it builds for the GPU that is here alone, not for {wanted}; leave `--target` away, or build there"
        )),
    }
}

#[cfg(feature = "tensorrt-rtx")]
fn set_target(config: &mut Owned<nvinfer1::IBuilderConfig>, target: Target) -> Result<(), String> {
    let capability = match target {
        Target::Current => tensorrt_sys::ComputeCapability::kCURRENT,
        Target::Capability(wanted) => {
            check_target(target)?;
            let known = CAPABILITIES.iter().find(|(known, _)| *known == wanted);
            known.map(|(_, capability)| *capability).ok_or("a target that was checked")?
        }
    };
    match config.pin().setNbComputeCapabilities(1) && config.pin().setComputeCapability(capability.into(), 0) {
        true => Ok(()),
        false => Err(format!("the target {target:?} is not taken")),
    }
}

#[cfg(not(feature = "tensorrt-rtx"))]
fn set_target(_: &mut Owned<nvinfer1::IBuilderConfig>, target: Target) -> Result<(), String> {
    check_target(target)
}

#[cfg(feature = "tensorrt-rtx")]
fn set_version_compatible(_: &mut Owned<nvinfer1::IBuilderConfig>, wanted: bool) -> Result<(), String> {
    match wanted {
        true => Err("its engines are for the version that builds them; leave `--version-compatible` away".into()),
        false => Ok(()),
    }
}

#[cfg(not(feature = "tensorrt-rtx"))]
fn set_version_compatible(config: &mut Owned<nvinfer1::IBuilderConfig>, wanted: bool) -> Result<(), String> {
    if wanted {
        config.pin().setFlag(tensorrt_sys::BuilderFlag::kVERSION_COMPATIBLE.into());
    }
    Ok(())
}

/// Times that the builder measured, to be kept from one build to the next. Dropped before its configuration.
struct TimingCache(Owned<nvinfer1::ITimingCache>);

impl TimingCache {
    fn new(config: &mut Owned<nvinfer1::IBuilderConfig>, bytes: &[u8]) -> Result<TimingCache, String> {
        let wrong = || "the timing cache is damaged, or of another version or GPU; delete it".to_owned();
        // SAFETY: readable for its length (a null of no length begins anew); what is returned is the caller's.
        let cache = unsafe {
            let data = if bytes.is_empty() { std::ptr::null() } else { bytes.as_ptr() };
            Owned::new(config.get().createTimingCache(data.cast_mut().cast(), bytes.len()))
        };
        let cache = cache.ok_or_else(wrong)?;
        if config.pin().setTimingCache(cache.get(), false) { Ok(TimingCache(cache)) } else { Err(wrong()) }
    }

    /// The bindings have no method of this class, so its `serialize` is called as the header (NvInfer.h, NvInferImpl.h)
    /// lays it out: the object is a pointer to its table and one to its implementation, whose own table begins with two
    /// destructors and then has `serialize`.
    fn serialize(&self) -> Option<Vec<u8>> {
        type Serialize = unsafe extern "C" fn(*const c_void) -> *mut nvinfer1::IHostMemory;
        // SAFETY: the layout above, by the C++ ABI of every system that the library is made for, and unchanged in every
        // version with these headers; `tests/tensorrt.rs` runs it. What is returned is the caller's.
        let memory = unsafe {
            let object = self.0.pointer().cast::<*const *const *const c_void>();
            let implementation = *object.add(1);
            let serialize = std::mem::transmute::<*const c_void, Serialize>(*(*implementation).add(2));
            Owned::new(serialize(implementation.cast()))
        };
        memory.map(|memory| Plan::new(memory).to_vec())
    }
}

/// The bridge from the library's progress monitor to a closure.
struct Monitor<'a> {
    /// Boxed, as the library holds its address.
    _state: Box<MonitorState<'a>>,
    interface: *mut nvinfer1::IProgressMonitor,
}

struct MonitorState<'a> {
    progress: Mutex<&'a mut (dyn FnMut(Progress<'_>) -> bool + Send)>,
    /// True exactly when the closure asked to stop.
    stopped: std::sync::atomic::AtomicBool,
}

impl<'a> Monitor<'a> {
    fn new(progress: &'a mut (dyn FnMut(Progress<'_>) -> bool + Send)) -> Option<Monitor<'a>> {
        let state = Box::new(MonitorState { progress: Mutex::new(progress), stopped: Default::default() });
        let user_data = std::ptr::from_ref(&*state).cast_mut().cast::<c_void>();
        // SAFETY: functions of the types asked for; the state lives as long as the monitor.
        let interface = unsafe { tensorrt_sys::trtx_create_progress_monitor(user_data, began, step, ended) };
        (!interface.is_null()).then_some(Monitor { _state: state, interface })
    }

    fn stopped(&self) -> bool {
        self._state.stopped.load(std::sync::atomic::Ordering::Relaxed)
    }
}

impl Drop for Monitor<'_> {
    fn drop(&mut self) {
        // SAFETY: made by the function's counterpart, and the library has forgotten it (see `Network::build`).
        unsafe { tensorrt_sys::trtx_destroy_progress_monitor(self.interface) }
    }
}

/// Tells the closure; returns whether to go on.
///
/// # Safety
///
/// `user_data` is a [`MonitorState`] that lives for the call.
unsafe fn tell(user_data: *mut c_void, progress: Progress<'_>) -> bool {
    // SAFETY: the caller's promise. The lifetime inside is the monitor's, which is longer than this call.
    let state = unsafe { &*user_data.cast::<MonitorState<'_>>() };
    let call = std::panic::AssertUnwindSafe(|| {
        let mut told = state.progress.lock().unwrap_or_else(PoisonError::into_inner);
        (*told)(progress)
    });
    // No panic may reach the library; one stops the build.
    let go_on = std::panic::catch_unwind(call).unwrap_or(false);
    if !go_on {
        state.stopped.store(true, std::sync::atomic::Ordering::Relaxed);
    }
    go_on
}

unsafe extern "system" fn began(user_data: *mut c_void, phase: *const c_char, inside: *const c_char, steps: i32) {
    // SAFETY: nulls or C strings that live for the call, and our own state.
    unsafe {
        let (phase, inside) = (text(phase).unwrap_or_default(), text(inside));
        let steps = u32::try_from(steps).unwrap_or(0);
        tell(user_data, Progress::Began { phase: &phase, inside: inside.as_deref(), steps });
    }
}

unsafe extern "system" fn step(user_data: *mut c_void, phase: *const c_char, step: i32) -> bool {
    // SAFETY: a null or a C string that lives for the call, and our own state.
    unsafe {
        let phase = text(phase).unwrap_or_default();
        tell(user_data, Progress::Step { phase: &phase, step: u32::try_from(step).unwrap_or(0) })
    }
}

unsafe extern "system" fn ended(user_data: *mut c_void, phase: *const c_char) {
    // SAFETY: a null or a C string that lives for the call, and our own state.
    unsafe {
        let phase = text(phase).unwrap_or_default();
        tell(user_data, Progress::Ended { phase: &phase });
    }
}
