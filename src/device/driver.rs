//! The device thread's work: takes pieces in, plans them onto free lanes, sends them home with their vectors.
//!
//! A batch leaves at once when a lane is free and something waits, so the wait *is* the other lane's execution and batches
//! grow by themselves under load. The driver owns the only copy of every piece that is here; lanes refer to pieces by
//! index.
//!
//! Invariant: every piece that comes in goes home exactly once, when its last sequence has been computed, dropped or has
//! failed. A panic in the planner or the device answers all that is here and marks the device dead.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{Device, Fault, Health, Lane, Pieces, Plan};
use crate::job::{Generations, Piece, ToReactor};
use crate::metrics::DeviceCounters;
use crate::plan::{Next, Planner};
use crate::ring::{Receiver, Sender};

/// One device and everything on its thread.
pub struct Driver {
    device: Box<dyn Device>,
    planner: Planner,
    pieces: Pieces,
    /// Sequences of each held piece that are neither computed nor dropped yet.
    remaining: Vec<u32>,
    lanes: Vec<LaneState>,
    dropped: Vec<(u32, u32)>,
    ports: Ports,
}

/// What connects a driver to the other threads.
#[derive(Debug)]
pub struct Ports {
    /// One ring per worker.
    pub inboxes: Vec<Receiver<Box<Piece>>>,
    pub home: Sender<ToReactor>,
    pub generations: Generations,
    /// Tokens on their way to or waiting at this device; workers add.
    pub load: Arc<AtomicU64>,
    pub ready: Arc<AtomicBool>,
    pub counters: Arc<DeviceCounters>,
}

#[derive(Debug, Default)]
struct LaneState {
    plan: Plan,
    /// When the plan was submitted; `None` exactly while the lane is idle.
    started_ns: Option<u64>,
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Driver").field("device", &self.device.name()).finish_non_exhaustive()
    }
}

/// What the thread's shell should do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Step again at once: something happened.
    No,
    /// Sleep until the doorbell rings or, if given, until this time.
    Until(Option<u64>),
}

impl Driver {
    /// A driver over a device whose models are loaded. `sequences_max`: of the largest plan.
    pub fn new(
        device: Box<dyn Device>,
        planner: Planner,
        ports: Ports,
        pieces_max: usize,
        sequences_max: usize,
    ) -> Driver {
        let lanes = (0..device.lanes())
            .map(|_| LaneState {
                plan: Plan { placements: Vec::with_capacity(sequences_max), ..Plan::default() },
                started_ns: None,
            })
            .collect();
        Driver {
            device,
            planner,
            pieces: Pieces::with_capacity(pieces_max),
            remaining: vec![0; pieces_max],
            lanes,
            dropped: Vec::with_capacity(pieces_max),
            ports,
        }
    }

    /// Collects what is done, takes in what has arrived, submits what can run.
    pub fn step(&mut self, now_ns: u64) -> Rest {
        match catch_unwind(AssertUnwindSafe(|| self.step_inner(now_ns))) {
            Ok(rest) => rest,
            Err(_) => {
                self.ports.counters.panics.fetch_add(1, Ordering::Relaxed);
                self.die(Fault::Panicked);
                Rest::No
            }
        }
    }

    /// Whether the rings hold anything; asked just before sleeping.
    pub fn has_work(&self) -> bool {
        self.ports.inboxes.iter().any(|inbox| !inbox.is_empty())
    }

    /// Pieces held here, waiting or executing.
    pub fn held(&self) -> usize {
        self.pieces.len()
    }

    fn step_inner(&mut self, now_ns: u64) -> Rest {
        let mut progress = self.take_in(now_ns);
        if !self.ports.ready.load(Ordering::Relaxed) {
            return if progress { Rest::No } else { Rest::Until(None) };
        }
        for lane in 0..self.lanes.len() {
            progress |= self.collect(lane, now_ns);
        }
        let mut linger_ns = None;
        for lane in 0..self.lanes.len() {
            if self.lanes[lane].started_ns.is_none() {
                match self.start(lane, now_ns) {
                    Started::Yes => progress = true,
                    Started::Later(until_ns) => linger_ns = Some(until_ns),
                    Started::Nothing => {}
                }
            }
        }
        if self.device.health() == Health::Dead {
            self.die(Fault::Dead);
            return Rest::No;
        }
        if progress {
            return Rest::No;
        }
        Rest::Until([linger_ns, self.device.wake_at_ns()].into_iter().flatten().min())
    }

    fn take_in(&mut self, now_ns: u64) -> bool {
        let mut any = false;
        let dead = !self.ports.ready.load(Ordering::Relaxed);
        for inbox in 0..self.ports.inboxes.len() {
            while let Some(mut piece) = self.ports.inboxes[inbox].pop() {
                any = true;
                let sequences = piece.sequences() as u32;
                if dead {
                    self.ports.load.fetch_sub(piece.ids.len() as u64, Ordering::Relaxed);
                    piece.fault = Some(Fault::Dead);
                    self.ports.home.push(ToReactor::Piece(piece));
                    continue;
                }
                piece.started_ns = 0;
                piece.done_ns = now_ns;
                let index = self.pieces.insert(piece);
                self.remaining[index as usize] = sequences;
                self.planner.push(index, self.pieces.get(index));
            }
        }
        if any && dead {
            self.ports.home.ring();
        }
        any
    }

