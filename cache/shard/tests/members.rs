//! Member indexes: what is written comes back, and damage of any kind is found.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::members::{
    BLOCK_SAMPLES, ColumnKind, Digest, MemberIndex, ReadAt, TEXT_MAX, Value, Values, Writer,
    path_of,
};
use forebay_shard::{Catalogue, Index, Manifest, ManifestShard, Member, Sample};
use proptest::prelude::*;

/// One sample: key, members as (field, gap before it, length), true if bad, a value per column.
type Made = (String, Vec<(u8, u64, u64)>, bool, [Value; 3]);

const NAMES: [&str; 4] = ["jpg", "cls", "json", "seg.png"];
const COLUMNS: [&str; 3] = ["width", "score", "lang"];

/// Makes the index of a shard, as an indexer would, and its length.
fn shard(samples: &[Made]) -> (Index, u64) {
    let mut index = Index { fields: NAMES.map(str::to_owned).to_vec(), ..Index::default() };
    let mut at = 0;
    for (key, members, bad, _) in samples {
        let start = index.members.len() as u32;
        for (field, gap, len) in members {
            let offset = at + 512 * (1 + gap);
            let crc32c = (offset as u32).wrapping_mul(2_654_435_761) ^ *len as u32;
            index.members.push(Member { field: (*field).into(), offset, len: *len, crc32c });
            at = (offset + len).next_multiple_of(512);
        }
        let own = &index.members[start as usize..];
        index.samples.push(Sample {
            key: key.clone(),
            offset: own[0].offset,
            end: own.last().unwrap().end(),
            members: start..index.members.len() as u32,
            bad: bad.then(|| "twice".to_owned()),
        });
    }
    (index, at + 1024)
}

fn write(shards: &[Vec<Made>], folder: &Path) -> Result<(PathBuf, Manifest)> {
    let path = path_of(&folder.join("m.json"));
    let mut writer = Writer::create(&path, &COLUMNS.map(str::to_owned))?;
    let mut listed = Vec::new();
    for (number, samples) in shards.iter().enumerate() {
        let (index, bytes) = shard(samples);
        writer.begin(bytes, &format!("etag-{number}"))?;
        for (sample, made) in index.samples.iter().zip(samples) {
            writer.add(&index, sample, made.3.to_vec())?;
        }
        let url = format!("s3://b/{number}.tar");
        listed.push(ManifestShard { url, samples: samples.len() as u64, bytes: Some(bytes) });
    }
    let manifest = Manifest::new(listed)?;
    writer.finish(&manifest)?;
    Ok((path, manifest))
}

fn values() -> impl Strategy<Value = [Value; 3]> {
    let ints = prop_oneof![Just(Value::Absent), any::<i64>().prop_map(Value::Int)];
    let finite = any::<f64>().prop_filter("a number", |number| !number.is_nan());
    let floats = prop_oneof![
        Just(Value::Absent),
        finite.prop_map(Value::Float),
        (0_u8..9).prop_map(|n| Value::Float(f64::from(n) / 8.0)),
    ];
    let texts = prop_oneof![Just(Value::Absent), "[a-zé]{0,9}".prop_map(Value::Text)];
    (ints, floats, texts).prop_map(|(int, float, text)| [int, float, text])
}

fn samples(most: usize) -> impl Strategy<Value = Vec<Made>> {
    let members = prop::collection::vec((0_u64..3, 0_u64..5000), 1..4).prop_map(|members| {
        let member = |(field, (gap, len)): (usize, (u64, u64))| (field as u8, gap, len);
        members.into_iter().enumerate().map(member).collect::<Vec<_>>()
    });
    prop::collection::vec(("[a-z/0-9é]{1,12}", members, any::<bool>(), values()), 0..most)
}

