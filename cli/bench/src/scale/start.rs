//! Start time of a daemon by the number of shards in its directory.
//!
//! Files are as a fill leaves them, only shorter, and the start is over when every one is listed.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_shard::{Index, Origin, Sidecar};
use forebay_source::{Limits, Sources};
use forebay_store::{
    Class, DiskConfig, FRAME_BYTES, Files, LocalFiles, ShardName, Store, StoreConfig, TierConfig,
};
use forebay_uring::{Arena, Engine, EngineConfig, Region};
use indicatif::ProgressBar;

use super::{Setup, grown, median, powers};
use crate::growth::Growth;
use crate::interrupt;

/// Bytes of a shard that is only there to be listed: the shortest tar that other tools write.
const SMALL: u64 = 10_240;

pub(super) fn growths(
    most: u64,
    setup: Setup<'_>,
    growths: &mut Vec<Growth>,
    progress: &ProgressBar,
) -> Result<()> {
    let folder = tempfile::Builder::new().prefix("forebay-scale-").tempdir_in(setup.directory);
    let folder = folder.doing("make a folder for shards")?;
    let cache = folder.path().canonicalize().doing("find a folder")?.join("cache");
    let shards = cache.join("shards");
    fs::create_dir_all(&cache).doing("make a folder for shards")?;
    let reader = [setup.launcher, &["reader".into()]].concat();
    // It becomes a cache.
    start_seconds(&cache, reader.clone(), 0)?;
    let name = "start: time until all shards are listed".to_owned();
    let mut laid = 0;
    grown(growths, (name, "shards"), powers(most), |size| {
        progress.set_message(format!("start: {size} shards"));
        progress.inc(1);
        while laid < size {
            interrupt::check()?;
            lay(&shards, laid)?;
            laid += 1;
        }
        median(|| start_seconds(&cache, reader.clone(), size))
    })
}

/// Opens a store on a directory of so many shards; the seconds until it knows all of them.
fn start_seconds(cache: &Path, reader: Vec<OsString>, shards: u64) -> Result<f64> {
    // One for each: when it is gone nobody holds the directory any more.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.doing("start a runtime")?;
    let begin = Instant::now();
    let store = runtime.block_on(open(cache, reader))?;
    runtime.block_on(store.scanned())?;
    let took = begin.elapsed().as_secs_f64();
    let found = store.counters().shards as u64;
    if found != shards {
        let what = "a start does not find the existing shards";
        return Err(Error::new(ErrorKind::Invalid, what).at("shards", shards).at("found", found));
    }
    let within = runtime.enter();
    drop(store);
    drop(within);
    Ok(took)
}

/// A store of one tier, as large as its disk.
async fn open(cache: &Path, reader: Vec<OsString>) -> Result<Store> {
    let capacity = LocalFiles.extent(cache).doing("stat the disk")?.total;
    let engine = EngineConfig { name: "scale".to_owned(), ..EngineConfig::default() };
    let engine = Engine::start(engine)?;
    let frames = Region::create("frames", FRAME_BYTES)?;
    engine.attach(&frames).await?;
    let disk = DiskConfig::at(cache.to_owned(), engine);
    let (name, class) = ("scale".to_owned(), Class::Nvme);
    let tier = TierConfig { name, class, capacity, watermarks: None, disk: Some(disk) };
    let config = StoreConfig {
        tiers: vec![tier],
        datasets: Vec::new(),
        tenants: Vec::new(),
        checkpoints: Vec::new(),
        look_after: Duration::from_secs(3600),
        state: None,
    };
    let sources = Sources::new(reader, Limits::default())?;
    Store::open(config, sources, Arena::new(frames)).await
}

/// Puts a shard into a tier's directory of shards as a fill leaves it, of nothing but zeros.
///
/// # Errors
/// The file system's error.
pub fn lay(shards: &Path, number: u64) -> Result<()> {
    let origin = Origin {
        endpoint: "https://s3.eu-west-1.amazonaws.com".to_owned(),
        url: format!("s3://ml-data/imagenet/train-{number:06}.tar"),
        version: format!("\"{number:032x}\""),
    };
    let name = ShardName::new(&origin);
    let data = File::create(shards.join(name.as_str())).doing("make a shard")?;
    data.set_len(SMALL).doing("make a shard")?;
    let sidecar = Sidecar {
        origin,
        tenant: None,
        len: SMALL,
        compressed_len: None,
        blocks: vec![0],
        index: Index::default(),
    };
    fs::write(shards.join(format!("{}.idx", name.as_str())), sidecar.encode()?)
        .doing("make a sidecar")
}
