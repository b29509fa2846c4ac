//! The parts of a node, put together. The only file that names concrete ones.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use forebay_engine::session::{Host, SlabMemory};
use forebay_error::{Error, ErrorKind, Result};
use forebay_source::{Limits, Sources};
use forebay_store::{Dataset, FRAME_BYTES, Store, StoreConfig};
use forebay_uring::{Arena, Engine, EngineChoice, EngineConfig, Region};
use tokio::sync::{Mutex, Semaphore, watch};

/// What a node is made of.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// The cache directory.
    pub cache: PathBuf,
    /// Bytes it may hold, at most.
    pub capacity: u64,
    /// How data sets are kept.
    pub datasets: Vec<Dataset>,
    /// Bytes of frames and slabs together, at most.
    pub memory: usize,
    /// The I/O engine.
    pub io: EngineChoice,
    /// Bounds on requests to origins.
    pub limits: Limits,
}

/// A running node.
pub struct Node {
    pub(crate) store: Store,
    pub(crate) engine: Engine,
    pub(crate) frames: Arena,
    pub(crate) slabs: SlabMemory,
    pub(crate) started: Instant,
    /// Trainers and tools connected now.
    pub(crate) peers: watch::Sender<usize>,
    /// The right to scrub: one at a time is as fast as many, and leaves the device to jobs.
    pub(crate) scrubbing: Arc<Semaphore>,
    pub(crate) sessions: Mutex<Vec<crate::peer::Registered>>,
    sessions_made: AtomicU64,
}

impl Node {
    /// Starts the engine, maps the frames and opens the tier.
    ///
    /// # Errors
    /// If the tier's directory or the memory cannot be had.
    pub async fn start(config: NodeConfig) -> Result<Arc<Self>> {
        let Some(slab_bytes) = config.memory.checked_sub(FRAME_BYTES).filter(|left| *left > 0)
        else {
            return Err(Error::new(ErrorKind::Invalid, "the daemon's memory is too small")
                .at("memory", config.memory)
                .at("frames", FRAME_BYTES)
                .advise("give it at least 512 MiB"));
        };
        let engine = Engine::start(EngineConfig {
            name: "tier".to_owned(),
            choice: config.io,
            near: Some(config.cache.clone()),
            ..EngineConfig::default()
        })?;
        let report = engine.report();
        tracing::info!(engine = ?engine.kind(), ?report, "started the I/O engine");
        let region = tokio::task::spawn_blocking(|| Region::create("forebay-frames", FRAME_BYTES))
            .await
            .map_err(|_| Error::new(ErrorKind::Closed, "shutting down"))??;
        engine.attach(&region).await?;
        let frames = Arena::new(region);
        let sources = Sources::new(engine.clone(), config.limits)?;
        let NodeConfig { cache: directory, capacity, datasets, .. } = config;
        let tier = StoreConfig { directory, capacity, datasets };
        let store = Store::open(tier, engine.clone(), sources, frames.clone()).await?;
        Ok(Arc::new(Self {
            store,
            engine,
            frames,
            slabs: SlabMemory::new(slab_bytes),
            started: Instant::now(),
            peers: watch::Sender::new(0),
            scrubbing: Arc::new(Semaphore::new(1)),
            sessions: Mutex::default(),
            sessions_made: AtomicU64::new(0),
        }))
    }

    /// The tier, for those who compose a node themselves.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The I/O engine.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn host(&self) -> Host {
        Host { store: self.store.clone(), engine: self.engine.clone(), slabs: self.slabs.clone() }
    }

    pub(crate) fn next_session(&self) -> u64 {
        self.sessions_made.fetch_add(1, Ordering::Relaxed) + 1
    }
}
