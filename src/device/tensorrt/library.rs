//! Finding and opening the shared libraries, once per process.
//!
//! Invariant: a library that was opened stays open (the library keeps pointers to the first logger and starts threads of
//! its own, neither survives a `dlclose`), so whoever asks later gets the same one. A failure is not remembered: the next
//! attempt may find what is missing. Only a library of the major version whose headers this binary was built with is used.
#![allow(unsafe_code)]

use std::ffi::{OsString, c_void};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tensorrt_sys::{nvinfer1, nvonnxparser};

use super::logger::{Logger, Mark, Severity};
use super::{Builder, Flavour, Owned, Runtime};
use crate::device::LoadError;

/// A folder with the libraries, where the loader's own search (`LD_LIBRARY_PATH`, ld.so.conf) does not find them.
pub const LIBRARIES: &str = "REACTRT_TENSORRT_LIBRARIES";

type CreateRuntime = unsafe extern "C" fn(*mut c_void, i32) -> *mut nvinfer1::IRuntime;
type CreateBuilder = unsafe extern "C" fn(*mut c_void, i32) -> *mut nvinfer1::IBuilder;
type CreateParser =
    unsafe extern "C" fn(*mut nvinfer1::INetworkDefinition, *mut c_void, i32) -> *mut nvonnxparser::IParser;
type Number = unsafe extern "C" fn() -> i32;

/// The open library. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Library {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    logger: Logger,
    runtime: libloading::Library,
    /// What the runtime was found as.
    file: PathBuf,
    /// Where it was looked for; `None`: wherever the loader looks.
    folder: Option<PathBuf>,
    version: String,
    /// Opened when the first builder is asked for.
    parser: Mutex<Option<&'static libloading::Library>>,
}

static OPEN: Mutex<Option<Library>> = Mutex::new(None);

impl Library {
    /// The library that is open, else opens it: from the folder in [`LIBRARIES`] if that is set, else as the loader finds
    /// it. The error lists each file that was tried and what the loader said of it.
    pub fn open() -> Result<Library, LoadError> {
        let folder = std::env::var_os(LIBRARIES).filter(|value| !value.is_empty()).map(PathBuf::from);
        Library::open_in(folder.as_deref())
    }

    /// The library that is open, else the one in this folder; `None`: as the loader finds it.
    pub fn open_in(folder: Option<&Path>) -> Result<Library, LoadError> {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(library) = open.as_ref() {
            return Ok(library.clone());
        }
        let (file, runtime) = load(Flavour::built().name(), folder, &runtime_files())?;
        let version = version(&runtime, &file)?;
        let logger = Logger::new().ok_or_else(|| LoadError("no memory for the library's logger".into()))?;
        let folder = folder.map(Path::to_owned);
        let inner = Inner { logger, runtime, file, folder, version, parser: Mutex::new(None) };
        let library = Library { inner: Arc::new(inner) };
        // The clone that is kept here keeps the library open until the process ends.
        *open = Some(library.clone());
        Ok(library)
    }

    pub fn flavour(&self) -> Flavour {
        Flavour::built()
    }

    /// As much as the library tells, `1.6.1.120`.
    pub fn version(&self) -> String {
        self.inner.version.clone()
    }

    /// The file that was opened, as it was asked for.
    pub fn file(&self) -> &Path {
        &self.inner.file
    }

    /// Shows the library's messages up to this severity on the error stream; `None`, as it begins: none.
    pub fn show(&self, up_to: Option<Severity>) {
        self.inner.logger.show(up_to);
    }

