//! Runs put in order: which are rounds of one measurement, which are levels of one sweep, which may be compared.
//!
//! Owns the grouping that tables, plots and `compare` share; computes no figure of its own. Invariant: two runs are rounds of
//! one point exactly when their file, label, target, load and workload are the same.

use crate::record::{Latency, Record, Run, Summary};
use crate::words;

/// All runs of one target under one label, in the order of the record.
#[derive(Debug)]
pub struct Group<'a> {
    /// Index of the record among those given.
    pub file: usize,
    pub label: &'a str,
    /// Distinct loads and workloads, in the order in which they first ran.
    pub points: Vec<Point<'a>>,
}

/// One load and workload, measured once or in several rounds.
#[derive(Debug)]
pub struct Point<'a> {
    /// Never empty.
    pub rounds: Vec<&'a Run>,
}

impl<'a> Point<'a> {
    pub fn first(&self) -> &'a Run {
        self.rounds[0]
    }

    /// The round whose corrected p99 is the median (the lower of two), so that what is drawn was really measured.
    pub fn typical(&self) -> &'a Run {
        let mut rounds: Vec<&Run> = self.rounds.iter().copied().filter(|run| run.latency.is_some()).collect();
        rounds.sort_by(|a, b| p99(a).total_cmp(&p99(b)));
        rounds.get(rounds.len().saturating_sub(1) / 2).copied().unwrap_or(self.rounds[0])
    }
}

fn p99(run: &Run) -> f64 {
    run.latency.as_ref().map_or(f64::INFINITY, |latency| latency.corrected.p99)
}

/// In the order in which the groups first ran, file by file.
pub fn groups<'a>(records: impl IntoIterator<Item = &'a Record>) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    for (file, record) in records.into_iter().enumerate() {
        for run in &record.runs {
            let found = groups.iter_mut().find(|group| {
                group.file == file && group.label == run.label && same_target(group.points[0].first(), run)
            });
            match found {
                Some(group) => match group.points.iter_mut().find(|point| differences(point.first(), run).is_empty()) {
                    Some(point) => point.rounds.push(run),
                    None => group.points.push(Point { rounds: vec![run] }),
                },
                None => {
                    groups.push(Group { file, label: &run.label, points: vec![Point { rounds: vec![run] }] });
                }
            }
        }
    }
    groups
}

fn same_target(a: &Run, b: &Run) -> bool {
    a.target.url == b.target.url && a.target.api == b.target.api && a.target.model == b.target.model
}

/// What was done differently, in words: empty exactly when the two may be compared.
pub fn differences(a: &Run, b: &Run) -> Vec<String> {
    let mut found = Vec::new();
    let mut differ = |what: &str, a: String, b: String| {
        if a != b {
            found.push(format!("{what} ({a}; {b})"));
        }
    };
    if a.load != b.load {
        differ("load", words::load(&a.load), words::load(&b.load));
    }
    let (first, second) = (&a.workload, &b.workload);
    differ("texts", words::plain(&first.texts), words::plain(&second.texts));
    differ("texts per request", words::plain(&first.per_request), words::plain(&second.per_request));
    differ("seed", first.seed.to_string(), second.seed.to_string());
    differ("abort rate", first.abort_rate.to_string(), second.abort_rate.to_string());
    differ("new connections", first.new_connections.to_string(), second.new_connections.to_string());
    differ("check", words::plain(&first.check), words::plain(&second.check));
    found
}

/// Whether the uncorrected figures tell something else: by more than 5 % at the median or in the tail.
pub fn correction_matters(latency: &Latency) -> bool {
    let figures = |of: &Summary| [of.p50, of.p99, of.p999, of.max];
    let pairs = figures(&latency.corrected).into_iter().zip(figures(&latency.uncorrected));
    pairs.into_iter().any(|(corrected, uncorrected)| (corrected - uncorrected).abs() > 0.05 * uncorrected.abs())
}

/// How many requests after one another one latency stands for: more than one in `sweep`'s serial runs, whose `per_request` says
/// how many texts were measured as one.
pub fn requests_in_one(run: &Run) -> f64 {
    let each = run.counts.texts as f64 / run.counts.correct as f64;
    match run.workload.per_request.parse::<f64>() {
        Ok(texts) if each > 0.0 => (texts / each).max(1.0),
        Ok(_) | Err(_) => 1.0,
    }
}

/// Requests written per second, what an open loop's rate is held against.
pub fn reached(run: &Run) -> f64 {
    if run.duration_s > 0.0 { run.counts.sent as f64 / run.duration_s } else { f64::NAN }
}

/// The words in which something is to be said of each run before its figures are believed.
pub fn doubts(run: &Run) -> Vec<String> {
    let mut found = Vec::new();
    let counts = &run.counts;
    if run.latency.is_none() || counts.correct == 0 {
        found.push("no answer was correct, so there is no latency".to_owned());
    }
    let bad = counts.bad();
    if bad > 0 {
        found.push(format!(
            "{} of {} failed or had a wrong answer; they are not in the latencies",
            words::count(bad),
            words::plural(counts.sent, "request")
        ));
    }
    if counts.sent > 0 && counts.late as f64 > 0.01 * counts.sent as f64 {
        let late = words::share(counts.late as f64 / counts.sent as f64);
        found.push(format!("{late} of the requests left more than 100 µs late (the corrected figures count that)"));
    }
    if counts.unsent > 0 {
        found.push(format!("{} of the schedule never left", words::plural(counts.unsent, "request")));
    }
    if let Some(asked) = run.rates.asked
        && reached(run) < 0.95 * asked
    {
        let (reached, asked) = (words::number(reached(run)), words::exact(asked));
        found.push(format!("{reached}/s were reached of {asked}/s asked"));
    }
    found
}
