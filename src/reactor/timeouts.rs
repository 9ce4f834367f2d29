//! Deadlines of jobs: each its own length, so a heap instead of `deadline`'s lists.
//!
//! A binary heap over job slots that knows where each slot stands, so that a deadline is set and cleared in logarithmic time
//! and nothing stale stays behind: memory is what was taken at start, whatever clients ask for. Without deadlines the heap is
//! empty, and asking it costs a comparison.
//!
//! Invariant: no entry falls due before its parent `(index - 1) / 2`; `places[slots[index]] == index`.

const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub struct Timeouts {
    /// Slots as a heap by the time at which each falls due.
    slots: Vec<u32>,
    /// By slot: where in the heap it is, or [`NONE`].
    places: Vec<u32>,
    /// By slot, in nanoseconds; meaningful while it is in the heap.
    due_ns: Vec<u64>,
}

impl Timeouts {
    pub fn new(count: usize) -> Timeouts {
        Timeouts { slots: Vec::with_capacity(count), places: vec![NONE; count], due_ns: vec![0; count] }
    }

    /// Gives `slot`, which has none, a deadline.
    pub fn set(&mut self, slot: u32, due_ns: u64) {
        debug_assert_eq!(self.places[slot as usize], NONE, "a job has one deadline");
        self.due_ns[slot as usize] = due_ns;
        self.slots.push(slot);
        self.rise(self.slots.len() - 1);
    }

    /// Forgets the slot's deadline, if it has one.
    pub fn clear(&mut self, slot: u32) {
        let place = std::mem::replace(&mut self.places[slot as usize], NONE);
        if place == NONE {
            return;
        }
        self.slots.swap_remove(place as usize);
        if (place as usize) < self.slots.len() {
            // What was last may belong above or below here.
            self.rise(place as usize);
            self.sink(place as usize);
        }
    }

    /// Takes out one slot whose time is up.
    pub fn pop_due(&mut self, now_ns: u64) -> Option<u32> {
        let first = *self.slots.first()?;
        if self.due_ns[first as usize] > now_ns {
            return None;
        }
        self.clear(first);
        Some(first)
    }

    /// When the next deadline falls due.
    pub fn next_ns(&self) -> Option<u64> {
        self.slots.first().map(|first| self.due_ns[*first as usize])
    }

    fn due_at(&self, place: usize) -> u64 {
        self.due_ns[self.slots[place] as usize]
    }

    fn rise(&mut self, mut place: usize) {
        while place > 0 && self.due_at((place - 1) / 2) > self.due_at(place) {
            self.slots.swap(place, (place - 1) / 2);
            self.settle(place);
            place = (place - 1) / 2;
        }
        self.settle(place);
    }

    fn sink(&mut self, mut place: usize) {
        loop {
            let children = [2 * place + 1, 2 * place + 2].into_iter().filter(|child| *child < self.slots.len());
            match children.min_by_key(|child| self.due_at(*child)) {
                Some(child) if self.due_at(child) < self.due_at(place) => {
                    self.slots.swap(place, child);
                    self.settle(place);
                    place = child;
                }
                Some(_) | None => return self.settle(place),
            }
        }
    }

    fn settle(&mut self, place: usize) {
        self.places[self.slots[place] as usize] = place as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_agrees_with_a_plain_table() {
        let mut timeouts = Timeouts::new(32);
        let mut table = [None::<u64>; 32];
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for now_ns in 0..50_000 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let slot = (state % 32) as u32;
            if table[slot as usize].take().is_some() || (state >> 16).is_multiple_of(4) {
                timeouts.clear(slot);
            } else {
                let due_ns = now_ns + (state >> 20) % 200;
                timeouts.set(slot, due_ns);
                table[slot as usize] = Some(due_ns);
            }
            assert_eq!(timeouts.next_ns(), table.iter().flatten().min().copied());
            while let Some(due) = timeouts.pop_due(now_ns) {
                assert!(table[due as usize].take().is_some_and(|due_ns| due_ns <= now_ns));
            }
            assert!(table.iter().flatten().all(|due_ns| *due_ns > now_ns));
            assert_eq!(timeouts.slots.len(), table.iter().flatten().count());
        }
    }
}
