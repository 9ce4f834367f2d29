//! Matrix products: tiles of a few rows by [`PANEL`] columns, whose sums stay in registers from the first term to the
//! last.
//!
//! The right side comes in panels, `[inner][PANEL]` floats one after another, so that a product streams through it;
//! weights are laid out like that once ([`Packed`]). The left side is read where it lies, one float for a whole row of
//! sums.
//!
//! ```text
//!   left [rows, inner]      right, panel by panel          target [rows, columns]
//!   ┌───────────┐           ┌────┐┌────┐┌────┐             ┌────┬────┬────┐
//!   │ tile rows │     ·     │    ││    ││    │      =      │tile│    │    │
//!   │           │           │    ││    ││    │             │    │    │    │
//!   └───────────┘           └────┘└────┘└────┘             └────┴────┴────┘
//! ```
//!
//! Why not a library: the crate `gemm` packs its sides anew for every call and reads weights in strides. With it all of
//! all-MiniLM-L6-v2 took 6.1 ms for 16 tokens and 32.8 ms for 128 (Zen 4, AVX-512, one thread); with this, 4.4 and
//! 30.3. And its sums run in an order that varies with the number of rows, so that a text's vector would vary with its
//! company.
//!
//! Invariant: every element of a target is `start + Σₖ left·right` with `k` ascending, whatever the number of rows, so
//! a row's result depends on that row alone, to the bit. AVX2 and AVX-512 agree to the bit; the portable level rounds
//! twice per term where the target has no fused instruction.

#![allow(unsafe_code)] // vector loads and stores through bounded blocks
#![allow(clippy::needless_range_loop)] // `for row in 0..ROWS` over arrays is the form that is unrolled into registers

use std::ops::Range;

use super::kernels::{Instructions, Level};
use super::matrix::{Block, Store};

/// Columns of a tile: two registers of AVX-512, two times two of AVX2.
pub(super) const PANEL: usize = 32;

/// A right side laid out in panels; columns that fill the last one up are zero.
#[derive(Debug)]
pub(super) struct Packed {
    values: Store,
    inner: usize,
    columns: usize,
}

impl Packed {
    /// From `[columns, inner]`, as a linear layer's weights are stored.
    pub fn from_transposed(weights: &[f32], inner: usize) -> Packed {
        let columns = weights.len() / inner;
        let mut packed = Packed { values: Store::zeroed(columns.div_ceil(PANEL) * PANEL * inner), inner, columns };
        let panels = packed.values.values_mut().chunks_exact_mut(PANEL * inner);
        for (panel, rows) in panels.zip(weights.chunks(PANEL * inner)) {
            for (lane, row) in rows.chunks_exact(inner).enumerate() {
                for (k, value) in row.iter().enumerate() {
                    panel[k * PANEL + lane] = *value;
                }
            }
        }
        packed
    }

    fn panel(&self, index: usize) -> Block {
        self.values.read_block(PANEL).rows_part(index * self.inner..(index + 1) * self.inner)
    }
}

