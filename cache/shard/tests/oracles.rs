//! The index agrees with two other readers of tar: Python's `tarfile` and the `tar` crate.
//!
//! The archives are written by others (Python in three formats, the `tar` crate), the
//! judgement is made by others, and only the comparison is ours.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use std::io::{Cursor, Read, Write};
use std::process::{Command, Stdio};

use forebay_shard::{Index, Indexer, Plain, checksum, key};
use proptest::prelude::*;

/// Members as an oracle lists them: name, offset of the data, data.
type Listed = Vec<(String, u64, Vec<u8>)>;

fn index(tar: &[u8]) -> Index {
    Indexer::new(Plain::new(Cursor::new(tar)), tar.len() as u64).finish().unwrap()
}

/// A sample: its key, its fields, and whether one of them came twice.
type Grouped = (String, Listed, bool);

/// Groups by the rules, the plain way.
fn expected(listed: &Listed) -> Vec<Grouped> {
    let mut samples: Vec<Grouped> = Vec::new();
    for (name, offset, data) in listed {
        let Some((key, suffix)) = key::split_key(name) else { continue };
        if samples.last().is_none_or(|(last, ..)| last != key) {
            samples.push((key.to_owned(), Vec::new(), false));
        }
        let (_, members, bad) = samples.last_mut().unwrap();
        let field = suffix.to_lowercase();
        if members.iter().any(|(have, ..)| *have == field) {
            *bad = true;
        } else {
            members.push((field, *offset, data.clone()));
        }
    }
    samples
}

fn agrees(tar: &[u8], listed: &Listed) {
    let index = index(tar);
    let expected = expected(listed);
    assert_eq!(index.samples.len(), expected.len());
    for (sample, (key, members, bad)) in index.samples.iter().zip(expected) {
        assert_eq!((&sample.key, sample.bad.is_some()), (&key, bad));
        let have = index.members_of(sample);
        assert_eq!(have.len(), members.len(), "{key}");
        assert_eq!(sample.offset, members[0].1);
        for (member, (field, offset, data)) in have.iter().zip(members) {
            assert_eq!(index.fields[member.field as usize], field);
            assert_eq!((member.offset, member.len), (offset, data.len() as u64));
            assert_eq!(member.crc32c, checksum::crc32c(&data));
        }
        assert_eq!(sample.end, have.last().unwrap().end());
    }
}

/// Runs a Python script over `input` and returns what it wrote.
fn python(script: &str, input: &[u8]) -> Vec<u8> {
    let mut child = Command::new("python3")
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 is needed for this test");
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success());
    output.stdout
}

/// Lists regular members, and links with the data of the member they name, as JSON.
const LIST: &str = r"
import sys, io, json, tarfile
tar = tarfile.open(fileobj=io.BytesIO(sys.stdin.buffer.read()), mode='r:')
data = lambda m: m if m.isreg() else data(tar._find_link_target(m))
members = [m for m in tar if m.isreg() or m.issym() or m.islnk()]
json.dump([[m.name, data(m).offset_data, tar.extractfile(m).read().hex()] for m in members], sys.stdout)
";

fn python_lists(tar: &[u8]) -> Listed {
    let listed: Vec<(String, u64, String)> = serde_json::from_slice(&python(LIST, tar)).unwrap();
    let bytes = |hex: String| {
        (0..hex.len() / 2)
            .map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap())
            .collect()
    };
    listed.into_iter().map(|(name, offset, hex)| (name, offset, bytes(hex))).collect()
}

fn crate_lists(tar: &[u8]) -> Listed {
    let mut archive = tar::Archive::new(tar);
    let mut listed = Vec::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let kind = entry.header().entry_type();
        let name = String::from_utf8(entry.path_bytes().into_owned()).unwrap();
        if matches!(kind, tar::EntryType::Link | tar::EntryType::Symlink) {
            // Only the last part of a target differs from other members' names.
            let target = String::from_utf8(entry.link_name_bytes().unwrap().into_owned()).unwrap();
            let last = target.rsplit('/').next().unwrap();
            let found = listed.iter().find(|(name, ..): &&(String, _, _)| name.ends_with(last));
            let (_, offset, data) = found.unwrap().clone();
            listed.push((name, offset, data));
            continue;
        }
        if !matches!(kind, tar::EntryType::Regular | tar::EntryType::Continuous) {
            continue;
        }
        let offset = entry.raw_file_position();
        let mut data = Vec::new();
        entry.read_to_end(&mut data).unwrap();
        listed.push((name, offset, data));
    }
    listed
}

