//! reactrt serves text embedding, reranker and NLI models over plain HTTP for clients that count microseconds.
//!
//! The modules are listed in the order in which a request meets them. A reader who opens them in this order follows
//! one request from its socket to a device and back:
//!
//! ```text
//!             ┌────────── reactor (1 thread, pinned, mio) ──────────┐
//!  sockets ⇄  │ bytes → http::connection → Job      answer → bytes  │◄─────────┐
//!             └──────┬──────────────────────────▲───────────────────┘          │ ring + doorbell
//!        ring, 1 per worker             ring + doorbell                         │ (parts, done)
//!             ┌──────▼────── workers (n, pinned) ┴──────────────────┐          │
//!             │ JSON (simd-json) → texts → token ids; large answers │          │
//!             └──────┬──────────────────────────────────────────────┘          │
//!        ring, 1 per worker and device (parts)                                  │
//!             ┌──────▼────── device thread (1 per device) ──────────┐          │
//!             │ plan → lane A: copy in, run, copy out │ lane B: …    ├──────────┘
//!             └──────────────────────────────────────────────────────┘
//! ```
//!
//! `http` and `plan` know no socket, no clock and no thread; `api` is pure functions; every thread is a `step(now)` that
//! never blocks plus a thin shell (in `serve`) that decides how to wait.

#[cfg(all(feature = "tensorrt", feature = "tensorrt-rtx"))]
compile_error!("the features `tensorrt` and `tensorrt-rtx` exclude each other: choose the library that you have");

pub mod config;
pub mod demo;
pub mod serve;

pub mod reactor;

pub mod http;

pub mod api;

pub mod clock;
pub mod job;
pub mod ring;

pub mod tokenize;

pub mod plan;

pub mod device;

pub mod metrics;

pub mod journal;
pub mod log;

pub mod model;

#[doc(hidden)]
pub mod planted;
