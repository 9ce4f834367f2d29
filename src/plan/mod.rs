//! Which waiting sequences go together, where, and in which bucket. Knows no clock, no thread and no device: the same
//! calls give the same plans, and nothing is allocated after the models are offered.
//!
//! **When.** [`Planner::next`] is called when a lane is free and plans at once if anything waits; batches grow by
//! themselves while lanes are busy. With a linger time, a model whose largest bucket is not full waits until its oldest
//! job is that old, counted from the job's arrival.
//!
//! **Who.** The model that has had the fewest tokens (a fixed price for each plan included) goes first; one that was
//! idle starts level with the others. Within a model, deficit round robin over jobs, the quantum being the longest
//! sequence; who has used its turn, or was first in a plan, goes to the end. So a lone text is in the next plan or the
//! one after, whatever another job has waiting. Jobs older than the age bound go before fairness, the oldest first, in
//! every second plan at most, of all and of its model's, lest a large old job become a wall itself. Within a job order
//! means nothing: it is answered as a whole.
//!
//! **How.** A window of sequences in that order goes to `pack`, which always places the first of it.
//!
//! Invariant: every pushed sequence leaves exactly once, in a plan or in `dropped`. A call of `next` costs what it
//! places and drops, plus the window, plus the number of models; never what waits.

mod chain;
#[doc(hidden)]
pub mod fuzzing;
mod jobs;
mod pack;
#[cfg(test)]
mod tests;

use self::chain::{Chain, Links, NONE};
use self::jobs::Jobs;
use self::pack::{PLAN_TOKENS, Packer, Shape};
use crate::device::{Offer, Placement, Plan};
use crate::job::{JobKey, ModelKey, Piece};

/// What limits plans, and how much memory the planner takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Sequences in one plan at most; `None`: the bucket decides.
    pub sequences_max: Option<u32>,
    /// Useful tokens in one plan at most; `None`: the bucket decides. A longer sequence is dropped as [`Cause::Unfit`].
    pub tokens_max: Option<u32>,
    /// How long a job may wait for company, from its arrival. 0: never.
    pub linger_ns: u64,
    /// A job that arrived longer ago goes before fairness.
    pub age_ns_max: u64,
    /// Pieces that can wait: their indexes are below this.
    pub pieces_max: usize,
    /// Sequences in one piece at most.
    pub piece_sequences_max: usize,
    /// Models that can be offered at the same time.
    pub models_max: usize,
}

/// What [`Planner::next`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The plan is filled in; its sequences have left the planner.
    Plan,
    /// Something waits for company, at most until this time in nanoseconds.
    WaitUntil(u64),
    /// Nothing waits.
    Empty,
}

/// Why a sequence left without a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Its job is answered or cancelled.
    Dead,
    /// It is empty, or longer than any bucket or the token bound allows. Refused upstream; here so that nothing is
    /// lost.
    Unfit,
    /// Its model is not offered, or no longer.
    Withdrawn,
}

/// Sequences of one piece that left without a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped {
    pub piece: u32,
    pub sequences: u32,
    pub cause: Cause,
}

/// One offered model and what waits for it.
#[derive(Debug)]
struct Queue {
    key: ModelKey,
    shape: Shape,
    /// Jobs in the order of their turns.
    turns: Chain,
    /// The same jobs, the oldest first.
    ages: Chain,
    sequences: u64,
    tokens: u64,
    /// Tokens planned, and [`PLAN_TOKENS`] for each plan, since some common start.
    account: u64,
    /// Whether its last plan put the aged before the others.
    aged_last: bool,
}

/// See the module's head.
#[derive(Debug)]
pub struct Planner {
    bounds: Bounds,
    queues: Vec<Option<Queue>>,
    /// The account of the model that was chosen last: where a model that was idle starts.
    level: u64,
    /// Whether the last plan's model was chosen by age.
    aged_last: bool,

    jobs: Jobs,
    turns: Links,
    ages: Links,

