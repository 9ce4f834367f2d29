//! `reactrt-bench`: see the library. Here are the commands, what they print and their exit codes.
//!
//! What a command found goes to stdout, what happens meanwhile and what went wrong to stderr. Files are named before a run
//! and written after it, also when the run is not to be believed.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;

use clap::{Args, Parser, Subcommand};
use reactrt_bench::compare::{self, Outcome};
use reactrt_bench::flags::{LoadFlags, Pattern};
use reactrt_bench::outputs::{Input, Outputs};
use reactrt_bench::record::{FORMAT, Record, Run};
use reactrt_bench::run::{Ready, Spec, is_clean};
use reactrt_bench::search::{RUNS_MAX, search};
use reactrt_bench::sweep::{SweepFlags, sweep};
use reactrt_bench::{interrupt, machine, report, runs, scenario, table, words};

/// Loads servers of embedding, reranker and NLI models, and measures them honestly.
///
/// Exit codes: 0 all answers were right, or all that was compared is alike; 2 anything else.
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
        --rate 60 --duration 30s --json out.json --html out.html")]
    Load(Box<LoadFlags>),
    /// 1 to 64 texts one after another against the same in one request, by task
    #[command(after_help = "Example: reactrt-bench sweep --url http://127.0.0.1:8887 \
        --model embedding=all-MiniLM-L6-v2 --json sweep.json --html sweep.html")]
    Sweep(SweepFlags),
    /// Ratios of several runs to the first with their spread, and whether their vectors are the same
    #[command(after_help = "Example: reactrt-bench compare before.json after.json\n\n\
        Of one record its labels are compared with its first. Exit code 2: something was measured otherwise on the \
        two sides, or the vectors differ.")]
    Compare(CompareFlags),
    /// Shows records again: the tables, and the page with --html
    #[command(after_help = "Example: reactrt-bench report before.json after.json --html both.html")]
    Report(ReportFlags),
}

#[derive(Args)]
struct CompareFlags {
    /// Records that `load` or `sweep` wrote; the first is what the others are held against
    #[arg(required = true, value_name = "RECORD.json")]
    records: Vec<PathBuf>,
}

#[derive(Args)]
struct ReportFlags {
    /// Records that `load` or `sweep` wrote
    #[arg(required = true, value_name = "RECORD.json")]
    records: Vec<PathBuf>,
    /// Writes a page for all of them there, which needs nothing but itself
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

fn main() -> ExitCode {
    let outcome = match CommandLine::parse().command {
        Command::Load(_) => run_load(),
        Command::Sweep(flags) => run_sweep(&flags),
        Command::Compare(flags) => run_compare(&flags),
        Command::Report(flags) => run_report(&flags),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            // Names of files, labels and what a server says are in it.
            let lines: Vec<String> = message.lines().map(words::plain).collect();
            let _ = writeln!(io::stderr(), "error: {}", lines.join("\n       "));
            ExitCode::from(2)
        }
    }
}

