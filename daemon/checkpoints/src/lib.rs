//! Checkpoints: staged on the node, uploaded behind the training, published as a whole, restored
//! from the nearest place.
//!
//! ```text
//!   trainer ──blocks──▶ save ──sealed──▶ upload ──receipts──▶ publish ──▶ visible
//!                                │ record on the tier
//!   trainer ◀──blocks── load ◀───┴── the store
//! ```
//! A trainer waits for its node's disk only. What it was told is durable, and goes on after any
//! restart: the record of each file names its destination.

mod claims;
mod clock;
mod counts;
mod keeping;
mod lanes;
mod load;
mod names;
mod places;
mod publish;
mod registry;
mod remove;
mod replicas;
mod report;
mod save;
mod saves;
mod tidy;
mod unsealed;
mod upload;
mod wait;

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use forebay_checkpoint::{Level, Progress, Record};
use forebay_engine::session::SlabMemory;
use forebay_error::{Error, ErrorKind, Result, shown};
use forebay_peer_server::Replicas;
use forebay_peers::Peers;
use forebay_source::{Options, Rate, Sink};
use forebay_store::Store;
use forebay_wire::checkpoint::Place;
use lru::LruCache;
use tokio::sync::SetOnce;
use tokio::task::JoinSet;

pub use load::Loading;
pub use report::{CheckpointReport, CheckpointsReport};
pub use save::{Saving, Writer};

use claims::Claims;
use counts::Counts;
use keeping::Keeping;
use lanes::Lanes;
use places::Places;
use registry::{Registry, Tracked};
use saves::Saves;
use wait::is_final;

/// Bandwidth limits remembered: one per rule in use.
const RATES: NonZeroUsize = NonZeroUsize::new(64).expect("64 is not zero");

/// All checkpoints of a node. Dropped, its uploads stop where they are.
pub struct Checkpoints {
    inner: Arc<Inner>,
    tasks: Arc<Tasks>,
}

/// Tasks of uploads, ended on drop.
#[derive(Default)]
struct Tasks(Mutex<JoinSet<()>>);

impl Tasks {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// Begins to upload a file, or goes on with it.
    fn upload(&self, inner: &Arc<Inner>, tracked: Arc<Tracked>) {
        let inner = inner.clone();
        self.spawn(async move { inner.bring(&tracked).await });
    }
}

pub(crate) struct Inner {
    store: Store,
    registry: Registry,
    /// Copies of other nodes' files.
    keeping: Keeping,
    /// Other nodes; none without a cluster.
    peers: Option<Arc<Peers>>,
    counts: Counts,
    /// Rate limits by the rule's pattern.
    rates: Mutex<LruCache<String, Arc<Rate>>>,
    lanes: Lanes,
    /// Objects that are being written.
    places: Places,
    saves: Saves,
    claims: Arc<Claims>,
    /// Set once the registry has what was staged before.
    resumed: SetOnce<()>,
}

impl Checkpoints {
    /// Begins to look for what was staged before, and goes on with its uploads. Nobody else waits
    /// for the listing of the tiers.
    #[must_use]
    pub fn start(store: Store, slabs: SlabMemory, peers: Option<Arc<Peers>>) -> Self {
        let inner = Arc::new(Inner {
            store,
            registry: Registry::default(),
            keeping: Keeping::default(),
            peers,
            counts: Counts::default(),
            rates: Mutex::new(LruCache::new(RATES)),
            lanes: Lanes::new(slabs),
            places: Places::default(),
            saves: Saves::default(),
            claims: Arc::default(),
            resumed: SetOnce::new(),
        });
        let checkpoints = Self { inner, tasks: Arc::default() };
        let (inner, tasks) = (checkpoints.inner.clone(), Arc::downgrade(&checkpoints.tasks));
        checkpoints.tasks.spawn(async move {
            inner.resume(&tasks).await;
            let mut period = tokio::time::interval(tidy::PERIOD);
            loop {
                period.tick().await;
                inner.look_after().await;
                inner.expire().await;
            }
        });
        let (inner, tasks) = (checkpoints.inner.clone(), Arc::downgrade(&checkpoints.tasks));
        checkpoints.tasks.spawn(async move {
            inner.resumed.wait().await;
            let mut period = tokio::time::interval(keeping::PERIOD);
            loop {
                period.tick().await;
                inner.look_after_copies(&tasks).await;
            }
        });
        checkpoints
    }

    /// Gives the credentials of a client who may save there to files that wait for some: a restart
    /// forgets them. Returns the number of its files that are not in the store yet.
    ///
    /// # Errors
    /// `Invalid` for a place that nothing can be saved to.
    pub async fn supply(&self, place: &Place) -> Result<u64> {
        self.inner.resumed.wait().await;
        let (url, options) = (checked_url(&place.url)?, Options::from(place.origin.clone()));
        self.inner.supply(&url, &options);
        let waiting = |record: &Record| record.named_url() == url && is_on_its_way(record);
        Ok(self.inner.registry.select(waiting).len() as u64)
    }

