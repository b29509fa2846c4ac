//! Comparison of cache and origin for one shard.
//!
//! The origin is always asked anew. A check changes nothing, except that an outdated answer
//! is forgotten.

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::Origin;
use forebay_source::{Options, object_of};
use serde::{Deserialize, Serialize};

use super::Store;
use crate::directory::ShardName;
use crate::tier::CopyState;

/// State of a shard, in the cache and at its origin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    /// Copy in the cache. If the origin does not report a version, any copy is
    /// [`CopyState::Stale`].
    pub copy: CopyState,
    /// Tier that has it.
    pub tier: Option<String>,
    /// Bytes of the origin's object, if known.
    pub bytes: Option<u64>,
    /// Bytes here of a copy that is not whole.
    pub here: Option<u64>,
    /// Excerpts of the shard, of any version: members that jobs wanted, without the rest.
    pub excerpts: u64,
    /// Error of the origin, if it reported no version.
    pub origin: Option<Error>,
    /// Difference between the copy and the origin's bytes, if one was found.
    pub flaw: Option<Error>,
}

impl Store {
    /// Compares the copies of a shard with the object at its origin. `verify`: also checks every
    /// byte of a whole copy.
    ///
    /// # Errors
    /// `Invalid` and `PermissionDenied` for a URL that cannot be requested; if a tier's directory
    /// cannot be listed.
    pub async fn check(&self, url: &str, options: &Options, verify: bool) -> Result<Checked> {
        let source = self.inner.sources.open(url, options)?;
        let url = &*object_of(url);
        let mut checked = Checked {
            copy: CopyState::Absent,
            tier: None,
            bytes: None,
            here: None,
            excerpts: 0,
            origin: None,
            flaw: None,
        };
        let stat = match source.stat(url).await {
            Ok(stat) => stat,
            Err(error) => {
                if error.kind() == ErrorKind::NotFound {
                    self.inner.shared.forget_identity(&*source, url);
                }
                checked.origin = Some(error);
                self.look_for_others(url, verify, &mut checked).await?;
                return Ok(checked);
            }
        };
        checked.bytes = Some(stat.len);
        let name = ShardName::new(&Origin {
            endpoint: source.endpoint().to_owned(),
            url: url.to_owned(),
            version: stat.version,
        });
        self.look_for_this(&name, verify, &mut checked).await;
        self.look_for_others(url, verify, &mut checked).await?;
        if checked.copy == CopyState::Stale {
            // The remembered identity is of the other version.
            self.inner.shared.forget_identity(&*source, url);
        }
        Ok(checked)
    }

    /// Looks for this version, and for its best copy.
    async fn look_for_this(&self, name: &ShardName, verify: bool, checked: &mut Checked) {
        for tier in &self.inner.tiers {
            let Some((here, state)) = tier.look_up(name).await else { continue };
            let copy = state.into();
            if verify && checked.flaw.is_none() {
                checked.flaw = tier.verify(&here).await.map(|flaw| flaw.at("tier", tier.name()));
            }
            if checked.copy == CopyState::Absent
                || state.is_whole() && checked.copy != CopyState::Whole
            {
                (checked.copy, checked.tier) = (copy, Some(tier.name().to_owned()));
                let is_part = matches!(copy, CopyState::Partial | CopyState::Arriving);
                checked.here =
                    if is_part { Some(tier.bytes_of_unfinished(&here).await) } else { None };
            }
        }
    }

    /// Looks for any version, unless the origin's was found, and for excerpts.
    async fn look_for_others(&self, url: &str, verify: bool, checked: &mut Checked) -> Result<()> {
        let is_here = checked.copy != CopyState::Absent;
        for tier in self.inner.tiers.iter().filter(|tier| tier.is_readable()) {
            for name in tier.copies_of(url).await? {
                if name.is_excerpt() {
                    checked.excerpts += 1;
                    if verify && checked.flaw.is_none() {
                        let flaw = tier.verify(&name).await;
                        checked.flaw = flaw.map(|flaw| flaw.at("tier", tier.name()));
                    }
                } else if !is_here {
                    (checked.copy, checked.tier) = (CopyState::Stale, Some(tier.name().to_owned()));
                }
            }
        }
        Ok(())
    }
}
