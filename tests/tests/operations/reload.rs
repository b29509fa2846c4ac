//! A configuration that changes while jobs run: what they feel of it, what is refused, what is
//! told.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::thread;

use forebay_client::{Address, Next};
use forebay_error::ErrorKind;
use forebay_source::Options;
use forebay_store::{Cache, CheckpointRule, Class, Dataset, Evict, Holdings, Tenant, Urgency};
use forebay_tests::{
    BareStore, BareStoreConfig, BareStoreTier, Daemon, Ended, Epoch, Installation, Installed,
    Origin, PATIENCE, UserHome, cached_file, daemon_status, epoch, eventually, job, loader, next,
    play, run,
};
use forebay_wire::message::Begin;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::ACTOR;

const SIZES: std::ops::Range<usize> = 30_000..30_001;
const SAMPLES: u64 = 20;
const SHARDS: u64 = 10;

/// Enough for frames, and slabs of small jobs.
const MEMORY: u64 = 512 << 20;

/// A daemon as an admin runs it, and an origin of ten shards of one size.
struct Bench {
    origin: Origin,
    installation: Installation,
    daemon: Installed,
    shard_bytes: u64,
    disk: TempDir,
}

impl Bench {
    /// With room for so many shards, and what else `rest` says.
    fn new(shards: u64, rest: &str) -> Self {
        Self::with(shards, rest, |installation| installation)
    }

    fn with(shards: u64, rest: &str, more: impl FnOnce(Installation) -> Installation) -> Self {
        let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
        let shard_bytes = origin.bytes("0.tar").len() as u64;
        let disk = Daemon::disk();
        let installation = Installation::new(ACTOR, disk.path(), MEMORY, "");
        installation.configure(&configuration(&origin, disk.path(), shards * shard_bytes, rest));
        let installation = more(installation);
        let daemon = installation.start();
        Self { origin, installation, daemon, shard_bytes, disk }
    }

    /// Returns its file with another capacity, or another `rest`.
    fn rest(&self, shards: u64, rest: &str) -> String {
        configuration(&self.origin, self.disk.path(), shards * self.shard_bytes, rest)
    }

    /// A file beside its own with that configuration.
    fn file(&self, name: &str, shards: u64, rest: &str) -> PathBuf {
        let path = self.disk.path().join(name);
        fs::write(&path, self.installation.text(&self.rest(shards, rest))).unwrap();
        path
    }

    fn forebay(&self, arguments: &[&str]) -> Ended {
        run(self.installation.forebay(arguments))
    }

    /// Applies another configuration, which is good.
    fn apply(&self, shards: u64, rest: &str) -> Ended {
        self.installation.configure(&self.rest(shards, rest));
        let ended = self.forebay(&["config", "apply"]);
        assert_eq!(ended.code, 0, "{ended:?}");
        ended
    }

    /// The document of an apply that may fail.
    fn applied(&self, arguments: &[&str]) -> (i32, Value) {
        let ended = self.forebay(&[&["config", "apply", "--json"], arguments].concat());
        let document = serde_json::from_str(&ended.out);
        (ended.code, document.unwrap_or_else(|error| panic!("{error}: {ended:?}")))
    }

    fn address(&self) -> Address {
        Address::Unix(self.installation.socket())
    }

    fn status(&self) -> Value {
        daemon_status(&self.installation.socket()).unwrap()
    }

    fn play(&self, shards: impl IntoIterator<Item = u64>) {
        for n in shards {
            let open = job(&self.origin, vec![Origin::url(&format!("{n}.tar"))]);
            epoch(self.address(), open).unwrap();
            self.settle();
        }
    }

    fn settle(&self) {
        eventually("nothing is under way", || {
            let status = self.status();
            let count = |what: &str| status["cache"][what].as_u64().unwrap();
            status["jobs"].as_array().unwrap().is_empty()
                && count("misses") == count("fills") + count("failed_fills") + count("through")
        });
    }

    /// Returns the shards on the tier.
    fn resting(&self) -> Vec<u64> {
        let shards = self.disk.path().join("cache/shards");
        let rests = |n: &u64| cached_file(&shards, &format!("-{n}.tar.idx")).is_some();
        (0..SHARDS).filter(rests).collect()
    }

    /// Returns the holdings of a data set or a tenant, by its name.
    fn held(&self, kind: &str, name: &str) -> Option<Value> {
        let status = self.status();
        let mut all = status["cache"][kind].as_array().unwrap().iter();
        all.find(|of| of["name"] == name).cloned()
    }
}

fn configuration(origin: &Origin, place: &Path, capacity: u64, rest: &str) -> String {
    let path = place.join("cache");
    let rule = origin.rule();
    format!("[[tier]]\nname = 'nvme'\npath = {path:?}\ncapacity = '{capacity}B'\n{rule}{rest}")
}

/// Section, name and key of each change in a list; a section that is added or removed has no key.
fn keys(changes: &Value) -> Vec<[&str; 3]> {
    fn of(change: &Value) -> [&str; 3] {
        ["section", "name", "key"].map(|key| change[key].as_str().unwrap_or_default())
    }
    let mut keys: Vec<_> = changes.as_array().unwrap().iter().map(of).collect();
    keys.sort_unstable();
    keys
}

fn dataset(name: &str, pattern: &str, rest: &str) -> String {
    format!("[[dataset]]\nname = '{name}'\nmatch = 's3://bucket/{pattern}'\n{rest}\n")
}

