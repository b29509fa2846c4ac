//! Directory of a tier: opened, listed, checked, closed and opened again.
//!
//! A directory is used only while it is the opened one. A directory mounted over it or put in
//! its place belongs to somebody else.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result, shown};
use forebay_uring::{Arena, Open, Region, Span};
use tokio::sync::watch;

use super::disk::Attach;
use super::entry::ShardState;
use super::health::{Condition, Health};
use super::limits::whole_parts;
use super::table::ShardTable;
use super::wear::Wear;
use super::{Class, Disk, Medium, Mode, Tier, TierConfig, TierInner, TierLimits};
use crate::budget::{Budget, Space};
use crate::clock;
use crate::device;
use crate::directory::{Directory, Found, ShardName};
use crate::repeats::Repeats;
use crate::shared_state::SharedState;
use crate::shares::{NOBODY, Provenance};
use crate::traffic::Traffics;

/// Bytes that a probe writes and reads back: one block of the strictest disk.
const PROBE_BYTES: usize = forebay_uring::GRANULE;

/// Difference of clocks that is not worth a warning: NTP slews as much.
const CLOCK_SLACK: Duration = Duration::from_secs(60);

/// Time to save hints at the end, or before a tier is disabled.
const SAVE_TIMEOUT: Duration = Duration::from_secs(2);

impl Tier {
    /// Opens a tier, and starts to list it.
    ///
    /// # Errors
    /// If its disk is smaller than the capacity, or there is not enough memory. A directory that
    /// cannot be used makes the tier down.
    pub(crate) async fn open(
        config: TierConfig,
        state: Option<&Path>,
        shared: Arc<SharedState>,
    ) -> Result<Self> {
        let mut class = config.class;
        let limits = config.limits();
        let (size, medium, wear) = match config.disk {
            None => {
                let capacity = whole_parts(config.capacity);
                let region =
                    memory(capacity).await.map_err(|error| error.at("tier", &config.name))?;
                (limits.in_memory(capacity), Medium::Memory(Arena::new(region)), None)
            }
            Some(disk) => {
                if disk.writes_per_day == Some(0) {
                    let what = "writes_per_day = 0 allows no writes: remove the tier";
                    return Err(Error::new(ErrorKind::Invalid, what).at("tier", &config.name));
                }
                let wear = disk.writes_per_day.map(|bytes| Wear::new(bytes, clock::now()));
                let disk = Disk::new(disk, state).await?;
                // A configuration that cannot hold is an error; anything else may pass.
                let size = match disk.open(Attach::AtStart).await {
                    Ok(opened) => {
                        let size = limits.on(disk.path(), opened.extent, 0)?;
                        if opened.extent.in_memory && class != Class::Memory {
                            let (tier, what) = (config.name.as_str(), "the tier counts as memory");
                            tracing::warn!(tier, "the directory lies in memory: {what}");
                            class = Class::Memory;
                        }
                        disk.set(Ok(opened.directory));
                        size
                    }
                    Err(error) => {
                        disk.set(Err(error));
                        limits.absent()
                    }
                };
                (size, Medium::Disk(Box::new(disk)), wear.map(Mutex::new))
            }
        };
        let tier = Self(Arc::new(TierInner {
            name: config.name,
            class,
            medium,
            size: Mutex::new(size),
            relieving: AtomicBool::new(false),
            budget: Budget::new(size.capacity),
            table: Mutex::new(ShardTable::new(shared.shares.current(), shared.forecast.clone())),
            staged: Mutex::default(),
            scanned: watch::Sender::new(None),
            tally: Arc::default(),
            traffic: Traffics::new(shared.waits.clone()),
            health: Health::new(),
            unkept: Repeats::default(),
            mode: AtomicU8::new(Mode::Enabled as u8),
            wear,
            shared,
        }));
        match tier.absence() {
            None => {
                tier.resume_wear();
                tier.list();
            }
            Some(error) => tier.note_absence(&error),
        }
        Ok(tier)
    }

    /// Notes that there is no directory to use.
    fn note_absence(&self, error: &Error) {
        self.0.scanned.send_replace(Some(Err(error.clone())));
        self.log_condition(self.0.health.vanished(error, Instant::now()), Some(error));
    }

    /// Takes over the write allowance that the last daemon left.
    fn resume_wear(&self) {
        let left = self.directory().ok().and_then(|directory| directory.load_wear());
        if let (Some(mut wear), Some((left, at))) = (self.wear(), left) {
            wear.resume(left, at, clock::now());
        }
    }

