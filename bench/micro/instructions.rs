//! The table's rows in instructions: `cargo bench --bench instructions [-- FILTER]`, one line per row.
//!
//! `cargo bench --profile test --bench instructions -- --check bench/instructions.md` compares with a table that was printed
//! before: exit code 1 if a row needs a tenth more than it did, or is not in the table. The profile is that of the tests, whose
//! build is there already; its numbers are larger than the release's and as steady.
//!
//! Each row runs by itself in this same program under valgrind's callgrind, which counts what one run executes after a
//! few that warm up. The same program gives the same numbers under any load, which is what they are for: a change of a path
//! shows even where times are noise. Needs `valgrind` (Debian's 3.19 will do). It emulates a processor without AVX-512, so
//! code that looks for it at run time is counted on its AVX2 path.
//!
//! Why not one of the crates for this: they need a runner of exactly their version to be installed, and a function with
//! attributes for each row, so a second table.

use std::hint::black_box;
use std::process::{Command, ExitCode};

use reactrt_bench::micro::{self, Amount, Case, Row, Threads};

type Failure = Box<dyn std::error::Error>;

/// Says to this program, when it runs under valgrind, which row it is there for.
const ROW_FLAG: &str = "--row";

/// Says that the counts are to be compared with a table.
const CHECK_FLAG: &str = "--check";

/// By how much a row may exceed what it was, in parts of a thousand: other versions of libraries and other cores move a few.
const MORE_ALLOWED: u64 = 100;

fn main() -> ExitCode {
    // Cargo adds `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let outcome = match arguments.as_slice() {
        [flag, name] if flag == ROW_FLAG => run_row(name),
        [flag, file] if flag == CHECK_FLAG => check(std::path::Path::new(file)),
        [] => count_all(""),
        [filter] => count_all(filter),
        [_, ..] => Err("give one part of the rows' names, or nothing for all rows".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// What callgrind counts: it is told to look for this name.
#[inline(never)]
fn measured_run(case: &mut dyn Case) {
    black_box(case.run(0));
}

fn run_row(name: &str) -> Result<(), Failure> {
    let mut row = micro::all().into_iter().find(|row| row.name == name).ok_or_else(|| format!("no row is {name:?}"))?;
    row.prove();
    row.case.prepare(0);
    measured_run(row.case.as_mut());
    Ok(())
}

fn count_all(filter: &str) -> Result<(), Failure> {
    println!("{}\n", version()?);
    println!("| row | instructions | for each |\n|---|---|---|");
    for row in counted().filter(|row| row.name.contains(filter)) {
        let instructions = count(&row)?;
        let (amount, unit) = match row.amount {
            Amount::Bytes(bytes) => (bytes, "byte"),
            Amount::Items(items) => (items, "item"),
        };
        println!("| {} | {instructions} | {:.2} per {unit} |", row.name, instructions as f64 / amount as f64);
    }
    Ok(())
}

fn version() -> Result<String, Failure> {
    let version = Command::new("valgrind").arg("--version").output();
    let version = version.map_err(|error| format!("valgrind is needed and does not start: {error}"))?;
    Ok(String::from_utf8_lossy(&version.stdout).trim().to_owned())
}

fn counted() -> impl Iterator<Item = Row> {
    micro::all().into_iter().filter(|row| row.threads == Threads::One)
}

/// Compares every row with what the table in `file` says of it.
fn check(file: &std::path::Path) -> Result<(), Failure> {
    // Cargo runs benchmarks in their package's folder.
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    let table = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let known = |name: &str| {
        let row = table.lines().filter_map(|line| line.strip_prefix("| ")?.strip_prefix(name)?.strip_prefix(" | "));
        row.filter_map(|rest| rest.split(" |").next()?.parse::<u64>().ok()).next()
    };
    version()?;
    let mut worse = Vec::new();
    for row in counted() {
        let now = count(&row)?;
        let Some(before) = known(&row.name) else {
            worse.push(format!("{} is not in {}", row.name, file.display()));
            continue;
        };
        println!("{:<44} {before:>12} {now:>12} {:>7.3} ×", row.name, now as f64 / before as f64);
        if now * 1000 > before * (1000 + MORE_ALLOWED) {
            worse.push(format!("{}: {now} instructions, {before} before", row.name));
        }
    }
    if worse.is_empty() { Ok(()) } else { Err(worse.join("\n").into()) }
}

fn count(row: &Row) -> Result<u64, Failure> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"])
        .arg("--toggle-collect=*measured_run*")
        .arg(std::env::current_exe()?)
        .args([ROW_FLAG, &row.name])
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("{} failed under valgrind:\n{said}", row.name).into());
    }
    // `==123== Collected : 4567`
    let collected = said.lines().find_map(|line| line.split("Collected :").nth(1)?.trim().parse().ok());
    match collected {
        Some(0) | None => Err(format!("valgrind counted nothing for {}:\n{said}", row.name).into()),
        Some(instructions) => Ok(instructions),
    }
}
