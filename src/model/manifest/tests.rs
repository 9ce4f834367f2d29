//! Manifests written and read back, damaged in every way, and what they refuse; engines with and without one.

use super::*;
use crate::model::engine::ElementType;

fn sample() -> Manifest {
    let input = |name: &str, ranges: [&[i64]; 2]| Tensor {
        name: name.into(),
        element: ElementType::I32,
        shape: vec![-1; ranges[0].len()],
        ranges: ranges.map(ShapeRange::fixed).to_vec(),
        on_host: false,
    };
    let mut inputs =
        ["input_ids", "position_ids", "segment_ids"].map(|name| input(name, [&[1, 32], &[8, 128]])).to_vec();
    inputs.push(input("cls_index", [&[2], &[64]]));
    let vectors = Tensor {
        name: "embeddings".into(),
        element: ElementType::F32,
        shape: vec![-1, 384],
        ranges: Vec::new(),
        on_host: false,
    };
    Manifest {
        digest: digest(b"the plan"),
        bytes: 8,
        library: RTX.into(),
        version: "1.6.1.120".into(),
        version_compatible: false,
        capability: Capability { major: 8, minor: 0 },
        layout: Some(Layout::Packed),
        dtype: Some(Dtype::Fp16),
        buckets: vec![
            Bucket { rows: 1, length: 32, sequences_max: 2 },
            Bucket { rows: 8, length: 128, sequences_max: 64 },
        ],
        inputs,
        outputs: vec![vectors],
        tokenizer: Some(TokenizerFile { file: "m.engine.tokenizer.json".into(), digest: digest(b"{}") }),
        model: Some(Facts {
            name: "Müller's model".into(),
            task: Task::Embedding,
            digest: digest(b"weights"),
            pooling: Pooling::Mean,
            normalize: true,
            max_length: 128,
            labels: Vec::new(),
            prompts: vec![
                Prompt { name: "query".into(), text: "query: ".into() },
                Prompt { name: "passage".into(), text: "passage: ".into() },
            ],
            default_prompt: Some(1),
            pad_token: Some(1),
            vocabulary: Some(30_522),
            width: 384,
            token_types: 2,
        }),
    }
}

#[test]
fn what_is_written_is_read_back_equal() {
    let full = sample();
    assert_eq!(parse(full.to_json().as_bytes()), Ok(full.clone()));
    let mut bare = Manifest { layout: None, dtype: None, tokenizer: None, model: None, ..full.clone() };
    bare.buckets.clear();
    bare.inputs.truncate(1);
    bare.inputs[0].name = "pixels".into();
    assert_eq!(parse(bare.to_json().as_bytes()), Ok(bare));
    let mut nli = full;
    let facts = nli.model.as_mut().unwrap();
    (facts.task, facts.width, facts.labels) = (Task::Nli, 2, vec!["no".into(), "yes".into()]);
    (facts.prompts, facts.default_prompt, facts.vocabulary) = (Vec::new(), None, None);
    nli.outputs[0].shape[1] = 2;
    assert_eq!(parse(nli.to_json().as_bytes()), Ok(nli));
}

