//! `forebay pack` as a process: killed, interrupted, out of room, and read by a trainer at the end.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use forebay_client::Address;
use forebay_error::ErrorKind;
use forebay_shard::Manifest;
use forebay_tests::{
    Daemon, Mount, UserHome, epoch, eventually, interruptible, job_with, reported_error,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::ACTOR;

/// Samples, each in a shard of its own, and the length of each: long enough beside what it takes to
/// see one.
const SAMPLES: usize = 12;
const SAMPLE_BYTES: usize = 6 << 20;

/// Times a packer may finish before its signal arrives.
const TRIES: usize = 50;

/// Signals that end the packers, one after the other.
const KILLS: [Signal; 4] = [Signal::KILL, Signal::INT, Signal::KILL, Signal::TERM];

/// Packs one folder into others.
struct Packer {
    home: UserHome,
    input: TempDir,
}

impl Packer {
    fn new(samples: usize, bytes: usize) -> Self {
        let input = TempDir::new().unwrap();
        for i in 0..samples {
            let data = forebay_testkit::field(7, i as u64, "bin", bytes);
            fs::write(input.path().join(format!("{i:03}.bin")), data).unwrap();
            fs::write(input.path().join(format!("{i:03}.cls")), i.to_string()).unwrap();
        }
        Self { home: UserHome::new(ACTOR), input }
    }

    fn command(&self, to: &Path, more: &[&str]) -> Command {
        let pattern = to.join("o-{:03d}.tar");
        let given = [self.input.path(), &pattern].map(|path: &Path| path.to_str().unwrap());
        let command = ["pack", given[0], "-o", given[1], "--samples", "1"];
        let mut command = self.home.forebay(&[&command, more].concat());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, to: &Path, more: &[&str]) -> Output {
        self.command(to, more).output().unwrap()
    }

    /// A packer that each of the signals ends.
    fn start(&self, to: &Path, more: &[&str]) -> Child {
        let mut command = interruptible(&self.command(to, more));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }
}

/// Everything in a folder; of manifests and records only what does not name the folder.
fn made(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let listed = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let read = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().unwrap();
        let mut bytes = fs::read(entry.path()).unwrap();
        if name == "o.json" {
            let manifest = Manifest::read(&entry.path()).unwrap();
            let name = |url: &str| Path::new(url).file_name().unwrap().to_owned();
            let each = manifest.shards().iter().map(|s| (name(&s.url), s.samples, s.bytes));
            bytes = format!("{:?}", each.collect::<Vec<_>>()).into_bytes();
        }
        (name, bytes)
    };
    listed.map(read).collect()
}

fn count(folder: &Path, ending: &str) -> usize {
    let listed = fs::read_dir(folder).into_iter().flatten();
    listed
        .filter(|entry| entry.as_ref().unwrap().path().to_str().unwrap().ends_with(ending))
        .count()
}

fn signal(child: &Child, signal: Signal) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).unwrap();
    kill_process(pid, signal).unwrap();
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Starts a packer with so many threads, and ends it by this signal when there is `enough` beside
/// what was there before. If it was faster, what it made is taken away again, and the answer is
/// `false`.
fn cut_off(
    packer: &Packer,
    to: &Path,
    (jobs, kill): (usize, Signal),
    enough: impl Fn(usize) -> bool,
) -> bool {
    let before = count(to, ".tar");
    let mut child = packer.start(to, &["--jobs", &jobs.to_string()]);
    let mut over = false;
    eventually("it comes that far", || {
        over = child.try_wait().unwrap().is_some();
        over || enough(before)
    });
    // What was waited for is somebody else's number.
    if !over {
        signal(&child, kill);
    }
    let status = child.wait().unwrap();
    if status.signal() == Some(kill.as_raw()) && count(to, ".tar") < SAMPLES {
        return true;
    }
    assert!(status.signal().is_some() || status.success(), "{status:?}");
    for entry in fs::read_dir(to).unwrap() {
        let path = entry.unwrap().path();
        let number =
            path.to_str().unwrap().strip_suffix(".tar").map(|stem| &stem[stem.len() - 3..]);
        if number.is_none_or(|number| number.parse::<usize>().unwrap() >= before)
            && !path.ends_with("o.json.plan")
        {
            fs::remove_file(path).unwrap();
        }
    }
    false
}

