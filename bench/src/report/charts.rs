//! Which plots a report has, and what is drawn in them.
//!
//! Owns the choice: what shares a plot, in which colour, over which axes. An open loop and a closed one never share a plot,
//! since the times of the second are not a client's latency. Draws nothing itself. Invariant: of several rounds the typical
//! one is drawn strongly and the others faintly; nothing is averaged.

use super::Report;
use crate::plot::{self, Axis, Bars, Chart, Colour, Key, Line, Part, Place, Row, Stroke, Symbol};
use crate::record::{Latency, Load, Run, Summary};
use crate::runs::{self, Group, Point};
use crate::words::{self, TimeUnit};

/// More lines than these in one plot are told apart by nobody.
const LINES_MAX: usize = 8;
const BARS_MAX: usize = 24;
/// With more lines than these their figures would crowd the plot.
const MARKED_MAX: usize = 3;
const SHARES_FROM: f64 = 8.0;
const OUTSIDE: &str = "outside the server’s stages";
/// From this ratio of the largest to the smallest on, the small ones would lie upon a linear axis.
const LOGARITHMIC_FROM: f64 = 30.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loop {
    Open,
    Closed,
}

impl Loop {
    fn of(run: &Run) -> Loop {
        match run.load {
            Load::Open { .. } => Loop::Open,
            Load::Closed { .. } => Loop::Closed,
        }
    }

    fn time(self) -> &'static str {
        match self {
            Loop::Open => "latency",
            Loop::Closed => "time per request at saturation",
        }
    }
}

/// A plot with its legend and, where several stand beside one another, its heading.
pub(super) struct Figure {
    pub heading: String,
    pub keys: Vec<Key>,
    pub chart: Chart,
}

impl Figure {
    /// Whether its lines have their load written at their ends.
    pub(super) fn names_loads(&self) -> bool {
        self.chart.lines.iter().any(|line| !line.marks && line.points.iter().any(|place| !place.note.is_empty()))
    }
}

/// A group of a sweep over texts per request: `(task, whether all texts go in one request)`.
pub(super) fn size_sweep<'a>(group: &Group<'a>) -> Option<(&'a str, bool)> {
    let numbered = group.points.iter().all(|point| per_request(point.first()).is_some());
    let serial = group.label.strip_suffix(" serial").map(|task| (task, false));
    serial.or(group.label.strip_suffix(" batch").map(|task| (task, true))).filter(|_| numbered)
}

fn per_request(run: &Run) -> Option<f64> {
    run.workload.per_request.trim().parse::<u32>().ok().filter(|texts| *texts > 0).map(f64::from)
}

/// One point that is drawn: its name in legends and its typical round.
struct Drawn<'r> {
    name: String,
    /// What tells it from the others of its group.
    level: String,
    point: &'r Point<'r>,
    run: &'r Run,
}

/// The points of each group that have a latency of this kind of loop; groups without any are left out.
fn drawn<'r>(report: &'r Report, which: Loop, sizes: bool) -> Vec<(&'r Group<'r>, Vec<Drawn<'r>>)> {
    let mut found = Vec::new();
    for group in report.groups.iter().filter(|group| size_sweep(group).is_some() == sizes) {
        let points = group.points.iter().filter(|point| {
            let run = point.typical();
            Loop::of(run) == which && run.latency.is_some()
        });
        let drawn = |point| {
            let (name, level) = (report.point_name(group, point), report.level_name(group, point));
            Drawn { name, level, point, run: point.typical() }
        };
        let points: Vec<Drawn> = points.map(drawn).collect();
        if !points.is_empty() {
            found.push((group, points));
        }
    }
    found
}

