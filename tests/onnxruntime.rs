//! The onnxruntime device: our own files against the CPU device, files as others export them, and what it refuses.
//!
//! Other people's files are made here with the graph builder, small enough that what they must answer is plain.
#![cfg(feature = "onnxruntime")]

mod oracle;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use oracle::{Bench, KEY, SETTINGS, Sequence, Subject};
use reactrt::config::ModelSettings;
use reactrt::device::onnx::Onnx;
use reactrt::device::{Device, Fault, Lane, Layout, LoadError, Offer, Pieces, Placement, Plan};
use reactrt::job::Piece;
use reactrt::model::convert::{self, Dtype, Options};
use reactrt::model::onnx::{Dimension, EMBEDDED_BYTES_MAX, Element, Graph, Value};
use reactrt::model::{Head, Model, Pooling, Source, Task};

fn bench() -> Option<Bench<Onnx>> {
    let library = oracle::onnxruntime()?;
    let make = |notify| Onnx::new(&SETTINGS, Some(&library), notify).unwrap_or_else(|error| panic!("{error}"));
    Some(Bench::new(make))
}

fn target(name: &str) -> PathBuf {
    oracle::scratch("onnxruntime").join(format!("{name}.onnx"))
}

// --------------------------------------------------------------------------------------------------------------------
// Our own files
// --------------------------------------------------------------------------------------------------------------------

fn converted(subject: &Subject, layout: Layout, dtype: Dtype) -> Arc<Model> {
    let path = target(&format!("{}-{layout:?}-{dtype:?}", subject.model.name));
    let mut options = Options::new(subject.model.task, &subject.folder, &path);
    (options.layout, options.dtype) = (layout, dtype);
    convert::convert(&options, &mut |_| {}).unwrap_or_else(|error| panic!("{error}"));
    let settings = ModelSettings::new(subject.model.task, "model", &path.display().to_string(), "tests");
    Arc::new(convert::read(&path, None, &settings).unwrap_or_else(|error| panic!("{error}")))
}

#[test]
fn converted_models_answer_as_the_cpu_device_does() {
    let Some(mut bench) = bench() else {
        return;
    };
    for subject in oracle::all_small() {
        let expected = oracle::cpu(&subject);
        for layout in [Layout::Padded, Layout::Packed] {
            for dtype in [Dtype::Fp32, Dtype::Fp16] {
                let model = converted(&subject, layout, dtype);
                let offer = bench.device.load(KEY, &model).unwrap_or_else(|error| panic!("{error}"));
                assert_eq!((offer.layout, offer.width as usize), (layout, subject.model.width()));
                assert!(offer.length_max() as usize >= subject.model.max_length);
                let found = bench.run_all(&offer, &subject.sequences);
                let what = format!("{} {layout:?} {dtype:?}", subject.model.name);
                oracle::assert_equal(&what, subject.model.task, dtype == Dtype::Fp16, &found, &expected);
                bench.device.unload(KEY);
            }
        }
    }
}

#[test]
fn minilm_answers_as_the_cpu_device_does() {
    let (Some(mut bench), Some(mut subject)) = (bench(), oracle::minilm()) else {
        return;
    };
    subject.sequences = subject.sequences.into_iter().step_by(5).collect();
    let expected = oracle::cpu(&subject);
    let offer = bench.device.load(KEY, &converted(&subject, Layout::Padded, Dtype::Fp32)).expect("it loads");
    let found = bench.run_all(&offer, &subject.sequences);
    oracle::assert_equal("MiniLM", Task::Embedding, false, &found, &expected);
}

// --------------------------------------------------------------------------------------------------------------------
// Files of others
// --------------------------------------------------------------------------------------------------------------------

const VOCABULARY: usize = 10;
const WIDTH: usize = 3;

/// Token `id` is the vector `[id, id / 2, 1]`.
fn token(id: u32) -> [f32; WIDTH] {
    [id as f32, id as f32 / 2.0, 1.0]
}

/// A file under construction whose token vectors are a table's rows.
struct Foreign {
    graph: Graph<'static>,
    dims: [Dimension; 2],
    ids: Value,
}

impl Foreign {
    fn new(element: Element, dims: [Dimension; 2], ids: &str) -> Foreign {
        let mut graph = Graph::new("foreign", 17);
        let ids = graph.input(ids, element, &dims);
        Foreign { graph, dims, ids }
    }

