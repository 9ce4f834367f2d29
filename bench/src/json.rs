//! One pass over the bytes of a JSON document, for answers that consist almost entirely of numbers.
//!
//! Owns the grammar (RFC 8259) and nothing of what a document means; [`crate::check`] drives it. Numbers are checked, not
//! converted: their digits are counted sixteen at a time, and only those that could overflow are parsed. Nothing is
//! allocated. Invariant: whatever is accepted here, serde_json accepts too, and the other way round, numbers beyond `f32` aside.

use crate::fault::Fault;

/// Nesting of values that are skipped; serde_json's limit is the same.
const DEPTH_MAX: u32 = 127;

/// A number of so many digits before the point is below the largest `f32`, 3.4e38.
const WHOLE_DIGITS_SAFE: usize = 38;

#[derive(Clone, Debug)]
pub struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Scanner<'a> {
    pub fn new(bytes: &'a [u8]) -> Scanner<'a> {
        Scanner { bytes, at: 0 }
    }

    /// The byte at `at`, 0 at the end: NUL is nowhere allowed, so that the end needs no test of its own.
    #[inline(always)]
    fn byte(&self, at: usize) -> u8 {
        self.bytes.get(at).copied().unwrap_or(0)
    }

    /// The first byte of what comes next, after blanks.
    #[inline(always)]
    pub fn peek(&mut self) -> u8 {
        let mut byte = self.byte(self.at);
        while matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
            self.at += 1;
            byte = self.byte(self.at);
        }
        byte
    }

    /// Takes this byte if it comes next.
    #[inline(always)]
    pub fn take(&mut self, wanted: u8) -> bool {
        // A branch and not `self.at += usize::from(found)`: optimised, rustc 1.95 drops that addition where the result is
        // branched on as well (rust-lang/rust#158206).
        if self.peek() == wanted {
            self.at += 1;
            return true;
        }
        false
    }

    pub fn expect(&mut self, wanted: u8) -> Result<(), Fault> {
        if self.take(wanted) { Ok(()) } else { Err(Fault::NotJson) }
    }

    /// Nothing but blanks is left.
    pub fn end(&mut self) -> Result<(), Fault> {
        self.peek();
        if self.at == self.bytes.len() { Ok(()) } else { Err(Fault::NotJson) }
    }

    /// A list: `item` is called at the beginning of each element.
    #[inline(always)]
    pub fn list(&mut self, mut item: impl FnMut(&mut Self) -> Result<(), Fault>) -> Result<(), Fault> {
        self.expect(b'[')?;
        if self.take(b']') {
            return Ok(());
        }
        loop {
            item(self)?;
            if !self.take(b',') {
                return self.expect(b']');
            }
        }
    }

    /// An object: `entry` is called at the beginning of each value, with its key as it is written.
    #[inline(always)]
    pub fn object(&mut self, mut entry: impl FnMut(&mut Self, &'a [u8]) -> Result<(), Fault>) -> Result<(), Fault> {
        self.expect(b'{')?;
        if self.take(b'}') {
            return Ok(());
        }
        loop {
            self.peek();
            let key = self.string()?;
            self.expect(b':')?;
            entry(self, key)?;
            if !self.take(b',') {
                return self.expect(b'}');
            }
        }
    }

    /// What stands between the quotes, escapes as they are.
    pub fn string(&mut self) -> Result<&'a [u8], Fault> {
        let text = self.raw_string()?;
        if text.iter().any(|&byte| byte < b' ') || std::str::from_utf8(text).is_err() || !escapes_are_right(text) {
            return Err(Fault::NotJson);
        }
        Ok(text)
    }

    /// The same without a look at the content, for whoever checks that more strictly.
    pub fn raw_string(&mut self) -> Result<&'a [u8], Fault> {
        self.expect(b'"')?;
        let start = self.at;
        let mut from = start;
        loop {
            let rest = self.bytes.get(from..).ok_or(Fault::NotJson)?;
            let found = memchr::memchr2(b'"', b'\\', rest).ok_or(Fault::NotJson)?;
            if rest[found] == b'"' {
                self.at = from + found + 1;
                return Ok(&self.bytes[start..from + found]);
            }
            from += found + 2;
        }
    }

    /// A finite number: its text.
    #[inline(always)]
    pub fn number(&mut self) -> Result<&'a [u8], Fault> {
        self.peek();
        let start = self.at;
        let whole_from = start + usize::from(self.byte(start) == b'-');
        let mut at = whole_from;
        while self.byte(at).is_ascii_digit() {
            at += 1;
        }
        let whole = at - whole_from;
        if whole == 0 || (whole > 1 && self.byte(whole_from) == b'0') {
            return Err(self.not_a_number(start));
        }
        if self.byte(at) == b'.' {
            let fraction = digits(self.bytes, at + 1);
            if fraction == 0 {
                return Err(Fault::NotJson);
            }
            at += 1 + fraction;
        }
        if self.byte(at) | 0x20 == b'e' || whole > WHOLE_DIGITS_SAFE {
            at = self.long_number(start, at)?;
        }
        self.at = at;
        Ok(&self.bytes[start..at])
    }

    /// The end of the number that begins at `start`, its exponent (if any) at `at`. Finite as `f32`, or a fault.
    #[cold]
    fn long_number(&self, start: usize, mut at: usize) -> Result<usize, Fault> {
        if self.byte(at) | 0x20 == b'e' {
            at += 1 + usize::from(matches!(self.byte(at + 1), b'+' | b'-'));
            let exponent = digits(self.bytes, at);
            if exponent == 0 {
                return Err(Fault::NotJson);
            }
            at += exponent;
        }
        let value = std::str::from_utf8(&self.bytes[start..at]).ok().and_then(|text| text.parse::<f32>().ok());
        if value.ok_or(Fault::NotJson)?.is_finite() { Ok(at) } else { Err(Fault::NotFinite) }
    }

    /// Where a number was expected: words that servers write for what is none have a name of their own.
    #[cold]
    fn not_a_number(&self, start: usize) -> Fault {
        let rest = &self.bytes[start.min(self.bytes.len())..];
        let words: [&[u8]; 7] = [b"null", b"NaN", b"-NaN", b"nan", b"Infinity", b"-Infinity", b"inf"];
        if words.iter().any(|word| rest.starts_with(word)) { Fault::NotFinite } else { Fault::NotJson }
    }

    /// Any value.
    pub fn skip(&mut self) -> Result<(), Fault> {
        self.skip_nested(DEPTH_MAX)
    }

    fn skip_nested(&mut self, depth: u32) -> Result<(), Fault> {
        match self.peek() {
            b'"' => self.string().map(drop),
            b'[' | b'{' if depth == 0 => Err(Fault::NotJson),
            b'[' => self.list(|inner| inner.skip_nested(depth - 1)),
            b'{' => self.object(|inner, _| inner.skip_nested(depth - 1)),
            b't' => self.word(b"true"),
            b'f' => self.word(b"false"),
            b'n' => self.word(b"null"),
            _ => self.number().map(drop),
        }
    }

    fn word(&mut self, word: &[u8]) -> Result<(), Fault> {
        if self.bytes[self.at..].starts_with(word) {
            self.at += word.len();
            return Ok(());
        }
        Err(Fault::NotJson)
    }
}

