//! `reactrt convert`: a Hugging Face folder becomes an ONNX file that engines take without further surgery.
//!
//! Owned here: the options, the order of the steps, and the contract of what goes in and what comes out, below. The graph
//! itself is built in `encoder`, its record of itself in [`Metadata`]; the file format is [`super::onnx`]'s business
//! and finding the tensors is [`super::weights`]'. Nothing is computed with the weights here beyond transposing, scaling and
//! rounding them.
//!
//! Invariant: what the graph computes is what the CPU device computes, for every layout and precision, up to rounding.
//!
//! # What goes in and what comes out
//!
//! All inputs are `int32`, all outputs `float32`, in either precision. All dimensions below are dynamic; their names are
//! those in the file.
//!
//! | task | output | shape (padded) | shape (packed) |
//! |---|---|---|---|
//! | embedding | `embeddings` | `[batch, hidden]` | `[sequences, hidden]` |
//! | reranking | `scores` | `[batch]` | `[sequences]` |
//! | nli | `logits` | `[batch, labels]` | `[sequences, labels]` |
//!
//! Embeddings are pooled (first token or mean) and, if the model says so, divided by their L2 norm. Scores and logits are
//! raw.
//!
//! ## Padded: one sequence per row
//!
//! | input | shape | holds |
//! |---|---|---|
//! | `input_ids` | `[batch, sequence]` | token ids from offset 0; anything inside the vocabulary beyond the end |
//! | `attention_mask` | `[batch, sequence]` | 0 beyond the end, anything else (1, by custom) before it |
//! | `token_type_ids` | `[batch, sequence]` | only where the model has more than one token type |
//!
//! Positions are counted from the row's first token inside the graph, so rows are padded on the right; the RoBERTa families
//! do not count their pad token, should a text spell it out. A row without any token gives finite numbers without meaning.
//! `sequence` may be anything from 1 to the `max_length` of the conversion.
//!
//! ## Packed: any number of whole sequences per row
//!
//! ```text
//! input_ids     [ a0 a1 a2 b0 b1 ·  · ]    ·: padding; a sequence never spans rows
//!               [ c0 c1 c2 c3 ·  d0 d1]    gaps may lie anywhere
//! position_ids  [ 0  1  2  0  1  0  0 ]    index within the sequence, from 0 in every family
//!               [ 0  1  2  3  0  0  1 ]
//! segment_ids   [ 1  1  1  2  2  0  0 ]    0: padding; else which sequence of its row
//!               [ 1  1  1  1  0  2  2 ]
//! cls_index     [ 0  3  7  12 ]            row × length + offset of each sequence's first token
//! ```
//!
//! | input | shape | holds |
//! |---|---|---|
//! | `input_ids` | `[rows, length]` | token ids; anything inside the vocabulary on padding |
//! | `position_ids` | `[rows, length]` | index within the sequence, 0 to `max_length - 1`; the offset of the RoBERTa families is in the graph's table. For these, a token that is the pad token (metadata `reactrt.pad_token`) gets `max_length` and is not counted by those after it |
//! | `segment_ids` | `[rows, length]` | equal for tokens of one sequence, different for two sequences of one row, 0 on padding; ids need not be consecutive, and rows are independent |
//! | `token_type_ids` | `[rows, length]` | only where the model has more than one token type |
//! | `cls_index` | `[sequences]` | outputs come in this order; unused entries may hold any index inside, say 0, and give a vector to ignore |
//!
//! A token attends to the tokens of its row that have its segment id and to no others: their weights are exactly zero, so a
//! vector does not depend on what lies beside it. The same id is also all that mean pooling needs: the 0/1 matrix of equal
//! segment ids, which the attention mask is made from, times the last hidden states, in float32, is every sequence's sum.
//! That costs one matrix product as small as one head's attention, no further input, and unlike differences of a running
//! sum it is exact.
//!
//! ## Precision
//!
//! `fp32`: everything. `fp16`: tables, matrix products and their biases in half; LayerNorm with its residual sum, softmax
//! with its mask, the activation, pooling, head and outputs in float32 with casts written down around them, because engines
//! that are strongly typed take each node's precision from the graph. Masked scores get [`MASKED`] added: far enough from
//! any score to vanish in the softmax, inside half's range should an engine lower it, and finite, so that a row of nothing
//! but padding is no NaN.

