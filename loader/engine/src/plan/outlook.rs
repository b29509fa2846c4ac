//! Future reads of a rank, epoch after epoch, as the forecast takes them: shards by time of need.

use forebay_policy::{Epoch as Foreseen, Epochs, Future, Shard, Use};

use super::{Epoch, Share};

/// Returns the future reads of a rank in epochs that `make` gives by number, from 0 on; `None`, or
/// an epoch unknown beforehand, is the end. Positions stand for `bytes` bytes each; `shards` are
/// the forecast's numbers of the listed shards. `others` gives the shards that are read together
/// with one of the order's.
#[must_use]
pub fn outlook(
    mut make: impl FnMut(u64) -> Option<Epoch> + Send + 'static,
    share: Share,
    shards: Vec<Shard>,
    others: impl Fn(u32) -> Vec<u32> + Send + 'static,
    bytes: f64,
) -> Box<dyn Future> {
    Box::new(Epochs::new(shards.clone(), move |number| {
        let epoch = make(number)?;
        let total = epoch.total()?;
        let at = |position: u64| place(position, bytes);
        let uses = epoch.spans(&share)?.into_iter().flat_map(|span| {
            let (start, end) = (at(span.start), at(span.end));
            let read = std::iter::once(span.shard).chain(others(span.shard));
            let read = read.filter_map(|shard| shards.get(shard as usize).copied());
            read.map(move |shard| Use { shard, start, end }).collect::<Vec<_>>()
        });
        Some(Foreseen { uses: uses.collect(), bytes: at(total) })
    }))
}

/// Returns the bytes read in an epoch before a position.
#[must_use]
pub fn place(position: u64, bytes: f64) -> u64 {
    (position as f64 * bytes) as u64
}
