//! Check that a job's window fits its share of the cache.
//!
//! A job is rejected only if it never fits, however much of the cache others free. Shards
//! read in place need no room.

use bytesize::ByteSize;
use forebay_error::{Error, ErrorKind, Result};
use forebay_store::Store;
use forebay_wire::message::{Extent, Mixture, Open, Order, Shuffle, Stream};

use super::joined::Joins;
use crate::plan::{self, Need, Part, need};

/// Cache that the shards which a job has open at once take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Holding {
    /// Bytes, at most.
    bytes: u64,
    /// Bytes that all of its shards may take.
    room: u64,
}

impl Holding {
    /// Returns the end of a sentence that begins with the job.
    pub(super) fn why(self, order: &Order, lanes: Option<u32>) -> String {
        let Self { bytes, room } = self;
        let size = ByteSize(bytes).display().iec();
        let share = 100.0 * bytes as f64 / room.max(1) as f64;
        let by = match (lanes, order.shuffle) {
            (Some(lanes), Shuffle::Window) => format!("lanes={lanes} and window={}", order.window),
            (Some(lanes), Shuffle::None) => format!("lanes={lanes}"),
            (_, Shuffle::Global) => "its global shuffle".to_owned(),
            (None, _) => "the lanes and windows of its streams".to_owned(),
        };
        format!(
            "has up to {size} of shards open at once by {by}, {share:.0} % of its share of the \
             cache: shards that it reads later have the rest"
        )
    }
}

/// Rejects a job whose window exceeds its share of the cache. `reads_all` says that each rank reads
/// all `lanes`, however many there are. Returns the cache that its open shards take; none if they
/// take none.
///
/// # Errors
/// `Full` with the largest window that fits; `Invalid` for an extent of another job.
pub(super) fn check(
    spec: &Open,
    (mixture, joins): (&Mixture, &Joins),
    (lanes, reads_all): (u32, bool),
    extent: &Extent,
    store: &Store,
) -> Result<Option<Holding>> {
    let order = &spec.order;
    let (first, ranks) = extent.ranks;
    let within = first.checked_add(ranks).is_some_and(|end| end <= order.world_size);
    if extent.bytes.len() != spec.urls.len() || ranks == 0 || !within {
        return Err(Error::new(ErrorKind::Invalid, "the extent belongs to another job"));
    }
    let urls = || spec.urls.iter().map(String::as_str);
    let Some(room) = store.room_for(urls()) else { return Ok(None) };
    let bytes = urls().zip(&extent.bytes);
    let bytes: Vec<u64> =
        bytes.map(|(url, bytes)| if store.keeps(url) { *bytes } else { 0 }).collect();
    let bytes = joins.sums(&bytes);
    let parts = match mixture.streams.as_slice() {
        [] if reads_all => vec![Part::stream(lanes, &bytes)],
        [] => vec![Part::new(order, lanes, ranks, &bytes)],
        streams => {
            let mut rest = bytes.as_slice();
            let of = |stream: &Stream| {
                let (own, others) = rest.split_at(rest.len().min(stream.shards as usize));
                rest = others;
                let lanes = plan::lanes(order, stream.shards, spec.counts.is_some())?;
                Ok(Part::stream(lanes, own))
            };
            streams.iter().map(of).collect::<Result<_>>()?
        }
    };
    let Need { bytes, window, lanes } = need(order, &parts, room);
    if bytes <= room {
        return Ok(Some(Holding { bytes, room }));
    }
    let error =
        Error::new(ErrorKind::Full, "the job's window does not fit into its share of the cache")
            .at("bytes", bytes)
            .at("room", room);
    let filled = store.filled_by_others(urls());
    if !filled.is_empty() {
        let advice = "other files fill the disk of the cache: free space there, or lower keep_free";
        return Err(error.at("tiers", filled.join(",")).advise(advice));
    }
    let larger = "or raise the cache's capacity or the quota";
    let advice = match (order.shuffle, window, lanes) {
        (Shuffle::Window | Shuffle::Global, Some(window), _) => {
            format!("set shuffle=True and window={window}, {larger}")
        }
        (_, _, Some(lanes)) => format!("set lanes={lanes} and window={lanes}, {larger}"),
        (_, _, None) => {
            "not even one shard of each data set fits: raise the cache's capacity or the \
                         quota, or make smaller shards"
                .to_owned()
        }
    };
    Err(error.advise(advice))
}
