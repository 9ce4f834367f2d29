//! `reactrt build`: a model folder or an ONNX file becomes an engine with its manifest and its tokenizer.
//!
//! Owned here: what may be asked for, the order of the steps, and the three files that a build leaves. Which shapes are built
//! is [`shapes`]' business, the steps are in `run`, the library's calls are `device::tensorrt`'s, the graph is
//! [`super::convert`]'s.
//!
//! Invariants: what is wrong with the request is found before the minutes that a build takes; the files appear when they are
//! complete, under names that held a file or nothing before; whatever ends the build, nothing half-made stays. The engine
//! comes before its manifest: should the machine stop between the two, the old manifest refuses the new engine.

#[cfg(feature = "gpu")]
mod run;
pub mod shapes;

use std::path::PathBuf;
use std::time::Duration;

use self::shapes::{AskedBucket, AskedRanges};
use super::convert::{self, Dtype};
use super::engine::Target;
use super::manifest::Manifest;
use super::{Pooling, Task};
use crate::device::Layout;

/// What this binary says where it was built without either library.
pub const WITHOUT: &str = "this binary was built without TensorRT; `cargo build --release --features tensorrt` makes one \
                           with it, `--features tensorrt-rtx` one with TensorRT-RTX";

/// What an engine is built from.
#[derive(Clone, Debug, PartialEq)]
pub enum Origin {
    /// A model folder, by way of our own converter.
    Folder {
        folder: PathBuf,
        task: Task,
        dtype: Dtype,
        layout: Layout,
        opset: u32,
        max_length: Option<usize>,
        pooling: Option<Pooling>,
        normalize: Option<bool>,
        /// Where the ONNX file stays; `None`: it does not.
        onnx: Option<PathBuf>,
    },
    Onnx(PathBuf),
}

/// For which shapes.
#[derive(Clone, Debug, PartialEq)]
pub enum Shapes {
    /// [`shapes::ladder`], or the one shape that a network of fixed shapes has.
    Default,
    /// One profile for each.
    Buckets(Vec<AskedBucket>),
    /// One profile, as trtexec builds it.
    Ranges(AskedRanges),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    pub origin: Origin,
    /// A folder or a `tokenizer.json`; `None`: the model's own.
    pub tokenizer: Option<PathBuf>,
    /// The engine to write; its manifest and tokenizer get its name and an ending.
    pub output: PathBuf,
    pub shapes: Shapes,
    /// `None`: the GPU that is here.
    pub target: Option<Target>,
    /// Measured times that are read and written, to make the next build faster.
    pub timing_cache: Option<PathBuf>,
    pub workspace_bytes: Option<u64>,
    pub version_compatible: bool,
    /// Whether half precision was asked for. The converter's is `Origin::Folder`'s `dtype`; of an ONNX file that is in single
    /// precision the report says that it stays so.
    pub fp16: bool,
    /// Whether the library's messages are shown on the error stream.
    pub verbose: bool,
}

impl Options {
    pub fn new(origin: Origin, output: impl Into<PathBuf>) -> Options {
        Options {
            origin,
            tokenizer: None,
            output: output.into(),
            shapes: Shapes::Default,
            target: None,
            timing_cache: None,
            workspace_bytes: None,
            version_compatible: false,
            fp16: false,
            verbose: false,
        }
    }
}

impl Origin {
    /// Half precision and packed rows, everything else as the model says.
    pub fn folder(folder: impl Into<PathBuf>, task: Task) -> Origin {
        Origin::Folder {
            folder: folder.into(),
            task,
            dtype: Dtype::Fp16,
            layout: Layout::Packed,
            opset: convert::OPSET_DEFAULT,
            max_length: None,
            pooling: None,
            normalize: None,
            onnx: None,
        }
    }
}

/// How far a build is.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    Converting(convert::Progress),
    /// The library's own name for what it is doing, and how much of the whole is done, from 0 to 1.
    Building {
        phase: String,
        done: f64,
    },
    Writing,
}

/// What was made.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    pub manifest: Manifest,
    /// Engine, manifest, and tokenizer where there is one.
    pub files: Vec<PathBuf>,
    /// What the user should know of it.
    pub notes: Vec<String>,
    pub elapsed: Duration,
}

#[cfg(feature = "gpu")]
pub use run::{build, check};

/// Says that this binary cannot.
#[cfg(not(feature = "gpu"))]
pub fn build(_: &Options, _: &mut (dyn FnMut(Progress) -> bool + Send)) -> Result<Report, crate::device::LoadError> {
    Err(crate::device::LoadError(WITHOUT.into()))
}

/// Says that this binary cannot.
#[cfg(not(feature = "gpu"))]
pub fn check(_: &Options) -> Result<(), crate::device::LoadError> {
    Err(crate::device::LoadError(WITHOUT.into()))
}
