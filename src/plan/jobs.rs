//! The jobs that have something waiting, found by name in constant time, in memory taken once.
//!
//! An entry lives from the first sequence that a job has waiting to its last; a job whose pieces arrive one by one may
//! come and go several times. Names are looked up in a table of chains, because the planner is told neither how many
//! job slots there are nor how many generations of one slot can still be waiting.
//!
//! Invariant: an entry is either free or under the one name it has; entries never exceed the pieces that can wait.

use super::chain::{Chain, NONE};
use crate::job::JobKey;

/// One job's waiting sequences of one model.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) key: JobKey,
    /// Slot of its model in the planner.
    pub(super) model: u32,
    /// When the job arrived: the same for all its pieces, so its age orders it among jobs.
    pub(super) arrived_ns: u64,
    /// Its waiting sequences in the order in which they were pushed.
    pub(super) sequences: Chain,
    /// Tokens left of its turn, 1 to the model's quantum between two plans.
    pub(super) balance: i64,
    /// The plan that last reached this job; `cursor` belongs to that plan.
    pub(super) reached: u64,
    /// The first of its sequences that the plan in the making has not gathered.
    pub(super) cursor: u32,
    /// What that plan's gathering left of its turn; the last sequence may have gone beyond it.
    pub(super) allowance: i64,
    /// The next entry with the same hash, or the next free one.
    next: u32,
}

impl Job {
    fn new(key: JobKey, model: u32, arrived_ns: u64, balance: i64, next: u32) -> Job {
        let (sequences, cursor) = (Chain::EMPTY, NONE);
        Job { key, model, arrived_ns, sequences, balance, reached: 0, cursor, allowance: 0, next }
    }
}

#[derive(Debug)]
pub(super) struct Jobs {
    entries: Vec<Job>,
    free: u32,
    /// First entry of each hash. A power of two long.
    heads: Vec<u32>,
}

impl Jobs {
    pub(super) fn new(count: usize) -> Jobs {
        let following = |index: u32| if (index as usize) + 1 < count { index + 1 } else { NONE };
        let entries =
            (0..count as u32).map(|index| Job::new(JobKey::default(), NONE, 0, 0, following(index))).collect();
        Jobs { entries, free: if count > 0 { 0 } else { NONE }, heads: vec![NONE; count.max(1).next_power_of_two()] }
    }

    pub(super) fn find(&self, key: JobKey, model: u32) -> Option<u32> {
        let mut at = self.heads[self.hash(key)];
        while at != NONE {
            let job = &self[at];
            if job.key == key && job.model == model {
                return Some(at);
            }
            at = job.next;
        }
        None
    }

    /// A new entry for a job that has none.
    pub(super) fn insert(&mut self, key: JobKey, model: u32, arrived_ns: u64, balance: i64) -> u32 {
        let index = self.free;
        assert!(index != NONE, "more jobs wait than pieces");
        let hash = self.hash(key);
        self.free = self[index].next;
        let next = std::mem::replace(&mut self.heads[hash], index);
        self[index] = Job::new(key, model, arrived_ns, balance, next);
        index
    }

    /// Frees an entry whose sequences have all left.
    pub(super) fn remove(&mut self, index: u32) {
        let hash = self.hash(self[index].key);
        let after = self[index].next;
        if self.heads[hash] == index {
            self.heads[hash] = after;
        } else {
            let mut at = self.heads[hash];
            while self[at].next != index {
                at = self[at].next;
            }
            self[at].next = after;
        }
        let free = std::mem::replace(&mut self.free, index);
        let job = &mut self[index];
        (job.model, job.next) = (NONE, free);
    }

    fn hash(&self, key: JobKey) -> usize {
        // Slots are dense, so the table spreads them evenly by itself; generations of one slot are told apart by the
        // name.
        key.slot as usize & (self.heads.len() - 1)
    }
}

impl std::ops::Index<u32> for Jobs {
    type Output = Job;

    fn index(&self, index: u32) -> &Job {
        &self.entries[index as usize]
    }
}

impl std::ops::IndexMut<u32> for Jobs {
    fn index_mut(&mut self, index: u32) -> &mut Job {
        &mut self.entries[index as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_by_whole_name_and_reuses_entries() {
        let mut jobs = Jobs::new(4);
        let key = |slot, generation| JobKey { slot, generation };
        // Slots 1, 5 and two generations of 1 share a hash.
        let names = [key(1, 0), key(5, 0), key(1, 1), key(2, 0)];
        let entries = names.map(|name| jobs.insert(name, 0, 0, 1));
        for (name, entry) in names.iter().zip(entries) {
            assert_eq!(jobs.find(*name, 0), Some(entry));
            assert_eq!(jobs.find(*name, 1), None);
        }
        for removed in [1, 2, 0] {
            jobs.remove(entries[removed]);
            assert_eq!(jobs.find(names[removed], 0), None);
        }
        assert_eq!(jobs.find(names[3], 0), Some(entries[3]));
        assert_eq!(jobs.insert(key(9, 3), 1, 7, 1), entries[0]);
        assert_eq!(jobs.find(key(9, 3), 1), Some(entries[0]));
    }
}
