//! Which shards come in, and which go.
//!
//! [`evict`] orders what is on a tier by how it was used; [`Foresight`] by when it will be, which the daemon knows of the
//! jobs that told it what they read: there, fetching and giving up are one decision. [`simulate`] runs either on a clock
//! of its own. Nothing here touches a disk, a network or a real clock, so that a node and a simulation run the same
//! code.

pub mod evict;
mod foresight;
mod shortfall;
pub mod simulate;

pub use evict::{Evict, List, Newcomer, Policy, Slot};
pub use foresight::{
    Epoch, Epochs, Foresight, Future, JobId, Moment, NEVER, NOW, Place, Presence, Shard, Use,
};
pub use shortfall::{Mass, Remedy, shortfall};
