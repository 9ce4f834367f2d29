//! ONNX files: the part of the format that we write and read, a typed graph builder, and a writer that streams weights.
//!
//! Owned here: the protobuf messages (derived by hand, field numbers as in ONNX's published schema, so there is neither a
//! schema compiler nor a build script), [`Graph`] with one method per operator, [`Graph::write`], and [`Summary::read`],
//! which looks at a file without touching its weights. Nothing here knows what a transformer is.
//!
//! Invariants:
//! * A [`Graph`] is strongly typed: both operands of an arithmetic node have one element type and every change of it is a
//!   `Cast` that somebody wrote down, because an engine that takes its precision from the graph converts nothing by itself.
//! * Every value is made by exactly one node, input or initializer, and is used only after it was made.
//! * Weights are produced tensor by tensor while they are written; the file is never in memory.
//!
//! ```text
//! embedded     model.onnx:       header | graph { nodes … initializer { dims, raw_data … } … }
//! external     model.onnx:       header | graph { nodes … initializer { dims, "model.onnx.data", offset, length } … }
//!              model.onnx.data:  | tensor | 0… | tensor | …         offsets are multiples of EXTERNAL_ALIGNMENT
//! ```

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};

use half::f16;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};

use super::files::open_regular;

#[doc(hidden)]
pub mod fuzzing;

/// The messages of the ONNX schema, with the fields that we use. Unknown fields are skipped on reading.
pub mod schema {
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct ModelProto {
        #[prost(int64, tag = "1")]
        pub ir_version: i64,
        #[prost(string, tag = "2")]
        pub producer_name: String,
        #[prost(string, tag = "3")]
        pub producer_version: String,
        #[prost(message, optional, tag = "7")]
        pub graph: Option<GraphProto>,
        #[prost(message, repeated, tag = "8")]
        pub opset_import: Vec<OperatorSetIdProto>,
        #[prost(message, repeated, tag = "14")]
        pub metadata_props: Vec<StringStringEntryProto>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct OperatorSetIdProto {
        /// Empty: the standard operators.
        #[prost(string, tag = "1")]
        pub domain: String,
        #[prost(int64, tag = "2")]
        pub version: i64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct StringStringEntryProto {
        #[prost(string, tag = "1")]
        pub key: String,
        #[prost(string, tag = "2")]
        pub value: String,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct GraphProto {
        #[prost(message, repeated, tag = "1")]
        pub node: Vec<NodeProto>,
        #[prost(string, tag = "2")]
        pub name: String,
        #[prost(message, repeated, tag = "5")]
        pub initializer: Vec<TensorProto>,
        #[prost(message, repeated, tag = "11")]
        pub input: Vec<ValueInfoProto>,
        #[prost(message, repeated, tag = "12")]
        pub output: Vec<ValueInfoProto>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct NodeProto {
        #[prost(string, repeated, tag = "1")]
        pub input: Vec<String>,
        #[prost(string, repeated, tag = "2")]
        pub output: Vec<String>,
        #[prost(string, tag = "3")]
        pub name: String,
        #[prost(string, tag = "4")]
        pub op_type: String,
        #[prost(message, repeated, tag = "5")]
        pub attribute: Vec<AttributeProto>,
    }

    /// `f` and `i` are optional because the format's checker tells a zero from nothing.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct AttributeProto {
        #[prost(string, tag = "1")]
        pub name: String,
        #[prost(float, optional, tag = "2")]
        pub f: Option<f32>,
        #[prost(int64, optional, tag = "3")]
        pub i: Option<i64>,
        #[prost(bytes = "vec", optional, tag = "4")]
        pub s: Option<Vec<u8>>,
        #[prost(int64, repeated, packed = "false", tag = "8")]
        pub ints: Vec<i64>,
        /// 1 float, 2 int, 3 string, 7 ints.
        #[prost(int32, tag = "20")]
        pub r#type: i32,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct TensorProto {
        #[prost(int64, repeated, packed = "false", tag = "1")]
        pub dims: Vec<i64>,
        #[prost(int32, tag = "2")]
        pub data_type: i32,
        #[prost(string, tag = "8")]
        pub name: String,
        /// Little-endian values; tag 9 is also written by hand when the bytes are streamed.
        #[prost(bytes = "vec", optional, tag = "9")]
        pub raw_data: Option<Vec<u8>>,
        /// `location`, `offset`, `length`.
        #[prost(message, repeated, tag = "13")]
        pub external_data: Vec<StringStringEntryProto>,
        /// 0 in this file, 1 in another.
        #[prost(int32, tag = "14")]
        pub data_location: i32,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct ValueInfoProto {
        #[prost(string, tag = "1")]
        pub name: String,
        #[prost(message, optional, tag = "2")]
        pub r#type: Option<TypeProto>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct TypeProto {
        #[prost(message, optional, tag = "1")]
        pub tensor_type: Option<TensorTypeProto>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct TensorTypeProto {
        #[prost(int32, tag = "1")]
        pub elem_type: i32,
        #[prost(message, optional, tag = "2")]
        pub shape: Option<TensorShapeProto>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct TensorShapeProto {
        #[prost(message, repeated, tag = "1")]
        pub dim: Vec<Dimension>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Dimension {
        #[prost(oneof = "dimension::Value", tags = "1, 2")]
        pub value: Option<dimension::Value>,
    }

    pub mod dimension {
        #[derive(Clone, PartialEq, prost::Oneof)]
        pub enum Value {
            #[prost(int64, tag = "1")]
            DimValue(i64),
            #[prost(string, tag = "2")]
            DimParam(String),
        }
    }
}

use schema::*;

/// Protobuf refuses messages of 2 GiB and more; a model beyond this keeps its weights in a second file.
pub const EMBEDDED_BYTES_MAX: u64 = i32::MAX as u64;

/// External tensors start at multiples of this (a memory page), so that readers can map them.
pub const EXTERNAL_ALIGNMENT: u64 = 4096;

/// Tensors below this many bytes stay in the model file even when the others leave it: shapes and axes are read by
/// everyone who analyses the graph.
const EXTERNAL_BYTES_MIN: u64 = 1024;

/// What a value's elements are. The number is the schema's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    Float = 1,
    Int32 = 6,
    Int64 = 7,
    Bool = 9,
    Half = 10,
}

impl Element {
    /// Bytes of one element.
    pub fn bytes(self) -> u64 {
        match self {
            Element::Float | Element::Int32 => 4,
            Element::Int64 => 8,
            Element::Bool => 1,
            Element::Half => 2,
        }
    }
}

/// One dimension of an input or output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dimension {
    Fixed(usize),
    /// Known at run time; equal names are equal sizes.
    Named(String),
}

impl Dimension {
    pub fn named(name: &str) -> Dimension {
        Dimension::Named(name.to_owned())
    }

    fn encode(&self) -> schema::Dimension {
        let value = match self {
            Dimension::Fixed(size) => dimension::Value::DimValue(*size as i64),
            Dimension::Named(name) => dimension::Value::DimParam(name.clone()),
        };
        schema::Dimension { value: Some(value) }
    }
}

impl fmt::Display for Dimension {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dimension::Fixed(size) => write!(formatter, "{size}"),
            Dimension::Named(name) => formatter.write_str(name),
        }
    }
}

/// Hands over a tensor's values in order, in pieces of any size.
pub type Produce<'w> = Box<dyn Fn(&mut dyn FnMut(&[f32]) -> Result<(), WriteError>) -> Result<(), WriteError> + 'w>;

enum Data<'w> {
    Bytes(Vec<u8>),
    Values(Produce<'w>),
}

struct Initializer<'w> {
    name: String,
    element: Element,
    dims: Vec<usize>,
    data: Data<'w>,
}

impl Initializer<'_> {
    fn bytes(&self) -> u64 {
        self.dims.iter().map(|&dim| dim as u64).product::<u64>() * self.element.bytes()
    }

    /// Writes exactly [`Initializer::bytes`] bytes.
    fn write(&self, target: &mut dyn Write) -> Result<(), WriteError> {
        let produce = match &self.data {
            Data::Bytes(bytes) => return Ok(target.write_all(bytes)?),
            Data::Values(produce) => produce,
        };
        let mut encoded = Vec::new();
        let mut written = 0;
        produce(&mut |values| {
            encoded.clear();
            match self.element {
                Element::Float => encoded.extend(values.iter().flat_map(|value| value.to_le_bytes())),
                Element::Half => {
                    for &value in values {
                        let half = f16::from_f32(value);
                        if !half.is_finite() {
                            return Err(WriteError::NotHalf { tensor: self.name.clone(), value });
                        }
                        encoded.extend(half.to_le_bytes());
                    }
                }
                Element::Int32 | Element::Int64 | Element::Bool => unreachable!("weights are floats or halves"),
            }
            written += encoded.len() as u64;
            Ok(target.write_all(&encoded)?)
        })?;
        assert_eq!(written, self.bytes(), "{} does not fill its shape {:?}", self.name, self.dims);
        Ok(())
    }

    fn header(&self) -> TensorProto {
        TensorProto {
            dims: self.dims.iter().map(|&dim| dim as i64).collect(),
            data_type: self.element as i32,
            name: self.name.clone(),
            ..TensorProto::default()
        }
    }
}

/// Why a graph could not be written.
#[derive(Debug)]
pub enum WriteError {
    Io(io::Error),
    /// A weight that half precision cannot hold (or that is no number to begin with).
    NotHalf {
        tensor: String,
        value: f32,
    },
    /// The model exceeds what one file can hold although its weights lie outside.
    TooLarge {
        bytes: u64,
    },
}

impl From<io::Error> for WriteError {
    fn from(error: io::Error) -> WriteError {
        WriteError::Io(error)
    }
}

impl fmt::Display for WriteError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WriteError::Io(error) => write!(formatter, "{error}"),
            WriteError::NotHalf { tensor, value } => {
                write!(formatter, "{tensor} holds {value}, which half precision cannot represent; convert to fp32")
            }
            WriteError::TooLarge { bytes } => {
                write!(formatter, "the graph alone takes {bytes} bytes, and ONNX files end at {EMBEDDED_BYTES_MAX}")
            }
        }
    }
}

