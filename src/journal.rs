//! The access log: one line of JSON for each request, written by a thread of its own.
//!
//! ```text
//! reactor: begin(slot) … end(slot) ──► ring of records ──► Scribe: lines ──► file, standard output
//!                         │ full: counted, not written          │ not writable: counted, said once
//! ```
//!
//! Owns what a line holds, the ring, and the file. The reactor's end ([`Journal`]) copies what must be known of a request when
//! it comes and pushes a record when it is answered; it neither allocates nor waits. The writing end ([`Scribe`]) looks into
//! the ring every [`PAUSE`], writes what is there in one go, and goes on when a disk is full: lines are lost and counted, never
//! requests. A file that has been renamed or removed is opened anew under its name, so rotating needs no signal.
//!
//! Invariant: a line is one object in printable ASCII (models' names may be more), whatever a client sent.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::log;
use crate::model::files::folder_of;
use crate::ring::{Doorbell, Receiver, Sender, ring};

/// How long the scribe sleeps: the ring holds what 100,000 requests a second make of it and more.
pub const PAUSE: Duration = Duration::from_millis(25);

/// Records between reactor and scribe.
const RECORDS_MAX: usize = 8_192;

/// Bytes of a request's target that are written; longer ones end in `...`.
const TARGET_BYTES_MAX: usize = 256;

/// The same of its method; the longest of the registered ones has 17.
const METHOD_BYTES_MAX: usize = 20;

/// Lines are gathered up to here before they are written.
const CHUNK_BYTES: usize = 64 << 10;

/// How often it is looked whether the file is still the one that its name names.
const LOOKS_EVERY: u32 = 40;

/// Where lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    StandardOutput,
    File(PathBuf),
}

/// A few bytes of a client's own, held in place.
#[derive(Clone, Copy)]
struct Bytes<const MAX: usize> {
    bytes: [u8; MAX],
    length: u16,
    cut: bool,
}

impl<const MAX: usize> Bytes<MAX> {
    fn new(from: &[u8]) -> Bytes<MAX> {
        let mut bytes = [0; MAX];
        let length = from.len().min(MAX);
        bytes[..length].copy_from_slice(&from[..length]);
        Bytes { bytes, length: length as u16, cut: length < from.len() }
    }

    /// Appends a JSON string: what is not printable ASCII becomes an escape, byte by byte.
    fn write(&self, out: &mut Vec<u8>) {
        out.push(b'"');
        for &byte in &self.bytes[..self.length as usize] {
            match byte {
                b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
                b' '..=b'~' => out.push(byte),
                other => {
                    let _ = write!(out, "\\u{other:04x}");
                }
            }
        }
        out.extend_from_slice(if self.cut { b"...\"" } else { b"\"" });
    }
}

impl<const MAX: usize> std::fmt::Debug for Bytes<MAX> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}", self.bytes[..self.length as usize].escape_ascii())
    }
}

/// What is known of a request when it has come.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// When it was complete, on the server's clock; nanoseconds.
    pub arrived_ns: u64,
    pub remote: Option<SocketAddr>,
    /// As it was sent; empty where it could not be read.
    pub method: &'a [u8],
    /// As it was sent; where the request could not be read, as much of its first line as has come.
    pub target: &'a [u8],
    pub bytes_in: u64,
}

/// What is known of it when it is answered.
#[derive(Clone, Copy, Debug)]
pub struct Answered<'a> {
    /// 499 where the client went away before.
    pub status: u16,
    pub bytes_out: u64,
    /// On the server's clock, and since 1970; nanoseconds.
    pub now_ns: u64,
    pub unix_ns: u64,
    /// Of the work on it, where there was any, in the order of [`STAGES`].
    pub stages_ns: Option<[u64; STAGES.len()]>,
    pub request_id: &'a [u8],
    /// Index in the catalog.
    pub model: Option<u32>,
}

pub const STAGES: [&str; 5] = ["parse", "tokenize", "queue", "device", "encode"];

#[derive(Clone, Copy, Debug)]
struct Begun {
    arrived_ns: u64,
    remote: Option<SocketAddr>,
    method: Bytes<METHOD_BYTES_MAX>,
    target: Bytes<TARGET_BYTES_MAX>,
    bytes_in: u64,
}

