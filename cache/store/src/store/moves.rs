//! Moves of shards between tiers.
//!
//! A move waits for nobody but a request that opens its shard, and nobody waits for a move. One
//! shard moves at a time, as a fill whose origin is another tier: its blocks are compared with
//! their recorded checksums, and it is committed like any other.
//!
//! A shard moves *up* if it was used at least twice, and more often than the least used shard
//! there. Its slower copy stays until its room is needed. A shard moves *down* if its tier is above
//! the watermark or drains, and a slower tier has room; else it is evicted.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::Origin;
use forebay_shard::checksum::crc32c;
use forebay_source::{Binding, RangeRead, Rank, Source, Stat};
use forebay_uring::Span;
use futures::FutureExt;
use tokio::sync::oneshot;

use super::opening::Asker;
use super::{Store, StoreInner};
use crate::directory::ShardName;
use crate::identity::Head;
use crate::shard::{Shard, ShardHandle};
use crate::shared_state::SharedState;
use crate::sizes::PART_BYTES;
use crate::tier::{
    Arrival, Class, Mode, OpeningGuard, ShardState, Tier, Urgency, Wanted, above_quota,
};

/// Uses after which a shard may move up: a single one may have been the last.
const USES: u32 = 2;

/// Uses by which it must exceed the least used shard there. With less, shards of similar use would
/// swap places forever.
const MARGIN: u32 = 2;

/// Time that a request may take to open a shard that is about to move: it reads the index, and then
/// the shard is in use, which no move ends. Behind a disk that hangs, other shards are to move.
const OPENS: Duration = Duration::from_secs(1);

/// Maximum number of noted promotions; a shard that found no place is noted again on its next use.
const NOTED: usize = 64;

/// Shards that might move up, in the order they were noticed.
#[derive(Default)]
pub(super) struct Promotions(Mutex<VecDeque<Weak<Shard>>>);

impl Promotions {
    fn note(&self, shard: &Arc<Shard>) -> bool {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_noted = |other: &Weak<Shard>| std::ptr::eq(other.as_ptr(), Arc::as_ptr(shard));
        let news = noted.len() < NOTED && !noted.iter().any(is_noted);
        if news {
            // Weak: a waiting shard may be evicted.
            noted.push_back(Arc::downgrade(shard));
        }
        news
    }

    fn next(&self) -> Option<Arc<Shard>> {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::iter::from_fn(|| noted.pop_front()).find_map(|shard| shard.upgrade())
    }
}

/// Moves shards while the store exists.
pub(super) async fn move_shards(store: Weak<StoreInner>, shared: Arc<SharedState>) {
    loop {
        // Taken first, so that notes made during a move are seen.
        let woken = shared.moves.notified();
        let Some(inner) = store.upgrade() else { return };
        let store = Store::without_job(inner);
        while store.move_one().await {}
        drop(store);
        woken.await;
    }
}

impl Store {
    /// Notes a shard that might move to a faster tier.
    pub(super) fn consider_promotion(&self, tier: &Tier, shard: &ShardHandle, uses: u32) {
        let is_faster = |other: &&Tier| other.class() < tier.class() && other.is_writable();
        let is_kept = tier.state(shard.name()) == Some(ShardState::Whole);
        if uses >= USES
            && is_kept
            && self.inner.tiers.iter().any(|other| is_faster(&other))
            && self.inner.promotions.note(shard.shard())
        {
            self.inner.shared.moves.notify_one();
        }
    }

    /// Does the most urgent move. Returns false if there is none.
    async fn move_one(&self) -> bool {
        // A tier that cannot remove shards would copy them for nothing.
        for tier in self.inner.tiers.iter().filter(|tier| tier.is_normal()) {
            let drains = tier.mode() == Mode::Draining;
            if !drains && tier.excess() == 0 {
                continue;
            }
            let candidate = if drains { tier.any_idle() } else { tier.next_victim() };
            if let Some(name) = candidate {
                self.move_down(tier, &name, drains).await;
                return true;
            }
        }
        if self.remove_one_unwanted().await {
            return true;
        }
        if let Some(shard) = self.inner.promotions.next() {
            if let Err(error) = self.move_up(&shard).await {
                tracing::debug!(shard = shard.name().as_str(), %error, "failed to move a shard to a faster tier");
            }
            return true;
        }
        false
    }

