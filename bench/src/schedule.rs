//! When each request is sent: drawn from a seed before the run, whatever the server does.
//!
//! Pure functions. Moments are nanoseconds from the start of the run, ascending.

use crate::record::Arrivals;

/// Requests of one run; a schedule of so many takes 800 MB.
pub const REQUESTS_MAX: u64 = 100_000_000;

/// How long a schedule goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// All moments before this one.
    Moment(u64),
    /// So many moments at or after `from_ns`.
    Count { from_ns: u64, count: u64 },
}

/// The moments of a run at `rate` per second.
///
/// # Errors
/// A rate that is none, or more requests than [`REQUESTS_MAX`].
pub fn draw(seed: u64, rate: f64, arrivals: Arrivals, until: Until) -> Result<Vec<u64>, String> {
    if !(rate > 0.0 && rate <= 1e8) {
        return Err(format!("a rate of {rate} per second is not possible"));
    }
    let expected = match until {
        Until::Moment(end_ns) => end_ns as f64 / 1e9 * rate,
        Until::Count { from_ns, count } => from_ns as f64 / 1e9 * rate + count as f64,
    };
    if expected > REQUESTS_MAX as f64 {
        return Err(format!("{expected:.0} requests are more than one run may have ({REQUESTS_MAX})"));
    }
    let gap_ns = 1e9 / rate;
    // Another stream than that of the texts.
    let mut random = fastrand::Rng::with_seed(seed ^ 0x7363_6865_6475_6c65);
    let mut moments = Vec::with_capacity(expected as usize + expected.sqrt() as usize * 4 + 16);
    let (mut at, mut counted) = (0.0, 0);
    loop {
        let moment = at as u64;
        match until {
            Until::Moment(end_ns) if moment >= end_ns => return Ok(moments),
            Until::Count { count, .. } if counted == count => return Ok(moments),
            Until::Count { from_ns, .. } if moment >= from_ns => counted += 1,
            Until::Moment(_) | Until::Count { .. } => {}
        }
        moments.push(moment);
        at += match arrivals {
            Arrivals::Constant => gap_ns,
            Arrivals::Poisson => -(1.0 - random.f64()).ln() * gap_ns,
        };
    }
}

/// Whether request number `index` is given up before its answer, and if so after which part (0 to 1) of the time that an
/// answer takes.
pub fn abort(seed: u64, index: u64, rate: f64) -> Option<f64> {
    if rate <= 0.0 {
        return None;
    }
    // Of its own for each request, so that it does not depend on how requests are shared among threads.
    let mut random = fastrand::Rng::with_seed(seed.rotate_left(32) ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (random.f64() < rate).then(|| random.f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_seed_means_its_moments() {
        let take = |seed| draw(seed, 500.0, Arrivals::Poisson, Until::Moment(SECOND)).unwrap();
        assert_eq!(take(1), take(1));
        assert_ne!(take(1), take(2));
        assert!(take(1).is_sorted());
    }

    #[test]
    fn poisson_gaps_have_the_right_mean_and_spread() {
        let moments = draw(5, 1000.0, Arrivals::Poisson, Until::Moment(100 * SECOND)).unwrap();
        let gaps: Vec<f64> = moments.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        assert!((mean / 1e6 - 1.0).abs() < 0.02, "mean gap {mean} ns");
        // An exponential distribution's standard deviation is its mean, and a share of 1/e is longer than that.
        let deviation = (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt();
        assert!((deviation / mean - 1.0).abs() < 0.03, "deviation {deviation} ns");
        let longer = gaps.iter().filter(|&&gap| gap > mean).count() as f64 / gaps.len() as f64;
        assert!((longer - (-1.0f64).exp()).abs() < 0.01, "{longer}");
    }

    #[test]
    fn constant_gaps_and_counts() {
        let moments = draw(5, 1000.0, Arrivals::Constant, Until::Moment(SECOND)).unwrap();
        assert_eq!(moments.len(), 1000);
        assert!(moments.windows(2).all(|pair| pair[1] - pair[0] == 1_000_000));
        for arrivals in [Arrivals::Constant, Arrivals::Poisson] {
            let until = Until::Count { from_ns: SECOND, count: 77 };
            let moments = draw(5, 1000.0, arrivals, until).unwrap();
            assert_eq!(moments.iter().filter(|&&moment| moment >= SECOND).count(), 77);
        }
    }

    #[test]
    fn impossible_rates_are_refused() {
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(draw(1, rate, Arrivals::Poisson, Until::Moment(SECOND)).is_err());
        }
        assert!(draw(1, 1e8, Arrivals::Poisson, Until::Moment(1000 * SECOND)).unwrap_err().contains("more than"));
    }

    #[test]
    fn aborts_have_their_share_and_depend_on_the_request_alone() {
        let aborted: Vec<f64> = (0..100_000).filter_map(|index| abort(9, index, 0.1)).collect();
        assert!((9_500..10_500).contains(&aborted.len()), "{}", aborted.len());
        let mean = aborted.iter().sum::<f64>() / aborted.len() as f64;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
        assert_eq!(abort(9, 7, 1.0), abort(9, 7, 1.0));
        assert_eq!(abort(9, 7, 0.0), None);
    }
}
