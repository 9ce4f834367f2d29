//! What a serialized TensorRT engine says of itself, and what is kept beside one that we built.
//!
//! Plain data without any library: `build` writes it, `inspect` shows it, `serve` checks it and the GPU device lays its
//! buffers out by it. Shapes are as the library has them, -1 for a dimension that an optimization profile decides.

use std::fmt;
use std::str::FromStr;

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

impl ElementType {
    /// The type with this [`ElementType::name`].
    pub fn named(name: &str) -> Option<ElementType> {
        let plain =
            [ElementType::F32, ElementType::F16, ElementType::Bf16, ElementType::I32, ElementType::I64].into_iter();
        let others = OTHERS.into_iter().map(ElementType::Other);
        plain.chain(others).find(|element| element.name() == name)
    }
}

/// The names in [`ElementType::Other`].
const OTHERS: [&str; 7] = ["int8", "bool", "uint8", "fp8", "int4", "fp4", "e8m0"];

/// A GPU's compute capability, `8.9`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Capability {
    pub major: u32,
    pub minor: u32,
}

impl fmt::Display for Capability {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.major, self.minor)
    }
}

impl FromStr for Capability {
    type Err = String;

    fn from_str(text: &str) -> Result<Capability, String> {
        let number = |digits: &str| {
            let plain = (1..=3).contains(&digits.len())
                && digits.bytes().all(|byte| byte.is_ascii_digit())
                && (digits == "0" || !digits.starts_with('0'));
            plain.then(|| digits.parse().expect("up to three digits"))
        };
        let parts = text.split_once('.').and_then(|(major, minor)| Some((number(major)?, number(minor)?)));
        let (major, minor) = parts.ok_or_else(|| format!("`{text}` is no compute capability such as 8.9"))?;
        Ok(Capability { major, minor })
    }
}

/// The GPU that an engine is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The one that is here.
    Current,
    /// Any of this compute capability; TensorRT-RTX alone can build for one that is not here.
    Capability(Capability),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Target, String> {
        if text == "current" { Ok(Target::Current) } else { text.parse().map(Target::Capability) }
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

    /// True exactly if min ≤ opt ≤ max holds in every dimension, of which all three have as many.
    pub fn is_ascending(&self) -> bool {
        let below = |low: &[i64], high: &[i64]| low.len() == high.len() && low.iter().zip(high).all(|(l, h)| l <= h);
        below(&self.min, &self.opt) && below(&self.opt, &self.max)
    }

    /// True exactly if one shape alone is allowed.
    pub fn is_fixed(&self) -> bool {
        self.min == self.max
    }
}

impl fmt::Display for ShapeRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_fixed() {
            true => formatter.write_str(&shape_words(&self.max)),
            false => {
                let [min, opt, max] = [&self.min, &self.opt, &self.max].map(|shape| shape_words(shape));
                write!(formatter, "{min} to {max}, best at {opt}")
            }
        }
    }
}

/// Shapes of every input that is not fixed, for one optimization profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    pub shapes: Vec<(String, ShapeRange)>,
}

/// As people write shapes: `8x256`, `?` for what is not decided.
pub fn shape_words(shape: &[i64]) -> String {
    let word = |&size: &i64| if size < 0 { "?".to_owned() } else { size.to_string() };
    shape.iter().map(word).collect::<Vec<_>>().join("x")
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

/// No plan is as small; what is was cut short or is something else.
const PLAN_BYTES_MIN: usize = 64;

/// Refuses what people confuse with a serialized engine. Whether it is a good one, the library knows.
pub fn looks_like_a_plan(bytes: &[u8]) -> Result<(), String> {
    if bytes.is_empty() {
        return Err("the file is empty; it is no engine".into());
    }
    if bytes.len() < PLAN_BYTES_MIN {
        return Err(format!("{} bytes are too few for an engine; was it copied completely?", bytes.len()));
    }
    let head = &bytes[..PLAN_BYTES_MIN];
    let kind = match head {
        // The first field of an ONNX file is its version, a small number.
        [0x08, 1..=20, ..] => Some("an ONNX file; `reactrt build --onnx` makes an engine of it"),
        [b'P', b'K', 3, 4, ..] => Some("a zip archive"),
        [0x7F, b'E', b'L', b'F', ..] => Some("a program or a library"),
        [0x1F, 0x8B, ..] => Some("a gzip archive"),
        _ if head.starts_with(b"version https://git-lfs") => {
            Some("a pointer of git-lfs; `git lfs pull` fetches what it stands for")
        }
        _ if head.iter().all(|&byte| byte == 0) => Some("nothing but zeros"),
        _ if head.iter().all(|&byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace()) => Some("a text"),
        _ => None,
    };
    match kind {
        Some(kind) => Err(format!("it is no engine but {kind}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_and_targets_are_read_as_they_are_written() {
        let capability = Capability { major: 12, minor: 1 };
        assert_eq!(capability.to_string().parse(), Ok(capability));
        assert_eq!("current".parse(), Ok(Target::Current));
        for wrong in ["", "8", "8.", ".6", "8.6.1", "+8.6", "8.-6", "eight", "8888.0", "08.0", "8.00", "Current"] {
            assert!(wrong.parse::<Target>().unwrap_err().contains("such as 8.9"), "{wrong}");
        }
        assert!(Capability { major: 8, minor: 9 } < Capability { major: 12, minor: 0 });
    }

    #[test]
    fn an_element_type_is_found_by_its_name() {
        for element in OTHERS.map(ElementType::Other).into_iter().chain([ElementType::F16, ElementType::I64]) {
            assert_eq!(ElementType::named(element.name()), Some(element));
        }
        assert_eq!(ElementType::named("float"), None);
    }

    #[test]
    fn shapes_are_written_as_people_do() {
        assert_eq!(ShapeRange::fixed(&[8, 256]).to_string(), "8x256");
        let range = ShapeRange { min: vec![1, 1], opt: vec![8, 64], max: vec![32, -1] };
        assert_eq!(range.to_string(), "1x1 to 32x?, best at 8x64");
    }

    #[test]
    fn what_is_plainly_no_plan_is_refused_in_words() {
        let padded = |head: &[u8]| [head, &[0xFE; 100]].concat();
        let cases: [(&[u8], &str); 8] = [
            (b"", "empty"),
            (b"ptrt", "4 bytes are too few"),
            (&padded(&[8, 9, 18, 7]), "ONNX"),
            (&padded(b"PK\x03\x04"), "zip"),
            (&padded(b"\x7FELF"), "library"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 1234567\n", "git lfs pull"),
            (&[0; 4096], "zeros"),
            (&[b'a'; 100], "a text"),
        ];
        for (bytes, words) in cases {
            let error = looks_like_a_plan(bytes).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        assert_eq!(looks_like_a_plan(&padded(b"ptrt")), Ok(()));
    }
}
