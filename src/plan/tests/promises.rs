//! One test for each promise of the planner's head comment.

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::*;
use crate::device::{Layout, Offer, Pieces, Plan};
use crate::plan::{Bounds, Cause, Dropped, Next, Planner};

const BOUNDS: Bounds = Bounds {
    sequences_max: None,
    tokens_max: None,
    linger_ns: 0,
    age_ns_max: u64::MAX,
    pieces_max: 256,
    piece_sequences_max: 16,
    models_max: 2,
};

/// A planner with what calls it.
struct Bench {
    planner: Planner,
    plan: Plan,
    dropped: Vec<Dropped>,
    dead: RefCell<BTreeSet<JobKey>>,
    next_piece: u32,
}

impl Bench {
    fn new(bounds: Bounds, offer: &Offer) -> Bench {
        let mut planner = Planner::new(bounds);
        planner.offer(MODEL, offer);
        Bench {
            plan: planner.empty_plan(),
            planner,
            dropped: Vec::new(),
            dead: RefCell::new(BTreeSet::new()),
            next_piece: 0,
        }
    }

    fn push(&mut self, job: JobKey, model: ModelKey, arrived_ns: u64, lengths: &[u32]) -> u32 {
        let index = self.next_piece;
        self.next_piece += 1;
        self.planner.push(index, &piece(job, model, arrived_ns, lengths));
        index
    }

    /// A job of many texts, in pieces of 16.
    fn push_bulk(&mut self, job: JobKey, model: ModelKey, arrived_ns: u64, texts: u32, length: u32) {
        for _ in 0..texts / 16 {
            self.push(job, model, arrived_ns, &[length; 16]);
        }
    }

    fn next(&mut self, now_ns: u64) -> Next {
        let dead = self.dead.borrow();
        self.planner.next(now_ns, &|job| !dead.contains(&job), &mut self.plan, &mut self.dropped)
    }

    fn places(&self, piece: u32) -> bool {
        self.plan.placements.iter().any(|placement| placement.piece == piece)
    }

    /// The bucket's (rows, length) of the last plan.
    fn bucket(&self, offer: &Offer) -> (u32, u32) {
        let bucket = offer.buckets[self.plan.bucket as usize];
        (bucket.rows, bucket.length)
    }
}

fn packed() -> Offer {
    offer(Layout::Packed, &[(1, 64, 8), (1, 256, 32), (8, 256, 256), (32, 256, 1024)])
}

fn padded() -> Offer {
    offer(Layout::Padded, &[(1, 64, 1), (8, 64, 8), (32, 64, 32), (1, 256, 1), (8, 256, 8), (32, 256, 32)])
}

#[test]
fn a_lone_text_takes_the_smallest_bucket_at_once() {
    for offer in [packed(), padded()] {
        let mut bench = Bench::new(BOUNDS, &offer);
        bench.push(job(0), MODEL, 50, &[20]);
        assert_eq!(bench.next(0), Next::Plan);
        assert_eq!((bench.bucket(&offer), bench.plan.tokens), ((1, 64), 20));
        assert_eq!(bench.next(0), Next::Empty);
    }
}

#[test]
fn a_full_small_bucket_beats_a_large_half_empty_one() {
    let offer = packed();
    let mut bench = Bench::new(BOUNDS, &offer);
    bench.push_bulk(job(0), MODEL, 0, 48, 50);
    // 2,400 tokens: 2,000 of them fill 8 × 256 as far as 50 goes into 256; 32 × 256 would be computed for 30 % of
    // itself.
    let mut plans = Vec::new();
    while bench.next(0) == Next::Plan {
        plans.push((bench.bucket(&offer), bench.plan.tokens));
    }
    assert_eq!(plans, [((8, 256), 2000), ((1, 256), 250), ((1, 256), 150)]);
}

#[test]
fn a_few_more_texts_share_one_plan_rather_than_fill_two_small_ones() {
    let offer = offer(Layout::Packed, &[(1, 64, 8), (4, 64, 32)]);
    let mut bench = Bench::new(BOUNDS, &offer);
    bench.push(job(0), MODEL, 0, &[60, 60]);
    assert_eq!(bench.next(0), Next::Plan);
    assert_eq!((bench.bucket(&offer), bench.plan.tokens), ((4, 64), 120));
}

