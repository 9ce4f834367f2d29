//! What the fuzz target and the corpus replay share: a route and a body in, and either the inputs or the status of the refusal
//! out, checked against `reference`, which reads the body with serde_json.
//!
//! Both must take the same bodies, with the same texts, ids and options, or refuse them with a status that applies. Besides:
//! a body reads the same alone and among other bytes, which are left as they are; a refusal is JSON in either family's
//! shape; an answer to what was taken is JSON and no longer than promised.
//!
//! Not part of the server: it allocates as it likes and panics on any disagreement.

mod reference;

use std::ops::Range;

use self::reference::{Understood, UnderstoodItem};
use super::{Answer, Catalog, Entry, Family, Inputs, Item, Outline, Reject, Route, Scratch};
use crate::config::Limits;
use crate::job::Span;
use crate::model::{Prompt, Task};

/// Small, so that short inputs reach them.
const LIMITS: Limits = Limits {
    connections_max: 1,
    jobs_max: 1,
    pieces_max: 1,
    piece_sequences_max: 1,
    head_bytes_max: 1024,
    body_bytes_max: 4096,
    texts_max: 6,
    text_bytes_max: 40,
    json_values_max: 160,
    answer_bytes_max: 2000,
    memory_bytes_max: None,
};

/// What stands around the body the second time: bytes that a parser which reads on would trip over.
const BEFORE: &[u8] = b"POST / ";
const BEHIND: [u8; 94] = *b"\"\\{\"documents\":[GET /next HTTP/1.1\r\n\r\n\\\\\"{{{{}}}}\x80\xff\0\"\"\"\\u12\"next\":1e5]}}]]\"\"truetruenull\\\"\"\"\"\"";

/// The fuzz target `body`: how many sequences were taken, or the status of the refusal. The first byte is the route, the rest
/// the body.
///
/// # Panics
/// When the reference disagrees or an invariant does not hold.
pub fn body(input: &[u8]) -> Result<usize, u16> {
    let (&route, body) = input.split_first().unwrap_or((&0, b""));
    let body = &body[..body.len().min(LIMITS.body_bytes_max)];
    let catalog = catalog();
    let models = catalog.entries().len();
    let route = match usize::from(route) % (models + 1) {
        model if model < models => Route::Infer { model: model as u32 },
        _ => Route::Embeddings,
    };
    let (mut scratch, mut inputs) = (Scratch::default(), Inputs::default());
    let mut read = |bytes: &mut [u8], range: Range<usize>| {
        let read = super::parse(route, bytes, range, &catalog, &LIMITS, &mut scratch, &mut inputs);
        read.map(|outline| (outline, understood(&outline, &inputs, bytes)))
    };
    let mut alone = body.to_vec();
    let taken = read(&mut alone, 0..body.len());
    let mut among = [BEFORE, body, &BEHIND].concat();
    let range = BEFORE.len()..BEFORE.len() + body.len();
    assert_eq!(taken, read(&mut among, range.clone()), "alone and among other bytes: {}", body.escape_ascii());
    assert!(&among[..range.start] == BEFORE && among[range.end..] == BEHIND, "other bytes are left as they are");

    match (&taken, reference::read(route, body, &catalog, &LIMITS)) {
        (Ok((_, understood)), Ok(expected)) => assert_eq!(*understood, expected, "{}", body.escape_ascii()),
        (Err(reject), Err(statuses)) => {
            assert!(statuses.contains(&reject.status()), "{reject:?}, not {statuses:?}: {}", body.escape_ascii());
        }
        (taken, expected) => panic!("{taken:?}\nthe reference: {expected:?}\nbody: {}", body.escape_ascii()),
    }
    match taken {
        Ok((outline, _)) => {
            check_answer(&outline, catalog.entry(outline.model), body);
            Ok(outline.items as usize)
        }
        Err(reject) => {
            check_refusal(reject, body);
            Err(reject.status())
        }
    }
}

