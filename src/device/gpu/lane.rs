//! One lane of a GPU: a stream, what lies in memory for it, and the runs that are ready to be replayed on it.
//!
//! ```text
//! input_host   [ ids │ mask │ … ]   page-locked, filled by us      ──upload──▶  input   on the GPU, same offsets
//! output_host  [ v0 │ v1 │ … ]      page-locked, read by us       ◀─download──  output  on the GPU
//!                                                                               scratch on the GPU, for whatever runs
//!      events:   began ─upload─ uploaded ─run─ computed ─download─ done
//! ```
//!
//! A [`Station`] is one bucket of one model on this lane: an execution context that never runs anything else, and its captured
//! graph. All stations of a lane share its memory, since the stream lets one run at a time.
//!
//! Invariant: while the lane is busy nobody touches its host memory; addresses in contexts and graphs are those of the
//! memory that the lane has now (growing it makes every station anew).

use std::ffi::CString;

use super::backend::{Backend, Failure, Slices};
use crate::device::LoadError;

/// See the module's head. Graphs and contexts live in [`Station`]s and must go before this.
pub struct Track<B: Backend> {
    pub stream: B::Stream,
    /// Where the bell is rung from: on the lane's own stream the next run would wait for it.
    bell: B::Stream,
    pub events: Events<B>,
    pub input_host: B::Host,
    pub output_host: B::Host,
    pub input: B::Memory,
    pub output: B::Memory,
    pub scratch: B::Memory,
    pub sizes: Sizes,
}

/// The four moments of a run.
pub struct Events<B: Backend> {
    pub began: B::Event,
    pub uploaded: B::Event,
    pub computed: B::Event,
    pub done: B::Event,
}

/// Bytes of a lane's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    pub input: usize,
    pub output: usize,
    pub scratch: usize,
}

impl Sizes {
    pub fn cover(self, other: Sizes) -> Sizes {
        Sizes {
            input: self.input.max(other.input),
            output: self.output.max(other.output),
            scratch: self.scratch.max(other.scratch),
        }
    }

    pub fn total(self) -> usize {
        self.input + self.output + self.scratch
    }
}

/// One bucket of one model on one lane.
pub struct Station<B: Backend> {
    /// Before the context, which it was captured from.
    pub graph: Option<B::Graph>,
    pub context: B::Context,
}

impl<B: Backend> Station<B> {
    /// Queues one run: its graph, or without one the context itself.
    pub fn execute(&mut self, backend: &B, stream: &B::Stream) -> Result<(), Failure> {
        match &self.graph {
            Some(graph) => backend.launch(graph, stream),
            None => backend.enqueue(&mut self.context, stream),
        }
    }
}

impl<B: Backend> Track<B> {
    pub fn new(backend: &B) -> Result<Track<B>, Failure> {
        let event = || backend.event();
        Ok(Track {
            stream: backend.stream()?,
            bell: backend.stream()?,
            events: Events { began: event()?, uploaded: event()?, computed: event()?, done: event()? },
            input_host: backend.host(1)?,
            output_host: backend.host(1)?,
            input: backend.memory(1)?,
            output: backend.memory(1)?,
            scratch: backend.memory(1)?,
            sizes: Sizes { input: 1, output: 1, scratch: 1 },
        })
    }

    /// Makes the memory at least this large; true if any of it has moved. The lane must be idle.
    pub fn grow(&mut self, backend: &B, wanted: Sizes) -> Result<bool, LoadError> {
        let wanted = self.sizes.cover(wanted);
        if wanted == self.sizes {
            return Ok(false);
        }
        let refused = |failure: Failure| {
            let free =
                backend.free().map(|free| format!("; {} of {} are free", free.free, free.total)).unwrap_or_default();
            let (name, total) = (backend.name(), wanted.total());
            LoadError(format!(
                "{name} has no room for {total} bytes of buffers and scratch memory on one lane{free} ({failure})"
            ))
        };
        // All of it before any of it takes its place: a lane that cannot grow stays as it was.
        let memory = |bytes| backend.memory(bytes).map_err(refused);
        let host = |bytes| backend.host(bytes).map_err(refused);
        let input = (wanted.input > self.sizes.input).then(|| Ok((host(wanted.input)?, memory(wanted.input)?)));
        let input = input.transpose()?;
        let output = (wanted.output > self.sizes.output).then(|| Ok((host(wanted.output)?, memory(wanted.output)?)));
        let output = output.transpose()?;
        let scratch = (wanted.scratch > self.sizes.scratch).then(|| memory(wanted.scratch)).transpose()?;
        if let Some(pair) = input {
            (self.input_host, self.input) = pair;
        }
        if let Some(pair) = output {
            (self.output_host, self.output) = pair;
        }
        if let Some(scratch) = scratch {
            self.scratch = scratch;
        }
        self.sizes = wanted;
        Ok(true)
    }

