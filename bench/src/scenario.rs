//! A scenario file: the flags of `load` as YAML keys, with one group of keys for each target if there are several.
//!
//! A file becomes flags: `rate: 500` is `--rate=500`, so that a key and its flag cannot come to mean different things. What is
//! given on the command line goes over the file; a target's key goes over the same key at the top. Every mistake is one
//! line with the file, the line and, for a word that is no key, the nearest right one.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, FromArgMatches};
use reactrt::config::did_you_mean;
use reactrt::config::tree::{self, Node, Value};

use crate::flags::LoadFlags;

/// Flags of which one replaces the others.
const ALTERNATIVES: &[&[&str]] = &[
    &["rate", "concurrency", "sweep", "sweep-rate", "search-p99"],
    &["words", "texts", "bodies"],
    &["duration", "requests"],
    &["spin", "no-spin"],
];

/// Keys that are not one target's.
const GENERAL: &[&str] = &["rounds", "interleave", "allow-errors", "progress", "json", "html", "hdr"];

/// A key of the file as the flag that it is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Given {
    name: String,
    arguments: Vec<String>,
}

fn command() -> clap::Command {
    LoadFlags::augment_args(clap::Command::new("load").no_binary_name(true))
}

/// The flags of each target, at least one. `words` are those behind `load` on the command line, already found to be right.
///
/// # Errors
/// What is wrong with the file, a line each.
pub fn targets(words: &[OsString]) -> Result<Vec<LoadFlags>, String> {
    let matches = command().try_get_matches_from(words).map_err(|error| error.to_string())?;
    let flags = LoadFlags::from_arg_matches(&matches).map_err(|error| error.to_string())?;
    let Some(file) = &flags.scenario else { return Ok(vec![flags]) };
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    read(file, &text, words, &matches)
}

fn read(file: &Path, text: &str, words: &[OsString], matches: &ArgMatches) -> Result<Vec<LoadFlags>, String> {
    let place = |line: usize, message: &str| format!("{}:{line}: {message}", file.display());
    let root = tree::parse(text).map_err(|(line, message)| place(line, &message))?;
    let mut problems = Vec::new();
    let (common, targets) = read_root(&root, &mut |line, message: String| problems.push(place(line, &message)));
    if !problems.is_empty() {
        return Err(problems.join("\n"));
    }
    let on_line = named(matches);
    let common = without(common, &on_line);
    let mut all = Vec::new();
    for target in targets {
        let own: BTreeSet<String> = target.iter().map(|given| given.name.clone()).collect();
        let given = without(common.clone(), &own).into_iter().chain(without(target, &on_line));
        let arguments = given.flat_map(|given| given.arguments).map(OsString::from).chain(words.iter().cloned());
        let matches = command().try_get_matches_from(arguments).map_err(|error| in_file(file, &error))?;
        all.push(LoadFlags::from_arg_matches(&matches).map_err(|error| in_file(file, &error))?);
    }
    let several = all.len() > 1;
    if several && ["url", "model", "label"].iter().any(|name| on_line.contains(*name)) {
        return Err(format!(
            "{}: names {} targets, so --url, --model and --label cannot be given beside it",
            file.display(),
            all.len()
        ));
    }
    Ok(all)
}

/// What stands before the usage lines, without clap's own `error:`.
fn in_file(file: &Path, error: &clap::Error) -> String {
    format!("{}: {}", file.display(), first_line(error))
}

fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

/// The names of flags that stand on the command line.
fn named(matches: &ArgMatches) -> BTreeSet<String> {
    let is_given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
    let arguments = command();
    let given = arguments.get_arguments().filter(|argument| is_given(argument.get_id().as_str()));
    given.filter_map(|argument| argument.get_long().map(str::to_owned)).collect()
}

/// Without those that `others` replace.
fn without(given: Vec<Given>, others: &BTreeSet<String>) -> Vec<Given> {
    let is_replaced = |name: &str| {
        let alternatives = ALTERNATIVES.iter().filter(|group| group.contains(&name));
        others.contains(name) || alternatives.flat_map(|group| group.iter()).any(|other| others.contains(*other))
    };
    given.into_iter().filter(|given| !is_replaced(&given.name)).collect()
}

