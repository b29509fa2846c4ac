//! Kill −9, of either side, at any moment.

use std::fs;

use forebay_client::Next;
use forebay_tests::{
    Epoch, Origin, Trainer, TrainerJob, UserHome, descriptors, eventually, job, kill, loader, next,
    play,
};
use forebay_wire::message::Begin;

use crate::ACTOR;

const SIZES: std::ops::Range<usize> = 60_000..80_000;
const SHARDS: u64 = 6;
const SAMPLES: u64 = 80;
/// Largest request: `readers::PIECE` of the sources.
const PART: u64 = 4 << 20;

fn part(origin: &Origin) -> TrainerJob {
    let mut open = job(origin, Origin::urls(SHARDS));
    // Little is ready ahead, so that a daemon killed now is missed soon.
    open.prefetch = 2;
    TrainerJob { open, shards: SHARDS as u32, samples: SAMPLES, sizes: SIZES }
}

/// Numbers that look random and are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % limit
    }
}

/// Asserts that every shard with a sidecar is the origin's, byte for byte.
fn assert_whole_or_gone(home: &UserHome, origin: &Origin) {
    for entry in fs::read_dir(home.shards()).into_iter().flatten().flatten() {
        let name = entry.file_name().into_string().unwrap();
        let Some(data) = name.strip_suffix(".idx") else { continue };
        let resting = fs::read(home.shards().join(data)).unwrap();
        let (_, object) = data.split_once('-').unwrap();
        assert!(resting == origin.bytes(object), "{data} is visible and not whole");
    }
}

/// Bears promises 4 (crash at any instant), 6 (exactly once) and 7 (a daemon that dies does not
/// kill a job): twelve kills over a cold and a warm epoch, each at another point.
#[test]
fn daemon_killed_in_mid_epoch_loses_no_sample() {
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let home = UserHome::new(ACTOR);
    let loader = loader(home.address(), part(&origin).open).unwrap();
    let mut random = Random(4);
    let mut killed = 0;
    for number in 0..2 {
        loader.start(Begin::at(number, 0)).unwrap();
        let mut epoch = Epoch::default();
        let mut until_kill = 1 + random.below(6);
        let ended = loop {
            match next(&loader).unwrap() {
                Next::Batch(batch) => epoch.take(&batch),
                Next::End(end) => break (end.batches, end.samples, end.errors),
            }
            until_kill -= 1;
            if until_kill == 0 {
                until_kill = 4 + random.below(8);
                // None while the client is between daemons: then it has just been hit.
                if let Some(pid) = loader.stats().daemon_pid {
                    kill(pid);
                    killed += 1;
                    assert_whole_or_gone(&home, &origin);
                }
            }
        };
        assert_eq!(ended, (SHARDS * SAMPLES / 8, SHARDS * SAMPLES, Vec::new()));
        epoch.assert_whole(SHARDS as u32, SAMPLES, &SIZES);
        let order: Vec<u64> = epoch.samples.iter().map(|sample| sample.position).collect();
        assert!(order.is_sorted(), "the order was lost");
    }
    assert!(killed >= 10, "only {killed} kills");
    drop(loader);
    eventually("no daemon is left", || home.daemons().is_empty());
    assert!(!home.socket().exists());
}

