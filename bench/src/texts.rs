//! Texts to send: made of common English words from a seed, or lines of a file.
//!
//! Owns the words and the distributions of their number. The words are short and frequent ones, which tokenizers of English
//! know whole, so that words and tokens are nearly the same number. Invariant: the same seed gives the same texts.

use std::fmt;
use std::str::FromStr;

const WORDS: &str = "\
the of and to in is was for on that with as by at from it his an were are which this be had has first one their its new \
after but who not they have her she two been other when there all during into school time may years more most only over \
city some world would where later up such used many can state about national out known university united then made also \
will no people under three could war between through found series because house work day water night light hand small \
great high long little own old right big large next early young important few public bad same able man woman life child \
place week case point government company number group problem fact eye word business side kind head home room mother \
area money story month lot study book job issue end member law car community name president team minute idea kid body \
information back parent face others level office door health person art history party result change morning reason \
research girl guy moment air teacher force education foot boy age policy music market sense service river north south \
east west street station church king queen village field film song game player season league club army road island \
mountain bridge summer winter green black white blue red gold paper letter language science nature plant animal bird \
fish horse dog tree stone glass iron fire wind rain snow sun moon star earth sea lake ground garden food bread milk \
sugar table chair window wall floor bed clock ship train engine wheel machine tool test rule order plan act call turn \
move play run walk talk read write speak hear see look feel think know want need help keep let begin show try ask leave \
build send fall cut reach kill remain suggest raise pass sell require report decide pull";

/// How many words a text has.
#[derive(Clone, Debug, PartialEq)]
pub enum Words {
    Fixed(u32),
    Uniform(u32, u32),
    /// Clipped to `min..=max`.
    LogNormal {
        median: f64,
        sigma: f64,
        min: u32,
        max: u32,
    },
}

/// How many texts a request has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerRequest {
    Fixed(u32),
    Uniform(u32, u32),
}

/// A text or a request may not be longer than this, in words or texts.
const COUNT_MAX: u32 = 100_000;

fn count(text: &str) -> Result<u32, String> {
    match text.trim().parse() {
        Ok(count @ 1..=COUNT_MAX) => Ok(count),
        Ok(_) | Err(_) => Err(format!("{text:?} is not a whole number from 1 to {COUNT_MAX}")),
    }
}

fn range(text: &str) -> Result<(u32, u32), String> {
    let (low, high) = text.split_once('-').ok_or(format!("{text:?} is not a range such as 4-254"))?;
    let (low, high) = (count(low)?, count(high)?);
    if low <= high { Ok((low, high)) } else { Err(format!("{text:?} ends before it begins")) }
}

impl FromStr for Words {
    type Err = String;

    fn from_str(text: &str) -> Result<Words, String> {
        let (kind, numbers) = text.split_once(':').unwrap_or(("fixed", text));
        match kind {
            "fixed" => Ok(Words::Fixed(count(numbers)?)),
            "uniform" => range(numbers).map(|(low, high)| Words::Uniform(low, high)),
            "lognormal" => {
                let numbers: Vec<&str> = numbers.split(',').map(str::trim).collect();
                let &[median, sigma, min, max] = numbers.as_slice() else {
                    return Err("lognormal takes four numbers, median,sigma,min,max: lognormal:30,0.9,4,254".to_owned());
                };
                let positive = |text: &str| match text.parse::<f64>() {
                    Ok(value) if value > 0.0 && value < 1e6 => Ok(value),
                    Ok(_) | Err(_) => Err(format!("{text:?} is not a positive number")),
                };
                let (min, max) = range(&format!("{min}-{max}"))?;
                Ok(Words::LogNormal { median: positive(median)?, sigma: positive(sigma)?, min, max })
            }
            _ => Err(format!("{kind:?} is none of fixed:30, uniform:4-254, lognormal:30,0.9,4,254")),
        }
    }
}

impl fmt::Display for Words {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Words::Fixed(count) => write!(out, "{count} words"),
            Words::Uniform(low, high) => write!(out, "uniform words, {low} to {high}"),
            Words::LogNormal { median, sigma, min, max } => {
                write!(out, "log-normal words, median {median}, sigma {sigma}, {min} to {max}")
            }
        }
    }
}

impl FromStr for PerRequest {
    type Err = String;

    fn from_str(text: &str) -> Result<PerRequest, String> {
        match text.strip_prefix("uniform:") {
            Some(numbers) => range(numbers).map(|(low, high)| PerRequest::Uniform(low, high)),
            None => count(text).map(PerRequest::Fixed),
        }
    }
}

impl fmt::Display for PerRequest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PerRequest::Fixed(count) => write!(out, "{count}"),
            PerRequest::Uniform(low, high) => write!(out, "uniform {low} to {high}"),
        }
    }
}

