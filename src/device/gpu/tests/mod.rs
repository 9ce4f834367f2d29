//! The whole room over a GPU made of vectors: every layout and type, every pair of buckets on every lane, every call that
//! can fail.

mod fake;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use self::fake::{Fake, FakeEngine, expected};
use super::*;
use crate::device::sim::tests::model as plain_model;
use crate::device::{Bucket, Layout, Placement};
use crate::job::Piece;
use crate::model::engine::{Description, ShapeRange, Tensor};
use crate::model::{Pooling, Task};

const LANES: usize = 2;

/// What an engine looks like from outside.
#[derive(Clone, Debug)]
struct Looks {
    layout: Layout,
    integers: ElementType,
    has_types: bool,
    /// Ranges of rows and lengths of each profile, and sequences where packed.
    profiles: Vec<[(i64, i64); 3]>,
    output: (&'static str, ElementType, usize, i64),
    unpositioned: Option<(u32, u32)>,
}

impl Looks {
    fn padded(profiles: &[[(i64, i64); 3]]) -> Looks {
        Looks {
            layout: Layout::Padded,
            integers: ElementType::I32,
            has_types: true,
            profiles: profiles.to_vec(),
            output: ("embeddings", ElementType::F32, 2, 8),
            unpositioned: None,
        }
    }

    fn packed(buckets: &[[i64; 3]]) -> Looks {
        let profiles: Vec<_> = buckets.iter().map(|bucket| bucket.map(|size| (size, size))).collect();
        Looks { layout: Layout::Packed, ..Looks::padded(&profiles) }
    }

    fn description(&self) -> Description {
        let [rows, length, sequences] = [0, 1, 2].map(|index| self.profiles.iter().map(move |profile| profile[index]));
        let tensor = |name: &str, dimensions: Vec<Vec<(i64, i64)>>| {
            let all = |pick: fn(&(i64, i64)) -> i64, profile: usize| {
                dimensions.iter().map(|dimension| pick(&dimension[profile])).collect::<Vec<i64>>()
            };
            let ranges: Vec<ShapeRange> = (0..self.profiles.len())
                .map(|profile| {
                    let (min, max) = (all(|span| span.0, profile), all(|span| span.1, profile));
                    ShapeRange { min, opt: max.clone(), max }
                })
                .collect();
            Tensor {
                name: name.into(),
                element: self.integers,
                shape: vec![-1; dimensions.len()],
                ranges,
                on_host: false,
            }
        };
        let grid = || vec![rows.clone().collect(), length.clone().collect()];
        let mut names = match self.layout {
            Layout::Padded => vec!["input_ids", "attention_mask"],
            Layout::Packed => vec!["input_ids", "position_ids", "segment_ids"],
        };
        if self.has_types {
            names.push("token_type_ids");
        }
        let mut inputs: Vec<Tensor> = names.into_iter().map(|name| tensor(name, grid())).collect();
        if self.layout == Layout::Packed {
            inputs.push(tensor("cls_index", vec![sequences.collect()]));
        }
        let (name, element, rank, width) = self.output;
        let mut shape = vec![-1; rank];
        if rank > 1 {
            shape[rank - 1] = width;
        }
        let output = Tensor { name: name.into(), element, shape, ranges: Vec::new(), on_host: false };
        let profiles = self.profiles.len();
        Description { inputs, outputs: vec![output], profiles, context_bytes: vec![0; profiles] }
    }
}

fn settings() -> Settings {
    Settings { lanes: LANES, slots_max: 12, hang_ns: 1_000_000, sequences_max: None }
}

fn engine_model(name: &str, task: Task, max_length: usize) -> Model {
    let plain = plain_model(task, max_length);
    let path = std::env::temp_dir().join("reactrt-gpu-tests");
    std::fs::create_dir_all(&path).unwrap();
    let path = path.join(name);
    std::fs::write(&path, b"plan").unwrap();
    Model { name: name.into(), source: Source::Engine(path), reuse_dynamic_buffer: true, ..(*plain).clone() }
}

/// A device over the fake, and what is loaded on it.
struct Bench {
    fake: Fake,
    gpu: Gpu<Fake>,
    rung: Arc<AtomicUsize>,
    models: Vec<(ModelKey, Offer, Ports)>,
    seed: u64,
    now_ns: u64,
}

impl Bench {
    fn new() -> Bench {
        Bench::with(settings())
    }

