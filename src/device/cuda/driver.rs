//! The driver's objects with owners: what is made here is destroyed here, on whatever thread, in its own context.
//!
//! Calls go through cudarc's `result` layer, one for one; nothing waits that does not say so. Codes stay the driver's numbers.
//!
//! Invariant: a handle is used only while its owner lives. Dropping may fail where the context is lost; then there is nothing
//! left to free.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use cudarc::driver::{DriverError, result, sys};

use crate::device::gpu::{Bell, Failure};

/// Codes after which the context still works: wrong arguments, no memory, not supported, no resources for a launch, and
/// everything about captures. After any other nothing further can be trusted.
const MILD: [i32; 8] = [1, 2, 101, 201, 304, 400, 701, 801];
const CAPTURES: std::ops::RangeInclusive<i32> = 900..=908;

/// Names the call that failed.
pub(super) fn failure(call: &'static str) -> impl Fn(DriverError) -> Failure {
    move |error| {
        let code = error.0 as i32;
        Failure { call, code, is_sticky: !MILD.contains(&code) && !CAPTURES.contains(&code) }
    }
}

/// Whether there is a driver to open. cudarc panics where there is none.
pub(super) fn is_present() -> bool {
    // SAFETY: opens and closes the driver's library, whose initialisers ask for nothing.
    unsafe { sys::is_culib_present() }
}

/// A GPU's primary context, which the runtime library inside TensorRT uses too. Clones are the same one.
#[derive(Clone, Debug)]
pub(super) struct Primary {
    inner: Arc<Retained>,
}

#[derive(Debug)]
struct Retained {
    device: sys::CUdevice,
    context: sys::CUcontext,
}

// SAFETY: the driver's handles are bound to no thread; its calls lock for themselves.
unsafe impl Send for Retained {}
// SAFETY: as above.
unsafe impl Sync for Retained {}

impl Drop for Retained {
    fn drop(&mut self) {
        // SAFETY: retained once, in `Primary::retain`.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

impl Primary {
    pub fn retain(device: sys::CUdevice) -> Result<Primary, Failure> {
        // SAFETY: the device is one that the driver named.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(failure("cuDevicePrimaryCtxRetain"))?;
        Ok(Primary { inner: Arc::new(Retained { device, context }) })
    }

    /// Makes it the calling thread's.
    pub fn enter(&self) -> Result<(), Failure> {
        // SAFETY: the context is retained.
        unsafe { result::ctx::set_current(self.inner.context) }.map_err(failure("cuCtxSetCurrent"))
    }
}

/// A stream that does not wait for the default one.
#[derive(Debug)]
pub struct Stream {
    pub(super) handle: sys::CUstream,
    primary: Primary,
}

// SAFETY: as for `Retained`.
unsafe impl Send for Stream {}

impl Stream {
    pub(super) fn new(primary: &Primary) -> Result<Stream, Failure> {
        let handle = result::stream::create(result::stream::StreamKind::NonBlocking);
        Ok(Stream { handle: handle.map_err(failure("cuStreamCreate"))?, primary: primary.clone() })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = self.primary.enter();
        // SAFETY: the handle is ours and not used again.
        let _ = unsafe { result::stream::destroy(self.handle) };
    }
}

#[derive(Debug)]
pub struct Event {
    pub(super) handle: sys::CUevent,
    primary: Primary,
}

// SAFETY: as for `Retained`.
unsafe impl Send for Event {}

impl Event {
    pub(super) fn new(primary: &Primary) -> Result<Event, Failure> {
        let handle = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map_err(failure("cuEventCreate"))?;
        Ok(Event { handle, primary: primary.clone() })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = self.primary.enter();
        // SAFETY: the handle is ours and not used again.
        let _ = unsafe { result::event::destroy(self.handle) };
    }
}

/// A graph that can be launched.
#[derive(Debug)]
pub struct Graph {
    pub(super) handle: sys::CUgraphExec,
    primary: Primary,
}

// SAFETY: as for `Retained`.
unsafe impl Send for Graph {}

impl Graph {
    /// Makes a captured graph launchable, and lets go of its plain form.
    pub(super) fn instantiate(primary: &Primary, graph: sys::CUgraph) -> Result<Graph, Failure> {
        // SAFETY: the graph comes from the end of a capture and is nobody else's.
        let handle = unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) };
        // SAFETY: as above; the launchable form does not need it.
        let _ = unsafe { result::graph::destroy(graph) };
        Ok(Graph { handle: handle.map_err(failure("cuGraphInstantiate"))?, primary: primary.clone() })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let _ = self.primary.enter();
        // SAFETY: the handle is ours and not used again.
        let _ = unsafe { result::graph::exec_destroy(self.handle) };
    }
}