/// Latency by percentile: one plot where few lines are to be drawn, else one for each label, all over the same axes.
pub(super) fn percentiles(report: &Report, which: Loop, sizes: bool) -> Vec<Figure> {
    let groups = drawn(report, which, sizes);
    let lines: usize = groups.iter().map(|(_, points)| points.len()).sum();
    let Some(axes) = Axes::over(groups.iter().flat_map(|(_, points)| points), which) else { return Vec::new() };
    if lines <= LINES_MAX {
        let levels = groups.len() == 1 && lines > 2;
        let points: Vec<&Drawn> = groups.iter().flat_map(|(_, points)| points).collect();
        return vec![axes.figure(String::new(), &points, levels)];
    }
    let figure = |(group, points): &(&Group, Vec<Drawn>)| {
        let mut heading = report.group_name(group);
        // Evenly over the sweep, its ends among them.
        let count = points.len().min(LINES_MAX);
        let chosen = (0..count).map(|index| &points[index * (points.len() - 1) / (count - 1).max(1)]);
        if points.len() > count {
            heading = format!("{heading} ({count} of {} loads; the table has all)", points.len());
        }
        axes.figure(heading, &chosen.collect::<Vec<_>>(), true)
    };
    groups.iter().map(figure).collect()
}

/// What plots beside one another share.
struct Axes {
    x: Axis,
    y: Axis,
    unit: TimeUnit,
}

impl Axes {
    fn over<'r>(points: impl Iterator<Item = &'r Drawn<'r>>, which: Loop) -> Option<Axes> {
        let (mut times, mut far) = (Range::default(), 0.0_f64);
        for latency in points.flat_map(|drawn| &drawn.point.rounds).filter_map(|run| run.latency.as_ref()) {
            let uncorrected = runs::correction_matters(latency).then_some(&latency.uncorrected);
            for summary in [Some(&latency.corrected), uncorrected].into_iter().flatten() {
                for &(quantile, time_us) in &summary.quantiles {
                    times.add(time_us);
                    far = far.max(tail(quantile, summary.count));
                }
            }
        }
        if times.largest == 0.0 {
            return None;
        }
        let (y, unit) = time_axis(which.time(), times);
        Some(Axes { x: Axis::percentiles("percentile of requests", far), y, unit })
    }

    fn figure(&self, heading: String, points: &[&Drawn], levels: bool) -> Figure {
        let (mut keys, mut lines) = (Vec::new(), Vec::new());
        let mut dashed = false;
        for (index, drawn) in points.iter().enumerate() {
            let colour = if levels { level(index, points.len()) } else { Colour::Of(index) };
            for round in drawn.point.rounds.iter().filter(|round| !std::ptr::eq(**round, drawn.run)) {
                if let Some(latency) = &round.latency {
                    lines.push(self.line(&latency.corrected, "", colour, Stroke::Faint));
                }
            }
            let Some(latency) = &drawn.run.latency else { continue };
            if runs::correction_matters(latency) {
                dashed = true;
                let name = format!("{}, uncorrected", drawn.name);
                lines.push(self.line(&latency.uncorrected, &name, colour, Stroke::Dashed));
            }
            let mut line = self.line(&latency.corrected, &drawn.name, colour, Stroke::Solid);
            if let Some(end) = line.points.last_mut().filter(|_| levels) {
                end.note = words::exact(load_size(drawn.run));
            }
            lines.push(line);
            if points.len() <= MARKED_MAX {
                lines.push(self.named(&latency.corrected, colour));
            }
            let rounds = match drawn.point.rounds.len() {
                1 => String::new(),
                rounds => format!(" ({rounds} rounds)"),
            };
            // Under its group's heading a line needs no more than its level.
            let name = if heading.is_empty() || drawn.level.is_empty() { &drawn.name } else { &drawn.level };
            keys.push(Key { colour, symbol: Symbol::Solid, name: format!("{name}{rounds}") });
        }
        if dashed {
            let name = "uncorrected: from when the request left".to_owned();
            keys.push(Key { colour: Colour::Rest, symbol: Symbol::Dashed, name });
        }
        let title = format!("{} by percentile", self.y.title);
        Figure { heading, keys, chart: Chart { title, x: self.x.clone(), y: self.y.clone(), lines } }
    }

    /// The figures that people name, written into the plot, where few lines leave room.
    fn named(&self, summary: &Summary, colour: Colour) -> Line {
        let figures =
            [(0.5, summary.p50), (0.9, summary.p90), (0.99, summary.p99), (0.999, summary.p999), (1.0, summary.max)];
        let figures = figures
            .into_iter()
            .filter(|(quantile, _)| *quantile == 1.0 || tail(*quantile, summary.count) < summary.count as f64);
        let place = |(quantile, time_us): (f64, f64)| Place {
            x: tail(quantile, summary.count),
            y: time_us / self.unit.us,
            readout: String::new(),
            note: words::time(time_us),
        };
        Line { colour, stroke: Stroke::Absent, marks: true, points: figures.map(place).collect() }
    }

    /// Without a name nothing is shown under the pointer.
    fn line(&self, summary: &Summary, name: &str, colour: Colour, stroke: Stroke) -> Line {
        let place = |&(quantile, time_us): &(f64, f64)| Place {
            x: tail(quantile, summary.count),
            y: time_us / self.unit.us,
            readout: match name {
                "" => String::new(),
                name => format!("{name}\n{}: {}", percent(quantile), words::time(time_us)),
            },
            note: String::new(),
        };
        Line { colour, stroke, marks: false, points: summary.quantiles.iter().map(place).collect() }
    }
}

