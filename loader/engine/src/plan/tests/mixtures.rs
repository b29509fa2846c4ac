//! Mixtures: exact shares after any prefix, whole epochs, and the same answer from any position.

use super::*;

/// Streams of like and of very unlike size.
fn parts() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(prop_oneof![1_u64..6, 1_u64..60, 1_u64..400], 1..9)
}

/// Streams of the first positions, queried one after another.
fn play(parts: &[u64], positions: u64) -> Vec<(usize, u64)> {
    let mut mix = Mix::new(parts).unwrap();
    (0..positions).map(|position| mix.at(position)).collect()
}

proptest! {
    #[test]
    fn shares_are_exact_to_within_a_sample(parts in parts()) {
        let total: u64 = parts.iter().sum();
        let mut taken = vec![0; parts.len()];
        for ((stream, index), position) in play(&parts, total * 2 + 1).into_iter().zip(1..) {
            prop_assert_eq!(index, taken[stream], "each sample of a stream comes, in order");
            taken[stream] += 1;
            for (taken, part) in taken.iter().zip(&parts) {
                prop_assert!((taken * total).abs_diff(position * part) < total);
            }
            if position % total == 0 {
                let played = position / total;
                let whole: Vec<u64> = parts.iter().map(|part| part * played).collect();
                prop_assert_eq!(&taken, &whole);
            }
        }
    }

    #[test]
    fn any_position_of_a_mixture_is_found_directly(
        parts in parts(), at in prop::collection::vec(0.0..1.0, 30),
    ) {
        let positions = parts.iter().sum::<u64>() * 3;
        let all = play(&parts, positions);
        let mut other = Mix::new(&parts).unwrap();
        for at in at {
            let position = (at * positions as f64) as u64;
            let mut mix = Mix::new(&parts).unwrap();
            let mut before = vec![0; parts.len()];
            all[..position as usize].iter().for_each(|(stream, _)| before[*stream] += 1);
            prop_assert_eq!(&mix.before(position), &before);
            prop_assert_eq!(mix.at(position), all[position as usize]);
            prop_assert_eq!(other.at(position), all[position as usize]);
        }
    }
}

/// Mixtures that are hard on a queue: equal streams, one that fills half, many rare ones, shares
/// that no position divides.
#[test]
fn each_position_of_difficult_mixtures_is_found_directly() {
    for parts in [
        &[1_u64; 9][..],
        &[50, 1, 1, 1, 1, 1, 1, 1, 1],
        &[97, 89, 83, 2, 1],
        &[499, 1],
        &[7, 7, 7, 6, 5, 3, 1, 1],
        &[200, 100, 50, 25, 12, 6, 3, 1],
    ] {
        let all = play(parts, parts.iter().sum());
        let mut mix = Mix::new(parts).unwrap();
        // Backwards, so that none is walked to.
        for (position, sample) in all.iter().enumerate().rev() {
            assert_eq!(mix.at(position as u64), *sample, "{parts:?} at {position}");
        }
    }
}