    /// Removes one shard that the rules do not want on its tier, if one may leave.
    async fn remove_one_unwanted(&self) -> bool {
        let shares = self.inner.shared.shares.current();
        let normal = || self.inner.tiers.iter().rev().filter(|tier| tier.is_normal());
        for tier in normal() {
            if let Some((name, is_in_place)) = tier.unwanted() {
                match is_in_place {
                    true => tier.evict(&name).await,
                    false => self.move_down(tier, &name, true).await,
                }
                return true;
            }
        }
        let above = above_quota(&shares);
        for (charge, short) in &above {
            // Slowest tier first, as for newcomers.
            let of = |tier: &Tier| tier.victim_above_quota(*charge, *short);
            if let Some((tier, name)) = normal().find_map(|tier| Some((tier, of(tier)?))) {
                tier.evict(&name).await;
                return true;
            }
        }
        let is_left = !above.is_empty() || self.inner.tiers.iter().any(Tier::has_unwanted);
        self.inner.shared.leftover.store(is_left, Ordering::Relaxed);
        false
    }

    /// Evicts a shard from a tier. It is copied first to a slower tier with room, or with
    /// `anywhere` to any other.
    async fn move_down(&self, from: &Tier, name: &ShardName, anywhere: bool) {
        if let Err(error) = self.copy_down(from, name, anywhere).await {
            tracing::debug!(shard = name.as_str(), %error, "failed to move a shard to a slower tier");
        }
        from.evict(name).await;
    }

