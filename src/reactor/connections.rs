//! Connections: from readiness to requests, from answers to bytes on the wire.

use std::io;
use std::sync::atomic::Ordering;

use super::{
    ConnectionId, Event, Kind, LINGER_BYTES_MAX, Life, Network, READ_BYTES_MAX, Reactor, SHARED_BYTES_MAX,
    TURN_BYTES_ALL_MAX, TURN_BYTES_MAX, since_epoch,
};
use crate::api::gate::{self, Origins, Permit};
use crate::api::{self, Allow, Family, Reject, Route};
use crate::http::{self, Gist, Head, Method, Phase, Request, ResponseHead, Step};
use crate::job::{Buffer, JobKey};
use crate::journal;
use crate::planted::{self, Bug};

/// A body up to this size is read to its end even if its head was refused, so that the connection can be kept.
const REFUSED_BODY_BYTES_MAX: u32 = 64 << 10;

/// What a client must take of an answer for its time to begin anew: one that takes a byte now and then holds the answer's
/// buffer no longer than one that takes nothing.
const WRITE_PROGRESS_BYTES: usize = 64 << 10;

/// What a web page may send, where its browser does not say what it would; and how much of that is repeated.
const ASKED_HEADERS: &[u8] = b"authorization, content-type, x-api-key, x-request-id, x-request-timeout-ms";
const ASKED_HEADERS_BYTES_MAX: usize = 512;

/// How long a browser need not ask again; none keeps it longer than two hours.
const PREFLIGHT_S: u64 = 7_200;

/// What an access log says of a request whose client went away; never sent.
const STATUS_CLIENT_GONE: u16 = 499;

/// One client. Without a request it holds no buffer: 10,000 idle ones are 10,000 of these.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) generation: u32,
    pub(super) open: bool,
    pub(super) http: http::Connection,
    /// Bytes received and not yet released, from the start of the current request; capacity 0 while there are none.
    pub(super) input: Buffer,
    /// Bytes to be written, the first `written` of them done; capacity 0 while there are none.
    pub(super) output: Buffer,
    written: usize,
    /// Bytes written since the deadline for writing was last set.
    progress: usize,
    pub(super) job: Option<JobKey>,
    /// True exactly when the socket may hold bytes, or an end, that no edge will announce again.
    pub(super) readable: bool,
    /// The peer has sent its last byte.
    peer_closed: bool,
    pub(super) closing: Closing,
    /// True exactly when a request has been answered on it.
    answered: bool,
    pub(super) listed_again: bool,
    pub(super) listed_dirty: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Closing {
    No,
    /// When the output is written.
    AfterOutput,
    /// Our side is shut; what the peer still sends is thrown away, for an early close would destroy our last answer.
    Lingering {
        discarded: usize,
    },
}

impl Connection {
    pub(super) fn new() -> Connection {
        Connection {
            generation: 0,
            open: false,
            http: http::Connection::new(),
            input: Buffer::new(),
            output: Buffer::new(),
            written: 0,
            progress: 0,
            job: None,
            readable: false,
            peer_closed: false,
            closing: Closing::No,
            answered: false,
            listed_again: false,
            listed_dirty: false,
        }
    }

    /// Open, and neither reading, working nor writing.
    pub(super) fn is_idle(&self) -> bool {
        self.open && self.job.is_none() && self.input.is_empty() && !self.has_output() && !self.readable
    }

    pub(super) fn has_output(&self) -> bool {
        self.written < self.output.len()
    }
}

/// The method's name on the wire; what is none of ours is refused by the route.
fn name(method: Method) -> &'static str {
    match method {
        Method::Get => "GET",
        Method::Head => "HEAD",
        Method::Post => "POST",
        Method::Options => "OPTIONS",
        Method::Other => "",
    }
}

/// The model that a path names.
fn model(route: Route) -> Option<u32> {
    match route {
        Route::Infer { model } => Some(model),
        Route::Embeddings | Route::Models | Route::ModelsOpenAi | Route::Ready | Route::Live | Route::Metrics => None,
    }
}

/// What must be known of a request to answer it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) method: Method,
    pub(super) family: Family,
    /// The model, where the path names one.
    pub(super) model: Option<u32>,
    pub(super) request_id: RequestId,
    /// What the answer says of the web page that asked.
    pub(super) permit: Permit,
}

impl Asked {
    /// Of a request of which this is known; `gist` names places in `bytes`.
    fn new(gist: &Gist, bytes: &[u8], made: RequestId, origins: &Origins) -> Asked {
        Asked {
            method: gist.method,
            family: Family::of(gist.path.of(bytes)),
            model: None,
            request_id: gist.request_id.map_or(made, |span| RequestId::new(span.of(bytes))),
            permit: origins.permit(gist.origin.map(|span| span.of(bytes))),
        }
    }
}