/// At a kibibyte a second the job would take an hour: that it ends is what tells.
#[test]
fn raised_data_set_bandwidth_frees_a_waiting_job() {
    let slow = dataset("all", "**", "bandwidth = '1KiB/s'");
    let bench = Bench::new(20, &slow);
    thread::scope(|scope| {
        let played = scope
            .spawn(|| epoch(bench.address(), job(&bench.origin, Origin::urls(SHARDS))).unwrap());
        eventually("its first shard is on its way", || bench.status()["cache"]["misses"] != 0);
        // Another rule of the same name, then another data set altogether.
        bench.apply(20, &dataset("all", "**", "bandwidth = '2KiB/s'"));
        assert!(!played.is_finished());
        bench.apply(20, &dataset("other", "**", ""));
        played.join().unwrap().assert_whole(SHARDS as u32, SAMPLES, &SIZES);
    });
    bench.settle();
    let other = bench.held("datasets", "other").unwrap();
    assert_eq!(other["shards"], SHARDS, "what arrived meanwhile is charged to it as well");
    assert_eq!(other["used_bytes"], SHARDS * bench.shard_bytes);
}

/// The same of what a source may send.
#[test]
fn raised_source_bandwidth_frees_a_waiting_job() {
    let origin = Origin::with_shards(2, SAMPLES, &SIZES);
    let disk = Daemon::disk();
    let configuration = |limit: &str| {
        let path = disk.path().join("cache");
        let rule = origin.rule();
        format!("[[tier]]\nname = 'nvme'\npath = {path:?}\ncapacity = '1GiB'\n{rule}{limit}")
    };
    let slow = configuration("bandwidth = '1KiB/s'\n");
    let installation = Installation::new(ACTOR, disk.path(), MEMORY, &slow);
    let _daemon = installation.start();
    let address = Address::Unix(installation.socket());
    thread::scope(|scope| {
        let played = scope.spawn(|| epoch(address, job(&origin, Origin::urls(2))).unwrap());
        let status = || daemon_status(&installation.socket()).unwrap();
        eventually("it goes by the source's link", || {
            !status()["sources"].as_array().unwrap().is_empty()
        });
        installation.configure(&configuration(""));
        let ended = run(installation.forebay(&["config", "apply", "--json"]));
        assert_eq!(ended.code, 0, "{ended:?}");
        let document: Value = serde_json::from_str(&ended.out).unwrap();
        assert_eq!(keys(&document["changes"]), [["source", "s3://bucket/", "bandwidth"]]);
        played.join().unwrap().assert_whole(2, SAMPLES, &SIZES);
    });
}

/// Bears promises 3 and 6 for a configuration that changes under a job: every policy, limits up and
/// down, pins, names. Each epoch has every sample once.
#[test]
fn reloads_under_a_job_lose_and_repeat_no_sample() {
    let bench = Bench::new(4, "");
    let urls = Origin::urls(SHARDS);
    let loader = loader(bench.address(), job(&bench.origin, urls)).unwrap();
    let half = 2 * bench.shard_bytes;
    let changes = [
        (4, dataset("all", "**", "evict = 'lfu'")),
        (4, dataset("all", "**", &format!("evict = 'sieve'\nquota = {{ max = '{half}B' }}"))),
        (3, dataset("one", "[0-4].tar", "evict = 's3fifo'\npriority = 3")),
        (
            6,
            dataset("one", "[0-4].tar", "scan_bypass = true")
                + &dataset("all", "**", &format!("quota = {{ min = '{half}B' }}")),
        ),
        (6, dataset("all", "1.tar", "pin = true") + &dataset("rest", "**", "evict = 'static'")),
        (2, dataset("none", "**", "evict = 'none'")),
        (4, String::new()),
    ];
    for (number, (shards, rest)) in (0..).zip(&changes) {
        loader.start(Begin::at(number, 0)).unwrap();
        let mut epoch = Epoch::default();
        let mut batches = 0;
        loop {
            match next(&loader).unwrap() {
                Next::Batch(batch) => epoch.take(&batch),
                Next::End(end) => break epoch.errors.extend(end.errors),
            }
            batches += 1;
            if batches == 8 {
                bench.apply(*shards, rest);
            }
        }
        epoch.assert_whole(SHARDS as u32, SAMPLES, &SIZES);
    }
    drop(loader);
    bench.settle();
    let status = bench.status();
    let sum = |kind: &str| -> u64 {
        let all = status["cache"][kind].as_array().unwrap();
        all.iter().map(|of| of["used_bytes"].as_u64().unwrap()).sum()
    };
    let used = status["cache"]["used_bytes"].as_u64().unwrap();
    assert_eq!((sum("datasets"), sum("tenants")), (used, used), "each byte is charged once");
    assert!(used <= 4 * bench.shard_bytes);
}

#[test]
fn pin_holds_as_soon_as_it_is_applied() {
    let bench = Bench::new(3, "");
    bench.play([0, 1, 2]);
    // It would be the first to go.
    bench.apply(3, &dataset("kept", "0.tar", "pin = true"));
    bench.play([3, 4, 5, 6]);
    assert!(bench.resting().contains(&0), "{:?}", bench.resting());
    bench.apply(3, "");
    bench.play([7, 8, 9]);
    assert!(!bench.resting().contains(&0), "{:?}", bench.resting());
}

