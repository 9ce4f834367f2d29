//! Where the generator runs, and when: facts for the record. What cannot be found out is left empty.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use crate::record::Machine;

/// A program that has not said what it knows by then is left alone.
const ASK_MAX: Duration = Duration::from_secs(5);

pub fn look() -> Machine {
    let cpu_info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let memory_kib = after(&memory, "MemTotal").and_then(|text| text.trim_end_matches(" kB").parse::<u64>().ok());
    let (gpus, driver) = gpus();
    Machine {
        cpu: after(&cpu_info, "model name").unwrap_or_default().to_owned(),
        cores: std::thread::available_parallelism().map_or(0, |cores| cores.get() as u32),
        memory_bytes: memory_kib.unwrap_or(0) * 1024,
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
        gpus,
        driver,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: commit(Path::new(".")),
    }
}

/// The value of the first line `name : value`.
fn after<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.into_iter().find(|(found, _)| found.trim() == name).map(|(_, value)| value.trim())
}

fn gpus() -> (Vec<String>, String) {
    let fields = ["--query-gpu=name,driver_version", "--format=csv,noheader"];
    let Some(answer) = ask(Command::new("nvidia-smi").args(fields)) else { return (Vec::new(), String::new()) };
    let lines: Vec<(&str, &str)> = answer.lines().filter_map(|line| line.rsplit_once(", ")).collect();
    let driver = lines.first().map(|(_, driver)| (*driver).to_owned()).unwrap_or_default();
    (lines.iter().map(|(name, _)| (*name).to_owned()).collect(), driver)
}

/// The working tree's commit, with `-dirty` where tracked files have changed.
fn commit(folder: &Path) -> String {
    let git = |arguments: &[&str]| ask(Command::new("git").current_dir(folder).args(arguments));
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return String::new() };
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|files| !files.is_empty());
    format!("{commit}{}", if changed { "-dirty" } else { "" })
}

/// What a program prints, if it can be started and ends well and soon.
fn ask(command: &mut Command) -> Option<String> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = child.ok()?;
    let start = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(_)) => break,
            Ok(None) if start.elapsed() < ASK_MAX => std::thread::sleep(Duration::from_millis(2)),
            Ok(None) | Err(_) => {
                // It is our child alone; that it has ended meanwhile is no mistake.
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
        }
    }
    let output = child.wait_with_output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// `2026-11-30T18:00:00Z`.
pub fn moment(time: SystemTime) -> String {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

/// Year, month and day of a day counted from 1970-01-01.
fn date(mut days: u64) -> (u64, u64, u64) {
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_in_utc() {
        let at = |seconds| moment(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_796_061_599), "2026-11-30T17:59:59Z");
        assert_eq!(at(1_735_689_599), "2024-12-31T23:59:59Z");
    }

    #[test]
    fn this_machine_has_cores_and_memory() {
        let machine = look();
        assert!(machine.cores > 0 && machine.memory_bytes > 1 << 20 && !machine.kernel.is_empty(), "{machine:?}");
    }

    #[test]
    fn a_program_that_is_not_there_or_fails_says_nothing() {
        assert_eq!(ask(&mut Command::new("no-such-program-here")), None);
        assert_eq!(ask(&mut Command::new("false")), None);
        assert_eq!(ask(Command::new("echo").arg("x")), Some("x".to_owned()));
    }
}
