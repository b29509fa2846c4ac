use forebay_wire::message::BinRule;
use proptest::prelude::*;

use super::compose::tests::log_normal;
use super::*;
use crate::plan::Sequence;

const SEED: u64 = 5;

fn lengths(counts: &[u64], rule: BinRule) -> Arc<Lengths> {
    let samples: u64 = counts.iter().sum();
    let lengths = log_normal(samples as usize, 4000, 9);
    Arc::new(Lengths::new(Arc::new(Binning { rule, lengths }), Some(counts)).unwrap())
}

fn bins(counts: &[u64], rule: &BinRule, shuffle: Shuffle) -> Bins {
    let order = Order { shuffle, ..Order::shuffled(2, SEED, 1) };
    let shards = counts.len() as u32;
    let epoch = Epoch::One(Sequence::new(&order, shards, Some(counts.to_vec()), 1, 3));
    Bins::new(epoch, lengths(counts, rule.clone()), &order, 3).unwrap()
}

fn rule(lookahead: u32, is_packed: bool) -> BinRule {
    BinRule { budget: 9000, lookahead, is_packed, buckets: Vec::new() }
}

fn taker(rank: u64, world: u64, tail: Tail) -> Taker {
    Taker { rank, world, tail }
}

/// Bins in their order from a position on, as `world` ranks take them.
fn taken(bins: &mut Bins, base: u64, world: u64) -> Vec<Vec<u64>> {
    let mut all = Vec::new();
    for step in 0.. {
        for rank in 0..world {
            let Some(taken) = bins.take(base, step, taker(rank, world, Tail::Even)) else {
                assert_eq!(rank, 0);
                assert_eq!(step, bins.steps(base, taker(rank, world, Tail::Even)));
                assert!(bins.is_over(base, step, taker(rank, world, Tail::Even)));
                return all;
            };
            assert!(!bins.is_over(base, step, taker(rank, world, Tail::Even)));
            let valid = taken.samples.iter().filter(|(_, valid)| *valid).map(|(at, _)| *at);
            let valid: Vec<u64> = valid.collect();
            assert!(valid.iter().all(|position| *position >= taken.behind));
            if !valid.is_empty() {
                all.push(valid);
            }
        }
    }
    unreachable!("steps end");
}

#[test]
fn bins_do_not_depend_on_the_world() {
    for shuffle in [Shuffle::None, Shuffle::Window, Shuffle::Global] {
        let counts = [200, 0, 317, 90];
        let alone = taken(&mut bins(&counts, &rule(100, true), shuffle), 0, 1);
        for world in [2, 3, 8] {
            let others = taken(&mut bins(&counts, &rule(100, true), shuffle), 0, world);
            assert_eq!(others, alone, "{shuffle:?} {world}");
        }
        let mut all: Vec<u64> = alone.into_iter().flatten().collect();
        all.sort_unstable();
        assert_eq!(all, (0..607).collect::<Vec<u64>>());
    }
}

#[test]
fn last_step_follows_the_tail() {
    let counts = [95];
    let rule = rule(1000, true);
    let mut bins = bins(&counts, &rule, Shuffle::Window);
    let count = bins.left(0);
    let world = count - 1;
    for rank in 0..world {
        assert!(bins.take(0, 0, taker(rank, world, Tail::Drop)).is_some());
        assert_eq!(bins.take(0, 1, taker(rank, world, Tail::Drop)), None);
        for (tail, all) in [(Tail::Even, false), (Tail::Pad, true)] {
            let last = bins.take(0, 1, taker(rank, world, tail)).unwrap();
            assert_eq!(last.samples.iter().all(|(_, valid)| *valid), rank == 0);
            assert_eq!(last.samples.len() > 1, rank == 0 || all);
            assert_eq!(bins.take(0, 2, taker(rank, world, tail)), None);
        }
    }
    assert_eq!(bins.steps(0, taker(0, world, Tail::Drop)), 1);
    assert!(bins.is_over(0, 1, taker(0, world, Tail::Drop)));
    assert_eq!(bins.steps(0, taker(0, world, Tail::Pad)), 2);
}

