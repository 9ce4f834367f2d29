//! The command line: argv becomes one command, and its outcome an exit code.
//!
//! Nothing is decided here that a library function could decide. Flags for settings are made from `config`'s table, so that
//! each has its documentation and its default from there. Exit codes: 0 done, 1 something failed at run time, 2 the command
//! line or the configuration is wrong. Problems go to the error stream in one block.

use std::fmt::Display;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{ArgMatches, Args, Parser, Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};

use reactrt::config::{self, Key, ModelSettings, Overrides, Settings, TABLE};
use reactrt::device::Layout;
use reactrt::journal;
use reactrt::log::visible;
use reactrt::model::Task;
use reactrt::model::build;
use reactrt::model::build::shapes::{AskedBucket, AskedRanges, AskedShapes};
use reactrt::model::convert::{self, Dtype};
use reactrt::model::engine::Target;
use reactrt::model::fetch::{self, Origin, Wanted};
use reactrt::model::manifest::Manifest;
use reactrt::model::{Model, folder, inspect};
use reactrt::{demo, serve};

/// A low-latency HTTP server for embedding, reranker and NLI models.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true, after_help = SERVE_EXAMPLE)]
struct CommandLine {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: Serve,
}

const SERVE_EXAMPLE: &str = "Example: reactrt serve --config configs/config.yaml --port 8887\n\
    Without a command, `serve` is meant. `--help` lists a flag for every key of the configuration.";

#[derive(Subcommand)]
enum Command {
    /// Serve the models of a configuration file
    #[command(after_help = SERVE_EXAMPLE)]
    Serve(Serve),
    /// Fetch three small models and serve them: nothing to install or to configure
    #[command(after_help = "Example: reactrt demo --port 9000")]
    Demo(Demo),
    /// Turn a model folder into an ONNX file
    #[command(after_help = "Example: reactrt convert --task embedding --model sentence-transformers/all-MiniLM-L6-v2 \
                            --output minilm.onnx --dtype fp16 --layout packed")]
    Convert(Convert),
    /// Build an engine from a model folder or an ONNX file
    #[command(after_help = BUILD_EXAMPLE)]
    Build(Box<Build>),
    /// Say what an engine, an ONNX file or a model folder is, and whether it runs here
    #[command(after_help = "Example: reactrt inspect minilm.engine")]
    Inspect(Inspect),
    /// Say what a configuration file would serve, or everything that is wrong with it
    #[command(after_help = "Example: reactrt check configs/config.yaml")]
    Check(Check),
}

#[derive(Args)]
struct Serve {
    /// The configuration file
    #[arg(long, value_name = "FILE", default_value = CONFIG, env = "REACTRT_CONFIG")]
    config: PathBuf,
    #[command(flatten)]
    settings: SettingFlags,
}

const CONFIG: &str = "configs/config.yaml";

#[derive(Args)]
struct Demo {
    /// Ask the network again for models that an earlier start could not fetch
    #[arg(long)]
    fetch: bool,
    #[command(flatten)]
    settings: SettingFlags,
}

#[derive(Args)]
struct Check {
    /// The configuration file
    #[arg(default_value = CONFIG, env = "REACTRT_CONFIG")]
    file: PathBuf,
    /// Print the documented configuration file with every key at its default
    #[arg(long)]
    defaults: bool,
    #[command(flatten)]
    settings: SettingFlags,
}

#[derive(Args)]
struct Convert {
    /// The model folder, or its name on the model hub
    #[arg(long, alias = "model_path", alias = "model-path", value_name = "FOLDER|NAME")]
    model: String,
    /// A folder, a tokenizer.json, or a name on the hub, where the tokenizer is not in the model's folder
    #[arg(long, alias = "tokenizer_path", alias = "tokenizer-path", value_name = "PATH|NAME")]
    tokenizer: Option<String>,
    /// The file to write
    #[arg(long, alias = "output_path", alias = "output-path", value_name = "FILE.onnx")]
    output: PathBuf,
    /// What the model is for; by default as its config.json says
    #[arg(long)]
    task: Option<TaskWord>,
    /// Precision of weights and matrix products
    #[arg(long, default_value = "fp32")]
    dtype: DtypeWord,
    /// One text per row, or any number of them
    #[arg(long, default_value = "padded")]
    layout: LayoutWord,
    /// Version of the ONNX operator set
    #[arg(long, default_value_t = convert::OPSET_DEFAULT)]
    opset: u32,
    /// Tokens of one text at most; by default as the model says
    #[arg(long, alias = "max_length", value_name = "TOKENS")]
    max_length: Option<usize>,
}

