//! The simulation, tested: bugs that were put into the server on purpose must be found, and soon.

use reactrt::planted::{Bug, plant};

/// Seeds in which each bug must show itself: as many as CI sweeps.
const SEEDS: u64 = 2_000;

/// What each bug is found by, one of these.
fn signs(bug: Bug) -> &'static [&'static str] {
    match bug {
        Bug::SleepsWithoutLooking => &["sleeps beside its work", "waits for nobody", "nothing will wake anybody"],
        Bug::RefusesInSilence | Bug::DropsInSilence => &["waits for nobody", "pieces are out for no job"],
        Bug::AnswersTwice => &["an answer that nobody asked for", "an answer after the last one", "another request's"],
        Bug::SwapsNeighbours => &["not the vector of its own text"],
        // A piece in the wrong hands breaks whatever comes first.
        Bug::TrustsOldPieces => &[""],
        Bug::LosesPieces => &["what all hold together is what the pools have"],
        Bug::KeepsTokens => &["the queue's tokens are those of its jobs"],
        // A slot without a request, one whose next request has another deadline, and one whose next request is a stranger's.
        Bug::KeepsTimers => &["a job knows what was asked", "a job has one deadline", "got 504", "were over"],
        Bug::GivesUpEarly => &["given up"],
        Bug::LosesDropped => &["what all hold together is what the pools have"],
        Bug::SleepsUnarmed => &["has a result and its thread sleeps"],
        Bug::TakesPrefixes => &["401 was due"],
        Bug::LosesLines => &["lines written and dropped are requests ended"],
        Bug::LeavesInSilence => &["the server is over and request"],
        Bug::ForgetsWhoAsked => &["a refusal without its request's name"],
        Bug::ForgetsTheRest => &["waits for an answer and nobody works on it", "nothing will wake anybody"],
    }
}

#[test]
fn planted_bugs_are_found() {
    let mut missed = Vec::new();
    for bug in Bug::ALL {
        let outcomes = super::sweep(0..SEEDS, 1, || plant(Some(bug)));
        let found = outcomes.iter().find_map(|(seed, outcome)| Some((seed, outcome.as_ref().err()?)));
        let Some((seed, words)) = found else {
            missed.push(format!("{bug:?} is not found in {SEEDS} seeds"));
            continue;
        };
        let first = words.lines().next().unwrap_or_default();
        println!("{bug:?}: found by seed {seed}, after {} worlds: {first}", outcomes.len());
        if !signs(bug).iter().any(|sign| first.contains(sign)) {
            missed.push(format!("{bug:?} is found by something else: {first}"));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}
