//! Tier: one storage place for shards, its device, and the state of both.
//!
//! A tier decides about its own bytes only. The store chooses the tier that a shard comes to
//! or is read from. The tier decides if the shard may come in, stay, or must leave.
//!
//! ```text
//!   Tier
//!     ├─ Medium ── a directory and its engine, or memory
//!     ├─ ShardTable ── present shards, order of eviction    table.rs, partition.rs
//!     ├─ Budget, Wear ── bytes reserved and written         room.rs, allotment.rs, wear.rs
//!     └─ Health, Mode ── condition of the device, and the admin's choice
//! ```

mod allotment;
mod attach;
mod begin;
mod config;
mod copy;
mod copy_errors;
mod disk;
mod effects;
mod entry;
mod filling;
mod health;
mod leftover;
mod limits;
mod new_charges;
mod open;
mod partition;
mod pinned;
mod presence;
mod removal;
mod request;
mod room;
mod scrub;
mod staged;
mod table;
mod wanted;
mod wear;

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};
use std::time::Instant;

use forebay_error::{Error, ErrorKind, Result};
use forebay_uring::{Arena, Engine, EngineReport, PageReport};
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, watch};
use utoipa::ToSchema;

use crate::budget::Budget;
use crate::clock;
use crate::counters::{Counters, Tally};
use crate::device;
use crate::directory::{Directory, ShardName};
use crate::encryption::{KeyKind, KeySource};
use crate::files::Files;
use crate::mounts::MountRequirement;
use crate::repeats::Repeats;
use crate::shard::{Keeper, Shard};
use crate::shared_state::SharedState;
use crate::shares::Charge;
use crate::traffic::{DatasetTraffic, Traffic, Traffics};
pub use config::{Class, DiskConfig, KeepFree, TierConfig, Watermarks};
pub use copy::{CopyReport, CopyState};
pub use effects::{Effects, ShareEffect, TierEffect};
pub(crate) use entry::ShardState;
use entry::ShardUse;
pub use health::Condition;
use health::Health;
pub(crate) use leftover::above_quota;
use limits::Size;
pub use limits::TierLimits;
pub(crate) use limits::reconfigure;
pub(crate) use new_charges::NewCharges;
pub(crate) use open::{CopyFacts, OpeningGuard};
pub use request::Urgency;
pub use scrub::{Flaw, Scrub};
use staged::StagedRoom;
use table::ShardTable;
#[cfg(test)]
pub(crate) use wanted::Absent;
pub(crate) use wanted::{Arrival, Wanted};
use wear::Wear;

/// Mode of a tier, set by an admin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// In use.
    Enabled,
    /// Read only: nothing new comes in; present shards move to other tiers or are evicted.
    Draining,
    /// Not used: its device may be removed.
    Disabled,
}

/// A tier. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Tier(Arc<TierInner>);

/// A weak reference to a tier.
#[derive(Clone)]
pub(crate) struct WeakTier(Weak<TierInner>);

impl std::fmt::Debug for WeakTier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WeakTier")
    }
}

impl WeakTier {
    pub(crate) fn upgrade(&self) -> Option<Tier> {
        self.0.upgrade().map(Tier)
    }
}

struct TierInner {
    name: String,
    class: Class,
    medium: Medium,
    size: Mutex<Size>,
    /// Set when the high watermark is passed, cleared when the low one is reached.
    relieving: AtomicBool,
    budget: Arc<Budget>,
    table: Mutex<ShardTable>,
    /// Room of files of checkpoints.
    staged: Mutex<StagedRoom>,
    /// Result of the listing of the directory; none while it runs.
    scanned: watch::Sender<Option<Result<()>>>,
    tally: Arc<Tally>,
    traffic: Traffics,
    health: Health,
    /// Shards that came and were not kept.
    unkept: Repeats,
    mode: AtomicU8,
    wear: Option<Mutex<Wear>>,
    shared: Arc<SharedState>,
}

enum Medium {
    Disk(Box<Disk>),
    Memory(Arena),
}

