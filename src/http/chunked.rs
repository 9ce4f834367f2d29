//! The chunked transfer coding, decoded in place.
//!
//! ```text
//!       start        write      read          scanned         filled
//! | head  | decoded body | (gap)  | a line without its end     | free
//! ```
//!
//! Data moves from `read` down to `write`; nothing moves up, so no second buffer is needed. When the bytes at hand are used
//! up, the gap is closed ([`Decoder::close_gap`]), and with that a buffer holds at most the decoded body and one line:
//! what a client spends on framing costs it time, never us memory.
//!
//! Invariants: `start <= write <= read <= scanned <= filled`; each byte is searched for its line end once and moved at most
//! once (a line's beginning once more, when the gap before it is closed). A line ends in CR LF and holds no control
//! characters; extensions and trailers are checked, counted against one limit and dropped.

use memchr::memchr;

use super::request::{hex_digit, is_trailer};
use super::{Limits, Refusal, is_value_byte, work};

/// Digits a chunk's size may have, leading zeros included: as many as a u64 has room for.
const SIZE_DIGITS_MAX: usize = 16;

/// What a line needs besides extensions or trailers: the size's digits, CR and LF.
pub(super) const LINE_BYTES_EXTRA: usize = SIZE_DIGITS_MAX + 2;

/// What comes next at `read`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// The line with a chunk's size.
    Size,
    /// So many bytes of the chunk's data.
    Data { left: usize },
    /// CR LF after the data.
    DataEnd,
    /// A trailer field or the blank line that ends the body.
    Trailer,
}

/// How far a chunked body has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Decoder {
    start: usize,
    write: usize,
    read: usize,
    scanned: usize,
    next: Next,
    /// What extensions may still take, and after the last chunk what trailers may.
    extra_left: usize,
}

/// What [`Decoder::decode`] arrived at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// All bytes are used but for the beginning of a line.
    NeedMore,
    /// The body is `start..end`, and the coding ends before `consumed`.
    Complete { start: usize, end: usize, consumed: usize },
}

impl Decoder {
    /// A body that begins at offset `start`.
    pub(super) fn new(start: usize, limits: &Limits) -> Decoder {
        let extra_left = limits.chunk_extra_bytes_max;
        Decoder { start, write: start, read: start, scanned: start, next: Next::Size, extra_left }
    }

    pub(super) fn decode(&mut self, filled: &mut [u8], limits: &Limits) -> Result<Progress, Refusal> {
        loop {
            match self.next {
                Next::Size => {
                    let window = SIZE_DIGITS_MAX + self.extra_left;
                    let Some(end) = self.line(filled, window, Refusal::ChunkExtensionsTooLarge)? else { break };
                    let (size, extension_bytes) = parse_size_line(&filled[self.read..end])?;
                    self.extra_left =
                        self.extra_left.checked_sub(extension_bytes).ok_or(Refusal::ChunkExtensionsTooLarge)?;
                    let room = limits.body_bytes_max - (self.write - self.start);
                    if size > room as u64 {
                        return Err(Refusal::BodyTooLarge);
                    }
                    self.read = self.scanned;
                    self.next = Next::Data { left: size as usize };
                    if size == 0 {
                        self.next = Next::Trailer;
                        self.extra_left = limits.chunk_extra_bytes_max;
                    }
                }
                Next::Data { left } => {
                    let count = left.min(filled.len() - self.read);
                    filled.copy_within(self.read..self.read + count, self.write);
                    self.write += count;
                    self.read += count;
                    self.scanned = self.read;
                    self.next = if count == left { Next::DataEnd } else { Next::Data { left: left - count } };
                    if count < left {
                        break;
                    }
                }
                Next::DataEnd => {
                    let end = &filled[self.read..];
                    let end = &end[..end.len().min(2)];
                    if !b"\r\n".starts_with(end) {
                        return Err(Refusal::ChunkEndInvalid);
                    }
                    if end.len() < 2 {
                        break;
                    }
                    self.read += 2;
                    self.scanned = self.read;
                    self.next = Next::Size;
                }
                Next::Trailer => {
                    let Some(end) = self.line(filled, self.extra_left, Refusal::TrailersTooLarge)? else { break };
                    if end == self.read {
                        return Ok(Progress::Complete { start: self.start, end: self.write, consumed: self.scanned });
                    }
                    if !is_trailer(&filled[self.read..end]) {
                        return Err(Refusal::TrailerInvalid);
                    }
                    let bytes = self.scanned - self.read;
                    self.extra_left = self.extra_left.checked_sub(bytes).ok_or(Refusal::TrailersTooLarge)?;
                    self.read = self.scanned;
                }
            }
        }
        Ok(Progress::NeedMore)
    }

    /// Finds the end of the line at `read`, which may have `bytes_max` bytes before its CR LF. Returns where the CR is and
    /// leaves `scanned` behind the LF.
    fn line(&mut self, filled: &[u8], bytes_max: usize, too_long: Refusal) -> Result<Option<usize>, Refusal> {
        let line_end_max = self.read + bytes_max + 2;
        let window = filled.len().min(line_end_max);
        let searched = &filled[self.scanned..window];
        let found = memchr(b'\n', searched);
        let looked_at = found.map_or(searched.len(), |at| at + 1);
        work::add(looked_at);
        self.scanned += looked_at;
        if found.is_none() {
            return if window == line_end_max { Err(too_long) } else { Ok(None) };
        }
        match filled[self.read..self.scanned] {
            [.., b'\r', b'\n'] => Ok(Some(self.scanned - 2)),
            _ => Err(Refusal::LineFeedBare),
        }
    }

    /// Moves the beginning of a line down to the decoded body. Returns how many bytes of the buffer remain in use.
    pub(super) fn close_gap(&mut self, filled: &mut [u8]) -> usize {
        let gap = self.read - self.write;
        if gap > 0 {
            work::add(filled.len() - self.read);
            filled.copy_within(self.read.., self.write);
            self.read -= gap;
            self.scanned -= gap;
        }
        filled.len() - gap
    }

    /// # Panics
    /// When the cursors are out of order, a broken invariant.
    pub(super) fn check_invariants(&self, filled: usize) {
        assert!(self.start <= self.write && self.write <= self.read, "data moves down: {self:?}");
        assert!(
            self.read <= self.scanned && self.scanned <= filled,
            "cursors stay inside the buffer: {self:?}, {filled}"
        );
    }
}

/// `1*HEXDIG [ BWS ";" extension ]` → the size and how many bytes follow its digits. The line's end is not part of `line`.
fn parse_size_line(line: &[u8]) -> Result<(u64, usize), Refusal> {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    if digits == 0 || digits > SIZE_DIGITS_MAX {
        return Err(Refusal::ChunkSizeInvalid);
    }
    let size =
        line[..digits].iter().filter_map(|&digit| hex_digit(digit)).fold(0, |size, digit| size << 4 | u64::from(digit));
    let extension = &line[digits..];
    if let Some(first) = extension.iter().find(|&&byte| byte != b' ' && byte != b'\t') {
        if *first != b';' {
            return Err(Refusal::ChunkSizeInvalid);
        }
        if !extension.iter().all(|&byte| is_value_byte(byte)) {
            return Err(Refusal::ChunkExtensionInvalid);
        }
    } else if !extension.is_empty() {
        // Blanks alone: some programs read on past them, some do not.
        return Err(Refusal::ChunkSizeInvalid);
    }
    Ok((size, extension.len()))
}