#[test]
fn a_short_text_rides_in_a_long_row_only_where_its_kind_fills_no_bucket() {
    let offer = padded();
    let mut bench = Bench::new(BOUNDS, &offer);
    // The short one is first in order.
    bench.push(job(0), MODEL, 0, &[10]);
    bench.push(job(1), MODEL, 0, &[200; 7]);
    assert_eq!(bench.next(0), Next::Plan);
    assert_eq!((bench.bucket(&offer), bench.plan.placements.len()), ((8, 256), 8));
    bench.push_bulk(job(2), MODEL, 0, 32, 30);
    bench.push_bulk(job(3), MODEL, 0, 32, 200);
    assert_eq!(bench.next(0), Next::Plan);
    assert_eq!((bench.bucket(&offer), bench.plan.tokens), ((32, 64), 32 * 30));
}

#[test]
fn a_lone_text_beside_a_bulk_is_in_the_next_plan_or_the_one_after() {
    let tiny = offer(Layout::Packed, &[(1, 256, 32)]);
    for (offer, plans_before) in
        [packed(), padded(), tiny].iter().flat_map(|offer| [0, 1, 3].map(|count| (offer, count)))
    {
        for length in [3, 30, 250] {
            let mut bench = Bench::new(BOUNDS, offer);
            bench.push_bulk(job(0), MODEL, 0, 2048, 40);
            for _ in 0..plans_before {
                assert_eq!(bench.next(0), Next::Plan);
            }
            let lone = bench.push(job(1), MODEL, 0, &[length]);
            let placed = (0..2).any(|_| bench.next(0) == Next::Plan && bench.places(lone));
            assert!(placed, "{length} tokens after {plans_before} plans of {offer:?}");
        }
    }
}

#[test]
fn jobs_share_a_plan_by_tokens() {
    let offer = offer(Layout::Packed, &[(32, 256, 1024)]);
    let mut bench = Bench::new(BOUNDS, &offer);
    let mut random = Random::new(5);
    let mut short_of = [false; 256];
    for piece in 0..200 {
        let lengths = if piece % 2 == 0 { 4..=40 } else { 60..=200 };
        let lengths: Vec<u32> = (0..16).map(|_| random.within(lengths.clone())).collect();
        let index = bench.push(job(piece % 2), MODEL, 0, &lengths);
        short_of[index as usize] = piece % 2 == 0;
    }
    let mut tokens = [0u32; 2];
    for _ in 0..4 {
        assert_eq!(bench.next(0), Next::Plan);
        for placement in &bench.plan.placements {
            tokens[usize::from(short_of[placement.piece as usize])] += placement.length;
        }
    }
    let ratio = f64::from(tokens[0]) / f64::from(tokens[1]);
    assert!((0.9..1.1).contains(&ratio), "{tokens:?}");
}

#[test]
fn models_share_by_tokens() {
    let other = ModelKey { index: 1, generation: 5 };
    let mut bench = Bench::new(BOUNDS, &packed());
    // One that can only run small plans.
    bench.planner.offer(other, &offer(Layout::Padded, &[(32, 64, 32)]));
    bench.push_bulk(job(0), MODEL, 0, 2000, 100);
    bench.push_bulk(job(1), other, 0, 2000, 64);
    let mut cost = [0.0, 0.0];
    for plan in 0..60 {
        assert_eq!(bench.next(0), Next::Plan);
        cost[bench.plan.model.index as usize] += f64::from(bench.plan.tokens) + 512.0;
        assert!(plan < 1 || cost.iter().all(|cost| *cost > 0.0), "each is in one of the first two plans");
    }
    let ratio = cost[0] / cost[1];
    assert!((0.8..1.25).contains(&ratio), "{cost:?}");
}

