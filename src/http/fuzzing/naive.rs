//! The reference: the same grammar written the slow and obvious way, over the whole input at once.
//!
//! It splits lines into vectors and collects everything that is wrong with a head instead of stopping at the first thing,
//! so the order of the connection's checks is free while their sum is not: what one side accepts the other must accept,
//! with the same bytes, and what is refused must be refused for a reason that applies. It may share no parsing with the
//! code that it judges: types and limits only.

use super::{Event, Taken};
use crate::http::{Limits, Method, Persistence, Refusal, Version};

/// What must come next from a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    Event(Event),
    /// A refusal, for one of these reasons.
    Refuse(Vec<Refusal>),
}

/// A part of the input: complete, not complete yet, or wrong for one of these reasons.
enum Found<T> {
    Complete(T),
    Incomplete,
    Wrong(Vec<Refusal>),
}

/// Everything that a connection must say about `input`.
pub fn expected(input: &[u8], limits: &Limits) -> Vec<Expected> {
    let mut all = Vec::new();
    let mut at = 0;
    while let Some(consumed) = one_request(&input[at..], limits, &mut all) {
        at += consumed;
    }
    all
}

/// Returns how long the request is, if it is complete and leaves the connection open.
fn one_request(input: &[u8], limits: &Limits, all: &mut Vec<Expected>) -> Option<usize> {
    let (start, end) = unless_wrong(find_head(input, limits), all)?;
    let head = unless_wrong(read_head(&input[start..end], limits), all)?;
    let mut taken = head.taken;
    let (body, body_bytes) = if head.length == Some(0) {
        (Vec::new(), 0)
    } else {
        all.push(Expected::Event(Event::Head(Box::new(taken.clone()))));
        if head.waits {
            all.push(Expected::Event(Event::Continue));
        }
        match head.length {
            Some(length) => (input[end..].get(..length)?.to_vec(), length),
            None => unless_wrong(read_chunks(&input[end..], limits), all)?,
        }
    };
    taken.body = body;
    let keeps = taken.persistence != Persistence::Close;
    all.push(Expected::Event(Event::Request(Box::new(taken))));
    keeps.then_some(end + body_bytes)
}

fn unless_wrong<T>(found: Found<T>, all: &mut Vec<Expected>) -> Option<T> {
    match found {
        Found::Complete(value) => Some(value),
        Found::Incomplete => None,
        Found::Wrong(reasons) => {
            all.push(Expected::Refuse(reasons));
            None
        }
    }
}

/// Where the request line begins and where the blank line ends.
fn find_head(input: &[u8], limits: &Limits) -> Found<(usize, usize)> {
    let window = &input[..input.len().min(limits.head_bytes_max)];
    let mut start = 0;
    while window[start..].starts_with(b"\r\n") {
        start += 2;
        if start == 6 {
            return Found::Wrong(vec![Refusal::BlankLinesTooMany]);
        }
    }
    let head = &window[start..];
    if !head.is_empty() && !is_tchar(head[0]) && head[0] != b'\r' && head[0] != b'\n' {
        return Found::Wrong(vec![Refusal::MethodInvalid]);
    }
    for at in 0..head.len() {
        if head[at] == b'\n' && (at == 0 || head[at - 1] != b'\r') {
            return Found::Wrong(vec![Refusal::LineFeedBare]);
        }
        if head[..=at].ends_with(b"\r\n\r\n") {
            return Found::Complete((start, start + at + 1));
        }
    }
    if input.len() < limits.head_bytes_max {
        return Found::Incomplete;
    }
    let within_request_line = !head.contains(&b'\n');
    Found::Wrong(vec![if within_request_line { Refusal::TargetTooLong } else { Refusal::HeadTooLarge }])
}

struct ReadHead {
    taken: Taken,
    /// `None`: chunked.
    length: Option<usize>,
    /// For `100 Continue`.
    waits: bool,
}

