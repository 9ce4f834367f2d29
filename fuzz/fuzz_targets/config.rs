//! Configuration files, variables and flags: refused by line, or read back as they were written.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = reactrt::config::fuzzing::config(input);
});
