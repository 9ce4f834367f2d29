//! A second planner that is slow and obvious: it says which model and which sequence must come next, and follows what
//! the real one did. Scenarios are random; a failing one is named by its seed.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::device::{Layout, Offer, Plan};
use crate::plan::pack::PLAN_TOKENS;
use crate::plan::{Bounds, Cause, Dropped, Next, Planner};

#[derive(Clone, Debug, PartialEq)]
struct Waiting {
    piece: u32,
    sequence: u32,
    length: u32,
}

#[derive(Debug)]
struct ShadowJob {
    key: JobKey,
    arrived_ns: u64,
    /// Counts the entries, for ties in age.
    serial: u64,
    balance: i64,
    waiting: Vec<Waiting>,
}

#[derive(Debug)]
struct ShadowModel {
    key: ModelKey,
    offer: Offer,
    account: u64,
    /// In the order of their turns.
    jobs: Vec<ShadowJob>,
}

struct Shadow {
    bounds: Bounds,
    models: Vec<Option<ShadowModel>>,
    level: u64,
    aged_last: bool,
    serial: u64,
    /// What must be reported, sequences by piece and cause.
    owed: BTreeMap<(u32, u8), u32>,
}

/// What the shadow says must happen.
#[derive(Debug, PartialEq)]
enum Prediction {
    Plan { slot: usize, aged: bool, anchor: Waiting },
    WaitUntil(u64),
    Empty,
}

impl Shadow {
    fn new(bounds: Bounds) -> Shadow {
        let models = (0..bounds.models_max).map(|_| None).collect();
        Shadow { bounds, models, level: 0, aged_last: false, serial: 0, owed: BTreeMap::new() }
    }

    fn offer(&mut self, key: ModelKey, offer: &Offer) {
        let slot = self.models.iter().position(Option::is_none).unwrap();
        self.models[slot] = Some(ShadowModel { key, offer: offer.clone(), account: self.level, jobs: Vec::new() });
    }

    fn withdraw(&mut self, key: ModelKey) {
        let slot = self.models.iter().position(|model| model.as_ref().is_some_and(|model| model.key == key)).unwrap();
        for job in self.models[slot].take().unwrap().jobs {
            self.owe(job.waiting.iter().map(|waiting| waiting.piece), Cause::Withdrawn);
        }
    }

    fn owe(&mut self, pieces: impl Iterator<Item = u32>, cause: Cause) {
        for piece in pieces {
            *self.owed.entry((piece, cause as u8)).or_default() += 1;
        }
    }

    fn length_max(&self, offer: &Offer) -> u32 {
        offer.length_max().min(self.bounds.tokens_max.unwrap_or(u32::MAX))
    }

    fn push(&mut self, index: u32, piece: &Piece) {
        let model = self.models.iter().position(|model| model.as_ref().is_some_and(|model| model.key == piece.model));
        let Some(slot) = model else {
            self.owe(std::iter::repeat_n(index, piece.sequences()), Cause::Withdrawn);
            return;
        };
        for sequence in 0..piece.sequences() {
            let length = piece.length(sequence);
            let length_max = self.length_max(&self.models[slot].as_ref().unwrap().offer);
            if length == 0 || length > length_max {
                self.owe(std::iter::once(index), Cause::Unfit);
                continue;
            }
            let model = self.models[slot].as_mut().unwrap();
            if model.jobs.is_empty() {
                model.account = model.account.max(self.level);
            }
            if model.jobs.iter().all(|job| job.key != piece.job) {
                self.serial += 1;
                model.jobs.push(ShadowJob {
                    key: piece.job,
                    arrived_ns: piece.arrived_ns,
                    serial: self.serial,
                    balance: i64::from(length_max),
                    waiting: Vec::new(),
                });
            }
            let job = model.jobs.iter_mut().find(|job| job.key == piece.job).unwrap();
            job.waiting.push(Waiting { piece: index, sequence: sequence as u32, length });
        }
    }

