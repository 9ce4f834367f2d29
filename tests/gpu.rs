//! The GPU device on a real GPU: a program, for machines that have one. Without one it says so and passes over.
//!
//! ```text
//! cargo test --release --features tensorrt-rtx --test gpu -- TASK=FOLDER… [--buckets 1x32,8x128] [--layouts packed,padded]
//!     [--dtype fp16] [--engines FOLDER] [--oracle] [--dump FILE] [--seconds S]
//! ```
//!
//! For each model folder and layout an engine is built and loaded on two lanes, and then:
//!
//! - every bucket runs on every lane, full of random texts; lanes must agree bit by bit, and so must runs without a graph;
//! - `--oracle`: each vector against the CPU device's; `--dump`: texts and vectors as JSON lines, for another reference;
//! - the same text in the same place beside other strangers must be bit-equal;
//! - every pair of buckets in the order A A A A B B B B, on every lane, must give what each gives alone;
//! - times: replay on one lane and on both, and when uploads ran beside the other lane's execution.
//!
//! Exit code 1 and a sentence for whatever does not hold.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use reactrt::config::{self, ModelSettings};
use reactrt::device::cpu::Cpu;
use reactrt::device::cuda::{self, Cuda};
use reactrt::device::gpu::{Gpu, Settings};
use reactrt::device::tensorrt::Library;
use reactrt::device::{Bucket, Device, Lane, Layout, Offer, Pieces, Placement, Plan};
use reactrt::job::{ModelKey, Piece};
use reactrt::model::build::shapes::AskedBucket;
use reactrt::model::build::{self, Options, Origin, Shapes};
use reactrt::model::convert::Dtype;
use reactrt::model::{Model, Task, folder, manifest};

const LANES: usize = 2;
const KEY: ModelKey = ModelKey { index: 0, generation: 1 };

type Failure = Box<dyn std::error::Error>;

struct Asked {
    models: Vec<(Task, PathBuf)>,
    buckets: Option<Vec<AskedBucket>>,
    layouts: Vec<Layout>,
    dtype: Dtype,
    engines: PathBuf,
    has_oracle: bool,
    dump: Option<std::fs::File>,
    seconds: f64,
}

