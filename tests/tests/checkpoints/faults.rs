//! Checkpoints on disks that are full, and from clients that lie.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use forebay_client::{Connection, Deadline, Level};
use forebay_error::{Error, ErrorKind};
use forebay_shard::checksum::crc32c;
use forebay_tests::{
    Daemon, PATIENCE, SavingNode, eventually, metadata, patterned, saves_anywhere, walk,
};
use forebay_uring::{Attempt, AttemptKind, Fate, Faults};
use forebay_wire::checkpoint as wire;
use forebay_wire::checkpoint::{BLOCK, Block, Place, Request, Save};
use forebay_wire::frame::Receiver;
use forebay_wire::lent::Lent;
use forebay_wire::message;
use rustix::io::Errno;

const MIB: usize = 1 << 20;

/// Writes until the disk is full: more than those of one save.
const WRITES: i64 = 12;

/// A disk without room after some writes.
#[derive(Debug)]
struct FillingDisk {
    folder: PathBuf,
    left: AtomicI64,
}

impl Faults for FillingDisk {
    fn fate(&self, attempt: &Attempt<'_>) -> Fate {
        let is_here = attempt.file.path().is_some_and(|path| path.starts_with(&self.folder));
        let is_write = matches!(attempt.kind, AttemptKind::Write | AttemptKind::Sync);
        match is_here && is_write && self.left.fetch_sub(1, Ordering::SeqCst) <= 0 {
            true => Fate::Fail(Errno::NOSPC.raw_os_error()),
            false => Fate::Pass,
        }
    }

    fn landed(&self, _attempt: &Attempt<'_>, _is_ok: bool) {}
}

/// A disk that is full at any write costs that save, and nothing else.
#[test]
fn full_disk_costs_one_save_and_leaves_nothing() {
    let mut bench = SavingNode::to_folder();
    bench.daemon = None;
    let disk = Arc::new(FillingDisk {
        folder: bench.cache.path().to_owned(),
        left: AtomicI64::new(i64::MAX),
    });
    let mut config = saves_anywhere(Daemon::config(bench.cache.path(), 1 << 30));
    config.faults = Some(disk.clone());
    bench.daemon = Some(Daemon::try_start(config).unwrap());
    let url = bench.url.clone();
    let used = || bench.daemon().tier("nvme").counters.used_bytes;
    let (mut full, mut saved) = (0, 0);
    for writes in 0..WRITES {
        let held = used();
        let staged = bench.staged().len();
        disk.left.store(writes, Ordering::SeqCst);
        let wanted = patterned(9 * MIB, writes as u64);
        let ended =
            bench.writer("0", writes as u8 + 1, wanted.len() as u64).and_then(|mut file| {
                file.write(&wanted)?;
                file.finish(None)
            });
        disk.left.store(i64::MAX, Ordering::SeqCst);
        match ended {
            Ok(_) => saved += 1,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Full, "after {writes} writes: {error}");
                full += 1;
                eventually("nothing of it is left", || {
                    used() == held && bench.staged().len() == staged
                });
            }
        }
    }
    assert!(full > 3 && saved > 0, "{full} were full, {saved} were saved");
    // The disk has room again.
    bench.save("last", 100, &patterned(5 * MIB, 100));
    bench.commit(101, &[100], false);
    bench.wait(Level::Published).unwrap();
    assert_eq!(bench.url, url);
    assert!(bench.load("last").unwrap() == patterned(5 * MIB, 100));
}

/// A disk without room while a file is there.
#[derive(Debug, Default)]
struct CrowdedDisk(Mutex<Option<PathBuf>>);

impl Faults for CrowdedDisk {
    fn fate(&self, attempt: &Attempt<'_>) -> Fate {
        let crowding = self.0.lock().unwrap();
        match crowding.as_ref().is_some_and(|path| path.exists()) {
            true if attempt.kind == AttemptKind::Write => Fate::Fail(Errno::NOSPC.raw_os_error()),
            _ => Fate::Pass,
        }
    }

    fn landed(&self, _attempt: &Attempt<'_>, _is_ok: bool) {}
}

/// Local copies of stored files make room on a disk that others fill.
#[test]
fn copies_of_stored_files_go_for_a_save_on_a_full_disk() {
    let mut bench = SavingNode::to_folder();
    bench.daemon = None;
    let disk = Arc::new(CrowdedDisk::default());
    let mut config = saves_anywhere(Daemon::config(bench.cache.path(), 1 << 30));
    config.faults = Some(disk.clone());
    bench.daemon = Some(Daemon::try_start(config).unwrap());
    bench.save_alone("old", 1, &patterned(MIB, 1));
    let old = format!("{}/old", bench.url);
    bench.place_at(&old, "").wait(Level::Uploaded).unwrap();
    let copy = bench.staged().remove(0);
    *disk.0.lock().unwrap() = Some(copy.clone());
    bench.save_alone("new", 2, &patterned(MIB, 2));
    assert!(!copy.exists());
    assert!(bench.load("new").unwrap() == patterned(MIB, 2));
    assert!(bench.load("old").unwrap() == patterned(MIB, 1));
}

/// A connection by hand.
struct Liar {
    connection: Connection,
    receiver: Receiver,
    lent: Option<Lent>,
}

impl Liar {
    fn new(bench: &SavingNode) -> Self {
        let connection =
            Connection::open(bench.daemon().socket(), &Deadline::after(PATIENCE)).unwrap();
        Self { connection, receiver: Receiver::default(), lent: None }
    }

    fn ask(&mut self, request: Request) -> Result<wire::Reply, Error> {
        self.connection.send(&message::Request::Checkpoint(Box::new(request))).unwrap();
        self.hear()
    }

