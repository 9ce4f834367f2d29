//! Plans become engines, and engines say what they are.
//!
//! Owned here: [`Runtime`] and [`Engine`], the checks before a plan is given to the library, and reading an engine's
//! [`Description`]. The library must not be given just anything: it trusts a plan's insides once the header is right, so what
//! is plainly no plan is refused here, and a plan that we built is checked by its digest before it comes here.
//!
//! Invariant: an engine keeps its runtime alive; calls on the engine that change it are made one at a time.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use tensorrt_sys::{OptProfileSelector, TensorIOMode, TensorLocation, nvinfer1};

use super::context::{Context, KernelCache};
use super::logger::Mark;
use super::{Library, Owned, element, shape};
use crate::device::LoadError;
use crate::model::engine::{self, Description, ShapeRange, Tensor};

/// More inputs and outputs than any encoder has; a plan that claims more is not read on.
const TENSORS_MAX: i32 = 64;

/// More profiles than a library allows to be useful.
const PROFILES_MAX: i32 = 256;

/// Loads engines. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Runtime {
    inner: Arc<RuntimeInner>,
}

struct RuntimeInner {
    runtime: Mutex<Owned<nvinfer1::IRuntime>>,
    library: Library,
}

impl std::fmt::Debug for RuntimeInner {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Runtime").field("library", &self.library).finish_non_exhaustive()
    }
}

impl Runtime {
    pub(super) fn new(runtime: Owned<nvinfer1::IRuntime>, library: Library) -> Runtime {
        Runtime { inner: Arc::new(RuntimeInner { runtime: Mutex::new(runtime), library }) }
    }

    pub fn library(&self) -> &Library {
        &self.inner.library
    }

    /// Loads a serialized engine onto the calling thread's current device. `name` is for messages: the file's path.
    ///
    /// Errors say what is wrong with the plan: empty, something else, of another version, for another GPU.
    pub fn engine(&self, plan: &[u8], name: &str) -> Result<Engine, LoadError> {
        engine::looks_like_a_plan(plan).map_err(|words| LoadError(format!("{name}: {words}")))?;
        let library = &self.inner.library;
        let mut runtime = self.inner.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        #[cfg(feature = "tensorrt-rtx")]
        is_valid(runtime.get(), plan, library).map_err(|words| LoadError(format!("{name}: {words}")))?;
        let mark = library.mark();
        // SAFETY: the plan is readable for its whole length; the library copies what it keeps.
        let pointer = unsafe { runtime.pin().deserializeCudaEngine(plan.as_ptr().cast_mut().cast(), plan.len()) };
        // SAFETY: what is returned is the caller's.
        let Some(engine) = (unsafe { Owned::new(pointer) }) else {
            return Err(LoadError(format!("{name}: {}", library.refused("the engine cannot be loaded", mark))));
        };
        drop(runtime);
        let description = describe(engine.get()).map_err(|words| LoadError(format!("{name}: {words}")))?;
        let inner =
            EngineInner { engine: Mutex::new(engine), description, name: name.to_owned(), runtime: self.clone() };
        Ok(Engine { inner: Arc::new(inner) })
    }
}

/// A loaded engine. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Engine {
    inner: Arc<EngineInner>,
}

/// Fields are dropped in this order: the engine before its runtime.
struct EngineInner {
    engine: Mutex<Owned<nvinfer1::ICudaEngine>>,
    description: Description,
    name: String,
    runtime: Runtime,
}

impl std::fmt::Debug for EngineInner {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Engine").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Engine {
    /// Inputs, outputs, profiles and the memory that a context of each needs.
    pub fn description(&self) -> &Description {
        &self.inner.description
    }

