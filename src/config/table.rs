//! The one table of all keys, from which everything about a key is made: where it stands in the file, its variable, its
//! flag, its bounds, its documentation, and the documented `configs/config.yaml` ([`reference`]).
//!
//! Defaults stand in [`Settings::defaults`], once; the table shows them. A key is read and shown by its codec.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use super::keys::KeyList;
use super::tree::{Node, Value, shown};
use super::{DeviceName, Devices, Settings, When, address, list};
use crate::device::Layout;
use crate::journal;
use crate::log::Level;
use crate::model::build::shapes::{self, AskedBucket};
use crate::model::convert::Dtype;

/// One setting.
#[derive(Clone, Copy)]
pub struct Key {
    /// `batching.linger_us`; a key of the file's top level has no dot.
    pub path: &'static str,
    /// One sentence or two, for the reference file and `--help`.
    pub doc: &'static str,
    /// True exactly when `auto` may stand for the value: the default is then worked out on the machine.
    pub auto: bool,
    /// The key that this is an old name of.
    pub stands_for: Option<&'static str>,
    pub(super) set: fn(&mut Settings, &Node) -> Result<(), String>,
    show: fn(&Settings) -> String,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Key").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Key {
    /// The section's name, empty for the top level.
    pub fn section(&self) -> &'static str {
        self.path.split_once('.').map_or("", |(section, _)| section)
    }

    /// The name within its section.
    pub fn name(&self) -> &'static str {
        self.path.split_once('.').map_or(self.path, |(_, name)| name)
    }

    /// `REACTRT_BATCHING_LINGER_US`
    pub fn variable(&self) -> String {
        format!("REACTRT_{}", self.path.replace('.', "_").to_ascii_uppercase())
    }

    /// The flag without its dashes: `linger-us`, and with the section where the name alone says too little: `cpu-lanes`.
    pub fn flag(&self) -> String {
        match self.section() {
            "cpu" | "sim" => self.flag_with_section(),
            _ => self.name().replace('_', "-"),
        }
    }

    /// `batching-linger-us`, which works for every key.
    pub fn flag_with_section(&self) -> String {
        self.path.replace(['.', '_'], "-")
    }

    /// The value in these settings, as the file would have it.
    pub fn show(&self, settings: &Settings) -> String {
        (self.show)(settings)
    }

    /// The default as the file would have it: `auto` where it depends on the machine.
    pub fn default_text(&self) -> String {
        if self.auto { "auto".to_owned() } else { self.show(&Settings::default()) }
    }

    /// Finds a key by its path.
    pub fn find(path: &str) -> Option<&'static Key> {
        TABLE.iter().find(|key| key.path == path)
    }
}

macro_rules! key {
    ($path:literal, $($field:ident).+, $codec:expr, $doc:literal) => {
        Key {
            path: $path,
            doc: $doc,
            auto: false,
            stands_for: None,
            set: |settings, node| {
                settings.$($field).+ = $codec.read(node)?;
                Ok(())
            },
            show: |settings| $codec.show(&settings.$($field).+),
        }
    };
    (auto $path:literal, $($field:ident).+, $codec:expr, $doc:literal) => {
        Key { auto: true, ..key!($path, $($field).+, $codec, $doc) }
    };
    (old $path:literal for $present:literal, $($field:ident).+, $codec:expr, $doc:literal) => {
        Key { stands_for: Some($present), ..key!($path, $($field).+, $codec, $doc) }
    };
}

/// A day: no deadline is longer.
const MS_MAX: u64 = 86_400_000;
/// Byte ranges within a request are held in 32 bits (`job::Span`), with room to spare.
const BODY_BYTES_MAX: u64 = 1 << 30;

