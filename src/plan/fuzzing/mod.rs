//! What the fuzz target, the corpus replay and this room's tests share: scenarios made of choices, played on the planner and on
//! a slow and obvious shadow of it.
//!
//! [`plan`] reads the choices from bytes, so that a fuzzer shapes a scenario step by step; the tests draw them from a seeded
//! generator. Both play the same scenario twice: the same calls must give the same plans.
//!
//! Not part of the server: it allocates as it likes and panics on any disagreement.

mod shadow;

pub use shadow::{Happening, play};

use crate::device::{Bucket, Layout, Offer};
use crate::job::{JobKey, ModelKey, Piece};

/// The fuzz target `plan`: what happened in the scenario that the input describes.
///
/// # Panics
/// When the planner does anything but what its shadow says, or not the same thing twice.
pub fn plan(input: &[u8]) -> Vec<Happening> {
    let happened = play(&mut Bytes(input));
    assert_eq!(happened, play(&mut Bytes(input)), "the same calls, other plans");
    happened
}

/// Where the choices of a scenario come from.
pub trait Choose {
    /// Below `bound`, which is not 0.
    fn below(&mut self, bound: u64) -> u64;

    /// How many steps the scenario has at most.
    fn steps(&mut self) -> u32;

    /// True exactly when nothing is left to choose from, so that the scenario should end.
    fn is_used_up(&self) -> bool;

    fn within(&mut self, range: std::ops::RangeInclusive<u32>) -> u32 {
        range.start() + self.below(u64::from(range.end() - range.start()) + 1) as u32
    }

    fn one_in(&mut self, odds: u64) -> bool {
        self.below(odds) == 0
    }
}

/// Choices by a fuzzer: a byte for each, two where there is more than a byte's worth to choose from.
struct Bytes<'a>(&'a [u8]);

/// A scenario of a few kilobytes must end in milliseconds.
const STEPS_MAX: u32 = 400;

impl Choose for Bytes<'_> {
    fn below(&mut self, bound: u64) -> u64 {
        let count = match bound {
            0..=1 => 0,
            2..=256 => 1,
            257.. => 2,
        };
        let (taken, rest) = self.0.split_at(self.0.len().min(count));
        self.0 = rest;
        taken.iter().fold(0, |value, &byte| value << 8 | u64::from(byte)) % bound
    }

    fn steps(&mut self) -> u32 {
        STEPS_MAX
    }

    fn is_used_up(&self) -> bool {
        self.0.is_empty()
    }
}

/// A piece of one job with sequences of these lengths.
pub(super) fn piece(job: JobKey, model: ModelKey, arrived_ns: u64, lengths: &[u32]) -> Piece {
    let tokens = lengths.iter().sum::<u32>() as usize;
    let ends = lengths.iter().scan(0, |end, length| {
        *end += length;
        Some(*end)
    });
    Piece {
        job,
        model,
        arrived_ns,
        ids: vec![7; tokens],
        types: vec![0; tokens],
        ends: ends.collect(),
        ..Piece::default()
    }
}

/// Buckets of (rows, length, sequences_max).
pub(super) fn offer(layout: Layout, buckets: &[(u32, u32, u32)]) -> Offer {
    let buckets = buckets.iter().map(|&(rows, length, sequences_max)| Bucket { rows, length, sequences_max });
    Offer { layout, buckets: buckets.collect(), width: 1, costs_ns: Vec::new() }
}
