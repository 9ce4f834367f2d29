//! From what was asked for to a run of the record: prepare once (requests, probe), then run as often as wanted.
//!
//! Owns the order of things: what can fail fails before the first measured request, with one line that says why.

use std::io::IsTerminal;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use crate::check::Shape;
use crate::drive::{self, Check, Orders, Progress, Sends, Wait};
use crate::interrupt;
use crate::measure::Measured;
use crate::probe::{self, Counted, Probe};
use crate::record::{Counts, Load, Rates, Run, Sample, ServerSide, Target, Workload};
use crate::requests::{Content, Making, Requests};
use crate::schedule::{self, Until};
use crate::target::{Family, Place};
use crate::words;

/// From the decision to run to the clock's zero: threads are started meanwhile.
const START_DELAY: Duration = Duration::from_millis(20);

/// Open files that are no connections: standard streams, pollers, the look at the server's counters.
const DESCRIPTORS_BESIDE: u64 = 320;

/// Everything about one target but the load.
#[derive(Clone, Debug)]
pub struct Spec {
    pub label: String,
    pub place: Place,
    pub family: Family,
    pub content: Content,
    /// Further lines of each head, `name: value`.
    pub fields: Vec<String>,
    pub seed: u64,
    pub warmup: Duration,
    /// At least one of both is given; with both, whichever comes first ends the run.
    pub duration: Option<Duration>,
    pub requests: Option<u64>,
    /// So many requests after one another are measured as one; a closed loop's alone.
    pub group: u32,
    pub timeout: Duration,
    pub new_connections: bool,
    pub abort_rate: f64,
    pub check: Check,
    pub dimension: Option<u32>,
    /// What a body must have, where nothing else is known of it.
    pub expected_bytes: Option<u64>,
    pub digest: bool,
    pub samples: usize,
    pub threads: u32,
    pub cores: Vec<usize>,
    pub wait: Wait,
    /// A line on stderr each second.
    pub shows_progress: bool,
}

/// A target that has answered the probe.
#[derive(Debug)]
pub struct Ready<'a> {
    pub spec: &'a Spec,
    requests: Requests,
    probe: Probe,
}

impl Spec {
    fn shape(&self) -> Shape {
        match self.family.shape() {
            Shape::Anything { .. } => Shape::Anything { bytes: self.expected_bytes },
            shape => shape,
        }
    }

    /// Makes the requests and sends one.
    ///
    /// # Errors
    /// One line that says what is wrong with the target or with what is to be sent there.
    pub fn prepare(&self) -> Result<Ready<'_>, String> {
        self.family.check()?;
        let making = Making {
            place: &self.place,
            family: &self.family,
            fields: &self.fields,
            seed: self.seed,
            close: self.new_connections,
            samples: self.samples,
        };
        let requests = Requests::make(making, &self.content)?;
        let largest = requests.largest();
        let (bytes, texts) = (requests.bytes(largest), requests.texts(largest));
        let probe = probe::probe(&self.place, bytes, texts, self.shape(), self.dimension, self.check, self.timeout)?;
        Ok(Ready { spec: self, requests, probe })
    }
}

