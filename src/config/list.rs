//! Lists of texts, as YAML has them and as one text with commas, which is all that a variable or a flag can be.
//!
//! May not show an item: it may be a key. What is wrong is said by its place.
//!
//! Invariant: an item is the text that was written. Nothing is left out, cut off, or made of a null.

use super::tree::{Node, Value};

/// One text of a list.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Item {
    pub text: String,
    /// True exactly when it stands without quotes.
    pub plain: bool,
}

/// The texts of a list, or of a text that stands for one: `a, b` or `[a, b]`, each in quotes or not. `what` is one of them,
/// in a message.
pub(super) fn items(node: &Node, what: &str) -> Result<Vec<Item>, String> {
    let items = match &node.value {
        Value::List(nodes) => nodes.iter().enumerate().map(|(index, node)| of_node(index, node, what)).collect(),
        Value::Scalar { text, .. } => split(text),
        Value::Map(_) => Err(format!("expected a list, each a {what}, found a group of keys")),
    }?;
    for (index, item) in items.iter().enumerate() {
        let Item { text, plain } = item;
        if *plain && Node::bare(text).is_nothing() {
            let place = index + 1;
            return Err(format!(
                "{what} {place} is nothing, such as an unquoted null or ~; take it away, or write \"null\" in quotes if that text is meant"
            ));
        }
    }
    Ok(items)
}

fn of_node(index: usize, node: &Node, what: &str) -> Result<Item, String> {
    match &node.value {
        Value::Scalar { text, plain } => Ok(Item { text: text.clone(), plain: *plain }),
        Value::List(_) => Err(format!("{what} {} is a list, where a text is needed", index + 1)),
        Value::Map(_) => Err(format!("{what} {} is a group of keys, where a text is needed", index + 1)),
    }
}

const UNBALANCED: &str = "a bracket or a quote is missing, or a backslash stands in double quotes; write a, b or [a, b], a text with single brackets in quotes, and one with a backslash in single quotes";

/// The items of `a, b` or `[a, b]`.
fn split(text: &str) -> Result<Vec<Item>, String> {
    let text = text.trim();
    let inner = match text.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').ok_or(UNBALANCED)?,
        None => text,
    };
    let mut items = Vec::new();
    let mut rest = Some(inner.trim()).filter(|inner| !inner.is_empty());
    while let Some(text) = rest {
        let (item, behind) = first(text).ok_or(UNBALANCED)?;
        items.push(item);
        rest = behind.map(str::trim_start);
    }
    Ok(items)
}

/// The first item, and what stands behind its comma.
fn first(text: &str) -> Option<(Item, Option<&str>)> {
    if let Some(quote) = text.chars().next().filter(|letter| matches!(letter, '"' | '\'')) {
        let (quoted, behind) = text[1..].split_once(quote)?;
        // To YAML and JSON the beginning of another letter.
        if quote == '"' && quoted.contains('\\') {
            return None;
        }
        let item = Item { text: quoted.to_owned(), plain: false };
        let behind = behind.trim_start();
        return match behind.is_empty() {
            true => Some((item, None)),
            false => behind.strip_prefix(',').map(|behind| (item, Some(behind))),
        };
    }
    let (bare, behind) = text.split_once(',').map_or((text, None), |(bare, behind)| (bare, Some(behind)));
    let bare = bare.trim();
    let is_whole = has_pairs(bare) && !bare.ends_with(['"', '\'']);
    is_whole.then(|| (Item { text: bare.to_owned(), plain: true }, behind))
}

/// Whether it begins with no bracket and each has its partner, as in `http://[::1]:80`.
fn has_pairs(text: &str) -> bool {
    let mut open = 0;
    for letter in text.bytes() {
        match letter {
            b'[' => open += 1,
            b']' if open == 0 => return false,
            b']' => open -= 1,
            _ => {}
        }
    }
    open == 0 && !text.starts_with('[')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Result<Vec<String>, String> {
        items(&Node::bare(text), "word").map(|items| items.into_iter().map(|item| item.text).collect())
    }

    #[test]
    fn a_text_stands_for_a_list() {
        let right: [(&str, &[&str]); 12] = [
            ("", &[]),
            ("[]", &[]),
            (" [ ] ", &[]),
            ("a", &["a"]),
            ("a, b ,c", &["a", "b", "c"]),
            (" [a, b] ", &["a", "b"]),
            (r"a\b, 'c\d'", &[r"a\b", r"c\d"]),
            ("'a, b', \"c\" , d", &["a, b", "c", "d"]),
            ("[\"a\"]", &["a"]),
            ("http://[::1]:80,http://[::1]", &["http://[::1]:80", "http://[::1]"]),
            ("[http://[::1], 'null']", &["http://[::1]", "null"]),
            ("it's, 007, 1e3, 0x10, true, '[', \"\"", &["it's", "007", "1e3", "0x10", "true", "[", ""]),
        ];
        for (text, expected) in right {
            assert_eq!(texts(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn half_a_pair_is_refused_without_showing_what_is_in_it() {
        let wrong = [
            "[a, b",
            "a, b]",
            "[",
            "]",
            "[a]b",
            "[a], [b]",
            "[[a]]",
            "a]b[c",
            "\"a, b",
            "a\", b",
            "\"a\\u003cb\"",
            "[\"c\\\\d\"]",
            "'a' b",
            "'",
            "a'",
        ];
        for text in wrong {
            assert_eq!(texts(text), Err(UNBALANCED.to_owned()), "{text}");
        }
        for nothing in ["a,", ",", "[a, null]", "~", "a,,b", "[NULL]"] {
            let error = texts(nothing).unwrap_err();
            assert!(error.starts_with("word ") && error.contains(" is nothing, such as an unquoted null"), "{error}");
        }
    }
}
