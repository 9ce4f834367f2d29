//! What can go wrong with one request, as a value small enough to be counted without taking memory.
//!
//! Owns the kinds and their wording, and the table that counts them. A *failure* is a request without a whole answer; a
//! *wrong* answer is a whole one that is not what was asked for. Invariant: a [`Tally`] never grows beyond what it took when
//! it was made; kinds beyond its bound are counted together.

use std::fmt;
use std::io;

/// Kinds that one run tells apart.
const KINDS_MAX: usize = 48;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    // No whole answer.
    Refused,
    Reset,
    ConnectTimedOut,
    TimedOut,
    ClosedBeforeAnswer,
    ClosedInHead,
    ClosedInBody,
    /// Any other error of a socket.
    Socket(io::ErrorKind),
    NotHttp,
    HeadTooLarge,
    TooManyFields,
    AnswerTooLarge,
    BadLength,
    BadChunk,
    FramingTooLarge,
    TrailersTooLarge,
    InterimWithoutEnd,
    /// More bytes than the answer has, or bytes that nobody asked for.
    Surplus,

    // A whole answer, and a wrong one.
    Status(u16),
    Bytes {
        found: u64,
        wanted: u64,
    },
    NotJson,
    NotFinite,
    /// A key that the answer must have.
    Missing(&'static str),
    Twice(&'static str),
    /// What stands under this key, or the whole body, is of another kind than it should be.
    Kind(&'static str),
    Count {
        found: u64,
        wanted: u64,
    },
    Dimension {
        found: u64,
        wanted: u64,
    },
    Order,
    Base64,
}

impl Fault {
    /// True exactly when there was a whole answer.
    pub fn is_wrong_answer(self) -> bool {
        match self {
            Fault::Refused
            | Fault::Reset
            | Fault::ConnectTimedOut
            | Fault::TimedOut
            | Fault::ClosedBeforeAnswer
            | Fault::ClosedInHead
            | Fault::ClosedInBody
            | Fault::Socket(_)
            | Fault::NotHttp
            | Fault::HeadTooLarge
            | Fault::TooManyFields
            | Fault::AnswerTooLarge
            | Fault::BadLength
            | Fault::BadChunk
            | Fault::FramingTooLarge
            | Fault::TrailersTooLarge
            | Fault::InterimWithoutEnd
            | Fault::Surplus => false,
            Fault::Status(_)
            | Fault::Bytes { .. }
            | Fault::NotJson
            | Fault::NotFinite
            | Fault::Missing(_)
            | Fault::Twice(_)
            | Fault::Kind(_)
            | Fault::Count { .. }
            | Fault::Dimension { .. }
            | Fault::Order
            | Fault::Base64 => true,
        }
    }
}

impl From<&io::Error> for Fault {
    fn from(error: &io::Error) -> Fault {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Fault::Refused,
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionAborted => {
                Fault::Reset
            }
            kind => Fault::Socket(kind),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Refused => out.write_str("connection refused"),
            Fault::Reset => out.write_str("connection reset"),
            Fault::ConnectTimedOut => out.write_str("no connection within the timeout"),
            Fault::TimedOut => out.write_str("no answer within the timeout"),
            Fault::ClosedBeforeAnswer => out.write_str("closed before the answer"),
            Fault::ClosedInHead => out.write_str("closed mid-head"),
            Fault::ClosedInBody => out.write_str("closed mid-body"),
            Fault::Socket(kind) => write!(out, "socket: {kind}"),
            Fault::NotHttp => out.write_str("the answer is not HTTP/1"),
            Fault::HeadTooLarge => out.write_str("the answer's head is larger than 64 KiB"),
            Fault::TooManyFields => out.write_str("the answer's head has more than 128 fields"),
            Fault::AnswerTooLarge => out.write_str("the answer is larger than 1 GiB"),
            Fault::BadLength => out.write_str("the answer's length is malformed"),
            Fault::BadChunk => out.write_str("the answer's chunks are malformed"),
            Fault::FramingTooLarge => out.write_str("the size lines of the answer's chunks are larger than 64 MiB"),
            Fault::TrailersTooLarge => out.write_str("the answer's trailers are larger than 64 KiB"),
            Fault::InterimWithoutEnd => out.write_str("more than 16 interim answers"),
            Fault::Surplus => out.write_str("more bytes than one answer"),
            Fault::Status(status) => write!(out, "status {status}"),
            Fault::Bytes { found, wanted } => write!(out, "{found} bytes, not {wanted}"),
            Fault::NotJson => out.write_str("malformed JSON"),
            Fault::NotFinite => out.write_str("a value that is not a finite number"),
            Fault::Missing(key) => write!(out, "no {key:?}"),
            Fault::Twice(key) => write!(out, "{key:?} twice"),
            Fault::Kind(what) => write!(out, "{what} expected"),
            Fault::Count { found, wanted } => write!(out, "{found} results, not {wanted}"),
            Fault::Dimension { found, wanted } => write!(out, "dimension {found}, not {wanted}"),
            Fault::Order => out.write_str("indices out of order"),
            Fault::Base64 => out.write_str("malformed base64"),
        }
    }
}

/// Counts faults by kind.
#[derive(Clone, Debug)]
pub struct Tally {
    kinds: Vec<(Fault, u64)>,
    /// Those whose kind came after the table was full.
    others: u64,
}

impl Tally {
    pub fn new() -> Tally {
        Tally { kinds: Vec::with_capacity(KINDS_MAX), others: 0 }
    }

    pub fn add(&mut self, fault: Fault) {
        self.add_many(fault, 1);
    }

    fn add_many(&mut self, fault: Fault, count: u64) {
        let known = self.kinds.iter().position(|(known, _)| *known == fault);
        match known {
            Some(place) => self.kinds[place].1 += count,
            None if self.kinds.len() < KINDS_MAX => self.kinds.push((fault, count)),
            None => self.others += count,
        }
    }

    pub fn merge(&mut self, other: &Tally) {
        for (fault, count) in &other.kinds {
            self.add_many(*fault, *count);
        }
        self.others += other.others;
    }

    /// In words, as the record has it.
    pub fn in_words(&self) -> std::collections::BTreeMap<String, u64> {
        let mut words: std::collections::BTreeMap<String, u64> = std::collections::BTreeMap::new();
        for (fault, count) in &self.kinds {
            *words.entry(fault.to_string()).or_default() += count;
        }
        if self.others > 0 {
            words.insert("other kinds".to_owned(), self.others);
        }
        words
    }
}

impl Default for Tally {
    fn default() -> Tally {
        Tally::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_bounded_and_nothing_is_lost() {
        let mut tally = Tally::new();
        for found in 0..100 {
            tally.add(Fault::Dimension { found, wanted: 384 });
            tally.add(Fault::Status(503));
        }
        let mut sum = Tally::new();
        sum.merge(&tally);
        sum.merge(&tally);
        let words = sum.in_words();
        assert_eq!(words.len(), KINDS_MAX + 1);
        assert_eq!(words["status 503"], 200);
        assert_eq!(words["dimension 0, not 384"], 2);
        assert_eq!(words.values().sum::<u64>(), 400);
    }
}
