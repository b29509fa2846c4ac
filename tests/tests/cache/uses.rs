//! Hits and misses: each use of a shard by an epoch of a job is one or the other.

use std::collections::BTreeSet;

use forebay_testkit::{Random, shard};
use forebay_tests::{
    BareStore, BareStoreConfig, Daemon, Origin, epoch, eventually, job, loader, play,
};

const SIZES: std::ops::Range<usize> = 500..600;
const SAMPLES: u64 = 4;
const SHARDS: u64 = 20;
const JOBS: u64 = 10;

/// Ten jobs and three epochs over shards that stay open between uses.
#[test]
fn every_use_of_an_open_shard_is_a_hit() {
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let disk = Daemon::disk();
    let daemon = Daemon::start(disk.path());
    let play_all = || drop(epoch(daemon.address(), job(&origin, Origin::urls(SHARDS))).unwrap());
    play_all();
    daemon.settle();
    let counters = || daemon.node().store().counters();
    assert_eq!((counters().hits, counters().misses), (0, SHARDS));
    (0..JOBS).for_each(|_| play_all());
    assert_eq!((counters().hits, counters().misses), (JOBS * SHARDS, SHARDS));
    let one = loader(daemon.address(), job(&origin, Origin::urls(SHARDS))).unwrap();
    for number in 0..3 {
        play(&one, number, 0).unwrap();
    }
    let uses = (JOBS + 3) * SHARDS;
    eventually("all uses are counted", || counters().hits == uses);
    assert_eq!(counters().misses, SHARDS);
}

/// Random uses, removals and restarts, against a set of the present shards.
#[test]
fn hits_and_misses_match_a_model() {
    let (origin, disk) = (Daemon::disk(), Daemon::disk());
    let urls: Vec<String> = (0..8)
        .map(|n| {
            let path = origin.path().join(format!("{n}.tar"));
            std::fs::write(&path, shard(SAMPLES, n, &SIZES)).unwrap();
            format!("file://{}", path.display())
        })
        .collect();
    let open = || BareStoreConfig::new(disk.path().join("cache"), 64 << 20).open();
    let mut random = Random::new(7);
    let mut store: BareStore = open();
    let (mut present, mut hits, mut misses) = (BTreeSet::new(), 0, 0);
    for _ in 0..300 {
        let url = &urls[usize::try_from(random.below(urls.len() as u64)).unwrap()];
        match random.below(20) {
            0 => {
                store.end();
                store = open();
                (hits, misses) = (0, 0);
            }
            1 | 2 => {
                store.runtime.block_on(store.store.forget(url, false)).unwrap();
                present.remove(url);
            }
            _ => {
                store.read_all(url).unwrap();
                *(if present.insert(url.clone()) { &mut misses } else { &mut hits }) += 1;
                eventually("the fill has ended", || {
                    let counters = store.store.counters();
                    counters.misses == counters.ended()
                });
            }
        }
        let counters = store.store.counters();
        assert_eq!((counters.hits, counters.misses), (hits, misses));
    }
    store.end();
}
