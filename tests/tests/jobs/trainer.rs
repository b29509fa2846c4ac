//! A trainer's handling of its daemon's messages, in orders that a real daemon produces only in
//! rare moments.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_client::{
    Address, Batch, Connection, Deadline, Loader, LoaderConfig, Next, TIMEOUT_MAX,
};
use forebay_decode::{DType, FieldKind, FieldSpec, Ragged, RawSpec};
use forebay_error::{Error, ErrorKind, Result};
use forebay_testkit::pause;
use forebay_tests::{
    Origin, PATIENCE, ScriptedDaemon, TrainerConnection, UserHome, config, eventually, job, next,
};
use forebay_wire::PROTOCOL_POSITIONS;
use forebay_wire::message::{
    Bad, Begin, Decoded, NO_OTHERS, REREADS_MAX, Reply, Request, RunEnd, SlowSample,
};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};

use crate::ACTOR;

/// The time limit of those that are to reach it.
const SHORT: Duration = Duration::from_secs(1);

fn open(address: Address, timeout: Duration) -> Result<Loader> {
    open_with(address, timeout, None)
}

fn open_with(
    address: Address,
    timeout: Duration,
    fields: Option<Vec<FieldSpec>>,
) -> Result<Loader> {
    let open = job(&Origin::new(), Origin::urls(1));
    let mut config = LoaderConfig { fields, ..config(address, open) };
    config.session.timeout = timeout;
    Loader::open(config)
}

/// A loader at a scripted daemon, and that daemon's end of it.
fn connected(daemon: &ScriptedDaemon) -> (Loader, TrainerConnection) {
    connected_with(daemon, None)
}

fn connected_with(
    daemon: &ScriptedDaemon,
    fields: Option<Vec<FieldSpec>>,
) -> (Loader, TrainerConnection) {
    std::thread::scope(|scope| {
        // No wait of a test may end by itself.
        let loader = scope.spawn(|| open_with(daemon.address(), TIMEOUT_MAX, fields).unwrap());
        let mut peer = daemon.accept();
        peer.register();
        (loader.join().unwrap(), peer)
    })
}

fn batch(loader: &Loader) -> Box<Batch> {
    match next(loader).unwrap() {
        Next::Batch(batch) => batch,
        Next::End(_) => panic!("the epoch ended"),
    }
}

/// Bears the rule of DESIGN §5 that an oversized batch renegotiates the slab: the new one is
/// announced while batches in the old one are still being read.
#[test]
fn batches_of_the_previous_slab_may_follow_a_new_one() {
    let daemon = ScriptedDaemon::new();
    let (loader, mut peer) = connected(&daemon);
    loader.start(Begin::at(0, 0)).unwrap();
    let (run, ..) = peer.started();
    peer.slab(1, 4096, 4);
    peer.batch(run, 0, 1);
    peer.slab(2, 8192, 4);
    peer.batch(run, 1, 1);
    peer.batch(run, 2, 2);
    for index in 0..3 {
        assert_eq!(batch(&loader).index, index);
    }
    assert_eq!(loader.stats().reconnects, 0);
}

/// A batch that is read again lies in a newer slab of its own than those after it.
#[test]
fn batches_after_one_in_a_slab_of_its_own_are_taken() {
    let daemon = ScriptedDaemon::new();
    let (loader, mut peer) = connected(&daemon);
    loader.start(Begin::at(0, 0)).unwrap();
    let (run, ..) = peer.started();
    peer.slab(1, 4096, 4);
    peer.slab(2, 4096, NO_OTHERS);
    peer.slab(3, 4096, NO_OTHERS);
    for (index, slab) in [(0, 3), (1, 1), (2, 2), (3, 1)] {
        peer.batch(run, index, slab);
        assert_eq!(batch(&loader).index, index);
    }
    assert_eq!(loader.stats().reconnects, 0);
}

/// As many slabs are mapped as batches in flight can have had.
#[test]
fn slabs_of_batches_that_never_come_are_forgotten() {
    let daemon = ScriptedDaemon::new();
    let (loader, mut peer) = connected(&daemon);
    loader.start(Begin::at(0, 0)).unwrap();
    let (run, ..) = peer.started();
    let most = job(&Origin::new(), Origin::urls(1)).prefetch * (1 + REREADS_MAX);
    (1..=most + 1).for_each(|slab| peer.slab(slab, 4096, NO_OTHERS));
    peer.batch(run, 0, 2);
    assert_eq!(batch(&loader).index, 0);
    peer.batch(run, 1, 1);
    // What names forgotten memory is not of this protocol.
    daemon.accept().register();
    eventually("it goes on there", || loader.stats().reconnects == 1);
}

