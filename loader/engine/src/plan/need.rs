//! Bytes that an order has open at once: the room its node's cache must have.
//!
//! The answer holds for every epoch, so it assumes the largest shards in one window, and a
//! whole window per lane even where its ramp or end is shorter.

use forebay_wire::message::{Order, Shuffle};

use super::lane::Mixing;
use super::{LANE_LADDER, Share};

/// Returns the whole shards that one of `lanes` lanes mixes at once, out of `window` over all of
/// them.
pub(super) fn window_per_lane(window: u32, lanes: u32) -> u64 {
    u64::from(window.div_ceil(lanes))
}

/// One data set of an order, as a node reads it.
#[derive(Debug)]
pub struct Part {
    lanes: u32,
    /// Lanes that the node reads.
    own: u64,
    /// Bytes of its largest shard, its two largest, and so on.
    sums: Vec<u64>,
}

impl Part {
    /// Describes shards of `bytes` dealt to `lanes` lanes, of which a node with `ranks` ranks reads
    /// its share.
    ///
    /// Ranks that take slices read every lane, so one such rank reads as much as all of them.
    #[must_use]
    pub fn new(order: &Order, lanes: u32, ranks: u32, bytes: &[u64]) -> Self {
        let share = Share::new(order, lanes, 0);
        let each = (0..lanes).filter(|lane| share.owns(*lane)).count() as u64;
        Self::with_lanes(lanes, each.saturating_mul(u64::from(ranks)), bytes)
    }

    /// Describes a stream of a mixture: each rank reads all of its lanes.
    #[must_use]
    pub fn stream(lanes: u32, bytes: &[u64]) -> Self {
        Self::with_lanes(lanes, u64::from(lanes), bytes)
    }

    fn with_lanes(lanes: u32, own: u64, bytes: &[u64]) -> Self {
        let mut sums = bytes.to_vec();
        sums.sort_unstable_by(|a, b| b.cmp(a));
        let mut sum = 0_u64;
        sums.iter_mut().for_each(|bytes| {
            sum = sum.saturating_add(*bytes);
            *bytes = sum;
        });
        Self { lanes, own: own.min(u64::from(lanes)), sums }
    }

    fn shards(&self) -> u32 {
        u32::try_from(self.sums.len()).expect("checked when the job was opened")
    }

    /// Returns the peak of bytes open at once.
    fn needs(&self, shuffle: Shuffle, window: u32) -> u64 {
        let window = window_per_lane(window, self.lanes);
        let mixing = Mixing { shuffle, window, lanes: u64::from(self.lanes) };
        let open = mixing.open(self.own, self.shards());
        let last = usize::try_from(open).ok().and_then(|open| open.checked_sub(1));
        last.map_or(0, |last| self.sums[last])
    }

    /// Returns the window that mixes all of it.
    fn whole(&self) -> u32 {
        self.shards().div_ceil(self.lanes).saturating_mul(self.lanes)
    }
}

/// Need of the ranks of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// Peak of bytes open at once.
    pub bytes: u64,
    /// Largest window whose bytes fit the budget; `None` if none does.
    pub window: Option<u32>,
    /// Largest default number of lanes that fits with a window of a shard each; `None` if not even
    /// one shard fits.
    pub lanes: Option<u32>,
}

/// Returns the peak need of an order over `parts`, and the settings for which `budget` bytes
/// suffice.
///
/// A global shuffle has all shards open; its window is that of a window shuffle over as many lanes.
#[must_use]
pub fn need(order: &Order, parts: &[Part], budget: u64) -> Need {
    let of = |shuffle, window| {
        parts.iter().fold(0_u64, |sum, part| sum.saturating_add(part.needs(shuffle, window)))
    };
    // The need grows with the window, so bisection finds the largest that fits.
    let (mut fits, mut exceeds) = (0, parts.iter().map(Part::whole).max().unwrap_or(0));
    exceeds = exceeds.saturating_add(1);
    while exceeds - fits > 1 {
        let middle = fits + (exceeds - fits) / 2;
        match of(Shuffle::Window, middle) <= budget {
            true => fits = middle,
            false => exceeds = middle,
        }
    }
    let a_shard_each = |lanes: u32| {
        parts.iter().fold(0_u64, |sum, part| {
            let shards = (lanes.min(part.shards()) as usize).checked_sub(1);
            sum.saturating_add(shards.map_or(0, |last| part.sums[last]))
        })
    };
    Need {
        bytes: of(order.shuffle, order.window),
        window: (fits > 0).then_some(fits),
        lanes: LANE_LADDER.into_iter().find(|lanes| a_shard_each(*lanes) <= budget),
    }
}
