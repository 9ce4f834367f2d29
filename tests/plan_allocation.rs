//! The planner and the simulated device allocate nothing once models are loaded, whatever waits, dies or fails.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout as Memory, System};
use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Arc;

use reactrt::device::sim::{Options, Rates, Shapes, Sim};
use reactrt::device::{Device, Lane, Layout, Pieces};
use reactrt::job::{JobKey, ModelKey, Piece, PieceBounds};
use reactrt::model::{Head, Model, Pooling, Source, Task};
use reactrt::plan::{Bounds, Next, Planner};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Counts what this thread takes.
struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; the counter is a plain cell of this thread, which
// neither allocates nor has a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, memory: Memory) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise about `memory` is the one that `System` asks for.
        unsafe { System.alloc(memory) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, memory: Memory) {
        // SAFETY: `pointer` came from `System`, as all of ours do.
        unsafe { System.dealloc(pointer, memory) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, memory: Memory, bytes: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as in `alloc` and `dealloc`.
        unsafe { System.realloc(pointer, memory, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const BOUNDS: Bounds = Bounds {
    sequences_max: None,
    tokens_max: None,
    linger_ns: 2_000,
    age_ns_max: 200_000,
    pieces_max: 128,
    piece_sequences_max: 16,
    models_max: 2,
};

fn model(max_length: usize) -> Arc<Model> {
    Arc::new(Model {
        name: "simulated".into(),
        task: Task::Embedding,
        source: Source::Onnx(PathBuf::new()),
        tokenizer: PathBuf::new(),
        geometry: None,
        head: Head::Embedding,
        pooling: Pooling::Mean,
        normalize: false,
        max_length,
        labels: Vec::new(),
        prompts: Vec::new(),
        default_prompt: None,
        cuda_graph_list: Vec::new(),
        output: None,
        unpositioned: None,
        reuse_dynamic_buffer: false,
    })
}

fn xorshift(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn run(layout: Layout) {
    let rates = Rates { refused: 0.05, failed: 0.05, hung: 0.01, ..Rates::default() };
    let mut device = Sim::new(Options {
        base_us: 20,
        us_per_1k_tokens: 15,
        jitter: 0.3,
        hang_us: 300,
        nan_rate: 0.01,
        rates,
        shapes: Shapes::Ladder(layout),
        ..Options::default()
    });
    let mut planner = Planner::new(BOUNDS);
    for index in 0..2 {
        let key = ModelKey { index, generation: 0 };
        let offer = device.load(key, &model([256, 64][index as usize])).expect("it loads anything once");
        planner.offer(key, &offer);
    }
    let piece_bounds = PieceBounds { sequences_max: 16, tokens_max: 1024 };
    let mut pieces = Pieces::with_capacity(BOUNDS.pieces_max);
    let mut pool: Vec<Box<Piece>> =
        (0..BOUNDS.pieces_max).map(|_| Box::new(Piece::with_bounds(piece_bounds, 384))).collect();
    let mut left = vec![0u32; BOUNDS.pieces_max];
    let mut plans: Vec<_> = (0..device.lanes()).map(|_| planner.empty_plan()).collect();
    let mut dropped = Vec::with_capacity(Planner::dropped_max(&BOUNDS));
    let (mut random, mut now_ns, mut planned, mut values) = (0x1234_5678_9abc_def1u64, 0u64, 0, 0.0);

    let before = ALLOCATIONS.get();
    for _ in 0..20_000 {
        now_ns += xorshift(&mut random) % 20_000;
        for _ in 0..xorshift(&mut random) % 3 {
            let Some(mut piece) = pool.pop() else { break };
            piece.clear();
            let draw = xorshift(&mut random);
            piece.job = JobKey { slot: (draw % 40) as u32, generation: (draw >> 8 & 3) as u32 };
            piece.model = ModelKey { index: (draw % 40 % 2) as u32, generation: 0 };
            piece.arrived_ns = now_ns;
            for _ in 0..1 + draw % 16 {
                // The second model holds at most 64 of these, so that some fit nowhere.
                let length = 1 + xorshift(&mut random) % 65;
                piece.ids.extend((0..length).map(|token| (draw ^ token) as u32 & 0xffff));
                let end = piece.ids.len();
                piece.types.resize(end, 0);
                piece.ends.push(end as u32);
                if end + 65 > 1024 {
                    break;
                }
            }
            let index = pieces.insert(piece);
            left[index as usize] = pieces.get(index).sequences() as u32;
            planner.push(index, pieces.get(index));
        }
        for (lane, plan) in plans.iter_mut().enumerate() {
            if device.poll(lane, now_ns) == Lane::Done {
                // A fault answers the plan's sequences as well as a result does.
                let _ = device.collect(lane, &mut |_, vector| values += vector[0]);
                for placement in &plan.placements {
                    leave(placement.piece, 1, &mut left, &mut pieces, &mut pool);
                }
            }
            if device.poll(lane, now_ns) != Lane::Idle {
                continue;
            }
            let dead = JobKey { slot: (now_ns % 40) as u32, generation: 1 };
            let next = planner.next(now_ns, &|job| job != dead, plan, &mut dropped);
            for entry in &dropped {
                leave(entry.piece, entry.sequences, &mut left, &mut pieces, &mut pool);
            }
            if next == Next::Plan {
                planned += plan.placements.len();
                if device.submit(lane, plan, &pieces, now_ns).is_err() {
                    for placement in &plan.placements {
                        leave(placement.piece, 1, &mut left, &mut pieces, &mut pool);
                    }
                }
            }
        }
    }
    assert_eq!(ALLOCATIONS.get() - before, 0, "{layout:?}");
    assert!(planned > 50_000 && values.is_nan(), "{planned} sequences planned, the poisoned ones among them");
}

#[expect(clippy::vec_box, reason = "pieces move as boxes, so the pool holds the boxes themselves")]
fn leave(piece: u32, sequences: u32, left: &mut [u32], pieces: &mut Pieces, pool: &mut Vec<Box<Piece>>) {
    left[piece as usize] -= sequences;
    if left[piece as usize] == 0 {
        pool.push(pieces.remove(piece));
    }
}

#[test]
fn nothing_is_allocated_after_the_models_are_loaded() {
    let before = ALLOCATIONS.get();
    drop(std::hint::black_box(vec![1u8; 100]));
    assert_eq!(ALLOCATIONS.get() - before, 1, "the counter counts");
    run(Layout::Packed);
    run(Layout::Padded);
}
