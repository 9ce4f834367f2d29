//! `build` and `inspect` with the real libraries: every small model of the fixtures and MiniLM become engines, in both
//! layouts and both precisions; the manifests tell the truth; what is wrong is refused in words and leaves nothing.
//!
//! TensorRT-RTX builds without a GPU. Where there is one, engines are loaded too and compared with their manifests. The full
//! library cannot be fetched from a package index; its lean runtime can, and shows that it is opened and asked rightly.
//! Libraries are fetched when they are not there; without network the tests say so and pass over.
#![cfg(feature = "gpu")]

mod oracle;

use std::path::PathBuf;
use std::sync::OnceLock;

use reactrt::device::tensorrt::{LIBRARIES, Library, gpu};
use reactrt::model::fetch::Wheel;

/// The library's folder in its package; `None` if it cannot be fetched.
fn libraries() -> Option<&'static PathBuf> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOLDER.get_or_init(|| oracle::unpacked(&WHEEL).map(|folder| folder.join(FOLDER_IN_WHEEL))).as_ref()
}

/// The library in this process.
fn library() -> Option<Library> {
    let folder = libraries()?;
    Some(Library::open_in(Some(folder)).unwrap_or_else(|error| panic!("{error}")))
}

#[cfg(not(feature = "tensorrt-rtx"))]
const FOLDER_IN_WHEEL: &str = "tensorrt_lean_libs";
#[cfg(not(feature = "tensorrt-rtx"))]
const WHEEL: Wheel = Wheel {
    package: "tensorrt-lean-cu13-libs",
    version: "11.4.0.106",
    file: "tensorrt_lean_cu13_libs-11.4.0.106-py3-none-manylinux_2_28_x86_64.whl",
    bytes: 44_375_636,
    sha256: "e022b8d0e21f19258657aec6760e1de8b454ed176f76217e3f7ec2036c5a9410",
    target: None,
};

#[cfg(feature = "tensorrt-rtx")]
const FOLDER_IN_WHEEL: &str = "tensorrt_rtx_libs";
#[cfg(feature = "tensorrt-rtx")]
const WHEEL: Wheel = Wheel {
    package: "tensorrt-rtx-cu13-libs",
    version: "1.6.1.120",
    file: "tensorrt_rtx_cu13_libs-1.6.1.120-py3-none-manylinux_2_28_x86_64.whl",
    bytes: 92_382_349,
    sha256: "cb972965c8bcd58e2cdb805eb872c69fb90abdf98356b71942d9a2f8a10220cf",
    target: None,
};

#[test]
fn the_library_says_what_it_is() {
    let Some(library) = library() else { return };
    assert_eq!(library.version(), WHEEL.version);
    assert_eq!(Library::open().expect("it is open").file(), library.file(), "there is one in a process");
}

#[test]
fn what_is_not_found_is_named_with_where_it_was_looked_for() {
    let folder = oracle::scratch("tensorrt-none");
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_reactrt"))
        .args(["build", "--onnx", "a.onnx", "--output", "a.engine"])
        .env(LIBRARIES, &folder)
        .output()
        .expect("the binary runs");
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    for words in [LIBRARIES, &folder.display().to_string(), "No such file", "Python package"] {
        assert!(error.contains(words), "no `{words}` in: {error}");
    }
}

#[test]
fn a_machine_without_a_driver_is_told_so() {
    let (Some(library), Err(_)) = (library(), gpu()) else { return };
    // TensorRT-RTX has a runtime without a driver, and refuses the first engine.
    let error = match library.runtime() {
        Ok(runtime) => runtime.engine(&[0xA5; 4096], "a.engine").map(|_| ()).unwrap_err().0,
        Err(error) => error.0,
    };
    assert!(error.contains(WHEEL.version), "{error}");
    #[cfg(not(feature = "tensorrt-rtx"))]
    assert!(error.contains("35") && error.contains("no NVIDIA driver"), "{error}");
}