/// Every key, in the order of the reference file. The three sections of models are not here: see `models`.
pub const TABLE: &[Key] = &[
    key!(
        "server.host",
        server.host,
        Host,
        "The address to listen on, or a name, which is looked up at start and not by check; 0.0.0.0 for all of this machine's addresses, :: for those of IPv6 too."
    ),
    key!("server.port", server.port, Whole(0..=65_535), "0 lets the system choose."),
    key!(
        "server.api_keys",
        server.api_keys,
        KeyList,
        "Keys of which every request but those for /health must show one, as Authorization: Bearer KEY or x-api-key: KEY; without it 401. A list; in a variable or flag a, b or [a, b], a key with brackets or quotes of its own in quotes. []: everybody may ask. Flags are seen by everybody on the machine; a file or a variable is not."
    ),
    key!(
        "server.api_keys_file",
        server.api_keys_file,
        OptionalPath,
        "A file of further keys, one a line (lines that begin with # are comments), read once at start; it may be a pipe, which is waited for at most 10 s. none: no such file."
    ),
    key!(
        "server.cors_origins",
        server.cors_origins,
        OriginList,
        "Web pages that may read answers, by origin as browsers send it (lower case, no default port, no path): a list such as [https://app.example, http://localhost:3000], or [\"*\"] for all. []: none, browsers keep answers from every page."
    ),
    key!(
        "server.access_log",
        server.access_log,
        AccessLog,
        "Where a line of JSON is written for each request: off (or none, null, false, no), \"-\" or stdout for the output, or a file (appended; opened anew when it has been renamed or removed; ./off for one of such a name)."
    ),
    key!(
        "server.log_level",
        server.log_level,
        LevelWord,
        "How much the process says of itself on the error stream: error, warn, info or debug."
    ),
    key!(
        "batching.linger_us",
        batching.linger_us,
        Whole(0..=10_000_000),
        "How long a device may wait for company before it starts a batch that could hold more. 0: never, a lone request waits for nothing. (The old max_wait, in milliseconds, is accepted too.)"
    ),
    key!(
        "batching.max_batch_size",
        batching.sequences_max,
        Optional(1..=1_000_000),
        "Sequences in one batch at most. auto: as the model's largest shape allows. (The old max_batch is accepted too.)"
    ),
    key!(
        "batching.max_batch_tokens",
        batching.tokens_max,
        Optional(1..=100_000_000),
        "Useful tokens in one batch at most. auto: as the model's largest shape allows."
    ),
    key!(
        "batching.queue_tokens_max",
        batching.queue_tokens_max,
        Whole(1..=1 << 40),
        "Tokens accepted and not yet answered; beyond it requests are refused with 429."
    ),
    key!(
        "batching.age_us_max",
        batching.age_us_max,
        Whole(1..=MS_MAX * 1000),
        "A sequence that has waited longer goes before fairness between requests."
    ),
    key!(old "batching.max_wait" for "batching.linger_us", batching.linger_us, Milliseconds, "linger_us in milliseconds."),
    key!(
        old "batching.max_batch" for "batching.max_batch_size",
        batching.sequences_max,
        Optional(1..=1_000_000),
        "max_batch_size."
    ),
    key!(
        "limits.connections_max",
        limits.connections_max,
        Whole(1..=1_000_000),
        "Open connections; 2 KiB each while idle. Further ones wait to be accepted."
    ),
    key!(
        "limits.jobs_max",
        limits.jobs_max,
        Whole(1..=1_000_000),
        "Requests between complete body and answer; beyond it 429."
    ),
    key!(
        "limits.pieces_max",
        limits.pieces_max,
        Whole(2..=1_000_000),
        "Pieces of requests, tokenized and under way to a device or back."
    ),
    key!(
        "limits.piece_sequences_max",
        limits.piece_sequences_max,
        Whole(1..=4_096),
        "Texts in one such piece at most."
    ),
    key!(
        "limits.head_bytes_max",
        limits.head_bytes_max,
        Bytes(1_024..=1 << 20),
        "A request's head (its first line and header fields); beyond it 431."
    ),
    key!(
        "limits.body_bytes_max",
        limits.body_bytes_max,
        Bytes(1_024..=BODY_BYTES_MAX),
        "A request's body; beyond it 413."
    ),
    key!(
        "limits.texts_max",
        limits.texts_max,
        Whole(1..=1_000_000),
        "Texts, or pairs of texts, in one request; beyond it 413."
    ),
    key!(
        "limits.text_bytes_max",
        limits.text_bytes_max,
        Bytes(1..=BODY_BYTES_MAX),
        "One text; a longer one is refused with 413."
    ),
    key!(
        "limits.json_values_max",
        limits.json_values_max,
        Whole(64..=100_000_000),
        "JSON values (keys, texts, numbers, brackets) in one body: bounds the parser's scratch of each worker."
    ),
    key!(
        "limits.answer_bytes_max",
        limits.answer_bytes_max,
        Bytes(4_096..=BODY_BYTES_MAX),
        "One answer; a request that would need more is refused before it is computed."
    ),
    key!(
        "limits.memory_bytes_max",
        limits.memory_bytes_max,
        OptionalBytes(1 << 20..=1 << 40),
        "All buffers together: connections, bodies, answers, pieces, scratch; models are not counted. auto: 256 MB, or what the other limits add up to on this machine and with these models."
    ),
    key!(
        "deadlines.head_ms",
        deadlines.head_ms,
        Whole(1..=MS_MAX),
        "From the first byte of a request's head to its end."
    ),
    key!("deadlines.body_ms", deadlines.body_ms, Whole(1..=MS_MAX), "From the head's end to the body's."),
    key!(
        "deadlines.write_ms",
        deadlines.write_ms,
        Whole(1..=MS_MAX),
        "While an answer is being sent, from one 64 KiB taken by the client to the next, or to its end."
    ),
    key!("deadlines.idle_ms", deadlines.idle_ms, Whole(1..=MS_MAX), "Between two requests of one connection."),
    key!(
        "deadlines.drain_ms",
        deadlines.drain_ms,
        Whole(0..=MS_MAX),
        "From a stop signal to the process's end, for requests under way."
    ),
    key!(
        "deadlines.request_ms",
        deadlines.request_ms,
        MillisecondsOrOff,
        "From a request's last byte to its answer; beyond it 504, and what has not begun to execute does not. A request's own header X-Request-Timeout-Ms goes over it. off: as long as it takes."
    ),
    key!(auto
        "threads.workers",
        threads.workers,
        Whole(1..=64),
        "Threads that parse and tokenize. auto: a quarter of the cores, 1 to 8."
    ),
    key!(
        "threads.spin_us",
        threads.spin_us,
        Whole(0..=1_000_000),
        "How long each thread looks for work before it sleeps: spends a core per thread to save the wake-up time, and harms where threads outnumber cores."
    ),
    key!(
        "threads.pin",
        threads.pin,
        WhenWord,
        "Whether threads stay on cores of their own: auto (where there are enough cores), always, never."
    ),
    key!(
        "devices",
        devices,
        DeviceList,
        "auto (GPUs where there are any and this binary can use them, else the CPU), or a list such as [cpu], [cuda:0, cuda:1], [sim]."
    ),
    key!(auto
        "cpu.lanes",
        cpu.lanes,
        Whole(1..=4),
        "Batches that the CPU device computes at once. auto: 2, or 1 on a single core."
    ),
    key!(auto
        "cpu.threads_per_lane",
        cpu.threads_per_lane,
        Whole(1..=256),
        "Threads that share one batch's matrix products. auto: the cores divided by the lanes."
    ),
    key!(
        "cpu.tokens_max",
        cpu.tokens_max,
        Whole(16..=1_000_000),
        "Tokens in one batch on the CPU at most (a longer single text still runs); scratch memory grows with it."
    ),
    key!(
        "gpu.lanes",
        gpu.lanes,
        Whole(1..=4),
        "Batches that a GPU has in hand at once: one executes while another is copied."
    ),
    key!("gpu.dtype", gpu.dtype, DtypeWord, "Precision of engines that are built from model folders: fp16 or fp32."),
    key!(
        "gpu.layout",
        gpu.layout,
        LayoutWord,
        "Layout of engines that are built from model folders: packed (several texts share a row) or padded."
    ),
    key!(
        "gpu.buckets",
        gpu.buckets,
        BucketList,
        "Shapes of engines that are built here: auto, or a list such as [1x32, 8x128, 32x256], rows by tokens per row; 8x128:64 holds up to 64 texts."
    ),
    key!(
        "gpu.buckets_per_model_max",
        gpu.buckets_per_model_max,
        Whole(1..=64),
        "Shapes of a model's batches that are captured on each lane at most, where an engine leaves its shapes open."
    ),
    key!(
        "gpu.hang_ms",
        gpu.hang_ms,
        Whole(10..=600_000),
        "A batch that takes longer than this has hung: the GPU is given up and readiness drops."
    ),
    key!(
        "gpu.poll",
        gpu.poll,
        WhenWord,
        "Whether a GPU's thread polls while a batch executes: spends a core while the GPU is busy and saves the wake-up time, 0.1 to 0.3 ms a batch. auto (where there are enough cores), always, never: it sleeps."
    ),
    key!(
        "gpu.exit_when_dead",
        gpu.exit_when_dead,
        Switch,
        "Whether the process ends, with exit code 1, once a GPU is given up, so that whoever supervises it starts it anew."
    ),
    key!("sim.seed", sim.seed, Whole(0..=u64::MAX), "What the simulated device draws its faults from."),
    key!("sim.lanes", sim.lanes, Whole(1..=4), "Batches that the simulated device computes at once."),
    key!("sim.base_us", sim.base_us, Whole(0..=60_000_000), "The simulated device's time for any batch."),
    key!(
        "sim.us_per_1k_tokens",
        sim.us_per_1k_tokens,
        Whole(0..=60_000_000),
        "The simulated device's further time for 1,000 tokens."
    ),
    key!("sim.fault_rate", sim.fault_rate, Fraction, "The chance that a batch fails on the simulated device, 0 to 1."),
    key!("sim.packed", sim.packed, Switch, "Whether several texts may lie in one row of the simulated device."),
    key!("engines", engines, Folder, "The folder where what is made from a model is kept."),
];

