//! What people see of a record: the table, the page, the comparison, and the words for a file that is no record.
//!
//! The records are made here, with figures such as a real run has. The pages are left in `target/tmp/report-*.html`, to be
//! looked at.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use reactrt_bench::compare::{self, Outcome};
use reactrt_bench::record::{
    Arrivals, Counts, FORMAT, Latency, Load, Machine, Rates, Record, Run, Sample, ServerSide, Stage, Summary, Target,
    Workload,
};
use reactrt_bench::{report, runs, table, words};

const QUANTILES: usize = 60;

/// Rises from `least_us` to `most_us`, slowly at first and steeply in the tail, as latencies do.
fn summary(least_us: f64, most_us: f64, count: u64) -> Summary {
    let value = |quantile: f64| {
        let nines = -(1.0 - quantile).max(1e-5).log10() / 5.0;
        least_us * (most_us / least_us).powf(nines.powf(1.3))
    };
    let quantiles = (0..QUANTILES).map(|index| {
        let part = index as f64 / (QUANTILES - 1) as f64;
        let quantile = if index + 1 == QUANTILES { 1.0 } else { 1.0 - 10f64.powf(-5.0 * part) };
        (quantile, value(quantile))
    });
    Summary {
        count,
        mean: value(0.6),
        min: least_us,
        p50: value(0.5),
        p90: value(0.9),
        p99: value(0.99),
        p999: value(0.999),
        max: most_us,
        quantiles: quantiles.collect(),
    }
}

/// 30 seconds at a rate that the target keeps up with.
fn run(label: &str, rate: f64, least_us: f64, most_us: f64) -> Run {
    let sent = (rate * 30.0) as u64;
    let stage = |name: &str, mean: f64| Stage { name: name.to_owned(), mean, p50: mean * 0.9, p99: mean * 4.0 };
    Run {
        label: label.to_owned(),
        target: Target {
            url: "http://127.0.0.1:8887".to_owned(),
            api: "native".to_owned(),
            model: "all-MiniLM-L6-v2".to_owned(),
        },
        load: Load::Open { rate, arrivals: Arrivals::Poisson, connections: 64 },
        workload: Workload {
            texts: "log-normal words, median 30, sigma 0.9, 4 to 254; 4096 bodies".to_owned(),
            per_request: "1".to_owned(),
            seed: 7,
            abort_rate: 0.0,
            new_connections: false,
            check: "full".to_owned(),
        },
        duration_s: 30.0,
        warmup_s: 2.0,
        counts: Counts {
            sent,
            answered: sent,
            correct: sent,
            late: 12,
            texts: sent,
            tokens: sent * 38,
            bytes_sent: sent * 312,
            bytes_received: sent * 4631,
            ..Counts::default()
        },
        rates: Rates { asked: Some(rate), requests: rate, texts: rate, tokens: rate * 38.0 },
        latency: Some(Latency {
            corrected: summary(least_us, most_us, sent),
            uncorrected: summary(least_us, most_us, sent),
            lateness: summary(1.0, 80.0, sent),
            interval_log: "#[Histogram log format version 1.3]\n0.000,30.000,19.999,HISTFAAAACB4nJNpmSzMwMDA"
                .to_owned(),
        }),
        stages: vec![
            stage("parse", least_us * 0.02),
            stage("tokenize", least_us * 0.09),
            stage("queue", least_us * 0.25),
            stage("device", least_us * 0.55),
            stage("encode", least_us * 0.05),
        ],
        server: Some(ServerSide { mean_batch: Some(6.4), batch_fill: Some(0.93) }),
        digest: None,
        samples: Vec::new(),
    }
}

fn closed(label: &str, concurrency: u32, rate: f64, least_us: f64, most_us: f64) -> Run {
    let mut run = run(label, rate, least_us, most_us);
    run.load = Load::Closed { concurrency };
    run.rates.asked = None;
    run.counts.late = 0;
    run
}