    /// By node, which is `piece × piece_sequences_max + sequence`: tokens, 0 exactly while the sequence is not waiting.
    lengths: Vec<u32>,
    /// By node: the order within a job.
    order: Links,
    /// By piece: the entry of its job, meaningful while one of its sequences waits.
    owners: Vec<u32>,

    /// Left without a plan since the last [`Planner::next`].
    pending: Vec<Dropped>,

    packer: Packer,
    /// Counts the gatherings; a job whose `reached` is equal belongs to the present one.
    gathering: u64,
    /// The jobs of the present gathering, in the order in which they were reached.
    reached: Vec<u32>,
    /// Those that had more than their turn.
    unfinished: Vec<u32>,
}

/// Which model the next plan is for.
enum Choice {
    /// The model of the oldest job, with its aged jobs before the others if they were not in its last plan.
    Aged(u32),
    Fair(u32),
    WaitUntil(u64),
    Nobody,
}

impl Planner {
    /// Takes all memory but what depends on a model's buckets.
    ///
    /// # Panics
    /// When a bound is zero: the configuration checks them.
    pub fn new(bounds: Bounds) -> Planner {
        assert!(bounds.sequences_max != Some(0) && bounds.tokens_max != Some(0), "a plan must hold something");
        let nodes = bounds.pieces_max * bounds.piece_sequences_max;
        assert!(nodes > 0 && nodes < NONE as usize, "pieces_max × piece_sequences_max is out of range: {nodes}");
        Planner {
            // A job that is due by age is due: it does not linger beyond that.
            bounds: Bounds { linger_ns: bounds.linger_ns.min(bounds.age_ns_max), ..bounds },
            queues: (0..bounds.models_max).map(|_| None).collect(),
            level: 0,
            aged_last: false,
            jobs: Jobs::new(bounds.pieces_max),
            turns: Links::new(bounds.pieces_max),
            ages: Links::new(bounds.pieces_max),
            lengths: vec![0; nodes],
            order: Links::new(nodes),
            owners: vec![NONE; bounds.pieces_max],
            pending: Vec::with_capacity(Planner::dropped_max(&bounds)),
            packer: Packer::default(),
            gathering: 0,
            reached: Vec::with_capacity(bounds.pieces_max),
            unfinished: Vec::with_capacity(bounds.pieces_max),
        }
    }

    /// Entries that one call of [`Planner::next`] adds to `dropped` at most: the unfit sequences of a piece and its
    /// others.
    pub fn dropped_max(bounds: &Bounds) -> usize {
        2 * bounds.pieces_max
    }

    /// A plan with room for the largest of the offered buckets.
    pub fn empty_plan(&self) -> Plan {
        let waiting_max = self.lengths.len();
        let largest = self.queues.iter().flatten().map(|queue| queue.shape.sequences_max()).max().unwrap_or(0);
        Plan { placements: Vec::with_capacity(largest.min(waiting_max)), ..Plan::default() }
    }

    /// Takes a model in. Allocates what its buckets need.
    ///
    /// # Panics
    /// When the model is here already, when there are more than `models_max`, or when a bucket can hold nothing.
    pub fn offer(&mut self, key: ModelKey, offer: &Offer) {
        assert!(self.slot(key).is_none(), "{key:?} is offered twice");
        let slot = self.queues.iter().position(Option::is_none).expect("more models than models_max");
        let shape = Shape::new(offer, &self.bounds);
        self.packer.reserve(&shape, self.lengths.len());
        self.queues[slot] = Some(Queue {
            key,
            shape,
            turns: Chain::EMPTY,
            ages: Chain::EMPTY,
            sequences: 0,
            tokens: 0,
            account: self.level,
            aged_last: false,
        });
        self.checked();
    }

    /// Lets a model go. What waits for it is reported by the next call of [`Planner::next`].
    pub fn withdraw(&mut self, key: ModelKey) {
        let Some(slot) = self.slot(key) else { return };
        let mut pending = std::mem::take(&mut self.pending);
        while !self.queue(slot).turns.is_empty() {
            self.drop_job(self.queue(slot).turns.first, Cause::Withdrawn, &mut pending);
        }
        self.pending = pending;
        self.queues[slot as usize] = None;
        self.checked();
    }

