//! A store on a directory, as a daemon opens it.

use std::path::Path;

use forebay_source::{Limits, Sources};
use forebay_store::{FRAME_BYTES, Store, StoreConfig};
use forebay_uring::{Arena, Engine, EngineConfig, Region};

pub(crate) async fn open(cache: &Path) -> Store {
    let config = EngineConfig { name: "bench".to_owned(), ..EngineConfig::default() };
    let engine = Engine::start(config).unwrap();
    let frames = Region::create("frames", FRAME_BYTES).unwrap();
    engine.attach(&frames).await.unwrap();
    let sources = Sources::new(engine.clone(), Limits::default()).unwrap();
    let config =
        StoreConfig { directory: cache.to_owned(), capacity: 1 << 40, datasets: Vec::new() };
    Store::open(config, engine, sources, Arena::new(frames)).await.unwrap()
}
