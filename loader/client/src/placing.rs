//! Answers to a daemon that asks for the places of a job's samples, shard by shard.
//!
//! A thread of its own looks them up, since the index may lie in a store: batches go on meanwhile.

use std::fmt;
use std::sync::Arc;

use crossbeam_channel::{Sender, bounded};
use forebay_error::{Doing, Result};
use forebay_wire::message::{PartsEstimate, Request};

use crate::connection::Connection;
use crate::documents::Locator;

/// Questions that wait for their answers: as many shards as a daemon looks ahead for one job. More
/// wait in the socket.
const WAITING: usize = 1024;

/// Samples of a shard that a job reads, by its number; places in the shard, in order.
pub type Passing = Arc<dyn Fn(u32) -> Vec<u64> + Send + Sync>;

/// Places of a job's samples.
#[derive(Clone)]
pub struct Parts {
    /// The member index.
    pub locator: Arc<Locator>,
    /// Samples that pass the job's filters; all if unset.
    pub passing: Option<Passing>,
    /// Cost of what the job reads: see [`Locator::estimate`].
    pub estimate: PartsEstimate,
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").field("estimate", &self.estimate).finish_non_exhaustive()
    }
}

/// The thread that answers.
#[derive(Debug)]
pub(crate) struct Placing(Sender<(Arc<Connection>, u32)>);

impl Placing {
    /// Starts the thread; it ends with this value.
    pub(crate) fn start(parts: &Parts) -> Result<Self> {
        let (sender, questions) = bounded::<(Arc<Connection>, u32)>(WAITING);
        let parts = parts.clone();
        let answer = move || {
            for (connection, shard) in questions {
                let passing = parts.passing.as_ref().map(|passing| passing(shard));
                let located = parts.locator.places(shard, passing);
                // If the daemon is gone, the next one asks anew.
                let _ = connection.send(&Request::Placed { shard, located });
            }
        };
        let named = std::thread::Builder::new().name("fb-places".into());
        named.spawn(answer).doing("start the thread that looks up places")?;
        Ok(Self(sender))
    }

    /// Has the question for a shard answered on its connection.
    pub(crate) fn ask(&self, connection: &Arc<Connection>, shard: u32) {
        // The thread lives as long as this sender.
        let _ = self.0.send((connection.clone(), shard));
    }
}