    /// Takes in all sequences of a piece, whose index must not come again before each of them has left.
    ///
    /// # Panics
    /// When the index or the number of sequences is beyond the bounds, or the piece is waiting already.
    pub fn push(&mut self, index: u32, piece: &Piece) {
        let count = piece.sequences();
        assert!((index as usize) < self.bounds.pieces_max, "piece {index} is beyond pieces_max");
        assert!(count <= self.bounds.piece_sequences_max, "piece {index} has {count} sequences");
        match self.slot(piece.model) {
            Some(slot) => self.enqueue(index, piece, slot),
            None => self.pending.push(Dropped { piece: index, sequences: count as u32, cause: Cause::Withdrawn }),
        }
        self.checked();
    }

    /// Makes the next plan, for a lane that is free.
    ///
    /// `plan` is filled in when the answer is [`Next::Plan`]. `dropped` is cleared, then gets what left without a plan
    /// since the last call. `live` says whether a job still wants its answer; only jobs that are reached are asked for.
    pub fn next(
        &mut self,
        now_ns: u64,
        live: &dyn Fn(JobKey) -> bool,
        plan: &mut Plan,
        dropped: &mut Vec<Dropped>,
    ) -> Next {
        dropped.clear();
        dropped.append(&mut self.pending);
        let next = loop {
            let (slot, aged) = match self.choose(now_ns, live, dropped) {
                Choice::Aged(slot) => (slot, true),
                Choice::Fair(slot) => (slot, false),
                Choice::WaitUntil(until_ns) => break Next::WaitUntil(until_ns),
                Choice::Nobody => break Next::Empty,
            };
            // Where the plans between two aged ones go to other models, the others of this one have their turns here.
            let aged_first = aged && !self.queue(slot).aged_last;
            let before_ns = if aged_first { now_ns.saturating_sub(self.bounds.age_ns_max) } else { 0 };
            self.gather(slot, before_ns, live, dropped);
            // With nobody alive the model is empty now, and the choice falls on another.
            if !self.packer.window.is_empty() {
                self.aged_last = aged;
                self.queue_mut(slot).aged_last = aged_first;
                self.commit(slot, plan);
                break Next::Plan;
            }
        };
        self.checked();
        next
    }

    /// Sequences that wait, those of dead jobs included until they are reached.
    pub fn waiting_sequences(&self) -> u64 {
        self.queues.iter().flatten().map(|queue| queue.sequences).sum()
    }

    /// Tokens of the sequences that wait.
    pub fn waiting_tokens(&self) -> u64 {
        self.queues.iter().flatten().map(|queue| queue.tokens).sum()
    }

    fn enqueue(&mut self, index: u32, piece: &Piece, slot: u32) {
        let length_max = self.queue(slot).shape.length_max;
        let mut unfit = 0;
        for sequence in 0..piece.sequences() {
            let length = piece.length(sequence);
            if length == 0 || length > length_max {
                unfit += 1;
                continue;
            }
            let node = self.node(index, sequence as u32);
            assert!(self.lengths[node as usize] == 0, "piece {index} is waiting already");
            let job = self.job(piece, slot);
            self.owners[index as usize] = job;
            self.lengths[node as usize] = length;
            self.order.push_last(&mut self.jobs[job].sequences, node);
            let queue = self.queue_mut(slot);
            queue.sequences += 1;
            queue.tokens += u64::from(length);
        }
        if unfit > 0 {
            self.pending.push(Dropped { piece: index, sequences: unfit, cause: Cause::Unfit });
        }
    }

