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

/// Shards filled at once, of any number that has begun. More would not add bandwidth and would
/// delay the first whole shard.
pub const FILLS: usize = 4;

/// Largest shard that counts as small. A transfer of this size takes less time than a round trip to
/// a store and the syncs of a disk, so the shards in flight decide how many come in a second.
pub const SMALL_BYTES: u64 = 256 << 10;

/// Small shards filled at once, beside [`FILLS`] of any size: with the 60 ms of two round trips and
/// three syncs, a thousand a second.
pub const SMALL_FILLS: usize = 64;

/// Fills beside the running ones whose stores send next to nothing: one for each of two slow
/// stores. They get a part at a time.
pub(crate) const LANES: usize = 2;

/// Frame memory of all fills. Two fills whose disks hang with all their frames leave two others the
/// minimum; lanes and small shards use what is free. A paused fill holds none.
pub const FRAME_BYTES: usize = (2 * WINDOW + (FILLS - 2) * LEAST) * PART_BYTES;
