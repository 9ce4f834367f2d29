//! Bytes in, bytes out, over real sockets: a table of what is sent and what comes back (`wire/table.txt`), and what no table can
//! hold. How any split of the same bytes is framed is tested beside `src/http`.

mod common;
#[path = "wire/table.rs"]
mod table;

use std::io::Write;
use std::net::Shutdown;
use std::time::{Duration, Instant};

use common::{Running, settings, start};
use reactrt::config::DeviceName;
use table::Hop;

const EMBED: &str = "{\"documents\":[\"a\"]}";

fn server() -> Running {
    start(settings(DeviceName::Sim))
}

#[test]
fn every_row_of_the_table() {
    let mut failures = Vec::new();
    let mut count = 0;
    for (name, rows) in table::sections() {
        let server = start(table::named(name));
        count += rows.len();
        failures.extend(rows.iter().filter_map(|row| table::play_all(server.address, row, Hop::Server).err()));
    }
    assert!(count >= 150, "{count} rows were found");
    assert!(failures.is_empty(), "{} of {count} rows differ:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let server = server();
    let mut client = server.connect();
    let mut bytes = Vec::new();
    for index in 0..50 {
        let (path, length) = if index % 2 == 0 { ("/infer/embed", EMBED.len()) } else { ("/infer/nope", EMBED.len()) };
        bytes.extend_from_slice(
            format!(
                "POST {path} HTTP/1.1\r\nhost: x\r\nx-request-id: r{index}\r\ncontent-length: {length}\r\n\r\n{EMBED}"
            )
            .as_bytes(),
        );
        bytes.extend_from_slice(b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n");
    }
    client.send(&bytes);
    for index in 0..50 {
        let answer = client.answer();
        assert_eq!(answer.header("x-request-id").unwrap(), format!("r{index}"));
        assert_eq!(answer.status, if index % 2 == 0 { 200 } else { 404 });
        assert_eq!(client.answer().status, 200);
    }
}

#[test]
fn a_request_may_come_byte_by_byte_or_in_chunks() {
    let server = server();
    let mut client = server.connect();
    let whole = format!("POST /infer/embed HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{EMBED}", EMBED.len());
    for byte in whole.as_bytes() {
        client.send(std::slice::from_ref(byte));
    }
    let by_bytes = client.answer();
    assert_eq!(by_bytes.status, 200);
    let (first, second) = EMBED.split_at(7);
    let chunked = format!(
        "POST /infer/embed HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{first}\r\n{:x};note=1\r\n{second}\r\n0\r\n\r\n",
        first.len(),
        second.len()
    );
    client.send(chunked.as_bytes());
    let by_chunks = client.answer();
    assert_eq!(by_chunks.status, 200, "{}", by_chunks.text());
    assert_eq!(by_bytes.json()["embeddings"], by_chunks.json()["embeddings"]);
}

#[test]
fn a_large_body_needs_no_content_length_to_be_believed() {
    let server = server();
    let text = "word ".repeat(100_000);
    let body = format!("{{\"documents\":[\"{text}\",\"short\"]}}");
    let answer = server.post("/infer/embed", &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    // A promise of 4 MiB costs no memory until the bytes come.
    let mut promising: Vec<_> = (0..200).map(|_| server.connect()).collect();
    for client in &mut promising {
        client.send(b"POST /infer/embed HTTP/1.1\r\nhost: x\r\ncontent-length: 4000000\r\n\r\n{\"documents\":");
    }
    assert_eq!(server.post("/infer/embed", &body).status, 200);
}

#[test]
fn a_chunked_body_of_megabytes_is_read_in_linear_time() {
    let server = server();
    let mut body = EMBED.as_bytes().to_vec();
    body.resize(4_000_000, b' ');
    let start = Instant::now();
    let mut client = server.connect();
    client.send(b"POST /infer/embed HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n");
    client.send(format!("{:x}\r\n", body.len()).as_bytes());
    client.send(&body);
    client.send(b"\r\n0\r\n\r\n");
    assert_eq!(client.answer().status, 200);
    // Milliseconds if every byte is moved a few times; minutes if it is moved for each read.
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[test]
fn expect_continue_is_met_before_the_body() {
    let server = server();
    let mut client = server.connect();
    let head = format!(
        "POST /infer/embed HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        EMBED.len()
    );
    client.send(head.as_bytes());
    assert_eq!(client.answer().status, 100);
    client.send(EMBED.as_bytes());
    assert_eq!(client.answer().status, 200);
    // Refused before the body: the model does not exist.
    client.send(head.replace("embed ", "nope ").as_bytes());
    assert_eq!(client.answer().status, 404);
    assert!(client.is_closed());
}

#[test]
fn old_and_closing_clients_are_served_as_they_ask() {
    let server = server();
    let mut old = server.connect();
    old.send(b"GET /health/live HTTP/1.0\r\n\r\n");
    assert_eq!(old.answer().status, 200);
    assert!(old.is_closed());
    let mut kept = server.connect();
    for _ in 0..2 {
        kept.send(b"GET /health/live HTTP/1.0\r\nconnection: keep-alive\r\n\r\n");
        assert_eq!(kept.answer().header("connection"), Some("keep-alive"));
    }
    let mut closing = server.connect();
    closing.send(b"GET /health/live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    assert_eq!(closing.answer().header("connection"), Some("close"));
    assert!(closing.is_closed());
    let mut head = server.connect();
    head.send(b"HEAD /models HTTP/1.1\r\nhost: x\r\n\r\nGET /models HTTP/1.1\r\nhost: x\r\n\r\n");
    let length: usize = head.answer_to("HEAD").header("content-length").unwrap().parse().unwrap();
    assert_eq!(head.answer().body.len(), length);
}

#[test]
fn what_is_not_http_is_refused_and_the_connection_closed() {
    let server = server();
    for (bytes, status) in [
        (&b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ncontent-length: 3\r\n\r\nabc"[..], 400),
        (b"POST /infer/embed HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n", 400),
        (b"POST /infer/embed HTTP/1.1\r\nhost: x\r\ncontent-length: +3\r\n\r\nabc", 400),
        (b"POST /infer/embed HTTP/1.1\r\nhost: x\r\n\r\n", 411),
        (b"GET /health/live HTTP/1.1\r\n\r\n", 400),
        (b"GET /health/live HTTP/2.0\r\nhost: x\r\n\r\n", 505),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET /health/live HTTP/1.1\nhost: x\n\n", 400),
    ] {
        let mut client = server.connect();
        client.send(bytes);
        let answer = client.answer();
        assert_eq!(answer.status, status, "{:?}", String::from_utf8_lossy(bytes));
        assert!(answer.json()["detail"].is_string());
        assert!(client.is_closed(), "{:?}", String::from_utf8_lossy(bytes));
    }
    let mut client = server.connect();
    let long = format!("GET /health/live HTTP/1.1\r\nhost: x\r\nx-long: {}\r\n\r\n", "y".repeat(20_000));
    client.send(long.as_bytes());
    assert_eq!(client.answer().status, 431);
}

/// The client goes on sending long after its refusal, and still gets to read it.
#[test]
fn a_refusal_survives_the_rest_of_a_large_body() {
    let server = server();
    let client = server.connect();
    let mut sender = client.stream().try_clone().unwrap();
    let body = vec![b'x'; 6 << 20];
    let writer = std::thread::spawn(move || {
        let head = format!("POST /infer/embed HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
        // The server may close before everything has been sent; what matters is what it said.
        let _ = sender.write_all(head.as_bytes()).and_then(|()| sender.write_all(&body));
    });
    let mut client = client;
    let answer = client.answer();
    assert_eq!(answer.status, 413);
    assert!(answer.text().contains("limits.body_bytes_max"), "{}", answer.text());
    writer.join().unwrap();
}

#[test]
fn slow_clients_run_into_their_deadlines() {
    let mut settings = settings(DeviceName::Sim);
    settings.deadlines.head_ms = 100;
    settings.deadlines.body_ms = 100;
    settings.deadlines.idle_ms = 200;
    let server = start(settings);
    let start = Instant::now();
    let mut head = server.connect();
    head.send(b"GET /health/live HTT");
    let mut body = server.connect();
    body.send(b"POST /infer/embed HTTP/1.1\r\nhost: x\r\ncontent-length: 20\r\n\r\n{");
    let mut idle = server.connect();
    assert_eq!(head.answer().status, 408);
    assert_eq!(body.answer().status, 408);
    assert!(head.is_closed() && body.is_closed() && idle.is_closed());
    assert!(start.elapsed() >= Duration::from_millis(100));
}

#[test]
fn connections_beyond_the_bound_wait_and_are_served_when_others_leave() {
    let mut settings = settings(DeviceName::Sim);
    settings.limits.connections_max = 4;
    let server = start(settings);
    let mut held: Vec<_> = (0..4).map(|_| server.connect()).collect();
    for client in &mut held {
        assert_eq!(client.post("/infer/embed", EMBED).status, 200);
    }
    let mut waiting = server.connect();
    waiting.send_post("/infer/embed", EMBED);
    held.pop();
    assert_eq!(waiting.answer().status, 200);
}

#[test]
fn half_closed_clients_and_resets_leave_the_server_as_it_was() {
    let server = server();
    for _ in 0..20 {
        let mut client = server.connect();
        client.send_post("/infer/embed", EMBED);
        client.stream().shutdown(Shutdown::Write).unwrap();
        // Answered if the answer came first, closed if not; never anything else.
        let rest = client.rest();
        assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 200"), "{:?}", String::from_utf8_lossy(&rest));
        let mut gone = server.connect();
        gone.send(b"POST /infer/embed HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{\"docu");
        drop(gone);
    }
    assert_eq!(server.post("/infer/embed", EMBED).status, 200);
}

/// A client that sends ahead and reads late: its answers pile up behind one another, and a job's joins them.
#[test]
fn answers_to_a_client_that_reads_late_arrive_whole_and_in_order() {
    let server = server();
    let mut client = server.connect();
    let mut writer = client.stream().try_clone().unwrap();
    let pairs = 3_000;
    let sender = std::thread::spawn(move || {
        for index in 0..pairs {
            let bytes = format!(
                "GET /models HTTP/1.1\r\nhost: x\r\nx-request-id: g{index}\r\n\r\nPOST /infer/embed HTTP/1.1\r\nhost: \
                 x\r\nx-request-id: p{index}\r\ncontent-length: {}\r\n\r\n{EMBED}",
                EMBED.len()
            );
            writer.write_all(bytes.as_bytes()).unwrap();
        }
    });
    // Until the server has stopped reading, because nobody reads its answers.
    let answered =
        || server.get("/metrics").text().lines().find(|line| line.contains("status=\"200\"")).map(str::to_owned);
    let mut last = answered();
    loop {
        let now = answered();
        if now == last {
            break;
        }
        last = now;
    }
    for index in 0..pairs {
        assert_eq!(client.answer().header("x-request-id").unwrap(), format!("g{index}"));
        let answer = client.answer();
        assert_eq!(answer.header("x-request-id").unwrap(), format!("p{index}"));
        assert!(answer.json()["embeddings"].is_array());
    }
    sender.join().unwrap();
}

#[test]
fn a_client_that_half_closes_after_its_last_request_is_answered() {
    let server = server();
    for _ in 0..50 {
        let mut client = server.connect();
        client.send(b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\nGET /models HTTP/1.1\r\nhost: x\r\n\r\n");
        client.stream().shutdown(Shutdown::Write).unwrap();
        assert_eq!(client.answer().status, 200);
        assert_eq!(client.answer().status, 200);
        assert!(client.is_closed());
    }
}
