//! The parts of a node, put together. The only file that names concrete ones.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_engine::session::{Host, SlabMemory};
use forebay_error::{Error, ErrorKind, Result};
use forebay_source::{Limits, Readers, Rules, Sources};
use forebay_store::{
    Class, Dataset, DiskConfig, FRAME_BYTES, Files, KeepFree, Store, StoreConfig, Tenant,
    TierConfig, Watermarks,
};
use forebay_uring::{Arena, Engine, EngineChoice, EngineConfig, Faults, Region};
use tokio::sync::{Mutex, watch};

use crate::access::{Access, AccessConfig, Policy, TenantLimits, Usage};
use crate::audit::{Audit, AuditConfig};
use crate::costs::Costs;
use crate::gpus::Gpus;
use crate::leases::{Keepers, LeasesConfig};
use crate::reload::Reload;
use crate::scrubs::Scrubs;
use crate::warm::WarmUps;

/// What a node is made of.
#[derive(Clone)]
pub struct NodeConfig {
    /// Where shards rest.
    pub tiers: Vec<NodeTier>,
    /// How data sets are kept.
    pub datasets: Vec<Dataset>,
    /// Which stores may be read, and how.
    pub sources: Rules,
    /// Who shares the node; a job belongs to the first that has one of its groups.
    pub tenants: Vec<NodeTenant>,
    /// Bytes of frames, slabs and tiers in memory together, at most.
    pub memory: usize,
    /// The I/O engine.
    pub io: EngineChoice,
    /// Bounds on requests to origins.
    pub limits: Limits,
    /// Program and arguments of a process that runs [`forebay_source::serve`]: shards that are files
    /// are read by those.
    pub reader: Vec<OsString>,
    /// Program and arguments of a process that runs [`forebay_source::lend`], which finds AWS
    /// credentials.
    pub lender: Vec<OsString>,
    /// Whether the node is its jobs' own user's alone, so that files in their home count.
    pub own: bool,
    /// Whether it opens files that jobs name, though no source's rule says so; else their clients do.
    pub opens_named: bool,
    /// Who else than its own user is served, and on what.
    pub access: AccessConfig,
    /// Where it is noted who was refused what, and who changed what; nowhere but in the log, if not here.
    pub audit: Option<AuditConfig>,
    /// Where queues of leased shards are kept.
    pub leases: LeasesConfig,
    /// How often devices are looked after.
    pub look_after: Duration,
    /// What changes directories.
    pub files: Arc<dyn Files>,
    /// What meddles with the disks' I/O: a test's business.
    pub faults: Option<Arc<dyn Faults>>,
}

/// How often devices are looked after: a disk that others fill, or one that fails, is noticed within
/// this time though nobody touches it. A look costs a few system calls.
pub const LOOK_AFTER: Duration = Duration::from_secs(5);

/// A tier of a node.
#[derive(Debug, Clone)]
pub struct NodeTier {
    /// What admins call it.
    pub name: String,
    /// What it is made of.
    pub class: Class,
    /// Its directory; none for memory.
    pub path: Option<PathBuf>,
    /// Bytes it may hold, at most.
    pub capacity: u64,
    /// What of its disk is left to others.
    pub keep_free: KeepFree,
    /// Where given, shards leave ahead of need.
    pub watermarks: Option<Watermarks>,
    /// Bytes that may be written a day without anybody waiting for them.
    pub writes_per_day: Option<u64>,
}

impl NodeTier {
    /// A tier of `class` in a directory, and nothing else asked of it.
    #[must_use]
    pub fn at(name: &str, class: Class, path: PathBuf, capacity: u64) -> Self {
        Self {
            name: name.to_owned(),
            class,
            path: Some(path),
            capacity,
            keep_free: KeepFree::Bytes(0),
            watermarks: None,
            writes_per_day: None,
        }
    }

    /// Its part of the store, with an engine of its own.
    fn open(self, config: &NodeConfig) -> Result<TierConfig> {
        let Self { name, class, path, capacity, keep_free, watermarks, writes_per_day } = self;
        let disk = match path {
            None => None,
            Some(path) => {
                let engine = EngineConfig {
                    name: name.clone(),
                    choice: config.io,
                    near: Some(path.clone()),
                    ..EngineConfig::default()
                };
                let engine = Engine::start(engine)?;
                let engine = match &config.faults {
                    Some(faults) => engine.with_faults(faults.clone()),
                    None => engine,
                };
                tracing::info!(tier = name, engine = ?engine.kind(), "started an I/O engine");
                let files = config.files.clone();
                Some(DiskConfig { path, keep_free, writes_per_day, engine, files })
            }
        };
        Ok(TierConfig { name, class, capacity, watermarks, disk })
    }
}

/// The directory in which a node with these tiers notes its leases: on the first that is on a disk.
pub(crate) fn leases_directory(tiers: &[NodeTier]) -> Option<PathBuf> {
    tiers.iter().find_map(|tier| Some(tier.path.as_ref()?.join("leases")))
}

/// A tenant of a node.
#[derive(Debug, Clone)]
pub struct NodeTenant {
    /// What it may hold.
    pub rule: Tenant,
    /// Whose members' jobs are its jobs.
    pub groups: Vec<u32>,
    /// How many jobs it may have, and open.
    pub limits: TenantLimits,
}

