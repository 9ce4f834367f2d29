//! Whether an answer is what was asked for: every family's shape, the number of results, their dimension, their order, and
//! that every value is a finite number.
//!
//! Owns the shapes. One pass over the bytes by [`crate::json`]; values are converted only for whoever wants a digest or
//! samples. Keys may come in any order and unknown ones are skipped, as a tolerant client does. Invariant: after
//! [`Checker::new`] nothing is allocated as long as answers have the expected count and dimension, and base64 no escapes.

use base64::Engine as _;

use crate::fault::Fault;
use crate::json::Scanner;

/// What the body of a right answer looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `{"embeddings":[[f, …], …]}`
    Embeddings,
    /// `{"scores":[f, …]}`
    Scores,
    /// `{"predictions":[word, …],"logits":[[f, …], …]}`
    Predictions,
    /// `{"data":[{"embedding":[f, …],"index":i}, …]}`
    OpenaiVectors,
    /// The same with each vector as base64 of little-endian `f32`.
    OpenaiBase64,
    /// The same with a bare number for each vector.
    OpenaiScores,
    /// `[[f, …], …]`
    BareVectors,
    /// `[{"index":i,"score":f}, …]` in any order
    BareRanking,
    /// `[[{"score":f,"label":word}, …], …]`
    BarePredictions,
    /// `{"results":[{"index":i,"relevance_score":f}, …]}` in any order
    Results,
    /// Any body, of this many bytes if that is known.
    Anything { bytes: Option<u64> },
}

/// What a right answer held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// Values of each result; 1 for a score.
    pub dimension: u32,
    /// As `usage.total_tokens` has it; 0 where it is missing.
    pub tokens: u64,
}

#[derive(Debug)]
pub struct Checker {
    shape: Shape,
    /// Of every result; learnt from the first where it is not given.
    dimension: Option<u32>,
    /// Which indices an unordered answer has named.
    seen: Vec<bool>,
    /// One vector's bytes.
    decoded: Vec<u8>,
    keeps_values: bool,
    /// Of the last answer, in the order of the texts, if they are kept.
    values: Vec<f32>,
}

impl Checker {
    /// For answers with up to `texts_max` results. `keeps_values`: see [`Checker::values`].
    pub fn new(shape: Shape, dimension: Option<u32>, texts_max: u32, keeps_values: bool) -> Checker {
        let per_text = dimension.unwrap_or(1) as usize;
        let values_max = if keeps_values { per_text * texts_max as usize } else { 0 };
        Checker {
            shape,
            dimension,
            seen: vec![false; texts_max as usize],
            decoded: vec![0; per_text * 4 + 4],
            keeps_values,
            values: Vec::with_capacity(values_max),
        }
    }

    /// The last right answer's values, result by result in the order of the texts.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Checks the answer to a request of `texts` texts.
    pub fn check(&mut self, body: &[u8], texts: u32) -> Result<Content, Fault> {
        self.values.clear();
        let mut scanner = Scanner::new(body);
        let content = match self.shape {
            Shape::Anything { bytes } => return anything(body, bytes),
            Shape::Embeddings => self.keyed(&mut scanner, texts, "embeddings")?,
            Shape::Scores => self.keyed(&mut scanner, texts, "scores")?,
            Shape::Predictions => self.predictions(&mut scanner, texts)?,
            Shape::OpenaiVectors | Shape::OpenaiBase64 | Shape::OpenaiScores => self.openai(&mut scanner, texts)?,
            Shape::BareVectors => {
                self.vectors(&mut scanner, texts)?;
                0
            }
            Shape::BareRanking => {
                self.ranking(&mut scanner, texts, "score")?;
                0
            }
            Shape::BarePredictions => {
                self.labelled(&mut scanner, texts)?;
                0
            }
            Shape::Results => self.results(&mut scanner, texts)?,
        };
        scanner.end()?;
        Ok(Content { dimension: self.dimension.unwrap_or(0), tokens: content })
    }

    /// An object whose results stand under one key. Gives its tokens.
    fn keyed(&mut self, scanner: &mut Scanner<'_>, texts: u32, name: &'static str) -> Result<u64, Fault> {
        let (mut found, mut tokens) = (false, 0);
        object(scanner, |scanner, key| {
            if key == name.as_bytes() {
                once(&mut found, name)?;
                if self.shape == Shape::Scores { self.scores(scanner, texts) } else { self.vectors(scanner, texts) }
            } else {
                usage_or_skip(scanner, key, &mut tokens)
            }
        })?;
        present(found, name).map(|()| tokens)
    }

