//! The messages of trainers and daemons.
//!
//! One rule: a message carries facts and ranges, never payload. Sizes are bytes, times are
//! nanoseconds of [`crate::clock`], positions count samples of the epoch's global sequence.

use std::collections::BTreeMap;

use forebay_error::{Error, ErrorKind};
use forebay_histogram::Times;
use serde::{Deserialize, Serialize};

use crate::leases::{Mark, Place, Sharing};

/// From trainer to daemon. A variant's place is its name on the wire: what a protocol has stays where it is,
/// and what a later one brought stands where admins' requests were, before they went over HTTP.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Request {
    /// The first message on every connection.
    Hello {
        /// The newest protocol the client speaks.
        protocol: u32,
        /// The client's release, for logs.
        release: String,
    },
    /// Registers a job: what it reads and how. Answered by [`Reply::Opened`].
    Open(Box<Open>),
    /// Starts (or restarts) delivery; batches of an older run still in flight are void. What
    /// [`Request::Play`] is to clients before [`crate::PROTOCOL_POSITIONS`].
    Start {
        /// Chosen by the client, larger than any before it; stamps each batch.
        run: u64,
        /// The epoch to play.
        epoch: u64,
        /// The first batch wanted.
        batch: u64,
    },
    /// Gives a slot back.
    Release {
        /// The slab the slot lies in.
        slab: u32,
        /// The slot.
        slot: u64,
    },
    /// Starts (or restarts) delivery; batches of an older run still in flight are void.
    Play {
        /// Chosen by the client, larger than any before it; stamps each batch.
        run: u64,
        /// Where it begins.
        begin: Begin,
    },
    /// Asks for one shard's size and sample count; answered by [`Reply::Shard`].
    Index {
        /// The shard.
        url: String,
        /// Endpoint and credentials to reach it.
        origin: BTreeMap<String, String>,
    },
    /// Says that the shards of the next [`Request::Open`] are those of several data sets, one after the
    /// other.
    Mix {
        /// The data sets.
        streams: Vec<Stream>,
    },
    /// Asks for these samples as one run of one batch, in this order.
    Pick {
        /// Chosen by the client, larger than any before it; stamps the batch.
        run: u64,
        /// The samples.
        samples: Vec<Picked>,
    },
    /// Says how large the shards of the next [`Request::Open`] are, so that a job whose window the cache
    /// has no room for is refused.
    Extent(Extent),
    /// Asks which shards a pattern of a remote store means; answered by [`Reply::Listed`], in pieces.
    List {
        /// As in `s3://bucket/train-*.tar`.
        pattern: String,
        /// Endpoint and credentials to reach it.
        origin: BTreeMap<String, String>,
    },
    /// From now on, what [`Request::Index`] asks for on this connection comes at this rate at most,
    /// all together; what others want, too, comes as they need it.
    Pace {
        /// Bytes a second.
        bandwidth: u64,
    },
    /// Tells what of its job the trainer could not use so far. It takes the place of what was told before.
    Bad(Bad),
    /// Tells how far the trainer came, what it waited for, and who made its images and arrays. It takes the
    /// place of what was told before.
    Progress(Box<Progress>),
    /// Starts (or goes on with) delivery of shards that this trainer leases, one after the other, from a
    /// queue that it shares with others. Answered by [`Reply::Acknowledged`], before the first batch.
    Share {
        /// Chosen by the client, larger than any before it; stamps each batch.
        run: u64,
        /// Its part.
        sharing: Box<Sharing>,
    },
    /// Says how far the consumer came with leased shards; answered by [`Reply::Acknowledged`].
    Acknowledge {
        /// The run.
        run: u64,
        /// Chosen by the client, larger than any before it in the run.
        number: u64,
        /// The first batch that it is not done with: no more are sent beyond it than are to be ready.
        batch: u64,
        /// How far it came with each shard since the last.
        marks: Vec<Mark>,
    },
    /// The next [`Request::Open`]'s job wants to hear what comes in of its shards ([`Reply::Came`]).
    Trace,
}

/// A piece of work on one of a job's shards, told to a job that follows its batches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Came {
    /// The shard, as an index into [`Open::urls`].
    pub shard: u32,
    /// What was done.
    pub work: Work,
    /// From when,
    pub start_ns: u64,
    /// until when.
    pub end_ns: u64,
    /// How much was not told before this, of whichever job's shards.
    pub missed: u64,
}

/// What is done for a shard that comes in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// Bytes of its object came from the origin.
    Fetched {
        /// The first of them.
        from: u64,
        /// The first after them.
        until: u64,
    },
    /// All of it was made durable and visible on a tier.
    Kept {
        /// The tier.
        tier: String,
    },
}

