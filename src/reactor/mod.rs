//! The reactor: sockets, connections, jobs, deadlines; one thread, and the only one that talks to clients.
//!
//! Owns every connection's bytes, every job's slot and the pools of all that travels. It computes nothing that takes long:
//! bodies go to workers, sequences to devices, large answers back to workers; what it encodes itself is at most
//! `ENCODED_HERE_BYTES` of what comes home at once.
//!
//! Invariants: a connection leaves a turn having read less than it offered room for (then the next byte is a new edge), or
//! on the `again` list, or paused until its answer is queued. Answers are written once per turn. At most
//! `TURN_BYTES_MAX` per connection and turn, and about `TURN_BYTES_ALL_MAX` of all of them. After start nothing here allocates. A job is answered exactly once: when its
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
mod timeouts;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::api::Catalog;
use crate::api::gate::{Keys, Origins};
use crate::api::system::Readiness;
use crate::clock::{Civil, Clock};
use crate::http;
use crate::job::{Body, Buffers, Generations, JobKey, Piece, ToReactor, ToWorker};
use crate::journal::Journal;
use crate::metrics::{Gauges, Metrics};
use crate::planted::{self, Bug};
use crate::ring::{Receiver, Sender};
use crate::serve::Account;

use connections::Connection;
use deadline::{Deadlines, Kind};
use jobs::Job;
pub use pace::Pace;
pub use sockets::{Sockets, run};
use timeouts::Timeouts;

/// What the reactor encodes itself, at most, of all that comes home at once: about 35 µs for floats, less than a hop to a
/// worker and back. A batch that ends many requests is shared out among the workers, so that the reactor has its time for
/// sockets.
const ENCODED_HERE_BYTES: usize = 32 << 10;

/// How long an answer waits for a buffer before its request is refused.
const STARVED_NS_MAX: u64 = 1_000_000_000;

/// Room for answers that the reactor makes up itself; `/metrics` is the largest.
const DIRECT_ANSWER_BYTES: usize = 256 << 10;

/// What one connection may read, and what it may write, in one turn.
const TURN_BYTES_MAX: usize = 256 << 10;

/// What all connections together may read in one turn: about a millisecond of copying. Who comes after that is first in the
/// next turn, and whoever asks whether the server lives does not wait for a hundred bulk bodies.
const TURN_BYTES_ALL_MAX: usize = 4 << 20;

/// Answers that the reactor makes itself wait in one buffer up to about this size; then those before must be written.
const SHARED_BYTES_MAX: usize = 64 << 10;

/// What is read at once, at most.
const READ_BYTES_MAX: usize = 64 << 10;

/// After how long an answer that was written has been read as well, or never will be.
const ANSWER_READ_NS: u64 = 1_000_000_000;

/// What is read and thrown away of a client that goes on sending after a refusal.
const LINGER_BYTES_MAX: usize = 8 << 20;

/// Connections accepted in one turn, so that a burst of them does not starve those that are open.
const ACCEPTS_MAX: usize = 256;

/// When to try again after the system had no file descriptor, or no memory, for a connection. No event tells that.
const ACCEPT_RETRY_NS: u64 = 50_000_000;

/// How long a draining server waits for the first byte of a connection that it has just accepted.
const PARTING_NS: u64 = 100_000_000;

/// How long a draining server waits, at its end, for those that it could not answer to read that.
const LEAVE_NS_MAX: u64 = 200_000_000;

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

    /// Who is at the other end, where that is known.
    fn peer(&self, _slot: u32) -> Option<SocketAddr> {
        None
    }
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

/// Who may ask, for how long, and where that is written down. By default: everybody, for ever, nowhere.
#[derive(Default)]
pub struct Policy {
    pub keys: Keys,
    pub origins: Origins,
    /// How long a request may take that does not say so itself.
    pub request_ms: Option<u32>,
    pub journal: Option<Journal>,
    /// Called when the system has no file descriptor for a connection that waits; must neither block nor allocate.
    pub on_exhaustion: Option<Box<dyn Fn() + Send>>,
}