impl std::error::Error for WriteError {}

/// A value of the graph that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value(usize);

/// A graph under construction. Methods named after operators add one node each and return its output; `name` names both.
///
/// `'w` is the life of the weights, which are read only by [`Graph::write`].
pub struct Graph<'w> {
    name: String,
    opset: u32,
    values: Vec<(String, Element)>,
    names: HashMap<String, Value>,
    nodes: Vec<NodeProto>,
    initializers: Vec<Initializer<'w>>,
    inputs: Vec<ValueInfoProto>,
    outputs: Vec<ValueInfoProto>,
    metadata: Vec<(String, String)>,
}

impl fmt::Debug for Graph<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Graph")
            .field("name", &self.name)
            .field("opset", &self.opset)
            .field("nodes", &self.nodes.len())
            .field("initializers", &self.initializers.len())
            .finish_non_exhaustive()
    }
}

/// Makes the graph: inputs, constants, weights, outputs.
impl<'w> Graph<'w> {
    pub fn new(name: &str, opset: u32) -> Graph<'w> {
        Graph {
            name: name.to_owned(),
            opset,
            values: Vec::new(),
            names: HashMap::new(),
            nodes: Vec::new(),
            initializers: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            metadata: Vec::new(),
        }
    }

    pub fn opset(&self) -> u32 {
        self.opset
    }

    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    pub fn element(&self, value: Value) -> Element {
        self.values[value.0].1
    }

    /// The value of this name, if there is one.
    pub fn find(&self, name: &str) -> Option<Value> {
        self.names.get(name).copied()
    }

    /// Records a pair in the model's `metadata_props`.
    pub fn metadata(&mut self, key: &str, value: impl Into<String>) {
        self.metadata.push((key.to_owned(), value.into()));
    }

    pub fn input(&mut self, name: &str, element: Element, dims: &[Dimension]) -> Value {
        self.inputs.push(value_info(name, element, dims));
        self.value(name, element)
    }

    /// Makes `value`, which must carry this name already, an output.
    pub fn output(&mut self, value: Value, dims: &[Dimension]) {
        let (name, element) = &self.values[value.0];
        self.outputs.push(value_info(name, *element, dims));
    }

    /// A tensor whose values are produced when the graph is written. `element` is `Float` or `Half`.
    pub fn weight(&mut self, name: &str, element: Element, dims: &[usize], produce: Produce<'w>) -> Value {
        assert!(matches!(element, Element::Float | Element::Half), "weights are floats or halves");
        self.initializer(name, element, dims, Data::Values(produce))
    }

    /// A constant vector of int64, made once for equal values: axes, shapes, bounds.
    pub fn vector(&mut self, values: &[i64]) -> Value {
        let words: Vec<String> = values.iter().map(i64::to_string).collect();
        let name = format!("vector/{}", words.join("_"));
        if let Some(vector) = self.find(&name) {
            return vector;
        }
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.initializer(&name, Element::Int64, &[values.len()], Data::Bytes(bytes))
    }

    /// One number without dimensions. `element` is `Float`, `Half` or `Int32`.
    pub fn scalar(&mut self, name: &str, element: Element, value: f32) -> Value {
        let bytes = match element {
            Element::Float => value.to_le_bytes().to_vec(),
            Element::Half => f16::from_f32(value).to_le_bytes().to_vec(),
            Element::Int32 => (value as i32).to_le_bytes().to_vec(),
            Element::Int64 | Element::Bool => panic!("no scalar of {element:?} is needed"),
        };
        self.initializer(name, element, &[], Data::Bytes(bytes))
    }

    fn initializer(&mut self, name: &str, element: Element, dims: &[usize], data: Data<'w>) -> Value {
        self.initializers.push(Initializer { name: name.to_owned(), element, dims: dims.to_vec(), data });
        self.value(name, element)
    }

    fn value(&mut self, name: &str, element: Element) -> Value {
        let value = Value(self.values.len());
        assert!(self.names.insert(name.to_owned(), value).is_none(), "two values are named {name}");
        self.values.push((name.to_owned(), element));
        value
    }

    fn node(
        &mut self,
        operator: &str,
        name: &str,
        inputs: &[Value],
        attributes: Vec<AttributeProto>,
        element: Element,
    ) -> Value {
        self.nodes.push(NodeProto {
            input: inputs.iter().map(|input| self.values[input.0].0.clone()).collect(),
            output: vec![name.to_owned()],
            name: name.to_owned(),
            op_type: operator.to_owned(),
            attribute: attributes,
        });
        self.value(name, element)
    }

    fn binary(&mut self, operator: &str, name: &str, left: Value, right: Value) -> Value {
        let element = self.element(left);
        assert_eq!(element, self.element(right), "{name}: {operator} of two element types");
        self.node(operator, name, &[left, right], vec![], element)
    }

    fn unary(&mut self, operator: &str, name: &str, input: Value) -> Value {
        let element = self.element(input);
        self.node(operator, name, &[input], vec![], element)
    }
}

