//! Peers that do not keep to the protocol: each ends only its own connection.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;

use forebay_client::{Connection, Deadline};
use forebay_error::ErrorKind;
use forebay_testkit::is_root;
use forebay_tests::{Daemon, Origin, PATIENCE, eventually, job, loader, play};
use forebay_wire::PROTOCOL;
use forebay_wire::frame::{self, Receiver};
use forebay_wire::message::{Begin, Open, Order, Reply, Request};

const SIZES: std::ops::Range<usize> = 30_000..40_000;

/// Bears promise 8 (a hostile client can hurt only its own session): whatever a peer sends, it gets
/// an error or the end of its connection, and a job beside it goes on undisturbed.
#[test]
fn protocol_violation_ends_only_its_own_connection() {
    let origin = Origin::with_shards(2, 40, &SIZES);
    let disk = Daemon::disk();
    let daemon = Daemon::start(disk.path());
    let bystander = loader(daemon.address(), job(&origin, Origin::urls(2))).unwrap();
    play(&bystander, 0, 0).unwrap().assert_whole(2, 40, &SIZES);

    let hello = frame::encode(&Request::Hello { protocol: 1, release: "x".into() }).unwrap();
    let old = frame::encode(&Request::Hello { protocol: 0, release: "x".into() }).unwrap();
    let start = frame::encode(&Request::Play { run: 1, begin: Begin::at(0, 0) }).unwrap();
    let release = frame::encode(&Request::Release { slab: 1, slot: 1 }).unwrap();
    let open = job(&origin, Origin::urls(2));
    let open = frame::encode(&Request::Open(Box::new(open))).unwrap();
    let oversized = u32::MAX.to_le_bytes().to_vec();
    let garbage: Vec<u8> = (0..4096u32).map(|i| (i * 31 % 251) as u8).collect();
    let small_garbage = [&8u32.to_le_bytes()[..], &[0xFF; 8]].concat();
    let cut = hello[..hello.len() - 1].to_vec();
    for (what, sent) in [
        ("garbage", vec![garbage]),
        ("a frame that is no message", vec![small_garbage.clone()]),
        ("an oversized frame", vec![oversized.clone()]),
        ("an oversized frame after the greeting", vec![hello.clone(), oversized]),
        ("garbage after the greeting", vec![hello.clone(), small_garbage]),
        ("half a frame", vec![cut]),
        ("no greeting", vec![start.clone()]),
        ("two greetings", vec![hello.clone(), hello.clone()]),
        ("a protocol long gone", vec![old]),
        ("a start without a job", vec![hello.clone(), start]),
        ("a release without a job", vec![hello.clone(), release]),
        ("two jobs", vec![hello, open.clone(), open]),
    ] {
        let mut socket = UnixStream::connect(daemon.socket()).unwrap();
        for bytes in sent {
            // The daemon may have hung up already.
            let _ = socket.write_all(&bytes);
        }
        socket.shutdown(std::net::Shutdown::Write).unwrap();
        // The connection ends; were it kept, this would wait for ever.
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer);
        eventually(what, || daemon.status()["jobs"].as_array().unwrap().len() == 1);
    }
    play(&bystander, 1, 0).unwrap().assert_whole(2, 40, &SIZES);
    assert_eq!(bystander.stats().reconnects, 0);
}