    /// What engines are loaded with. Needs a driver and a GPU.
    pub fn runtime(&self) -> Result<Runtime, LoadError> {
        let mark = self.mark();
        // SAFETY: the symbol has this type in every version of this major (NvInferRuntime.h).
        let create = unsafe { self.inner.runtime.get::<CreateRuntime>("createInferRuntime_INTERNAL") };
        let create = create.map_err(|error| self.lacks("a runtime", &error))?;
        // SAFETY: the logger lives for ever, and the version is that of the headers that the bindings were made of.
        let pointer = unsafe { create(self.inner.logger.interface(), tensorrt_sys::get_tensorrt_version() as i32) };
        // SAFETY: what a factory returns is its caller's.
        match unsafe { Owned::new(pointer) } {
            Some(runtime) => Ok(Runtime::new(runtime, self.clone())),
            None => Err(self.refused("it could not start its runtime", mark)),
        }
    }

    /// What engines are built with. The lean runtime has none.
    pub fn builder(&self) -> Result<Builder, LoadError> {
        let parser = self.parser()?;
        let mark = self.mark();
        // SAFETY: the symbol has this type in every version of this major (NvInfer.h).
        let create = unsafe { self.inner.runtime.get::<CreateBuilder>("createInferBuilder_INTERNAL") };
        let create = create.map_err(|error| self.lacks("a builder", &error))?;
        // SAFETY: the symbol has this type in every version of this major (NvOnnxParser.h).
        let create_parser = unsafe { parser.get::<CreateParser>("createNvOnnxParser_INTERNAL") };
        let create_parser = create_parser.map_err(|error| self.lacks("an ONNX parser", &error))?;
        // SAFETY: the logger lives for ever, and the version is that of the headers that the bindings were made of.
        let pointer = unsafe { create(self.inner.logger.interface(), tensorrt_sys::get_tensorrt_version() as i32) };
        // SAFETY: what a factory returns is its caller's.
        match unsafe { Owned::new(pointer) } {
            Some(builder) => Ok(Builder::new(builder, *create_parser, self.clone())),
            None => Err(self.refused("it could not start its builder", mark)),
        }
    }

    fn parser(&self) -> Result<&'static libloading::Library, LoadError> {
        let mut parser = self.inner.parser.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(parser) = *parser {
            return Ok(parser);
        }
        let (_, library) = load("the ONNX parser", self.inner.folder.as_deref(), &parser_files())?;
        Ok(parser.insert(Box::leak(Box::new(library))))
    }

    pub(super) fn logger_interface(&self) -> *mut c_void {
        self.inner.logger.interface()
    }

    pub(super) fn mark(&self) -> Mark {
        self.inner.logger.mark()
    }

    /// What the library said since, in one line.
    pub(super) fn words_since(&self, mark: Mark) -> String {
        self.inner.logger.words_since(mark)
    }

    pub(super) fn errors_since(&self, mark: Mark) -> Vec<String> {
        self.inner.logger.since(mark)
    }

    /// An error that ends with the library's own words, and with what they mean where they are known to puzzle people.
    pub(super) fn refused(&self, what: &str, mark: Mark) -> LoadError {
        let said = self.errors_since(mark).join("; ");
        let colon = if said.is_empty() { "" } else { ": " };
        let meaning = meaning(&said).map(|meaning| format!(" ({meaning})")).unwrap_or_default();
        LoadError(format!("{} {}: {what}{colon}{said}{meaning}", self.flavour().name(), self.inner.version))
    }

    /// Whether these words of the library's say that there is no GPU that works.
    pub(super) fn misses_gpu(words: &str) -> bool {
        meaning(words).is_some()
    }

    fn lacks(&self, what: &str, error: &libloading::Error) -> LoadError {
        LoadError(format!("{} has no {what}: {error}", self.inner.file.display()))
    }
}

/// CUDA's numbers for what is wrong with a machine rather than with an engine.
fn meaning(words: &str) -> Option<&'static str> {
    let says = |code: &str| {
        ["cudaError ", "CUDA error ", "error: "].iter().any(|word| words.contains(&format!("{word}{code}")))
    };
    match () {
        () if says("35") || words.contains("insufficient for CUDA runtime version") => {
            Some("there is no NVIDIA driver here, or it is older than this library needs; `nvidia-smi` shows it")
        }
        () if says("100") || words.contains("no CUDA-capable device") => {
            Some("the driver sees no GPU; `nvidia-smi` and CUDA_VISIBLE_DEVICES say which it may see")
        }
        () => None,
    }
}

