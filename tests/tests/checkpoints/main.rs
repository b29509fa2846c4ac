//! Checkpoints: saves, uploads, second copies and restores.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

mod copies;
mod faults;
mod rivals;
mod saves;
mod sinks;
mod torture;

/// Program that plays daemons, trainers and command lines.
const ACTOR: &str = env!("CARGO_BIN_EXE_forebay-actor");
