//! Every number of the server, from YAML, environment and flags (the later wins).
//!
//! Invariant: all `*_max` are derived once, here, and checked against one another; a bad key names file, line and the
//! nearest right key. Nothing else in the crate reads the environment or holds a default.

use std::path::PathBuf;

use crate::model::{Pooling, Task};

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
    pub memory_bytes_max: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// From the first byte of a head to its end.
    pub head_ms: u64,
    /// From the head to the body's end.
    pub body_ms: u64,
    /// Without any progress while an answer is being written.
    pub write_ms: u64,
    /// Between two requests of a connection.
    pub idle_ms: u64,
    /// From a stop signal to the end of the process.
    pub drain_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pin {
    /// When there are at least as many cores as busy threads.
    Auto,
    Always,
    Never,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Threads {
    pub workers: usize,
    /// How long each thread looks for work before it sleeps.
    pub spin_us: u64,
    pub pin: Pin,
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
