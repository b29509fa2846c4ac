//! Start time on a directory with many shards, and their cost in memory.
//! The first byte served belongs to a shard that only the directory remembers, and
//! files are as a fill leaves them, only shorter.
//! ```text
//! cargo bench --workspace --bench start -- --directory /mnt/nvme
//! ```

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark ends at a surprise")]

mod tier;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Parser;
use forebay_bench::scale::lay;
use forebay_source::Options;
use forebay_store::{Shard, Urgency, frame_bytes};
use forebay_uring::{Arena, Region};

/// Between two looks whether the one real shard is committed, before anything is timed.
const LOOK: Duration = Duration::from_millis(10);

/// Starts a store on a directory with many shards.
#[derive(Parser)]
struct Arguments {
    /// Directory on the disk to measure; a folder is made there and removed.
    #[arg(long, default_value = ".")]
    directory: PathBuf,
    /// Shards in the cache.
    #[arg(long, default_value_t = 100_000)]
    shards: u32,
    /// Starts to time.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Passed by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main]
async fn main() {
    if tier::was_reader() {
        return;
    }
    let arguments = Arguments::parse();
    let folder = tempfile::Builder::new().prefix("start-bench-").tempdir_in(arguments.directory);
    let folder = folder.unwrap();
    let root = folder.path().canonicalize().unwrap();
    let (cache, shard) = (root.join("cache"), root.join("real.tar"));
    make_shard(&shard);
    let url = format!("file://{}", shard.display());
    // The one that is asked for comes into the cache as any does.
    let store = tier::open(&cache).await;
    store
        .shard(&url, &Options::default(), Urgency::Needed)
        .await
        .unwrap()
        .wait(u64::MAX)
        .await
        .unwrap();
    let mut looks = tokio::time::interval(LOOK);
    while store.counters().fills == 0 {
        looks.tick().await;
    }
    drop(store);
    for number in 1..arguments.shards {
        lay(&cache.join("shards"), number.into()).unwrap();
    }
    println!("{} shards", arguments.shards);
    for _ in 0..arguments.rounds {
        let memory = resident_bytes();
        let begin = Instant::now();
        let store = tier::open(&cache).await;
        let lease = store.shard(&url, &Options::default(), Urgency::Needed).await.unwrap();
        let first = read_first(&lease).await;
        let served = begin.elapsed();
        assert_eq!(first, b"0123456789");
        store.scanned().await.unwrap();
        let scanned = begin.elapsed();
        assert_eq!(store.counters().shards, arguments.shards as usize);
        let grown = resident_bytes().saturating_sub(memory + frame_bytes(tier::MEMORY));
        println!(
            "  first byte {:6.3} s  scan {:6.3} s  {:4} bytes resident a shard",
            served.as_secs_f64(),
            scanned.as_secs_f64(),
            grown / arguments.shards as usize
        );
    }
}

async fn read_first(lease: &forebay_store::ShardHandle) -> Vec<u8> {
    lease.wait(1).await.unwrap();
    let first = lease.index().sample(0).unwrap();
    let member = lease.index().members_of(&first)[0];
    let range = member.offset..member.end();
    let footprint = Shard::footprint(&range);
    let len = (footprint.end - footprint.start) as usize;
    let span = Arena::new(Region::create("read", len).unwrap()).try_lease(len).unwrap();
    let mut placed = lease.read(vec![(range, span)]).await.remove(0);
    let at = placed.check(&member).unwrap();
    let span = placed.into_span();
    span[at - span.offset()..][..member.len as usize].to_vec()
}

fn make_shard(path: &Path) {
    let mut archive = tar::Builder::new(File::create(path).unwrap());
    let mut header = tar::Header::new_gnu();
    header.set_size(10);
    archive.append_data(&mut header, "a.txt", &b"0123456789"[..]).unwrap();
    archive.finish().unwrap();
}

fn resident_bytes() -> usize {
    let text = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size()
}