#[test]
fn a_model_that_was_idle_has_no_credit() {
    let other = ModelKey { index: 1, generation: 0 };
    let mut bench = Bench::new(BOUNDS, &packed());
    bench.planner.offer(other, &packed());
    bench.push_bulk(job(0), MODEL, 0, 2000, 100);
    for _ in 0..10 {
        assert_eq!(bench.next(0), Next::Plan);
    }
    bench.push_bulk(job(1), other, 0, 2000, 100);
    let models: Vec<u32> =
        std::iter::from_fn(|| (bench.next(0) == Next::Plan).then_some(bench.plan.model.index)).collect();
    assert_eq!(models[..6].iter().filter(|&&index| index == 1).count(), 3, "{models:?}");
}

#[test]
fn the_aged_go_before_fairness_in_every_second_plan() {
    let offer = offer(Layout::Packed, &[(4, 64, 64)]);
    let mut bench = Bench::new(Bounds { age_ns_max: 1_000, ..BOUNDS }, &offer);
    for slot in 0..40 {
        bench.push(job(slot), MODEL, 5_000, &[60; 4]);
    }
    let old = bench.push(job(100), MODEL, 4_000, &[60; 16]);
    let older = bench.push(job(101), MODEL, 3_000, &[60; 16]);
    // None is older than the bound yet but `older`.
    let mut log = Vec::new();
    for now_ns in [4_500, 4_500, 5_500, 5_500, 5_500, 5_500] {
        assert_eq!(bench.next(now_ns), Next::Plan);
        log.push((bench.places(older), bench.places(old), bench.places(0) || bench.places(1) || bench.places(2)));
    }
    let expected = [(true, false), (false, false), (true, false), (false, false), (true, false), (false, false)];
    assert_eq!(log.iter().map(|&(older, old, _)| (older, old)).collect::<Vec<_>>(), expected);
    assert!(log[1].2 && log[3].2, "{log:?}");
    while !bench.places(old) {
        assert_eq!(bench.next(5_500), Next::Plan);
    }
    assert!(bench.planner.waiting_sequences() > 100, "long before its turn");
}

#[test]
fn an_old_bulk_is_no_wall_for_its_model_while_another_has_the_plans_between() {
    let other = ModelKey { index: 1, generation: 0 };
    let offer = offer(Layout::Packed, &[(4, 64, 64)]);
    let mut bench = Bench::new(Bounds { age_ns_max: 1_000, ..BOUNDS }, &offer);
    bench.planner.offer(other, &offer);
    bench.push_bulk(job(0), MODEL, 0, 1_600, 60);
    bench.push_bulk(job(1), other, 9_000, 1_600, 60);
    for _ in 0..3 {
        assert_eq!(bench.next(9_000), Next::Plan);
    }
    let lone = bench.push(job(2), MODEL, 9_000, &[10]);
    let mut models = Vec::new();
    while !bench.places(lone) {
        assert_eq!(bench.next(9_000), Next::Plan);
        models.push(bench.plan.model.index);
        assert!(models.iter().filter(|&&index| index == MODEL.index).count() <= 3, "{models:?}");
    }
    assert!(bench.planner.waiting_sequences() > 3_000, "long before the bulk is done");
}

#[test]
fn the_aged_choose_the_model() {
    let other = ModelKey { index: 1, generation: 0 };
    let mut bench = Bench::new(Bounds { age_ns_max: 1_000, ..BOUNDS }, &packed());
    bench.planner.offer(other, &packed());
    bench.push_bulk(job(0), MODEL, 9_000, 512, 100);
    bench.push(job(1), other, 7_000, &[10]);
    assert_eq!(bench.next(9_000), Next::Plan);
    assert_eq!(bench.plan.model, other);
}