/// A running node.
pub struct Node {
    pub(crate) store: Store,
    pub(crate) access: Arc<Access>,
    pub(crate) usage: Usage,
    pub(crate) audit: Arc<Audit>,
    /// What reads shards that are files.
    pub(crate) readers: Readers,
    pub(crate) frames: Arena,
    pub(crate) slabs: SlabMemory,
    pub(crate) started: Instant,
    /// Trainers and tools connected now, and warm-ups that go on without theirs.
    pub(crate) peers: watch::Sender<usize>,
    pub(crate) scrubs: Scrubs,
    pub(crate) warm_ups: WarmUps,
    pub(crate) leases: Keepers,
    pub(crate) sessions: Mutex<Vec<crate::peer::Registered>>,
    sessions_made: AtomicU64,
    clients_made: AtomicU64,
    pub(crate) reload: Reload,
    /// What jobs cost that are gone.
    pub(crate) costs: Costs,
    pub(crate) gpus: Gpus,
}

impl Node {
    /// Starts the engines, maps the frames and opens the tiers.
    ///
    /// # Errors
    /// If a tier's directory or the memory cannot be had.
    pub async fn start(config: NodeConfig) -> Result<Arc<Self>> {
        let memory = config.memory;
        let too_small = |wanted: u64| {
            Error::new(ErrorKind::Invalid, "the daemon's memory is too small")
                .at("memory", memory)
                .at("frames", FRAME_BYTES)
                .at("tiers_in_memory", wanted)
                .advise("give it at least 512 MiB more than its tiers in memory hold")
        };
        let left = |tiers: u64| {
            let tiers = usize::try_from(tiers).unwrap_or(usize::MAX);
            let left = memory.checked_sub(FRAME_BYTES)?.checked_sub(tiers)?;
            Some(left).filter(|left| *left > 0)
        };
        // Asked before a byte is mapped; what turns out to lie on tmpfs is asked for below.
        let plain = config.tiers.iter().filter(|tier| tier.path.is_none());
        let plain = plain.fold(0_u64, |sum, tier| sum.saturating_add(tier.capacity));
        left(plain).ok_or_else(|| too_small(plain))?;
        let region = tokio::task::spawn_blocking(|| Region::create("forebay-frames", FRAME_BYTES))
            .await
            .map_err(|_| Error::new(ErrorKind::Closed, "shutting down"))??;
        let mut tiers = Vec::with_capacity(config.tiers.len());
        for tier in config.tiers.clone() {
            tiers.push(tier.open(&config)?);
        }
        let frames = Arena::new(region.clone());
        let sources = Sources::new(config.reader, config.limits)?
            .lending(config.lender, config.own)
            .ruled(config.sources)?;
        let sources = if config.opens_named { sources } else { sources.opening_by_rule() };
        let readers = sources.readers().clone();
        let (datasets, look_after) = (config.datasets, config.look_after);
        let audit = Audit::open(config.audit)?;
        let policy = Policy::new(config.own, config.tenants.clone(), &datasets, config.access);
        let tenants: Vec<_> = config.tenants.into_iter().map(|tenant| tenant.rule).collect();
        let store = StoreConfig { tiers, datasets, tenants, look_after };
        let store = Store::open(store, sources, frames.clone()).await?;
        for engine in store.engines() {
            engine.attach(&region).await?;
        }
        let in_memory = store.tiers().into_iter().filter(|tier| tier.class == Class::Memory);
        let in_memory = in_memory.map(|tier| tier.counters.capacity_bytes).sum();
        let slab_bytes = left(in_memory).ok_or_else(|| too_small(in_memory))?;
        Ok(Arc::new(Self {
            store,
            access: Arc::new(Access::new(policy)),
            usage: Usage::default(),
            audit: Arc::new(audit),
            readers,
            frames,
            slabs: SlabMemory::new(slab_bytes),
            started: Instant::now(),
            peers: watch::Sender::new(0),
            scrubs: Scrubs::default(),
            warm_ups: WarmUps::new(),
            leases: Keepers::new(config.leases),
            sessions: Mutex::default(),
            sessions_made: AtomicU64::new(0),
            clients_made: AtomicU64::new(0),
            reload: Reload::default(),
            costs: Costs::default(),
            gpus: Gpus::default(),
        }))
    }

    /// The tiers, for those who compose a node themselves.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The store for a tenant's jobs, or for those of none.
    pub(crate) fn store_for(&self, tenant: Option<&str>) -> Store {
        self.store.for_tenant(tenant)
    }

    /// What a session needs that uses the cache through `store`.
    pub(crate) fn host(&self, store: Store) -> Host {
        Host { store, slabs: self.slabs.clone() }
    }

    pub(crate) fn next_client(&self) -> u64 {
        self.clients_made.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Somebody needs this daemon, until that is dropped.
    pub(crate) fn present(self: &Arc<Self>) -> Present {
        self.peers.send_modify(|peers| *peers += 1);
        Present(self.clone())
    }

    pub(crate) fn next_session(&self) -> u64 {
        self.sessions_made.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// Somebody who needs the daemon.
pub(crate) struct Present(Arc<Node>);

impl Drop for Present {
    fn drop(&mut self) {
        self.0.peers.send_modify(|peers| *peers -= 1);
    }
}
