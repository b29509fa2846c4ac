//! Lanes of an order that leaves them unset: those that let every rank of its world take whole
//! lanes.
//!
//! The client chooses and sends the number, so ranks agree whatever the releases of their daemons,
//! and a daemon that replaces another continues the order.

use forebay_wire::message::{Order, Shuffle};

use super::{LANES_MAX, SHARDS_PER_LANE};

/// Lane counts, from the largest down. Common worlds divide them, and most have many divisors, so a
/// state resumes by lanes in other worlds as well.
const STEPS: [u32; 14] = [256, 192, 128, 96, 64, 48, 32, 24, 16, 12, 8, 4, 2, 1];

/// Largest step for worlds that smaller ones serve as well: each lane is one more shard that a
/// node opens for its first batch.
const STEP_PREFERRED_MAX: u32 = 96;

/// Returns the lanes of an order over `shards` shards that leaves them unset, under
/// [`super::ORDER_VERSION`].
///
/// 1. the largest step up to 96 by which ranks take whole lanes,
/// 2. else the smallest such step above 96,
/// 3. else a lane for each rank,
/// 4. else, since no such number leaves enough shards to each lane, the largest step up to 96 that
///    divides the global batch; ranks then take slices.
///
/// Rules 1 and 4 let worlds of one global batch have one order where no rank needs more lanes.
#[must_use]
pub fn default_lanes(order: &Order, shards: u32, counts_known: bool) -> u32 {
    if order.shuffle != Shuffle::Window || !counts_known {
        return 1;
    }
    let world = order.world_size;
    let global_batch = u64::from(order.batch_size) * u64::from(world);
    let fits = |lanes: &u32| *lanes <= (shards / SHARDS_PER_LANE).min(LANES_MAX);
    let is_even = |lanes: &u32| global_batch.is_multiple_of(u64::from(*lanes));
    let is_whole = |lanes: &u32| fits(lanes) && is_even(lanes) && lanes.is_multiple_of(world);
    let (large, small) = STEPS.split_at(STEPS.partition_point(|step| *step > STEP_PREFERRED_MAX));
    let whole = small.iter().find(|step| is_whole(step));
    let whole = whole.or_else(|| large.iter().rev().find(|step| is_whole(step))).copied();
    let one_each = || Some(world).filter(|lanes| *lanes > 0 && fits(lanes));
    let sliced = || small.iter().find(|step| fits(step) && is_even(step)).copied();
    whole.or_else(one_each).or_else(sliced).unwrap_or(1)
}
