//! Every row of the micro-benchmarks does its work and does it right, so that they cannot rot unnoticed.

use std::collections::BTreeSet;

use reactrt_bench::micro::{self, Amount, Case, Threads};

#[test]
fn every_row_is_right() {
    let mut names = BTreeSet::new();
    for mut row in micro::all() {
        // Shown when a test fails: the last name is the one that did it.
        println!("{}", row.name);
        row.prove();
        assert!(row.name.contains('/') && names.insert(row.name.clone()), "names have a group and are unique");
        let (Amount::Bytes(amount) | Amount::Items(amount)) = row.amount;
        assert!(amount > 0);
    }
    let groups: BTreeSet<&str> = names.iter().filter_map(|name| Some(name.split_once('/')?.0)).collect();
    assert_eq!(groups, BTreeSet::from(["answer", "body", "head", "plan", "request", "ring"]));
}

#[test]
fn rows_do_the_same_each_time() {
    for mut row in micro::all().into_iter().filter(|row| row.threads == Threads::One) {
        let run = |case: &mut dyn Case| {
            case.prepare(0);
            case.run(0)
        };
        let first = run(row.case.as_mut());
        assert!((0..3).all(|_| run(row.case.as_mut()) == first), "{}", row.name);
    }
}
