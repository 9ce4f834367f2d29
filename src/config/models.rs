//! The three sections of models, as the old server's file has them, and the keys of ours besides.
//!
//! A section maps a name to an entry; the entry's `model_name` is what routes are called by. Nothing here looks at a disk:
//! whether a path exists is for whoever loads the model.

use std::collections::BTreeMap;

use super::ModelSettings;
use super::list;
use super::read::{Origin, Reader, did_you_mean};
use super::table::{Switch, Text, Whole, expected, path};
use super::tree::{Node, Value, Word};
use crate::model::{Pooling, Task};

pub(super) const SECTIONS: [(&str, Task); 3] =
    [("embedding_models", Task::Embedding), ("reranking_models", Task::Reranking), ("nli_models", Task::Nli)];

const KEYS: [&str; 12] = [
    "model_name",
    "model_path",
    "tokenizer_path",
    "output",
    "reuse_dynamic_buffer",
    "cuda_graph_list",
    "pooling",
    "normalize",
    "max_length",
    "labels",
    "prompts",
    "default_prompt",
];

/// Routes carry the name in one line.
const NAME_BYTES_MAX: usize = 256;
const TOKENS_MAX: u64 = 1 << 20;
const BATCH_MAX: u64 = 65_536;

impl Reader<'_> {
    pub(super) fn read_models(&mut self, section: &str, task: Task, node: &Node) {
        let Some(entries) = self.entries(node, section) else { return };
        for (word, node) in entries {
            if let Some((model, line)) = self.read_model(section, task, word, node) {
                self.add_model(model, line);
            }
        }
    }

    /// Adds a model unless its name is taken. Names share one space, as `/v1` looks models up by name alone.
    fn add_model(&mut self, model: ModelSettings, line: usize) {
        match self.settings.models.iter().find(|other| other.name == model.name) {
            Some(other) => {
                let message = format!("the model name {:?} is taken already, at {}", model.name, other.place);
                self.wrong(line, message);
            }
            None => self.settings.models.push(model),
        }
    }

    /// The entry and the line of its name.
    fn read_model(&mut self, section: &str, task: Task, word: &Word, node: &Node) -> Option<(ModelSettings, usize)> {
        let what = format!("{section}.{}", word.text.escape_debug());
        let place = self.place(&Origin::File { line: word.line });
        let mut model = ModelSettings::new(task, &word.text, "", &place);
        let mut name_line = word.line;
        for (key, value) in self.entries(node, &what)? {
            if key.text == "model_name" {
                name_line = key.line;
            }
            if !KEYS.contains(&key.text.as_str()) {
                let nearest = did_you_mean(&key.text, KEYS.iter().map(|key| (*key).to_owned()));
                self.wrong(key.line, format!("unknown key {:?} in {what}{nearest}", key.text));
            } else if let Err(message) = set(&mut model, &key.text, value) {
                self.wrong(value.line, format!("{what}.{}: {message}", key.text));
            }
        }
        if !matches!(&node.value, Value::Map(entries) if entries.iter().any(|(key, _)| key.text == "model_path")) {
            self.wrong(word.line, format!("{what} has no model_path"));
        }
        if model.name.is_empty() || model.name.len() > NAME_BYTES_MAX || model.name.contains(char::is_control) {
            let message = format!("{what}: a model's name has 1 to {NAME_BYTES_MAX} bytes and no control characters");
            self.wrong(name_line, message);
        }
        self.check_prompts(&model, &what, word.line);
        Some((model, name_line))
    }

    fn check_prompts(&mut self, model: &ModelSettings, what: &str, line: usize) {
        // Without prompts here the model's own files may have the name.
        if let (Some(name), Some(prompts)) = (&model.default_prompt, &model.prompts)
            && !prompts.iter().any(|(known, _)| known == name)
        {
            let nearest = did_you_mean(name, prompts.iter().map(|(known, _)| known.clone()));
            self.wrong(line, format!("{what}.default_prompt: there is no prompt {name:?}{nearest}"));
        }
    }
}

