//! The client's side of HTTP/1: bytes in, one answer out. Knows no socket and no clock.
//!
//! Bodies by length, in chunks, or until the connection closes; interim answers (100 to 199) are skipped; HTTP/1.0 closes
//! unless it says otherwise. Chunks are joined in place, so that whoever checks an answer sees one piece, and what only
//! framed them (size lines, trailers, interim answers) is dropped before more is received:
//!
//! ```text
//!   head | body so far | what the removed framing left | bytes not yet looked at
//!        ^ body.start  ^ body.end                       ^ read                   ^ filled
//! ```
//!
//! Invariants: any split of the same bytes gives the same answer, and a head is parsed once; whatever a server sends, the bytes
//! kept and the bytes received for one answer are bounded.

use std::ops::Range;

use crate::fault::Fault;

const HEAD_BYTES_MAX: usize = 64 << 10;
const ANSWER_BYTES_MAX: usize = 1 << 30;
const FIELDS_MAX: usize = 128;
/// A chunk's size line with its extensions.
const CHUNK_LINE_BYTES_MAX: usize = 4096;
/// All size lines of an answer: some twenty million chunks without extensions.
const FRAMING_BYTES_MAX: usize = 64 << 20;
const TRAILER_BYTES_MAX: usize = 64 << 10;
/// Answers with a status from 100 to 199 before the one that counts.
const INTERIM_MAX: u32 = 16;

/// A whole answer, as places in the bytes that were received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub body: Range<usize>,
    /// The value of `server-timing`; empty where there is none.
    pub timing: Range<usize>,
    /// Whether the connection may carry another request.
    pub keep: bool,
}

/// How far one answer has come.
#[derive(Clone, Debug)]
pub struct Reading {
    stage: Stage,
    status: u16,
    timing: Range<usize>,
    keep: bool,
    interim: u32,
}

#[derive(Clone, Debug)]
enum Stage {
    /// The head begins at `from`; up to `searched` there is no end of it.
    Head {
        from: usize,
        searched: usize,
    },
    Sized {
        body: Range<usize>,
    },
    Chunked(Chunks),
    UntilClose {
        from: usize,
    },
}

/// A chunked body so far.
#[derive(Clone, Debug)]
struct Chunks {
    body: Range<usize>,
    /// All before has been looked at.
    read: usize,
    part: Part,
    framing_bytes: usize,
    trailer_bytes: usize,
}

/// What comes next in a chunked body.
#[derive(Clone, Copy, Debug)]
enum Part {
    Size,
    Data { left: usize },
    DataEnd,
    Trailers,
}

impl Reading {
    pub fn new() -> Reading {
        Reading { stage: Stage::Head { from: 0, searched: 0 }, status: 0, timing: 0..0, keep: false, interim: 0 }
    }

    /// The bytes that the answer is known to need in all, so that a buffer grows once.
    pub fn bytes_known(&self) -> usize {
        match &self.stage {
            Stage::Sized { body } => body.end,
            Stage::Head { .. } | Stage::Chunked(_) | Stage::UntilClose { .. } => 0,
        }
    }

    /// Goes on with `buffer[..*filled]`: what this left there before, and what was received since behind it. `None` while
    /// more must come; `filled` is then less by what is no longer needed.
    pub fn advance(&mut self, buffer: &mut [u8], filled: &mut usize) -> Result<Option<Answer>, Fault> {
        let answer = self.read_on(&mut buffer[..*filled])?;
        if answer.is_none() {
            *filled = self.drop_read(buffer, *filled);
        }
        Ok(answer)
    }

    /// Closes the gap that framing left, so that memory does not grow by it.
    fn drop_read(&mut self, buffer: &mut [u8], filled: usize) -> usize {
        let (gap, to) = match &mut self.stage {
            Stage::Head { from, searched } => {
                *searched -= *from;
                (std::mem::take(from), 0)
            }
            Stage::Chunked(chunks) => {
                let gap = chunks.read - chunks.body.end;
                chunks.read = chunks.body.end;
                (gap, chunks.body.end)
            }
            Stage::Sized { .. } | Stage::UntilClose { .. } => (0, 0),
        };
        if gap > 0 {
            buffer.copy_within(to + gap..filled, to);
        }
        filled - gap
    }