    fn waiting(&self) -> impl Iterator<Item = &Waiting> {
        self.models.iter().flatten().flat_map(|model| &model.jobs).flat_map(|job| &job.waiting)
    }

    /// Drops what must be dropped on the way to the prediction.
    fn predict(&mut self, now_ns: u64, dead: &BTreeSet<JobKey>) -> Prediction {
        loop {
            if !self.aged_last
                && let Some((slot, at)) = self.oldest()
                && self.models[slot].as_ref().unwrap().jobs[at].arrived_ns
                    < now_ns.saturating_sub(self.bounds.age_ns_max)
            {
                let job = &self.models[slot].as_ref().unwrap().jobs[at];
                if !dead.contains(&job.key) {
                    return Prediction::Plan { slot, aged: true, anchor: job.waiting[0].clone() };
                }
                self.drop_job(slot, at);
                continue;
            }
            let (ready, later): (Vec<usize>, Vec<usize>) =
                (0..self.models.len()).filter(|&slot| self.waits(slot)).partition(|&slot| self.is_ready(slot, now_ns));
            let Some(slot) = ready.into_iter().min_by_key(|&slot| self.models[slot].as_ref().unwrap().account) else {
                let until = later.into_iter().map(|slot| self.due_ns(slot)).min();
                return until.map_or(Prediction::Empty, Prediction::WaitUntil);
            };
            let model = self.models[slot].as_ref().unwrap();
            self.level = self.level.max(model.account);
            // Once a model is chosen the dead are passed over, even if it would not be full without them.
            while let Some(first) = self.models[slot].as_ref().unwrap().jobs.first() {
                if !dead.contains(&first.key) {
                    return Prediction::Plan { slot, aged: false, anchor: first.waiting[0].clone() };
                }
                self.drop_job(slot, 0);
            }
        }
    }

    fn oldest(&self) -> Option<(usize, usize)> {
        let all = self.models.iter().enumerate().flat_map(|(slot, model)| {
            let jobs = model.iter().flat_map(|model| model.jobs.iter().enumerate());
            jobs.map(move |(at, job)| (job.arrived_ns, slot, job.serial, at))
        });
        all.min().map(|(_, slot, _, at)| (slot, at))
    }

    fn waits(&self, slot: usize) -> bool {
        self.models[slot].as_ref().is_some_and(|model| !model.jobs.is_empty())
    }

    fn due_ns(&self, slot: usize) -> u64 {
        let jobs = &self.models[slot].as_ref().unwrap().jobs;
        let linger_ns = self.bounds.linger_ns.min(self.bounds.age_ns_max);
        jobs.iter().map(|job| job.arrived_ns).min().unwrap() + linger_ns
    }

    fn is_ready(&self, slot: usize, now_ns: u64) -> bool {
        let model = self.models[slot].as_ref().unwrap();
        let bucket = model.offer.buckets.iter().min_by_key(|bucket| std::cmp::Reverse(bucket.tokens())).unwrap();
        let sequences: usize = model.jobs.iter().map(|job| job.waiting.len()).sum();
        let tokens: u32 = model.jobs.iter().flat_map(|job| &job.waiting).map(|waiting| waiting.length).sum();
        let seats = match model.offer.layout {
            Layout::Padded => bucket.rows.min(bucket.sequences_max),
            Layout::Packed => bucket.tokens().min(bucket.sequences_max),
        };
        sequences >= seats.min(self.bounds.sequences_max.unwrap_or(u32::MAX)) as usize
            || tokens >= bucket.tokens().min(self.bounds.tokens_max.unwrap_or(u32::MAX))
            || self.bounds.linger_ns == 0
            || self.due_ns(slot) <= now_ns
    }

    fn drop_job(&mut self, slot: usize, at: usize) {
        let job = self.models[slot].as_mut().unwrap().jobs.remove(at);
        self.owe(job.waiting.iter().map(|waiting| waiting.piece), Cause::Dead);
    }

