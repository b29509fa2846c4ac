//! Files that a node daemon opens for nobody: each client opens what it reads, with its own rights,
//! on hits too; and what clients pass that is no such file.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use forebay_client::Address;
use forebay_error::{Error, ErrorKind};
use forebay_testkit::{is_root, shard};
use forebay_tests::{
    Answer, Daemon, HangingFile, Mount, TrainerJob, descriptors, epoch, eventually, hangs,
    job_with, played_error, readers_of, reported_error,
};
use forebay_wire::PROTOCOL;
use forebay_wire::frame::{self, Receiver};
use forebay_wire::message::{Begin, Open, Reply, Request};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};
use tempfile::TempDir;

use crate::ACTOR;

/// Three parts.
const SIZES: std::ops::Range<usize> = 90_000..110_000;
const SAMPLES: u64 = 100;

/// Users and a group that no system has.
const DAEMON: u32 = 44_100;
const OWNER: u32 = 44_101;
const STRANGER: u32 = 44_102;
const GROUP: u32 = 44_200;

fn permit(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn whole(urls: Vec<String>) -> TrainerJob {
    let open = job_with(BTreeMap::new(), urls);
    TrainerJob { open, shards: 1, samples: SAMPLES, sizes: SIZES }
}

/// A node daemon of a user that may read nothing of its clients', and a shard of one of those.
struct Node {
    folder: TempDir,
    daemon: Child,
}

impl Node {
    /// `None` where this process may not become others.
    fn new() -> Option<Self> {
        if !is_root("the daemon and its jobs are different users") {
            return None;
        }
        let folder = Daemon::disk();
        permit(folder.path(), 0o755);
        let at = |name: &str| folder.path().join(name);
        for name in ["cache", "run"] {
            fs::create_dir(at(name)).unwrap();
            permit(&at(name), 0o755);
            chown(at(name), Some(DAEMON), Some(DAEMON)).unwrap();
        }
        let file = at("0.tar");
        fs::write(&file, shard(SAMPLES, 0, &SIZES)).unwrap();
        chown(&file, Some(OWNER), Some(GROUP)).unwrap();
        permit(&file, 0o600);
        let config = format!(
            "[daemon]\nsocket = {:?}\nmemory = '512MiB'\ngroups = [{GROUP}]\n\
             [[tier]]\nname = 'nvme'\npath = {:?}\ncapacity = '256MiB'\n",
            at("run/d.sock"),
            at("cache")
        );
        fs::write(at("forebay.toml"), config).unwrap();
        let daemon = Command::new(ACTOR)
            .args(["daemon", "--config"])
            .arg(at("forebay.toml"))
            .uid(DAEMON)
            .gid(DAEMON)
            .spawn()
            .unwrap();
        let node = Self { folder, daemon };
        eventually("the daemon lets anybody knock", || {
            let found = fs::metadata(node.socket());
            found.is_ok_and(|found| found.permissions().mode() & 0o777 == 0o666)
        });
        Some(node)
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("run/d.sock")
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("0.tar")
    }

    /// Runs a trainer of this user for one epoch; returns its output.
    fn play(&self, uid: u32, url: &str) -> Output {
        let mut trainer = Command::new(ACTOR)
            .arg("once")
            .uid(uid)
            .gid(GROUP)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let part = serde_json::to_string(&(self.socket(), whole(vec![url.to_owned()]))).unwrap();
        trainer.stdin.take().unwrap().write_all(part.as_bytes()).unwrap();
        trainer.wait_with_output().unwrap()
    }

    fn assert_served(&self, uid: u32, url: &str) {
        let played = self.play(uid, url);
        let said = String::from_utf8_lossy(&played.stderr);
        assert!(played.status.success(), "{said}");
    }

    fn assert_refused(&self, uid: u32, url: &str) {
        let error = played_error(&self.play(uid, url));
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    }

    /// The command line as its own user runs it, or another.
    fn forebay(&self, uid: u32, arguments: &[&str]) -> Output {
        Command::new(ACTOR)
            .args(arguments)
            .env("FOREBAY_DAEMON", format!("unix:{}", self.socket().display()))
            .uid(uid)
            .gid(GROUP)
            .output()
            .unwrap()
    }

    fn fills(&self) -> u64 {
        let told = self.forebay(DAEMON, &["status", "--json"]);
        let status: serde_json::Value = serde_json::from_slice(&told.stdout).unwrap();
        status.pointer("/cache/fills").unwrap().as_u64().unwrap()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

/// Bears promise 8: the daemon cannot read the file, its owner can, and another user cannot, though
/// the shard is cached by then.
#[test]
fn cached_shard_is_served_to_users_who_can_open_it() {
    let Some(node) = Node::new() else { return };
    let url = node.file().to_str().unwrap().to_owned();
    node.assert_refused(STRANGER, &url);
    assert_eq!(node.fills(), 0);
    node.assert_served(OWNER, &url);
    eventually("the shard is whole", || node.fills() == 1);
    for _ in 0..2 {
        node.assert_refused(STRANGER, &url);
        node.assert_refused(STRANGER, &format!("file://{url}"));
        node.assert_served(OWNER, &url);
    }
    // Now they may, and it is the same copy.
    permit(&node.file(), 0o640);
    node.assert_served(STRANGER, &url);
    assert_eq!(node.fills(), 1, "it was fetched again");
    // Whoever cannot even reach it is refused, too.
    permit(&node.file(), 0o600);
    node.assert_refused(STRANGER, &url);
}

/// Bears promise 8: what a user's command says is that user's alone, cached or not; the daemon runs
/// nothing.
#[test]
fn command_output_is_served_to_its_own_user() {
    let Some(node) = Node::new() else { return };
    let url = format!("pipe:cat {}", node.file().display());
    node.assert_served(OWNER, &url);
    eventually("the shard is whole", || node.fills() == 1);
    // The stranger's own command is run, and may not read the file.
    let played = node.play(STRANGER, &url);
    assert_eq!(played_error(&played).kind(), ErrorKind::Unavailable, "{played:?}");
    permit(&node.file(), 0o640);
    node.assert_served(STRANGER, &url);
    eventually("it is another copy", || node.fills() == 2);
    fs::remove_file(node.file()).unwrap();
    node.assert_served(OWNER, &url);
    node.assert_served(STRANGER, &url);
    // Nobody runs one on the daemon's behalf.
    let told = node.forebay(DAEMON, &["dataset", "warm", &url]);
    assert_eq!(told.status.code(), Some(2), "{told:?}");
}

/// Bears promise 8: others than the daemon's user read their files, and do nothing else.
#[test]
fn other_users_read_their_files_and_nothing_else() {
    let Some(node) = Node::new() else { return };
    node.assert_refused(OWNER, "s3://bucket/0.tar");
    node.assert_refused(OWNER, "http://127.0.0.1:1/0.tar");
    let url = node.file().display().to_string();
    for verb in [&["status"][..], &["tier", "drain", "nvme"], &["dataset", "evict", &url]] {
        let told = node.forebay(OWNER, verb);
        assert_eq!(told.status.code(), Some(4), "{verb:?}: {told:?}");
    }
    // Who is in none of the groups is not even greeted.
    let mut outsider = Command::new(ACTOR);
    outsider.env("FOREBAY_DAEMON", format!("unix:{}", node.socket().display()));
    let told = outsider.arg("status").uid(STRANGER).gid(STRANGER).output().unwrap();
    let error = reported_error(&String::from_utf8_lossy(&told.stderr));
    let uid = STRANGER.to_string();
    assert_eq!((told.status.code(), error.place("uid")), (Some(4), Some(&*uid)), "{told:?}");
    // Indexing is a use of the file like any other.
    let manifest = node.folder.path().join("run/m.json");
    let index = |uid| node.forebay(uid, &["index", &url, "-o", manifest.to_str().unwrap()]);
    permit(&node.folder.path().join("run"), 0o777);
    assert!(!index(STRANGER).status.success());
    let told = index(OWNER);
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
}

/// A daemon in this process that opens no file by itself.
struct Inside {
    daemon: Daemon,
    disk: TempDir,
}

impl Inside {
    fn new(file_timeout: Option<Duration>) -> Self {
        let disk = Daemon::disk();
        fs::write(disk.path().join("0.tar"), shard(SAMPLES, 0, &SIZES)).unwrap();
        let mut config = Daemon::config(&disk.path().join("cache"), 1 << 28);
        config.opens_named = false;
        if let Some(limit) = file_timeout {
            config.limits.file_timeout = limit;
        }
        Self { daemon: Daemon::try_start(config).unwrap(), disk }
    }

    fn path(&self) -> PathBuf {
        self.disk.path().join("0.tar")
    }

    fn url(&self) -> String {
        self.path().display().to_string()
    }

    fn play(&self, url: String) -> Result<(), Error> {
        let mut played = epoch(self.daemon.address(), job_with(BTreeMap::new(), vec![url]))?;
        if let Some(error) = played.errors.pop() {
            return Err(error);
        }
        played.assert_whole(1, SAMPLES, &SIZES);
        Ok(())
    }
}

/// A client that answers as a test has it.
struct Client {
    socket: UnixStream,
    receiver: Receiver,
}

impl Client {
    /// One whose job on `urls` has begun.
    fn start(daemon: &Daemon, urls: Vec<String>) -> Self {
        let socket = UnixStream::connect(daemon.socket()).unwrap();
        let open = Open { prefetch: 1, ..job_with(BTreeMap::new(), urls) };
        let release = "test".to_owned();
        for request in [
            Request::Hello { protocol: PROTOCOL, release },
            Request::Open(Box::new(open)),
            Request::Play { run: 1, begin: Begin::at(0, 0) },
        ] {
            frame::send(&socket, &frame::encode(&request).unwrap(), &[]).unwrap();
        }
        Self { socket, receiver: Receiver::default() }
    }

    /// The socket of the next reader.
    fn reader(&mut self) -> UnixStream {
        self.reader_or_batch().expect("a batch came, and no reader was asked for")
    }

    /// The same, or `None` where its first batch comes before.
    fn reader_or_batch(&mut self) -> Option<UnixStream> {
        loop {
            match self.receiver.receive(&self.socket).unwrap() {
                Reply::Reader => return Some(self.receiver.take_descriptor().unwrap().into()),
                Reply::Welcome { .. } | Reply::Opened(_) => {}
                Reply::Slab { .. } => return None,
                other => panic!("unexpected: {other:?}"),
            }
        }
    }

    /// Returns the error that ends its run.
    fn end(&mut self) -> Error {
        loop {
            match self.receiver.receive(&self.socket).unwrap() {
                Reply::Failed { error, .. } => return error,
                Reply::Reader => drop(self.receiver.take_descriptor().unwrap()),
                Reply::Welcome { .. } | Reply::Opened(_) => {}
                other => panic!("unexpected: {other:?}"),
            }
        }
    }
}

impl Client {
    /// Waits for its run's end, in which nothing came.
    fn end_without_batches(&mut self) {
        loop {
            match self.receiver.receive(&self.socket).unwrap() {
                Reply::Failed { .. } => return,
                Reply::End(end) => {
                    return assert_eq!((end.batches, end.samples), (0, 0));
                }
                Reply::Reader => drop(self.receiver.take_descriptor().unwrap()),
                Reply::Welcome { .. } | Reply::Opened(_) | Reply::Learnt { .. } => {}
                other => panic!("another's samples came: {other:?}"),
            }
        }
    }
}

/// Answers each question of a reader with these descriptors, until it asks no more.
fn answer_with(reader: &UnixStream, files: &[OwnedFd]) {
    let mut receiver = Receiver::default();
    let answer: Result<(), Error> = Ok(());
    let answer = frame::encode(&answer).unwrap();
    while receiver.receive::<String>(reader).is_ok() {
        // One on each byte.
        let (first, rest) = answer.split_at(files.len().saturating_sub(1));
        let mut riders = files.iter().map(|file| [file.as_fd()]);
        let mut send = |bytes| {
            let rider = riders.next();
            let _ = frame::send(reader, bytes, rider.as_ref().map_or(&[], |rider| &rider[..]));
        };
        first.chunks(1).for_each(&mut send);
        send(rest);
    }
}

/// Bears promise 8 (a hostile client can hurt only its own session): what is passed for a shard and
/// is none ends its own run; the job beside it goes on.
#[test]
fn unreadable_descriptor_ends_its_own_run() {
    let inside = Inside::new(None);
    let at = |name: &str| inside.disk.path().join(name);
    mknodat(CWD, at("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    fs::write(at("written"), b"x").unwrap();
    let open = |path: PathBuf, flags| open(path, flags, Mode::empty()).unwrap();
    let real = || open(inside.path(), OFlags::RDONLY);
    let (near, _far) = UnixStream::pair().unwrap();
    for (what, files, kind) in [
        ("a pipe", vec![open(at("pipe"), OFlags::RDONLY | OFlags::NONBLOCK)], ErrorKind::Invalid),
        ("a folder", vec![open(at("."), OFlags::RDONLY)], ErrorKind::Invalid),
        ("a device", vec![open("/dev/zero".into(), OFlags::RDONLY)], ErrorKind::Invalid),
        ("a socket", vec![near.into()], ErrorKind::Invalid),
        ("write-only", vec![open(at("written"), OFlags::WRONLY)], ErrorKind::PermissionDenied),
        ("a place", vec![open(inside.path(), OFlags::PATH)], ErrorKind::PermissionDenied),
        ("nothing", vec![], ErrorKind::Unavailable),
        ("two files", vec![real(), real()], ErrorKind::Unavailable),
        ("many files", (0..5).map(|_| real()).collect(), ErrorKind::Unavailable),
    ] {
        let mut client = Client::start(&inside.daemon, vec![inside.url()]);
        let reader = client.reader();
        let answering = std::thread::spawn(move || answer_with(&reader, &files));
        let error = client.end();
        assert_eq!(error.kind(), kind, "{what}: {error}");
        assert!(error.to_string().contains("0.tar"), "{what}: {error}");
        drop(client);
        inside.play(inside.url()).unwrap();
        answering.join().unwrap();
    }
}

/// A client that passes another file than it names has its own copy of that, and nobody else has.
#[test]
fn other_file_under_a_shards_name_stays_private() {
    let inside = Inside::new(None);
    inside.play(inside.url()).unwrap();
    let other = inside.disk.path().join("other.tar");
    // As long, and of the same time, but another file.
    fs::write(&other, shard(SAMPLES, 1, &SIZES)).unwrap();
    let time = fs::metadata(inside.path()).unwrap().modified().unwrap();
    let file = fs::File::options().write(true).open(&other).unwrap();
    file.set_len(fs::metadata(inside.path()).unwrap().len()).unwrap();
    file.set_modified(time).unwrap();
    let mut client = Client::start(&inside.daemon, vec![inside.url()]);
    let reader = client.reader();
    let files = vec![open(&other, OFlags::RDONLY, Mode::empty()).unwrap()];
    let answering = std::thread::spawn(move || answer_with(&reader, &files));
    eventually("its copy is here", || inside.daemon.number("/cache/misses") == 2);
    inside.play(inside.url()).unwrap();
    drop(client);
    answering.join().unwrap();
    inside.play(inside.url()).unwrap();
}

/// Inode, length and time equal those of the other file: two file systems number their first files
/// alike.
#[test]
fn forged_file_is_not_taken_for_another_file() {
    let (Some(one), Some(other)) = (Mount::new("size=64m"), Mount::new("size=64m")) else { return };
    let inside = Inside::new(None);
    let at = |mount: &Mount| mount.path().join("0.tar");
    fs::write(at(&one), shard(SAMPLES, 0, &SIZES)).unwrap();
    fs::write(at(&other), vec![0; fs::metadata(at(&one)).unwrap().len() as usize]).unwrap();
    let found = fs::metadata(at(&one)).unwrap();
    let forged = fs::File::options().write(true).open(at(&other)).unwrap();
    forged.set_modified(found.modified().unwrap()).unwrap();
    let told = forged.metadata().unwrap();
    assert_eq!((found.ino(), found.len()), (told.ino(), told.len()), "nothing is forged");
    assert_eq!(found.modified().unwrap(), told.modified().unwrap());
    let url = at(&one).display().to_string();
    inside.play(url.clone()).unwrap();
    let mut client = Client::start(&inside.daemon, vec![url.clone()]);
    let reader = client.reader();
    let files = vec![open(at(&other), OFlags::RDONLY, Mode::empty()).unwrap()];
    let answering = std::thread::spawn(move || answer_with(&reader, &files));
    // Zeros are no shard: it is told of its own file.
    client.end_without_batches();
    drop(client);
    answering.join().unwrap();
    inside.play(url).unwrap();
}

/// An open shard keeps no process waiting for a client that has left.
#[test]
fn readers_of_a_client_end_with_it() {
    let inside = Inside::new(None);
    inside.play(inside.url()).unwrap();
    eventually("its readers are gone", || {
        inside.daemon.status()["mounts"].as_array().unwrap().is_empty()
    });
    inside.play(inside.url()).unwrap();
}

/// Connections come and go without a bound, so what their readers count goes by one name, and stays
/// when they are gone.
#[test]
fn open_files_of_all_clients_are_counted_together() {
    let inside = Inside::new(None);
    let scrape = || {
        let socket = UnixStream::connect(inside.daemon.socket()).unwrap();
        let answer = Answer::to(socket, ("GET", "/metrics"), "host: localhost\r\n", "");
        let is_it = |line: &&str| line.starts_with("forebay_mount_");
        answer.body.lines().filter(is_it).map(str::to_owned).collect::<Vec<_>>()
    };
    let names = |lines: &[String]| {
        lines.iter().map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect::<Vec<_>>()
    };
    let value = |lines: &[String], family: &str| {
        let line = format!("{family}{{mount=\"(files that clients open)\"}} ");
        let found = lines.iter().find_map(|of| of.strip_prefix(&line));
        found.unwrap_or_else(|| panic!("no {line} in {lines:?}")).parse::<f64>().unwrap()
    };
    let before = scrape();
    assert_eq!(value(&before, "forebay_mount_bytes_total"), 0.0);
    let (mut last, len) = (0.0, fs::metadata(inside.path()).unwrap().len() as f64);
    for _ in 0..2 {
        inside.play(inside.url()).unwrap();
        eventually("its readers are gone", || {
            inside.daemon.status()["mounts"].as_array().unwrap().is_empty()
        });
        let after = scrape();
        assert_eq!(names(&after), names(&before), "no series comes with a connection");
        assert_eq!(value(&after, "forebay_mount_bytes_total"), len, "the second found it here");
        let answers = value(&after, "forebay_mount_answer_seconds_count");
        assert!(answers > last, "{answers} after {last}");
        last = answers;
    }
}

/// A shard on its way through one client's files is not lost to others when that one goes away.
#[test]
fn leaving_client_takes_no_shard_from_others() {
    // On a busy machine one reader may read all of a shard before a second is asked for.
    let left_alone = (0..10).any(|_| a_client_leaves());
    assert!(left_alone, "no shard was ever on its way through two readers");
}

/// Returns true if it left while its shard was in flight.
fn a_client_leaves() -> bool {
    let inside = Inside::new(None);
    let mut leaving = Client::start(&inside.daemon, vec![inside.url()]);
    let first = leaving.reader();
    // Opens it once, so that a fetch begins; the readers to come get no answer.
    let mut receiver = Receiver::default();
    receiver.receive::<String>(&first).unwrap();
    let file = open(inside.path(), OFlags::RDONLY, Mode::empty()).unwrap();
    let answer: Result<(), Error> = Ok(());
    frame::send(&first, &frame::encode(&answer).unwrap(), &[file.as_fd()]).unwrap();
    let Some(second) = leaving.reader_or_batch() else { return false };
    std::thread::scope(|scope| {
        let staying = scope.spawn(|| inside.play(inside.url()));
        eventually("the other waits, too", || {
            inside.daemon.status()["jobs"].as_array().unwrap().len() == 2
        });
        drop((first, second, leaving));
        staying.join().unwrap().unwrap();
    });
    true
}

/// A file system that hangs behind a client's descriptor costs the job that passed it, and leaves
/// nothing of itself in the daemon.
#[test]
fn hanging_descriptor_fails_only_its_own_job() {
    let Some(hanging) = HangingFile::new("0.tar", &shard(SAMPLES, 0, &SIZES)) else { return };
    let inside = Inside::new(Some(Duration::from_secs(5)));
    let socket = inside.daemon.socket().to_owned();
    hanging.freeze();
    std::thread::scope(|scope| {
        let url = hanging.path().display().to_string();
        let hung =
            scope.spawn(|| epoch(Address::Unix(socket), job_with(BTreeMap::new(), vec![url])));
        eventually("a reader hangs in the kernel", || {
            readers_of(std::process::id()).into_iter().any(hangs)
        });
        let ours = descriptors(std::process::id());
        assert!(!ours.iter().any(|path| path.starts_with(hanging.mount())), "{ours:?}");
        inside.play(inside.url()).unwrap();
        let error = match hung.join().unwrap() {
            Ok(mut epoch) => epoch.errors.pop().unwrap(),
            Err(error) => error,
        };
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    });
    hanging.thaw();
    let url = hanging.path().display().to_string();
    eventually("it is read when it answers again", || inside.play(url.clone()).is_ok());
}

/// A change of the client's file is noticed.
#[test]
fn changed_file_is_read_again() {
    let inside = Inside::new(None);
    inside.play(inside.url()).unwrap();
    let replaced = inside.disk.path().join("new.tar");
    fs::write(&replaced, shard(SAMPLES, 0, &SIZES)).unwrap();
    fs::rename(&replaced, inside.path()).unwrap();
    // Another connection asks anew.
    inside.play(inside.url()).unwrap();
    inside.daemon.settle();
    assert_eq!(inside.daemon.number("/cache/misses"), 2, "the new file was not noticed");
}
