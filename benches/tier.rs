//! A store on a directory, as a daemon opens it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_source::{Limits, Sources};
use forebay_store::{
    Class, DiskConfig, FRAME_BYTES, Files, KeepFree, LocalFiles, Store, StoreConfig, TierConfig,
};
use forebay_uring::{Arena, Engine, EngineConfig, Region};

pub(crate) async fn open(cache: &Path) -> Store {
    let config = EngineConfig { name: "bench".to_owned(), ..EngineConfig::default() };
    let engine = Engine::start(config).unwrap();
    let frames = Region::create("frames", FRAME_BYTES).unwrap();
    engine.attach(&frames).await.unwrap();
    let sources = Sources::new(engine.clone(), Limits::default()).unwrap();
    std::fs::create_dir_all(cache).unwrap();
    let disk = DiskConfig {
        path: cache.to_owned(),
        keep_free: KeepFree::Bytes(0),
        writes_per_day: None,
        engine,
        files: Arc::new(LocalFiles),
    };
    let tier = TierConfig {
        name: "bench".to_owned(),
        class: Class::Nvme,
        capacity: LocalFiles.extent(cache).unwrap().total,
        watermarks: None,
        disk: Some(disk),
    };
    let look_after = Duration::from_secs(3600);
    let config = StoreConfig { tiers: vec![tier], datasets: Vec::new(), look_after };
    Store::open(config, sources, Arena::new(frames)).await.unwrap()
}
