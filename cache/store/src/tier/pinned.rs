//! Which shards of a tier are pinned, when that changes.
//!
//! One rule: what begins to arrive is pinned by who begins it; pins change before it is looked here.

use forebay_error::Result;

use super::Tier;
use crate::pins::WILD;

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
        self.scanned().await?;
        let pins = self.0.commons.pins.now();
        let mut table = self.table();
        let concerned = |url: &str| pin.contains(WILD) || url == pin;
        let concerned = table.all().filter(|(_, url)| concerned(url));
        let sorted = concerned.map(|(name, url)| (name.clone(), pins.has(url)));
        for (name, is_pinned) in sorted.collect::<Vec<_>>() {
            if is_pinned { table.pin(&name) } else { table.unpin(&name) }
        }
        drop(table);
        // Who waits for room may find some now.
        self.budget().wake();
        Ok(())
    }
}
