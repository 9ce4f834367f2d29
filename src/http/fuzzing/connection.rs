//! A connection driven by a script: reads of any size, answers before the body is here, bytes that come behind a request in
//! flight, a server that drains, a client that closes its side or is too slow.
//!
//! Whatever is done, the steps must be those that the reference expects of the bytes read so far, up to where the script ended
//! the connection; phases, persistence and what is released must fit the step; and what lies behind a request is left alone.

use super::{Event, Taken, Told, agrees, check_demand, expected};
use crate::http::{
    Connection, Finished, Limits, Persistence, Phase, Request, ResponseHead, SegmentError, Span, Step, decode_segment,
};

/// From very small to larger than most inputs.
const LIMITS: [Limits; 4] = [
    super::LIMITS,
    Limits { head_bytes_max: 64, target_bytes_max: 12, headers_max: 2, body_bytes_max: 8, chunk_extra_bytes_max: 6 },
    Limits { head_bytes_max: 200, target_bytes_max: 40, headers_max: 5, body_bytes_max: 40, chunk_extra_bytes_max: 0 },
    Limits {
        head_bytes_max: 4096,
        target_bytes_max: 2048,
        headers_max: 100,
        body_bytes_max: 4096,
        chunk_extra_bytes_max: 1024,
    },
];

/// The fuzz target `connection`. The first byte tells how many bytes of script follow it; the rest is what the client sends.
///
/// # Panics
/// When a step is not the one that is due or an invariant does not hold.
pub fn connection(input: &[u8]) -> Vec<Event> {
    let (&first, rest) = input.split_first().unwrap_or((&0, b""));
    let (script, wire) = rest.split_at(rest.len().min(usize::from(first) % 64));
    let mut script = Script(script);
    let limits = LIMITS[script.below(LIMITS.len())];
    let mut client =
        Client { wire, read: 0, script, limits, connection: Connection::new(), buffer: Vec::new(), events: Vec::new() };
    let end = client.run();
    let mut due = expected(&wire[..client.read], &limits);
    match end {
        End::OutOfBytes => {}
        End::ByUs => due.truncate(client.events.len()),
    }
    if let Err(difference) = agrees(&client.events, &due) {
        panic!("{difference}\ninput: {}", input.escape_ascii());
    }
    client.events
}

/// Choices, a byte for each; 0 when they are used up, which is the dull choice everywhere.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn below(&mut self, bound: usize) -> usize {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        usize::from(first) % bound
    }
}

/// Why a connection is over.
enum End {
    /// All that was read has been looked at.
    OutOfBytes,
    /// We ended it before that.
    ByUs,
}

struct Client<'a> {
    wire: &'a [u8],
    /// How many of its bytes have been sent.
    read: usize,
    script: Script<'a>,
    limits: Limits,
    connection: Connection,
    buffer: Vec<u8>,
    events: Vec<Event>,
}

