//! Saves of one URL that share the names of files: pushes of one folder, two nodes at once. What is
//! published is whole, and the other save is told.

use std::fs;

use forebay_client::{Level, Push};
use forebay_error::{Error, ErrorKind};
use forebay_testkit::{Fault, When};
use forebay_tests::{Daemon, SavingNode, eventually, metadata, patterned as bytes, to_store};

const MIB: usize = 1 << 20;

/// Names that the files of two saves share; one is uploaded as a whole, the other in parts.
const SHARED: [(&str, usize); 2] = [("config", MIB), ("model", 33 * MIB)];

/// Saves files of names that others have. Returns their ids.
fn save_shared(node: &SavingNode, first: u8) -> [u8; 2] {
    let ids = [first, first + 1];
    for ((name, len), id) in SHARED.into_iter().zip(ids) {
        node.save(name, id, &bytes(len, id.into()));
    }
    ids
}

/// Asserts that the files of the visible checkpoint are those of a save, in the store and to a node
/// that has nothing of it.
fn assert_visible(node: &SavingNode, first: u8) {
    let other = node.another();
    for ((name, len), id) in SHARED.into_iter().zip(first..) {
        assert!(fs::read(node.object(name)).unwrap() == bytes(len, id.into()), "{name} differs");
        assert!(other.load(name).unwrap() == bytes(len, id.into()), "{name} is damaged");
    }
    assert_eq!(other.load(".metadata").unwrap(), metadata(first + 2));
}

fn assert_exists(error: &Error) {
    let told = (error.kind(), error.place("reason"));
    assert_eq!(told, (ErrorKind::Invalid, Some("exists")), "{error}");
}

/// A save of names that a published checkpoint has changes nothing of it before its commit asks for
/// that, and nothing at all if it does not.
#[test]
fn published_files_change_only_for_a_commit() {
    let (_server, _proxy, bench) = SavingNode::behind_proxy();
    bench.commit(13, &save_shared(&bench, 11), false);
    bench.wait(Level::Published).unwrap();
    for overwrite in [false, true] {
        let first = if overwrite { 31 } else { 21 };
        let ids = save_shared(&bench, first);
        // Nothing is on its way: a trainer that is killed now leaves it at that.
        eventually("the files wait for their commit", || {
            !bench.daemon().node().checkpoints.is_busy()
        });
        assert_visible(&bench, 11);
        bench.commit(first + 2, &ids, overwrite);
        match overwrite {
            false => assert_exists(&bench.wait(Level::Published).unwrap_err()),
            true => bench.wait(Level::Published).unwrap(),
        }
        assert_visible(&bench, if overwrite { 31 } else { 11 });
    }
    // What was rejected is dropped, for a later save is published.
    eventually("the rejected save is gone", || bench.place("").resume().unwrap() == 0);
    assert_visible(&bench, 31);
}

/// A push to a published checkpoint is rejected before anything of it is saved.
#[test]
fn push_to_a_published_checkpoint_is_rejected_at_once() {
    let bench = SavingNode::to_folder();
    let folder = Daemon::disk();
    let model = folder.path().join("model");
    let place = bench.place("");
    let push = |overwrite: bool| {
        let (folder, step) = (folder.path(), None);
        Push { folder, place: &place, step, overwrite, job: "test" }.run(&mut |_, _| {})
    };
    fs::write(&model, b"first").unwrap();
    push(false).unwrap();
    bench.wait(Level::Published).unwrap();
    let staged = bench.staged().len();
    fs::write(&model, b"second").unwrap();
    assert_exists(&push(false).unwrap_err());
    assert_eq!(bench.staged().len(), staged);
    assert_eq!(fs::read(bench.object("model")).unwrap(), b"first");
    push(true).unwrap();
    bench.wait(Level::Published).unwrap();
    assert_eq!(fs::read(bench.object("model")).unwrap(), b"second");
}

/// A checkpoint of another writer, whose files no manifest names, is none to be damaged either.
#[test]
fn checkpoint_of_another_writer_is_left_alone() {
    let bench = SavingNode::to_folder();
    let files = [("model", &b"weights"[..]), (".metadata", b"theirs")];
    fs::create_dir_all(&bench.url).unwrap();
    for (name, content) in files {
        fs::write(bench.object(name), content).unwrap();
    }
    bench.commit(3, &save_shared(&bench, 1), false);
    assert_exists(&bench.wait(Level::Published).unwrap_err());
    for (name, content) in files {
        assert_eq!(fs::read(bench.object(name)).unwrap(), content);
    }
}

/// Nodes that save the same names to one URL: what is published is whole, and the other save is
/// told.
#[test]
fn save_that_another_node_outruns_is_rejected() {
    let (server, proxy, slow) = SavingNode::behind_proxy();
    let fast = SavingNode { environment: to_store(&server.endpoint()), ..slow.another() };
    // Its first file arrives; of its second one, the answers to all three parts are held back.
    proxy.set([(When::put().of("model"), Fault::StallBeforeHead)]);
    let ids = save_shared(&slow, 1);
    proxy.wait_until(|traffic| traffic.stalled == 3);
    eventually("the first file is there", || slow.object("config").exists());
    fast.commit(13, &save_shared(&fast, 11), false);
    fast.wait(Level::Published).unwrap();
    slow.commit(3, &ids, false);
    proxy.clear();
    assert_exists(&slow.wait(Level::Published).unwrap_err());
    assert_visible(&slow, 11);
    // A save that replaces, and is older, is dropped wherever it stands.
    let before = proxy.traffic().faults;
    proxy.set([(When::put().of("model"), Fault::status(503))]);
    slow.commit(23, &save_shared(&slow, 21), true);
    proxy.wait_until(|traffic| traffic.faults > before);
    fast.commit(33, &save_shared(&fast, 31), true);
    fast.wait(Level::Published).unwrap();
    proxy.clear();
    slow.wait(Level::Published).unwrap();
    eventually("nothing of it waits", || slow.place("").resume().unwrap() == 0);
    assert_visible(&slow, 31);
}

/// Files that another node replaces before the publication keep it from happening.
#[test]
fn save_whose_files_were_replaced_is_not_published() {
    let (server, proxy, slow) = SavingNode::behind_proxy();
    let fast = SavingNode { environment: to_store(&server.endpoint()), ..slow.another() };
    proxy.set([(When::put().of("manifest.json"), Fault::status(503))]);
    slow.commit(3, &save_shared(&slow, 1), false);
    proxy.wait_until(|traffic| traffic.faults > 0);
    let ids = save_shared(&fast, 11);
    fast.wait(Level::Uploaded).unwrap();
    proxy.clear();
    let error = slow.wait(Level::Published).unwrap_err();
    assert_eq!((error.kind(), error.place("url")), (ErrorKind::Invalid, Some(&*slow.url)));
    assert!(SHARED.iter().any(|(name, _)| error.place("name") == Some(name)), "{error}");
    assert!(!slow.object(".metadata").exists());
    // It is in nobody's way.
    fast.commit(13, &ids, false);
    fast.wait(Level::Published).unwrap();
    assert_visible(&slow, 11);
}
