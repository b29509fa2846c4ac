//! Who has which shard, who fills it, and who may stay.
//!
//! One rule: whatever is asked for at the same time by many is done once. A shard's identity is
//! resolved once, its bytes are fetched by one flight, its file is opened once; everybody else
//! waits for that and shares the outcome, success or error.

mod room;
mod tally;

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::{Origin, Sidecar};
use forebay_source::{Options, Source, Sources, Stat};
use forebay_uring::{Arena, DiskFile, Engine, Open};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use lru::LruCache;
use tokio::sync::{OnceCell, Semaphore, watch};

use crate::budget::{Budget, Reservation};
use crate::directory::{Directory, ShardName};
use crate::fill::{FILLS, Job, Parts};
use crate::shard::{Growth, Lease, Shard, Traffic};
pub use room::{Claim, Urgency};
pub use tally::Counters;
use tally::Tally;

/// How long an object's identity is taken as unchanged before its origin is asked again. Training
/// sets are written once; a minute keeps an epoch over 10⁵ shards from asking 10⁵ times a minute.
const IDENTITY_TTL: Duration = Duration::from_secs(60);

/// Identities remembered: a URL and a version are some 200 bytes, so 13 MB at most.
const IDENTITIES: NonZeroUsize = NonZeroUsize::new(65_536).expect("not zero");

/// Shards kept open: a file descriptor and an index (about 0.7 MB for 5,000 samples) each.
const OPEN_SHARDS: NonZeroUsize = NonZeroUsize::new(256).expect("not zero");

/// What a store is made of.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// The cache directory; made if missing.
    pub directory: PathBuf,
    /// Bytes it may hold, at most.
    pub capacity: u64,
}

/// One tier on one directory. Cheap to clone.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    directory: Directory,
    engine: Engine,
    sources: Sources,
    frames: Arena,
    budget: Arc<Budget>,
    table: Mutex<Table>,
    flights: Semaphore,
    scanned: watch::Sender<bool>,
    tally: Tally,
    traffic: Arc<Traffic>,
}

struct Table {
    /// Every shard on the tier, arriving ones included, by recency.
    entries: LruCache<ShardName, Entry>,
    /// Shards on their way.
    filling: HashMap<ShardName, Arc<Shard>>,
    /// Whole, open shards. A count of one on the `Arc` means that nobody holds a lease.
    open: LruCache<ShardName, Arc<Shard>>,
    /// Shards being opened or begun, and who asked first.
    opening: HashMap<ShardName, (Urgency, Shared<Opened>)>,
    /// Shards whose files are being removed; their names are free again afterwards.
    leaving: HashMap<ShardName, Shared<Gone>>,
    identities: LruCache<(String, String), Identity>,
    claims: HashMap<ShardName, usize>,
}

/// The outcome of opening or beginning a shard, for everybody who asked meanwhile.
type Opened = BoxFuture<'static, Result<Arc<Shard>>>;

/// The end of a removal.
type Gone = BoxFuture<'static, ()>;

/// A shard that somebody asked for.
#[derive(Clone)]
struct Wanted {
    name: ShardName,
    origin: Origin,
    source: Arc<dyn Source>,
    stat: Stat,
}

struct Entry {
    whole: bool,
    reservation: Arc<Reservation>,
}

impl Table {
    /// The shard, if it is arriving or open; using it makes it recent.
    fn in_use(&mut self, name: &ShardName) -> Option<Arc<Shard>> {
        let shard = self.filling.get(name).or_else(|| self.open.get(name)).cloned()?;
        self.entries.promote(name);
        Some(shard)
    }
}