/// One line, not yet written.
#[derive(Debug)]
struct Record {
    begun: Begun,
    unix_ns: u64,
    duration_ns: u64,
    status: u16,
    bytes_out: u64,
    stages_ns: Option<[u64; STAGES.len()]>,
    request_id: Bytes<128>,
    model: Option<u32>,
}

/// The reactor's end.
#[derive(Debug)]
pub struct Journal {
    sender: Sender<Record>,
    /// By connection: the request that is being answered.
    begun: Vec<Option<Begun>>,
    /// Records that found the ring full, and lines that could not be written.
    dropped: u64,
    lost: Arc<AtomicU64>,
}

impl Journal {
    pub fn begin(&mut self, slot: u32, asked: Asked<'_>) {
        let Asked { arrived_ns, remote, method, target, bytes_in } = asked;
        self.begun[slot as usize] =
            Some(Begun { arrived_ns, remote, method: Bytes::new(method), target: Bytes::new(target), bytes_in });
    }

    pub fn end(&mut self, slot: u32, answered: Answered<'_>) {
        let Some(begun) = self.begun[slot as usize].take() else { return };
        let record = Record {
            begun,
            unix_ns: answered.unix_ns,
            duration_ns: answered.now_ns.saturating_sub(begun.arrived_ns),
            status: answered.status,
            bytes_out: answered.bytes_out,
            stages_ns: answered.stages_ns,
            request_id: Bytes::new(answered.request_id),
            model: answered.model,
        };
        self.dropped += u64::from(!self.sender.offer(record));
    }

    /// Requests of which there is no line.
    pub fn dropped(&self) -> u64 {
        self.dropped + self.lost.load(Ordering::Relaxed)
    }
}

/// The other end of the ring, where records become lines.
#[derive(Debug)]
pub struct Lines {
    inbox: Receiver<Record>,
    /// Names by index, as JSON strings.
    models: Vec<String>,
    lost: Arc<AtomicU64>,
}

impl Lines {
    /// Appends the next line, if there is one.
    pub fn take(&mut self, text: &mut Vec<u8>) -> bool {
        let Some(record) = self.inbox.pop() else { return false };
        record.write(&self.models, text);
        true
    }
}

/// The writing end.
#[derive(Debug)]
pub struct Scribe {
    lines: Lines,
    output: Output,
    text: Vec<u8>,
    /// True exactly while the last write failed, so that this has been said.
    failing: bool,
    steps: u32,
}

/// Whether the target could be opened, as far as that can be known without making a file or opening a pipe, whose reader would
/// see it end.
///
/// # Errors
/// What is in the way, in a sentence.
pub fn check(target: &Target) -> Result<(), String> {
    let Target::File(path) = target else { return Ok(()) };
    let refuse = |words: &str| Err(format!("server.access_log: {} {words}", path.display()));
    if path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/") {
        return refuse("is a folder; name a file in it");
    }
    if path.is_file() {
        return open_file(path).map(drop).map_err(|error| unopened(path, &error));
    }
    let found = path.symlink_metadata();
    match found {
        // A link's target is where the file would be made.
        Ok(found) if found.is_symlink() && !path.exists() => match path.read_link() {
            Ok(to) if folder_of(&folder_of(path).join(&to)).is_dir() => Ok(()),
            Ok(_) => refuse("cannot be opened for writing: it is a link into a folder that is not there"),
            Err(error) => Err(unopened(path, &error)),
        },
        Ok(_) if path.metadata().is_ok_and(|found| found.file_type().is_socket()) => refuse("is a socket"),
        Ok(_) => Ok(()),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(unopened(path, &error)),
        Err(_) if folder_of(path).is_dir() => Ok(()),
        Err(_) => refuse("cannot be opened for writing: there is no such folder"),
    }
}

fn unopened(path: &Path, error: &io::Error) -> String {
    format!("server.access_log: {} cannot be opened for writing: {error}", path.display())
}

