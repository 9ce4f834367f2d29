//! Scenarios for the planner, against its slow shadow.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| drop(reactrt::plan::fuzzing::plan(input)));
