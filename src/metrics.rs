//! What the server counts: one writer for each number, read by `/metrics`.
//!
//! Counters that other threads write are relaxed atomics; everything about requests is written by the reactor alone, for
//! every request's stage times pass through it. Histograms are hdrhistograms inside and classic `le` buckets outside.
//! Readers subtract; no writer ever resets. Labels are bounded: the configured models, devices, a fixed list of statuses
//! and stages.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hdrhistogram::Histogram;

use crate::device::gpu::{GpuCounters, SlotCounters};
use crate::device::{Bucket, Fault, Plan};

/// Written by one device thread.
#[derive(Debug, Default)]
pub struct DeviceCounters {
    pub batches: AtomicU64,
    pub sequences: AtomicU64,
    pub tokens: AtomicU64,
    /// Tokens of the buckets that ran, useful or not: `tokens / bucket_tokens` is the fill.
    pub bucket_tokens: AtomicU64,
    pub busy_ns: AtomicU64,
    /// Sequences of cancelled jobs that were never computed.
    pub dropped: AtomicU64,
    pub faults: [AtomicU64; FAULTS.len()],
    pub panics: AtomicU64,
}

const FAULTS: [(Fault, &str); 5] = [
    (Fault::Refused, "refused"),
    (Fault::Failed, "failed"),
    (Fault::Hung, "hung"),
    (Fault::Panicked, "panicked"),
    (Fault::Dead, "dead"),
];

impl DeviceCounters {
    pub fn count_batch(&self, plan: &Plan, bucket_tokens: u64, busy_ns: u64) {
        let add = |counter: &AtomicU64, value: u64| counter.fetch_add(value, Ordering::Relaxed);
        add(&self.batches, 1);
        add(&self.sequences, plan.placements.len() as u64);
        add(&self.tokens, u64::from(plan.tokens));
        add(&self.bucket_tokens, bucket_tokens);
        add(&self.busy_ns, busy_ns);
    }

    pub fn count_fault(&self, fault: Fault) {
        if let Some(index) = FAULTS.iter().position(|(known, _)| *known == fault) {
            self.faults[index].fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Where a request's time went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Parse,
    Tokenize,
    Queue,
    Device,
    Encode,
    /// From the complete body to the answer's being queued for the socket.
    Total,
}

const STAGES: [(Stage, &str); 6] = [
    (Stage::Parse, "parse"),
    (Stage::Tokenize, "tokenize"),
    (Stage::Queue, "queue"),
    (Stage::Device, "device"),
    (Stage::Encode, "encode"),
    (Stage::Total, "total"),
];

/// Upper bounds of the outward buckets, in microseconds.
const BUCKETS_US: [u64; 16] =
    [10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000, 10_000_000];

/// One histogram of durations, recorded in microseconds with two significant digits.
#[derive(Debug)]
struct Durations {
    histogram: Histogram<u64>,
    sum_ns: u64,
}

impl Durations {
    fn new() -> Durations {
        let histogram = Histogram::new_with_bounds(1, 3_600_000_000, 2).expect("bounds are valid");
        Durations { histogram, sum_ns: 0 }
    }

    fn record(&mut self, duration_ns: u64) {
        self.histogram.saturating_record(duration_ns / 1000);
        self.sum_ns += duration_ns;
    }

    fn write(&self, out: &mut Vec<u8>, name: &str, labels: std::fmt::Arguments<'_>) {
        let mut values = self.histogram.iter_recorded();
        let (mut cumulative, mut next) = (0, values.next());
        for bound in BUCKETS_US {
            while let Some(value) = &next
                && value.value_iterated_to() <= bound
            {
                cumulative += value.count_since_last_iteration();
                next = values.next();
            }
            let bound = bound as f64 / 1e6;
            let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {cumulative}");
        }
        let count = self.histogram.len();
        let _ = writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}");
        let _ = writeln!(out, "{name}_sum{{{labels}}} {}", self.sum_ns as f64 / 1e9);
        let _ = writeln!(out, "{name}_count{{{labels}}} {count}");
    }
}

/// Statuses with a counter of their own; any other is counted under its class's last entry.
const STATUSES: [u16; 22] =
    [200, 400, 401, 404, 405, 408, 411, 413, 414, 415, 417, 422, 429, 431, 500, 501, 503, 504, 505, 299, 499, 599];

fn status_index(status: u16) -> usize {
    let fallback = match status {
        0..=399 => 299,
        400..=499 => 499,
        _ => 599,
    };
    let find = |wanted: u16| STATUSES.iter().position(|known| *known == wanted);
    find(status).or_else(|| find(fallback)).expect("every class has a last entry")
}

/// One served model's numbers.
#[derive(Debug)]
struct PerModel {
    name: String,
    statuses: [u64; STATUSES.len()],
    texts: u64,
    tokens: u64,
    truncated: u64,
    total: Durations,
}

/// Gauges that the reactor passes in when `/metrics` is asked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gauges {
    pub connections: usize,
    pub jobs: usize,
    pub queue_tokens: u64,
    pub pieces_out: usize,
    pub buffers_out: usize,
    /// Requests of which the access log has no line.
    pub access_lines_dropped: u64,
}

