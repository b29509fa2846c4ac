//! Links between the table's shards and the forecast.

use forebay_policy::{Shard as Number, Slot};

use super::ShardTable;
use crate::tier::entry::ShardState;

impl ShardTable {
    /// Updates all links after jobs announced other shards.
    pub(in crate::tier) fn refresh_forecast(&mut self) {
        for slot in 0..self.entries.len() {
            let Some(entry) = &self.entries[slot] else { continue };
            let number = self.forecast.shard_id(entry.object);
            if entry.number != number {
                // Fits: slots are counted in this type.
                self.link_forecast(slot as Slot, number);
            }
        }
    }

    /// Links a shard to its id in the forecast, and reports its presence.
    pub(super) fn link_forecast(&mut self, slot: Slot, number: Option<Number>) {
        // Of several versions the latest counts: nobody will read the others.
        let other = number.and_then(|number| self.numbers.insert(number, slot));
        if let Some(other) = other.filter(|other| *other != slot) {
            self.unlink_forecast(other);
        }
        self.unlink_forecast(slot);
        let Some(number) = number else { return };
        self.numbers.insert(number, slot);
        let Some(entry) = self.entries[slot as usize].as_mut() else { return };
        entry.number = Some(number);
        let partition = &mut self.partitions[entry.partition];
        if entry.state != ShardState::Partial && partition.uses_forecast() {
            partition.set_foreseen(&mut entry.at, entry.name.hash());
        }
        let (is_fetched, is_whole, partition) =
            (entry.is_fetched(), entry.is_whole(), entry.partition);
        match (is_fetched, is_whole) {
            (true, _) => self.forecast.note_arriving(number),
            (false, true) => self.report_present(Some(number), partition),
            (false, false) => {}
        }
    }

    /// Unlinks a shard: the forecast must not count on it any more.
    pub(super) fn unlink_forecast(&mut self, slot: Slot) {
        let Some(entry) = self.entries[slot as usize].as_mut() else { return };
        let Some(number) = entry.number.take() else { return };
        let partition = &mut self.partitions[entry.partition];
        // Of a guest that nobody announces any more, the owner has the copy that stays.
        let is_spare = self.forecast.is_guest(number);
        partition.set_unforeseen(&mut entry.at, entry.name.hash(), is_spare);
        match (entry.is_fetched(), entry.is_whole(), partition.place) {
            (true, ..) => self.forecast.note_arrival_failed(number),
            (false, true, Some(place)) => self.forecast.note_left(number, place),
            _ => {}
        }
        if self.numbers.get(&number) == Some(&slot) {
            self.numbers.remove(&number);
        }
    }

    pub(super) fn report_present(&self, number: Option<Number>, partition: usize) {
        if let (Some(number), Some(place)) = (number, self.partitions[partition].place) {
            self.forecast.note_present(number, place);
        }
    }
}
