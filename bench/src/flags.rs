//! The flags of `load`, which are the keys of a scenario file as well, and what they mean together.
//!
//! Owns defaults and the rules between flags. Knows neither files of scenarios nor sockets.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::drive::{Check, Wait};
use crate::outputs::Input;
use crate::record::{Arrivals, Load};
use crate::requests::Content;
use crate::run::Spec;
use crate::target::{Api, Encoding, Family, Place, Task};
use crate::texts::{PerRequest, Texts, Words};

/// Of an open loop, unless `--connections` says otherwise.
const CONNECTIONS: u32 = 256;
const CONNECTIONS_MAX: u32 = 20_000;
const DURATION: Duration = Duration::from_secs(10);
/// Of a measured part and of a timeout: a thread looks at its deadlines less often.
const TIME_MIN: Duration = Duration::from_millis(1);
/// One request in eleven days.
const RATE_MIN: f64 = 1e-6;
const RATE_MAX: f64 = 1e7;
/// Where `--search-p99` begins without `--rate`.
const FIRST_RATE: f64 = 100.0;

#[derive(Args, Clone, Debug)]
pub struct LoadFlags {
    /// YAML whose keys are these flags; flags given here go over it
    #[arg(long, value_name = "FILE", help_heading = "Target")]
    pub scenario: Option<PathBuf>,
    /// Where the server is: http://host:port, with a path if it has one before all routes
    #[arg(long, help_heading = "Target")]
    pub url: Option<String>,
    /// The model's name as the server has it
    #[arg(long, default_value = "", hide_default_value = true, help_heading = "Target")]
    pub model: String,
    /// The family of routes
    #[arg(long, default_value = "native", help_heading = "Target")]
    pub api: Api,
    #[arg(long, default_value = "embedding", help_heading = "Target")]
    pub task: Task,
    /// Instead of the family's own route
    #[arg(long, help_heading = "Target")]
    pub path: Option<String>,
    /// What tables and plots call it; by default the model's name
    #[arg(long, help_heading = "Target")]
    pub label: Option<String>,
    /// A further field of each request's head, such as "authorization: Bearer x"; may be given again
    #[arg(long, value_name = "NAME: VALUE", value_parser = header, help_heading = "Target")]
    pub header: Vec<String>,
    /// How vectors come, for --api openai [default: float]
    #[arg(long, value_name = "FORMAT", help_heading = "Target")]
    pub encoding_format: Option<Encoding>,

