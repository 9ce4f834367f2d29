//! Records read from files, and records shown as a page.
//!
//! Owns the page: what it says, in which order, and that it stands alone (styles, script and plots lie in it; it asks no
//! network for anything). Invariant: whatever comes from a record passes through `escape` exactly once.

mod charts;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use serde::Deserialize;

use self::charts::{Figure, Loop};
use crate::plot::{self, NARROW, WIDE};
use crate::record::{FORMAT, Load, Machine, Record, Run};
use crate::runs::{self, Group, Point};
use crate::table::Columns;
use crate::words::{self, NOTHING, escape};

/// No record is larger: a million samples would not be.
const FILE_BYTES_MAX: u64 = 1 << 30;
/// More doubts than these are summed up in a number.
const DOUBTS_MAX: usize = 12;
/// A table with more rows than these stands behind the plots, or closed.
const ROWS_MAX: usize = 20;

/// Reads a record; the error names the file and, where there is one, the line.
pub fn read(path: &Path) -> Result<Record, String> {
    let name = path.display();
    let size = fs::metadata(path).map_err(|error| format!("{name}: cannot be read: {error}"))?.len();
    if size > FILE_BYTES_MAX {
        return Err(format!("{name}: {} is more than a record has; is it one?", words::bytes(size)));
    }
    let text = fs::read(path).map_err(|error| format!("{name}: cannot be read: {error}"))?;
    parse(&text).map_err(|error| format!("{name}: {error}"))
}

fn parse(text: &[u8]) -> Result<Record, String> {
    if text.trim_ascii_start().first().is_some_and(|first| b"[\"-0123456789tfn".contains(first)) {
        return Err("not a record of reactrt-bench, which begins with `{`".to_owned());
    }
    // Its format comes first: what a later one holds may not be understood at all.
    #[derive(Deserialize)]
    struct Head {
        format: Option<u64>,
    }
    let head: Head = serde_json::from_slice(text).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => format!("not a record of reactrt-bench: {error}"),
        serde_json::error::Category::Syntax | serde_json::error::Category::Eof | serde_json::error::Category::Io => {
            format!("not JSON: {error}")
        }
    })?;
    match head.format {
        Some(format) if format == u64::from(FORMAT) => {}
        Some(format) => {
            return Err(format!("format {format}, this program reads format {FORMAT}: use the one that wrote it"));
        }
        None => return Err("not a record of reactrt-bench: it has no `format`".to_owned()),
    }
    serde_json::from_slice(text).map_err(|error| {
        let text = error.to_string();
        match text.strip_prefix("unknown field") {
            Some(rest) => format!("unknown key{rest}"),
            None => text,
        }
    })
}

/// The records, put in order for showing.
struct Report<'a> {
    files: Vec<&'a str>,
    groups: Vec<Group<'a>>,
}

impl Report<'_> {
    fn group_name(&self, group: &Group) -> String {
        match self.files.len() {
            1 => group.label.to_owned(),
            _ => format!("{} [{}]", group.label, self.files[group.file]),
        }
    }

    /// What tells the point from the others of its group; empty where it is alone.
    fn level_name(&self, group: &Group, point: &Point) -> String {
        let mut parts = Vec::new();
        let run = point.first();
        if group.points.iter().any(|other| other.first().load != run.load) {
            parts.push(words::load_level(&run.load));
        }
        if group.points.iter().any(|other| other.first().workload.per_request != run.workload.per_request) {
            let plural = if run.workload.per_request == "1" { "" } else { "s" };
            parts.push(format!("{} text{plural} per request", run.workload.per_request));
        }
        parts.join(", ")
    }

    fn point_name(&self, group: &Group, point: &Point) -> String {
        let level = self.level_name(group, point);
        let separator = if level.is_empty() { "" } else { ", " };
        format!("{}{separator}{level}", self.group_name(group))
    }

    /// Each run with its label and, among several rounds, its number; runs of one label stand together.
    fn runs(&self) -> impl Iterator<Item = (String, String, &Run)> {
        self.groups.iter().flat_map(move |group| {
            group.points.iter().flat_map(move |point| {
                let rounds = point.rounds.len();
                point.rounds.iter().enumerate().map(move |(index, run)| {
                    let round = if rounds > 1 { format!("round {} of {rounds}", index + 1) } else { String::new() };
                    (self.group_name(group), round, *run)
                })
            })
        })
    }
}