    /// Opens the directory, and lists it.
    ///
    /// # Errors
    /// If it cannot be used.
    async fn attach(&self, how: Attach) -> Result<()> {
        let Some(disk) = self.disk() else { return Ok(()) };
        let opened = disk.open(how).await?;
        let now = self.size();
        let limits = TierLimits {
            name: self.name().to_owned(),
            capacity: now.capacity,
            keep_free: now.keep_free,
            watermarks: now.watermarks,
        };
        let size = limits.on(disk.path(), opened.extent, self.0.budget.used())?;
        self.set_limits(size);
        self.0.shared.pins.adopt(opened.pinned);
        disk.set(Ok(opened.directory));
        self.resume_wear();
        self.0.scanned.send_replace(None);
        self.list();
        Ok(())
    }

    /// Starts to list the directory.
    fn list(&self) {
        match self.directory() {
            Ok(directory) => {
                let tier = self.clone();
                tokio::task::spawn_blocking(move || tier.scan(&directory));
            }
            // Memory starts empty.
            Err(_) => drop(self.0.scanned.send_replace(Some(Ok(())))),
        }
    }

    /// Lists the directory again if the last listing failed: until it succeeds, nothing is added.
    fn list_again(&self) {
        let failed = |listed: &mut Option<Result<()>>| {
            let failed = matches!(listed, Some(Err(_)));
            if failed {
                *listed = None;
            }
            failed
        };
        if self.mode() != Mode::Disabled && self.0.scanned.send_if_modified(failed) {
            self.list();
        }
    }

    fn scan(&self, directory: &Directory) {
        let recovered = directory.recover().and_then(|found| {
            let staged = directory.recover_staged(&self.staged_names())?;
            Ok((found, staged))
        });
        let listed = match recovered {
            Ok((found, staged)) => {
                let tier = self.name();
                tracing::info!(tier, shards = found.whole.len(), "found whole shards on the tier");
                let whole = by_use(directory, found.whole);
                let mut table = self.table();
                if !self.directory().is_ok_and(|now| std::ptr::eq(&*now, directory)) {
                    // Closed meanwhile: its content no longer belongs to this tier.
                    return;
                }
                let shares = self.0.shared.shares.current();
                let budgets = shares.budgets(NOBODY);
                table.newer = Some(Space::enter(&self.0.budget, budgets, found.newer_bytes));
                self.enter_staged(staged);
                // Shards used before the listing ended are the latest used.
                let early = table.names_by_use();
                let latest = clock::now() + CLOCK_SLACK;
                let ahead = whole.iter().filter(|shard| shard.written > latest).count();
                if ahead > 0 {
                    let what = "shards were written under a clock ahead of this one";
                    tracing::warn!(tier, shards = ahead, "{what}: their ages count from now");
                }
                for shard in whole {
                    self.enter(&mut table, shard, ShardState::Whole);
                }
                for name in &early {
                    table.record_use(name);
                }
                for shard in found.partial {
                    self.enter(&mut table, shard, ShardState::Partial);
                }
                table.find_unwanted(self.name());
                Ok(())
            }
            Err(error) => {
                tracing::error!(tier = self.name(), %error, "failed to list the tier; it accepts no shards");
                Err(error)
            }
        };
        self.0.scanned.send_replace(Some(listed));
        // The rules may not want some of the shards here.
        self.0.shared.moves.notify_one();
    }

    /// Looks for this one shard while the directory is still being listed, so that its readers need
    /// not wait for the rest.
    pub(crate) async fn probe(&self, name: &ShardName) -> Result<()> {
        if self.0.scanned.borrow().is_some() {
            return Ok(());
        }
        let of = name.clone();
        if let Some(shard) = self.on_disk(move |directory| Ok(directory.probe(&of))).await? {
            self.enter(&mut self.table(), shard, ShardState::Whole);
        }
        Ok(())
    }

    /// Adds a found shard, unless it is known already or has left since.
    fn enter(&self, table: &mut ShardTable, found: Found, state: ShardState) {
        if table.get(&found.name).is_none() && !table.leaving.contains_key(&found.name) {
            tracing::debug!(url = shown(&found.url), "found a shard");
            let (name, is_pinned) = (found.name.clone(), self.0.shared.pins.has(&found.url));
            let of = Provenance { url: found.url.into(), tenant: found.tenant.map(Arc::from) };
            let shares = self.0.shared.shares.current();
            // The table charges the right owner.
            let space = Space::enter(&self.0.budget, shares.budgets(NOBODY), found.bytes);
            table.add_found(
                (found.name, found.object),
                of,
                space,
                (found.written.min(clock::now()), state),
            );
            if is_pinned {
                table.pin(&name);
            }
        }
    }

    /// Name under which a shard is stored here.
    pub(crate) fn name_for(&self, name: &ShardName) -> ShardName {
        match self.directory() {
            Ok(directory) => directory.name_for(name),
            Err(_) => name.clone(),
        }
    }