#[test]
fn lowered_quota_evicts_the_excess() {
    let bench = Bench::new(8, &dataset("all", "[0-5].tar", ""));
    bench.play(0..8);
    assert_eq!(bench.resting(), [0, 1, 2, 3, 4, 5, 6, 7]);
    let most = 2 * bench.shard_bytes;
    let lowered = dataset("all", "[0-5].tar", &format!("quota = {{ max = '{most}B' }}"));
    let file = bench.file("lowered.toml", 8, &lowered);
    let file = file.to_str().unwrap();
    let dry = bench.forebay(&["config", "apply", file, "--dry-run"]);
    assert_eq!(dry.code, 0, "{dry:?}");
    assert_eq!(dry.out.matches("quota.max").count(), 2, "the change and its effect: {dry:?}");
    let (code, told) = bench.applied(&[file, "--dry-run"]);
    assert_eq!((code, keys(&told["changes"])), (0, vec![["dataset", "all", "quota.max"]]));
    assert_eq!((&told["applied"], &told["dry_run"]), (&false.into(), &true.into()));
    let effect = &told["effects"]["datasets"][0];
    assert_eq!(effect["name"], "all");
    assert_eq!(effect["after_bytes"], 6 * bench.shard_bytes);
    assert_eq!(effect["over_bytes"], 4 * bench.shard_bytes);
    assert_eq!(bench.resting().len(), 8, "nothing was changed");
    bench.apply(8, &lowered);
    eventually("what is above it went", || bench.resting() == [4, 5, 6, 7]);
    eventually("and is given back", || {
        bench.held("datasets", "all").unwrap()["used_bytes"] == most
    });
    // It is as hard as any from then on.
    bench.play([0]);
    assert_eq!(bench.resting(), [0, 5, 6, 7]);
}

#[test]
fn capacity_and_watermarks_change_while_in_use() {
    let bench = Bench::new(3, "");
    bench.play(0..5);
    assert_eq!(bench.resting(), [2, 3, 4]);
    bench.apply(6, "");
    bench.play([5, 6, 7]);
    assert_eq!(bench.resting(), [2, 3, 4, 5, 6, 7]);
    bench.installation.configure(&bench.rest(2, ""));
    let (code, told) = bench.applied(&[]);
    assert_eq!((code, keys(&told["changes"])), (0, vec![["tier", "nvme", "capacity"]]));
    assert_eq!(told["effects"]["tiers"][0]["over_bytes"], 4 * bench.shard_bytes, "{told}");
    eventually("what is above it went", || bench.resting() == [6, 7]);
    eventually("and is given back", || {
        bench.status()["cache"]["used_bytes"] == 2 * bench.shard_bytes
    });
    let mut marked = bench.rest(6, "");
    marked = marked.replace("[[source]]", "watermarks = { low = 0.4, high = 0.5 }\n[[source]]");
    bench.installation.configure(&marked);
    assert_eq!(bench.forebay(&["config", "apply"]).code, 0);
    bench.play([0, 1]);
    eventually("it is kept below its watermark", || bench.resting().len() <= 2);
}

/// A change that needs a restart is rejected by name, and then nothing else applies either.
#[test]
fn changes_needing_a_restart_are_rejected_by_name() {
    let bench = Bench::new(4, &dataset("all", "**", "priority = 1"));
    let before = bench.status()["configuration"].clone();
    let wanted = bench
        .rest(4, &dataset("all", "**", "priority = 2"))
        .replace("/cache\"", "/elsewhere\"")
        .replace("[[source]]", "writes_per_day = '1TB'\n[[source]]");
    let wanted = format!("{wanted}[leases]\nredis = 'redis://localhost:1'\n");
    let text = bench.installation.text(&wanted).replace("memory = '", "memory = '1");
    let file = bench.disk.path().join("other.toml");
    fs::write(&file, &text).unwrap();
    let file = file.to_str().unwrap();
    let refused = [
        ["daemon", "", "memory"],
        ["leases", "", "redis"],
        ["tier", "nvme", "path"],
        ["tier", "nvme", "writes_per_day"],
    ];
    for arguments in [&[file][..], &[file, "--dry-run"]] {
        let (code, told) = bench.applied(arguments);
        assert_eq!((code, &told["applied"]), (1, &Value::Bool(false)));
        assert_eq!(keys(&told["refused"]), refused);
        let all = [&[["dataset", "all", "priority"]], &refused[..]].concat();
        let changes = keys(&told["changes"]);
        assert!(all.iter().all(|key| changes.contains(key)) && changes.len() == all.len());
        let ended = bench.forebay(&[&["config", "apply"], arguments].concat());
        let error = ended.error();
        assert_eq!((ended.code, error.kind()), (1, ErrorKind::Invalid), "{error}");
        assert_eq!(error.place("config"), Some(file), "{error}");
        let lines = |key: &str| ended.out.lines().filter(|line| line.contains(key)).count();
        assert!(["memory", "redis", "writes_per_day"].map(lines) == [1, 1, 1], "{ended:?}");
    }
    assert_eq!(bench.status()["configuration"], before);
    // A tier that comes or goes, too.
    let more = bench.rest(4, "[[tier]]\nname = 'hdd'\npath = '/mnt'\ncapacity = '1GiB'\n");
    fs::write(file, bench.installation.text(&more)).unwrap();
    let (_, told) = bench.applied(&[file]);
    assert_eq!(keys(&told["refused"]), [["tier", "hdd", ""]]);
    assert_eq!(told["refused"][0]["change"], "added", "{told}");
}

