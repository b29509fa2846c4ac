//! Jobs: their samples, epochs and waits, and the protocol between trainer and daemon.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

mod bad_samples;
mod causes;
mod clairvoyance;
mod costs;
mod dynamic;
mod epochs;
mod errors;
mod order;
mod protocol;
mod slab_attack;
mod stress;
mod trace;
mod trainer;
mod views;

/// Program that plays daemons, trainers and command lines.
const ACTOR: &str = env!("CARGO_BIN_EXE_forebay-actor");