#[derive(Clone)]
struct Identity {
    stat: Arc<OnceCell<Stat>>,
    asked: Instant,
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
        let root = config.directory.clone();
        let directory = tokio::task::spawn_blocking(move || Directory::open(&root))
            .await
            .map_err(|_| Error::new(ErrorKind::Closed, "shutting down"))??;
        let store = Self(Arc::new(Inner {
            directory,
            engine,
            sources,
            frames,
            budget: Budget::new(config.capacity),
            table: Mutex::new(Table {
                entries: LruCache::unbounded(),
                filling: HashMap::new(),
                open: LruCache::new(OPEN_SHARDS),
                opening: HashMap::new(),
                leaving: HashMap::new(),
                identities: LruCache::new(IDENTITIES),
                claims: HashMap::new(),
            }),
            flights: Semaphore::new(FILLS),
            scanned: watch::Sender::new(false),
            tally: Tally::default(),
            traffic: Arc::default(),
        }));
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
        let stat = self.identity(&*source, url).await?;
        let origin = Origin {
            endpoint: source.endpoint().to_owned(),
            url: url.to_owned(),
            version: stat.version.clone(),
        };
        let wanted = Wanted { name: ShardName::new(&origin), origin, source, stat };
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
            let whole = table.entries.peek(&wanted.name).is_some_and(|entry| entry.whole);
            if let (Ok(shard), true) = (&opened, whole) {
                table.open.put(wanted.name, shard.clone());
            }
            drop(table);
            self.0.budget.wake();
            opened
        });
        let ended = |joined: Result<_, _>| {
            joined.unwrap_or_else(|_| Err(Error::new(ErrorKind::Closed, "shutting down")))
        };
        task.map(ended).boxed().shared()
    }

    /// Drops a copy whose bytes turned out wrong; the next [`Store::shard`] fetches it anew. Of
    /// everybody who meets the same bad copy, the first drops and counts it.
    pub async fn condemn(&self, shard: &Lease, why: &Error) {
        let gone = {
            let mut table = self.table();
            // A copy is known by its reservation: the shard may have been opened anew since.
            let is_there = table.entries.peek(shard.name()).is_some_and(|entry| {
                entry.whole && Arc::ptr_eq(&entry.reservation, &shard.reservation)
            });
            is_there.then(|| self.leave(&mut table, shard.name()))
        };
        if let Some(gone) = gone {
            self.0.tally.corruptions.inc();
            tracing::error!(shard = shard.name().as_str(), error = %why, "dropped a corrupt copy");
            gone.await;
        }
    }

    /// What was counted since the start.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let shards = self.table().entries.len();
        self.0.tally.read(&self.0.budget, &self.0.traffic, shards)
    }

    /// The directory.
    #[must_use]
    pub fn directory(&self) -> &std::path::Path {
        self.0.directory.root()
    }

    /// Waits until everything the directory held at the start is known.
    pub async fn scanned(&self) {
        // The sender lives in `self`: the wait cannot fail.
        let _ = self.0.scanned.subscribe().wait_for(|done| *done).await;
    }

    /// From now on a copy out of a frame panics: tests prove by it that warm reads copy nothing.
    #[doc(hidden)]
    pub fn forbid_copies(&self) {
        self.0.traffic.no_copies.store(true, Ordering::Relaxed);
    }

    /// Ends fills; their partial data is swept at the next start.
    pub fn close(&self) {
        self.0.flights.close();
    }

    async fn identity(&self, source: &dyn Source, url: &str) -> Result<Stat> {
        let key = (source.endpoint().to_owned(), url.to_owned());
        let identity = {
            let mut table = self.table();
            match table.identities.get(&key) {
                Some(known) if known.asked.elapsed() < IDENTITY_TTL => known.clone(),
                _ => {
                    let fresh = Identity { stat: Arc::default(), asked: Instant::now() };
                    table.identities.put(key, fresh.clone());
                    fresh
                }
            }
        };
        identity.stat.get_or_try_init(|| source.stat(url)).await.cloned()
    }

    async fn open_or_begin(&self, wanted: &Wanted, urgency: Urgency) -> Result<Arc<Shard>> {
        let leaving = self.table().leaving.get(&wanted.name).cloned();
        if let Some(gone) = leaving {
            gone.await;
        }
        if let Some(reservation) = self.known(&wanted.name).await {
            match self.open_whole(wanted, reservation).await {
                Ok(shard) => {
                    self.0.tally.hits.inc();
                    return Ok(shard);
                }
                Err(error) => self.discard(&wanted.name, &error).await,
            }
        }
        self.begin(wanted, urgency).await
    }

    /// The reservation of a whole shard, waiting for the scan only if it is not yet known.
    async fn known(&self, name: &ShardName) -> Option<Arc<Reservation>> {
        let look = || {
            let mut table = self.table();
            table.entries.get(name).filter(|entry| entry.whole).map(|e| e.reservation.clone())
        };
        match look() {
            None if !*self.0.scanned.borrow() => {
                self.scanned().await;
                look()
            }
            known => known,
        }
    }

    async fn open_whole(
        &self,
        wanted: &Wanted,
        reservation: Arc<Reservation>,
    ) -> Result<Arc<Shard>> {
        let (this, of) = (self.clone(), wanted.name.clone());
        let sidecar = tokio::task::spawn_blocking(move || this.0.directory.read_sidecar(&of))
            .await
            .map_err(|_| Error::new(ErrorKind::Closed, "shutting down"))??;
        if (&sidecar.origin, sidecar.len) != (&wanted.origin, wanted.stat.len) {
            return Err(Error::new(ErrorKind::Corrupt, "the sidecar names another shard"));
        }
        let path = self.0.directory.data(&wanted.name);
        let file = self.0.engine.open(&path, Open::Read).await?;
        Ok(self.assemble(wanted, Growth::whole(sidecar.index), file, None, reservation))
    }

    async fn begin(&self, wanted: &Wanted, urgency: Urgency) -> Result<Arc<Shard>> {
        let Wanted { name, origin, source, stat } = wanted;
        let reservation = self.make_room(&origin.url, stat.len, urgency).await?;
        self.0.tally.misses.inc();
        let path = self.0.directory.data(name);
        let file = match self.0.engine.open(&path, Open::Create { len: stat.len }).await {
            Ok(file) => file,
            Err(error) => {
                // A file made before the disk turned out to be full would be swept only at the
                // next start.
                let _ = std::fs::remove_file(&path);
                return Err(error.at("url", &origin.url));
            }
        };
        let (growth, parts) = (Growth::new(), Parts::new(stat.len));
        let arriving = Some(parts.clone());
        let shard =
            self.assemble(wanted, growth.clone(), file.clone(), arriving, reservation.clone());
        {
            let mut table = self.table();
            table.entries.put(name.clone(), Entry { whole: false, reservation });
            table.filling.insert(name.clone(), shard.clone());
        }
        let job = Job {
            url: origin.url.clone(),
            source: source.clone(),
            stat: stat.clone(),
            engine: self.0.engine.clone(),
            frames: self.0.frames.clone(),
            file,
            parts,
            growth,
        };
        tokio::spawn(self.clone().fill(job, origin.clone(), shard.clone()));
        Ok(shard)
    }

    /// Runs a fill to its end and makes the shard whole, or fails everyone who waits for it.
    async fn fill(self, job: Job, origin: Origin, shard: Arc<Shard>) {
        let name = shard.name().clone();
        let filled = self.fill_and_commit(&job, origin, &name).await;
        *shard.parts.lock().unwrap_or_else(PoisonError::into_inner) = None;
        match filled {
            Ok(()) => {
                self.0.tally.fills.inc();
                self.0.tally.origin_bytes.add(job.stat.len);
                let mut table = self.table();
                if let Some(entry) = table.entries.peek_mut(&name) {
                    entry.whole = true;
                }
                if let Some(shard) = table.filling.remove(&name) {
                    table.open.put(name, shard);
                }
            }
            Err(error) => {
                tracing::warn!(url = job.url, %error, "failed to fetch a shard");
                self.0.tally.failed_fills.inc();
                {
                    let mut table = self.table();
                    table.filling.remove(&name);
                    // The object may have changed: its identity is asked anew.
                    let key = (job.source.endpoint().to_owned(), job.url.clone());
                    table.identities.pop(&key);
                    drop(self.leave(&mut table, &name));
                }
                job.parts.fail(&error);
                job.growth.fail(&error);
            }
        }
        drop(shard);
        self.0.budget.wake();
    }

    async fn fill_and_commit(&self, job: &Job, origin: Origin, name: &ShardName) -> Result<()> {
        let closed = |_| Error::new(ErrorKind::Closed, "the daemon is shutting down");
        let _flight = self.0.flights.acquire().await.map_err(closed)?;
        job.run(&self.0.directory.data(name)).await?;
        let index = job.growth.index().clone();
        let sidecar = Sidecar { origin, len: job.stat.len, index };
        let (this, name) = (self.clone(), name.clone());
        tokio::task::spawn_blocking(move || this.0.directory.commit(&name, &sidecar))
            .await
            .map_err(|_| Error::new(ErrorKind::Closed, "the daemon is shutting down"))?
    }

    fn assemble(
        &self,
        wanted: &Wanted,
        growth: Growth,
        file: DiskFile,
        parts: Option<Arc<Parts>>,
        reservation: Arc<Reservation>,
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
            reservation,
        })
    }

    /// Drops a copy that cannot be opened.
    async fn discard(&self, name: &ShardName, why: &Error) {
        tracing::warn!(shard = name.as_str(), error = %why, "dropped a copy that cannot be opened");
        if why.kind() == ErrorKind::Corrupt {
            self.0.tally.corruptions.inc();
        }
        let gone = {
            let mut table = self.table();
            self.leave(&mut table, name)
        };
        gone.await;
    }

    /// Takes a shard off the tier. Its bytes stay reserved until its files are gone, and its name
    /// taken; the removal goes on whether it is waited for or not.
    fn leave(&self, table: &mut Table, name: &ShardName) -> Shared<Gone> {
        table.open.pop(name);
        let entry = table.entries.pop(name);
        let (store, of) = (self.clone(), name.clone());
        let removal = tokio::task::spawn_blocking(move || {
            if let Err(error) = store.0.directory.remove(&of) {
                tracing::error!(%error, "failed to remove a shard");
            }
            let mut table = store.table();
            table.leaving.remove(&of);
            drop(table);
            drop(entry);
        });
        let gone = removal.map(|_| ()).boxed().shared();
        table.leaving.insert(name.clone(), gone.clone());
        gone
    }

    fn scan(&self) {
        match self.0.directory.recover() {
            Ok(found) => {
                let mut table = self.table();
                tracing::info!(shards = found.len(), "found whole shards on the tier");
                for shard in found {
                    let reservation = Arc::new(self.0.budget.enter(shard.bytes));
                    let entry = Entry { whole: true, reservation };
                    tracing::debug!(url = shard.url, "found a shard");
                    table.entries.put(shard.name, entry);
                }
            }
            Err(error) => tracing::error!(%error, "failed to list the tier"),
        }
        self.0.scanned.send_replace(true);
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