/// The keys at the top, and those of each target.
fn read_root(root: &Node, wrong: &mut dyn FnMut(usize, String)) -> (Vec<Given>, Vec<Vec<Given>>) {
    let Value::Map(entries) = &root.value else {
        wrong(root.line, format!("a scenario is made of keys and values, not {}", root.describe()));
        return Default::default();
    };
    let (mut common, mut targets) = (Vec::new(), Vec::new());
    for (word, node) in entries {
        if word.text != "targets" {
            common.extend(read_key(&word.text, word.line, node, &common, true, wrong));
            continue;
        }
        let Value::List(items) = &node.value else {
            wrong(word.line, "targets is a list, each with its own url, model, api, label".to_owned());
            continue;
        };
        for item in items {
            let Value::Map(entries) = &item.value else {
                wrong(item.line, format!("a target is made of keys and values, not {}", item.describe()));
                continue;
            };
            let mut target = Vec::new();
            for (word, node) in entries {
                target.extend(read_key(&word.text, word.line, node, &target, false, wrong));
            }
            targets.push(target);
        }
    }
    if targets.is_empty() {
        targets.push(Vec::new());
    }
    (common, targets)
}

fn read_key(
    word: &str,
    line: usize,
    node: &Node,
    before: &[Given],
    is_top: bool,
    wrong: &mut dyn FnMut(usize, String),
) -> Option<Given> {
    let name = word.replace('_', "-");
    let arguments = command();
    let known =
        || arguments.get_arguments().filter_map(|argument| argument.get_long()).filter(|name| *name != "scenario");
    let Some(argument) = arguments.get_arguments().find(|argument| argument.get_long() == Some(&name)) else {
        let names = known().map(str::to_owned).chain(is_top.then(|| "targets".to_owned()));
        wrong(line, format!("unknown key {word:?}{}", did_you_mean(&name, names)));
        return None;
    };
    if name == "scenario" {
        wrong(line, "a scenario cannot name another".to_owned());
        return None;
    }
    if !is_top && GENERAL.contains(&name.as_str()) {
        wrong(line, format!("{word:?} belongs to the top, not to a target"));
        return None;
    }
    if before.iter().any(|given| given.name == name) {
        wrong(line, format!("{word:?} stands here twice"));
        return None;
    }
    let arguments = match values(&name, argument.get_action(), node) {
        Ok(arguments) => arguments,
        Err(message) => {
            wrong(line, format!("{word}: {message}"));
            return None;
        }
    };
    if let Err(error) = command().try_get_matches_from(&arguments) {
        wrong(line, first_line(&error));
        return None;
    }
    Some(Given { name, arguments })
}

/// A key's value as arguments.
fn values(name: &str, action: &clap::ArgAction, node: &Node) -> Result<Vec<String>, String> {
    let scalar = |node: &Node| match &node.value {
        Value::Scalar { text, .. } if !node.is_nothing() => Ok(text.clone()),
        Value::Scalar { .. } | Value::List(_) | Value::Map(_) => {
            Err(format!("a value is expected, not {}", node.describe()))
        }
    };
    if matches!(action, clap::ArgAction::SetTrue) {
        return match scalar(node)?.as_str() {
            "true" => Ok(vec![format!("--{name}")]),
            "false" => Ok(Vec::new()),
            other => Err(format!("true or false is expected, not {other:?}")),
        };
    }
    let Value::List(items) = &node.value else { return Ok(vec![format!("--{name}={}", scalar(node)?)]) };
    let items = items.iter().map(scalar).collect::<Result<Vec<String>, String>>()?;
    if matches!(action, clap::ArgAction::Append) {
        return Ok(items.iter().map(|item| format!("--{name}={item}")).collect());
    }
    Ok(vec![format!("--{name}={}", items.join(","))])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::Pattern;
    use crate::record::Load;

    fn load(text: &str, line: &str) -> Result<Vec<LoadFlags>, String> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let matches = command().try_get_matches_from(&words).map_err(|error| error.to_string())?;
        read(Path::new("a.yaml"), text, &words, &matches)
    }

    const TWO: &str = "\
# two servers
rate: 500
duration: 3s
words: lognormal:30,0.9,4,254
interleave: true
header: ['a: b', 'c: d']
targets:
  - {label: one, url: 'http://127.0.0.1:1', model: m}
  - label: other
    url: http://127.0.0.1:2
    api: tei
    rate: 50
