//! Whom a run talks to, and in which words: a URL, a family of routes, a task.
//!
//! Owns paths, bodies and the shape of the answers of every family. Pure functions, resolving a host's name aside.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};

use clap::ValueEnum;

use crate::check::Shape;

/// The family of routes that the server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Api {
    /// `POST /infer/{model}`: reactrt, and the server it replaces
    Native,
    /// `POST /v1/embeddings` (infinity: with --path /embeddings)
    Openai,
    /// `POST /embed`, `/rerank`, `/predict`: text-embeddings-inference
    Tei,
    /// `POST /v2/rerank`
    Cohere,
    /// `POST /embed` with `texts`
    Old,
    /// Whatever `--path` and `--bodies` say; only status and length are checked
    Raw,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Task {
    Embedding,
    #[value(alias = "reranker", alias = "rerank")]
    Reranking,
    Nli,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Encoding {
    Float,
    Base64,
}

impl fmt::Display for Api {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Api::Native => "native",
            Api::Openai => "openai",
            Api::Tei => "tei",
            Api::Cohere => "cohere",
            Api::Old => "old",
            Api::Raw => "raw",
        })
    }
}

impl fmt::Display for Task {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Task::Embedding => "embedding",
            Task::Reranking => "reranking",
            Task::Nli => "nli",
        })
    }
}

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// As it was given, without a slash at its end.
    pub url: String,
    /// For the `host` field.
    pub authority: String,
    /// What stands before every path; empty or beginning with a slash.
    pub base: String,
    pub addresses: Vec<SocketAddr>,
}

impl Place {
    /// # Errors
    /// A URL that is none, another scheme than http, a host without an address.
    pub fn parse(url: &str) -> Result<Place, String> {
        let wrong = |reason: &str| format!("--url {url}: {reason}");
        let rest = match url.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest,
            Some((scheme, _)) if scheme.eq_ignore_ascii_case("https") => {
                return Err(wrong("plain HTTP alone is spoken here; give the http:// address behind the TLS proxy"));
            }
            Some((scheme, _)) => return Err(wrong(&format!("the scheme {scheme:?} is not http"))),
            None => return Err(wrong("a URL begins with http://")),
        };
        let (authority, base) = rest.split_once('/').map_or((rest, ""), |(authority, base)| (authority, base));
        let base = base.trim_end_matches('/');
        if authority.contains('@')
            || rest.contains(['?', '#', ' '])
            || !rest.bytes().all(|byte| byte.is_ascii_graphic())
        {
            return Err(wrong("only a host, a port and a path may stand there"));
        }
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                (host, port.parse().map_err(|_| wrong(&format!("{port:?} is not a port")))?)
            }
            Some(_) | None => (authority, 80),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() {
            return Err(wrong("there is no host in it"));
        }
        let addresses = (host, port).to_socket_addrs().map_err(|error| wrong(&format!("{host}: {error}")))?;
        let addresses: Vec<SocketAddr> = addresses.collect();
        if addresses.is_empty() {
            return Err(wrong(&format!("{host} has no address")));
        }
        let base = if base.is_empty() { String::new() } else { format!("/{base}") };
        Ok(Place { url: url.trim_end_matches('/').to_owned(), authority: authority.to_owned(), base, addresses })
    }
}

/// The words of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wording {
    /// Texts, documents or premises: what answers are counted by.
    pub texts: Vec<String>,
    /// The query (one), or the hypotheses (as many as premises); else empty.
    pub against: Vec<String>,
}

impl Wording {
    /// How many further texts a request of `texts` needs.
    pub fn against_count(task: Task, texts: u32) -> u32 {
        match task {
            Task::Embedding => 0,
            Task::Reranking => 1,
            Task::Nli => texts,
        }
    }

    /// Result number `index` in words, for whoever compares samples.
    pub fn describe(&self, index: usize) -> String {
        match self.against.len() {
            0 => self.texts[index].clone(),
            1 if self.texts.len() != 1 => format!("{}\t{}", self.against[0], self.texts[index]),
            _ => format!("{}\t{}", self.against[index.min(self.against.len() - 1)], self.texts[index]),
        }
    }
}

/// How requests are worded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family {
    pub api: Api,
    pub task: Task,
    pub encoding: Encoding,
    /// May be empty where the family does without.
    pub model: String,
    /// Instead of the family's own.
    pub path: Option<String>,
}

