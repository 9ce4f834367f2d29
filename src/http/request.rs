//! A request's head: the bytes between its first line and its blank line, parsed once and checked.
//!
//! httparse finds the pieces; what they mean is decided here, because a parser that leaves two lengths, a missing Host or
//! a repeated Authorization to its caller leaves them to chance. [`parse`] is given a head that is complete (it ends in the
//! first blank line, no line ends in a bare LF) and returns either offsets and the body's framing, or the one reason for
//! refusing it.
//!
//! Invariant: every [`Span`] lies inside the head, and of two header fields that contradict each other neither is believed.

use std::mem::MaybeUninit;
use std::ops::Range;

use memchr::memchr;

use super::{HEADERS_MAX, Limits, Persistence, Refusal, is_token_byte, is_value_byte, work};

/// A byte range of the connection's buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    pub start: u32,
    pub length: u32,
}

impl Span {
    pub(super) fn new(range: Range<usize>) -> Span {
        debug_assert!(range.start <= range.end && range.end <= u32::MAX as usize);
        Span { start: range.start as u32, length: (range.end - range.start) as u32 }
    }

    pub fn range(self) -> Range<usize> {
        self.start as usize..self.start as usize + self.length as usize
    }

    /// The bytes themselves.
    pub fn of(self, buffer: &[u8]) -> &[u8] {
        &buffer[self.range()]
    }
}

/// The methods that any route knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    /// Answered as GET is, without the body.
    Head,
    Post,
    Options,
    /// A well-formed token besides these: 405 or 501 for whoever routes.
    Other,
}

impl Method {
    fn named(name: &str) -> Method {
        match name {
            "GET" => Method::Get,
            "HEAD" => Method::Head,
            "POST" => Method::Post,
            "OPTIONS" => Method::Options,
            _ => Method::Other,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.0
    Old,
    /// HTTP/1.1
    Current,
}

/// A request without its body. Spans are offsets in the connection's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub method: Method,
    /// The method and the target as they were sent.
    pub method_name: Span,
    pub target: Span,
    pub version: Version,
    /// What the client's version and Connection fields ask for.
    pub persistence: Persistence,
    /// Begins with `/` (an absolute target is reduced to its path), or is `*` for OPTIONS. Not percent-decoded.
    pub path: Span,
    /// What follows the first `?`; empty if there is none.
    pub query: Span,
    pub content_type: Option<Span>,
    pub authorization: Option<Span>,
    /// `x-request-id`, if it is fit to be echoed: 1 to [`REQUEST_ID_BYTES_MAX`] bytes of visible ASCII.
    pub request_id: Option<Span>,
    /// `x-request-timeout-ms`: how long the client will wait for the answer.
    pub timeout_ms: Option<u32>,
    /// True exactly when the client waits for `100 Continue` before it sends its body.
    pub expects_continue: bool,
    /// Bytes; `None` exactly when the body is chunked.
    pub body_bytes: Option<u32>,
    /// `x-api-key`.
    pub api_key: Option<Span>,
    /// `origin`: the web page that a browser asks for.
    pub origin: Option<Span>,
    /// `access-control-request-headers`: what a browser asks leave to send.
    pub asked_headers: Option<Span>,
}

impl Head {
    pub fn gist(&self) -> Gist {
        let Head { method, method_name, target, path, request_id, origin, .. } = *self;
        Gist { method, method_name, target, path, request_id, origin }
    }
}

/// What of a request must be known to refuse it in the shape that its client expects. It may stem from a head that is not
/// complete or contradicts itself, so nothing but a refusal may rest on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gist {
    pub method: Method,
    /// The method and the target as they were sent; the target is empty if it has not come to its end.
    pub method_name: Span,
    pub target: Span,
    /// As in [`Head`], or the beginning of what would be one; empty where the target does not begin as a path.
    pub path: Span,
    pub request_id: Option<Span>,
    pub origin: Option<Span>,
}