    /// The entry of the piece's job: the one it has, or a new one at the end of the turns.
    fn job(&mut self, piece: &Piece, slot: u32) -> u32 {
        if let Some(job) = self.jobs.find(piece.job, slot) {
            return job;
        }
        let level = self.level;
        let queue = self.queues[slot as usize].as_mut().expect("the slot is taken");
        if queue.turns.is_empty() {
            queue.account = queue.account.max(level);
        }
        let job = self.jobs.insert(piece.job, slot, piece.arrived_ns, i64::from(queue.shape.length_max));
        self.turns.push_last(&mut queue.turns, job);
        // Jobs come nearly in the order of their arrival, so the place is found near the end.
        let mut older = queue.ages.last;
        while older != NONE && self.jobs[older].arrived_ns > piece.arrived_ns {
            older = self.ages.previous(older);
        }
        self.ages.insert_after(&mut queue.ages, older, job);
        job
    }

    fn choose(&mut self, now_ns: u64, live: &dyn Fn(JobKey) -> bool, dropped: &mut Vec<Dropped>) -> Choice {
        if !self.aged_last
            && let Some(slot) = self.choose_aged(now_ns, live, dropped)
        {
            return Choice::Aged(slot);
        }
        let mut least: Option<(u64, u32)> = None;
        let mut until_ns = u64::MAX;
        for (slot, queue) in self.queues.iter().enumerate() {
            let Some(queue) = queue else { continue };
            if queue.turns.is_empty() {
                continue;
            }
            let due_ns = self.jobs[queue.ages.first].arrived_ns.saturating_add(self.bounds.linger_ns);
            let full = queue.sequences >= queue.shape.full_sequences || queue.tokens >= queue.shape.full_tokens;
            if self.bounds.linger_ns == 0 || full || due_ns <= now_ns {
                let own = (queue.account, slot as u32);
                least = Some(least.map_or(own, |least| least.min(own)));
            } else {
                until_ns = until_ns.min(due_ns);
            }
        }
        match least {
            Some((account, slot)) => {
                self.level = self.level.max(account);
                Choice::Fair(slot)
            }
            None if until_ns < u64::MAX => Choice::WaitUntil(until_ns),
            None => Choice::Nobody,
        }
    }

    /// The model of the oldest job, if that is older than the bound and alive.
    fn choose_aged(&mut self, now_ns: u64, live: &dyn Fn(JobKey) -> bool, dropped: &mut Vec<Dropped>) -> Option<u32> {
        let before_ns = now_ns.saturating_sub(self.bounds.age_ns_max);
        loop {
            let oldest = self.queues.iter().flatten().filter(|queue| !queue.ages.is_empty());
            let job = oldest.map(|queue| queue.ages.first).min_by_key(|&job| self.jobs[job].arrived_ns)?;
            if self.jobs[job].arrived_ns >= before_ns {
                return None;
            }
            if live(self.jobs[job].key) {
                return Some(self.jobs[job].model);
            }
            self.drop_job(job, Cause::Dead, dropped);
        }
    }

    /// Fills the window in fair order, jobs that arrived before `before_ns` first. Drops the dead it meets.
    fn gather(&mut self, slot: u32, before_ns: u64, live: &dyn Fn(JobKey) -> bool, dropped: &mut Vec<Dropped>) {
        self.gathering += 1;
        self.packer.window.clear();
        self.reached.clear();
        self.unfinished.clear();
        let shape = &self.queue(slot).shape;
        let mut space = Space { sequences: shape.window_sequences, tokens: shape.window_tokens };

        let mut at = self.queue(slot).ages.first;
        while at != NONE && self.jobs[at].arrived_ns < before_ns && !space.is_used_up() {
            let job = at;
            at = self.ages.next(job);
            if self.reach(job, live, dropped) {
                self.take(job, i64::MAX, &mut space);
            }
        }
        // The first turn of each, then further ones of those that have more.
        let mut at = self.queue(slot).turns.first;
        while at != NONE && !space.is_used_up() {
            let job = at;
            at = self.turns.next(job);
            if self.reach(job, live, dropped) {
                self.take(job, self.jobs[job].balance, &mut space);
                if self.jobs[job].cursor != NONE {
                    self.unfinished.push(job);
                }
            }
        }
        let quantum = i64::from(self.queue(slot).shape.length_max);
        let mut unfinished = std::mem::take(&mut self.unfinished);
        while !unfinished.is_empty() && !space.is_used_up() {
            unfinished.retain(|&job| {
                self.take(job, self.jobs[job].allowance + quantum, &mut space);
                self.jobs[job].cursor != NONE
            });
        }
        self.unfinished = unfinished;
    }

