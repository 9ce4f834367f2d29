//! Converted models, run by onnxruntime, against the CPU device: every small model of the fixtures and MiniLM, in both
//! layouts and both precisions; and what a conversion says of itself and refuses.
//!
//! onnxruntime and MiniLM are fetched when they are not there; without network their tests say so and pass over.

mod oracle;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use oracle::{Random, Sequence, Subject};
use ort::environment::Environment;
use ort::session::{Session, SessionInputValue};
use ort::value::TensorRef;
use reactrt::config::ModelSettings;
use reactrt::device::Layout;
use reactrt::model::convert::{self, Dtype, Metadata, OPSETS, Options, Progress, Report};
use reactrt::model::onnx::{EXTERNAL_ALIGNMENT, Summary, external_path};
use reactrt::model::{Architecture, Pooling, Task};

// --------------------------------------------------------------------------------------------------------------------
// Converting and running
// --------------------------------------------------------------------------------------------------------------------

const LAYOUTS: [Layout; 2] = [Layout::Padded, Layout::Packed];
const DTYPES: [Dtype; 2] = [Dtype::Fp32, Dtype::Fp16];

/// One `.onnx` per test and name, in a folder of this file's own.
fn target(name: &str) -> PathBuf {
    let thread = std::thread::current();
    let test = thread.name().expect("a test's thread bears its name");
    oracle::scratch("convert").join(format!("{test}-{name}.onnx"))
}

fn options(subject: &Subject, layout: Layout, dtype: Dtype, opset: u32) -> Options {
    let name = format!("{}-{layout:?}-{dtype:?}-{opset}", subject.model.name);
    let mut options = Options::new(subject.model.task, &subject.folder, target(&name));
    (options.layout, options.dtype, options.opset) = (layout, dtype, opset);
    options
}

fn convert(options: &Options) -> Report {
    convert::convert(options, &mut |_| {}).unwrap_or_else(|error| panic!("{options:?}: {error}"))
}

/// The one environment of this process; `None` if the library cannot be fetched.
fn environment() -> Option<&'static Environment> {
    static ENVIRONMENT: OnceLock<Option<Environment>> = OnceLock::new();
    let open = || {
        let library = oracle::onnxruntime()?;
        let builder = ort::init_from(&library).unwrap_or_else(|error| panic!("{}: {error}", library.display()));
        Some(builder.build().expect("the first environment of the process"))
    };
    ENVIRONMENT.get_or_init(open).as_ref()
}

/// A grid of tokens as the contract describes it.
#[derive(Clone, Debug)]
struct Grid {
    rows: usize,
    length: usize,
    ids: Vec<i32>,
    types: Vec<i32>,
    mask: Vec<i32>,
    positions: Vec<i32>,
    segments: Vec<i32>,
    firsts: Vec<i32>,
}

impl Grid {
    /// A grid of noise: what lies on padding must not matter.
    fn noise(subject: &Subject, rows: usize, length: usize, random: &mut Random) -> Grid {
        let geometry = subject.model.geometry.as_ref().expect("a folder's model");
        let tokens = rows * length;
        let mut noise = |bound: usize| (0..tokens).map(|_| random.below(bound) as i32).collect::<Vec<i32>>();
        let (ids, types) = (noise(geometry.vocabulary), noise(geometry.token_types));
        let positions = noise(subject.model.max_length);
        let (mask, segments) = (vec![0; tokens], vec![0; tokens]);
        Grid { rows, length, ids, types, mask, positions, segments, firsts: Vec::new() }
    }

