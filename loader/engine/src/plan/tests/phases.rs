//! Mixtures whose weights change: exact shares, the same answer from any position and any epoch,
//! and no effect on samples before a change.

use forebay_wire::message::Glide;

use super::mixtures::all_of;
use super::*;

/// Two streams of one shard each, and one of three.
const SHARDS: [u32; 3] = [1, 1, 3];

fn streams(proportion: Proportion) -> Vec<Stream> {
    let of = |shards| Stream { shards, counts: Some(vec![1 << 30; shards as usize]), proportion };
    SHARDS.into_iter().map(of).collect()
}

fn mixed(phases: &[Phase], epoch_samples: u64, epoch: u64) -> Result<Mixed> {
    let order = Order { epoch_samples: Some(epoch_samples), ..order(Shuffle::None, 1, 0) };
    Mixed::new(&order, &streams(Proportion::Scheduled), phases, epoch)
}

fn constant(from: u64, weights: [f64; 3]) -> Phase {
    Phase { from, weights: weights.to_vec(), glide: None }
}

fn glide(from: u64, weights: [f64; 3], to: [f64; 3], over: u64) -> Phase {
    Phase { from, weights: weights.to_vec(), glide: Some(Glide { to: to.to_vec(), over }) }
}

/// Stream of each position of an epoch, by walking.
fn turns(mixed: &mut Mixed) -> Vec<usize> {
    let total = mixed.total();
    let at = |position| match mixed.locate(position, &|_| unreachable!()) {
        Located::Sample { shard, .. } => mixed.stream(shard),
        other => panic!("{other:?}"),
    };
    (0..total).map(at).collect()
}

fn weights_of(seed: [u8; 3]) -> [f64; 3] {
    // One stream at least has a share.
    [f64::from(seed[0] % 4), f64::from(seed[1] % 4), f64::from(seed[2] % 4 + 1)]
}

/// Phases of one to forty samples, constant and gliding.
fn schedule() -> impl Strategy<Value = Vec<Phase>> {
    let phase = (any::<[u8; 3]>(), any::<[u8; 3]>(), 1_u64..40, any::<bool>(), 0_u64..9);
    prop::collection::vec(phase, 1..6).prop_map(|drawn| {
        let (mut from, mut phases) = (0, Vec::new());
        for (weights, to, len, glides, more) in drawn {
            let weights = weights_of(weights);
            phases.push(match glides {
                // Some are cut short by the next phase.
                true => glide(from, weights, weights_of(to), len + more),
                false => constant(from, weights),
            });
            from += len;
        }
        phases.push(constant(from, [1.0, 1.0, 1.0]));
        phases
    })
}

proptest! {
    #[test]
    fn shares_follow_the_phases(phases in schedule()) {
        let all = turns(&mut mixed(&phases, 260, 0).unwrap());
        for (phase, next) in phases.iter().zip(&phases[1..]) {
            let mut taken = [0_u32; 3];
            for position in phase.from..next.from {
                taken[all[position as usize]] += 1;
                let at = (position + 1 - phase.from) as f64;
                for (stream, taken) in taken.iter().enumerate() {
                    let due = due(phase, stream, at);
                    // Shares of a glide are millionths.
                    prop_assert!((f64::from(*taken) - due).abs() < 1.0 + 1e-3, "{phase:?} {at}");
                }
            }
        }
    }

    #[test]
    fn any_position_of_phases_is_found_directly(
        phases in schedule(), epoch_samples in 5_u64..90, at in prop::collection::vec(0.0..1.0, 9),
    ) {
        for epoch in 0..3 {
            let find = |mixed: &mut Mixed, position| mixed.locate(position, &|_| unreachable!());
            let mut walked = mixed(&phases, epoch_samples, epoch).unwrap();
            let all: Vec<_> = (0..epoch_samples).map(|at| find(&mut walked, at)).collect();
            for at in &at {
                let position = (at * epoch_samples as f64) as u64;
                let mut other = mixed(&phases, epoch_samples, epoch).unwrap();
                prop_assert_eq!(&find(&mut other, position), &all[position as usize]);
                prop_assert_eq!(&find(&mut walked, position), &all[position as usize]);
            }
        }
    }

    #[test]
    fn change_leaves_the_samples_before_it(
        phases in schedule(), at in 1_u64..200, new in any::<[u8; 3]>(),
    ) {
        let mut changed: Vec<_> = phases.iter().filter(|phase| phase.from < at).cloned().collect();
        changed.push(constant(at, weights_of(new)));
        // A phase that would last longer now has no end to glide to.
        let last = changed.len() - 2;
        if let Some(glide) = &changed[last].glide {
            prop_assume!(at - changed[last].from <= glide.over);
        }
        let (epoch_samples, epoch) = (70, at / 70);
        let before = turns(&mut mixed(&phases, epoch_samples, epoch).unwrap());
        let after = turns(&mut mixed(&changed, epoch_samples, epoch).unwrap());
        let same = (at % 70) as usize;
        prop_assert_eq!(&before[..same], &after[..same]);
    }
}

