//! How full plans get on texts as people send them: log-normal lengths, median 40 tokens, σ 0.9, clipped to 4..=254.

use super::*;
use crate::device::{Layout, Offer};
use crate::plan::{Bounds, Next, Planner};

const WAITING: usize = 1024;

fn packed() -> Offer {
    offer(Layout::Packed, &[(8, 256, 256), (16, 256, 512), (32, 256, 1024)])
}

fn padded() -> Offer {
    let lengths = [32, 64, 128, 256];
    let buckets: Vec<_> = lengths.iter().flat_map(|&length| [8, 16, 32].map(|rows| (rows, length, rows))).collect();
    offer(Layout::Padded, &buckets)
}

/// Useful tokens by tokens computed, with `waiting` lone texts waiting before each of 200 plans.
fn fill(offer: &Offer, waiting: usize) -> f64 {
    let mut random = Random::new(7);
    let mut planner = Planner::new(Bounds {
        sequences_max: None,
        tokens_max: None,
        linger_ns: 0,
        age_ns_max: u64::MAX,
        pieces_max: waiting,
        piece_sequences_max: 16,
        models_max: 1,
    });
    planner.offer(MODEL, offer);
    let mut free: Vec<u32> = (0..waiting as u32).collect();
    let (mut plan, mut dropped, mut slot) = (planner.empty_plan(), Vec::new(), 0);
    let (mut useful, mut computed) = (0, 0);
    for _ in 0..200 {
        for index in free.drain(..) {
            slot += 1;
            planner.push(index, &piece(job(slot), MODEL, 0, &[random.text_length()]));
        }
        assert_eq!(planner.next(0, &|_| true, &mut plan, &mut dropped), Next::Plan);
        useful += u64::from(plan.tokens);
        computed += u64::from(offer.buckets[plan.bucket as usize].tokens());
        free.extend(plan.placements.iter().map(|placement| placement.piece));
    }
    useful as f64 / computed as f64
}

/// The best that padding allows: everything that waits sorted by length, cut into full buckets.
fn sorted_fill(offer: &Offer, rows: usize) -> f64 {
    let mut random = Random::new(7);
    let mut lengths: Vec<u32> = (0..WAITING * 8).map(|_| random.text_length()).collect();
    let (mut useful, mut computed) = (0, 0);
    for window in lengths.chunks_mut(WAITING) {
        window.sort_unstable();
        for rows_of in window.chunks(rows) {
            let longest = rows_of[rows_of.len() - 1];
            let length = offer.buckets.iter().map(|bucket| bucket.length).filter(|&length| length >= longest).min();
            useful += u64::from(rows_of.iter().sum::<u32>());
            computed += u64::from(length.unwrap()) * rows_of.len() as u64;
        }
    }
    useful as f64 / computed as f64
}

#[test]
fn packed_plans_are_full() {
    let full = fill(&packed(), WAITING);
    println!("packed, {WAITING} waiting: {full:.4}; {} waiting: {:.4}", 64, fill(&packed(), 64));
    assert!(full >= 0.99, "{full}");
}

#[test]
fn padded_plans_are_as_full_as_sorting_makes_them() {
    let (full, sorted) = (fill(&padded(), WAITING), sorted_fill(&padded(), 32));
    println!("padded, {WAITING} waiting: {full:.4}; all of it sorted: {sorted:.4}");
    assert!(full >= sorted - 0.01, "{full} against {sorted}");
}

/// What waits costs nothing: of 16,384 sequences a plan looks at as many as it can use and a quarter more.
#[test]
fn a_packed_plan_looks_at_its_window_only() {
    let mut random = Random::new(3);
    let offer = packed();
    let mut planner = Planner::new(Bounds {
        sequences_max: None,
        tokens_max: None,
        linger_ns: 0,
        age_ns_max: u64::MAX,
        pieces_max: WAITING,
        piece_sequences_max: 16,
        models_max: 1,
    });
    planner.offer(MODEL, &offer);
    for index in 0..WAITING as u32 {
        let lengths: Vec<u32> = (0..16).map(|_| random.text_length()).collect();
        planner.push(index, &piece(job(index), MODEL, 0, &lengths));
    }
    let (mut plan, mut dropped) = (planner.empty_plan(), Vec::new());
    let asked = std::cell::Cell::new(0);
    let live = |_| {
        asked.set(asked.get() + 1);
        true
    };
    while planner.next(0, &live, &mut plan, &mut dropped) == Next::Plan {
        // A quarter more tokens than the largest bucket has, with the last sequence running over.
        let gathered: u32 = planner.packer.window.iter().map(|candidate| candidate.length).sum();
        assert!(gathered <= 32 * 256 * 5 / 4 + 254, "{gathered}");
        assert!(asked.replace(0) <= planner.packer.window.len());
    }
}
