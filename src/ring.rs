//! Rings and doorbells: how parts travel between threads and how a sleeper is woken.
//!
//! A ring has one producer, one consumer and room for every part that could ever be in it, so a push cannot fail. A
//! [`Doorbell`] belongs to the thread that sleeps; everyone who pushes to that thread rings it afterwards. A ring costs one
//! fence when the sleeper is awake and at most one system call per sleep.
//!
//! Invariant: a doorbell is never lost. The sleeper first says that it is asleep and then looks once more; the ringer first
//! makes its work visible and then looks whether somebody sleeps. Each side puts a sequentially consistent fence between
//! its two steps, so at least one of them sees the other. (With release and acquire alone both may look past each other;
//! `tests/loom.rs` explores all interleavings.)

use std::sync::Arc;

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering, fence};

use crate::planted::{self, Bug};

/// Wakes one sleeping thread.
pub struct Doorbell {
    /// True from just before its owner goes to sleep until somebody wakes it or it finds work by itself.
    asleep: AtomicBool,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl std::fmt::Debug for Doorbell {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Doorbell").field("asleep", &self.asleep.load(Ordering::Relaxed)).finish_non_exhaustive()
    }
}

impl Doorbell {
    /// `wake` ends the owner's sleep, or the next one if it is not asleep yet: an eventfd, a thread's unpark.
    pub fn new(wake: Box<dyn Fn() + Send + Sync>) -> Doorbell {
        Doorbell { asleep: AtomicBool::new(false), wake }
    }

    /// To be called after the work has been pushed.
    pub fn ring(&self) {
        fence(Ordering::SeqCst);
        // Of several ringers one wakes. The others, and those who come too late, leave the flag as it is.
        let asleep = || self.asleep.compare_exchange(true, false, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if self.asleep.load(Ordering::Relaxed) && asleep() {
            (self.wake)();
        }
    }

    /// The owner's last step before it sleeps: true if it may, false if `has_work` found something after all.
    pub fn may_sleep(&self, has_work: impl FnOnce() -> bool) -> bool {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !planted::is(Bug::SleepsWithoutLooking) && has_work() {
            self.asleep.store(false, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// The owner's first step after its sleep ended, for whatever reason.
    pub fn awake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }
}

/// The pushing end of a ring, with the doorbell of whoever pops.
#[derive(Debug)]
pub struct Sender<T> {
    producer: rtrb::Producer<T>,
    bell: Arc<Doorbell>,
}

/// The popping end of a ring.
#[derive(Debug)]
pub struct Receiver<T> {
    consumer: rtrb::Consumer<T>,
}

/// A ring for at most `capacity` parts, rung on `bell`.
pub fn ring<T>(capacity: usize, bell: &Arc<Doorbell>) -> (Sender<T>, Receiver<T>) {
    let (producer, consumer) = rtrb::RingBuffer::new(capacity);
    (Sender { producer, bell: Arc::clone(bell) }, Receiver { consumer })
}

impl<T> Sender<T> {
    /// Makes `part` visible to the other side without waking it.
    ///
    /// # Panics
    /// When the ring is full: more parts than the pool holds, a broken invariant.
    pub fn push(&mut self, part: T) {
        assert!(self.producer.push(part).is_ok(), "a ring has room for every part of its pool");
    }

    /// Makes `part` visible to the other side if there is room for it. For what may be lost; what belongs to a pool is
    /// [`push`](Self::push)ed.
    pub fn offer(&mut self, part: T) -> bool {
        self.producer.push(part).is_ok()
    }

    pub fn ring(&self) {
        self.bell.ring();
    }
}

impl<T> Receiver<T> {
    pub fn pop(&mut self) -> Option<T> {
        self.consumer.pop().ok()
    }

    pub fn is_empty(&self) -> bool {
        self.consumer.is_empty()
    }

    /// Parts that can be popped now.
    pub fn len(&self) -> usize {
        self.consumer.slots()
    }

    /// Shows everything that waits, in order, and leaves it there.
    pub fn each(&mut self, see: impl FnMut(&T)) {
        let Ok(waiting) = self.consumer.read_chunk(self.consumer.slots()) else { return };
        let (first, second) = waiting.as_slices();
        first.iter().chain(second).for_each(see);
    }
}
