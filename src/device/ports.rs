//! What a file that others made wants and gives, read from the names, types and shapes of its inputs and outputs: the same
//! for an `.onnx` and for a serialized engine.
//!
//! Our own files say it exactly. Those that others exported agree on the substance (token ids, a mask, perhaps token types; a
//! vector per text, or one per token) and on little else, so tensors are taken by role: an input by what its name contains,
//! an output by its shape, its name deciding only where several fit, or the configuration naming it.
//!
//! Invariant: [`Ports`] have token ids, and a mask if padded; a tensor that is not understood is an error naming it, as a
//! guess would compute something.

use super::Layout;
use crate::model::convert::{
    ATTENTION_MASK, CLS_INDEX, EMBEDDINGS, INPUT_IDS, LOGITS, POSITION_IDS, SCORES, SEGMENT_IDS, TOKEN_TYPE_IDS,
};
use crate::model::engine::{ElementType, Tensor};
use crate::model::{Model, Pooling, Task};

/// What an input is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Ids,
    Mask,
    Types,
    Positions,
    Segments,
    Firsts,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    pub name: String,
    pub role: Role,
    /// int64 instead of int32.
    pub is_wide: bool,
}

/// How token vectors become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    First,
    Mean,
}

impl Pool {
    /// Appends the pooled vector of one sequence's tokens, `[tokens, width]` and never empty.
    pub fn append(self, tokens: &[f32], width: usize, outputs: &mut Vec<f32>) {
        let start = outputs.len();
        outputs.extend_from_slice(&tokens[..width]);
        if self == Pool::Mean {
            let count = (tokens.len() / width) as f32;
            let pooled = &mut outputs[start..];
            for token in tokens[width..].chunks_exact(width) {
                pooled.iter_mut().zip(token).for_each(|(sum, value)| *sum += value);
            }
            pooled.iter_mut().for_each(|sum| *sum /= count);
        }
    }
}

/// Divides by the L2 norm; a zero vector stays.
pub fn normalize(vector: &mut [f32]) {
    let norm = vector.iter().map(|value| value * value).sum::<f32>().sqrt().max(1e-12);
    vector.iter_mut().for_each(|value| *value /= norm);
}

/// What an output holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `[sequences, width]`
    Pooled,
    /// `[sequences]`
    Column,
    /// `[rows, length, width]`, one vector per token: ours to pool.
    Hidden(Pool),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    pub name: String,
    pub kind: Kind,
    pub element: ElementType,
    /// Values per sequence; 0 where only a run can tell.
    pub width: usize,
    /// Whether vectors are still to be divided by their L2 norm. Doing it to one that is already changes nothing.
    pub normalize: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ports {
    pub layout: Layout,
    pub inputs: Vec<Input>,
    pub output: Output,
}

impl Ports {
    /// Takes each tensor by its role. `named` is the output that the configuration asks for.
    ///
    /// # Errors
    /// A sentence that names the tensor at fault, what it is and what is needed.
    pub fn read(inputs: &[Tensor], outputs: &[Tensor], model: &Model) -> Result<Ports, String> {
        let is_packed = inputs.iter().any(|tensor| tensor.name == CLS_INDEX);
        let layout = if is_packed { Layout::Packed } else { Layout::Padded };
        let mut known: Vec<Input> = Vec::new();
        for tensor in inputs {
            let role = role(&tensor.name, layout)
                .filter(|role| known.iter().all(|input| input.role != *role))
                .ok_or_else(|| {
                    format!(
                        "input `{}` is not understood; known are token ids, an attention mask, token types, and the \
                         inputs of the packed layout",
                        tensor.name
                    )
                })?;
            known.push(input(tensor, role)?);
        }
        let required: &[(Role, &str)] = match layout {
            Layout::Padded => &[(Role::Ids, INPUT_IDS), (Role::Mask, ATTENTION_MASK)],
            Layout::Packed => &[(Role::Ids, INPUT_IDS), (Role::Positions, POSITION_IDS), (Role::Segments, SEGMENT_IDS)],
        };
        for (role, name) in required {
            if known.iter().all(|input| input.role != *role) {
                let names: Vec<&str> = inputs.iter().map(|tensor| tensor.name.as_str()).collect();
                return Err(format!("no input `{name}` (it has {})", names.join(", ")));
            }
        }
        let output = output(outputs, model)?;
        if layout == Layout::Packed && matches!(output.kind, Kind::Hidden(_)) {
            return Err(format!(
                "output `{}` has a vector per token; packed rows are pooled in the graph",
                output.name
            ));
        }
        Ok(Ports { layout, inputs: known, output })
    }