/// A daemon of the release before plays what it knows, and what it does not know is refused with
/// what to do about it.
#[test]
fn daemon_of_the_previous_release_is_supported() {
    let daemon = ScriptedDaemon::new();
    let (loader, mut peer) = std::thread::scope(|scope| {
        let loader = scope.spawn(|| open(daemon.address(), TIMEOUT_MAX).unwrap());
        let mut peer = daemon.accept();
        peer.greet_in(PROTOCOL_POSITIONS - 1);
        peer.open();
        (loader.join().unwrap(), peer)
    });
    loader.start(Begin::at(7, 3)).unwrap();
    assert!(matches!(peer.request(), Request::Start { epoch: 7, batch: 3, .. }));
    for begin in [Begin { base: 5, ..Begin::at(7, 0) }, Begin { step: 2, ..Begin::at(7, 0) }] {
        let error = loader.start(begin).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_eq!(error.place("reason"), Some("older"), "{error}");
    }
    // It is not told what it does not know, and does not say where samples lie.
    loader.tell(bad());
    loader.start(Begin::at(7, 0)).unwrap();
    let Request::Start { run, .. } = peer.request() else { panic!("it was told") };
    peer.slab(1, 4096, 4);
    peer.batch(run, 0, 1);
    let batch = batch(&loader);
    assert_eq!((batch.keys.len(), batch.offsets.len()), (1, 0));
}

/// A daemon that hangs reads nothing. Whoever tells it something waits for no room in its socket,
/// and the loader ends at once.
#[test]
fn daemon_that_reads_nothing_holds_nobody_up() {
    /// Far more than a socket holds.
    const WORDS: usize = 10_000;
    let daemon = ScriptedDaemon::new();
    let (loader, mut peer) = connected(&daemon);
    loader.start(Begin::at(0, 0)).unwrap();
    peer.started();
    let telling = std::thread::spawn(move || {
        for _ in 0..WORDS {
            loader.tell(bad());
        }
        assert_eq!(loader.stats().reconnects, 0);
        drop(loader);
    });
    eventually("the loader ends", || telling.is_finished());
    telling.join().unwrap();
}

/// A daemon of an older release, found when the last was lost, is an error at once if it does not
/// know the job's run.
#[test]
fn run_that_the_next_daemon_does_not_know_ends() {
    let daemon = ScriptedDaemon::new();
    let (loader, mut peer) = connected(&daemon);
    loader.start(Begin { base: 5, ..Begin::at(0, 0) }).unwrap();
    peer.started();
    drop(peer);
    let serving = std::thread::spawn(move || {
        let mut peer = daemon.accept();
        peer.greet_in(PROTOCOL_POSITIONS - 1);
        peer.open();
        (daemon, peer)
    });
    let error = returned("a run of a newer release", move || next(&loader).unwrap_err());
    serving.join().unwrap();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.place("last").is_some_and(|last| last.contains("older")), "{error}");
}

/// A daemon that rejects what the job says ends it: the next one would do the same.
#[test]
fn rejection_by_the_daemon_ends_the_job() {
    let daemon = ScriptedDaemon::new();
    let (loader, mut peer) = connected(&daemon);
    loader.start(Begin::at(0, 0)).unwrap();
    let _ = peer.started();
    let error = Error::new(ErrorKind::Invalid, "a message outside this protocol");
    peer.say(&Reply::Failed { run: None, error });
    drop(peer);
    let error = next(&loader).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(loader.stats().reconnects, 0);
}

/// Daemons that take a job and are gone at once: it waits between them, and its time limit goes on.
#[test]
fn job_does_not_hurry_from_daemon_to_daemon() {
    let daemon = ScriptedDaemon::new();
    let timeout = Duration::from_secs(3);
    let (loader, peer) = std::thread::scope(|scope| {
        let loader = scope.spawn(|| open(daemon.address(), timeout).unwrap());
        let mut peer = daemon.accept();
        peer.register();
        (loader.join().unwrap(), peer)
    });
    loader.start(Begin::at(0, 0)).unwrap();
    drop(peer);
    let error = std::thread::scope(|scope| {
        let failed = scope.spawn(|| next(&loader).unwrap_err());
        while !failed.is_finished() {
            match daemon.try_accept() {
                Some(mut peer) => peer.register(),
                None => std::thread::park_timeout(Duration::from_millis(5)),
            }
        }
        failed.join().unwrap()
    });
    assert_eq!((error.kind(), error.place("reason")), (ErrorKind::Unavailable, Some("lost")));
    // A pause of half a second between two of them.
    let reconnects = loader.stats().reconnects;
    assert!((2..=7).contains(&reconnects), "{reconnects}");
}

