//! Why a shard is where it is.
//!
//! One rule: nothing is asked of its origin, and nothing is changed by asking.

use forebay_error::Result;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Store;
use crate::shares::{NOBODY, Share};
use crate::tier::{Condition, Kept, Mode};

/// What is known of a shard here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Explained {
    /// The data set that it belongs to; none where no rule matches.
    pub dataset: Option<String>,
    /// The pattern that says so.
    pub matches: Option<String>,
    /// Whether copies of it are kept.
    pub keeps: bool,
    /// Whether its data set is pinned.
    pub pinned: bool,
    /// The tenant that is charged for what the one who asks brings in.
    pub tenant: Option<String>,
    /// Each copy, on the fastest tier first.
    pub copies: Vec<Kept>,
    /// What its origin said when it was asked last; none where nobody asked since the daemon started, or that
    /// is long ago.
    pub origin: Option<Said>,
    /// Each tier, the fastest first.
    pub tiers: Vec<Room>,
    /// What its data set and its tenant may hold, where that is limited.
    pub quotas: Vec<Quota>,
}

/// What an origin said of an object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Said {
    /// Seconds since then.
    pub seconds_ago: f64,
    /// Bytes of the object, if there is one.
    pub bytes: Option<u64>,
    /// Why not.
    pub error: Option<String>,
}

/// Whether a tier would take it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Room {
    /// The tier.
    pub tier: String,
    /// How it is used.
    pub mode: Mode,
    /// How its device does.
    pub condition: Condition,
    /// Whether the data set may lie there.
    pub allowed: bool,
    /// Bytes it may hold now.
    pub limit_bytes: u64,
    /// Bytes it holds.
    pub used_bytes: u64,
}

/// A limit on what somebody may hold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Quota {
    /// The data set or the tenant.
    pub name: String,
    /// Bytes it may hold.
    pub max_bytes: u64,
    /// Bytes it holds.
    pub used_bytes: u64,
}

impl Store {
    /// What is known of the shard at `url`.
    ///
    /// # Errors
    /// If a tier's directory could not be listed.
    pub async fn explain(&self, url: &str) -> Result<Explained> {
        let shares = self.inner.commons.shares.now();
        let charge = self.charge(url);
        let (rule, has_rule) = (shares.rule(charge), charge.dataset != NOBODY.dataset);
        let mut copies = Vec::new();
        for tier in self.inner.tiers.iter().filter(|tier| tier.is_readable()) {
            for name in tier.copies_of(url).await? {
                copies.extend(tier.kept(&name));
            }
        }
        let tiers = self.inner.tiers.iter().map(|tier| {
            let report = tier.report();
            Room {
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
            origin: self.said_of(url),
            tiers: tiers.collect(),
            quotas: shares.of(charge).into_iter().filter_map(quota).collect(),
        })
    }

    /// What the origin said of it last, if that is remembered.
    fn said_of(&self, url: &str) -> Option<Said> {
        let identities = self.inner.commons.identities();
        let of = identities.iter().filter(|((_, of), _)| of == url).map(|(_, identity)| identity);
        let latest = of.min_by_key(|identity| identity.age())?;
        let said = latest.said()?;
        Some(Said {
            seconds_ago: latest.age().as_secs_f64(),
            bytes: said.as_ref().ok().map(|stat| stat.len),
            error: said.as_ref().err().map(|error| error.to_string()),
        })
    }
}