    fn read_on(&mut self, received: &mut [u8]) -> Result<Option<Answer>, Fault> {
        loop {
            match &mut self.stage {
                Stage::Head { from, searched } => {
                    let (from, begin) = (*from, (*searched).saturating_sub(3).max(*from));
                    let Some(end) = memchr::memmem::find(&received[begin..], b"\r\n\r\n") else {
                        *searched = received.len();
                        let too_large = received.len() - from > HEAD_BYTES_MAX;
                        return if too_large { Err(Fault::HeadTooLarge) } else { not_http_yet(&received[from..]) };
                    };
                    let end = begin + end + 4;
                    if end - from > HEAD_BYTES_MAX {
                        return Err(Fault::HeadTooLarge);
                    }
                    self.read_head(received, from, end)?;
                }
                Stage::Sized { body } => {
                    return match received.len().cmp(&body.end) {
                        std::cmp::Ordering::Less => Ok(None),
                        std::cmp::Ordering::Equal => Ok(Some(self.answer(self.keep))),
                        std::cmp::Ordering::Greater => Err(Fault::Surplus),
                    };
                }
                Stage::Chunked(chunks) => {
                    if !chunks.join(received)? {
                        return Ok(None);
                    }
                    let all_read = chunks.read == received.len();
                    return if all_read { Ok(Some(self.answer(self.keep))) } else { Err(Fault::Surplus) };
                }
                Stage::UntilClose { from } => {
                    let too_large = received.len() - *from > ANSWER_BYTES_MAX;
                    return if too_large { Err(Fault::AnswerTooLarge) } else { Ok(None) };
                }
            }
        }
    }

    /// The server has closed after `received`, which [`Reading::advance`] has seen.
    pub fn close(&mut self, received: &[u8]) -> Result<Answer, Fault> {
        match &self.stage {
            Stage::Head { from, .. } if received.len() == *from => Err(Fault::ClosedBeforeAnswer),
            Stage::Head { .. } => Err(Fault::ClosedInHead),
            Stage::Sized { .. } | Stage::Chunked(_) => Err(Fault::ClosedInBody),
            Stage::UntilClose { from } => {
                let body = *from..received.len();
                Ok(Answer { status: self.status, body, timing: self.timing.clone(), keep: false })
            }
        }
    }

    fn answer(&self, keep: bool) -> Answer {
        let body = match &self.stage {
            Stage::Sized { body } | Stage::Chunked(Chunks { body, .. }) => body.clone(),
            Stage::Head { .. } | Stage::UntilClose { .. } => unreachable!("only a body of known end is complete"),
        };
        Answer { status: self.status, body, timing: self.timing.clone(), keep }
    }

    /// Reads the head in `received[from..end]` and goes to what follows it.
    fn read_head(&mut self, received: &[u8], from: usize, end: usize) -> Result<(), Fault> {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut head = httparse::Response::new(&mut fields);
        match head.parse(&received[from..end]) {
            Ok(httparse::Status::Complete(_)) => {}
            Err(httparse::Error::TooManyHeaders) => return Err(Fault::TooManyFields),
            Ok(httparse::Status::Partial) | Err(_) => return Err(Fault::NotHttp),
        }
        let status = head.code.ok_or(Fault::NotHttp)?;
        if (100..200).contains(&status) {
            self.stage = Stage::Head { from: end, searched: end };
            self.interim += 1;
            // An upgrade was not asked for.
            return match status {
                101 => Err(Fault::NotHttp),
                _ if self.interim > INTERIM_MAX => Err(Fault::InterimWithoutEnd),
                _ => Ok(()),
            };
        }
        let (mut length, mut chunked, mut close, mut keep_alive) = (None, false, false, false);
        self.timing = 0..0;
        for field in head.headers.iter() {
            let name = field.name;
            if name.eq_ignore_ascii_case("content-length") {
                let found = parse_length(field.value)?;
                if length.is_some_and(|length| length != found) {
                    return Err(Fault::BadLength);
                }
                length = Some(found);
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                if !field.value.eq_ignore_ascii_case(b"chunked") || chunked {
                    return Err(Fault::BadLength);
                }
                chunked = true;
            } else if name.eq_ignore_ascii_case("connection") {
                for word in field.value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii) {
                    close |= word.eq_ignore_ascii_case(b"close");
                    keep_alive |= word.eq_ignore_ascii_case(b"keep-alive");
                }
            } else if name.eq_ignore_ascii_case("server-timing") {
                let start = field.value.as_ptr().addr() - received.as_ptr().addr();
                self.timing = start..start + field.value.len();
            }
        }
        self.status = status;
        self.keep = !close && (head.version == Some(1) || keep_alive);
        let nothing = status == 204 || status == 304;
        self.stage = match length {
            _ if nothing => Stage::Sized { body: end..end },
            _ if chunked => Stage::Chunked(Chunks::begin(end)),
            Some(length) if length > ANSWER_BYTES_MAX => return Err(Fault::AnswerTooLarge),
            Some(length) => Stage::Sized { body: end..end + length },
            None => Stage::UntilClose { from: end },
        };
        Ok(())
    }
}

