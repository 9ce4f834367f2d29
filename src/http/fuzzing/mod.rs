//! What the fuzz target, the corpus replay and this layer's tests share: bytes in, events out, checked three ways.
//!
//! [`request`] gives the same bytes to a [`Connection`](super::Connection) in one read, one by one and in pieces of random
//! size, and to the slow reference parser in `naive`, which shares no code with it. All must agree. Invariants, bounds of
//! memory and the repeatability of steps are asserted on the way. `connection` lets a script decide what the caller does
//! between the reads.
//!
//! Not part of the server: nothing on the data path may use it. It allocates as it likes and panics on any disagreement.

mod connection;
mod naive;

pub use connection::connection;
pub use naive::{Expected, expected};

use super::chunked::LINE_BYTES_EXTRA;
use super::{Connection, Finished, Head, Limits, Method, Persistence, Phase, Refusal, Span, Step, Version};

/// Small, so that short inputs reach them.
pub const LIMITS: Limits = Limits {
    head_bytes_max: 600,
    target_bytes_max: 80,
    headers_max: 10,
    body_bytes_max: 64,
    chunk_extra_bytes_max: 48,
};

/// A step that says something of the input, with copies of the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Head(Box<Taken>),
    Continue,
    Request(Box<Taken>),
    /// With what is known of the request all the same.
    Refuse(Refusal, Option<Box<Told>>),
}

/// A refused request, as far as it was understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    pub method: Method,
    pub method_name: Vec<u8>,
    pub target: Vec<u8>,
    pub path: Vec<u8>,
    pub request_id: Option<Vec<u8>>,
    pub origin: Option<Vec<u8>>,
}

impl Told {
    fn new(connection: &Connection, buffer: &[u8], limits: &Limits) -> Option<Box<Told>> {
        let gist = connection.gist(buffer, limits)?;
        let copy = |span: Span| span.of(buffer).to_vec();
        Some(Box::new(Told {
            method: gist.method,
            method_name: copy(gist.method_name),
            target: copy(gist.target),
            path: copy(gist.path),
            request_id: gist.request_id.map(copy),
            origin: gist.origin.map(copy),
        }))
    }
}

/// A request as it was understood. The body of a [`Event::Head`] is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    pub method: Method,
    pub method_name: Vec<u8>,
    pub target: Vec<u8>,
    pub version: Version,
    pub persistence: Persistence,
    pub path: Vec<u8>,
    pub query: Vec<u8>,
    pub content_type: Option<Vec<u8>>,
    pub authorization: Option<Vec<u8>>,
    pub request_id: Option<Vec<u8>>,
    pub origin: Option<Vec<u8>>,
    pub timeout_ms: Option<u32>,
    pub body: Vec<u8>,
}

impl Taken {
    fn new(head: &Head, body: Span, buffer: &[u8]) -> Taken {
        let copy = |span: Span| span.of(buffer).to_vec();
        Taken {
            method: head.method,
            method_name: copy(head.method_name),
            target: copy(head.target),
            version: head.version,
            persistence: head.persistence,
            path: copy(head.path),
            query: copy(head.query),
            content_type: head.content_type.map(copy),
            authorization: head.authorization.map(copy),
            request_id: head.request_id.map(copy),
            origin: head.origin.map(copy),
            timeout_ms: head.timeout_ms,
            body: copy(body),
        }
    }
}

impl Taken {
    /// What is known of it should it be refused after all.
    fn told(&self) -> Told {
        let Taken { method, method_name, target, path, request_id, origin, .. } = self.clone();
        Told { method, method_name, target, path, request_id, origin }
    }
}

/// The fuzz target `request`.
///
/// # Panics
/// When two ways of reading the input disagree or an invariant does not hold.
pub fn request(input: &[u8]) -> Vec<Event> {
    let whole = drive(input, &LIMITS, || usize::MAX);
    if let Err(difference) = agrees(&whole, &expected(input, &LIMITS)) {
        panic!("{difference}\ninput: {}", input.escape_ascii());
    }
    assert_eq!(whole, drive(input, &LIMITS, || 1), "byte by byte: {}", input.escape_ascii());
    let mut random = Random::from(input);
    for size_max in [3, 16, 100] {
        let pieces = drive(input, &LIMITS, || 1 + random.below(size_max));
        assert_eq!(whole, pieces, "pieces of up to {size_max}: {}", input.escape_ascii());
    }
    whole
}

