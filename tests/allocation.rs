//! After start the reactor and the device threads allocate nothing, request after request; workers only what the
//! tokenizer does. Counted by a global allocator, by the name of the thread that asks.

#![allow(unsafe_code)] // a global allocator cannot be written without

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::{settings, start};
use reactrt::config::DeviceName;

struct Counting;

static COUNTING: AtomicBool = AtomicBool::new(false);
static BY_REACTOR: AtomicU64 = AtomicU64::new(0);
static BY_DEVICE: AtomicU64 = AtomicU64::new(0);

fn count() {
    if !COUNTING.load(Ordering::Relaxed) {
        return;
    }
    // The kernel's name of the thread: asking the standard library for it could allocate.
    let mut name = [0u8; 16];
    // SAFETY: PR_GET_NAME writes at most 16 bytes to the address it is given.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    if name.starts_with(b"reactor\0") {
        BY_REACTOR.fetch_add(1, Ordering::Relaxed);
    } else if name.starts_with(b"device-") {
        BY_DEVICE.fetch_add(1, Ordering::Relaxed);
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
fn nothing_is_allocated_after_start_by_reactor_and_device() {
    let server = start(settings(DeviceName::Sim));
    let texts = |count: usize| {
        let list: Vec<String> = (0..count).map(|index| format!("\"text number {index} of some length\"")).collect();
        list.join(",")
    };
    let bodies: Vec<(&str, String)> = vec![
        ("/infer/embed", "{\"documents\":[\"one text\"]}".into()),
        ("/infer/embed", format!("{{\"documents\":[{}]}}", texts(32))),
        ("/infer/embed", format!("{{\"documents\":[{}]}}", texts(700))),
        ("/infer/rank", format!("{{\"query\":\"what\",\"documents\":[{}]}}", texts(20))),
        ("/infer/nli", "{\"premises\":[\"a\"],\"hypotheses\":[\"b\"]}".into()),
        ("/v1/embeddings", format!("{{\"model\":\"embed\",\"input\":[{}],\"encoding_format\":\"base64\"}}", texts(9))),
        ("/infer/embed", "{\"documents\":[7]}".into()),
        ("/infer/nope", "{}".into()),
    ];
    let round = || {
        let mut client = server.connect();
        for (path, body) in &bodies {
            let answer = client.post(path, body);
            assert!(matches!(answer.status, 200 | 400 | 404), "{}", answer.text());
        }
        for path in ["/health/live", "/health/ready", "/models", "/metrics", "/v1/models"] {
            client.send(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes());
            assert_eq!(client.answer().status, 200);
        }
    };
    // The threads have started once one has answered. From then on, the first inference included: whatever is kept must
    // have been there at start.
    assert_eq!(server.get("/health/live").status, 200);
    COUNTING.store(true, Ordering::Relaxed);
    for _ in 0..20 {
        round();
    }
    COUNTING.store(false, Ordering::Relaxed);
    assert_eq!(BY_REACTOR.load(Ordering::Relaxed), 0, "allocations by the reactor");
    assert_eq!(BY_DEVICE.load(Ordering::Relaxed), 0, "allocations by the device thread");
}
