//! The reactor: sockets, connections, jobs, deadlines; one thread, and the only one that talks to clients.
//!
//! Owns every connection's bytes, every job's slot and the pools of all that travels. It computes nothing that takes long:
//! bodies go to workers, sequences to devices, large answers back to workers; what it encodes itself is at most
//! `SMALL_ANSWER_BYTES`.
//!
//! Invariants: a connection leaves a turn having read less than it offered room for (then the next byte is a new edge), or
//! on the `again` list, or paused until its answer is queued. Answers are written once per turn. At most
//! `TURN_BYTES_MAX` per connection and turn. After start nothing here allocates. A job is answered exactly once: when its
//! body and its last piece are home, or at its first failure; then its slot's generation ends, and whatever of it is still
//! on its way is only put away when it arrives.
//!
//! The network is a trait: `sockets` is the real one, a simulation brings its own.

mod check;
mod connections;
mod deadline;
mod jobs;
mod pace;
mod sockets;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::api::Catalog;
use crate::api::system::Readiness;
use crate::clock::Clock;
use crate::http;
use crate::job::{Body, Buffers, Generations, JobKey, Piece, ToReactor, ToWorker};
use crate::metrics::{Gauges, Metrics};
use crate::ring::{Receiver, Sender};
use crate::serve::Account;

use connections::Connection;
use deadline::{Deadlines, Kind};
use jobs::Job;
pub use pace::Pace;
pub use sockets::{Sockets, run};

/// Answers up to this size are encoded by the reactor: about 20 µs for floats, less than a hop to a worker and back.
const SMALL_ANSWER_BYTES: usize = 16 << 10;

/// How long an answer waits for a buffer before its request is refused.
const STARVED_NS_MAX: u64 = 1_000_000_000;

/// Room for answers that the reactor makes up itself; `/metrics` is the largest.
const DIRECT_ANSWER_BYTES: usize = 256 << 10;

/// What one connection may read, and what it may write, in one turn.
const TURN_BYTES_MAX: usize = 256 << 10;

/// What is read at once, at most.
const READ_BYTES_MAX: usize = 64 << 10;

/// After how long an answer that was written has been read as well, or never will be.
const ANSWER_READ_NS: u64 = 1_000_000_000;

/// What is read and thrown away of a client that goes on sending after a refusal.
const LINGER_BYTES_MAX: usize = 8 << 20;

/// After how long a connection that could not be accepted is tried again: nothing announces a free file descriptor.
const ACCEPT_AGAIN_NS: u64 = 100_000_000;

/// Connections accepted in one turn, so that a burst of them does not starve those that are open.
const ACCEPTS_MAX: usize = 256;

/// Names a connection: its slot and the slot's generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionId {
    pub slot: u32,
    pub generation: u32,
}

/// What has become possible on a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub readable: bool,
    pub writable: bool,
    /// The peer sends nothing any more, or the connection broke.
    pub closed: bool,
}

/// What the reactor asks of a network. No call blocks; `WouldBlock` means that [`Reactor::socket_ready`] (for `accept`:
/// [`Reactor::listener_ready`]) will say when to try again.
pub trait Network {
    /// Takes the next waiting connection in under this name.
    fn accept(&mut self, id: ConnectionId) -> io::Result<()>;
    fn read(&mut self, slot: u32, into: &mut [u8]) -> io::Result<usize>;
    fn write(&mut self, slot: u32, from: &[u8]) -> io::Result<usize>;
    fn shut_down_write(&mut self, slot: u32);
    fn close(&mut self, slot: u32);
}

/// One worker's rings.
#[derive(Debug)]
pub struct WorkerPort {
    pub sender: Sender<ToWorker>,
    pub receiver: Receiver<ToReactor>,
    /// Bodies that the worker holds.
    pub outstanding: usize,
    /// True exactly when something was pushed since its doorbell was last rung.
    pub unrung: bool,
}

impl WorkerPort {
    pub fn new(sender: Sender<ToWorker>, receiver: Receiver<ToReactor>) -> WorkerPort {
        WorkerPort { sender, receiver, outstanding: 0, unrung: false }
    }
}

