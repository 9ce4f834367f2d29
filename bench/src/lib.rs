//! The load generator: what is sent, when, and what is made of the answers.

pub mod compare;
pub mod micro;
pub mod plot;
pub mod record;
pub mod report;
pub mod runs;
pub mod table;
pub mod words;