/// Killed at several points, by the kernel and by Ctrl-C, each time with other threads: in the end
/// everything is as if nothing had been.
#[test]
fn killed_pack_resumes_and_equals_an_undisturbed_one() {
    let packer = Packer::new(SAMPLES, SAMPLE_BYTES);
    let output = TempDir::new().unwrap();
    let undisturbed = output.path().join("undisturbed");
    assert!(packer.run(&undisturbed, &[]).status.success());
    let whole = made(&undisturbed);
    assert_eq!(whole.len(), SAMPLES + 2);

    let disturbed = output.path().join("disturbed");
    for (round, kill) in KILLS.into_iter().enumerate() {
        // From the first moments on, and later after each shard or two.
        let enough = |before: usize| match round {
            0 => count(&disturbed, ".partial") > 0,
            _ => count(&disturbed, ".tar") > before + round / 2,
        };
        let jobs = round % 2 + 1;
        let is_cut = (0..TRIES).any(|_| cut_off(&packer, &disturbed, (jobs, kill), enough));
        assert!(is_cut, "{kill:?} never came in time");
        let there = count(&disturbed, ".tar");
        assert!(there < SAMPLES);
        // What has its name is whole.
        for (name, bytes) in made(&disturbed) {
            assert!(!name.ends_with(".tar") || bytes == whole[&name], "{name}");
        }
        assert!(!disturbed.join("o.json").exists());
        let rehearsed = packer.run(&disturbed, &["--dry-run", "--json"]);
        let document: Value = serde_json::from_slice(&rehearsed.stdout).unwrap();
        assert_eq!(document["kept"], there);
    }
    let kept = count(&disturbed, ".tar");
    let ended = packer.run(&disturbed, &["--json"]);
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    let document: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(document["kept"], kept);
    assert!(made(&disturbed) == whole);

    // Once more: there is nothing to do, and that is success.
    let again = packer.run(&disturbed, &["--json"]);
    let document: Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!((again.status.code(), &document["kept"]), (Some(0), &SAMPLES.into()));
    assert!(made(&disturbed) == whole);
    // In another way: refused, and untouched.
    let other = packer.run(&disturbed, &["--shuffle"]);
    assert_eq!(other.status.code(), Some(1));
    let error = reported_error(text(&other.stderr));
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.place("record").is_some(), "another plan was packed there: {error}");
    assert!(made(&disturbed) == whole);
}

#[test]
fn full_disk_stops_pack_and_room_lets_it_resume() {
    let Some(mount) = Mount::new("size=20m") else { return };
    let packer = Packer::new(8, 4 << 20);
    let output = TempDir::new().unwrap();
    assert!(packer.run(output.path(), &[]).status.success());
    for jobs in ["1", "3"] {
        let to = mount.path().join(jobs);
        let ended = packer.run(&to, &["--jobs", jobs]);
        assert_eq!(ended.status.code(), Some(1));
        let error = text(&ended.stderr);
        let there = count(&to, ".tar");
        let error = reported_error(error);
        let whole = format!("{there} of 8");
        assert_eq!((error.kind(), error.place("whole_shards")), (ErrorKind::Full, Some(&*whole)));
        // With more room taken by parts there is less for shards.
        assert!((2..=4).contains(&there), "{there}");
        assert_eq!(count(&to, ".partial"), 0);
        assert!(!to.join("o.json").exists());
        mount.remount("size=80m");
        let ended = packer.run(&to, &["--jobs", jobs]);
        assert!(ended.status.success(), "{}", text(&ended.stderr));
        assert!(made(&to) == made(output.path()));
        fs::remove_dir_all(&to).unwrap();
        mount.remount("size=20m");
    }
}

