//! Members that a batch borrows where they lie in memory of a tier.
//!
//! A borrowed member needs no room in the slot and no read. Its shard stays in memory until the
//! trainer releases the batch.

use std::collections::{HashMap, HashSet};

use forebay_error::Result;
use forebay_store::{LendableShard, ShardHandle, ShardLoan};
use forebay_wire::message::IN_SLOT;

use super::{Assembly, Record};

/// Place of a member in memory that the trainer maps.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct BorrowedPlace {
    /// Number of the memory for the trainer; [`IN_SLOT`] until it is announced.
    pub(super) memory: u32,
    /// Start in that memory, in bytes.
    pub(super) offset: u64,
}

/// Shards that a batch borrows, by number.
#[derive(Debug, Default)]
pub(super) struct Borrowed {
    /// Those that may be borrowed once all samples of the batch are here: a batch that waits for
    /// other shards keeps none.
    lendable: HashMap<u32, LendableShard>,
    loans: HashMap<u32, ShardLoan>,
}

impl Borrowed {
    /// Returns the loans, to be kept while the trainer has the batch.
    pub(super) fn into_loans(self) -> Vec<ShardLoan> {
        self.loans.into_values().collect()
    }
}

impl Assembly {
    /// Notes a shard whose samples are captured, if it lies in memory and the job's trainer reads
    /// members there. An earlier one of its number may be another copy.
    pub(super) fn may_borrow(&mut self, number: u32, shard: &ShardHandle) {
        self.borrowed.lendable.remove(&number);
        if self.job.borrows
            && let Some(lendable) = shard.lendable()
        {
            self.borrowed.lendable.insert(number, lendable);
        }
    }

    /// Borrows shards, and sets the places of all members that lie in their memory. Loans that have
    /// none are returned.
    pub(super) fn borrow(&mut self) {
        let Borrowed { lendable, loans } = &mut self.borrowed;
        let lent = lendable.iter().filter_map(|(shard, of)| Some((*shard, of.lend()?)));
        *loans = lent.collect();
        let mut used = HashSet::new();
        for wanted in self.records.iter_mut().flat_map(Record::wanted_mut) {
            let range = wanted.member.offset..wanted.member.end();
            let loan = loans.get(&wanted.shard).filter(|_| !range.is_empty());
            let place = loan.and_then(|loan| loan.place(&range));
            wanted.borrowed = place.map(|offset| BorrowedPlace { memory: IN_SLOT, offset });
            if wanted.borrowed.is_some() {
                used.insert(wanted.shard);
            }
        }
        loans.retain(|shard, _| used.contains(shard));
    }

    /// Announces all borrowed memory to the trainer, and sets its number in the members' places.
    /// Returns the bytes of borrowed members, which it counts as read.
    ///
    /// # Errors
    /// `Closed` if the trainer is gone.
    pub(super) async fn announce_borrowed(&mut self) -> Result<u64> {
        let mut memories = HashMap::with_capacity(self.borrowed.loans.len());
        for (shard, loan) in &self.borrowed.loans {
            memories.insert(*shard, (self.job.slots.share(loan.region()).await?, loan));
        }
        let mut bytes = 0;
        for wanted in self.records.iter_mut().flat_map(Record::wanted_mut) {
            if let Some(place) = &mut wanted.borrowed
                && let Some((memory, loan)) = memories.get(&wanted.shard)
            {
                place.memory = *memory;
                loan.note_read(wanted.member.len);
                bytes += wanted.member.len;
            }
        }
        Ok(bytes)
    }
}
