//! Jobs: from a complete request to its answer.

use std::sync::atomic::Ordering;

use super::connections::{Asked, permitted};
use super::{ConnectionId, ENCODED_HERE_BYTES, Life, Network, Reactor, STARVED_NS_MAX};
use crate::api::{self, Reject, Route};
use crate::http::{Request, ResponseHead};
use crate::job::{Body, Buffer, Errand, HEADROOM, JobKey, Piece, ToReactor, ToWorker};
use crate::metrics::Stage;
use crate::planted::{self, Bug};
use crate::tokenize::encode_answer;

/// One request between its complete body and its answer.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) connection: ConnectionId,
    /// The worker that cuts it.
    worker: usize,
    /// The body, while it is at home.
    pub(super) body: Option<Box<Body>>,
    /// What a worker has the body for; `None` exactly while it is at home.
    pub(super) out: Option<Errand>,
    /// Pieces in this job's hands, empty or full, and how many it may have.
    pub(super) lent: usize,
    window: usize,
    /// What its answer must look like; `None` exactly while the slot is free.
    pub(super) asked: Option<Asked>,
    /// Results so far: `items × width` f32, little-endian, in input order.
    pub(super) values: Buffer,
    items_done: u32,
    /// Tokens by which this job counts in the queue: an estimate from its bytes until they are known.
    pub(super) queue_tokens: u64,
    queued_ns: u64,
    started_ns: u64,
    done_ns: u64,
    /// How long it may take, from its complete body.
    timeout_ms: Option<u32>,
}

impl Job {
    pub(super) fn new() -> Job {
        Job {
            connection: ConnectionId { slot: 0, generation: 0 },
            worker: 0,
            body: None,
            out: None,
            lent: 0,
            window: 0,
            asked: None,
            values: Buffer::new(),
            items_done: 0,
            queue_tokens: 0,
            queued_ns: u64::MAX,
            started_ns: u64::MAX,
            done_ns: 0,
            timeout_ms: None,
        }
    }
}

impl Job {
    /// Where the time went so far, as `Server-Timing` tells it; nanoseconds.
    fn stages(&self, body: &Body) -> [(&'static str, u64); 5] {
        [
            ("parse", body.parse_ns),
            ("tokenize", body.tokenize_ns),
            ("queue", if self.done_ns == 0 { 0 } else { self.started_ns.saturating_sub(self.queued_ns) }),
            ("device", body.device_ns),
            ("encode", body.encode_ns),
        ]
    }
}

/// A token is about four bytes of text in most languages and about three in Chinese; JSON around it counts as text.
const BYTES_PER_TOKEN: u64 = 3;

/// Bytes behind a body that spare the JSON parser a copy of it.
const PARSER_PADDING: usize = 64;

/// Bytes of a body for which one piece is lent from the start: a small request needs one, a large one a window of them.
const BYTES_PER_PIECE: usize = 1024;

impl<N: Network> Reactor<N> {
    /// Makes a request a job and sends it to a worker.
    pub(super) fn start_job(&mut self, slot: u32, route: Route, request: Request, asked: Asked, now_ns: u64) {
        let timeout_ms = request.head.timeout_ms.or(self.parts.policy.request_ms);
        if let Err(reject) = self.admit(timeout_ms) {
            return self.refuse(slot, asked, reject, now_ns);
        }
        let Some(mut bytes) = self.take_request(slot, request.consumed as usize) else {
            return self.refuse(slot, asked, Reject::NoBuffers, now_ns);
        };
        if bytes.capacity() - bytes.len() >= PARSER_PADDING {
            bytes.resize(bytes.len() + PARSER_PADDING, 0);
        }
        self.parts.metrics.jobs_started += 1;
        let index = self.jobs_free.pop().expect("admitted");
        let mut body = self.parts.bodies.pop().expect("admitted");
        let key = self.parts.generations.key(index);
        let worker = self.least_busy_worker();
        let queue_tokens = u64::from(request.body.length) / BYTES_PER_TOKEN + 1;
        self.queue_tokens += queue_tokens;
        body.job = key;
        body.errand = Errand::Cut;
        body.route = route;
        body.bytes = bytes;
        body.body = request.body.start..request.body.start + request.body.length;
        body.arrived_ns = now_ns;
        let connection = &mut self.connections[slot as usize];
        connection.job = Some(key);
        self.jobs[index as usize] = Job {
            connection: ConnectionId { slot, generation: connection.generation },
            worker,
            body: Some(body),
            asked: Some(asked),
            queue_tokens,
            timeout_ms,
            ..Job::new()
        };
        self.deadlines.clear(slot);
        if let Some(timeout_ms) = timeout_ms {
            let early_ns = if planted::is(Bug::GivesUpEarly) { now_ns % 1_000_000 } else { 0 };
            self.timeouts.set(index, now_ns - early_ns + u64::from(timeout_ms) * 1_000_000);
        }
        self.unlent.push_back(index);
        self.lend();
    }

