//! Checkpoints: saved on a node, uploaded, published as a whole, restored.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_client::{
    CheckpointPlace, CheckpointReader, CheckpointWriter, Level, Push, SaveConfig,
};
use forebay_error::{Error, ErrorKind};
use forebay_testkit::{ACCESS_KEY, Ceph, Fault, SECRET_KEY, When, skip};
use forebay_tests::{
    Daemon, Origin, SavingNode, TestSource, eventually, flip, metadata, patterned as bytes,
    saves_anywhere, walk,
};

const MIB: usize = 1 << 20;

/// Saves to any store, publishes and restores, on this node and on one that has nothing of it.
fn behaves(source: &TestSource) {
    let mut bench =
        SavingNode::to(source.url("run/step-1"), source.environment.clone(), Daemon::disk());
    // Blocks and parts of all kinds: none, a byte, whole ones, and a last one that is shorter.
    let lengths = [0, 1, 4 * MIB, 4 * MIB + 1, 37 * MIB + 4097];
    let files: Vec<_> = (1_u8..).zip(lengths).collect();
    for &(id, len) in &files {
        bench.save(&format!("rank/{id}"), id, &bytes(len, id.into()));
    }
    let ids: Vec<_> = files.iter().map(|(id, _)| *id).collect();
    bench.commit(100, &ids, false);
    bench.wait(Level::Staged).unwrap();
    bench.wait(Level::Uploaded).unwrap();
    bench.wait(Level::Published).unwrap();
    let restored = |bench: &SavingNode| {
        assert_eq!(bench.load(".metadata").unwrap(), metadata(100));
        for &(id, len) in &files {
            let name = format!("rank/{id}");
            assert!(bench.load(&name).unwrap() == bytes(len, id.into()), "{name} differs");
        }
        let run = bench.url.strip_suffix("/step-1").unwrap();
        assert_eq!(bench.place_at(run, "").latest().unwrap(), Some(bench.url.clone()));
    };
    restored(&bench);
    let error = bench.load("rank/9").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{}: {error}", source.name);
    // Another node.
    bench.daemon = None;
    bench.cache = Daemon::disk();
    bench.restart();
    restored(&bench);
}

#[test]
fn checkpoints_go_to_s3s() {
    behaves(&TestSource::s3s().unwrap());
}

#[test]
fn checkpoints_go_to_moto() {
    behaves(&TestSource::moto().unwrap());
}

#[test]
fn checkpoints_go_to_azurite() {
    behaves(&TestSource::azurite().unwrap());
}

#[test]
fn checkpoints_go_to_a_disk() {
    behaves(&TestSource::disk().unwrap());
}

#[test]
fn checkpoints_go_to_ceph() {
    if let Some(missing) = Ceph::missing() {
        return skip(missing, "Ceph's daemons and mounts");
    }
    let (_files, gateway, _) = TestSource::ceph().unwrap();
    behaves(&gateway);
}