/// The values that a column of a shard has, one for each sample.
fn column(index: &MemberIndex, shard: usize, column: usize) -> Result<Vec<Value>> {
    let mut all = Vec::new();
    for block in index.column(shard, column)? {
        let block = block?;
        let mut values: Vec<Value> = match block.values {
            Values::Empty => Vec::new(),
            Values::Ints(values) => values.into_iter().map(Value::Int).collect(),
            Values::Floats(values) => values.into_iter().map(Value::Float).collect(),
            Values::Texts(values) => values.into_iter().map(Value::Text).collect(),
        };
        values.reverse();
        let value = |present: bool| if present { values.pop().unwrap() } else { Value::Absent };
        all.extend(block.present.into_iter().map(value));
    }
    Ok(all)
}

/// Reads all of an index, as one that believes nothing.
fn read_all(index: &MemberIndex) -> Result<()> {
    index.verify()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn index_returns_what_was_written(shards in prop::collection::vec(samples(40), 1..4)) {
        let folder = tempfile::tempdir().unwrap();
        let (path, manifest) = write(&shards, folder.path()).unwrap();
        let index = MemberIndex::open(&path).unwrap();
        index.check(&manifest).unwrap();
        index.verify().unwrap();
        prop_assert_eq!(index.shards().len(), shards.len());
        for (number, made) in shards.iter().enumerate() {
            let (original, bytes) = shard(made);
            let info = &index.shards()[number];
            prop_assert_eq!((info.samples, info.bytes), (made.len() as u64, bytes));
            prop_assert_eq!(info.members, original.members.len() as u64);
            let version = format!("etag-{number}");
            prop_assert_eq!(&*info.version, version.as_str());
            prop_assert_eq!(info.digest, Digest::of(&Catalogue::whole(original.clone())));
            let mut at = 0;
            for block in 0..info.blocks() {
                let found = index.samples(number, block).unwrap();
                for sample in &found.samples {
                    let there = &original.samples[at];
                    prop_assert_eq!(&sample.key, &there.key);
                    prop_assert_eq!(sample.bad.is_some(), there.bad.is_some());
                    prop_assert_eq!((sample.offset, sample.end), (there.offset, there.end));
                    let (mine, theirs) = (found.members_of(sample), original.members_of(there));
                    prop_assert_eq!(mine.len(), theirs.len());
                    for (mine, theirs) in mine.iter().zip(theirs) {
                        let name = &found.fields[mine.field as usize];
                        prop_assert_eq!(name, &original.fields[theirs.field as usize]);
                        prop_assert_eq!(Member { field: 0, ..*mine }, Member { field: 0, ..*theirs });
                    }
                    at += 1;
                }
            }
            prop_assert_eq!(at, made.len());
            // The same block twice is two answers.
            let wanted: Vec<_> = (0..info.blocks()).chain(0..info.blocks()).map(|b| (number, b)).collect();
            let one_by_one: Vec<_> = wanted.iter().map(|(s, b)| index.samples(*s, *b).unwrap()).collect();
            prop_assert_eq!(index.blocks(&wanted).unwrap(), one_by_one);
            for number_of in 0..COLUMNS.len() {
                let found = column(&index, number, number_of).unwrap();
                let wrote: Vec<_> = made.iter().map(|sample| sample.3[number_of].clone()).collect();
                prop_assert_eq!(found, wrote);
            }
        }
    }

    #[test]
    fn damaged_index_is_found(
        shards in prop::collection::vec(samples(6), 1..3), at: prop::sample::Index, bit in 0_u8..8,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let (path, _) = write(&shards, folder.path()).unwrap();
        let whole = std::fs::read(&path).unwrap();
        let reads = |bytes: Vec<u8>| {
            MemberIndex::new(Box::new(Memory(Mutex::new(bytes))), "x".into())
                .and_then(|index| read_all(&index))
        };
        prop_assert!(reads(whole.clone()).is_ok());
        let mut flipped = whole.clone();
        let place = at.index(whole.len());
        flipped[place] ^= 1 << bit;
        let error = reads(flipped).unwrap_err();
        // The head and the magic say what the file is; all else is damage.
        let found = matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Invalid);
        prop_assert!(found && error.place("path").is_some(), "{}", error);
        let error = reads(whole[..place].to_vec()).unwrap_err();
        let found = matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Invalid);
        prop_assert!(found && error.place("path").is_some(), "{}", error);
    }

    /// Bytes with right checksums that no writer wrote are rejected, or are an index.
    #[test]
    fn hostile_index_is_rejected(
        shards in prop::collection::vec(samples(6), 1..3), at: prop::sample::Index, byte: u8,
        target in 0_usize..4,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let (path, _) = write(&shards, folder.path()).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        if let Some(range) = sealed(&bytes, target) {
            let place = range.start + at.index(range.len().max(1)).min(range.len());
            if place < range.end {
                bytes[place] = byte;
                seal(&mut bytes);
            }
        }
        // No panic, no overflow, no member outside its shard.
        let opened = MemberIndex::new(Box::new(Memory(Mutex::new(bytes))), "x".into());
        if let Ok(index) = opened {
            for (number, info) in index.shards().iter().enumerate() {
                for block in 0..info.blocks().min(4) {
                    if let Ok(found) = index.samples(number, block) {
                        prop_assert!(found.members.iter().all(|one| one.end() <= info.bytes));
                    }
                }
                for number_of in 0..index.columns().len() {
                    let _ = column(&index, number, number_of);
                }
            }
        }
    }
}