    fn admit(&mut self, timeout_ms: Option<u32>) -> Result<(), Reject> {
        if self.life != Life::Serving {
            return Err(Reject::Draining);
        }
        if !self.parts.devices.iter().any(|device| device.ready.load(Ordering::Relaxed)) {
            return Err(Reject::DeviceDead);
        }
        let room = !self.jobs_free.is_empty() && !self.parts.bodies.is_empty();
        if !room || self.queue_tokens >= self.limits.queue_tokens_max {
            return Err(Reject::QueueFull);
        }
        if timeout_ms == Some(0) {
            self.parts.metrics.requests_expired += 1;
            return Err(Reject::Expired { timeout_ms: 0 });
        }
        Ok(())
    }

    /// The time of the job in this slot is up. What of it waits for a device is dropped when its turn comes.
    pub(super) fn give_up(&mut self, slot: u32, now_ns: u64) {
        let timeout_ms = self.jobs[slot as usize].timeout_ms.unwrap_or_default();
        self.parts.metrics.requests_expired += 1;
        self.fail(self.parts.generations.key(slot), Reject::Expired { timeout_ms }, now_ns);
    }

    fn least_busy_worker(&self) -> usize {
        let workers = self.parts.workers.iter().enumerate();
        workers.min_by_key(|(_, worker)| worker.outstanding).map_or(0, |(index, _)| index)
    }

    /// Gives empty pieces to those that wait for one, in turn: to new jobs with their way to a worker, to jobs that are
    /// being cut and had to give up their last one.
    fn lend(&mut self) {
        while !self.parts.pieces.is_empty()
            && let Some(index) = self.unlent.pop_front()
        {
            let job = &mut self.jobs[index as usize];
            let Some(mut body) = job.body.take() else {
                self.supply(self.parts.generations.key(index));
                continue;
            };
            job.window = (body.body.len() / BYTES_PER_PIECE + 1).min(self.limits.window_pieces_max);
            job.lent = job.window.min(self.parts.pieces.len());
            let kept = self.parts.pieces.len() - job.lent;
            body.pieces.extend(self.parts.pieces.drain(kept..));
            job.out = Some(Errand::Cut);
            let worker = &mut self.parts.workers[job.worker];
            worker.outstanding += 1;
            worker.sender.push(ToWorker::Body(body));
            worker.unrung = true;
        }
    }

    /// Sends an empty piece, if there is one, to a job that is being cut.
    fn supply(&mut self, key: JobKey) {
        let Some(mut piece) = self.parts.pieces.pop() else { return };
        // Should the job be cut by the time it arrives, it comes home again under this name.
        piece.job = key;
        let job = &mut self.jobs[key.slot as usize];
        job.lent += 1;
        let worker = &mut self.parts.workers[job.worker];
        worker.sender.push(ToWorker::Supply(key, piece));
        worker.unrung = true;
    }

