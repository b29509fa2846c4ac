//! Cost of open shards: a job's share of time without waits, and the most that holes could save.
//!
//! A job over many lanes has many shards open at once, and each takes its whole room until its last
//! sample is read. Simulated here, with foresight:
//! - `whole`: as the daemon works;
//! - `freed`: the read part of an open shard is free at once, and what is missing of a shard comes
//!   by ranges before its next use;
//! - `ideal`: the part that is not read yet does not come before it is needed, either;
//! - `one lane`: one shard is open at a time.
//!
//! A shard is eight parts, which foresight keeps, evicts and fetches one by one, at no cost. A
//! shard's samples are read in an order drawn at random, so real holes would be single samples.
//! ```text
//! cargo bench --workspace --bench lanes
//! ```

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark ends at a surprise")]

use forebay_engine::plan::{self, Epoch, Sequence, Share};
use forebay_policy::simulate::{Jitter, Order, Reader, Trace, simulate};
use forebay_policy::{Evict, Use};
use forebay_wire::message::{self, Shuffle};

const SHARDS: u32 = 1000;
const SHARD_BYTES: u64 = 256 << 20;
/// Samples of a shard: 115 kB each, as ImageNet's.
const SAMPLES: u64 = SHARD_BYTES / 115_000;
/// Bytes a second that an H100 reads while it trains a ResNet-50.
const RATE: f64 = 205e6;
/// Epochs; the first two fill the cache and are not counted.
const EPOCHS: u64 = 8;
const WARM_EPOCHS: u64 = 2;
/// Parts of a shard.
const PARTS: u64 = 8;
/// Shares of the data that the cache holds, and of the job's rate that the link brings.
const CACHES: [f64; 3] = [0.25, 0.5, 0.75];
const LINKS: [f64; 3] = [0.2, 0.5, 0.9];

/// Time in which a part of a shard is needed.
#[derive(Clone, Copy)]
enum Needed {
    /// While the shard is read.
    Whole,
    /// From where the shard's first sample is read until its own last is.
    UntilRead,
    /// While its own samples are read.
    WhileRead,
}

/// Returns the uses of whole shards, epoch after epoch, in the order of a loader.
fn uses(lanes: Option<u32>, window: u32) -> Vec<Use> {
    let order =
        message::Order { shuffle: Shuffle::Window, window, lanes, ..message::Order::of_list(256) };
    let lanes = lanes.unwrap_or_else(|| plan::default_lanes(&order, SHARDS, true));
    let share = Share::new(&order, lanes, 0);
    let counts = vec![SAMPLES; SHARDS as usize];
    let bytes = SHARD_BYTES as f64 / SAMPLES as f64;
    let make = move |number| {
        let counts = Some(counts.clone());
        let sequence = Sequence::new(&order, SHARDS, counts, lanes, number);
        (number < EPOCHS).then_some(Epoch::One(sequence))
    };
    let mut future = plan::outlook(make, share, (0..SHARDS).collect(), |_| Vec::new(), bytes);
    (0..).map_while(|index| future.at(index)).collect()
}

/// Cuts the uses of shards into those of their parts.
fn parts(uses: &[Use], needed: Needed) -> Vec<Use> {
    let mut parts: Vec<Use> = uses
        .iter()
        .flat_map(|one| {
            let at = move |part: u64| one.start + (one.end - one.start) * part / PARTS;
            (0..PARTS).map(move |part| {
                let (start, end) = match needed {
                    Needed::Whole => (one.start, one.end),
                    Needed::UntilRead => (one.start, at(part + 1)),
                    Needed::WhileRead => (at(part), at(part + 1)),
                };
                Use {
                    shard: one.shard * PARTS as u32 + part as u32,
                    start,
                    end: end.max(start + 1),
                }
            })
        })
        .collect();
    parts.sort_by_key(|one| one.start);
    parts
}

/// Returns the share of time in which a job that reads so does not wait.
fn busy(cache: f64, link: f64, uses: Vec<Use>) -> f64 {
    let all = u64::from(SHARDS) * SHARD_BYTES;
    let shards = SHARDS * PARTS as u32;
    let job = Reader {
        name: "job".to_owned(),
        shards: (0..shards).collect(),
        rate: RATE,
        order: Order::Reshuffled,
        window: 1,
        epochs: EPOCHS,
        seed: 0,
        joins: 0.0,
        uses,
    };
    let trace = Trace {
        capacity: (all as f64 * cache) as u64,
        bandwidth: RATE * link,
        shards: vec![SHARD_BYTES / PARTS; shards as usize],
        jobs: vec![job],
        warm_epochs: WARM_EPOCHS,
        jitter: Jitter::default(),
        here: Vec::new(),
        names: Vec::new(),
        at: 0,
        decisions: Vec::new(),
    };
    simulate(&trace, Evict::Clairvoyant).unwrap().busy_share()
}

fn main() {
    let (mixed, single) = (uses(None, 64), uses(Some(1), 1));
    println!(
        "{SHARDS} shards, lanes and window of a loader's defaults; share of time without waits"
    );
    println!("cache  link   whole  freed  ideal  one lane");
    for cache in CACHES {
        for link in LINKS {
            let of = |uses: &[Use], needed| busy(cache, link, parts(uses, needed));
            println!(
                " {cache:.2}  {link:.2}   {:.3}  {:.3}  {:.3}  {:.3}",
                of(&mixed, Needed::Whole),
                of(&mixed, Needed::UntilRead),
                of(&mixed, Needed::WhileRead),
                of(&single, Needed::Whole),
            );
        }
    }
}
