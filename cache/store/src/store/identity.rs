//! Identity of objects: the version that a URL stands for now.
//!
//! The origin is asked once for all waiting requests, and a request with an old answer never
//! waits: the old answer is used while a fresh one is fetched beside it. So a warm epoch goes on
//! while the origin is away, and a replaced object is noticed at the second use after the limit.
//!
//! If an object is certainly not here and can be fetched at once, its first bytes are requested
//! instead: their reply holds the identity. That saves a round trip before the first sample.

use std::sync::Arc;
use std::time::Instant;

use forebay_error::{ErrorKind, Result};
use forebay_shard::Origin;
use forebay_source::{Rank, Source};
use tokio::sync::OwnedSemaphorePermit;

use super::Store;
use crate::directory::ShardName;
use crate::identity::{Begun, IDENTITY_TTL, Identity};

impl Store {
    /// Returns length and version of the object at `url`, with its first bytes if this is its first
    /// request.
    pub(super) async fn identity(
        &self,
        source: &Arc<dyn Source>,
        url: &str,
        rank: &Rank,
    ) -> Result<Begun> {
        let key = (source.scope().to_owned(), url.to_owned());
        let (begun, refresh, _awaited) = {
            let mut identities = self.inner.shared.identities();
            let ask = || match self.first_of(source.endpoint(), url) {
                Some(right) => {
                    rank.bill_to(|| self.bill(url));
                    Identity::begin(source, url, rank, right)
                }
                None => Identity::ask(source, url, &self.bill(url)),
            };
            let known = identities.get_or_insert_mut(key.clone(), ask);
            // The first request may still wait for its turn.
            let awaited = known.rank.as_ref().and_then(|before| {
                before.lift(rank);
                rank.is_awaited().then(|| before.awaited())
            });
            let old = known.asked.elapsed() >= IDENTITY_TTL
                && known.begun.peek().is_some_and(Result::is_ok);
            if old {
                // One refresh at a time: the next is due when this one is as old.
                known.asked = Instant::now();
            }
            (known.begun.clone(), old, awaited)
        };
        if refresh {
            tokio::spawn(self.clone().refresh(key.clone(), source.clone()));
        }
        let answer = begun.clone().await;
        if answer.is_err() {
            let mut identities = self.inner.shared.identities();
            // All waiting requests get this error; the next request asks the origin again.
            if identities.peek(&key).is_some_and(|known| known.begun.ptr_eq(&begun)) {
                identities.pop(&key);
            }
        }
        answer
    }

    /// Length of an object with a known identity, as its origin reports it.
    pub(super) fn known_length(&self, source: &dyn Source, url: &str) -> Option<u64> {
        let key = (source.scope().to_owned(), url.to_owned());
        let identities = self.inner.shared.identities();
        let begun = identities.peek(&key)?.begun.peek()?.as_ref().ok()?;
        Some(begun.stat.len)
    }

    /// Permit to request an object's first bytes, if no version of it can be here and its fetch
    /// would begin now.
    fn first_of(&self, endpoint: &str, url: &str) -> Option<OwnedSemaphorePermit> {
        let (endpoint, url) = (endpoint.to_owned(), url.to_owned());
        // Any version: only the shared part of the name is looked for.
        let name = ShardName::new(&Origin { endpoint, url, version: String::new() });
        let is_new = self.inner.tiers.iter().all(|tier| tier.certainly_lacks(&name));
        is_new.then(|| self.inner.shared.flights.head()).flatten()
    }

    async fn refresh(self, key: (String, String), source: Arc<dyn Source>) {
        let fresh = Identity::ask(&source, &key.1, &self.bill(&key.1));
        match fresh.begun.clone().await {
            Ok(_) => drop(self.inner.shared.identities().put(key, fresh)),
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) =>
            {
                self.inner.shared.identities().pop(&key);
            }
            Err(error) => tracing::debug!(%error, "kept the previous identity of an object"),
        }
    }
}
