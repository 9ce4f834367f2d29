//! What the library says while it works: kept for error messages, shown if somebody asked.
//!
//! The library reports a failure as a null or a `false` and its reason as text to a logger. Owned here: the one logger of
//! the process and the last errors, each with a running number, so that a caller takes a [`Mark`] before a call and reads
//! what was said since. Bounded in number and length.
//!
//! Invariant: the callback neither panics nor blocks on anything but the list of errors, whatever it is given.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_void};
use std::io::Write;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, PoisonError};

/// How grave a message is, in the library's order and numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    InternalError = 0,
    Error = 1,
    Warning = 2,
    Info = 3,
    Verbose = 4,
}

impl Severity {
    fn of(number: i32) -> Severity {
        match number {
            i32::MIN..=0 => Severity::InternalError,
            1 => Severity::Error,
            2 => Severity::Warning,
            3 => Severity::Info,
            4..=i32::MAX => Severity::Verbose,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Severity::InternalError => "internal error",
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Info => "info",
            Severity::Verbose => "verbose",
        }
    }
}

/// Errors kept. The parser says five things of each node that it does not take, and the first node matters most.
const KEPT_MAX: usize = 64;

/// Bytes of one message. The parser prints whole nodes.
const MESSAGE_BYTES_MAX: usize = 2048;

/// A point in the log: errors said later have a higher number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark(u64);

#[derive(Debug, Default)]
struct Kept {
    next: u64,
    errors: VecDeque<(u64, String)>,
}

/// The state behind the callback.
#[derive(Debug)]
struct Record {
    kept: Mutex<Kept>,
    /// Messages up to this severity go to the error stream; -1: none.
    shown: AtomicI32,
}

impl Record {
    fn take_in(&self, severity: Severity, message: &str) {
        if severity as i32 <= self.shown.load(Ordering::Relaxed) {
            // The error stream may be closed; there is nobody to tell.
            let _ = writeln!(std::io::stderr(), "{}: {}: {message}", super::Flavour::built().name(), severity.word());
        }
        if severity > Severity::Error {
            return;
        }
        let end = message.floor_char_boundary(MESSAGE_BYTES_MAX);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.errors.len() == KEPT_MAX {
            kept.errors.pop_front();
        }
        let number = kept.next;
        kept.next += 1;
        kept.errors.push_back((number, message[..end].trim().to_owned()));
    }
}

/// The logger that is handed to the library. It is never freed: the library remembers the first one it was given for as long
/// as the process lives.
#[derive(Debug)]
pub(super) struct Logger {
    record: &'static Record,
    interface: *mut c_void,
}

// SAFETY: the record is made of a lock and an atomic; the interface is a C++ object without state of its own, whose one
// method the library itself calls from any thread.
unsafe impl Send for Logger {}
// SAFETY: as above.
unsafe impl Sync for Logger {}

impl Logger {
    /// `None` if there is no memory for it.
    pub(super) fn new() -> Option<Logger> {
        let record: &'static Record = Box::leak(Box::new(Record { kept: Mutex::default(), shown: AtomicI32::new(-1) }));
        let user_data = std::ptr::from_ref(record).cast_mut().cast::<c_void>();
        // SAFETY: the callback has the type asked for, and what it is given with each call lives for ever.
        let bridge = unsafe { tensorrt_sys::create_rust_logger_bridge(receive, user_data) };
        // SAFETY: takes a null too, and returns null for it.
        let interface = unsafe { tensorrt_sys::get_logger_interface(bridge) };
        (!interface.is_null()).then_some(Logger { record, interface })
    }

    /// The C++ `ILogger*`.
    pub(super) fn interface(&self) -> *mut c_void {
        self.interface
    }

    pub(super) fn show(&self, up_to: Option<Severity>) {
        self.record.shown.store(up_to.map_or(-1, |severity| severity as i32), Ordering::Relaxed);
    }

    pub(super) fn mark(&self) -> Mark {
        Mark(self.record.kept.lock().unwrap_or_else(PoisonError::into_inner).next)
    }

    /// The errors said since, oldest first, each once.
    pub(super) fn since(&self, mark: Mark) -> Vec<String> {
        let kept = self.record.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let mut said: Vec<String> = Vec::new();
        for (_, message) in kept.errors.iter().filter(|(number, _)| *number >= mark.0) {
            if !said.contains(message) {
                said.push(message.clone());
            }
        }
        said
    }

    /// The errors said since, in one line for the end of a sentence.
    pub(super) fn words_since(&self, mark: Mark) -> String {
        let said = self.since(mark);
        if said.is_empty() { "it gives no reason".to_owned() } else { said.join("; ") }
    }
}

/// What the library calls, from whichever thread it works in.
unsafe extern "C" fn receive(user_data: *mut c_void, severity: i32, message: *const c_char) {
    if user_data.is_null() || message.is_null() {
        return;
    }
    // SAFETY: this is the record that was given together with this function, which lives for ever.
    let record = unsafe { &*user_data.cast::<Record>() };
    // SAFETY: not null, and a C string by the interface's contract, for the time of this call.
    let message = unsafe { CStr::from_ptr(message) };
    // Only an allocation or a broken invariant could panic in there; C++ must not see it.
    let _ = std::panic::catch_unwind(|| record.take_in(Severity::of(severity), &message.to_string_lossy()));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn say(logger: &Logger, severity: i32, message: &CStr) {
        let user_data = std::ptr::from_ref(logger.record).cast_mut().cast();
        // SAFETY: the logger's own record and a C string.
        unsafe { receive(user_data, severity, message.as_ptr()) };
    }

    #[test]
    fn errors_since_a_mark_are_kept_and_others_are_not() {
        let logger = Logger::new().unwrap();
        say(&logger, 1, c"before");
        let mark = logger.mark();
        assert_eq!(logger.words_since(mark), "it gives no reason");
        say(&logger, 2, c"a warning");
        say(&logger, 1, c"one");
        say(&logger, 0, c"two");
        say(&logger, 1, c"one");
        assert_eq!(logger.words_since(mark), "one; two");
    }

    #[test]
    fn what_is_kept_is_bounded_and_need_not_be_text() {
        let logger = Logger::new().unwrap();
        let mark = logger.mark();
        let mut long = vec![0xC3; 3 * MESSAGE_BYTES_MAX];
        long.push(0);
        for _ in 0..3 * KEPT_MAX {
            say(&logger, 1, CStr::from_bytes_with_nul(&long).unwrap());
        }
        assert_eq!(logger.since(mark).len(), 1);
        assert!(logger.words_since(mark).len() <= MESSAGE_BYTES_MAX);
        assert_eq!(logger.record.kept.lock().unwrap().errors.len(), KEPT_MAX);
        // SAFETY: nulls are what this function must bear.
        unsafe { receive(std::ptr::null_mut(), 1, c"x".as_ptr()) };
    }
}
