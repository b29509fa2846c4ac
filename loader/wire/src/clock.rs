//! Clock shared by both processes, so that a wait in one can be charged to a stage in the other.
//!
//! `CLOCK_MONOTONIC` counts from boot and reads the same in every process of a node.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds on the node's monotonic clock.
#[must_use]
pub fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    // Both parts are non-negative on a monotonic clock, and 2^64 ns is 584 years of uptime.
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000
        + u64::try_from(time.tv_nsec).unwrap_or(0)
}
