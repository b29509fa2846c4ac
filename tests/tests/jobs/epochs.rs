//! Epochs one after the other: the next one is begun while the last batches of this one are taken,
//! and gives what it would have given alone.

use std::thread;

use crate::trainer::returned;
use forebay_client::{Address, Loader, LoaderConfig, Next};
use forebay_error::{Error, ErrorKind};
use forebay_tests::{
    Daemon, Origin, ScriptedDaemon, TrainerConnection, config, eventually, job, loader, next, play,
};
use forebay_wire::message::{Begin, Open, Order, Reply, RunEnd, Shuffle};

const SIZES: std::ops::Range<usize> = 500..3000;
const SHARDS: u64 = 6;
const SAMPLES: u64 = 10;

/// A job whose epochs are shorter, in batches, than what is kept ready, and all different.
fn short_epochs(origin: &Origin) -> Open {
    let mut open = job(origin, Origin::urls(SHARDS));
    open.counts = Some(vec![SAMPLES; SHARDS as usize]);
    open.order.shuffle = Shuffle::Global;
    open.order.batch_size = 32;
    open
}

/// Starts an epoch of one batch and plays it to its end.
fn play_one(loader: &Loader, peer: &mut TrainerConnection, epoch: u64) {
    loader.start(Begin::at(epoch, 0)).unwrap();
    let (run, started, _) = peer.started();
    assert_eq!(started, epoch);
    give(peer, run);
    take(loader, run);
}

fn give(peer: &mut TrainerConnection, run: u64) {
    peer.batch(run, 0, 1);
    peer.say(&Reply::End(RunEnd { run, batches: 1, samples: 1, errors: Vec::new() }));
}

/// Takes the batch of a run, and its end once that has come.
fn take(loader: &Loader, run: u64) {
    let Next::Batch(batch) = next(loader).unwrap() else { panic!("the epoch has no batch") };
    assert_eq!(batch.keys, [format!("{run}/0")]);
    drop(batch);
    eventually("the end comes", || loader.ready() > 0);
    assert!(matches!(next(loader).unwrap(), Next::End(_)));
}

/// A loader that begins epochs ahead.
fn going(address: Address, open: Open) -> Loader {
    Loader::open(LoaderConfig { looks_ahead: true, ..config(address, open) }).unwrap()
}

fn scripted(daemon: &ScriptedDaemon) -> (Loader, TrainerConnection) {
    thread::scope(|scope| {
        let open = job(&Origin::new(), Origin::urls(1));
        let opened = scope.spawn(|| going(daemon.address(), open));
        let mut peer = daemon.accept();
        peer.register();
        let loader = opened.join().unwrap();
        peer.slab(1, 1 << 16, 4);
        (loader, peer)
    })
}

/// A loader that has played epochs 0 and 1, the second right behind the first, and the run of epoch
/// 2 that it has begun ahead.
fn ahead_of_two(daemon: &ScriptedDaemon) -> (Loader, TrainerConnection, u64) {
    let (loader, mut peer) = scripted(daemon);
    play_one(&loader, &mut peer, 0);
    play_one(&loader, &mut peer, 1);
    let (ahead, epoch) = peer.started_ahead();
    assert_eq!(epoch, 2);
    (loader, peer, ahead)
}

/// Comes for an epoch that was begun ahead, and has the daemon answer if its shards are the same.
fn come(loader: &Loader, peer: &mut TrainerConnection, (run, epoch): (u64, u64), holds: bool) {
    loader.start(Begin::at(epoch, 0)).unwrap();
    assert_eq!(peer.asked_to_confirm(), run);
    // What is said of another run is not of this one.
    peer.say(&Reply::Confirmed { run: run - 1, holds: !holds });
    peer.say(&Reply::Confirmed { run, holds });
}

/// Takes an epoch that is begun anew in place of the run that was begun ahead.
fn take_anew(loader: &Loader, peer: &mut TrainerConnection, ahead: u64) {
    thread::scope(|scope| {
        // Nobody knows that it is to be begun before its consumer asks for a batch.
        let taking = scope.spawn(|| take(loader, ahead + 1));
        assert_eq!(peer.started(), (ahead + 1, 2, 0));
        give(peer, ahead + 1);
        taking.join().unwrap();
    });
}

#[test]
fn epoch_is_asked_for_once_before_its_consumer_comes() {
    let daemon = ScriptedDaemon::new();
    let (loader, mut peer, ahead) = ahead_of_two(&daemon);
    give(&mut peer, ahead);
    eventually("it is ready", || loader.ready() == 2);
    come(&loader, &mut peer, (ahead, 2), true);
    take(&loader, ahead);
    assert_eq!(peer.started_ahead().1, 3);
    // What was begun ahead is dropped for what the consumer begins.
    loader.start(Begin::at(9, 0)).unwrap();
    let (run, epoch, _) = peer.started();
    assert_eq!(epoch, 9);
    give(&mut peer, run);
    take(&loader, run);
}

/// All batches of an epoch and its end lie in front of the daemon's word that the epoch stands.
#[test]
fn epoch_ahead_of_any_length_is_confirmed() {
    returned("an epoch ahead is taken", || {
        let daemon = ScriptedDaemon::new();
        let (loader, mut peer, ahead) = ahead_of_two(&daemon);
        // Twice what is kept ready, and the one in hand.
        let batches = 2 * u64::from(Open::new("", Vec::new(), Order::of_list(1)).prefetch) + 1;
        peer.slab(2, 1 << 16, 16);
        for index in 0..batches {
            peer.batch(ahead, index, 2);
        }
        let (samples, errors) = (batches, Vec::new());
        peer.say(&Reply::End(RunEnd { run: ahead, batches, samples, errors }));
        come(&loader, &mut peer, (ahead, 2), true);
        for index in 0..batches {
            let Next::Batch(batch) = next(&loader).unwrap() else { panic!("the epoch is over") };
            assert_eq!(batch.keys, [format!("{ahead}/{index}")], "begun again");
        }
        assert!(matches!(next(&loader).unwrap(), Next::End(_)));
    });
}

