//! A batch on its way to a trainer: samples, places of their members, and the work on it.

use forebay_error::{Error, ErrorKind};
use serde::{Deserialize, Serialize};

/// Value of [`Member::memory`] for a member in the slot of its batch.
pub const IN_SLOT: u32 = 0;

/// One batch and the place of each of its members.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// The run it belongs to.
    pub run: u64,
    /// Number in the run, counted from the run's base.
    pub index: u64,
    /// The slab its slot lies in.
    pub slab: u32,
    /// The slot to release.
    pub slot: u64,
    /// Names indexed by `Member::field`.
    pub fields: Vec<String>,
    /// The samples, in order.
    pub samples: Vec<Sample>,
    /// Shards that broke off before this batch: samples after the fault are not in the epoch.
    pub errors: Vec<Error>,
    /// The daemon's work on this batch, with times.
    pub stages: Vec<Stage>,
    /// Payload bytes by where they were read.
    pub bytes: Bytes,
}

/// One sample of a batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Position in the epoch's global sequence.
    pub position: u64,
    /// The shard, as an index into [`crate::message::Open::urls`].
    pub url: u32,
    /// Key of the sample.
    pub key: String,
    /// False for padding.
    pub valid: bool,
    /// Members, or the reason for their absence.
    pub members: Result<Vec<Member>, Error>,
    /// Names of the fields present, if a requested one is missing or the sample is bad.
    pub has: Vec<String>,
}

/// One member of a sample, in the slab or in memory of a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Index into [`Batch::fields`].
    pub field: u32,
    /// Start in its memory.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// The memory it lies in ([`crate::message::Reply::Memory`]), or [`IN_SLOT`]. It travels beside
    /// the batch.
    #[serde(skip)]
    pub memory: u32,
}

impl Batch {
    /// Returns the memory of each member, of all samples that have members, in order.
    #[must_use]
    pub fn memories(&self) -> Vec<u32> {
        let members = self.samples.iter().filter_map(|sample| sample.members.as_ref().ok());
        members.flatten().map(|member| member.memory).collect()
    }

    /// Sets the memory of each member, in the same order.
    ///
    /// # Errors
    /// `Invalid` if there are more or fewer members.
    pub fn set_memories(&mut self, memories: &[u32]) -> Result<(), Error> {
        let members = self.samples.iter_mut().filter_map(|sample| sample.members.as_mut().ok());
        let mut given = memories.iter();
        for member in members.flatten() {
            member.memory = *given.next().ok_or_else(unlike)?;
        }
        given.next().map_or(Ok(()), |_| Err(unlike()))
    }
}

/// Returns the error of a batch with another number of members than it says.
fn unlike() -> Error {
    Error::new(ErrorKind::Invalid, "a batch does not name the memory of each of its members")
}

/// Payload bytes of a batch by where they were read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bytes {
    /// Read from a tier.
    pub tier: u64,
    /// Copied from frames of a shard still arriving.
    pub origin: u64,
}

/// Cause of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Cause {
    /// Bytes were in flight from the origin.
    Origin,
    /// The shard's index was being read, or the batch's samples were being located.
    Index,
    /// A tier was being read and the members checked.
    TierRead,
    /// No stage was busy: the batch was in transit between processes, or had no slot.
    RingEmpty,
    /// Members were being decoded, or waited for a decode thread.
    Decode,
    /// Bytes were being copied to a device, or it still read the slots of earlier batches.
    H2d,
    /// The job waited for slab memory that other jobs held.
    Slab,
    /// Bytes were in flight from another node of the cluster, which may wait for the origin itself.
    Peer,
}

impl Cause {
    /// Every cause, in the order reports show them.
    pub const ALL: [Self; 8] = [
        Self::Origin,
        Self::Index,
        Self::TierRead,
        Self::RingEmpty,
        Self::Decode,
        Self::H2d,
        Self::Slab,
        Self::Peer,
    ];

    /// Returns true for a wait for bytes that are not on the node.
    #[must_use]
    pub fn is_arrival(self) -> bool {
        matches!(self, Self::Origin | Self::Peer)
    }

    /// Returns the cause's name in reports and metric labels.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Origin => "origin",
            Self::Index => "index",
            Self::TierRead => "tier_read",
            Self::RingEmpty => "ring_empty",
            Self::Decode => "decode",
            Self::H2d => "h2d",
            Self::Slab => "slab",
            Self::Peer => "peer",
        }
    }
}

/// A time interval in which a batch was worked on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage {
    /// The stage at work. Clients older than [`crate::PROTOCOL_POSITIONS`] get
    /// [`Cause::RingEmpty`] for [`Cause::Slab`], and [`Cause::Origin`] for [`Cause::Peer`].
    pub cause: Cause,
    /// Start.
    pub start_ns: u64,
    /// End.
    pub end_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(members: Result<usize, Error>) -> Sample {
        let member = |n: usize| Member { field: 0, offset: n as u64, len: 1, memory: IN_SLOT };
        Sample {
            position: 0,
            url: 0,
            key: String::new(),
            valid: true,
            members: members.map(|count| (0..count).map(member).collect()),
            has: Vec::new(),
        }
    }

    fn batch() -> Batch {
        let bad = Error::new(ErrorKind::BadSample, "a bad one");
        Batch {
            run: 1,
            index: 0,
            slab: 1,
            slot: 1,
            fields: vec!["a".to_owned()],
            samples: vec![sample(Ok(2)), sample(Err(bad)), sample(Ok(1))],
            errors: Vec::new(),
            stages: Vec::new(),
            bytes: Bytes::default(),
        }
    }

    /// A client of the release before reads a batch whose members are all in its slot.
    #[test]
    fn memories_travel_beside_the_batch() {
        let mut batch = batch();
        let plain = postcard::to_extend(&batch, Vec::new()).unwrap();
        batch.set_memories(&[3, 0, 2]).unwrap();
        assert_eq!(batch.memories(), [3, 0, 2]);
        let sent = postcard::to_extend(&batch, Vec::new()).unwrap();
        assert_eq!(sent, plain);
        let mut got: Batch = postcard::from_bytes(&sent).unwrap();
        assert_eq!(got.memories(), [IN_SLOT; 3]);
        got.set_memories(&batch.memories()).unwrap();
        assert_eq!(got, batch);
    }

    #[test]
    fn each_member_has_one_memory() {
        for wrong in [&[][..], &[1, 2], &[1, 2, 3, 4]] {
            let error = batch().set_memories(wrong).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{wrong:?}");
        }
    }
}
