//! ONNX files: the summary that skips weights against the whole file as prost decodes it.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = reactrt::model::onnx::fuzzing::onnx(input);
});
