//! The binary as a command, with none of the settings that the tests' own environment may have for a server.

use std::process::Command;

/// The binary itself.
#[allow(dead_code)] // some tests start it through a shell only
pub fn reactrt() -> Command {
    unset(Command::new(env!("CARGO_BIN_EXE_reactrt")))
}

/// Any program that is going to start it.
pub fn unset(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"REACTRT_") {
            command.env_remove(name);
        }
    }
    command
}
