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

/// A moment in the calendar, UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Civil {
    pub year: u64,
    /// 1 to 12, and 1 to 31.
    pub month: u64,
    pub day: u64,
    pub hour: u64,
    pub minute: u64,
    pub second: u64,
}

impl Civil {
    /// Of a second since 1970, by the proleptic Gregorian calendar's cycle of 400 years.
    pub fn of(second: u64) -> Civil {
        let (day, rest) = (second / 86_400, second % 86_400);
        // Days since 1 March of year 0, so that a leap day is the last of its year.
        let shifted = day + 719_468;
        let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
        let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted_month = (5 * day_of_year + 2) / 153;
        let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
        Civil {
            year: era * 400 + year_of_era + u64::from(month <= 2),
            month,
            day: day_of_year - (153 * shifted_month + 2) / 5 + 1,
            hour: rest / 3600,
            minute: rest / 60 % 60,
            second: rest % 60,
        }
    }
}
