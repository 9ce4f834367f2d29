//! A network without sockets: what clients and the server's kernel would hold, and edges as epoll reports them.
//!
//! It keeps to what Linux promises and to no more: an edge comes when something new has arrived or room has come back, what
//! an event says is looked up when it is fetched, a read is short only when nothing is left, a close with unread bytes resets
//! the peer and may destroy what it has not read yet.

use std::collections::VecDeque;
use std::io;

use reactrt::clock::Clock;
use reactrt::reactor::{ConnectionId, Event, Network};

use super::random::Random;

/// Chances of what seldom happens, once in so many calls.
const INTERRUPTED_ONE_IN: usize = 60;
const ACCEPT_FAILS_ONE_IN: usize = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Unborn,
    /// In the listener's backlog.
    Waiting,
    Accepted(ConnectionId),
    /// The server has closed it, or never took it.
    Closed,
}

/// How the server's side ended, as the client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    Finished,
    Reset,
}

/// Of bytes written by the server: when.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    pub at_ns: u64,
    /// The turn before that one.
    pub turn_before_ns: u64,
    /// The network had no room for them, or for some before them, when they were to be written first.
    pub delayed: bool,
}

/// What is known of bytes by their place in a stream; asked for from its beginning to its end.
#[derive(Debug)]
struct Ledger<T> {
    total: u64,
    /// Up to which byte, and what.
    entries: VecDeque<(u64, T)>,
}

impl<T: Copy> Ledger<T> {
    fn new() -> Ledger<T> {
        Ledger { total: 0, entries: VecDeque::new() }
    }

    fn add(&mut self, bytes: usize, what: T) {
        self.total += bytes as u64;
        self.entries.push_back((self.total, what));
    }

    fn of(&mut self, byte: u64) -> Option<T> {
        while self.entries.front().is_some_and(|(end, _)| *end <= byte) {
            self.entries.pop_front();
        }
        self.entries.front().map(|(_, what)| *what)
    }
}

/// Both directions of one connection.
#[derive(Debug)]
pub struct Wire {
    pub place: Place,
    /// Sent by the client, not read by the server; how much of that there may be.
    inbound: VecDeque<u8>,
    inbound_max: usize,
    /// The client sends no more.
    inbound_ended: bool,
    /// The client reads no more: what is written to it comes back as a reset.
    deaf: bool,
    reset: bool,
    /// Written by the server, not read by the client; how much of that there may be.
    outbound: VecDeque<u8>,
    outbound_max: usize,
    end: Option<End>,
    /// Something has happened since the server last fetched events.
    edge: bool,
    /// The last write found no room for all of it.
    wants_room: bool,
    /// Since when no call to write has written all.
    behind_since_ns: Option<u64>,
    /// How long that had been so when the server closed.
    behind_at_close_ns: u64,
    written: Ledger<Written>,
    /// When the server has read what.
    read: Ledger<u64>,
}

impl Wire {
    pub fn room_to_send(&self) -> usize {
        if self.place == Place::Closed { usize::MAX } else { self.inbound_max - self.inbound.len() }
    }

    pub fn has_unread_by_server(&self) -> bool {
        !self.inbound.is_empty()
    }

    pub fn has_unread_by_client(&self) -> bool {
        !self.outbound.is_empty()
    }

    /// Something to receive: bytes or the end.
    pub fn is_receivable(&self) -> bool {
        self.has_unread_by_client() || self.end.is_some()
    }

    fn event(&self) -> Option<Event> {
        let closed = self.inbound_ended || self.reset;
        let event = Event {
            readable: !self.inbound.is_empty() || closed,
            writable: self.outbound.len() < self.outbound_max || self.reset,
            closed,
        };
        (event.readable || event.writable).then_some(event)
    }

    fn break_off(&mut self, random: &mut Random) {
        self.end = Some(End::Reset);
        // What the client had received and not read is lost with most systems, not with all.
        if !random.one_in(4) {
            self.outbound.clear();
        }
    }
}