/// One device's ring, and whether it can compute.
#[derive(Debug)]
pub struct DevicePort {
    pub receiver: Receiver<ToReactor>,
    pub ready: Arc<AtomicBool>,
}

/// What bounds the reactor.
#[derive(Clone, Copy, Debug)]
pub struct ReactorLimits {
    pub http: http::Limits,
    pub connections_max: usize,
    pub jobs_max: usize,
    pub queue_tokens_max: u64,
    /// Pieces that one job may hold at once.
    pub window_pieces_max: usize,
    /// Idle, head, body, write, linger: nanoseconds.
    pub deadlines_ns: [u64; 5],
    pub drain_ns: u64,
}

/// Everything allocated at start that the reactor owns or shares.
#[derive(Debug)]
pub struct Parts {
    pub catalog: Arc<Catalog>,
    pub generations: Generations,
    pub buffers: Buffers,
    pub pieces: Vec<Box<Piece>>,
    pub bodies: Vec<Box<Body>>,
    pub workers: Vec<WorkerPort>,
    pub devices: Vec<DevicePort>,
    pub metrics: Metrics,
    /// Set by whoever wants the server to stop; the doorbell is rung afterwards.
    pub stop: Arc<AtomicBool>,
}

/// How to go on after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest {
    /// There is work left that no event will announce.
    pub again: bool,
    /// When the next deadline falls due.
    pub wake_at_ns: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Serving,
    /// Told to stop: what has been accepted is answered, until then.
    Draining {
        until_ns: u64,
    },
    Ended,
}

#[derive(Debug)]
pub struct Reactor<N> {
    network: N,
    limits: ReactorLimits,
    parts: Parts,
    connections: Vec<Connection>,
    connections_free: Vec<u32>,
    jobs: Vec<Job>,
    jobs_free: Vec<u32>,
    /// Jobs that wait for an empty piece, each once: new ones, and ones being cut that gave up their last one.
    unlent: VecDeque<u32>,
    /// Jobs whose vectors are all here and whose answer waits for a buffer, and since when, each once.
    starved: VecDeque<(JobKey, u64)>,
    deadlines: Deadlines,
    /// Connections that have more to do in the next turn, and those with an answer to write at the end of this one.
    again: Vec<u32>,
    again_now: Vec<u32>,
    dirty: Vec<u32>,
    accepts: bool,
    /// When to look at the listener again although it announced nothing.
    accept_at_ns: Option<u64>,
    life: Life,
    queue_tokens: u64,
    /// Where a head, and where a body of our own, is written before it goes to a connection.
    head: Vec<u8>,
    body: Vec<u8>,
    date: Date,
    /// When serving began, in seconds since 1970.
    started_s: u64,
    request_ids: u64,
    clock: Clock,
    pieces_max: usize,
}

impl<N: Network> Reactor<N> {
    pub fn new(network: N, limits: ReactorLimits, parts: Parts, clock: Clock) -> Reactor<N> {
        let count = limits.connections_max;
        Reactor {
            network,
            connections: (0..count).map(|_| Connection::new()).collect(),
            connections_free: (0..count as u32).rev().collect(),
            jobs: (0..limits.jobs_max).map(|_| Job::new()).collect(),
            jobs_free: (0..limits.jobs_max as u32).rev().collect(),
            unlent: VecDeque::with_capacity(limits.jobs_max),
            starved: VecDeque::with_capacity(limits.jobs_max),
            deadlines: Deadlines::new(count, limits.deadlines_ns),
            again: Vec::with_capacity(count),
            again_now: Vec::with_capacity(count),
            dirty: Vec::with_capacity(count),
            accepts: true,
            accept_at_ns: None,
            life: Life::Serving,
            queue_tokens: 0,
            head: Vec::with_capacity(DIRECT_ANSWER_BYTES),
            body: Vec::with_capacity(DIRECT_ANSWER_BYTES),
            date: Date::default(),
            started_s: since_epoch().as_secs(),
            request_ids: request_id_seed(),
            pieces_max: parts.pieces.len(),
            limits,
            parts,
            clock,
        }
    }

