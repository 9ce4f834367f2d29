//! The table's rows in time: `cargo bench --bench micro [-- FILTER]`, by criterion, throughput in bytes or items.
//!
//! Runs are timed in groups of as many as a row keeps inputs for; making those inputs stands outside the clock.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};

use reactrt_bench::micro::{self, Amount, Case};

fn main() {
    let criterion = Criterion::default()
        .sample_size(40)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_millis(1500));
    let mut criterion = criterion.configure_from_args();
    for mut row in micro::all() {
        row.prove();
        let (group, name) = row.name.split_once('/').expect("a name has a group");
        let mut group = criterion.benchmark_group(group);
        group.throughput(match row.amount {
            Amount::Bytes(bytes) => Throughput::Bytes(bytes),
            Amount::Items(items) => Throughput::Elements(items),
        });
        group.bench_function(name, |bencher| bencher.iter_custom(|runs| time(row.case.as_mut(), runs)));
        group.finish();
    }
    criterion.final_summary();
}

fn time(case: &mut dyn Case, runs: u64) -> Duration {
    let mut total = Duration::ZERO;
    let mut left = runs;
    while left > 0 {
        let together = left.min(case.slots() as u64);
        (0..together).for_each(|slot| case.prepare(slot as usize));
        let start = Instant::now();
        for slot in 0..together {
            black_box(case.run(slot as usize));
        }
        total += start.elapsed();
        left -= together;
    }
    total
}
