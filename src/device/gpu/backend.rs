//! What lanes need from a GPU and from the library that runs engines on it: the calls, and nothing of how they are made.
//!
//! There are two: `device::cuda`, and the one in this room's tests, whose memory, streams and graphs are as literal-minded as
//! the real ones: a copy takes what lies there when the stream reaches it, a graph replays the shapes and addresses that
//! were there when it was captured.
//!
//! Contract: calls that take a stream return at once and happen in the stream's order; whoever gave them memory keeps it, and
//! keeps off it, until an event recorded behind them is done. Every object dies before the backend that made it.

use std::ffi::CStr;
use std::path::Path;
use std::sync::Arc;

use crate::device::LoadError;
use crate::model::engine::Description;

/// A call that failed, with the vendor's own number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The call's name.
    pub call: &'static str,
    pub code: i32,
    /// Whether everything after it fails too: the GPU's context is lost.
    pub is_sticky: bool,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} failed with {}", self.call, self.code)
    }
}

/// Called from a thread of the driver's when a stream reaches it; may not call the backend.
pub type Bell = Arc<dyn Fn() + Send + Sync>;

/// Memory of the GPU, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Free {
    pub free: u64,
    pub total: u64,
}

pub trait Backend: Send + 'static {
    /// A model's weights and plans on the GPU.
    type Engine: Send;
    /// One way to run an engine: a profile, shapes, addresses. Used by one stream at a time.
    type Context: Send;
    type Stream: Send;
    /// Records when a stream reached it.
    type Event: Send;
    /// A captured run, ready to be replayed.
    type Graph: Send;
    /// Page-locked memory of the host. Readable at full speed, so never write-combined.
    type Host: Send + std::ops::DerefMut<Target = [u8]>;
    /// Memory of the GPU.
    type Memory: Send;

    /// Makes this GPU the calling thread's. Cheap; needed whenever the thread may have changed.
    fn enter(&self) -> Result<(), Failure>;
    fn free(&self) -> Result<Free, Failure>;
    fn stream(&self) -> Result<Self::Stream, Failure>;
    fn event(&self) -> Result<Self::Event, Failure>;
    fn host(&self, bytes: usize) -> Result<Self::Host, Failure>;
    fn memory(&self, bytes: usize) -> Result<Self::Memory, Failure>;

    /// Reads a serialized engine.
    fn engine(&self, path: &Path) -> Result<Self::Engine, LoadError>;
    fn description(&self, engine: &Self::Engine) -> Description;
    fn context(&self, engine: &Self::Engine, profile: usize, stream: &Self::Stream)
    -> Result<Self::Context, LoadError>;
    /// All of an engine's contexts are made and have run: a good moment to keep what the library compiled for them.
    fn keep(&self, engine: &Self::Engine);

    fn set_shape(&self, context: &mut Self::Context, tensor: &CStr, shape: &[i64]) -> Result<(), LoadError>;
    /// The shape of an output under the inputs' present shapes.
    fn shape(&self, context: &Self::Context, tensor: &CStr) -> Vec<i64>;
    /// Scratch memory that a run needs under the present shapes.
    fn scratch_bytes(&self, context: &mut Self::Context) -> Result<usize, LoadError>;
    fn set_scratch(&self, context: &mut Self::Context, memory: &Self::Memory);
    fn set_address(
        &self,
        context: &mut Self::Context,
        tensor: &CStr,
        memory: &Self::Memory,
        offset: usize,
    ) -> Result<(), LoadError>;

    fn enqueue(&self, context: &mut Self::Context, stream: &Self::Stream) -> Result<(), Failure>;
    /// From here to [`Backend::end_capture`] this thread's calls on the stream are written down instead of made.
    fn begin_capture(&self, stream: &Self::Stream) -> Result<(), Failure>;
    /// Must be called after every successful begin, whatever failed between.
    fn end_capture(&self, stream: &Self::Stream) -> Result<Self::Graph, Failure>;
    fn launch(&self, graph: &Self::Graph, stream: &Self::Stream) -> Result<(), Failure>;

    fn upload(
        &self,
        stream: &Self::Stream,
        to: &mut Self::Memory,
        from: &Self::Host,
        bytes: usize,
    ) -> Result<(), Failure>;
    fn download(
        &self,
        stream: &Self::Stream,
        to: &mut Self::Host,
        from: &Self::Memory,
        slices: Slices,
    ) -> Result<(), Failure>;
    fn record(&self, event: &Self::Event, stream: &Self::Stream) -> Result<(), Failure>;
    /// Whether the stream has passed the event's last recording. A failure of earlier work shows here.
    fn is_done(&self, event: &Self::Event) -> Result<bool, Failure>;
    /// Between two events that are done.
    fn elapsed_ns(&self, from: &Self::Event, to: &Self::Event) -> Result<u64, Failure>;
    /// Lets the stream go on only when the event's last recording is reached.
    fn wait(&self, stream: &Self::Stream, event: &Self::Event) -> Result<(), Failure>;
    /// Rings the bell that the backend was made with when the stream gets here.
    fn ring(&self, stream: &Self::Stream) -> Result<(), Failure>;
    /// Waits for all of the stream's work.
    fn synchronize(&self, stream: &Self::Stream) -> Result<(), Failure>;

    /// Memory from the stream's own pool, for those who would rather not keep it between runs.
    fn take(&self, stream: &Self::Stream, bytes: usize) -> Result<Self::Memory, Failure>;
    /// Gives it back when the stream gets here.
    fn give_back(&self, stream: &Self::Stream, memory: Self::Memory) -> Result<(), Failure>;

    /// What the log and `/metrics` call it: `cuda:0`.
    fn name(&self) -> &str;
}

/// Equal slices at equal distances, put together without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slices {
    pub count: usize,
    pub bytes: usize,
    /// From the beginning of one to the beginning of the next; equal to `bytes` for one block.
    pub distance: usize,
}

impl Slices {
    pub fn total_bytes(self) -> usize {
        self.count * self.bytes
    }
}