#[test]
fn windows_meet_at_bins_of_nearly_one_size() {
    let mut bins = bins(&[2000], &rule(500, false), Shuffle::Window);
    for window in 0..4 {
        let sizes: Vec<u64> = bins.of(window).iter().map(|bin| bin.tokens).collect();
        let (first, last) = (sizes[0], sizes[sizes.len() - 1]);
        assert!(if window % 2 == 0 { first > last } else { first < last }, "{sizes:?}");
    }
}

/// Saved states depend on bins, so a change of their composition needs a new order version.
#[test]
fn bins_match_their_golden_positions() {
    for (is_packed, golden) in [(true, GOLDEN_PACKED), (false, GOLDEN_PADDED)] {
        let all = taken(&mut bins(&[40], &rule(20, is_packed), Shuffle::Window), 0, 1);
        let firsts: Vec<u64> = all.iter().map(|bin| bin[0] * 100 + bin.len() as u64).collect();
        assert_eq!(firsts, golden, "{is_packed}");
    }
}

/// First position, times 100, and number of samples of each bin.
const GOLDEN_PACKED: &[u64] = &[208, 6, 106, 2407, 2003, 2107, 2303];
const GOLDEN_PADDED: &[u64] = &[306, 2, 204, 108, 2107, 2802, 2002, 3007, 2602];

#[test]
fn other_epochs_have_other_bins() {
    let counts = [500];
    let lengths = lengths(&counts, rule(100, false));
    let made = |number| {
        let order = Order::shuffled(1, SEED, 1);
        let epoch = Epoch::One(Sequence::new(&order, 1, Some(counts.to_vec()), 1, number));
        taken(&mut Bins::new(epoch, lengths.clone(), &order, number).unwrap(), 0, 1)
    };
    assert_ne!(made(0), made(1));
    assert_eq!(made(1), made(1));
}

#[test]
fn lengths_of_another_job_are_rejected() {
    let reject = |rule: BinRule, lengths: Vec<u32>, counts: Option<&[u64]>| {
        Lengths::new(Arc::new(Binning { rule, lengths }), counts).unwrap_err()
    };
    let good = rule(100, true);
    let error = reject(good.clone(), vec![1; 3], Some(&[1, 1]));
    assert_eq!(error.place("samples"), Some("2"));
    for (rule, option) in [
        (BinRule { budget: 0, ..good.clone() }, "budget"),
        (BinRule { lookahead: 0, ..good.clone() }, "lookahead"),
        (BinRule { buckets: vec![3, 3], ..good.clone() }, "buckets"),
        (BinRule { buckets: vec![0, 3], ..good.clone() }, "buckets"),
    ] {
        let error = reject(rule, vec![1; 2], Some(&[1, 1]));
        assert_eq!((error.kind(), error.place("option")), (ErrorKind::Invalid, Some(option)));
    }
    assert_eq!(reject(good, vec![1], None).place("option"), Some("manifest"));
}

proptest! {
    #[test]
    fn resumed_epoch_goes_on_in_another_world(
        counts in prop::collection::vec(0_u64..200, 1..5),
        lookahead in 1_u32..300,
        is_packed: bool,
        stop in 0_u64..40,
        worlds in (1_u64..6, 1_u64..6),
    ) {
        prop_assume!(counts.iter().sum::<u64>() > 0);
        let rule = rule(lookahead, is_packed);
        let mut bins = bins(&counts, &rule, Shuffle::Window);
        let all = taken(&mut bins, 0, 1);
        let done = (stop * worlds.0).min(all.len() as u64);
        let at = bins.after(0, done);
        prop_assert_eq!(bins.left(at), all.len() as u64 - done);
        prop_assert_eq!(&taken(&mut bins, at, worlds.1), &all[done as usize..]);
        // A second stop counts from the first.
        let more = worlds.1.min(all.len() as u64 - done);
        let then = bins.after(at, more);
        prop_assert_eq!(then, bins.after(0, done + more));
        prop_assert_eq!(&taken(&mut bins, then, worlds.0), &all[(done + more) as usize..]);
    }
}
