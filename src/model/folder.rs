//! Reads a Hugging Face folder: what transformers and sentence-transformers wrote about a model, as one [`Model`].
//!
//! Each fact has one source and one override, the configuration. What the folder asks for and this program cannot do (a
//! dense module after pooling, max pooling, relative positions) is an error that names the file, never a silent
//! difference: a server that answers with slightly wrong vectors is worse than one that does not start.
//!
//! Invariant: the [`Model`] returned is consistent in itself (labels fit the head, `max_length` fits the positions);
//! whether the weights fit it is checked when they are read.

use std::fmt::Formatter;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::files::{SIDE_FILE_BYTES_MAX, read_regular};
use super::weights::{Weights, classifier_classes};
use super::{Activation, Architecture, Geometry, Head, Model, Pooling, Prompt, Source, Task};
use crate::config::ModelSettings;
use crate::device::LoadError;

/// No model of these families comes near; keeps every product of two sizes far from overflow.
const SIZE_MAX: u64 = 1 << 24;

/// The labels of the old server, for a three-class model that names none.
pub(super) const NLI_LABELS: [&str; 3] = ["contradiction", "neutral", "entailment"];

/// Reads the folder. `tokenizer` is a folder or a `tokenizer.json`; `None`: in the model's folder.
///
/// Errors name the file at fault, or the entry of the configuration.
pub fn read(folder: &Path, tokenizer: Option<&Path>, settings: &ModelSettings) -> Result<Model, LoadError> {
    let manifest = Manifest::read(folder)?;
    let root = manifest.as_ref().map_or_else(|| folder.to_owned(), |manifest| folder.join(&manifest.transformer));
    let config = Config::read(&root)?;
    let geometry = config.geometry()?;
    config.check_task(settings.task)?;
    let head = config.head(settings.task, geometry.architecture, &root)?;
    let tokenizer = tokenizer_file(tokenizer.unwrap_or(&root), &root)?;
    let (pooling, normalize) = pooling(folder, manifest.as_ref(), settings)?;
    let (prompts, default_prompt) = prompts(folder, settings)?;
    Ok(Model {
        name: settings.name.clone(),
        task: settings.task,
        max_length: max_length(&root, &tokenizer, &geometry, settings)?,
        labels: config.labels(head, settings)?,
        source: Source::Folder(root),
        tokenizer,
        geometry: Some(geometry),
        head,
        pooling,
        normalize,
        prompts,
        default_prompt,
        cuda_graph_list: settings.cuda_graph_list.clone(),
        output: settings.output.clone(),
        unpositioned: None,
        reuse_dynamic_buffer: settings.reuse_dynamic_buffer,
    })
}

/// The task that config.json speaks of: a sequence classifier of one logit is a reranker, of more an NLI model, and
/// everything else an embedding model.
pub fn task(folder: &Path) -> Result<Task, LoadError> {
    let file = folder.join("config.json");
    let refuse = |reason: String| at(&file, reason);
    let text = read_regular(&file, SIDE_FILE_BYTES_MAX).map_err(|error| refuse(error.to_string()))?;
    let config: Value = serde_json::from_slice(&text).map_err(|error| refuse(error.to_string()))?;
    let architecture = config["architectures"][0].as_str().unwrap_or_default();
    if !architecture.ends_with("ForSequenceClassification") {
        return Ok(Task::Embedding);
    }
    // Where neither is written, two classes are meant.
    let labels = config["id2label"].as_object().map(|labels| labels.len() as u64);
    let classes = labels.or(config["num_labels"].as_u64()).unwrap_or(2);
    Ok(if classes == 1 { Task::Reranking } else { Task::Nli })
}

fn at(path: &Path, words: impl std::fmt::Display) -> LoadError {
    LoadError(format!("{}: {words}", path.display()))
}

/// An error of the configuration's own entry.
fn asked(settings: &ModelSettings, words: impl std::fmt::Display) -> LoadError {
    LoadError(format!("{}: model `{}`: {words}", settings.place, settings.name))
}

/// Parses a JSON file; `None` if there is none.
fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, LoadError> {
    let text = match read_regular(path, SIDE_FILE_BYTES_MAX) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(at(path, error)),
    };
    serde_json::from_slice(&text).map(Some).map_err(|error| at(path, error))
}

/// `config.json`.
struct Config {
    path: PathBuf,
    values: serde_json::Map<String, Value>,
}

