//! NVIDIA GPUs by the driver's interface, with engines run by TensorRT or TensorRT-RTX.
//!
//! Owned here: which GPUs there are, and every call that [`Backend`] asks for. The driver's library is opened at run time;
//! without one [`devices`] says so. TensorRT itself is `device::tensorrt`'s, and objects of the driver have their owners in
//! `driver`.
//!
//! Kernels that TensorRT-RTX compiles on this machine are kept beside the engine, in `<engine>.<capability>-<index>.kernels`:
//! the second start finds them there. Each GPU has a file of its own, as one refuses what another of its kind has compiled
//! (seen on two H200). A file that is not from this library and GPU is written anew.
#![allow(unsafe_code)]

mod driver;

use std::ffi::CStr;
use std::path::{Path, PathBuf};

use cudarc::driver::{result, sys};

use self::driver::{Event, Graph, Host, Memory, Primary, Rope, Stream, failure};
use super::LoadError;
use super::gpu::backend::Slices;
use super::gpu::{Backend, Bell, Failure, Free};
use super::tensorrt::{self, Flavour, Library, Runtime};
use crate::model::engine::{Capability, Description};
use crate::model::files::open_regular;
use crate::model::manifest::{Here, Manifest};

/// A GPU as the driver describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub index: u32,
    pub name: String,
    pub capability: Capability,
    pub memory_bytes: u64,
    /// `0000:0a:00.0`, as the system names it.
    pub bus: String,
}

/// The GPUs of this machine, as far as CUDA_VISIBLE_DEVICES shows them.
///
/// # Errors
/// A sentence that says what is missing.
pub fn devices() -> Result<Vec<Found>, LoadError> {
    if !driver::is_present() {
        return Err(LoadError("no NVIDIA driver: libcuda.so.1 is not where the loader looks".into()));
    }
    let said = |failure: Failure| LoadError(format!("the NVIDIA driver does not work: {failure}"));
    result::init().map_err(|error| said(failure("cuInit")(error)))?;
    let count = result::device::get_count().map_err(|error| said(failure("cuDeviceGetCount")(error)))?;
    let describe = |index| describe(index).map_err(|error| said(failure("cuDeviceGetAttribute")(error)));
    (0..count as u32).map(describe).collect()
}

fn describe(index: u32) -> Result<Found, cudarc::driver::DriverError> {
    use sys::CUdevice_attribute as Attribute;
    let device = result::device::get(index as i32)?;
    // SAFETY: the device is one that the driver has just named, here and below.
    let attribute = |attribute| unsafe { result::device::get_attribute(device, attribute) };
    let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? as u32;
    let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)? as u32;
    let domain = attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?;
    let bus = attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?;
    let slot = attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?;
    Ok(Found {
        index,
        name: result::device::get_name(device)?,
        capability: Capability { major, minor },
        // SAFETY: as above.
        memory_bytes: unsafe { result::device::total_mem(device) }? as u64,
        bus: format!("{domain:04x}:{bus:02x}:{slot:02x}.0"),
    })
}

/// One GPU.
pub struct Cuda {
    name: String,
    index: u32,
    capability: Capability,
    runtime: Runtime,
    rope: Rope,
    primary: Primary,
}

impl std::fmt::Debug for Cuda {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Cuda").field("name", &self.name).finish_non_exhaustive()
    }
}

/// An engine with the kernels that were compiled for it.
#[derive(Debug)]
pub struct Engine {
    engine: tensorrt::Engine,
    kernels: tensorrt::KernelCache,
    file: PathBuf,
    /// What the file held.
    kept: Option<Vec<u8>>,
}

impl Cuda {
    /// Opens GPU `index`. Streams ring `bell`.
    pub fn open(index: u32, library: &Library, bell: Bell) -> Result<Cuda, LoadError> {
        let all = devices()?;
        let name = format!("cuda:{index}");
        let Some(found) = all.get(index as usize) else {
            return Err(LoadError(format!("{name}: this machine shows {} GPU{}", all.len(), plural(all.len()))));
        };
        let said = |failure: Failure| LoadError(format!("{name} ({}): {failure}", found.name));
        let device = result::device::get(index as i32).map_err(|error| said(failure("cuDeviceGet")(error)))?;
        let primary = Primary::retain(device).map_err(said)?;
        primary.enter().map_err(said)?;
        let runtime = library.runtime()?;
        Ok(Cuda { name, index, capability: found.capability, runtime, rope: Rope::new(bell), primary })
    }