impl Client<'_> {
    fn run(&mut self) -> End {
        loop {
            match self.connection.advance(&mut self.buffer, &self.limits) {
                Step::NeedMore { filled, buffer_bytes } => {
                    check_demand(&self.buffer, filled, buffer_bytes, &self.limits);
                    self.buffer.truncate(filled);
                    assert_eq!(self.connection.phase() == Phase::Idle, filled == 0);
                    assert!(matches!(self.connection.phase(), Phase::Idle | Phase::Head | Phase::Body));
                    let gone = self.script.below(32) == 31;
                    if gone || self.read == self.wire.len() {
                        self.give_up();
                        return End::OutOfBytes;
                    }
                    self.receive();
                }
                Step::Head(head) => {
                    assert_eq!(self.connection.phase(), Phase::Body);
                    self.events.push(Event::Head(Box::new(Taken::new(&head, Span::default(), &self.buffer))));
                    if self.script.below(8) == 7 {
                        // Refused on the strength of its head, by a route that does not exist.
                        self.give_up();
                        return End::ByUs;
                    }
                }
                Step::Continue => {
                    assert_eq!(self.connection.phase(), Phase::Body);
                    self.events.push(Event::Continue);
                    if self.script.below(16) == 15 {
                        self.give_up();
                        return End::ByUs;
                    }
                }
                Step::Request(request) => {
                    self.events.push(Event::Request(Box::new(Taken::new(&request.head, request.body, &self.buffer))));
                    if !self.answer(&request) {
                        return End::ByUs;
                    }
                }
                Step::Refuse(refusal) => {
                    let told = Told::new(&self.connection, &self.buffer, &self.limits);
                    self.events.push(Event::Refuse(refusal, told.clone()));
                    assert_eq!(self.connection.phase(), Phase::Answer);
                    self.receive();
                    assert_eq!(self.connection.advance(&mut self.buffer, &self.limits), Step::Refuse(refusal));
                    assert_eq!(
                        Told::new(&self.connection, &self.buffer, &self.limits),
                        told,
                        "what follows tells nothing"
                    );
                    self.give_up();
                    return End::ByUs;
                }
                Step::Nothing => panic!("nothing is in flight and nothing was closed"),
            }
        }
    }

    /// The client sends some more, or all there is.
    fn receive(&mut self) {
        let most = self.wire.len() - self.read;
        let count = match self.script.below(64) {
            0 => most,
            count => count.min(most),
        };
        self.buffer.extend_from_slice(&self.wire[self.read..self.read + count]);
        self.read += count;
    }

    /// Whatever has come of the request in hand, nothing follows it.
    fn give_up(&mut self) {
        assert_eq!(self.connection.persistence(), Persistence::Close);
        assert_eq!(self.connection.finish(), Finished { consumed: 0, keep_alive: false });
        self.check_closed();
    }

    fn check_closed(&mut self) {
        assert_eq!(self.connection.phase(), Phase::Closed);
        let read = self.read;
        self.receive();
        assert_eq!(self.connection.advance(&mut self.buffer, &self.limits), Step::Nothing, "closed for good");
        self.read = read;
        assert_eq!(self.connection.finish(), Finished { consumed: 0, keep_alive: false });
    }

    /// Answers the request in flight, perhaps after more has come behind it. True if another may follow.
    fn answer(&mut self, request: &Request) -> bool {
        assert_eq!(self.connection.phase(), Phase::Answer);
        let mut persistence = request.head.persistence;
        for _ in 0..self.script.below(3) {
            self.receive();
            let before = self.buffer.clone();
            assert_eq!(self.connection.advance(&mut self.buffer, &self.limits), Step::Nothing, "one is in flight");
            assert_eq!(self.buffer, before, "what lies behind a request in flight is left alone");
        }
        if self.script.below(8) == 7 {
            self.connection.close_after_answer();
            persistence = Persistence::Close;
        }
        assert_eq!(self.connection.persistence(), persistence);
        self.check_head(request, persistence);
        self.check_segment(request);
        let keep_alive = persistence.keeps();
        let consumed = request.consumed as usize;
        assert_eq!(self.connection.finish(), Finished { consumed, keep_alive });
        self.buffer.drain(..consumed);
        if keep_alive {
            assert_eq!(self.connection.phase(), Phase::Idle, "nothing of the next request has been looked at");
        } else {
            self.check_closed();
        }
        keep_alive
    }

    /// One head is written, whatever the client's bytes in it are.
    fn check_head(&self, request: &Request, persistence: Persistence) {
        let mut out = Vec::new();
        let value = request.body.of(&self.buffer);
        ResponseHead::new(&mut out, 200).header("x-echo", value).finish(value.len(), persistence);
        let text = String::from_utf8_lossy(&out);
        let lines: Vec<&str> = text.split("\r\n").collect();
        let last = match persistence {
            Persistence::Close => vec!["connection: close", "", ""],
            Persistence::Keep => vec!["", ""],
            Persistence::KeepAnnounced => vec!["connection: keep-alive", "", ""],
        };
        assert!(lines[0] == "HTTP/1.1 200 OK" && lines[1].starts_with("x-echo: "), "{text}");
        assert_eq!(lines[2], format!("content-length: {}", value.len()));
        assert_eq!(lines[3..], last, "one head and nothing else: {text:?}");
        assert!(lines.iter().all(|line| !line.contains(|byte: char| byte < ' ' && byte != '\t')), "{text:?}");
    }

    /// Percent-decodes a part of the path into room that may not suffice.
    fn check_segment(&mut self, request: &Request) {
        let segment = request.head.path.of(&self.buffer);
        let mut room = [0; 64];
        let room_bytes = self.script.below(room.len());
        let mut decoded = Vec::new();
        let mut at = 0;
        let mut due = Ok(());
        while at < segment.len() && due.is_ok() {
            let (byte, taken) = match segment[at] {
                b'%' => {
                    let digits = segment.get(at + 1..at + 3).and_then(|digits| std::str::from_utf8(digits).ok());
                    let plain = digits.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
                    (plain.and_then(|digits| u8::from_str_radix(digits, 16).ok()), 3)
                }
                byte => (Some(byte), 1),
            };
            match byte {
                None => due = Err(SegmentError::EscapeInvalid),
                Some(_) if decoded.len() == room_bytes => due = Err(SegmentError::TooLong),
                Some(byte) => decoded.push(byte),
            }
            at += taken;
        }
        assert_eq!(decode_segment(segment, &mut room[..room_bytes]), due.map(|()| &decoded[..]));
    }
}
