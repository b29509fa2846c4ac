//! All that a rank will read, epoch after epoch, as foresight wants it: shards by when they are needed.

use forebay_policy::{Epoch as Foreseen, Epochs, Future, Shard, Use};
use forebay_wire::message::Order;

use super::{Epoch, Sequence, Share};

/// What a rank of `order` will read from epoch `first` on, `epochs` of them, of shards with known `counts`. Positions stand for
/// `bytes` bytes each; `shards` are foresight's numbers of the list's shards.
#[must_use]
pub fn outlook(
    order: Order,
    (lanes, counts): (u32, Vec<u64>),
    shards: Vec<Shard>,
    (first, epochs): (u64, u64),
    bytes: f64,
) -> Box<dyn Future> {
    let share = Share::new(&order, lanes, 0);
    let all = shards.clone();
    Box::new(Epochs::new(all, move |number| {
        if number >= epochs {
            return None;
        }
        // As many as there are counts; both come from one list.
        let len = u32::try_from(counts.len()).ok()?;
        let epoch = first.saturating_add(number);
        let sequence = Sequence::new(&order, len, Some(counts.clone()), lanes, epoch);
        let total = sequence.total()?;
        let at = |position: u64| (position as f64 * bytes) as u64;
        let spans = Epoch::One(sequence).spans(&share)?;
        let uses = spans.into_iter().filter_map(|span| {
            let shard = *shards.get(span.shard as usize)?;
            Some(Use { shard, start: at(span.start), end: at(span.end) })
        });
        Some(Foreseen { uses: uses.collect(), bytes: at(total) })
    }))
}
