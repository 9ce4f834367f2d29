//! While requests are sent and answers are recorded the generator's threads allocate nothing. Counted by a global
//! allocator, by the name of the thread that asks.

#![allow(unsafe_code)] // a global allocator cannot be written without

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Reply, answer, right, serve};
use reactrt_bench::check::Shape;
use reactrt_bench::drive::{Check, Orders, Progress, Sends, Wait, run};
use reactrt_bench::record::Arrivals;
use reactrt_bench::requests::{Content, Making, Requests};
use reactrt_bench::schedule::{Until, draw};
use reactrt_bench::target::{Api, Encoding, Family, Place, Task};
use reactrt_bench::texts::{PerRequest, Texts, Words};

struct Counting;

static COUNTING: AtomicBool = AtomicBool::new(false);
static BY_LOAD: AtomicU64 = AtomicU64::new(0);

fn count() {
    if !COUNTING.load(Ordering::Relaxed) {
        return;
    }
    // The kernel's name of the thread: asking the standard library for it could allocate.
    let mut name = [0u8; 16];
    // SAFETY: PR_GET_NAME writes at most 16 bytes to the address it is given.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    if name.starts_with(b"load-") {
        BY_LOAD.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn nothing_is_allocated_while_requests_are_sent_and_answers_recorded() {
    let address = serve(|request| match request.number % 9 {
        3 => Reply::Bytes(answer(503, "{\"detail\":\"full\"}")),
        5 => Reply::Last(right(request)),
        7 => Reply::Bytes(answer(200, "{\"embeddings\":[[1,2,3,NaN]]}")),
        _ => Reply::Bytes(right(request)),
    });
    let place = Place::parse(&format!("http://{address}")).unwrap();
    let family =
        Family { api: Api::Native, task: Task::Embedding, encoding: Encoding::Float, model: "m".into(), path: None };
    let content = Content::Texts { texts: Texts::Made(Words::Fixed(10)), per_request: PerRequest::Uniform(1, 3) };
    let moments = draw(1, 4000.0, Arrivals::Poisson, Until::Moment(60_000_000_000)).unwrap();
    for (sends, new_connections, check) in [
        (Sends::Open { moments: &moments }, false, Check::Full),
        (Sends::Open { moments: &moments }, true, Check::Full),
        (Sends::Closed { count: None, group: 1 }, false, Check::Full),
        (Sends::Closed { count: None, group: 3 }, false, Check::Status),
    ] {
        let making =
            Making { place: &place, family: &family, fields: &[], seed: 1, close: new_connections, samples: 20 };
        let requests = Requests::make(making, &content).unwrap();
        let orders = Orders {
            address,
            requests: &requests,
            sends,
            connections: 8,
            threads: 2,
            cores: &[],
            warmup_ns: 0,
            end_ns: 1_500_000_000,
            timeout_ns: 10_000_000_000,
            new_connections,
            abort_rate: 0.05,
            abort_within_ns: 1_000_000,
            seed: 1,
            wait: Wait::Auto,
            check,
            shape: Shape::Embeddings,
            dimension: Some(4),
            stages: &["parse".to_owned()],
            digest: true,
            answer_bytes: 4096,
        };
        let progress = Progress::default();
        let counted = std::thread::scope(|scope| {
            let running = scope.spawn(|| run(&orders, Instant::now() + Duration::from_millis(10), &progress).unwrap());
            let seen = || progress.correct.load(Ordering::Relaxed) + progress.faulty.load(Ordering::Relaxed);
            let wait_for = |count: u64| {
                while seen() < count && !running.is_finished() {
                    std::thread::yield_now();
                }
            };
            wait_for(20);
            let before = seen();
            COUNTING.store(true, Ordering::Relaxed);
            wait_for(before + 600);
            COUNTING.store(false, Ordering::Relaxed);
            let counted = seen() - before;
            let measured = running.join().unwrap();
            assert!(measured.counts.correct > 0 && measured.counts.aborted > 0, "{:?}", measured.counts);
            counted
        });
        assert!(counted >= 600, "only {counted} answers came while allocations were counted");
        assert_eq!(BY_LOAD.load(Ordering::Relaxed), 0, "allocations with {sends:?}, {new_connections}, {check:?}");
    }
}