impl Config {
    fn read(root: &Path) -> Result<Config, LoadError> {
        let path = root.join("config.json");
        match read_json(&path)? {
            Some(values) => Ok(Config { path, values }),
            None if root.is_dir() => Err(at(&path, "no such file; a model folder has one beside its weights")),
            None => Err(at(root, "no such folder")),
        }
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.values.get(key)?.as_str()
    }

    /// A size between 1 and [`SIZE_MAX`].
    fn size(&self, key: &str) -> Result<usize, LoadError> {
        let value = self.values.get(key).ok_or_else(|| at(&self.path, format!("no `{key}`")))?;
        match value.as_u64() {
            Some(size @ 1..=SIZE_MAX) => Ok(size as usize),
            Some(_) | None => {
                Err(at(&self.path, format!("`{key}` is {value}; a number from 1 to {SIZE_MAX} is needed")))
            }
        }
    }

    fn architecture(&self) -> Result<Architecture, LoadError> {
        match self.text("model_type") {
            Some("bert") => Ok(Architecture::Bert),
            Some("roberta" | "xlm-roberta" | "camembert") => Ok(Architecture::Roberta),
            other => Err(at(
                &self.path,
                format!(
                    "model_type `{}` is not known here; known are bert, roberta, xlm-roberta and camembert",
                    other.unwrap_or("(none)")
                ),
            )),
        }
    }

    fn layer_norm_eps(&self) -> Result<f32, LoadError> {
        match self.values.get("layer_norm_eps") {
            None | Some(Value::Null) => Ok(1e-12),
            Some(value) => match value.as_f64() {
                Some(eps) if (0.0..1.0).contains(&eps) => Ok(eps as f32),
                _ => Err(at(&self.path, format!("layer_norm_eps is {value}, not a number from 0 to 1"))),
            },
        }
    }

    fn activation(&self) -> Result<Activation, LoadError> {
        let named = match self.values.get("hidden_act") {
            None | Some(Value::Null) => "gelu",
            Some(value) => value.as_str().unwrap_or("(not a text)"),
        };
        match named {
            "gelu" => Ok(Activation::Gelu),
            "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Ok(Activation::GeluTanh),
            "relu" => Ok(Activation::Relu),
            other => Err(at(
                &self.path,
                format!(
                    "hidden_act `{other}` is not known here; known are gelu, gelu_new, gelu_pytorch_tanh, gelu_fast and relu"
                ),
            )),
        }
    }

    fn geometry(&self) -> Result<Geometry, LoadError> {
        let architecture = self.architecture()?;
        let relative = self.text("position_embedding_type").is_some_and(|kind| kind != "absolute");
        if relative || self.values.get("is_decoder").and_then(Value::as_bool) == Some(true) {
            return Err(at(&self.path, "only encoders with absolute positions are supported"));
        }
        let pad_token = match self.values.get("pad_token_id").filter(|value| !value.is_null()) {
            Some(value) => value
                .as_u64()
                .filter(|&id| id < SIZE_MAX)
                .ok_or_else(|| at(&self.path, "`pad_token_id` is no token id"))?,
            None => 1, // what transformers assumes for the RoBERTa family, the only one that asks
        };
        let geometry = Geometry {
            architecture,
            hidden: self.size("hidden_size")?,
            layers: self.size("num_hidden_layers")?,
            heads: self.size("num_attention_heads")?,
            intermediate: self.size("intermediate_size")?,
            vocabulary: self.size("vocab_size")?,
            positions: self.size("max_position_embeddings")?,
            token_types: if self.values.contains_key("type_vocab_size") { self.size("type_vocab_size")? } else { 2 },
            position_offset: match architecture {
                Architecture::Bert => 0,
                Architecture::Roberta => pad_token as usize + 1,
            },
            layer_norm_eps: self.layer_norm_eps()?,
            activation: self.activation()?,
        };
        if !geometry.hidden.is_multiple_of(geometry.heads) {
            let words = format!("hidden_size {} is not divisible by {} heads", geometry.hidden, geometry.heads);
            return Err(at(&self.path, words));
        }
        if geometry.positions <= geometry.position_offset {
            let words = format!("{} positions leave none after the padding offset", geometry.positions);
            return Err(at(&self.path, words));
        }
        Ok(geometry)
    }

