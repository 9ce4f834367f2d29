//! One client connection as a state machine over its received bytes.
//!
//! ```text
//!                    ┌──────────── finish, kept ◄──────────────┐
//!                    ▼                                         │
//!               AwaitingHead ──────── no body ───────────► InFlight ── finish ──► Closed
//!                    │ Step::Head            Step::Request ▲   ▲                   ▲
//!                    ├──► AwaitingContinue ──► Sized ──────┘   │                   │
//!                    │         │ Step::Continue                │                   │
//!                    │         └─────────────► Chunked ────────┘                   │
//!                    ├──► Sized, Chunked                                           │
//!                    └──► Refused ◄── from Chunked too ────── finish ───────────────┘
//! ```
//!
//! `finish` before a request is complete leads from each state to Closed as well.
//!
//! Owns the position in the byte stream and nothing else: the bytes are the caller's, at offset 0 those of the current
//! request. It may not look at a byte behind the request in flight, and it never believes a Content-Length as to memory.
//!
//! Invariant: which steps are returned depends on the bytes received since the last [`Connection::finish`], not on how they
//! were split into reads; with the same bytes again, [`Connection::advance`] returns the same [`Step::NeedMore`] again.

use memchr::memchr;

use super::chunked::{Decoder, Progress};
use super::request::{self, Gist, Head, Request, Span};
use super::{Limits, Persistence, Refusal, is_token_byte, work};

/// Blank lines that may precede a request line: RFC 9112 (2.2) asks for tolerance of one, left by a careless client after
/// its last body; some send it twice.
const BLANK_LINES_MAX: u8 = 2;

/// Where a connection's input stands. It lives beside its buffer, for as long as the socket is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    AwaitingHead(HeadScan),
    /// The head is known, and the client waits for leave to send its body.
    AwaitingContinue {
        head: Head,
        body_start: usize,
    },
    /// A body of known length.
    Sized {
        head: Head,
        body_start: usize,
        body_end: usize,
    },
    Chunked {
        head: Head,
        decoder: Decoder,
    },
    /// The request was handed out and is not answered yet.
    InFlight {
        consumed: u32,
        persistence: Persistence,
    },
    Refused {
        refusal: Refusal,
        gist: Option<Gist>,
    },
    Closed,
}

/// How far the search for a head's end has come: `start <= line <= scanned <= filled`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HeadScan {
    /// Where the request line begins, behind blank lines.
    start: usize,
    /// Where the line begins whose end has not been seen.
    line: usize,
    /// No byte before this one has to be looked at again.
    scanned: usize,
    blank_lines: u8,
}

/// What the bytes amount to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read more, then call again. Only the first `filled` bytes of the buffer are still in use (all of them, but while a
    /// chunked body is decoded in place): the next read goes behind those. The buffer should hold `buffer_bytes`, which is
    /// more than `filled` and at most twice that (and one), so that memory follows the bytes received and not a promise.
    NeedMore { filled: usize, buffer_bytes: usize },
    /// The head of a request whose body is still to be read: the moment to refuse it. Comes once, before
    /// [`Step::Request`], only for requests with a body. To refuse, queue the answer (saying `connection: close`) and
    /// [`finish`](Connection::finish); else call again.
    Head(Head),
    /// Send [`CONTINUE`](super::CONTINUE), then call again. Comes at most once, after [`Step::Head`].
    Continue,
    /// A complete request. Nothing is read from the buffer until [`finish`](Connection::finish).
    Request(Request),
    /// Answer with the refusal's status, saying `connection: close`, and [`finish`](Connection::finish).
    Refuse(Refusal),
    /// A request is in flight, or the connection is over: there is nothing to be had by reading.
    Nothing,
}

/// What is left of a request when its answer is queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Bytes to release from the front of the buffer.
    pub consumed: usize,
    /// True exactly when the next request may follow; it may lie in the buffer already.
    pub keep_alive: bool,
}

/// Which of the deadlines applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Between two requests: not a byte of the next has been seen.
    Idle,
    /// Within a head.
    Head,
    /// Within a body.
    Body,
    /// A request or a refusal waits for its answer.
    Answer,
    Closed,
}