fn with_errors(mut run: Run) -> Run {
    run.counts.errors =
        BTreeMap::from([("status 429".to_owned(), 120), ("refused <now>".to_owned(), 3), ("timed out".to_owned(), 7)]);
    run.counts.wrong = 120;
    run.counts.failed = 10;
    run.counts.answered = run.counts.sent - 10;
    run.counts.correct = run.counts.answered - 120;
    run
}

/// Where the target once stood still: what the schedule wanted and what was sent differ.
fn with_a_stall(mut run: Run) -> Run {
    let latency = run.latency.as_mut().expect("a latency");
    latency.corrected = summary(latency.uncorrected.min, 480_000.0, latency.uncorrected.count);
    run
}

fn record(runs: Vec<Run>) -> Record {
    Record {
        format: FORMAT,
        command: "reactrt-bench load --scenario bench/scenarios/mixed-texts.yaml --json out.json --rate 2000"
            .to_owned(),
        began: "2026-11-30T18:00:00Z".to_owned(),
        machine: Machine {
            cpu: "AMD EPYC 9454 48-Core Processor".to_owned(),
            cores: 48,
            memory_bytes: 405_000_000_000,
            kernel: "6.8.0-49-generic".to_owned(),
            gpus: vec!["NVIDIA L4".to_owned()],
            driver: "570.86.15".to_owned(),
            version: "0.1.0".to_owned(),
            commit: "938dc69-dirty".to_owned(),
        },
        runs,
    }
}

/// Six connections counts of three targets.
fn saturation_sweep() -> Record {
    let mut runs = Vec::new();
    for (label, most, least_us) in [("reactrt", 9000.0, 480.0), ("infinity", 3100.0, 2900.0), ("tei", 5200.0, 1300.0)] {
        for concurrency in [1u32, 4, 16, 64, 128, 256] {
            let clients = f64::from(concurrency);
            let rate = (clients * 1e6 / least_us).min(most * clients / (clients + 6.0));
            let time_us = clients * 1e6 / rate;
            runs.push(closed(label, concurrency, rate, time_us * 0.8, time_us * 6.0));
        }
    }
    record(runs)
}

fn rate_sweep() -> Record {
    let rates = [100.0, 250.0, 500.0, 1000.0, 1500.0, 2000.0];
    record(rates.map(|rate| run("reactrt", rate, 500.0 + rate / 10.0, 6000.0 + rate * rate / 120.0)).to_vec())
}

fn size_sweep() -> Record {
    let mut runs = Vec::new();
    for (task, text_us) in [("embedding", 900.0), ("reranking", 1400.0), ("nli", 1900.0)] {
        for texts in [1u32, 2, 4, 8, 16, 32, 64] {
            for (kind, per_text) in [("serial", 1.0), ("batch", 0.25 + 0.75 / f64::from(texts))] {
                let mut run = closed(&format!("{task} {kind}"), 1, 100.0, text_us, text_us * 5.0);
                run.workload.per_request = texts.to_string();
                run.rates.texts = 1e6 / (text_us * per_text);
                runs.push(run);
            }
        }
    }
    record(runs)
}

fn interleaved() -> Record {
    let mut runs = Vec::new();
    for round in 0..5 {
        let noise = 1.0 + 0.04 * f64::from((round * 7) % 5);
        runs.push(with_a_stall(run("old server", 2000.0, 900.0 * noise, 31_000.0 * noise)));
        runs.push(run("reactrt", 2000.0, 500.0 * noise, 9_000.0 * noise));
    }
    record(runs)
}

/// Leaves the page where a browser finds it.
fn page(name: &str, records: &[(&str, Record)]) -> String {
    let records: Vec<(String, Record)> =
        records.iter().map(|(file, record)| (file.to_string(), record.clone())).collect();
    let html = report::html(&records);
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("report-{name}.html"));
    fs::write(path, &html).expect("target/tmp is writable");
    check_page(&html);
    html
}

