//! Numbers against one another: bounds that could never be reached, and memory that could never be enough.
//!
//! A message names the two settings that clash, and stands where the one that was set last was given.

use super::read::Reader;
use super::table::show_bytes;
use super::{Limits, Settings};
use crate::job::{Buffers, PieceBounds};

/// What an idle connection takes (DESIGN's target).
const CONNECTION_BYTES: u64 = 2_048;
/// A job's slot in the reactor's table, generously.
const JOB_BYTES: u64 = 1_024;
/// What the JSON parser keeps for one value: 24 bytes on its tape, 4 in its index, the rest for growth.
const JSON_VALUE_BYTES: u64 = 32;
/// Output values of one text, assumed until models are loaded: the width of the large common encoders.
pub const WIDTH_ASSUMED: usize = 1_024;

/// What all buffers together may take if nobody says, on a machine of a few cores with models of usual lengths.
pub const MEMORY_BYTES: u64 = 256_000_000;

/// Who takes how much of `memory_bytes_max`, each with the key that governs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    pub parts: Vec<(&'static str, u64)>,
}

impl Memory {
    pub fn total_bytes(&self) -> u64 {
        self.parts.iter().map(|(_, bytes)| bytes).sum()
    }

    /// The key that takes most.
    pub fn largest(&self) -> (&'static str, u64) {
        self.parts.iter().copied().max_by_key(|(_, bytes)| *bytes).expect("the list of parts is never empty")
    }
}

impl Settings {
    /// What all pools take when full, and one largest request beside them. `serve` asks again with the real bounds once
    /// its models are loaded.
    pub fn memory(&self, bounds: PieceBounds, width_max: usize) -> Memory {
        let Limits { connections_max, jobs_max, pieces_max, json_values_max, .. } = self.limits;
        // Ids and types of each token, end and outputs of each sequence.
        let piece_bytes =
            u64::from(bounds.tokens_max) * 5 + u64::from(bounds.sequences_max) * (4 + 4 * width_max as u64);
        Memory {
            parts: vec![
                ("limits.connections_max", connections_max as u64 * CONNECTION_BYTES),
                ("limits.jobs_max", jobs_max as u64 * JOB_BYTES),
                ("limits.pieces_max", pieces_max as u64 * piece_bytes),
                ("limits.json_values_max", (self.threads.workers * json_values_max) as u64 * JSON_VALUE_BYTES),
                ("limits.body_bytes_max", self.limits.body_bytes_max as u64),
                ("limits.answer_bytes_max", self.limits.answer_bytes_max as u64),
            ],
        }
    }

    /// What the memory bound leaves for buffers of bytes when everything else has been taken.
    pub fn buffer_bytes(&self, bounds: PieceBounds, width_max: usize) -> usize {
        self.memory_bytes_max(bounds, width_max).saturating_sub(self.unbuffered_bytes(bounds, width_max)) as usize
    }

    /// What is taken beside buffers of bytes.
    fn unbuffered_bytes(&self, bounds: PieceBounds, width_max: usize) -> u64 {
        let buffered = ["limits.body_bytes_max", "limits.answer_bytes_max"];
        let memory = self.memory(bounds, width_max);
        memory.parts.iter().filter(|(key, _)| !buffered.contains(key)).map(|(_, bytes)| *bytes).sum()
    }

    /// The bound that was given, or one that is enough: many workers and long texts need more than [`MEMORY_BYTES`].
    pub fn memory_bytes_max(&self, bounds: PieceBounds, width_max: usize) -> u64 {
        if let Some(given) = self.limits.memory_bytes_max {
            return given as u64;
        }
        let buffers = Buffers::bytes_for(self.largest_request_bytes()) as u64;
        MEMORY_BYTES.max(self.unbuffered_bytes(bounds, width_max) + buffers)
    }

    /// What the largest allowed request takes of those buffers by itself: its body twice while it grows, and its answer
    /// beside the values that it is made from, which are at most half as long.
    pub fn largest_request_bytes(&self) -> usize {
        2 * (self.limits.body_bytes_max + self.limits.head_bytes_max) + self.limits.answer_bytes_max * 3 / 2
    }

