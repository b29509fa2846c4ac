//! Epochs whose shards are leased: every rank reads as fast as it comes along, and each sample
//! comes once.
//!
//! One list of behaviours over both keepers: the daemon's memory, and a real Redis server.

use std::collections::{BTreeMap, BTreeSet};

use forebay_client::{Address, Batch, Loader, Next};
use forebay_error::{Error, ErrorKind};
use forebay_testkit::{Redis, pause};
use forebay_tests::{Daemon, Origin, UserHome, eventually, job, kill, loader, next};
use forebay_wire::leases::{LogPosition, Sharing};
use forebay_wire::message::{Open, Shuffle};

use crate::ACTOR;

const SIZES: std::ops::Range<usize> = 2_000..3_000;
const SHARDS: u64 = 12;
const SAMPLES: u64 = 20;
const BATCH: usize = 8;

/// A sample: its shard and key.
type Sample = (u32, String);

/// Storage of the queue.
enum Keeper {
    Daemon,
    Redis(Redis),
}

impl Keeper {
    fn url(&self) -> Option<String> {
        match self {
            Self::Daemon => None,
            Self::Redis(redis) => Some(redis.url()),
        }
    }
}

/// One rank: what it was handed, and what of that it is done with.
struct Rank {
    loader: Loader,
    /// Batches handed out in this run, of which the last may be under way.
    handed: u64,
    under_way: Vec<Sample>,
    done: Vec<Sample>,
}

impl Rank {
    fn open(address: Address, origin: &Origin, counted: bool, sharing: Sharing) -> Self {
        let loader = loader(address, open(origin, counted)).unwrap();
        loader.share(sharing).unwrap();
        Self { loader, handed: 0, under_way: Vec::new(), done: Vec::new() }
    }

    /// Asks for the next batch, which says that the one before is done; false at the end.
    fn step(&mut self) -> bool {
        self.loader.acknowledge(self.handed);
        self.done.append(&mut self.under_way);
        match next(&self.loader).unwrap() {
            Next::Batch(batch) => {
                self.handed = batch.index + 1;
                self.under_way = samples(&batch);
                assert!(self.under_way.len() <= BATCH && !self.under_way.is_empty());
                true
            }
            Next::End(end) => {
                assert_eq!(end.errors, []);
                false
            }
        }
    }

    /// The state, with what is under way done.
    fn place(&mut self) -> LogPosition {
        self.done.append(&mut self.under_way);
        self.loader.place::<Error>(self.handed, || Ok(())).unwrap()
    }

    /// The reason that there is no state.
    fn no_place(&self) -> Error {
        self.loader.place::<Error>(self.handed, || Ok(())).unwrap_err()
    }

    /// Steps to the end, in a thread of its own.
    fn finish(mut self) -> std::thread::JoinHandle<Vec<Sample>> {
        std::thread::spawn(move || {
            while self.step() {}
            self.done
        })
    }
}

fn samples(batch: &Batch) -> Vec<Sample> {
    batch.urls.iter().copied().zip(batch.keys.iter().cloned()).collect()
}

fn open(origin: &Origin, counted: bool) -> Open {
    let mut open = job(origin, Origin::urls(SHARDS));
    open.order.shuffle = Shuffle::Window;
    open.order.window = 4;
    open.prefetch = 2;
    open.patience_ms = u64::MAX;
    open.counts = counted.then(|| vec![SAMPLES; SHARDS as usize]);
    open
}

/// Rank `rank` of `world_size` in the first epoch of a job.
fn sharing(keeper: &Keeper, rank: u32, world_size: u32) -> Sharing {
    Sharing {
        group: "job".to_owned(),
        rank,
        world_size,
        is_spread: false,
        epoch: 0,
        take: 0,
        // As good as random: no test has as many.
        member: u64::from(rank) + 1,
        batch: 0,
        done: 0,
        from: None,
        log: None,
        acknowledged: Vec::new(),
        received: Vec::new(),
        number: 0,
        keeper: keeper.url(),
    }
}

/// The ranks of a job.
fn ranks(address: &Address, origin: &Origin, keeper: &Keeper, world: u32) -> Vec<Rank> {
    started(address, origin, keeper, "job", world, None)
}

