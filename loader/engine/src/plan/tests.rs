//! Properties of every plan: it is a partition, and it depends only on its inputs.

use std::collections::HashSet;

use forebay_wire::message::Tail;
use proptest::prelude::*;

use super::*;

mod ahead;
mod edges;
mod elastic;
mod golden;
mod ladder;
mod mixtures;
mod needs;
mod phases;
mod spans;

fn order(shuffle: Shuffle, window: u32, seed: u64) -> Order {
    Order { shuffle, ..Order::shuffled(window, seed, 4) }
}

/// The whole sequence with every count known beforehand.
fn with_manifest(order: &Order, counts: &[u64], lanes: u32, epoch: u64) -> Vec<(u32, u64)> {
    let shards = u32::try_from(counts.len()).unwrap();
    let mut sequence = Sequence::new(order, shards, Some(counts.to_vec()), lanes, epoch);
    let known = |shard: u32| Known::Exactly(counts[shard as usize]);
    let mut all = Vec::new();
    loop {
        match sequence.locate(all.len() as u64, &known) {
            Located::Sample { shard, ordinal } => all.push((shard, ordinal)),
            Located::Need { .. } => panic!("every count is known"),
            Located::End { total } => {
                assert_eq!(total, all.len() as u64);
                return all;
            }
        }
    }
}

/// The whole sequence, counts learnt only as far as the sequence asks for them.
fn without_manifest(order: &Order, counts: &[u64], epoch: u64) -> Vec<(u32, u64)> {
    let shards = u32::try_from(counts.len()).unwrap();
    let mut sequence = Sequence::new(order, shards, None, 1, epoch);
    let mut learnt: Vec<Known> = vec![Known::AtLeast(0); counts.len()];
    let mut all = Vec::new();
    loop {
        match sequence.locate(all.len() as u64, &|shard| learnt[shard as usize]) {
            Located::Sample { shard, ordinal } => all.push((shard, ordinal)),
            Located::Need { shard, at_least } => {
                let count = counts[shard as usize];
                let next = if at_least >= count {
                    Known::Exactly(count)
                } else {
                    Known::AtLeast(at_least)
                };
                assert_ne!(learnt[shard as usize], next, "asked twice for the same thing");
                learnt[shard as usize] = next;
            }
            Located::End { total } => {
                assert_eq!(total, all.len() as u64);
                return all;
            }
        }
    }
}

fn every_sample(counts: &[u64]) -> HashSet<(u32, u64)> {
    (0_u32..)
        .zip(counts)
        .flat_map(|(shard, count)| (0..*count).map(move |ordinal| (shard, ordinal)))
        .collect()
}

fn shuffles() -> impl Strategy<Value = Shuffle> {
    prop_oneof![Just(Shuffle::None), Just(Shuffle::Window), Just(Shuffle::Global)]
}

fn tails() -> impl Strategy<Value = Tail> {
    prop_oneof![Just(Tail::Even), Just(Tail::Drop), Just(Tail::Pad)]
}

