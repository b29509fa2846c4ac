//! What admins pin at run time, and take back.
//!
//! One rule: a pin holds when it is on the disks. Where it cannot be kept, it is refused, and nothing is pinned.

use forebay_error::{Error, ErrorKind, Result};

use super::Store;
use crate::pins::{Pinned, WILD};
use crate::tier::Tier;

impl Store {
    /// Every pin, in order: URLs, and patterns of URLs.
    #[must_use]
    pub fn pins(&self) -> Vec<String> {
        self.inner.commons.pins.now().list()
    }

    /// Keeps what a text means (a URL, a pattern of URLs, a data set's name), what of it comes later, too; with how
    /// many shards of it are here now. `dry`: only counts them.
    ///
    /// # Errors
    /// `Invalid` for what is no pattern, `Full` if there are too many pins; what keeps them from being kept.
    pub async fn pin(&self, text: &str, dry: bool) -> Result<u64> {
        let pin = self.pattern_of(text);
        let _turn = self.inner.pinning.lock().await;
        let pinned = self.inner.commons.pins.now().with(&pin)?;
        let shards = self.meant(&pin).await?;
        if !dry {
            self.change_pins(pinned, &pin).await?;
            tracing::info!(pin, "an admin pins shards");
        }
        match pin.contains(WILD) {
            true => Ok(shards.len() as u64),
            false => self.copies(&pin).await,
        }
    }

    /// Takes back a pin; what it kept goes as any other.
    ///
    /// # Errors
    /// `NotFound` if there is none; what keeps that from being kept.
    pub async fn unpin(&self, text: &str, dry: bool) -> Result<()> {
        let pin = self.pattern_of(text);
        let _turn = self.inner.pinning.lock().await;
        let pinned = self.inner.commons.pins.now().without(&pin)?;
        if !dry {
            self.change_pins(pinned, &pin).await?;
            tracing::info!(pin, "an admin takes back a pin");
        }
        Ok(())
    }

    /// What stands for a data set among pins: its pattern.
    fn pattern_of(&self, text: &str) -> String {
        let rule = self.datasets().into_iter().find(|rule| rule.name == text);
        rule.map_or_else(|| text.to_owned(), |rule| rule.matches.as_str().to_owned())
    }

    /// How many tiers have a copy.
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
        // What comes from now on is compared with these; what is here, below.
        self.inner.commons.pins.set(pinned);
        for tier in tiers() {
            tier.pins_changed(changed).await.map_err(|error| error.at("tier", tier.name()))?;
        }
        Ok(())
    }
}

/// That a tier cannot be asked what it holds.
pub(super) fn away(tier: &Tier) -> Error {
    Error::new(ErrorKind::Unavailable, "the tier cannot be used now: what it holds is not known")
        .at("tier", tier.name())
        .advise("ask again once `forebay tier ls` shows it enabled and normal")
}
