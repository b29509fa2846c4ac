//! Limit on bytes per second.
//!
//! Bytes are paid for before they are requested. A request for more than a second's worth pays in
//! pieces, so that others under the same limit get theirs in between. A changed limit applies at
//! once, to waiting requests as well.

use std::num::NonZeroU32;
use std::sync::Arc;

use governor::{DefaultDirectRateLimiter, Quota};
use tokio::sync::watch;

/// Bytes are counted in units of this, so that 32 bits hold a second's worth of any link.
const UNIT: u64 = 1 << 10;

/// A limit on bytes a second, shared by whoever holds it; none: as many as come.
#[derive(Debug)]
pub struct Rate(watch::Sender<Option<Arc<Limit>>>);

#[derive(Debug)]
struct Limit {
    bytes_per_second: u64,
    limiter: DefaultDirectRateLimiter,
    /// A second's worth, in units.
    burst: NonZeroU32,
}

impl Limit {
    fn new(bytes_per_second: u64) -> Arc<Self> {
        let units = u32::try_from(bytes_per_second / UNIT).unwrap_or(u32::MAX);
        let burst = NonZeroU32::new(units).unwrap_or(NonZeroU32::MIN);
        let limiter = DefaultDirectRateLimiter::direct(Quota::per_second(burst));
        Arc::new(Self { bytes_per_second, limiter, burst })
    }
}

impl Rate {
    /// At most so many bytes a second; at least one unit of a KiB.
    #[must_use]
    pub fn new(bytes_per_second: u64) -> Self {
        Self::of(Some(bytes_per_second))
    }

    /// The same, if it is limited at all.
    #[must_use]
    pub fn of(bytes_per_second: Option<u64>) -> Self {
        Self(watch::Sender::new(bytes_per_second.map(Limit::new)))
    }

    /// Limits to so many bytes a second from now on, those included who wait.
    pub fn set(&self, bytes_per_second: Option<u64>) {
        self.0.send_if_modified(|limit| {
            let changes = limit.as_ref().map(|limit| limit.bytes_per_second) != bytes_per_second;
            if changes {
                *limit = bytes_per_second.map(Limit::new);
            }
            changes
        });
    }

    /// Waits until so many bytes may come.
    pub async fn take(&self, bytes: u64) {
        let mut left = bytes.div_ceil(UNIT);
        let mut limits = self.0.subscribe();
        while left > 0 {
            let Some(limit) = limits.borrow_and_update().clone() else { return };
            let units = u32::try_from(left).unwrap_or(u32::MAX).min(limit.burst.get());
            let Some(paid) = NonZeroU32::new(units) else { return };
            tokio::select! {
                taken = limit.limiter.until_n_ready(paid) => {
                    debug_assert!(taken.is_ok(), "a piece is a second's worth at most");
                    left -= u64::from(units);
                }
                // The unpaid rest is paid by the new limit.
                _ = limits.changed() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[test]
    fn burst_of_one_second_passes_and_more_waits() {
        let rate = Rate::new(100 << 20);
        assert!(rate.take(100 << 20).now_or_never().is_some());
        assert!(rate.take(50 << 20).now_or_never().is_none());
        assert!(Rate::new(0).take(1).now_or_never().is_some());
        assert!(Rate::new(u64::MAX).take(1 << 40).now_or_never().is_some());
        assert!(Rate::of(None).take(1 << 60).now_or_never().is_some());
    }

    #[tokio::test]
    async fn new_limit_applies_to_waiting_callers() {
        for change in [None, Some(1 << 40)] {
            // By the old one this would take days.
            let rate = Arc::new(Rate::new(0));
            let waiting = tokio::spawn({
                let rate = rate.clone();
                async move { rate.take(1 << 30).await }
            });
            while rate.0.receiver_count() == 0 {
                tokio::task::yield_now().await;
            }
            assert!(!waiting.is_finished());
            rate.set(change);
            waiting.await.unwrap();
        }
    }

    #[test]
    fn setting_the_same_limit_grants_no_new_burst() {
        let rate = Rate::new(1 << 20);
        assert!(rate.take(1 << 20).now_or_never().is_some());
        rate.set(Some(1 << 20));
        assert!(rate.take(1 << 20).now_or_never().is_none(), "its second's worth is spent");
        rate.set(Some(2 << 20));
        assert!(rate.take(2 << 20).now_or_never().is_some());
    }
}
