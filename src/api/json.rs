//! Reading JSON bodies: from bytes to a tape of nodes, and from the tape to typed values with the place of what is wrong.
//!
//! simd-json checks the whole body, unescapes its strings in place and lists its values on a tape; nothing is copied and the
//! buffers are kept. What those buffers can grow to is bounded before they grow: a body is only read when it is an
//! object and holds at most `json_values_max` keys, values and brackets ([`bound_structure`]), so 4 MiB of brackets cost
//! one pass over them and no memory. Of what other parsers take, it refuses integers beyond 64 bits, wherever they stand.
//!
//! Invariant: a [`Span`] handed out here lies in the body and is UTF-8.

use std::fmt;
use std::mem;
use std::ops::Range;

use memchr::memchr2;
use simd_json::{Buffers, ErrorType, INPUT_PADDING, Node, StaticNode, Tape};

use super::{Expected, Field, Inputs, Item, JsonFault, Kind, Place, Reject};
use crate::config::Limits;
use crate::job::Span;

/// Levels of lists and objects in a body. What we read has three.
const DEPTH_MAX: usize = 64;

/// The parser keeps its memory from body to body unless a body was larger than this.
const KEPT_BODY_BYTES: usize = 1 << 20;

/// What parsing needs besides the body: kept by each worker.
pub struct Scratch {
    buffers: Buffers,
    /// Empty between two bodies.
    tape: Tape<'static>,
}

impl Default for Scratch {
    fn default() -> Scratch {
        Scratch { buffers: Buffers::with_max_depth(0, DEPTH_MAX), tape: Tape(Vec::new()) }
    }
}

impl fmt::Debug for Scratch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Scratch").field("nodes_max", &self.tape.0.capacity()).finish_non_exhaustive()
    }
}

impl Scratch {
    /// What one scratch can grow to while a body is read, in bytes.
    pub fn bytes_max(limits: &Limits) -> usize {
        // A value, key or bracket has at most one comma or colon after it; the parser notes the place of each of both.
        let places = (2 * limits.json_values_max).min(limits.body_bytes_max) + 64;
        let per_place = size_of::<u32>() + size_of::<Node<'_>>();
        // A copy of the longest escaped string and one of the body, which is made when nothing lies behind the body.
        let copies = 2 * (limits.body_bytes_max + INPUT_PADDING);
        // Vectors at most double when they grow. The first guess at the places is an eighth of the body.
        2 * (places * per_place + copies) + limits.body_bytes_max / 8 * size_of::<u32>()
    }
}

/// Reads `bytes[body]` and shows the object that it is to `visit`.
pub(super) fn read<R>(
    scratch: &mut Scratch,
    bytes: &mut [u8],
    body: Range<usize>,
    values_max: usize,
    visit: impl FnOnce(Value<'_, '_>) -> Result<R, Reject>,
) -> Result<R, Reject> {
    refuse_other_than_object(&bytes[body.clone()])?;
    bound_structure(&bytes[body.clone()], values_max)?;
    let length = body.len();
    let mut tape = mem::replace(&mut scratch.tape, Tape(Vec::new())).reset();
    let filled = if bytes.len() - body.end >= INPUT_PADDING {
        simd_json::fill_tape_padded(&mut bytes[body.start..], length, &mut scratch.buffers, &mut tape)
    } else {
        simd_json::fill_tape(&mut bytes[body.clone()], &mut scratch.buffers, &mut tape)
    };
    // A tape that could not be filled shows nothing.
    let read = filled.map(|()| visit(Value(&tape.0)));
    scratch.tape = tape.reset();
    if length > KEPT_BODY_BYTES {
        *scratch = Scratch::default();
    }
    read.unwrap_or_else(|error| Err(refuse(&error, &bytes[body])))
}

