//! Jobs and parts: what a request is made of, and who holds it.
//!
//! A **job** is one request; its slot stays with the reactor. What moves between threads are **parts**, by value, through
//! rings: a [`Body`] (the request's bytes on their way to a worker and home again) and [`Piece`]s (at most
//! [`PieceBounds`] sequences of token ids on their way to a device, coming home with their vectors).
//!
//! Invariants: a part has exactly one holder; all parts are allocated at start and `home + out = pool`; a piece that comes
//! home frees itself for its own job first (so a large request streams through few pieces). Cancelling a job bumps the
//! generation of its slot in [`Generations`]; whoever is about to spend work on a part asks [`Generations::is_live`].

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::api::{Outline, Reject, Route};
use crate::device::Fault;

/// Names a job: its slot in the reactor's table and the slot's generation. A stale key is harmless.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobKey {
    pub slot: u32,
    pub generation: u32,
}

/// Names a loaded model: its index in the catalog and the generation of that entry, so that a model can be unloaded
/// while parts that name it are still on their way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelKey {
    pub index: u32,
    pub generation: u32,
}

/// The current generation of every job slot. The reactor writes, workers and devices read.
#[derive(Clone, Debug)]
pub struct Generations(Arc<[AtomicU32]>);

impl Generations {
    pub fn new(slots: usize) -> Generations {
        Generations((0..slots).map(|_| AtomicU32::new(0)).collect())
    }

    /// True exactly while the job of this key is neither answered nor cancelled. A read may be late by the time a store
    /// takes to travel; the work then spent on a dead job is thrown away when it comes home.
    pub fn is_live(&self, job: JobKey) -> bool {
        self.0[job.slot as usize].load(Ordering::Relaxed) == job.generation
    }

    /// The key under which the slot's next job goes.
    pub fn key(&self, slot: u32) -> JobKey {
        JobKey { slot, generation: self.0[slot as usize].load(Ordering::Relaxed) }
    }

    /// Ends the slot's present job: every part that still carries its key is dead from here on. Reactor only.
    pub fn end(&self, slot: u32) {
        let generation = &self.0[slot as usize];
        generation.store(generation.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
}

/// A byte range inside a request's buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    pub start: u32,
    pub length: u32,
}

impl Span {
    pub fn range(self) -> Range<usize> {
        self.start as usize..(self.start + self.length) as usize
    }
}

/// How large one piece can be. Never larger than the smallest "largest bucket" of any model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceBounds {
    pub sequences_max: u32,
    pub tokens_max: u32,
}

/// Up to [`PieceBounds`] sequences of one job, ready for a device, and later their vectors.
///
/// ```text
/// ids   [ sequence 0 | sequence 1 | sequence 2 ]      token ids, specials included
/// types [ 0 0 0 0 0 0 0 0 1 1 1 0 0 0          ]      token type of each id, same length
/// ends  [            ^            ^            ^]     one per sequence, exclusive
/// outputs [ vector 0 | vector 1 | vector 2 ]          `width` values each, written by the device
/// ```
#[derive(Debug, Default)]
pub struct Piece {
    pub job: JobKey,
    pub model: ModelKey,
    /// Index within the job of this piece's first sequence.
    pub first: u32,
    pub ids: Vec<u32>,
    pub types: Vec<u8>,
    pub ends: Vec<u32>,
    pub outputs: Vec<f32>,
    /// When the job's body was complete: what the planner's age backstop counts from. Nanoseconds of the server's clock.
    pub arrived_ns: u64,
    /// When the worker pushed the piece, when its first sequence began to execute, and when its last was done.
    pub queued_ns: u64,
    pub started_ns: u64,
    pub done_ns: u64,
    /// Set by the device when the piece could not be computed; `outputs` is then meaningless.
    pub fault: Option<Fault>,
}

impl Piece {
    pub fn with_bounds(bounds: PieceBounds, width_max: usize) -> Piece {
        Piece {
            ids: Vec::with_capacity(bounds.tokens_max as usize),
            types: Vec::with_capacity(bounds.tokens_max as usize),
            ends: Vec::with_capacity(bounds.sequences_max as usize),
            outputs: Vec::with_capacity(bounds.sequences_max as usize * width_max),
            ..Piece::default()
        }
    }

    pub fn sequences(&self) -> usize {
        self.ends.len()
    }

    /// Where sequence `index` lies in `ids` and `types`.
    pub fn range(&self, index: usize) -> Range<usize> {
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        start..self.ends[index] as usize
    }

    pub fn length(&self, index: usize) -> u32 {
        self.range(index).len() as u32
    }

    /// Forgets the contents, keeps the memory.
    pub fn clear(&mut self) {
        self.ids.clear();
        self.types.clear();
        self.ends.clear();
        self.outputs.clear();
        self.fault = None;
        (self.first, self.arrived_ns, self.queued_ns, self.started_ns, self.done_ns) = (0, 0, 0, 0, 0);
    }
}
