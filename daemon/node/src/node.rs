//! The parts of a node, put together. The only file that names concrete ones.

use std::sync::Arc;
use std::time::Instant;

use forebay_checkpoints::Checkpoints;
use forebay_config::settings::{NodeConfig, NodeTier, memory_tiers};
use forebay_engine::session::{Host, SlabMemory};
use forebay_error::{Error, ErrorKind, Result};
use forebay_source::{Readers, Sources, check_helper_process};
use forebay_store::{
    Class, DiskConfig, ENCRYPTION_BYTES, Store, StoreConfig, TierConfig, frame_bytes, rules_digest,
};
use forebay_uring::{Arena, Engine, EngineConfig, Region};

use crate::access::{Access, NodeGuard, Policy, Usage};
use crate::audit::Audit;
use crate::cluster::{Cluster, SERVING_BYTES};
use crate::connection::RequestMemory;
use crate::costs::Costs;
use crate::gpus::Gpus;
use crate::leases::Keepers;
use crate::reload::Reload;
use crate::scrubs::Scrubs;
use crate::sessions::Sessions;
use crate::warm::WarmUps;

/// A running node.
pub struct Node {
    /// The cache.
    pub store: Store,
    /// Rights on it.
    pub access: Arc<Access>,
    /// Jobs of each tenant and user.
    pub usage: Usage,
    /// The audit log.
    pub audit: Arc<Audit>,
    /// Readers of shards that are files.
    pub readers: Readers,
    /// Memory for bytes on their way in.
    pub frames: Arena,
    /// Memory of slabs.
    pub slabs: SlabMemory,
    /// Memory of long requests.
    pub requests: RequestMemory,
    /// Start time.
    pub started: Instant,
    /// Scrubs.
    pub scrubs: Scrubs,
    /// Warm-ups.
    pub warm_ups: WarmUps,
    /// Keepers of queues of leased shards.
    pub leases: Keepers,
    /// Sessions.
    pub sessions: Sessions,
    /// The configuration.
    pub reload: Reload,
    /// Costs of ended jobs.
    pub costs: Costs,
    /// GPUs.
    pub gpus: Gpus,
    /// The node's part in its cluster, if it is in one.
    pub cluster: Option<Cluster>,
    /// Checkpoints on their way to a store.
    pub checkpoints: Arc<Checkpoints>,
}

impl Node {
    /// Starts the engines, maps the frames and opens the tiers.
    ///
    /// # Errors
    /// If a tier's directory or the memory cannot be had.
    pub async fn start(config: NodeConfig) -> Result<Arc<Self>> {
        let memory = NodeMemory::new(config.memory, &config.tiers, config.cluster.is_some());
        // Asked before a byte is mapped; what turns out to lie on tmpfs is asked for below.
        memory.left(memory_tiers(&config.tiers))?;
        let make = move || Region::create("forebay-frames", memory.frames);
        let region =
            tokio::task::spawn_blocking(make).await.map_err(|_| Error::shutting_down())??;
        let mut tiers = Vec::with_capacity(config.tiers.len());
        for tier in config.tiers.clone() {
            tiers.push(open_tier(tier, &config)?);
        }
        for command in [&config.reader, &config.lender] {
            if let Err(error) = check_helper_process(command, None) {
                // Jobs that need none of them are served; others fail with the same error.
                tracing::error!(%error, "cannot start helper processes");
            }
        }
        // Nodes of a cluster compare it: with other rules they would not share what they could.
        let rules = rules_digest(&config.datasets, &config.sources);
        let frames = Arena::new(region.clone());
        let sources = Sources::new(config.reader, config.limits)?
            .lending(config.lender, config.own)
            .ruled(config.sources)?;
        let sources = if config.opens_named { sources } else { sources.opening_by_rule() };
        let readers = sources.readers().clone();
        let (datasets, look_after) = (config.datasets, config.look_after);
        let audit = Arc::new(Audit::open(config.audit)?);
        let policy = Policy::new(config.own, config.tenants.clone(), &datasets, config.access);
        let access = Arc::new(Access::new(policy));
        let guard = NodeGuard::new(&access, &audit);
        let tenants: Vec<_> = config.tenants.into_iter().map(|tenant| tenant.rule).collect();
        let (checkpoints, state) = (config.checkpoints, config.state);
        let store = StoreConfig { tiers, datasets, tenants, checkpoints, look_after, state };
        let store = Store::open(store, sources, frames.clone()).await?;
        for engine in store.engines() {
            engine.attach(&region).await?;
        }
        let in_memory = store.tiers().into_iter().filter(|tier| tier.class == Class::Memory);
        let in_memory = in_memory.map(|tier| tier.counters.capacity_bytes).sum();
        let capacity = store.tiers().iter().map(|tier| tier.counters.capacity_bytes).sum();
        let cluster = match config.cluster {
            Some(cluster) => Some(Cluster::start(cluster, &store, capacity, rules, guard).await?),
            None => None,
        };
        let slabs = SlabMemory::new(memory.left(in_memory)?);
        let peers = cluster.as_ref().map(|cluster| cluster.peers().clone());
        let checkpoints = Arc::new(Checkpoints::start(store.clone(), slabs.clone(), peers));
        if let Some(cluster) = &cluster {
            cluster.serve_replicas(checkpoints.replicas());
        }
        Ok(Arc::new(Self {
            store,
            access,
            usage: Usage::default(),
            audit,
            readers,
            frames,
            slabs,
            requests: RequestMemory::new(),
            started: Instant::now(),
            scrubs: Scrubs::default(),
            warm_ups: WarmUps::new(),
            leases: Keepers::new(config.leases),
            sessions: Sessions::default(),
            reload: Reload::default(),
            costs: Costs::default(),
            gpus: Gpus::default(),
            cluster,
            checkpoints,
        }))
    }

