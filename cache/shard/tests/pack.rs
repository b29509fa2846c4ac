//! What is packed is what is read, and the same files make the same bytes.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use std::fs;
use std::path::Path;

use forebay_error::ErrorKind;
use forebay_shard::pack::{Limits, pack_folder, plan_folder};
use forebay_shard::{Index, Indexer, Plain};

fn index(path: &Path) -> Index {
    let file = fs::File::open(path).unwrap();
    let len = file.metadata().unwrap().len();
    Indexer::new(Plain::new(file), len).finish().unwrap()
}

fn tree(folder: &Path) {
    fs::create_dir_all(folder.join("sub")).unwrap();
    for i in 0..5 {
        fs::write(folder.join(format!("{i}.jpg")), vec![i; 1000]).unwrap();
        fs::write(folder.join(format!("{i}.cls")), format!("{i}")).unwrap();
    }
    // These sort between others by name, but belong together by key.
    fs::write(folder.join("sub/x.jpg"), b"x").unwrap();
    fs::write(folder.join("sub/x-1.jpg"), b"x1").unwrap();
    fs::write(folder.join("sub/x.CLS"), b"x").unwrap();
}

#[test]
fn samples_stay_whole_and_shards_roll_over_the_same_way_twice() {
    let dir = tempfile::tempdir().unwrap();
    tree(&dir.path().join("in"));
    let pack = |out: &str, limits| {
        let pattern = dir.path().join(out).join("o-{:03d}.tar");
        pack_folder(&dir.path().join("in"), pattern.to_str().unwrap(), limits).unwrap()
    };
    let limits = Limits { samples: 3, bytes: u64::MAX };
    let (first, second) = (pack("a", limits), pack("b", limits));
    assert_eq!(first.iter().map(|p| p.samples).collect::<Vec<_>>(), [3, 3, 1]);
    let mut keys = Vec::new();
    for (a, b) in first.iter().zip(&second) {
        let bytes = fs::read(&a.path).unwrap();
        assert_eq!(bytes, fs::read(&b.path).unwrap());
        assert_eq!(bytes.len() as u64, a.bytes);
        let index = index(&a.path);
        assert_eq!(index.samples.len() as u64, a.samples);
        keys.extend(index.samples.into_iter().map(|s| (s.key, s.members.len())));
    }
    let two = |key: &str| (key.to_owned(), 2);
    assert_eq!(keys[..5], ["0", "1", "2", "3", "4"].map(two));
    assert_eq!(keys[5..], [two("sub/x"), ("sub/x-1".to_owned(), 1)]);
    assert_eq!(pack("c", Limits { samples: 100, bytes: 2500 }).len(), 3);
    assert!(!dir.path().join("a/o-000.tar.partial").exists());
}

#[test]
fn a_plan_is_what_packing_makes_and_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("in");
    tree(&input);
    // Longer than a header's name field: such a member takes more blocks.
    fs::write(input.join(format!("{}.jpg", "long".repeat(40))), vec![1; 5000]).unwrap();
    let pattern = dir.path().join("out/o-{:03d}.tar").to_str().unwrap().to_owned();
    let limits = Limits { samples: 3, bytes: u64::MAX };
    let plan = plan_folder(&input, &pattern, limits).unwrap();
    assert!(!dir.path().join("out").exists());
    assert_eq!(plan, pack_folder(&input, &pattern, limits).unwrap());
    let error = plan_folder(&input, &pattern, limits).unwrap_err();
    assert!(error.to_string().contains("exists already"), "{error}");
}

#[test]
fn what_would_be_lost_or_overwritten_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("in");
    fs::create_dir(&input).unwrap();
    let pattern = dir.path().join("o-{}.tar").to_str().unwrap().to_owned();
    let pack = || pack_folder(&input, &pattern, Limits::default());
    assert_eq!(pack().unwrap_err().kind(), ErrorKind::NotFound);

    fs::write(input.join("a.txt"), b"1").unwrap();
    fs::write(input.join("README"), b"1").unwrap();
    let error = pack().unwrap_err();
    assert!(error.to_string().contains("README"), "{error}");
    fs::remove_file(input.join("README")).unwrap();

    fs::write(input.join("a.TXT"), b"2").unwrap();
    assert!(pack().unwrap_err().to_string().contains("same field"));
    fs::remove_file(input.join("a.TXT")).unwrap();

    pack().unwrap();
    let before = fs::read(dir.path().join("o-0.tar")).unwrap();
    fs::write(input.join("a.txt"), b"other").unwrap();
    let error = pack().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(fs::read(dir.path().join("o-0.tar")).unwrap(), before);
    assert!(!dir.path().join("o-0.tar.partial").exists());
}
