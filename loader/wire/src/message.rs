//! Messages between trainers and daemons.
//!
//! A message carries facts and ranges, never payload. Sizes are bytes, times are nanoseconds
//! of [`crate::clock`], positions count samples of the epoch's global sequence.

use std::collections::BTreeMap;

use forebay_error::{Error, ErrorKind};
use serde::{Deserialize, Serialize};

pub use crate::batch::{Batch, Bytes, Cause, IN_SLOT, Member, Sample, Stage};
pub use crate::binning::{BinRule, Binning};
use crate::checkpoint;
pub use crate::joined::Joined;
use crate::leases::{LogPosition, Mark, Sharing};
pub use crate::left_out::LeftOut;
pub use crate::members::{
    Chosen, Indexed, IndexedSample, Located, MembersPart, PartsEstimate, Picked, RangePart,
};
pub use crate::mixture::{Glide, Mixture, Phase, Proportion, Stream};
pub use crate::progress::{DECODED_NAMED, Decoded, Progress, SLOWEST_NAMED, SlowSample};
pub use crate::request_kind::RequestKind;

/// Messages from trainer to daemon. A variant's index is its identity on the wire: variants of a
/// released protocol keep theirs, and later ones take the indexes of admin requests that moved to
/// HTTP.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Request {
    /// The first message on every connection.
    Hello {
        /// Newest protocol of the client.
        protocol: u32,
        /// The client's release, for logs.
        release: String,
    },
    /// Registers a job: its data and options. Answered by [`Reply::Opened`].
    Open(Box<Open>),
    /// Starts (or restarts) delivery; batches of an older run still in flight are void. Replaced by
    /// [`Request::Play`] since [`crate::PROTOCOL_POSITIONS`].
    Start {
        /// Chosen by the client, larger than any before it; stamps each batch.
        run: u64,
        /// The epoch to play.
        epoch: u64,
        /// The first batch wanted.
        batch: u64,
    },
    /// Returns a slot.
    Release {
        /// The slot's slab.
        slab: u32,
        /// The slot.
        slot: u64,
    },
    /// Starts (or restarts) delivery; batches of an older run still in flight are void.
    Play {
        /// Chosen by the client, larger than any before it; stamps each batch.
        run: u64,
        /// Start.
        begin: Begin,
    },
    /// Asks for one shard's size and sample count; answered by [`Reply::Shard`].
    Index {
        /// The shard.
        url: String,
        /// Endpoint and credentials to reach it.
        origin: BTreeMap<String, String>,
    },
    /// Declares that the shards of the next [`Request::Open`] belong to several data sets, one
    /// after the other.
    Mix(Mixture),
    /// Requests these samples as one run of one batch, in this order.
    Pick {
        /// Chosen by the client, larger than any before it; stamps the batch.
        run: u64,
        /// The samples.
        samples: Vec<Picked>,
    },
    /// Declares the sizes of the next [`Request::Open`]'s shards, so that a job whose window
    /// exceeds its share of the cache is rejected.
    Extent(Extent),
    /// Asks for the shards that match a pattern of a remote store; answered by [`Reply::Listed`],
    /// in pieces.
    List {
        /// Pattern, as in `s3://bucket/train-*.tar`.
        pattern: String,
        /// Endpoint and credentials to reach it.
        origin: BTreeMap<String, String>,
    },
    /// Limits the rate of all further [`Request::Index`] fetches of this connection together.
    /// Shards that others need as well come at their rate.
    Pace {
        /// Bytes per second.
        bandwidth: u64,
    },
    /// Reports the samples of its job that the trainer could not use so far. Replaces the earlier
    /// report.
    Bad(Bad),
    /// Reports the trainer's progress, its waits, the decoders of its images and arrays, and its
    /// slowest samples. Replaces the earlier report.
    Progress(Box<Progress>),
    /// Starts (or continues) delivery of shards that this trainer takes, one after the other, from
    /// a queue shared with others. Answered by [`Reply::Acknowledged`], before the first batch, or
    /// by [`Reply::Unrecorded`].
    Share {
        /// Chosen by the client, larger than any before it; stamps each batch.
        run: u64,
        /// The trainer's part.
        sharing: Box<Sharing>,
    },
    /// Reports the consumer's progress in shards of the queue; answered by [`Reply::Acknowledged`]
    /// or [`Reply::Unrecorded`].
    Acknowledge {
        /// The run.
        run: u64,
        /// Chosen by the client, larger than any before it in the run.
        number: u64,
        /// The first batch that it has not finished; bounds the batches sent ahead.
        batch: u64,
        /// Progress in each shard since the last report.
        marks: Vec<Mark>,
    },
    /// Requests events about the shards of the next [`Request::Open`]'s job ([`Reply::Came`]).
    Trace,
    /// Asks to serve the next [`Request::Open`]'s job shards that change during a run, instead
    /// of an error.
    ServeChanges,
    /// Asks what the next batch waits for; answered by [`Reply::Awaited`].
    Explain {
        /// The run.
        run: u64,
    },
    /// A request about checkpoints; answered by [`Reply::Checkpoint`].
    Checkpoint(Box<checkpoint::Request>),
    /// Chooses samples of the next [`Request::Open`]'s shards; [`Open::counts`] counts these.
    Choose {
        /// Samples of each shard, in the order of [`Open::urls`].
        shards: Vec<Chosen>,
    },
    /// Asks for samples of a shard and their members' places; answered by [`Reply::Members`].
    Members {
        /// The shard.
        url: String,
        /// Endpoint and credentials to reach it.
        origin: BTreeMap<String, String>,
        /// Number of the first sample.
        first: u64,
    },
    /// Locates samples of the next [`Request::Pick`]: of shards that are not in the cache, the
    /// members of these samples alone are read.
    Locate {
        /// Samples by shard.
        shards: Vec<Located>,
    },
    /// Asks for a range of an object that is no shard; answered by [`Reply::Range`].
    Range {
        /// Chosen by the client; names the answer.
        number: u64,
        /// URL of the object.
        url: String,
        /// Endpoint and credentials to reach it.
        origin: BTreeMap<String, String>,
        /// Version to read; any if unset.
        version: Option<String>,
        /// First byte.
        at: u64,
        /// Number of bytes.
        len: u64,
    },
    /// Declares that shards of the next [`Request::Open`] complete the samples of others.
    Join(Vec<Joined>),
    /// Cuts the order of the next [`Request::Open`] into batches by tokens.
    Bin(Box<Binning>),
    /// Declares that the trainer knows the places of all samples of the next [`Request::Open`]'s
    /// job, and the cost of what it wants of them.
    Parts(PartsEstimate),
    /// Answers [`Reply::Locate`].
    Placed {
        /// The shard, as an index into [`Open::urls`].
        shard: u32,
        /// All samples that the job reads of it.
        located: Result<Located, Error>,
    },
    /// Declares that the trainer of the next [`Request::Open`]'s job reads members where they lie
    /// in memory of a tier, unchecked since they came there ([`Reply::Lent`]).
    Borrow,
    /// Starts a run as [`Request::Play`] does, whose consumer has not come yet.
    PlayAhead {
        /// Chosen by the trainer; names the run in every answer.
        run: u64,
        /// Start of the run.
        begin: Begin,
    },
    /// Declares that the consumer of a [`Request::PlayAhead`] has come; answered by
    /// [`Reply::Confirmed`].
    Confirm {
        /// The run.
        run: u64,
    },
}

