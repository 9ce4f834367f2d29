//! From a tree, variables and flags to settings, gathering every problem on the way.
//!
//! Layers go over one another in the order in which they are read; for each key its last giver is remembered, so that a
//! clash between two numbers can name the lines of both.

use std::collections::BTreeMap;

use super::models::SECTIONS;
use super::table::{Key, TABLE, expected, word};
use super::tree::{Node, Value, Word};
use super::{Problem, Problems, Settings};

/// Who gave a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    File { line: usize },
    Variable(String),
    Flag(String),
}

pub(super) struct Reader<'a> {
    file: &'a str,
    pub(super) settings: Settings,
    /// By [`Key::path`], old names under the present one.
    pub(super) given: BTreeMap<&'static str, Origin>,
    problems: Vec<Problem>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(file: &'a str, defaults: Settings) -> Reader<'a> {
        Reader { file, settings: defaults, given: BTreeMap::new(), problems: Vec::new() }
    }

    pub(super) fn place(&self, origin: &Origin) -> String {
        match origin {
            Origin::File { line } => format!("{}:{line}", self.file),
            Origin::Variable(name) => name.clone(),
            Origin::Flag(name) => format!("--{name}"),
        }
    }

    pub(super) fn problem(&mut self, origin: Origin, message: String) {
        let place = self.place(&origin);
        self.problems.push(Problem { place, message });
    }

    /// A problem of a line in the file.
    pub(super) fn wrong(&mut self, line: usize, message: String) {
        self.problem(Origin::File { line }, message);
    }

    /// A clash between numbers, placed where one of `paths` was given last; the file as a whole if all are defaults.
    pub(super) fn clash(&mut self, paths: &[&str], message: String) {
        let place = paths.iter().find_map(|path| self.given.get(path)).map(|origin| self.place(origin));
        self.problems.push(Problem { place: place.unwrap_or_else(|| self.file.to_owned()), message });
    }

    pub(super) fn read_file(&mut self, root: &Node) {
        let Some(entries) = self.entries(root, "the file") else { return };
        for (word, node) in entries {
            let top_key = Key::find(&word.text).filter(|key| key.section().is_empty());
            if let Some((_, task)) = SECTIONS.iter().find(|(section, _)| *section == word.text) {
                self.read_models(&word.text, *task, node);
            } else if let Some(key) = top_key {
                self.apply(key, node, Origin::File { line: node.line });
            } else if TABLE.iter().any(|key| key.section() == word.text) {
                self.read_section(&word.text, node);
            } else {
                self.wrong(word.line, unknown_top(&word.text));
            }
        }
    }

    fn read_section(&mut self, section: &str, node: &Node) {
        let Some(entries) = self.entries(node, section) else { return };
        for (word, node) in entries {
            match TABLE.iter().find(|key| key.section() == section && key.name() == word.text) {
                Some(key) => {
                    let twice = key.stands_for.or(Some(key.path)).filter(|path| self.given.contains_key(path));
                    if let Some(path) = twice {
                        let message = format!("{} says the same as {path}, which this file has too", key.path);
                        self.wrong(word.line, message);
                    }
                    self.apply(key, node, Origin::File { line: node.line });
                }
                None => self.wrong(word.line, unknown_in_section(section, &word.text)),
            }
        }
    }

    /// The keys of a mapping, each once; nothing stands for an empty one.
    pub(super) fn entries<'n>(&mut self, node: &'n Node, what: &str) -> Option<Vec<&'n (Word, Node)>> {
        if node.is_nothing() {
            return Some(Vec::new());
        }
        let Value::Map(entries) = &node.value else {
            self.wrong(node.line, format!("{what}: {}", expected("a group of keys", node)));
            return None;
        };
        let mut lines: BTreeMap<&str, usize> = BTreeMap::new();
        let mut once = Vec::new();
        for entry in entries {
            let (word, _) = entry;
            match lines.get(word.text.as_str()) {
                Some(first) => {
                    let message = format!("{:?} is in {what} already, on line {first}", word.text);
                    self.wrong(word.line, message);
                }
                None => {
                    lines.insert(&word.text, word.line);
                    once.push(entry);
                }
            }
        }
        Some(once)
    }

    fn apply(&mut self, key: &'static Key, node: &Node, origin: Origin) {
        let path = key.stands_for.unwrap_or(key.path);
        if key.auto && word(node).as_deref() == Some("auto") {
            // Back to what `Settings::derive` makes of it.
            self.given.remove(path);
            return;
        }
        match (key.set)(&mut self.settings, node) {
            Ok(()) => {
                self.given.insert(path, origin);
            }
            Err(message) => self.problem(origin, format!("{}: {message}", key.path)),
        }
    }

    pub(super) fn read_environment(&mut self, variables: &[(String, String)]) {
        for (name, value) in variables {
            if !name.starts_with("REACTRT_") || is_not_ours(name, value) {
                continue;
            }
            match TABLE.iter().find(|key| key.variable() == *name) {
                // What stands here for bytes that are no text would be another text: a file of another name.
                Some(_) if value.contains(char::REPLACEMENT_CHARACTER) => {
                    self.problem(Origin::Variable(name.clone()), "is not UTF-8 text".to_owned());
                }
                Some(key) => self.apply(key, &Node::bare(value), Origin::Variable(name.clone())),
                None => {
                    let names = TABLE.iter().filter(|key| key.stands_for.is_none()).map(Key::variable);
                    // Without its section, as the flag may be written.
                    let short =
                        TABLE.iter().find(|key| name.strip_prefix("REACTRT_") == Some(&key.name().to_uppercase()));
                    let near = short.map_or_else(
                        || did_you_mean(name, names),
                        |key| format!("; did you mean {:?}?", key.variable()),
                    );
                    let message = format!("unknown variable{near}");
                    self.problem(Origin::Variable(name.clone()), message);
                }
            }
        }
    }

    pub(super) fn read_flags(&mut self, flags: &[(String, String)]) {
        for (path, value) in flags {
            match Key::find(path) {
                Some(key) => self.apply(key, &Node::bare(value), Origin::Flag(key.flag())),
                None => self.problem(Origin::Flag(path.clone()), "unknown flag".to_owned()),
            }
        }
    }

    /// The settings, if nothing is wrong with them.
    pub(super) fn finish(mut self) -> Result<Settings, Problems> {
        self.settings.derive(super::cores(), &self.given);
        // Numbers that were refused would clash with numbers that were not.
        if self.problems.is_empty() {
            self.check();
        }
        if self.problems.is_empty() { Ok(self.settings) } else { Err(Problems(self.problems)) }
    }
}

