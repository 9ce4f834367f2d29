//! One model's weights in the form in which they are computed with, and the computation.
//!
//! Sequences lie one after another without padding; linear layers see one matrix of all tokens, attention sees each
//! sequence for itself. Query, key and value come to lie side by side; weights are laid out once, at load, in the
//! panels that products stream through; sums with biases and residuals happen in the product itself.
//!
//! ```text
//!  hidden    [tokens, H]   ──QKV──►  projected [tokens, 3H]  ──attention──►  context [block, H]
//!     ▲                                                                          │ per block of rows, in cache:
//!     └──norm◄──output──(+)──gelu◄──intermediate──norm◄──(+)──attention output◄──┘ inner [block, I]
//! ```
//!
//! A team shares a batch in one of two ways ([`Share`]): by rows, meeting once per layer, or, when there are too few
//! rows for that, by columns of the weights, meeting after every step. Either way, and in whatever company, a
//! sequence's result is a function of its own tokens alone, to the bit.
//!
//! Invariant: between two meetings each member writes only its share of each matrix, and reads only what was complete
//! at the meeting before or what it wrote itself. All memory is in [`Scratch`]; a run allocates nothing of its own.

#![allow(unsafe_code)] // members of a team write disjoint parts of the scratch matrices

use std::ops::Range;
use std::sync::Arc;

use super::kernels::{Level, QUERIES};
use super::matrix::{Block, Store};
use super::product::{PANEL, Packed, Start, multiply, multiply_panel};
use super::team::{Broken, Member, Team};
use crate::device::LoadError;
use crate::model::weights::{HeadParameters, LayerParameters, Linear, Norm, Parameters, Tensor, Weights};
use crate::model::{Activation, Architecture, Geometry, Model, Pooling, Source};

/// Rows that go through the second half of a layer together: their inner activations (128 × 1,536 floats for a small
/// model) stay in the second-level cache, and a product of 128 rows still reads each weight for enough of them.
const BLOCK_ROWS: usize = 128;

/// Below this many rows per member, a team shares columns instead: each member then reads only its part of the weights,
/// and reading weights is what such a batch spends its time on.
const ROWS_PER_MEMBER_MIN: usize = 24;

/// A linear layer.
#[derive(Debug)]
struct Dense {
    /// `[in, out]`
    weight: Packed,
    /// `[out]`, padded with zeros to whole panels.
    bias: Store,
    outputs: usize,
}

impl Dense {
    fn new(layer: &Linear<'_>) -> Dense {
        let outputs = layer.bias.elements();
        let mut bias = Store::zeroed(outputs.div_ceil(PANEL) * PANEL);
        layer.bias.copy_to_f32(&mut bias.values_mut()[..outputs]);
        Dense { weight: Packed::from_transposed(&layer.weight.to_f32(), layer.weight.shape[1]), bias, outputs }
    }
}

fn stored(tensor: &Tensor<'_>) -> Store {
    let mut store = Store::zeroed(tensor.elements());
    tensor.copy_to_f32(store.values_mut());
    store
}

#[derive(Debug)]
struct LayerNorm {
    weight: Store,
    bias: Store,
}

impl LayerNorm {
    fn new(norm: &Norm<'_>) -> LayerNorm {
        LayerNorm { weight: stored(&norm.weight), bias: stored(&norm.bias) }
    }
}

#[derive(Debug)]
struct Layer {
    /// Query, key, value.
    projections: [Dense; 3],
    attention_output: Dense,
    attention_norm: LayerNorm,
    intermediate: Dense,
    output: Dense,
    output_norm: LayerNorm,
}

impl Layer {
    fn new(layer: &LayerParameters<'_>) -> Layer {
        Layer {
            projections: [&layer.query, &layer.key, &layer.value].map(Dense::new),
            attention_output: Dense::new(&layer.attention_output),
            attention_norm: LayerNorm::new(&layer.attention_norm),
            intermediate: Dense::new(&layer.intermediate),
            output: Dense::new(&layer.output),
            output_norm: LayerNorm::new(&layer.output_norm),
        }
    }
}

