//! Deadlines of connections: one list per kind, each with one duration, so that setting, clearing and finding the next are
//! all constant time.
//!
//! Every deadline of a kind lies the same distance ahead when it is set, so a list in order of setting is in order of
//! falling due. A connection has at most one deadline at a time.

/// What a connection is given time for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Between two requests.
    Idle,
    /// From the first byte of a head to its end.
    Head,
    /// From a head to its body's end.
    Body,
    /// To take some more of an answer.
    Write,
    /// To read an answer after which the connection closes.
    Linger,
    /// To say something, for who comes while the server drains.
    Parting,
}

const KINDS: usize = 6;
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    previous: u32,
    next: u32,
    due_ns: u64,
    kind: Option<Kind>,
}

#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
    duration_ns: u64,
}

#[derive(Debug)]
pub struct Deadlines {
    nodes: Vec<Node>,
    lists: [List; KINDS],
}

impl Deadlines {
    /// `durations_ns` in the order of [`Kind`], and the last one's.
    pub fn new(connections_max: usize, durations_ns: [u64; KINDS - 1], parting_ns: u64) -> Deadlines {
        let [idle, head, body, write, linger] = durations_ns;
        let durations_ns = [idle, head, body, write, linger, parting_ns];
        Deadlines {
            nodes: vec![Node { previous: NONE, next: NONE, due_ns: 0, kind: None }; connections_max],
            lists: durations_ns.map(|duration_ns| List { first: NONE, last: NONE, duration_ns }),
        }
    }

    /// Gives `connection` the kind's time from now on, instead of any deadline it had.
    pub fn set(&mut self, connection: u32, kind: Kind, now_ns: u64) {
        self.clear(connection);
        let list = &mut self.lists[kind as usize];
        let due_ns = now_ns + list.duration_ns;
        self.nodes[connection as usize] = Node { previous: list.last, next: NONE, due_ns, kind: Some(kind) };
        match list.last {
            NONE => list.first = connection,
            last => self.nodes[last as usize].next = connection,
        }
        list.last = connection;
    }

    /// Sets a deadline of this kind unless one of this kind runs already.
    pub fn start(&mut self, connection: u32, kind: Kind, now_ns: u64) {
        if self.nodes[connection as usize].kind != Some(kind) {
            self.set(connection, kind, now_ns);
        }
    }

    pub fn clear(&mut self, connection: u32) {
        let Node { previous, next, kind, .. } = self.nodes[connection as usize];
        let Some(kind) = kind else { return };
        let list = &mut self.lists[kind as usize];
        match previous {
            NONE => list.first = next,
            previous => self.nodes[previous as usize].next = next,
        }
        match next {
            NONE => list.last = previous,
            next => self.nodes[next as usize].previous = previous,
        }
        self.nodes[connection as usize].kind = None;
    }

    /// Takes out one connection whose time is up.
    pub fn pop_due(&mut self, now_ns: u64) -> Option<(u32, Kind)> {
        let due = self.firsts().find(|first| self.nodes[*first as usize].due_ns <= now_ns)?;
        let kind = self.nodes[due as usize].kind.expect("a listed node has a kind");
        self.clear(due);
        Some((due, kind))
    }

    /// What the connection is being given time for, if for anything.
    pub fn kind(&self, connection: u32) -> Option<Kind> {
        self.nodes[connection as usize].kind
    }

    /// How long ago the connection's deadline was set, if one runs.
    pub fn elapsed_ns(&self, connection: u32, now_ns: u64) -> Option<u64> {
        let Node { due_ns, kind, .. } = self.nodes[connection as usize];
        Some((now_ns + self.lists[kind? as usize].duration_ns).saturating_sub(due_ns))
    }

    /// When the next deadline falls due.
    pub fn next_ns(&self) -> Option<u64> {
        self.firsts().map(|first| self.nodes[first as usize].due_ns).min()
    }

    fn firsts(&self) -> impl Iterator<Item = u32> + '_ {
        self.lists.iter().map(|list| list.first).filter(|first| *first != NONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_fall_due_in_order_of_time_whatever_their_kind() {
        let mut deadlines = Deadlines::new(8, [100, 10, 50, 30, 5], 3);
        deadlines.set(0, Kind::Idle, 0);
        deadlines.set(1, Kind::Head, 1);
        deadlines.set(2, Kind::Head, 2);
        deadlines.set(3, Kind::Body, 3);
        assert_eq!(deadlines.next_ns(), Some(11));
        assert_eq!(deadlines.pop_due(10), None);
        assert_eq!(deadlines.pop_due(12), Some((1, Kind::Head)));
        assert_eq!(deadlines.pop_due(12), Some((2, Kind::Head)));
        assert_eq!(deadlines.pop_due(12), None);
        deadlines.set(3, Kind::Write, 20);
        assert_eq!(deadlines.next_ns(), Some(50), "a new deadline replaces the old one");
        deadlines.start(3, Kind::Write, 40);
        assert_eq!(deadlines.next_ns(), Some(50), "a running one is not started anew");
        assert_eq!((deadlines.elapsed_ns(3, 45), deadlines.elapsed_ns(4, 45)), (Some(25), None));
        deadlines.clear(3);
        deadlines.clear(3);
        assert_eq!(deadlines.pop_due(100), Some((0, Kind::Idle)));
        assert_eq!(deadlines.next_ns(), None);
    }

    #[test]
    fn lists_agree_with_a_plain_table() {
        let durations = [40, 10, 20, 30, 5, 3];
        let kinds = [Kind::Idle, Kind::Head, Kind::Body, Kind::Write, Kind::Linger, Kind::Parting];
        let mut deadlines = Deadlines::new(16, [40, 10, 20, 30, 5], 3);
        let mut table = [None::<u64>; 16];
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for now_ns in 0..20_000 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let connection = (state % 16) as u32;
            let kind = kinds[(state >> 8) as usize % kinds.len()];
            if (state >> 16).is_multiple_of(4) {
                deadlines.clear(connection);
                table[connection as usize] = None;
            } else {
                deadlines.set(connection, kind, now_ns);
                table[connection as usize] = Some(now_ns + durations[kind as usize]);
            }
            while let Some((due, _)) = deadlines.pop_due(now_ns) {
                assert!(table[due as usize].take().is_some_and(|due_ns| due_ns <= now_ns));
            }
            assert!(table.iter().flatten().all(|due_ns| *due_ns > now_ns));
            assert_eq!(deadlines.next_ns(), table.iter().flatten().min().copied());
        }
    }
}
