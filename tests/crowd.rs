//! Two thousand requests of mixed tasks at once: every answer is there, and each vector is its own text's.
//!
//! The simulated device makes of each sequence a vector that depends on its ids and types alone, so the test can say
//! beforehand, bit by bit, what every client must receive.

mod common;

use std::path::Path;

use common::{Client, fixture, settings, start};
use reactrt::config::DeviceName;
use reactrt::device::sim;
use reactrt::tokenize::{Cut, Tokenizer};
use serde_json::json;

const CLIENTS: usize = 2_000;

struct Expected {
    path: &'static str,
    body: String,
    field: &'static str,
    values: Vec<Vec<f32>>,
}

fn tokenizer(model: &str) -> Tokenizer {
    Tokenizer::load(&Path::new(&fixture(model)).join("tokenizer.json")).unwrap()
}

fn simulated(tokenizer: &Tokenizer, pair: (&str, Option<&str>), max_length: usize, width: usize) -> Vec<f32> {
    let (mut ids, mut types, mut vector) = (Vec::new(), Vec::new(), Vec::new());
    tokenizer.encode(&mut Default::default(), pair, max_length, Cut::Late, &mut ids, &mut types).unwrap();
    sim::vector(&ids, &types, width, &mut vector);
    vector
}

fn text(client: usize, index: usize) -> String {
    format!("client {client} asks about {index} {}", "things ".repeat((client * 7 + index * 3) % 23))
}

#[test]
fn every_one_of_2000_clients_gets_its_own_vectors() {
    let mut settings = settings(DeviceName::Sim);
    settings.sim.base_us = 300;
    settings.threads.workers = 2;
    let models: Vec<_> =
        settings.models.iter().map(|entry| reactrt::serve::load_model(entry).expect("a fixture")).collect();
    let widths: Vec<usize> = models.iter().map(sim::width).collect();
    let lengths: Vec<usize> = models.iter().map(|model| model.max_length).collect();
    let tokenizers = ["bert-embedding-mean", "bert-reranker", "bert-nli"].map(tokenizer);
    let expected: Vec<Expected> = (0..CLIENTS)
        .map(|client| {
            let task = client % 3;
            let texts: Vec<String> = (0..client % 5 + 1).map(|index| text(client, index)).collect();
            let query = format!("query {client}");
            let vector = |text: &String| {
                let pair = match task {
                    0 => (text.as_str(), None),
                    1 => (query.as_str(), Some(text.as_str())),
                    _ => (text.as_str(), Some(query.as_str())),
                };
                simulated(&tokenizers[task], pair, lengths[task], widths[task])
            };
            let values = texts.iter().map(vector).collect();
            let (path, field, body) = match task {
                0 => ("/infer/embed", "embeddings", json!({"documents": texts})),
                1 => ("/infer/rank", "scores", json!({"query": query, "documents": texts})),
                _ => ("/infer/nli", "logits", json!({"premises": texts, "hypotheses": vec![&query; texts.len()]})),
            };
            Expected { path, body: body.to_string(), field, values }
        })
        .collect();

    let server = start(settings);
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| server.connect()).collect();
    for (client, expected) in clients.iter_mut().zip(&expected) {
        client.send_post(expected.path, &expected.body);
    }
    for (index, (client, expected)) in clients.iter_mut().zip(&expected).enumerate() {
        let answer = client.answer();
        assert_eq!(answer.status, 200, "client {index}: {}", answer.text());
        let found = answer.json()[expected.field].clone();
        let found: Vec<Vec<f32>> = match expected.field {
            "scores" => {
                serde_json::from_value::<Vec<f32>>(found).unwrap().into_iter().map(|score| vec![score]).collect()
            }
            _ => serde_json::from_value(found).unwrap(),
        };
        assert_eq!(found, expected.values, "client {index}");
    }
    // Nothing is left over, and nobody is answered twice.
    let metrics = server.get("/metrics");
    assert!(metrics.text().contains("reactrt_jobs 0\n"));
    assert!(metrics.text().contains("reactrt_queue_tokens 0\n"));
    drop(clients);
    let account = server.stop();
    assert_eq!(account, reactrt::serve::Account::default(), "every part is home");
}

/// A large batch ends many requests at once, and their answers need more buffers than there are: each waits for its turn.
#[test]
fn answers_that_find_no_buffer_wait_for_one() {
    let mut settings = settings(DeviceName::Sim);
    settings.sim.base_us = 20_000;
    settings.batching.age_us_max = 1_000_000;
    let limits = &mut settings.limits;
    (limits.connections_max, limits.jobs_max, limits.pieces_max) = (400, 400, 400);
    (limits.body_bytes_max, limits.text_bytes_max, limits.answer_bytes_max) = (64 << 10, 32 << 10, 128 << 10);
    (limits.json_values_max, limits.texts_max) = (4_096, 64);
    let needed = {
        settings.limits.memory_bytes_max = None;
        let bounds = settings.piece_bounds();
        let memory = settings.memory(bounds, reactrt::config::WIDTH_ASSUMED);
        // Room for two or three dozen answers of this size, for 300 clients.
        memory.total_bytes() as usize + 12_000_000
    };
    settings.limits.memory_bytes_max = Some(needed);
    let server = start(settings);
    let texts: Vec<String> = (0..40).map(|index| format!("text {index}")).collect();
    let body = json!({"documents": texts}).to_string();
    let mut clients: Vec<Client> = (0..300).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.send_post("/infer/embed", &body);
    }
    let first = clients[0].answer().json()["embeddings"].clone();
    assert_eq!(first.as_array().map(Vec::len), Some(40));
    for (index, client) in clients.iter_mut().enumerate().skip(1) {
        let answer = client.answer();
        assert_eq!(answer.status, 200, "client {index}: {}", answer.text());
        assert_eq!(answer.json()["embeddings"], first, "client {index}");
    }
    drop(clients);
    assert_eq!(server.stop(), reactrt::serve::Account::default(), "every part is home");
}
