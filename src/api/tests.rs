//! What the whole of `api` promises: bodies in, inputs or exact refusals out; answers out, read back with serde_json.

use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::*;
use crate::device::Fault;

/// A xorshift generator: the same numbers for the same seed, everywhere.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }
}

pub(super) fn limits() -> Limits {
    Limits {
        connections_max: 64,
        jobs_max: 64,
        pieces_max: 64,
        piece_sequences_max: 32,
        head_bytes_max: 16 << 10,
        body_bytes_max: 4 << 20,
        texts_max: 2048,
        text_bytes_max: 1 << 20,
        json_values_max: 256 << 10,
        answer_bytes_max: 16 << 20,
        memory_bytes_max: Some(256 << 20),
    }
}

fn entry(name: &str, task: Task, width: u32) -> Entry {
    Entry {
        name: name.into(),
        task,
        labels: vec![],
        prompts: vec![],
        default_prompt: None,
        width,
        vocabulary: 30522,
        max_length: 8,
        normalize: true,
    }
}

const EMBEDDING: u32 = 0;
const RERANKER: u32 = 1;
const NLI: u32 = 2;
const PROMPTED: u32 = 3;

fn catalog() -> Catalog {
    let prompt = |name: &str| Prompt { name: name.into(), text: format!("{name}: ") };
    let labels = ["contradiction", "neutral", "entailment"].map(String::from).to_vec();
    Catalog::new(vec![
        entry("mini", Task::Embedding, 4),
        entry("rank", Task::Reranking, 1),
        Entry { labels, ..entry("nli", Task::Nli, 3) },
        Entry {
            prompts: vec![prompt("query"), prompt("passage")],
            default_prompt: Some(1),
            ..entry("my model/é", Task::Embedding, 1024)
        },
    ])
}

const INFER: Route = Route::Infer { model: EMBEDDING };
const RANK: Route = Route::Infer { model: RERANKER };
const ENTAIL: Route = Route::Infer { model: NLI };
const V1: Route = Route::Embeddings;

/// A parser with its buffers and limits.
struct Parser {
    catalog: Catalog,
    limits: Limits,
    scratch: Scratch,
    inputs: Inputs,
}

impl Parser {
    fn new() -> Parser {
        Parser { catalog: catalog(), limits: limits(), scratch: Scratch::default(), inputs: Inputs::default() }
    }

    fn parse(&mut self, route: Route, bytes: &mut [u8], body: Range<usize>) -> Result<Outline, Reject> {
        parse(route, bytes, body, &self.catalog, &self.limits, &mut self.scratch, &mut self.inputs)
    }

    /// What a body comes to, in a line: its inputs, or status and body of the refusal. Read twice, with and without
    /// something behind it, which must make no difference.
    fn outcome(&mut self, route: Route, body: &[u8]) -> String {
        let mut alone = body.to_vec();
        let parsed = self.parse(route, &mut alone, 0..body.len());
        let alone = self.line(route, parsed, &alone);
        let mut among = [b"POST ".as_slice(), body, b"GET /next \"HTTP/1.1\\".repeat(4).as_slice()].concat();
        let before = among.clone();
        let range = 5..5 + body.len();
        let parsed = self.parse(route, &mut among, range.clone());
        assert_eq!(among[..range.start], before[..range.start], "what stands before the body is left as it is");
        assert_eq!(among[range.end..], before[range.end..], "what stands behind the body is left as it is");
        assert_eq!(alone, self.line(route, parsed, &among));
        alone
    }

    fn line(&self, route: Route, parsed: Result<Outline, Reject>, bytes: &[u8]) -> String {
        let outline = match parsed {
            Ok(outline) => outline,
            Err(reject) => return refusal(reject, route.family()),
        };
        assert_eq!(outline.items as usize, self.inputs.items.len());
        assert_eq!((outline.family, outline.task), (route.family(), self.catalog.entry(outline.model).task));
        let text = |span: Span| std::str::from_utf8(&bytes[span.range()]).expect("spans are UTF-8");
        let items: Vec<String> = self
            .inputs
            .items
            .iter()
            .map(|item| match *item {
                Item::Text(span) => format!("{:?}", text(span)),
                Item::Pair(first, second) => format!("{:?}+{:?}", text(first), text(second)),
                Item::Ids(span) => format!("{:?}", &self.inputs.ids[span.range()]),
            })
            .collect();
        items.join(" ")
    }
}

fn refusal(reject: Reject, family: Family) -> String {
    let mut body = Vec::new();
    reject.write(family, &mut body);
    assert!(body.len() <= Reject::BODY_BYTES_MAX, "{} bytes", body.len());
    let text = String::from_utf8(body).unwrap();
    let read: serde_json::Value = serde_json::from_str(&text).expect("a refusal is JSON");
    match family {
        // The message alone keeps the tables legible; the shape is checked here.
        Family::Native => format!("{} {}", reject.status(), read["detail"].as_str().unwrap()),
        Family::OpenAi => {
            let error = &read["error"];
            assert_eq!(error.as_object().unwrap().len(), 4, "{text}");
            assert_eq!(error["type"], "invalid_request_error");
            let part = |key: &str| error[key].as_str().unwrap_or("-").to_owned();
            format!("{} {} ({}, {})", reject.status(), part("message"), part("param"), part("code"))
        }
    }
}

#[test]
fn routes() {
    let catalog = catalog();
    let cases: [(&str, &str, Result<Route, &str>); 26] = [
        ("POST", "/infer/mini", Ok(INFER)),
        ("POST", "/infer/m%69ni", Ok(INFER)),
        ("POST", "/infer/my%20model/%C3%A9", Ok(Route::Infer { model: PROMPTED })),
        ("POST", "/infer/my%20model%2f%c3%a9", Ok(Route::Infer { model: PROMPTED })),
        ("POST", "/infer/nope", Err("404 model nope not found; GET /models lists those that are served")),
        ("POST", "/infer/mini%", Err("404 model mini% not found; GET /models lists those that are served")),
        ("POST", "/infer/mini%2", Err("404 model mini%2 not found; GET /models lists those that are served")),
        ("POST", "/infer/%zz%+1", Err("404 model %zz%+1 not found; GET /models lists those that are served")),
        (
            "POST",
            "/infer/a%00%22%ff",
            Err("404 model a\0\"\u{fffd} not found; GET /models lists those that are served"),
        ),
        ("GET", "/infer/mini", Err("405 use POST")),
        ("HEAD", "/infer/mini", Err("405 use POST")),
        ("POST", "/v1/embeddings", Ok(V1)),
        ("GET", "/v1/embeddings", Err("405 use POST")),
        ("GET", "/models", Ok(Route::Models)),
        ("HEAD", "/models", Ok(Route::Models)),
        ("POST", "/models", Err("405 use GET")),
        ("OPTIONS", "/models", Err("405 use GET")),
        ("get", "/models", Err("405 use GET")),
        ("GET", "/v1/models", Ok(Route::ModelsOpenAi)),
        ("GET", "/health", Ok(Route::Ready)),
        ("GET", "/health/ready", Ok(Route::Ready)),
        ("HEAD", "/health/live", Ok(Route::Live)),
        ("GET", "/metrics", Ok(Route::Metrics)),
        (
            "GET",
            "/",
            Err(
                "404 no route /; there are POST /infer/{model}, POST /v1/embeddings, GET /models, /v1/models, /health and /metrics",
            ),
        ),
        (
            "POST",
            "/infer/",
            Err(
                "404 no route /infer/; there are POST /infer/{model}, POST /v1/embeddings, GET /models, /v1/models, /health and /metrics",
            ),
        ),
        (
            "GET",
            "",
            Err(
                "404 no route ; there are POST /infer/{model}, POST /v1/embeddings, GET /models, /v1/models, /health and /metrics",
            ),
        ),
    ];
    for (method, path, expected) in cases {
        let found = route(method.as_bytes(), path.as_bytes(), &catalog);
        let expected = expected.map_err(String::from);
        assert_eq!(found.map_err(|reject| refusal(reject, Family::Native)), expected, "{method} {path}");
    }
    assert_eq!(route(b"GET", b"/v1/embeddings", &catalog).unwrap_err().allow(), Some("POST, OPTIONS"));
    assert_eq!(route(b"PUT", b"/health", &catalog).unwrap_err().allow(), Some("GET, HEAD, OPTIONS"));
    assert_eq!(route(b"GET", b"/no", &catalog).unwrap_err().allow(), None);
}