#[derive(Debug)]
pub struct SimNetwork {
    /// By client.
    pub wires: Vec<Wire>,
    backlog: VecDeque<usize>,
    listener_edge: bool,
    /// By slot, the client.
    slots: Vec<Option<usize>>,
    random: Random,
    clock: Clock,
    /// The reactor's turn before the one that may be under way.
    pub turn_before_ns: u64,
    /// Whether `accept` may find the process out of descriptors.
    pub runs_out_of_descriptors: bool,
    /// Connections that were closed by the server.
    pub closed: u64,
}

impl SimNetwork {
    pub fn new(clients: usize, slots: usize, mut random: Random, clock: Clock) -> SimNetwork {
        let wires = (0..clients)
            .map(|_| Wire {
                place: Place::Unborn,
                inbound: VecDeque::new(),
                inbound_max: random.pick(&[64, 1_000, 16_000, 200_000]),
                inbound_ended: false,
                deaf: false,
                reset: false,
                outbound: VecDeque::new(),
                outbound_max: random.pick(&[16, 500, 8_000, 400_000]),
                end: None,
                edge: false,
                wants_room: false,
                behind_since_ns: None,
                behind_at_close_ns: 0,
                written: Ledger::new(),
                read: Ledger::new(),
            })
            .collect();
        SimNetwork {
            wires,
            backlog: VecDeque::new(),
            listener_edge: false,
            slots: vec![None; slots],
            random,
            clock,
            turn_before_ns: 0,
            runs_out_of_descriptors: false,
            closed: 0,
        }
    }

    // What clients do.

    pub fn connect(&mut self, client: usize) {
        self.wires[client].place = Place::Waiting;
        self.backlog.push_back(client);
        self.listener_edge = true;
    }

    /// Bytes arrive at the server, as many as there is room for.
    pub fn send(&mut self, client: usize, bytes: &[u8]) -> usize {
        let wire = &mut self.wires[client];
        if wire.place == Place::Closed {
            wire.break_off(&mut self.random);
            return bytes.len();
        }
        let count = bytes.len().min(wire.inbound_max - wire.inbound.len());
        wire.inbound.extend(&bytes[..count]);
        wire.edge = true;
        count
    }

    pub fn finish_sending(&mut self, client: usize) {
        let wire = &mut self.wires[client];
        wire.inbound_ended = true;
        wire.edge = true;
    }

    /// The client's program ends: it has sent all that it will and reads nothing any more.
    pub fn leave(&mut self, client: usize) {
        self.wires[client].deaf = true;
        self.wires[client].outbound.clear();
        self.finish_sending(client);
    }

    pub fn reset(&mut self, client: usize) {
        let wire = &mut self.wires[client];
        wire.reset = true;
        wire.edge = true;
        wire.inbound.clear();
        wire.outbound.clear();
    }

    pub fn receive(&mut self, client: usize, bytes_max: usize) -> (Vec<u8>, Option<End>) {
        let wire = &mut self.wires[client];
        let count = wire.outbound.len().min(bytes_max);
        let bytes: Vec<u8> = wire.outbound.drain(..count).collect();
        // As the kernel does it: not for every byte of room.
        if wire.wants_room && wire.outbound.len() * 3 <= wire.outbound_max * 2 {
            wire.wants_room = false;
            wire.edge = true;
        }
        (bytes, wire.end.filter(|_| wire.outbound.is_empty()))
    }

    /// When the server wrote this byte of what it has written to the client.
    pub fn written(&mut self, client: usize, byte: u64) -> Written {
        self.wires[client].written.of(byte).expect("only what was written is received")
    }

    /// When the server read this byte of what the client has sent, if it has.
    pub fn read_ns(&mut self, client: usize, byte: u64) -> Option<u64> {
        self.wires[client].read.of(byte)
    }

    /// How long the server has not been able to write all that it has for the client, or had not when it closed.
    pub fn behind_ns(&self, client: usize) -> u64 {
        let wire = &self.wires[client];
        match (wire.place, wire.behind_since_ns) {
            (Place::Closed, _) => wire.behind_at_close_ns,
            (Place::Unborn | Place::Waiting | Place::Accepted(_), Some(since_ns)) => self.clock.now_ns() - since_ns,
            (Place::Unborn | Place::Waiting | Place::Accepted(_), None) => 0,
        }
    }

    // What the server's kernel does.

