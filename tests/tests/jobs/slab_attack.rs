//! Another user with the slab's descriptor in hand.

use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use forebay_client::{Connection, Deadline};
use forebay_testkit::is_root;
use forebay_tests::{Daemon, Origin, PATIENCE, job, loader, play};
use forebay_wire::frame::Receiver;
use forebay_wire::message::{Begin, Reply, Request};
use forebay_wire::slab::Slab;

const SIZES: std::ops::Range<usize> = 30_000..40_000;

/// `nobody` on every distribution.
const NOBODY: u32 = 65_534;

/// Tries everything that changes a memory file, through the descriptor and through one opened anew;
/// prints what succeeded.
const ATTACK: &str = r#"
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None, use_errno=True)
given = int(sys.argv[1])
size = os.fstat(given).st_size
def punch(fd):
    if libc.fallocate(fd, 3, ctypes.c_long(0), ctypes.c_long(4096)) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")
def attack(name, fd):
    for what, how in [
        ("empty", lambda: os.ftruncate(fd, 0)),
        ("shrink", lambda: os.ftruncate(fd, size - 4096)),
        ("grow", lambda: os.ftruncate(fd, size + 4096)),
        ("write", lambda: os.pwrite(fd, b"x" * 4096, 0)),
        ("punch", lambda: punch(fd)),
        ("map", lambda: mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)),
    ]:
        try:
            how()
            print(name, what)
        except OSError:
            pass
attack("given", given)
for path in sys.argv[2:]:
    for flags in [os.O_RDWR, os.O_WRONLY, os.O_RDWR | os.O_TRUNC]:
        try:
            attack(path, os.open(path, flags))
        except OSError:
            pass
assert os.fstat(given).st_size == size, "the size changed"
print("tried everything")
"#;

/// Bears promise 8 (a hostile client can hurt only its own session): nothing that another user does
/// with a slab's descriptor changes its bytes or its length, and the daemon lives on.
#[test]
fn slab_descriptor_gives_no_write_access() {
    let origin = Origin::with_shards(1, 40, &SIZES);
    let disk = Daemon::disk();
    let daemon = Daemon::start(disk.path());
    let connection = Connection::open(daemon.socket(), &Deadline::after(PATIENCE)).unwrap();
    connection.send(&Request::Open(Box::new(job(&origin, Origin::urls(1))))).unwrap();
    connection.send(&Request::Play { run: 1, begin: Begin::at(0, 0) }).unwrap();
    let mut receiver = Receiver::default();
    let mut slab = None;
    let batch = loop {
        match connection.receive(&mut receiver).unwrap() {
            Reply::Slab { len, .. } => {
                let descriptor = receiver.take_descriptor().unwrap();
                slab = Some((Slab::map(descriptor.try_clone().unwrap(), len).unwrap(), descriptor));
            }
            Reply::Placed { batch, .. } => break batch,
            _ => {}
        }
    };
    let (slab, descriptor) = slab.expect("a slab comes before its batches");
    let members: Vec<_> = batch.samples.iter().flat_map(|s| s.members.clone().unwrap()).collect();
    let read = || members.iter().map(|m| slab.get(m.offset, m.len).unwrap().to_vec());
    let before: Vec<Vec<u8>> = read().collect();
    assert_eq!(before[0], forebay_testkit::image(0, 0, &SIZES));

    rustix::io::fcntl_setfd(&descriptor, rustix::io::FdFlags::empty()).unwrap();
    let number = descriptor.as_raw_fd();
    let mut attacker = Command::new("python3");
    attacker.args(["-c", ATTACK, &number.to_string(), &format!("/proc/self/fd/{number}")]);
    attacker.arg(format!("/proc/{}/fd/{number}", std::process::id()));
    // Without root, and where that may be skipped, the attacker is the same user.
    if is_root("the attacker is another user") {
        attacker.uid(NOBODY).gid(NOBODY);
    }
    let attacked = attacker.output().expect("Python is here");
    let said = String::from_utf8_lossy(&attacked.stdout);
    assert_eq!(said, "tried everything\n", "{}", String::from_utf8_lossy(&attacked.stderr));

    assert!(read().eq(before), "bytes of a lent slot changed");
    let bystander = loader(daemon.address(), job(&origin, Origin::urls(1))).unwrap();
    play(&bystander, 0, 0).unwrap().assert_whole(1, 40, &SIZES);
}