/// The directory of an index, or the rest of it.
fn sealed(bytes: &[u8], target: usize) -> Option<std::ops::Range<usize>> {
    let trailer = bytes.len() - 36;
    let at = u64::from_le_bytes(bytes[trailer..trailer + 8].try_into().unwrap()) as usize;
    Some(if target == 0 { 16..at } else { at..trailer })
}

/// Gives the directory and the trailer the checksums of what they are.
fn seal(bytes: &mut [u8]) {
    use forebay_shard::checksum::crc32c;
    let trailer = bytes.len() - 36;
    let at = u64::from_le_bytes(bytes[trailer..trailer + 8].try_into().unwrap()) as usize;
    let sum = crc32c(&bytes[at..trailer]).to_le_bytes();
    bytes[trailer + 16..trailer + 20].copy_from_slice(&sum);
    let sum = crc32c(&bytes[trailer..trailer + 32]).to_le_bytes();
    bytes[trailer + 32..].copy_from_slice(&sum);
}

/// An index in memory.
struct Memory(Mutex<Vec<u8>>);

impl ReadAt for Memory {
    fn bytes(&self) -> Result<u64> {
        Ok(self.0.lock().unwrap().len() as u64)
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<()> {
        let bytes = self.0.lock().unwrap();
        let at = usize::try_from(at).unwrap();
        let there = at.checked_add(into.len()).and_then(|end| bytes.get(at..end));
        let there = there.ok_or_else(|| Error::new(ErrorKind::Corrupt, "it ends early"))?;
        into.copy_from_slice(there);
        Ok(())
    }
}

fn made(key: &str, values: [Value; 3]) -> Made {
    (key.to_owned(), vec![(0, 0, 7), (1, 0, 3)], false, values)
}

fn none() -> [Value; 3] {
    [Value::Absent, Value::Absent, Value::Absent]
}

/// Four members a sample, as images with captions have: 12 bytes for each, beside the keys.
#[test]
fn member_takes_few_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let one = |number: u64| -> Made {
        let noise = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        let members = vec![(0, 0, 30_000 + noise % 200_000), (1, 0, 2), (2, 0, 900 + noise % 1000)];
        let members = [members, vec![(3, 0, noise % 64_000)]].concat();
        (format!("{number:09}"), members, false, none())
    };
    let many = 20_000;
    let shards = [(0..many).map(one).collect::<Vec<_>>()];
    let (path, _) = write(&shards, folder.path()).unwrap();
    let bytes = std::fs::metadata(&path).unwrap().len() as f64 / (4 * many) as f64;
    assert!(bytes <= 12.0, "{bytes} bytes a member, keys included");
}