/// `reactrt serve` on these devices, by a port of the system's choosing.
fn serve(devices: &str) -> std::process::Command {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_reactrt"));
    let arguments = ["serve", "--config", "tests/fixtures/three-tasks.yaml", "--port", "0", "--devices", devices];
    command.args(arguments).current_dir(env!("CARGO_MANIFEST_DIR"));
    if let Some(folder) = libraries() {
        command.env(LIBRARIES, folder);
    }
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    command
}

#[test]
fn without_a_gpu_a_named_one_is_an_error_and_auto_is_the_cpu_with_a_warning() {
    use std::io::{BufRead, BufReader, Read};
    if gpu().is_ok() {
        return;
    }
    let output = serve("cuda:0").output().expect("the binary runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("devices: cuda:0: ") && said.contains("driver"), "{said}");

    let mut server = serve("auto").spawn().expect("the binary runs");
    let mut line = String::new();
    BufReader::new(server.stdout.take().expect("piped")).read_line(&mut line).expect("it speaks");
    server.kill().expect("it runs");
    server.wait().expect("it ends");
    let mut said = String::new();
    server.stderr.take().expect("piped").read_to_string(&mut said).expect("words");
    assert!(line.starts_with("listening on http://127.0.0.1:"), "{line}{said}");
    assert!(said.contains("warning: no GPU is used, the CPU serves: ") && said.contains("driver"), "{said}");
}

#[cfg(not(feature = "tensorrt-rtx"))]
#[test]
fn the_lean_runtime_builds_nothing() {
    let Some(library) = library() else { return };
    let error = library.builder().map(|_| ()).unwrap_err().0;
    assert!(error.contains("ONNX parser was not found") && error.contains("libnvonnxparser.so.11"), "{error}");
}

#[cfg(feature = "tensorrt-rtx")]
mod rtx {
    use std::io::{BufRead, BufReader};
    use std::path::{Path, PathBuf};
    use std::process::{Command, Stdio};

    use reactrt::config::ModelSettings;
    use reactrt::device::tensorrt::{Build, Engine, gpu};
    use reactrt::device::{Bucket, Layout};
    use reactrt::model::build::shapes::{self, AskedBucket};
    use reactrt::model::build::{self, Options, Origin, Report, Shapes};
    use reactrt::model::convert::{self, Dtype};
    use reactrt::model::engine::{Capability, ShapeRange, Target};
    use reactrt::model::manifest::{self, Manifest};
    use reactrt::model::{Model, Source, Task};
    use serde_json::Value;

    use super::oracle::{self, Subject};
    use super::{LIBRARIES, WHEEL, libraries, library};

    const TARGET: Capability = Capability { major: 8, minor: 0 };

    /// An empty folder of the test's own.
    fn place(name: &str) -> PathBuf {
        let folder = oracle::scratch("tensorrt").join(name);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// The names in a folder, in order.
    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    fn origin(subject: &Subject, layout_asked: Layout, dtype_asked: Dtype) -> Origin {
        let mut origin = Origin::folder(&subject.folder, subject.model.task);
        let Origin::Folder { layout, dtype, .. } = &mut origin else { unreachable!("made of a folder") };
        (*layout, *dtype) = (layout_asked, dtype_asked);
        origin
    }

    fn build(options: &Options) -> Report {
        build::build(options, &mut |_| true).unwrap_or_else(|error| panic!("{options:?}: {error}"))
    }

    /// The engine on this machine's GPU, if there is one.
    fn load(engine: &Path) -> Option<Engine> {
        gpu().ok()?;
        let runtime = library()?.runtime().unwrap_or_else(|error| panic!("{error}"));
        let plan = std::fs::read(engine).unwrap();
        Some(runtime.engine(&plan, &engine.display().to_string()).unwrap_or_else(|error| panic!("{error}")))
    }

    /// What a manifest must say, by the model that it was built from.
    fn assert_true(report: &Report, model: &Model, layout: Layout, dtype: Dtype) {
        let manifest = &report.manifest;
        let engine = &report.files[0];
        let written = Manifest::beside(engine).unwrap().expect("there is a manifest");
        assert_eq!(written, *manifest, "what is reported is what is written");
        assert_eq!(written.check_plan(&std::fs::read(engine).unwrap()), Ok(()));
        assert_eq!((manifest.layout, manifest.dtype, manifest.capability), (Some(layout), Some(dtype), TARGET));
        assert_eq!((manifest.library.as_str(), manifest.version.as_str()), ("TensorRT-RTX", WHEEL.version));
        let facts = manifest.model.as_ref().expect("a folder says what it holds");
        let geometry = model.geometry.as_ref().unwrap();
        assert_eq!((facts.task, facts.pooling, facts.normalize), (model.task, model.pooling, model.normalize));
        assert_eq!((facts.max_length, &facts.labels, facts.width), (model.max_length, &model.labels, model.width()));
        assert_eq!((facts.vocabulary, facts.token_types), (Some(geometry.vocabulary), geometry.token_types));
        assert_eq!((&facts.prompts, facts.default_prompt), (&model.prompts, model.default_prompt));
        // The engine's tensors are those of the contract, with one shape for each bucket.
        assert_eq!(shapes::layout(&manifest.inputs), Some(layout));
        let has_types = manifest.inputs.iter().any(|input| input.name == convert::TOKEN_TYPE_IDS);
        assert_eq!(has_types, geometry.token_types > 1);
        for input in &manifest.inputs {
            assert_eq!(input.element.name(), "int32");
            let shape = |bucket: &Bucket| match input.name.as_str() {
                convert::CLS_INDEX => vec![i64::from(bucket.sequences_max)],
                _ => vec![i64::from(bucket.rows), i64::from(bucket.length)],
            };
            let expected: Vec<ShapeRange> =
                manifest.buckets.iter().map(|bucket| ShapeRange::fixed(&shape(bucket))).collect();
            assert_eq!(input.ranges, expected, "{}", input.name);
        }
        assert_eq!(manifest.outputs.len(), 1);
        assert_eq!(manifest.outputs[0].element.name(), "float32");
        // It can be served without anything but its own files.
        let settings = ModelSettings::new(model.task, "served", &engine.display().to_string(), "tests");
        let (served, _) = manifest::read_engine(engine, None, &settings).unwrap();
        assert_eq!(served.source, Source::Engine(engine.clone()));
        assert_eq!(std::fs::read(&served.tokenizer).unwrap(), std::fs::read(&model.tokenizer).unwrap());
        assert_eq!(
            (served.pooling, served.normalize, served.max_length),
            (model.pooling, model.normalize, model.max_length)
        );
        assert_eq!((&served.labels, &served.prompts), (&model.labels, &model.prompts));
        if let Some(loaded) = load(engine) {
            let description = loaded.description();
            assert_eq!((&description.inputs, &description.outputs), (&manifest.inputs, &manifest.outputs));
            assert_eq!(description.profiles, manifest.buckets.len());
        }
    }

    #[test]
    fn every_small_model_becomes_an_engine_in_every_form() {
        if library().is_none() {
            return;
        }
        let folder = place("small");
        for subject in oracle::all_small() {
            for (layout, dtype) in Layout::ALL.into_iter().flat_map(|layout| Dtype::ALL.map(|dtype| (layout, dtype))) {
                let name = format!("{}-{}-{}.engine", subject.model.name, layout.name(), dtype.name());
                let mut options = Options::new(origin(&subject, layout, dtype), folder.join(&name));
                options.target = Some(Target::Capability(TARGET));
                let length = subject.model.max_length as u32;
                options.shapes = Shapes::Buckets(vec![
                    AskedBucket { rows: 1, length, sequences: None },
                    AskedBucket { rows: 4, length: 16, sequences: None },
                ]);
                assert_true(&build(&options), &subject.model, layout, dtype);
            }
        }
        assert_eq!(names(&folder).len(), 11 * 4 * 3, "engine, manifest and tokenizer of each, and nothing else");
    }

    #[test]
    fn minilm_becomes_an_engine_with_the_default_buckets() {
        let (Some(_), Some(subject)) = (library(), oracle::minilm()) else { return };
        let folder = place("minilm");
        let mut bytes = Vec::new();
        for (layout, dtype) in Layout::ALL.into_iter().flat_map(|layout| Dtype::ALL.map(|dtype| (layout, dtype))) {
            let mut options = Options::new(origin(&subject, layout, dtype), folder.join("minilm.engine"));
            options.target = Some(Target::Capability(TARGET));
            if (layout, dtype) != (Layout::Packed, Dtype::Fp16) {
                options.shapes = Shapes::Buckets(vec!["8x256".parse().unwrap()]);
            }
            let report = build(&options);
            assert_true(&report, &subject.model, layout, dtype);
            bytes.push((dtype, report.manifest.bytes / report.manifest.buckets.len() as u64));
            if options.shapes == Shapes::Default {
                assert_eq!(report.manifest.buckets, shapes::ladder(Layout::Packed, 256));
            }
        }
        let weights = |dtype| bytes.iter().find(|(known, _)| *known == dtype).unwrap().1;
        assert!(weights(Dtype::Fp16) < weights(Dtype::Fp32) * 2 / 3, "half the precision, half the weights: {bytes:?}");
        assert_eq!(names(&folder), ["minilm.engine", "minilm.engine.json", "minilm.engine.tokenizer.json"]);
    }

    /// What the binary says to a command line: exit code, output, errors.
    fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_reactrt"))
            .args(arguments)
            .env(LIBRARIES, libraries().expect("asked before"))
            .output()
            .expect("the binary runs");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        (output.status.code(), text(output.stdout), text(output.stderr))
    }

    fn inspect(path: &Path) -> (String, Value) {
        let path = path.display().to_string();
        let (code, text, error) = run(&["inspect", &path]);
        assert_eq!(code, Some(0), "{error}");
        let (_, json, _) = run(&["inspect", "--json", &path]);
        (text, serde_json::from_str(&json).expect("JSON"))
    }

    /// One of the small models as an ONNX file in this folder.
    fn onnx(folder: &Path, layout: Layout, dtype: Dtype) -> String {
        let subject = oracle::small("bert-embedding-mean");
        let path = folder.join(format!("{}-{}.onnx", layout.name(), dtype.name()));
        let mut options = convert::Options::new(Task::Embedding, &subject.folder, &path);
        (options.layout, options.dtype) = (layout, dtype);
        convert::convert(&options, &mut |_| {}).unwrap();
        path.display().to_string()
    }

    #[test]
    fn trtexecs_command_line_builds_what_trtexec_builds() {
        if libraries().is_none() {
            return;
        }
        let folder = place("trtexec");
        let onnx = onnx(&folder, Layout::Padded, Dtype::Fp32);
        let [engine, times] = ["a.engine", "times"].map(|name| folder.join(name).display().to_string());
        let shapes = |shape: &str| format!("input_ids:{shape},attention_mask:{shape},token_type_ids:{shape}");
        let line = [
            "build".to_owned(),
            format!("--onnx={onnx}"),
            format!("--saveEngine={engine}"),
            format!("--minShapes={}", shapes("1x1")),
            format!("--optShapes={}", shapes("4x16")),
            format!("--maxShapes={}", shapes("8x32")),
            "--fp16".to_owned(),
            format!("--timingCacheFile={times}"),
            "--target=8.6".to_owned(),
        ];
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        let (code, output, error) = run(&line);
        assert_eq!(code, Some(0), "{error}");
        assert!(output.contains("padded, fp32, for compute capability 8.6"), "{output}");
        for note in ["`--fp16` changed nothing", "no timing cache to read", "leaves its shapes open"] {
            assert!(error.contains(note), "no `{note}` in: {error}");
        }
        let manifest = Manifest::beside(Path::new(&engine)).unwrap().unwrap();
        let range = ShapeRange { min: vec![1, 1], opt: vec![4, 16], max: vec![8, 32] };
        assert!(manifest.inputs.len() == 3 && manifest.inputs.iter().all(|input| input.ranges == [range.clone()]));
        assert!(manifest.buckets.is_empty());
        let facts = manifest.model.expect("our ONNX files say what they hold");
        assert_eq!((facts.width, facts.vocabulary), (40, None));
    }

    #[test]
    fn an_engine_says_what_it_is_and_why_it_does_not_run_here() {
        if libraries().is_none() {
            return;
        }
        let folder = place("inspect");
        let onnx = onnx(&folder, Layout::Packed, Dtype::Fp16);
        let engine = folder.join("a.engine");
        let path = engine.display().to_string();
        let (code, _, error) =
            run(&["build", "--onnx", &onnx, "--output", &path, "--buckets", "1x40,4x16:9", "--target", "8.0"]);
        assert_eq!(code, Some(0), "{error}");
        let (text, json) = inspect(&engine);
        for words in
            ["TensorRT-RTX 1.6.1.120", "capability 8.0", "packed, fp16", "1x40:2, 4x16:9", "cls_index int32 ?: 2, 9"]
        {
            assert!(text.contains(words), "no `{words}` in: {text}");
        }
        assert_eq!(json["manifest"]["buckets"][1]["sequences"], 9);
        if gpu().is_err() {
            assert_eq!((&json["runs_here"], &json["context_bytes"]), (&Value::Bool(false), &Value::Null));
            assert!(text.contains("runs here    no: there is no NVIDIA driver here"), "{text}");
        } else {
            assert_eq!(json["runs_here"], true, "{json}");
        }

        let reason = |change: &dyn Fn()| {
            change();
            let (text, json) = inspect(&engine);
            assert_eq!(json["runs_here"], false, "{json}");
            let reason = json["reason"].as_str().expect("a reason").to_owned();
            assert!(text.contains(reason.lines().next().unwrap()), "{text}");
            reason
        };
        let plan = std::fs::read(&engine).unwrap();
        let kept = std::fs::read_to_string(manifest::path_of(&engine)).unwrap();
        let mut damaged = plan.clone();
        damaged[plan.len() / 2] ^= 1;
        assert!(reason(&|| std::fs::write(&engine, &damaged).unwrap()).contains("sha256"));
        assert!(reason(&|| std::fs::write(&engine, &plan[..plan.len() / 2]).unwrap()).contains("bytes"));
        let other = |from: &str, to: &str| std::fs::write(manifest::path_of(&engine), kept.replace(from, to)).unwrap();
        std::fs::write(&engine, &plan).unwrap();
        assert!(reason(&|| other("1.6.1.120", "1.5.0.1")).contains("1.5.0.1"));
        assert!(reason(&|| other("\"TensorRT-RTX\"", "\"TensorRT\"")).contains("built by TensorRT 1.6.1.120"));
        other("\"format\"", "\"form\"");
        assert!(inspect(&engine).0.contains("no `format`"));
        std::fs::remove_file(manifest::path_of(&engine)).unwrap();
        let (text, json) = inspect(&engine);
        assert!(text.contains("there is no") && json["manifest"].is_null(), "{text}");
    }

    #[test]
    fn folders_and_onnx_files_are_inspected_without_a_library() {
        let folder = place("files");
        let path = onnx(&folder, Layout::Padded, Dtype::Fp16);
        let run = |path: &str| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_reactrt"));
            let output = command.args(["inspect", path]).env(LIBRARIES, &folder).output().expect("the binary runs");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        let text = run(&path);
        for words in
            ["an ONNX file", "padded, fp16", "attention_mask int32 [batch, sequence]", "embeddings float32 [batch, 40]"]
        {
            assert!(text.contains(words), "no `{words}` in: {text}");
        }
        let text = run(&oracle::small("roberta-nli").folder.display().to_string());
        for words in ["a model folder", "nli", "labels", "roberta"] {
            assert!(text.contains(words), "no `{words}` in: {text}");
        }
    }

    #[test]
    fn what_cannot_be_built_is_refused_in_words_and_leaves_nothing() {
        if libraries().is_none() {
            return;
        }
        let folder = place("refused");
        let padded = onnx(&folder, Layout::Padded, Dtype::Fp32);
        let write = |name: &str, bytes: &[u8]| {
            std::fs::write(folder.join(name), bytes).unwrap();
            folder.join(name).display().to_string()
        };
        let good = std::fs::read(&padded).unwrap();
        let text = write("text.onnx", "this is no ONNX file, whatever its name says\n".repeat(9).as_bytes());
        let cut = write("cut.onnx", &good[..good.len() / 2]);
        let empty = write("empty.onnx", b"");
        let position = good.windows(7).position(|window| window == b"Softmax").expect("there is a softmax");
        let mut unknown = good.clone();
        unknown[position..position + 7].copy_from_slice(b"Softmox");
        let unknown = write("unknown.onnx", &unknown);
        let output = folder.join("a.engine").display().to_string();
        let socket = folder.join("socket.engine");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let [socket, inside] = [&socket, &folder].map(|path| path.display().to_string());
        let before = names(&folder);

        // Whose fault it is: the command line's (2), or that of what it names (1).
        let exits = |expected: i32, onnx: &str, output: &str, more: &str| {
            let line = format!("build --onnx {onnx} --output {output} {more}");
            let (code, _, error) = run(&line.split_whitespace().collect::<Vec<_>>());
            assert_eq!(code, Some(expected), "{line}: {error}");
            assert_eq!(names(&folder), before, "{line}: nothing stays");
            error
        };
        let to = |onnx: &str, output: &str, more: &str| exits(1, onnx, output, more);
        let wrong = |output: &str, more: &str| exits(2, &padded, output, more);
        let refused = |onnx: &str, more: &str, words: &[&str]| {
            let error = to(onnx, &output, &format!("--target 8.0 {more}"));
            words.iter().for_each(|words| assert!(error.contains(words), "no `{words}` in: {error}"));
        };
        refused(&text, "", &["text.onnx: not an ONNX file"]);
        refused(&cut, "", &["cut.onnx", "truncated"]);
        refused(&empty, "", &["empty.onnx: not an ONNX file"]);
        refused(&unknown, "", &["unknown.onnx", "node ", "[Softmox ->", "attention/shares", "not supported"]);
        refused("/nowhere/a.onnx", "", &["/nowhere/a.onnx"]);
        refused(&padded, "--optShapes ids:1x8", &["no input `ids`; it has input_ids"]);
        refused(&padded, "--optShapes input_ids:1x8", &["no shape is given for the input `"]);
        let all = |flag: &str, shape: &str| {
            format!("--{flag}Shapes input_ids:{shape},attention_mask:{shape},token_type_ids:{shape}")
        };
        refused(&padded, &format!("{} {}", all("min", "8x8"), all("max", "4x8")), &["8x8 ≤ 4x8"]);
        refused(&padded, &all("opt", "1x41"), &["41 tokens", "max_length 40"]);
        refused(&padded, "--buckets 1x41", &["bucket 1x41 is longer than the model's max_length 40"]);
        refused(&padded, "--buckets 8x16", &["add 1x40"]);
        refused(&padded, "--buckets 1x40:3", &["holds one text"]);
        let options = [
            ("--version-compatible", "leave `--version-compatible` away"),
            ("--tokenizer /nowhere", "/nowhere"),
            (&format!("--timing-cache {inside}"), "a folder; name the file to write"),
            (&format!("--timing-cache {output}"), "the engine and the timing cache would be one file"),
            ("--buckets 1x40,1x40", "1x40 is there twice"),
            ("--target 9.0", "does not build for 9.0"),
            ("--target 9.0", "8.9, 12.0"),
        ];
        for (more, words) in options {
            let target = if more.contains("--target") { "" } else { "--target 8.0" };
            let error = wrong(&output, &format!("{target} {more}"));
            assert!(error.contains(words), "no `{words}` in: {error}");
        }
        refused(&padded, &format!("--tokenizer {text}"), &["text.onnx: "]);
        if gpu().is_err() {
            let error = to(&padded, &output, "");
            assert!(error.contains("no NVIDIA driver") && error.contains("--target 8.0"), "{error}");
        }
        let places = [
            (inside.clone(), "a folder; name the file to write"),
            (format!("{inside}/none/"), "name the file to write"),
            (socket, "must be a file, and this is none"),
            (padded.clone(), "would replace what it is made from"),
            ("/nowhere/a.engine".into(), "/nowhere: no such folder"),
            (format!("{inside}/{}", "n".repeat(250)), "255 are allowed"),
        ];
        for (output, words) in places {
            let error = wrong(&output, "--target 8.0");
            assert!(error.contains(words), "no `{words}` in: {error}");
        }
        assert!(to(&padded, "/proc/a.engine", "--target 8.0").contains("/proc"));
    }

    #[test]
    fn the_model_that_is_built_stays_as_it_was_and_an_engine_beside_it_can_be_built_again() {
        if libraries().is_none() {
            return;
        }
        let folder = place("beside");
        let source = oracle::small("bert-embedding-mean").folder;
        std::fs::create_dir(folder.join("1_Pooling")).unwrap();
        let below = Path::new("1_Pooling/config.json").to_owned();
        for name in names(&source).into_iter().map(PathBuf::from).chain([below]) {
            if source.join(&name).is_file() {
                std::fs::copy(source.join(&name), folder.join(&name)).unwrap();
            }
        }
        let model = folder.display().to_string();
        let read = || -> Vec<(String, Vec<u8>)> {
            let files = names(&folder).into_iter().filter(|name| folder.join(name).is_file());
            files.map(|name| (name.clone(), std::fs::read(folder.join(&name)).unwrap())).collect()
        };
        let before = read();
        let to = |command: &str, output: &str, more: &str| {
            let line = format!("{command} --model {model} --task embedding --output {model}/{output} {more}");
            run(&line.split_whitespace().collect::<Vec<_>>())
        };
        let target = "--target 8.0 --buckets 1x40";
        for output in ["model.safetensors", "config", "tokenizer"] {
            let (code, _, error) = to("build", output, target);
            assert!(code == Some(2) && error.contains("choose another"), "{code:?} {error}");
        }
        let (code, _, error) = to("build", "a.engine", &format!("{target} --keep-onnx {model}/config.json"));
        assert!(code == Some(2) && error.contains("config.json: in the model's folder"), "{code:?} {error}");
        let (code, _, error) = to("convert", "config.json", "");
        assert!(code == Some(2) && error.contains("config.json: in the model's folder"), "{code:?} {error}");
        assert!(read() == before, "nothing was changed, nothing was left");
        for _ in 0..2 {
            let (code, _, error) = to("build", "a.engine", &format!("{target} --keep-onnx {model}/a.onnx"));
            assert_eq!(code, Some(0), "{error}");
        }
        let after = read();
        assert!(before.iter().all(|file| after.contains(file)) && after.len() == before.len() + 4);
    }

    #[test]
    fn a_closed_output_is_no_failure_and_a_full_one_is_one_in_words() {
        if libraries().is_none() {
            return;
        }
        let model = oracle::small("bert-embedding-mean").folder.display().to_string();
        for arguments in [vec!["inspect", &model], vec!["inspect", "--json", &model], vec!["check", "--defaults"]] {
            let shell = |script: &str| {
                let mut command = Command::new("bash");
                command.args(["-c", script, env!("CARGO_BIN_EXE_reactrt")]).args(&arguments);
                let output = command.output().expect("there is a shell");
                (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
            };
            // The reader is gone before anything is written.
            let closed = "set -o pipefail; { sleep 0.2; \"$0\" \"$@\"; } | true";
            assert_eq!(shell(closed), (Some(0), String::new()), "{arguments:?}");
            let (code, error) = shell("\"$0\" \"$@\" > /dev/full");
            assert!(code == Some(1) && error.contains("error: the output cannot be written"), "{code:?} {error}");
        }
    }

    #[test]
    fn a_disk_that_is_full_leaves_the_old_engine_and_nothing_else() {
        if libraries().is_none() {
            return;
        }
        let folder = place("full");
        let onnx = onnx(&folder, Layout::Padded, Dtype::Fp32);
        let engine = folder.join("a.engine");
        std::fs::write(&engine, "the old engine").unwrap();
        let before = names(&folder);
        // Files of this shell's children end at 64 KiB: a write beyond fails as on a full disk.
        let script =
            "trap '' XFSZ; ulimit -f 64; exec \"$0\" build --onnx \"$1\" --output \"$2\" --target 8.0 --buckets 1x40";
        let output = Command::new("sh")
            .args(["-c", script, env!("CARGO_BIN_EXE_reactrt"), &onnx])
            .arg(&engine)
            .env(LIBRARIES, libraries().expect("asked before"))
            .output()
            .expect("there is a shell");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains("a.engine: cannot be written"), "{error}");
        assert_eq!(std::fs::read(&engine).unwrap(), b"the old engine");
        assert_eq!(names(&folder), before);
    }

    #[test]
    fn an_interrupted_build_leaves_nothing() {
        if libraries().is_none() {
            return;
        }
        let Some(subject) = oracle::minilm() else { return };
        let folder = place("interrupted");
        let mut child = Command::new(env!("CARGO_BIN_EXE_reactrt"))
            .args(["build", "--target", "8.0", "--verbose", "--model"])
            .arg(&subject.folder)
            .arg("--output")
            .arg(folder.join("a.engine"))
            .env(LIBRARIES, libraries().expect("asked before"))
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("the binary runs");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        // The library speaks while it builds: of memory first, then once for each profile.
        let first = lines.next().expect("the library says something").unwrap();
        assert!(first.starts_with("TensorRT-RTX: "), "{first}");
        let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("there is kill");
        assert!(killed.success());
        let rest: Vec<String> = lines.map(|line| line.expect("text")).collect();
        assert_eq!(child.wait().unwrap().code(), Some(1), "{rest:?}");
        assert!(rest.last().is_some_and(|line| line.contains("interrupted")), "{rest:?}");
        assert_eq!(names(&folder), Vec::<String>::new());
    }

    #[test]
    fn a_measured_time_survives_from_build_to_build() {
        let Some(library) = library() else { return };
        let folder = place("times");
        let onnx = onnx(&folder, Layout::Padded, Dtype::Fp32);
        let builder = library.builder().unwrap_or_else(|error| panic!("{error}"));
        let mut network = builder.network(Path::new(&onnx)).unwrap_or_else(|error| panic!("{error}"));
        let bucket = Bucket { rows: 1, length: 8, sequences_max: 1 };
        let profiles = shapes::fixed(&[bucket], Layout::Padded, &network.inputs()).unwrap();
        let mut times = Vec::new();
        for _ in 0..2 {
            let request = Build {
                profiles: &profiles,
                target: Target::Capability(TARGET),
                workspace_bytes: Some(64 << 20),
                timing_cache: Some(&times),
                version_compatible: false,
            };
            let built = network.build(&request, &mut |_| true).unwrap_or_else(|error| panic!("{error}"));
            assert!(!built.plan.is_empty());
            times = built.timing_cache.expect("one was asked for");
            assert!(!times.is_empty());
        }
    }

    #[test]
    fn what_is_no_engine_is_refused_before_and_by_the_library() {
        let Some(library) = library() else { return };
        let runtime = library.runtime().unwrap_or_else(|error| panic!("{error}"));
        let refused = |bytes: &[u8]| runtime.engine(bytes, "a.engine").map(|_| ()).unwrap_err().0;
        assert!(refused(b"").contains("a.engine: the file is empty"));
        assert!(refused(b"short").contains("5 bytes are too few"));
        assert!(refused(&[b'x'; 4096]).contains("a text"));
        let mut random = oracle::Random(7);
        for bytes in [64, 100, 1000, 100_000] {
            let noise: Vec<u8> = (0..bytes).map(|_| 0x80 | random.below(128) as u8).collect();
            let error = refused(&noise);
            assert!(
                error.contains("a.engine") && error.contains("TensorRT-RTX") || error.contains("too few"),
                "{error}"
            );
        }
        let folder = place("plans");
        let mut options =
            Options::new(Origin::Onnx(onnx(&folder, Layout::Padded, Dtype::Fp32).into()), folder.join("a.engine"));
        options.target = Some(Target::Capability(TARGET));
        options.shapes = Shapes::Buckets(vec!["1x40".parse().unwrap()]);
        build(&options);
        let plan = std::fs::read(folder.join("a.engine")).unwrap();
        // Only headers are damaged: what follows is the library's to trust, and the manifest's digest to guard.
        for end in [64, 200, 1000] {
            refused(&plan[..end]);
        }
    }
}
