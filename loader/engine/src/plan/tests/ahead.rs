//! Look-ahead of plans: every shard the next sample may need, in the order of need.

use super::*;

/// Distinct shards in the order of the positions from `position` on.
fn played(all: &[(u32, u64)], position: usize, limit: usize) -> Vec<u32> {
    let mut shards = Vec::new();
    for (shard, _) in &all[position..] {
        if !shards.contains(shard) && shards.len() < limit {
            shards.push(*shard);
        }
    }
    shards
}

proptest! {
    #[test]
    fn next_samples_lie_in_the_announced_open_shards(
        counts in prop::collection::vec(0_u64..200, 8..40), shuffle in shuffles(),
        window in 1_u32..40, seed: u64, lanes in 1_u32..8, passes in 1_u64..3,
    ) {
        prop_assume!(counts.iter().any(|count| *count > 0));
        let lanes = if shuffle == Shuffle::Global { 1 } else { lanes };
        let total = counts.iter().sum::<u64>() * passes;
        let order = Order { epoch_samples: Some(total), ..order(shuffle, window, seed) };
        let shards = u32::try_from(counts.len()).unwrap();
        let mut sequence = Sequence::new(&order, shards, Some(counts), lanes, 0);
        for position in (0..total).step_by(3) {
            let located = sequence.locate(position, &|_| panic!("every count is known"));
            let Located::Sample { shard, .. } = located else { panic!("{located:?}") };
            let lane = u32::try_from(position).unwrap() % lanes;
            let open = usize::try_from(sequence.open(|other| other == lane)).unwrap();
            let ahead = sequence.upcoming(position, open, |other| other == lane);
            prop_assert!(ahead.contains(&shard), "{} at {}, not in {:?}", shard, position, ahead);
        }
    }
}

#[test]
fn look_ahead_beyond_its_limit_follows_the_samples() {
    let counts = [20; 100];
    for (shuffle, lanes) in [(Shuffle::Global, 1), (Shuffle::Window, 1), (Shuffle::Window, 4)] {
        let order = order(shuffle, 100, 3);
        let all = with_manifest(&order, &counts, lanes, 0);
        let sequence = Sequence::new(&order, 100, Some(counts.to_vec()), lanes, 0);
        // Past the ramp.
        for position in [1300, 1500, 1750] {
            let ahead = sequence.upcoming(position as u64, 10, |_| true);
            assert_eq!(ahead, played(&all, position, 10), "{shuffle:?}, {lanes} lanes");
        }
    }
    let global = order(Shuffle::Global, 1, 3);
    let all = with_manifest(&global, &counts, 1, 0);
    let mut learning = Sequence::new(&global, 100, None, 1, 0);
    assert!(matches!(learning.locate(0, &|_| Known::Exactly(20)), Located::Sample { .. }));
    assert_eq!(learning.upcoming(500, 10, |_| true), played(&all, 500, 10));
}

#[test]
fn next_unknown_shard_is_announced_first() {
    let global = order(Shuffle::Global, 1, 3);
    let mut sequence = Sequence::new(&global, 50, None, 1, 0);
    let first = sequence.upcoming(0, 50, |_| true);
    let mut learnt = HashSet::new();
    for asked in 0..40 {
        let known = |shard: u32| match learnt.contains(&shard) {
            true => Known::Exactly(4),
            false => Known::AtLeast(0),
        };
        let Located::Need { shard, .. } = sequence.locate(0, &known) else { panic!("of 50") };
        assert_eq!(shard, first[asked]);
        assert_eq!(sequence.upcoming(0, 3, |_| true), first[asked..asked + 3]);
        learnt.insert(shard);
    }
}

#[test]
fn open_shards_are_the_windows_of_the_lanes() {
    let counts = vec![10; 400];
    let open = |shuffle, lanes: u32, mine: fn(u32) -> bool| {
        Sequence::new(&order(shuffle, 64, 0), 400, Some(counts.clone()), lanes, 0).open(mine)
    };
    for (lanes, all) in [(1, 64), (8, 64), (12, 72), (24, 72), (48, 96), (96, 96)] {
        assert_eq!(open(Shuffle::Window, lanes, |_| true), all);
    }
    assert_eq!(open(Shuffle::Window, 12, |lane| lane < 3), 18);
    assert_eq!(open(Shuffle::None, 4, |_| true), 4);
    assert_eq!(open(Shuffle::Global, 1, |_| true), 400);
}
