//! Which of the gathered sequences go into one plan, in which bucket, at which rows and offsets.
//!
//! The planner gathers a bounded *window* of waiting sequences in fair order; its first, the *anchor*, is always
//! placed. Every bucket that can hold the anchor is tried in thought. *Packed*: as many as it has tokens for, in fair
//! order, longest first into the row with the least room that suffices; the gaps are filled from the rest of the window
//! in the same manner. *Padded*: the anchor, then those whose shortest bucket length is this one in fair order, then
//! shorter ones.
//!
//! **The rule of choice.** A plan costs what its bucket was measured to take; where nobody measured, its bucket's tokens and
//! [`PLAN_TOKENS`] for being a plan. A sequence's *price*
//! is its share of the cheapest full bucket that could hold it. The bucket whose plan is worth the largest part of its
//! cost is taken; on a tie the one that carries more. So a full small bucket beats a large half-empty one and the rest
//! waits for the next plan, while two small plans do not replace one middling one, and a short sequence rides in a long
//! row only where its own kind cannot fill a bucket.
//!
//! Invariant: a plan never exceeds its bucket nor the bounds. Work is in the window's size times the few buckets that
//! could still win, never in how much waits.

use super::Bounds;
use super::chain::NONE;
use crate::device::{Layout, Offer};

/// What a plan costs besides its tokens, in tokens. On an H200 with XLM-RoBERTa-large a plan of 1 × 32 tokens takes
/// 1.04 ms alone and 0.63 ms on each of two lanes, and tokens beyond take 1.5 µs each: 400 to 700 tokens.
pub(super) const PLAN_TOKENS: u64 = 512;

/// How many sequences a padded plan looks at, at least: enough of each length to fill a bucket of 32 rows.
const PADDED_WINDOW: usize = 1024;

/// Prices are kept in this fraction of a token.
const PRICE_SCALE: u64 = 1024;

/// One gathered sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    /// The planner's name for it.
    pub(super) node: u32,
    pub(super) length: u32,
    /// Index into [`Shape::classes`] of the shortest bucket length that holds it.
    class: u32,
}

/// Where a candidate goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    /// Index into the window.
    pub(super) candidate: u32,
    pub(super) row: u32,
    pub(super) offset: u32,
}

/// One bucket under the planner's bounds.
#[derive(Clone, Copy, Debug)]
struct Room {
    /// Index into the offer's buckets.
    bucket: u32,
    rows: u32,
    length: u32,
    /// Index of `length` in [`Shape::classes`].
    class: u32,
    sequences_max: u32,
    /// Useful tokens.
    tokens_max: u32,
    /// As measured, in nanoseconds, or tokens and [`PLAN_TOKENS`]; alike for all buckets of an offer.
    cost: u64,
}

/// One model's offer under the planner's bounds, with what follows from it.
#[derive(Debug)]
pub(super) struct Shape {
    layout: Layout,
    /// Dearest first.
    rooms: Vec<Room>,
    /// The distinct bucket lengths, ascending.
    classes: Vec<u32>,
    /// What one token (packed) or one sequence (padded) of each class is worth.
    prices: Vec<u64>,
    /// The longest sequence that can be placed.
    pub(super) length_max: u32,
    /// Where the window ends: at the first of the two.
    pub(super) window_sequences: usize,
    pub(super) window_tokens: u64,
    /// From how much waiting on the largest bucket counts as full: at the first of the two.
    pub(super) full_sequences: u64,
    pub(super) full_tokens: u64,
}