/// The operators. Shapes are in the operator's own documentation; what is said here is what we fix.
impl Graph<'_> {
    pub fn matmul(&mut self, name: &str, left: Value, right: Value) -> Value {
        self.binary("MatMul", name, left, right)
    }

    pub fn add(&mut self, name: &str, left: Value, right: Value) -> Value {
        self.binary("Add", name, left, right)
    }

    pub fn mul(&mut self, name: &str, left: Value, right: Value) -> Value {
        self.binary("Mul", name, left, right)
    }

    pub fn div(&mut self, name: &str, left: Value, right: Value) -> Value {
        self.binary("Div", name, left, right)
    }

    /// The larger of each two elements.
    pub fn max(&mut self, name: &str, left: Value, right: Value) -> Value {
        self.binary("Max", name, left, right)
    }

    /// Another name for a value, such as an output's.
    pub fn identity(&mut self, name: &str, input: Value) -> Value {
        self.unary("Identity", name, input)
    }

    pub fn erf(&mut self, name: &str, input: Value) -> Value {
        self.unary("Erf", name, input)
    }

    pub fn tanh(&mut self, name: &str, input: Value) -> Value {
        self.unary("Tanh", name, input)
    }

    pub fn relu(&mut self, name: &str, input: Value) -> Value {
        self.unary("Relu", name, input)
    }

    pub fn sqrt(&mut self, name: &str, input: Value) -> Value {
        self.unary("Sqrt", name, input)
    }

    /// From opset 20 on.
    pub fn gelu(&mut self, name: &str, input: Value, tanh: bool) -> Value {
        assert!(self.opset >= 20, "Gelu came with opset 20");
        let approximate = string("approximate", if tanh { "tanh" } else { "none" });
        let element = self.element(input);
        self.node("Gelu", name, &[input], vec![approximate], element)
    }

    /// `input` itself if it has this element type already.
    pub fn cast(&mut self, name: &str, input: Value, element: Element) -> Value {
        if self.element(input) == element {
            return input;
        }
        self.node("Cast", name, &[input], vec![integer("to", element as i64)], element)
    }

    /// Rows of `table` (or whatever lies along `axis`) by index.
    pub fn gather(&mut self, name: &str, table: Value, indices: Value, axis: i64) -> Value {
        assert!(matches!(self.element(indices), Element::Int32 | Element::Int64), "{name}: indices are integers");
        let element = self.element(table);
        self.node("Gather", name, &[table, indices], vec![integer("axis", axis)], element)
    }

    /// The input's dimensions, `[rank]` int64.
    pub fn shape(&mut self, name: &str, input: Value) -> Value {
        self.node("Shape", name, &[input], vec![], Element::Int64)
    }

    /// The first `count` elements along axis 0; `count` is `[1]` int64 and may be known at run time only.
    pub fn first(&mut self, name: &str, input: Value, count: Value) -> Value {
        let zero = self.vector(&[0]);
        self.slice(name, input, zero, count)
    }

    /// Elements `starts..ends` along axis 0, each `[1]` int64.
    pub fn slice(&mut self, name: &str, input: Value, starts: Value, ends: Value) -> Value {
        let axes = self.vector(&[0]);
        let element = self.element(input);
        self.node("Slice", name, &[input, starts, ends, axes], vec![], element)
    }

    pub fn unsqueeze(&mut self, name: &str, input: Value, axes: &[i64]) -> Value {
        let axes = self.vector(axes);
        let element = self.element(input);
        self.node("Unsqueeze", name, &[input, axes], vec![], element)
    }

    pub fn squeeze(&mut self, name: &str, input: Value, axes: &[i64]) -> Value {
        let axes = self.vector(axes);
        let element = self.element(input);
        self.node("Squeeze", name, &[input, axes], vec![], element)
    }

    /// In `shape` 0 keeps a dimension and -1 takes the rest.
    pub fn reshape(&mut self, name: &str, input: Value, shape: &[i64]) -> Value {
        let shape = self.vector(shape);
        let element = self.element(input);
        self.node("Reshape", name, &[input, shape], vec![], element)
    }

    pub fn transpose(&mut self, name: &str, input: Value, permutation: &[i64]) -> Value {
        let element = self.element(input);
        self.node("Transpose", name, &[input], vec![integers("perm", permutation)], element)
    }

    /// Three parts along the last axis.
    pub fn split_in_three(&mut self, names: [&str; 3], input: Value, sizes: [i64; 3]) -> [Value; 3] {
        let sizes = self.vector(&sizes);
        let element = self.element(input);
        let first = self.node("Split", names[0], &[input, sizes], vec![integer("axis", -1)], element);
        let node = self.nodes.last_mut().expect("the node was just made");
        node.output.extend([names[1].to_owned(), names[2].to_owned()]);
        [first, self.value(names[1], element), self.value(names[2], element)]
    }

    /// Along the last axis.
    pub fn softmax(&mut self, name: &str, input: Value) -> Value {
        let element = self.element(input);
        self.node("Softmax", name, &[input], vec![integer("axis", -1)], element)
    }

    /// Along the last axis.
    pub fn layer_normalization(&mut self, name: &str, input: Value, gain: Value, bias: Value, epsilon: f32) -> Value {
        let element = self.element(input);
        assert!(element == self.element(gain) && element == self.element(bias), "{name}: two element types");
        let attributes = vec![integer("axis", -1), float("epsilon", epsilon)];
        self.node("LayerNormalization", name, &[input, gain, bias], attributes, element)
    }

    /// Along one axis, which stays as 1 if `keep`.
    pub fn reduce_sum(&mut self, name: &str, input: Value, axis: i64, keep: bool) -> Value {
        let axes = self.vector(&[axis]);
        let element = self.element(input);
        self.node("ReduceSum", name, &[input, axes], vec![integer("keepdims", keep.into())], element)
    }

    pub fn equal(&mut self, name: &str, left: Value, right: Value) -> Value {
        assert_eq!(self.element(left), self.element(right), "{name}: Equal of two element types");
        self.node("Equal", name, &[left, right], vec![], Element::Bool)
    }

    pub fn less(&mut self, name: &str, left: Value, right: Value) -> Value {
        assert_eq!(self.element(left), self.element(right), "{name}: Less of two element types");
        self.node("Less", name, &[left, right], vec![], Element::Bool)
    }

    /// `then` where `condition` holds, else `otherwise`.
    pub fn select(&mut self, name: &str, condition: Value, then: Value, otherwise: Value) -> Value {
        let element = self.element(then);
        assert_eq!(element, self.element(otherwise), "{name}: Where of two element types");
        assert_eq!(self.element(condition), Element::Bool, "{name}: conditions are booleans");
        self.node("Where", name, &[condition, then, otherwise], vec![], element)
    }
}

