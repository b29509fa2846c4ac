//! Shards that ranks lease from a queue they share, so that a slow rank reads less.
//!
//! One rule: the queue decides, and whoever keeps it only keeps it. Every transition is a method of
//! [`Queue`], pure and without I/O; a keeper ([`Leases`]) says where its state lies and makes one
//! change after another, so that a daemon's memory and a server that several daemons share behave alike.
//!
//! ```text
//!   turns 0 … n    │ done │ open: upto k, held by a │ done │ open: given back │ next │ …  │
//!   log            joined a · joined b · taken 0 by a · done 0 upto 64 · left a · taken 0 by b · …
//! ```

mod member;
mod queue;

pub use member::{Lease, Member, Taken};
pub use queue::{Entry, Joining, Queue};

use std::time::Duration;

use async_trait::async_trait;
use forebay_error::Result;

/// Which queue: one for each epoch of a job, and for each time the job begins it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Name {
    /// Whose job it is: what tells a user from all others, by the kernel's word.
    pub owner: u64,
    /// The job and what it reads.
    pub group: String,
    /// The epoch.
    pub epoch: u64,
    /// How often it was begun before.
    pub take: u64,
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}-{}-{}", self.owner, self.group, self.epoch, self.take)
    }
}

/// A change of a queue, which may not be there yet; `now` is the keeper's clock, in milliseconds. It may
/// be made several times over, of which the last counts.
pub type Change<'a> = dyn FnMut(&mut Option<Queue>, u64) -> Result<()> + Send + 'a;

/// Keeps queues.
#[async_trait]
pub trait Leases: Send + Sync {
    /// Makes a change as if nobody else made one meanwhile. One that fails changes nothing.
    ///
    /// # Errors
    /// What the change says, or why the queue cannot be reached.
    async fn change(&self, name: &Name, change: &mut Change<'_>) -> Result<()>;

    /// Waits until the log is longer than `position`, or until time itself may have changed the queue;
    /// coming back too early is no harm.
    ///
    /// # Errors
    /// Why the queue cannot be reached.
    async fn changed(&self, name: &Name, position: u64) -> Result<()>;

    /// How long a member is believed in that says nothing; `None` where its end is always seen.
    fn believes(&self) -> Option<Duration>;

    /// Whether every member reads through this daemon's cache.
    fn is_near(&self) -> bool;
}

#[cfg(test)]
mod tests;