#[test]
fn lingers_for_company_until_the_oldest_is_due_or_the_bucket_is_full() {
    let offer = packed();
    let mut bench = Bench::new(Bounds { linger_ns: 500, ..BOUNDS }, &offer);
    bench.push(job(0), MODEL, 1_000, &[20]);
    bench.push(job(1), MODEL, 1_300, &[20]);
    assert_eq!(bench.next(1_300), Next::WaitUntil(1_500));
    assert_eq!(bench.next(1_499), Next::WaitUntil(1_500));
    assert_eq!(bench.next(1_500), Next::Plan);
    assert_eq!(bench.plan.placements.len(), 2);
    bench.push_bulk(job(2), MODEL, 2_000, 80, 100);
    assert_eq!(bench.next(2_000), Next::WaitUntil(2_500));
    bench.push_bulk(job(3), MODEL, 2_000, 16, 100);
    assert_eq!(bench.next(2_000), Next::Plan);
    assert_eq!(bench.next(2_000), Next::WaitUntil(2_500));
    while bench.next(2_500) == Next::Plan {}
    assert_eq!(bench.next(2_500), Next::Empty);
}

#[test]
fn a_model_that_is_due_does_not_wait_for_one_that_lingers() {
    let other = ModelKey { index: 1, generation: 0 };
    let mut bench = Bench::new(Bounds { linger_ns: 500, ..BOUNDS }, &packed());
    bench.planner.offer(other, &packed());
    bench.push(job(0), MODEL, 1_000, &[20]);
    bench.push(job(1), other, 700, &[20]);
    assert_eq!(bench.next(1_200), Next::Plan);
    assert_eq!(bench.plan.model, other);
    assert_eq!(bench.next(1_200), Next::WaitUntil(1_500));
}

#[test]
fn dead_jobs_cost_no_device_work() {
    let mut bench = Bench::new(BOUNDS, &packed());
    let dead = [bench.push(job(0), MODEL, 0, &[50; 16]), bench.push(job(0), MODEL, 0, &[50; 3])];
    let alive = bench.push(job(1), MODEL, 0, &[50; 2]);
    bench.dead.borrow_mut().insert(job(0));
    assert_eq!(bench.next(0), Next::Plan);
    assert_eq!(bench.plan.placements.len(), 2);
    assert!(bench.places(alive));
    let expected = [16, 3].into_iter().zip(dead);
    let expected: Vec<_> =
        expected.map(|(sequences, piece)| Dropped { piece, sequences, cause: Cause::Dead }).collect();
    assert_eq!(bench.dropped, expected);
    assert_eq!(bench.next(0), Next::Empty);
    assert!(bench.dropped.is_empty());
}

#[test]
fn a_job_that_dies_half_way_loses_the_rest() {
    let offer = offer(Layout::Packed, &[(1, 64, 8)]);
    let mut bench = Bench::new(BOUNDS, &offer);
    let piece = bench.push(job(0), MODEL, 0, &[30; 5]);
    assert_eq!(bench.next(0), Next::Plan);
    assert_eq!(bench.plan.placements.len(), 2);
    bench.dead.borrow_mut().insert(job(0));
    assert_eq!(bench.next(0), Next::Empty);
    assert_eq!(bench.dropped, [Dropped { piece, sequences: 3, cause: Cause::Dead }]);
}

#[test]
fn what_fits_nowhere_is_reported_and_its_neighbours_are_planned() {
    let offer = packed();
    let mut bench = Bench::new(Bounds { tokens_max: Some(200), ..BOUNDS }, &offer);
    let piece = bench.push(job(0), MODEL, 0, &[10, 201, 0, 200, 257]);
    assert_eq!(bench.next(0), Next::Plan);
    assert_eq!(bench.dropped, [Dropped { piece, sequences: 3, cause: Cause::Unfit }]);
    let first: Vec<u32> = bench.plan.placements.iter().map(|placement| placement.sequence).collect();
    assert_eq!(bench.next(0), Next::Plan);
    let second: Vec<u32> = bench.plan.placements.iter().map(|placement| placement.sequence).collect();
    assert_eq!((first, second), (vec![0], vec![3]));
}