/// Samples that a stream is due after `at` positions of a phase.
fn due(phase: &Phase, stream: usize, at: f64) -> f64 {
    let share = |weights: &[f64]| weights[stream] / weights.iter().sum::<f64>();
    let first = share(&phase.weights);
    match &phase.glide {
        None => first * at,
        Some(Glide { to, over }) => first * at + (share(to) - first) * at * at / 2.0 / *over as f64,
    }
}

#[test]
fn one_phase_is_the_mixture_of_its_weights() {
    let order = Order { epoch_samples: Some(100), ..order(Shuffle::None, 1, 0) };
    let mut by_weight = streams(Proportion::Weight(1.0));
    by_weight[0].proportion = Proportion::Weight(3.0);
    for epoch in [0, 1, 7] {
        let mut plain = Mixed::new(&order, &by_weight, &[], epoch).unwrap();
        let mut phased = mixed(&[constant(0, [3.0, 1.0, 1.0])], 100, epoch).unwrap();
        assert_eq!(all_of(&mut plain), all_of(&mut phased));
    }
}

#[test]
fn stream_without_a_share_rests() {
    let phases = [constant(0, [0.0, 1.0, 1.0]), constant(10, [1.0, 0.0, 0.0])];
    let mut epoch = mixed(&phases, 20, 0).unwrap();
    let all = turns(&mut epoch);
    assert!(all[..10].iter().all(|stream| *stream != 0));
    assert!(all[10..].iter().all(|stream| *stream == 0));
    // Its shard is needed when its phase comes, and others' are not any more.
    assert_eq!(epoch.upcoming(0, 2), [1, 2]);
    assert_eq!(epoch.upcoming(10, 1), [0]);
    let mut later = mixed(&phases, 20, 3).unwrap();
    assert!(turns(&mut later).iter().all(|stream| *stream == 0));
}

#[test]
fn long_glide_is_found_without_playing_to_it() {
    let over = 1 << 30;
    let phases =
        [glide(0, [1.0, 0.0, 0.0], [0.0, 0.5, 0.5], over), constant(over, [0.0, 1.0, 1.0])];
    let mut epoch = mixed(&phases, over, 0).unwrap();
    for position in [over / 2, over - 1, 12345, over / 3] {
        let Located::Sample { shard, .. } = epoch.locate(position, &|_| unreachable!()) else {
            panic!("{position} is in the epoch")
        };
        assert!(shard < 5);
    }
}

#[test]
fn senseless_phases_are_rejected() {
    let even = [1.0, 1.0, 1.0];
    for phases in [
        vec![],
        vec![constant(1, even)],
        vec![constant(0, even), constant(0, even)],
        vec![constant(0, even), constant(1 << 49, even)],
        vec![constant(0, [0.0; 3])],
        vec![constant(0, [1.0, -1.0, 1.0])],
        vec![constant(0, [1.0, f64::NAN, 1.0])],
        vec![Phase { from: 0, weights: vec![1.0], glide: None }],
        vec![glide(0, even, even, 10)],
        vec![glide(0, even, even, 10), constant(11, even)],
        vec![glide(0, even, [0.0; 3], 10), constant(10, even)],
        vec![Phase { from: 0, weights: even.to_vec(), glide: None }; (1 << 16) + 1],
    ] {
        assert_eq!(mixed(&phases, 9, 0).unwrap_err().kind(), ErrorKind::Invalid, "{phases:?}");
    }
    let late = mixed(&[constant(0, even)], 1 << 40, 1 << 40).unwrap_err();
    assert_eq!((late.kind(), late.place("epoch")), (ErrorKind::Invalid, Some("1099511627776")));
}
