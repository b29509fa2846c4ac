//! What an order has open at once: how many shards, how many bytes.
//!
//! Its rule: the answer holds for every epoch, so it takes the largest shards that may meet.

use forebay_wire::message::Order;

use super::Share;
use super::lane::Mixing;

/// Whole shards that one of `lanes` lanes mixes at once, of `window` over all of them together.
pub(super) fn window_per_lane(window: u32, lanes: u32) -> u64 {
    u64::from(window.div_ceil(lanes))
}

/// How many shards, of `shards` in all, a rank has open at once: those that its next batch may
/// read of. All of them for a global shuffle.
#[must_use]
pub fn open(order: &Order, shards: u32, lanes: u32, share: &Share) -> u64 {
    let own = (0..lanes).filter(|lane| share.owns(*lane)).count() as u64;
    let window = window_per_lane(order.window, lanes);
    Mixing { shuffle: order.shuffle, window, lanes: u64::from(lanes) }.open(own, shards)
}