fn value_info(name: &str, element: Element, dims: &[Dimension]) -> ValueInfoProto {
    let shape = TensorShapeProto { dim: dims.iter().map(Dimension::encode).collect() };
    let tensor = TensorTypeProto { elem_type: element as i32, shape: Some(shape) };
    ValueInfoProto { name: name.to_owned(), r#type: Some(TypeProto { tensor_type: Some(tensor) }) }
}

fn float(name: &str, value: f32) -> AttributeProto {
    AttributeProto { name: name.to_owned(), f: Some(value), r#type: 1, ..AttributeProto::default() }
}

fn integer(name: &str, value: i64) -> AttributeProto {
    AttributeProto { name: name.to_owned(), i: Some(value), r#type: 2, ..AttributeProto::default() }
}

fn string(name: &str, value: &str) -> AttributeProto {
    AttributeProto { name: name.to_owned(), s: Some(value.as_bytes().to_vec()), r#type: 3, ..AttributeProto::default() }
}

fn integers(name: &str, values: &[i64]) -> AttributeProto {
    AttributeProto { name: name.to_owned(), ints: values.to_vec(), r#type: 7, ..AttributeProto::default() }
}

/// What [`Graph::write`] made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Bytes of the model file.
    pub model_bytes: u64,
    /// The second file and its bytes, if the weights lie outside.
    pub external: Option<(PathBuf, u64)>,
}

/// Where the bytes of one initializer go.
struct Placed {
    header: TensorProto,
    /// Bytes that follow the header as `raw_data`; `None` if the tensor lies in the other file.
    embedded: Option<u64>,
}

impl Placed {
    /// Bytes of the tensor's message.
    fn message_bytes(&self) -> u64 {
        let raw = self.embedded.map_or(0, |bytes| key_len(RAW_DATA) as u64 + prefix_bytes(bytes) + bytes);
        self.header.encoded_len() as u64 + raw
    }
}

/// Field numbers of the model's message that are read or written by hand, because what follows is skipped or streamed.
const PRODUCER_NAME: u32 = 2;
const PRODUCER_VERSION: u32 = 3;
const GRAPH: u32 = 7;
const OPSET_IMPORT: u32 = 8;
const METADATA: u32 = 14;
/// The largest that the schema has, with room for some more.
const MODEL_FIELD_MAX: u32 = 63;
/// The same of the graph's message.
const NODE: u32 = 1;
const INITIALIZER: u32 = 5;
const INPUT: u32 = 11;
const OUTPUT: u32 = 12;
/// The same of a tensor's message.
const RAW_DATA: u32 = 9;
const EXTERNAL_DATA: u32 = 13;

fn prefix_bytes(length: u64) -> u64 {
    encoded_len_varint(length) as u64
}

fn write_prefix(target: &mut dyn Write, field: u32, length: u64) -> io::Result<()> {
    let mut prefix = Vec::with_capacity(16);
    encode_key(field, WireType::LengthDelimited, &mut prefix);
    encode_varint(length, &mut prefix);
    target.write_all(&prefix)
}

/// `model.onnx` → `model.onnx.data`, beside it.
pub fn external_path(model: &Path) -> PathBuf {
    let mut name = model.file_name().unwrap_or_default().to_owned();
    name.push(".data");
    model.with_file_name(name)
}

fn partial_path(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    path.with_file_name(name)
}

/// Writing.
impl Graph<'_> {
    /// Writes the model to `path`, its weights beside it if the file would exceed `embedded_bytes_max`.
    ///
    /// The files appear under their names when they are complete, the model last; after an error neither is left behind.
    /// `progress(done, total)` counts bytes of weights. Memory: one tensor at most, as its producer holds it.
    pub fn write(
        &self,
        path: &Path,
        embedded_bytes_max: u64,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Written, WriteError> {
        let (head, graph) = self.messages();
        let mut placed = self.place(None);
        if file_bytes(&head, &graph, &placed) > embedded_bytes_max.min(EMBEDDED_BYTES_MAX) {
            placed = self.place(Some(&external_path(path)));
        }
        let model_bytes = file_bytes(&head, &graph, &placed);
        if model_bytes > EMBEDDED_BYTES_MAX {
            return Err(WriteError::TooLarge { bytes: model_bytes });
        }
        let external = placed.iter().any(|tensor| tensor.embedded.is_none()).then(|| external_path(path));
        let partial = (partial_path(path), external.as_deref().map(partial_path));
        let mut done = Progress { done: 0, total: self.initializers.iter().map(Initializer::bytes).sum(), progress };
        let result = (|| {
            let mut external_bytes = 0;
            if let Some(partial) = &partial.1 {
                external_bytes = self.write_external(&placed, partial, &mut done)?;
            }
            self.write_model(&head, &graph, &placed, &partial.0, &mut done)?;
            if let (Some(partial), Some(external)) = (&partial.1, &external) {
                std::fs::rename(partial, external)?;
            }
            std::fs::rename(&partial.0, path)?;
            Ok(external_bytes)
        })();
        match result {
            Ok(external_bytes) => Ok(Written { model_bytes, external: external.map(|path| (path, external_bytes)) }),
            Err(error) => {
                for path in [Some(partial.0), partial.1].into_iter().flatten() {
                    // Best effort: the error that is reported is the one that brought us here.
                    let _ = std::fs::remove_file(path);
                }
                Err(error)
            }
        }
    }

    /// The model without its graph, and the graph without its initializers.
    fn messages(&self) -> (ModelProto, GraphProto) {
        let entry = |(key, value): &(String, String)| StringStringEntryProto { key: key.clone(), value: value.clone() };
        let model = ModelProto {
            ir_version: ir_version(self.opset),
            producer_name: env!("CARGO_PKG_NAME").to_owned(),
            producer_version: env!("CARGO_PKG_VERSION").to_owned(),
            graph: None,
            opset_import: vec![OperatorSetIdProto { domain: String::new(), version: self.opset.into() }],
            metadata_props: self.metadata.iter().map(entry).collect(),
        };
        let graph = GraphProto {
            node: self.nodes.clone(),
            name: self.name.clone(),
            initializer: vec![],
            input: self.inputs.clone(),
            output: self.outputs.clone(),
        };
        (model, graph)
    }

    fn place(&self, external: Option<&Path>) -> Vec<Placed> {
        let location = external.and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        let mut offset = 0u64;
        let place = |initializer: &Initializer<'_>| {
            let mut header = initializer.header();
            let bytes = initializer.bytes();
            let Some(location) = location.as_ref().filter(|_| bytes >= EXTERNAL_BYTES_MIN) else {
                return Placed { header, embedded: Some(bytes) };
            };
            let entry = |key: &str, value: String| StringStringEntryProto { key: key.to_owned(), value };
            header.external_data = vec![
                entry("location", location.clone()),
                entry("offset", offset.to_string()),
                entry("length", bytes.to_string()),
            ];
            header.data_location = 1;
            offset = (offset + bytes).next_multiple_of(EXTERNAL_ALIGNMENT);
            Placed { header, embedded: None }
        };
        self.initializers.iter().map(place).collect()
    }

    fn write_external(&self, placed: &[Placed], path: &Path, progress: &mut Progress<'_>) -> Result<u64, WriteError> {
        let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
        let mut offset = 0u64;
        for (initializer, tensor) in self.initializers.iter().zip(placed) {
            if tensor.embedded.is_some() {
                continue;
            }
            let start = offset.next_multiple_of(EXTERNAL_ALIGNMENT);
            io::copy(&mut io::repeat(0).take(start - offset), &mut file)?;
            initializer.write(&mut file)?;
            offset = start + initializer.bytes();
            progress.add(initializer.bytes());
        }
        file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        Ok(offset)
    }

    fn write_model(
        &self,
        head: &ModelProto,
        graph: &GraphProto,
        placed: &[Placed],
        path: &Path,
        progress: &mut Progress<'_>,
    ) -> Result<(), WriteError> {
        let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
        file.write_all(&head.encode_to_vec())?;
        write_prefix(&mut file, GRAPH, graph_bytes(graph, placed))?;
        file.write_all(&graph.encode_to_vec())?;
        for (initializer, tensor) in self.initializers.iter().zip(placed) {
            write_prefix(&mut file, INITIALIZER, tensor.message_bytes())?;
            file.write_all(&tensor.header.encode_to_vec())?;
            if let Some(bytes) = tensor.embedded {
                write_prefix(&mut file, RAW_DATA, bytes)?;
                initializer.write(&mut file)?;
                progress.add(bytes);
            }
        }
        file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        Ok(())
    }
}

struct Progress<'p> {
    done: u64,
    total: u64,
    progress: &'p mut dyn FnMut(u64, u64),
}

impl Progress<'_> {
    fn add(&mut self, bytes: u64) {
        self.done += bytes;
        (self.progress)(self.done, self.total);
    }
}

/// Bytes of the graph's message, its initializers included.
fn graph_bytes(graph: &GraphProto, placed: &[Placed]) -> u64 {
    let initializer = |tensor: &Placed| {
        let bytes = tensor.message_bytes();
        key_len(INITIALIZER) as u64 + prefix_bytes(bytes) + bytes
    };
    graph.encoded_len() as u64 + placed.iter().map(initializer).sum::<u64>()
}

fn file_bytes(head: &ModelProto, graph: &GraphProto, placed: &[Placed]) -> u64 {
    let bytes = graph_bytes(graph, placed);
    head.encoded_len() as u64 + key_len(GRAPH) as u64 + prefix_bytes(bytes) + bytes
}

/// The file format's version that came with an operator set.
fn ir_version(opset: u32) -> i64 {
    match opset {
        ..=18 => 8,
        19..=20 => 9,
        21..=22 => 10,
        23.. => 11,
    }
}

/// What a model file says of itself, without its weights.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    pub producer_name: String,
    pub producer_version: String,
    /// The version of the standard operators.
    pub opset: i64,
    pub metadata: Vec<(String, String)>,
    /// As listed; files of the first versions list their initializers here too.
    pub inputs: Vec<Port>,
    pub outputs: Vec<Port>,
    /// Other files that tensors lie in, as the file names them: relative to its own folder.
    pub external: Vec<String>,
}

