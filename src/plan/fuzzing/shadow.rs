//! A second planner that is slow and obvious: it says which model and which sequence must come next, and follows what
//! the real one did. Beside it stands what must hold whatever the order is: plans fit their buckets, every sequence leaves
//! once, and no job is passed over for longer than those before it have turns.

use std::collections::{BTreeMap, BTreeSet};

use super::{Choose, offer, piece};
use crate::device::{Bucket, Layout, Offer, Placement, Plan};
use crate::job::{JobKey, ModelKey, Piece};
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
    aged_last: bool,
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

/// How a model came to be the next one.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Chosen {
    /// By the oldest job, and the aged go first in it too.
    ByAge,
    /// By the oldest job, but the aged went first in its last plan already.
    ByAgeInTurn,
    InTurn,
}

/// What the shadow says must happen.
#[derive(Debug, PartialEq)]
enum Prediction {
    Plan { slot: usize, chosen: Chosen, anchor: Waiting },
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
        self.models[slot] =
            Some(ShadowModel { key, offer: offer.clone(), account: self.level, aged_last: false, jobs: Vec::new() });
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
                let model = self.models[slot].as_ref().unwrap();
                let job = &model.jobs[at];
                if dead.contains(&job.key) {
                    self.drop_job(slot, at);
                    continue;
                }
                if !model.aged_last {
                    return Prediction::Plan { slot, chosen: Chosen::ByAge, anchor: job.waiting[0].clone() };
                }
                let anchor = self.first_in_turn(slot, dead).expect("the oldest is alive");
                return Prediction::Plan { slot, chosen: Chosen::ByAgeInTurn, anchor };
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
            if let Some(anchor) = self.first_in_turn(slot, dead) {
                return Prediction::Plan { slot, chosen: Chosen::InTurn, anchor };
            }
        }
    }

    fn first_in_turn(&mut self, slot: usize, dead: &BTreeSet<JobKey>) -> Option<Waiting> {
        while let Some(first) = self.models[slot].as_ref().unwrap().jobs.first() {
            if !dead.contains(&first.key) {
                return Some(first.waiting[0].clone());
            }
            self.drop_job(slot, 0);
        }
        None
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

    /// Whose sequences a plan holds.
    fn jobs_in(&self, slot: usize, plan: &Plan) -> BTreeSet<JobKey> {
        let places = |waiting: &Waiting| {
            plan.placements.iter().any(|placed| (placed.piece, placed.sequence) == (waiting.piece, waiting.sequence))
        };
        let jobs = self.models[slot].iter().flat_map(|model| &model.jobs);
        jobs.filter(|job| job.waiting.iter().any(places)).map(|job| job.key).collect()
    }

    /// Follows a plan.
    fn apply(&mut self, slot: usize, chosen: Chosen, anchor: &Waiting, now_ns: u64, plan: &Plan) {
        let (by_age, aged_first) = match chosen {
            Chosen::ByAge => (true, true),
            Chosen::ByAgeInTurn => (true, false),
            Chosen::InTurn => (false, false),
        };
        self.aged_last = by_age;
        let before_ns = if aged_first { now_ns.saturating_sub(self.bounds.age_ns_max) } else { 0 };
        let length_max = {
            let offer = &self.models[slot].as_ref().unwrap().offer;
            i64::from(self.length_max(offer))
        };
        let model = self.models[slot].as_mut().unwrap();
        model.account += u64::from(plan.tokens) + PLAN_TOKENS;
        model.aged_last = aged_first;
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

fn choose_bounds(choices: &mut dyn Choose) -> Bounds {
    Bounds {
        sequences_max: choices.one_in(3).then(|| choices.within(1..=9)),
        tokens_max: choices.one_in(3).then(|| choices.within(20..=200)),
        linger_ns: if choices.one_in(2) { 0 } else { u64::from(choices.within(1..=400)) },
        age_ns_max: u64::from(choices.within(50..=2000)),
        pieces_max: choices.within(1..=24) as usize,
        piece_sequences_max: choices.within(1..=6) as usize,
        models_max: choices.within(1..=3) as usize,
    }
}

fn choose_offer(choices: &mut dyn Choose) -> Offer {
    let layout = if choices.one_in(2) { Layout::Padded } else { Layout::Packed };
    let buckets: Vec<(u32, u32, u32)> = (0..choices.within(1..=5))
        .map(|_| (choices.within(1..=6), choices.within(8..=70), choices.within(1..=20)))
        .collect();
    let mut offer = offer(layout, &buckets);
    offer.buckets.sort_by_key(|bucket| bucket.tokens());
    if offer.buckets.len().is_multiple_of(2) {
        // Measured costs may be anything. They follow from the buckets, so that scenarios written before costs were still mean
        // what they meant.
        let cost = |bucket: &Bucket| u64::from(bucket.tokens() * 7919 % 1009 + bucket.sequences_max);
        offer.costs_ns = offer.buckets.iter().map(cost).collect();
    }
    offer
}

/// One thing that was done in a scenario, with all that came of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Happening {
    Pushed { piece: u32, job: JobKey, model: ModelKey, lengths: Vec<u32> },
    Planned { now_ns: u64, next: Next, plan: Plan, dropped: Vec<Dropped> },
}

/// Plays one scenario to its end, when nothing waits any more.
///
/// # Panics
/// When the planner does anything but what it must.
pub fn play(choices: &mut dyn Choose) -> Vec<Happening> {
    let bounds = choose_bounds(choices);
    let (mut planner, mut shadow) = (Planner::new(bounds), Shadow::new(bounds));
    let mut stage = Stage { lanes: choices.within(1..=4) as usize, ..Stage::default() };
    for index in 0..bounds.models_max as u32 {
        let (key, offer) = (ModelKey { index, generation: 0 }, choose_offer(choices));
        planner.offer(key, &offer);
        shadow.offer(key, &offer);
        stage.models.push(key);
    }
    stage.free = (0..bounds.pieces_max as u32).collect();
    for _ in 0..choices.steps() {
        if choices.is_used_up() {
            break;
        }
        match choices.below(12) {
            0..=5 => stage.push(choices, &bounds, &mut planner, &mut shadow),
            6 => {
                let at = choices.below(stage.jobs.len().max(1) as u64) as usize;
                stage.dead.extend(stage.jobs.get(at).map(|(key, _, _)| *key));
            }
            7 if choices.one_in(8) => {
                let at = choices.below(stage.models.len() as u64) as usize;
                planner.withdraw(stage.models[at]);
                shadow.withdraw(stage.models[at]);
                stage.models[at].generation += 1;
                let offer = choose_offer(choices);
                planner.offer(stage.models[at], &offer);
                shadow.offer(stage.models[at], &offer);
            }
            _ => {
                if stage.running.len() == stage.lanes {
                    let lane = choices.below(stage.lanes as u64) as usize;
                    stage.finish(lane);
                }
                stage.next(&mut planner, &mut shadow);
            }
        }
        stage.now_ns += choices.below(60);
    }
    while stage.next(&mut planner, &mut shadow) != Next::Empty {}
    while !stage.running.is_empty() {
        stage.finish(0);
    }
    assert_eq!(stage.held.values().sum::<u32>(), 0, "whatever was pushed has left");
    assert_eq!(stage.free.len(), bounds.pieces_max, "every piece is home");
    assert_eq!((planner.waiting_sequences(), planner.waiting_tokens()), (0, 0));
    stage.happened
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
    /// Sequences of each piece that have not come home.
    held: BTreeMap<u32, u32>,
    /// Those of them that have not left the planner.
    waiting: BTreeMap<u32, u32>,
    lanes: usize,
    /// What executes, at most one for each lane but at the end of the scenario.
    running: Vec<Plan>,
    patience: BTreeMap<(JobKey, ModelKey), Patience>,
    happened: Vec<Happening>,
}

/// How long a waiting job has been passed over.
struct Patience {
    /// Jobs of its model that were before it at worst when it was last served, or came.
    ahead: usize,
    /// Plans of its model since then, without any sequence of its own.
    passed_over: usize,
}

impl Stage {
    fn push(&mut self, choices: &mut dyn Choose, bounds: &Bounds, planner: &mut Planner, shadow: &mut Shadow) {
        if self.free.is_empty() {
            return;
        }
        let index = self.free.swap_remove(choices.below(self.free.len() as u64) as usize);
        if self.jobs.is_empty() || choices.one_in(2) {
            // Workers differ in speed: a job may reach the device well after younger ones.
            let arrived_ns = self.now_ns.saturating_sub(choices.below(100));
            let key = JobKey { slot: choices.within(0..=7), generation: self.jobs.len() as u32 };
            self.jobs.push((key, self.models[choices.below(self.models.len() as u64) as usize], arrived_ns));
        }
        let (job, model, arrived_ns) = self.jobs[choices.below(self.jobs.len() as u64) as usize];
        let lengths: Vec<u32> = (0..choices.within(1..=bounds.piece_sequences_max as u32))
            .map(|_| if choices.one_in(40) { choices.within(0..=300) } else { choices.within(1..=40) })
            .collect();
        let piece = piece(job, model, arrived_ns, &lengths);
        planner.push(index, &piece);
        shadow.push(index, &piece);
        self.held.insert(index, lengths.len() as u32);
        self.waiting.insert(index, lengths.len() as u32);
        self.happened.push(Happening::Pushed { piece: index, job, model, lengths });
        self.follow_patience(shadow, None);
    }

    fn next(&mut self, planner: &mut Planner, shadow: &mut Shadow) -> Next {
        let (mut plan, mut dropped) = (planner.empty_plan(), Vec::new());
        let next = planner.next(self.now_ns, &|job| !self.dead.contains(&job), &mut plan, &mut dropped);
        let prediction = shadow.predict(self.now_ns, &self.dead);
        let now_ns = self.now_ns;
        self.happened.push(Happening::Planned { now_ns, next, plan: plan.clone(), dropped: dropped.clone() });
        shadow.settle(&dropped, &self.dead);
        for entry in &dropped {
            self.leave(entry.piece, entry.sequences);
            self.come_home(entry.piece, entry.sequences);
        }
        match (&next, prediction) {
            (Next::Plan, Prediction::Plan { slot, chosen, anchor }) => {
                let model = shadow.models[slot].as_ref().unwrap();
                assert_eq!(plan.model, model.key, "whose turn it is");
                check_plan(&model.offer, &shadow.bounds, &plan);
                let is_anchor = |placed: &Placement| (placed.piece, placed.sequence) == (anchor.piece, anchor.sequence);
                assert!(plan.placements.iter().any(is_anchor), "the first in order is always placed");
                let served = shadow.jobs_in(slot, &plan);
                shadow.apply(slot, chosen, &anchor, self.now_ns, &plan);
                self.follow_patience(shadow, Some((plan.model, &served)));
                for placement in &plan.placements {
                    self.leave(placement.piece, 1);
                }
                self.running.push(plan);
            }
            (Next::WaitUntil(until_ns), Prediction::WaitUntil(expected_ns)) => {
                assert_eq!(*until_ns, expected_ns);
                assert!(*until_ns > self.now_ns);
                self.now_ns = *until_ns;
            }
            (Next::Empty, Prediction::Empty) => {}
            (next, prediction) => panic!("{next:?} where {prediction:?} was due"),
        }
        assert_eq!(planner.waiting_sequences(), shadow.waiting().count() as u64);
        assert_eq!(planner.waiting_tokens(), shadow.waiting().map(|waiting| u64::from(waiting.length)).sum::<u64>());
        next
    }

    /// A plan in turn sends whoever was first to the end, and at least every second plan of a model is one: so a job is
    /// served after at most twice as many plans of its model, and one, as there were others when it was last served.
    fn follow_patience(&mut self, shadow: &Shadow, planned: Option<(ModelKey, &BTreeSet<JobKey>)>) {
        let mut before = std::mem::take(&mut self.patience);
        for model in shadow.models.iter().flatten() {
            for job in &model.jobs {
                let fresh = Patience { ahead: model.jobs.len() - 1, passed_over: 0 };
                let mut patience = before.remove(&(job.key, model.key)).unwrap_or(fresh);
                if let Some((of, served)) = planned
                    && of == model.key
                {
                    if served.contains(&job.key) {
                        patience = Patience { ahead: model.jobs.len() - 1, passed_over: 0 };
                    } else {
                        patience.passed_over += 1;
                    }
                }
                let Patience { ahead, passed_over } = patience;
                assert!(passed_over <= 2 * ahead + 1, "{:?} waits behind {ahead} and for {passed_over} plans", job.key);
                self.patience.insert((job.key, model.key), patience);
            }
        }
    }

    /// The plan in this lane has been executed.
    fn finish(&mut self, lane: usize) {
        for placement in self.running.swap_remove(lane).placements {
            self.come_home(placement.piece, 1);
        }
    }

    fn leave(&mut self, piece: u32, sequences: u32) {
        let waiting = self.waiting.get_mut(&piece).unwrap();
        *waiting = waiting.checked_sub(sequences).expect("a sequence leaves once");
    }

    fn come_home(&mut self, piece: u32, sequences: u32) {
        let held = self.held.get_mut(&piece).unwrap();
        *held = held.checked_sub(sequences).expect("a sequence comes home once");
        if *held == 0 {
            self.free.push(piece);
        }
    }
}