/// A request with its body, complete in the connection's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub head: Head,
    /// Contiguous; a chunked body has been decoded in place.
    pub body: Span,
    /// How many bytes of the buffer belong to this request. What follows them is the client's next.
    pub consumed: u32,
}

/// Longer ids are not echoed; a UUID has 36 bytes, a W3C trace id with its parent 55.
pub const REQUEST_ID_BYTES_MAX: usize = 128;

/// Parses the head that fills `bytes[start..end]`. Spans count from the beginning of `bytes`.
pub(super) fn parse(bytes: &[u8], start: usize, end: usize, limits: &Limits) -> Result<Head, Refusal> {
    let head = &bytes[start..end];
    work::add(head.len());
    let mut fields = [const { MaybeUninit::uninit() }; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut []);
    let outcome = request.parse_with_uninit_headers(head, &mut fields[..limits.headers_max.min(HEADERS_MAX)]);
    let (method_name, target, minor) = match (outcome, request.method, request.path, request.version) {
        // The caller found the same end by its own rules; a different one is a contradiction.
        (Ok(httparse::Status::Complete(length)), Some(method), Some(target), Some(minor)) if length == head.len() => {
            (method, span_in(bytes, target.as_bytes()), minor)
        }
        (Ok(_), ..) => return Err(Refusal::RequestLineInvalid),
        (Err(error), method, target, _) => return Err(explain(error, head, method, target)),
    };
    let method = Method::named(method_name);
    let (path, query) = split_target(target, bytes, method, limits)?;
    let version = if minor == 0 { Version::Old } else { Version::Current };
    let fields = Fields::collect(bytes, request.headers)?;
    fields.check_host(version)?;
    let body_bytes = fields.body_bytes(method, version, limits)?;
    Ok(Head {
        method,
        method_name: span_in(bytes, method_name.as_bytes()),
        target,
        version,
        persistence: fields.persistence(version),
        path,
        query,
        content_type: fields.content_type,
        authorization: fields.authorization,
        request_id: fields.request_id,
        timeout_ms: fields.timeout_ms,
        // To HTTP/1.0 the expectation means nothing, and without a body there is nothing to wait for (RFC 9110, 10.1.1).
        expects_continue: fields.expects_continue && version == Version::Current && body_bytes != Some(0),
        body_bytes,
        api_key: fields.api_key,
        origin: fields.origin,
        asked_headers: fields.asked_headers,
    })
}

/// What these bytes tell of the request that they begin; see [`Connection::gist`](super::Connection::gist).
pub fn gist(bytes: &[u8], limits: &Limits) -> Option<Gist> {
    let start = bytes.iter().take_while(|&&byte| byte == b'\r' || byte == b'\n').count();
    gist_of(bytes, start, bytes.len(), limits)
}