/// Every tag closed by its own, nothing of the network, no figure that is none.
fn check_page(html: &str) {
    let (head, rest) = html.split_once("<style>").expect("a style sheet");
    let (_, rest) = rest.split_once("</style>").expect("its end");
    let (body, script) = rest.split_once("<script>").expect("a script");
    let (_, foot) = script.split_once("</script>").expect("its end");
    let mut open: Vec<&str> = Vec::new();
    for text in [head, body, foot] {
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('<') {
            assert!(!before.contains('>') || open.is_empty() || !before.contains("=\""), "a stray >: {before}");
            let (tag, after) = after.split_once('>').expect("a tag ends");
            rest = after;
            assert_eq!(tag.matches('"').count() % 2, 0, "quotes: <{tag}>");
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop(), Some(name), "closed in order");
            } else if !tag.ends_with('/') && !tag.starts_with('!') {
                let name = tag.split_whitespace().next().expect("a name");
                if !["meta", "br"].contains(&name) {
                    open.push(name);
                }
            }
            for attribute in ["src=", "href=", "@import", "url("] {
                assert!(!tag.contains(attribute), "the page stands alone: <{tag}>");
            }
        }
    }
    assert!(open.is_empty(), "left open: {open:?}");
    assert!(!html.contains("NaN") && !body.contains("inf\"") && !html.contains("@import") && !html.contains("url("));
    // Addresses are text between tags, never part of one.
    for (index, _) in html.match_indices("http://") {
        assert!(html[..index].rfind('>') > html[..index].rfind('<'), "an address in a tag");
    }
}

/// The points of each line drawn in the wide plots.
fn wide_lines(html: &str) -> Vec<usize> {
    let plots = html.split("<svg class=\"wide\"").skip(1).map(|plot| plot.split("</svg>").next().unwrap());
    let lines = plots.flat_map(|plot| plot.split("<polyline ").skip(1));
    lines.map(|line| line.split("points=\"").nth(1).unwrap().split('"').next().unwrap().split(' ').count()).collect()
}

#[test]
fn a_page_shows_every_quantile_of_a_run() {
    let html = page("one", &[("out.json", record(vec![with_errors(run("reactrt", 2000.0, 500.0, 20_000.0))]))]);
    assert_eq!(wide_lines(&html), [QUANTILES]);
    let points = html.split("<svg class=\"wide\"").nth(1).unwrap().split("</svg>").next().unwrap();
    assert_eq!(points.matches("class=\"target").count(), QUANTILES);
    assert!(points.contains("100 %: 20.0 ms"), "the largest has its read-out");
    for label in ["50 %", "90 %", "99 %", "99.9 %", "99.99 %", "latency, ms, logarithmic", "percentile of requests"] {
        assert!(points.contains(&format!(">{label}</text>")), "{label}");
    }
    for text in ["all-MiniLM-L6-v2", "AMD EPYC 9454", "48 cores", "405 GB", "NVIDIA L4, driver 570.86.15", "938dc69"] {
        assert!(html.contains(text), "{text}");
    }
    for text in ["status 429", "refused &lt;now&gt;", ">120<", "59,870", "2,000/s", "HISTFAAAACB4nJNpmSzMwMDA"] {
        assert!(html.contains(text), "{text}");
    }
    assert!(html.contains("130 of 60,000 requests failed or had a wrong answer"));
}

#[test]
fn the_stages_are_drawn_with_what_they_do_not_name() {
    let html = page("stages", &[("out.json", record(vec![run("reactrt", 2000.0, 500.0, 20_000.0)]))]);
    let bars = html.split("aria-label=\"Mean time by stage\"").nth(1).unwrap().split("</svg>").next().unwrap();
    assert_eq!(bars.matches("<rect class=\"part ").count(), 6);
    for stage in ["parse", "tokenize", "queue", "device", "encode", "outside the server’s stages"] {
        assert!(bars.contains(&format!("<title>{stage}: mean ")), "{stage}");
    }
    assert!(bars.contains("device: mean 275 µs (47.9 %)\np50 248 µs, p99 1.10 ms"), "{bars}");
}