    /// What it was loaded as.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    pub fn library(&self) -> &Library {
        self.inner.runtime.library()
    }

    /// A place for kernels that are compiled while contexts are made and first run, with what an earlier
    /// [`KernelCache::serialize`] gave. Bytes of another version or GPU are refused; without them it begins empty.
    ///
    /// TensorRT itself compiles everything when it builds: its cache is always empty.
    pub fn kernel_cache(&self, bytes: Option<&[u8]>) -> Result<KernelCache, LoadError> {
        KernelCache::new(self, bytes)
    }

    /// A context for one optimization profile, without memory of its own. `stream` is where the library may queue the
    /// profile's change; the caller waits for it before the first enqueue on another stream.
    ///
    /// The stream must be one of the current device's and live until then; null is the device's default stream.
    pub fn context(&self, profile: usize, cache: &KernelCache, stream: *mut c_void) -> Result<Context, LoadError> {
        Context::new(self, profile, cache, stream)
    }

    /// Calls the engine, one caller at a time.
    pub(super) fn with<T>(&self, call: impl FnOnce(&mut Owned<nvinfer1::ICudaEngine>) -> T) -> T {
        call(&mut self.inner.engine.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn refused(&self, what: &str, mark: Mark) -> LoadError {
        LoadError(format!("{}: {}", self.inner.name, self.library().refused(what, mark)))
    }
}

/// Asks the library what it thinks of the plan's header: it knows why one cannot run here, deserializing does not say it.
#[cfg(feature = "tensorrt-rtx")]
fn is_valid(runtime: &nvinfer1::IRuntime, plan: &[u8], library: &Library) -> Result<(), String> {
    use tensorrt_sys::{EngineInvalidityDiagnostics as Reason, EngineValidity};

    let needed = runtime.getEngineHeaderSize();
    if (plan.len() as i64) < needed {
        return Err(format!("{} bytes are too few for an engine, whose head alone has {needed}", plan.len()));
    }
    let mut reasons = 0;
    let mark = library.mark();
    // SAFETY: the plan is readable for its whole length, and the number is written to a place of its own.
    let validity =
        unsafe { runtime.getEngineValidity(plan.as_ptr().cast_mut().cast(), plan.len() as i64, &raw mut reasons) };
    match EngineValidity::from(validity) {
        EngineValidity::kVALID | EngineValidity::kSUBOPTIMAL => return Ok(()),
        EngineValidity::kINVALID => {}
    }
    let known = [
        (Reason::VERSION_MISMATCH, "it was built by another version of the library"),
        (
            Reason::UNSUPPORTED_CC,
            "the library does not list this GPU's compute capability, or it was built for another",
        ),
        (Reason::OLD_CUDA_DRIVER, "it was built with a newer driver than there is here"),
        (Reason::OLD_CUDA_RUNTIME, "it was built with a newer CUDA runtime than there is here"),
        (Reason::INSUFFICIENT_GPU_MEMORY, "the GPU has too little memory for its weights"),
        (Reason::MALFORMED_ENGINE, "it is damaged, or no engine of this library"),
        (Reason::CUDA_ERROR, "CUDA does not work here"),
    ];
    let reasons = Reason::from_bits_retain(reasons);
    if reasons == Reason::UNSUPPORTED_CC {
        // The library's list of GPUs is shorter than what it runs on: 1.6 calls its own engines for 9.0 invalid, loads them
        // and computes the right thing. Loading decides; our own manifest refuses what was built for a newer GPU.
        return Ok(());
    }
    let words: Vec<&str> =
        known.iter().filter(|(reason, _)| reasons.contains(*reason)).map(|(_, words)| *words).collect();
    let said = library.errors_since(mark);
    let mut words = if words.is_empty() { "it cannot run here".to_owned() } else { words.join("; ") };
    if !said.is_empty() {
        words = format!("{words}: {}", said.join("; "));
    }
    Err(format!("{} {}: {words}", library.flavour().name(), library.version()))
}

/// Everything that an engine says of itself; `Err` if it is not what a server can feed.
fn describe(engine: &nvinfer1::ICudaEngine) -> Result<Description, String> {
    let (count, profiles) = (engine.getNbIOTensors(), engine.getNbOptimizationProfiles());
    if !(0..=TENSORS_MAX).contains(&count) || !(0..=PROFILES_MAX).contains(&profiles) {
        return Err(format!("an engine of {count} tensors and {profiles} profiles; no encoder has as many"));
    }
    let mut description = Description { profiles: profiles as usize, ..Description::default() };
    for index in 0..count {
        let pointer = engine.getIOTensorName(index);
        if pointer.is_null() {
            return Err(format!("tensor {index} has no name"));
        }
        // SAFETY: a C string that lives as long as the engine.
        let name: CString = unsafe { CStr::from_ptr(pointer) }.to_owned();
        let (tensor, mode) = describe_tensor(engine, &name, profiles)?;
        match mode {
            TensorIOMode::kINPUT => description.inputs.push(tensor),
            TensorIOMode::kOUTPUT => description.outputs.push(tensor),
            TensorIOMode::kNONE => return Err(format!("`{}` is neither input nor output", tensor.name)),
        }
    }
    for profile in 0..profiles {
        let bytes = engine.getDeviceMemorySizeForProfileV2(profile);
        description.context_bytes.push(u64::try_from(bytes).unwrap_or(0));
    }
    Ok(description)
}

fn describe_tensor(
    engine: &nvinfer1::ICudaEngine,
    name: &CStr,
    profiles: i32,
) -> Result<(Tensor, TensorIOMode), String> {
    // SAFETY: the name is the engine's own; each of these reads it and keeps no pointer.
    let (mode, dims, kind, location, infers) = unsafe {
        (
            TensorIOMode::from(engine.getTensorIOMode(name.as_ptr())),
            engine.getTensorShape(name.as_ptr()),
            engine.getTensorDataType(name.as_ptr()),
            TensorLocation::from(engine.getTensorLocation(name.as_ptr())),
            engine.isShapeInferenceIO(name.as_ptr()),
        )
    };
    let mut tensor = Tensor {
        name: name.to_str().map_err(|_| format!("the tensor `{}` has no proper name", name.to_string_lossy()))?.into(),
        element: element(kind.into()),
        shape: shape(&dims),
        ranges: Vec::new(),
        on_host: location == TensorLocation::kHOST || infers,
    };
    if mode == TensorIOMode::kINPUT {
        for profile in 0..profiles {
            let select = |select: OptProfileSelector| {
                // SAFETY: the name is the engine's own, the profile one of its own.
                let dims = unsafe { engine.getProfileShape(name.as_ptr(), profile, select.into()) };
                shape(&dims)
            };
            tensor.ranges.push(ShapeRange {
                min: select(OptProfileSelector::kMIN),
                opt: select(OptProfileSelector::kOPT),
                max: select(OptProfileSelector::kMAX),
            });
        }
    }
    Ok((tensor, mode))
}
