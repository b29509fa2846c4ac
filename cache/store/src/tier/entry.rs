//! Entry of a shard in the table of a tier.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use forebay_policy::Shard as Number;

use super::copy::CopyState;
use super::partition::PartitionEntry;
use crate::budget::Space;
use crate::clock;
use crate::directory::{ObjectKey, ShardName};
use crate::open_shards::OpenShards;
use crate::shard::{Body, Shard};
use crate::shares::Provenance;

/// A shard on the tier.
pub(super) struct Entry {
    pub(super) name: ShardName,
    pub(super) of: Provenance,
    pub(super) object: ObjectKey,
    /// Id in the forecast, if a job announced it.
    pub(super) number: Option<Number>,
    pub(super) partition: usize,
    pub(super) at: PartitionEntry,
    /// True until its first use, which is the one it was fetched for.
    pub(super) fresh: bool,
    /// True if no job wanted it when it was whole: its first use finds it here.
    pub(super) warmed: bool,
    /// Last use, by the count of uses.
    pub(super) used: u64,
    /// Uses since it came to this node.
    pub(super) uses: u32,
    /// True if it arrives from another tier: nobody reads it before it is whole.
    pub(super) moves: bool,
    /// True if it is removed when its fill ends.
    pub(super) remove_when_filled: bool,
    pub(super) state: ShardState,
    pub(super) pace: FillPace,
    pub(super) space: Arc<Space>,
    /// The shard, while it arrives or is open.
    pub(super) shard: Weak<Shard>,
    /// The shard in a memory tier, which holds its bytes only here.
    pub(super) kept: Option<Arc<Shard>>,
}

/// State of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShardState {
    /// Bytes are arriving.
    Arriving,
    /// Fill did not end; the next one resumes from the part here.
    Partial,
    /// The whole shard is here.
    Whole,
    /// Archive is malformed: the good part is served, and has no sidecar.
    Broken,
}

/// Pace of an arriving shard's fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FillPace {
    /// Turn has not come.
    Queued,
    /// It runs, and will end.
    Running,
    /// It waits for more room than it has.
    WaitsForRoom,
}

impl From<ShardState> for CopyState {
    fn from(state: ShardState) -> Self {
        match state {
            ShardState::Arriving => Self::Arriving,
            ShardState::Partial => Self::Partial,
            ShardState::Whole => Self::Whole,
            ShardState::Broken => Self::Broken,
        }
    }
}

impl ShardState {
    /// Returns true if the shard can be served from the tier.
    pub(crate) fn is_whole(self) -> bool {
        matches!(self, Self::Whole | Self::Broken)
    }
}

impl Entry {
    /// Returns true if this copy holds `space` and can be served.
    pub(super) fn is_copy(&self, space: &Weak<Space>) -> bool {
        self.is_whole() && std::ptr::eq(Arc::as_ptr(&self.space), space.as_ptr())
    }

    /// Returns true if `shard` reads from this copy.
    pub(super) fn holds(&self, shard: &Shard) -> bool {
        shard.home.as_ref().is_some_and(|home| Arc::ptr_eq(&home.space, &self.space))
    }

    pub(super) fn name(&self) -> &ShardName {
        &self.name
    }

    /// Object that it is a version of.
    pub(super) fn object(&self) -> ObjectKey {
        self.object
    }

    pub(super) fn state(&self) -> ShardState {
        self.state
    }

    /// Returns true if its bytes are being fetched.
    pub(super) fn is_fetched(&self) -> bool {
        self.state == ShardState::Arriving && !self.moves
    }

    pub(super) fn since(&self) -> SystemTime {
        self.at.since
    }

    /// Returns true if it can be served from the tier.
    pub(super) fn is_whole(&self) -> bool {
        self.state.is_whole()
    }
}

/// Use of a shard by a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ShardUse {
    /// Uses since the shard came to this node.
    pub(super) uses: u32,
    /// False for the use that the shard was fetched for, which is its miss.
    pub(super) is_hit: bool,
}

/// A shard to be added to the table.
pub(super) struct NewEntry {
    pub(super) name: ShardName,
    pub(super) object: ObjectKey,
    pub(super) of: Provenance,
    pub(super) space: Arc<Space>,
    pub(super) since: SystemTime,
    pub(super) state: ShardState,
    pub(super) unadmitted: bool,
    pub(super) moves: bool,
    pub(super) shard: Weak<Shard>,
}

impl NewEntry {
    /// A shard that comes now, from its origin, and stays.
    pub(super) fn new(
        name: ShardName,
        object: ObjectKey,
        of: Provenance,
        space: Arc<Space>,
        state: ShardState,
    ) -> Self {
        let (since, shard) = (clock::now(), Weak::new());
        Self { name, object, of, space, since, state, unadmitted: false, moves: false, shard }
    }
}

/// Returns true if nobody reads a whole shard, or is about to.
pub(super) fn is_idle(
    entry: &Entry,
    open: &OpenShards,
    opening: &HashMap<ShardName, usize>,
) -> bool {
    is_idle_but_for(0, entry, open) && !opening.contains_key(&entry.name)
}

impl Entry {
    /// Number of loans of a shard in memory.
    pub(super) fn loans(&self) -> usize {
        let Some(Body::Memory(blocks)) = self.kept.as_ref().map(|shard| &shard.body) else {
            return 0;
        };
        blocks.loans()
    }
}

/// Returns true if nothing but so many loans has a whole shard open.
pub(super) fn is_idle_but_for(loans: usize, entry: &Entry, open: &OpenShards) -> bool {
    let kept = usize::from(open.contains(&entry.name)) + usize::from(entry.kept.is_some());
    entry.state != ShardState::Arriving && entry.shard.strong_count() <= kept + loans
}
