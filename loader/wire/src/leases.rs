//! What daemon and trainer say about an epoch whose shards are leased.
//!
//! One rule: every number here is the queue's. Shards are named by their *turn*, the place in the
//! epoch's order in which they are dealt; a turn's samples have an order of their own, which is the
//! same whoever leases it, so that how far one came is a single number.

use serde::{Deserialize, Serialize};

use crate::message::Batch;

/// Bits of a position that count samples within a turn; those above name the turn.
const PLACE_BITS: u32 = 32;

/// Samples that a shard may have to be leased.
pub const TURN_SAMPLES_MAX: u64 = 1 << PLACE_BITS;

/// How far somebody came with a shard: its first `upto` samples, in the turn's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Mark {
    /// Which shard of the epoch's order.
    pub turn: u32,
    /// Samples of it, from the first on.
    pub upto: u64,
}

impl Mark {
    /// The position that stands for sample `place` of turn `turn`.
    #[must_use]
    pub fn position(turn: u32, place: u64) -> u64 {
        (u64::from(turn) << PLACE_BITS) | place
    }

    /// How far a batch of leased shards comes with each of them.
    #[must_use]
    pub fn of(batch: &Batch) -> Vec<Self> {
        let mut marks: Vec<Self> = Vec::new();
        for sample in &batch.samples {
            let turn = u32::try_from(sample.position >> PLACE_BITS).expect("the upper half");
            let upto = (sample.position & (TURN_SAMPLES_MAX - 1)) + 1;
            match marks.iter_mut().find(|mark| mark.turn == turn) {
                Some(mark) => mark.upto = mark.upto.max(upto),
                None => marks.push(Self { turn, upto }),
            }
        }
        marks
    }
}

/// Where a lease log stands: all that is needed to go on from there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The log.
    pub log: String,
    /// Its entries.
    pub position: u64,
    /// Turns that were dealt: those before this one.
    pub next: u32,
    /// Of those, the ones that are not done, and what of each is.
    pub open: Vec<Mark>,
}

/// A trainer's part in an epoch whose shards are leased.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sharing {
    /// Names the job and what it reads, alike on all its ranks: letters, digits, `-` and `_`.
    pub group: String,
    /// This trainer among `world_size`.
    pub rank: u32,
    /// Trainers of the job.
    pub world_size: u32,
    /// Whether its trainers are on several nodes, as far as this one knows.
    pub is_spread: bool,
    /// The epoch to play.
    pub epoch: u64,
    /// How often this trainer began the epoch before.
    pub take: u64,
    /// Names this run of this trainer; drawn at random.
    pub member: u64,
    /// The number of the first batch wanted.
    pub batch: u64,
    /// The number of the first batch that its consumer is not done with.
    pub done: u64,
    /// What the epoch begins with, if not with its first shard.
    pub from: Option<Place>,
    /// The log to go on with, if this trainer has its part in one.
    pub log: Option<String>,
    /// Of that log, what was acknowledged and not confirmed,
    pub acknowledged: Vec<Mark>,
    /// what was received,
    pub received: Vec<Mark>,
    /// and the last acknowledgement's number.
    pub number: u64,
    /// Where the log is kept, if not by the daemon itself: `redis://…`.
    pub keeper: Option<String>,
}
