//! The one table of refusals: status, message, keep or close. Filled in below.
/// A field of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Documents,
}
/// A few words of a client's own, kept short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Words {
    pub bytes: [u8; 64],
    pub length: u8,
}
/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reject {
    Full,
}