/// Opens the target and connects the two ends, for so many connections and these models.
///
/// # Errors
/// The file cannot be opened, in a sentence.
pub fn open<'a>(
    target: &Target,
    connections_max: usize,
    models: impl Iterator<Item = &'a str>,
) -> Result<(Journal, Scribe), String> {
    let output = Output::open(target)?;
    let (journal, lines) = connect(RECORDS_MAX, connections_max, models);
    let text = Vec::with_capacity(2 * CHUNK_BYTES);
    Ok((journal, Scribe { lines, output, text, failing: false, steps: 0 }))
}

/// The two ends of a ring for so many records, without an output.
pub fn connect<'a>(
    records_max: usize,
    connections_max: usize,
    models: impl Iterator<Item = &'a str>,
) -> (Journal, Lines) {
    // Nobody rings: the scribe looks by itself.
    let (sender, inbox) = ring(records_max, &Arc::new(Doorbell::new(Box::new(|| ()))));
    let lost = Arc::new(AtomicU64::new(0));
    let models = models.map(|name| serde_json::Value::from(name).to_string()).collect();
    let journal = Journal { sender, begun: vec![None; connections_max], dropped: 0, lost: Arc::clone(&lost) };
    (journal, Lines { inbox, models, lost })
}

impl Scribe {
    /// Writes what is there. Blocks where the output does.
    pub fn step(&mut self) {
        self.steps += 1;
        if self.steps.is_multiple_of(LOOKS_EVERY) {
            self.output.follow();
        }
        while self.lines.take(&mut self.text) {
            if self.text.len() >= CHUNK_BYTES {
                self.flush();
            }
        }
        self.flush();
    }

    fn flush(&mut self) {
        if self.text.is_empty() {
            return;
        }
        let (written, result) = self.output.write(&self.text);
        let lines = |text: &[u8]| memchr::memchr_iter(b'\n', text).count() as u64;
        match result {
            Ok(()) if self.failing => log::info(format_args!("the access log is written again")),
            Ok(()) => {}
            Err(_) if self.failing => {}
            Err(ref error) => log::error(format_args!(
                "the access log {} cannot be written: {error}; requests are answered, their lines are lost (see \
                 reactrt_access_log_dropped_total)",
                self.output.name
            )),
        }
        self.failing = result.is_err();
        self.lines.lost.fetch_add(lines(&self.text) - lines(&self.text[..written]), Ordering::Relaxed);
        self.text.clear();
    }
}

/// Where the lines go, and whether the last one was cut short.
#[derive(Debug)]
struct Output {
    name: String,
    path: Option<PathBuf>,
    file: Option<File>,
    torn: bool,
}

impl Output {
    fn open(target: &Target) -> Result<Output, String> {
        Ok(match target {
            Target::StandardOutput => Output { name: "-".into(), path: None, file: None, torn: false },
            Target::File(path) => {
                let name = path.display().to_string();
                let file = open_file(path).map_err(|error| unopened(path, &error))?;
                Output { name, path: Some(path.clone()), file: Some(file), torn: false }
            }
        })
    }

    /// Opens the file anew if its name leads to another one, or to none.
    fn follow(&mut self) {
        let (Some(path), Some(file)) = (&self.path, &self.file) else { return };
        let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
        let here = file.metadata().map(identity).ok();
        if here != std::fs::metadata(path).map(identity).ok()
            && let Ok(file) = open_file(path)
        {
            (self.file, self.torn) = (Some(file), false);
        }
    }

    /// Writes whole lines. Returns how far it came.
    fn write(&mut self, text: &[u8]) -> (usize, io::Result<()>) {
        // A line that was cut short must not run into the next one.
        if self.torn {
            match self.write_some(b"\n") {
                Ok(_) => self.torn = false,
                Err(error) => return (0, Err(error)),
            }
        }
        let mut written = 0;
        while written < text.len() {
            match self.write_some(&text[written..]) {
                Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.torn = written > 0 && text[written - 1] != b'\n';
                    return (written, Err(error));
                }
            }
        }
        (written, Ok(()))
    }

    fn write_some(&mut self, text: &[u8]) -> io::Result<usize> {
        match &mut self.file {
            Some(file) => file.write(text),
            None => {
                let mut output = io::stdout().lock();
                let written = output.write(text)?;
                output.flush()?;
                Ok(written)
            }
        }
    }
}

