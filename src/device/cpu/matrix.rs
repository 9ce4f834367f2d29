//! Memory for matrices, and blocks of them that several threads may work on at once.
//!
//! A [`Store`] owns floats, aligned to a cache line. A [`Block`] is a rectangle in a store: a pointer with bounds and
//! strides, copied freely, which any member of a team may hold. Making a block is checked and safe; reading or writing
//! through it is `unsafe`, because only the encoder's schedule knows that no other member has the same rectangle.
//!
//! Invariant: a block never reaches beyond the store that it was made from. What remains to whoever uses it is time
//! (the store is alive) and exclusion (nobody else writes there).

#![allow(unsafe_code)] // disjoint rectangles of one matrix, written by different threads

use std::ops::Range;

/// Bytes of a cache line, and of an AVX-512 register: a register loaded from one line costs one access, else two.
const ALIGNMENT: usize = 64;

/// Floats whose first is aligned to [`ALIGNMENT`].
#[derive(Debug, Default)]
pub(super) struct Store {
    values: Vec<f32>,
    start: usize,
    length: usize,
}

impl Store {
    pub fn zeroed(length: usize) -> Store {
        let values = vec![0.0; length + ALIGNMENT / size_of::<f32>() - 1];
        // A failure to align (which `align_offset` permits itself) costs speed only.
        let start = match values.as_ptr().align_offset(ALIGNMENT) {
            offset if offset + length <= values.len() => offset,
            _ => 0,
        };
        Store { values, start, length }
    }

    pub fn len(&self) -> usize {
        self.length
    }

    pub fn values(&self) -> &[f32] {
        &self.values[self.start..self.start + self.length]
    }

    pub fn values_mut(&mut self) -> &mut [f32] {
        &mut self.values[self.start..self.start + self.length]
    }

    /// The store as a row-major matrix of `columns` columns and as many whole rows as there is room for.
    pub fn block(&mut self, columns: usize) -> Block {
        let rows = self.length / columns;
        Block { start: self.values_mut().as_mut_ptr(), rows, columns, row_stride: columns, column_stride: 1 }
    }

    /// The same for reading only: nobody may write through it.
    pub fn read_block(&self, columns: usize) -> Block {
        let rows = self.length / columns;
        Block { start: self.values().as_ptr().cast_mut(), rows, columns, row_stride: columns, column_stride: 1 }
    }
}

/// A rectangle of a store. Strides are in floats.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    start: *mut f32,
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

// SAFETY: a block is an address; every access through it is `unsafe` and argued for where it happens.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    pub fn rows(self) -> usize {
        self.rows
    }

    pub fn columns(self) -> usize {
        self.columns
    }

    /// The rectangle of these rows and columns.
    ///
    /// # Panics
    /// When it reaches beyond this one.
    pub fn part(self, rows: Range<usize>, columns: Range<usize>) -> Block {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "rows {rows:?} of {}", self.rows);
        assert!(columns.start <= columns.end && columns.end <= self.columns, "columns {columns:?} of {}", self.columns);
        let offset = rows.start * self.row_stride + columns.start * self.column_stride;
        // `wrapping_add`, as an empty part may begin one stride past the end.
        Block { start: self.start.wrapping_add(offset), rows: rows.len(), columns: columns.len(), ..self }
    }

    pub fn rows_part(self, rows: Range<usize>) -> Block {
        self.part(rows, 0..self.columns)
    }

    pub fn columns_part(self, columns: Range<usize>) -> Block {
        self.part(0..self.rows, columns)
    }

    pub fn transposed(self) -> Block {
        Block {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }

    /// The first float, and the strides of rows and columns.
    pub fn layout(self) -> (*mut f32, usize, usize) {
        (self.start, self.row_stride, self.column_stride)
    }

    /// One row, to write.
    ///
    /// # Safety
    /// The store is alive, and nobody else reads or writes this row's floats while the result lives.
    pub unsafe fn row_mut<'a>(self, row: usize) -> &'a mut [f32] {
        assert!(row < self.rows && self.column_stride == 1);
        // SAFETY: inside the store by the module's invariant and the line above; alive and exclusive by the caller's
        // word.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(row * self.row_stride), self.columns) }
    }

    /// All rows as one slice, to write: of a block that has whole rows of its store.
    ///
    /// # Safety
    /// The store is alive, and nobody else reads or writes the block's floats while the result lives.
    pub unsafe fn floats_mut<'a>(self) -> &'a mut [f32] {
        assert!(self.row_stride == self.columns && self.column_stride == 1);
        // SAFETY: inside the store by the module's invariant; alive and exclusive by the caller's word.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.rows * self.columns) }
    }

    /// One row, to read.
    ///
    /// # Safety
    /// The store is alive, and nobody writes this row's floats while the result lives.
    pub unsafe fn row<'a>(self, row: usize) -> &'a [f32] {
        assert!(row < self.rows && self.column_stride == 1);
        // SAFETY: inside the store by the module's invariant and the line above; alive and unwritten by the caller's
        // word.
        unsafe { std::slice::from_raw_parts(self.start.add(row * self.row_stride), self.columns) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_are_aligned_and_blocks_bounded() {
        for length in [0, 1, 15, 16, 17, 1000] {
            let mut store = Store::zeroed(length);
            assert_eq!(store.values().len(), length);
            assert_eq!(store.values().as_ptr() as usize % ALIGNMENT, 0);
            assert_eq!(store.block(16).rows(), length / 16);
        }
        let mut store = Store::zeroed(60);
        let block = store.block(10);
        let outside = [(0..7, 0..10), (0..6, 0..11), (6..7, 0..1)];
        for (rows, columns) in outside {
            assert!(std::panic::catch_unwind(|| block.part(rows, columns)).is_err());
        }
        assert_eq!(block.part(6..6, 10..10).rows(), 0);
    }
}