mod encoder;
mod metadata;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

pub use metadata::{LENGTH_MAX, Metadata, read};

use super::files::Outputs;
use super::onnx::{self, Graph, WriteError};
use super::weights::{Parameters, Weights};
use super::{Model, Pooling, Task, folder};
use crate::config::ModelSettings;
use crate::device::{Layout, LoadError};

/// Names of inputs and outputs.
pub const INPUT_IDS: &str = "input_ids";
pub const ATTENTION_MASK: &str = "attention_mask";
pub const TOKEN_TYPE_IDS: &str = "token_type_ids";
pub const POSITION_IDS: &str = "position_ids";
pub const SEGMENT_IDS: &str = "segment_ids";
pub const CLS_INDEX: &str = "cls_index";
pub const EMBEDDINGS: &str = "embeddings";
pub const SCORES: &str = "scores";
pub const LOGITS: &str = "logits";

/// Added to a score that must not count. `exp` of it is zero in float32 for any score below 29,000, and half still holds it.
pub const MASKED: f32 = -30_000.0;

/// Operator sets that the graph is made of: 17 brought `LayerNormalization`, 23 is the newest whose operators we have run.
pub const OPSETS: std::ops::RangeInclusive<u32> = 17..=23;

/// The operator set if none is asked for: what every engine of the last years reads.
pub const OPSET_DEFAULT: u32 = 17;

/// In which precision the graph computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    Fp32,
    Fp16,
}

/// How far a conversion is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Bytes of the source's weights, read for their digest.
    Reading { done: u64, total: u64 },
    /// Bytes of the target's weights.
    Writing { done: u64, total: u64 },
}

/// What to convert, and into what. `None`: as the model's own files say.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// A Hugging Face folder.
    pub folder: PathBuf,
    /// A folder or a `tokenizer.json`; recorded in the file, not read. `None`: the model's folder.
    pub tokenizer: Option<PathBuf>,
    /// The `.onnx` to write; `<output>.data` beside it takes the weights where one file cannot.
    pub output: PathBuf,
    pub task: Task,
    pub dtype: Dtype,
    pub layout: Layout,
    /// One of [`OPSETS`].
    pub opset: u32,
    /// Tokens per sequence at most: the rows that are kept of the position table.
    pub max_length: Option<usize>,
    pub pooling: Option<Pooling>,
    pub normalize: Option<bool>,
    /// A model file above this many bytes puts its weights into the second file.
    pub embedded_bytes_max: u64,
}

impl Options {
    /// Single precision, padded, everything else as the model says.
    pub fn new(task: Task, folder: impl Into<PathBuf>, output: impl Into<PathBuf>) -> Options {
        Options {
            folder: folder.into(),
            tokenizer: None,
            output: output.into(),
            task,
            dtype: Dtype::Fp32,
            layout: Layout::Padded,
            opset: OPSET_DEFAULT,
            max_length: None,
            pooling: None,
            normalize: None,
            embedded_bytes_max: onnx::EMBEDDED_BYTES_MAX,
        }
    }

    fn settings(&self) -> ModelSettings {
        let canonical = self.folder.canonicalize();
        let name = canonical.as_deref().unwrap_or(&self.folder).file_name().unwrap_or_default();
        let mut settings =
            ModelSettings::new(self.task, &name.to_string_lossy(), &self.folder.display().to_string(), "convert");
        (settings.pooling, settings.normalize) = (self.pooling, self.normalize);
        settings.max_length = self.max_length;
        settings
    }
}

/// What was made.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The model as its folder and the options describe it.
    pub model: Model,
    pub metadata: Metadata,
    pub nodes: usize,
    /// Names of the graph's inputs, in order.
    pub inputs: Vec<&'static str>,
    pub output: &'static str,
    pub written: onnx::Written,
    pub elapsed: Duration,
}