/// Opening reads the directory, which grows with the shards, and a filter reads its columns.
#[test]
fn reader_reads_only_what_is_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let one = |number: i64| -> Made {
        let row = [Value::Int(number % 7), Value::Float(number as f64 / 3.0), Value::Absent];
        made(&format!("{:09}", number.wrapping_mul(7919) % 1_000_000_007), row)
    };
    let shards: Vec<Vec<Made>> = (0..4).map(|_| (0..10_000).map(one).collect()).collect();
    let (path, _) = write(&shards, folder.path()).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let whole = bytes.len() as u64;
    let read = Arc::<AtomicU64>::default();
    let counted = Counted(Memory(Mutex::new(bytes)), read.clone());
    let index = MemberIndex::new(Box::new(counted), "x".into()).unwrap();
    let opened = read.swap(0, Ordering::Relaxed);
    assert!(opened < whole / 1000, "{opened} of {whole}");
    assert_eq!(column(&index, 1, 0).unwrap().len(), 10_000);
    let of_column = read.swap(0, Ordering::Relaxed);
    // Three bits for each sample.
    assert!(of_column < 10_000 * 3 / 8 + 1000, "{of_column} of {whole}");
    assert_eq!(index.samples(3, 9).unwrap().samples.len(), 10_000 % BLOCK_SAMPLES);
    let of_block = read.swap(0, Ordering::Relaxed);
    assert!(of_block < whole / 20, "{of_block} of {whole}");
}

/// An index that counts the bytes that are read.
struct Counted(Memory, Arc<AtomicU64>);