fn main() -> std::process::ExitCode {
    match check_all() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("FAILED: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn check_all() -> Result<(), Failure> {
    let mut asked = read_arguments()?;
    match cuda::devices() {
        Ok(found) if !found.is_empty() => {
            println!("{}, compute capability {}, {} bytes", found[0].name, found[0].capability, found[0].memory_bytes);
        }
        Ok(_) => return pass_over("the driver shows no GPU"),
        Err(error) => return pass_over(&error.0),
    }
    for (task, folder) in std::mem::take(&mut asked.models) {
        for layout in asked.layouts.clone() {
            check(&mut asked, task, &folder, layout)?;
        }
    }
    println!("all holds");
    Ok(())
}

fn pass_over(reason: &str) -> Result<(), Failure> {
    println!("passed over: {reason}");
    Ok(())
}

fn read_arguments() -> Result<Asked, Failure> {
    let mut asked = Asked {
        models: Vec::new(),
        buckets: None,
        layouts: vec![Layout::Packed, Layout::Padded],
        dtype: Dtype::Fp16,
        engines: std::env::temp_dir(),
        has_oracle: false,
        dump: None,
        seconds: 1.0,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match word.as_str() {
            "--buckets" => asked.buckets = Some(value()?.split(',').map(str::parse).collect::<Result<_, _>>()?),
            "--layouts" => {
                let named = |name: &str| Layout::named(name).ok_or_else(|| format!("no layout {name}"));
                asked.layouts = value()?.split(',').map(named).collect::<Result<_, _>>()?;
            }
            "--dtype" => asked.dtype = Dtype::named(&value()?).ok_or("fp16 or fp32")?,
            "--engines" => asked.engines = value()?.into(),
            "--oracle" => asked.has_oracle = true,
            "--dump" => asked.dump = Some(std::fs::File::create(value()?)?),
            "--seconds" => asked.seconds = value()?.parse()?,
            _ => {
                // What cargo itself passes to a test is no model.
                let Some((task, folder)) = word.split_once('=') else { continue };
                asked.models.push((Task::named(task).ok_or_else(|| format!("no task {task}"))?, folder.into()));
            }
        }
    }
    Ok(asked)
}

/// One model on the GPU.
struct Bench {
    gpu: Gpu<Cuda>,
    offer: Offer,
    seed: u64,
    vocabulary: u32,
    types: u8,
    max_length: u32,
}

fn open(model: &Model) -> Result<(Gpu<Cuda>, Offer), Failure> {
    let library = Library::open()?;
    let cuda = Cuda::open(0, &library, Arc::new(|| ()))?;
    let settings = Settings { lanes: LANES, slots_max: 16, hang_ns: 60_000_000_000, sequences_max: None };
    let mut gpu = Gpu::new(cuda, settings)?;
    let offer = gpu.load(KEY, &Arc::new(model.clone()))?;
    Ok((gpu, offer))
}

fn check(asked: &mut Asked, task: Task, path: &Path, layout: Layout) -> Result<(), Failure> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let settings = ModelSettings::new(task, &name, &path.display().to_string(), "the command line");
    let plain = folder::read(path, None, &settings)?;
    let geometry = plain.geometry.clone().ok_or("a folder has a geometry")?;
    println!("\n== {name}, {}, {}, {}", task.name(), layout.name(), asked.dtype.name());

    let engine = asked.engines.join(format!("{name}-{}-{}.engine", layout.name(), asked.dtype.name()));
    let mut origin = Origin::folder(path, task);
    if let Origin::Folder { dtype, layout: made, .. } = &mut origin {
        (*dtype, *made) = (asked.dtype, layout);
    }
    let mut options = Options::new(origin, &engine);
    options.shapes = asked.buckets.clone().map_or(Shapes::Default, Shapes::Buckets);
    let report = build::build(&options, &mut |_| true)?;
    println!("built in {:.1} s, {:.0} MB", report.elapsed.as_secs_f64(), report.manifest.bytes as f64 / 1e6);
    let (model, _) = manifest::read_engine(&engine, None, &settings)?;

    let mut bench = None;
    for start in ["first", "second"] {
        drop(bench.take());
        let begin = Instant::now();
        let (gpu, offer) = open(&model)?;
        println!("{start} load in {:.2} s", begin.elapsed().as_secs_f64());
        bench = Some(Bench {
            gpu,
            offer,
            seed: 20_261_130,
            vocabulary: geometry.vocabulary as u32,
            types: geometry.token_types.min(2) as u8,
            max_length: plain.max_length as u32,
        });
    }
    let mut bench = bench.expect("loaded twice");
    let failures = bench.gpu.counters().capture_failures.load(std::sync::atomic::Ordering::Relaxed);
    if failures > 0 {
        return Err(format!("{failures} captures failed").into());
    }
    let alone = bench.every_bucket_on_every_lane()?;
    bench.eager_runs_agree(&model, &alone)?;
    if asked.has_oracle {
        bench.agree_with_the_cpu(&plain, &alone)?;
    }
    if let Some(file) = &mut asked.dump {
        bench.dump(file, &name, task, layout, &alone)?;
    }
    bench.strangers_do_not_matter()?;
    bench.orders_do_not_matter(&alone)?;
    bench.times(asked.seconds)?;
    Ok(())
}

/// A plan, what it is made of, and the vectors that it gave.
struct Case {
    plan: Plan,
    pieces: Pieces,
    vectors: Vec<Vec<f32>>,
}

