//! The elementwise and row kernels of the encoder, each written once and compiled three times.
//!
//! A kernel is a plain loop that the compiler turns into vector code; the same source is instantiated for AVX-512, for
//! AVX2 with FMA, and for whatever the target has anyway. [`Level::detect`] picks at run time. Measured on a Zen 4, in
//! nanoseconds per element at the three levels: gelu 0.4, 0.9, 6.2; layer norm 0.23, 0.27, 0.32; softmax 0.24, 0.40,
//! 1.26.
//!
//!
//! What an element gets does not depend on where it stands, and sums run in `WIDTH` fixed accumulators on every level,
//! so a row's result depends on the row alone: not on its place, its alignment or its neighbours. AVX2 and AVX-512 give
//! the same bits; the portable level rounds twice where they fuse.
//!
//! Invariant: a [`Level`] above portable exists only on a CPU that has it, which is what makes calling it sound.
//! Nothing here allocates, and any length of slice is right.

#![allow(unsafe_code)] // calling functions that are compiled for more than the baseline CPU
#![allow(clippy::needless_range_loop)] // `for lane in 0..WIDTH` over arrays is what compiles to one vector

/// Floats per chunk: one AVX-512 register, two of AVX2.
const WIDTH: usize = 16;

/// Columns of the scores that [`Level::softmax_columns`] takes.
pub(super) const QUERIES: usize = 32;

/// Which instantiation runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level(Instructions);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Instructions {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Level {
    pub const PORTABLE: Level = Level(Instructions::Portable);

    /// The best level of this CPU.
    pub fn detect() -> Level {
        Level::available()[0]
    }

    /// All levels of this CPU, the best first.
    pub fn available() -> Vec<Level> {
        let mut levels = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("fma") {
                levels.push(Level(Instructions::Avx512));
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                levels.push(Level(Instructions::Avx2));
            }
        }
        levels.push(Level::PORTABLE);
        levels
    }

    pub(super) fn instructions(self) -> Instructions {
        self.0
    }

    #[cfg(test)]
    pub fn name(self) -> &'static str {
        match self.0 {
            Instructions::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => "avx512",
        }
    }
}