    /// Runs the context once and captures it. A capture that fails leaves the station without a graph, and the failure.
    pub fn capture(&self, backend: &B, station: &mut Station<B>) -> Result<(), Failure> {
        station.graph = None;
        backend.begin_capture(&self.stream)?;
        let enqueued = backend.enqueue(&mut station.context, &self.stream);
        // Ended in any case; a graph of a refused run would replay stale memory and is dropped.
        let graph = backend.end_capture(&self.stream);
        enqueued?;
        station.graph = Some(graph?);
        Ok(())
    }

    /// One run, from filled input memory to output memory that can be read once `done` is reached.
    pub fn run(
        &mut self,
        backend: &B,
        station: &mut Station<B>,
        input_bytes: usize,
        output: Slices,
    ) -> Result<(), Failure> {
        let Events { began, uploaded, computed, done } = &self.events;
        let stream = &self.stream;
        backend.record(began, stream)?;
        backend.upload(stream, &mut self.input, &self.input_host, input_bytes)?;
        backend.record(uploaded, stream)?;
        station.execute(backend, stream)?;
        backend.record(computed, stream)?;
        backend.download(stream, &mut self.output_host, &self.output, output)?;
        backend.record(done, stream)
    }

    /// From now on the end of the run under way rings the bell.
    pub fn arm(&self, backend: &B) -> Result<(), Failure> {
        backend.wait(&self.bell, &self.events.done)?;
        backend.ring(&self.bell)
    }

    /// Waits for everything that was queued here.
    pub fn synchronize(&self, backend: &B) -> Result<(), Failure> {
        backend.synchronize(&self.stream)?;
        backend.synchronize(&self.bell)
    }

    /// The same with device memory that is taken for this run alone, so nothing of it is kept between runs.
    pub fn run_frugally(
        &mut self,
        backend: &B,
        station: &mut Station<B>,
        addresses: &Addresses,
        wanted: Sizes,
        output: Slices,
    ) -> Result<(), Failure> {
        let Events { began, uploaded, computed, done } = &self.events;
        let stream = &self.stream;
        backend.record(began, stream)?;
        let mut input = backend.take(stream, wanted.input)?;
        let outputs = backend.take(stream, wanted.output)?;
        let scratch = backend.take(stream, wanted.scratch)?;
        let addressed = addresses.set(backend, &mut station.context, &input, &outputs, &scratch);
        let addressed = addressed.map_err(|_| Failure { call: "setTensorAddress", code: 0, is_sticky: false });
        let ran = addressed.and_then(|()| {
            backend.upload(stream, &mut input, &self.input_host, wanted.input)?;
            backend.record(uploaded, stream)?;
            backend.enqueue(&mut station.context, stream)?;
            backend.record(computed, stream)?;
            backend.download(stream, &mut self.output_host, &outputs, output)
        });
        for memory in [input, outputs, scratch] {
            backend.give_back(stream, memory)?;
        }
        ran?;
        backend.record(done, stream)
    }
}

/// Where a context finds its tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Name and offset of each input.
    pub inputs: Vec<(CString, usize)>,
    pub output: CString,
}

impl Addresses {
    /// The inputs' names, in the order of the ports.
    pub fn names(&self) -> impl Iterator<Item = &CString> {
        self.inputs.iter().map(|(name, _)| name)
    }

    pub fn set<B: Backend>(
        &self,
        backend: &B,
        context: &mut B::Context,
        input: &B::Memory,
        output: &B::Memory,
        scratch: &B::Memory,
    ) -> Result<(), LoadError> {
        backend.set_scratch(context, scratch);
        for (name, offset) in &self.inputs {
            backend.set_address(context, name, input, *offset)?;
        }
        backend.set_address(context, &self.output, output, 0)
    }
}
