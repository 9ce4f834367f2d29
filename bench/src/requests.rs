//! The requests of a run as bytes, all made before it.
//!
//! A bounded set of distinct requests, sent in turn: the generator is to be busy with time and sockets, not with text.
//! Invariant: every request is complete and can be written as it lies.

use std::collections::HashMap;
use std::ops::Range;

use crate::target::{Api, Family, Place, Task, Wording, encode};
use crate::texts::{PerRequest, Source, Texts};

/// Distinct requests, and their bytes together: beyond either the set is complete.
const DISTINCT_MAX: usize = 4096;
const BYTES_MAX: usize = 64 << 20;

/// What requests are made of.
#[derive(Clone, Debug)]
pub enum Content {
    Texts {
        texts: Texts,
        per_request: PerRequest,
    },
    /// Whole bodies, a line of the file each.
    Bodies {
        file: String,
        lines: Vec<String>,
    },
    /// A GET.
    Nothing,
}

/// A text whose vector the record is to keep: result `place` of request `request`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spot {
    pub request: u32,
    pub place: u32,
    pub text: String,
}

#[derive(Debug)]
pub struct Requests {
    bytes: Vec<u8>,
    places: Vec<Range<usize>>,
    texts: Vec<u32>,
    /// By request, then place.
    spots: Vec<Spot>,
    /// As the record has it.
    pub texts_in_words: String,
    pub per_request_in_words: String,
}

/// How requests are made, beside what they are made of.
#[derive(Clone, Copy, Debug)]
pub struct Making<'a> {
    pub place: &'a Place,
    pub family: &'a Family,
    /// Further lines of the head, `name: value`.
    pub fields: &'a [String],
    pub seed: u64,
    /// Each request has a connection of its own.
    pub close: bool,
    pub samples: usize,
}

impl Content {
    /// # Errors
    /// A file that cannot be read, or a line that is not JSON.
    pub fn bodies(file: &str) -> Result<Content, String> {
        let text = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
        let lines: Vec<String> = text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect();
        if lines.is_empty() {
            return Err(format!("{file}: there is no body in it; each line that is not blank is one"));
        }
        Ok(Content::Bodies { file: file.to_owned(), lines })
    }
}

impl Requests {
    /// # Errors
    /// A body of a file in which the texts cannot be counted.
    pub fn make(making: Making<'_>, content: &Content) -> Result<Requests, String> {
        let mut requests = Requests {
            bytes: Vec::new(),
            places: Vec::new(),
            texts: Vec::new(),
            spots: Vec::new(),
            texts_in_words: String::new(),
            per_request_in_words: String::new(),
        };
        match content {
            Content::Texts { texts, per_request } => {
                requests.add_texts(making, texts, *per_request);
                requests.texts_in_words = format!("{texts}; {} distinct requests in turn", requests.count());
                requests.per_request_in_words = per_request.to_string();
            }
            Content::Bodies { file, lines } => {
                for (index, line) in lines.iter().enumerate().take(DISTINCT_MAX) {
                    let texts = texts_in(making.family, line)
                        .map_err(|error| format!("{file}: body {}: {error}", index + 1))?;
                    requests.add(making, Some(line.as_bytes()), texts);
                    if requests.bytes.len() > BYTES_MAX {
                        break;
                    }
                }
                let of = if lines.len() > requests.count() { format!(" of {}", lines.len()) } else { String::new() };
                requests.texts_in_words = format!("bodies of {file}; {}{of} in turn", requests.count());
                let (low, high) =
                    requests.texts.iter().fold((u32::MAX, 0), |(low, high), &n| (low.min(n), high.max(n)));
                requests.per_request_in_words = if low == high { low.to_string() } else { format!("{low} to {high}") };
            }
            Content::Nothing => {
                requests.add(making, None, 1);
                requests.texts_in_words = "no body".to_owned();
                requests.per_request_in_words = "1".to_owned();
            }
        }
        Ok(requests)
    }

    fn add(&mut self, making: Making<'_>, body: Option<&[u8]>, texts: u32) {
        let start = self.bytes.len();
        encode(making.place, &making.family.path(), making.fields, body, making.close, &mut self.bytes);
        self.places.push(start..self.bytes.len());
        self.texts.push(texts);
    }

    fn add_texts(&mut self, making: Making<'_>, texts: &Texts, per_request: PerRequest) {
        let mut source = Source::new(texts, making.seed);
        let mut known: HashMap<String, ()> = HashMap::new();
        while self.count() < DISTINCT_MAX && self.bytes.len() < BYTES_MAX {
            let count = source.count(per_request);
            let against = Wording::against_count(making.family.task, count);
            let mut take = |count| (0..count).map(|_| source.text()).collect::<Vec<_>>();
            let wording = Wording { texts: take(count), against: take(against) };
            let request = self.count() as u32;
            for place in 0..count {
                if self.spots.len() == making.samples {
                    break;
                }
                let text = wording.describe(place as usize);
                if known.insert(text.clone(), ()).is_none() {
                    self.spots.push(Spot { request, place, text });
                }
            }
            self.add(making, Some(&making.family.body(&wording)), count);
            // A file of few lines repeats itself; its requests then do as well.
            if let Texts::Lines { lines, .. } = texts
                && matches!(per_request, PerRequest::Fixed(count) if self.count() >= lines.len().div_ceil(count as usize))
                && making.family.task == Task::Embedding
            {
                break;
            }
        }
    }

