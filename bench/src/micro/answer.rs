//! Vectors to bodies: digits and base64. Whether every value is finite is found out on the way, in the same pass.

use reactrt::api::{self, Answer, Entry, Family, Format, Outline};
use reactrt::model::Task;

use super::{Amount, Case, Row};

pub fn rows() -> Vec<Row> {
    let formats = [("float", Family::Native, Format::Float), ("base64", Family::OpenAi, Format::Base64)];
    let sizes = [(384, 1), (384, 32), (1024, 1), (1024, 32)];
    let row = |(name, family, format)| sizes.map(|(width, items)| Encode::row(name, family, format, width, items));
    formats.into_iter().flat_map(row).collect()
}

#[derive(Debug)]
struct Encode {
    entry: Entry,
    outline: Outline,
    values: Vec<f32>,
    /// The same as a device leaves them.
    bytes: Vec<u8>,
    out: Vec<u8>,
}

impl Encode {
    fn row(name: &str, family: Family, format: Format, width: u32, items: u32) -> Row {
        let entry = Entry {
            name: "model".into(),
            task: Task::Embedding,
            labels: Vec::new(),
            prompts: Vec::new(),
            default_prompt: None,
            width,
            vocabulary: 30_522,
            max_length: 256,
            normalize: true,
        };
        let outline = Outline {
            model: 0,
            task: Task::Embedding,
            family,
            items,
            format,
            dimensions: None,
            truncate: true,
            prompt: None,
            lists_cut: 0,
        };
        let values = values((width * items) as usize, width);
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let out = Vec::with_capacity(api::answer_bytes_max(&outline, &entry));
        let amount = Amount::Bytes(bytes.len() as u64);
        Row::new(format!("answer/{name}, {items} × {width}"), amount, Encode { entry, outline, values, bytes, out })
    }

    /// What a client reads out of the body.
    fn decoded(&self) -> Vec<f32> {
        let body: serde_json::Value = serde_json::from_slice(&self.out).expect("the body is JSON");
        match self.outline.format {
            Format::Float => {
                let vectors = body["embeddings"].as_array().expect("a list of vectors");
                assert_eq!(vectors.len(), self.outline.items as usize);
                let values = vectors.iter().flat_map(|vector| vector.as_array().expect("a list of numbers"));
                values.map(|value| value.to_string().parse().expect("a number")).collect()
            }
            Format::Base64 => {
                let items = body["data"].as_array().expect("a list of items");
                assert_eq!(items.len(), self.outline.items as usize);
                items.iter().flat_map(|item| floats(item["embedding"].as_str().expect("a string"))).collect()
            }
        }
    }
}

fn floats(base64: &str) -> Vec<f32> {
    use ::base64::Engine as _;
    let bytes = ::base64::engine::general_purpose::STANDARD.decode(base64).expect("base64");
    bytes.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)).collect()
}

/// As large as those of normalised vectors, of both signs and with all their digits.
fn values(count: usize, width: u32) -> Vec<f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut unit = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    let scale = (3.0 / width as f32).sqrt();
    (0..count).map(|_| (2.0 * unit() - 1.0) * scale).collect()
}

impl Case for Encode {
    fn run(&mut self, _slot: usize) -> u64 {
        self.out.clear();
        let Encode { outline, entry, bytes, .. } = self;
        let answer = Answer { outline: *outline, entry, values: bytes, prompt_tokens: 12, device_ns: 1_234_567 };
        api::encode(&answer, &mut self.out).expect("all values are finite");
        self.out.len() as u64
    }

    fn check(&mut self, returned: u64) {
        assert_eq!(returned, self.out.len() as u64);
        let decoded = self.decoded();
        assert_eq!(decoded.len(), self.values.len());
        assert!(decoded.iter().zip(&self.values).all(|(a, b)| a.to_bits() == b.to_bits()), "not the same values");
    }
}