    /// Whether the job is alive; if not, it is gone. Asks once in a gathering.
    fn reach(&mut self, job: u32, live: &dyn Fn(JobKey) -> bool, dropped: &mut Vec<Dropped>) -> bool {
        if self.jobs[job].reached == self.gathering {
            return true;
        }
        if !live(self.jobs[job].key) {
            self.drop_job(job, Cause::Dead, dropped);
            return false;
        }
        self.reached.push(job);
        let gathering = self.gathering;
        let entry = &mut self.jobs[job];
        (entry.reached, entry.cursor) = (gathering, entry.sequences.first);
        true
    }

    /// Gathers from a job as long as its allowance, in tokens, is not used up. What its last sequence takes beyond that
    /// is missing from its next turn.
    fn take(&mut self, job: u32, mut allowance: i64, space: &mut Space) {
        let shape = &self.queues[self.jobs[job].model as usize].as_ref().expect("the job's model is here").shape;
        let mut node = self.jobs[job].cursor;
        while node != NONE && allowance > 0 && !space.is_used_up() {
            let length = self.lengths[node as usize];
            self.packer.window.push(shape.candidate(node, length));
            allowance -= i64::from(length);
            space.sequences -= 1;
            space.tokens = space.tokens.saturating_sub(u64::from(length));
            node = self.order.next(node);
        }
        let entry = &mut self.jobs[job];
        (entry.cursor, entry.allowance) = (node, allowance);
    }

    /// Turns the window into a plan: what it places leaves, and who had their turn go to the end.
    fn commit(&mut self, slot: u32, plan: &mut Plan) {
        let queue = self.queues[slot as usize].as_mut().expect("the slot is taken");
        let (bucket, tokens) = self.packer.choose(&queue.shape);
        let per_piece = self.bounds.piece_sequences_max as u32;
        (plan.model, plan.bucket, plan.tokens) = (queue.key, bucket, tokens);
        plan.placements.clear();
        let first = self.owners[(self.packer.window[0].node / per_piece) as usize];
        for spot in &self.packer.spots {
            let node = self.packer.window[spot.candidate as usize].node;
            let (piece, sequence) = (node / per_piece, node % per_piece);
            let length = std::mem::take(&mut self.lengths[node as usize]);
            let job = &mut self.jobs[self.owners[piece as usize]];
            self.order.remove(&mut job.sequences, node);
            job.balance -= i64::from(length);
            plan.placements.push(Placement { piece, sequence, row: spot.row, offset: spot.offset, length });
        }
        queue.sequences -= self.packer.spots.len() as u64;
        queue.tokens -= u64::from(tokens);
        queue.account += u64::from(tokens) + PLAN_TOKENS;
        let quantum = i64::from(queue.shape.length_max);
        for position in 0..self.reached.len() {
            let job = self.reached[position];
            if self.jobs[job].sequences.is_empty() {
                self.retire(job);
            } else if self.jobs[job].balance <= 0 || job == first {
                // Further turns that a job had because nobody else wanted them are not held against it.
                self.jobs[job].balance = (self.jobs[job].balance - 1).rem_euclid(quantum) + 1;
                let queue = self.queues[slot as usize].as_mut().expect("the slot is taken");
                self.turns.remove(&mut queue.turns, job);
                self.turns.push_last(&mut queue.turns, job);
            }
        }
    }

