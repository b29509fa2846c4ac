//! A tier: one place where shards rest, its device, and what is known of both.
//!
//! One rule: a tier answers for its own bytes only. Which tier a shard comes to, and from which it is
//! read, is the store's to say; whether it may come, stay or must go is decided here.
//!
//! ```text
//!   Tier
//!     ├─ Medium ── a directory and its engine, or memory
//!     ├─ Table ── who is here, who may stay            table.rs, shelf.rs
//!     ├─ Budget, Wear ── what may be kept and written   room.rs, growth.rs, wear.rs
//!     └─ Health, Mode ── what the device does, what the admin wants
//! ```

mod attach;
mod effects;
mod growth;
mod health;
mod leftover;
mod limits;
mod open;
mod pinned;
mod presence;
mod room;
mod scrub;
mod shelf;
mod table;
mod tally;
mod wear;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::{Instant, SystemTime};

use forebay_error::{Error, ErrorKind, Result};
use forebay_histogram::Histogram;
use forebay_uring::{Arena, Engine, EngineReport, PageReport};
use lru::LruCache;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use utoipa::ToSchema;

use crate::budget::Budget;
use crate::directory::{Directory, ShardName};
use crate::files::Files;
use crate::fill::Flights;
use crate::forecast::Forecast;
use crate::journal::Journal;
use crate::ledger::Ledger;
use crate::pins::Pins;
use crate::shard::Shard;
use crate::shares::{Charge, InForce};
use crate::store::Identity;
use crate::traffic::{DatasetTraffic, Traffic, Traffics};
pub use effects::{Effects, ShareEffect, TierEffect};
pub(crate) use growth::Allotment;
pub use health::Condition;
use health::Health;
pub(crate) use leftover::above_quota;
use limits::Size;
pub use limits::TierLimits;
pub(crate) use limits::reconfigure;
pub(crate) use open::{Arrival, Opening, Wanted, is_the_copys_fault, shutting_down};
pub use presence::Kept;
pub use room::Urgency;
pub use scrub::{Flaw, Scrub};
pub use table::OPEN_SHARDS;
use table::Table;
pub(crate) use table::{Judged, OpenShards, State};
pub(crate) use tally::Tally;
pub use tally::{Counters, Holding, Holdings, Past};
use wear::Wear;

/// What a tier is made of, the fastest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Memory of the daemon's.
    Memory,
    /// NVMe drives.
    Nvme,
    /// SATA and SAS solid-state drives.
    Ssd,
    /// Spinning disks.
    Hdd,
}

/// What an admin wants of a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// It is used.
    Enabled,
    /// It is read; nothing new comes, and what is there moves to other tiers or goes.
    Draining,
    /// It is let go of: its device may be taken away.
    Disabled,
}

/// Between which shares of its capacity a tier is kept, ahead of need.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Watermarks {
    /// Down to here shards leave …
    pub low: f64,
    /// … once this is passed.
    pub high: f64,
}

/// How a tier is set up.
#[derive(Debug, Clone)]
pub struct TierConfig {
    /// What admins call it.
    pub name: String,
    /// What it is made of.
    pub class: Class,
    /// Bytes it may hold, at most.
    pub capacity: u64,
    /// Where given, shards leave ahead of need.
    pub watermarks: Option<Watermarks>,
    /// Where it lies; none for memory.
    pub disk: Option<DiskConfig>,
}

/// Where a tier lies.
#[derive(Debug, Clone)]
pub struct DiskConfig {
    /// Its directory, made if missing.
    pub path: PathBuf,
    /// What of the file system is left to others.
    pub keep_free: KeepFree,
    /// Bytes that may be written a day without anybody waiting for them.
    pub writes_per_day: Option<u64>,
    /// What moves its bytes: its device's own.
    pub engine: Engine,
    /// What changes its directory.
    pub files: Arc<dyn Files>,
}

/// What of a file system is left to others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum KeepFree {
    /// So many bytes.
    Bytes(u64),
    /// This share of its size, 0 to 1.
    Share(f64),
}

impl KeepFree {
    fn of(self, total: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Share(share) => (total as f64 * share) as u64,
        }
    }
}

