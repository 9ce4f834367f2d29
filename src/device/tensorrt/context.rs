//! Contexts: one execution at a time, on a stream and in memory that the caller owns.
//!
//! Owned here: making a context the way that lanes need it (memory from outside, on TensorRT-RTX kernels for the exact shape
//! before the first run and no CUDA graphs of its own, as lanes capture), and the calls of the hot path. These take names as
//! C strings and allocate nothing unless they fail.
//!
//! Invariants: a context outlives neither its engine nor its cache; it is used by one thread at a time (`&mut`). What the
//! caller owes is in the `unsafe` functions: addresses that are valid until the stream is past their use.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};

use tensorrt_sys::{Dims, ExecutionContextAllocationStrategy, nvinfer1};

use super::logger::Mark;
use super::{Engine, Owned};
use crate::device::LoadError;
use crate::model::engine::shape_words;

/// Kernels compiled for an engine on this machine. Clones are the same one.
#[derive(Clone, Debug)]
pub struct KernelCache {
    #[cfg(feature = "tensorrt-rtx")]
    inner: std::sync::Arc<rtx::Cache>,
}

impl KernelCache {
    #[cfg(feature = "tensorrt-rtx")]
    pub(super) fn new(engine: &Engine, bytes: Option<&[u8]>) -> Result<KernelCache, LoadError> {
        Ok(KernelCache { inner: std::sync::Arc::new(rtx::Cache::new(engine, bytes)?) })
    }

    #[cfg(not(feature = "tensorrt-rtx"))]
    pub(super) fn new(_: &Engine, _: Option<&[u8]>) -> Result<KernelCache, LoadError> {
        Ok(KernelCache {})
    }

    /// What to keep for the next start, once every shape has run; `None` where there is nothing to keep.
    #[cfg(feature = "tensorrt-rtx")]
    pub fn serialize(&self) -> Option<Vec<u8>> {
        self.inner.serialize()
    }

    /// What to keep for the next start, once every shape has run; `None` where there is nothing to keep.
    #[cfg(not(feature = "tensorrt-rtx"))]
    pub fn serialize(&self) -> Option<Vec<u8>> {
        None
    }
}

#[cfg(feature = "tensorrt-rtx")]
mod rtx {
    //! What TensorRT-RTX alone has: kernels compiled on the machine that runs them, and their cache.

    use tensorrt_sys::{CudaGraphStrategy, DynamicShapesKernelSpecializationStrategy, nvinfer1};

    use super::super::builder::Plan;
    use super::{Engine, LoadError, Owned, runtime_config};

    /// Fields are dropped in this order: the cache before its engine.
    pub(super) struct Cache {
        cache: Owned<nvinfer1::IRuntimeCache>,
        _engine: Engine,
    }

    // SAFETY: the library locks its cache itself (IRuntimeCache, NvInferRuntime.h: all its methods may be called at once).
    unsafe impl Sync for Cache {}

    impl std::fmt::Debug for Cache {
        fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            formatter.debug_struct("Cache").finish_non_exhaustive()
        }
    }

    impl Cache {
        pub(super) fn new(engine: &Engine, bytes: Option<&[u8]>) -> Result<Cache, LoadError> {
            let mark = engine.library().mark();
            let config = runtime_config(engine)?;
            // SAFETY: what is returned is the caller's.
            let cache = unsafe { Owned::new(config.get().createRuntimeCache()) };
            let cache = cache.ok_or_else(|| engine.refused("no cache for compiled kernels could be made", mark))?;
            if let Some(bytes) = bytes {
                // SAFETY: readable for its length; the library copies what it keeps.
                let taken = unsafe { cache.get().deserialize(bytes.as_ptr().cast_mut().cast(), bytes.len()) };
                if bytes.is_empty() || !taken {
                    return Err(engine.refused("the kept kernels are of another version or GPU, or damaged", mark));
                }
            }
            Ok(Cache { cache, _engine: engine.clone() })
        }

        pub(super) fn serialize(&self) -> Option<Vec<u8>> {
            // SAFETY: what is returned is the caller's.
            let memory = unsafe { Owned::new(self.cache.get().serialize()) }?;
            let plan = Plan::new(memory);
            (!plan.is_empty()).then(|| plan.to_vec())
        }

        /// Makes contexts of this configuration use the cache, compile for the exact shape before they run it (else a slow
        /// general kernel would end up in a captured graph), and leave capturing to the lanes.
        pub(super) fn configure(&self, config: &mut Owned<nvinfer1::IRuntimeConfig>) -> bool {
            let taken = config.pin().setRuntimeCache(self.cache.get());
            config
                .pin()
                .setDynamicShapesKernelSpecializationStrategy(DynamicShapesKernelSpecializationStrategy::kEAGER.into());
            taken & config.pin().setCudaGraphStrategy(CudaGraphStrategy::kDISABLED.into())
        }
    }
}

fn runtime_config(engine: &Engine) -> Result<Owned<nvinfer1::IRuntimeConfig>, LoadError> {
    let mark = engine.library().mark();
    // SAFETY: what is returned is the caller's.
    let config = engine.with(|engine| unsafe { Owned::new(engine.pin().createRuntimeConfig()) });
    config.ok_or_else(|| engine.refused("no configuration for a context could be made", mark))
}

/// One execution context on one optimization profile. Fields are dropped in this order, which is the library's.
pub struct Context {
    context: Owned<nvinfer1::IExecutionContext>,
    _config: Owned<nvinfer1::IRuntimeConfig>,
    _cache: KernelCache,
    engine: Engine,
    profile: usize,
    /// Where the log was before the last call that could fail.
    mark: Mark,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Context { engine, profile, .. } = self;
        formatter.debug_struct("Context").field("engine", engine).field("profile", profile).finish_non_exhaustive()
    }
}

