//! What a serialized TensorRT engine says of itself, and what is kept beside one that we built.
//!
//! Plain data without any library: `build` writes it, `inspect` shows it, `serve` checks it and the GPU device lays its
//! buffers out by it. Shapes are as the library has them, -1 for a dimension that an optimization profile decides.

/// Element types that tensors of text encoders have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    F32,
    F16,
    Bf16,
    I32,
    I64,
    /// Anything else, by the library's own name.
    Other(&'static str),
}

impl ElementType {
    /// Bytes of one element; 0 for [`ElementType::Other`].
    pub fn bytes(self) -> usize {
        match self {
            ElementType::F32 | ElementType::I32 => 4,
            ElementType::F16 | ElementType::Bf16 => 2,
            ElementType::I64 => 8,
            ElementType::Other(_) => 0,
        }
    }

    /// As people write it: `float16`, `int64`.
    pub fn name(self) -> &'static str {
        match self {
            ElementType::F32 => "float32",
            ElementType::F16 => "float16",
            ElementType::Bf16 => "bfloat16",
            ElementType::I32 => "int32",
            ElementType::I64 => "int64",
            ElementType::Other(name) => name,
        }
    }
}

/// Shapes that one optimization profile allows for one input, `min ≤ opt ≤ max` in each dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapeRange {
    pub min: Vec<i64>,
    pub opt: Vec<i64>,
    pub max: Vec<i64>,
}

impl ShapeRange {
    pub fn fixed(shape: &[i64]) -> ShapeRange {
        ShapeRange { min: shape.to_vec(), opt: shape.to_vec(), max: shape.to_vec() }
    }
}

/// One input or output of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    pub name: String,
    pub element: ElementType,
    /// -1: decided by the inputs' shapes.
    pub shape: Vec<i64>,
    /// One range for each optimization profile; empty for outputs.
    pub ranges: Vec<ShapeRange>,
    /// True exactly for a shape tensor read on the host, which no encoder needs and this server refuses.
    pub on_host: bool,
}

/// An engine's inputs and outputs, in its own order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    pub inputs: Vec<Tensor>,
    pub outputs: Vec<Tensor>,
    /// Optimization profiles, at least one in a loaded engine.
    pub profiles: usize,
    /// Scratch memory of one execution context, for each profile.
    pub context_bytes: Vec<u64>,
}
