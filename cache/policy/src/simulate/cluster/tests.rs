use std::collections::HashMap;

use forebay_cluster::{Member, ObjectKey, Ring};
use proptest::prelude::*;

use super::*;

/// A ring of nodes with these slots, and the owners of so many shards.
fn placed(slots: &[u16], shards: u32) -> (Ring, Vec<NodeNumber>) {
    let member = |(node, slots): (usize, &u16)| Member {
        name: format!("node{node:06}"),
        address: "node:1".to_owned(),
        slots: *slots,
    };
    let ring = Ring::new(slots.iter().enumerate().map(member).collect()).unwrap();
    let owners = (0..shards).map(|shard| owner(&ring, shard)).collect();
    (ring, owners)
}

fn owner(ring: &Ring, shard: u32) -> NodeNumber {
    let key = ObjectKey::new("https://origin", &format!("s3://simulated/{shard:08}.tar"));
    ring.owner(key).unwrap().name.strip_prefix("node").unwrap().parse().unwrap()
}

/// Equal nodes, each with a cache of this part of the data.
fn cluster(nodes: usize, shards: u32, cache: f64, lanes: Option<u32>) -> Cluster {
    let slots = vec![1; nodes];
    let (_, owners) = placed(&slots, shards);
    let rooms = vec![(f64::from(shards) * cache) as u64; nodes];
    Cluster { rooms, slots, owners, lanes, epochs: 6, seed: 1 }
}

fn close(found: f64, wanted: f64, within: f64) -> bool {
    (found - wanted).abs() <= within
}

/// The origin is read once. Records alone move three quarters of the data in each epoch; guests
/// make that less where owners leave room, and cost what they write.
#[test]
fn four_nodes_read_the_origin_once() {
    for (cache, peer, written) in [(0.26, 0.71, 0.11), (0.35, 0.46, 0.27), (0.5, 0.30, 0.23)] {
        for lanes in [Some(64), None] {
            // Shards placed evenly: each node owns a quarter.
            let owners = (0..1200).map(|shard| shard % 4).collect();
            let report = Cluster { owners, ..cluster(4, 1200, cache, lanes) }.play().unwrap();
            let warm = &report.warm;
            assert_eq!(warm.origin, 0.0);
            assert!(close(warm.records, 0.75, 0.01), "{report:?}");
            // Of a slice of every shard nothing is worth a copy.
            let (peer, written) = if lanes.is_some() { (peer, written) } else { (0.75, 0.0) };
            assert!(close(warm.peer, peer, 0.03), "{cache}: {warm:?}");
            assert!(close(warm.written, written, 0.03), "{cache}: {warm:?}");
            assert_eq!(report.cold.origin, 1.0);
            assert_eq!((report.without_room, report.imbalance), (0.0, 1.0));
            assert_eq!(report.epochs.len(), 6);
        }
    }
}

/// By placement, owners have more or less than a quarter, so that a little finds no room in caches
/// of 0.26 of the data. It is read through its owner.
#[test]
fn what_finds_no_room_is_read_through_its_owner() {
    let report = cluster(4, 1200, 0.26, Some(64)).play().unwrap();
    assert!((0.0..0.03).contains(&report.without_room), "{report:?}");
    assert!(close(report.warm.origin, report.without_room, 1e-9), "{report:?}");
    assert!(close(report.warm.records, 0.75, 0.02), "{report:?}");
    assert!(close(report.cold.origin, 1.0, 1e-9));
    assert!(report.cold.written >= 1.0 - report.without_room - 1e-9);
    let none = cluster(4, 1200, 0.0, Some(64)).play().unwrap();
    assert!(close(none.warm.origin, 1.0, 1e-9), "{none:?}");
    assert_eq!((none.warm.written, none.without_room), (0.0, 1.0));
    assert_eq!(none.warm.clairvoyant, Alone { origin: none.warm.lru.origin, written: 0.0 });
}

