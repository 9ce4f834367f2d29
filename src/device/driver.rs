//! The device thread's work: takes pieces in, plans them onto free lanes, sends them home with their vectors.
//!
//! A batch leaves at once when a lane is free and something waits, so the wait *is* the other lane's execution and batches
//! grow by themselves under load. The driver owns the only copy of every piece that is here; lanes refer to pieces by
//! index.
//!
//! Invariant: every piece that comes in goes home exactly once, when its last sequence has been computed, dropped or has
//! failed. A panic in the device is a fault of the plan it was given; one in the planner or in here answers all that is
//! here and marks the device dead.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{Device, Fault, Health, Lane, Offer, Pieces, Plan};
use crate::clock::Clock;
use crate::job::{Census, Generations, ModelKey, Piece, ToReactor};
use crate::metrics::DeviceCounters;
use crate::plan::{Bounds, Cause, Dropped, Next, Planner};
use crate::planted::{self, Bug};
use crate::ring::{Receiver, Sender};

/// How long a batch that executes when the server stops may still take.
const DRAIN_NS: u64 = 10_000_000_000;

/// One device and everything on its thread.
pub struct Driver {
    device: Box<dyn Device>,
    planner: Planner,
    pieces: Pieces,
    /// Sequences of each held piece that are neither computed nor dropped yet.
    remaining: Vec<u32>,
    lanes: Vec<LaneState>,
    dropped: Vec<Dropped>,
    /// What the device offers for each model.
    offers: Vec<(ModelKey, Offer)>,
    /// See [`Driver::poll_while_busy`].
    polls: bool,
    ports: Ports,
}

/// What connects a driver to the other threads.
pub struct Ports {
    /// One ring per worker.
    pub inboxes: Vec<Receiver<Box<Piece>>>,
    pub home: Sender<ToReactor>,
    pub generations: Generations,
    /// Tokens on their way to or waiting at this device; workers add.
    pub load: Arc<AtomicU64>,
    pub ready: Arc<AtomicBool>,
    pub counters: Arc<DeviceCounters>,
    /// Called once, when the device is given up.
    pub on_death: Option<Box<dyn FnOnce() + Send>>,
}

impl std::fmt::Debug for Ports {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Ports { inboxes, load, ready, .. } = self;
        formatter.debug_struct("Ports").field("inboxes", inboxes).field("load", load).field("ready", ready).finish()
    }
}

impl Ports {
    /// Pushes a piece to the reactor, without waking it.
    fn send_home(&mut self, piece: Box<Piece>) {
        self.load.fetch_sub(piece.ids.len() as u64, Ordering::Relaxed);
        self.home.push(ToReactor::Piece(piece));
    }
}

#[derive(Debug, Default)]
struct LaneState {
    plan: Plan,
    /// True exactly while the plan is submitted and not collected.
    busy: bool,
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Driver").field("device", &self.device.name()).finish_non_exhaustive()
    }
}

/// What the thread's shell should do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Step again at once: something happened, or may at any moment.
    No,
    /// Sleep until the doorbell rings or, if given, until this time.
    Until(Option<u64>),
}

impl Driver {
    /// A driver over a device that has loaded these models and offers them so.
    pub fn new(device: Box<dyn Device>, offers: Vec<(ModelKey, Offer)>, bounds: Bounds, ports: Ports) -> Driver {
        let mut planner = Planner::new(bounds);
        for (key, offer) in &offers {
            planner.offer(*key, offer);
        }
        let lanes = (0..device.lanes()).map(|_| LaneState { plan: planner.empty_plan(), busy: false }).collect();
        Driver {
            device,
            planner,
            pieces: Pieces::with_capacity(bounds.pieces_max),
            remaining: vec![0; bounds.pieces_max],
            lanes,
            dropped: Vec::with_capacity(Planner::dropped_max(&bounds)),
            offers,
            polls: false,
            ports,
        }
    }

    pub fn is_gpu(&self) -> bool {
        self.device.gpu().is_some()
    }

    /// From now on [`Driver::step`] asks to be called again at once while a batch executes.
    pub fn poll_while_busy(&mut self) {
        self.polls = true;
    }