    fn kernels_file(&self, engine: &Path) -> PathBuf {
        let mut file = engine.as_os_str().to_owned();
        file.push(format!(".{}-{}.kernels", self.capability, self.index));
        file.into()
    }
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// No cache of kernels comes near.
const KERNELS_BYTES_MAX: u64 = 4 << 30;

fn read_kernels(file: &Path) -> Option<Vec<u8>> {
    let bytes = std::fs::metadata(file).ok()?.len();
    (bytes > 0 && bytes < KERNELS_BYTES_MAX).then(|| std::fs::read(file).ok()).flatten()
}

/// Beside the engine under another name first: who reads it finds a whole file or none.
fn write_kernels(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut part = file.as_os_str().to_owned();
    part.push(format!(".{}.part", std::process::id()));
    let written = std::fs::write(&part, bytes).and_then(|()| std::fs::rename(&part, file));
    if written.is_err() {
        let _ = std::fs::remove_file(&part);
    }
    written
}

impl Backend for Cuda {
    type Engine = Engine;
    type Context = tensorrt::Context;
    type Stream = Stream;
    type Event = Event;
    type Graph = Graph;
    type Host = Host;
    type Memory = Memory;

    fn enter(&self) -> Result<(), Failure> {
        self.primary.enter()
    }

    fn free(&self) -> Result<Free, Failure> {
        let (free, total) = result::mem_get_info().map_err(failure("cuMemGetInfo"))?;
        Ok(Free { free: free as u64, total: total as u64 })
    }

    fn stream(&self) -> Result<Stream, Failure> {
        Stream::new(&self.primary)
    }

    fn event(&self) -> Result<Event, Failure> {
        Event::new(&self.primary)
    }

    fn host(&self, bytes: usize) -> Result<Host, Failure> {
        Host::new(&self.primary, bytes)
    }

    fn memory(&self, bytes: usize) -> Result<Memory, Failure> {
        Memory::new(&self.primary, bytes)
    }

    fn engine(&self, path: &Path) -> Result<Engine, LoadError> {
        let at = |words: String| LoadError(format!("{}: {words}", path.display()));
        let plan = open_regular(path).map_err(|error| at(error.to_string()))?;
        // SAFETY: the file is read once, now; somebody who changes it meanwhile spoils what its digest would have found.
        let plan = unsafe { memmap2::Mmap::map(&plan) }.map_err(|error| at(error.to_string()))?;
        if let Some(manifest) = Manifest::beside(path)? {
            let (library, version) = (Flavour::built().name(), self.runtime.library().version());
            let here = Here { library, version: &version, capability: Some(self.capability) };
            manifest.check(&plan, &here).map_err(at)?;
        }
        let engine = self.runtime.engine(&plan, &path.display().to_string())?;
        let file = self.kernels_file(path);
        let mut kept = read_kernels(&file);
        let kernels = match engine.kernel_cache(kept.as_deref()) {
            Ok(kernels) => kernels,
            Err(error) => {
                crate::log::warn(format_args!("{}: {error}; they are compiled anew", file.display()));
                kept = None;
                engine.kernel_cache(None)?
            }
        };
        Ok(Engine { engine, kernels, file, kept })
    }

    fn description(&self, engine: &Engine) -> Description {
        engine.engine.description().clone()
    }

    fn context(&self, engine: &Engine, profile: usize, stream: &Stream) -> Result<tensorrt::Context, LoadError> {
        engine.engine.context(profile, &engine.kernels, stream.handle.cast())
    }

    fn keep(&self, engine: &Engine) {
        let Some(bytes) = engine.kernels.serialize() else { return };
        if engine.kept.as_ref() == Some(&bytes) {
            return;
        }
        if let Err(error) = write_kernels(&engine.file, &bytes) {
            crate::log::warn(format_args!(
                "{}: {error}; kernels are compiled again at the next start",
                engine.file.display()
            ));
        }
    }

    fn set_shape(&self, context: &mut tensorrt::Context, tensor: &CStr, shape: &[i64]) -> Result<(), LoadError> {
        context.set_shape(tensor, shape)
    }

    fn shape(&self, context: &tensorrt::Context, tensor: &CStr) -> Vec<i64> {
        context.shape(tensor)
    }

    fn scratch_bytes(&self, context: &mut tensorrt::Context) -> Result<usize, LoadError> {
        context.memory_bytes().map(|bytes| bytes as usize)
    }

    fn set_scratch(&self, context: &mut tensorrt::Context, memory: &Memory) {
        // SAFETY: device memory of this size; the lane that owns it runs one context at a time and outlives them.
        unsafe { context.set_memory(memory.address, memory.bytes as u64) };
    }

    fn set_address(
        &self,
        context: &mut tensorrt::Context,
        tensor: &CStr,
        memory: &Memory,
        offset: usize,
    ) -> Result<(), LoadError> {
        // SAFETY: the lane sized its memory for the tensors of all its contexts and outlives them.
        unsafe { context.set_address(tensor, memory.address + offset as u64) }
    }