/// The ranks of a job that its launcher names so, from a state.
fn started(
    address: &Address,
    origin: &Origin,
    keeper: &Keeper,
    group: &str,
    world: u32,
    from: Option<&LogPosition>,
) -> Vec<Rank> {
    let rank = |rank| {
        let (group, from) = (group.to_owned(), from.cloned());
        let sharing = Sharing { group, from, ..sharing(keeper, rank, world) };
        Rank::open(address.clone(), origin, true, sharing)
    };
    (0..world).map(rank).collect()
}

/// Asserts that every sample of the data set is in there once.
fn assert_once(done: &[Sample]) {
    let mut times: BTreeMap<&Sample, u32> = BTreeMap::new();
    for sample in done {
        *times.entry(sample).or_default() += 1;
    }
    let twice: Vec<_> = times.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "came more than once: {twice:?}");
    let all: BTreeSet<_> = (0..SHARDS as u32)
        .flat_map(|shard| (0..SAMPLES).map(move |i| (shard, format!("{i:06}"))))
        .collect();
    assert_eq!(times.into_keys().cloned().collect::<BTreeSet<_>>(), all);
}

fn set_up() -> (Origin, tempfile::TempDir, Daemon) {
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let disk = Daemon::disk();
    let daemon = Daemon::start(disk.path());
    (origin, disk, daemon)
}

/// A rank that takes one batch while the other takes all it can get reads one batch, and what it
/// holds.
fn a_slow_rank_reads_less(keeper: &Keeper) {
    let (origin, _disk, daemon) = set_up();
    let mut ranks = ranks(&daemon.address(), &origin, keeper, 2);
    let (mut fast, mut slow) = (ranks.remove(0), ranks.remove(0));
    assert!(slow.step());
    // It is through when only what the slow one holds is left: the whole set but a few shards.
    let held = 4 * SAMPLES;
    while (fast.done.len() as u64) < SHARDS * SAMPLES - held {
        assert!(fast.step());
    }
    let fast = fast.finish();
    while slow.step() {}
    let fast = fast.join().unwrap();
    assert!(fast.len() > slow.done.len(), "{} and {}", fast.len(), slow.done.len());
    assert_once(&[fast, slow.done].concat());
}

/// Samples held by a rank that ends are read by others; samples it finished are not.
fn what_a_rank_holds_that_dies_others_read(keeper: &Keeper) {
    let (origin, _disk, daemon) = set_up();
    let mut ranks = ranks(&daemon.address(), &origin, keeper, 3);
    let mut killing = ranks.remove(0);
    for _ in 0..4 {
        assert!(killing.step());
    }
    // Nobody will say that its fourth batch is done.
    let Rank { loader, done, under_way, .. } = killing;
    assert!(!under_way.is_empty());
    drop(loader);
    let others: Vec<_> = ranks.into_iter().map(Rank::finish).collect();
    let mut all = done;
    for other in others {
        all.extend(other.join().unwrap());
    }
    assert_once(&all);
}

/// A state taken while all stand still is good for any world: nothing is lost of it, and nothing
/// comes again.
fn a_state_resumes_in_a_world_of_another_size(keeper: &Keeper) {
    let (origin, _disk, daemon) = set_up();
    let mut world = 3;
    let mut from: Option<LogPosition> = None;
    let mut all = Vec::new();
    for (round, next) in [1, 4, 2].into_iter().enumerate() {
        let group = format!("start-{round}");
        let mut ranks = started(&daemon.address(), &origin, keeper, &group, world, from.as_ref());
        // As many as one shard gives: what the others hold is not waited for.
        for _ in 0..SAMPLES as usize / BATCH {
            for rank in &mut ranks {
                assert!(rank.step());
            }
        }
        // Each says what it is done with; what the last of them is told has it all.
        from = ranks.iter_mut().map(Rank::place).last();
        all.extend(ranks.into_iter().flat_map(|rank| rank.done));
        world = next;
    }
    let rest = started(&daemon.address(), &origin, keeper, "last", world, from.as_ref());
    for rank in rest.into_iter().map(Rank::finish).collect::<Vec<_>>() {
        all.extend(rank.join().unwrap());
    }
    assert_once(&all);
}

