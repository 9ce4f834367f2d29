//! Whether the default ladder of buckets is a good one: the planner serves texts as people send them over what buckets cost on an
//! H200 (`bench/record/2026-11-30-speed.md`), on coarser and finer ladders.

use std::collections::VecDeque;

use super::*;
use crate::device::{Layout, Offer, Plan};
use crate::model::build::shapes::ladder;
use crate::plan::{Bounds, Next, Planner};

/// (tokens, milliseconds a batch on two lanes), by the longest row that it holds for.
const COSTS: [(u32, &[(f64, f64)]); 3] = [
    (
        128,
        &[
            (32., 0.554),
            (64., 0.613),
            (128., 0.69),
            (256., 0.866),
            (512., 1.137),
            (1024., 1.717),
            (2048., 3.074),
            (4096., 5.852),
            (8192., 11.632),
            (16384., 23.2),
        ],
    ),
    (
        256,
        &[
            (256., 0.877),
            (512., 1.173),
            (1024., 1.75),
            (2048., 3.214),
            (4096., 6.148),
            (6144., 9.12),
            (8192., 12.161),
            (16384., 24.227),
        ],
    ),
    (
        512,
        &[
            (512., 1.247),
            (1024., 1.882),
            (2048., 3.516),
            (3072., 5.03),
            (4096., 6.551),
            (6144., 9.9),
            (8192., 13.265),
            (16384., 26.95),
        ],
    ),
];

/// Nanoseconds of a batch, between what was measured on a straight line.
fn cost_ns(rows: u32, length: u32) -> u64 {
    let (_, known) = COSTS.iter().find(|(longest, _)| length <= *longest).expect("measured up to 512");
    let tokens = f64::from(rows * length);
    let above = known.iter().position(|(size, _)| tokens <= *size).expect("measured up to 16,384 tokens");
    let ((from, low), (to, high)) = (known[above.saturating_sub(1)], known[above]);
    let share = if to > from { (tokens - from) / (to - from) } else { 1.0 };
    ((low + (high - low) * share) * 1e6) as u64
}

fn measured(buckets: &[(u32, u32)]) -> Offer {
    let shapes: Vec<_> = buckets.iter().map(|&(rows, length)| (rows, length, rows * (length / 16).max(1))).collect();
    let costs_ns = buckets.iter().map(|&(rows, length)| cost_ns(rows, length)).collect();
    Offer { costs_ns, ..offer(Layout::Packed, &shapes) }
}

/// Useful tokens a second with so many clients, each asking again as soon as it is answered: one batch runs, one lies behind it.
fn tokens_a_second(offer: &Offer, clients: u32) -> f64 {
    let mut random = Random::new(7);
    let mut planner = Planner::new(Bounds {
        sequences_max: None,
        tokens_max: None,
        linger_ns: 0,
        age_ns_max: 50_000_000,
        pieces_max: clients as usize,
        piece_sequences_max: 16,
        models_max: 1,
    });
    planner.offer(MODEL, offer);
    let (mut slot, mut now_ns, mut useful, mut dropped) = (0, 0, 0, Vec::new());
    let mut ask = |planner: &mut Planner, index: u32, now_ns: u64| {
        slot += 1;
        planner.push(index, &piece(job(slot), MODEL, now_ns, &[random.text_length()]));
    };
    (0..clients).for_each(|index| ask(&mut planner, index, 0));
    let mut lanes: VecDeque<Plan> = VecDeque::new();
    while now_ns < 400_000_000 {
        while lanes.len() < 2 {
            let mut plan = planner.empty_plan();
            if planner.next(now_ns, &|_| true, &mut plan, &mut dropped) != Next::Plan {
                break;
            }
            lanes.push_back(plan);
        }
        let plan = lanes.pop_front().expect("somebody always waits");
        now_ns += offer.costs_ns[plan.bucket as usize];
        useful += u64::from(plan.tokens);
        plan.placements.iter().for_each(|placement| ask(&mut planner, placement.piece, now_ns));
    }
    useful as f64 / (now_ns as f64 / 1e9)
}

const CLIENTS: [u32; 6] = [1, 4, 16, 64, 256, 1024];

#[test]
fn the_default_ladder_is_within_a_few_hundredths_of_the_best() {
    let default: Vec<(u32, u32)> =
        ladder(Layout::Packed, 512).iter().map(|bucket| (bucket.rows, bucket.length)).collect();
    let lone = [(1, 32), (1, 64), (1, 128), (1, 256), (1, 512)];
    let rows = |length: u32, all: &[u32]| all.iter().map(|&rows| (rows, length)).collect::<Vec<_>>();
    let finest = [
        &lone[..],
        &rows(128, &[4, 6, 8, 12, 16, 24, 32, 48, 64]),
        &rows(256, &[2, 3, 4, 6, 8, 12, 16, 24, 32]),
        &rows(512, &[4, 8, 16]),
    ]
    .concat();
    let coarse = vec![(1, 32), (8, 128), (32, 256), (1, 512)];
    let only_longest = [&lone[..], &rows(512, &[2, 4, 8, 16])].concat();
    println!("{:<14}{}", "tokens/s", CLIENTS.map(|clients| format!("{clients:>9}")).concat());
    let rates = |name: &str, buckets: &[(u32, u32)]| {
        let offer = measured(buckets);
        let rates = CLIENTS.map(|clients| tokens_a_second(&offer, clients));
        println!("{name:<14}{}", rates.map(|rate| format!("{rate:>9.0}")).concat());
        rates
    };
    let (default, finest) = (rates("default", &default), rates("finest", &finest));
    let (coarse, only_longest) = (rates("coarse", &coarse), rates("only 512", &only_longest));
    for ((clients, default), finest) in CLIENTS.iter().zip(default).zip(finest) {
        assert!(default > 0.93 * finest, "{clients} clients: {default:.0} of {finest:.0} tokens/s");
    }
    assert!(default[3] > 1.15 * coarse[3], "a coarse ladder costs most in the middle");
    assert!(default[5] > 1.05 * only_longest[5], "texts that are short pay for long rows");
}

#[test]
fn what_was_measured_decides_where_tokens_are_alike() {
    let shapes = [(64, 128), (32, 256), (16, 512)];
    let best = |offer: &Offer| {
        let mut planner = Planner::new(Bounds {
            sequences_max: None,
            tokens_max: None,
            linger_ns: 0,
            age_ns_max: u64::MAX,
            pieces_max: 512,
            piece_sequences_max: 16,
            models_max: 1,
        });
        planner.offer(MODEL, offer);
        (0..512).for_each(|index| planner.push(index, &piece(job(index), MODEL, 0, &[16])));
        let (mut plan, mut dropped) = (planner.empty_plan(), Vec::new());
        assert_eq!(planner.next(0, &|_| true, &mut plan, &mut dropped), Next::Plan);
        assert_eq!(plan.tokens, 8192);
        offer.buckets[plan.bucket as usize].length
    };
    let offer = measured(&shapes);
    assert_eq!(best(&offer), 128);
    assert_eq!(best(&Offer { costs_ns: vec![3_000_000, 1_000_000, 2_000_000], ..offer }), 256);
}
