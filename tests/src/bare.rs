//! A store without a daemon: for tests that ask it more than a trainer can.

use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use forebay_config::settings::LOOK_AFTER;
use forebay_error::{ErrorKind, Result};
use forebay_source::{Limits, Options, Rules, Sources};
use forebay_store::{
    Class, Dataset, DiskConfig, Effects, FRAME_BYTES, Files, KeepFree, LocalFiles, Shard,
    ShardHandle, Store, StoreConfig, StoreRules, Tenant, TierConfig, TierLimits, Urgency,
    Watermarks,
};
use forebay_uring::{Arena, Engine, EngineConfig, Faults, Region};
use tokio::runtime::Runtime;

use crate::process::actor;

/// Frames of all stores of a test: mapped once, since all of it is touched.
static FRAMES: LazyLock<Arc<Region>> = LazyLock::new(|| {
    Region::create("bare-frames", FRAME_BYTES).expect("the machine has memory for frames")
});

/// How often a copy that proves wrong is asked for again, as a batch does.
const TRIES: u32 = 4;

/// How a bare store is set up.
#[derive(Clone)]
pub struct BareConfig {
    /// Its first tier's directory.
    pub cache: PathBuf,
    /// Bytes that may hold.
    pub capacity: u64,
    /// Its other tiers.
    pub more: Vec<BareTier>,
    /// How data sets are kept.
    pub datasets: Vec<Dataset>,
    /// Who shares it.
    pub tenants: Vec<Tenant>,
    /// How often the device is looked after.
    pub look_after: Duration,
    /// What changes the directory.
    pub files: Arc<dyn Files>,
    /// What meddles with the disk's I/O.
    pub faults: Option<Arc<dyn Faults>>,
}

/// Another tier of a bare store.
#[derive(Clone)]
pub struct BareTier {
    /// What it is called.
    pub name: String,
    /// What it is made of.
    pub class: Class,
    /// Its directory; none for memory.
    pub path: Option<PathBuf>,
    /// Bytes it may hold.
    pub capacity: u64,
    /// Where given, shards leave ahead of need.
    pub watermarks: Option<Watermarks>,
}

/// A store, and the runtime it lives on.
pub struct Bare {
    /// Its runtime.
    pub runtime: Runtime,
    /// The store.
    pub store: Store,
    /// Its frames.
    pub frames: Arena,
}

impl BareConfig {
    /// A plain store in `cache`.
    #[must_use]
    pub fn new(cache: PathBuf, capacity: u64) -> Self {
        let (datasets, files) = (Vec::new(), Arc::new(LocalFiles));
        let (tenants, look_after) = (Vec::new(), LOOK_AFTER);
        let more = Vec::new();
        Self { cache, capacity, more, datasets, tenants, look_after, files, faults: None }
    }

    /// Opens it, and lists what it holds.
    ///
    /// # Panics
    /// If it cannot be opened.
    #[must_use]
    pub fn open(self) -> Bare {
        let engine = |name: &str| {
            let name = name.to_owned();
            Engine::start(EngineConfig { name, ..EngineConfig::default() }).expect("engines start")
        };
        let Self { cache, capacity, more, datasets, tenants, look_after, files, faults } = self;
        let open = |tier: BareTier| {
            let BareTier { name, class, path, capacity, watermarks } = tier;
            let disk = path.map(|path| {
                let engine = match &faults {
                    Some(faults) => engine(&name).with_faults(faults.clone()),
                    None => engine(&name),
                };
                let (keep_free, files) = (KeepFree::Bytes(0), files.clone());
                DiskConfig { path, keep_free, writes_per_day: None, engine, files }
            });
            TierConfig { name, class, capacity, watermarks, disk }
        };
        let first = BareTier {
            name: "nvme".to_owned(),
            class: Class::Nvme,
            path: Some(cache),
            capacity,
            watermarks: None,
        };
        let tiers = std::iter::once(first).chain(more).map(open).collect();
        let config = StoreConfig { tiers, datasets, tenants, look_after };
        // Origins are files, read by processes that nothing meddles with.
        let reader = vec![actor().into(), "reader".into()];
        let sources = Sources::new(reader, Limits::default()).expect("limits make sense");
        let frames = Arena::new(FRAMES.clone());
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_all().build().expect("threads can be had");
        let store = runtime.block_on(Store::open(config, sources, frames.clone()));
        let store = store.expect("the store opens");
        runtime.block_on(store.scanned()).expect("the directory can be listed");
        Bare { runtime, store, frames }
    }
}

impl Bare {
    /// Goes by the rules and capacities of another configuration from now on.
    ///
    /// # Errors
    /// Why it does not.
    pub fn reconfigure(&self, config: &BareConfig) -> Result<Effects> {
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
            tiers: std::iter::once(first).chain(more).collect(),
            sources: Rules::default(),
        };
        self.runtime.block_on(self.store.reconfigure(rules, false))
    }

    /// Every member of a shard, in order, each checked; a copy that proves wrong is fetched anew, as for
    /// a batch.
    ///
    /// # Errors
    /// What stands in the way.
    ///
    /// # Panics
    /// If memory cannot be had.
    pub fn read_all(&self, url: &str) -> Result<Vec<Vec<u8>>> {
        self.read_all_for(None, url)
    }

    /// The same for a tenant.
    ///
    /// # Errors
    /// What stands in the way.
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
            // Of the frames there are enough: nothing else uses as many.
            let span = self.frames.lease(len).await?;
            let placed = shard.read(vec![(range, span)]).await.pop().expect("one is asked for");
            let from = placed.check(member)?;
            let span = placed.into_span();
            let from = from - span.offset();
            let len = usize::try_from(member.len).expect("a member is small");
            all.push(span[from..from + len].to_vec());
        }
        Ok(all)
    }

    /// Ends it in order; everything it had of memory is back then.
    ///
    /// # Panics
    /// If it is not.
    pub fn end(self) {
        let Self { runtime, store, frames } = self;
        runtime.block_on(store.close());
        drop(store);
        drop(runtime);
        assert_eq!(frames.in_use(), 0, "frames outlive their store");
    }
}