/// Every object and list of the manifest, by its JSON pointer.
fn pointers(value: &Value, path: &str, found: &mut Vec<String>) {
    found.push(path.to_owned());
    match value {
        Value::Object(values) => {
            values.iter().for_each(|(key, value)| pointers(value, &format!("{path}/{key}"), found))
        }
        Value::Array(values) => {
            values.iter().enumerate().for_each(|(index, value)| pointers(value, &format!("{path}/{index}"), found));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn every_key_is_needed_and_every_value_of_its_kind_and_errors_name_it() {
    let good: Value = serde_json::from_str(&sample().to_json()).unwrap();
    let mut all = Vec::new();
    pointers(&good, "", &mut all);
    assert!(all.len() > 60);
    for pointer in all.iter().filter(|pointer| !pointer.is_empty()) {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let path = pointer[1..].split('/').fold(String::new(), |path, part| match part.parse::<usize>() {
            Ok(index) => format!("{path}[{index}]"),
            Err(_) if path.is_empty() => part.to_owned(),
            Err(_) => format!("{path}.{part}"),
        });
        let mut wrong = good.clone();
        *wrong.pointer_mut(pointer).unwrap() = json!({"a": {"b": [1.5, "\u{1F600}"]}});
        let error = parse(wrong.to_string().as_bytes()).unwrap_err();
        // An object in place of an object lacks the first of its keys.
        assert!(error.contains(&path), "{pointer}: {error}");
        let mut lacking = good.clone();
        if let Some(object) = lacking.pointer_mut(parent).and_then(Value::as_object_mut) {
            object.remove(key);
            let error = parse(lacking.to_string().as_bytes()).unwrap_err();
            assert_eq!(error, format!("no `{path}`"));
        }
        let mut more = good.clone();
        if let Some(object) = more.pointer_mut(parent).and_then(Value::as_object_mut) {
            object.insert("surprise".into(), Value::Null);
            assert!(parse(more.to_string().as_bytes()).unwrap_err().contains("surprise` is not a key"));
        }
    }
}

#[test]
fn no_bytes_make_it_panic() {
    let good = sample().to_json().into_bytes();
    for end in 0..good.len() - 2 {
        assert!(parse(&good[..end]).is_err(), "cut at {end}");
    }
    for index in 0..good.len() {
        for byte in [0, b'0', b'"', b'{', b',', b'-', 0xFF] {
            let mut damaged = good.clone();
            damaged[index] = byte;
            let _ = parse(&damaged);
        }
    }
    assert!(parse(&vec![b' '; BYTES_MAX + 1]).unwrap_err().contains("more than"));
    assert!(parse("[".repeat(100_000).as_bytes()).is_err());
}

#[test]
fn values_that_do_not_fit_one_another_are_refused() {
    let good: Value = serde_json::from_str(&sample().to_json()).unwrap();
    let cases = [
        ("/format", json!(2), "this program reads 1"),
        ("/buckets/0/sequences", json!(33), "no more sequences than tokens"),
        ("/buckets/0/rows", json!(0), "from 1 to"),
        ("/inputs/0/profiles/0/max", json!([1, 16]), "min ≤ opt ≤ max"),
        ("/tokenizer/file", json!("../../etc/passwd"), "beside this one"),
        ("/tokenizer/file", json!(".."), "beside this one"),
        ("/tokenizer/sha256", json!("ABC"), "sha256"),
        ("/model/default_prompt", json!("other"), "one of `prompts`"),
        ("/model/task", json!("nli"), "one label for each"),
        ("/compute_capability", json!("9"), "such as 8.9"),
        ("/compute_capability", json!("08.00"), "such as 8.9"),
        ("/layout", json!("padded"), "`layout` is padded, and by the names and shapes of `inputs` it is packed"),
        ("/layout", json!(null), "`layout` is null"),
        ("/buckets", json!([{"rows": 1, "length": 32, "sequences": 2}]), "`buckets` are [1x32:2], and the profiles"),
        ("/buckets/1/rows", json!(4), "[1x32:2, 4x128:64], and the profiles of `inputs` are [1x32:2, 8x128:64]"),
        ("/inputs", json!([]), "`inputs` is empty"),
        ("/outputs", json!([]), "`outputs` is empty"),
        ("/inputs/1/name", json!("input_ids"), "the name `input_ids` twice"),
        ("/inputs/1/profiles", json!([]), "`inputs[1].profiles` must be 2"),
        ("/model/vocabulary", json!(0), "`model.vocabulary` is 0"),
        ("/model/pad_token", json!(30_522), "a token of the vocabulary"),
        ("/model/prompts/0/name", json!("passage"), "different names"),
        ("/model/labels", json!(["a"]), "an empty list but for nli"),
        ("/model/task", json!("reranking"), "`model.width` is 384; 1 for reranking"),
        ("/model/width", json!(385), "`model.width` is 385, and the output has 384 values"),
        ("/model/max_length", json!(16_777_216), "from 1 to 1048576"),
    ];
    for (pointer, value, words) in cases {
        let mut wrong = good.clone();
        *wrong.pointer_mut(pointer).unwrap() = value;
        let error = parse(wrong.to_string().as_bytes()).unwrap_err();
        assert!(error.contains(words), "{pointer}: {error}");
    }
}

#[test]
fn a_key_that_is_there_twice_is_refused_at_every_level() {
    let good = sample().to_json();
    for key in ["format", "rows", "name", "max_length", "min"] {
        let at = good.find(&format!("\"{key}\":")).unwrap();
        let twice = format!("{}\"{key}\":1,{}", &good[..at], &good[at..]);
        let error = parse(twice.as_bytes()).unwrap_err();
        assert!(error.contains(&format!("the key `{key}` is there twice")), "{error}");
    }
}

#[test]
fn what_could_not_be_read_back_is_known_before_it_is_written() {
    assert_eq!(sample().check_readable(), Ok(()));
    let refused = |change: &dyn Fn(&mut Manifest)| {
        let mut manifest = sample();
        change(&mut manifest);
        manifest.check_readable().unwrap_err()
    };
    assert!(
        refused(&|manifest| manifest.tokenizer.as_mut().unwrap().file = "a\\b.json".into()).contains("tokenizer.file")
    );
    let long = |manifest: &mut Manifest| manifest.model.as_mut().unwrap().prompts[0].text = "p".repeat(70_000);
    assert!(refused(&long).contains("model.prompts[0].text"));
    assert!(refused(&|manifest| manifest.model.as_mut().unwrap().digest = "nan".into()).contains("model.digest"));
    assert!(refused(&|manifest| manifest.buckets[0].rows = 0).contains("buckets[0].rows"));
    assert!(refused(&|manifest| manifest.inputs[0].on_host = true).contains("`input_ids` is read on the host"));
}

#[test]
fn an_engine_that_is_not_all_there_is_refused_without_reading_it() {
    let folder = Folder::new("cut");
    folder.write("m.engine.json", &sample().to_json());
    folder.write("m.engine.tokenizer.json", "{}");
    let error = || read_engine(&folder.engine(), None, &settings(Task::Embedding)).unwrap_err().0;
    folder.write("m.engine", "the pla");
    assert!(error().contains("m.engine: the engine has 7 bytes and its manifest says 8"), "{}", error());
    folder.write("m.engine", "");
    assert!(error().contains("the file is empty"), "{}", error());
    folder.write("m.engine", "the plan");
    let mut short = sample();
    short.model.as_mut().unwrap().max_length = 129;
    folder.write("m.engine.json", &short.to_json());
    assert!(error().contains("max_length 129; the engine's largest bucket holds 128 tokens"), "{}", error());
}

#[test]
fn an_engine_is_refused_with_both_values_named() {
    let manifest = sample();
    let capability = |major, minor| Some(Capability { major, minor });
    let here = Here { library: RTX, version: "1.6.1.120", capability: capability(8, 0) };
    assert_eq!(manifest.check(b"the plan", &here), Ok(()));
    let refused = |here: Here<'_>| manifest.check_here(&here).unwrap_err();
    let error = refused(Here { library: "TensorRT", version: "11.4.0.106", ..here });
    assert!(error.contains("TensorRT-RTX 1.6.1.120") && error.contains("TensorRT 11.4.0.106"), "{error}");
    let error = refused(Here { version: "1.6.2.1", ..here });
    assert!(error.contains("1.6.1.120") && error.contains("1.6.2.1"), "{error}");
    let error = refused(Here { capability: capability(7, 5), ..here });
    assert!(error.contains("8.0") && error.contains("7.5"), "{error}");
    assert_eq!(manifest.check_here(&Here { version: "1.6.1.121", capability: capability(9, 0), ..here }), Ok(()));
    assert_eq!(manifest.check_here(&Here { capability: None, ..here }), Ok(()));

    let error = manifest.check_plan(b"the plam").unwrap_err();
    assert!(error.contains(&digest(b"the plan")) && error.contains(&digest(b"the plam")), "{error}");
    assert!(manifest.check_plan(b"the pla").unwrap_err().contains("7 bytes and its manifest says 8"));
}

#[test]
fn full_engines_are_for_one_gpu_and_by_default_for_one_version() {
    let mut manifest = Manifest { library: "TensorRT".into(), version: "11.2.0.5".into(), ..sample() };
    let here = Here { library: "TensorRT", version: "11.4.0.106", capability: Some(manifest.capability) };
    assert!(manifest.check_here(&here).is_err());
    manifest.version_compatible = true;
    assert_eq!(manifest.check_here(&here), Ok(()));
    assert!(manifest.check_here(&Here { version: "11.1.0.1", ..here }).is_err());
    assert!(manifest.check_here(&Here { version: "12.0.0.1", ..here }).is_err());
    assert!(manifest.check_here(&Here { capability: Some(Capability { major: 9, minor: 0 }), ..here }).is_err());
}

/// An engine's files in a folder of the test's own, which goes with it.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("reactrt-manifest-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("m.engine"), "the plan").unwrap();
        Folder(path)
    }

    fn engine(&self) -> PathBuf {
        self.0.join("m.engine")
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        std::fs::write(self.0.join(name), text).unwrap();
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn settings(task: Task) -> ModelSettings {
    ModelSettings::new(task, "m", "m.engine", "tests:3")
}

#[test]
fn an_engine_with_a_manifest_needs_no_configuration() {
    let folder = Folder::new("with");
    folder.write("m.engine.json", &sample().to_json());
    folder.write("m.engine.tokenizer.json", "{}");
    let (model, manifest) = read_engine(&folder.engine(), None, &settings(Task::Embedding)).unwrap();
    assert_eq!(manifest, Some(sample()));
    assert_eq!(model.source, Source::Engine(folder.engine()));
    assert_eq!(model.tokenizer, tokenizer_of(&folder.engine()));
    assert_eq!((model.pooling, model.normalize, model.max_length), (Pooling::Mean, true, 128));
    assert_eq!((model.prompts.len(), model.default_prompt), (2, Some(1)));

    let mut other = settings(Task::Embedding);
    (other.max_length, other.default_prompt) = (Some(64), Some("query".into()));
    let (model, _) = read_engine(&folder.engine(), None, &other).unwrap();
    assert_eq!((model.max_length, model.default_prompt), (64, Some(0)));
    other.prompts = Some(vec![("passage".into(), "p: ".into())]);
    other.default_prompt = None;
    let (model, _) = read_engine(&folder.engine(), None, &other).unwrap();
    assert_eq!((model.prompts[0].text.as_str(), model.default_prompt), ("p: ", Some(0)));
}

#[test]
fn what_was_built_in_cannot_be_configured_away() {
    let folder = Folder::new("against");
    folder.write("m.engine.json", &sample().to_json());
    folder.write("m.engine.tokenizer.json", "{}");
    let refused = |change: &dyn Fn(&mut ModelSettings)| {
        let mut settings = settings(Task::Embedding);
        change(&mut settings);
        read_engine(&folder.engine(), None, &settings).unwrap_err().0
    };
    let error = refused(&|settings| settings.max_length = Some(256));
    assert!(error.contains("tests:3") && error.contains("256") && error.contains("128"), "{error}");
    assert!(refused(&|settings| settings.pooling = Some(Pooling::Cls)).contains("built with mean"));
    assert!(refused(&|settings| settings.normalize = Some(false)).contains("normalised"));
    assert!(refused(&|settings| settings.task = Task::Nli).contains("built for embedding, and is listed for nli"));
    assert!(refused(&|settings| settings.labels = Some(vec!["x".into()])).contains("1 labels"));
    assert!(refused(&|settings| settings.default_prompt = Some("none".into())).contains("`none`"));

    folder.write("m.engine.tokenizer.json", "[]");
    let error = refused(&|_| {});
    assert!(error.contains(&digest(b"[]")) && error.contains(&digest(b"{}")), "{error}");
    std::fs::remove_file(tokenizer_of(&folder.engine())).unwrap();
    assert!(refused(&|_| {}).contains("m.engine.tokenizer.json"));
    folder.write("m.engine.json", "{}");
    let error = refused(&|_| {});
    assert!(error.contains("m.engine.json: no `format`"), "{error}");
}

#[test]
fn an_engine_without_a_manifest_has_the_old_servers_defaults() {
    let folder = Folder::new("without");
    let error = read_engine(&folder.engine(), None, &settings(Task::Nli)).unwrap_err().0;
    assert!(error.contains("tokenizer_path"), "{error}");
    let tokenizer = folder.write("t.json", "{}");
    let (model, manifest) = read_engine(&folder.engine(), Some(&tokenizer), &settings(Task::Nli)).unwrap();
    assert_eq!((manifest, model.tokenizer.clone()), (None, tokenizer.clone()));
    assert_eq!(model.labels, NLI_LABELS);
    assert_eq!((model.normalize, model.max_length), (false, LENGTH_OF_THE_PROFILES));
    let mut asked = settings(Task::Nli);
    (asked.labels, asked.max_length) = (Some(vec!["a".into(), "b".into()]), Some(256));
    let (model, _) = read_engine(&folder.engine(), Some(&tokenizer), &asked).unwrap();
    assert_eq!((model.labels, model.max_length), (vec!["a".to_owned(), "b".to_owned()], 256));
    assert!(read_engine(&folder.0.join("none.engine"), None, &asked).unwrap_err().0.contains("none.engine"));
}

#[test]
fn errors_stay_on_one_line() {
    let good: Value = serde_json::from_str(&sample().to_json()).unwrap();
    let named = |name: &str| {
        let mut value = good.clone();
        (value["inputs"][0]["name"], value["inputs"][1]["name"]) = (name.into(), name.into());
        value.to_string()
    };
    let cases = [
        (r#"{"a\nb":1,"a\nb":1}"#.to_owned(), r"a\nb"),
        (good.to_string().replacen('{', r#"{"a\nb":1,"#, 1), r"a\nb"),
        (named("a\nb\u{7}"), r"a\nb\u{7}"),
        ("\"a\u{7f}b\"".to_owned(), r"a\u{7f}b"),
    ];
    for (text, shown) in cases {
        let error = parse(text.as_bytes()).unwrap_err();
        assert!(error.contains(shown) && !error.contains(char::is_control), "{error:?}");
    }
}
