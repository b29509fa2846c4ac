//! Store of a node: finds, fetches and shares shards.
//!
//! Concurrent requests for the same thing are served once. A shard's identity is resolved
//! once, its bytes are fetched once, and its file is opened once. All requests share the outcome,
//! success or error.
//!
//! A shard is looked for on the fastest tier first, and fetched only if no tier has it. If no tier
//! can take it, because devices fail or an admin disabled them, it is read through: indexed in one
//! pass, not stored, and read from its origin.

mod admin;
mod announce;
mod at_owner;
mod by_ranges;
mod capacity;
mod check;
mod excerpts;
mod explain;
mod for_peers;
mod identity;
mod in_place;
mod memory_checks;
mod moves;
mod opening;
mod pin;
mod place;
mod placement;
mod prefetch;
mod reconfigure;
mod reports;
mod selector;
mod snapshot;
mod staged;
mod upkeep;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_peers::{Hop, Peers};
use forebay_source::{Bill, ByClient, Client, Listing, Options, Rank, Rate, Source, Sources};
use forebay_uring::{Arena, Engine};
use futures::future::Shared;
use lru::LruCache;
use tokio::sync::Notify;

use crate::checkpoint_rule::CheckpointRule;
use crate::dataset::Dataset;
use crate::device;
use crate::directory::ShardName;
use crate::fill::FirstBatchWait;
use crate::journal::Listener;
use crate::ledger::Payer;
use crate::mounts::is_unmounted;
use crate::open_shards::OpenShards;
use crate::pins::{Pins, read_pins};
use crate::shard::{Shard, ShardHandle};
use crate::shared_state::SharedState;
use crate::shares::{Charge, Shares};
use crate::tenant::Tenant;
use crate::tier::{CopyFacts, Tier, TierConfig, Urgency};
pub use announce::{AnnouncedReads, Announcement};
pub use by_ranges::{ObjectRange, Places};
pub use check::Checked;
pub use excerpts::ExcerptPlaces;
pub use explain::{Explained, OriginAnswer, Quota, TierRoom};
pub use for_peers::PeerShard;
use moves::Promotions;
use opening::{Asker, Opened};
pub use placement::rules_digest;
pub use prefetch::Prefetched;
pub use reconfigure::StoreRules;
use snapshot::Snapshot;
pub use snapshot::{OnChange, RunStart};
pub use staged::{FoundStagedFile, StagedFile};

/// Configuration of a store.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// Tiers.
    pub tiers: Vec<TierConfig>,
    /// Rules for data sets; the first with a matching pattern counts.
    pub datasets: Vec<Dataset>,
    /// Limits of tenants; others have none.
    pub tenants: Vec<Tenant>,
    /// Rules for checkpoints; the first with a matching pattern counts.
    pub checkpoints: Vec<CheckpointRule>,
    /// Period of the checks of all devices: is the directory still there, how full is the disk, has
    /// a failed device recovered?
    pub look_after: Duration,
    /// The daemon's own directory, in which it notes where tiers are mounted; none: it notes
    /// nothing.
    pub state: Option<PathBuf>,
}

/// All tiers of a node, for the job of one tenant: shards fetched through it are charged to that
/// tenant. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    inner: Arc<StoreInner>,
    /// Name of the tenant, which may be configured or not at any time.
    tenant: Option<Arc<str>>,
    /// Number of the job, or 0. Jobs take turns to fetch.
    owner: u64,
    /// Name of the job, for cost reports.
    job: Option<Arc<str>>,
    /// Client that opens files itself, where the daemon opens none.
    client: Option<ByClient>,
    /// Rate limit of the asker.
    pace: Option<Arc<Rate>>,
    /// Run of the job, and the versions it has seen; none without a job.
    snapshot: Option<Arc<Snapshot>>,
    /// Place of its requests on their way through a cluster.
    hop: Hop,
    /// True if the owner of a shard told this node to keep the second copy.
    is_told: bool,
}

