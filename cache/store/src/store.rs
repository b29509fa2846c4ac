//! Who has which shard, who fills it, and who may stay.
//!
//! One rule: whatever is asked for at the same time by many is done once. A shard's identity is
//! resolved once, its bytes are fetched by one flight, its file is opened once; everybody else
//! waits for that and shares the outcome, success or error.

mod identity;
mod room;
mod scrub;
mod shelf;
mod table;
mod tally;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result, shown};
use forebay_shard::{Origin, Sidecar};
use forebay_source::{Options, Source, Sources, Stat};
use forebay_uring::{Arena, DiskFile, Engine, Open};
use futures::FutureExt;
use futures::future::Shared;
use tokio::sync::{Semaphore, watch};

use crate::budget::{Budget, Space};
use crate::dataset::{self, Dataset};
use crate::directory::{Directory, Found, ShardName};
use crate::evict::Evict;
use crate::fill::{FILLS, Job, Parts};
use crate::shard::{Growth, Lease, Shard, Traffic};
use room::Room;
pub use room::{Claim, Urgency};
pub use scrub::{Flaw, Scrub};
use table::{Gone, Opened, State, Table};
use tally::Tally;
pub use tally::{Counters, Holding};

/// How often the order of use is kept on the disk: a crash loses that much of it, and of a million
/// shards it is 8 MB.
const RECENCY_KEPT: Duration = Duration::from_secs(300);

/// The name of what belongs to no data set.
const REST: &str = "(rest)";

/// What a store is made of.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// The cache directory; made if missing.
    pub directory: PathBuf,
    /// Bytes it may hold, at most.
    pub capacity: u64,
    /// What admins say of data sets; the first whose pattern matches counts.
    pub datasets: Vec<Dataset>,
}

/// One tier on one directory. Cheap to clone.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    directory: Arc<Directory>,
    engine: Engine,
    sources: Sources,
    frames: Arena,
    budget: Arc<Budget>,
    table: Mutex<Table>,
    flights: Semaphore,
    /// How listing the directory went, once it is over.
    scanned: watch::Sender<Option<Result<()>>>,
    tally: Tally,
    traffic: Arc<Traffic>,
}

/// A shard that somebody asked for.
#[derive(Clone)]
struct Wanted {
    name: ShardName,
    origin: Origin,
    source: Arc<dyn Source>,
    stat: Stat,
}

impl Store {
    /// Opens the directory and starts listing what it holds; serving starts at once.
    ///
    /// # Errors
    /// If the directory cannot be used: another daemon has it, it holds something else, it is not
    /// writable.
    pub async fn open(
        config: StoreConfig,
        engine: Engine,
        sources: Sources,
        frames: Arena,
    ) -> Result<Self> {
        dataset::check_all(&config.datasets, config.capacity)?;
        let mut datasets = config.datasets;
        datasets.push(Dataset::new(REST, "**", Evict::default())?);
        let root = config.directory.clone();
        let directory = tokio::task::spawn_blocking(move || Directory::open(&root))
            .await
            .map_err(|_| shutting_down())??;
        let store = Self(Arc::new(Inner {
            directory: Arc::new(directory),
            engine,
            sources,
            frames,
            budget: Budget::new(config.capacity),
            table: Mutex::new(Table::new(datasets)),
            flights: Semaphore::new(FILLS),
            scanned: watch::Sender::new(None),
            tally: Tally::default(),
            traffic: Arc::default(),
        }));
        tokio::spawn(keep_recency(Arc::downgrade(&store.0)));
        let scanning = store.clone();
        tokio::task::spawn_blocking(move || scanning.scan());
        Ok(store)
    }