impl Shape {
    /// # Panics
    /// When the offer has no bucket, or one that can hold nothing: a broken device.
    pub(super) fn new(offer: &Offer, bounds: &Bounds) -> Shape {
        let measured = offer.costs_ns.len();
        assert!(
            measured == 0 || measured == offer.buckets.len(),
            "{measured} costs of {} buckets",
            offer.buckets.len()
        );
        let mut classes: Vec<u32> = offer.buckets.iter().map(|bucket| bucket.length).collect();
        classes.sort_unstable();
        classes.dedup();
        let mut rooms: Vec<Room> =
            (0..offer.buckets.len()).map(|index| Room::new(offer, index, &classes, bounds)).collect();
        rooms.sort_by_key(|room| (std::cmp::Reverse(room.cost), room.bucket));
        let prices = (0..classes.len() as u32).map(|class| price(offer.layout, &rooms, class)).collect();
        let largest = rooms.iter().max_by_key(|room| (room.rows * room.length, std::cmp::Reverse(room.bucket)));
        let largest = *largest.expect("an offer has a bucket");
        let sequences_max = rooms.iter().map(|room| room.sequences_max).max().unwrap_or(0) as usize;
        let tokens_max = u64::from(rooms.iter().map(|room| room.tokens_max).max().unwrap_or(0));
        let (window_sequences, window_tokens) = match offer.layout {
            Layout::Padded => (PADDED_WINDOW.max(2 * sequences_max), u64::MAX),
            // A quarter more than a plan holds, to fill gaps from. On the texts of `tests::fill`, useful of all tokens
            // with none, 1/4, 1/2, 1 and 3 times as much to look ahead into: 0.9930, 0.9968, 0.9969, 0.9971, 0.9973.
            Layout::Packed => (2 * sequences_max, tokens_max + tokens_max.div_ceil(4)),
        };
        Shape {
            layout: offer.layout,
            length_max: offer.length_max().min(bounds.tokens_max.unwrap_or(u32::MAX)),
            window_sequences,
            window_tokens,
            full_sequences: u64::from(largest.sequences_max),
            full_tokens: u64::from(largest.tokens_max),
            rooms,
            classes,
            prices,
        }
    }

    /// Sequences in one plan at most.
    pub(super) fn sequences_max(&self) -> usize {
        self.rooms.iter().map(|room| room.sequences_max).max().unwrap_or(0) as usize
    }

    pub(super) fn candidate(&self, node: u32, length: u32) -> Candidate {
        let class =
            self.classes.iter().position(|&class| length <= class).expect("a longer one is refused at the door");
        Candidate { node, length, class: class as u32 }
    }
}

impl Room {
    fn new(offer: &Offer, index: usize, classes: &[u32], bounds: &Bounds) -> Room {
        let bucket = offer.buckets[index];
        let seats = match offer.layout {
            Layout::Padded => bucket.rows,
            // A sequence has a token at least, whatever the device allows.
            Layout::Packed => bucket.tokens(),
        };
        let room = Room {
            bucket: index as u32,
            rows: bucket.rows,
            length: bucket.length,
            class: classes.iter().position(|&class| class == bucket.length).expect("taken from the buckets") as u32,
            sequences_max: seats.min(bucket.sequences_max).min(bounds.sequences_max.unwrap_or(u32::MAX)),
            tokens_max: bucket.tokens().min(bounds.tokens_max.unwrap_or(u32::MAX)),
            cost: match offer.costs_ns.get(index) {
                Some(&measured_ns) => measured_ns.max(1),
                None => u64::from(bucket.tokens()) + PLAN_TOKENS,
            },
        };
        assert!(room.sequences_max > 0 && room.tokens_max > 0, "a bucket that holds nothing: {bucket:?}");
        room
    }
}

fn price(layout: Layout, rooms: &[Room], class: u32) -> u64 {
    let shares = rooms.iter().filter(|room| room.class >= class).map(|room| match layout {
        Layout::Padded => room.cost * PRICE_SCALE / u64::from(room.sequences_max),
        Layout::Packed => room.cost * PRICE_SCALE / u64::from(room.tokens_max),
    });
    shares.min().expect("every class is some bucket's length")
}

/// What one bucket would do.
#[derive(Clone, Copy, Debug)]
struct Trial {
    bucket: u32,
    cost: u64,
    /// The prices of what it would carry.
    value: u64,
    tokens: u64,
}

