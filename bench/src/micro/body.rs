//! Bodies of both families, from bytes to the texts in them.

use reactrt::api::{self, Catalog, Entry, Inputs, Item, Route, Scratch};
use reactrt::config::{Limits, Settings};
use reactrt::model::Task;

use super::{Amount, Case, Row, sentence};

/// Bytes that lie behind the body, as they do in a connection's buffer: they save the parser a copy.
const SPARE_BYTES: usize = 64;

/// Copies of a body are kept until they fill so much, so that what is parsed still comes from a near cache.
const COPIES_BYTES: usize = 256 << 10;

pub fn rows() -> Vec<Row> {
    let many = |count: usize| (0..count).map(sentence).collect::<Vec<String>>();
    // A quarter of the lines of a real text end in something that JSON escapes.
    let mut long: String = (0..).flat_map(|index| [sentence(index), ".\n".into()]).take(200).collect();
    long.truncate(8 << 10);
    let inputs = [
        ("1 short text", many(1)),
        ("1 text of 8 KiB", vec![long]),
        ("32 texts", many(32)),
        ("2048 texts", many(2048)),
    ];
    let families = [("native", Route::Infer { model: 0 }), ("openai", Route::Embeddings)];
    let row =
        |(what, texts): &(&str, Vec<String>)| families.map(|(family, route)| Parse::row(family, what, route, texts));
    inputs.iter().flat_map(row).collect()
}

#[derive(Debug)]
struct Parse {
    route: Route,
    catalog: Catalog,
    limits: Limits,
    scratch: Scratch,
    inputs: Inputs,
    texts: Vec<String>,
    body: Vec<u8>,
    copies: Vec<Vec<u8>>,
}

impl Parse {
    fn row(family: &str, what: &str, route: Route, texts: &[String]) -> Row {
        let list = serde_json::to_string(texts).expect("strings are JSON");
        let body = match route {
            Route::Infer { .. } => format!("{{\"documents\":{list}}}"),
            Route::Embeddings => format!("{{\"model\":\"model\",\"input\":{list},\"encoding_format\":\"base64\"}}"),
            Route::Models | Route::ModelsOpenAi | Route::Ready | Route::Live | Route::Metrics => {
                unreachable!("no body")
            }
        };
        let amount = Amount::Bytes(body.len() as u64);
        let copy = [body.as_bytes(), &[b' '; SPARE_BYTES]].concat();
        let parse = Parse {
            route,
            catalog: Catalog::new(vec![entry()]),
            limits: Settings::default().limits,
            scratch: Scratch::default(),
            inputs: Inputs::default(),
            texts: texts.to_vec(),
            copies: vec![copy; (COPIES_BYTES / body.len()).clamp(1, 64)],
            body: body.into_bytes(),
        };
        Row::new(format!("body/{family}, {what}"), amount, parse)
    }
}

/// An embedding model of 384 values.
fn entry() -> Entry {
    Entry {
        name: "model".into(),
        task: Task::Embedding,
        labels: Vec::new(),
        prompts: Vec::new(),
        default_prompt: None,
        width: 384,
        vocabulary: 30_522,
        max_length: 256,
        normalize: true,
    }
}

impl Case for Parse {
    fn slots(&self) -> usize {
        self.copies.len()
    }

    fn prepare(&mut self, slot: usize) {
        self.copies[slot][..self.body.len()].copy_from_slice(&self.body);
    }

    fn run(&mut self, slot: usize) -> u64 {
        let Parse { route, catalog, limits, scratch, inputs, .. } = self;
        let outline = api::parse(*route, &mut self.copies[slot], 0..self.body.len(), catalog, limits, scratch, inputs);
        u64::from(outline.expect("the body is in order").items)
    }

    fn check(&mut self, returned: u64) {
        assert_eq!(returned, self.texts.len() as u64);
        assert_eq!(self.inputs.items.len(), self.texts.len());
        for (item, text) in self.inputs.items.iter().zip(&self.texts) {
            let Item::Text(span) = item else { panic!("not a text: {item:?}") };
            assert_eq!(&self.copies[0][span.range()], text.as_bytes());
        }
    }
}
