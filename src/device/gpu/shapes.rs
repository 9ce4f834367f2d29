//! Which shapes a GPU offers for a model, and where each tensor lies in a lane's memory.
//!
//! An engine of ours has one fixed profile for each bucket. One that a user brings may be fixed, or leave rows and lengths
//! open within one or several profiles: then a ladder is chosen, by `cuda_graph_list` where there is one.
//!
//! Invariant: every bucket lies inside its profile's ranges for every input; buckets ascend in cost.

use super::super::ports::{Input, Kind, Output, Ports, Role};
use crate::device::{Bucket, Layout};
use crate::model::Model;
use crate::model::engine::{Description, Tensor};

/// One bucket, and how it is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    pub bucket: Bucket,
    /// Index of the engine's optimization profile.
    pub profile: usize,
    /// Whether it is to be captured; a slot that is not runs eagerly, on the rows that its plan has.
    pub captured: bool,
    /// The fewest rows that such a run may have.
    pub rows_min: u32,
}

/// Where the tensors of one bucket lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Offset and bytes of each input in the lane's input block, in the order of the ports.
    pub inputs: Vec<(usize, usize)>,
    pub input_bytes: usize,
    pub output_bytes: usize,
}

/// Tensors begin at multiples of this: what libraries ask of addresses.
const ALIGNMENT: usize = 256;

/// Lengths of the ladder for engines that leave theirs open, besides the model's own.
const LENGTHS: [u32; 5] = [32, 64, 128, 256, 512];

/// Rows of the ladder for engines that leave theirs open and no `cuda_graph_list` speaks.
const ROWS: [u32; 4] = [1, 4, 16, 64];

/// What a profile allows for one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    min: u32,
    max: u32,
}

impl Span {
    fn is_fixed(self) -> bool {
        self.min == self.max
    }

    /// What two inputs allow together.
    fn meet(self, other: Span) -> Option<Span> {
        let span = Span { min: self.min.max(other.min), max: self.max.min(other.max) };
        (span.min <= span.max).then_some(span)
    }
}

/// What one profile allows for all inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spans {
    rows: Span,
    length: Span,
    sequences: Span,
}

/// The shapes to offer, ascending in cost.
///
/// `configured` is the batch that the configuration asks for. Without an own `max_length` (0) the model takes what the
/// largest profile allows.
///
/// # Errors
/// A sentence that names the tensor and both values.
pub fn slots(
    description: &Description,
    ports: &Ports,
    model: &Model,
    configured: Option<u32>,
    slots_max: usize,
) -> Result<Vec<Slot>, String> {
    let mut slots = Vec::new();
    for profile in 0..description.profiles.max(1) {
        let spans = spans(description, ports, profile)?;
        slots.extend(ladder(spans, profile, ports.layout, model, slots_max));
    }
    let first = ports.inputs.first().map_or("", |input| input.name.as_str());
    let rows_max = slots.iter().map(|slot| slot.bucket.rows).max().unwrap_or(0);
    if let Some(&most) = model.cuda_graph_list.last().filter(|&&most| ports.layout == Layout::Padded && most > rows_max)
    {
        return Err(format!(
            "input `{first}`: its profiles hold {rows_max} rows at most, and cuda_graph_list asks for {most}"
        ));
    }
    let sequences_max = slots.iter().map(|slot| slot.bucket.sequences_max).max().unwrap_or(0);
    if let Some(configured) = configured.filter(|&configured| configured > sequences_max) {
        return Err(format!(
            "input `{first}`: its profiles hold {sequences_max} texts at most, and batching.max_batch_size is {configured}"
        ));
    }
    let length_max = slots.iter().map(|slot| slot.bucket.length).max().unwrap_or(0);
    if model.max_length > length_max as usize {
        return Err(format!(
            "input `{first}`: its profiles hold {length_max} tokens per row at most, and max_length is {}",
            model.max_length
        ));
    }
    slots.sort_by_key(|slot| (slot.bucket.tokens(), slot.bucket.rows, slot.bucket.sequences_max));
    slots.dedup_by_key(|slot| slot.bucket);
    Ok(slots)
}

fn spans(description: &Description, ports: &Ports, profile: usize) -> Result<Spans, String> {
    let any = Span { min: 1, max: u32::MAX };
    let mut spans = Spans { rows: any, length: any, sequences: any };
    for (tensor, input) in description.inputs.iter().zip(&ports.inputs) {
        let dimensions: Vec<&mut Span> = match input.role {
            Role::Firsts => vec![&mut spans.sequences],
            Role::Ids | Role::Mask | Role::Types | Role::Positions | Role::Segments => {
                vec![&mut spans.rows, &mut spans.length]
            }
        };
        for (index, known) in dimensions.into_iter().enumerate() {
            let span = span(tensor, profile, index)?;
            *known = known.meet(span).ok_or_else(|| {
                let (name, Span { min, max }) = (&tensor.name, span);
                format!(
                    "input `{name}`: dimension {index} of profile {profile} allows {min} to {max}, and another input's {} \
                     to {}",
                    known.min, known.max
                )
            })?;
        }
    }
    Ok(spans)
}