impl Trial {
    fn beats(&self, other: &Trial) -> bool {
        let (own, others) =
            (u128::from(self.value) * u128::from(other.cost), u128::from(other.value) * u128::from(self.cost));
        own > others || (own == others && self.tokens > other.tokens)
    }
}

/// The scratch of one choice: sized for the largest offer, kept between plans.
#[derive(Debug, Default)]
pub(super) struct Packer {
    /// Gathered in fair order; the anchor first.
    pub(super) window: Vec<Candidate>,
    /// The choice: ordered by (row, offset).
    pub(super) spots: Vec<Spot>,
    trial: Vec<Spot>,
    /// Candidates longest first (packed), or class by class in fair order (padded).
    sorted: Vec<u64>,
    /// Where each class begins in `sorted` (padded).
    starts: Vec<u32>,
    placed: Vec<bool>,
    rows: Rows,
}

impl Packer {
    /// Takes the memory that plans of this shape need. `waiting_max`: sequences that can wait at all.
    pub(super) fn reserve(&mut self, shape: &Shape, waiting_max: usize) {
        let window = shape.window_sequences.min(waiting_max);
        let plan = shape.sequences_max().min(window);
        reserve(&mut self.window, window);
        reserve(&mut self.sorted, window);
        reserve(&mut self.placed, window);
        reserve(&mut self.spots, plan);
        reserve(&mut self.trial, plan);
        reserve(&mut self.starts, shape.classes.len() + 1);
        for room in &shape.rooms {
            self.rows.reserve(room.rows, room.length);
        }
    }

    /// Fills `spots` from a window that is not empty. Returns the bucket and its useful tokens.
    pub(super) fn choose(&mut self, shape: &Shape) -> (u32, u32) {
        let best = match shape.layout {
            Layout::Padded => self.choose_padded(shape),
            Layout::Packed => self.choose_packed(shape),
        };
        let best = best.expect("some bucket holds the anchor");
        self.spots.sort_unstable_by_key(|spot| (spot.row, spot.offset));
        (best.bucket, best.tokens as u32)
    }

    fn choose_packed(&mut self, shape: &Shape) -> Option<Trial> {
        self.sorted.clear();
        let keys = self.window.iter().enumerate().map(|(index, candidate)| longest_first(candidate.length, index));
        self.sorted.extend(keys);
        self.sorted.sort_unstable();
        let anchor = self.window[0];
        let gathered = self.window.iter().map(|candidate| packed_value(shape, candidate)).sum::<u64>();
        let mut best: Option<Trial> = None;
        for room in shape.rooms.iter().filter(|room| room.length >= anchor.length) {
            // No plan of this bucket is worth more: prices rise with the class, and it holds none above its own.
            let value = gathered.min(shape.prices[room.class as usize] * u64::from(room.tokens_max));
            let limit = Trial { bucket: room.bucket, cost: room.cost, value, tokens: u64::from(room.tokens_max) };
            if best.is_some_and(|best| !limit.beats(&best)) {
                continue;
            }
            let trial = self.pack(shape, room);
            if best.is_none_or(|best| trial.beats(&best)) {
                best = Some(trial);
                std::mem::swap(&mut self.spots, &mut self.trial);
            }
        }
        best
    }

    /// Packs one bucket into `trial`.
    fn pack(&mut self, shape: &Shape, room: &Room) -> Trial {
        self.trial.clear();
        self.placed.clear();
        self.placed.resize(self.window.len(), false);
        self.rows.open(room.rows, room.length);
        let mut trial = Trial { bucket: room.bucket, cost: room.cost, value: 0, tokens: 0 };
        let due = self.due(room);
        self.place(shape, room, &mut trial, 0);
        // First what is due, in the order in which it packs best, then whatever still fits.
        for end in [due, self.window.len()] {
            for position in 0..self.sorted.len() {
                let index = index_of(self.sorted[position]);
                if index < end && !self.placed[index] {
                    if self.trial.len() == room.sequences_max as usize || trial.tokens == u64::from(room.tokens_max) {
                        return trial;
                    }
                    self.place(shape, room, &mut trial, index);
                }
            }
        }
        trial
    }

