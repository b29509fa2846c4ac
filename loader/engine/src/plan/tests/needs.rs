//! Bytes open at once, compared with reads of whole epochs.

use super::*;

proptest! {
    #[test]
    fn open_shards_never_exceed_the_announced_need(
        shards in prop::collection::vec((1_u64..90, 1_u64..1000), 8..30),
        shuffle in shuffles(), window in 1_u32..24, seed: u64, lanes in 1_u32..7, ranks in 1_u32..3,
    ) {
        let (counts, bytes): (Vec<u64>, Vec<u64>) = shards.into_iter().unzip();
        let lanes = if shuffle == Shuffle::Global { 1 } else { lanes };
        // Two ranks on the node, of three.
        let order = Order { world_size: 3, batch_size: 4, ..order(shuffle, window, seed) };
        let share = |rank| Share::new(&Order { rank, ..order.clone() }, lanes, 0);
        let node: Vec<Share> = (0..ranks).map(share).collect();
        let mine = |lane: u32| node.iter().any(|share| share.owns(lane));
        let Need { bytes: most, .. } = need(&order, &[Part::new(&order, lanes, ranks, &bytes)], 0);
        let shards = u32::try_from(counts.len()).unwrap();
        let total = counts.iter().sum();
        let sequence = Sequence::new(&order, shards, Some(counts), lanes, 0);
        for position in (0..total).step_by(5) {
            // Each lane's next place is at one of the positions from here on.
            let until = position + u64::from(lanes);
            let open: HashSet<u32> = sequence
                .needs(position, usize::MAX, mine)
                .take_while(|(from, _)| *from < until)
                .filter(|(from, _)| shuffle != Shuffle::None || *from <= position)
                .map(|(_, shard)| shard)
                .collect();
            let now: u64 = open.iter().map(|shard| bytes[*shard as usize]).sum();
            prop_assert!(now <= most, "{} of {} at {}", now, most, position);
        }
    }

    #[test]
    fn suggested_window_is_the_largest_that_fits(
        bytes in prop::collection::vec(1_u64..1000, 8..60), lanes in 1_u32..7, budget in 0_u64..20_000,
    ) {
        let order = order(Shuffle::Window, 1, 0);
        let part = [Part::new(&order, lanes, 1, &bytes)];
        let of = |window| need(&Order { window, ..order.clone() }, &part, budget);
        match of(1).window {
            None => prop_assert!(of(1).bytes > budget),
            Some(window) => {
                prop_assert!(of(window).bytes <= budget);
                let all = bytes.iter().sum::<u64>() <= budget;
                prop_assert!(of(window + 1).bytes > budget || (all && window as usize >= bytes.len()));
            }
        }
    }
}

#[test]
fn node_needs_only_the_windows_of_its_lanes() {
    let bytes = [100; 96 * 4];
    let window =
        Order { window: 96, world_size: 4, batch_size: 24, ..order(Shuffle::Window, 1, 0) };
    let of = |order: &Order, lanes, ranks, budget| {
        let Need { bytes, window, .. } =
            need(order, &[Part::new(order, lanes, ranks, &bytes)], budget);
        (bytes, window)
    };
    assert_eq!(of(&window, 96, 4, 9600), (9600, Some(96)));
    // By lanes: a quarter each.
    assert_eq!(of(&window, 96, 1, 9600), (2400, Some(4 * 96)));
    assert_eq!(of(&window, 96, 2, 4799), (4800, None));
    assert_eq!(of(&window, 96, 2, 4800), (4800, Some(96)));
    // By slices: each rank needs all lanes.
    let slices = Order { batch_size: 7, ..window.clone() };
    assert_eq!(of(&slices, 96, 1, 9600).0, 9600);
    assert_eq!(of(&slices, 96, 2, 9600).0, 9600);
    assert_eq!(of(&slices, 12, 1, 30_000), (9600, Some(300)));
    let global = Order { shuffle: Shuffle::Global, ..window.clone() };
    assert_eq!(of(&global, 1, 1, 5000), (38_400, Some(50)));
    let list = Order { shuffle: Shuffle::None, ..window };
    assert_eq!(of(&list, 1, 4, 5000).0, 100);
}

#[test]
fn need_of_a_mixture_is_the_sum_of_its_streams() {
    let order = Order { window: 8, ..order(Shuffle::Window, 1, 0) };
    // Of the large ones four lanes of two shards each, of the small ones one of eight.
    let parts = [Part::stream(4, &[1000; 16]), Part::stream(1, &[10; 20])];
    let of = |budget| need(&order, &parts, budget);
    let (bytes, whole) = (8 * 1000 + 8 * 10, 16 * 1000 + 20 * 10);
    assert_eq!(of(bytes).bytes, bytes);
    assert_eq!(of(bytes).window, Some(8));
    assert_eq!(of(whole).window, Some(20));
    // One more shard of the small ones is a window of nine, and so four more of the large ones.
    assert_eq!(of(12 * 1000 + 8 * 10).window, Some(8));
    assert_eq!(of(4 * 1000 + 9).window, None, "a window of one has a shard of each lane");
    // A lane of each takes a shard of each.
    assert_eq!((of(2020).lanes, of(1010).lanes, of(1009).lanes), (Some(2), Some(1), None));
}
