//! Readers as processes: what they hold, what becomes of a request whose reader ends, when they
//! end.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use std::io::{IoSlice, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use forebay_error::{Error, ErrorKind};
use forebay_source::{Client, Ending, Handover, Limits, Options, Rank, Source, Sources, Stat};
use forebay_testkit::{Requirement, field, skip};
use forebay_uring::{Arena, Region};
use forebay_wire::files::answer;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process};

const READER: &str = env!("CARGO_BIN_EXE_forebay-test-reader");

/// Larger than a reader reads at once, and no multiple of a sector.
const LEN: usize = (9 << 20) + 77;

struct Bench {
    dir: tempfile::TempDir,
    sources: Sources,
    arena: Arena,
    bytes: Vec<u8>,
}

impl Bench {
    fn new() -> Self {
        // Beside the build: a disk, where the temp directory may be memory.
        let dir = tempfile::tempdir_in(Path::new(READER).parent().unwrap()).unwrap();
        let bytes = field(1, 1, "tar", LEN);
        std::fs::write(dir.path().join("0.tar"), &bytes).unwrap();
        Self {
            sources: Sources::new(vec![READER.into()], Limits::default()).unwrap(),
            arena: Arena::new(Region::create("test", 32 << 20).unwrap()),
            bytes,
            dir,
        }
    }

    fn url(&self) -> String {
        format!("file://{}", self.dir.path().join("0.tar").display())
    }

    fn source(&self) -> Arc<dyn Source> {
        self.sources.open(&self.url(), &Options::default()).unwrap()
    }

    async fn stat(&self) -> Stat {
        self.source().stat(&self.url()).await.unwrap()
    }

    /// Reads a range and compares it.
    async fn read(&self, stat: &Stat, offset: usize, len: usize) {
        let into = self.arena.lease(len).await.unwrap();
        let read = self
            .source()
            .read_part(&self.url(), stat, offset as u64, into, &Rank::now(0))
            .await
            .unwrap();
        let end = (offset + len).min(LEN);
        assert!(
            read[..end - offset] == self.bytes[offset..end],
            "{len} bytes from {offset} differ"
        );
    }

    fn pids(&self) -> Vec<u32> {
        let report = self.sources.readers().report();
        report.into_iter().flat_map(|mount| mount.readers).collect()
    }
}