    /// Whether the class that saved the weights is one that can do this task. A file that names none is left to the
    /// weights.
    fn check_task(&self, task: Task) -> Result<(), LoadError> {
        let named: Vec<&str> = match self.values.get("architectures").and_then(Value::as_array) {
            Some(names) => names.iter().filter_map(Value::as_str).collect(),
            None => return Ok(()),
        };
        if named.is_empty() {
            return Ok(());
        }
        let classifies = named.iter().any(|name| name.ends_with("ForSequenceClassification"));
        match (task, classifies) {
            (Task::Embedding, false) | (Task::Reranking | Task::Nli, true) => Ok(()),
            (Task::Embedding, true) => {
                let words =
                    format!("architectures {named:?}: a classifier; list it under reranking_models or nli_models");
                Err(at(&self.path, words))
            }
            (Task::Reranking | Task::Nli, false) => {
                Err(at(&self.path, format!("architectures {named:?}: no classifier, so it cannot score pairs")))
            }
        }
    }

    /// Names by class, in the order of their indices; empty if the file has none.
    fn id2label(&self) -> Result<Vec<String>, LoadError> {
        let Some(names) = self.values.get("id2label").and_then(Value::as_object) else {
            return Ok(Vec::new());
        };
        let name = |index: usize| names.get(&index.to_string()).and_then(Value::as_str).map(str::to_owned);
        (0..names.len())
            .map(name)
            .collect::<Option<_>>()
            .ok_or_else(|| at(&self.path, "`id2label` does not number its labels from 0"))
    }

    fn classes(&self, architecture: Architecture, root: &Path) -> Result<usize, LoadError> {
        let labels = self.id2label()?.len();
        let stated = if self.values.contains_key("num_labels") { Some(self.size("num_labels")?) } else { None };
        match (labels, stated) {
            (0, Some(classes)) => Ok(classes),
            (0, None) => classifier_classes(&Weights::open(root)?, architecture)
                .ok_or_else(|| at(&self.path, "no `id2label`, no `num_labels`, and no classifier in the weights")),
            (labels, Some(classes)) if labels != classes => {
                Err(at(&self.path, format!("`num_labels` is {classes}, and `id2label` has {labels}")))
            }
            (labels, Some(_) | None) => Ok(labels),
        }
    }

    fn head(&self, task: Task, architecture: Architecture, root: &Path) -> Result<Head, LoadError> {
        let classes = match task {
            Task::Embedding => return Ok(Head::Embedding),
            Task::Reranking | Task::Nli => self.classes(architecture, root)?,
        };
        if task == Task::Reranking && classes != 1 {
            return Err(at(&self.path, format!("{classes} classes; a reranker has exactly one logit")));
        }
        if task == Task::Nli && classes < 2 {
            return Err(at(&self.path, "one class; an NLI model has at least two (is it a reranker?)"));
        }
        Ok(match architecture {
            Architecture::Bert => Head::BertClassifier { classes },
            Architecture::Roberta => Head::RobertaClassifier { classes },
        })
    }

    /// The labels of an NLI model: the configuration's, else the file's as they are, else the old server's three, else
    /// the names that transformers makes up.
    fn labels(&self, head: Head, settings: &ModelSettings) -> Result<Vec<String>, LoadError> {
        let classes = match head {
            Head::BertClassifier { classes } | Head::RobertaClassifier { classes } => classes,
            Head::Embedding => 0,
        };
        if settings.task != Task::Nli {
            return match settings.labels {
                None => Ok(Vec::new()),
                Some(_) => Err(asked(settings, "`labels` are for NLI models")),
            };
        }
        if let Some(labels) = &settings.labels {
            if labels.len() != classes {
                let words = format!("{} labels for a model of {classes} classes", labels.len());
                return Err(asked(settings, words));
            }
            return Ok(labels.clone());
        }
        let labels = self.id2label()?;
        if !labels.is_empty() {
            Ok(labels)
        } else if classes == NLI_LABELS.len() {
            Ok(NLI_LABELS.map(str::to_owned).to_vec())
        } else {
            Ok((0..classes).map(|index| format!("LABEL_{index}")).collect())
        }
    }
}

/// `modules.json`: what sentence-transformers puts after the encoder.
#[derive(Debug)]
struct Manifest {
    /// Where config.json and the weights are, relative to the folder; usually empty, in old folders `0_Transformer`.
    transformer: PathBuf,
    /// The folder of the pooling module's own config.json.
    pooling: Option<PathBuf>,
    normalize: bool,
}