    pub(super) fn come_home(&mut self, part: ToReactor, worker: Option<usize>, now_ns: u64) {
        match part {
            ToReactor::Piece(piece) => self.piece_home(piece, now_ns),
            ToReactor::Body(body) => {
                let worker = worker.expect("devices hold no bodies");
                self.parts.workers[worker].outstanding -= 1;
                self.body_home(body, now_ns);
            }
        }
    }

    fn body_home(&mut self, mut body: Box<Body>, now_ns: u64) {
        self.parts.pieces.append(&mut body.pieces);
        self.lend();
        if !self.parts.generations.is_live(body.job) {
            return self.put_away(body);
        }
        let key = body.job;
        let (errand, verdict, tokens) = (body.errand, body.verdict, body.tokens);
        let job = &mut self.jobs[key.slot as usize];
        job.body = Some(body);
        job.out = None;
        match (errand, verdict) {
            (_, Err(reject)) => self.fail(key, reject, now_ns),
            (Errand::Cut, Ok(())) => {
                self.queue_tokens = self.queue_tokens - job.queue_tokens + tokens;
                job.queue_tokens = tokens;
                self.forget_waiting(key.slot);
                self.complete(key, now_ns);
            }
            (Errand::Encode, Ok(())) => self.send_answer(key, now_ns),
        }
    }

    fn piece_home(&mut self, mut piece: Box<Piece>, now_ns: u64) {
        if planted::is(Bug::TrustsOldPieces) {
            piece.job = self.parts.generations.key(piece.job.slot);
        }
        let key = piece.job;
        if self.parts.generations.is_live(key) {
            match piece.fault {
                Some(fault) => self.fail(key, Reject::from(fault), now_ns),
                None if piece.sequences() > 0 => self.absorb(&piece, now_ns),
                None => {}
            }
        }
        piece.clear();
        self.parts.pieces.push(piece);
        let job = &mut self.jobs[key.slot as usize];
        if self.parts.generations.is_live(key) && job.out == Some(Errand::Cut) {
            job.lent -= 1;
            if self.unlent.is_empty() {
                // Its piece back, and one that it gave up while others waited.
                let wanted = (job.window - job.lent).min(2);
                for _ in 0..wanted {
                    self.supply(key);
                }
                return;
            }
            // Others wait for a piece: it lines up behind them when it has none left.
            if job.lent == 0 {
                self.unlent.push_back(key.slot);
            }
        }
        self.lend();
    }

    /// Copies a piece's vectors to their places.
    fn absorb(&mut self, piece: &Piece, now_ns: u64) {
        let key = piece.job;
        let job = &mut self.jobs[key.slot as usize];
        let width = piece.outputs.len() / piece.sequences();
        let bytes = piece.items as usize * width * 4;
        if job.values.capacity() == 0 {
            match self.parts.buffers.take(bytes) {
                Some(buffer) => job.values = buffer,
                None => return self.fail(key, Reject::NoBuffers, now_ns),
            }
            job.values.resize(bytes, 0);
        }
        let start = piece.first as usize * width * 4;
        let places = job.values[start..].chunks_exact_mut(4);
        for (place, value) in places.zip(&piece.outputs) {
            place.copy_from_slice(&value.to_le_bytes());
        }
        job.items_done += piece.sequences() as u32;
        job.queued_ns = job.queued_ns.min(piece.queued_ns);
        job.started_ns = job.started_ns.min(piece.started_ns);
        job.done_ns = job.done_ns.max(piece.done_ns);
        self.complete(key, now_ns);
    }