/// What all tiers of a store share.
pub(crate) struct Commons {
    pub(crate) frames: Arena,
    /// The right to run a fill.
    pub(crate) flights: Flights,
    /// By the rules that count now.
    pub(crate) shares: Arc<InForce>,
    /// What admins keep, beside what data sets' rules keep.
    pub(crate) pins: Pins,
    /// What jobs said they will read.
    pub(crate) forecast: Arc<Forecast>,
    /// Wakes whoever moves shards between tiers.
    pub(crate) moves: tokio::sync::Notify,
    /// Shards that no tier holds, and are read from their origin.
    pub(crate) through: Mutex<OpenShards>,
    /// What their reads come to.
    pub(crate) traffic: Traffics,
    /// How many there were.
    pub(crate) past: Tally,
    /// How long samples were waited for that had not arrived, whatever tier they come to.
    pub(crate) waits: Arc<Histogram>,
    /// How long shards took to come from their origin, until a tier had them for good.
    pub(crate) fetches: Histogram,
    /// What origins said of objects.
    pub(crate) identities: Mutex<LruCache<(String, String), Identity>>,
    /// Bytes of compressed shards that were unpacked here once, or that they came to at least.
    pub(crate) unpacked: Mutex<LruCache<ShardName, u64>>,
    /// What the largest tier may hold.
    pub(crate) largest_tier: AtomicU64,
    /// Something is here that is to go by the rules, and could not yet.
    pub(crate) leftover: AtomicBool,
    /// What fetching came to, and for whom.
    pub(crate) ledger: Ledger,
    /// What comes in, as it does.
    pub(crate) journal: Journal,
}

/// One tier. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Tier(Arc<Inner>);

/// A tier that may be gone.
#[derive(Clone)]
pub(crate) struct WeakTier(Weak<Inner>);

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

struct Inner {
    name: String,
    class: Class,
    medium: Medium,
    size: Mutex<Size>,
    /// The high one was passed, and the low is not reached yet.
    relieving: AtomicBool,
    budget: Arc<Budget>,
    table: Mutex<Table>,
    /// How listing the directory went, once it is over.
    scanned: watch::Sender<Option<Result<()>>>,
    tally: Arc<Tally>,
    traffic: Traffics,
    health: Health,
    mode: AtomicU8,
    wear: Option<Mutex<Wear>>,
    commons: Arc<Commons>,
}

enum Medium {
    Disk(Disk),
    Memory(Arena),
}

struct Disk {
    path: PathBuf,
    /// What it lies on, as the kernel calls it.
    device: Option<String>,
    engine: Engine,
    files: Arc<dyn Files>,
    /// None while it is disabled.
    directory: RwLock<Option<Arc<Directory>>>,
}