/// A piece of work on one of a job's shards, reported to a job that traces its batches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Came {
    /// The shard, as an index into [`Open::urls`].
    pub shard: u32,
    /// The work.
    pub work: Work,
    /// Start.
    pub start_ns: u64,
    /// End.
    pub end_ns: u64,
    /// Events dropped before this one, of any job's shards.
    pub missed: u64,
}

/// Work on an arriving shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// Bytes of its object arrived from the origin.
    Fetched {
        /// First byte.
        from: u64,
        /// First byte after them.
        until: u64,
    },
    /// The whole shard was committed to a tier.
    Kept {
        /// The tier.
        tier: String,
    },
}

/// The part of a job's shards that one node reads: see [`Request::Extent`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Bytes of each shard, in the order of [`Open::urls`].
    pub bytes: Vec<u64>,
    /// First of the job's ranks on this node, and their number; ranks are consecutive.
    pub ranks: (u32, u32),
}

/// Samples and shards that a job could not use: all counted, the last ones named.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bad {
    /// Number of samples and shards by kind of error.
    pub counts: Vec<(ErrorKind, u64)>,
    /// The last ones, the latest at the end; at most [`BAD_NAMED`].
    pub last: Vec<BadSample>,
}

/// Bad samples kept by name: one screen shows the fault of a data set, and a job of only bad
/// samples costs no more.
pub const BAD_NAMED: usize = 16;