impl ReadAt for Counted {
    fn bytes(&self) -> Result<u64> {
        self.0.bytes()
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<()> {
        self.1.fetch_add(into.len() as u64, Ordering::Relaxed);
        self.0.read_at(at, into)
    }
}

/// Blocks of many shards come in one round of reads where runs are short enough to be read as a
/// whole, else in two, and no more bytes than those of tables and blocks.
#[test]
fn blocks_come_in_one_or_two_rounds() {
    let folder = tempfile::tempdir().unwrap();
    let one = |number: usize| made(&format!("{number:09}"), none());
    let shards: Vec<Vec<Made>> = (0..3).map(|_| (0..5000).map(one).collect()).collect();
    let (path, _) = write(&shards, folder.path()).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let wanted = [(2, 4), (0, 0), (2, 1)];
    for (at_once, expected) in [(1 << 20, 1), (0, 2)] {
        let rounds = Arc::<Mutex<Vec<u64>>>::default();
        let slow = Slow { memory: Memory(Mutex::new(bytes.clone())), at_once, rounds };
        let told = slow.rounds.clone();
        let index = MemberIndex::new(Box::new(slow), "x".into()).unwrap();
        let found = index.blocks(&wanted).unwrap();
        let keys: Vec<_> = found.iter().map(|block| block.samples[0].key.as_str()).collect();
        assert_eq!(keys, ["000004096", "000000000", "000001024"]);
        let rounds = told.lock().unwrap().clone();
        assert_eq!(rounds.iter().filter(|bytes| **bytes > 0).count(), expected, "{rounds:?}");
        assert!(rounds.iter().sum::<u64>() < bytes.len() as u64);
    }
    let index = MemberIndex::open(&path).unwrap();
    let error = index.blocks(&[(1, 5)]).unwrap_err();
    assert_eq!((error.kind(), error.place("shard")), (ErrorKind::Corrupt, Some("1")));
}

/// An index each of whose rounds of reads is a round trip; it notes the bytes of each.
struct Slow {
    memory: Memory,
    at_once: u64,
    rounds: Arc<Mutex<Vec<u64>>>,
}

impl ReadAt for Slow {
    fn bytes(&self) -> Result<u64> {
        self.memory.bytes()
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<()> {
        self.memory.read_at(at, into)
    }

    fn read_all(&self, pieces: &mut [(u64, Vec<u8>)]) -> Result<()> {
        let bytes = pieces.iter().map(|(_, into)| into.len() as u64).sum();
        self.rounds.lock().unwrap().push(bytes);
        pieces.iter_mut().try_for_each(|(at, into)| self.memory.read_at(*at, into))
    }

    fn at_once(&self) -> u64 {
        self.at_once
    }
}

/// Blocks end where shards do, and full ones follow each other.
#[test]
fn shards_of_any_length_are_read_block_by_block() {
    let folder = tempfile::tempdir().unwrap();
    let counts = [0, 1, BLOCK_SAMPLES, 2 * BLOCK_SAMPLES + 1];
    let sample = |at: usize| {
        made(&format!("{at:05}"), [Value::Int(at as i64), Value::Absent, Value::Absent])
    };
    let shards: Vec<Vec<Made>> =
        counts.iter().map(|count| (0..*count).map(sample).collect()).collect();
    let (path, _) = write(&shards, folder.path()).unwrap();
    let index = MemberIndex::open(&path).unwrap();
    for (shard, count) in counts.into_iter().enumerate() {
        assert_eq!(index.shards()[shard].blocks(), count.div_ceil(BLOCK_SAMPLES) as u64);
        let values: Vec<Value> = (0..count).map(|at| Value::Int(at as i64)).collect();
        assert_eq!(column(&index, shard, 0).unwrap(), values);
    }
    let kinds: Vec<_> = index.columns().iter().map(|column| column.kind).collect();
    assert_eq!(kinds, [ColumnKind::Int, ColumnKind::Empty, ColumnKind::Empty]);
}

#[test]
fn columns_of_texts_and_numbers_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let text = |text: &str| Value::Text(text.to_owned());
    let rejected = |values: [[Value; 3]; 2]| {
        let samples = values.into_iter().enumerate();
        let samples = samples.map(|(at, values)| made(&at.to_string(), values));
        write(&[samples.collect()], folder.path()).unwrap_err()
    };
    let mixed =
        [[Value::Int(1), Value::Absent, Value::Absent], [text("a"), Value::Absent, text("")]];
    let error = rejected(mixed);
    assert_eq!((error.kind(), error.place("column")), (ErrorKind::Invalid, Some("width")));
    let long = [none(), [Value::Absent, Value::Absent, text(&"x".repeat(TEXT_MAX + 1))]];
    let error = rejected(long);
    assert_eq!((error.kind(), error.place("key")), (ErrorKind::Invalid, Some("1")));
    // Nothing is left of an index that was not finished.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    // Integers and floats are floats together, and NaN is no value.
    let both = [
        [Value::Int(1), Value::Float(f64::NAN), Value::Absent],
        [Value::Float(0.5), Value::Absent, Value::Absent],
    ];
    let samples = both.map(|values| made("k", values)).to_vec();
    let (path, _) = write(&[samples], folder.path()).unwrap();
    let index = MemberIndex::open(&path).unwrap();
    assert_eq!(column(&index, 0, 0).unwrap(), [Value::Float(1.0), Value::Float(0.5)]);
    assert_eq!(column(&index, 0, 1).unwrap(), [Value::Absent, Value::Absent]);
}

#[test]
fn index_of_another_manifest_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let (path, manifest) = write(&[vec![made("a", none())]], folder.path()).unwrap();
    let index = MemberIndex::open(&path).unwrap();
    index.check(&manifest).unwrap();
    let shard = ManifestShard { url: "s3://b/9.tar".into(), samples: 1, bytes: None };
    let error = index.check(&Manifest::new(vec![shard]).unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(error.place("path"), path.to_str());
    let text = folder.path().join("text");
    std::fs::write(&text, "a".repeat(99)).unwrap();
    assert_eq!(MemberIndex::open(&text).unwrap_err().kind(), ErrorKind::Invalid);
    let none = MemberIndex::open(&folder.path().join("none"));
    assert_eq!(none.unwrap_err().kind(), ErrorKind::NotFound);
}
