//! A record as a table in a terminal.
//!
//! Owns the columns and their widths; no colours, no cursor. Invariant: each run of the record is a row, in the record's order.

use std::io::{self, Write};

use crate::record::{Load, Record, Run};
use crate::runs;
use crate::words::{self, NOTHING};

/// The runs as rows; below them errors, stages, digests and what is to be said before the figures are believed.
pub fn write(record: &Record, out: &mut dyn Write) -> io::Result<()> {
    if record.runs.is_empty() {
        return writeln!(out, "The record holds no run.");
    }
    let columns = Columns::of(&record.runs);
    let mut rows = vec![columns.head().into_iter().map(str::to_owned).collect()];
    rows.extend(record.runs.iter().map(|run| columns.row(run)));
    grid(&rows, 2, out)?;
    if record.runs.iter().any(|run| matches!(run.load, Load::Closed { .. })) {
        writeln!(out, "saturation: a closed loop; its times are those of a server kept full, no client's latency")?;
    }
    if columns.uncorrected {
        writeln!(out, "uncorrected: from when a request left, not from when it was due")?;
    }
    write_errors(record, out)?;
    write_stages(record, out)?;
    write_digests(record, out)?;
    for run in &record.runs {
        for doubt in runs::doubts(run) {
            writeln!(out, "note: {}: {doubt}", name(run))?;
        }
    }
    Ok(())
}

/// Columns that only some records fill.
pub(crate) struct Columns {
    per_request: bool,
    reached: bool,
    uncorrected: bool,
    batch: bool,
    tokens: bool,
}

impl Columns {
    pub(crate) fn of<'a>(runs: impl IntoIterator<Item = &'a Run>) -> Columns {
        let mut columns =
            Columns { per_request: false, reached: false, uncorrected: false, batch: false, tokens: false };
        let mut texts = None;
        for run in runs {
            columns.per_request |= *texts.get_or_insert(&run.workload.per_request) != &run.workload.per_request;
            columns.reached |= matches!(run.load, Load::Open { .. });
            columns.uncorrected |= run.latency.as_ref().is_some_and(runs::correction_matters);
            columns.batch |= run.server.is_some();
            columns.tokens |= run.counts.tokens > 0;
        }
        columns
    }

    pub(crate) fn head(&self) -> Vec<&'static str> {
        let mut head = vec!["run", "load"];
        head.extend(self.per_request.then_some("texts per request"));
        head.extend(self.reached.then_some("reached"));
        head.extend(["requests/s", "texts/s"]);
        head.extend(self.tokens.then_some("tokens/s"));
        head.extend(["p50", "p90", "p99", "p99.9", "max"]);
        if self.uncorrected {
            head.extend(["uncorrected p50", "uncorrected p99"]);
        }
        head.extend(["late", "errors"]);
        if self.batch {
            head.extend(["batch", "fill"]);
        }
        head
    }

    /// One cell for each of the head's columns.
    pub(crate) fn row(&self, run: &Run) -> Vec<String> {
        let mut row = vec![words::plain(&run.label), load(run)];
        if self.per_request {
            row.push(words::plain(&run.workload.per_request));
        }
        if self.reached {
            row.push(match run.load {
                Load::Open { .. } => format!("{}/s", words::number(runs::reached(run))),
                Load::Closed { .. } => NOTHING.to_owned(),
            });
        }
        row.extend([words::number(run.rates.requests), words::number(run.rates.texts)]);
        if self.tokens {
            row.push(words::number(run.rates.tokens));
        }
        let latency = run.latency.as_ref();
        let corrected = latency.map(|latency| &latency.corrected);
        row.extend(match corrected {
            Some(of) => [of.p50, of.p90, of.p99, of.p999, of.max].map(words::time),
            None => [NOTHING; 5].map(str::to_owned),
        });
        if self.uncorrected {
            row.extend(match latency.map(|latency| &latency.uncorrected) {
                Some(of) => [of.p50, of.p99].map(words::time),
                None => [NOTHING; 2].map(str::to_owned),
            });
        }
        row.extend([words::count(run.counts.late), words::count(run.counts.bad())]);
        if self.batch {
            let server = run.server.clone().unwrap_or_default();
            row.push(server.mean_batch.map_or(NOTHING.to_owned(), words::number));
            row.push(server.batch_fill.map_or(NOTHING.to_owned(), words::share));
        }
        row
    }
}

fn load(run: &Run) -> String {
    match run.load {
        Load::Open { .. } => format!("open, {}", words::load_level(&run.load)),
        Load::Closed { .. } => format!("saturation, {}", words::load_level(&run.load)),
    }
}

fn name(run: &Run) -> String {
    format!("{} ({})", words::plain(&run.label), load(run))
}

fn write_errors(record: &Record, out: &mut dyn Write) -> io::Result<()> {
    let mut rows = Vec::new();
    for run in &record.runs {
        for (kind, count) in &run.counts.errors {
            rows.push(vec![name(run), words::plain(kind), words::count(*count)]);
        }
    }
    if rows.is_empty() {
        return Ok(());
    }
    rows.insert(0, ["errors", "kind", "count"].map(str::to_owned).to_vec());
    writeln!(out)?;
    grid(&rows, 2, out)
}

fn write_stages(record: &Record, out: &mut dyn Write) -> io::Result<()> {
    let mut rows = Vec::new();
    for run in &record.runs {
        for (index, stage) in run.stages.iter().enumerate() {
            // A run's name stands once, beside its first stage.
            let name = if index == 0 { name(run) } else { String::new() };
            let mut row = vec![name, words::plain(&stage.name)];
            row.extend([stage.mean, stage.p50, stage.p99].map(words::time));
            rows.push(row);
        }
    }
    if rows.is_empty() {
        return Ok(());
    }
    rows.insert(0, ["stages", "stage", "mean", "p50", "p99"].map(str::to_owned).to_vec());
    writeln!(out)?;
    grid(&rows, 2, out)
}

fn write_digests(record: &Record, out: &mut dyn Write) -> io::Result<()> {
    let mut rows = vec![];
    for run in &record.runs {
        if let Some(digest) = &run.digest {
            rows.push(vec![name(run), words::plain(digest)]);
        }
    }
    if rows.is_empty() {
        return Ok(());
    }
    rows.insert(0, ["digests", ""].map(str::to_owned).to_vec());
    writeln!(out)?;
    grid(&rows, 2, out)
}

/// Columns two spaces apart, the first `texts` of them aligned on the left, the others on the right; the first row is the head.
pub(crate) fn grid(rows: &[Vec<String>], texts: usize, out: &mut dyn Write) -> io::Result<()> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    for (index, row) in rows.iter().enumerate() {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let padding = " ".repeat(width - cell.chars().count());
            let (before, after) = if column < texts { ("", padding.as_str()) } else { (padding.as_str(), "") };
            line.push_str(if column == 0 { "" } else { "  " });
            line.extend([before, cell, after]);
        }
        writeln!(out, "{}", line.trim_end())?;
        if index == 0 {
            writeln!(out, "{}", widths.iter().map(|width| "─".repeat(*width)).collect::<Vec<_>>().join("  "))?;
        }
    }
    Ok(())
}
