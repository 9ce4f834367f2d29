//! The planner against a naive shadow of itself on seeded random scenarios, and one test for each promise it makes.

mod fill;
mod ladders;
mod promises;
mod shadow;

use crate::device::{Bucket, Layout, Offer};
use crate::job::{JobKey, ModelKey, Piece};

/// xorshift64* (Marsaglia; Vigna).
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn within(&mut self, range: std::ops::RangeInclusive<u32>) -> u32 {
        range.start() + self.below(u64::from(range.end() - range.start()) + 1) as u32
    }

    fn one_in(&mut self, odds: u64) -> bool {
        self.below(odds) == 0
    }

    fn unit(&mut self) -> f64 {
        (self.next() as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Tokens of a text: log-normal with median 40 and σ 0.9, clipped to 4..=254.
    fn text_length(&mut self) -> u32 {
        let normal = (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos();
        (40.0 * (0.9 * normal).exp()).round().clamp(4.0, 254.0) as u32
    }
}

const MODEL: ModelKey = ModelKey { index: 0, generation: 0 };

fn job(slot: u32) -> JobKey {
    JobKey { slot, generation: 0 }
}

fn piece(job: JobKey, model: ModelKey, arrived_ns: u64, lengths: &[u32]) -> Piece {
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

fn offer(layout: Layout, buckets: &[(u32, u32, u32)]) -> Offer {
    let buckets = buckets.iter().map(|&(rows, length, sequences_max)| Bucket { rows, length, sequences_max });
    Offer { layout, buckets: buckets.collect(), width: 1, costs_ns: Vec::new() }
}
