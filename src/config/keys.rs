//! API keys, from the configuration and from a file of their own.
//!
//! May not show one: not in messages, not in what `check` prints, not in debug forms. What is wrong with a key is said by its
//! place.
//!
//! Invariant: a key is 1 to [`KEY_BYTES_MAX`] bytes of visible ASCII, as it must stand in a header field.

use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::list;
use super::source;
use super::table::Codec;
use super::tree::{Node, Value};
use crate::log;

/// Longer than any key that a generator makes.
const KEY_BYTES_MAX: usize = 512;

/// Each request is compared with every key.
const KEYS_MAX: usize = 1_000;

const FILE_BYTES_MAX: u64 = 1 << 20;

#[derive(Clone, Default, PartialEq, Eq)]
pub struct ApiKeys(Vec<String>);

/// Why a text cannot be a key, without showing it.
fn fault(key: &str) -> Option<String> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        return Some(format!("has {} bytes, it may have 1 to {KEY_BYTES_MAX}", key.len()));
    }
    let is_visible = key.bytes().all(|byte| byte.is_ascii_graphic());
    (!is_visible)
        .then(|| "has a blank, a control character or a letter beyond ASCII, which no header field carries".to_owned())
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} keys", self.0.len())
    }
}

impl ApiKeys {
    /// # Errors
    /// Which key cannot be one and why, without showing it.
    pub fn new(keys: Vec<String>) -> Result<ApiKeys, String> {
        if keys.len() > KEYS_MAX {
            return Err(format!("{} keys, there may be {KEYS_MAX}", keys.len()));
        }
        for (index, key) in keys.iter().enumerate() {
            let place = index + 1;
            if let Some(words) = fault(key) {
                return Err(format!("key {place} {words}"));
            }
        }
        Ok(ApiKeys(keys))
    }

    pub fn list(&self) -> &[String] {
        &self.0
    }

    /// These keys and those of a file: one a line, without blanks around it; lines that begin with `#` are passed over.
    ///
    /// # Errors
    /// A sentence that names the file.
    pub fn with_file(&self, path: &Path) -> Result<ApiKeys, String> {
        let place = format!("server.api_keys_file: {}", path.display());
        let bytes = source::read(path, FILE_BYTES_MAX).map_err(|words| format!("{place} {words}"))?;
        let readable_by_all =
            path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o004 != 0);
        if readable_by_all {
            log::warn(format_args!("{place} can be read by everybody on this machine: chmod 600 keeps it"));
        }
        let text = String::from_utf8(bytes).map_err(|_| format!("{place} is not UTF-8 text"))?;
        let lines = (1..).zip(text.lines().map(str::trim));
        let mut found = Vec::new();
        for (number, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
            if let Some(words) = fault(line) {
                return Err(format!("{place}:{number}: the key {words}; comments stand on lines of their own"));
            }
            found.push(line.to_owned());
        }
        if found.is_empty() {
            return Err(format!("{place} has no key in it: each stands on a line of its own"));
        }
        let all = self.0.iter().cloned().chain(found).collect();
        ApiKeys::new(all).map_err(|message| format!("{place}: with those of server.api_keys, {message}"))
    }
}

/// A list, or texts with commas between them.
pub(super) struct KeyList;

/// Who writes one of these without quotes switches something, and does not make up a secret.
const SWITCHES: [&str; 7] = ["true", "false", "yes", "no", "on", "off", "none"];

impl Codec<ApiKeys> for KeyList {
    fn read(&self, node: &Node) -> Result<ApiKeys, String> {
        const WHAT: &str = "expected a list of keys; what was found is not shown";
        const EMPTY: &str = "expected keys, found nothing; [] means that nobody needs one";
        match &node.value {
            Value::Map(_) => return Err(WHAT.to_owned()),
            // Only the empty list is none: a secret that is not set where a variable or flag asks for it must not open the server.
            Value::Scalar { text, .. } if text.trim().is_empty() || node.is_nothing() => return Err(EMPTY.to_owned()),
            Value::Scalar { .. } | Value::List(_) => {}
        }
        let keys = list::items(node, "key")?;
        let is_switch =
            |item: &list::Item| item.plain && SWITCHES.iter().any(|word| item.text.eq_ignore_ascii_case(word));
        if let Some(index) = keys.iter().position(is_switch) {
            let place = index + 1;
            return Err(format!(
                "key {place} is a word such as true or off, which everybody guesses; [] means that nobody needs a key, and in \
                 quotes the word is one"
            ));
        }
        ApiKeys::new(keys.into_iter().map(|key| key.text.trim().to_owned()).collect())
    }

    fn show(&self, value: &ApiKeys) -> String {
        match value.0.len() {
            0 => "[]".to_owned(),
            1 => "one key, not shown".to_owned(),
            count => format!("{count} keys, not shown"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_one_key_a_line() {
        let folder = std::env::temp_dir().join(format!("reactrt-keys-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("keys");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            ApiKeys::new(vec!["own".into()]).unwrap().with_file(&path)
        };
        assert_eq!(read("# mine\n  one \r\n\ntwo\n").unwrap().list(), ["own", "one", "two"]);
        assert!(read("# nobody's\n").unwrap_err().contains("no key in it"));
        let error = read("good\nsecret words\n").unwrap_err();
        assert!(error.contains("keys:2: the key has a blank") && !error.contains("secret"), "{error}");
        let edge = format!("#{}\nlong-key\n", "-".repeat(FILE_BYTES_MAX as usize - 6));
        let error = read(&edge).unwrap_err();
        assert!(error.contains("has more than 1048576 bytes") && !error.contains("long"), "{error}");
        assert!(ApiKeys::default().with_file(&folder.join("none")).unwrap_err().contains("cannot be read"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