#[test]
fn what_users_wrote_is_escaped() {
    let evil = "<script>alert(\"x\")</script>&'\u{1b}[31m";
    let mut record = record(vec![with_errors(run(evil, 10.0, 500.0, 900.0)), closed(evil, 4, 10.0, 500.0, 900.0)]);
    record.command = evil.to_owned();
    record.began = evil.to_owned();
    for machine in [&mut record.machine.cpu, &mut record.machine.commit, &mut record.machine.kernel] {
        *machine = evil.to_owned();
    }
    for run in &mut record.runs {
        run.workload.texts = evil.to_owned();
        run.workload.per_request = evil.to_owned();
        run.workload.check = evil.to_owned();
        run.target = Target { url: evil.to_owned(), api: evil.to_owned(), model: evil.to_owned() };
        run.stages[0].name = evil.to_owned();
        run.digest = Some(evil.to_owned());
        run.counts.errors.insert(evil.to_owned(), 1);
        run.latency.as_mut().unwrap().interval_log = evil.to_owned();
    }
    let html = page("evil", &[(evil, record.clone())]);
    assert!(!html.contains("<script>alert") && !html.contains('\u{1b}'));
    assert!(html.matches("&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;&amp;&#39;").count() > 20);
    let table = table_of(&record);
    assert!(!table.contains('\u{1b}'), "{table}");
}

#[test]
fn a_sweep_is_drawn_against_throughput_and_each_label_by_percentile() {
    let html = page("saturation", &[("sweep.json", saturation_sweep())]);
    assert!(html.contains("<h2>Saturation by percentile</h2>") && !html.contains("<h2>Latency by percentile</h2>"));
    // 18 lines are too many for one plot: one plot for each label, and p50 and p99 of each in the other.
    assert_eq!(html.matches("aria-label=\"time per request at saturation, ms, logarithmic by percentile\"").count(), 3);
    assert_eq!(wide_lines(&html), [6; 6]);
    let against = html.split("<h2>Throughput at saturation</h2>").nth(1).unwrap().split("</figure>").next().unwrap();
    for connections in ["1", "4", "16", "64", "128", "256"] {
        assert!(against.matches(&format!(">{connections}</text>")).count() >= 2, "{connections} beside its points");
    }
    for label in ["reactrt p50", "infinity p99", "tei p50"] {
        assert!(against.contains(&format!("<span>{label}</span>")), "{label}");
    }

    let html = page("rates", &[("sweep.json", rate_sweep())]);
    assert!(
        html.contains("<h2>Throughput against latency</h2>") && !html.contains("<h2>Throughput at saturation</h2>")
    );
    assert_eq!(wide_lines(&html), [60, 60, 60, 60, 60, 60, 6, 6]);
    assert!(html.contains("<span>reactrt, 1,500/s</span>") && html.contains("its rate in requests per second"));
}

#[test]
fn a_sweep_of_sizes_is_drawn_by_task() {
    let html = page("sizes", &[("sizes.json", size_sweep())]);
    let section = html.split("<h2>Texts per request</h2>").nth(1).unwrap().split("<details>").next().unwrap();
    assert_eq!(section.matches("<svg class=\"narrow\"").count(), 2);
    assert_eq!(section.matches("<polyline ").count(), 2 * 6);
    assert!(section.contains("embedding batch\n64 texts: 236 µs per text, 4,245 texts/s"), "{section}");
    assert!(section.contains("nli serial\n8 texts: 1.90 ms per text, 526 texts/s"));
    assert!(!html.contains("<h2>Throughput at saturation</h2>"));
}

#[test]
fn rounds_and_what_the_correction_changes_are_drawn() {
    let html = page("rounds", &[("rounds.json", interleaved())]);
    let plot = html.split("<svg class=\"wide\"").nth(1).unwrap().split("</svg>").next().unwrap();
    assert_eq!(plot.matches("class=\"line c0 faint\"").count(), 4);
    assert_eq!(plot.matches("class=\"line c0 dashed\"").count(), 1);
    assert_eq!(plot.matches("class=\"line c1 dashed\"").count(), 0);
    assert!(html.contains("<span>old server (5 rounds)</span>") && html.contains("round 3 of 5"));
    assert!(html.contains("<span>uncorrected: from when the request left</span>"));
}

