//! Facts about a job that its session tells each daemon.

use std::sync::Arc;
use std::time::Duration;

use forebay_wire::message::{Binning, Chosen, Extent, Joined, Mixture, Open};

use crate::address::Address;
use crate::placing::Parts;

/// Daemon, job and time limits of a session.
#[derive(Debug, Clone)]
pub struct SessionConfig {
    /// Address of the daemon.
    pub address: Address,
    /// The job.
    pub open: Open,
    /// Streams, if it mixes several data sets.
    pub mixture: Mixture,
    /// Sizes of its shards, if known: a job that does not fit into the cache is rejected.
    pub extent: Option<Extent>,
    /// Samples that it reads, if not all of its shards.
    pub chosen: Option<Arc<[Chosen]>>,
    /// Shards that complete samples of others.
    pub joined: Vec<Joined>,
    /// Lengths of its samples, if batches are cut by tokens.
    pub binning: Option<Arc<Binning>>,
    /// Places of all samples that it reads, if it may read parts of its shards.
    pub parts: Option<Parts>,
    /// Limit on every wait, [`TIMEOUT_MAX`] at most.
    pub timeout: Duration,
    /// True if shards that change during a run are served; otherwise the run ends with an error.
    pub serves_changes: bool,
    /// True if members are read where they lie in memory of a tier, unchecked since they came
    /// there, if the daemon lends it to this user.
    pub borrows: bool,
    /// True if the job's commands (`pipe:…`) are run, in this process and with its rights.
    pub allow_pipe: bool,
}

impl SessionConfig {
    /// Returns the session of a job over one data set of unknown size that runs no commands.
    #[must_use]
    pub fn new(address: Address, open: Open, timeout: Duration) -> Self {
        let (mixture, extent, chosen, joined, binning, parts) = Default::default();
        let (serves_changes, borrows, allow_pipe) = (false, false, false);
        Self {
            address,
            open,
            mixture,
            extent,
            chosen,
            joined,
            binning,
            parts,
            timeout,
            serves_changes,
            borrows,
            allow_pipe,
        }
    }

    /// The job, with a daemon's waits for a store cut to what leaves it time to say so before the
    /// limit.
    pub(super) fn job(&self) -> Open {
        let limit = u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX) / 10 * 8;
        Open { patience_ms: self.open.patience_ms.min(limit), ..self.open.clone() }
    }
}
