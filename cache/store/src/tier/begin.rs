//! Start of a fill: room on the tier, a file, and the task that runs the fill.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use forebay_error::{Error, ErrorKind, Result, shown};
use forebay_source::Stat;
use forebay_uring::{DiskFile, Open};
use tokio::task::JoinHandle;

use super::allotment::TierAllotment;
use super::copy_errors::is_the_copys_fault;
use super::entry::ShardState;
use super::request::{ReservedRoom, Urgency};
use super::wanted::{Arrival, Wanted};
use super::{Class, Disk, Medium, Tier};
use crate::blocks::Blocks;
use crate::clock;
use crate::device;
use crate::directory::{Directory, object_key};
use crate::fill::{
    Accounting, DataFile, Destination, DiskTarget, Fill, FillRequest, FillSize, Target,
};
use crate::parts::Parts;
use crate::shard::{Body, Growth, Shard};

/// Attempts to make room again where the disk has less than the tier may hold: others write to it
/// at the same time.
const FULL_DISK_TRIES: u32 = 8;

impl Tier {
    /// Makes room for a shard and starts its fill. `patient`: waits for room if somebody waits for
    /// the shard.
    ///
    /// # Errors
    /// `Full` if there is no room and none can be made; the error of the device.
    pub(crate) async fn begin(
        &self,
        wanted: &Wanted,
        arrival: Arrival,
        patient: bool,
    ) -> Result<(Arc<Shard>, JoinHandle<()>)> {
        // Checked before the fetch: a shard that cannot be recorded cannot be kept.
        wanted.origin.check(wanted.tenant.as_deref())?;
        self.wait_until_removed(&wanted.name).await;
        self.check_name_is_free(wanted)?;
        let _opening = self.mark_opening(&wanted.name);
        let written = Arc::new(AtomicU64::new(0));
        let spending = self.spend(wanted.len, arrival.urgency(), &written)?;
        let (room, body, target) = self.place(wanted, arrival.urgency(), patient).await?;
        let growth = Growth::new();
        if let Arrival::Move { unpacked: true, .. } = arrival {
            growth.mark_unpacked();
        }
        // The bytes of a fetched shard will show its length.
        let len = if arrival.is_fetch() { wanted.stat.len } else { wanted.len };
        let parts = Parts::new(len, wanted.stat.binding);
        let space = room.space.clone();
        let shard = self.assemble(wanted, growth.clone(), body, Some(parts.clone()), space.clone());
        let mut table = self.table();
        let shard_and_object = (&shard, object_key(&wanted.origin));
        table.add_arriving(shard_and_object, space, &room, arrival.since());
        if self.0.shared.pins.has(shard.url()) {
            table.pin(shard.name());
        }
        drop(table);
        let request = FillRequest {
            source: arrival.source().unwrap_or_else(|| wanted.source.clone()),
            stat: Stat { len, ..wanted.stat.clone() },
            origin: wanted.origin.clone(),
            tenant: room.of.tenant.as_deref().map(str::to_owned),
            rank: wanted.rank.clone(),
            head: Mutex::new(if arrival.is_fetch() { wanted.head.take() } else { None }),
            since: arrival.since(),
        };
        let shares = &self.0.shared.shares;
        let accounting = Accounting {
            written,
            ..Accounting::new(
                wanted.stat.len,
                Some(self.0.tally.clone()),
                arrival.is_fetch().then(|| shares.clone()),
                self.0.shared.journal.clone(),
            )
        };
        let destination = self.destination(target, wanted, &room, &shard);
        let fill = Fill::new(request, destination, accounting, parts, growth.clone());
        // Each miss ends as a fill, whole or failed: so the counters show if any fetch is running.
        if arrival.is_fetch() {
            self.0.tally.misses.inc();
        }
        let (tier, arriving) = (self.clone(), shard.clone());
        let filling = tokio::spawn(async move {
            tier.run_fill(fill, arriving, arrival, spending).await;
            growth.settle();
        });
        Ok((shard, filling))
    }

    /// Rejects a shard whose name is taken by a copy that arrives or cannot be removed.
    fn check_name_is_free(&self, wanted: &Wanted) -> Result<()> {
        let table = self.table();
        let state = table.get(&wanted.name).map(|entry| entry.state());
        let why = match (table.is_stuck(&wanted.name), state) {
            (true, _) => "failed to remove an old copy",
            (_, Some(ShardState::Arriving)) => "the shard is already being fetched to this tier",
            _ => return Ok(()),
        };
        Err(Error::new(ErrorKind::Unavailable, why).at("tier", self.name()))
    }

