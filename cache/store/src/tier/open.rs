//! How a shard comes to a tier, is opened there, and leaves.
//!
//! One rule: a fill belongs to those who wait for its samples. A device that fails under it loses the
//! copy, not the samples: the fill goes on without it.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, Weak};
use std::time::{Instant, SystemTime};

use async_trait::async_trait;
use forebay_error::{Error, ErrorKind, Result, shown};
use forebay_shard::{Origin, Sidecar};
use forebay_source::{Binding, Rank, Source, Stat, Stretch};
use forebay_uring::Open;
use futures::FutureExt;
use futures::future::Shared;
use tokio::sync::SetOnce;
use tokio::task::JoinHandle;

use super::growth::Allotment;
use super::room::{Room, Urgency};
use super::table::{Entry, Gone, State, Table};
use super::{Class, Disk, Medium, Tier};
use crate::budget::Space;
use crate::directory::{ObjectKey, ShardName};
use crate::fill::{Blocks, DiskTarget, Job, Parts, Target};
use crate::shard::{Body, Growth, Home, Lease, Shard};
use crate::shares::{Charge, Provenance, Shares};
use crate::store::Head;

/// How often room is made again where the disk has less than the tier may hold: others write to it
/// at the same time.
const FULL_DISK_TRIES: u32 = 8;

/// A shard that somebody asked for, or that moves.
#[derive(Clone)]
pub(crate) struct Wanted {
    pub(crate) name: ShardName,
    pub(crate) origin: Origin,
    /// The tenant whose job wants it, who is charged unless a part of it is here already.
    pub(crate) tenant: Option<Arc<str>>,
    pub(crate) source: Arc<dyn Source>,
    /// The same, for as long as the shard stays open.
    pub(crate) lasting: Arc<dyn Source>,
    /// What the origin says of its object.
    pub(crate) stat: Stat,
    /// The shard's bytes; of one that is compressed at its origin, as far as is known.
    pub(crate) len: u64,
    /// How urgently, and for whom.
    pub(crate) rank: Rank,
    /// Its first bytes, if they are on their way already.
    pub(crate) head: Head,
}

impl Wanted {
    /// Whom it is charged to if it comes now.
    pub(crate) fn charge(&self, shares: &Shares) -> Charge {
        shares.charge(&self.origin.url, self.tenant.as_deref())
    }

    pub(super) fn provenance(&self) -> Provenance {
        Provenance { url: self.origin.url.as_str().into(), tenant: self.tenant.clone() }
    }
}

/// Why a shard comes.
#[derive(Clone)]
pub(crate) enum Arrival {
    /// It is fetched.
    Fetch(Urgency),
    /// It comes `from` another tier, where it was used so often and since then. `unpacked`: its origin keeps
    /// it compressed.
    Move { uses: u32, since: SystemTime, from: Arc<dyn Source>, unpacked: bool },
}

impl Arrival {
    fn urgency(&self) -> Urgency {
        match self {
            Self::Fetch(urgency) => *urgency,
            Self::Move { .. } => Urgency::Ahead,
        }
    }
}

/// The source of a shard that only moves: who reads it opens it with a source of their own.
struct Absent;

#[async_trait]
impl Source for Absent {
    async fn stat(&self, url: &str) -> Result<Stat> {
        Err(Error::new(ErrorKind::Unavailable, "a move has no origin").at("url", url))
    }

    async fn stretch<'a>(
        &'a self,
        url: &'a str,
        _: &'a Stat,
        _: Range<u64>,
        _: &'a Rank,
    ) -> Result<Box<dyn Stretch + 'a>> {
        Err(Error::new(ErrorKind::Unavailable, "a move has no origin").at("url", url))
    }

    fn endpoint(&self) -> &str {
        ""
    }
}

