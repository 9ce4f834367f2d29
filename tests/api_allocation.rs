//! Reading bodies and writing answers allocates nothing once the buffers have grown to the traffic, and what the parser's
//! buffers can grow to is what [`Scratch::bytes_max`] says.
//!
//! The allocator counts per thread, so that the test harness's own threads do not disturb the count.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use reactrt::api::{
    self, Answer, Catalog, Entry, Family, Field, Format, Inputs, Outline, Place, Reject, Route, Scratch, Words,
};
use reactrt::config::Limits;
use reactrt::model::Task;

struct Counting;

thread_local! {
    /// Calls that took memory.
    static TAKEN: Cell<u64> = const { Cell::new(0) };
    /// Bytes held now, and the most that were since [`peak_of`] began.
    static HELD: Cell<i64> = const { Cell::new(0) };
    static PEAK: Cell<i64> = const { Cell::new(0) };
}

fn note(taken: u64, bytes: i64) {
    TAKEN.set(TAKEN.get() + taken);
    HELD.set(HELD.get() + bytes);
    PEAK.set(PEAK.get().max(HELD.get()));
}

// SAFETY: every call is handed to the system's allocator as it came; the counters are thread-local cells without a
// destructor, which may be used at any time in a thread's life and allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(1, layout.size() as i64);
        // SAFETY: the caller's promises are the system allocator's conditions.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        note(0, -(layout.size() as i64));
        // SAFETY: as above; the pointer came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // While the system moves a block it may hold both.
        note(1, size as i64);
        note(0, -(layout.size() as i64));
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn taken_by(work: impl FnOnce()) -> u64 {
    let before = TAKEN.get();
    work();
    TAKEN.get() - before
}

/// The most bytes that `work` held at once, beyond what was held before.
fn peak_of(work: impl FnOnce()) -> i64 {
    let before = HELD.get();
    PEAK.set(before);
    work();
    PEAK.get() - before
}

fn limits() -> Limits {
    Limits {
        connections_max: 64,
        jobs_max: 64,
        pieces_max: 64,
        piece_sequences_max: 32,
        head_bytes_max: 16 << 10,
        body_bytes_max: 4 << 20,
        texts_max: 2048,
        text_bytes_max: 1 << 20,
        json_values_max: 256 << 10,
        answer_bytes_max: 64 << 20,
        memory_bytes_max: Some(256 << 20),
    }
}

fn catalog() -> Catalog {
    let entry = |name: &str, task, width| Entry {
        name: name.into(),
        task,
        labels: vec![],
        prompts: vec![],
        default_prompt: None,
        width,
        vocabulary: 30522,
        max_length: 256,
        normalize: true,
    };
    Catalog::new(vec![
        entry("mini", Task::Embedding, 1024),
        entry("rank", Task::Reranking, 1),
        entry("nli", Task::Nli, 3),
    ])
}

/// Requests of every form, each well below the size above which the parser may give its memory back.
fn requests() -> Vec<(Route, String)> {
    let text = "words and \\\"escapes\\\" and 模型 \\u4eca ".repeat(20);
    let texts = vec![format!("\"{text}\""); 500].join(",");
    let lists = vec![format!("[{}1]", "12345,".repeat(300)); 300].join(",");
    let infer = |model| Route::Infer { model };
    vec![
        (infer(0), format!("{{\"documents\":[{texts}]}}")),
        (infer(0), format!("{{\"documents\":\"{text}\",\"dimensions\":100}}")),
        (infer(1), format!("{{\"query\":\"{text}\",\"documents\":[{texts}]}}")),
        (infer(2), format!("{{\"premises\":[{texts}],\"hypotheses\":[{texts}]}}")),
        (Route::Embeddings, format!("{{\"model\":\"mini\",\"encoding_format\":\"base64\",\"input\":[{lists}]}}")),
        // Refused, each at another stage.
        (infer(0), format!("{{\"documents\":[{texts},5]}}")),
        (infer(0), format!("{{\"documents\":[{texts}")),
        (infer(0), format!("{{\"documents\":[{texts}]}}}}")),
        (infer(0), "{\"documents\":\"\\x\"}".into()),
        (Route::Embeddings, "{\"model\":\"a name that is not served\",\"input\":\"a\"}".into()),
        (infer(0), "{\"documents\":\"a\",\"prompt_name\":\"none of these\"}".into()),
    ]
}

#[test]
fn parsing_allocates_nothing_after_warm_up() {
    let (catalog, limits) = (catalog(), limits());
    let (mut scratch, mut inputs) = (Scratch::default(), Inputs::default());
    let mut refusal = Vec::with_capacity(Reject::BODY_BYTES_MAX);
    let mut parse_all = |bodies: &mut [(Route, Vec<u8>, usize)]| {
        for (route, bytes, length) in bodies {
            let parsed = api::parse(*route, bytes, 0..*length, &catalog, &limits, &mut scratch, &mut inputs);
            if let Err(reject) = parsed {
                refusal.clear();
                reject.write(route.family(), &mut refusal);
            }
        }
    };
    // Without room behind the body the parser copies it, with room it does not.
    for spare in [0, 64] {
        let bodies = || -> Vec<(Route, Vec<u8>, usize)> {
            let with_spare = |(route, body): (Route, String)| {
                let length = body.len();
                assert!(length < 1 << 20);
                (route, [body.into_bytes(), vec![b'x'; spare]].concat(), length)
            };
            requests().into_iter().map(with_spare).collect()
        };
        parse_all(&mut bodies());
        let mut again = bodies();
        assert_eq!(taken_by(|| parse_all(&mut again)), 0);
    }
}

