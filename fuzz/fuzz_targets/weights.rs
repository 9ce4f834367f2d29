//! Files of tensors: every tensor found lies in its file.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = reactrt::model::weights::fuzzing::weights(input);
});