struct Disk {
    mount: MountRequirement,
    /// Kernel name of the device, once its directory was open.
    device: OnceLock<String>,
    engine: Engine,
    files: Arc<dyn Files>,
    /// The open directory, or the reason why there is none: the tier is disabled, or its directory
    /// cannot be used.
    directory: RwLock<Result<Arc<Directory>>>,
    /// Held by the one call that looks at the device: one that hangs is not repeated.
    looking: Arc<Semaphore>,
    /// Held by the one probe of the device.
    probing: Arc<Semaphore>,
    /// Parts that the kernel writes: the frames of a disk that does not answer leave the fills of
    /// others theirs.
    writes: Arc<Semaphore>,
    /// Source of the key, if the files are encrypted,
    key: Option<KeySource>,
    /// and memory to encrypt in.
    bounce: Option<Arena>,
}

/// Report on a tier.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TierReport {
    /// Name, for admins.
    pub name: String,
    /// Class of the storage.
    pub class: Class,
    /// Path of its directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Kernel name of its block device, such as `nvme0n1p1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Kind of its key, if its files are encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<KeyKind>,
    /// Mode set by the admin.
    pub mode: Mode,
    /// Condition of its device.
    pub condition: Condition,
    /// Reason for a condition that is not normal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Counters since the start.
    #[serde(flatten)]
    pub counters: Counters,
    /// Bytes for batches, by data set.
    pub traffic: Vec<DatasetTraffic>,
    /// Bytes left to write today for shards nobody waits for; negative if overdrawn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writes_left_bytes: Option<i64>,
    /// Report on its I/O engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineReport>,
    /// Memory by page size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pages: Option<PageReport>,
    /// Bytes of shards in memory that trainers read where they lie; they are not evicted meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lent_bytes: Option<u64>,
}

impl Keeper for TierInner {
    fn lost(self: Arc<Self>, shard: &Shard, error: &Error) {
        Tier(self).drop_lost(shard, error);
    }

    fn is_silent(&self) -> bool {
        self.health.is_silent()
    }

    fn keeps(&self, shard: &Shard) -> bool {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.get(shard.name()).is_some_and(|entry| entry.holds(shard))
    }
}