/// An input or output as a file lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    pub name: String,
    /// The schema's number, see [`Element`].
    pub element: i32,
    pub dims: Vec<Dimension>,
}

impl Summary {
    /// Reads everything but nodes and weights, which are skipped by their lengths. No file, whatever it holds, makes this
    /// take more than [`Summary::FIELD_BYTES_MAX`] at once.
    pub fn read(path: &Path) -> io::Result<Summary> {
        let file = open_regular(path)?;
        let length = file.metadata()?.len();
        Summary::read_from(&mut BufReader::new(file), length)
    }

    /// The same of a file that has `length` bytes from where the reader stands.
    fn read_from(reader: &mut (impl Read + Seek), length: u64) -> io::Result<Summary> {
        let mut summary = Summary::default();
        let mut position = 0;
        while position < length {
            let is_first = position == 0;
            let (field, bytes) = read_field(reader, &mut position, length)?;
            if is_first && field > MODEL_FIELD_MAX {
                return Err(corrupt("it does not begin like a model (is this an ONNX file?)"));
            }
            if length > EMBEDDED_BYTES_MAX {
                return Err(corrupt(&format!("{length} bytes, and ONNX files end at {EMBEDDED_BYTES_MAX}")));
            }
            if field == GRAPH {
                let end = position + bytes;
                while position < end {
                    let (field, bytes) = read_field(reader, &mut position, end)?;
                    summary.graph_field(field, bytes, reader)?;
                    position += bytes;
                }
            } else {
                summary.field(field, bytes, reader)?;
                position += bytes;
            }
        }
        Ok(summary)
    }

