//! Which shapes an engine is built for: buckets, the default ladder, and shapes as trtexec takes them.
//!
//! Pure functions from what was asked and what the network's inputs are to optimization profiles. Invariant: every profile
//! that leaves here names each input that is not fixed, in a shape that the network allows; what does not fit is an error
//! that names the input, the shape and what is allowed.

use std::str::FromStr;

use crate::device::{Bucket, Layout};
use crate::model::convert::{ATTENTION_MASK, CLS_INDEX, INPUT_IDS, POSITION_IDS, SEGMENT_IDS, TOKEN_TYPE_IDS};
use crate::model::engine::{Profile, ShapeRange, Tensor, shape_words};

/// No dimension of a batch comes near.
const SIZE_MAX: i64 = 1 << 20;

/// Tokens of one bucket at most.
const TOKENS_MAX: u64 = 1 << 24;

/// Optimization profiles of one engine at most: each takes its time to build, and memory on every lane.
pub const PROFILES_MAX: usize = 64;

/// Tokens that the default ladder's largest buckets hold, unless one text alone has more. Measured: a batch of 8,192 tokens
/// keeps a large GPU busy, and twice as many bring half a hundredth more tokens a second.
pub const LADDER_TOKENS: usize = 8192;

/// Tokens of the default ladder's packed rows. Attention's cost rises with a row's length, 64 × 128 tokens take 0.95 of what 32 ×
/// 256 and 0.87 of what 16 × 512 take, but long texts need long rows.
const ROW_TOKENS: usize = 256;

/// A bucket as the command line has it: `8x128`, or `8x128:64` with the number of sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskedBucket {
    pub rows: u32,
    pub length: u32,
    /// `None`: [`sequences`].
    pub sequences: Option<u32>,
}

impl FromStr for AskedBucket {
    type Err = String;

    fn from_str(text: &str) -> Result<AskedBucket, String> {
        let wrong = || {
            let text = text.escape_debug();
            format!("`{text}` is no bucket; 8x128 is one of 8 rows of 128 tokens, 8x128:64 holds 64 texts")
        };
        let number = |digits: &str| digits.trim().parse::<u32>().ok().filter(|&number| number > 0).ok_or_else(wrong);
        let (shape, sequences) = match text.split_once(':') {
            Some((shape, sequences)) => (shape, Some(number(sequences)?)),
            None => (text, None),
        };
        let (rows, length) = shape.split_once(['x', 'X']).ok_or_else(wrong)?;
        let bucket = AskedBucket { rows: number(rows)?, length: number(length)?, sequences };
        let tokens = u64::from(bucket.rows) * u64::from(bucket.length);
        if tokens > TOKENS_MAX {
            return Err(format!("`{text}` is a bucket of {tokens} tokens; at most {TOKENS_MAX} are allowed"));
        }
        match sequences {
            Some(sequences) if u64::from(sequences) > tokens => {
                Err(format!("`{text}`: {sequences} sequences do not fit into {tokens} tokens"))
            }
            Some(_) | None => Ok(bucket),
        }
    }
}

/// Sequences that a bucket holds if nobody says: one per row where rows are padded; packed, one for each 16 tokens, as texts
/// are seldom shorter, and at least one per row.
pub fn sequences(layout: Layout, rows: u32, length: u32) -> u32 {
    match layout {
        Layout::Padded => rows,
        Layout::Packed => rows * (length / 16).max(1),
    }
}

/// The buckets that were asked for, checked against the layout and the model's length.
pub fn buckets(asked: &[AskedBucket], layout: Layout, max_length: Option<usize>) -> Result<Vec<Bucket>, String> {
    check_asked(asked)?;
    let mut buckets: Vec<Bucket> = Vec::with_capacity(asked.len());
    for &AskedBucket { rows, length, sequences: sequences_asked } in asked {
        let sequences_max = sequences_asked.unwrap_or_else(|| sequences(layout, rows, length));
        if layout == Layout::Padded && sequences_max != rows {
            return Err(format!(
                "bucket {rows}x{length}:{sequences_max}: in the padded layout a row holds one text, so {rows} rows hold {rows}"
            ));
        }
        if let Some(most) = max_length.filter(|&most| layout == Layout::Padded && length as usize > most) {
            return Err(format!("bucket {rows}x{length} is longer than the model's max_length {most}"));
        }
        buckets.push(Bucket { rows, length, sequences_max });
    }
    buckets.sort_by_key(|bucket| (bucket.tokens(), bucket.length));
    check_length(&buckets, max_length)?;
    Ok(buckets)
}