    /// Takes bytes of the daily write allowance. A shard nobody waits for needs them to be left.
    fn spend(
        &self,
        bytes: u64,
        urgency: Urgency,
        written: &Arc<AtomicU64>,
    ) -> Result<WearSpending> {
        if let Some(mut wear) = self.wear() {
            let now = clock::now();
            if urgency == Urgency::Ahead && !wear.allows(bytes, now) {
                let what = "the tier's daily write allowance is used up";
                return Err(Error::new(ErrorKind::Full, what).at("tier", self.name()));
            }
            wear.spend(bytes, now);
        }
        Ok(WearSpending { tier: self.clone(), bytes, written: written.clone() })
    }

    /// Reserves room, and makes the place that the bytes go to.
    async fn place(
        &self,
        wanted: &Wanted,
        urgency: Urgency,
        patient: bool,
    ) -> Result<(ReservedRoom, Body, Target)> {
        match &self.0.medium {
            Medium::Disk(disk) => {
                let (room, target) = self.place_on_disk(disk, wanted, urgency, patient).await?;
                let file = target.file.clone();
                let body = self.on_device(disk, file);
                Ok((room, body, Target::Disk(target)))
            }
            Medium::Memory(arena) => {
                let room = self.make_room(wanted, urgency, patient).await?;
                let blocks = Arc::new(Blocks::new(arena.region()));
                Ok((room, Body::Memory(blocks.clone()), Target::Memory(blocks)))
            }
        }
    }

    fn destination(
        &self,
        target: Target,
        wanted: &Wanted,
        room: &ReservedRoom,
        shard: &Shard,
    ) -> Destination {
        let allotment = TierAllotment {
            tier: self.downgrade(),
            name: wanted.name.clone(),
            of: room.of.clone(),
            space: room.space.clone(),
        };
        let frames = match &self.0.medium {
            Medium::Disk(_) => self.0.shared.frames.clone(),
            Medium::Memory(arena) => arena.clone(),
        };
        Destination {
            target,
            frames,
            spare: self.0.shared.frames.clone(),
            allotment: Some(Arc::new(allotment)),
            tier: Some(self.name().into()),
            wears: self.class() != Class::Memory,
            fault: shard.lost.clone(),
        }
    }

    /// Room and a file for a shard; those of an unfinished fill, if one left them.
    async fn place_on_disk(
        &self,
        disk: &Disk,
        wanted: &Wanted,
        urgency: Urgency,
        patient: bool,
    ) -> Result<(ReservedRoom, DiskTarget)> {
        let directory = self.directory()?;
        let target = |file: DataFile, here| DiskTarget {
            engine: disk.engine.clone(),
            file,
            directory: directory.clone(),
            name: wanted.name.clone(),
            writes: disk.writes.clone(),
            bounce: disk.bounce.clone(),
            here,
        };
        if let Some((room, file, here)) = self.resume(disk, wanted).await? {
            return Ok((room, target(Arc::new(file.into()), here)));
        }
        self.check_directory(&directory, wanted).await?;
        for attempt in 1.. {
            let room = self.make_room(wanted, urgency, patient).await?;
            if self.is_created_late(disk, wanted) {
                return Ok((room, target(DataFile::default(), Vec::new())));
            }
            let create = Open::Create { len: wanted.len };
            let created = directory.open_data(&disk.engine, &wanted.name, create).await;
            let error = match created {
                Ok(file) => return Ok((room, target(Arc::new(file.into()), Vec::new()))),
                Err(error) => error,
            };
            let again = match error.kind() {
                // Others took the disk space: shards of this tier must leave, or the shard goes to
                // another tier.
                ErrorKind::Full => {
                    drop(room);
                    self.0.budget.set_limit(self.0.budget.used());
                    true
                }
                // Data without an entry: left by a removal that failed.
                ErrorKind::Invalid => {
                    let name = wanted.name.clone();
                    self.on_disk(move |directory| directory.remove(&name)).await.is_ok()
                }
                _ => false,
            };
            if !again || attempt == FULL_DISK_TRIES {
                match error.kind() {
                    ErrorKind::Unavailable | ErrorKind::PermissionDenied => {
                        self.note_failure(&error);
                    }
                    ErrorKind::Full => self.note_full(&error),
                    _ => {}
                }
                // The disk has no space, although the budget has.
                return Err(Error::new(ErrorKind::Unavailable, error.to_string())
                    .at("url", &wanted.origin.url)
                    .at("tier", self.name()));
            }
        }
        unreachable!("the last attempt returns")
    }

