//! Caches of a node: the bytes at rest, their limits, and their faults.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

mod budget;
mod crash;
mod devices;
mod encryption;
mod flips;
mod in_place;
mod integrity;
mod lent_memory;
mod model;
mod mounts;
mod opened_by_clients;
mod path_of_one_byte;
mod power;
mod resume;
mod slow_tier;
mod small_shards;
mod tiers;
mod torture;
mod unpacked;
mod upgrade;
mod upkeep;
mod uses;
mod verdicts;

/// Program that plays daemons, trainers and command lines.
const ACTOR: &str = env!("CARGO_BIN_EXE_forebay-actor");