    fn enqueue(&self, context: &mut tensorrt::Context, stream: &Stream) -> Result<(), Failure> {
        // SAFETY: shapes, addresses and memory were set when the station was made ready, and stay.
        match unsafe { context.enqueue(stream.handle.cast()) } {
            true => Ok(()),
            false => Err(Failure { call: "enqueueV3", code: 0, is_sticky: false }),
        }
    }

    fn begin_capture(&self, stream: &Stream) -> Result<(), Failure> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives.
        unsafe { result::stream::begin_capture(stream.handle, mode) }.map_err(failure("cuStreamBeginCapture"))
    }

    fn end_capture(&self, stream: &Stream) -> Result<Graph, Failure> {
        // SAFETY: the stream lives and captures.
        let graph = unsafe { result::stream::end_capture(stream.handle) }.map_err(failure("cuStreamEndCapture"))?;
        match graph.is_null() {
            true => Err(Failure { call: "cuStreamEndCapture", code: 0, is_sticky: false }),
            false => Graph::instantiate(&self.primary, graph),
        }
    }

    fn launch(&self, graph: &Graph, stream: &Stream) -> Result<(), Failure> {
        // SAFETY: both live; what the graph reads and writes is the lane's.
        unsafe { result::graph::launch(graph.handle, stream.handle) }.map_err(failure("cuGraphLaunch"))
    }

    fn upload(&self, stream: &Stream, to: &mut Memory, from: &Host, bytes: usize) -> Result<(), Failure> {
        assert!(bytes <= to.bytes && bytes <= from.len(), "a copy stays inside its memory");
        // SAFETY: both are at least this large, and the lane keeps off them until its event is done.
        let copied = unsafe { result::memcpy_htod_async(to.address, &from[..bytes], stream.handle) };
        copied.map_err(failure("cuMemcpyHtoDAsync"))
    }

    fn download(&self, stream: &Stream, to: &mut Host, from: &Memory, slices: Slices) -> Result<(), Failure> {
        let Slices { count, bytes, distance } = slices;
        let read = count.saturating_sub(1) * distance + bytes;
        assert!(slices.total_bytes() <= to.len() && read <= from.bytes, "a copy stays inside its memory");
        if count == 1 {
            // SAFETY: both are at least this large, and the lane keeps off them until its event is done.
            let copied = unsafe { result::memcpy_dtoh_async(&mut to[..bytes], from.address, stream.handle) };
            return copied.map_err(failure("cuMemcpyDtoHAsync"));
        }
        let copy = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcHost: std::ptr::null(),
            srcDevice: from.address,
            srcArray: std::ptr::null_mut(),
            srcPitch: distance,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
            dstHost: to.address(),
            dstDevice: 0,
            dstArray: std::ptr::null_mut(),
            dstPitch: bytes,
            WidthInBytes: bytes,
            Height: count,
        };
        // SAFETY: as above; the description is read before the call returns.
        let copied = unsafe { sys::cuMemcpy2DAsync_v2(&copy, stream.handle) };
        copied.result().map_err(failure("cuMemcpy2DAsync"))
    }

    fn record(&self, event: &Event, stream: &Stream) -> Result<(), Failure> {
        // SAFETY: both live.
        unsafe { result::event::record(event.handle, stream.handle) }.map_err(failure("cuEventRecord"))
    }

    fn is_done(&self, event: &Event) -> Result<bool, Failure> {
        // SAFETY: the event lives.
        match unsafe { result::event::query(event.handle) } {
            Ok(()) => Ok(true),
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            Err(error) => Err(failure("cuEventQuery")(error)),
        }
    }

    fn elapsed_ns(&self, from: &Event, to: &Event) -> Result<u64, Failure> {
        // SAFETY: both live and were recorded.
        let elapsed_ms = unsafe { result::event::elapsed(from.handle, to.handle) };
        // The driver's resolution is half a microsecond, and it may read a little below zero.
        elapsed_ms.map(|ms| (f64::from(ms.max(0.0)) * 1e6) as u64).map_err(failure("cuEventElapsedTime"))
    }

    fn wait(&self, stream: &Stream, event: &Event) -> Result<(), Failure> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both live.
        let queued = unsafe { result::stream::wait_event(stream.handle, event.handle, flags) };
        queued.map_err(failure("cuStreamWaitEvent"))
    }

    fn ring(&self, stream: &Stream) -> Result<(), Failure> {
        self.rope.pull_after(stream)
    }

    fn synchronize(&self, stream: &Stream) -> Result<(), Failure> {
        // SAFETY: the stream lives.
        unsafe { result::stream::synchronize(stream.handle) }.map_err(failure("cuStreamSynchronize"))
    }

    fn take(&self, stream: &Stream, bytes: usize) -> Result<Memory, Failure> {
        Memory::take(&self.primary, stream, bytes)
    }

    fn give_back(&self, stream: &Stream, memory: Memory) -> Result<(), Failure> {
        memory.give_back(stream)
    }

    fn name(&self) -> &str {
        &self.name
    }
}