#[test]
fn epoch_whose_shards_were_replaced_is_begun_again() {
    let daemon = ScriptedDaemon::new();
    let (loader, mut peer, ahead) = ahead_of_two(&daemon);
    give(&mut peer, ahead);
    eventually("it is ready", || loader.ready() == 2);
    come(&loader, &mut peer, (ahead, 2), false);
    take_anew(&loader, &mut peer, ahead);
    // The consumer went on all the same.
    assert_eq!(peer.started_ahead().1, 3);
}

/// No other daemon knows which versions of its shards an epoch has.
#[test]
fn epoch_ahead_is_begun_again_at_another_daemon() {
    for asks in [true, false] {
        let daemon = ScriptedDaemon::new();
        let (loader, mut peer, ahead) = ahead_of_two(&daemon);
        peer.batch(ahead, 0, 1);
        eventually("its batch is ready", || loader.ready() == 1);
        if asks {
            loader.start(Begin::at(2, 0)).unwrap();
            assert_eq!(peer.asked_to_confirm(), ahead);
        }
        drop(peer);
        let mut peer = daemon.accept();
        peer.register();
        eventually("the job goes on", || loader.stats().reconnects == 1);
        peer.slab(1, 1 << 16, 4);
        if !asks {
            loader.start(Begin::at(2, 0)).unwrap();
        }
        take_anew(&loader, &mut peer, ahead);
    }
}

/// It is asked of the next one, which then answers for it, too.
#[test]
fn epoch_is_begun_ahead_while_there_is_no_daemon() {
    let daemon = ScriptedDaemon::new();
    let (loader, mut peer) = scripted(&daemon);
    play_one(&loader, &mut peer, 0);
    loader.start(Begin::at(1, 0)).unwrap();
    let (run, ..) = peer.started();
    peer.batch(run, 0, 1);
    let Next::Batch(batch) = next(&loader).unwrap() else { panic!("the epoch has no batch") };
    drop(batch);
    // Only now, or the next epoch would be asked of this daemon.
    peer.say(&Reply::End(RunEnd { run, batches: 1, samples: 1, errors: Vec::new() }));
    eventually("the end comes", || loader.ready() > 0);
    drop(peer);
    eventually("its daemon is lost", || loader.stats().daemon_pid.is_none());
    assert!(matches!(next(&loader).unwrap(), Next::End(_)));
    let mut peer = daemon.accept();
    peer.register();
    let (ahead, epoch) = peer.started_ahead();
    assert_eq!(epoch, 2);
    peer.slab(1, 1 << 16, 4);
    give(&mut peer, ahead);
    eventually("it is ready", || loader.ready() == 2);
    come(&loader, &mut peer, (ahead, 2), true);
    take(&loader, ahead);
}

/// An error from before the consumer came may be over when it comes.
#[test]
fn epoch_that_failed_ahead_is_begun_again() {
    let daemon = ScriptedDaemon::new();
    let (loader, mut peer, ahead) = ahead_of_two(&daemon);
    peer.batch(ahead, 0, 1);
    let error = Error::new(ErrorKind::Unavailable, "the store is down");
    peer.say(&Reply::Failed { run: Some(ahead), error });
    eventually("the error comes", || loader.ready() == 2);
    play_one(&loader, &mut peer, 2);
}

/// A caller that asks for a batch behind the end does not get one of the next epoch.
#[test]
fn nothing_follows_the_end_by_itself() {
    let daemon = ScriptedDaemon::new();
    let (loader, mut peer, ahead) = ahead_of_two(&daemon);
    give(&mut peer, ahead);
    let mut asked = 0;
    let stop = || match loader.ready() {
        0 if asked > 0 => Err(Error::new(ErrorKind::Closed, "enough")),
        _ => {
            asked += 1;
            Ok(())
        }
    };
    assert_eq!(loader.next(stop).unwrap_err().kind(), ErrorKind::Closed);
    // Its first batch is lost by now: the epoch is asked for again.
    play_one(&loader, &mut peer, 2);
}

/// Bears promise 5 (order is a function): also when an epoch was begun during the one before, and
/// when the daemon that began it was replaced.
#[test]
fn epochs_begun_ahead_are_what_they_are_alone() {
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let (disk, sockets) = (Daemon::disk(), tempfile::TempDir::new().unwrap());
    let socket = sockets.path().join("d.sock");
    let start = || Daemon::try_start_at(Daemon::config(disk.path(), 1 << 30), &socket).unwrap();
    let daemon = start();
    let alone = |epoch: u64| {
        play(&loader(daemon.address(), short_epochs(&origin)).unwrap(), epoch, 0).unwrap()
    };
    let expected: Vec<_> = (0..6).map(alone).collect();
    let going = going(daemon.address(), short_epochs(&origin));
    let check = |epoch: u64| {
        let played = play(&going, epoch, 0).unwrap();
        let of_one = &expected[usize::try_from(epoch).unwrap()];
        assert_eq!(played.samples, of_one.samples, "epoch {epoch}");
        assert_eq!((played.announced, played.errors), (of_one.announced, Vec::new()));
    };
    (0..4).for_each(check);
    eventually("epoch 4 is ready", || going.ready() > 0);
    drop(daemon);
    let _daemon = start();
    (4..6).for_each(check);
}