/// Refuses two buckets of one shape, and too many.
pub fn check_asked(asked: &[AskedBucket]) -> Result<(), String> {
    if asked.len() > PROFILES_MAX {
        return Err(format!("{} buckets; an engine has at most {PROFILES_MAX}", asked.len()));
    }
    let shape = |bucket: &AskedBucket| (bucket.rows, bucket.length);
    let is_known = |index: &usize| asked[..*index].iter().any(|known| shape(known) == shape(&asked[*index]));
    match (1..asked.len()).find(is_known) {
        Some(index) => Err(format!("bucket {}x{} is there twice", asked[index].rows, asked[index].length)),
        None => Ok(()),
    }
}

/// A text of the model's length must fit somewhere.
fn check_length(buckets: &[Bucket], max_length: Option<usize>) -> Result<(), String> {
    let longest = buckets.iter().map(|bucket| bucket.length as usize).max().unwrap_or(0);
    match max_length {
        Some(most) if longest < most => Err(format!(
            "no bucket holds a text of the model's {most} tokens; add 1x{most}, or convert the model with a `--max-length` \
             of at most {longest}"
        )),
        Some(_) | None => Ok(()),
    }
}

/// The buckets of an engine whose builder named none: where the layout packs, tokens double from bucket to bucket.
///
/// - One row of 32, 64, 128, … tokens and of `max_length`, for a lone text of any length.
/// - Packed: rows of 256 tokens (or of `max_length`, if that is less), 2, 4, 8, … of them up to [`LADDER_TOKENS`]; as many
///   tokens in rows of half the length, which cost less where texts are short; and in rows of `max_length`, where that is more.
/// - Padded: 8 and 32 rows of each of the lone texts' lengths, as far as [`LADDER_TOKENS`] go.
///
/// Chosen by what buckets cost on an H200 (`bench/record/2026-11-30-speed.md`): finer steps brought less than a hundredth more
/// texts a second, coarser ones took up to a tenth, and each bucket costs seconds at the first start. A length out of all
/// reason is taken for the nearest that is not.
pub fn ladder(layout: Layout, max_length: usize) -> Vec<Bucket> {
    let max_length = max_length.clamp(1, SIZE_MAX as usize);
    let lengths: Vec<usize> = doubling(32).take_while(|&length| length < max_length).chain([max_length]).collect();
    let mut shapes: Vec<(usize, usize)> = lengths.iter().map(|&length| (1, length)).collect();
    let most = |length: usize| (LADDER_TOKENS / length).checked_ilog2().map_or(1, |power| 1 << power);
    match layout {
        Layout::Packed => {
            let row = max_length.min(ROW_TOKENS);
            shapes.extend(doubling(2).take_while(|&rows| rows <= most(row)).map(|rows| (rows, row)));
            if max_length >= ROW_TOKENS {
                shapes.push((most(ROW_TOKENS / 2), ROW_TOKENS / 2));
            }
            if max_length > ROW_TOKENS {
                shapes.push((most(max_length), max_length));
            }
        }
        Layout::Padded => {
            shapes.extend(lengths.iter().flat_map(|&length| [8, 32].map(|rows| (most(length).min(rows), length))));
        }
    }
    shapes.sort_unstable_by_key(|&(rows, length)| (rows * length, length));
    shapes.dedup();
    let bucket = |(rows, length): (usize, usize)| {
        let (rows, length) = (rows as u32, length as u32);
        Bucket { rows, length, sequences_max: sequences(layout, rows, length) }
    };
    shapes.into_iter().map(bucket).collect()
}

fn doubling(first: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(first), |size| size.checked_mul(2))
}

/// Shapes by input as trtexec takes them: `input_ids:1x256,attention_mask:1x256`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AskedShapes(pub Vec<(String, Vec<i64>)>);

impl FromStr for AskedShapes {
    type Err = String;

