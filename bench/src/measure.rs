//! What is measured while a run goes on, and how it becomes numbers of the record.
//!
//! Owns histograms and counters, one set per thread, all memory taken beforehand; merged at the end. Times are nanoseconds
//! here and microseconds in the record. Invariant: `sent = answered + aborted + failed`, `answered = correct + wrong`.

use std::time::{Duration, SystemTime};

use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2Serializer;
use hdrhistogram::serialization::interval_log::IntervalLogWriterBuilder;

use crate::fault::{Fault, Tally};
use crate::record::{Counts, Latency, Stage, Summary};

/// Three digits, up to an hour.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("bounds are valid")
}

/// One stage of `Server-Timing`.
#[derive(Debug)]
pub struct StageTimes {
    pub name: String,
    times: Histogram<u64>,
}

#[derive(Debug)]
pub struct Measured {
    pub corrected: Histogram<u64>,
    pub uncorrected: Histogram<u64>,
    pub lateness: Histogram<u64>,
    pub stages: Vec<StageTimes>,
    /// All but `errors`, which is made of `faults` at the end.
    pub counts: Counts,
    pub faults: Tally,
    /// Correct answers that came within the measured part, whenever their requests were sent.
    pub window: Window,
    /// When the last answer to a measured request came.
    pub last_ns: u64,
    /// When a signal ended the run early; `None` if it went to its end.
    pub stopped_ns: Option<u64>,
    /// By request, of its first correct answer; 0 where there was none. Empty unless asked for.
    pub digests: Vec<u64>,
    /// Answers whose vectors were not those of the first answer to the same request.
    pub varied: u64,
    /// By spot; empty where it was not answered.
    pub samples: Vec<Vec<f32>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    pub requests: u64,
    pub texts: u64,
    pub tokens: u64,
}

impl Measured {
    /// `stages`: names as the server has them. `digests`, `samples`: how many are kept, of up to `values` numbers each.
    pub fn new(stages: &[String], digests: usize, samples: usize, values: usize) -> Measured {
        Measured {
            corrected: histogram(),
            uncorrected: histogram(),
            lateness: histogram(),
            stages: stages.iter().map(|name| StageTimes { name: name.clone(), times: histogram() }).collect(),
            counts: Counts::default(),
            faults: Tally::new(),
            window: Window::default(),
            last_ns: 0,
            stopped_ns: None,
            digests: vec![0; digests],
            varied: 0,
            samples: (0..samples).map(|_| Vec::with_capacity(values)).collect(),
        }
    }

    pub fn failed(&mut self, fault: Fault) {
        if fault.is_wrong_answer() {
            self.counts.answered += 1;
            self.counts.wrong += 1;
        } else {
            self.counts.failed += 1;
        }
        self.faults.add(fault);
    }

    /// From the value of `Server-Timing`: `parse;dur=0.012, queue;dur=1.5;desc=x`. What cannot be read is left out.
    pub fn stages(&mut self, timing: &[u8]) {
        for entry in timing.split(|&byte| byte == b',') {
            let mut parts = entry.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
            let name = parts.next().unwrap_or_default();
            let duration = parts.find_map(|part| part.strip_prefix(b"dur="));
            let duration = duration.and_then(|text| std::str::from_utf8(text).ok()?.parse::<f64>().ok());
            let stage = self.stages.iter_mut().find(|stage| stage.name.as_bytes() == name);
            if let (Some(duration_ms), Some(stage)) = (duration, stage)
                && duration_ms >= 0.0
            {
                stage.times.saturating_record((duration_ms * 1e6) as u64);
            }
        }
    }

    /// Sets the digest of a request's answer, or compares it with the first one's.
    pub fn digest(&mut self, request: u32, digest: u64) {
        let Some(kept) = self.digests.get_mut(request as usize) else { return };
        match *kept {
            0 => *kept = digest.max(1),
            first => self.varied += u64::from(first != digest.max(1)),
        }
    }