    fn offer(&self, key: ModelKey) -> &Offer {
        let (_, offer) = self.offers.iter().find(|(known, _)| *known == key).expect("planned models are offered");
        offer
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

    /// Whether a step would find anything; asked just before sleeping. Lanes are asked too: one that ended between the last
    /// step and the moment its doorbell could wake us has rung in vain. Where there is nothing, the device is told that the
    /// thread is about to sleep ([`Device::arm`]).
    pub fn has_work(&mut self, now_ns: u64) -> bool {
        let Driver { device, lanes, ports, .. } = self;
        let mut done = |(lane, state): (usize, &LaneState)| state.busy && device.poll(lane, now_ns) == Lane::Done;
        let found = ports.inboxes.iter().any(|inbox| !inbox.is_empty()) || lanes.iter().enumerate().any(&mut done);
        found || !(planted::is(Bug::SleepsUnarmed) || device.arm())
    }

    /// Sends home everything that is here. To be called when no client and no worker is left: every job is dead, so what waits
    /// is dropped and only what executes is waited for.
    pub fn drain(&mut self, clock: &Clock) {
        let until_ns = clock.now_ns() + DRAIN_NS;
        // The workers have ended: nothing arrives after this.
        self.take_in();
        while self.held() > 0 && clock.now_ns() < until_ns {
            if self.step(clock.now_ns()) != Rest::No {
                std::thread::yield_now();
            }
        }
        if self.held() > 0 {
            self.die(Fault::Hung);
        }
    }

    /// Pieces held here, waiting or executing.
    pub fn held(&self) -> usize {
        self.pieces.len()
    }

    /// What is here and on its way here.
    pub fn census(&mut self) -> Census {
        let mut census = Census { pieces: self.pieces.len(), ..Census::default() };
        self.ports.inboxes.iter_mut().for_each(|inbox| inbox.each(|_| census.pieces += 1));
        census
    }

    /// The tokens that count as this device's load.
    pub fn load_tokens(&self) -> u64 {
        self.ports.load.load(Ordering::Relaxed)
    }

    fn step_inner(&mut self, now_ns: u64) -> Rest {
        let mut progress = self.take_in();
        if !self.ports.ready.load(Ordering::Relaxed) {
            return if progress { Rest::No } else { Rest::Until(None) };
        }
        for lane in 0..self.lanes.len() {
            progress |= self.collect(lane, now_ns);
        }
        let mut linger_ns = None;
        for lane in 0..self.lanes.len() {
            if !self.lanes[lane].busy {
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
        if progress || (self.polls && self.lanes.iter().any(|lane| lane.busy)) {
            return Rest::No;
        }
        Rest::Until([linger_ns, self.device.wake_at_ns()].into_iter().flatten().min())
    }

    fn take_in(&mut self) -> bool {
        let mut any = false;
        let dead = !self.ports.ready.load(Ordering::Relaxed);
        for inbox in 0..self.ports.inboxes.len() {
            while let Some(mut piece) = self.ports.inboxes[inbox].pop() {
                any = true;
                if dead {
                    piece.fault = Some(Fault::Dead);
                    self.ports.send_home(piece);
                    continue;
                }
                let sequences = piece.sequences() as u32;
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
        if !self.lanes[lane].busy || self.device.poll(lane, now_ns) != Lane::Done {
            return false;
        }
        let LaneState { plan, .. } = &self.lanes[lane];
        let pieces = &mut self.pieces;
        let mut output = |placement: usize, vector: &[f32]| {
            let swaps = planted::is(Bug::SwapsNeighbours) && plan.placements.len() > 1 && placement < 2;
            let placement = plan.placements[if swaps { 1 - placement } else { placement }];
            let start = placement.sequence as usize * vector.len();
            pieces.get_mut(placement.piece).outputs[start..start + vector.len()].copy_from_slice(vector);
        };
        let device = &mut self.device;
        let result = guarded(&self.ports.counters, || device.collect(lane, &mut output));
        let fault = match result {
            Ok(busy_ns) => {
                let bucket = self.offer(plan.model).buckets[plan.bucket as usize];
                self.ports.counters.count_batch(plan, self.device.computed_tokens(plan, bucket), busy_ns);
                None
            }
            Err(fault) => Some(fault),
        };
        self.end_plan(lane, now_ns, fault);
        true
    }

    /// Starts the next plan on an idle lane.
    fn start(&mut self, lane: usize, now_ns: u64) -> Started {
        let generations = &self.ports.generations;
        let plan = &mut self.lanes[lane].plan;
        let next = self.planner.next(now_ns, &|job| generations.is_live(job), plan, &mut self.dropped);
        self.release_dropped(now_ns);
        match next {
            Next::Plan => {}
            Next::WaitUntil(until_ns) => return Started::Later(until_ns),
            Next::Empty => return Started::Nothing,
        }
        let width = self.offer(self.lanes[lane].plan.model).width as usize;
        let plan = &self.lanes[lane].plan;
        for placement in &plan.placements {
            let piece = self.pieces.get_mut(placement.piece);
            if piece.started_ns == 0 {
                piece.started_ns = now_ns.max(1);
                piece.outputs.clear();
                piece.outputs.resize(piece.ends.len() * width, 0.0);
            }
        }
        let (device, pieces) = (&mut self.device, &self.pieces);
        match guarded(&self.ports.counters, || device.submit(lane, plan, pieces, now_ns)) {
            Ok(()) => self.lanes[lane].busy = true,
            Err(fault) => self.end_plan(lane, now_ns, Some(fault)),
        }
        Started::Yes
    }

    /// Accounts for every sequence of a lane's plan and sends home the pieces that are complete.
    fn end_plan(&mut self, lane: usize, now_ns: u64, fault: Option<Fault>) {
        self.lanes[lane].busy = false;
        if let Some(fault) = fault {
            self.ports.counters.count_fault(fault);
        }
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
        while let Some(Dropped { piece, sequences, cause }) = self.dropped.pop() {
            self.ports.counters.dropped.fetch_add(u64::from(sequences), Ordering::Relaxed);
            match cause {
                Cause::Dead if planted::is(Bug::LosesDropped) && self.remaining[piece as usize] == sequences => {
                    self.pieces.remove(piece);
                    continue;
                }
                Cause::Dead => {}
                // The job is alive, so its answer must not look computed.
                Cause::Unfit | Cause::Withdrawn => self.pieces.get_mut(piece).fault = Some(Fault::Refused),
            }
            self.release(piece, sequences, now_ns);
        }
        if !planted::is(Bug::DropsInSilence) {
            self.ports.home.ring();
        }
    }

    /// `sequences` of a piece are accounted for; with its last one it goes home.
    fn release(&mut self, piece: u32, sequences: u32, now_ns: u64) {
        let remaining = &mut self.remaining[piece as usize];
        *remaining -= sequences;
        if *remaining == 0 {
            let mut piece = self.pieces.remove(piece);
            piece.done_ns = now_ns;
            self.ports.send_home(piece);
        }
    }

    /// Answers everything that is here and everything that will come.
    fn die(&mut self, fault: Fault) {
        self.ports.ready.store(false, Ordering::Relaxed);
        if let Some(on_death) = self.ports.on_death.take() {
            on_death();
        }
        self.ports.counters.count_fault(fault);
        for lane in &mut self.lanes {
            lane.busy = false;
        }
        for mut piece in self.pieces.drain() {
            piece.fault = Some(fault);
            self.ports.send_home(piece);
        }
        self.ports.home.ring();
    }
}

/// A panic of the device's own code is a fault of the plan in its hands; the thread goes on.
fn guarded<T>(counters: &DeviceCounters, call: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| {
        counters.panics.fetch_add(1, Ordering::Relaxed);
        Err(Fault::Panicked)
    })
}

enum Started {
    Yes,
    Later(u64),
    Nothing,
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::device::sim::tests::model;
    use crate::device::sim::{Options, Sim};
    use crate::model::Task;
    use crate::ring::{Doorbell, ring};

    #[test]
    fn a_device_that_dies_says_so_once_and_answers_everything() {
        let key = ModelKey { index: 0, generation: 0 };
        let mut sim = Sim::new(Options { script: vec![(0, Fault::Dead)], ..Options::default() });
        let offer = sim.load(key, &model(Task::Embedding, 64)).unwrap();
        let bell = Arc::new(Doorbell::new(Box::new(|| ())));
        let (mut sender, inbox) = ring(4, &bell);
        let (home, mut arrived) = ring(4, &bell);
        let deaths = Arc::new(AtomicUsize::new(0));
        let died = Arc::clone(&deaths);
        let ports = Ports {
            inboxes: vec![inbox],
            home,
            generations: Generations::new(1),
            load: Arc::default(),
            ready: Arc::new(AtomicBool::new(true)),
            counters: Arc::default(),
            on_death: Some(Box::new(move || {
                died.fetch_add(1, Ordering::Relaxed);
            })),
        };
        let bounds = Bounds {
            sequences_max: None,
            tokens_max: None,
            linger_ns: 0,
            age_ns_max: 1_000_000,
            pieces_max: 4,
            piece_sequences_max: 2,
            models_max: 1,
        };
        let mut driver = Driver::new(Box::new(sim), vec![(key, offer)], bounds, ports);
        for _ in 0..3 {
            let (ids, types) = (vec![5, 6, 7], vec![0; 3]);
            sender.push(Box::new(Piece { model: key, ids, types, ends: vec![3], ..Piece::default() }));
            for _ in 0..4 {
                driver.step(1);
            }
            let Some(ToReactor::Piece(piece)) = arrived.pop() else { panic!("the piece does not come home") };
            assert_eq!(piece.fault, Some(Fault::Dead));
        }
        assert_eq!((deaths.load(Ordering::Relaxed), driver.held()), (1, 0));
    }
}
