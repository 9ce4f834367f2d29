//! Rules of the repository that a reader relies on, checked: where `unsafe` is, who may use whom, what the top level holds,
//! and that the README names the commands that there are.

#[path = "common/command.rs"]
mod command;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One more file here is a visible decision.
const UNSAFE_FILES: &[&str] = &[
    "bench/tests/allocation.rs",
    "src/device/cpu/encoder.rs",
    "src/device/cpu/kernels.rs",
    "src/device/cpu/matrix.rs",
    "src/device/cpu/product.rs",
    "src/device/cpu/team.rs",
    "src/device/cuda.rs",
    "src/device/cuda/driver.rs",
    "src/device/gpu/tests/fake.rs",
    "src/device/tensorrt.rs",
    "src/device/tensorrt/builder.rs",
    "src/device/tensorrt/context.rs",
    "src/device/tensorrt/library.rs",
    "src/device/tensorrt/logger.rs",
    "src/device/tensorrt/machine.rs",
    "src/device/tensorrt/runtime.rs",
    "src/model/weights.rs",
    "src/serve.rs",
    "tests/allocation.rs",
    "tests/api_allocation.rs",
    "tests/faults.rs",
    "tests/plan_allocation.rs",
];

/// What a room may not name, and why not.
const NOT_FOR: &[(&str, &[&str], &str)] = &[
    ("src/http", &["crate::", "mio::", "std::net", "std::time::Instant"], "http knows the wire alone"),
    ("src/api", &["mio::", "std::net", "std::thread", "Instant", "crate::reactor", "crate::serve"], "api is pure"),
    ("src/plan", &["mio::", "std::net", "std::thread", "Instant", "crate::reactor"], "plan is a function"),
    ("src/device", &["mio::", "std::net", "crate::reactor", "crate::http", "crate::api"], "devices know no requests"),
    ("src/tokenize", &["mio::", "std::net", "crate::reactor", "crate::http"], "workers know no connections"),
    ("src/model", &["tensorrt_sys", "libloading", "cudarc", "cxx::"], "only src/device knows GPU libraries"),
    ("src/reactor/mod.rs", &["mio::"], "only reactor/sockets.rs knows mio"),
    ("src/reactor/jobs.rs", &["mio::"], "only reactor/sockets.rs knows mio"),
    ("src/reactor/connections.rs", &["mio::"], "only reactor/sockets.rs knows mio"),
    ("src/serve", &["mio::"], "only reactor/sockets.rs knows mio"),
];

const TOP_LEVEL: &[&str] =
    &["Cargo.lock", "Cargo.toml", "LICENSE", "README.md", "bench", "configs", "engines", "fuzz", "src", "tests"];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Every file below `folder` with this extension, relative to the root.
fn files(folder: &str, extension: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![root().join(folder)];
    while let Some(path) = open.pop() {
        if path.is_dir() {
            let name = path.file_name().unwrap_or_default().to_owned();
            if name == "target" {
                continue;
            }
            open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path.strip_prefix(root()).unwrap().display().to_string());
        }
    }
    found.sort();
    found
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(root().join(&path)).unwrap_or_else(|error| panic!("{}: {error}", path.as_ref().display()))
}

/// The file without comments and string literals, near enough for looking for words.
fn code(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

#[test]
fn unsafe_code_is_where_the_list_says() {
    let found: BTreeSet<String> = ["src", "tests", "bench"]
        .iter()
        .flat_map(|folder| files(folder, "rs"))
        .filter(|path| path != "tests/tidy.rs" && code(&read(path)).contains("unsafe {"))
        .collect();
    let listed: BTreeSet<String> = UNSAFE_FILES.iter().map(|path| path.to_string()).collect();
    assert_eq!(found, listed);
    for path in &found {
        let text = read(path);
        let (blocks, reasons) = (code(&text).matches("unsafe {").count(), text.matches("// SAFETY:").count());
        assert!(reasons > 0 && reasons * 3 >= blocks, "{path}: {blocks} unsafe blocks, {reasons} reasons");
    }
}

#[test]
fn rooms_name_only_what_they_may() {
    for (room, words, reason) in NOT_FOR {
        let paths = if room.ends_with(".rs") { vec![room.to_string()] } else { files(room, "rs") };
        assert!(!paths.is_empty(), "{room} is gone; is this rule?");
        for path in paths {
            // A room may name itself.
            let text = code(&read(&path)).replace(&format!("crate::{}", room.trim_start_matches("src/")), "");
            for word in *words {
                assert!(!text.contains(word), "{path} names {word}: {reason}");
            }
        }
    }
}

#[test]
fn every_module_says_what_it_owns() {
    for path in files("src", "rs") {
        assert!(read(&path).starts_with("//!"), "{path} has no head comment");
    }
}

#[test]
fn dependencies_are_pinned() {
    for manifest in ["Cargo.toml", "fuzz/Cargo.toml"] {
        for line in read(manifest).lines().filter(|line| line.contains("version = \"") || line.contains(" = \"=")) {
            let own = line.starts_with("version") || line.starts_with("rust-version");
            assert!(own || line.contains("\"="), "{manifest}: not pinned: {line}");
        }
    }
}

#[test]
fn the_top_level_is_the_owners_card() {
    let output = Command::new("git").args(["ls-files"]).current_dir(root()).output().expect("git runs");
    let listed = String::from_utf8(output.stdout).unwrap();
    let found: BTreeSet<&str> =
        listed.lines().map(|path| path.split('/').next().unwrap()).filter(|name| !name.starts_with('.')).collect();
    assert_eq!(found, TOP_LEVEL.iter().copied().collect());
}

#[test]
fn the_readme_names_every_command_and_no_other() {
    let output = command::reactrt().arg("--help").output().expect("the binary runs");
    let help = String::from_utf8(output.stdout).unwrap();
    let section = help.split("Commands:").nth(1).expect("--help lists commands").split("\n\n").next().unwrap();
    let commands: BTreeSet<&str> =
        section.lines().filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").collect();
    let readme = read("README.md");
    let listed: BTreeSet<&str> =
        readme.lines().filter_map(|line| line.strip_prefix("| `reactrt ")?.split(['`', ' ']).next()).collect();
    assert_eq!(listed, commands);
}

#[test]
fn the_wire_table_has_its_rows_each_under_its_own_name() {
    let table = read("tests/wire/table.txt");
    let names: Vec<&str> = table.lines().filter_map(|line| line.strip_prefix("= ")).collect();
    assert!(names.len() >= 150, "{} rows", names.len());
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "two rows have one name");
}

#[test]
fn every_configuration_loads() {
    for path in files("configs", "yaml") {
        let output = command::reactrt().args(["check", &path]).current_dir(root()).output().expect("the binary runs");
        // The reference has everything but models.
        let is_reference = path.ends_with("configs/config.yaml");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.success(), !is_reference, "{path}: {said}");
        assert!(
            !is_reference || said.lines().count() == 2 && said.contains("there is no model in it"),
            "{path}: {said}"
        );
    }
}
