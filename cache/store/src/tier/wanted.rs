//! A shard requested from a tier, and the reason of its arrival.

use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use forebay_error::{Error, ErrorKind, Result};
use forebay_policy::Moment;
use forebay_shard::Origin;
use forebay_source::{RangeRead, Rank, Source, Stat};

use super::request::Urgency;
use crate::directory::ShardName;
use crate::identity::Head;
use crate::shares::{Charge, Provenance, Shares};

/// A shard that is requested, or that moves.
#[derive(Clone)]
pub(crate) struct Wanted {
    pub(crate) name: ShardName,
    pub(crate) origin: Origin,
    /// Tenant of the requesting job, charged unless a part of the shard is here already.
    pub(crate) tenant: Option<Arc<str>>,
    pub(crate) source: Arc<dyn Source>,
    /// Source for the time that the shard stays open.
    pub(crate) lasting: Arc<dyn Source>,
    /// Answer of the origin about its object.
    pub(crate) stat: Stat,
    /// Length of the shard; an estimate if it is compressed at its origin.
    pub(crate) len: u64,
    /// Urgency, and the requesting job.
    pub(crate) rank: Rank,
    /// First bytes that are already on their way.
    pub(crate) head: Head,
    /// Time of its next use, if another node keeps it and this one takes a copy in spare room.
    pub(crate) guest: Option<Moment>,
}

impl Wanted {
    /// Charge of the shard if it comes now.
    pub(crate) fn charge(&self, shares: &Shares) -> Charge {
        shares.charge(&self.origin.url, self.tenant.as_deref())
    }

    pub(super) fn provenance(&self) -> Provenance {
        Provenance { url: self.origin.url.as_str().into(), tenant: self.tenant.clone() }
    }
}

/// Reason why a shard arrives.
#[derive(Clone)]
pub(crate) enum Arrival {
    /// It is fetched.
    Fetch(Urgency),
    /// It comes `from` another tier, with its uses and the time of its arrival on this node.
    /// `unpacked`: true if its origin keeps it compressed.
    Move { uses: u32, since: SystemTime, from: Arc<dyn Source>, unpacked: bool },
}

impl Arrival {
    pub(super) fn is_fetch(&self) -> bool {
        matches!(self, Self::Fetch(_))
    }

    /// Arrival time on this node of a shard that moves.
    pub(super) fn since(&self) -> Option<SystemTime> {
        match self {
            Self::Fetch(_) => None,
            Self::Move { since, .. } => Some(*since),
        }
    }

    /// The tier that a shard moves from.
    pub(super) fn source(&self) -> Option<Arc<dyn Source>> {
        match self {
            Self::Fetch(_) => None,
            Self::Move { from, .. } => Some(from.clone()),
        }
    }

    pub(super) fn urgency(&self) -> Urgency {
        match self {
            Self::Fetch(urgency) => *urgency,
            Self::Move { .. } => Urgency::Ahead,
        }
    }
}

/// Source of a shard opened for a move only: readers open it with their own source.
pub(crate) struct Absent;

#[async_trait]
impl Source for Absent {
    async fn stat(&self, url: &str) -> Result<Stat> {
        Err(Error::new(ErrorKind::Unavailable, "a move has no origin").at("url", url))
    }

    async fn range_read<'a>(
        &'a self,
        url: &'a str,
        _: &'a Stat,
        _: Range<u64>,
        _: &'a Rank,
    ) -> Result<Box<dyn RangeRead + 'a>> {
        Err(Error::new(ErrorKind::Unavailable, "a move has no origin").at("url", url))
    }

    fn endpoint(&self) -> &str {
        ""
    }
}
