//! Explores every interleaving of a doorbell's two sides: whoever goes to sleep is woken, and nobody is woken in vain.
//!
//! Runs under `RUSTFLAGS="--cfg loom" cargo test --test loom --release`; without that cfg there is nothing in here.
#![cfg(loom)]

use loom::sync::Arc;
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
