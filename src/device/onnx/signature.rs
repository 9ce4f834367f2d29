//! What an `.onnx` file's session wants and gives: its ports by role, and the sizes that it fixes.
//!
//! Invariant: a dimension that two inputs fix differently is an error naming both values.

use ort::session::Session;
use ort::value::{Outlet, TensorElementType};

use crate::device::ports::{Ports, Role};
use crate::device::{Bucket, Layout};
use crate::model::Model;
use crate::model::convert::Metadata;
use crate::model::engine::{ElementType, Tensor};

/// Sizes that the file fixes; `None`: any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fixed {
    pub rows: Option<u32>,
    pub length: Option<u32>,
    /// Packed only.
    pub sequences: Option<u32>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Signature {
    pub ports: Ports,
    pub fixed: Fixed,
    /// A token that takes no position, and the position that it gets: our packed files of the RoBERTa families.
    pub unpositioned: Option<(i32, i32)>,
}

/// Sequences in one packed plan at most, where the file leaves it open: texts of eight tokens still fill 4,096.
const SEQUENCES_MAX: u32 = 512;

/// Bucket lengths of padded files that leave their length open, besides the model's own: what short texts are put with.
const LENGTHS: [u32; 6] = [16, 32, 64, 128, 256, 512];

impl Signature {
    /// Reads the session's ports.
    pub fn read(session: &Session, model: &Model, metadata: Option<&Metadata>) -> Result<Signature, String> {
        let inputs: Vec<Tensor> = session.inputs().iter().map(tensor).collect();
        let outputs: Vec<Tensor> = session.outputs().iter().map(tensor).collect();
        let ports = Ports::read(&inputs, &outputs, model)?;
        let mut fixed = Fixed::default();
        for (tensor, input) in inputs.iter().zip(&ports.inputs) {
            fixed.note(tensor, input.role)?;
        }
        let unpositioned = metadata.and_then(|metadata| Some((metadata.pad_token? as i32, metadata.max_length as i32)));
        Ok(Signature { ports, fixed, unpositioned })
    }

    pub fn layout(&self) -> Layout {
        self.ports.layout
    }

    /// The shapes to offer, ascending in cost: where the file leaves dimensions open, bounds up to `tokens_max` tokens
    /// (one sequence of `length_max` in any case).
    pub fn buckets(&self, tokens_max: u32, length_max: u32) -> Result<Vec<Bucket>, String> {
        let layout = self.layout();
        if let Some(length) = self.fixed.length.filter(|&length| length < length_max) {
            return Err(format!(
                "takes {length} tokens, and the model's max_length is {length_max}; set `max_length: {length}`"
            ));
        }
        let lengths: Vec<u32> = match (self.fixed.length, layout) {
            (Some(length), _) => vec![length],
            (None, Layout::Packed) => vec![length_max],
            (None, Layout::Padded) => {
                LENGTHS.into_iter().filter(|&length| length < length_max).chain([length_max]).collect()
            }
        };
        let mut buckets = Vec::new();
        for length in lengths {
            let rows_max = (tokens_max / length).max(1);
            let all_rows: Vec<u32> = match self.fixed.rows {
                Some(rows) => vec![rows],
                None => [1, 4, 16, 64].into_iter().filter(|&rows| rows < rows_max).chain([rows_max]).collect(),
            };
            for rows in all_rows {
                let sequences_max = match layout {
                    Layout::Padded => rows,
                    Layout::Packed => self.fixed.sequences.unwrap_or(SEQUENCES_MAX).min(rows * length),
                };
                buckets.push(Bucket { rows, length, sequences_max });
            }
        }
        buckets.sort_by_key(|bucket| (bucket.tokens(), bucket.rows));
        Ok(buckets)
    }
}

impl Fixed {
    /// Notes the sizes that one input fixes.
    fn note(&mut self, tensor: &Tensor, role: Role) -> Result<(), String> {
        let places = match role {
            Role::Firsts => vec![&mut self.sequences],
            Role::Ids | Role::Mask | Role::Types | Role::Positions | Role::Segments => {
                vec![&mut self.rows, &mut self.length]
            }
        };
        for (place, &size) in places.into_iter().zip(&tensor.shape) {
            let Some(size) = u32::try_from(size).ok().filter(|&size| size > 0) else { continue };
            let known = *place.get_or_insert(size);
            if known != size {
                return Err(format!("input `{}` fixes {size} where another fixes {known}", tensor.name));
            }
        }
        Ok(())
    }
}

/// A port as plain data. A value that is no tensor is one of an unknown type and no dimensions.
fn tensor(port: &Outlet) -> Tensor {
    let element = match port.dtype().tensor_type() {
        Some(TensorElementType::Float32) => ElementType::F32,
        Some(TensorElementType::Float16) => ElementType::F16,
        Some(TensorElementType::Int32) => ElementType::I32,
        Some(TensorElementType::Int64) => ElementType::I64,
        Some(TensorElementType::Float64) => ElementType::Other("float64"),
        Some(TensorElementType::Bool) => ElementType::Other("bool"),
        _ => ElementType::Other("of another type"),
    };
    let shape = port.dtype().tensor_shape().map(|shape| shape.to_vec()).unwrap_or_default();
    Tensor { name: port.name().to_owned(), element, shape, ranges: Vec::new(), on_host: false }
}
