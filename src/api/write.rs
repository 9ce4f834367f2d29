//! Writing JSON: strings, numbers, vectors. Everything appends to a buffer that was taken beforehand.
//!
//! Numbers are written in the fewest digits that read back as the same f32. Whether all values are finite is found out
//! while they are written: JSON has no NaN, base64 would carry one to the client unseen. The functions that write values
//! return [`NonFinite`] at the first bad one (base64: at the end of its chunk) and leave what they had written; the caller
//! of [`super::encode`] never sees it.
//!
//! Invariant: nothing is longer than the `*_bytes_max` beside its function says.

use std::fmt::{self, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// One value followed by its comma. `-0.0000012345678,` is the longest: f32 needs at most 9 digits, and ryu writes up to
/// five zeros before it turns to exponents.
pub(super) const VALUE_BYTES_MAX: usize = 18;

/// A u64 in milliseconds with its three decimals.
pub(super) const MILLISECONDS_BYTES_MAX: usize = 24;

/// A u64.
pub(super) const COUNT_BYTES_MAX: usize = 20;

/// Bytes of values that are checked while they are in the first-level cache and then encoded. A multiple of 12: whole
/// values and whole base64 groups, so that only the last chunk of a vector is padded.
const CHUNK_BYTES: usize = 3072;

/// A value was NaN or infinite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NonFinite;

/// Appends `text` as a JSON string, quotes included.
pub(super) fn string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    escape(out, text);
    out.push(b'"');
}

/// The bytes that [`string`] writes.
pub(super) fn string_bytes(text: &str) -> usize {
    2 + text.bytes().map(|byte| escape_of(byte).map_or(1, |escape| escape.as_slice().len())).sum::<usize>()
}

pub(super) fn string_or_null(out: &mut Vec<u8>, text: Option<&str>) {
    match text {
        Some(text) => string(out, text),
        None => out.extend_from_slice(b"null"),
    }
}

/// Appends a message as the inside of a JSON string.
pub(super) fn escaped(out: &mut Vec<u8>, message: fmt::Arguments<'_>) {
    struct Inside<'a>(&'a mut Vec<u8>);
    impl fmt::Write for Inside<'_> {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            escape(self.0, text);
            Ok(())
        }
    }
    Inside(out).write_fmt(message).expect("writing to a Vec cannot fail");
}

fn escape(out: &mut Vec<u8>, text: &str) {
    let bytes = text.as_bytes();
    let mut plain = 0;
    for (at, &byte) in bytes.iter().enumerate() {
        if let Some(escape) = escape_of(byte) {
            out.extend_from_slice(&bytes[plain..at]);
            out.extend_from_slice(escape.as_slice());
            plain = at + 1;
        }
    }
    out.extend_from_slice(&bytes[plain..]);
}

enum Escape {
    Short([u8; 2]),
    Long([u8; 6]),
}

impl Escape {
    fn as_slice(&self) -> &[u8] {
        match self {
            Escape::Short(bytes) => bytes,
            Escape::Long(bytes) => bytes,
        }
    }
}

fn escape_of(byte: u8) -> Option<Escape> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    match byte {
        b'"' | b'\\' => Some(Escape::Short([b'\\', byte])),
        b'\n' => Some(Escape::Short(*b"\\n")),
        b'\r' => Some(Escape::Short(*b"\\r")),
        b'\t' => Some(Escape::Short(*b"\\t")),
        0..0x20 => {
            let (high, low) = (DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]);
            Some(Escape::Long([b'\\', b'u', b'0', b'0', high, low]))
        }
        _ => None,
    }
}

pub(super) fn count(out: &mut Vec<u8>, count: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(count).as_bytes());
}

/// Appends a time as milliseconds with three decimals.
pub(super) fn milliseconds(out: &mut Vec<u8>, time_ns: u64) {
    let time_us = time_ns / 1000 + u64::from(time_ns % 1000 >= 500);
    count(out, time_us / 1000);
    let rest = time_us % 1000;
    out.extend_from_slice(&[b'.', digit(rest / 100), digit(rest / 10 % 10), digit(rest % 10)]);
}

fn digit(value: u64) -> u8 {
    b'0' + value as u8
}

pub(super) fn value(out: &mut Vec<u8>, value: f32) -> Result<(), NonFinite> {
    if !value.is_finite() {
        return Err(NonFinite);
    }
    out.extend_from_slice(ryu::Buffer::new().format_finite(value).as_bytes());
    Ok(())
}