proptest! {
    #[test]
    fn epoch_has_every_sample_once(
        counts in prop::collection::vec(0_u64..300, 1..24),
        shuffle in shuffles(), window in 1_u32..9, seed: u64, lanes in 1_u32..8,
    ) {
        prop_assume!(lanes as usize <= counts.len());
        let all = with_manifest(&order(shuffle, window, seed), &counts, lanes, 1);
        prop_assert_eq!(all.len(), counts.iter().sum::<u64>() as usize);
        let distinct: HashSet<_> = all.into_iter().collect();
        prop_assert_eq!(distinct, every_sample(&counts));
    }

    #[test]
    fn learning_counts_never_changes_the_order(
        counts in prop::collection::vec(0_u64..300, 1..12),
        shuffle in shuffles(), window in 1_u32..9, seed: u64, epoch: u64,
        epoch_samples in prop::option::of(1_u64..5000),
    ) {
        prop_assume!(counts.iter().any(|count| *count > 0));
        let order = Order { epoch_samples, ..order(shuffle, window, seed) };
        let dealt = with_manifest(&order, &counts, 1, epoch);
        prop_assert_eq!(dealt, without_manifest(&order, &counts, epoch));
    }

    #[test]
    fn any_position_is_found_directly(
        counts in prop::collection::vec(0_u64..300, 1..24), shuffle in shuffles(),
        window in 1_u32..40, seed: u64, lanes in 1_u32..8, at in prop::collection::vec(0.0..1.0, 20),
        passes in 1_u64..5,
    ) {
        prop_assume!(lanes as usize <= counts.len() && counts.iter().any(|count| *count > 0));
        let total = counts.iter().sum::<u64>() * passes;
        let order = Order { epoch_samples: Some(total), ..order(shuffle, window, seed) };
        let all = with_manifest(&order, &counts, lanes, 1);
        let shards = u32::try_from(counts.len()).unwrap();
        let mut sequence = Sequence::new(&order, shards, Some(counts), lanes, 1);
        for at in at {
            let position = (at * total as f64) as u64;
            let (shard, ordinal) = all[position as usize];
            let located = sequence.locate(position, &|_| panic!("every count is known"));
            prop_assert_eq!(located, Located::Sample { shard, ordinal });
        }
    }

    #[test]
    fn ranks_partition_every_global_batch(
        total in 1_u64..500, batch_size in 1_u32..9, world_size in 1_u32..7, lanes in 1_u32..13,
        base in 0_u64..500, tail in tails(),
    ) {
        let base = base.min(total);
        let shares: Vec<Share> = (0..world_size)
            .map(|rank| {
                let order =
                    Order { batch_size, rank, world_size, tail, ..order(Shuffle::None, 1, 0) };
                Share::new(&order, lanes, base)
            })
            .collect();
        let global = shares[0].global_batch();
        let batches = shares[0].batches(total);
        let mut delivered = Vec::new();
        for k in 0..batches {
            let parts: Vec<Vec<_>> =
                shares.iter().map(|s| s.positions(k, Some(total)).collect()).collect();
            let lens: Vec<_> = parts.iter().map(Vec::len).collect();
            let spread = lens.iter().max().unwrap() - lens.iter().min().unwrap();
            prop_assert!(spread <= 1 && *lens.iter().min().unwrap() > 0);
            if tail != Tail::Even || base + (k + 1) * global <= total {
                prop_assert!(lens.iter().all(|len| *len == batch_size as usize));
            }
            let valid = parts.iter().flatten().filter(|(_, valid)| *valid);
            delivered.extend(valid.map(|(position, _)| *position));
        }
        delivered.sort_unstable();
        let left = total - base;
        let expected = if tail == Tail::Drop { left / global * global } else { left };
        prop_assert_eq!(delivered, (base..base + expected).collect::<Vec<_>>());
    }
}

#[test]
fn list_order_follows_the_list() {
    let all = with_manifest(&order(Shuffle::None, 64, 9), &[2, 0, 3], 1, 5);
    assert_eq!(all, [(0, 0), (0, 1), (2, 0), (2, 1), (2, 2)]);
}

#[test]
fn list_order_needs_only_delivered_samples_of_a_shard() {
    let mut sequence = Sequence::new(&order(Shuffle::None, 64, 0), 2, None, 1, 0);
    let some = |shard: u32| Known::AtLeast(if shard == 0 { 5 } else { 0 });
    assert_eq!(sequence.locate(4, &some), Located::Sample { shard: 0, ordinal: 4 });
    assert_eq!(sequence.locate(5, &some), Located::Need { shard: 0, at_least: 6 });
}