/// What of a job's shards lies open on one node: see [`Request::Extent`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Bytes of each shard, in the order of [`Open::urls`].
    pub bytes: Vec<u64>,
    /// The first of the job's ranks on this node, and how many there are: one after the other.
    pub ranks: (u32, u32),
}

/// What a job could not use: all of it counted, the last of it by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bad {
    /// How many samples and shards, by the kind of error.
    pub counts: Vec<(ErrorKind, u64)>,
    /// The last of them, the latest at the end; [`BAD_NAMED`] at most.
    pub last: Vec<BadSample>,
}

/// What a trainer took of its job, over all its epochs, and what it waited for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Batches.
    pub batches: u64,
    /// Samples in them.
    pub samples: u64,
    /// Payload bytes in them.
    pub bytes: Bytes,
    /// Nanoseconds that it waited for them, by the cause, in the order of [`Cause::ALL`].
    pub waited_ns: [u64; Cause::ALL.len()],
    /// Nanoseconds that it has waited by now for the batch to come; 0 if it does not wait.
    pub waiting_ns: u64,
    /// Who made its images and arrays.
    pub decoded: Vec<Decoded>,
    /// How long it waited for each of its batches.
    pub waits: Times,
}

/// How many rows of images and arrays a trainer had made by one decoder, for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decoded {
    /// The decoder.
    pub by: String,
    /// Why it made them.
    pub why: String,
    /// How many.
    pub rows: u64,
}

/// Ways to a row that a trainer tells of: more than there are, and a screen's worth.
pub const DECODED_NAMED: usize = 64;

/// Bad samples that are kept by name: a screen of them tells what is wrong with a data set, and a job
/// whose every sample is bad costs no more than this.
pub const BAD_NAMED: usize = 16;

/// A sample or shard that a trainer could not use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadSample {
    /// The kind of error.
    pub kind: ErrorKind,
    /// Its shard, as errors show it.
    pub url: Option<String>,
    /// Its key.
    pub key: Option<String>,
    /// The field that failed.
    pub field: Option<String>,
    /// Where in the shard, in bytes.
    pub offset: Option<u64>,
    /// What is wrong with it, and where, for people.
    pub message: String,
}

/// A sample that is asked for by its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Picked {
    /// What draws of crops and flips take for its position.
    pub position: u64,
    /// Its shard, as an index into [`Open::urls`].
    pub shard: u32,
    /// Its place in the shard.
    pub ordinal: u64,
}

/// One data set of a mixture.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Stream {
    /// Its shards: the next of the job's list, after those of the streams before it.
    pub shards: u32,
    /// How much of the mixture it is.
    pub proportion: Proportion,
}

/// How much of a mixture a stream is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Proportion {
    /// Its weight over all weights, in an epoch of `epoch_samples`.
    Weight(f64),
    /// How often an epoch plays it: 2 plays every sample twice, 0.5 half of the samples once.
    Repeat(f64),
}

/// Where a run begins, and which of its batches are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begin {
    /// The epoch to play.
    pub epoch: u64,
    /// The position in the epoch's global sequence with which batch 0 of the run begins.
    pub base: u64,
    /// The first batch wanted.
    pub batch: u64,
    /// Of the batches from there on every so many-th is wanted; 1 for all of them.
    pub step: u64,
}

impl Begin {
    /// All batches of `epoch` from `batch` on, counted from the epoch's begin.
    #[must_use]
    pub fn at(epoch: u64, batch: u64) -> Self {
        Self { epoch, base: 0, batch, step: 1 }
    }
}

/// What [`Reply::Slab`] says of a slab in which one batch lies and no other ever will: all of it may be kept.
pub const NO_OTHERS: u32 = 0;

