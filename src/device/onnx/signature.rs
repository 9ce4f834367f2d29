//! What an `.onnx` file wants and gives, read from the names, types and shapes of its ports.
//!
//! Our own files say it exactly. Those that others exported agree on the substance (token ids, a mask, perhaps token types; a
//! vector per text, or one per token) and on little else, so ports are taken by role: an input by what its name contains,
//! an output by its shape, its name deciding only where several fit.
//!
//! Invariant: a [`Signature`] has token ids and, if padded, a mask; a port that is not understood is an error naming it, as
//! a guess would compute something.

use ort::session::Session;
use ort::value::{Outlet, TensorElementType};

use super::batch::Pool;
use crate::device::{Bucket, Layout};
use crate::model::convert::{
    ATTENTION_MASK, CLS_INDEX, EMBEDDINGS, INPUT_IDS, LOGITS, Metadata, POSITION_IDS, SCORES, SEGMENT_IDS,
    TOKEN_TYPE_IDS,
};
use crate::model::{Model, Pooling, Task};

/// What an input is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Ids,
    Mask,
    Types,
    Positions,
    Segments,
    Firsts,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Input {
    pub name: String,
    pub role: Role,
    /// int64 instead of int32.
    pub is_wide: bool,
}

/// What an output holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `[sequences, width]`
    Pooled,
    /// `[sequences]`
    Column,
    /// `[rows, length, width]`, one vector per token: ours to pool.
    Hidden(Pool),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Output {
    pub name: String,
    pub kind: Kind,
    /// Values per sequence; known after the trial run.
    pub width: usize,
    /// Whether vectors are still to be divided by their L2 norm. Doing it to one that is already changes nothing.
    pub normalize: bool,
}

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
    pub inputs: Vec<Input>,
    pub output: Output,
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
        let is_packed = session.inputs().iter().any(|port| port.name() == CLS_INDEX);
        let layout = if is_packed { Layout::Packed } else { Layout::Padded };
        let mut fixed = Fixed::default();
        let mut inputs = Vec::new();
        for port in session.inputs() {
            let role = role(port.name(), layout)
                .filter(|role| inputs.iter().all(|input: &Input| input.role != *role))
                .ok_or_else(|| {
                    format!(
                        "input `{}` is not understood; known are token ids, an attention mask, token types, and the \
                         inputs of the packed layout",
                        port.name()
                    )
                })?;
            inputs.push(input(port, role, &mut fixed)?);
        }
        let required: &[(Role, &str)] = match layout {
            Layout::Padded => &[(Role::Ids, INPUT_IDS), (Role::Mask, ATTENTION_MASK)],
            Layout::Packed => &[(Role::Ids, INPUT_IDS), (Role::Positions, POSITION_IDS), (Role::Segments, SEGMENT_IDS)],
        };
        for (role, name) in required {
            if inputs.iter().all(|input| input.role != *role) {
                let names: Vec<&str> = session.inputs().iter().map(Outlet::name).collect();
                return Err(format!("no input `{name}` (it has {})", names.join(", ")));
            }
        }
        let unpositioned = metadata.and_then(|metadata| Some((metadata.pad_token? as i32, metadata.max_length as i32)));
        Ok(Signature { inputs, output: output(session, model)?, fixed, unpositioned })
    }

    pub fn layout(&self) -> Layout {
        match self.inputs.iter().any(|input| input.role == Role::Firsts) {
            true => Layout::Packed,
            false => Layout::Padded,
        }
    }

    /// Whether the width that the trial run found is one that the task can have.
    pub fn check_width(&self, model: &Model) -> Result<(), String> {
        let (name, width) = (&self.output.name, self.output.width);
        match model.task {
            Task::Embedding => Ok(()),
            Task::Reranking if width == 1 => Ok(()),
            Task::Reranking => Err(format!("output `{name}` has {width} values; a reranker has one score")),
            Task::Nli if width < 2 => Err(format!("output `{name}` has one value; an NLI model has at least two")),
            Task::Nli if !model.labels.is_empty() && model.labels.len() != width => {
                Err(format!("output `{name}` has {width} values, and there are {} labels", model.labels.len()))
            }
            Task::Nli => Ok(()),
        }
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

fn role(name: &str, layout: Layout) -> Option<Role> {
    match layout {
        Layout::Packed => match name {
            INPUT_IDS => Some(Role::Ids),
            POSITION_IDS => Some(Role::Positions),
            SEGMENT_IDS => Some(Role::Segments),
            TOKEN_TYPE_IDS => Some(Role::Types),
            CLS_INDEX => Some(Role::Firsts),
            _ => None,
        },
        Layout::Padded => {
            let name = name.to_ascii_lowercase();
            let contains = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
            // The order matters: `input_mask` and `token_type_ids` contain words of the roles below them.
            if contains(&["position"]) {
                None
            } else if contains(&["mask"]) {
                Some(Role::Mask)
            } else if contains(&["type", "segment"]) {
                Some(Role::Types)
            } else if contains(&["id", "token", "input"]) {
                Some(Role::Ids)
            } else {
                None
            }
        }
    }
}

/// Checks an input's type and rank, and notes the sizes it fixes.
fn input(port: &Outlet, role: Role, fixed: &mut Fixed) -> Result<Input, String> {
    let name = port.name().to_owned();
    let is_wide = match port.dtype().tensor_type() {
        Some(TensorElementType::Int32) => false,
        Some(TensorElementType::Int64) => true,
        _ => return Err(format!("input `{name}` is {}; int32 or int64 is needed", port.dtype())),
    };
    let shape = port.dtype().tensor_shape().map(|shape| shape.to_vec()).unwrap_or_default();
    let fix = |place: &mut Option<u32>, size: i64| -> Result<(), String> {
        let Some(size) = u32::try_from(size).ok().filter(|&size| size > 0) else {
            return Ok(());
        };
        match *place.get_or_insert(size) {
            known if known == size => Ok(()),
            known => Err(format!("input `{name}` fixes {size} where another fixes {known}")),
        }
    };
    match (role, shape.as_slice()) {
        (Role::Firsts, [sequences]) => fix(&mut fixed.sequences, *sequences)?,
        (Role::Ids | Role::Mask | Role::Types | Role::Positions | Role::Segments, [rows, length]) => {
            fix(&mut fixed.rows, *rows)?;
            fix(&mut fixed.length, *length)?;
        }
        (_, shape) => return Err(format!("input `{name}` has shape {shape:?}; another rank is needed")),
    }
    Ok(Input { name, role, is_wide })
}

/// An output that could be the one: its rank decides what it holds.
struct Candidate<'s> {
    name: &'s str,
    rank: usize,
}

