//! The fuzz target `config`: any text is a configuration or is refused with a place and a sentence for each problem, and what
//! was read is written out and read back equal.
//!
//! Not part of the server: it panics on any disagreement.

use std::fmt::Write;

use super::models::SECTIONS;
use super::{Key, ModelSettings, Overrides, Problems, Settings, TABLE, parse};
use crate::journal::Target;
use crate::model::Pooling;

const FILE: &str = "fuzz.yaml";

/// The file's text up to the first NUL, then lines of variables (`REACTRT_SERVER_PORT=1`) and flags (`--server.port=1`).
/// `None` if it is not UTF-8.
///
/// # Panics
/// When a problem names no place in the input, or settings are read back as others.
pub fn config(input: &[u8]) -> Option<Result<Settings, Problems>> {
    let input = std::str::from_utf8(input).ok()?;
    let (text, lines) = input.split_once('\0').unwrap_or((input, ""));
    let overrides = overrides(lines);
    let read = parse(FILE, text, &overrides);
    match &read {
        Ok(settings) => check_settings(settings),
        Err(problems) => check_problems(problems, text, &overrides),
    }
    Some(read)
}

fn overrides(lines: &str) -> Overrides {
    let mut overrides = Overrides::default();
    for (name, value) in lines.lines().filter_map(|line| line.split_once('=')) {
        match name.strip_prefix("--") {
            Some(flag) => overrides.flags.push((flag.to_owned(), value.to_owned())),
            None => overrides.environment.push((name.to_owned(), value.to_owned())),
        }
    }
    overrides
}

fn check_problems(problems: &Problems, text: &str, overrides: &Overrides) {
    assert!(!problems.0.is_empty(), "refused without a problem");
    let lines = 1 + text.matches(['\n', '\r']).count();
    for problem in &problems.0 {
        let known = match problem.place.strip_prefix(FILE) {
            // Numbers that clash although none of them was given do so on the whole.
            Some("") => true,
            Some(line) => line[1..].parse().is_ok_and(|line: usize| (1..=lines).contains(&line)),
            None => {
                let flag = |(path, _): &(String, String)| path.replace(['.', '_'], "-");
                let flags =
                    overrides.flags.iter().map(flag).chain(overrides.flags.iter().map(|(path, _)| path.clone()));
                let place = problem.place.strip_prefix("--");
                place.is_some_and(|place| flags.into_iter().any(|flag| flag.ends_with(place)))
                    || overrides.environment.iter().any(|(name, _)| *name == problem.place)
            }
        };
        assert!(known, "there is no such place: {problem}");
        assert!(
            !problem.message.is_empty() && !problem.message.contains(char::is_control),
            "not a sentence: {problem}"
        );
    }
}

fn check_settings(settings: &Settings) {
    let text = written(settings);
    let again = parse(FILE, &text, &Overrides::default()).unwrap_or_else(|problems| panic!("{problems}\n{text}"));
    assert_eq!(without_places(again), without_places(settings.clone()), "{text}");
}

/// Models by section, without their lines.
fn without_places(mut settings: Settings) -> Settings {
    settings.models.iter_mut().for_each(|model| model.place.clear());
    settings.models.sort_by_key(|model| SECTIONS.iter().position(|(_, task)| *task == model.task));
    settings
}

/// The settings as a file that says everything.
fn written(settings: &Settings) -> String {
    let mut text = String::new();
    let mut section = "";
    // What stands in no section goes first.
    let (tops, others): (Vec<&Key>, Vec<&Key>) =
        TABLE.iter().filter(|key| key.stands_for.is_none()).partition(|key| key.section().is_empty());
    for key in tops.into_iter().chain(others) {
        if key.section() != section {
            section = key.section();
            let _ = writeln!(text, "{section}:");
        }
        let list =
            |texts: &[String]| format!("[{}]", texts.iter().map(|text| quoted(text)).collect::<Vec<_>>().join(", "));
        let value = match (key.path, &settings.server.access_log) {
            ("server.host" | "server.api_keys_file" | "engines", _) => quoted(&key.show(settings)),
            ("server.access_log", Some(Target::File(path))) => quoted(&path.display().to_string()),
            ("server.cors_origins", _) => list(&settings.server.cors_origins),
            // Which are never shown.
            ("server.api_keys", _) => list(settings.server.api_keys.list()),
            (_, _) => key.show(settings),
        };
        let indent = if section.is_empty() { "" } else { "  " };
        let _ = writeln!(text, "{indent}{}: {value}", key.name());
    }
    for (section, task) in SECTIONS {
        let _ = writeln!(text, "{section}:");
        for (index, model) in settings.models.iter().filter(|model| model.task == task).enumerate() {
            let _ = writeln!(text, "  entry {index}:");
            write_model(&mut text, model);
        }
    }
    text
}

fn write_model(text: &mut String, model: &ModelSettings) {
    let mut line = |key: &str, value: Option<String>| {
        if let Some(value) = value {
            let _ = writeln!(text, "    {key}: {value}");
        }
    };
    let list = |values: &[String]| format!("[{}]", values.join(", "));
    line("model_name", Some(quoted(&model.name)));
    line("model_path", Some(quoted(&model.model_path)));
    line("tokenizer_path", model.tokenizer_path.as_deref().map(quoted));
    line("output", model.output.as_deref().map(quoted));
    line("reuse_dynamic_buffer", Some(model.reuse_dynamic_buffer.to_string()));
    line("cuda_graph_list", Some(format!("{:?}", model.cuda_graph_list)));
    line("max_length", model.max_length.map(|length| length.to_string()));
    let pooling = model.pooling.map(|pooling| match pooling {
        Pooling::Cls => "cls".to_owned(),
        Pooling::Mean => "mean".to_owned(),
    });
    line("pooling", pooling);
    line("normalize", model.normalize.map(|normalize| normalize.to_string()));
    let labels = model.labels.as_ref().map(|labels| labels.iter().map(|label| quoted(label)).collect::<Vec<_>>());
    line("labels", labels.map(|labels| list(&labels)));
    let prompts = model.prompts.as_ref().map(|prompts| {
        let prompt = |(name, text): &(String, String)| format!("? {} : {}", quoted(name), quoted(text));
        format!("{{{}}}", prompts.iter().map(prompt).collect::<Vec<_>>().join(", "))
    });
    line("prompts", prompts);
    line("default_prompt", model.default_prompt.as_deref().map(quoted));
}

/// A text in double quotes, with everything but plain letters and signs escaped.
fn quoted(text: &str) -> String {
    let mut quoted = "\"".to_owned();
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            ' '..='~' => quoted.push(letter),
            _ => {
                let _ = write!(quoted, "\\U{:08x}", u32::from(letter));
            }
        }
    }
    quoted.push('"');
    quoted
}
