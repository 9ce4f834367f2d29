//! The encoder as a graph: one function for each part, from the tables to the head, the same for both layouts.
//!
//! What differs between the layouts is decided in three places only: where a token's position comes from, which tokens may
//! see which ([`Builder::masks`]), and where the first token of a sequence is ([`Builder::first_tokens`]).
//!
//! Invariants: no operator has a shape that depends on data, every rank is fixed, every reshape is `[0, 0, …]` or
//! `[-1, …]`; element types change at casts only. [`Builder::compute`] is the type of tables and matrix products; what comes
//! out of a layer norm, and everything after the last one, is float.
//!
//! Two savings are made here once, so that no engine has to find them: attention's `1/√dimension` is folded into the query
//! weights (in half this also keeps scores away from overflow), and a model that reads only first tokens computes the last
//! layer's dense parts for these alone, three quarters of that layer.

use std::borrow::Cow;

use super::{
    ATTENTION_MASK, CLS_INDEX, Dtype, EMBEDDINGS, INPUT_IDS, LOGITS, MASKED, POSITION_IDS, SCORES, SEGMENT_IDS,
    TOKEN_TYPE_IDS,
};
use crate::device::Layout;
use crate::model::onnx::{Dimension, Element, Graph, Produce, Value, WriteError};
use crate::model::weights::{HeadParameters, LayerParameters, Linear, Norm, Parameters, Tensor};
use crate::model::{Activation, Architecture, Geometry, Head, Model, Pooling, Task};

/// The graph's inputs and its output, by name.
pub(super) struct Ports {
    pub(super) inputs: Vec<&'static str>,
    pub(super) output: &'static str,
}

/// Adds the whole model to an empty graph.
///
/// # Panics
/// When `parameters` were resolved for another model.
pub(super) fn build<'w>(
    graph: &mut Graph<'w>,
    model: &Model,
    parameters: &'w Parameters<'w>,
    layout: Layout,
    dtype: Dtype,
) -> Ports {
    let geometry = model.geometry.as_ref().expect("a model read from a folder has a geometry");
    let inputs = Inputs::declare(graph, geometry, layout);
    let names = inputs.names();
    let compute = match dtype {
        Dtype::Fp32 => Element::Float,
        Dtype::Fp16 => Element::Half,
    };
    let mut builder = Builder { graph, geometry, inputs, compute };
    let embedded = builder.embeddings(parameters, model.max_length);
    let masks = builder.masks();
    let firsts_only = !matches!((model.head, model.pooling), (Head::Embedding, Pooling::Mean));
    let mut hidden = embedded;
    for (index, layer) in parameters.layers.iter().enumerate() {
        let is_last = index + 1 == parameters.layers.len();
        hidden = builder.layer(index, layer, hidden, masks.added, is_last && firsts_only);
    }
    let pooled = if firsts_only { hidden } else { builder.mean(hidden, masks.counted) };
    Ports { inputs: names, output: builder.output(model, &parameters.head, pooled) }
}

/// The graph's inputs. All int32.
enum Inputs {
    Padded { ids: Value, mask: Value, types: Option<Value> },
    Packed { ids: Value, positions: Value, segments: Value, types: Option<Value>, firsts: Value },
}

impl Inputs {
    fn declare(graph: &mut Graph<'_>, geometry: &Geometry, layout: Layout) -> Inputs {
        let grid = match layout {
            Layout::Padded => [Dimension::named("batch"), Dimension::named("sequence")],
            Layout::Packed => [Dimension::named("rows"), Dimension::named("length")],
        };
        let has_types = geometry.token_types > 1;
        let mut input = |name| graph.input(name, Element::Int32, &grid);
        match layout {
            Layout::Padded => Inputs::Padded {
                ids: input(INPUT_IDS),
                mask: input(ATTENTION_MASK),
                types: has_types.then(|| input(TOKEN_TYPE_IDS)),
            },
            Layout::Packed => Inputs::Packed {
                ids: input(INPUT_IDS),
                positions: input(POSITION_IDS),
                segments: input(SEGMENT_IDS),
                types: has_types.then(|| input(TOKEN_TYPE_IDS)),
                firsts: graph.input(CLS_INDEX, Element::Int32, &[Dimension::named("sequences")]),
            },
        }
    }

