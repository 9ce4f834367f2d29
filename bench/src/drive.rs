//! The run itself: threads with sockets and a clock, which send what was made at the moments that were drawn.
//!
//! Each thread has its share of the connections and of the schedule, and nothing in common with the others while it runs.
//! An open loop never hurries to catch up: a request whose moment has come is sent on a free connection, else on a new one
//! as long as there may be more, else on the first that becomes free, and counts from its moment all the same. A closed
//! loop's connections send as soon as they are answered.
//!
//! Invariants: after a thread has started its loop it allocates nothing, unless an answer is much larger than the probe's;
//! an answer's time is taken before the answer is looked at; whoever is `Waiting` has exactly one request.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use crate::check::{Checker, Shape};
use crate::client::{Answer, Reading};
use crate::fault::Fault;
use crate::interrupt;
use crate::measure::{Measured, digest_of};
use crate::requests::Requests;
use crate::schedule;

/// A request sent so much after its moment is counted as late.
const LATE_NS: u64 = 100_000;
/// Before the next moment the thread no longer sleeps: the kernel may be a millisecond late.
const SPIN_NS: u64 = 1_000_000;
/// How often deadlines are looked at, and how long a sleep lasts at most.
const TICK_NS: u64 = 5_000_000;
/// How long requests whose moment has passed may still be sent after the end of an open loop.
const DRAIN_NS: u64 = 1_000_000_000;
/// A connection that could not be opened rests for so long.
const REST_NS: u64 = 10_000_000;
/// Between two looks at the schedule; few, so that no moment waits for a crowd of answers.
const EVENTS_MAX: usize = 64;

/// When requests are sent.
#[derive(Clone, Copy, Debug)]
pub enum Sends<'a> {
    /// At these moments, nanoseconds from the start.
    Open { moments: &'a [u64] },
    /// Whenever a connection is free, up to `count` requests after the warm-up. `group`: so many requests after one
    /// another are measured as one.
    Closed { count: Option<u64>, group: u32 },
}

/// How a thread passes the time until something happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Sleeps; spins when a moment of the schedule is near. Not in a closed loop: beside nginx on the other core spinning gave
    /// 3 % more answers while the machine was quiet, and 8 % fewer while others compiled on it.
    Auto,
    Spin,
    Sleep,
}

/// How far answers are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Check {
    /// Any answer is right
    None,
    /// 200 is right
    Status,
    /// 200 with the right number of finite values in the right order
    Full,
}

#[derive(Clone, Debug)]
pub struct Orders<'a> {
    pub address: SocketAddr,
    pub requests: &'a Requests,
    pub sends: Sends<'a>,
    /// Of all threads together.
    pub connections: u32,
    pub threads: u32,
    /// The first thread runs on the first core, and so on; empty: anywhere.
    pub cores: &'a [usize],
    pub warmup_ns: u64,
    /// `u64::MAX` where the number of requests decides.
    pub end_ns: u64,
    pub timeout_ns: u64,
    pub new_connections: bool,
    pub abort_rate: f64,
    /// Moments of aborts lie within so long after sending.
    pub abort_within_ns: u64,
    pub seed: u64,
    pub wait: Wait,
    pub check: Check,
    pub shape: Shape,
    /// Of every vector.
    pub dimension: Option<u32>,
    /// Names of the stages in `Server-Timing`.
    pub stages: &'a [String],
    pub digest: bool,
    /// What a whole answer takes, about.
    pub answer_bytes: usize,
}

/// What a running run has come to, for whoever watches.
#[derive(Debug, Default)]
pub struct Progress {
    pub correct: AtomicU64,
    pub faulty: AtomicU64,
}