/// Chooses the output.
fn output(session: &Session, model: &Model) -> Result<Output, String> {
    let candidates: Vec<Candidate<'_>> = session.outputs().iter().filter_map(candidate).collect();
    let chosen = match model.task {
        Task::Embedding => {
            // A BERT pooler's output is no sentence embedding: sentence models are trained on what lies before it.
            let is_pooled = |one: &&Candidate<'_>| one.rank == 2 && !one.name.contains("pooler");
            let pooled: Vec<_> = candidates.iter().filter(is_pooled).collect();
            let hidden: Vec<_> = candidates.iter().filter(|one| one.rank == 3).collect();
            choose(&pooled, &[EMBEDDINGS, "sentence_embedding", "sentence_embeddings", "embedding", "pooled"])
                .or_else(|| choose(&hidden, &["last_hidden_state", "token_embeddings", "hidden_states"]))
        }
        Task::Reranking | Task::Nli => {
            let flat: Vec<_> = candidates.iter().filter(|one| one.rank < 3).collect();
            choose(&flat, &[SCORES, LOGITS, "score", "output"])
        }
    };
    let Some(chosen) = chosen else {
        let all: Vec<String> =
            session.outputs().iter().map(|port| format!("`{}` {}", port.name(), port.dtype())).collect();
        return Err(format!(
            "none of its outputs is certain to be the answer ({}); needed is one named `{}` or the only one of its kind",
            all.join(", "),
            match model.task {
                Task::Embedding => EMBEDDINGS,
                Task::Reranking => SCORES,
                Task::Nli => LOGITS,
            }
        ));
    };
    let pool = match model.pooling {
        Pooling::Cls => Pool::First,
        Pooling::Mean => Pool::Mean,
    };
    let kind = match chosen.rank {
        1 => Kind::Column,
        2 => Kind::Pooled,
        _ => Kind::Hidden(pool),
    };
    let normalize = model.normalize && model.task == Task::Embedding;
    Ok(Output { name: chosen.name.to_owned(), kind, width: 0, normalize })
}

fn candidate(port: &Outlet) -> Option<Candidate<'_>> {
    let is_float = matches!(port.dtype().tensor_type(), Some(TensorElementType::Float32 | TensorElementType::Float16));
    let rank = port.dtype().tensor_shape()?.len();
    (is_float && (1..=3).contains(&rank)).then_some(Candidate { name: port.name(), rank })
}

/// The first of the known names, else the only one.
fn choose<'c>(candidates: &[&'c Candidate<'c>], names: &[&str]) -> Option<&'c Candidate<'c>> {
    let named = names.iter().find_map(|name| candidates.iter().find(|one| one.name == *name));
    match (named, candidates) {
        (Some(named), _) => Some(named),
        (None, [only]) => Some(only),
        (None, _) => None,
    }
}
