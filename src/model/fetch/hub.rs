//! Models by their hub name, kept in the cache that all clients of the hub share.
//!
//! The cache comes first: a model whose files are all known there, as present or as absent, is found without network. That
//! the hub has *no* such file is remembered the way the hub's own client does it (an empty file under `.no_exist/`), so that
//! a folder that another program filled only partly is completed instead of being taken for the whole: without its
//! `modules.json` a model would pool wrongly and nobody would notice.
//!
//! Invariant: all files of one model are of one commit, and `refs/main` names it only when all of them are here.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use hf_hub::api::RepoInfo;
use hf_hub::api::sync::{Api, ApiBuilder, ApiError};
use hf_hub::{Cache, Repo, RepoType};

use super::{FetchError, Progress, wheel};

/// What of a model is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Everything a folder needs to be served.
    Model,
    /// `tokenizer.json` and its companions.
    Tokenizer,
}

impl Wanted {
    /// The small files, the indispensable one first.
    fn files(self) -> &'static [&'static str] {
        match self {
            Wanted::Model => &[
                "config.json",
                "tokenizer.json",
                "tokenizer_config.json",
                "special_tokens_map.json",
                "modules.json",
                "1_Pooling/config.json",
                "sentence_bert_config.json",
                "config_sentence_transformers.json",
            ],
            Wanted::Tokenizer => &["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"],
        }
    }

    fn with_weights(self) -> bool {
        match self {
            Wanted::Model => true,
            Wanted::Tokenizer => false,
        }
    }
}

/// The forms in which weights come, best first: a whole file, or an index that names its shards.
const WEIGHTS: [&str; 4] =
    ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"];

/// How the hub is reached.
#[derive(Clone, Debug)]
pub struct Hub {
    pub cache: PathBuf,
    /// `None`: the public hub.
    pub endpoint: Option<String>,
    pub token: Option<String>,
    pub offline: bool,
    /// How long the hub may take to list a model's files.
    pub patience: Duration,
}