impl Tier {
    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    pub(crate) fn class(&self) -> Class {
        self.0.class
    }

    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.0.budget
    }

    pub(crate) fn downgrade(&self) -> WeakTier {
        WeakTier(Arc::downgrade(&self.0))
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// I/O engine, if it has a disk.
    pub(crate) fn engine(&self) -> Option<&Engine> {
        match &self.0.medium {
            Medium::Disk(disk) => Some(&disk.engine),
            Medium::Memory(_) => None,
        }
    }

    pub(crate) fn mode(&self) -> Mode {
        match self.0.mode.load(Ordering::Relaxed) {
            0 => Mode::Enabled,
            1 => Mode::Draining,
            _ => Mode::Disabled,
        }
    }

    fn set_mode(&self, mode: Mode) {
        self.0.mode.store(mode as u8, Ordering::Relaxed);
    }

    /// Returns true if shards may be read from it.
    pub(crate) fn is_readable(&self) -> bool {
        self.mode() != Mode::Disabled
            && matches!(self.0.health.condition(), Condition::Normal | Condition::ReadOnly)
    }

    /// Returns true if shards may be read from it and removed.
    pub(crate) fn is_normal(&self) -> bool {
        self.mode() != Mode::Disabled && self.0.health.condition() == Condition::Normal
    }

    /// Returns true if shards may come to it.
    pub(crate) fn is_writable(&self) -> bool {
        self.mode() == Mode::Enabled && self.0.health.condition() == Condition::Normal
    }

    /// Returns true if the write allowance has room for `bytes` nobody waits for.
    pub(crate) fn allows_writing(&self, bytes: u64) -> bool {
        self.wear().is_none_or(|mut wear| wear.allows(bytes, clock::now()))
    }

    fn wear(&self) -> Option<MutexGuard<'_, Wear>> {
        let wear = self.0.wear.as_ref()?;
        Some(wear.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// State of a shard on this tier.
    pub(crate) fn state(&self, name: &ShardName) -> Option<ShardState> {
        let table = self.table();
        table.get(name).filter(|_| !table.is_stale(name)).map(entry::Entry::state)
    }

    pub(crate) fn in_use(&self, name: &ShardName) -> Option<(Arc<Shard>, ShardState)> {
        self.table().in_use(name)
    }

    pub(crate) fn claim(&self, name: &ShardName) {
        self.table().claim(name);
    }

    pub(crate) fn unclaim(&self, name: &ShardName) {
        self.table().unclaim(name);
        self.note_closed();
    }

    /// Updates the table after jobs announced other shards.
    pub(crate) fn refresh_forecast(&self) {
        self.table().refresh_forecast();
    }

    /// Notes that a job begins to use a shard, and counts a hit if it did not have to come for
    /// that. Returns its uses since it came to this node.
    pub(crate) fn record_use(&self, name: &ShardName) -> u32 {
        let Some(ShardUse { uses, is_hit }) = self.table().record_use(name) else { return 0 };
        if is_hit {
            self.0.tally.hits.inc();
        }
        uses
    }

    /// Counters since the start.
    pub(crate) fn counters(&self) -> Counters {
        let shards = {
            let table = self.table();
            (table.len(), table.excerpts(), table.leaving())
        };
        self.0.tally.read(&self.0.budget, self.0.traffic.sums(), shards)
    }

    /// Number of shards by charge.
    pub(crate) fn shards(&self) -> Vec<(Charge, usize)> {
        self.table().counts()
    }

    pub(crate) fn traffic(&self) -> &Traffics {
        &self.0.traffic
    }

    /// Counters for reads of a shard on this tier.
    fn traffic_of(&self, url: &str) -> Arc<Traffic> {
        self.0.traffic.of(&self.0.shared.dataset_of(url))
    }

    pub(crate) fn report(&self) -> TierReport {
        let (condition, why) = self.0.health.verdict();
        let (path, engine, pages) = match &self.0.medium {
            Medium::Disk(disk) => {
                (Some(disk.path().display().to_string()), Some(disk.engine.report()), None)
            }
            Medium::Memory(arena) => (None, None, Some(arena.region().pages())),
        };
        TierReport {
            name: self.0.name.clone(),
            class: self.0.class,
            path,
            device: self.device().map(str::to_owned),
            encryption: self.disk().and_then(|disk| disk.key.as_ref()).map(KeySource::kind),
            mode: self.mode(),
            condition,
            why,
            counters: self.counters(),
            traffic: self.0.traffic.report(),
            writes_left_bytes: self.wear().map(|mut wear| wear.left(clock::now())),
            engine,
            pages,
            lent_bytes: self.disk().is_none().then(|| self.0.budget.lent()),
        }
    }

    /// Notes a failed operation of the device.
    pub(crate) fn note_failure(&self, error: &Error) {
        self.0.tally.io_errors.inc();
        let changed = match error.kind() {
            _ if device::is_silent(error) => self.0.health.silent(error, Instant::now()),
            ErrorKind::Unavailable => self.0.health.failed(error, Instant::now()),
            // EROFS: the file system was remounted read-only.
            ErrorKind::PermissionDenied => self.0.health.refused_writes(error),
            _ => None,
        };
        self.log_condition(changed, Some(error));
    }

    /// Notes that the disk has no space or no inodes left, and logs it once.
    fn note_full(&self, error: &Error) {
        if self.0.health.filled(error, Instant::now()) {
            let (tier, device) = (self.name(), self.device());
            tracing::warn!(tier, device, %error, "the disk is full");
        }
    }

    /// Logs a changed condition of the device, once.
    fn log_condition(&self, changed: Option<Condition>, why: Option<&Error>) {
        let Some(condition) = changed else { return };
        let (tier, device) = (self.name(), self.device());
        match (condition, why) {
            (Condition::Normal, _) => tracing::info!(tier, device, "the device is in use again"),
            (_, Some(error)) => {
                tracing::error!(tier, device, ?condition, %error, "the device fails");
            }
            (_, None) => tracing::error!(tier, device, ?condition, "the device fails"),
        }
        self.0.budget.wake();
    }

    /// Drops a copy after a reader met a failure of the device.
    fn drop_lost(&self, shard: &Shard, error: &Error) {
        self.note_failure(error);
        // The index is kept: if no tier takes the shard, it need not be read for it. A compressed
        // shard has no ranges at its origin and must be fetched anew.
        if shard.progress().counted && !shard.growth.is_unpacked() {
            self.0.shared.read_through(shard);
        }
        let mut table = self.table();
        if device::is_silent(error) {
            // The copy is as good as before, once the device answers.
            table.close(shard.name());
            return;
        }
        let space = shard.home.as_ref().map(|home| Arc::downgrade(&home.space));
        let is_there = space.is_some_and(|space| {
            table.get(shard.name()).is_some_and(|entry| entry.is_copy(&space))
        });
        if is_there {
            drop(self.remove(&mut table, shard.name(), false));
        }
    }

    /// Kernel name of its block device, if known.
    fn device(&self) -> Option<&str> {
        self.disk()?.device.get().map(String::as_str)
    }

    fn disk(&self) -> Option<&Disk> {
        match &self.0.medium {
            Medium::Disk(disk) => Some(disk),
            Medium::Memory(_) => None,
        }
    }

    /// Directory of the tier; a disabled tier, a memory tier and one that cannot be used have none.
    fn directory(&self) -> Result<Arc<Directory>> {
        let closed = || Error::new(ErrorKind::Closed, "the tier is not attached");
        let directory = match self.disk() {
            Some(disk) => disk.directory.read().unwrap_or_else(PoisonError::into_inner).clone(),
            None => Err(closed()),
        };
        directory.map_err(|error| error.at("tier", self.name()))
    }

    /// Returns true if it has an open directory, or needs none.
    pub(crate) fn is_attached(&self) -> bool {
        self.absence().is_none()
    }

    /// Reason why there is no open directory.
    pub(crate) fn absence(&self) -> Option<Error> {
        self.disk().and_then(|_| self.directory().err())
    }

    /// Runs blocking work on the directory on a blocking thread.
    ///
    /// # Errors
    /// Those of the work; `Unavailable` if the device does not answer.
    pub(crate) async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Directory) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        // Each call would cost its caller the whole time that a disk has to answer.
        if self.0.health.is_silent() {
            return Err(device::silent().at("tier", self.name()));
        }
        let directory = self.directory()?;
        let done = tokio::task::spawn_blocking(move || work(&directory));
        match device::answer(done).await {
            Ok(done) => done.map_err(|_| Error::shutting_down())?,
            Err(error) => {
                self.note_failure(&error);
                Err(error.at("tier", self.name()))
            }
        }
    }

    fn table(&self) -> MutexGuard<'_, ShardTable> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if all its shards are known and none is a version of this one.
    pub(crate) fn certainly_lacks(&self, name: &ShardName) -> bool {
        self.is_listed() && !self.table().has_label(name)
    }

    /// Returns true if the directory is listed.
    fn is_listed(&self) -> bool {
        matches!(*self.0.scanned.borrow(), Some(Ok(())))
    }

    /// Waits until the directory is listed.
    ///
    /// # Errors
    /// If it cannot be listed: its content is unknown, and nothing may be added.
    pub(crate) async fn scanned(&self) -> Result<()> {
        let mut scanned = self.0.scanned.subscribe();
        let listed = scanned.wait_for(Option::is_some).await.map(|listed| listed.clone());
        listed.ok().flatten().unwrap_or_else(|| Err(Error::shutting_down()))
    }
}

#[cfg(test)]
mod tests;