#[test]
fn a_cold_window_starts_after_64_samples() {
    let mut sequence = Sequence::new(&order(Shuffle::Window, 64, 0), 8, None, 1, 0);
    let first = match sequence.locate(0, &|_| Known::AtLeast(0)) {
        Located::Need { shard, at_least } => {
            assert_eq!(at_least, 64);
            shard
        }
        other => panic!("{other:?}"),
    };
    let some = |shard: u32| Known::AtLeast(if shard == first { 64 } else { 0 });
    let block: HashSet<_> = (0..64)
        .map(|position| match sequence.locate(position, &some) {
            Located::Sample { shard, ordinal } => {
                assert_eq!(shard, first);
                ordinal
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(block, (0..64).collect());
    assert_eq!(sequence.locate(64, &some), Located::Need { shard: first, at_least: 192 });
}

#[test]
fn a_full_window_mixes_exactly_its_shards() {
    // 1 lane, W = 2: after the ramp over the first shard (50 samples) come blocks of 1, 2, 2 …
    let counts = [50; 8];
    let all = with_manifest(&order(Shuffle::Window, 2, 3), &counts, 1, 0);
    let shards_of = |range: std::ops::Range<usize>| -> HashSet<u32> {
        all[range].iter().map(|(shard, _)| *shard).collect()
    };
    assert_eq!(shards_of(0..50).len(), 1);
    assert_eq!(shards_of(50..100).len(), 1);
    assert_eq!(shards_of(100..200).len(), 2);
    assert_eq!(shards_of(200..300).len(), 2);
    let halves: HashSet<u32> = all[100..150].iter().map(|(shard, _)| *shard).collect();
    assert_eq!(halves.len(), 2, "a window is mixed, not played shard by shard");
}

#[test]
fn epochs_and_seeds_differ_and_repeat() {
    let counts = [100; 6];
    let play = |seed, epoch| with_manifest(&order(Shuffle::Window, 3, seed), &counts, 1, epoch);
    assert_eq!(play(1, 0), play(1, 0));
    assert_ne!(play(1, 0), play(1, 1));
    assert_ne!(play(1, 0), play(2, 0));
}

#[test]
fn epoch_samples_cuts_and_repeats() {
    let cut = Order { epoch_samples: Some(3), ..order(Shuffle::None, 1, 0) };
    assert_eq!(with_manifest(&cut, &[2, 2], 1, 0), [(0, 0), (0, 1), (1, 0)]);
    let again = Order { epoch_samples: Some(5), ..order(Shuffle::None, 1, 0) };
    assert_eq!(without_manifest(&again, &[1, 1], 0), [(0, 0), (1, 0), (0, 0), (1, 0), (0, 0)]);
    let empty = Order { epoch_samples: Some(5), ..order(Shuffle::None, 1, 0) };
    let mut sequence = Sequence::new(&empty, 1, None, 1, 0);
    assert_eq!(sequence.locate(0, &|_| Known::Exactly(0)), Located::End { total: 0 });
}

#[test]
fn upcoming_names_shards_in_the_order_of_need() {
    let counts = [10; 6];
    let order = order(Shuffle::Window, 2, 8);
    let mut sequence = Sequence::new(&order, 6, Some(counts.to_vec()), 2, 0);
    let known = |_| Known::Exactly(10);
    let mut first_need = Vec::new();
    for position in 0..60 {
        if let Located::Sample { shard, .. } = sequence.locate(position, &known)
            && !first_need.contains(&shard)
        {
            first_need.push(shard);
        }
    }
    let fresh = Sequence::new(&order, 6, Some(counts.to_vec()), 2, 0);
    let mut upcoming = fresh.upcoming(0, 6, |_| true);
    assert_eq!(upcoming.len(), 6);
    upcoming.truncate(2);
    let heads: HashSet<_> = upcoming.into_iter().collect();
    assert_eq!(heads, first_need[..2].iter().copied().collect());
    assert_eq!(fresh.upcoming(0, 2, |lane| lane == 0).len(), 2);
}

#[test]
fn invalid_orders_are_rejected() {
    let good = order(Shuffle::Window, 4, 0);
    assert!(check(&good, 3, None).is_ok());
    let ranks = Order { world_size: 2, ..good.clone() };
    let error = check(&ranks, 3, None).unwrap_err();
    assert!(error.to_string().contains("forebay index"), "{error}");
    assert!(check(&ranks, 3, Some(&[1, 2, 3])).is_ok());
    for bad in [
        Order { batch_size: 0, ..good.clone() },
        Order { rank: 1, ..good.clone() },
        Order { world_size: 0, ..good.clone() },
        Order { window: 0, ..good.clone() },
        Order { epoch_samples: Some(0), ..good.clone() },
    ] {
        assert_eq!(check(&bad, 3, None).unwrap_err().kind(), ErrorKind::Invalid, "{bad:?}");
    }
    assert_eq!(check(&good, 0, None).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(check(&good, 3, Some(&[1])).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(check(&good, 1, Some(&[0])).unwrap_err().kind(), ErrorKind::Invalid);
    // Those of version 1, forever.
    let ladder = [1200, 384, 383, 191, 95, 47, 31, 15, 7].map(|n| lanes(&good, n, true).unwrap());
    assert_eq!(ladder, [96, 96, 48, 24, 12, 8, 4, 2, 1]);
    assert_eq!(lanes(&good, 1200, false).unwrap(), 1);
    assert_eq!(lanes(&order(Shuffle::None, 4, 0), 1200, true).unwrap(), 1);
    assert!(lanes(&Order { lanes: Some(2), ..good.clone() }, 8, false).is_err());
    assert_eq!(lanes(&Order { lanes: Some(4096), ..good.clone() }, 9000, true).unwrap(), 4096);
    assert!(lanes(&Order { lanes: Some(4097), ..good.clone() }, 9000, true).is_err());
    // Positions never overflow.
    let endless = Order { epoch_samples: Some(u64::MAX), ..good.clone() };
    assert_eq!(check(&endless, 3, None).unwrap_err().kind(), ErrorKind::Invalid);
    let error = check(&good, 3, Some(&[1, u64::MAX, 1])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[test]
fn a_global_shuffle_has_no_lanes() {
    let global = order(Shuffle::Global, 4, 0);
    assert_eq!(lanes(&global, 1200, true).unwrap(), 1);
    assert_eq!(lanes(&Order { lanes: Some(1), ..global.clone() }, 8, true).unwrap(), 1);
    let error = lanes(&Order { lanes: Some(2), ..global }, 8, true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("global"), "{error}");
}