/// From daemon to trainer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Reply {
    /// Answers [`Request::Hello`].
    Welcome {
        /// The protocol of this connection.
        protocol: u32,
        /// The daemon's release.
        release: String,
        /// The daemon's process id.
        pid: u32,
    },
    /// Answers [`Request::Open`].
    Opened(Opened),
    /// A new slab; its descriptor rides on this frame. Slots of older slabs stay valid.
    Slab {
        /// Names the slab within the session.
        slab: u32,
        /// Its length.
        len: u64,
        /// Batches it was sized for; below the wanted `prefetch` where memory is short. Where it is
        /// not, no batch needs more than its share of the slab unless memory is short by then.
        /// [`NO_OTHERS`] for a slab that one batch has to itself.
        batches: u32,
    },
    /// A batch rests in a slot; without the places of its samples.
    Batch(Box<Batch>),
    /// The run is over: every batch was sent.
    End {
        /// The run that ended.
        run: u64,
        /// Batches in the run for this rank, counted from its base.
        batches: u64,
        /// Samples in the whole epoch over all ranks.
        samples: u64,
        /// Shards that ended early after the last batch.
        errors: Vec<Error>,
    },
    /// The request failed; during a run the run is over.
    Failed {
        /// The run that failed, if one did.
        run: Option<u64>,
        /// Why.
        error: Error,
    },
    /// A run that was begun without a manifest has passed every shard, and none was broken; its end follows.
    Learnt {
        /// The run.
        run: u64,
        /// Samples of each shard.
        counts: Vec<u64>,
    },
    /// Answers [`Request::Index`].
    Shard {
        /// The shard.
        url: String,
        /// Its length; of a compressed shard, that of the tar in it.
        bytes: u64,
        /// Its sample count.
        samples: u64,
    },
    /// A batch rests in a slot. What [`Reply::Batch`] is to clients before
    /// [`crate::PROTOCOL_POSITIONS`], which are not told where samples lie.
    Placed {
        /// The batch.
        batch: Box<Batch>,
        /// Where each of its samples begins in its shard, in bytes.
        offsets: Vec<u64>,
    },
    /// Answers [`Request::Share`] and [`Request::Acknowledge`], once for several that came together.
    Acknowledged {
        /// The run.
        run: u64,
        /// The number of the last of them.
        number: u64,
        /// Where the log stands with it.
        place: Place,
    },
    /// Once an answer to admins, who ask over HTTP. It is never sent, and keeps the places of what follows.
    Vacant10,
    /// Answers [`Request::List`].
    Listed {
        /// Shards, in order.
        urls: Vec<String>,
        /// Whether more of them follow.
        more: bool,
    },
    /// A process that reads files for this connection's jobs; a socket rides on this frame, over which it
    /// asks for the files that they name ([`crate::files`]).
    Reader,
    /// Once an answer to admins, who ask over HTTP. It is never sent, and keeps the places of what follows.
    Vacant13,
    /// Once an answer to admins, who ask over HTTP. It is never sent, and keeps the places of what follows.
    Vacant14,
    /// A command that one of this connection's jobs names is to be run. Two descriptors ride on this frame:
    /// the pipe that takes what it says, and the line on which its end is told ([`crate::commands`]).
    Command {
        /// The shard, as in `pipe:cat /data/000.tar`.
        url: String,
    },
    /// Something came in of one of the job's shards; for one that asked ([`Request::Trace`]).
    Came(Came),
}

/// What a job reads and how.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Open {
    /// The name admins see.
    pub job: String,
    /// Every shard, in list order.
    pub urls: Vec<String>,
    /// Samples per shard, in the order of `urls`, where a manifest is at hand.
    pub counts: Option<Vec<u64>>,
    /// Endpoint and credentials (an allow-list of the client's environment).
    pub origin: BTreeMap<String, String>,
    /// Order and share.
    pub order: Order,
    /// Fields to deliver, each a list of alternatives of which the first present is taken;
    /// `None` delivers every field.
    pub fields: Option<Vec<Vec<String>>>,
    /// Batches to keep ready.
    pub prefetch: u32,
    /// How long a job that has begun waits for a store that does not answer, in milliseconds: less than
    /// its trainer waits, who then learns why: the client cuts it to that.
    pub patience_ms: u64,
}

/// How samples are ordered and dealt: the options the order is a function of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// How samples are mixed.
    pub shuffle: Shuffle,
    /// Shards mixed at once over all lanes together.
    pub window: u32,
    /// The key of every draw.
    pub seed: u64,
    /// Canonical streams; `None` takes the default for the number of shards.
    pub lanes: Option<u32>,
    /// Samples per rank and batch.
    pub batch_size: u32,
    /// This trainer's place among `world_size`.
    pub rank: u32,
    /// Trainers that share the epoch.
    pub world_size: u32,
    /// What becomes of the last, incomplete global batch.
    pub tail: Tail,
    /// Samples an epoch has, if not the data set's own number.
    pub epoch_samples: Option<u64>,
}

/// How samples are mixed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shuffle {
    /// The list's order.
    None,
    /// Exactly, over `window` whole shards at a time.
    Window,
    /// Exactly, over the whole data set.
    Global,
}