const BUILD_EXAMPLE: &str = "Example: reactrt build --model sentence-transformers/all-MiniLM-L6-v2 --output minilm.engine\n\
    As with trtexec: reactrt build --onnx=model.onnx --saveEngine=model.engine --fp16 \\\n  \
    --minShapes=input_ids:1x1,attention_mask:1x1 --maxShapes=input_ids:32x256,attention_mask:32x256";

#[derive(Args)]
struct Build {
    /// A model folder, or its name on the model hub
    #[arg(
        long,
        alias = "model_path",
        alias = "model-path",
        value_name = "FOLDER|NAME",
        required_unless_present = "onnx"
    )]
    model: Option<String>,
    /// An ONNX file
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    onnx: Option<PathBuf>,
    /// The engine to write; beside it come <FILE>.json and <FILE>.tokenizer.json
    #[arg(long, alias = "saveEngine", alias = "save-engine", alias = "output_path", value_name = "FILE")]
    output: PathBuf,
    /// A folder, a tokenizer.json, or a name on the hub, where the tokenizer is not in the model's folder
    #[arg(long, alias = "tokenizer_path", alias = "tokenizer-path", value_name = "PATH|NAME")]
    tokenizer: Option<String>,
    /// Shapes to build for, one profile each: rows x tokens, packed with the number of texts after a colon [default: a ladder
    /// made from the model's length, twelve for 512 tokens]
    #[arg(
        long, value_name = "8x128,8x256:64,…", value_delimiter = ',',
        conflicts_with_all = ["min_shapes", "opt_shapes", "max_shapes"]
    )]
    buckets: Vec<AskedBucket>,
    /// Smallest shapes, `name:1x1,name:1x1`; one profile for a range of shapes
    #[arg(long, alias = "minShapes", value_name = "SHAPES")]
    min_shapes: Option<AskedShapes>,
    /// Shapes that the engine is best at
    #[arg(long, alias = "optShapes", value_name = "SHAPES")]
    opt_shapes: Option<AskedShapes>,
    /// Largest shapes
    #[arg(long, alias = "maxShapes", value_name = "SHAPES")]
    max_shapes: Option<AskedShapes>,
    /// The GPU to build for: `current`, or a compute capability such as 8.9 (TensorRT-RTX only) [default: current]
    #[arg(long, value_name = "CAPABILITY")]
    target: Option<Target>,
    /// The same as `--dtype fp16`; an ONNX file has its precision in itself
    #[arg(long)]
    fp16: bool,
    /// Measured times, read and written, which make the next build faster (TensorRT only)
    #[arg(long, alias = "timingCacheFile", value_name = "FILE")]
    timing_cache: Option<PathBuf>,
    /// Scratch memory that a kernel may ask for, in MiB [default: the GPU's]
    #[arg(long, alias = "workspace", value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    workspace_mib: Option<u64>,
    /// Let later versions of the library, and its lean runtime, load the engine (TensorRT only)
    #[arg(long, alias = "versionCompatible")]
    version_compatible: bool,
    /// Show the library's messages
    #[arg(long)]
    verbose: bool,
    #[command(flatten)]
    conversion: Conversion,
}

