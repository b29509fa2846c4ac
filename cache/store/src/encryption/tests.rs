//! Tests of key files and of what is derived from them.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use super::*;

fn write(path: &Path, bytes: &[u8], mode: u32) {
    fs::write(path, bytes).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn key() -> [u8; KEY_FILE_BYTES] {
    std::array::from_fn(|at| at as u8)
}

#[test]
fn key_file_is_whole_and_its_owners_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    for mode in [0o600, 0o400] {
        write(&path, &key(), mode);
        assert_eq!(*Secret::read(&path).unwrap().bytes, key());
        fs::remove_file(&path).unwrap();
    }
    for mode in [0o640, 0o604, 0o620, 0o700, 0o444] {
        write(&path, &key(), mode);
        let error = Secret::read(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{mode:o}");
        assert!(error.advice().is_some());
        fs::remove_file(&path).unwrap();
    }
    let hex = b"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\n";
    for wrong in [&key()[..31], &[&key()[..], b"\n"].concat(), &[0; 32], b"", hex] {
        write(&path, wrong, 0o600);
        let error = Secret::read(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{} bytes", wrong.len());
        assert!(error.advice().unwrap().contains("openssl rand"), "{error}");
        assert!(!error.to_string().contains("0123"), "the error shows the key");
    }
    assert_eq!(Secret::read(folder.path()).unwrap_err().kind(), ErrorKind::Invalid);
    let missing = Secret::read(&folder.path().join("none")).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
}

#[test]
fn secrets_are_not_shown() {
    let secret = Secret { kind: KeyKind::KeyFile, bytes: Zeroizing::new(key()) };
    let shown = format!("{secret:?} {:?}", secret.ciphers(7).unwrap());
    assert_eq!(shown, "Secret(KeyFile) TierCipher");
}

#[test]
fn keys_differ_by_secret_salt_and_file() {
    let secret = Secret { kind: KeyKind::KeyFile, bytes: Zeroizing::new(key()) };
    let other = Secret::ephemeral().unwrap();
    let checks = [secret.check_value(1), secret.check_value(2), other.check_value(1)];
    let checks = checks.map(Result::unwrap);
    assert!(checks[0] != checks[1] && checks[0] != checks[2]);
    assert_eq!(secret.check_value(1).unwrap(), checks[0]);
    let sealed = |secret: &Secret, salt, path: &str| {
        let mut block = vec![0; forebay_uring::GRANULE];
        secret.ciphers(salt).unwrap().of(path.as_bytes()).unwrap().encrypt(0, &mut block).unwrap();
        block
    };
    let blocks = [
        sealed(&secret, 1, "shards/a"),
        sealed(&secret, 2, "shards/a"),
        sealed(&secret, 1, "shards/a.idx"),
        sealed(&other, 1, "shards/a"),
    ];
    for (at, block) in blocks.iter().enumerate() {
        assert!(blocks[at + 1..].iter().all(|other| other != block), "{at}");
    }
    assert_eq!(sealed(&secret, 1, "shards/a"), blocks[0]);
}