    fn with(settings: Settings) -> Bench {
        let rung = Arc::new(AtomicUsize::new(0));
        let bell = Arc::clone(&rung);
        let fake = Fake::new(Arc::new(move || {
            bell.fetch_add(1, Ordering::Relaxed);
        }));
        let gpu = Gpu::new(fake.clone(), settings).unwrap();
        Bench { fake, gpu, rung, models: Vec::new(), seed: 7, now_ns: 1 }
    }

    fn add(&mut self, looks: &Looks, model: &Model) -> Result<usize, LoadError> {
        let description = looks.description();
        let mut ports = Ports::read(&description.inputs, &description.outputs, model).map_err(LoadError)?;
        ports.output.width = if looks.output.2 == 1 { 1 } else { looks.output.3.unsigned_abs() as usize };
        let engine = FakeEngine { description, ports: ports.clone(), scratch: 3, unpositioned: looks.unpositioned };
        self.fake.engines.lock().unwrap().insert(model.name.clone(), Arc::new(engine));
        let key = ModelKey { index: self.models.len() as u32, generation: 4 };
        let model = Arc::new(Model { unpositioned: looks.unpositioned, ..model.clone() });
        let offer = self.gpu.load(key, &model)?;
        self.models.push((key, offer, ports));
        Ok(self.models.len() - 1)
    }

    fn random(&mut self, below: u32) -> u32 {
        self.seed = self.seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.seed >> 33) % u64::from(below)) as u32
    }

    /// A full plan of random sequences for a bucket.
    fn plan(&mut self, model: usize, bucket: usize) -> (Plan, Pieces) {
        let (key, offer, _) = self.models[model].clone();
        let Bucket { rows, length, sequences_max } = offer.buckets[bucket];
        let (mut placements, mut piece) = (Vec::new(), Piece { model: key, ..Piece::default() });
        for row in 0..rows {
            let mut offset = 0;
            while offset < length && placements.len() < sequences_max as usize {
                let count = 1 + self.random(length - offset);
                for _ in 0..count {
                    let id = self.random(30_000);
                    piece.ids.push(id);
                    piece.types.push((id % 2) as u8);
                }
                piece.ends.push(piece.ids.len() as u32);
                let sequence = placements.len() as u32;
                placements.push(Placement { piece: 0, sequence, row, offset, length: count });
                offset += if offer.layout == Layout::Padded { length } else { count + self.random(2) };
            }
        }
        let tokens = piece.ids.len() as u32;
        let mut pieces = Pieces::with_capacity(1);
        pieces.insert(Box::new(piece));
        (Plan { model: key, bucket: bucket as u32, placements, tokens }, pieces)
    }

    fn finish(&mut self, lane: usize) -> Result<Vec<Vec<f32>>, Fault> {
        for _ in 0..1000 {
            if self.gpu.poll(lane, self.now_ns) == Lane::Done {
                let mut vectors = Vec::new();
                self.gpu.collect(lane, &mut |index, vector| {
                    assert_eq!(index, vectors.len(), "in the plan's order");
                    vectors.push(vector.to_vec());
                })?;
                return Ok(vectors);
            }
            self.now_ns += 10;
        }
        panic!("lane {lane} does not end");
    }

    fn check(&self, model: usize, plan: &Plan, pieces: &Pieces, vectors: &[Vec<f32>]) {
        let ports = &self.models[model].2;
        assert_eq!(vectors.len(), plan.placements.len());
        for (place, vector) in plan.placements.iter().zip(vectors) {
            let piece = pieces.get(place.piece);
            let range = piece.range(place.sequence as usize);
            let expected = expected(ports, &piece.ids[range.clone()], &piece.types[range]);
            assert_eq!(*vector, expected, "{place:?}");
        }
    }

    fn run(&mut self, lane: usize, model: usize, bucket: usize) -> Result<(), Fault> {
        let (plan, pieces) = self.plan(model, bucket);
        self.gpu.submit(lane, &plan, &pieces, self.now_ns)?;
        let vectors = self.finish(lane)?;
        self.check(model, &plan, &pieces, &vectors);
        Ok(())
    }

    /// Everything on every lane, twice.
    fn run_all(&mut self) {
        for _ in 0..2 {
            for model in 0..self.models.len() {
                for bucket in 0..self.models[model].1.buckets.len() {
                    for lane in 0..LANES {
                        self.run(lane, model, bucket).unwrap();
                    }
                }
            }
        }
    }
}