impl Tier {
    /// Opens a whole shard; `None` if there is none, or none that can be used.
    ///
    /// # Errors
    /// If the device, or a limit of the machine, stands in the way.
    pub(crate) async fn open_whole(&self, wanted: &Wanted) -> Result<Option<Arc<Shard>>> {
        let Some(space) = self.known(&wanted.name).await? else { return Ok(None) };
        let _opening = self.opening(&wanted.name);
        match self.open_copy(wanted, space).await {
            Ok(shard) => {
                self.0.tally.hits.inc();
                self.table().opened(&shard);
                Ok(Some(shard))
            }
            Err(error) if is_the_copys_fault(&error) => {
                self.discard(&wanted.name, &error).await?;
                Ok(None)
            }
            Err(error) => Err(error.at("url", &wanted.origin.url).at("tier", self.name())),
        }
    }

    /// Waits until the files of a copy that leaves are removed: its name is free then.
    async fn gone(&self, name: &ShardName) {
        let leaving = self.table().leaving.get(name).cloned();
        if let Some(gone) = leaving {
            gone.await;
        }
    }

    /// Notes that a shard is being opened, until dropped: it does not leave meanwhile.
    fn opening(&self, name: &ShardName) -> Opening {
        self.table().hold(name);
        Opening { tier: self.clone(), name: name.clone() }
    }

    /// The space of a whole shard, waiting for the scan only if it is not yet known. A copy that
    /// is older than its data set allows leaves.
    async fn known(&self, name: &ShardName) -> Result<Option<Arc<Space>>> {
        self.gone(name).await;
        let look = || {
            let table = self.table();
            table.get(name).filter(|entry| entry.is_whole()).map(|entry| entry.space.clone())
        };
        let mut known = look();
        if known.is_none() {
            self.scanned().await?;
            known = look();
        }
        let stale = self.table().is_stale(name);
        if stale {
            // The listing must not find what is about to go.
            self.scanned().await?;
        }
        let stale = {
            let mut table = self.table();
            (stale && table.is_stale(name)).then(|| self.leave(&mut table, name, false))
        };
        match stale {
            None => Ok(known),
            Some(gone) => {
                tracing::debug!(shard = name.as_str(), "a copy outlived its ttl");
                gone.await;
                Ok(None)
            }
        }
    }

    async fn open_copy(&self, wanted: &Wanted, space: Arc<Space>) -> Result<Arc<Shard>> {
        let Medium::Disk(disk) = &self.0.medium else {
            return Err(Error::new(ErrorKind::NotFound, "the shard left the memory"));
        };
        let name = wanted.name.clone();
        let sidecar = self.on_disk(move |directory| directory.read_sidecar(&name)).await?;
        let is_as_long = match wanted.stat.binding {
            Binding::Stream => true,
            _ => sidecar.origin_len() == wanted.stat.len,
        };
        if sidecar.origin != wanted.origin || !is_as_long {
            return Err(Error::new(ErrorKind::Corrupt, "the sidecar names another shard"));
        }
        let path = self.directory()?.data(&wanted.name);
        let file = disk.engine.open(&path, Open::Read).await?;
        let body = Body::Disk { engine: disk.engine.clone(), file };
        let growth = Growth::whole(sidecar.index, sidecar.len);
        if sidecar.compressed_len.is_some() {
            growth.unpack();
        }
        Ok(self.assemble(wanted, growth, body, None, space))
    }

    fn assemble(
        &self,
        wanted: &Wanted,
        growth: Growth,
        body: Body,
        parts: Option<Arc<Parts>>,
        space: Arc<Space>,
    ) -> Arc<Shard> {
        let home = Home { tier: self.downgrade(), budget: self.0.budget.clone(), space };
        Arc::new(Shard {
            name: wanted.name.clone(),
            url: wanted.origin.url.clone(),
            growth,
            body,
            parts: std::sync::Mutex::new(parts),
            traffic: self.traffic_of(&wanted.origin.url),
            home: Some(home),
            source: wanted.lasting.clone(),
            stat: wanted.stat.clone(),
            rank: wanted.rank.clone(),
            lost: Arc::default(),
        })
    }