/// How many decimal digits stand at `from`, counted sixteen at a time.
#[inline(always)]
fn digits(bytes: &[u8], from: usize) -> usize {
    const ZEROS: u128 = u128::from_ne_bytes([b'0'; 16]);
    const LOW_BITS: u128 = u128::from_ne_bytes([0x7f; 16]);
    const ABOVE_NINE: u128 = u128::from_ne_bytes([0x76; 16]);
    let mut at = from;
    while let Some(sixteen) = bytes.get(at..at + 16) {
        let sixteen = u128::from_le_bytes(sixteen.try_into().expect("sixteen bytes"));
        // A digit becomes 0 to 9; the sum reaches the byte's highest bit from ten on, and no carry leaves a byte.
        let value = sixteen ^ ZEROS;
        let others = (((value & LOW_BITS) + ABOVE_NINE) | value) & !LOW_BITS;
        if others != 0 {
            return at + others.trailing_zeros() as usize / 8 - from;
        }
        at += 16;
    }
    while bytes.get(at).is_some_and(u8::is_ascii_digit) {
        at += 1;
    }
    at.saturating_sub(from)
}

/// Each backslash begins an escape of the grammar; surrogates come in pairs, as serde_json has it.
fn escapes_are_right(text: &[u8]) -> bool {
    let mut at = 0;
    while let Some(found) = memchr::memchr(b'\\', &text[at..]) {
        at += found;
        match text.get(at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => at += 2,
            Some(b'u') => match four_digits(text, at + 2) {
                Some(0xd800..=0xdbff) => {
                    let pair = text.get(at + 6..at + 8) == Some(b"\\u");
                    if !pair || !matches!(four_digits(text, at + 8), Some(0xdc00..=0xdfff)) {
                        return false;
                    }
                    at += 12;
                }
                Some(0xdc00..=0xdfff) | None => return false,
                Some(_) => at += 6,
            },
            Some(_) | None => return false,
        }
    }
    true
}

