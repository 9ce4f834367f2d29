//! The process's own messages: one line each on the error stream, by level.
//!
//! For what an operator must know of the server itself; requests go to the [`journal`](crate::journal). A line begins with
//! its level, or with nothing where it merely informs. May not be used by the reactor, for a full pipe would stop it: what
//! the reactor has to say, others say for it.
//!
//! Invariant: whatever a message quotes, it is one line, and a terminal obeys none of it.

use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::sync::atomic::{AtomicU8, Ordering};

/// How much is said: a level and those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Error,
    Warn,
    Info,
    Debug,
}

impl Level {
    pub const ALL: [Level; 4] = [Level::Error, Level::Warn, Level::Info, Level::Debug];

    pub fn name(self) -> &'static str {
        match self {
            Level::Error => "error",
            Level::Warn => "warn",
            Level::Info => "info",
            Level::Debug => "debug",
        }
    }

    fn prefix(self) -> &'static str {
        match self {
            Level::Error => "error: ",
            Level::Warn => "warning: ",
            Level::Info => "",
            Level::Debug => "debug: ",
        }
    }
}

static LEVEL: AtomicU8 = AtomicU8::new(Level::Info as u8);

/// Says how much is said from here on, in the whole process.
pub fn set_level(level: Level) {
    LEVEL.store(level as u8, Ordering::Relaxed);
}

pub fn error(message: fmt::Arguments<'_>) {
    say(Level::Error, message);
}

pub fn warn(message: fmt::Arguments<'_>) {
    say(Level::Warn, message);
}

pub fn info(message: fmt::Arguments<'_>) {
    say(Level::Info, message);
}

pub fn debug(message: fmt::Arguments<'_>) {
    say(Level::Debug, message);
}

fn say(level: Level, message: fmt::Arguments<'_>) {
    if level as u8 <= LEVEL.load(Ordering::Relaxed) {
        // In one write, so that lines of several threads do not mix. Where the stream is closed there is nobody to tell.
        let _ = std::io::stderr().write_all(line(level, message).as_bytes());
    }
}

fn line(level: Level, message: fmt::Arguments<'_>) -> String {
    format!("{}{}\n", level.prefix(), visible(&message.to_string()).replace('\n', "\n  "))
}

/// The text with what terminals obey, and what turns lines round, as escapes that JSON knows too: names in files are
/// anybody's.
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        let turns = matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if turns || (letter.is_control() && letter != '\n') {
            write!(shown, "\\u{:04x}", u32::from(letter)).expect("a String takes all");
        } else {
            shown.push(letter);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_shown() {
        assert_eq!(
            visible("a\u{1b}[31mb\u{9b}2J\u{202e}\nc\tü\u{7f}"),
            "a\\u001b[31mb\\u009b2J\\u202e\nc\\u0009ü\\u007f"
        );
        let json = serde_json::json!({"name": "\u{1b}\u{9b}\n"}).to_string();
        assert_eq!(serde_json::from_str::<serde_json::Value>(&visible(&json)).unwrap()["name"], "\u{1b}\u{9b}\n");
    }

    #[test]
    fn a_line_says_its_level_and_further_lines_are_indented() {
        assert_eq!(line(Level::Warn, format_args!("a {}", "b\nerror: c")), "warning: a b\n  error: c\n");
        assert_eq!(line(Level::Info, format_args!("{}", "\u{1b}c")), "\\u001bc\n");
        assert!(Level::Error < Level::Warn && Level::Info < Level::Debug);
    }
}