    /// Open loop: requests per second, sent when the schedule says
    #[arg(long, group = "load", value_parser = rate, help_heading = "Load")]
    pub rate: Option<f64>,
    /// Of an open loop [default: poisson]
    #[arg(long, help_heading = "Load")]
    pub arrivals: Option<ArrivalsWord>,
    /// Connections of an open loop at most [default: 256]
    #[arg(long, value_parser = connections, help_heading = "Load")]
    pub connections: Option<u32>,
    /// Closed loop (saturation): so many connections, each sends as soon as it is answered
    #[arg(long, group = "load", value_parser = connections, help_heading = "Load")]
    pub concurrency: Option<u32>,
    /// A closed loop at each of these concurrencies: 1,2,4,8
    #[arg(long, group = "load", value_name = "N,N,…", help_heading = "Load")]
    pub sweep: Option<Numbers<u32>>,
    /// An open loop at each of these rates: 100,200,400
    #[arg(long, group = "load", value_name = "RATE,RATE,…", help_heading = "Load")]
    pub sweep_rate: Option<Numbers<f64>>,
    /// Finds the highest rate at which the corrected p99 stays below this, beginning at --rate
    #[arg(long, value_parser = duration, value_name = "TIME", conflicts_with_all = ["concurrency", "sweep", "sweep_rate"], help_heading = "Load")]
    pub search_p99: Option<Duration>,
    /// Not measured, before the measured part
    #[arg(long, value_parser = duration, default_value = "2s", value_name = "TIME", help_heading = "Load")]
    pub warmup: Duration,
    /// The measured part [default: 10s, or until --requests are through]
    #[arg(long, value_parser = duration, value_name = "TIME", help_heading = "Load")]
    pub duration: Option<Duration>,
    /// Measured requests, if their number and not the time is to end the run
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..), help_heading = "Load")]
    pub requests: Option<u64>,
    /// A connection for each request
    #[arg(long, help_heading = "Load")]
    pub new_connections: bool,
    /// Share of requests whose connection is closed before the answer
    #[arg(long, default_value = "0", value_parser = share, help_heading = "Load")]
    pub abort_rate: f64,
    /// For a request's answer
    #[arg(long, value_parser = duration, default_value = "10s", value_name = "TIME", help_heading = "Load")]
    pub timeout: Duration,
    /// Decides texts, moments and aborts
    #[arg(long, default_value = "1", help_heading = "Load")]
    pub seed: u64,
    /// Runs of each target and level
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u32).range(1..=1000), help_heading = "Load")]
    pub rounds: u32,
    /// Targets take turns, round by round, so that a noisy machine hurts all alike
    #[arg(long, help_heading = "Load")]
    pub interleave: bool,

    /// Words of a text: fixed:30, uniform:4-254, lognormal:30,0.9,4,254 (median, sigma, from, to) [default: fixed:30]
    #[arg(long, group = "content", help_heading = "Texts")]
    pub words: Option<Words>,
    /// Texts from a file, a line each
    #[arg(long, group = "content", value_name = "FILE", help_heading = "Texts")]
    pub texts: Option<String>,
    /// Whole bodies from a file, a line each
    #[arg(long, group = "content", value_name = "FILE.jsonl", help_heading = "Texts")]
    pub bodies: Option<String>,
    /// Texts of a request: 1, 32, uniform:1-64 [default: 1]
    #[arg(long, value_name = "COUNT", help_heading = "Texts")]
    pub texts_per_request: Option<PerRequest>,

    /// How far answers are checked
    #[arg(long, default_value = "full", help_heading = "Answers")]
    pub check: Check,
    /// Values of a vector; by default as in the first answer
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000), help_heading = "Answers")]
    pub dimension: Option<u32>,
    /// What a body must have, for --api raw
    #[arg(long, value_name = "COUNT", help_heading = "Answers")]
    pub expect_bytes: Option<u64>,
    /// Ends well (exit code 0) in spite of wrong answers and failures, if at least one answer was right
    #[arg(long, help_heading = "Answers")]
    pub allow_errors: bool,
    /// A digest of all vectors into the record: the same for the same vectors in any order
    #[arg(long, help_heading = "Answers")]
    pub digest: bool,
    /// The vectors of the first so many distinct texts into the record
    #[arg(long, default_value = "0", value_name = "COUNT", help_heading = "Answers")]
    pub keep_samples: usize,

    /// Threads that send, each with its share of connections and schedule [default: 1, or as many as --pin names cores]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256), help_heading = "Generator")]
    pub threads: Option<u32>,
    /// Cores for them
    #[arg(long, value_name = "CORE,CORE,…", help_heading = "Generator")]
    pub pin: Option<Numbers<usize>>,
    /// Never sleeps
    #[arg(long, conflicts_with = "no_spin", help_heading = "Generator")]
    pub spin: bool,
    /// Always sleeps, even shortly before a planned moment, which may then be missed by a millisecond
    #[arg(long, help_heading = "Generator")]
    pub no_spin: bool,
    /// A line each second, even where stderr is no terminal
    #[arg(long, help_heading = "Generator")]
    pub progress: bool,

    /// Writes the record there
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub json: Option<PathBuf>,
    /// Writes a page there, with plots, which needs nothing but itself
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub html: Option<PathBuf>,
    /// Writes the corrected histogram there, as an interval log of hdrhistogram (with several runs one file each, numbered)
    #[arg(long, value_name = "FILE.hlog", help_heading = "Output")]
    pub hdr: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ArrivalsWord {
    Poisson,
    Constant,
}

/// Numbers with commas between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Numbers<T>(pub Vec<T>);

impl<T: FromStr> FromStr for Numbers<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Numbers<T>, String> {
        let number = |word: &str| word.trim().parse::<T>().map_err(|_| format!("{word:?} is not such a number"));
        text.split(',').map(number).collect::<Result<Vec<T>, String>>().map(Numbers)
    }
}

/// `20ms`, `1.5s`, `2m`, `500us`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit_s = match unit.trim() {
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "" => return Err("a time needs its unit: 500us, 20ms, 30s, 2m".to_owned()),
        _ => return Err(format!("{unit:?} is none of the units us, ms, s, m, h")),
    };
    let number: f64 = number.parse().map_err(|_| format!("{number:?} is not a number"))?;
    let seconds = number * unit_s;
    if seconds > 86_400.0 { Err("longer than a day".to_owned()) } else { Ok(Duration::from_secs_f64(seconds)) }
}