/// A page that stands alone; `records` are file names and what was in them.
pub fn html(records: &[(String, Record)]) -> String {
    let report = Report {
        files: records.iter().map(|(file, _)| file.as_str()).collect(),
        groups: runs::groups(records.iter().map(|(_, record)| record)),
    };
    let title = title(&report);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{}</title>\n\
         <style>\n{}</style>\n</head>\n<body>\n<main>\n",
        escape(&title),
        include_str!("report/page.css")
    );
    header(&mut page, &title, &report, records);
    if report.groups.is_empty() {
        page.push_str("<p>There is no run in it.</p>\n");
    } else {
        notes(&mut page, &report, records);
        // A long table would hide the plots.
        let rows = report.runs().count();
        if rows <= ROWS_MAX {
            summary(&mut page, &report);
        }
        percentiles(&mut page, &report);
        throughput(&mut page, &report);
        sizes(&mut page, &report);
        stages(&mut page, &report);
        if rows > ROWS_MAX {
            summary(&mut page, &report);
        }
        counts(&mut page, &report);
        workloads(&mut page, &report);
        histograms(&mut page, &report);
    }
    let _ = write!(
        page,
        "<footer>Times are corrected: they count from the moment at which the schedule wanted the request sent. \
         Made by reactrt-bench {}.</footer>\n</main>\n<script>\n{}</script>\n</body>\n</html>\n",
        env!("CARGO_PKG_VERSION"),
        include_str!("report/hover.js")
    );
    page
}

/// Of the models, if there are few.
fn title(report: &Report) -> String {
    let runs = report.groups.iter().map(|group| group.points[0].first());
    let models: BTreeSet<&str> = runs.map(|run| run.target.model.as_str()).filter(|model| !model.is_empty()).collect();
    match models.len() {
        0 => "Load test".to_owned(),
        1..=3 => format!("Load test of {}", models.into_iter().collect::<Vec<_>>().join(", ")),
        many => format!("Load test of {many} models"),
    }
}

fn header(page: &mut String, title: &str, report: &Report, records: &[(String, Record)]) {
    let mut labels: Vec<&str> = Vec::new();
    for group in &report.groups {
        if !labels.contains(&group.label) {
            labels.push(group.label);
        }
    }
    let labels = if labels.len() > 8 { words::plural(labels.len() as u64, "label") } else { labels.join(" · ") };
    let _ = write!(page, "<header>\n<h1>{}</h1>\n<p class=\"lead\">{}</p>\n", escape(title), escape(&labels));
    page.push_str("<div class=\"cards\">\n");
    for (file, record) in records {
        let _ = write!(page, "<section class=\"card\">\n<h3>{}</h3>\n<dl>\n", escape(file));
        let machine = &record.machine;
        let commit = if machine.commit.is_empty() { NOTHING } else { &machine.commit };
        let rows = [
            ("Began", escape(&record.began)),
            ("Machine", escape(&machine_in_words(machine))),
            ("GPU", escape(&gpus_in_words(machine))),
            ("Kernel", escape(&machine.kernel)),
            ("Generator", escape(&machine.version)),
            ("Commit", format!("<code>{}</code>", escape(commit))),
            ("Command", format!("<code>{}</code>", escape(&record.command))),
        ];
        for (name, value) in rows.iter().filter(|(_, value)| !value.is_empty()) {
            let _ = writeln!(page, "<dt>{name}</dt><dd>{value}</dd>");
        }
        page.push_str("</dl>\n</section>\n");
    }
    page.push_str("</div>\n</header>\n");
}

fn machine_in_words(machine: &Machine) -> String {
    let mut parts = Vec::new();
    if !machine.cpu.is_empty() {
        parts.push(machine.cpu.clone());
    }
    if machine.cores > 0 {
        parts.push(words::plural(u64::from(machine.cores), "core"));
    }
    if machine.memory_bytes > 0 {
        parts.push(words::bytes(machine.memory_bytes));
    }
    parts.join(", ")
}

fn gpus_in_words(machine: &Machine) -> String {
    match (machine.gpus.is_empty(), machine.driver.is_empty()) {
        (true, _) => String::new(),
        (false, true) => machine.gpus.join(", "),
        (false, false) => format!("{}, driver {}", machine.gpus.join(", "), machine.driver),
    }
}