    pub fn has_events(&self) -> bool {
        self.listener_edge || self.wires.iter().any(|wire| wire.edge && matches!(wire.place, Place::Accepted(_)))
    }

    pub fn has_backlog(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Some of what has happened, in any order; and whether the listener has.
    pub fn fetch(&mut self, events: &mut Vec<(ConnectionId, Event)>) -> bool {
        events.clear();
        let all = self.random.one_in(2);
        let start = self.random.below(self.wires.len().max(1));
        for index in 0..self.wires.len() {
            let client = (start + index) % self.wires.len();
            let wire = &mut self.wires[client];
            let Place::Accepted(id) = wire.place else { continue };
            if !wire.edge || !(all || self.random.one_in(2)) {
                continue;
            }
            wire.edge = false;
            events.extend(wire.event().map(|event| (id, event)));
        }
        std::mem::take(&mut self.listener_edge)
    }

    fn of_slot(&mut self, slot: u32) -> &mut Wire {
        let client = self.slots[slot as usize].expect("the reactor names open connections only");
        &mut self.wires[client]
    }
}

impl Network for SimNetwork {
    fn accept(&mut self, id: ConnectionId) -> io::Result<()> {
        if self.backlog.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if self.runs_out_of_descriptors && self.random.one_in(ACCEPT_FAILS_ONE_IN) {
            return Err(io::Error::other("too many open files"));
        }
        let client = self.backlog.pop_front().expect("seen above");
        let wire = &mut self.wires[client];
        if wire.reset {
            wire.place = Place::Closed;
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        wire.place = Place::Accepted(id);
        wire.edge = true;
        assert!(self.slots[id.slot as usize].replace(client).is_none(), "a slot has one connection");
        Ok(())
    }

    fn read(&mut self, slot: u32, into: &mut [u8]) -> io::Result<usize> {
        if self.random.one_in(INTERRUPTED_ONE_IN) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let now_ns = self.clock.now_ns();
        let wire = self.of_slot(slot);
        if wire.reset {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let count = wire.inbound.len().min(into.len());
        wire.read.add(count, now_ns);
        for (place, byte) in into.iter_mut().zip(wire.inbound.drain(..count)) {
            *place = byte;
        }
        match count {
            0 if wire.inbound_ended => Ok(0),
            0 => Err(io::ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }

    fn write(&mut self, slot: u32, from: &[u8]) -> io::Result<usize> {
        if self.random.one_in(INTERRUPTED_ONE_IN) {
            let now_ns = self.clock.now_ns();
            self.of_slot(slot).behind_since_ns.get_or_insert(now_ns);
            return Err(io::ErrorKind::Interrupted.into());
        }
        assert!(!from.is_empty(), "nothing is written");
        let (at_ns, turn_before_ns) = (self.clock.now_ns(), self.turn_before_ns);
        let wire = self.of_slot(slot);
        assert!(wire.end.is_none(), "written after the end");
        if wire.reset {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if wire.deaf {
            (wire.reset, wire.edge) = (true, true);
            return Ok(from.len());
        }
        let count = from.len().min(wire.outbound_max - wire.outbound.len());
        wire.outbound.extend(&from[..count]);
        wire.written.add(count, Written { at_ns, turn_before_ns, delayed: wire.behind_since_ns.is_some() });
        if count < from.len() {
            wire.behind_since_ns.get_or_insert(at_ns);
            wire.wants_room = true;
        } else {
            wire.behind_since_ns = None;
        }
        if count == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(count) }
    }

    fn shut_down_write(&mut self, slot: u32) {
        self.of_slot(slot).end = Some(End::Finished);
    }

    fn close(&mut self, slot: u32) {
        let client = self.slots[slot as usize].take().expect("the reactor closes open connections only");
        let now_ns = self.clock.now_ns();
        let wire = &mut self.wires[client];
        wire.behind_at_close_ns = wire.behind_since_ns.map_or(0, |since_ns| now_ns - since_ns);
        if wire.inbound.is_empty() {
            wire.end = wire.end.or(Some(End::Finished));
        } else {
            wire.break_off(&mut self.random);
        }
        wire.place = Place::Closed;
        self.closed += 1;
    }
}