#[test]
fn every_layout_and_type_gives_each_text_its_own_vector() {
    let fixed = [[(4, 4), (16, 16), (0, 0)]];
    let open = [[(1, 8), (1, 40), (0, 0)]];
    let several = [[(1, 1), (16, 16), (0, 0)], [(1, 8), (1, 40), (0, 0)]];
    let mut looks = Vec::new();
    for profiles in [&fixed[..], &open, &several] {
        looks.push(Looks::padded(profiles));
        looks.push(Looks { integers: ElementType::I64, has_types: false, ..Looks::padded(profiles) });
    }
    looks.push(Looks::packed(&[[1, 16, 4], [4, 32, 20]]));
    looks.push(Looks { unpositioned: Some((1, 32)), has_types: false, ..Looks::packed(&[[2, 32, 9]]) });
    for element in [ElementType::F32, ElementType::F16, ElementType::Bf16] {
        for looks in &looks {
            let outputs: &[(&str, usize)] = match looks.layout {
                Layout::Padded => &[("embeddings", 2), ("last_hidden_state", 3)],
                Layout::Packed => &[("embeddings", 2)],
            };
            for &(name, rank) in outputs {
                for (pooling, normalize) in [(Pooling::Cls, false), (Pooling::Mean, true)] {
                    let looks = Looks { output: (name, element, rank, 8), ..looks.clone() };
                    let model = Model { pooling, normalize, ..engine_model("every.engine", Task::Embedding, 16) };
                    let mut bench = Bench::new();
                    bench.add(&looks, &model).unwrap();
                    bench.run_all();
                }
            }
        }
    }
}

#[test]
fn scores_and_logits_come_from_columns_and_tables() {
    for (task, output) in [
        (Task::Reranking, ("scores", ElementType::F32, 1, 1)),
        (Task::Reranking, ("logits", ElementType::F16, 2, 1)),
        (Task::Nli, ("logits", ElementType::F32, 2, 3)),
        (Task::Nli, ("anything", ElementType::F32, 2, -1)),
    ] {
        let looks = Looks { output, ..Looks::padded(&[[(1, 4), (16, 16), (0, 0)]]) };
        let mut bench = Bench::new();
        if output.3 < 0 {
            let open = Looks { output: (output.0, output.1, output.2, 3), ..looks };
            let mut description = open.description();
            description.outputs[0].shape = vec![-1, -1];
            let model = engine_model("open.engine", task, 16);
            let mut ports = Ports::read(&description.inputs, &description.outputs, &model).unwrap();
            assert_eq!(ports.output.width, 0, "only a context can tell");
            ports.output.width = 3;
            let engine = FakeEngine { description, ports: ports.clone(), scratch: 1, unpositioned: None };
            bench.fake.engines.lock().unwrap().insert("open.engine".into(), Arc::new(engine));
            let key = ModelKey { index: 0, generation: 0 };
            let offer = bench.gpu.load(key, &Arc::new(model)).unwrap();
            assert_eq!(offer.width, 3);
            bench.models.push((key, offer, ports));
        } else {
            bench.add(&looks, &engine_model("head.engine", task, 16)).unwrap();
        }
        bench.run_all();
    }
}

