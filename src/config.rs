//! Every number of the server, from YAML, environment and flags (the later wins).
//!
//! `table` lists every key once: its place in the file, its variable, its flag, its bounds and its documentation come from
//! there, and `configs/config.yaml` is printed from it. `source` opens what is read, `tree` reads YAML with its line numbers,
//! `list` lists of texts, `address` hosts and origins, `models` the three sections of models, and `check` sets numbers against
//! one another. All problems of a configuration are reported together.
//!
//! Invariant: all `*_max` are derived once, here, and checked against one another; a bad key names file, line and the
//! nearest right key. Nothing else in the crate holds a default or reads the environment (the model hub's own variables
//! aside, see `model::fetch`).

mod address;
mod check;
#[doc(hidden)]
pub mod fuzzing;
mod keys;
mod list;
mod models;
mod read;
mod source;
mod table;
pub mod tree;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::device::Layout;
use crate::journal;
use crate::log::Level;
use crate::model::build::shapes::AskedBucket;
use crate::model::convert::Dtype;
use crate::model::{Pooling, Task};
use read::{Origin, Reader};

pub use check::{MEMORY_BYTES, Memory, WIDTH_ASSUMED};
pub use keys::ApiKeys;
pub use read::did_you_mean;
pub use table::{Key, TABLE, reference};

/// One thing that is wrong with a configuration, and where: `configs/config.yaml:14`, `REACTRT_SERVER_PORT`, `--port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub place: String,
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.place, self.message)
    }
}

/// Everything that is wrong with a configuration: the file's problems by line, then those of variables, flags, and of
/// numbers that clash. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(formatter, "{separator}{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// What goes over the file: `REACTRT_*` variables, then flags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Names and values; names without our prefix are skipped.
    pub environment: Vec<(String, String)>,
    /// Keys as [`Key::path`] writes them, and values.
    pub flags: Vec<(String, String)>,
}

impl Overrides {
    /// The process's environment and the given flags.
    pub fn with_flags(flags: Vec<(String, String)>) -> Overrides {
        let text = |part: std::ffi::OsString| part.to_string_lossy().into_owned();
        let environment = std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect();
        Overrides { environment, flags }
    }
}

/// A configuration of a thousand models has 300 kB.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Reads and checks a configuration file.
///
/// # Errors
/// All problems at once. An unreadable file or broken YAML is a single one.
pub fn load(file: &Path, overrides: &Overrides) -> Result<Settings, Problems> {
    let place = file.display().to_string();
    let refuse = |message: String| Problems(vec![Problem { place: place.clone(), message }]);
    let bytes = source::read(file, FILE_BYTES_MAX).map_err(refuse)?;
    let text = String::from_utf8(bytes).map_err(|_| refuse("is not UTF-8 text".to_owned()))?;
    parse(&place, &text, overrides)
}

/// Checks a configuration given as text; `file` is its name in messages.
pub fn parse(file: &str, text: &str, overrides: &Overrides) -> Result<Settings, Problems> {
    let mut reader = Reader::new(file, Settings::default());
    match tree::parse(text) {
        Ok(root) => reader.read_file(&root),
        Err((line, message)) => reader.problem(Origin::File { line }, format!("not valid YAML: {message}")),
    }
    reader.read_environment(&overrides.environment);
    reader.read_flags(&overrides.flags);
    reader.finish()
}

