//! Several runs against the first: ratios with their spread, and whether the vectors are the same.
//!
//! Owns what may be compared with what: the same load, workload and check, round by round. What was not measured alike is
//! named, never compared. Invariant: a ratio is the other's figure over the first's, so for times less is better and for
//! rates more.

use std::collections::HashMap;
use std::io::{self, Write};

use crate::record::{Record, Run, Sample};
use crate::runs::{self, Group, Point};
use crate::{table, words};

/// A cosine below this is no rounding of the same model.
pub const COSINE_MIN: f64 = 0.999;

/// What came of it, for an exit code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Loads that were measured alike on both sides.
    pub compared: u32,
    /// Those that were not, or have nothing to be compared with.
    pub refused: u32,
    /// Pairs whose vectors differ by more than rounding.
    pub different_vectors: u32,
}

/// Compares each label of one record with its first label, or each label of further records with that of the first record.
pub fn compare(records: &[(String, Record)], out: &mut dyn Write) -> io::Result<Outcome> {
    let groups = runs::groups(records.iter().map(|(_, record)| record));
    let mut outcome = Outcome::default();
    let pairs = pairs(&groups, records.len());
    if pairs.is_empty() {
        writeln!(out, "Nothing to compare: give two records, or one that holds two labels.")?;
    }
    for (index, pair) in pairs.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        let (first, other) = match *pair {
            Pair::Both(first, other) => (first, other),
            Pair::Alone(group) => {
                outcome.refused += 1;
                writeln!(out, "not compared: {} has no counterpart of its label", name(group, records))?;
                continue;
            }
        };
        writeln!(out, "{} against {}", name(other, records), name(first, records))?;
        compare_points(first, other, &mut outcome, out)?;
        if compare_samples(first, other, out)? {
            outcome.different_vectors += 1;
        }
    }
    Ok(outcome)
}

enum Pair<'g> {
    Both(&'g Group<'g>, &'g Group<'g>),
    Alone(&'g Group<'g>),
}

