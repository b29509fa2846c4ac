//! Handle of an open shard.

use std::ops::{Deref, Range};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use forebay_error::Result;
use forebay_shard::Catalogue;
use forebay_source::{PeerTimes, Stat};
use forebay_uring::Span;

use super::{Placed, Progress, Shard};
use crate::budget::Budget;
use crate::ledger::Payer;
use crate::lending::LendableShard;

/// A shard as it is seen through an excerpt of it.
#[derive(Debug)]
pub(crate) struct View {
    /// Samples by their places in the shard, with members at their places in the excerpt.
    pub(crate) catalogue: RwLock<Catalogue>,
    /// Places in the shard of the excerpt's samples, which ascend.
    pub(crate) rows: Vec<u64>,
    /// Samples of the shard.
    pub(crate) samples: u64,
    /// Bytes of the shard.
    pub(crate) len: u64,
}

impl View {
    /// Returns the number of the excerpt's samples that are among the shard's first ones.
    fn rows_of(&self, samples: u64) -> u64 {
        self.rows.partition_point(|place| *place < samples) as u64
    }
}

/// Handle of an open shard. Its file is not evicted until the handle is dropped.
#[derive(Debug)]
pub struct ShardHandle {
    // Dropped in this order: the count is down when waiting tasks look again.
    shard: Arc<Shard>,
    _end: RoomWaker,
    asked: Waited,
    opened: Waited,
    /// Payer of reads from the origin.
    pub(super) payer: Option<Payer>,
    /// True if the handle is for a move to another tier, not for a batch.
    pub(super) is_for_move: bool,
    /// The shard as its reader sees it, if this is an excerpt of it.
    view: Option<Arc<View>>,
}

/// Time waited for a shard: all of it, and the part in which another node was asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waited {
    /// All of it.
    pub time: Duration,
    /// Time of it in which another node was asked.
    pub at_peer: Duration,
}

impl Waited {
    /// Returns the time since `start`.
    pub(crate) fn since(start: Instant, peer_times: Option<&PeerTimes>) -> Self {
        let at_peer = peer_times.map_or(Duration::ZERO, |times| times.since(start));
        Self { time: start.elapsed(), at_peer }
    }
}

/// Wakes the tasks that wait for room on the shard's tier, on drop.
#[derive(Debug)]
struct RoomWaker(Option<Arc<Budget>>);

impl Drop for RoomWaker {
    fn drop(&mut self) {
        if let Some(budget) = &self.0 {
            budget.wake();
        }
    }
}

impl ShardHandle {
    pub(crate) fn new(shard: Arc<Shard>) -> Self {
        let end = RoomWaker(shard.home.as_ref().map(|home| home.budget.clone()));
        let (asked, opened) = (Waited::default(), Waited::default());
        Self { shard, _end: end, asked, opened, payer: None, is_for_move: false, view: None }
    }

    /// Sets the payer of reads from the origin.
    pub(crate) fn paid_by(self, payer: Payer) -> Self {
        Self { payer: Some(payer), ..self }
    }

    /// Marks the handle as one for a move.
    pub(crate) fn for_move(self) -> Self {
        Self { is_for_move: true, ..self }
    }

    /// The same handle for another shard.
    pub(crate) fn to(self, shard: Arc<Shard>) -> Self {
        Self {
            asked: self.asked,
            opened: self.opened,
            payer: self.payer,
            is_for_move: self.is_for_move,
            view: self.view,
            ..Self::new(shard)
        }
    }

    /// Sets the time waited for the shard's version, and then for its opening.
    pub(crate) fn opened_in(self, asked: Waited, opened: Waited) -> Self {
        Self { asked, opened, ..self }
    }

    /// Sees the shard through an excerpt of it, which this handle opened.
    pub(crate) fn seen_as(self, view: Arc<View>) -> Self {
        Self { view: Some(view), ..self }
    }

    /// Returns true if only an excerpt of the shard is open.
    #[must_use]
    pub fn is_excerpt(&self) -> bool {
        self.view.is_some()
    }

    /// Stat of the object, if this is an excerpt of it.
    pub(crate) fn whole_stat(&self) -> Option<Stat> {
        let view = self.view.as_ref()?;
        Some(Stat::new(view.len, self.object_version().to_owned(), self.stat.binding))
    }

    /// Index of the samples so far. Hold it for look-ups only: the indexer waits for it.
    pub fn index(&self) -> RwLockReadGuard<'_, Catalogue> {
        match &self.view {
            Some(view) => view.catalogue.read().unwrap_or_else(PoisonError::into_inner),
            None => self.shard.index(),
        }
    }

    /// Waits until at least `samples` samples, or all, are complete.
    ///
    /// # Errors
    /// The error of the fill, if it ended early.
    pub async fn wait(&self, samples: u64) -> Result<Progress> {
        let Some(view) = &self.view else { return self.shard.wait(samples).await };
        let progress = self.shard.wait(view.rows_of(samples)).await?;
        Ok(Progress { samples: view.samples, counted: true, ..progress })
    }

    /// Returns true unless members of these samples came with other checksums than those of the
    /// index that located them.
    pub(crate) fn agrees(&self, mut ordinals: impl Iterator<Item = u64>) -> bool {
        let Some(view) = &self.view else { return true };
        let (came, wanted) = (self.shard.index(), self.index());
        ordinals.all(|ordinal| {
            let Ok(row) = view.rows.binary_search(&ordinal) else { return true };
            let (Some(sample), Some(known)) =
                (came.sample(row), usize::try_from(ordinal).ok().and_then(|at| wanted.sample(at)))
            else {
                return true;
            };
            let known = wanted.members_of(&known);
            came.members_of(&sample).iter().all(|member| {
                let at = (member.offset, member.len);
                let mut same = known.iter().filter(|known| (known.offset, known.len) == at);
                same.any(|known| known.crc32c == member.crc32c)
            })
        })
    }

    /// Time waited for the shard's version.
    #[must_use]
    pub fn asked(&self) -> Waited {
        self.asked
    }

    /// Rest of the time in which it was opened: its tier was read, or its fill started.
    #[must_use]
    pub fn opened(&self) -> Waited {
        self.opened
    }

    /// Reads ranges, each into a span as long as its footprint. An error shows when a member of its
    /// range is checked. The span comes back in any case, unless the origin failed.
    ///
    /// Ranges with all frames in memory are copied. All others are read together, from the tier, or
    /// from the origin if the tier has lost them; then the payer of this handle pays.
    pub async fn read(&self, wanted: Vec<(Range<u64>, Span)>) -> Vec<Placed> {
        self.shard.read(wanted, self).await
    }

    /// Returns the shard for a later loan, if it is whole and in memory. It may be evicted before.
    #[must_use]
    pub fn lendable(&self) -> Option<LendableShard> {
        LendableShard::of(&self.shard)
    }

    pub(crate) fn shard(&self) -> &Arc<Shard> {
        &self.shard
    }
}

impl Deref for ShardHandle {
    type Target = Shard;

    fn deref(&self) -> &Shard {
        &self.shard
    }
}