#[test]
fn weights_become_whole_numbers() {
    assert_eq!(weights(&[1.0, 2.0]).unwrap(), [1, 2]);
    assert_eq!(weights(&[0.7, 0.2, 0.1]).unwrap(), [7, 2, 1]);
    assert_eq!(weights(&[0.29, 0.71]).unwrap(), [29, 71]);
    assert_eq!(weights(&[5.0]).unwrap(), [1]);
    assert_eq!(weights(&[3e6, 1e6]).unwrap(), [3, 1]);
    // No such decimals: to a millionth, and a million in all.
    assert_eq!(weights(&[1.0 / 3.0, 2.0 / 3.0]).unwrap(), [333_333, 666_667]);
    assert_eq!(
        weights(&[f64::MAX, f64::MAX, f64::MAX / 2.0]).unwrap(),
        [400_000, 400_000, 200_000]
    );
    let thirds = weights(&[std::f64::consts::PI; 3]).unwrap();
    assert_eq!(thirds.iter().sum::<u64>(), 1_000_000);
    for bad in [&[1.0, 0.0][..], &[1.0, -1.0], &[f64::NAN], &[f64::INFINITY, 1.0], &[1.0, 1e-9]] {
        assert_eq!(weights(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad:?}");
    }
}

#[test]
fn repeats_become_sample_counts() {
    assert_eq!(repeats(&[(10, 1.0), (7, 3.0), (9, 0.5)]).unwrap(), [10, 21, 5]);
    for bad in [(10, 0.0), (10, -1.0), (10, f64::NAN), (1, 0.4), (0, 1.0), (1 << 40, 1e9)] {
        assert_eq!(repeats(&[bad]).unwrap_err().kind(), ErrorKind::Invalid, "{bad:?}");
    }
    for bad in [&[][..], &[0, 1], &[u64::MAX, 1], &[SAMPLES_MAX, 1]] {
        assert_eq!(Mix::new(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad:?}");
    }
}

fn stream(counts: &[u64], proportion: Proportion) -> Stream {
    let shards = u32::try_from(counts.len()).unwrap();
    Stream { shards, counts: Some(counts.to_vec()), proportion }
}

pub(super) fn all_of(mixed: &mut Mixed) -> Vec<(u32, u64)> {
    let all =
        (0..mixed.total()).map(|position| match mixed.locate(position, &|_| unreachable!()) {
            Located::Sample { shard, ordinal } => (shard, ordinal),
            other => panic!("{other:?}"),
        });
    let all: Vec<_> = all.collect();
    let total = mixed.total();
    assert_eq!(mixed.locate(total, &|_| unreachable!()), Located::End { total });
    all
}

#[test]
fn epoch_plays_each_stream_as_often_as_configured() {
    let streams = [
        stream(&[30, 0, 41, 12], Proportion::Repeat(1.0)),
        stream(&[5, 6], Proportion::Repeat(3.0)),
        stream(&[100, 60], Proportion::Repeat(0.5)),
    ];
    let order = order(Shuffle::Window, 4, 5);
    let mut mixed = Mixed::new(&order, &streams, &[], 2).unwrap();
    let all = all_of(&mut mixed);
    assert_eq!(all.len(), 83 + 33 + 80);
    let mixture = &mixed;
    let of = |stream: usize| all.iter().filter(move |(shard, _)| mixture.stream(*shard) == stream);
    let once: HashSet<_> = of(0).collect();
    assert_eq!((of(0).count(), once.len()), (83, 83));
    assert!(of(0).all(|(shard, _)| *shard < 4));
    for (shard, ordinal) in (0..5).map(|i| (4, i)).chain((0..6).map(|i| (5, i))) {
        assert_eq!(of(1).filter(|sample| **sample == (shard, ordinal)).count(), 3);
    }
    let half: HashSet<_> = of(2).collect();
    assert_eq!((of(2).count(), half.len()), (80, 80));
    // A stream's order is its own: no two passes are alike, and no companion changes it.
    let passes: Vec<Vec<_>> = of(1).collect::<Vec<_>>().chunks(11).map(<[_]>::to_vec).collect();
    assert!(passes[0] != passes[1] && passes[1] != passes[2]);
    let mut fewer = Mixed::new(&order, &streams[..2], &[], 2).unwrap();
    let without: Vec<_> = all_of(&mut fewer).into_iter().filter(|(shard, _)| *shard >= 4).collect();
    assert_eq!(without, of(1).copied().collect::<Vec<_>>());
}

#[test]
fn streams_of_the_same_data_set_are_shuffled_independently() {
    let counts = [50, 50, 50];
    let both = [stream(&counts, Proportion::Repeat(1.0)), stream(&counts, Proportion::Repeat(1.0))];
    let mut mixed = Mixed::new(&order(Shuffle::Window, 4, 5), &both, &[], 0).unwrap();
    let all = all_of(&mut mixed);
    let first: Vec<_> = all.iter().filter(|(shard, _)| *shard < 3).copied().collect();
    let second: Vec<_> = all.iter().filter(|(shard, _)| *shard >= 3).copied().collect();
    assert_ne!(first, second.iter().map(|(shard, at)| (shard - 3, *at)).collect::<Vec<_>>());
}

#[test]
fn weighted_mixture_may_learn_its_counts() {
    let counts = [[30_u64, 41], [5, 6]];
    let order = Order { epoch_samples: Some(200), ..order(Shuffle::Window, 4, 5) };
    let streams = counts.map(|counts| stream(&counts, Proportion::Weight(1.0)));
    let known = all_of(&mut Mixed::new(&order, &streams, &[], 0).unwrap());
    let unknown = streams.map(|stream| Stream { counts: None, ..stream });
    let mut mixed = Mixed::new(&order, &unknown, &[], 0).unwrap();
    let mut learnt = [Known::AtLeast(0); 4];
    let mut all = Vec::new();
    while all.len() < 200 {
        match mixed.locate(all.len() as u64, &|shard| learnt[shard as usize]) {
            Located::Sample { shard, ordinal } => all.push((shard, ordinal)),
            Located::Need { shard, .. } => {
                learnt[shard as usize] = Known::Exactly(counts.as_flattened()[shard as usize]);
            }
            other @ Located::End { .. } => panic!("{other:?}"),
        }
    }
    assert_eq!(all, known);
}

#[test]
fn next_shards_of_a_mixture_are_announced_first() {
    // The second stream comes once in ten, so that its later shards are needed far later.
    let streams =
        [stream(&[10; 20], Proportion::Weight(0.9)), stream(&[10; 20], Proportion::Weight(0.1))];
    let order = Order { epoch_samples: Some(200), ..order(Shuffle::None, 1, 0) };
    let mixed = Mixed::new(&order, &streams, &[], 0).unwrap();
    assert_eq!(mixed.open(), 2);
    assert_eq!(mixed.upcoming(0, 6), [0, 20, 1, 2, 3, 4]);
    // After 100 positions 90 samples of the first stream and 10 of the second are played.
    assert_eq!(mixed.upcoming(100, 4), [9, 21, 10, 11]);
}

#[test]
fn repeated_stream_announces_its_next_shards() {
    let streams =
        [stream(&[10; 40], Proportion::Weight(0.5)), stream(&[10; 10], Proportion::Weight(0.5))];
    let order = Order { epoch_samples: Some(600), ..order(Shuffle::None, 1, 0) };
    let mut mixed = Mixed::new(&order, &streams, &[], 0).unwrap();
    // 125 samples of each: the second stream is in the third shard of its second pass.
    for position in [250, 251] {
        assert!(matches!(mixed.locate(position, &|_| unreachable!()), Located::Sample { .. }));
    }
    assert_eq!(mixed.upcoming(250, 6), [12, 42, 13, 43, 14, 44]);
}

#[test]
fn invalid_mixtures_are_rejected() {
    let with = Order { epoch_samples: Some(9), ..order(Shuffle::Window, 4, 5) };
    let without = order(Shuffle::Window, 4, 5);
    let (weight, repeat) = (Proportion::Weight(1.0), Proportion::Repeat(1.0));
    let uncounted = Stream { shards: 2, counts: None, proportion: repeat };
    for (order, streams, about) in [
        (&without, vec![], "no streams"),
        (&without, vec![stream(&[3], weight)], "epoch_samples"),
        (&with, vec![stream(&[3], weight), stream(&[3], repeat)], "all of them the same"),
        (&without, vec![uncounted], "manifest="),
        (&without, vec![stream(&[], repeat)], "no shards"),
        (&without, vec![stream(&[3], repeat), stream(&[0, 0], repeat)], "no samples"),
        (&without, vec![Stream { shards: 2, ..stream(&[3], repeat) }], "other shards"),
        (&Order { lanes: Some(2), ..without.clone() }, vec![stream(&[3], repeat)], "lanes"),
    ] {
        let error = Mixed::new(order, &streams, &[], 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(about), "{error}");
    }
}