/// Promises that could not be kept together are refused by a reload as by a start.
#[test]
fn minima_beyond_the_capacity_are_rejected() {
    let bench = Bench::new(4, "");
    let too_much = format!("quota = {{ min = '{}B' }}", 5 * bench.shard_bytes);
    bench.installation.configure(&bench.rest(4, &dataset("all", "**", &too_much)));
    let ended = bench.forebay(&["config", "apply"]);
    assert_eq!(ended.code, 1, "{ended:?}");
    let promised = format!("promised={}", 5 * bench.shard_bytes);
    assert!(ended.out.contains(&promised), "{ended:?}");
    let file = bench.installation.config();
    let checked = bench.forebay(&["config", "check", file.to_str().unwrap()]);
    assert!(checked.code == 1 && checked.out.contains(&promised), "{checked:?}");
    assert!(bench.held("datasets", "all").is_none());
    // With the room for it, it is good.
    bench.apply(6, &dataset("all", "**", &too_much));
    assert!(bench.held("datasets", "all").is_some());
}

/// As `nginx` and others do: the log says everything that is wrong, and where; the daemon goes on.
#[test]
fn sighup_reloads_and_mistakes_change_nothing() {
    let bench = Bench::new(4, &dataset("all", "**", ""));
    bench.installation.configure(&bench.rest(4, &dataset("new", "**", "priority = 7")));
    bench.daemon.signal(Signal::HUP);
    eventually("it goes by its file", || bench.held("datasets", "new").is_some());
    // It is told once it is done.
    let changes = |log: &str| log.matches(" change=").count();
    eventually("it says so", || changes(&bench.daemon.log()) == 2);
    let wrong = dataset("wrong", "**", "priorty = 8\nttl = 'soon'");
    bench.installation.configure(&bench.rest(4, &wrong));
    bench.daemon.signal(Signal::HUP);
    let file = bench.installation.config();
    let lines = fs::read_to_string(&file).unwrap();
    let line = |word: &str| lines.lines().position(|line| line.contains(word)).unwrap() + 1;
    let told = |word: &str| format!("{}:{}:", file.display(), line(word));
    eventually("it says what is wrong", || {
        let log = bench.daemon.log();
        ["priorty", "ttl"].iter().all(|word| log.contains(&told(word)))
    });
    let log = bench.daemon.log();
    assert!(log.contains("`priorty`"), "{log}");
    assert_eq!(log.matches(&format!("{}:", file.display())).count(), 2, "{log}");
    assert!(bench.held("datasets", "new").is_some(), "the old counts");
    bench.play([0]);
    // A file that is gone is a mistake like any other.
    fs::remove_file(&file).unwrap();
    let before = bench.daemon.log().len();
    bench.daemon.signal(Signal::HUP);
    let named = file.display().to_string();
    eventually("it says so", || bench.daemon.log()[before..].contains(&named));
    assert!(bench.held("datasets", "new").is_some());
}

/// Bears promise 8: who put which change in force is noted, and what was refused, and why; by a
/// signal nobody did.
#[test]
fn every_reload_is_in_the_audit_log() {
    let place = TempDir::new().unwrap();
    let log = place.path().join("audit.jsonl");
    let with = |rule: &str| format!("[audit]\npath = {log:?}\n{}", dataset("all", "**", rule));
    let bench = Bench::new(4, &with("priority = 1"));
    let lines = || -> Vec<Value> {
        let text = fs::read_to_string(&log).unwrap();
        let (whole, _) = text.rsplit_once('\n').unwrap_or_default();
        let lines = whole.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|line| line["event"] == "policy").collect()
    };
    let last = |count: usize| {
        eventually("it is noted", || lines().len() >= count);
        assert_eq!(lines().len(), count, "{:?}", lines());
        lines().pop().unwrap()
    };
    bench.apply(4, &with("priority = 2\npin = true"));
    let me = rustix::process::getuid().as_raw();
    let line = last(2);
    assert_eq!((&line["outcome"], &line["uid"]), (&"done".into(), &me.into()), "{line}");
    let mut whats: Vec<_> =
        lines().iter().map(|line| line["what"].as_str().unwrap().to_owned()).collect();
    whats.sort();
    let is = |what: &String, end: &str| what.contains(" all") && what.ends_with(end);
    let [pin, priority] = &whats[..] else { panic!("{whats:?}") };
    assert!(is(pin, "pin false -> true") && is(priority, "priority 1 -> 2"), "{whats:?}");
    // What is only tried, or is in force already, is no change.
    let file = bench.file("other.toml", 4, &with("priority = 4"));
    assert_eq!(bench.forebay(&["config", "apply", file.to_str().unwrap(), "--dry-run"]).code, 0);
    assert_eq!(bench.forebay(&["config", "apply"]).code, 0);
    // What takes a restart.
    let wanted = bench.rest(4, &with("priority = 3")).replace("/cache\"", "/elsewhere\"");
    bench.installation.configure(&wanted);
    assert_eq!(bench.forebay(&["config", "apply"]).code, 1);
    let line = last(3);
    assert_eq!((&line["outcome"], &line["uid"]), (&"failed".into(), &me.into()), "{line}");
    assert!(line["what"].is_string(), "{line}");
    // By a signal, good and bad.
    bench.installation.configure(&bench.rest(4, &with("priority = 5\npin = true")));
    bench.daemon.signal(Signal::HUP);
    let line = last(4);
    assert_eq!((&line["outcome"], &line["uid"]), (&"done".into(), &Value::Null), "{line}");
    assert!(line["what"].as_str().unwrap().ends_with("priority 2 -> 5"), "{line}");
    bench.installation.configure(&bench.rest(4, &with("priorty = 6")));
    bench.daemon.signal(Signal::HUP);
    let line = last(5);
    assert_eq!((&line["outcome"], &line["uid"]), (&"failed".into(), &Value::Null), "{line}");
    assert!(line["reason"].is_string() || line["what"].is_string(), "{line}");
}