fn descriptors(pid: u32) -> Vec<PathBuf> {
    let listed = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    listed.map(|entry| std::fs::read_link(entry.unwrap().path()).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn any_range_of_a_file_is_read() {
    let bench = Bench::new();
    let stat = bench.stat().await;
    assert_eq!(stat.len, LEN as u64);
    for (offset, len) in [
        (0, 16 << 20),
        (0, 1),
        (1, 4096),
        (4095, 2),
        (4 << 20, 4 << 20),
        ((4 << 20) - 1, (4 << 20) + 2),
        (LEN - 1, 4096),
        (LEN - 77, 77),
    ] {
        bench.read(&stat, offset, len).await;
    }
}

/// A short read takes what is in the page cache, and the rest from the disk.
#[tokio::test(flavor = "multi_thread")]
async fn short_reads_are_whole_however_much_is_cached() {
    let bench = Bench::new();
    let path = bench.dir.path().join("0.tar");
    let file = std::fs::File::open(&path).unwrap();
    let short = &bench.bytes[..(200 << 10) + 77];
    std::fs::write(&path, short).unwrap();
    let stat = bench.stat().await;
    for cached in [0, 4096, short.len()] {
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        // No more than is asked for.
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
        let mut seen = vec![0; cached];
        file.read_exact_at(&mut seen, 0).unwrap();
        for (offset, len) in [(0, short.len()), (0, 1 << 20), (1, 5000), (short.len() - 7, 7)] {
            let into = bench.arena.lease(len).await.unwrap();
            let (source, url, rank) = (bench.source(), bench.url(), Rank::now(0));
            let read = source.read_part(&url, &stat, offset as u64, into, &rank);
            let (read, end) = (read.await.unwrap(), (offset + len).min(short.len()));
            assert!(read[..end - offset] == short[offset..end], "{offset} {len} {cached}");
        }
    }
}

/// The name under which this crate's test reader looks for layouts; the kernel call is the real
/// one.
const LAYOUT: &str = "user.lustre.lov";

/// Stripes change the reads, not the bytes.
#[tokio::test(flavor = "multi_thread")]
async fn striped_file_is_read_by_its_layout() {
    let bench = Bench::new();
    let path = bench.dir.path().join("0.tar");
    let plain = bench.stat().await;
    let set =
        |value: &[u8]| rustix::fs::setxattr(&path, LAYOUT, value, rustix::fs::XattrFlags::empty());
    if let Err(error) = set(b"no layout") {
        return skip(Requirement::Xattr, &error.to_string());
    }
    // An implausible layout counts as none.
    assert_eq!(bench.stat().await.layout, plain.layout);
    for value in [
        &include_bytes!("layouts/plain-4x1m.lov")[..],
        include_bytes!("layouts/plain-2x3m.lov"),
        include_bytes!("layouts/progressive.lov"),
    ] {
        set(value).unwrap();
        let stat = bench.stat().await;
        assert_eq!(stat.version, plain.version);
        assert_ne!(stat.layout, plain.layout, "the attribute is read");
        for (offset, len) in [(0, 16 << 20), ((3 << 20) - 1, 2), (4095, (1 << 20) + 7)] {
            bench.read(&stat, offset, len).await;
        }
    }
}

/// The next daemon needs the lock and the socket, however this one ended.
#[tokio::test(flavor = "multi_thread")]
async fn reader_inherits_no_descriptors_of_its_daemon() {
    let bench = Bench::new();
    let lock = std::fs::File::create(bench.dir.path().join("lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let _listener = UnixListener::bind(bench.dir.path().join("socket")).unwrap();
    bench.stat().await;
    let pid = bench.pids()[0];
    let mut kinds: Vec<String> = descriptors(pid)
        .into_iter()
        .map(|path| path.to_string_lossy().split([':', ' ']).next().unwrap().to_owned())
        .collect();
    kinds.sort();
    // The socket, twice, and the memory.
    assert_eq!(kinds, ["/dev/null", "/dev/null", "/memfd", "socket", "socket"]);
    let is_socket = |path: &PathBuf| path.to_string_lossy().starts_with("socket:");
    let sockets: Vec<_> = descriptors(pid).into_iter().filter(is_socket).collect();
    assert_eq!(sockets[0], sockets[1]);
    assert_eq!(std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap(), Path::new("/"));
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let group = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(2).unwrap();
    assert_eq!(group, pid.to_string(), "a Ctrl-C would reach it");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_readers_are_replaced() {
    let bench = Bench::new();
    let stat = bench.stat().await;
    let read = |n: usize| bench.read(&stat, n << 20, 1 << 20);
    futures::future::join_all((0..8).map(read)).await;
    let before = bench.pids();
    assert!((1..=4).contains(&before.len()), "{before:?}");
    for pid in &before {
        kill_process(Pid::from_raw(*pid as i32).unwrap(), Signal::KILL).unwrap();
    }
    futures::future::join_all((0..8).map(read)).await;
    // A killed one is listed until it was waited for.
    while bench.pids().iter().any(|pid| before.contains(pid)) {
        tokio::task::yield_now().await;
    }
    let after = bench.pids();
    assert!((1..=4).contains(&after.len()), "{after:?}");
}

/// A killed daemon closes its end of the socket and does nothing else.
#[test]
fn reader_waiting_for_a_client_ends_with_its_daemon() {
    let (daemon, far) = UnixStream::pair().unwrap();
    let (mut client, passed) = UnixStream::pair().unwrap();
    let mut reader =
        Command::new(READER).arg("client").stdin(Stdio::from(OwnedFd::from(far))).spawn().unwrap();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rider = SendAncillaryBuffer::new(&mut space);
    let rights = [passed.as_fd()];
    assert!(rider.push(SendAncillaryMessage::ScmRights(&rights)));
    rustix::net::sendmsg(&daemon, &[IoSlice::new(&[0])], &mut rider, SendFlags::empty()).unwrap();
    client.read_exact(&mut [0]).unwrap();
    drop(daemon);
    // A reader that goes on waiting hangs this test: its client never answers.
    assert!(reader.wait().unwrap().success());
}

/// A client that opens every file it is asked for.
struct Opening;

#[async_trait]
impl Handover for Opening {
    async fn hand(&self, socket: OwnedFd) -> Result<(), Error> {
        let open = |path: &str| Ok(std::fs::File::open(path).unwrap().into());
        std::thread::spawn(move || answer(&UnixStream::from(socket), open));
        Ok(())
    }

    async fn run(&self, _: &str, _: OwnedFd) -> Result<Ending, Error> {
        Err(Error::new(ErrorKind::Invalid, "no command is named"))
    }
}

/// A user with so many connections that each keeping a reader takes all there are.
#[tokio::test(flavor = "multi_thread")]
async fn idle_readers_leave_room_for_other_connections() {
    const CONNECTIONS: u64 = 66;
    let bench = Bench::new();
    let connections: Vec<_> = (0..CONNECTIONS)
        .map(|number| {
            let handover = Arc::new(Opening);
            let client = Client { name: number.to_string(), user: 7, permit: None, handover };
            bench.sources.by_client(&client)
        })
        .collect();
    let stat = async |connection| {
        let source = bench.sources.open_for(&bench.url(), &Options::default(), Some(connection));
        source.unwrap().stat(&bench.url()).await.unwrap().len
    };
    for connection in &connections {
        // Below the time after which a mount counts as hung.
        let found = tokio::time::timeout(Duration::from_secs(30), stat(connection)).await;
        assert_eq!(found.expect("an idle reader ends for it"), LEN as u64);
    }
    assert!(bench.pids().len() <= 64);
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_reader_program_is_named() {
    let bench = Bench::new();
    for (program, kind) in [("/bin/true", ErrorKind::Unavailable), ("/no/such", ErrorKind::Invalid)]
    {
        let sources = Sources::new(vec![program.into()], Limits::default()).unwrap();
        let source = sources.open(&bench.url(), &Options::default()).unwrap();
        let error = source.stat(&bench.url()).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        // Of a program that ends, the cause has its path.
        let cause = error.place("reader").unwrap_or_default();
        let is_named = error.place("program") == Some(program);
        assert!(is_named || cause.contains(&format!("program={program}")), "{error}");
        assert!(error.place("url").is_some_and(|url| url.ends_with("0.tar")), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pipes_and_folders_are_rejected_without_waiting() {
    let bench = Bench::new();
    let pipe = bench.dir.path().join("pipe");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let stat = bench.stat().await;
    for path in [pipe.as_path(), bench.dir.path()] {
        let url = path.to_str().unwrap();
        let error = bench.source().stat(url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        let into = bench.arena.lease(4096).await.unwrap();
        bench.source().read_part(url, &stat, 0, into, &Rank::now(0)).await.unwrap_err();
    }
    let long = format!("/{}", "x".repeat(100_000));
    assert_eq!(bench.source().stat(&long).await.unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn readers_end_with_their_daemon() {
    let bench = Bench::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async { bench.read(&bench.stat().await, 0, 4096).await });
    let pid = Pid::from_raw(bench.pids()[0] as i32).unwrap();
    drop(runtime);
    drop(bench);
    // Killed, or ended by itself: there is nothing to wait for but its end.
    rustix::process::waitid(WaitId::Pid(pid), WaitIdOptions::EXITED).ok();
    assert!(!Path::new(&format!("/proc/{}/fd/0", pid.as_raw_nonzero())).exists());
}