struct StoreInner {
    /// Fastest first.
    tiers: Vec<Tier>,
    shared: Arc<SharedState>,
    sources: Sources,
    /// Shards being opened or begun, with the first asker.
    opening: Mutex<HashMap<ShardName, (Asker, Shared<Opened>)>>,
    promotions: Promotions,
    /// Other nodes, once this one is in a cluster.
    peers: OnceLock<Arc<Peers>>,
    /// Shards open at the nodes that own them.
    elsewhere: Mutex<OpenShards>,
    /// Shards whose owner sent wrong bytes, and since when.
    distrusted: Mutex<LruCache<ShardName, Instant>>,
    /// Facts about copies that other nodes read.
    copy_facts: Mutex<LruCache<ShardName, Arc<CopyFacts>>>,
    /// Wakes the task that tells other nodes of second copies.
    second_copies: Arc<Notify>,
    /// Held while a copy that another node found wrong is compared.
    comparing: tokio::sync::Mutex<()>,
    /// Held by a change of rules, from its checks to its end.
    reconfiguring: tokio::sync::Mutex<()>,
    /// Held by a change of pins.
    pinning: tokio::sync::Mutex<()>,
}

impl Drop for StoreInner {
    fn drop(&mut self) {
        // Wakes the background tasks, which then find the store gone.
        self.shared.moves.notify_one();
        self.shared.forecast.changed.notify_one();
        self.second_copies.notify_one();
    }
}

/// Request that a shard stay, until dropped.
pub struct Claim {
    tier: Option<Tier>,
    name: ShardName,
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(tier) = &self.tier {
            tier.unclaim(&self.name);
        }
    }
}

impl Store {
    /// Opens the tiers and starts to list them. The store serves at once.
    ///
    /// A tier whose directory cannot be used is down, and tried again: another daemon has it, it
    /// has other content, it is not writable, or its disk is not mounted.
    ///
    /// # Errors
    /// If the configuration is invalid; if the rules of data sets and checkpoints cannot all be
    /// kept; if no tier can be used, unless only their disks are not mounted.
    pub async fn open(config: StoreConfig, sources: Sources, frames: Arena) -> Result<Self> {
        place::check(&config.tiers)?;
        let sizes: Vec<_> =
            config.tiers.iter().map(|tier| (tier.name.as_str(), tier.capacity)).collect();
        let shares = Shares::new(config.datasets, config.tenants, &sizes)?
            .with_checkpoints(config.checkpoints, &sizes)?;
        let disks = config.tiers.iter().filter_map(|tier| Some(tier.disk.as_ref()?.path.clone()));
        let pins = load_pins(disks).await;
        let largest = sizes.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
        let shared = SharedState::new(frames, shares, pins, largest);
        let mut tiers = Vec::with_capacity(config.tiers.len());
        for tier in config.tiers {
            tiers.push(Tier::open(tier, config.state.as_deref(), shared.clone()).await?);
        }
        check_usable(&tiers)?;
        tiers.sort_by_key(Tier::class);
        let second_copies = Arc::new(Notify::new());
        let inner = StoreInner {
            tiers,
            shared: shared.clone(),
            sources,
            opening: Mutex::default(),
            promotions: Promotions::default(),
            peers: OnceLock::new(),
            elsewhere: Mutex::new(OpenShards::new()),
            distrusted: Mutex::new(LruCache::new(at_owner::DISTRUSTED)),
            copy_facts: Mutex::new(LruCache::new(for_peers::REMEMBERED)),
            second_copies: second_copies.clone(),
            comparing: tokio::sync::Mutex::default(),
            reconfiguring: tokio::sync::Mutex::default(),
            pinning: tokio::sync::Mutex::default(),
        };
        let store = Self::without_job(Arc::new(inner));
        tokio::spawn(upkeep::keep_recency(Arc::downgrade(&store.inner)));
        tokio::spawn(upkeep::look_after(Arc::downgrade(&store.inner), config.look_after));
        tokio::spawn(memory_checks::check_memory(Arc::downgrade(&store.inner)));
        let forecast = shared.forecast.clone();
        tokio::spawn(announce::fetch_ahead(Arc::downgrade(&store.inner), forecast));
        tokio::spawn(moves::move_shards(Arc::downgrade(&store.inner), shared));
        let weak = Arc::downgrade(&store.inner);
        tokio::spawn(for_peers::tell_about_second_copies(weak, second_copies));
        Ok(store)
    }

    /// The store for work of no job: charged to no tenant, without limits of its own.
    fn without_job(inner: Arc<StoreInner>) -> Self {
        Self {
            inner,
            tenant: None,
            owner: 0,
            job: None,
            client: None,
            pace: None,
            snapshot: None,
            hop: Hop::First,
            is_told: false,
        }
    }