    /// Saves the order of use and the write allowance for the next start.
    pub(crate) async fn save(&self) {
        // Before the listing is over, the saved order is the better one.
        if !self.is_listed() {
            return;
        }
        if self.0.health.condition() != Condition::Normal {
            return;
        }
        let order = self.table().hashes_by_use();
        let now = clock::now();
        let left = self.wear().map(|mut wear| wear.left(now));
        let saved = self.on_disk(move |directory| {
            directory.save_recency(&order)?;
            left.map_or(Ok(()), |left| directory.save_wear(left, now))
        });
        match saved.await {
            Err(error) if error.kind() != ErrorKind::Closed => {
                tracing::warn!(tier = self.name(), %error, "failed to store the order in which shards were used");
            }
            _ => {}
        }
    }

    /// Saves the same, but waits for no slow device: it is a hint.
    pub(crate) async fn save_briefly(&self) {
        if tokio::time::timeout(SAVE_TIMEOUT, self.save()).await.is_err() {
            tracing::warn!(tier = self.name(), "the device does not take the order of use in time");
        }
    }

    /// Checks the tier: is the directory still there, how much of the disk is free, has a failed
    /// device recovered?
    pub(crate) async fn look_after(&self) {
        let Some(disk) = self.disk() else { return };
        if !self.is_attached() {
            if self.mode() != Mode::Disabled
                && let Err(error) = self.attach(Attach::Again).await
            {
                self.note_absence(&error);
            }
            return;
        }
        let Ok(directory) = self.directory() else { return };
        let looked = disk.look(move || {
            directory.check_identity()?;
            directory.extent()
        });
        match looked.await {
            Ok(extent) => self.limit(extent.available),
            Err(error) => {
                let changed = match device::is_silent(&error) {
                    true => self.0.health.silent(&error, Instant::now()),
                    false => self.0.health.vanished(&error, Instant::now()),
                };
                self.log_condition(changed, Some(&error));
                return;
            }
        }
        if let Some(shards) = self.0.unkept.due(Instant::now()) {
            tracing::warn!(tier = self.name(), shards, "failed to store shards");
        }
        if self.0.health.condition() == Condition::Normal && !self.0.health.is_full() {
            // A device with few failures may succeed now.
            self.remove_stuck();
            self.list_again();
            return;
        }
        let Some(probed) = self.probe_device(disk).await else { return };
        let probed = match probed {
            // A full device still answers, if it is read.
            Err(error) if error.kind() == ErrorKind::Full => {
                self.note_full(&error);
                self.read_device(disk).await
            }
            probed => {
                if probed.is_ok() && self.0.health.has_room(Instant::now()) {
                    tracing::info!(tier = self.name(), "the disk has room again");
                }
                probed
            }
        };
        let changed = self.0.health.probed(&probed, Instant::now());
        self.log_condition(changed, probed.as_ref().err());
        if changed == Some(Condition::Normal) {
            self.remove_stuck();
            self.list_again();
        }
    }

    /// Sets the usable bytes, given the free bytes of the disk.
    pub(super) fn limit(&self, available: u64) {
        if self.disk().is_none() {
            return;
        }
        let ours = self.0.budget.used().saturating_add(available);
        self.0.budget.set_limit(ours.saturating_sub(self.size().left_free));
        if self.0.budget.used() > self.0.budget.limit() {
            self.0.shared.moves.notify_one();
        }
    }

    /// Probes the device by a write and a read, unless an earlier probe has not ended: it goes on
    /// without this call. `None` without memory, which says nothing about the device.
    async fn probe_device(&self, disk: &Disk) -> Option<Result<()>> {
        self.probe_by(disk, |tier, span| async move { tier.try_device(span).await }).await
    }

    /// Probes a full device by a read alone.
    async fn read_device(&self, disk: &Disk) -> Result<()> {
        let read = self.probe_by(disk, |tier, span| async move {
            let (Some(disk), directory) = (tier.disk(), tier.directory()?) else { return Ok(()) };
            // The one file that every cache has.
            let file = disk.engine.open(&directory.format(), Open::Read).await?;
            disk.engine.read(&file, 0, span).await.result.map(drop)
        });
        read.await.unwrap_or_else(|| Err(device::silent()))
    }

    async fn probe_by<P>(
        &self,
        disk: &Disk,
        probe: impl FnOnce(Self, Span) -> P,
    ) -> Option<Result<()>>
    where
        P: Future<Output = Result<()>> + Send + 'static,
    {
        let Ok(turn) = disk.probing.clone().try_acquire_owned() else {
            return Some(Err(device::silent()));
        };
        let span = self.0.shared.frames.lease(PROBE_BYTES).await.ok()?;
        let probe = probe(self.clone(), span);
        let probing = tokio::spawn(async move {
            let _turn = turn;
            probe.await
        });
        let answered = device::answer(probing).await;
        Some(answered.and_then(|ended| ended.map_err(|_| Error::shutting_down())?))
    }