/// The trap that others fell into: a graph that replays what another shape left.
#[test]
fn every_order_of_buckets_and_lanes_replays_its_own_graph() {
    let mut bench = Bench::new();
    let packed = Looks::packed(&[[1, 16, 4], [2, 32, 12], [4, 32, 40]]);
    bench.add(&packed, &engine_model("a.engine", Task::Embedding, 32)).unwrap();
    let padded = Looks::padded(&[[(1, 1), (8, 8), (0, 0)], [(4, 4), (24, 24), (0, 0)]]);
    bench.add(&padded, &engine_model("b.engine", Task::Embedding, 24)).unwrap();
    let all: Vec<(usize, usize)> = vec![(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)];
    for &(model_a, a) in &all {
        for &(model_b, b) in &all {
            for lane in 0..LANES {
                for _ in 0..4 {
                    bench.run(lane, model_a, a).unwrap();
                }
                for _ in 0..4 {
                    bench.run(lane, model_b, b).unwrap();
                }
            }
        }
    }
    let slots = bench.gpu.counters().slots();
    assert_eq!(slots.iter().map(|slot| slot.graph_hits.load(Ordering::Relaxed)).sum::<u64>(), 25 * 8 * 2);
    assert!(slots.iter().all(|slot| slot.graph_misses.load(Ordering::Relaxed) == 0));
    assert_eq!(bench.rung.load(Ordering::Relaxed), 0, "nobody was about to sleep");
}

#[test]
fn the_end_of_a_run_rings_once_for_those_who_are_about_to_sleep() {
    let mut bench = Bench::new();
    bench.add(&Looks::packed(&[[2, 32, 12]]), &engine_model("bell.engine", Task::Embedding, 32)).unwrap();
    let rung = |bench: &Bench| bench.rung.load(Ordering::Relaxed);
    assert!(bench.gpu.arm(), "nothing runs, nothing will ring");
    let (plan, pieces) = bench.plan(0, 0);
    for lane in 0..LANES {
        bench.gpu.submit(lane, &plan, &pieces, 1).unwrap();
    }
    assert!(bench.gpu.arm() && bench.gpu.arm());
    assert_eq!(rung(&bench), 0, "both still run");
    for lane in 0..LANES {
        bench.finish(lane).unwrap();
        assert_eq!(rung(&bench), lane + 1);
    }
    // A run that has ended by the time that it is armed rings at once.
    bench.gpu.submit(0, &plan, &pieces, 1).unwrap();
    let world = bench.fake.world();
    let streams: Vec<u64> = world.busy_streams();
    drop(world);
    streams.iter().for_each(|stream| bench.fake.synchronize(stream).unwrap());
    assert!(bench.gpu.arm());
    bench.finish(0).unwrap();
    assert_eq!(rung(&bench), 3);
    bench.run(0, 0, 0).unwrap();
    assert_eq!(rung(&bench), 3, "the next run does not ring by itself");
    // A bell that cannot be hung up is a fault of its run, seen at once.
    bench.gpu.submit(1, &plan, &pieces, 1).unwrap();
    bench.fake.world().faults = vec![("wait", 0, Failure { call: "wait", code: 1, is_sticky: false })];
    assert!(!bench.gpu.arm());
    assert_eq!(bench.finish(1), Err(Fault::Failed));
    bench.run_all();
}