/// Reads and shows values of one kind. The error says what was expected and what was found.
pub(super) trait Codec<T> {
    fn read(&self, node: &Node) -> Result<T, String>;
    fn show(&self, value: &T) -> String;
}

pub(super) fn expected(what: &str, node: &Node) -> String {
    format!("expected {what}, found {}", node.describe())
}

/// The text of a scalar without quotes, which may be a number or a switch.
fn plain(node: &Node) -> Option<&str> {
    match &node.value {
        Value::Scalar { text, plain: true } => Some(text),
        Value::Scalar { plain: false, .. } | Value::List(_) | Value::Map(_) => None,
    }
}

/// A word of ours, in lower case. It may stand in quotes, as templates put them around everything.
pub(super) fn word(node: &Node) -> Option<String> {
    match &node.value {
        Value::Scalar { text, .. } => Some(text.to_ascii_lowercase()),
        Value::List(_) | Value::Map(_) => None,
    }
}

/// The digits of a whole number, which may be grouped by `_`. Not with a leading zero, which YAML 1.1, and with it the
/// old server, takes for octal.
fn digits(text: &str) -> Option<u64> {
    let is_grouped = text.split('_').all(|group| !group.is_empty() && group.bytes().all(|byte| byte.is_ascii_digit()));
    let is_clear = is_grouped && (text == "0" || !text.starts_with('0'));
    is_clear.then(|| text.replace('_', "").parse().ok()).flatten()
}

