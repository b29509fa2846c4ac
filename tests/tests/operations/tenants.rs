//! Tenants: what each brings in is charged to it, and bounded for it alone.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use forebay_config::settings::{NodeTenant, NodeTier, TenantLimits};
use forebay_error::{Error, ErrorKind};
use forebay_shard::{HEAD_BYTES, Head, Partial};
use forebay_source::Options;
use forebay_store::{Class, Dataset, Evict, Holding, Mode, ShardHandle, Store, Tenant, Urgency};
use forebay_testkit::is_root;
use forebay_tests::{
    BareStore, BareStoreConfig, Daemon, Origin, UserHome, cached_file, daemon_status, epoch,
    eventually, job, loader, next, to_format_without_tenants,
};
use forebay_wire::message::Begin;
use rustix::process::Gid;
use rustix::thread::set_thread_groups;
use tempfile::TempDir;

use crate::ACTOR;

const SIZES: std::ops::Range<usize> = 30_000..30_001;
const SAMPLES: u64 = 20;

/// Groups that no user database is likely to know.
const VISION: u32 = 84_211;
const SPEECH: u32 = 84_212;

/// Ten shards of one size, as files.
struct Files {
    folder: TempDir,
    shard_bytes: u64,
}

impl Files {
    fn new() -> Self {
        let origin = Origin::with_shards(10, SAMPLES, &SIZES);
        let folder = Daemon::disk();
        let mut shard_bytes = 0;
        for n in 0..10 {
            let bytes = origin.bytes(&format!("{n}.tar"));
            shard_bytes = bytes.len() as u64;
            fs::write(folder.path().join(format!("{n}.tar")), bytes).unwrap();
        }
        Self { folder, shard_bytes }
    }

    fn url(&self, n: u64) -> String {
        self.folder.path().join(format!("{n}.tar")).to_str().unwrap().to_owned()
    }
}

/// A store with room for so many shards.
struct Bench {
    files: Files,
    bare: BareStore,
    config: BareStoreConfig,
    _disk: TempDir,
}

fn tenant(name: &str, min_bytes: u64, max_bytes: Option<u64>) -> Tenant {
    Tenant { name: name.to_owned(), min_bytes, max_bytes }
}

fn rule(matches: &str) -> Dataset {
    Dataset::new(matches, matches, Evict::Lru).unwrap()
}

impl Bench {
    fn new(shards: u64, tenants: impl FnOnce(u64) -> Vec<Tenant>) -> Self {
        Self::with(shards, |bytes| (tenants(bytes), Vec::new()))
    }

    fn with(shards: u64, rules: impl FnOnce(u64) -> (Vec<Tenant>, Vec<Dataset>)) -> Self {
        let (files, disk) = (Files::new(), Daemon::disk());
        let (tenants, datasets) = rules(files.shard_bytes);
        let plain = BareStoreConfig::new(disk.path().join("cache"), shards * files.shard_bytes);
        let config = BareStoreConfig { tenants, datasets, ..plain };
        Self { files, bare: config.clone().open(), config, _disk: disk }
    }

    /// The same after a restart, and what is done to its rules and its shards in between.
    fn restarted(self, between: impl FnOnce(&mut BareStoreConfig, &Path)) -> Self {
        let Self { files, bare, mut config, _disk } = self;
        // Not `BareStore::end`: tests beside this one lease of the same frames.
        let BareStore { runtime, store, .. } = bare;
        runtime.block_on(store.close());
        drop(store);
        drop(runtime);
        let shards = config.cache.join("shards");
        between(&mut config, &shards);
        Self { files, bare: config.clone().open(), config, _disk }
    }

    /// Reads these shards for a tenant, one after the other, and waits until nothing is under way.
    fn read(&self, tenant: &str, shards: impl IntoIterator<Item = u64>) -> Result<(), Error> {
        for n in shards {
            self.bare.read_all_for(Some(tenant), &self.files.url(n))?;
            self.settle();
        }
        Ok(())
    }

