//! A running node: its tiers, its sessions, and everything that watches them.

pub mod access;
pub mod audit;
pub mod cluster;
pub mod connection;
pub mod costs;
pub mod gpus;
pub mod leases;
mod node;
mod pace;
pub mod reload;
pub mod report;
pub mod scrubs;
pub mod sessions;
pub mod warm;

pub use node::{Node, NodeMemory};