    /// Longest field that is read; a producer's name, a metadata entry or a port is far below.
    pub const FIELD_BYTES_MAX: u64 = 1 << 20;

    /// The value of a metadata key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.metadata.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    fn field(&mut self, field: u32, bytes: u64, reader: &mut (impl Read + Seek)) -> io::Result<()> {
        match field {
            PRODUCER_NAME => self.producer_name = read_text(reader, bytes)?,
            PRODUCER_VERSION => self.producer_version = read_text(reader, bytes)?,
            OPSET_IMPORT => {
                let set: OperatorSetIdProto = read_message(reader, bytes)?;
                if set.domain.is_empty() {
                    self.opset = set.version;
                }
            }
            METADATA => {
                let entry: StringStringEntryProto = read_message(reader, bytes)?;
                self.metadata.push((entry.key, entry.value));
            }
            _ => skip(reader, bytes)?,
        }
        Ok(())
    }

    fn graph_field(&mut self, field: u32, bytes: u64, reader: &mut (impl Read + Seek)) -> io::Result<()> {
        match field {
            INPUT => self.inputs.push(port(read_message(reader, bytes)?)),
            OUTPUT => self.outputs.push(port(read_message(reader, bytes)?)),
            INITIALIZER => self.tensors(Holder::Tensor, 0, bytes, reader)?,
            NODE => self.tensors(Holder::Node, 0, bytes, reader)?,
            _ => skip(reader, bytes)?,
        }
        Ok(())
    }

    /// Gathers the files that tensors lie in from a message of `bytes`, inside `depth` others.
    fn tensors(
        &mut self,
        message: Holder,
        depth: usize,
        bytes: u64,
        reader: &mut (impl Read + Seek),
    ) -> io::Result<()> {
        if depth > DEPTH_MAX {
            return Err(corrupt("graphs inside graphs, too many"));
        }
        let mut position = 0;
        while position < bytes {
            let (field, length) = read_any_field(reader, &mut position, bytes)?;
            if message == Holder::Tensor && field == EXTERNAL_DATA {
                let entry: StringStringEntryProto = read_message(reader, length)?;
                if entry.key == "location" && !self.external.contains(&entry.value) {
                    if self.external.len() == EXTERNAL_FILES_MAX {
                        return Err(corrupt(&format!("its tensors lie in more than {EXTERNAL_FILES_MAX} files")));
                    }
                    self.external.push(entry.value);
                }
            } else if let Some(inner) = message.below(field) {
                self.tensors(inner, depth + 1, length, reader)?;
            } else {
                skip(reader, length)?;
            }
            position += length;
        }
        Ok(())
    }
}

/// Files that a model's tensors may lie in.
const EXTERNAL_FILES_MAX: usize = 4096;

/// Messages inside one another on the way to a tensor: three for each graph in a node.
const DEPTH_MAX: usize = 48;

/// A message that has tensors in it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holder {
    Graph,
    Node,
    Attribute,
    Tensor,
}

impl Holder {
    /// What this field holds, if there are tensors in it; numbers as in the schema.
    fn below(self, field: u32) -> Option<Holder> {
        match (self, field) {
            (Holder::Graph, NODE) => Some(Holder::Node),
            (Holder::Node, 5) => Some(Holder::Attribute),
            (Holder::Graph, INITIALIZER) | (Holder::Attribute, 5 | 10) => Some(Holder::Tensor),
            (Holder::Attribute, 6 | 11) => Some(Holder::Graph),
            (Holder::Graph | Holder::Node | Holder::Attribute | Holder::Tensor, _) => None,
        }
    }
}

fn port(info: ValueInfoProto) -> Port {
    let tensor = info.r#type.and_then(|kind| kind.tensor_type).unwrap_or_default();
    let dim = |dim: schema::Dimension| match dim.value {
        Some(dimension::Value::DimValue(size)) if size > 0 => Dimension::Fixed(size as usize),
        Some(dimension::Value::DimParam(name)) => Dimension::Named(name),
        Some(dimension::Value::DimValue(_)) | None => Dimension::Named(String::new()),
    };
    let dims = tensor.shape.unwrap_or_default().dim.into_iter().map(dim).collect();
    Port { name: info.name, element: tensor.elem_type, dims }
}

/// A field's number and the bytes that follow it, all before `end`; `position` moves to where they begin.
fn read_field(reader: &mut (impl Read + Seek), position: &mut u64, end: u64) -> io::Result<(u32, u64)> {
    match read_key(reader, position)? {
        (field, Wire::Number) => Ok((field, 0)),
        (field, Wire::Bytes(value)) if *position <= end && value <= end - *position => Ok((field, value)),
        (_, Wire::Bytes(_)) => Err(corrupt(TRUNCATED)),
        (_, Wire::Fixed(_)) => Err(corrupt(NO_SUCH_TYPE)),
    }
}