    fn from_str(text: &str) -> Result<AskedShapes, String> {
        let shape = |part: &str| {
            let wrong = || format!("`{part}` is no shape; input_ids:8x128 is one");
            // Names may hold colons, shapes do not.
            let (name, sizes) = part.trim().rsplit_once(':').ok_or_else(wrong)?;
            let name = name.trim_matches(['\'', '"']);
            let size = |size: &str| size.parse::<i64>().ok().filter(|size| (1..=SIZE_MAX).contains(size));
            let sizes: Option<Vec<i64>> = sizes.split(['x', 'X']).map(size).collect();
            match sizes {
                Some(sizes) if !name.is_empty() => Ok((name.to_owned(), sizes)),
                Some(_) | None => Err(wrong()),
            }
        };
        let shapes = text.split(',').map(shape).collect::<Result<Vec<_>, String>>()?;
        match (1..shapes.len()).find(|&index| shapes[..index].iter().any(|(name, _)| *name == shapes[index].0)) {
            Some(index) => Err(format!("`{}` is there twice", shapes[index].0)),
            None => Ok(AskedShapes(shapes)),
        }
    }
}

impl AskedShapes {
    fn get(&self, name: &str) -> Option<&Vec<i64>> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, shape)| shape)
    }
}

/// The three lists of trtexec. What is missing of an input is taken from its neighbour: the best shape is the largest, the
/// smallest is the best, and the other way round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AskedRanges {
    pub min: AskedShapes,
    pub opt: AskedShapes,
    pub max: AskedShapes,
}

impl AskedRanges {
    pub fn is_empty(&self) -> bool {
        [&self.min, &self.opt, &self.max].iter().all(|shapes| shapes.0.is_empty())
    }
}

/// The one profile that the lists describe.
pub fn ranges(asked: &AskedRanges, inputs: &[Tensor]) -> Result<Profile, String> {
    let lists = [("--minShapes", &asked.min), ("--optShapes", &asked.opt), ("--maxShapes", &asked.max)];
    for (flag, shapes) in lists {
        if let Some((name, _)) = shapes.0.iter().find(|(name, _)| inputs.iter().all(|input| input.name != *name)) {
            return Err(format!("{flag}: the network has no input `{name}`; it has {}", names(inputs)));
        }
    }
    let mut profile = Profile::default();
    for input in inputs {
        let [min, opt, max] = lists.map(|(_, shapes)| shapes.get(&input.name));
        let Some(anything) = opt.or(max).or(min) else {
            if is_fixed(input) {
                continue;
            }
            let words = shape_words(&input.shape);
            return Err(format!("no shape is given for the input `{}` ({words}); --optShapes takes one", input.name));
        };
        let opt = opt.or(max).unwrap_or(anything);
        let range = ShapeRange { min: min.unwrap_or(opt).clone(), opt: opt.clone(), max: max.unwrap_or(opt).clone() };
        if !range.is_ascending() {
            let [min, opt, max] = [&range.min, &range.opt, &range.max].map(|shape| shape_words(shape));
            return Err(format!("`{}`: {min} ≤ {opt} ≤ {max} does not hold in every dimension", input.name));
        }
        for shape in [&range.min, &range.max] {
            allow(input, shape)?;
        }
        if !is_fixed(input) {
            profile.shapes.push((input.name.clone(), range));
        }
    }
    Ok(profile)
}

/// One profile for each bucket, of just its shape.
pub fn fixed(buckets: &[Bucket], layout: Layout, inputs: &[Tensor]) -> Result<Vec<Profile>, String> {
    let one = |bucket: &Bucket| {
        let mut profile = Profile::default();
        for input in inputs {
            let shape = match (layout, input.name.as_str()) {
                (Layout::Packed, CLS_INDEX) => vec![i64::from(bucket.sequences_max)],
                (Layout::Packed | Layout::Padded, _) => vec![i64::from(bucket.rows), i64::from(bucket.length)],
            };
            allow(input, &shape)?;
            if !is_fixed(input) {
                profile.shapes.push((input.name.clone(), ShapeRange::fixed(&shape)));
            }
        }
        Ok(profile)
    };
    let mut profiles = buckets.iter().map(one).collect::<Result<Vec<Profile>, String>>()?;
    // A network of fixed shapes has no profiles.
    profiles.retain(|profile| !profile.shapes.is_empty());
    Ok(profiles)
}

