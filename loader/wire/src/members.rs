//! Parts of messages about single samples of shards: those that a job reads, and their members.

use serde::{Deserialize, Serialize};

/// Samples of one shard that a job reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chosen {
    /// Samples of the whole shard.
    pub samples: u64,
    /// Version of the object in which they were chosen, if known.
    pub version: Option<String>,
    /// Digest of the shard's samples in which they were chosen, if known.
    pub digest: Option<u32>,
    /// Places of the samples: a Roaring bitmap, in that format's portable form.
    pub passing: Vec<u8>,
}

/// Consecutive samples of a shard, and the places of their members.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MembersPart {
    /// The shard.
    pub url: String,
    /// Length of the plain tar in bytes.
    pub bytes: u64,
    /// Version of the object, as its store reports it.
    pub version: String,
    /// Samples of the whole shard.
    pub total: u64,
    /// Number of the first sample here.
    pub first: u64,
    /// Names indexed by [`Indexed::field`].
    pub fields: Vec<String>,
    /// The samples: as many as one answer has.
    pub samples: Vec<IndexedSample>,
}

/// One sample of a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexedSample {
    /// Key of the sample.
    pub key: String,
    /// Reason why it is unusable, if it is.
    pub bad: Option<String>,
    /// Members, in the order of the tar.
    pub members: Vec<Indexed>,
}

/// One member of a sample in its shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Indexed {
    /// Index into [`MembersPart::fields`].
    pub field: u32,
    /// Start in the plain tar.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// CRC32C of its bytes.
    pub crc32c: u32,
}

/// Samples of one shard of a job, and the places of their members by the job's own index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Located {
    /// The shard, as an index into [`crate::message::Open::urls`].
    pub shard: u32,
    /// Version of the object that was indexed, if it is the same at the job's URL.
    pub version: Option<String>,
    /// Length of the plain tar in bytes.
    pub bytes: u64,
    /// Samples of the whole shard.
    pub total: u64,
    /// Names indexed by [`Indexed::field`].
    pub fields: Vec<String>,
    /// Samples with their places in the shard, which ascend.
    pub samples: Vec<(u64, IndexedSample)>,
}

/// A sample requested by its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Picked {
    /// Position used by random draws of crops and flips.
    pub position: u64,
    /// The shard, as an index into [`Open::urls`](crate::message::Open::urls).
    pub shard: u32,
    /// Place in the shard.
    pub ordinal: u64,
}

/// Cost of the members that a job wants, and of its shards, in a part of its data set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartsEstimate {
    /// Bytes of the wanted members, and of what is read between them.
    pub bytes: u64,
    /// Requests for them.
    pub requests: u64,
    /// Bytes of the shards.
    pub whole_bytes: u64,
}

/// A range of an object that is no shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangePart {
    /// Number of the request.
    pub number: u64,
    /// Length of the object.
    pub len: u64,
    /// Version of the object.
    pub version: String,
    /// The bytes, as many as one answer has.
    pub bytes: Vec<u8>,
}