/// Page-locked memory, cached by the host like any other: results are read from it.
#[derive(Debug)]
pub struct Host {
    pointer: *mut u8,
    bytes: usize,
    primary: Primary,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for Host {}

impl Host {
    pub(super) fn new(primary: &Primary, bytes: usize) -> Result<Host, Failure> {
        // No flags: write-combined memory is ruinous to read.
        // SAFETY: memory is taken, nothing else.
        let pointer = unsafe { result::malloc_host(bytes, 0) }.map_err(failure("cuMemHostAlloc"))?.cast::<u8>();
        // SAFETY: fresh memory of this size. Slices must be made of initialised bytes.
        unsafe { pointer.write_bytes(0, bytes) };
        Ok(Host { pointer, bytes, primary: primary.clone() })
    }

    pub(super) fn address(&self) -> *mut c_void {
        self.pointer.cast()
    }
}

impl Deref for Host {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: initialised when it was made; whoever queued a copy keeps off until it is done.
        unsafe { std::slice::from_raw_parts(self.pointer, self.bytes) }
    }
}

impl DerefMut for Host {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.pointer, self.bytes) }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.primary.enter();
        // SAFETY: the memory is ours and not used again.
        let _ = unsafe { result::free_host(self.pointer.cast()) };
    }
}

/// Memory of the GPU.
#[derive(Debug)]
pub struct Memory {
    pub(super) address: sys::CUdeviceptr,
    pub(super) bytes: usize,
    primary: Primary,
}

impl Memory {
    pub(super) fn new(primary: &Primary, bytes: usize) -> Result<Memory, Failure> {
        // SAFETY: memory is taken, nothing else.
        let address = unsafe { result::malloc_sync(bytes) }.map_err(failure("cuMemAlloc"))?;
        Ok(Memory { address, bytes, primary: primary.clone() })
    }

    /// From the device's pool, in the stream's order.
    pub(super) fn take(primary: &Primary, stream: &Stream, bytes: usize) -> Result<Memory, Failure> {
        // SAFETY: the stream lives.
        let address = unsafe { result::malloc_async(stream.handle, bytes) }.map_err(failure("cuMemAllocAsync"))?;
        Ok(Memory { address, bytes, primary: primary.clone() })
    }

    /// Back to the pool, in the stream's order.
    pub(super) fn give_back(self, stream: &Stream) -> Result<(), Failure> {
        let kept = std::mem::ManuallyDrop::new(self);
        // SAFETY: taken from the pool and not used again.
        let freed = unsafe { result::free_async(kept.address, stream.handle) }.map_err(failure("cuMemFreeAsync"));
        // SAFETY: read out of what is never dropped, once.
        drop(unsafe { std::ptr::read(&kept.primary) });
        freed
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = self.primary.enter();
        // SAFETY: the memory is ours and not used again. Also right for what came from a pool.
        let _ = unsafe { result::free_sync(self.address) };
    }
}

/// A bell where it stays, for a stream to ring.
pub(super) struct Rope(Box<Bell>);

impl Rope {
    pub fn new(bell: Bell) -> Rope {
        Rope(Box::new(bell))
    }

    /// Rings when the stream gets here. The rope must live until then.
    pub fn pull_after(&self, stream: &Stream) -> Result<(), Failure> {
        let bell: *const Bell = &*self.0;
        // SAFETY: lanes synchronize their streams before the backend, which owns the rope, goes.
        let pulled = unsafe { result::stream::launch_host_function(stream.handle, pull, bell.cast_mut().cast()) };
        pulled.map_err(failure("cuLaunchHostFunc"))
    }
}

/// Runs on a thread of the driver's.
unsafe extern "C" fn pull(bell: *mut c_void) {
    // SAFETY: `pull_after` passed a bell that lives.
    let bell = unsafe { &*bell.cast::<Bell>() };
    // No panic may cross into the driver; the device thread finds a broken bell by its own deadline.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| bell()));
}
