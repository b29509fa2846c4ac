//! What an order has open at once, in bytes: the room its node's cache must have for it.
//!
//! Its rule: the answer holds for every epoch, so it takes the largest shards, which may meet in
//! one window, and it counts a lane's window whole, also while its ramp or its end is shorter.

use forebay_wire::message::{Order, Shuffle};

use super::Share;
use super::lane::Mixing;

/// Whole shards that one of `lanes` lanes mixes at once, of `window` over all of them together.
pub(super) fn window_per_lane(window: u32, lanes: u32) -> u64 {
    u64::from(window.div_ceil(lanes))
}

/// What the ranks of one node have open at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// Bytes at their highest.
    pub bytes: u64,
    /// The largest window whose bytes fit the budget, a whole number of shards per lane; `None`
    /// where no window does.
    pub window: Option<u32>,
}

/// The peak need of a node that has the ranks `shares`, over shards of `bytes`, and the largest
/// window that `budget` bytes have room for.
///
/// Ranks that take slices read every lane, so one such rank needs what all do. For a global shuffle,
/// which has all shards open, the window is that of a window shuffle over as many lanes.
#[must_use]
pub fn need(order: &Order, lanes: u32, shares: &[Share], bytes: &[u64], budget: u64) -> Need {
    let own = (0..lanes).filter(|lane| shares.iter().any(|share| share.owns(*lane))).count() as u64;
    let shards = u32::try_from(bytes.len()).expect("checked when the job was opened");
    let mut largest = bytes.to_vec();
    largest.sort_unstable_by(|a, b| b.cmp(a));
    let mut sum = 0_u64;
    // What the largest shard alone needs, the two largest, and so on.
    largest.iter_mut().for_each(|bytes| {
        sum = sum.saturating_add(*bytes);
        *bytes = sum;
    });
    let needs = |shuffle: Shuffle, window: u64| {
        let open = Mixing { shuffle, window, lanes: u64::from(lanes) }.open(own, shards);
        usize::try_from(open).ok().and_then(|open| open.checked_sub(1)).map_or(0, |at| largest[at])
    };
    let fitting = largest.partition_point(|bytes| *bytes <= budget) as u64;
    let per_lane = match fitting {
        all if all == u64::from(shards) => u64::from(shards.div_ceil(lanes)),
        some => some.checked_div(own).unwrap_or(0),
    };
    let window = u32::try_from(per_lane * u64::from(lanes)).unwrap_or(u32::MAX);
    Need {
        bytes: needs(order.shuffle, window_per_lane(order.window, lanes)),
        window: (window > 0).then_some(window),
    }
}
