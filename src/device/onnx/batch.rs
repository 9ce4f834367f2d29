//! One plan's sequences laid out as the tensors that a file wants.
//!
//! ```text
//! grid      rows × length, as small as the plan allows, or as large as the file fixes
//! places    row, offset and length of each sequence, in the plan's order
//! ids, mask, types, positions, segments: one int32 per token of the grid, 0 on padding
//! firsts    row × length + offset of each sequence's first token, 0 for sequences that a file fixes and nobody uses
//! ```
//!
//! Invariant: after [`Batch::fill`] returned true, every place lies inside the grid and no two overlap.

use super::signature::Signature;
use crate::device::ports::Role;
use crate::device::{Bucket, Layout, Pieces, Plan};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub row: usize,
    pub offset: usize,
    pub length: usize,
}

#[derive(Debug, Default)]
pub(super) struct Batch {
    rows: usize,
    length: usize,
    places: Vec<Place>,
    ids: Vec<i32>,
    mask: Vec<i32>,
    types: Vec<i32>,
    positions: Vec<i32>,
    segments: Vec<i32>,
    firsts: Vec<i32>,
}

impl Batch {
    pub fn sequences(&self) -> usize {
        self.places.len()
    }

    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// Rows and tokens per row.
    pub fn grid(&self) -> [usize; 2] {
        [self.rows, self.length]
    }

    /// How many vectors the file gives, used or not.
    pub fn lines(&self, layout: Layout) -> usize {
        match layout {
            Layout::Padded => self.rows,
            Layout::Packed => self.firsts.len(),
        }
    }

    /// Which of them is the one of sequence `index`.
    pub fn line(&self, layout: Layout, index: usize) -> usize {
        match layout {
            Layout::Padded => self.places[index].row,
            Layout::Packed => index,
        }
    }

    pub fn input(&self, role: Role) -> (Vec<usize>, &[i32]) {
        let grid = || vec![self.rows, self.length];
        match role {
            Role::Ids => (grid(), &self.ids),
            Role::Mask => (grid(), &self.mask),
            Role::Types => (grid(), &self.types),
            Role::Positions => (grid(), &self.positions),
            Role::Segments => (grid(), &self.segments),
            Role::Firsts => (vec![self.firsts.len()], &self.firsts),
        }
    }

    /// Lays out a plan; false if it does not fit its bucket or itself, and then nothing may be run.
    pub fn fill(&mut self, signature: &Signature, bucket: Bucket, plan: &Plan, pieces: &Pieces) -> bool {
        let sequences_max = bucket.sequences_max as usize;
        if plan.placements.is_empty() || plan.placements.len() > sequences_max {
            return false;
        }
        let ends = plan.placements.iter().map(|place| (place.row + 1, place.offset.saturating_add(place.length)));
        let (rows, length) = ends.fold((0, 0), |most, end| (most.0.max(end.0), most.1.max(end.1)));
        if rows > bucket.rows || length > bucket.length {
            return false;
        }
        self.clear(signature, rows as usize, length as usize);
        for placement in &plan.placements {
            let piece = pieces.get(placement.piece);
            let range = piece.range(placement.sequence as usize);
            let place = Place {
                row: placement.row as usize,
                offset: placement.offset as usize,
                length: placement.length as usize,
            };
            let fits = range.len() == place.length
                && (signature.layout() == Layout::Packed || place.offset == 0)
                && self.push(signature, place, &piece.ids[range.clone()], &piece.types[range]);
            if !fits {
                return false;
            }
        }
        self.fill_firsts(signature);
        true
    }

    /// One sequence of a single token, id 0, which every vocabulary has.
    pub fn fill_trial(&mut self, signature: &Signature) {
        self.clear(signature, 1, 1);
        let fits = self.push(signature, Place { row: 0, offset: 0, length: 1 }, &[0], &[0]);
        assert!(fits, "a token fits an empty grid");
        self.fill_firsts(signature);
    }

    fn clear(&mut self, signature: &Signature, rows: usize, length: usize) {
        self.rows = signature.fixed.rows.map_or(rows, |rows| rows as usize);
        self.length = signature.fixed.length.map_or(length, |length| length as usize);
        self.places.clear();
        self.firsts.clear();
        let tokens = self.rows * self.length;
        for grid in [&mut self.ids, &mut self.mask, &mut self.types, &mut self.positions, &mut self.segments] {
            grid.clear();
            grid.resize(tokens, 0);
        }
    }

    /// False if the place is empty or taken, or an id is beyond what int32 holds.
    fn push(&mut self, signature: &Signature, place: Place, ids: &[u32], types: &[u8]) -> bool {
        let start = place.row * self.length + place.offset;
        let segment = self.places.len() as i32 + 1;
        if ids.is_empty() || self.segments[start..start + ids.len()].iter().any(|&taken| taken != 0) {
            return false;
        }
        let mut position = 0;
        for (index, (&id, &token_type)) in ids.iter().zip(types).enumerate() {
            let Ok(id) = i32::try_from(id) else {
                return false;
            };
            self.ids[start + index] = id;
            self.mask[start + index] = 1;
            self.types[start + index] = i32::from(token_type);
            self.positions[start + index] = match signature.unpositioned {
                Some((token, row)) if token == id => row,
                Some(_) | None => {
                    position += 1;
                    position - 1
                }
            };
            self.segments[start + index] = segment;
        }
        self.places.push(place);
        self.firsts.push(start as i32);
        true
    }

    fn fill_firsts(&mut self, signature: &Signature) {
        if let Some(sequences) = signature.fixed.sequences {
            self.firsts.resize(sequences as usize, 0);
        }
    }
}