/// Appends the values of a vector as a JSON list.
pub(super) fn list(out: &mut Vec<u8>, vector: Vector<'_>) -> Result<(), NonFinite> {
    out.push(b'[');
    let first = out.len();
    let mut digits = ryu::Buffer::new();
    vector.chunks(|chunk| {
        for bytes in chunk.as_chunks::<4>().0 {
            let value = f32::from_le_bytes(*bytes);
            if !value.is_finite() {
                return Err(NonFinite);
            }
            if out.len() > first {
                out.push(b',');
            }
            out.extend_from_slice(digits.format_finite(value).as_bytes());
        }
        Ok(())
    })?;
    out.push(b']');
    Ok(())
}

/// Appends the values of a vector as a JSON string: base64 of little-endian f32.
pub(super) fn base64(out: &mut Vec<u8>, vector: Vector<'_>) -> Result<(), NonFinite> {
    out.push(b'"');
    vector.chunks(|chunk| {
        if !all_finite(chunk) {
            return Err(NonFinite);
        }
        let at = out.len();
        out.resize(at + base64_bytes(chunk.len()), 0);
        STANDARD.encode_slice(chunk, &mut out[at..]).expect("the slice has the length of the encoding");
        Ok(())
    })?;
    out.push(b'"');
    Ok(())
}

/// The length of the base64 of so many bytes.
pub(super) fn base64_bytes(bytes: usize) -> usize {
    bytes.div_ceil(3) * 4
}

/// True exactly when no f32 here is NaN or infinite, that is, when no exponent is all ones. Without a branch per value,
/// so that it becomes vector instructions.
fn all_finite(bytes: &[u8]) -> bool {
    const EXPONENT: u32 = 0x7f80_0000;
    let bad = |bytes: &[u8; 4]| u32::from(u32::from_le_bytes(*bytes) & EXPONENT == EXPONENT);
    bytes.as_chunks::<4>().0.iter().fold(0, |any, bytes| any | bad(bytes)) == 0
}

/// The part of a vector that is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vector<'a> {
    /// f32 little endian.
    bytes: &'a [u8],
    /// What each value is divided by.
    norm: Option<f32>,
}

