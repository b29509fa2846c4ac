//! Clusters: nodes that share their caches, and peers that lie.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

mod four_nodes;
mod hostile_peers;