/// The buckets of profiles that allow one shape each, and of a network of fixed shapes, which has none; empty for others.
pub fn buckets_of(profiles: &[Profile], layout: Layout, inputs: &[Tensor]) -> Vec<Bucket> {
    let none = [Profile::default()];
    let profiles = if profiles.is_empty() { &none[..] } else { profiles };
    let bucket = |profile: &Profile| {
        let shape = |name: &str| {
            let input = inputs.iter().find(|input| input.name == name)?;
            match profile.shapes.iter().find(|(known, _)| known == name) {
                Some((_, range)) => range.is_fixed().then(|| range.max.clone()),
                None => is_fixed(input).then(|| input.shape.clone()),
            }
        };
        let ids = shape(INPUT_IDS)?;
        let [rows, length] = ids.as_slice() else { return None };
        let sequences_max = match layout {
            Layout::Padded => *rows,
            Layout::Packed => *shape(CLS_INDEX)?.first()?,
        };
        let size = |size: i64| u32::try_from(size).ok();
        Some(Bucket { rows: size(*rows)?, length: size(*length)?, sequences_max: size(sequences_max)? })
    };
    profiles.iter().map(bucket).collect::<Option<Vec<Bucket>>>().unwrap_or_default()
}

/// The layout that these inputs follow, by their names and numbers of dimensions.
pub fn layout(inputs: &[Tensor]) -> Option<Layout> {
    let is = |input: &Tensor, names: &[&str]| input.shape.len() == 2 && names.contains(&input.name.as_str());
    let has = |name: &str| inputs.iter().any(|input| input.name == name);
    let padded = [INPUT_IDS, ATTENTION_MASK, TOKEN_TYPE_IDS];
    let packed = [INPUT_IDS, POSITION_IDS, SEGMENT_IDS, TOKEN_TYPE_IDS];
    let is_index = |input: &Tensor| input.name == CLS_INDEX && input.shape.len() == 1;
    if has(INPUT_IDS) && inputs.iter().all(|input| is(input, &padded)) {
        Some(Layout::Padded)
    } else if has(SEGMENT_IDS) && has(CLS_INDEX) && inputs.iter().all(|input| is(input, &packed) || is_index(input)) {
        Some(Layout::Packed)
    } else {
        None
    }
}

pub fn is_fixed(input: &Tensor) -> bool {
    input.shape.iter().all(|&size| size >= 0)
}