/// Everything the reactor counts.
#[derive(Debug)]
pub struct Metrics {
    models: Vec<PerModel>,
    /// Requests that reached no model: health, lists, unknown paths, bad framing.
    other: [u64; STATUSES.len()],
    stages: [Durations; STAGES.len()],
    pub connections_accepted: u64,
    pub connections_closed: u64,
    /// Started = answered + cancelled + those being worked on.
    pub jobs_started: u64,
    pub jobs_answered: u64,
    pub jobs_cancelled: u64,
    pub turns: u64,
    /// Requests given up because their time had passed.
    pub requests_expired: u64,
    /// Connections that the system had no file descriptor, or no memory, for when they were to be accepted.
    pub accepts_failed: u64,
    devices: Vec<(String, Arc<DeviceCounters>)>,
    gpus: Vec<(String, Arc<GpuCounters>)>,
    worker_panics: Vec<Arc<AtomicU64>>,
}

impl Metrics {
    pub fn new(
        models: impl Iterator<Item = String>,
        devices: Vec<(String, Arc<DeviceCounters>)>,
        gpus: Vec<(String, Arc<GpuCounters>)>,
        worker_panics: Vec<Arc<AtomicU64>>,
    ) -> Metrics {
        let models = models
            .map(|name| PerModel {
                name: Escaped(&name).to_string(),
                statuses: [0; STATUSES.len()],
                texts: 0,
                tokens: 0,
                truncated: 0,
                total: Durations::new(),
            })
            .collect();
        Metrics {
            models,
            other: [0; STATUSES.len()],
            stages: std::array::from_fn(|_| Durations::new()),
            connections_accepted: 0,
            connections_closed: 0,
            jobs_started: 0,
            jobs_answered: 0,
            jobs_cancelled: 0,
            turns: 0,
            requests_expired: 0,
            accepts_failed: 0,
            devices,
            gpus,
            worker_panics,
        }
    }

    /// In the order of the devices.
    pub fn device_names(&self) -> impl Iterator<Item = &str> {
        self.devices.iter().map(|(name, _)| name.as_str())
    }

    pub fn count_answer(&mut self, model: Option<u32>, status: u16) {
        match model {
            Some(model) => self.models[model as usize].statuses[status_index(status)] += 1,
            None => self.other[status_index(status)] += 1,
        }
    }

    pub fn count_texts(&mut self, model: u32, texts: u64, tokens: u64, truncated: u64, total_ns: u64) {
        let model = &mut self.models[model as usize];
        model.texts += texts;
        model.tokens += tokens;
        model.truncated += truncated;
        model.total.record(total_ns);
    }

    pub fn record(&mut self, stage: Stage, duration_ns: u64) {
        let index = STAGES.iter().position(|(known, _)| *known == stage).expect("every stage is listed");
        self.stages[index].record(duration_ns);
    }