    /// Encodes the answer if the job is complete: its body home and every item computed.
    fn complete(&mut self, key: JobKey, now_ns: u64) {
        let job = &mut self.jobs[key.slot as usize];
        let Some(body) = &mut job.body else { return };
        let Some(outline) = body.outline else { return };
        if body.errand == Errand::Encode || job.items_done < outline.items {
            return;
        }
        let bytes = api::answer_bytes_max(&outline, self.parts.catalog.entry(outline.model));
        let Some(answer) = self.parts.buffers.take(HEADROOM + bytes) else {
            // A large batch ends many jobs at once: the buffers come back as the first answers are written.
            return self.starved.push_back((key, now_ns));
        };
        body.answer = answer;
        body.values = std::mem::take(&mut job.values);
        body.device_ns = job.done_ns.saturating_sub(job.started_ns);
        body.errand = Errand::Encode;
        if bytes.saturating_mul(self.together.max(1)) <= ENCODED_HERE_BYTES {
            let start_ns = self.clock.now_ns();
            let encoded = encode_answer(body, &self.parts.catalog);
            body.encode_ns = self.clock.now_ns().saturating_sub(start_ns);
            return match encoded {
                Ok(()) => self.send_answer(key, now_ns),
                Err(reject) => self.fail(key, reject, now_ns),
            };
        }
        let body = job.body.take().expect("seen above");
        job.out = Some(Errand::Encode);
        let index = self.least_busy_worker();
        self.jobs[key.slot as usize].worker = index;
        let worker = &mut self.parts.workers[index];
        worker.outstanding += 1;
        worker.sender.push(ToWorker::Body(body));
        // At once: there may be hundreds behind it, and it need not wait until the last of them is on its way.
        worker.sender.ring();
    }

    /// Answers jobs that waited for a buffer, as far as some have come back. One that waited too long is told so: the buffers
    /// may all be with jobs that wait like itself, or with clients that do not read.
    ///
    /// True if any was answered, so that there is something to write.
    pub(super) fn feed_starved(&mut self, now_ns: u64) -> bool {
        let mut answered = false;
        while let Some((key, since_ns)) = self.starved.pop_front() {
            if !self.parts.generations.is_live(key) {
                continue;
            }
            if now_ns >= since_ns + STARVED_NS_MAX {
                self.fail(key, Reject::NoBuffers, now_ns);
                answered = true;
                continue;
            }
            self.complete(key, now_ns);
            if let Some((waiting, since)) = self.starved.back_mut()
                && *waiting == key
            {
                // Still none: it keeps its turn, and nobody behind it is served before it.
                *since = since_ns;
                let entry = self.starved.pop_back().expect("just seen");
                self.starved.push_front(entry);
                break;
            }
            answered = true;
        }
        answered
    }

    /// The encoded answer goes to its connection, its head written in front of it.
    fn send_answer(&mut self, key: JobKey, now_ns: u64) {
        let job = &mut self.jobs[key.slot as usize];
        let mut body = job.body.take().expect("an answer is at home when it is sent");
        let slot = job.connection.slot;
        let outline = body.outline.expect("an encoded answer has been asked for");
        let asked = job.asked.expect("a job knows what was asked");
        let stages = job.stages(&body);
        let total_ns = self.clock.now_ns().saturating_sub(body.arrived_ns);
        let metrics = &mut self.parts.metrics;
        let recorded = [Stage::Parse, Stage::Tokenize, Stage::Queue, Stage::Device, Stage::Encode];
        for (stage, (_, duration_ns)) in recorded.into_iter().zip(stages) {
            metrics.record(stage, duration_ns);
        }
        metrics.record(Stage::Total, total_ns);
        metrics.count_texts(outline.model, outline.items.into(), body.tokens, body.truncated.into(), total_ns);

        if self.life != Life::Serving {
            self.connections[slot as usize].http.close_after_answer();
        }
        let persistence = self.connections[slot as usize].http.persistence();
        let mut answer = std::mem::take(&mut body.answer);
        let mut head = std::mem::take(&mut self.head);
        head.clear();
        let mut response = ResponseHead::new(&mut head, 200);
        if let Some(date) = &self.date.text {
            response = response.date(date);
        }
        response = response.header("x-request-id", asked.request_id.bytes());
        response = response.content_type("application/json").server_timing(&stages);
        response = permitted(response, &self.parts.policy.origins, asked.permit);
        if body.truncated > 0 {
            response = response.number("x-truncated-texts", body.truncated.into());
        }
        response.finish(answer.len() - HEADROOM, persistence);
        assert!(head.len() <= HEADROOM, "a head of {} bytes is larger than its place", head.len());
        let start = HEADROOM - head.len();
        answer[start..HEADROOM].copy_from_slice(&head);
        self.head = head;
        self.put_away(body);
        self.end(key);
        let asked = Asked { model: Some(outline.model), ..asked };
        let bytes_out = answer.len() - start;
        self.finish_request(slot);
        let again = planted::is(Bug::AnswersTwice).then(|| answer[start..].to_vec());
        if self.queue_output(slot, answer, start, now_ns) {
            self.parts.metrics.jobs_answered += 1;
            self.parts.metrics.count_answer(asked.model, 200);
            self.end_line(slot, &asked, 200, bytes_out, &stages, now_ns);
        } else {
            self.client_gone(slot, &asked);
        }
        if let Some(again) = again {
            self.append(slot, &again, now_ns);
        }
    }