    fn open(element: Element) -> Foreign {
        Foreign::new(element, [Dimension::named("batch_size"), Dimension::named("sequence_length")], "input_ids")
    }

    fn input(&mut self, name: &str) -> Value {
        let element = self.graph.element(self.ids);
        self.graph.input(name, element, &self.dims)
    }

    /// `[batch, sequence, WIDTH]`, an output of this name.
    fn hidden(&mut self, name: &str, element: Element) -> Value {
        let produce = Box::new(|take: &mut dyn FnMut(&[f32]) -> Result<(), _>| {
            (0..VOCABULARY as u32).try_for_each(|id| take(&token(id)))
        });
        let table = self.graph.weight(&format!("{name}/table"), element, &[VOCABULARY, WIDTH], produce);
        let hidden = self.graph.gather(name, table, self.ids, 0);
        let [rows, length] = self.dims.clone();
        self.graph.output(hidden, &[rows, length, Dimension::Fixed(WIDTH)]);
        hidden
    }

    /// The sum of all token vectors of a row, padding included: `[batch, WIDTH]`.
    fn pooled(&mut self, name: &str) {
        let hidden = self.hidden(&format!("{name}_tokens"), Element::Float);
        let pooled = self.graph.reduce_sum(name, hidden, 1, false);
        self.graph.output(pooled, &[self.dims[0].clone(), Dimension::named("width")]);
    }

    fn model(&self, name: &str, task: Task) -> Model {
        let path = target(name);
        self.graph.write(&path, EMBEDDED_BYTES_MAX, &mut |_, _| {}).expect("it can be written");
        Model {
            name: name.to_owned(),
            task,
            source: Source::Onnx(path),
            tokenizer: PathBuf::new(),
            geometry: None,
            head: Head::Embedding,
            pooling: Pooling::Mean,
            normalize: false,
            max_length: 8,
            labels: Vec::new(),
            prompts: Vec::new(),
            default_prompt: None,
            cuda_graph_list: Vec::new(),
            output: None,
            unpositioned: None,
            reuse_dynamic_buffer: false,
        }
    }
}

fn sequences(all: &[&[u32]]) -> Vec<Sequence> {
    all.iter().map(|ids| Sequence { ids: ids.to_vec(), types: Vec::new() }).collect()
}

fn load(bench: &mut Bench<Onnx>, model: Model) -> Result<Offer, LoadError> {
    bench.device.load(KEY, &Arc::new(model))
}

fn mean(ids: &[u32]) -> Vec<f32> {
    let sum = |index: usize| ids.iter().map(|&id| token(id)[index]).sum::<f32>() / ids.len() as f32;
    (0..WIDTH).map(sum).collect()
}

