//! A piece on its way from one thread to another: ring and doorbell, with both ends on one thread, and with a second
//! thread that sends it home again.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use reactrt::job::{Piece, PieceBounds};
use reactrt::ring::{Doorbell, Receiver, Sender, ring};

use super::{Amount, Case, Row, Threads};

const BOUNDS: PieceBounds = PieceBounds { sequences_max: 16, tokens_max: 1024 };
const CAPACITY: usize = 64;

pub fn rows() -> Vec<Row> {
    vec![
        Row::new("ring/one hand-over, one thread", Amount::Items(1), HandOver::new()),
        Echo::row("there and back, both threads awake", Wait::Spin),
        Echo::row("there and back, both threads asleep", Wait::Sleep),
    ]
}

fn piece() -> Option<Box<Piece>> {
    let mut piece = Piece::with_bounds(BOUNDS, 384);
    piece.ids.extend([101, 7592, 102]);
    piece.types.extend([0; 3]);
    piece.ends.push(3);
    Some(Box::new(piece))
}

fn check_piece(piece: &Option<Box<Piece>>) {
    let piece = piece.as_deref().expect("it came home");
    assert_eq!((piece.ids.as_slice(), piece.sequences()), ([101, 7592, 102].as_slice(), 1));
}

#[derive(Debug)]
struct HandOver {
    sender: Sender<Option<Box<Piece>>>,
    receiver: Receiver<Option<Box<Piece>>>,
    piece: Option<Box<Piece>>,
}

impl HandOver {
    fn new() -> HandOver {
        let bell = Arc::new(Doorbell::new(Box::new(|| unreachable!("nobody sleeps"))));
        let (sender, receiver) = ring(CAPACITY, &bell);
        HandOver { sender, receiver, piece: piece() }
    }
}

impl Case for HandOver {
    fn run(&mut self, _slot: usize) -> u64 {
        self.sender.push(self.piece.take());
        self.sender.ring();
        self.piece = self.receiver.pop().expect("it was pushed");
        self.piece.is_some().into()
    }

    fn check(&mut self, returned: u64) {
        assert_eq!(returned, 1);
        assert!(self.receiver.is_empty());
        check_piece(&self.piece);
    }
}

/// How a thread waits for its ring to fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Spin,
    /// As the server's threads do without `spin_us`: the doorbell wakes it.
    Sleep,
}

/// The receiving end of a ring with the doorbell of its owner.
#[derive(Debug)]
struct Inbox {
    /// `None` inside ends the other thread.
    receiver: Receiver<Option<Box<Piece>>>,
    bell: Arc<Doorbell>,
    wait: Wait,
}

impl Inbox {
    fn next(&mut self) -> Option<Box<Piece>> {
        loop {
            if let Some(piece) = self.receiver.pop() {
                return piece;
            }
            match self.wait {
                Wait::Spin => std::hint::spin_loop(),
                Wait::Sleep => {
                    if self.bell.may_sleep(|| !self.receiver.is_empty()) {
                        thread::park();
                        self.bell.awake();
                    }
                }
            }
        }
    }
}

/// A bell that wakes `thread`.
fn bell(thread: thread::Thread) -> Arc<Doorbell> {
    Arc::new(Doorbell::new(Box::new(move || thread.unpark())))
}

#[derive(Debug)]
struct Echo {
    there: Sender<Option<Box<Piece>>>,
    home: Inbox,
    piece: Option<Box<Piece>>,
    other: Option<JoinHandle<()>>,
}

impl Echo {
    fn row(what: &str, wait: Wait) -> Row {
        let own_bell = bell(thread::current());
        let (mut back, receiver) = ring(CAPACITY, &own_bell);
        let home = Inbox { receiver, bell: own_bell, wait };
        // The other thread's bell needs that thread, which needs the ring on its bell: it makes both itself.
        let (give, take) = std::sync::mpsc::channel();
        let other = thread::spawn(move || {
            let bell = bell(thread::current());
            let (there, receiver) = ring(CAPACITY, &bell);
            give.send(there).expect("the row waits for it");
            let mut inbox = Inbox { receiver, bell, wait };
            while let Some(mut piece) = inbox.next() {
                piece.queued_ns += 1;
                back.push(Some(piece));
                back.ring();
            }
        });
        let there = take.recv().expect("the thread sends it first");
        let echo = Echo { there, home, piece: piece(), other: Some(other) };
        Row { threads: Threads::Two, ..Row::new(format!("ring/{what}"), Amount::Items(2), echo) }
    }
}

impl Case for Echo {
    fn run(&mut self, _slot: usize) -> u64 {
        self.there.push(self.piece.take());
        self.there.ring();
        self.piece = self.home.next();
        self.piece.as_ref().map_or(0, |piece| piece.queued_ns)
    }

    fn check(&mut self, returned: u64) {
        let before = returned - 1;
        assert_eq!(self.run(0), before + 2, "the other thread has had it once more");
        check_piece(&self.piece);
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.there.push(None);
        self.there.ring();
        let ended = self.other.take().map(JoinHandle::join);
        // A panic over there has been reported by its own thread.
        drop(ended);
    }
}