/// Reads the folder, builds the graph, writes it, and reports. The output appears when it is complete.
///
/// Errors name the file, the tensor or the option at fault.
pub fn convert(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Report, LoadError> {
    let started = Instant::now();
    check(options)?;
    let model = folder::read(&options.folder, options.tokenizer.as_deref(), &options.settings())?;
    if model.max_length > LENGTH_MAX {
        let words =
            format!("{} tokens a text; at most {LENGTH_MAX} are converted: give a max_length", model.max_length);
        return Err(LoadError(format!("{}: {words}", options.folder.display())));
    }
    let weights = Weights::open(source_folder(&model))?;
    check_output(options, &weights, &model.tokenizer)?;
    let parameters = Parameters::resolve(&weights, &model)?;
    let mut graph = Graph::new(&model.name, options.opset);
    let ports = encoder::build(&mut graph, &model, &parameters, options.layout, options.dtype);
    let metadata = Metadata {
        model: model.name.clone(),
        task: model.task,
        layout: options.layout,
        dtype: options.dtype,
        pooling: model.pooling,
        normalize: model.normalize,
        max_length: model.max_length,
        labels: model.labels.clone(),
        tokenizer: model.tokenizer.clone(),
        pad_token: model.geometry.as_ref().and_then(encoder::pad_token),
        digest: digest(&weights, progress),
    };
    metadata.record(&mut graph);
    let written = graph
        .write(&options.output, options.embedded_bytes_max, &mut |done, total| {
            progress(Progress::Writing { done, total });
        })
        .map_err(|error| write_words(&options.output, &error))?;
    Ok(Report {
        nodes: graph.nodes(),
        inputs: ports.inputs,
        output: ports.output,
        model,
        metadata,
        written,
        elapsed: started.elapsed(),
    })
}

/// Whether nothing that is read is lost by writing.
fn check_output(options: &Options, weights: &Weights, tokenizer: &Path) -> Result<(), LoadError> {
    let mut outputs = Outputs::default();
    outputs.reads_folder(&options.folder);
    weights.files().for_each(|(path, _)| outputs.reads(path));
    outputs.reads_tokenizer(tokenizer);
    outputs.onnx(&options.output);
    outputs.check()
}

/// What is wrong with the options themselves, before anything is read.
pub fn check(options: &Options) -> Result<(), LoadError> {
    check_numbers(options.opset, options.max_length)?;
    let mut outputs = Outputs::default();
    outputs.reads_folder(&options.folder);
    options.tokenizer.iter().for_each(|tokenizer| outputs.reads_tokenizer(tokenizer));
    outputs.onnx(&options.output);
    outputs.check()
}

pub fn check_numbers(opset: u32, max_length: Option<usize>) -> Result<(), LoadError> {
    if !OPSETS.contains(&opset) {
        let (first, last) = (OPSETS.start(), OPSETS.end());
        return Err(LoadError(format!("opset {opset}: this converter writes {first} to {last}")));
    }
    match max_length {
        Some(length) if !(1..=LENGTH_MAX).contains(&length) => {
            Err(LoadError(format!("max_length {length}; a number from 1 to {LENGTH_MAX} is needed")))
        }
        Some(_) | None => Ok(()),
    }
}

fn source_folder(model: &Model) -> &Path {
    match &model.source {
        super::Source::Folder(folder) => folder,
        super::Source::Onnx(file) | super::Source::Engine(file) => {
            unreachable!("{} was read as a folder", file.display())
        }
    }
}

/// The sha256 of the files that hold the weights, one after another in the order of their names: what `sha256sum` says of
/// a single file.
fn digest(weights: &Weights, progress: &mut dyn FnMut(Progress)) -> String {
    let total = weights.files().map(|(_, bytes)| bytes.len() as u64).sum();
    let mut hash = Sha256::new();
    let mut done = 0;
    for block in weights.files().flat_map(|(_, bytes)| bytes.chunks(1 << 24)) {
        hash.update(block);
        done += block.len() as u64;
        progress(Progress::Reading { done, total });
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn write_words(output: &Path, error: &WriteError) -> LoadError {
    match error {
        WriteError::Io(error) => LoadError(format!("cannot write {}: {error}", output.display())),
        WriteError::NotHalf { .. } | WriteError::TooLarge { .. } => LoadError(error.to_string()),
    }
}
