//! An open shard, arriving or whole: its index, and reads of its records.
//!
//! While anybody holds a [`ShardHandle`], the file is not evicted, and tasks that wait for
//! room hear of its end. A handle is held for a read or, of a shard in memory, for a batch; never
//! for an epoch.
//!
//! If the tier of an open shard fails, only the tier loses the shard. Its readers read through to
//! its origin, with the same checks. A shard that is compressed at its origin is fetched anew.

mod checking;
mod growth;
mod handle;
mod placed;
mod reading;
mod verdict;

use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLockReadGuard, Weak};
use std::time::Instant;

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::{Catalogue, Origin};
use forebay_source::{Rank, Source, Stat};
use forebay_uring::{Engine, GRANULE};

use crate::blocks::Blocks;
use crate::budget::{Budget, Space};
use crate::device;
use crate::directory::ShardName;
use crate::excerpt_source::version_of_object;
use crate::fill::DataFile;
use crate::parts::Parts;
use crate::small_copies::SmallCopy;
use crate::traffic::Traffic;
pub(crate) use checking::CheckedUpTo;
pub(crate) use growth::Growth;
pub use growth::Progress;
pub(crate) use handle::View;
pub use handle::{ShardHandle, Waited};
pub use placed::Placed;
pub use verdict::Verdict;

/// Location of a shard's bytes.
#[derive(Debug)]
pub(crate) enum Body {
    /// A file of a tier.
    Disk { engine: Engine, file: DataFile, small: SmallCopy },
    /// Memory of a tier.
    Memory(Arc<Blocks>),
    /// Not on this node: the shard is read through.
    Origin,
    /// The same, and a job's own member index says where its members are.
    Ranges,
}

/// Tier of an open shard.
pub(crate) struct Home {
    /// Name of the tier.
    pub(crate) tier: Arc<str>,
    pub(crate) keeper: Weak<dyn Keeper>,
    pub(crate) budget: Arc<Budget>,
    /// Held while the file may be open. Identifies this copy among later ones.
    pub(crate) space: Arc<Space>,
}

/// The tier of an open shard, as far as the shard needs it.
pub(crate) trait Keeper: Send + Sync {
    /// A read of the shard failed on the device: the copy is lost.
    fn lost(self: Arc<Self>, shard: &Shard, error: &Error);

    /// Returns true if the device does not answer.
    fn is_silent(&self) -> bool;

    /// Returns true if this copy of the shard was not evicted.
    fn keeps(&self, shard: &Shard) -> bool;
}

/// An open shard.
pub struct Shard {
    pub(crate) name: ShardName,
    pub(crate) url: String,
    pub(crate) growth: Growth,
    pub(crate) body: Body,
    /// Frames of the fill while it runs.
    pub(crate) parts: Mutex<Option<Arc<Parts>>>,
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) home: Option<Home>,
    pub(crate) source: Arc<dyn Source>,
    pub(crate) stat: Stat,
    /// Urgency while it arrives.
    pub(crate) rank: Rank,
    /// Reason why its tier does not have it any more.
    pub(crate) lost: Arc<OnceLock<Error>>,
}