/// # Errors
/// A timeout within which no answer can come.
pub fn check_timeout(timeout: Duration) -> Result<(), String> {
    if timeout < TIME_MIN { Err("--timeout is less than 1ms: no answer can come in it".to_owned()) } else { Ok(()) }
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if (RATE_MIN..=RATE_MAX).contains(&rate) => Ok(rate),
        Ok(_) | Err(_) => {
            Err("a rate is a number of requests per second, from a millionth (0.000001) to ten million".to_owned())
        }
    }
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        Ok(_) | Err(_) => Err("a share lies between 0 and 1".to_owned()),
    }
}

fn connections(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(count @ 1..=CONNECTIONS_MAX) => Ok(count),
        Ok(_) | Err(_) => Err(format!("a whole number from 1 to {CONNECTIONS_MAX}")),
    }
}

fn header(text: &str) -> Result<String, String> {
    let is_token = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    };
    match text.split_once(':') {
        Some((name, value)) if is_token(name) && !value.bytes().any(|byte| byte < b' ' || byte == 0x7f) => {
            let name = name.to_ascii_lowercase();
            if matches!(name.as_str(), "host" | "content-length" | "transfer-encoding" | "connection") {
                return Err(format!("{name} is written by the generator itself"));
            }
            Ok(format!("{name}: {}", value.trim()))
        }
        Some(_) | None => Err("a field is a name, a colon and a value on one line".to_owned()),
    }
}

/// What is run.
#[derive(Clone, Debug, PartialEq)]
pub enum Pattern {
    /// One run after another.
    Levels(Vec<Load>),
    /// The highest rate whose corrected p99 stays below the bound.
    Search { bound: Duration, first_rate: f64, arrivals: Arrivals, connections: u32 },
}

impl LoadFlags {
    /// Who decides when requests are sent.
    ///
    /// # Errors
    /// No load at all, or a level that cannot be.
    pub fn pattern(&self) -> Result<Pattern, String> {
        let arrivals = match self.arrivals {
            None | Some(ArrivalsWord::Poisson) => Arrivals::Poisson,
            Some(ArrivalsWord::Constant) => Arrivals::Constant,
        };
        let connections = self.connections.unwrap_or(CONNECTIONS);
        let open = |rate: f64| Load::Open { rate, arrivals, connections };
        if let Some(bound) = self.search_p99 {
            if bound.is_zero() {
                return Err("--search-p99 is zero: no answer comes in no time".to_owned());
            }
            let first_rate = self.rate.unwrap_or(FIRST_RATE);
            return Ok(Pattern::Search { bound, first_rate, arrivals, connections });
        }
        let closed = self.concurrency.map(|one| vec![one]).or(self.sweep.as_ref().map(|sweep| sweep.0.clone()));
        if let Some(levels) = closed {
            if let Some(level) = levels.iter().find(|&&level| level == 0 || level > CONNECTIONS_MAX) {
                return Err(format!("--sweep: {level} is not a whole number from 1 to {CONNECTIONS_MAX}"));
            }
            return Ok(Pattern::Levels(levels.into_iter().map(|concurrency| Load::Closed { concurrency }).collect()));
        }
        let rates = self.rate.map(|one| vec![one]).or(self.sweep_rate.as_ref().map(|sweep| sweep.0.clone()));
        let rates = rates.ok_or(
            "the load is missing: --rate 200 (open loop), --concurrency 16 (saturation), --sweep, --sweep-rate or --search-p99",
        )?;
        for level in &rates {
            rate(&level.to_string()).map_err(|error| format!("--sweep-rate: {level}: {error}"))?;
        }
        Ok(Pattern::Levels(rates.into_iter().map(open).collect()))
    }