    pub fn network(&mut self) -> &mut N {
        &mut self.network
    }

    pub fn metrics(&self) -> &Metrics {
        &self.parts.metrics
    }

    pub fn has_ended(&self) -> bool {
        self.life == Life::Ended
    }

    /// Whether anything waits in the rings; asked just before sleeping.
    pub fn has_work(&self) -> bool {
        let stopping = self.life == Life::Serving && self.parts.stop.load(Ordering::Relaxed);
        stopping
            || self.parts.devices.iter().any(|device| !device.receiver.is_empty())
            || self.parts.workers.iter().any(|worker| !worker.receiver.is_empty())
    }

    /// The listener may have connections.
    pub fn listener_ready(&mut self) {
        self.accepts = true;
    }

    /// One round: rings, deadlines, connections, and at its end everything is written and rung once.
    pub fn turn(&mut self, now_ns: u64) -> Rest {
        self.parts.metrics.turns += 1;
        self.date.update();
        self.check_stop(now_ns);
        self.accept(now_ns);
        self.take_in(now_ns);
        while let Some((slot, kind)) = self.deadlines.pop_due(now_ns) {
            self.expire(slot, kind, now_ns);
        }
        self.go_on(now_ns);
        self.flush(now_ns);
        while self.feed_starved(now_ns) {
            self.flush(now_ns);
        }
        self.ring_workers();
        self.check_end(now_ns);
        Rest { again: !self.again.is_empty() || (self.accepts && self.can_accept()), wake_at_ns: self.wake_at_ns() }
    }

    fn wake_at_ns(&self) -> Option<u64> {
        let drained = match self.life {
            Life::Draining { until_ns } => Some(until_ns),
            Life::Serving | Life::Ended => None,
        };
        let starved = self.starved.front().map(|(_, since_ns)| since_ns + STARVED_NS_MAX);
        let accept = self.accept_at_ns.filter(|_| self.can_accept());
        [self.deadlines.next_ns(), drained, starved, accept].into_iter().flatten().min()
    }

    /// Everything that has come home.
    fn take_in(&mut self, now_ns: u64) {
        self.take_in_workers(now_ns);
        for device in 0..self.parts.devices.len() {
            while let Some(part) = self.parts.devices[device].receiver.pop() {
                self.come_home(part, None, now_ns);
            }
        }
        // Once more: a worker pushes a body home, unannounced, before it pushes the body's last piece to a device, so
        // whoever has seen that piece finds the body here.
        self.take_in_workers(now_ns);
    }

    fn take_in_workers(&mut self, now_ns: u64) {
        for worker in 0..self.parts.workers.len() {
            while let Some(part) = self.parts.workers[worker].receiver.pop() {
                self.come_home(part, Some(worker), now_ns);
            }
        }
    }

    fn ring_workers(&mut self) {
        for worker in &mut self.parts.workers {
            if std::mem::take(&mut worker.unrung) {
                worker.sender.ring();
            }
        }
    }

    fn can_accept(&self) -> bool {
        self.life == Life::Serving && !self.connections_free.is_empty()
    }