impl std::fmt::Debug for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shard").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Shard {
    /// Name on the tier.
    #[must_use]
    pub fn name(&self) -> &ShardName {
        &self.name
    }

    /// URL of the object.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Version of the object, as its store reports it.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.stat.version
    }

    /// Version of the object; that of the whole one if this is an excerpt.
    #[must_use]
    pub fn object_version(&self) -> &str {
        version_of_object(&self.stat.version)
    }

    /// Length of the plain tar in bytes. The length of a compressed shard is known with its count
    /// of samples; until then this is the length of the origin's object.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.growth.len.get().copied().unwrap_or(self.stat.len)
    }

    /// Returns true if it has no bytes (never: a tar has end blocks).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Progress of its arrival.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.growth.progress.borrow().clone()
    }

    /// Returns true if the whole shard was here when it was opened: its index was read, not built.
    #[must_use]
    pub fn came_whole(&self) -> bool {
        self.growth.came_whole
    }

    /// Waits until at least `samples` samples, or all, are complete.
    ///
    /// # Errors
    /// The error of the fill, if it ended early.
    pub async fn wait(&self, samples: u64) -> Result<Progress> {
        let enough = |p: &Progress| p.samples >= samples || p.counted || p.failed.is_some();
        // Registered before the check: the fill must know how much is needed.
        let waits = (!enough(&self.progress()))
            .then(|| (Instant::now(), self.growth.want(samples), self.rank.awaited()));
        let progress = self.growth.grown(samples).await;
        if let Some((began, ..)) = &waits {
            self.traffic.waits.since(*began);
        }
        progress
    }

    /// Returns the time since `start`, and the part of it in which another node was asked.
    #[must_use]
    pub fn waited_since(&self, start: Instant) -> Waited {
        Waited::since(start, self.source.peer_times())
    }

    /// Verdict on its bytes, which may come after samples were handed out.
    #[must_use]
    pub fn verdict(&self) -> &Verdict {
        &self.growth.verdict
    }

    /// Bytes that are stored.
    #[must_use]
    pub fn kept_bytes(&self) -> u64 {
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        parts.map_or_else(|| self.len(), |parts| parts.kept_bytes())
    }

    /// Bytes that an earlier fill had left on the tier: no bytes of the origin.
    pub(crate) fn resumed_bytes(&self) -> u64 {
        self.growth.resumed()
    }

    /// Waits until all bytes are here, or the fill is over.
    pub(crate) async fn fetched(&self) {
        self.growth.fetched.wait().await;
    }

    /// Waits until the fill is over and the shard is durable on its tier.
    ///
    /// # Errors
    /// The error of the fill, or the reason why its tier did not keep the shard.
    pub async fn settled(&self) -> Result<()> {
        self.growth.settled.wait().await;
        match (self.progress().failed, self.lost.get()) {
            (Some(error), _) => Err(error),
            (None, Some(error)) => Err(error.clone()),
            (None, None) => Ok(()),
        }
    }

    /// Index of the samples so far. Hold it for look-ups only: the indexer waits for it.
    pub fn index(&self) -> RwLockReadGuard<'_, Catalogue> {
        self.growth.index()
    }

    /// Bytes that a read of `range` transfers: `range` rounded to the alignment of every disk, so
    /// that a slot cut for one tier suits any other.
    #[must_use]
    pub fn footprint(range: &Range<u64>) -> Range<u64> {
        let align = GRANULE as u64;
        range.start / align * align..range.end.next_multiple_of(align)
    }

    /// The same shard without a tier, read from its origin: it holds no file and no room.
    pub(crate) fn read_only_through(&self, traffic: &Arc<Traffic>) -> Arc<Self> {
        let why = self.lost.get().cloned();
        let why =
            why.unwrap_or_else(|| Error::new(ErrorKind::Unavailable, "no tier holds the shard"));
        Arc::new(Self {
            name: self.name.clone(),
            url: self.url.clone(),
            growth: self.growth.clone(),
            body: Body::Origin,
            parts: Mutex::default(),
            traffic: traffic.clone(),
            home: None,
            source: self.source.clone(),
            stat: self.stat.clone(),
            rank: self.rank.clone(),
            lost: Arc::new(OnceLock::from(why)),
        })
    }

    /// The same shard without a tier, read through `source`.
    pub(crate) fn read_by(&self, source: Arc<dyn Source>) -> Arc<Self> {
        Arc::new(Self {
            name: self.name.clone(),
            url: self.url.clone(),
            growth: self.growth.clone(),
            body: Body::Origin,
            parts: Mutex::new(self.parts.lock().unwrap_or_else(PoisonError::into_inner).clone()),
            traffic: self.traffic.clone(),
            home: None,
            source,
            stat: self.stat.clone(),
            rank: self.rank.clone(),
            lost: self.lost.clone(),
        })
    }

    /// Returns true if ranges come from the origin: no tier accepted the shard, or its tier lost
    /// it.
    #[must_use]
    pub fn is_read_through(&self) -> bool {
        self.lost.get().is_some() || matches!(self.body, Body::Origin | Body::Ranges)
    }

    /// Returns true if ranges come from the origin by a job's own member index.
    #[must_use]
    pub fn is_by_ranges(&self) -> bool {
        matches!(self.body, Body::Ranges)
    }

    /// Returns true if the index came from another node, which owns the shard.
    #[must_use]
    pub fn is_at_owner(&self) -> bool {
        matches!(self.body, Body::Origin) && self.lost.get().is_none()
    }

    /// Returns true if the shard must be requested anew to be read: its tier lost it, and its
    /// origin keeps it compressed.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.growth.is_unpacked() && self.lost.get().is_some()
    }

    /// Returns true if a broken stream is kept for its readers: it has good samples, in a file that
    /// the tier drops with its last reader.
    pub(crate) fn outlives_its_fault(&self) -> bool {
        matches!(self.body, Body::Disk { .. }) && self.progress().samples > 0
    }

    /// Returns true if all of it lies in memory of a tier.
    pub(crate) fn is_whole_in_memory(&self) -> bool {
        matches!(self.body, Body::Memory(_))
            && self.growth.settled.initialized()
            && self.progress().failed.is_none()
    }

    /// Origin and version of the shard.
    pub(crate) fn origin(&self) -> Origin {
        Origin {
            endpoint: self.source.endpoint().to_owned(),
            url: self.url.clone(),
            version: self.stat.version.clone(),
        }
    }

    /// Leaves a device that is known not to answer: readers go to the origin from now on.
    fn leave_silent_device(&self) {
        let keeper = self.home.as_ref().and_then(|home| home.keeper.upgrade());
        if self.lost.get().is_none() && keeper.is_some_and(|keeper| keeper.is_silent()) {
            // Another reader may do the same now.
            let _ = self.lost.set(device::silent().at("url", &self.url));
        }
    }

    /// Reports a failed device to the tier; readers go to the origin from now on.
    fn lose(&self, error: &Error) {
        if self.lost.set(error.clone()).is_ok()
            && let Some(keeper) = self.home.as_ref().and_then(|home| home.keeper.upgrade())
        {
            keeper.lost(self, error);
        }
    }
}
