//! The fuzz target `manifest`: any bytes are a manifest or are refused in words, and what was read is written and read back
//! equal.
//!
//! Not part of the server: it panics on any disagreement.

use super::parse;

/// Words of an error are for one line of a log.
const ERROR_BYTES_MAX: usize = 4096;

/// Whether the input is a manifest.
///
/// # Panics
/// When it cannot be written and read back, or is refused without a sentence.
pub fn manifest(input: &[u8]) -> bool {
    match parse(input) {
        Ok(manifest) => {
            let written = manifest.to_json();
            assert_eq!(parse(written.as_bytes()).as_ref(), Ok(&manifest), "{written}");
            assert_eq!(manifest.check_readable(), Ok(()));
            true
        }
        Err(words) => {
            assert!(!words.is_empty() && words.len() <= ERROR_BYTES_MAX, "{} bytes: {words}", words.len());
            assert!(!words.contains(char::is_control), "{words:?}");
            false
        }
    }
}