/// Everything `serve` needs to know, complete and checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub server: Server,
    pub batching: Batching,
    pub limits: Limits,
    pub deadlines: Deadlines,
    pub threads: Threads,
    pub devices: Devices,
    pub cpu: Cpu,
    pub gpu: Gpu,
    pub sim: Sim,
    /// Where what is made from a model is kept.
    pub engines: PathBuf,
    /// In the file's order; `/models` lists them so.
    pub models: Vec<ModelSettings>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    pub host: String,
    /// 0 lets the system choose.
    pub port: u16,
    pub api_keys: ApiKeys,
    /// More of them, one a line.
    pub api_keys_file: Option<PathBuf>,
    /// Web pages that may read answers; `*` for all.
    pub cors_origins: Vec<String>,
    pub access_log: Option<journal::Target>,
    pub log_level: Level,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batching {
    /// How long a device may wait for company before it starts a batch that could hold more. 0: never.
    pub linger_us: u64,
    /// Sequences in one plan at most; `None`: the bucket decides.
    pub sequences_max: Option<u32>,
    /// Useful tokens in one plan at most; `None`: the bucket decides.
    pub tokens_max: Option<u32>,
    /// Tokens accepted and not yet answered; beyond it 429.
    pub queue_tokens_max: u64,
    /// A sequence older than this goes before fairness.
    pub age_us_max: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    pub connections_max: usize,
    /// Requests between complete body and answer.
    pub jobs_max: usize,
    /// Pieces (up to `piece_sequences_max` sequences) between workers and devices.
    pub pieces_max: usize,
    pub piece_sequences_max: usize,
    pub head_bytes_max: usize,
    pub body_bytes_max: usize,
    pub texts_max: usize,
    pub text_bytes_max: usize,
    /// JSON values (keys, strings, numbers, brackets) in one body: bounds the parser's scratch.
    pub json_values_max: usize,
    pub answer_bytes_max: usize,
    /// All buffers of bytes together.
    /// `None`: [`MEMORY_BYTES`], or what the other limits need on this machine and with these models if that is more.
    pub memory_bytes_max: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// From the first byte of a head to its end.
    pub head_ms: u64,
    /// From the head to the body's end.
    pub body_ms: u64,
    /// For a client to take 64 KiB of an answer, or what is left of it.
    pub write_ms: u64,
    /// Between two requests of a connection.
    pub idle_ms: u64,
    /// From a stop signal to the end of the process.
    pub drain_ms: u64,
    /// From a request's last byte to its answer, for requests that do not say so themselves; `None`: as long as it takes.
    pub request_ms: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Where there are more cores than busy threads.
    Auto,
    Always,
    Never,
}