    fn names(&self) -> Vec<&'static str> {
        match self {
            Inputs::Padded { types: None, .. } => vec![INPUT_IDS, ATTENTION_MASK],
            Inputs::Padded { types: Some(_), .. } => vec![INPUT_IDS, ATTENTION_MASK, TOKEN_TYPE_IDS],
            Inputs::Packed { types: None, .. } => vec![INPUT_IDS, POSITION_IDS, SEGMENT_IDS, CLS_INDEX],
            Inputs::Packed { types: Some(_), .. } => {
                vec![INPUT_IDS, POSITION_IDS, SEGMENT_IDS, TOKEN_TYPE_IDS, CLS_INDEX]
            }
        }
    }

    fn ids(&self) -> Value {
        match self {
            Inputs::Padded { ids, .. } | Inputs::Packed { ids, .. } => *ids,
        }
    }

    fn types(&self) -> Option<Value> {
        match self {
            Inputs::Padded { types, .. } | Inputs::Packed { types, .. } => *types,
        }
    }

    /// What the first dimension of the output is called.
    fn sequences(&self) -> Dimension {
        match self {
            Inputs::Padded { .. } => Dimension::named("batch"),
            Inputs::Packed { .. } => Dimension::named("sequences"),
        }
    }
}

/// Who may see whom.
#[derive(Clone, Copy)]
struct Masks {
    /// Float, added to scores `[rows, heads, length, length]`: 0 or [`MASKED`].
    added: Value,
    /// Boolean. Padded: true on padding, `[batch, sequence]`. Packed: true for two tokens of one segment,
    /// `[rows, 1, length, length]`.
    counted: Value,
}

struct Builder<'g, 'w> {
    graph: &'g mut Graph<'w>,
    geometry: &'g Geometry,
    inputs: Inputs,
    /// Float or half.
    compute: Element,
}