/// What the lines among `bytes[start..end]` tell, however much of them has come and whatever is wrong with them; `None` before
/// there is a method. Off the fast path.
pub(super) fn gist_of(bytes: &[u8], start: usize, end: usize, limits: &Limits) -> Option<Gist> {
    let nothing = Span::new(start..start);
    let (line, is_whole, mut rest) = match memchr(b'\n', &bytes[start..end]) {
        Some(length) => (start..start + length, true, start + length + 1),
        None => (start..end, false, end),
    };
    let line = if bytes[line.clone()].ends_with(b"\r") { line.start..line.end - 1 } else { line };
    let name_end = line.start + memchr(b' ', &bytes[line.clone()])?;
    let name = std::str::from_utf8(&bytes[line.start..name_end]).ok()?;
    if name.is_empty() || !name.bytes().all(is_token_byte) {
        return None;
    }
    let method = Method::named(name);
    let from = name_end + 1;
    let (sent, is_target) = match memchr(b' ', &bytes[from..line.end]) {
        Some(length) => (from..from + length, true),
        None => (from..line.end, is_whole),
    };
    let target = Span::new(sent.clone());
    let split = if sent.is_empty() { None } else { split_target(target, bytes, method, limits).ok() };
    let path = split.map_or_else(
        || {
            // Of a target that has not come to its end, or is none, what stands where the path would.
            let text = target.of(bytes);
            let length =
                text.iter().take_while(|&&byte| byte.is_ascii_graphic() && byte != b'?' && byte != b'#').count();
            if text.starts_with(b"/") { Span::new(sent.start..sent.start + length) } else { nothing }
        },
        |(path, _)| path,
    );
    let (mut fields, mut origins) = (Fields::default(), 0);
    while let Some(length) = memchr(b'\n', &bytes[rest..end]) {
        let line = &bytes[rest..rest + length];
        rest += length + 1;
        if line.trim_ascii().is_empty() {
            break;
        }
        let Some(colon) = memchr(b':', line) else { continue };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        let is_origin = name.eq_ignore_ascii_case(b"origin");
        origins += u32::from(is_origin);
        if is_origin || name.eq_ignore_ascii_case(b"x-request-id") {
            // That it is repeated has been said, or is of no more interest.
            let _ = fields.add(name, value, bytes);
        }
    }
    Some(Gist {
        method,
        method_name: Span::new(line.start..name_end),
        target: if is_target { target } else { nothing },
        path,
        request_id: fields.request_id,
        // Of two neither is believed.
        origin: fields.origin.filter(|_| origins == 1),
    })
}

/// Names what httparse met. Off the fast path, so the head may be looked at again.
fn explain(error: httparse::Error, head: &[u8], method: Option<&str>, target: Option<&str>) -> Refusal {
    let bare = |&at: &usize| head.get(at + 1) != Some(&b'\n');
    if memchr::memchr_iter(b'\r', head).any(|at| bare(&at)) {
        return Refusal::CarriageReturnBare;
    }
    match error {
        httparse::Error::Token if method.is_none() => Refusal::MethodInvalid,
        httparse::Error::Token => {
            let line = &head[..memchr(b'\r', head).unwrap_or(head.len())];
            let has_three_parts = memchr::memchr_iter(b' ', line).count() == 2;
            if has_three_parts { Refusal::TargetInvalid } else { Refusal::RequestLineInvalid }
        }
        httparse::Error::Version => {
            let line = &head[..memchr(b'\r', head).unwrap_or(head.len())];
            let said = method.zip(target).and_then(|(method, target)| line.get(method.len() + target.len() + 2..));
            match said {
                Some([b'H', b'T', b'T', b'P', b'/', major, b'.', minor])
                    if major.is_ascii_digit() && minor.is_ascii_digit() =>
                {
                    Refusal::VersionUnsupported
                }
                _ => Refusal::RequestLineInvalid,
            }
        }
        httparse::Error::NewLine | httparse::Error::Status => Refusal::RequestLineInvalid,
        httparse::Error::TooManyHeaders => Refusal::HeadersTooMany,
        httparse::Error::HeaderValue => Refusal::HeaderValueInvalid,
        httparse::Error::HeaderName => {
            let folded = head.windows(3).any(|window| window == b"\r\n " || window == b"\r\n\t");
            if folded { Refusal::HeaderFolded } else { Refusal::HeaderNameInvalid }
        }
    }
}

