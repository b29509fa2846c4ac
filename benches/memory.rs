//! Rate of the memory tier into a slab, compared with one core copying the same records.
//! Both sides take turns on the same records in the same order, from memory far larger than
//! the processor's caches into memory of a slab's kind and size. Three figures: the copy alone, the
//! copy and then the checksum of each member, and a checked read of the tier.
//! ```text
//! cargo bench --workspace --bench memory
//! ```

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark ends at a surprise")]

mod tier;

use std::path::PathBuf;
use std::time::Instant;

use clap::Parser;
use forebay_bench::dice::Dice;
use forebay_benches::MEMBER;
use forebay_shard::Member;
use forebay_shard::checksum::crc32c;
use forebay_source::Options;
use forebay_store::{Shard, ShardHandle, Urgency};
use forebay_uring::{Arena, Region, Span};

/// Records that the slab holds: 30 MB, as a batch of 256 of them.
const SLOTS: usize = 256;

/// Compares the memory tier with memcpy.
#[derive(Parser)]
struct Arguments {
    /// Directory in memory for the shard's origin.
    #[arg(long, default_value = "/dev/shm")]
    memory: PathBuf,
    /// Size of the shard in MiB.
    #[arg(long, default_value_t = 1024)]
    mib: usize,
    /// Rounds; each runs every contender once.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Passed by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    if tier::was_reader() {
        return;
    }
    let arguments = Arguments::parse();
    let folder = tempfile::Builder::new().prefix("memory-bench-").tempdir_in(arguments.memory);
    let folder = folder.unwrap();
    let tar = folder.path().join("shard.tar");
    forebay_benches::make_shard(std::fs::File::create(&tar).unwrap(), arguments.mib << 20);
    let store = tier::in_memory(tar.metadata().unwrap().len()).await;
    let url = format!("file://{}", tar.display());
    let lease = store.shard(&url, &Options::default(), Urgency::Needed).await.unwrap();
    lease.wait(u64::MAX).await.unwrap();
    let mut looks = tokio::time::interval(std::time::Duration::from_millis(1));
    while store.counters().fills == 0 {
        looks.tick().await;
    }
    let members = members(&lease);
    let bytes: u64 = members.iter().map(|member| member.len).sum();
    let plain = std::fs::read(&tar).unwrap();
    let len = 2 * MEMBER.next_multiple_of(4096);
    let arena = Arena::new(Region::create("slots", SLOTS * len).unwrap());
    let mut slots: Vec<Option<Span>> = (0..SLOTS).map(|_| arena.try_lease(len)).collect();
    let (mut of_copy, mut of_passes) = (Vec::new(), Vec::new());
    for round in 0..arguments.rounds {
        let mut rates = [0.0; 3];
        for turn in 0..3 {
            let contender = (turn + round) % 3;
            let begin = Instant::now();
            for (number, member) in members.iter().enumerate() {
                let slot = &mut slots[number % SLOTS];
                let mut span = slot.take().unwrap();
                let range = member.offset..member.end();
                let footprint = Shard::footprint(&range);
                let start = (member.offset - footprint.start) as usize;
                if contender == 2 {
                    let mut placed = lease.read(vec![(range, span)]).await.remove(0);
                    placed.check(member).unwrap();
                    span = placed.into_span();
                } else {
                    let from = member.offset as usize;
                    let into = &mut span[start..start + member.len as usize];
                    into.copy_from_slice(&plain[from..from + member.len as usize]);
                    assert!(contender == 0 || crc32c(into) == member.crc32c);
                }
                *slot = Some(std::hint::black_box(span));
            }
            rates[contender] = bytes as f64 / begin.elapsed().as_secs_f64() / 1e9;
        }
        let [copy, passes, read] = rates;
        println!("  memcpy {copy:6.2} GB/s  and checksum {passes:6.2} GB/s  tier {read:6.2} GB/s");
        of_copy.push(read / copy);
        of_passes.push(read / passes);
    }
    let median = |mut ratios: Vec<f64>| {
        ratios.sort_by(f64::total_cmp);
        ratios[ratios.len() / 2]
    };
    let (of_copy, of_passes) = (median(of_copy), median(of_passes));
    println!(
        "checked reads of memcpy: {of_copy:.2}; of memcpy and then a checksum: {of_passes:.2}"
    );
}

/// Every member of the shard, in an order that no prefetcher guesses.
fn members(lease: &ShardHandle) -> Vec<Member> {
    let mut members = lease.index().index().members;
    let mut dice = Dice::new(3);
    for at in (1..members.len()).rev() {
        members.swap(at, (dice.roll() % (at as u64 + 1)) as usize);
    }
    members
}
