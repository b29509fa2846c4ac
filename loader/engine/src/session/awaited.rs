//! Present waits of a session, so that a timeout names what was waited for.
//!
//! A wait is listed while it lasts, with the last failure met meanwhile. The trainer waits for the
//! earliest batch, so the wait of that batch is the one to name; of its waits, the oldest.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind};
use forebay_source::Options;
use forebay_store::Store;

/// Number of the batch that is being located or gathered: it follows all that are being read.
pub(super) const GATHERED: u64 = u64::MAX;

/// Object of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Awaited {
    /// Bytes or the index of a shard, by its number.
    Shard(u32),
    /// A read of a tier, by the number of its shard.
    Tier(u32),
    /// A slot, which the trainer returns.
    Slot,
    /// Slab memory, which other jobs hold.
    Slab,
    /// A shard of the queue that ranks share.
    Queue,
}

impl Awaited {
    /// Returns the name in errors and reports.
    #[must_use]
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Shard(_) => "shard",
            Self::Tier(_) => "tier_read",
            Self::Slot => "slot",
            Self::Slab => "slab",
            Self::Queue => "queue",
        }
    }

    /// Returns the number of the shard, if it concerns one.
    fn shard(self) -> Option<u32> {
        match self {
            Self::Shard(shard) | Self::Tier(shard) => Some(shard),
            Self::Slot | Self::Slab | Self::Queue => None,
        }
    }

    fn advice(self) -> &'static str {
        match self {
            Self::Shard(_) => {
                "check the store and the way to it; if it is slow, raise the loader's timeout="
            }
            Self::Tier(_) => "check the disk with `forebay tier ls`",
            Self::Slot => "keep fewer views of batches, or raise prefetch=",
            Self::Slab => {
                "end other jobs, lower batch_size or prefetch=, or raise the daemon's memory"
            }
            Self::Queue => {
                "other ranks may hold the rest of the epoch: find one that hangs, or that left its loop without closing its loader; raise timeout= if a batch takes that long"
            }
        }
    }
}

/// A wait that lasts.
#[derive(Debug, Clone)]
pub(super) struct Wait {
    awaited: Awaited,
    since: Instant,
    /// Last failure met while it lasted.
    failure: Option<Error>,
}

/// Waits of a session, by batch and in the order they began.
#[derive(Debug, Default)]
pub(crate) struct Waits(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    waits: BTreeMap<(u64, u64), Wait>,
    begun: u64,
}

impl Waits {
    /// Lists a wait of batch `batch` until the guard is dropped.
    pub(super) fn begin(self: &Arc<Self>, batch: u64, awaited: Awaited) -> Waiting {
        let mut state = self.state();
        state.begun += 1;
        let key = (batch, state.begun);
        state.waits.insert(key, Wait { awaited, since: Instant::now(), failure: None });
        Waiting { waits: self.clone(), key }
    }

    /// Returns the wait that the trainer's depends on, and the time it has lasted.
    pub(super) fn first(&self) -> Option<Wait> {
        self.state().waits.values().next().cloned()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wait {
    #[cfg(test)]
    pub(super) fn awaited(&self) -> Awaited {
        self.awaited
    }

    pub(super) fn lasted(&self) -> Duration {
        self.since.elapsed()
    }

    /// Describes it: the object, and for a shard its URL, endpoint and last failure.
    pub(super) fn describe(&self, store: &Store, urls: &[String], options: &Options) -> Error {
        let error = Error::new(ErrorKind::Unavailable, "a batch is waited for")
            .at("waited_for", self.awaited.name())
            .at("waited_s", self.lasted().as_secs())
            .advise(self.awaited.advice());
        let url = self.awaited.shard().and_then(|shard| urls.get(shard as usize));
        match url {
            Some(url) => of_shard(error.at("url", url), store, url, options, self.failure.as_ref()),
            None => with_failure(error, self.failure.as_ref()),
        }
    }
}

/// Adds the endpoint of a shard, and the last failure of its requests, or else `failure`.
pub(super) fn of_shard(
    error: Error,
    store: &Store,
    url: &str,
    options: &Options,
    failure: Option<&Error>,
) -> Error {
    let Some((endpoint, trouble)) = store.trouble(url, options) else {
        return with_failure(error, failure);
    };
    with_failure(error.at("endpoint", endpoint), trouble.as_ref().or(failure))
}

fn with_failure(error: Error, failure: Option<&Error>) -> Error {
    let Some(failure) = failure else { return error };
    let error = error.at("last_error", failure.message());
    ["status", "code"].iter().fold(error, |error, place| match failure.place(place) {
        Some(value) => error.at(place, value),
        None => error,
    })
}

/// A listed wait; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Waiting {
    waits: Arc<Waits>,
    key: (u64, u64),
}

impl Waiting {
    /// Notes a failure that does not end the wait.
    pub(super) fn failed(&self, error: &Error) {
        if let Some(wait) = self.waits.state().waits.get_mut(&self.key) {
            wait.failure = Some(error.clone());
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.waits.state().waits.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The earliest batch counts, and of its waits the oldest.
    #[test]
    fn wait_of_the_earliest_batch_is_named() {
        let waits = Arc::new(Waits::default());
        let first = || waits.first().map(|wait| wait.awaited());
        assert_eq!(first(), None);
        let gathered = waits.begin(GATHERED, Awaited::Slot);
        assert_eq!(first(), Some(Awaited::Slot));
        let later = waits.begin(8, Awaited::Tier(1));
        let earlier = waits.begin(7, Awaited::Shard(2));
        let beside = waits.begin(7, Awaited::Tier(3));
        assert_eq!(first(), Some(Awaited::Shard(2)));
        earlier.failed(&Error::new(ErrorKind::Unavailable, "the store is away"));
        let failure = waits.first().and_then(|wait| wait.failure);
        assert_eq!(failure.map(|error| error.kind()), Some(ErrorKind::Unavailable));
        drop(earlier);
        assert_eq!(first(), Some(Awaited::Tier(3)));
        drop((beside, later));
        assert_eq!(first(), Some(Awaited::Slot));
        drop(gathered);
        assert_eq!(first(), None);
    }
}
