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
    /// Index within the job of this piece's first sequence, and how many sequences the job has.
    pub first: u32,
    pub items: u32,
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

/// Bytes in memory: a vector whose capacity is one of the pool's classes and never grows.
pub type Buffer = Vec<u8>;

/// What a [`Body`] is sent to a worker for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errand {
    /// Parse the request, cut it into pieces, come home.
    Cut,
    /// Encode the answer from `values` into `answer`, come home.
    Encode,
}

/// A request on its way between the reactor and a worker: its bytes, and empty pieces to fill.
#[derive(Debug)]
pub struct Body {
    pub job: JobKey,
    pub errand: Errand,
    pub route: Route,
    /// The request's bytes, head included.
    pub bytes: Buffer,
    /// Where in `bytes` the body lies.
    pub body: Range<u32>,
    /// Empty pieces lent to the worker. What it does not fill comes home in here.
    pub pieces: Vec<Box<Piece>>,
    /// What was asked for, once parsed.
    pub outline: Option<Outline>,
    pub verdict: Result<(), Reject>,
    /// Texts that were cut to the model's length, and all tokens sent to the device.
    pub truncated: u32,
    pub tokens: u64,
    /// `items × width` f32, little-endian, in input order.
    pub values: Buffer,
    /// The encoded answer, behind [`HEADROOM`] bytes for its head.
    pub answer: Buffer,
    pub device_ns: u64,
    /// When the body was complete, in the server's clock.
    pub arrived_ns: u64,
    pub parse_ns: u64,
    pub tokenize_ns: u64,
    pub encode_ns: u64,
}

/// Bytes kept free before an encoded answer, so that its head can be written in front of it.
pub const HEADROOM: usize = 1024;

impl Body {
    pub fn new(pieces_max: usize) -> Body {
        Body {
            job: JobKey::default(),
            errand: Errand::Cut,
            route: Route::Embeddings,
            bytes: Buffer::new(),
            body: 0..0,
            pieces: Vec::with_capacity(pieces_max),
            outline: None,
            verdict: Ok(()),
            truncated: 0,
            tokens: 0,
            values: Buffer::new(),
            answer: Buffer::new(),
            device_ns: 0,
            arrived_ns: 0,
            parse_ns: 0,
            tokenize_ns: 0,
            encode_ns: 0,
        }
    }

    /// The body's bytes.
    pub fn content(&self) -> &[u8] {
        &self.bytes[self.body.start as usize..self.body.end as usize]
    }
}

/// What travels from the reactor to a worker.
#[derive(Debug)]
pub enum ToWorker {
    Body(Box<Body>),
    /// An empty piece for a job that is still being cut.
    Supply(JobKey, Box<Piece>),
    /// The job has been answered or cancelled while its body is here.
    Ended(JobKey),
}

/// What comes home to the reactor.
#[derive(Debug)]
pub enum ToReactor {
    Body(Box<Body>),
    Piece(Box<Piece>),
}

/// Parts and buffers counted where they lie: what all threads hold together is what the pools have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    pub pieces: usize,
    pub bodies: usize,
    pub buffers: usize,
}

impl Census {
    pub fn see_body(&mut self, body: &Body) {
        self.bodies += 1;
        self.pieces += body.pieces.len();
        for buffer in [&body.bytes, &body.values, &body.answer] {
            self.see_buffer(buffer);
        }
    }

    pub fn see_buffer(&mut self, buffer: &Buffer) {
        self.buffers += usize::from(buffer.capacity() > 0);
    }

    pub fn see_to_worker(&mut self, part: &ToWorker) {
        match part {
            ToWorker::Body(body) => self.see_body(body),
            ToWorker::Supply(_, _) => self.pieces += 1,
            ToWorker::Ended(_) => {}
        }
    }

    pub fn see_to_reactor(&mut self, part: &ToReactor) {
        match part {
            ToReactor::Body(body) => self.see_body(body),
            ToReactor::Piece(_) => self.pieces += 1,
        }
    }
}

impl std::ops::AddAssign for Census {
    fn add_assign(&mut self, other: Census) {
        self.pieces += other.pieces;
        self.bodies += other.bodies;
        self.buffers += other.buffers;
    }
}

/// The sizes of pooled buffers, in bytes. Larger ones are allocated one by one within a budget and freed again.
const CLASSES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// Each class has one part in so many of the pool.
const CLASS_SHARE: usize = 10;

/// The bounded pool of byte buffers. Its memory is reserved at start and becomes resident as it is first used.
#[derive(Debug)]
pub struct Buffers {
    free: [Vec<Buffer>; CLASSES.len()],
    large_bytes_free: usize,
    /// Buffers taken and not yet put back.
    out: usize,
}

impl Buffers {
    /// How much of a pool of `bytes_max` bytes is for buffers larger than the largest class.
    pub fn large_bytes(bytes_max: usize) -> usize {
        bytes_max - bytes_max / CLASS_SHARE * CLASSES.len()
    }

    /// The smallest `bytes_max` whose [`Buffers::large_bytes`] are at least this.
    pub fn bytes_for(large_bytes: usize) -> usize {
        (large_bytes * CLASS_SHARE).div_ceil(CLASS_SHARE - CLASSES.len()) + CLASS_SHARE
    }

