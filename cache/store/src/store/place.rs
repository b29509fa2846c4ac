//! Which tier a shard comes to.
//!
//! One rule: the fastest lasting tier that would keep the shard takes it; among drives of one class,
//! the one with the most room for what is under way on it. A tier that fails is passed over, not
//! waited for.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};

use super::Store;
use crate::directory::ShardName;
use crate::shard::Shard;
use crate::shares::Charge;
use crate::tier::{Arrival, Class, Tier, TierConfig, Urgency, Wanted};

/// Refuses tiers that cannot be told apart, or that make no sense.
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
            (None, _) => return refuse("path", "a tier that is not memory needs a path"),
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
                        .advise("give each tier a directory of its own"));
                }
                paths.push((real, &tier.name));
            }
        }
    }
    Ok(())
}

/// The path without links, as far as it exists.
fn real(path: &Path) -> PathBuf {
    match (path.canonicalize(), path.parent(), path.file_name()) {
        (Ok(real), ..) => real,
        (Err(_), Some(parent), Some(name)) if !parent.as_os_str().is_empty() => {
            real(parent).join(name)
        }
        _ => path.to_owned(),
    }
}

/// How a place is looked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Round {
    /// Without waiting for room.
    Brief,
    /// Waiting, where somebody waits for the shard.
    Patient,
    /// The same, after what other tiers hold of the same data set or tenant made room.
    GivingUp,
}

impl Store {
    /// Fetches a shard to the tier that takes it, or reads it through if none can.
    pub(super) async fn begin(&self, wanted: &Wanted, urgency: Urgency) -> Result<Arc<Shard>> {
        // A part of it is worth more than any other place.
        let Wanted { name, len, .. } = wanted;
        let charge = wanted.charge(&self.inner.commons.shares.now());
        let mut candidates = self.candidates(charge, Some(name), *len, urgency);
        let mut refused = None;
        let partial = candidates.iter().position(|tier| {
            tier.state(&tier.name_for(&wanted.name)) == Some(crate::tier::State::Partial)
        });
        if let Some(at) = partial {
            candidates[..=at].rotate_right(1);
        }
        // First without waiting for room, where there is a choice.
        let rounds: &[Round] = match (candidates.len(), urgency) {
            (0 | 1, Urgency::Ahead) => &[Round::Patient],
            (0 | 1, Urgency::Needed) => &[Round::Patient, Round::GivingUp],
            (_, Urgency::Ahead) => &[Round::Brief, Round::Patient],
            (_, Urgency::Needed) => &[Round::Brief, Round::Patient, Round::GivingUp],
        };
        for round in rounds {
            if *round == Round::GivingUp {
                let is_full = |error: &Error| error.kind() == ErrorKind::Full;
                let is_full = refused.as_ref().is_some_and(is_full);
                if !is_full || !self.give_up(wanted, &candidates).await {
                    break;
                }
            }
            for tier in &candidates {
                if !tier.is_writable() {
                    continue;
                }
                let here = Wanted { name: tier.name_for(&wanted.name), ..wanted.clone() };
                let is_brief = *round == Round::Brief;
                // At first nobody's claim is touched for what another tier may have room for.
                let urgency = if is_brief { Urgency::Ahead } else { urgency };
                match tier.begin(&here, Arrival::Fetch(urgency), !is_brief).await {
                    Ok((shard, _filling)) => return Ok(shard),
                    // What is wrong with the request is so on every tier.
                    Err(error) if error.kind() == ErrorKind::Invalid => return Err(error),
                    Err(error) => refused = Some(error),
                }
            }
        }
        match refused {
            // Every tier is taken up by what is in use or kept by rule: there is no way but to wait
            // for a change, and whoever asked must know. Unless one is out of order: what it holds
            // may be what is in the way.
            Some(error) if error.kind() == ErrorKind::Full && self.is_in_order() => Err(error),
            Some(error) if error.kind() == ErrorKind::Closed && self.is_in_order() => Err(error),
            other => {
                let why = other.unwrap_or_else(|| {
                    Error::new(ErrorKind::Unavailable, "no tier takes shards now")
                        .advise("see `forebay tier ls`")
                });
                match urgency {
                    Urgency::Needed => Ok(self.begin_through(wanted, &why)),
                    // Only bytes that somebody reads are worth fetching twice. `Full`, as any other
                    // refusal to look ahead: whoever needs the shard asks again.
                    Urgency::Ahead => Err(Error::new(ErrorKind::Full, why.to_string())),
                }
            }
        }
    }

    /// Where the data set's or the tenant's own limit is what is short: what they hold on tiers that do
    /// not take the shard makes room, the slowest first. Whether any did.
    async fn give_up(&self, wanted: &Wanted, candidates: &[Tier]) -> bool {
        let shares = self.inner.commons.shares.now();
        let charge = wanted.charge(&shares);
        let bytes = candidates.iter().filter_map(|tier| {
            let bytes = tier.takes(wanted.len);
            let fits = bytes <= tier.budget().limit();
            let fits = fits && shares.of(charge).iter().all(|share| share.check(bytes).is_ok());
            fits.then_some(bytes)
        });
        // For what never fits nothing is worth giving up.
        let Some(bytes) = bytes.max() else { return false };
        let mut any = false;
        for tier in self.inner.tiers.iter().rev() {
            any |= tier.give_up(wanted, bytes).await;
        }
        any
    }

    /// Whether every tier is as it should be.
    fn is_in_order(&self) -> bool {
        self.inner.tiers.iter().all(Tier::is_writable)
    }

    /// Tiers that may take a shard, the best first. `name`: by which it was perhaps seen before.
    pub(super) fn candidates(
        &self,
        charge: Charge,
        name: Option<&ShardName>,
        len: u64,
        urgency: Urgency,
    ) -> Vec<Tier> {
        let shares = self.inner.commons.shares.now();
        let rule = shares.rule(charge);
        let may = |tier: &&Tier| rule.allows(tier.name()) && tier.is_writable();
        let mut ranked: Vec<_> = self
            .inner
            .tiers
            .iter()
            .filter(may)
            .map(|tier| {
                let name = name.map(|name| tier.name_for(name));
                let (has_room, stays) = tier.welcomes(charge, name.as_ref(), len);
                let worn = !tier.allows_writing(len);
                // Larger than all of it: only the error it gives is of use.
                let large = tier.takes(len) > tier.budget().capacity();
                // What lies in memory is lost with the daemon.
                let class = (tier.class() == Class::Memory, tier.class());
                let key = (large, worn, !stays, class, !has_room);
                (key, std::cmp::Reverse(Weight(weight(tier))), tier.clone())
            })
            .collect();
        ranked.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
        // Nobody waits for it: then nothing is overdrawn.
        let spare =
            |key: &(bool, bool, bool, (bool, Class), bool)| urgency == Urgency::Needed || !key.1;
        ranked.into_iter().filter(|(key, ..)| spare(key)).map(|(.., tier)| tier).collect()
    }
}

/// How much a tier should get, among its like: its free bytes (all of it where none is free, so that
/// turnover follows size), less as its device is busy.
fn weight(tier: &Tier) -> f64 {
    let budget = tier.budget();
    let free = budget.limit().saturating_sub(budget.used());
    let bytes = if free > 0 { free } else { budget.capacity() };
    let load = tier.engine().map_or(0.0, forebay_uring::Engine::load);
    bytes as f64 * (1.0 - load)
}

/// A weight, in the order of numbers.
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
