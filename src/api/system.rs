//! The bodies of the routes that run no model: what is served, and whether it is ready.
//!
//! These do not change while the server runs, or only with its readiness; the reactor writes them once and keeps them.
//! They append to a buffer that grows with the number of models.

use super::{Catalog, Entry, write};
use crate::model::Task;

/// `GET /models`: the names by task, in the configuration's order.
pub fn models(catalog: &Catalog, out: &mut Vec<u8>) {
    let lists =
        [(Task::Embedding, "embedding_models"), (Task::Reranking, "reranking_models"), (Task::Nli, "nli_models")];
    out.extend_from_slice(b"{\"models\":{");
    separated(out, lists.iter(), |out, (task, key)| {
        write::string(out, key);
        out.extend_from_slice(b":[");
        let named = catalog.entries().iter().filter(|entry| entry.task == *task);
        separated(out, named, |out, entry| write::string(out, &entry.name));
        out.push(b']');
    });
    out.extend_from_slice(b"}}");
}

/// `GET /v1/models`. `created_s`: when the models came to be served, in seconds since 1970.
pub fn models_openai(catalog: &Catalog, created_s: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"object\":\"list\",\"data\":[");
    separated(out, catalog.entries().iter(), |out, entry: &Entry| {
        out.extend_from_slice(b"{\"id\":");
        write::string(out, &entry.name);
        out.extend_from_slice(b",\"object\":\"model\",\"created\":");
        write::count(out, created_s);
        out.extend_from_slice(b",\"owned_by\":\"reactrt\"}");
    });
    out.extend_from_slice(b"]}");
}

fn separated<T>(out: &mut Vec<u8>, items: impl Iterator<Item = T>, mut write: impl FnMut(&mut Vec<u8>, T)) {
    for (index, item) in items.enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write(out, item);
    }
}

/// Whether requests for models are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Models are being loaded and warmed.
    Starting,
    Ready,
    /// No new requests; those that are here are finished.
    Draining,
    /// Some model has no device left to run on.
    Dead,
}

impl Readiness {
    /// The status of `GET /health/ready`.
    pub fn status(self) -> u16 {
        match self {
            Readiness::Ready => 200,
            Readiness::Starting | Readiness::Draining | Readiness::Dead => 503,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Readiness::Starting => "starting",
            Readiness::Ready => "ready",
            Readiness::Draining => "draining",
            Readiness::Dead => "device dead",
        }
    }

    /// The body of `GET /health/ready`: the whole, and each device by its name.
    pub fn write<'a>(self, devices: impl Iterator<Item = (&'a str, bool)>, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"status\":");
        write::string(out, self.name());
        out.extend_from_slice(b",\"devices\":{");
        separated(out, devices, |out, (name, ready)| {
            write::string(out, name);
            out.push(b':');
            write::string(out, if ready { "ready" } else { "dead" });
        });
        out.extend_from_slice(b"}}");
    }
}

/// The body of `GET /health/live`, which is answered as long as the reactor turns.
pub const LIVE: &str = "{\"status\":\"live\"}";