fn bad() -> Bad {
    Bad { counts: vec![(ErrorKind::BadSample, 3)], last: Vec::new() }
}

/// Skipped samples are reported to the next daemon as well.
#[test]
fn bad_samples_are_reported_to_the_next_daemon() {
    let daemon = ScriptedDaemon::new();
    let (loader, mut peer) = connected(&daemon);
    loader.tell(bad());
    assert!(matches!(peer.request(), Request::Bad(told) if told == bad()));
    drop(peer);
    let mut peer = daemon.accept();
    peer.register();
    assert!(matches!(peer.request(), Request::Bad(told) if told == bad()));
}

/// A consumer's progress, and the decoders of its rows, are reported with its first batch, at the
/// end of its epoch, and to the next daemon.
#[test]
fn trainer_progress_is_reported_to_daemons() {
    let daemon = ScriptedDaemon::new();
    let raw = RawSpec { dtype: DType::Uint8, shape: vec![None] };
    let kind = FieldKind::Npy { ragged: Ragged::List, raw: Some(raw) };
    let fields = vec![FieldSpec::new("values", "bin", kind)];
    let (loader, mut peer) = connected_with(&daemon, Some(fields));
    let by_cpu = |rows| vec![Decoded { by: "cpu".to_owned(), why: "no_device".to_owned(), rows }];
    let slow = |key: &str, seconds| SlowSample {
        key: key.to_owned(),
        url: "s3://bucket/0.tar".to_owned(),
        stage: "map".to_owned(),
        field: Some("values".to_owned()),
        seconds,
    };
    loader.note_slow(&[slow("a", 0.25), slow("b", 1.5), slow("a", 0.125)]);
    // If this takes long it hears of what is between.
    let hears = |peer: &mut TrainerConnection, rows| {
        loop {
            let told = peer.progress();
            if told.decoded == by_cpu(rows) {
                assert_eq!((told.batches, told.samples, told.waiting_ns), (rows, rows, 0));
                return told.slowest;
            }
        }
    };
    loader.start(Begin::at(0, 0)).unwrap();
    let (run, ..) = peer.started();
    peer.slab(1, 4096, 4);
    for index in 0..3 {
        peer.batch(run, index, 1);
        assert_eq!(batch(&loader).index, index);
        if index == 0 {
            hears(&mut peer, 1);
        }
    }
    peer.say(&Reply::End(RunEnd { run, batches: 3, samples: 3, errors: Vec::new() }));
    assert!(matches!(next(&loader).unwrap(), Next::End(RunEnd { batches: 3, .. })));
    hears(&mut peer, 3);
    drop(peer);
    let mut peer = daemon.accept();
    peer.register();
    let told: Vec<_> =
        hears(&mut peer, 3).into_iter().map(|slow| (slow.key, slow.stage, slow.seconds)).collect();
    let of = |key: &str, seconds| (key.to_owned(), "map".to_owned(), seconds);
    assert_eq!(told, [of("b", 1.5), of("a", 0.25)]);
}

/// A daemon that hears of a wait also hears of its end if that is an error.
#[test]
fn wait_ending_in_an_error_is_reported_as_over() {
    let daemon = ScriptedDaemon::new();
    let (loader, mut peer) = connected(&daemon);
    loader.start(Begin::at(0, 0)).unwrap();
    peer.started();
    let gives_up = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let next = loader.next(|| match gives_up.load(Ordering::Relaxed) {
                true => Err(Error::new(ErrorKind::Closed, "it is enough")),
                false => Ok(()),
            });
            next.map(drop)
        });
        while peer.progress().waiting_ns == 0 {}
        gives_up.store(true, Ordering::Relaxed);
        assert_eq!(waits.join().unwrap().unwrap_err().kind(), ErrorKind::Closed);
        while peer.progress().waiting_ns > 0 {}
    });
}