#[test]
fn both_lanes_run_at_once_and_end_in_any_order() {
    let mut bench = Bench::new();
    bench.add(&Looks::packed(&[[2, 32, 12]]), &engine_model("lanes.engine", Task::Embedding, 32)).unwrap();
    bench.gpu.trace(64);
    for round in 0..20 {
        let (first, first_pieces) = bench.plan(0, 0);
        let (second, second_pieces) = bench.plan(0, 0);
        bench.gpu.submit(0, &first, &first_pieces, 1).unwrap();
        bench.gpu.submit(1, &second, &second_pieces, 1).unwrap();
        assert_eq!(bench.gpu.submit(1, &second, &second_pieces, 1), Err(Fault::Refused), "it is busy");
        for lane in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
            let (plan, pieces) = if lane == 0 { (&first, &first_pieces) } else { (&second, &second_pieces) };
            let vectors = bench.finish(lane).unwrap();
            bench.check(0, plan, pieces, &vectors);
        }
    }
    let runs = bench.gpu.runs();
    assert_eq!(runs.len(), 40);
    for run in runs {
        assert!(run.began_ns < run.uploaded_ns && run.uploaded_ns < run.computed_ns && run.computed_ns < run.done_ns);
    }
}

#[test]
fn a_refused_capture_runs_eagerly_with_the_same_answers_and_is_counted() {
    for call in ["begin_capture", "end_capture", "enqueue"] {
        let mut bench = Bench::new();
        let failure = Failure { call, code: 900, is_sticky: false };
        // An enqueue comes before each capture, so that the first inside one is the second.
        bench.fake.world().faults.push((call, usize::from(call == "enqueue"), failure));
        bench.add(&Looks::packed(&[[1, 16, 4], [2, 32, 12]]), &engine_model("c.engine", Task::Embedding, 32)).unwrap();
        bench.run_all();
        let counters = bench.gpu.counters();
        assert_eq!(counters.capture_failures.load(Ordering::Relaxed), 1, "{call}");
        let slots = counters.slots();
        let hits: u64 = slots.iter().map(|slot| slot.graph_hits.load(Ordering::Relaxed)).sum();
        let misses: u64 = slots.iter().map(|slot| slot.graph_misses.load(Ordering::Relaxed)).sum();
        assert_eq!((hits, misses), (6, 2), "{call}: one of two buckets on one of two lanes, twice");
    }
}

const CALLS: [&str; 6] = ["enter", "record", "upload", "launch", "download", "is_done"];

#[test]
fn a_failed_call_is_a_fault_of_its_plan_and_the_lane_is_made_anew() {
    for call in CALLS.into_iter().chain(["elapsed_ns"]) {
        for after in 0..3 {
            let mut bench = Bench::new();
            let looks = Looks::packed(&[[1, 16, 4], [2, 32, 12]]);
            bench.add(&looks, &engine_model("d.engine", Task::Embedding, 32)).unwrap();
            bench.run_all();
            let made = bench.fake.world().contexts_made;
            bench.fake.world().faults.push((call, after, Failure { call, code: 1, is_sticky: false }));
            let mut faults = Vec::new();
            for round in 0..12 {
                if let Err(fault) = bench.run(0, 0, round % 2) {
                    faults.push(fault);
                }
            }
            assert_eq!(faults.len(), 1, "{call} after {after}: {faults:?}");
            assert!(matches!(faults[0], Fault::Refused | Fault::Failed), "{call}: {faults:?}");
            assert_eq!(bench.gpu.health(), Health::Ready);
            assert_eq!(bench.gpu.counters().lane_rebuilds.load(Ordering::Relaxed), 1);
            assert_eq!(bench.fake.world().contexts_made, made + 2, "both buckets of one lane");
            bench.run_all();
        }
    }
}

#[test]
fn a_sticky_failure_is_the_end_of_the_device() {
    for call in CALLS {
        let mut bench = Bench::new();
        let looks = Looks::packed(&[[1, 16, 4]]);
        bench.add(&looks, &engine_model("e.engine", Task::Embedding, 16)).unwrap();
        bench.fake.world().faults.push((call, 0, Failure { call, code: 700, is_sticky: true }));
        assert_eq!(bench.run(0, 0, 0), Err(Fault::Dead), "{call}");
        assert_eq!(bench.gpu.health(), Health::Dead);
        assert_eq!(bench.run(1, 0, 0), Err(Fault::Dead), "nothing is tried on it any more");
    }
}

