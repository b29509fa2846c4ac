//! Fetches of a daemon from origins, which decide between a cold epoch and a warm one.

use std::time::Duration;

use forebay_client::{Address, Admin, Deadline};
use forebay_error::{Error, ErrorKind, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::interrupt;

/// Shards that were asked for ahead of an epoch's last step may still arrive; a node whose origin
/// needs longer than this for them serves other jobs too, and never comes to rest.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);

/// A daemon's counts of fetches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fetches {
    /// The daemon's process.
    pub(crate) daemon_pid: u32,
    /// Bytes of shards fetched.
    pub(crate) bytes: u64,
}

/// The part of a status document that is read here.
#[derive(Deserialize)]
struct Status {
    pid: u32,
    cache: Cache,
}

#[derive(Deserialize)]
struct Cache {
    misses: u64,
    fills: u64,
    failed_fills: u64,
    through: u64,
    origin_bytes: u64,
}

impl Fetches {
    /// Bytes fetched since `before`.
    ///
    /// # Errors
    /// `Closed` if another daemon counts by now.
    pub(crate) fn since(self, before: Self) -> Result<u64> {
        if self.daemon_pid != before.daemon_pid {
            return Err(Error::new(ErrorKind::Closed, "the daemon was replaced meanwhile")
                .at("pid", before.daemon_pid)
                .advise("read its log, and measure again"));
        }
        Ok(self.bytes - before.bytes)
    }

    /// Reads the counts once no fetch is under way.
    pub(crate) fn settled(address: &Address) -> Result<Self> {
        let deadline = Deadline::after(SETTLE_TIMEOUT);
        let settled = deadline.retry(|| {
            interrupt::check()?;
            let Status { pid, cache } = status(address)?;
            let done = cache.fills + cache.failed_fills + cache.through >= cache.misses;
            Ok(done.then_some(Self { daemon_pid: pid, bytes: cache.origin_bytes }))
        })?;
        settled.ok_or_else(|| {
            Error::new(ErrorKind::Unavailable, "the daemon keeps fetching shards")
                .at("seconds", SETTLE_TIMEOUT.as_secs())
                .advise("end its other jobs, or measure with a daemon of its own (FOREBAY_CACHE)")
        })
    }
}

/// The part of the daemon's status that `T` is.
pub(crate) fn status<T: DeserializeOwned>(address: &Address) -> Result<T> {
    let deadline = Deadline::after(SETTLE_TIMEOUT);
    Admin::of(address.connect(&deadline)?)?.get("/api/v1/status", &deadline)
}
