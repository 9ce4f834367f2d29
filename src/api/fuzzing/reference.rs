//! The reference: the same bodies read with serde_json into a tree, and looked through the slow and obvious way.
//!
//! It gathers everything that is wrong with a body instead of stopping at the first thing, so the order of the parser's checks
//! is free while their sum is not. It may share no reading with the code that it judges: types and limits only, and the
//! bound of an answer, which the answers themselves check.
//!
//! Where it differs from serde_json on purpose, as the parser does: whole numbers beyond 64 bits are refused wherever they
//! stand, `-0` is a whole number, and lists and objects nest at most 64 deep.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::api::{Catalog, Entry, Family, Format, Outline, Route, answer_bytes_max};
use crate::config::Limits;
use crate::model::Task;

const DEPTH_MAX: usize = 64;

/// A request as it was understood.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Understood {
    pub(super) outline: Outline,
    pub(super) items: Vec<UnderstoodItem>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum UnderstoodItem {
    Text(String),
    Pair(String, String),
    Ids(Vec<u32>),
}

#[derive(Clone, Debug, PartialEq)]
enum Json {
    Null,
    Boolean(bool),
    Whole(i128),
    Fraction,
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
        struct AnyJson;
        impl<'de> Visitor<'de> for AnyJson {
            type Value = Json;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("JSON")
            }

            fn visit_unit<E>(self) -> Result<Json, E> {
                Ok(Json::Null)
            }

            fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
                Ok(Json::Boolean(value))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
                Ok(Json::Whole(value.into()))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
                Ok(Json::Whole(value.into()))
            }

            fn visit_f64<E>(self, _value: f64) -> Result<Json, E> {
                Ok(Json::Fraction)
            }

            fn visit_str<E>(self, value: &str) -> Result<Json, E> {
                Ok(Json::Text(value.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Json, A::Error> {
                let mut list = Vec::new();
                while let Some(element) = access.next_element()? {
                    list.push(element);
                }
                Ok(Json::List(list))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Json, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = access.next_entry()? {
                    members.push(member);
                }
                Ok(Json::Object(members))
            }
        }
        deserializer.deserialize_any(AnyJson)
    }
}

impl Json {
    /// Keys, values, and brackets of both hands.
    fn values(&self) -> usize {
        match self {
            Json::Null | Json::Boolean(_) | Json::Whole(_) | Json::Fraction | Json::Text(_) => 1,
            Json::List(elements) => 2 + elements.iter().map(Json::values).sum::<usize>(),
            Json::Object(members) => 2 + members.iter().map(|(_, value)| 1 + value.values()).sum::<usize>(),
        }
    }

    fn depth(&self) -> usize {
        match self {
            Json::Null | Json::Boolean(_) | Json::Whole(_) | Json::Fraction | Json::Text(_) => 0,
            Json::List(elements) => 1 + elements.iter().map(Json::depth).max().unwrap_or(0),
            Json::Object(members) => 1 + members.iter().map(|(_, value)| value.depth()).max().unwrap_or(0),
        }
    }
}

/// What the request is, or the statuses that apply to it.
pub(super) fn read(route: Route, body: &[u8], catalog: &Catalog, limits: &Limits) -> Result<Understood, Vec<u16>> {
    let (prepared, wide) = prepare(body);
    let first = body.iter().find(|byte| !b" \t\r\n".contains(byte));
    let Ok(json) = serde_json::from_slice::<Json>(&prepared) else {
        // What is no JSON may be refused for its many values before anybody sees that.
        return Err(if first == Some(&b'{') { vec![400, 413] } else { vec![400] });
    };
    let Json::Object(members) = &json else { return Err(vec![400]) };
    if json.values() > limits.json_values_max {
        return Err(vec![413]);
    }
    if wide || json.depth() > DEPTH_MAX {
        return Err(vec![400]);
    }
    // The last of a name counts, and null is as good as nothing.
    let field = |name: &str| {
        let last = members.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value);
        last.filter(|value| **value != Json::Null)
    };
    let found = match route {
        Route::Infer { model } => (model, Family::Native),
        Route::Embeddings => match field("model") {
            Some(Json::Text(name)) => match catalog.entries().iter().position(|entry| entry.name == *name) {
                Some(model) => (model as u32, Family::OpenAi),
                None => return Err(vec![404]),
            },
            Some(_) | None => return Err(vec![400]),
        },
        Route::Models | Route::ModelsOpenAi | Route::Ready | Route::Live | Route::Metrics => unreachable!("no body"),
    };
    let entry = catalog.entry(found.0);
    let mut reading = Reading { entry, family: found.1, limits, wrong: Vec::new(), items: Vec::new(), lists_cut: 0 };
    let outline = reading.outline(found.0, &field);
    let bytes = answer_bytes_max(&outline, entry);
    if bytes > limits.answer_bytes_max {
        reading.wrong.push(413);
    }
    if reading.wrong.is_empty() { Ok(Understood { outline, items: reading.items }) } else { Err(reading.wrong) }
}