impl Ready<'_> {
    /// # Errors
    /// What the system refuses, a schedule that cannot be, or that a signal has come before.
    pub fn run(&self, load: &Load) -> Result<Run, String> {
        interrupt::check()?;
        let spec = self.spec;
        let warmup_ns = spec.warmup.as_nanos() as u64;
        let end_ns = spec.duration.map_or(u64::MAX, |duration| warmup_ns + duration.as_nanos() as u64);
        let moments = self.moments(load, warmup_ns, end_ns)?;
        let (sends, connections) = match load {
            Load::Open { connections, .. } => (Sends::Open { moments: &moments }, *connections),
            Load::Closed { concurrency } => {
                (Sends::Closed { count: spec.requests, group: spec.group.max(1) }, *concurrency)
            }
        };
        check_descriptors(connections)?;
        let orders = Orders {
            address: self.probe.address,
            requests: &self.requests,
            sends,
            connections,
            threads: spec.threads,
            cores: &spec.cores,
            warmup_ns,
            end_ns,
            timeout_ns: spec.timeout.as_nanos() as u64,
            new_connections: spec.new_connections,
            abort_rate: spec.abort_rate,
            abort_within_ns: self.probe.latency_ns,
            seed: spec.seed,
            wait: spec.wait,
            check: spec.check,
            shape: spec.shape(),
            dimension: self.probe.dimension,
            stages: &self.probe.stages,
            digest: spec.digest,
            // Lengths of numbers vary a little, request by request.
            answer_bytes: self.probe.answer_bytes + self.probe.answer_bytes / 2 + 4096,
        };
        let (measured, counted, began) = self.watch(&orders)?;
        let ended_ns = match measured.stopped_ns {
            Some(stopped_ns) => stopped_ns.max(warmup_ns),
            None if end_ns == u64::MAX => measured.last_ns.max(warmup_ns),
            None => end_ns,
        };
        Ok(self.describe(load, measured, counted, Duration::from_nanos(ended_ns - warmup_ns), began))
    }

    fn moments(&self, load: &Load, warmup_ns: u64, end_ns: u64) -> Result<Vec<u64>, String> {
        let Load::Open { rate, arrivals, .. } = *load else { return Ok(Vec::new()) };
        let until = match self.spec.requests {
            Some(count) => Until::Count { from_ns: warmup_ns, count },
            None => Until::Moment(end_ns),
        };
        let mut moments = schedule::draw(self.spec.seed, rate, arrivals, until)?;
        moments.truncate(moments.partition_point(|&moment| moment < end_ns));
        if moments.last().is_none_or(|&last| last < warmup_ns) {
            return Err(format!("at {rate} per second no request falls into the measured part; let it last longer"));
        }
        Ok(moments)
    }

    /// Runs while looking at the server's counters and at the clock.
    fn watch(&self, orders: &Orders<'_>) -> Result<(Measured, Option<Counted>, SystemTime), String> {
        let (spec, progress) = (self.spec, Progress::default());
        let start = Instant::now() + START_DELAY;
        let began = SystemTime::now() + START_DELAY + spec.warmup;
        let (ended, end) = mpsc::channel();
        std::thread::scope(|scope| {
            let progress = &progress;
            scope.spawn(move || {
                // The receiver lives as long as this scope.
                let _ = ended.send(drive::run(orders, start, progress));
            });
            let counters = || probe::counters(&spec.place, orders.address);
            let mut before = None;
            let (mut second, mut is_measuring) = (1, false);
            let measured = loop {
                let next = if is_measuring {
                    Duration::from_secs(second)
                } else {
                    spec.warmup.min(Duration::from_secs(second))
                };
                match end.recv_timeout((start + next).saturating_duration_since(Instant::now())) {
                    Ok(measured) => break measured?,
                    Err(RecvTimeoutError::Disconnected) => return Err("a thread ended by a panic".to_owned()),
                    Err(RecvTimeoutError::Timeout) => {}
                }
                if !is_measuring && start.elapsed() >= spec.warmup {
                    is_measuring = true;
                    before = counters();
                }
                if start.elapsed() >= Duration::from_secs(second) {
                    second += 1;
                    if spec.shows_progress {
                        show(&spec.label, start.elapsed(), progress);
                    }
                }
            };
            if spec.shows_progress && std::io::stderr().is_terminal() {
                eprint!("\r\x1b[K");
            }
            let counted = before.and_then(|before| Some(before.until(&counters()?, &spec.family.model)));
            Ok((measured, counted, began))
        })
    }

    fn describe(
        &self,
        load: &Load,
        measured: Measured,
        counted: Option<Counted>,
        duration: Duration,
        began: SystemTime,
    ) -> Run {
        let spec = self.spec;
        let mut counts = measured.counts_in_words();
        let seconds = duration.as_secs_f64();
        let per_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let mut rates = Rates {
            asked: match load {
                Load::Open { rate, .. } => Some(*rate),
                Load::Closed { .. } => None,
            },
            requests: per_second(measured.window.requests),
            texts: per_second(measured.window.texts),
            tokens: per_second(measured.window.tokens),
        };
        // Where answers do not tell, the server's own counter may.
        if let Some((tokens, elapsed_s)) = counted.and_then(|counted| Some((counted.tokens?, counted.elapsed_s)))
            && counts.tokens == 0
        {
            counts.tokens = tokens;
            rates.tokens = if elapsed_s > 0.0 { tokens as f64 / elapsed_s } else { 0.0 };
        }
        let server =
            counted.map(|counted| ServerSide { mean_batch: counted.mean_batch, batch_fill: counted.batch_fill });
        let samples = self.requests.spots().iter().zip(&measured.samples).filter(|(_, values)| !values.is_empty());
        Run {
            // Not a round of what ran to its end, and not to be compared with it unseen.
            label: match measured.stopped_ns {
                Some(_) => format!("{} (interrupted)", spec.label),
                None => spec.label.clone(),
            },
            target: Target {
                url: spec.place.url.clone(),
                api: spec.family.api.to_string(),
                model: spec.family.model.clone(),
            },
            load: load.clone(),
            workload: Workload {
                texts: self.requests.texts_in_words.clone(),
                per_request: match spec.group {
                    0 | 1 => self.requests.per_request_in_words.clone(),
                    group => group.to_string(),
                },
                seed: spec.seed,
                abort_rate: spec.abort_rate,
                new_connections: spec.new_connections,
                check: match spec.check {
                    Check::None => "none",
                    Check::Status => "status",
                    Check::Full => "full",
                }
                .to_owned(),
            },
            duration_s: seconds,
            warmup_s: spec.warmup.as_secs_f64(),
            latency: measured.latency(began, duration),
            stages: measured.stages_in_words(),
            server: server.filter(|server| *server != ServerSide::default()),
            digest: measured.digest_in_words(),
            samples: samples.map(|(spot, values)| Sample { text: spot.text.clone(), values: values.clone() }).collect(),
            counts,
            rates,
        }
    }
}

/// One line that overwrites itself on a terminal, else a line each time.
fn show(label: &str, elapsed: Duration, progress: &Progress) {
    let (correct, faulty) = (progress.correct.load(Ordering::Relaxed), progress.faulty.load(Ordering::Relaxed));
    let label = words::plain(label);
    let line = format!("{label}: {} s, {correct} right answers, {faulty} errors", elapsed.as_secs());
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{line}");
    } else {
        eprintln!("{line}");
    }
}

/// Says beforehand when the system would not let this process have so many sockets.
fn check_descriptors(connections: u32) -> Result<(), String> {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let limit: Option<u64> = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    let needed = u64::from(connections) + DESCRIPTORS_BESIDE;
    match limit {
        Some(limit) if limit < needed => Err(format!(
            "{connections} connections need {needed} open files and this shell allows {limit}; `ulimit -n {needed}` raises that"
        )),
        Some(_) | None => Ok(()),
    }
}

/// True exactly when everything that was sent was answered, and rightly.
pub fn is_clean(counts: &Counts) -> bool {
    counts.wrong == 0 && counts.failed == 0 && counts.correct > 0
}