impl Manifest {
    fn read(folder: &Path) -> Result<Option<Manifest>, LoadError> {
        #[derive(Deserialize)]
        struct Module {
            path: String,
            r#type: String,
        }
        let path = folder.join("modules.json");
        let Some(modules): Option<Vec<Module>> = read_json(&path)? else {
            return Ok(None);
        };
        let mut manifest = Manifest { transformer: PathBuf::new(), pooling: None, normalize: false };
        for module in modules {
            let below = PathBuf::from(&module.path);
            if below.components().any(|component| !matches!(component, Component::Normal(_) | Component::CurDir)) {
                return Err(at(&path, format!("`{}` leads out of the folder", module.path)));
            }
            match module.r#type.rsplit('.').next() {
                Some("Transformer") => manifest.transformer = below,
                Some("Pooling") => manifest.pooling = Some(below),
                Some("Normalize") => manifest.normalize = true,
                Some(_) | None => {
                    let words = format!("module `{}`; Transformer, Pooling and Normalize are supported", module.r#type);
                    return Err(at(&path, words));
                }
            }
        }
        Ok(Some(manifest))
    }
}

/// Pooling and whether to normalise: the configuration's, else the manifest's, else mean and no.
///
/// Mean is what sentence-transformers does with a folder that has no manifest. A classifier reads its first token.
fn pooling(folder: &Path, manifest: Option<&Manifest>, settings: &ModelSettings) -> Result<(Pooling, bool), LoadError> {
    match settings.task {
        Task::Embedding => {}
        Task::Reranking | Task::Nli => {
            return match (settings.pooling, settings.normalize) {
                (None, None | Some(false)) => Ok((Pooling::Cls, false)),
                _ => Err(asked(settings, "`pooling` and `normalize` are for embedding models")),
            };
        }
    }
    let of_folder = manifest.and_then(|manifest| manifest.pooling.as_ref());
    let pooling = match (settings.pooling, of_folder) {
        (Some(pooling), _) => pooling,
        (None, Some(module)) => pooling_mode(&folder.join(module).join("config.json"))?,
        (None, None) => Pooling::Mean,
    };
    Ok((pooling, settings.normalize.unwrap_or(manifest.is_some_and(|manifest| manifest.normalize))))
}

/// The one mode that a pooling module's `config.json` asks for.
fn pooling_mode(path: &Path) -> Result<Pooling, LoadError> {
    let config: serde_json::Map<String, Value> =
        read_json(path)?.ok_or_else(|| at(path, "no such file, and modules.json names it"))?;
    if config.get("include_prompt").and_then(Value::as_bool) == Some(false) {
        return Err(at(path, "`include_prompt: false` (pooling without the prompt's tokens) is not supported"));
    }
    let is_set = |(key, value): (&String, &Value)| {
        (value.as_bool() == Some(true)).then(|| key.strip_prefix("pooling_mode_").map(str::to_owned)).flatten()
    };
    let mut modes: Vec<String> = config.iter().filter_map(is_set).collect();
    modes.extend(config.get("pooling_mode").and_then(Value::as_str).map(str::to_owned));
    match modes.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["cls_token" | "cls"] => Ok(Pooling::Cls),
        ["mean_tokens" | "mean"] => Ok(Pooling::Mean),
        [] => Err(at(path, "no pooling mode is set")),
        other => Err(at(path, format!("pooling {}; cls or mean, alone, are supported", other.join(" + ")))),
    }
}

/// The file `tokenizer.json`, given as such or by its folder.
fn tokenizer_file(given: &Path, root: &Path) -> Result<PathBuf, LoadError> {
    let path = if given.is_dir() { given.join("tokenizer.json") } else { given.to_owned() };
    if path.is_file() {
        return Ok(path);
    }
    let folder = if given.is_dir() { given } else { root };
    Err(at(
        &path,
        format!(
            "no such file; where transformers is installed, this makes one: python3 -c \"from transformers import \
             AutoTokenizer as T; T.from_pretrained('{0}', use_fast=True).save_pretrained('{0}')\"",
            folder.display()
        ),
    ))
}