    /// Answers a job with an error.
    pub(super) fn fail(&mut self, key: JobKey, reject: Reject, now_ns: u64) {
        let job = &mut self.jobs[key.slot as usize];
        let slot = job.connection.slot;
        let mut asked = job.asked.expect("a job knows what was asked");
        // Of a body that is with a worker nothing is known.
        let stages = job.body.as_ref().map(|body| {
            asked.model = body.outline.map(|outline| outline.model).or(asked.model);
            job.stages(body)
        });
        self.end(key);
        // The request's bytes have left the connection: what lies in its input is what the client sent after them.
        let stages = stages.as_ref().map_or(&[][..], |stages| stages);
        match self.write_refusal(slot, &asked, reject, stages, now_ns) {
            Some(_) => self.parts.metrics.jobs_answered += 1,
            None => self.client_gone(slot, &asked),
        }
        if self.connections[slot as usize].open {
            self.list_again(slot);
        }
    }

    /// The job's client, at this connection, is gone.
    pub(super) fn cancel(&mut self, slot: u32, key: JobKey) {
        if !self.parts.generations.is_live(key) {
            return;
        }
        if let Some(asked) = self.jobs[key.slot as usize].asked {
            self.client_gone(slot, &asked);
        }
        self.end(key);
    }

    /// Frees the job's slot. What is still on its way finds a newer generation there.
    fn end(&mut self, key: JobKey) {
        debug_assert!(self.parts.generations.is_live(key));
        self.parts.generations.end(key.slot);
        let job = std::mem::replace(&mut self.jobs[key.slot as usize], Job::new());
        if !(planted::is(Bug::KeepsTokens) && job.out.is_some()) {
            self.queue_tokens -= job.queue_tokens;
        }
        if !planted::is(Bug::KeepsTimers) {
            self.timeouts.clear(key.slot);
        }
        self.forget_waiting(key.slot);
        self.parts.buffers.put(job.values);
        if let Some(body) = job.body {
            self.put_away(body);
        }
        if job.out.is_some() {
            // Its pieces may all be elsewhere, so nothing else would make the worker look at it again.
            let worker = &mut self.parts.workers[job.worker];
            worker.sender.push(ToWorker::Ended(key));
            worker.unrung = true;
        }
        self.jobs_free.push(key.slot);
        let connection = &mut self.connections[job.connection.slot as usize];
        if connection.generation == job.connection.generation {
            connection.job = None;
        }
    }

    /// The job waits for no piece any more.
    fn forget_waiting(&mut self, slot: u32) {
        if !self.unlent.is_empty() {
            self.unlent.retain(|waiting| *waiting != slot);
        }
    }

    /// Takes a body apart and back to its pools.
    fn put_away(&mut self, mut body: Box<Body>) {
        for buffer in [&mut body.bytes, &mut body.values, &mut body.answer] {
            self.parts.buffers.put(std::mem::take(buffer));
        }
        self.parts.pieces.append(&mut body.pieces);
        body.outline = None;
        body.verdict = Ok(());
        (body.truncated, body.tokens) = (0, 0);
        (body.device_ns, body.parse_ns, body.tokenize_ns, body.encode_ns) = (0, 0, 0, 0);
        self.parts.bodies.push(body);
    }
}