    /// Makes room for a shard and begins to fill it. `patient`: waits for room, where somebody waits
    /// for the shard.
    ///
    /// # Errors
    /// `Full` if there is no room and none can be made; what the device refused.
    pub(crate) async fn begin(
        &self,
        wanted: &Wanted,
        arrival: Arrival,
        patient: bool,
    ) -> Result<(Arc<Shard>, JoinHandle<()>)> {
        let Wanted { name, origin, tenant, source, stat, rank, head, .. } = wanted;
        // Before it is fetched: what cannot be recorded cannot be kept.
        origin.check(tenant.as_deref())?;
        self.gone(name).await;
        let taken = {
            let table = self.table();
            let arrives = table.get(name).is_some_and(|entry| entry.state() == State::Arriving);
            match (table.is_stuck(name), arrives) {
                (true, _) => Some("an old copy cannot be removed"),
                (_, true) => Some("the shard arrives here already"),
                (false, false) => None,
            }
        };
        if let Some(why) = taken {
            return Err(Error::new(ErrorKind::Unavailable, why).at("tier", self.name()));
        }
        let _opening = self.opening(name);
        let written = Arc::new(AtomicU64::new(0));
        let spending = self.spend(wanted.len, arrival.urgency(), &written)?;
        let (room, body, target) = match &self.0.medium {
            Medium::Disk(disk) => {
                let (room, target) =
                    self.place_on_disk(disk, wanted, arrival.urgency(), patient).await?;
                let file = target.file.clone();
                (room, Body::Disk { engine: disk.engine.clone(), file }, Target::Disk(target))
            }
            Medium::Memory(_) => {
                let room = self.make_room(wanted, arrival.urgency(), patient).await?;
                let blocks = Arc::new(Blocks::default());
                (room, Body::Memory(blocks.clone()), Target::Memory(blocks))
            }
        };
        let growth = Growth::new();
        let (source, len, since) = match &arrival {
            // How long the shard is, its bytes will show.
            Arrival::Fetch(_) => (source.clone(), stat.len, None),
            Arrival::Move { from, since, unpacked, .. } => {
                if *unpacked {
                    growth.unpack();
                }
                (from.clone(), wanted.len, Some(*since))
            }
        };
        let (parts, space) = (Parts::new(len, stat.binding), room.space.clone());
        let shard = self.assemble(wanted, growth.clone(), body, Some(parts.clone()), space.clone());
        let allotment = Allotment {
            tier: self.downgrade(),
            name: name.clone(),
            of: room.of.clone(),
            space: space.clone(),
        };
        let mut table = self.table();
        table.begun((&shard, ObjectKey::of(origin)), space, &room, since);
        if self.0.commons.pins.has(shard.url()) {
            table.pin(shard.name());
        }
        drop(table);
        let frames = match &self.0.medium {
            Medium::Disk(_) => self.0.commons.frames.clone(),
            Medium::Memory(arena) => arena.clone(),
        };
        let job = Arc::new(Job {
            url: origin.url.clone(),
            source,
            stat: Stat { len, ..stat.clone() },
            frames,
            spare: self.0.commons.frames.clone(),
            allotment: Some(allotment),
            target,
            tier: Some(self.name().into()),
            parts,
            growth: growth.clone(),
            origin: origin.clone(),
            origin_len: AtomicU64::new(stat.len),
            form: SetOnce::new(),
            unpacked: AtomicU64::new(0),
            spoilt: OnceLock::new(),
            tenant: room.of.tenant.as_deref().map(str::to_owned),
            resumed: AtomicU64::new(0),
            written,
            tally: Some(self.0.tally.clone()),
            wears: self.class() != Class::Memory,
            since,
            fault: shard.lost.clone(),
            rank: rank.clone(),
            rates: match &arrival {
                Arrival::Fetch(_) => Some(self.0.commons.shares.clone()),
                Arrival::Move { .. } => None,
            },
            head: std::sync::Mutex::new(match &arrival {
                Arrival::Fetch(_) => head.take(),
                Arrival::Move { .. } => None,
            }),
            journal: self.0.commons.journal.clone(),
        });
        // Each miss ends as a fill, whole or failed: so it can be told when nothing is under way.
        if let Arrival::Fetch(_) = arrival {
            self.0.tally.misses.inc();
        }
        let (tier, arriving) = (self.clone(), shard.clone());
        let filling = tokio::spawn(async move {
            tier.fill(job, arriving, arrival, spending).await;
            growth.settle();
        });
        Ok((shard, filling))
    }