/// A look at the first byte keeps from the parser whatever cannot be a request.
fn refuse_other_than_object(body: &[u8]) -> Result<(), Reject> {
    let malformed = |fault, offset| Err(Reject::Malformed { fault, offset: Some(offset) });
    if body.starts_with(b"\xef\xbb\xbf") {
        return malformed(JsonFault::ByteOrderMark, 0);
    }
    let Some(at) = body.iter().position(|byte| !is_blank(*byte)) else {
        return malformed(JsonFault::Empty, 0);
    };
    let found = match body[at] {
        b'{' => return check_first_key(body, at + 1),
        b'[' => Kind::List,
        b'"' => Kind::Text,
        b'-' | b'0'..=b'9' => Kind::Number,
        b't' | b'f' => Kind::Boolean,
        b'n' => Kind::Null,
        _ if matches!(body, [0xff, 0xfe, ..] | [0xfe, 0xff, ..]) => return malformed(JsonFault::Utf16, 0),
        _ => return malformed(JsonFault::NoBrace, at as u32),
    };
    Err(Reject::NotAnObject { found })
}

/// Keys without quotes, or in single ones, are what other languages and some shells make of JSON: worth a word of their own.
fn check_first_key(body: &[u8], start: usize) -> Result<(), Reject> {
    match body[start..].iter().position(|byte| !is_blank(*byte)).map(|blanks| (start + blanks, body[start + blanks])) {
        Some((at, letter)) if letter == b'\'' || letter.is_ascii_alphabetic() => {
            Err(Reject::Malformed { fault: JsonFault::Unquoted, offset: Some(at as u32) })
        }
        Some(_) | None => Ok(()),
    }
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

/// What stands outside of strings, and the strings themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Structure {
    /// Strings, numbers, words and brackets of both hands.
    values: usize,
    /// Commas and colons.
    separators: usize,
}

/// Refuses a body that would fill the parser's buffers beyond their bound. A body of fewer bytes than that holds fewer
/// values and is not looked at.
fn bound_structure(body: &[u8], values_max: usize) -> Result<(), Reject> {
    if body.len() <= values_max {
        return Ok(());
    }
    count_structure(body, values_max).map(|_| ())
}

/// Counts until either count is above `values_max`.
fn count_structure(body: &[u8], values_max: usize) -> Result<Structure, Reject> {
    let mut structure = Structure::default();
    let mut at = 0;
    // Whether a number or word that begins here would be a new one.
    let mut apart = true;
    while let Some(&byte) = body.get(at) {
        let (value, separator, ends_word) = match byte {
            b'{' | b'}' | b'[' | b']' | b'"' => (true, false, true),
            b',' | b':' => (false, true, true),
            b' ' | b'\t' | b'\n' | b'\r' => (false, false, true),
            b'\\' => return Err(Reject::Malformed { fault: JsonFault::Syntax, offset: Some(at as u32) }),
            _ => (apart, false, false),
        };
        structure.values += usize::from(value);
        structure.separators += usize::from(separator);
        apart = ends_word;
        if structure.values > values_max {
            return Err(Reject::TooManyValues { max: values_max as u64 });
        }
        // Each comma or colon of a JSON text follows a value, key or bracket of its own.
        if structure.separators > values_max {
            return Err(Reject::Malformed { fault: JsonFault::Syntax, offset: Some(at as u32) });
        }
        at = if byte == b'"' { after_string(body, at + 1) } else { at + 1 };
    }
    Ok(structure)
}

/// The index after the closing quote of the string whose first byte is at `at`; the body's length if it has none.
fn after_string(body: &[u8], mut at: usize) -> usize {
    while let Some(found) = body.get(at..).and_then(|rest| memchr2(b'"', b'\\', rest)) {
        if body[at + found] == b'"' {
            return at + found + 1;
        }
        at += found + 2;
    }
    body.len()
}