#[derive(Debug)]
struct Classifier {
    dense: Dense,
    output: Dense,
}

/// The packed sequences of one run.
///
/// ```text
/// ids   [ sequence 0 | sequence 1 | sequence 2 ]
/// types [ 0 0 0 0 0 0 0 0 1 1 1 0 0 0          ]   same length
/// rows  [ 0 1 2 3 ..   0 1 2 ..     0 1 2 ..   ]   same length: rows of the position table
/// ends  [            ^            ^            ^]  exclusive; no sequence is empty
/// ```
#[derive(Debug, Default)]
pub(super) struct Batch {
    ids: Vec<u32>,
    types: Vec<u8>,
    rows: Vec<u32>,
    ends: Vec<u32>,
}

impl Batch {
    /// Makes room for this much in all.
    pub fn reserve(&mut self, tokens: usize, sequences: usize) {
        self.clear();
        self.ids.reserve(tokens);
        self.types.reserve(tokens);
        self.rows.reserve(tokens);
        self.ends.reserve(sequences);
    }

    pub fn clear(&mut self) {
        self.ids.clear();
        self.types.clear();
        self.rows.clear();
        self.ends.clear();
    }

    pub fn tokens(&self) -> usize {
        self.ids.len()
    }

    pub fn sequences(&self) -> usize {
        self.ends.len()
    }

    fn range(&self, sequence: usize) -> Range<usize> {
        let start = if sequence == 0 { 0 } else { self.ends[sequence - 1] as usize };
        start..self.ends[sequence] as usize
    }

    /// The sequence to which a token belongs.
    fn sequence_at(&self, token: usize) -> usize {
        self.ends.partition_point(|&end| end as usize <= token)
    }
}

/// Sizes of a [`Scratch`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Needs {
    pub tokens: usize,
    pub sequences: usize,
    hidden: usize,
    intermediate: usize,
    length: usize,
    width: usize,
}

impl Needs {
    fn max(self, other: Needs) -> Needs {
        Needs {
            tokens: self.tokens.max(other.tokens),
            sequences: self.sequences.max(other.sequences),
            hidden: self.hidden.max(other.hidden),
            intermediate: self.intermediate.max(other.intermediate),
            length: self.length.max(other.length),
            width: self.width.max(other.width),
        }
    }
}

/// All memory that a run writes, for one team and any model of at most these sizes.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    needs: Needs,
    members: usize,
    /// `[tokens, hidden]`, the residual stream.
    hidden: Store,
    /// Two of `[tokens, 3 · hidden]`, taken in turn by the layers: a member may project the next layer's rows while
    /// another still attends to this layer's. One for a team of one.
    projected: [Store; 2],
    /// `[sequences, hidden]` each: the rows that are left when only first tokens or means are.
    pooled: Store,
    pooled_query: Store,
    pooled_dense: Store,
    /// `[sequences, width]`
    outputs: Store,
    /// Per member, one after another: `[BLOCK_ROWS, hidden]` and `[BLOCK_ROWS, intermediate]`. When columns are shared,
    /// the first member's are everybody's.
    context: Store,
    inner: Store,
    /// Per member: `[length, QUERIES]`, one head's scores of as many queries, a column each.
    scores: Store,
    /// Per member: `[head width, QUERIES]`, the queries likewise.
    queries: Store,
    /// Per member: `[length, PANEL]`, the columns of a head's values that fill no panel.
    values: Store,
}