    /// Waits for an answer; what it may use is all the same to it.
    fn hear(&mut self) -> Result<wire::Reply, Error> {
        loop {
            match self.connection.receive(&mut self.receiver).unwrap() {
                message::Reply::Checkpoint(reply) => match *reply {
                    wire::Reply::Backed { .. } => {}
                    reply => return Ok(reply),
                },
                message::Reply::Failed { error, .. } => return Err(error),
                other => panic!("{other:?}"),
            }
        }
    }

    fn save(&mut self, bench: &SavingNode, name: &str, id: u8) {
        let place =
            Place { url: bench.url.clone(), name: name.to_owned(), origin: Default::default() };
        let (id, expected, is_lone, job) = ([id; 16], 0, false, "liar".to_owned());
        let reply = self.ask(Request::Save(Save { place, id, expected, is_lone, job })).unwrap();
        let wire::Reply::Ready { memory } = reply else { panic!("{reply:?}") };
        if self.lent.is_none() {
            self.lent = Some(Lent::map(self.receiver.take_descriptor().unwrap(), memory).unwrap());
        }
    }

    fn fill(&mut self, bytes: &[u8]) {
        self.lent.as_mut().unwrap().write(0, bytes);
    }

    /// Kind of the error of a request that is wrong.
    fn rejected(&mut self, request: Request) -> ErrorKind {
        self.ask(request).unwrap_err().kind()
    }
}

/// Bears promise 8: senseless requests about a file end neither the connection nor another save.
#[test]
fn senseless_blocks_are_rejected_one_by_one() {
    let bench = SavingNode::to_folder();
    let mut liar = Liar::new(&bench);
    let block = |number, memory, len| Block { number, memory, len, crc: 0 };
    let read = |block| Request::Read { block, is_distrusted: false };
    let seal = |len| Request::Seal { len, commit: None };
    for early in [Request::Write(block(0, 0, 1)), read(block(0, 0, 1)), seal(0)] {
        assert_eq!(liar.rejected(early), ErrorKind::Invalid);
    }
    liar.save(&bench, "0", 1);
    let memory = 64 << 20;
    for wrong in [
        block(0, 0, 0),
        block(0, 0, BLOCK + 1),
        block(0, 0, u64::MAX),
        block(0, 1, BLOCK),
        block(0, memory, BLOCK),
        block(0, memory - BLOCK + 4096, BLOCK),
        block(0, u64::MAX - 4095, BLOCK),
        block(u64::MAX, 0, BLOCK),
        block(u64::MAX / BLOCK, 0, BLOCK),
    ] {
        assert_eq!(liar.rejected(Request::Write(wrong)), ErrorKind::Invalid, "{wrong:?}");
    }
    assert_eq!(liar.rejected(read(block(0, 0, 1))), ErrorKind::Invalid, "it writes");
    // A failed block spoils its file alone.
    assert_eq!(liar.rejected(seal(0)), ErrorKind::Invalid);
    let cases = [(0, 1), (1, BLOCK + 1), (2, BLOCK), (1, BLOCK - 1)];
    for (id, (sent, len)) in (10..).zip(cases) {
        liar.save(&bench, "0", id);
        for number in 0..sent {
            liar.ask(Request::Write(block(number, 0, BLOCK))).unwrap();
        }
        assert_eq!(liar.rejected(seal(len)), ErrorKind::Invalid, "{sent} blocks of {len} bytes");
    }
    eventually("nothing is staged", || bench.staged().is_empty());
    // The same connection saves for real.
    let bytes = patterned(1000, 3);
    liar.save(&bench, "0", 3);
    liar.fill(&bytes);
    let crc = crc32c(&bytes);
    liar.ask(Request::Write(Block { number: 0, memory: 0, len: 1000, crc })).unwrap();
    liar.ask(seal(1000)).unwrap();
    // Its lent memory is for others now.
    drop(liar);
    bench.commit(4, &[3], false);
    bench.wait(Level::Published).unwrap();
    assert_eq!(bench.load("0").unwrap(), bytes);
}

/// Bytes that change under the daemon's hands, or that have a wrong checksum, never get to the
/// store.
#[test]
fn lies_about_bytes_spoil_only_their_own_file() {
    let bench = SavingNode::to_folder();
    let other = SavingNode { url: format!("{}-other", bench.url), ..SavingNode::to_folder() };
    let mut liar = Liar::new(&bench);
    let right = patterned(BLOCK as usize, 1);
    for id in 1..=8_u8 {
        let name = format!("{id}");
        liar.save(&bench, &name, id);
        liar.fill(&right);
        let crc = if id % 4 == 0 { 7 } else { crc32c(&right) };
        let write = Request::Write(Block { number: 0, memory: 0, len: BLOCK, crc });
        liar.connection.send(&message::Request::Checkpoint(Box::new(write))).unwrap();
        // While the disk may be reading it.
        liar.fill(&patterned(BLOCK as usize, 99));
        assert!(matches!(liar.hear().unwrap(), wire::Reply::Done { number: 0 }));
        liar.ask(Request::Seal { len: BLOCK, commit: None }).unwrap();
    }
    // An honest save beside it is published.
    other.save("0", 20, &patterned(MIB, 20));
    other.commit(21, &[20], false);
    other.wait(Level::Published).unwrap();
    let error = bench.wait(Level::Uploaded).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    for path in walk(bench.folder.path()) {
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.parse::<u8>().is_ok() && path.starts_with(&bench.url) {
            assert!(fs::read(&path).unwrap() == right, "{name} is not what its checksum says");
        }
    }
    assert!(!bench.object("4").exists() && !bench.object("8").exists());
    assert_eq!(fs::read(other.object(".metadata")).unwrap(), metadata(21));
}