/// Where a head leads.
#[derive(Clone, Copy, Debug)]
enum Lead {
    Route(Route),
    /// It asks what may be asked.
    Options(Allow),
}

/// The fields that let a web page read an answer.
pub(super) fn permitted<'a>(head: ResponseHead<'a>, origins: &Origins, permit: Permit) -> ResponseHead<'a> {
    // Said to everybody, or a cache between would hand a page's answer to another page.
    let head = if origins.distinguish() { head.header("vary", b"origin") } else { head };
    let Some(origin) = origins.value(permit) else { return head };
    let head = head.header("access-control-allow-origin", origin.as_bytes());
    head.header("access-control-expose-headers", b"x-request-id, x-truncated-texts, server-timing, retry-after")
}

/// The `x-request-id` of an answer: the client's own or one we made.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestId {
    bytes: [u8; http::REQUEST_ID_BYTES_MAX],
    length: u8,
}

impl RequestId {
    fn new(id: &[u8]) -> RequestId {
        let mut bytes = [0; http::REQUEST_ID_BYTES_MAX];
        let length = id.len().min(bytes.len());
        bytes[..length].copy_from_slice(&id[..length]);
        RequestId { bytes, length: length as u8 }
    }

    /// Sixteen hexadecimal digits that do not repeat for 2^64 numbers.
    fn made(number: u64) -> RequestId {
        // SplitMix64's finaliser: a bijection, so different numbers stay different.
        let mut mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        let digits: [u8; 16] =
            std::array::from_fn(|index| b"0123456789abcdef"[(mixed >> (60 - 4 * index)) as usize & 15]);
        RequestId::new(&digits)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length as usize]
    }
}

impl<N: Network> Reactor<N> {
    pub(super) fn open(&mut self, slot: u32, now_ns: u64) {
        let connection = &mut self.connections[slot as usize];
        debug_assert!(!connection.open && connection.input.capacity() == 0 && connection.output.capacity() == 0);
        *connection = Connection {
            generation: connection.generation,
            open: true,
            // Most clients have sent their request by the time they are accepted.
            readable: true,
            listed_again: connection.listed_again,
            listed_dirty: connection.listed_dirty,
            ..Connection::new()
        };
        self.deadlines.set(slot, Kind::Idle, now_ns);
        self.list_again(slot);
    }

    /// Ends a connection and whatever it was waiting for.
    pub(super) fn close(&mut self, slot: u32) {
        let connection = &mut self.connections[slot as usize];
        debug_assert!(connection.open);
        connection.open = false;
        connection.generation = connection.generation.wrapping_add(1);
        let job = connection.job.take();
        self.parts.buffers.put(std::mem::take(&mut connection.input));
        self.parts.buffers.put(std::mem::take(&mut connection.output));
        connection.written = 0;
        self.deadlines.clear(slot);
        self.network.close(slot);
        self.parts.metrics.connections_closed += 1;
        self.connections_free.push(slot);
        // There may be room, and a file descriptor, for one that waits.
        self.accepts = true;
        if let Some(job) = job {
            self.cancel(slot, job);
        }
    }

    /// What the network says has become possible. Work is only noted here; [`Reactor::turn`] does it.
    pub fn socket_ready(&mut self, id: ConnectionId, event: Event) {
        let connection = &mut self.connections[id.slot as usize];
        if !connection.open || connection.generation != id.generation {
            return;
        }
        connection.readable |= event.readable;
        connection.peer_closed |= event.closed;
        let writes = event.writable && connection.has_output();
        if event.closed && connection.job.is_some() {
            // Nobody is left to read the answer, so nobody computes it.
            return self.close(id.slot);
        }
        if writes {
            self.list_dirty(id.slot);
        }
        if event.readable {
            self.list_again(id.slot);
        }
    }

    pub(super) fn list_again(&mut self, slot: u32) {
        if !std::mem::replace(&mut self.connections[slot as usize].listed_again, true) {
            self.again.push_back(slot);
        }
    }

    fn list_dirty(&mut self, slot: u32) {
        if !std::mem::replace(&mut self.connections[slot as usize].listed_dirty, true) {
            self.dirty.push(slot);
        }
    }

    /// Lets the listed connections go on, as far as this turn's bytes reach. Those that list themselves again do so for the
    /// next turn, behind those that had none.
    pub(super) fn go_on(&mut self, now_ns: u64) {
        self.turn_bytes_left = TURN_BYTES_ALL_MAX;
        for _ in 0..self.again.len() {
            if self.turn_bytes_left == 0 {
                return;
            }
            let slot = self.again.pop_front().expect("so many are listed");
            self.connections[slot as usize].listed_again = false;
            if self.connections[slot as usize].open {
                self.pump(slot, now_ns);
            }
        }
    }

