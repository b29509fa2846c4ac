//! What a policy's decision costs with a million shards on the tier.
//!
//! Its rule: a decision is what a miss on a full tier takes (a victim, its removal, a newcomer) and
//! what each hit takes; both are averages over many, because some policies pay in bulk.
//!
//! ```text
//! cargo bench --workspace --bench policy
//! ```

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark ends at a surprise")]

mod dice;

use std::time::Instant;

use dice::Dice;
use forebay_policy::{Newcomer, Slot};
use forebay_store::Evict;

/// Shards on the tier: 500 TB in shards of 500 MB.
const SHARDS: u32 = 1_000_000;

/// Decisions timed.
const STEPS: u32 = 2_000_000;

fn main() {
    println!("{SHARDS} shards, {STEPS} steps of one miss and one hit each");
    for evict in Evict::ALL {
        let mut policy = evict.policy();
        for slot in 0..SHARDS {
            policy.insert(newcomer(slot, slot.into()));
        }
        let mut dice = Dice(7);
        let begin = Instant::now();
        for step in 0..STEPS {
            let victim = policy.victim(&mut |_| true).expect("anybody may go");
            policy.remove(victim, true);
            policy.insert(newcomer(victim, u64::from(SHARDS + step)));
            policy.hit((dice.roll() % u64::from(SHARDS)) as Slot);
        }
        let each = begin.elapsed().as_secs_f64() * 1e9 / f64::from(STEPS);
        println!("  {:8} {each:6.0} ns", evict.name());
    }
}

fn newcomer(slot: Slot, identity: u64) -> Newcomer {
    Newcomer { slot, identity, bytes: 500 << 20 }
}