    pub fn count(&self) -> usize {
        self.places.len()
    }

    /// Which one is sent as number `number` of a run.
    pub fn index_of(&self, number: u64) -> u32 {
        (number % self.places.len() as u64) as u32
    }

    pub fn bytes(&self, index: u32) -> &[u8] {
        &self.bytes[self.places[index as usize].clone()]
    }

    pub fn texts(&self, index: u32) -> u32 {
        self.texts[index as usize]
    }

    pub fn texts_max(&self) -> u32 {
        self.texts.iter().copied().max().unwrap_or(1)
    }

    pub fn spots(&self) -> &[Spot] {
        &self.spots
    }

    /// The one with the largest answer, as far as can be told: most texts, then most bytes.
    pub fn largest(&self) -> u32 {
        let size = |index: &u32| (self.texts(*index), self.places[*index as usize].len());
        (0..self.count() as u32).max_by_key(size).unwrap_or(0)
    }
}

/// The texts of a body from a file, by which its answer is counted.
fn texts_in(family: &Family, line: &str) -> Result<u32, String> {
    if family.api == Api::Raw {
        return Ok(1);
    }
    let body: serde_json::Value = serde_json::from_str(line).map_err(|error| format!("not JSON: {error}"))?;
    let key = match (family.api, family.task) {
        (Api::Native, Task::Embedding | Task::Reranking) | (Api::Cohere, _) => "documents",
        (Api::Native, Task::Nli) => "premises",
        (Api::Openai, _) => "input",
        (Api::Tei, Task::Embedding | Task::Nli) => "inputs",
        (Api::Tei, Task::Reranking) | (Api::Old, _) => "texts",
        (Api::Raw, _) => return Ok(1),
    };
    let count = match &body[key] {
        serde_json::Value::String(_) => 1,
        // Token ids of one text.
        serde_json::Value::Array(items) if items.iter().all(serde_json::Value::is_number) && !items.is_empty() => 1,
        serde_json::Value::Array(items) => items.len(),
        _ => return Err(format!("there is no {key:?} with texts in it, which --api {} asks for", family.api)),
    };
    u32::try_from(count).ok().filter(|&count| count > 0).ok_or(format!("{key:?} is empty"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Encoding;
    use crate::texts::Words;

    fn family(api: Api, task: Task) -> Family {
        Family { api, task, encoding: Encoding::Float, model: "m".into(), path: None }
    }

    fn make(family: &Family, content: &Content, samples: usize) -> Result<Requests, String> {
        let place = Place::parse("http://127.0.0.1:1").unwrap();
        Requests::make(Making { place: &place, family, fields: &[], seed: 1, close: false, samples }, content)
    }

    #[test]
    fn the_set_is_bounded_and_the_same_for_the_same_seed() {
        let content = Content::Texts { texts: Texts::Made(Words::Fixed(30)), per_request: PerRequest::Uniform(1, 8) };
        let family = family(Api::Native, Task::Embedding);
        let (one, other) = (make(&family, &content, 10).unwrap(), make(&family, &content, 0).unwrap());
        assert_eq!((one.count(), one.texts_max()), (DISTINCT_MAX, 8));
        assert_eq!(one.bytes, other.bytes);
        assert_eq!(one.spots().len(), 10);
        assert_eq!(one.texts_in_words, "30 words; 4096 distinct requests in turn");
        for index in [0, 1, 4095] {
            let text = std::str::from_utf8(one.bytes(index)).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with("POST /infer/m HTTP/1.1\r\nhost: 127.0.0.1:1\r\n"), "{head}");
            assert!(head.ends_with(&format!("content-length: {}", body.len())), "{head}");
            let body: serde_json::Value = serde_json::from_str(body).unwrap();
            assert_eq!(body["documents"].as_array().unwrap().len(), one.texts(index) as usize);
        }
        let large = Content::Texts { texts: Texts::Made(Words::Fixed(254)), per_request: PerRequest::Fixed(64) };
        let large = make(&family, &large, 0).unwrap();
        assert!(large.bytes.len() < BYTES_MAX + (1 << 20) && large.count() < 1000, "{}", large.count());
    }

    #[test]
    fn texts_of_given_bodies_are_counted_as_their_family_has_them() {
        let count = |api, task, line: &str| texts_in(&family(api, task), line);
        assert_eq!(count(Api::Native, Task::Embedding, r#"{"documents":["a","b"]}"#), Ok(2));
        assert_eq!(count(Api::Native, Task::Embedding, r#"{"documents":"a"}"#), Ok(1));
        assert_eq!(count(Api::Openai, Task::Embedding, r#"{"input":[1,2,3]}"#), Ok(1));
        assert_eq!(count(Api::Openai, Task::Embedding, r#"{"input":[[1,2],[3]]}"#), Ok(2));
        assert_eq!(count(Api::Tei, Task::Nli, r#"{"inputs":[["a","b"]]}"#), Ok(1));
        assert!(count(Api::Native, Task::Nli, r#"{"documents":["a"]}"#).unwrap_err().contains("premises"));
        assert!(count(Api::Native, Task::Nli, "x").unwrap_err().contains("not JSON"));
        assert_eq!(count(Api::Raw, Task::Nli, "x"), Ok(1));
    }
}
