//! Doubly linked lists through fixed arrays: queues that a middle element leaves in constant time, without allocation.
//!
//! [`Links`] holds one pair of links for each index of some array; a [`Chain`] names the first and last index of one
//! list. Many chains share one `Links`. Invariant: an index is in at most one chain of its `Links`; putting it in
//! twice, or taking it out of a chain it is not in, is a broken invariant and panics.

/// No index: the end of a chain.
pub(super) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Link {
    previous: u32,
    next: u32,
}

/// One list. Empty exactly when `first` is [`NONE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chain {
    pub(super) first: u32,
    pub(super) last: u32,
}

impl Chain {
    pub(super) const EMPTY: Chain = Chain { first: NONE, last: NONE };

    pub(super) fn is_empty(self) -> bool {
        self.first == NONE
    }
}

/// The links of every index. An index outside all chains points at itself.
#[derive(Debug)]
pub(super) struct Links(Vec<Link>);

impl Links {
    pub(super) fn new(count: usize) -> Links {
        Links((0..count as u32).map(|index| Link { previous: index, next: index }).collect())
    }

    pub(super) fn next(&self, index: u32) -> u32 {
        self.0[index as usize].next
    }

    pub(super) fn previous(&self, index: u32) -> u32 {
        self.0[index as usize].previous
    }

    pub(super) fn is_linked(&self, index: u32) -> bool {
        self.next(index) != index
    }

    pub(super) fn push_last(&mut self, chain: &mut Chain, index: u32) {
        self.insert_after(chain, chain.last, index);
    }

    /// Puts `index` behind `previous`, or first where `previous` is [`NONE`].
    pub(super) fn insert_after(&mut self, chain: &mut Chain, previous: u32, index: u32) {
        assert!(!self.is_linked(index), "index {index} is in a chain already");
        let next = if previous == NONE { chain.first } else { self.next(previous) };
        self.0[index as usize] = Link { previous, next };
        *self.next_of(chain, previous) = index;
        *self.previous_of(chain, next) = index;
    }

    pub(super) fn remove(&mut self, chain: &mut Chain, index: u32) {
        assert!(self.is_linked(index), "index {index} is in no chain");
        let Link { previous, next } = self.0[index as usize];
        *self.next_of(chain, previous) = next;
        *self.previous_of(chain, next) = previous;
        self.0[index as usize] = Link { previous: index, next: index };
    }

    /// What says who comes after `index`: its own link, or the chain's `first`.
    fn next_of<'a>(&'a mut self, chain: &'a mut Chain, index: u32) -> &'a mut u32 {
        if index == NONE { &mut chain.first } else { &mut self.0[index as usize].next }
    }

    /// What says who comes before `index`: its own link, or the chain's `last`.
    fn previous_of<'a>(&'a mut self, chain: &'a mut Chain, index: u32) -> &'a mut u32 {
        if index == NONE { &mut chain.last } else { &mut self.0[index as usize].previous }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(links: &Links, chain: Chain) -> Vec<u32> {
        let some = |index: u32| (index != NONE).then_some(index);
        let forward: Vec<u32> = std::iter::successors(some(chain.first), |&at| some(links.next(at))).collect();
        let mut backward: Vec<u32> = std::iter::successors(some(chain.last), |&at| some(links.previous(at))).collect();
        backward.reverse();
        assert_eq!(forward, backward);
        forward
    }

    #[test]
    fn leaves_from_front_middle_and_end() {
        let mut links = Links::new(5);
        let mut chain = Chain::EMPTY;
        for index in [3, 1, 4, 0] {
            links.push_last(&mut chain, index);
        }
        links.insert_after(&mut chain, NONE, 2);
        assert_eq!(contents(&links, chain), [2, 3, 1, 4, 0]);
        for (index, rest) in [(1, vec![2, 3, 4, 0]), (2, vec![3, 4, 0]), (0, vec![3, 4]), (3, vec![4]), (4, vec![])] {
            links.remove(&mut chain, index);
            assert!(!links.is_linked(index));
            assert_eq!(contents(&links, chain), rest);
        }
        assert!(chain.is_empty());
    }

    #[test]
    fn chains_share_links() {
        let mut links = Links::new(4);
        let (mut even, mut odd) = (Chain::EMPTY, Chain::EMPTY);
        for index in 0..4 {
            links.push_last(if index % 2 == 0 { &mut even } else { &mut odd }, index);
        }
        links.remove(&mut even, 2);
        links.push_last(&mut odd, 2);
        assert_eq!((contents(&links, even), contents(&links, odd)), (vec![0], vec![1, 3, 2]));
    }

    #[test]
    #[should_panic(expected = "in a chain already")]
    fn an_index_is_in_one_chain() {
        let mut links = Links::new(2);
        let mut chain = Chain::EMPTY;
        links.push_last(&mut chain, 1);
        links.push_last(&mut chain, 1);
    }
}