#[test]
fn several_records_share_their_plots() {
    let first = record(vec![run("reactrt", 2000.0, 500.0, 20_000.0)]);
    let mut second = record(vec![run("reactrt", 2000.0, 450.0, 12_000.0)]);
    second.machine.cpu = "Another".to_owned();
    let html = page("two", &[("before.json", first), ("after.json", second)]);
    assert_eq!(wide_lines(&html), [QUANTILES; 2]);
    assert!(html.contains("<span>reactrt [before.json]</span>") && html.contains("<span>reactrt [after.json]</span>"));
    assert!(html.contains("The records come from different machines"));
}

#[test]
fn records_with_little_or_odd_in_them_make_a_page() {
    page("empty", &[("empty.json", record(Vec::new()))]);
    let mut nothing = run("nothing", 10.0, 500.0, 900.0);
    nothing.latency = None;
    nothing.stages.clear();
    nothing.server = None;
    nothing.counts = Counts { sent: 10, failed: 10, ..Counts::default() };
    nothing.rates = Rates { asked: Some(10.0), ..Rates::default() };
    let mut odd = closed("odd", 0, 0.0, 500.0, 900.0);
    odd.duration_s = 0.0;
    odd.rates = Rates { asked: None, requests: f64::NAN, texts: f64::INFINITY, tokens: -1.0 };
    let latency = odd.latency.as_mut().unwrap();
    latency.corrected = Summary {
        p50: f64::NAN,
        quantiles: vec![(f64::NAN, 1.0), (2.0, 1e300), (-1.0, -5.0), (0.5, 0.0), (0.9, f64::NAN)],
        ..Summary::default()
    };
    odd.stages[0].mean = f64::NAN;
    let html = page("odd", &[("odd.json", record(vec![nothing.clone(), odd.clone()]))]);
    assert!(html.contains("no answer was correct, so there is no latency"));
    let table = table_of(&record(vec![nothing, odd]));
    assert!(table.contains("no answer was correct") && !table.contains("NaN"), "{table}");
}

fn table_of(record: &Record) -> String {
    let mut text = Vec::new();
    table::write(record, &mut text).expect("memory takes all");
    String::from_utf8(text).expect("text")
}

#[test]
fn rounds_keep_their_own_stages_in_a_table() {
    let table = table_of(&record(vec![run("a", 10.0, 500.0, 900.0), run("a", 10.0, 500.0, 900.0)]));
    let stages = table.split("stages").nth(1).expect("stages").split("note:").next().unwrap();
    assert_eq!(stages.matches("a (open, 10/s)").count(), 2, "{table}");
    assert_eq!(stages.matches("275 µs").count(), 2, "{table}");
}

#[test]
fn a_table_has_a_row_for_each_run_and_its_columns_align() {
    let mut record = record(vec![
        with_errors(run("reactrt", 2000.0, 500.0, 20_000.0)),
        with_a_stall(run("old server", 200.0, 5_000.0, 90_000.0)),
        closed("reactrt", 64, 8000.0, 700.0, 2_000_000.0),
    ]);
    record.runs[2].digest = Some("5f1c".to_owned());
    let table = table_of(&record);
    let lines: Vec<&str> = table.lines().collect();
    let cells = |line: &str| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).count();
    assert!(lines[0].starts_with("run") && lines[0].contains("uncorrected p50"), "{table}");
    assert!((3..=4).all(|row| cells(lines[row - 1]) == cells(lines[2])), "{table}");
    let ends: Vec<usize> = (0..5).map(|row| lines[row].trim_end().chars().count()).collect();
    assert!(ends.iter().all(|end| *end == ends[0]), "the last column ends where the first row does: {table}");
    let latency = record.runs[0].latency.as_ref().unwrap();
    for time in [latency.corrected.p50, latency.corrected.p999, latency.corrected.max] {
        assert!(lines[2].contains(&words::time(time)), "{table}");
    }
    assert!(lines[2].contains("open, 2,000/s") && lines[2].contains("130") && lines[2].contains("93.0 %"), "{table}");
    assert!(lines[3].contains("480 ms") && lines[4].contains("saturation, 64 connections"), "{table}");
    assert!(lines[4].contains("2.00 s"), "{table}");
    for text in ["status 429", "tokenize", "5f1c", "a closed loop", "120", "note: reactrt (open, 2,000/s): 130 of"] {
        assert!(table.contains(text), "{text}: {table}");
    }
    assert!(!table.contains('\u{1b}'));
}