    /// What a connection may read now.
    fn budget(&self) -> usize {
        TURN_BYTES_MAX.min(self.turn_bytes_left)
    }

    /// Reads and takes requests until the connection waits for bytes, for an answer or for its next turn.
    fn pump(&mut self, slot: u32, now_ns: u64) {
        let mut budget = self.budget();
        loop {
            let connection = &mut self.connections[slot as usize];
            if !connection.open {
                return;
            }
            if let Closing::Lingering { .. } = connection.closing {
                return self.discard(slot);
            }
            if connection.job.is_some() || connection.closing != Closing::No {
                break;
            }
            // Answers of pipelined requests share an output buffer while there is room for one more, and up to a size: they
            // are made faster than anybody reads them.
            let output = &connection.output;
            if connection.has_output() && (output.capacity() - output.len() < 2048 || output.len() >= SHARED_BYTES_MAX)
            {
                break;
            }
            match connection.http.advance(&mut connection.input, &self.limits.http) {
                Step::NeedMore { filled, buffer_bytes } => {
                    connection.input.truncate(filled);
                    if !self.read_some(slot, buffer_bytes, &mut budget, now_ns) {
                        break;
                    }
                }
                Step::Head(head) => self.head_known(slot, head, now_ns),
                Step::Continue => {
                    if self.append(slot, http::CONTINUE, now_ns) {
                        self.written_already(slot, now_ns);
                    }
                }
                Step::Request(request) => self.request(slot, request, now_ns),
                Step::Refuse(refusal) => {
                    self.refuse_bytes(slot, self.framing(refusal), now_ns);
                }
                Step::Nothing => break,
            }
        }
        self.settle(slot, now_ns);
    }