fn read_head(head: &[u8], limits: &Limits) -> Found<ReadHead> {
    let lines = split(&head[..head.len() - 4], b"\r\n");
    let mut wrong = Vec::new();
    if lines.iter().any(|line| line.contains(&b'\r')) {
        wrong.push(Refusal::CarriageReturnBare);
    }
    let sent = split(&lines[0], b" ");
    let (method, path, query, version) = read_request_line(&lines[0], limits, &mut wrong);
    if lines.len() - 1 > limits.headers_max {
        wrong.push(Refusal::HeadersTooMany);
    }
    let fields = read_fields(&lines[1..], &mut wrong);
    let all = |name: &str| -> Vec<&Vec<u8>> {
        fields.iter().filter(|(field, _)| field == name).map(|(_, value)| value).collect()
    };
    check_singles(&all, version, &mut wrong);
    let length = read_length(&all, method, version, limits, &mut wrong);
    let timeouts: Vec<Option<u32>> = all("x-request-timeout-ms").iter().map(|value| milliseconds(value)).collect();
    if timeouts.contains(&None) {
        wrong.push(Refusal::TimeoutInvalid);
    }
    if !wrong.is_empty() {
        return Found::Wrong(wrong);
    }
    let options: Vec<Vec<u8>> =
        all("connection").iter().flat_map(|value| split(&lower(value), b",")).map(|option| trim(&option)).collect();
    let says = |option: &str| options.iter().any(|said| said == option.as_bytes());
    let persistence = match version {
        _ if says("close") => Persistence::Close,
        Version::Current => Persistence::Keep,
        Version::Old if says("keep-alive") => Persistence::KeepAnnounced,
        Version::Old => Persistence::Close,
    };
    let first = |name: &str| all(name).first().map(|value| value.to_vec());
    let echoable = |id: &&&Vec<u8>| !id.is_empty() && id.len() <= 128 && id.iter().all(|&byte| is_visible(byte));
    let taken = Taken {
        method,
        method_name: sent.first().cloned().unwrap_or_default(),
        target: sent.get(1).cloned().unwrap_or_default(),
        version,
        persistence,
        path,
        query,
        content_type: first("content-type"),
        authorization: first("authorization"),
        request_id: all("x-request-id").iter().find(echoable).map(|value| value.to_vec()),
        origin: first("origin"),
        timeout_ms: timeouts.first().copied().flatten(),
        body: Vec::new(),
    };
    let waits = version == Version::Current && length != Some(0) && !all("expect").is_empty();
    Found::Complete(ReadHead { taken, length, waits })
}

fn read_request_line(line: &[u8], limits: &Limits, wrong: &mut Vec<Refusal>) -> (Method, Vec<u8>, Vec<u8>, Version) {
    let parts = split(line, b" ");
    let [method, target, version] = &parts[..] else {
        wrong.extend([Refusal::RequestLineInvalid, Refusal::MethodInvalid, Refusal::TargetInvalid]);
        return (Method::Other, Vec::new(), Vec::new(), Version::Current);
    };
    if method.is_empty() || !method.iter().all(|&byte| is_tchar(byte)) {
        wrong.push(Refusal::MethodInvalid);
    }
    let method = match &method[..] {
        b"GET" => Method::Get,
        b"HEAD" => Method::Head,
        b"POST" => Method::Post,
        b"OPTIONS" => Method::Options,
        _ => Method::Other,
    };
    if target.len() > limits.target_bytes_max {
        wrong.push(Refusal::TargetTooLong);
    }
    let (path, query) = read_target(target, method).unwrap_or_else(|| {
        wrong.push(Refusal::TargetInvalid);
        Default::default()
    });
    let version = match &version[..] {
        b"HTTP/1.0" => Version::Old,
        b"HTTP/1.1" => Version::Current,
        [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => {
            wrong.push(Refusal::VersionUnsupported);
            Version::Current
        }
        _ => {
            wrong.push(Refusal::RequestLineInvalid);
            Version::Current
        }
    };
    (method, path, query, version)
}

fn read_target(target: &[u8], method: Method) -> Option<(Vec<u8>, Vec<u8>)> {
    if target.is_empty() || !target.iter().all(|&byte| is_visible(byte) && byte != b'#') {
        return None;
    }
    if target == b"*" {
        return (method == Method::Options).then(|| (b"*".to_vec(), Vec::new()));
    }
    let text = String::from_utf8(target.to_vec()).ok()?;
    let scheme_bytes = ["http://", "https://"]
        .iter()
        .find(|scheme| text.to_lowercase().starts_with(**scheme))
        .map_or(0, |scheme| scheme.len());
    let rest = &text[scheme_bytes..];
    let (authority, local) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    if (scheme_bytes > 0) == authority.is_empty() || !is_host(authority.as_bytes()) {
        return None;
    }
    let (path, query) = local.split_once('?').unwrap_or((local, ""));
    let path = match path {
        "" if scheme_bytes > 0 => "/",
        path if path.starts_with('/') => path,
        _ => return None,
    };
    Some((path.into(), query.into()))
}

/// Names in lower case, values trimmed; lines that are not fields are noted and left out.
fn read_fields(lines: &[Vec<u8>], wrong: &mut Vec<Refusal>) -> Vec<(String, Vec<u8>)> {
    let mut fields = Vec::new();
    for line in lines {
        if line.starts_with(b" ") || line.starts_with(b"\t") {
            wrong.push(Refusal::HeaderFolded);
            continue;
        }
        let colon = line.iter().position(|&byte| byte == b':').unwrap_or(0);
        let (name, value) = line.split_at(colon);
        if name.is_empty() || !name.iter().all(|&byte| is_tchar(byte)) {
            wrong.push(Refusal::HeaderNameInvalid);
            continue;
        }
        let value = trim(&value[1..]);
        if !value.iter().all(|&byte| is_field_byte(byte)) {
            wrong.push(Refusal::HeaderValueInvalid);
        }
        fields.push((String::from_utf8_lossy(&lower(name)).into_owned(), value));
    }
    fields
}

/// Numbers that are larger than 32 bits are the largest of them.
fn milliseconds(value: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    match text.trim_start_matches('0') {
        "" => (!text.is_empty()).then_some(0),
        digits if digits.len() > 10 => Some(u32::MAX),
        digits => digits.parse::<u64>().ok().map(|number| number.min(u64::from(u32::MAX)) as u32),
    }
}

fn check_singles<'a>(all: &impl Fn(&str) -> Vec<&'a Vec<u8>>, version: Version, wrong: &mut Vec<Refusal>) {
    for name in ["content-type", "authorization", "x-request-timeout-ms", "x-api-key", "origin"] {
        if all(name).len() > 1 {
            wrong.push(Refusal::HeaderRepeated);
        }
    }
    let hosts = all("host");
    if hosts.is_empty() && version == Version::Current {
        wrong.push(Refusal::HostMissing);
    }
    if hosts.len() > 1 {
        wrong.push(Refusal::HostRepeated);
    }
    if hosts.iter().any(|host| !is_host(host)) {
        wrong.push(Refusal::HostInvalid);
    }
    if all("content-encoding").iter().any(|coding| lower(coding) != b"identity") {
        wrong.push(Refusal::ContentEncodingUnsupported);
    }
    if all("expect").iter().any(|expectation| lower(expectation) != b"100-continue") {
        wrong.push(Refusal::ExpectationUnsupported);
    }
}