fn compared(records: &[(&str, Record)]) -> (Outcome, String) {
    let records: Vec<(String, Record)> =
        records.iter().map(|(file, record)| (file.to_string(), record.clone())).collect();
    let mut text = Vec::new();
    let outcome = compare::compare(&records, &mut text).expect("memory takes all");
    (outcome, String::from_utf8(text).expect("text"))
}

#[test]
fn counts_of_a_damaged_record_do_not_overflow() {
    let mut damaged = record(rounds("m", [(1.0, 2.0); 3]));
    for run in &mut damaged.runs {
        (run.counts.wrong, run.counts.failed) = (u64::MAX, 7);
    }
    let (_, text) = compared(&[("a.json", damaged.clone()), ("b.json", damaged.clone())]);
    assert!(text.contains("errors: 18,446,744,073,709,551,615 in the first"), "{text}");
    assert!(table_of(&damaged).contains("18,446,744,073,709,551,615"));
}

/// The words of the line that begins so.
fn line_of<'t>(text: &'t str, start: &str) -> Vec<&'t str> {
    let found = text.lines().map(str::trim).find(|line| line.starts_with(start));
    found.unwrap_or_else(|| panic!("no line {start}: {text}")).split_whitespace().collect()
}

/// Three rounds with these requests/s and p99.
fn rounds(label: &str, figures: [(f64, f64); 3]) -> Vec<Run> {
    let round = |(requests, p99): (f64, f64)| {
        let mut run = run(label, 1000.0, 500.0, 20_000.0);
        run.rates.requests = requests;
        run.latency.as_mut().unwrap().corrected.p99 = p99;
        run
    };
    figures.map(round).to_vec()
}

#[test]
fn ratios_are_of_rounds_and_have_their_range() {
    let first = record(rounds("server", [(100.0, 1000.0), (200.0, 2000.0), (400.0, 4000.0)]));
    let other = record(rounds("server", [(150.0, 500.0), (200.0, 1600.0), (440.0, 3000.0)]));
    let (outcome, text) = compared(&[("a.json", first), ("b.json", other)]);
    assert_eq!(outcome, Outcome { compared: 1, refused: 0, different_vectors: 0 });
    assert!(text.contains("server [b.json] against server [a.json]") && text.contains("3 rounds"), "{text}");
    // Ratios 1.5, 1.0, 1.1 and 0.5, 0.8, 0.75.
    assert_eq!(line_of(&text, "requests/s"), ["requests/s", "200", "200", "1.100", "×", "1.000", "to", "1.500"]);
    assert_eq!(
        line_of(&text, "p99"),
        ["p99", "2.00", "ms", "1.60", "ms", "0.750", "×", "0.500", "to", "0.800"],
        "{text}"
    );
    assert!(!text.contains("no spread"), "{text}");
}

#[test]
fn labels_of_one_record_are_compared_with_its_first() {
    let (outcome, text) = compared(&[("rounds.json", interleaved())]);
    assert_eq!(outcome, Outcome { compared: 1, refused: 0, different_vectors: 0 });
    assert!(text.starts_with("reactrt against old server\n"), "{text}");
    assert_eq!(line_of(&text, "requests/s")[3], "1.000");
}