    fn predictions(&mut self, scanner: &mut Scanner<'_>, texts: u32) -> Result<u64, Fault> {
        let (mut words, mut logits, mut tokens) = (false, false, 0);
        object(scanner, |scanner, key| match key {
            b"predictions" => {
                once(&mut words, "predictions")?;
                let mut count = 0;
                list(scanner, |scanner| {
                    count += 1;
                    text(scanner)
                })?;
                counted(count, texts)
            }
            b"logits" => {
                once(&mut logits, "logits")?;
                self.vectors(scanner, texts)
            }
            _ => usage_or_skip(scanner, key, &mut tokens),
        })?;
        present(words, "predictions")?;
        present(logits, "logits").map(|()| tokens)
    }

    fn openai(&mut self, scanner: &mut Scanner<'_>, texts: u32) -> Result<u64, Fault> {
        let (mut found, mut tokens) = (false, 0);
        object(scanner, |scanner, key| {
            if key != b"data" {
                return usage_or_skip(scanner, key, &mut tokens);
            }
            once(&mut found, "data")?;
            let mut count = 0;
            list(scanner, |scanner| {
                self.openai_item(scanner, count)?;
                count += 1;
                Ok(())
            })?;
            counted(count, texts)
        })?;
        present(found, "data").map(|()| tokens)
    }

    fn openai_item(&mut self, scanner: &mut Scanner<'_>, place: u64) -> Result<(), Fault> {
        let (mut vector, mut index) = (false, false);
        object(scanner, |scanner, key| match key {
            b"embedding" => {
                once(&mut vector, "embedding")?;
                match self.shape {
                    Shape::OpenaiBase64 => self.base64(scanner),
                    Shape::OpenaiScores => self.score(scanner),
                    _ => self.vector(scanner),
                }
            }
            b"index" => {
                once(&mut index, "index")?;
                if integer(scanner)? == place { Ok(()) } else { Err(Fault::Order) }
            }
            _ => scanner.skip(),
        })?;
        present(vector, "embedding")?;
        present(index, "index")
    }

    fn results(&mut self, scanner: &mut Scanner<'_>, texts: u32) -> Result<u64, Fault> {
        let (mut found, mut tokens) = (false, 0);
        object(scanner, |scanner, key| {
            if key != b"results" {
                return usage_or_skip(scanner, key, &mut tokens);
            }
            once(&mut found, "results")?;
            self.ranking(scanner, texts, "relevance_score")
        })?;
        present(found, "results").map(|()| tokens)
    }

    /// Objects with an index and a score, each index once.
    fn ranking(&mut self, scanner: &mut Scanner<'_>, texts: u32, name: &'static str) -> Result<(), Fault> {
        self.dimension = Some(1);
        if self.keeps_values {
            self.values.resize(texts as usize, 0.0);
        }
        let texts_known = texts as usize;
        if self.seen.len() < texts_known {
            self.seen.resize(texts_known, false);
        }
        self.seen[..texts_known].fill(false);
        let mut count = 0;
        list(scanner, |scanner| {
            let (mut index, mut score) = (None, None);
            object(scanner, |scanner, key| {
                if key == b"index" {
                    index = Some(integer(scanner)?);
                } else if key == name.as_bytes() {
                    score = Some(number(scanner)?);
                } else {
                    scanner.skip()?;
                }
                Ok(())
            })?;
            let index = index.ok_or(Fault::Missing("index"))? as usize;
            let score = score.ok_or(Fault::Missing(name))?;
            let seen = self.seen[..texts_known].get_mut(index).ok_or(Fault::Order)?;
            if std::mem::replace(seen, true) {
                return Err(Fault::Order);
            }
            if self.keeps_values {
                self.values[index] = value(score);
            }
            count += 1;
            Ok(())
        })?;
        counted(count, texts)
    }

    /// Lists of objects with a label and a score.
    fn labelled(&mut self, scanner: &mut Scanner<'_>, texts: u32) -> Result<(), Fault> {
        let mut count = 0;
        list(scanner, |scanner| {
            let mut labels = 0;
            list(scanner, |scanner| {
                let (mut score, mut label) = (None, false);
                object(scanner, |scanner, key| match key {
                    b"score" => {
                        score = Some(number(scanner)?);
                        Ok(())
                    }
                    b"label" => {
                        label = true;
                        text(scanner)
                    }
                    _ => scanner.skip(),
                })?;
                present(label, "label")?;
                let score = score.ok_or(Fault::Missing("score"))?;
                if self.keeps_values {
                    self.values.push(value(score));
                }
                labels += 1;
                Ok(())
            })?;
            count += 1;
            self.measured(labels)
        })?;
        counted(count, texts)
    }