#[test]
fn drift_is_reported_until_file_and_daemon_agree() {
    let bench = Bench::new(4, &dataset("all", "**", ""));
    let configuration = || bench.status()["configuration"].clone();
    let own = bench.installation.config();
    assert_eq!(configuration()["file"], own.to_str().unwrap());
    assert_eq!(configuration()["drift"], Value::Null);
    // Written in other words it is the same.
    let text = fs::read_to_string(&own).unwrap();
    fs::write(&own, format!("# a comment\n{text}")).unwrap();
    assert_eq!(configuration()["drift"], Value::Null);
    let diff = |arguments: &[&str]| -> Value {
        let ended = bench.forebay(&[&["config", "diff", "--json"], arguments].concat());
        serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
    };
    assert_eq!(diff(&[])["changes"], Value::Array(Vec::new()));
    bench.installation.configure(&bench.rest(4, &dataset("all", "**", "pin = true")));
    let drift = configuration()["drift"].clone();
    assert_eq!(drift["changes"].as_array().unwrap().len(), 1);
    assert_eq!(drift["changes"][0]["key"], "pin");
    assert!(drift["since"].as_str().is_some_and(|since| since.ends_with('Z')), "{drift}");
    let screen = bench.forebay(&["status"]).out;
    assert!(screen.contains(" apply`"), "{screen}");
    let changes = diff(&[])["changes"].clone();
    assert_eq!(keys(&changes), [["dataset", "all", "pin"]]);
    assert_eq!((&changes[0]["from"], &changes[0]["to"]), (&false.into(), &true.into()));
    let shown = bench.forebay(&["config", "show", own.to_str().unwrap()]);
    assert!(shown.out.contains("pin = true") && !shown.err.is_empty(), "{shown:?}");
    let shown = bench.forebay(&["config", "show", "--running"]);
    assert!(shown.out.contains("pin = false") && shown.err.is_empty(), "{shown:?}");
    assert_eq!(bench.forebay(&["config", "apply"]).code, 0);
    assert_eq!(configuration()["drift"], Value::Null);
    // Another file counts until the daemon reads its own again.
    let other = bench.file("other.toml", 4, &dataset("all", "**", "priority = 3"));
    let applied = bench.forebay(&["config", "apply", other.to_str().unwrap()]);
    assert!(applied.out.contains(own.to_str().unwrap()), "where to keep it: {applied:?}");
    assert_eq!(configuration()["applied_from"], other.to_str().unwrap());
    assert_eq!(configuration()["drift"]["changes"].as_array().unwrap().len(), 2);
    assert_eq!(diff(&[other.to_str().unwrap()])["changes"], Value::Array(Vec::new()));
    // A mistake in it is told as such.
    fs::write(&own, "[[tier]]\nnme = 'x'\n").unwrap();
    let drift = configuration()["drift"].clone();
    assert_ne!(drift["mistakes"].as_array().unwrap().len(), 0, "{drift}");
    assert!(bench.forebay(&["status"]).out.contains(" check`"));
    let diff = bench.forebay(&["config", "diff"]);
    assert!(diff.code == 1 && diff.err.contains(" check"), "{diff:?}");
    fs::remove_file(&own).unwrap();
    assert!(configuration()["drift"]["unreadable"].as_str().is_some());
    assert_eq!(bench.forebay(&["config", "apply"]).code, 1);
    bench.installation.configure(&bench.rest(4, ""));
    assert_eq!(bench.forebay(&["config", "apply"]).code, 0);
    assert_eq!(configuration()["applied_from"], Value::Null);
}