impl Hub {
    /// As `HF_HOME`, `HF_HUB_CACHE`, `HF_ENDPOINT`, `HF_TOKEN` and `HF_HUB_OFFLINE` say.
    pub fn from_environment() -> Hub {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let home = variable("HF_HOME").map(PathBuf::from);
        let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".cache/huggingface")));
        let home = home.unwrap_or_else(|| std::env::temp_dir().join("huggingface"));
        let cache = variable("HF_HUB_CACHE").map(PathBuf::from).unwrap_or_else(|| home.join("hub"));
        let is_on = |value: String| matches!(value.to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on");
        Hub {
            token: variable("HF_TOKEN")
                .or_else(|| std::fs::read_to_string(home.join("token")).ok())
                .map(|token| token.trim().to_owned())
                .filter(|token| !token.is_empty()),
            cache,
            endpoint: variable("HF_ENDPOINT"),
            offline: variable("HF_HUB_OFFLINE").is_some_and(is_on),
            patience: Duration::from_secs(10),
        }
    }

    /// The folder of a model, complete as far as the hub has it: from the cache, else fetched into it.
    pub fn fetch(&self, name: &str, wanted: Wanted, progress: &mut dyn FnMut(Progress)) -> Result<PathBuf, FetchError> {
        let cached = Snapshot::of_main(&self.cache, name);
        if let Some(cached) = &cached
            && cached.is_complete(wanted)
        {
            return Ok(cached.folder.clone());
        }
        let usable = cached.filter(|cached| cached.is_usable(wanted));
        if self.offline {
            let file = wanted.files()[0].to_owned();
            return usable.map(|cached| cached.folder).ok_or_else(|| FetchError::Offline {
                name: name.to_owned(),
                file,
                cache: self.cache.clone(),
            });
        }
        let api = self.api(name)?;
        match (self.list(&api, name), usable) {
            (Ok(listing), _) => self.complete(&api, name, wanted, &listing, progress),
            // Better an optional file unknown than no model: the hub may be out of reach for good.
            (Err(_), Some(cached)) => Ok(cached.folder),
            (Err(error), None) => Err(error),
        }
    }

    /// Whether the hub answers for this model within [`Hub::patience`].
    pub fn answers(&self, name: &str) -> bool {
        !self.offline && self.api(name).and_then(|api| self.list(&api, name)).is_ok()
    }

    /// Whether [`Hub::fetch`] needs no network for this model.
    pub fn has_all(&self, name: &str, wanted: Wanted) -> bool {
        Snapshot::of_main(&self.cache, name).is_some_and(|cached| cached.is_complete(wanted))
    }

    /// The model's folder if the cache has what is indispensable of it; asks no network.
    pub fn find(&self, name: &str, wanted: Wanted) -> Option<PathBuf> {
        Snapshot::of_main(&self.cache, name).filter(|cached| cached.is_usable(wanted)).map(|cached| cached.folder)
    }

    fn api(&self, name: &str) -> Result<Api, FetchError> {
        let mut builder = ApiBuilder::from_cache(Cache::new(self.cache.clone()))
            .with_progress(false)
            .with_retries(3)
            .with_token(self.token.clone());
        if let Some(endpoint) = &self.endpoint {
            builder = builder.with_endpoint(endpoint.trim_end_matches('/').to_owned());
        }
        builder.build().map_err(|error| refusal(name, &error))
    }

    /// Asks for the model's newest commit and its files. The client has no deadline of its own, so it is given one here; a
    /// request that outlives it ends by itself in its thread.
    fn list(&self, api: &Api, name: &str) -> Result<RepoInfo, FetchError> {
        let (sender, receiver) = mpsc::channel();
        let repo = api.model(name.to_owned());
        std::thread::spawn(move || {
            // Nobody listens any more after the deadline.
            let _ = sender.send(repo.info());
        });
        match receiver.recv_timeout(self.patience) {
            Ok(answer) => answer.map_err(|error| refusal(name, &error)),
            Err(_) => {
                let reason = format!("no answer within {:.0} s", self.patience.as_secs_f64());
                Err(FetchError::Hub { name: name.to_owned(), reason })
            }
        }
    }

    fn complete(
        &self,
        api: &Api,
        name: &str,
        wanted: Wanted,
        listing: &RepoInfo,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<PathBuf, FetchError> {
        let has = |file: &str| listing.siblings.iter().any(|sibling| sibling.rfilename == file);
        let snapshot = Snapshot::at(&self.cache, name, &listing.sha);
        let pinned = api.repo(Repo::with_revision(name.to_owned(), RepoType::Model, listing.sha.clone()));
        let mut get = |file: &str| -> Result<PathBuf, FetchError> {
            let place = snapshot.folder.join(file);
            if place.exists() {
                return Ok(place);
            }
            let place = pinned
                .download_with_progress(file, Reporter { progress, bytes: 0 })
                .map_err(|error| refusal(&format!("{name}/{file}"), &error))?;
            check_blob(&place)?;
            Ok(place)
        };
        let required = wanted.files()[0];
        if !has(required) {
            let reason = format!("it has no {required}");
            return Err(FetchError::Hub { name: name.to_owned(), reason });
        }
        for &file in wanted.files() {
            if has(file) {
                get(file)?;
            } else {
                snapshot.note_absent(file)?;
            }
        }
        if wanted.with_weights() {
            let Some(weights) = WEIGHTS.into_iter().find(|file| has(file)) else {
                let reason = format!("it has none of {}", WEIGHTS.join(", "));
                return Err(FetchError::Hub { name: name.to_owned(), reason });
            };
            let place = get(weights)?;
            for shard in shards(&place)? {
                get(&shard)?;
            }
        }
        let cache = Cache::new(self.cache.clone());
        cache.model(name.to_owned()).create_ref(&listing.sha).map_err(FetchError::io("write", &self.cache))?;
        Ok(snapshot.folder)
    }
}

/// The files of one commit in the cache.
struct Snapshot {
    folder: PathBuf,
    absent: PathBuf,
}

impl Snapshot {
    fn at(cache: &Path, name: &str, commit: &str) -> Snapshot {
        let repo = cache.join(Repo::model(name.to_owned()).folder_name());
        Snapshot { folder: repo.join("snapshots").join(commit), absent: repo.join(".no_exist").join(commit) }
    }

    /// The commit that `main` was when the model was last fetched, if it ever was.
    fn of_main(cache: &Path, name: &str) -> Option<Snapshot> {
        let repo = cache.join(Repo::model(name.to_owned()).folder_name());
        let commit = std::fs::read_to_string(repo.join("refs/main")).ok()?;
        let snapshot = Snapshot::at(cache, name, commit.trim());
        snapshot.folder.is_dir().then_some(snapshot)
    }

