//! A lane that is a thread: what every device that computes on this machine's cores runs its plans on.
//!
//! A *work* (whatever a run needs and leaves behind) moves by value: at home it belongs to the device's thread, away to the
//! lane's. The device leaves it in a slot, goes on, and later finds it there again; `notify` says when to look. A lane
//! without an order sleeps.
//!
//! Invariants: a work that goes out comes home, with a result or a [`Fault`]; a panic in the run is [`Fault::Panicked`], and
//! the lane goes on. Dropping a lane lets its run finish, then joins the thread. The lock is held while a pointer moves,
//! never during a run, so [`LaneThread::state`] does not block.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use super::{Fault, Lane};

/// Called from a lane's thread when a work has come home.
pub type Notify = Arc<dyn Fn() + Send + Sync>;

/// A thread that runs one work at a time.
#[derive(Debug)]
pub struct LaneThread<W> {
    place: Place<W>,
    exchange: Arc<Exchange<W>>,
    thread: Option<JoinHandle<()>>,
}

/// A work that has come home.
#[derive(Debug)]
pub struct Finished<'a, W> {
    pub work: &'a mut W,
    pub result: Result<(), Fault>,
    /// Nanoseconds from the run's beginning to its end.
    pub busy_ns: u64,
}

#[derive(Debug)]
enum Place<W> {
    Idle(Box<W>),
    Away,
    Done(Answer<W>),
}

#[derive(Debug)]
struct Answer<W> {
    work: Box<W>,
    result: Result<(), Fault>,
    busy_ns: u64,
}

impl<W: Send + 'static> LaneThread<W> {
    /// Starts a thread of this name that answers each order by `run`.
    ///
    /// # Panics
    /// When the system refuses the thread.
    pub fn new(
        name: String,
        work: W,
        notify: Notify,
        mut run: impl FnMut(&mut W) -> Result<(), Fault> + Send + 'static,
    ) -> LaneThread<W> {
        let exchange = Arc::new(Exchange::default());
        let inside = exchange.clone();
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            while let Some(mut work) = inside.next_order() {
                let begin = Instant::now();
                let outcome = catch_unwind(AssertUnwindSafe(|| run(&mut work)));
                let busy_ns = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
                let result = outcome.unwrap_or(Err(Fault::Panicked));
                inside.lock().answer = Some(Answer { work, result, busy_ns });
                notify();
            }
        });
        let thread = thread.expect("the system gives us our few threads at start");
        LaneThread { place: Place::Idle(Box::new(work)), exchange, thread: Some(thread) }
    }

    /// Looks once whether the work has come home.
    pub fn state(&mut self) -> Lane {
        if matches!(self.place, Place::Away)
            && let Some(answer) = self.exchange.lock().answer.take()
        {
            self.place = Place::Done(answer);
        }
        match self.place {
            Place::Idle(_) => Lane::Idle,
            Place::Away => Lane::Busy,
            Place::Done(_) => Lane::Done,
        }
    }

    /// The work of an idle lane, to prepare.
    pub fn idle(&mut self) -> Option<&mut W> {
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

    /// What a lane that is done brings; it is idle afterwards. `None` for any other lane.
    pub fn finish(&mut self) -> Option<Finished<'_, W>> {
        self.state();
        match std::mem::replace(&mut self.place, Place::Away) {
            Place::Done(Answer { work, result, busy_ns }) => {
                self.place = Place::Idle(work);
                let work = self.idle().expect("the work was just put back");
                Some(Finished { work, result, busy_ns })
            }
            other @ (Place::Idle(_) | Place::Away) => {
                self.place = other;
                None
            }
        }
    }
}

impl<W> Drop for LaneThread<W> {
    fn drop(&mut self) {
        self.exchange.lock().stop = true;
        self.exchange.ordered.notify_one();
        if let Some(thread) = self.thread.take() {
            // The thread catches the panics of its runs; one of `notify` ends it, and a drop does not panic.
            let _ = thread.join();
        }
    }
}

/// The slots between a lane's thread and the device's.
#[derive(Debug)]
struct Exchange<W> {
    slots: Mutex<Slots<W>>,
    ordered: Condvar,
}

#[derive(Debug)]
struct Slots<W> {
    order: Option<Box<W>>,
    answer: Option<Answer<W>>,
    stop: bool,
}

impl<W> Default for Exchange<W> {
    fn default() -> Exchange<W> {
        Exchange { slots: Mutex::new(Slots { order: None, answer: None, stop: false }), ordered: Condvar::new() }
    }
}

impl<W> Exchange<W> {
    fn lock(&self) -> MutexGuard<'_, Slots<W>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until there is an order; `None` when the lane is to end. An order given is run before the end.
    fn next_order(&self) -> Option<Box<W>> {
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn lane(run: impl FnMut(&mut u32) -> Result<(), Fault> + Send + 'static) -> (LaneThread<u32>, mpsc::Receiver<()>) {
        let (sender, home) = mpsc::channel();
        let notify: Notify = Arc::new(move || sender.send(()).expect("the test listens"));
        (LaneThread::new("lane-under-test".to_owned(), 0, notify, run), home)
    }

    #[test]
    fn a_work_comes_home_changed_and_the_lane_is_idle_again() {
        let (mut lane, home) = lane(|work| {
            *work += 1;
            Ok(())
        });
        for round in 1..=3 {
            assert_eq!(lane.state(), Lane::Idle);
            lane.start();
            home.recv().expect("the lane lives");
            assert_eq!(lane.state(), Lane::Done);
            assert!(lane.idle().is_none(), "a result must be taken first");
            let finished = lane.finish().expect("it is done");
            assert_eq!((*finished.work, finished.result), (round, Ok(())));
            assert!(lane.finish().is_none(), "a result is taken once");
        }
    }

    #[test]
    fn a_panic_is_a_fault_of_its_run_alone() {
        let (mut lane, home) = lane(|work| {
            *work += 1;
            match *work {
                1 => panic!("for the test"),
                2 => Err(Fault::Failed),
                _ => Ok(()),
            }
        });
        for expected in [Err(Fault::Panicked), Err(Fault::Failed), Ok(())] {
            lane.start();
            home.recv().expect("the lane lives");
            assert_eq!(lane.finish().expect("it is done").result, expected);
        }
    }

    #[test]
    fn a_lane_that_is_away_is_busy_and_finishes_before_it_is_dropped() {
        let (sender, go) = mpsc::channel();
        let (mut lane, home) = lane(move |_| {
            go.recv().expect("the test says go");
            Ok(())
        });
        lane.start();
        assert_eq!(lane.state(), Lane::Busy);
        assert!(lane.finish().is_none() && lane.idle().is_none());
        sender.send(()).expect("the run waits");
        drop(lane);
        home.try_recv().expect("the run ended before the drop did");
    }
}
