//! Rate at which a shard is filled into the tier, compared with `fio` writing as much to the same
//! disk.
//!
//! Both sides write by O_DIRECT through io_uring and end synced, in turns. The shard comes from
//! memory by one copy into each frame, so that neither a link nor a second disk is measured; that
//! copy, indexing, checksums, records and commit count for Forebay.
//! ```text
//! cargo bench --workspace --bench fill -- --directory /mnt/nvme
//! ```

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark ends at a surprise")]

mod tier;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use forebay_source::Options;
use forebay_store::{PART_BYTES, Urgency};
use forebay_testkit::InMemory;

/// Writes fio has under way: as many as a fill has parts.
const DEPTH: usize = 6;

/// Fills a shard and lets fio write as much, in turns.
#[derive(Parser)]
struct Arguments {
    /// Directory on the disk to measure; a folder is made there and removed.
    #[arg(long, default_value = ".")]
    directory: PathBuf,
    /// Size of the shard in MiB.
    #[arg(long, default_value_t = 1024)]
    mib: usize,
    /// Rounds; each runs both once.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Passed by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main]
async fn main() {
    let arguments = Arguments::parse();
    let mut shard = Vec::with_capacity(arguments.mib << 20);
    forebay_benches::make_shard(&mut shard, arguments.mib << 20);
    let shard = Arc::new(InMemory::new(shard));
    let bytes = shard.bytes().len() as u64;
    let mut ratios = Vec::new();
    for round in 0..arguments.rounds {
        let folder =
            tempfile::Builder::new().prefix("fill-bench-").tempdir_in(&arguments.directory);
        let folder = folder.unwrap();
        let mut rates = [0.0; 2];
        for turn in [round % 2, (round + 1) % 2] {
            let took = match turn {
                0 => fio(folder.path(), bytes),
                _ => fill(&folder.path().join("cache"), shard.clone()).await,
            };
            rates[turn] = bytes as f64 / took.as_secs_f64() / 1e9;
        }
        println!("  fio {:6.3} GB/s  fill {:6.3} GB/s", rates[0], rates[1]);
        ratios.push(rates[1] / rates[0]);
    }
    ratios.sort_by(f64::total_cmp);
    println!("fill of fio's write, median of {}: {:.2}", ratios.len(), ratios[ratios.len() / 2]);
}

/// From nothing to a committed shard.
async fn fill(cache: &Path, shard: Arc<InMemory>) -> Duration {
    let store = tier::open_from(cache, shard).await;
    store.scanned().await.unwrap();
    let begin = Instant::now();
    let lease = store.shard("memory://shard", &Options::default(), Urgency::Needed).await.unwrap();
    lease.wait(u64::MAX).await.unwrap();
    drop(lease);
    // The last sample comes before the commit; a scrub of a store waits for neither, so look.
    let mut looks = tokio::time::interval(Duration::from_millis(1));
    while store.counters().fills == 0 {
        looks.tick().await;
    }
    begin.elapsed()
}

fn fio(folder: &Path, bytes: u64) -> Duration {
    let begin = Instant::now();
    let out = Command::new("fio")
        .args(["--name=write", "--rw=write", "--direct=1", "--ioengine=io_uring", "--end_fsync=1"])
        .args(["--fixedbufs=1", "--registerfiles=1", "--fallocate=posix", "--output-format=json"])
        .arg(format!("--filename={}", folder.join("fio").display()))
        .arg(format!("--size={bytes}"))
        .arg(format!("--bs={PART_BYTES}"))
        .arg(format!("--iodepth={DEPTH}"))
        .env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
        .output()
        .expect("fio is installed");
    assert!(out.status.success(), "fio failed: {}", String::from_utf8_lossy(&out.stdout));
    let told: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    // fio's own time, without the start of a process; the sync at the end is in it.
    let milliseconds = told["jobs"][0]["job_runtime"].as_u64().unwrap();
    Duration::from_millis(milliseconds).min(begin.elapsed())
}