/// Plays the caller: reads pieces as long as `read` says into one buffer and answers each request at once, until the input
/// is used up or the connection closed.
pub fn drive(input: &[u8], limits: &Limits, mut read: impl FnMut() -> usize) -> Vec<Event> {
    let mut connection = Connection::new();
    let mut buffer = Vec::new();
    let mut rest = input;
    let mut events = Vec::new();
    loop {
        match connection.advance(&mut buffer, limits) {
            Step::NeedMore { filled, buffer_bytes } => {
                check_demand(&buffer, filled, buffer_bytes, limits);
                buffer.truncate(filled);
                let again = connection.advance(&mut buffer, limits);
                assert_eq!(again, Step::NeedMore { filled, buffer_bytes }, "nothing new, nothing else to say");
                assert_eq!(connection.phase() == Phase::Idle, filled == 0, "idle exactly while nothing has come");
                if rest.is_empty() {
                    return events;
                }
                let (piece, after) = rest.split_at(read().min(rest.len()));
                buffer.extend_from_slice(piece);
                rest = after;
            }
            Step::Head(head) => {
                assert_eq!(connection.phase(), Phase::Body);
                events.push(Event::Head(Box::new(Taken::new(&head, Span::default(), &buffer))));
            }
            Step::Continue => events.push(Event::Continue),
            Step::Request(request) => {
                events.push(Event::Request(Box::new(Taken::new(&request.head, request.body, &buffer))));
                assert_eq!(connection.advance(&mut buffer, limits), Step::Nothing, "one request in flight");
                assert_eq!(connection.persistence(), request.head.persistence);
                let keep_alive = request.head.persistence.keeps();
                assert_eq!(connection.finish(), Finished { consumed: request.consumed as usize, keep_alive });
                buffer.drain(..request.consumed as usize);
                if !keep_alive {
                    assert_eq!(connection.advance(&mut buffer, limits), Step::Nothing, "closed for good");
                    return events;
                }
            }
            Step::Refuse(refusal) => {
                events.push(Event::Refuse(refusal, Told::new(&connection, &buffer, limits)));
                assert_eq!(connection.advance(&mut buffer, limits), Step::Refuse(refusal));
                assert_eq!(connection.persistence(), Persistence::Close);
                assert_eq!(connection.finish(), Finished { consumed: 0, keep_alive: false });
                assert_eq!(connection.phase(), Phase::Closed);
                return events;
            }
            Step::Nothing => panic!("nothing is in flight and nothing was closed"),
        }
    }
}

/// What is asked of memory follows what has come and stays within the limits.
fn check_demand(buffer: &[u8], filled: usize, buffer_bytes: usize, limits: &Limits) {
    let filled_max = limits.head_bytes_max + limits.body_bytes_max + limits.chunk_extra_bytes_max + LINE_BYTES_EXTRA;
    assert!(filled <= buffer.len() && filled < filled_max, "{filled} of {} in use", buffer.len());
    assert!(filled < buffer_bytes && buffer_bytes <= 2 * filled + 1, "{buffer_bytes} asked for at {filled}");
}

/// Holds the events of a connection against those of the reference, where a refusal may be any of several that apply.
pub fn agrees(events: &[Event], expected: &[Expected]) -> Result<(), String> {
    let alike = |(event, expected): (&Event, &Expected)| match (event, expected) {
        (Event::Refuse(refusal, _), Expected::Refuse(reasons)) => reasons.contains(refusal),
        (event, Expected::Event(expected)) => event == expected,
        (Event::Head(_) | Event::Continue | Event::Request(_), Expected::Refuse(_)) => false,
    };
    if events.len() != expected.len() || !events.iter().zip(expected).all(alike) {
        return Err(format!("the connection says {events:#?}\nthe reference says {expected:#?}"));
    }
    match events {
        [.., Event::Head(head), Event::Refuse(_, told)]
        | [.., Event::Head(head), Event::Continue, Event::Refuse(_, told)] => {
            if told.as_deref() == Some(&head.told()) {
                return Ok(());
            }
            Err(format!("a refused body belongs to {head:#?}, not to {told:#?}"))
        }
        _ => Ok(()),
    }
}

/// Marsaglia's xorshift64: the same numbers for the same seed on every machine.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Neighbouring seeds are spread (as SplitMix64 does it), because xorshift alone takes many steps to part them.
    pub fn new(seed: u64) -> Random {
        let mut state = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        // Zero is xorshift's fixed point.
        Random((state ^ (state >> 31)) | 1)
    }

    /// Below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % bound as u64) as usize
    }
}

impl From<&[u8]> for Random {
    /// Seeded with the FNV-1a hash of the bytes.
    fn from(bytes: &[u8]) -> Random {
        let hash = bytes
            .iter()
            .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        Random::new(hash)
    }
}