/// Runs to the end. The clock's zero is `start`, which should be a little ahead.
///
/// # Errors
/// What the system refuses: threads, descriptors, a core to run on.
pub fn run(orders: &Orders<'_>, start: Instant, progress: &Progress) -> Result<Measured, String> {
    let threads = orders.threads.min(orders.connections).max(1);
    let known = core_affinity::get_core_ids().unwrap_or_default();
    if let Some(core) = orders.cores.iter().find(|&&core| known.iter().all(|known| known.id != core)) {
        return Err(format!("--pin {core}: there is no such core for this process"));
    }
    let mut drivers = Vec::new();
    for thread in 0..threads {
        drivers
            .push(Driver::new(orders, thread, threads, start, progress).map_err(|error| format!("a thread: {error}"))?);
    }
    let mut parts = std::thread::scope(|scope| {
        let mut handles = Vec::new();
        for driver in drivers {
            let core = orders.cores.get(driver.thread as usize).copied();
            let builder = std::thread::Builder::new().name(format!("load-{}", driver.thread));
            let body = move || {
                if let Some(core) = core
                    && !core_affinity::set_for_current(core_affinity::CoreId { id: core })
                {
                    return Err(format!("--pin {core}: the system refuses this core"));
                }
                driver.run().map_err(|error| format!("waiting for sockets: {error}"))
            };
            handles.push(builder.spawn_scoped(scope, body).map_err(|error| format!("a thread: {error}"))?);
        }
        let ended = handles.into_iter().map(|handle| match handle.join() {
            Ok(part) => part,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        ended.collect::<Result<Vec<Measured>, String>>()
    })?;
    let mut all = parts.swap_remove(0);
    for part in parts {
        all.merge(part);
    }
    Ok(all)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// There is no socket. Not to be opened before this moment.
    Closed {
        until_ns: u64,
    },
    Connecting {
        since_ns: u64,
    },
    /// Connected and without a request.
    Free,
    /// A request is out, its first `written` bytes at least.
    Waiting {
        written: usize,
    },
}

/// The request of a connection.
#[derive(Clone, Copy, Debug)]
struct Out {
    index: u32,
    planned_ns: u64,
    sent_ns: u64,
    /// `u64::MAX` unless it is to be given up.
    abort_ns: u64,
    is_measured: bool,
}

/// Requests that are measured as one.
#[derive(Clone, Copy, Debug, Default)]
struct Group {
    done: u32,
    began_ns: u64,
    is_measured: bool,
    is_right: bool,
}

#[derive(Debug)]
struct Connection {
    stream: Option<TcpStream>,
    /// Told apart from those that had the slot before.
    generation: u32,
    state: State,
    reading: Reading,
    buffer: Vec<u8>,
    filled: usize,
    out: Out,
    /// When the connection was begun; what a closed loop with new connections counts from.
    begun_ns: u64,
    group: Group,
}

struct Driver<'a> {
    orders: &'a Orders<'a>,
    progress: &'a Progress,
    thread: u32,
    threads: u32,
    start: Instant,
    poll: Poll,
    connections: Vec<Connection>,
    /// Slots in state `Free`, the one used last at the end.
    free: VecDeque<usize>,
    connecting: usize,
    out: usize,
    /// Requests sent or failed for want of a connection, of this thread's share.
    next: u64,
    /// Measured requests that a closed loop may still send.
    quota: u64,
    /// The orders' own, until a signal ends the run earlier.
    end_ns: u64,
    next_tick_ns: u64,
    next_abort_ns: u64,
    /// Answers of this batch of events that have not been looked at.
    done: Vec<Done>,
    checker: Checker,
    measured: Measured,
}

/// An answer that lies in its connection's buffer until the next read there.
#[derive(Clone, Debug)]
struct Done {
    slot: usize,
    out: Out,
    answer: Answer,
    at_ns: u64,
}

impl<'a> Driver<'a> {
    fn new(
        orders: &'a Orders<'a>,
        thread: u32,
        threads: u32,
        start: Instant,
        progress: &'a Progress,
    ) -> io::Result<Driver<'a>> {
        let share = |all: u64| all / u64::from(threads) + u64::from(u64::from(thread) < all % u64::from(threads));
        let slots = share(u64::from(orders.connections)) as usize;
        let connection = || Connection {
            stream: None,
            generation: 0,
            state: State::Closed { until_ns: 0 },
            reading: Reading::new(),
            buffer: vec![0; orders.answer_bytes],
            filled: 0,
            out: Out { index: 0, planned_ns: 0, sent_ns: 0, abort_ns: u64::MAX, is_measured: false },
            begun_ns: 0,
            group: Group::default(),
        };
        let keeps_values = orders.check == Check::Full && (orders.digest || !orders.requests.spots().is_empty());
        let digests = if orders.digest && keeps_values { orders.requests.count() } else { 0 };
        let samples = if keeps_values { orders.requests.spots().len() } else { 0 };
        let values = orders.dimension.unwrap_or(1) as usize;
        Ok(Driver {
            orders,
            progress,
            thread,
            threads,
            start,
            poll: Poll::new()?,
            connections: (0..slots).map(|_| connection()).collect(),
            free: VecDeque::with_capacity(slots),
            connecting: 0,
            out: 0,
            next: 0,
            quota: match orders.sends {
                Sends::Open { .. } => 0,
                Sends::Closed { count, .. } => count.map_or(u64::MAX, share),
            },
            end_ns: orders.end_ns,
            next_tick_ns: 0,
            next_abort_ns: u64::MAX,
            // An event brings one answer at most.
            done: Vec::with_capacity(EVENTS_MAX),
            checker: Checker::new(orders.shape, orders.dimension, orders.requests.texts_max(), keeps_values),
            measured: Measured::new(orders.stages, digests, samples, values),
        })
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn run(mut self) -> io::Result<Measured> {
        let mut events = Events::with_capacity(EVENTS_MAX);
        std::thread::sleep(self.start.saturating_duration_since(Instant::now()));
        loop {
            let now_ns = self.now_ns();
            self.dispatch(now_ns);
            if now_ns >= self.next_tick_ns || now_ns >= self.next_abort_ns {
                self.look_at_deadlines(now_ns);
            }
            if self.is_over(now_ns) {
                break;
            }
            match self.poll.poll(&mut events, Some(self.sleep(now_ns))) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            for event in &events {
                self.event(event);
            }
            self.settle();
        }
        if let Sends::Open { moments } = self.orders.sends {
            let unsent = (self.next..).map_while(|number| moments.get(self.number(number) as usize));
            let measured = self.orders.warmup_ns..self.end_ns;
            self.measured.counts.unsent = unsent.filter(|moment| measured.contains(moment)).count() as u64;
        }
        Ok(self.measured)
    }

    /// After a batch of events: first all that may be sent, in one go, so that the server is busy while the answers of this
    /// batch are looked at. Against nginx with 64 connections and full checks that gave 4 to 24 % more answers than a check
    /// between any two requests (six alternating rounds); without checks there was no clear difference.
    fn settle(&mut self) {
        if self.done.is_empty() {
            return;
        }
        self.dispatch(self.now_ns());
        while let Some(done) = self.done.pop() {
            self.look_at(done);
            if let Some(moment) = self.moment(0) {
                let now_ns = self.now_ns();
                if moment <= now_ns {
                    self.dispatch(now_ns);
                }
            }
        }
    }

    /// The number in the whole run of this thread's request `own`.
    fn number(&self, own: u64) -> u64 {
        u64::from(self.thread) + own * u64::from(self.threads)
    }

    /// The moment of the next request but `ahead`, `None` if there is none.
    fn moment(&self, ahead: usize) -> Option<u64> {
        match self.orders.sends {
            Sends::Open { moments } => moments.get(self.number(self.next + ahead as u64) as usize).copied(),
            Sends::Closed { .. } => None,
        }
    }

    fn may_send(&self, now_ns: u64) -> bool {
        if self.measured.stopped_ns.is_some() {
            return false;
        }
        match self.orders.sends {
            Sends::Open { .. } => {
                let is_within = now_ns < self.end_ns.saturating_add(DRAIN_NS);
                is_within && self.moment(0).is_some()
            }
            Sends::Closed { .. } => now_ns < self.end_ns && self.quota > 0,
        }
    }

    fn is_over(&self, now_ns: u64) -> bool {
        self.out == 0 && !self.may_send(now_ns)
    }

    fn sleep(&self, now_ns: u64) -> Duration {
        let until_ns = self.next_tick_ns.min(self.next_abort_ns).min(self.moment(0).unwrap_or(u64::MAX));
        let left_ns = until_ns.saturating_sub(now_ns);
        match self.orders.wait {
            Wait::Spin => Duration::ZERO,
            // Whole milliseconds, rounded down, less the one that is spun.
            Wait::Auto if self.moment(0).is_some() => {
                Duration::from_millis(left_ns.saturating_sub(SPIN_NS) / 1_000_000)
            }
            Wait::Auto | Wait::Sleep => Duration::from_nanos(left_ns.max(1)),
        }
    }

    /// Sends what is due, and opens connections for it.
    fn dispatch(&mut self, now_ns: u64) {
        match self.orders.sends {
            Sends::Open { .. } => {
                while self.moment(0).is_some_and(|moment| moment <= now_ns) && self.may_send(now_ns) {
                    let Some(slot) = self.free.pop_back() else { break };
                    let planned_ns = self.moment(0).unwrap_or(now_ns);
                    self.send(slot, planned_ns);
                }
                // A connection for each that is due and has none on the way.
                while self.moment(self.connecting).is_some_and(|moment| moment <= now_ns)
                    && self.may_send(now_ns)
                    && self.open_any(now_ns)
                {}
            }
            Sends::Closed { .. } => {
                while self.may_send(now_ns) {
                    // In the order of the answers, else some would wait longer only because others came after them.
                    let Some(slot) = self.free.pop_front() else { break };
                    self.send_closed(slot, now_ns);
                }
                while self.may_send(now_ns) && self.open_any(now_ns) {}
            }
        }
    }

    fn send_closed(&mut self, slot: usize, now_ns: u64) {
        let begun_ns = self.connections[slot].begun_ns;
        self.send(slot, if self.orders.new_connections { begun_ns } else { now_ns });
    }

    /// Begins a connection in some closed slot. False if there is none that may.
    fn open_any(&mut self, now_ns: u64) -> bool {
        if self.connecting + self.out + self.free.len() == self.connections.len() {
            return false;
        }
        let may = |connection: &Connection| match connection.state {
            State::Closed { until_ns } => until_ns <= now_ns,
            State::Connecting { .. } | State::Free | State::Waiting { .. } => false,
        };
        let Some(slot) = self.connections.iter().position(may) else { return false };
        if let Err(error) = self.open(slot, now_ns) {
            self.no_connection(slot, Fault::from(&error));
        }
        true
    }

    fn open(&mut self, slot: usize, now_ns: u64) -> io::Result<()> {
        let mut stream = TcpStream::connect(self.orders.address)?;
        let connection = &mut self.connections[slot];
        connection.generation = connection.generation.wrapping_add(1);
        let token = Token(slot | (connection.generation as usize) << 32);
        self.poll.registry().register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
        connection.stream = Some(stream);
        connection.begun_ns = now_ns;
        connection.state = State::Connecting { since_ns: now_ns };
        self.connecting += 1;
        Ok(())
    }

    /// No connection came of it: the request that waits longest, for which it was meant, has failed.
    fn no_connection(&mut self, slot: usize, fault: Fault) {
        let now_ns = self.now_ns();
        self.close(slot);
        self.connections[slot].state = State::Closed { until_ns: now_ns + REST_NS };
        let planned_ns = match self.orders.sends {
            Sends::Open { .. } => self.moment(0).filter(|&moment| moment <= now_ns),
            Sends::Closed { .. } => self.may_send(now_ns).then_some(now_ns),
        };
        // In the meantime another connection may have taken it.
        let Some(planned_ns) = planned_ns else { return };
        self.next += 1;
        self.progress.faulty.fetch_add(1, Ordering::Relaxed);
        if self.begin_measuring(planned_ns) {
            self.measured.counts.sent += 1;
            self.measured.failed(fault);
        }
    }

    /// Whether a request of this moment is measured; if so a closed loop has one less to send.
    fn begin_measuring(&mut self, planned_ns: u64) -> bool {
        let is_measured = planned_ns >= self.orders.warmup_ns && planned_ns < self.end_ns;
        if is_measured && self.quota != u64::MAX {
            self.quota = self.quota.saturating_sub(1);
        }
        is_measured
    }

    /// Takes the next request to a connection that has none.
    fn send(&mut self, slot: usize, planned_ns: u64) {
        let number = self.number(self.next);
        self.next += 1;
        let index = self.orders.requests.index_of(number);
        let is_measured = self.begin_measuring(planned_ns);
        let sent_ns = self.now_ns();
        let abort = schedule::abort(self.orders.seed, number, self.orders.abort_rate);
        let abort_ns = abort.map_or(u64::MAX, |part| sent_ns + (part * self.orders.abort_within_ns as f64) as u64);
        self.next_abort_ns = self.next_abort_ns.min(abort_ns);
        // A closed loop has no schedule: its requests count from the moment at which they are sent, or, if each has its
        // connection, at which that was begun.
        let (planned_ns, sent_ns) = match self.orders.sends {
            Sends::Open { .. } => (planned_ns, sent_ns),
            Sends::Closed { .. } if self.orders.new_connections => (planned_ns, planned_ns),
            Sends::Closed { .. } => (sent_ns, sent_ns),
        };
        let connection = &mut self.connections[slot];
        connection.out = Out { index, planned_ns, sent_ns, abort_ns, is_measured };
        connection.reading = Reading::new();
        connection.filled = 0;
        connection.state = State::Waiting { written: 0 };
        self.out += 1;
        if is_measured {
            self.measured.counts.sent += 1;
            self.measured.counts.late += u64::from(sent_ns - planned_ns.min(sent_ns) > LATE_NS);
        }
        if let Err(fault) = self.write(slot) {
            self.fail(slot, fault);
        }
    }

    fn write(&mut self, slot: usize) -> Result<(), Fault> {
        let connection = &mut self.connections[slot];
        let State::Waiting { mut written } = connection.state else { return Ok(()) };
        let bytes = self.orders.requests.bytes(connection.out.index);
        let Some(stream) = &mut connection.stream else { return Err(Fault::Reset) };
        let outcome = loop {
            if written == bytes.len() {
                break Ok(());
            }
            match stream.write(&bytes[written..]) {
                Ok(count) => {
                    written += count;
                    let counted = if connection.out.is_measured { count as u64 } else { 0 };
                    self.measured.counts.bytes_sent += counted;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(Fault::from(&error)),
            }
        };
        connection.state = State::Waiting { written };
        outcome
    }

    fn event(&mut self, event: &mio::event::Event) {
        let Token(token) = event.token();
        let slot = token & 0xffff_ffff;
        if self.connections[slot].generation != (token >> 32) as u32 {
            return;
        }
        match self.connections[slot].state {
            State::Closed { .. } => {}
            State::Connecting { .. } => self.connected(slot),
            State::Free => self.disturbed(slot),
            State::Waiting { written } => {
                let bytes = self.orders.requests.bytes(self.connections[slot].out.index).len();
                let outcome = if event.is_writable() && written < bytes { self.write(slot) } else { Ok(()) };
                match outcome {
                    Ok(()) if event.is_readable() || event.is_read_closed() || event.is_error() => {
                        self.receive(slot, event.is_read_closed());
                    }
                    Ok(()) => {}
                    // What the server said before it closed is worth more than the error of writing.
                    Err(_) => self.receive(slot, true),
                }
            }
        }
    }

    /// A connection that was begun is complete, or has come to nothing.
    fn connected(&mut self, slot: usize) {
        let Some(stream) = &self.connections[slot].stream else { return };
        let outcome = match (stream.take_error(), stream.peer_addr()) {
            (Ok(None), Ok(_)) => stream.set_nodelay(true),
            (Ok(None), Err(error)) if error.kind() == io::ErrorKind::NotConnected => return,
            (Ok(Some(error)), _) | (Err(error), _) | (Ok(None), Err(error)) => Err(error),
        };
        match outcome {
            Ok(()) => {
                self.connecting -= 1;
                self.release(slot);
                let now_ns = self.now_ns();
                self.dispatch(now_ns);
            }
            Err(error) => self.no_connection(slot, Fault::from(&error)),
        }
    }

    fn release(&mut self, slot: usize) {
        self.connections[slot].state = State::Free;
        self.free.push_back(slot);
    }

    /// Something happens on a connection without a request: the server closes it, or speaks unasked.
    fn disturbed(&mut self, slot: usize) {
        let mut byte = [0];
        let Some(stream) = &mut self.connections[slot].stream else { return };
        match stream.read(&mut byte) {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Ok(_) | Err(_) => {
                self.free.retain(|&free| free != slot);
                self.close(slot);
            }
        }
    }

    /// Drops the socket, whatever its state; a request on it is the caller's to count.
    fn close(&mut self, slot: usize) {
        let connection = &mut self.connections[slot];
        match connection.state {
            State::Connecting { .. } => self.connecting -= 1,
            State::Waiting { .. } => self.out -= 1,
            State::Closed { .. } | State::Free => {}
        }
        connection.state = State::Closed { until_ns: 0 };
        connection.generation = connection.generation.wrapping_add(1);
        if let Some(mut stream) = connection.stream.take() {
            // The kernel forgets it with the descriptor anyhow.
            let _ = self.poll.registry().deregister(&mut stream);
        }
    }

    fn receive(&mut self, slot: usize, is_read_closed: bool) {
        loop {
            let connection = &mut self.connections[slot];
            let Some(stream) = &mut connection.stream else { return };
            if connection.filled == connection.buffer.len() {
                let known = connection.reading.bytes_known();
                connection.buffer.resize(known.max(connection.buffer.len() * 2), 0);
            }
            let outcome = match stream.read(&mut connection.buffer[connection.filled..]) {
                Ok(0) => connection.reading.close(&connection.buffer[..connection.filled]).map(Some),
                Ok(count) => {
                    connection.filled += count;
                    let counted = if connection.out.is_measured { count as u64 } else { 0 };
                    self.measured.counts.bytes_received += counted;
                    // The answer came sooner than the moment that was drawn: it is given up unread, so that the share is kept.
                    if connection.out.abort_ns != u64::MAX {
                        return self.abort(slot);
                    }
                    connection.reading.advance(&mut connection.buffer, &mut connection.filled)
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(Fault::from(&error)),
            };
            match outcome {
                Ok(None) => {}
                // The answer is complete, so nothing more comes before the next request: no further read.
                Ok(Some(answer)) => return self.answered(slot, answer, is_read_closed),
                Err(fault) => return self.fail(slot, fault),
            }
        }
    }

    /// A whole answer has come. It is looked at after the batch of events, so before anything is read here again.
    fn answered(&mut self, slot: usize, answer: Answer, is_read_closed: bool) {
        let at_ns = self.now_ns();
        let connection = &mut self.connections[slot];
        let out = connection.out;
        let bytes = self.orders.requests.bytes(out.index).len();
        let is_written = connection.state == State::Waiting { written: bytes };
        if answer.keep && is_written && !is_read_closed && !self.orders.new_connections {
            self.out -= 1;
            self.release(slot);
        } else {
            self.close(slot);
        }
        self.done.push(Done { slot, out, answer, at_ns });
        if self.moment(0).is_some_and(|moment| moment <= at_ns) {
            self.dispatch(at_ns);
        }
    }

    fn look_at(&mut self, done: Done) {
        let Done { slot, out, answer, at_ns: now_ns } = done;
        let connection = &mut self.connections[slot];
        let texts = self.orders.requests.texts(out.index);
        let outcome = match self.orders.check {
            Check::None => Ok(Default::default()),
            Check::Status | Check::Full if answer.status != 200 => Err(Fault::Status(answer.status)),
            Check::Status => Ok(Default::default()),
            Check::Full => self.checker.check(&connection.buffer[answer.body.clone()], texts),
        };
        self.count_in_group(slot, out, outcome.is_ok(), now_ns);
        let content = match outcome {
            Ok(content) => content,
            Err(fault) => {
                self.progress.faulty.fetch_add(1, Ordering::Relaxed);
                if out.is_measured {
                    self.measured.failed(fault);
                    self.measured.last_ns = self.measured.last_ns.max(now_ns);
                }
                return;
            }
        };
        self.progress.correct.fetch_add(1, Ordering::Relaxed);
        let measured = &mut self.measured;
        if !measured.digests.is_empty() {
            measured.digest(out.index, digest_of(self.checker.values()));
        }
        keep_samples(measured, self.orders.requests, out.index, self.checker.values(), content.dimension as usize);
        if now_ns >= self.orders.warmup_ns && now_ns <= self.end_ns {
            measured.window.requests += 1;
            measured.window.texts += u64::from(texts);
            measured.window.tokens += content.tokens;
        }
        if out.is_measured {
            measured.counts.answered += 1;
            measured.counts.correct += 1;
            measured.counts.texts += u64::from(texts);
            measured.counts.tokens += content.tokens;
            measured.last_ns = measured.last_ns.max(now_ns);
            measured.stages(&self.connections[slot].buffer[answer.timing.clone()]);
            let group = match self.orders.sends {
                Sends::Open { .. } => 1,
                Sends::Closed { group, .. } => group,
            };
            if group == 1 {
                measured.corrected.saturating_record(now_ns - out.planned_ns);
                measured.uncorrected.saturating_record(now_ns - out.sent_ns);
                measured.lateness.saturating_record(out.sent_ns - out.planned_ns.min(out.sent_ns));
            }
        }
    }

    /// Where several requests after one another are measured as one: it counts if all of them were right.
    fn count_in_group(&mut self, slot: usize, out: Out, is_right: bool, now_ns: u64) {
        let Sends::Closed { group: size @ 2.., .. } = self.orders.sends else { return };
        let group = &mut self.connections[slot].group;
        if group.done == 0 {
            *group = Group { done: 0, began_ns: out.planned_ns, is_measured: out.is_measured, is_right: true };
        }
        group.done += 1;
        group.is_right &= is_right;
        if group.done == size {
            let took_ns = now_ns - group.began_ns;
            if group.is_measured && group.is_right {
                self.measured.corrected.saturating_record(took_ns);
                self.measured.uncorrected.saturating_record(took_ns);
                self.measured.lateness.saturating_record(0);
            }
            self.connections[slot].group.done = 0;
        }
    }

    /// The request of this connection has come to nothing, and the connection with it.
    fn fail(&mut self, slot: usize, fault: Fault) {
        let (out, now_ns) = (self.connections[slot].out, self.now_ns());
        self.close(slot);
        self.connections[slot].state = State::Closed { until_ns: now_ns };
        self.count_in_group(slot, out, false, now_ns);
        self.progress.faulty.fetch_add(1, Ordering::Relaxed);
        if out.is_measured {
            self.measured.failed(fault);
        }
    }

    /// The request of this connection is given up as planned, and the connection with it.
    fn abort(&mut self, slot: usize) {
        let (out, now_ns) = (self.connections[slot].out, self.now_ns());
        self.close(slot);
        self.count_in_group(slot, out, false, now_ns);
        self.measured.counts.aborted += u64::from(out.is_measured);
    }

    /// Gives up what is to be given up, and what has taken too long.
    fn look_at_deadlines(&mut self, now_ns: u64) {
        self.next_tick_ns = now_ns + TICK_NS;
        if interrupt::is_asked() && self.measured.stopped_ns.is_none() && now_ns < self.end_ns {
            // What is out may still be answered.
            self.measured.stopped_ns = Some(now_ns);
            self.end_ns = now_ns;
        }
        self.next_abort_ns = u64::MAX;
        for slot in 0..self.connections.len() {
            let connection = &self.connections[slot];
            let out = connection.out;
            match connection.state {
                State::Waiting { .. } if out.abort_ns <= now_ns => {
                    self.abort(slot);
                }
                State::Waiting { .. } if out.sent_ns.saturating_add(self.orders.timeout_ns) <= now_ns => {
                    self.fail(slot, Fault::TimedOut);
                }
                State::Waiting { .. } => self.next_abort_ns = self.next_abort_ns.min(out.abort_ns),
                State::Connecting { since_ns } if since_ns.saturating_add(self.orders.timeout_ns) <= now_ns => {
                    self.no_connection(slot, Fault::ConnectTimedOut);
                }
                State::Connecting { .. } | State::Closed { .. } | State::Free => {}
            }
        }
    }
}

/// Keeps the vectors that were asked for, of the first right answer that has them.
fn keep_samples(measured: &mut Measured, requests: &Requests, index: u32, values: &[f32], dimension: usize) {
    if measured.samples.is_empty() {
        return;
    }
    let spots = requests.spots();
    let first = spots.partition_point(|spot| spot.request < index);
    for (kept, spot) in measured.samples[first..].iter_mut().zip(&spots[first..]) {
        if spot.request != index {
            break;
        }
        let from = spot.place as usize * dimension;
        if kept.is_empty()
            && let Some(vector) = values.get(from..from + dimension)
        {
            kept.extend_from_slice(vector);
        }
    }
}
