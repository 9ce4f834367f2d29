//! The first family of routes over real sockets: what goes in, what comes out, and what is refused in which words.

mod common;

use std::time::Instant;

use common::{Answer, Client, Running, settings, start};
use reactrt::config::DeviceName;
use serde_json::{Value, json};

fn server() -> Running {
    start(settings(DeviceName::Cpu))
}

fn post(server: &Running, path: &str, body: Value) -> Answer {
    server.post(path, &body.to_string())
}

fn vectors(answer: &Answer) -> Vec<Vec<f64>> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    serde_json::from_value(answer.json()["embeddings"].clone()).unwrap()
}

#[test]
fn each_task_answers_in_its_shape() {
    let server = server();
    let answer = post(&server, "/infer/embed", json!({"documents": ["hello world", "another text"]}));
    let both = vectors(&answer);
    assert_eq!(both.len(), 2);
    for vector in &both {
        let norm: f64 = vector.iter().map(|value| value * value).sum();
        assert!((norm - 1.0).abs() < 1e-5, "the model's manifest asks for unit length, not {norm}");
    }
    assert!(answer.json()["elapsed_ms"].as_f64().unwrap() > 0.0);

    let answer = post(&server, "/infer/rank", json!({"query": "what", "documents": ["this", "that", "those"]}));
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["scores"].as_array().unwrap().len(), 3);
    assert!(answer.json()["scores"][0].is_f64());

    let pairs = json!({"premises": ["it rains", "a cat"], "hypotheses": ["it is wet", "a dog"]});
    let answer = post(&server, "/infer/nli", pairs);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let body = answer.json();
    for (prediction, logits) in body["predictions"].as_array().unwrap().iter().zip(body["logits"].as_array().unwrap()) {
        let logits: Vec<f64> = serde_json::from_value(logits.clone()).unwrap();
        let best = (0..3).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
        // The order of this model's own id2label.
        assert_eq!(prediction, ["entailment", "contradiction", "neutral"][best]);
    }
}

#[test]
fn a_bare_string_is_one_text_and_an_empty_one_is_valid() {
    let server = server();
    let one = vectors(&post(&server, "/infer/embed", json!({"documents": "hello world"})));
    let listed = vectors(&post(&server, "/infer/embed", json!({"documents": ["hello world"]})));
    assert_eq!(one, listed);
    assert_eq!(vectors(&post(&server, "/infer/embed", json!({"documents": ""}))).len(), 1);
}

