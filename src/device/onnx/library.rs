//! Finding and opening onnxruntime's shared library, once per process.
//!
//! Invariant: every device of a process computes with the same library; asking for another one is an error, not a surprise.
//! `ORT_DYLIB_PATH` is read here because everybody who uses onnxruntime from Rust knows it by that name.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use ort::environment::Environment;

use crate::device::LoadError;

const VARIABLE: &str = "ORT_DYLIB_PATH";

/// What the system's own search is asked for.
#[cfg(target_os = "macos")]
const SYSTEM: &str = "libonnxruntime.dylib";
#[cfg(not(target_os = "macos"))]
const SYSTEM: &str = "libonnxruntime.so";

/// The library that is open. A failure is not remembered: the next attempt may name another file.
static OPEN: Mutex<Option<(PathBuf, Environment)>> = Mutex::new(None);

/// Opens `given`, else what the variable names, else what the system finds.
pub(super) fn environment(given: Option<&Path>) -> Result<Environment, LoadError> {
    let variable = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
    let (path, source) = match (given, variable) {
        (Some(given), _) => (given.to_owned(), "as configured".to_owned()),
        (None, Some(path)) => (path, format!("as {VARIABLE} says")),
        (None, None) => (PathBuf::from(SYSTEM), format!("in the system's library folders ({VARIABLE} is not set)")),
    };
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((opened, environment)) = open.as_ref() {
        return match given {
            Some(given) if given != opened => Err(LoadError(format!(
                "onnxruntime is open already, from {}; {} would be a second one",
                opened.display(),
                given.display()
            ))),
            Some(_) | None => Ok(environment.clone()),
        };
    }
    let builder = ort::init_from(&path).map_err(|error| {
        LoadError(format!(
            "onnxruntime's library was not found; looked for {} {source}: {error}. It is in the Python package \
             `onnxruntime` (folder onnxruntime/capi) and in its releases",
            path.display()
        ))
    })?;
    let environment = builder
        .with_name(env!("CARGO_PKG_NAME"))
        .build()
        .map_err(|error| LoadError(format!("{}: onnxruntime does not start: {error}", path.display())))?;
    *open = Some((path, environment.clone()));
    Ok(environment)
}