/// Every kind of model. The longest answers exceed the limit, in base64 they fit.
fn catalog() -> Catalog {
    let entry = |name: &str, task, width| Entry {
        name: name.into(),
        task,
        labels: Vec::new(),
        prompts: Vec::new(),
        default_prompt: None,
        width,
        vocabulary: 1000,
        max_length: 5,
        normalize: true,
    };
    let prompt = |name: &str| Prompt { name: name.into(), text: format!("{name}: ") };
    let prompts = vec![prompt("query"), prompt("é\"\n")];
    let labels = ["contradiction", "neu\"tral"].map(String::from).to_vec();
    Catalog::new(vec![
        entry("mini", Task::Embedding, 4),
        entry("rank", Task::Reranking, 1),
        Entry { labels, ..entry("nli", Task::Nli, 3) },
        Entry { prompts, default_prompt: Some(1), normalize: false, ..entry("my é", Task::Embedding, 40) },
    ])
}

/// What was read, with copies of the texts.
fn understood(outline: &Outline, inputs: &Inputs, bytes: &[u8]) -> Understood {
    assert_eq!(outline.items as usize, inputs.items.len());
    let text = |span: Span| std::str::from_utf8(&bytes[span.range()]).expect("spans are UTF-8").to_owned();
    let items = inputs.items.iter().map(|item| match *item {
        Item::Text(span) => UnderstoodItem::Text(text(span)),
        Item::Pair(first, second) => UnderstoodItem::Pair(text(first), text(second)),
        Item::Ids(span) => UnderstoodItem::Ids(inputs.ids[span.range()].to_vec()),
    });
    Understood { outline: *outline, items: items.collect() }
}

fn check_refusal(reject: Reject, body: &[u8]) {
    if let Reject::Malformed { offset: Some(offset), .. } = reject {
        assert!(offset as usize <= body.len(), "{reject:?} lies behind {}", body.escape_ascii());
    }
    for family in [Family::Native, Family::OpenAi] {
        let mut written = Vec::new();
        reject.write(family, &mut written);
        assert!(written.len() <= Reject::BODY_BYTES_MAX, "{reject:?} takes {} bytes", written.len());
        let read: serde_json::Value = serde_json::from_slice(&written).expect("a refusal is JSON");
        let message = match family {
            Family::Native => &read["detail"],
            Family::OpenAi => &read["error"]["message"],
        };
        assert!(message.as_str().is_some_and(|message| !message.is_empty()), "{reject:?} without words");
    }
}

/// Answers with values made of the body.
fn check_answer(outline: &Outline, entry: &Entry, body: &[u8]) {
    let count = outline.items as usize * entry.width as usize;
    let mut state = body.iter().fold(1u32, |state, &byte| state.wrapping_mul(31).wrapping_add(u32::from(byte)));
    let values: Vec<f32> = (0..count)
        .map(|_| {
            state = state.wrapping_mul(0x9e37_79b1).rotate_left(13) ^ 0x5bd1;
            f32::from_bits(state)
        })
        .collect();
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let answer = Answer { outline: *outline, entry, values: &bytes, prompt_tokens: u64::MAX, device_ns: u64::MAX };
    let mut written = b"head".to_vec();
    match super::encode(&answer, &mut written) {
        Err(reject) => {
            assert!(values.iter().any(|value| !value.is_finite()), "{reject:?} without cause");
            assert!(matches!(reject, Reject::NonFinite { .. }) && written == b"head", "{reject:?}");
        }
        Ok(()) => {
            assert!(written.len() - 4 <= super::answer_bytes_max(outline, entry), "longer than promised: {outline:?}");
            let read: serde_json::Value = serde_json::from_slice(&written[4..]).expect("an answer is JSON");
            let list = match (outline.family, outline.task) {
                (Family::OpenAi, _) => &read["data"],
                (Family::Native, Task::Embedding) => &read["embeddings"],
                (Family::Native, Task::Reranking) => &read["scores"],
                (Family::Native, Task::Nli) => &read["logits"],
            };
            assert_eq!(list.as_array().map(Vec::len), Some(outline.items as usize), "{read}");
        }
    }
}
