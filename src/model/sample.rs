//! Small models with seeded random weights, written as folders, for tests.
//!
//! Weights are wide enough that a wrong mask, position, token type or pooling changes the answer visibly. Names and files
//! are those that transformers writes.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use safetensors::tensor::TensorView;

use super::{Architecture, Pooling, Task};
use crate::config::ModelSettings;

/// A folder below the system's temporary one that is removed when dropped.
#[derive(Debug)]
pub struct TemporaryFolder(PathBuf);

impl Default for TemporaryFolder {
    fn default() -> TemporaryFolder {
        TemporaryFolder::new()
    }
}

impl TemporaryFolder {
    pub fn new() -> TemporaryFolder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("reactrt-test-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("the temporary folder can be written");
        TemporaryFolder(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().expect("a file has a folder")).expect("folders can be made");
        std::fs::write(path, contents).expect("files can be written");
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In −1..1.
    pub fn float(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound as u64) as usize
    }
}

/// What a sample model is like.
#[derive(Clone, Debug)]
pub struct Sample {
    pub architecture: Architecture,
    pub task: Task,
    /// Of a classifier.
    pub classes: usize,
    pub pooling: Pooling,
    pub normalize: bool,
    pub activation: &'static str,
    pub hidden: usize,
    pub layers: usize,
    pub heads: usize,
    pub intermediate: usize,
    pub vocabulary: usize,
    pub positions: usize,
    pub token_types: usize,
    /// Before the encoder's names.
    pub prefix: &'static str,
    pub seed: u64,
}

impl Sample {
    pub fn bert(task: Task) -> Sample {
        Sample {
            architecture: Architecture::Bert,
            task,
            classes: if task == Task::Nli { 3 } else { 1 },
            pooling: Pooling::Mean,
            normalize: true,
            activation: "gelu",
            hidden: 48,
            layers: 2,
            heads: 4,
            intermediate: 80,
            vocabulary: 97,
            positions: 200,
            token_types: 2,
            prefix: if task == Task::Embedding { "" } else { "bert." },
            seed: 1,
        }
    }

    pub fn roberta(task: Task) -> Sample {
        Sample {
            architecture: Architecture::Roberta,
            pooling: Pooling::Cls,
            activation: "gelu_new",
            layers: 3,
            positions: 202,
            token_types: 1,
            prefix: if task == Task::Embedding { "" } else { "roberta." },
            seed: 2,
            ..Sample::bert(task)
        }
    }

    pub fn settings(&self) -> ModelSettings {
        ModelSettings::new(self.task, "sample", "", "test.yaml:1")
    }

    pub fn config(&self) -> serde_json::Value {
        let (kind, class) = match self.architecture {
            Architecture::Bert => ("bert", "Bert"),
            Architecture::Roberta => ("xlm-roberta", "XLMRoberta"),
        };
        let (class, labels) = match self.task {
            Task::Embedding => (format!("{class}Model"), serde_json::json!({})),
            Task::Reranking => (format!("{class}ForSequenceClassification"), serde_json::json!({"0": "LABEL_0"})),
            Task::Nli => (
                format!("{class}ForSequenceClassification"),
                (0..self.classes)
                    .map(|index| (index.to_string(), serde_json::Value::from(format!("label {index}"))))
                    .collect(),
            ),
        };
        let mut config = serde_json::json!({
            "architectures": [class],
            "hidden_act": self.activation,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "layer_norm_eps": 1e-5,
            "max_position_embeddings": self.positions,
            "model_type": kind,
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "pad_token_id": if self.architecture == Architecture::Bert { 0 } else { 1 },
            "type_vocab_size": self.token_types,
            "vocab_size": self.vocabulary,
        });
        if self.task != Task::Embedding {
            config["id2label"] = labels;
        }
        config
    }

