//! Explanation of a shard's place.
//!
//! An explanation asks no origin and changes nothing.

use forebay_error::Result;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Store;
use crate::shares::{NOBODY, Share};
use crate::tier::{Condition, CopyReport, Mode};

/// Facts about a shard on this node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Explained {
    /// Data set of the shard; none if no rule matches.
    pub dataset: Option<String>,
    /// Pattern of the data set.
    pub matches: Option<String>,
    /// True if copies are kept.
    pub keeps: bool,
    /// True if the data set is pinned.
    pub pinned: bool,
    /// Tenant charged for shards that the asker fetches.
    pub tenant: Option<String>,
    /// Copies, fastest tier first.
    pub copies: Vec<CopyReport>,
    /// Last answer of the origin; none if it was not asked since the daemon started, or too long
    /// ago.
    pub origin: Option<OriginAnswer>,
    /// Tiers, fastest first.
    pub tiers: Vec<TierRoom>,
    /// Limits of the data set and the tenant, if any.
    pub quotas: Vec<Quota>,
}

/// Answer of an origin about an object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OriginAnswer {
    /// Seconds since the answer.
    pub seconds_ago: f64,
    /// Bytes of the object, if it exists.
    pub bytes: Option<u64>,
    /// Error, if there is none.
    pub error: Option<String>,
}

/// Room on a tier for the shard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TierRoom {
    /// Name of the tier.
    pub tier: String,
    /// Mode set by the admin.
    pub mode: Mode,
    /// Condition of the device.
    pub condition: Condition,
    /// True if the data set may use the tier.
    pub allowed: bool,
    /// Bytes it may hold now.
    pub limit_bytes: u64,
    /// Bytes it holds.
    pub used_bytes: u64,
}

/// Limit of a data set or a tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Quota {
    /// Name of the data set or tenant.
    pub name: String,
    /// Maximum bytes.
    pub max_bytes: u64,
    /// Bytes it holds.
    pub used_bytes: u64,
}

impl Store {
    /// Explains where the shard at `url` is and why.
    ///
    /// # Errors
    /// If a tier's directory cannot be listed.
    pub async fn explain(&self, url: &str) -> Result<Explained> {
        let shares = self.inner.shared.shares.current();
        let charge = self.charge(url);
        let (rule, has_rule) = (shares.rule(charge), charge.dataset != NOBODY.dataset);
        let mut copies = Vec::new();
        for tier in self.inner.tiers.iter().filter(|tier| tier.is_readable()) {
            for name in tier.copies_of(url).await? {
                copies.extend(tier.report_copy(&name));
            }
        }
        let tiers = self.inner.tiers.iter().map(|tier| {
            let report = tier.report();
            TierRoom {
                allowed: rule.allows(tier.name()),
                tier: report.name,
                mode: report.mode,
                condition: report.condition,
                limit_bytes: report.counters.limit_bytes,
                used_bytes: report.counters.used_bytes,
            }
        });
        let quota = |share: &Share| {
            let (name, used_bytes) = (share.name.clone(), share.budget.used());
            share.max_bytes().map(|max_bytes| Quota { name, max_bytes, used_bytes })
        };
        Ok(Explained {
            dataset: has_rule.then(|| rule.name.clone()),
            matches: has_rule.then(|| rule.matches.as_str().to_owned()),
            keeps: self.keeps(url),
            pinned: rule.pin,
            tenant: self.tenant().map(str::to_owned),
            copies,
            origin: self.last_answer(url),
            tiers: tiers.collect(),
            quotas: shares.of(charge).into_iter().filter_map(quota).collect(),
        })
    }

    /// Last answer of the origin, if remembered.
    fn last_answer(&self, url: &str) -> Option<OriginAnswer> {
        let identities = self.inner.shared.identities();
        let of = identities.iter().filter(|((_, of), _)| of == url).map(|(_, identity)| identity);
        let latest = of.min_by_key(|identity| identity.age())?;
        let said = latest.said()?;
        Some(OriginAnswer {
            seconds_ago: latest.age().as_secs_f64(),
            bytes: said.as_ref().ok().map(|stat| stat.len),
            error: said.as_ref().err().map(|error| error.to_string()),
        })
    }
}
