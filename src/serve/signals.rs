//! Signals: SIGTERM and SIGINT stop the server, a second one ends the process at once; SIGHUP stops it where its terminal has
//! gone, and does nothing where there is none.
//!
//! Owns the thread that waits for signals and the one that sees to it that a stop ends in time: what a device still computes
//! when `drain_ms` have passed, nobody waits for.

use std::io::IsTerminal;
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::{Error, Stopper};
use crate::log;

/// What threads are given beyond `drain_ms` to put their parts away.
const GRACE: Duration = Duration::from_millis(500);

pub(super) fn watch(stopper: Stopper, drain_ms: u64) -> Result<(), Error> {
    let mut signals =
        Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(|error| Error(format!("signals cannot be caught: {error}")))?;
    let has_terminal = std::io::stderr().is_terminal();
    let wait = move || {
        let mut stopping = false;
        for signal in signals.forever() {
            if signal == SIGHUP && !has_terminal {
                log::info(format_args!("SIGHUP: nothing is read again; a restart takes a new configuration"));
                continue;
            }
            if stopping {
                std::process::exit(128 + signal);
            }
            stopping = true;
            log::info(format_args!("stopping: answering what has been accepted; a second signal ends at once"));
            stopper.stop();
            end_in_time(Duration::from_millis(drain_ms) + GRACE);
        }
    };
    spawn("signals", wait)
}

/// Ends the process when a stop has had its time. Every client has had its answer by then, or been told.
fn end_in_time(patience: Duration) {
    let end = move || {
        thread::sleep(patience);
        log::warn(format_args!("not everything had ended within deadlines.drain_ms; ending now"));
        std::process::exit(0);
    };
    if let Err(error) = spawn("end-in-time", end) {
        log::warn(format_args!("{error}; the end may take longer than deadlines.drain_ms"));
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let spawned = thread::Builder::new().name(name.into()).spawn(work);
    spawned.map(drop).map_err(|error| Error(format!("a thread cannot be started: {error}")))
}
