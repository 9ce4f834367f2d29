//! `reactrt-bench`: see the library. Here are the commands, what they print and their exit codes.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use clap::{Parser, Subcommand};
use reactrt_bench::flags::{LoadFlags, Pattern};
use reactrt_bench::record::{FORMAT, Load, Record, Run};
use reactrt_bench::run::{Ready, Spec, is_clean};
use reactrt_bench::search::search;
use reactrt_bench::sweep::{SweepFlags, sweep};
use reactrt_bench::{machine, scenario};

/// Loads servers of embedding, reranker and NLI models, and measures them honestly.
///
/// Exit codes: 0 all answers were right, 2 anything else.
#[derive(Parser)]
#[command(name = "reactrt-bench", version)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Sends requests when a schedule says (open loop), or as fast as they are answered (saturation)
    #[command(after_help = "Example: reactrt-bench load --url http://127.0.0.1:8887 --model all-MiniLM-L6-v2 \
        --rate 200 --duration 30s --json out.json")]
    Load(Box<LoadFlags>),
    /// 1 to 64 texts one after another against the same in one request, by task
    #[command(after_help = "Example: reactrt-bench sweep --url http://127.0.0.1:8887 \
        --model embedding=all-MiniLM-L6-v2 --json sweep.json")]
    Sweep(SweepFlags),
}

fn main() -> ExitCode {
    let outcome = match CommandLine::parse().command {
        Command::Load(_) => run_load(),
        Command::Sweep(flags) => run_sweep(&flags),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {}", message.replace('\n', "\n       "));
            ExitCode::from(2)
        }
    }
}

fn run_load() -> Result<(), String> {
    // Read again together with the scenario's file, which stands below what is given here.
    let words: Vec<OsString> = std::env::args_os().skip(2).collect();
    let targets = scenario::targets(&words)?;
    let general = &targets[0];
    let shows_progress = general.progress || std::io::stderr().is_terminal();
    let mut loads = Vec::new();
    for target in &targets {
        loads.push((target.spec(shows_progress)?, target.pattern()?));
    }
    let labels: std::collections::BTreeSet<&str> = loads.iter().map(|(spec, _)| spec.label.as_str()).collect();
    if labels.len() < loads.len() {
        return Err("two targets have one label; give each its own `label`".to_owned());
    }
    let mut record = begin();
    let outcome = run_all(&loads, general, &mut record.runs)?;
    write_json(&record, general.json.as_deref())?;
    if let Some(file) = &general.hdr {
        write_logs(&record, file)?;
    }
    outcome?;
    judge(&record.runs, general.allow_errors, loads.iter().any(|(_, pattern)| is_search(pattern)))
}

fn is_search(pattern: &Pattern) -> bool {
    match pattern {
        Pattern::Search { .. } => true,
        Pattern::Levels(_) => false,
    }
}

/// Runs every target, level and round. What the inner result says comes after the record has been written.
fn run_all(loads: &[(Spec, Pattern)], general: &LoadFlags, runs: &mut Vec<Run>) -> Result<Result<(), String>, String> {
    let ready = loads.iter().map(|(spec, _)| spec.prepare()).collect::<Result<Vec<Ready<'_>>, String>>()?;
    let levels = |pattern: &Pattern| match pattern {
        Pattern::Levels(levels) => levels.len(),
        Pattern::Search { .. } => 1,
    };
    let mut order = Vec::new();
    for (target, (_, pattern)) in loads.iter().enumerate() {
        for level in 0..levels(pattern) {
            order.extend((0..general.rounds).map(|round| (target, level, round)));
        }
    }
    if general.interleave {
        order.sort_by_key(|&(target, level, round)| (level, round, target));
    }
    let mut unbearable = Vec::new();
    for (target, level, _) in order {
        match &loads[target].1 {
            Pattern::Levels(levels) => {
                let run = ready[target].run(&levels[level])?;
                summarise(&run);
                runs.push(run);
            }
            &Pattern::Search { bound, first_rate, arrivals, connections } => {
                let found = search(&ready[target], bound, first_rate, arrivals, connections, &mut summarise)?;
                let label = &ready[target].spec.label;
                match found.rate {
                    Some(rate) => say(&format!("{label}: p99 stays below {bound:?} up to {rate:.1} requests/s")),
                    None => unbearable.push(format!("{label}: at no rate did p99 stay below {bound:?}")),
                }
                runs.extend(found.runs);
            }
        }
    }
    Ok(if unbearable.is_empty() { Ok(()) } else { Err(unbearable.join("\n")) })
}