    fn scores(&mut self, scanner: &mut Scanner<'_>, texts: u32) -> Result<(), Fault> {
        let mut count = 0;
        list(scanner, |scanner| {
            count += 1;
            self.score(scanner)
        })?;
        counted(count, texts)
    }

    fn score(&mut self, scanner: &mut Scanner<'_>) -> Result<(), Fault> {
        let score = number(scanner)?;
        if self.keeps_values {
            self.values.push(value(score));
        }
        self.measured(1)
    }

    fn vectors(&mut self, scanner: &mut Scanner<'_>, texts: u32) -> Result<(), Fault> {
        let mut count = 0;
        list(scanner, |scanner| {
            count += 1;
            self.vector(scanner)
        })?;
        counted(count, texts)
    }

    fn vector(&mut self, scanner: &mut Scanner<'_>) -> Result<(), Fault> {
        let mut dimension = 0;
        if self.keeps_values {
            list(scanner, |scanner| {
                self.values.push(value(scanner.number()?));
                dimension += 1;
                Ok(())
            })?;
        } else {
            list(scanner, |scanner| {
                dimension += 1;
                scanner.number().map(drop)
            })?;
        }
        self.measured(dimension)
    }

    fn base64(&mut self, scanner: &mut Scanner<'_>) -> Result<(), Fault> {
        if scanner.peek() != b'"' {
            return Err(Fault::Kind("base64"));
        }
        let text = scanner.raw_string()?;
        // A writer may put a backslash before each slash.
        let unescaped;
        let text = if memchr::memchr(b'\\', text).is_some() {
            let words: Vec<&[u8]> = text.split(|&byte| byte == b'\\').collect();
            if words[1..].iter().any(|word| !word.starts_with(b"/")) {
                return Err(Fault::Base64);
            }
            unescaped = words.concat();
            &unescaped[..]
        } else {
            text
        };
        let bytes_max = text.len().div_ceil(4) * 3;
        if self.decoded.len() < bytes_max {
            self.decoded.resize(bytes_max, 0);
        }
        let engine = base64::engine::general_purpose::STANDARD;
        let length = engine.decode_slice(text, &mut self.decoded).map_err(|_| Fault::Base64)?;
        let (values, rest) = self.decoded[..length].as_chunks::<4>();
        if !rest.is_empty() {
            return Err(Fault::Base64);
        }
        // Infinity and NaN have all bits of the exponent.
        let finite = values
            .iter()
            .fold(true, |finite, &bytes| finite & (u32::from_le_bytes(bytes) & 0x7f80_0000 != 0x7f80_0000));
        if !finite {
            return Err(Fault::NotFinite);
        }
        if self.keeps_values {
            self.values.extend(values.iter().map(|&bytes| f32::from_le_bytes(bytes)));
        }
        let dimension = values.len() as u64;
        self.measured(dimension)
    }

    /// One result had so many values.
    fn measured(&mut self, found: u64) -> Result<(), Fault> {
        let wanted = u64::from(*self.dimension.get_or_insert(u32::try_from(found.max(1)).unwrap_or(u32::MAX)));
        if found == wanted { Ok(()) } else { Err(Fault::Dimension { found, wanted }) }
    }
}

fn anything(body: &[u8], bytes: Option<u64>) -> Result<Content, Fault> {
    let found = body.len() as u64;
    match bytes {
        Some(wanted) if wanted != found => Err(Fault::Bytes { found, wanted }),
        Some(_) | None => Ok(Content::default()),
    }
}

fn object<'a>(
    scanner: &mut Scanner<'a>,
    entry: impl FnMut(&mut Scanner<'a>, &'a [u8]) -> Result<(), Fault>,
) -> Result<(), Fault> {
    if scanner.peek() != b'{' {
        return Err(other_kind(scanner, "an object"));
    }
    scanner.object(entry)
}