/// How many requests there are to one that is slower; no more than there were.
fn tail(quantile: f64, count: u64) -> f64 {
    let most = count.max(1) as f64;
    match quantile.clamp(0.0, 1.0) {
        // `min` would make a number of it.
        none if none.is_nan() => none,
        quantile => (1.0 / (1.0 - quantile)).min(most),
    }
}

fn percent(quantile: f64) -> String {
    let text = format!("{:.5}", quantile * 100.0);
    format!("{} %", text.trim_end_matches('0').trim_end_matches('.'))
}

fn level(index: usize, count: usize) -> Colour {
    Colour::Level(index * 7 / (count - 1).max(1))
}

/// Of values above zero; both ends are 0 where there were none.
#[derive(Clone, Copy, Debug, Default)]
struct Range {
    smallest: f64,
    largest: f64,
}

impl Range {
    fn add(&mut self, value: f64) {
        if value.is_finite() && value > 0.0 {
            self.smallest = if self.smallest == 0.0 { value } else { self.smallest.min(value) };
            self.largest = self.largest.max(value);
        }
    }

    fn wide(self) -> bool {
        self.largest > LOGARITHMIC_FROM * self.smallest
    }

    fn axis(self, title: &str) -> Axis {
        match self.wide() {
            true => Axis::logarithmic(&format!("{title}, logarithmic"), self.smallest, self.largest),
            false => Axis::linear(title, self.largest),
        }
    }
}

/// An axis in the unit that fits the times, and that unit.
fn time_axis(what: &str, times_us: Range) -> (Axis, TimeUnit) {
    let unit = match times_us.wide() {
        true => plot::unit_over(times_us.smallest, times_us.largest),
        false => words::unit_of(times_us.largest),
    };
    let scaled = Range { smallest: times_us.smallest / unit.us, largest: times_us.largest / unit.us };
    (scaled.axis(&format!("{what}, {}", unit.name)), unit)
}

