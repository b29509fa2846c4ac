//! File system calls on a real file system.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use std::os::unix::fs::{PermissionsExt, symlink};

use tempfile::TempDir;

use super::*;

fn kind<T>(done: io::Result<T>) -> io::ErrorKind {
    done.err().expect("the call fails").kind()
}

#[test]
fn written_file_is_private_and_replaces_the_old_one() {
    let root = TempDir::new().unwrap();
    let path = root.path().join("a");
    LocalFiles.write(&path, b"a longer text").unwrap();
    LocalFiles.write(&path, b"short").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"short");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    LocalFiles.write(&path, b"").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    assert_eq!(kind(LocalFiles.write(root.path(), b"x")), io::ErrorKind::IsADirectory);
}

#[test]
fn rename_replaces_a_file_and_no_folder() {
    let root = TempDir::new().unwrap();
    let [from, to, folder] = ["from", "to", "folder"].map(|name| root.path().join(name));
    LocalFiles.write(&from, b"new").unwrap();
    LocalFiles.write(&to, b"old").unwrap();
    fs::create_dir(&folder).unwrap();
    assert_eq!(kind(LocalFiles.rename(&from, &folder)), io::ErrorKind::IsADirectory);
    LocalFiles.rename(&from, &to).unwrap();
    assert_eq!(fs::read(&to).unwrap(), b"new");
    assert_eq!(kind(LocalFiles.rename(&from, &to)), io::ErrorKind::NotFound);
    assert_eq!(fs::read(&to).unwrap(), b"new");
}

#[test]
fn removal_takes_the_link_and_leaves_its_target() {
    let root = TempDir::new().unwrap();
    let [target, link] = ["target", "link"].map(|name| root.path().join(name));
    LocalFiles.write(&target, b"mine").unwrap();
    symlink(&target, &link).unwrap();
    LocalFiles.remove(&link).unwrap();
    assert_eq!(kind(LocalFiles.remove(&link)), io::ErrorKind::NotFound);
    assert_eq!(fs::read(&target).unwrap(), b"mine");
}

#[test]
fn file_is_cut_to_its_length() {
    let root = TempDir::new().unwrap();
    let path = root.path().join("a");
    assert_eq!(kind(LocalFiles.truncate(&path, 1)), io::ErrorKind::NotFound);
    assert!(!path.exists(), "a missing file is not created");
    LocalFiles.write(&path, &[7; 4096]).unwrap();
    for (len, left) in [(4096, 4096), (1001, 1001), (0, 0)] {
        LocalFiles.truncate(&path, len).unwrap();
        assert_eq!(fs::read(&path).unwrap(), vec![7; left]);
    }
}

#[test]
fn directory_is_identified_by_itself_and_not_by_its_name() {
    let root = TempDir::new().unwrap();
    let [one, two, link] = ["one", "two", "link"].map(|name| root.path().join(name));
    fs::create_dir(&one).unwrap();
    fs::create_dir(&two).unwrap();
    symlink(&one, &link).unwrap();
    let of = |path: &Path| LocalFiles.identity(path).unwrap();
    assert_ne!(of(&one), of(&two));
    assert_eq!(of(&one), of(&link));
    let before = of(&one);
    fs::rename(&one, root.path().join("away")).unwrap();
    assert_eq!(kind(LocalFiles.identity(&one)), io::ErrorKind::NotFound);
    assert_eq!(of(&root.path().join("away")), before);
    fs::rename(&two, &one).unwrap();
    assert_ne!(of(&one), before);
}

#[test]
fn extent_is_that_of_the_file_system() {
    let root = TempDir::new().unwrap();
    let extent = LocalFiles.extent(root.path()).unwrap();
    assert!(extent.total > 0 && extent.available <= extent.total);
    let is_in_memory = |path: &str| LocalFiles.extent(Path::new(path)).map(|of| of.in_memory);
    assert!(!is_in_memory("/proc").unwrap());
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let is_tmpfs = mounts.lines().any(|line| line.contains(" /dev/shm tmpfs "));
    if is_tmpfs {
        assert!(is_in_memory("/dev/shm").unwrap());
    }
    let missing = root.path().join("missing");
    assert_eq!(kind(LocalFiles.extent(&missing)), io::ErrorKind::NotFound);
    assert_eq!(kind(LocalFiles.sync_directory(&missing)), io::ErrorKind::NotFound);
    LocalFiles.sync_directory(root.path()).unwrap();
}