/// Reduces a target to path and query (RFC 9112, 3.2).
fn split_target(target: Span, bytes: &[u8], method: Method, limits: &Limits) -> Result<(Span, Span), Refusal> {
    let text = target.of(bytes);
    if text.len() > limits.target_bytes_max {
        return Err(Refusal::TargetTooLong);
    }
    if !text.iter().all(|&byte| byte.is_ascii_graphic() && byte != b'#') {
        return Err(Refusal::TargetInvalid);
    }
    let start = target.start as usize;
    let end = start + text.len();
    // `path..query` is the path; where an absolute target has none, the `/` before its authority stands in for it.
    let (path, mut rest) = if text[0] == b'/' {
        (None, start)
    } else if text == b"*" && method == Method::Options {
        (Some(target), end)
    } else {
        let scheme = [&b"http://"[..], b"https://"]
            .into_iter()
            .find(|scheme| text.get(..scheme.len()).is_some_and(|said| said.eq_ignore_ascii_case(scheme)))
            .ok_or(Refusal::TargetInvalid)?
            .len();
        let authority = text[scheme..].iter().take_while(|&&byte| byte != b'/' && byte != b'?').count();
        if authority == 0 || !is_host(&text[scheme..scheme + authority]) {
            return Err(Refusal::TargetInvalid);
        }
        let rest = start + scheme + authority;
        let root = Span::new(start + scheme - 1..start + scheme);
        (if bytes[rest..end].first() == Some(&b'/') { None } else { Some(root) }, rest)
    };
    let path = path.unwrap_or_else(|| {
        let length = memchr(b'?', &bytes[rest..end]).unwrap_or(end - rest);
        rest += length;
        Span::new(rest - length..rest)
    });
    // `rest` now is at the `?` or at the end.
    Ok((path, Span::new((rest + 1).min(end)..end)))
}