/// What is to be known before the figures are believed.
fn notes(page: &mut String, report: &Report, records: &[(String, Record)]) {
    let mut notes = Vec::new();
    let machines: BTreeSet<(&str, u32, String)> = records
        .iter()
        .map(|(_, record)| (record.machine.cpu.as_str(), record.machine.cores, gpus_in_words(&record.machine)))
        .collect();
    if machines.len() > 1 {
        notes.push("The records come from different machines: their figures do not compare targets alone.".to_owned());
    }
    let mut doubts = Vec::new();
    for (label, round, run) in report.runs() {
        for doubt in runs::doubts(run) {
            let round = if round.is_empty() { round.clone() } else { format!(", {round}") };
            doubts.push(format!("{label} ({}{round}): {doubt}.", words::load_level(&run.load)));
        }
    }
    let more = doubts.len().saturating_sub(DOUBTS_MAX);
    notes.extend(doubts.into_iter().take(DOUBTS_MAX));
    if more > 0 {
        notes.push(format!("And {more} more of this kind."));
    }
    if notes.is_empty() {
        return;
    }
    page.push_str("<ul class=\"notes\">\n");
    for note in notes {
        let _ = writeln!(page, "<li>{}</li>", escape(&note));
    }
    page.push_str("</ul>\n");
}

fn section(page: &mut String, heading: &str, about: &str) {
    let _ = writeln!(page, "<h2>{heading}</h2>\n<p class=\"about\">{about}</p>");
}