fn span(tensor: &Tensor, profile: usize, index: usize) -> Result<Span, String> {
    let of = |size: i64| u32::try_from(size).ok().filter(|&size| size > 0);
    let bad = |size: i64| format!("input `{}`: dimension {index} of profile {profile} is {size}", tensor.name);
    let fixed = tensor.shape.get(index).copied().unwrap_or(-1);
    if fixed >= 0 {
        let size = of(fixed).ok_or_else(|| bad(fixed))?;
        return Ok(Span { min: size, max: size });
    }
    let range = tensor.ranges.get(profile);
    let bound = |shape: Option<&Vec<i64>>| shape.and_then(|shape| shape.get(index)).copied().unwrap_or(-1);
    let (min, max) = (bound(range.map(|range| &range.min)), bound(range.map(|range| &range.max)));
    match (of(min.max(1)), of(max)) {
        (Some(min), Some(max)) if min <= max => Ok(Span { min, max }),
        _ => Err(bad(max)),
    }
}

/// The buckets of one profile.
fn ladder(spans: Spans, profile: usize, layout: Layout, model: &Model, slots_max: usize) -> Vec<Slot> {
    let length_max = match model.max_length {
        0 => spans.length.max,
        asked => spans.length.max.min((asked as u32).max(spans.length.min)),
    };
    let lengths: Vec<u32> = match layout {
        // Several texts share a row, so rows are always as long as they may be.
        Layout::Packed => vec![spans.length.max],
        Layout::Padded => {
            let steps = LENGTHS.into_iter().filter(|&length| length >= spans.length.min && length < length_max);
            steps.chain([length_max]).collect()
        }
    };
    let listed: Vec<u32> = model.cuda_graph_list.iter().copied().filter(|&rows| rows <= spans.rows.max).collect();
    let rows: Vec<(u32, bool)> = if spans.rows.is_fixed() || layout == Layout::Packed || listed.is_empty() {
        let steps = ROWS.into_iter().filter(|&rows| rows >= spans.rows.min && rows < spans.rows.max);
        let steps: Vec<u32> = steps.chain([spans.rows.max]).collect();
        // The largest are the last to go: what cannot be captured by number runs in the next larger one.
        let keep = (slots_max / lengths.len().max(1)).max(1);
        let skip = steps.len().saturating_sub(keep);
        steps[skip..].iter().map(|&rows| (rows, true)).collect()
    } else {
        let captured = listed.iter().map(|&rows| (rows.max(spans.rows.min), true));
        // Above the last listed size a batch runs without a graph, as it did in the old server.
        let rest = (listed.last() < Some(&spans.rows.max)).then_some((spans.rows.max, false));
        captured.chain(rest).collect()
    };
    slots_of(&lengths, &rows, spans, profile, layout)
}

fn slots_of(lengths: &[u32], rows: &[(u32, bool)], spans: Spans, profile: usize, layout: Layout) -> Vec<Slot> {
    let mut slots = Vec::new();
    for &length in lengths {
        for &(rows, captured) in rows {
            let sequences_max = match layout {
                Layout::Padded => rows,
                Layout::Packed => spans.sequences.max.min(rows.saturating_mul(length)),
            };
            let rows_min = if captured || layout == Layout::Packed { rows } else { spans.rows.min };
            slots.push(Slot { bucket: Bucket { rows, length, sequences_max }, profile, captured, rows_min });
        }
    }
    slots
}

/// Where everything lies for one bucket.
pub fn extent(ports: &Ports, bucket: Bucket) -> Extent {
    let mut inputs = Vec::new();
    let mut end = 0;
    for input in &ports.inputs {
        let bytes = elements(input, bucket) * if input.is_wide { 8 } else { 4 };
        inputs.push((end, bytes));
        end += bytes.next_multiple_of(ALIGNMENT);
    }
    Extent { inputs, input_bytes: end, output_bytes: output_bytes(&ports.output, ports.layout, bucket) }
}

/// Elements of one input.
pub fn elements(input: &Input, bucket: Bucket) -> usize {
    shape(input, bucket).as_slice().iter().product::<i64>() as usize
}

/// The shape of one input.
pub fn shape(input: &Input, bucket: Bucket) -> Shape {
    match input.role {
        Role::Firsts => Shape { sizes: [i64::from(bucket.sequences_max), 0], rank: 1 },
        Role::Ids | Role::Mask | Role::Types | Role::Positions | Role::Segments => {
            Shape { sizes: [i64::from(bucket.rows), i64::from(bucket.length)], rank: 2 }
        }
    }
}

/// One or two sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    sizes: [i64; 2],
    rank: usize,
}

impl Shape {
    pub fn as_slice(&self) -> &[i64] {
        &self.sizes[..self.rank]
    }
}

/// The shape of the output, if the engine keeps its word.
pub fn output_shape(output: &Output, layout: Layout, bucket: Bucket) -> Vec<i64> {
    let lines = match layout {
        Layout::Padded => bucket.rows,
        Layout::Packed => bucket.sequences_max,
    };
    let (lines, width) = (i64::from(lines), output.width as i64);
    match output.kind {
        Kind::Column => vec![lines],
        Kind::Pooled => vec![lines, width],
        Kind::Hidden(_) => vec![i64::from(bucket.rows), i64::from(bucket.length), width],
    }
}

fn output_bytes(output: &Output, layout: Layout, bucket: Bucket) -> usize {
    output_shape(output, layout, bucket).iter().product::<i64>() as usize * output.element.bytes()
}
