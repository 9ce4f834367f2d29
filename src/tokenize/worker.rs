//! A worker: takes requests in, cuts them into pieces for the devices, encodes large answers.
//!
//! Each step takes at most one message in and cuts at most one piece, for the request that has waited longest since its
//! last one; a request that has just come in is served first. So a request of one text is on its way to a device in the
//! step that took it in, however many bulk requests are being cut.
//!
//! Invariant: every part that is popped is pushed exactly once: a body goes home when it is cut or refused, a piece goes
//! to a device when it is filled and home when it is not needed. A panic while a body is in hand answers that body's job.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{Cut, EncodeScratch, Tokenizer};
use crate::api::{self, Catalog, Inputs, Item, Outline, Reject};
use crate::clock::Clock;
use crate::config::Limits;
use crate::job::{
    Body, Census, Errand, Generations, HEADROOM, JobKey, ModelKey, Piece, PieceBounds, Span, ToReactor, ToWorker,
};
use crate::planted::{self, Bug};
use crate::ring::{Receiver, Sender};

/// One served model as a worker needs it.
#[derive(Debug)]
pub struct Served {
    pub key: ModelKey,
    pub tokenizer: Tokenizer,
    pub max_length: usize,
    /// Rows of the model's table of embeddings: a larger id has no row.
    pub vocabulary: u32,
    /// Texts of the prompts, by their index.
    pub prompts: Vec<String>,
    /// Indices of the devices that hold the model.
    pub devices: Vec<usize>,
}

/// What bounds a worker's work.
#[derive(Clone, Debug)]
pub struct WorkerLimits {
    pub api: Limits,
    pub piece: PieceBounds,
    pub bodies_max: usize,
}

/// Everything a worker shares with others.
#[derive(Debug)]
pub struct Worker {
    pub inbox: Receiver<ToWorker>,
    pub home: Sender<ToReactor>,
    /// One ring per device.
    pub devices: Vec<Sender<Box<Piece>>>,
    /// Tokens sent to each device and not yet executed; the device subtracts.
    pub load: Vec<Arc<AtomicU64>>,
    pub ready: Vec<Arc<AtomicBool>>,
    pub catalog: Arc<Catalog>,
    pub models: Arc<[Served]>,
    pub generations: Generations,
    pub limits: WorkerLimits,
    pub clock: Clock,
    pub panics: Arc<AtomicU64>,
    pub state: WorkerState,
}

/// What a worker keeps to itself.
#[derive(Debug)]
pub struct WorkerState {
    active: VecDeque<Active>,
    /// Emptied lists, to be used again.
    spare: Vec<Inputs>,
    parse: api::Scratch,
    encode: EncodeScratch,
    /// A prompt and the text after it.
    prompted: String,
    /// The first text of the pair that was tokenized last.
    last_first: Option<(JobKey, Span)>,
}

/// Longest list of texts whose memory is kept for the next request, and how many such lists are.
const SPARE_TEXTS_MAX: usize = 256;
const SPARES_MAX: usize = 64;

impl WorkerState {
    pub fn new(limits: &WorkerLimits) -> WorkerState {
        WorkerState {
            active: VecDeque::with_capacity(limits.bodies_max),
            spare: (0..SPARES_MAX).map(|_| inputs(SPARE_TEXTS_MAX)).collect(),
            parse: api::Scratch::default(),
            encode: EncodeScratch::default(),
            prompted: String::new(),
            last_first: None,
        }
    }
}

fn inputs(capacity: usize) -> Inputs {
    Inputs { items: Vec::with_capacity(capacity), ids: Vec::new() }
}

/// A request that is being cut.
#[derive(Debug)]
struct Active {
    body: Box<Body>,
    outline: Outline,
    inputs: Inputs,
    /// The first item that is in no piece yet.
    next: usize,
}

impl Worker {
    /// Takes in at most one message and cuts at most one piece. False if there was nothing to do.
    pub fn step(&mut self) -> bool {
        let message = self.inbox.pop();
        let took = message.is_some();
        match message {
            Some(ToWorker::Body(body)) => match body.errand {
                Errand::Cut => self.begin(body),
                Errand::Encode => self.encode(body),
            },
            Some(ToWorker::Supply(job, piece)) => self.supply(job, piece),
            Some(ToWorker::Ended(job)) => self.forget(job),
            None => {}
        }
        self.cut_one() || took
    }

    /// Sends home everything that is here. To be called when no client is left: every job is dead by then.
    pub fn drain(&mut self) {
        while self.step() {}
        while let Some(active) = self.state.active.pop_front() {
            self.finish(active, Err(Reject::Draining));
        }
    }

    /// Whether a step would find anything to do.
    pub fn has_work(&self) -> bool {
        !self.inbox.is_empty() || self.state.active.iter().any(|active| !active.body.pieces.is_empty())
    }

    /// What is here and on its way here.
    pub fn census(&mut self) -> Census {
        let mut census = Census::default();
        self.inbox.each(|part| census.see_to_worker(part));
        self.state.active.iter().for_each(|active| census.see_body(&active.body));
        census
    }

