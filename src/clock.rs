//! The server's one clock: nanoseconds since its start, real or moved by hand.
//!
//! Cores take `now_ns` as an argument. Whoever must measure a duration inside a step (a worker's parsing, say) holds a
//! [`Clock`]; in a simulation it is the same hand-moved one for all, so nothing in the crate sees real time there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

#[derive(Clone, Debug)]
pub enum Clock {
    /// Counts from this instant.
    Real(Instant),
    /// Shows whatever was last stored, in nanoseconds.
    Manual(Arc<AtomicU64>),
}

impl Clock {
    pub fn real() -> Clock {
        Clock::Real(Instant::now())
    }

    pub fn manual() -> Clock {
        Clock::Manual(Arc::new(AtomicU64::new(0)))
    }

    pub fn now_ns(&self) -> u64 {
        match self {
            Clock::Real(start) => start.elapsed().as_nanos() as u64,
            Clock::Manual(now) => now.load(Ordering::Relaxed),
        }
    }

    /// Moves a manual clock; a real one moves by itself.
    pub fn advance_to(&self, now_ns: u64) {
        match self {
            Clock::Real(_) => {}
            Clock::Manual(now) => {
                now.fetch_max(now_ns, Ordering::Relaxed);
            }
        }
    }
}
