//! The layer as a whole: a table of bytes in and steps out, every split of them, and the reference parser's opinion.
//!
//! Each row of [`TABLE`] and each mutation also runs through [`fuzzing::request`], which compares one read with many and
//! with the reference, and checks the invariants after each step.

use super::fuzzing::{self, Event, LIMITS, Random, drive};
use super::*;

/// (bytes in, steps out). Steps as [`summary`] writes them; a request cut short says nothing at its end.
const TABLE: &[(&[u8], &str)] = &[
    // Plain requests.
    (b"", ""),
    (b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", "Get / [] Keep"),
    (b"HEAD /health HTTP/1.1\r\nHost: h\r\n\r\n", "Head /health [] Keep"),
    (b"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", "Options * [] Keep"),
    (b"DELETE /a HTTP/1.1\r\nHost: h\r\n\r\n", "Other /a [] Keep"),
    (b"get / HTTP/1.1\r\nHost: h\r\n\r\n", "Other / [] Keep"),
    (b"!#$%&'*+-.^_`|~ / HTTP/1.1\r\nHost: h\r\n\r\n", "Other / [] Keep"),
    (b"GET / HTTP/1.1\r\nHost:\r\n\r\n", "Get / [] Keep"),
    (b"GET / HTTP/1.1\r\nhOsT:\t h \t\r\n\r\n", "Get / [] Keep"),
    (b"GET / HTTP/1.1\r\nHost: [::1]:8887\r\nX: \xff\xc3\xa9\ta\r\n\r\n", "Get / [] Keep"),
    (b"GET /a?b=c?d HTTP/1.1\r\nHost: h\r\n\r\n", "Get /a?b=c?d [] Keep"),
    (b"GET /? HTTP/1.1\r\nHost: h\r\n\r\n", "Get / [] Keep"),
    (b"GET /%2f/../x//y HTTP/1.1\r\nHost: h\r\n\r\n", "Get /%2f/../x//y [] Keep"),
    (b"POST /i HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc", "Post /i [abc] Keep"),
    (b"POST /i HTTP/1.1\r\nHost: h\r\ncontent-length: 0\r\n\r\n", "Post /i [] Keep"),
    (b"POST /i HTTP/1.1\r\nHost: h\r\nContent-Length: 0003\r\n\r\nabc", "Post /i [abc] Keep"),
    (b"GET /i HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nab", "Get /i [ab] Keep"),
    (b"PUT /i HTTP/1.1\r\nHost: h\r\n\r\n", "Other /i [] Keep"),
    (b"POST /i HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nab", ""),
    (b"GET / HTTP/1.1\r\nHost: h\r\n\r", ""),
    (b"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n", "Get / [] Keep"),
    // One after the other.
    (
        b"GET /1 HTTP/1.1\r\nHost: h\r\n\r\nPOST /2 HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhiGET /3 HTTP/1.1\r\nHost: h\r\n\r\n",
        "Get /1 [] Keep; Post /2 [hi] Keep; Get /3 [] Keep",
    ),
    (
        b"GET /1 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\nGET /2 HTTP/1.1\r\nHost: h\r\n\r\n",
        "Get /1 [] Close",
    ),
    (b"GET /1 HTTP/1.1\r\nHost: h\r\n\r\n\0", "Get /1 [] Keep; 400 MethodInvalid"),
    // A GET's body is read as its body and not as the next request.
    (
        b"GET /1 HTTP/1.1\r\nHost: h\r\nContent-Length: 19\r\n\r\nGET /2 HTTP/1.1\r\n\r\n",
        "Get /1 [GET /2 HTTP/1.1\r\n\r\n] Keep",
    ),
    // Blank lines first.
    (b"\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n", "Get / [] Keep"),
    (b"\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n", "Get / [] Keep"),
    (b"\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n", "400 BlankLinesTooMany"),
    (b"\nGET / HTTP/1.1\r\nHost: h\r\n\r\n", "400 LineFeedBare"),
    (b"\r\n\nGET / HTTP/1.1\r\nHost: h\r\n\r\n", "400 LineFeedBare"),
    (b"\rGET / HTTP/1.1\r\nHost: h\r\n\r\n", "400 CarriageReturnBare"),
    (
        b"POST /1 HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx\r\nGET /2 HTTP/1.1\r\nHost: h\r\n\r\n",
        "Post /1 [x] Keep; Get /2 [] Keep",
    ),
    // Keeping and closing.
    (b"GET / HTTP/1.0\r\n\r\n", "Get / [] Close"),
    (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "Get / [] KeepAnnounced"),
    (b"GET / HTTP/1.0\r\nConnection: Foo, KEEP-Alive\r\n\r\n", "Get / [] KeepAnnounced"),
    (b"GET / HTTP/1.0\r\nConnection: keep-alive, close\r\n\r\n", "Get / [] Close"),
    (b"GET / HTTP/1.1\r\nHost: h\r\nConnection: keep-alive\r\n\r\n", "Get / [] Keep"),
    (b"GET / HTTP/1.1\r\nHost: h\r\nConnection: TE , ,CLOSE\r\n\r\n", "Get / [] Close"),
    (b"GET / HTTP/1.1\r\nHost: h\r\nConnection: x\r\nConnection:\tclose\r\n\r\n", "Get / [] Close"),
    (b"GET / HTTP/1.1\r\nHost: h\r\nConnection: closed\r\n\r\n", "Get / [] Keep"),
    // Absolute targets.
    (b"GET http://h/a?b HTTP/1.1\r\nHost: h\r\n\r\n", "Get /a?b [] Keep"),
    (b"GET HTTPS://h:1 HTTP/1.1\r\nHost: other\r\n\r\n", "Get / [] Keep"),
    (b"GET http://h?b HTTP/1.1\r\nHost: h\r\n\r\n", "Get /?b [] Keep"),
    (b"GET http:///a HTTP/1.1\r\nHost: h\r\n\r\n", "400 TargetInvalid"),
    (b"GET http://user@h/a HTTP/1.1\r\nHost: h\r\n\r\n", "400 TargetInvalid"),
    (b"GET ftp://h/a HTTP/1.1\r\nHost: h\r\n\r\n", "400 TargetInvalid"),
    (b"CONNECT h:443 HTTP/1.1\r\nHost: h\r\n\r\n", "400 TargetInvalid"),
    (b"GET * HTTP/1.1\r\nHost: h\r\n\r\n", "400 TargetInvalid"),
    (b"GET a HTTP/1.1\r\nHost: h\r\n\r\n", "400 TargetInvalid"),
    (b"GET ?a HTTP/1.1\r\nHost: h\r\n\r\n", "400 TargetInvalid"),
    // Request lines.
    (b"GET /a#b HTTP/1.1\r\nHost: h\r\n\r\n", "400 TargetInvalid"),
    (b"GET /\xc3\xa9 HTTP/1.1\r\nHost: h\r\n\r\n", "400 TargetInvalid"),
    (b"GET /\x7f HTTP/1.1\r\nHost: h\r\n\r\n", "400 TargetInvalid"),
    (b"GET  / HTTP/1.1\r\nHost: h\r\n\r\n", "400 RequestLineInvalid"),
    (b"GET\t/ HTTP/1.1\r\nHost: h\r\n\r\n", "400 MethodInvalid"),
    (b" GET / HTTP/1.1\r\nHost: h\r\n\r\n", "400 MethodInvalid"),
    (b"G(T / HTTP/1.1\r\nHost: h\r\n\r\n", "400 MethodInvalid"),
    (b"GET /\r\n\r\n", "400 RequestLineInvalid"),
    (b"GET\r\n\r\n", "400 MethodInvalid"),
    (b"GET /  HTTP/1.1\r\nHost: h\r\n\r\n", "400 RequestLineInvalid"),
    (b"GET / HTTP/1.1 \r\nHost: h\r\n\r\n", "400 RequestLineInvalid"),
    (b"GET /a b HTTP/1.1\r\nHost: h\r\n\r\n", "400 RequestLineInvalid"),
    (b"GET / \r\n\r\n", "400 RequestLineInvalid"),
    (b"GET / http/1.1\r\nHost: h\r\n\r\n", "400 RequestLineInvalid"),
    (b"GET / HTTP/1.10\r\nHost: h\r\n\r\n", "400 RequestLineInvalid"),
    (b"GET / HTTP/1.\r\nHost: h\r\n\r\n", "400 RequestLineInvalid"),
    (b"GET / HTTP/1.2\r\nHost: h\r\n\r\n", "505 VersionUnsupported"),
    (b"GET / HTTP/0.9\r\nHost: h\r\n\r\n", "505 VersionUnsupported"),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "505 VersionUnsupported"),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "400 MethodInvalid"),
    // Header fields.
    (b"GET / HTTP/1.1\nHost: h\r\n\r\n", "400 LineFeedBare"),
    (b"GET / HTTP/1.1\r\nHost: h\n\r\n", "400 LineFeedBare"),
    (b"GET / HTTP/1.1\r\nHost: h\r\n\n", "400 LineFeedBare"),
    (b"GET / HTTP/1.1\rHost: h\r\n\r\n", "400 CarriageReturnBare"),
    (b"GET / HTTP/1.1\r\nHost: h\rX: y\r\n\r\n", "400 CarriageReturnBare"),
    (b"GET / HTTP/1.1\r\nHost: h\r\r\n\r\n", "400 CarriageReturnBare"),
    (b"GET / HTTP/1.1\r\nHost: h\r\nX: a\r\n b\r\n\r\n", "400 HeaderFolded"),
    (b"GET / HTTP/1.1\r\n\tHost: h\r\n\r\n", "400 HeaderFolded"),
    (b"GET / HTTP/1.1\r\nHost : h\r\n\r\n", "400 HeaderNameInvalid"),
    (b"GET / HTTP/1.1\r\nHost: h\r\n: v\r\n\r\n", "400 HeaderNameInvalid"),
    (b"GET / HTTP/1.1\r\nHost: h\r\nnocolon\r\n\r\n", "400 HeaderNameInvalid"),
    (b"GET / HTTP/1.1\r\nHost: h\r\nX\xe9: v\r\n\r\n", "400 HeaderNameInvalid"),
    (b"GET / HTTP/1.1\r\nHost: h\r\nX: a\0b\r\n\r\n", "400 HeaderValueInvalid"),
    (b"GET / HTTP/1.1\r\nHost: h\r\nX: a\x0bb\r\n\r\n", "400 HeaderValueInvalid"),
    (b"GET / HTTP/1.1\r\nHost: h\r\nX: \x7f\r\n\r\n", "400 HeaderValueInvalid"),
    (b"GET / HTTP/1.1\r\n\r\n", "400 HostMissing"),
    (b"GET / HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n", "400 HostRepeated"),
    (b"GET / HTTP/1.0\r\nHost: h\r\nHost: h\r\n\r\n", "400 HostRepeated"),
    (b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", "400 HostInvalid"),
    (b"GET / HTTP/1.1\r\nHost: h/p\r\n\r\n", "400 HostInvalid"),
    (b"GET / HTTP/1.1\r\nHost: h\r\nAuthorization: a\r\nauthorization: a\r\n\r\n", "400 HeaderRepeated"),
    (b"GET / HTTP/1.1\r\nHost: h\r\nContent-Type: a\r\nContent-Type: b\r\n\r\n", "400 HeaderRepeated"),
    (b"GET / HTTP/1.1\r\nHost: h\r\nX-Request-Timeout-Ms: 1s\r\n\r\n", "400 TimeoutInvalid"),
    (b"GET / HTTP/1.1\r\nHost: h\r\nX-Request-Timeout-Ms: 4294967296\r\n\r\n", "Get / [] Keep"),
    (b"GET / HTTP/1.1\r\nHost: h\r\nX-Request-Timeout-Ms: 18446744073709551616\r\n\r\n", "Get / [] Keep"),
    (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Encoding: identity\r\nContent-Length: 1\r\n\r\nx", "Post / [x] Keep"),
    (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx", "415 ContentEncodingUnsupported"),
    // Lengths, and the shapes in which requests are smuggled.
    (b"POST / HTTP/1.1\r\nHost: h\r\n\r\n", "411 LengthRequired"),
    (b"POST / HTTP/1.0\r\n\r\n", "411 LengthRequired"),
    (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length:\r\n\r\n", "400 ContentLengthInvalid"),
    (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: +1\r\n\r\nx", "400 ContentLengthInvalid"),
    (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\nx", "400 ContentLengthInvalid"),
    (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0x1\r\n\r\nx", "400 ContentLengthInvalid"),
    (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1 1\r\n\r\nx", "400 ContentLengthInvalid"),
    (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1, 1\r\n\r\nx", "400 ContentLengthInvalid"),
    (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1.0\r\n\r\nx", "400 ContentLengthInvalid"),
    (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: \xb2\r\n\r\nx", "400 ContentLengthInvalid"),
    (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 18446744073709551617\r\n\r\nx", "400 ContentLengthInvalid"),
    (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 18446744073709551615\r\n\r\nx", "413 BodyTooLarge"),
    (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4294967296\r\n\r\nx", "413 BodyTooLarge"),
    (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 65\r\n\r\n", "413 BodyTooLarge"),
    (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx", "400 ContentLengthRepeated"),
    (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx", "400 ContentLengthRepeated"),
    (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length : 1\r\n\r\nx", "400 HeaderNameInvalid"),
    (b"POST / HTTP/1.1\r\nHost: h\r\nContent_Length: 1\r\n\r\nx", "411 LengthRequired"),
    (
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "400 LengthAmbiguous",
    ),
    (
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: identity\r\nContent-Length: 5\r\n\r\nabcde",
        "400 LengthAmbiguous",
    ),
    (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400 TransferEncodingTooOld"),
    (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "501 TransferEncodingUnsupported"),
    (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked, chunked\r\n\r\n", "501 TransferEncodingUnsupported"),
    (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: xchunked\r\n\r\n", "501 TransferEncodingUnsupported"),
    (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: \"chunked\"\r\n\r\n", "501 TransferEncodingUnsupported"),
    (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding:\r\n\r\n", "501 TransferEncodingUnsupported"),
    (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: \x0bchunked\r\n\r\n", "400 HeaderValueInvalid"),
    (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding:\r\n chunked\r\n\r\n", "400 HeaderFolded"),
    (
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        "400 TransferEncodingRepeated",
    ),
    // Expectations.
    (
        b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-Continue\r\nContent-Length: 1\r\n\r\nx",
        "continue; Post / [x] Keep",
    ),
    (
        b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
        "continue; Post / [x] Keep",
    ),
    (b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 0\r\n\r\n", "Post / [] Keep"),
    (b"POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx", "Post / [x] Close"),
    (b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 65\r\n\r\n", "413 BodyTooLarge"),
    (b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 200-ok\r\nContent-Length: 1\r\n\r\nx", "417 ExpectationUnsupported"),
    (b"GET / HTTP/1.1\r\nHost: h\r\nExpect:\r\n\r\n", "417 ExpectationUnsupported"),
];

/// What follows the head of a chunked POST, and the steps out.
const CHUNKED: &[(&[u8], &str)] = &[
    (b"0\r\n\r\n", "Post /c [] Keep"),
    (b"3\r\nabc\r\n0\r\n\r\n", "Post /c [abc] Keep"),
    (b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", "Post /c [abcde] Keep"),
    (b"A\r\n0123456789\r\n0\r\n\r\n", "Post /c [0123456789] Keep"),
    (b"0000000000000003\r\nabc\r\n000\r\n\r\n", "Post /c [abc] Keep"),
    (b"2\r\n\r\n\r\n0\r\n\r\n", "Post /c [\r\n] Keep"),
    (b"3;a=b\r\nabc\r\n0;c\r\n\r\n", "Post /c [abc] Keep"),
    (b"3 \t;a=\"b\"\r\nabc\r\n0\r\n\r\n", "Post /c [abc] Keep"),
    (b"1\r\na\r\n0\r\nX: y\r\nZ:\r\n\r\n", "Post /c [a] Keep"),
    // Extensions and trailers are bounded each by itself: 30 and 40 of 48 bytes.
    (
        b"1;aaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\na\r\n0\r\nX: bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\r\n\r\n",
        "Post /c [a] Keep",
    ),
    (b"1\r\na\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n", "Post /c [a] Keep; Get / [] Keep"),
    (b"3\r\nabc\r\n0\r\n", ""),
    (b"3\r\nab", ""),
    (b"\r\n", "400 ChunkSizeInvalid"),
    (b";a\r\n", "400 ChunkSizeInvalid"),
    (b"g\r\n", "400 ChunkSizeInvalid"),
    (b"0x3\r\nabc\r\n0\r\n\r\n", "400 ChunkSizeInvalid"),
    (b"+3\r\nabc\r\n0\r\n\r\n", "400 ChunkSizeInvalid"),
    (b"-1\r\n", "400 ChunkSizeInvalid"),
    (b" 3\r\nabc\r\n0\r\n\r\n", "400 ChunkSizeInvalid"),
    (b"3 \r\nabc\r\n0\r\n\r\n", "400 ChunkSizeInvalid"),
    (b"3 3\r\nabc\r\n0\r\n\r\n", "400 ChunkSizeInvalid"),
    (b"3_0\r\nabc\r\n0\r\n\r\n", "400 ChunkSizeInvalid"),
    (b"00000000000000003\r\nabc\r\n0\r\n\r\n", "400 ChunkSizeInvalid"),
    (b"fffffffffffffffff\r\n", "400 ChunkSizeInvalid"),
    (b"ffffffffffffffff\r\n", "413 BodyTooLarge"),
    (b"100000003\r\nabc\r\n0\r\n\r\n", "413 BodyTooLarge"),
    (b"41\r\n", "413 BodyTooLarge"),
    (b"3\nabc\r\n0\r\n\r\n", "400 LineFeedBare"),
    (b"3\rabc\r\n0\r\n\r\n", "400 ChunkSizeInvalid"),
    (b"3;a\rb\r\nabc\r\n0\r\n\r\n", "400 ChunkExtensionInvalid"),
    (b"3;a\0\r\nabc\r\n0\r\n\r\n", "400 ChunkExtensionInvalid"),
    (b"3;a\nabc\r\n0\r\n\r\n", "400 LineFeedBare"),
    (b"3\r\nabcd\r\n0\r\n\r\n", "400 ChunkEndInvalid"),
    (b"3\r\nabc0\r\n\r\n", "400 ChunkEndInvalid"),
    (b"3\r\nabc\n0\r\n\r\n", "400 ChunkEndInvalid"),
    (b"3\r\nabc\rx", "400 ChunkEndInvalid"),
    (b"0\r\n\n", "400 LineFeedBare"),
    (b"0\r\nX: y\n\r\n", "400 LineFeedBare"),
    (b"0\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n", "400 TrailerInvalid"),
    (b"0\r\nX : y\r\n\r\n", "400 TrailerInvalid"),
    (b"0\r\n X: y\r\n\r\n", "400 TrailerInvalid"),
    (b"0\r\nX: \x01\r\n\r\n", "400 TrailerInvalid"),
    (b"0\r\nX: \ry\r\n\r\n", "400 TrailerInvalid"),
    (b"0\r\nContent-Length: 3\r\n\r\n", "400 TrailerInvalid"),
    (b"0\r\ntransfer-encoding: x\r\n\r\n", "400 TrailerInvalid"),
];

const CHUNKED_HEAD: &[u8] = b"POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: Chunked\r\n\r\n";

/// The table with the chunked rows completed.
fn rows() -> Vec<(Vec<u8>, &'static str)> {
    let plain = TABLE.iter().map(|(input, steps)| (input.to_vec(), *steps));
    plain.chain(CHUNKED.iter().map(|(body, steps)| ([CHUNKED_HEAD, body].concat(), *steps))).collect()
}

fn summary(events: &[Event]) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = events.iter().filter_map(|event| match event {
        Event::Head(_) => None,
        Event::Continue => Some("continue".to_owned()),
        Event::Refuse(refusal, _) => Some(format!("{} {refusal:?}", refusal.status())),
        Event::Request(taken) => {
            let mark = if taken.query.is_empty() { "" } else { "?" };
            let (path, query, body) = (text(&taken.path), text(&taken.query), text(&taken.body));
            Some(format!("{:?} {path}{mark}{query} [{body}] {:?}", taken.method, taken.persistence))
        }
    });
    said.collect::<Vec<_>>().join("; ")
}

fn refusal_of(events: &[Event]) -> Option<Refusal> {
    match events.last() {
        Some(Event::Refuse(refusal, _)) => Some(*refusal),
        None | Some(Event::Head(_) | Event::Continue | Event::Request(_)) => None,
    }
}

fn whole(input: &[u8]) -> Vec<Event> {
    drive(input, &LIMITS, || usize::MAX)
}

/// Reads that end at the given offsets.
fn split_at(input: &[u8], offsets: &[usize]) -> Vec<Event> {
    let mut given = 0;
    let mut offsets = offsets.iter().copied().chain([usize::MAX]);
    drive(input, &LIMITS, || {
        let end = offsets.find(|&offset| offset > given).unwrap_or(usize::MAX);
        let count = end - given;
        given = end;
        count
    })
}

#[test]
fn bytes_in_steps_out() {
    for (input, steps) in rows() {
        assert_eq!(summary(&fuzzing::request(&input)), steps, "{}", input.escape_ascii());
    }
}

/// A connection says what it knows as soon as it knows it, and no sooner.
#[test]
fn every_beginning_of_an_input_is_understood_alike() {
    for (input, _) in rows() {
        for end in 0..input.len() {
            fuzzing::request(&input[..end]);
        }
    }
}

#[test]
fn every_split_into_two_reads_gives_the_same_steps() {
    for (input, _) in rows() {
        let expected = whole(&input);
        for first in 1..input.len() {
            assert_eq!(split_at(&input, &[first]), expected, "{first} of {}", input.escape_ascii());
        }
    }
}

#[test]
fn every_split_into_three_reads_gives_the_same_steps() {
    let inputs: [&[u8]; 5] = [
        b"\r\nPOST /a?b HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhelloGET / HTTP/1.0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost:\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nT: t\r\n\r\nGET / HTTP/1.0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost:\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\nGET / HTTP/1.1\r\nHost: h\n\r\n",
        b"POST / HTTP/1.1\r\nHost:\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\ndef\r\n0\r\n\r\n",
    ];
    for input in inputs {
        let expected = whole(input);
        assert!(!expected.is_empty());
        for first in 1..input.len() {
            for second in first + 1..input.len() {
                assert_eq!(
                    split_at(input, &[first, second]),
                    expected,
                    "{first}, {second} of {}",
                    input.escape_ascii()
                );
            }
        }
    }
}

#[test]
fn what_the_fields_say_reaches_the_request() {
    let head = concat!(
        "POST /v1/embeddings?x=1 HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\nAUTHORIZATION: Bearer k\r\n",
        "x-request-id: two words\r\nX-Request-Id: abc-1\r\nX-Request-ID: later\r\nx-request-timeout-ms: 250\r\ncontent-length: 2\r\n\r\n{}"
    );
    let events = fuzzing::request(head.as_bytes());
    let [Event::Head(early), Event::Request(taken)] = &events[..] else { panic!("{events:?}") };
    assert_eq!(taken.content_type.as_deref(), Some(&b"application/json"[..]));
    assert_eq!(taken.authorization.as_deref(), Some(&b"Bearer k"[..]));
    assert_eq!(taken.request_id.as_deref(), Some(&b"abc-1"[..]), "the first that may be echoed");
    assert_eq!(taken.timeout_ms, Some(250));
    assert_eq!((&taken.path[..], &taken.query[..], &taken.body[..]), (&b"/v1/embeddings"[..], &b"x=1"[..], &b"{}"[..]));
    assert_eq!(**early, fuzzing::Taken { body: Vec::new(), ..(**taken).clone() });
}

#[test]
fn a_request_id_unfit_to_be_echoed_is_not_kept() {
    for (id, kept) in
        [("", false), ("a", true), ("a\tb", false), ("é", false), (&"x".repeat(128), true), (&"x".repeat(129), false)]
    {
        let input = format!("GET / HTTP/1.1\r\nHost: h\r\nx-request-id: {id}\r\n\r\n");
        let events = fuzzing::request(input.as_bytes());
        let [Event::Request(taken)] = &events[..] else { panic!("{events:?}") };
        assert_eq!(taken.request_id.is_some(), kept, "{id:?}");
    }
}

/// At each limit one byte or field less is taken, one more refused.
#[test]
fn limits_are_exact() {
    let head = |bytes: usize| {
        let fixed = "GET / HTTP/1.1\r\nHost: h\r\nX: \r\n\r\n".len();
        format!("GET / HTTP/1.1\r\nHost: h\r\nX: {}\r\n\r\n", "x".repeat(bytes - fixed))
    };
    let target = |bytes: usize| format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", "x".repeat(bytes - 1));
    let fields = |count: usize| format!("GET / HTTP/1.1\r\nHost: h\r\n{}\r\n", "X: y\r\n".repeat(count - 1));
    let sized =
        |bytes: usize| format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {bytes}\r\n\r\n{}", "x".repeat(bytes));
    let coded = |bytes: usize| {
        let chunks = "1\r\nx\r\n".repeat(bytes - 1);
        format!("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}1\r\nx\r\n0\r\n\r\n")
    };
    let chunked = |body: String| [CHUNKED_HEAD, body.as_bytes()].concat();
    let extensions = |bytes: usize| format!("1;{}\r\na\r\n0;b\r\n\r\n", "x".repeat(bytes - 3));
    let trailers = |bytes: usize| format!("0\r\nA: b\r\nX:{}\r\n\r\n", "x".repeat(bytes - 10));

    let cases: [(Vec<u8>, Vec<u8>, Refusal); 7] = [
        (head(LIMITS.head_bytes_max).into(), head(LIMITS.head_bytes_max + 1).into(), Refusal::HeadTooLarge),
        (target(LIMITS.target_bytes_max).into(), target(LIMITS.target_bytes_max + 1).into(), Refusal::TargetTooLong),
        (fields(LIMITS.headers_max).into(), fields(LIMITS.headers_max + 1).into(), Refusal::HeadersTooMany),
        (sized(LIMITS.body_bytes_max).into(), sized(LIMITS.body_bytes_max + 1).into(), Refusal::BodyTooLarge),
        (coded(LIMITS.body_bytes_max).into(), coded(LIMITS.body_bytes_max + 1).into(), Refusal::BodyTooLarge),
        (
            chunked(extensions(LIMITS.chunk_extra_bytes_max)),
            chunked(extensions(LIMITS.chunk_extra_bytes_max + 1)),
            Refusal::ChunkExtensionsTooLarge,
        ),
        (
            chunked(trailers(LIMITS.chunk_extra_bytes_max)),
            chunked(trailers(LIMITS.chunk_extra_bytes_max + 1)),
            Refusal::TrailersTooLarge,
        ),
    ];
    for (fits, exceeds, refusal) in cases {
        let events = fuzzing::request(&fits);
        assert!(matches!(events.last(), Some(Event::Request(_))), "{events:?} of {}", fits.escape_ascii());
        let events = fuzzing::request(&exceeds);
        assert_eq!(refusal_of(&events), Some(refusal), "of {}", exceeds.escape_ascii());
        assert!(!events.iter().any(|event| matches!(event, Event::Request(_))));
    }
}

#[test]
fn endless_lines_are_refused_at_their_limit() {
    let endless: [(&[u8], Refusal); 5] = [
        (b"GET /", Refusal::TargetTooLong),
        (b"GET / HTTP/1.1\r\nX: ", Refusal::HeadTooLarge),
        (b"POST / HTTP/1.1\r\nHost:\r\nTransfer-Encoding: chunked\r\n\r\n", Refusal::ChunkExtensionsTooLarge),
        (b"POST / HTTP/1.1\r\nHost:\r\nTransfer-Encoding: chunked\r\n\r\n1;", Refusal::ChunkExtensionsTooLarge),
        (b"POST / HTTP/1.1\r\nHost:\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ", Refusal::TrailersTooLarge),
    ];
    for (start, refusal) in endless {
        let input = [start, &[b'0'; 2000]].concat();
        assert_eq!(refusal_of(&fuzzing::request(&input)), Some(refusal), "{}", start.escape_ascii());
        // Not a byte too early or too late: the reference says the same of every beginning.
        for end in 0..LIMITS.head_bytes_max + 20 {
            fuzzing::request(&input[..end]);
        }
    }
}

const LARGE: Limits = Limits {
    head_bytes_max: 70_000,
    target_bytes_max: 70_000,
    headers_max: 64,
    body_bytes_max: 70_000,
    chunk_extra_bytes_max: 70_000,
};

/// The work on an input is what was looked at or moved, counted in bytes. Every byte of a head is scanned once and parsed
/// once; every byte of a chunk's line is scanned once.
#[test]
fn byte_by_byte_the_work_is_linear() {
    let text = "x".repeat(64 << 10);
    let line = |count: usize| format!("X: {}\r\n", "y".repeat(count));
    let chunked = |body: String| [CHUNKED_HEAD, body.as_bytes()].concat();
    let inputs: [Vec<u8>; 7] = [
        format!("GET /{text} HTTP/1.1\r\nHost: h\r\n\r\n").into(),
        format!("GET / HTTP/1.1\r\nHost: h\r\n{}\r\n", line(1000).repeat(62)).into(),
        format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{text}", text.len()).into(),
        chunked(format!("{}0\r\n\r\n", "1\r\nx\r\n".repeat(30_000))),
        chunked(format!("1;{text}\r\nx\r\n0\r\n\r\n")),
        chunked(format!("1\r\nx\r\n0\r\n{}\r\n", line(1000).repeat(64))),
        chunked(format!("1\r\nx\r\n0\r\nX: {text}\r\n\r\n")),
    ];
    for input in inputs {
        work::take();
        let mut connection = Connection::new();
        let mut buffer = Vec::new();
        let request = feed(&mut connection, &mut buffer, &input);
        assert_eq!(request.consumed as usize, buffer.len());
        let looked_at = work::take();
        assert!(looked_at <= 2 * input.len() as u64 + 100, "{looked_at} for {} bytes", input.len());
    }
}

/// One byte at a time until the request is complete.
fn feed(connection: &mut Connection, buffer: &mut Vec<u8>, input: &[u8]) -> Request {
    for &byte in input {
        buffer.push(byte);
        loop {
            match connection.advance(buffer, &LARGE) {
                Step::NeedMore { filled, .. } => {
                    buffer.truncate(filled);
                    break;
                }
                Step::Head(_) => {}
                Step::Request(request) => return request,
                step @ (Step::Continue | Step::Refuse(_) | Step::Nothing) => panic!("{step:?}"),
            }
        }
    }
    panic!("{} bytes are no request", input.len())
}

/// Whatever the sizes of chunks and reads, a buffer holds the decoded body and one line.
#[test]
fn framing_takes_no_memory() {
    let body = format!("{}0\r\n\r\n", "1\r\nx\r\n".repeat(60_000));
    let mut connection = Connection::new();
    let mut buffer = CHUNKED_HEAD.to_vec();
    assert!(matches!(connection.advance(&mut buffer, &LARGE), Step::Head(_)));
    let mut filled_max = 0;
    for piece in body.as_bytes().chunks(1000) {
        buffer.extend_from_slice(piece);
        filled_max = filled_max.max(buffer.len());
        match connection.advance(&mut buffer, &LARGE) {
            Step::NeedMore { filled, .. } => buffer.truncate(filled),
            Step::Request(request) => assert_eq!(request.body.length, 60_000),
            step @ (Step::Head(_) | Step::Continue | Step::Refuse(_) | Step::Nothing) => panic!("{step:?}"),
        }
    }
    assert_eq!(connection.phase(), Phase::Answer);
    assert!(filled_max <= CHUNKED_HEAD.len() + 60_000 + 1000 + 5, "{filled_max}");
}

/// A promise of four gigabytes asks for no more memory than twice what has come.
#[test]
fn memory_follows_bytes_not_promises() {
    let limits = Limits { body_bytes_max: 1 << 31, ..LIMITS };
    let mut bytes = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2000000000\r\n\r\n".to_vec();
    let mut connection = Connection::new();
    assert!(matches!(connection.advance(&mut bytes, &limits), Step::Head(_)));
    let filled = bytes.len();
    assert_eq!(connection.advance(&mut bytes, &limits), Step::NeedMore { filled, buffer_bytes: 2 * filled });
}

#[test]
fn an_answer_before_the_body_ends_the_connection() {
    let heads: [&[u8]; 3] = [
        b"POST /nope HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n",
        b"POST /nope HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
        CHUNKED_HEAD,
    ];
    for head in heads {
        let mut connection = Connection::new();
        let mut bytes = head.to_vec();
        assert!(matches!(connection.advance(&mut bytes, &LIMITS), Step::Head(_)));
        assert_eq!((connection.phase(), connection.persistence()), (Phase::Body, Persistence::Close));
        assert_eq!(connection.finish(), Finished { consumed: 0, keep_alive: false });
        bytes.extend_from_slice(b"GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(connection.advance(&mut bytes, &LIMITS), Step::Nothing);
        assert_eq!(connection.phase(), Phase::Closed);
    }
}

#[test]
fn a_draining_server_closes_after_the_answer_in_flight() {
    let mut connection = Connection::new();
    connection.close_after_answer();
    let mut bytes = b"GET / HTTP/1.1\r\nHost: h\r\n\r\nGET".to_vec();
    let Step::Request(request) = connection.advance(&mut bytes, &LIMITS) else { panic!("a complete request") };
    assert_eq!(connection.persistence(), Persistence::Keep, "nothing was in flight when it was called first");
    connection.close_after_answer();
    assert_eq!(connection.persistence(), Persistence::Close);
    assert_eq!(connection.finish(), Finished { consumed: request.consumed as usize, keep_alive: false });
    assert_eq!(connection.finish(), Finished { consumed: 0, keep_alive: false }, "closed is closed");
}

/// Bytes behind the request in flight are not touched by decoding it.
#[test]
fn pipelined_bytes_stay_as_they_are() {
    let next = b"GET /next HTTP/1.1\r\nHost: h\r\n\r\n";
    let mut bytes = [CHUNKED_HEAD, b"3\r\nabc\r\n3\r\ndef\r\n0\r\nX: y\r\n\r\n", next].concat();
    let mut connection = Connection::new();
    assert!(matches!(connection.advance(&mut bytes, &LIMITS), Step::Head(_)));
    let Step::Request(request) = connection.advance(&mut bytes, &LIMITS) else { panic!("a complete request") };
    assert_eq!(request.body.of(&bytes), b"abcdef");
    assert_eq!(&bytes[request.consumed as usize..], next);
}

/// Bytes that matter to the grammar, inserted by [`mutate`].
const SPICES: &[&[u8]] = &[
    b"\r\n",
    b"\n",
    b"\r",
    b"\0",
    b" ",
    b"\t",
    b":",
    b";",
    b",",
    b"0",
    b"1",
    b"9",
    b"f",
    b"/",
    b"?",
    b"#",
    b"\x7f",
    b"\x80",
    b"+",
    b"\r\n\r\n",
    b"0\r\n\r\n",
    b"HTTP/1.0",
    b"HTTP/1.1",
    b"HTTP/2.0",
    b"http://h",
    b"GET / HTTP/1.1\r\n",
    b"Host: h\r\n",
    b"Content-Length: 3\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Connection: close\r\n",
    b"Connection: keep-alive\r\n",
    b"Expect: 100-continue\r\n",
    b"Content-Encoding: gzip\r\n",
    b"X-Request-Timeout-Ms: 5\r\n",
    b"X-Request-Id: i\r\n",
    b"Authorization: a\r\n",
    b"Content-Type: t\r\n",
    b"3\r\nabc\r\n",
    b"ffffffffffffffff",
    b"X: y\r\n",
];

fn mutate(input: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(input.len() + 1);
    let count = (1 + random.below(8)).min(input.len() - at);
    match random.below(6) {
        0 if at < input.len() => input[at] ^= 1 << random.below(8),
        1 if at < input.len() => input[at] = random.below(256) as u8,
        2 => drop(input.drain(at..at + count)),
        3 => {
            let copy = input[at..at + count].repeat(if random.below(4) == 0 { 60 } else { 1 });
            let to = random.below(input.len() + 1);
            input.splice(to..to, copy);
        }
        4 => input.truncate(at.max(input.len() / 2)),
        _ => {
            let spice = SPICES[random.below(SPICES.len())].repeat(if random.below(8) == 0 { 12 } else { 1 });
            input.splice(at..at, spice);
        }
    }
}

/// Random neighbours of valid requests, each read four ways and compared with the reference.
#[test]
fn the_reference_agrees_on_mutations() {
    let rows = rows();
    let valid: Vec<&[u8]> = rows.iter().filter(|row| row.1.ends_with("Keep")).map(|row| &row.0[..]).collect();
    let (mut taken, mut refused) = (0, 0);
    let mut reasons = std::collections::BTreeSet::new();
    for seed in 0..20_000 {
        let mut random = Random::new(seed);
        let mut input = if random.below(4) == 0 {
            rows[random.below(rows.len())].0.clone()
        } else {
            [valid[random.below(valid.len())], valid[random.below(valid.len())]].concat()
        };
        for _ in 0..1 + random.below(3) {
            mutate(&mut input, &mut random);
        }
        for event in fuzzing::request(&input) {
            match event {
                Event::Request(_) => taken += 1,
                Event::Refuse(refusal, _) => {
                    refused += 1;
                    reasons.insert(refusal);
                }
                Event::Head(_) | Event::Continue => {}
            }
        }
    }
    // The mutations must stay near enough to the grammar to be worth their time.
    assert!(taken > 3_000 && refused > 8_000, "{taken} taken, {refused} refused");
    let missed: Vec<Refusal> = Refusal::ALL.into_iter().filter(|refusal| !reasons.contains(refusal)).collect();
    assert!(missed.is_empty(), "no mutation was refused as {missed:?}");
}

/// What is refused is answered in the shape that its client expects, as far as what has come tells.
#[test]
fn a_refusal_knows_its_request() {
    type Row =
        (&'static str, Refusal, &'static str, &'static str, &'static str, Option<&'static str>, Option<&'static str>);
    const I1: Option<&str> = Some("i1");
    const PAGE: Option<&str> = Some("https://a.example");
    let id = "X-Request-Id: i1\r\nOrigin: https://a.example\r\n";
    let rows: [Row; 17] = [
        // (head, refusal, method, target, path, request id, origin)
        (
            "BREW /v1/x?q HTTP/1.1\r\nExpect: tea\r\nID",
            Refusal::ExpectationUnsupported,
            "BREW",
            "/v1/x?q",
            "/v1/x",
            Some("i1"),
            Some("https://a.example"),
        ),
        (
            "POST /v1/x HTTP/1.1\r\nHost: h\r\nID",
            Refusal::LengthRequired,
            "POST",
            "/v1/x",
            "/v1/x",
            Some("i1"),
            Some("https://a.example"),
        ),
        (
            "POST /v1/x HTTP/1.1\r\nHost: h\r\nContent-Length: 65\r\nID",
            Refusal::BodyTooLarge,
            "POST",
            "/v1/x",
            "/v1/x",
            Some("i1"),
            Some("https://a.example"),
        ),
        (
            "GET http://h/v1 HTTP/1.1\r\nID",
            Refusal::HostMissing,
            "GET",
            "http://h/v1",
            "/v1",
            Some("i1"),
            Some("https://a.example"),
        ),
        (
            "GET http://h?q HTTP/1.1\r\nID",
            Refusal::HostMissing,
            "GET",
            "http://h?q",
            "/",
            Some("i1"),
            Some("https://a.example"),
        ),
        // Whatever is wrong, somebody asked.
        ("HEAD /v1 HTTP/1.1\r\nHost : h\r\nID", Refusal::HeaderNameInvalid, "HEAD", "/v1", "/v1", I1, PAGE),
        ("HEAD /v1 HTTP/1.1\r\nHost: h\r\n b\r\nID", Refusal::HeaderFolded, "HEAD", "/v1", "/v1", I1, PAGE),
        ("GET /v1 HTTP/3.0\r\nID", Refusal::VersionUnsupported, "GET", "/v1", "/v1", I1, PAGE),
        ("GET /v1 HTTP/1.1\r\nHost: h\nID", Refusal::LineFeedBare, "GET", "/v1", "/v1", None, None),
        // Of two pages neither.
        (
            "GET /v1 HTTP/1.1\r\nHost: h\r\nOrigin: https://b.example\r\nID",
            Refusal::HeaderRepeated,
            "GET",
            "/v1",
            "/v1",
            I1,
            None,
        ),
        // A target that is none begins as one, or is shown as it was sent.
        ("HEAD v1 HTTP/1.1\r\nID", Refusal::TargetInvalid, "HEAD", "v1", "", I1, PAGE),
        ("HEAD /v1/#v1 HTTP/1.1\r\nID", Refusal::TargetInvalid, "HEAD", "/v1/#v1", "/v1/", I1, PAGE),
        ("GET /v1 /v1 HTTP/1.1\r\nID", Refusal::RequestLineInvalid, "GET", "/v1", "/v1", I1, PAGE),
        ("GET /v1/m\r\nID", Refusal::RequestLineInvalid, "GET", "/v1/m", "/v1/m", I1, PAGE),
        ("HEAD  /v1 HTTP/1.1\r\nID", Refusal::RequestLineInvalid, "HEAD", "", "", I1, PAGE),
        ("HEAD\n/v1 HTTP/1.1\r\nID", Refusal::LineFeedBare, "", "", "", None, None),
        ("\u{7f}GET /v1 HTTP/1.1\r\nID", Refusal::MethodInvalid, "", "", "", None, None),
    ];
    for (head, due, method, target, path, request_id, origin) in rows {
        let head = head.replace("ID", id) + "\r\n";
        let events = fuzzing::request(head.as_bytes());
        let Some(Event::Refuse(refusal, told)) = events.last() else { panic!("{head:?} is taken: {events:?}") };
        assert_eq!(*refusal, due, "{head:?}");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let Some(told) = told else {
            assert_eq!(method, "", "{head:?}");
            continue;
        };
        assert_eq!([text(&told.method_name), text(&told.target), text(&told.path)], [method, target, path], "{head:?}");
        assert_eq!(told.method == Method::Head, method == "HEAD", "{head:?}");
        assert_eq!(told.request_id.as_deref().map(text).as_deref(), request_id, "{head:?}");
        assert_eq!(told.origin.as_deref().map(text).as_deref(), origin, "{head:?}");
    }
}

/// A client that is too slow is told so as well as it has said who it is.
#[test]
fn an_unfinished_request_is_known_as_far_as_it_has_come() {
    let sent = b"POST /v1/embeddings HTTP/1.1\r\nHost: h\r\nX-Request-Id: i1\r\nContent-Length: 9\r\n\r\n{}";
    let known = |bytes: usize| {
        let (mut connection, mut buffer) = (Connection::new(), sent[..bytes].to_vec());
        while !matches!(connection.advance(&mut buffer, &LIMITS), Step::NeedMore { .. }) {}
        connection.gist(&buffer, &LIMITS).map(|gist| {
            let text = |span: Span| String::from_utf8_lossy(span.of(&buffer)).into_owned();
            (text(gist.method_name), text(gist.path), gist.request_id.map(text))
        })
    };
    let told =
        |method: &str, path: &str, id: Option<&str>| Some((method.to_owned(), path.to_owned(), id.map(str::to_owned)));
    assert_eq!(known(0), None);
    assert_eq!(known(4), None);
    assert_eq!(known(5), told("POST", "", None));
    assert_eq!(known(19), told("POST", "/v1/embeddings", None), "a path may go on");
    assert_eq!(known(8), told("POST", "/v1", None));
    assert_eq!(known(20), told("POST", "/v1/embeddings", None));
    assert_eq!(known(54), told("POST", "/v1/embeddings", None));
    assert_eq!(known(57), told("POST", "/v1/embeddings", Some("i1")));
    assert_eq!(known(sent.len()), told("POST", "/v1/embeddings", Some("i1")));
}

/// The reference is no mirror: it must object when the connection is made to say something else.
#[test]
fn the_reference_notices_a_difference() {
    let input = b"POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    let expected = fuzzing::expected(input, &LIMITS);
    let right = whole(input);
    assert_eq!(fuzzing::agrees(&right, &expected), Ok(()));
    let mut wrong = right.clone();
    if let Some(Event::Request(taken)) = wrong.last_mut() {
        taken.body.pop();
    }
    assert!(fuzzing::agrees(&wrong, &expected).is_err());
    assert!(fuzzing::agrees(&right[..1], &expected).is_err());
    assert!(fuzzing::agrees(&[Event::Refuse(Refusal::ChunkSizeInvalid, None)], &expected).is_err());
    let refused = fuzzing::expected(b"GET / HTTP/1.1\r\n\r\n", &LIMITS);
    assert!(fuzzing::agrees(&[Event::Refuse(Refusal::HostMissing, None)], &refused).is_ok());
    assert!(fuzzing::agrees(&[Event::Refuse(Refusal::HostInvalid, None)], &refused).is_err());
}

#[test]
fn limits_that_overflow_a_span_are_not_sound() {
    assert!(LIMITS.are_sound() && LARGE.are_sound());
    assert!(!Limits { body_bytes_max: u32::MAX as usize, ..LIMITS }.are_sound());
    assert!(!Limits { body_bytes_max: usize::MAX, ..LIMITS }.are_sound());
    assert!(!Limits { headers_max: HEADERS_MAX + 1, ..LIMITS }.are_sound());
    assert!(!Limits { head_bytes_max: 0, ..LIMITS }.are_sound());
}

#[test]
fn every_refusal_has_a_status_and_a_sentence() {
    assert_eq!(
        Refusal::ALL.len(),
        Refusal::TrailersTooLarge as usize + 1,
        "the last one declared is the last one here"
    );
    for (index, refusal) in Refusal::ALL.into_iter().enumerate() {
        assert_eq!(index, refusal as usize);
        assert!(matches!(refusal.status(), 400..=431 | 501 | 505), "{refusal:?}");
        assert!(reason(refusal.status()) != "Unknown", "{refusal:?}");
        assert!(refusal.message().len() > 15 && !refusal.message().ends_with('.'), "{refusal:?}");
    }
}

#[test]
fn byte_classes_agree_with_the_grammar() {
    let delimiters = b"\"(),/:;<=>?@[\\]{}";
    for byte in 0..=255u8 {
        assert_eq!(is_token_byte(byte), byte.is_ascii_graphic() && !delimiters.contains(&byte), "{byte}");
        assert_eq!(is_value_byte(byte), byte == 9 || !byte.is_ascii_control(), "{byte}");
    }
}

/// Kept per open connection, next to its buffer.
#[test]
fn a_connection_is_small() {
    assert!(size_of::<Connection>() <= 192, "{}", size_of::<Connection>());
}