impl Default for Connection {
    fn default() -> Connection {
        Connection::new()
    }
}

impl Connection {
    pub fn new() -> Connection {
        Connection { state: State::AwaitingHead(HeadScan::new()) }
    }

    /// Looks at the bytes received and not yet released, from the start of the current request. To be called after each
    /// read, and again after each [`Step::Head`] and [`Step::Continue`], always with the same limits. Chunked bodies are
    /// decoded within `filled`.
    pub fn advance(&mut self, filled: &mut [u8], limits: &Limits) -> Step {
        let step = match self.state {
            State::AwaitingHead(scan) => self.read_head(scan, filled, limits),
            State::AwaitingContinue { head, body_start } => {
                self.enter(State::body(head, body_start, limits));
                Ok(Step::Continue)
            }
            State::Sized { head, body_start, body_end } => Ok(self.read_sized(head, body_start, body_end, filled)),
            State::Chunked { head, decoder } => self.read_chunked(head, decoder, filled, limits),
            State::InFlight { .. } | State::Closed => Ok(Step::Nothing),
            State::Refused { refusal, .. } => Ok(Step::Refuse(refusal)),
        };
        let step = step.unwrap_or_else(|refusal| self.refuse(refusal, filled, limits));
        if cfg!(debug_assertions) {
            self.check_invariants(match step {
                Step::NeedMore { filled, .. } => filled,
                Step::Head(_) | Step::Continue | Step::Request(_) | Step::Refuse(_) | Step::Nothing => filled.len(),
            });
        }
        step
    }

    /// The answer to the request, to its head or to a refusal has been queued. A connection whose request was answered
    /// before it was complete ends here, because its rest would be read as the next request.
    pub fn finish(&mut self) -> Finished {
        match self.state {
            State::InFlight { consumed, persistence } if persistence.keeps() => {
                self.enter(State::AwaitingHead(HeadScan::new()));
                Finished { consumed: consumed as usize, keep_alive: true }
            }
            State::InFlight { consumed, .. } => {
                self.enter(State::Closed);
                Finished { consumed: consumed as usize, keep_alive: false }
            }
            State::AwaitingHead(_)
            | State::AwaitingContinue { .. }
            | State::Sized { .. }
            | State::Chunked { .. }
            | State::Refused { .. }
            | State::Closed => {
                self.enter(State::Closed);
                Finished { consumed: 0, keep_alive: false }
            }
        }
    }

    /// What the answer must say of the connection: what [`finish`](Self::finish) will do.
    pub fn persistence(&self) -> Persistence {
        match self.state {
            State::InFlight { persistence, .. } => persistence,
            State::AwaitingHead(_)
            | State::AwaitingContinue { .. }
            | State::Sized { .. }
            | State::Chunked { .. }
            | State::Refused { .. }
            | State::Closed => Persistence::Close,
        }
    }

    /// Makes the answer to the request in flight the connection's last one, as when the server drains.
    pub fn close_after_answer(&mut self) {
        if let State::InFlight { persistence, .. } = &mut self.state {
            *persistence = Persistence::Close;
        }
    }

    /// Where the connection stands as of the last [`advance`](Self::advance).
    pub fn phase(&self) -> Phase {
        match self.state {
            State::AwaitingHead(HeadScan { scanned: 0, .. }) => Phase::Idle,
            State::AwaitingHead(_) => Phase::Head,
            State::AwaitingContinue { .. } | State::Sized { .. } | State::Chunked { .. } => Phase::Body,
            State::InFlight { .. } | State::Refused { .. } => Phase::Answer,
            State::Closed => Phase::Closed,
        }
    }

