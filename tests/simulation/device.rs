//! The simulated device as a world sees it: it tells when its runs end, and whether a panic in it was planned.
//!
//! Beside the device that says itself when to look again there is one like real ones: it says nothing, and its doorbell is
//! rung from elsewhere when a run has ended: each time, or only if its owner has asked for that before it went to sleep.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};

use reactrt::clock::Clock;
use reactrt::device::sim::{Options, Sim};
use reactrt::device::{Bucket, Device, Fault, Health, Lane, LoadError, Offer, Pieces, Plan};
use reactrt::job::ModelKey;
use reactrt::model::Model;

/// How a device's owner learns that a run has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// It looks when the device said that it would be.
    Clock,
    /// Its doorbell is rung.
    Bell,
    /// Its doorbell is rung if it has asked for that.
    ArmedBell,
}

/// A device that is armed says once in so many times that something may have ended meanwhile.
const LOOK_AGAIN_ONE_IN: u64 = 5;

/// What a world may know of a device without owning it.
#[derive(Debug, Default)]
pub struct Facts {
    pub submissions: u64,
    /// When the next run ends, or 0 if a result waits.
    pub busy_until_ns: Option<u64>,
    /// Panics that the device was told to have.
    pub panics_told: u64,
    /// Any other panic: a broken promise above the device.
    pub panic_untold: Option<String>,
    pub is_dead: bool,
    /// The submission after which it was last armed.
    pub armed: Option<u64>,
    pub arms_asked: u64,
}

pub struct Watched {
    sim: Sim,
    notice: Notice,
    clock: Clock,
    facts: Arc<Mutex<Facts>>,
}

impl Watched {
    pub fn new(options: Options, notice: Notice, clock: Clock) -> (Watched, Arc<Mutex<Facts>>) {
        let facts = Arc::default();
        (Watched { sim: Sim::new(options), notice, clock, facts: Arc::clone(&facts) }, facts)
    }

    fn watch<T>(&mut self, call: impl FnOnce(&mut Sim) -> T) -> T {
        let result = catch_unwind(AssertUnwindSafe(|| call(&mut self.sim)));
        let mut facts = self.facts.lock().expect("nobody panics with it");
        facts.busy_until_ns = self.sim.wake_at_ns();
        facts.is_dead = self.sim.health() == Health::Dead;
        match result {
            Ok(value) => value,
            Err(payload) => {
                let words = super::words_of(&*payload);
                if words.contains("as it was told to") {
                    facts.panics_told += 1;
                } else {
                    facts.panic_untold = Some(words);
                }
                drop(facts);
                resume_unwind(payload)
            }
        }
    }
}

impl Device for Watched {
    fn load(&mut self, key: ModelKey, model: &Arc<Model>) -> Result<Offer, LoadError> {
        self.sim.load(key, model)
    }

    fn unload(&mut self, key: ModelKey) {
        self.sim.unload(key);
    }

    fn lanes(&self) -> usize {
        self.sim.lanes()
    }

    fn submit(&mut self, lane: usize, plan: &Plan, pieces: &Pieces, now_ns: u64) -> Result<(), Fault> {
        self.facts.lock().expect("nobody panics with it").submissions += 1;
        self.watch(|sim| sim.submit(lane, plan, pieces, now_ns))
    }

    fn poll(&mut self, lane: usize, now_ns: u64) -> Lane {
        // A device that rings is done when it is done, whatever time its owner thinks it is.
        let now_ns = match self.notice {
            Notice::Clock => now_ns,
            Notice::Bell | Notice::ArmedBell => self.clock.now_ns(),
        };
        self.watch(|sim| sim.poll(lane, now_ns))
    }

    fn collect(&mut self, lane: usize, output: &mut dyn FnMut(usize, &[f32])) -> Result<u64, Fault> {
        self.watch(|sim| sim.collect(lane, output))
    }

    fn health(&self) -> Health {
        self.sim.health()
    }

    fn arm(&mut self) -> bool {
        let mut facts = self.facts.lock().expect("nobody panics with it");
        facts.arms_asked += 1;
        facts.armed = Some(facts.submissions);
        self.notice != Notice::ArmedBell || !facts.arms_asked.is_multiple_of(LOOK_AGAIN_ONE_IN)
    }

    fn wake_at_ns(&self) -> Option<u64> {
        match self.notice {
            Notice::Clock => self.sim.wake_at_ns(),
            Notice::Bell | Notice::ArmedBell => None,
        }
    }

    fn computed_tokens(&self, plan: &Plan, bucket: Bucket) -> u64 {
        self.sim.computed_tokens(plan, bucket)
    }

    fn name(&self) -> &str {
        "sim"
    }
}
