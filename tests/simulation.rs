//! The whole server, simulated: one thread, a virtual clock, a network and devices that fail, and an order of steps that a
//! seed decides. What each world must keep to is in `world`.
//!
//! `REACTRT_SIMULATION_SEEDS=10000` runs so many seeds, `REACTRT_SIMULATION_SEEDS=10000..20000` those, and
//! `REACTRT_SIMULATION_SEED=7` that one, with its whole trace if it fails.

#[path = "simulation/asks.rs"]
mod asks;
#[path = "simulation/client.rs"]
mod client;
#[path = "simulation/device.rs"]
mod device;
#[path = "simulation/direct.rs"]
mod direct;
#[path = "simulation/network.rs"]
mod network;
#[path = "simulation/plan.rs"]
mod plan;
#[cfg(feature = "planted-bugs")]
#[path = "simulation/planted.rs"]
mod planted;
#[path = "simulation/random.rs"]
mod random;
#[path = "simulation/trace.rs"]
mod trace;
#[path = "simulation/world.rs"]
mod world;

use std::any::Any;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use world::{Outcome, World};

/// Seeds that plain `cargo test` runs.
const SEEDS: u64 = 256;

/// A sweep ends when so many have failed.
const FAILURES_MAX: u64 = 20;

fn words_of(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().cloned();
    text.or(payload.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_else(|| "a panic".into())
}

fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Panics are what worlds are made to find; each is shown once, with its seed and its trace.
fn without_noise() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let in_world = std::thread::current().name().is_some_and(|name| name.starts_with("world"));
            if in_world || info.payload_as_str().is_some_and(|words| words.contains("as it was told to")) {
                let place = info.location().map(|place| format!("{}:{}", place.file(), place.line()));
                PANICKED_AT.with(|last| last.replace(place.unwrap_or_default()));
            } else {
                usual(info);
            }
        }));
    });
}

thread_local!(static PANICKED_AT: std::cell::RefCell<String> = const { std::cell::RefCell::new(String::new()) });

/// What became of a seed's world: what it saw, or what was wrong and how it came to that.
fn outcome(seed: u64, keeps_trace: bool) -> Result<Outcome, String> {
    let mut world = catch_unwind(|| World::new(seed, keeps_trace)).map_err(|payload| words_of(&*payload))?;
    let result = catch_unwind(AssertUnwindSafe(|| world.run()));
    result.map_err(|payload| {
        let place = PANICKED_AT.with(|last| last.take());
        format!(
            "{} ({place})\n\nthe last steps:\n{}\n{}",
            words_of(&*payload),
            world.trace.in_words(),
            world.in_words()
        )
    })
}

type Outcomes = Vec<(u64, Result<Outcome, String>)>;

/// Runs seeds on all cores, in order, until so many have failed. `prepare` is called on each thread first.
fn sweep(seeds: Range<u64>, failures_max: u64, prepare: impl Fn() + Sync) -> Outcomes {
    without_noise();
    let next = AtomicU64::new(seeds.start);
    let failures = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let mut outcomes: Outcomes = std::thread::scope(|scope| {
        let work = || {
            prepare();
            let mut outcomes = Vec::new();
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= seeds.end || failures.load(Ordering::Relaxed) >= failures_max {
                    return outcomes;
                }
                let outcome = outcome(seed, seeds.end - seeds.start == 1);
                if outcome.is_err() {
                    failures.fetch_add(1, Ordering::Relaxed);
                }
                outcomes.push((seed, outcome));
            }
        };
        let spawn = |index| {
            let builder = std::thread::Builder::new().name(format!("world-{index}"));
            builder.spawn_scoped(scope, work).expect("a thread can be started")
        };
        let handles: Vec<_> = (0..threads).map(spawn).collect();
        handles.into_iter().flat_map(|handle| handle.join().expect("worlds catch their panics")).collect()
    });
    outcomes.sort_by_key(|(seed, _)| *seed);
    outcomes
}

/// The seeds that the environment asks for: one, so many, or those from one to another (`5000..9000`).
fn seeds() -> Range<u64> {
    let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("{text:?} is no whole number"));
    let given = |name: &str| std::env::var(name).ok();
    if let Some(seed) = given("REACTRT_SIMULATION_SEED") {
        return number(&seed)..number(&seed) + 1;
    }
    match given("REACTRT_SIMULATION_SEEDS") {
        Some(text) => match text.split_once("..") {
            Some((first, end)) => number(first)..number(end),
            None => 0..number(&text),
        },
        None => 0..SEEDS,
    }
}

#[test]
fn every_seed_is_a_world_without_a_fault() {
    let seeds = seeds();
    let start = Instant::now();
    let count = seeds.end - seeds.start;
    let outcomes = sweep(seeds, FAILURES_MAX, || ());
    let failed = outcomes.iter().filter_map(|(seed, outcome)| Some((seed, outcome.as_ref().err()?)));
    let failed: Vec<(&u64, &String)> = failed.collect();
    if let Some((seed, words)) = failed.first() {
        let all =
            failed.iter().map(|(seed, words)| format!("seed {seed}: {}\n", words.lines().next().unwrap_or_default()));
        let all: String = all.collect();
        panic!(
            "seed {seed}: {words}\nall that failed:\n{all}again: \
             REACTRT_SIMULATION_SEED={seed} cargo test --test simulation -- --nocapture"
        );
    }
    let outcomes: Vec<&Outcome> = outcomes.iter().flat_map(|(_, outcome)| outcome).collect();
    let (steps, virtual_ns) = outcomes
        .iter()
        .fold((0, 0), |(steps, virtual_ns), outcome| (steps + outcome.steps, virtual_ns + outcome.virtual_ns));
    let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
    for (what, times) in outcomes.iter().flat_map(|outcome| &outcome.seen) {
        *seen.entry(what).or_default() += times;
    }
    println!(
        "{count} seeds, {steps} steps, {:.0} s of virtual time in {:.1} s\n{seen:#?}",
        virtual_ns as f64 / 1e9,
        start.elapsed().as_secs_f64()
    );
    // Worlds in which nothing happens would prove nothing.
    let due = ["200", "400", "404", "405", "408", "413", "429", "500", "503", "401", "504"];
    let rare = [
        "steps with starved jobs",
        "steps with all pieces out",
        "steps with answers at workers",
        "stops with jobs",
        "worlds with a dead device",
        "worlds with a polled device",
        "lines of the access log",
        "lines of the access log dropped",
    ];
    for what in due.into_iter().chain(rare).filter(|_| count >= SEEDS) {
        assert!(seen.contains_key(what), "no world has seen: {what}");
    }
    assert!(count < SEEDS || seen["200"] > count * 5, "only {} good answers in {count} worlds", seen["200"]);
}

#[test]
fn a_seed_repeats_its_trace() {
    without_noise();
    for seed in [3, 17, 90] {
        let hash = |seed| outcome(seed, false).map(|outcome| (outcome.steps, outcome.hash));
        let first = hash(seed).unwrap_or_else(|words| panic!("seed {seed}: {words}"));
        assert_eq!(Ok(first), hash(seed), "seed {seed}");
        assert_ne!(Ok(first.1), hash(seed + 1).map(|(_, hash)| hash), "seeds differ");
    }
}
