//! Explores every interleaving of a doorbell's two sides: whoever goes to sleep is woken, and nobody is woken in vain.
//!
//! Runs under `RUSTFLAGS="--cfg loom" cargo test --test loom --release`; without that cfg there is nothing in here.
#![cfg(loom)]

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use reactrt::ring::Doorbell;

/// A doorbell, and how often it woke its owner.
fn counting_bell() -> (Arc<Doorbell>, Arc<AtomicUsize>) {
    let wakes = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&wakes);
    let wake = move || {
        counted.fetch_add(1, Ordering::SeqCst);
    };
    (Arc::new(Doorbell::new(Box::new(wake))), wakes)
}

#[test]
fn a_sleeper_is_woken_by_work_that_it_did_not_see() {
    loom::model(|| {
        let (bell, wakes) = counting_bell();
        let work = Arc::new(AtomicUsize::new(0));
        let ringer = {
            let (bell, work) = (Arc::clone(&bell), Arc::clone(&work));
            thread::spawn(move || {
                // A ring's push is a release store of its tail.
                work.store(1, Ordering::Release);
                bell.ring();
            })
        };
        let sleeps = bell.may_sleep(|| work.load(Ordering::Acquire) != 0);
        ringer.join().unwrap();
        if sleeps {
            assert_eq!(wakes.load(Ordering::SeqCst), 1, "asleep beside work, and nobody rang");
        }
        assert!(wakes.load(Ordering::SeqCst) <= 1, "one system call per sleep");
        bell.awake();
    });
}

#[test]
fn two_ringers_wake_a_sleeper_once() {
    loom::model(|| {
        let (bell, wakes) = counting_bell();
        let work = Arc::new(AtomicUsize::new(0));
        let ringers: Vec<_> = (0..2)
            .map(|_| {
                let (bell, work) = (Arc::clone(&bell), Arc::clone(&work));
                thread::spawn(move || {
                    work.fetch_add(1, Ordering::Release);
                    bell.ring();
                })
            })
            .collect();
        let sleeps = bell.may_sleep(|| work.load(Ordering::Acquire) != 0);
        for ringer in ringers {
            ringer.join().unwrap();
        }
        let wakes = wakes.load(Ordering::SeqCst);
        assert!(if sleeps { wakes == 1 } else { wakes <= 1 }, "asleep: {sleeps}, woken {wakes} times");
        bell.awake();
    });
}

/// One ring of one producer: where its tail and its head are. Parts themselves do not matter here.
#[derive(Default)]
struct Ring {
    tail: AtomicUsize,
    head: AtomicUsize,
}

impl Ring {
    fn push(&self) {
        self.tail.store(self.tail.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    fn is_empty(&self) -> bool {
        self.tail.load(Ordering::Acquire) == self.head.load(Ordering::Relaxed)
    }

    fn pop(&self) -> usize {
        let found = usize::from(!self.is_empty());
        self.head.store(self.head.load(Ordering::Relaxed) + found, Ordering::Relaxed);
        found
    }
}

/// A doorbell of the calling thread.
fn unparking_bell() -> Arc<Doorbell> {
    let owner = thread::current();
    Arc::new(Doorbell::new(Box::new(move || owner.unpark())))
}

/// A thread as the server's shells run one: it pops, and sleeps only where `may_sleep` lets it. It ends when it has popped
/// `parts`; loom reports a sleep that nobody ends. `awake_always`: after each wait, as the reactor does it, and not after
/// sleeps only.
fn pops_all(bell: &Doorbell, sleep: impl Fn(), rings: &[Arc<Ring>], parts: usize, awake_always: bool) {
    let mut popped = 0;
    loop {
        popped += rings.iter().map(|ring| ring.pop()).sum::<usize>();
        if popped == parts {
            break;
        }
        let sleeps = bell.may_sleep(|| rings.iter().any(|ring| !ring.is_empty()));
        if sleeps {
            sleep();
        }
        if sleeps || awake_always {
            bell.awake();
        }
    }
}

/// So many producers with a ring each push so many parts, ringing after each.
fn nobody_sleeps_for_ever(producers: usize, parts: usize, awake_always: bool) {
    explored(move || {
        let bell = unparking_bell();
        let rings: Vec<Arc<Ring>> = (0..producers).map(|_| Arc::new(Ring::default())).collect();
        let produce = |ring: &Arc<Ring>| {
            let (bell, ring) = (Arc::clone(&bell), Arc::clone(ring));
            thread::spawn(move || {
                for _ in 0..parts {
                    ring.push();
                    bell.ring();
                }
            })
        };
        let threads: Vec<_> = rings.iter().map(produce).collect();
        pops_all(&bell, thread::park, &rings, parts * producers, awake_always);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// All interleavings in which at most so many times a thread is stopped where it could go on: each side of the protocol has
/// three steps.
fn explored(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn one_producer_and_a_thread_that_sleeps_again_and_again() {
    nobody_sleeps_for_ever(1, 4, false);
    nobody_sleeps_for_ever(1, 4, true);
}

#[test]
fn two_producers_with_rings_of_their_own_and_one_sleeper() {
    nobody_sleeps_for_ever(2, 2, false);
    nobody_sleeps_for_ever(2, 2, true);
}

/// What a reactor sleeps on: its eventfd. A wake ends the sleep, or the next one.
struct EventFd {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl EventFd {
    fn new() -> Arc<EventFd> {
        Arc::new(EventFd { woken: Mutex::new(false), changed: Condvar::new() })
    }

    fn bell(this: &Arc<EventFd>) -> Arc<Doorbell> {
        let this = Arc::clone(this);
        Arc::new(Doorbell::new(Box::new(move || {
            *this.woken.lock().unwrap() = true;
            this.changed.notify_one();
        })))
    }

    fn sleep(&self) {
        let mut woken = self.woken.lock().unwrap();
        while !*woken {
            woken = self.changed.wait(woken).unwrap();
        }
        *woken = false;
    }
}

/// A part goes to a worker and comes home: each of the two sleeps, and each rings the other's bell.
#[test]
fn two_threads_that_answer_one_another() {
    explored(|| {
        let (there, back) = (Arc::new(Ring::default()), Arc::new(Ring::default()));
        let (reactors, workers) = (EventFd::new(), EventFd::new());
        let (reactors_bell, workers_bell) = (EventFd::bell(&reactors), EventFd::bell(&workers));
        let worker = {
            let (there, back) = (Arc::clone(&there), Arc::clone(&back));
            let (own, other) = (Arc::clone(&workers_bell), Arc::clone(&reactors_bell));
            thread::spawn(move || {
                pops_all(&own, || workers.sleep(), &[there], 1, false);
                back.push();
                other.ring();
            })
        };
        there.push();
        workers_bell.ring();
        pops_all(&reactors_bell, || reactors.sleep(), &[back], 1, true);
        worker.join().unwrap();
    });
}