/// Tokens per sequence: the configuration's, else sentence_bert_config.json's, else tokenizer_config.json's, else all
/// positions. What files say beyond the positions means "all"; the configuration may not ask for more.
fn max_length(
    root: &Path,
    tokenizer: &Path,
    geometry: &Geometry,
    settings: &ModelSettings,
) -> Result<usize, LoadError> {
    let most = geometry.positions - geometry.position_offset;
    if let Some(length) = settings.max_length {
        if length == 0 || length > most {
            let words = format!("max_length {length}; this model has positions for 1 to {most} tokens");
            return Err(asked(settings, words));
        }
        return Ok(length);
    }
    // `model_max_length` of 1e30, a float here, is how transformers writes "none".
    let stated = |path: PathBuf, key: &str| -> Result<Option<usize>, LoadError> {
        let values: Option<serde_json::Map<String, Value>> = read_json(&path)?;
        let length = values.and_then(|values| values.get(key)?.as_u64());
        Ok(length.filter(|&length| length > 0).map(|length| usize::try_from(length).unwrap_or(usize::MAX).min(most)))
    };
    if let Some(length) = stated(root.join("sentence_bert_config.json"), "max_seq_length")? {
        return Ok(length);
    }
    let beside = tokenizer.with_file_name("tokenizer_config.json");
    Ok(stated(beside, "model_max_length")?.unwrap_or(most))
}

/// The prompts and the index of the default one: the configuration's list, else config_sentence_transformers.json's.
fn prompts(folder: &Path, settings: &ModelSettings) -> Result<(Vec<Prompt>, Option<usize>), LoadError> {
    #[derive(Deserialize, Default)]
    struct Listed {
        #[serde(default)]
        prompts: InFileOrder,
        #[serde(default)]
        default_prompt_name: Option<String>,
    }
    let path = folder.join("config_sentence_transformers.json");
    let listed: Listed = read_json(&path)?.unwrap_or_default();
    let pairs: Vec<(String, String)> = settings.prompts.clone().unwrap_or(listed.prompts.0);
    let prompts: Vec<Prompt> = pairs.into_iter().map(|(name, text)| Prompt { name, text }).collect();
    let index_of = |wanted: &str| prompts.iter().position(|prompt| prompt.name == wanted);
    let default = match (&settings.default_prompt, &listed.default_prompt_name) {
        (Some(name), _) => Some(
            index_of(name)
                .ok_or_else(|| asked(settings, format!("default_prompt `{name}` is not among its prompts")))?,
        ),
        // A list in the configuration replaces the folder's, and its default with it unless the name lives on.
        (None, Some(name)) if settings.prompts.is_some() => index_of(name),
        (None, Some(name)) => Some(
            index_of(name)
                .ok_or_else(|| at(&path, format!("default_prompt_name `{name}` is not among its prompts")))?,
        ),
        (None, None) => None,
    };
    Ok((prompts, default))
}

/// A JSON object of strings, its keys in the order in which they are written; values that are no strings are left out.
#[derive(Debug, Default)]
struct InFileOrder(Vec<(String, String)>);

impl<'de> Deserialize<'de> for InFileOrder {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<InFileOrder, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = InFileOrder;

            fn expecting(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("an object of texts by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<InFileOrder, A::Error> {
                let mut pairs = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, Value>()? {
                    pairs.extend(value.as_str().map(|text| (name, text.to_owned())));
                }
                Ok(InFileOrder(pairs))
            }

            /// `null`, as a model without prompts may write.
            fn visit_unit<E>(self) -> Result<InFileOrder, E> {
                Ok(InFileOrder::default())
            }
        }
        deserializer.deserialize_any(Pairs)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::sample::{Sample, TemporaryFolder};

    fn written(sample: &Sample) -> TemporaryFolder {
        let place = TemporaryFolder::new();
        sample.write(&place);
        place
    }

    fn read_with(place: &TemporaryFolder, settings: &ModelSettings) -> Result<Model, String> {
        read(place.path(), None, settings).map_err(|error| error.0)
    }

    /// Reads the sample with some keys of config.json changed; `null` removes a key.
    fn read_changed(sample: &Sample, changes: Value) -> Result<Model, String> {
        let place = written(sample);
        let mut config = sample.config();
        for (key, value) in changes.as_object().expect("an object of changes") {
            match value {
                Value::Null => drop(config.as_object_mut().expect("an object").remove(key)),
                value => config[key] = value.clone(),
            }
        }
        place.write("config.json", config.to_string());
        read_with(&place, &sample.settings())
    }

    fn assert_names(error: &str, parts: &[&str]) {
        for part in parts {
            assert!(error.contains(part), "`{part}` is not in: {error}");
        }
    }

