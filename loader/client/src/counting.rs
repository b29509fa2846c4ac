//! Sizes and sample counts of shards, as the daemon reports them.

use std::collections::{BTreeMap, HashMap};

use forebay_error::{Error, ErrorKind, Result};
use forebay_wire::frame::Receiver;
use forebay_wire::message::{Reply, Request};

use crate::connection::Connection;

/// Requests sent before their answers are read: enough to keep every fill of the daemon busy.
const UNDER_WAY: usize = 8;

impl Connection {
    /// Has the daemon count shards, several at once, on a connection used for nothing else
    /// meanwhile: bytes and samples of each, in the list's order. `counted` is called after each.
    ///
    /// # Errors
    /// The first that a shard has, or `Closed` once the daemon is gone.
    pub fn count(
        &self,
        urls: &[String],
        origin: &BTreeMap<String, String>,
        mut counted: impl FnMut(),
    ) -> Result<Vec<(u64, u64)>> {
        let ask =
            |url: &String| self.send(&Request::Index { url: url.clone(), origin: origin.clone() });
        let mut waiting = urls.iter();
        for url in waiting.by_ref().take(UNDER_WAY) {
            ask(url)?;
        }
        let mut receiver = Receiver::default();
        let mut found = HashMap::new();
        for _ in 0..urls.len() {
            match self.receive(&mut receiver)? {
                Reply::Shard { url, bytes, samples } => found.insert(url, (bytes, samples)),
                Reply::Failed { error, .. } => return Err(error),
                _ => {
                    let what = "the daemon answered something else";
                    return Err(Error::new(ErrorKind::Invalid, what));
                }
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