/// Bears promise 7: the end of an epoch that nobody wants any more, come late, does not make the
/// trainer forget the one it wants when its daemon dies.
#[test]
fn late_end_of_an_abandoned_epoch_is_ignored() {
    let end = |run| Reply::End(RunEnd { run, batches: 1, samples: 1, errors: Vec::new() });
    let failed = |run| {
        let error = Error::new(ErrorKind::Corrupt, "no matter");
        Reply::Failed { run: Some(run), error }
    };
    for last_words in [&end as &dyn Fn(u64) -> Reply, &failed] {
        let daemon = ScriptedDaemon::new();
        let (loader, mut peer) = connected(&daemon);
        loader.start(Begin::at(0, 0)).unwrap();
        let (abandoned, ..) = peer.started();
        loader.start(Begin::at(1, 0)).unwrap();
        let (run, epoch, _) = peer.started();
        assert_eq!(epoch, 1);
        peer.slab(1, 4096, 4);
        peer.batch(run, 0, 1);
        peer.say(&last_words(abandoned));
        assert_eq!(batch(&loader).index, 0);
        drop(peer);
        let mut peer = daemon.accept();
        peer.register();
        assert_eq!(peer.started(), (run, 1, 1), "the epoch goes on where it was");
        peer.slab(1, 4096, 4);
        peer.batch(run, 1, 1);
        assert_eq!(batch(&loader).index, 1);
    }
}

/// Returns the result of `call`; a call that does not return fails its test rather than hanging it.
pub(crate) fn returned<T: Send + 'static>(
    what: &str,
    call: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (sender, done) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(call()));
    done.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("this never ends: {what}"))
}

fn assert_silent(what: &str, address: Address) {
    let opened = returned(what, || open(address, SHORT));
    let error = opened.err().unwrap_or_else(|| panic!("{what}: opened"));
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{what}: {error}");
    assert_eq!(error.place("reason"), Some("silent"), "{what}: {error}");
    assert!(error.place("socket").is_some(), "{what}: {error}");
}

/// Bears promise 7 (every wait ends within `timeout`): a daemon that hangs, wherever it stopped on
/// the way to the first batch.
#[test]
fn unresponsive_daemon_is_an_error_in_time() {
    let daemon = ScriptedDaemon::new();
    assert_silent("it takes no greeting", daemon.address());
    let daemon = ScriptedDaemon::new();
    let line = daemon.fill_line();
    assert_silent("it takes no connection", daemon.address());
    drop(line);
    let daemon = ScriptedDaemon::new();
    let address = daemon.address();
    // Joined once the trainer gave up: one that never does fails the test before.
    let played = std::thread::spawn(move || {
        let mut peer = daemon.accept();
        peer.greet();
        assert!(matches!(peer.request(), Request::Open(_)));
        assert!(peer.ends());
    });
    assert_silent("it takes no job", address);
    played.join().unwrap();
}

/// A timeout in mid-epoch names the daemon if that is what does not answer, or is lost.
#[test]
fn timeout_names_a_silent_or_lost_daemon() {
    for reason in ["silent", "lost"] {
        let daemon = ScriptedDaemon::new();
        let address = daemon.address();
        let waits = std::thread::spawn(move || {
            let loader = open(address, SHORT * 4).unwrap();
            loader.start(Begin::at(0, 0)).unwrap();
            next(&loader).map(drop)
        });
        let mut peer = daemon.accept();
        peer.register();
        peer.started();
        match reason {
            // It takes every word.
            "silent" => assert!(peer.ends()),
            _ => {
                drop(peer);
                drop(daemon);
            }
        }
        let error = returned("a wait", || waits.join().unwrap()).unwrap_err();
        assert!(reason == "lost" || error.kind() == ErrorKind::Unavailable, "{error}");
        assert_eq!(error.place("waited_for"), Some("daemon"), "{error}");
        assert_eq!(error.place("reason"), Some(reason), "{error}");
    }
}

/// Lists and counts that do not come name what was waited for.
#[test]
fn late_list_and_count_name_what_they_waited_for() {
    let origin = BTreeMap::new();
    let asked = |of: &(dyn Fn(&Connection) -> Error + Sync)| {
        let daemon = ScriptedDaemon::new();
        std::thread::scope(|scope| {
            let asks = scope.spawn(|| {
                of(&Connection::open(&daemon.socket(), &Deadline::after(PATIENCE)).unwrap())
            });
            let mut peer = daemon.accept();
            peer.greet();
            assert!(peer.ends());
            asks.join().unwrap()
        })
    };
    let list = asked(&|connection| {
        let listed = connection.list("s3://b/*.tar", origin.clone(), &Deadline::after(SHORT));
        listed.unwrap_err()
    });
    let urls = ["s3://b/0.tar".to_owned()];
    let count = asked(&|connection| connection.count(&urls, &origin, SHORT, || {}).unwrap_err());
    for (error, place, waited_for) in
        [(list, ("urls", "s3://b/*.tar"), "list"), (count, ("url", "s3://b/0.tar"), "shard")]
    {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert_eq!(error.place("waited_for"), Some(waited_for), "{error}");
        assert_eq!(error.place(place.0), Some(place.1), "{error}");
    }
}