/// A sample or shard that a trainer could not use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadSample {
    /// The kind of error.
    pub kind: ErrorKind,
    /// The shard, as errors show it.
    pub url: Option<String>,
    /// The sample's key.
    pub key: Option<String>,
    /// The field that failed.
    pub field: Option<String>,
    /// Byte offset in the shard.
    pub offset: Option<u64>,
    /// Description of the error and its place, for people.
    pub message: String,
}

/// Start of a run, and the batches wanted of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begin {
    /// The epoch to play.
    pub epoch: u64,
    /// Position in the epoch's global sequence of the run's batch 0.
    pub base: u64,
    /// The first batch wanted.
    pub batch: u64,
    /// Stride of wanted batches from there on; 1 for all.
    pub step: u64,
}

impl Begin {
    /// Returns a start at batch `batch` of `epoch`, with all batches from there on.
    #[must_use]
    pub fn at(epoch: u64, batch: u64) -> Self {
        Self { epoch, base: 0, batch, step: 1 }
    }
}

/// Value of `batches` in [`Reply::Slab`] for a slab that holds a single batch for ever: all of it
/// may be kept.
pub const NO_OTHERS: u32 = 0;

/// Most times that a batch is read again, each time into a slab of its own: a device pauses after
/// three errors, and the next copy goes elsewhere.
pub const REREADS_MAX: u32 = 5;

/// Messages from daemon to trainer.
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
    /// A new slab; its descriptor is attached to this frame. Slots of older slabs stay valid.
    Slab {
        /// Names the slab within the session.
        slab: u32,
        /// Length.
        len: u64,
        /// Batches it is sized for; below the wanted `prefetch` if memory is short. Otherwise no
        /// batch needs more than its share of the slab. [`NO_OTHERS`] for a slab of a single batch.
        batches: u32,
    },
    /// A batch is ready in a slot; without the offsets of its samples.
    Batch(Box<Batch>),
    /// The run is over: every batch was sent.
    End(RunEnd),
    /// The request failed; a run ends with it.
    Failed {
        /// The run that failed, if any.
        run: Option<u64>,
        /// Reason.
        error: Error,
    },
    /// A run without a manifest has read every shard, and none was broken; its end follows.
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
        /// Length; for a compressed shard, that of the unpacked tar.
        bytes: u64,
        /// Sample count.
        samples: u64,
    },
    /// A batch is ready in a slot. Replaces [`Reply::Batch`], which older clients get, since
    /// [`crate::PROTOCOL_POSITIONS`]; those clients do not receive offsets.
    Placed {
        /// The batch.
        batch: Box<Batch>,
        /// Byte offset of each sample in its shard.
        offsets: Vec<u64>,
    },
    /// Answers [`Request::Share`] and [`Request::Acknowledge`], once for several received together.
    Acknowledged {
        /// The run.
        run: u64,
        /// The number of the last one answered.
        number: u64,
        /// State of the log after it.
        place: LogPosition,
    },
    /// A former answer to admins, who use HTTP now. Never sent; keeps the indexes of later
    /// variants.
    Vacant10,
    /// Answers [`Request::List`].
    Listed {
        /// Shards, in order.
        urls: Vec<String>,
        /// True if more follow.
        more: bool,
    },
    /// A reader process for this connection's jobs; the attached socket carries its questions for
    /// files ([`crate::files`]).
    Reader,
    /// A former answer to admins, who use HTTP now. Never sent; keeps the indexes of later
    /// variants.
    Vacant13,
    /// A former answer to admins, who use HTTP now. Never sent; keeps the indexes of later
    /// variants.
    Vacant14,
    /// Asks the trainer to run a command that one of its jobs names. Two descriptors are attached:
    /// the pipe for its output, and the status socket ([`crate::commands`]).
    Command {
        /// The shard, as in `pipe:cat /data/000.tar`.
        url: String,
    },
    /// An event about one of the job's shards, for a job that asked for them ([`Request::Trace`]).
    Came(Came),
    /// Answers [`Request::Explain`].
    Awaited {
        /// The run.
        run: u64,
        /// Description of the wait by its places and advice; `None` if nothing in the daemon holds
        /// the batch up.
        wait: Option<Error>,
    },
    /// Precedes the last [`Reply::Listed`] of a pattern that keys match which no URL can name.
    LeftOut(LeftOut),
    /// Answers [`Request::Checkpoint`].
    Checkpoint(Box<checkpoint::Reply>),
    /// Answers [`Request::Members`].
    Members(Box<MembersPart>),
    /// Answers [`Request::Range`].
    Range(Box<RangePart>),
    /// Asks for the places of the samples that the job reads of a shard; answered by
    /// [`Request::Placed`].
    Locate {
        /// The shard, as an index into [`Open::urls`].
        shard: u32,
    },
    /// Memory of a tier, for a trainer that asked for it ([`Request::Borrow`]): members may lie
    /// there. Two descriptors are attached: the memory, and one end of a socket. The trainer sends
    /// a byte there when it reads the memory no more. Until then, or until every process has closed
    /// that end, the daemon uses the memory of an ended session's batches for nothing else.
    Memory {
        /// Names the memory within the session; above [`IN_SLOT`].
        memory: u32,
        /// Length.
        len: u64,
    },
    /// A batch as in [`Reply::Placed`], some of whose members lie in memory of a tier. They stay
    /// there until its slot is released.
    Lent {
        /// The batch.
        batch: Box<Batch>,
        /// Byte offset of each sample in its shard.
        offsets: Vec<u64>,
        /// Memory of each member, of all samples that have members, in order.
        memories: Vec<u32>,
    },
    /// Answers [`Request::Confirm`].
    Confirmed {
        /// The run.
        run: u64,
        /// True if every shard that the run opened so far is the one that its URL stands for now.
        holds: bool,
    },
    /// Answers [`Request::Share`] and [`Request::Acknowledge`] where no log records them.
    Unrecorded {
        /// The run.
        run: u64,
        /// The number of the last one answered.
        number: u64,
        /// Reason.
        error: Error,
    },
}