/// The characters of a host and a port (RFC 3986, 3.2.2 and 3.2.3): no user, no path, no space.
fn is_host(host: &[u8]) -> bool {
    host.iter().all(|&byte| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=:[]".contains(&byte))
}

/// Where `part`, a slice of `whole`, lies in it.
fn span_in(whole: &[u8], part: &[u8]) -> Span {
    let start = part.as_ptr().addr() - whole.as_ptr().addr();
    debug_assert!(start + part.len() <= whole.len());
    Span::new(start..start + part.len())
}

/// The header fields that mean something to us, read in one pass.
#[derive(Debug, Default)]
struct Fields {
    host: Option<Span>,
    /// Whether `host` satisfies [`is_host`].
    host_valid: bool,
    content_length: Option<u64>,
    /// Whether it is exactly `chunked`.
    transfer_encoding: Option<bool>,
    content_type: Option<Span>,
    authorization: Option<Span>,
    request_id: Option<Span>,
    timeout_ms: Option<u32>,
    api_key: Option<Span>,
    origin: Option<Span>,
    asked_headers: Option<Span>,
    expects_continue: bool,
    close: bool,
    keep_alive: bool,
}

impl Fields {
    fn collect(bytes: &[u8], headers: &[httparse::Header<'_>]) -> Result<Fields, Refusal> {
        let mut fields = Fields::default();
        for header in headers {
            fields.add(header.name.as_bytes(), header.value, bytes)?;
        }
        Ok(fields)
    }

    fn add(&mut self, name: &[u8], value: &[u8], bytes: &[u8]) -> Result<(), Refusal> {
        // By length first: most fields of most requests are none of ours and cost one comparison of integers.
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        match name.len() {
            4 if is("host") => {
                self.host_valid = is_host(value);
                once(&mut self.host, span_in(bytes, value), Refusal::HostRepeated)
            }
            6 if is("expect") => {
                self.expects_continue = value.eq_ignore_ascii_case(b"100-continue");
                if self.expects_continue { Ok(()) } else { Err(Refusal::ExpectationUnsupported) }
            }
            6 if is("origin") => once(&mut self.origin, span_in(bytes, value), Refusal::HeaderRepeated),
            9 if is("x-api-key") => once(&mut self.api_key, span_in(bytes, value), Refusal::HeaderRepeated),
            10 if is("connection") => {
                for option in value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii) {
                    self.close |= option.eq_ignore_ascii_case(b"close");
                    self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
                }
                Ok(())
            }
            12 if is("content-type") => once(&mut self.content_type, span_in(bytes, value), Refusal::HeaderRepeated),
            12 if is("x-request-id") => {
                let fit = (1..=REQUEST_ID_BYTES_MAX).contains(&value.len()) && value.iter().all(u8::is_ascii_graphic);
                if fit && self.request_id.is_none() {
                    self.request_id = Some(span_in(bytes, value));
                }
                Ok(())
            }
            13 if is("authorization") => once(&mut self.authorization, span_in(bytes, value), Refusal::HeaderRepeated),
            14 if is("content-length") => {
                let length = decimal(value).ok_or(Refusal::ContentLengthInvalid)?;
                once(&mut self.content_length, length, Refusal::ContentLengthRepeated)
            }
            16 if is("content-encoding") => {
                let plain = value.eq_ignore_ascii_case(b"identity");
                if plain { Ok(()) } else { Err(Refusal::ContentEncodingUnsupported) }
            }
            17 if is("transfer-encoding") => {
                let chunked = value.eq_ignore_ascii_case(b"chunked");
                once(&mut self.transfer_encoding, chunked, Refusal::TransferEncodingRepeated)
            }
            20 if is("x-request-timeout-ms") => {
                let timeout_ms = milliseconds(value).ok_or(Refusal::TimeoutInvalid)?;
                once(&mut self.timeout_ms, timeout_ms, Refusal::HeaderRepeated)
            }
            30 if is("access-control-request-headers") => {
                // A list, which may come in several fields; the first is enough for whoever asks this.
                self.asked_headers.get_or_insert(span_in(bytes, value));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// One Host for HTTP/1.1, at most one for HTTP/1.0. It may be empty.
    fn check_host(&self, version: Version) -> Result<(), Refusal> {
        match (self.host, version) {
            (None, Version::Current) => Err(Refusal::HostMissing),
            (Some(_), _) if !self.host_valid => Err(Refusal::HostInvalid),
            (None, Version::Old) | (Some(_), _) => Ok(()),
        }
    }

    /// How long the body is; `None` if it is chunked (RFC 9112, 6.3, without its leniencies).
    fn body_bytes(&self, method: Method, version: Version, limits: &Limits) -> Result<Option<u32>, Refusal> {
        match (self.transfer_encoding, self.content_length) {
            (Some(_), Some(_)) => Err(Refusal::LengthAmbiguous),
            (Some(_), None) if version == Version::Old => Err(Refusal::TransferEncodingTooOld),
            (Some(false), None) => Err(Refusal::TransferEncodingUnsupported),
            (Some(true), None) => Ok(None),
            (None, Some(length)) if length > limits.body_bytes_max as u64 => Err(Refusal::BodyTooLarge),
            (None, Some(length)) => Ok(Some(length as u32)),
            (None, None) if method == Method::Post => Err(Refusal::LengthRequired),
            (None, None) => Ok(Some(0)),
        }
    }

    fn persistence(&self, version: Version) -> Persistence {
        match version {
            _ if self.close => Persistence::Close,
            Version::Current => Persistence::Keep,
            Version::Old if self.keep_alive => Persistence::KeepAnnounced,
            Version::Old => Persistence::Close,
        }
    }
}

fn once<T>(slot: &mut Option<T>, value: T, repeated: Refusal) -> Result<(), Refusal> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(repeated),
    }
}

/// `1*DIGIT`, nothing else: no sign, no space, no list, no overflow.
fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, &digit| {
        let value = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_add(value)
    })
}

/// `1*DIGIT`; what does not fit is as good as for ever: 2^32 ms are seven weeks.
fn milliseconds(digits: &[u8]) -> Option<u32> {
    let plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    plain.then(|| decimal(digits).and_then(|number| u32::try_from(number).ok()).unwrap_or(u32::MAX))
}