fn pairs<'g>(groups: &'g [Group<'g>], files: usize) -> Vec<Pair<'g>> {
    let of_file = |file: usize| groups.iter().filter(move |group| group.file == file);
    if files < 2 {
        let Some(first) = groups.first() else { return Vec::new() };
        return groups[1..].iter().map(|other| Pair::Both(first, other)).collect();
    }
    let mut pairs = Vec::new();
    let mut met = vec![false; groups.len()];
    for file in 1..files {
        let lone = of_file(0).count() == 1 && of_file(file).count() == 1;
        for (nth, other) in of_file(file).enumerate() {
            // Two targets under one label are told apart by their order.
            let before = of_file(file).take(nth).filter(|group| group.label == other.label).count();
            let namesake = of_file(0).filter(|first| first.label == other.label).nth(before);
            match namesake.or(if lone { of_file(0).next() } else { None }) {
                Some(first) => {
                    let index = groups.iter().position(|group| std::ptr::eq(group, first));
                    met[index.unwrap_or(0)] = true;
                    pairs.push(Pair::Both(first, other));
                }
                None => pairs.push(Pair::Alone(other)),
            }
        }
    }
    pairs.extend(of_file(0).zip(met).filter(|(_, met)| !met).map(|(group, _)| Pair::Alone(group)));
    pairs
}

fn name(group: &Group, records: &[(String, Record)]) -> String {
    let label = words::plain(group.label);
    if records.len() > 1 { format!("{label} [{}]", words::plain(&records[group.file].0)) } else { label }
}

fn compare_points(first: &Group, other: &Group, outcome: &mut Outcome, out: &mut dyn Write) -> io::Result<()> {
    let mut met = vec![false; first.points.len()];
    for point in &other.points {
        let same = |base: &Point| runs::differences(base.first(), point.first()).is_empty();
        match first.points.iter().position(same) {
            Some(index) => {
                met[index] = true;
                outcome.compared += 1;
                compare_rounds(&first.points[index], point, out)?;
            }
            None => {
                outcome.refused += 1;
                // Of a sweep's loads, the one most like it says best what is not alike.
                let likest = first.points.iter().map(|base| runs::differences(base.first(), point.first()));
                let differing = likest.min_by_key(Vec::len).unwrap_or_default();
                let load = words::load(&point.first().load);
                writeln!(out, "  not comparable: {load}: differs in {}", differing.join(", "))?;
            }
        }
    }
    if other.points.len() > 1 || met.iter().any(|met| *met) {
        for (base, _) in first.points.iter().zip(met).filter(|(_, met)| !met) {
            outcome.refused += 1;
            let load = words::load(&base.first().load);
            writeln!(out, "  not compared: {load}: only the first has it")?;
        }
    }
    Ok(())
}

/// A figure that is compared: its name, how it is written, and where it is in a run.
type Figure = (&'static str, fn(f64) -> String, fn(&Run) -> Option<f64>);

const FIGURES: [Figure; 4] = [
    ("requests/s", words::number, |run| Some(run.rates.requests)),
    ("texts/s", words::number, |run| Some(run.rates.texts)),
    ("p50", words::time, |run| run.latency.as_ref().map(|latency| latency.corrected.p50)),
    ("p99", words::time, |run| run.latency.as_ref().map(|latency| latency.corrected.p99)),
];

fn compare_rounds(first: &Point, other: &Point, out: &mut dyn Write) -> io::Result<()> {
    let rounds = first.rounds.len().min(other.rounds.len());
    let run = first.first();
    let texts = words::plain(&run.workload.per_request);
    let load = words::load(&run.load);
    writeln!(out, "  {load}; texts per request: {texts}; {}", words::plural(rounds as u64, "round"))?;
    if first.rounds.len() != other.rounds.len() {
        let (of_first, of_other) = (first.rounds.len(), other.rounds.len());
        writeln!(
            out,
            "  of {of_first} rounds of the first and {of_other} of the other, the first {rounds} are compared"
        )?;
    }
    let mut rows = vec![["", "first", "other", "ratio", "range"].map(str::to_owned).to_vec()];
    for (figure, write, of) in FIGURES {
        rows.push(row(figure, write, &pick(first, rounds, of), &pick(other, rounds, of)));
    }
    let mut text = Vec::new();
    table::grid(&rows, 1, &mut text)?;
    for line in String::from_utf8_lossy(&text).lines() {
        writeln!(out, "    {line}")?;
    }
    if rounds == 1 {
        writeln!(out, "    one round each: these ratios have no spread, so a small one may be chance")?;
    }
    let bad = |point: &Point| point.rounds.iter().fold(0u64, |sum, run| sum.saturating_add(run.counts.bad()));
    if bad(first) > 0 || bad(other) > 0 {
        let (first, other) = (words::count(bad(first)), words::count(bad(other)));
        writeln!(
            out,
            "    errors: {first} in the first, {other} in the other; the figures are of correct answers only"
        )?;
    }
    write_digests(first, other, rounds, out)
}

fn pick(point: &Point, rounds: usize, of: fn(&Run) -> Option<f64>) -> Vec<Option<f64>> {
    point.rounds.iter().take(rounds).map(|run| of(run)).collect()
}

fn row(figure: &str, write: fn(f64) -> String, first: &[Option<f64>], other: &[Option<f64>]) -> Vec<String> {
    let ratios: Vec<f64> = first.iter().zip(other).filter_map(|(first, other)| ratio((*first)?, (*other)?)).collect();
    let figure_of = |side: &[Option<f64>]| {
        let values: Vec<f64> = side.iter().copied().flatten().collect();
        median(&values).map_or(words::NOTHING.to_owned(), write)
    };
    let (ratio, range) = match (median(&ratios), ratios.len()) {
        (Some(ratio), 1) => (times(ratio), words::NOTHING.to_owned()),
        (Some(ratio), _) => {
            let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
            let most = ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            (times(ratio), format!("{least:.3} to {most:.3}"))
        }
        (None, _) => (words::NOTHING.to_owned(), words::NOTHING.to_owned()),
    };
    vec![figure.to_owned(), figure_of(first), figure_of(other), ratio, range]
}

fn times(ratio: f64) -> String {
    format!("{ratio:.3} ×")
}

fn ratio(first: f64, other: f64) -> Option<f64> {
    let ratio = other / first;
    (ratio.is_finite() && first > 0.0).then_some(ratio)
}

/// Of an even number of values, the mean of the two in the middle.
fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    Some((sorted[sorted.len() / 2 - 1] + upper) / 2.0)
}

fn write_digests(first: &Point, other: &Point, rounds: usize, out: &mut dyn Write) -> io::Result<()> {
    let pairs = first.rounds.iter().zip(&other.rounds).take(rounds);
    let both: Vec<bool> =
        pairs.filter_map(|(first, other)| Some(first.digest.as_ref()? == other.digest.as_ref()?)).collect();
    let equal = both.iter().filter(|equal| **equal).count();
    match (both.len(), equal) {
        (0, _) => Ok(()),
        (all, equal) if all == equal => writeln!(out, "    digests: equal, the vectors are the same bit by bit"),
        (all, equal) => writeln!(out, "    digests: {} of {all} differ", all - equal),
    }
}

/// Writes how near the kept vectors are; whether they differ by more than rounding.
fn compare_samples(first: &Group, other: &Group, out: &mut dyn Write) -> io::Result<bool> {
    let (first, other) = (samples(first), samples(other));
    if first.is_empty() || other.is_empty() {
        writeln!(out, "  vectors: not compared, as both must be run with --keep-samples")?;
        return Ok(false);
    }
    let by_text: HashMap<&str, &[f32]> =
        first.iter().map(|sample| (sample.text.as_str(), &sample.values[..])).collect();
    let mut nearness = Nearness::default();
    for sample in other {
        let Some(values) = by_text.get(sample.text.as_str()) else { continue };
        if let Err(fault) = nearness.add(values, &sample.values) {
            writeln!(out, "  !! VECTORS DIFFER: {fault}: text {:?}", shortened(&sample.text))?;
            return Ok(true);
        }
    }
    if nearness.count == 0 {
        writeln!(out, "  vectors: both kept some, but of no text in common")?;
        return Ok(false);
    }
    let Nearness { count, cosine, difference } = nearness;
    let count = words::plural(count, "text");
    writeln!(out, "  vectors of {count}: smallest cosine {cosine:.7}, largest absolute difference {difference:.3e}")?;
    if cosine < COSINE_MIN {
        writeln!(
            out,
            "  !! VECTORS DIFFER: the smallest cosine {cosine:.7} is under {COSINE_MIN}; not the same model or task"
        )?;
    }
    Ok(cosine < COSINE_MIN)
}

/// Of the first run that kept any.
fn samples<'a>(group: &Group<'a>) -> &'a [Sample] {
    let runs = group.points.iter().flat_map(|point| &point.rounds);
    runs.map(|run| &run.samples[..]).find(|samples| !samples.is_empty()).unwrap_or(&[])
}