#[test]
fn a_lane_that_cannot_be_made_anew_is_the_end_of_the_device() {
    let mut bench = Bench::new();
    bench.add(&Looks::packed(&[[1, 16, 4]]), &engine_model("f.engine", Task::Embedding, 16)).unwrap();
    let failure = |call| Failure { call, code: 1, is_sticky: false };
    bench.fake.world().faults.extend([("launch", 0, failure("launch")), ("context", 0, failure("context"))]);
    assert_eq!(bench.run(0, 0, 0), Err(Fault::Dead));
    assert_eq!(bench.gpu.health(), Health::Dead);
}

#[test]
fn a_run_that_does_not_end_is_given_up_in_time() {
    let mut bench = Bench::new();
    bench.add(&Looks::packed(&[[1, 16, 4]]), &engine_model("g.engine", Task::Embedding, 16)).unwrap();
    assert_eq!(bench.gpu.wake_at_ns(), None);
    bench.fake.world().is_stuck = true;
    let (plan, pieces) = bench.plan(0, 0);
    bench.gpu.submit(1, &plan, &pieces, 500).unwrap();
    assert_eq!(bench.gpu.wake_at_ns(), Some(500 + 1_000_000 + 1));
    assert_eq!(bench.gpu.poll(1, 1_000_500), Lane::Busy);
    assert_eq!(bench.gpu.poll(1, 1_000_501), Lane::Done);
    assert_eq!(bench.gpu.collect(1, &mut |_, _| panic!("there is nothing")), Err(Fault::Hung));
    assert_eq!(bench.gpu.health(), Health::Dead);
}

#[test]
fn too_little_memory_is_said_in_bytes_and_harms_nobody_loaded_before() {
    let mut bench = Bench::new();
    bench.add(&Looks::packed(&[[1, 16, 4]]), &engine_model("small.engine", Task::Embedding, 16)).unwrap();
    bench.fake.world().capacity = 4_000;
    let error = bench.add(&Looks::packed(&[[8, 64, 64]]), &engine_model("large.engine", Task::Embedding, 64));
    // Four inputs of 8 × 64 and one of 64 integers, 64 vectors of 8 floats, 3 bytes of scratch for each token.
    let bytes = 4 * 8 * 64 * 4 + 64 * 4 + 64 * 8 * 4 + 3 * 8 * 64;
    let words = error.unwrap_err().0;
    assert!(words.contains(&format!("no room for {bytes} bytes")) && words.contains("of 4000 are free"), "{words}");
    bench.run_all();
}

#[test]
fn a_model_whose_cost_cannot_be_measured_is_not_loaded_and_harms_nobody_loaded_before() {
    let mut bench = Bench::new();
    bench.add(&Looks::packed(&[[2, 32, 12]]), &engine_model("good.engine", Task::Embedding, 32)).unwrap();
    for after in 0..3 {
        bench.fake.world().faults = vec![("launch", after, Failure { call: "launch", code: 1, is_sticky: false })];
        let model = engine_model(&format!("bad-{after}.engine"), Task::Embedding, 32);
        let error = bench.add(&Looks::packed(&[[2, 32, 12]]), &model).unwrap_err();
        assert!(error.0.contains("a trial run on fake:0 failed: launch failed with 1"), "{error}");
        assert!(bench.fake.world().busy_streams().is_empty(), "nothing of it still runs");
        bench.run_all();
    }
}

#[test]
fn a_larger_model_moves_the_memory_and_graphs_follow() {
    let mut bench = Bench::new();
    bench.add(&Looks::packed(&[[1, 16, 4]]), &engine_model("h.engine", Task::Embedding, 16)).unwrap();
    let before = bench.fake.world().captured;
    bench.add(&Looks::packed(&[[8, 64, 64]]), &engine_model("i.engine", Task::Embedding, 64)).unwrap();
    assert_eq!(bench.fake.world().captured, before + 2 * LANES, "the first model's graphs, and the second's");
    bench.run_all();
    bench.gpu.unload(bench.models[0].0);
    assert_eq!(bench.run(0, 0, 0), Err(Fault::Refused));
    bench.run(0, 1, 0).unwrap();
}

