//! Pins set and removed by admins at run time.
//!
//! A pin holds once it is on the disks. If it cannot be saved, the request fails and nothing
//! is pinned.

use forebay_error::{Error, ErrorKind, Result};

use super::Store;
use crate::pins::{Pinned, WILD};
use crate::tier::Tier;

impl Store {
    /// Every pin, sorted: URLs, and patterns of URLs.
    #[must_use]
    pub fn pins(&self) -> Vec<String> {
        self.inner.shared.pins.current().list()
    }

    /// Pins shards by a URL, a pattern of URLs, or the name of a data set; later copies as well.
    /// Returns the number of present shards. `dry`: only counts them.
    ///
    /// # Errors
    /// `Invalid` for an invalid pattern, `Full` if there are too many pins; errors of saving them.
    pub async fn pin(&self, text: &str, dry: bool) -> Result<u64> {
        let pin = self.pattern_of(text);
        let _turn = self.inner.pinning.lock().await;
        let pinned = self.inner.shared.pins.current().with(&pin)?;
        let shards = self.select(&pin).await?;
        if !dry {
            self.change_pins(pinned, &pin).await?;
            tracing::info!(pin, "an admin pins shards");
        }
        match pin.contains(WILD) {
            true => Ok(shards.len() as u64),
            false => self.copies(&pin).await,
        }
    }

    /// Removes a pin; its shards may be evicted again.
    ///
    /// # Errors
    /// `NotFound` if there is none; errors of saving the change.
    pub async fn unpin(&self, text: &str, dry: bool) -> Result<()> {
        let pin = self.pattern_of(text);
        let _turn = self.inner.pinning.lock().await;
        let pinned = self.inner.shared.pins.current().without(&pin)?;
        if !dry {
            self.change_pins(pinned, &pin).await?;
            tracing::info!(pin, "an admin removes a pin");
        }
        Ok(())
    }

    /// Pattern of a data set, for use as a pin.
    fn pattern_of(&self, text: &str) -> String {
        let rule = self.datasets().into_iter().find(|rule| rule.name == text);
        rule.map_or_else(|| text.to_owned(), |rule| rule.matches.as_str().to_owned())
    }

    /// Number of tiers that have a copy.
    async fn copies(&self, url: &str) -> Result<u64> {
        let mut copies = 0;
        for tier in self.inner.tiers.iter().filter(|tier| tier.is_readable()) {
            copies += tier.copies_of(url).await?.len() as u64;
        }
        Ok(copies)
    }

    async fn change_pins(&self, pinned: Pinned, changed: &str) -> Result<()> {
        let tiers = || self.inner.tiers.iter().filter(|tier| tier.is_normal());
        let text = pinned.text();
        let on_disks: Vec<&Tier> = tiers().filter(|tier| tier.engine().is_some()).collect();
        let (mut kept, mut failed) = (on_disks.is_empty(), None);
        for tier in &on_disks {
            match tier.save_pins(text.clone()).await {
                Ok(()) => kept = true,
                Err(error) => failed = Some(error.at("tier", tier.name())),
            }
        }
        if let (false, Some(error)) = (kept, failed) {
            return Err(error);
        }
        // Arriving shards are compared with these pins; present ones are updated below.
        self.inner.shared.pins.set(pinned);
        for tier in tiers() {
            tier.pins_changed(changed).await.map_err(|error| error.at("tier", tier.name()))?;
        }
        Ok(())
    }
}

/// Error if the content of a tier is unknown.
pub(super) fn away(tier: &Tier) -> Error {
    Error::new(ErrorKind::Unavailable, "the tier cannot be used now: its shards are unknown")
        .at("tier", tier.name())
        .advise("try again once `forebay tier ls` shows it enabled and normal")
}
