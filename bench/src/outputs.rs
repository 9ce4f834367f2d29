//! The files that a command leaves behind.
//!
//! Owns where they go: that is checked before a run, which may take an hour. Invariants: no output takes the place of another or
//! of an input, and a file appears under its name when it is complete (what is no plain file, such as a pipe, is written as it is).

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use crate::record::Record;
use crate::report;

/// Where a record goes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outputs<'a> {
    pub json: Option<&'a Path>,
    pub html: Option<&'a Path>,
    /// With several runs one file each, numbered.
    pub hdr: Option<&'a Path>,
    /// Runs at most.
    pub run_count: usize,
}

/// A file that is read, with the flag that names it.
pub type Input<'a> = (&'static str, &'a Path);

impl Outputs<'_> {
    /// # Errors
    /// What could not be written after a run, or would take the place of something else.
    pub fn check(&self, inputs: &[Input<'_>]) -> Result<(), String> {
        let mut taken: Vec<(&str, PathBuf)> = Vec::new();
        // That an input is missing is for its reader to say.
        taken.extend(inputs.iter().filter_map(|(flag, file)| Some((*flag, fs::canonicalize(file).ok()?))));
        for (flag, file) in self.all() {
            let Some(place) = place(&file)? else { continue };
            if let Some((other, _)) = taken.iter().find(|(_, path)| *path == place) {
                return Err(format!("{flag} {}: would replace the file of {other}; name another", file.display()));
            }
            taken.push((flag, place));
        }
        for (_, file) in self.all() {
            try_place(&file).map_err(|error| format!("{}: cannot be written: {error}", file.display()))?;
        }
        Ok(())
    }

    fn all(&self) -> Vec<(&'static str, PathBuf)> {
        let named = [("--json", self.json), ("--html", self.html), ("--hdr", self.hdr)];
        let mut all: Vec<_> = named.into_iter().filter_map(|(flag, file)| Some((flag, file?.to_owned()))).collect();
        if let Some(file) = self.hdr
            && self.run_count > 1
        {
            all.extend((1..=self.run_count).map(|number| ("--hdr", numbered(file, number))));
        }
        all
    }

    /// # Errors
    /// What the system says, with the file's name.
    pub fn write_json(&self, record: &Record) -> Result<(), String> {
        let Some(file) = self.json else { return Ok(()) };
        let text = serde_json::to_string_pretty(record).map_err(|error| format!("the record: {error}"))?;
        write(file, &(text + "\n"))
    }

    /// # Errors
    /// As [`Outputs::write_json`].
    pub fn write_html(&self, records: &[(String, Record)]) -> Result<(), String> {
        self.html.map_or(Ok(()), |file| write(file, &report::html(records)))
    }

    /// # Errors
    /// As [`Outputs::write_json`].
    pub fn write_logs(&self, record: &Record) -> Result<(), String> {
        let Some(file) = self.hdr else { return Ok(()) };
        let latencies = record.runs.iter().filter_map(|run| run.latency.as_ref());
        let logs: Vec<&str> = latencies.map(|latency| latency.interval_log.as_str()).collect();
        for (index, log) in logs.iter().enumerate() {
            write(&if logs.len() == 1 { file.to_owned() } else { numbered(file, index + 1) }, log)?;
        }
        Ok(())
    }
}

/// `out.hlog` becomes `out-3.hlog`.
fn numbered(file: &Path, number: usize) -> PathBuf {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let extension = file.extension().map(|extension| format!(".{}", extension.to_string_lossy())).unwrap_or_default();
    file.with_file_name(format!("{stem}-{number}{extension}"))
}

/// The file's own name, links followed, whether there is one yet or not; `None` for what is no plain file.
fn place(file: &Path) -> Result<Option<PathBuf>, String> {
    match fs::metadata(file) {
        Ok(found) if found.is_dir() => Err(format!("{}: is a folder; name a file", file.display())),
        Ok(found) if !found.is_file() => Ok(None),
        Ok(_) => fs::canonicalize(file).map(Some).map_err(|error| format!("{}: {error}", file.display())),
        Err(_) => {
            let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let name = file.file_name().ok_or_else(|| format!("{}: is no name of a file", file.display()))?;
            match fs::canonicalize(folder) {
                Ok(folder) if folder.is_dir() => Ok(Some(folder.join(name))),
                Ok(_) | Err(_) => Err(format!("{}: there is no folder {}", file.display(), folder.display())),
            }
        }
    }
}

/// Beside the file, so that renaming it moves no bytes.
fn unfinished(place: &Path) -> PathBuf {
    place.with_file_name(format!(".reactrt-bench-{}.part", std::process::id()))
}

/// Does what writing will do, and undoes it.
fn try_place(file: &Path) -> io::Result<()> {
    let Some(place) = place(file).map_err(io::Error::other)? else { return Ok(()) };
    if place.exists() {
        OpenOptions::new().write(true).open(&place)?;
    }
    // The name itself may be what the file system refuses.
    if let Err(error) = fs::symlink_metadata(&place)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let unfinished = unfinished(&place);
    fs::write(&unfinished, "").and_then(|()| fs::remove_file(&unfinished))
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    let written = match place(file)? {
        None => fs::write(file, text),
        Some(place) => replace(&place, text),
    };
    written.map_err(|error| format!("{}: {error}", file.display()))
}

fn replace(place: &Path, text: &str) -> io::Result<()> {
    let unfinished = unfinished(place);
    let written = fs::write(&unfinished, text).and_then(|()| {
        if let Ok(before) = fs::metadata(place) {
            fs::set_permissions(&unfinished, before.permissions())?;
        }
        fs::rename(&unfinished, place)
    });
    if written.is_err() {
        // The first error is the one to tell.
        let _ = fs::remove_file(&unfinished);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("reactrt-bench-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn no_output_replaces_another_file() {
        let folder = folder("outputs");
        let (a, b, texts) = (folder.join("a"), folder.join("b"), folder.join("texts"));
        fs::write(&texts, "one\n").unwrap();
        let link = folder.join("link");
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(&texts, &link).unwrap();
        let check = |json: &Path, html: &Path, hdr: &Path, run_count| {
            let outputs = Outputs { json: Some(json), html: Some(html), hdr: Some(hdr), run_count };
            outputs.check(&[("--texts", &texts)])
        };
        let (other, one) = (folder.join("other.hlog"), folder.join("other-2.hlog"));
        assert_eq!(check(&a, &b, &other, 1), Ok(()));
        assert!(check(&a, &folder.join(".").join("a"), &b, 1).unwrap_err().contains("replace the file of --json"));
        assert!(check(&link, &a, &b, 1).unwrap_err().contains("replace the file of --texts"));
        assert_eq!(check(&one, &a, &other, 1), Ok(()));
        assert!(check(&one, &a, &other, 2).unwrap_err().contains("replace the file of --json"));
        assert!(check(&folder, &a, &b, 1).unwrap_err().contains("is a folder"));
        assert!(check(&texts.join("x"), &a, &b, 1).unwrap_err().contains("there is no folder"));
        let long = folder.join("x".repeat(300));
        assert!(check(&long, &a, &b, 1).unwrap_err().contains("cannot be written"));
        let mut left: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["link", "texts"], "a check leaves nothing behind");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_and_a_link_followed() {
        let folder = folder("replaced");
        let (file, link) = (folder.join("file"), folder.join("link"));
        fs::write(&file, "before").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write(&link, "after").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "after");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
        fs::remove_dir_all(&folder).unwrap();
    }
}
