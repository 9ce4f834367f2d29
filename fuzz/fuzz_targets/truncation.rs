//! Texts and pairs cut to a model's length, read early or to their end, with the tokenizers of the tests' models.

#![no_main]

use std::path::Path;
use std::sync::LazyLock;

use reactrt::tokenize::{Tokenizer, fuzzing};

static TOKENIZERS: LazyLock<Vec<Tokenizer>> = LazyLock::new(|| {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models");
    let load =
        |model: &&str| Tokenizer::load(&models.join(model).join("tokenizer.json")).expect("a tokenizer of the tests");
    fuzzing::MODELS.iter().map(load).collect()
});

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = fuzzing::truncation(&TOKENIZERS, input);
});
