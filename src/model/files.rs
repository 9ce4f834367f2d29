//! Files that a model is read from, and files that a run writes: opened only if they are regular, replaced only if nobody
//! needs them.
//!
//! Whoever opens a path that a user or another file names does it here: a pipe would wait for ever, and a device has no end.
//! [`Outputs::check`] is asked before anything is written. Invariants: what it accepts replaces nothing that the same run
//! reads, nothing in a model's folder but what an earlier run of this program put there, and no other output.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::manifest::{self, Manifest};
use super::onnx::{Summary, external_path};
use crate::device::LoadError;

/// Bytes of a file beside a model that is read whole. Vocabularies of a million tokens have a twentieth of it.
pub const SIDE_FILE_BYTES_MAX: u64 = 1 << 30;

/// Bytes of a file's name, as Linux has them.
const NAME_BYTES_MAX: usize = 255;

/// What a model's folder is read by, beside weights.
const MODEL_FILES: [&str; 9] = [
    "config.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "vocab.txt",
];

/// Endings of weights and their lists.
const WEIGHTS: [&str; 3] = [".safetensors", ".bin", ".index.json"];

fn at(path: &Path, words: impl std::fmt::Display) -> LoadError {
    LoadError(format!("{}: {words}", path.display()))
}

/// Opens a regular file, or what a link to one leads to.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let kind = path.metadata()?.file_type();
    if kind.is_file() {
        return File::open(path);
    }
    let what = if kind.is_dir() { "a folder" } else { "a pipe, a socket or a device" };
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{what}, where a file is needed")))
}

/// The bytes of a regular file, at most `bytes_max`.
pub fn read_regular(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        let words = format!("more than {bytes_max} bytes, which no file of this kind has");
        return Err(io::Error::new(io::ErrorKind::InvalidData, words));
    }
    Ok(bytes)
}

/// Whether the files that an ONNX file's tensors lie in can be opened, before a library tries.
pub fn check_external(onnx: &Path, summary: &Summary) -> Result<(), LoadError> {
    summary.external.iter().try_for_each(|name| {
        let path = onnx.with_file_name(name);
        open_regular(&path).map(|_| ()).map_err(|error| at(onnx, format!("its weights in {}: {error}", path.display())))
    })
}

/// The file `tokenizer.json` of what may be its folder.
pub fn tokenizer_in(given: &Path) -> PathBuf {
    if given.is_dir() { given.join("tokenizer.json") } else { given.to_owned() }
}

/// The folder that a file is in.
pub fn folder_of(file: &Path) -> &Path {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    }
}

/// What one run reads and writes.
#[derive(Debug, Default)]
pub struct Outputs {
    /// What it is, and where.
    written: Vec<(&'static str, PathBuf)>,
    /// Those of `written` that an earlier run of this program left there.
    ours: Vec<PathBuf>,
    files: Vec<PathBuf>,
    folder: Option<PathBuf>,
}

impl Outputs {
    /// An engine with what is written beside it.
    pub fn engine(&mut self, engine: &Path) {
        let all = [
            ("the engine", engine.to_owned()),
            ("the engine's manifest", manifest::path_of(engine)),
            ("the engine's tokenizer", manifest::tokenizer_of(engine)),
        ];
        if matches!(Manifest::beside(engine), Ok(Some(_))) {
            self.ours.extend(all.iter().map(|(_, path)| path.clone()));
        }
        self.written.extend(all);
    }

    /// An ONNX file, with the file that its weights may be in.
    pub fn onnx(&mut self, onnx: &Path) {
        let all = [("the ONNX file", onnx.to_owned()), ("the ONNX file's weights", external_path(onnx))];
        if Summary::read(onnx).is_ok_and(|summary| summary.producer_name == env!("CARGO_PKG_NAME")) {
            self.ours.extend(all.iter().map(|(_, path)| path.clone()));
        }
        self.written.extend(all);
    }

    pub fn other(&mut self, what: &'static str, path: &Path) {
        self.written.push((what, path.to_owned()));
    }

    pub fn reads(&mut self, file: impl Into<PathBuf>) {
        self.files.push(file.into());
    }

    /// A tokenizer, which may have its settings beside it.
    pub fn reads_tokenizer(&mut self, given: &Path) {
        let file = tokenizer_in(given);
        self.files.push(file.with_file_name("tokenizer_config.json"));
        self.files.push(file);
    }

    /// A model's folder: everything in it, and what links in it and one level below lead to.
    pub fn reads_folder(&mut self, folder: &Path) {
        let entries =
            |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        for path in entries(folder) {
            let below = entries(&path).filter(|path| path.is_symlink());
            self.files.extend(below);
            if path.is_symlink() {
                self.files.push(path);
            }
        }
        self.folder = Some(folder.to_owned());
    }

    /// Whether all of it can be written, as far as that can be known before.
    pub fn check(&self) -> Result<(), LoadError> {
        let mut places: Vec<(&str, PathBuf)> = Vec::new();
        for (what, path) in &self.written {
            let place = place(path)?;
            if let Some((other, _)) = places.iter().find(|(_, known)| *known == place) {
                return Err(at(path, format!("{other} and {what} would be one file; give them different names")));
            }
            self.spares(path, &place)?;
            places.push((what, place));
        }
        Ok(())
    }

