//! The OpenAI family: `POST /v1/embeddings`, for embedding models as OpenAI has it and for rerankers as the old server had.
//!
//! `input` is a string, a list of strings, a list of token ids or a list of such lists; one form a request, and never
//! empty anywhere. Token ids are taken as they are, without specials, and cut on the right where they are too many. A
//! reranker takes `query` besides, and answers a bare number where a vector would be, whatever the encoding format: the
//! official client asks for base64 by default and hands numbers through.

use super::json::{Elements, EmptyText, Fields, Reader, Value};
use super::write::{self, NonFinite, Vector};
use super::{
    Answer, Catalog, Entry, Expected, Family, Field, Format, Item, Kind, Options, Outline, Place, Reject, Words, kept,
};
use crate::job::Span;
use crate::model::Task;

const EMBEDDINGS_TAKES: &str =
    "/v1/embeddings takes model, a name that GET /v1/models lists, and input, one or more texts or lists of token ids";

pub(super) fn parse(catalog: &Catalog, fields: &Fields<'_, '_>, reader: &mut Reader<'_>) -> Result<Outline, Reject> {
    let missing = |field| Reject::Missing { field, takes: EMBEDDINGS_TAKES };
    let name = fields.model.ok_or(missing(Field::Model))?.text(Place::of(Field::Model), Expected::Text)?;
    let name_in_words = Words::new(name.as_bytes());
    let model = catalog.find(name).ok_or(Reject::UnknownModel { name: name_in_words })?;
    let entry = catalog.entry(model);
    // A misplaced or missing query says more about what went wrong than whatever else is wrong.
    match (entry.task, fields.query) {
        (Task::Nli, _) => return Err(Reject::WrongTask { name: name_in_words, task: entry.task }),
        (Task::Embedding, Some(_)) => return Err(Reject::QueryUnwanted { name: name_in_words }),
        (Task::Reranking, None) => return Err(Reject::QueryMissing { name: name_in_words }),
        (Task::Embedding, None) | (Task::Reranking, Some(_)) => {}
    }
    let input = fields.input.ok_or(missing(Field::Input))?;
    let options = Options::read(entry, fields)?;
    let format = format(fields)?;
    let mut lists = Lists { entry, truncate: options.truncate, cut: 0 };
    let ids = match fields.query {
        None => inputs(input, &mut lists, reader)?,
        Some(query) => {
            let query = reader.text(query, Place::of(Field::Query), Expected::Text, EmptyText::Refused)?;
            reader.texts(input, Field::Input, EmptyText::Refused, |document| Item::Pair(query, document))?;
            Form::Texts
        }
    };
    let prompt = match ids {
        Form::Texts => options.prompt,
        Form::Ids if options.prompt_named => return Err(Reject::PromptWithIds),
        Form::Ids => None,
    };
    Ok(Outline {
        model,
        task: entry.task,
        family: Family::OpenAi,
        items: reader.inputs.items.len() as u32,
        format,
        dimensions: options.dimensions,
        truncate: options.truncate,
        prompt,
        lists_cut: lists.cut,
    })
}

fn format(fields: &Fields<'_, '_>) -> Result<Format, Reject> {
    let Some(value) = fields.encoding_format else { return Ok(Format::Float) };
    match value.text(Place::of(Field::EncodingFormat), Expected::Text)? {
        "float" => Ok(Format::Float),
        "base64" => Ok(Format::Base64),
        other => Err(Reject::BadEncodingFormat { found: Words::new(other.as_bytes()) }),
    }
}

/// What a request's `input` is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Texts,
    Ids,
}

/// Reads any form of `input`; a list is taken to be of its first element's form, and what differs later is refused.
fn inputs(input: Value<'_, '_>, lists: &mut Lists<'_>, reader: &mut Reader<'_>) -> Result<Form, Reject> {
    let place = Place::of(Field::Input);
    let Some(mut elements) = input.list() else {
        let text = reader.text(input, place, Expected::Input, EmptyText::Refused)?;
        reader.inputs.items.push(Item::Text(text));
        return Ok(Form::Texts);
    };
    let whole = elements;
    let first = elements.next().ok_or(Reject::EmptyList { place })?;
    match first.kind() {
        Kind::Text => {
            reader.texts(input, Field::Input, EmptyText::Refused, Item::Text)?;
            Ok(Form::Texts)
        }
        Kind::Number | Kind::Fraction => {
            lists.read(whole, place, reader)?;
            Ok(Form::Ids)
        }
        Kind::List => {
            reader.check_count(whole.len(), place)?;
            for (index, element) in (0..).zip(whole) {
                let place = place.element(index);
                let wrong = Reject::WrongType { place, expected: Expected::TokenIds, found: element.kind() };
                lists.read(element.list().ok_or(wrong)?, place, reader)?;
            }
            Ok(Form::Ids)
        }
        found @ (Kind::Null | Kind::Boolean | Kind::Object) => {
            Err(Reject::WrongType { place: place.element(0), expected: Expected::InputElement, found })
        }
    }
}

