//! SIGINT and SIGTERM: the first ends a run early, so that what was measured is still written; the second ends the process.
//!
//! Owns the one flag of the process. Whoever runs for long asks it; nothing is done in a signal handler but to set it.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// Of the process when the second signal comes: something went wrong.
const EXIT_CODE: i32 = 2;

static ASKED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Default::default);

/// # Errors
/// What the system refuses.
pub fn listen() -> io::Result<()> {
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal finds the flag unset.
        flag::register_conditional_shutdown(signal, EXIT_CODE, Arc::clone(&ASKED))?;
        flag::register(signal, Arc::clone(&ASKED))?;
    }
    Ok(())
}

/// True exactly when a signal has come since [`listen`].
pub fn is_asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// # Errors
/// That a signal has come: there is to be no further run.
pub fn check() -> Result<(), String> {
    match is_asked() {
        true => Err("ended early by a signal; what was measured until then is shown and written".to_owned()),
        false => Ok(()),
    }
}
