//! Messages about an epoch with `split="dynamic"`, in which ranks take shards from a queue.
//!
//! Every number here is the queue's. A shard is named by its *turn*, its place in the order
//! in which shards are dealt. A turn's samples have one order for every rank, so progress within a
//! shard is a single number.

use serde::{Deserialize, Serialize};

use crate::message::Batch;

/// Bits of a position that count samples within a turn; the higher bits name the turn.
const PLACE_BITS: u32 = 32;

/// Largest number of samples of a shard in the queue.
pub const TURN_SAMPLES_MAX: u64 = 1 << PLACE_BITS;

/// Progress within a shard: its first `upto` samples, in the turn's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Mark {
    /// The shard's turn.
    pub turn: u32,
    /// Samples of it, from the first on.
    pub upto: u64,
}

impl Mark {
    /// Returns the position of sample `place` of turn `turn`.
    #[must_use]
    pub fn position(turn: u32, place: u64) -> u64 {
        (u64::from(turn) << PLACE_BITS) | place
    }

    /// Returns the progress that a batch makes in each of its shards.
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

/// State of a queue's log, enough to continue from there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPosition {
    /// Name of the log.
    pub log: String,
    /// Number of its entries.
    pub position: u64,
    /// The next turn to deal; all turns before it were dealt.
    pub next: u32,
    /// Dealt turns that are not finished, with their progress.
    pub open: Vec<Mark>,
}

/// A trainer's part in an epoch with a shared queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sharing {
    /// Identity of the job and its data, equal on all its ranks: letters, digits, `-` and `_`.
    pub group: String,
    /// Rank of this trainer, below `world_size`.
    pub rank: u32,
    /// Trainers of the job.
    pub world_size: u32,
    /// True if the job's trainers are known to be on several nodes.
    pub is_spread: bool,
    /// The epoch to play.
    pub epoch: u64,
    /// Number of earlier starts of this epoch by this trainer.
    pub take: u64,
    /// Random identity of this run of this trainer.
    pub member: u64,
    /// The number of the first batch wanted.
    pub batch: u64,
    /// The number of the first batch that its consumer has not finished.
    pub done: u64,
    /// Start of the epoch, if not its first shard.
    pub from: Option<LogPosition>,
    /// Log to continue, if this trainer takes part in one.
    pub log: Option<String>,
    /// Progress acknowledged in that log and not confirmed.
    pub acknowledged: Vec<Mark>,
    /// Progress received in that log.
    pub received: Vec<Mark>,
    /// Number of the last acknowledgement in that log.
    pub number: u64,
    /// Server that keeps the log, if not the daemon itself: `redis://…`.
    pub keeper: Option<String>,
}