fn shortened(text: &str) -> String {
    text.chars().take(60).collect()
}

struct Nearness {
    count: u64,
    cosine: f64,
    difference: f64,
}

impl Default for Nearness {
    fn default() -> Self {
        Nearness { count: 0, cosine: 1.0, difference: 0.0 }
    }
}

impl Nearness {
    /// Fails where a cosine makes no sense.
    fn add(&mut self, first: &[f32], other: &[f32]) -> Result<(), String> {
        if first.len() != other.len() {
            return Err(format!("{} values in the first, {} in the other", first.len(), other.len()));
        }
        if first.iter().chain(other).any(|value| !value.is_finite()) {
            return Err("a value is not a number".to_owned());
        }
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let lengths = (dot(first, first) * dot(other, other)).sqrt();
        // A vector of zeros has no direction: near to another such, far from all else.
        let cosine = match lengths > 0.0 {
            true => dot(first, other) / lengths,
            false if first == other => 1.0,
            false => 0.0,
        };
        let differences = first.iter().zip(other).map(|(a, b)| (f64::from(*a) - f64::from(*b)).abs());
        self.count += 1;
        self.cosine = self.cosine.min(cosine);
        self.difference = differences.fold(self.difference, f64::max);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn ratios_of_nothing_are_none() {
        assert_eq!(ratio(2.0, 3.0), Some(1.5));
        assert_eq!(ratio(0.0, 3.0), None);
        assert_eq!(ratio(f64::NAN, 3.0), None);
    }

    #[test]
    fn nearness_is_the_cosine_and_the_largest_difference() {
        let mut nearness = Nearness::default();
        nearness.add(&[1.0, 0.0], &[2.0, 0.0]).unwrap();
        assert_eq!((nearness.cosine, nearness.difference), (1.0, 1.0));
        nearness.add(&[3.0, 4.0], &[4.0, 3.0]).unwrap();
        assert!((nearness.cosine - 0.96).abs() < 1e-12);
        nearness.add(&[0.0, 0.0], &[0.0, 0.0]).unwrap();
        assert!((nearness.cosine - 0.96).abs() < 1e-12);
        nearness.add(&[0.0, 0.0], &[0.0, 0.5]).unwrap();
        assert_eq!((nearness.cosine, nearness.count), (0.0, 4));
        assert!(nearness.add(&[1.0], &[1.0, 2.0]).unwrap_err().contains("1 values in the first, 2"));
        assert!(nearness.add(&[f32::NAN], &[1.0]).is_err());
    }
}
