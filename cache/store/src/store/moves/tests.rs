use std::future::pending;
use std::path::Path;

use forebay_source::{Limits, Options, Sources};
use forebay_testkit::InMemory;
use forebay_uring::{Arena, Engine, EngineConfig, Region};

use super::*;
use crate::sizes::FRAME_BYTES;
use crate::store::opening::Opened;
use crate::{DiskConfig, StoreConfig, TierConfig};

const URL: &str = "memory://private/0.tar";

/// A store of two disks with one shard, and the shard's names on each.
async fn with_a_shard(folder: &Path) -> (Store, ShardName, [ShardName; 2]) {
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(5);
    archive.append_data(&mut header, "0.txt", &b"bytes"[..]).unwrap();
    let origin = Arc::new(InMemory::new(archive.into_inner().unwrap()));
    let engine = Engine::start(EngineConfig::default()).unwrap();
    let tier = |name: &str| TierConfig {
        name: name.to_owned(),
        class: Class::Nvme,
        capacity: 1 << 28,
        watermarks: None,
        disk: Some(DiskConfig::at(folder.join(name), engine.clone())),
    };
    let config = StoreConfig {
        tiers: vec![tier("a"), tier("b")],
        datasets: Vec::new(),
        tenants: Vec::new(),
        checkpoints: Vec::new(),
        look_after: Duration::from_secs(3600),
        state: None,
    };
    let sources = Sources::new(Vec::new(), Limits::default()).unwrap().with("memory", origin);
    let frames = Arena::new(Region::create("frames", FRAME_BYTES).unwrap());
    let store = Store::open(config, sources, frames).await.unwrap();
    let shard = store.shard(URL, &Options::default(), Urgency::Needed).await.unwrap();
    shard.settled().await.unwrap();
    let endpoint = shard.source.endpoint().to_owned();
    let version = shard.stat.version.clone();
    drop(shard);
    let logical = ShardName::new(&Origin { endpoint, url: URL.to_owned(), version });
    let names = [0, 1].map(|tier| store.inner.tiers[tier].name_for(&logical));
    (store, logical, names)
}

fn is_whole(store: &Store, tier: usize, name: &ShardName) -> bool {
    store.inner.tiers[tier].state(name).is_some_and(ShardState::is_whole)
}

/// Moves the shard off its disk while a request opens it; true if the other disk has it then.
async fn is_copied_beside(opening: impl FnOnce(Store, ShardName) -> Opened) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let (store, logical, names) = with_a_shard(folder.path()).await;
    let from = usize::from(!is_whole(&store, 0, &names[0]));
    let asker = Asker { urgency: Urgency::Needed, tenant: None };
    let opened = opening(store.clone(), logical.clone()).shared();
    store.opening().insert(logical, (asker, opened));
    store.move_down(&store.inner.tiers[from], &names[from], true).await;
    assert!(!is_whole(&store, from, &names[from]), "it left its disk");
    let is_copied = is_whole(&store, 1 - from, &names[1 - from]);
    store.opening().clear();
    store.close().await;
    is_copied
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drained_shard_that_is_being_opened_is_copied() {
    let opening = |store: Store, name| async move {
        tokio::task::yield_now().await;
        store.opening().remove(&name);
        Err(Error::new(ErrorKind::Unavailable, "it is not opened after all"))
    };
    assert!(is_copied_beside(|store, name| opening(store, name).boxed()).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn move_does_not_wait_for_an_opening_for_ever() {
    assert!(!is_copied_beside(|_, _| pending().boxed()).await);
}
