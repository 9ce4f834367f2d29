//! The threads that share one lane's work: the lane's own, member 0, and its helpers.
//!
//! A team runs one closure on all its members at once and returns when the last is done. Inside, members meet at
//! barriers. Threads of a team expect a core each: at a barrier they spin, and yield only when it takes long; between
//! rounds helpers sleep. Sharing only the matrix products would leave everything else to one thread: measured, two
//! threads then gain a factor of 1.1 to 1.35 where this gains 1.8 to 2.0 (all-MiniLM-L6-v2; 16, 128 and 1,024 tokens).
//!
//! Invariant: [`Team::run`] does not return while a helper may still touch the closure, whatever panics. A panic of one
//! member breaks the barrier, so that the others leave too; the team is whole again at the next round.

#![allow(unsafe_code)] // lending a closure to the helpers for one round

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Turns at a barrier before the thread offers its core to others: about 50 µs.
const SPINS: u32 = 2_000;

/// A member of the team has panicked; the round is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// What the closure knows of the thread it runs on.
#[derive(Debug)]
pub(super) struct Member<'a> {
    /// 0 to `count − 1`.
    pub index: usize,
    pub count: usize,
    barrier: &'a Barrier,
}

impl Member<'_> {
    /// Waits until all members have called this as often. What each wrote before, all can read afterwards.
    pub fn meet(&self) -> Result<(), Broken> {
        if self.count == 1 { Ok(()) } else { self.barrier.wait(self.count) }
    }
}

type Work<'a> = dyn Fn(&Member<'_>) -> Result<(), Broken> + Sync + 'a;

#[derive(Debug)]
pub(super) struct Team {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
}

impl Team {
    /// A team of `count` members, the caller's thread included.
    pub fn new(count: usize, name: &str) -> Team {
        let shared = Arc::new(Shared::default());
        let helper = |index: usize| {
            let shared = shared.clone();
            let spawned = std::thread::Builder::new().name(format!("{name}-{index}")).spawn(move || {
                shared.help(index, count);
            });
            spawned.expect("the system gives us our few threads at start")
        };
        Team { helpers: (1..count).map(helper).collect(), shared }
    }

    /// Runs `work` once on each member.
    pub fn run(&mut self, work: &Work<'_>) -> Result<(), Broken> {
        let count = self.helpers.len() + 1;
        self.shared.barrier.reset();
        if count > 1 {
            // SAFETY: only the lifetime changes. Helpers use the reference between the round's start and their
            // decrement of `running`, and this function leaves only after `running` is back at zero: `perform` does not
            // unwind.
            let lent = unsafe { std::mem::transmute::<&Work<'_>, &'static Work<'static>>(work) };
            let mut round = self.shared.lock();
            round.number += 1;
            round.running = count - 1;
            round.work = Some(lent);
            drop(round);
            self.shared.changed.notify_all();
        }
        self.shared.perform(0, count, work);
        let mut round = self.shared.lock();
        while round.running > 0 {
            round = self.shared.changed.wait(round).unwrap_or_else(PoisonError::into_inner);
        }
        round.work = None;
        if self.shared.barrier.broken.load(Ordering::Relaxed) { Err(Broken) } else { Ok(()) }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
        for helper in self.helpers.drain(..) {
            // A helper catches every panic of its work, so it ends in peace; and a drop does not panic.
            let _ = helper.join();
        }
    }
}

#[derive(Default)]
struct Round {
    number: u64,
    /// Helpers that have not finished this round.
    running: usize,
    work: Option<&'static Work<'static>>,
    stop: bool,
}

#[derive(Default)]
struct Shared {
    round: Mutex<Round>,
    changed: Condvar,
    barrier: Barrier,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Shared").field("barrier", &self.barrier).finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Round> {
        self.round.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One member's share of a round. Never unwinds.
    fn perform(&self, index: usize, count: usize, work: &Work<'_>) {
        let member = Member { index, count, barrier: &self.barrier };
        match catch_unwind(AssertUnwindSafe(|| work(&member))) {
            Ok(Ok(())) => {}
            Ok(Err(Broken)) | Err(_) => self.barrier.broken.store(true, Ordering::Release),
        }
    }

    /// A helper's life.
    fn help(&self, index: usize, count: usize) {
        let mut last = 0;
        loop {
            let mut round = self.lock();
            while round.number == last && !round.stop {
                round = self.changed.wait(round).unwrap_or_else(PoisonError::into_inner);
            }
            if round.stop {
                return;
            }
            last = round.number;
            let work = round.work.expect("a new round has work");
            drop(round);
            self.perform(index, count, work);
            let mut round = self.lock();
            round.running -= 1;
            let is_last = round.running == 0;
            drop(round);
            if is_last {
                self.changed.notify_all();
            }
        }
    }
}

#[derive(Debug, Default)]
struct Barrier {
    arrived: AtomicUsize,
    /// How often the barrier has opened.
    opened: AtomicUsize,
    broken: AtomicBool,
}

impl Barrier {
    /// Between rounds only.
    fn reset(&self) {
        self.arrived.store(0, Ordering::Relaxed);
        self.broken.store(false, Ordering::Relaxed);
    }

    fn wait(&self, count: usize) -> Result<(), Broken> {
        // Read before arriving: it cannot open again until this member has arrived.
        let opened = self.opened.load(Ordering::Relaxed);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == count {
            self.arrived.store(0, Ordering::Relaxed);
            self.opened.store(opened.wrapping_add(1), Ordering::Release);
        } else {
            let mut spins = 0;
            while self.opened.load(Ordering::Acquire) == opened {
                if self.broken.load(Ordering::Acquire) {
                    return Err(Broken);
                }
                spins += 1;
                if spins < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
            }
        }
        if self.broken.load(Ordering::Acquire) { Err(Broken) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_see_what_was_written_before_a_barrier() {
        for count in 1..=4 {
            let mut team = Team::new(count, "team-test");
            for round in 1..=50 {
                let cells: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
                let outcome = team.run(&|member: &Member<'_>| {
                    for step in 1..=20 {
                        cells[member.index].store(step * round, Ordering::Relaxed);
                        member.meet()?;
                        for cell in &cells {
                            assert_eq!(cell.load(Ordering::Relaxed), step * round);
                        }
                        member.meet()?;
                    }
                    Ok(())
                });
                assert_eq!(outcome, Ok(()));
            }
        }
    }

    #[test]
    fn a_panic_of_any_member_ends_the_round_for_all_and_the_next_one_works() {
        let mut team = Team::new(3, "team-test");
        for guilty in 0..3 {
            let outcome = team.run(&|member: &Member<'_>| {
                member.meet()?;
                if member.index == guilty {
                    std::panic::resume_unwind(Box::new("expected"));
                }
                member.meet()
            });
            assert_eq!(outcome, Err(Broken));
            let seen = AtomicUsize::new(0);
            let outcome = team.run(&|member: &Member<'_>| {
                member.meet()?;
                seen.fetch_add(1, Ordering::Relaxed);
                Ok(())
            });
            assert_eq!((outcome, seen.into_inner()), (Ok(()), 3));
        }
    }
}
