//! HTTP/1.0 and HTTP/1.1 framing: received bytes in, requests out; answers' heads in, bytes out.
//!
//! Owns the grammar of the wire and nothing else. No socket, no clock, no thread, nothing of the rest of the crate, and no
//! allocation: the caller holds one contiguous buffer per connection, reads into it and asks [`Connection::advance`] what
//! the bytes amount to. What comes back are offsets into that buffer ([`Span`]), so the caller may move it as it grows.
//!
//! Invariants:
//! - A head is scanned once for its end and parsed once when it is complete, however many reads it took. The work is
//!   linear in the bytes received.
//! - Any split of the same bytes into reads gives the same steps.
//! - One request is in flight per connection; what a client sends ahead stays in the buffer behind it, untouched.
//! - Where two programs might disagree about the end of a request, it is refused ([`Refusal`]) and the connection closed.
//!
//! `connection` is the state machine, `request` the head, `chunked` the body whose length is not known beforehand,
//! `response` the way back.

mod chunked;
mod connection;
#[doc(hidden)]
pub mod fuzzing;
mod request;
mod response;
#[cfg(test)]
mod tests;

pub use connection::{Connection, Finished, Phase, Step};
pub use request::{
    Gist, Head, Method, REQUEST_ID_BYTES_MAX, Request, SegmentError, Span, Version, decode_segment, gist,
};
pub use response::{CONTINUE, HEAD_BYTES_FIXED, Persistence, ResponseHead, reason};

/// What a client may make us hold. Bytes, unless named otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Request line and header fields with their line ends, blank lines before them included.
    pub head_bytes_max: usize,
    /// The request line's target, as sent.
    pub target_bytes_max: usize,
    /// Header fields in one head; at most [`HEADERS_MAX`].
    pub headers_max: usize,
    /// The body, decoded.
    pub body_bytes_max: usize,
    /// Chunk extensions of one body together, and likewise its trailer fields: both are read and dropped.
    pub chunk_extra_bytes_max: usize,
}

/// The room for header fields on the parser's stack, 32 bytes each.
pub const HEADERS_MAX: usize = 128;

impl Limits {
    /// True exactly when every offset that these limits allow fits a [`Span`] and the parser's room suffices.
    pub fn are_sound(&self) -> bool {
        let bytes_max = self
            .head_bytes_max
            .saturating_add(self.body_bytes_max)
            .saturating_add(self.chunk_extra_bytes_max)
            .saturating_add(chunked::LINE_BYTES_EXTRA);
        let counts = [self.head_bytes_max, self.target_bytes_max, self.headers_max];
        bytes_max <= u32::MAX as usize && self.headers_max <= HEADERS_MAX && counts.iter().all(|&count| count > 0)
    }
}

/// Why bytes are not a request that we take. Each one ends its connection: after it nobody can say where the next request
/// would begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Refusal {
    // Lines.
    LineFeedBare,
    CarriageReturnBare,
    BlankLinesTooMany,
    // Request line.
    RequestLineInvalid,
    MethodInvalid,
    TargetInvalid,
    TargetTooLong,
    VersionUnsupported,
    // Header fields.
    HeadTooLarge,
    HeadersTooMany,
    HeaderNameInvalid,
    HeaderValueInvalid,
    HeaderFolded,
    HeaderRepeated,
    HostMissing,
    HostRepeated,
    HostInvalid,
    ContentEncodingUnsupported,
    ExpectationUnsupported,
    TimeoutInvalid,
    // The body's length.
    ContentLengthInvalid,
    ContentLengthRepeated,
    LengthAmbiguous,
    LengthRequired,
    TransferEncodingUnsupported,
    TransferEncodingRepeated,
    TransferEncodingTooOld,
    BodyTooLarge,
    // Chunks.
    ChunkSizeInvalid,
    ChunkExtensionInvalid,
    ChunkExtensionsTooLarge,
    ChunkEndInvalid,
    TrailerInvalid,
    TrailersTooLarge,
}

impl Refusal {
    /// In the order of declaration, for whoever counts them.
    pub const ALL: [Refusal; 34] = [
        Refusal::LineFeedBare,
        Refusal::CarriageReturnBare,
        Refusal::BlankLinesTooMany,
        Refusal::RequestLineInvalid,
        Refusal::MethodInvalid,
        Refusal::TargetInvalid,
        Refusal::TargetTooLong,
        Refusal::VersionUnsupported,
        Refusal::HeadTooLarge,
        Refusal::HeadersTooMany,
        Refusal::HeaderNameInvalid,
        Refusal::HeaderValueInvalid,
        Refusal::HeaderFolded,
        Refusal::HeaderRepeated,
        Refusal::HostMissing,
        Refusal::HostRepeated,
        Refusal::HostInvalid,
        Refusal::ContentEncodingUnsupported,
        Refusal::ExpectationUnsupported,
        Refusal::TimeoutInvalid,
        Refusal::ContentLengthInvalid,
        Refusal::ContentLengthRepeated,
        Refusal::LengthAmbiguous,
        Refusal::LengthRequired,
        Refusal::TransferEncodingUnsupported,
        Refusal::TransferEncodingRepeated,
        Refusal::TransferEncodingTooOld,
        Refusal::BodyTooLarge,
        Refusal::ChunkSizeInvalid,
        Refusal::ChunkExtensionInvalid,
        Refusal::ChunkExtensionsTooLarge,
        Refusal::ChunkEndInvalid,
        Refusal::TrailerInvalid,
        Refusal::TrailersTooLarge,
    ];