impl std::fmt::Debug for Policy {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Policy { keys, origins, request_ms, .. } = self;
        let mut shown = formatter.debug_struct("Policy");
        shown.field("keys", keys).field("origins", origins).field("request_ms", request_ms).finish_non_exhaustive()
    }
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
    pub policy: Policy,
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
    /// What was not finished by then has been refused; its clients have until then to read that.
    Leaving {
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
    timeouts: Timeouts,
    /// Connections that have more to do, in the order in which they come to it, and those with an answer to write at the end
    /// of this turn.
    again: VecDeque<u32>,
    dirty: Vec<u32>,
    /// What may still be read in this turn.
    turn_bytes_left: usize,
    accepts: bool,
    accept_retry_ns: Option<u64>,
    life: Life,
    queue_tokens: u64,
    /// Pieces that came home together with the one at hand.
    together: usize,
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
            deadlines: Deadlines::new(count, limits.deadlines_ns, PARTING_NS),
            timeouts: Timeouts::new(limits.jobs_max),
            again: VecDeque::with_capacity(count),
            dirty: Vec::with_capacity(count),
            turn_bytes_left: 0,
            accepts: true,
            accept_retry_ns: None,
            life: Life::Serving,
            queue_tokens: 0,
            together: 0,
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
        self.check_drained(now_ns);
        while let Some((slot, kind)) = self.deadlines.pop_due(now_ns) {
            self.expire(slot, kind, now_ns);
        }
        while let Some(slot) = self.timeouts.pop_due(now_ns) {
            self.give_up(slot, now_ns);
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
            Life::Draining { until_ns } | Life::Leaving { until_ns } => Some(until_ns),
            Life::Serving | Life::Ended => None,
        };
        let starved = self.starved.front().map(|(_, since_ns)| since_ns + STARVED_NS_MAX);
        [self.deadlines.next_ns(), self.timeouts.next_ns(), drained, starved, self.accept_retry_ns]
            .into_iter()
            .flatten()
            .min()
    }

    /// Everything that has come home.
    fn take_in(&mut self, now_ns: u64) {
        self.take_in_workers(now_ns);
        self.together = self.parts.devices.iter().map(|device| device.receiver.len()).sum();
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

    /// A draining server accepts too: whoever asks whether it is ready is told, and nobody waits for a process that is gone.
    fn can_accept(&self) -> bool {
        self.life != Life::Ended && !self.connections_free.is_empty()
    }

    fn accept(&mut self, now_ns: u64) {
        if self.accept_retry_ns.is_some_and(|retry_ns| retry_ns <= now_ns) {
            self.accept_retry_ns = None;
            self.accepts = true;
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
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => self.accepts = false,
                    // The peer gave up while it waited; the next one may not have.
                    io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted => {}
                    // Out of file descriptors, most likely. They may be ours or another's that become free.
                    _ => return self.pause_accepting(now_ns),
                },
            }
        }
    }

    fn pause_accepting(&mut self, now_ns: u64) {
        self.accepts = false;
        self.accept_retry_ns = Some(now_ns + ACCEPT_RETRY_NS);
        self.parts.metrics.accepts_failed += 1;
        if let Some(tell) = &self.parts.policy.on_exhaustion {
            tell();
        }
    }

    fn check_stop(&mut self, now_ns: u64) {
        if self.life != Life::Serving || !self.parts.stop.load(Ordering::Relaxed) {
            return;
        }
        self.life = Life::Draining { until_ns: now_ns + self.limits.drain_ns - self.leave_ns() };
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

    /// What of the time for draining is kept for those whose requests it did not suffice for.
    fn leave_ns(&self) -> u64 {
        LEAVE_NS_MAX.min(self.limits.drain_ns / 4)
    }

    /// When the time for draining is up, whoever still waits is told so.
    fn check_drained(&mut self, now_ns: u64) {
        let Life::Draining { until_ns } = self.life else { return };
        if now_ns < until_ns {
            return;
        }
        // From now on and not from then: a turn that comes late leaves them no less.
        self.life = Life::Leaving { until_ns: now_ns + self.leave_ns() };
        self.take_leave_of_all(now_ns);
    }

    fn take_leave_of_all(&mut self, now_ns: u64) {
        for slot in 0..self.connections.len() as u32 {
            if self.connections[slot as usize].open && !planted::is(Bug::LeavesInSilence) {
                self.take_leave(slot, now_ns);
            }
        }
    }

    fn check_end(&mut self, now_ns: u64) {
        let (Life::Draining { until_ns } | Life::Leaving { until_ns }) = self.life else { return };
        // And nobody waits to be accepted.
        let all_closed = self.connections_free.len() == self.connections.len() && !self.accepts;
        let time_is_up = self.life == Life::Leaving { until_ns } && now_ns >= until_ns;
        if all_closed || time_is_up {
            // Who began to ask after the others were told.
            self.take_leave_of_all(now_ns);
            self.flush(now_ns);
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
            access_lines_dropped: self.parts.policy.journal.as_ref().map_or(0, Journal::dropped),
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
            Life::Draining { .. } | Life::Leaving { .. } | Life::Ended => Readiness::Draining,
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

/// `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110, 5.6.7).
fn format_date(second: u64) -> [u8; 29] {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let weekday = DAYS[(second / 86_400 % 7) as usize];
    let Civil { year, month, day, hour, minute, second } = Civil::of(second);
    let month = MONTHS[month as usize - 1];
    let mut text = [0; 29];
    let mut out = &mut text[..];
    // Fails only after the year 9999.
    let _ = io::Write::write_fmt(
        &mut out,
        format_args!("{weekday}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT"),
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
