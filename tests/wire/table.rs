//! The table of bytes in and bytes out (`table.txt`): read, played against running servers in three ways, and compared.

#![allow(dead_code)] // each test uses its own part of this

use std::io::Write;
use std::net::{Shutdown, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};

use reactrt::config::{ApiKeys, DeviceName, Settings};

use crate::common::{Answer, Client, settings};

/// What one row sends and expects.
#[derive(Debug, Default)]
pub struct Row {
    line: usize,
    pub name: String,
    send: Vec<u8>,
    half_close: bool,
    answers: Vec<Expected>,
    pub keeps: bool,
}

#[derive(Debug, Default)]
struct Expected {
    status: u16,
    has_body: bool,
    /// Name and part of the value; `None`: must not be there.
    fields: Vec<(String, Option<String>)>,
    words: Vec<String>,
    absent: Vec<String>,
}

/// How a row's bytes are split into writes.
#[derive(Clone, Copy, Debug)]
enum Way {
    Whole,
    OddPlaces,
    ByteByByte,
}

/// Who is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hop {
    Server,
    /// A proxy before it, which has header fields of its own.
    Proxy,
}

/// Rows of more bytes are not sent one by one.
const BYTE_BY_BYTE_MAX: usize = 1_200;

/// The table's sections: the name of their settings, and their rows.
pub fn sections() -> Vec<(&'static str, Vec<Row>)> {
    let text = include_str!("table.txt");
    let section = |section: &'static str| {
        let (name, _) = section.split_once('\n').expect("a section has rows");
        let first_line = text[..section.as_ptr().addr() - text.as_ptr().addr()].lines().count();
        (name, read(section, first_line))
    };
    text.split("\n@ ").skip(1).map(section).collect()
}

/// Plays a row in all three ways. What differs is said with the row's place and name.
pub fn play_all(address: SocketAddr, row: &Row, hop: Hop) -> Result<(), String> {
    for way in [Way::Whole, Way::OddPlaces, Way::ByteByByte] {
        let played = catch_unwind(AssertUnwindSafe(|| play(address, row, way, hop)));
        played
            .unwrap_or_else(|_| Err("no answer, see the panic above".into()))
            .map_err(|difference| format!("table.txt:{}: {} ({way:?}): {difference}", row.line, row.name))?;
    }
    Ok(())
}

/// The settings that the table calls by this name.
pub fn named(name: &str) -> Settings {
    let mut settings = settings(DeviceName::Sim);
    match name {
        "plain" => {}
        "slow" => {
            settings.sim.base_us = 300_000;
            settings.deadlines.request_ms = Some(40);
        }
        "keys" => {
            let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("wire-keys");
            std::fs::write(&file, "# of the table\nsecond-key\n").expect("target/tmp can be written");
            let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            std::fs::set_permissions(&file, private).expect("its own file");
            settings.server.api_keys = ApiKeys::new(vec!["first-key".into()]).expect("a key");
            settings.server.api_keys_file = Some(file);
        }
        "pages" => {
            settings.server.cors_origins = vec!["https://app.example".into(), "http://localhost:3000".into()];
        }
        "hasty" => {
            settings.deadlines.head_ms = 300;
            settings.deadlines.body_ms = 300;
            settings.deadlines.idle_ms = 800;
        }
        "small" => {
            settings.limits.body_bytes_max = 1024;
            settings.limits.head_bytes_max = 1024;
            settings.limits.text_bytes_max = 100;
            settings.limits.texts_max = 2;
            settings.models[0].max_length = Some(16);
        }
        other => panic!("no settings are called {other}"),
    }
    settings
}

fn read(section: &str, first_line: usize) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (index, text) in section.lines().enumerate().skip(1) {
        let line = first_line + index;
        if let Some(name) = text.strip_prefix("= ") {
            rows.push(Row { line, name: name.into(), ..Row::default() });
            continue;
        }
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let row = rows.last_mut().unwrap_or_else(|| panic!("table.txt:{line}: this belongs to no row"));
        if text == ">fin" {
            row.half_close = true;
        } else if let Some(bytes) = text.strip_prefix(">>") {
            row.send.extend(bytes_of(bytes.strip_prefix(' ').unwrap_or(bytes)));
        } else if let Some(bytes) = text.strip_prefix('>') {
            row.send.extend(bytes_of(bytes.strip_prefix(' ').unwrap_or(bytes)));
            row.send.extend(b"\r\n");
        } else if let Some(words) = text.strip_prefix("< ") {
            let mut words = words.split(' ');
            let status = words.next().and_then(|status| status.parse().ok()).expect("a status");
            let words: Vec<&str> = words.collect();
            row.keeps = words.contains(&"keep");
            row.answers.push(Expected { status, has_body: !words.contains(&"bare"), ..Expected::default() });
        } else if let (Some(field), Some(expected)) = (text.strip_prefix(": "), row.answers.last_mut()) {
            let (name, value) = match field.strip_prefix('!') {
                Some(name) => (name, None),
                None => match field.split_once(": ") {
                    Some((name, value)) => (name, Some(value.into())),
                    None => (field, Some(String::new())),
                },
            };
            expected.fields.push((name.into(), value));
        } else if let (Some(words), Some(expected)) = (text.strip_prefix("|! "), row.answers.last_mut()) {
            expected.absent.push(words.into());
        } else if let (Some(words), Some(expected)) = (text.strip_prefix("| "), row.answers.last_mut()) {
            expected.words.push(String::from_utf8(bytes_of(words)).expect("bodies are UTF-8"));
        } else {
            panic!("table.txt:{line}: {text:?} is none of the table's lines");
        }
    }
    rows
}