impl Family {
    /// # Errors
    /// A task that the family has no route for, a missing model or path.
    pub fn check(&self) -> Result<(), String> {
        let no_route = |tasks: &str| Err(format!("--api {} serves {tasks} only, not --task {}", self.api, self.task));
        match (self.api, self.task) {
            (Api::Native | Api::Openai, _) if self.model.is_empty() => {
                return Err(format!("--model is missing; --api {} names the model in each request", self.api));
            }
            (Api::Openai, Task::Nli) => return no_route("embedding and reranking"),
            (Api::Cohere, Task::Embedding | Task::Nli) => return no_route("reranking"),
            (Api::Old, Task::Reranking | Task::Nli) => return no_route("embedding"),
            (Api::Raw, _) if self.path.is_none() => {
                return Err("--path is missing; --api raw has none of its own".to_owned());
            }
            (Api::Native | Api::Openai | Api::Tei | Api::Cohere | Api::Old | Api::Raw, _) => {}
        }
        match &self.path {
            Some(path) if !path.starts_with('/') || !path.bytes().all(|byte| byte.is_ascii_graphic()) => {
                Err(format!("--path {path}: a path begins with a slash and holds no blanks"))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Without the URL's own part.
    pub fn path(&self) -> String {
        if let Some(path) = &self.path {
            return path.clone();
        }
        match (self.api, self.task) {
            (Api::Native, _) => format!("/infer/{}", escaped(&self.model)),
            (Api::Openai, _) => "/v1/embeddings".to_owned(),
            (Api::Tei | Api::Old, Task::Embedding) => "/embed".to_owned(),
            (Api::Tei | Api::Old, Task::Reranking) => "/rerank".to_owned(),
            (Api::Tei | Api::Old, Task::Nli) => "/predict".to_owned(),
            (Api::Cohere, _) => "/v2/rerank".to_owned(),
            (Api::Raw, _) => "/".to_owned(),
        }
    }

    pub fn body(&self, wording: &Wording) -> Vec<u8> {
        use serde_json::json;
        let (texts, against, model) = (&wording.texts, &wording.against, &self.model);
        let query = against.first();
        let body = match (self.api, self.task) {
            (Api::Native, Task::Embedding) => json!({ "documents": texts }),
            (Api::Native, Task::Reranking) => json!({ "query": query, "documents": texts }),
            (Api::Native, Task::Nli) => json!({ "premises": texts, "hypotheses": against }),
            (Api::Openai, Task::Reranking) => json!({ "model": model, "query": query, "input": texts }),
            (Api::Openai, Task::Embedding | Task::Nli) => {
                // Said in any case: the format by default differs among servers.
                let format = if self.shape() == Shape::OpenaiBase64 { "base64" } else { "float" };
                json!({ "model": model, "input": texts, "encoding_format": format })
            }
            (Api::Tei, Task::Embedding) => json!({ "inputs": texts }),
            (Api::Tei, Task::Reranking) => json!({ "query": query, "texts": texts }),
            (Api::Tei, Task::Nli) => {
                let pairs: Vec<[&String; 2]> = texts.iter().zip(against).map(|(text, other)| [text, other]).collect();
                json!({ "inputs": pairs })
            }
            (Api::Cohere, _) => json!({ "model": model, "query": query, "documents": texts }),
            (Api::Old, _) => json!({ "texts": texts }),
            (Api::Raw, _) => json!(texts),
        };
        body.to_string().into_bytes()
    }

    pub fn shape(&self) -> Shape {
        match (self.api, self.task, self.encoding) {
            (Api::Native, Task::Embedding, _) | (Api::Old, ..) => Shape::Embeddings,
            (Api::Native, Task::Reranking, _) => Shape::Scores,
            (Api::Native, Task::Nli, _) => Shape::Predictions,
            (Api::Openai, Task::Reranking, _) => Shape::OpenaiScores,
            (Api::Openai, _, Encoding::Base64) => Shape::OpenaiBase64,
            (Api::Openai, _, Encoding::Float) => Shape::OpenaiVectors,
            (Api::Tei, Task::Embedding, _) => Shape::BareVectors,
            (Api::Tei, Task::Reranking, _) => Shape::BareRanking,
            (Api::Tei, Task::Nli, _) => Shape::BarePredictions,
            (Api::Cohere, ..) => Shape::Results,
            (Api::Raw, ..) => Shape::Anything { bytes: None },
        }
    }
}

/// A name inside a path: what is neither letter, digit nor one of `-._~` is written by its bytes.
fn escaped(name: &str) -> String {
    let mut path = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => path.push(char::from(byte)),
            _ => path.push_str(&format!("%{byte:02X}")),
        }
    }
    path
}

/// One whole request as it goes over the wire; a GET where there is no body.
pub fn encode(place: &Place, path: &str, fields: &[String], body: Option<&[u8]>, close: bool, out: &mut Vec<u8>) {
    let method = if body.is_some() { "POST" } else { "GET" };
    let mut head = format!("{method} {}{path} HTTP/1.1\r\nhost: {}\r\n", place.base, place.authority);
    if let Some(body) = body {
        head.push_str(&format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len()));
    }
    for field in fields {
        head.push_str(&format!("{field}\r\n"));
    }
    head.push_str(if close { "connection: close\r\n\r\n" } else { "\r\n" });
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(body.unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let place = Place::parse("http://127.0.0.1:8887/").unwrap();
        assert_eq!((place.authority.as_str(), place.base.as_str()), ("127.0.0.1:8887", ""));
        assert_eq!(place.url, "http://127.0.0.1:8887");
        assert_eq!(place.addresses, ["127.0.0.1:8887".parse().unwrap()]);
        let place = Place::parse("HTTP://[::1]/a/b/").unwrap();
        assert_eq!((place.authority.as_str(), place.base.as_str()), ("[::1]", "/a/b"));
        assert_eq!(place.addresses, ["[::1]:80".parse().unwrap()]);
        for (url, part) in [
            ("https://localhost", "plain HTTP alone"),
            ("localhost:8887", "begins with http://"),
            ("ftp://localhost", "not http"),
            ("http://", "no host"),
            ("http://:80", "no host"),
            ("http:///path", "no host"),
            ("http://localhost:abc", "not a port"),
            ("http://localhost:99999", "not a port"),
            ("http://me@localhost", "only a host"),
            ("http://localhost/?x", "only a host"),
        ] {
            let error = Place::parse(url).unwrap_err();
            assert!(error.contains(part), "{url}: {error}");
        }
    }

