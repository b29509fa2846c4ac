//! Sources: the ways to shards, what they send, and what goes wrong on the way.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

mod behaviours;
mod changes;
mod cold;
mod commands;
mod excerpts;
mod origin_faults;
mod random_access;
mod rules;
mod slow_stores;
mod store_faults;

/// Program that plays daemons, trainers and command lines.
const ACTOR: &str = env!("CARGO_BIN_EXE_forebay-actor");