    /// Parses a body. What it asks for becomes the first in line.
    fn begin(&mut self, mut body: Box<Body>) {
        let start_ns = self.clock.now_ns();
        if !self.generations.is_live(body.job) {
            return self.go_home(body, Err(Reject::Draining));
        }
        let mut inputs = self.state.spare.pop().unwrap_or_default();
        let range = body.body.start as usize..body.body.end as usize;
        let parsed = catch_unwind(AssertUnwindSafe(|| {
            api::parse(
                body.route,
                &mut body.bytes,
                range,
                &self.catalog,
                &self.limits.api,
                &mut self.state.parse,
                &mut inputs,
            )
        }));
        body.parse_ns = self.clock.now_ns().saturating_sub(start_ns);
        match parsed {
            Ok(Ok(outline)) => {
                body.outline = Some(outline);
                body.truncated = outline.lists_cut;
                self.state.active.push_front(Active { body, outline, inputs, next: 0 });
            }
            Ok(Err(reject)) => {
                self.keep(inputs);
                self.go_home(body, Err(reject));
            }
            Err(_) => {
                self.panics.fetch_add(1, Ordering::Relaxed);
                self.state.parse = api::Scratch::default();
                self.go_home(body, Err(Reject::Panicked));
            }
        }
    }

    /// An emptied piece for a job that is being cut; by now it may not be any more.
    fn supply(&mut self, job: JobKey, piece: Box<Piece>) {
        match self.state.active.iter_mut().find(|active| active.body.job == job) {
            Some(active) => active.body.pieces.push(piece),
            None if planted::is(Bug::LosesPieces) => {}
            None => {
                self.home.push(ToReactor::Piece(piece));
                self.home.ring();
            }
        }
    }

    /// Sends the body of a dead job home; it may have gone already.
    fn forget(&mut self, job: JobKey) {
        if let Some(place) = self.state.active.iter().position(|active| active.body.job == job) {
            let active = self.state.active.remove(place).expect("found above");
            self.finish(active, Err(Reject::Draining));
        }
    }

    /// Cuts one piece of the first request in line that has an empty one, and sends the request to the back.
    fn cut_one(&mut self) -> bool {
        let Some(turn) = self.state.active.iter().position(|active| !active.body.pieces.is_empty()) else {
            return false;
        };
        let mut active = self.state.active.remove(turn).expect("found above");
        if !self.generations.is_live(active.body.job) {
            self.finish(active, Err(Reject::Draining));
            return true;
        }
        let start_ns = self.clock.now_ns();
        let mut piece = active.body.pieces.pop().expect("found above");
        let filled = catch_unwind(AssertUnwindSafe(|| self.fill(&mut active, &mut piece)));
        let now_ns = self.clock.now_ns();
        active.body.tokenize_ns += now_ns.saturating_sub(start_ns);
        let result = filled.unwrap_or_else(|_| {
            self.panics.fetch_add(1, Ordering::Relaxed);
            (self.state.encode, self.state.last_first) = (EncodeScratch::default(), None);
            Err(Reject::Panicked)
        });
        if let Err(reject) = result {
            piece.clear();
            active.body.pieces.push(piece);
            self.finish(active, Err(reject));
            return true;
        }
        piece.queued_ns = now_ns;
        active.body.tokens += piece.ids.len() as u64;
        if active.next == active.inputs.items.len() {
            // The body is pushed before its last piece: whoever sees the piece come home finds the body there too, so
            // only the piece needs to wake the reactor.
            self.finish(active, Ok(()));
        } else {
            self.state.active.push_back(active);
        }
        self.send(piece);
        true
    }

    /// Fills `piece` with as many of the request's next items as it holds.
    fn fill(&mut self, active: &mut Active, piece: &mut Piece) -> Result<(), Reject> {
        let served = &self.models[active.outline.model as usize];
        piece.clear();
        piece.job = active.body.job;
        piece.model = served.key;
        piece.first = active.next as u32;
        piece.items = active.outline.items;
        piece.arrived_ns = active.body.arrived_ns;
        while active.next < active.inputs.items.len() && piece.sequences() < self.limits.piece.sequences_max as usize {
            let room = self.limits.piece.tokens_max as usize - piece.ids.len();
            let fitted = fill_item(served, active, &mut self.state, room, piece)?;
            if !fitted {
                break;
            }
            piece.ends.push(piece.ids.len() as u32);
            active.next += 1;
        }
        assert!(piece.sequences() > 0, "a piece holds at least one sequence of any model's length");
        Ok(())
    }

    /// Sends a filled piece to the least busy device that has its model.
    fn send(&mut self, piece: Box<Piece>) {
        let devices = &self.models[piece.model.index as usize].devices;
        // A dead device answers at once and so looks idle: the others go first.
        let load = |device: &&usize| {
            (!self.ready[**device].load(Ordering::Relaxed), self.load[**device].load(Ordering::Relaxed))
        };
        let device = *devices.iter().min_by_key(load).expect("a served model is on some device");
        self.load[device].fetch_add(piece.ids.len() as u64, Ordering::Relaxed);
        self.devices[device].push(piece);
        self.devices[device].ring();
    }