    /// Prometheus text, into memory that the caller has reserved.
    pub fn write(&self, gauges: Gauges, out: &mut Vec<u8>) {
        self.write_requests(out);
        head(out, "reactrt_stage_duration_seconds", "histogram", "Time of answered requests in each stage.");
        for ((_, name), stage) in STAGES.iter().zip(&self.stages) {
            stage.write(out, "reactrt_stage_duration_seconds", format_args!("stage=\"{name}\""));
        }
        for (name, help, value) in [
            ("reactrt_connections", "Open connections.", gauges.connections as u64),
            ("reactrt_jobs", "Requests being worked on.", gauges.jobs as u64),
            ("reactrt_queue_tokens", "Tokens accepted and not yet answered.", gauges.queue_tokens),
            ("reactrt_pieces_out", "Pieces between reactor, workers and devices.", gauges.pieces_out as u64),
            ("reactrt_buffers_out", "Byte buffers in use.", gauges.buffers_out as u64),
        ] {
            head(out, name, "gauge", help);
            let _ = writeln!(out, "{name} {value}");
        }
        let panics = self.worker_panics.iter().map(|panics| panics.load(Ordering::Relaxed)).sum();
        for (name, help, value) in [
            ("reactrt_connections_accepted_total", "Connections accepted.", self.connections_accepted),
            ("reactrt_connections_closed_total", "Connections closed.", self.connections_closed),
            ("reactrt_jobs_started_total", "Requests for models that were taken on.", self.jobs_started),
            ("reactrt_jobs_answered_total", "Of these, those that were answered.", self.jobs_answered),
            ("reactrt_jobs_cancelled_total", "Of these, those whose client went away.", self.jobs_cancelled),
            (
                "reactrt_requests_expired_total",
                "Requests given up because their time had passed.",
                self.requests_expired,
            ),
            (
                "reactrt_accept_failures_total",
                "Times that the system had no file descriptor for a connection.",
                self.accepts_failed,
            ),
            (
                "reactrt_access_log_dropped_total",
                "Requests of which the access log has no line.",
                gauges.access_lines_dropped,
            ),
            ("reactrt_worker_panics_total", "Panics caught in workers.", panics),
        ] {
            head(out, name, "counter", help);
            let _ = writeln!(out, "{name} {value}");
        }
        self.write_devices(out);
        if !self.gpus.is_empty() {
            self.write_gpus(out);
        }
    }

    fn write_requests(&self, out: &mut Vec<u8>) {
        head(out, "reactrt_requests_total", "counter", "Requests answered.");
        let models = self.models.iter().map(|model| (model.name.as_str(), &model.statuses));
        for (model, statuses) in models.chain([("", &self.other)]) {
            for (status, count) in STATUSES.iter().zip(statuses).filter(|(_, count)| **count > 0) {
                let _ = writeln!(out, "reactrt_requests_total{{model=\"{model}\",status=\"{status}\"}} {count}");
            }
        }
        type Read = fn(&PerModel) -> u64;
        let columns: [(&str, &str, Read); 3] = [
            ("reactrt_texts_total", "Texts or pairs computed.", |model| model.texts),
            ("reactrt_tokens_total", "Tokens computed, specials included.", |model| model.tokens),
            ("reactrt_truncated_texts_total", "Texts cut to the model's length.", |model| model.truncated),
        ];
        for (name, help, read) in columns {
            head(out, name, "counter", help);
            for model in &self.models {
                let _ = writeln!(out, "{name}{{model=\"{}\"}} {}", model.name, read(model));
            }
        }
        head(out, "reactrt_request_duration_seconds", "histogram", "From complete body to answer.");
        for model in &self.models {
            model.total.write(out, "reactrt_request_duration_seconds", format_args!("model=\"{}\"", model.name));
        }
    }

