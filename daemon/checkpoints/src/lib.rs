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

mod clock;
mod load;
mod places;
mod publish;
mod registry;
mod report;
mod save;
mod tidy;
mod upload;
mod wait;

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_checkpoint::{Level, Progress, Record, object_url};
use forebay_engine::session::{Grant, SlabMemory};
use forebay_error::{Error, ErrorKind, Result, shown};
use forebay_source::{Options, Rate, Sink};
use forebay_store::Store;
use forebay_uring::Arena;
use forebay_wire::checkpoint::Place;
use lru::LruCache;
use tokio::sync::{OnceCell, Semaphore};
use tokio::task::JoinSet;

pub use load::Loading;
pub use report::{CheckpointReport, CheckpointsReport};
pub use save::{Saving, Writer};

use places::Places;
use registry::Registry;
use upload::UPLOADS;

/// Bandwidth limits remembered: one per rule in use.
const RATES: NonZeroUsize = NonZeroUsize::new(64).expect("64 is not zero");

/// All checkpoints of a node. Dropped, its uploads stop where they are.
pub struct Checkpoints {
    inner: Arc<Inner>,
    tasks: Mutex<JoinSet<()>>,
}

pub(crate) struct Inner {
    store: Store,
    slabs: SlabMemory,
    registry: Registry,
    /// Rate limits by the rule's pattern.
    rates: Mutex<LruCache<String, Arc<Rate>>>,
    uploads: Semaphore,
    /// Objects that are being written.
    places: Places,
    /// Memory of parts, once there was an upload.
    parts: OnceCell<(Arena, Grant)>,
}

impl Checkpoints {
    /// Finds what was staged before, and goes on with its uploads.
    pub async fn start(store: Store, slabs: SlabMemory) -> Self {
        let inner = Arc::new(Inner {
            store,
            slabs,
            registry: Registry::default(),
            rates: Mutex::new(LruCache::new(RATES)),
            uploads: Semaphore::new(UPLOADS),
            places: Places::default(),
            parts: OnceCell::new(),
        });
        let checkpoints = Self { inner, tasks: Mutex::default() };
        checkpoints.resume().await;
        let inner = checkpoints.inner.clone();
        checkpoints.spawn(async move {
            let mut period = tokio::time::interval(tidy::PERIOD);
            loop {
                period.tick().await;
                inner.look_after().await;
                inner.expire().await;
            }
        });
        checkpoints
    }

    async fn resume(&self) {
        let (found, failed) = self.inner.store.staged().await;
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
            let tracked = self.inner.registry.add(staged.file, record, options);
            self.begin_upload(tracked);
        }
    }

    /// Gives the credentials of a client who may save there to files that wait for some: a restart
    /// forgets them.
    ///
    /// # Errors
    /// `Invalid` for a place that nothing can be saved to.
    pub fn supply(&self, place: &Place) -> Result<()> {
        let (url, options) = (checked_url(&place.url)?, Options::from(place.origin.clone()));
        self.inner.supply(&url, &options);
        Ok(())
    }

    /// Returns true while something is on its way to a store.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        let is_on_its_way = |record: &Record| {
            let wanted = if record.commit.is_some() { Level::Published } else { Level::Uploaded };
            record.progress.level() < wanted
        };
        !self.inner.registry.select(is_on_its_way).is_empty()
    }

    fn sink(&self, url: &str, options: &Options) -> Result<Arc<dyn Sink>> {
        self.inner.sink(url, options)
    }

    /// Names of the tiers for a file, by the rule of its URL.
    fn check_rule(&self, url: &str, bytes: u64) -> Result<Vec<String>> {
        let Some(rule) = self.inner.store.checkpoint_rule(url) else { return Ok(Vec::new()) };
        let Some(max) = rule.max_bytes else { return Ok(rule.tiers) };
        let staged = self.inner.registry.select(|record| {
            let its = self.inner.store.checkpoint_rule(&record.url);
            its.is_some_and(|other| other.matches == rule.matches)
        });
        let held: u64 = staged.iter().map(|file| file.record().len).sum();
        match held.saturating_add(bytes) <= max {
            true => Ok(rule.tiers),
            false => Err(Error::new(ErrorKind::Full, "checkpoints of this rule take their `max`")
                .at("url", shown(url))
                .at("max", max)
                .at("staged", held)
                .at("bytes", bytes)
                .advise("wait until uploads are done, or raise `max` of the [[checkpoint]]")),
        }
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }
}

impl Inner {
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
            let lone = || record.is_lone && object_url(&record.url, &record.name) == url;
            record.endpoint.as_ref() == Some(&endpoint) && (record.url == url || lone())
        };
        for tracked in self.registry.select(is_meant) {
            tracked.supply(options.clone());
            self.registry.note_trouble(&tracked, None);
        }
    }
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