    /// How far fair order goes until the bucket's tokens or sequences are used up.
    fn due(&self, room: &Room) -> usize {
        let (mut tokens, mut sequences) = (room.tokens_max, room.sequences_max);
        for (index, candidate) in self.window.iter().enumerate() {
            if candidate.length > room.length {
                continue;
            }
            if sequences == 0 || candidate.length > tokens {
                return index;
            }
            tokens -= candidate.length;
            sequences -= 1;
        }
        self.window.len()
    }

    /// Gives a candidate a place in the packed bucket where there is one.
    fn place(&mut self, shape: &Shape, room: &Room, trial: &mut Trial, index: usize) {
        let candidate = self.window[index];
        if candidate.length > room.length || trial.tokens + u64::from(candidate.length) > u64::from(room.tokens_max) {
            return;
        }
        let Some((row, offset)) = self.rows.take(candidate.length) else { return };
        self.placed[index] = true;
        self.trial.push(Spot { candidate: index as u32, row, offset });
        trial.tokens += u64::from(candidate.length);
        trial.value += packed_value(shape, &candidate);
    }

    fn choose_padded(&mut self, shape: &Shape) -> Option<Trial> {
        self.sort_by_class(shape);
        let anchor = self.window[0];
        let mut best: Option<Trial> = None;
        for class in anchor.class..shape.classes.len() as u32 {
            self.line_up(shape, class);
            // One line serves all buckets of a length: each takes as much of its front as it has rows.
            let line = &self.trial;
            let mut chosen = None;
            for room in shape.rooms.iter().filter(|room| room.class == class) {
                let count = line.len().min(room.sequences_max as usize);
                let carried = line[..count].iter().map(|spot| &self.window[spot.candidate as usize]);
                let (value, tokens) = carried.fold((0, 0), |(value, tokens), candidate| {
                    (value + shape.prices[candidate.class as usize], tokens + u64::from(candidate.length))
                });
                let trial = Trial { bucket: room.bucket, cost: room.cost, value, tokens };
                if best.is_none_or(|best| trial.beats(&best)) {
                    (best, chosen) = (Some(trial), Some(count));
                }
            }
            if let Some(count) = chosen {
                std::mem::swap(&mut self.spots, &mut self.trial);
                self.spots.truncate(count);
            }
        }
        best
    }

    /// Sorts the window into `sorted`, class by class, in fair order within each.
    fn sort_by_class(&mut self, shape: &Shape) {
        self.starts.clear();
        self.starts.resize(shape.classes.len() + 1, 0);
        for candidate in &self.window {
            self.starts[candidate.class as usize + 1] += 1;
        }
        for class in 0..shape.classes.len() {
            self.starts[class + 1] += self.starts[class];
        }
        self.sorted.clear();
        self.sorted.resize(self.window.len(), 0);
        for (index, candidate) in self.window.iter().enumerate() {
            // `starts[class]` runs to the class's end, which is where the next class's start was.
            let start = &mut self.starts[candidate.class as usize];
            self.sorted[*start as usize] = index as u64;
            *start += 1;
        }
    }

