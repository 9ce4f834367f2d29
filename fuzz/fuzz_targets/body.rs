//! Bodies of requests on every route: simd-json and what reads its tape, against serde_json and a slow reference.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = reactrt::api::fuzzing::body(input);
});