/// What the parser says of `body`, in our words. Its offsets are the body's only for what is wrong outside of strings; inside
/// them there is none to find, since it has begun to unescape.
fn refuse(error: &simd_json::Error, body: &[u8]) -> Reject {
    let at = error.character().is_some().then_some(error.index());
    let (fault, offset) = match (error.error(), at) {
        (ErrorType::DepthLimitExceeded, _) => return Reject::TooDeep { max: DEPTH_MAX as u32 },
        (ErrorType::InvalidEscape, _) => (JsonFault::Escape, None),
        (ErrorType::InvalidUnicodeCodepoint, _) => (JsonFault::Codepoint, None),
        (ErrorType::InvalidUtf8, _) => {
            (JsonFault::NotUtf8, std::str::from_utf8(body).err().map(|error| error.valid_up_to()))
        }
        (ErrorType::InvalidNumber, at) => (JsonFault::Number, at),
        // Only where it runs out of structure has a plain fault of syntax a place.
        (ErrorType::Syntax, Some(_)) => (JsonFault::Cut, Some(body.len())),
        (ErrorType::Syntax, None) => locate_string_fault(body),
        (ErrorType::InternalError, Some(at)) => locate_surplus(body, at),
        // The parser's own enum: whatever else it has or will have is a fault of syntax.
        (_, at) => (JsonFault::Syntax, at),
    };
    Reject::Malformed { fault, offset: offset.map(|offset| offset as u32) }
}

/// The parser stopped at `at`: either at the bracket that closes the body, because something follows, or at a byte that
/// begins no value.
fn locate_surplus(body: &[u8], at: usize) -> (JsonFault, Option<usize>) {
    let before = body[..at].iter().rfind(|byte| !is_blank(**byte));
    let follows = body[at + 1..].iter().position(|byte| !is_blank(*byte));
    match (body[at], before, follows) {
        (b'}', Some(b':' | b',' | b'['), _) => (JsonFault::Syntax, Some(at)),
        (b'}', _, Some(blanks)) => (JsonFault::Trailing, Some(at + 1 + blanks)),
        _ => (JsonFault::Syntax, Some(at)),
    }
}

/// Before it looks at the structure, the parser refuses strings that do not end or have control characters.
fn locate_string_fault(body: &[u8]) -> (JsonFault, Option<usize>) {
    let mut at = 0;
    while let Some(opening) = body.get(at..).and_then(|rest| memchr2(b'"', b'\\', rest)).map(|found| at + found) {
        if body[opening] == b'\\' {
            return (JsonFault::Syntax, Some(opening));
        }
        at = after_string(body, opening + 1);
        if let Some(control) = body[opening..at].iter().position(|&byte| byte < 0x20) {
            return (JsonFault::ControlCharacter, Some(opening + control));
        }
        if at == body.len() {
            return (JsonFault::OpenString, Some(opening));
        }
    }
    (JsonFault::Syntax, None)
}

/// One value on the tape: its own node and, behind it, those of what it holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Value<'t, 'b>(&'t [Node<'b>]);

impl<'t, 'b> Value<'t, 'b> {
    pub(super) fn kind(self) -> Kind {
        match self.0[0] {
            Node::String(_) => Kind::Text,
            Node::Object { .. } => Kind::Object,
            Node::Array { .. } => Kind::List,
            Node::Static(StaticNode::Bool(_)) => Kind::Boolean,
            Node::Static(StaticNode::Null) => Kind::Null,
            Node::Static(StaticNode::I64(_) | StaticNode::U64(_)) => Kind::Number,
            Node::Static(StaticNode::F64(_)) => Kind::Fraction,
        }
    }

    /// The members in their order, if this is an object.
    pub(super) fn members(self) -> Option<Members<'t, 'b>> {
        match self.0[0] {
            Node::Object { len, .. } => Some(Members(Elements { nodes: &self.0[1..], left: 2 * len })),
            Node::Array { .. } | Node::String(_) | Node::Static(_) => None,
        }
    }

    /// The elements, if this is a list.
    pub(super) fn list(self) -> Option<Elements<'t, 'b>> {
        match self.0[0] {
            Node::Array { len, .. } => Some(Elements { nodes: &self.0[1..], left: len }),
            Node::Object { .. } | Node::String(_) | Node::Static(_) => None,
        }
    }