/// A run that is begun anew in the same epoch goes on after what was handed out.
fn a_run_begun_anew_goes_on_in_its_log(keeper: &Keeper) {
    let (origin, _disk, daemon) = set_up();
    let sharing = sharing(keeper, 0, 1);
    // Not counted beforehand: shards are counted when they are here.
    let mut rank = Rank::open(daemon.address(), &origin, false, sharing.clone());
    for member in 2..5 {
        for _ in 0..3 {
            assert!(rank.step());
        }
        rank.loader.acknowledge(rank.handed);
        rank.done.append(&mut rank.under_way);
        rank.loader.share(Sharing { member, ..sharing.clone() }).unwrap();
        rank.handed = 0;
    }
    while rank.step() {}
    assert_once(&rank.done);
}

/// Ranks that read different things, or go on from different places, hear of it.
fn ranks_that_do_not_agree_are_told(keeper: &Keeper) {
    let (origin, _disk, daemon) = set_up();
    let one = Rank::open(daemon.address(), &origin, true, sharing(keeper, 0, 2));
    let place = one.loader.place::<Error>(0, || Ok(())).unwrap();
    let other = Sharing { from: Some(place), ..sharing(keeper, 1, 2) };
    let other = Rank::open(daemon.address(), &origin, true, other);
    let error = next(&other.loader).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.place("from").is_some(), "{error}");
    assert_eq!(other.no_place(), error);
}

macro_rules! over_both_keepers {
    ($($behaviour:ident),* $(,)?) => {
        mod daemon {
            $(#[test] fn $behaviour() { super::$behaviour(&super::Keeper::Daemon); })*
        }
        mod redis {
            $(#[test] fn $behaviour() {
                super::$behaviour(&super::Keeper::Redis(super::Redis::start().unwrap()));
            })*
        }
    };
}

over_both_keepers!(
    a_slow_rank_reads_less,
    what_a_rank_holds_that_dies_others_read,
    a_state_resumes_in_a_world_of_another_size,
    a_run_begun_anew_goes_on_in_its_log,
    ranks_that_do_not_agree_are_told,
);

/// Bears promise 7 for leased shards: the daemon is killed again and again while three ranks read,
/// and nothing is lost or comes twice.
fn killed_daemons_lose_no_sample(keeper: &Keeper) {
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let home = UserHome::new(ACTOR);
    let mut ranks = ranks(&home.address(), &origin, keeper, 3);
    let mut killed = BTreeSet::new();
    for round in 0..3 {
        for _ in 0..=round {
            for rank in &mut ranks {
                assert!(rank.step());
            }
        }
        if let Some(pid) = ranks[round].loader.stats().daemon_pid {
            kill(pid);
            killed.insert(pid);
        }
    }
    assert!(!killed.is_empty());
    let mut all = Vec::new();
    for rank in ranks.into_iter().map(Rank::finish).collect::<Vec<_>>() {
        all.extend(rank.join().unwrap());
    }
    assert_once(&all);
}

/// A daemon that never served a run answers for its state all the same.
#[test]
fn ended_run_has_no_state_at_the_next_daemon() {
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let home = UserHome::new(ACTOR);
    let mut rank = ranks(&home.address(), &origin, &Keeper::Daemon, 1).remove(0);
    while rank.step() {}
    let first = rank.loader.stats().daemon_pid.unwrap();
    kill(first);
    eventually("another daemon is there", || {
        rank.loader.stats().daemon_pid.is_some_and(|pid| pid != first)
    });
    assert_eq!(rank.no_place().kind(), ErrorKind::Closed);
}

/// Neither a daemon that is gone, nor one that ends before it answers, knows a place any more.
#[test]
fn ended_run_has_no_state_once_its_daemon_is_lost() {
    for answers in [true, false] {
        let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
        let home = UserHome::new(ACTOR);
        let mut rank = ranks(&home.address(), &origin, &Keeper::Daemon, 1).remove(0);
        while rank.step() {}
        let pid = rank.loader.stats().daemon_pid.unwrap();
        let error = std::thread::scope(|scope| {
            if answers {
                kill(pid);
                return rank.no_place();
            }
            pause(pid).unwrap();
            let asked = scope.spawn(|| rank.no_place());
            // Asked, most likely, and never answered.
            std::thread::yield_now();
            kill(pid);
            asked.join().unwrap()
        });
        assert_eq!(error.kind(), ErrorKind::Closed);
    }
}

