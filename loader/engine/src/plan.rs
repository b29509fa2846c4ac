//! The plan: the sample at each position of an epoch, and the rank and time of its read.
//!
//! Everything here is a pure function of (shard list, sample counts, seed, epoch,
//! options). Nothing depends on time, on cached shards, or on the caller. World size and batch size
//! enter only in [`share`], after the order is fixed.
//!
//! ```text
//!   shards ──permute──▶ row of samples ──deal──▶ lanes ──window──▶ blocks ──permute──▶ lane sequences
//!                                                                                          │
//!   global position p  =  lane p mod L, place p div L  ◀──────── interleave ───────────────┘
//!   global batch k     =  positions base + kG … base + (k+1)G − 1,  G = batch_size · world_size
//! ```
//! With counts known beforehand every step is a closed form ([`deal`], [`lane`]): a position is
//! computed, not played to. Without counts (no manifest) there is one lane ([`learning`]), and
//! [`Sequence::locate`] names the shard whose count it needs next. Learning a count never changes
//! the order, only how far it is known. Several data sets are several sequences, and [`mix`]
//! decides which stream is next.

mod bins;
mod deal;
mod epoch;
mod ladder;
mod lane;
mod learning;
mod mix;
mod need;
mod outlook;
mod permute;
mod sequence;
mod share;

pub use bins::{Bins, LENGTHS_MAX, Lengths, Taken, Taker};
pub use epoch::Epoch;
pub use ladder::default_lanes;
pub use mix::{Mix, Mixed, Phase, Proportion, Stream, repeats, weights};
pub use need::{Need, Part, need};
pub use outlook::{outlook, place};
pub use permute::{Key, permute};
pub use sequence::{Known, Located, Sequence, Span};
pub use share::Share;

use forebay_error::{Error, ErrorKind, Result};
use forebay_wire::message::{Order, Shuffle};

/// Version of the order. Saved positions depend on it, so any change of the order raises it; golden
/// sequences in the tests detect a change.
///
/// Version 2 differs from version 1 in the lanes of an order that leaves them unset: those of
/// [`default_lanes`] rather than of [`lanes`]. With the same lanes both are the same order.
pub const ORDER_VERSION: u32 = 2;

/// Oldest version whose saved positions mean the same samples in this release, with the lanes of
/// that version.
pub const ORDER_OLDEST: u32 = 1;

/// Lane counts of version 1, tried from the largest down.
const LANE_LADDER: [u32; 8] = [96, 48, 24, 12, 8, 4, 2, 1];

/// Largest number of samples in a batch of one rank: the message of such a batch is some 60 MB,
/// which bounds the allocation a client can cause.
pub(crate) const BATCH_MAX: u32 = 1 << 20;

/// Largest number of samples in an epoch: a million per second for nine years. Arithmetic on
/// positions has room above it.
const SAMPLES_MAX: u64 = 1 << 48;

/// Largest number of lanes: each is visited with every batch.
const LANES_MAX: u32 = 4096;

/// Fewest shards per lane: a shorter lane would mix too little and fetch too many shared shards.
const SHARDS_PER_LANE: u32 = 4;

