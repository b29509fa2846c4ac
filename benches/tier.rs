//! A store of one tier, as a daemon opens it.

#![allow(dead_code, reason = "each benchmark has the one it needs")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_source::{Limits, Source, Sources};
use forebay_store::{
    Class, Dataset, DiskConfig, Files, LocalFiles, PART_BYTES, Store, StoreConfig, TierConfig,
    frame_bytes,
};
use forebay_uring::{Arena, Engine, EngineConfig, Region};

/// Memory of a daemon on a training node.
pub(crate) const MEMORY: usize = 16 << 30;

/// A tier in a directory, as large as its disk.
pub(crate) async fn open(cache: &Path) -> Store {
    on_disk(cache, None, Vec::new()).await
}

/// The same, with rules for data sets.
pub(crate) async fn open_with(cache: &Path, datasets: Vec<Dataset>) -> Store {
    on_disk(cache, None, datasets).await
}

/// The same, with a source of the caller's for `memory://…`.
pub(crate) async fn open_from(cache: &Path, memory: Arc<dyn Source>) -> Store {
    on_disk(cache, Some(memory), Vec::new()).await
}

async fn on_disk(cache: &Path, memory: Option<Arc<dyn Source>>, datasets: Vec<Dataset>) -> Store {
    std::fs::create_dir_all(cache).unwrap();
    let capacity = LocalFiles.extent(cache).unwrap().total;
    let engine = engine();
    let disk = DiskConfig::at(cache.to_owned(), engine.clone());
    store(engine, Class::Nvme, capacity, Some(disk), memory, datasets).await
}

/// A tier in memory, with room for a shard of `bytes`.
pub(crate) async fn in_memory(bytes: u64) -> Store {
    let capacity = bytes.next_multiple_of(PART_BYTES as u64);
    store(engine(), Class::Memory, capacity, None, None, Vec::new()).await
}

fn engine() -> Engine {
    Engine::start(EngineConfig { name: "bench".to_owned(), ..EngineConfig::default() }).unwrap()
}

/// Argument that starts a reader of [`store`].
const READER: &str = "reader";

/// Returns true if this process was started to read files, and has done so.
pub(crate) fn was_reader() -> bool {
    let is_reader = std::env::args().nth(1).as_deref() == Some(READER);
    if is_reader {
        forebay_source::serve(|_| unreachable!("benchmarks read files by their paths")).unwrap();
    }
    is_reader
}

async fn store(
    engine: Engine,
    class: Class,
    capacity: u64,
    disk: Option<DiskConfig>,
    memory: Option<Arc<dyn Source>>,
    datasets: Vec<Dataset>,
) -> Store {
    let frames = Region::create("frames", frame_bytes(MEMORY)).unwrap();
    engine.attach(&frames).await.unwrap();
    let reader = vec![std::env::current_exe().unwrap().into(), READER.into()];
    let mut sources = Sources::new(reader, Limits::default()).unwrap();
    if let Some(memory) = memory {
        sources = sources.with("memory", memory);
    }
    let name = "bench".to_owned();
    let tier = TierConfig { name, class, capacity, watermarks: None, disk };
    let look_after = Duration::from_secs(3600);
    let tenants = Vec::new();
    let config = StoreConfig {
        tiers: vec![tier],
        datasets,
        tenants,
        checkpoints: Vec::new(),
        look_after,
        state: None,
    };
    Store::open(config, sources, Arena::new(frames)).await.unwrap()
}