/// Throughput against p50 and p99, for the labels that ran under several loads.
pub(super) fn throughput(report: &Report, which: Loop) -> Option<Figure> {
    let mut groups = drawn(report, which, false);
    groups.retain(|(_, points)| points.len() > 1);
    let first = &groups.first()?.1.first()?.run.workload.per_request;
    let all = || groups.iter().flat_map(|(_, points)| points).map(|drawn| drawn.run);
    let single = first == "1" && all().all(|run| run.workload.per_request == *first);
    let rate = |run: &Run| if single { run.rates.requests } else { run.rates.texts };
    let what = if single { "requests" } else { "texts" };
    let (mut rates, mut times) = (Range::default(), Range::default());
    for run in all() {
        rates.add(rate(run));
        if let Some(latency) = &run.latency {
            times.add(latency.corrected.p50);
            times.add(latency.corrected.p99);
        }
    }
    let (y, unit) = time_axis(which.time(), times);
    let (mut keys, mut lines) = (Vec::new(), Vec::new());
    for (index, (group, points)) in groups.iter().enumerate() {
        let colour = Colour::Of(index);
        let mut points: Vec<&Drawn> = points.iter().collect();
        points.sort_by(|a, b| load_size(a.run).total_cmp(&load_size(b.run)));
        for (figure, stroke) in [("p50", Stroke::Solid), ("p99", Stroke::Dashed)] {
            let place = |drawn: &&Drawn| {
                let corrected = &drawn.run.latency.as_ref()?.corrected;
                let time_us = if stroke == Stroke::Dashed { corrected.p99 } else { corrected.p50 };
                let (rate, time) = (rate(drawn.run), words::time(time_us));
                let readout = format!("{}\n{} {what}/s, {figure} {time}", drawn.name, words::number(rate));
                let note = if stroke == Stroke::Dashed { words::exact(load_size(drawn.run)) } else { String::new() };
                Some(Place { x: rate, y: time_us / unit.us, readout, note })
            };
            lines.push(Line { colour, stroke, marks: true, points: points.iter().filter_map(place).collect() });
        }
        keys.push(Key { colour, symbol: Symbol::Solid, name: format!("{} p50", report.group_name(group)) });
        keys.push(Key { colour, symbol: Symbol::Dashed, name: format!("{} p99", report.group_name(group)) });
    }
    let x = rates.axis(&format!("correct answers, {what} per second"));
    Some(Figure {
        heading: String::new(),
        keys,
        chart: Chart { title: format!("{} against throughput", which.time()), x, y, lines },
    })
}

fn load_size(run: &Run) -> f64 {
    match run.load {
        Load::Open { rate, .. } => rate,
        Load::Closed { concurrency } => f64::from(concurrency),
    }
}

/// One text a request, one after another, against all in one request: time per text and texts per second.
pub(super) fn sizes(report: &Report) -> Vec<Figure> {
    let sweeps: Vec<(&Group, &str, bool)> =
        report.groups.iter().filter_map(|group| size_sweep(group).map(|(task, batch)| (group, task, batch))).collect();
    let mut tasks: Vec<&str> = Vec::new();
    for (_, task, _) in &sweeps {
        if !tasks.contains(task) {
            tasks.push(task);
        }
    }
    let (mut texts, mut times, mut rates) = (Range::default(), Range::default(), Range::default());
    for run in sweeps.iter().flat_map(|(group, ..)| &group.points).map(|point| point.typical()) {
        if run.rates.texts > 0.0 {
            texts.add(per_request(run).unwrap_or(0.0));
            times.add(1e6 / run.rates.texts);
            rates.add(run.rates.texts);
        }
    }
    if texts.largest == 0.0 {
        return Vec::new();
    }
    let (time_axis, unit) = time_axis("time per text", times);
    let line = |group: &Group, task: &str, batch: bool, value: &dyn Fn(f64) -> f64| {
        let mut points: Vec<Place> = Vec::new();
        for run in group.points.iter().map(|point| point.typical()).filter(|run| run.rates.texts > 0.0) {
            let (texts, rate) = (per_request(run).unwrap_or(f64::NAN), run.rates.texts);
            let (time, written) = (words::time(1e6 / rate), words::number(rate));
            let readout = format!("{}\n{texts} texts: {time} per text, {written} texts/s", group.label);
            points.push(Place { x: texts, y: value(rate), readout, note: String::new() });
        }
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        let colour = Colour::Of(tasks.iter().position(|known| *known == task).unwrap_or(0));
        Line { colour, stroke: if batch { Stroke::Solid } else { Stroke::Dashed }, marks: true, points }
    };
    let lines = |value: &dyn Fn(f64) -> f64| -> Vec<Line> {
        sweeps.iter().map(|(group, task, batch)| line(group, task, *batch, value)).collect()
    };
    let keys: Vec<Key> = sweeps
        .iter()
        .zip(lines(&|rate| rate))
        .map(|((group, _, batch), line)| Key {
            colour: line.colour,
            symbol: if *batch { Symbol::Solid } else { Symbol::Dashed },
            name: report.group_name(group),
        })
        .collect();
    let x = Axis::powers_of_two("texts per request", texts.smallest, texts.largest);
    let figure = |heading: &str, y: Axis, lines: Vec<Line>| Figure {
        heading: heading.to_owned(),
        keys: keys.clone(),
        chart: Chart { title: format!("{heading} by texts per request"), x: x.clone(), y, lines },
    };
    vec![
        figure("Time per text", time_axis, lines(&|rate| 1e6 / rate / unit.us)),
        figure("Throughput", rates.axis("texts per second"), lines(&|rate| rate)),
    ]
}