/// The same of messages further in, some of whose fields are floats.
fn read_any_field(reader: &mut (impl Read + Seek), position: &mut u64, end: u64) -> io::Result<(u32, u64)> {
    let (field, bytes) = match read_key(reader, position)? {
        (field, Wire::Number) => (field, 0),
        (field, Wire::Bytes(bytes) | Wire::Fixed(bytes)) => (field, bytes),
    };
    if *position > end || bytes > end - *position {
        return Err(corrupt(TRUNCATED));
    }
    Ok((field, bytes))
}

const TRUNCATED: &str = "a field is longer than what holds it (truncated?)";
const NO_SUCH_TYPE: &str = "a field of a type that models do not have (is this an ONNX file?)";

/// What follows a field's number.
enum Wire {
    /// Read already.
    Number,
    Bytes(u64),
    /// Four or eight bytes.
    Fixed(u64),
}

fn read_key(reader: &mut (impl Read + Seek), position: &mut u64) -> io::Result<(u32, Wire)> {
    let (key, bytes) = read_varint(reader)?;
    *position += bytes;
    let field = u32::try_from(key >> 3).ok().filter(|&field| field > 0);
    let field = field.ok_or_else(|| corrupt("a field number that does not exist (is this an ONNX file?)"))?;
    let mut number = || {
        let (value, bytes) = read_varint(reader)?;
        *position += bytes;
        io::Result::Ok(value)
    };
    let wire = match key & 7 {
        0 => number().map(|_| Wire::Number)?,
        1 => Wire::Fixed(8),
        2 => Wire::Bytes(number()?),
        5 => Wire::Fixed(4),
        _ => return Err(corrupt(NO_SUCH_TYPE)),
    };
    Ok((field, wire))
}

fn read_bytes(reader: &mut (impl Read + Seek), bytes: u64) -> io::Result<Vec<u8>> {
    if bytes > Summary::FIELD_BYTES_MAX {
        return Err(corrupt("a description of more than a mebibyte"));
    }
    let mut read = vec![0; bytes as usize];
    reader.read_exact(&mut read)?;
    Ok(read)
}

fn read_text(reader: &mut (impl Read + Seek), bytes: u64) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&read_bytes(reader, bytes)?).into_owned())
}

fn read_message<M: Message + Default>(reader: &mut (impl Read + Seek), bytes: u64) -> io::Result<M> {
    M::decode(&*read_bytes(reader, bytes)?).map_err(|error| corrupt(&error.to_string()))
}

fn skip(reader: &mut (impl Read + Seek), bytes: u64) -> io::Result<()> {
    // At most the file's length, which fits.
    reader.seek_relative(bytes as i64)
}