    /// Puts into `trial` whom a padded bucket of this class takes, in order of claim: one row each.
    fn line_up(&mut self, shape: &Shape, class: u32) {
        let rooms = shape.rooms.iter().filter(|room| room.class == class);
        // The token bound is the same for all buckets that padding does not exceed by itself.
        let (rows, tokens_max) = rooms.fold((0, 0), |(rows, tokens), room| {
            (rows.max(room.sequences_max as usize), tokens.max(u64::from(room.tokens_max)))
        });
        self.trial.clear();
        self.trial.push(Spot { candidate: 0, row: 0, offset: 0 });
        let mut tokens = u64::from(self.window[0].length);
        for class in (0..=class as usize).rev() {
            let start = if class == 0 { 0 } else { self.starts[class - 1] };
            for position in start..self.starts[class] {
                if self.trial.len() == rows {
                    return;
                }
                let index = self.sorted[position as usize] as u32;
                let length = u64::from(self.window[index as usize].length);
                if index != 0 && tokens + length <= tokens_max {
                    tokens += length;
                    self.trial.push(Spot { candidate: index, row: self.trial.len() as u32, offset: 0 });
                }
            }
        }
    }
}

/// Sorts longest first, in fair order among equals.
fn longest_first(length: u32, index: usize) -> u64 {
    u64::from(u32::MAX - length) << 32 | index as u64
}

fn index_of(key: u64) -> usize {
    (key & u64::from(u32::MAX)) as usize
}

fn packed_value(shape: &Shape, candidate: &Candidate) -> u64 {
    shape.prices[candidate.class as usize] * u64::from(candidate.length)
}

fn reserve<T>(list: &mut Vec<T>, capacity: usize) {
    list.clear();
    list.reserve_exact(capacity);
}

/// The free ends of a packed bucket's rows, found by size in constant time.
///
/// ```text
/// row 0  [ sequence | sequence |  free 40 ]        free  40 → row 0 → row 7
/// row 1  [ sequence |            free 198 ]             198 → row 1
/// row 2  [                       free 256 ]             256 → row 2 → row 3 → …
/// ```
#[derive(Debug, Default)]
struct Rows {
    length: u32,
    /// First row with this many tokens free; meaningful only where `sizes` says so.
    heads: Vec<u32>,
    /// By row: the next row with as many free.
    next: Vec<u32>,
    /// A bit for each number of free tokens that some row has.
    sizes: Vec<u64>,
}

impl Rows {
    fn reserve(&mut self, rows: u32, length: u32) {
        let (sizes, words) = (length as usize + 1, length as usize / 64 + 1);
        self.heads.resize(self.heads.len().max(sizes), NONE);
        self.next.resize(self.next.len().max(rows as usize), NONE);
        self.sizes.resize(self.sizes.len().max(words), 0);
    }

    /// Begins a bucket with all rows free.
    fn open(&mut self, rows: u32, length: u32) {
        self.length = length;
        self.sizes[..=length as usize / 64].fill(0);
        // The lowest row last, so that rows are opened in their order.
        for row in (0..rows).rev() {
            self.put(row, length);
        }
    }

    /// Takes `length` tokens from the row with the least room that suffices: its number and the offset.
    fn take(&mut self, length: u32) -> Option<(u32, u32)> {
        let free = self.least(length)?;
        let row = self.heads[free as usize];
        self.heads[free as usize] = self.next[row as usize];
        if self.heads[free as usize] == NONE {
            self.sizes[free as usize / 64] &= !(1 << (free % 64));
        }
        self.put(row, free - length);
        Some((row, self.length - free))
    }

    fn put(&mut self, row: u32, free: u32) {
        let (word, bit) = (free as usize / 64, 1 << (free % 64));
        let head = if self.sizes[word] & bit == 0 { NONE } else { self.heads[free as usize] };
        self.next[row as usize] = head;
        self.heads[free as usize] = row;
        self.sizes[word] |= bit;
    }

    /// The smallest number of free tokens, `length` or more, that some row has.
    fn least(&self, length: u32) -> Option<u32> {
        let first = length as usize / 64;
        let mut word = self.sizes[first] & (u64::MAX << (length % 64));
        for index in first..=self.length as usize / 64 {
            if index > first {
                word = self.sizes[index];
            }
            if word != 0 {
                return Some(index as u32 * 64 + word.trailing_zeros());
            }
        }
        None
    }
}