impl Bench {
    fn random(&mut self, below: u32) -> u32 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.seed >> 33) % u64::from(below.max(1))) as u32
    }

    /// One random text.
    fn push(&mut self, piece: &mut Piece, length: u32) {
        let split = self.random(length);
        for index in 0..length {
            // Above the special tokens of every family.
            let id = 1_000.min(self.vocabulary / 2) + self.random(self.vocabulary - 1_000.min(self.vocabulary / 2));
            piece.ids.push(id);
            piece.types.push(u8::from(self.types > 1 && index > split));
        }
        piece.ends.push(piece.ids.len() as u32);
    }

    /// A full plan of random texts for a bucket.
    fn plan(&mut self, bucket: usize) -> (Plan, Pieces) {
        let Bucket { rows, length, sequences_max } = self.offer.buckets[bucket];
        let (mut placements, mut piece) = (Vec::new(), Piece { model: KEY, ..Piece::default() });
        for row in 0..rows {
            let mut offset = 0;
            while offset + 4 <= length && placements.len() < sequences_max as usize {
                let most = (length - offset).min(self.max_length);
                let count = 4 + self.random(most - 3);
                self.push(&mut piece, count);
                let sequence = placements.len() as u32;
                placements.push(Placement { piece: 0, sequence, row, offset, length: count });
                offset += if self.offer.layout == Layout::Padded { length } else { count };
            }
        }
        plan_of(bucket, placements, piece)
    }

    fn run(&mut self, lane: usize, plan: &Plan, pieces: &Pieces) -> Result<Vec<Vec<f32>>, Failure> {
        run(&mut self.gpu, lane, plan, pieces)
    }

    fn every_bucket_on_every_lane(&mut self) -> Result<Vec<Case>, Failure> {
        let mut cases = Vec::new();
        for bucket in 0..self.offer.buckets.len() {
            let (plan, pieces) = self.plan(bucket);
            let vectors = self.run(0, &plan, &pieces)?;
            if !vectors.iter().flatten().all(|value| value.is_finite()) {
                return Err(format!("{:?}: not finite", self.offer.buckets[bucket]).into());
            }
            for lane in 1..LANES {
                same(&vectors, &self.run(lane, &plan, &pieces)?, "lanes differ")?;
            }
            cases.push(Case { plan, pieces, vectors });
        }
        println!("{} buckets on {LANES} lanes: lanes agree bit by bit", cases.len());
        Ok(cases)
    }

    /// The same engine where nothing is captured.
    fn eager_runs_agree(&mut self, model: &Model, cases: &[Case]) -> Result<(), Failure> {
        let (mut eager, _) = open(&Model { reuse_dynamic_buffer: false, ..model.clone() })?;
        for case in cases {
            for lane in 0..LANES {
                let vectors = run(&mut eager, lane, &case.plan, &case.pieces)?;
                same(&case.vectors, &vectors, "a graph and an eager run differ")?;
            }
        }
        println!("graphs and eager runs agree bit by bit");
        Ok(())
    }

    fn agree_with_the_cpu(&mut self, plain: &Model, cases: &[Case]) -> Result<(), Failure> {
        let cores = std::thread::available_parallelism()?.get();
        let mut cpu = Cpu::new(&config::Cpu { lanes: 1, threads_per_lane: cores, tokens_max: 512 }, Arc::new(|| ()));
        let offer = cpu.load(KEY, &Arc::new(plain.clone()))?;
        for case in cases {
            let (mut least, mut most) = (1.0_f64, 0.0_f32);
            for (place, vector) in case.plan.placements.iter().zip(&case.vectors) {
                let source = case.pieces.get(place.piece);
                let range = source.range(place.sequence as usize);
                let piece = Piece {
                    model: KEY,
                    ids: source.ids[range.clone()].to_vec(),
                    types: source.types[range].to_vec(),
                    ends: vec![place.length],
                    ..Piece::default()
                };
                let place = Placement { piece: 0, sequence: 0, row: 0, offset: 0, length: place.length };
                let (plan, pieces) = plan_of(0, vec![place], piece);
                let expected = &run(&mut cpu, 0, &plan, &pieces)?[0];
                let cosine = if expected.len() > 1 { cosine(expected, vector) } else { 1.0 };
                least = least.min(cosine);
                let differences = expected.iter().zip(vector).map(|(a, b)| (a - b).abs());
                most = differences.fold(most, f32::max);
            }
            let Bucket { rows, length, .. } = self.offer.buckets[case.plan.bucket as usize];
            let count = case.vectors.len();
            println!(
                "{rows}x{length}: {count} texts against the CPU device: cosine ≥ {least:.7}, |difference| ≤ {most:.2e}"
            );
            if least < 0.9995 || (offer.width == 1 && most > 0.05) {
                return Err(format!("{rows}x{length}: too far from the CPU device").into());
            }
        }
        Ok(())
    }

    fn dump(
        &mut self,
        file: &mut std::fs::File,
        name: &str,
        task: Task,
        layout: Layout,
        cases: &[Case],
    ) -> Result<(), Failure> {
        for case in cases {
            let Bucket { rows, length, .. } = self.offer.buckets[case.plan.bucket as usize];
            let all = case.plan.placements.len();
            // A few from the beginning, the middle and the end of the batch.
            let chosen = (0..all).filter(|index| all <= 24 || index % all.div_ceil(24) == 0 || *index == all - 1);
            for index in chosen {
                let place = case.plan.placements[index];
                let piece = case.pieces.get(place.piece);
                let range = piece.range(place.sequence as usize);
                let line = serde_json::json!({
                    "model": name, "task": task.name(), "layout": layout.name(), "bucket": format!("{rows}x{length}"),
                    "ids": piece.ids[range.clone()], "types": piece.types[range], "vector": case.vectors[index],
                });
                writeln!(file, "{line}")?;
            }
        }
        Ok(())
    }

    /// One text stays where it is, everything around it changes.
    fn strangers_do_not_matter(&mut self) -> Result<(), Failure> {
        let mut compared = 0;
        for bucket in 0..self.offer.buckets.len() {
            let (plan, pieces) = self.plan(bucket);
            let vectors = self.run(0, &plan, &pieces)?;
            let all = plan.placements.len();
            for kept in [0, all / 2, all - 1] {
                let mut piece = Piece { model: KEY, ..Piece::default() };
                for (index, place) in plan.placements.iter().enumerate() {
                    let source = pieces.get(place.piece);
                    if index == kept {
                        let range = source.range(place.sequence as usize);
                        piece.ids.extend(&source.ids[range.clone()]);
                        piece.types.extend(&source.types[range]);
                        piece.ends.push(piece.ids.len() as u32);
                    } else {
                        self.push(&mut piece, place.length);
                    }
                }
                let (other, other_pieces) = plan_of(bucket, plan.placements.clone(), piece);
                let others = self.run(compared % LANES, &other, &other_pieces)?;
                same(&vectors[kept..=kept], &others[kept..=kept], "strangers changed a text's vector")?;
                if all > 1 && self.offer.width > 1 && vectors[(kept + 1) % all] == others[(kept + 1) % all] {
                    return Err("another text gave the same vector".into());
                }
                compared += 1;
            }
        }
        println!("{compared} texts beside other strangers: bit-equal");
        Ok(())
    }

    /// A A A A B B B B for every pair: a stale graph would show.
    fn orders_do_not_matter(&mut self, cases: &[Case]) -> Result<(), Failure> {
        for a in cases {
            for b in cases {
                for lane in 0..LANES {
                    for case in [a, a, a, a, b, b, b, b] {
                        let vectors = self.run(lane, &case.plan, &case.pieces)?;
                        same(&case.vectors, &vectors, "another bucket's graph was replayed")?;
                    }
                }
            }
        }
        println!("every pair of buckets on {LANES} lanes in the order AAAABBBB: bit-equal");
        Ok(())
    }

    fn times(&mut self, seconds: f64) -> Result<(), Failure> {
        println!("bucket      texts   tokens | one lane: ms p50, submit to collected | lanes  ms a batch   tokens/s");
        for bucket in 0..self.offer.buckets.len() {
            let (plan, pieces) = self.plan(bucket);
            let mut single = Vec::new();
            let begin = Instant::now();
            while begin.elapsed().as_secs_f64() < seconds / 2.0 || single.len() < 20 {
                let start = Instant::now();
                self.run(0, &plan, &pieces)?;
                single.push(start.elapsed().as_secs_f64() * 1e3);
            }
            single.sort_by(f64::total_cmp);
            for lane in 0..LANES {
                self.gpu.submit(lane, &plan, &pieces, 0).map_err(|fault| format!("{fault:?}"))?;
            }
            let (mut batches, begin) = (0, Instant::now());
            while begin.elapsed().as_secs_f64() < seconds / 2.0 || batches < 20 {
                for lane in 0..LANES {
                    if self.gpu.poll(lane, 0) == Lane::Done {
                        self.gpu.collect(lane, &mut |_, _| ()).map_err(|fault| format!("{fault:?}"))?;
                        self.gpu.submit(lane, &plan, &pieces, 0).map_err(|fault| format!("{fault:?}"))?;
                        batches += 1;
                    }
                }
            }
            let batch_ms = begin.elapsed().as_secs_f64() * 1e3 / f64::from(batches);
            for lane in 0..LANES {
                while self.gpu.poll(lane, 0) != Lane::Done {}
                self.gpu.collect(lane, &mut |_, _| ()).map_err(|fault| format!("{fault:?}"))?;
            }
            let Bucket { rows, length, .. } = self.offer.buckets[bucket];
            let (name, median) = (format!("{rows}x{length}"), single[single.len() / 2]);
            let rate = f64::from(plan.tokens) / batch_ms * 1e3;
            let texts = plan.placements.len();
            println!(
                "{name:<10} {texts:>6} {:>8} | {median:>38.3} | {LANES:>5} {batch_ms:>11.3} {rate:>10.0}",
                plan.tokens
            );
        }
        self.overlap()
    }

    /// Uploads of one lane that ran while the other computed, by the GPU's own events.
    fn overlap(&mut self) -> Result<(), Failure> {
        let bucket = self.offer.buckets.len() - 1;
        let (plan, pieces) = self.plan(bucket);
        self.gpu.trace(200);
        for lane in 0..LANES {
            self.gpu.submit(lane, &plan, &pieces, 0).map_err(|fault| format!("{fault:?}"))?;
        }
        while self.gpu.runs().len() < 100 {
            for lane in 0..LANES {
                if self.gpu.poll(lane, 0) == Lane::Done {
                    self.gpu.collect(lane, &mut |_, _| ()).map_err(|fault| format!("{fault:?}"))?;
                    self.gpu.submit(lane, &plan, &pieces, 0).map_err(|fault| format!("{fault:?}"))?;
                }
            }
        }
        for lane in 0..LANES {
            while self.gpu.poll(lane, 0) != Lane::Done {}
            self.gpu.collect(lane, &mut |_, _| ()).map_err(|fault| format!("{fault:?}"))?;
        }
        let runs = self.gpu.runs().to_vec();
        let inside = |upload: &reactrt::device::gpu::Run| {
            let other = |run: &&reactrt::device::gpu::Run| run.lane != upload.lane;
            runs.iter()
                .filter(other)
                .any(|run| run.uploaded_ns <= upload.began_ns && upload.uploaded_ns <= run.computed_ns)
        };
        let count = runs.iter().filter(|run| inside(run)).count();
        println!("{count} of {} uploads ran entirely under the other lane's execution; the last runs, µs:", runs.len());
        for run in runs.iter().rev().take(4).rev() {
            let us = |ns: u64| ns as f64 / 1e3;
            println!(
                "  lane {}: upload {:.1} to {:.1}, run to {:.1}, download to {:.1}",
                run.lane,
                us(run.began_ns),
                us(run.uploaded_ns),
                us(run.computed_ns),
                us(run.done_ns)
            );
        }
        Ok(())
    }
}