/// Returns the number of lanes of an order over `shards` shards.
///
/// Lanes left unset are those of version 1: clients of that version leave them to the daemon, and
/// find the same order under the daemon of a later release. Clients of version 2 set them.
/// Without counts lanes cannot be cut equally, and without shuffling users expect the list's order:
/// both take one lane unless `lanes` is given.
///
/// # Errors
/// `Invalid` for zero lanes, more lanes than shards or than 4096, or several lanes without counts
/// or of a global shuffle.
pub fn lanes(order: &Order, shards: u32, counts_known: bool) -> Result<u32> {
    let invalid = |message: &str, advice: &str| {
        Err(Error::new(ErrorKind::Invalid, message).at("shards", shards).advise(advice))
    };
    match order.lanes {
        Some(0) => invalid("lanes is 0", "leave lanes unset, or give at least 1"),
        Some(lanes) if lanes > shards => {
            invalid("there are more lanes than shards", "lower lanes, or leave it unset")
        }
        Some(lanes) if lanes > LANES_MAX => invalid(
            &format!("{lanes} lanes exceed the maximum of {LANES_MAX}"),
            "lower lanes, or leave it unset",
        ),
        Some(lanes) if lanes > 1 && order.shuffle == Shuffle::Global => invalid(
            "a global shuffle is one permutation of all samples and cannot use several \
                     lanes",
            "leave lanes unset, or shuffle over a window of shards",
        ),
        Some(lanes) if lanes > 1 && !counts_known => invalid(
            "several lanes need the sample counts of a manifest",
            "make one with `forebay index`, or leave lanes unset",
        ),
        Some(lanes) => Ok(lanes),
        None if order.shuffle == Shuffle::Window && counts_known => {
            Ok(LANE_LADDER.into_iter().find(|lanes| lanes * SHARDS_PER_LANE <= shards).unwrap_or(1))
        }
        None => Ok(1),
    }
}

/// Rejects invalid orders before anything is fetched for them.
///
/// # Errors
/// `Invalid`, naming the option and the fix.
pub fn check(order: &Order, shards: usize, counts: Option<&[u64]>) -> Result<()> {
    let invalid =
        |message: String, advice: &str| Err(Error::new(ErrorKind::Invalid, message).advise(advice));
    if shards == 0 || u32::try_from(shards).is_err() {
        return invalid(format!("a job cannot read {shards} shards"), "check the URL list");
    }
    if order.batch_size == 0 {
        return invalid("batch_size is 0".into(), "give at least 1");
    }
    if order.batch_size > BATCH_MAX {
        let message = format!("batch_size {} is above {BATCH_MAX}", order.batch_size);
        return invalid(message, "give fewer samples per batch");
    }
    if order.world_size == 0 || order.rank >= order.world_size {
        let (rank, world) = (order.rank, order.world_size);
        return invalid(
            format!("rank {rank} is not below world_size {world}"),
            "check rank and world_size, or RANK and WORLD_SIZE",
        );
    }
    if order.window == 0 {
        return invalid("window is 0".into(), "give at least 1 shard, or shuffle=False");
    }
    if order.epoch_samples == Some(0) {
        return invalid("epoch_samples is 0".into(), "give at least 1, or leave it unset");
    }
    if order.epoch_samples.is_some_and(|samples| samples > SAMPLES_MAX) {
        return invalid(
            format!("epoch_samples is above {SAMPLES_MAX}"),
            "give fewer, or leave it unset",
        );
    }
    if let Some(counts) = counts {
        check_counts(counts, shards)?;
    }
    if order.world_size > 1 && counts.is_none() && order.epoch_samples.is_none() {
        return invalid(
            "several ranks need the number of samples of an epoch; otherwise some would \
                     wait for ever"
                .into(),
            "give manifest= (make one with `forebay index URLS -o manifest.json`) or epoch_samples=",
        );
    }
    Ok(())
}

/// Rejects counts that are not those of `shards` shards, or exceed the range of positions.
fn check_counts(counts: &[u64], shards: usize) -> Result<()> {
    let invalid = |message: String| {
        Err(Error::new(ErrorKind::Invalid, message).advise("index the shards again"))
    };
    if counts.len() != shards {
        return invalid("the manifest lists other shards than the job".into());
    }
    match counts.iter().try_fold(0, |sum: u64, count| sum.checked_add(*count)) {
        Some(0) => invalid("the manifest lists no samples".into()),
        Some(..=SAMPLES_MAX) => Ok(()),
        _ => invalid(format!("the manifest lists more than {SAMPLES_MAX} samples")),
    }
}

#[cfg(test)]
mod tests;