/// Where the time of a request went, by the server's own account; how many runs are not drawn.
pub(super) fn stages(report: &Report) -> Option<(Vec<Key>, Bars, usize)> {
    let mut names: Vec<&str> = Vec::new();
    let mut rows = Vec::new();
    let mut whole_times = Range::default();
    for (group, point) in report.groups.iter().flat_map(|group| group.points.iter().map(move |point| (group, point))) {
        let run = point.typical();
        if run.stages.is_empty() {
            continue;
        }
        let inside: f64 = run.stages.iter().map(|stage| stage.mean.max(0.0)).sum();
        // Stages are those of one request, also where a latency is that of several.
        let each = |latency: &Latency| (latency.uncorrected.mean / runs::requests_in_one(run)).max(inside);
        let whole = run.latency.as_ref().map_or(inside, each);
        whole_times.add(whole);
        rows.push((report.point_name(group, point), run, inside, whole));
        for stage in &run.stages {
            if !names.contains(&stage.name.as_str()) {
                names.push(&stage.name);
            }
        }
    }
    let left_out = rows.len().saturating_sub(BARS_MAX);
    // Where a sweep's longest would leave the others no room, each bar shows shares.
    let shares = whole_times.largest > SHARES_FROM * whole_times.smallest;
    let unit = words::unit_of(whole_times.largest);
    let bars: Vec<Row> = rows
        .iter()
        .take(BARS_MAX)
        .map(|(name, run, inside, whole)| {
            let part = |colour: Colour, name: &str, time_us: f64, detail: String| Part {
                colour,
                value: if shares { 100.0 * time_us / whole } else { time_us / unit.us },
                readout: format!("{name}: mean {} ({}){detail}", words::time(time_us), words::share(time_us / whole)),
            };
            let stages = run.stages.iter().map(|stage| {
                let index = names.iter().position(|name| *name == stage.name).unwrap_or(0);
                let detail = format!("\np50 {}, p99 {}", words::time(stage.p50), words::time(stage.p99));
                part(Colour::Of(index), &stage.name, stage.mean, detail)
            });
            let rest = part(Colour::Rest, OUTSIDE, whole - inside, String::new());
            let parts = stages.chain([rest]).collect();
            Row { name: name.clone(), total: words::time(*whole), parts }
        })
        .collect();
    if bars.is_empty() {
        return None;
    }
    let bar = |colour: Colour, name: &str| Key { colour, symbol: Symbol::Bar, name: name.to_owned() };
    let mut keys: Vec<Key> = names.iter().enumerate().map(|(index, name)| bar(Colour::Of(index), name)).collect();
    keys.push(bar(Colour::Rest, OUTSIDE));
    let x = match shares {
        true => Axis::linear("share of the mean time, %", 100.0),
        false => Axis::linear(&format!("mean time, {}", unit.name), whole_times.largest / unit.us),
    };
    Some((keys, Bars { title: "Mean time by stage".to_owned(), x, rows: bars }, left_out))
}