    /// Adds another thread's part.
    pub fn merge(&mut self, other: Measured) {
        let same = "histograms have the same bounds";
        self.corrected.add(&other.corrected).expect(same);
        self.uncorrected.add(&other.uncorrected).expect(same);
        self.lateness.add(&other.lateness).expect(same);
        for (stage, other) in self.stages.iter_mut().zip(&other.stages) {
            stage.times.add(&other.times).expect(same);
        }
        let (counts, others) = (&mut self.counts, &other.counts);
        counts.sent += others.sent;
        counts.answered += others.answered;
        counts.aborted += others.aborted;
        counts.failed += others.failed;
        counts.correct += others.correct;
        counts.wrong += others.wrong;
        counts.late += others.late;
        counts.unsent += others.unsent;
        counts.texts += others.texts;
        counts.tokens += others.tokens;
        counts.bytes_sent += others.bytes_sent;
        counts.bytes_received += others.bytes_received;
        self.faults.merge(&other.faults);
        self.window.requests += other.window.requests;
        self.window.texts += other.window.texts;
        self.window.tokens += other.window.tokens;
        self.last_ns = self.last_ns.max(other.last_ns);
        self.stopped_ns = self.stopped_ns.max(other.stopped_ns);
        self.varied += other.varied;
        for (request, digest) in other.digests.iter().enumerate().filter(|(_, digest)| **digest != 0) {
            self.digest(request as u32, *digest);
        }
        for (kept, other) in self.samples.iter_mut().zip(other.samples) {
            if kept.is_empty() {
                *kept = other;
            }
        }
    }

    pub fn counts_in_words(&self) -> Counts {
        Counts { errors: self.faults.in_words(), ..self.counts.clone() }
    }

    /// `None` where nothing was right.
    pub fn latency(&self, began: SystemTime, duration: Duration) -> Option<Latency> {
        (!self.corrected.is_empty()).then(|| Latency {
            corrected: summary(&self.corrected),
            uncorrected: summary(&self.uncorrected),
            lateness: summary(&self.lateness),
            interval_log: interval_log(&self.corrected, began, duration),
        })
    }

    pub fn stages_in_words(&self) -> Vec<Stage> {
        let measured = self.stages.iter().filter(|stage| !stage.times.is_empty());
        measured
            .map(|stage| Stage {
                name: stage.name.clone(),
                mean: stage.times.mean() / 1e3,
                p50: stage.times.value_at_quantile(0.5) as f64 / 1e3,
                p99: stage.times.value_at_quantile(0.99) as f64 / 1e3,
            })
            .collect()
    }

    /// Over all requests that were answered; `None` unless it was asked for.
    pub fn digest_in_words(&self) -> Option<String> {
        if self.digests.is_empty() {
            return None;
        }
        let answered = self.digests.iter().enumerate().filter(|(_, digest)| **digest != 0);
        let (sum, count) = answered.fold((0u64, 0), |(sum, count), (request, digest)| {
            (sum.wrapping_add(mix(mix(FIRST, request as u64), *digest)), count + 1)
        });
        let varied = if self.varied > 0 { format!(", {} answers varied", self.varied) } else { String::new() };
        Some(format!("{sum:016x} over {count} requests{varied}"))
    }
}