/// Nodes alone fetch what they miss; foresight over eight epochs makes half as much of LRU's.
#[test]
fn nodes_alone_fetch_the_data_again_and_again() {
    let mut before = 1.0;
    for (cache, clairvoyant, lru) in [(0.26, 0.45, 0.84), (0.35, 0.38, 0.74), (0.5, 0.31, 0.57)] {
        let warm = cluster(4, 1200, cache, Some(64)).play().unwrap().warm;
        assert!(close(warm.clairvoyant.origin, clairvoyant, 0.04), "{cache}: {warm:?}");
        assert!(close(warm.lru.origin, lru, 0.04), "{cache}: {warm:?}");
        assert_eq!(warm.lru.origin, warm.lru.written);
        assert!(warm.clairvoyant.origin < before);
        before = warm.clairvoyant.origin;
    }
    // With slices every node reads every shard.
    let sliced = cluster(4, 1200, 0.26, None).play().unwrap();
    assert_eq!(sliced.cold.clairvoyant.origin, 4.0);
    assert!(close(sliced.warm.clairvoyant.origin, 4.0 * 0.74, 0.05), "{sliced:?}");
    // What holds everything fetches it once.
    let whole = cluster(4, 400, 1.0, None).play().unwrap().warm;
    assert_eq!((whole.clairvoyant.origin, whole.lru.origin), (0.0, 0.0));
}

/// A node's figures do not grow with their number: ten shards each, by whole lanes.
#[test]
fn figures_of_a_node_stay_flat_as_nodes_grow() {
    for nodes in [64_u32, 512, 4096] {
        let cluster = cluster(nodes as usize, nodes * 10, 3.0 / f64::from(nodes), Some(nodes));
        let warm = cluster.play().unwrap().warm;
        let Figures { origin, records, peer, written, received, served, .. } = warm;
        assert_eq!(origin, 0.0, "{nodes}");
        let others = 1.0 - 1.0 / f64::from(nodes);
        assert!(close(records, others, 0.01) && close(received.mean, peer, 0.01), "{nodes}");
        // A node comes to a shard again once in so many epochs as there are nodes.
        assert!(close(peer, others, 0.12) && written < 0.14, "{nodes}: {peer} {written}");
        assert!(received.max < 1.2 && received.min > 0.4, "{nodes}: {received:?}");
        // Owners of about ten shards differ: by the Poisson distribution the most loaded of 4,096
        // has 2.3 times the mean.
        assert!(close(served.mean, received.mean, 1e-9) && served.max < 2.7, "{nodes}: {served:?}");
    }
    // The design's figure is 1.16.
    let report = cluster(64, 20_000, 0.05, Some(64)).play().unwrap();
    assert!((1.05..1.25).contains(&report.imbalance), "{}", report.imbalance);
    assert!(report.warm.served.max < 1.25, "{:?}", report.warm.served);
}

#[test]
fn larger_nodes_own_and_keep_in_proportion() {
    let slots = [8_u16, 16, 24];
    let (_, owners) = placed(&slots, 6000);
    // Caches in proportion, a tenth above what each owns.
    let rooms = slots.iter().map(|slots| u64::from(*slots) * 6000 * 11 / 480).collect();
    let cluster =
        Cluster { rooms, slots: slots.to_vec(), owners, lanes: Some(96), epochs: 1, seed: 1 };
    let report = cluster.play().unwrap();
    assert_eq!((report.without_room, report.warm.origin), (0.0, 0.0));
    assert!(report.imbalance < 1.1, "{}", report.imbalance);
    // Each reads a third, and the largest serves half of what the others read of it. Guests in the
    // tenth to spare make that a tenth less.
    assert!(close(report.warm.served.max, 0.9, 0.06), "{:?}", report.warm.served);
    assert!(close(report.warm.served.min, 0.3, 0.06), "{:?}", report.warm.served);
}

fn lose(cluster: &Cluster, ring: &Ring, count: usize) -> Loss {
    let heirs = |lost: &[NodeNumber]| -> Result<Heirs> {
        let stay = ring
            .members()
            .iter()
            .filter(|member| !lost.iter().any(|node| member.name == format!("node{node:06}")));
        let ring = Ring::new(stay.cloned().collect())?;
        Ok(Box::new(move |shard| owner(&ring, shard)))
    };
    cluster.lose(count, heirs).unwrap()
}

