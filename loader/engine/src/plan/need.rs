//! What an order has open at once.

/// Whole shards that one of `lanes` lanes mixes at once, of `window` over all of them together.
pub(super) fn window_per_lane(window: u32, lanes: u32) -> u64 {
    u64::from(window.div_ceil(lanes))
}