impl<'w> Builder<'_, 'w> {
    /// Sum of the tables' rows, normalised, in the type of computation: `[rows, length, hidden]`.
    fn embeddings(&mut self, parameters: &'w Parameters<'w>, max_length: usize) -> Value {
        let words = self.table("embeddings/word_table", &parameters.word_embeddings);
        let words = self.graph.gather("embeddings/words", words, self.inputs.ids(), 0);
        let mut sum = self.graph.cast("embeddings/words_float", words, Element::Float);
        let positions = self.positions(parameters, max_length);
        sum = self.graph.add("embeddings/with_positions", sum, positions);
        if let Some(types) = self.inputs.types() {
            let table = self.table("embeddings/type_table", &parameters.token_type_embeddings);
            let rows = self.graph.gather("embeddings/types", table, types, 0);
            let rows = self.graph.cast("embeddings/types_float", rows, Element::Float);
            sum = self.graph.add("embeddings/with_types", sum, rows);
        }
        let normed = self.norm("embeddings/norm", &parameters.embedding_norm, sum);
        self.lower("embeddings/hidden", normed)
    }

    /// Rows of the position table, float: `[length, hidden]` or `[rows, length, hidden]`.
    ///
    /// The table begins at the family's offset, so that both layouts count from 0; behind its `max_length` rows lies, for
    /// the RoBERTa families, the row of the pad token.
    fn positions(&mut self, parameters: &'w Parameters<'w>, max_length: usize) -> Value {
        let rows = max_length + usize::from(pad_token(self.geometry).is_some());
        let produce = position_rows(parameters, self.geometry, max_length);
        let table =
            self.graph.weight("embeddings/position_table", self.compute, &[rows, self.geometry.hidden], produce);
        let rows = match (&self.inputs, pad_token(self.geometry)) {
            (&Inputs::Packed { positions, .. }, _) => self.graph.gather("embeddings/positions", table, positions, 0),
            (&Inputs::Padded { ids, .. }, None) => {
                let length = self.length(ids);
                self.graph.first("embeddings/positions", table, length)
            }
            (&Inputs::Padded { ids, .. }, Some(pad_token)) => {
                let index = self.counted_positions(ids, pad_token, max_length);
                self.graph.gather("embeddings/positions", table, index, 0)
            }
        };
        self.graph.cast("embeddings/positions_float", rows, Element::Float)
    }

    /// For each token the number of tokens before it in its row that are not the pad token; `max_length` for a pad token.
    ///
    /// With padding on the right this is the token's index, unless a text spells the pad token out. RoBERTa's own code has a
    /// running sum here, which engines either lack for some integer types or run as a loop; a product with a triangle of
    /// ones is as exact (zeros and ones, summed in float) and nothing special to any of them.
    fn counted_positions(&mut self, ids: Value, pad_token: usize, max_length: usize) -> Value {
        let length = self.length(ids);
        let graph = &mut *self.graph;
        let (none, whole) =
            (graph.scalar("positions/none", Element::Float, 0.0), graph.scalar("positions/whole", Element::Float, 1.0));
        let count = Box::new(move |take: &mut dyn FnMut(&[f32]) -> Result<(), WriteError>| {
            (0..max_length).try_for_each(|index| take(&[index as f32]))
        });
        let indices = graph.weight("positions/indices", Element::Float, &[max_length], count);
        let indices = graph.first("positions/indices_used", indices, length);
        let before = graph.unsqueeze("positions/before", indices, &[1]);
        let after = graph.unsqueeze("positions/after", indices, &[0]);
        let is_before = graph.less("positions/is_before", before, after);
        let triangle = graph.select("positions/triangle", is_before, whole, none);
        let pad = graph.scalar("positions/pad_token", Element::Int32, pad_token as f32);
        let is_pad = graph.equal("positions/is_pad", ids, pad);
        let counted = graph.select("positions/counted", is_pad, none, whole);
        let index = graph.matmul("positions/index_float", counted, triangle);
        let index = graph.cast("positions/index_counted", index, Element::Int32);
        let pad_row = graph.scalar("positions/pad_row", Element::Int32, max_length as f32);
        graph.select("positions/index", is_pad, pad_row, index)
    }

    /// Tokens per row, `[1]` int64.
    fn length(&mut self, ids: Value) -> Value {
        let shape = self.graph.shape("embeddings/shape", ids);
        let (one, two) = (self.graph.vector(&[1]), self.graph.vector(&[2]));
        self.graph.slice("embeddings/length", shape, one, two)
    }

    fn masks(&mut self) -> Masks {
        let seen = self.graph.scalar("mask/seen", Element::Float, 0.0);
        let unseen = self.graph.scalar("mask/unseen", Element::Float, MASKED);
        match self.inputs {
            Inputs::Padded { mask, .. } => {
                let zero = self.graph.scalar("mask/zero", Element::Int32, 0.0);
                let padding = self.graph.equal("mask/padding", mask, zero);
                let added = self.graph.select("mask/rows", padding, unseen, seen);
                let added = self.graph.unsqueeze("mask/added", added, &[1, 2]);
                Masks { added, counted: padding }
            }
            Inputs::Packed { segments, .. } => {
                let here = self.graph.unsqueeze("mask/here", segments, &[1, 3]);
                let there = self.graph.unsqueeze("mask/there", segments, &[1, 2]);
                let same = self.graph.equal("mask/same", here, there);
                let added = self.graph.select("mask/added", same, seen, unseen);
                Masks { added, counted: same }
            }
        }
    }

    /// One layer. The result is in the type of computation, but float if `firsts_only` or after the last layer.
    fn layer(
        &mut self,
        index: usize,
        layer: &'w LayerParameters<'w>,
        hidden: Value,
        mask: Value,
        firsts_only: bool,
    ) -> Value {
        let name = |part: &str| format!("layer_{index}/{part}");
        let mut context = self.attention(&name("attention"), layer, hidden, mask);
        let mut residual = hidden;
        if firsts_only {
            context = self.first_tokens(&name("attention/context_first"), context);
            residual = self.first_tokens(&name("attention/residual_first"), residual);
        }
        let attended = self.linear(&name("attention/output"), &layer.attention_output, context, self.compute);
        let attended = self.joined(&name("attention"), residual, attended, &layer.attention_norm);
        let attended = self.lower(&name("attention/hidden"), attended);
        let inner = self.linear(&name("intermediate"), &layer.intermediate, attended, self.compute);
        let inner = self.activation(&name("intermediate"), inner);
        let outer = self.linear(&name("output"), &layer.output, inner, self.compute);
        let joined = self.joined(&name("output"), attended, outer, &layer.output_norm);
        match index + 1 == self.geometry.layers {
            true => joined,
            false => self.lower(&name("hidden"), joined),
        }
    }

    /// What each token gathers from those it sees, heads side by side: `[rows, length, hidden]`.
    fn attention(&mut self, name: &str, layer: &'w LayerParameters<'w>, hidden: Value, mask: Value) -> Value {
        let part = |part: &str| format!("{name}/{part}");
        let scale = 1.0 / ((self.geometry.hidden / self.geometry.heads) as f32).sqrt();
        let sources = vec![(&layer.query, scale), (&layer.key, 1.0), (&layer.value, 1.0)];
        let all = self.linears(&part("query_key_value"), sources, hidden, self.compute);
        let names = [part("query_joined"), part("key_joined"), part("value_joined")];
        let [query, key, value] = self.graph.split_in_three([&names[0], &names[1], &names[2]], all, [self.hidden(); 3]);
        let query = self.heads(&part("query"), query, &[0, 2, 1, 3]);
        let key = self.heads(&part("key"), key, &[0, 2, 3, 1]);
        let value = self.heads(&part("value"), value, &[0, 2, 1, 3]);
        let scores = self.graph.matmul(&part("scores"), query, key);
        let scores = self.graph.cast(&part("scores_float"), scores, Element::Float);
        let scores = self.graph.add(&part("scores_masked"), scores, mask);
        let shares = self.graph.softmax(&part("shares"), scores);
        let shares = self.lower(&part("shares_lowered"), shares);
        let context = self.graph.matmul(&part("context_heads"), shares, value);
        let context = self.graph.transpose(&part("context_tokens"), context, &[0, 2, 1, 3]);
        self.graph.reshape(&part("context"), context, &[0, 0, self.hidden()])
    }

    /// `[rows, length, hidden]` → `[rows, length, heads, dimension]`, permuted.
    fn heads(&mut self, name: &str, joined: Value, permutation: &[i64]) -> Value {
        let heads = self.geometry.heads as i64;
        let apart = self.graph.reshape(&format!("{name}_apart"), joined, &[0, 0, heads, self.hidden() / heads]);
        self.graph.transpose(name, apart, permutation)
    }

    /// The rows of each sequence's first token: `[sequences, hidden]`.
    fn first_tokens(&mut self, name: &str, hidden: Value) -> Value {
        match self.inputs {
            Inputs::Padded { .. } => {
                let first = self.graph.vector(&[0]);
                let column = self.graph.gather(&format!("{name}_column"), hidden, first, 1);
                self.graph.squeeze(name, column, &[1])
            }
            Inputs::Packed { firsts, .. } => {
                let tokens = self.graph.reshape(&format!("{name}_tokens"), hidden, &[-1, self.hidden()]);
                self.graph.gather(name, tokens, firsts, 0)
            }
        }
    }

    /// The mean of each sequence's last hidden states, float: `[sequences, hidden]`.
    fn mean(&mut self, hidden: Value, counted: Value) -> Value {
        match self.inputs {
            Inputs::Padded { .. } => self.mean_padded(hidden, counted),
            Inputs::Packed { firsts, .. } => self.mean_packed(hidden, counted, firsts),
        }
    }

    fn mean_padded(&mut self, hidden: Value, padding: Value) -> Value {
        let graph = &mut *self.graph;
        let (none, whole) =
            (graph.scalar("pooling/none", Element::Float, 0.0), graph.scalar("pooling/whole", Element::Float, 1.0));
        let kept = graph.select("pooling/kept", padding, none, whole);
        let kept = graph.unsqueeze("pooling/kept_column", kept, &[-1]);
        let tokens = graph.mul("pooling/tokens", hidden, kept);
        let sum = graph.reduce_sum("pooling/sum", tokens, 1, false);
        let count = graph.reduce_sum("pooling/tokens_count", kept, 1, false);
        // A row without tokens has the sum 0; dividing by 1 keeps it finite.
        let count = graph.max("pooling/count", count, whole);
        graph.div("pooling/mean", sum, count)
    }

    /// Every token gets the sum of its segment; the sequences' first tokens are then picked. A token always counts itself,
    /// so no count is 0.
    fn mean_packed(&mut self, hidden: Value, same: Value, firsts: Value) -> Value {
        let width = self.hidden();
        let graph = &mut *self.graph;
        let (none, whole) =
            (graph.scalar("pooling/none", Element::Float, 0.0), graph.scalar("pooling/whole", Element::Float, 1.0));
        let members = graph.select("pooling/members_head", same, whole, none);
        let members = graph.squeeze("pooling/members", members, &[1]);
        let sums = graph.matmul("pooling/sums", members, hidden);
        let sums = graph.reshape("pooling/sums_tokens", sums, &[-1, width]);
        let sum = graph.gather("pooling/sum", sums, firsts, 0);
        let counts = graph.reduce_sum("pooling/counts", members, 2, false);
        let counts = graph.reshape("pooling/counts_tokens", counts, &[-1]);
        let count = graph.gather("pooling/count", counts, firsts, 0);
        let count = graph.unsqueeze("pooling/count_column", count, &[-1]);
        graph.div("pooling/mean", sum, count)
    }

    /// Head and output, all float. Returns the output's name.
    fn output(&mut self, model: &Model, head: &'w HeadParameters<'w>, pooled: Value) -> &'static str {
        let sequences = self.inputs.sequences();
        let (name, value) = match head {
            HeadParameters::Embedding if model.normalize => (EMBEDDINGS, self.normalized(pooled)),
            HeadParameters::Embedding => (EMBEDDINGS, self.graph.identity(EMBEDDINGS, pooled)),
            HeadParameters::Classifier { dense, output } => {
                let dense = self.linear("head/dense", dense, pooled, Element::Float);
                let dense = self.graph.tanh("head/tanh", dense);
                match model.task {
                    Task::Reranking => {
                        let column = self.linear("head/scores", output, dense, Element::Float);
                        (SCORES, self.graph.reshape(SCORES, column, &[-1]))
                    }
                    Task::Embedding | Task::Nli => (LOGITS, self.linear(LOGITS, output, dense, Element::Float)),
                }
            }
        };
        match model.task {
            Task::Reranking => self.graph.output(value, &[sequences]),
            Task::Embedding | Task::Nli => {
                self.graph.output(value, &[sequences, Dimension::Fixed(model.width())]);
            }
        }
        name
    }

    /// Divided by the L2 norm.
    fn normalized(&mut self, vectors: Value) -> Value {
        let graph = &mut *self.graph;
        let squares = graph.mul("normalize/squares", vectors, vectors);
        let sum = graph.reduce_sum("normalize/sum", squares, -1, true);
        let norm = graph.sqrt("normalize/length", sum);
        let least = graph.scalar("normalize/least", Element::Float, 1e-12);
        let norm = graph.max("normalize/norm", norm, least);
        graph.div(EMBEDDINGS, vectors, norm)
    }
}