/// Appends; to a pipe it does not wait for a reader.
fn open_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o640).custom_flags(libc::O_NONBLOCK).open(path)
}

impl Record {
    fn write(&self, models: &[String], out: &mut Vec<u8>) {
        let Begun { remote, method, target, bytes_in, .. } = &self.begun;
        out.extend_from_slice(b"{\"time\":\"");
        out.extend_from_slice(&timestamp(self.unix_ns));
        out.extend_from_slice(b"\",\"remote\":");
        // Writing to memory cannot fail.
        let _ = match remote {
            Some(remote) => write!(out, "\"{remote}\""),
            None => write!(out, "null"),
        };
        out.extend_from_slice(b",\"method\":");
        match method.length {
            0 => out.extend_from_slice(b"null"),
            _ => method.write(out),
        }
        out.extend_from_slice(b",\"target\":");
        target.write(out);
        let (status, bytes_out) = (self.status, self.bytes_out);
        let duration_ms = milliseconds(self.duration_ns);
        let _ = write!(
            out,
            ",\"status\":{status},\"bytes_in\":{bytes_in},\"bytes_out\":{bytes_out},\"duration_ms\":{duration_ms:.3}"
        );
        if let Some(stages_ns) = self.stages_ns {
            for (index, (stage, duration_ns)) in STAGES.iter().zip(stages_ns).enumerate() {
                let before = if index == 0 { ",\"stages_ms\":{" } else { "," };
                let _ = write!(out, "{before}\"{stage}\":{:.3}", milliseconds(duration_ns));
            }
            out.push(b'}');
        }
        out.extend_from_slice(b",\"request_id\":");
        self.request_id.write(out);
        if let Some(model) = self.model {
            let _ = write!(out, ",\"model\":{}", models[model as usize]);
        }
        out.extend_from_slice(b"}\n");
    }
}

fn milliseconds(duration_ns: u64) -> f64 {
    duration_ns as f64 / 1e6
}