/// Bears promise 3 (budgets) and 8 (a client can hurt only its own session): ten trainers killed in
/// mid-epoch leave no session, memory or descriptor in the daemon, which then ends when idle.
#[test]
fn trainers_killed_in_mid_epoch_leave_nothing_behind() {
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let home = UserHome::new(ACTOR);
    let part = part(&origin);
    let first = loader(home.address(), part.open.clone()).unwrap();
    play(&first, 0, 0).unwrap().assert_whole(SHARDS as u32, SAMPLES, &SIZES);
    let pid = first.stats().daemon_pid.unwrap();
    // A second epoch: by now every shard is whole and open.
    play(&first, 1, 0).unwrap();
    let slab = home.status().unwrap()["slab_bytes"].clone();
    let before = descriptors(pid);
    let mut random = Random(9);
    for _ in 0..10 {
        let mut trainer = home.trainer(&part);
        assert_eq!(trainer.line(), Some(format!("daemon {pid}")));
        for _ in 0..1 + random.below(50) {
            assert!(trainer.line().unwrap().starts_with("batch"));
        }
        trainer.kill();
    }
    eventually("the sessions and their memory are gone", || {
        let status = home.status().unwrap();
        status["jobs"].as_array().unwrap().len() == 1 && status["slab_bytes"] == slab
    });
    eventually("their descriptors are gone", || descriptors(pid).len() <= before.len());
    play(&first, 2, 0).unwrap().assert_whole(SHARDS as u32, SAMPLES, &SIZES);
    drop(first);
    eventually("the daemon ends when nobody needs it", || !forebay_tests::alive(pid));
    assert!(!home.socket().exists());
}

/// Bears promise 2 (one fetch) at its root: eight ranks that start at once share one daemon.
#[test]
fn eight_trainers_starting_at_once_elect_one_daemon() {
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let home = UserHome::new(ACTOR);
    let part = part(&origin);
    let mut trainers: Vec<Trainer> = (0..8).map(|_| home.trainer(&part)).collect();
    let told: Vec<_> = trainers.iter_mut().map(|trainer| trainer.line().unwrap()).collect();
    assert!(told[0].starts_with("daemon "), "{told:?}");
    assert!(told.iter().all(|line| *line == told[0]), "{told:?}");
    assert_eq!(home.daemons().len(), 1);
    // The daemon stays for this one, however long the others take.
    let stays = loader(home.address(), part.open.clone()).unwrap();
    trainers.iter_mut().for_each(Trainer::finish);
    let status = home.status().expect("the daemon that served them is there");
    let links = status["sources"].as_array().unwrap();
    let again: u64 = links
        .iter()
        .map(|link| link["hedges"].as_u64().unwrap() + link["retries"].as_u64().unwrap())
        .sum();
    // What a busy machine had it ask for twice, no more than a part each, comes on top.
    let twice: u64 = (0..SHARDS)
        .map(|n| {
            let name = format!("{n}.tar");
            let (served, bytes) = (origin.served(&name), origin.bytes(&name).len() as u64);
            served.checked_sub(bytes).unwrap_or_else(|| panic!("{name}: {served} of {bytes}"))
        })
        .sum();
    assert!(twice <= again * PART, "{twice} bytes twice; requests made again: {again}");
    drop(stays);
    eventually("the daemon ends when nobody needs it", || home.daemons().is_empty());
    assert!(!home.socket().exists());
}

/// Bears promises 4, 6 and 7 together: fifty kills of either side while three trainers play. Those
/// left alone end well, and in the end there is no daemon and no socket. Slabs have no name: their
/// memory ends with the processes.
#[test]
fn fifty_kills_leave_at_most_one_daemon() {
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let home = UserHome::new(ACTOR);
    let part = part(&origin);
    let mut random = Random(2);
    let mut trainers: Vec<Trainer> = (0..3).map(|_| home.trainer(&part)).collect();
    for _ in 0..50 {
        let at = random.below(3) as usize;
        for _ in 0..random.below(12) {
            if trainers[at].line().is_none_or(|line| line == "end") {
                trainers[at].finish();
                trainers[at] = home.trainer(&part);
            }
        }
        if random.below(2) == 0 {
            trainers[at].kill();
            trainers[at] = home.trainer(&part);
        } else {
            home.daemons().into_iter().for_each(kill);
        }
    }
    trainers.iter_mut().for_each(Trainer::finish);
    assert!(home.daemons().len() <= 1);
    assert_whole_or_gone(&home, &origin);
    eventually("no daemon is left", || home.daemons().is_empty());
    assert!(!home.socket().exists());
}