    /// The shard at `url`, on the tier or on its way there; the lease lasts while it is held.
    ///
    /// # Errors
    /// What the origin answered, or `Full` if there is no room and none can be made.
    pub async fn shard(&self, url: &str, options: &Options, urgency: Urgency) -> Result<Lease> {
        let source = self.0.sources.open(url, options)?;
        let stat = self.identity(&source, url).await?;
        let origin = Origin {
            endpoint: source.endpoint().to_owned(),
            url: url.to_owned(),
            version: stat.version.clone(),
        };
        let mut name = self.0.directory.name_for(&origin);
        if self.table().get(&name).is_none() {
            self.probe(&name).await?;
            name = self.0.directory.name_for(&origin);
        }
        let wanted = Wanted { name, origin, source, stat };
        loop {
            let (asked, opened) = {
                let mut table = self.table();
                if let Some(shard) = table.in_use(&wanted.name) {
                    return Ok(Lease::new(shard, &self.0.budget));
                }
                let open = || (urgency, self.clone().opened(wanted.clone(), urgency));
                table.opening.entry(wanted.name.clone()).or_insert_with(open).clone()
            };
            match opened.await {
                // Whoever only looked ahead was not let in; one who waits may push others out.
                Err(error)
                    if error.kind() == ErrorKind::Full
                        && (asked, urgency) == (Urgency::Ahead, Urgency::Needed) => {}
                opened => return opened.map(|shard| Lease::new(shard, &self.0.budget)),
            }
        }
    }

    /// Opens or begins a shard in a task of its own: a caller that goes away must not leave it
    /// half made.
    fn opened(self, wanted: Wanted, urgency: Urgency) -> Shared<Opened> {
        let task = tokio::spawn(async move {
            let opened = self.open_or_begin(&wanted, urgency).await;
            let mut table = self.table();
            table.opening.remove(&wanted.name);
            if let Ok(shard) = &opened {
                table.opened(shard);
            }
            drop(table);
            self.0.budget.wake();
            opened
        });
        let ended = |joined: Result<_, _>| joined.unwrap_or_else(|_| Err(shutting_down()));
        task.map(ended).boxed().shared()
    }

    /// Drops a copy whose bytes turned out wrong; the next [`Store::shard`] fetches it anew. Of
    /// everybody who meets the same bad copy, the first drops and counts it.
    pub async fn condemn(&self, shard: &Lease, why: &Error) {
        self.drop_corrupt(shard.name(), &Arc::downgrade(&shard.space), why).await;
    }

    /// Drops and counts a corrupt copy; false if somebody did so already. A copy is known by its
    /// space: the shard may have been fetched anew since.
    async fn drop_corrupt(&self, name: &ShardName, space: &Weak<Space>, why: &Error) -> bool {
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
        tracing::error!(shard = name.as_str(), error = %why, "dropped a corrupt copy");
        gone.await;
        true
    }