/// What a tier is and does now.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct TierReport {
    /// What admins call it.
    pub name: String,
    /// What it is made of.
    pub class: Class,
    /// Its directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The block device under it, as the kernel calls it, such as `nvme0n1p1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// What the admin wants of it.
    pub mode: Mode,
    /// What is thought of its device.
    pub condition: Condition,
    /// Why, if it is not normal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// What it counted.
    #[serde(flatten)]
    pub counters: Counters,
    /// Bytes for batches of each data set.
    pub traffic: Vec<DatasetTraffic>,
    /// Bytes that may be written now without anybody waiting for them; negative if overdrawn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writes_left_bytes: Option<i64>,
    /// What moves its bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineReport>,
    /// Its memory by page size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pages: Option<PageReport>,
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

    /// Its engine and directory's path, if it has them.
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

    /// Whether shards may be read from it.
    pub(crate) fn is_readable(&self) -> bool {
        self.mode() != Mode::Disabled
            && matches!(self.0.health.condition(), Condition::Normal | Condition::ReadOnly)
    }

    /// Whether shards may be read from it and removed.
    pub(crate) fn is_normal(&self) -> bool {
        self.mode() != Mode::Disabled && self.0.health.condition() == Condition::Normal
    }

    /// Whether shards may come to it.
    pub(crate) fn is_writable(&self) -> bool {
        self.mode() == Mode::Enabled && self.0.health.condition() == Condition::Normal
    }

    /// Whether so many bytes may be written that nobody waits for.
    pub(crate) fn allows_writing(&self, bytes: u64) -> bool {
        self.wear().is_none_or(|mut wear| wear.allows(bytes, SystemTime::now()))
    }

    fn wear(&self) -> Option<MutexGuard<'_, Wear>> {
        let wear = self.0.wear.as_ref()?;
        Some(wear.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// How a shard of this tier is doing.
    pub(crate) fn state(&self, name: &ShardName) -> Option<State> {
        let table = self.table();
        table.get(name).filter(|_| !table.is_stale(name)).map(table::Entry::state)
    }

    pub(crate) fn in_use(&self, name: &ShardName) -> Option<(Arc<Shard>, State)> {
        self.table().in_use(name)
    }

    pub(crate) fn claim(&self, name: &ShardName) {
        self.table().claim(name);
    }

    pub(crate) fn unclaim(&self, name: &ShardName) {
        self.table().unclaim(name);
        self.let_go();
    }

    /// Jobs said that they will read other shards than before.
    pub(crate) fn look_forward(&self) {
        self.table().look_forward();
    }

    pub(crate) fn used(&self, name: &ShardName) -> u32 {
        self.table().used(name)
    }

    /// What was counted since the start.
    pub(crate) fn counters(&self) -> Counters {
        let shards = self.table().len();
        self.0.tally.read(&self.0.budget, self.0.traffic.sums(), shards)
    }

    /// How many shards are charged to whom.
    pub(crate) fn shards(&self) -> Vec<(Charge, usize)> {
        self.table().shards()
    }

    pub(crate) fn traffic(&self) -> &Traffics {
        &self.0.traffic
    }

    /// What reads of a shard here are counted for.
    fn traffic_of(&self, url: &str) -> Arc<Traffic> {
        self.0.traffic.of(&self.0.commons.dataset_of(url))
    }

    pub(crate) fn report(&self) -> TierReport {
        let (condition, why) = self.0.health.verdict();
        let (path, engine, pages) = match &self.0.medium {
            Medium::Disk(disk) => {
                (Some(disk.path.display().to_string()), Some(disk.engine.report()), None)
            }
            Medium::Memory(arena) => (None, None, Some(arena.region().pages())),
        };
        TierReport {
            name: self.0.name.clone(),
            class: self.0.class,
            path,
            device: self.device().map(str::to_owned),
            mode: self.mode(),
            condition,
            why,
            counters: self.counters(),
            traffic: self.0.traffic.report(),
            writes_left_bytes: self.wear().map(|mut wear| wear.left(SystemTime::now())),
            engine,
            pages,
        }
    }

    /// The device failed an operation.
    pub(crate) fn trouble(&self, error: &Error) {
        self.0.tally.io_errors.inc();
        let changed = match error.kind() {
            ErrorKind::Unavailable => self.0.health.failed(error, Instant::now()),
            // A file system that was remounted read-only says so by EROFS.
            ErrorKind::PermissionDenied => self.0.health.refused_writes(error),
            _ => None,
        };
        self.tell(changed, Some(error));
    }

    /// Says aloud, once, what has become of the device.
    fn tell(&self, changed: Option<Condition>, why: Option<&Error>) {
        let Some(condition) = changed else { return };
        let (tier, device) = (self.name(), self.device());
        match (condition, why) {
            (Condition::Normal, _) => tracing::info!(tier, device, "the device is used again"),
            (_, Some(error)) => {
                tracing::error!(tier, device, ?condition, %error, "the device fails");
            }
            (_, None) => tracing::error!(tier, device, ?condition, "the device fails"),
        }
        self.0.budget.wake();
    }

    /// A reader met a failure of the device: the copy goes, the reader does without.
    pub(crate) fn lost(&self, shard: &Shard, error: &Error) {
        self.trouble(error);
        // Its index is worth keeping: should no tier take it, it need not be fetched for that. Of what was
        // compressed, the origin has no ranges to give: it must be fetched anew.
        if shard.progress().counted && !shard.growth.is_unpacked() {
            self.0.commons.read_through(shard);
        }
        let mut table = self.table();
        let space = shard.home.as_ref().map(|home| Arc::downgrade(&home.space));
        let is_there = space.is_some_and(|space| {
            table.get(shard.name()).is_some_and(|entry| entry.is_copy(&space))
        });
        if is_there {
            drop(self.leave(&mut table, shard.name(), false));
        }
    }

    /// The block device it lies on, if that is known.
    fn device(&self) -> Option<&str> {
        self.disk()?.device.as_deref()
    }

    fn disk(&self) -> Option<&Disk> {
        match &self.0.medium {
            Medium::Disk(disk) => Some(disk),
            Medium::Memory(_) => None,
        }
    }

    /// The directory, which a disabled tier and one of memory do not have.
    fn directory(&self) -> Result<Arc<Directory>> {
        let directory = self
            .disk()
            .and_then(|disk| disk.directory.read().unwrap_or_else(PoisonError::into_inner).clone());
        directory.ok_or_else(|| {
            Error::new(ErrorKind::Closed, "the tier is not attached").at("tier", self.name())
        })
    }

    /// Does what blocks on the directory, on a thread that may.
    pub(crate) async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Directory) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let directory = self.directory()?;
        let done = tokio::task::spawn_blocking(move || work(&directory)).await;
        done.map_err(|_| shutting_down())?
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether every shard it holds is known, and no version of this one is among them.
    pub(crate) fn certainly_lacks(&self, name: &ShardName) -> bool {
        let is_listed = matches!(*self.0.scanned.borrow(), Some(Ok(())));
        is_listed && !self.table().has_label(name)
    }

    /// Waits until everything the directory held at the start is known.
    ///
    /// # Errors
    /// If it could not be listed: what is on the disk is not known then, and nothing may be added.
    pub(crate) async fn scanned(&self) -> Result<()> {
        let mut scanned = self.0.scanned.subscribe();
        let listed = scanned.wait_for(Option::is_some).await.map(|listed| listed.clone());
        listed.ok().flatten().unwrap_or_else(|| Err(shutting_down()))
    }
}
