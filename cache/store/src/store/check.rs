//! Whether cache and origin agree on a shard.
//!
//! One rule: the origin is asked now, whatever it said before; and nothing is changed by asking, but that
//! an answer which turned out old is forgotten.

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::Origin;
use forebay_source::Options;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Store;
use crate::directory::ShardName;
use crate::tier::State;

/// What the cache has of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Copy {
    /// All of the origin's version.
    Whole,
    /// A part of it: the next fetch goes on there.
    Partial,
    /// It is on its way.
    Arriving,
    /// What is good of it: the origin's archive breaks off.
    Broken,
    /// Another version than the origin's.
    Stale,
    /// Nothing.
    Absent,
}

/// A shard, here and at its origin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    /// What is here; where the origin does not tell its version, [`Copy::Stale`] is any copy.
    pub copy: Copy,
    /// The tier that has it.
    pub tier: Option<String>,
    /// Bytes of the origin's object, if it told.
    pub bytes: Option<u64>,
    /// Bytes that are here of one that is not whole.
    pub here: Option<u64>,
    /// What the origin answered, if that was no version.
    pub origin: Option<Error>,
    /// What of the copy differs from what the origin sent, if that was looked for and found.
    pub flaw: Option<Error>,
}

impl Store {
    /// Compares what is here of a shard with what its origin has. `verify`: also every byte of a whole copy
    /// with what the origin sent.
    ///
    /// # Errors
    /// `Invalid` and `PermissionDenied` for a URL that cannot be asked for; if a tier's directory could not
    /// be listed.
    pub async fn check(&self, url: &str, options: &Options, verify: bool) -> Result<Checked> {
        let source = self.inner.sources.open(url, options)?;
        let mut checked = Checked {
            copy: Copy::Absent,
            tier: None,
            bytes: None,
            here: None,
            origin: None,
            flaw: None,
        };
        let stat = match source.stat(url).await {
            Ok(stat) => stat,
            Err(error) => {
                if error.kind() == ErrorKind::NotFound {
                    self.inner.commons.forget_identity(&*source, url);
                }
                checked.origin = Some(error);
                self.look_for_others(url, &mut checked).await?;
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
        if checked.copy == Copy::Absent {
            self.look_for_others(url, &mut checked).await?;
            if checked.copy == Copy::Stale {
                // What is known of it is of the other version.
                self.inner.commons.forget_identity(&*source, url);
            }
        }
        Ok(checked)
    }

    /// Looks for this very version, the best copy of it.
    async fn look_for_this(&self, name: &ShardName, verify: bool, checked: &mut Checked) {
        for tier in &self.inner.tiers {
            let Some((here, state)) = tier.look_for(name).await else { continue };
            let copy = match state {
                State::Whole => Copy::Whole,
                State::Broken => Copy::Broken,
                State::Arriving => Copy::Arriving,
                State::Partial => Copy::Partial,
            };
            if verify && checked.flaw.is_none() {
                checked.flaw = tier.verify(&here).await.map(|flaw| flaw.at("tier", tier.name()));
            }
            if checked.copy == Copy::Absent || state.is_whole() && checked.copy != Copy::Whole {
                (checked.copy, checked.tier) = (copy, Some(tier.name().to_owned()));
                let is_part = matches!(copy, Copy::Partial | Copy::Arriving);
                checked.here =
                    if is_part { Some(tier.bytes_of_unfinished(&here).await) } else { None };
            }
        }
    }

    /// Looks for any version.
    async fn look_for_others(&self, url: &str, checked: &mut Checked) -> Result<()> {
        for tier in self.inner.tiers.iter().filter(|tier| tier.is_readable()) {
            if !tier.copies_of(url).await?.is_empty() {
                (checked.copy, checked.tier) = (Copy::Stale, Some(tier.name().to_owned()));
            }
        }
        Ok(())
    }
}
