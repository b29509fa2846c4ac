//! Periodic work of a store.

use std::sync::Weak;
use std::time::{Duration, Instant};

use super::StoreInner;
use crate::tier::Mode;

/// Period of saving the order of use. A crash loses that much of it; for a million shards it is 8
/// MB.
const RECENCY_KEPT: Duration = Duration::from_secs(300);

/// Maximum time of one check of a device. A hanging device is checked again in the next period and
/// does not delay the others.
const LOOK_TIMEOUT: Duration = Duration::from_secs(30);

/// Saves the order of use while the store exists.
pub(super) async fn keep_recency(store: Weak<StoreInner>) {
    let mut due = every(RECENCY_KEPT);
    // The first tick comes at once.
    due.tick().await;
    loop {
        due.tick().await;
        let Some(inner) = store.upgrade() else { return };
        for tier in &inner.tiers {
            tier.save().await;
        }
    }
}

/// Checks the devices while the store exists.
pub(super) async fn look_after(store: Weak<StoreInner>, period: Duration) {
    let mut due = every(period);
    loop {
        due.tick().await;
        let Some(inner) = store.upgrade() else { return };
        // In parallel: a hanging device must not delay the others.
        let tiers = inner.tiers.iter().filter(|tier| tier.mode() != Mode::Disabled);
        let looks = tiers.map(|tier| tokio::time::timeout(LOOK_TIMEOUT, tier.look_after()));
        futures::future::join_all(looks).await;
        if let Some(shards) = inner.shared.unaccepted.due(Instant::now()) {
            tracing::warn!(shards, "no tier accepts shards: they are read through");
        }
        // Shards that could not leave before may leave now.
        inner.shared.moves.notify_one();
    }
}

pub(super) fn every(period: Duration) -> tokio::time::Interval {
    let mut due = tokio::time::interval(period);
    due.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    due
}
