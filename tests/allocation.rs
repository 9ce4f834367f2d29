//! After start the reactor and the device threads allocate nothing, request after request; workers only what the
//! tokenizer does. Counted by a global allocator, by the name of the thread that asks.

#![allow(unsafe_code)] // a global allocator cannot be written without

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

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

/// Threads that only begin to run allocate by themselves: the standard library keeps their names.
fn sleeping_device_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("there is /proc");
    let sleeps = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).ok()?;
        let (name, rest) = stat.split_once(" (")?.1.rsplit_once(") ")?;
        Some(name.starts_with("device-") && rest.starts_with('S'))
    };
    tasks.filter_map(|task| sleeps(task.ok()?)).filter(|sleeps| *sleeps).count()
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn nothing_is_allocated_after_start_by_reactor_and_device() {
    // One server as it comes, one with all that can be had beside it.
    let mut everything = settings(DeviceName::Sim);
    everything.server.access_log = Some(reactrt::journal::Target::File("/dev/null".into()));
    everything.server.cors_origins = vec!["https://app.example".into()];
    everything.deadlines.request_ms = Some(60_000);
    let servers = [start(settings(DeviceName::Sim)), start(everything)];
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
    let round = |server: &common::Running| {
        let mut client = server.connect();
        for (path, body) in &bodies {
            let answer = client.post(path, body);
            assert!(matches!(answer.status, 200 | 400 | 404), "{}", answer.text());
        }
        for path in ["/health/live", "/health/ready", "/models", "/metrics", "/v1/models"] {
            client.send(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes());
            assert_eq!(client.answer().status, 200);
        }
        client.send(b"OPTIONS /models HTTP/1.1\r\nhost: x\r\norigin: https://app.example\r\n\r\n");
        assert_eq!(client.answer().status, 200);
        let late = "POST /infer/embed HTTP/1.1\r\nhost: x\r\nx-request-timeout-ms: 0\r\ncontent-length: 2\r\n\r\n{}";
        client.send(late.as_bytes());
        assert_eq!(client.answer().status, 504);
        client.send(b"\x16\x03 is no request\r\n");
        assert_eq!(client.answer().status, 400);
    };
    // The reactor has started once it has answered, a device's thread once it sleeps. From then on, the first inference
    // included: whatever is kept must have been there at start.
    assert!(servers.iter().all(|server| server.get("/health/live").status == 200));
    while sleeping_device_threads() < servers.len() {
        std::thread::sleep(Duration::from_millis(5));
    }
    COUNTING.store(true, Ordering::Relaxed);
    for _ in 0..20 {
        servers.iter().for_each(round);
    }
    COUNTING.store(false, Ordering::Relaxed);
    assert_eq!(BY_REACTOR.load(Ordering::Relaxed), 0, "allocations by the reactor");
    assert_eq!(BY_DEVICE.load(Ordering::Relaxed), 0, "allocations by the device thread");
}
