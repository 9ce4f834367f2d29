//! The fuzz target `truncation`: whatever the text, what a tokenizer writes is the beginning of what it would write without a
//! bound, however early it stops reading.
//!
//! Not part of the server: it panics on any disagreement.

use tokenizers::pipeline::PipelineToken;

use super::{Cut, EncodeScratch, Encoded, Read, Tokenizer, longest_first};

/// One model of each kind of tokenizer, among those of the tests.
pub const MODELS: [&str; 5] =
    ["bert-embedding-mean", "bert-nli", "camembert-embedding", "roberta-embedding", "xlm-roberta-embedding"];

/// More tokens than any text here has.
const ROOM_MAX: usize = 1 << 20;

/// The first three bytes say which tokenizer, how many tokens, and how the rest is made a text or a pair. Texts are repeated,
/// so that short inputs become texts that are too long. What the tokens of the text, or of both, are cut to.
///
/// # Panics
/// When an early end changes the ids, or they are not those of the longest-first rule.
pub fn truncation(tokenizers: &[Tokenizer], input: &[u8]) -> Option<Encoded> {
    let (&[which, length, form], text) = input.split_first_chunk()?;
    let text = std::str::from_utf8(text).ok()?;
    let tokenizer = &tokenizers[usize::from(which) % tokenizers.len()];
    let repeated = |text: &str, bits: u8| text.repeat(1 << (2 * (bits & 3)));
    let (first, second) = match text.split_once('\0') {
        Some((first, second)) => (repeated(first, form), Some(repeated(second, form >> 2))),
        None => (repeated(text, form), None),
    };
    let (single, pair) = tokenizer.specials();
    let specials = if second.is_some() { pair } else { single };
    let max_length = specials + usize::from(length % 64);
    let mut scratch = EncodeScratch::default();
    let mut encode = |text: (&str, Option<&str>), max_length, cut| {
        let (mut ids, mut types) = (vec![7], vec![9]);
        let encoded = tokenizer.encode(&mut scratch, text, max_length, cut, &mut ids, &mut types).ok()?;
        assert_eq!((ids.len(), types.len(), ids[0], types[0]), (encoded.length + 1, encoded.length + 1, 7, 9));
        Some((encoded, ids, types))
    };
    let texts = (&*first, second.as_deref());
    let early = encode(texts, max_length, Cut::Early);
    let late = encode(texts, max_length, Cut::Late);
    let (Some((early, ids, types)), Some((late, late_ids, late_types))) = (&early, &late) else {
        // A text may be refused only where all of it is read.
        assert!(late.is_none(), "refused at its beginning only");
        return None;
    };
    assert_eq!((ids, types), (late_ids, late_types), "stopped early: {texts:?} in {max_length}");
    assert!(early.full_length <= late.full_length && early.truncated() == late.truncated(), "{early:?} {late:?}");
    assert_eq!(late.length, late.full_length.min(max_length));

    check_ids(tokenizer, texts, max_length, late, &late_ids[1..]);
    Some(*late)
}

/// Holds the ids against the tokens of each text, cut so that the longer one gives way.
fn check_ids(
    tokenizer: &Tokenizer,
    (first, second): (&str, Option<&str>),
    max_length: usize,
    encoded: &Encoded,
    ids: &[u32],
) {
    let tokens = |text: &str| {
        let mut tokens = Vec::new();
        let read = tokenizer.tokens(text, ROOM_MAX, Cut::Late, &mut tokens);
        assert_eq!(read, Ok(Read::Whole));
        PipelineToken::cast_slice(&tokens).to_vec()
    };
    let (first, second) = (tokens(first), second.map(tokens));
    let template = tokenizer.template(second.is_some());
    let is_pair = second.is_some();
    let second = second.unwrap_or_default();
    let room = max_length - template.n_special();
    assert_eq!(encoded.full_length, first.len() + second.len() + template.n_special());

    let special = |run: &[(PipelineToken, u8)]| run.iter().map(|(id, _)| id.id()).collect::<Vec<u32>>();
    let (prefix, infix, suffix) = (special(&template.prefix), special(&template.infix), special(&template.suffix));
    let (a, b) = longest_first(first.len(), second.len(), room);
    assert_eq!(ids, [&prefix, &first[..a], &infix, &second[..b], &suffix].concat());
    assert_eq!(a + b, room.min(first.len() + second.len()), "all the room is used");
    match (a < first.len(), b < second.len()) {
        (true, true) => assert!(a.abs_diff(b) <= 1, "both are cut, to {a} and {b}"),
        // Of two equal ones that are one too long together, only one is cut.
        (true, false) => assert!(a + 1 >= b || !is_pair, "the shorter one is cut, to {a} beside {b}"),
        (false, true) => assert!(b + 1 >= a, "the shorter one is cut, to {b} beside {a}"),
        (false, false) => {}
    }
}