#[test]
fn models_that_do_not_keep_memory_give_it_back_after_each_run() {
    let mut bench = Bench::new();
    let model = Model { reuse_dynamic_buffer: false, ..engine_model("j.engine", Task::Embedding, 32) };
    bench.add(&Looks::packed(&[[1, 16, 4], [2, 32, 12]]), &model).unwrap();
    assert_eq!(bench.fake.world().captured, 0, "a graph would need addresses that stay");
    let before = bench.fake.world().used;
    bench.run_all();
    assert_eq!(bench.fake.world().used, before);
    let failure = Failure { call: "take", code: 2, is_sticky: false };
    bench.fake.world().faults.push(("take", 1, failure));
    assert_eq!(bench.run(0, 0, 1), Err(Fault::Refused));
    bench.run_all();
    assert_eq!(bench.fake.world().used, before, "also after one that failed in between");
}

#[test]
fn listed_batch_sizes_are_captured_and_larger_ones_run_as_they_are() {
    let looks = Looks::padded(&[[(1, 32), (16, 16), (0, 0)]]);
    let model = Model { cuda_graph_list: vec![1, 4, 8], ..engine_model("k.engine", Task::Embedding, 16) };
    let mut bench = Bench::new();
    bench.add(&looks, &model).unwrap();
    let rows: Vec<u32> = bench.models[0].1.buckets.iter().map(|bucket| bucket.rows).collect();
    assert_eq!(rows, [1, 4, 8, 32]);
    assert_eq!(bench.fake.world().captured, 3 * LANES);
    bench.run_all();
    // Eleven texts run as eleven, not as 32.
    let (mut plan, pieces) = bench.plan(0, 3);
    plan.placements.truncate(11);
    plan.tokens = plan.placements.iter().map(|place| place.length).sum();
    bench.gpu.submit(0, &plan, &pieces, 1).unwrap();
    let vectors = bench.finish(0).unwrap();
    bench.check(0, &plan, &pieces, &vectors);
    let slots = bench.gpu.counters().slots();
    assert_eq!(slots[3].graph_misses.load(Ordering::Relaxed), 2 * LANES as u64 + 1);
    assert_eq!(slots[3].graph_hits.load(Ordering::Relaxed), 0);
    bench.run(0, 0, 3).unwrap();
}

#[test]
fn what_does_not_fit_is_refused_before_anything_runs() {
    let mut bench = Bench::new();
    bench.add(&Looks::packed(&[[2, 32, 3]]), &engine_model("l.engine", Task::Embedding, 32)).unwrap();
    let launched = bench.fake.world().launched;
    let (plan, pieces) = bench.plan(0, 0);
    let spoil = |change: &dyn Fn(&mut Plan)| {
        let mut plan = plan.clone();
        change(&mut plan);
        plan
    };
    let first = plan.placements[0];
    let bad = [
        spoil(&|plan| plan.placements.clear()),
        spoil(&|plan| plan.placements[0].row = 2),
        spoil(&|plan| plan.placements[0].offset = 32),
        spoil(&|plan| plan.placements[0].offset = u32::MAX),
        spoil(&|plan| plan.placements[0].length += 1),
        spoil(&|plan| plan.placements[0].sequence = 99),
        spoil(&|plan| plan.placements.insert(0, first)),
        spoil(&|plan| plan.placements = vec![first; 4]),
        spoil(&|plan| plan.bucket = 1),
        spoil(&|plan| plan.model.generation += 1),
        spoil(&|plan| plan.model.index = 7),
    ];
    for plan in bad {
        assert_eq!(bench.gpu.submit(0, &plan, &pieces, 1), Err(Fault::Refused), "{plan:?}");
    }
    assert_eq!(bench.fake.world().launched, launched);
    bench.run_all();
}