    /// The files that are read, with their flags.
    pub fn inputs(&self) -> Vec<Input<'_>> {
        let scenario = self.scenario.as_deref().map(|file| ("--scenario", file));
        let texts = self.texts.as_deref().map(|file| ("--texts", Path::new(file)));
        let bodies = self.bodies.as_deref().map(|file| ("--bodies", Path::new(file)));
        [scenario, texts, bodies].into_iter().flatten().collect()
    }

    /// The target and what is sent there.
    ///
    /// # Errors
    /// A missing or malformed URL, a file that cannot be read, flags that do not go together.
    pub fn spec(&self, shows_progress: bool) -> Result<Spec, String> {
        let url = self.url.as_deref().ok_or("--url is missing: where is the server?")?;
        let family = Family {
            api: self.api,
            task: self.task,
            encoding: self.encoding_format.unwrap_or(Encoding::Float),
            model: self.model.clone(),
            path: self.path.clone(),
        };
        family.check()?;
        self.check_effects()?;
        let duration = match (self.duration, self.requests) {
            (Some(duration), _) if duration < TIME_MIN => {
                return Err("--duration is less than 1ms: nothing can be measured in it".to_owned());
            }
            (None, None) => Some(DURATION),
            (duration, _) => duration,
        };
        check_timeout(self.timeout)?;
        if self.check != Check::Full && (self.digest || self.keep_samples > 0) {
            return Err("--digest and --keep-samples read the answers, which needs --check full".to_owned());
        }
        let cores = self.pin.as_ref().map(|pin| pin.0.clone()).unwrap_or_default();
        let place = Place::parse(url)?;
        let label = self
            .label
            .clone()
            .unwrap_or_else(|| if self.model.is_empty() { place.authority.clone() } else { self.model.clone() });
        Ok(Spec {
            label,
            place,
            family,
            content: self.content()?,
            fields: self.header.clone(),
            seed: self.seed,
            warmup: self.warmup,
            duration,
            requests: self.requests,
            group: 1,
            timeout: self.timeout,
            new_connections: self.new_connections,
            abort_rate: self.abort_rate,
            check: self.check,
            dimension: self.dimension,
            expected_bytes: self.expect_bytes,
            digest: self.digest,
            samples: self.keep_samples,
            threads: self.threads.unwrap_or(cores.len().max(1) as u32),
            cores,
            wait: if self.spin {
                Wait::Spin
            } else if self.no_spin {
                Wait::Sleep
            } else {
                Wait::Auto
            },
            shows_progress,
        })
    }

    /// Flags that would change nothing, so that whoever gave them would misread the record.
    fn check_effects(&self) -> Result<(), String> {
        let is_raw = self.api == Api::Raw;
        if is_raw && (self.digest || self.keep_samples > 0) {
            return Err(
                "--digest and --keep-samples need vectors, and of --api raw's answers nothing is known".to_owned()
            );
        }
        if is_raw && self.dimension.is_some() {
            return Err("--dimension needs vectors, and of --api raw's answers nothing is known".to_owned());
        }
        if self.expect_bytes.is_some() && (!is_raw || self.check != Check::Full) {
            return Err("--expect-bytes is for --api raw with --check full alone".to_owned());
        }
        if self.encoding_format.is_some() && self.api != Api::Openai {
            return Err("--encoding-format is for --api openai alone".to_owned());
        }
        Ok(())
    }

    /// What was given and changes nothing beside the rest, in words: a scenario's keys may be meant for other runs of it.
    pub fn without_effect(&self) -> Vec<String> {
        let is_closed = self.concurrency.is_some() || self.sweep.is_some();
        let has_own_texts = self.bodies.is_some() || self.api == Api::Raw;
        let useless = [
            (
                is_closed && self.connections.is_some(),
                "--connections is an open loop's; a closed loop has --concurrency",
            ),
            (is_closed && self.arrivals.is_some(), "--arrivals is an open loop's"),
            (has_own_texts && self.texts_per_request.is_some(), "--texts-per-request does not change bodies of a file"),
            (self.check != Check::Full && self.dimension.is_some(), "--dimension is checked by --check full alone"),
        ];
        useless.into_iter().filter(|(is_useless, _)| *is_useless).map(|(_, why)| format!("no effect: {why}")).collect()
    }

    fn content(&self) -> Result<Content, String> {
        if let Some(file) = &self.bodies {
            return Content::bodies(file);
        }
        if self.api == Api::Raw {
            return match (&self.words, &self.texts) {
                (None, None) => Ok(Content::Nothing),
                _ => Err("--api raw sends no texts of ours; give whole bodies by --bodies".to_owned()),
            };
        }
        let texts = match &self.texts {
            Some(file) => Texts::lines(file)?,
            None => Texts::Made(self.words.clone().unwrap_or(Words::Fixed(30))),
        };
        Ok(Content::Texts { texts, per_request: self.texts_per_request.unwrap_or(PerRequest::Fixed(1)) })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: LoadFlags,
    }

    fn parse(line: &str) -> Result<LoadFlags, String> {
        let words = std::iter::once("load").chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.flags).map_err(|error| error.to_string())
    }

    #[test]
    fn times_have_units() {
        assert_eq!(duration("20ms"), Ok(Duration::from_millis(20)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(duration("500us"), Ok(Duration::from_micros(500)));
        for text in ["20", "s", "1x", "-1s", "1.2.3s", "99h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn loads() {
        let pattern = |line: &str| parse(line).unwrap().pattern();
        let open = |rate, connections| Load::Open { rate, arrivals: Arrivals::Poisson, connections };
        assert_eq!(pattern("--rate 200"), Ok(Pattern::Levels(vec![open(200.0, 256)])));
        assert_eq!(
            pattern("--sweep-rate 1,2.5 --connections 9"),
            Ok(Pattern::Levels(vec![open(1.0, 9), open(2.5, 9)]))
        );
        let closed = |concurrency| Load::Closed { concurrency };
        assert_eq!(pattern("--sweep 1,16"), Ok(Pattern::Levels(vec![closed(1), closed(16)])));
        assert!(pattern("").unwrap_err().contains("the load is missing"));
        assert!(pattern("--sweep 0,1").is_err() && pattern("--sweep-rate 0").is_err());
        assert!(parse("--rate 1 --concurrency 2").unwrap_err().contains("cannot be used with"));
        assert!(parse("--search-p99 1ms --sweep 2").unwrap_err().contains("cannot be used with"));
        assert!(matches!(pattern("--search-p99 20ms"), Ok(Pattern::Search { .. })));
        assert!(pattern("--search-p99 0ms").unwrap_err().contains("--search-p99 is zero"));
        assert!(parse("--rate 1e-9").unwrap_err().contains("a millionth") && parse("--rate 1e-6").is_ok());
        assert!(pattern("--sweep-rate 1,1e-300").unwrap_err().contains("a millionth"));
        assert!(parse("--rate 0").is_err() && parse("--abort-rate 2").is_err() && parse("--concurrency 0").is_err());
    }

    #[test]
    fn fields_that_would_break_the_request_are_refused() {
        assert_eq!(header("Authorization: Bearer x"), Ok("authorization: Bearer x".to_owned()));
        for text in ["x", ": y", "a b: c", "a: b\r\nc: d", "Host: x", "content-length: 3"] {
            assert!(header(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn flags_that_do_not_go_together_are_refused_in_words() {
        let refused = |line: &str| parse(line).unwrap().spec(false).unwrap_err();
        assert!(refused("--rate 1 --model m").contains("--url is missing"));
        assert!(refused("--url http://127.0.0.1:1 --rate 1").contains("--model is missing"));
        let with = |rest: &str| refused(&format!("--url http://127.0.0.1:1 --model m --rate 1 {rest}"));
        assert!(with("--check status --digest").contains("--check full"));
        assert!(with("--api raw --path / --digest").contains("need vectors"));
        assert!(with("--api raw --path / --keep-samples 2").contains("need vectors"));
        assert!(with("--expect-bytes 3").contains("--api raw"));
        assert!(with("--encoding-format base64").contains("--api openai alone"));
        assert!(with("--encoding-format float").contains("--api openai alone"));
        let useless = |line: &str| parse(line).unwrap().without_effect().len();
        assert_eq!(useless("--concurrency 2 --connections 3 --arrivals constant"), 2);
        assert_eq!(useless("--rate 2 --connections 3 --arrivals constant --dimension 4 --texts-per-request 5"), 0);
        assert_eq!(useless("--sweep 2 --check none --dimension 4 --bodies x --texts-per-request 5"), 2);
        for flags in ["--duration 0s", "--duration 1us", "--duration 0.9ms"] {
            assert!(with(flags).contains("--duration is less than 1ms"), "{flags}");
        }
        assert!(with("--timeout 1us").contains("--timeout is less than 1ms"));
        assert!(with("--texts /no/such/file").contains("/no/such/file"));
        assert!(with("--api raw --path / --words fixed:3").contains("--bodies"));
    }
}