fn corrupt(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// A varint and how many bytes it took.
fn read_varint(reader: &mut impl Read) -> io::Result<(u64, u64)> {
    let mut value = 0u64;
    for index in 0..10u64 {
        let mut byte = [0];
        reader.read_exact(&mut byte)?;
        value |= u64::from(byte[0] & 0x7f) << (7 * index);
        if byte[0] & 0x80 == 0 {
            return Ok((value, index + 1));
        }
    }
    Err(corrupt("a number of more than ten bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("reactrt-onnx-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for the test");
        folder
    }

    fn counting(count: usize) -> Produce<'static> {
        Box::new(move |take| {
            let values: Vec<f32> = (0..count).map(|index| index as f32 / 4.0).collect();
            // In pieces that do not divide it.
            values.chunks(77).try_for_each(take)
        })
    }

    /// `scores = table[ids] · 2`, one table of 40 × 16 and one small tensor.
    fn graph(element: Element) -> Graph<'static> {
        let mut graph = Graph::new("small", 17);
        let ids = graph.input("ids", Element::Int32, &[Dimension::named("batch")]);
        let table = graph.weight("table", element, &[40, 16], counting(640));
        let rows = graph.gather("rows", table, ids, 0);
        let two = graph.scalar("two", element, 2.0);
        let scores = graph.mul("scores", rows, two);
        graph.output(scores, &[Dimension::named("batch"), Dimension::Fixed(16)]);
        graph.metadata("key", "value");
        graph
    }

    fn decoded(path: &Path) -> ModelProto {
        ModelProto::decode(&*std::fs::read(path).expect("the file is there")).expect("the file is a model")
    }

    #[test]
    fn a_written_file_decodes_to_what_was_built() {
        let path = folder("embedded").join("model.onnx");
        let mut steps = Vec::new();
        let written = graph(Element::Float)
            .write(&path, EMBEDDED_BYTES_MAX, &mut |done, total| steps.push((done, total)))
            .expect("it can be written");
        assert_eq!(written.external, None);
        assert_eq!(written.model_bytes, std::fs::metadata(&path).expect("the file is there").len());
        assert_eq!(steps.last(), Some(&(640 * 4 + 4, 640 * 4 + 4)));
        let model = decoded(&path);
        assert_eq!((model.ir_version, model.opset_import[0].version), (8, 17));
        let graph = model.graph.expect("a model has a graph");
        let operators: Vec<&str> = graph.node.iter().map(|node| node.op_type.as_str()).collect();
        assert_eq!(operators, ["Gather", "Mul"]);
        let table = &graph.initializer[0];
        assert_eq!((table.name.as_str(), table.dims.as_slice(), table.data_type), ("table", &[40, 16][..], 1));
        let expected: Vec<u8> = (0..640).flat_map(|index| (index as f32 / 4.0).to_le_bytes()).collect();
        assert_eq!(table.raw_data.as_ref(), Some(&expected));
    }

    #[test]
    fn external_weights_lie_aligned_in_the_second_file_and_small_ones_stay() {
        let path = folder("external").join("model.onnx");
        let written = graph(Element::Half).write(&path, 0, &mut |_, _| {}).expect("it can be written");
        let data = path.with_file_name("model.onnx.data");
        assert_eq!(written.external, Some((data.clone(), 1280)));
        let graph = decoded(&path).graph.expect("a model has a graph");
        let (table, two) = (&graph.initializer[0], &graph.initializer[1]);
        let entries: Vec<(&str, &str)> =
            table.external_data.iter().map(|entry| (entry.key.as_str(), entry.value.as_str())).collect();
        assert_eq!(entries, [("location", "model.onnx.data"), ("offset", "0"), ("length", "1280")]);
        assert_eq!((table.data_location, &table.raw_data), (1, &None));
        assert_eq!((two.data_location, two.raw_data.as_deref()), (0, Some(&f16::from_f32(2.0).to_le_bytes()[..])));
        let bytes = std::fs::read(data).expect("the second file is there");
        let expected: Vec<u8> = (0..640).flat_map(|index| f16::from_f32(index as f32 / 4.0).to_le_bytes()).collect();
        assert_eq!(bytes, expected);
    }

    #[test]
    fn a_second_external_tensor_begins_on_a_page() {
        let mut graph = Graph::new("two", 17);
        let first = graph.weight("first", Element::Float, &[300], counting(300));
        let second = graph.weight("second", Element::Float, &[300], counting(300));
        let sum = graph.add("sum", first, second);
        graph.output(sum, &[Dimension::Fixed(300)]);
        let path = folder("page").join("model.onnx");
        let written = graph.write(&path, 0, &mut |_, _| {}).expect("it can be written");
        assert_eq!(written.external.map(|(_, bytes)| bytes), Some(EXTERNAL_ALIGNMENT + 1200));
        let second = &decoded(&path).graph.expect("a graph").initializer[1];
        assert_eq!(second.external_data[1].value, "4096");
    }

    #[test]
    fn what_half_cannot_hold_is_an_error_and_leaves_no_file() {
        let folder = folder("overflow");
        for limit in [0, EMBEDDED_BYTES_MAX] {
            let mut graph = Graph::new("large", 17);
            let produce: Produce<'_> = Box::new(|take| take(&[1.0; 999]).and_then(|()| take(&[65_520.0])));
            let weight = graph.weight("layer/weight", Element::Half, &[1000], produce);
            let sum = graph.add("sum", weight, weight);
            graph.output(sum, &[Dimension::Fixed(1000)]);
            let error = graph.write(&folder.join("model.onnx"), limit, &mut |_, _| {}).expect_err("it overflows");
            assert!(error.to_string().starts_with("layer/weight holds 65520, which half"), "{error}");
        }
        assert_eq!(std::fs::read_dir(folder).expect("the folder is there").count(), 0);
    }

    #[test]
    fn a_summary_is_read_without_the_weights_and_bad_bytes_are_errors() {
        let path = folder("summary").join("model.onnx");
        graph(Element::Float).write(&path, EMBEDDED_BYTES_MAX, &mut |_, _| {}).expect("it can be written");
        let summary = Summary::read(&path).expect("a whole file");
        assert_eq!((summary.opset, summary.get("key"), summary.get("other")), (17, Some("value"), None));
        assert_eq!(
            summary.outputs,
            [Port {
                name: "scores".to_owned(),
                element: Element::Float as i32,
                dims: vec![Dimension::named("batch"), Dimension::Fixed(16)]
            }]
        );
        assert_eq!(summary.inputs[0].dims, [Dimension::named("batch")]);
        let whole = std::fs::read(&path).expect("the file is there");
        let cut = path.with_file_name("cut.onnx");
        // The graph is the last field, so every cut is inside something or after a whole prefix of the head.
        for length in (0..whole.len()).step_by(7) {
            std::fs::write(&cut, &whole[..length]).expect("a file to read");
            if let Ok(summary) = Summary::read(&cut) {
                assert!(summary.outputs.is_empty(), "{length} of {} bytes are not the graph", whole.len());
            }
        }
        for bytes in [&b"not a model at all"[..], &[0xff; 64], &[0x3a, 0xff, 0xff, 0xff, 0xff, 0x7f], &[0x12, 0x05]] {
            std::fs::write(&cut, bytes).expect("a file to read");
            assert!(Summary::read(&cut).is_err(), "{bytes:?}");
        }
        // As long as they like: a file of holes, and one that begins like a model and is larger than any.
        for (head, words) in [(&[][..], "is this an ONNX file?"), (&[8, 8, 18, 0], "ONNX files end at 2147483647")] {
            std::fs::write(&cut, head).expect("a file to read");
            File::options().write(true).open(&cut).and_then(|file| file.set_len(1 << 40)).expect("a sparse file");
            let error = Summary::read(&cut).expect_err("no model").to_string();
            assert!(error.contains(words), "{error}");
        }
        std::fs::remove_file(&cut).expect("it is there");
    }

    #[test]
    fn a_summary_names_the_files_that_tensors_lie_in_wherever_the_tensors_are() {
        let path = folder("outside").join("model.onnx");
        let written = graph(Element::Float).write(&path, 100, &mut |_, _| {}).expect("it can be written");
        assert!(written.external.is_some());
        assert_eq!(Summary::read(&path).expect("a whole file").external, ["model.onnx.data"]);
        // A constant in a branch of a node: graph, node, attribute (with a float before it), graph, node, attribute, tensor.
        let message = |field: u8, inner: &[u8]| [&[field << 3 | 2, inner.len() as u8], inner].concat();
        let location = [message(1, b"location"), message(2, b"deep.bin")].concat();
        let attribute = [&[0x15, 0, 0, 0x80, 0x3f][..], &message(5, &message(13, &location))].concat();
        let branch = message(6, &message(1, &message(5, &attribute)));
        std::fs::write(&path, message(7, &message(1, &message(5, &branch)))).expect("a file to read");
        assert_eq!(Summary::read(&path).expect("a whole file").external, ["deep.bin"]);
    }

    #[test]
    fn vectors_are_made_once() {
        let mut graph = Graph::new("vectors", 17);
        assert_eq!(graph.vector(&[1, -1]), graph.vector(&[1, -1]));
        assert_ne!(graph.vector(&[1]), graph.vector(&[1, -1]));
    }

    #[test]
    #[should_panic(expected = "sum: Add of two element types")]
    fn mixed_element_types_are_caught_when_the_graph_is_built() {
        let mut graph = Graph::new("mixed", 17);
        let (float, half) = (graph.scalar("a", Element::Float, 1.0), graph.scalar("b", Element::Half, 1.0));
        graph.add("sum", float, half);
    }

    #[test]
    #[should_panic(expected = "two values are named a")]
    fn a_name_is_given_once() {
        let mut graph = Graph::new("names", 17);
        graph.scalar("a", Element::Float, 1.0);
        graph.scalar("a", Element::Float, 1.0);
    }
}