#[inline(always)]
fn list<'a>(scanner: &mut Scanner<'a>, item: impl FnMut(&mut Scanner<'a>) -> Result<(), Fault>) -> Result<(), Fault> {
    if scanner.peek() != b'[' {
        return Err(other_kind(scanner, "a list"));
    }
    scanner.list(item)
}

fn text(scanner: &mut Scanner<'_>) -> Result<(), Fault> {
    if scanner.peek() != b'"' {
        return Err(other_kind(scanner, "a word"));
    }
    scanner.string().map(drop)
}

fn number<'a>(scanner: &mut Scanner<'a>) -> Result<&'a [u8], Fault> {
    match scanner.peek() {
        b'"' | b'[' | b'{' | b't' | b'f' => Err(other_kind(scanner, "a number")),
        _ => scanner.number(),
    }
}

/// Another value than the expected, or none at all.
#[cold]
fn other_kind(scanner: &mut Scanner<'_>, wanted: &'static str) -> Fault {
    match scanner.skip() {
        Ok(()) => Fault::Kind(wanted),
        Err(fault) => fault,
    }
}

fn integer(scanner: &mut Scanner<'_>) -> Result<u64, Fault> {
    let digits = number(scanner)?;
    let text = std::str::from_utf8(digits).map_err(|_| Fault::NotJson)?;
    text.parse().map_err(|_| Fault::Kind("a whole number"))
}

/// Of a number that the scanner has accepted.
fn value(number: &[u8]) -> f32 {
    std::str::from_utf8(number).ok().and_then(|text| text.parse().ok()).unwrap_or(f32::NAN)
}

fn usage_or_skip<'a>(scanner: &mut Scanner<'a>, key: &[u8], tokens: &mut u64) -> Result<(), Fault> {
    if key != b"usage" || scanner.peek() != b'{' {
        return scanner.skip();
    }
    scanner.object(|scanner, key| {
        if key == b"total_tokens" && scanner.peek().is_ascii_digit() {
            *tokens = integer(scanner)?;
            return Ok(());
        }
        scanner.skip()
    })
}

fn once(found: &mut bool, name: &'static str) -> Result<(), Fault> {
    if std::mem::replace(found, true) { Err(Fault::Twice(name)) } else { Ok(()) }
}

fn present(found: bool, name: &'static str) -> Result<(), Fault> {
    if found { Ok(()) } else { Err(Fault::Missing(name)) }
}

