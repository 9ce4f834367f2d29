//! The native family: `POST /infer/{model}`, with the old server's fields and answer shapes.
//!
//! What the model is for decides which fields are read: `documents`; `query` and `documents`; `premises` and `hypotheses`.
//! A bare string is one text, never one per character. Besides, `truncate`, `prompt_name` and, for embeddings, `dimensions`
//! may be given; everything else is passed over, `model` too, since the path has named it.

use super::json::{EmptyText, Fields, Reader, Texts, Value};
use super::write::{self, NonFinite, Vector};
use super::{Answer, Entry, Expected, Family, Field, Format, Item, Options, Outline, Place, Reject, kept};
use crate::model::Task;

const EMBEDDING_TAKES: &str = "an embedding model takes documents, a string or a list of strings";
const RERANKING_TAKES: &str = "a reranker takes query, a string, and documents, a string or a list of strings";
const NLI_TAKES: &str = "an NLI model takes premises and hypotheses, two lists of strings of one length";

pub(super) fn parse(
    model: u32,
    entry: &Entry,
    fields: &Fields<'_, '_>,
    reader: &mut Reader<'_>,
) -> Result<Outline, Reject> {
    let options = Options::read(entry, fields)?;
    match entry.task {
        Task::Embedding => {
            let documents = required(fields.documents, Field::Documents, EMBEDDING_TAKES)?;
            reader.texts(documents, Field::Documents, EmptyText::Allowed, Item::Text)?;
        }
        Task::Reranking => {
            let query = required(fields.query, Field::Query, RERANKING_TAKES)?;
            let documents = required(fields.documents, Field::Documents, RERANKING_TAKES)?;
            let query = reader.text(query, Place::of(Field::Query), Expected::Text, EmptyText::Allowed)?;
            reader.texts(documents, Field::Documents, EmptyText::Allowed, |document| Item::Pair(query, document))?;
        }
        Task::Nli => {
            let premises = required(fields.premises, Field::Premises, NLI_TAKES)?;
            let hypotheses = required(fields.hypotheses, Field::Hypotheses, NLI_TAKES)?;
            pairs(premises, hypotheses, reader)?;
        }
    }
    Ok(Outline {
        model,
        task: entry.task,
        family: Family::Native,
        items: reader.inputs.items.len() as u32,
        format: Format::Float,
        dimensions: options.dimensions,
        truncate: options.truncate,
        prompt: options.prompt,
        lists_cut: 0,
    })
}

fn required<'t, 'b>(value: Option<Value<'t, 'b>>, field: Field, takes: &'static str) -> Result<Value<'t, 'b>, Reject> {
    value.ok_or(Reject::Missing { field, takes })
}

/// Pairs each premise with the hypothesis of the same index. Lengths are compared before anything is read.
fn pairs(premises: Value<'_, '_>, hypotheses: Value<'_, '_>, reader: &mut Reader<'_>) -> Result<(), Reject> {
    let premises = Texts::of(premises, Field::Premises);
    let hypotheses = Texts::of(hypotheses, Field::Hypotheses);
    reader.check_count(premises.len(), Place::of(Field::Premises))?;
    reader.check_count(hypotheses.len(), Place::of(Field::Hypotheses))?;
    if premises.len() != hypotheses.len() {
        let (premises, hypotheses) = (premises.len() as u32, hypotheses.len() as u32);
        return Err(Reject::UnequalLengths { premises, hypotheses });
    }
    for (premise, hypothesis) in premises.zip(hypotheses) {
        let [premise, hypothesis] = [premise, hypothesis]
            .map(|(value, place, expected)| reader.text(value, place, expected, EmptyText::Allowed));
        reader.inputs.items.push(Item::Pair(premise?, hypothesis?));
    }
    Ok(())
}

/// Keys, brackets and commas around the values, a little more than there are.
const ENVELOPE_BYTES: usize = 64;

pub(super) fn answer_bytes_max(outline: &Outline, entry: &Entry) -> usize {
    let numbers = kept(outline, entry) * write::VALUE_BYTES_MAX;
    let per_item = match outline.task {
        Task::Embedding => "[],".len() + numbers,
        Task::Reranking => write::VALUE_BYTES_MAX,
        Task::Nli => "[],".len() + numbers + label_bytes_max(entry) + ",".len(),
    };
    ENVELOPE_BYTES + write::MILLISECONDS_BYTES_MAX + outline.items as usize * per_item
}

fn label_bytes_max(entry: &Entry) -> usize {
    let unnamed = "\"LABEL_\"".len() + write::COUNT_BYTES_MAX;
    entry.labels.iter().map(|label| write::string_bytes(label)).max().unwrap_or(0).max(unnamed)
}

pub(super) fn encode(answer: &Answer<'_>, out: &mut Vec<u8>) -> Result<(), Reject> {
    let (outline, entry) = (&answer.outline, answer.entry);
    match outline.task {
        Task::Embedding => {
            out.extend_from_slice(b"{\"embeddings\":[");
            each(answer, out, |out, row| {
                write::list(out, Vector::shortened(row, kept(outline, entry), entry.normalize)?)
            })?;
        }
        Task::Reranking => {
            out.extend_from_slice(b"{\"scores\":[");
            each(answer, out, |out, row| write::value(out, first_value(row)))?;
        }
        Task::Nli => {
            out.extend_from_slice(b"{\"predictions\":[");
            each(answer, out, |out, row| {
                label(out, entry, largest(row));
                Ok(())
            })?;
            out.extend_from_slice(b"],\"logits\":[");
            each(answer, out, |out, row| write::list(out, Vector::whole(row)))?;
        }
    }
    out.extend_from_slice(b"],\"elapsed_ms\":");
    write::milliseconds(out, answer.device_ns);
    out.push(b'}');
    Ok(())
}

/// Writes something for each sequence, with commas between.
fn each(
    answer: &Answer<'_>,
    out: &mut Vec<u8>,
    mut write: impl FnMut(&mut Vec<u8>, &[u8]) -> Result<(), NonFinite>,
) -> Result<(), Reject> {
    for (index, row) in answer.rows() {
        if index > 0 {
            out.push(b',');
        }
        write(out, row).map_err(|NonFinite| Reject::NonFinite { place: answer.outline.place(index) })?;
    }
    Ok(())
}

/// The score among a reranker's values.
pub(super) fn first_value(row: &[u8]) -> f32 {
    row.first_chunk().map_or(f32::NAN, |bytes| f32::from_le_bytes(*bytes))
}

/// The index of the largest value, of equal ones the first.
fn largest(row: &[u8]) -> usize {
    let mut best = (0, f32::NEG_INFINITY);
    for (index, bytes) in row.as_chunks::<4>().0.iter().enumerate() {
        let value = f32::from_le_bytes(*bytes);
        if value > best.1 {
            best = (index, value);
        }
    }
    best.0
}

/// Writes the class's name, or `LABEL_i` for one that has none, as Hugging Face calls it.
fn label(out: &mut Vec<u8>, entry: &Entry, index: usize) {
    match entry.labels.get(index) {
        Some(label) => write::string(out, label),
        None => {
            out.extend_from_slice(b"\"LABEL_");
            write::count(out, index as u64);
            out.push(b'"');
        }
    }
}
