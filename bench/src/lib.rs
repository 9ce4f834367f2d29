//! The load generator: what is sent, when, and what is made of the answers.
//!
//! In the order in which a run meets them:
//!
//! ```text
//!  flags, scenario ─► texts ─► target ─► requests (bytes, made before the run)
//!                                            │         schedule (moments, drawn before the run)
//!                                            ▼         ▼
//!                     client ◄─ bytes ──── drive (threads, sockets, clock) ──► measure ─► run ─► record
//!                     check  ◄─ bodies ───┘
//! ```
//!
//! `client`, `json`, `check` and `schedule` know no socket and no clock; only `drive` knows mio.

pub mod flags;
pub mod scenario;

pub mod schedule;
pub mod target;
pub mod texts;

pub mod requests;

pub mod check;
pub mod client;
pub mod fault;
pub mod json;

pub mod drive;
pub mod measure;

pub mod interrupt;
pub mod machine;
pub mod probe;
pub mod record;
pub mod run;
pub mod search;
pub mod sweep;

// What people see.
pub mod compare;
pub mod outputs;
pub mod plot;
pub mod report;
pub mod runs;
pub mod table;
pub mod words;

// The server's hot paths one by one.
pub mod micro;
