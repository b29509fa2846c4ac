//! Shards that ranks take from a shared queue, so that a slow rank reads less.
//!
//! The queue decides, and its keeper only stores it. Every transition is a method of [`Queue`],
//! pure and without I/O. A keeper ([`Leases`]) holds the state and applies one change after
//! another, so a daemon's memory and a server shared by several daemons behave alike.
//!
//! ```text
//!   turns 0 … n    │ done │ open: upto k, held by a │ done │ open: returned │ next │ …  │
//!   log            joined a · joined b · taken 0 by a · done 0 upto 64 · left a · taken 0 by b · …
//! ```

mod member;
mod queue;

pub use member::{Lease, Member, Taken};
pub use queue::{Entry, Joining, Queue};

use std::time::Duration;

use async_trait::async_trait;
use forebay_error::Result;

/// Identity of a queue: one for each epoch of a job, and for each start of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Name {
    /// The job's user, as the kernel identifies it.
    pub owner: u64,
    /// The job and its data.
    pub group: String,
    /// The epoch.
    pub epoch: u64,
    /// Number of earlier starts.
    pub take: u64,
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}-{}-{}", self.owner, self.group, self.epoch, self.take)
    }
}

/// A change of a queue, which may not exist yet; `now` is the keeper's clock in milliseconds. It
/// may run several times, and only the last run counts.
pub type Change<'a> = dyn FnMut(&mut Option<Queue>, u64) -> Result<()> + Send + 'a;

/// Keeper of queues.
#[async_trait]
pub trait Leases: Send + Sync {
    /// Applies a change atomically. A change that fails has no effect.
    ///
    /// # Errors
    /// The change's error, or the reason the queue cannot be reached.
    async fn change(&self, name: &Name, change: &mut Change<'_>) -> Result<()>;

    /// Waits until the log is longer than `position`, or time alone may have changed the queue. May
    /// return early.
    ///
    /// # Errors
    /// The reason the queue cannot be reached.
    async fn changed(&self, name: &Name, position: u64) -> Result<()>;

    /// Time after which a silent member is removed; `None` if the end of a member is always
    /// noticed.
    fn believes(&self) -> Option<Duration>;

    /// True if every member reads through this daemon's cache.
    fn is_near(&self) -> bool;
}

#[cfg(test)]
mod tests;