/// The directory is the database: whatever was being changed, the next daemon goes by its file.
#[test]
fn kill_during_a_reload_is_harmless() {
    let mut bench = Bench::new(6, "");
    bench.play(0..6);
    let one = format!("quota = {{ max = '{}B' }}", 3 * bench.shard_bytes);
    let rests = [dataset("one", "[0-2].tar", &one), dataset("two", "**", "evict = 'sieve'")];
    let files: Vec<_> = (0..)
        .zip(&rests)
        .map(|(n, rest)| bench.file(&format!("{n}.toml"), 6, rest).to_str().unwrap().to_owned())
        .collect();
    for _ in 0..4 {
        let told = || bench.daemon.log().matches(" change=").count();
        let before = told();
        thread::scope(|scope| {
            let applying = scope.spawn(|| {
                // The last of them finds nobody.
                let apply = |file: &String| bench.forebay(&["config", "apply", file]).code;
                files.iter().cycle().map(apply).take_while(|code| *code == 0).count()
            });
            // The second is applied once the first has been answered.
            eventually("it reloads again and again", || told() > before + 1);
            bench.daemon.signal(Signal::KILL);
            assert_ne!(applying.join().unwrap(), 0);
        });
        bench.daemon = bench.installation.start();
        let status = bench.status();
        assert_eq!(status["configuration"]["drift"], Value::Null);
        assert_eq!(status["cache"]["datasets"].as_array().unwrap().len(), 1, "its file has none");
        eventually("everything is listed", || {
            let used = bench.status()["cache"]["used_bytes"].as_u64().unwrap();
            used == bench.resting().len() as u64 * bench.shard_bytes
        });
        bench.play(0..6);
    }
    assert_eq!(bench.status()["cache"]["corruptions"], 0);
}

/// Messages that systemd's `Type=notify-reload` and `WatchdogSec=` wait for.
#[test]
fn service_manager_is_notified_of_start_reload_and_end() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    // What it said since, up to the words that are waited for.
    let until = |word: &str| {
        let (mut said, mut buffer) = (Vec::new(), [0; 4096]);
        loop {
            let len = manager.recv(&mut buffer).unwrap_or_else(|_| panic!("{word}: {said:?}"));
            said.push(String::from_utf8_lossy(&buffer[..len]).into_owned());
            if said.last().unwrap().lines().any(|line| line.starts_with(word)) {
                return said;
            }
        }
    };
    let bench = Bench::with(4, "", |installation| {
        installation.with("NOTIFY_SOCKET", path.clone()).with("WATCHDOG_USEC", "20000".into())
    });
    until("READY=1");
    until("WATCHDOG=1");
    bench.daemon.signal(Signal::HUP);
    let reloading = until("RELOADING=1").pop().unwrap();
    let since = reloading.lines().find_map(|line| line.strip_prefix("MONOTONIC_USEC="));
    assert!(since.unwrap().parse::<u64>().unwrap() > 0, "{reloading}");
    let reloaded = until("STATUS=").pop().unwrap();
    until("READY=1");
    // One that fails is told as well, and ends.
    bench.installation.configure("nonsense");
    bench.daemon.signal(Signal::HUP);
    until("RELOADING=1");
    assert_ne!(until("STATUS=").pop().unwrap(), reloaded);
    let log = bench.daemon.log();
    assert!(log.contains("forebay.toml:4:9:"), "{log}");
    until("READY=1");
    bench.daemon.stop();
    until("STOPPING=1");
}

#[test]
fn checkpoint_rules_are_applied_and_shown() {
    let bench = Bench::new(4, "");
    let runs = |key: &str| format!("[[checkpoint]]\nmatch = 's3://runs/**'\n{key}\n");
    let running = || {
        let ended = bench.forebay(&["config", "show", "--running", "--json"]);
        serde_json::from_str::<Value>(&ended.out).unwrap()["checkpoint"].clone()
    };
    assert_eq!(running(), Value::Array(Vec::new()));
    bench.apply(4, &runs("keep = { last = 2 }"));
    assert_eq!(
        (&running()[0]["match"], &running()[0]["keep"]["last"]),
        (&"s3://runs/**".into(), &2.into())
    );
    bench.installation.configure(&bench.rest(4, &runs("reserve = '1B'")));
    let (code, told) = bench.applied(&[]);
    let changed = ["keep.last", "reserve"].map(|key| ["checkpoint", "s3://runs/**", key]);
    assert_eq!((code, keys(&told["changes"])), (0, changed.to_vec()));
    // A reserve beyond the tiers' capacity changes nothing.
    bench.installation.configure(&bench.rest(4, &runs("reserve = '1PiB'")));
    let (code, told) = bench.applied(&[]);
    assert_eq!((code, &told["applied"]), (1, &Value::Bool(false)), "{told}");
    assert_eq!(running()[0]["reserve"], "1B");
}