/// `name: value` as a trailer may have it, with the fields that frame or route a message excluded.
pub(super) fn is_trailer(line: &[u8]) -> bool {
    let Some(colon) = memchr(b':', line) else { return false };
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    let forbidden =
        ["content-length", "transfer-encoding", "host", "trailer", "content-encoding", "authorization", "x-api-key"];
    !name.is_empty()
        && name.iter().all(|&byte| is_token_byte(byte))
        && value.iter().all(|&byte| is_value_byte(byte))
        && !forbidden.iter().any(|field| name.eq_ignore_ascii_case(field.as_bytes()))
}

/// Why [`decode_segment`] could not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentError {
    /// A `%` without two hexadecimal digits after it.
    EscapeInvalid,
    /// The decoded segment exceeds the room given.
    TooLong,
}

/// Percent-decodes one segment of a path into `into` and returns the part of it that was filled. `+` stays `+`: it means a
/// space in forms only. A caller splits at `/` before, so that `%2F` can be part of a name.
pub fn decode_segment<'a>(segment: &[u8], into: &'a mut [u8]) -> Result<&'a [u8], SegmentError> {
    let (mut rest, mut write) = (segment, 0);
    while let Some((&first, tail)) = rest.split_first() {
        let (byte, after) = match (first, tail) {
            (b'%', [high, low, after @ ..]) => match (hex_digit(*high), hex_digit(*low)) {
                (Some(high), Some(low)) => (high << 4 | low, after),
                (None, _) | (_, None) => return Err(SegmentError::EscapeInvalid),
            },
            (b'%', _) => return Err(SegmentError::EscapeInvalid),
            (plain, after) => (plain, after),
        };
        *into.get_mut(write).ok_or(SegmentError::TooLong)? = byte;
        write += 1;
        rest = after;
    }
    Ok(&into[..write])
}

pub(super) fn hex_digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_decoded() {
        let mut room = [0; 8];
        let cases: [(&[u8], &[u8]); 7] = [
            (b"", b""),
            (b"all-MiniL", b""),
            (b"a%20b", b"a b"),
            (b"a%2Fb%2f", b"a/b/"),
            (b"a+b", b"a+b"),
            (b"%e4%BD%a0", "你".as_bytes()),
            (b"%00%ff", b"\0\xff"),
        ];
        for (segment, decoded) in cases {
            let expected =
                if segment.len() > 8 && !segment.contains(&b'%') { Err(SegmentError::TooLong) } else { Ok(decoded) };
            assert_eq!(decode_segment(segment, &mut room), expected, "{}", segment.escape_ascii());
        }
        for segment in [&b"%"[..], b"a%", b"%2", b"%zz", b"%2g", b"%+2", b"%%41"] {
            assert_eq!(
                decode_segment(segment, &mut room),
                Err(SegmentError::EscapeInvalid),
                "{}",
                segment.escape_ascii()
            );
        }
        assert_eq!(
            decode_segment(b"%41%41%41%41%41%41%41%41", &mut room),
            Ok(&b"AAAAAAAA"[..]),
            "the room counts decoded"
        );
    }

    #[test]
    fn long_times_are_for_ever() {
        for (text, due) in [
            ("0", Some(0)),
            ("007", Some(7)),
            ("4294967295", Some(u32::MAX)),
            ("4294967296", Some(u32::MAX)),
            ("18446744073709551616", Some(u32::MAX)),
            ("", None),
            ("-1", None),
            ("1.5", None),
            ("99999999999999999999x", None),
        ] {
            assert_eq!(milliseconds(text.as_bytes()), due, "{text:?}");
        }
    }

    #[test]
    fn decimals_are_plain() {
        assert_eq!(decimal(b"0"), Some(0));
        assert_eq!(decimal(b"18446744073709551615"), Some(u64::MAX));
        for text in
            ["", "18446744073709551616", "99999999999999999999", "+1", "-0", " 1", "1 ", "1,1", "0x1", "1e3", "١"]
        {
            assert_eq!(decimal(text.as_bytes()), None, "{text:?}");
        }
    }
}