    fn settle(&self) {
        eventually("nothing is under way", || {
            let counters = self.bare.store.counters();
            counters.misses == counters.ended()
        });
        let tenants = self.bare.store.holdings().tenants;
        let charged: u64 = tenants.iter().map(|of| of.used_bytes).sum();
        assert_eq!(charged, self.bare.store.counters().used_bytes, "each byte is charged once");
    }

    /// Returns the shards on the tier.
    fn resting(&self) -> Vec<u64> {
        let shards = self.config.cache.join("shards");
        let rests = |n: &u64| cached_file(&shards, &format!("-{n}.tar")).is_some();
        (0..10).filter(rests).collect()
    }

    /// Returns the number of shards charged to a tenant.
    fn charged(&self, tenant: &str) -> usize {
        let holdings = self.bare.store.holdings();
        let of = named(&holdings.tenants, tenant);
        assert_eq!(of.used_bytes, of.shards as u64 * self.files.shard_bytes);
        of.shards
    }

    fn fills(&self) -> u64 {
        self.bare.store.counters().fills
    }
}

fn named(holdings: &[Holding], name: &str) -> Holding {
    holdings.iter().find(|of| of.name == name).unwrap().clone()
}

/// Bears promise 3 for tenants: at its max a tenant gives up its own, though others' were used
/// longer ago, and though the tier has room.
#[test]
fn tenant_at_its_max_evicts_its_own_shards_only() {
    let bench = Bench::with(6, |bytes| {
        let tenants = vec![tenant("a", 0, Some(2 * bytes)), tenant("b", 0, None)];
        (tenants, vec![rule("**/2.tar")])
    });
    bench.read("b", [0, 1]).unwrap();
    bench.read("a", [2, 3]).unwrap();
    bench.read("nobody's", [5]).unwrap();
    assert_eq!(bench.resting(), [0, 1, 2, 3, 5]);
    bench.read("a", [4]).unwrap();
    assert_eq!(bench.resting().len(), 5, "of whatever data set");
    bench.read("a", [6, 7]).unwrap();
    assert_eq!(bench.resting(), [0, 1, 5, 6, 7]);
    assert_eq!((bench.charged("a"), bench.charged("b"), bench.charged("(rest)")), (2, 2, 1));
    bench.read("b", [8, 9]).unwrap();
    assert_eq!(bench.charged("b") + bench.charged("a") + bench.charged("(rest)"), 6);
}