/// A job's data and options.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Open {
    /// Name shown to admins.
    pub job: String,
    /// Every shard, in list order.
    pub urls: Vec<String>,
    /// Samples per shard, in the order of `urls`, if a manifest is at hand.
    pub counts: Option<Vec<u64>>,
    /// Endpoint and credentials (an allow-list of the client's environment).
    pub origin: BTreeMap<String, String>,
    /// Order and share.
    pub order: Order,
    /// Fields to deliver, each a list of alternatives in order of preference; `None` delivers every
    /// field.
    pub fields: Option<Vec<Vec<String>>>,
    /// Batches to keep ready.
    pub prefetch: u32,
    /// Milliseconds that a job which has started waits for a store that does not answer. The client
    /// keeps it below the trainer's own timeout, so that the trainer learns the reason.
    pub patience_ms: u64,
}

impl Open {
    /// Returns a job over `urls` that delivers every field: no manifest, no credentials, 4 batches
    /// ready, no patience with a store that does not answer.
    #[must_use]
    pub fn new(job: &str, urls: Vec<String>, order: Order) -> Self {
        Self {
            job: job.to_owned(),
            urls,
            counts: None,
            origin: BTreeMap::new(),
            order,
            fields: None,
            prefetch: 4,
            patience_ms: 0,
        }
    }
}

/// Order and distribution of samples: the options that the order is a function of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Kind of shuffle.
    pub shuffle: Shuffle,
    /// Shards mixed at once over all lanes together.
    pub window: u32,
    /// Key of every random draw.
    pub seed: u64,
    /// Parallel streams of shards; `None` takes the default for the number of shards.
    pub lanes: Option<u32>,
    /// Samples per rank and batch.
    pub batch_size: u32,
    /// Rank of this trainer, below `world_size`.
    pub rank: u32,
    /// Trainers that share the epoch.
    pub world_size: u32,
    /// Treatment of the last, incomplete global batch.
    pub tail: Tail,
    /// Samples per epoch, if not the data set's own number.
    pub epoch_samples: Option<u64>,
}

