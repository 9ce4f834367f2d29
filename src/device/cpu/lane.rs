//! What a lane of the CPU device does with the batches it is given.
//!
//! Owned here: the [`Work`] that moves between the device's thread and a lane's, and the run itself; the thread, and
//! how a work goes out and comes home, are [`LaneThread`]'s.
//!
//! Invariant: a work holds its model only while it is out, so an unloaded model's memory goes with its last run, even
//! if that panics.

use std::sync::Arc;

use super::encoder::{Batch, Encoder, Scratch};
use super::team::{Broken, Team};
use crate::device::Fault;
use crate::device::lane::{LaneThread, Notify};

/// Everything one run needs and leaves behind.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub batch: Batch,
    /// The model to run; `None` at home.
    pub encoder: Option<Arc<Encoder>>,
    /// The outputs are in here.
    pub scratch: Scratch,
    pub width: usize,
}

/// Starts a lane's thread, and its helpers where a lane has several threads.
pub(super) fn start(index: usize, threads: usize, notify: Notify) -> LaneThread<Work> {
    let name = format!("cpu-lane-{index}");
    let mut team = Team::new(threads, &name);
    LaneThread::new(name, Work::default(), notify, move |work| run(work, &mut team, threads))
}

fn run(work: &mut Work, team: &mut Team, threads: usize) -> Result<(), Fault> {
    let encoder = work.encoder.take().expect("a work goes out with its model");
    // Takes memory only for a model that was loaded while this lane was away.
    work.scratch.reserve(encoder.needs(work.batch.tokens(), work.batch.sequences()), threads);
    encoder.run(&work.batch, &mut work.scratch, team).map_err(|Broken| Fault::Panicked)
}