    /// For a comparison with other parsers.
    #[cfg(test)]
    pub(super) fn fraction(self) -> f64 {
        if let Node::Static(StaticNode::F64(value)) = self.0[0] { value } else { panic!("{self:?} is no fraction") }
    }

    fn wrong(self, place: Place, expected: Expected) -> Reject {
        Reject::WrongType { place, expected, found: self.kind() }
    }

    pub(super) fn text(self, place: Place, expected: Expected) -> Result<&'b str, Reject> {
        match self.0[0] {
            Node::String(text) => Ok(text),
            Node::Object { .. } | Node::Array { .. } | Node::Static(_) => Err(self.wrong(place, expected)),
        }
    }

    pub(super) fn boolean(self, place: Place) -> Result<bool, Reject> {
        match self.0[0] {
            Node::Static(StaticNode::Bool(value)) => Ok(value),
            Node::String(_) | Node::Object { .. } | Node::Array { .. } | Node::Static(_) => {
                Err(self.wrong(place, Expected::Boolean))
            }
        }
    }

    /// A number that is written without point and exponent.
    pub(super) fn whole(self, place: Place, expected: Expected) -> Result<i128, Reject> {
        match self.0[0] {
            Node::Static(StaticNode::I64(value)) => Ok(i128::from(value)),
            Node::Static(StaticNode::U64(value)) => Ok(i128::from(value)),
            Node::String(_) | Node::Object { .. } | Node::Array { .. } | Node::Static(_) => {
                Err(self.wrong(place, expected))
            }
        }
    }
}

/// Values that follow one another on the tape.
#[derive(Clone, Copy, Debug)]
pub(super) struct Elements<'t, 'b> {
    nodes: &'t [Node<'b>],
    left: usize,
}

impl<'t, 'b> Iterator for Elements<'t, 'b> {
    type Item = Value<'t, 'b>;

    fn next(&mut self) -> Option<Value<'t, 'b>> {
        self.left = self.left.checked_sub(1)?;
        let nodes = match self.nodes[0] {
            Node::Object { count, .. } | Node::Array { count, .. } => count + 1,
            Node::String(_) | Node::Static(_) => 1,
        };
        let (value, rest) = self.nodes.split_at(nodes);
        self.nodes = rest;
        Some(Value(value))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Elements<'_, '_> {}

/// The members of an object: key, value, key, value on the tape.
#[derive(Clone, Copy, Debug)]
pub(super) struct Members<'t, 'b>(Elements<'t, 'b>);

impl<'t, 'b> Iterator for Members<'t, 'b> {
    type Item = (&'b str, Value<'t, 'b>);

    fn next(&mut self) -> Option<(&'b str, Value<'t, 'b>)> {
        let key = self.0.next()?;
        let value = self.0.next().expect("each key has its value");
        match key.0[0] {
            Node::String(key) => Some((key, value)),
            Node::Object { .. } | Node::Array { .. } | Node::Static(_) => panic!("keys are strings"),
        }
    }
}

/// The fields that any route of ours reads; `None` where a field is missing or null.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fields<'t, 'b> {
    pub(super) documents: Option<Value<'t, 'b>>,
    pub(super) query: Option<Value<'t, 'b>>,
    pub(super) premises: Option<Value<'t, 'b>>,
    pub(super) hypotheses: Option<Value<'t, 'b>>,
    pub(super) input: Option<Value<'t, 'b>>,
    pub(super) model: Option<Value<'t, 'b>>,
    pub(super) encoding_format: Option<Value<'t, 'b>>,
    pub(super) dimensions: Option<Value<'t, 'b>>,
    pub(super) truncate: Option<Value<'t, 'b>>,
    pub(super) prompt_name: Option<Value<'t, 'b>>,
}

impl<'t, 'b> Fields<'t, 'b> {
    /// # Panics
    /// When `object` is none: [`read`] shows nothing else.
    pub(super) fn collect(object: Value<'t, 'b>) -> Fields<'t, 'b> {
        let mut fields = Fields::default();
        for (key, value) in object.members().expect("the body is an object") {
            let field = match key {
                "documents" => &mut fields.documents,
                "query" => &mut fields.query,
                "premises" => &mut fields.premises,
                "hypotheses" => &mut fields.hypotheses,
                "input" => &mut fields.input,
                "model" => &mut fields.model,
                "encoding_format" => &mut fields.encoding_format,
                "dimensions" => &mut fields.dimensions,
                "truncate" => &mut fields.truncate,
                "prompt_name" => &mut fields.prompt_name,
                _ => continue,
            };
            *field = (value.kind() != Kind::Null).then_some(value);
        }
        fields
    }
}

/// Where the request's buffer lies, so that strings in it can be told by their offsets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    address: usize,
    length: usize,
}

impl Origin {
    pub(super) fn of(bytes: &[u8]) -> Origin {
        assert!(u32::try_from(bytes.len()).is_ok(), "a request's buffer is below 4 GiB");
        Origin { address: bytes.as_ptr().addr(), length: bytes.len() }
    }

