//! The highest rate that a target bears: bracket, then halve, each step a run of its own that the record keeps.

use std::time::Duration;

use crate::interrupt;
use crate::record::{Arrivals, Load, Run};
use crate::run::{Ready, is_clean};

/// Runs of one search.
pub const RUNS_MAX: usize = 16;
/// The search ends when the bracket is so narrow.
const NEAR: f64 = 1.05;
const RATE_MIN: f64 = 0.1;
const RATE_MAX: f64 = 1e6;

/// Whether a run stayed below the bound: all answers right, everything sent, and the corrected p99.
fn passes(run: &Run, bound: Duration) -> bool {
    let p99_us = run.latency.as_ref().map_or(f64::INFINITY, |latency| latency.corrected.p99);
    is_clean(&run.counts) && run.counts.unsent == 0 && p99_us <= bound.as_secs_f64() * 1e6
}

/// The highest rate that passed; `None` if none did. `seen` gets each run, those before an error too.
///
/// # Errors
/// As [`Ready::run`].
pub fn search(
    ready: &Ready<'_>,
    bound: Duration,
    first_rate: f64,
    arrivals: Arrivals,
    connections: u32,
    seen: &mut dyn FnMut(Run),
) -> Result<Option<f64>, String> {
    bracket(first_rate, &mut |rate| {
        let run = ready.run(&Load::Open { rate, arrivals, connections })?;
        let passed = passes(&run, bound);
        seen(run);
        // Such a run says nothing about its rate.
        interrupt::check()?;
        Ok(passed)
    })
}

/// Doubles or halves until one rate passes and another does not, then goes between.
fn bracket(first_rate: f64, passes: &mut dyn FnMut(f64) -> Result<bool, String>) -> Result<Option<f64>, String> {
    let (mut low, mut high, mut rate) = (None, None, first_rate);
    for _ in 0..RUNS_MAX {
        if passes(rate)? {
            low = Some(rate);
        } else {
            high = Some(rate);
        }
        rate = match (low, high) {
            (Some(low), Some(high)) if high / low <= NEAR => break,
            (Some(low), Some(high)) => readable(f64::sqrt(low * high)),
            (Some(low), None) => low * 2.0,
            (None, Some(high)) => high / 2.0,
            (None, None) => break,
        };
        if !(RATE_MIN..=RATE_MAX).contains(&rate) {
            break;
        }
    }
    Ok(low)
}

/// With three digits, which is nearer than the bracket can be.
fn readable(rate: f64) -> f64 {
    let unit = 10f64.powf(rate.log10().floor() - 2.0);
    (rate / unit).round() * unit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bracket_closes_around_the_limit() {
        for limit in [0.3, 7.0, 99.0, 100.0, 1234.5, 40_000.0] {
            let mut runs = 0;
            let found = bracket(100.0, &mut |rate| {
                runs += 1;
                Ok(rate <= limit)
            });
            let found = found.unwrap().unwrap();
            assert!(found <= limit && found * NEAR >= limit, "{found} for {limit}");
            assert!(runs <= RUNS_MAX, "{runs}");
        }
        assert_eq!((readable(1234.5).round(), readable(99.97).round()), (1230.0, 100.0));
        assert_eq!(bracket(100.0, &mut |_| Ok(false)), Ok(None));
        assert_eq!(bracket(100.0, &mut |_| Err("gone".to_owned())), Err("gone".to_owned()));
    }
}
