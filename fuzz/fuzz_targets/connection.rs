//! A connection whose caller does anything that it may do, against the slow reference parser.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| drop(reactrt::http::fuzzing::connection(input)));
