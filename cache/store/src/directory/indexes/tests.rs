//! Indexes of shards that are read where they are: their room, and their order of removal.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use super::*;
use crate::directory::tests::{open, origin, sidecar};

fn save(directory: &Directory, url: &str) -> ShardName {
    let origin = origin(url, "v1");
    let name = ShardName::new(&origin);
    directory.save_index(&name, &sidecar(&origin, 100)).unwrap();
    name
}

/// Makes an index look this large, and last used so many seconds ago.
fn set(directory: &Directory, name: &ShardName, bytes: u64, seconds: u64) {
    let file = File::options().write(true).open(directory.index(name)).unwrap();
    // The file has holes: it takes no disk space.
    file.set_len(bytes).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
    // As after a start: the next index counts the folder.
    *directory.index_bytes.lock().unwrap() = None;
}

#[test]
fn least_recently_used_index_makes_room() {
    let (_root, directory) = open();
    let names = ["/d/0.tar", "/d/1.tar", "/d/2.tar"].map(|url| save(&directory, url));
    let is_here = |name: &ShardName| directory.index(name).exists();
    for (name, seconds) in names.iter().zip([300, 500, 400]) {
        set(&directory, name, INDEXES_BYTES / 4, seconds);
    }
    let fourth = save(&directory, "/d/3.tar");
    assert!(names.iter().all(is_here), "all of them fit");
    set(&directory, &fourth, INDEXES_BYTES / 4, 200);
    let fifth = save(&directory, "/d/4.tar");
    assert_eq!(names.each_ref().map(is_here), [true, false, true]);
    // The next one needs the room of all.
    set(&directory, &fifth, INDEXES_BYTES, 100);
    let sixth = save(&directory, "/d/5.tar");
    assert_eq!(fs::read_dir(directory.indexes()).unwrap().count(), 1);
    assert!(is_here(&sixth));
}

#[test]
fn room_is_counted_without_a_list_until_it_is_short() {
    let (_root, directory) = open();
    let first = save(&directory, "/d/0.tar");
    set(&directory, &first, INDEXES_BYTES / 2, 300);
    let second = save(&directory, "/d/1.tar");
    let held = directory.index_bytes.lock().unwrap().unwrap();
    assert_eq!(held, INDEXES_BYTES / 2 + fs::metadata(directory.index(&second)).unwrap().len());
    // The count, not the folder, decides whether there may be too little room,
    *directory.index_bytes.lock().unwrap() = Some(INDEXES_BYTES);
    save(&directory, "/d/2.tar");
    // and the folder then says what there is.
    assert!(directory.index(&first).exists());
    let all = fs::read_dir(directory.indexes()).unwrap();
    let all = all.map(|entry| entry.unwrap().metadata().unwrap().len()).sum::<u64>();
    assert_eq!(*directory.index_bytes.lock().unwrap(), Some(all));
}

#[test]
fn loaded_index_counts_as_used() {
    let (_root, directory) = open();
    let name = save(&directory, "/d/0.tar");
    let modified = || fs::metadata(directory.index(&name)).unwrap().modified().unwrap();
    let day = Duration::from_secs(86_400);
    let file = File::options().write(true).open(directory.index(&name)).unwrap();
    file.set_modified(SystemTime::now() - day).unwrap();
    let before = modified();
    assert!(directory.load_index(&name).is_some());
    assert!(modified() > before + day / 2);
}

#[test]
fn index_replaces_that_of_the_same_shard() {
    let (_root, directory) = open();
    let name = save(&directory, "/d/0.tar");
    let other = sidecar(&origin("/d/0.tar", "v1"), 200);
    directory.save_index(&name, &other).unwrap();
    assert_eq!(directory.load_index(&name).unwrap().len, 200);
    assert_eq!(fs::read_dir(directory.indexes()).unwrap().count(), 1);
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let modes = (mode(&directory.indexes()), mode(&directory.index(&name)));
    assert_eq!(modes, (0o700, 0o600), "URLs are nobody else's business");
    // Nothing of it counts as a shard.
    assert!(directory.survey().unwrap().is_empty());
}
