//! The table of micro-benchmarks: the server's hot paths one by one, each driven through its public interface.
//!
//! Owns what is measured and how its result is proven right; how it is measured is the runners' affair
//! (`micro/time.rs`, `micro/instructions.rs`), which go through the same table. `tests/micro.rs` runs every row a few
//! times in every `cargo test`.
//!
//! Invariant: a row's [`Case::run`] does the work of the server and nothing else. What has to be made anew for each run,
//! because the work destroys it, is made by [`Case::prepare`], which is not measured. A row does the same each time.

mod answer;
mod body;
mod plan;
mod request;
mod ring;

/// One line of the table.
#[derive(Debug)]
pub struct Row {
    /// `group/what`, unique.
    pub name: String,
    pub amount: Amount,
    pub threads: Threads,
    pub case: Box<dyn Case>,
}

/// What one run gets through: bytes of input, for answers those of the vectors; or sequences or hand-overs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    Bytes(u64),
    Items(u64),
}

/// Who takes part in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    One,
    /// Instructions then depend on how long one waits for the other, so they are not counted.
    Two,
}

/// One piece of work that can be repeated.
pub trait Case: std::fmt::Debug {
    /// How many inputs are kept, so that many runs can be prepared at once and timed together.
    fn slots(&self) -> usize {
        1
    }

    /// Makes the input of the next run in `slot`. Not measured.
    fn prepare(&mut self, _slot: usize) {}

    /// Does the work and returns something that depends on its result.
    fn run(&mut self, slot: usize) -> u64;

    /// Looks at what the last run, which was in slot 0 and returned `returned`, left behind.
    ///
    /// # Panics
    /// When that is not what it should be.
    fn check(&mut self, returned: u64);
}

impl Row {
    fn new(name: impl Into<String>, amount: Amount, case: impl Case + 'static) -> Row {
        Row { name: name.into(), amount, threads: Threads::One, case: Box::new(case) }
    }

    /// Runs a few times and checks each result: a wrong server cannot be fast.
    pub fn prove(&mut self) {
        for _ in 0..3 {
            for slot in (0..self.case.slots()).rev() {
                self.case.prepare(slot);
                let returned = self.case.run(slot);
                if slot == 0 {
                    self.case.check(returned);
                }
            }
        }
    }
}

/// All rows, in the order in which a request meets them. To be run on the thread that made them.
pub fn all() -> Vec<Row> {
    [request::rows(), body::rows(), ring::rows(), plan::rows(), answer::rows()].into_iter().flatten().collect()
}

/// Sentences of mixed length, for whoever needs text: the `index`-th of them.
fn sentence(index: usize) -> String {
    const WORDS: [&str; 16] = [
        "the", "server", "answers", "every", "request", "with", "a", "vector", "of", "numbers", "and", "nobody",
        "waits", "for", "long", "here",
    ];
    let words: Vec<&str> = (0..4 + index % 29).map(|word| WORDS[(index + word * word) % WORDS.len()]).collect();
    words.join(" ")
}
