//! The small files that the user names and that are read once at start: the configuration itself and the file of keys.
//!
//! Either may well be a pipe: `--config <(…)`, `--api-keys-file <(vault read …)`, `/dev/stdin`. So a pipe is read to its end as
//! a file is, but a start may not hang on one that nobody writes into, nor read a device that has no end. Files of models are
//! `model::files`' affair, which takes no pipe: they are opened more than once, and mapped.
//!
//! Invariant: [`read`] returns within [`PATIENCE`] whatever the path leads to, with at most the bytes that were asked for.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use crate::log;

/// For a pipe's end. A secret store answers within a few seconds; who has waited ten for a forgotten writer wants to be told.
const PATIENCE: Duration = Duration::from_secs(10);

/// After this it is said what is waited for.
const SILENCE: Duration = Duration::from_secs(1);

/// The whole content of a file or pipe.
///
/// # Errors
/// What is wrong with it, as the end of a sentence that begins with its name.
pub(super) fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>, String> {
    read_within(path, bytes_max, PATIENCE)
}

fn read_within(path: &Path, bytes_max: u64, patience: Duration) -> Result<Vec<u8>, String> {
    let unreadable = |error: io::Error| format!("cannot be read: {error}");
    let kind = path.metadata().map_err(unreadable)?.file_type();
    if kind.is_dir() {
        return Err("is a folder, where a file is needed".to_owned());
    }
    if kind.is_socket() || kind.is_block_device() {
        return Err("is a socket or a disk, where a file is needed".to_owned());
    }
    let bytes = match kind.is_file() {
        true => read_to_end(path, bytes_max).map_err(unreadable)?,
        false => read_pipe(path, bytes_max, patience)?.map_err(unreadable)?,
    };
    if bytes.len() as u64 > bytes_max {
        return Err(format!("has more than {bytes_max} bytes, which no file of this kind has"));
    }
    Ok(bytes)
}

/// One byte more than there may be, so that it is seen whether there are more: a file that is cut says something else.
fn read_to_end(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A thread opens and reads, as both may block: without a writer the one, with an idle writer the other. Where it is given up,
/// it is left behind blocked; the process ends with the error.
fn read_pipe(path: &Path, bytes_max: u64, patience: Duration) -> Result<io::Result<Vec<u8>>, String> {
    let (sender, receiver) = sync_channel(1);
    let own = path.to_owned();
    // Nobody receives what comes too late.
    let work = move || drop(sender.send(read_to_end(&own, bytes_max)));
    let spawned = std::thread::Builder::new().name("pipe".into()).spawn(work);
    spawned.map_err(|error| format!("cannot be read: a thread cannot be started: {error}"))?;
    let silence = SILENCE.min(patience);
    match receiver.recv_timeout(silence) {
        Ok(read) => return Ok(read),
        Err(RecvTimeoutError::Timeout) => {}
        Err(RecvTimeoutError::Disconnected) => return Err("cannot be read".to_owned()),
    }
    log::info(format_args!("waiting for the end of what is written into {}", path.display()));
    receiver.recv_timeout(patience - silence).map_err(|_| {
        let seconds = patience.as_secs_f32();
        format!("is a pipe or a device, and within {seconds} s nobody has written into it and closed it; start its writer first, or name a file")
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::model::sample::TemporaryFolder;

    const SHORT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_pipe_is_read_to_its_end_and_not_waited_for_without_one() {
        let folder = TemporaryFolder::new();
        let pipe = |name: &str| {
            let path = folder.path().join(name);
            assert!(Command::new("mkfifo").arg(&path).status().expect("there is mkfifo").success());
            path
        };
        let error = read_within(&pipe("forgotten"), 10, SHORT).unwrap_err();
        assert!(error.contains("within 0.05 s nobody has written into it"), "{error}");
        // Of a pipe each, as one's readers and writers may meet in any order.
        let written = |name: &str, text: &'static str| {
            let path = pipe(name);
            let own = path.clone();
            let writer = std::thread::spawn(move || std::fs::write(own, text));
            let read = read_within(&path, 10, LONG);
            writer.join().unwrap().unwrap();
            read
        };
        assert_eq!(written("whole", "whole\n").unwrap(), b"whole\n");
        assert!(written("long", "much too long\n").unwrap_err().contains("more than 10 bytes"));
    }

    #[test]
    fn a_writer_that_does_not_end_is_not_waited_for() {
        let folder = TemporaryFolder::new();
        let path = folder.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&path).status().expect("there is mkfifo").success());
        // Opened for both, so that opening does not wait.
        let writer = File::options().read(true).write(true).open(&path).unwrap();
        io::Write::write_all(&mut &writer, b"half").unwrap();
        assert!(read_within(&path, 10, SHORT).unwrap_err().contains("and closed it"));
    }

    #[test]
    fn what_is_no_file_is_refused_or_bounded() {
        let folder = TemporaryFolder::new();
        let error = |path: &Path| read_within(path, 10, LONG).unwrap_err();
        assert_eq!(error(folder.path()), "is a folder, where a file is needed");
        assert!(error(Path::new("/dev/zero")).contains("more than 10 bytes"));
        assert_eq!(read_within(Path::new("/dev/null"), 10, LONG).unwrap(), b"");
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(error(&socket).contains("is a socket"));
        let link = folder.path().join("link");
        std::fs::write(folder.path().join("secret"), "ten bytes!").unwrap();
        std::os::unix::fs::symlink("secret", &link).unwrap();
        assert_eq!(read_within(&link, 10, LONG).unwrap(), b"ten bytes!");
        assert!(read_within(&link, 9, LONG).unwrap_err().contains("more than 9 bytes"));
        assert!(error(&folder.path().join("none")).starts_with("cannot be read: No such file"));
    }
}