    /// Copies a shard to the first lasting tier that accepts it, unless one has it.
    async fn copy_down(&self, from: &Tier, name: &ShardName, anywhere: bool) -> Result<()> {
        if from.class() == Class::Memory {
            return Ok(());
        }
        let Some((source, wanted, uses)) = TierSource::of(from, name).await? else {
            return Ok(());
        };
        let source = Arc::new(source);
        let shares = self.inner.shared.shares.current();
        let charge = wanted.charge(&shares);
        let rule = shares.rule(charge);
        let logical = ShardName::new(&wanted.origin);
        // Memory is lost with the daemon.
        let lasting =
            || self.inner.tiers.iter().filter(|to| !to.is(from) && to.class() != Class::Memory);
        let has_it = |tier: &Tier| {
            tier.is_readable()
                && tier.state(&tier.name_for(&logical)).is_some_and(ShardState::is_whole)
        };
        if lasting().any(has_it) {
            return Ok(());
        }
        for to in lasting() {
            let len = wanted.len;
            let takes = rule.allows(to.name())
                && (to.class() > from.class() || anywhere)
                && to.is_writable()
                && to.allows_writing(len)
                && to.room_and_admission(charge, Some(&to.name_for(&logical)), len).1;
            if takes && self.copy(&source, wanted.clone(), uses, to).await? {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn move_up(&self, shard: &Arc<Shard>) -> Result<()> {
        let Some(from) = self.tier_of(shard) else { return Ok(()) };
        let Some((source, wanted, uses)) = TierSource::of(from, shard.name()).await? else {
            return Ok(());
        };
        let shares = self.inner.shared.shares.current();
        let charge = wanted.charge(&shares);
        let rule = shares.rule(charge);
        if rule.pin {
            // A second copy that never leaves would take the room of other pinned shards.
            return Ok(());
        }
        let logical = ShardName::new(&wanted.origin);
        let source = Arc::new(source);
        for to in self.inner.tiers.iter().take_while(|tier| tier.class() < from.class()) {
            let name = to.name_for(&logical);
            if !rule.allows(to.name())
                || !to.is_writable()
                || to.state(&name).is_some()
                || !to.allows_writing(wanted.len)
            {
                continue;
            }
            let (has_room, stays) = to.room_and_admission(charge, Some(&name), wanted.len);
            let least = to.victim_for_newcomer(charge, wanted.len).map(|name| to.uses(&name));
            let worth = has_room || least.is_some_and(|least| uses >= least + MARGIN);
            if stays && worth {
                self.copy(&source, wanted, uses, to).await?;
                return Ok(());
            }
        }
        Ok(())
    }

    /// Copies a shard to a tier, as a fill. Returns false if the tier does not have it afterwards.
    async fn copy(
        &self,
        source: &Arc<TierSource>,
        wanted: Wanted,
        uses: u32,
        to: &Tier,
    ) -> Result<bool> {
        let logical = ShardName::new(&wanted.origin);
        let wanted = Wanted { name: to.name_for(&logical), ..wanted };
        let (since, from, unpacked) = (source.since, source.clone(), source.unpacked);
        let arrival = Arrival::Move { uses, since, from, unpacked };
        let opened = self.opening().get(&logical).map(|(_, opened)| opened.clone());
        if let Some(opened) = opened {
            // Of its outcome only the end matters.
            let _ = tokio::time::timeout(OPENS, opened).await;
        }
        let moving = {
            let mut opening = self.opening();
            if opening.contains_key(&logical) {
                return Err(Error::new(ErrorKind::Unavailable, "the shard is being opened"));
            }
            // Uses the key of requests for the shard, so that none of them begins it meanwhile.
            // They wait only for the start of the move, and then look again.
            let (begun, waiting) = oneshot::channel::<()>();
            let again = async move {
                drop(waiting.await);
                Err(Error::new(ErrorKind::Full, "the shard was about to move"))
            };
            let asker = Asker { urgency: Urgency::Ahead, tenant: wanted.tenant.clone() };
            opening.insert(logical.clone(), (asker, again.boxed().shared()));
            Moving { store: self.clone(), name: logical, _begun: begun }
        };
        let begun = to.begin(&wanted, arrival, false).await;
        drop(moving);
        let filling = match begun {
            Ok((_, filling)) => filling,
            Err(error) => {
                tracing::debug!(tier = to.name(), %error, "no tier had room for the move");
                return Ok(false);
            }
        };
        drop(filling.await);
        Ok(to.state(&wanted.name).is_some_and(ShardState::is_whole))
    }
}

/// A move that starts; requests for the shard wait for its end.
struct Moving {
    store: Store,
    name: ShardName,
    _begun: oneshot::Sender<()>,
}

impl Drop for Moving {
    fn drop(&mut self) {
        self.store.opening().remove(&self.name);
    }
}

/// A tier as the origin of a move.
struct TierSource {
    tier: Tier,
    lease: ShardHandle,
    /// Checksums of its blocks: a block is a part.
    blocks: Vec<u32>,
    /// Endpoint of the true origin, so that the copy gets the same name.
    endpoint: String,
    /// True if the true origin keeps the shard compressed.
    unpacked: bool,
    /// Time of the shard's arrival on this node.
    since: SystemTime,
    _held: OpeningGuard,
}

impl TierSource {
    /// Opens a whole shard of `tier` for a move; `None` if it is gone, or in memory, where all
    /// shards are copies.
    async fn of(tier: &Tier, name: &ShardName) -> Result<Option<(Self, Wanted, u32)>> {
        let Some((lease, sidecar, held)) = tier.open_for_move(name).await? else { return Ok(None) };
        let uses = tier.uses(name);
        let Origin { endpoint, version, .. } = sidecar.origin.clone();
        let stat = Stat::new(sidecar.origin_len(), version, Binding::Weak);
        let (len, unpacked) = (sidecar.len, sidecar.compressed_len.is_some());
        let (source, lasting) = (lease.source.clone(), lease.source.clone());
        let tenant = sidecar.tenant.map(Arc::from);
        let (rank, head, guest) = (Rank::ahead(0), Head::default(), None);
        let (name, origin) = (name.clone(), sidecar.origin);
        let wanted = Wanted { name, origin, tenant, source, lasting, stat, len, rank, head, guest };
        let blocks = sidecar.blocks;
        let since = tier.since(&wanted.name);
        let source =
            Self { tier: tier.clone(), lease, blocks, endpoint, unpacked, since, _held: held };
        Ok(Some((source, wanted, uses)))
    }
}

#[async_trait]
impl Source for TierSource {
    async fn stat(&self, _url: &str) -> Result<Stat> {
        Ok(self.lease.stat.clone())
    }

    async fn range_read<'a>(
        &'a self,
        _url: &'a str,
        _stat: &'a Stat,
        range: Range<u64>,
        _rank: &'a Rank,
    ) -> Result<Box<dyn RangeRead + 'a>> {
        Ok(Box::new(Blocks { of: self, left: range }))
    }

    fn endpoint(&self) -> &str {
        &self.endpoint
    }
}

/// Consecutive blocks of a tier's copy, each checked.
struct Blocks<'a> {
    of: &'a TierSource,
    left: Range<u64>,
}

#[async_trait]
impl RangeRead for Blocks<'_> {
    async fn fill(&mut self, into: Span) -> Result<Span> {
        let TierSource { tier, lease, blocks, .. } = self.of;
        let offset = self.left.start;
        let held = (self.left.end - offset).min(into.len() as u64);
        let placed = lease.read(vec![(offset..offset + held, into)]).await;
        let gone = || Error::new(ErrorKind::Unavailable, "the shard left its tier");
        let placed = placed.into_iter().next().ok_or_else(gone)?;
        let span = placed.whole()?;
        self.left.start += held;
        let part = usize::try_from(offset / PART_BYTES as u64).unwrap_or(usize::MAX);
        let held = usize::try_from(held).unwrap_or(usize::MAX);
        match blocks.get(part) {
            Some(sum) if span.get(..held).is_some_and(|bytes| crc32c(bytes) == *sum) => Ok(span),
            _ => {
                let error =
                    Error::new(ErrorKind::Corrupt, "a block differs from the bytes of its origin");
                let error = error.at("offset", offset);
                if let Some(home) = &lease.home {
                    let copy = Arc::downgrade(&home.space);
                    tier.drop_corrupt(lease.name(), &copy, &error).await;
                }
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests;