    /// Writes a block, syncs it and reads it back.
    async fn try_device(&self, mut span: Span) -> Result<()> {
        let (Some(disk), directory) = (self.disk(), self.directory()?) else { return Ok(()) };
        let path = directory.root().join("PROBE");
        let (files, stale) = (disk.files.clone(), path.clone());
        let cleared = tokio::task::spawn_blocking(move || files.remove(&stale)).await;
        // The next line reports a file that cannot be removed.
        drop(cleared);
        let file = disk.engine.open(&path, Open::Create { len: PROBE_BYTES as u64 }).await?;
        span.fill(0xf0);
        let done = disk.engine.write(&file, 0, span).await;
        done.result?;
        disk.engine.sync_data(&file).await?;
        let mut span = done.span;
        span.fill(0);
        let done = disk.engine.read(&file, 0, span).await;
        if done.result? != PROBE_BYTES || done.span.iter().any(|byte| *byte != 0xf0) {
            return Err(Error::new(ErrorKind::Unavailable, "a probe read back different bytes"));
        }
        let files = disk.files.clone();
        let removed = tokio::task::spawn_blocking(move || files.remove(&path)).await;
        removed
            .map_err(|_| Error::shutting_down())?
            .map_err(|error| Error::from_io("remove a probe", &error))
    }

    /// Tries again to remove copies that could not be removed. Until that succeeds, their names
    /// stay taken.
    fn remove_stuck(&self) {
        let Ok(directory) = self.directory() else { return };
        let names: Vec<_> = self.table().stuck.iter().map(|entry| entry.name().clone()).collect();
        if names.is_empty() {
            return;
        }
        let tier = self.clone();
        tokio::task::spawn_blocking(move || {
            for name in names {
                if directory.remove(&name).is_ok() {
                    tier.table().stuck.retain(|entry| *entry.name() != name);
                }
            }
            tier.0.budget.wake();
        });
    }

    /// Sets the tier to draining: it is only read, and its shards move or are evicted.
    ///
    /// # Errors
    /// `Invalid` if it is disabled.
    pub(crate) fn drain(&self) -> Result<()> {
        if self.mode() == Mode::Disabled {
            return Err(Error::new(ErrorKind::Invalid, "the tier is disabled and cannot be read")
                .at("tier", self.name())
                .advise(format!("run `forebay tier enable {}` first", self.name())));
        }
        self.set_mode(Mode::Draining);
        Ok(())
    }

    /// Closes the directory: its device may be removed once no reader is left.
    pub(crate) async fn disable(&self) {
        self.save_briefly().await;
        self.set_mode(Mode::Disabled);
        self.table().clear();
        if let Some(disk) = self.disk() {
            let gone = Error::new(ErrorKind::Closed, "the tier is disabled");
            disk.set(Err(gone.clone()));
            self.0.scanned.send_replace(Some(Err(gone.at("tier", self.name()))));
        }
    }

    /// Uses the tier again, and lists the directory anew if it was closed.
    ///
    /// # Errors
    /// As [`Tier::open`].
    pub(crate) async fn enable(&self) -> Result<()> {
        if !self.is_attached() {
            let how = match self.mode() {
                // A new directory would lie on the disk of the mount point.
                Mode::Disabled => Attach::Existing,
                // An admin knows that another disk is mounted.
                Mode::Enabled | Mode::Draining => Attach::Anywhere,
            };
            self.attach(how).await?;
        }
        self.set_mode(Mode::Enabled);
        Ok(())
    }
}

/// Memory of a tier without a disk. Its descriptor may leave the process.
async fn memory(capacity: u64) -> Result<Arc<Region>> {
    if capacity == 0 {
        let what = "a memory tier is smaller than one part of 4 MiB";
        return Err(Error::new(ErrorKind::Invalid, what));
    }
    let bytes = usize::try_from(capacity).unwrap_or(usize::MAX);
    let make = move || Region::create_sealed("forebay-memory-tier", bytes);
    let made = tokio::task::spawn_blocking(make);
    made.await.map_err(|_| Error::shutting_down())?
}

/// Sorts shards by their last use under the last daemon; shards it did not know come last.
fn by_use(directory: &Directory, mut shards: Vec<Found>) -> Vec<Found> {
    let order: HashMap<u64, usize> = directory.load_recency().into_iter().zip(0..).collect();
    // Stable: shards without a saved use stay sorted by the time they were written.
    shards.sort_by_key(|found| order.get(&found.name.hash()).copied().unwrap_or(usize::MAX));
    shards
}
