//! Sizes of parts and limits of fills that several layers share.

use forebay_shard::BLOCK_BYTES;

/// Bytes requested at once. A part is large enough that the round trip of a ranged GET (20–50 ms on
/// S3) is short beside its transfer. It is small enough that several parts of one shard are in
/// flight.
///
/// A part is a block of the sidecar, so its checksum is computed once.
pub const PART_BYTES: usize = BLOCK_BYTES as usize;

/// Parts of one shard in flight at the origin, over as many requests as suit it
/// (`Source::at_once`). One S3 connection carries about 50–90 MB/s; eight of them on each of
/// [`FILLS`] shards fill more than a 10 Gbit/s link.
pub(crate) const PARTS_AT_ONCE: usize = 8;

/// Frames kept behind the indexer, so that samples just indexed are served from memory.
pub(crate) const RETAINED: usize = 2;

/// Parts of one shard being written while others arrive. Drives complete large writes in bursts.
/// Queued writes keep them busy while the next parts arrive and are checked.
pub(crate) const WRITTEN_AT_ONCE: usize = 12;

/// Maximum number of frames of one fill.
pub(crate) const WINDOW: usize = PARTS_AT_ONCE + WRITTEN_AT_ONCE + RETAINED;

/// Minimum number of frames of a fill: those behind the indexer, its own, and the next. A
/// compressed shard needs no next frame for the indexer, but one for the bytes from its origin.
pub(crate) const LEAST: usize = RETAINED + 2;

/// Shards filled at once, at least, of any number that has begun.
pub const FILLS: usize = 4;

/// Shards filled at once, at most. With four, one or two requests are under way when a first batch
/// is almost here, and a connection's rate grows slowly after a loss; more than eight would delay
/// the first whole shard.
pub const FILLS_MAX: usize = 8;

/// Largest shard that counts as small. A transfer of this size takes less time than a round trip to
/// a store and the syncs of a disk, so the shards in flight decide how many come in a second.
pub const SMALL_BYTES: u64 = 256 << 10;

/// Small shards filled at once, beside those of any size: with the 60 ms of two round trips and
/// three syncs, a thousand a second.
pub const SMALL_FILLS: usize = 64;

/// Fills beside the running ones whose stores send next to nothing: one for each of two slow
/// stores. They get a part at a time.
pub(crate) const LANES: usize = 2;

/// Least frame memory of all fills: that of [`FILLS`].
pub const FRAME_BYTES: usize = frames_of(FILLS);

/// Divisor of a daemon's memory: frames beyond the least must leave most of it to slabs.
const OF_MEMORY: usize = 8;

/// Frame memory of so many fills at once. Two whose disks hang with all their frames leave the
/// others the minimum; lanes and small shards use what is free. A paused fill holds none.
const fn frames_of(fills: usize) -> usize {
    (2 * WINDOW + (fills - 2) * LEAST) * PART_BYTES
}

/// Returns the frame memory of a daemon with `memory` bytes beside its memory tiers: an eighth of
/// it, at least that of [`FILLS`] and at most that of [`FILLS_MAX`].
#[must_use]
pub fn frame_bytes(memory: usize) -> usize {
    (memory / OF_MEMORY / PART_BYTES * PART_BYTES).clamp(FRAME_BYTES, frames_of(FILLS_MAX))
}

/// Returns the shards filled at once in so many bytes of frames.
pub(crate) fn fills_in(frames: usize) -> usize {
    let beyond = frames.saturating_sub(FRAME_BYTES) / (LEAST * PART_BYTES);
    (FILLS + beyond).min(FILLS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_follow_the_daemons_memory() {
        const MIB: usize = 1 << 20;
        for (memory, frames, fills) in
            [(0, 208, 4), (1664, 208, 4), (1792, 224, 5), (2176, 272, 8), (1 << 20, 272, 8)]
        {
            assert_eq!(frame_bytes(memory * MIB), frames * MIB, "{memory} MiB");
            assert_eq!(fills_in(frames * MIB), fills, "{frames} MiB");
        }
        // A store of its own may have less.
        assert_eq!(fills_in(MIB), FILLS);
    }
}