    /// The same store for a tenant; an unconfigured tenant has no limits.
    #[must_use]
    pub fn for_tenant(&self, name: Option<&str>) -> Self {
        let shares = self.inner.shared.shares.current();
        let tenant = name.filter(|name| shares.has_tenant(name)).map(Arc::from);
        Self { tenant, ..self.clone() }
    }

    /// The same store for a job, by its number: concurrent jobs get equal shares of fetches. The
    /// job's first run begins now.
    #[must_use]
    pub fn for_job(&self, number: u64) -> Self {
        Self { owner: number, snapshot: Some(Arc::new(Snapshot::begin())), ..self.clone() }
    }

    /// The same store for a job of this name: its fetches are billed to it.
    #[must_use]
    pub fn named(&self, job: &str) -> Self {
        Self { job: Some(job.into()), ..self.clone() }
    }

    /// The same store for a client that opens files itself.
    #[must_use]
    pub fn for_client(&self, client: &Client) -> Self {
        Self { client: Some(self.inner.sources.by_client(client)), ..self.clone() }
    }

    /// Returns true if a shard that did not arrive came through another client's files: this
    /// client's own files may succeed.
    #[must_use]
    pub fn came_through_other_client(&self, shard: &ShardHandle) -> bool {
        self.own_files(shard).is_some()
    }

    /// This client's files, if the shard comes through another's.
    fn own_files(&self, shard: &Shard) -> Option<Arc<dyn Source>> {
        self.client.as_ref().and_then(|client| client.instead_of(&shard.source))
    }

    /// The same store with a rate limit, unless others want the same shards.
    #[must_use]
    pub fn paced(&self, pace: Option<Arc<Rate>>) -> Self {
        Self { pace, ..self.clone() }
    }

    /// Number of the job, for the log; none without a job.
    #[must_use]
    pub fn session(&self) -> Option<u64> {
        self.job.as_ref().map(|_| self.owner)
    }

    /// Tenant that is charged.
    #[must_use]
    pub fn tenant(&self) -> Option<&str> {
        self.tenant.as_deref()
    }

    /// Lists the shards that match a pattern of a remote store.
    ///
    /// # Errors
    /// As [`Sources::list`].
    pub async fn list(&self, pattern: &str, options: &Options) -> Result<Listing> {
        self.inner.sources.list_for(pattern, options, self.client.as_ref()).await
    }

    /// Opens the shard at `url`, on a tier or on its way there.
    ///
    /// # Errors
    /// The error of the origin; `Full` if there is no room and none can be made.
    pub async fn shard(
        &self,
        url: &str,
        options: &Options,
        urgency: Urgency,
    ) -> Result<ShardHandle> {
        let rank = self.rank();
        let _awaited = (urgency == Urgency::Needed).then(|| rank.awaited());
        self.ranked(url, options, urgency, rank.clone()).await
    }

    /// Waits for the first `samples` samples of the shard at `url`; they are fetched before samples
    /// nobody waits for. The shard takes room as one fetched ahead, and may be evicted once they
    /// are here. Returns true if the whole shard is indexed.
    ///
    /// # Errors
    /// As [`Store::shard`]; the error of the fill, if it ended early.
    pub async fn wait_for_samples(
        &self,
        url: &str,
        options: &Options,
        samples: u64,
    ) -> Result<bool> {
        let rank = self.rank();
        let _awaited = rank.awaited();
        let shard = self.ranked(url, options, Urgency::Ahead, rank.clone()).await?;
        Ok(shard.wait(samples).await?.counted)
    }

    /// Marks this job as waiting for its first batch, until dropped: meanwhile only awaited samples
    /// of its shards are fetched.
    #[must_use]
    pub fn wait_for_first_batch(&self) -> FirstBatchWait {
        self.inner.shared.flights.starts.begin(self.owner)
    }

    /// Subscribes to the journal of arriving shards.
    #[must_use]
    pub fn listen(&self) -> Listener {
        self.inner.shared.journal.listen()
    }

    /// Bill of this job for fetches of `url`.
    fn bill(&self, url: &str) -> Arc<Bill> {
        self.payer().bill(url)
    }

    fn payer(&self) -> Payer {
        let SharedState { ledger, shares, .. } = &*self.inner.shared;
        let (ledger, shares) = (ledger.clone(), shares.clone());
        Payer { ledger, shares, job: self.job.clone(), tenant: self.tenant.clone() }
    }

    /// Rank of this job's requests.
    fn rank(&self) -> Rank {
        Rank::ahead(self.owner).paced(self.pace.clone())
    }

