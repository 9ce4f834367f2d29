//! What a run leaves behind: one JSON document that programs, `compare` and the HTML report read.
//!
//! Owns the format and nothing else. Times are microseconds, `f64`; rates are per second. A latency is *corrected* when it
//! counts from the moment at which the schedule wanted the request sent, *uncorrected* when it counts from the moment at
//! which its first byte left; a closed loop has no schedule, so there both are the same and the run is called saturation.
//! Invariant: counts add up, `sent = answered + aborted + failed`, `answered = correct + wrong`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Raised when a reader of old files would misunderstand a new one.
pub const FORMAT: u32 = 1;

/// The document: one or more runs made on one machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    pub format: u32,
    /// The command line that made it.
    pub command: String,
    /// When it began, as `2026-11-30T18:00:00Z`.
    pub began: String,
    pub machine: Machine,
    /// In the order in which they ran. Interleaved runs of one target carry one label.
    pub runs: Vec<Run>,
}

/// Where the generator ran. What could not be found out is empty.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Machine {
    pub cpu: String,
    pub cores: u32,
    pub memory_bytes: u64,
    pub kernel: String,
    /// Name of each GPU, and the driver's version.
    pub gpus: Vec<String>,
    pub driver: String,
    /// The generator's version, and the commit of the working tree (with `-dirty`) where there is one.
    pub version: String,
    pub commit: String,
}

/// One load against one target.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// What tables and plots call it.
    pub label: String,
    pub target: Target,
    pub load: Load,
    pub workload: Workload,
    /// The measured part, without warm-up, in seconds.
    pub duration_s: f64,
    pub warmup_s: f64,
    pub counts: Counts,
    pub rates: Rates,
    /// `None` where nothing was answered.
    pub latency: Option<Latency>,
    /// From the answers' `Server-Timing`, in the order in which the server names them; empty where there is none.
    pub stages: Vec<Stage>,
    /// From the target's `/metrics`, over the measured part; absent where there is none.
    pub server: Option<ServerSide>,
    /// Of the answers' vectors, if asked for: the same for the same vectors in any order.
    pub digest: Option<String>,
    /// The vectors of the first texts, if asked for, so that two targets' answers can be compared.
    pub samples: Vec<Sample>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    pub url: String,
    /// `native`, `openai`, …: the name of the family as `--api` has it.
    pub api: String,
    pub model: String,
}

/// Who decides when the next request is sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Load {
    /// A schedule drawn beforehand, whatever the server does.
    Open { rate: f64, arrivals: Arrivals, connections: u32 },
    /// Each of these connections sends as soon as it is answered. Saturation, not latency.
    Closed { concurrency: u32 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrivals {
    Poisson,
    Constant,
}

/// What was sent.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// In words: `log-normal words, median 30, sigma 0.9, 4 to 254`, `lines of texts.txt`.
    pub texts: String,
    /// In words: `1`, `32`, `uniform 1 to 64`.
    pub per_request: String,
    pub seed: u64,
    /// Share of requests whose connection is closed before the answer.
    pub abort_rate: f64,
    /// Whether each request has a connection of its own.
    pub new_connections: bool,
    /// `none`, `status`, `full`: how far answers were checked.
    pub check: String,
}

/// Over the measured part.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counts {
    /// Requests whose first byte was written, and those for which no connection came about.
    pub sent: u64,
    /// Requests with a whole answer.
    pub answered: u64,
    /// Those closed on purpose.
    pub aborted: u64,
    /// Those without a whole answer: refused, reset, closed, timed out.
    pub failed: u64,
    /// Answers that are what they should be, and the others.
    pub correct: u64,
    pub wrong: u64,
    /// Failures and wrong answers by kind: `refused`, `closed mid-body`, `status 429`, `dimension 383, not 384`, … Few kinds.
    pub errors: BTreeMap<String, u64>,
    /// Requests written more than 100 µs after their time on the schedule.
    pub late: u64,
    /// Requests of the schedule that were never written because the run ended first.
    pub unsent: u64,
    /// In correct answers. Tokens as the answers' `usage` counts them, else as the server's `/metrics` do; 0 where neither
    /// does.
    pub texts: u64,
    pub tokens: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
}

impl Counts {
    /// Requests that came to nothing or were answered wrongly. A damaged file may hold any numbers, so no sum of them overflows.
    pub fn bad(&self) -> u64 {
        self.wrong.saturating_add(self.failed)
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rates {
    /// What the schedule asked for; `None` in a closed loop.
    pub asked: Option<f64>,
    /// Correct answers that came within the measured part, whenever their requests were sent.
    pub requests: f64,
    pub texts: f64,
    pub tokens: f64,
}

/// Of correct answers; where several requests after one another are measured as one (`sweep`'s serial runs), of these.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latency {
    pub corrected: Summary,
    pub uncorrected: Summary,
    /// From the planned to the real moment of sending.
    pub lateness: Summary,
    /// The whole corrected histogram, a V2 interval log of hdrhistogram in nanoseconds.
    pub interval_log: String,
}

/// All in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    pub count: u64,
    pub mean: f64,
    pub min: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
    /// (quantile in 0..=1, value), ascending: for plots by percentile.
    pub quantiles: Vec<(f64, f64)>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    pub name: String,
    pub mean: f64,
    pub p50: f64,
    pub p99: f64,
}

/// What the server counted meanwhile.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerSide {
    /// Sequences per batch.
    pub mean_batch: Option<f64>,
    /// Useful tokens over tokens computed.
    pub batch_fill: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    pub text: String,
    pub values: Vec<f32>,
}