    fn has(&self, file: &str) -> bool {
        self.folder.join(file).exists()
    }

    /// True exactly when nothing that could matter is unknown.
    fn is_complete(&self, wanted: Wanted) -> bool {
        wanted.files().iter().all(|file| self.has(file) || self.absent.join(file).exists()) && self.is_usable(wanted)
    }

    /// True exactly when the indispensable files are here.
    fn is_usable(&self, wanted: Wanted) -> bool {
        self.has(wanted.files()[0]) && (!wanted.with_weights() || self.has_weights())
    }

    fn has_weights(&self) -> bool {
        WEIGHTS.iter().any(|file| {
            let place = self.folder.join(file);
            place.exists() && shards(&place).is_ok_and(|shards| shards.iter().all(|shard| self.has(shard)))
        })
    }

    fn note_absent(&self, file: &str) -> Result<(), FetchError> {
        let place = self.absent.join(file);
        let folder = place.parent().expect("a file below the folder of absent files");
        std::fs::create_dir_all(folder).map_err(FetchError::io("create", folder))?;
        std::fs::write(&place, "").map_err(FetchError::io("write", &place))
    }
}

/// The files that an index of weights names; none for weights that are no index.
fn shards(weights: &Path) -> Result<Vec<String>, FetchError> {
    if weights.extension().is_none_or(|extension| extension != "json") {
        return Ok(Vec::new());
    }
    let refuse = |reason: &str| FetchError::Archive { file: weights.to_path_buf(), reason: reason.to_owned() };
    let text = std::fs::read(weights).map_err(FetchError::io("read", weights))?;
    let index: serde_json::Value = serde_json::from_slice(&text).map_err(|error| refuse(&error.to_string()))?;
    let map = index["weight_map"].as_object().ok_or_else(|| refuse("it has no weight_map"))?;
    let mut names: Vec<String> = map.values().filter_map(|name| name.as_str().map(str::to_owned)).collect();
    names.sort_unstable();
    names.dedup();
    // A name is joined to a folder, and it came from afar.
    if names.is_empty() || names.iter().any(|name| name.contains(['/', '\\']) || name.starts_with('.')) {
        return Err(refuse("its weight_map does not name files beside it"));
    }
    Ok(names)
}

/// Large files are stored under their sha256: what does not match is removed, so that the next try starts afresh.
fn check_blob(place: &Path) -> Result<(), FetchError> {
    let blob = place.canonicalize().map_err(FetchError::io("read", place))?;
    let expected = blob.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    if expected.len() != 64 || !expected.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(());
    }
    let found = wheel::sha256(&blob)?;
    if found == expected {
        return Ok(());
    }
    for file in [place, &blob] {
        std::fs::remove_file(file).map_err(FetchError::io("remove", file))?;
    }
    Err(FetchError::Checksum { file: place.to_path_buf(), expected, found })
}

fn refusal(name: &str, error: &ApiError) -> FetchError {
    let text = error.to_string();
    let reason = if ["status: 401", "status: 403", "status: 404"].iter().any(|status| text.contains(status)) {
        "it is not there, or is not public and needs a token in HF_TOKEN".to_owned()
    } else if let ApiError::IoError(error) = error
        && error.kind() == io::ErrorKind::PermissionDenied
    {
        "the cache cannot be written (HF_HOME names another place for it)".to_owned()
    } else {
        text
    };
    FetchError::Hub { name: name.to_owned(), reason }
}

/// Turns the client's calls into [`Progress`].
struct Reporter<'a> {
    progress: &'a mut dyn FnMut(Progress),
    bytes: u64,
}

impl hf_hub::api::Progress for Reporter<'_> {
    fn init(&mut self, size: usize, filename: &str) {
        self.bytes = 0;
        (self.progress)(Progress::Started { file: filename.to_owned(), bytes: size as u64 });
    }

    fn update(&mut self, size: usize) {
        self.bytes += size as u64;
        (self.progress)(Progress::Reached { bytes: self.bytes });
    }

    fn finish(&mut self) {
        (self.progress)(Progress::Finished);
    }
}