#[test]
fn shard_above_its_tenants_max_is_rejected() {
    let bench = Bench::new(4, |bytes| vec![tenant("a", 0, Some(bytes - 1))]);
    let error = bench.read("a", [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert_eq!(error.place("tenant"), Some("a"));
    assert_eq!(error.place("quota"), Some((bench.files.shard_bytes - 1).to_string().as_str()));
    assert_eq!(error.place("bytes"), Some(bench.files.shard_bytes.to_string().as_str()));
    assert!(error.advice().unwrap().contains("quota.max"), "{error}");
    bench.read("b", [0]).unwrap();
    bench.read("a", [0]).unwrap();
    assert_eq!((bench.charged("a"), bench.charged("(rest)")), (0, 1), "what is there is a hit");
}

/// Bears promise 3: whatever the others bring in, a tenant keeps its min, and no more than that.
#[test]
fn other_tenants_do_not_evict_below_a_min() {
    let bench = Bench::new(4, |bytes| vec![tenant("a", 2 * bytes, None), tenant("b", 0, None)]);
    bench.read("a", [0, 1, 2]).unwrap();
    bench.read("b", [3, 4, 5]).unwrap();
    bench.read("nobody's", [6, 7, 8]).unwrap();
    let own: Vec<_> = bench.resting().into_iter().filter(|n| *n < 3).collect();
    assert_eq!(own, [1, 2], "{:?}", bench.resting());
    assert_eq!(bench.charged("a"), 2);
    bench.read("a", [0]).unwrap();
    assert_eq!(bench.charged("a"), 3, "others' go before its own, which are fewer");
}

/// On a tier that others filled, a policy that admits only into free room still gets a tenant its
/// min.
#[test]
fn tenant_min_is_filled_even_by_static() {
    let bench = Bench::with(4, |bytes| {
        let first = Dataset::new("first", "**", Evict::Static).unwrap();
        (vec![tenant("a", 2 * bytes, None), tenant("b", 0, None)], vec![first])
    });
    bench.read("b", [6, 7, 8, 9]).unwrap();
    bench.read("a", [0, 1, 2]).unwrap();
    bench.read("b", [5, 4]).unwrap();
    let own: Vec<_> = bench.resting().into_iter().filter(|n| *n < 3).collect();
    assert_eq!(own, [0, 1], "{:?}", bench.resting());
}

/// A data set's minimum and a tenant's hold at once; a newcomer of the one does not heed the one.
#[test]
fn minima_of_data_sets_and_tenants_hold_together() {
    let bench = Bench::with(4, |bytes| {
        let set = Dataset { min_bytes: bytes, ..rule("**/[01].tar") };
        (vec![tenant("a", bytes, None)], vec![set])
    });
    bench.read("a", [0]).unwrap();
    bench.read("b", [1]).unwrap();
    bench.read("a", [2]).unwrap();
    bench.read("b", [3, 4, 5, 6, 7]).unwrap();
    let rest = bench.resting();
    assert!(rest.contains(&0) || rest.contains(&1), "the data set's: {rest:?}");
    assert!(rest.contains(&0) || rest.contains(&2), "the tenant's: {rest:?}");
    assert!(bench.charged("a") >= 1);
}

/// A shard used by many is charged to the tenant that fetched it, until it is evicted.
#[test]
fn hit_by_another_tenant_does_not_move_the_charge() {
    let bench =
        Bench::new(6, |bytes| vec![tenant("a", 0, Some(bytes)), tenant("b", 0, Some(bytes))]);
    bench.read("a", [0]).unwrap();
    bench.read("b", [1, 0, 0, 0]).unwrap();
    assert_eq!(bench.resting(), [0, 1], "a hit takes nothing of b's");
    assert_eq!((bench.charged("a"), bench.charged("b")), (1, 1));
    bench.read("a", [2]).unwrap();
    assert_eq!(bench.resting(), [1, 2]);
    bench.read("b", [0]).unwrap();
    assert_eq!(bench.resting(), [0, 2], "b brought it in now");
}

/// Where the limits of data set and tenant are both exceeded, one shard of both is evicted, not one
/// each.
#[test]
fn shard_counting_towards_both_exceeded_limits_is_evicted() {
    let bench = Bench::with(8, |bytes| {
        let set = Dataset { max_bytes: Some(2 * bytes), ..rule("**/[0123].tar") };
        (vec![tenant("a", 0, Some(2 * bytes))], vec![set])
    });
    bench.read("b", [0]).unwrap();
    bench.read("a", [4, 1]).unwrap();
    bench.read("a", [2]).unwrap();
    assert_eq!(bench.resting(), [0, 2, 4]);
    bench.read("b", [3]).unwrap();
    assert_eq!(bench.resting().len(), 3, "within the data set anybody's goes");
}

/// Refused at once where nothing of its own may go, naming whose limit it is.
#[test]
fn tenant_max_full_of_pins_rejects_at_once() {
    let bench = Bench::with(6, |bytes| {
        let pinned = Dataset { pin: true, ..rule("**/[01].tar") };
        (vec![tenant("a", 0, Some(2 * bytes))], vec![pinned])
    });
    bench.read("b", [5]).unwrap();
    bench.read("a", [0, 1]).unwrap();
    let error = bench.read("a", [2]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert_eq!(error.place("tenant"), Some("a"));
    assert!(error.place("bytes").is_some(), "larger than what is left of its quota: {error}");
    assert_eq!(bench.resting(), [0, 1, 5]);
}

/// One attempt serves all who wait for a shard, but the refusal of one tenant is no other's.
#[test]
fn tenant_error_does_not_reach_other_tenants() {
    let bench = Bench::new(9, |bytes| vec![tenant("a", 0, Some(bytes - 1)), tenant("b", 0, None)]);
    let of = |name: &str| bench.bare.store.for_tenant(Some(name));
    let (a, b) = (of("a"), of("b"));
    for n in 0..8 {
        let url = bench.files.url(n);
        let options = Options::default();
        let (a, b) = bench.bare.runtime.block_on(async {
            let first = a.shard(&url, &options, Urgency::Needed);
            tokio::join!(first, b.shard(&url, &options, Urgency::Needed))
        });
        b.unwrap();
        // It may have been a hit.
        let kind = a.err().map(|error| error.kind());
        assert!(matches!(kind, None | Some(ErrorKind::Full)), "{kind:?}");
    }
    bench.settle();
    assert_eq!((bench.charged("a"), bench.charged("b")), (0, 8));
}

/// Bears promises 3 and 4: a restart reads from the sidecars' heads who is charged; a tenant that
/// is configured no more counts as the rest.
#[test]
fn restart_keeps_the_charge() {
    let bench = Bench::new(8, |bytes| vec![tenant("a", 0, Some(3 * bytes)), tenant("b", 0, None)]);
    bench.read("a", [0, 1, 2]).unwrap();
    bench.read("b", [3, 4]).unwrap();
    let bench = bench.restarted(|_, _| ());
    assert_eq!((bench.charged("a"), bench.charged("b")), (3, 2));
    bench.read("a", [5]).unwrap();
    assert_eq!(bench.resting(), [1, 2, 3, 4, 5], "its max holds as before");
    let bench = bench.restarted(|config, _| config.tenants.truncate(1));
    assert_eq!((bench.charged("a"), bench.charged("(rest)")), (3, 2));
    let max_bytes = Some(2 * bench.files.shard_bytes);
    let bench = bench.restarted(|config, _| {
        config.tenants = vec![tenant("b", 0, None), tenant("a", 0, max_bytes)];
    });
    let used = |name: &str| named(&bench.bare.store.holdings().tenants, name).used_bytes;
    eventually("what is above a max that was lowered goes", || Some(used("a")) == max_bytes);
    assert_eq!((bench.charged("a"), bench.charged("b")), (2, 2));
    bench.read("a", [6]).unwrap();
    assert_eq!(bench.charged("a"), 2);
}

/// Bears promise 4: a part of a shard stays charged to whoever began it, over a restart, and though
/// another ends it.
#[test]
fn partial_shard_keeps_the_charge() {
    let bench = Bench::new(4, |_| vec![tenant("a", 0, None), tenant("b", 0, None)]);
    bench.read("a", [0]).unwrap();
    let bench = bench.restarted(|_, shards| {
        let sidecar = cached_file(shards, "-0.tar.idx").unwrap();
        let Head { origin, tenant, len, .. } = head(&sidecar);
        let blocks = vec![None; usize::try_from(len.div_ceil(4 << 20)).unwrap()];
        let record = Partial { origin, tenant, len, blocks }.encode().unwrap();
        fs::write(sidecar.with_extension("part"), record).unwrap();
        fs::remove_file(sidecar).unwrap();
    });
    assert_eq!((bench.charged("a"), bench.charged("b")), (1, 0));
    bench.read("b", [0]).unwrap();
    assert_eq!(bench.fills(), 1, "it was no hit");
    assert_eq!((bench.charged("a"), bench.charged("b")), (1, 0));
    let sidecar = cached_file(&bench.config.cache.join("shards"), "-0.tar.idx").unwrap();
    assert_eq!(head(&sidecar).tenant.as_deref(), Some("a"), "the disk says so, too");
}

fn head(sidecar: &Path) -> Head {
    Head::decode(&fs::read(sidecar).unwrap()[..HEAD_BYTES]).unwrap()
}

/// A shard of a release that knew no tenants is served; it is the rest's.
#[test]
fn sidecar_without_a_tenant_is_served() {
    let bench = Bench::new(4, |_| vec![tenant("a", 0, None)]);
    bench.read("nobody's", [0]).unwrap();
    let bench = bench.restarted(|_, shards| {
        let sidecar = cached_file(shards, "-0.tar.idx").unwrap();
        to_format_without_tenants(&sidecar);
    });
    bench.read("a", [0]).unwrap();
    assert_eq!((bench.fills(), bench.bare.store.counters().hits), (0, 1));
    assert_eq!((bench.charged("a"), bench.charged("(rest)")), (0, 1));
}

/// A node of two disks, and a store's calls on it.
struct Node {
    files: Files,
    daemon: Daemon,
    runtime: tokio::runtime::Runtime,
    disk: TempDir,
}

impl Node {
    fn new(rules: impl FnOnce(u64) -> (Vec<Tenant>, Vec<Dataset>)) -> Self {
        let (files, disk) = (Files::new(), Daemon::disk());
        let tier = |name: &str, class| {
            NodeTier::at(name, class, disk.path().join(name), 5 * files.shard_bytes)
        };
        let (tenants, datasets) = rules(files.shard_bytes);
        let mut config = Daemon::config(disk.path(), 1);
        config.tiers = vec![tier("nvme", Class::Nvme), tier("hdd", Class::Hdd)];
        config.look_after = Duration::from_millis(50);
        let (tenants, limits) =
            (tenants.into_iter().zip([VISION, SPEECH]), TenantLimits::default());
        config.tenants =
            tenants.map(|(rule, gid)| NodeTenant { rule, groups: vec![gid], limits }).collect();
        config.datasets = datasets;
        let daemon = Daemon::try_start(config).unwrap();
        Self { files, daemon, runtime: tokio::runtime::Runtime::new().unwrap(), disk }
    }

    fn store(&self) -> &Store {
        self.daemon.node().store()
    }

    fn read(&self, tenant: &str, shards: impl IntoIterator<Item = u64>) -> Result<(), Error> {
        let store = self.store().for_tenant(Some(tenant));
        for n in shards {
            let url = self.files.url(n);
            let lease: ShardHandle = self.runtime.block_on(async {
                let lease = store.shard(&url, &Options::default(), Urgency::Needed).await?;
                lease.wait(u64::MAX).await?;
                Ok::<_, Error>(lease)
            })?;
            drop(lease);
            eventually("nothing is under way", || {
                let counters = self.store().counters();
                counters.misses == counters.ended()
            });
        }
        Ok(())
    }

    fn tenant(&self, name: &str) -> Holding {
        named(&self.store().holdings().tenants, name)
    }

    fn sidecar(&self, tier: &str, n: u64) -> Option<PathBuf> {
        cached_file(&self.disk.path().join(tier).join("shards"), &format!("-{n}.tar.idx"))
    }
}

/// A shard that moves takes its charge with it, in the table and on the disk.
#[test]
fn move_keeps_the_charge() {
    let node = Node::new(|_| (vec![tenant("a", 0, None), tenant("b", 0, None)], Vec::new()));
    node.read("a", [0]).unwrap();
    node.read("b", [1]).unwrap();
    assert!(node.sidecar("nvme", 0).is_some());
    node.runtime.block_on(node.store().set_mode("nvme", Mode::Draining)).unwrap();
    eventually("both moved", || {
        (0..2).all(|n| node.sidecar("nvme", n).is_none() && node.sidecar("hdd", n).is_some())
    });
    let bytes = node.files.shard_bytes;
    eventually("what left is given back", || node.store().counters().used_bytes == 2 * bytes);
    for (n, name) in [(0, "a"), (1, "b")] {
        let of = node.tenant(name);
        assert_eq!((of.shards, of.used_bytes), (1, bytes), "{name}");
        assert_eq!(head(&node.sidecar("hdd", n).unwrap()).tenant.as_deref(), Some(name));
    }
}

/// A limit holds over all tiers: what a tenant has on one makes room for what may only lie on
/// another.
#[test]
fn tenant_shards_on_another_tier_make_room() {
    let node = Node::new(|bytes| {
        let on = |tier: &str, matches| Dataset { tiers: vec![tier.to_owned()], ..rule(matches) };
        let tenants = vec![tenant("a", 0, Some(2 * bytes)), tenant("b", 0, None)];
        (tenants, vec![on("hdd", "**/[0123].tar"), on("nvme", "**/[4567].tar")])
    });
    node.read("b", [3]).unwrap();
    node.read("a", [0, 1]).unwrap();
    node.read("a", [4]).unwrap();
    let there = |tier, n| node.sidecar(tier, n).is_some();
    assert!(there("nvme", 4) && there("hdd", 1) && !there("hdd", 0), "the oldest of its own went");
    assert!(there("hdd", 3), "another's stays");
    assert_eq!(node.tenant("a").shards, 2);
}

/// Runs `work` as a process of these groups would: the kernel notes a thread's, and what it starts
/// inherits them.
fn as_member<T: Send>(groups: &[u32], work: impl FnOnce() -> T + Send) -> T {
    let groups: Vec<_> = groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
    std::thread::scope(|scope| {
        let member = scope.spawn(move || {
            set_thread_groups(&groups).unwrap();
            work()
        });
        member.join().unwrap()
    })
}

fn may_choose_groups() -> bool {
    is_root("jobs are of different groups")
}

/// Bears promises 3 and 8: whose a job is, the kernel says; what it brings in is charged, `forebay
/// index` included, and `status` tells.
#[test]
fn job_belongs_to_the_tenant_of_its_groups() {
    if !may_choose_groups() {
        return;
    }
    let origin = Origin::with_shards(6, SAMPLES, &SIZES);
    let bytes = origin.bytes("0.tar").len() as u64;
    let disk = Daemon::disk();
    let mut config = Daemon::config(disk.path(), 1 << 30);
    let limits = TenantLimits::default();
    let of = |name, gid, max| NodeTenant {
        rule: tenant(name, 0, max),
        groups: vec![gid, 84_299],
        limits,
    };
    config.tenants = vec![of("vision", VISION, Some(2 * bytes)), of("speech", SPEECH, None)];
    let daemon = Daemon::try_start(config).unwrap();
    let play = |n: u64| {
        let open = job(&origin, vec![Origin::url(&format!("{n}.tar"))]);
        epoch(daemon.address(), open).unwrap();
    };
    as_member(&[1, VISION, 3], || {
        let open = job(&origin, vec![Origin::url("0.tar")]);
        let loader = loader(daemon.address(), open).unwrap();
        loader.start(Begin::at(0, 0)).unwrap();
        drop(next(&loader).unwrap());
        assert_eq!(daemon.status()["jobs"][0]["tenant"], "vision");
        // Whoever asks sees what its own groups do not change.
        let told = UserHome::new(ACTOR)
            .forebay(&["status", "--daemon", &address(&daemon)])
            .output()
            .unwrap();
        let told = String::from_utf8(told.stdout).unwrap();
        // Its own line, and the job's.
        assert!(told.lines().filter(|line| line.contains("vision")).count() >= 2, "{told}");
    });
    as_member(&[SPEECH, VISION], || play(1));
    as_member(&[SPEECH], || play(2));
    as_member(&[], || play(3));
    let shards = |name: &str| {
        let holdings = daemon.node().store().holdings();
        named(&holdings.tenants, name).shards
    };
    let settled = |all| {
        eventually("all is there", || daemon.node().store().counters().fills == all);
    };
    settled(4);
    assert_eq!((shards("vision"), shards("speech"), shards("(rest)")), (2, 1, 1));
    assert!(daemon.status()["jobs"].as_array().unwrap().iter().all(|job| job["tenant"].is_null()));
    // A process of its own, as a batch system starts it.
    let groups = format!("--groups={VISION}");
    let manifest = disk.path().join("manifest.json");
    let mut index = Command::new("setpriv");
    index.args([&groups, ACTOR, "index", &Origin::url("4.tar"), "--daemon", &address(&daemon)]);
    index.arg("-o").arg(&manifest).envs(origin.environment());
    let done = index.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    settled(5);
    assert_eq!((shards("vision"), shards("speech"), shards("(rest)")), (2, 1, 1));
    let status = daemon.status();
    assert_eq!(status["cache"]["tenants"][0]["name"], "vision");
    assert_eq!(status["cache"]["tenants"][0]["used_bytes"], 2 * bytes);
    assert_eq!(status["cache"]["tenants"][0]["max_bytes"], 2 * bytes);
}

fn address(daemon: &Daemon) -> String {
    format!("unix:{}", daemon.socket().display())
}

/// A process, killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The same as an admin sets it up: a file, a daemon, and processes of other groups.
#[test]
fn node_daemon_reads_tenants_from_its_file() {
    if !may_choose_groups() {
        return;
    }
    let (files, disk) = (Files::new(), Daemon::disk());
    let at = |name: &str| disk.path().join(name);
    let socket = at("d.sock");
    let text = format!(
        "[daemon]\nsocket = {socket:?}\nmemory = '256MiB'\n\
         [[tier]]\nname = 'nvme'\npath = {:?}\ncapacity = '1GiB'\n\
         [[tenant]]\nname = 'vision'\ngroups = ['daemon', {VISION}]\n\
         quota = {{ max = '{}B' }}\n",
        at("cache"),
        files.shard_bytes,
    );
    fs::write(at("forebay.toml"), text).unwrap();
    let mut daemon = Command::new(ACTOR);
    daemon.arg("daemon").arg("--config").arg(at("forebay.toml")).env("FOREBAY_LOG", "warn");
    let _daemon = Running(daemon.spawn().unwrap());
    eventually("it answers", || daemon_status(&socket).is_ok());
    let index = |group: &str, n: u64| {
        let mut index = Command::new("setpriv");
        let (daemon, out) = (format!("unix:{}", socket.display()), at("manifest.json"));
        index.args([&format!("--groups={group}"), ACTOR, "index", &files.url(n)]);
        let done = index.args(["--daemon", &daemon, "-o"]).arg(out).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    for n in 0..3 {
        index(&format!("7,{VISION}"), n);
    }
    index("7", 3);
    eventually("all is there", || {
        let status = daemon_status(&socket).unwrap();
        let tenants = &status["cache"]["tenants"];
        status["cache"]["fills"] == 4
            && tenants[0]["name"] == "vision"
            && tenants[0]["shards"] == 1
            && tenants[1]["shards"] == 1
    });
}

/// Promises to tenants that could not be kept are refused before anything starts.
#[test]
fn tenant_minima_beyond_the_capacity_are_rejected() {
    let disk = Daemon::disk();
    let mut config = Daemon::config(disk.path(), 1 << 20);
    let limits = TenantLimits::default();
    let half = |name, gid| NodeTenant {
        rule: tenant(name, (1 << 19) + 1, None),
        groups: vec![gid],
        limits,
    };
    config.tenants = vec![half("a", VISION), half("b", SPEECH)];
    let error = Daemon::try_start(config).err().expect("refused");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let promised = (1_u64 << 20) + 2;
    assert_eq!(error.place("promised"), Some(&*promised.to_string()), "{error}");
    assert_eq!(error.place("tiers"), None, "by tenants, not by data sets: {error}");
}