impl Scratch {
    /// Makes room for `needs` besides what there is room for; true exactly if that took memory.
    pub fn reserve(&mut self, needs: Needs, members: usize) -> bool {
        let needs = self.needs.max(needs);
        if needs == self.needs && self.members == members {
            return false;
        }
        // The old stores go first, so that both never exist together.
        *self = Scratch::default();
        let Needs { tokens, sequences, hidden, intermediate, length, width } = needs;
        let per_member = |floats: usize| Store::zeroed(members * floats);
        *self = Scratch {
            needs,
            members,
            hidden: Store::zeroed(tokens * hidden),
            projected: [0, 1].map(|turn| Store::zeroed(if turn < members { tokens * 3 * hidden } else { 0 })),
            pooled: Store::zeroed(sequences * hidden),
            pooled_query: Store::zeroed(sequences * hidden),
            pooled_dense: Store::zeroed(sequences * hidden),
            outputs: Store::zeroed(sequences * width),
            context: per_member(BLOCK_ROWS * hidden),
            inner: per_member(BLOCK_ROWS * intermediate),
            scores: per_member(length * QUERIES),
            queries: per_member(hidden * QUERIES),
            values: per_member(length * PANEL),
        };
        true
    }

    /// The vectors of the last run, one after another.
    pub fn outputs(&self) -> &[f32] {
        self.outputs.values()
    }
}

/// The scratch of one run as blocks of this model's sizes.
struct Matrices {
    hidden: Block,
    projected: [Block; 2],
    pooled: Block,
    pooled_query: Block,
    pooled_dense: Block,
    outputs: Block,
    context: Block,
    inner: Block,
    scores: Block,
    queries: Block,
    values: Block,
}

impl Matrices {
    fn new(scratch: &mut Scratch, needs: &Needs) -> Matrices {
        let hidden = needs.hidden;
        let [even, odd] = &mut scratch.projected;
        let even = even.block(3 * hidden);
        Matrices {
            hidden: scratch.hidden.block(hidden),
            projected: [even, if odd.len() > 0 { odd.block(3 * hidden) } else { even }],
            pooled: scratch.pooled.block(hidden),
            pooled_query: scratch.pooled_query.block(hidden),
            pooled_dense: scratch.pooled_dense.block(hidden),
            outputs: scratch.outputs.block(needs.width),
            context: scratch.context.block(hidden),
            inner: scratch.inner.block(needs.intermediate),
            scores: scratch.scores.block(QUERIES),
            queries: scratch.queries.block(QUERIES),
            values: scratch.values.block(PANEL),
        }
    }
}

/// Which part of each step a member does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Share {
    /// Its own rows, all columns. Nothing to wait for but other rows' keys and values.
    Rows,
    /// All rows, its own columns (or heads). Everything a step reads comes from all members.
    Columns,
}

/// The `index`-th of `count` nearly equal parts of `total`, in multiples of `grain` but for the last.
fn portion(total: usize, grain: usize, index: usize, count: usize) -> Range<usize> {
    let grains = total.div_ceil(grain);
    let edge = |index: usize| (grains * index / count * grain).min(total);
    edge(index)..edge(index + 1)
}

/// A loaded model.
#[derive(Debug)]
pub(super) struct Encoder {
    geometry: Geometry,
    pooling: Pooling,
    normalize: bool,
    width: usize,
    length_max: usize,
    level: Level,
    /// `[vocabulary, hidden]`
    word_embeddings: Store,
    /// `[positions, hidden]`
    position_embeddings: Store,
    /// `[token_types, hidden]`
    token_type_embeddings: Store,
    embedding_norm: LayerNorm,
    layers: Vec<Layer>,
    classifier: Option<Classifier>,
}

