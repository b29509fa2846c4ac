//! Windows of each lane: their edges and their shards.

use super::*;

/// For one lane, the places at which shards are first needed, with the shards.
fn needs(sequence: &Sequence, lanes: u32, lane: u32) -> Vec<(u64, u32)> {
    let mine = sequence.needs(0, usize::MAX, |other| other == lane);
    mine.map(|(position, shard)| (position / u64::from(lanes), shard)).collect()
}

/// First places of blocks in a lane.
fn edges(sequence: &Sequence, lanes: u32, lane: u32) -> Vec<u64> {
    let mut edges: Vec<u64> = needs(sequence, lanes, lane).iter().map(|(at, _)| *at).collect();
    edges.dedup();
    edges
}

/// Shards of one size fill lanes evenly; only the stagger keeps lanes from changing shards at once.
#[test]
fn lanes_change_windows_at_different_times() {
    const SAMPLES: u64 = 1000;
    for lanes in LANE_LADDER {
        for window in [1, 64, 96] {
            let per_lane = u64::from(window).div_ceil(u64::from(lanes));
            // The ramp, three full windows, and the remainder left by the stagger.
            let shards = lanes * u32::try_from(per_lane * 6 + 2).unwrap();
            let counts = vec![SAMPLES; shards as usize];
            let order = order(Shuffle::Window, window, 1);
            let sequence = Sequence::new(&order, shards, Some(counts), lanes, 0);
            let length = per_lane * SAMPLES;
            let mut phases: Vec<u64> = (0..lanes)
                .map(|lane| {
                    let edges = edges(&sequence, lanes, lane);
                    let steady: Vec<_> =
                        edges.windows(2).filter(|pair| pair[1] - pair[0] == length).collect();
                    assert!(steady.len() >= 3, "{lanes} lanes, window {window}: {edges:?}");
                    steady[2][0] % length
                })
                .collect();
            phases.sort_unstable();
            phases.push(phases[0] + length);
            let gaps = phases.windows(2).map(|pair| pair[1] - pair[0]);
            let (fair, most) = (length / u64::from(lanes), gaps.clone().max().unwrap());
            assert!(gaps.min().unwrap() >= fair - 1, "{lanes} lanes, window {window}: {phases:?}");
            assert!(most <= fair + 1 + length % u64::from(lanes), "{phases:?}");
        }
    }
}

proptest! {
    #[test]
    fn a_window_holds_whole_shards(
        counts in prop::collection::vec(0_u64..400, 8..60),
        window in 1_u32..40, seed: u64, lanes in 1_u32..9,
    ) {
        let order = order(Shuffle::Window, window, seed);
        let all = with_manifest(&order, &counts, lanes, 0);
        let shards = u32::try_from(counts.len()).unwrap();
        let sequence = Sequence::new(&order, shards, Some(counts.clone()), lanes, 0);
        let per_lane = u64::from(window).div_ceil(u64::from(lanes));
        let mut visits = 0;
        for lane in 0..lanes {
            let mine: Vec<_> = all.iter().skip(lane as usize).step_by(lanes as usize).collect();
            let even = counts.iter().sum::<u64>() / u64::from(lanes);
            prop_assert!((even..=even + 1).contains(&(mine.len() as u64)));
            visits += mine.iter().map(|(shard, _)| shard).collect::<HashSet<_>>().len();
            let (needs, mut edges) = (needs(&sequence, lanes, lane), edges(&sequence, lanes, lane));
            edges.push(mine.len() as u64);
            for (number, pair) in edges.windows(2).enumerate() {
                let block = &mine[pair[0] as usize..pair[1] as usize];
                let planned: HashSet<u32> = needs
                    .iter()
                    .filter(|(at, _)| *at == pair[0])
                    .map(|(_, shard)| *shard)
                    .collect();
                // At most the window, and on the ramp no more than twice what came before it.
                prop_assert!(planned.len() as u64 <= per_lane);
                prop_assert!(number > 16 || planned.len() <= 1 << number.saturating_sub(1));
                let played: HashSet<u32> = block.iter().map(|(shard, _)| *shard).collect();
                prop_assert_eq!(&played, &planned);
                // Whole, but for the lane's first shard and its last, which the border cuts.
                for shard in played {
                    let have = block.iter().filter(|(other, _)| *other == shard).count() as u64;
                    let cut = [mine.first(), mine.last()];
                    let last = needs.iter().rev().map(|(_, shard)| *shard).take(2);
                    prop_assert!(
                        have == counts[shard as usize]
                            || cut.into_iter().flatten().any(|(first, _)| *first == shard)
                            || last.into_iter().any(|last| last == shard)
                    );
                }
            }
        }
        // Fetched by each lane once: at most lanes − 1 more than there are shards.
        let filled = counts.iter().filter(|count| **count > 0).count();
        prop_assert!(visits < filled + lanes as usize);
    }
}