    /// # Panics
    /// When the positions do not fit a buffer of `filled` bytes, a broken invariant.
    pub fn check_invariants(&self, filled: usize) {
        match self.state {
            State::AwaitingHead(HeadScan { start, line, scanned, blank_lines }) => {
                assert!(start <= line && line <= scanned && scanned <= filled, "{:?}, {filled} filled", self.state);
                assert!(
                    start % 2 == 0 && start <= usize::from(blank_lines) * 2,
                    "only blank lines precede a request line"
                );
                assert!(blank_lines <= BLANK_LINES_MAX);
            }
            State::AwaitingContinue { head, body_start } => {
                assert!(head.expects_continue && head.body_bytes != Some(0) && body_start <= filled);
            }
            State::Sized { head, body_start, body_end } => {
                assert_eq!(head.body_bytes, Some((body_end - body_start) as u32));
                assert!(body_start < body_end && body_start <= filled);
            }
            State::Chunked { head, decoder } => {
                assert_eq!(head.body_bytes, None);
                decoder.check_invariants(filled);
            }
            State::InFlight { consumed, .. } => assert!(consumed as usize <= filled, "a request lies in its buffer"),
            State::Refused { .. } | State::Closed => {}
        }
    }

    /// What is known of the request at hand, whose bytes `filled` are, for whoever refuses it; `None` before it has a method,
    /// and where none is at hand or it was handed out.
    pub fn gist(&self, filled: &[u8], limits: &Limits) -> Option<Gist> {
        match self.state {
            State::AwaitingHead(scan) => request::gist_of(filled, scan.start, scan.scanned, limits),
            State::AwaitingContinue { head, .. } | State::Sized { head, .. } | State::Chunked { head, .. } => {
                Some(head.gist())
            }
            State::Refused { gist, .. } => gist,
            State::InFlight { .. } | State::Closed => None,
        }
    }

    /// The bytes of this state are refused.
    #[cold]
    fn refuse(&mut self, refusal: Refusal, filled: &[u8], limits: &Limits) -> Step {
        let gist = self.gist(filled, limits);
        self.enter(State::Refused { refusal, gist });
        Step::Refuse(refusal)
    }

    fn read_head(&mut self, mut scan: HeadScan, filled: &[u8], limits: &Limits) -> Result<Step, Refusal> {
        let end = scan.find_end(filled, limits);
        let Ok(Some(end)) = end else {
            if end.is_ok() && scan.start == scan.scanned {
                // Blank lines alone are no beginning of a request: they are forgotten, but for their number.
                self.enter(State::AwaitingHead(HeadScan { blank_lines: scan.blank_lines, ..HeadScan::new() }));
                return Ok(Step::NeedMore { filled: 0, buffer_bytes: 1 });
            }
            self.enter(State::AwaitingHead(scan));
            return end.map(|_| Step::NeedMore { filled: filled.len(), buffer_bytes: filled.len() + 1 });
        };
        let head =
            request::parse(filled, scan.start, end, limits).inspect_err(|_| self.enter(State::AwaitingHead(scan)))?;
        if head.body_bytes == Some(0) {
            return Ok(self.hand_out(head, Span::new(end..end), end));
        }
        if head.expects_continue {
            self.enter(State::AwaitingContinue { head, body_start: end });
        } else {
            self.enter(State::body(head, end, limits));
        }
        Ok(Step::Head(head))
    }

    fn read_sized(&mut self, head: Head, body_start: usize, body_end: usize, filled: &[u8]) -> Step {
        if filled.len() < body_end {
            let buffer_bytes = body_end.min(filled.len().saturating_mul(2));
            return Step::NeedMore { filled: filled.len(), buffer_bytes };
        }
        self.hand_out(head, Span::new(body_start..body_end), body_end)
    }

    fn read_chunked(
        &mut self,
        head: Head,
        mut decoder: Decoder,
        filled: &mut [u8],
        limits: &Limits,
    ) -> Result<Step, Refusal> {
        match decoder.decode(filled, limits)? {
            Progress::Complete { start, end, consumed } => Ok(self.hand_out(head, Span::new(start..end), consumed)),
            Progress::NeedMore => {
                let filled = decoder.close_gap(filled);
                self.enter(State::Chunked { head, decoder });
                Ok(Step::NeedMore { filled, buffer_bytes: filled + 1 })
            }
        }
    }

