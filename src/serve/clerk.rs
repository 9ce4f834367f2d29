//! The thread that writes what the reactor may not: the access log, and what the reactor has to say of itself.
//!
//! Without an access log it sleeps until somebody has something to say.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{Error, Threads, spawn};
use crate::journal::{self, Scribe};
use crate::log;

/// Something that goes on is said no more often.
const SAID_EVERY: Duration = Duration::from_secs(60);

/// Starts the thread. Returns what the reactor calls when file descriptors are exhausted.
pub(super) fn start(scribe: Option<Scribe>, threads: &mut Threads) -> Result<Box<dyn Fn() + Send>, Error> {
    let exhausted = Arc::new(AtomicBool::new(false));
    let mut clerk = Clerk { scribe, exhausted: Arc::clone(&exhausted), said: None };
    let quit = Arc::clone(&threads.quit);
    let handle = spawn("clerk".into(), None, move || {
        while !quit.load(Ordering::Relaxed) {
            clerk.step();
            match clerk.scribe {
                Some(_) => thread::park_timeout(journal::PAUSE),
                None => thread::park(),
            }
        }
        // The reactor has ended: this is the last of it.
        clerk.step();
    })?;
    let thread = handle.thread().clone();
    threads.handles.push(handle);
    Ok(Box::new(move || {
        exhausted.store(true, Ordering::Relaxed);
        thread.unpark();
    }))
}

struct Clerk {
    scribe: Option<Scribe>,
    exhausted: Arc<AtomicBool>,
    /// When it was last said that descriptors are exhausted.
    said: Option<Instant>,
}

impl Clerk {
    fn step(&mut self) {
        if let Some(scribe) = &mut self.scribe {
            scribe.step();
        }
        if self.exhausted.swap(false, Ordering::Relaxed) && self.said.is_none_or(|said| said.elapsed() >= SAID_EVERY) {
            self.said = Some(Instant::now());
            log::warn(format_args!(
                "no file descriptor is left for a connection that waits: it is accepted when one comes free; `ulimit -n` \
                 should be above limits.connections_max"
            ));
        }
    }
}
