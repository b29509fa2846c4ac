//! Benchmarks of the command line: their reports, and what interrupts leave.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

mod interrupts;
mod reports;
mod starvation;

/// Program that plays daemons, trainers and command lines.
const ACTOR: &str = env!("CARGO_BIN_EXE_forebay-actor");
