//! The seam between what is to be computed and what computes it.
//!
//! A [`Device`] holds models and runs plans on lanes; it knows nothing of jobs, sockets or fairness. Everything above this
//! seam sees buckets and plans only, so padded and packed engines, the CPU and the simulated device are one thing to it.
//!
//! Invariant: pieces out = pieces in. The pieces themselves stay with the device thread ([`Pieces`]); a device reads their
//! ids in [`Device::submit`] and hands rows of outputs back in [`Device::collect`]. A fault answers every sequence of that
//! lane's plan; the lane is usable again at once unless the device says [`Health::Dead`].

pub mod cpu;
#[cfg(feature = "gpu")]
pub mod cuda;
pub mod driver;
pub mod gpu;
pub mod lane;
#[cfg(feature = "onnxruntime")]
pub mod onnx;
pub mod ports;
pub mod sim;
#[cfg(feature = "gpu")]
pub mod tensorrt;

use std::sync::Arc;

use crate::job::{ModelKey, Piece};
use crate::model::Model;

/// One shape that a device executes: `rows` rows of `length` tokens holding at most `sequences_max` sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    pub rows: u32,
    pub length: u32,
    pub sequences_max: u32,
}

impl Bucket {
    /// Tokens that the device computes whatever the plan holds, `rows × length`.
    pub fn tokens(self) -> u32 {
        self.rows * self.length
    }
}

/// How sequences may lie in a bucket's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One sequence per row, from offset 0.
    Padded,
    /// Any number of whole sequences per row, one after another.
    Packed,
}

/// What a device offers for one model.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    pub layout: Layout,
    /// Ascending in cost. A device that wants no padding offers buckets as bounds, not as shapes.
    pub buckets: Vec<Bucket>,
    /// Output values per sequence.
    pub width: u32,
    /// What one batch of each bucket was measured to take, all lanes running; empty where nobody measured, and then tokens
    /// decide.
    pub costs_ns: Vec<u64>,
}

impl Offer {
    /// The longest sequence that any bucket can hold.
    pub fn length_max(&self) -> u32 {
        self.buckets.iter().map(|bucket| bucket.length).max().unwrap_or(0)
    }
}

/// Where one sequence lies in a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Which piece, as an index into [`Pieces`].
    pub piece: u32,
    /// Which sequence of that piece.
    pub sequence: u32,
    pub row: u32,
    pub offset: u32,
    pub length: u32,
}

/// What one lane executes at once: sequences of one model in one bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub model: ModelKey,
    /// Index into the model's [`Offer::buckets`].
    pub bucket: u32,
    /// Ordered by (row, offset). Never empty when submitted.
    pub placements: Vec<Placement>,
    /// Useful tokens, the sum of the placements' lengths.
    pub tokens: u32,
}

/// The pieces a device thread holds, by a small index that stays put while a piece is here.
#[derive(Debug, Default)]
pub struct Pieces {
    slots: Vec<Option<Box<Piece>>>,
    free: Vec<u32>,
}

impl Pieces {
    pub fn with_capacity(count: usize) -> Pieces {
        Pieces { slots: (0..count).map(|_| None).collect(), free: (0..count as u32).rev().collect() }
    }

    /// Takes a piece in.
    ///
    /// # Panics
    /// When more pieces arrive than the pool has, a broken invariant.
    pub fn insert(&mut self, piece: Box<Piece>) -> u32 {
        let index = self.free.pop().expect("more pieces at a device than the pool holds");
        self.slots[index as usize] = Some(piece);
        index
    }

    pub fn remove(&mut self, index: u32) -> Box<Piece> {
        let piece = self.slots[index as usize].take().expect("a piece leaves a device once");
        self.free.push(index);
        piece
    }

    pub fn get(&self, index: u32) -> &Piece {
        self.slots[index as usize].as_deref().expect("the piece is held here")
    }

    pub fn get_mut(&mut self, index: u32) -> &mut Piece {
        self.slots[index as usize].as_deref_mut().expect("the piece is held here")
    }

    /// Takes every piece out.
    pub fn drain(&mut self) -> impl Iterator<Item = Box<Piece>> + '_ {
        let free = &mut self.free;
        self.slots.iter_mut().enumerate().filter_map(move |(index, slot)| {
            let piece = slot.take()?;
            free.push(index as u32);
            Some(piece)
        })
    }

    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Why a device could not compute a piece. The client sees 503 or 500 as [`crate::api::Reject`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The device refused the plan before running it.
    Refused,
    /// The run was started and failed.
    Failed,
    /// The run did not end in time.
    Hung,
    /// A panic of ours while the plan was in our hands.
    Panicked,
    /// The device is gone for good.
    Dead,
}

/// The state of one lane, as [`Device::poll`] sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Nothing submitted.
    Idle,
    /// Executing.
    Busy,
    /// Results wait in [`Device::collect`].
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    Ready,
    Dead,
}

/// Why a model could not be loaded: a sentence for people that names the file, tensor or number at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError(pub String);

impl std::fmt::Display for LoadError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for LoadError {}

/// One accelerator, or what stands in for it. Owned by one thread; no call blocks except `load` and `unload`.
///
/// Times are nanoseconds of the server's clock, passed in, so that the simulated device can live in virtual time.
pub trait Device: Send {
    /// Makes `model` executable under `key` and says in which shapes. Called before serving.
    fn load(&mut self, key: ModelKey, model: &Arc<Model>) -> Result<Offer, LoadError>;

    fn unload(&mut self, key: ModelKey);

    /// How many plans can execute at once.
    fn lanes(&self) -> usize;

    /// Copies the plan's ids to an idle lane and starts it. On `Err` the lane is idle again and nothing ran.
    fn submit(&mut self, lane: usize, plan: &Plan, pieces: &Pieces, now_ns: u64) -> Result<(), Fault>;

    /// Never blocks.
    fn poll(&mut self, lane: usize, now_ns: u64) -> Lane;

    /// Takes the results of a lane that is [`Lane::Done`], which is idle afterwards. `output(i, vector)` is called once for
    /// each placement, in order, with the model's `width` values. Returns the time the device was busy, in nanoseconds.
    fn collect(&mut self, lane: usize, output: &mut dyn FnMut(usize, &[f32])) -> Result<u64, Fault>;

    fn health(&self) -> Health;

    /// The thread is about to sleep and has just polled every lane: from now on the end of a batch under way rings the doorbell.
    /// False: something may have ended meanwhile, look again. Devices that ring for every batch need not do anything.
    fn arm(&mut self) -> bool {
        true
    }

    /// When a busy lane next changes by itself (the simulated device); `None` if completion rings the doorbell.
    fn wake_at_ns(&self) -> Option<u64> {
        None
    }

    /// Tokens that it computes for this plan, padding included: the whole bucket, unless buckets are only bounds to it.
    fn computed_tokens(&self, _plan: &Plan, bucket: Bucket) -> u64 {
        bucket.tokens().into()
    }

    /// What it counts beside what every device does, if it is a GPU.
    fn gpu(&self) -> Option<Arc<gpu::GpuCounters>> {
        None
    }

    /// What `/metrics` and the log call it: `cpu`, `sim`, `cuda:0`.
    fn name(&self) -> &str;
}