/// Long names in GNU, PAX and ustar form, links, folders, global headers, odd sizes, non-ASCII.
const WRITE: &str = r"
import sys, io, os, random, tarfile
fmt, seed = sys.stdin.read().split()
fmt = getattr(tarfile, fmt)
rng = random.Random(int(seed))
out = io.BytesIO()
kwargs = {'pax_headers': {'comment': 'a global header'}} if fmt == tarfile.PAX_FORMAT else {}
tar = tarfile.open(fileobj=out, mode='w', format=fmt, **kwargs)
long = 'd' * (40 if fmt == tarfile.USTAR_FORMAT else 300) + '/'
def pool(i):
    info = tarfile.TarInfo(f'{long}pool/{i:04d}.bin')
    info.size = rng.randrange(5000)
    tar.addfile(info, io.BytesIO(rng.randbytes(info.size)))
    return info.name
for i in range(60):
    folder = rng.choice(['', './', 'a.b/', long, 'ä/', long + '.x/', '__m__/'])
    base = f'{rng.choice([i, i // 2, i // 3]):04d}'
    ext = rng.choice(['jpg', 'JPG', 'seg.png', 'cls', 'Json', ''])
    info = tarfile.TarInfo(folder + base + rng.choice(['.', '.', '.', '']) + ext)
    info.mtime = rng.random() * 1e9 if fmt == tarfile.PAX_FORMAT else 0
    kind = rng.randrange(10)
    if kind == 0:
        folder = os.path.dirname(info.name) or '.'
        info.type, info.linkname = tarfile.SYMTYPE, os.path.relpath(pool(i), folder)
    elif kind == 1:
        info.type = tarfile.DIRTYPE
    elif kind == 2:
        info.type, info.linkname = tarfile.LNKTYPE, pool(i)
    else:
        info.size = rng.choice([0, 1, 511, 512, 513, rng.randrange(5000)])
    tar.addfile(info, io.BytesIO(rng.randbytes(info.size)))
tar.close()
sys.stdout.buffer.write(out.getvalue())
";

#[test]
fn indexer_agrees_with_tarfile_and_the_tar_crate() {
    for format in ["USTAR_FORMAT", "GNU_FORMAT", "PAX_FORMAT"] {
        for seed in 0..4 {
            let tar = python(WRITE, format!("{format} {seed}").as_bytes());
            let listed = python_lists(&tar);
            assert!(listed.len() > 20);
            agrees(&tar, &listed);
            agrees(&tar, &crate_lists(&tar));
        }
    }
}

fn names() -> impl Strategy<Value = Vec<(String, Vec<u8>)>> {
    let name = "(d{1,3}/|e\\.f/|x{120}/){0,2}[ab]\\.(jpg|JPG|cls|a\\.b)|noext";
    let data = proptest::collection::vec(any::<u8>(), 0..1200);
    proptest::collection::vec((name, data), 0..20)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn indexer_reads_archives_written_by_the_tar_crate(members in names()) {
        let mut builder = tar::Builder::new(Vec::new());
        for (name, data) in &members {
            let mut header = tar::Header::new_gnu();
            header.set_size(data.len() as u64);
            builder.append_data(&mut header, name, &data[..]).unwrap();
        }
        let tar = builder.into_inner().unwrap();
        agrees(&tar, &crate_lists(&tar));
    }

    #[test]
    fn damaged_archives_never_panic_and_cuts_are_detected(
        members in names(),
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut builder = tar::Builder::new(Vec::new());
        for (name, data) in &members {
            let mut header = tar::Header::new_gnu();
            header.set_size(data.len() as u64);
            builder.append_data(&mut header, name, &data[..]).unwrap();
        }
        let tar = builder.into_inner().unwrap();
        let whole = index(&tar);
        // Anything shorter than the members and one end block has lost something.
        let cut = &tar[..cut.index(tar.len() - 1023)];
        prop_assert!(Indexer::new(Plain::new(Cursor::new(cut)), cut.len() as u64).finish().is_err());
        let mut damaged = tar.clone();
        for (at, value) in edits {
            let at = at.index(damaged.len());
            damaged[at] = value;
        }
        if let Ok(index) = Indexer::new(Plain::new(Cursor::new(&damaged)), tar.len() as u64).finish() {
            prop_assert!(index.samples.len() <= whole.samples.len() + 20);
        }
    }
}
