//! Sizes and sample counts of shards, as the daemon reports them.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};
use forebay_wire::frame::Receiver;
use forebay_wire::message::{Reply, Request};

use crate::connection::{Connection, is_silent, unexpected};
use crate::deadline::Deadline;

/// Requests sent before their answers are read: enough to keep every fill of the daemon busy.
pub(crate) const UNDER_WAY: usize = 8;

impl Connection {
    /// Has the daemon count shards, several at once, on a connection used for nothing else
    /// meanwhile: bytes and samples of each, in the list's order. `counted` is called after each.
    /// No wait for the next lasts longer than `limit`.
    ///
    /// # Errors
    /// The first that a shard has; `Unavailable` with a shard that is not counted in time; `Closed`
    /// once the daemon is gone.
    pub fn count(
        &self,
        urls: &[String],
        origin: &BTreeMap<String, String>,
        limit: Duration,
        counted: impl FnMut(),
    ) -> Result<Vec<(u64, u64)>> {
        self.may_block(false)?;
        let found = self.count_all(urls, origin, limit, counted)?;
        self.may_block(true)?;
        Ok(found)
    }

    fn count_all(
        &self,
        urls: &[String],
        origin: &BTreeMap<String, String>,
        limit: Duration,
        mut counted: impl FnMut(),
    ) -> Result<Vec<(u64, u64)>> {
        let ask = |url: &String| {
            let request = Request::Index { url: url.clone(), origin: origin.clone() };
            self.put(&request, &Deadline::after(limit))
        };
        let mut waiting = urls.iter();
        for url in waiting.by_ref().take(UNDER_WAY) {
            ask(url)?;
        }
        let mut receiver = Receiver::default();
        let mut found = HashMap::new();
        for _ in 0..urls.len() {
            let answer = self.take(&mut receiver, &Deadline::after(limit));
            let first = || urls.iter().find(|url| !found.contains_key(*url));
            match answer.map_err(|error| match first() {
                Some(url) => late(error, url, limit),
                None => error,
            })? {
                Reply::Shard { url, bytes, samples } => found.insert(url, (bytes, samples)),
                Reply::Failed { error, .. } => return Err(error),
                _ => return Err(unexpected()),
            };
            counted();
            if let Some(url) = waiting.next() {
                ask(url)?;
            }
        }
        let of = |url: &String| {
            let missing = || Error::new(ErrorKind::Invalid, "a shard was not counted");
            found.get(url).copied().ok_or_else(|| missing().at("url", url))
        };
        urls.iter().map(of).collect()
    }
}

/// Names the shard that is waited for, if that is the matter.
pub(crate) fn late(error: Error, url: &str, limit: Duration) -> Error {
    if !is_silent(&error) {
        return error;
    }
    Error::new(ErrorKind::Unavailable, "a shard was not counted in time")
        .at("waited_for", "shard")
        .at("url", url)
        .at("timeout_s", limit.as_secs_f64())
        .advise("check the store and the way to it; if it is slow, raise the loader's timeout=")
}
