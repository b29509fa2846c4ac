//! Order of an epoch, over one data set or a mixture.

use forebay_error::{Error, ErrorKind, Result};
use forebay_wire::message::{Mixture, Order};

use super::{Known, Located, Mixed, Sequence, Share, Span, Stream};

/// Order of one epoch. Ascending queries are fastest; any order of queries is right.
#[derive(Debug)]
pub enum Epoch {
    /// Over one data set.
    One(Sequence),
    /// Over several streams.
    Mixed(Mixed),
}

impl Epoch {
    /// Makes the order of epoch `number` over `shards` shards, dealt to `lanes` lanes if they are
    /// one data set.
    ///
    /// # Errors
    /// `Invalid` for an invalid mixture.
    pub fn new(
        order: &Order,
        (shards, counts): (u32, Option<&[u64]>),
        mixture: &Mixture,
        lanes: u32,
        number: u64,
    ) -> Result<Self> {
        if mixture.is_empty() {
            let counts = counts.map(<[u64]>::to_vec);
            return Ok(Self::One(Sequence::new(order, shards, counts, lanes, number)));
        }
        let streams = &mixture.streams;
        let all = streams.iter().try_fold(0_u32, |sum, stream| sum.checked_add(stream.shards));
        if all != Some(shards) {
            let what = "the streams of the mixture do not match the job's shards";
            return Err(Error::new(ErrorKind::Invalid, what).at("shards", shards));
        }
        let mut first = 0;
        let mixed = streams.iter().map(|stream| {
            let begin = first;
            first += stream.shards as usize;
            let counts = counts.map(|counts| counts[begin..first].to_vec());
            Stream { shards: stream.shards, counts, proportion: stream.proportion }
        });
        let mixed: Vec<_> = mixed.collect();
        Mixed::new(order, &mixed, &mixture.phases, number).map(Self::Mixed)
    }

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
