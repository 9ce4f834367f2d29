//! The words for our few enumerations, as files, flags and messages have them.
//!
//! Invariant: `named(x.name())` is `x`. What is written into a file by one version is read by the next, so a word never
//! changes.

use super::convert::Dtype;
use super::{Pooling, Task};
use crate::device::Layout;

/// The one of `all` with this name.
fn named<T: Copy>(all: &[T], name: fn(T) -> &'static str, wanted: &str) -> Option<T> {
    all.iter().copied().find(|&one| name(one) == wanted)
}

impl Task {
    pub const ALL: [Task; 3] = [Task::Embedding, Task::Reranking, Task::Nli];

    pub fn name(self) -> &'static str {
        match self {
            Task::Embedding => "embedding",
            Task::Reranking => "reranking",
            Task::Nli => "nli",
        }
    }

    pub fn named(name: &str) -> Option<Task> {
        named(&Task::ALL, Task::name, name)
    }
}

impl Layout {
    pub const ALL: [Layout; 2] = [Layout::Padded, Layout::Packed];

    pub fn name(self) -> &'static str {
        match self {
            Layout::Padded => "padded",
            Layout::Packed => "packed",
        }
    }

    pub fn named(name: &str) -> Option<Layout> {
        named(&Layout::ALL, Layout::name, name)
    }
}

impl Dtype {
    pub const ALL: [Dtype; 2] = [Dtype::Fp32, Dtype::Fp16];

    pub fn name(self) -> &'static str {
        match self {
            Dtype::Fp32 => "fp32",
            Dtype::Fp16 => "fp16",
        }
    }

    pub fn named(name: &str) -> Option<Dtype> {
        named(&Dtype::ALL, Dtype::name, name)
    }
}

impl Pooling {
    pub const ALL: [Pooling; 2] = [Pooling::Cls, Pooling::Mean];

    pub fn name(self) -> &'static str {
        match self {
            Pooling::Cls => "cls",
            Pooling::Mean => "mean",
        }
    }

    pub fn named(name: &str) -> Option<Pooling> {
        named(&Pooling::ALL, Pooling::name, name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_found_by_its_name() {
        assert!(Task::ALL.iter().all(|&task| Task::named(task.name()) == Some(task)));
        assert!(Layout::ALL.iter().all(|&layout| Layout::named(layout.name()) == Some(layout)));
        assert!(Dtype::ALL.iter().all(|&dtype| Dtype::named(dtype.name()) == Some(dtype)));
        assert!(Pooling::ALL.iter().all(|&pooling| Pooling::named(pooling.name()) == Some(pooling)));
        assert_eq!((Task::named("Embedding"), Pooling::named("")), (None, None));
    }
}