    /// Brings a lane's results home if it is done.
    fn collect(&mut self, lane: usize, now_ns: u64) -> bool {
        let Some(started_ns) = self.lanes[lane].started_ns else { return false };
        if self.device.poll(lane, now_ns) != Lane::Done {
            return false;
        }
        let LaneState { plan, .. } = &self.lanes[lane];
        let pieces = &mut self.pieces;
        let result = self.device.collect(lane, &mut |placement, vector| {
            let placement = plan.placements[placement];
            let start = placement.sequence as usize * vector.len();
            pieces.get_mut(placement.piece).outputs[start..start + vector.len()].copy_from_slice(vector);
        });
        let fault = match result {
            Ok(busy_ns) => {
                self.ports.counters.count_batch(plan, busy_ns);
                None
            }
            Err(fault) => Some(fault),
        };
        self.end_plan(lane, started_ns, now_ns, fault);
        true
    }

    /// Starts the next plan on an idle lane.
    fn start(&mut self, lane: usize, now_ns: u64) -> Started {
        let generations = &self.ports.generations;
        let plan = &mut self.lanes[lane].plan;
        let next = self.planner.next(now_ns, &self.pieces, &|job| generations.is_live(job), plan, &mut self.dropped);
        self.release_dropped(now_ns);
        match next {
            Next::Plan => {}
            Next::WaitUntil(until_ns) => return Started::Later(until_ns),
            Next::Empty => return Started::Nothing,
        }
        let plan = &self.lanes[lane].plan;
        for placement in &plan.placements {
            let width = self.planner.width(plan.model);
            let piece = self.pieces.get_mut(placement.piece);
            if piece.started_ns == 0 {
                piece.started_ns = now_ns.max(1);
                piece.outputs.clear();
                piece.outputs.resize(piece.ends.len() * width as usize, 0.0);
            }
        }
        match self.device.submit(lane, plan, &self.pieces, now_ns) {
            Ok(()) => self.lanes[lane].started_ns = Some(now_ns),
            Err(fault) => self.end_plan(lane, now_ns, now_ns, Some(fault)),
        }
        Started::Yes
    }

    /// Accounts for every sequence of a lane's plan and sends home the pieces that are complete.
    fn end_plan(&mut self, lane: usize, started_ns: u64, now_ns: u64, fault: Option<Fault>) {
        self.lanes[lane].started_ns = None;
        if let Some(fault) = fault {
            self.ports.counters.count_fault(fault);
        }
        let _ = started_ns;
        let placements = std::mem::take(&mut self.lanes[lane].plan.placements);
        for placement in &placements {
            if fault.is_some() {
                self.pieces.get_mut(placement.piece).fault = fault;
            }
            self.release(placement.piece, 1, now_ns);
        }
        self.lanes[lane].plan.placements = placements;
        self.ports.home.ring();
    }

    fn release_dropped(&mut self, now_ns: u64) {
        if self.dropped.is_empty() {
            return;
        }
        while let Some((piece, sequences)) = self.dropped.pop() {
            self.ports.counters.dropped.fetch_add(u64::from(sequences), Ordering::Relaxed);
            // A live job's sequence is dropped only if no bucket holds it: its answer must not look computed.
            self.pieces.get_mut(piece).fault = Some(Fault::Refused);
            self.release(piece, sequences, now_ns);
        }
        self.ports.home.ring();
    }

    /// `sequences` of a piece are accounted for; with its last one it goes home.
    fn release(&mut self, piece: u32, sequences: u32, now_ns: u64) {
        let remaining = &mut self.remaining[piece as usize];
        *remaining -= sequences;
        if *remaining == 0 {
            let mut piece = self.pieces.remove(piece);
            piece.done_ns = now_ns;
            self.ports.load.fetch_sub(piece.ids.len() as u64, Ordering::Relaxed);
            self.ports.home.push(ToReactor::Piece(piece));
        }
    }

    /// Answers everything that is here and everything that will come.
    fn die(&mut self, fault: Fault) {
        self.ports.ready.store(false, Ordering::Relaxed);
        self.ports.counters.count_fault(fault);
        for lane in &mut self.lanes {
            lane.started_ns = None;
        }
        for mut piece in self.pieces.drain() {
            piece.fault = Some(fault);
            self.ports.load.fetch_sub(piece.ids.len() as u64, Ordering::Relaxed);
            self.ports.home.push(ToReactor::Piece(piece));
        }
        self.planner.clear();
        self.ports.home.ring();
    }
}

enum Started {
    Yes,
    Later(u64),
    Nothing,
}