    /// Takes bytes of the day's allowance; what nobody waits for must find them there.
    fn spend(&self, bytes: u64, urgency: Urgency, written: &Arc<AtomicU64>) -> Result<Spending> {
        if let Some(mut wear) = self.wear() {
            let now = SystemTime::now();
            if urgency == Urgency::Ahead && !wear.allows(bytes, now) {
                return Err(Error::new(ErrorKind::Full, "the day's writing is spent")
                    .at("tier", self.name()));
            }
            wear.spend(bytes, now);
        }
        Ok(Spending { tier: self.clone(), bytes, written: written.clone() })
    }

    /// Room and a file for a shard, or those that a fill which did not end left of it.
    async fn place_on_disk(
        &self,
        disk: &Disk,
        wanted: &Wanted,
        urgency: Urgency,
        patient: bool,
    ) -> Result<(Room, DiskTarget)> {
        let directory = self.directory()?;
        let target = |file, here| DiskTarget {
            engine: disk.engine.clone(),
            file,
            directory: directory.clone(),
            name: wanted.name.clone(),
            here,
        };
        if let Some((room, file, here)) = self.resume(disk, wanted).await? {
            return Ok((room, target(file, here)));
        }
        let (of, url) = (directory.clone(), &wanted.origin.url);
        let checked = tokio::task::spawn_blocking(move || {
            of.check_identity().map_err(|error| (true, error))?;
            of.extent().map_err(|error| (false, error))
        });
        match checked.await.map_err(|_| shutting_down())? {
            Ok(extent) => self.limit(extent.available),
            Err((is_another, error)) => {
                match is_another {
                    true => self.tell(self.0.health.vanished(&error), Some(&error)),
                    false => self.trouble(&error),
                }
                return Err(error.at("url", url));
            }
        }
        let mut tries = 0;
        loop {
            tries += 1;
            let room = self.make_room(wanted, urgency, patient).await?;
            let path = directory.data(&wanted.name);
            let created = disk.engine.open(&path, Open::Create { len: wanted.len }).await;
            let error = match created {
                Ok(file) => return Ok((room, target(file, Vec::new()))),
                Err(error) => error,
            };
            let again = match error.kind() {
                // Others took the room: what is ours must go, or the shard must go elsewhere.
                ErrorKind::Full => {
                    drop(room);
                    // Room for this one must come out of what is ours.
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
            if !again || tries == FULL_DISK_TRIES {
                if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::PermissionDenied) {
                    self.trouble(&error);
                }
                // It is the disk that has no place, whatever our budget says.
                return Err(Error::new(ErrorKind::Unavailable, error.to_string())
                    .at("url", url)
                    .at("tier", self.name()));
            }
        }
    }

    /// Room, file and checksums of what a fill that did not end left of this shard, if one did.
    async fn resume(
        &self,
        disk: &Disk,
        wanted: &Wanted,
    ) -> Result<Option<(Room, forebay_uring::DiskFile, Vec<Option<u32>>)>> {
        let name = &wanted.name;
        let Some(room) = self.table().resume(name) else { return Ok(None) };
        let error = match self.open_partial(disk, wanted).await {
            Ok((file, here)) => return Ok(Some((room, file, here))),
            Err(error) => error,
        };
        if is_the_copys_fault(&error) {
            let url = &wanted.origin.url;
            let (url, dataset) = (shown(url), self.0.commons.dataset_of(url));
            let ((session, job), tenant) = (wanted.rank.asker(), wanted.tenant.as_deref());
            let tier = self.name();
            tracing::warn!(session, job, tenant, dataset, url, tier, %error, "a part of a shard cannot be resumed");
            let of = name.clone();
            if self.on_disk(move |directory| directory.remove(&of)).await.is_ok() {
                return Ok(None);
            }
        }
        self.table().left((name, ObjectKey::of(&wanted.origin)), room.of, room.space);
        Err(error.at("url", &wanted.origin.url).at("tier", self.name()))
    }

    async fn open_partial(
        &self,
        disk: &Disk,
        wanted: &Wanted,
    ) -> Result<(forebay_uring::DiskFile, Vec<Option<u32>>)> {
        let name = wanted.name.clone();
        let partial = self.on_disk(move |directory| directory.read_partial(&name)).await?;
        if (&partial.origin, partial.len) != (&wanted.origin, wanted.len) {
            return Err(Error::new(ErrorKind::Corrupt, "the record names another shard"));
        }
        let path = self.directory()?.data(&wanted.name);
        Ok((disk.engine.open(&path, Open::Update).await?, partial.blocks))
    }

    /// Runs a fill to its end and makes the shard whole, or fails everyone who waits for it.
    async fn fill(self, job: Arc<Job>, shard: Arc<Shard>, arrival: Arrival, spending: Spending) {
        let name = shard.name().clone();
        let (tally, is_fetched) = (&self.0.tally, matches!(arrival, Arrival::Fetch(_)));
        let filled = match self.0.commons.begin(&job).await {
            Ok(mut running) => {
                self.table().runs(&shard);
                let began = Instant::now();
                job.run(&mut running).await.map(|()| began)
            }
            Err(error) => Err(error),
        };
        *shard.parts.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let unpacked = job.unpacked.load(Ordering::Relaxed);
        if unpacked > 0 {
            // The next fill of it, if there is one, takes its room beforehand.
            self.0.commons.note_unpacked(&job.origin, unpacked);
        }
        drop(spending);
        match (filled, job.fault.get()) {
            (Ok(began), None) => {
                let resumed = job.resumed.load(Ordering::Relaxed);
                if let Some(allotment) = &job.allotment {
                    allotment.settle(job.parts.len());
                }
                match arrival {
                    Arrival::Fetch(_) => {
                        self.0.commons.fetches.since(began);
                        tally.resumed_bytes.add(resumed);
                        tally.fills.inc();
                    }
                    Arrival::Move { .. } => {
                        tally.moved_in.inc();
                        tally.moved_bytes.add(job.parts.len());
                    }
                }
                let mut table = self.table();
                match arrival {
                    Arrival::Fetch(_) => table.whole(&shard, State::Whole),
                    Arrival::Move { uses, .. } => table.moved(&shard, uses),
                }
                // Forgotten by an admin, or failed under a reader, while it arrived.
                if table.is_doomed(&name) || job.fault.get().is_some() {
                    drop(self.leave(&mut table, &name, false));
                }
                drop(table);
                self.relieve();
            }
            (Ok(_), Some(fault)) => {
                let (url, dataset) = (shown(&job.url), self.0.commons.dataset_of(&job.url));
                let (tenant, tier) = (job.tenant.as_deref(), self.name());
                let (session, asker) = job.rank.asker();
                tracing::warn!(session, job = asker, tenant, dataset, url, tier, error = %fault, "failed to keep a shard");
                if fault.kind() != ErrorKind::Full {
                    self.trouble(fault);
                }
                if is_fetched {
                    tally.failed_fills.inc();
                    if !job.growth.is_unpacked() {
                        // Whoever reads it goes on doing so, from the origin.
                        self.0.commons.read_through(&shard);
                    }
                }
                drop(self.leave_shard(&shard));
            }
            (Err(error), _) => {
                let (url, dataset) = (shown(&job.url), self.0.commons.dataset_of(&job.url));
                let ((session, asker), tenant) = (job.rank.asker(), job.tenant.as_deref());
                tracing::warn!(session, job = asker, tenant, dataset, url, %error, "failed to fetch a shard");
                if is_fetched {
                    tally.failed_fills.inc();
                }
                job.parts.fail(&error);
                let goes_on = job.left_for_the_next(&error).await;
                // Of a shard that failed a checksum of the whole nothing is good for certain; and a compressed
                // one that its tier gave up is not there any more.
                let lost = job.spoilt.get().is_some()
                    || job.growth.is_unpacked() && job.fault.get().is_some()
                    || job.stat.binding == Binding::Stream && !shard.outlives_its_fault();
                if error.kind() == ErrorKind::Corrupt && is_fetched && !lost {
                    // Samples before the fault are good. The copy stays for them while there is
                    // room, or each batch that holds one would fetch the shard again; without a
                    // sidecar it ends with the process.
                    self.table().whole(&shard, State::Broken);
                } else {
                    // The object may have changed: its identity is asked anew.
                    self.0.commons.forget_identity(&*job.source, &job.url);
                    match goes_on {
                        true => self.table().partial(&name),
                        false => drop(self.leave_shard(&shard)),
                    }
                }
                // Told last: whoever hears of it and asks again is not to find this one.
                job.fail(&error);
            }
        }
        drop(shard);
        self.0.budget.wake();
        self.0.commons.moves.notify_one();
    }

    /// Takes this copy off the tier, if it is still there.
    fn leave_shard(&self, shard: &Shard) -> Option<Shared<Gone>> {
        self.leave_copy(shard.name(), &shard.home.as_ref()?.space)
    }

    /// The same for a copy that is known by its space.
    pub(super) fn leave_copy(&self, name: &ShardName, space: &Arc<Space>) -> Option<Shared<Gone>> {
        let mut table = self.table();
        let is_there = table.get(name).is_some_and(|entry| Arc::ptr_eq(&entry.space, space));
        is_there.then(|| self.leave(&mut table, name, false))
    }

    /// Wakes whoever moves shards, where the tier is fuller than its watermark.
    fn relieve(&self) {
        if self.excess() > 0 {
            self.0.commons.moves.notify_one();
        }
    }

    /// A whole shard at rest and its sidecar, to be moved, and what keeps it here meanwhile; `None` if it left, or lies in memory, where
    /// only copies are.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub(crate) async fn open_for_move(
        &self,
        name: &ShardName,
    ) -> Result<Option<(Lease, Sidecar, Opening)>> {
        let Medium::Disk(disk) = &self.0.medium else { return Ok(None) };
        let space = {
            let table = self.table();
            let whole = table.get(name).filter(|entry| entry.state() == State::Whole);
            whole.map(|entry| entry.space.clone())
        };
        let Some(space) = space else { return Ok(None) };
        let opening = self.opening(name);
        let of = name.clone();
        let sidecar = self.on_disk(move |directory| directory.read_sidecar(&of)).await?;
        if let Some((shard, State::Whole)) = self.table().in_use(name) {
            return Ok(Some((Lease::new(shard).for_move(), sidecar, opening)));
        }
        let file = disk.engine.open(&self.directory()?.data(name), Open::Read).await?;
        let wanted = Wanted {
            name: name.clone(),
            origin: sidecar.origin.clone(),
            tenant: sidecar.tenant.as_deref().map(Arc::from),
            source: Arc::new(Absent),
            lasting: Arc::new(Absent),
            stat: Stat::new(sidecar.origin_len(), sidecar.origin.version.clone(), Binding::Weak),
            len: sidecar.len,
            rank: Rank::ahead(0),
            head: Head::default(),
        };
        let body = Body::Disk { engine: disk.engine.clone(), file };
        let shard = self.assemble(&wanted, Growth::new(), body, None, space);
        Ok(Some((Lease::new(shard).for_move(), sidecar, opening)))
    }