fn counted(found: u64, texts: u32) -> Result<(), Fault> {
    let wanted = u64::from(texts);
    if found == wanted { Ok(()) } else { Err(Fault::Count { found, wanted }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(shape: Shape, texts: u32, body: &str) -> Result<Content, Fault> {
        Checker::new(shape, None, texts, false).check(body.as_bytes(), texts)
    }

    fn values(shape: Shape, texts: u32, body: &str) -> Vec<f32> {
        let mut checker = Checker::new(shape, None, texts, true);
        checker.check(body.as_bytes(), texts).unwrap();
        checker.values().to_vec()
    }

    #[test]
    fn right_answers_of_every_family() {
        let base64 = base64::engine::general_purpose::STANDARD;
        let encode = |values: &[f32]| base64.encode(values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>());
        let item =
            |value: &str, index: u32| format!("{{\"object\":\"embedding\",\"embedding\":{value},\"index\":{index}}}");
        let openai = |first: &str, second: &str| {
            let data = format!("{},{}", item(first, 0), item(second, 1));
            format!(
                "{{\"object\":\"list\",\"data\":[{data}],\"model\":\"m\",\"usage\":{{\"prompt_tokens\":7,\"total_tokens\":9}}}}"
            )
        };
        let (first, second) = (encode(&[0.5, -2.0]), encode(&[1e-20, 3.0]));
        let slashes = encode(&[-1.0e30, f32::from_bits(0x3fff_ffff)]).replace('/', "\\/");
        assert!(slashes.contains("\\/"), "{slashes}");
        let cases: Vec<(Shape, String, u32, u64, Vec<f32>)> = vec![
            (Shape::Embeddings, "{\"embeddings\":[[0.5,-1],[1e-3,2.25]],\"elapsed_ms\":4.4}".into(), 2, 0, vec![0.5, -1.0, 0.001, 2.25]),
            (Shape::Embeddings, "{ \"x\": [null], \"embeddings\" : [ [0.5 , 1] , [2, 3] ] }\n".into(), 2, 0, vec![0.5, 1.0, 2.0, 3.0]),
            (Shape::Scores, "{\"scores\":[0.96,-11.5],\"elapsed_ms\":1}".into(), 1, 0, vec![0.96, -11.5]),
            (Shape::Predictions, "{\"predictions\":[\"neutral\",\"entailment\"],\"logits\":[[1,2,3],[4,5,6]]}".into(), 3, 0, vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
            (Shape::OpenaiVectors, openai("[0.5,1]", "[2,3]"), 2, 9, vec![0.5, 1.0, 2.0, 3.0]),
            (Shape::OpenaiScores, openai("0.5", "-2"), 1, 9, vec![0.5, -2.0]),
            (Shape::OpenaiBase64, openai(&format!("\"{first}\""), &format!("\"{second}\"")), 2, 9, vec![0.5, -2.0, 1e-20, 3.0]),
            (Shape::OpenaiBase64, openai(&format!("\"{slashes}\""), &format!("\"{second}\"")), 2, 9, vec![-1.0e30, f32::from_bits(0x3fff_ffff), 1e-20, 3.0]),
            (Shape::BareVectors, "[[0.5,1],[2,3]]".into(), 2, 0, vec![0.5, 1.0, 2.0, 3.0]),
            (Shape::BareRanking, "[{\"index\":1,\"score\":0.9},{\"index\":0,\"score\":0.1,\"text\":\"a\"}]".into(), 1, 0, vec![0.1, 0.9]),
            (Shape::BarePredictions, "[[{\"score\":0.9,\"label\":\"a\"},{\"score\":0.1,\"label\":\"b\"}],[{\"score\":0.8,\"label\":\"b\"},{\"score\":0.2,\"label\":\"a\"}]]".into(), 2, 0, vec![0.9, 0.1, 0.8, 0.2]),
            (Shape::Results, "{\"id\":\"x\",\"results\":[{\"index\":1,\"relevance_score\":0.9},{\"index\":0,\"relevance_score\":0.1}],\"meta\":{}}".into(), 1, 0, vec![0.1, 0.9]),
        ];
        for (shape, body, dimension, tokens, expected) in cases {
            assert_eq!(check(shape, 2, &body), Ok(Content { dimension, tokens }), "{body}");
            assert_eq!(values(shape, 2, &body), expected, "{body}");
        }
        assert_eq!(check(Shape::Anything { bytes: Some(3) }, 1, "abc"), Ok(Content::default()));
    }

    #[test]
    fn wrong_answers_are_told_apart() {
        let embeddings = [
            ("{\"embeddings\":[[0.5,NaN]]}", Fault::NotFinite),
            ("{\"embeddings\":[[0.5,null]]}", Fault::NotFinite),
            ("{\"embeddings\":[[0.5,-Infinity]]}", Fault::NotFinite),
            ("{\"embeddings\":[[0.5,1e39]]}", Fault::NotFinite),
            ("{\"embeddings\":[[0.5,\"1\"]]}", Fault::NotJson),
            ("{\"embeddings\":[[0.5],[1]]}", Fault::Count { found: 2, wanted: 1 }),
            ("{\"embeddings\":[]}", Fault::Count { found: 0, wanted: 1 }),
            ("{\"embeddings\":[[]]}", Fault::Dimension { found: 0, wanted: 1 }),
            ("{\"embeddings\":[0.5]}", Fault::Kind("a list")),
            ("{\"embeddings\":null}", Fault::Kind("a list")),
            ("{\"scores\":[0.5]}", Fault::Missing("embeddings")),
            ("{\"embeddings\":[[1]],\"embeddings\":[[1]]}", Fault::Twice("embeddings")),
            ("[[0.5]]", Fault::Kind("an object")),
            ("{\"embeddings\":[[0.5]]", Fault::NotJson),
            ("{\"embeddings\":[[0.5]]} x", Fault::NotJson),
            ("<html>", Fault::NotJson),
            ("", Fault::NotJson),
        ];
        for (body, fault) in embeddings {
            assert_eq!(check(Shape::Embeddings, 1, body), Err(fault), "{body}");
        }
        let two = "{\"embeddings\":[[1,2],[1]]}";
        assert_eq!(check(Shape::Embeddings, 2, two), Err(Fault::Dimension { found: 1, wanted: 2 }));
        let mut given = Checker::new(Shape::Embeddings, Some(3), 2, false);
        assert_eq!(given.check(two.as_bytes(), 2), Err(Fault::Dimension { found: 2, wanted: 3 }));

        let openai = |item: &str| format!("{{\"data\":[{item}]}}");
        assert_eq!(check(Shape::OpenaiVectors, 1, &openai("{\"embedding\":[1],\"index\":1}")), Err(Fault::Order));
        assert_eq!(check(Shape::OpenaiVectors, 1, &openai("{\"embedding\":[1]}")), Err(Fault::Missing("index")));
        assert_eq!(check(Shape::OpenaiVectors, 1, &openai("{\"index\":0}")), Err(Fault::Missing("embedding")));
        assert_eq!(
            check(Shape::OpenaiScores, 1, &openai("{\"embedding\":[1],\"index\":0}")),
            Err(Fault::Kind("a number"))
        );
        let base64 =
            |text: &str| check(Shape::OpenaiBase64, 1, &openai(&format!("{{\"embedding\":{text},\"index\":0}}")));
        assert_eq!(base64("[1]"), Err(Fault::Kind("base64")));
        assert_eq!(base64("\"AACAfw==\""), Err(Fault::NotFinite), "infinity");
        assert_eq!(base64("\"AAAA\""), Err(Fault::Base64), "three bytes");
        assert_eq!(base64("\"AAAAA=A=\""), Err(Fault::Base64));
        assert_eq!(base64("\"AAAAAA\\n==\""), Err(Fault::Base64));
        assert_eq!(base64("\"AAAAAA==\""), Ok(Content { dimension: 1, tokens: 0 }));

        let ranking = |body: &str| check(Shape::BareRanking, 2, body);
        assert_eq!(ranking("[{\"index\":0,\"score\":1},{\"index\":0,\"score\":1}]"), Err(Fault::Order));
        assert_eq!(ranking("[{\"index\":0,\"score\":1},{\"index\":2,\"score\":1}]"), Err(Fault::Order));
        assert_eq!(ranking("[{\"index\":0,\"score\":1}]"), Err(Fault::Count { found: 1, wanted: 2 }));
        assert_eq!(ranking("[{\"index\":-1,\"score\":1}]"), Err(Fault::Kind("a whole number")));
        assert_eq!(ranking("[{\"index\":0,\"score\":null}]"), Err(Fault::NotFinite));
        let words = "{\"predictions\":[1],\"logits\":[[1]]}";
        assert_eq!(check(Shape::Predictions, 1, words), Err(Fault::Kind("a word")));
        assert_eq!(check(Shape::Anything { bytes: Some(3) }, 1, "abcd"), Err(Fault::Bytes { found: 4, wanted: 3 }));
    }

    /// Broken in any way, an answer that serde_json refuses is refused, and one that is accepted has the right numbers.
    #[test]
    fn broken_answers_are_never_taken_for_right() {
        let mut random = fastrand::Rng::with_seed(11);
        for _ in 0..300 {
            let vector: Vec<f32> = (0..24).map(|_| random.f32() - 0.5).collect();
            let right = serde_json::json!({ "embeddings": [vector, vector], "elapsed_ms": 1.5 }).to_string();
            for _ in 0..40 {
                let mut text = right.clone().into_bytes();
                let at = random.usize(..text.len());
                match random.u8(..3) {
                    0 => text[at] = random.u8(..),
                    1 => drop(text.remove(at)),
                    _ => text.truncate(at),
                }
                let mut checker = Checker::new(Shape::Embeddings, Some(24), 2, true);
                let found = checker.check(&text, 2);
                let parsed: Option<serde_json::Value> = serde_json::from_slice(&text).ok();
                let lists = parsed.as_ref().and_then(|parsed| parsed["embeddings"].as_array());
                let numbers: Option<Vec<f32>> = lists.and_then(|lists| {
                    let lists: Option<Vec<_>> = lists.iter().map(|list| list.as_array()).collect();
                    lists?.iter().flat_map(|list| list.iter()).map(|value| Some(value.as_f64()? as f32)).collect()
                });
                let right =
                    numbers.filter(|numbers| numbers.len() == 48 && numbers.iter().all(|value| value.is_finite()));
                match (found, right) {
                    (Ok(_), Some(numbers)) => {
                        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= a.abs() * 1e-6;
                        assert!(checker.values().iter().zip(&numbers).all(near));
                    }
                    (Ok(_), None) => panic!("accepted: {}", String::from_utf8_lossy(&text)),
                    // One vector longer by what the other lost is not the right dimension.
                    (Err(_), _) => {}
                }
            }
        }
    }
}