fn run_sweep(flags: &SweepFlags) -> Result<(), String> {
    let mut record = begin();
    record.runs = sweep(flags, &mut summarise)?;
    write_json(&record, flags.json.as_deref())?;
    judge(&record.runs, flags.allow_errors, false)
}

fn begin() -> Record {
    let words: Vec<String> = std::env::args().skip(1).collect();
    Record {
        format: FORMAT,
        command: format!("reactrt-bench {}", words.join(" ")),
        began: machine::moment(SystemTime::now()),
        machine: machine::look(),
        runs: Vec::new(),
    }
}

/// Whether the runs are to be believed. A search goes beyond what its target bears; its runs need one right answer each.
fn judge(runs: &[Run], allow_errors: bool, is_search: bool) -> Result<(), String> {
    for run in runs {
        let counts = &run.counts;
        let kinds: Vec<String> = counts.errors.iter().map(|(kind, count)| format!("{kind}: {count}")).collect();
        if counts.correct == 0 {
            return Err(format!("{}: not one right answer ({})", run.label, kinds.join(", ")));
        }
        if !is_clean(counts) && !allow_errors && !is_search {
            return Err(format!(
                "{}: {} of {} requests were answered wrongly or not at all ({}); --allow-errors takes that",
                run.label,
                counts.wrong + counts.failed,
                counts.sent,
                kinds.join(", ")
            ));
        }
    }
    Ok(())
}

fn write_json(record: &Record, file: Option<&Path>) -> Result<(), String> {
    let Some(file) = file else { return Ok(()) };
    let text = serde_json::to_string_pretty(record).map_err(|error| format!("the record: {error}"))?;
    std::fs::write(file, text + "\n").map_err(|error| format!("{}: {error}", file.display()))
}

fn write_logs(record: &Record, file: &Path) -> Result<(), String> {
    let logs: Vec<&str> = record
        .runs
        .iter()
        .filter_map(|run| run.latency.as_ref())
        .map(|latency| latency.interval_log.as_str())
        .collect();
    for (index, log) in logs.iter().enumerate() {
        let path = if logs.len() == 1 { file.to_owned() } else { numbered(file, index + 1) };
        std::fs::write(&path, log).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

/// `out.hlog` becomes `out-3.hlog`.
fn numbered(file: &Path, number: usize) -> PathBuf {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let extension = file.extension().map(|extension| format!(".{}", extension.to_string_lossy())).unwrap_or_default();
    file.with_file_name(format!("{stem}-{number}{extension}"))
}

/// Two lines for people; the record has the rest.
fn summarise(run: &Run) {
    let load = match &run.load {
        Load::Open { rate, .. } => format!("open loop, {rate} requests/s asked"),
        Load::Closed { concurrency } => format!("saturation, {concurrency} connections"),
    };
    let rates = format!("{:.1} requests/s, {:.1} texts/s", run.rates.requests, run.rates.texts);
    let latency = match &run.latency {
        Some(latency) => {
            let (corrected, raw) = (&latency.corrected, &latency.uncorrected);
            let beside = match run.load {
                Load::Open { .. } => format!(" (p99 from sending {})", time(raw.p99)),
                Load::Closed { .. } => String::new(),
            };
            let [p50, p90, p99, p999, max] =
                [corrected.p50, corrected.p90, corrected.p99, corrected.p999, corrected.max].map(time);
            format!("p50 {p50}, p90 {p90}, p99 {p99}, p99.9 {p999}, max {max}{beside}")
        }
        None => "no latency".to_owned(),
    };
    say(&format!("{}: {load}: {rates}; {latency}", run.label));
    let counts = &run.counts;
    let mut line = format!("  {} sent, {} right", counts.sent, counts.correct);
    let others = [
        (counts.wrong, "wrong"),
        (counts.failed, "failed"),
        (counts.aborted, "aborted"),
        (counts.late, "late by more than 100 µs"),
        (counts.unsent, "never sent, so that the latency is too low"),
    ];
    for (count, word) in others.iter().filter(|(count, _)| *count > 0) {
        line += &format!(", {count} {word}");
    }
    for (kind, count) in &counts.errors {
        line += &format!("; {kind}: {count}");
    }
    say(&line);
}

/// A line on stdout. That nobody reads it any more is no reason to end a run.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn time(us: f64) -> String {
    match us {
        _ if us < 1e3 => format!("{us:.0} µs"),
        _ if us < 1e6 => format!("{:.2} ms", us / 1e3),
        _ => format!("{:.2} s", us / 1e6),
    }
}