#[test]
fn openai_answers_floats_and_base64_alike() {
    use base64::Engine;
    let server = server();
    let texts = json!(["hello world", "another text"]);
    let floats = post(&server, "/v1/embeddings", json!({"model": "embed", "input": texts})).json();
    assert_eq!(floats["object"], "list");
    assert_eq!(floats["model"], "embed");
    assert_eq!(floats["data"][1]["object"], "embedding");
    assert_eq!(floats["data"][1]["index"], 1);
    let body = json!({"model": "embed", "input": texts, "encoding_format": "base64"});
    let encoded = post(&server, "/v1/embeddings", body).json();
    for index in 0..2 {
        let text = encoded["data"][index]["embedding"].as_str().unwrap();
        let bytes = base64::engine::general_purpose::STANDARD.decode(text).unwrap();
        let decoded: Vec<f32> =
            bytes.chunks_exact(4).map(|chunk| f32::from_le_bytes(chunk.try_into().unwrap())).collect();
        let listed: Vec<f32> = serde_json::from_value(floats["data"][index]["embedding"].clone()).unwrap();
        assert_eq!(decoded, listed, "both forms are exact");
    }
    let tokens = floats["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(tokens >= 8, "two texts with their specials: {tokens}");
    assert_eq!(floats["usage"]["total_tokens"], tokens);

    let body = json!({"model": "rank", "query": "what", "input": ["this", "that"]});
    let ranked = post(&server, "/v1/embeddings", body).json();
    assert_eq!(ranked["data"][1]["object"], "reranking");
    let native = post(&server, "/infer/rank", json!({"query": "what", "documents": ["this", "that"]})).json();
    assert_eq!(ranked["data"][1]["embedding"], native["scores"][1], "a bare number, the same score");
}

#[test]
fn token_ids_are_taken_as_they_are() {
    let server = server();
    let tokenizer = reactrt::tokenize::Tokenizer::load(
        &std::path::Path::new(&common::fixture("bert-embedding-mean")).join("tokenizer.json"),
    )
    .unwrap();
    let (mut ids, mut types) = (Vec::new(), Vec::new());
    let cut = reactrt::tokenize::Cut::Early;
    tokenizer.encode(&mut Default::default(), ("hello world", None), 64, cut, &mut ids, &mut types).unwrap();
    let by_ids = post(&server, "/v1/embeddings", json!({"model": "embed", "input": ids})).json();
    let by_text = post(&server, "/v1/embeddings", json!({"model": "embed", "input": "hello world"})).json();
    assert_eq!(by_ids["data"], by_text["data"]);
    assert_eq!(by_ids["usage"]["prompt_tokens"], ids.len());
    let lists = post(&server, "/v1/embeddings", json!({"model": "embed", "input": [ids, ids]})).json();
    assert_eq!(lists["data"][1]["embedding"], by_text["data"][0]["embedding"]);
}

#[test]
fn dimensions_shorten_and_normalise_again() {
    let server = server();
    let answer = post(&server, "/v1/embeddings", json!({"model": "embed", "input": "hello", "dimensions": 8}));
    let vector: Vec<f64> = serde_json::from_value(answer.json()["data"][0]["embedding"].clone()).unwrap();
    assert_eq!(vector.len(), 8);
    assert!((vector.iter().map(|value| value * value).sum::<f64>() - 1.0).abs() < 1e-5);
}

#[test]
fn lists_health_and_metrics() {
    let server = server();
    let expected =
        json!({"models": {"embedding_models": ["embed"], "reranking_models": ["rank"], "nli_models": ["nli"]}});
    assert_eq!(server.get("/models").json(), expected);
    let listed = server.get("/v1/models").json();
    assert_eq!(listed["data"].as_array().unwrap().len(), 3);
    assert_eq!(listed["data"][0]["id"], "embed");
    for path in ["/health", "/health/live", "/health/ready"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    post(&server, "/infer/embed", json!({"documents": ["a", "b"]}));
    let metrics = server.get("/metrics");
    assert!(metrics.header("content-type").unwrap().starts_with("text/plain"));
    for line in [
        "reactrt_requests_total{model=\"embed\",status=\"200\"} 1\n",
        "reactrt_texts_total{model=\"embed\"} 2\n",
        "reactrt_stage_duration_seconds_count{stage=\"device\"} 1\n",
        "reactrt_batches_total{device=\"cpu\"} 1\n",
        "reactrt_jobs 0\n",
    ] {
        assert!(metrics.text().contains(line), "{line} is not in\n{}", metrics.text());
    }
}

#[test]
fn every_answer_says_where_the_time_went_and_who_asked() {
    let server = server();
    let mut client = server.connect();
    let body = json!({"documents": "hello"}).to_string();
    let request = format!(
        "POST /infer/embed HTTP/1.1\r\nhost: x\r\nx-request-id: abc-123\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    client.send(request.as_bytes());
    let answer = client.answer();
    assert_eq!(answer.header("x-request-id"), Some("abc-123"));
    let timing = answer.header("server-timing").unwrap();
    for stage in ["parse", "tokenize", "queue", "device", "encode"] {
        let found = timing.split(", ").find_map(|part| part.strip_prefix(stage)?.strip_prefix(";dur="));
        let duration: f64 = found.unwrap_or_else(|| panic!("{stage} in {timing}")).parse().unwrap();
        assert!((0.0..10_000.0).contains(&duration));
    }
    let made = client.post("/infer/embed", &body).header("x-request-id").unwrap().to_owned();
    let other = client.post("/infer/nope", &body).header("x-request-id").unwrap().to_owned();
    assert_ne!(made, other);
}

#[test]
fn long_texts_are_cut_and_said_to_be_or_refused() {
    let server = server();
    let long = "word and ".repeat(5_000);
    let answer = post(&server, "/infer/embed", json!({"documents": ["short", long]}));
    assert_eq!(vectors(&answer).len(), 2);
    assert_eq!(answer.header("x-truncated-texts"), Some("1"));
    let answer = post(&server, "/infer/embed", json!({"documents": ["short", long], "truncate": false}));
    assert_eq!(answer.status, 400);
    let detail = answer.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("documents[1]"), "{detail}");
    assert!(post(&server, "/infer/embed", json!({"documents": "short"})).header("x-truncated-texts").is_none());
}

/// Each refused request says what is wrong and where, in its family's shape, and leaves the server as it was.
#[test]
fn mistakes_are_refused_in_words_that_help() {
    let server = server();
    let rows: &[(&str, &str, u16, &[&str])] = &[
        ("/infer/nope", r#"{"documents":["a"]}"#, 404, &["model nope not found"]),
        ("/infer/embed", r#"{"documents":["a""#, 400, &["JSON"]),
        ("/infer/embed", "", 400, &[]),
        ("/infer/embed", "[]", 400, &["object"]),
        ("/infer/embed", "{}", 400, &["documents"]),
        ("/infer/embed", r#"{"documents":null}"#, 400, &["documents"]),
        ("/infer/embed", r#"{"documents":[]}"#, 400, &["documents", "empty"]),
        ("/infer/embed", r#"{"documents":["a","b",7]}"#, 400, &["documents[2]", "string"]),
        ("/infer/embed", r#"{"documents":{"a":1}}"#, 400, &["documents"]),
        ("/infer/rank", r#"{"documents":["a"]}"#, 400, &["query"]),
        ("/infer/rank", r#"{"query":["q"],"documents":["a"]}"#, 400, &["query"]),
        ("/infer/nli", r#"{"premises":["a","b"],"hypotheses":["c"]}"#, 400, &["premises", "hypotheses", "2", "1"]),
        ("/infer/nli", r#"{"documents":["a"]}"#, 400, &["premises"]),
        ("/infer/embed", r#"{"documents":["a"],"truncate":"yes"}"#, 400, &["truncate"]),
        ("/infer/embed", r#"{"documents":["a"],"prompt_name":"nope"}"#, 400, &["prompt_name", "none"]),
        ("/v1/embeddings", r#"{"input":"a"}"#, 400, &["model"]),
        ("/v1/embeddings", r#"{"model":"nope","input":"a"}"#, 404, &["nope"]),
        ("/v1/embeddings", r#"{"model":"embed"}"#, 400, &["input"]),
        ("/v1/embeddings", r#"{"model":"embed","input":""}"#, 400, &["input"]),
        ("/v1/embeddings", r#"{"model":"embed","input":["a",""]}"#, 400, &["input[1]"]),
        ("/v1/embeddings", r#"{"model":"embed","input":[1,999999]}"#, 400, &["999999"]),
        ("/v1/embeddings", r#"{"model":"embed","input":["a",5]}"#, 400, &["input[1]"]),
        ("/v1/embeddings", r#"{"model":"embed","input":"a","encoding_format":"hex"}"#, 400, &["encoding_format"]),
        ("/v1/embeddings", r#"{"model":"embed","input":"a","dimensions":0}"#, 400, &["dimensions"]),
        ("/v1/embeddings", r#"{"model":"rank","input":"a"}"#, 400, &["query"]),
        ("/v1/embeddings", r#"{"model":"embed","query":"q","input":"a"}"#, 400, &["embed"]),
        ("/v1/embeddings", r#"{"model":"nli","input":"a"}"#, 400, &["nli"]),
        ("/nowhere", "{}", 404, &["/nowhere"]),
        ("/models", "{}", 405, &[]),
    ];
    let mut client = server.connect();
    for (path, body, status, words) in rows {
        let answer = client.post(path, body);
        assert_eq!(answer.status, *status, "{path} {body}: {}", answer.text());
        let message = match path.starts_with("/v1") {
            true => answer.json()["error"]["message"].as_str().unwrap().to_owned(),
            false => answer.json()["detail"].as_str().unwrap().to_owned(),
        };
        for word in *words {
            assert!(message.contains(word), "{path} {body}: {message}");
        }
    }
    // All on one connection, which still serves.
    assert_eq!(client.post("/infer/embed", r#"{"documents":["a"]}"#).status, 200);
    assert_eq!(client.post("/models", "{}").header("allow"), Some("GET, HEAD, OPTIONS"));
}

#[test]
fn bodies_beyond_the_limits_are_refused_and_cost_nothing() {
    let server = server();
    let many = json!({"documents": vec!["a"; 2_049]}).to_string();
    let answer = server.post("/infer/embed", &many);
    assert!((400..500).contains(&answer.status), "{}", answer.text());
    assert!(answer.text().contains("2048"), "{}", answer.text());

    let letters = format!("{{\"documents\":[{}\"a\"]}}", "\"a\",".repeat(900_000));
    let answer = server.post("/infer/embed", &letters);
    assert_eq!(answer.status, 413, "{}", answer.text());

    let digits = format!("{{\"documents\":[{}1]}}", "1,".repeat(1_900_000));
    let answer = server.post("/infer/embed", &digits);
    assert_eq!(answer.status, 413, "{}", answer.text());
    assert!(server.post("/infer/embed", &"7".repeat(4_000_000)).status == 400);

    // Larger than the body limit: refused on its length alone, before it is read.
    let mut client = server.connect();
    client.send(b"POST /infer/embed HTTP/1.1\r\nhost: x\r\ncontent-length: 40000000\r\n\r\n");
    let answer = client.answer();
    assert_eq!(answer.status, 413, "{}", answer.text());
    assert!(client.is_closed());

    let text = json!({"documents": ["x".repeat((1 << 20) + 1)]}).to_string();
    let answer = server.post("/infer/embed", &text);
    assert!((400..500).contains(&answer.status), "{}", answer.text());
    assert_eq!(server.post("/infer/embed", r#"{"documents":["a"]}"#).status, 200);
}

#[test]
fn the_cpu_device_pads_nothing_and_says_so() {
    let server = start(settings(DeviceName::Cpu));
    assert_eq!(server.post("/infer/embed", r#"{"documents":["a b c", "a"]}"#).status, 200);
    let metrics = server.get("/metrics").text().to_owned();
    let value = |name: &str| {
        let line = metrics.lines().find(|line| line.starts_with(name)).expect("it is shown");
        line.rsplit(' ').next().expect("with a value").parse::<u64>().expect("a number")
    };
    let computed = value("reactrt_bucket_tokens_total{");
    assert!(computed > 0 && computed == value("reactrt_batch_tokens_total{"), "{metrics}");
}

#[test]
fn eight_million_letters_in_one_body_are_refused_by_count() {
    let mut settings = settings(DeviceName::Sim);
    settings.limits.body_bytes_max = 34 << 20;
    settings.limits.memory_bytes_max = Some(400_000_000);
    let server = start(settings);
    let letters = format!("{{\"documents\":[{}\"a\"]}}", "\"a\",".repeat(8_000_000));
    let answer = server.post("/infer/embed", &letters);
    assert_eq!(answer.status, 413, "{}", answer.text());
    assert_eq!(server.post("/infer/embed", r#"{"documents":["a"]}"#).status, 200);
}

#[test]
fn a_text_alone_in_a_batch_and_among_strangers_is_the_same() {
    let server = server();
    let alone = vectors(&post(&server, "/infer/embed", json!({"documents": "the same text"})));
    let strangers: Vec<String> = (0..40).map(|index| "stranger ".repeat(index % 13 + 1)).collect();
    let mut texts = strangers.clone();
    texts.insert(17, "the same text".into());
    let among = vectors(&post(&server, "/infer/embed", json!({"documents": texts})));
    let pairs = alone[0].iter().zip(&among[17]);
    for (a, b) in pairs {
        assert!((a - b).abs() <= 1e-5 * a.abs().max(1e-3), "{a} and {b}");
    }
}

#[test]
fn large_requests_stream_through_few_pieces() {
    let mut settings = settings(DeviceName::Cpu);
    settings.limits.pieces_max = 8;
    settings.limits.piece_sequences_max = 4;
    let server = start(settings);
    let texts: Vec<String> = (0..2_000).map(|index| format!("text number {index}")).collect();
    let all = vectors(&post(&server, "/infer/embed", json!({"documents": texts})));
    assert_eq!(all.len(), 2_000);
    for index in [0, 3, 4, 999, 1_999] {
        let one = vectors(&post(&server, "/infer/embed", json!({"documents": texts[index]})));
        let difference = one[0].iter().zip(&all[index]).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(difference < 1e-5, "text {index}: {difference}");
    }
}

#[test]
fn prompts_come_before_the_text() {
    let mut settings = settings(DeviceName::Cpu);
    settings.models[0].prompts = Some(vec![("query".into(), "find this ".into())]);
    let server = start(settings);
    let prompted = vectors(&post(&server, "/infer/embed", json!({"documents": "thing", "prompt_name": "query"})));
    let written = vectors(&post(&server, "/infer/embed", json!({"documents": "find this thing"})));
    let plain = vectors(&post(&server, "/infer/embed", json!({"documents": "thing"})));
    assert_eq!(prompted, written);
    assert_ne!(prompted, plain);
}

#[test]
fn a_dead_client_costs_no_answer_and_a_slow_stop_loses_none() {
    let mut settings = settings(DeviceName::Sim);
    settings.sim.base_us = 50_000;
    let server = start(settings);
    let mut gone = Client::connect(server.address);
    gone.send_post("/infer/embed", r#"{"documents":["a"]}"#);
    drop(gone);
    let mut waits = server.connect();
    waits.send_post("/infer/embed", r#"{"documents":["b"]}"#);
    // Until the request is a job, stopping would refuse it.
    while !server.get("/metrics").text().contains("reactrt_jobs 1\n") {
        std::thread::yield_now();
    }
    server.stopper().stop();
    assert_eq!(waits.answer().status, 200);
    assert!(waits.is_closed(), "the last answer of a draining server closes");
}

#[test]
fn beyond_the_queue_bound_clients_are_told_when_to_come_back() {
    let mut settings = settings(DeviceName::Sim);
    settings.sim.base_us = 300_000;
    settings.batching.queue_tokens_max = 64;
    let server = start(settings);
    let body = json!({"documents": vec!["some words here"; 20]}).to_string();
    let mut clients: Vec<Client> = (0..40).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.send_post("/infer/embed", &body);
    }
    let statuses: Vec<Answer> = clients.iter_mut().map(Client::answer).collect();
    let full: Vec<&Answer> = statuses.iter().filter(|answer| answer.status == 429).collect();
    assert!(!full.is_empty() && full.len() < 40, "{} of 40", full.len());
    assert!(full.iter().all(|answer| answer.header("retry-after").is_some()));
    assert!(statuses.iter().all(|answer| matches!(answer.status, 200 | 429)));
}

#[test]
fn a_fault_of_the_device_is_told_and_passes() {
    let mut settings = settings(DeviceName::Sim);
    settings.sim.fault_rate = 0.5;
    let server = start(settings);
    let mut client = server.connect();
    let statuses: Vec<u16> = (0..30).map(|_| client.post("/infer/embed", r#"{"documents":["a"]}"#).status).collect();
    assert!(statuses.contains(&200));
    assert!(statuses.iter().any(|status| *status >= 500));
    assert!(statuses.iter().all(|status| matches!(status, 200 | 500 | 503)), "{statuses:?}");
    assert_eq!(client.post("/infer/nope", "{}").status, 404, "the connection goes on");
}

#[test]
fn a_lone_text_passes_bulk_requests_that_hold_every_piece() {
    let mut settings = settings(DeviceName::Sim);
    settings.sim.base_us = 5_000;
    settings.limits.pieces_max = 8;
    settings.limits.piece_sequences_max = 4;
    let server = start(settings);
    let bulk = json!({"documents": vec!["some words to be embedded"; 1_000]}).to_string();
    let mut bulks: Vec<Client> = (0..4).map(|_| server.connect()).collect();
    for client in &mut bulks {
        client.send_post("/infer/embed", &bulk);
    }
    let jobs = || {
        let metrics = server.get("/metrics");
        let line = metrics.text().lines().find(|line| line.starts_with("reactrt_jobs ")).unwrap().to_owned();
        line.rsplit(' ').next().unwrap().parse::<usize>().unwrap()
    };
    while jobs() < 4 {
        std::thread::yield_now();
    }
    assert_eq!(server.post("/infer/embed", r#"{"documents":["alone"]}"#).status, 200);
    assert_eq!(jobs(), 4, "the lone text was answered before any of the bulk requests");
    for client in &mut bulks {
        assert_eq!(vectors(&client.answer()).len(), 1_000);
    }
}

/// Bulk requests that die while all their pieces are on the device: nothing of them stays behind.
#[test]
fn dead_bulk_requests_leave_their_worker() {
    let mut settings = settings(DeviceName::Sim);
    settings.sim.base_us = 20_000;
    settings.limits.jobs_max = 4;
    settings.limits.pieces_max = 4;
    let server = start(settings);
    let bulk = json!({"documents": vec!["some words to be embedded"; 2_000]}).to_string();
    for _ in 0..12 {
        let mut client = server.connect();
        client.send_post("/infer/embed", &bulk);
        while !server.get("/metrics").text().contains("reactrt_pieces_out 4\n") {
            std::thread::yield_now();
        }
        drop(client);
        while !server.get("/metrics").text().contains("reactrt_jobs 0\n") {
            std::thread::yield_now();
        }
    }
    let mut statuses = (0..200).map(|_| server.post("/infer/embed", r#"{"documents":["a"]}"#).status);
    assert!(statuses.any(|status| status == 200), "every slot was taken by the dead");
    while !server.get("/metrics").text().contains("reactrt_buffers_out 1\n") {
        // The one that holds this answer's request.
        std::thread::yield_now();
    }
}

#[test]
fn a_long_query_is_tokenized_once_for_all_its_documents() {
    let server = server();
    let query = "word ".repeat(180_000);
    let documents = vec!["another word of a document ".repeat(60); 200];
    let alone = Instant::now();
    assert_eq!(post(&server, "/infer/rank", json!({"query": query, "documents": documents[..1]})).status, 200);
    let alone = alone.elapsed();
    let all = Instant::now();
    let answer = post(&server, "/infer/rank", json!({"query": query, "documents": documents}));
    assert_eq!(answer.status, 200, "{}", answer.text());
    // Two hundred times the query would be two hundred times as long; the device's part grows with the documents.
    let tokenize = answer.header("server-timing").unwrap().split("tokenize;dur=").nth(1).unwrap().to_owned();
    let tokenize_ms: f64 = tokenize.split(',').next().unwrap().parse().unwrap();
    assert!(
        tokenize_ms < 60.0 * alone.as_secs_f64() * 1e3,
        "{tokenize_ms} ms, one alone {alone:?}, all {:?}",
        all.elapsed()
    );
}

#[test]
fn what_could_never_answer_does_not_start() {
    let refused = |change: &dyn Fn(&mut reactrt::config::Settings), words: &str| {
        let mut settings = settings(DeviceName::Cpu);
        change(&mut settings);
        let error = reactrt::serve::Server::start(settings).expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
    };
    refused(&|settings| settings.models[0].max_length = Some(2), "max_length 2 leaves no room");
    refused(&|settings| settings.limits.memory_bytes_max = Some(100_000_000), "limits.memory_bytes_max");
    refused(&|settings| settings.models.clear(), "no model");
    refused(&|settings| settings.models[0].model_path = "tests".into(), "config.json");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    refused(&|settings| settings.server.port = port, "another program uses port");
}

/// However a server is stopped, every part is home: the guard that stops it here checks.
#[test]
fn stopping_in_the_middle_of_everything_loses_nothing() {
    for round in 0..40 {
        let mut settings = settings(DeviceName::Sim);
        settings.sim.base_us = 500;
        settings.deadlines.drain_ms = 0;
        settings.threads.workers = 1 + round % 2;
        let server = start(settings);
        let bulk = json!({"documents": vec!["some words to be embedded"; 500]}).to_string();
        let mut clients: Vec<Client> = (0..8).map(|_| server.connect()).collect();
        for client in &mut clients {
            client.send_post("/infer/embed", &bulk);
        }
        for _ in 0..round % 5 {
            server.get("/health/live");
        }
        assert_eq!(server.stop(), Default::default(), "round {round}");
    }
}
