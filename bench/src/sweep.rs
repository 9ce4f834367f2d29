//! Texts one after another against the same texts in one request: the charts that the old server published, on any server.
//!
//! For each task and each number of texts two runs, on one connection. *serial*: so many requests of one text each, one
//! after another, measured as one; *batch*: one request with all of them. Both labels carry the number of texts as
//! `per_request`, so that latency over it is the time per text.

use std::time::Duration;

use clap::Args;

use crate::drive::{Check, Wait};
use crate::flags::{Numbers, check_timeout, duration};
use crate::interrupt;
use crate::record::{Load, Run};
use crate::requests::Content;
use crate::run::Spec;
use crate::target::{Api, Encoding, Family, Place, Task};
use crate::texts::{PerRequest, Texts, Words};

const TEXTS_MAX: u32 = 4096;

#[derive(Args, Clone, Debug)]
pub struct SweepFlags {
    /// Where the server is: http://host:port
    #[arg(long)]
    pub url: String,
    /// A model and what it does, as embedding=NAME, reranking=NAME or nli=NAME; may be given again
    #[arg(long, required = true, value_name = "TASK=NAME", value_parser = named)]
    pub model: Vec<(Task, String)>,
    /// The family of routes
    #[arg(long, default_value = "native")]
    pub api: Api,
    /// Numbers of texts
    #[arg(long, default_value = "1,2,4,8,16,32,64", value_name = "N,N,…")]
    pub sizes: Numbers<u32>,
    /// Words of a text: fixed:30, uniform:4-254, lognormal:30,0.9,4,254
    #[arg(long, default_value = "fixed:30")]
    pub words: Words,
    /// How often each point is measured
    #[arg(long, default_value = "20", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub repeat: u32,
    /// Before each point, not measured
    #[arg(long, value_parser = duration, default_value = "300ms", value_name = "TIME")]
    pub warmup: Duration,
    /// For a request's answer
    #[arg(long, value_parser = duration, default_value = "30s", value_name = "TIME")]
    pub timeout: Duration,
    #[arg(long, default_value = "1")]
    pub seed: u64,
    /// How far answers are checked
    #[arg(long, default_value = "full")]
    pub check: Check,
    /// Ends well (exit code 0) in spite of wrong answers and failures, if at least one answer was right
    #[arg(long)]
    pub allow_errors: bool,
    /// A core for the generator
    #[arg(long, value_name = "CORE")]
    pub pin: Option<usize>,
    /// Writes the record there
    #[arg(long, value_name = "FILE")]
    pub json: Option<std::path::PathBuf>,
    /// Writes a page there, with plots, which needs nothing but itself
    #[arg(long, value_name = "FILE")]
    pub html: Option<std::path::PathBuf>,
}

fn named(text: &str) -> Result<(Task, String), String> {
    let words = "a model is given as embedding=NAME, reranking=NAME or nli=NAME";
    let (task, name) = text.split_once('=').ok_or(words)?;
    let task = <Task as clap::ValueEnum>::from_str(task, true).map_err(|_| words)?;
    if name.is_empty() { Err(words.to_owned()) } else { Ok((task, name.to_owned())) }
}

/// `seen` gets each run, those before an error too.
///
/// # Errors
/// One line that says what is wrong with the target.
pub fn sweep(flags: &SweepFlags, seen: &mut dyn FnMut(Run)) -> Result<(), String> {
    check_timeout(flags.timeout)?;
    let place = Place::parse(&flags.url)?;
    if let Some(size) = flags.sizes.0.iter().find(|&&size| size == 0 || size > TEXTS_MAX) {
        return Err(format!("--sizes: {size} is not a whole number from 1 to {TEXTS_MAX}"));
    }
    for (task, model) in &flags.model {
        for &size in &flags.sizes.0 {
            for is_batch in [false, true] {
                let spec = point(flags, &place, *task, model, size, is_batch);
                let run = spec.prepare()?.run(&Load::Closed { concurrency: 1 })?;
                seen(run);
                interrupt::check()?;
            }
        }
    }
    Ok(())
}

fn point(flags: &SweepFlags, place: &Place, task: Task, model: &str, size: u32, is_batch: bool) -> Spec {
    let (per_request, group) = if is_batch { (size, 1) } else { (1, size) };
    Spec {
        label: format!("{task} {}", if is_batch { "batch" } else { "serial" }),
        place: place.clone(),
        family: Family { api: flags.api, task, encoding: Encoding::Float, model: model.to_owned(), path: None },
        content: Content::Texts {
            texts: Texts::Made(flags.words.clone()),
            per_request: PerRequest::Fixed(per_request),
        },
        fields: Vec::new(),
        seed: flags.seed,
        warmup: flags.warmup,
        duration: None,
        // One more, as the first may have begun before the warm-up's end.
        requests: Some(u64::from(group) * (u64::from(flags.repeat) + 1)),
        group,
        timeout: flags.timeout,
        new_connections: false,
        abort_rate: 0.0,
        check: flags.check,
        dimension: None,
        expected_bytes: None,
        digest: false,
        samples: 0,
        threads: 1,
        cores: flags.pin.into_iter().collect(),
        wait: Wait::Auto,
        shows_progress: false,
    }
}