#[test]
fn one_round_has_no_spread_and_says_so() {
    let (first, other) = (record(vec![run("a", 10.0, 500.0, 900.0)]), record(vec![run("b", 10.0, 400.0, 900.0)]));
    let (outcome, text) = compared(&[("a.json", first), ("b.json", other)]);
    assert_eq!(outcome.compared, 1);
    assert!(text.contains("one round each") && line_of(&text, "p50")[6] == "×", "{text}");
}

#[test]
fn what_was_not_measured_alike_is_refused_by_name() {
    type Change = fn(&mut Run);
    let changes: [(Change, &str); 6] = [
        (|run| run.workload.seed = 8, "seed (7; 8)"),
        (|run| run.workload.check = "none".to_owned(), "check (full; none)"),
        (|run| run.workload.per_request = "32".to_owned(), "texts per request (1; 32)"),
        (|run| run.workload.abort_rate = 0.5, "abort rate (0; 0.5)"),
        (|run| run.workload.new_connections = true, "new connections (false; true)"),
        (
            |run| run.load = Load::Closed { concurrency: 8 },
            "load (open, 10/s poisson, up to 64 connections; saturation, 8",
        ),
    ];
    for (change, reason) in changes {
        let mut other = run("a", 10.0, 500.0, 900.0);
        change(&mut other);
        let records = [("a.json", record(vec![run("a", 10.0, 500.0, 900.0)])), ("b.json", record(vec![other]))];
        let (outcome, text) = compared(&records);
        assert_eq!((outcome.compared, outcome.refused), (0, 1), "{text}");
        assert!(text.contains("not comparable") && text.contains(reason) && !text.contains('×'), "{text}");
    }
    let two = record(vec![run("a", 10.0, 500.0, 900.0), run("b", 10.0, 500.0, 900.0)]);
    let (outcome, text) = compared(&[("a.json", two), ("b.json", record(vec![run("a", 10.0, 500.0, 900.0)]))]);
    assert_eq!((outcome.compared, outcome.refused), (1, 1), "{text}");
    assert!(text.contains("not compared: b [a.json] has no counterpart"), "{text}");
    let (outcome, text) = compared(&[("a.json", record(vec![run("a", 10.0, 500.0, 900.0)]))]);
    assert!(outcome == Outcome::default() && text.contains("Nothing to compare"), "{text}");
}

#[test]
fn sweeps_are_compared_load_by_load() {
    let mut fewer = rate_sweep();
    fewer.runs.remove(2);
    let (outcome, text) = compared(&[("a.json", rate_sweep()), ("b.json", fewer)]);
    assert_eq!((outcome.compared, outcome.refused), (5, 1), "{text}");
    assert!(text.contains("not compared: open, 500/s poisson, up to 64 connections: only the first has it"), "{text}");
}

fn with_samples(samples: &[(&str, &[f32])], digest: &str) -> Record {
    let mut run = run("a", 10.0, 500.0, 900.0);
    run.samples =
        samples.iter().map(|(text, values)| Sample { text: text.to_string(), values: values.to_vec() }).collect();
    run.digest = Some(digest.to_owned());
    record(vec![run])
}

#[test]
fn vectors_and_digests_are_compared() {
    let first = with_samples(&[("x", &[1.0, 0.0]), ("y", &[0.6, 0.8])], "aa");
    let near = with_samples(&[("y", &[0.6, 0.8001]), ("x", &[1.0, 0.001]), ("z", &[9.0, 9.0])], "aa");
    let (outcome, text) = compared(&[("a.json", first.clone()), ("b.json", near)]);
    assert_eq!(outcome.different_vectors, 0, "{text}");
    assert!(
        text.contains("vectors of 2 texts: smallest cosine 0.9999995, largest absolute difference 1.000e-3"),
        "{text}"
    );
    assert!(text.contains("digests: equal"), "{text}");

    let far = with_samples(&[("x", &[1.0, 0.0]), ("y", &[0.8, 0.6])], "bb");
    let (outcome, text) = compared(&[("a.json", first.clone()), ("b.json", far)]);
    assert_eq!(outcome.different_vectors, 1, "{text}");
    assert!(text.contains("!! VECTORS DIFFER: the smallest cosine 0.9600000 is under 0.999"), "{text}");
    assert!(text.contains("digests: 1 of 1 differ"), "{text}");

    let (outcome, text) = compared(&[("a.json", first.clone()), ("b.json", with_samples(&[("x", &[1.0])], "aa"))]);
    assert_eq!(outcome.different_vectors, 1, "{text}");
    assert!(text.contains("2 values in the first, 1 in the other"), "{text}");

    let (outcome, text) = compared(&[("a.json", first), ("b.json", with_samples(&[("q", &[1.0])], "aa"))]);
    assert_eq!(outcome.different_vectors, 0, "{text}");
    assert!(text.contains("of no text in common"), "{text}");
}

