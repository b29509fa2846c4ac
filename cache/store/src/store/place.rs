//! Choice of the tier for a shard.
//!
//! The fastest lasting tier that would keep the shard takes it; among drives of one class,
//! the one with the most room and the least load. A failing tier is skipped, not waited for.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};

use super::Store;
use crate::directory::ShardName;
use crate::mounts::real;
use crate::shard::Shard;
use crate::shares::Charge;
use crate::tier::{Arrival, Class, Tier, TierConfig, Urgency, Wanted};

/// Rejects tiers that are invalid or cannot be told apart.
pub(super) fn check(tiers: &[TierConfig]) -> Result<()> {
    if tiers.is_empty() {
        return Err(
            Error::new(ErrorKind::Invalid, "a cache needs at least one tier").at("tiers", 0)
        );
    }
    let mut names = HashSet::new();
    let mut paths: Vec<(PathBuf, &str)> = Vec::new();
    for tier in tiers {
        let refuse = |key: &str, what: &str| {
            Err(Error::new(ErrorKind::Invalid, what).at("tier", &tier.name).at("key", key))
        };
        if !names.insert(&tier.name) {
            return refuse("name", "two tiers have one name");
        }
        tier.limits().check()?;
        match (&tier.disk, tier.class) {
            (None, Class::Memory) => {}
            (None, _) => return refuse("path", "a disk tier needs a path"),
            (Some(disk), _) => {
                let path = &disk.path;
                if path.exists() && !path.is_dir() {
                    let what = "the tier's path is not a directory";
                    return Err(Error::new(ErrorKind::Invalid, what)
                        .at("tier", &tier.name)
                        .at("directory", path.display()));
                }
                let real = real(path);
                let within = |other: &(PathBuf, &str)| {
                    other.0.starts_with(&real) || real.starts_with(&other.0)
                };
                if let Some((other, name)) = paths.iter().find(|other| within(other)) {
                    return Err(Error::new(ErrorKind::Invalid, "two tiers share a directory")
                        .at("tier", &tier.name)
                        .at("other", name)
                        .at("directory", other.display())
                        .advise("give each tier its own directory"));
                }
                paths.push((real, &tier.name));
            }
        }
    }
    Ok(())
}

/// Rounds of the search for a place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PlacementRound {
    /// Does not wait for room.
    WithoutWaiting,
    /// Waits for room, if somebody waits for the shard.
    Waiting,
    /// The same, after other tiers evicted shards of the same data set or tenant.
    EvictingOwn,
}

impl Store {
    /// Fetches a shard to a tier that accepts it, or reads it through if none can.
    pub(super) async fn begin(&self, wanted: &Wanted, urgency: Urgency) -> Result<Arc<Shard>> {
        // A tier with a part of the shard comes first.
        let Wanted { name, len, .. } = wanted;
        let charge = wanted.charge(&self.inner.shared.shares.current());
        let mut candidates = self.candidates(charge, Some(name), *len, urgency);
        let mut refused = None;
        let partial = candidates.iter().position(|tier| {
            tier.state(&tier.name_for(&wanted.name)) == Some(crate::tier::ShardState::Partial)
        });
        if let Some(at) = partial {
            candidates[..=at].rotate_right(1);
        }
        // First without waiting for room, if there is a choice.
        let rounds: &[PlacementRound] = match (candidates.len(), urgency) {
            (0 | 1, Urgency::Ahead) => &[PlacementRound::Waiting],
            (0 | 1, Urgency::Needed) => &[PlacementRound::Waiting, PlacementRound::EvictingOwn],
            (_, Urgency::Ahead) => &[PlacementRound::WithoutWaiting, PlacementRound::Waiting],
            (_, Urgency::Needed) => &[
                PlacementRound::WithoutWaiting,
                PlacementRound::Waiting,
                PlacementRound::EvictingOwn,
            ],
        };
        for round in rounds {
            if *round == PlacementRound::EvictingOwn {
                let is_full = |error: &Error| error.kind() == ErrorKind::Full;
                let is_full = refused.as_ref().is_some_and(is_full);
                if !is_full || !self.evict_own(wanted, &candidates).await {
                    break;
                }
            }
            for tier in &candidates {
                if !tier.is_writable() {
                    continue;
                }
                let here = Wanted { name: tier.name_for(&wanted.name), ..wanted.clone() };
                let is_brief = *round == PlacementRound::WithoutWaiting;
                // The first round evicts no claimed shards: another tier may have room.
                let urgency = if is_brief { Urgency::Ahead } else { urgency };
                match tier.begin(&here, Arrival::Fetch(urgency), !is_brief).await {
                    Ok((shard, _filling)) => return Ok(shard),
                    // An invalid request is invalid on every tier.
                    Err(error) if error.kind() == ErrorKind::Invalid => return Err(error),
                    Err(error) => refused = Some(error),
                }
            }
        }
        match refused {
            // Every tier is full of shards that are in use or kept by rules: the asker must know
            // and wait for a change. If a tier is out of order, its shards may be the reason: then
            // the shard is read through.
            Some(error) if error.kind() == ErrorKind::Full && self.is_in_order() => Err(error),
            Some(error) if error.kind() == ErrorKind::Closed && self.is_in_order() => Err(error),
            other => {
                let why = other.unwrap_or_else(|| {
                    Error::new(ErrorKind::Unavailable, "no tier accepts shards now")
                        .advise("see `forebay tier ls`")
                });
                match urgency {
                    Urgency::Needed => Ok(self.begin_through(wanted, &why)),
                    // Only a waiting reader is worth fetching the bytes twice. `Full`, as other
                    // refusals of a prefetch: a job that needs the shard asks again.
                    Urgency::Ahead => Err(Error::new(ErrorKind::Full, why.to_string())),
                }
            }
        }
    }