    fn write_devices(&self, out: &mut Vec<u8>) {
        type Read = fn(&DeviceCounters) -> u64;
        let columns: [(&str, &str, Read); 6] = [
            ("reactrt_batches_total", "Plans executed.", |device| device.batches.load(Ordering::Relaxed)),
            ("reactrt_batch_sequences_total", "Sequences executed.", |device| device.sequences.load(Ordering::Relaxed)),
            ("reactrt_batch_tokens_total", "Useful tokens executed.", |device| device.tokens.load(Ordering::Relaxed)),
            ("reactrt_bucket_tokens_total", "Tokens executed, padding included.", |device| {
                device.bucket_tokens.load(Ordering::Relaxed)
            }),
            ("reactrt_dropped_sequences_total", "Sequences of cancelled requests, not executed.", |device| {
                device.dropped.load(Ordering::Relaxed)
            }),
            ("reactrt_device_panics_total", "Panics caught in device threads.", |device| {
                device.panics.load(Ordering::Relaxed)
            }),
        ];
        for (name, help, read) in columns {
            head(out, name, "counter", help);
            for (device, counters) in &self.devices {
                let _ = writeln!(out, "{name}{{device=\"{device}\"}} {}", read(counters));
            }
        }
        head(out, "reactrt_device_busy_seconds_total", "counter", "Time in which lanes executed, summed over lanes.");
        for (device, counters) in &self.devices {
            let busy = counters.busy_ns.load(Ordering::Relaxed) as f64 / 1e9;
            let _ = writeln!(out, "reactrt_device_busy_seconds_total{{device=\"{device}\"}} {busy}");
        }
        head(out, "reactrt_device_faults_total", "counter", "Plans that failed, by kind.");
        for (device, counters) in &self.devices {
            for ((_, kind), count) in FAULTS.iter().zip(&counters.faults) {
                let count = count.load(Ordering::Relaxed);
                let _ = writeln!(out, "reactrt_device_faults_total{{device=\"{device}\",kind=\"{kind}\"}} {count}");
            }
        }
    }
}

impl Metrics {
    fn write_gpus(&self, out: &mut Vec<u8>) {
        type Read = fn(&GpuCounters) -> &AtomicU64;
        let seconds: [(&str, &str, Read); 3] = [
            ("reactrt_gpu_upload_seconds_total", "Time of copies to the GPU, by its events.", |gpu| &gpu.upload_ns),
            ("reactrt_gpu_compute_seconds_total", "Time of runs on the GPU, by its events.", |gpu| &gpu.compute_ns),
            ("reactrt_gpu_download_seconds_total", "Time of copies from the GPU, by its events.", |gpu| {
                &gpu.download_ns
            }),
        ];
        for (name, help, read) in seconds {
            head(out, name, "counter", help);
            for (device, gpu) in &self.gpus {
                let seconds = read(gpu).load(Ordering::Relaxed) as f64 / 1e9;
                let _ = writeln!(out, "{name}{{device=\"{device}\"}} {seconds}");
            }
        }
        let counts: [(&str, &str, &str, Read); 5] = [
            ("reactrt_gpu_capture_failures_total", "counter", "Buckets on a lane that run without a graph.", |gpu| {
                &gpu.capture_failures
            }),
            ("reactrt_gpu_lane_rebuilds_total", "counter", "Lanes made anew after a fault.", |gpu| &gpu.lane_rebuilds),
            ("reactrt_gpu_memory_used_bytes", "gauge", "GPU memory in use by everybody.", |gpu| &gpu.memory_used_bytes),
            ("reactrt_gpu_memory_total_bytes", "gauge", "GPU memory.", |gpu| &gpu.memory_total_bytes),
            ("reactrt_gpu_utilization_percent", "gauge", "Share of the last moment in which something ran.", |gpu| {
                &gpu.utilization_percent
            }),
        ];
        for (name, kind, help, read) in counts {
            head(out, name, kind, help);
            // What nobody could measure is not shown.
            let is_watched = |gpu: &GpuCounters| gpu.memory_total_bytes.load(Ordering::Relaxed) > 0;
            for (device, gpu) in self.gpus.iter().filter(|(_, gpu)| kind == "counter" || is_watched(gpu)) {
                let _ = writeln!(out, "{name}{{device=\"{device}\"}} {}", read(gpu).load(Ordering::Relaxed));
            }
        }
        type ReadSlot = fn(&SlotCounters) -> &AtomicU64;
        let graphs: [(&str, &str, ReadSlot); 2] = [
            ("reactrt_gpu_graph_hits_total", "Plans that replayed a captured graph.", |slot| &slot.graph_hits),
            ("reactrt_gpu_graph_misses_total", "Plans that ran without a graph.", |slot| &slot.graph_misses),
        ];
        for (name, help, read) in graphs {
            head(out, name, "counter", help);
            for (device, gpu) in &self.gpus {
                gpu.each_slot(&mut |slot| {
                    let (model, Bucket { rows, length, sequences_max }) = (Escaped(&slot.model), slot.bucket);
                    let count = read(slot).load(Ordering::Relaxed);
                    let bucket = format_args!("{rows}x{length}:{sequences_max}");
                    let labels = format_args!("device=\"{device}\",model=\"{model}\",bucket=\"{bucket}\"");
                    let _ = writeln!(out, "{name}{{{labels}}} {count}");
                });
            }
        }
    }
}