    #[test]
    fn a_folder_says_what_it_says() {
        let place = written(&Sample::roberta(Task::Embedding));
        let model = read_with(&place, &Sample::roberta(Task::Embedding).settings()).expect("a good folder");
        let geometry = model.geometry.expect("folders have one");
        assert_eq!(
            geometry,
            Geometry {
                architecture: Architecture::Roberta,
                hidden: 48,
                layers: 3,
                heads: 4,
                intermediate: 80,
                vocabulary: 97,
                positions: 202,
                token_types: 1,
                position_offset: 2,
                layer_norm_eps: 1e-5,
                activation: Activation::GeluTanh,
            }
        );
        assert_eq!((model.head, model.pooling, model.normalize), (Head::Embedding, Pooling::Cls, true));
        assert_eq!((model.max_length, model.labels.len(), model.prompts.len()), (200, 0, 0));
        assert_eq!(model.tokenizer, place.path().join("tokenizer.json"));
        assert_eq!(model.source, Source::Folder(place.path().to_owned()));

        let bert = read_changed(&Sample::bert(Task::Nli), json!({})).expect("a good folder");
        assert_eq!(bert.head, Head::BertClassifier { classes: 3 });
        assert_eq!(bert.labels, ["label 0", "label 1", "label 2"]);
        assert_eq!((bert.max_length, bert.pooling, bert.normalize), (200, Pooling::Cls, false));
        let roberta = read_changed(&Sample::roberta(Task::Reranking), json!({})).expect("a good folder");
        assert_eq!((roberta.head, roberta.labels.len()), (Head::RobertaClassifier { classes: 1 }, 0));
    }

    #[test]
    fn what_cannot_be_served_is_refused_with_the_file_and_the_reason() {
        let embedding = Sample::bert(Task::Embedding);
        let cases: [(Value, &[&str]); 12] = [
            (json!({"model_type": "mpnet"}), &["mpnet", "bert, roberta, xlm-roberta and camembert"]),
            (json!({"model_type": null}), &["(none)", "xlm-roberta"]),
            (json!({"hidden_act": "swish"}), &["swish", "gelu_new"]),
            (json!({"hidden_size": null}), &["no `hidden_size`"]),
            (json!({"hidden_size": 0}), &["`hidden_size` is 0"]),
            (json!({"vocab_size": -5}), &["`vocab_size` is -5"]),
            (json!({"num_hidden_layers": "six"}), &["`num_hidden_layers` is \"six\""]),
            (json!({"num_attention_heads": 5}), &["48 is not divisible by 5"]),
            (json!({"intermediate_size": 1e300}), &["intermediate_size"]),
            (json!({"position_embedding_type": "relative_key"}), &["absolute positions"]),
            (json!({"is_decoder": true}), &["only encoders"]),
            (json!({"architectures": ["BertForSequenceClassification"]}), &["a classifier", "reranking_models"]),
        ];
        for (changes, parts) in cases {
            let error = read_changed(&embedding, changes).expect_err("it cannot be served");
            assert_names(&error, &["config.json"]);
            assert_names(&error, parts);
        }
        let nli = Sample::bert(Task::Nli);
        let cases: [(Value, &[&str]); 4] = [
            (json!({"architectures": ["BertModel"]}), &["no classifier"]),
            (json!({"id2label": {"0": "yes"}}), &["one class"]),
            (json!({"id2label": {"0": "a", "2": "b"}}), &["does not number its labels from 0"]),
            (json!({"num_labels": 4}), &["`num_labels` is 4, and `id2label` has 3"]),
        ];
        for (changes, parts) in cases {
            assert_names(&read_changed(&nli, changes).expect_err("it cannot be served"), parts);
        }
        let reranker = Sample::bert(Task::Reranking);
        let error = read_changed(&reranker, json!({"id2label": {"0": "a", "1": "b"}})).expect_err("two logits");
        assert_names(&error, &["2 classes", "exactly one logit"]);
        let error = read_changed(&Sample::roberta(Task::Embedding), json!({"max_position_embeddings": 2}));
        assert_names(&error.expect_err("no position is left"), &["leave none"]);
    }

    #[test]
    fn missing_files_are_named() {
        let sample = Sample::bert(Task::Embedding);
        let place = written(&sample);
        std::fs::remove_file(place.path().join("tokenizer.json")).expect("it was there");
        let error = read_with(&place, &sample.settings()).expect_err("no tokenizer");
        assert_names(&error, &["tokenizer.json", "no such file", "AutoTokenizer", "save_pretrained"]);
        std::fs::remove_file(place.path().join("config.json")).expect("it was there");
        assert_names(&read_with(&place, &sample.settings()).expect_err("no config"), &["config.json", "no such file"]);
        place.write("config.json", "{");
        assert_names(&read_with(&place, &sample.settings()).expect_err("half a file"), &["config.json", "line 1"]);
        let error = read(&place.path().join("gone"), None, &sample.settings()).expect_err("no folder");
        assert_names(&error.0, &["gone", "no such folder"]);
    }

