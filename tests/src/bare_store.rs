//! A store without a daemon, for tests that need calls no trainer makes.

use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use forebay_config::settings::LOOK_AFTER;
use forebay_error::{ErrorKind, Result};
use forebay_source::{Limits, Options, Rules, Sources};
use forebay_store::{
    CheckpointRule, Class, Dataset, DiskConfig, Effects, FRAME_BYTES, Files, KeepFree, LocalFiles,
    Shard, ShardHandle, Store, StoreConfig, StoreRules, Tenant, TierConfig, TierLimits, Urgency,
    Watermarks,
};
use forebay_uring::{Arena, Engine, EngineConfig, Faults, Region};
use tokio::runtime::Runtime;

use crate::patience::eventually;
use crate::process::actor;

/// Frames of all stores of a test, mapped once because all of them are touched.
static FRAMES: LazyLock<Arc<Region>> = LazyLock::new(|| {
    Region::create("bare-frames", FRAME_BYTES).expect("the machine has memory for frames")
});

/// Tries to read a copy that proves corrupt, as many as a batch makes.
const TRIES: u32 = 4;

/// Configuration of a bare store.
#[derive(Clone)]
pub struct BareStoreConfig {
    /// Directory of the first tier.
    pub cache: PathBuf,
    /// Capacity of the first tier in bytes.
    pub capacity: u64,
    /// Further tiers.
    pub more: Vec<BareStoreTier>,
    /// Rules of data sets.
    pub datasets: Vec<Dataset>,
    /// Tenants.
    pub tenants: Vec<Tenant>,
    /// Rules for checkpoints.
    pub checkpoints: Vec<CheckpointRule>,
    /// Period of the device checks.
    pub look_after: Duration,
    /// Operations on the directory.
    pub files: Arc<dyn Files>,
    /// Faults injected into disk I/O.
    pub faults: Option<Arc<dyn Faults>>,
}

/// A further tier of a bare store.
#[derive(Clone)]
pub struct BareStoreTier {
    /// Name.
    pub name: String,
    /// Class of its device.
    pub class: Class,
    /// Directory; none for memory.
    pub path: Option<PathBuf>,
    /// Capacity in bytes.
    pub capacity: u64,
    /// Watermarks between which shards are evicted ahead of need.
    pub watermarks: Option<Watermarks>,
}

/// A store and its runtime.
pub struct BareStore {
    /// Runtime of the store.
    pub runtime: Runtime,
    /// The store.
    pub store: Store,
    /// Frames of the store.
    pub frames: Arena,
}

impl BareStoreConfig {
    /// A store with one tier in `cache`.
    #[must_use]
    pub fn new(cache: PathBuf, capacity: u64) -> Self {
        let (datasets, files) = (Vec::new(), Arc::new(LocalFiles));
        let (tenants, look_after) = (Vec::new(), LOOK_AFTER);
        let more = Vec::new();
        let (checkpoints, faults) = (Vec::new(), None);
        Self { cache, capacity, more, datasets, tenants, checkpoints, look_after, files, faults }
    }

    /// Opens the store and waits until its directories are listed.
    ///
    /// # Panics
    /// If it cannot be opened.
    #[must_use]
    pub fn open(self) -> BareStore {
        let engine = |name: &str| {
            let name = name.to_owned();
            Engine::start(EngineConfig { name, ..EngineConfig::default() }).expect("engines start")
        };
        let Self { cache, capacity, more, datasets, tenants, checkpoints, .. } = self;
        let (look_after, files, faults) = (self.look_after, self.files, self.faults);
        let open = |tier: BareStoreTier| {
            let BareStoreTier { name, class, path, capacity, watermarks } = tier;
            let disk = path.map(|path| {
                let engine = match &faults {
                    Some(faults) => engine(&name).with_faults(faults.clone()),
                    None => engine(&name),
                };
                DiskConfig { files: files.clone(), ..DiskConfig::at(path, engine) }
            });
            TierConfig { name, class, capacity, watermarks, disk }
        };
        let first = BareStoreTier {
            name: "nvme".to_owned(),
            class: Class::Nvme,
            path: Some(cache),
            capacity,
            watermarks: None,
        };
        let tiers = std::iter::once(first).chain(more).map(open).collect();
        let config = StoreConfig { tiers, datasets, tenants, checkpoints, look_after, state: None };
        // Origins are files, read by processes without injected faults.
        let reader = vec![actor().into(), "reader".into()];
        let sources = Sources::new(reader, Limits::default()).expect("limits make sense");
        let frames = Arena::new(FRAMES.clone());
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_all().build().expect("threads can be had");
        let store = runtime.block_on(Store::open(config, sources, frames.clone()));
        let store = store.expect("the store opens");
        runtime.block_on(store.scanned()).expect("the directory can be listed");
        BareStore { runtime, store, frames }
    }
}

