//! The planner against a naive shadow of itself on seeded random scenarios, and one test for each promise it makes.

mod fill;
mod ladders;
mod promises;

use super::fuzzing::{Choose, offer, piece, play};
use crate::job::{JobKey, ModelKey};

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

impl Choose for Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn steps(&mut self) -> u32 {
        self.within(1..=80)
    }

    fn is_used_up(&self) -> bool {
        false
    }
}

#[test]
fn follows_the_shadow_on_random_scenarios() {
    for seed in 0..4000 {
        let outcome = std::panic::catch_unwind(|| play(&mut Random::new(seed)));
        assert!(outcome.is_ok(), "seed {seed}");
    }
}

#[test]
fn the_same_calls_give_the_same_plans() {
    for seed in 0..200 {
        assert_eq!(play(&mut Random::new(seed)), play(&mut Random::new(seed)), "seed {seed}");
    }
}