/// The pieces that layers are made of.
impl<'w> Builder<'_, 'w> {
    /// Size of a hidden state, as shapes are written.
    fn hidden(&self) -> i64 {
        self.geometry.hidden as i64
    }

    /// To the type of computation.
    fn lower(&mut self, name: &str, value: Value) -> Value {
        self.graph.cast(name, value, self.compute)
    }

    fn table(&mut self, name: &str, tensor: &'w Tensor<'w>) -> Value {
        self.graph.weight(name, self.compute, &tensor.shape, whole(tensor))
    }

    fn linear(&mut self, name: &str, linear: &'w Linear<'w>, input: Value, element: Element) -> Value {
        self.linears(name, vec![(linear, 1.0)], input, element)
    }

    /// `input · weightᵀ + bias` for several layers side by side, each times its factor: `[…, Σ out]`.
    fn linears(&mut self, name: &str, linears: Vec<(&'w Linear<'w>, f32)>, input: Value, element: Element) -> Value {
        let (weights, biases): (Vec<_>, Vec<_>) =
            linears.iter().map(|(linear, factor)| ((&linear.weight, *factor), (&linear.bias, *factor))).unzip();
        let inner = linears[0].0.weight.shape[1];
        let out = linears.iter().map(|(linear, _)| linear.weight.shape[0]).sum();
        let weight = self.graph.weight(&format!("{name}/weight"), element, &[inner, out], transposed(weights));
        let bias = self.graph.weight(&format!("{name}/bias"), element, &[out], joined(biases));
        let product = self.graph.matmul(&format!("{name}/product"), input, weight);
        self.graph.add(name, product, bias)
    }

    /// The layer norm of a residual sum, float.
    fn joined(&mut self, name: &str, residual: Value, added: Value, norm: &'w Norm<'w>) -> Value {
        let residual = self.graph.cast(&format!("{name}/residual_float"), residual, Element::Float);
        let added = self.graph.cast(&format!("{name}/added_float"), added, Element::Float);
        let sum = self.graph.add(&format!("{name}/sum"), residual, added);
        self.norm(&format!("{name}/norm"), norm, sum)
    }

    fn norm(&mut self, name: &str, norm: &'w Norm<'w>, input: Value) -> Value {
        let hidden = self.geometry.hidden;
        let gain = self.graph.weight(&format!("{name}/gain"), Element::Float, &[hidden], whole(&norm.weight));
        let bias = self.graph.weight(&format!("{name}/bias"), Element::Float, &[hidden], whole(&norm.bias));
        self.graph.layer_normalization(name, input, gain, bias, self.geometry.layer_norm_eps)
    }

    /// In float, whose range GELU's cube needs; engines fuse the casts with it.
    fn activation(&mut self, name: &str, input: Value) -> Value {
        let input = self.graph.cast(&format!("{name}/float"), input, Element::Float);
        let name = |part: &str| format!("{name}/activation{part}");
        let active = match self.geometry.activation {
            Activation::Relu => self.graph.relu(&name(""), input),
            Activation::Gelu if self.graph.opset() >= 20 => self.graph.gelu(&name(""), input, false),
            Activation::GeluTanh if self.graph.opset() >= 20 => self.graph.gelu(&name(""), input, true),
            Activation::Gelu => {
                let half = self.number("number/half", 0.5);
                let root = self.number("number/half_root", std::f32::consts::FRAC_1_SQRT_2);
                let inner = self.graph.mul(&name("_inner"), input, root);
                let inner = self.graph.erf(&name("_erf"), inner);
                self.gated(&name(""), input, inner, half)
            }
            Activation::GeluTanh => {
                let half = self.number("number/half", 0.5);
                let root = self.number("number/two_over_pi_root", (2.0 / std::f32::consts::PI).sqrt());
                let cubic = self.number("number/cubic", 0.044_715);
                let square = self.graph.mul(&name("_square"), input, input);
                let cube = self.graph.mul(&name("_cube"), square, input);
                let cube = self.graph.mul(&name("_cube_scaled"), cube, cubic);
                let inner = self.graph.add(&name("_polynomial"), input, cube);
                let inner = self.graph.mul(&name("_inner"), inner, root);
                let inner = self.graph.tanh(&name("_tanh"), inner);
                self.gated(&name(""), input, inner, half)
            }
        };
        self.lower(&name("_lowered"), active)
    }

    /// `half × input × (1 + inner)`
    fn gated(&mut self, name: &str, input: Value, inner: Value, half: Value) -> Value {
        let one = self.number("number/whole", 1.0);
        let gate = self.graph.add(&format!("{name}_gate"), inner, one);
        let gated = self.graph.mul(&format!("{name}_gated"), input, gate);
        self.graph.mul(name, gated, half)
    }

    /// A float scalar that is made once.
    fn number(&mut self, name: &str, value: f32) -> Value {
        match self.graph.find(name) {
            Some(number) => number,
            None => self.graph.scalar(name, Element::Float, value),
        }
    }
}

