//! The configuration as people meet it: the old server's file, every way to get one wrong with the exact words that come
//! back, what goes over what, and the reference file against the table that it is printed from.

#[path = "common/command.rs"]
mod command;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use reactrt::config::{self, DeviceName, Devices, Overrides, Settings, TABLE, When};
use reactrt::job::PieceBounds;
use reactrt::journal::Target;
use reactrt::log::Level;
use reactrt::model::{Pooling, Task};

/// As the old server's README prints it.
const OLD_FILE: &str = r#"nli_models:
  xlm-roberta-large-xnli:
    model_name: "xlm-roberta-large-xnli"
    model_path: "./model/nlimodels/trtmodels/nli_model_dynamic_bs.trt"
    tokenizer_path: "joeddav/xlm-roberta-large-xnli"
    reuse_dynamic_buffer: true
    cuda_graph_list:
      - 1
      - 3
      - 5

embedding_models:
  bge-m3:
    model_name: "bge-m3"
    model_path: "./model/embedding_models/trt_models/bge_m3_model_dynamic_bs.trt"
    tokenizer_path: "./model/embedding_models/bge-m3-tokenizer"
    reuse_dynamic_buffer: true
    cuda_graph_list:
      - 1
      - 3
      - 5

reranking_models:
  bge-reranker-large:
    model_name: "bge-reranker-large"
    model_path: "./model/reranker_models/trt_models/bge_reranker_large_dynamic_bs.trt"
    tokenizer_path: "./model/reranker_models/bge-reranker-large-tokenizer"
    reuse_dynamic_buffer: true
    cuda_graph_list:
      - 1
      - 3
      - 5
"#;

fn parse(text: &str) -> Result<Settings, String> {
    config::parse("c.yaml", text, &Overrides::default()).map_err(|problems| problems.to_string())
}

fn with(text: &str, environment: &[(&str, &str)], flags: &[(&str, &str)]) -> Result<Settings, String> {
    let owned = |pairs: &[(&str, &str)]| pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
    let overrides = Overrides { environment: owned(environment), flags: owned(flags) };
    config::parse("c.yaml", text, &overrides).map_err(|problems| problems.to_string())
}

#[test]
fn the_old_servers_file_loads_unchanged() {
    let settings = parse(OLD_FILE).unwrap();
    let models: Vec<_> = settings.models.iter().map(|model| (model.task, model.name.as_str())).collect();
    let expected =
        [(Task::Nli, "xlm-roberta-large-xnli"), (Task::Embedding, "bge-m3"), (Task::Reranking, "bge-reranker-large")];
    assert_eq!(models, expected, "in the file's order");
    for model in &settings.models {
        assert!(model.reuse_dynamic_buffer);
        assert_eq!(model.cuda_graph_list, [1, 3, 5]);
        assert_eq!((model.pooling, model.normalize, model.max_length, &model.labels), (None, None, None, &None));
    }
    assert_eq!(settings.models[0].tokenizer_path.as_deref(), Some("joeddav/xlm-roberta-large-xnli"));
    assert_eq!(settings.models[1].model_path, "./model/embedding_models/trt_models/bge_m3_model_dynamic_bs.trt");
    assert_eq!(settings.models[1].place, "c.yaml:13");
    // Nothing else differs from the defaults.
    assert_eq!(Settings { models: Vec::new(), ..settings }, Settings::default());
}

#[test]
fn everything_that_can_be_set_is_set() {
    let text = "
server: {host: 0.0.0.0, port: 0}
batching: {max_wait: 2.5, max_batch: 32, max_batch_tokens: 16384, queue_tokens_max: 1_000_000, age_us_max: 7}
limits: {body_bytes_max: 8 MiB, text_bytes_max: 2MiB, answer_bytes_max: 1000000, memory_bytes_max: 1 GB, texts_max: 3}
threads: {workers: 3, spin_us: 50, pin: never}
devices: [cuda:0, cuda:1, cpu]
cpu: {lanes: 3, threads_per_lane: 2, tokens_max: 512}
sim: {seed: 18446744073709551615, fault_rate: 0.25, packed: no}
engines: /var/lib/reactrt
embedding_models:
  a:
    model_path: some/folder
    model_name: 7
    pooling: cls
    normalize: on
    max_length: 512
    prompts: {query: 'query: ', document: ''}
    default_prompt: document
    cuda_graph_list: [16, 4, 4]
    tokenizer_path:
nli_models:
  b: {model_path: x, labels: [no, yes]}
";
    let settings = parse(text).unwrap();
    assert_eq!((settings.server.host.as_str(), settings.server.port), ("0.0.0.0", 0));
    assert_eq!((settings.batching.linger_us, settings.batching.sequences_max), (2_500, Some(32)));
    assert_eq!((settings.batching.tokens_max, settings.batching.queue_tokens_max), (Some(16_384), 1_000_000));
    assert_eq!((settings.limits.body_bytes_max, settings.limits.text_bytes_max), (8 << 20, 2 << 20));
    assert_eq!((settings.limits.answer_bytes_max, settings.limits.memory_bytes_max), (1_000_000, Some(1_000_000_000)));
    assert_eq!((settings.threads.workers, settings.threads.spin_us, settings.threads.pin), (3, 50, When::Never));
    let devices = vec![DeviceName::Cuda(0), DeviceName::Cuda(1), DeviceName::Cpu];
    assert_eq!(settings.devices, Devices::List(devices));
    assert_eq!((settings.cpu.lanes, settings.cpu.threads_per_lane, settings.cpu.tokens_max), (3, 2, 512));
    assert_eq!((settings.sim.seed, settings.sim.fault_rate, settings.sim.packed), (u64::MAX, 0.25, false));
    assert_eq!(settings.engines, Path::new("/var/lib/reactrt"));
    let [a, b] = &settings.models[..] else { panic!("two models") };
    assert_eq!((a.name.as_str(), a.pooling, a.normalize), ("7", Some(Pooling::Cls), Some(true)));
    assert_eq!((a.max_length, a.tokenizer_path.as_deref(), &a.cuda_graph_list[..]), (Some(512), None, &[4, 16][..]));
    let prompts = vec![("query".to_owned(), "query: ".to_owned()), ("document".to_owned(), String::new())];
    assert_eq!((a.prompts.as_ref(), a.default_prompt.as_deref()), (Some(&prompts), Some("document")));
    assert_eq!(b.labels.as_deref(), Some(&["no".to_owned(), "yes".to_owned()][..]));
}