/// A source that is not named any more is not read from, and one that is, is.
#[test]
fn sources_are_removed_and_added_at_run_time() {
    let bench = Bench::new(6, "");
    bench.play([0]);
    let with = |rule: &str| bench.rest(6, "").replace(&bench.origin.rule(), rule);
    bench.installation.configure(&with("[[source]]\nmatch = 's3://elsewhere/'\n"));
    assert_eq!(bench.forebay(&["config", "apply"]).code, 0);
    let one = |n: u64| job(&bench.origin, vec![Origin::url(&format!("{n}.tar"))]);
    for n in [0, 1] {
        let error = epoch(bench.address(), one(n)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    }
    bench.apply(6, "");
    bench.play([1]);
    assert_eq!(bench.resting(), [0, 1]);
}

/// A store of two tiers with room for so many shards each, and ten shards as files.
struct TwoTiers {
    files: TempDir,
    bare: BareStore,
    config: BareStoreConfig,
    shard_bytes: u64,
    disk: TempDir,
}

impl TwoTiers {
    fn new(shards: u64) -> Self {
        let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
        let (files, disk) = (Daemon::disk(), Daemon::disk());
        let mut shard_bytes = 0;
        for n in 0..SHARDS {
            let bytes = origin.bytes(&format!("{n}.tar"));
            shard_bytes = bytes.len() as u64;
            fs::write(files.path().join(format!("{n}.tar")), bytes).unwrap();
        }
        let hdd = BareStoreTier {
            name: "hdd".to_owned(),
            class: Class::Hdd,
            path: Some(disk.path().join("hdd")),
            capacity: shards * shard_bytes,
            watermarks: None,
        };
        let nvme = BareStoreConfig::new(disk.path().join("nvme"), shards * shard_bytes);
        let config = BareStoreConfig { more: vec![hdd], ..nvme };
        Self { files, bare: config.clone().open(), config, shard_bytes, disk }
    }

    fn url(&self, n: u64) -> String {
        self.files.path().join(format!("{n}.tar")).to_str().unwrap().to_owned()
    }

    fn read(&self, tenant: Option<&str>, shards: impl IntoIterator<Item = u64>) {
        for n in shards {
            self.bare.read_all_for(tenant, &self.url(n)).unwrap();
        }
        eventually("nothing is under way", || {
            let counters = self.bare.store.counters();
            counters.misses == counters.ended()
        });
    }

    fn change(&mut self, change: impl FnOnce(&mut BareStoreConfig)) {
        change(&mut self.config);
        self.bare.reconfigure(&self.config).unwrap();
    }

    /// Returns the number of shards charged to a data set or a tenant, once evictions are done.
    fn shards(&self, name: &str) -> usize {
        let of = || {
            let Holdings { datasets, tenants } = self.bare.store.holdings();
            let mut all = datasets.into_iter().chain(tenants).filter(|of| of.name == name);
            all.next().unwrap_or_else(|| panic!("there is no {name}"))
        };
        eventually("each byte of it is a shard's", || {
            let of = of();
            of.used_bytes == of.shards as u64 * self.shard_bytes
        });
        of().shards
    }

    /// Returns the shards on a tier.
    fn on(&self, tier: &str) -> Vec<u64> {
        let shards = self.disk.path().join(tier).join("shards");
        let rests = |n: &u64| cached_file(&shards, &format!("-{n}.tar.idx")).is_some();
        (0..SHARDS).filter(rests).collect()
    }
}

fn rule(name: &str, pattern: &str) -> Dataset {
    Dataset::new(name, pattern, Evict::Lru).unwrap()
}

fn tenant(name: &str, max_bytes: Option<u64>) -> Tenant {
    Tenant { name: name.to_owned(), min_bytes: 0, max_bytes }
}

/// Rules that cannot be kept change nothing; others take the place of all before them.
#[test]
fn store_swaps_checkpoint_rules_as_a_whole() {
    let mut tiers = TwoTiers::new(8);
    let rule = |matches: &str, reserve_bytes| CheckpointRule {
        reserve_bytes,
        tiers: vec!["hdd".to_owned()],
        ..CheckpointRule::new(matches).unwrap()
    };
    let held = |tiers: &TwoTiers, url: &str| {
        tiers.bare.store.checkpoint_rule(url).map(|rule| rule.reserve_bytes)
    };
    let (run, best, room) = ("s3://runs/a/step-1", "s3://runs/best", 8 * tiers.shard_bytes);
    assert_eq!(held(&tiers, run), None);
    let narrow_first = vec![rule(best, 1), rule("s3://runs/**", room - 1)];
    tiers.change(|config| config.checkpoints = narrow_first.clone());
    assert_eq!((held(&tiers, run), held(&tiers, best)), (Some(room - 1), Some(1)));
    tiers.config.checkpoints = vec![rule("s3://runs/**", room + 1)];
    let error = tiers.bare.reconfigure(&tiers.config).unwrap_err();
    assert_eq!((error.kind(), error.place("tiers")), (ErrorKind::Invalid, Some("hdd")));
    assert_eq!(tiers.bare.store.checkpoint_rules(), narrow_first);
    tiers.change(|config| config.checkpoints = vec![rule("gs://**", 0)]);
    assert_eq!((held(&tiers, run), held(&tiers, "gs://b/a")), (None, Some(0)));
}

/// A job keeps its tenant, whether the rules name it just now or not; so do shards.
#[test]
fn removed_tenants_return_with_their_shards() {
    let mut tiers = TwoTiers::new(8);
    tiers.change(|config| config.tenants = vec![tenant("a", None), tenant("b", None)]);
    let a = tiers.bare.store.for_tenant(Some("a"));
    tiers.read(Some("a"), [0, 1]);
    tiers.read(Some("b"), [2]);
    assert_eq!((tiers.shards("a"), tiers.shards("b")), (2, 1));
    tiers.change(|config| config.tenants = vec![tenant("b", None), tenant("new", None)]);
    let read = |tiers: &TwoTiers, n: u64| {
        let (url, options) = (tiers.url(n), Options::default());
        let lease = tiers.bare.runtime.block_on(a.shard(&url, &options, Urgency::Needed));
        let lease = lease.unwrap();
        tiers.bare.runtime.block_on(lease.settled()).unwrap();
    };
    read(&tiers, 3);
    tiers.read(None, []);
    assert_eq!((tiers.shards("b"), tiers.shards("new")), (1, 0));
    let rest = |tiers: &TwoTiers| tiers.bare.store.holdings().tenants.pop().unwrap().shards;
    assert_eq!(rest(&tiers), 3);
    let max = 2 * tiers.shard_bytes;
    tiers.change(|config| config.tenants = vec![tenant("a", Some(max))]);
    eventually("what is above its limit went", || tiers.shards("a") == 2);
    assert_eq!(rest(&tiers), 1);
    read(&tiers, 4);
    eventually("its limit holds for a job that was there before it", || tiers.shards("a") == 2);
}

#[test]
fn renamed_data_set_keeps_its_shards() {
    let mut tiers = TwoTiers::new(8);
    let half = 4 * tiers.shard_bytes;
    tiers.change(|config| config.datasets = vec![rule("old", "**/[0-4].tar")]);
    tiers.read(None, 0..8);
    assert_eq!(tiers.shards("old"), 5);
    tiers.change(|config| {
        let max_bytes = Some(half);
        config.datasets = vec![Dataset { max_bytes, ..rule("new", "**/[0-4].tar") }];
    });
    eventually("its limit holds for what it took over", || tiers.shards("new") == 4);
    assert_eq!(tiers.shards("(rest)"), 3, "of data sets, the others");
}

/// Copies on tiers their rule does not name move to tiers it does.
#[test]
fn copies_leave_tiers_their_rule_no_longer_names() {
    let mut tiers = TwoTiers::new(8);
    let on = |tier: &str| Dataset { tiers: vec![tier.to_owned()], ..rule("set", "**/[0-2].tar") };
    tiers.change(|config| config.datasets = vec![on("nvme")]);
    tiers.read(None, 0..5);
    assert_eq!((tiers.on("nvme"), tiers.on("hdd")), (vec![0, 1, 2, 3, 4], vec![]));
    tiers.change(|config| config.datasets = vec![on("hdd")]);
    eventually("they moved", || (tiers.on("nvme"), tiers.on("hdd")) == (vec![3, 4], vec![0, 1, 2]));
    tiers.change(|config| config.datasets = vec![on("nvme")]);
    eventually("and back", || (tiers.on("nvme"), tiers.on("hdd")) == (vec![0, 1, 2, 3, 4], vec![]));
    let fills = tiers.bare.store.counters().fills;
    tiers.change(|config| {
        config.datasets = vec![Dataset { cache: Cache::Never, ..rule("set", "/**/[0-2].tar") }];
    });
    eventually("no copies are kept of it", || tiers.on("nvme") == [3, 4]);
    tiers.read(None, 0..3);
    assert_eq!(tiers.bare.store.counters().fills, fills, "it is read where it is");
}

/// Bears promise 3: a shard that is on its way when the rules change arrives by the new ones.
#[test]
fn arriving_shards_follow_the_new_rules() {
    let slow = dataset("slow", "**", "bandwidth = '1KiB/s'");
    let bench = Bench::new(20, &slow);
    thread::scope(|scope| {
        let played =
            scope.spawn(|| epoch(bench.address(), job(&bench.origin, Origin::urls(2))).unwrap());
        eventually("a shard is on its way", || bench.status()["cache"]["used_bytes"] != 0);
        let held =
            |name: &str| bench.held("datasets", name).unwrap()["used_bytes"].as_u64().unwrap();
        assert_ne!(held("slow"), 0, "its room is charged");
        let renamed = dataset("other", "[5-9].tar", "") + &dataset("fast", "**", "");
        bench.apply(20, &renamed);
        assert_ne!(held("fast"), 0, "with all its room");
        played.join().unwrap().assert_whole(2, SAMPLES, &SIZES);
        bench.settle();
        assert_eq!((held("fast"), held("other")), (2 * bench.shard_bytes, 0));
    });
}

/// Bears promise 8: who may knock follows from the configuration in force.
#[test]
fn others_connect_while_the_file_names_their_group() {
    let bench = Bench::new(4, "");
    let socket = bench.installation.socket();
    let mode = || fs::metadata(&socket).unwrap().permissions().mode() & 0o777;
    eventually("only its own user may", || mode() == 0o600);
    // What comes first is `[daemon]`'s.
    let named = format!("groups = [84211]\n{}", bench.rest(4, ""));
    bench.installation.configure(&named);
    let (_, told) = bench.applied(&[]);
    assert_eq!(keys(&told["changes"]), [["daemon", "", "groups"]]);
    assert_eq!(told["changes"][0]["to"], serde_json::json!([84_211]), "{told}");
    eventually("others may knock", || mode() == 0o666);
    bench.apply(4, "");
    eventually("they may not any more", || mode() == 0o600);
}

#[test]
fn private_daemon_has_no_file_to_apply() {
    let origin = Origin::with_shards(1, SAMPLES, &SIZES);
    let home = UserHome::new(ACTOR);
    let loader = loader(home.address(), job(&origin, Origin::urls(1))).unwrap();
    assert_eq!(play(&loader, 0, 0).unwrap().samples.len() as u64, SAMPLES);
    let mut command = home.forebay(&["config", "apply"]);
    command.env("FOREBAY_DAEMON", format!("unix:{}", home.socket().display()));
    let ended = run(command);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert_eq!(ended.error().kind(), ErrorKind::Invalid, "{ended:?}");
    assert!(home.status().unwrap()["configuration"].is_null());
    let nobody = run({
        let mut command = home.forebay(&["config", "apply"]);
        command.env("FOREBAY_DAEMON", "unix:/no/such/d.sock");
        command
    });
    assert_eq!(nobody.code, 3, "{nobody:?}");
}