    /// When a shard came to this node; a ttl counts from then, wherever it moves.
    pub(crate) fn since(&self, name: &ShardName) -> SystemTime {
        self.table().get(name).map_or_else(SystemTime::now, Entry::since)
    }

    /// How often a shard was used since it came to this node.
    pub(crate) fn uses(&self, name: &ShardName) -> u32 {
        self.table().get(name).map_or(0, |entry| entry.uses)
    }

    /// A shard that nobody reads now.
    pub(crate) fn any_resting(&self) -> Option<ShardName> {
        self.table().any_resting()
    }

    /// Drops and counts a corrupt copy; false if somebody did so already. A copy is known by its
    /// space: the shard may have been fetched anew since.
    pub(crate) async fn drop_corrupt(
        &self,
        name: &ShardName,
        space: &Weak<Space>,
        why: &Error,
    ) -> bool {
        if self.scanned().await.is_err() {
            return false;
        }
        let gone = {
            let mut table = self.table();
            let is_there = table.get(name).is_some_and(|entry| entry.is_copy(space));
            is_there.then(|| self.leave(&mut table, name, false))
        };
        let Some(gone) = gone else { return false };
        self.0.tally.corruptions.inc();
        let (tier, device) = (self.name(), self.device());
        let url = why.place("url");
        let dataset = url.map(|url| self.0.commons.dataset_of(url));
        let shard = name.as_str();
        tracing::error!(tier, device, dataset, url, shard, error = %why, "dropped a corrupt copy");
        gone.await;
        true
    }

