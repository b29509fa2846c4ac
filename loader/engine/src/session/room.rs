//! Check that a job's window fits its share of the cache.
//!
//! A job is rejected only if it never fits, however much of the cache others free. Shards
//! read in place need no room.

use forebay_error::{Error, ErrorKind, Result};
use forebay_store::Store;
use forebay_wire::message::{Extent, Mixture, Open, Shuffle, Stream};

use super::joined::Joins;
use crate::plan::{self, Need, Part, need};

/// Rejects a job whose window exceeds its share of the cache. `reads_all` says that each rank reads
/// all `lanes`, however many there are.
///
/// # Errors
/// `Full` with the largest window that fits; `Invalid` for an extent of another job.
pub(super) fn check(
    spec: &Open,
    (mixture, joins): (&Mixture, &Joins),
    (lanes, reads_all): (u32, bool),
    extent: &Extent,
    store: &Store,
) -> Result<()> {
    let order = &spec.order;
    let (first, ranks) = extent.ranks;
    let within = first.checked_add(ranks).is_some_and(|end| end <= order.world_size);
    if extent.bytes.len() != spec.urls.len() || ranks == 0 || !within {
        return Err(Error::new(ErrorKind::Invalid, "the extent belongs to another job"));
    }
    let urls = || spec.urls.iter().map(String::as_str);
    let Some(room) = store.room_for(urls()) else { return Ok(()) };
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
        return Ok(());
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
