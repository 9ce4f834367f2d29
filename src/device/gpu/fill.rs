//! One plan's sequences written into a lane's input block, as the engine's tensors lie there.
//!
//! Invariant: every byte of every input is written, whatever lay there, so that a run never sees an earlier one's tokens;
//! nothing is written of a plan that does not fit.

use super::shapes::Extent;
use crate::device::ports::{Input, Ports, Role};
use crate::device::{Bucket, Layout, Pieces, Placement, Plan};

/// Where one sequence's result will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of its vector among those that the engine gives.
    pub line: u32,
    pub length: u32,
}

/// Whether the plan lies inside the bucket, in order and without overlap. What a device of fixed shapes must know before it
/// runs anything.
pub fn fits(plan: &Plan, pieces: &Pieces, bucket: Bucket, layout: Layout) -> bool {
    if plan.placements.is_empty() || plan.placements.len() > bucket.sequences_max as usize {
        return false;
    }
    let mut free = (0, 0);
    plan.placements.iter().all(|place| {
        let Placement { row, offset, length, .. } = *place;
        let piece = pieces.get(place.piece);
        let end = offset.saturating_add(length);
        let fits = row < bucket.rows
            && length > 0
            && end <= bucket.length
            && (row, offset) >= free
            && (layout == Layout::Packed || offset == 0)
            && (place.sequence as usize) < piece.sequences()
            && piece.range(place.sequence as usize).len() == length as usize;
        free = match layout {
            Layout::Packed => (row, end),
            Layout::Padded => (row + 1, 0),
        };
        fits
    })
}

/// Writes the inputs. The plan must fit.
pub fn fill(
    block: &mut [u8],
    ports: &Ports,
    extent: &Extent,
    bucket: Bucket,
    plan: &Plan,
    pieces: &Pieces,
    unpositioned: Option<(u32, u32)>,
) {
    for (input, &(offset, bytes)) in ports.inputs.iter().zip(&extent.inputs) {
        let region = &mut block[offset..offset + bytes];
        region.fill(0);
        match input.is_wide {
            true => fill_input::<8>(region, input, ports.layout, bucket, plan, pieces, unpositioned),
            false => fill_input::<4>(region, input, ports.layout, bucket, plan, pieces, unpositioned),
        }
    }
}

/// One tensor of integers of `N` bytes, little-endian as the GPU reads them.
fn fill_input<const N: usize>(
    region: &mut [u8],
    input: &Input,
    layout: Layout,
    bucket: Bucket,
    plan: &Plan,
    pieces: &Pieces,
    unpositioned: Option<(u32, u32)>,
) {
    let mut write = |index: usize, value: u32| {
        let bytes = u64::from(value).to_le_bytes();
        region[index * N..(index + 1) * N].copy_from_slice(&bytes[..N]);
    };
    if input.role == Role::Mask && layout == Layout::Padded {
        // A row without any token would be nothing but masked: some graphs make that a NaN, slowly.
        let last = plan.placements.last().map_or(0, |place| place.row + 1);
        (last..bucket.rows).for_each(|row| write((row * bucket.length) as usize, 1));
    }
    for (number, place) in plan.placements.iter().enumerate() {
        let piece = pieces.get(place.piece);
        let range = piece.range(place.sequence as usize);
        let start = (place.row * bucket.length + place.offset) as usize;
        let count = place.length as usize;
        match input.role {
            Role::Ids => piece.ids[range].iter().zip(start..).for_each(|(&id, at)| write(at, id)),
            Role::Types => piece.types[range].iter().zip(start..).for_each(|(&kind, at)| write(at, u32::from(kind))),
            Role::Mask => (start..start + count).for_each(|at| write(at, 1)),
            Role::Segments => (start..start + count).for_each(|at| write(at, number as u32 + 1)),
            Role::Firsts => write(number, start as u32),
            Role::Positions => match unpositioned {
                None => (start..start + count).zip(0..).for_each(|(at, position)| write(at, position)),
                Some((token, row)) => {
                    let mut position = 0;
                    for (&id, at) in piece.ids[range].iter().zip(start..) {
                        if id == token {
                            write(at, row);
                        } else {
                            write(at, position);
                            position += 1;
                        }
                    }
                }
            },
        }
    }
}

/// Which vector belongs to which placement.
pub fn places(plan: &Plan, layout: Layout, places: &mut Vec<Place>) {
    places.clear();
    places.extend(plan.placements.iter().enumerate().map(|(number, place)| Place {
        line: match layout {
            Layout::Padded => place.row,
            Layout::Packed => number as u32,
        },
        length: place.length,
    }));
}