    /// Follows what the planner reported: everything owed is there, and nothing else but more dead jobs, whole.
    fn settle(&mut self, dropped: &[Dropped], dead: &BTreeSet<JobKey>) {
        let mut reported: BTreeMap<(u32, u8), u32> = BTreeMap::new();
        for entry in dropped {
            *reported.entry((entry.piece, entry.cause as u8)).or_default() += entry.sequences;
        }
        let is_reported = |job: &ShadowJob| reported.contains_key(&(job.waiting[0].piece, Cause::Dead as u8));
        for slot in 0..self.models.len() {
            let Some(model) = &self.models[slot] else { continue };
            // From the end, so that indexes hold. A piece of a job that was dropped above is not waiting any more.
            for at in (0..model.jobs.len()).rev() {
                let job = &self.models[slot].as_ref().unwrap().jobs[at];
                if dead.contains(&job.key) && is_reported(job) {
                    self.drop_job(slot, at);
                }
            }
        }
        assert_eq!(reported, self.owed, "what leaves without a plan is reported once");
        self.owed.clear();
    }

    /// Follows a plan.
    fn apply(&mut self, slot: usize, aged: bool, anchor: &Waiting, now_ns: u64, plan: &Plan) {
        self.aged_last = aged;
        let before_ns = if aged { now_ns.saturating_sub(self.bounds.age_ns_max) } else { 0 };
        let length_max = {
            let offer = &self.models[slot].as_ref().unwrap().offer;
            i64::from(self.length_max(offer))
        };
        let model = self.models[slot].as_mut().unwrap();
        model.account += u64::from(plan.tokens) + PLAN_TOKENS;
        let first = model.jobs.iter().find(|job| job.waiting.contains(anchor)).unwrap().key;
        for placement in &plan.placements {
            let is_it = |waiting: &Waiting| (waiting.piece, waiting.sequence) == (placement.piece, placement.sequence);
            let job = model.jobs.iter_mut().find(|job| job.waiting.iter().any(is_it)).expect("what is placed waited");
            let at = job.waiting.iter().position(is_it).unwrap();
            assert_eq!(job.waiting.remove(at).length, placement.length);
            job.balance -= i64::from(placement.length);
        }
        model.jobs.retain(|job| !job.waiting.is_empty());
        // Who is done with its turn goes to the end: the aged by age, then the others in their order.
        let (mut aged_jobs, mut others): (Vec<&ShadowJob>, Vec<&ShadowJob>) =
            model.jobs.iter().partition(|job| job.arrived_ns < before_ns);
        aged_jobs.sort_by_key(|job| (job.arrived_ns, job.serial));
        aged_jobs.append(&mut others);
        let done = aged_jobs.iter().filter(|job| job.balance <= 0 || job.key == first);
        for key in done.map(|job| job.key).collect::<Vec<_>>() {
            let at = model.jobs.iter().position(|job| job.key == key).unwrap();
            let mut job = model.jobs.remove(at);
            while job.balance <= 0 {
                job.balance += length_max;
            }
            model.jobs.push(job);
        }
    }
}

/// Paints every placement into the bucket, cell by cell.
fn check_plan(offer: &Offer, bounds: &Bounds, plan: &Plan) {
    let bucket = offer.buckets[plan.bucket as usize];
    let count = plan.placements.len();
    assert!(count > 0 && count <= bucket.sequences_max.min(bounds.sequences_max.unwrap_or(u32::MAX)) as usize);
    assert_eq!(plan.tokens, plan.placements.iter().map(|placement| placement.length).sum::<u32>());
    assert!(plan.tokens <= bounds.tokens_max.unwrap_or(u32::MAX));
    let mut rows = vec![vec![false; bucket.length as usize]; bucket.rows as usize];
    for placement in &plan.placements {
        let cells = placement.offset as usize..(placement.offset + placement.length) as usize;
        for cell in &mut rows[placement.row as usize][cells] {
            assert!(!std::mem::replace(cell, true), "two sequences on one token: {plan:?}");
        }
    }
    for row in &rows {
        assert!(row.is_sorted_by(|left, right| left >= right), "a gap in a row: {plan:?}");
    }
    assert!(rows.is_sorted_by(|above, below| above[0] >= below[0]), "an empty row between others: {plan:?}");
    assert!(plan.placements.is_sorted_by_key(|placement| (placement.row, placement.offset)));
    if offer.layout == Layout::Padded {
        assert!(plan.placements.iter().all(|placement| placement.offset == 0));
    }
}