/// The written manifest equals that of `forebay index`, and a trainer given it reads the shards:
/// from a folder, and packed again from its shards.
#[test]
fn trainer_reads_packed_shards_by_their_manifest() {
    let packer = Packer::new(23, 3000);
    let (output, cache) = (TempDir::new().unwrap(), Daemon::disk());
    let (first, second) = (output.path().join("first"), output.path().join("second"));
    let packed = packer.run(&first, &["--samples", "5", "--shuffle", "--seed", "3"]);
    // Given twice.
    assert_eq!(packed.status.code(), Some(2));
    let pack = |arguments: &[&str]| {
        let ended = packer.home.forebay(arguments).output().unwrap();
        assert!(ended.status.success(), "{}", text(&ended.stderr));
    };
    let pattern = |folder: &Path| folder.join("p-{:02d}.tar").to_str().unwrap().to_owned();
    let input = packer.input.path().to_str().unwrap();
    pack(&["pack", input, "-o", &pattern(&first), "--samples", "5", "--shuffle", "--seed", "3"]);
    let shards = first.join("p-{00..04}.tar").to_str().unwrap().to_owned();
    pack(&["pack", &shards, "-o", &pattern(&second), "--bytes", "40KB", "--jobs", "2"]);

    let daemon = Daemon::start(cache.path());
    let sequence = |folder: &Path| {
        let manifest = Manifest::read(&folder.join("p.json")).unwrap();
        assert_eq!(manifest.samples(), 23);
        let urls: Vec<String> = manifest.shards().iter().map(|shard| shard.url.clone()).collect();
        let mut open = job_with(BTreeMap::new(), urls.clone());
        open.counts = Some(manifest.of(&urls).unwrap().counts);
        let read = epoch(Address::Unix(daemon.socket().to_owned()), open).unwrap();
        assert_eq!((&read.errors[..], read.announced.1), (&[][..], 23));

        let indexed = folder.join("indexed.json");
        let address = format!("unix:{}", daemon.socket().display());
        let glob = folder.join("*.tar").to_str().unwrap().to_owned();
        pack(&["index", &glob, "-o", indexed.to_str().unwrap(), "--daemon", &address]);
        assert_eq!(Manifest::read(&indexed).unwrap(), manifest);
        read.samples.into_iter().map(|sample| (sample.key, sample.fields)).collect::<Vec<_>>()
    };
    let read = sequence(&first);
    assert_eq!(read, sequence(&second));
    assert!(!read.is_sorted_by_key(|(key, _)| key.clone()));
    let mut keys: Vec<_> = read.iter().map(|(key, _)| key.as_str()).collect();
    keys.sort_unstable();
    assert!(keys.into_iter().eq((0..23).map(|i| format!("{i:03}"))));
    for (key, fields) in read {
        let i = key.parse().unwrap();
        assert_eq!(fields["bin"], forebay_testkit::field(7, i, "bin", 3000));
        assert_eq!(fields["cls"], i.to_string().into_bytes());
    }
}

#[test]
fn invalid_inputs_are_rejected_before_any_work() {
    let packer = Packer::new(2, 10);
    let input = packer.input.path().to_str().unwrap();
    let output = TempDir::new().unwrap();
    let pattern = output.path().join("o-{}.tar").to_str().unwrap().to_owned();
    let list = output.path().join("list.csv").to_str().unwrap().to_owned();
    fs::write(&list, "txt=\nhello\n").unwrap();
    for (arguments, code, word) in [
        (vec![], 2, "<INPUT>"),
        (vec!["--seed", "1", input], 2, "--shuffle"),
        (vec!["--jobs", "0", input], 2, "--jobs"),
        (vec!["--root", "/", input], 2, "--root"),
        (vec!["--prefix-keys", input], 2, "--prefix-keys"),
        (vec!["--prefix-keys", &list], 2, "--prefix-keys"),
        (vec![input, &list], 2, "input="),
        (vec!["s3://bucket/x.tar"], 2, "url=s3://bucket/x.tar"),
        (vec!["s3://bucket/*.tar"], 2, "url=s3://bucket/*.tar"),
        (vec!["pipe:cat x.tar"], 2, "pipe:"),
        (vec!["/{0..", "-j", "1"], 2, "urls"),
        (vec!["/no/such-{0..1}.tar"], 1, "such-0.tar"),
        (vec!["/no/such-*.tar"], 1, "such-*.tar"),
        (vec!["/no/such/folder/"], 1, "folder"),
        (vec!["/no/such.csv"], 1, "such.csv"),
        (vec![input, "--bytes", "2000"], 1, "--bytes 3072"),
    ] {
        let given = [&["pack", "-o", &pattern], &arguments[..]].concat();
        let ended = packer.home.forebay(&given).output().unwrap();
        let error = text(&ended.stderr);
        assert_eq!(ended.status.code(), Some(code), "{arguments:?}: {error}");
        assert!(error.contains(word), "{arguments:?}: {error}");
    }
    assert_eq!(fs::read_dir(output.path()).unwrap().count(), 1);
    let given = ["pack", "-o", &pattern, &list, "--manifest", &format!("{list}.json")];
    assert!(packer.home.forebay(&given).status().unwrap().success());
    assert!(PathBuf::from(format!("{list}.json")).exists());
}

/// The bar goes to a terminal only; a script's standard error stays empty.
#[test]
fn pack_prints_only_its_document() {
    let packer = Packer::new(2, 10);
    let output = TempDir::new().unwrap();
    let mut child = packer.start(output.path(), &[]);
    let (mut out, mut err) = (String::new(), String::new());
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(err, "");
    let manifest = output.path().join("o.json");
    let last = out.lines().last().unwrap();
    assert!(last.starts_with(&format!("{}: 2 shards, 2 samples", manifest.display())), "{out}");
    assert_eq!(out.lines().count(), 3);
}