impl Default for Reading {
    fn default() -> Reading {
        Reading::new()
    }
}

/// Says at once when what comes is not HTTP, instead of waiting for the end of a head that never comes.
fn not_http_yet(begin: &[u8]) -> Result<Option<Answer>, Fault> {
    let known = b"HTTP/1.";
    let length = begin.len().min(known.len());
    if begin[..length] == known[..length] { Ok(None) } else { Err(Fault::NotHttp) }
}

fn parse_length(value: &[u8]) -> Result<usize, Fault> {
    let digits = !value.is_empty() && value.len() <= 18 && value.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(value).ok().filter(|_| digits).ok_or(Fault::BadLength)?;
    text.parse().map_err(|_| Fault::BadLength)
}

impl Chunks {
    fn begin(at: usize) -> Chunks {
        Chunks { body: at..at, read: at, part: Part::Size, framing_bytes: 0, trailer_bytes: 0 }
    }

    /// Moves the data of chunks to the end of the body. True when the last one and its trailers have been read.
    fn join(&mut self, received: &mut [u8]) -> Result<bool, Fault> {
        loop {
            match self.part {
                Part::Size => {
                    let Some(line) = line(&received[self.read..])? else { return Ok(false) };
                    let size = parse_chunk_size(&received[self.read..self.read + line])?;
                    self.read += line + 2;
                    self.framing_bytes += line + 2;
                    if self.framing_bytes > FRAMING_BYTES_MAX {
                        return Err(Fault::FramingTooLarge);
                    }
                    if self.body.len() + size > ANSWER_BYTES_MAX {
                        return Err(Fault::AnswerTooLarge);
                    }
                    self.part = if size == 0 { Part::Trailers } else { Part::Data { left: size } };
                }
                Part::Data { left } => {
                    let here = left.min(received.len() - self.read);
                    received.copy_within(self.read..self.read + here, self.body.end);
                    self.body.end += here;
                    self.read += here;
                    if here < left {
                        self.part = Part::Data { left: left - here };
                        return Ok(false);
                    }
                    self.part = Part::DataEnd;
                }
                Part::DataEnd => {
                    let next = &received[self.read..];
                    if next.len() < 2 {
                        return if next.is_empty() || next == b"\r" { Ok(false) } else { Err(Fault::BadChunk) };
                    }
                    if &next[..2] != b"\r\n" {
                        return Err(Fault::BadChunk);
                    }
                    self.read += 2;
                    self.part = Part::Size;
                }
                Part::Trailers => {
                    let Some(line) = line(&received[self.read..])? else { return Ok(false) };
                    self.read += line + 2;
                    self.trailer_bytes += line + 2;
                    if line == 0 {
                        return Ok(true);
                    }
                    if self.trailer_bytes > TRAILER_BYTES_MAX {
                        return Err(Fault::TrailersTooLarge);
                    }
                }
            }
        }
    }
}

/// The length of the line that begins here, without its end; `None` while the end has not come.
fn line(bytes: &[u8]) -> Result<Option<usize>, Fault> {
    match memchr::memchr(b'\n', &bytes[..bytes.len().min(CHUNK_LINE_BYTES_MAX)]) {
        Some(0) => Err(Fault::BadChunk),
        Some(end) if bytes[end - 1] == b'\r' => Ok(Some(end - 1)),
        Some(_) => Err(Fault::BadChunk),
        None if bytes.len() >= CHUNK_LINE_BYTES_MAX => Err(Fault::BadChunk),
        None => Ok(None),
    }
}