impl Encoder {
    /// Reads the model's weights and lays them out; the files are closed again afterwards.
    pub fn load(model: &Arc<Model>) -> Result<Encoder, LoadError> {
        let Source::Folder(folder) = &model.source else {
            return Err(LoadError(format!(
                "model `{}`: the CPU engine runs Hugging Face folders; an .onnx needs the feature `onnxruntime`, an engine \
                 its GPU",
                model.name
            )));
        };
        let weights = Weights::open(folder)?;
        let parameters = Parameters::resolve(&weights, model)?;
        let geometry = model.geometry.clone().expect("resolving the parameters has checked that there is a geometry");
        let classifier = match &parameters.head {
            HeadParameters::Embedding => None,
            HeadParameters::Classifier { dense, output } => {
                Some(Classifier { dense: Dense::new(dense), output: Dense::new(output) })
            }
        };
        Ok(Encoder {
            pooling: if classifier.is_some() { Pooling::Cls } else { model.pooling },
            normalize: model.normalize && classifier.is_none(),
            width: model.width(),
            length_max: model.max_length.min(geometry.positions - geometry.position_offset),
            level: Level::detect(),
            word_embeddings: stored(&parameters.word_embeddings),
            position_embeddings: stored(&parameters.position_embeddings),
            token_type_embeddings: stored(&parameters.token_type_embeddings),
            embedding_norm: LayerNorm::new(&parameters.embedding_norm),
            layers: parameters.layers.iter().map(Layer::new).collect(),
            classifier,
            geometry,
        })
    }

    /// Runs at another level than this CPU's best, to compare.
    #[cfg(test)]
    pub fn with_level(self, level: Level) -> Encoder {
        Encoder { level, ..self }
    }

    pub fn width(&self) -> usize {
        self.width
    }

    /// The longest sequence, in tokens.
    pub fn length_max(&self) -> usize {
        self.length_max
    }

    /// What a run of at most this size needs.
    pub fn needs(&self, tokens: usize, sequences: usize) -> Needs {
        let Geometry { hidden, intermediate, .. } = self.geometry;
        Needs { tokens, sequences, hidden, intermediate, length: self.length_max, width: self.width }
    }

    /// Whether a token can be looked up. Types are not looked at by a model that has but one.
    pub fn knows(&self, id: u32, token_type: u8) -> bool {
        let Geometry { vocabulary, token_types, .. } = self.geometry;
        (id as usize) < vocabulary && (token_types == 1 || usize::from(token_type) < token_types)
    }

    /// Appends one sequence to the batch.
    ///
    /// RoBERTa's positions pass over the padding token, which a text may spell out: it gets the row of its own id, and
    /// the tokens after it go on counting from where they were.
    pub fn push(&self, batch: &mut Batch, ids: &[u32], types: &[u8]) {
        let offset = self.geometry.position_offset as u32;
        batch.ids.extend_from_slice(ids);
        batch.types.extend_from_slice(types);
        match self.geometry.architecture {
            Architecture::Bert => batch.rows.extend((0..ids.len() as u32).map(|index| index + offset)),
            Architecture::Roberta => {
                let mut next = offset;
                batch.rows.extend(ids.iter().map(|&id| {
                    let is_padding = id + 1 == offset;
                    next += u32::from(!is_padding);
                    if is_padding { id } else { next - 1 }
                }));
            }
        }
        batch.ends.push(batch.ids.len() as u32);
    }

    /// Computes one vector of [`Encoder::width`] values per sequence, into [`Scratch::outputs`].
    ///
    /// # Panics
    /// When the batch is larger than the scratch, a sequence is empty or too long, or a token unknown; nothing else
    /// happens then.
    pub fn run(&self, batch: &Batch, scratch: &mut Scratch, team: &mut Team) -> Result<(), Broken> {
        let needs = self.needs(batch.tokens(), batch.sequences());
        assert!(needs.max(scratch.needs) == scratch.needs, "the batch is larger than its scratch");
        assert!(batch.types.len() == batch.tokens() && batch.rows.len() == batch.tokens());
        assert!(batch.ends.last() == Some(&(batch.tokens() as u32)));
        for sequence in 0..batch.sequences() {
            let range = batch.range(sequence);
            assert!(range.start < range.end && range.len() <= self.length_max, "sequence {sequence} is {range:?}");
        }
        assert!(batch.ids.iter().zip(&batch.types).all(|(&id, &token_type)| self.knows(id, token_type)));
        let matrices = Matrices::new(scratch, &needs);
        team.run(&|member: &Member<'_>| Run::new(self, batch, &matrices, member).all())
    }

    fn activate(&self, values: &mut [f32]) {
        match self.geometry.activation {
            Activation::Gelu => self.level.gelu(values),
            Activation::GeluTanh => self.level.gelu_tanh(values),
            Activation::Relu => self.level.relu(values),
        }
    }
}

/// One member's view of one run.
struct Run<'a> {
    encoder: &'a Encoder,
    batch: &'a Batch,
    matrices: &'a Matrices,
    member: &'a Member<'a>,
    share: Share,
}