/// Bears promise 8: releases of slots that were never lent change nothing, and an invalid job
/// leaves its connection usable.
#[test]
fn invalid_request_is_rejected_without_side_effects() {
    let origin = Origin::with_shards(1, 40, &SIZES);
    let disk = Daemon::disk();
    let daemon = Daemon::start(disk.path());
    let connection = Connection::open(daemon.socket(), &Deadline::after(PATIENCE)).unwrap();
    let mut senseless = job(&origin, Origin::urls(1));
    senseless.order.batch_size = 0;
    let error = connection
        .ask(&Request::Open(Box::new(senseless)), &Deadline::after(PATIENCE))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let open = job(&origin, Origin::urls(1));
    connection.send(&Request::Open(Box::new(open))).unwrap();
    for slot in [0, 1, 7, u64::MAX] {
        connection.send(&Request::Release { slab: 1, slot }).unwrap();
        connection.send(&Request::Release { slab: u32::MAX, slot }).unwrap();
    }
    connection.send(&Request::Play { run: 1, begin: Begin::at(0, 0) }).unwrap();
    let mut receiver = Receiver::default();
    let (mut batches, mut learnt) = (0, Vec::new());
    loop {
        match connection.receive(&mut receiver).unwrap() {
            Reply::Opened(opened) => assert_eq!(opened.lanes, 1),
            Reply::Slab { .. } => drop(receiver.take_descriptor().unwrap()),
            Reply::Placed { batch, offsets } => {
                assert_eq!(offsets.len(), batch.samples.len());
                batches += 1;
                let (slab, slot) = (batch.slab, batch.slot);
                connection.send(&Request::Release { slab, slot }).unwrap();
                // Twice: the second is for a slot that is no longer lent.
                connection.send(&Request::Release { slab, slot }).unwrap();
            }
            Reply::Learnt { run: 1, counts } => learnt = counts,
            Reply::End(end) => break assert_eq!((batches, end.samples), (5, 40)),
            other => panic!("unexpected: {other:?}"),
        }
    }
    assert_eq!(learnt, [40]);
}

/// Bears promise 8 (least privilege): another user is turned away, even one whom the socket's mode
/// would let in.
#[test]
fn other_user_is_rejected() {
    use std::os::unix::fs::PermissionsExt;
    if !is_root("a client is another user than the daemon") {
        return;
    }
    let disk = Daemon::disk();
    let daemon = Daemon::start(disk.path());
    let open = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open(daemon.socket(), 0o666);
    open(daemon.socket().parent().unwrap(), 0o755);
    // A program at hand everywhere that connects, sends a greeting and tells what comes back: 9 for
    // a greeting, behind the four bytes of its length, 0 for a refusal or a connection that ended,
    // 1 for whatever else went wrong.
    let script = "\
import socket, sys
s = socket.socket(socket.AF_UNIX)
try:
    s.connect(sys.argv[1])
    s.sendall(bytes([4, 0, 0, 0, 0, 4, 1, 120]))
    answer = s.recv(5)
except (BrokenPipeError, ConnectionResetError, PermissionError):
    answer = b''
sys.exit(9 if answer[4:] == b'\\0' else 0)";
    let ask = |uid: u32| {
        let mut command = Command::new("python3");
        command.args(["-c", script]).arg(daemon.socket()).uid(uid);
        command.output().expect("Python is here").status.code()
    };
    assert_eq!(ask(0), Some(9), "this user is greeted");
    assert_eq!(ask(65_534), Some(0), "another is not");
}

/// A connection that sends these bytes and nothing more.
fn sends(daemon: &Daemon, frames: &[&[u8]]) -> UnixStream {
    let socket = UnixStream::connect(daemon.socket()).unwrap();
    for bytes in frames {
        assert_eq!(frame::send(&socket, bytes, &[]).unwrap(), bytes.len());
    }
    socket
}

fn greeting() -> Vec<u8> {
    frame::encode(&Request::Hello { protocol: PROTOCOL, release: "test".to_owned() }).unwrap()
}

/// The length of a frame of this many MiB and the byte that names its kind.
fn announced(mebibytes: u32, kind: u8) -> Vec<u8> {
    let mut frame = (mebibytes << 20).to_le_bytes().to_vec();
    frame.push(kind);
    frame
}

/// The kind of the error that a connection receives, behind the answer to its greeting.
fn failed(socket: &UnixStream) -> ErrorKind {
    let mut receiver = Receiver::default();
    loop {
        match receiver.receive(socket).unwrap() {
            Reply::Welcome { .. } => {}
            Reply::Failed { error, .. } => return error.kind(),
            other => panic!("unexpected: {other:?}"),
        }
    }
}