/// What becomes of the last, incomplete global batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tail {
    /// Split evenly; an empty rank repeats one sample as invalid.
    Even,
    /// Dropped.
    Drop,
    /// Filled up with repeated samples marked invalid.
    Pad,
}

/// A job as the daemon sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// The job's number on this daemon.
    pub session: u64,
    /// Lanes in use.
    pub lanes: u32,
    /// Samples in an epoch over all ranks, where known.
    pub samples: Option<u64>,
    /// Batches in an epoch for this rank, where known.
    pub batches: Option<u64>,
}

/// One batch and where each of its members lies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// The run it belongs to.
    pub run: u64,
    /// Its number in the run, counted from the run's base.
    pub index: u64,
    /// The slab its slot lies in.
    pub slab: u32,
    /// The slot to release.
    pub slot: u64,
    /// Names that `Member::field` counts into.
    pub fields: Vec<String>,
    /// The samples, in order.
    pub samples: Vec<Sample>,
    /// Shards that ended early before this batch: samples after the fault are not in the epoch.
    pub errors: Vec<Error>,
    /// What the daemon did for this batch, and when.
    pub stages: Vec<Stage>,
    /// Where the bytes came from.
    pub bytes: Bytes,
}

/// One sample of a batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Its place in the epoch's global sequence.
    pub position: u64,
    /// Its shard, as an index into [`Open::urls`].
    pub url: u32,
    /// Its key.
    pub key: String,
    /// False where the sample is padding.
    pub valid: bool,
    /// Its members, or why there are none.
    pub members: Result<Vec<Member>, Error>,
    /// Where a field that was asked for is missing, or the sample is bad: the names of those it has.
    pub has: Vec<String>,
}

/// One member of a sample in the slab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Index into [`Batch::fields`].
    pub field: u32,
    /// Where it starts in the slab.
    pub offset: u64,
    /// Its length.
    pub len: u64,
}

/// Payload bytes of a batch by the place they were read from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bytes {
    /// Read from a tier.
    pub tier: u64,
    /// Copied from frames of a shard still arriving from its origin.
    pub origin: u64,
}

/// What a batch waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Cause {
    /// Bytes were on their way from the origin.
    Origin,
    /// The shard's index was being read, or where the batch's samples lie was being worked out.
    Index,
    /// A tier was being read and the members checked.
    TierRead,
    /// No stage was busy: the batch was on its way from one process to the other, or had no slot.
    RingEmpty,
    /// Members were being decoded, or waited for a decode thread.
    Decode,
    /// Bytes were on their way to a device, or it still read the slots of batches before.
    H2d,
}

impl Cause {
    /// Every cause, in the order reports show them.
    pub const ALL: [Self; 6] =
        [Self::Origin, Self::Index, Self::TierRead, Self::RingEmpty, Self::Decode, Self::H2d];

    /// The cause's name in reports and metric labels.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Origin => "origin",
            Self::Index => "index",
            Self::TierRead => "tier_read",
            Self::RingEmpty => "ring_empty",
            Self::Decode => "decode",
            Self::H2d => "h2d",
        }
    }
}

/// A stretch of time in which a batch was worked on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage {
    /// By which stage.
    pub cause: Cause,
    /// From when.
    pub start_ns: u64,
    /// Until when.
    pub end_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer of protocol 3 knows messages by these places.
    #[test]
    fn messages_stay_where_they_were() {
        fn place<T: Serialize>(message: &T) -> u8 {
            postcard::to_extend(message, Vec::new()).unwrap()[0]
        }
        let (url, origin) = (String::new(), BTreeMap::new());
        let pattern = url.clone();
        assert_eq!(place(&Request::Hello { protocol: 3, release: url.clone() }), 0);
        assert_eq!(place(&Request::Start { run: 1, epoch: 0, batch: 0 }), 2);
        assert_eq!(place(&Request::Release { slab: 0, slot: 0 }), 3);
        assert_eq!(place(&Request::Index { url: url.clone(), origin: origin.clone() }), 5);
        assert_eq!(place(&Request::List { pattern, origin }), 9);
        assert_eq!(place(&Request::Pace { bandwidth: 1 }), 10);
        let error = Error::new(ErrorKind::Invalid, "x");
        assert_eq!(place(&Reply::Failed { run: None, error }), 5);
        assert_eq!(place(&Reply::Shard { url: url.clone(), bytes: 0, samples: 0 }), 7);
        assert_eq!(place(&Reply::Listed { urls: Vec::new(), more: false }), 11);
        assert_eq!(place(&Reply::Reader), 12);
        assert_eq!(place(&Reply::Command { url }), 15);
    }
}
