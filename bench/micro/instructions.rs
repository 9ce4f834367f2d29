//! The table's rows in instructions: `cargo bench --bench instructions [-- FILTER]`, one line per row.
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

fn main() -> ExitCode {
    // Cargo adds `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let outcome = match arguments.as_slice() {
        [flag, name] if flag == ROW_FLAG => run_row(name),
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
    let version = Command::new("valgrind").arg("--version").output();
    let version = version.map_err(|error| format!("valgrind is needed and does not start: {error}"))?;
    println!("{}\n", String::from_utf8_lossy(&version.stdout).trim());
    println!("| row | instructions | for each |\n|---|---|---|");
    for row in micro::all().into_iter().filter(|row| row.name.contains(filter) && row.threads == Threads::One) {
        let instructions = count(&row)?;
        let (amount, unit) = match row.amount {
            Amount::Bytes(bytes) => (bytes, "byte"),
            Amount::Items(items) => (items, "item"),
        };
        println!("| {} | {instructions} | {:.2} per {unit} |", row.name, instructions as f64 / amount as f64);
    }
    Ok(())
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
