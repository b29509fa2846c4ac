//! Memory of a plan: alone in its process, whose high-water mark is read.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use std::collections::HashSet;

use forebay_engine::plan::{Known, Located, Sequence, lanes};
use forebay_wire::message::{Order, Shuffle};

const SHARDS: u32 = 1_000_000;

/// Samples of a shard, on average.
const SAMPLES: u64 = 1000;

/// Bound on the plan's peak, sample counts included.
const MEMORY_KB: u64 = 100_000;

/// Positions to look up in each order.
const LOOKS: u64 = 20_000;

/// Peak memory of this process, in kB.
fn high_water_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Bears the promise that any position of 10⁹ samples in 10⁶ shards is found in 100 MB, also in a
/// later pass.
#[test]
fn plan_of_a_billion_samples_takes_less_than_100_mb() {
    let before = high_water_kb();
    for (shuffle, passes) in [(Shuffle::Window, 1), (Shuffle::Window, 1000), (Shuffle::Global, 1)] {
        // 900 to 1100 samples.
        let counts: Vec<u64> =
            (0..u64::from(SHARDS)).map(|shard| SAMPLES - 100 + shard * 7919 % 201).collect();
        let total: u64 = counts.iter().sum();
        let order =
            Order { shuffle, epoch_samples: Some(total * passes), ..Order::shuffled(64, 11, 256) };
        let lanes = lanes(&order, SHARDS, true).unwrap();
        let mut sequence = Sequence::new(&order, SHARDS, Some(counts.clone()), lanes, 5);
        assert_eq!(sequence.total(), Some(total * passes));
        // Positions all over the last pass, its last among them.
        let pass = total * (passes - 1);
        let step = total / LOOKS;
        let mut found = HashSet::new();
        for look in (0..LOOKS).map(|look| pass + total - 1 - look * step) {
            match sequence.locate(look, &|_| Known::AtLeast(0)) {
                Located::Sample { shard, ordinal } => {
                    assert!(ordinal < counts[shard as usize]);
                    found.insert((shard, ordinal));
                }
                other => panic!("{other:?} at {look}"),
            }
        }
        assert_eq!(found.len() as u64, LOOKS, "no sample is at two positions of a pass");
        assert_eq!(sequence.upcoming(pass, 104, |_| true).len(), 104);
        let cost = high_water_kb() - before;
        assert!(cost < MEMORY_KB, "{shuffle:?}, {passes} passes: {cost} kB");
        println!("{shuffle:?}, {passes} passes: {cost} kB");
    }
}