    /// Reads once. False if there is nothing to be had now, or the connection has been closed or refused.
    fn read_some(&mut self, slot: u32, buffer_bytes: usize, budget: &mut usize, now_ns: u64) -> bool {
        let connection = &mut self.connections[slot as usize];
        if !connection.readable {
            return false;
        }
        if *budget == 0 {
            self.list_again(slot);
            return false;
        }
        if !self.parts.buffers.grow(&mut connection.input, buffer_bytes) {
            self.read_without_room(slot, now_ns);
            return false;
        }
        let filled = connection.input.len();
        let room = (connection.input.capacity() - filled).min(READ_BYTES_MAX).min(*budget);
        connection.input.resize(filled + room, 0);
        let result = self.network.read(slot, &mut connection.input[filled..]);
        let read = *result.as_ref().unwrap_or(&0);
        connection.input.truncate(filled + read);
        match result {
            Ok(0) => self.end_of_input(slot),
            Ok(read) => {
                *budget -= read;
                self.turn_bytes_left -= read;
                // A short read has emptied the socket: the next byte is a new edge. An end that has been announced
                // already is not, so it must be read.
                connection.readable = (read == room || connection.peer_closed) && !planted::is(Bug::ForgetsTheRest);
                return true;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => connection.readable = false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return true,
            Err(_) => self.close(slot),
        }
        false
    }

    /// There is no memory to read into. Whoever has sent something is told so; a client that has not asked for anything is
    /// not answered either.
    fn read_without_room(&mut self, slot: u32, now_ns: u64) {
        let connection = &mut self.connections[slot as usize];
        if connection.http.phase() != Phase::Idle {
            return self.refuse_bytes(slot, Reject::NoBuffers, now_ns);
        }
        let mut bytes = [0; 512];
        match self.network.read(slot, &mut bytes) {
            Ok(0) => self.end_of_input(slot),
            // Blank lines ask for nothing either.
            Ok(read)
                if bytes[..read].iter().all(|&byte| byte == b'\r' || byte == b'\n')
                    && matches!(
                        connection.http.advance(&mut bytes[..read], &self.limits.http),
                        Step::NeedMore { filled: 0, .. }
                    ) =>
            {
                self.list_again(slot);
            }
            Ok(read) => {
                let bytes = &bytes[..read];
                let asked = self.ask_in_part(slot, bytes, http::gist(bytes, &self.limits.http), now_ns);
                self.connections[slot as usize].http.close_after_answer();
                self.refuse(slot, asked, Reject::NoBuffers, now_ns);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => connection.readable = false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => self.list_again(slot),
            Err(_) => self.close(slot),
        }
    }

    /// The client sends nothing any more. What it has been answered is still written.
    fn end_of_input(&mut self, slot: u32) {
        let connection = &mut self.connections[slot as usize];
        connection.readable = false;
        connection.peer_closed = true;
        if connection.has_output() {
            connection.closing = Closing::AfterOutput;
            self.list_dirty(slot);
        } else {
            self.close(slot);
        }
    }

    /// After a pump: the deadline that applies, and no buffer without need.
    fn settle(&mut self, slot: u32, now_ns: u64) {
        let connection = &mut self.connections[slot as usize];
        if !connection.open {
            return;
        }
        if connection.input.is_empty() && connection.input.capacity() > 0 {
            self.parts.buffers.put(std::mem::take(&mut connection.input));
        }
        if connection.has_output() {
            self.deadlines.start(slot, Kind::Write, now_ns);
            return self.list_dirty(slot);
        }
        if connection.job.is_some() {
            return self.deadlines.clear(slot);
        }
        match connection.http.phase() {
            // A draining server waits for nobody's next request, and for a first one shortly.
            Phase::Idle if self.life != Life::Serving && connection.answered => self.part(slot, now_ns),
            Phase::Idle if self.life != Life::Serving => self.deadlines.start(slot, Kind::Parting, now_ns),
            Phase::Idle => self.deadlines.start(slot, Kind::Idle, now_ns),
            Phase::Head => self.deadlines.start(slot, Kind::Head, now_ns),
            Phase::Body => self.deadlines.start(slot, Kind::Body, now_ns),
            Phase::Answer | Phase::Closed => {}
        }
    }

    /// The server ends: whoever waits for an answer, or has begun to ask, is told.
    pub(super) fn take_leave(&mut self, slot: u32, now_ns: u64) {
        let connection = &self.connections[slot as usize];
        if let Some(job) = connection.job {
            return self.fail(job, Reject::Draining, now_ns);
        }
        let phase = connection.http.phase();
        if connection.closing == Closing::No && matches!(phase, Phase::Head | Phase::Body) {
            self.refuse_bytes(slot, Reject::Draining, now_ns);
            self.settle(slot, now_ns);
        }
    }

    pub(super) fn expire(&mut self, slot: u32, kind: Kind, now_ns: u64) {
        match kind {
            Kind::Head | Kind::Body => {
                self.refuse_bytes(slot, Reject::Deadline, now_ns);
                self.settle(slot, now_ns);
            }
            Kind::Idle | Kind::Write | Kind::Linger | Kind::Parting => self.close(slot),
        }
    }

    /// A head whose body is still to come. What can be refused now, and would cost much to read first, is.
    fn head_known(&mut self, slot: u32, head: Head, now_ns: u64) {
        let costly = head.expects_continue || head.body_bytes.is_none_or(|bytes| bytes > REFUSED_BODY_BYTES_MAX);
        if !costly {
            return;
        }
        let (lead, asked) = self.look_up(slot, head);
        if let Err(reject) = lead {
            let bytes_in = self.connections[slot as usize].input.len();
            self.begin_request_line(slot, head, bytes_in, now_ns);
            self.refuse(slot, asked, reject, now_ns);
        }
    }

    /// Where a head leads, and what an answer to it must look like.
    fn look_up(&mut self, slot: u32, head: Head) -> (Result<Lead, Reject>, Asked) {
        let made = self.next_request_id();
        let policy = &self.parts.policy;
        let asked = Asked::new(&head.gist(), &self.connections[slot as usize].input, made, &policy.origins);
        let of = |span: http::Span| span.of(&self.connections[slot as usize].input);
        let path = of(head.path);
        if head.method == Method::Options {
            // Asked by browsers on behalf of pages, without the page's key.
            let allowed = match api::allowed(path, &self.parts.catalog) {
                // What the page sends next is refused where the page can read why.
                Err(_) if asked.permit != Permit::None => Ok(Allow::Any),
                allowed => allowed,
            };
            return (allowed.map(Lead::Options), asked);
        }
        let lead = policy.keys.check(path, head.authorization.map(of), head.api_key.map(of)).and_then(|()| {
            let route = api::route(name(head.method).as_bytes(), path, &self.parts.catalog)?;
            match route {
                Route::Infer { .. } | Route::Embeddings => gate::check_content_type(head.content_type.map(of))?,
                Route::Models | Route::ModelsOpenAi | Route::Ready | Route::Live | Route::Metrics => {}
            }
            Ok(Lead::Route(route))
        });
        (lead, asked)
    }

    fn next_request_id(&mut self) -> RequestId {
        self.request_ids = self.request_ids.wrapping_add(1);
        RequestId::made(self.request_ids)
    }

    /// A complete request: answered at once, or made a job.
    fn request(&mut self, slot: u32, request: Request, now_ns: u64) {
        if self.life != Life::Serving {
            self.connections[slot as usize].http.close_after_answer();
        }
        let (lead, asked) = self.look_up(slot, request.head);
        self.begin_request_line(slot, request.head, request.consumed as usize, now_ns);
        match lead {
            Ok(Lead::Route(route @ (Route::Infer { .. } | Route::Embeddings))) => {
                if self.connections[slot as usize].peer_closed {
                    // Whoever has closed already reads no answer, so nobody computes it.
                    self.parts.metrics.jobs_started += 1;
                    self.client_gone(slot, &asked);
                    return self.end_of_input(slot);
                }
                self.start_job(slot, route, request, Asked { model: model(route), ..asked }, now_ns);
            }
            Ok(Lead::Route(route)) => self.answer_directly(slot, route, &asked, now_ns),
            Ok(Lead::Options(allow)) => self.answer_options(slot, allow, request.head, &asked, now_ns),
            Err(reject) => self.refuse(slot, asked, reject, now_ns),
        }
    }

    /// What may be asked of a path, and for a web page that may ask, with what.
    fn answer_options(&mut self, slot: u32, allow: Allow, head: Head, asked: &Asked, now_ns: u64) {
        // A copy, as the answer may move what the connection holds.
        let mut headers = [0; ASKED_HEADERS_BYTES_MAX];
        let said = head.asked_headers.map(|span| span.of(&self.connections[slot as usize].input)).unwrap_or_default();
        let headers = match headers.get_mut(..said.len()) {
            Some(place) if !said.is_empty() => {
                place.copy_from_slice(said);
                &*place
            }
            Some(_) | None => ASKED_HEADERS,
        };
        let queued = self.answer(slot, 200, asked, b"", now_ns, |response| {
            let response = response.header("allow", allow.header().as_bytes());
            match asked.permit {
                Permit::None => response,
                Permit::Any | Permit::Listed(_) => response
                    .header("access-control-allow-methods", allow.header().as_bytes())
                    .header("access-control-allow-headers", headers)
                    .number("access-control-max-age", PREFLIGHT_S),
            }
        });
        self.end_direct(slot, queued, 200, asked, now_ns);
    }

    /// Routes that the reactor knows the answer of.
    fn answer_directly(&mut self, slot: u32, route: Route, asked: &Asked, now_ns: u64) {
        let mut body = std::mem::take(&mut self.body);
        body.clear();
        let (mut status, mut content_type) = (200, "application/json");
        match route {
            Route::Models => api::system::models(&self.parts.catalog, &mut body),
            Route::ModelsOpenAi => api::system::models_openai(&self.parts.catalog, self.started_s, &mut body),
            Route::Live => body.extend_from_slice(api::system::LIVE.as_bytes()),
            Route::Ready => {
                let readiness = self.readiness();
                status = readiness.status();
                let ready = self.parts.devices.iter().map(|device| device.ready.load(Ordering::Relaxed));
                readiness.write(self.parts.metrics.device_names().zip(ready), &mut body);
            }
            Route::Metrics => {
                content_type = "text/plain; version=0.0.4; charset=utf-8";
                self.parts.metrics.write(self.gauges(), &mut body);
            }
            Route::Infer { .. } | Route::Embeddings => unreachable!("these are jobs"),
        }
        let queued = self.answer(slot, status, asked, &body, now_ns, |head| head.content_type(content_type));
        self.end_direct(slot, queued, status, asked, now_ns);
        self.body = body;
    }

    /// Answers the request at the front of the input with an error.
    pub(super) fn refuse(&mut self, slot: u32, asked: Asked, reject: Reject, now_ns: u64) {
        if let Some(consumed) = self.write_refusal(slot, &asked, reject, &[], now_ns) {
            self.release(slot, consumed);
        }
    }

    /// Answers bytes that are no complete request with an error, in the shape of the request that they began; the connection
    /// ends.
    pub(super) fn refuse_bytes(&mut self, slot: u32, reject: Reject, now_ns: u64) {
        let connection = &mut self.connections[slot as usize];
        let input = std::mem::take(&mut connection.input);
        let gist = connection.http.gist(&input, &self.limits.http);
        let gist = gist.filter(|_| !planted::is(Bug::ForgetsWhoAsked));
        let asked = self.ask_in_part(slot, &input, gist, now_ns);
        // Let go first: there may be no other buffer for the answer.
        self.parts.buffers.put(input);
        self.refuse(slot, asked, reject, now_ns);
    }

    /// What an answer must look like to the request that these bytes began. Its line in the access log is begun.
    fn ask_in_part(&mut self, slot: u32, bytes: &[u8], gist: Option<Gist>, now_ns: u64) -> Asked {
        let made = self.next_request_id();
        let asked = match &gist {
            Some(gist) => Asked::new(gist, bytes, made, &self.parts.policy.origins),
            None => Asked {
                method: Method::Other,
                family: Family::Native,
                model: None,
                request_id: made,
                permit: Permit::None,
            },
        };
        self.begin_line(slot, bytes, gist.as_ref(), bytes.len(), now_ns);
        asked
    }

    /// The answer to bytes that are not HTTP as it is spoken here.
    fn framing(&self, refusal: http::Refusal) -> Reject {
        let http = &self.limits.http;
        let max = match refusal {
            http::Refusal::BodyTooLarge => return Reject::BodyTooLarge { max: http.body_bytes_max as u64 },
            http::Refusal::TargetTooLong => Some((http.target_bytes_max, "bytes (half of limits.head_bytes_max)")),
            http::Refusal::HeadTooLarge => Some((http.head_bytes_max, "bytes (limits.head_bytes_max)")),
            http::Refusal::HeadersTooMany => Some((http.headers_max, "header fields")),
            http::Refusal::ChunkExtensionsTooLarge | http::Refusal::TrailersTooLarge => {
                Some((http.chunk_extra_bytes_max, "bytes (limits.head_bytes_max)"))
            }
            _ => None,
        };
        let max = max.map(|(max, unit)| (max as u64, unit));
        Reject::Framing { status: refusal.status(), message: refusal.message(), max }
    }

    /// Queues an error in its family's shape. Returns the bytes of input that belong to its request.
    pub(super) fn write_refusal(
        &mut self,
        slot: u32,
        asked: &Asked,
        reject: Reject,
        stages: &[(&'static str, u64)],
        now_ns: u64,
    ) -> Option<usize> {
        let mut body = std::mem::take(&mut self.body);
        body.clear();
        reject.write(asked.family, &mut body);
        let status = reject.status();
        if reject.closes() || self.life != Life::Serving {
            self.connections[slot as usize].http.close_after_answer();
        }
        let queued = self.answer(slot, status, asked, &body, now_ns, |mut head| {
            head = head.content_type("application/json");
            if !stages.is_empty() {
                head = head.server_timing(stages);
            }
            if let Some(seconds) = reject.retry_after_s() {
                head = head.number("retry-after", seconds.into());
            }
            if let Some(methods) = reject.allow() {
                head = head.header("allow", methods.as_bytes());
            }
            if let Some(scheme) = reject.authenticate() {
                head = head.header("www-authenticate", scheme.as_bytes());
            }
            head
        });
        self.body = body;
        if queued.is_some() {
            self.told(slot, status, asked, stages, now_ns);
        }
        queued
    }

    /// Queues an answer and ends the request that it answers. Returns the bytes of input that belong to the request; `None` if
    /// there was no way to answer, and the connection ends.
    fn answer(
        &mut self,
        slot: u32,
        status: u16,
        asked: &Asked,
        body: &[u8],
        now_ns: u64,
        fields: impl FnOnce(ResponseHead<'_>) -> ResponseHead<'_>,
    ) -> Option<usize> {
        let persistence = self.connections[slot as usize].http.persistence();
        let mut head = std::mem::take(&mut self.head);
        head.clear();
        let date = self.date.text;
        let mut response = ResponseHead::new(&mut head, status);
        if let Some(date) = &date {
            response = response.date(date);
        }
        response = response.header("x-request-id", asked.request_id.bytes());
        response = permitted(response, &self.parts.policy.origins, asked.permit);
        fields(response).finish_with(body, asked.method, persistence);
        let queued = self.append(slot, &head, now_ns);
        self.head = head;
        if !queued {
            return None;
        }
        let consumed = self.finish_request(slot);
        self.written_already(slot, now_ns);
        Some(consumed)
    }

    /// Lets go of answered input.
    fn release(&mut self, slot: u32, consumed: usize) {
        let connection = &mut self.connections[slot as usize];
        if connection.closing != Closing::No {
            connection.input.clear();
        } else {
            connection.input.drain(..consumed);
        }
    }

    /// The request's answer is queued: the next may be read, or the connection ends after it.
    pub(super) fn finish_request(&mut self, slot: u32) -> usize {
        let connection = &mut self.connections[slot as usize];
        connection.answered = true;
        let finished = connection.http.finish();
        if !finished.keep_alive {
            connection.closing = Closing::AfterOutput;
        }
        finished.consumed
    }

    /// Appends small output. What there is no memory for is written at once, or the connection ends after what it has been
    /// answered before: false.
    pub(super) fn append(&mut self, slot: u32, bytes: &[u8], now_ns: u64) -> bool {
        let connection = &mut self.connections[slot as usize];
        let total = connection.output.len() + bytes.len();
        if !self.parts.buffers.grow(&mut connection.output, total) {
            let written =
                self.write_at_once(slot) && matches!(self.network.write(slot, bytes), Ok(n) if n == bytes.len());
            if !written {
                self.end_unanswered(slot, now_ns);
            }
            return written;
        }
        connection.output.extend_from_slice(bytes);
        self.deadlines.start(slot, Kind::Write, now_ns);
        self.list_dirty(slot);
        true
    }

    /// What there is no memory to answer ends its connection. The answers before it still arrive: closed with unread input,
    /// the connection would be reset.
    fn end_unanswered(&mut self, slot: u32, now_ns: u64) {
        let connection = &mut self.connections[slot as usize];
        connection.http.close_after_answer();
        connection.http.finish();
        connection.input.clear();
        connection.closing = Closing::AfterOutput;
        if connection.has_output() {
            self.list_dirty(slot);
        } else {
            self.output_written(slot, now_ns);
        }
    }

    /// Writes what is queued, all of it: true if nothing is, afterwards.
    fn write_at_once(&mut self, slot: u32) -> bool {
        let connection = &mut self.connections[slot as usize];
        if connection.has_output()
            && let Ok(written) = self.network.write(slot, &connection.output[connection.written..])
        {
            connection.written += written;
        }
        !connection.has_output()
    }

    /// What follows the writing of an answer that [`append`](Self::append) had no memory for.
    fn written_already(&mut self, slot: u32, now_ns: u64) {
        if !self.connections[slot as usize].has_output() {
            self.output_written(slot, now_ns);
        }
    }

    /// Queues a whole answer that lies in a buffer of its own, from `start` on. False as [`append`](Self::append)'s.
    pub(super) fn queue_output(&mut self, slot: u32, output: Buffer, start: usize, now_ns: u64) -> bool {
        let connection = &mut self.connections[slot as usize];
        if connection.has_output() {
            // Answers to what the client had sent before are still waiting for it to read.
            let queued = self.append(slot, &output[start..], now_ns);
            self.parts.buffers.put(output);
            if queued {
                self.written_already(slot, now_ns);
            }
            return queued;
        }
        let old = std::mem::replace(&mut connection.output, output);
        connection.written = start;
        connection.progress = 0;
        self.parts.buffers.put(old);
        self.deadlines.set(slot, Kind::Write, now_ns);
        self.list_dirty(slot);
        // What the client has sent meanwhile is read when this is written.
        self.list_again(slot);
        true
    }

    /// Writes what has been queued in this turn, each connection once.
    pub(super) fn flush(&mut self, now_ns: u64) {
        while let Some(slot) = self.dirty.pop() {
            self.connections[slot as usize].listed_dirty = false;
            if self.connections[slot as usize].open && self.connections[slot as usize].has_output() {
                self.write(slot, now_ns);
            }
        }
    }

    fn write(&mut self, slot: u32, now_ns: u64) {
        let connection = &mut self.connections[slot as usize];
        let end = connection.output.len().min(connection.written + TURN_BYTES_MAX);
        match self.network.write(slot, &connection.output[connection.written..end]) {
            Ok(written) => {
                connection.written += written;
                connection.progress += written;
                if connection.has_output() {
                    if connection.progress >= WRITE_PROGRESS_BYTES {
                        connection.progress = 0;
                        self.deadlines.set(slot, Kind::Write, now_ns);
                    }
                    if connection.written == end {
                        // The budget ended before the socket's room did: no edge will come.
                        self.list_again(slot);
                    }
                } else {
                    self.output_written(slot, now_ns);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => self.list_again(slot),
            Err(_) => self.close(slot),
        }
    }

    fn output_written(&mut self, slot: u32, now_ns: u64) {
        let connection = &mut self.connections[slot as usize];
        self.parts.buffers.put(std::mem::take(&mut connection.output));
        (connection.written, connection.progress) = (0, 0);
        if connection.closing != Closing::No {
            if connection.peer_closed && !connection.readable {
                return self.close(slot);
            }
            return self.part(slot, now_ns);
        }
        if connection.job.is_some() {
            // An interim answer (100 Continue) before the job's own.
            return self.deadlines.clear(slot);
        }
        match connection.http.phase() {
            Phase::Body => self.deadlines.set(slot, Kind::Body, now_ns),
            Phase::Head => self.deadlines.set(slot, Kind::Head, now_ns),
            Phase::Idle | Phase::Answer | Phase::Closed => self.deadlines.set(slot, Kind::Idle, now_ns),
        }
        if self.life != Life::Serving && connection.is_idle() {
            return self.part(slot, now_ns);
        }
        if !connection.input.is_empty() || connection.readable {
            self.list_again(slot);
        }
    }

    /// Sends no more, and closes when the client has: at once, what it sends ahead would come back as a reset and destroy an
    /// answer that it has not read yet (RFC 9112, 9.6).
    pub(super) fn part(&mut self, slot: u32, now_ns: u64) {
        self.connections[slot as usize].closing = Closing::Lingering { discarded: 0 };
        self.network.shut_down_write(slot);
        self.deadlines.set(slot, Kind::Linger, now_ns);
        self.list_again(slot);
    }

    /// Reads and throws away what a refused client still sends, within bounds.
    fn discard(&mut self, slot: u32) {
        let mut budget = self.budget();
        let mut waste = [0; 4096];
        while self.connections[slot as usize].readable {
            match self.network.read(slot, &mut waste) {
                Ok(0) => return self.close(slot),
                Ok(read) => {
                    let connection = &mut self.connections[slot as usize];
                    let Closing::Lingering { discarded } = &mut connection.closing else { return };
                    *discarded += read;
                    if *discarded > LINGER_BYTES_MAX {
                        return self.close(slot);
                    }
                    budget = budget.saturating_sub(read);
                    self.turn_bytes_left = self.turn_bytes_left.saturating_sub(read);
                    if budget == 0 {
                        return self.list_again(slot);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.connections[slot as usize].readable = false;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return self.close(slot),
            }
        }
    }

    /// Takes the request's bytes out of a connection; what lies behind the request stays. `None` without memory for that.
    pub(super) fn take_request(&mut self, slot: u32, consumed: usize) -> Option<Buffer> {
        let connection = &mut self.connections[slot as usize];
        let rest = connection.input.len() - consumed;
        let mut remaining = if rest == 0 { Buffer::new() } else { self.parts.buffers.take(rest)? };
        remaining.extend_from_slice(&connection.input[consumed..]);
        connection.input.truncate(consumed);
        Some(std::mem::replace(&mut connection.input, remaining))
    }
}

/// What the access log is told, where there is one.
impl<N: Network> Reactor<N> {
    /// A request of which this is known has come: `gist` names places in `input`.
    fn begin_line(&mut self, slot: u32, input: &[u8], gist: Option<&Gist>, bytes_in: usize, now_ns: u64) {
        let Some(journal) = &mut self.parts.policy.journal else { return };
        // Without a target, what has come of the first line is what there is to tell.
        let first_line = || input.split(|&byte| byte == b'\r' || byte == b'\n').find(|line| !line.is_empty());
        let (method, target) = match gist {
            Some(gist) if gist.target.length > 0 => (gist.method_name.of(input), gist.target.of(input)),
            Some(_) | None => (&b""[..], first_line().unwrap_or_default()),
        };
        journal.begin(
            slot,
            journal::Asked {
                arrived_ns: now_ns,
                remote: self.network.peer(slot),
                method,
                target,
                bytes_in: bytes_in as u64,
            },
        );
    }

    /// The same for a request with a whole head, which lies in its connection.
    fn begin_request_line(&mut self, slot: u32, head: Head, bytes_in: usize, now_ns: u64) {
        if self.parts.policy.journal.is_some() {
            let input = std::mem::take(&mut self.connections[slot as usize].input);
            self.begin_line(slot, &input, Some(&head.gist()), bytes_in, now_ns);
            self.connections[slot as usize].input = input;
        }
    }

    /// The request of [`begin_line`](Self::begin_line) is answered.
    pub(super) fn end_line(
        &mut self,
        slot: u32,
        asked: &Asked,
        status: u16,
        bytes_out: usize,
        stages: &[(&'static str, u64)],
        now_ns: u64,
    ) {
        let Some(journal) = &mut self.parts.policy.journal else { return };
        let mut stages_ns = [0; journal::STAGES.len()];
        stages_ns.iter_mut().zip(stages).for_each(|(place, (_, duration_ns))| *place = *duration_ns);
        journal.end(
            slot,
            journal::Answered {
                status,
                bytes_out: bytes_out as u64,
                now_ns: self.clock.now_ns().max(now_ns),
                unix_ns: since_epoch().as_nanos() as u64,
                stages_ns: (!stages.is_empty()).then_some(stages_ns),
                request_id: asked.request_id.bytes(),
                model: asked.model,
            },
        );
    }

    /// An answer that the reactor has just made up in `head` has been queued, or not.
    fn end_direct(&mut self, slot: u32, queued: Option<usize>, status: u16, asked: &Asked, now_ns: u64) {
        if let Some(consumed) = queued {
            self.told(slot, status, asked, &[], now_ns);
            self.release(slot, consumed);
        }
    }

    /// An answer that lies in `head` is on its way.
    fn told(&mut self, slot: u32, status: u16, asked: &Asked, stages: &[(&'static str, u64)], now_ns: u64) {
        self.parts.metrics.count_answer(asked.model, status);
        let bytes_out = self.head.len();
        self.end_line(slot, asked, status, bytes_out, stages, now_ns);
    }

    /// Its client went away before it was answered.
    pub(super) fn client_gone(&mut self, slot: u32, asked: &Asked) {
        self.parts.metrics.jobs_cancelled += 1;
        if !planted::is(Bug::LosesLines) {
            self.end_line(slot, asked, STATUS_CLIENT_GONE, 0, &[], 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_request_ids_differ() {
        let ids: std::collections::HashSet<_> =
            (0..10_000).map(|number| RequestId::made(number).bytes().to_vec()).collect();
        assert_eq!(ids.len(), 10_000);
        assert!(ids.iter().all(|id| id.len() == 16 && id.iter().all(u8::is_ascii_hexdigit)));
    }
}