fn random_bounds(random: &mut Random) -> Bounds {
    Bounds {
        sequences_max: random.one_in(3).then(|| random.within(1..=9)),
        tokens_max: random.one_in(3).then(|| random.within(20..=200)),
        linger_ns: if random.one_in(2) { 0 } else { u64::from(random.within(1..=400)) },
        age_ns_max: u64::from(random.within(50..=2000)),
        pieces_max: random.within(1..=24) as usize,
        piece_sequences_max: random.within(1..=6) as usize,
        models_max: random.within(1..=3) as usize,
    }
}

fn random_offer(random: &mut Random) -> Offer {
    let layout = if random.one_in(2) { Layout::Padded } else { Layout::Packed };
    let buckets: Vec<(u32, u32, u32)> = (0..random.within(1..=5))
        .map(|_| (random.within(1..=6), random.within(8..=70), random.within(1..=20)))
        .collect();
    let mut offer = offer(layout, &buckets);
    offer.buckets.sort_by_key(|bucket| bucket.tokens());
    offer
}

/// One scenario from its seed: what was done and what came of it, line by line.
fn play(seed: u64) -> Vec<String> {
    let mut random = Random::new(seed);
    let bounds = random_bounds(&mut random);
    let (mut planner, mut shadow) = (Planner::new(bounds), Shadow::new(bounds));
    let mut stage = Stage::default();
    for index in 0..bounds.models_max as u32 {
        let (key, offer) = (ModelKey { index, generation: 0 }, random_offer(&mut random));
        planner.offer(key, &offer);
        shadow.offer(key, &offer);
        stage.models.push(key);
    }
    stage.free = (0..bounds.pieces_max as u32).collect();
    for _ in 0..random.within(1..=80) {
        match random.below(12) {
            0..=5 => stage.push(&mut random, &bounds, &mut planner, &mut shadow),
            6 => {
                let at = random.below(stage.jobs.len().max(1) as u64) as usize;
                stage.dead.extend(stage.jobs.get(at).map(|(key, _, _)| *key));
            }
            7 if random.one_in(8) => {
                let at = random.below(stage.models.len() as u64) as usize;
                planner.withdraw(stage.models[at]);
                shadow.withdraw(stage.models[at]);
                stage.models[at].generation += 1;
                let offer = random_offer(&mut random);
                planner.offer(stage.models[at], &offer);
                shadow.offer(stage.models[at], &offer);
            }
            _ => {
                stage.next(&mut planner, &mut shadow);
            }
        }
        stage.now_ns += random.below(60);
    }
    while stage.next(&mut planner, &mut shadow) != Next::Empty {}
    assert_eq!(stage.left.values().sum::<u32>(), 0, "whatever was pushed has left");
    assert_eq!((planner.waiting_sequences(), planner.waiting_tokens()), (0, 0));
    stage.trace
}

/// What surrounds the two planners.
#[derive(Default)]
struct Stage {
    now_ns: u64,
    models: Vec<ModelKey>,
    /// Key, model and arrival.
    jobs: Vec<(JobKey, ModelKey, u64)>,
    dead: BTreeSet<JobKey>,
    free: Vec<u32>,
    /// Sequences of each piece that have not left.
    left: BTreeMap<u32, u32>,
    trace: Vec<String>,
}