    #[test]
    fn bodies_are_those_of_the_families() {
        let wording = Wording { texts: vec!["a \"b\"".into(), "c".into()], against: vec!["q".into(), "r".into()] };
        let body = |api, task, encoding| {
            let family = Family { api, task, encoding, model: "m".into(), path: None };
            family.check().unwrap();
            (family.path(), serde_json::from_slice::<serde_json::Value>(&family.body(&wording)).unwrap().to_string())
        };
        use Encoding::{Base64, Float};
        use Task::{Embedding, Nli, Reranking};
        let texts = r#"["a \"b\"","c"]"#;
        let cases = [
            ((Api::Native, Embedding, Float), "/infer/m", format!(r#"{{"documents":{texts}}}"#)),
            ((Api::Native, Reranking, Float), "/infer/m", format!(r#"{{"documents":{texts},"query":"q"}}"#)),
            ((Api::Native, Nli, Float), "/infer/m", format!(r#"{{"hypotheses":["q","r"],"premises":{texts}}}"#)),
            (
                (Api::Openai, Embedding, Base64),
                "/v1/embeddings",
                format!(r#"{{"encoding_format":"base64","input":{texts},"model":"m"}}"#),
            ),
            (
                (Api::Openai, Reranking, Float),
                "/v1/embeddings",
                format!(r#"{{"input":{texts},"model":"m","query":"q"}}"#),
            ),
            ((Api::Tei, Embedding, Float), "/embed", format!(r#"{{"inputs":{texts}}}"#)),
            ((Api::Tei, Reranking, Float), "/rerank", format!(r#"{{"query":"q","texts":{texts}}}"#)),
            ((Api::Tei, Nli, Float), "/predict", r#"{"inputs":[["a \"b\"","q"],["c","r"]]}"#.to_owned()),
            (
                (Api::Cohere, Reranking, Float),
                "/v2/rerank",
                format!(r#"{{"documents":{texts},"model":"m","query":"q"}}"#),
            ),
            ((Api::Old, Embedding, Float), "/embed", format!(r#"{{"texts":{texts}}}"#)),
        ];
        for ((api, task, encoding), path, expected) in cases {
            assert_eq!(body(api, task, encoding), (path.to_owned(), expected));
        }
    }

    #[test]
    fn what_a_family_has_no_route_for_is_said() {
        let family =
            |api, task, model: &str| Family { api, task, encoding: Encoding::Float, model: model.into(), path: None };
        assert!(family(Api::Cohere, Task::Embedding, "m").check().unwrap_err().contains("reranking only"));
        assert!(family(Api::Openai, Task::Nli, "m").check().unwrap_err().contains("embedding and reranking only"));
        assert!(family(Api::Native, Task::Nli, "").check().unwrap_err().contains("--model is missing"));
        assert!(family(Api::Raw, Task::Embedding, "").check().unwrap_err().contains("--path is missing"));
        assert_eq!(family(Api::Native, Task::Nli, "a/b c").path(), "/infer/a%2Fb%20c");
    }
}