    /// A pool of about `bytes_max` bytes: a tenth for each class, the rest for single larger buffers.
    pub fn new(bytes_max: usize) -> Buffers {
        let share = bytes_max / CLASS_SHARE;
        let free = CLASSES.map(|class| (0..(share / class).max(1)).map(|_| Buffer::with_capacity(class)).collect());
        Buffers { free, large_bytes_free: Buffers::large_bytes(bytes_max), out: 0 }
    }

    /// An empty buffer of at least `bytes` capacity: of the smallest class that has one free, else a large one within
    /// the budget, else `None`.
    pub fn take(&mut self, bytes: usize) -> Option<Buffer> {
        for (class, free) in CLASSES.iter().zip(&mut self.free) {
            if *class >= bytes
                && let Some(buffer) = free.pop()
            {
                self.out += 1;
                return Some(buffer);
            }
        }
        if bytes <= CLASSES[CLASSES.len() - 1] {
            return None;
        }
        self.large_bytes_free = self.large_bytes_free.checked_sub(bytes)?;
        let buffer = Buffer::with_capacity(bytes);
        // The budget is given back by capacity, which the allocator may have rounded up.
        let surplus = buffer.capacity() - bytes;
        self.large_bytes_free = self.large_bytes_free.saturating_sub(surplus);
        self.out += 1;
        Some(buffer)
    }

    /// Takes a buffer back. One that never came from here (capacity 0) is dropped.
    pub fn put(&mut self, mut buffer: Buffer) {
        if buffer.capacity() == 0 {
            return;
        }
        self.out -= 1;
        buffer.clear();
        match CLASSES.iter().position(|class| *class == buffer.capacity()) {
            Some(class) => self.free[class].push(buffer),
            None => self.large_bytes_free += buffer.capacity(),
        }
    }

    /// Moves the contents of `buffer` to one of at least `bytes` capacity, and of half as much again as it had if there is
    /// one: bytes that come one by one must not be copied one by one. `false`: there is none, nothing has changed.
    pub fn grow(&mut self, buffer: &mut Buffer, bytes: usize) -> bool {
        if buffer.capacity() >= bytes {
            return true;
        }
        let generous = bytes.max(buffer.capacity() + buffer.capacity() / 2);
        let Some(mut larger) = self.take(generous).or_else(|| self.take(bytes)) else { return false };
        larger.extend_from_slice(buffer);
        self.put(std::mem::replace(buffer, larger));
        true
    }

    pub fn out(&self) -> usize {
        self.out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_from_the_smallest_class_that_has_one() {
        let mut buffers = Buffers::new(8 << 20);
        let small = buffers.take(100).unwrap();
        assert_eq!(small.capacity(), 4096);
        let medium = buffers.take(4097).unwrap();
        assert_eq!(medium.capacity(), 16 << 10);
        assert_eq!(buffers.out(), 2);
        buffers.put(small);
        buffers.put(medium);
        assert_eq!(buffers.out(), 0);
    }

    #[test]
    fn the_pool_ends_and_comes_back() {
        let mut buffers = Buffers::new(8 << 20);
        let mut taken = Vec::new();
        while let Some(buffer) = buffers.take(1 << 20) {
            taken.push(buffer);
        }
        assert_eq!(taken.len(), 1, "each class has at least one");
        let large = buffers.take(3 << 20).expect("half is for large ones");
        assert!(buffers.take(3 << 20).is_none(), "4 MiB less 3 MiB are left");
        buffers.put(large);
        buffers.put(taken.pop().unwrap());
        assert!(buffers.take(2 << 20).is_some());
    }

    #[test]
    fn growing_keeps_the_contents() {
        let mut buffers = Buffers::new(8 << 20);
        let mut buffer = buffers.take(10).unwrap();
        buffer.extend_from_slice(b"hello");
        assert!(buffers.grow(&mut buffer, 100_000));
        assert_eq!(buffer, b"hello");
        assert_eq!(buffer.capacity(), 256 << 10);
        assert_eq!(buffers.out(), 1);
        assert!(!buffers.grow(&mut buffer, 1 << 30));
        assert_eq!(buffer, b"hello");
    }

    #[test]
    fn growing_byte_by_byte_copies_a_few_times_only() {
        let mut buffers = Buffers::new(64 << 20);
        let mut buffer = Buffer::new();
        let mut moves = 0;
        for bytes in 1..6 << 20 {
            let before = buffer.capacity();
            assert!(buffers.grow(&mut buffer, bytes));
            moves += usize::from(buffer.capacity() != before);
        }
        assert!(moves <= 12, "{moves} moves for 6 MiB");
        buffers.put(buffer);
        assert_eq!(buffers.out(), 0);
    }

    #[test]
    fn an_ended_job_is_dead_and_its_slot_lives_on() {
        let generations = Generations::new(2);
        let job = generations.key(1);
        assert!(generations.is_live(job));
        generations.end(1);
        assert!(!generations.is_live(job));
        assert!(generations.is_live(generations.key(1)));
    }

    #[test]
    fn a_piece_knows_where_its_sequences_lie() {
        let bounds = PieceBounds { sequences_max: 4, tokens_max: 16 };
        let mut piece = Piece::with_bounds(bounds, 8);
        piece.ids.extend([1, 2, 3, 4, 5]);
        piece.types.extend([0; 5]);
        piece.ends.extend([2, 5]);
        assert_eq!((piece.sequences(), piece.range(0), piece.range(1), piece.length(1)), (2, 0..2, 2..5, 3));
        let capacity = piece.ids.capacity();
        piece.clear();
        assert_eq!((piece.sequences(), piece.ids.capacity()), (0, capacity));
    }
}
