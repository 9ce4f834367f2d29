//! YAML as a tree that remembers lines.
//!
//! A configuration is small, so the tree owns its text. Bounds: nodes in all (aliases count what they repeat, and anchors what
//! is kept for them, so that a few lines cannot grow to gigabytes) and nesting, which the parser itself limits to 255.

use std::collections::HashMap;

use granit_parser::{Event, Parser, ScalarStyle, Span};

/// The nodes one file may have.
const NODES_MAX: usize = 100_000;

#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Counted from 1; for a scalar after a key, the key's line.
    pub line: usize,
    pub value: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `plain` is true exactly when the scalar stands without quotes, so that it may be a number, a switch or nothing.
    Scalar {
        text: String,
        plain: bool,
    },
    List(Vec<Node>),
    /// In the file's order.
    Map(Vec<(Word, Node)>),
}

/// A mapping's key.
#[derive(Clone, Debug, PartialEq)]
pub struct Word {
    pub line: usize,
    pub text: String,
}

impl Node {
    /// What stands in a variable or behind a flag.
    pub fn bare(text: &str) -> Node {
        Node { line: 0, value: Value::Scalar { text: text.to_owned(), plain: true } }
    }

    /// True for `key:` with nothing behind it, `~` and `null`.
    pub fn is_nothing(&self) -> bool {
        match &self.value {
            Value::Scalar { text, plain: true } => matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"),
            Value::Scalar { plain: false, .. } | Value::List(_) | Value::Map(_) => false,
        }
    }

    /// What this is, for a message that says what was found.
    pub fn describe(&self) -> String {
        if self.is_nothing() {
            return "nothing".to_owned();
        }
        match &self.value {
            Value::Scalar { text, plain: true } if text.parse::<f64>().is_ok() => text.clone(),
            Value::Scalar { text, .. } if text.is_empty() => "an empty text".to_owned(),
            Value::Scalar { text, .. } if text.trim().is_empty() => "a text of blanks".to_owned(),
            Value::Scalar { text, .. } => format!("the text {}", shown(text)),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a group of keys".to_owned(),
        }
    }
}

/// A text in quotes, cut where it is too long for a sentence.
pub(super) fn shown(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

/// Parses one document. An empty one is an empty map.
///
/// # Errors
/// The line and what is wrong there.
pub fn parse(text: &str) -> Result<Node, (usize, String)> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut source = Source { parser: Parser::new_from_str(text), anchors: HashMap::new(), nodes: 0 };
    let mut root = None;
    loop {
        let (event, span) = source.next()?;
        match event {
            Event::StreamEnd => break,
            Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd => {}
            _ if root.is_some() => return Err((line(&span), "a second document; one file is one document".to_owned())),
            event => root = Some(source.node(event, &span)?),
        }
    }
    let empty = Node { line: 1, value: Value::Map(Vec::new()) };
    Ok(root.filter(|root| !root.is_nothing()).unwrap_or(empty))
}

fn line(span: &Span) -> usize {
    span.start.line()
}

struct Source<'a> {
    parser: Parser<'a, granit_parser::StrInput<'a>>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
}

impl<'a> Source<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Span), (usize, String)> {
        match self.parser.next() {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => Err((error.marker().line(), error.info())),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn count(&mut self, nodes: usize, at: &Span) -> Result<(), (usize, String)> {
        self.nodes += nodes;
        if self.nodes > NODES_MAX {
            return Err((line(at), format!("more than {NODES_MAX} values")));
        }
        Ok(())
    }

    /// The node that begins with `event`.
    fn node(&mut self, event: Event<'a>, span: &Span) -> Result<Node, (usize, String)> {
        self.count(1, span)?;
        let (value, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let is_text = tag.is_some_and(|tag| tag.suffix() == "str");
                let plain = style == ScalarStyle::Plain && !is_text;
                (Value::Scalar { text: text.into_owned(), plain }, anchor)
            }
            Event::SequenceStart(_, anchor, _) => (Value::List(self.list()?), anchor),
            Event::MappingStart(_, anchor, _) => (Value::Map(self.map()?), anchor),
            Event::Alias(anchor) => {
                // An alias inside the very node it names finds nothing here, which is as it should be.
                let node = self.anchors.get(&anchor).cloned();
                let node = node.ok_or_else(|| (line(span), "an alias to a value that is not complete".to_owned()))?;
                self.count(weight(&node), span)?;
                return Ok(node);
            }
            other => return Err((line(span), format!("a value was expected here, not {other:?}"))),
        };
        let node = Node { line: line(span), value };
        if anchor != 0 {
            // What has a name is kept twice, once more for each named value around it.
            self.count(weight(&node), span)?;
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn list(&mut self) -> Result<Vec<Node>, (usize, String)> {
        let mut items = Vec::new();
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::SequenceEnd => return Ok(items),
                event => items.push(self.node(event, &span)?),
            }
        }
    }

    fn map(&mut self) -> Result<Vec<(Word, Node)>, (usize, String)> {
        let mut entries = Vec::new();
        loop {
            let (event, span) = self.next()?;
            let key = match event {
                Event::MappingEnd => return Ok(entries),
                event => self.node(event, &span)?,
            };
            let Value::Scalar { text, .. } = key.value else {
                return Err((line(&span), "a key must be a word".to_owned()));
            };
            let word = Word { line: line(&span), text };
            let (event, span) = self.next()?;
            let mut node = self.node(event, &span)?;
            if let Value::Scalar { .. } = node.value {
                node.line = word.line;
            }
            entries.push((word, node));
        }
    }
}

/// Nodes of a subtree.
fn weight(node: &Node) -> usize {
    match &node.value {
        Value::Scalar { .. } => 1,
        Value::List(items) => 1 + items.iter().map(weight).sum::<usize>(),
        Value::Map(entries) => 1 + entries.iter().map(|(_, node)| 1 + weight(node)).sum::<usize>(),
    }
}