/// A table whose cells are HTML already: a name, a load, words up to the column `numbers` and then figures.
fn table(page: &mut String, head: &[&str], rows: &[Vec<String>], numbers: usize) {
    let class = |column: usize| match column {
        0 => " class=\"name\"",
        1 => " class=\"load\"",
        column if column >= numbers => " class=\"number\"",
        _ => " class=\"words\"",
    };
    page.push_str("<div class=\"scroll\"><table>\n<thead><tr>");
    for (column, name) in head.iter().enumerate() {
        let class = if column >= numbers { " class=\"number\"" } else { "" };
        let _ = write!(page, "<th{class}>{}</th>", escape(name));
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    for (index, row) in rows.iter().enumerate() {
        page.push_str("<tr>");
        for (column, cell) in row.iter().enumerate() {
            // A name stands out where it first comes.
            let again = column == 0 && index > 0 && rows[index - 1][0] == *cell;
            let class = if again { " class=\"name again\"" } else { class(column) };
            let _ = write!(page, "<td{class}>{cell}</td>");
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody>\n</table></div>\n");
}

/// The first cell of a run's row.
fn name_cell(label: &str, round: &str) -> String {
    match round {
        "" => escape(label),
        round => format!("{} <small>{}</small>", escape(label), escape(round)),
    }
}

fn summary(page: &mut String, report: &Report) {
    let closed = report.runs().any(|(.., run)| matches!(run.load, Load::Closed { .. }));
    let mut about = "Rates and latencies are of correct answers.".to_owned();
    if closed {
        about.push_str(
            " Saturation is a closed loop: each connection sends as soon as it is answered, so its times say how fast \
             a full server answers and are no client’s latency.",
        );
    }
    section(page, "Summary", &about);
    let columns = Columns::of(report.runs().map(|(.., run)| run));
    let rows: Vec<Vec<String>> = report
        .runs()
        .map(|(label, round, run)| {
            let mut row: Vec<String> = columns.row(run).iter().map(|cell| escape(cell)).collect();
            row[0] = name_cell(&label, &round);
            row
        })
        .collect();
    table(page, &columns.head(), &rows, 2);
}

/// Drawn twice, for wide pages and for narrow ones; the style sheet shows one.
fn figure(page: &mut String, figure: &Figure) {
    page.push_str("<figure>\n");
    if !figure.heading.is_empty() {
        let _ = writeln!(page, "<h3>{}</h3>", escape(&figure.heading));
    }
    page.push_str(&plot::legend(&figure.keys));
    page.push_str(&figure.chart.svg(WIDE));
    page.push_str(&figure.chart.svg(NARROW));
    page.push_str("</figure>\n");
}

/// One alone has the page's width, several stand in pairs.
fn figures(page: &mut String, all: &[Figure]) {
    if let [one] = all {
        return figure(page, one);
    }
    page.push_str("<div class=\"pair\">\n");
    for one in all {
        let _ = write!(page, "<figure>\n<h3>{}</h3>\n", escape(&one.heading));
        page.push_str(&plot::legend(&one.keys));
        page.push_str(&one.chart.svg(NARROW));
        page.push_str("</figure>\n");
    }
    page.push_str("</div>\n");
}

fn percentiles(page: &mut String, report: &Report) {
    let rounds = match report.groups.iter().flat_map(|group| &group.points).any(|point| point.rounds.len() > 1) {
        true => " Of several rounds the one with the median p99 is drawn strongly, the others faintly.",
        false => "",
    };
    let ends = |figures: &[Figure], what: &str| match figures.iter().any(Figure::names_loads) {
        true => format!(" At a line’s end stands its {what}."),
        false => String::new(),
    };
    let open = charts::percentiles(report, Loop::Open, false);
    if !open.is_empty() {
        let about = format!(
            "How long the slowest requests took: half were faster than the line at 50 %, all but one in a hundred \
             faster than at 99 %.{}{rounds}",
            ends(&open, "rate in requests per second")
        );
        section(page, "Latency by percentile", &about);
        figures(page, &open);
    }
    let closed = charts::percentiles(report, Loop::Closed, false);
    if !closed.is_empty() {
        let ends = ends(&closed, "number of connections");
        let about =
            format!("Of closed loops: no client’s latency, but how evenly a full server answers.{ends}{rounds}");
        section(page, "Saturation by percentile", &about);
        figures(page, &closed);
    }
}

fn throughput(page: &mut String, report: &Report) {
    if let Some(open) = charts::throughput(report, Loop::Open) {
        let about = "Each point is one rate asked for, written beside its p99 in requests per second.";
        section(page, "Throughput against latency", about);
        figure(page, &open);
    }
    if let Some(closed) = charts::throughput(report, Loop::Closed) {
        let about = "Each point is one number of connections kept busy, written beside its p99.";
        section(page, "Throughput at saturation", about);
        figure(page, &closed);
    }
}

fn sizes(page: &mut String, report: &Report) {
    let sizes = charts::sizes(report);
    if sizes.is_empty() {
        return;
    }
    let about = "The same texts sent one per request, one request after another (serial), and all in one (batch).";
    section(page, "Texts per request", about);
    figures(page, &sizes);
    let percentiles = charts::percentiles(report, Loop::Closed, true);
    if !percentiles.is_empty() {
        page.push_str("<details><summary>The same runs by percentile</summary>\n");
        figures(page, &percentiles);
        page.push_str("</details>\n");
    }
}

fn stages(page: &mut String, report: &Report) {
    let Some((keys, bars, left_out)) = charts::stages(report) else { return };
    let mut about = "The mean request by the server’s own account (Server-Timing). What it does not name is the \
                     network, the kernel and the generator."
        .to_owned();
    if left_out > 0 {
        let _ = write!(about, " {} more are in the table alone.", words::plural(left_out as u64, "run"));
    }
    section(page, "Where the time goes", &about);
    page.push_str("<figure>\n");
    page.push_str(&plot::legend(&keys));
    page.push_str(&bars.svg(WIDE.width));
    page.push_str(&bars.svg(NARROW.width));
    page.push_str("</figure>\n<details><summary>Stages in numbers</summary>\n");
    let mut rows = Vec::new();
    for (label, round, run) in report.runs() {
        for stage in &run.stages {
            let mut row = vec![name_cell(&label, &round), escape(&words::load(&run.load)), escape(&stage.name)];
            row.extend([stage.mean, stage.p50, stage.p99].map(words::time));
            rows.push(row);
        }
    }
    table(page, &["run", "load", "stage", "mean", "p50", "p99"], &rows, 3);
    page.push_str("</details>\n");
}

fn counts(page: &mut String, report: &Report) {
    section(page, "Counts and errors", "Over the measured part. Late: written more than 100 µs after its time.");
    let mut rows = Vec::new();
    let mut errors = Vec::new();
    for (label, round, run) in report.runs() {
        let counts = &run.counts;
        let mut row = vec![name_cell(&label, &round), escape(&words::load_level(&run.load))];
        let figures = [
            counts.sent,
            counts.answered,
            counts.correct,
            counts.wrong,
            counts.failed,
            counts.aborted,
            counts.late,
            counts.unsent,
            counts.texts,
            counts.tokens,
        ];
        row.extend(figures.map(words::count));
        row.extend([counts.bytes_sent, counts.bytes_received].map(words::bytes));
        rows.push(row);
        for (kind, count) in &counts.errors {
            let load = escape(&words::load_level(&run.load));
            errors.push(vec![name_cell(&label, &round), load, escape(kind), words::count(*count)]);
        }
    }
    let head = [
        "run", "load", "sent", "answered", "correct", "wrong", "failed", "aborted", "late", "unsent", "texts",
        "tokens", "written", "read",
    ];
    if rows.len() > ROWS_MAX {
        let _ = writeln!(page, "<details><summary>Counts of {} runs</summary>", rows.len());
        table(page, &head, &rows, 2);
        page.push_str("</details>\n");
    } else {
        table(page, &head, &rows, 2);
    }
    if errors.is_empty() {
        page.push_str("<p class=\"about\">No errors.</p>\n");
    } else {
        page.push_str("<h3>Errors by kind</h3>\n");
        table(page, &["run", "load", "kind", "count"], &errors, 3);
    }
}

fn workloads(page: &mut String, report: &Report) {
    section(page, "What was sent", "By label; where its runs differ, each value once.");
    page.push_str("<div class=\"cards\">\n");
    for group in &report.groups {
        let target = &group.points[0].first().target;
        let each = |of: &dyn Fn(&Run) -> String| -> String {
            let mut values: Vec<String> = Vec::new();
            for run in group.points.iter().flat_map(|point| &point.rounds) {
                let value = of(run);
                if !value.is_empty() && !values.contains(&value) {
                    values.push(value);
                }
            }
            values.join(" · ")
        };
        let rows = [
            ("Target", target.url.clone()),
            ("Model", target.model.clone()),
            ("API", target.api.clone()),
            ("Load", loads(group)),
            ("Texts", each(&|run| run.workload.texts.clone())),
            ("Per request", each(&|run| run.workload.per_request.clone())),
            ("Seed", each(&|run| run.workload.seed.to_string())),
            ("Check", each(&|run| run.workload.check.clone())),
            (
                "Connections",
                each(&|run| if run.workload.new_connections { "one per request" } else { "kept" }.to_owned()),
            ),
            ("Aborted", each(&|run| words::share(run.workload.abort_rate))),
            (
                "Measured",
                each(&|run| format!("{} s after {} s of warm-up", seconds(run.duration_s), seconds(run.warmup_s))),
            ),
            ("Digest", each(&|run| run.digest.clone().unwrap_or_default())),
        ];
        let _ = write!(page, "<section class=\"card\">\n<h3>{}</h3>\n<dl>\n", escape(&report.group_name(group)));
        for (name, value) in rows.iter().filter(|(_, value)| !value.is_empty()) {
            let _ = writeln!(page, "<dt>{name}</dt><dd>{}</dd>", escape(value));
        }
        page.push_str("</dl>\n</section>\n");
    }
    page.push_str("</div>\n");
}

/// To a tenth: what lies below says nothing of a run.
fn seconds(value: f64) -> String {
    words::exact((value * 10.0).round() / 10.0)
}

/// The first load in full, of the others what is different.
fn loads(group: &Group) -> String {
    let mut loads: Vec<&Load> = Vec::new();
    for point in &group.points {
        if !loads.contains(&&point.first().load) {
            loads.push(&point.first().load);
        }
    }
    let levels = loads.iter().skip(1).map(|load| words::load_level(load));
    [words::load(loads[0])].into_iter().chain(levels).collect::<Vec<_>>().join(" · ")
}

fn histograms(page: &mut String, report: &Report) {
    let mut logs = String::new();
    for (label, round, run) in report.runs() {
        let Some(latency) = run.latency.as_ref().filter(|latency| !latency.interval_log.is_empty()) else { continue };
        let round = if round.is_empty() { round } else { format!(", {round}") };
        let name = escape(&format!("{label}, {}{round}", words::load(&run.load)));
        let log = escape(&latency.interval_log);
        let _ = writeln!(logs, "<details><summary>{name}</summary>\n<pre>{log}</pre></details>");
    }
    if !logs.is_empty() {
        section(page, "Histograms", "The whole corrected histograms, as interval logs of HdrHistogram in nanoseconds.");
        page.push_str(&logs);
    }
}