#[test]
fn killed_daemons_lose_no_sample_with_their_own_queue() {
    killed_daemons_lose_no_sample(&Keeper::Daemon);
}

#[test]
fn killed_daemons_lose_no_sample_with_a_queue_in_redis() {
    killed_daemons_lose_no_sample(&Keeper::Redis(Redis::start().unwrap()));
}

/// Two nodes share an epoch through Redis; one of them dies, and with it nobody is left to give
/// back what its rank held: it comes back when nobody believes in it any more.
#[test]
fn assignments_of_a_dead_node_move_to_another() {
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let keeper = Keeper::Redis(Redis::start().unwrap());
    let disk = Daemon::disk();
    let daemon = Daemon::start(disk.path());
    let home = UserHome::new(ACTOR);
    let open = open(&origin, true);
    let mut here = Rank::open(daemon.address(), &origin, true, sharing(&keeper, 0, 2));
    let there = loader(home.address(), open).unwrap();
    there.share(sharing(&keeper, 1, 2)).unwrap();
    let Next::Batch(batch) = next(&there).unwrap() else { panic!("there is enough for both") };
    assert!(!samples(&batch).is_empty());
    assert!(here.step());
    // Its trainer never comes back, and its daemon cannot say so.
    let pid = there.stats().daemon_pid.unwrap();
    pause(pid).unwrap();
    while here.step() {}
    assert_once(&here.done);
    kill(pid);
    drop(there);
}

/// A job that leases no shards is served as ever beside one that does.
#[test]
fn job_without_assignments_is_unaffected() {
    let (origin, _disk, daemon) = set_up();
    let rank = Rank::open(daemon.address(), &origin, true, sharing(&Keeper::Daemon, 0, 1)).finish();
    let open = open(&origin, true);
    let epoch = forebay_tests::play(&loader(daemon.address(), open).unwrap(), 0, 0).unwrap();
    epoch.assert_whole(SHARDS as u32, SAMPLES, &SIZES);
    assert_once(&rank.join().unwrap());
}

/// Bears promise 8: a node's daemon goes only where its configuration says.
#[test]
fn node_ignores_servers_that_jobs_name() {
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let disk = Daemon::disk();
    let mut config = Daemon::config(disk.path(), 1 << 30);
    config.leases.named_by_jobs = false;
    let daemon = Daemon::try_start(config).unwrap();
    let redis = Keeper::Redis(Redis::start().unwrap());
    let rank = Rank::open(daemon.address(), &origin, true, sharing(&redis, 0, 1));
    let error = next(&rank.loader).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert!(error.to_string().contains("[leases] redis"), "{error}");
    assert_eq!(rank.no_place(), error);
}

/// A daemon's memory is no queue for ranks that it does not see.
#[test]
fn ranks_on_several_nodes_need_a_server() {
    let (origin, _disk, daemon) = set_up();
    let sharing = Sharing { is_spread: true, ..sharing(&Keeper::Daemon, 0, 2) };
    let rank = Rank::open(daemon.address(), &origin, true, sharing);
    let error = next(&rank.loader).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("FOREBAY_LEASES"), "{error}");
    assert_eq!(rank.no_place(), error);
}

/// A server that is not there is named, and what to do about it.
#[test]
fn unreachable_server_is_named() {
    let (origin, _disk, daemon) = set_up();
    let nobody = "redis://user:secret@127.0.0.1:9";
    let sharing = Sharing { keeper: Some(nobody.into()), ..sharing(&Keeper::Daemon, 0, 1) };
    let rank = Rank::open(daemon.address(), &origin, true, sharing);
    let error = next(&rank.loader).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let text = error.to_string();
    assert!(text.contains("127.0.0.1:9") && !text.contains("secret"), "{text}");
    assert_eq!(rank.no_place(), error);
}