/// Values decoded at a time.
const BLOCK_ELEMENTS: usize = 1 << 16;

/// Decodes elements `start..start + values.len()` of a tensor.
fn decode(tensor: &Tensor<'_>, start: usize, values: &mut [f32]) {
    let size = tensor.dtype.size();
    let bytes = Cow::Borrowed(&tensor.bytes[start * size..(start + values.len()) * size]);
    Tensor { shape: vec![values.len()], dtype: tensor.dtype, bytes }.copy_to_f32(values);
}

/// The tensor as it is.
fn whole<'w>(tensor: &'w Tensor<'w>) -> Produce<'w> {
    joined(vec![(tensor, 1.0)])
}

/// Tensors one after another, each times its factor.
fn joined<'w>(tensors: Vec<(&'w Tensor<'w>, f32)>) -> Produce<'w> {
    Box::new(move |take| {
        let mut values = vec![0.0; BLOCK_ELEMENTS];
        for (tensor, factor) in &tensors {
            for start in (0..tensor.elements()).step_by(BLOCK_ELEMENTS) {
                let block = &mut values[..BLOCK_ELEMENTS.min(tensor.elements() - start)];
                decode(tensor, start, block);
                block.iter_mut().for_each(|value| *value *= factor);
                take(block)?;
            }
        }
        Ok(())
    })
}

