//! Guests: copies of shards that other nodes keep.
//!
//! A guest takes room that the shards of this node leave, and goes before all of them.

use forebay_policy::{Moment, PartitionNumber, Role, Shard};

use super::Forecast;
use crate::directory::ObjectKey;

/// Least part of a shard that a node's jobs read in an epoch for a copy to pay: a copy moves the
/// whole shard, records move what is read.
const COVERED: f64 = 0.5;

/// Nodes whose reads are announced.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scope {
    /// This one: a job here reads so much of each shard in an epoch.
    Node(f64),
    /// All nodes of the cluster that the job runs on: this one keeps its shards for them.
    Cluster,
}

impl Scope {
    /// Returns the part of a shard that jobs of this node read in an epoch.
    pub(super) fn covers(self) -> f64 {
        match self {
            Self::Node(part) => part,
            Self::Cluster => 0.0,
        }
    }
}

impl Forecast {
    /// Returns true if a copy of this shard is a guest.
    pub(crate) fn is_guest(&self, shard: Shard) -> bool {
        self.state().foresight.role(shard) == Role::Guest
    }

    /// Time at which jobs of this node need a shard of another owner after its next use, if they
    /// read most of it and a copy that comes now stays until then without the room of shards that
    /// this node keeps. `free`: bytes of the tiers that no shard takes.
    pub(crate) fn guest_due(&self, object: ObjectKey, free: u64) -> Option<Moment> {
        if self.is_idle() {
            return None;
        }
        let state = &mut *self.state();
        let shard = *state.numbers.get(&object)?;
        let known = state.shards[shard as usize].as_ref()?;
        let readers = known.readers.iter().filter_map(|(job, _)| state.readers.get(job));
        let covered: f64 = readers.map(|of| of.via.scope.covers()).sum();
        if known.role != Role::Guest || covered <= COVERED {
            return None;
        }
        let room = free.saturating_add(state.foresight.guest_bytes());
        state.foresight.guest_due(shard, room.saturating_sub(state.foresight.missing_bytes()))
    }

    /// Returns the guest in these places that is needed last (later than `than`, if given) and for
    /// which `may_go` is true.
    pub(crate) fn last_guest(
        &self,
        places: &[PartitionNumber],
        than: Option<Moment>,
        may_go: &mut dyn FnMut(Shard) -> bool,
    ) -> Option<Shard> {
        if self.is_idle() {
            return None;
        }
        self.state().foresight.last_guest(places, than, may_go)
    }
}