impl When {
    /// `suffice`: there are more cores than busy threads.
    pub fn holds(self, suffice: bool) -> bool {
        match self {
            When::Auto => suffice,
            When::Always => true,
            When::Never => false,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Threads {
    pub workers: usize,
    /// How long each thread looks for work before it sleeps.
    pub spin_us: u64,
    pub pin: When,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Devices {
    /// GPUs where there are any and the binary can use them, else the CPU.
    Auto,
    List(Vec<DeviceName>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceName {
    Cpu,
    Sim,
    Cuda(u32),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpu {
    pub lanes: usize,
    /// Threads that share one lane's matrix products.
    pub threads_per_lane: usize,
    /// Useful tokens in one plan at most.
    pub tokens_max: u32,
}

/// Each GPU, whichever `devices` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    pub lanes: usize,
    /// Of engines that are built from model folders.
    pub dtype: Dtype,
    pub layout: Layout,
    /// Of engines that are built here; `None`: [`crate::model::build::shapes::ladder`].
    pub buckets: Option<Vec<AskedBucket>>,
    /// Captured shapes of one model on each lane, where the engine leaves its shapes open.
    pub buckets_per_model_max: usize,
    /// How long one batch may take.
    pub hang_ms: u64,
    /// Whether its thread polls while a batch executes, instead of sleeping.
    pub poll: When,
    pub exit_when_dead: bool,
}

/// The simulated device, for tests and for measuring everything around the device.
#[derive(Clone, Debug, PartialEq)]
pub struct Sim {
    pub seed: u64,
    pub lanes: usize,
    /// Virtual execution time of a plan: `base_us + us_per_1k_tokens × tokens / 1000`.
    pub base_us: u64,
    pub us_per_1k_tokens: u64,
    /// Chance of a fault for each plan, 0 to 1.
    pub fault_rate: f64,
    pub packed: bool,
}

impl Settings {
    /// The defaults on a machine of so many cores.
    pub fn defaults(cores: usize) -> Settings {
        let mut settings = Settings {
            server: Server {
                host: "127.0.0.1".to_owned(),
                port: 8887,
                api_keys: ApiKeys::default(),
                api_keys_file: None,
                cors_origins: Vec::new(),
                access_log: None,
                log_level: Level::Info,
            },
            batching: Batching {
                linger_us: 0,
                sequences_max: None,
                tokens_max: None,
                queue_tokens_max: 1 << 20,
                age_us_max: 50_000,
            },
            limits: Limits {
                connections_max: 16_384,
                jobs_max: 4_096,
                pieces_max: 1_024,
                piece_sequences_max: 16,
                head_bytes_max: 16 << 10,
                body_bytes_max: 4 << 20,
                texts_max: 2_048,
                text_bytes_max: 1 << 20,
                json_values_max: 320_000,
                // 2,048 vectors of 1,024 values take 26 MB as text.
                // 2,048 vectors of 1,024 floats in JSON.
                answer_bytes_max: 37_800_000,
                memory_bytes_max: None,
            },
            deadlines: Deadlines {
                head_ms: 10_000,
                body_ms: 30_000,
                write_ms: 30_000,
                // Longer than the 60 s after which common proxies close, so that they close first.
                idle_ms: 75_000,
                drain_ms: 10_000,
                request_ms: None,
            },
            threads: Threads { workers: 1, spin_us: 0, pin: When::Auto },
            devices: Devices::Auto,
            cpu: Cpu { lanes: 1, threads_per_lane: 1, tokens_max: 2_048 },
            gpu: Gpu {
                lanes: 2,
                dtype: Dtype::Fp16,
                layout: Layout::Packed,
                buckets: None,
                buckets_per_model_max: 12,
                hang_ms: 10_000,
                poll: When::Auto,
                exit_when_dead: false,
            },
            sim: Sim { seed: 1, lanes: 2, base_us: 200, us_per_1k_tokens: 50, fault_rate: 0.0, packed: true },
            engines: PathBuf::from("engines"),
            models: Vec::new(),
        };
        settings.derive(cores, &BTreeMap::new());
        settings
    }

    /// Fills what was not `given` from the machine and from the other numbers.
    fn derive(&mut self, cores: usize, given: &BTreeMap<&'static str, Origin>) {
        if !given.contains_key("threads.workers") {
            // Eight workers tokenize faster than any device of ours executes.
            self.threads.workers = (cores / 4).clamp(1, 8);
        }
        if !given.contains_key("cpu.lanes") {
            self.cpu.lanes = cores.clamp(1, 2);
        }
        if !given.contains_key("cpu.threads_per_lane") {
            self.cpu.threads_per_lane = (cores / self.cpu.lanes.max(1)).max(1);
        }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings::defaults(cores())
    }
}

/// Cores that this process may use, by affinity and the control group's quota.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get())
}

/// One model's entry. `None`: as the model's own files say.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSettings {
    pub task: Task,
    /// The route's name.
    pub name: String,
    /// A folder, an `.onnx`, an engine or a hub name.
    pub model_path: String,
    /// A folder, a `tokenizer.json` or a hub name; `None`: beside the model.
    pub tokenizer_path: Option<String>,
    /// The output to serve, where there are several; `None`: by shape and name.
    pub output: Option<String>,
    pub reuse_dynamic_buffer: bool,
    pub cuda_graph_list: Vec<u32>,
    pub pooling: Option<Pooling>,
    pub normalize: Option<bool>,
    pub max_length: Option<usize>,
    pub labels: Option<Vec<String>>,
    pub prompts: Option<Vec<(String, String)>>,
    pub default_prompt: Option<String>,
    /// Where the entry stands, for messages: `configs/config.yaml:12`.
    pub place: String,
}

impl ModelSettings {
    /// An entry that says nothing but where the model is.
    pub fn new(task: Task, name: &str, model_path: &str, place: &str) -> ModelSettings {
        ModelSettings {
            task,
            name: name.to_owned(),
            model_path: model_path.to_owned(),
            tokenizer_path: None,
            output: None,
            reuse_dynamic_buffer: true,
            cuda_graph_list: Vec::new(),
            pooling: None,
            normalize: None,
            max_length: None,
            labels: None,
            prompts: None,
            default_prompt: None,
            place: place.to_owned(),
        }
    }
}