    #[test]
    fn a_tokenizer_may_lie_elsewhere() {
        let sample = Sample::bert(Task::Embedding);
        let (place, other) = (written(&sample), TemporaryFolder::new());
        other.write("tokenizer.json", "{}");
        other.write("tokenizer_config.json", json!({"model_max_length": 77}).to_string());
        for given in [other.path().to_owned(), other.path().join("tokenizer.json")] {
            let model = read(place.path(), Some(&given), &sample.settings()).expect("a good folder");
            assert_eq!((model.tokenizer, model.max_length), (other.path().join("tokenizer.json"), 77));
        }
    }

    #[test]
    fn max_length_comes_from_the_first_that_states_one() {
        let sample = Sample::roberta(Task::Embedding);
        let place = written(&sample);
        let with = |max_length| read_with(&place, &ModelSettings { max_length, ..sample.settings() });
        let none = serde_json::from_str::<Value>("1000000000000000019884624838656").expect("a number");
        place.write("tokenizer_config.json", json!({"model_max_length": none}).to_string());
        assert_eq!(with(None).expect("a good folder").max_length, 200, "the sentinel means all positions");
        place.write("tokenizer_config.json", json!({"model_max_length": 512}).to_string());
        assert_eq!(with(None).expect("a good folder").max_length, 200, "never above the positions");
        place.write("tokenizer_config.json", json!({"model_max_length": 150}).to_string());
        assert_eq!(with(None).expect("a good folder").max_length, 150);
        place.write("sentence_bert_config.json", json!({"max_seq_length": null}).to_string());
        assert_eq!(with(None).expect("a good folder").max_length, 150);
        place.write("sentence_bert_config.json", json!({"max_seq_length": 100}).to_string());
        assert_eq!(with(None).expect("a good folder").max_length, 100);
        assert_eq!(with(Some(180)).expect("a good folder").max_length, 180);
        for wrong in [0, 201] {
            assert_names(&with(Some(wrong)).expect_err("no position"), &["test.yaml:1", "`sample`", "1 to 200"]);
        }
    }

    #[test]
    fn pooling_comes_from_the_manifest_or_is_mean() {
        let sample = Sample::bert(Task::Embedding);
        let place = written(&sample);
        let pooled = || {
            let model = read_with(&place, &sample.settings());
            model.map(|model| (model.pooling, model.normalize))
        };
        let mode = |modes: Value| place.write("1_Pooling/config.json", modes.to_string());
        assert_eq!(pooled(), Ok((Pooling::Mean, true)));
        mode(json!({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}));
        assert_eq!(pooled(), Ok((Pooling::Cls, true)));
        mode(json!({"pooling_mode": "mean", "include_prompt": true}));
        assert_eq!(pooled(), Ok((Pooling::Mean, true)));
        for (modes, parts) in [
            (json!({"pooling_mode_max_tokens": true}), "max_tokens"),
            (json!({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true}), "cls_token + mean_tokens"),
            (json!({"pooling_mode_cls_token": false}), "no pooling mode"),
            (json!({"pooling_mode_mean_tokens": true, "include_prompt": false}), "include_prompt"),
        ] {
            mode(modes);
            assert_names(&pooled().expect_err("not supported"), &["1_Pooling/config.json", parts]);
        }
        let settings = ModelSettings { pooling: Some(Pooling::Cls), normalize: Some(false), ..sample.settings() };
        mode(json!({"pooling_mode_max_tokens": true}));
        let model = read_with(&place, &settings).expect("the configuration decides");
        assert_eq!((model.pooling, model.normalize), (Pooling::Cls, false));

        std::fs::remove_file(place.path().join("modules.json")).expect("it was there");
        assert_eq!(pooled(), Ok((Pooling::Mean, false)), "no manifest");
        let manifest = |modules: Value| place.write("modules.json", modules.to_string());
        manifest(json!([{"path": "2_Dense", "type": "sentence_transformers.models.Dense"}]));
        assert_names(&pooled().expect_err("a dense module"), &["modules.json", "Dense", "Normalize are supported"]);
        manifest(json!([{"path": "../1", "type": "sentence_transformers.models.Pooling"}]));
        assert_names(&pooled().expect_err("a way out"), &["leads out of the folder"]);

        let reranker = Sample::bert(Task::Reranking);
        let settings = ModelSettings { pooling: Some(Pooling::Mean), ..reranker.settings() };
        let error = read_with(&written(&reranker), &settings).expect_err("a reranker does not pool");
        assert_names(&error, &["test.yaml:1", "for embedding models"]);
    }

