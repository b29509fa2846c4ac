//! Pinned shards of a tier, when the pins change.
//!
//! An arriving shard is pinned by the task that starts its fill. The pins are replaced before
//! the present shards are updated here.

use forebay_error::Result;

use super::Tier;
use crate::pins::WILD;

impl Tier {
    /// Saves the pins for the next start.
    ///
    /// # Errors
    /// If they cannot be written.
    pub(crate) async fn save_pins(&self, text: Vec<u8>) -> Result<()> {
        self.on_disk(move |directory| directory.save_pins(&text)).await
    }

    /// Updates the present shards after a pin was added or removed.
    ///
    /// # Errors
    /// If the directory cannot be listed.
    pub(crate) async fn pins_changed(&self, pin: &str) -> Result<()> {
        self.scanned().await?;
        let pins = self.0.shared.pins.current();
        let mut table = self.table();
        let concerned = |url: &str| pin.contains(WILD) || url == pin;
        let concerned = table.urls().filter(|(_, url)| concerned(url));
        let sorted = concerned.map(|(name, url)| (name.clone(), pins.has(url)));
        for (name, is_pinned) in sorted.collect::<Vec<_>>() {
            if is_pinned { table.pin(&name) } else { table.unpin(&name) }
        }
        drop(table);
        // Waiting tasks may find room now.
        self.budget().wake();
        Ok(())
    }
}