/// Escapes and repetitions resolved.
fn bytes_of(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if let Some((repeated, count, after)) = repetition(rest) {
            bytes.extend(bytes_of(repeated).repeat(count));
            rest = after;
        } else if first == '\\' {
            let (byte, length) = match rest.as_bytes()[1] {
                b'r' => (b'\r', 2),
                b'n' => (b'\n', 2),
                b't' => (b'\t', 2),
                b'0' => (0, 2),
                b'\\' => (b'\\', 2),
                b'x' => (u8::from_str_radix(&rest[2..4], 16).expect("two hexadecimal digits"), 4),
                other => panic!("unknown escape \\{} in {text}", char::from(other)),
            };
            bytes.push(byte);
            rest = &rest[length..];
        } else {
            bytes.extend(first.to_string().bytes());
            rest = &rest[first.len_utf8()..];
        }
    }
    bytes
}

/// `{x*3}…` as `x`, 3 and what follows.
fn repetition(text: &str) -> Option<(&str, usize, &str)> {
    let (inside, after) = text.strip_prefix('{')?.split_once('}')?;
    let (repeated, count) = inside.rsplit_once('*')?;
    if repeated.is_empty() || repeated.contains('{') { None } else { Some((repeated, count.parse().ok()?, after)) }
}

fn play(address: SocketAddr, row: &Row, way: Way, hop: Hop) -> Result<(), String> {
    let length = row.send.len();
    let mut client = Client::connect(address);
    let pieces: Vec<&[u8]> = match way {
        Way::Whole => vec![&row.send],
        Way::OddPlaces => {
            // Between a CR and its LF where there is one, and in thirds.
            let within_line_end = row.send.windows(2).position(|pair| pair == b"\r\n").map_or(length / 2, |at| at + 1);
            let mut places = [0, within_line_end, length / 3, 2 * length / 3, length.saturating_sub(1), length];
            places.sort_unstable();
            places.windows(2).map(|pair| &row.send[pair[0]..pair[1]]).collect()
        }
        Way::ByteByByte if length > BYTE_BY_BYTE_MAX => return Ok(()),
        Way::ByteByByte => row.send.chunks(1).collect(),
    };
    let mut stream = client.stream();
    for piece in pieces {
        // The server may have answered and closed already; what it said is read below.
        if stream.write_all(piece).is_err() {
            break;
        }
    }
    if row.half_close {
        let _ = stream.shutdown(Shutdown::Write);
    }
    for (index, expected) in row.answers.iter().enumerate() {
        let answer = client.answer_to(if expected.has_body { "GET" } else { "HEAD" });
        compare(&answer, expected, hop).map_err(|difference| format!("answer {}: {difference}", index + 1))?;
    }
    let says_close = row.answers.last().is_some_and(|_| !row.keeps);
    if says_close {
        return if client.is_closed() { Ok(()) } else { Err("the connection is not closed".into()) };
    }
    still_serves(&mut client)
}

fn compare(answer: &Answer, expected: &Expected, hop: Hop) -> Result<(), String> {
    let said = || format!("\n{}{}", answer.head, answer.text());
    if answer.status != expected.status {
        return Err(format!("{} expected, found{}", expected.status, said()));
    }
    if answer.status >= 200 && answer.header("x-request-id").is_none() {
        return Err(format!("no x-request-id in{}", said()));
    }
    let fields = if hop == Hop::Server { expected.fields.as_slice() } else { &[] };
    for (name, part) in fields {
        match (answer.header(name), part) {
            (Some(value), Some(part)) if value.contains(part.as_str()) => {}
            (None, None) => {}
            (_, part) => return Err(format!("{name} with {part:?} expected, found{}", said())),
        }
    }
    for words in &expected.words {
        if !answer.text().contains(words.as_str()) {
            return Err(format!("{words:?} expected, found{}", said()));
        }
    }
    match expected.absent.iter().find(|words| answer.text().contains(words.as_str())) {
        Some(words) => Err(format!("{words:?} is in{}", said())),
        None => Ok(()),
    }
}

/// What follows an answer is the answer to what follows the request.
fn still_serves(client: &mut Client) -> Result<(), String> {
    client.send(b"HEAD /health/live HTTP/1.1\r\nhost: x\r\nx-request-id: after\r\n\r\n");
    let answer = client.answer_to("HEAD");
    match (answer.status, answer.header("x-request-id")) {
        (200, Some("after")) => Ok(()),
        _ => Err(format!("the next request on the connection is answered\n{}", answer.head)),
    }
}
