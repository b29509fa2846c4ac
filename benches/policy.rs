//! Cost of a policy's decision with a million shards on the tier.
//!
//! A decision is a miss on a full tier (a victim, its removal, a newcomer) or a hit; both are
//! averages over many, because some policies pay in bulk.
//! ```text
//! cargo bench --workspace --bench policy
//! ```

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark ends at a surprise")]

use forebay_bench::scale::decision_seconds;
use forebay_policy::Evict;

/// Shards on the tier: 500 TB in shards of 500 MB.
const SHARDS: u64 = 1_000_000;

/// Decisions timed.
const STEPS: u32 = 2_000_000;

fn main() {
    println!("{SHARDS} shards, {STEPS} steps of one miss and one hit each");
    for evict in Evict::ALL {
        let each = decision_seconds(evict, SHARDS, STEPS).unwrap() * 1e9;
        println!("  {:8} {each:6.0} ns", evict.name());
    }
}
