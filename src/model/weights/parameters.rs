//! The tensors of an encoder and its head, each in its role.
//!
//! Checkpoints name the same tensor differently: with the prefix of the class that saved them (`bert.`, `roberta.`),
//! bare, or within an outer module; layer norms of the first releases are called gamma and beta. This file is the only
//! place that knows these names; the CPU device and the ONNX converter see roles.
//!
//! Invariant: a [`Parameters`] is complete, of float types, and every shape is the one that config.json implies, so
//! whoever uses it need not check again. Weights of linear layers are `[out, in]`, as stored.

use super::{Dtype, Tensor, Weights, at};
use crate::device::LoadError;
use crate::model::{Architecture, Geometry, Head, Model};

/// `y = x · weightᵀ + bias`
#[derive(Clone, Debug, PartialEq)]
pub struct Linear<'a> {
    /// `[out, in]`
    pub weight: Tensor<'a>,
    /// `[out]`
    pub bias: Tensor<'a>,
}

/// Layer normalisation; both `[hidden]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Norm<'a> {
    pub weight: Tensor<'a>,
    pub bias: Tensor<'a>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct LayerParameters<'a> {
    pub query: Linear<'a>,
    pub key: Linear<'a>,
    pub value: Linear<'a>,
    pub attention_output: Linear<'a>,
    pub attention_norm: Norm<'a>,
    /// `[intermediate, hidden]`
    pub intermediate: Linear<'a>,
    /// `[hidden, intermediate]`
    pub output: Linear<'a>,
    pub output_norm: Norm<'a>,
}