    fn charge(&self, url: &str) -> Charge {
        self.inner.shared.shares.current().charge(url, self.tenant())
    }

    /// Drops a copy whose bytes are wrong; the next [`Store::shard`] fetches it anew. If several
    /// readers find the same bad copy, the first drops and counts it.
    pub async fn drop_bad_copy(&self, shard: &ShardHandle, why: &Error) {
        match &shard.home {
            Some(home) => {
                if let Some(tier) = self.tier_of(shard) {
                    tier.drop_corrupt(shard.name(), &Arc::downgrade(&home.space), why).await;
                }
            }
            // The origin has changed bytes, or another version.
            None => {
                self.inner.shared.through().forget(shard.name());
                self.distrust(shard, why);
                self.inner.shared.forget_identity(&*shard.source, shard.url());
                if why.kind() == ErrorKind::Corrupt {
                    self.drop_index(shard).await;
                }
            }
        }
        if shard.lost.get().is_some() {
            self.inner.shared.through().forget(&ShardName::new(&shard.origin()));
        }
    }

    /// Asks that a shard stay while the claim is held.
    #[must_use]
    pub fn claim(&self, shard: &ShardHandle) -> Claim {
        let tier = self.tier_of(shard);
        if let Some(tier) = tier {
            tier.claim(shard.name());
        }
        Claim { tier: tier.cloned(), name: shard.name().clone() }
    }

    /// Tells the eviction policy that a job begins to use a shard.
    pub fn record_use(&self, shard: &ShardHandle) {
        let Some(tier) = self.tier_of(shard) else { return };
        let uses = tier.record_use(shard.name());
        self.consider_promotion(tier, shard, uses);
    }

    /// The tier that an open shard lies on.
    fn tier_of(&self, shard: &Shard) -> Option<&Tier> {
        let home = shard.home.as_ref()?;
        self.inner.tiers.iter().find(|tier| tier.name() == &*home.tier)
    }

    /// I/O engines of all disks: memory for reads is registered with all of them.
    #[must_use]
    pub fn engines(&self) -> Vec<Engine> {
        self.inner.tiers.iter().filter_map(Tier::engine).cloned().collect()
    }

    /// Waits until all directories are listed, except those of tiers that are down or disabled.
    ///
    /// # Errors
    /// If a directory cannot be listed: its content is unknown, and nothing may be added.
    pub async fn scanned(&self) -> Result<()> {
        for tier in self.inner.tiers.iter().filter(|tier| tier.is_attached()) {
            tier.scanned().await?;
        }
        Ok(())
    }

    /// Makes every copy out of a frame panic from now on: tests prove with it that warm reads copy
    /// nothing.
    #[doc(hidden)]
    pub fn forbid_copies(&self) {
        for tier in &self.inner.tiers {
            tier.traffic().forbid_copies();
        }
    }

    /// Lets no more fills begin, and saves the order of use for the next start. Running fills end
    /// with their runtime; the next start resumes from their records.
    pub async fn close(&self) {
        self.inner.shared.flights.close();
        // An identity request without waiters holds a connection: it is closed with this runtime.
        self.inner.shared.identities().clear();
        // In parallel: none waits for a device that does not answer.
        futures::future::join_all(self.inner.tiers.iter().map(Tier::save_briefly)).await;
    }
}

/// Pins in the directories of all disks. One that cannot be read keeps its tier down, so that its
/// shards stay.
async fn load_pins(disks: impl Iterator<Item = PathBuf>) -> Pins {
    let pins = Pins::default();
    for disk in disks {
        let path = disk.clone();
        let read = tokio::task::spawn_blocking(move || read_pins(&disk));
        let read = match device::answer(read).await {
            Ok(read) => read.map_err(|_| Error::shutting_down()).and_then(|read| read),
            Err(error) => Err(error),
        };
        match read {
            Ok(found) => pins.adopt(found),
            Err(error) => {
                let directory = path.display();
                tracing::error!(%directory, %error, "failed to read the pins");
            }
        }
    }
    pins
}

/// Rejects a cache none of whose tiers can be used. Disks may be mounted later.
fn check_usable(tiers: &[Tier]) -> Result<()> {
    let absent: Vec<_> = tiers.iter().filter_map(Tier::absence).collect();
    match absent.iter().find(|why| !is_unmounted(why)) {
        Some(why) if absent.len() == tiers.len() => Err(why.clone()),
        _ => Ok(()),
    }
}