fn plan_of(bucket: usize, placements: Vec<Placement>, piece: Piece) -> (Plan, Pieces) {
    let tokens = piece.ids.len() as u32;
    let mut pieces = Pieces::with_capacity(1);
    pieces.insert(Box::new(piece));
    (Plan { model: KEY, bucket: bucket as u32, placements, tokens }, pieces)
}

fn run(device: &mut dyn Device, lane: usize, plan: &Plan, pieces: &Pieces) -> Result<Vec<Vec<f32>>, Failure> {
    device.submit(lane, plan, pieces, 0).map_err(|fault| format!("submit: {fault:?}"))?;
    while device.poll(lane, 0) != Lane::Done {
        std::hint::spin_loop();
    }
    let mut vectors = HashMap::new();
    let collected = device.collect(lane, &mut |index, vector| {
        vectors.insert(index, vector.to_vec());
    });
    collected.map_err(|fault| format!("collect: {fault:?}"))?;
    (0..plan.placements.len()).map(|index| vectors.remove(&index).ok_or_else(|| "a vector is missing".into())).collect()
}

fn same(a: &[Vec<f32>], b: &[Vec<f32>], otherwise: &str) -> Result<(), Failure> {
    let bits = |vectors: &[Vec<f32>]| vectors.iter().flatten().map(|value| value.to_bits()).collect::<Vec<u32>>();
    if bits(a) == bits(b) { Ok(()) } else { Err(otherwise.into()) }
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt().max(1e-30)
}
