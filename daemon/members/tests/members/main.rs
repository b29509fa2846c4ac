//! Member lists from a real file, real names, and real Redis and Valkey servers.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

mod dns;
mod file;
mod nodes;
mod redis;