fn read_length<'a>(
    all: &impl Fn(&str) -> Vec<&'a Vec<u8>>,
    method: Method,
    version: Version,
    limits: &Limits,
    wrong: &mut Vec<Refusal>,
) -> Option<usize> {
    let (lengths, codings) = (all("content-length"), all("transfer-encoding"));
    if lengths.iter().any(|length| digits(length).is_none()) {
        wrong.push(Refusal::ContentLengthInvalid);
    }
    if lengths.len() > 1 {
        wrong.push(Refusal::ContentLengthRepeated);
    }
    if codings.len() > 1 {
        wrong.push(Refusal::TransferEncodingRepeated);
    }
    if !codings.is_empty() && !lengths.is_empty() {
        wrong.push(Refusal::LengthAmbiguous);
    }
    if !codings.is_empty() && version == Version::Old {
        wrong.push(Refusal::TransferEncodingTooOld);
    }
    if codings.iter().any(|coding| lower(coding) != b"chunked") {
        wrong.push(Refusal::TransferEncodingUnsupported);
    }
    if codings.is_empty() && lengths.is_empty() && method == Method::Post {
        wrong.push(Refusal::LengthRequired);
    }
    let length = lengths.first().map_or(Some(0), |length| digits(length));
    if length.is_some_and(|length| length > limits.body_bytes_max as u64) {
        wrong.push(Refusal::BodyTooLarge);
    }
    if codings.is_empty() { length.map(|length| length as usize) } else { None }
}