    /// If the limit of the data set or the tenant is short: evicts their shards on tiers that do
    /// not take the shard, slowest tier first. Returns true if any was evicted.
    async fn evict_own(&self, wanted: &Wanted, candidates: &[Tier]) -> bool {
        let shares = self.inner.shared.shares.current();
        let charge = wanted.charge(&shares);
        let bytes = candidates.iter().filter_map(|tier| {
            let bytes = tier.bytes_for(wanted.len);
            let fits = bytes <= tier.budget().limit();
            let fits = fits && shares.of(charge).iter().all(|share| share.check(bytes).is_ok());
            fits.then_some(bytes)
        });
        // Nothing is evicted for a shard that never fits.
        let Some(bytes) = bytes.max() else { return false };
        let mut any = false;
        for tier in self.inner.tiers.iter().rev() {
            any |= tier.evict_for_share(wanted, bytes).await;
        }
        any
    }

    /// Returns true if every tier accepts writes.
    fn is_in_order(&self) -> bool {
        self.inner.tiers.iter().all(Tier::is_writable)
    }

    /// Tiers that may take a shard, best first. `name`: name of the shard, if it may have been seen
    /// before.
    pub(super) fn candidates(
        &self,
        charge: Charge,
        name: Option<&ShardName>,
        len: u64,
        urgency: Urgency,
    ) -> Vec<Tier> {
        let shares = self.inner.shared.shares.current();
        let rule = shares.rule(charge);
        let may = |tier: &&Tier| rule.allows(tier.name()) && tier.is_writable();
        let mut ranked: Vec<_> = self
            .inner
            .tiers
            .iter()
            .filter(may)
            .map(|tier| {
                let name = name.map(|name| tier.name_for(name));
                let (has_room, stays) = tier.room_and_admission(charge, name.as_ref(), len);
                let worn = !tier.allows_writing(len);
                // Larger than the whole tier: tried only for the error it gives.
                let large = tier.bytes_for(len) > tier.budget().capacity();
                // Shards in memory are lost with the daemon.
                let class = (tier.class() == Class::Memory, tier.class());
                let key = (large, worn, !stays, class, !has_room);
                (key, std::cmp::Reverse(Weight(weight(tier))), tier.clone())
            })
            .collect();
        ranked.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
        // Without a waiting reader, no write allowance is overdrawn.
        let spare =
            |key: &(bool, bool, bool, (bool, Class), bool)| urgency == Urgency::Needed || !key.1;
        ranked.into_iter().filter(|(key, ..)| spare(key)).map(|(.., tier)| tier).collect()
    }
}

/// Weight of a tier among its class: its free bytes, less as its device is busy. If none are free,
/// all its bytes, so that turnover follows size.
fn weight(tier: &Tier) -> f64 {
    let budget = tier.budget();
    let free = budget.limit().saturating_sub(budget.used());
    let bytes = if free > 0 { free } else { budget.capacity() };
    let load = tier.engine().map_or(0.0, forebay_uring::Engine::load);
    bytes as f64 * (1.0 - load)
}

/// A weight with a total order.
#[derive(PartialEq)]
struct Weight(f64);

impl Eq for Weight {}

impl PartialOrd for Weight {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Weight {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}
