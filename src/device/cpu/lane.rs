//! One lane of the CPU device: a thread that runs the batches it is given, one at a time.
//!
//! A [`Work`] (batch, scratch, result) moves by value: at home it belongs to the device's thread, away to the lane's. The
//! device thread never waits for a lane: it leaves the work in a slot and later finds it there again, and `notify` tells it
//! when to look. The lane's thread sleeps while the slot holds nothing for it.
//!
//! Invariant: a work that goes out comes home, with a result or with a [`Fault`]; a panic in the computation is the fault
//! `Panicked`, and the lane goes on. Dropping a lane lets a running batch finish, then joins the thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use super::encoder::{Batch, Encoder, Scratch};
use super::team::{Broken, Team};
use crate::device::Fault;

/// Called from a lane's thread when its work is done.
pub(super) type Notify = Arc<dyn Fn() + Send + Sync>;

/// Everything one run needs and leaves behind.
#[derive(Debug)]
pub(super) struct Work {
    pub batch: Batch,
    /// The model to run; `None` at home between runs.
    pub encoder: Option<Arc<Encoder>>,
    pub scratch: Scratch,
    /// Of the last run; the outputs are in `scratch`.
    pub result: Result<(), Fault>,
    pub width: usize,
    pub busy_ns: u64,
}

/// Where the work is.
#[derive(Debug)]
enum Place {
    Idle(Box<Work>),
    Away,
    Done(Box<Work>),
}

#[derive(Debug)]
pub(super) struct Lane {
    place: Place,
    exchange: Arc<Exchange>,
    thread: Option<JoinHandle<()>>,
}

/// What a lane looks like from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Idle,
    Away,
    Done,
}

impl Lane {
    /// Starts the lane's thread, and its helpers where a lane has several threads.
    pub fn new(index: usize, threads: usize, notify: Notify) -> Lane {
        let exchange = Arc::new(Exchange::default());
        let inside = exchange.clone();
        let name = format!("cpu-lane-{index}");
        let thread = std::thread::Builder::new().name(name.clone()).spawn(move || {
            let mut team = Team::new(threads, &name);
            while let Some(mut work) = inside.next_order() {
                perform(&mut work, &mut team, threads);
                inside.lock().answer = Some(work);
                notify();
            }
        });
        let work = Work {
            batch: Batch::default(),
            encoder: None,
            scratch: Scratch::default(),
            result: Ok(()),
            width: 0,
            busy_ns: 0,
        };
        Lane {
            place: Place::Idle(Box::new(work)),
            exchange,
            thread: Some(thread.expect("the system gives us our few threads at start")),
        }
    }

    /// Looks once whether the work has come home.
    pub fn state(&mut self) -> State {
        match &self.place {
            Place::Idle(_) => State::Idle,
            Place::Done(_) => State::Done,
            Place::Away => match self.exchange.lock().answer.take() {
                Some(work) => {
                    self.place = Place::Done(work);
                    State::Done
                }
                None => State::Away,
            },
        }
    }

    /// The work of an idle lane, to prepare.
    pub fn idle_work(&mut self) -> Option<&mut Work> {
        match &mut self.place {
            Place::Idle(work) => Some(work),
            Place::Away | Place::Done(_) => None,
        }
    }

    /// Sends an idle lane's work out.
    ///
    /// # Panics
    /// When the lane is not idle.
    pub fn start(&mut self) {
        let Place::Idle(work) = std::mem::replace(&mut self.place, Place::Away) else {
            panic!("a lane starts when it is idle");
        };
        self.exchange.lock().order = Some(work);
        self.exchange.ordered.notify_one();
    }

    /// The finished work of a lane that is done, which is idle afterwards; `None` for any other lane.
    pub fn finish(&mut self) -> Option<&mut Work> {
        match std::mem::replace(&mut self.place, Place::Away) {
            Place::Done(work) => {
                self.place = Place::Idle(work);
                self.idle_work()
            }
            other @ (Place::Idle(_) | Place::Away) => {
                self.place = other;
                None
            }
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.exchange.lock().stop = true;
        self.exchange.ordered.notify_one();
        if let Some(thread) = self.thread.take() {
            // The thread catches every panic of its work, so it ends in peace; and a drop does not panic.
            let _ = thread.join();
        }
    }
}

/// The slot between a lane's thread and the device's.
#[derive(Debug, Default)]
struct Exchange {
    slots: Mutex<Slots>,
    ordered: Condvar,
}

#[derive(Debug, Default)]
struct Slots {
    order: Option<Box<Work>>,
    answer: Option<Box<Work>>,
    stop: bool,
}

impl Exchange {
    /// Held for the moving of a pointer only, so nobody ever waits for it noticeably.
    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until there is an order; `None` when the lane is to end.
    fn next_order(&self) -> Option<Box<Work>> {
        let mut slots = self.lock();
        loop {
            if let Some(work) = slots.order.take() {
                return Some(work);
            }
            if slots.stop {
                return None;
            }
            slots = self.ordered.wait(slots).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn perform(work: &mut Work, team: &mut Team, threads: usize) {
    let begin = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let Work { batch, encoder, scratch, .. } = &mut *work;
        let encoder = encoder.as_ref().expect("a work goes out with its model");
        // Takes memory only for a model that was loaded while this lane was away.
        scratch.reserve(encoder.needs(batch.tokens(), batch.sequences()), threads);
        encoder.run(batch, scratch, team)
    }));
    work.result = match outcome {
        Ok(Ok(())) => Ok(()),
        Ok(Err(Broken)) | Err(_) => Err(Fault::Panicked),
    };
    // An unloaded model's memory goes with its last run.
    work.encoder = None;
    work.busy_ns = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
}