#[test]
fn engines_that_cannot_serve_are_refused_with_names_and_values() {
    let padded = || Looks::padded(&[[(1, 8), (16, 16), (0, 0)]]);
    let embedding = |max_length| engine_model("m.engine", Task::Embedding, max_length);
    let cases: Vec<(Looks, Model, &[&str])> = vec![
        (
            Looks { integers: ElementType::F32, ..padded() },
            embedding(16),
            &["`input_ids`", "float32", "int32 or int64"],
        ),
        (padded(), embedding(17), &["`input_ids`", "16 tokens", "max_length is 17"]),
        (padded(), Model { cuda_graph_list: vec![4, 9], ..embedding(16) }, &["`input_ids`", "8 rows", "asks for 9"]),
        (
            padded(),
            Model { output: Some("pooled".into()), ..embedding(16) },
            &["`pooled`", "`embeddings` float32 [-1, 8]"],
        ),
        (
            Looks { output: ("embeddings", ElementType::I32, 2, 8), ..padded() },
            embedding(16),
            &["`embeddings` int32 [-1, 8]"],
        ),
        (
            Looks { output: ("logits", ElementType::F32, 2, 3), ..padded() },
            engine_model("m.engine", Task::Reranking, 16),
            &["`logits` has 3 values", "one score"],
        ),
        (
            Looks { output: ("logits", ElementType::F32, 2, 2), ..padded() },
            engine_model("m.engine", Task::Nli, 16),
            &["`logits` has 2 values", "3 labels"],
        ),
    ];
    for (looks, model, words) in cases {
        let error = Bench::new().add(&looks, &model).expect_err("it cannot serve").0;
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
    let settings = Settings { sequences_max: Some(64), ..settings() };
    let error = Bench::with(settings).add(&padded(), &embedding(16)).unwrap_err().0;
    assert!(error.contains("8 texts at most") && error.contains("max_batch_size is 64"), "{error}");
    // A mask and token ids of different shapes.
    let mut description = padded().description();
    description.inputs[1].ranges[0] = ShapeRange { min: vec![1, 32], opt: vec![8, 32], max: vec![8, 32] };
    let ports = Ports::read(&description.inputs, &description.outputs, &embedding(16)).unwrap();
    let error = shapes::slots(&description, &ports, &embedding(16), None, 12).unwrap_err();
    assert!(error.contains("`attention_mask`") && error.contains("32 to 32") && error.contains("16 to 16"), "{error}");
    // Inputs that are missing, or not understood.
    let mut unknown = padded().description();
    unknown.inputs[1].name = "weather".into();
    let error = Ports::read(&unknown.inputs, &unknown.outputs, &embedding(16)).unwrap_err();
    assert!(error.contains("`weather`"), "{error}");
    unknown.inputs.remove(1);
    let error = Ports::read(&unknown.inputs, &unknown.outputs, &embedding(16)).unwrap_err();
    assert!(error.contains("no input `attention_mask`"), "{error}");
    let folder = Model { source: Source::Folder(PathBuf::from("m")), ..embedding(16) };
    let error = Bench::new().gpu.load(ModelKey::default(), &Arc::new(folder)).unwrap_err().0;
    assert!(error.contains("reactrt build"), "{error}");
}

#[test]
fn a_plan_larger_than_the_memory_that_is_free_is_refused_with_both_numbers() {
    let mut bench = Bench::new();
    let used = bench.fake.world().used;
    bench.fake.world().capacity = used + 2;
    let error = bench.add(&Looks::packed(&[[1, 16, 4]]), &engine_model("n.engine", Task::Embedding, 16)).unwrap_err().0;
    assert!(error.contains("needs 4 bytes on fake:0") && error.contains("2 are free"), "{error}");
}
