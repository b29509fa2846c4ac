//! Tests of directories that change their key, and of what lies in encrypted ones.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use tempfile::TempDir;

use super::*;
use crate::directory::tests::store;
use crate::files::LocalFiles;

const ID: &str = "00112233445566778899aabbccddeeff";

/// A secret as a key file has it.
fn from_file(byte: u8) -> Arc<Secret> {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("key");
    let key: Vec<u8> = (0..32).map(|at| byte.wrapping_add(at)).collect();
    fs::write(&path, key).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o400)).unwrap();
    Arc::new(Secret::read(&path).unwrap())
}

fn ephemeral() -> Arc<Secret> {
    Arc::new(Secret::ephemeral().unwrap())
}

fn open(root: &Path, secret: Option<&Arc<Secret>>) -> Result<Directory> {
    let keys = Keys { secret: secret.cloned(), is_check: false };
    Directory::open(root, Arc::new(LocalFiles), &keys)
}

/// All files but the lock, with their bytes.
fn content(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(entry.path()),
                false => drop(all.insert(entry.path(), fs::read(entry.path()).unwrap())),
            }
        }
    }
    all.remove(&root.join("LOCK"));
    all
}

/// A directory with a shard, a checkpoint and an index.
fn filled(secret: Option<&Arc<Secret>>) -> (TempDir, ShardName) {
    let root = TempDir::new().unwrap();
    let directory = open(root.path(), secret).unwrap();
    let len = directory.stored_len(5000);
    let name = store(&directory, "s3://bucket/private/0.tar", len, 5000);
    directory.prepare_staging().unwrap();
    fs::write(directory.staged(ID), vec![7; GRANULE]).unwrap();
    directory.save_record(ID, b"{\"url\":\"s3://bucket/private/run\"}").unwrap();
    let sidecar = directory.read_sidecar(&name).unwrap();
    directory.save_index(&name, &sidecar).unwrap();
    (root, name)
}

fn reason(opened: Result<Directory>) -> String {
    let error = opened.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.advice().is_some(), "{error}");
    error.place("reason").unwrap().to_owned()
}

#[test]
fn directory_is_opened_by_its_key_alone() {
    let (right, wrong) = (from_file(1), from_file(2));
    let (root, name) = filled(Some(&right));
    let before = content(root.path());
    assert_eq!(reason(open(root.path(), Some(&wrong))), "wrong-key");
    assert_eq!(reason(open(root.path(), None)), "encrypted");
    assert_eq!(reason(open(root.path(), Some(&ephemeral()))), "key-kind");
    assert_eq!(content(root.path()), before, "nothing was changed");
    let directory = open(root.path(), Some(&right)).unwrap();
    assert_eq!(directory.read_sidecar(&name).unwrap().len, 5000);
    assert_eq!(directory.recover().unwrap().whole.len(), 1);
    drop(directory);

    let (root, _) = filled(None);
    let before = content(root.path());
    assert_eq!(reason(open(root.path(), Some(&right))), "plain");
    assert_eq!(reason(open(root.path(), Some(&ephemeral()))), "plain");
    assert_eq!(content(root.path()), before, "nothing was changed");
}

#[test]
fn damaged_or_missing_key_record_changes_nothing() {
    let secret = from_file(1);
    let (root, _) = filled(Some(&secret));
    let path = root.path().join(KEY);
    let sound = fs::read(&path).unwrap();
    for damaged in [&sound[..sound.len() / 2], b"", &[b'x'; 2000]] {
        fs::write(&path, damaged).unwrap();
        let before = content(root.path());
        let error = open(root.path(), Some(&secret)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert_eq!(content(root.path()), before);
    }
    fs::remove_file(&path).unwrap();
    for secret in [Some(&secret), None] {
        let before = content(root.path());
        assert_eq!(reason(open(root.path(), secret)), "key-record");
        assert_eq!(content(root.path()), before);
    }
    fs::write(&path, sound).unwrap();
    open(root.path(), Some(&secret)).unwrap();
}

#[test]
fn empty_directory_takes_any_key() {
    let (root, name) = filled(None);
    let (first, second, last) = (from_file(1), from_file(2), ephemeral());
    for secret in [None, Some(&first), Some(&second), Some(&last), None] {
        let directory = open(root.path(), secret).unwrap();
        assert_eq!(directory.is_encrypted(), secret.is_some());
        assert_eq!(root.path().join(KEY).exists(), secret.is_some());
        let wanted = if secret.is_some() { FORMAT_ENCRYPTED } else { FORMAT };
        assert_eq!(fs::read_to_string(root.path().join("FORMAT")).unwrap(), wanted);
        directory.remove(&name).unwrap();
        directory.remove_staged(ID).unwrap();
    }
    // Under another key an index is readable for everybody, or for nobody.
    assert_eq!(fs::read_dir(root.path().join("indexes")).unwrap().count(), 0);
}

#[test]
fn only_ephemeral_directories_are_emptied() {
    let (first, second) = (ephemeral(), ephemeral());
    let (root, name) = filled(Some(&first));
    fs::write(root.path().join("shards/README"), "foreign").unwrap();
    let again = open(root.path(), Some(&first)).unwrap();
    assert_eq!(again.read_sidecar(&name).unwrap().len, 5000, "the key lives");
    drop(again);
    let check = Keys { secret: None, is_check: true };
    let before = content(root.path());
    let checked = Directory::open(root.path(), Arc::new(LocalFiles), &check);
    assert_eq!(reason(checked), "ephemeral");
    assert_eq!(content(root.path()), before, "a check changes nothing");
    let next = open(root.path(), Some(&second)).unwrap();
    let found = next.recover().unwrap();
    assert!(found.whole.is_empty() && next.read_record(ID).is_err());
    let left: Vec<_> = content(root.path()).into_keys().collect();
    let left = left.iter().map(|path| path.strip_prefix(root.path()).unwrap().to_str().unwrap());
    assert_eq!(left.collect::<Vec<_>>(), ["FORMAT", "KEY", "shards/README"]);
}

#[test]
fn small_files_show_nothing_and_fit_their_name_alone() {
    let secret = from_file(1);
    let (root, name) = filled(Some(&secret));
    let directory = open(root.path(), Some(&secret)).unwrap();
    for (path, bytes) in content(root.path()) {
        let shows = |word: &[u8]| bytes.windows(word.len()).any(|window| window == word);
        assert!(!shows(b"private") && !shows(b"FOREBAY\x1a"), "{}", path.display());
    }
    let sidecar = directory.sidecar(&name);
    let record = root.path().join("checkpoints").join(format!("{ID}.rec"));
    let kept = fs::read(&record).unwrap();
    fs::copy(&sidecar, &record).unwrap();
    assert_eq!(directory.read_record(ID).unwrap_err().kind(), ErrorKind::Corrupt);
    fs::write(&record, &kept[..kept.len() - 1]).unwrap();
    assert_eq!(directory.read_record(ID).unwrap_err().kind(), ErrorKind::Corrupt);
    // Any length, whole blocks and others.
    for len in [0, 1, GRANULE - LENGTH_BYTES, GRANULE - LENGTH_BYTES + 1, 3 * GRANULE] {
        let bytes: Vec<u8> = (0..len).map(|at| at as u8).collect();
        directory.save_record(ID, &bytes).unwrap();
        assert_eq!(directory.read_record(ID).unwrap(), bytes);
    }
    let mut head = fs::read(&sidecar).unwrap();
    head[100] ^= 1;
    fs::write(&sidecar, head).unwrap();
    assert_eq!(directory.read_sidecar(&name).unwrap_err().kind(), ErrorKind::Corrupt);
}
