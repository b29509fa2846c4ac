//! Which shards of a tier are pinned, when that changes.
//!
//! One rule: what begins to arrive meanwhile is pinned by who begins it, and is left alone here.

use forebay_error::Result;

use super::Tier;
use crate::directory::{Directory, ShardName};
use crate::pins::WILD;
use crate::shard::Shard;

impl Tier {
    /// Keeps what is pinned for the next start.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) async fn save_pins(&self, text: Vec<u8>) -> Result<()> {
        self.on_disk(move |directory| directory.save_pins(&text)).await
    }

    /// A pin came or went: shards that are here are pinned, or not any more.
    ///
    /// # Errors
    /// If the directory could not be listed.
    pub(crate) async fn pins_changed(&self, pin: &str) -> Result<()> {
        if pin.contains(WILD) {
            let (pinned, others) = self.by_pin().await?;
            let mut table = self.table();
            pinned.iter().for_each(|name| table.pin(name));
            others.iter().for_each(|name| table.unpin(name));
        } else {
            let copies = self.copies_of(pin).await?;
            let is_pinned = self.0.commons.pins.has(pin);
            let mut table = self.table();
            for name in &copies {
                if is_pinned { table.pin(name) } else { table.unpin(name) }
            }
        }
        // Who waits for room may find some now.
        self.budget().wake();
        Ok(())
    }

    /// Shards here that are pinned, and the others.
    async fn by_pin(&self) -> Result<(Vec<ShardName>, Vec<ShardName>)> {
        self.scanned().await?;
        let (live, resting): (Vec<_>, Vec<_>) =
            self.table().all().into_iter().partition(|(_, shard)| shard.is_some());
        let commons = self.0.commons.clone();
        let is_pinned = |shard: &Shard| commons.pins.has(shard.url());
        let (mut pinned, mut others) = (Vec::new(), Vec::new());
        for (name, shard) in live {
            let is_pinned = shard.as_deref().is_some_and(is_pinned);
            if is_pinned { pinned.push(name) } else { others.push(name) }
        }
        if self.disk().is_some() {
            let commons = self.0.commons.clone();
            // Heads are read one by one: 20 µs each.
            let sorted = self.on_disk(move |directory: &Directory| {
                let resting = resting.into_iter().map(|(name, _)| name);
                Ok(resting.partition::<Vec<_>, _>(|name| {
                    directory.url_of(name).is_some_and(|url| commons.pins.has(&url))
                }))
            });
            let (resting_pinned, resting_others) = sorted.await?;
            pinned.extend(resting_pinned);
            others.extend(resting_others);
        }
        Ok((pinned, others))
    }
}