    fn put(&mut self, subject: &Subject, sequence: &Sequence, row: usize, offset: usize, segment: i32) {
        let geometry = subject.model.geometry.as_ref().expect("a folder's model");
        let start = row * self.length + offset;
        assert!(offset + sequence.ids.len() <= self.length && row < self.rows);
        let mut position = 0;
        for (index, (&id, token_type)) in sequence.ids.iter().zip(sequence.types()).enumerate() {
            let place = start + index;
            assert_eq!(self.mask[place], 0, "two sequences in one place");
            let is_pad = geometry.architecture == Architecture::Roberta && id as usize + 1 == geometry.position_offset;
            (self.ids[place], self.types[place]) = (id as i32, i32::from(token_type));
            (self.mask[place], self.segments[place]) = (1, segment);
            self.positions[place] = if is_pad { subject.model.max_length as i32 } else { position };
            position += i32::from(!is_pad);
        }
        self.firsts.push(start as i32);
    }

    /// One sequence per row, the last row nothing but padding.
    fn padded(subject: &Subject, sequences: &[Sequence], length: usize, random: &mut Random) -> Grid {
        let mut grid = Grid::noise(subject, sequences.len() + 1, length, random);
        for (row, sequence) in sequences.iter().enumerate() {
            grid.put(subject, sequence, row, 0, 1);
        }
        grid
    }

    /// Several per row with gaps between them and a last row of nothing but padding, in a random order that is returned;
    /// segment ids begin anew in each row and skip numbers.
    fn packed(subject: &Subject, length: usize, random: &mut Random) -> (Grid, Vec<usize>) {
        let sequences = &subject.sequences;
        let mut order: Vec<usize> = (0..sequences.len()).collect();
        for index in (1..order.len()).rev() {
            order.swap(index, random.below(index + 1));
        }
        let mut ends: Vec<usize> = Vec::new();
        let mut places = Vec::new();
        for &index in &order {
            let need = sequences[index].ids.len() + random.below(3);
            let row = ends.iter().position(|end| end + need <= length).unwrap_or(ends.len());
            if row == ends.len() {
                ends.push(0);
            }
            // The gap lies before the sequence.
            let offset = if ends[row] == 0 { 0 } else { ends[row] + need - sequences[index].ids.len() };
            ends[row] = offset + sequences[index].ids.len();
            places.push((index, row, offset));
        }
        let mut grid = Grid::noise(subject, ends.len() + 1, length, random);
        let mut segments = vec![0; ends.len()];
        for (index, row, offset) in places {
            segments[row] += 1 + random.below(2) as i32;
            grid.put(subject, &sequences[index], row, offset, segments[row]);
        }
        (grid, order)
    }

    fn input(&self, name: &str) -> (Vec<usize>, &[i32]) {
        let values = match name {
            convert::INPUT_IDS => &self.ids,
            convert::ATTENTION_MASK => &self.mask,
            convert::TOKEN_TYPE_IDS => &self.types,
            convert::POSITION_IDS => &self.positions,
            convert::SEGMENT_IDS => &self.segments,
            convert::CLS_INDEX => return (vec![self.firsts.len()], &self.firsts),
            other => panic!("input {other} is not in the contract"),
        };
        (vec![self.rows, self.length], values)
    }
}

struct Runner {
    session: Session,
    inputs: Vec<&'static str>,
    output: &'static str,
}

impl Runner {
    fn new(environment: &Environment, report: &Report, path: &Path) -> Runner {
        let session = Session::builder(environment).and_then(|mut builder| builder.commit_from_file(path));
        let session = session.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let names: Vec<&str> = session.inputs().iter().map(|port| port.name()).collect();
        assert_eq!(names, report.inputs, "the report names the file's inputs");
        Runner { session, inputs: report.inputs.clone(), output: report.output }
    }

