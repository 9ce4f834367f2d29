//! Manifests of engines: refused in words, or read back as they were written.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = reactrt::model::manifest::fuzzing::manifest(input);
});