#[test]
fn a_withdrawn_model_gives_everything_back() {
    let offer = packed();
    let mut bench = Bench::new(BOUNDS, &offer);
    let before = bench.push(job(0), MODEL, 0, &[10; 4]);
    bench.planner.withdraw(MODEL);
    let after = bench.push(job(1), MODEL, 0, &[10; 2]);
    assert_eq!(bench.planner.waiting_sequences(), 0);
    assert_eq!(bench.next(0), Next::Empty);
    let expected = [(before, 4), (after, 2)];
    let expected = expected.map(|(piece, sequences)| Dropped { piece, sequences, cause: Cause::Withdrawn });
    assert_eq!(bench.dropped, expected);
    // The next generation of the same model is another model.
    let again = ModelKey { generation: 1, ..MODEL };
    bench.planner.offer(again, &offer);
    bench.push(job(2), again, 0, &[10]);
    assert_eq!(bench.next(0), Next::Plan);
    assert_eq!(bench.plan.model, again);
}

#[test]
fn bounds_hold_where_buckets_would_take_more() {
    for offer in [packed(), padded()] {
        let mut bench = Bench::new(Bounds { sequences_max: Some(5), tokens_max: Some(120), ..BOUNDS }, &offer);
        bench.push_bulk(job(0), MODEL, 0, 64, 30);
        for _ in 0..16 {
            assert_eq!(bench.next(0), Next::Plan);
            assert_eq!((bench.plan.placements.len(), bench.plan.tokens), (4, 120));
        }
        assert_eq!(bench.next(0), Next::Empty);
    }
}

#[test]
#[should_panic(expected = "is waiting already")]
fn a_piece_waits_once() {
    let mut bench = Bench::new(BOUNDS, &packed());
    bench.push(job(0), MODEL, 0, &[10]);
    bench.next_piece = 0;
    bench.push(job(0), MODEL, 0, &[10]);
}

/// Planner, pieces and simulated device in one loop: every sequence comes home with the vector of its own tokens.
#[test]
fn plans_run_on_the_simulated_device() {
    use crate::device::sim::{self, Sim};
    use crate::device::{Device, Lane};

    let mut random = Random::new(11);
    for layout in [Layout::Packed, Layout::Padded] {
        let mut device = Sim::new(sim::Options {
            base_us: 3,
            us_per_1k_tokens: 7,
            jitter: 0.5,
            shapes: sim::Shapes::Ladder(layout),
            ..sim::Options::default()
        });
        let model = sim::tests::model(crate::model::Task::Embedding, 256);
        let offer = device.load(MODEL, &model).unwrap();
        let mut bench = Bench::new(BOUNDS, &offer);
        let mut pieces = Pieces::with_capacity(BOUNDS.pieces_max);
        for slot in 0..200 {
            let lengths: Vec<u32> = (0..random.within(1..=16)).map(|_| random.text_length()).collect();
            let mut piece = piece(job(slot / 3), MODEL, 0, &lengths);
            piece.ids.iter_mut().for_each(|id| *id = random.within(0..=30_000));
            piece.outputs.resize(lengths.len() * offer.width as usize, 0.0);
            let index = pieces.insert(Box::new(piece));
            bench.planner.push(index, pieces.get(index));
        }
        let (mut now_ns, mut home, mut running) = (0, 0, vec![Plan::default(); device.lanes()]);
        loop {
            for (lane, running) in running.iter_mut().enumerate() {
                if device.poll(lane, now_ns) == Lane::Done {
                    let mut output = |index: usize, vector: &[f32]| {
                        let placement = running.placements[index];
                        let piece = pieces.get_mut(placement.piece);
                        let range = piece.range(placement.sequence as usize);
                        let mut expected = Vec::new();
                        sim::vector(&piece.ids[range.clone()], &piece.types[range], vector.len(), &mut expected);
                        assert_eq!(vector, expected);
                        home += 1;
                    };
                    assert!(device.collect(lane, &mut output).unwrap() > 0);
                }
                if device.poll(lane, now_ns) == Lane::Idle && bench.next(now_ns) == Next::Plan {
                    device.submit(lane, &bench.plan, &pieces, now_ns).unwrap();
                    *running = bench.plan.clone();
                }
            }
            match device.wake_at_ns() {
                Some(wake_ns) => now_ns = wake_ns,
                None => break,
            }
        }
        let total: usize = (0..200).map(|index| pieces.get(index).sequences()).sum();
        assert_eq!(home, total);
    }
}