/// A whole number within bounds.
pub(super) struct Whole(pub(super) RangeInclusive<u64>);

impl Whole {
    pub(super) fn number(&self, node: &Node) -> Result<u64, String> {
        let number = plain(node).and_then(digits).filter(|number| self.0.contains(number));
        number.ok_or_else(|| match plain(node) {
            Some(text) if text.len() > 1 && text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit()) => {
                expected(&format!("{} without leading zeros", self.describe()), node)
            }
            Some(_) | None => expected(&self.describe(), node),
        })
    }

    fn describe(&self) -> String {
        if *self.0.end() == u64::MAX {
            return "a whole number".to_owned();
        }
        format!("a whole number from {} to {}", self.0.start(), self.0.end())
    }
}

impl<T: TryFrom<u64> + ToString> Codec<T> for Whole {
    fn read(&self, node: &Node) -> Result<T, String> {
        T::try_from(self.number(node)?).map_err(|_| expected(&self.describe(), node))
    }

    fn show(&self, value: &T) -> String {
        value.to_string()
    }
}

/// A whole number, or `auto` for none.
struct Optional(RangeInclusive<u64>);

impl Codec<Option<u32>> for Optional {
    fn read(&self, node: &Node) -> Result<Option<u32>, String> {
        if word(node).as_deref() == Some("auto") {
            return Ok(None);
        }
        let whole = Whole(self.0.clone());
        match whole.number(node).map(u32::try_from) {
            Ok(Ok(number)) => Ok(Some(number)),
            Ok(Err(_)) | Err(_) => Err(expected(&format!("auto or {}", whole.describe()), node)),
        }
    }

    fn show(&self, value: &Option<u32>) -> String {
        value.map_or_else(|| "auto".to_owned(), |number| number.to_string())
    }
}

struct DtypeWord;

impl Codec<Dtype> for DtypeWord {
    fn read(&self, node: &Node) -> Result<Dtype, String> {
        match word(node).as_deref() {
            Some("fp16") => Ok(Dtype::Fp16),
            Some("fp32") => Ok(Dtype::Fp32),
            Some(_) | None => Err(expected("fp16 or fp32", node)),
        }
    }

    fn show(&self, value: &Dtype) -> String {
        value.name().to_owned()
    }
}

struct LayoutWord;