/// A label's value, with what would end it escaped.
struct Escaped<'a>(&'a str);

impl std::fmt::Display for Escaped<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        use std::fmt::Write;
        self.0.chars().try_for_each(|letter| match letter {
            '\\' => formatter.write_str("\\\\"),
            '"' => formatter.write_str("\\\""),
            '\n' => formatter.write_str("\\n"),
            letter => formatter.write_char(letter),
        })
    }
}

fn head(out: &mut Vec<u8>, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(metrics: &Metrics) -> String {
        let mut out = Vec::new();
        metrics.write(Gauges { connections: 3, ..Gauges::default() }, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn buckets_are_cumulative_and_end_in_the_count() {
        let mut metrics = Metrics::new(["m".to_string()].into_iter(), Vec::new(), Vec::new(), Vec::new());
        for duration_us in [5, 20, 20, 700, 20_000_000] {
            metrics.record(Stage::Parse, duration_us * 1000);
        }
        let text = text(&metrics);
        let line = |bound: &str| format!("reactrt_stage_duration_seconds_bucket{{stage=\"parse\",le=\"{bound}\"}}");
        for (bound, count) in [("0.00001", 1), ("0.000025", 3), ("0.0005", 3), ("0.001", 4), ("10", 4), ("+Inf", 5)] {
            assert!(text.contains(&format!("{} {count}\n", line(bound))), "{bound}: {text}");
        }
        assert!(text.contains("reactrt_stage_duration_seconds_count{stage=\"parse\"} 5\n"));
    }

    #[test]
    fn a_gpu_shows_its_graphs_by_bucket_and_its_memory_once_it_is_known() {
        let gpu = Arc::new(GpuCounters::default());
        let slot = gpu.slot("m\"x", Bucket { rows: 8, length: 128, sequences_max: 64 });
        slot.count(true);
        slot.count(true);
        slot.count(false);
        gpu.count_times(1_500, 2_000_000_000, 500);
        let gpus = vec![("cuda:0".to_string(), Arc::clone(&gpu))];
        let metrics = Metrics::new(std::iter::empty(), Vec::new(), gpus, Vec::new());
        let before = text(&metrics);
        let labels = r#"{device="cuda:0",model="m\"x",bucket="8x128:64"}"#;
        assert!(before.contains(&format!("reactrt_gpu_graph_hits_total{labels} 2\n")), "{before}");
        assert!(before.contains(&format!("reactrt_gpu_graph_misses_total{labels} 1\n")), "{before}");
        assert!(before.contains("reactrt_gpu_compute_seconds_total{device=\"cuda:0\"} 2\n"), "{before}");
        assert!(!before.contains("reactrt_gpu_memory_used_bytes{"), "nobody has looked yet");
        gpu.memory_total_bytes.store(100, Ordering::Relaxed);
        gpu.memory_used_bytes.store(40, Ordering::Relaxed);
        assert!(text(&metrics).contains("reactrt_gpu_memory_used_bytes{device=\"cuda:0\"} 40\n"));
    }

    #[test]
    fn answers_are_counted_by_model_and_status() {
        let counters = Arc::new(DeviceCounters::default());
        counters.count_fault(Fault::Hung);
        let mut metrics = Metrics::new(
            ["a\"b".to_string()].into_iter(),
            vec![("sim".into(), counters)],
            Vec::new(),
            vec![Arc::default()],
        );
        metrics.count_answer(Some(0), 200);
        metrics.count_answer(Some(0), 418);
        metrics.count_answer(None, 404);
        let text = text(&metrics);
        assert!(text.contains("reactrt_requests_total{model=\"a\\\"b\",status=\"200\"} 1\n"));
        assert!(text.contains("reactrt_requests_total{model=\"a\\\"b\",status=\"499\"} 1\n"));
        assert!(text.contains("reactrt_requests_total{model=\"\",status=\"404\"} 1\n"));
        assert!(text.contains("reactrt_device_faults_total{device=\"sim\",kind=\"hung\"} 1\n"));
        assert!(text.contains("reactrt_connections 3\n"));
    }
}