/// Makes a method of [`Level`] that runs `$body::<A>` with the level's arithmetic and instructions.
macro_rules! kernel {
    ($(#[$documentation:meta])* $name:ident = $body:ident($($argument:ident: $kind:ty),*)) => {
        $(#[$documentation])*
        pub fn $name(self, $($argument: $kind),*) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($argument: $kind),*) {
                $body::<Fused>($($argument),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,fma")]
            fn avx512($($argument: $kind),*) {
                $body::<Fused>($($argument),*)
            }
            match self.0 {
                Instructions::Portable => $body::<Separate>($($argument),*),
                // SAFETY: a `Level` with these instructions exists only where `available` has detected them.
                // JUSTIFICATION: the portable level takes 1.2 to 15 times as long; see the module's head.
                #[cfg(target_arch = "x86_64")]
                Instructions::Avx2 => unsafe { avx2($($argument),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                Instructions::Avx512 => unsafe { avx512($($argument),*) },
            }
        }
    };
}

impl Level {
    kernel! {
        /// `value = gelu(value)`, the exact gelu to within rounding.
        gelu = gelu_row(values: &mut [f32])
    }
    kernel! {
        /// `value = gelu(value)` in the tanh approximation.
        gelu_tanh = gelu_tanh_row(values: &mut [f32])
    }
    kernel! {
        /// `value = max(value, 0)`
        relu = relu_row(values: &mut [f32])
    }
    kernel! {
        /// `values[i] += other[i]`. Equal lengths.
        add = add_row(values: &mut [f32], other: &[f32])
    }
    kernel! {
        /// For each of the [`QUERIES`] columns of `scores` (rows of as many floats): `score = exp(score − max)`, the
        /// largest of the column; and into `factors`, `1 / Σ` of the results.
        softmax_columns = softmax_of_columns(scores: &mut [f32], factors: &mut [f32; QUERIES])
    }
    kernel! {
        /// `values = (values − mean) / √(variance + epsilon) · weight + bias`, the biased variance. Equal lengths.
        layer_norm = layer_norm_row(values: &mut [f32], weight: &[f32], bias: &[f32], epsilon: f32)
    }
    kernel! {
        /// `values = values / max(‖values‖₂, 1e-12)`
        l2_normalize = l2_normalize_row(values: &mut [f32])
    }
    kernel! {
        /// `values[i] *= factor`
        scale = scale_row(values: &mut [f32], factor: f32)
    }
}

/// How `a · b + c` is computed.
trait Arithmetic {
    fn multiply_add(a: f32, b: f32, c: f32) -> f32;
}

/// One rounding; an instruction where FMA exists and a slow call where it does not.
struct Fused;

/// Two roundings.
struct Separate;

impl Arithmetic for Fused {
    #[inline(always)]
    fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
}

impl Arithmetic for Separate {
    #[inline(always)]
    fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }
}

/// Coefficients of `c₀ + c₁t + …`, evaluated from the last.
#[inline(always)]
fn polynomial<A: Arithmetic, const COUNT: usize>(coefficients: [f32; COUNT], t: f32) -> f32 {
    let mut value = coefficients[COUNT - 1];
    let mut index = COUNT - 1;
    while index > 0 {
        index -= 1;
        value = A::multiply_add(value, t, coefficients[index]);
    }
    value
}

/// Adding and subtracting this rounds a float below 2²² to the nearest integer, which the sum's low bits then hold.
const ROUNDING: f32 = 12_582_912.0; // 1.5 · 2²³

/// `2^whole · 2^fraction` for a whole number in −126..=127 that lies in the low bits of `whole + ROUNDING`, and a
/// fraction in −0.5..=0.5. Our minimax fit of degree 6 with the constant held at 1: relative error 2e-9 before
/// rounding.
#[inline(always)]
#[expect(
    clippy::approx_constant,
    clippy::excessive_precision,
    reason = "fitted coefficients, near a constant by nature"
)]
fn exp2_parts<A: Arithmetic>(shifted: f32, fraction: f32) -> f32 {
    let power = polynomial::<A, 7>(
        [1.0, 6.931_471_8e-1, 2.402_264_8e-1, 5.550_332_4e-2, 9.618_437e-3, 1.339_887_5e-3, 1.535_336_2e-4],
        fraction,
    );
    let exponent = (shifted.to_bits() as i32).wrapping_sub(ROUNDING.to_bits() as i32);
    f32::from_bits((power.to_bits() as i32).wrapping_add(exponent << 23) as u32)
}

/// `2^x` for x ≤ 0; below −126 it gives 2⁻¹²⁶.
#[inline(always)]
fn exp2<A: Arithmetic>(x: f32) -> f32 {
    let x = if x > -126.0 { x } else { -126.0 };
    let shifted = x + ROUNDING;
    exp2_parts::<A>(shifted, x - (shifted - ROUNDING))
}

/// `e^x` for −87 ≤ x ≤ 87, and its value at the nearer end outside. NaN gives the lower end: the row's sum decides
/// then.
#[inline(always)]
fn exp<A: Arithmetic>(x: f32) -> f32 {
    const LOG2_E_HIGH: f32 = std::f32::consts::LOG2_E;
    const LOG2_E_LOW: f32 = (std::f64::consts::LOG2_E - std::f32::consts::LOG2_E as f64) as f32;
    let x = if x > -87.0 { x } else { -87.0 };
    let x = if x < 87.0 { x } else { 87.0 };
    let shifted = x * LOG2_E_HIGH + ROUNDING;
    let whole = shifted - ROUNDING;
    let fraction = A::multiply_add(x, LOG2_E_LOW, A::multiply_add(x, LOG2_E_HIGH, -whole));
    exp2_parts::<A>(shifted, fraction)
}

/// `gelu(x) = max(x, 0) − |x| · ½erfc(|x|/√2)`, which cancels nowhere.
///
/// `log₂ ½erfc(a/√2)` is smooth: our weighted minimax fit of degree 9 on 0..=6.5 with the constant held at −1 leaves an
/// absolute error of 4e-9 in gelu before rounding. Beyond 6.5 the second term is below 3e-10.
#[inline(always)]
#[expect(clippy::excessive_precision, reason = "fitted coefficients, written as they were computed")]
fn gelu_one<A: Arithmetic>(x: f32) -> f32 {
    let magnitude = x.abs();
    let a = if magnitude < 6.5 { magnitude } else { 6.5 };
    let logarithm = polynomial::<A, 10>(
        [
            -1.0,
            -1.151_107_4,
            -4.591_935_9e-1,
            -5.252_673_5e-2,
            7.083_073e-3,
            -1.254_758_1e-4,
            -2.087_549_2e-4,
            5.156_544e-5,
            -5.710_771_4e-6,
            2.535_527_4e-7,
        ],
        a,
    );
    let positive = if x > 0.0 { x } else { 0.0 };
    // The addition of `x · 0` carries a NaN or an infinity through, as the definition would.
    A::multiply_add(-a, exp2::<A>(logarithm), positive) + x * 0.0
}

/// `x / (1 + e^(−2u))`, `u = √(2/π) (x + 0.044715 x³)`: the same as `x/2 · (1 + tanh u)`.
#[inline(always)]
fn gelu_tanh_one<A: Arithmetic>(x: f32) -> f32 {
    const TWICE_ROOT: f32 = 1.595_769; // 2 · √(2/π)
    let twice_u = TWICE_ROOT * A::multiply_add(0.044_715 * x * x, x, x);
    x / (1.0 + exp::<A>(-twice_u))
}

/// Applies `one` to every element.
#[inline(always)]
fn map(values: &mut [f32], one: impl Fn(f32) -> f32) {
    for value in values {
        *value = one(*value);
    }
}

#[inline(always)]
fn gelu_row<A: Arithmetic>(values: &mut [f32]) {
    map(values, gelu_one::<A>);
}

#[inline(always)]
fn gelu_tanh_row<A: Arithmetic>(values: &mut [f32]) {
    map(values, gelu_tanh_one::<A>);
}

#[inline(always)]
fn relu_row<A: Arithmetic>(values: &mut [f32]) {
    // Written so that a NaN stays one.
    map(values, |x| if x < 0.0 { 0.0 } else { x });
}

#[inline(always)]
fn add_row<A: Arithmetic>(values: &mut [f32], other: &[f32]) {
    assert_eq!(values.len(), other.len());
    for (value, other) in values.iter_mut().zip(other) {
        *value += other;
    }
}

#[inline(always)]
fn scale_row<A: Arithmetic>(values: &mut [f32], factor: f32) {
    map(values, |value| value * factor);
}

/// The sum of `WIDTH` totals, pairwise, always in the same order.
#[inline(always)]
fn fold(mut lanes: [f32; WIDTH]) -> f32 {
    let mut half = WIDTH / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// `add` of each value to one of `WIDTH` totals that begin at zero, then the totals together.
#[inline(always)]
fn sum(values: &[f32], add: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0; WIDTH];
    let (chunks, rest) = values.as_chunks::<WIDTH>();
    for chunk in chunks {
        let values = *chunk;
        for lane in 0..WIDTH {
            lanes[lane] = add(values[lane], lanes[lane]);
        }
    }
    // Totals of their own: an index that is not constant would keep the array above out of registers.
    let mut last = [0.0; WIDTH];
    for (total, value) in last.iter_mut().zip(rest) {
        *total = add(*value, 0.0);
    }
    for lane in 0..WIDTH {
        lanes[lane] += last[lane];
    }
    fold(lanes)
}

#[inline(always)]
fn softmax_of_columns<A: Arithmetic>(scores: &mut [f32], factors: &mut [f32; QUERIES]) {
    const HALVES: usize = QUERIES / WIDTH;
    let (chunks, rest) = scores.as_chunks_mut::<WIDTH>();
    let (rows, odd) = chunks.as_chunks_mut::<HALVES>();
    assert!(rest.is_empty() && odd.is_empty());
    let mut max = [[f32::NEG_INFINITY; WIDTH]; HALVES];
    for row in rows.iter() {
        for half in 0..HALVES {
            let scores = row[half];
            for lane in 0..WIDTH {
                max[half][lane] = if scores[lane] > max[half][lane] { scores[lane] } else { max[half][lane] };
            }
        }
    }
    let mut sums = [[0.0f32; WIDTH]; HALVES];
    for row in rows.iter_mut() {
        for half in 0..HALVES {
            let mut scores = row[half];
            for lane in 0..WIDTH {
                let difference = scores[lane] - max[half][lane];
                scores[lane] = exp::<A>(difference);
                // The difference times zero carries a NaN through.
                sums[half][lane] += A::multiply_add(difference, 0.0, scores[lane]);
            }
            row[half] = scores;
        }
    }
    for (factor, sum) in factors.iter_mut().zip(sums.as_flattened()) {
        *factor = 1.0 / sum;
    }
}

#[inline(always)]
fn layer_norm_row<A: Arithmetic>(values: &mut [f32], weight: &[f32], bias: &[f32], epsilon: f32) {
    assert!(values.len() == weight.len() && values.len() == bias.len());
    let count = values.len() as f32;
    let mean = sum(values, |value, total| value + total) / count;
    let squares = sum(values, |value, total| A::multiply_add(value - mean, value - mean, total));
    let factor = 1.0 / (squares / count + epsilon).sqrt();
    for ((value, weight), bias) in values.iter_mut().zip(weight).zip(bias) {
        *value = A::multiply_add((*value - mean) * factor, *weight, *bias);
    }
}

#[inline(always)]
fn l2_normalize_row<A: Arithmetic>(values: &mut [f32]) {
    let length = sum(values, |value, total| A::multiply_add(value, value, total)).sqrt();
    scale_row::<A>(values, 1.0 / if length < 1e-12 { 1e-12 } else { length });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every length around the chunk size, and values in the ranges and at the edges that matter.
    fn rows() -> Vec<Vec<f32>> {
        let mut state = 7u64;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 24) as f32
        };
        let mut rows: Vec<Vec<f32>> = Vec::new();
        for length in [1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 47, 48, 100, 384, 1000] {
            for spread in [0.1, 4.0, 30.0] {
                rows.push((0..length).map(|_| (uniform() - 0.5) * 2.0 * spread).collect());
            }
        }
        rows.push(vec![0.0; 20]);
        rows.push(vec![
            -0.0, 0.0, 6.5, -6.5, 6.499_999, -6.500_001, 1e30, -1e30, 1e-30, -1e-30, 88.0, -88.0, 126.5, 5.0,
        ]);
        rows.push((-4000..4000).map(|step| step as f32 / 500.0).collect());
        rows
    }

    fn check(what: &str, level: Level, found: &[f32], expected: &[f64], absolute: f64, relative: f64) {
        assert_eq!(found.len(), expected.len());
        for (index, (&found, &expected)) in found.iter().zip(expected).enumerate() {
            let error = (f64::from(found) - expected).abs();
            assert!(
                error <= absolute + relative * expected.abs(),
                "{what} at {index} of {} on {}: {found} for {expected}",
                level.name(),
                expected
            );
        }
    }

    /// erfc to 1e-15: the series for small arguments, the continued fraction for large ones.
    fn erfc(x: f64) -> f64 {
        if x < 0.0 {
            return 2.0 - erfc(-x);
        }
        if x < 2.5 {
            let (mut term, mut total, mut n) = (x, x, 0.0);
            while term.abs() > 1e-18 * total.abs() {
                n += 1.0;
                term *= -x * x / n;
                total += term / (2.0 * n + 1.0);
            }
            return 1.0 - total * 2.0 / std::f64::consts::PI.sqrt();
        }
        let tail = (1..200).rev().fold(0.0, |tail, k| f64::from(k) / 2.0 / (x + tail));
        (-x * x).exp() / ((x + tail) * std::f64::consts::PI.sqrt())
    }

    #[test]
    fn reference_erfc_is_right() {
        // From tables: Abramowitz and Stegun 7.1.
        for (x, expected) in
            [(0.5, 0.479_500_122_2), (1.0, 0.157_299_207_1), (2.0, 0.004_677_734_98), (3.0, 2.209_049_7e-5)]
        {
            assert!((erfc(x) / expected - 1.0).abs() < 1e-8, "{x}");
        }
    }

    #[test]
    fn activations_equal_their_definitions() {
        for level in Level::available() {
            for row in rows() {
                let exact: Vec<f64> = row.iter().map(|&x| f64::from(x)).collect();
                let mut found = row.clone();
                level.gelu(&mut found);
                let expected: Vec<f64> = exact.iter().map(|x| x / 2.0 * erfc(-x / 2f64.sqrt())).collect();
                check("gelu", level, &found, &expected, 1e-7, 2e-7);

                let mut found = row.clone();
                level.gelu_tanh(&mut found);
                let u = |x: f64| (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
                let expected: Vec<f64> = exact.iter().map(|&x| x / (1.0 + (-2.0 * u(x)).exp())).collect();
                check("gelu_tanh", level, &found, &expected, 1e-6, 1e-6);

                let mut found = row.clone();
                level.relu(&mut found);
                let expected: Vec<f64> = exact.iter().map(|x| x.max(0.0)).collect();
                check("relu", level, &found, &expected, 0.0, 0.0);

                let mut found = row.clone();
                let other: Vec<f32> = row.iter().rev().map(|x| x.sin()).collect();
                level.add(&mut found, &other);
                let expected: Vec<f64> = row.iter().zip(&other).map(|(x, y)| f64::from(x + y)).collect();
                check("add", level, &found, &expected, 0.0, 0.0);
            }
        }
    }

    /// The row as one column of scores among others; what the level makes of it.
    fn softmax_of(level: Level, row: &[f32], column: usize) -> Vec<f32> {
        let mut scores: Vec<f32> = (0..row.len() * QUERIES).map(|index| (index % 13) as f32 - 6.0).collect();
        (0..row.len()).for_each(|index| scores[index * QUERIES + column] = row[index]);
        let mut factors = [0.0; QUERIES];
        level.softmax_columns(&mut scores, &mut factors);
        (0..row.len()).map(|index| scores[index * QUERIES + column] * factors[column]).collect()
    }

    #[test]
    fn softmax_equals_its_definition() {
        for level in Level::available() {
            for (number, row) in rows().iter().enumerate() {
                let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let powers: Vec<f64> = row.iter().map(|x| f64::from(x - max).max(-87.0).exp()).collect();
                let total: f64 = powers.iter().sum();
                let expected: Vec<f64> = powers.iter().map(|power| power / total).collect();
                let found = softmax_of(level, row, number % QUERIES);
                check("softmax", level, &found, &expected, 1e-12, if level == Level::PORTABLE { 2e-5 } else { 1e-6 });
            }
        }
    }

    #[test]
    fn norms_equal_their_definitions() {
        for level in Level::available() {
            for row in rows().into_iter().filter(|row| row.iter().all(|x| x.abs() < 1e6)) {
                let (count, weight) = (row.len() as f64, row.iter().map(|x| x.sin()).collect::<Vec<f32>>());
                let bias: Vec<f32> = row.iter().map(|x| x.cos()).collect();
                let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / count;
                let variance = row.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / count;
                let expected: Vec<f64> = (0..row.len())
                    .map(|i| {
                        (f64::from(row[i]) - mean) / (variance + 1e-5).sqrt() * f64::from(weight[i])
                            + f64::from(bias[i])
                    })
                    .collect();
                let mut found = row.clone();
                level.layer_norm(&mut found, &weight, &bias, 1e-5);
                check("layer_norm", level, &found, &expected, 1e-5, 1e-5);

                let length = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt().max(1e-12);
                let expected: Vec<f64> = row.iter().map(|&x| f64::from(x) / length).collect();
                let mut found = row.clone();
                level.l2_normalize(&mut found);
                check("l2_normalize", level, &found, &expected, 1e-9, 1e-6);
            }
        }
    }

    /// Otherwise two machines could rank the same texts differently.
    #[test]
    fn fused_levels_agree_to_the_bit() {
        let fused: Vec<Level> = Level::available().into_iter().filter(|level| *level != Level::PORTABLE).collect();
        let [first, rest @ ..] = fused.as_slice() else {
            return;
        };
        for row in rows() {
            let run = |level: &Level| {
                let (mut gelu, mut norm) = (row.clone(), row.clone());
                level.gelu(&mut gelu);
                let softmax = softmax_of(*level, &row, 7);
                level.layer_norm(&mut norm, &row, &row, 1e-12);
                [gelu, softmax, norm].concat().iter().map(|x| x.to_bits()).collect::<Vec<u32>>()
            };
            for level in rest {
                assert!(run(first) == run(level), "{} and {} differ", first.name(), level.name());
            }
        }
    }

    /// A model that has gone wrong must say so; the server answers such a request with an error.
    #[test]
    fn what_is_not_finite_stays_so() {
        for level in Level::available() {
            for length in [5, 16, 40] {
                for bad in [f32::NAN, f32::INFINITY] {
                    let mut row = vec![0.5; length];
                    row[length - 1] = bad;
                    let zeros = vec![0.0; length];
                    let mut values = row.clone();
                    level.gelu(&mut values);
                    assert!(!values[length - 1].is_finite(), "gelu on {}", level.name());
                    let mut values = row.clone();
                    level.relu(&mut values);
                    assert!(!values[length - 1].is_finite(), "relu on {}", level.name());
                    let values = softmax_of(level, &row, 20);
                    assert!(values.iter().any(|value| !value.is_finite()), "softmax on {}", level.name());
                    let mut values = row.clone();
                    level.layer_norm(&mut values, &zeros, &zeros, 1e-5);
                    assert!(values.iter().any(|value| !value.is_finite()), "layer_norm on {}", level.name());
                }
            }
        }
    }
}