    /// What was counted since the start.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let shards = self.table().len();
        self.0.tally.read(&self.0.budget, &self.0.traffic, shards)
    }

    /// What each data set holds, in the order of their rules; last what belongs to none.
    #[must_use]
    pub fn holdings(&self) -> Vec<Holding> {
        self.table().holdings()
    }

    /// The directory.
    #[must_use]
    pub fn directory(&self) -> &std::path::Path {
        self.0.directory.root()
    }

    /// Waits until everything the directory held at the start is known.
    ///
    /// # Errors
    /// If it could not be listed: what is on the disk is not known then, and nothing may be added.
    pub async fn scanned(&self) -> Result<()> {
        let mut scanned = self.0.scanned.subscribe();
        let listed = scanned.wait_for(Option::is_some).await.map(|listed| listed.clone());
        listed.ok().flatten().unwrap_or_else(|| Err(shutting_down()))
    }

    /// From now on a copy out of a frame panics: tests prove by it that warm reads copy nothing.
    #[doc(hidden)]
    pub fn forbid_copies(&self) {
        self.0.traffic.no_copies.store(true, Ordering::Relaxed);
    }

    /// Begins no more fills, and keeps for the next start in which order shards were used. Fills
    /// under way end with the runtime they run on; what they recorded is there for the next.
    pub async fn close(&self) {
        self.0.flights.close();
        self.0.clone().save_recency().await;
    }

    async fn open_or_begin(&self, wanted: &Wanted, urgency: Urgency) -> Result<Arc<Shard>> {
        let leaving = self.table().leaving.get(&wanted.name).cloned();
        if let Some(gone) = leaving {
            gone.await;
        }
        if let Some(space) = self.known(&wanted.name).await? {
            match self.open_whole(wanted, space).await {
                Ok(shard) => {
                    self.0.tally.hits.inc();
                    return Ok(shard);
                }
                Err(error) if is_the_copys_fault(&error) => {
                    self.discard(&wanted.name, &error).await?;
                }
                Err(error) => return Err(error.at("url", &wanted.origin.url)),
            }
        }
        self.begin(wanted, urgency).await
    }

    /// The space of a whole shard, waiting for the scan only if it is not yet known. A copy that
    /// is older than its data set allows leaves.
    async fn known(&self, name: &ShardName) -> Result<Option<Arc<Space>>> {
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

    async fn open_whole(&self, wanted: &Wanted, space: Arc<Space>) -> Result<Arc<Shard>> {
        let name = wanted.name.clone();
        let sidecar = self.on_disk(move |directory| directory.read_sidecar(&name)).await??;
        if (&sidecar.origin, sidecar.len) != (&wanted.origin, wanted.stat.len) {
            return Err(Error::new(ErrorKind::Corrupt, "the sidecar names another shard"));
        }
        let path = self.0.directory.data(&wanted.name);
        let file = self.0.engine.open(&path, Open::Read).await?;
        Ok(self.assemble(wanted, Growth::whole(sidecar.index), file, None, space))
    }

    async fn begin(&self, wanted: &Wanted, urgency: Urgency) -> Result<Arc<Shard>> {
        let Wanted { name, origin, source, stat } = wanted;
        // Before it is fetched: what cannot be recorded cannot be kept.
        origin.check()?;
        let (room, file, here) = match self.resume(wanted).await? {
            Some(resumed) => resumed,
            None => {
                let room = self.make_room(&origin.url, stat.len, urgency).await?;
                let path = self.0.directory.data(name);
                let file = self.0.engine.open(&path, Open::Create { len: stat.len }).await;
                (room, file.map_err(|error| error.at("url", &origin.url))?, Vec::new())
            }
        };
        let Room { space, shelf, passes } = room;
        let (growth, parts) = (Growth::new(), Parts::new(stat.len));
        let arriving = Some(parts.clone());
        let shard = self.assemble(wanted, growth.clone(), file.clone(), arriving, space);
        self.table().begun(&shard, shelf, passes);
        let job = Job {
            url: origin.url.clone(),
            source: source.clone(),
            stat: stat.clone(),
            engine: self.0.engine.clone(),
            frames: self.0.frames.clone(),
            file,
            parts,
            growth,
            directory: self.0.directory.clone(),
            name: name.clone(),
            origin: origin.clone(),
            here,
            resumed: AtomicU64::new(0),
        };
        // Each miss ends as a fill, whole or failed: so it can be told when nothing is under way.
        self.0.tally.misses.inc();
        tokio::spawn(self.clone().fill(job, shard.clone()));
        Ok(shard)
    }

    /// Room, file and checksums of what a fill that did not end left of this shard, if one did.
    async fn resume(&self, wanted: &Wanted) -> Result<Option<(Room, DiskFile, Vec<Option<u32>>)>> {
        let name = &wanted.name;
        let Some(room) = self.table().resume(name) else { return Ok(None) };
        let error = match self.open_partial(wanted).await {
            Ok((file, here)) => return Ok(Some((room, file, here))),
            Err(error) => error,
        };
        if is_the_copys_fault(&error) {
            tracing::warn!(shard = name.as_str(), %error, "a part of a shard cannot be resumed");
            let of = name.clone();
            if let Ok(Ok(())) = self.on_disk(move |directory| directory.remove(&of)).await {
                return Ok(None);
            }
        }
        self.table().left(name, room.shelf, room.space);
        Err(error.at("url", &wanted.origin.url))
    }

    async fn open_partial(&self, wanted: &Wanted) -> Result<(DiskFile, Vec<Option<u32>>)> {
        let name = wanted.name.clone();
        let partial = self.on_disk(move |directory| directory.read_partial(&name)).await??;
        if (&partial.origin, partial.len) != (&wanted.origin, wanted.stat.len) {
            return Err(Error::new(ErrorKind::Corrupt, "the record names another shard"));
        }
        let path = self.0.directory.data(&wanted.name);
        Ok((self.0.engine.open(&path, Open::Update).await?, partial.blocks))
    }

    /// Runs a fill to its end and makes the shard whole, or fails everyone who waits for it.
    async fn fill(self, job: Job, shard: Arc<Shard>) {
        let name = shard.name().clone();
        let filled = self.fill_and_commit(&job).await;
        *shard.parts.lock().unwrap_or_else(PoisonError::into_inner) = None;
        match filled {
            Ok(()) => {
                let resumed = job.resumed.load(Ordering::Relaxed);
                self.0.tally.resumed_bytes.add(resumed);
                self.0.tally.origin_bytes.add(job.stat.len - resumed);
                self.0.tally.fills.inc();
                self.table().whole(&shard, State::Whole);
            }
            Err(error) => {
                let url = shown(&job.url);
                tracing::warn!(url, %error, "failed to fetch a shard");
                self.0.tally.failed_fills.inc();
                job.parts.fail(&error);
                job.growth.fail(&error);
                let goes_on = job.left_for_the_next(&error).await;
                let mut table = self.table();
                if error.kind() == ErrorKind::Corrupt {
                    // Samples before the fault are good. The copy stays for them while there is
                    // room, or each batch that holds one would fetch the shard again; without a
                    // sidecar it ends with the process.
                    table.whole(&shard, State::Broken);
                } else {
                    // The object may have changed: its identity is asked anew.
                    let key = (job.source.endpoint().to_owned(), job.url.clone());
                    table.identities.pop(&key);
                    if goes_on {
                        table.partial(&name);
                    } else {
                        drop(self.leave(&mut table, &name, false));
                    }
                }
            }
        }
        drop(shard);
        self.0.budget.wake();
    }

    async fn fill_and_commit(&self, job: &Job) -> Result<()> {
        let _flight = self.0.flights.acquire().await.map_err(|_| shutting_down())?;
        job.run(&self.0.directory.data(&job.name)).await?;
        let (origin, index) = (job.origin.clone(), job.growth.index().clone());
        // Every part is written by then.
        let blocks = job.parts.sums().into_iter().flatten().collect();
        let sidecar = Sidecar { origin, len: job.stat.len, blocks, index };
        let name = job.name.clone();
        self.on_disk(move |directory| directory.commit(&name, &sidecar)).await?
    }

    fn assemble(
        &self,
        wanted: &Wanted,
        growth: Growth,
        file: DiskFile,
        parts: Option<Arc<Parts>>,
        space: Arc<Space>,
    ) -> Arc<Shard> {
        Arc::new(Shard {
            name: wanted.name.clone(),
            url: wanted.origin.url.clone(),
            len: wanted.stat.len,
            growth,
            engine: self.0.engine.clone(),
            file,
            parts: Mutex::new(parts),
            traffic: self.0.traffic.clone(),
            space,
        })
    }

    /// Drops a copy that cannot be opened.
    async fn discard(&self, name: &ShardName, why: &Error) -> Result<()> {
        // The listing must not find what is about to go.
        self.scanned().await?;
        tracing::warn!(shard = name.as_str(), error = %why, "dropped a copy that cannot be opened");
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

    /// Takes a shard off the tier. Its bytes stay reserved until its files are gone, and its name
    /// taken; the removal goes on whether it is waited for or not. `evicted`: a policy chose it.
    fn leave(&self, table: &mut Table, name: &ShardName, evicted: bool) -> Shared<Gone> {
        let entry = table.forget(name, evicted);
        let (store, of) = (self.clone(), name.clone());
        let removal = tokio::task::spawn_blocking(move || {
            let removed = store.0.directory.remove(&of);
            let mut table = store.table();
            table.leaving.remove(&of);
            if let Err(error) = removed {
                tracing::error!(%error, "failed to remove a shard; its bytes stay reserved");
                table.stuck.extend(entry);
            }
        });
        let gone = removal.map(|_| ()).boxed().shared();
        table.leaving.insert(name.clone(), gone.clone());
        gone
    }

    /// While the directory is still being listed: looks for this one shard, so that nobody who
    /// wants what is there waits for the rest.
    async fn probe(&self, name: &ShardName) -> Result<()> {
        if self.0.scanned.borrow().is_some() {
            return Ok(());
        }
        let of = name.clone();
        if let Some(shard) = self.on_disk(move |directory| directory.probe(&of)).await? {
            self.enter(&mut self.table(), shard, State::Whole);
        }
        Ok(())
    }

    /// Notes a shard that was found, unless it is known already, or has left since it was seen.
    fn enter(&self, table: &mut Table, found: Found, state: State) {
        if table.get(&found.name).is_none() && !table.leaving.contains_key(&found.name) {
            tracing::debug!(url = shown(&found.url), "found a shard");
            let shelf = table.shelf_of(&found.url);
            let dataset = &table.shelf(shelf).budget;
            let space = Space::enter(&self.0.budget, dataset, found.bytes);
            table.found(found.name, shelf, space, (found.written, state));
        }
    }

    /// Shards in the order in which the last daemon used them; those it did not know, later.
    fn by_use(&self, mut shards: Vec<Found>) -> Vec<Found> {
        let order: HashMap<u64, usize> =
            self.0.directory.load_recency().into_iter().zip(0..).collect();
        // Stable: those that are not in the order stay sorted by when they were written.
        shards.sort_by_key(|found| order.get(&found.name.hash()).copied().unwrap_or(usize::MAX));
        shards
    }

    fn scan(&self) {
        let listed = match self.0.directory.recover() {
            Ok(found) => {
                tracing::info!(shards = found.whole.len(), "found whole shards on the tier");
                let whole = self.by_use(found.whole);
                let mut table = self.table();
                let dataset = &table.shelf(table.rest()).budget;
                table.newer = Some(Space::enter(&self.0.budget, dataset, found.newer_bytes));
                // Wanted before the directory was listed: they are the latest used all the same.
                let early = table.names();
                for shard in whole {
                    self.enter(&mut table, shard, State::Whole);
                }
                early.iter().for_each(|name| table.used(name));
                for shard in found.partial {
                    self.enter(&mut table, shard, State::Partial);
                }
                Ok(())
            }
            Err(error) => {
                tracing::error!(%error, "failed to list the tier; nothing is added to it");
                Err(error)
            }
        };
        self.0.scanned.send_replace(Some(listed));
    }

    /// Does what blocks on the directory, on a thread that may.
    async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Directory) -> T + Send + 'static,
    ) -> Result<T> {
        let directory = self.0.directory.clone();
        let done = tokio::task::spawn_blocking(move || work(&directory)).await;
        done.map_err(|_| shutting_down())
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps the order of use on the disk, as far as a crash may lose it, while the store is there.
async fn keep_recency(store: Weak<Inner>) {
    let mut due = tokio::time::interval(RECENCY_KEPT);
    due.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // The first comes at once.
    due.tick().await;
    loop {
        due.tick().await;
        let Some(inner) = store.upgrade() else { return };
        inner.save_recency().await;
    }
}

impl Inner {
    async fn save_recency(self: Arc<Self>) {
        // Before the listing is over the order on the disk is the better one.
        if !matches!(*self.scanned.borrow(), Some(Ok(()))) {
            return;
        }
        let this = self.clone();
        let saved = tokio::task::spawn_blocking(move || {
            let order = this.table.lock().unwrap_or_else(PoisonError::into_inner).recency();
            this.directory.save_recency(&order)
        });
        if let Ok(Err(error)) = saved.await {
            tracing::warn!(%error, "failed to keep in which order shards were used");
        }
    }
}

fn shutting_down() -> Error {
    Error::new(ErrorKind::Closed, "the daemon is shutting down")
}

/// Whether a copy that cannot be opened is itself to blame, rather than a limit or a device: only
/// then is it worth nothing.
fn is_the_copys_fault(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound | ErrorKind::Invalid)
}
