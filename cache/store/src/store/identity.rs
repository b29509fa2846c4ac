//! Identity of objects: the version that a URL stands for now.
//!
//! The origin is asked once for all waiting requests. A request waits for a fresh answer only if
//! the known one is too old for its run ([`super::snapshot`]), and only for a moment. Any other
//! request uses the old answer while a fresh one is fetched beside it. So a warm epoch goes on
//! while the origin is away.
//!
//! If an object is certainly not here and can be fetched at once, its first bytes are requested
//! instead: their reply holds the identity. That saves a round trip before the first sample.

use std::sync::Arc;
use std::time::Instant;

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::Origin;
use forebay_source::{Rank, Source, Stat};
use tokio::sync::OwnedSemaphorePermit;

use super::Store;
use super::snapshot::RENEWAL_WAIT;
use crate::directory::ShardName;
use crate::identity::{Asked, Begun, Head, IDENTITY_TTL, Identity};
use crate::shard::Waited;

/// Prefix of the scope under which other nodes' questions are kept; no scope begins with it.
pub(super) const PEERS: &str = "nodes:";

/// Prefix of the scope under which their questions about copies are kept.
pub(super) const COPIES: &str = "copies:";

impl Store {
    /// Returns length and version of the object at `url`, with its first bytes if this is its first
    /// request, and the time waited for the answer.
    pub(super) async fn identity(
        &self,
        source: &Arc<dyn Source>,
        url: &str,
        rank: &Rank,
    ) -> Result<(Begun, Waited)> {
        let asking = Instant::now();
        let ask = || match self.first_of(source.endpoint(), url) {
            Some(right) => {
                rank.bill_to(|| self.bill(url));
                Identity::begin(source, url, rank, right)
            }
            None => Identity::ask(source, url, &self.bill(url)),
        };
        let (key, (begun, refresh, peer_times, _awaited)) = self.known(source, url, ask, |known| {
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
            (known.begun.clone(), old, known.peer_times.clone(), awaited)
        });
        if refresh {
            tokio::spawn(self.clone().refresh(key.clone(), source.clone()));
        }
        let begun = self.answer(key, begun).await?;
        Ok((begun, Waited::since(asking, peer_times.as_ref())))
    }

    /// Asks about a shard without requesting its first bytes.
    pub(super) async fn look(&self, source: &Arc<dyn Source>, url: &str) -> Result<Begun> {
        let ask = || Identity::ask(source, url, &self.bill(url));
        let (key, begun) = self.known(source, url, ask, |known| known.begun.clone());
        self.answer(key, begun).await
    }

    /// Asks about a shard for another node. An answer to this node's own jobs counts while it is
    /// fresh. A question of theirs, or of another `kind`, is not joined: it may wait for that very
    /// node.
    pub(super) async fn look_for_peer(
        &self,
        source: &Arc<dyn Source>,
        kind: &str,
        url: &str,
    ) -> Result<Stat> {
        let own = (source.scope().to_owned(), url.to_owned());
        let key = (format!("{kind}{}", own.0), own.1.clone());
        let begun = {
            let mut identities = self.inner.shared.identities();
            let is_fresh = |known: &Identity| known.age() < IDENTITY_TTL;
            let known = identities.peek(&own).filter(|known| is_fresh(known));
            if let Some(Ok(stat)) = known.and_then(Identity::said) {
                return Ok(stat.clone());
            }
            let ask = || Identity::ask(source, url, &self.bill(url));
            let known = identities.get_or_insert_mut(key.clone(), ask);
            if !is_fresh(known) {
                *known = ask();
            }
            known.begun.clone()
        };
        Ok(self.answer(key, begun).await?.stat)
    }

    /// Returns the key of a shard, and a `part` of what is known of it: asked for with `ask` if
    /// nothing is, and again if what is known is too old for this run.
    fn known<T>(
        &self,
        source: &Arc<dyn Source>,
        url: &str,
        ask: impl FnOnce() -> Identity,
        part: impl FnOnce(&mut Identity) -> T,
    ) -> ((String, String), T) {
        let key = (source.scope().to_owned(), url.to_owned());
        let mut identities = self.inner.shared.identities();
        let known = identities.get_or_insert_mut(key.clone(), ask);
        if let Some(before) = self.outdated(&**source, url, known) {
            *known = match before {
                Some(before) => self.renewed(source, url, before),
                None => Identity::ask(source, url, &self.bill(url)),
            };
        }
        let part = part(known);
        (key, part)
    }

    /// Asks about a known shard again. If the origin does not answer in time, the answer is the
    /// one from before.
    fn renewed(&self, source: &Arc<dyn Source>, url: &str, before: Begun) -> Identity {
        let asked = Identity::ask(source, url, &self.bill(url));
        let (store, source, url) = (self.clone(), source.clone(), url.to_owned());
        asked.after(move |answer| async move {
            let late = || Error::new(ErrorKind::Unavailable, "the origin does not answer in time");
            let answer = tokio::time::timeout(RENEWAL_WAIT, answer).await;
            match answer.unwrap_or_else(|_| Err(late())) {
                Err(error) if !is_gone(&*source, &url, &error).await => {
                    store.note_silence(&*source, &url, &error);
                    Ok(Begun { head: Head::default(), ..before })
                }
                answer => answer,
            }
        })
    }

    /// Forgets an answer that is an error: all waiting requests get it, and the next request asks
    /// the origin again.
    async fn answer(&self, key: (String, String), begun: Asked) -> Result<Begun> {
        let answer = begun.clone().await;
        if answer.is_err() {
            let mut identities = self.inner.shared.identities();
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
        let is_new = self.certainly_lacks(endpoint, url);
        is_new.then(|| self.inner.shared.flights.head()).flatten()
    }

    /// Returns true if no tier can have the object, in any version.
    pub(super) fn certainly_lacks(&self, endpoint: &str, url: &str) -> bool {
        let (endpoint, url) = (endpoint.to_owned(), url.to_owned());
        // Only the part of the name that all versions share is looked for.
        let name = ShardName::new(&Origin { endpoint, url, version: String::new() });
        self.inner.tiers.iter().all(|tier| tier.certainly_lacks(&name))
    }

    async fn refresh(self, key: (String, String), source: Arc<dyn Source>) {
        let fresh = Identity::ask(&source, &key.1, &self.bill(&key.1));
        match fresh.begun.clone().await {
            Ok(_) => drop(self.inner.shared.identities().put(key, fresh)),
            Err(error) if is_gone(&*source, &key.1, &error).await => {
                self.inner.shared.identities().pop(&key);
            }
            Err(error) => tracing::debug!(%error, "kept the previous identity of an object"),
        }
    }
}

/// True if the origin answered, and the object is no longer there for this asker. A file whose
/// folder is missing as well lies on a file system that is not mounted now: its origin is away.
async fn is_gone(source: &dyn Source, url: &str, error: &Error) -> bool {
    let folder = match error.kind() {
        ErrorKind::PermissionDenied => return true,
        ErrorKind::NotFound if source.is_remote() => return true,
        ErrorKind::NotFound => url.rsplit_once('/').map(|(folder, _)| folder),
        _ => return false,
    };
    let Some(folder) = folder else { return true };
    let is_missing =
        async { source.stat(folder).await.is_err_and(|error| error.kind() == ErrorKind::NotFound) };
    !tokio::time::timeout(RENEWAL_WAIT, is_missing).await.unwrap_or(true)
}