    /// Whether the width that was found is one that the task can have.
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

/// Checks an input's type and rank.
fn input(tensor: &Tensor, role: Role) -> Result<Input, String> {
    let name = tensor.name.clone();
    let is_wide = match tensor.element {
        ElementType::I32 => false,
        ElementType::I64 => true,
        other @ (ElementType::F32 | ElementType::F16 | ElementType::Bf16 | ElementType::Other(_)) => {
            return Err(format!("input `{name}` is {}; int32 or int64 is needed", other.name()));
        }
    };
    let rank = match role {
        Role::Firsts => 1,
        Role::Ids | Role::Mask | Role::Types | Role::Positions | Role::Segments => 2,
    };
    if tensor.shape.len() != rank {
        return Err(format!("input `{name}` has shape {:?}; {rank} dimensions are needed", tensor.shape));
    }
    if tensor.on_host {
        return Err(format!("input `{name}` is a shape tensor, read on the host; token tensors lie on the device"));
    }
    Ok(Input { name, role, is_wide })
}

/// Chooses the output.
fn output(outputs: &[Tensor], model: &Model) -> Result<Output, String> {
    let candidates: Vec<&Tensor> = outputs.iter().filter(|tensor| is_candidate(tensor)).collect();
    let chosen = match (&model.output, model.task) {
        (Some(name), _) => candidates.iter().copied().find(|tensor| tensor.name == *name),
        (None, Task::Embedding) => {
            // A BERT pooler's output is no sentence embedding: sentence models are trained on what lies before it.
            let is_pooled = |tensor: &&Tensor| tensor.shape.len() == 2 && !tensor.name.contains("pooler");
            let pooled: Vec<_> = candidates.iter().copied().filter(is_pooled).collect();
            let hidden: Vec<_> = candidates.iter().copied().filter(|tensor| tensor.shape.len() == 3).collect();
            choose(&pooled, &[EMBEDDINGS, "sentence_embedding", "sentence_embeddings", "embedding", "pooled"])
                .or_else(|| choose(&hidden, &["last_hidden_state", "token_embeddings", "hidden_states"]))
        }
        (None, Task::Reranking | Task::Nli) => {
            let flat: Vec<_> = candidates.iter().copied().filter(|tensor| tensor.shape.len() < 3).collect();
            choose(&flat, &[SCORES, LOGITS, "score", "output"])
        }
    };
    let chosen = chosen.ok_or_else(|| uncertain(outputs, model))?;
    let pool = match model.pooling {
        Pooling::Cls => Pool::First,
        Pooling::Mean => Pool::Mean,
    };
    let last = chosen.shape.last().and_then(|&size| usize::try_from(size).ok()).unwrap_or(0);
    let (kind, width) = match chosen.shape.len() {
        1 => (Kind::Column, 1),
        2 => (Kind::Pooled, last),
        _ => (Kind::Hidden(pool), last),
    };
    let normalize = model.normalize && model.task == Task::Embedding;
    Ok(Output { name: chosen.name.clone(), kind, element: chosen.element, width, normalize })
}

fn uncertain(outputs: &[Tensor], model: &Model) -> String {
    let all: Vec<String> = outputs
        .iter()
        .map(|tensor| format!("`{}` {} {:?}", tensor.name, tensor.element.name(), tensor.shape))
        .collect();
    let all = all.join(", ");
    if let Some(name) = &model.output {
        return format!(
            "no output `{name}` of floats with one to three dimensions, which the configuration names ({all})"
        );
    }
    let wanted = match model.task {
        Task::Embedding => EMBEDDINGS,
        Task::Reranking => SCORES,
        Task::Nli => LOGITS,
    };
    format!(
        "none of its outputs is certain to be the answer ({all}); needed is one named `{wanted}`, the only one of its kind, \
         or the one that the configuration names with `output`"
    )
}

/// Whether it could be the answer: its rank decides what it holds.
fn is_candidate(tensor: &Tensor) -> bool {
    let is_float = matches!(tensor.element, ElementType::F32 | ElementType::F16 | ElementType::Bf16);
    is_float && (1..=3).contains(&tensor.shape.len()) && !tensor.on_host
}

/// The first of the known names, else the only one.
fn choose<'t>(candidates: &[&'t Tensor], names: &[&str]) -> Option<&'t Tensor> {
    let named = names.iter().find_map(|name| candidates.iter().copied().find(|tensor| tensor.name == *name));
    match (named, candidates) {
        (Some(named), _) => Some(named),
        (None, [only]) => Some(*only),
        (None, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pooling_takes_the_first_token_or_the_mean_of_all() {
        let tokens = [1.0, 2.0, 3.0, 6.0, 5.0, 1.0];
        let mut outputs = vec![9.0];
        Pool::First.append(&tokens, 2, &mut outputs);
        Pool::Mean.append(&tokens, 2, &mut outputs);
        assert_eq!(outputs, [9.0, 1.0, 2.0, 3.0, 3.0]);
        let mut vector = [3.0, 4.0];
        normalize(&mut vector);
        assert_eq!(vector, [0.6, 0.8]);
        let mut zero = [0.0; 3];
        normalize(&mut zero);
        assert_eq!(zero, [0.0; 3]);
    }
}
