//! What happened, step by step: a hash of all of it, and the last of it in words.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::client::Did;
use super::world::{Actor, Shelled};

/// Steps kept for people; all of them where one seed is looked at.
const TAIL: usize = 60;

#[derive(Clone, Copy, Debug, Hash)]
pub enum Step {
    ReactorWaits(Option<u64>),
    Reactor {
        events: usize,
        jobs: usize,
    },
    Shell(Actor, Shelled),
    Completed(usize),
    /// What a client did, and the last answer that it has.
    Client(usize, Did, Option<(u16, u64)>),
    Stop,
    Rest,
}

#[derive(Clone, Debug)]
pub struct Trace {
    hasher: DefaultHasher,
    steps: u64,
    tail_max: usize,
    tail: VecDeque<(u64, u64, Step)>,
}

impl Trace {
    pub fn new(keeps_all: bool) -> Trace {
        let tail_max = if keeps_all { usize::MAX } else { TAIL };
        Trace { hasher: DefaultHasher::new(), steps: 0, tail_max, tail: VecDeque::new() }
    }

    pub fn add(&mut self, step: Step, now_ns: u64) {
        (step, now_ns).hash(&mut self.hasher);
        self.steps += 1;
        if self.tail.len() == self.tail_max {
            self.tail.pop_front();
        }
        self.tail.push_back((self.steps, now_ns, step));
    }

    pub fn steps(&self) -> u64 {
        self.steps
    }

    pub fn hash(&self) -> u64 {
        self.hasher.finish()
    }

    pub fn in_words(&self) -> String {
        let lines = self
            .tail
            .iter()
            .map(|(number, now_ns, step)| format!("{number:>8} {:>14.3} µs  {step:?}\n", *now_ns as f64 / 1e3));
        lines.collect()
    }
}
