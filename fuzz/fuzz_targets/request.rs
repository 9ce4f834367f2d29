//! The HTTP layer on arbitrary bytes: one read against many, and against the slow reference parser.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| drop(reactrt::http::fuzzing::request(input)));
