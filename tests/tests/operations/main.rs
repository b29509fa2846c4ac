//! Operations: the command line, the admin API, and all that tells an operator how a node is.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

mod access;
mod admin;
mod audit;
mod cli;
mod configuration;
mod dashboards;
mod doctor;
mod gpus;
mod http;
mod logs;
mod metrics;
mod pack;
mod policy;
mod reload;
mod simulate;
mod tenants;
mod warm;

/// Program that plays daemons, trainers and command lines.
const ACTOR: &str = env!("CARGO_BIN_EXE_forebay-actor");
