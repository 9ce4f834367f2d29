//! Explores every interleaving of a doorbell's two sides: whoever goes to sleep is woken, and nobody is woken in vain.
//!
//! Runs under `RUSTFLAGS="--cfg loom" cargo test --test loom --release`; without that cfg there is nothing in here.
#![cfg(loom)]

use loom::sync::{Arc, Condvar, Mutex};
use loom::sync::atomic::{AtomicUsize, Ordering};
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

/// What a thread sleeps on: an eventfd, or a thread's own token. A wake ends the sleep, or the next one.
#[derive(Default)]
struct Bed {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Bed {
    fn wake(&self) {
        *self.woken.lock().unwrap() = true;
        self.changed.notify_one();
    }

    fn sleep(&self) {
        let mut woken = self.woken.lock().unwrap();
        while !*woken {
            woken = self.changed.wait(woken).unwrap();
        }
        *woken = false;
    }
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

/// A thread as the server's shells run one: it pops, and sleeps only where `may_sleep` lets it. It ends when it has popped
/// `parts`; loom reports a sleep that nobody ends. `awake` is called after each wait, as the reactor does, or after sleeps
/// only, as the others do.
fn pops_all(bell: &Doorbell, bed: &Bed, rings: &[Arc<Ring>], parts: usize, awake_always: bool) {
    let mut popped = 0;
    loop {
        popped += rings.iter().map(|ring| ring.pop()).sum::<usize>();
        if popped == parts {
            break;
        }
        let sleeps = bell.may_sleep(|| rings.iter().any(|ring| !ring.is_empty()));
        if sleeps {
            bed.sleep();
        }
        if sleeps || awake_always {
            bell.awake();
        }
    }
}

/// `producers` threads with a ring each push two parts, ringing after each.
fn nobody_sleeps_for_ever(producers: usize, awake_always: bool) {
    let mut model = loom::model::Builder::new();
    // Enough to part every step of the protocol from the next, as its two sides have three each.
    model.preemption_bound = Some(3);
    model.check(move || {
        let bed = Arc::new(Bed::default());
        let waker = Arc::clone(&bed);
        let bell = Arc::new(Doorbell::new(Box::new(move || waker.wake())));
        let rings: Vec<Arc<Ring>> = (0..producers).map(|_| Arc::default()).collect();
        let threads: Vec<_> = rings
            .iter()
            .map(|ring| {
                let (bell, ring) = (Arc::clone(&bell), Arc::clone(ring));
                thread::spawn(move || {
                    for _ in 0..2 {
                        ring.push();
                        bell.ring();
                    }
                })
            })
            .collect();
        pops_all(&bell, &bed, &rings, 2 * producers, awake_always);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn one_producer_and_a_thread_that_sleeps_again_and_again() {
    nobody_sleeps_for_ever(1, false);
    nobody_sleeps_for_ever(1, true);
}

#[test]
fn two_producers_with_rings_of_their_own_and_one_sleeper() {
    nobody_sleeps_for_ever(2, false);
    nobody_sleeps_for_ever(2, true);
}

/// The reactor and a worker push to one another: each sleeps and each rings the other's bell.
#[test]
fn two_threads_that_answer_one_another() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let beds: [Arc<Bed>; 2] = [Arc::default(), Arc::default()];
        let bells = beds.clone().map(|bed| Arc::new(Doorbell::new(Box::new(move || bed.wake()))));
        let [there, back]: [Arc<Ring>; 2] = [Arc::default(), Arc::default()];
        let worker = {
            let (there, back, bells, bed) = (Arc::clone(&there), Arc::clone(&back), bells.clone(), Arc::clone(&beds[1]));
            thread::spawn(move || {
                pops_all(&bells[1], &bed, &[there], 1, false);
                back.push();
                bells[0].ring();
            })
        };
        there.push();
        bells[1].ring();
        pops_all(&bells[0], &beds[0], &[back], 1, true);
        worker.join().unwrap();
    });
}