impl Context {
    pub(super) fn new(
        engine: &Engine,
        profile: usize,
        cache: &KernelCache,
        stream: *mut c_void,
    ) -> Result<Context, LoadError> {
        let profiles = engine.description().profiles;
        if profile >= profiles {
            let words = format!("{}: no optimization profile {profile}; it has {profiles}", engine.name());
            return Err(LoadError(words));
        }
        let mark = engine.library().mark();
        let mut config = runtime_config(engine)?;
        config.pin().setExecutionContextAllocationStrategy(ExecutionContextAllocationStrategy::kUSER_MANAGED.into());
        #[cfg(feature = "tensorrt-rtx")]
        if !cache.inner.configure(&mut config) {
            return Err(engine.refused("a context cannot be configured", mark));
        }
        // SAFETY: the configuration is the engine's own and lives as long as the context; what is returned is the caller's.
        let context =
            engine.with(|engine| unsafe { Owned::new(engine.pin().createExecutionContext1(config.pointer())) });
        let mut context = context.ok_or_else(|| engine.refused("no context could be made", mark))?;
        // SAFETY: the profile is one of the engine's; the caller answers for the stream.
        if !unsafe { context.pin().setOptimizationProfileAsync(profile as i32, stream.cast()) } {
            return Err(engine.refused(&format!("optimization profile {profile} cannot be chosen"), mark));
        }
        Ok(Context { context, _config: config, _cache: cache.clone(), engine: engine.clone(), profile, mark })
    }

    pub fn profile(&self) -> usize {
        self.profile
    }

    /// Sets an input's shape. One that the profile does not allow is an error, and the context keeps the shape it had.
    pub fn set_shape(&mut self, tensor: &CStr, shape: &[i64]) -> Result<(), LoadError> {
        self.mark = self.engine.library().mark();
        let fits = shape.len() <= 8;
        // SAFETY: a C string and a shape that live for the call.
        if fits && unsafe { self.context.pin().setInputShape(tensor.as_ptr(), &Dims::from_slice(shape)) } {
            return Ok(());
        }
        let (name, words) = (tensor.to_string_lossy(), shape_words(shape));
        let input = self.engine.description().inputs.iter().find(|input| input.name == name);
        let allowed = match input.and_then(|input| input.ranges.get(self.profile)) {
            Some(range) => format!("allows {} to {}", shape_words(&range.min), shape_words(&range.max)),
            None => "has no such input".to_owned(),
        };
        let what = format!("`{name}` cannot be {words}; profile {} {allowed}", self.profile);
        Err(self.engine.refused(&what, self.mark))
    }

    /// Device memory that this context needs for the shapes that are set, else for the largest that its profile allows.
    pub fn memory_bytes(&mut self) -> Result<u64, LoadError> {
        self.mark = self.engine.library().mark();
        let largest = self.engine.description().context_bytes.get(self.profile).copied().unwrap_or(0);
        if !self.context.get().allInputDimensionsSpecified() {
            return Ok(largest);
        }
        let bytes = self.context.pin().updateDeviceMemorySizeForShapes() as u64;
        // Zero is an error, but also what an engine without intermediate results needs.
        if bytes == 0 && largest > 0 && !self.engine.library().errors_since(self.mark).is_empty() {
            return Err(self.engine.refused("its memory for these shapes is not known", self.mark));
        }
        Ok(bytes)
    }

    /// The shape that an output has with the inputs' shapes that are set; -1 where it is not decided.
    pub fn shape(&self, tensor: &CStr) -> Vec<i64> {
        // SAFETY: a C string that lives for the call.
        super::shape(&unsafe { self.context.get().getTensorShape(tensor.as_ptr()) })
    }

    /// Gives the context its scratch memory.
    ///
    /// # Safety
    ///
    /// `address` must be device memory of at least `bytes` bytes, aligned to 256, of the engine's device, and nobody else's
    /// while something that this context enqueued is running.
    pub unsafe fn set_memory(&mut self, address: u64, bytes: u64) {
        // SAFETY: the caller's promise. A length beyond i64 cannot be.
        unsafe {
            self.context
                .pin()
                .setDeviceMemoryV2((address as *mut c_void).cast(), i64::try_from(bytes).unwrap_or(i64::MAX));
        }
    }

    /// Says where an input is read, or an output written.
    ///
    /// # Safety
    ///
    /// `address` must be device memory that holds the tensor in the shape that is set, until the stream is past every
    /// enqueue that used it.
    pub unsafe fn set_address(&mut self, tensor: &CStr, address: u64) -> Result<(), LoadError> {
        self.mark = self.engine.library().mark();
        // SAFETY: the caller's promise.
        if unsafe { self.context.pin().setTensorAddress(tensor.as_ptr(), (address as *mut c_void).cast()) } {
            return Ok(());
        }
        let what = format!("`{}` cannot be at address {address:#x}", tensor.to_string_lossy());
        Err(self.engine.refused(&what, self.mark))
    }

    /// Queues one execution; `false` if the library refused, and then nothing was queued that may be used. Allocates
    /// nothing.
    ///
    /// # Safety
    ///
    /// `stream` must be a live stream of the engine's device; shapes, addresses and memory must be set, and what they name
    /// must stay as it is until the stream is past this.
    pub unsafe fn enqueue(&mut self, stream: *mut c_void) -> bool {
        self.mark = self.engine.library().mark();
        // SAFETY: the caller's promise.
        unsafe { self.context.pin().enqueueV3(stream.cast()) }
    }

    /// What the library said during the last call on this context, for messages.
    pub fn last_error(&self) -> String {
        self.engine.library().words_since(self.mark)
    }
}
