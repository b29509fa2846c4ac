//! How many bytes a second may come.
//!
//! Its rule: what is asked for is paid for before; whoever asks for more than a second's worth pays in
//! pieces, so that others with the same limit get theirs in between.

use std::num::NonZeroU32;

use governor::{DefaultDirectRateLimiter, Quota};

/// Bytes are counted in units of this, so that 32 bits hold a second's worth of any link.
const UNIT: u64 = 1 << 10;

/// A limit on bytes a second, shared by whoever holds it.
#[derive(Debug)]
pub struct Rate {
    limiter: DefaultDirectRateLimiter,
    /// A second's worth, in units.
    burst: NonZeroU32,
}

impl Rate {
    /// At most so many bytes a second; at least one unit of a KiB.
    #[must_use]
    pub fn new(bytes_per_second: u64) -> Self {
        let units = u32::try_from(bytes_per_second / UNIT).unwrap_or(u32::MAX);
        let burst = NonZeroU32::new(units).unwrap_or(NonZeroU32::MIN);
        Self { limiter: DefaultDirectRateLimiter::direct(Quota::per_second(burst)), burst }
    }

    /// Waits until so many bytes may come.
    pub async fn take(&self, bytes: u64) {
        let mut left = bytes.div_ceil(UNIT);
        while left > 0 {
            let units = u32::try_from(left).unwrap_or(u32::MAX).min(self.burst.get());
            left -= u64::from(units);
            let Some(units) = NonZeroU32::new(units) else { return };
            let taken = self.limiter.until_n_ready(units).await;
            debug_assert!(taken.is_ok(), "a piece is a second's worth at most");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[test]
    fn a_second_s_worth_is_there_and_more_is_waited_for() {
        let rate = Rate::new(100 << 20);
        assert!(rate.take(100 << 20).now_or_never().is_some());
        assert!(rate.take(50 << 20).now_or_never().is_none());
        assert!(Rate::new(0).take(1).now_or_never().is_some());
        assert!(Rate::new(u64::MAX).take(1 << 40).now_or_never().is_some());
    }
}