/// Bears promise 7: the same with a real daemon, stopped as a debugger or a batch system does it.
#[test]
fn stopped_daemon_is_an_error_in_time() {
    let home = UserHome::new(ACTOR);
    let loader = open(home.address(), PATIENCE).unwrap();
    let pid = loader.stats().daemon_pid.unwrap();
    let process = Pid::from_raw(pid.try_into().unwrap()).unwrap();
    pause(pid).unwrap();
    assert_silent("it was stopped", home.address());
    kill_process(process, Signal::CONT).unwrap();
    drop(open(home.address(), PATIENCE).unwrap());
    drop(loader);
    eventually("no daemon is left", || home.daemons().is_empty());
}

/// Bears promise 7: another process that starts the daemon and was stopped over it.
#[test]
fn endless_daemon_start_is_an_error_in_time() {
    let home = UserHome::new(ACTOR);
    let lock = File::create(home.socket().with_file_name("start.lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let address = home.address();
    let error = returned("a start", || open(address, SHORT)).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.place("lock").is_some(), "{error}");
    assert!(home.daemons().is_empty());
}

/// A node daemon that does not serve the user leaves the job to the user's own daemon, and says so.
#[test]
fn refusal_of_the_node_daemon_is_a_notice() {
    let home = UserHome::new(ACTOR);
    let Address::Embedded(own) = home.address() else { unreachable!("a user's own") };
    let connected = |node: &ScriptedDaemon, answer: &dyn Fn(&mut TrainerConnection)| {
        let address = Address::Auto { node: node.socket(), own: own.clone() };
        std::thread::scope(|scope| {
            let trainer = scope.spawn(|| address.connect(&Deadline::after(PATIENCE)));
            answer(&mut node.accept());
            trainer.join().unwrap()
        })
    };
    let refusing = |kind| {
        move |peer: &mut TrainerConnection| {
            assert!(matches!(peer.request(), Request::Hello { .. }));
            let error = Error::new(kind, "not for you").at("uid", 7);
            peer.say(&Reply::Failed { run: None, error });
        }
    };
    let node = ScriptedDaemon::new();
    let connection = connected(&node, &refusing(ErrorKind::PermissionDenied)).unwrap();
    let [notice] = connection.notices.as_slice() else { panic!("{:?}", connection.notices) };
    for named in
        ["not for you", "uid=7", &format!("FOREBAY_DAEMON=unix:{}", node.socket().display())]
    {
        assert!(notice.contains(named), "{notice}");
    }
    assert_eq!(home.daemons(), [connection.daemon_pid]);
    let error = connected(&node, &refusing(ErrorKind::Unavailable)).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "any other failure is the answer");
    let served = connected(&node, &|peer| peer.greet()).unwrap();
    assert!(served.notices.is_empty(), "{:?}", served.notices);
    assert_eq!(served.daemon_pid, std::process::id());
}

/// A loader may be closed while it looks for another daemon, however long it could go on with that.
#[test]
fn loader_searching_for_a_daemon_closes_at_once() {
    // The next daemon does not greet, or does not take the job, or there is none.
    for answers in 0..3 {
        let daemon = ScriptedDaemon::new();
        let (loader, peer) = connected(&daemon);
        drop(peer);
        let mut second = daemon.accept();
        match answers {
            0 => {}
            1 => second.greet(),
            _ => {
                std::fs::remove_file(daemon.socket()).unwrap();
                drop(second);
                returned("the close", || drop(loader));
                continue;
            }
        }
        assert!(!matches!(second.request(), Request::Play { .. }));
        returned("the close", || drop(loader));
        assert!(second.ends());
    }
}

/// A time limit that no clock can be set to is refused by name, not by a panic.
#[test]
fn timeout_beyond_all_clocks_is_rejected() {
    for timeout in [Duration::MAX, TIMEOUT_MAX + Duration::from_secs(1)] {
        let error = open(ScriptedDaemon::new().address(), timeout).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.place("timeout").is_some(), "{error}");
    }
}