    fn hand_out(&mut self, head: Head, body: Span, consumed: usize) -> Step {
        let consumed = consumed as u32;
        self.enter(State::InFlight { consumed, persistence: head.persistence });
        Step::Request(Request { head, body, consumed })
    }

    /// The only place where the state changes, but for [`close_after_answer`](Self::close_after_answer).
    fn enter(&mut self, next: State) {
        debug_assert!(self.state.may_become(&next), "{:?} may not become {next:?}", self.state);
        self.state = next;
    }
}

impl State {
    fn body(head: Head, body_start: usize, limits: &Limits) -> State {
        match head.body_bytes {
            Some(length) => State::Sized { head, body_start, body_end: body_start + length as usize },
            None => State::Chunked { head, decoder: Decoder::new(body_start, limits) },
        }
    }

    /// The picture at the top of this file.
    fn may_become(&self, next: &State) -> bool {
        use State::*;
        match (self, next) {
            (AwaitingHead(old), AwaitingHead(new)) => {
                old.scanned <= new.scanned || old.blank_lines < new.blank_lines && new.scanned == 0
            }
            (AwaitingHead(_), AwaitingContinue { .. } | Sized { .. } | Chunked { .. } | InFlight { .. }) => true,
            (AwaitingContinue { .. }, Sized { .. } | Chunked { .. }) => true,
            (Sized { .. }, InFlight { .. }) => true,
            (Chunked { .. }, Chunked { .. } | InFlight { .. }) => true,
            (InFlight { .. }, AwaitingHead(scan)) => scan.scanned == 0,
            (AwaitingHead(_) | Chunked { .. }, Refused { .. }) => true,
            (_, Closed) => true,
            (
                AwaitingContinue { .. } | Sized { .. } | Chunked { .. } | InFlight { .. } | Refused { .. } | Closed,
                _,
            ) => false,
        }
    }
}

impl HeadScan {
    fn new() -> HeadScan {
        HeadScan { start: 0, line: 0, scanned: 0, blank_lines: 0 }
    }

    /// Looks for the blank line that ends the head, among the bytes not seen before. Returns the offset behind it.
    fn find_end(&mut self, filled: &[u8], limits: &Limits) -> Result<Option<usize>, Refusal> {
        // Blank lines count, those too that are not in the buffer any more.
        let max = limits.head_bytes_max - (2 * usize::from(self.blank_lines) - self.start);
        let window = &filled[..filled.len().min(max)];
        loop {
            let in_first_line = self.line == self.start;
            if in_first_line {
                self.check_first_byte(window)?;
            }
            let unseen = &window[self.scanned..];
            let Some(at) = memchr(b'\n', unseen) else {
                work::add(unseen.len());
                self.scanned = window.len();
                if filled.len() < max {
                    return Ok(None);
                }
                return Err(if in_first_line { Refusal::TargetTooLong } else { Refusal::HeadTooLarge });
            };
            work::add(at + 1);
            self.scanned += at + 1;
            let is_blank = match window[self.line..self.scanned] {
                [b'\r', b'\n'] => true,
                [.., b'\r', b'\n'] => false,
                _ => return Err(Refusal::LineFeedBare),
            };
            self.line = self.scanned;
            match (is_blank, in_first_line) {
                (true, true) if self.blank_lines == BLANK_LINES_MAX => return Err(Refusal::BlankLinesTooMany),
                (true, true) => {
                    self.blank_lines += 1;
                    self.start = self.scanned;
                }
                (true, false) => return Ok(Some(self.scanned)),
                (false, _) => {}
            }
        }
    }

    /// A client that speaks something else, TLS most often, is told so by its first byte and does not have to wait for a
    /// deadline.
    fn check_first_byte(&self, window: &[u8]) -> Result<(), Refusal> {
        match window.get(self.start) {
            Some(&byte) if !is_token_byte(byte) && byte != b'\r' && byte != b'\n' => Err(Refusal::MethodInvalid),
            Some(_) | None => Ok(()),
        }
    }
}