";

    #[test]
    fn targets_go_over_the_top_and_the_line_over_both() {
        let targets = load(TWO, "").unwrap();
        assert_eq!(targets.len(), 2);
        assert_eq!((targets[0].rate, targets[1].rate), (Some(500.0), Some(50.0)));
        assert_eq!(targets[1].label.as_deref(), Some("other"));
        assert!(targets[0].interleave && targets[1].interleave);
        assert_eq!(targets[0].header, ["a: b", "c: d"]);
        let targets = load(TWO, "--sweep 1,2 --texts x.txt").unwrap();
        for target in &targets {
            let levels = [1, 2].map(|concurrency| Load::Closed { concurrency }).to_vec();
            assert_eq!(target.pattern(), Ok(Pattern::Levels(levels)));
            assert_eq!((target.words.is_none(), target.texts.as_deref()), (true, Some("x.txt")));
        }
        assert!(load(TWO, "--model x").unwrap_err().contains("names 2 targets"));
        assert_eq!(load("sweep: [1, 2]\nno-spin: false\n", "").unwrap()[0].sweep.as_ref().unwrap().0, [1, 2]);
        assert_eq!(load("texts_per_request: 32", "").unwrap().len(), 1);
    }

    #[test]
    fn mistakes_name_file_line_and_the_nearest_key() {
        for (text, expected) in [
            ("rate: 5\nconcurency: 5\n", "a.yaml:2: unknown key \"concurency\"; did you mean \"concurrency\"?"),
            ("target:\n  - {url: x}\n", "a.yaml:1: unknown key \"target\"; did you mean \"targets\"?"),
            ("targets:\n  - {ulr: x}\n", "a.yaml:2: unknown key \"ulr\"; did you mean \"url\"?"),
            ("targets:\n  - {json: x}\n", "a.yaml:2: \"json\" belongs to the top, not to a target"),
            ("rate: 5\nrate: 6\n", "a.yaml:2: \"rate\" stands here twice"),
            ("digest: yes please\n", "a.yaml:1: digest: true or false is expected, not \"yes please\""),
            ("words:\n", "a.yaml:1: words: a value is expected, not nothing"),
            ("- 1\n", "a.yaml:1: a scenario is made of keys and values, not a list"),
            ("scenario: b.yaml\n", "a.yaml:1: a scenario cannot name another"),
        ] {
            assert_eq!(load(text, "").unwrap_err(), expected);
        }
        let wrong_value = load("\nrate: fast\n", "").unwrap_err();
        assert!(wrong_value.starts_with("a.yaml:2: invalid value 'fast' for '--rate <RATE>'"), "{wrong_value}");
        let two = load("rate: 5\nconcurrency: 6\n", "").unwrap_err();
        assert!(two.starts_with("a.yaml: the argument '--rate") && two.contains("--concurrency"), "{two}");
        let several = load("raet: 5\nulr: 6\n", "").unwrap_err();
        assert_eq!(several.lines().count(), 2, "{several}");
        assert!(load("a: [", "").unwrap_err().starts_with("a.yaml:"));
    }

    #[test]
    fn every_scenario_of_the_repository_is_right() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
        let mut count = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let targets = targets(&["--scenario".into(), path.clone().into()]);
            for target in targets.unwrap_or_else(|error| panic!("{error}")) {
                target.pattern().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                target.spec(false).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            }
            count += 1;
        }
        assert!(count >= 6, "{count} scenarios");
    }
}