impl Order {
    /// Returns the order of the list for one rank, each sample once.
    #[must_use]
    pub fn of_list(batch_size: u32) -> Self {
        Self {
            shuffle: Shuffle::None,
            window: 1,
            seed: 0,
            lanes: None,
            batch_size,
            rank: 0,
            world_size: 1,
            tail: Tail::Even,
            epoch_samples: None,
        }
    }

    /// Returns a shuffle over `window` shards at a time, for one rank, each sample once.
    #[must_use]
    pub fn shuffled(window: u32, seed: u64, batch_size: u32) -> Self {
        Self { shuffle: Shuffle::Window, window, seed, ..Self::of_list(batch_size) }
    }
}

/// Kind of shuffle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shuffle {
    /// The list's order.
    None,
    /// Exact, over `window` whole shards at a time.
    Window,
    /// Exact, over the whole data set.
    Global,
}

/// Treatment of the last, incomplete global batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tail {
    /// Split evenly; an empty rank repeats one sample as invalid.
    Even,
    /// Dropped.
    Drop,
    /// Filled with repeated samples marked invalid.
    Pad,
}

/// An opened job, as the daemon sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// The job's number on this daemon.
    pub session: u64,
    /// Lanes in use.
    pub lanes: u32,
    /// Samples per epoch over all ranks, if known.
    pub samples: Option<u64>,
    /// Batches per epoch for this rank, if known.
    pub batches: Option<u64>,
}

/// End of a run whose batches were all sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunEnd {
    /// The run that ended.
    pub run: u64,
    /// Batches in the run for this rank, counted from its base.
    pub batches: u64,
    /// Samples in the whole epoch over all ranks.
    pub samples: u64,
    /// Shards that broke off after the last batch.
    pub errors: Vec<Error>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client of protocol 3 identifies messages by these indexes.
    #[test]
    fn message_indexes_stay_fixed() {
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
        let open = Open::new("", Vec::new(), Order::of_list(1));
        let rule = BinRule { budget: 1, lookahead: 1, is_packed: true, buckets: Vec::new() };
        let lists = [
            Request::Open(Box::new(open)),
            Request::Mix(Mixture::default()),
            Request::Extent(Extent { bytes: Vec::new(), ranks: (0, 1) }),
            Request::Choose { shards: Vec::new() },
            Request::Locate { shards: Vec::new() },
            Request::Join(Vec::new()),
            Request::Bin(Box::new(Binning { rule, lengths: Vec::new() })),
        ];
        let kinds = [
            RequestKind::OPEN,
            RequestKind::MIX,
            RequestKind::EXTENT,
            RequestKind::CHOOSE,
            RequestKind::LOCATE,
            RequestKind::JOIN,
            RequestKind::BIN,
        ];
        for (list, kind) in lists.iter().zip(kinds) {
            assert_eq!(RequestKind::of(place(list)), kind);
        }
        let error = Error::new(ErrorKind::Invalid, "x");
        assert_eq!(place(&Reply::Failed { run: None, error }), 5);
        assert_eq!(place(&Reply::Shard { url: url.clone(), bytes: 0, samples: 0 }), 7);
        assert_eq!(place(&Reply::Listed { urls: Vec::new(), more: false }), 11);
        assert_eq!(place(&Reply::Reader), 12);
        assert_eq!(place(&Reply::Command { url }), 15);
        assert_eq!(place(&Request::Explain { run: 1 }), 17);
        assert_eq!(place(&Reply::Awaited { run: 1, wait: None }), 17);
        assert_eq!(place(&Reply::LeftOut(LeftOut::default())), 18);
        let staged = checkpoint::Reply::Staged;
        assert_eq!(place(&Reply::Checkpoint(Box::new(staged))), 19);
        let (url, origin) = (String::new(), BTreeMap::new());
        assert_eq!(place(&Request::Members { url, origin, first: 0 }), 20);
        assert_eq!(place(&Reply::Members(Box::default())), 20);
        let range = RangePart { number: 0, len: 0, version: String::new(), bytes: Vec::new() };
        assert_eq!(place(&Reply::Range(Box::new(range))), 21);
    }
}