    /// Returns true if the commit creates the file: it takes longer than all else that a sample of
    /// a small shard waits for. A full disk shows sooner, so that other shards make room.
    fn is_created_late(&self, disk: &Disk, wanted: &Wanted) -> bool {
        FillSize::of(&wanted.stat, &wanted.origin.url) == FillSize::Small
            && disk.key.is_none()
            && !self.0.health.is_full()
    }

    /// Checks that the directory is still the opened one, and updates the limit of the tier.
    async fn check_directory(&self, directory: &Arc<Directory>, wanted: &Wanted) -> Result<()> {
        if directory.is_checked() {
            return Ok(());
        }
        let of = directory.clone();
        let checked = tokio::task::spawn_blocking(move || {
            of.check_identity().map_err(|error| (true, error))?;
            of.extent().map_err(|error| (false, error))
        });
        let checked = match device::answer(checked).await {
            Ok(checked) => checked.map_err(|_| Error::shutting_down())?,
            Err(error) => Err((false, error)),
        };
        match checked {
            Ok(extent) => {
                directory.note_check();
                self.limit(extent.available);
                Ok(())
            }
            Err((is_another, error)) => {
                match is_another {
                    true => self.log_condition(
                        self.0.health.vanished(&error, Instant::now()),
                        Some(&error),
                    ),
                    false => self.note_failure(&error),
                }
                Err(error.at("url", &wanted.origin.url))
            }
        }
    }

    /// Room, file and checksums that an unfinished fill left of this shard, if one did.
    async fn resume(
        &self,
        disk: &Disk,
        wanted: &Wanted,
    ) -> Result<Option<(ReservedRoom, DiskFile, Vec<Option<u32>>)>> {
        let name = &wanted.name;
        let Some(room) = self.table().take_partial(name) else { return Ok(None) };
        let error = match self.open_partial(disk, wanted).await {
            Ok((file, here)) => return Ok(Some((room, file, here))),
            Err(error) => error,
        };
        if is_the_copys_fault(&error) {
            let url = &wanted.origin.url;
            let (url, dataset) = (shown(url), self.0.shared.dataset_of(url));
            let ((session, job), tenant) = (wanted.rank.asker(), wanted.tenant.as_deref());
            let tier = self.name();
            tracing::warn!(session, job, tenant, dataset, url, tier, %error, "a partial shard cannot be resumed");
            let of = name.clone();
            if self.on_disk(move |directory| directory.remove(&of)).await.is_ok() {
                return Ok(None);
            }
        }
        self.table().add_partial((name, object_key(&wanted.origin)), room.of, room.space);
        Err(error.at("url", &wanted.origin.url).at("tier", self.name()))
    }

    async fn open_partial(
        &self,
        disk: &Disk,
        wanted: &Wanted,
    ) -> Result<(DiskFile, Vec<Option<u32>>)> {
        let name = wanted.name.clone();
        let partial = self.on_disk(move |directory| directory.read_partial(&name)).await?;
        if (&partial.origin, partial.len) != (&wanted.origin, wanted.len) {
            return Err(Error::new(ErrorKind::Corrupt, "the record names another shard"));
        }
        let file = self.directory()?.open_data(&disk.engine, &wanted.name, Open::Update).await?;
        Ok((file, partial.blocks))
    }
}

/// Bytes taken of the daily write allowance. On drop, those that were not written return to it.
pub(super) struct WearSpending {
    tier: Tier,
    bytes: u64,
    written: Arc<AtomicU64>,
}

impl Drop for WearSpending {
    fn drop(&mut self) {
        if let Some(mut wear) = self.tier.wear() {
            let written = self.written.load(Ordering::Relaxed);
            wear.give_back(self.bytes.saturating_sub(written));
            // An unpacked shard may be larger than estimated.
            wear.spend(written.saturating_sub(self.bytes), clock::now());
        }
    }
}
