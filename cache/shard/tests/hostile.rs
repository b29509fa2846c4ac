//! Verdict on every tar under `tests/hostile/`.
//!
//! Each file there has a verdict here, and each verdict a file.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use std::collections::BTreeSet;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use forebay_error::{ErrorKind, Result};
use forebay_shard::{Index, Indexer, Plain, checksum};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hostile")
}

fn index(name: &str) -> Result<Index> {
    let bytes = std::fs::read(folder().join(format!("{name}.tar"))).unwrap();
    let len = bytes.len() as u64;
    Indexer::new(Plain::new(Cursor::new(bytes)), len).finish()
}

/// Refused: name, kind, a part of the message, and the offset of the header at fault.
const REFUSED: &[(&str, ErrorKind, &str, &str)] = &[
    ("truncated-in-member", ErrorKind::Corrupt, "past the end", "1024"),
    ("truncated-in-header", ErrorKind::Corrupt, "without an end-of-archive", "1024"),
    ("truncated-at-member", ErrorKind::Corrupt, "without an end-of-archive", "3072"),
    ("bad-checksum", ErrorKind::Corrupt, "wrong checksum", "1024"),
    ("bad-first-checksum", ErrorKind::Corrupt, "wrong checksum", "0"),
    ("huge-pax", ErrorKind::Corrupt, "too large", "0"),
    ("huge-pax-size", ErrorKind::Corrupt, "past the end", "1024"),
    ("huge-long-name", ErrorKind::Corrupt, "too large", "0"),
    ("malformed-pax", ErrorKind::Corrupt, "malformed PAX", "0"),
    ("dangling-long-name", ErrorKind::Corrupt, "describes no member", "1024"),
    ("two-long-names", ErrorKind::Corrupt, "both a GNU and a PAX", "1024"),
    ("global-path", ErrorKind::Corrupt, "global PAX", "0"),
    ("gnu-sparse", ErrorKind::Corrupt, "sparse", "0"),
    ("pax-sparse", ErrorKind::Corrupt, "sparse", "0"),
    ("negative-size", ErrorKind::Corrupt, "past the end", "0"),
    ("joined", ErrorKind::Corrupt, "another archive", "2048"),
    ("two-long-links", ErrorKind::Corrupt, "both a GNU and a PAX", "1024"),
    ("link-forward", ErrorKind::Corrupt, "no earlier member", "0"),
    ("link-outside", ErrorKind::Corrupt, "no earlier member", "1024"),
    ("empty", ErrorKind::Corrupt, "empty", "0"),
];

/// A sample's key, its number of fields, and whether it is bad.
type Taken = (&'static str, usize, bool);

/// Taken: name, and its samples.
const TAKEN: &[(&str, &[Taken])] = &[
    ("dot-dot", &[("../../etc/a", 1, false), ("/abs/b", 1, false)]),
    ("zero-length", &[("a", 2, false), ("b", 1, false)]),
    ("others", &[("a", 2, false)]),
    (
        "links",
        &[
            ("b", 2, false),
            ("dir/c", 1, false),
            ("dir/d", 1, false),
            ("e", 1, false),
            ("f", 1, false),
        ],
    ),
    ("pax-size", &[("c", 1, false), ("b", 1, false)]),
    ("blank-numbers", &[("a", 2, false), ("b", 1, false)]),
    ("one-zero-block", &[("a", 1, false)]),
    ("no-members", &[]),
    ("duplicate-field", &[("a", 2, true), ("b", 1, false)]),
    ("reserved-field", &[("a", 1, true), ("b", 1, false)]),
    ("not-utf8", &[("\u{fffd}", 1, true), ("\u{fffd}", 1, true), ("b", 1, false)]),
];

#[test]
fn broken_archives_are_rejected_with_the_offset() {
    for &(name, kind, text, offset) in REFUSED {
        let error = index(name).expect_err(name);
        assert_eq!(error.kind(), kind, "{name}: {error}");
        assert!(error.message().contains(text), "{name}: {error}");
        assert_eq!(error.place("offset"), Some(offset), "{name}: {error}");
    }
}

#[test]
fn compressed_shard_is_rejected_naming_its_format() {
    let error = index("gzip").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("gzip"), "{error}");
}

#[test]
fn unusual_archives_are_accepted_with_bad_samples_in_place() {
    for &(name, samples) in TAKEN {
        let index = index(name).expect(name);
        let seen: Vec<_> = index
            .samples
            .iter()
            .map(|s| (s.key.as_str(), s.members.len(), s.bad.is_some()))
            .collect();
        assert_eq!(seen, samples, "{name}");
    }
}

#[test]
fn a_pax_size_overrides_the_header() {
    let index = index("pax-size").unwrap();
    let first = index.members[0];
    assert_eq!((first.offset, first.len), (1536, 5));
    assert_eq!(first.crc32c, checksum::crc32c(b"alpha"));
}

#[test]
fn links_have_the_bytes_of_the_member_they_name() {
    let index = index("links").unwrap();
    let (alpha, seven) = (checksum::crc32c(b"alpha"), checksum::crc32c(b"7"));
    let seen: Vec<_> = index.members.iter().map(|m| (m.offset, m.len, m.crc32c)).collect();
    let (text, class) = ((512, 5, alpha), (1536, 1, seven));
    assert_eq!(seen, [class, text, text, text, class, class]);
}

#[test]
fn unresolved_links_are_named_by_key_and_member() {
    for (name, key, member, link) in
        [("link-forward", "h", "h.txt", "a.txt"), ("link-outside", "b", "b.txt", "../a.txt")]
    {
        let error = index(name).expect_err(name);
        let places = ["key", "member", "link"].map(|place| error.place(place));
        assert_eq!(places, [Some(key), Some(member), Some(link)], "{error}");
    }
}

#[test]
fn first_of_repeated_fields_is_kept() {
    let index = index("duplicate-field").unwrap();
    let sample = &index.samples[0];
    assert_eq!(sample.bad.as_deref(), Some("it has the field 'txt' twice"));
    let first = index.members_of(sample)[0];
    assert_eq!((first.offset, first.len), (512, 1));
    assert_eq!(first.crc32c, checksum::crc32c(b"1"));
}

#[test]
fn every_hostile_file_is_tested() {
    let kept: BTreeSet<String> = std::fs::read_dir(folder())
        .unwrap()
        .filter_map(|entry| {
            entry
                .unwrap()
                .file_name()
                .into_string()
                .unwrap()
                .strip_suffix(".tar")
                .map(str::to_owned)
        })
        .collect();
    let judged = REFUSED.iter().map(|r| r.0).chain(TAKEN.iter().map(|t| t.0)).chain(["gzip"]);
    assert_eq!(kept, judged.map(str::to_owned).collect());
}