    /// Whether the memory bound is enough for all pools together, and for the largest allowed request when it is alone.
    ///
    /// # Errors
    /// The keys that clash, and a sentence with their numbers.
    pub fn check_memory(&self, bounds: PieceBounds, width_max: usize) -> Result<(), (Vec<&'static str>, String)> {
        let memory = self.memory(bounds, width_max);
        let (total, bound) = (memory.total_bytes(), self.memory_bytes_max(bounds, width_max));
        if total > bound {
            let (key, bytes) = memory.largest();
            let megabytes = |bytes: u64| format!("{:.0} MB", bytes as f64 / 1e6);
            let message = format!(
                "limits.memory_bytes_max ({}) is less than what the other limits add up to ({}); most of it is {key}'s ({})",
                megabytes(bound),
                megabytes(total),
                megabytes(bytes),
            );
            return Err((vec![key, "limits.memory_bytes_max"], message));
        }
        let there = Buffers::large_bytes(self.buffer_bytes(bounds, width_max));
        let needed = self.largest_request_bytes();
        if needed > there {
            let keys = vec!["limits.memory_bytes_max", "limits.body_bytes_max", "limits.answer_bytes_max"];
            let message = format!(
                "limits.memory_bytes_max ({bound}) leaves {there} bytes for single large buffers, but one request of \
                 limits.body_bytes_max with an answer of limits.answer_bytes_max takes {needed}"
            );
            return Err((keys, message));
        }
        Ok(())
    }

    /// The bounds of a piece as far as settings know them: a piece never holds more than one batch can.
    pub fn piece_bounds(&self) -> PieceBounds {
        let Limits { piece_sequences_max, .. } = self.limits;
        PieceBounds { sequences_max: piece_sequences_max as u32, tokens_max: self.cpu.tokens_max }
    }
}

impl Reader<'_> {
    pub(super) fn check(&mut self) {
        self.check_limits();
        self.check_lengths();
        self.check_memory();
    }

    fn check_limits(&mut self) {
        let limits = self.settings.limits.clone();
        let workers = self.settings.threads.workers;
        if limits.text_bytes_max > limits.body_bytes_max {
            let (text, body) = (show_bytes(limits.text_bytes_max as u64), show_bytes(limits.body_bytes_max as u64));
            let message = format!("limits.text_bytes_max ({text}) is more than limits.body_bytes_max ({body})");
            self.clash(&["limits.text_bytes_max", "limits.body_bytes_max"], message);
        }
        if limits.texts_max > limits.json_values_max {
            let (texts, values) = (limits.texts_max, limits.json_values_max);
            let message = format!("limits.texts_max ({texts}) is more than limits.json_values_max ({values})");
            self.clash(&["limits.texts_max", "limits.json_values_max"], message);
        }
        if limits.pieces_max < 2 * workers {
            let pieces = limits.pieces_max;
            let message =
                format!("limits.pieces_max ({pieces}) is less than two for each of threads.workers ({workers})");
            self.clash(&["limits.pieces_max", "threads.workers"], message);
        }
        let (sequences, tokens) = (limits.piece_sequences_max, self.settings.cpu.tokens_max);
        if sequences > tokens as usize {
            let message = format!("limits.piece_sequences_max ({sequences}) is more than cpu.tokens_max ({tokens})");
            self.clash(&["limits.piece_sequences_max", "cpu.tokens_max"], message);
        }
    }

    /// One text of the full length must fit into the queue and into a batch.
    fn check_lengths(&mut self) {
        let queue = self.settings.batching.queue_tokens_max;
        let batch = self.settings.batching.tokens_max;
        for model in self.settings.models.clone() {
            let Some(length) = model.max_length else { continue };
            let name = &model.name;
            if length as u64 > queue {
                let message =
                    format!("batching.queue_tokens_max ({queue}) is less than the max_length of {name} ({length})");
                self.clash(&["batching.queue_tokens_max"], message);
            }
            if let Some(batch) = batch.filter(|batch| length > *batch as usize) {
                let message =
                    format!("batching.max_batch_tokens ({batch}) is less than the max_length of {name} ({length})");
                self.clash(&["batching.max_batch_tokens"], message);
            }
        }
        if let Some(batch) = batch.filter(|batch| u64::from(*batch) > queue) {
            let message =
                format!("batching.max_batch_tokens ({batch}) is more than batching.queue_tokens_max ({queue})");
            self.clash(&["batching.max_batch_tokens", "batching.queue_tokens_max"], message);
        }
    }

    fn check_memory(&mut self) {
        if let Err((keys, message)) = self.settings.check_memory(self.settings.piece_bounds(), WIDTH_ASSUMED) {
            self.clash(&keys, message);
        }
    }
}