/// The body with `-0` made `0`, and whether a whole number in it is beyond 64 bits.
fn prepare(body: &[u8]) -> (Vec<u8>, bool) {
    let (mut prepared, mut wide) = (body.to_vec(), false);
    let mut at = 0;
    while at < body.len() {
        let start = at;
        match body[at] {
            b'"' => {
                at += 1;
                while at < body.len() && body[at] != b'"' {
                    at += if body[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
            }
            byte if is_of_number(byte) => {
                while body.get(at).is_some_and(|&byte| is_of_number(byte)) {
                    at += 1;
                }
                let number = std::str::from_utf8(&body[start..at]).expect("digits and signs");
                if number == "-0" {
                    prepared[start] = b' ';
                }
                let digits = number.strip_prefix('-').unwrap_or(number);
                let whole = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
                wide |= whole && number.parse::<i64>().is_err() && number.parse::<u64>().is_err();
            }
            _ => at += 1,
        }
    }
    (prepared, wide)
}

fn is_of_number(byte: u8) -> bool {
    byte.is_ascii_digit() || b"+-.eE".contains(&byte)
}

struct Reading<'a> {
    entry: &'a Entry,
    family: Family,
    limits: &'a Limits,
    wrong: Vec<u16>,
    items: Vec<UnderstoodItem>,
    lists_cut: u32,
}

impl<'a> Reading<'a> {
    fn outline(&mut self, model: u32, field: &dyn Fn(&str) -> Option<&'a Json>) -> Outline {
        let truncate = match field("truncate") {
            None => true,
            Some(Json::Boolean(truncate)) => *truncate,
            Some(_) => self.refuse(400, true),
        };
        let prompts = &self.entry.prompts;
        let named = field("prompt_name").map(|value| match value {
            Json::Text(name) => prompts.iter().position(|prompt| prompt.name == *name).map(|index| index as u32),
            _ => None,
        });
        if named == Some(None) {
            self.wrong.push(400);
        }
        let dimensions = field("dimensions").map(|value| match value {
            Json::Whole(count) if (1..=i128::from(self.entry.width)).contains(count) => *count as u32,
            _ => self.refuse(400, 1),
        });
        if dimensions.is_some() && self.entry.task != Task::Embedding {
            self.wrong.push(400);
        }
        let format = match (self.family, field("encoding_format")) {
            (Family::Native, _) | (_, None) => Format::Float,
            (Family::OpenAi, Some(Json::Text(format))) if format == "float" => Format::Float,
            (Family::OpenAi, Some(Json::Text(format))) if format == "base64" => Format::Base64,
            (Family::OpenAi, Some(_)) => self.refuse(400, Format::Float),
        };
        self.read_items(field, truncate);
        let ids = matches!(self.items.first(), Some(UnderstoodItem::Ids(_)));
        if ids && named.is_some() {
            self.wrong.push(400);
        }
        let prompt = if ids { None } else { named.flatten().or(self.entry.default_prompt) };
        Outline {
            model,
            task: self.entry.task,
            family: self.family,
            items: self.items.len() as u32,
            format,
            dimensions,
            truncate,
            prompt,
            lists_cut: self.lists_cut,
        }
    }

    fn read_items(&mut self, field: &dyn Fn(&str) -> Option<&'a Json>, truncate: bool) {
        match (self.family, self.entry.task) {
            (Family::Native, Task::Embedding) => {
                let documents = self.texts(field("documents"));
                self.items = documents.into_iter().map(UnderstoodItem::Text).collect();
            }
            (Family::Native, Task::Reranking) => self.read_pairs(field("query"), field("documents")),
            (Family::Native, Task::Nli) => {
                let (premises, hypotheses) = (self.texts(field("premises")), self.texts(field("hypotheses")));
                if premises.len() != hypotheses.len() {
                    self.wrong.push(400);
                }
                let pairs = premises.into_iter().zip(hypotheses);
                self.items = pairs.map(|(premise, hypothesis)| UnderstoodItem::Pair(premise, hypothesis)).collect();
            }
            (Family::OpenAi, Task::Reranking) => self.read_pairs(field("query"), field("input")),
            (Family::OpenAi, Task::Nli) => self.wrong.push(400),
            (Family::OpenAi, Task::Embedding) => {
                if field("query").is_some() {
                    self.wrong.push(400);
                }
                self.read_input(field("input"), truncate);
            }
        }
    }

    fn read_pairs(&mut self, query: Option<&Json>, documents: Option<&Json>) {
        let query = self.text(query);
        let documents = self.texts(documents);
        self.items = documents.into_iter().map(|document| UnderstoodItem::Pair(query.clone(), document)).collect();
    }

    /// Texts, token ids, or lists of token ids.
    fn read_input(&mut self, input: Option<&Json>, truncate: bool) {
        let lists: Vec<&Vec<Json>> = match input {
            Some(Json::List(elements)) => match elements.first() {
                Some(Json::Whole(_) | Json::Fraction) => vec![elements],
                Some(Json::List(_)) => {
                    self.check_count(elements.len());
                    let lists = elements.iter().filter_map(|element| match element {
                        Json::List(list) => Some(list),
                        _ => None,
                    });
                    let lists: Vec<&Vec<Json>> = lists.collect();
                    if lists.len() != elements.len() {
                        self.wrong.push(400);
                    }
                    lists
                }
                Some(Json::Null | Json::Boolean(_) | Json::Text(_) | Json::Object(_)) | None => {
                    self.items = self.texts(input).into_iter().map(UnderstoodItem::Text).collect();
                    return;
                }
            },
            Some(_) | None => {
                self.items = self.texts(input).into_iter().map(UnderstoodItem::Text).collect();
                return;
            }
        };
        for list in lists {
            let max = self.entry.max_length as usize;
            if list.is_empty() || (list.len() > max && !truncate) {
                self.wrong.push(400);
            }
            self.lists_cut += u32::from(list.len() > max);
            let vocabulary = i128::from(self.entry.vocabulary);
            let ids: Vec<u32> = list
                .iter()
                .map(|id| match id {
                    Json::Whole(id) if (0..vocabulary).contains(id) => *id as u32,
                    _ => self.refuse(400, 0),
                })
                .collect();
            self.items.push(UnderstoodItem::Ids(ids[..ids.len().min(max)].to_vec()));
        }
    }

    fn texts(&mut self, value: Option<&Json>) -> Vec<String> {
        match value {
            Some(Json::List(elements)) => {
                self.check_count(elements.len());
                elements.iter().map(|element| self.text(Some(element))).collect()
            }
            value => vec![self.text(value)],
        }
    }

    fn text(&mut self, value: Option<&Json>) -> String {
        let Some(Json::Text(text)) = value else { return self.refuse(400, String::new()) };
        if text.len() > self.limits.text_bytes_max {
            self.wrong.push(413);
        }
        if text.is_empty() && self.family == Family::OpenAi {
            self.wrong.push(400);
        }
        text.clone()
    }

    fn check_count(&mut self, count: usize) {
        if count == 0 {
            self.wrong.push(400);
        }
        if count > self.limits.texts_max {
            self.wrong.push(413);
        }
    }

    fn refuse<T>(&mut self, status: u16, instead: T) -> T {
        self.wrong.push(status);
        instead
    }
}