const FIRST: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(state: u64, word: u64) -> u64 {
    let state = (state ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (state ^ (state >> 32)).wrapping_mul(0xc4ce_b9fe_1a85_ec53)
}

/// Of one answer's values, bit by bit.
pub fn digest_of(values: &[f32]) -> u64 {
    values.iter().fold(mix(FIRST, values.len() as u64), |state, value| mix(state, u64::from(value.to_bits())))
}

/// Microseconds.
fn summary(histogram: &Histogram<u64>) -> Summary {
    let at = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1e3;
    Summary {
        count: histogram.len(),
        mean: histogram.mean() / 1e3,
        min: histogram.min() as f64 / 1e3,
        p50: at(0.5),
        p90: at(0.9),
        p99: at(0.99),
        p999: at(0.999),
        max: histogram.max() as f64 / 1e3,
        quantiles: quantiles(histogram.len()).map(|quantile| (quantile, at(quantile))).collect(),
    }
}

/// Sixteen per decade of what lies above, as far as `count` values can tell: 0, 0.134, …, 0.9, …, 0.99, …, 1.
fn quantiles(count: u64) -> impl Iterator<Item = f64> {
    let decade = (0..=16 * 6).map(|step| 1.0 - 10f64.powf(-f64::from(step) / 16.0));
    decade.take_while(move |quantile| (1.0 - quantile) * count as f64 >= 1.0).chain([1.0])
}

/// In nanoseconds: whoever reads it must not scale.
fn interval_log(histogram: &Histogram<u64>, began: SystemTime, duration: Duration) -> String {
    let (mut out, mut serializer) = (Vec::new(), V2Serializer::new());
    let written = (|| -> Result<(), String> {
        let mut log = IntervalLogWriterBuilder::new()
            .add_comment("latency from the planned moment of sending, in nanoseconds")
            .with_base_time(began)
            .with_max_value_divisor(1.0)
            .begin_log_with(&mut out, &mut serializer)
            .map_err(|error| error.to_string())?;
        log.write_histogram(histogram, Duration::ZERO, duration, None).map_err(|error| error.to_string())
    })();
    written.expect("a histogram is written to memory");
    String::from_utf8(out).expect("a log is ASCII")
}

#[cfg(test)]
mod tests {
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    use super::*;

    #[test]
    fn summaries_are_microseconds_and_quantiles_reach_the_tail() {
        let mut measured = Measured::new(&[], 0, 0, 0);
        for value in 1..=100_000u64 {
            measured.corrected.record(value * 1000).unwrap();
        }
        let latency = measured.latency(SystemTime::UNIX_EPOCH, Duration::from_secs(1)).unwrap();
        let summary = latency.corrected;
        let near = |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 0.002, "{found} {expected}");
        near(summary.p50, 50_000.0);
        near(summary.p99, 99_000.0);
        near(summary.p999, 99_900.0);
        near(summary.mean, 50_000.0);
        near(summary.max, 100_000.0);
        assert!((60..=100).contains(&summary.quantiles.len()), "{}", summary.quantiles.len());
        assert!(summary.quantiles.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1));
        assert_eq!(summary.quantiles.last(), Some(&(1.0, summary.max)));
        assert!(summary.quantiles.iter().any(|(quantile, _)| (quantile - 0.9999).abs() < 1e-9));
    }

    #[test]
    fn the_interval_log_can_be_read_back() {
        let mut measured = Measured::new(&[], 0, 0, 0);
        for value in [1_000, 2_000_000, 3_000_000_000] {
            measured.corrected.record(value).unwrap();
        }
        let log = measured.latency(SystemTime::UNIX_EPOCH, Duration::from_secs(3)).unwrap().interval_log;
        let entries: Vec<LogEntry<'_>> = IntervalLogIterator::new(log.as_bytes()).map(|entry| entry.unwrap()).collect();
        let interval = entries.iter().find_map(|entry| match entry {
            LogEntry::Interval(interval) => Some(interval),
            _ => None,
        });
        let encoded = base64::Engine::decode(
            &base64::engine::general_purpose::STANDARD,
            interval.expect("one interval").encoded_histogram(),
        );
        let mut reader = std::io::Cursor::new(encoded.unwrap());
        let read: Histogram<u64> = hdrhistogram::serialization::Deserializer::new().deserialize(&mut reader).unwrap();
        assert_eq!(read, measured.corrected);
    }

    #[test]
    fn stages_come_from_the_header() {
        let mut measured = Measured::new(&["parse".into(), "device".into()], 0, 0, 0);
        measured.stages(b"parse;dur=0.012, device;desc=\"x\";dur=4.5,other;dur=1");
        measured.stages(b"parse;dur=0.012,device;dur=x,,;;");
        let stages = measured.stages_in_words();
        assert_eq!(stages.len(), 2);
        assert!((stages[0].mean - 12.0).abs() < 0.1 && (stages[1].p99 - 4500.0).abs() < 5.0, "{stages:?}");
    }

    #[test]
    fn the_digest_does_not_depend_on_order_or_threads() {
        let answers: Vec<(u32, Vec<f32>)> = (0..50).map(|index| (index, vec![index as f32, 0.5])).collect();
        let of = |order: &[usize]| {
            let (mut one, mut other) = (Measured::new(&[], 64, 0, 0), Measured::new(&[], 64, 0, 0));
            for (turn, &index) in order.iter().enumerate() {
                let (request, values) = &answers[index];
                if turn % 3 == 0 { &mut one } else { &mut other }.digest(*request, digest_of(values));
            }
            one.merge(other);
            one.digest_in_words().unwrap()
        };
        let forward: Vec<usize> = (0..50).collect();
        let twice_and_backward: Vec<usize> = (0..50).rev().chain(0..50).collect();
        assert_eq!(of(&forward), of(&twice_and_backward));
        assert!(of(&forward).ends_with(" over 50 requests"));
        assert_ne!(of(&forward), of(&forward[1..]));
        let mut varied = Measured::new(&[], 4, 0, 0);
        varied.digest(1, digest_of(&[0.0]));
        varied.digest(1, digest_of(&[-0.0]));
        assert!(varied.digest_in_words().unwrap().ends_with("over 1 requests, 1 answers varied"));
    }
}
