//! What the server knows of a model: read from its own folder, overridden by the configuration, shared by all commands.

pub mod build;
pub mod convert;
pub mod engine;
pub mod fetch;
pub mod files;
pub mod folder;
pub mod inspect;
pub mod manifest;
pub mod onnx;
#[cfg(test)]
pub mod sample;
pub mod weights;
mod words;

use std::path::PathBuf;

/// What a model is for, and by that which routes it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Task {
    /// One text in, one vector out.
    Embedding,
    /// A query and a document in, one logit out.
    Reranking,
    /// A premise and a hypothesis in, one logit per label out.
    Nli,
}

/// The two layouts of weights and positions that the supported families share. XLM-RoBERTa and CamemBERT are `Roberta`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    Bert,
    Roberta,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x/2 · (1 + erf(x/√2))`
    Gelu,
    /// The tanh approximation: `gelu_new`, `gelu_pytorch_tanh`, `gelu_fast`.
    GeluTanh,
    Relu,
}

/// The numbers of `config.json` that shape the encoder.
#[derive(Clone, Debug, PartialEq)]
pub struct Geometry {
    pub architecture: Architecture,
    pub hidden: usize,
    pub layers: usize,
    pub heads: usize,
    pub intermediate: usize,
    pub vocabulary: usize,
    /// Rows of the position table, the offset included.
    pub positions: usize,
    /// Rows of the token type table.
    pub token_types: usize,
    /// What is added to a token's index to find its position row: 0 for BERT, `pad_token_id + 1` for RoBERTa.
    pub position_offset: usize,
    pub layer_norm_eps: f32,
    pub activation: Activation,
}

/// What follows the last layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// Pooling only: an embedding of `hidden` values.
    Embedding,
    /// BERT: pooler (dense + tanh on the first token), then `classifier`; `classes` logits.
    BertClassifier { classes: usize },
    /// RoBERTa: `classifier.dense` + tanh on the first token, then `classifier.out_proj`; `classes` logits.
    RobertaClassifier { classes: usize },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    Cls,
    Mean,
}

/// Where a model's computation comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A Hugging Face folder: config.json and weights.
    Folder(PathBuf),
    Onnx(PathBuf),
    /// A serialized TensorRT engine.
    Engine(PathBuf),
}

/// A named text that is put before each input, as `config_sentence_transformers.json` or the configuration lists them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    pub name: String,
    pub text: String,
}

/// One model as it is served.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// The route's name.
    pub name: String,
    pub task: Task,
    pub source: Source,
    /// The file `tokenizer.json`.
    pub tokenizer: PathBuf,
    /// `None` for engines and ONNX files, whose geometry nobody needs to know.
    pub geometry: Option<Geometry>,
    pub head: Head,
    pub pooling: Pooling,
    /// Whether vectors are divided by their L2 norm.
    pub normalize: bool,
    /// Tokens per sequence, specials included.
    pub max_length: usize,
    /// Class names by index (NLI), else empty.
    pub labels: Vec<String>,
    pub prompts: Vec<Prompt>,
    /// Index into `prompts` of the one that applies when a request names none.
    pub default_prompt: Option<usize>,
    /// The output to serve, where a file or an engine has several that could be it; `None`: by shape and name.
    pub output: Option<String>,
    /// Packed engines of the RoBERTa families: the token that takes no position of its own, and the position that it gets.
    pub unpositioned: Option<(u32, u32)>,
    /// The old server's `cuda_graph_list`: batch sizes that are captured; a batch is rounded up to one of them.
    pub cuda_graph_list: Vec<u32>,
    /// The old server's switch: allocate device buffers once.
    pub reuse_dynamic_buffer: bool,
}

impl Model {
    /// Output values per sequence.
    pub fn width(&self) -> usize {
        match self.head {
            Head::Embedding => self.geometry.as_ref().map_or(0, |geometry| geometry.hidden),
            Head::BertClassifier { classes } | Head::RobertaClassifier { classes } => classes,
        }
    }
}