    /// One vector per row or sequence.
    fn run(&mut self, grid: &Grid) -> Vec<Vec<f32>> {
        let inputs: Vec<(&str, SessionInputValue<'_>)> = self
            .inputs
            .iter()
            .map(|name| {
                let (shape, values) = grid.input(name);
                (*name, TensorRef::from_array_view((shape, values)).expect("a whole tensor").into())
            })
            .collect();
        let outputs = self.session.run(inputs).expect("the file runs");
        let (shape, values) = outputs[self.output].try_extract_tensor::<f32>().expect("outputs are float");
        let width = if shape.len() == 1 { 1 } else { shape[1] as usize };
        assert!(values.iter().all(|value| value.is_finite()), "padding makes no infinity");
        values.chunks_exact(width).map(<[f32]>::to_vec).collect()
    }
}

fn longest(subject: &Subject) -> usize {
    subject.sequences.iter().map(|sequence| sequence.ids.len()).max().expect("a subject has sequences")
}

/// Converts and compares with the CPU device: all sequences at once among noise and padding.
fn compare(subject: &Subject, expected: &[Vec<f32>], layout: Layout, dtype: Dtype, opset: u32) {
    let Some(environment) = environment() else {
        return;
    };
    let options = options(subject, layout, dtype, opset);
    let report = convert(&options);
    let mut runner = Runner::new(environment, &report, &options.output);
    let mut random = Random(7);
    let what = format!("{} {layout:?} {dtype:?} opset {opset}", subject.model.name);
    let found = match layout {
        Layout::Padded => {
            let grid = Grid::padded(subject, &subject.sequences, longest(subject), &mut random);
            let mut vectors = runner.run(&grid);
            assert_eq!(vectors.len(), subject.sequences.len() + 1, "{what}: the row of padding answers too");
            vectors.pop();
            vectors
        }
        Layout::Packed => {
            let (mut grid, order) = Grid::packed(subject, longest(subject) + 9, &mut random);
            assert!(grid.rows - 1 < subject.sequences.len(), "{what}: some row holds two");
            // Unused entries may point anywhere, padding included.
            grid.firsts.extend([0, (grid.rows * grid.length) as i32 - 1]);
            let vectors = runner.run(&grid);
            let mut sorted = vec![Vec::new(); order.len()];
            order.iter().zip(vectors).for_each(|(&index, vector)| sorted[index] = vector);
            sorted
        }
    };
    oracle::assert_equal(&what, subject.model.task, dtype == Dtype::Fp16, &found, expected);
    std::fs::remove_file(&options.output).expect("the file is there");
}

// --------------------------------------------------------------------------------------------------------------------
// What is computed
// --------------------------------------------------------------------------------------------------------------------

#[test]
fn small_models_equal_the_cpu_device() {
    if environment().is_none() {
        return;
    }
    for subject in oracle::all_small() {
        let expected = oracle::cpu(&subject);
        for layout in LAYOUTS {
            for dtype in DTYPES {
                compare(&subject, &expected, layout, dtype, 17);
            }
        }
    }
}

/// From opset 20 on GELU is one operator; the tanh form is `bert-nli`'s.
#[test]
fn every_opset_computes_the_same() {
    if environment().is_none() {
        return;
    }
    for name in ["bert-nli", "xlm-roberta-embedding"] {
        let subject = oracle::small(name);
        let expected = oracle::cpu(&subject);
        for opset in OPSETS {
            compare(&subject, &expected, Layout::Packed, Dtype::Fp16, opset);
            compare(&subject, &expected, Layout::Padded, Dtype::Fp32, opset);
        }
    }
}

#[test]
fn minilm_equals_the_cpu_device() {
    let (Some(_), Some(mut subject)) = (environment(), oracle::minilm()) else {
        return;
    };
    // Every fourth: short and long ones are among them, and a debug build's CPU device is slow.
    subject.sequences = subject.sequences.into_iter().step_by(4).collect();
    let expected = oracle::cpu(&subject);
    for layout in LAYOUTS {
        for dtype in DTYPES {
            compare(&subject, &expected, layout, dtype, 17);
        }
    }
}

/// The mask leaves nothing of a neighbour: not a bit of the vector changes with it.
#[test]
fn a_sequence_is_bit_equal_beside_any_strangers() {
    let Some(environment) = environment() else {
        return;
    };
    for name in ["bert-embedding-mean", "bert-reranker", "xlm-roberta-embedding", "roberta-nli"] {
        let subject = oracle::small(name);
        let (one, strangers) = (&subject.sequences[0], &subject.sequences[1..]);
        for dtype in DTYPES {
            let options = options(&subject, Layout::Packed, dtype, 17);
            let report = convert(&options);
            let mut runner = Runner::new(environment, &report, &options.output);
            let (length, offset) = (2 * longest(&subject) + one.ids.len(), longest(&subject));
            let mut vector_beside = |before: Option<&Sequence>, after: Option<&Sequence>, noise: u64| {
                let mut grid = Grid::noise(&subject, 3, length, &mut Random(noise));
                grid.put(&subject, one, 1, offset, 5);
                if let Some(before) = before {
                    grid.put(&subject, before, 1, offset - before.ids.len(), 4);
                    grid.put(&subject, before, 2, 0, 5);
                }
                if let Some(after) = after {
                    grid.put(&subject, after, 1, offset + one.ids.len(), 6);
                }
                // Only the first is asked for, so that the product of the last layer has one shape.
                grid.firsts.truncate(1);
                runner.run(&grid).remove(0)
            };
            let alone = vector_beside(None, None, 1);
            for (index, stranger) in strangers.iter().enumerate() {
                let other = &strangers[(index + 1) % strangers.len()];
                let among = vector_beside(Some(stranger), Some(other), 2 + index as u64);
                assert_eq!(among, alone, "{name} {dtype:?} beside {index}");
            }
        }
    }
}

// --------------------------------------------------------------------------------------------------------------------
// What is written
// --------------------------------------------------------------------------------------------------------------------

#[test]
fn weights_in_a_second_file_are_the_same_weights() {
    let subject = oracle::small("xlm-roberta-reranker");
    let inside = options(&subject, Layout::Packed, Dtype::Fp16, 17);
    let mut outside = inside.clone();
    outside.output = target("outside");
    outside.embedded_bytes_max = 1000;
    let (embedded, external) = (convert(&inside), convert(&outside));
    assert_eq!(embedded.written.external, None);
    let (path, bytes) = external.written.external.clone().expect("the weights lie outside");
    assert_eq!(path, external_path(&outside.output));
    assert_eq!(std::fs::metadata(&path).expect("the file is there").len(), bytes);
    assert!(external.written.model_bytes < embedded.written.model_bytes && bytes > EXTERNAL_ALIGNMENT);
    let Some(environment) = environment() else {
        return;
    };
    let (grid, _) = Grid::packed(&subject, longest(&subject) + 3, &mut Random(3));
    let run = |report: &Report, path: &Path| Runner::new(environment, report, path).run(&grid);
    assert_eq!(run(&external, &outside.output), run(&embedded, &inside.output));
}

#[test]
fn a_file_says_what_it_is() {
    let subject = oracle::small("roberta-nli");
    let mut options = options(&subject, Layout::Packed, Dtype::Fp16, 21);
    options.max_length = Some(24);
    let mut steps = Vec::new();
    let report = convert::convert(&options, &mut |step| steps.push(step)).expect("it converts");
    let summary = Summary::read(&options.output).expect("it can be read");
    assert_eq!((summary.opset, summary.producer_name.as_str()), (21, "reactrt"));
    assert_eq!(Metadata::of(&summary), Ok(Some(report.metadata.clone())));
    let Metadata { task, layout, dtype, max_length, pad_token, labels, .. } = report.metadata.clone();
    assert_eq!((task, layout, dtype, max_length), (Task::Nli, Layout::Packed, Dtype::Fp16, 24));
    assert_eq!(pad_token, Some(1));
    assert_eq!(labels, subject.model.labels);
    // What `sha256sum model.safetensors` prints.
    let weights = std::fs::read(subject.folder.join("model.safetensors")).expect("the fixture has weights");
    let digest: String = {
        use sha2::{Digest, Sha256};
        Sha256::digest(&weights).iter().map(|byte| format!("{byte:02x}")).collect()
    };
    assert_eq!(report.metadata.digest, digest);
    let total = weights.len() as u64;
    assert!(steps.contains(&Progress::Reading { done: total, total }));
    assert!(matches!(steps.last(), Some(Progress::Writing { done, total }) if done == total));
}

#[test]
fn a_converted_file_is_a_model_again() {
    let subject = oracle::small("bert-embedding-mean");
    let options = options(&subject, Layout::Padded, Dtype::Fp32, 17);
    let report = convert(&options);
    let file = options.output.display().to_string();
    let settings = ModelSettings::new(Task::Embedding, "again", &file, "config.yaml:3");
    let again = convert::read(&options.output, None, &settings).expect("it speaks for itself");
    let model = &report.model;
    assert_eq!(
        (again.pooling, again.normalize, again.max_length, &again.tokenizer),
        (model.pooling, model.normalize, model.max_length, &model.tokenizer)
    );
    let mut asks = settings.clone();
    asks.max_length = Some(model.max_length + 1);
    let error = convert::read(&options.output, None, &asks).expect_err("it has no positions for more");
    assert!(error.0.contains("config.yaml:3 asks for"), "{error}");
    asks.max_length = Some(8);
    asks.pooling = Some(Pooling::Cls);
    let shorter = convert::read(&options.output, None, &asks).expect("the configuration wins");
    assert_eq!((shorter.max_length, shorter.pooling), (8, Pooling::Cls));
    let ranks = ModelSettings::new(Task::Reranking, "again", &file, "config.yaml:9");
    let error = convert::read(&options.output, None, &ranks).expect_err("it gives no scores");
    assert!(error.0.contains("converted for embedding, and config.yaml:9 lists it for reranking"), "{error}");
    let error = convert::read(&options.output, Some(Path::new("/nowhere")), &settings).expect_err("no tokenizer");
    assert!(error.0.contains("/nowhere"), "{error}");
}

#[test]
fn options_overrule_the_folder() {
    let subject = oracle::small("bert-embedding-mean");
    let mut options = options(&subject, Layout::Padded, Dtype::Fp32, 17);
    options.output = target("overruled");
    (options.pooling, options.normalize) = (Some(Pooling::Cls), Some(false));
    let report = convert(&options);
    assert_eq!((report.metadata.pooling, report.metadata.normalize), (Pooling::Cls, false));
    let Some(environment) = environment() else {
        return;
    };
    let mut model = (*subject.model).clone();
    (model.pooling, model.normalize) = (Pooling::Cls, false);
    let overruled = Subject { model: model.into(), folder: subject.folder, sequences: subject.sequences };
    let expected = oracle::cpu(&overruled);
    let grid = Grid::padded(&overruled, &overruled.sequences, longest(&overruled), &mut Random(2));
    let mut found = Runner::new(environment, &report, &options.output).run(&grid);
    found.pop();
    oracle::assert_equal("overruled", Task::Embedding, false, &found, &expected);
}

#[test]
fn what_cannot_be_converted_is_refused_in_words_and_leaves_nothing() {
    let subject = oracle::small("bert-embedding-mean");
    let good = options(&subject, Layout::Padded, Dtype::Fp32, 17);
    let refused = |change: &dyn Fn(&mut Options)| {
        let mut options = good.clone();
        options.output = target("refused");
        change(&mut options);
        let error = convert::convert(&options, &mut |_| {}).expect_err("it is refused").0;
        assert!(!options.output.is_file(), "{error}: and yet something was written");
        error
    };
    assert!(refused(&|options| options.opset = 16).contains("opset 16: this converter writes 17 to 23"));
    assert!(refused(&|options| options.output = oracle::scratch("convert")).contains("a folder"));
    assert!(refused(&|options| options.output = "/nowhere/model.onnx".into()).contains("/nowhere: no such folder"));
    assert!(refused(&|options| options.task = Task::Reranking).contains("config.json"));
    assert!(refused(&|options| options.max_length = Some(100_000)).contains("max_length 100000"));
    assert!(refused(&|options| options.folder = "/nowhere".into()).contains("/nowhere"));
}