/// The design's figure: a lost node costs its own shards and moves no others.
#[test]
fn lost_node_costs_its_own_shards() {
    let slots = vec![1; 64];
    let (ring, owners) = placed(&slots, 5000);
    let cluster =
        Cluster { rooms: vec![200; 64], slots, owners, lanes: Some(64), epochs: 1, seed: 1 };
    let loss = lose(&cluster, &ring, 1);
    let mut owned: HashMap<NodeNumber, usize> = HashMap::new();
    cluster.owners.iter().for_each(|owner| *owned.entry(*owner).or_default() += 1);
    let most = owned.values().copied().max().unwrap();
    assert_eq!((owned[&loss.nodes[0]], loss.nodes.len()), (most, 1));
    assert_eq!((loss.anew, loss.origin), (most as f64 / 5000.0, 0.0));
    assert!(loss.imbalance < 1.5, "{loss:?}");
    // Heirs without room read through: every cache is full.
    let full = Cluster { rooms: vec![1; 64], ..cluster.clone() };
    let loss = lose(&full, &ring, 3);
    assert_eq!((loss.nodes.len(), loss.anew, loss.origin), (3, 3.0 / 5000.0, 4939.0 / 5000.0));
    assert_eq!(lose(&cluster, &ring, 0).anew, 0.0);
    let all = cluster.lose(64, |_| panic!("nobody asks")).unwrap_err();
    assert_eq!((all.kind(), all.place("nodes")), (ErrorKind::Invalid, Some("64")));
    let itself = cluster.lose(1, |lost| {
        let lost = lost[0];
        Ok(Box::new(move |_| lost))
    });
    assert_eq!(itself.unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn invalid_clusters_are_rejected() {
    let good = || cluster(4, 40, 0.5, Some(8));
    assert!(good().play().is_ok());
    for (what, bad) in [
        ("no node", Cluster { rooms: vec![], slots: vec![], ..good() }),
        ("no slots", Cluster { slots: vec![1, 0, 1, 1], ..good() }),
        ("slots of others", Cluster { slots: vec![1], ..good() }),
        ("no shard", Cluster { owners: vec![], ..good() }),
        ("unknown owner", Cluster { owners: vec![4], ..good() }),
        ("uneven lanes", Cluster { lanes: Some(6), ..good() }),
        ("no lanes", Cluster { lanes: Some(0), ..good() }),
        ("no epoch", Cluster { epochs: 0, ..good() }),
        ("endless", Cluster { epochs: u64::MAX, ..good() }),
    ] {
        let error = bad.play().err().unwrap_or_else(|| panic!("{what} is accepted"));
        assert_eq!(error.kind(), ErrorKind::Invalid, "{what}");
    }
}

proptest! {
    /// Nodes read every unit of every shard once in each epoch.
    #[test]
    fn nodes_read_every_shard_once(
        nodes in 1_usize..9, each in 1_u32..5, shards in 1_u32..60, epoch in 0_u64..4,
    ) {
        let lanes = nodes as u32 * each;
        let cluster = cluster(nodes, shards, 1.0, Some(lanes));
        let row = cluster.row(epoch);
        let mut read = vec![0; shards as usize];
        for reader in 0..nodes {
            let pieces = cluster.pieces(reader, &row);
            let units: u64 = pieces.iter().map(|piece| piece.units).sum();
            prop_assert_eq!(units, u64::from(each * shards));
            pieces.iter().for_each(|piece| read[piece.shard as usize] += piece.units);
        }
        prop_assert!(read.iter().all(|units| *units == u64::from(lanes)));
    }

    /// Two plays are the same; what the origin sends is what has no room, and each epoch as much
    /// is sent as received.
    #[test]
    fn bytes_add_up_and_repeat(
        nodes in 1_usize..9, each in 0_u32..5, shards in 1_u32..60, cache in 0.0..0.6, seed: u64,
    ) {
        let lanes = (each > 0).then_some(nodes as u32 * each);
        let cluster = Cluster { seed, epochs: 2, ..cluster(nodes, shards, cache, lanes) };
        let report = cluster.play().unwrap();
        prop_assert_eq!(&cluster.play().unwrap(), &report);
        for figures in report.epochs.iter().chain([&report.cold]) {
            prop_assert!(close(figures.received.mean, figures.peer, 1e-9));
            prop_assert!(close(figures.served.mean, figures.peer, 1e-9));
            prop_assert!(figures.records <= 1.0 + 1e-9);
            // A copy is the whole of a shard of which more than half is read.
            prop_assert!(figures.peer <= figures.records + figures.written / 2.0 + 1e-9);
            prop_assert!(figures.clairvoyant.origin <= figures.lru.origin + 1e-9 || nodes > 1);
        }
        for figures in &report.epochs {
            prop_assert!(close(figures.origin, report.without_room, 1e-9));
        }
        prop_assert!(close(report.cold.origin, 1.0, 1e-9));
    }
}