    /// Brings what waits on this node to a place: supplies credentials as [`Checkpoints::supply`]
    /// does, and takes over the second copies of other nodes' files. Returns the number of files
    /// that are not in the store yet.
    ///
    /// # Errors
    /// As [`Checkpoints::supply`]; those of the device.
    pub async fn resume(&self, place: &Place) -> Result<u64> {
        self.inner.resumed.wait().await;
        let tasks = Arc::downgrade(&self.tasks);
        self.inner.take_over_all(&checked_url(&place.url)?, &tasks).await?;
        self.supply(place).await
    }

    /// Answers to other nodes about second copies.
    #[must_use]
    pub fn replicas(&self) -> Weak<dyn Replicas> {
        let inner: Weak<Inner> = Arc::downgrade(&self.inner);
        inner
    }

    /// Returns true while something is on its way to a store, and needs nobody's help.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        let waiting = || self.inner.registry.select(is_on_its_way);
        let is_moving = |file: &Arc<Tracked>| {
            !file.awaits_commit() && !file.trouble().is_some_and(|error| is_final(&error))
        };
        !self.inner.resumed.initialized() || waiting().iter().any(is_moving)
    }
}

impl Inner {
    /// Finds what was staged before, and goes on with its uploads.
    async fn resume(self: &Arc<Self>, tasks: &Weak<Tasks>) {
        let (found, failed) = self.store.staged().await;
        for error in failed {
            tracing::warn!(%error, "staged files of checkpoints cannot be read");
        }
        for staged in found {
            let record = match Record::decode(&staged.record) {
                Ok(record) => record,
                Err(error) => {
                    let (id, tier) = (staged.file.id(), staged.file.tier());
                    tracing::error!(id, tier, %error, "the record of a staged file is damaged");
                    continue;
                }
            };
            let options = Options::from(record.endpoint.clone().unwrap_or_default());
            if record.home.is_some() {
                self.keeping.files().add(staged.file, record, options);
                continue;
            }
            let tracked = self.registry.add(staged.file, record, options);
            if let Some(tasks) = tasks.upgrade() {
                tasks.upload(self, tracked);
            }
        }
        // Set once, here.
        let _ = self.resumed.set(());
    }

    fn sink(&self, url: &str, options: &Options) -> Result<Arc<dyn Sink>> {
        self.store.sink(url, options)
    }

    /// Rate limit of uploads below a URL.
    fn rate(&self, url: &str) -> Option<Arc<Rate>> {
        let rule = self.store.checkpoint_rule(url)?;
        let bandwidth = rule.upload_bandwidth?;
        let mut rates = self.rates();
        let make = || Arc::new(Rate::new(bandwidth));
        let rate = rates.get_or_insert(rule.matches.as_str().to_owned(), make).clone();
        // The rules may have changed.
        rate.set(Some(bandwidth));
        Some(rate)
    }

    fn rates(&self) -> MutexGuard<'_, LruCache<String, Arc<Rate>>> {
        self.rates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives fresh credentials to the files of a checkpoint that go to the same place.
    fn supply(&self, url: &str, options: &Options) {
        let endpoint = options.without_secrets();
        let is_meant = |record: &Record| {
            // Nothing helps a damaged file: its reason stays.
            if matches!(record.progress, Progress::Failed { .. }) {
                return false;
            }
            let is_there = record.url == url || record.named_url() == url;
            is_there && record.endpoint.as_ref() == Some(&endpoint)
        };
        for tracked in self.registry.select(is_meant) {
            self.registry.supply(&tracked, options.clone());
        }
    }
}

/// Returns true for a file that is to go to the store, or to be published there.
fn is_on_its_way(record: &Record) -> bool {
    let wanted = if record.commit.is_some() { Level::Published } else { Level::Uploaded };
    record.progress.level() < wanted
}

/// Returns the URL of a checkpoint in its one spelling, without a slash at its end.
fn checked_url(url: &str) -> Result<String> {
    let trimmed = url.trim_end_matches('/');
    let is_web = ["http://", "https://"].iter().any(|scheme| trimmed.starts_with(scheme));
    match trimmed {
        "" => Err(Error::new(ErrorKind::Invalid, "a checkpoint needs a URL")),
        _ if is_web => Err(Error::new(ErrorKind::Invalid, "nothing can be saved to a web server")
            .at("url", shown(url))
            .advise("name a bucket, as in s3://bucket/run/step-100")),
        _ => Ok(trimmed.to_owned()),
    }
}
