//! Admission and eviction of shards.
//!
//! [`evict`] orders the shards of a tier by past use; [`Foresight`] by future use, which the daemon
//! knows for jobs that announce their reads: there, prefetching and eviction are one decision.
//! [`access`] compares the cost of parts of a shard with that of the whole. [`simulate`] runs a
//! policy on a clock of its own. Nothing here touches a disk, a network or a real clock, so that a
//! node and a simulation run the same code.

pub mod access;
pub mod evict;
mod foresight;
mod shortfall;
pub mod simulate;

pub use evict::{Evict, List, Newcomer, Policy, Slot};
pub use foresight::{
    Epoch, Epochs, Foresight, Future, JobId, Moment, NEVER, NOW, PartitionNumber, Presence, Role,
    Shard, Use,
};
pub use shortfall::{Mass, Remedy, shortfall};