/// Variables that begin like ours and are not settings: the configuration's own path, which the command line reads, the folder
/// of TensorRT's libraries, which is asked for before there is a configuration (`build`, `inspect`), and what Kubernetes sets in every container for a Service named `reactrt`.
fn is_not_ours(name: &str, value: &str) -> bool {
    let from_kubernetes = name.starts_with("REACTRT_SERVICE_")
        || name.starts_with("REACTRT_PORT_")
        || (name == "REACTRT_PORT" && value.contains("://"));
    matches!(name, "REACTRT_CONFIG" | "REACTRT_TENSORRT_LIBRARIES") || from_kubernetes
}

fn unknown_top(word: &str) -> String {
    // A key that lost its section is worth more than a word that looks alike.
    if let Some(key) = TABLE.iter().find(|key| key.name() == word && !key.section().is_empty()) {
        return format!("unknown key {word:?}; it belongs into the section {:?}", key.section());
    }
    let sections = SECTIONS.iter().map(|(section, _)| (*section).to_owned());
    let keys = TABLE.iter().map(|key| if key.section().is_empty() { key.path } else { key.section() }.to_owned());
    format!("unknown key {word:?}{}", did_you_mean(word, sections.chain(keys)))
}

fn unknown_in_section(section: &str, word: &str) -> String {
    if let Some(key) = TABLE.iter().find(|key| key.name() == word && key.stands_for.is_none()) {
        let place = if key.section().is_empty() { "the top level" } else { key.section() };
        return format!("unknown key {word:?} in {section}; it belongs into {place}");
    }
    let names = TABLE.iter().filter(|key| key.section() == section && key.stands_for.is_none());
    format!("unknown key {word:?} in {section}{}", did_you_mean(word, names.map(|key| key.name().to_owned())))
}

/// No name here is near a longer word.
const WORD_CHARACTERS_MAX: usize = 200;

/// `; did you mean "x"?`, or if nothing is near, what there is.
pub fn did_you_mean(word: &str, known: impl Iterator<Item = String>) -> String {
    let mut known: Vec<String> = known.collect();
    known.dedup();
    // The distance takes memory in the product of the lengths.
    if word.chars().count() > WORD_CHARACTERS_MAX {
        return String::new();
    }
    let near = known.iter().map(|name| (strsim::damerau_levenshtein(word, name), name)).min();
    match near {
        // A third of the letters may differ, and never all of a short word's.
        Some((distance, name)) if distance <= word.chars().count().div_ceil(3) => format!("; did you mean {name:?}?"),
        Some(_) if known.len() <= 16 => {
            // They may be names of the file's own.
            let known: Vec<String> = known.iter().map(|name| name.escape_debug().to_string()).collect();
            format!("; known here: {}", known.join(", "))
        }
        Some(_) | None => String::new(),
    }
}
