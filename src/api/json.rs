//! Reading JSON bodies.
/// What parsing needs besides the body: kept by each worker.
#[derive(Default)]
pub struct Scratch {}