impl Codec<Layout> for LayoutWord {
    fn read(&self, node: &Node) -> Result<Layout, String> {
        match word(node).as_deref() {
            Some("packed") => Ok(Layout::Packed),
            Some("padded") => Ok(Layout::Padded),
            Some(_) | None => Err(expected("packed or padded", node)),
        }
    }

    fn show(&self, value: &Layout) -> String {
        value.name().to_owned()
    }
}

/// `auto`, or a list of buckets; as one text, `1x32,8x128`, where a list cannot be written.
struct BucketList;

impl Codec<Option<Vec<AskedBucket>>> for BucketList {
    fn read(&self, node: &Node) -> Result<Option<Vec<AskedBucket>>, String> {
        if word(node).as_deref() == Some("auto") {
            return Ok(None);
        }
        let texts = match &node.value {
            Value::Scalar { .. } | Value::List(_) if !node.is_nothing() => list::items(node, "bucket")?,
            Value::Scalar { .. } | Value::List(_) | Value::Map(_) => Vec::new(),
        };
        if texts.is_empty() {
            return Err(expected("auto or a list of buckets such as [1x32, 8x128]", node));
        }
        let buckets: Vec<AskedBucket> = texts.iter().map(|item| item.text.parse()).collect::<Result<_, _>>()?;
        shapes::check_asked(&buckets)?;
        Ok(Some(buckets))
    }

    fn show(&self, value: &Option<Vec<AskedBucket>>) -> String {
        let show = |bucket: &AskedBucket| match bucket.sequences {
            Some(sequences) => format!("{}x{}:{sequences}", bucket.rows, bucket.length),
            None => format!("{}x{}", bucket.rows, bucket.length),
        };
        match value {
            None => "auto".to_owned(),
            Some(buckets) => format!("[{}]", buckets.iter().map(show).collect::<Vec<_>>().join(", ")),
        }
    }
}

/// A number of bytes, alone or with a unit.
struct Bytes(RangeInclusive<u64>);

const UNITS: [(&str, u64); 8] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("KB", 1_000),
    ("B", 1),
];

/// The shortest exact way to write a number of bytes.
pub(super) fn show_bytes(bytes: u64) -> String {
    let exact = UNITS.iter().filter(|(_, size)| bytes > 0 && bytes.is_multiple_of(*size));
    match exact.min_by_key(|(_, size)| bytes / size) {
        Some((_, 1)) | None => bytes.to_string(),
        Some((unit, size)) => format!("{} {unit}", bytes / size),
    }
}

fn read_bytes(text: &str) -> Option<u64> {
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '_').unwrap_or(text.len());
    let number = self::digits(&text[..end])?;
    match text[end..].trim() {
        "" => Some(number),
        unit => UNITS.iter().find(|(name, _)| *name == unit).and_then(|(_, size)| number.checked_mul(*size)),
    }
}

impl Codec<usize> for Bytes {
    fn read(&self, node: &Node) -> Result<usize, String> {
        let bytes = plain(node).and_then(read_bytes).filter(|bytes| self.0.contains(bytes));
        let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
        bytes.ok_or_else(|| {
            let (least, most) = (show_bytes(*self.0.start()), show_bytes(*self.0.end()));
            expected(&format!("a number of bytes from {least} to {most} (units: B, KiB, MiB, GiB, kB, MB, GB)"), node)
        })
    }

    fn show(&self, value: &usize) -> String {
        show_bytes(*value as u64)
    }
}

/// A number of bytes, or `auto` for none.
struct OptionalBytes(RangeInclusive<u64>);

impl Codec<Option<usize>> for OptionalBytes {
    fn read(&self, node: &Node) -> Result<Option<usize>, String> {
        match word(node).as_deref() {
            Some("auto") => Ok(None),
            Some(_) | None => Bytes(self.0.clone()).read(node).map(Some),
        }
    }

    fn show(&self, value: &Option<usize>) -> String {
        value.map_or_else(|| "auto".to_owned(), |bytes| show_bytes(bytes as u64))
    }
}

/// Milliseconds, with fractions, for a field in microseconds.
struct Milliseconds;

impl Codec<u64> for Milliseconds {
    fn read(&self, node: &Node) -> Result<u64, String> {
        let milliseconds = plain(node).and_then(|text| text.parse::<f64>().ok());
        let milliseconds = milliseconds.filter(|milliseconds| (0.0..=10_000.0).contains(milliseconds));
        milliseconds
            .map(|milliseconds| (milliseconds * 1000.0).round() as u64)
            .ok_or_else(|| expected("milliseconds from 0 to 10000", node))
    }