    /// Whether nothing is lost by writing here.
    fn spares(&self, path: &Path, place: &Path) -> Result<(), LoadError> {
        let there = path.canonicalize().unwrap_or_else(|_| place.to_owned());
        let is_read = |file: &PathBuf| file.canonicalize().is_ok_and(|file| file == there || file == place);
        if self.files.iter().any(is_read) {
            return Err(at(path, "the output would replace what it is made from; choose another name"));
        }
        let Some(folder) = self.folder.as_ref().and_then(|folder| folder.canonicalize().ok()) else { return Ok(()) };
        if !place.starts_with(folder) {
            return Ok(());
        }
        let name = place.file_name().unwrap_or_default().to_string_lossy();
        if MODEL_FILES.contains(&&*name) || WEIGHTS.iter().any(|ending| name.ends_with(ending)) {
            return Err(at(path, "in the model's folder this name is the model's own; choose another"));
        }
        match path.symlink_metadata().is_ok() && !self.ours.iter().any(|known| known == path) {
            true => Err(at(path, "the output would replace a file of the model's folder; choose another name")),
            false => Ok(()),
        }
    }
}

/// Where a file of this name would lie, if one can.
fn place(path: &Path) -> Result<PathBuf, LoadError> {
    let text = path.as_os_str().as_encoded_bytes();
    let Some(name) = path.file_name().filter(|_| !path.is_dir() && !text.ends_with(b"/")) else {
        return Err(at(path, "a folder; name the file to write"));
    };
    if name.len() > NAME_BYTES_MAX {
        let words = format!("its name would have {} bytes, and {NAME_BYTES_MAX} are allowed", name.len());
        return Err(at(path, words));
    }
    let folder = folder_of(path);
    if !folder.is_dir() {
        return Err(at(folder, "no such folder to write into"));
    }
    if path.symlink_metadata().is_ok() && !path.is_file() {
        return Err(at(path, "the output must be a file, and this is none"));
    }
    Ok(folder.canonicalize().map_err(|error| at(folder, error))?.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::sample::TemporaryFolder;

    fn error(outputs: &Outputs) -> String {
        outputs.check().expect_err("something is lost").0
    }

    #[test]
    fn nothing_that_is_read_is_written() {
        let folder = TemporaryFolder::new();
        let model = folder.path().join("m");
        std::fs::create_dir_all(model.join("1_Pooling")).unwrap();
        for file in ["config.json", "tokenizer.json", "model.safetensors", "README.md", "1_Pooling/config.json"] {
            std::fs::write(model.join(file), "{}").unwrap();
        }
        std::fs::write(folder.path().join("shared.weights"), "w").unwrap();
        std::os::unix::fs::symlink("../shared.weights", model.join("linked.safetensors")).unwrap();
        let engine = |path: PathBuf| {
            let mut outputs = Outputs::default();
            outputs.reads_folder(&model);
            outputs.engine(&path);
            outputs
        };
        for wrong in
            ["model.safetensors", "config", "tokenizer", "README.md", "1_Pooling/config", "modules", "../m/config"]
        {
            let error = error(&engine(model.join(wrong)));
            assert!(error.contains("/m/") && error.contains("choose another"), "{wrong}: {error}");
        }
        assert!(error(&engine(folder.path().join("shared.weights"))).contains("made from"));
        assert_eq!(engine(model.join("new.engine")).check(), Ok(()));
        assert_eq!(engine(folder.path().join("config")).check(), Ok(()));

        let mut outputs = Outputs::default();
        let data = folder.path().join("w.data");
        std::fs::write(&data, "w").unwrap();
        outputs.reads(&data);
        outputs.engine(&data);
        assert!(error(&outputs).contains("w.data: the output would replace"));
    }

    #[test]
    fn no_two_outputs_are_one_file() {
        let folder = TemporaryFolder::new();
        let engine = folder.path().join("o.engine");
        let cases = [("o.engine", "the engine and the ONNX file"), ("o.engine.json", "manifest and the ONNX file")];
        for (onnx, words) in cases {
            let mut outputs = Outputs::default();
            outputs.engine(&engine);
            outputs.onnx(&folder.path().join(".").join(onnx));
            assert!(error(&outputs).contains(words), "{}", error(&outputs));
        }
        let mut outputs = Outputs::default();
        outputs.engine(&engine);
        outputs.other("the timing cache", &engine);
        assert!(error(&outputs).contains("the engine and the timing cache would be one file"));
    }

    #[test]
    fn names_that_cannot_be_written_are_known_before() {
        let folder = TemporaryFolder::new();
        let of = |name: &str| {
            let mut outputs = Outputs::default();
            outputs.engine(&folder.path().join(name));
            error(&outputs)
        };
        assert!(of(&"n".repeat(245)).contains("260 bytes, and 255 are allowed"));
        assert!(of("none/").contains("name the file to write"));
        assert!(of("none/a.engine").contains("no such folder"));
        assert!(of(".").contains("a folder"));
    }

    #[test]
    fn only_regular_files_of_bounded_size_are_read() {
        let folder = TemporaryFolder::new();
        let path = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status().expect("there is mkfifo");
        assert!(made.success());
        assert!(read_regular(&path, 10).unwrap_err().to_string().contains("a pipe, a socket or a device"));
        assert!(read_regular(folder.path(), 10).unwrap_err().to_string().contains("a folder, where a file"));
        let file = folder.path().join("file");
        std::fs::write(&file, "ten bytes!").unwrap();
        assert_eq!(read_regular(&file, 10).unwrap(), b"ten bytes!");
        assert!(read_regular(&file, 9).unwrap_err().to_string().contains("more than 9 bytes"));
        assert_eq!(open_regular(&folder.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