pub fn names(inputs: &[Tensor]) -> String {
    inputs.iter().map(|input| input.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// Whether the network's input can have this shape.
fn allow(input: &Tensor, shape: &[i64]) -> Result<(), String> {
    let fits = |(&own, &size): (&i64, &i64)| own < 0 || own == size;
    if shape.len() == input.shape.len() && input.shape.iter().zip(shape).all(fits) {
        return Ok(());
    }
    let (asked, own) = (shape_words(shape), shape_words(&input.shape));
    Err(format!("`{}` cannot be {asked}; in the network it is {own}", input.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::engine::ElementType;

    fn input(name: &str, shape: &[i64]) -> Tensor {
        let shape = shape.to_vec();
        Tensor { name: name.into(), element: ElementType::I32, shape, ranges: Vec::new(), on_host: false }
    }

    fn padded() -> Vec<Tensor> {
        vec![input("input_ids", &[-1, -1]), input("attention_mask", &[-1, -1])]
    }

    fn packed() -> Vec<Tensor> {
        let mut inputs = ["input_ids", "position_ids", "segment_ids"].map(|name| input(name, &[-1, -1])).to_vec();
        inputs.push(input("cls_index", &[-1]));
        inputs
    }

    #[test]
    fn buckets_are_read_and_nonsense_is_not() {
        let bucket = |rows, length, sequences| AskedBucket { rows, length, sequences };
        assert_eq!("8x128".parse(), Ok(bucket(8, 128, None)));
        assert_eq!("8X256:64".parse(), Ok(bucket(8, 256, Some(64))));
        for wrong in
            ["", "8", "8x", "x8", "0x32", "1x0", "-1x32", "1x32:0", "1x32x4", "1x32:a", "99999999999x1", "8\u{7f}"]
        {
            let words = wrong.parse::<AskedBucket>().unwrap_err();
            assert!(words.contains("is no bucket") && !words.contains(char::is_control), "{words:?}");
        }
        assert!("1x4:5".parse::<AskedBucket>().unwrap_err().contains("do not fit"));
        assert!("4294967295x4294967295".parse::<AskedBucket>().unwrap_err().contains("tokens"));
    }

    #[test]
    fn buckets_must_suit_the_layout_and_the_model() {
        let asked = |text: &str| text.split(',').map(|bucket| bucket.parse().unwrap()).collect::<Vec<AskedBucket>>();
        let made = buckets(&asked("32x256,1x32,8x128"), Layout::Packed, Some(256)).unwrap();
        let expected = [(1, 32, 2), (8, 128, 64), (32, 256, 512)];
        assert_eq!(made, expected.map(|(rows, length, sequences_max)| Bucket { rows, length, sequences_max }));
        let made = buckets(&asked("8x8"), Layout::Packed, None).unwrap();
        assert_eq!(made[0].sequences_max, 8, "at least one per row");
        let refused = |text, layout, most| buckets(&asked(text), layout, Some(most)).unwrap_err();
        assert!(refused("1x300", Layout::Padded, 256).contains("1x300 is longer than the model's max_length 256"));
        assert!(buckets(&asked("1x300"), Layout::Packed, Some(256)).is_ok(), "a packed row holds several texts");
        assert!(refused("8x256:16", Layout::Padded, 256).contains("holds one text"));
        assert!(refused("1x32,8x32", Layout::Packed, 256).contains("add 1x256"));
        assert!(refused("1x256,1x256:3", Layout::Packed, 256).contains("twice"));
        let many: Vec<AskedBucket> = (1..=65).map(|rows| AskedBucket { rows, length: 8, sequences: None }).collect();
        assert!(buckets(&many[..64], Layout::Padded, Some(8)).is_ok());
        assert!(buckets(&many, Layout::Padded, Some(8)).unwrap_err().contains("65 buckets; an engine has at most 64"));
    }

    #[test]
    fn the_ladder_is_small_holds_the_longest_text_and_keeps_its_rule() {
        let shapes = |length| {
            let words = |bucket: Bucket| format!("{}x{}:{}", bucket.rows, bucket.length, bucket.sequences_max);
            ladder(Layout::Packed, length).into_iter().map(words).collect::<Vec<_>>().join(" ")
        };
        let of_512 = "1x32:2 1x64:4 1x128:8 1x256:16 2x256:32 1x512:32 4x256:64 8x256:128 16x256:256 64x128:512 32x256:512 \
                      16x512:512";
        assert_eq!(shapes(512), of_512);
        let of_256 = "1x32:2 1x64:4 1x128:8 1x256:16 2x256:32 4x256:64 8x256:128 16x256:256 64x128:512 32x256:512";
        assert_eq!(shapes(256), of_256);
        assert_eq!(shapes(40), "1x32:2 1x40:2 2x40:4 4x40:8 8x40:16 16x40:32 32x40:64 64x40:128 128x40:256");
        assert_eq!(shapes(usize::MAX).split(' ').next_back(), Some("1x1048576:65536"));
        let padded =
            ladder(Layout::Padded, 64).into_iter().map(|bucket| (bucket.rows, bucket.length)).collect::<Vec<_>>();
        assert_eq!(padded, [(1, 32), (1, 64), (8, 32), (8, 64), (32, 32), (32, 64)]);
        for layout in [Layout::Padded, Layout::Packed] {
            for length in 1..=20_000 {
                let buckets = ladder(layout, length);
                assert!((1..=32).contains(&buckets.len()), "{length}: {buckets:?}");
                assert!(buckets.iter().any(|bucket| (bucket.rows, bucket.length as usize) == (1, length)));
                assert!(buckets.iter().all(|bucket| bucket.tokens() as usize <= LADDER_TOKENS.max(length)));
                assert!(buckets.is_sorted_by_key(|bucket| bucket.tokens()));
                assert!((1..buckets.len()).all(|index| buckets[index] != buckets[index - 1]));
            }
        }
    }

    #[test]
    fn shapes_are_read_as_trtexec_takes_them() {
        let shapes = |text: &str| text.parse::<AskedShapes>();
        let two = shapes("input_ids:1x256,attention_mask:1X256").unwrap();
        assert_eq!(two.0, [("input_ids".to_owned(), vec![1, 256]), ("attention_mask".to_owned(), vec![1, 256])]);
        assert_eq!(shapes("'input:0':4").unwrap().0, [("input:0".to_owned(), vec![4])]);
        for wrong in ["", "a", "a:", ":1x2", "a:0", "a:-1x2", "a:1x", "a:1x2,", "a:9999999999999999999"] {
            assert!(shapes(wrong).unwrap_err().contains("is no shape"), "{wrong}");
        }
        assert!(shapes("a:1,b:2,a:3").unwrap_err().contains("`a` is there twice"));
    }

    #[test]
    fn ranges_are_completed_and_checked() {
        let asked = |min: &str, opt: &str, max: &str| {
            let list = |text: &str| if text.is_empty() { AskedShapes::default() } else { text.parse().unwrap() };
            AskedRanges { min: list(min), opt: list(opt), max: list(max) }
        };
        let both = |shape: &str| format!("input_ids:{shape},attention_mask:{shape}");
        let made = |min: &str, opt: &str, max: &str| ranges(&asked(min, opt, max), &padded());
        let profile = made(&both("1x1"), "", &both("8x256")).unwrap();
        let range = ShapeRange { min: vec![1, 1], opt: vec![8, 256], max: vec![8, 256] };
        assert_eq!(profile.shapes, [("input_ids".to_owned(), range.clone()), ("attention_mask".to_owned(), range)]);
        assert!(made("", &both("8x128"), "").unwrap().shapes.iter().all(|(_, range)| range.is_fixed()));
        let refused = |min: &str, opt: &str, max: &str| made(min, opt, max).unwrap_err();
        let error = refused("", "input_ids:8x128,mask:8x128", "");
        assert!(error.contains("no input `mask`; it has input_ids, attention_mask"), "{error}");
        assert!(refused("", "input_ids:8x128", "").contains("no shape is given for the input `attention_mask`"));
        assert!(refused(&both("8x1"), &both("4x16"), "").contains("8x1 ≤ 4x16 ≤ 4x16"));
        assert!(refused("", &both("4x16"), &both("4x8")).contains("does not hold"));
        assert!(refused("", &both("4x16x2"), "").contains("cannot be 4x16x2; in the network it is ?x?"));
        assert!(refused(&both("4"), &both("4x16"), "").contains("does not hold"));
    }

    #[test]
    fn a_network_of_fixed_shapes_has_no_profiles_and_one_bucket() {
        let inputs = [input("input_ids", &[8, 64]), input("attention_mask", &[8, 64])];
        assert_eq!(ranges(&AskedRanges::default(), &inputs), Ok(Profile::default()));
        let bucket = Bucket { rows: 8, length: 64, sequences_max: 8 };
        assert_eq!(buckets_of(&[], Layout::Padded, &inputs), [bucket]);
        assert_eq!(fixed(&[bucket], Layout::Padded, &inputs), Ok(Vec::new()));
        let other = Bucket { rows: 4, ..bucket };
        assert!(fixed(&[other], Layout::Padded, &inputs).unwrap_err().contains("cannot be 4x64"));
    }

    #[test]
    fn layouts_are_known_by_their_inputs_and_profiles_give_their_buckets_back() {
        assert_eq!(layout(&padded()), Some(Layout::Padded));
        assert_eq!(layout(&packed()), Some(Layout::Packed));
        assert_eq!(layout(&[input("input_ids", &[-1, -1])]), Some(Layout::Padded));
        assert_eq!(layout(&[input("input_ids", &[-1, -1]), input("pixels", &[-1, -1])]), None);
        assert_eq!(layout(&packed()[..3]), None);
        for (kind, inputs) in [(Layout::Padded, padded()), (Layout::Packed, packed())] {
            let buckets = ladder(kind, 512);
            let profiles = fixed(&buckets, kind, &inputs).unwrap();
            assert_eq!(buckets_of(&profiles, kind, &inputs), buckets);
            assert!(profiles.iter().all(|profile| profile.shapes.len() == inputs.len()));
        }
        let wide = ShapeRange { min: vec![1, 1], opt: vec![8, 64], max: vec![8, 64] };
        let profile = Profile { shapes: vec![("input_ids".into(), wide.clone()), ("attention_mask".into(), wide)] };
        assert!(buckets_of(&[profile], Layout::Padded, &padded()).is_empty());
    }
}