impl BareStore {
    /// Applies the rules and capacities of another configuration.
    ///
    /// # Errors
    /// The store's, if it rejects them.
    pub fn reconfigure(&self, config: &BareStoreConfig) -> Result<Effects> {
        let limits = |name: &str, capacity, watermarks| TierLimits {
            name: name.to_owned(),
            capacity,
            keep_free: KeepFree::Bytes(0),
            watermarks,
        };
        let first = limits("nvme", config.capacity, None);
        let more = config.more.iter();
        let more = more.map(|tier| limits(&tier.name, tier.capacity, tier.watermarks));
        let rules = StoreRules {
            datasets: config.datasets.clone(),
            tenants: config.tenants.clone(),
            checkpoints: config.checkpoints.clone(),
            tiers: std::iter::once(first).chain(more).collect(),
            sources: Rules::default(),
        };
        self.runtime.block_on(self.store.reconfigure(rules, false))
    }

    /// Reads and checks every member of a shard, in order. A corrupt copy is fetched again, as for
    /// a batch.
    ///
    /// # Errors
    /// The store's, if a read fails.
    ///
    /// # Panics
    /// If memory cannot be had.
    pub fn read_all(&self, url: &str) -> Result<Vec<Vec<u8>>> {
        self.read_all_for(None, url)
    }

    /// Reads and checks every member of a shard for a tenant.
    ///
    /// # Errors
    /// The store's, if a read fails.
    ///
    /// # Panics
    /// If memory cannot be had.
    pub fn read_all_for(&self, tenant: Option<&str>, url: &str) -> Result<Vec<Vec<u8>>> {
        let store = self.store.for_tenant(tenant);
        let mut tries = 0;
        loop {
            tries += 1;
            let outcome = self.runtime.block_on(async {
                let lease = store.shard(url, &Options::default(), Urgency::Needed).await?;
                store.record_use(&lease);
                match self.read(&lease).await {
                    Err(error) if error.kind() == ErrorKind::Corrupt => {
                        store.drop_bad_copy(&lease, &error).await;
                        Err(error)
                    }
                    other => other,
                }
            });
            match outcome {
                Err(error) if error.kind() == ErrorKind::Corrupt && tries < TRIES => {}
                other => return other,
            }
        }
    }

    async fn read(&self, shard: &ShardHandle) -> Result<Vec<Vec<u8>>> {
        shard.wait(u64::MAX).await?;
        let members = shard.index().index().members;
        let mut all = Vec::with_capacity(members.len());
        for member in &members {
            let range = member.offset..member.end();
            let footprint = Shard::footprint(&range);
            let len = usize::try_from(footprint.end - footprint.start).expect("a member is small");
            // Enough frames are free: nothing else uses as many.
            let span = self.frames.lease(len).await?;
            let mut placed = shard.read(vec![(range, span)]).await.pop().expect("one is asked for");
            let from = placed.check(member)?;
            let span = placed.into_span();
            let from = from - span.offset();
            let len = usize::try_from(member.len).expect("a member is small");
            all.push(span[from..from + len].to_vec());
        }
        Ok(all)
    }

    /// Closes the store and asserts that it returned all frames.
    ///
    /// # Panics
    /// If frames are still in use.
    pub fn end(self) {
        let Self { runtime, store, frames } = self;
        runtime.block_on(store.close());
        drop(store);
        drop(runtime);
        // Those of a read or write that nobody waits for come back when the kernel is done.
        eventually("all frames are returned", || frames.in_use() == 0);
    }
}