    fn show(&self, value: &u64) -> String {
        (*value as f64 / 1000.0).to_string()
    }
}

/// 0 to 1.
struct Fraction;

impl Codec<f64> for Fraction {
    fn read(&self, node: &Node) -> Result<f64, String> {
        let number = plain(node).and_then(|text| text.parse::<f64>().ok());
        number.filter(|number| (0.0..=1.0).contains(number)).ok_or_else(|| expected("a number from 0 to 1", node))
    }

    fn show(&self, value: &f64) -> String {
        value.to_string()
    }
}

/// `true` or `false`; also the other words that the old server's YAML reader took.
pub(super) struct Switch;

impl Switch {
    pub(super) fn read(&self, node: &Node) -> Result<bool, String> {
        match word(node).as_deref() {
            Some("true" | "yes" | "on") => Ok(true),
            Some("false" | "no" | "off") => Ok(false),
            Some(_) | None => Err(expected("true or false", node)),
        }
    }

    fn show(&self, value: &bool) -> String {
        value.to_string()
    }
}

/// Any text that is not empty. A number is taken by its digits: a model may be called 7.
pub(super) struct Text;

impl Text {
    pub(super) fn read(&self, node: &Node) -> Result<String, String> {
        match &node.value {
            Value::Scalar { text, .. } if !text.is_empty() && !node.is_nothing() => Ok(text.clone()),
            Value::Scalar { plain: false, .. } => Err("the text is empty; write one, or take the key away".to_owned()),
            Value::Scalar { .. } | Value::List(_) | Value::Map(_) => Err(expected("a text", node)),
        }
    }
}

/// A text that can be a path. Whether there is such a file is not asked.
pub(super) fn path(node: &Node) -> Result<String, String> {
    let text = Text.read(node)?;
    if text.trim().is_empty() {
        return Err(expected("a path", node));
    }
    match text.contains('\0') {
        true => Err(format!("{} has a NUL byte in it, which no path can have", shown(&text))),
        false => Ok(text),
    }
}

struct Host;

impl Codec<String> for Host {
    fn read(&self, node: &Node) -> Result<String, String> {
        const WHAT: &str = "an address to listen on, such as 127.0.0.1, or 0.0.0.0 for all";
        match &node.value {
            Value::Scalar { text, .. } if !text.trim().is_empty() && !node.is_nothing() => address::host(text),
            Value::Scalar { .. } | Value::List(_) | Value::Map(_) => Err(expected(WHAT, node)),
        }
    }

    fn show(&self, value: &String) -> String {
        value.clone()
    }
}

struct Folder;

impl Codec<PathBuf> for Folder {
    fn read(&self, node: &Node) -> Result<PathBuf, String> {
        path(node).map(PathBuf::from)
    }

    fn show(&self, value: &PathBuf) -> String {
        value.display().to_string()
    }
}

/// A file's path, or `none`. Nothing is not none: keys must not be gone because a variable is empty.
struct OptionalPath;

impl Codec<Option<PathBuf>> for OptionalPath {
    fn read(&self, node: &Node) -> Result<Option<PathBuf>, String> {
        match word(node).as_deref().map(str::trim) {
            Some("none" | "off" | "no" | "false") => Ok(None),
            Some("") => Err(expected("a file's path, or none", node)),
            Some(_) if node.is_nothing() => Err(expected("a file's path, or none", node)),
            Some(_) | None => path(node).map(|text| Some(PathBuf::from(text))),
        }
    }

    fn show(&self, value: &Option<PathBuf>) -> String {
        value.as_ref().map_or_else(|| "none".to_owned(), |path| path.display().to_string())
    }
}

/// `off`, `-` or a file's path.
struct AccessLog;

impl Codec<Option<journal::Target>> for AccessLog {
    fn read(&self, node: &Node) -> Result<Option<journal::Target>, String> {
        const WHAT: &str = "off, \"-\" for the output, or a file";
        let Some(word) = word(node) else { return Err(expected(WHAT, node)) };
        match word.trim() {
            "off" | "none" | "null" | "false" | "no" | "~" => Ok(None),
            "" if word.is_empty() => Ok(None),
            "-" | "stdout" => Ok(Some(journal::Target::StandardOutput)),
            "stderr" => {
                Err("the error stream has the process's own messages; write \"-\" for the output, or a file".to_owned())
            }
            "on" | "yes" | "true" | "0" | "1" | "" => Err(expected(WHAT, node)),
            _ => path(node).map(|text| Some(journal::Target::File(PathBuf::from(text)))),
        }
    }