    /// The tiers, for those who compose a node themselves.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The store for a tenant's jobs, or for those of none.
    pub fn store_for(&self, tenant: Option<&str>) -> Store {
        self.store.for_tenant(tenant)
    }

    /// Returns the host of a session that uses the cache through `store`.
    pub fn host(&self, store: Store) -> Host {
        Host { store, slabs: self.slabs.clone() }
    }
}

/// Memory of a node: all, its fixed parts, and the frames among these.
#[derive(Debug, Clone, Copy)]
pub struct NodeMemory {
    all: usize,
    fixed: usize,
    frames: usize,
}

impl NodeMemory {
    /// Divides `all` bytes of a daemon with these tiers, which may be in a cluster.
    #[must_use]
    pub fn new(all: usize, tiers: &[NodeTier], in_cluster: bool) -> Self {
        let serving = if in_cluster { SERVING_BYTES } else { 0 };
        let encrypted = tiers.iter().filter(|tier| tier.encryption.is_some()).count();
        let plain = usize::try_from(memory_tiers(tiers)).unwrap_or(usize::MAX);
        let frames = frame_bytes(all.saturating_sub(plain));
        let fixed = frames + RequestMemory::BYTES + serving + encrypted * ENCRYPTION_BYTES;
        Self { all, fixed, frames }
    }

    /// Bytes that are neither for slabs nor for tiers in memory.
    #[must_use]
    pub fn fixed(self) -> usize {
        self.fixed
    }

    /// Returns the memory for slabs beside tiers in memory.
    ///
    /// # Errors
    /// `Invalid` if none is left.
    fn left(&self, tiers: u64) -> Result<usize> {
        let in_tiers = usize::try_from(tiers).unwrap_or(usize::MAX);
        let left = self.all.checked_sub(self.fixed).and_then(|left| left.checked_sub(in_tiers));
        left.filter(|left| *left > 0).ok_or_else(|| {
            Error::new(ErrorKind::Invalid, "the daemon's memory is too small")
                .at("memory", self.all)
                .at("frames", self.frames)
                .at("tiers_in_memory", tiers)
                .advise("raise `memory` to at least 512 MiB above the capacity of its memory tiers")
        })
    }
}

/// Opens a tier for the store, with an I/O engine of its own.
fn open_tier(tier: NodeTier, config: &NodeConfig) -> Result<TierConfig> {
    let NodeTier {
        name,
        class,
        path,
        capacity,
        keep_free,
        watermarks,
        writes_per_day,
        require_mount,
        encryption,
    } = tier;
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
            Some(DiskConfig {
                path,
                keep_free,
                writes_per_day,
                engine,
                files,
                require_mount,
                encryption,
            })
        }
    };
    Ok(TierConfig { name, class, capacity, watermarks, disk })
}
