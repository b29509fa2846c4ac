//! An epoch's order, be it over one data set or over a mixture.

use super::{Known, Located, Mixed, Sequence, Share, Span};

/// One epoch's order. Ask in ascending order for speed; any order is right.
#[derive(Debug)]
pub enum Epoch {
    /// Over one data set.
    One(Sequence),
    /// Over several streams.
    Mixed(Mixed),
}

impl Epoch {
    /// Which sample is at `position`: see [`Sequence::locate`].
    pub fn locate(&mut self, position: u64, known: &dyn Fn(u32) -> Known) -> Located {
        match self {
            Self::One(sequence) => sequence.locate(position, known),
            Self::Mixed(mixed) => mixed.locate(position, known),
        }
    }

    /// Samples in the epoch over all ranks, where known beforehand.
    #[must_use]
    pub fn total(&self) -> Option<u64> {
        match self {
            Self::One(sequence) => sequence.total(),
            Self::Mixed(mixed) => Some(mixed.total()),
        }
    }

    /// The lanes that ranks may share: one for a mixture, which no single deal covers.
    #[must_use]
    pub fn lanes(&self) -> u32 {
        match self {
            Self::One(sequence) => sequence.lanes(),
            Self::Mixed(_) => 1,
        }
    }

    /// Shards that a rank has open at once: see [`Sequence::open`].
    #[must_use]
    pub fn open(&self, share: &Share) -> u64 {
        match self {
            Self::One(sequence) => sequence.open(|lane| share.owns(lane)),
            Self::Mixed(mixed) => mixed.open(),
        }
    }

    /// From where to where a rank needs each shard, in the order in which that begins; a shard comes as often as it is
    /// needed anew. None where sample counts are learnt on the way.
    #[must_use]
    pub fn spans(&self, share: &Share) -> Option<Vec<Span>> {
        match self {
            Self::One(sequence) => sequence.spans(|lane| share.owns(lane)),
            Self::Mixed(mixed) => mixed.spans(),
        }
    }

    /// The shards that a rank needs next, at most `limit`: see [`Sequence::upcoming`].
    #[must_use]
    pub fn upcoming(&self, position: u64, limit: usize, share: &Share) -> Vec<u32> {
        match self {
            Self::One(sequence) => sequence.upcoming(position, limit, |lane| share.owns(lane)),
            Self::Mixed(mixed) => mixed.upcoming(position, limit),
        }
    }
}
