//! Position of a job in its reads: open uses, and the next one.

use std::collections::BTreeSet;

use super::{Future, Shard, Use};

/// A future, and how far a job came with it.
pub(crate) struct Walk {
    future: Box<dyn Future>,
    /// Bytes that it has read.
    read: u64,
    /// The first use that has not begun.
    next: u64,
    /// Uses under way, by their end.
    open: BTreeSet<(u64, u64, Shard)>,
}

/// Changes of a step: shards whose uses began, and shards whose uses ended.
#[derive(Debug, Default)]
pub(crate) struct Changed {
    pub(crate) begun: Vec<Shard>,
    pub(crate) ended: Vec<Shard>,
}

impl Walk {
    /// One that has begun with nothing.
    pub(crate) fn new(future: Box<dyn Future>) -> Self {
        Self { future, read: 0, next: 0, open: BTreeSet::new() }
    }

    /// Goes to where `read` bytes have been read: begins and ends what lies on the way.
    pub(crate) fn to(&mut self, read: u64) -> Changed {
        self.read = read;
        let mut changed = Changed::default();
        while let Some(one) = self.future.at(self.next).filter(|one| one.start <= read) {
            self.open.insert((one.end, self.next, one.shard));
            self.next += 1;
            changed.begun.push(one.shard);
        }
        while let Some(&(end, _, shard)) = self.open.first()
            && end <= read
        {
            self.open.pop_first();
            changed.ended.push(shard);
        }
        changed
    }

    /// Bytes that it has read.
    pub(crate) fn read(&self) -> u64 {
        self.read
    }

    /// The number of the first use that has not begun.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// The uses under way: their numbers and shards, the one that ends first first.
    pub(crate) fn open(&self) -> impl Iterator<Item = (u64, Shard)> + '_ {
        self.open.iter().map(|(_, index, shard)| (*index, *shard))
    }

    /// The use number `index`: see [`Future::at`].
    pub(crate) fn at(&mut self, index: u64) -> Option<Use> {
        self.future.at(index)
    }

    /// The first use of `shard` that has not begun, as far as is known.
    pub(crate) fn next_of(&mut self, shard: Shard) -> Option<Use> {
        self.future.next(shard, self.next)
    }

    /// The use of `shard` after that one.
    pub(crate) fn second_of(&mut self, shard: Shard) -> Option<Use> {
        self.future.second(shard, self.next)
    }

    /// The uses under way and those that begin within so many bytes, counted from where it is.
    pub(crate) fn ahead(&mut self, bytes: u64) -> Vec<Use> {
        let read = self.read;
        let open = self.open.iter().map(|(end, _, shard)| Use {
            shard: *shard,
            start: 0,
            end: end.saturating_sub(read),
        });
        let mut uses: Vec<Use> = open.collect();
        let mut next = self.next;
        while let Some(one) = self.future.at(next).filter(|one| one.start <= read + bytes) {
            let Use { shard, start, end } = one;
            uses.push(Use { shard, start: start.saturating_sub(read), end: end - read });
            next += 1;
        }
        uses
    }

    /// The first use that is under way or among the next `most`, and of which this holds; counted
    /// from where it is.
    pub(crate) fn first(
        &mut self,
        most: u64,
        holds: impl Fn(Shard) -> bool,
    ) -> Option<(Shard, u64)> {
        if let Some((.., shard)) = self.open.iter().find(|(.., shard)| holds(*shard)) {
            return Some((*shard, 0));
        }
        let uses =
            (self.next..self.next.saturating_add(most)).map_while(|next| self.future.at(next));
        let first = uses.into_iter().find(|one| holds(one.shard))?;
        Some((first.shard, first.start.saturating_sub(self.read)))
    }

    /// Returns the bytes until a use begins or ends; none after the last.
    pub(crate) fn turn(&mut self) -> Option<u64> {
        let begins = self.future.at(self.next).map(|one| one.start);
        let ends = self.open.first().map(|(end, ..)| *end);
        begins.into_iter().chain(ends).min()
    }
}