    fn accept(&mut self, now_ns: u64) {
        if self.accept_at_ns.is_some_and(|at_ns| at_ns <= now_ns) {
            (self.accept_at_ns, self.accepts) = (None, true);
        }
        for _ in 0..ACCEPTS_MAX {
            if !self.accepts || !self.can_accept() {
                return;
            }
            let slot = *self.connections_free.last().expect("checked above");
            let id = ConnectionId { slot, generation: self.connections[slot as usize].generation };
            match self.network.accept(id) {
                Ok(()) => {
                    self.connections_free.pop();
                    self.parts.metrics.connections_accepted += 1;
                    self.open(slot, now_ns);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.accepts = false,
                // The peer gave up while it waited; the next one may not have.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                // Out of file descriptors, most likely, and not always for connections of ours: one that closes tries again,
                // and so does time.
                Err(_) => {
                    (self.accept_at_ns, self.accepts) = (Some(now_ns + ACCEPT_AGAIN_NS), false);
                    return;
                }
            }
        }
    }

    fn check_stop(&mut self, now_ns: u64) {
        if self.life != Life::Serving || !self.parts.stop.load(Ordering::Relaxed) {
            return;
        }
        self.life = Life::Draining { until_ns: now_ns + self.limits.drain_ns };
        for slot in 0..self.connections.len() as u32 {
            if !self.connections[slot as usize].is_idle() {
                continue;
            }
            match self.deadlines.elapsed_ns(slot, now_ns) {
                Some(idle_ns) if idle_ns < ANSWER_READ_NS => self.part(slot, now_ns),
                Some(_) | None => self.close(slot),
            }
        }
    }

    fn check_end(&mut self, now_ns: u64) {
        let Life::Draining { until_ns } = self.life else { return };
        let all_closed = self.connections_free.len() == self.connections.len();
        if all_closed || now_ns >= until_ns {
            for slot in 0..self.connections.len() as u32 {
                if self.connections[slot as usize].open {
                    self.close(slot);
                }
            }
            self.life = Life::Ended;
        }
    }

    fn gauges(&self) -> Gauges {
        let jobs = self.jobs.len() - self.jobs_free.len();
        Gauges {
            connections: self.connections.len() - self.connections_free.len(),
            jobs,
            queue_tokens: self.queue_tokens,
            pieces_out: self.pieces_out(),
            buffers_out: self.parts.buffers.out(),
        }
    }

    /// Pieces that are not at home.
    pub fn pieces_out(&self) -> usize {
        self.pieces_max - self.parts.pieces.len()
    }

    /// What is not at home once every other thread has ended.
    pub fn account(&mut self, bodies_max: usize) -> Account {
        self.take_in(self.clock.now_ns());
        Account {
            pieces_out: self.pieces_out(),
            bodies_out: bodies_max - self.parts.bodies.len(),
            buffers_out: self.parts.buffers.out(),
        }
    }

    /// What `/health/ready` tells: true readiness of every device.
    fn readiness(&self) -> Readiness {
        let all_compute = self.parts.devices.iter().all(|device| device.ready.load(Ordering::Relaxed));
        match self.life {
            Life::Serving if all_compute => Readiness::Ready,
            Life::Serving => Readiness::Dead,
            Life::Draining { .. } | Life::Ended => Readiness::Draining,
        }
    }
}

/// The `date` field's value, renewed once a second.
#[derive(Debug, Default)]
struct Date {
    second: u64,
    text: Option<[u8; 29]>,
}

impl Date {
    fn update(&mut self) {
        let second = since_epoch().as_secs();
        if self.text.is_none() || second != self.second {
            self.second = second;
            self.text = Some(format_date(second));
        }
    }
}

/// `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110, 5.6.7). Civil date after the proleptic Gregorian calendar's 400-year cycle.
fn format_date(second: u64) -> [u8; 29] {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (day, rest) = (second / 86_400, second % 86_400);
    // Days since 1 March of year 0, so that a leap day is the last of its year.
    let shifted = day + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 2 } else { shifted_month - 10 };
    let year = era * 400 + year_of_era + u64::from(month <= 1);
    let mut text = [0; 29];
    let mut out = &mut text[..];
    let (weekday, month) = (DAYS[(day % 7) as usize], MONTHS[month as usize]);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    // Fails only after the year 9999.
    let _ = io::Write::write_fmt(
        &mut out,
        format_args!("{weekday}, {day_of_month:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT"),
    );
    text
}

fn since_epoch() -> std::time::Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

/// Where made request ids start: different for each process.
fn request_id_seed() -> u64 {
    (since_epoch().as_nanos() as u64) ^ (u64::from(std::process::id()) << 48)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (second, expected) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (4_107_542_399, "Sun, 28 Feb 2100 23:59:59 GMT"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
            (1_796_083_199, "Mon, 30 Nov 2026 23:59:59 GMT"),
        ] {
            assert_eq!(std::str::from_utf8(&format_date(second)).unwrap(), expected);
        }
    }
}