#[test]
fn announced_lists_count_against_the_memory() {
    let disk = Daemon::disk();
    let daemon = Daemon::start(disk.path());
    // An `Open` of more than there is at all, once received and once decoded.
    assert_eq!(failed(&sends(&daemon, &[&greeting(), &announced(100, 1)])), ErrorKind::Full);
    assert_eq!(daemon.number("/slab_bytes"), 0);
    let held = sends(&daemon, &[&greeting(), &announced(48, 1)]);
    eventually("the list is reserved", || daemon.number("/slab_bytes") == 96 << 20);
    for kind in [1, 6, 8] {
        let more = sends(&daemon, &[&greeting(), &announced(48, kind)]);
        assert_eq!(failed(&more), ErrorKind::Full, "{kind}");
    }
    drop(held);
    eventually("the memory is free again", || daemon.number("/slab_bytes") == 0);
}

/// A list that takes far more memory than its frame is charged for what it takes.
#[test]
fn small_frames_of_large_lists_are_rejected() {
    let disk = Daemon::disk();
    let daemon = Daemon::start(disk.path());
    // As 24 MiB, of which a list grows to have room for twice as many.
    let open = |count| Open::new("test", vec![String::new(); count], Order::of_list(1));
    let open = frame::encode(&Request::Open(Box::new(open(8 << 20)))).unwrap();
    let sent = |frame: Vec<u8>| {
        let socket = sends(&daemon, &[&greeting()]);
        let mut sending = socket.try_clone().unwrap();
        std::thread::spawn(move || {
            // The daemon may hang up before it has all of it.
            let _ = sending.write_all(&frame);
        });
        failed(&socket)
    };
    assert_eq!(sent(open), ErrorKind::Full);
    // Of one request of each size: a map of empty texts, two bytes an entry.
    for entries in [16_u32 << 10, 1 << 20] {
        let mut body = vec![5, 0];
        let mut left = entries;
        while left >= 0x80 {
            body.push((left & 0x7f) as u8 | 0x80);
            left >>= 7;
        }
        body.push(left as u8);
        body.resize(body.len() + 2 * entries as usize, 0);
        let mut frame = (body.len() as u32).to_le_bytes().to_vec();
        frame.append(&mut body);
        assert_eq!(sent(frame), ErrorKind::Invalid, "{entries}");
    }
    eventually("the memory is free again", || daemon.number("/slab_bytes") == 0);
}

#[test]
fn request_too_long_for_its_kind_is_rejected() {
    let disk = Daemon::disk();
    let daemon = Daemon::start(disk.path());
    for kind in [0, 4, 7, 11, 14, 200] {
        let socket = sends(&daemon, &[&greeting(), &announced(33, kind)]);
        assert_eq!(failed(&socket), ErrorKind::Invalid, "{kind}");
    }
    // A greeting is small.
    for len in [65_537, 1 << 20, u32::MAX >> 8] {
        assert_eq!(failed(&sends(&daemon, &[&len.to_le_bytes()])), ErrorKind::Invalid, "{len}");
    }
}

#[test]
fn silent_connections_give_way_to_new_ones() {
    let disk = Daemon::disk();
    let daemon = Daemon::start(disk.path());
    // Nothing at all, a part of a length, and a part of a greeting.
    let parts: [&[u8]; 3] = [&[], &[9, 0], &[9, 0, 0, 0, 0, 4]];
    let silent: Vec<_> = (0..200).map(|n| sends(&daemon, &[parts[n % 3]])).collect();
    let is_closed = |mut socket: &UnixStream| {
        socket.set_nonblocking(true).unwrap();
        match socket.read(&mut [0; 64]) {
            Ok(read) => read == 0,
            Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
        }
    };
    eventually("all but the youngest are closed", || silent[..100].iter().all(is_closed));
    assert!(!silent[180..].iter().any(is_closed));
    // Whoever greets is served.
    let deadline = Deadline::after(PATIENCE);
    drop(Connection::open(daemon.socket(), &deadline).unwrap());
}