fn parse_chunk_size(line: &[u8]) -> Result<usize, Fault> {
    let digits = line.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii_end();
    let plain = !digits.is_empty() && digits.len() <= 15 && digits.iter().all(u8::is_ascii_hexdigit);
    let text = std::str::from_utf8(digits).ok().filter(|_| plain).ok_or(Fault::BadChunk)?;
    let size = usize::from_str_radix(text, 16).map_err(|_| Fault::BadChunk)?;
    if size > ANSWER_BYTES_MAX { Err(Fault::AnswerTooLarge) } else { Ok(size) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What became of the bytes: status, body, timing, whether the connection lives; or the fault.
    type Outcome = Result<(u16, String, String, bool), Fault>;

    /// Gives the pieces one after another, then the end if `closes`.
    fn read(pieces: &[&[u8]], closes: bool) -> Option<Outcome> {
        let (mut reading, mut received) = (Reading::new(), Vec::<u8>::new());
        let seen = |answer: Answer, received: &[u8]| {
            let text = |range: Range<usize>| String::from_utf8(received[range].to_vec()).unwrap();
            (answer.status, text(answer.body), text(answer.timing), answer.keep)
        };
        for (index, piece) in pieces.iter().enumerate() {
            received.extend_from_slice(piece);
            let mut filled = received.len();
            let outcome = reading.advance(&mut received, &mut filled);
            received.truncate(filled);
            match outcome {
                Ok(None) => {}
                Ok(Some(answer)) => {
                    let rest: usize = pieces[index + 1..].iter().map(|piece| piece.len()).sum();
                    // What follows an answer is surplus, whenever it comes.
                    return Some(if rest > 0 { Err(Fault::Surplus) } else { Ok(seen(answer, &received)) });
                }
                Err(fault) => return Some(Err(fault)),
            }
        }
        closes.then(|| reading.close(&received).map(|answer| seen(answer, &received)))
    }

    fn ok(status: u16, body: &str, timing: &str, keep: bool) -> Option<Outcome> {
        Some(Ok((status, body.to_owned(), timing.to_owned(), keep)))
    }

    fn cases() -> Vec<(&'static str, bool, Option<Outcome>)> {
        vec![
            ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", false, ok(200, "hello", "", true)),
            ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", false, ok(200, "", "", false)),
            (
                "HTTP/1.1 200 OK\r\nserver-timing: parse;dur=0.1, device;dur=2\r\ncontent-length: 2\r\n\r\n{}",
                false,
                ok(200, "{}", "parse;dur=0.1, device;dur=2", true),
            ),
            ("HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}", false, ok(200, "{}", "", false)),
            (
                "HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\n{}",
                false,
                ok(200, "{}", "", true),
            ),
            ("HTTP/1.1 204 No Content\r\n\r\n", false, ok(204, "", "", true)),
            (
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 404 No\r\ncontent-length: 1\r\n\r\nx",
                false,
                ok(404, "x", "", true),
            ),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nwiki\r\n6;x=\"y\"\r\npedia \r\nE\r\nin \r\n\r\nchunks.\r\n0\r\n\r\n",
                false,
                ok(200, "wikipedia in \r\n\r\nchunks.", "", true),
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\nconnection: keep-alive, close\r\n\r\n1\r\na\r\n000\r\nx-sum: 1\r\nx: 2\r\n\r\n",
                false,
                ok(200, "a", "", false),
            ),
            ("HTTP/1.1 200 OK\r\n\r\nuntil the end", true, ok(200, "until the end", "", false)),
            ("HTTP/1.1 200 OK\r\n\r\n", true, ok(200, "", "", false)),
            ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhell", true, Some(Err(Fault::ClosedInBody))),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nwi", true, Some(Err(Fault::ClosedInBody))),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nwi\r\n", true, Some(Err(Fault::ClosedInBody))),
            ("HTTP/1.1 200 OK\r\ncontent-le", true, Some(Err(Fault::ClosedInHead))),
            ("", true, Some(Err(Fault::ClosedBeforeAnswer))),
            ("HTTP/1.1 100 Continue\r\n\r\n", true, Some(Err(Fault::ClosedBeforeAnswer))),
            ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello!", false, Some(Err(Fault::Surplus))),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nHTTP/1.1",
                false,
                Some(Err(Fault::Surplus)),
            ),
            ("SSH-2.0-OpenSSH_9.2\r\n", false, Some(Err(Fault::NotHttp))),
            ("HTTP/1.1 200 OK\r\ncontent length: 5\r\n\r\n", false, Some(Err(Fault::NotHttp))),
            ("HTTP/1.1 101 Switching\r\n\r\n", false, Some(Err(Fault::NotHttp))),
            ("HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n", false, Some(Err(Fault::BadLength))),
            ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n", false, Some(Err(Fault::BadLength))),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n", false, Some(Err(Fault::BadLength))),
            ("HTTP/1.1 200 OK\r\ncontent-length: 5000000000\r\n\r\n", false, Some(Err(Fault::AnswerTooLarge))),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n", false, Some(Err(Fault::BadChunk))),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nabc", false, Some(Err(Fault::BadChunk))),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\nab", false, Some(Err(Fault::BadChunk))),
        ]
    }

    #[test]
    fn every_answer_in_one_piece() {
        for (bytes, closes, expected) in cases() {
            assert_eq!(read(&[bytes.as_bytes()], closes), expected, "{bytes:?}");
        }
    }

    #[test]
    fn every_split_into_two_and_three_reads_gives_the_same() {
        for (text, closes, expected) in cases() {
            let bytes = text.as_bytes();
            for first in 0..=bytes.len() {
                for second in first..=bytes.len() {
                    let pieces = [&bytes[..first], &bytes[first..second], &bytes[second..]];
                    let pieces: Vec<&[u8]> = pieces.into_iter().filter(|piece| !piece.is_empty()).collect();
                    assert_eq!(read(&pieces, closes), expected, "{text:?} at {first} and {second}");
                }
            }
        }
    }

    #[test]
    fn heads_are_bounded() {
        let endless = format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(HEAD_BYTES_MAX));
        assert_eq!(read(&[endless.as_bytes()], false), Some(Err(Fault::HeadTooLarge)));
        let fields = |count| format!("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n{}\r\n", "x: y\r\n".repeat(count));
        assert_eq!(read(&[fields(FIELDS_MAX - 1).as_bytes()], false), ok(200, "", "", true));
        assert_eq!(read(&[fields(FIELDS_MAX).as_bytes()], false), Some(Err(Fault::TooManyFields)));
        let long_line = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1;{}", "y".repeat(5000));
        assert_eq!(read(&[long_line.as_bytes()], false), Some(Err(Fault::BadChunk)));
    }

    /// The most that lies in the buffer while `unit` comes again and again behind `begin`, and what that ends with.
    fn flood(begin: &str, unit: &str, unit_count: usize) -> (usize, Option<Fault>) {
        let (mut reading, mut received, mut most) = (Reading::new(), begin.as_bytes().to_vec(), 0);
        for _ in 0..unit_count {
            received.extend_from_slice(unit.as_bytes());
            let mut filled = received.len();
            most = most.max(filled);
            match reading.advance(&mut received, &mut filled) {
                Ok(None) => received.truncate(filled),
                Ok(Some(_)) => return (most, None),
                Err(fault) => return (most, Some(fault)),
            }
        }
        (most, None)
    }

    #[test]
    fn what_frames_an_answer_is_dropped_and_bounded() {
        let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        let extension = format!("1;{}\r\na\r\n", "y".repeat(4000));
        let (most, fault) = flood(chunked, &extension, FRAMING_BYTES_MAX / 4000 + 2);
        assert_eq!(fault, Some(Fault::FramingTooLarge));
        assert!(most < 64 << 10, "{most} bytes kept");
        let (most, fault) = flood(&format!("{chunked}0\r\n"), "x: y\r\n", TRAILER_BYTES_MAX);
        assert_eq!(fault, Some(Fault::TrailersTooLarge));
        assert!(most < 256, "{most} bytes kept");
        let interim = format!("HTTP/1.1 103 Early Hints\r\nlink: {}\r\n\r\n", "y".repeat(1000));
        let (most, fault) = flood("", &interim, INTERIM_MAX as usize + 1);
        assert_eq!(fault, Some(Fault::InterimWithoutEnd));
        assert!(most < 2000, "{most} bytes kept");
        assert_eq!(flood("", &interim, INTERIM_MAX as usize).1, None);
        let (most, fault) = flood(chunked, "1\r\na\r\n", 1000);
        assert!(fault.is_none() && most < 1100, "only data is kept: {most}");
    }
}