impl Stage {
    fn push(&mut self, random: &mut Random, bounds: &Bounds, planner: &mut Planner, shadow: &mut Shadow) {
        if self.free.is_empty() {
            return;
        }
        let index = self.free.swap_remove(random.below(self.free.len() as u64) as usize);
        if self.jobs.is_empty() || random.one_in(2) {
            // Workers differ in speed: a job may reach the device well after younger ones.
            let arrived_ns = self.now_ns.saturating_sub(random.below(100));
            let key = JobKey { slot: random.within(0..=7), generation: self.jobs.len() as u32 };
            self.jobs.push((key, self.models[random.below(self.models.len() as u64) as usize], arrived_ns));
        }
        let (key, model, arrived_ns) = self.jobs[random.below(self.jobs.len() as u64) as usize];
        let lengths: Vec<u32> = (0..random.within(1..=bounds.piece_sequences_max as u32))
            .map(|_| if random.one_in(40) { random.within(0..=300) } else { random.within(1..=40) })
            .collect();
        let piece = piece(key, model, arrived_ns, &lengths);
        planner.push(index, &piece);
        shadow.push(index, &piece);
        self.left.insert(index, lengths.len() as u32);
        self.trace.push(format!("push {index} {key:?} {model:?} {lengths:?}"));
    }

    fn next(&mut self, planner: &mut Planner, shadow: &mut Shadow) -> Next {
        let (mut plan, mut dropped) = (planner.empty_plan(), Vec::new());
        let next = planner.next(self.now_ns, &|job| !self.dead.contains(&job), &mut plan, &mut dropped);
        let prediction = shadow.predict(self.now_ns, &self.dead);
        self.trace.push(format!("{} {next:?} {dropped:?} {plan:?}", self.now_ns));
        shadow.settle(&dropped, &self.dead);
        match (&next, prediction) {
            (Next::Plan, Prediction::Plan { slot, aged, anchor }) => {
                let model = shadow.models[slot].as_ref().unwrap();
                assert_eq!(plan.model, model.key, "whose turn it is");
                check_plan(&model.offer, &shadow.bounds, &plan);
                let is_anchor = |placed: &crate::device::Placement| {
                    (placed.piece, placed.sequence) == (anchor.piece, anchor.sequence)
                };
                assert!(plan.placements.iter().any(is_anchor), "the first in order is always placed");
                shadow.apply(slot, aged, &anchor, self.now_ns, &plan);
                for placement in &plan.placements {
                    self.leave(placement.piece, 1);
                }
            }
            (Next::WaitUntil(until_ns), Prediction::WaitUntil(expected_ns)) => {
                assert_eq!(*until_ns, expected_ns);
                assert!(*until_ns > self.now_ns);
                self.now_ns = *until_ns;
            }
            (Next::Empty, Prediction::Empty) => {}
            (next, prediction) => panic!("{next:?} where {prediction:?} was due"),
        }
        for entry in &dropped {
            self.leave(entry.piece, entry.sequences);
        }
        assert_eq!(planner.waiting_sequences(), shadow.waiting().count() as u64);
        assert_eq!(planner.waiting_tokens(), shadow.waiting().map(|waiting| u64::from(waiting.length)).sum::<u64>());
        next
    }

    fn leave(&mut self, piece: u32, sequences: u32) {
        let left = self.left.get_mut(&piece).unwrap();
        *left = left.checked_sub(sequences).expect("a sequence leaves once");
        if *left == 0 {
            self.free.push(piece);
        }
    }
}

#[test]
fn follows_the_shadow_on_random_scenarios() {
    for seed in 0..4000 {
        let outcome = std::panic::catch_unwind(|| play(seed));
        assert!(outcome.is_ok(), "seed {seed}");
    }
}

#[test]
fn the_same_calls_give_the_same_plans() {
    for seed in 0..200 {
        assert_eq!(play(seed), play(seed), "seed {seed}");
    }
}