    pub(super) fn span(self, text: &str) -> Span {
        let start = text.as_ptr().addr().wrapping_sub(self.address);
        assert!(start <= self.length && text.len() <= self.length - start, "strings are unescaped in place");
        Span { start: start as u32, length: text.len() as u32 }
    }
}

/// What should be the texts of a field: the elements of a list, or the one value that stands for a list of one. Each
/// comes with its place and with what is expected there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Texts<'t, 'b> {
    place: Place,
    listed: bool,
    index: u32,
    elements: Elements<'t, 'b>,
}

impl<'t, 'b> Texts<'t, 'b> {
    pub(super) fn of(value: Value<'t, 'b>, field: Field) -> Texts<'t, 'b> {
        let (listed, elements) = match value.list() {
            Some(elements) => (true, elements),
            None => (false, Elements { nodes: value.0, left: 1 }),
        };
        Texts { place: Place::of(field), listed, index: 0, elements }
    }
}

impl<'t, 'b> Iterator for Texts<'t, 'b> {
    type Item = (Value<'t, 'b>, Place, Expected);

    fn next(&mut self) -> Option<Self::Item> {
        let value = self.elements.next()?;
        let index = self.index;
        self.index += 1;
        Some(match self.listed {
            true => (value, self.place.element(index), Expected::Text),
            false => (value, self.place, Expected::Texts),
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.elements.size_hint()
    }
}

impl ExactSizeIterator for Texts<'_, '_> {}

/// Whether `""` is a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EmptyText {
    Allowed,
    Refused,
}

/// Turns values into inputs within the limits.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    pub(super) origin: Origin,
    pub(super) limits: &'a Limits,
    pub(super) inputs: &'a mut Inputs,
}

