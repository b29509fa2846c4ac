//! Endpoints of running fills, and which of them are slow.
//!
//! A fill of a store that sends next to nothing must not keep a turn from the fills of others.
//! It goes on in a lane of its own, with one part at a time, or waits. While a store is slow, one
//! of its fills runs at a time. A store counts as slow from the report of a fill until one of its
//! fills is as fast as [`SLOWEST_BYTES`] in [`WATCHED`] again, or none is left.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_error::Result;
use forebay_source::{Queue, QueuePermit, Rank};
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior};

/// Time over which the bytes of a fill are counted: several round trips of a distant store.
pub(crate) const WATCHED: Duration = Duration::from_secs(2);

/// Bytes in [`WATCHED`] below which a fill counts as slow: its part of 4 MiB would take half a
/// minute.
const SLOWEST_BYTES: u64 = 256 << 10;

/// Interval between counts.
const COUNTED: Duration = Duration::from_millis(250);

/// Time without a count after which counting begins anew: a few missed ticks of a busy machine are
/// none.
const PAUSE: Duration = Duration::from_secs(1);

/// Fills of a slow endpoint that run at a time: enough to notice that it recovered.
const WHILE_SLOW: usize = 1;

/// Endpoints with fills that run or wait.
#[derive(Debug)]
pub(super) struct Endpoints {
    by_name: Mutex<HashMap<Arc<str>, EndpointState>>,
    /// Changes whenever an endpoint turns slow.
    slowed: watch::Sender<()>,
}

#[derive(Debug)]
struct EndpointState {
    turns: Arc<Queue>,
    /// Fills that run or wait.
    fills: usize,
    /// Fills that wait for a place.
    waiting: usize,
    is_slow: bool,
}

/// An endpoint, as one of its fills sees it, until dropped.
pub(super) struct EndpointUse<'a> {
    endpoints: &'a Endpoints,
    name: Arc<str>,
    turns: Arc<Queue>,
}

/// Turn of an endpoint's fill, until dropped.
pub(super) struct EndpointTurn<'a> {
    // Dropped first: the endpoint may be forgotten after it.
    permit: QueuePermit,
    of: EndpointUse<'a>,
}

/// Counts a fill as waiting for a place, until dropped.
pub(super) struct WaitsForPlace<'a>(&'a EndpointUse<'a>);

impl Endpoints {
    pub(super) fn new() -> Self {
        Self { by_name: Mutex::default(), slowed: watch::Sender::new(()) }
    }

    /// Counts a fill of this endpoint.
    pub(super) fn enter(&self, name: &str) -> EndpointUse<'_> {
        let mut by_name = self.lock();
        let name: Arc<str> = match by_name.get_key_value(name) {
            Some((name, _)) => name.clone(),
            None => name.into(),
        };
        let state = by_name.entry(name.clone()).or_insert_with(|| EndpointState {
            turns: Queue::new(usize::MAX),
            fills: 0,
            waiting: 0,
            is_slow: false,
        });
        state.fills += 1;
        let turns = state.turns.clone();
        drop(by_name);
        EndpointUse { endpoints: self, name, turns }
    }

    /// Returns true if the endpoint is slow.
    pub(super) fn is_slow(&self, name: &str) -> bool {
        self.lock().get(name).is_some_and(|state| state.is_slow)
    }

    /// Waits until the endpoint is slow.
    pub(super) async fn slow(&self, name: &str) {
        // Cannot fail: `self` holds the sender.
        let _ = self.slowed.subscribe().wait_for(|()| self.is_slow(name)).await;
    }

    /// Begins no more turns.
    pub(super) fn close(&self) {
        self.lock().values().for_each(|state| state.turns.close());
    }

    fn change<T>(&self, name: &str, change: impl FnOnce(&mut EndpointState) -> T) -> Option<T> {
        self.lock().get_mut(name).map(change)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, EndpointState>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for EndpointUse<'_> {
    fn drop(&mut self) {
        let mut by_name = self.endpoints.lock();
        if let Some(state) = by_name.get_mut(&self.name) {
            state.fills -= 1;
            if state.fills == 0 {
                by_name.remove(&self.name);
            }
        }
    }
}

