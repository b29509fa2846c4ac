//! Requests of admins.

use forebay_error::{Error, ErrorKind, Result};

use super::Store;
use crate::tier::{Mode, Scrub, Tier};

impl Store {
    /// Drops every copy of `url`, whatever its version, and forgets what the origin said about it.
    /// Returns the number of copies. `dry`: only counts them.
    ///
    /// # Errors
    /// If a tier's directory cannot be listed.
    pub async fn forget(&self, url: &str, dry: bool) -> Result<u64> {
        let (mut copies, mut failed) = (0, None);
        for tier in &self.inner.tiers {
            match tier.forget_url(url, dry).await {
                Ok(found) => copies += found,
                // The other tiers still drop theirs.
                Err(error) => failed = Some(error.at("tier", tier.name())),
            }
        }
        if !dry {
            self.inner.shared.through().forget_url(url);
            let mut identities = self.inner.shared.identities();
            let known: Vec<_> = identities
                .iter()
                .filter(|((_, of), _)| of == url)
                .map(|(key, _)| key.clone())
                .collect();
            for key in known {
                identities.pop(&key);
            }
        }
        failed.map_or(Ok(copies), Err)
    }

    /// Checks every whole shard at rest, and calls `progress` after each. `keep`: reports flaws
    /// without dropping the copies.
    ///
    /// # Errors
    /// If a directory cannot be listed. Flaws of shards are reported, not returned as errors.
    pub async fn scrub(&self, keep: bool, mut progress: impl FnMut(&Scrub)) -> Result<Scrub> {
        let mut scrub = Scrub::default();
        let mut work = Vec::new();
        for tier in &self.inner.tiers {
            let shards = tier.to_scrub().await?;
            scrub.shards += shards.len() as u64;
            scrub.bytes += shards.iter().map(|(.., bytes)| bytes).sum::<u64>();
            work.push((tier, shards));
        }
        let mut flaws = Vec::new();
        for (tier, shards) in work {
            tier.scrub(shards, keep, &mut scrub, &mut flaws, &mut progress).await;
        }
        (scrub.flaws, scrub.done) = (flaws, true);
        Ok(scrub)
    }

    /// Changes the mode of a tier at run time.
    ///
    /// # Errors
    /// `NotFound` if there is no tier of this name; errors of opening its directory again.
    pub async fn set_mode(&self, name: &str, mode: Mode) -> Result<()> {
        let tier = self.inner.tiers.iter().find(|tier| tier.name() == name).ok_or_else(|| {
            let names: Vec<_> = self.inner.tiers.iter().map(Tier::name).collect();
            Error::new(ErrorKind::NotFound, "the tier does not exist")
                .at("tier", name)
                .advise(format!("name one of {}", names.join(", ")))
        })?;
        match mode {
            Mode::Enabled => tier.enable().await?,
            Mode::Draining => tier.drain()?,
            Mode::Disabled => tier.disable().await,
        }
        tracing::info!(tier = name, ?mode, "an admin changed a tier");
        self.inner.shared.moves.notify_one();
        Ok(())
    }
}
