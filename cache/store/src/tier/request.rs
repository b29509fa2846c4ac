//! Requests for room, and the shards that may be evicted for them.

use std::sync::Arc;

use forebay_policy::{Moment, NOW};

use crate::budget::Space;
use crate::shares::{Charge, Provenance, Shares};

/// A request for room.
#[derive(Debug, Clone, Copy)]
pub(super) struct RoomRequest {
    /// Charge of the newcomer; none if room is made ahead of need.
    pub(super) charge: Option<Charge>,
    pub(super) urgency: Urgency,
    pub(super) short: Shortage,
    /// True if the newcomer is not admitted: it evicts no admitted shard unless a trainer waits.
    pub(super) unadmitted: bool,
    /// Time of a guest's next use: it comes into free room, or that of guests needed later. None
    /// for a shard that this node keeps.
    pub(super) guest: Option<Moment>,
    /// True for an arriving shard that needs more than it has.
    pub(super) grows: bool,
    /// Time of the newcomer's next use: of the announced shards, only later ones are evicted. None:
    /// any.
    pub(super) than: Option<Moment>,
}

/// Limit that is short; it decides whose shards make room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// The tier: any shard makes room.
    Tier,
    /// The newcomer's data set, or its tenant: only its own shards make room.
    Dataset,
    Tenant,
    /// Both: best shards of both.
    Both,
}

impl RoomRequest {
    /// Request of a tier ahead of need, for a shard that is needed next.
    pub(super) fn ahead(charge: Option<Charge>) -> Self {
        let (urgency, short) = (Urgency::Ahead, Shortage::Tier);
        let (unadmitted, grows) = (false, false);
        Self { charge, urgency, short, unadmitted, guest: None, grows, than: Some(NOW) }
    }

    /// Returns true if shards with this charge make room.
    pub(super) fn concerns(self, other: Charge) -> bool {
        let own = |own: fn(Charge) -> usize| self.charge.map(own) == Some(own(other));
        let (dataset, tenant) = (own(|charge| charge.dataset), own(|charge| charge.tenant));
        match self.short {
            Shortage::Tier => true,
            Shortage::Dataset => dataset,
            Shortage::Tenant => tenant,
            Shortage::Both => dataset && tenant,
        }
    }
}

/// Urgency of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// A trainer waits for the shard: it may evict claimed shards, and waits for room.
    Needed,
    /// The shard is fetched ahead: it comes in only if there is room or an unclaimed shard to
    /// evict.
    Ahead,
}

/// Reserved bytes of a shard, its provenance, and its admission.
pub(super) struct ReservedRoom {
    pub(super) space: Arc<Space>,
    pub(super) of: Provenance,
    pub(super) unadmitted: bool,
}

impl Shortage {
    /// Limit that is short for `bytes` more of a data set and a tenant.
    pub(super) fn of(shares: &Shares, charge: Charge, bytes: u64) -> Self {
        match shares.of(charge).map(|share| share.budget.has(bytes)) {
            [true, true] => Self::Tier,
            [false, true] => Self::Dataset,
            [true, false] => Self::Tenant,
            [false, false] => Self::Both,
        }
    }
}
