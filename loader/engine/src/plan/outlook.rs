//! All that a rank will read, epoch after epoch, as foresight wants it: shards by when they are needed.

use forebay_policy::{Epoch as Foreseen, Epochs, Future, Shard, Use};

use super::{Epoch, Share};

/// What a rank will read of epochs that `make` gives by their number, from 0 on; none is the end, as is one of which nothing is
/// known beforehand. Positions stand for `bytes` bytes each; `shards` are foresight's numbers of the list's shards.
#[must_use]
pub fn outlook(
    mut make: impl FnMut(u64) -> Option<Epoch> + Send + 'static,
    share: Share,
    shards: Vec<Shard>,
    bytes: f64,
) -> Box<dyn Future> {
    Box::new(Epochs::new(shards.clone(), move |number| {
        let epoch = make(number)?;
        let total = epoch.total()?;
        let at = |position: u64| place(position, bytes);
        let uses = epoch.spans(&share)?.into_iter().filter_map(|span| {
            let shard = *shards.get(span.shard as usize)?;
            Some(Use { shard, start: at(span.start), end: at(span.end) })
        });
        Some(Foreseen { uses: uses.collect(), bytes: at(total) })
    }))
}

/// Where a position of an epoch is, in bytes that were read before it.
#[must_use]
pub fn place(position: u64, bytes: f64) -> u64 {
    (position as f64 * bytes) as u64
}