/// Writes a file and reads it as a record.
fn read(name: &str, content: &str) -> Result<Record, String> {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, content).expect("target/tmp is writable");
    report::read(&path)
}

#[test]
fn a_record_is_read_back_and_what_is_none_is_said() {
    let text = serde_json::to_string_pretty(&saturation_sweep()).unwrap();
    let read_back = read("good.json", &text).expect("a record");
    assert_eq!((read_back.runs.len(), table_of(&read_back)), (18, table_of(&saturation_sweep())));

    let fault = |name: &str, content: &str| read(name, content).expect_err("no record");
    let error = fault("broken.json", "{\n  \"format\": 1,\n oops }");
    assert!(error.contains("broken.json: not JSON") && error.contains("line 3"), "{error}");
    let error = fault("list.json", "[]");
    assert!(error.contains("list.json: not a record of reactrt-bench"), "{error}");
    let error = fault("other.json", "{\"name\": 1}");
    assert!(error.contains("it has no `format`"), "{error}");
    let error = fault("later.json", "{\"format\": 2, \"novelty\": []}");
    assert!(error.contains("format 2, this program reads format 1"), "{error}");
    let error = fault("unknown.json", &text.replacen("\"label\"", "\"lable\"", 1));
    let line = text.lines().position(|line| line.contains("\"label\"")).unwrap() + 1;
    assert!(
        error.contains("unknown key `lable`, expected one of `label`") && error.contains(&format!("line {line} ")),
        "{error}"
    );
    let error = fault("type.json", &text.replacen("\"seed\": 7", "\"seed\": -7", 1));
    assert!(error.contains("invalid value") && error.contains("line "), "{error}");
    let error = report::read(&PathBuf::from("no/such/file.json")).expect_err("no file");
    assert!(error.contains("no/such/file.json: cannot be read"), "{error}");
    let error = report::read(&PathBuf::from(env!("CARGO_TARGET_TMPDIR"))).expect_err("a folder");
    assert!(error.contains("cannot be read"), "{error}");
}

#[test]
fn a_latency_of_several_requests_is_shared_out_before_stages_are_held_against_it() {
    let mut serial = closed("embedding serial", 1, 4000.0, 500.0, 20_000.0);
    serial.workload.per_request = "8".to_owned();
    serial.counts.texts = serial.counts.correct;
    assert_eq!(runs::requests_in_one(&serial), 8.0);
    let mut batch = serial.clone();
    batch.counts.texts = 8 * batch.counts.correct;
    assert_eq!(runs::requests_in_one(&batch), 1.0);
    let mean_us = serial.latency.as_ref().unwrap().uncorrected.mean;
    serial.stages.iter_mut().for_each(|stage| stage.mean = 1.0);
    let page = report::html(&[("serial.json".to_owned(), record(vec![serial.clone()]))]);
    assert!(page.contains(&words::time(mean_us / 8.0)), "{}", words::time(mean_us / 8.0));
    for words in ["uniform 1 to 64", "0", ""] {
        serial.workload.per_request = words.to_owned();
        assert_eq!(runs::requests_in_one(&serial), 1.0, "{words}");
    }
    serial.counts.correct = 0;
    assert_eq!(runs::requests_in_one(&serial), 1.0);
}
