//! Lanes of orders that leave them unset, and epochs over them in every world.

use super::*;

/// Lane counts a default order may have in worlds that share them.
const STEPS: [u32; 14] = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256];

fn of_world(world_size: u32, batch_size: u32) -> Order {
    Order { world_size, batch_size, ..order(Shuffle::Window, 64, 3) }
}

fn chosen(world_size: u32, batch_size: u32, shards: u32) -> u32 {
    default_lanes(&of_world(world_size, batch_size), shards, true)
}

/// Returns true if ranks take whole lanes of these.
fn is_whole(lanes: u32, world_size: u32, batch_size: u32) -> bool {
    lanes.is_multiple_of(world_size)
        && (u64::from(batch_size) * u64::from(world_size)).is_multiple_of(u64::from(lanes))
}

/// Bears promises 5 and 6: over every step of the ladder, the ranks of each world read every
/// position once, and those of whole lanes only their own.
#[test]
fn every_world_reads_each_sample_once_at_each_step() {
    for lanes in STEPS {
        // Four shards a lane, a few of them empty.
        let counts: Vec<u64> = (0..u64::from(lanes) * 4).map(|shard| shard % 5).collect();
        let shuffled = order(Shuffle::Window, 64, 3);
        let whole = with_manifest(&shuffled, &counts, lanes, 1);
        let total: u64 = counts.iter().sum();
        assert_eq!(whole.iter().copied().collect::<HashSet<_>>(), every_sample(&counts));
        for world in 1..=512 {
            // Whole lanes, and slices.
            for batch_size in [lanes.div_ceil(world), 3] {
                let mut readers = vec![None; whole.len()];
                for rank in 0..world {
                    let share =
                        Share::new(&Order { rank, ..of_world(world, batch_size) }, lanes, 0);
                    for k in 0..share.batches(total) {
                        for (position, valid) in share.positions(k, Some(total)) {
                            if valid {
                                let before = readers[position as usize].replace(rank);
                                assert_eq!(before, None, "{position} of {world} over {lanes}");
                            }
                        }
                    }
                }
                assert!(readers.iter().all(Option::is_some), "{world} over {lanes}");
                if is_whole(lanes, world, batch_size) && world > 1 {
                    let full = total - total % u64::from(world * batch_size);
                    for (position, reader) in readers.iter().take(full as usize).enumerate() {
                        let lane = position as u32 % lanes;
                        assert_eq!(*reader, Some(lane / (lanes / world)), "{world} over {lanes}");
                    }
                }
            }
        }
    }
}

/// Bears promise 5: the table of `docs/SEMANTICS.md`.
#[test]
fn lanes_of_usual_worlds_match_the_documents() {
    let of = |shards| {
        [1, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512]
            .map(|world| (world, chosen(world, 256, shards)))
    };
    assert_eq!(
        of(4096),
        [
            (1, 64),
            (4, 64),
            (8, 64),
            (12, 96),
            (16, 64),
            (24, 96),
            (32, 64),
            (48, 96),
            (64, 64),
            (96, 96),
            (128, 128),
            (192, 192),
            (256, 256),
            (512, 512),
        ]
    );
    let hundred = of(100);
    assert_eq!(hundred[..4], [(1, 16), (4, 16), (8, 16), (12, 24)]);
    assert_eq!(
        hundred[6..],
        [32, 48, 64, 96, 128, 192, 256, 512]
            .map(|world| (world, if world % 3 == 0 { 24 } else { 16 }))
    );
    // No step is a multiple of these.
    assert_eq!([5, 7, 40, 80, 320].map(|world| chosen(world, 256, 4096)), [5, 7, 40, 80, 320]);
    assert_eq!(chosen(8, 96, 4096), 96);
    assert_eq!(chosen(8, 250, 4096), 16);
    assert_eq!(
        [(1, true), (7, true), (4096, false)].map(|(shards, known)| default_lanes(
            &of_world(8, 256),
            shards,
            known
        )),
        [1, 1, 1]
    );
    for shuffle in [Shuffle::None, Shuffle::Global] {
        assert_eq!(default_lanes(&Order { shuffle, ..of_world(8, 256) }, 4096, true), 1);
    }
    // Nonsense is rejected elsewhere, and does no harm here.
    for (world, batch_size) in [(0, 4), (4, 0), (0, 0), (u32::MAX, u32::MAX)] {
        let lanes = chosen(world, batch_size, u32::MAX);
        assert!((1..=LANES_MAX).contains(&lanes), "{lanes}");
    }
}

proptest! {
    /// Bears promise 5: ranks take whole lanes wherever shards suffice for a lane each.
    #[test]
    fn ranks_take_whole_lanes_where_shards_suffice(
        world in 1_u32..=512, batch_size in 1_u32..=1024, shards in 1_u32..10_000,
    ) {
        let lanes = chosen(world, batch_size, shards);
        prop_assert!(lanes == 1 || lanes * SHARDS_PER_LANE <= shards);
        prop_assert!(STEPS.contains(&lanes) || lanes == world);
        let wide = STEPS.into_iter().chain([world]).filter(|step| step * SHARDS_PER_LANE <= shards);
        let mut whole = wide.filter(|lanes| is_whole(*lanes, world, batch_size));
        prop_assert_eq!(is_whole(lanes, world, batch_size), whole.clone().next().is_some() || world == 1);
        // No more lanes than 96 where fewer do.
        prop_assert!(lanes <= 96 || !whole.any(|lanes| lanes <= 96));
        // What a client asks for, a daemon of any release gives.
        let asked = Order { lanes: Some(lanes), ..of_world(world, batch_size) };
        prop_assert_eq!(super::lanes(&asked, shards, true).unwrap(), lanes);
    }

    /// Worlds that need no more lanes have one order as long as their global batch is the same.
    #[test]
    fn worlds_of_one_global_batch_have_one_order(
        global in prop::sample::select(vec![32_u32, 64, 256, 2048]), shards in 1_u32..10_000,
    ) {
        let worlds = (0..=5).map(|power| 1 << power).filter(|world| world * SHARDS_PER_LANE <= shards);
        let all: HashSet<u32> = worlds.map(|world| chosen(world, global / world, shards)).collect();
        prop_assert!(all.len() <= 1, "{all:?}");
    }
}