    /// Takes a job's sequences out without a plan, and the job with them.
    fn drop_job(&mut self, job: u32, cause: Cause, dropped: &mut Vec<Dropped>) {
        let slot = self.jobs[job].model as usize;
        let queue = self.queues[slot].as_mut().expect("the job's model is here");
        // The job's pieces lie one after another in its order, so each has one entry here.
        while !self.jobs[job].sequences.is_empty() {
            let node = self.jobs[job].sequences.first;
            self.order.remove(&mut self.jobs[job].sequences, node);
            queue.sequences -= 1;
            queue.tokens -= u64::from(std::mem::take(&mut self.lengths[node as usize]));
            let piece = node / self.bounds.piece_sequences_max as u32;
            match dropped.last_mut() {
                Some(last) if last.piece == piece && last.cause == cause => last.sequences += 1,
                Some(_) | None => dropped.push(Dropped { piece, sequences: 1, cause }),
            }
        }
        self.retire(job);
    }

    /// Forgets a job that has nothing waiting any more.
    fn retire(&mut self, job: u32) {
        let queue = self.queues[self.jobs[job].model as usize].as_mut().expect("the job's model is here");
        self.turns.remove(&mut queue.turns, job);
        self.ages.remove(&mut queue.ages, job);
        self.jobs.remove(job);
    }

    fn slot(&self, key: ModelKey) -> Option<u32> {
        let is_it = |queue: &Option<Queue>| queue.as_ref().is_some_and(|queue| queue.key == key);
        self.queues.iter().position(is_it).map(|slot| slot as u32)
    }

    fn queue(&self, slot: u32) -> &Queue {
        self.queues[slot as usize].as_ref().expect("the slot is taken")
    }

    fn queue_mut(&mut self, slot: u32) -> &mut Queue {
        self.queues[slot as usize].as_mut().expect("the slot is taken")
    }

    fn node(&self, piece: u32, sequence: u32) -> u32 {
        piece * self.bounds.piece_sequences_max as u32 + sequence
    }

    /// At the end of each public step, where debug assertions are on: the check costs what waits.
    fn checked(&self) {
        if cfg!(debug_assertions) {
            self.check_invariants();
        }
    }

    /// # Panics
    /// When an invariant is broken.
    pub fn check_invariants(&self) {
        let mut nodes = 0;
        for (slot, queue) in self.queues.iter().enumerate() {
            let Some(queue) = queue else { continue };
            let (mut sequences, mut tokens, mut jobs) = (0, 0, 0);
            let mut at = queue.turns.first;
            while at != NONE {
                let job = &self.jobs[at];
                assert_eq!(job.model as usize, slot, "a job is in its own model's turns");
                assert!((1..=i64::from(queue.shape.length_max)).contains(&job.balance), "a turn is within one quantum");
                assert!(!job.sequences.is_empty(), "a job here has something waiting");
                let mut node = job.sequences.first;
                while node != NONE {
                    let piece = node as usize / self.bounds.piece_sequences_max;
                    assert_eq!(self.owners[piece], at, "a sequence waits in its piece's job");
                    assert!(self.lengths[node as usize] > 0, "a waiting sequence has its length");
                    sequences += 1;
                    tokens += u64::from(self.lengths[node as usize]);
                    node = self.order.next(node);
                }
                jobs += 1;
                at = self.turns.next(at);
            }
            assert_eq!((sequences, tokens), (queue.sequences, queue.tokens), "the sums are those of what waits");
            self.check_ages(queue, jobs);
            nodes += sequences;
        }
        let waiting = self.lengths.iter().filter(|&&length| length > 0).count() as u64;
        assert_eq!(nodes, waiting, "whatever waits waits in some job");
    }

    fn check_ages(&self, queue: &Queue, jobs: usize) {
        let (mut count, mut arrived_ns) = (0, 0);
        let mut at = queue.ages.first;
        while at != NONE {
            assert!(
                self.turns.is_linked(at) && self.jobs[at].arrived_ns >= arrived_ns,
                "jobs by age, the oldest first"
            );
            arrived_ns = self.jobs[at].arrived_ns;
            count += 1;
            at = self.ages.next(at);
        }
        assert_eq!(count, jobs, "the same jobs by age as by turn");
    }
}

/// What is left of the window.
struct Space {
    sequences: usize,
    tokens: u64,
}

impl Space {
    fn is_used_up(&self) -> bool {
        self.sequences == 0 || self.tokens == 0
    }
}