/// The decoded body, and how many bytes its coding took.
fn read_chunks(input: &[u8], limits: &Limits) -> Found<(Vec<u8>, usize)> {
    let mut body = Vec::new();
    let mut at = 0;
    let mut extensions_left = limits.chunk_extra_bytes_max;
    loop {
        let line = match read_line(&input[at..], 16 + extensions_left, Refusal::ChunkExtensionsTooLarge) {
            Found::Complete(line) => line,
            Found::Incomplete => return Found::Incomplete,
            Found::Wrong(reasons) => return Found::Wrong(reasons),
        };
        at += line.len() + 2;
        let digits = line.iter().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(line.len());
        let (digits, extension) = line.split_at(digits);
        let mut wrong = Vec::new();
        let size = std::str::from_utf8(digits).ok().and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let introduced = extension.is_empty() || trim(extension).starts_with(b";");
        if size.is_none() || digits.len() > 16 || !introduced {
            wrong.push(Refusal::ChunkSizeInvalid);
        }
        if !extension.iter().all(|&byte| is_field_byte(byte)) {
            wrong.push(Refusal::ChunkExtensionInvalid);
        }
        if extension.len() > extensions_left {
            wrong.push(Refusal::ChunkExtensionsTooLarge);
        }
        if size.is_some_and(|size| size > (limits.body_bytes_max - body.len()) as u64) {
            wrong.push(Refusal::BodyTooLarge);
        }
        if !wrong.is_empty() {
            return Found::Wrong(wrong);
        }
        extensions_left -= extension.len();
        let size = size.unwrap_or(0) as usize;
        if size == 0 {
            return read_trailers(&input[at..], limits.chunk_extra_bytes_max, body, at);
        }
        let Some(data) = input[at..].get(..size) else { return Found::Incomplete };
        body.extend_from_slice(data);
        at += size;
        match &input[at..] {
            [b'\r', b'\n', ..] => at += 2,
            [] | [b'\r'] => return Found::Incomplete,
            _ => return Found::Wrong(vec![Refusal::ChunkEndInvalid]),
        }
    }
}

fn read_trailers(input: &[u8], mut left: usize, body: Vec<u8>, before: usize) -> Found<(Vec<u8>, usize)> {
    let mut at = 0;
    loop {
        let line = match read_line(&input[at..], left, Refusal::TrailersTooLarge) {
            Found::Complete(line) => line,
            Found::Incomplete => return Found::Incomplete,
            Found::Wrong(reasons) => return Found::Wrong(reasons),
        };
        at += line.len() + 2;
        if line.is_empty() {
            return Found::Complete((body, before + at));
        }
        let mut wrong = Vec::new();
        let fields = read_fields(std::slice::from_ref(&line), &mut wrong);
        let forbidden = [
            "content-length",
            "transfer-encoding",
            "host",
            "trailer",
            "content-encoding",
            "authorization",
            "x-api-key",
        ];
        if !wrong.is_empty() || fields.iter().any(|(name, _)| forbidden.contains(&name.as_str())) {
            return Found::Wrong(vec![Refusal::TrailerInvalid, Refusal::TrailersTooLarge]);
        }
        if line.len() + 2 > left {
            return Found::Wrong(vec![Refusal::TrailersTooLarge]);
        }
        left -= line.len() + 2;
    }
}

/// The line at the front without its end, if it has at most `bytes_max` bytes.
fn read_line(input: &[u8], bytes_max: usize, too_long: Refusal) -> Found<Vec<u8>> {
    for at in 0..bytes_max + 2 {
        match input.get(at) {
            None => return Found::Incomplete,
            Some(b'\n') if at > 0 && input[at - 1] == b'\r' => return Found::Complete(input[..at - 1].to_vec()),
            Some(b'\n') => return Found::Wrong(vec![Refusal::LineFeedBare]),
            Some(_) => {}
        }
    }
    Found::Wrong(vec![too_long])
}

fn split(bytes: &[u8], separator: &[u8]) -> Vec<Vec<u8>> {
    let mut parts = vec![Vec::new()];
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at..].starts_with(separator) {
            parts.push(Vec::new());
            at += separator.len();
        } else {
            let last = parts.len() - 1;
            parts[last].push(bytes[at]);
            at += 1;
        }
    }
    parts
}

fn trim(bytes: &[u8]) -> Vec<u8> {
    let blank = |byte: &u8| *byte == b' ' || *byte == b'\t';
    let start = bytes.iter().take_while(|byte| blank(byte)).count();
    let end = bytes.len() - bytes[start..].iter().rev().take_while(|byte| blank(byte)).count();
    bytes[start..end].to_vec()
}

fn lower(bytes: &[u8]) -> Vec<u8> {
    bytes.to_ascii_lowercase()
}

fn digits(bytes: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(bytes).ok()?;
    if !text.chars().all(|digit| digit.is_ascii_digit()) { None } else { text.parse().ok() }
}

fn is_visible(byte: u8) -> bool {
    (0x21..=0x7e).contains(&byte)
}

fn is_field_byte(byte: u8) -> bool {
    byte == 0x09 || (0x20..=0x7e).contains(&byte) || byte >= 0x80
}

fn is_tchar(byte: u8) -> bool {
    is_visible(byte) && !b"\"(),/:;<=>?@[\\]{}".contains(&byte)
}

fn is_host(host: &[u8]) -> bool {
    host.iter().all(|byte| is_visible(*byte) && !b"\"#/<>?@\\^`{|}".contains(byte))
}