fn run_load() -> Result<(), String> {
    // Read again together with the scenario's file, which stands below what is given here.
    let words: Vec<OsString> = std::env::args_os().skip(2).collect();
    let targets = scenario::targets(&words)?;
    let general = &targets[0];
    if general.interleave && targets.len() == 1 {
        return Err("--interleave lets targets take turns, and there is one; leave it out".to_owned());
    }
    let useless: BTreeSet<String> = targets.iter().flat_map(LoadFlags::without_effect).collect();
    for line in useless {
        let _ = writeln!(io::stderr(), "note: {line}");
    }
    let shows_progress = general.progress || io::stderr().is_terminal();
    let mut loads = Vec::new();
    for target in &targets {
        loads.push((target.spec(shows_progress)?, target.pattern()?));
    }
    let labels: BTreeSet<&str> = loads.iter().map(|(spec, _)| spec.label.as_str()).collect();
    if labels.len() < loads.len() {
        return Err("two targets have one label; give each its own `label`".to_owned());
    }
    let files = Outputs {
        json: general.json.as_deref(),
        html: general.html.as_deref(),
        hdr: general.hdr.as_deref(),
        run_count: loads.iter().map(|(_, pattern)| run_count(pattern)).sum::<usize>() * general.rounds as usize,
    };
    let inputs: Vec<Input<'_>> = targets.iter().flat_map(LoadFlags::inputs).collect();
    files.check(&inputs)?;
    let mut record = begin()?;
    let mut found = Vec::new();
    let outcome = run_all(&loads, general, &mut record.runs, &mut found);
    publish(&record, &files)?;
    for line in found {
        say(&line);
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

/// At most, of one round.
fn run_count(pattern: &Pattern) -> usize {
    match pattern {
        Pattern::Levels(levels) => levels.len(),
        Pattern::Search { .. } => RUNS_MAX,
    }
}

/// Runs every target, level and round. `found` is what searches came to.
fn run_all(
    loads: &[(Spec, Pattern)],
    general: &LoadFlags,
    runs: &mut Vec<Run>,
    found: &mut Vec<String>,
) -> Result<(), String> {
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
    let is_alone = order.len() == 1;
    let mut unbearable = Vec::new();
    for (target, level, _) in order {
        match &loads[target].1 {
            Pattern::Levels(levels) => {
                let run = ready[target].run(&levels[level])?;
                if !is_alone {
                    note(&run);
                }
                runs.push(run);
                interrupt::check()?;
            }
            &Pattern::Search { bound, first_rate, arrivals, connections } => {
                let rate = search(&ready[target], bound, first_rate, arrivals, connections, &mut |run| {
                    note(&run);
                    runs.push(run);
                })?;
                let label = &ready[target].spec.label;
                match rate {
                    Some(rate) => found.push(format!("{label}: p99 stays below {bound:?} up to {rate:.1} requests/s")),
                    None => unbearable.push(format!("{label}: at no rate did p99 stay below {bound:?}")),
                }
            }
        }
    }
    if unbearable.is_empty() { Ok(()) } else { Err(unbearable.join("\n")) }
}

fn run_sweep(flags: &SweepFlags) -> Result<(), String> {
    let files = Outputs { json: flags.json.as_deref(), html: flags.html.as_deref(), ..Outputs::default() };
    files.check(&[])?;
    let mut record = begin()?;
    let outcome = sweep(flags, &mut |run| {
        note(&run);
        record.runs.push(run);
    });
    publish(&record, &files)?;
    outcome?;
    judge(&record.runs, flags.allow_errors, false)
}

fn run_compare(flags: &CompareFlags) -> Result<(), String> {
    let records = read(&flags.records)?;
    let mut text = Vec::new();
    let outcome = compare::compare(&records, &mut text).map_err(|error| format!("the comparison: {error}"))?;
    print(&text);
    let Outcome { compared, refused, different_vectors } = outcome;
    if different_vectors > 0 {
        return Err(format!("the vectors of {} differ", words::plural(u64::from(different_vectors), "pair")));
    }
    if refused > 0 || compared == 0 {
        return Err(format!("{} not comparable, {compared} compared", words::plural(u64::from(refused), "load")));
    }
    Ok(())
}

fn run_report(flags: &ReportFlags) -> Result<(), String> {
    let files = Outputs { html: flags.html.as_deref(), ..Outputs::default() };
    let inputs: Vec<Input<'_>> = flags.records.iter().map(|file| ("the record", file.as_path())).collect();
    files.check(&inputs)?;
    let records = read(&flags.records)?;
    let mut text = Vec::new();
    for (index, (file, record)) in records.iter().enumerate() {
        if records.len() > 1 {
            let gap = if index > 0 { "\n" } else { "" };
            text.extend(format!("{gap}{}\n", words::plain(file)).bytes());
        }
        table::write(record, &mut text).map_err(|error| format!("the table: {error}"))?;
    }
    print(&text);
    files.write_html(&records)
}

fn read(files: &[PathBuf]) -> Result<Vec<(String, Record)>, String> {
    files.iter().map(|file| Ok((file.display().to_string(), report::read(file)?))).collect()
}

/// The table on stdout, and the files. Without a run there is nothing to show or to keep.
fn publish(record: &Record, files: &Outputs<'_>) -> Result<(), String> {
    if record.runs.is_empty() {
        return Ok(());
    }
    let mut text = Vec::new();
    table::write(record, &mut text).map_err(|error| format!("the table: {error}"))?;
    print(&text);
    // The record first: all the rest can be made of it again.
    files.write_json(record)?;
    files.write_logs(record)?;
    let name = files.json.or(files.html).map_or(String::new(), |file| file.display().to_string());
    files.write_html(&[(name, record.clone())])
}

/// The record, still without runs. From here on a signal does not lose them.
fn begin() -> Result<Record, String> {
    interrupt::listen().map_err(|error| format!("signals: {error}"))?;
    let words: Vec<String> = std::env::args().skip(1).collect();
    Ok(Record {
        format: FORMAT,
        command: format!("reactrt-bench {}", words.join(" ")),
        began: machine::moment(SystemTime::now()),
        machine: machine::look(),
        runs: Vec::new(),
    })
}

/// Whether the runs are to be believed. A search goes beyond what its target bears; its runs need one right answer each.
fn judge(runs: &[Run], allow_errors: bool, is_search: bool) -> Result<(), String> {
    for run in runs {
        let counts = &run.counts;
        let kinds: Vec<String> = counts.errors.iter().map(|(kind, count)| format!("{kind}: {count}")).collect();
        // All were to be given up, and were.
        if counts.sent > 0 && counts.aborted == counts.sent {
            continue;
        }
        if counts.correct == 0 {
            return Err(format!("{}: not one right answer ({})", run.label, kinds.join(", ")));
        }
        if !is_clean(counts) && !allow_errors && !is_search {
            return Err(format!(
                "{}: {} of {} requests were answered wrongly or not at all ({}); --allow-errors takes that",
                run.label,
                counts.bad(),
                counts.sent,
                kinds.join(", ")
            ));
        }
    }
    Ok(())
}

/// A line on stderr for a run of a series that goes on; the table comes when all are through.
fn note(run: &Run) {
    let latency = match &run.latency {
        Some(latency) => {
            let [p50, p99] = [latency.corrected.p50, latency.corrected.p99].map(words::time);
            format!("p50 {p50}, p99 {p99}")
        }
        None => "no latency".to_owned(),
    };
    let texts = match run.workload.per_request.as_str() {
        "1" => String::new(),
        several => format!(", {several} texts each"),
    };
    let doubts: Vec<String> = runs::doubts(run).iter().map(|doubt| format!("; {doubt}")).collect();
    let (load, rate) = (words::load(&run.load), words::number(run.rates.requests));
    let line = format!("{}: {load}{texts}: {rate} requests/s, {latency}{}", run.label, doubts.concat());
    let _ = writeln!(io::stderr(), "{}", words::plain(&line));
}

/// A line on stdout.
fn say(line: &str) {
    print(format!("{}\n", words::plain(line)).as_bytes());
}

/// On stdout. That nobody reads it any more is no reason to end a run.
fn print(text: &[u8]) {
    let _ = io::stdout().write_all(text).and_then(|()| io::stdout().flush());
}