/// `2026-11-30T21:40:05.123456Z` (RFC 3339).
fn timestamp(unix_ns: u64) -> Vec<u8> {
    let (second, microsecond) = (unix_ns / 1_000_000_000, unix_ns % 1_000_000_000 / 1000);
    let crate::clock::Civil { year, month, day, hour, minute, second } = crate::clock::Civil::of(second);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{microsecond:06}Z").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journal_to(path: &Path) -> (Journal, Scribe) {
        open(&Target::File(path.to_owned()), 4, ["plain", "na\"me"].into_iter()).unwrap()
    }

    fn pass(journal: &mut Journal, target: &[u8], status: u16, model: Option<u32>) {
        let remote = Some("127.0.0.1:9".parse().unwrap());
        journal.begin(1, Asked { arrived_ns: 1_000_000, remote, method: b"GET", target, bytes_in: 30 });
        let stages_ns = model.map(|_| [1_000, 2_000, 3_000, 4_000, 5_000]);
        let answered = Answered {
            status,
            bytes_out: 40,
            now_ns: 3_500_000,
            unix_ns: 1_796_083_199_000_001_000,
            stages_ns,
            request_id: b"id",
            model,
        };
        journal.end(1, answered);
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("reactrt-journal-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_line_is_one_object_whatever_a_client_sent() {
        let folder = folder("line");
        let path = folder.join("log");
        let (mut journal, mut scribe) = journal_to(&path);
        pass(&mut journal, b"/infer/a\"\\\x1b\xff\n", 200, Some(1));
        pass(&mut journal, &[b'x'; 300], 404, None);
        journal.end(
            1,
            Answered { status: 1, bytes_out: 0, now_ns: 0, unix_ns: 0, stages_ns: None, request_id: b"", model: None },
        );
        scribe.step();
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            r#"{"time":"2026-11-30T23:59:59.000001Z","remote":"127.0.0.1:9","method":"GET","target":"/infer/a\"\\\u001b\u00ff\u000a","status":200,"bytes_in":30,"bytes_out":40,"duration_ms":2.500,"stages_ms":{"parse":0.001,"tokenize":0.002,"queue":0.003,"device":0.004,"encode":0.005},"request_id":"id","model":"na\"me"}"#
        );
        assert_eq!(lines.len(), 2, "an answer to nothing is no line");
        let second: serde_json::Value = serde_json::from_str(lines[1]).unwrap();
        assert_eq!(second["target"], format!("{}...", "x".repeat(TARGET_BYTES_MAX)));
        assert!(second.get("stages_ms").is_none() && second.get("model").is_none());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_full_ring_drops_lines_and_counts_them() {
        let folder = folder("ring");
        let (mut journal, mut scribe) = journal_to(&folder.join("log"));
        for _ in 0..RECORDS_MAX + 10 {
            pass(&mut journal, b"/", 200, None);
        }
        assert_eq!(journal.dropped(), 10);
        scribe.step();
        pass(&mut journal, b"/", 200, None);
        scribe.step();
        assert_eq!(journal.dropped(), 10);
        assert_eq!(std::fs::read_to_string(folder.join("log")).unwrap().lines().count(), RECORDS_MAX + 1);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_full_disk_loses_lines_and_nothing_else() {
        let (mut journal, mut scribe) = journal_to(Path::new("/dev/full"));
        for _ in 0..3 {
            pass(&mut journal, b"/", 200, None);
            scribe.step();
        }
        assert_eq!((journal.dropped(), scribe.failing), (3, true));
    }

    #[test]
    fn a_renamed_file_is_opened_anew() {
        let folder = folder("rename");
        let path = folder.join("log");
        let (mut journal, mut scribe) = journal_to(&path);
        pass(&mut journal, b"/first", 200, None);
        scribe.step();
        std::fs::rename(&path, folder.join("log.1")).unwrap();
        for _ in 0..LOOKS_EVERY {
            scribe.step();
        }
        pass(&mut journal, b"/second", 200, None);
        scribe.step();
        assert!(std::fs::read_to_string(folder.join("log.1")).unwrap().contains("/first"));
        let now = std::fs::read_to_string(&path).unwrap();
        assert!(now.contains("/second") && !now.contains("/first"));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_cannot_be_opened_is_said_at_once() {
        let error = open(&Target::File("/no/such/folder/log".into()), 1, std::iter::empty()).unwrap_err();
        assert!(error.starts_with("server.access_log: /no/such/folder/log cannot be opened"), "{error}");
        let error = check(&Target::File("/no/such/folder/log".into())).unwrap_err();
        assert!(error.starts_with("server.access_log: /no/such/folder/log cannot be opened"), "{error}");
        let folder = folder("check");
        let of = |path: PathBuf| check(&Target::File(path));
        assert!(of(folder.clone()).unwrap_err().contains("is a folder"));
        assert!(of(folder.join("log/")).unwrap_err().contains("is a folder"));
        assert!(of(folder.join("log/log")).unwrap_err().contains("no such folder"));
        assert_eq!(of(folder.join("log")), Ok(()));
        assert!(!folder.join("log").exists(), "nothing is made");
        std::fs::write(folder.join("log"), "a line\n").unwrap();
        assert_eq!(of(folder.join("log")), Ok(()));
        assert_eq!(std::fs::read_to_string(folder.join("log")).unwrap(), "a line\n");
        let link = |to: &str| {
            let path = folder.join(to.replace('/', "-"));
            std::os::unix::fs::symlink(to, &path).unwrap();
            of(path)
        };
        assert_eq!(link("new"), Ok(()));
        assert!(link("none/new").unwrap_err().contains("a link into a folder that is not there"));
        assert!(
            of(folder.join("x".repeat(300))).unwrap_err().contains("cannot be opened for writing: File name too long")
        );
        let _socket = std::os::unix::net::UnixListener::bind(folder.join("socket")).unwrap();
        assert!(of(folder.join("socket")).unwrap_err().contains("is a socket"));
        assert_eq!((check(&Target::StandardOutput), of("log".into())), (Ok(()), Ok(())));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