/// Lists of token ids for one model.
struct Lists<'a> {
    entry: &'a Entry,
    truncate: bool,
    /// How many lists were cut.
    cut: u32,
}

impl Lists<'_> {
    /// Adds one list of ids as an item. Ids that are cut off are checked like the others: a fault in them is one as well.
    fn read(&mut self, ids: Elements<'_, '_>, place: Place, reader: &mut Reader<'_>) -> Result<(), Reject> {
        let (count, max) = (ids.len(), self.entry.max_length as usize);
        if count == 0 {
            return Err(Reject::EmptyList { place });
        }
        if count > max && !self.truncate {
            return Err(Reject::TextTooLong { place, tokens: count as u32, max: max as u32 });
        }
        let start = reader.inputs.ids.len();
        for (index, id) in (0..).zip(ids) {
            let place = place.element(index);
            let id = id.whole(place, Expected::TokenId)?;
            let vocabulary = self.entry.vocabulary;
            if !(0..i128::from(vocabulary)).contains(&id) {
                return Err(Reject::TokenOutside { place, id, vocabulary });
            }
            if (index as usize) < max {
                reader.inputs.ids.push(id as u32);
            }
        }
        self.cut += u32::from(count > max);
        let length = reader.inputs.ids.len() - start;
        reader.inputs.items.push(Item::Ids(Span { start: start as u32, length: length as u32 }));
        Ok(())
    }
}

const EMBEDDING_START: &[u8] = b"{\"object\":\"embedding\",\"embedding\":";
const RERANKING_START: &[u8] = b"{\"object\":\"reranking\",\"embedding\":";

/// Everything around the items but the model's name and the two counts, a little more than there is.
const ENVELOPE_BYTES: usize = 128;

pub(super) fn answer_bytes_max(outline: &Outline, entry: &Entry) -> usize {
    let kept = kept(outline, entry);
    let value = match (outline.task, outline.format) {
        (Task::Embedding, Format::Float) => "[]".len() + kept * write::VALUE_BYTES_MAX,
        (Task::Embedding, Format::Base64) => "\"\"".len() + write::base64_bytes(kept * 4),
        (Task::Reranking | Task::Nli, _) => write::VALUE_BYTES_MAX,
    };
    let per_item = EMBEDDING_START.len() + value + ",\"index\":},".len() + write::COUNT_BYTES_MAX;
    let envelope = ENVELOPE_BYTES + write::string_bytes(&entry.name) + 2 * write::COUNT_BYTES_MAX;
    envelope + outline.items as usize * per_item
}

pub(super) fn encode(answer: &Answer<'_>, out: &mut Vec<u8>) -> Result<(), Reject> {
    let (outline, entry) = (&answer.outline, answer.entry);
    out.extend_from_slice(b"{\"object\":\"list\",\"data\":[");
    for (index, row) in answer.rows() {
        if index > 0 {
            out.push(b',');
        }
        value(out, outline, entry, row).map_err(|NonFinite| Reject::NonFinite { place: outline.place(index) })?;
        out.extend_from_slice(b",\"index\":");
        write::count(out, u64::from(index));
        out.push(b'}');
    }
    out.extend_from_slice(b"],\"model\":");
    write::string(out, &entry.name);
    out.extend_from_slice(b",\"usage\":{\"prompt_tokens\":");
    write::count(out, answer.prompt_tokens);
    out.extend_from_slice(b",\"total_tokens\":");
    write::count(out, answer.prompt_tokens);
    out.extend_from_slice(b"}}");
    Ok(())
}

fn value(out: &mut Vec<u8>, outline: &Outline, entry: &Entry, row: &[u8]) -> Result<(), NonFinite> {
    match outline.task {
        Task::Embedding => {
            let vector = Vector::shortened(row, kept(outline, entry), entry.normalize)?;
            out.extend_from_slice(EMBEDDING_START);
            match outline.format {
                Format::Float => write::list(out, vector),
                Format::Base64 => write::base64(out, vector),
            }
        }
        // No NLI model gets past `parse` in this family.
        Task::Reranking | Task::Nli => {
            out.extend_from_slice(RERANKING_START);
            write::value(out, super::native::first_value(row))
        }
    }
}