impl<'a> EndpointUse<'a> {
    /// Waits for a turn of the endpoint: at once, unless it is slow.
    ///
    /// # Errors
    /// `Closed` once no more fills begin.
    pub(super) async fn turn(self, rank: &Rank) -> Result<EndpointTurn<'a>> {
        let permit = self.turns.place(rank).await?;
        Ok(EndpointTurn { permit, of: self })
    }
}

impl EndpointTurn<'_> {
    pub(super) fn is_slow(&self) -> bool {
        self.of.endpoints.is_slow(&self.of.name)
    }

    /// Counts this fill as waiting for a place, until dropped.
    pub(super) fn wait_for_place(&self) -> WaitsForPlace<'_> {
        self.of.endpoints.change(&self.of.name, |state| state.waiting += 1);
        WaitsForPlace(&self.of)
    }

    /// Returns true if a fill of another endpoint waits for a place.
    pub(super) fn keeps_others_waiting(&self) -> bool {
        let by_name = self.of.endpoints.lock();
        by_name.iter().any(|(name, state)| *name != self.of.name && state.waiting > 0)
    }

    /// Returns true if a more urgent fill of the endpoint waits for its turn.
    pub(super) fn is_contested(&self, rank: &Rank) -> bool {
        self.permit.is_contested(rank)
    }

    /// Notes that the endpoint sends next to nothing, or that it does not any more.
    pub(super) fn mark_slow(&self, is_slow: bool) {
        let Endpoints { slowed, .. } = self.of.endpoints;
        let name = &self.of.name;
        let changed = self
            .of
            .endpoints
            .change(name, |state| std::mem::replace(&mut state.is_slow, is_slow) != is_slow);
        if changed != Some(true) {
            return;
        }
        match is_slow {
            true => tracing::warn!(endpoint = &**name, "the store is slow; others go first"),
            false => tracing::info!(endpoint = &**name, "the store is fast again"),
        }
        self.of.turns.set_limit(if is_slow { WHILE_SLOW } else { usize::MAX });
        if is_slow {
            slowed.send_replace(());
        }
    }
}

impl Drop for WaitsForPlace<'_> {
    fn drop(&mut self) {
        self.0.endpoints.change(&self.0.name, |state| state.waiting -= 1);
    }
}

/// Speed of a fill's origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    /// Not known yet, or nothing is asked for.
    Unknown,
    /// Next to nothing comes.
    Slow,
    /// Enough comes.
    Fast,
}

/// Counts of the bytes that a fill receives.
pub(super) struct Pulse {
    counts: VecDeque<(Instant, u64)>,
    tick: Interval,
}

impl Pulse {
    pub(super) fn new() -> Self {
        let mut tick = tokio::time::interval(COUNTED);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { counts: VecDeque::new(), tick }
    }

    /// Waits for the next count.
    pub(super) async fn tick(&mut self) {
        self.tick.tick().await;
    }

    /// Begins to count anew.
    pub(super) fn restart(&mut self) {
        self.counts.clear();
    }

    /// Returns true if requests took less than [`WATCHED`] so far.
    pub(super) fn is_young(&self) -> bool {
        self.counts.front().is_none_or(|(then, _)| then.elapsed() < WATCHED)
    }

    /// Counts the bytes that came so far, while requests wait for their bytes.
    pub(super) fn count(&mut self, received: u64, now: Instant) -> Pace {
        // Nothing was asked for in between.
        if self.counts.back().is_some_and(|(then, _)| now.duration_since(*then) > PAUSE) {
            self.counts.clear();
        }
        self.counts.push_back((now, received));
        // The oldest count that is old enough stays.
        while self.counts.get(1).is_some_and(|(then, _)| now.duration_since(*then) >= WATCHED) {
            self.counts.pop_front();
        }
        match self.counts.front() {
            Some((then, before)) if now.duration_since(*then) >= WATCHED => {
                match received.saturating_sub(*before) < SLOWEST_BYTES {
                    true => Pace::Slow,
                    false => Pace::Fast,
                }
            }
            _ => Pace::Unknown,
        }
    }
}

#[cfg(test)]
mod tests;
