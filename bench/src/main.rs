//! `reactrt-bench`: see the library.

fn main() {}
