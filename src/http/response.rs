//! The heads of answers, written into the caller's bytes.
//!
//! Owns the form of a response's head. The status line always says HTTP/1.1, as RFC 9110 asks of a server that speaks it,
//! also to clients of HTTP/1.0. Every answer has a Content-Length, because it is encoded before its head is written.
//!
//! May not allocate: the caller gives a `Vec` with room ([`HEAD_BYTES_FIXED`] and its own values), and numbers are written
//! digit by digit. Invariant: whatever the values are, the bytes written hold one head and nothing else. Names are tokens
//! fixed in the program, and a byte that may not stand in a value is written as `?`.

use super::{Method, is_token_byte, is_value_byte};

/// Sent once to a client that waits for it, before its body is read.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Room for the status line, `date`, `content-length`, `connection` and all line ends; what the caller adds comes on top.
pub const HEAD_BYTES_FIXED: usize = 192;

/// Whether the connection outlives the answer, and whether the answer must say so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// `connection: close`
    Close,
    /// HTTP/1.1 stays open unless told otherwise.
    Keep,
    /// `connection: keep-alive`, for a client of HTTP/1.0 that asked for it.
    KeepAnnounced,
}

/// A response head under construction: fields in the order of the calls, [`finish`](Self::finish) last.
#[derive(Debug)]
#[must_use = "a head without its end is not a head"]
pub struct ResponseHead<'a> {
    out: &'a mut Vec<u8>,
}

impl<'a> ResponseHead<'a> {
    /// Appends the status line to `out`.
    pub fn new(out: &'a mut Vec<u8>, status: u16) -> ResponseHead<'a> {
        debug_assert!((200..=599).contains(&status), "a final status has three digits: {status}");
        out.extend_from_slice(b"HTTP/1.1 ");
        write_decimal(out, u64::from(status));
        out.push(b' ');
        out.extend_from_slice(reason(status).as_bytes());
        out.extend_from_slice(b"\r\n");
        ResponseHead { out }
    }

    /// The time as RFC 9110 (5.6.7) writes it, `Sun, 06 Nov 1994 08:49:37 GMT`.
    pub fn date(self, date: &[u8; 29]) -> Self {
        self.header("date", date)
    }

    pub fn content_type(self, value: &'static str) -> Self {
        self.header("content-type", value.as_bytes())
    }

    /// # Panics
    /// In debug builds, when `name` is not a token or is a field that [`finish`](Self::finish) writes: a mistake of ours.
    pub fn header(mut self, name: &'static str, value: &[u8]) -> Self {
        self.name(name);
        if value.iter().all(|&byte| is_value_byte(byte)) {
            self.out.extend_from_slice(value);
        } else {
            self.out.extend(value.iter().map(|&byte| if is_value_byte(byte) { byte } else { b'?' }));
        }
        self.end_line()
    }

    /// A field whose value is a number, such as `retry-after`.
    pub fn number(mut self, name: &'static str, value: u64) -> Self {
        self.name(name);
        write_decimal(self.out, value);
        self.end_line()
    }

    /// `server-timing: parse;dur=0.012, …`. Durations in nanoseconds, written in milliseconds with three decimals.
    pub fn server_timing(mut self, stages: &[(&'static str, u64)]) -> Self {
        self.name("server-timing");
        for (index, (stage, duration_ns)) in stages.iter().enumerate() {
            debug_assert!(is_token(stage), "a stage's name is a token: {stage:?}");
            self.out.extend_from_slice(if index == 0 { b"" } else { b", " });
            self.out.extend_from_slice(stage.as_bytes());
            self.out.extend_from_slice(b";dur=");
            // Rounded half up, at the end of the range too.
            let duration_us = duration_ns / 1000 + u64::from(duration_ns % 1000 >= 500);
            write_decimal(self.out, duration_us / 1000);
            let fraction = (duration_us % 1000) as u16;
            let digit = |value: u16| b'0' + (value % 10) as u8;
            self.out.extend_from_slice(&[b'.', digit(fraction / 100), digit(fraction / 10), digit(fraction)]);
        }
        self.end_line()
    }

    /// Ends the head. `body_bytes` is the body's length even where no body follows because the method is HEAD.
    pub fn finish(self, body_bytes: usize, persistence: Persistence) {
        self.out.extend_from_slice(b"content-length: ");
        write_decimal(self.out, body_bytes as u64);
        self.out.extend_from_slice(match persistence {
            Persistence::Close => b"\r\nconnection: close\r\n\r\n",
            Persistence::Keep => b"\r\n\r\n",
            Persistence::KeepAnnounced => b"\r\nconnection: keep-alive\r\n\r\n",
        });
    }

    /// Ends the head and appends the body, unless the method is HEAD.
    pub fn finish_with(self, body: &[u8], method: Method, persistence: Persistence) {
        let ResponseHead { out } = self;
        ResponseHead { out: &mut *out }.finish(body.len(), persistence);
        match method {
            Method::Head => {}
            Method::Get | Method::Post | Method::Options | Method::Other => out.extend_from_slice(body),
        }
    }

    fn name(&mut self, name: &'static str) {
        debug_assert!(is_token(name), "a field's name is a token: {name:?}");
        let own = ["content-length", "transfer-encoding", "connection"];
        debug_assert!(!own.iter().any(|own| name.eq_ignore_ascii_case(own)), "finish() writes {name}");
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b": ");
    }

    fn end_line(self) -> Self {
        self.out.extend_from_slice(b"\r\n");
        self
    }
}

impl Persistence {
    /// True exactly when another request may follow.
    pub fn keeps(self) -> bool {
        match self {
            Persistence::Close => false,
            Persistence::Keep | Persistence::KeepAnnounced => true,
        }
    }
}

fn is_token(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(is_token_byte)
}

fn write_decimal(out: &mut Vec<u8>, mut number: u64) {
    // u64::MAX has 20 digits.
    let mut digits = [0u8; 20];
    let mut first = digits.len();
    loop {
        first -= 1;
        digits[first] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[first..]);
}

/// The phrase after the status code, for people only.
pub fn reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        200 => "OK",
        204 => "No Content",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        411 => "Length Required",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        417 => "Expectation Failed",
        422 => "Unprocessable Content",
        424 => "Failed Dependency",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        499 => "Client Closed Request",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "Unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).expect("heads are text here")
    }