    fn show(&self, value: &Option<journal::Target>) -> String {
        match value {
            None => "off".to_owned(),
            // In quotes, for a bare dash begins a list.
            Some(journal::Target::StandardOutput) => "\"-\"".to_owned(),
            Some(journal::Target::File(path)) => path.display().to_string(),
        }
    }
}

struct LevelWord;

impl Codec<Level> for LevelWord {
    fn read(&self, node: &Node) -> Result<Level, String> {
        let found = Level::ALL.into_iter().find(|level| word(node).as_deref() == Some(level.name()));
        found.ok_or_else(|| expected("error, warn, info or debug", node))
    }

    fn show(&self, value: &Level) -> String {
        value.name().to_owned()
    }
}

/// Whole milliseconds, `off` or 0 for none.
struct MillisecondsOrOff;

impl Codec<Option<u32>> for MillisecondsOrOff {
    fn read(&self, node: &Node) -> Result<Option<u32>, String> {
        if word(node).as_deref() == Some("off") {
            return Ok(None);
        }
        let whole = Whole(0..=MS_MAX);
        let number = whole.number(node).map_err(|_| expected(&format!("off or {}", whole.describe()), node))?;
        Ok(u32::try_from(number).ok().filter(|number| *number > 0))
    }

    fn show(&self, value: &Option<u32>) -> String {
        value.map_or_else(|| "off".to_owned(), |number| number.to_string())
    }
}

/// Origins of web pages; in a variable or flag the list is written with commas.
struct OriginList;

impl Codec<Vec<String>> for OriginList {
    fn read(&self, node: &Node) -> Result<Vec<String>, String> {
        match &node.value {
            Value::Map(_) => Err(expected("a list of origins such as https://app.example, or [\"*\"]", node)),
            // As good as no key.
            Value::Scalar { .. } if node.is_nothing() => Ok(Vec::new()),
            Value::Scalar { .. } | Value::List(_) => {
                let read = list::items(node, "origin")?.into_iter().map(|item| address::origin(&item.text));
                let (origins, faults): (Vec<_>, Vec<_>) = read.partition(Result::is_ok);
                match faults.is_empty() {
                    true => Ok(origins.into_iter().flatten().collect()),
                    false => Err(faults.into_iter().filter_map(Result::err).collect::<Vec<_>>().join("; ")),
                }
            }
        }
    }

    fn show(&self, value: &Vec<String>) -> String {
        format!(
            "[{}]",
            value.iter().map(|origin| if origin == "*" { "\"*\"" } else { origin }).collect::<Vec<_>>().join(", ")
        )
    }
}

struct WhenWord;

impl Codec<When> for WhenWord {
    fn read(&self, node: &Node) -> Result<When, String> {
        match word(node).as_deref() {
            Some("auto") => Ok(When::Auto),
            Some("always") => Ok(When::Always),
            Some("never") => Ok(When::Never),
            Some(_) | None => match Switch.read(node) {
                Ok(true) => Ok(When::Always),
                Ok(false) => Ok(When::Never),
                Err(_) => Err(expected("auto, always or never", node)),
            },
        }
    }

    fn show(&self, value: &When) -> String {
        match value {
            When::Auto => "auto",
            When::Always => "always",
            When::Never => "never",
        }
        .to_owned()
    }
}

/// `auto`, one device, or a list of them; in a variable or flag the list is written with commas.
struct DeviceList;

impl Codec<Devices> for DeviceList {
    fn read(&self, node: &Node) -> Result<Devices, String> {
        const WHAT: &str = "auto, or a list of cpu, sim, cuda:0, cuda:1, …";
        if word(node).as_deref() == Some("auto") {
            return Ok(Devices::Auto);
        }
        let names = match &node.value {
            Value::Scalar { .. } | Value::List(_) if !node.is_nothing() => list::items(node, "device")?,
            Value::Scalar { .. } | Value::List(_) | Value::Map(_) => return Err(expected(WHAT, node)),
        };
        let mut devices = Vec::new();
        for name in names.iter().map(|item| item.text.to_ascii_lowercase()) {
            let index = name.strip_prefix("cuda:").and_then(digits).filter(|index| *index < 1_024);
            let device = match (name.as_str(), index) {
                ("cpu", _) => DeviceName::Cpu,
                ("sim", _) => DeviceName::Sim,
                ("cuda", _) => DeviceName::Cuda(0),
                (_, Some(index)) => DeviceName::Cuda(index as u32),
                _ => return Err(format!("expected {WHAT}, found the device {}", shown(&name))),
            };
            if devices.contains(&device) {
                return Err(format!("the device {name} is listed twice"));
            }
            devices.push(device);
        }
        if devices.is_empty() {
            return Err(format!("expected {WHAT}, found an empty list"));
        }
        Ok(Devices::List(devices))
    }