    fn finish(&mut self, active: Active, verdict: Result<(), Reject>) {
        self.keep(active.inputs);
        self.go_home(active.body, verdict);
    }

    fn go_home(&mut self, mut body: Box<Body>, verdict: Result<(), Reject>) {
        // A request that was cut to its end wakes nobody: its last piece will.
        let is_well = verdict.is_ok() || planted::is(Bug::RefusesInSilence);
        let quiet = body.errand == Errand::Cut && is_well;
        body.verdict = verdict;
        self.home.push(ToReactor::Body(body));
        if !quiet {
            self.home.ring();
        }
    }

    fn keep(&mut self, mut inputs: Inputs) {
        inputs.clear();
        if self.state.spare.len() < SPARES_MAX {
            inputs.items.shrink_to(SPARE_TEXTS_MAX);
            inputs.ids.shrink_to(SPARE_TEXTS_MAX);
            self.state.spare.push(inputs);
        }
    }

    /// Encodes a large answer behind the headroom of its buffer.
    fn encode(&mut self, mut body: Box<Body>) {
        let start_ns = self.clock.now_ns();
        let result = catch_unwind(AssertUnwindSafe(|| encode_answer(&mut body, &self.catalog)));
        body.encode_ns = self.clock.now_ns().saturating_sub(start_ns);
        let verdict = result.unwrap_or_else(|_| {
            self.panics.fetch_add(1, Ordering::Relaxed);
            Err(Reject::Panicked)
        });
        self.go_home(body, verdict);
    }
}

/// Encodes what `body.values` holds into `body.answer`, behind [`HEADROOM`] bytes.
///
/// # Errors
/// [`Reject::NonFinite`] if a value is no number.
pub fn encode_answer(body: &mut Body, catalog: &Catalog) -> Result<(), Reject> {
    let outline = body.outline.as_ref().expect("only parsed requests are answered");
    body.answer.clear();
    body.answer.resize(HEADROOM, 0);
    let answer = api::Answer {
        outline: *outline,
        entry: catalog.entry(outline.model),
        values: &body.values,
        prompt_tokens: body.tokens,
        device_ns: body.device_ns,
    };
    api::encode(&answer, &mut body.answer)
}

/// Appends the request's next item to `piece`. False: it would not fit into `room` tokens, and nothing was appended.
fn fill_item(
    served: &Served,
    active: &mut Active,
    state: &mut WorkerState,
    room: usize,
    piece: &mut Piece,
) -> Result<bool, Reject> {
    let Active { body, outline, inputs, next } = active;
    let bytes = &body.bytes;
    let text = |span: Span| std::str::from_utf8(&bytes[span.range()]).map_err(|_| Reject::Panicked);
    let (first, second) = match inputs.items[*next] {
        Item::Ids(span) => {
            let ids = &inputs.ids[span.range()];
            if ids.len() > room {
                return Ok(false);
            }
            piece.ids.extend_from_slice(ids);
            piece.types.resize(piece.ids.len(), 0);
            return Ok(true);
        }
        Item::Text(span) => (text(span)?, None),
        Item::Pair(first, second) => (text(first)?, Some(text(second)?)),
    };
    let WorkerState { encode: scratch, prompted, last_first, .. } = state;
    let this_first = match inputs.items[*next] {
        Item::Pair(first, _) => Some((body.job, first)),
        Item::Text(_) | Item::Ids(_) => None,
    };
    let again = this_first.is_some() && *last_first == this_first;
    *last_first = this_first;
    let first = match outline.prompt {
        Some(prompt) => {
            prompted.clear();
            prompted.push_str(&served.prompts[prompt as usize]);
            prompted.push_str(first);
            prompted.as_str()
        }
        None => first,
    };
    let cut = if outline.truncate { Cut::Early } else { Cut::Late };
    let max = served.max_length;
    let tokens = served.tokenizer.prepare(scratch, (first, second), again, max, cut).map_err(|_| Reject::Panicked)?;
    if tokens > max && !outline.truncate {
        let place = outline.place(*next as u32);
        return Err(Reject::TextTooLong { place, tokens: tokens as u32, max: max as u32 });
    }
    if tokens.min(max) > room {
        return Ok(false);
    }
    let start = piece.ids.len();
    served.tokenizer.write(scratch, second.is_some(), max, &mut piece.ids, &mut piece.types);
    // A tokenizer may know added tokens that its model was never given rows for.
    if let Some(id) = piece.ids[start..].iter().find(|id| **id >= served.vocabulary) {
        let place = outline.place(*next as u32);
        return Err(Reject::TokenOutside { place, id: (*id).into(), vocabulary: served.vocabulary });
    }
    body.truncated += u32::from(tokens > max);
    Ok(true)
}