fn four_digits(text: &[u8], at: usize) -> Option<u32> {
    let digits = text.get(at..at + 4)?;
    digits.iter().try_fold(0, |value, &digit| Some(value * 16 + char::from(digit).to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(text: &[u8]) -> bool {
        let mut scanner = Scanner::new(text);
        scanner.skip().and_then(|()| scanner.end()).is_ok()
    }

    /// serde_json takes any number that an f64 holds; here it must be finite as f32.
    fn reference_accepts(text: &[u8]) -> bool {
        fn finite(value: &serde_json::Value) -> bool {
            match value {
                serde_json::Value::Number(number) => (number.as_f64().unwrap() as f32).is_finite(),
                serde_json::Value::Array(items) => items.iter().all(finite),
                serde_json::Value::Object(entries) => entries.values().all(finite),
                _ => true,
            }
        }
        serde_json::from_slice::<serde_json::Value>(text).is_ok_and(|value| finite(&value))
    }

    #[test]
    fn the_grammar_at_its_corners() {
        let right = [
            "0",
            "-0",
            "0.5",
            "-0.0",
            "12",
            "1e5",
            "1E+5",
            "1e-400",
            "1.25e-7",
            "null",
            "true",
            "false",
            "\"\"",
            "[]",
            "{}",
            " [ 1 , 2 ] ",
            "{\"a\":{}}",
            "\"\\u00e9\\ud83d\\ude00\\n\"",
            "\"é\"",
            "[[],[[]]]",
            "340282340000000000000000000000000000000",
            "0.123456789012345678901234567890123456789",
        ];
        let wrong = [
            "",
            "-",
            "01",
            "-01",
            "1.",
            ".5",
            "+1",
            "1e",
            "1e+",
            "0x1",
            "1 2",
            "[1,]",
            "[,1]",
            "{\"a\"}",
            "{\"a\":}",
            "{a:1}",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\\ud800\"",
            "\"\\udc00\"",
            "\"\n\"",
            "\"",
            "\"\\\"",
            "[",
            "]",
            "{",
            "nul",
            "nulll",
            "NaN",
            "Infinity",
            "-Infinity",
            "1e999",
            "-1e39",
            "4e38",
            "[1}",
            "{\"a\":1,}",
            "1000000000000000000000000000000000000000",
            "\u{0}",
            "[1\u{0}]",
        ];
        for text in right {
            assert!(accepts(text.as_bytes()), "{text}");
            assert!(reference_accepts(text.as_bytes()), "{text}: the reference");
        }
        for text in wrong {
            assert!(!accepts(text.as_bytes()), "{text}");
            assert!(!reference_accepts(text.as_bytes()), "{text}: the reference");
        }
        assert!(!accepts(b"\"\xff\""));
    }

    #[test]
    fn nesting_is_bounded_where_the_reference_has_its_bound() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth)).into_bytes();
        for depth in [1, 100, 127, 128, 129, 100_000] {
            assert_eq!(accepts(&nested(depth)), reference_accepts(&nested(depth)), "{depth}");
        }
    }

    #[test]
    fn random_documents_and_broken_ones_are_judged_as_by_the_reference() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut refused = 0;
        for _ in 0..3_000 {
            let mut text = document(&mut random, 4).into_bytes();
            assert!(accepts(&text), "{}", String::from_utf8_lossy(&text));
            for _ in 0..8 {
                let kept = text.clone();
                let at = random.usize(..text.len());
                match random.u8(..4) {
                    0 => text[at] = b"{}[]\",:.-+eE0129 nul\\/\x00\xc3"[random.usize(..23)],
                    1 => drop(text.remove(at)),
                    2 => text.insert(at, b"{}[]\",:.-+eE0129 nul\\/\x00\xc3"[random.usize(..23)]),
                    _ => text.truncate(at),
                }
                let expected = reference_accepts(&text);
                refused += u32::from(!expected);
                assert_eq!(accepts(&text), expected, "{}", String::from_utf8_lossy(&text));
                text = kept;
            }
        }
        assert!(refused > 10_000, "{refused} of the documents were broken");
    }

    fn document(random: &mut fastrand::Rng, depth: u32) -> String {
        match random.u8(..if depth == 0 { 5 } else { 9 }) {
            0 => ["null", "true", "false"][random.usize(..3)].to_owned(),
            1 => serde_json::to_string(&(0..random.usize(..6)).map(|_| random.char(..)).collect::<String>()).unwrap(),
            2 => random.i64(..).to_string(),
            3 => serde_json::to_string(&((random.f32() - 0.5) * 10f32.powi(random.i32(-30..30)))).unwrap(),
            4 => serde_json::to_string(&(random.f32() - 0.5)).unwrap(),
            5 | 6 => {
                let items: Vec<String> = (0..random.usize(..5)).map(|_| document(random, depth - 1)).collect();
                format!("[{}]", items.join([",", ", ", "\n,"][random.usize(..3)]))
            }
            _ => {
                let items: Vec<String> =
                    (0..random.usize(..5)).map(|key| format!("\"k{key}\":{}", document(random, depth - 1))).collect();
                format!("{{{}}}", items.join(","))
            }
        }
    }

    #[test]
    fn digits_are_counted_across_every_boundary() {
        for count in 0..40 {
            for after in 0..20 {
                let text = format!("x{}{}", "7".repeat(count), "-".repeat(after));
                assert_eq!(digits(text.as_bytes(), 1), count);
            }
        }
        for byte in 0..=255u8 {
            let mut sixteen = [b'5'; 20];
            sixteen[6] = byte;
            assert_eq!(digits(&sixteen, 0), if byte.is_ascii_digit() { 20 } else { 6 }, "{byte}");
        }
    }
}