    fn show(&self, value: &Devices) -> String {
        match value {
            Devices::Auto => "auto".to_owned(),
            Devices::List(devices) => {
                let names: Vec<String> = devices.iter().map(ToString::to_string).collect();
                format!("[{}]", names.join(", "))
            }
        }
    }
}

impl std::fmt::Display for DeviceName {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DeviceName::Cpu => formatter.write_str("cpu"),
            DeviceName::Sim => formatter.write_str("sim"),
            DeviceName::Cuda(index) => write!(formatter, "cuda:{index}"),
        }
    }
}

/// What stands above the keys in the reference file.
const HEAD: &str = "\
# The configuration of reactrt, with every key at its default. `reactrt check FILE` says what a file would serve, or all that
# is wrong with it; `reactrt check --defaults` prints this file.
#
# Each key is also a variable and a flag, which go over the file, the flag over the variable: batching.linger_us is
# REACTRT_BATCHING_LINGER_US and --linger-us. Names end in their unit. Relative paths start at the working directory.

# Models, by the group of routes they answer. The keys below an entry's name are optional but for model_path; what is not
# said here is read from the model's own files. Take the # away to serve these:
";

/// The example of each kind of model, commented out in the reference file.
const MODELS: &str = "\
embedding_models:
  all-MiniLM-L6-v2:
    # The name in routes: POST /infer/all-MiniLM-L6-v2. Default: the entry's own.
    model_name: all-MiniLM-L6-v2
    # A model folder, an .onnx, an engine (.engine, .plan, .trt), or a name on the model hub.
    model_path: sentence-transformers/all-MiniLM-L6-v2
    # A folder, a tokenizer.json, or a name on the hub. Default: beside the model.
    tokenizer_path: sentence-transformers/all-MiniLM-L6-v2
    # How token vectors become one: mean or cls.
    pooling: mean
    # Whether vectors are divided by their length.
    normalize: true
    # Tokens of one text, the special ones included; longer texts are cut.
    max_length: 256
    # Texts that are put before the input, by the name that a request gives, and the one when it gives none.
    prompts:
      query: \"query: \"
      passage: \"passage: \"
    default_prompt: passage
reranking_models:
  ms-marco-MiniLM-L6-v2:
    model_path: cross-encoder/ms-marco-MiniLM-L6-v2
    # The output to serve, of an .onnx or an engine that has several. Default: by shape and name.
    output: logits
    # GPU only: batch sizes to capture; a batch is rounded up to one of them, and above the last it runs without.
    cuda_graph_list: [1, 4, 16]
    # GPU only: allocate buffers once, at their largest.
    reuse_dynamic_buffer: true
nli_models:
  nli-MiniLM2-L6-H768:
    model_path: cross-encoder/nli-MiniLM2-L6-H768
    # Names of the classes, by index.
    labels: [contradiction, entailment, neutral]
";

/// The documented configuration file: every key with its default, and examples of models.
pub fn reference() -> String {
    let mut text = HEAD.to_owned();
    for line in MODELS.lines() {
        text.push_str(&format!("#{line}\n"));
    }
    let mut section = "";
    let mut old_names: BTreeMap<&str, &str> = BTreeMap::new();
    for key in TABLE {
        if let Some(present) = key.stands_for {
            old_names.insert(present, key.path);
            continue;
        }
        let indent = if key.section().is_empty() { "" } else { "  " };
        if key.section() != section || indent.is_empty() {
            section = key.section();
            text.push('\n');
            if !section.is_empty() {
                let _ = writeln!(text, "{section}:");
            }
        }
        for line in wrapped(key.doc, 116 - indent.len()) {
            let _ = writeln!(text, "{indent}# {line}");
        }
        let _ = writeln!(text, "{indent}{}: {}", key.name(), key.default_text());
    }
    text
}

/// Lines of whole words, none longer than `width` if its words allow.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            Some(_) | None => lines.push(word.to_owned()),
        }
    }
    lines
}