    #[test]
    fn a_whole_answer() {
        let answer = written(|out| {
            ResponseHead::new(out, 200)
                .date(b"Sun, 06 Nov 1994 08:49:37 GMT")
                .content_type("application/json")
                .header("x-request-id", b"abc")
                .server_timing(&[("parse", 12_499), ("device", 3_999_999_500), ("encode", 0)])
                .finish_with(b"{}", Method::Post, Persistence::Keep);
        });
        let expected = [
            "HTTP/1.1 200 OK",
            "date: Sun, 06 Nov 1994 08:49:37 GMT",
            "content-type: application/json",
            "x-request-id: abc",
            "server-timing: parse;dur=0.012, device;dur=4000.000, encode;dur=0.000",
            "content-length: 2",
            "",
            "{}",
        ];
        assert_eq!(answer, expected.join("\r\n"));
    }

    #[test]
    fn persistence_is_said_where_the_default_differs() {
        let head =
            |persistence| written(|out| ResponseHead::new(out, 429).number("retry-after", 1).finish(0, persistence));
        let fixed = "HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-length: 0\r\n";
        assert_eq!(head(Persistence::Keep), format!("{fixed}\r\n"));
        assert_eq!(head(Persistence::Close), format!("{fixed}connection: close\r\n\r\n"));
        assert_eq!(head(Persistence::KeepAnnounced), format!("{fixed}connection: keep-alive\r\n\r\n"));
    }

    #[test]
    fn head_has_the_length_without_the_body() {
        let of = |method| written(|out| ResponseHead::new(out, 200).finish_with(b"body", method, Persistence::Keep));
        assert_eq!(of(Method::Head), "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n");
        assert_eq!(of(Method::Get), "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nbody");
    }

    /// Every byte, at every place of a value: the head parses as the one that was meant.
    #[test]
    fn no_value_breaks_out_of_its_field() {
        for byte in 0..=255u8 {
            for value in [
                vec![byte],
                vec![byte, b'a'],
                vec![b'a', byte],
                b"a\r\nx: y\r\n\r\nz".iter().map(|&c| if c == b'x' { byte } else { c }).collect(),
            ] {
                let mut out = Vec::new();
                ResponseHead::new(&mut out, 200).header("x-note", &value).finish(0, Persistence::Close);
                let mut fields = [httparse::EMPTY_HEADER; 4];
                let mut response = httparse::Response::new(&mut fields);
                assert_eq!(response.parse(&out), Ok(httparse::Status::Complete(out.len())), "{}", out.escape_ascii());
                let names: Vec<&str> = response.headers.iter().map(|header| header.name).collect();
                assert_eq!(names, ["x-note", "content-length", "connection"]);
                assert_eq!(memchr::memmem::find_iter(&out, b"\r\n\r\n").count(), 1);
                assert!(out.iter().enumerate().all(|(at, &c)| c != b'\n' || out[at - 1] == b'\r'));
            }
        }
    }

    #[test]
    fn nothing_is_allocated_where_there_is_room() {
        let id = [b'i'; 128];
        let mut out = Vec::with_capacity(HEAD_BYTES_FIXED + "x-request-id: \r\n".len() + id.len());
        let (room, place) = (out.capacity(), out.as_ptr());
        ResponseHead::new(&mut out, 431)
            .date(b"Sun, 06 Nov 1994 08:49:37 GMT")
            .header("x-request-id", &id)
            .finish(usize::MAX, Persistence::KeepAnnounced);
        assert_eq!((out.capacity(), out.as_ptr()), (room, place));
    }

    #[test]
    #[should_panic(expected = "finish() writes")]
    #[cfg(debug_assertions)]
    fn framing_fields_belong_to_finish() {
        let mut out = Vec::new();
        ResponseHead::new(&mut out, 200).header("Content-Length", b"3").finish(3, Persistence::Keep);
    }

    #[test]
    fn decimals() {
        for number in [0, 9, 10, 4096, u64::MAX] {
            assert_eq!(written(|out| write_decimal(out, number)), number.to_string());
        }
    }
}
