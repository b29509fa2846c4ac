//! Spans of shards: no sample lies outside, and none is longer than needed.

use std::collections::HashMap;

use super::*;

/// Checks `spans` against every sample of the epoch: each lies within a span of its shard, and a
/// span that ends before `whole`, where a window may be cut off, is one that a sample needs.
fn check(
    epoch: &mut Epoch,
    share: &Share,
    counts: &[u64],
    (total, whole): (u64, u64),
    mine: &dyn Fn(u64) -> bool,
) {
    let spans = epoch.spans(share).expect("every count is known");
    assert!(spans.is_sorted_by_key(|span| span.start));
    assert!(spans.iter().all(|span| span.start < span.end && span.end <= total));
    let mut by_shard: HashMap<u32, Vec<Span>> = HashMap::new();
    for span in spans {
        by_shard.entry(span.shard).or_default().push(span);
    }
    let mut used: HashMap<(u32, u64), u64> = HashMap::new();
    for position in (0..total).filter(|position| mine(*position)) {
        let located = epoch.locate(position, &|shard| Known::Exactly(counts[shard as usize]));
        let Located::Sample { shard, .. } = located else { panic!("{located:?}") };
        let within = by_shard.get(&shard).into_iter().flatten();
        let within: Vec<_> =
            within.filter(|span| (span.start..span.end).contains(&position)).collect();
        assert!(
            !within.is_empty(),
            "sample of shard {shard} at {position}, outside of all its spans"
        );
        for span in within {
            *used.entry((shard, span.start)).or_default() += 1;
        }
    }
    for (shard, spans) in by_shard {
        for span in spans {
            let is_used = used.contains_key(&(shard, span.start));
            assert!(is_used || span.end >= whole, "{span:?} is of no use");
        }
    }
}

proptest! {
    #[test]
    fn every_sample_lies_within_a_span_of_its_shard(
        counts in prop::collection::vec(0_u64..200, 8..40), shuffle in shuffles(),
        window in 1_u32..12, seed: u64, lanes in 1_u32..8, halves in 1_u64..5, world in 1_u32..4,
    ) {
        prop_assume!(counts.iter().any(|count| *count > 0));
        let lanes = if shuffle == Shuffle::Global { 1 } else { lanes * world };
        let total = (counts.iter().sum::<u64>() * halves).div_ceil(2);
        let order = Order { epoch_samples: Some(total), batch_size: lanes, world_size: world, ..order(shuffle, window, seed) };
        let shards = u32::try_from(counts.len()).unwrap();
        for rank in 0..world {
            let order = Order { rank, ..order.clone() };
            let sequence = Sequence::new(&order, shards, Some(counts.clone()), lanes, 3);
            let share = Share::new(&order, lanes, 0);
            let own = |position: u64| share.owns(u32::try_from(position % u64::from(lanes)).unwrap());
            check(&mut Epoch::One(sequence), &share, &counts, (total, total), &own);
        }
    }

    #[test]
    fn every_sample_of_a_mixture_lies_within_a_span_of_its_shard(
        counts in prop::collection::vec(1_u64..100, 8..24), shares in (1_u32..20, 1_u32..20), seed: u64, samples in 1_u64..2000,
    ) {
        let order = Order { epoch_samples: Some(samples), ..order(Shuffle::Window, 3, seed) };
        let half = counts.len() / 2;
        let stream = |counts: &[u64], share: u32| Stream {
            shards: u32::try_from(counts.len()).unwrap(),
            counts: Some(counts.to_vec()),
            proportion: Proportion::Weight(f64::from(share)),
        };
        let streams = [stream(&counts[..half], shares.0), stream(&counts[half..], shares.1)];
        let mixed = Mixed::new(&order, &streams, &[], 1);
        prop_assume!(mixed.is_ok());
        let share = Share::new(&order, 1, 0);
        check(&mut Epoch::Mixed(mixed.unwrap()), &share, &counts, (samples, 0), &|_| true);
    }
}

/// A window of four shards is open while it is read, and no longer.
#[test]
fn a_window_ends_where_the_next_begins() {
    let order = order(Shuffle::Window, 4, 1);
    let sequence = Sequence::new(&order, 15, Some(vec![100; 15]), 1, 0);
    let spans = sequence.spans(|_| true).unwrap();
    let ranges: Vec<_> = spans.iter().map(|span| (span.start, span.end)).collect();
    let mut expected = vec![(0, 100), (100, 200), (200, 400), (200, 400)];
    for start in [400, 800, 1200] {
        expected.extend([(start, (start + 400).min(1500)); 4]);
    }
    assert_eq!(ranges, expected[..15]);
}