/// Nothing is visible while a file of the commit is missing, and all of it once the last one is
/// there, whichever node it comes from.
#[test]
fn checkpoint_is_visible_once_all_files_are() {
    let bench = SavingNode::to_folder();
    let other = SavingNode { url: bench.url.clone(), ..SavingNode::to_folder() };
    bench.save("0", 1, &bytes(5 * MIB, 1));
    bench.commit(3, &[1, 2], false);
    bench.wait(Level::Uploaded).unwrap();
    eventually("the receipt is there", || bench.object(".forebay").exists());
    assert!(!bench.object(".metadata").exists());
    assert_eq!(bench.load(".metadata").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(bench.place_at(bench.url.rsplit_once('/').unwrap().0, "").latest().unwrap(), None);
    other.save("1", 2, &bytes(100, 2));
    other.wait(Level::Uploaded).unwrap();
    bench.wait(Level::Published).unwrap();
    other.wait(Level::Published).unwrap();
    assert!(other.load("0").unwrap() == bytes(5 * MIB, 1));
    assert_eq!(bench.load("1").unwrap(), bytes(100, 2));
}

/// Parts of an upload that nobody goes on with would be paid for, and no list shows them.
#[test]
fn upload_of_a_replaced_file_is_aborted() {
    let (_server, proxy, bench) = SavingNode::behind_proxy();
    proxy.set([(When::put().of("partNumber=3"), Fault::status(503))]);
    bench.save_alone("last", 1, &bytes(70 * MIB, 1));
    proxy.wait_until(|traffic| traffic.faults > 0);
    bench.save_alone("last", 2, &bytes(100, 2));
    proxy.wait_until(|traffic| traffic.answered("DELETE", 204) > 0);
    eventually("the later one is there", || {
        let place = bench.place_at(&format!("{}/last", bench.url), "");
        place.wait(Level::Published).is_ok()
    });
    assert_eq!(proxy.traffic().answered("DELETE", 204), 1);
}

/// Local copies of what is in the store make room for the next save, below the `max` of its rule.
#[test]
fn published_copies_make_room_below_the_limit_of_their_rule() {
    let mut bench = limited(12 << 20);
    let run = bench.url.strip_suffix("step-1").unwrap().to_owned();
    for id in [10, 20, 30] {
        bench.url = format!("{run}step-{id}");
        bench.save("a", id, &bytes(9 * MIB, id.into()));
        bench.commit(id + 1, &[id], false);
        bench.wait(Level::Published).unwrap();
    }
    let error = bench.writer("a", 40, 13 << 20).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert_eq!(error.place("max"), Some((12 << 20).to_string().as_str()));
    assert!(bench.load("a").unwrap() == bytes(9 * MIB, 30), "what cannot fit frees nothing");
}

/// Ranks begin their files at once, so files that are being written count for the `max` as well.
#[test]
fn files_begun_at_once_count_for_each_other() {
    let bench = limited(12 << 20);
    let assert_full = |error: Error| {
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        assert_eq!(error.place("max"), Some((12 << 20).to_string().as_str()), "{error}");
    };
    // Not whole blocks of anything: what a file takes is rounded up, what it counts is not.
    let odd = 6 * MIB - 1;
    let mut first = bench.writer("a", 1, odd as u64).unwrap();
    assert_full(bench.writer("b", 2, odd as u64 + 3).err().unwrap());
    let mut second = bench.writer("b", 3, odd as u64 + 2).unwrap();
    for (writer, len) in [(&mut first, odd), (&mut second, odd + 2)] {
        writer.write(&bytes(len, 1)).unwrap();
    }
    drop(first);
    second.finish(None).unwrap();
    eventually("an abandoned file counts no more", || bench.writer("c", 4, 5 << 20).is_ok());

    // A file whose length nobody told counts as it grows, and meets the limit itself.
    let bench = limited(12 << 20);
    let mut unknown = bench.writer("a", 1, 0).unwrap();
    unknown.write(&bytes(12 * MIB, 1)).unwrap();
    let len_of = |path: &PathBuf| fs::metadata(path).map_or(0, |found| found.len());
    eventually("it has room for all", || {
        bench.staged().iter().map(len_of).sum::<u64>() >= 12 << 20
    });
    assert_full(bench.writer("b", 2, 1).err().unwrap());
    let more = unknown.write(&bytes(4 * MIB, 1)).and_then(|()| unknown.finish(None).map(drop));
    assert_full(more.unwrap_err());
}

/// Local copies are removed only where that makes enough room.
#[test]
fn save_that_cannot_fit_frees_nothing() {
    let mut bench = limited(12 << 20);
    bench.save("a", 1, &bytes(3 * MIB, 1));
    bench.commit(2, &[1], false);
    bench.wait(Level::Published).unwrap();
    let staged = bench.staged().len();
    let first = bench.url.clone();
    bench.url = first.replace("step-1", "step-2");
    let under_way = bench.writer("a", 3, 8 << 20).unwrap();
    let error = bench.writer("b", 4, 8 << 20).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert_eq!(bench.staged().len(), staged + 1, "the copy, and the file that is being written");
    drop(under_way);
}

/// A node whose checkpoints may take so many bytes.
fn limited(max: u64) -> SavingNode {
    let mut bench = SavingNode::to_folder();
    bench.daemon = None;
    let mut config = saves_anywhere(Daemon::config(bench.cache.path(), 1 << 30));
    config.checkpoints[0].max_bytes = Some(max);
    bench.daemon = Some(Daemon::try_start(config).unwrap());
    bench
}

/// A store that is away delays uploads. A daemon that ends meanwhile goes on after its restart,
/// once somebody gives it the credentials that it never wrote down.
#[test]
fn uploads_outlive_store_and_daemon() {
    let (_server, proxy, mut bench) = SavingNode::behind_proxy();
    // The third part of the upload and all that follows fail.
    proxy.set([(When::put().of("partNumber=3"), Fault::status(503))]);
    bench.save("0", 1, &bytes(70 * MIB, 1));
    bench.commit(2, &[1], false);
    bench.wait(Level::Staged).unwrap();
    proxy.wait_until(|traffic| traffic.faults > 0);
    bench.restart();
    bench.wait(Level::Staged).unwrap();
    let records = fs::read_dir(bench.cache.path().join("checkpoints")).unwrap().flatten();
    let records = records.map(|entry| entry.path()).filter(|path| path.extension().is_some());
    for record in records {
        let text = String::from_utf8_lossy(&fs::read(record).unwrap()).into_owned();
        assert!(!text.contains(SECRET_KEY) && !text.contains(ACCESS_KEY), "a secret is there");
    }
    proxy.clear();
    bench.wait(Level::Published).unwrap();
    assert!(bench.load("0").unwrap() == bytes(70 * MIB, 1));
}

#[test]
fn file_that_differs_from_its_checksums_is_never_uploaded() {
    let mut bench = SavingNode::to_folder();
    // The store is away for as long as its folder is a file.
    let run = bench.folder.path().join("run");
    fs::write(&run, b"in the way").unwrap();
    bench.save("0", 1, &bytes(9 * MIB, 1));
    bench.daemon = None;
    let [staged] = &bench.staged()[..] else { panic!("one file is staged") };
    flip(staged, 5 * MIB as u64);
    fs::remove_file(&run).unwrap();
    bench.restart();
    let error = bench.wait(Level::Uploaded).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert_eq!(error.place("offset"), Some(&*(4 * MIB).to_string()), "{error}");
    assert!(!bench.object("0").exists());
    bench.restart();
    assert_eq!(bench.wait(Level::Uploaded).unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(!bench.object("0").exists());
}

/// Wrong bytes on this node's disk are read from the store.
#[test]
fn damaged_local_copy_is_restored_from_the_store() {
    let bench = SavingNode::to_folder();
    bench.save("0", 1, &bytes(9 * MIB, 1));
    bench.commit(2, &[1], false);
    bench.wait(Level::Published).unwrap();
    let large = |path: &PathBuf| fs::metadata(path).unwrap().len() > MIB as u64;
    let staged = bench.staged().into_iter().find(large).unwrap();
    for at in [0, 5 * MIB, 9 * MIB - 1] {
        flip(&staged, at as u64);
    }
    assert!(bench.load("0").unwrap() == bytes(9 * MIB, 1));
    // Neither copy is right.
    flip(&bench.object("0"), 5 * MIB as u64);
    assert_eq!(bench.load("0").unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn published_checkpoint_is_replaced_only_on_request() {
    let bench = SavingNode::to_folder();
    bench.save("a", 1, b"first");
    bench.commit(2, &[1], false);
    bench.wait(Level::Published).unwrap();
    bench.save("b", 3, b"second");
    bench.commit(4, &[3], false);
    let error = bench.wait(Level::Published).unwrap_err();
    assert_eq!((error.kind(), error.place("reason")), (ErrorKind::Invalid, Some("exists")));
    assert_eq!(bench.load(".metadata").unwrap(), metadata(2));
    bench.save("c", 5, b"third");
    bench.commit(6, &[5], true);
    eventually("the checkpoint is replaced", || {
        fs::read(bench.object(".metadata")).unwrap() == metadata(6)
    });
    assert_eq!(bench.load("c").unwrap(), b"third");
    eventually("files of the old one are removed", || !bench.object("a").exists());
}

#[test]
fn file_of_its_own_replaces_the_object() {
    let bench = SavingNode::to_folder();
    let save = |bytes: &[u8], id: u8| {
        bench.save_alone("model.pt", id, bytes);
        // This node sees it at once.
        assert!(bench.load("model.pt").unwrap() == bytes);
    };
    for id in 1..=5_u8 {
        save(&bytes(usize::from(id) * MIB, id.into()), id);
    }
    let place = bench.place_at(&format!("{}/model.pt", bench.url), "");
    place.wait(Level::Published).unwrap();
    let object = bench.object("model.pt");
    eventually("the last one wins", || fs::read(&object).unwrap() == bytes(5 * MIB, 5));
    let error =
        bench.place_at(&format!("{}/other", bench.url), "").wait(Level::Staged).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

/// Room is asked for before the first byte, and shards that nobody reads make it.
#[test]
fn checkpoint_takes_the_room_of_shards() {
    let cache = Daemon::disk();
    let origin = Origin::with_shards(8, 10, &(400_000..400_001));
    let (daemon, folder) = (SavingNode::start(cache.path(), 40 << 20), Daemon::disk());
    let url = folder.path().join("run/step-1").to_str().unwrap().to_owned();
    let environment = BTreeMap::new();
    let bench = SavingNode { daemon: Some(daemon), cache, folder, environment, url };
    let urls = (0..8).map(|n| Origin::url(&format!("{n}.tar"))).collect();
    let job = forebay_tests::job_with(origin.environment(), urls);
    assert_eq!(forebay_tests::epoch(bench.daemon().address(), job).unwrap().errors, []);
    bench.daemon().settle();
    let shards = || bench.daemon().tier("nvme").counters.shards;
    assert_eq!(shards(), 8);
    let error = bench.writer("0", 1, 41 << 20).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert!(error.advice().is_some());
    bench.save("0", 2, &bytes(20 * MIB, 2));
    assert!((1..8).contains(&shards()), "{} shards are left", shards());
    // A file of unknown length is told as soon as it does not fit any more.
    let mut writer = bench.writer("1", 3, 0).unwrap();
    let error = (0..100).find_map(|_| writer.write(&bytes(MIB, 3)).err()).unwrap();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    drop(writer);
    eventually("its room is free again", || bench.staged().len() == 1);
}

/// Copies of what is in the store are no reason to reject a checkpoint.
#[test]
fn local_copies_give_way_to_new_checkpoints() {
    let mut bench = SavingNode::to_folder();
    bench.daemon = None;
    bench.daemon = Some(SavingNode::start(bench.cache.path(), 40 << 20));
    for round in 1..=4_u8 {
        bench.url = format!("{}-{round}", bench.url);
        let (file, metadata) = (2 * round, 2 * round + 1);
        bench.save("0", file, &bytes(30 * MIB, round.into()));
        bench.commit(metadata, &[file], false);
        bench.wait(Level::Published).unwrap();
        assert!(bench.load("0").unwrap() == bytes(30 * MIB, round.into()));
    }
}

#[test]
fn unfinished_file_leaves_nothing() {
    let mut bench = SavingNode::to_folder();
    let mut writer = bench.writer("0", 1, 100 << 20).unwrap();
    writer.write(&bytes(30 * MIB, 1)).unwrap();
    let used = || bench.daemon().tier("nvme").counters.used_bytes;
    assert_eq!(used(), 100 << 20);
    drop(writer);
    eventually("the file is removed", || bench.staged().is_empty() && used() == 0);
    // A daemon that is gone before its client says so at the next start.
    let mut writer = bench.writer("0", 2, 0).unwrap();
    writer.write(&bytes(30 * MIB, 1)).unwrap();
    bench.daemon = None;
    let failed: Error = writer.write(&bytes(200 * MIB, 1)).unwrap_err();
    assert!(matches!(failed.kind(), ErrorKind::Closed | ErrorKind::Unavailable), "{failed}");
    bench.restart();
    assert_eq!(bench.staged(), [] as [PathBuf; 0]);
}

#[test]
fn names_and_places_that_lead_elsewhere_are_rejected() {
    let bench = SavingNode::to_folder();
    for name in ["", "..", "../x", "a/../../x", ".forebay/x", "/x", "a//b"] {
        let error = bench.writer(name, 1, 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{name}: {error}");
    }
    for url in ["", "http://127.0.0.1:1/x", "https://h/x", "pipe:cat", "ftp://h/x"] {
        let (place, is_lone) = (bench.place_at(url, "x"), false);
        let config =
            SaveConfig { place, id: [1; 16], expected: 0, is_lone, job: "test".to_owned() };
        let error = CheckpointWriter::open(config).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{url}: {error}");
    }
    assert_eq!(bench.staged(), [] as [PathBuf; 0]);
}

/// A removal takes all that there is of a checkpoint, and nothing else.
#[test]
fn removal_takes_the_whole_checkpoint_and_nothing_else() {
    let mut bench = SavingNode::to_folder();
    let keep = bench.url.clone();
    bench.save("0", 1, &bytes(5 * MIB, 1));
    bench.commit(2, &[1], false);
    bench.wait(Level::Published).unwrap();
    bench.url = format!("{keep}-b");
    bench.save("a/0", 3, &bytes(5 * MIB, 3));
    bench.commit(4, &[3], false);
    bench.wait(Level::Published).unwrap();
    let dry = bench.place("").remove(true).unwrap();
    assert_eq!(bench.load("a/0").unwrap(), bytes(5 * MIB, 3), "nothing is gone");
    let removed = bench.place("").remove(false).unwrap();
    assert_eq!(removed, dry);
    assert_eq!((removed.local_files, removed.stored_files), (2, 2));
    assert_eq!(removed.stored_bytes, 5 * MIB as u64 + metadata(4).len() as u64);
    let left = walk(Path::new(&bench.url));
    assert_eq!(left, [] as [PathBuf; 0]);
    for error in [bench.load("a/0").unwrap_err(), bench.place("").remove(false).unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }
    bench.url = keep;
    assert_eq!(bench.load("0").unwrap(), bytes(5 * MIB, 1));
    // Another writer's is for the tools of its store.
    fs::remove_dir_all(bench.object(".forebay")).unwrap();
    let other = SavingNode { url: bench.url.clone(), ..SavingNode::to_folder() };
    assert_eq!(other.place("").remove(false).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(other.load("0").unwrap(), bytes(5 * MIB, 1));
}

/// Files that can go nowhere, and uploads under way, are removed with what they have in the store.
#[test]
fn removal_ends_what_is_under_way() {
    let (_server, proxy, mut bench) = SavingNode::behind_proxy();
    proxy.set([(When::put().of("partNumber=3"), Fault::status(503))]);
    bench.save("0", 1, &bytes(70 * MIB, 1));
    bench.save("1", 2, &bytes(MIB, 2));
    bench.commit(3, &[1, 2], false);
    proxy.wait_until(|traffic| traffic.faults > 0);
    eventually("the small file is uploaded", || bench.place("1").resume().is_ok_and(|n| n < 3));
    let removed = bench.place("").remove(false).unwrap();
    assert_eq!(removed.local_files, 3);
    assert_eq!(bench.staged(), [] as [PathBuf; 0]);
    proxy.clear();
    eventually("the store has nothing of it", || {
        walk(&bench.folder.path().join("bucket")).is_empty()
    });
    assert_eq!(bench.wait(Level::Uploaded).unwrap_err().kind(), ErrorKind::NotFound);
    // The same URL serves again.
    bench.save("0", 4, &bytes(MIB, 4));
    bench.commit(5, &[4], false);
    bench.wait(Level::Published).unwrap();
    // A bucket that does not exist: whoever waits is told, and the file can be removed.
    let absent = Fault::Refuse { status: 404, code: "NoSuchBucket", retry_after: None };
    proxy.set([(When::any(), absent)]);
    bench.url = "s3://no-such-bucket/run".to_owned();
    bench.save("0", 6, &bytes(MIB, 6));
    assert_eq!(bench.wait(Level::Uploaded).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(bench.place("").resume().unwrap(), 1);
    let is_busy = || bench.daemon().node().checkpoints.is_busy();
    eventually("nothing is on its way", || !is_busy());
    assert_eq!(bench.place("").remove(false).unwrap().local_files, 1);
    assert_eq!(bench.place("").resume().unwrap(), 0);
}

/// A wait for a save that is removed before another node commits it has nothing to wait for.
#[test]
fn wait_for_a_removed_save_ends() {
    let (_server, proxy, bench) = SavingNode::behind_proxy();
    bench.save("0", 1, &bytes(MIB, 1));
    bench.wait(Level::Uploaded).unwrap();
    // The commit is another node's, for which the waiting node looks at the store.
    proxy.set([(When::any().of(".metadata"), Fault::status(503))]);
    let error = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| bench.wait(Level::Published).unwrap_err());
        proxy.wait_until(|traffic| traffic.faults > 0);
        proxy.clear();
        assert_eq!(bench.place("").remove(false).unwrap().local_files, 1);
        waiting.join().unwrap()
    });
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

#[test]
fn block_that_could_not_be_read_is_asked_for_again() {
    let (_server, proxy, bench) = SavingNode::behind_proxy();
    bench.save("0", 1, &bytes(9 * MIB, 1));
    bench.commit(2, &[1], false);
    bench.wait(Level::Published).unwrap();
    let other = bench.another();
    let mut reader = CheckpointReader::open(&other.place("0")).unwrap();
    let absent = Fault::Refuse { status: 404, code: "NoSuchKey", retry_after: None };
    proxy.set([(When::any(), absent)]);
    let mut read = vec![0; MIB];
    for _ in 0..2 {
        let error = reader.read_at(0, &mut read).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }
    proxy.clear();
    assert_eq!(reader.read_at(0, &mut read).unwrap(), MIB);
    assert!(read == bytes(9 * MIB, 1)[..MIB]);
}

/// Time in which a node looks at a store several times: by then a wait that is over too early is.
const SEVERAL_LOOKS: Duration = Duration::from_secs(7);

/// Waits for the publication of what a node saved, for longer than that may take by mistake.
fn wait_in_vain(bench: &SavingNode, url: &str) {
    let place = CheckpointPlace { timeout: SEVERAL_LOOKS, ..bench.place_at(url, "") };
    let error = place.wait(Level::Published).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

/// A wait is for the save that this node has a part of, whatever is published there already.
#[test]
fn wait_is_for_this_save_and_no_older_one() {
    let (_server, proxy, bench) = SavingNode::behind_proxy();
    let other = bench.another();
    bench.save("a", 1, &bytes(MIB, 1));
    bench.commit(2, &[1], false);
    bench.wait(Level::Published).unwrap();
    // Another node, which has nothing of it, sees it as well.
    other.wait(Level::Published).unwrap();
    proxy.set([(When::put().of(".metadata"), Fault::status(503))]);
    other.save("b", 3, &bytes(MIB, 3));
    bench.save("c", 4, &bytes(MIB, 4));
    bench.commit(5, &[3, 4], true);
    std::thread::scope(|scope| {
        for node in [&bench, &other] {
            scope.spawn(|| wait_in_vain(node, &node.url));
        }
    });
    assert_eq!(other.load(".metadata").unwrap(), metadata(2));
    proxy.clear();
    for node in [&bench, &other] {
        node.wait(Level::Published).unwrap();
        assert_eq!(node.load(".metadata").unwrap(), metadata(5));
    }
}

/// The same for a file of its own.
#[test]
fn wait_for_a_file_is_for_its_last_save() {
    let (_server, proxy, bench) = SavingNode::behind_proxy();
    let url = format!("{}/model.pt", bench.url);
    bench.save_alone("model.pt", 1, b"old");
    bench.place_at(&url, "").wait(Level::Published).unwrap();
    assert_eq!(fs::read(bench.object("model.pt")).unwrap(), b"old");
    proxy.set([(When::put(), Fault::status(503))]);
    bench.save_alone("model.pt", 2, b"new");
    wait_in_vain(&bench, &url);
    proxy.clear();
    bench.place_at(&url, "").wait(Level::Published).unwrap();
    assert_eq!(fs::read(bench.object("model.pt")).unwrap(), b"new");
}

/// A save is over for those who wait once a later one of its URL is visible: it was dropped.
#[test]
fn wait_for_a_save_ends_with_a_later_one() {
    let bench = SavingNode::to_folder();
    let other = SavingNode { url: bench.url.clone(), ..SavingNode::to_folder() };
    // Its commit never comes.
    other.save("a", 1, &bytes(MIB, 1));
    other.wait(Level::Uploaded).unwrap();
    bench.save("b", 2, &bytes(MIB, 2));
    bench.commit(3, &[2], false);
    other.wait(Level::Published).unwrap();
    assert_eq!(other.load(".metadata").unwrap(), metadata(3));
}

/// Two uploads to a store that does not answer leave those to other stores their turns.
#[test]
fn silent_store_delays_no_other() {
    let (_server, proxy, mut bench) = SavingNode::behind_proxy();
    proxy.set([(When::any(), Fault::StallBeforeHead)]);
    for id in 1..=4 {
        bench.save(&format!("{id}"), id, &bytes(40 * MIB, id.into()));
    }
    proxy.wait_until(|traffic| traffic.stalled >= 2);
    let folder = bench.folder.path().join("run/step-2");
    (bench.url, bench.environment) = (folder.to_str().unwrap().to_owned(), BTreeMap::new());
    bench.save("0", 5, &bytes(40 * MIB, 5));
    bench.commit(6, &[5], false);
    bench.wait(Level::Published).unwrap();
    assert!(proxy.traffic().stalled >= 2, "the store is still silent");
    assert!(bench.load("0").unwrap() == bytes(40 * MIB, 5));
}

/// Until the new `.metadata` takes its place, readers get the old checkpoint with its checksums.
#[test]
fn replacement_under_way_leaves_the_old_checkpoint_whole() {
    let (_server, proxy, bench) = SavingNode::behind_proxy();
    bench.save("a", 1, &bytes(5 * MIB, 1));
    bench.commit(2, &[1], false);
    bench.wait(Level::Published).unwrap();
    proxy.set([(When::put().of(".metadata"), Fault::status(503))]);
    bench.save("b", 13, &bytes(MIB, 13));
    // Content of another length.
    bench.commit(14, &[13], true);
    proxy.wait_until(|traffic| traffic.faults > 0);
    let other = bench.another();
    for node in [&bench, &other] {
        assert_eq!(node.load(".metadata").unwrap(), metadata(2));
        assert!(node.load("a").unwrap() == bytes(5 * MIB, 1));
        let listed = node.place("").list().unwrap();
        let names: Vec<_> = listed.files.iter().map(|file| &*file.name).collect();
        assert_eq!(names, ["a", ".metadata"]);
        assert!(listed.files.iter().all(|file| file.is_checked));
    }
    // A flipped bit is found then as well.
    flip(&bench.object("a"), 5_000_000);
    assert_eq!(other.load("a").unwrap_err().kind(), ErrorKind::Corrupt);
    proxy.clear();
    eventually("the new one takes its place", || {
        other.load(".metadata").is_ok_and(|found| found == metadata(14))
    });
    assert!(other.load("b").unwrap() == bytes(MIB, 13));
}

/// A daemon that ends between a replacement and the removal of what was replaced catches up.
#[test]
fn replaced_files_go_after_a_restart() {
    let (_server, proxy, mut bench) = SavingNode::behind_proxy();
    bench.save("a", 1, &bytes(MIB, 1));
    bench.commit(2, &[1], false);
    bench.wait(Level::Published).unwrap();
    proxy.set([(When::delete(), Fault::status(503))]);
    bench.save("b", 3, &bytes(MIB, 3));
    bench.commit(4, &[3], true);
    proxy.wait_until(|traffic| traffic.faults > 0);
    assert!(bench.load("b").unwrap() == bytes(MIB, 3));
    bench.restart();
    proxy.clear();
    // It waits for credentials.
    assert_eq!(bench.place("").resume().unwrap(), 0);
    eventually("the replaced file is gone", || !bench.object("a").exists());
    assert!(bench.load("b").unwrap() == bytes(MIB, 3));
}

/// A folder is published, listed, and restored as it was: whole, or not at all.
#[test]
fn pushed_folder_is_restored_as_it_was() {
    let (_server, proxy, bench) = SavingNode::behind_proxy();
    let home = Daemon::disk();
    let (from, to) = (home.path().join("from"), home.path().join("to"));
    fs::create_dir_all(from.join("nested/deep")).unwrap();
    let files = [("config.json", 3), ("nested/deep/empty", 0), ("nested/model", 9 * MIB + 1)];
    for (name, len) in files {
        fs::write(from.join(name), bytes(len, len as u64)).unwrap();
    }
    let (place, mut seen) = (bench.place(""), Vec::new());
    let push = Push { folder: &from, place: &place, step: Some(7), overwrite: false, job: "test" };
    // The store has all files, and does not take `.metadata` yet.
    proxy.set([(When::put().of(".metadata"), Fault::status(503))]);
    push.run(&mut |done, all| seen.push((done, all))).unwrap();
    let all = 9 * MIB as u64 + 4;
    assert_eq!(seen.last(), Some(&(all, all)));
    proxy.wait_until(|traffic| traffic.faults > 0);
    assert_eq!(place.restore(&to, &mut |_, _| {}).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(!to.exists());
    proxy.clear();
    bench.wait(Level::Published).unwrap();
    let listed = place.list().unwrap();
    assert_eq!((listed.step, listed.files.len()), (Some(7), 4));
    assert!(listed.files.iter().all(|file| file.is_checked));
    assert_eq!(listed.files[3].name, ".metadata");
    let restore = || place.restore(&to, &mut |_, _| {});
    restore().unwrap();
    let below = |folder: &Path| {
        let files = walk(folder).into_iter();
        let read = |path: PathBuf| {
            (path.strip_prefix(folder).unwrap().to_owned(), fs::read(&path).unwrap())
        };
        files.map(read).collect::<BTreeMap<_, _>>()
    };
    assert!(below(&to) == below(&from), "the folders differ");
    assert_eq!(restore().unwrap_err().kind(), ErrorKind::Invalid, "it holds files");
    // What is wrong in the store as well leaves no folder behind.
    let other = bench.another();
    flip(&bench.object("nested/model"), 5 * MIB as u64);
    fs::remove_dir_all(&to).unwrap();
    let error = other.place("").restore(&to, &mut |_, _| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
    // A folder that holds nothing is no checkpoint.
    fs::create_dir(&to).unwrap();
    let push = Push { folder: &to, place: &place, step: None, overwrite: true, job: "test" };
    assert_eq!(push.run(&mut |_, _| {}).unwrap_err().kind(), ErrorKind::Invalid);
}

/// Each part is described at its end, as tensors of torch's archives are: a reader looks there
/// first, and asks for the next description ahead of time. The disk reads each block once.
#[test]
fn glances_ahead_read_no_block_twice() {
    let bench = SavingNode::to_folder();
    // Longer than the lent memory; parts start and end within blocks.
    let (part, parts) = (31 * MIB + 4097, 5);
    let whole = bytes(part * parts, 1);
    bench.save_alone("0", 1, &whole);
    let mut reader = CheckpointReader::open(&bench.place("0")).unwrap();
    let read = |reader: &mut CheckpointReader, at: usize, len: usize| {
        let mut some = vec![0; len];
        assert_eq!(reader.read_at(at as u64, &mut some).unwrap(), len);
        assert!(some == whole[at..at + len], "{len} bytes at {at} differ");
    };
    for number in 0..parts {
        let start = number * part;
        for end in [start + part, start + 2 * part] {
            reader.prefetch(end as u64 - 1000, 1000).unwrap();
        }
        read(&mut reader, start + part - 1000, 1000);
        read(&mut reader, start, 500);
        read(&mut reader, start + 500, part - 500);
    }
    let restored = bench.daemon().node().checkpoints.report().restored_local_bytes;
    assert_eq!(restored, whole.len() as u64);
    drop(reader);
    // Any other order gives the same bytes.
    let mut reader = CheckpointReader::open(&bench.place("0")).unwrap();
    for step in 0..200_usize {
        let at = step * 7_919_993 % whole.len();
        let len = (step * 104_729 % (9 * MIB)).min(whole.len() - at);
        reader.prefetch((at / 2) as u64, u64::MAX).unwrap();
        read(&mut reader, at, len);
    }
    reader.prefetch(u64::MAX, u64::MAX).unwrap();
}

/// Numbers for those who watch a node follow a checkpoint through its levels.
#[test]
fn report_counts_bytes_by_level() {
    let bench = SavingNode::to_folder();
    let run = bench.folder.path().join("run");
    fs::write(&run, b"in the way").unwrap();
    bench.save("0", 1, &bytes(5 * MIB, 1));
    bench.commit(2, &[1], false);
    let report = || bench.daemon().node().checkpoints.report();
    let all = 5 * MIB as u64 + metadata(2).len() as u64;
    eventually("the upload fails", || report().held_files > 0);
    let held = report();
    assert_eq!((held.saved_bytes, held.backlog_bytes, held.uploaded_bytes), (all, all, 0));
    assert!(held.oldest_seconds.is_some() && held.checkpoints[0].trouble.is_some());
    fs::remove_file(&run).unwrap();
    bench.place("").resume().unwrap();
    bench.wait(Level::Published).unwrap();
    eventually("all is told", || report().published == 1 && report().held_files == 0);
    assert!(bench.load("0").unwrap() == bytes(5 * MIB, 1));
    let published = report();
    assert_eq!((published.backlog_bytes, published.oldest_seconds), (0, None));
    assert_eq!(published.uploaded_bytes, 5 * MIB as u64);
    assert_eq!(
        (published.restored_local_bytes, published.restored_origin_bytes),
        (5 * MIB as u64, 0)
    );
}