    #[test]
    fn an_old_manifest_puts_the_encoder_in_a_folder_of_its_own() {
        let (sample, place) = (Sample::bert(Task::Embedding), TemporaryFolder::new());
        place.write("0_Transformer/config.json", sample.config().to_string());
        place.write("0_Transformer/tokenizer.json", "{}");
        place.write("modules.json", json!([{"path": "0_Transformer", "type": "x.Transformer"}]).to_string());
        let model = read_with(&place, &sample.settings()).expect("a good folder");
        assert_eq!(model.source, Source::Folder(place.path().join("0_Transformer")));
        assert_eq!(model.tokenizer, place.path().join("0_Transformer/tokenizer.json"));
    }

    #[test]
    fn labels_come_from_the_first_that_has_some() {
        let sample = Sample::roberta(Task::Nli);
        let place = written(&sample);
        let labels = vec!["x".to_owned(), "y".to_owned(), "z".to_owned()];
        let settings = ModelSettings { labels: Some(labels.clone()), ..sample.settings() };
        assert_eq!(read_with(&place, &settings).expect("a good folder").labels, labels);
        let settings = ModelSettings { labels: Some(vec!["x".into()]), ..sample.settings() };
        assert_names(&read_with(&place, &settings).expect_err("too few"), &["test.yaml:1", "1 labels", "3 classes"]);
        let generic = json!({"id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}});
        let found = read_changed(&sample, generic).expect("a good folder").labels;
        assert_eq!(found, ["LABEL_0", "LABEL_1", "LABEL_2"], "as the file says");
        // Neither names nor a number: the classifier's own shape decides.
        let found = read_changed(&sample, json!({"id2label": null})).expect("a good folder").labels;
        assert_eq!(found, NLI_LABELS);
        let four = Sample { classes: 4, ..sample };
        let found = read_changed(&four, json!({"id2label": null, "num_labels": 4})).expect("a good folder").labels;
        assert_eq!(found, ["LABEL_0", "LABEL_1", "LABEL_2", "LABEL_3"]);
    }

    #[test]
    fn prompts_come_from_the_folder_unless_the_configuration_has_some() {
        let sample = Sample::bert(Task::Embedding);
        let place = written(&sample);
        let file = |contents: Value| place.write("config_sentence_transformers.json", contents.to_string());
        let prompts = |settings: &ModelSettings| {
            let model = read_with(&place, settings)?;
            let names: Vec<String> =
                model.prompts.iter().map(|prompt| format!("{}={}", prompt.name, prompt.text)).collect();
            Ok::<_, String>((names.join(","), model.default_prompt))
        };
        for none in [json!({"__version__": {}}), json!({"prompts": null, "default_prompt_name": null})] {
            file(none);
            assert_eq!(prompts(&sample.settings()), Ok((String::new(), None)));
        }
        // As text, since a `json!` object sorts its keys.
        let ordered = r#"{"prompts": {"query": "q: ", "passage": "p: ", "odd": null}, "default_prompt_name": "query"}"#;
        place.write("config_sentence_transformers.json", ordered);
        assert_eq!(prompts(&sample.settings()), Ok(("query=q: ,passage=p: ".into(), Some(0))));
        let own = ModelSettings { prompts: Some(vec![("mine".into(), "m: ".into())]), ..sample.settings() };
        assert_eq!(prompts(&own), Ok(("mine=m: ".into(), None)));
        let own = ModelSettings { default_prompt: Some("mine".into()), ..own };
        assert_eq!(prompts(&own), Ok(("mine=m: ".into(), Some(0))));
        let wrong = ModelSettings { default_prompt: Some("their".into()), ..own };
        assert_names(&prompts(&wrong).expect_err("no such prompt"), &["test.yaml:1", "`their`"]);
        file(json!({"prompts": {}, "default_prompt_name": "query"}));
        let error = prompts(&sample.settings()).expect_err("no such prompt");
        assert_names(&error, &["config_sentence_transformers.json", "`query`"]);
    }
}