impl Reader<'_> {
    /// One text within the limits.
    pub(super) fn text(
        &self,
        value: Value<'_, '_>,
        place: Place,
        expected: Expected,
        empty: EmptyText,
    ) -> Result<Span, Reject> {
        let text = value.text(place, expected)?;
        let max = self.limits.text_bytes_max;
        if text.len() > max {
            return Err(Reject::TextTooLarge { place, bytes: text.len() as u64, max: max as u64 });
        }
        if text.is_empty() && empty == EmptyText::Refused {
            return Err(Reject::EmptyText { place });
        }
        Ok(self.origin.span(text))
    }

    /// Adds an item for each text that `value` stands for.
    pub(super) fn texts(
        &mut self,
        value: Value<'_, '_>,
        field: Field,
        empty: EmptyText,
        item: impl Fn(Span) -> Item,
    ) -> Result<(), Reject> {
        let texts = Texts::of(value, field);
        self.check_count(texts.len(), Place::of(field))?;
        for (value, place, expected) in texts {
            let text = self.text(value, place, expected, empty)?;
            self.inputs.items.push(item(text));
        }
        Ok(())
    }

    /// Refuses a list of no or too many texts before any of it is read.
    pub(super) fn check_count(&self, count: usize, place: Place) -> Result<(), Reject> {
        let max = self.limits.texts_max;
        if count == 0 {
            return Err(Reject::EmptyList { place });
        }
        if count > max {
            return Err(Reject::TooManyTexts { place, count: count as u64, max: max as u64 });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::tests::{Random, limits};

    /// What simd-json itself notes of `body`, whether it can be read or not.
    fn noted(body: &[u8]) -> usize {
        let mut buffers = Buffers::with_max_depth(0, DEPTH_MAX);
        let _ = simd_json::fill_tape(&mut body.to_vec(), &mut buffers, &mut Tape(Vec::new()));
        buffers.structural_indexes().len()
    }

    #[test]
    fn structure_is_counted_outside_of_strings() {
        let cases: [(&str, usize, usize); 8] = [
            ("", 0, 0),
            ("{}", 2, 0),
            (r#"{"a":1}"#, 4, 1),
            (r#"{"a" : [true,null , -1.5e3] }"#, 8, 3),
            (r#"{"a,[]{}:\"\\":"\\"}"#, 4, 1),
            ("12 34", 2, 0),
            (r#""a"b"c"#, 3, 0),
            (r#"{"open"#, 2, 0),
        ];
        for (body, values, separators) in cases {
            let counted = count_structure(body.as_bytes(), usize::MAX);
            assert_eq!(counted, Ok(Structure { values, separators }), "{body}");
        }
    }

    #[test]
    fn the_count_bounds_what_the_parser_notes() {
        let mut random = Random(11);
        let alphabet: &[u8] = b"{}[],:\"\" \n\t1a-.\xc3\xa9\x0b\x7f\\";
        for _ in 0..20_000 {
            let length = random.below(200) as usize;
            let body: Vec<u8> = (0..length).map(|_| alphabet[random.below(alphabet.len() as u64) as usize]).collect();
            if let Ok(structure) = count_structure(&body, usize::MAX) {
                assert!(
                    noted(&body) <= structure.values + structure.separators,
                    "{:?}",
                    String::from_utf8_lossy(&body)
                );
            }
        }
    }

    #[test]
    fn counting_stops_at_the_bound() {
        let values_max = 100;
        let refused = |body: String| count_structure(body.as_bytes(), values_max).unwrap_err();
        assert_eq!(refused("[".repeat(5000)), Reject::TooManyValues { max: 100 });
        assert_eq!(refused("1 ".repeat(5000)), Reject::TooManyValues { max: 100 });
        assert_eq!(refused("\"a\",".repeat(5000)), Reject::TooManyValues { max: 100 });
        let syntax = Reject::Malformed { fault: JsonFault::Syntax, offset: Some(100) };
        assert_eq!(refused(",".repeat(5000)), syntax);
        assert!(count_structure("9".repeat(5000).as_bytes(), values_max).is_ok());
        // As many values as are allowed, with all the commas that go with them.
        let full = format!("[{}1]", "1,".repeat(97));
        assert_eq!(count_structure(full.as_bytes(), values_max), Ok(Structure { values: 100, separators: 97 }));
    }

    #[test]
    fn memory_is_kept_for_small_bodies_only() {
        let limits = limits();
        let mut scratch = Scratch::default();
        let mut read_list = |numbers: usize| {
            let mut body = format!("{{\"x\":[{}1]}}", "1,".repeat(numbers)).into_bytes();
            let whole = 0..body.len();
            read(&mut scratch, &mut body, whole, 4 * limits.json_values_max, |_| Ok(())).unwrap();
            scratch.tape.0.capacity()
        };
        assert!(read_list(1000) >= 1000);
        assert_eq!(read_list(KEPT_BODY_BYTES / 2), 0);
    }
}
