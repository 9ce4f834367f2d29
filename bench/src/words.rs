//! Numbers, loads and labels as people read them.
//!
//! Owns how a figure is written (three significant digits, a unit that fits, commas between thousands) and how a text that
//! a user chose is made harmless for a terminal or a page. Knows no table and no plot. Invariant: what cannot be written as
//! a number (not finite) is a dash, never `NaN`.

use crate::record::{Arrivals, Load};

/// Stands for a figure that there is not.
pub const NOTHING: &str = "–";

/// `12345` as `12,345`.
pub fn count(value: u64) -> String {
    thousands(&value.to_string())
}

/// Three significant digits, whole above 100: `1,234`, `12.3`, `0.0123`.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return NOTHING.to_owned();
    }
    if value == 0.0 {
        return "0".to_owned();
    }
    let decimals = decimals(value);
    // Rounding may carry into one more digit: 9.996 is 10.0, not 10.00.
    let rounded: f64 = format!("{value:.decimals$}").parse().unwrap_or(value);
    let decimals = if rounded == 0.0 { decimals } else { decimals.min(self::decimals(rounded)) };
    thousands(&format!("{value:.decimals$}"))
}

fn decimals(value: f64) -> usize {
    (2 - value.abs().log10().floor() as i64).clamp(0, 6) as usize
}

/// No more digits than the value has: for ticks of an axis.
pub fn exact(value: f64) -> String {
    if !value.is_finite() {
        return NOTHING.to_owned();
    }
    let text = format!("{value:.9}");
    thousands(text.trim_end_matches('0').trim_end_matches('.'))
}

fn thousands(text: &str) -> String {
    let (sign, rest) = text.strip_prefix('-').map_or(("", text), |rest| ("-", rest));
    let (whole, fraction) = rest.split_once('.').map_or((rest, None), |(whole, fraction)| (whole, Some(fraction)));
    let mut written = sign.to_owned();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            written.push(',');
        }
        written.push(digit);
    }
    if let Some(fraction) = fraction {
        written.push('.');
        written.push_str(fraction);
    }
    written
}

/// A unit of time: its length in microseconds and its name, two characters wide so that columns align.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimeUnit {
    pub us: f64,
    pub name: &'static str,
}

const UNITS: [TimeUnit; 3] =
    [TimeUnit { us: 1.0, name: "µs" }, TimeUnit { us: 1e3, name: "ms" }, TimeUnit { us: 1e6, name: "s" }];

/// The largest unit in which the time is at least 1 (after rounding to three digits).
pub fn unit_of(time_us: f64) -> TimeUnit {
    UNITS.into_iter().rev().find(|unit| time_us.abs() >= unit.us * 0.9995).unwrap_or(UNITS[0])
}

/// `812 µs`, `1.23 ms`, `12.3 s`.
pub fn time(time_us: f64) -> String {
    if !time_us.is_finite() {
        return NOTHING.to_owned();
    }
    let unit = unit_of(time_us);
    format!("{} {}", number(time_us / unit.us), unit.name)
}

/// Of one, in percent.
pub fn share(part: f64) -> String {
    if part.is_finite() { format!("{} %", number(part * 100.0)) } else { NOTHING.to_owned() }
}

/// In powers of ten, as disks and networks count.
pub fn bytes(value: u64) -> String {
    let (divisor, unit) = match value {
        0..1_000 => return format!("{value} B"),
        1_000..1_000_000 => (1e3, "kB"),
        1_000_000..1_000_000_000 => (1e6, "MB"),
        _ => (1e9, "GB"),
    };
    format!("{} {unit}", number(value as f64 / divisor))
}

/// `open, 2,000/s poisson, 64 connections`; `saturation, 64 connections`.
pub fn load(load: &Load) -> String {
    match load {
        Load::Open { rate, arrivals, connections } => {
            let arrivals = match arrivals {
                Arrivals::Poisson => "poisson",
                Arrivals::Constant => "constant",
            };
            format!("open, {}/s {arrivals}, up to {}", exact(*rate), plural(u64::from(*connections), "connection"))
        }
        Load::Closed { concurrency } => format!("saturation, {}", plural(u64::from(*concurrency), "connection")),
    }
}

/// What tells a load from the others of its sweep: `2,000/s`, `64 connections`.
pub fn load_level(load: &Load) -> String {
    match load {
        Load::Open { rate, .. } => format!("{}/s", exact(*rate)),
        Load::Closed { concurrency } => plural(u64::from(*concurrency), "connection"),
    }
}

/// `1 round`, `5 rounds`.
pub fn plural(value: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(value), if value == 1 { "" } else { "s" })
}

/// For a terminal: without control characters, which could move its cursor or colour it.
pub fn plain(text: &str) -> String {
    text.chars().map(|character| if is_hidden(character) { '\u{fffd}' } else { character }).collect()
}

/// True for what is not seen itself and changes how the rest is seen: controls, and the marks that turn the direction of writing.
fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// For a page, as text or as an attribute's value.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' => escaped.push('\n'),
            other if is_hidden(other) => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_commas() {
        let cases = [
            (0.0, "0"),
            (0.012345, "0.0123"),
            (1.0, "1.00"),
            (9.996, "10.0"),
            (99.96, "100"),
            (123.4, "123"),
            (1234.5, "1,234"),
            (-1234567.0, "-1,234,567"),
            (f64::NAN, "–"),
            (f64::INFINITY, "–"),
        ];
        for (value, written) in cases {
            assert_eq!(number(value), written);
        }
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(count(100), "100");
        assert_eq!(exact(0.5), "0.5");
        assert_eq!(exact(20_000.0), "20,000");
    }

    #[test]
    fn a_time_has_the_unit_that_fits() {
        let cases = [
            (0.0, "0 µs"),
            (8.125, "8.12 µs"),
            (812.4, "812 µs"),
            (999.4, "999 µs"),
            (999.7, "1.00 ms"),
            (12_345.0, "12.3 ms"),
            (999_700.0, "1.00 s"),
            (61e6, "61.0 s"),
            (f64::NAN, "–"),
        ];
        for (value, written) in cases {
            assert_eq!(time(value), written);
        }
    }

    #[test]
    fn loads_say_what_they_are() {
        let open = Load::Open { rate: 2000.0, arrivals: Arrivals::Poisson, connections: 64 };
        assert_eq!(load(&open), "open, 2,000/s poisson, up to 64 connections");
        assert_eq!(load_level(&open), "2,000/s");
        assert_eq!(load(&Load::Closed { concurrency: 1 }), "saturation, 1 connection");
    }

    #[test]
    fn text_of_users_is_harmless() {
        assert_eq!(escape("<b a=\"x\" b='y'>&\u{1b}"), "&lt;b a=&quot;x&quot; b=&#39;y&#39;&gt;&amp;\u{fffd}");
        assert_eq!(plain("a\u{1b}[31mb\n"), "a\u{fffd}[31mb\u{fffd}");
        assert_eq!(plain("a\u{202e}b\u{9b}1mé"), "a\u{fffd}b\u{fffd}1mé");
    }
}