#[test]
fn routing_and_refusing_allocate_nothing() {
    let catalog = catalog();
    let mut body = Vec::with_capacity(Reject::BODY_BYTES_MAX);
    let taken = taken_by(|| {
        for path in ["/infer/mini", "/infer/no%20such%20model", "/v1/embeddings", "/no/such/route", "/metrics"] {
            if let Err(reject) = api::route(b"POST", path.as_bytes(), &catalog) {
                body.clear();
                reject.write(Family::of(path.as_bytes()), &mut body);
            }
        }
        body.clear();
        let words = Words::list(catalog.entries().iter().map(|entry| entry.name.as_str()));
        Reject::UnknownPrompt { known: words }.write(Family::OpenAi, &mut body);
        body.clear();
        Reject::NonFinite { place: Place::at(Field::Input, 7) }.write(Family::Native, &mut body);
    });
    assert_eq!(taken, 0);
}

#[test]
fn encoding_fits_the_promised_buffer() {
    let catalog = catalog();
    for (model, family, format, dimensions) in [
        (0, Family::Native, Format::Float, None),
        (0, Family::OpenAi, Format::Float, Some(300)),
        (0, Family::OpenAi, Format::Base64, None),
        (0, Family::OpenAi, Format::Base64, Some(1000)),
        (1, Family::Native, Format::Float, None),
        (1, Family::OpenAi, Format::Float, None),
        (2, Family::Native, Format::Float, None),
    ] {
        let entry = catalog.entry(model);
        let items = 20;
        let outline = Outline {
            model,
            task: entry.task,
            family,
            items,
            format,
            dimensions,
            truncate: true,
            prompt: None,
            lists_cut: 0,
        };
        let count = items * entry.width;
        let values: Vec<u8> = (0..count).flat_map(|index| (-1e-5f32 / (index as f32 + 1.1)).to_le_bytes()).collect();
        let mut out = Vec::with_capacity(api::answer_bytes_max(&outline, entry));
        let answer = Answer { outline, entry, values: &values, prompt_tokens: u64::MAX, device_ns: u64::MAX };
        assert_eq!(taken_by(|| api::encode(&answer, &mut out).unwrap()), 0);
    }
}

#[test]
fn memory_for_inputs_is_bounded() {
    let (catalog, limits) = (catalog(), limits());
    let bound = (Scratch::bytes_max(&limits) + Inputs::bytes_max(&limits)) as i64;
    // As many texts as are taken, and nearly as many token ids as values.
    let list = format!("[{}1]", "1,".repeat(120));
    let lists = vec![list; limits.texts_max].join(",");
    let mut bytes = format!("{{\"model\":\"mini\",\"encoding_format\":\"base64\",\"input\":[{lists}]}}").into_bytes();
    let mut inputs = Inputs::default();
    let mut scratch = Scratch::default();
    let length = bytes.len();
    let peak = peak_of(|| {
        let route = Route::Embeddings;
        api::parse(route, &mut bytes, 0..length, &catalog, &limits, &mut scratch, &mut inputs).unwrap();
    });
    assert_eq!((inputs.items.len(), inputs.ids.len()), (limits.texts_max, limits.texts_max * 121));
    assert!(peak <= bound, "{peak} bytes of {bound}");
}

#[test]
fn the_parsers_memory_is_bounded() {
    let (catalog, limits) = (catalog(), limits());
    let bound = Scratch::bytes_max(&limits) as i64;
    assert!(bound <= 64 << 20, "{bound} bytes for each worker");
    let fill = |unit: &str, bytes: usize| unit.repeat(bytes / unit.len());
    let hostile = [
        // As many values as are read at all, and one text as large as the whole body, escaped.
        format!("{{\"x\":[{}1]}}", fill("1,", limits.json_values_max * 2 - 20)),
        format!("{{\"x\":\"{}\"}}", fill("\\n", limits.body_bytes_max - 10)),
        format!("{{\"x\":[{}1]}}", fill("[],", limits.json_values_max * 3 / 2 - 20)),
        // More than that.
        format!("{{\"x\":{}", fill("[", limits.body_bytes_max - 10)),
        format!("{{\"x\":[{}", fill("\"a\",", limits.body_bytes_max - 10)),
        format!("{{{}", fill("1 ", limits.body_bytes_max - 10)),
        format!("{{{}", fill(",", limits.body_bytes_max - 10)),
        format!("{{\"x\":{}}}", fill("8", limits.body_bytes_max - 10)),
    ];
    let mut inputs = Inputs::default();
    for spare in [0, 64] {
        for body in &hostile {
            let mut bytes = [body.as_bytes(), &vec![b' '; spare]].concat();
            assert!(body.len() <= limits.body_bytes_max);
            let mut scratch = Scratch::default();
            let peak = peak_of(|| {
                let route = Route::Infer { model: 0 };
                let length = body.len();
                let parsed = api::parse(route, &mut bytes, 0..length, &catalog, &limits, &mut scratch, &mut inputs);
                parsed.unwrap_err();
            });
            assert!(peak <= bound, "{peak} bytes of {bound} for {}", &body[..20]);
        }
    }
}