impl PerRequest {
    pub fn draw(self, random: &mut fastrand::Rng) -> u32 {
        match self {
            PerRequest::Fixed(count) => count,
            PerRequest::Uniform(low, high) => random.u32(low..=high),
        }
    }
}

impl Words {
    fn draw(&self, random: &mut fastrand::Rng) -> u32 {
        match *self {
            Words::Fixed(count) => count,
            Words::Uniform(low, high) => random.u32(low..=high),
            Words::LogNormal { median, sigma, min, max } => {
                let words = median * (sigma * standard_normal(random)).exp();
                (words.round() as u32).clamp(min, max)
            }
        }
    }
}

/// By Box and Muller.
fn standard_normal(random: &mut fastrand::Rng) -> f64 {
    let (radius, angle) = (1.0 - random.f64(), random.f64());
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
}

/// Where texts come from.
#[derive(Clone, Debug)]
pub enum Texts {
    Made(Words),
    /// Lines of a file, in its order, again and again.
    Lines {
        file: String,
        lines: Vec<String>,
    },
}

impl Texts {
    /// # Errors
    /// A file that cannot be read or has no line that is not blank.
    pub fn lines(file: &str) -> Result<Texts, String> {
        let text = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
        let lines: Vec<String> = text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect();
        if lines.is_empty() {
            return Err(format!("{file}: there is no text in it; each line that is not blank is one"));
        }
        Ok(Texts::Lines { file: file.to_owned(), lines })
    }
}

impl fmt::Display for Texts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Texts::Made(words) => words.fmt(out),
            Texts::Lines { file, .. } => write!(out, "lines of {file}"),
        }
    }
}

/// Gives one text after another.
#[derive(Debug)]
pub struct Source<'a> {
    texts: &'a Texts,
    random: fastrand::Rng,
    words: Vec<&'static str>,
    next_line: usize,
}

impl<'a> Source<'a> {
    pub fn new(texts: &'a Texts, seed: u64) -> Source<'a> {
        let random = fastrand::Rng::with_seed(seed);
        Source { texts, random, words: WORDS.split(' ').collect(), next_line: 0 }
    }

    pub fn text(&mut self) -> String {
        match self.texts {
            Texts::Made(words) => {
                let count = words.draw(&mut self.random);
                let mut text = String::new();
                for index in 0..count {
                    if index > 0 {
                        text.push(' ');
                    }
                    text.push_str(self.words[self.random.usize(..self.words.len())]);
                }
                text
            }
            Texts::Lines { lines, .. } => {
                let text = lines[self.next_line % lines.len()].clone();
                self.next_line += 1;
                text
            }
        }
    }

    /// How many texts the next request has.
    pub fn count(&mut self, per_request: PerRequest) -> u32 {
        per_request.draw(&mut self.random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(words: &str, count: usize) -> Vec<usize> {
        let texts = Texts::Made(words.parse().unwrap());
        let mut source = Source::new(&texts, 1);
        (0..count).map(|_| source.text().split(' ').count()).collect()
    }

    #[test]
    fn texts_have_the_words_that_were_asked_for() {
        assert!(lengths("fixed:30", 50).iter().all(|&count| count == 30));
        let uniform = lengths("uniform:4-254", 4000);
        assert_eq!((uniform.iter().min(), uniform.iter().max()), (Some(&4), Some(&254)));
        let mut log_normal = lengths("lognormal:30,0.9,4,254", 4000);
        log_normal.sort_unstable();
        assert!((28..=32).contains(&log_normal[2000]), "median {}", log_normal[2000]);
        // One standard deviation above: 30 * e^0.9 = 73.8.
        assert!((68..=80).contains(&log_normal[3365]), "{}", log_normal[3365]);
        assert!(log_normal[0] >= 4 && log_normal[3999] == 254);
    }

    #[test]
    fn a_seed_means_its_texts() {
        let texts = Texts::Made(Words::Fixed(5));
        let take = |seed| {
            let mut source = Source::new(&texts, seed);
            (0..10).map(|_| source.text()).collect::<Vec<_>>()
        };
        assert_eq!(take(3), take(3));
        assert_ne!(take(3), take(4));
        assert_eq!(take(1)[0], "game person also star to");
    }

    #[test]
    fn what_is_no_distribution_is_refused_in_words() {
        for (text, part) in [
            ("fixed:0", "from 1 to"),
            ("uniform:9-4", "ends before it begins"),
            ("uniform:9", "a range such as"),
            ("lognormal:30", "four numbers"),
            ("lognormal:30,x,4,254", "not a positive number"),
            ("gaussian:3", "none of fixed"),
        ] {
            let error = text.parse::<Words>().unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert_eq!("uniform:1-64".parse(), Ok(PerRequest::Uniform(1, 64)));
        assert_eq!("32".parse(), Ok(PerRequest::Fixed(32)));
        assert!("0".parse::<PerRequest>().is_err());
    }
}