    /// Names, shapes and values, in the order in which transformers lists them.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>, Vec<f32>)> {
        let mut random = Random(self.seed);
        let mut tensors = Vec::new();
        let mut add = |name: String, shape: &[usize], center: f32, spread: f32| {
            let values = (0..shape.iter().product()).map(|_| center + spread * random.float()).collect();
            tensors.push((name, shape.to_vec(), values));
        };
        let (prefix, hidden) = (self.prefix, self.hidden);
        for (table, rows) in [("word", self.vocabulary), ("position", self.positions), ("token_type", self.token_types)]
        {
            add(format!("{prefix}embeddings.{table}_embeddings.weight"), &[rows, hidden], 0.0, 1.0);
        }
        let spread = 1.5 / (hidden as f32).sqrt();
        let mut roles = vec![("embeddings.LayerNorm".to_owned(), hidden, 0)];
        for layer in 0..self.layers {
            for (role, outputs, inputs) in [
                ("attention.self.query", hidden, hidden),
                ("attention.self.key", hidden, hidden),
                ("attention.self.value", hidden, hidden),
                ("attention.output.dense", hidden, hidden),
                ("attention.output.LayerNorm", hidden, 0),
                ("intermediate.dense", self.intermediate, hidden),
                ("output.dense", hidden, self.intermediate),
                ("output.LayerNorm", hidden, 0),
            ] {
                roles.push((format!("encoder.layer.{layer}.{role}"), outputs, inputs));
            }
        }
        let mut roles: Vec<_> =
            roles.into_iter().map(|(role, outputs, inputs)| (format!("{prefix}{role}"), outputs, inputs)).collect();
        match (self.task, self.architecture) {
            (Task::Embedding, Architecture::Bert | Architecture::Roberta) => {}
            (Task::Reranking | Task::Nli, Architecture::Bert) => {
                roles.push((format!("{prefix}pooler.dense"), hidden, hidden));
                roles.push(("classifier".into(), self.classes, hidden));
            }
            (Task::Reranking | Task::Nli, Architecture::Roberta) => {
                roles.push(("classifier.dense".into(), hidden, hidden));
                roles.push(("classifier.out_proj".into(), self.classes, hidden));
            }
        }
        for (role, outputs, inputs) in roles {
            match inputs {
                0 => add(format!("{role}.weight"), &[outputs], 1.0, 0.3),
                inputs => add(format!("{role}.weight"), &[outputs, inputs], 0.0, spread),
            }
            add(format!("{role}.bias"), &[outputs], 0.0, 0.3);
        }
        tensors
    }

    /// Writes everything but the weights. The tokenizer is a file that only exists.
    pub fn write_files(&self, folder: &TemporaryFolder) {
        folder.write("config.json", self.config().to_string());
        folder.write("tokenizer.json", "{}");
        if self.task == Task::Embedding {
            let module = |path: &str, kind: &str| serde_json::json!({"path": path, "type": format!("sentence_transformers.models.{kind}")});
            let mut modules = vec![module("", "Transformer"), module("1_Pooling", "Pooling")];
            modules.extend(self.normalize.then(|| module("2_Normalize", "Normalize")));
            folder.write("modules.json", serde_json::Value::from(modules).to_string());
            let pooling = serde_json::json!({
                "pooling_mode_cls_token": self.pooling == Pooling::Cls,
                "pooling_mode_mean_tokens": self.pooling == Pooling::Mean,
                "pooling_mode_max_tokens": false,
            });
            folder.write("1_Pooling/config.json", pooling.to_string());
        }
    }

    /// Writes a whole folder, weights as one safetensors file of f32.
    pub fn write(&self, folder: &TemporaryFolder) {
        self.write_files(folder);
        folder.write("model.safetensors", safetensors_of(&self.tensors()));
    }
}

/// A safetensors file of f32 tensors.
pub fn safetensors_of(tensors: &[(String, Vec<usize>, Vec<f32>)]) -> Vec<u8> {
    let bytes: Vec<Vec<u8>> =
        tensors.iter().map(|(_, _, values)| values.iter().flat_map(|value| value.to_le_bytes()).collect()).collect();
    let views = tensors.iter().zip(&bytes).map(|((name, shape, _), bytes)| {
        let view = TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes);
        (name, view.expect("shape and values agree"))
    });
    safetensors::serialize(views, None).expect("small tensors can be serialized")
}