/// Matrices `[out, in]`, each times its factor, as one `[in, Σ out]`.
fn transposed<'w>(matrices: Vec<(&'w Tensor<'w>, f32)>) -> Produce<'w> {
    // Rows of the result made at a time: a cache line of each source row.
    const ROWS: usize = 16;
    Box::new(move |take| {
        let inner = matrices[0].0.shape[1];
        let out: usize = matrices.iter().map(|(matrix, _)| matrix.shape[0]).sum();
        let sources: Vec<(Vec<f32>, f32)> =
            matrices.iter().map(|(matrix, factor)| (matrix.to_f32(), *factor)).collect();
        let mut rows = vec![0.0; ROWS * out];
        for first in (0..inner).step_by(ROWS) {
            let count = ROWS.min(inner - first);
            let source_rows = sources.iter().flat_map(|(source, factor)| {
                source.chunks_exact(inner).map(move |row| (&row[first..first + count], factor))
            });
            for (column, (values, factor)) in source_rows.enumerate() {
                for (row, value) in values.iter().enumerate() {
                    rows[row * out + column] = value * factor;
                }
            }
            take(&rows[..count * out])?;
        }
        Ok(())
    })
}

/// The token that takes no position, for the families that have one.
pub(super) fn pad_token(geometry: &Geometry) -> Option<usize> {
    match geometry.architecture {
        Architecture::Bert => None,
        Architecture::Roberta => Some(geometry.position_offset - 1),
    }
}

/// Rows `position_offset..position_offset + count` of the position table, then the pad token's if there is one. With a
/// single token type its row is added, as every token would get it anyway.
fn position_rows<'w>(parameters: &'w Parameters<'w>, geometry: &Geometry, count: usize) -> Produce<'w> {
    let (hidden, offset) = (geometry.hidden, geometry.position_offset);
    // The pad token's row has its id's number.
    let pad_row = pad_token(geometry);
    let only_type = (geometry.token_types == 1).then(|| parameters.token_type_embeddings.to_f32());
    Box::new(move |take| {
        let mut row = vec![0.0; hidden];
        for index in (offset..offset + count).chain(pad_row) {
            decode(&parameters.position_embeddings, index * hidden, &mut row);
            if let Some(only_type) = &only_type {
                row.iter_mut().zip(only_type).for_each(|(value, of_type)| *value += of_type);
            }
            take(&row)?;
        }
        Ok(())
    })
}