#[test]
fn options_are_those_of_the_path_whether_or_not_its_model_is_served() {
    let catalog = catalog();
    let allow = |path: &str| allowed(path.as_bytes(), &catalog).map(Allow::header).map_err(|reject| reject.status());
    assert_eq!(allow("*"), Ok("GET, HEAD, POST, OPTIONS"));
    assert_eq!(allow("/infer/mini"), Ok("POST, OPTIONS"));
    assert_eq!(allow("/infer/nope"), Ok("POST, OPTIONS"));
    assert_eq!(allow("/v1/embeddings"), Ok("POST, OPTIONS"));
    assert_eq!(allow("/metrics"), Ok("GET, HEAD, OPTIONS"));
    assert_eq!(allow("/nowhere"), Err(404));
    assert_eq!(allow("/infer/"), Err(404));
}

#[test]
fn the_error_shape_follows_the_path_even_without_a_route() {
    let native = ["/", "/infer/x", "/v2", "/v1x/embeddings", "/models", ""];
    let openai = ["/v1", "/v1/", "/v1/embeddings", "/v1/nothing"];
    assert!(native.iter().all(|path| Family::of(path.as_bytes()) == Family::Native));
    assert!(openai.iter().all(|path| Family::of(path.as_bytes()) == Family::OpenAi));
    let mut body = Vec::new();
    route(b"POST", b"/infer/nope", &catalog()).unwrap_err().write(Family::Native, &mut body);
    assert_eq!(body, br#"{"detail":"model nope not found; GET /models lists those that are served"}"#);
    body.clear();
    Reject::UnknownModel { name: Words::new(b"nope") }.write(Family::OpenAi, &mut body);
    let expected = concat!(
        r#"{"error":{"message":"model nope not found; GET /models lists those that are served","type":"invalid_request_error","#,
        r#""param":null,"code":"model_not_found"}}"#
    );
    assert_eq!(String::from_utf8(body).unwrap(), expected);
}

#[test]
fn native_bodies() {
    let embedding = "an embedding model takes documents, a string or a list of strings";
    let reranking = "a reranker takes query, a string, and documents, a string or a list of strings";
    let nli = "an NLI model takes premises and hypotheses, two lists of strings of one length";
    let cases = [
        (INFER, r#"{"documents":["a","b"]}"#, r#""a" "b""#.into()),
        (INFER, r#"{"documents":"abc"}"#, r#""abc""#.into()),
        (INFER, r#"{"documents":""}"#, r#""""#.into()),
        (INFER, r#"{"documents":["",""]}"#, r#""" """#.into()),
        (INFER, " {\t\"documents\" :\r\n[ \"a\" ] }\n", r#""a""#.into()),
        (
            INFER,
            r#"{"model":5,"other":{"a":[1,{}]},"documents":["今天","\u4eca\ud83d\ude00\n\"\\\/"],"x":[]}"#,
            "\"今天\" \"今😀\\n\\\"\\\\/\"".into(),
        ),
        (INFER, r#"{"documents":["nul\u0000"]}"#, r#""nul\0""#.into()),
        (INFER, r#"{"documents":"first","documents":"last"}"#, r#""last""#.into()),
        (INFER, r#"{"documents":"first","documents":null}"#, format!("400 documents is missing: {embedding}")),
        (INFER, r#"{"\u0064ocuments":"escaped key"}"#, r#""escaped key""#.into()),
        (INFER, "{}", format!("400 documents is missing: {embedding}")),
        (INFER, r#"{"documents":null}"#, format!("400 documents is missing: {embedding}")),
        (INFER, r#"{"query":"q","premises":["p"]}"#, format!("400 documents is missing: {embedding}")),
        (INFER, r#"{"documents":[]}"#, "400 documents: the list is empty".into()),
        (INFER, r#"{"documents":7}"#, "400 documents: expected a string or a list of strings, found a number".into()),
        (
            INFER,
            r#"{"documents":{"a":1}}"#,
            "400 documents: expected a string or a list of strings, found an object".into(),
        ),
        (INFER, r#"{"documents":["a",7]}"#, "400 documents[1]: expected a string, found a number".into()),
        (INFER, r#"{"documents":["a","b",null]}"#, "400 documents[2]: expected a string, found null".into()),
        (INFER, r#"{"documents":[["a"]]}"#, "400 documents[0]: expected a string, found a list".into()),
        (INFER, r#"{"documents":[{"x":["y"]},"a"]}"#, "400 documents[0]: expected a string, found an object".into()),
        (INFER, r#"{"documents":["a",true]}"#, "400 documents[1]: expected a string, found a boolean".into()),
        (INFER, r#"{"documents":"a","truncate":1}"#, "400 truncate: expected true or false, found a number".into()),
        (
            INFER,
            r#"{"documents":"a","dimensions":5}"#,
            "400 dimensions is 5; this model's vectors can be cut to 1 to 4".into(),
        ),
        (
            INFER,
            r#"{"documents":"a","dimensions":0}"#,
            "400 dimensions is 0; this model's vectors can be cut to 1 to 4".into(),
        ),
        (
            INFER,
            r#"{"documents":"a","dimensions":-18446744073709551616}"#,
            "400 the body is not valid JSON: a number that is malformed or too large, at byte 50".into(),
        ),
        (
            INFER,
            r#"{"documents":"a","dimensions":18446744073709551615}"#,
            "400 dimensions is 18446744073709551615; this model's vectors can be cut to 1 to 4".into(),
        ),
        (
            INFER,
            r#"{"documents":"a","dimensions":2.0}"#,
            "400 dimensions: expected a whole number, found a number with a fraction".into(),
        ),
        (
            INFER,
            r#"{"documents":"a","dimensions":"2"}"#,
            "400 dimensions: expected a whole number, found a string".into(),
        ),
        (
            INFER,
            r#"{"documents":"a","prompt_name":"query"}"#,
            "400 prompt_name names no prompt of this model; it has none".into(),
        ),
        (
            Route::Infer { model: PROMPTED },
            r#"{"documents":"a","prompt_name":"q"}"#,
            "400 prompt_name names no prompt of this model; it has query, passage".into(),
        ),
        (
            Route::Infer { model: PROMPTED },
            r#"{"documents":"a","prompt_name":[]}"#,
            "400 prompt_name: expected a string, found a list".into(),
        ),
        (RANK, r#"{"query":"q","documents":["a","b"]}"#, r#""q"+"a" "q"+"b""#.into()),
        (RANK, r#"{"documents":"a","query":""}"#, r#"""+"a""#.into()),
        (RANK, r#"{"documents":["a"]}"#, format!("400 query is missing: {reranking}")),
        (RANK, r#"{"query":null,"documents":["a"]}"#, format!("400 query is missing: {reranking}")),
        (RANK, r#"{"query":"q"}"#, format!("400 documents is missing: {reranking}")),
        (RANK, r#"{"query":["q"],"documents":["a"]}"#, "400 query: expected a string, found a list".into()),
        (
            RANK,
            r#"{"query":"q","documents":"a","dimensions":1}"#,
            "400 dimensions applies to embedding models; this is a reranker".into(),
        ),
        (ENTAIL, r#"{"premises":["a","b"],"hypotheses":["c","d"]}"#, r#""a"+"c" "b"+"d""#.into()),
        (ENTAIL, r#"{"hypotheses":"c","premises":["a"]}"#, r#""a"+"c""#.into()),
        (ENTAIL, r#"{"premises":"a","hypotheses":""}"#, r#""a"+"""#.into()),
        (
            ENTAIL,
            r#"{"premises":["a","b"],"hypotheses":["c"]}"#,
            "400 2 premises but 1 hypotheses: each premise needs one hypothesis".into(),
        ),
        (
            ENTAIL,
            r#"{"premises":["a","b"],"hypotheses":"c"}"#,
            "400 2 premises but 1 hypotheses: each premise needs one hypothesis".into(),
        ),
        (ENTAIL, r#"{"premises":[],"hypotheses":[]}"#, "400 premises: the list is empty".into()),
        (ENTAIL, r#"{"premises":["a"],"hypotheses":[]}"#, "400 hypotheses: the list is empty".into()),
        (ENTAIL, r#"{"premises":["a"]}"#, format!("400 hypotheses is missing: {nli}")),
        (ENTAIL, r#"{"documents":["a"]}"#, format!("400 premises is missing: {nli}")),
        (
            ENTAIL,
            r#"{"premises":["a","b"],"hypotheses":["c",1]}"#,
            "400 hypotheses[1]: expected a string, found a number".into(),
        ),
        (
            ENTAIL,
            r#"{"premises":["a",false],"hypotheses":["c",1]}"#,
            "400 premises[1]: expected a string, found a boolean".into(),
        ),
    ];
    let mut parser = Parser::new();
    for (route, body, expected) in cases {
        assert_eq!(parser.outcome(route, body.as_bytes()), expected, "{body}");
    }
}

#[test]
fn openai_bodies() {
    let takes = "/v1/embeddings takes model, a name that GET /v1/models lists, and input, one or more texts or lists of \
                 token ids";
    let cases = [
        (r#"{"model":"mini","input":"abc"}"#, r#""abc""#.into()),
        (r#"{"model":"mini","input":["a","b"],"user":7,"encoding_format":null}"#, r#""a" "b""#.into()),
        (r#"{"model":"mini","input":[1,2,30521]}"#, "[1, 2, 30521]".into()),
        (r#"{"model":"mini","input":[[1],[2,0]]}"#, "[1] [2, 0]".into()),
        (r#"{"model":"mini","input":[1,2,3,4,5,6,7,8,9,10]}"#, "[1, 2, 3, 4, 5, 6, 7, 8]".into()),
        (
            r#"{"model":"mini","input":[[1],[1,2,3,4,5,6,7,8,9]],"truncate":false}"#,
            "400 input[1]: 9 tokens, the model takes 8; without \"truncate\":false it would be cut \
             (input, context_length_exceeded)"
                .into(),
        ),
        (
            r#"{"model":"mini","input":[1,2,3,4,5,6,7,8,30522]}"#,
            "400 input[8]: token id 30522 is outside the vocabulary, ids are 0 to 30521 (input, -)".into(),
        ),
        (
            r#"{"model":"mini","input":[[1],[5,-1]]}"#,
            "400 input[1][1]: token id -1 is outside the vocabulary, ids are 0 to 30521 (input, -)".into(),
        ),
        (
            r#"{"model":"mini","input":[1,2.5]}"#,
            "400 input[1]: expected a token id, which is a whole number, found a number with a fraction (input, -)"
                .into(),
        ),
        (
            r#"{"model":"mini","input":[1,"a"]}"#,
            "400 input[1]: expected a token id, which is a whole number, found a string (input, -)".into(),
        ),
        (
            r#"{"model":"mini","input":["a","b","c",4]}"#,
            "400 input[3]: expected a string, found a number (input, -)".into(),
        ),
        (
            r#"{"model":"mini","input":[[1],"a"]}"#,
            "400 input[1]: expected a list of token ids, found a string (input, -)".into(),
        ),
        (
            r#"{"model":"mini","input":[[1],["a"]]}"#,
            "400 input[1][0]: expected a token id, which is a whole number, found a string (input, -)".into(),
        ),
        (r#"{"model":"mini","input":[[1],[]]}"#, "400 input[1]: the list is empty (input, -)".into()),
        (r#"{"model":"mini","input":[]}"#, "400 input: the list is empty (input, -)".into()),
        (r#"{"model":"mini","input":""}"#, "400 input: the string is empty (input, -)".into()),
        (r#"{"model":"mini","input":["a",""]}"#, "400 input[1]: the string is empty (input, -)".into()),
        (
            r#"{"model":"mini","input":[null]}"#,
            "400 input[0]: expected a string, a token id or a list of token ids, found null (input, -)".into(),
        ),
        (
            r#"{"model":"mini","input":5}"#,
            "400 input: expected a string, a list of strings, a list of token ids or a list of lists of token ids, \
             found a number (input, -)"
                .into(),
        ),
        (r#"{"model":"mini","input":null}"#, format!("400 input is missing: {takes} (input, -)")),
        (r#"{"input":"a"}"#, format!("400 model is missing: {takes} (model, -)")),
        (r#"{"model":null,"input":"a"}"#, format!("400 model is missing: {takes} (model, -)")),
        (r#"{"model":["mini"],"input":"a"}"#, "400 model: expected a string, found a list (model, -)".into()),
        (
            r#"{"model":"nope","input":5}"#,
            "404 model nope not found; GET /models lists those that are served (-, model_not_found)".into(),
        ),
        (
            r#"{"model":"a\"\nb","input":5}"#,
            "404 model a\"\nb not found; GET /models lists those that are served (-, model_not_found)".into(),
        ),
        (
            r#"{"model":"mini","input":"a","encoding_format":"hex"}"#,
            "400 encoding_format is hex; it can be float or base64 (encoding_format, -)".into(),
        ),
        (
            r#"{"model":"mini","input":"a","encoding_format":1}"#,
            "400 encoding_format: expected a string, found a number (encoding_format, -)".into(),
        ),
        (
            r#"{"model":"mini","input":"a","query":"q"}"#,
            "400 model mini is an embedding model and takes no query; rerankers do (query, -)".into(),
        ),
        (r#"{"model":"mini","input":"a","query":null}"#, r#""a""#.into()),
        (r#"{"model":"rank","input":["a","b"],"query":"q"}"#, r#""q"+"a" "q"+"b""#.into()),
        (r#"{"model":"rank","input":"a","query":"q","encoding_format":"base64"}"#, r#""q"+"a""#.into()),
        (
            r#"{"model":"rank","input":["a"]}"#,
            "400 query is missing: model rank is a reranker and scores each input against a query (query, -)".into(),
        ),
        (r#"{"model":"rank","input":["a"],"query":""}"#, "400 query: the string is empty (query, -)".into()),
        (
            r#"{"model":"rank","input":[[1]],"query":"q"}"#,
            "400 input[0]: expected a string, found a list (input, -)".into(),
        ),
        (
            r#"{"model":"rank","input":"a","query":"q","dimensions":1}"#,
            "400 dimensions applies to embedding models; this is a reranker (dimensions, -)".into(),
        ),
        (
            r#"{"model":"nli","input":["a"]}"#,
            "400 model nli is an NLI model; /v1/embeddings serves embedding models and rerankers, use POST /infer/nli \
             (model, -)"
                .into(),
        ),
        (
            r#"{"model":"my model/é","input":[5],"prompt_name":"query"}"#,
            "400 prompt_name applies to texts; token ids are taken as they are (prompt_name, -)".into(),
        ),
    ];
    let mut parser = Parser::new();
    for (body, expected) in cases {
        assert_eq!(parser.outcome(V1, body.as_bytes()), expected, "{body}");
    }
}

#[test]
fn options_reach_the_outline() {
    let mut parser = Parser::new();
    let mut outline = |route, body: &str| {
        let mut bytes = body.as_bytes().to_vec();
        let whole = 0..bytes.len();
        parser.parse(route, &mut bytes, whole).unwrap()
    };
    let plain = outline(INFER, r#"{"documents":["a","b"]}"#);
    let expected = Outline {
        model: EMBEDDING,
        task: Task::Embedding,
        family: Family::Native,
        items: 2,
        format: Format::Float,
        dimensions: None,
        truncate: true,
        prompt: None,
        lists_cut: 0,
    };
    assert_eq!(plain, expected);
    let all = outline(INFER, r#"{"documents":["a","b"],"truncate":false,"dimensions":3,"encoding_format":"base64"}"#);
    assert_eq!(all, Outline { truncate: false, dimensions: Some(3), ..expected });
    let prompted = Route::Infer { model: PROMPTED };
    assert_eq!(outline(prompted, r#"{"documents":"a"}"#).prompt, Some(1));
    assert_eq!(outline(prompted, r#"{"documents":"a","prompt_name":"query"}"#).prompt, Some(0));
    let v1 = |rest: &str| format!(r#"{{"model":"my model/é",{rest}}}"#);
    assert_eq!(outline(V1, &v1(r#""input":"a","prompt_name":"query""#)).prompt, Some(0));
    assert_eq!(outline(V1, &v1(r#""input":[5]"#)).prompt, None);
    assert_eq!(outline(V1, &v1(r#""input":"a""#)).format, Format::Float);
    assert_eq!(outline(V1, &v1(r#""input":"a","encoding_format":"base64""#)).format, Format::Base64);
    assert_eq!(outline(V1, &v1(r#""input":"a","dimensions":1024"#)).dimensions, Some(1024));
    let cut = outline(V1, &v1(r#""input":[[1,2,3,4,5,6,7,8,9],[1],[0,0,0,0,0,0,0,0,0,0]]"#));
    assert_eq!((cut.lists_cut, cut.items, cut.family), (2, 3, Family::OpenAi));
}

#[test]
fn bodies_that_are_not_json() {
    let invalid = |what: &str| format!("400 the body is not valid JSON: {what}");
    let deep = |levels: usize| format!("{{\"x\":{}{}}}", "[".repeat(levels), "]".repeat(levels)).into_bytes();
    let surrogate = "a string has a \\u escape without four hexadecimal digits or half of a surrogate pair";
    let cases: Vec<(Vec<u8>, String)> = vec![
        (b"".to_vec(), invalid("it is empty, at byte 0")),
        (b" \r\n\t".to_vec(), invalid("it is empty, at byte 0")),
        (b"\xef\xbb\xbf{}".to_vec(), invalid("it begins with a byte order mark, at byte 0")),
        (b"\xff\xfe{\0}\0".to_vec(), invalid("it is UTF-16, send UTF-8, at byte 0")),
        (b"{\0}".to_vec(), invalid("a syntax error, at byte 1")),
        (b"documents=a".to_vec(), invalid("it does not begin with {, at byte 0")),
        (b"[]".to_vec(), "400 the body must be a JSON object, found a list".into()),
        (b"\"a\"".to_vec(), "400 the body must be a JSON object, found a string".into()),
        (b"null".to_vec(), "400 the body must be a JSON object, found null".into()),
        (b"true".to_vec(), "400 the body must be a JSON object, found a boolean".into()),
        ("8".repeat(3 << 20).into_bytes(), "400 the body must be a JSON object, found a number".into()),
        (b"{\"documents\":\"a\xff\"}".to_vec(), invalid("it is not UTF-8, at byte 15")),
        (b"{\"documents\":\"\xed\xa0\x80\"}".to_vec(), invalid("it is not UTF-8, at byte 14")),
        (
            b"{\"documents\":\"a\0\"}".to_vec(),
            invalid("a string has a control character, which must be escaped, at byte 15"),
        ),
        (
            b"{\"documents\":\"a\nb\"}".to_vec(),
            invalid("a string has a control character, which must be escaped, at byte 15"),
        ),
        (b"{\"documents\":\"a}".to_vec(), invalid("a string is not closed, at byte 13")),
        (b"{\"documents\":\"a\\\"}".to_vec(), invalid("a string is not closed, at byte 13")),
        (br#"{"documents":"\x"}"#.to_vec(), invalid("a string has an unknown escape")),
        (br#"{"documents":"\ud800"}"#.to_vec(), invalid(surrogate)),
        (br#"{"documents":"\ud800\ud800"}"#.to_vec(), invalid(surrogate)),
        (br#"{"documents":"\udc00x"}"#.to_vec(), invalid(surrogate)),
        (br#"{"documents":"\u12"}"#.to_vec(), invalid(surrogate)),
        (br#"{"documents":"a"}}"#.to_vec(), invalid("something follows its end, at byte 17")),
        (br#"{"documents":"a"} x"#.to_vec(), invalid("something follows its end, at byte 18")),
        (b"{".to_vec(), invalid("it ends too early, at byte 1")),
        (br#"{"documents":"a","#.to_vec(), invalid("it ends too early, at byte 17")),
        (br#"{"documents":["a""#.to_vec(), invalid("it ends too early, at byte 17")),
        (br#"{"documents":{"#.to_vec(), invalid("it ends too early, at byte 14")),
        (br#"{"documents":{}"#.to_vec(), invalid("it ends too early, at byte 15")),
        (br#"{"documents":}"#.to_vec(), invalid("a syntax error, at byte 13")),
        (br#"{"documents":[}"#.to_vec(), invalid("a syntax error, at byte 14")),
        (br#"{"documents":["a", } ]"#.to_vec(), invalid("a syntax error, at byte 19")),
        (br#"{"documents":["a",]}"#.to_vec(), invalid("a syntax error, at byte 18")),
        (br#"{"documents":01}"#.to_vec(), invalid("a number that is malformed or too large, at byte 14")),
        (br#"{documents:"a"}"#.to_vec(), invalid("keys and strings stand in double quotes, at byte 1")),
        (br#"{'documents':'a'}"#.to_vec(), invalid("keys and strings stand in double quotes, at byte 1")),
        (br#"{"documents":NaN}"#.to_vec(), invalid("a syntax error, at byte 13")),
        (br#"{"documents":tru}"#.to_vec(), invalid("a syntax error, at byte 13")),
        (
            deep(63),
            "400 documents is missing: an embedding model takes documents, a string or a list of strings".into(),
        ),
        (deep(64), "400 the body nests lists or objects more than 64 levels deep".into()),
        (deep(100_000), "400 the body nests lists or objects more than 64 levels deep".into()),
        (
            [b"{\"x\":".as_slice(), &b"[".repeat(1 << 20)].concat(),
            "413 the body holds more than 262144 JSON keys, values and brackets (limits.json_values_max)".into(),
        ),
        ([b"{".as_slice(), &b",".repeat(1 << 20)].concat(), invalid("a syntax error, at byte 262145")),
    ];
    let mut parser = Parser::new();
    for (body, expected) in cases {
        let shown = String::from_utf8_lossy(&body[..body.len().min(40)]).into_owned();
        assert_eq!(parser.outcome(INFER, &body), expected, "{shown}");
    }
}

#[test]
fn limits_hold() {
    let mut parser = Parser::new();
    let one_letter = |count: usize| format!(r#"{{"documents":[{}"a"]}}"#, r#""a","#.repeat(count - 1)).into_bytes();
    assert_eq!(parser.outcome(INFER, &one_letter(2048)).split(' ').count(), 2048);
    let too_many = "413 documents: 2049 texts, one request may hold 2048 (limits.texts_max)";
    assert_eq!(parser.outcome(INFER, &one_letter(2049)), too_many);
    let values = "413 the body holds more than 262144 JSON keys, values and brackets (limits.json_values_max)";
    assert_eq!(parser.outcome(INFER, &one_letter(8_000_000)), values);

    parser.limits.text_bytes_max = 5;
    assert_eq!(parser.outcome(INFER, r#"{"documents":["ééx","\u00e9\u00e9x"]}"#.as_bytes()), r#""ééx" "ééx""#);
    let too_large = "413 documents[1]: 6 bytes, one text may have 5 (limits.text_bytes_max)";
    assert_eq!(parser.outcome(INFER, br#"{"documents":["a","abcdef"]}"#), too_large);
    let too_large = "413 query: 6 bytes, one text may have 5 (limits.text_bytes_max)";
    assert_eq!(parser.outcome(RANK, br#"{"documents":["a"],"query":"abcdef"}"#), too_large);

    parser.limits = limits();
    parser.limits.texts_max = 2;
    let lists = "413 input: 3 texts, one request may hold 2 (limits.texts_max) (input, -)";
    assert_eq!(parser.outcome(V1, br#"{"model":"mini","input":[[1],[1],[1]]}"#), lists);
    let pairs = "413 hypotheses: 3 texts, one request may hold 2 (limits.texts_max)";
    assert_eq!(parser.outcome(ENTAIL, br#"{"premises":["a"],"hypotheses":["a","b","c"]}"#), pairs);

    parser.limits = limits();
    parser.limits.answer_bytes_max = 8000;
    let body = |format: &str| format!(r#"{{"model":"my model/é","input":"a","encoding_format":"{format}"}}"#);
    assert_eq!(parser.outcome(V1, body("base64").as_bytes()), r#""a""#);
    let refused = parser.outcome(V1, body("float").as_bytes());
    assert!(refused.starts_with("413 the answer could take 18"), "{refused}");
    let advice = "and may have 8000 (limits.answer_bytes_max): send fewer texts, or ask for encoding_format base64, \
                  which is smaller (-, -)";
    assert!(refused.ends_with(advice), "{refused}");
    let refused = parser.outcome(Route::Infer { model: PROMPTED }, br#"{"documents":"a"}"#);
    assert!(refused.ends_with("and may have 8000 (limits.answer_bytes_max): send fewer texts"), "{refused}");
}

#[test]
fn a_long_number_costs_one_pass() {
    // Two of the largest bodies, all digits: a parser that is worse than linear would not come back from this.
    let mut parser = Parser::new();
    let digits = "7".repeat((4 << 20) - 100);
    let refused = parser.outcome(INFER, format!("{{\"documents\":{digits}}}").as_bytes());
    let number = "400 the body is not valid JSON: a number that is malformed or too large";
    assert!(refused.starts_with(number), "{refused}");
    let fraction = parser.outcome(INFER, format!("{{\"documents\":0.{digits}}}").as_bytes());
    let expected = "400 documents: expected a string or a list of strings, found a number with a fraction";
    assert!(fraction == expected || fraction.starts_with(number), "{fraction}");
}

/// Random JSON texts with the fields we read among others.
struct Generator(Random);

impl Generator {
    fn object(&mut self, depth: u64, out: &mut String) {
        const KEYS: [&str; 8] = ["documents", "query", "input", "model", "x", "", "premises", "dimensions"];
        self.blank(out);
        out.push('{');
        for index in 0..self.0.below(5) {
            if index > 0 {
                out.push(',');
            }
            self.blank(out);
            if self.0.below(4) == 0 {
                self.string(out);
            } else {
                out.push_str(&format!("{:?}", KEYS[self.0.below(8) as usize]));
            }
            self.blank(out);
            out.push(':');
            self.value(depth, out);
        }
        self.blank(out);
        out.push('}');
        self.blank(out);
    }

    fn value(&mut self, depth: u64, out: &mut String) {
        self.blank(out);
        match self.0.below(if depth == 0 { 5 } else { 8 }) {
            0 => out.push_str(["null", "true", "false"][self.0.below(3) as usize]),
            1 => self.number(out),
            2..=4 => self.string(out),
            5..=6 => {
                out.push('[');
                for index in 0..self.0.below(6) {
                    if index > 0 {
                        out.push(',');
                    }
                    self.value(depth - 1, out);
                }
                self.blank(out);
                out.push(']');
            }
            _ => self.object(depth - 1, out),
        }
        self.blank(out);
    }

    fn number(&mut self, out: &mut String) {
        let whole = self.0.next() >> self.0.below(64);
        let text = match self.0.below(5) {
            0 => format!("-{}", whole >> 1),
            1 => format!("{}.{}", whole >> 40, self.0.below(100_000)),
            2 => format!("{}e{}", whole >> 54, self.0.below(30)),
            3 => format!("-0.{}E-{}", self.0.below(1000), self.0.below(30)),
            _ => whole.to_string(),
        };
        out.push_str(&text);
    }

    fn string(&mut self, out: &mut String) {
        const PIECES: [&str; 16] = [
            "a",
            "plain words ",
            "é",
            "模型",
            "😀",
            "\\n",
            "\\\"",
            "\\\\",
            "\\/",
            "\\u0041",
            "\\u4eca",
            "\\ud83d\\ude00",
            "\\u0000",
            "{[,:]}",
            "\\t\\b\\f\\r",
            "\u{7f}\u{80}\u{2028}",
        ];
        out.push('"');
        // Now and then long enough to cross the parser's blocks of 64 bytes.
        let pieces = if self.0.below(8) == 0 { 60 } else { 6 };
        for _ in 0..self.0.below(pieces) {
            out.push_str(PIECES[self.0.below(16) as usize]);
        }
        out.push('"');
    }

    fn blank(&mut self, out: &mut String) {
        if self.0.below(6) == 0 {
            out.push_str([" ", "\n", "\t", "\r\n", "      "][self.0.below(5) as usize]);
        }
    }

    /// Breaks, or does not break, the text in one to three places.
    fn mutate(&mut self, bytes: &mut Vec<u8>) {
        const INSERTS: &[u8] = b"\"\\{}[],:0-.eu \n\x00\x1f\x7f\x80\xc3\xed\xff";
        for _ in 0..=self.0.below(3) {
            let at = self.0.below(bytes.len() as u64) as usize;
            match self.0.below(4) {
                0 => drop(bytes.remove(at)),
                1 => bytes.insert(at, INSERTS[self.0.below(INSERTS.len() as u64) as usize]),
                2 => bytes[at] ^= 1 << self.0.below(8),
                _ => bytes.truncate(at.max(1)),
            }
            if bytes.is_empty() {
                bytes.push(b'{');
            }
        }
    }
}

/// Our tape against serde_json on the same bytes.
#[test]
fn the_parser_agrees_with_serde_json() {
    let mut generator = Generator(Random(2026));
    let mut scratch = Scratch::default();
    let (mut accepted, mut refused) = (0, 0);
    for round in 0..20_000 {
        let mut text = String::new();
        generator.object(4, &mut text);
        let mut body = text.into_bytes();
        if round % 2 == 1 {
            generator.mutate(&mut body);
        }
        let theirs = serde_json::from_slice::<serde_json::Value>(&body).ok().filter(serde_json::Value::is_object);
        let shown = String::from_utf8_lossy(&body).into_owned();
        let before = generator.0.below(70) as usize;
        let behind = generator.0.below(130) as usize;
        let mut bytes = [vec![b'#'; before], body.clone(), vec![b'"'; behind]].concat();
        let range = before..before + body.len();
        let origin = json::Origin::of(&bytes);
        let mut spans = Vec::new();
        let read = |object: json::Value<'_, '_>| Ok(to_serde(object, origin, &mut spans));
        let ours = json::read(&mut scratch, &mut bytes, range.clone(), 1 << 20, read);
        for (span, text) in spans {
            assert!(range.start <= span.range().start && span.range().end <= range.end);
            assert_eq!(&bytes[span.range()], text.as_bytes());
        }
        match (ours, theirs) {
            (Ok(ours), Some(theirs)) => {
                assert!(same(&ours, &theirs), "{shown}\nours   {ours}\ntheirs {theirs}");
                accepted += 1;
            }
            (Err(_), None) => refused += 1,
            (ours, theirs) => panic!("{shown}\nours   {ours:?}\ntheirs {theirs:?}"),
        }
    }
    assert!(accepted > 10_000 && refused > 5_000, "{accepted} accepted, {refused} refused");
}

/// As serde_json has it; notes what the span of each string should show.
fn to_serde(value: json::Value<'_, '_>, origin: json::Origin, spans: &mut Vec<(Span, String)>) -> serde_json::Value {
    let place = Place::of(Field::Input);
    match value.kind() {
        Kind::Null => serde_json::Value::Null,
        Kind::Boolean => value.boolean(place).unwrap().into(),
        Kind::Number => {
            let whole = value.whole(place, Expected::Count).unwrap();
            u64::try_from(whole).map_or_else(|_| i64::try_from(whole).unwrap().into(), serde_json::Value::from)
        }
        Kind::Fraction => value.fraction().into(),
        Kind::Text => {
            let text = value.text(place, Expected::Text).unwrap();
            spans.push((origin.span(text), text.into()));
            text.into()
        }
        Kind::List => value.list().unwrap().map(|element| to_serde(element, origin, spans)).collect(),
        Kind::Object => {
            let members = value.members().unwrap();
            members.map(|(key, value)| (key.to_owned(), to_serde(value, origin, spans))).collect()
        }
    }
}

/// Equal, and floats to their last digit but one: serde_json reads them fast, not exactly.
fn same(ours: &serde_json::Value, theirs: &serde_json::Value) -> bool {
    use serde_json::Value::{Array, Number, Object};
    match (ours, theirs) {
        (Array(ours), Array(theirs)) => {
            ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(ours, theirs)| same(ours, theirs))
        }
        (Object(ours), Object(theirs)) => {
            ours.len() == theirs.len()
                && ours.iter().all(|(key, ours)| theirs.get(key).is_some_and(|theirs| same(ours, theirs)))
        }
        (Number(ours), Number(theirs)) if ours.is_f64() || theirs.is_f64() => {
            let (ours, theirs) = (ours.as_f64().unwrap(), theirs.as_f64().unwrap());
            (ours - theirs).abs() <= theirs.abs() * 1e-15
        }
        _ => ours == theirs,
    }
}

/// An outline for `items` sequences of a model.
fn outline(catalog: &Catalog, model: u32, family: Family, items: u32) -> Outline {
    let task = catalog.entry(model).task;
    Outline {
        model,
        task,
        family,
        items,
        format: Format::Float,
        dimensions: None,
        truncate: true,
        prompt: None,
        lists_cut: 0,
    }
}

fn to_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn encoded(outline: Outline, entry: &Entry, values: &[f32]) -> Result<String, Reject> {
    let values = to_bytes(values);
    let answer = Answer { outline, entry, values: &values, prompt_tokens: u64::MAX, device_ns: u64::MAX };
    let mut out = b"before".to_vec();
    let encoded = encode(&answer, &mut out);
    assert!(out.starts_with(b"before"));
    if let Err(reject) = encoded {
        assert_eq!(out, b"before", "a refused answer leaves nothing behind");
        return Err(reject);
    }
    let text = String::from_utf8(out.split_off(6)).unwrap();
    let max = answer_bytes_max(&outline, entry);
    assert!(text.len() <= max, "{} bytes of {max}: {outline:?}", text.len());
    Ok(text)
}

#[test]
fn answers_have_the_old_servers_shapes() {
    let catalog = catalog();
    let answer = |model, family, items, values: &[f32]| {
        let bytes = to_bytes(values);
        let outline = outline(&catalog, model, family, items);
        let entry = catalog.entry(model);
        let answer = Answer { outline, entry, values: &bytes, prompt_tokens: 9, device_ns: 5_780_400 };
        let mut out = Vec::new();
        encode(&answer, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    let vectors = [0.1, -0.2, 1e-7, 1.0, 5e8, 0.0, -0.0, 3.4028235e38];
    assert_eq!(
        answer(EMBEDDING, Family::Native, 2, &vectors),
        r#"{"embeddings":[[0.1,-0.2,1e-7,1.0],[500000000.0,0.0,-0.0,3.4028235e38]],"elapsed_ms":5.780}"#
    );
    assert_eq!(
        answer(RERANKER, Family::Native, 2, &[9.507_812, -7.25]),
        r#"{"scores":[9.507812,-7.25],"elapsed_ms":5.780}"#
    );
    assert_eq!(
        answer(NLI, Family::Native, 2, &[2.18, -1.38, -0.72, -1.0, 3.0, 3.0]),
        concat!(
            r#"{"predictions":["contradiction","neutral"],"logits":[[2.18,-1.38,-0.72],[-1.0,3.0,3.0]],"#,
            r#""elapsed_ms":5.780}"#
        )
    );
    assert_eq!(
        answer(EMBEDDING, Family::OpenAi, 2, &vectors),
        concat!(
            r#"{"object":"list","data":[{"object":"embedding","embedding":[0.1,-0.2,1e-7,1.0],"index":0},"#,
            r#"{"object":"embedding","embedding":[500000000.0,0.0,-0.0,3.4028235e38],"index":1}],"model":"mini","#,
            r#""usage":{"prompt_tokens":9,"total_tokens":9}}"#
        )
    );
    assert_eq!(
        answer(RERANKER, Family::OpenAi, 2, &[1.5, -0.25]),
        concat!(
            r#"{"object":"list","data":[{"object":"reranking","embedding":1.5,"index":0},"#,
            r#"{"object":"reranking","embedding":-0.25,"index":1}],"model":"rank","#,
            r#""usage":{"prompt_tokens":9,"total_tokens":9}}"#
        )
    );
}

#[test]
fn answers_read_back_bit_for_bit_within_their_bound() {
    let mut catalog = catalog();
    // A name and labels in which everything must be escaped, and a class without a name.
    catalog.entries[NLI as usize].labels = vec!["\0".repeat(50), "é\"".into()];
    catalog.entries[EMBEDDING as usize].name = "\u{1}\"\\".repeat(40);
    let mut random = Random(7);
    let longest = f32::from_bits((-1e-5f32).to_bits() - 3);
    for round in 0..400 {
        let model = random.below(4) as u32;
        let entry = catalog.entry(model);
        let native = entry.task == Task::Nli || random.below(2) == 0;
        let family = if native { Family::Native } else { Family::OpenAi };
        let items = random.below(4) as u32 + 1;
        let mut finite = || loop {
            let value = f32::from_bits(random.next() as u32);
            if value.is_finite() {
                return value;
            }
        };
        let count = (items * entry.width) as usize;
        let values: Vec<f32> = (0..count).map(|_| if round % 4 == 0 { longest } else { finite() }).collect();
        for format in [Format::Float, Format::Base64] {
            let outline = Outline { format, ..outline(&catalog, model, family, items) };
            let text = encoded(outline, entry, &values).unwrap();
            let back = values_of(&serde_json::from_str(&text).unwrap(), &outline, &text);
            assert_eq!(to_bytes(&back), to_bytes(&values), "{outline:?}");
        }
    }
}

/// The values of an answer in order. Read as f32 from the text itself: a way through f64 could round twice.
fn values_of(answer: &serde_json::Value, outline: &Outline, text: &str) -> Vec<f32> {
    if outline.family == Family::OpenAi && outline.task == Task::Embedding && outline.format == Format::Base64 {
        let data = answer["data"].as_array().unwrap();
        let bytes = data.iter().flat_map(|item| STANDARD.decode(item["embedding"].as_str().unwrap()).unwrap());
        return bytes.collect::<Vec<u8>>().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    }
    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum Numbers {
        One(f32),
        Many(Vec<f32>),
    }
    #[derive(serde::Deserialize)]
    struct Datum {
        embedding: Numbers,
    }
    #[derive(serde::Deserialize)]
    struct Native {
        #[serde(alias = "embeddings", alias = "logits")]
        scores: Vec<Numbers>,
    }
    #[derive(serde::Deserialize)]
    struct OpenAi {
        data: Vec<Datum>,
    }
    let lists: Vec<Numbers> = match outline.family {
        Family::Native => serde_json::from_str::<Native>(text).unwrap().scores,
        Family::OpenAi => {
            let data = serde_json::from_str::<OpenAi>(text).unwrap().data;
            data.into_iter().map(|datum| datum.embedding).collect()
        }
    };
    let values = lists.into_iter().flat_map(|numbers| match numbers {
        Numbers::One(value) => vec![value],
        Numbers::Many(values) => values,
    });
    values.collect()
}

#[test]
fn a_non_finite_value_fails_its_request_wherever_it_stands() {
    let catalog = catalog();
    for (model, family, format, name) in [
        (EMBEDDING, Family::Native, Format::Float, "documents"),
        (EMBEDDING, Family::OpenAi, Format::Float, "input"),
        (EMBEDDING, Family::OpenAi, Format::Base64, "input"),
        (RERANKER, Family::Native, Format::Float, "documents"),
        (RERANKER, Family::OpenAi, Format::Float, "input"),
        (NLI, Family::Native, Format::Float, "premises"),
    ] {
        let entry = catalog.entry(model);
        let width = entry.width as usize;
        for dimensions in [None, Some(1), Some(entry.width)] {
            for at in 0..3 * width {
                let mut values = vec![0.5; 3 * width];
                values[at] = if at % 2 == 0 { f32::NAN } else { f32::NEG_INFINITY };
                let outline = Outline { format, dimensions, ..outline(&catalog, model, family, 3) };
                let reject = encoded(outline, entry, &values).unwrap_err();
                let mut body = Vec::new();
                reject.write(Family::Native, &mut body);
                let detail =
                    format!("{name}[{}]: the model's result has a value that is not a finite number", at / width);
                assert_eq!(serde_json::from_slice::<serde_json::Value>(&body).unwrap(), json!({ "detail": detail }));
                assert_eq!((reject.status(), reject.closes()), (500, false));
            }
        }
    }
}

#[test]
fn dimensions_shorten_and_normalise_again() {
    let mut catalog = catalog();
    let values = [0.6, 0.8, 100.0, 0.0];
    let mut text = |normalize, dimensions, family, format| {
        catalog.entries[EMBEDDING as usize].normalize = normalize;
        let outline = Outline { dimensions, format, ..outline(&catalog, EMBEDDING, family, 1) };
        encoded(outline, catalog.entry(EMBEDDING), &values).unwrap()
    };
    assert!(text(true, Some(2), Family::Native, Format::Float).starts_with(r#"{"embeddings":[[0.6,0.8]],"#));
    assert!(text(true, Some(1), Family::Native, Format::Float).starts_with(r#"{"embeddings":[[1.0]],"#));
    assert!(text(false, Some(1), Family::Native, Format::Float).starts_with(r#"{"embeddings":[[0.6]],"#));
    // All of them: the device's own values, untouched.
    assert!(text(true, Some(4), Family::Native, Format::Float).starts_with(r#"{"embeddings":[[0.6,0.8,100.0,0.0]],"#));
    let base64 = text(true, Some(1), Family::OpenAi, Format::Base64);
    assert!(base64.contains(&format!("\"embedding\":\"{}\"", STANDARD.encode(1f32.to_le_bytes()))), "{base64}");
}

#[test]
fn bodies_of_the_routes_that_run_nothing() {
    let read = |write: &dyn Fn(&mut Vec<u8>)| -> serde_json::Value {
        let mut out = Vec::new();
        write(&mut out);
        serde_json::from_slice(&out).unwrap()
    };
    let catalog = catalog();
    let models = json!({"models": {
        "embedding_models": ["mini", "my model/é"], "reranking_models": ["rank"], "nli_models": ["nli"],
    }});
    assert_eq!(read(&|out| system::models(&catalog, out)), models);
    let none = json!({"models": {"embedding_models": [], "reranking_models": [], "nli_models": []}});
    assert_eq!(read(&|out| system::models(&Catalog::default(), out)), none);
    let model = |id| json!({"id": id, "object": "model", "created": 1_700_000_000, "owned_by": "reactrt"});
    let list = json!({"object": "list", "data": [model("mini"), model("rank"), model("nli"), model("my model/é")]});
    assert_eq!(read(&|out| system::models_openai(&catalog, 1_700_000_000, out)), list);
    assert_eq!(serde_json::from_str::<serde_json::Value>(system::LIVE).unwrap(), json!({"status": "live"}));
    use system::Readiness::{Dead, Draining, Ready, Starting};
    for (readiness, status) in [(Starting, 503), (Ready, 200), (Draining, 503), (Dead, 503)] {
        assert_eq!(readiness.status(), status);
        let mut body = Vec::new();
        readiness.write([("cuda:0", true), ("cu\"da", false)].into_iter(), &mut body);
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert!(body["status"].is_string());
        assert_eq!(body["devices"], json!({"cuda:0": "ready", "cu\"da": "dead"}));
    }
}

#[test]
fn words_are_cut_between_characters() {
    let words = |text: &[u8]| Words::new(text).as_str().to_owned();
    assert_eq!(words(b""), "");
    assert_eq!(words("é".as_bytes()), "é");
    assert_eq!(words(b"a\xffb\xc3"), "a\u{fffd}b\u{fffd}");
    assert_eq!(words("x".repeat(63).as_bytes()), "x".repeat(63));
    assert_eq!(words("x".repeat(64).as_bytes()), format!("{}…", "x".repeat(60)));
    for length in 55..70 {
        for character in ["é", "模", "😀"] {
            let text = format!("{}{}", "x".repeat(length), character.repeat(30));
            let cut = words(text.as_bytes());
            assert!(cut.len() <= Words::BYTES_MAX && cut.len() > Words::BYTES_MAX - 4, "{cut}");
            assert!(text.starts_with(cut.strip_suffix('…').unwrap()), "{cut}");
        }
    }
    let names: Vec<String> = (0..40).map(|index| format!("prompt{index}")).collect();
    let list = Words::list(names.iter().map(String::as_str));
    assert!(list.as_str().starts_with("prompt0, prompt1, ") && list.as_str().ends_with('…'));
    assert_eq!(Words::list(std::iter::empty()).as_str(), "none");
}

/// Every kind of refusal, with the longest words and the largest numbers.
fn every_reject() -> Vec<Reject> {
    let name = Words::new(&b"\x01".repeat(63));
    let place = Place { field: Field::EncodingFormat, index: Some(u32::MAX), inner: Some(u32::MAX) };
    let (id, found, max, bytes) = (i128::from(i64::MIN), i128::from(u64::MAX), u64::MAX, u64::MAX);
    let faults = [
        JsonFault::Empty,
        JsonFault::ByteOrderMark,
        JsonFault::NotUtf8,
        JsonFault::Utf16,
        JsonFault::NoBrace,
        JsonFault::Unquoted,
        JsonFault::Syntax,
        JsonFault::Cut,
        JsonFault::Trailing,
        JsonFault::Number,
        JsonFault::Escape,
        JsonFault::Codepoint,
        JsonFault::ControlCharacter,
        JsonFault::OpenString,
    ];
    let mut all: Vec<Reject> =
        faults.map(|fault| Reject::Malformed { fault, offset: Some(u32::MAX) }).into_iter().collect();
    all.extend([Fault::Refused, Fault::Failed, Fault::Hung, Fault::Panicked, Fault::Dead].map(Reject::from));
    all.extend([Fault::Panicked, Fault::Dead].map(Reject::Device));
    all.extend([
        Reject::Malformed { fault: JsonFault::Codepoint, offset: None },
        Reject::TooDeep { max: u32::MAX },
        Reject::NotAnObject { found: Kind::Object },
        Reject::WrongType { place, expected: Expected::Input, found: Kind::Fraction },
        Reject::Missing { field: Field::EncodingFormat, takes: "what a request takes, in a sentence" },
        Reject::EmptyList { place },
        Reject::EmptyText { place },
        Reject::UnequalLengths { premises: u32::MAX, hypotheses: u32::MAX },
        Reject::TokenOutside { place, id, vocabulary: 0 },
        Reject::TextTooLong { place, tokens: u32::MAX, max: u32::MAX },
        Reject::UnknownPrompt { known: name },
        Reject::PromptWithIds,
        Reject::BadEncodingFormat { found: name },
        Reject::BadDimensions { found, max: u32::MAX },
        Reject::NoDimensions { task: Task::Nli },
        Reject::WrongTask { name, task: Task::Embedding },
        Reject::QueryMissing { name },
        Reject::QueryUnwanted { name },
        Reject::UnknownModel { name },
        Reject::PathWithoutV1 { path: name },
        Reject::UnknownPath { path: name },
        Reject::MethodNotAllowed { allow: Allow::Get },
        Reject::Unauthorized { given: false },
        Reject::Unauthorized { given: true },
        Reject::NotJson { found: name },
        Reject::Expired { timeout_ms: u32::MAX },
        Reject::TooManyTexts { place, count: u64::MAX, max },
        Reject::TextTooLarge { place, bytes, max },
        Reject::TooManyValues { max },
        Reject::BodyTooLarge { max },
        Reject::AnswerTooLarge { bytes, max, base64_fits: true },
        Reject::Framing {
            status: 431,
            message: "the head is larger than the server takes",
            max: Some((u64::MAX, "bytes (limits.head_bytes_max)")),
        },
        Reject::Deadline,
        Reject::QueueFull,
        Reject::NoBuffers,
        Reject::Draining,
        Reject::DeviceDead,
        Reject::NonFinite { place },
        Reject::Panicked,
    ]);
    all
}

#[test]
fn every_refusal_is_json_within_its_bound_in_both_shapes() {
    for reject in every_reject() {
        let mut native = Vec::new();
        reject.write(Family::Native, &mut native);
        let mut openai = Vec::new();
        reject.write(Family::OpenAi, &mut openai);
        assert!(native.len().max(openai.len()) <= Reject::BODY_BYTES_MAX, "{reject:?}: {} bytes", openai.len());
        let native: serde_json::Value = serde_json::from_slice(&native).unwrap();
        let openai: serde_json::Value = serde_json::from_slice(&openai).unwrap();
        let message = native["detail"].as_str().unwrap();
        assert!(!message.is_empty());
        assert_eq!(openai["error"]["message"], message);
        let class = match reject.status() {
            429 => "rate_limit_error",
            400..=499 => "invalid_request_error",
            500..=599 => "server_error",
            status => panic!("{reject:?} has status {status}"),
        };
        assert_eq!(openai["error"]["type"], class);
        assert!(openai["error"].as_object().unwrap().contains_key("param"));
        assert!(openai["error"].as_object().unwrap().contains_key("code"));
    }
    // It travels by value in every part and slot.
    assert!(size_of::<Reject>() <= 96, "{} bytes", size_of::<Reject>());
}

#[test]
fn what_a_connection_does_after_a_refusal() {
    let of = |reject: Reject| (reject.status(), reject.closes(), reject.retry_after_s());
    assert_eq!(of(Reject::QueueFull), (429, false, Some(1)));
    assert_eq!(of(Reject::NoBuffers), (503, false, Some(1)));
    assert_eq!(of(Reject::Draining), (503, true, Some(1)));
    assert_eq!(of(Reject::DeviceDead), (503, false, None));
    assert_eq!(of(Reject::from(Fault::Failed)), (503, false, Some(1)));
    assert_eq!(of(Reject::from(Fault::Refused)), (503, false, Some(1)));
    assert_eq!(of(Reject::from(Fault::Hung)), (503, false, Some(1)));
    assert_eq!(of(Reject::from(Fault::Dead)), (503, false, None));
    assert_eq!(of(Reject::from(Fault::Panicked)), (500, false, None));
    assert_eq!(of(Reject::Panicked), (500, false, None));
    assert_eq!(of(Reject::Deadline), (408, true, None));
    assert_eq!(of(Reject::BodyTooLarge { max: 1 }), (413, true, None));
    assert_eq!(of(Reject::TooManyValues { max: 1 }), (413, false, None));
    assert_eq!(of(Reject::Framing { status: 431, message: "", max: None }), (431, true, None));
    assert_eq!(of(Reject::UnknownPath { path: Words::new(b"/") }), (404, false, None));
    assert_eq!(of(Reject::Unauthorized { given: true }), (401, false, None));
    assert_eq!(of(Reject::NotJson { found: Words::new(b"text/html") }), (415, false, None));
    assert_eq!(of(Reject::Expired { timeout_ms: 5 }), (504, false, None));
    assert_eq!(Reject::Unauthorized { given: false }.authenticate(), Some("Bearer realm=\"reactrt\""));
    assert_eq!(Reject::QueueFull.authenticate(), None);
}