/// The runtime's file names, the best first.
fn runtime_files() -> Vec<String> {
    let major = header_major();
    match Flavour::built() {
        Flavour::Rtx => vec![format!("libtensorrt_rtx.so.{major}"), "libtensorrt_rtx.so".to_owned()],
        // The lean runtime loads engines and builds none.
        Flavour::Full => {
            vec![format!("libnvinfer.so.{major}"), "libnvinfer.so".to_owned(), format!("libnvinfer_lean.so.{major}")]
        }
    }
}

fn parser_files() -> Vec<String> {
    let major = header_major();
    match Flavour::built() {
        Flavour::Rtx => {
            vec![format!("libtensorrt_onnxparser_rtx.so.{major}"), "libtensorrt_onnxparser_rtx.so".to_owned()]
        }
        Flavour::Full => vec![format!("libnvonnxparser.so.{major}"), "libnvonnxparser.so".to_owned()],
    }
}

fn header_major() -> u32 {
    // SAFETY: returns a constant of the headers.
    unsafe { tensorrt_sys::get_tensorrt_major_version() }
}

/// Opens the first of these that opens. `what` is looked for, in words.
fn load(what: &str, folder: Option<&Path>, names: &[String]) -> Result<(PathBuf, libloading::Library), LoadError> {
    let mut tried = String::new();
    for name in names {
        let file: OsString = match folder {
            Some(folder) => folder.join(name).into_os_string(),
            None => name.into(),
        };
        // SAFETY: the library's initialisers run; it is NVIDIA's, found where the user or the system put it, and they ask
        // for nothing that a Rust program does not have.
        match unsafe { libloading::Library::new(&file) } {
            Ok(library) => return Ok((file.into(), library)),
            // The loader's words begin with the file.
            Err(error) => write!(tried, "\n  {}", cause(&error)).expect("a String takes all"),
        }
    }
    let place = match folder {
        Some(folder) => format!("in {} ({LIBRARIES})", folder.display()),
        None => format!("where the loader looks (LD_LIBRARY_PATH, ld.so.conf; {LIBRARIES} is not set)"),
    };
    let packages = match Flavour::built() {
        Flavour::Full => "`tensorrt-cu13-libs`, the runtime alone also in `tensorrt-lean-cu13-libs`",
        Flavour::Rtx => "`tensorrt-rtx-cu13-libs`",
    };
    Err(LoadError(format!(
        "{what} was not found {place}:{tried}\n\
         {}'s libraries come with NVIDIA's installer, and in the Python package {packages}",
        Flavour::built().name()
    )))
}

/// The loader's own words, which libloading puts behind the name of the call.
fn cause(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    }
}

/// What the library says it is. Another major than the headers' has other interfaces and must not be called.
fn version(library: &libloading::Library, file: &Path) -> Result<String, LoadError> {
    let number = |symbol: &str| {
        // SAFETY: these take nothing and return an `int32_t` in every version that has them.
        let function = unsafe { library.get::<Number>(symbol) }.ok()?;
        // SAFETY: as above.
        Some(unsafe { function() })
    };
    let parts =
        ["getInferLibMajorVersion", "getInferLibMinorVersion", "getInferLibPatchVersion", "getInferLibBuildVersion"];
    let parts: Vec<i32> = parts.into_iter().map_while(number).collect();
    let (name, wanted) = (Flavour::built().name(), header_major());
    let words = parts.iter().map(i32::to_string).collect::<Vec<_>>().join(".");
    match parts.first() {
        Some(&major) if u32::try_from(major) == Ok(wanted) => Ok(words),
        Some(_) => Err(LoadError(format!(
            "{} is {name} {words}, and this binary was built with the headers of {name} {wanted}",
            file.display()
        ))),
        None => Err(LoadError(format!("{} does not say its version; is it {name}?", file.display()))),
    }
}