/// Sets one key of an entry. The error says what was expected and what was found.
fn set(model: &mut ModelSettings, key: &str, node: &Node) -> Result<(), String> {
    match key {
        "model_name" => model.name = Text.read(node)?,
        "model_path" => model.model_path = path(node)?,
        "tokenizer_path" => model.tokenizer_path = optional(node, path)?,
        "output" => model.output = optional(node, |node| Text.read(node))?,
        "reuse_dynamic_buffer" => model.reuse_dynamic_buffer = Switch.read(node)?,
        "cuda_graph_list" => model.cuda_graph_list = optional(node, batch_sizes)?.unwrap_or_default(),
        "max_length" => {
            model.max_length = optional(node, |node| Whole(1..=TOKENS_MAX).number(node))?.map(|n| n as usize)
        }
        "pooling" => {
            only_for(model, Task::Embedding)?;
            model.pooling = optional(node, pooling)?;
        }
        "normalize" => {
            only_for(model, Task::Embedding)?;
            model.normalize = optional(node, |node| Switch.read(node))?;
        }
        "labels" => {
            only_for(model, Task::Nli)?;
            model.labels = optional(node, labels)?;
        }
        "prompts" => {
            only_for(model, Task::Embedding)?;
            model.prompts = optional(node, prompts)?;
        }
        "default_prompt" => {
            only_for(model, Task::Embedding)?;
            model.default_prompt = optional(node, |node| Text.read(node))?;
        }
        other => unreachable!("{other} is in KEYS and has no case here"),
    }
    Ok(())
}

/// `key:` with nothing behind it is as good as no key.
fn optional<T>(node: &Node, read: impl Fn(&Node) -> Result<T, String>) -> Result<Option<T>, String> {
    if node.is_nothing() { Ok(None) } else { read(node).map(Some) }
}

fn only_for(model: &ModelSettings, task: Task) -> Result<(), String> {
    if model.task == task {
        return Ok(());
    }
    let (section, _) = SECTIONS.iter().find(|(_, other)| *other == task).expect("each task has its section");
    Err(format!("this key means something in {section} only"))
}

fn pooling(node: &Node) -> Result<Pooling, String> {
    match Text.read(node).as_deref() {
        Ok("cls") => Ok(Pooling::Cls),
        Ok("mean") => Ok(Pooling::Mean),
        Ok(_) | Err(_) => Err(expected("cls or mean", node)),
    }
}

/// Ascending, each size once, in whatever order they were written.
fn batch_sizes(node: &Node) -> Result<Vec<u32>, String> {
    let Value::List(items) = &node.value else { return Err(expected("a list of batch sizes", node)) };
    let sizes = items.iter().map(|item| Whole(1..=BATCH_MAX).number(item).map(|size| size as u32));
    let mut sizes: Vec<u32> = sizes.collect::<Result<_, _>>()?;
    sizes.sort_unstable();
    sizes.dedup();
    Ok(sizes)
}

fn labels(node: &Node) -> Result<Vec<String>, String> {
    let Value::List(_) = &node.value else { return Err(expected("a list of two or more names", node)) };
    let labels = list::items(node, "label")?;
    if let Some(index) = labels.iter().position(|label| label.text.is_empty()) {
        return Err(format!("label {} is an empty text", index + 1));
    }
    if labels.len() < 2 {
        return Err(format!("expected a list of two or more names, found {}", labels.len()));
    }
    Ok(labels.into_iter().map(|label| label.text).collect())
}

fn prompts(node: &Node) -> Result<Vec<(String, String)>, String> {
    let Value::Map(entries) = &node.value else { return Err(expected("names with their texts", node)) };
    let mut prompts: BTreeMap<&str, ()> = BTreeMap::new();
    let mut list = Vec::new();
    for (name, text) in entries {
        if prompts.insert(&name.text, ()).is_some() {
            return Err(format!("the prompt {:?} is given twice", name.text));
        }
        // A prompt may be empty: "" for documents is common.
        let text = match &text.value {
            Value::Scalar { text: words, .. } if !text.is_nothing() => words.clone(),
            Value::Scalar { .. } | Value::List(_) | Value::Map(_) => {
                let words = expected("a text, which may be empty by \"\"", text);
                return Err(format!("{}: {words}", name.text.escape_debug()));
            }
        };
        list.push((name.text.clone(), text));
    }
    Ok(list)
}