#[test]
fn hidden_states_are_pooled_here_without_their_padding() {
    let Some(mut bench) = bench() else {
        return;
    };
    let texts = sequences(&[&[3, 5, 7, 9], &[4], &[2, 2, 8]]);
    // int64 and int32 ids, float and half states, names of several exporters.
    for (index, (ids, states, mask, name)) in [
        (Element::Int64, Element::Float, "attention_mask", "last_hidden_state"),
        (Element::Int32, Element::Half, "input_mask", "token_embeddings"),
        (Element::Int64, Element::Float, "mask", "1234"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut foreign = Foreign::open(ids);
        foreign.input(mask);
        if index == 0 {
            foreign.input("token_type_ids");
        }
        foreign.hidden(name, states);
        let mut model = foreign.model(&format!("hidden-{index}"), Task::Embedding);
        let offer = load(&mut bench, model.clone()).expect("it loads");
        assert_eq!((offer.layout, offer.width), (Layout::Padded, WIDTH as u32));
        let found = bench.run_all(&offer, &texts);
        assert_eq!(found, texts.iter().map(|text| mean(&text.ids)).collect::<Vec<_>>());
        model.pooling = Pooling::Cls;
        load(&mut bench, model.clone()).expect("it loads");
        let firsts: Vec<_> = texts.iter().map(|text| token(text.ids[0]).to_vec()).collect();
        assert_eq!(bench.run_all(&offer, &texts), firsts);
        model.normalize = true;
        load(&mut bench, model).expect("it loads");
        for (vector, first) in bench.run_all(&offer, &texts).iter().zip(&firsts) {
            let norm = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
            assert!((norm - 1.0).abs() < 1e-6 && oracle::cosine(vector, first) > 0.999_999);
        }
    }
}

#[test]
fn a_pooled_output_wins_over_hidden_states_and_a_pooler_does_not() {
    let Some(mut bench) = bench() else {
        return;
    };
    // Equal lengths, so that the sum has no padding in it.
    let texts = sequences(&[&[3, 5], &[1, 1]]);
    let mut foreign = Foreign::open(Element::Int64);
    foreign.input("attention_mask");
    foreign.pooled("sentence_embedding");
    let offer = load(&mut bench, foreign.model("pooled", Task::Embedding)).expect("it loads");
    assert_eq!(offer.width, WIDTH as u32, "found by the trial run, as the file does not fix it");
    assert_eq!(bench.run_all(&offer, &texts), [[8.0, 4.0, 2.0], [2.0, 1.0, 2.0]]);
    let mut foreign = Foreign::open(Element::Int64);
    foreign.input("attention_mask");
    foreign.pooled("pooler_output");
    let offer = load(&mut bench, foreign.model("pooler", Task::Embedding)).expect("it loads");
    assert_eq!(bench.run_all(&offer, &texts), [[4.0, 2.0, 1.0], [1.0, 0.5, 1.0]]);
}

#[test]
fn fixed_dimensions_are_filled_up() {
    let Some(mut bench) = bench() else {
        return;
    };
    let mut foreign = Foreign::new(Element::Int32, [Dimension::Fixed(2), Dimension::Fixed(8)], "ids");
    foreign.input("attention_mask");
    foreign.hidden("states", Element::Float);
    let model = foreign.model("fixed", Task::Embedding);
    let offer = load(&mut bench, model.clone()).expect("it loads");
    assert_eq!(offer.buckets.len(), 1);
    let bucket = offer.buckets[0];
    assert_eq!((bucket.rows, bucket.length, bucket.sequences_max), (2, 8, 2));
    let texts = sequences(&[&[3, 5, 7], &[4], &[2, 2, 8, 1, 1, 1, 1, 9]]);
    assert_eq!(bench.run_all(&offer, &texts), texts.iter().map(|text| mean(&text.ids)).collect::<Vec<_>>());
    // A lone text may lie in any row.
    let place = Placement { piece: 0, sequence: 0, row: 1, offset: 0, length: 3 };
    assert_eq!(bench.run(0, vec![place], &texts[..1], offer.width), [mean(&[3, 5, 7])]);
    let long = Model { max_length: 9, ..model };
    let error = load(&mut bench, long).expect_err("the file ends at 8");
    assert!(error.0.contains("takes 8 tokens, and the model's max_length is 9; set `max_length: 8`"), "{error}");
}

#[test]
fn files_that_are_not_understood_are_refused_by_name() {
    let Some(mut bench) = bench() else {
        return;
    };
    let mut refused = |what: &str, task: Task, build: &dyn Fn(&mut Foreign)| {
        let mut foreign = Foreign::open(Element::Int64);
        build(&mut foreign);
        load(&mut bench, foreign.model(&format!("refused-{what}"), task)).expect_err(what).0
    };
    let error = refused("no-mask", Task::Embedding, &|foreign| {
        foreign.hidden("last_hidden_state", Element::Float);
    });
    assert!(error.contains("no input `attention_mask` (it has input_ids)"), "{error}");
    let error = refused("positions", Task::Embedding, &|foreign| {
        foreign.input("attention_mask");
        foreign.input("position_ids");
        foreign.hidden("last_hidden_state", Element::Float);
    });
    assert!(error.contains("input `position_ids` is not understood"), "{error}");
    let error = refused("two-outputs", Task::Embedding, &|foreign| {
        foreign.input("attention_mask");
        foreign.hidden("a", Element::Float);
        foreign.hidden("b", Element::Float);
    });
    assert!(error.contains("none of its outputs is certain to be the answer (`a`"), "{error}");
    let error = refused("wide-scores", Task::Reranking, &|foreign| {
        foreign.input("attention_mask");
        foreign.pooled("logits");
    });
    assert!(error.contains("output `logits` has 3 values; a reranker has one score"), "{error}");
    let path = target("refused-garbage");
    std::fs::write(&path, b"no model").expect("a file to read");
    let mut foreign = Foreign::open(Element::Int64);
    foreign.hidden("last_hidden_state", Element::Float);
    let model = Model { source: Source::Onnx(path.clone()), ..foreign.model("refused-other", Task::Embedding) };
    let error = load(&mut bench, model).expect_err("it is no model").0;
    assert!(error.starts_with(&path.display().to_string()), "{error}");
}

// --------------------------------------------------------------------------------------------------------------------
// The device
// --------------------------------------------------------------------------------------------------------------------

#[test]
fn a_plan_that_does_not_fit_is_refused_and_a_failed_run_leaves_the_lane_usable() {
    let Some(mut bench) = bench() else {
        return;
    };
    let mut foreign = Foreign::open(Element::Int64);
    foreign.input("attention_mask");
    foreign.hidden("last_hidden_state", Element::Float);
    let offer = load(&mut bench, foreign.model("faults", Task::Embedding)).expect("it loads");
    let place = Placement { piece: 0, sequence: 0, row: 0, offset: 0, length: 2 };
    let mut submit = |placements: Vec<Placement>, bucket: u32, model| {
        let mut pieces = Pieces::with_capacity(1);
        pieces.insert(Box::new(Piece { ids: vec![3, 4], types: vec![0, 0], ends: vec![2], ..Piece::default() }));
        let result = bench.device.submit(0, &Plan { model, bucket, placements, tokens: 2 }, &pieces, 0);
        assert_eq!(bench.device.poll(0, 0) == Lane::Idle, result.is_err());
        result
    };
    assert_eq!(submit(vec![], 0, KEY), Err(Fault::Refused));
    assert_eq!(submit(vec![place], 999, KEY), Err(Fault::Refused));
    assert_eq!(submit(vec![Placement { row: 1_000_000, ..place }], 0, KEY), Err(Fault::Refused));
    assert_eq!(submit(vec![Placement { offset: 1, ..place }], 0, KEY), Err(Fault::Refused), "padded rows begin at 0");
    assert_eq!(submit(vec![Placement { length: 1, ..place }], 0, KEY), Err(Fault::Refused), "lengths must agree");
    let last = offer.buckets.len() as u32 - 1;
    assert_eq!(submit(vec![place, place], last, KEY), Err(Fault::Refused), "two in one place");
    let stale = reactrt::job::ModelKey { generation: 0, ..KEY };
    assert_eq!(submit(vec![place], 0, stale), Err(Fault::Refused));
    // An id beyond the table: onnxruntime finds it while it runs.
    let mut pieces = Pieces::with_capacity(1);
    pieces.insert(Box::new(Piece { ids: vec![3, 999], types: vec![0, 0], ends: vec![2], ..Piece::default() }));
    let plan = Plan { model: KEY, bucket: 0, placements: vec![place], tokens: 2 };
    bench.device.submit(0, &plan, &pieces, 0).expect("it is not known before");
    while bench.device.poll(0, 0) != Lane::Done {
        std::thread::yield_now();
    }
    assert_eq!(bench.device.collect(0, &mut |_, _| panic!("there is no result")), Err(Fault::Failed));
    // A fresh bench's channel would do as well; this one has the failed run's word still in it.
    let mut bench = self::bench().expect("it was there a moment ago");
    load(&mut bench, foreign.model("faults", Task::Embedding)).expect("it loads");
    assert_eq!(bench.run(0, vec![place], &sequences(&[&[3, 4]]), 3), [mean(&[3, 4])]);
}

#[test]
fn a_missing_library_is_named_with_the_place_that_was_looked_at() {
    // A process opens one library, so the refusal is seen in a process of its own.
    let this = std::env::current_exe().expect("a test has a file");
    let output = Command::new(this)
        .args(["--exact", "in_a_process_without_a_library", "--ignored", "--nocapture"])
        .env("ORT_DYLIB_PATH", "/nowhere/libonnxruntime.so")
        .output()
        .expect("the test starts");
    let words = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{words}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(words.contains("looked for /nowhere/libonnxruntime.so as ORT_DYLIB_PATH says"), "{words}");
    assert!(words.contains("looked for /elsewhere/lib.so as configured"), "{words}");
}

#[test]
#[ignore = "run by the test above, with its environment"]
fn in_a_process_without_a_library() {
    for library in [None, Some(Path::new("/elsewhere/lib.so"))] {
        println!("{}", Onnx::new(&SETTINGS, library, Arc::new(|| {})).expect_err("there is none"));
    }
}