    /// Drops a copy that cannot be opened.
    async fn discard(&self, name: &ShardName, why: &Error) -> Result<()> {
        // The listing must not find what is about to go.
        self.scanned().await?;
        let (tier, device) = (self.name(), self.device());
        let url = why.place("url");
        let dataset = url.map(|url| self.0.commons.dataset_of(url));
        let shard = name.as_str();
        tracing::warn!(tier, device, dataset, url, shard, error = %why, "dropped a copy that cannot be opened");
        if why.kind() == ErrorKind::Corrupt {
            self.0.tally.corruptions.inc();
        }
        let gone = {
            let mut table = self.table();
            self.leave(&mut table, name, false)
        };
        gone.await;
        Ok(())
    }

    /// Drops every copy of what came from `url`, whatever its version; with how many there were.
    /// `dry`: only counts them.
    pub(crate) async fn forget_url(&self, url: &str, dry: bool) -> Result<u64> {
        if !self.is_readable() {
            let what = "the tier cannot be used now: what it holds of the shard stays";
            return Err(Error::new(ErrorKind::Unavailable, what)
                .at("url", url)
                .advise("ask again once `forebay tier ls` shows it enabled and normal"));
        }
        let names = self.copies_of(url).await?;
        if !dry {
            for name in &names {
                let gone = {
                    let mut table = self.table();
                    match table.get(name).map(Entry::state) {
                        // Its fill ends first, and takes it away then.
                        Some(State::Arriving) => {
                            table.doom(name);
                            None
                        }
                        Some(_) => Some(self.leave(&mut table, name, false)),
                        None => None,
                    }
                };
                if let Some(gone) = gone {
                    gone.await;
                }
            }
        }
        Ok(names.len() as u64)
    }

