//! A store of one tier, as a daemon opens it.

#![allow(dead_code, reason = "each benchmark has the one it needs")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_source::{Limits, Sources};
use forebay_store::{
    Class, DiskConfig, FRAME_BYTES, Files, KeepFree, LocalFiles, PART_BYTES, Store, StoreConfig,
    TierConfig,
};
use forebay_uring::{Arena, Engine, EngineConfig, Region};

/// A tier in a directory, as large as its disk.
pub(crate) async fn open(cache: &Path) -> Store {
    std::fs::create_dir_all(cache).unwrap();
    let capacity = LocalFiles.extent(cache).unwrap().total;
    let engine = engine();
    let disk = DiskConfig {
        path: cache.to_owned(),
        keep_free: KeepFree::Bytes(0),
        writes_per_day: None,
        engine: engine.clone(),
        files: Arc::new(LocalFiles),
    };
    store(engine, Class::Nvme, capacity, Some(disk)).await
}

/// A tier in memory, with room for a shard of `bytes`.
pub(crate) async fn in_memory(bytes: u64) -> Store {
    store(engine(), Class::Memory, bytes.next_multiple_of(PART_BYTES as u64), None).await
}

fn engine() -> Engine {
    Engine::start(EngineConfig { name: "bench".to_owned(), ..EngineConfig::default() }).unwrap()
}

async fn store(engine: Engine, class: Class, capacity: u64, disk: Option<DiskConfig>) -> Store {
    let frames = Region::create("frames", FRAME_BYTES).unwrap();
    engine.attach(&frames).await.unwrap();
    let sources = Sources::new(engine, Limits::default()).unwrap();
    let name = "bench".to_owned();
    let tier = TierConfig { name, class, capacity, watermarks: None, disk };
    let look_after = Duration::from_secs(3600);
    let config = StoreConfig { tiers: vec![tier], datasets: Vec::new(), look_after };
    Store::open(config, sources, Arena::new(frames)).await.unwrap()
}
