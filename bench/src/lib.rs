//! The load generator: what is sent, when, and what is made of the answers.

pub mod micro;
pub mod record;