impl<'a> Vector<'a> {
    pub(super) fn whole(bytes: &'a [u8]) -> Vector<'a> {
        Vector { bytes, norm: None }
    }

    /// The first `kept` values, normalised again if the model's vectors are: the norm of a part is below 1.
    ///
    /// # Errors
    /// Also when a value that is left out is not finite: such a vector cannot be trusted.
    pub(super) fn shortened(bytes: &'a [u8], kept: usize, normalize: bool) -> Result<Vector<'a>, NonFinite> {
        /// What PyTorch's `normalize` puts in the place of a smaller norm: a vector of zeros stays one.
        const NORM_MIN: f64 = 1e-12;
        if kept * 4 == bytes.len() {
            return Ok(Vector::whole(bytes));
        }
        if !all_finite(bytes) {
            return Err(NonFinite);
        }
        let bytes = &bytes[..kept * 4];
        if !normalize {
            return Ok(Vector::whole(bytes));
        }
        // In f64: the square of a large f32 is not an f32.
        let square = |bytes: &[u8; 4]| f64::from(f32::from_le_bytes(*bytes)).powi(2);
        let norm = bytes.as_chunks::<4>().0.iter().map(square).sum::<f64>().sqrt();
        Ok(Vector { bytes, norm: Some(norm.max(NORM_MIN) as f32) })
    }

    /// Hands out the bytes of the values, divided by the norm, a chunk of whole values at a time.
    fn chunks(self, mut write: impl FnMut(&[u8]) -> Result<(), NonFinite>) -> Result<(), NonFinite> {
        let Some(norm) = self.norm else {
            return self.bytes.chunks(CHUNK_BYTES).try_for_each(write);
        };
        let mut scaled = [0; CHUNK_BYTES];
        for chunk in self.bytes.chunks(CHUNK_BYTES) {
            for (to, from) in scaled.as_chunks_mut::<4>().0.iter_mut().zip(chunk.as_chunks::<4>().0) {
                *to = (f32::from_le_bytes(*from) / norm).to_le_bytes();
            }
            write(&scaled[..chunk.len()])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn strings_read_back() {
        let mut all: String = (0..0x250).filter_map(char::from_u32).collect();
        all.push_str("模型 \u{2028} \u{10ffff}");
        for text in ["", "plain", "a\"b\\c/d", "\0\u{1f}\n\r\t\u{7f}", all.as_str()] {
            let json = written(|out| string(out, text));
            assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
            assert_eq!(json.len(), string_bytes(text));
        }
    }

    #[test]
    fn milliseconds_are_rounded_to_three_decimals() {
        let cases = [
            (0, "0.000"),
            (499, "0.000"),
            (500, "0.001"),
            (1_234_567, "1.235"),
            (12_000_000, "12.000"),
            (999_999_500, "1000.000"),
        ];
        for (time_ns, expected) in cases {
            assert_eq!(written(|out| milliseconds(out, time_ns)), expected);
        }
        assert!(written(|out| milliseconds(out, u64::MAX)).len() <= MILLISECONDS_BYTES_MAX);
        assert_eq!(written(|out| count(out, u64::MAX)).len(), COUNT_BYTES_MAX);
    }

    #[test]
    fn values_read_back_bit_for_bit_and_keep_their_bound() {
        // A stride that is prime to 2^32 visits every exponent and many mantissas.
        let sampled = (0..300_000u32).map(|step| step.wrapping_mul(2_654_435_761));
        // Just below 1e-5 stand the longest texts.
        let longest = (0..200_000u32).map(|step| (-1e-5f32).to_bits() - 1 - step);
        let edges =
            [0, 0x8000_0000, 1, 0x8000_0001, f32::MAX.to_bits(), f32::MIN.to_bits(), f32::MIN_POSITIVE.to_bits()];
        let mut most = 0;
        for bits in sampled.chain(longest).chain(edges) {
            let number = f32::from_bits(bits);
            let mut out = Vec::new();
            if value(&mut out, number).is_err() {
                assert!(!number.is_finite());
                continue;
            }
            assert!(number.is_finite());
            let text = std::str::from_utf8(&out).unwrap();
            assert_eq!(text.parse::<f32>().unwrap().to_bits(), bits, "{text}");
            serde_json::from_str::<serde_json::Number>(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            most = most.max(text.len());
        }
        assert!(most < VALUE_BYTES_MAX, "a value of {most} bytes and its comma");
    }

    #[test]
    fn a_chunked_vector_is_the_same_as_a_whole_one() {
        for length in [0, 1, 2, 3, 767, 768, 769, 1535, 1537, 4096] {
            let values: Vec<f32> = (0..length).map(|index| (index as f32 + 0.5) * -0.37).collect();
            let bytes = bytes(&values);
            let text = written(|out| list(out, Vector::whole(&bytes)).unwrap());
            assert_eq!(serde_json::from_str::<Vec<f32>>(&text).unwrap(), values);
            let text = written(|out| base64(out, Vector::whole(&bytes)).unwrap());
            assert_eq!(text.len(), 2 + base64_bytes(bytes.len()));
            assert_eq!(STANDARD.decode(text.trim_matches('"')).unwrap(), bytes);
        }
    }

    #[test]
    fn a_value_that_is_not_finite_is_found_wherever_it_stands() {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::from_bits(0x7f80_0001)] {
            for length in [1, 5, 769] {
                for at in 0..length {
                    let mut values = vec![f32::MAX; length];
                    values[at] = bad;
                    let bytes = bytes(&values);
                    assert_eq!(list(&mut Vec::new(), Vector::whole(&bytes)), Err(NonFinite));
                    assert_eq!(base64(&mut Vec::new(), Vector::whole(&bytes)), Err(NonFinite));
                    if length > 1 {
                        assert_eq!(Vector::shortened(&bytes, 1, true).unwrap_err(), NonFinite);
                    }
                }
            }
        }
    }

    #[test]
    fn a_shortened_vector_has_norm_one_again() {
        let values: Vec<f32> = (0..1024).map(|index| ((index * 7919 % 1000) as f32 - 500.0) * 1e-3).collect();
        for scale in [1.0, 1e30, 1e-30] {
            let bytes = bytes(&values.iter().map(|value| value * scale).collect::<Vec<_>>());
            for kept in [1, 2, 768, 1000] {
                let vector = Vector::shortened(&bytes, kept, true).unwrap();
                let text = written(|out| list(out, vector).unwrap());
                let back: Vec<f32> = serde_json::from_str(&text).unwrap();
                assert_eq!(back.len(), kept);
                let norm = back.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
                // Below 1e-12 a norm is taken for 1e-12.
                let expected = if scale < 1e-20 { 0.0 } else { 1.0 };
                assert!((norm - expected).abs() < 1e-6, "scale {scale}, kept {kept}: norm {norm}");
            }
        }
        let bytes = bytes(&[3.0, 4.0, 12.0]);
        assert_eq!(written(|out| list(out, Vector::shortened(&bytes, 2, false).unwrap()).unwrap()), "[3.0,4.0]");
        assert_eq!(written(|out| list(out, Vector::shortened(&bytes, 2, true).unwrap()).unwrap()), "[0.6,0.8]");
        let zeros = [0; 12];
        assert_eq!(written(|out| list(out, Vector::shortened(&zeros, 2, true).unwrap()).unwrap()), "[0.0,0.0]");
    }
}
