//! Order of an epoch, over one data set or a mixture.

use super::{Known, Located, Mixed, Sequence, Share, Span};

/// Order of one epoch. Ascending queries are fastest; any order of queries is right.
#[derive(Debug)]
pub enum Epoch {
    /// Over one data set.
    One(Sequence),
    /// Over several streams.
    Mixed(Mixed),
}

impl Epoch {
    /// Returns the sample at `position`: see [`Sequence::locate`].
    pub fn locate(&mut self, position: u64, known: &dyn Fn(u32) -> Known) -> Located {
        match self {
            Self::One(sequence) => sequence.locate(position, known),
            Self::Mixed(mixed) => mixed.locate(position, known),
        }
    }

    /// Returns the samples in the epoch over all ranks, if known beforehand.
    #[must_use]
    pub fn total(&self) -> Option<u64> {
        match self {
            Self::One(sequence) => sequence.total(),
            Self::Mixed(mixed) => Some(mixed.total()),
        }
    }

    /// Returns the lanes that ranks may share: one for a mixture, which no single deal covers.
    #[must_use]
    pub fn lanes(&self) -> u32 {
        match self {
            Self::One(sequence) => sequence.lanes(),
            Self::Mixed(_) => 1,
        }
    }

    /// Returns the number of shards a rank has open at once: see [`Sequence::open`].
    #[must_use]
    pub fn open(&self, share: &Share) -> u64 {
        match self {
            Self::One(sequence) => sequence.open(|lane| share.owns(lane)),
            Self::Mixed(mixed) => mixed.open(),
        }
    }

    /// Returns the spans in which a rank needs its shards, ordered by start; a shard comes once per
    /// need. None if sample counts are learnt on the way.
    #[must_use]
    pub fn spans(&self, share: &Share) -> Option<Vec<Span>> {
        match self {
            Self::One(sequence) => sequence.spans(|lane| share.owns(lane)),
            Self::Mixed(mixed) => mixed.spans(),
        }
    }

    /// Returns the shards that a rank needs next, at most `limit`: see [`Sequence::upcoming`].
    #[must_use]
    pub fn upcoming(&self, position: u64, limit: usize, share: &Share) -> Vec<u32> {
        match self {
            Self::One(sequence) => sequence.upcoming(position, limit, |lane| share.owns(lane)),
            Self::Mixed(mixed) => mixed.upcoming(position, limit),
        }
    }
}