#[expect(clippy::large_enum_variant, reason = "one per loaded model")]
#[derive(Clone, Debug, PartialEq)]
pub enum HeadParameters<'a> {
    Embedding,
    /// `output(tanh(dense(first token)))`: BERT's pooler and classifier, or RoBERTa's classifier.
    Classifier {
        /// `[hidden, hidden]`
        dense: Linear<'a>,
        /// `[classes, hidden]`
        output: Linear<'a>,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub struct Parameters<'a> {
    /// `[vocabulary, hidden]`
    pub word_embeddings: Tensor<'a>,
    /// `[positions, hidden]`, the offset's rows included
    pub position_embeddings: Tensor<'a>,
    /// `[token_types, hidden]`
    pub token_type_embeddings: Tensor<'a>,
    pub embedding_norm: Norm<'a>,
    pub layers: Vec<LayerParameters<'a>>,
    pub head: HeadParameters<'a>,
}

const WORD_EMBEDDINGS: &str = "embeddings.word_embeddings.weight";

impl<'a> Parameters<'a> {
    /// Finds and checks every tensor that `model` needs.
    ///
    /// Errors name the file, the tensor, and the shapes expected and found. A model without geometry (an ONNX file, an
    /// engine) has no parameters.
    pub fn resolve(weights: &'a Weights, model: &Model) -> Result<Parameters<'a>, LoadError> {
        let geometry = model.geometry.as_ref().ok_or_else(|| {
            LoadError(format!("model `{}` is not a Hugging Face folder, so it has no weights to read", model.name))
        })?;
        let finder = Finder { weights, prefix: encoder_prefix(weights)? };
        let Geometry { hidden, vocabulary, positions, token_types, .. } = *geometry;
        Ok(Parameters {
            word_embeddings: finder.encoder(WORD_EMBEDDINGS, &[vocabulary, hidden])?,
            position_embeddings: finder.encoder("embeddings.position_embeddings.weight", &[positions, hidden])?,
            token_type_embeddings: finder.encoder("embeddings.token_type_embeddings.weight", &[token_types, hidden])?,
            embedding_norm: finder.norm("embeddings.LayerNorm", hidden)?,
            layers: (0..geometry.layers).map(|index| finder.layer(index, geometry)).collect::<Result<_, _>>()?,
            head: finder.head(model.head, hidden)?,
        })
    }
}

/// How many classes the folder's classifier has, if it has one: for a config.json that does not say.
pub(in crate::model) fn classifier_classes(weights: &Weights, architecture: Architecture) -> Option<usize> {
    let name = match architecture {
        Architecture::Bert => "classifier.weight",
        Architecture::Roberta => "classifier.out_proj.weight",
    };
    weights.shape(name)?.first().copied()
}

/// What stands before the names of the encoder's tensors: the usual prefixes, else whatever stands before the only
/// table of word embeddings.
fn encoder_prefix(weights: &Weights) -> Result<&str, LoadError> {
    for usual in ["", "bert.", "roberta."] {
        if weights.shape(&format!("{usual}{WORD_EMBEDDINGS}")).is_some() {
            return Ok(usual);
        }
    }
    let mut prefixes = weights.names().filter_map(|name| name.strip_suffix(WORD_EMBEDDINGS));
    match (prefixes.next(), prefixes.next()) {
        (Some(prefix), None) => Ok(prefix),
        (None, _) => Err(at(weights.file_of(""), format!("no tensor `{WORD_EMBEDDINGS}`, with or without a prefix"))),
        (Some(one), Some(two)) => Err(at(
            weights.file_of(""),
            format!("two encoders, `{one}{WORD_EMBEDDINGS}` and `{two}{WORD_EMBEDDINGS}`; which one is meant?"),
        )),
    }
}

struct Finder<'a> {
    weights: &'a Weights,
    prefix: &'a str,
}

impl<'a> Finder<'a> {
    /// The tensor of the first of `names` that exists.
    fn first_of(&self, names: &[String], expected: &[usize]) -> Result<Tensor<'a>, LoadError> {
        let Some(name) = names.iter().find(|name| self.weights.shape(name).is_some()) else {
            return Err(at(self.weights.file_of(""), format!("no tensor `{}`", names.join("` or `"))));
        };
        let wrong = |words: String| at(self.weights.file_of(name), format!("tensor `{name}` {words}"));
        if let Some(dtype) = self.weights.unknown_dtype(name) {
            return Err(wrong(format!("is of type {dtype}; F32, F16 and BF16 can be read")));
        }
        let tensor = self.weights.get(name).expect("a tensor that has a shape and a known type is there");
        match tensor.dtype {
            Dtype::F32 | Dtype::F16 | Dtype::Bf16 => {}
            Dtype::I64 => return Err(wrong("holds integers; F32, F16 and BF16 can be read".into())),
        }
        if tensor.shape != expected {
            return Err(wrong(format!("has shape {:?}, and config.json asks for {expected:?}", tensor.shape)));
        }
        Ok(tensor)
    }

    fn encoder(&self, name: &str, expected: &[usize]) -> Result<Tensor<'a>, LoadError> {
        self.first_of(&[format!("{}{name}", self.prefix)], expected)
    }

    fn linear(&self, name: &str, out: usize, inner: usize) -> Result<Linear<'a>, LoadError> {
        Ok(Linear {
            weight: self.encoder(&format!("{name}.weight"), &[out, inner])?,
            bias: self.encoder(&format!("{name}.bias"), &[out])?,
        })
    }

    fn norm(&self, name: &str, hidden: usize) -> Result<Norm<'a>, LoadError> {
        let either = |new: &str, old: &str| {
            self.first_of(&[format!("{}{name}.{new}", self.prefix), format!("{}{name}.{old}", self.prefix)], &[hidden])
        };
        Ok(Norm { weight: either("weight", "gamma")?, bias: either("bias", "beta")? })
    }

    fn layer(&self, index: usize, geometry: &Geometry) -> Result<LayerParameters<'a>, LoadError> {
        let Geometry { hidden, intermediate, .. } = *geometry;
        let name = |role: &str| format!("encoder.layer.{index}.{role}");
        Ok(LayerParameters {
            query: self.linear(&name("attention.self.query"), hidden, hidden)?,
            key: self.linear(&name("attention.self.key"), hidden, hidden)?,
            value: self.linear(&name("attention.self.value"), hidden, hidden)?,
            attention_output: self.linear(&name("attention.output.dense"), hidden, hidden)?,
            attention_norm: self.norm(&name("attention.output.LayerNorm"), hidden)?,
            intermediate: self.linear(&name("intermediate.dense"), intermediate, hidden)?,
            output: self.linear(&name("output.dense"), hidden, intermediate)?,
            output_norm: self.norm(&name("output.LayerNorm"), hidden)?,
        })
    }

    /// A layer of the classifier, which stands beside the encoder, not in it: its prefix is the encoder's without the
    /// last module.
    fn beside(&self, name: &str, out: usize, inner: usize) -> Result<Linear<'a>, LoadError> {
        let inside = self.prefix.strip_suffix('.').unwrap_or("");
        let outer = inside.rfind('.').map_or("", |dot| &inside[..=dot]);
        Ok(Linear {
            weight: self.first_of(&[format!("{outer}{name}.weight")], &[out, inner])?,
            bias: self.first_of(&[format!("{outer}{name}.bias")], &[out])?,
        })
    }

    fn head(&self, head: Head, hidden: usize) -> Result<HeadParameters<'a>, LoadError> {
        match head {
            Head::Embedding => Ok(HeadParameters::Embedding),
            Head::BertClassifier { classes } => Ok(HeadParameters::Classifier {
                dense: self.linear("pooler.dense", hidden, hidden)?,
                output: self.beside("classifier", classes, hidden)?,
            }),
            Head::RobertaClassifier { classes } => Ok(HeadParameters::Classifier {
                dense: self.beside("classifier.dense", hidden, hidden)?,
                output: self.beside("classifier.out_proj", classes, hidden)?,
            }),
        }
    }
}