#[test]
fn who_may_ask_and_where_it_is_written_is_set() {
    let text = "
server:
  api_keys: [first-key, 12345678]
  api_keys_file: /etc/reactrt/keys
  cors_origins: [https://app.example, 'http://localhost:3000']
  access_log: '-'
  log_level: warn
deadlines: {request_ms: 2_500}
";
    let settings = parse(text).unwrap();
    let server = &settings.server;
    assert_eq!(server.api_keys.list(), ["first-key", "12345678"]);
    assert_eq!(server.api_keys_file.as_deref(), Some(Path::new("/etc/reactrt/keys")));
    assert_eq!(server.cors_origins, ["https://app.example", "http://localhost:3000"]);
    assert_eq!(server.access_log, Some(Target::StandardOutput));
    assert_eq!(server.log_level, Level::Warn);
    assert_eq!(settings.deadlines.request_ms, Some(2_500));
    let shown = format!("{settings:?}");
    assert!(!shown.contains("first-key") && shown.contains("2 keys"), "{shown}");

    let environment = [("REACTRT_SERVER_API_KEYS", "a-key, b-key"), ("REACTRT_SERVER_CORS_ORIGINS", "*")];
    let flags =
        [("server.access_log", "/var/log/a b"), ("server.api_keys_file", "none"), ("deadlines.request_ms", "off")];
    let settings = with(text, &environment, &flags).unwrap();
    assert_eq!(settings.server.api_keys.list(), ["a-key", "b-key"]);
    assert_eq!(settings.server.cors_origins, ["*"]);
    // A secret that is not set must not take the file's keys away.
    for empty in ["", " "] {
        let refused =
            [with(text, &[("REACTRT_SERVER_API_KEYS", empty)], &[]), with(text, &[], &[("server.api_keys", empty)])];
        for outcome in refused {
            let words = format!("{:?}", outcome.expect_err("no keys are no keys by [] only"));
            assert!(words.contains("expected keys, found nothing"), "{words}");
        }
    }
    assert!(with(text, &[("REACTRT_SERVER_API_KEYS", "[]")], &[]).unwrap().server.api_keys.list().is_empty());
    assert_eq!(settings.server.access_log, Some(Target::File("/var/log/a b".into())));
    assert_eq!((settings.server.api_keys_file, settings.deadlines.request_ms), (None, None));
    for off in ["0", "off"] {
        assert_eq!(with("", &[], &[("deadlines.request_ms", off)]).unwrap().deadlines.request_ms, None);
    }
}

#[test]
fn words_mean_the_same_in_any_case_and_in_quotes() {
    for word in ["off", "Off", "none", "NONE", "null", "Null", "~", "false", "False", "no", "'off'", "\"\"", ""] {
        let text = format!("server:\n  access_log: {word}\n");
        assert_eq!(parse(&text).expect(&text).server.access_log, None, "{text}");
    }
    for word in ["off", "OFF", "none", "null", "false", "no", ""] {
        let settings = with("server: {access_log: x}", &[], &[("server.access_log", word)]);
        assert_eq!(settings.expect(word).server.access_log, None, "{word}");
    }
    let log = |text: &str| with("", &[("REACTRT_SERVER_ACCESS_LOG", text)], &[]).expect(text).server.access_log;
    assert_eq!(log("./off"), Some(Target::File("./off".into())));
    assert_eq!(log("offline.log"), Some(Target::File("offline.log".into())));
    assert_eq!(log("stdout"), Some(Target::StandardOutput));
    let settings = with("", &[("REACTRT_DEVICES", "CPU")], &[("server.log_level", "WARN")]).unwrap();
    assert_eq!((settings.devices, settings.server.log_level), (Devices::List(vec![DeviceName::Cpu]), Level::Warn));
}

#[test]
fn a_key_is_the_text_that_was_written() {
    let keys = |text: &str| parse(&format!("server:\n  api_keys: {text}\n")).expect(text).server.api_keys;
    assert_eq!(keys("[0x10, 1e3, 007, 'null', \"true\"]").list(), ["0x10", "1e3", "007", "null", "true"]);
    let variable = |text: &str| with("", &[("REACTRT_SERVER_API_KEYS", text)], &[]);
    let keys = |text: &str| variable(text).expect(text).server.api_keys;
    assert_eq!(keys("[first, second]").list(), ["first", "second"]);
    assert_eq!(keys("'with,comma', \"[bracket\"").list(), ["with,comma", "[bracket"]);
    for torn in ["[hunter2", "hunter2]", "'hunter2", "hunter2,", "[hunter2, ]", "hunter2\0"] {
        let said = variable(torn).expect_err(torn);
        assert!(said.starts_with("REACTRT_SERVER_API_KEYS: server.api_keys: ") && !said.contains("hunter"), "{said}");
    }
}

/// A file and all that is said about it.
const WRONG: &[(&str, &[&str])] = &[
    (
        "embedding_models:\n  bge-m3:\n    model_path: x\n    reuse_dynamic_bufer: true\n",
        &[
            r#"c.yaml:4: unknown key "reuse_dynamic_bufer" in embedding_models.bge-m3; did you mean "reuse_dynamic_buffer"?"#,
        ],
    ),
    ("embeding_models: {}\n", &[r#"c.yaml:1: unknown key "embeding_models"; did you mean "embedding_models"?"#]),
    ("\nport: 80\n", &[r#"c.yaml:2: unknown key "port"; it belongs into the section "server""#]),
    ("limits:\n  linger_us: 3\n", &[r#"c.yaml:2: unknown key "linger_us" in limits; it belongs into batching"#]),
    ("server:\n  pot: 3\n", &[r#"c.yaml:2: unknown key "pot" in server; did you mean "port"?"#]),
    (
        "server:\n  colour: red\n",
        &[
            r#"c.yaml:2: unknown key "colour" in server; known here: host, port, api_keys, api_keys_file, cors_origins, access_log, log_level"#,
        ],
    ),
    (
        "server:\n  api_keys: [fine, 'hunter2 hunter3']\n",
        &[
            "c.yaml:2: server.api_keys: key 2 has a blank, a control character or a letter beyond ASCII, which no header field carries",
        ],
    ),
    (
        "server:\n  api_keys: {hunter: 2}\n",
        &["c.yaml:2: server.api_keys: expected a list of keys; what was found is not shown"],
    ),
    (
        "server:\n  api_keys: ' '\n",
        &["c.yaml:2: server.api_keys: expected keys, found nothing; [] means that nobody needs one"],
    ),
    (
        "server:\n  api_keys:\n",
        &["c.yaml:2: server.api_keys: expected keys, found nothing; [] means that nobody needs one"],
    ),
    (
        "server:\n  cors_origins: [https://app.example/page]\n",
        &[
            r#"c.yaml:2: server.cors_origins: "https://app.example/page" is not what browsers send, which is "https://app.example"; write that"#,
        ],
    ),
    (
        "server:\n  cors_origins: app.example\n",
        &[r#"c.yaml:2: server.cors_origins: "app.example" is no origin such as https://app.example"#],
    ),
    (
        "server:\n  access_log: on\n",
        &[r#"c.yaml:2: server.access_log: expected off, "-" for the output, or a file, found the text "on""#],
    ),
    (
        "server:\n  log_level: loud\n",
        &[r#"c.yaml:2: server.log_level: expected error, warn, info or debug, found the text "loud""#],
    ),
    (
        "deadlines:\n  request_ms: soon\n",
        &[
            r#"c.yaml:2: deadlines.request_ms: expected off or a whole number from 0 to 86400000, found the text "soon""#,
        ],
    ),
    (
        "server:\n  port: abc\n",
        &[r#"c.yaml:2: server.port: expected a whole number from 0 to 65535, found the text "abc""#],
    ),
    (
        "server:\n  port: \"80\"\n",
        &[r#"c.yaml:2: server.port: expected a whole number from 0 to 65535, found the text "80""#],
    ),
    ("server:\n  port: 65536\n", &["c.yaml:2: server.port: expected a whole number from 0 to 65535, found 65536"]),
    ("server:\n  port: -1\n", &["c.yaml:2: server.port: expected a whole number from 0 to 65535, found -1"]),
    ("server:\n  port:\n", &["c.yaml:2: server.port: expected a whole number from 0 to 65535, found nothing"]),
    ("server:\n  port: [80]\n", &["c.yaml:2: server.port: expected a whole number from 0 to 65535, found a list"]),
    ("server: 80\n", &["c.yaml:1: server: expected a group of keys, found 80"]),
    ("- a\n- b\n", &["c.yaml:1: the file: expected a group of keys, found a list"]),
    (
        "server:\n  host:\n",
        &[
            "c.yaml:2: server.host: expected an address to listen on, such as 127.0.0.1, or 0.0.0.0 for all, found nothing",
        ],
    ),
    (
        "server:\n  host: ''\n",
        &[
            "c.yaml:2: server.host: expected an address to listen on, such as 127.0.0.1, or 0.0.0.0 for all, found an empty text",
        ],
    ),
    (
        "server:\n  host: 127.0.0.1:80\n",
        &[
            r#"c.yaml:2: server.host: "127.0.0.1:80" has a port in it; write the host alone, and its port under server.port"#,
        ],
    ),
    // What is nothing, and what would be another text to another reader.
    (
        "server:\n  api_keys: [hunter2, null]\n",
        &[
            r#"c.yaml:2: server.api_keys: key 2 is nothing, such as an unquoted null or ~; take it away, or write "null" in quotes if that text is meant"#,
        ],
    ),
    (
        "server:\n  api_keys: no\n",
        &[
            "c.yaml:2: server.api_keys: key 1 is a word such as true or off, which everybody guesses; [] means that nobody needs a key, and in quotes the word is one",
        ],
    ),
    (
        "server:\n  api_keys: '[hunter2, hunter3'\n",
        &[
            "c.yaml:2: server.api_keys: a bracket or a quote is missing, or a backslash stands in double quotes; write a, b or [a, b], a text with single brackets in quotes, and one with a backslash in single quotes",
        ],
    ),
    (
        "server:\n  api_keys_file: ''\n",
        &["c.yaml:2: server.api_keys_file: expected a file's path, or none, found an empty text"],
    ),
    (
        "server:\n  cors_origins: [~]\n",
        &[
            r#"c.yaml:2: server.cors_origins: origin 1 is nothing, such as an unquoted null or ~; take it away, or write "null" in quotes if that text is meant"#,
        ],
    ),
    (
        "server:\n  cors_origins: ['https://*.example.com']\n",
        &[
            r#"c.yaml:2: server.cors_origins: "https://*.example.com" has a wildcard, which stands for nothing in an origin; list each origin, or "*" alone for all"#,
        ],
    ),
    (
        "server:\n  access_log: ' '\n",
        &[r#"c.yaml:2: server.access_log: expected off, "-" for the output, or a file, found a text of blanks"#],
    ),
    (
        "server:\n  access_log: \"a\\0b\"\n",
        &[r#"c.yaml:2: server.access_log: "a\0b" has a NUL byte in it, which no path can have"#],
    ),
    (
        "server:\n  port: 0123\n",
        &["c.yaml:2: server.port: expected a whole number from 0 to 65535 without leading zeros, found 0123"],
    ),
    (
        "nli_models:\n  a: {model_path: x, labels: [yes, null]}\n",
        &[
            r#"c.yaml:2: nli_models.a.labels: label 2 is nothing, such as an unquoted null or ~; take it away, or write "null" in quotes if that text is meant"#,
        ],
    ),
    (
        "limits:\n  body_bytes_max: 4 MeB\n",
        &[
            "c.yaml:2: limits.body_bytes_max: expected a number of bytes from 1 KiB to 1 GiB (units: B, KiB, MiB, GiB, kB, MB, GB), found the text \"4 MeB\"",
        ],
    ),
    (
        "batching:\n  max_batch_size: 0\n  linger_us: 5\n  max_wait: -1\n",
        &[
            "c.yaml:2: batching.max_batch_size: expected auto or a whole number from 1 to 1000000, found 0",
            "c.yaml:4: batching.max_wait says the same as batching.linger_us, which this file has too",
            "c.yaml:4: batching.max_wait: expected milliseconds from 0 to 10000, found -1",
        ],
    ),
    (
        "threads:\n  pin: sometimes\n",
        &[r#"c.yaml:2: threads.pin: expected auto, always or never, found the text "sometimes""#],
    ),
    (
        "sim: {packed: 2, fault_rate: 1.5}\n",
        &[
            "c.yaml:1: sim.packed: expected true or false, found 2",
            "c.yaml:1: sim.fault_rate: expected a number from 0 to 1, found 1.5",
        ],
    ),
    (
        "devices: gpu\n",
        &[r#"c.yaml:1: devices: expected auto, or a list of cpu, sim, cuda:0, cuda:1, …, found the device "gpu""#],
    ),
    ("devices: [cpu, cpu]\n", &["c.yaml:1: devices: the device cpu is listed twice"]),
    (
        "devices: []\n",
        &["c.yaml:1: devices: expected auto, or a list of cpu, sim, cuda:0, cuda:1, …, found an empty list"],
    ),
    ("engines: {}\n", &["c.yaml:1: engines: expected a text, found a group of keys"]),
    // Models.
    ("nli_models:\n  a:\n", &["c.yaml:2: nli_models.a has no model_path"]),
    ("nli_models:\n  a: x\n", &[r#"c.yaml:2: nli_models.a: expected a group of keys, found the text "x""#]),
    (
        "embedding_models:\n  a:\n    model_name: m\n    model_path: x\nnli_models:\n  b:\n    model_path: y\n    model_name: m\n",
        &[r#"c.yaml:8: the model name "m" is taken already, at c.yaml:2"#],
    ),
    (
        "nli_models:\n  a: {model_path: x}\n  a: {model_path: y}\n",
        &[r#"c.yaml:3: "a" is in nli_models already, on line 2"#],
    ),
    (
        "reranking_models:\n  a:\n    model_path: x\n    pooling: cls\n    cuda_graph_list: 4\n    max_length: 0\n",
        &[
            "c.yaml:4: reranking_models.a.pooling: this key means something in embedding_models only",
            "c.yaml:5: reranking_models.a.cuda_graph_list: expected a list of batch sizes, found 4",
            "c.yaml:6: reranking_models.a.max_length: expected a whole number from 1 to 1048576, found 0",
        ],
    ),
    (
        "embedding_models:\n  a:\n    model_path: x\n    pooling: max\n    prompts: {query: q}\n    default_prompt: qery\n",
        &[
            r#"c.yaml:4: embedding_models.a.pooling: expected cls or mean, found the text "max""#,
            r#"c.yaml:2: embedding_models.a.default_prompt: there is no prompt "qery"; did you mean "query"?"#,
        ],
    ),
    (
        "nli_models:\n  a:\n    model_path: x\n    labels: [one]\n",
        &["c.yaml:4: nli_models.a.labels: expected a list of two or more names, found 1"],
    ),
    (
        "nli_models:\n  a:\n    model_path: x\n    model_name: \"a\\nb\"\n",
        &["c.yaml:4: nli_models.a: a model's name has 1 to 256 bytes and no control characters"],
    ),
    // Numbers that clash.
    (
        "limits:\n  text_bytes_max: 5 MiB\n",
        &["c.yaml:2: limits.text_bytes_max (5 MiB) is more than limits.body_bytes_max (4 MiB)"],
    ),
    (
        "limits:\n  json_values_max: 1000\n",
        &["c.yaml:2: limits.texts_max (2048) is more than limits.json_values_max (1000)"],
    ),
    (
        "limits:\n  pieces_max: 7\nthreads:\n  workers: 4\n",
        &["c.yaml:2: limits.pieces_max (7) is less than two for each of threads.workers (4)"],
    ),
    (
        "cpu:\n  tokens_max: 16\nlimits:\n  piece_sequences_max: 17\n",
        &["c.yaml:4: limits.piece_sequences_max (17) is more than cpu.tokens_max (16)"],
    ),
    (
        "batching:\n  max_batch_tokens: 300\n  queue_tokens_max: 200\nnli_models:\n  a: {model_path: x, max_length: 512}\n",
        &[
            "c.yaml:3: batching.queue_tokens_max (200) is less than the max_length of a (512)",
            "c.yaml:2: batching.max_batch_tokens (300) is less than the max_length of a (512)",
            "c.yaml:2: batching.max_batch_tokens (300) is more than batching.queue_tokens_max (200)",
        ],
    ),
    (
        "threads: {workers: 1}\nlimits:\n  connections_max: 200000\n  memory_bytes_max: 256 MB\n",
        &[
            "c.yaml:3: limits.memory_bytes_max (256 MB) is less than what the other limits add up to (544 MB); most of it is limits.connections_max's (410 MB)",
        ],
    ),
    // No YAML.
    ("server: {}\n---\nserver: {}\n", &["c.yaml:3: not valid YAML: a second document; one file is one document"]),
    ("server:\n  ? [a]\n  : 1\n", &["c.yaml:2: not valid YAML: a key must be a word"]),
    ("a: &x [*x]\n", &["c.yaml:1: not valid YAML: an alias to a value that is not complete"]),
];

#[test]
fn each_wrong_file_gets_exactly_these_words() {
    for (text, expected) in WRONG {
        let said = parse(text).expect_err(text);
        assert_eq!(said.lines().collect::<Vec<_>>(), *expected, "of the file\n{text}");
    }
}

#[test]
fn broken_yaml_names_its_line() {
    for (text, line) in [("server:\n  port: [1\n", 2..=3), ("server:\n\tport: 1\n", 2..=2), ("a: \"x\n\n\n", 1..=4)] {
        let said = parse(text).expect_err(text);
        let number = said.strip_prefix("c.yaml:").and_then(|rest| rest.split_once(": not valid YAML: "));
        let (number, reason) = number.unwrap_or_else(|| panic!("{said:?} of {text:?}"));
        assert!(line.contains(&number.parse().unwrap()) && !reason.is_empty(), "{said:?} of {text:?}");
    }
}

#[test]
fn a_few_lines_cannot_grow_to_gigabytes() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let inner = format!("*a{}", level - 1);
        text.push_str(&format!("a{level}: &a{level} [{}]\n", [inner.as_str(); 10].join(", ")));
    }
    let said = parse(&text).unwrap_err();
    assert!(said.ends_with("not valid YAML: more than 100000 values"), "{said}");
}

#[test]
fn values_with_names_inside_one_another_are_counted_as_often_as_they_are_kept() {
    let values = ["x"; 1000].join(", ");
    let named = |count: usize| {
        let opened: String = (0..count).map(|index| format!("&a{index} [")).collect();
        format!("a: {opened}{values}{}\n", "]".repeat(count))
    };
    let said = parse(&named(10)).unwrap_err();
    assert!(said.starts_with("c.yaml:1: unknown key \"a\""), "{said}");
    let said = parse(&named(200)).unwrap_err();
    assert!(said.ends_with("not valid YAML: more than 100000 values"), "{said}");
}

#[test]
fn words_of_the_file_stay_on_one_line_and_very_long_ones_have_no_neighbour() {
    let said = parse("embedding_models: {\"a\\nb\": {}, c: {model_path: x, prompts: {\"d\\ne\": [1]}}}\n").unwrap_err();
    let expected = [
        "c.yaml:1: embedding_models.a\\nb has no model_path",
        "c.yaml:1: embedding_models.a\\nb: a model's name has 1 to 256 bytes and no control characters",
        "c.yaml:1: embedding_models.c.prompts: d\\ne: expected a text, which may be empty by \"\", found a list",
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
    let prompts = r#"{model_path: x, default_prompt: query, prompts: {"a\nb": c}}"#;
    let said = parse(&format!("embedding_models: {{a: {prompts}}}\n")).unwrap_err();
    let known = r#"c.yaml:1: embedding_models.a.default_prompt: there is no prompt "query"; known here: a\nb"#;
    assert_eq!(said, known);
    let long = "server".repeat(50);
    assert_eq!(parse(&format!("{long}: 1\n")).unwrap_err(), format!("c.yaml:1: unknown key \"{long}\""));
}

#[test]
fn an_alias_repeats_what_it_names() {
    let text = "embedding_models:\n  a: {model_path: x, cuda_graph_list: &sizes [1, 2]}\n  b: {model_path: y, cuda_graph_list: *sizes}\n";
    let settings = parse(text).unwrap();
    assert_eq!(settings.models[1].cuda_graph_list, [1, 2]);
}

#[test]
fn a_flag_goes_over_a_variable_goes_over_the_file() {
    let file = "server: {port: 1}\nbatching: {linger_us: 1}\ncpu: {lanes: 4}\n";
    let variables =
        [("REACTRT_SERVER_PORT", "2"), ("REACTRT_BATCHING_LINGER_US", "2"), ("REACTRT_DEVICES", "cpu, sim")];
    assert_eq!(parse(file).unwrap().server.port, 1);
    let settings = with(file, &variables, &[]).unwrap();
    assert_eq!((settings.server.port, settings.batching.linger_us), (2, 2));
    assert_eq!(settings.devices, Devices::List(vec![DeviceName::Cpu, DeviceName::Sim]));
    let settings = with(file, &variables, &[("server.port", "3"), ("devices", "auto")]).unwrap();
    assert_eq!((settings.server.port, settings.batching.linger_us), (3, 2));
    assert_eq!(settings.devices, Devices::Auto);
    // An old name in the file does not keep a variable from the present one.
    let settings = with("batching: {max_wait: 10}\n", &[("REACTRT_BATCHING_LINGER_US", "5")], &[]).unwrap();
    assert_eq!(settings.batching.linger_us, 5);
    // `auto` takes a number of the file back.
    let automatic = with(file, &[("REACTRT_CPU_LANES", "auto")], &[]).unwrap();
    assert_eq!(automatic.cpu, Settings::default().cpu);
}

#[test]
fn wrong_variables_and_flags_are_named() {
    let said = with("", &[("REACTRT_SERVER_PROT", "1"), ("REACTRT_LIMITS_TEXTS_MAX", "0")], &[("server.port", "x")]);
    let said = said.unwrap_err();
    let expected = [
        "REACTRT_SERVER_PROT: unknown variable; did you mean \"REACTRT_SERVER_PORT\"?",
        "REACTRT_LIMITS_TEXTS_MAX: limits.texts_max: expected a whole number from 1 to 1000000, found 0",
        "--port: server.port: expected a whole number from 0 to 65535, found the text \"x\"",
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
    let said = with("", &[("REACTRT_LIMITS_TEXT_BYTES_MAX", "5MiB")], &[]).unwrap_err();
    let clash =
        "REACTRT_LIMITS_TEXT_BYTES_MAX: limits.text_bytes_max (5 MiB) is more than limits.body_bytes_max (4 MiB)";
    assert_eq!(said, clash);
}

#[test]
fn variables_that_others_set_are_left_alone() {
    let others = [
        ("REACTRT_CONFIG", "x.yaml"),
        ("REACTRT_TENSORRT_LIBRARIES", "/opt/tensorrt"),
        // What Kubernetes sets for a Service of our name.
        ("REACTRT_SERVICE_HOST", "10.0.0.1"),
        ("REACTRT_PORT", "tcp://10.0.0.1:8887"),
        ("REACTRT_PORT_8887_TCP_ADDR", "10.0.0.1"),
        ("PATH", "/bin"),
    ];
    assert_eq!(with("", &others, &[]).unwrap(), Settings::default());
    // But this is a mistake.
    let said = with("", &[("REACTRT_PORT", "80")], &[]).unwrap_err();
    assert_eq!(said, "REACTRT_PORT: unknown variable; did you mean \"REACTRT_SERVER_PORT\"?");
}

#[test]
fn what_depends_on_the_machine_follows_what_is_given() {
    let of = |cores: usize| Settings::defaults(cores);
    let shape = |settings: &Settings| (settings.threads.workers, settings.cpu.lanes, settings.cpu.threads_per_lane);
    assert_eq!(shape(&of(1)), (1, 1, 1));
    assert_eq!(shape(&of(2)), (1, 2, 1));
    assert_eq!(shape(&of(16)), (4, 2, 8));
    assert_eq!(shape(&of(256)), (8, 2, 128));
    let cores = std::thread::available_parallelism().unwrap().get();
    assert_eq!(parse("cpu: {lanes: 1}").unwrap().cpu.threads_per_lane, cores);
    // The defaults fit into their own memory on every machine.
    for cores in [1, 2, 16, 64, 256] {
        let settings = of(cores);
        let usual = settings.piece_bounds();
        for tokens_max in [usual.tokens_max, 8_192, 32_768] {
            let bounds = PieceBounds { tokens_max, ..usual };
            let checked = settings.check_memory(bounds, config::WIDTH_ASSUMED);
            assert_eq!(checked, Ok(()), "{cores} cores, texts of {tokens_max} tokens");
        }
        if cores <= 2 {
            assert_eq!(settings.memory_bytes_max(usual, config::WIDTH_ASSUMED), config::MEMORY_BYTES);
        }
    }
}

#[test]
fn every_key_has_a_flag_and_a_variable_of_its_own() {
    let mut flags = BTreeSet::new();
    let mut variables = BTreeSet::new();
    for key in TABLE {
        assert!(variables.insert(key.variable()), "{}", key.variable());
        assert!(flags.insert(key.flag()), "{}", key.flag());
        assert!(key.doc.ends_with('.') || key.doc.ends_with(')'), "{}: a sentence", key.path);
        if let Some(present) = key.stands_for {
            assert!(config::Key::find(present).is_some(), "{} stands for {present}", key.path);
        }
    }
    for key in TABLE {
        let full = key.flag_with_section();
        assert!(full == key.flag() || !flags.contains(&full), "--{full} is ambiguous");
    }
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_reference_file_is_the_one_that_the_table_prints() {
    let file = std::fs::read_to_string(repository().join("configs/config.yaml")).unwrap();
    assert!(
        file == config::reference(),
        "configs/config.yaml differs from the table: run `cargo run -- check --defaults > configs/config.yaml`"
    );
    // Each key at its default, each documented.
    for key in TABLE.iter().filter(|key| key.stands_for.is_none()) {
        let line = format!("{}: {}", key.name(), key.default_text());
        assert!(file.lines().any(|other| other.trim() == line), "{line}");
        let words: String = file.lines().map(|line| line.trim().trim_start_matches("# ").to_owned() + " ").collect();
        assert!(words.contains(key.doc), "{} is not documented", key.path);
    }
    assert_eq!(parse(&file).unwrap(), Settings::default());
}

#[test]
fn the_examples_in_the_reference_file_work_when_the_comment_is_taken_away() {
    let file = config::reference();
    let example: String = file
        .lines()
        .filter_map(|line| line.strip_prefix('#').filter(|line| !line.starts_with(' ') || line.starts_with("  ")))
        .map(|line| line.to_owned() + "\n")
        .collect();
    let settings = parse(&example).unwrap();
    let models: Vec<_> = settings.models.iter().map(|model| (model.task, model.name.as_str())).collect();
    let expected = [
        (Task::Embedding, "all-MiniLM-L6-v2"),
        (Task::Reranking, "ms-marco-MiniLM-L6-v2"),
        (Task::Nli, "nli-MiniLM2-L6-H768"),
    ];
    assert_eq!(models, expected, "{example}");
}

#[test]
fn every_file_under_configs_loads() {
    let mut count = 0;
    for entry in std::fs::read_dir(repository().join("configs")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            config::load(&path, &Overrides::default()).unwrap_or_else(|problems| panic!("{problems}"));
            count += 1;
        }
    }
    assert!(count >= 1);
}

/// A file that is gone when dropped.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new(name: &str, text: &[u8]) -> Scratch {
        let path = std::env::temp_dir().join(format!("reactrt-config-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn files_that_are_no_configuration_are_refused() {
    let said = |path: &Path| config::load(path, &Overrides::default()).unwrap_err().to_string();
    let missing = Path::new("/nonexistent/c.yaml");
    assert_eq!(said(missing), "/nonexistent/c.yaml: cannot be read: No such file or directory (os error 2)");
    let bytes = Scratch::new("bytes", b"server: \xff\n");
    assert!(said(&bytes.0).ends_with(": is not UTF-8 text"));
    let large = Scratch::new("large", &vec![b'#'; (1 << 20) + 1]);
    assert!(said(&large.0).ends_with(": has more than 1048576 bytes, which no file of this kind has"));
    assert!(said(&std::env::temp_dir()).ends_with(": is a folder, where a file is needed"));
}

#[test]
fn buckets_that_no_engine_could_have_are_refused() {
    let error = parse("gpu:\n  buckets: [1x32, 8x64, 1x32]\n").unwrap_err();
    assert!(error.contains("c.yaml:2") && error.contains("bucket 1x32 is there twice"), "{error}");
    let many: Vec<String> = (1..=65).map(|rows| format!("{rows}x8")).collect();
    let error = parse(&format!("gpu:\n  buckets: [{}]\n", many.join(", "))).unwrap_err();
    assert!(error.contains("65 buckets; an engine has at most 64"), "{error}");

    // A model whose longest text fits into none of them.
    let fixtures = repository().join("tests/fixtures");
    let text = format!(
        "devices: cuda:0\ngpu:\n  buckets: [1x32]\nembedding_models:\n  m:\n    model_path: {}\n",
        fixtures.join("models/bert-embedding-mean").display()
    );
    let settings = parse(&text).unwrap();
    let model = reactrt::serve::load_model(&settings.models[0]).unwrap();
    let error = reactrt::serve::check_buckets(&settings, &model).unwrap_err().to_string();
    assert!(error.contains("gpu.buckets: no bucket holds a text of the model's 40 tokens"), "{error}");
    let wide = parse(&text.replace("1x32", "1x40")).unwrap();
    assert!(reactrt::serve::check_buckets(&wide, &model).is_ok());
}

fn reactrt(arguments: &[&str]) -> Output {
    command::reactrt().args(arguments).current_dir(repository()).output().unwrap()
}

#[test]
fn check_says_what_would_be_served() {
    let file = Scratch::new("old", OLD_FILE.as_bytes());
    let output = reactrt(&["check", file.0.to_str().unwrap(), "--port", "9000"]);
    // The paths are those of another machine: every one that is missing is named.
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    for name in ["nli_model_dynamic_bs.trt", "bge_m3_model_dynamic_bs.trt", "bge_reranker_large_dynamic_bs.trt"] {
        assert!(said.contains(&format!("{name} does not exist")), "{said}");
    }
    let output = reactrt(&["check", "tests/fixtures/three-tasks.yaml", "--port", "9000"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    for line in [
        "listens on  127.0.0.1:9000",
        "nli         tiny-nli: ./tests/fixtures/models/xlm-roberta-nli; tokenizer ./tests/fixtures/models/xlm-roberta-nli",
        "changed     server.port: 9000 (default 8887)",
    ] {
        assert!(text.lines().any(|other| other == line), "{line}\nis not in\n{text}");
    }
}

#[test]
fn a_wrong_configuration_ends_with_code_2_and_one_block() {
    let file = Scratch::new("wrong", b"server:\n  port: x\n  hots: y\n");
    let path = file.0.to_str().unwrap();
    for arguments in [&["check", path][..], &["serve", "--config", path], &["--config", path]] {
        let output = reactrt(arguments);
        let expected = format!(
            "error: {path}:2: server.port: expected a whole number from 0 to 65535, found the text \"x\"\n       \
             {path}:3: unknown key \"hots\" in server; did you mean \"host\"?\n"
        );
        assert_eq!(String::from_utf8(output.stderr).unwrap(), expected, "of {arguments:?}");
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
    }
}

#[test]
fn a_file_without_models_says_how_to_name_one() {
    for arguments in [&["--config", "configs/config.yaml"][..], &["check"]] {
        let output = reactrt(arguments);
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.starts_with("error: configs/config.yaml: there is no model in it\n"), "{said}");
    }
}

/// What the program says to these arguments of a shell, which knows `<(…)`.
fn in_bash(arguments: &str) -> (Option<i32>, String) {
    let script = format!("exec {} {arguments}", env!("CARGO_BIN_EXE_reactrt"));
    let mut command = command::unset(Command::new("bash"));
    let output = command.args(["-c", &script]).current_dir(repository()).output().unwrap();
    (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

#[test]
fn a_pipe_is_as_good_as_a_file() {
    let (code, said) = in_bash("check <(cat tests/fixtures/three-tasks.yaml) --api-keys-file <(echo a-good-key)");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(" is right.") && !said.contains("a-good-key"), "{said}");
    let (code, said) = in_bash("check tests/fixtures/three-tasks.yaml --api-keys-file <(echo a bad key)");
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains(":1: the key has a blank") && !said.contains("a bad key"), "{said}");
}

#[test]
fn check_refuses_what_serve_would() {
    let folder = std::env::temp_dir().display().to_string();
    let wrong = [
        ("--host=256.1.1.1", "is no IPv4 address"),
        ("--host=127.0.0.1:80", "has a port in it"),
        ("--host=*", "write 0.0.0.0"),
        ("--host=http://localhost", "is a URL"),
        ("--host=", "expected an address to listen on"),
        ("--access-log=/no/such/folder/log", "there is no such folder"),
        (&format!("--access-log={folder}"), "is a folder; name a file in it"),
        ("--cors-origins=https://a.example/", "write that"),
        #[cfg(not(feature = "gpu"))]
        ("--devices=cuda:0", "needs a binary built with TensorRT"),
        ("--api-keys-file=/no/such/keys", "cannot be read"),
    ];
    for (flag, words) in wrong {
        for command in
            [&["check", "tests/fixtures/three-tasks.yaml"][..], &["--config", "tests/fixtures/three-tasks.yaml"]]
        {
            let output = reactrt(&[command, &[flag, "--port=0"]].concat());
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{command:?} {flag}: {said}");
            assert!(said.contains(words), "{command:?} {flag}: {said}");
        }
    }
}

#[test]
fn a_slip_of_the_command_line_shows_no_key() {
    for line in
        ["--api-keys hunter2, hunter3", "serve --api-keys [hunter2, hunter3]", "--api-keys=hunter2, hunter3 --port 0"]
    {
        let (code, said) = in_bash(line);
        assert_eq!(code, Some(2), "{said}");
        assert!(!said.contains("hunter") && said.contains("--api-keys is one word and not shown"), "{said}");
    }
    for line in [r"--api-keys hunter2, --hunter3", r"--api-keys --hunter2", r"serve --api-keys $'hunter2\xff'"] {
        let (code, said) = in_bash(line);
        assert_eq!(code, Some(2), "{line}: {said}");
        assert!(!said.contains("hunter") && !said.contains("panicked"), "{line}: {said}");
    }
    let (code, said) = in_bash(r"--help $'\xff'");
    assert!(code == Some(0) || code == Some(2) && !said.contains("panicked"), "{said}");
    let (_, said) = in_bash("--port 0 something");
    assert!(said.contains("something"), "{said}");
}

#[test]
fn check_reads_the_tokenizer_too() {
    let tokenizer = Scratch::new("tokenizer.json", b"{}");
    let model = repository().join("tests/fixtures/models/bert-embedding-mean");
    let text = format!(
        "embedding_models: {{m: {{model_path: {}, tokenizer_path: {}}}}}",
        model.display(),
        tokenizer.0.display()
    );
    let file = Scratch::new("tokenizer.yaml", text.as_bytes());
    let output = reactrt(&["check", file.0.to_str().unwrap()]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("model `m`: ") && said.contains("tokenizer.json"), "{said}");
}

#[test]
fn check_prints_the_reference_file() {
    let output = reactrt(&["check", "--defaults"]);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), config::reference());
}