/// What is asked of the converter where a build begins with a folder.
#[derive(Args)]
#[command(next_help_heading = "With --model")]
struct Conversion {
    /// What the model is for; by default as its config.json says
    #[arg(long, conflicts_with = "onnx")]
    task: Option<TaskWord>,
    /// Precision of weights and matrix products [default: fp16]
    #[arg(long, conflicts_with = "onnx")]
    dtype: Option<DtypeWord>,
    /// One text per row, or any number of them [default: packed]
    #[arg(long, conflicts_with = "onnx")]
    layout: Option<LayoutWord>,
    /// Version of the ONNX operator set
    #[arg(long, conflicts_with = "onnx")]
    opset: Option<u32>,
    /// Tokens of one text at most; by default as the model says
    #[arg(long, alias = "max_length", value_name = "TOKENS", conflicts_with = "onnx")]
    max_length: Option<usize>,
    /// Keep the ONNX file, under this name
    #[arg(long, value_name = "FILE", conflicts_with = "onnx")]
    keep_onnx: Option<PathBuf>,
}

#[derive(Args)]
struct Inspect {
    /// An engine, an ONNX file or a model folder
    #[arg(value_name = "FILE|FOLDER")]
    path: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TaskWord {
    Embedding,
    #[value(alias = "reranker", alias = "rerank")]
    Reranking,
    #[value(alias = "classification")]
    Nli,
}

impl From<TaskWord> for Task {
    fn from(word: TaskWord) -> Task {
        match word {
            TaskWord::Embedding => Task::Embedding,
            TaskWord::Reranking => Task::Reranking,
            TaskWord::Nli => Task::Nli,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DtypeWord {
    Fp32,
    Fp16,
}

impl From<DtypeWord> for Dtype {
    fn from(word: DtypeWord) -> Dtype {
        match word {
            DtypeWord::Fp32 => Dtype::Fp32,
            DtypeWord::Fp16 => Dtype::Fp16,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LayoutWord {
    Padded,
    Packed,
}

impl From<LayoutWord> for Layout {
    fn from(word: LayoutWord) -> Layout {
        match word {
            LayoutWord::Padded => Layout::Padded,
            LayoutWord::Packed => Layout::Packed,
        }
    }
}

/// One flag for each key of [`TABLE`]; what was given, as [`Overrides::flags`] takes it.
struct SettingFlags(Vec<(String, String)>);

impl Args for SettingFlags {
    fn augment_args(command: clap::Command) -> clap::Command {
        let keys = TABLE.iter().filter(|key| key.stands_for.is_none());
        command.args(keys.map(|key| {
            let seldom = !matches!(key.path, "server.host" | "server.port" | "devices");
            clap::Arg::new(key.path)
                .long(key.flag())
                .alias(key.flag_with_section())
                .value_name("VALUE")
                .help(format!("{} [default: {}] [env: {}]", key.doc, key.default_text(), key.variable()))
                .help_heading("Settings, over the file")
                .hide_short_help(seldom)
        }))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        SettingFlags::augment_args(command)
    }
}

impl clap::FromArgMatches for SettingFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<SettingFlags, clap::Error> {
        let given = |key: &Key| matches.get_one::<String>(key.path).cloned();
        let keys = TABLE.iter().filter(|key| key.stands_for.is_none());
        Ok(SettingFlags(keys.filter_map(|key| given(key).map(|value| (key.path.to_owned(), value))).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = SettingFlags::from_arg_matches(matches)?;
        Ok(())
    }
}

/// What went wrong, by whose fault.
enum Failure {
    /// The command line's or the configuration's: exit code 2.
    Usage(String),
    /// Something at run time: exit code 1.
    Run(String),
}

fn main() -> ExitCode {
    let line = CommandLine::try_parse().unwrap_or_else(|error| refuse_line(&error));
    let outcome = match line.command.unwrap_or(Command::Serve(line.serve)) {
        Command::Serve(arguments) => run_serve(arguments),
        Command::Demo(arguments) => run_demo(arguments),
        Command::Convert(arguments) => run_convert(&arguments),
        Command::Build(arguments) => run_build(&arguments),
        Command::Inspect(arguments) => run_inspect(&arguments),
        Command::Check(arguments) => run_check(arguments),
    };
    let (message, code) = match outcome {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Run(message)) => (message, 1),
        Err(Failure::Usage(message)) => (message, 2),
    };
    complain(&format!("error: {}", message.replace('\n', "\n       ")));
    ExitCode::from(code)
}

/// Ends the process as clap would, but shows no word that may be a key: with a blank behind a comma, the second key of
/// `--api-keys a, b` is a word of its own.
fn refuse_line(error: &clap::Error) -> ! {
    let key = Key::find("server.api_keys").expect("a key of the table");
    let flags = |key: &Key| [key.flag(), key.flag_with_section()].map(|flag| format!("--{flag}"));
    let others = ["--config", "--help", "--version", "--fetch", "--defaults", "-h", "-V"].map(str::to_owned);
    let known: Vec<String> = TABLE.iter().flat_map(flags).chain(others).collect();
    let keys = flags(key);
    let mut secrets = Vec::new();
    let mut follows = false;
    for word in std::env::args_os().skip(1) {
        let word = word.to_string_lossy();
        let (flag, value) = word.split_once('=').map_or((&*word, None), |(flag, value)| (flag, Some(value)));
        if keys.iter().any(|known| known == flag) {
            follows = true;
            secrets.extend(value.map(str::to_owned));
        } else if known.iter().any(|known| known == flag) {
            follows = false;
        } else if follows {
            secrets.push(word.into_owned());
        }
    }
    // The longest first, as one may be the beginning of another.
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    if secrets.is_empty() || !error.use_stderr() {
        error.exit();
    }
    let mut said = error.render().to_string();
    for secret in secrets.iter().filter(|secret| !secret.is_empty()) {
        said = said.replace(secret.as_str(), "…");
    }
    eprint!("{said}\nWhat follows --{} is one word and not shown: a,b\n", key.flag());
    std::process::exit(2)
}

/// Writes to the output. A reader who has gone away has seen enough.
fn say(text: &str) -> Result<(), Failure> {
    let mut output = std::io::stdout().lock();
    let written = output.write_all(visible(text).as_bytes()).and_then(|()| output.flush());
    match written {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::Run(format!("the output cannot be written: {error}")))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Writes a line to the error stream; where that is closed there is nobody to tell.
fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", visible(text));
}

fn failed(error: impl Display) -> Failure {
    Failure::Run(error.to_string())
}

fn wrong(error: impl Display) -> Failure {
    Failure::Usage(error.to_string())
}

/// A path that is here, or what its name on the hub stands for. That there is no such path is the command line's fault.
fn resolve(text: &str, wanted: Wanted) -> Result<PathBuf, Failure> {
    fetch::origin(text).map_err(wrong)?;
    fetch::resolve(text, wanted).map_err(failed)
}

fn load(file: &Path, flags: SettingFlags) -> Result<Settings, Failure> {
    config::load(file, &Overrides::with_flags(flags.0)).map_err(|problems| {
        let hint = "\nThere is no such file: `reactrt check --defaults` prints one, `reactrt demo` needs none.";
        Failure::Usage(format!("{problems}{}", if file.exists() { "" } else { hint }))
    })
}

fn run_serve(arguments: Serve) -> Result<(), Failure> {
    let mut settings = load(&arguments.config, arguments.settings)?;
    let wrong = settings.models.iter().filter_map(|model| problem(&settings, model).err()).collect();
    examine(&arguments.config, &mut settings, wrong)?;
    serve::run(settings, |_| {}).map_err(failed)
}

/// All that is wrong with sound settings as far as this machine's files tell, beside what is wrong with the models. The file of
/// keys is read here, and only here: it may be a pipe.
fn examine(file: &Path, settings: &mut Settings, mut problems: Vec<String>) -> Result<(), Failure> {
    if settings.models.is_empty() {
        let file = file.display();
        problems.push(format!(
            "{file}: there is no model in it\n`reactrt check --defaults` shows how to name one; `reactrt demo` needs none."
        ));
    }
    problems.extend(serve::check_devices(settings).err().map(|error| error.to_string()));
    problems.extend(settings.server.access_log.as_ref().and_then(|target| journal::check(target).err()));
    match serve::api_keys(settings) {
        Ok(keys) => (settings.server.api_keys, settings.server.api_keys_file) = (keys, None),
        Err(words) => problems.push(words),
    }
    if problems.is_empty() { Ok(()) } else { Err(Failure::Usage(problems.join("\n"))) }
}

fn run_demo(arguments: Demo) -> Result<(), Failure> {
    let overrides = Overrides::with_flags(arguments.settings.0);
    let usage = |problems: config::Problems| Failure::Usage(problems.to_string());
    let mut settings = config::parse("the demo", "", &overrides).map_err(usage)?;
    serve::check_devices(&settings).map_err(wrong)?;
    let prepared = demo::prepare(&demo::Sources::public(), &settings.engines, arguments.fetch, &mut fetch::bar());
    let prepared = prepared.map_err(failed)?;
    settings.models = prepared.models.clone();
    let mut shown = settings.clone();
    // Said when it is true: the port may be taken.
    let announce = |address: std::net::SocketAddr| {
        shown.server.port = address.port();
        // It serves, whether or not anybody reads this.
        let _ = say(&demo::welcome(&shown, &prepared));
    };
    serve::run(settings, announce).map_err(failed)
}

fn run_convert(arguments: &Convert) -> Result<(), Failure> {
    let folder = resolve(&arguments.model, Wanted::Model)?;
    let tokenizer = match &arguments.tokenizer {
        Some(tokenizer) => Some(resolve(tokenizer, Wanted::Tokenizer)?),
        None => None,
    };
    let task = match arguments.task {
        Some(task) => task.into(),
        None => folder::task(&folder).map_err(|error| failed(format!("{error}; give --task")))?,
    };
    let mut options = convert::Options::new(task, folder, arguments.output.clone());
    options.tokenizer = tokenizer;
    (options.dtype, options.layout) = (arguments.dtype.into(), arguments.layout.into());
    options.opset = arguments.opset;
    options.max_length = arguments.max_length;
    convert::check(&options).map_err(wrong)?;
    let mut bar = fetch::bar();
    let report = convert::convert(&options, &mut |progress| bar(step(progress))).map_err(failed)?;
    bar(fetch::Progress::Finished);
    let written = &report.written;
    let megabytes = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
    let mut lines =
        vec![format!("{}: {}, {} nodes", options.output.display(), megabytes(written.model_bytes), report.nodes)];
    if let Some((file, bytes)) = &written.external {
        lines.push(format!("{}: {} of weights, which belong to it", file.display(), megabytes(*bytes)));
    }
    let (inputs, seconds) = (report.inputs.join(", "), report.elapsed.as_secs_f64());
    lines.push(format!("inputs {inputs}; output {}; {seconds:.1} s\n", report.output));
    say(&lines.join("\n"))
}

fn run_build(arguments: &Build) -> Result<(), Failure> {
    if !cfg!(feature = "gpu") {
        return Err(Failure::Run(build::WITHOUT.into()));
    }
    let mut options = build::Options::new(build_origin(arguments)?, arguments.output.clone());
    if let Some(tokenizer) = &arguments.tokenizer {
        options.tokenizer = Some(resolve(tokenizer, Wanted::Tokenizer)?);
    }
    let list = |shapes: &Option<AskedShapes>| shapes.clone().unwrap_or_default();
    let [min, opt, max] = [&arguments.min_shapes, &arguments.opt_shapes, &arguments.max_shapes].map(list);
    let ranges = AskedRanges { min, opt, max };
    options.shapes = match arguments.buckets.as_slice() {
        [] if ranges.is_empty() => build::Shapes::Default,
        [] => build::Shapes::Ranges(ranges),
        buckets => build::Shapes::Buckets(buckets.to_vec()),
    };
    (options.target, options.fp16, options.verbose) = (arguments.target, arguments.fp16, arguments.verbose);
    options.timing_cache.clone_from(&arguments.timing_cache);
    options.workspace_bytes = arguments.workspace_mib.map(|mebibytes| mebibytes << 20);
    options.version_compatible = arguments.version_compatible;
    build::check(&options).map_err(wrong)?;
    let stop = interruption().map_err(failed)?;
    let mut bar = build_bar();
    let outcome = build::build(&options, &mut |progress| {
        bar(Some(progress));
        !stop.load(Ordering::Relaxed)
    });
    bar(None);
    let report = outcome.map_err(failed)?;
    report.notes.iter().for_each(|note| complain(&format!("note: {note}")));
    say(&built(&report))
}

fn build_origin(arguments: &Build) -> Result<build::Origin, Failure> {
    let asked = &arguments.conversion;
    let Some(model) = &arguments.model else {
        let onnx = arguments.onnx.clone().expect("the command line has one of the two");
        return Ok(build::Origin::Onnx(onnx));
    };
    let dtype = match asked.dtype {
        Some(DtypeWord::Fp32) if arguments.fp16 => {
            return Err(Failure::Usage("`--fp16` and `--dtype fp32` contradict each other".into()));
        }
        Some(dtype) => dtype.into(),
        None => Dtype::Fp16,
    };
    let folder = resolve(model, Wanted::Model)?;
    let task = match asked.task {
        Some(task) => task.into(),
        None => folder::task(&folder).map_err(|error| failed(format!("{error}; give --task")))?,
    };
    Ok(build::Origin::Folder {
        folder,
        task,
        dtype,
        layout: asked.layout.map_or(Layout::Packed, Layout::from),
        opset: asked.opset.unwrap_or(convert::OPSET_DEFAULT),
        max_length: asked.max_length,
        pooling: None,
        normalize: None,
        onnx: asked.keep_onnx.clone(),
    })
}

/// Becomes true when somebody asks the process to end, so that a build can clear up; asked twice, it ends at once.
fn interruption() -> std::io::Result<Arc<AtomicBool>> {
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 1, asked.clone())?;
        signal_hook::flag::register(signal, asked.clone())?;
    }
    Ok(asked)
}

/// A bar for a build, and with `None` its end; draws nothing where there is no terminal.
fn build_bar() -> impl FnMut(Option<build::Progress>) + Send {
    let style = ProgressStyle::with_template("{msg:40!} {wide_bar} {percent:>3}% {elapsed}").expect("a constant");
    let bar = ProgressBar::new(1000).with_style(style);
    let mut shown = None;
    move |progress| {
        let (message, done) = match progress {
            None => return bar.finish_and_clear(),
            Some(build::Progress::Converting(progress)) => {
                let (word, done, total) = match progress {
                    convert::Progress::Reading { done, total } => ("reading the model", done, total),
                    convert::Progress::Writing { done, total } => ("writing the ONNX file", done, total),
                };
                (word.to_owned(), done as f64 / total.max(1) as f64)
            }
            Some(build::Progress::Building { phase, done }) => (phase.to_lowercase(), done),
            Some(build::Progress::Writing) => ("writing the engine".to_owned(), 1.0),
        };
        // The library tells thousands of steps a second.
        let position = (done * 1000.0) as u64;
        if shown.as_ref() != Some(&(message.clone(), position)) {
            bar.set_position(position);
            bar.set_message(message.clone());
            shown = Some((message, position));
        }
    }
}

/// What a build made, in lines.
fn built(report: &build::Report) -> String {
    let manifest = &report.manifest;
    let mut lines: Vec<String> = report.files.iter().map(|file| file.display().to_string()).collect();
    lines[0] = format!("{}: {:.1} MB", lines[0], manifest.bytes as f64 / 1e6);
    let kind = [manifest.layout.map(Layout::name), manifest.dtype.map(Dtype::name)];
    let kind = kind.into_iter().flatten().map(|word| format!("{word}, ")).collect::<String>();
    let Manifest { library, version, capability, .. } = manifest;
    lines.push(format!("{kind}for compute capability {capability}, by {library} {version}"));
    if !manifest.buckets.is_empty() {
        lines.push(format!("buckets {}", inspect::bucket_words(&manifest.buckets)));
    }
    lines.push(format!("{:.1} s", report.elapsed.as_secs_f64()));
    lines.join("\n") + "\n"
}

/// The converter's two passes as steps of one bar.
fn step(progress: convert::Progress) -> fetch::Progress {
    let (file, done, total) = match progress {
        convert::Progress::Reading { done, total } => ("reading", done, total),
        convert::Progress::Writing { done, total } => ("writing", done, total),
    };
    if done == 0 {
        fetch::Progress::Started { file: file.to_owned(), bytes: total }
    } else {
        fetch::Progress::Reached { bytes: done }
    }
}

fn run_inspect(arguments: &Inspect) -> Result<(), Failure> {
    let report = inspect::inspect(&arguments.path).map_err(failed)?;
    let text = if arguments.json { report.json() } else { report.text() };
    say(&text)
}

fn run_check(arguments: Check) -> Result<(), Failure> {
    if arguments.defaults {
        return say(&config::reference());
    }
    let settings = load(&arguments.file, arguments.settings)?;
    let found = settings.models.iter().filter_map(|model| problem(&settings, model).and_then(read_tokenizer).err());
    examine(&arguments.file, &mut settings.clone(), found.collect())?;
    say(&summary(&arguments.file, &settings))
}

/// A model that lies on this disk, or why it could not be served. One that would come from the hub is not fetched for this:
/// `None`.
fn problem<'a>(settings: &Settings, model: &'a ModelSettings) -> Result<Option<(&'a ModelSettings, Model)>, String> {
    let paths = [Some(&model.model_path), model.tokenizer_path.as_ref()];
    if paths.into_iter().flatten().any(|path| matches!(fetch::origin(path), Ok(Origin::Hub(_)))) {
        return match fetch::origin(&model.model_path) {
            Ok(_) => Ok(None),
            Err(missing) => Err(format!("{}: model `{}`: {missing}", model.place, model.name)),
        };
    }
    let found = serve::load_model(model).and_then(|found| serve::check_buckets(settings, &found).map(|()| found));
    found.map(|found| Some((model, found))).map_err(|error| serve::of_entry(model, &error))
}

/// Whether the tokenizer is one. `serve` finds that out when it reads it, a moment later.
fn read_tokenizer(found: Option<(&ModelSettings, Model)>) -> Result<(), String> {
    let Some((settings, model)) = found else { return Ok(()) };
    serve::check_tokenizer(&model).map_err(|error| serve::of_entry(settings, &error))
}

/// What would be served, and how it differs from the defaults.
fn summary(file: &Path, settings: &Settings) -> String {
    let memory = settings.memory(settings.piece_bounds(), config::WIDTH_ASSUMED);
    let megabytes = |bytes: u64| format!("{:.0} MB", bytes as f64 / 1e6);
    let mut lines = vec![
        format!("{} is right.", file.display()),
        format!("listens on  {}", whereto(&settings.server)),
        format!("devices     {}", Key::find("devices").expect("a key of the table").show(settings)),
        format!(
            "buffers     at most {} of {}, models not counted",
            megabytes(memory.total_bytes()),
            megabytes(settings.memory_bytes_max(settings.piece_bounds(), config::WIDTH_ASSUMED))
        ),
    ];
    for model in &settings.models {
        lines.push(format!("{:<11} {}: {}", model.task.name(), model.name, whereabouts(model)));
    }
    let defaults = Settings::default();
    for key in TABLE.iter().filter(|key| key.stands_for.is_none()) {
        let (value, default) = (key.show(settings), key.show(&defaults));
        if value != default {
            lines.push(format!("changed     {}: {value} (default {default})", key.path));
        }
    }
    lines.join("\n") + "\n"
}

/// Where clients will connect, as far as it is known before the address is bound.
fn whereto(server: &config::Server) -> String {
    let (host, port) = (server.host.as_str(), server.port);
    match host.parse::<IpAddr>() {
        Ok(address) => SocketAddr::new(address, port).to_string(),
        Err(_) if host.contains(':') => format!("[{host}]:{port}"),
        Err(_) => format!("{host}:{port} (a name, which is looked up at start)"),
    }
}

/// The model's path, and its tokenizer's, with a word on each that is not on this disk.
fn whereabouts(model: &ModelSettings) -> String {
    let say = |path: &str| match fetch::origin(path) {
        Ok(Origin::Here(_)) => path.to_owned(),
        Ok(Origin::Hub(_)) => format!("{path} (from the model hub)"),
        Err(error) => error.to_string(),
    };
    match &model.tokenizer_path {
        Some(tokenizer) => format!("{}; tokenizer {}", say(&model.model_path), say(tokenizer)),
        None => say(&model.model_path),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent_and_every_command_has_an_example() {
        let mut command = CommandLine::command();
        command.build();
        command.clone().debug_assert();
        for sub in command.get_subcommands_mut().filter(|sub| sub.get_name() != "help") {
            let help = sub.render_help().to_string();
            assert!(help.contains("Example: reactrt "), "{} has no example:\n{help}", sub.get_name());
        }
    }

    #[test]
    fn without_a_command_flags_are_those_of_serve() {
        let line = CommandLine::try_parse_from(["reactrt", "--port", "9000", "--linger-us", "7"]).unwrap();
        assert!(line.command.is_none());
        let flags =
            vec![("server.port".to_owned(), "9000".to_owned()), ("batching.linger_us".to_owned(), "7".to_owned())];
        assert_eq!(line.serve.settings.0, flags);
    }

    #[test]
    fn the_old_scripts_flags_are_taken() {
        let line = ["reactrt", "convert", "--model_path", "m", "--tokenizer_path", "t", "--output_path", "o.onnx"];
        let line = line.into_iter().chain(["--max_length", "256"]);
        let Some(Command::Convert(convert)) = CommandLine::try_parse_from(line).unwrap().command else {
            panic!("not understood as convert")
        };
        assert_eq!((convert.model.as_str(), convert.tokenizer.as_deref()), ("m", Some("t")));
        assert_eq!((convert.output, convert.max_length), (PathBuf::from("o.onnx"), Some(256)));
    }

    #[test]
    fn trtexecs_flags_are_taken() {
        let line =
            ["reactrt", "build", "--onnx=m.onnx", "--saveEngine=m.engine", "--fp16", "--minShapes=ids:1x1,mask:1x1"];
        let line = line.into_iter().chain(["--optShapes=ids:8x64", "--maxShapes=ids:32x256", "--timingCacheFile=t"]);
        let Some(Command::Build(build)) = CommandLine::try_parse_from(line).unwrap().command else {
            panic!("not understood as build")
        };
        assert_eq!((build.onnx, build.output), (Some("m.onnx".into()), PathBuf::from("m.engine")));
        assert!(build.fp16 && build.buckets.is_empty());
        let min = build.min_shapes.unwrap().0;
        assert_eq!(min, [("ids".to_owned(), vec![1, 1]), ("mask".to_owned(), vec![1, 1])]);
        assert_eq!(build.timing_cache, Some("t".into()));
    }

    #[test]
    fn what_contradicts_itself_is_a_wrong_command_line() {
        let wrong = |line: &str| {
            let line = format!("reactrt build {line}");
            CommandLine::try_parse_from(line.split(' ')).map(|_| ()).expect_err(&line).to_string()
        };
        assert!(wrong("--output e").contains("--model"));
        assert!(wrong("--model m --onnx o --output e").contains("cannot be used with"));
        assert!(wrong("--onnx o --dtype fp16 --output e").contains("cannot be used with"));
        assert!(wrong("--model m --output e --buckets 1x8 --optShapes a:1").contains("cannot be used with"));
        assert!(wrong("--model m --output e --buckets 1x8,8").contains("`8` is no bucket"));
        assert!(wrong("--model m --output e --target nine").contains("`nine` is no compute capability"));
    }
}