/// What a product's sums begin with.
#[derive(Clone, Copy, Debug)]
pub(super) enum Start<'a> {
    #[cfg(test)]
    Zero,
    /// One value per column of the right side, padded to whole panels.
    Bias(&'a [f32]),
    /// The bias and what the target holds; the latter is added last.
    BiasAndTarget(&'a [f32]),
}

/// `target = start + left · right[columns]`. The columns begin at a panel; the target has as many.
///
/// # Safety
/// The stores are alive; nobody else reads or writes `target`, and nobody writes `left`, during the call.
pub(super) unsafe fn multiply(
    level: Level,
    target: Block,
    start: Start<'_>,
    left: Block,
    right: &Packed,
    columns: Range<usize>,
) {
    assert!(columns.start.is_multiple_of(PANEL) && columns.end <= right.columns && target.columns() == columns.len());
    for first in columns.clone().step_by(PANEL) {
        let count = PANEL.min(columns.end - first);
        let part = target.columns_part(first - columns.start..first - columns.start + count);
        let of_panel = |bias: &'_ [f32]| bias[first..first + PANEL].as_ptr();
        let (bias, accumulate) = match start {
            #[cfg(test)]
            Start::Zero => (std::ptr::null(), false),
            Start::Bias(bias) => (of_panel(bias), false),
            Start::BiasAndTarget(bias) => (of_panel(bias), true),
        };
        // SAFETY: as the caller says; the bias has `PANEL` floats by the index above.
        unsafe { tiles(level, part, bias, accumulate, left, right.panel(first / PANEL)) };
    }
}

/// `target = left · right`, where `right` is one panel of `PANEL` columns, of which the target takes the first.
///
/// # Safety
/// The stores are alive; nobody else reads or writes `target`, and nobody writes `left` or `right`, during the call.
pub(super) unsafe fn multiply_panel(level: Level, target: Block, left: Block, right: Block) {
    // SAFETY: as the caller says.
    unsafe { tiles(level, target, std::ptr::null(), false, left, right) };
}

/// One tile's product. Strides in floats.
#[derive(Clone, Copy, Debug)]
struct Tile {
    left: *const f32,
    left_row: usize,
    left_inner: usize,
    /// `inner` rows of `PANEL` floats.
    right: *const f32,
    right_inner: usize,
    inner: usize,
    /// `PANEL` floats, or null for zero.
    bias: *const f32,
    target: *mut f32,
    target_row: usize,
    /// At most `PANEL`.
    columns: usize,
    accumulate: bool,
}

/// All rows of one panel, in groups as equal as can be.
///
/// # Safety
/// As [`multiply_panel`]; `bias` is null or has `PANEL` floats.
unsafe fn tiles(level: Level, target: Block, bias: *const f32, accumulate: bool, left: Block, right: Block) {
    assert!(target.rows() == left.rows() && left.columns() == right.rows());
    assert!(right.columns() == PANEL && target.columns() <= PANEL);
    let (left_start, left_row, left_inner) = left.layout();
    let (right_start, right_inner, right_column) = right.layout();
    let (target_start, target_row, target_column) = target.layout();
    assert!(right_column == 1 && target_column == 1);
    let rows = target.rows();
    let groups = rows.div_ceil(rows_max(level));
    for group in 0..groups {
        let (first, end) = (rows * group / groups, rows * (group + 1) / groups);
        let tile = Tile {
            left: left_start.wrapping_add(first * left_row),
            left_row,
            left_inner,
            right: right_start,
            right_inner,
            inner: right.rows(),
            bias,
            target: target_start.wrapping_add(first * target_row),
            target_row,
            columns: target.columns(),
            accumulate,
        };
        // SAFETY: the tile's rows, columns and inner lie in the three blocks by the assertions above, and those in
        // their stores; life and exclusion by the caller's word.
        // JUSTIFICATION: see the module's head.
        unsafe { run(level, &tile, end - first) };
    }
}

/// Rows of a tile at most, by the registers that there are.
fn rows_max(level: Level) -> usize {
    match level.instructions() {
        Instructions::Portable => 4,
        // 6 rows of two registers, two of the right side and one of the left: 15 of 16.
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx2 => 6,
        // 14 rows of two registers, two of the right side: 30 of 32, and one of the left.
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx512 => 14,
    }
}

/// Calls `$tile::<ROWS>` for a number of rows that is only known now.
macro_rules! with_rows {
    ($tile:ident, $argument:expr, $rows:expr; $($count:literal)*) => {
        match $rows {
            // SAFETY: as the caller of `run` says.
            $($count => unsafe { $tile::<$count>($argument) },)*
            rows => unreachable!("a tile of {rows} rows"),
        }
    };
}

/// # Safety
/// The tile's addresses are good for its sizes, and its target is nobody else's.
unsafe fn run(level: Level, tile: &Tile, rows: usize) {
    match level.instructions() {
        Instructions::Portable => with_rows!(tile_portable, tile, rows; 1 2 3 4),
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx2 => with_rows!(tile_avx2, tile, rows; 1 2 3 4 5 6),
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx512 => with_rows!(tile_avx512, tile, rows; 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
    }
}

/// # Safety
/// The tile's addresses are good for its sizes.
unsafe fn tile_portable<const ROWS: usize>(tile: &Tile) {
    // Four rows of two SSE or NEON registers.
    const WIDTH: usize = 8;
    for first in (0..tile.columns).step_by(WIDTH) {
        let mut sums = [[0.0f32; WIDTH]; ROWS];
        // SAFETY: addresses inside the tile's three rectangles; an array of floats is aligned as a float is.
        unsafe {
            if !tile.bias.is_null() {
                sums = [*tile.bias.add(first).cast::<[f32; WIDTH]>(); ROWS];
            }
            for k in 0..tile.inner {
                let columns = *tile.right.add(k * tile.right_inner + first).cast::<[f32; WIDTH]>();
                for row in 0..ROWS {
                    let value = *tile.left.add(row * tile.left_row + k * tile.left_inner);
                    for lane in 0..WIDTH {
                        sums[row][lane] = if cfg!(target_arch = "aarch64") {
                            value.mul_add(columns[lane], sums[row][lane])
                        } else {
                            sums[row][lane] + value * columns[lane]
                        };
                    }
                }
            }
            for row in 0..ROWS {
                for lane in 0..WIDTH.min(tile.columns - first) {
                    let target = tile.target.add(row * tile.target_row + first + lane);
                    *target = if tile.accumulate { *target + sums[row][lane] } else { sums[row][lane] };
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// # Safety
/// The CPU has AVX2 and FMA; the tile's addresses are good for its sizes.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn tile_avx2<const ROWS: usize>(tile: &Tile) {
    const WIDTH: usize = 8;
    for first in [0, 2 * WIDTH] {
        if first >= tile.columns {
            return;
        }
        let mut sums = [[_mm256_setzero_ps(); 2]; ROWS];
        // SAFETY: addresses inside the tile's three rectangles.
        unsafe {
            if !tile.bias.is_null() {
                let bias = tile.bias.add(first);
                sums = [[_mm256_loadu_ps(bias), _mm256_loadu_ps(bias.add(WIDTH))]; ROWS];
            }
            let (mut left, mut right) = (tile.left, tile.right.add(first));
            for _ in 0..tile.inner {
                let columns = [_mm256_loadu_ps(right), _mm256_loadu_ps(right.add(WIDTH))];
                for row in 0..ROWS {
                    let value = _mm256_set1_ps(*left.add(row * tile.left_row));
                    sums[row][0] = _mm256_fmadd_ps(value, columns[0], sums[row][0]);
                    sums[row][1] = _mm256_fmadd_ps(value, columns[1], sums[row][1]);
                }
                left = left.wrapping_add(tile.left_inner);
                right = right.wrapping_add(tile.right_inner);
            }
            for row in 0..ROWS {
                for part in 0..2 {
                    let place = first + part * WIDTH;
                    let target = tile.target.wrapping_add(row * tile.target_row + place);
                    let mut values = sums[row][part];
                    if place + WIDTH <= tile.columns {
                        if tile.accumulate {
                            values = _mm256_add_ps(_mm256_loadu_ps(target), values);
                        }
                        _mm256_storeu_ps(target, values);
                    } else if place < tile.columns {
                        let mut lanes = [0.0f32; WIDTH];
                        _mm256_storeu_ps(lanes.as_mut_ptr(), values);
                        for lane in 0..tile.columns - place {
                            let target = target.add(lane);
                            *target = if tile.accumulate { *target + lanes[lane] } else { lanes[lane] };
                        }
                    }
                }
            }
        }
    }
}

/// # Safety
/// The CPU has AVX-512F; the tile's addresses are good for its sizes.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn tile_avx512<const ROWS: usize>(tile: &Tile) {
    const WIDTH: usize = 16;
    let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
    // SAFETY: addresses inside the tile's three rectangles; what lies beside the target's columns is masked out.
    unsafe {
        if !tile.bias.is_null() {
            sums = [[_mm512_loadu_ps(tile.bias), _mm512_loadu_ps(tile.bias.add(WIDTH))]; ROWS];
        }
        let (mut left, mut right) = (tile.left, tile.right);
        for _ in 0..tile.inner {
            let columns = [_mm512_loadu_ps(right), _mm512_loadu_ps(right.add(WIDTH))];
            for row in 0..ROWS {
                let value = _mm512_set1_ps(*left.add(row * tile.left_row));
                sums[row][0] = _mm512_fmadd_ps(value, columns[0], sums[row][0]);
                sums[row][1] = _mm512_fmadd_ps(value, columns[1], sums[row][1]);
            }
            left = left.wrapping_add(tile.left_inner);
            right = right.wrapping_add(tile.right_inner);
        }
        let mask = u32::MAX >> (PANEL - tile.columns);
        let masks = [mask as u16, (mask >> WIDTH) as u16];
        for row in 0..ROWS {
            for part in 0..2 {
                let target = tile.target.wrapping_add(row * tile.target_row + part * WIDTH);
                let mut values = sums[row][part];
                if tile.accumulate {
                    values = _mm512_add_ps(_mm512_maskz_loadu_ps(masks[part], target), values);
                }
                _mm512_mask_storeu_ps(target, masks[part], values);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|index| ((index * 37 + seed * 11) % 101) as f32 / 50.0 - 1.0).collect()
    }

    fn stored(values: &[f32]) -> Store {
        let mut store = Store::zeroed(values.len());
        store.values_mut().copy_from_slice(values);
        store
    }

    /// Every number of rows up to three tiles, whole and part panels, each start, on every level; and what lies around
    /// the target stays.
    #[test]
    fn products_equal_the_definition() {
        let shapes = [(1, 1), (5, 31), (32, 32), (40, 33), (12, 100), (70, 64), (384, 32)];
        for level in Level::available() {
            for rows in (0..=30).chain([41, 56, 57]) {
                for (inner, columns) in shapes {
                    let (left, weights) = (numbers(rows * inner, 1), numbers(columns * inner, 2));
                    let mut bias = numbers(columns, 3);
                    bias.resize(columns.div_ceil(PANEL) * PANEL, 0.0);
                    let packed = Packed::from_transposed(&weights, inner);
                    let mut left_store = stored(&left);
                    for first in (0..columns).step_by(PANEL) {
                        for (start, has_bias, has_target) in [
                            (Start::Zero, 0.0, 0.0),
                            (Start::Bias(&bias), 1.0, 0.0),
                            (Start::BiasAndTarget(&bias), 1.0, 1.0),
                        ] {
                            let width = columns + 3;
                            let mut target = stored(&vec![0.5; (rows + 1) * width]);
                            let block = target.block(width).part(0..rows, 2..2 + columns - first);
                            // SAFETY: stores of this function, one thread.
                            unsafe { multiply(level, block, start, left_store.block(inner), &packed, first..columns) };
                            for (place, &found) in target.values().iter().enumerate() {
                                let (row, column) = (place / width, (place % width).wrapping_sub(2));
                                let sum = |column: usize| {
                                    let terms = (0..inner).map(|k| left[row * inner + k] * weights[column * inner + k]);
                                    terms.sum::<f32>() + has_bias * bias[column] + has_target * 0.5
                                };
                                let inside = row < rows && column < columns - first;
                                let expected = if inside { sum(first + column) } else { 0.5 };
                                assert!(
                                    (found - expected).abs() < 1e-4,
                                    "{} {rows} × {inner} × {columns} from {first}: {found} for {expected}",
                                    level.name()
                                );
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_row_does_not_depend_on_its_neighbours_and_fused_levels_agree() {
        let (inner, columns) = (100, 70);
        let (left, packed) = (numbers(60 * inner, 4), Packed::from_transposed(&numbers(columns * inner, 5), inner));
        let mut left = stored(&left);
        let mut product = |level: Level, rows: Range<usize>| {
            let mut target = Store::zeroed(rows.len() * columns);
            // SAFETY: stores of this function, one thread.
            unsafe {
                let left = left.block(inner).rows_part(rows);
                multiply(level, target.block(columns), Start::Zero, left, &packed, 0..columns);
            }
            target.values().iter().map(|value| value.to_bits()).collect::<Vec<u32>>()
        };
        let all: Vec<Vec<u32>> = Level::available().into_iter().map(|level| product(level, 0..60)).collect();
        for (level, all) in Level::available().into_iter().zip(&all) {
            for rows in [0..1, 17..18, 3..16, 40..60] {
                assert_eq!(product(level, rows.clone()), all[rows.start * columns..rows.end * columns]);
            }
        }
        let fused = &all[..all.len() - 1];
        assert!(fused.windows(2).all(|pair| pair[0] == pair[1]));
    }

    #[test]
    fn a_panel_may_lie_in_any_matrix_and_the_left_side_be_transposed() {
        for level in Level::available() {
            let (mut left, mut right, mut target) =
                (stored(&numbers(20 * 32, 6)), stored(&numbers(20 * 50, 7)), Store::zeroed(17 * 40));
            // SAFETY: stores of this function, one thread.
            unsafe {
                let left = left.block(32).transposed().rows_part(0..17);
                let right = right.block(50).columns_part(9..9 + PANEL);
                multiply_panel(level, target.block(40).columns_part(1..13), left, right);
            }
            for (place, &found) in target.values().iter().enumerate() {
                let (row, column) = (place / 40, (place % 40).wrapping_sub(1));
                let sum: f32 =
                    (0..20).map(|k| left.values()[k * 32 + row] * right.values()[k * 50 + 9 + column.min(12)]).sum();
                let expected = if column < 12 { sum } else { 0.0 };
                assert!((found - expected).abs() < 1e-4, "{} {row} {column}", level.name());
            }
        }
    }
}
