//! Checks of all shards in memory, over and over, slowly.
//!
//! Trainers read them where they lie, and a bit that flips there shows nowhere else.

use std::collections::VecDeque;
use std::sync::Weak;
use std::time::Duration;

use super::StoreInner;
use crate::shard::{CheckedUpTo, Shard, ShardHandle};
use crate::tier::Tier;

/// Period of the checks.
const PERIOD: Duration = Duration::from_secs(1);

/// Work in a period: bytes that one core checks in a hundredth of that time. All of 64 GiB takes 17
/// minutes.
const BYTES: u64 = 64 << 20;

/// Work on a shard beside its members.
const PER_SHARD: u64 = 64 << 10;

/// A shard to be checked, and the place up to which it is.
type Next = (Tier, Weak<Shard>, CheckedUpTo);

/// Checks shards while the store exists.
pub(super) async fn check_memory(store: Weak<StoreInner>) {
    let mut due = super::upkeep::every(PERIOD);
    let mut queue = VecDeque::new();
    loop {
        due.tick().await;
        let Some(inner) = store.upgrade() else { return };
        if queue.is_empty() {
            for tier in &inner.tiers {
                let shards = tier.shards_in_memory().into_iter();
                queue.extend(shards.map(|shard| (tier.clone(), shard, CheckedUpTo::default())));
            }
        }
        drop(inner);
        check_some(&mut queue).await;
    }
}

/// Checks the next shards, until the work of a period is done. One that differs is dropped.
async fn check_some(queue: &mut VecDeque<Next>) {
    let mut left = BYTES;
    while left > 0
        && let Some((tier, weak, from)) = queue.pop_front()
    {
        // One that left needs no check.
        let Some(shard) = weak.upgrade().map(ShardHandle::new) else { continue };
        let checked = tokio::task::spawn_blocking(move || {
            let checked = shard.shard().check_in_memory(from, left);
            (shard, checked)
        });
        // The daemon ends.
        let Ok((shard, checked)) = checked.await else { return };
        left = left.saturating_sub(PER_SHARD);
        match checked {
            Ok((next, work)) => {
                left = left.saturating_sub(work);
                queue.extend(next.map(|next| (tier, weak, next)));
            }
            Err(error) => tier.drop_wrong_memory(shard, &error).await,
        }
    }
}