// SAFETY, for every `unsafe` below: the scratch outlives the run, as `Encoder::run` borrows it and returns only after
// the team has. That no two members touch the same floats between two meetings follows from the member's share: by
// rows, a member touches rows `my_rows` (of tokens, or of sequences after pooling) and its own context, inner and
// scores; by columns, all rows of its own columns, `portion`s that are disjoint. Each block says which of the two it
// rests on.
impl<'a> Run<'a> {
    fn new(encoder: &'a Encoder, batch: &'a Batch, matrices: &'a Matrices, member: &'a Member<'a>) -> Run<'a> {
        let enough = ROWS_PER_MEMBER_MIN * member.count;
        // Sharing columns, all rows are one block.
        let share =
            if member.count == 1 || batch.tokens() >= enough.min(BLOCK_ROWS) { Share::Rows } else { Share::Columns };
        Run { encoder, batch, matrices, member, share }
    }

    fn all(&self) -> Result<(), Broken> {
        self.embed();
        self.settle()?;
        let (last, before) = self.encoder.layers.split_last().expect("a model has at least one layer");
        for (index, layer) in before.iter().enumerate() {
            self.layer(layer, self.matrices.projected[index % 2])?;
        }
        let projected = self.matrices.projected[before.len() % 2];
        match self.encoder.pooling {
            Pooling::Cls => self.last_layer_of_first_tokens(last, projected)?,
            Pooling::Mean => {
                self.layer(last, projected)?;
                self.member.meet()?;
                self.mean();
            }
        }
        self.finish()
    }

    /// A meeting that only sharing by columns needs.
    fn settle(&self) -> Result<(), Broken> {
        match self.share {
            Share::Rows => Ok(()),
            Share::Columns => self.member.meet(),
        }
    }

    /// Of `total` rows, those that this member alone works on in steps that go row by row.
    fn own_rows(&self, total: usize) -> Range<usize> {
        portion(total, 1, self.member.index, self.member.count)
    }

    /// Of `total` rows, those whose products this member has a part in.
    fn my_rows(&self, total: usize) -> Range<usize> {
        match self.share {
            Share::Rows => self.own_rows(total),
            Share::Columns => 0..total,
        }
    }

    /// Of `total` columns, those that this member computes, in multiples of `grain`.
    fn my_columns(&self, total: usize, grain: usize) -> Range<usize> {
        match self.share {
            Share::Rows => 0..total,
            Share::Columns => portion(total, grain, self.member.index, self.member.count),
        }
    }

    /// Sums of the three embeddings, normalised.
    fn embed(&self) {
        let Encoder { geometry, level, embedding_norm: norm, .. } = self.encoder;
        let hidden = geometry.hidden;
        let row_of = |table: &'a Store, row: usize| &table.values()[row * hidden..(row + 1) * hidden];
        for token in self.own_rows(self.batch.tokens()) {
            let token_type = if geometry.token_types == 1 { 0 } else { usize::from(self.batch.types[token]) };
            // SAFETY: own row.
            let row = unsafe { self.matrices.hidden.row_mut(token) };
            row.copy_from_slice(row_of(&self.encoder.word_embeddings, self.batch.ids[token] as usize));
            level.add(row, row_of(&self.encoder.token_type_embeddings, token_type));
            level.add(row, row_of(&self.encoder.position_embeddings, self.batch.rows[token] as usize));
            level.layer_norm(row, norm.weight.values(), norm.bias.values(), geometry.layer_norm_eps);
        }
    }

    /// `target[rows, columns] = input · weight + bias`. The target is of the member's share, all columns.
    fn project(&self, target: Block, input: Block, dense: &Dense, columns: Range<usize>) {
        let (target, start) = (target.columns_part(columns.clone()), Start::Bias(dense.bias.values()));
        // SAFETY: the target is own; the input was complete at the last meeting, or is this member's own.
        unsafe { multiply(self.encoder.level, target, start, input, &dense.weight, columns) };
    }

    /// `target[rows, columns] += input · weight + bias`. The target is of the member's share, all columns.
    fn add_projection(&self, target: Block, input: Block, dense: &Dense, columns: Range<usize>) {
        let (target, start) = (target.columns_part(columns.clone()), Start::BiasAndTarget(dense.bias.values()));
        // SAFETY: as in `project`.
        unsafe { multiply(self.encoder.level, target, start, input, &dense.weight, columns) };
    }

    /// The columns of this member's heads. Where heads are shared, they are shared in whole panels.
    fn head_columns(&self) -> Range<usize> {
        let Geometry { hidden, heads, .. } = self.encoder.geometry;
        let head_width = hidden / heads;
        let grain = (1..=PANEL).map(|times| times * head_width).find(|width| width.is_multiple_of(PANEL));
        self.my_columns(hidden, grain.expect("a multiple by PANEL is one of PANEL"))
    }

    /// Projects this member's share of some of the three parts of `projected`: 0 query, 1 key, 2 value.
    fn project_parts(&self, layer: &Layer, projected: Block, parts: Range<usize>) {
        let hidden = self.encoder.geometry.hidden;
        let rows = self.my_rows(self.batch.tokens());
        let (target, input) = (projected.rows_part(rows.clone()), self.matrices.hidden.rows_part(rows));
        for part in parts {
            let target = target.columns_part(part * hidden..(part + 1) * hidden);
            self.project(target, input, &layer.projections[part], self.head_columns());
        }
    }

    /// One layer on all tokens, `hidden` to `hidden`.
    fn layer(&self, layer: &Layer, projected: Block) -> Result<(), Broken> {
        self.project_parts(layer, projected, 0..3);
        // By columns a member attends with the heads that it has projected itself; by rows it needs the others' keys.
        if self.share == Share::Rows {
            self.member.meet()?;
        }
        let rows = self.my_rows(self.batch.tokens());
        for start in rows.clone().step_by(BLOCK_ROWS) {
            let block = start..rows.end.min(start + BLOCK_ROWS);
            let context = self.own_or_shared(self.matrices.context, block.len());
            let mut token = block.start;
            while token < block.end {
                let sequence = self.batch.range(self.batch.sequence_at(token));
                let end = block.end.min(sequence.end);
                let queries = projected.part(token..end, 0..self.encoder.geometry.hidden);
                self.attend(queries, projected, sequence, context.rows_part(token - start..end - start));
                token = end;
            }
            self.settle()?;
            self.second_half(layer, self.matrices.hidden.rows_part(block), context)?;
        }
        Ok(())
    }

    /// The last layer where only each sequence's first token counts: keys and values of all tokens, everything else of
    /// one row per sequence, into `pooled`.
    fn last_layer_of_first_tokens(&self, layer: &Layer, projected: Block) -> Result<(), Broken> {
        self.project_parts(layer, projected, 1..3);
        self.member.meet()?;
        for sequence in self.own_rows(self.batch.sequences()) {
            // SAFETY: own row of `pooled`; `hidden` was complete at the meeting and is not written again.
            let (target, first) = unsafe {
                let first = self.matrices.hidden.row(self.batch.range(sequence).start);
                (self.matrices.pooled.row_mut(sequence), first)
            };
            target.copy_from_slice(first);
        }
        self.settle()?;
        let rows = self.my_rows(self.batch.sequences());
        let queries = self.matrices.pooled_query;
        let input = self.matrices.pooled.rows_part(rows.clone());
        self.project(queries.rows_part(rows.clone()), input, &layer.projections[0], self.head_columns());
        for start in rows.clone().step_by(BLOCK_ROWS) {
            let block = start..rows.end.min(start + BLOCK_ROWS);
            let context = self.own_or_shared(self.matrices.context, block.len());
            for sequence in block.clone() {
                let query = queries.rows_part(sequence..sequence + 1);
                let row = sequence - start;
                self.attend(query, projected, self.batch.range(sequence), context.rows_part(row..row + 1));
            }
            self.settle()?;
            self.second_half(layer, self.matrices.pooled.rows_part(block), context)?;
        }
        Ok(())
    }

    /// This member's first `rows` of a matrix that has an equal part for each member.
    fn own(&self, matrix: Block, rows: usize) -> Block {
        let part = matrix.rows() / self.member.count;
        matrix.rows_part(self.member.index * part..(self.member.index + 1) * part).rows_part(0..rows)
    }

    /// The same, but the matrix's very first rows, for all members, when they share columns.
    fn own_or_shared(&self, matrix: Block, rows: usize) -> Block {
        match self.share {
            Share::Rows => self.own(matrix, rows),
            Share::Columns => matrix.rows_part(0..rows),
        }
    }

    /// Attention of some `queries` of one sequence, given by its rows of `projected`, with this member's heads.
    fn attend(&self, queries: Block, projected: Block, sequence: Range<usize>, context: Block) {
        let Geometry { hidden, heads, .. } = self.encoder.geometry;
        let head_width = hidden / heads;
        for first in self.head_columns().step_by(head_width) {
            let head = first..first + head_width;
            let keys = projected.part(sequence.clone(), hidden + head.start..hidden + head.end);
            let values = projected.part(sequence.clone(), 2 * hidden + head.start..2 * hidden + head.end);
            let panels = self.panels(values);
            for start in (0..queries.rows()).step_by(QUERIES) {
                let rows = start..queries.rows().min(start + QUERIES);
                let context = context.part(rows.clone(), head.clone());
                self.attend_with_head(queries.part(rows, head.clone()), keys, panels.clone(), context);
            }
        }
    }

    /// A head's values as panels: where they lie, but for columns that fill no panel, which are copied.
    fn panels(&self, values: Block) -> impl Iterator<Item = Block> + Clone {
        let whole = values.columns() / PANEL * PANEL;
        let rest = values.columns_part(whole..values.columns());
        let copy = self.own(self.matrices.values, values.rows());
        if rest.columns() > 0 {
            for row in 0..rest.rows() {
                // SAFETY: own copy; the values are of own heads or were complete at the last meeting.
                unsafe { copy.row_mut(row)[..rest.columns()].copy_from_slice(rest.row(row)) };
            }
        }
        let in_place = (0..whole).step_by(PANEL).map(move |first| values.columns_part(first..first + PANEL));
        in_place.chain((rest.columns() > 0).then_some(copy))
    }

    /// At most [`QUERIES`] queries of one head. Scores stand in columns, one per query, so that their exponentials and
    /// sums need no adding across a register and the second product reads them as they lie.
    fn attend_with_head(&self, queries: Block, keys: Block, values: impl Iterator<Item = Block>, context: Block) {
        let level = self.encoder.level;
        let factor = 1.0 / (queries.columns() as f32).sqrt();
        let panel = self.own(self.matrices.queries, queries.columns());
        let scores = self.own(self.matrices.scores, keys.rows());
        let mut factors = [0.0; QUERIES];
        // SAFETY: own panel and scores; own rows or own columns of the context; queries, keys and values of own heads,
        // or complete at the last meeting.
        unsafe {
            let columns = panel.floats_mut();
            for query in 0..queries.rows() {
                for (value, column) in queries.row(query).iter().zip(columns.chunks_exact_mut(QUERIES)) {
                    column[query] = value * factor;
                }
            }
            multiply_panel(level, scores, keys, panel);
            level.softmax_columns(scores.floats_mut(), &mut factors);
            let probabilities = scores.transposed().rows_part(0..queries.rows());
            for (index, values) in values.enumerate() {
                let columns = index * PANEL..context.columns().min((index + 1) * PANEL);
                multiply_panel(level, context.columns_part(columns), probabilities, values);
            }
            for (query, factor) in factors.iter().enumerate().take(queries.rows()) {
                level.scale(context.row_mut(query), *factor);
            }
        }
    }

    /// From the context to the layer's result, in place in `residual`; the same rows in both.
    fn second_half(&self, layer: &Layer, residual: Block, context: Block) -> Result<(), Broken> {
        let Geometry { hidden, intermediate, .. } = self.encoder.geometry;
        let inner = self.own_or_shared(self.matrices.inner, residual.rows());
        let (columns, inner_columns) = (self.my_columns(hidden, PANEL), self.my_columns(intermediate, PANEL));

        self.add_projection(residual, context, &layer.attention_output, columns.clone());
        self.settle()?;
        self.norm(residual, &layer.attention_norm);
        self.settle()?;
        let mine = inner.columns_part(inner_columns.clone());
        self.project(inner, residual, &layer.intermediate, inner_columns);
        for row in 0..mine.rows() {
            // SAFETY: own inner, or own columns of it.
            self.encoder.activate(unsafe { mine.row_mut(row) });
        }
        self.settle()?;
        self.add_projection(residual, inner, &layer.output, columns);
        self.settle()?;
        self.norm(residual, &layer.output_norm);
        self.settle()
    }

    /// Normalises the rows of `residual`: all of them by rows, where they are all own, or this member's part.
    fn norm(&self, residual: Block, norm: &LayerNorm) {
        let rows = match self.share {
            Share::Rows => 0..residual.rows(),
            Share::Columns => self.own_rows(residual.rows()),
        };
        for row in rows {
            // SAFETY: own row.
            let row = unsafe { residual.row_mut(row) };
            let epsilon = self.encoder.geometry.layer_norm_eps;
            self.encoder.level.layer_norm(row, norm.weight.values(), norm.bias.values(), epsilon);
        }
    }

    /// Means of each sequence's rows, into `pooled`.
    fn mean(&self) {
        for sequence in self.own_rows(self.batch.sequences()) {
            let tokens = self.batch.range(sequence);
            let factor = 1.0 / tokens.len() as f32;
            // SAFETY: own row of `pooled`; `hidden` was complete at the last meeting and is not written again.
            unsafe {
                let target = self.matrices.pooled.row_mut(sequence);
                target.fill(0.0);
                for token in tokens {
                    self.encoder.level.add(target, self.matrices.hidden.row(token));
                }
                self.encoder.level.scale(target, factor);
            }
        }
    }

    /// From `pooled` to the outputs: each sequence by one member.
    fn finish(&self) -> Result<(), Broken> {
        let rows = self.own_rows(self.batch.sequences());
        let pooled = self.matrices.pooled.rows_part(rows.clone());
        let outputs = self.matrices.outputs.rows_part(rows.clone());
        if let Some(Classifier { dense, output }) = &self.encoder.classifier {
            let transformed = self.matrices.pooled_dense.rows_part(rows.clone());
            self.project(transformed, pooled, dense, 0..dense.outputs);
            for row in 0..rows.len() {
                // SAFETY: own row.
                unsafe { transformed.row_mut(row) }.iter_mut().for_each(|value| *value = value.tanh());
            }
            self.project(outputs, transformed, output, 0..output.outputs);
            return Ok(());
        }
        for row in 0..rows.len() {
            // SAFETY: own rows.
            let (target, source) = unsafe { (outputs.row_mut(row), pooled.row(row)) };
            target.copy_from_slice(source);
            if self.encoder.normalize {
                self.encoder.level.l2_normalize(target);
            }
        }
        Ok(())
    }
}