    /// The status code of the answer.
    pub fn status(self) -> u16 {
        self.row().0
    }

    /// One sentence for people. It never quotes the client's bytes.
    pub fn message(self) -> &'static str {
        self.row().1
    }

    fn row(self) -> (u16, &'static str) {
        use Refusal::*;
        match self {
            LineFeedBare => (400, "a line ends in LF without CR"),
            CarriageReturnBare => (400, "a CR stands without LF"),
            BlankLinesTooMany => (400, "too many blank lines before the request line"),
            RequestLineInvalid => (400, "the request line is not `method target HTTP/1.1`"),
            MethodInvalid => (400, "the method is not a token"),
            TargetInvalid => (400, "the request target is not a path or an http URL of visible ASCII"),
            TargetTooLong => (414, "the request target is too long"),
            VersionUnsupported => (505, "only HTTP/1.0 and HTTP/1.1 are spoken here"),
            HeadTooLarge => (431, "the request head is too large"),
            HeadersTooMany => (431, "too many header fields"),
            HeaderNameInvalid => (400, "a header field's name is not a token followed by a colon"),
            HeaderValueInvalid => (400, "a header field's value holds a control character"),
            HeaderFolded => (400, "a header field is folded over several lines"),
            HeaderRepeated => (
                400,
                "a header field that has one value is repeated: Authorization, Content-Type, Origin, X-API-Key or X-Request-Timeout-Ms",
            ),
            HostMissing => (400, "HTTP/1.1 needs a Host header field"),
            HostRepeated => (400, "the Host header field is repeated"),
            HostInvalid => (400, "the Host header field is not a host with an optional port"),
            ContentEncodingUnsupported => (415, "a body must be sent without Content-Encoding"),
            ExpectationUnsupported => (417, "the only expectation met is 100-continue"),
            TimeoutInvalid => (400, "X-Request-Timeout-Ms is not a whole number of milliseconds"),
            ContentLengthInvalid => (400, "Content-Length is not a plain decimal number"),
            ContentLengthRepeated => (400, "Content-Length is repeated"),
            LengthAmbiguous => (400, "Content-Length and Transfer-Encoding exclude each other"),
            LengthRequired => (411, "a POST needs Content-Length or Transfer-Encoding: chunked"),
            TransferEncodingUnsupported => (501, "the only transfer encoding understood is chunked"),
            TransferEncodingRepeated => (400, "Transfer-Encoding is repeated"),
            TransferEncodingTooOld => (400, "HTTP/1.0 has no Transfer-Encoding"),
            BodyTooLarge => (413, "the body is too large"),
            ChunkSizeInvalid => (400, "a chunk's size is not a hexadecimal number of at most 16 digits"),
            ChunkExtensionInvalid => (400, "a chunk's extension is malformed"),
            ChunkExtensionsTooLarge => (400, "the body's chunk extensions are too large"),
            ChunkEndInvalid => (400, "a chunk's data does not end in CR LF"),
            TrailerInvalid => (400, "a trailer field is malformed or not allowed there"),
            TrailersTooLarge => (431, "the body's trailer fields are too large"),
        }
    }
}

/// True for the characters of methods and field names (RFC 9110, 5.6.2): `tchar`, any visible ASCII but the delimiters.
fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// True for what may stand in a field's value (RFC 9110, 5.5): tab, space, visible ASCII and, opaque, all above ASCII.
fn is_value_byte(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

/// Counts the bytes looked at, so that tests can hold the work to linear without a clock.
#[cfg(test)]
mod work {
    use std::cell::Cell;

    thread_local!(static BYTES: Cell<u64> = const { Cell::new(0) });

    pub(super) fn add(bytes: usize) {
        BYTES.with(|count| count.set(count.get() + bytes as u64));
    }

    pub(super) fn take() -> u64 {
        BYTES.with(|count| count.replace(0))
    }
}

#[cfg(not(test))]
mod work {
    #[inline(always)]
    pub(super) fn add(_bytes: usize) {}
}