    /// Takes a shard off the tier. Its bytes stay reserved until its files are gone, and its name
    /// taken; the removal goes on whether it is waited for or not. `evicted`: a policy chose it.
    pub(super) fn leave(&self, table: &mut Table, name: &ShardName, evicted: bool) -> Shared<Gone> {
        let entry = table.forget(name, evicted);
        let Ok(directory) = self.directory() else {
            // Nothing but memory, or let go of.
            drop(entry);
            return std::future::ready(()).boxed().shared();
        };
        let (tier, of) = (self.clone(), name.clone());
        let removal = tokio::task::spawn_blocking(move || {
            let removed = directory.remove(&of);
            if let Err(error) = &removed {
                tracing::error!(tier = tier.name(), %error, "failed to remove a shard; its bytes stay reserved");
                tier.trouble(error);
            }
            let mut table = tier.table();
            table.leaving.remove(&of);
            if removed.is_err() {
                table.stuck.extend(entry);
            }
        });
        let gone = removal.map(|_| ()).boxed().shared();
        table.leaving.insert(name.clone(), gone.clone());
        gone
    }
}

/// Bytes of a day's allowance; those that were not written are given back when it is dropped.
struct Spending {
    tier: Tier,
    bytes: u64,
    written: Arc<AtomicU64>,
}

impl Drop for Spending {
    fn drop(&mut self) {
        if let Some(mut wear) = self.tier.wear() {
            let written = self.written.load(Ordering::Relaxed);
            wear.give_back(self.bytes.saturating_sub(written));
            // What was unpacked may be more than was thought.
            wear.spend(written.saturating_sub(self.bytes), SystemTime::now());
        }
    }
}

/// A shard being opened.
pub(crate) struct Opening {
    tier: Tier,
    name: ShardName,
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.tier.table().release(&self.name);
        self.tier.let_go();
    }
}

pub(crate) fn shutting_down() -> Error {
    Error::new(ErrorKind::Closed, "the daemon is shutting down")
}

/// Whether a copy that cannot be opened is itself to blame, rather than a limit or a device: only
/// then is it worth nothing.
pub(crate) fn is_the_copys_fault(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound | ErrorKind::Invalid)
}
