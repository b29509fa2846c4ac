//! Packed data reads back the same; the same input makes the same bytes, interrupted or not.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_error::{Error, ErrorKind};
use forebay_shard::pack::{Input, Limits, Packing};
use forebay_shard::{Index, Indexer, Manifest, Plain};
use parquet::basic::{Compression, LogicalType, Repetition, TimeUnit, Type as PhysicalType};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;
use proptest::prelude::*;
use tempfile::TempDir;

/// A folder for input and output of a test.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(TempDir::new().unwrap());
        fs::create_dir(place.path("in")).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes an input.
    fn put(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(&format!("in/{name}"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }

    /// Five samples of two fields, and two below that sort between others by name, but not by key.
    fn tree(&self) {
        for i in 0..5u8 {
            self.put(&format!("{i}.jpg"), vec![i; 1000]);
            self.put(&format!("{i}.cls"), i.to_string());
        }
        self.put("sub/x.jpg", "x");
        self.put("sub/x-1.jpg", "x1");
        self.put("sub/x.CLS", "x");
    }

    /// Packing the input folder into the folder `out`, three samples a shard.
    fn packing(&self, out: &str) -> Packing {
        Packing {
            input: Input::Folder(self.path("in")),
            pattern: self.path(out).join("o-{:03d}.tar").to_str().unwrap().to_owned(),
            limits: Limits { samples: 3, bytes: u64::MAX },
            shuffle: None,
            manifest: None,
            jpeg_index: false,
            threads: NonZero::<usize>::MIN,
        }
    }

    fn list(&self, out: &str, name: &str) -> Packing {
        let list = Input::List { path: self.path("in").join(name), root: None };
        Packing { input: list, ..self.packing(out) }
    }

    fn tars(&self, out: &str, paths: &[&Path], prefix_keys: bool) -> Packing {
        let paths = paths.iter().map(|&path| path.to_owned()).collect();
        let threads = NonZero::new(3).unwrap();
        let input = Input::Tars { paths, prefix_keys, sort: false };
        Packing { input, threads, ..self.packing(out) }
    }

    /// Every file of an output folder.
    fn made(&self, out: &str) -> BTreeMap<String, Vec<u8>> {
        let listed = fs::read_dir(self.path(out)).unwrap().map(|entry| entry.unwrap().path());
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        listed.map(|path| (name(&path), fs::read(&path).unwrap())).collect()
    }

    /// The samples of an output folder, in order: key, and fields with their bytes.
    fn samples(&self, out: &str) -> Vec<Sample> {
        let tars = self.made(out).into_iter().filter(|(name, _)| name.ends_with(".tar"));
        tars.flat_map(|(name, _)| samples(&self.path(out).join(name))).collect()
    }
}

type Sample = (String, Vec<(String, Vec<u8>)>);

fn index(path: &Path) -> Index {
    let file = fs::File::open(path).unwrap();
    let len = file.metadata().unwrap().len();
    Indexer::new(Plain::new(file), len).finish().unwrap()
}

fn samples(path: &Path) -> Vec<Sample> {
    let (index, bytes) = (index(path), fs::read(path).unwrap());
    let sample = |sample: &forebay_shard::Sample| {
        assert_eq!(sample.bad, None);
        let field = |member: &forebay_shard::Member| {
            let data = bytes[member.offset as usize..member.end() as usize].to_vec();
            (index.fields[member.field as usize].clone(), data)
        };
        (sample.key.clone(), index.members_of(sample).iter().map(field).collect())
    };
    index.samples.iter().map(sample).collect()
}

fn pack(packing: &Packing) -> usize {
    packing.plan().unwrap().pack(&|_| {}).unwrap()
}

fn refusal(packing: &Packing) -> Error {
    packing.plan().and_then(|plan| plan.pack(&|_| {})).unwrap_err()
}

fn one(key: &str, fields: &[(&str, &str)]) -> Sample {
    let field = |(name, data): &(&str, &str)| ((*name).to_owned(), data.as_bytes().to_vec());
    (key.to_owned(), fields.iter().map(field).collect())
}

#[test]
fn samples_stay_whole_for_any_number_of_threads() {
    let place = Place::new();
    place.tree();
    pack(&place.packing("a"));
    let first = place.made("a");
    assert_eq!(
        first.keys().collect::<Vec<_>>(),
        ["o-000.tar", "o-001.tar", "o-002.tar", "o.json", "o.json.plan"]
    );
    for threads in [2, 7] {
        let packing = Packing { threads: NonZero::new(threads).unwrap(), ..place.packing("b") };
        pack(&packing);
        let mut second = place.made("b");
        // It names the other folder.
        second.insert("o.json".to_owned(), first["o.json"].clone());
        assert_eq!(first, second, "{threads}");
        fs::remove_dir_all(place.path("b")).unwrap();
    }
    let samples = place.samples("a");
    let keys: Vec<_> = samples.iter().map(|sample| sample.0.as_str()).collect();
    assert_eq!(keys, ["0", "1", "2", "3", "4", "sub/x", "sub/x-1"]);
    assert_eq!(samples[5], one("sub/x", &[("cls", "x"), ("jpg", "x")]));
    assert_eq!(samples[3].1[1], ("jpg".to_owned(), vec![3; 1000]));
}

#[test]
fn plan_equals_the_packed_result_and_writes_nothing() {
    let place = Place::new();
    place.tree();
    // Longer than a header's name field: such members take more blocks; the second fills its last
    // block.
    place.put(&format!("{}.jpg", "long".repeat(40)), vec![1; 5000]);
    place.put(&format!("sub/{}.jpg", "é".repeat(60)), vec![1; 512]);
    place.put(&format!("sub/{}/{}.jpg", "a".repeat(250), "b".repeat(250)), b"");
    // Around the length that a header has room for.
    for len in [99, 100, 101, 510, 511, 512, 513] {
        let folder = "y".repeat(len / 3);
        let name = "x".repeat(len - 2 * folder.len() - "//.e".len());
        place.put(&format!("{folder}/{folder}/{name}.e"), b"e");
    }
    let packing = place.packing("out");
    let plan = packing.plan().unwrap();
    assert_eq!(plan.rehearse().unwrap(), 0);
    assert!(!place.path("out").exists());
    let told = AtomicU64::new(0);
    let tell = |bytes| {
        told.fetch_add(bytes, Ordering::Relaxed);
    };
    assert_eq!(plan.pack(&tell).unwrap(), 0);
    assert_eq!(told.into_inner(), plan.bytes());
    let manifest = Manifest::read(&place.path("out/o.json")).unwrap();
    assert_eq!(&manifest, plan.manifest());
    for (shard, listed) in plan.shards().zip(manifest.shards()) {
        assert_eq!(shard.path.to_str().unwrap(), listed.url);
        assert_eq!(shard.path.metadata().unwrap().len(), shard.bytes);
        assert_eq!(listed.bytes, Some(shard.bytes));
        assert_eq!(index(&shard.path).samples.len() as u64, shard.samples);
        assert_eq!(listed.samples, shard.samples);
    }
    let keys: Vec<_> = place.samples("out").into_iter().map(|sample| sample.0).collect();
    assert_eq!(keys.len(), 17);
    assert!(keys.contains(&format!("sub/{}", "é".repeat(60))));
}

#[test]
fn pack_resumes_from_any_state() {
    let place = Place::new();
    place.tree();
    let packing = Packing { limits: Limits { samples: 2, bytes: u64::MAX }, ..place.packing("o") };
    assert_eq!(pack(&packing), 0);
    let whole = place.made("o");
    assert_eq!(whole.len(), 6);
    // Any of what was made may be missing, and any may have left a part.
    for state in 0..64u32 {
        for (bit, name) in ["o-000.tar", "o-001.tar", "o-003.tar", "o.json"].iter().enumerate() {
            if state >> bit & 1 == 1 {
                fs::remove_file(place.path("o").join(name)).unwrap();
            }
        }
        if state >> 4 & 1 == 1 {
            for name in ["o-000.tar", "o-002.tar", "o.json"] {
                fs::write(place.path("o").join(format!("{name}.partial")), [7; 9999]).unwrap();
            }
        }
        if state >> 5 & 1 == 1 {
            // The last moment before the first shard.
            for name in whole.keys().filter(|name| name.ends_with(".tar") || *name == "o.json") {
                drop(fs::remove_file(place.path("o").join(name)));
            }
            fs::write(place.path("o/o.json.plan"), "{\"note\":").unwrap();
        }
        let there = (0..4).filter(|n| place.path(&format!("o/o-{n:03}.tar")).exists()).count();
        let plan = packing.plan().unwrap();
        assert_eq!(plan.rehearse().unwrap(), there);
        let told = AtomicU64::new(0);
        let tell = |bytes| {
            told.fetch_add(bytes, Ordering::Relaxed);
        };
        let kept = plan.pack(&tell).unwrap();
        assert_eq!((kept, told.into_inner()), (there, plan.bytes()));
        let mut made = place.made("o");
        if state >> 4 & 1 == 1 && state >> 5 & 1 == 1 {
            // Without a record, whose it is that lies there is not known.
            made.retain(|name, _| !name.ends_with(".partial"));
        }
        assert_eq!(made, whole, "{state:b}");
    }
}

#[test]
fn another_plan_is_rejected_while_old_shards_exist() {
    let place = Place::new();
    place.tree();
    pack(&place.packing("o"));
    let whole = place.made("o");
    let base = place.packing("o");
    let limits = Limits { samples: 2, bytes: u64::MAX };
    let refused = || {
        // The last of these makes one shard, where three were.
        let one = Limits { samples: 100, bytes: u64::MAX };
        for other in [
            Packing { limits, ..base.clone() },
            Packing { shuffle: Some(0), ..base.clone() },
            Packing { limits: one, ..base.clone() },
        ] {
            let plan = other.plan().unwrap();
            for error in [plan.rehearse().unwrap_err(), plan.pack(&|_| {}).unwrap_err()] {
                assert_eq!(error.kind(), ErrorKind::Invalid);
                assert!(error.to_string().contains("nothing is overwritten"), "{error}");
                assert!(error.place("record").unwrap().ends_with("o.json.plan"), "{error}");
            }
        }
    };
    refused();
    assert_eq!(place.made("o"), whole);
    // The same bytes written anew are another file.
    let before = fs::metadata(place.path("in/3.cls")).unwrap();
    let later = before.modified().unwrap() + std::time::Duration::from_nanos(1000);
    fs::File::options()
        .write(true)
        .open(place.path("in/3.cls"))
        .unwrap()
        .set_modified(later)
        .unwrap();
    assert!(refusal(&base).to_string().contains("nothing is overwritten"));

    for name in ["o.json", "o-000.tar", "o-001.tar"] {
        fs::remove_file(place.path("o").join(name)).unwrap();
        refused();
    }
    fs::remove_file(place.path("o/o-002.tar")).unwrap();
    assert_eq!(pack(&Packing { limits, ..base }), 0);
    assert_eq!(place.samples("o").len(), 7);
}

#[test]
fn packs_losing_or_overwriting_files_are_rejected() {
    let place = Place::new();
    let base = place.packing("o");
    assert_eq!(refusal(&base).kind(), ErrorKind::NotFound);

    for (name, word) in [
        ("README", "README"),
        (".hidden.txt", "no key and field"),
        ("a.TXT", "same field"),
        ("b.__key__", "reserved name"),
    ] {
        place.put("a.txt", "1");
        let path = place.put(name, "1");
        let error = refusal(&base);
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(word), "{error}");
        fs::remove_file(path).unwrap();
    }
    let within =
        Packing { pattern: place.path("in/new/{}.tar").to_str().unwrap().into(), ..base.clone() };
    assert!(refusal(&within).to_string().contains("into the input folder"));
    let manifest = Packing { manifest: Some(place.path("o/o-000.tar")), ..base.clone() };
    assert!(refusal(&manifest).to_string().contains("a shard's name"));
    let small = Packing { limits: Limits { samples: 1, bytes: 2047 }, ..base.clone() };
    assert!(refusal(&small).to_string().contains("--bytes 2048 or more"));
    assert!(!place.path("o").exists());

    // A foreign file is never mistaken for ours.
    fs::create_dir(place.path("o")).unwrap();
    for name in ["o-000.tar", "o.json"] {
        fs::write(place.path("o").join(name), "mine").unwrap();
        let error = refusal(&base);
        assert!(error.to_string().contains("exists already"), "{error}");
        assert_eq!(place.made("o"), [(name.to_owned(), b"mine".to_vec())].into());
        fs::remove_file(place.path("o").join(name)).unwrap();
    }
    pack(&base);
    fs::write(place.path("o/o-000.tar"), "mine").unwrap();
    let error = refusal(&base);
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.place("path").unwrap().ends_with("o-000.tar"));
    assert_eq!(place.made("o")["o-000.tar"], b"mine");
}

/// A shard gets its name by linking, so that an existing file stays.
#[test]
fn file_created_during_packing_is_not_replaced() {
    let place = Place::new();
    place.tree();
    let taken = place.path("o/o-002.tar");
    let error = place.packing("o").plan().unwrap().pack(&|_| fs::write(&taken, "mine").unwrap());
    let error = error.unwrap_err();
    assert_eq!(error.place("whole_shards"), Some("2 of 3"), "{error}");
    assert_eq!(place.made("o")["o-002.tar"], b"mine");
    assert!(!place.path("o/o.json").exists() && !place.path("o/o-002.tar.partial").exists());
}

#[test]
fn files_changed_during_packing_make_no_shard() {
    for (name, bytes) in
        [("3.jpg", vec![3; 999]), ("3.jpg", vec![3; 1001]), ("3.cls", b"4".to_vec())]
    {
        let place = Place::new();
        place.tree();
        let plan = place.packing("o").plan().unwrap();
        // Clocks of file systems are coarse; what is written later is newer.
        let old = place.path("in").join(name).metadata().unwrap().modified().unwrap();
        place.put(name, bytes);
        let file = fs::File::options().write(true).open(place.path("in").join(name)).unwrap();
        file.set_modified(old + std::time::Duration::from_secs(1)).unwrap();
        let error = plan.pack(&|_| {}).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.place("path").unwrap().ends_with(name), "{error}");
        assert_eq!(error.place("whole_shards"), Some("1 of 3"));
        let made: Vec<_> = place.made("o").into_keys().collect();
        assert_eq!(made, ["o-000.tar", "o.json.plan"]);
    }
}

/// The second process neither waits nor touches anything.
#[test]
fn concurrent_pack_of_the_same_output_is_rejected() {
    let place = Arc::new(Place::new());
    place.tree();
    let tried = AtomicBool::new(false);
    let plan = place.packing("o").plan().unwrap();
    let second = |_| {
        if !tried.swap(true, Ordering::SeqCst) {
            let error = refusal(&place.packing("o"));
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.to_string().contains("is working"), "{error}");
        }
    };
    assert_eq!(plan.pack(&second).unwrap(), 0);
    assert!(tried.into_inner());
    assert_eq!(place.made("o").len(), 5);
}

#[test]
fn shuffle_depends_on_the_seed_and_keeps_every_sample() {
    let place = Place::new();
    for i in 0..50 {
        place.put(&format!("{i:02}.txt"), i.to_string());
    }
    let keys = |out: &str, shuffle| {
        pack(&Packing { shuffle, ..place.packing(out) });
        place.samples(out).into_iter().map(|sample| sample.0).collect::<Vec<_>>()
    };
    let (plain, zero, one) = (keys("plain", None), keys("0", Some(0)), keys("1", Some(1)));
    assert!(plain.is_sorted());
    assert_ne!(zero, plain);
    assert_ne!(zero, one);
    assert_eq!(zero, keys("again", Some(0)));
    // For ever: shards that were packed partly yesterday are gone on with by another release.
    assert_eq!(zero[..6], ["42", "06", "08", "27", "37", "10"]);
    let sorted = |mut keys: Vec<String>| {
        keys.sort();
        keys
    };
    assert_eq!(sorted(zero.clone()), plain);
    // One sample less leaves the others in their order.
    fs::remove_file(place.path("in/17.txt")).unwrap();
    let without: Vec<_> = zero.into_iter().filter(|key| key != "17").collect();
    assert_eq!(keys("less", Some(0)), without);
}

#[test]
fn csv_header_names_keys_files_and_values() {
    let place = Place::new();
    for name in ["a.png", "b.png", "elsewhere/c.bin"] {
        place.put(name, name);
    }
    let absolute = place.path("in/b.png").to_str().unwrap().to_owned();
    let list = format!(
        "\u{feff}cls=,key,jpg,caption.txt=\r\n\
         7,x/1,a.png,\"two\nlines, and a \"\"quote\"\"\"\r\n\
         ,2,{absolute},\r\n\
         0,10,../in/elsewhere/c.bin,é\r\n"
    );
    place.put("list.csv", &list);
    pack(&place.list("o", "list.csv"));
    let expected = [
        one(
            "x/1",
            &[("cls", "7"), ("jpg", "a.png"), ("caption.txt", "two\nlines, and a \"quote\"")],
        ),
        one("2", &[("jpg", "b.png")]),
        one("10", &[("cls", "0"), ("jpg", "elsewhere/c.bin"), ("caption.txt", "é")]),
    ];
    assert_eq!(place.samples("o"), expected);

    place.put("numbered.CSV", "bin\nc.bin\nc.bin\n");
    let elsewhere = Some(place.path("in/elsewhere"));
    let input = Input::List { path: place.path("in/numbered.CSV"), root: elsewhere };
    pack(&Packing { input, ..place.packing("n") });
    let numbered = |key| one(key, &[("bin", "elsewhere/c.bin")]);
    assert_eq!(place.samples("n"), [numbered("000000000"), numbered("000000001")]);
}

#[test]
fn invalid_lists_are_rejected_with_their_row() {
    let place = Place::new();
    place.put("a.png", "a");
    fs::create_dir(place.path("in/folder")).unwrap();
    let long = format!("key,txt=\n{},v\n", "k".repeat(70_000));
    for (text, kind, word, row) in [
        ("", ErrorKind::Invalid, "no column of fields", None),
        ("key\n1\n", ErrorKind::Invalid, "no column of fields", None),
        ("key,jpg\n", ErrorKind::NotFound, "no samples", None),
        ("key,key,jpg\n1,2,a.png\n", ErrorKind::Invalid, "two columns of keys", None),
        (",jpg\n0,a.png\n", ErrorKind::Invalid, "index=False", None),
        ("key, jpg\n1,a.png\n", ErrorKind::Invalid, "blanks", None),
        ("key,jpg\n1,a.png\n2,b.png\n", ErrorKind::NotFound, "--root", Some("2")),
        ("key,jpg\n1,folder\n", ErrorKind::Invalid, "regular file", Some("1")),
        ("key,jpg\n1,a.png\n,a.png\n", ErrorKind::Invalid, "no key", Some("2")),
        ("key,jpg\n1,\n", ErrorKind::Invalid, "no field", Some("1")),
        ("key,jpg,jpg=\n1,a.png,x\n", ErrorKind::Invalid, "same field twice", Some("1")),
        ("key,jpg,JPG=\n1,a.png,x\n", ErrorKind::Invalid, "same field twice", Some("1")),
        ("key,__key__=\n1,x\n", ErrorKind::Invalid, "reserved name", Some("1")),
        ("key,a/b=\n1,x\n", ErrorKind::Invalid, "another key or field", Some("1")),
        ("key,=\n1,x\n", ErrorKind::Invalid, "", None),
        ("key,txt=\na.b,x\n", ErrorKind::Invalid, "another key or field", Some("1")),
        ("key,txt=\nd/,x\n", ErrorKind::Invalid, "", None),
        ("key,txt=\n__m__/a,x\n", ErrorKind::Invalid, "another key or field", Some("1")),
        ("key,txt=\na\0b,x\n", ErrorKind::Invalid, "another key or field", Some("1")),
        ("key,txt=\n../../etc/a,x\n", ErrorKind::Invalid, "escapes", Some("1")),
        ("key,txt=\n/abs/a,x\n", ErrorKind::Invalid, "escapes", Some("1")),
        ("key,txt=\n1,x\n2,x\n1,x\n", ErrorKind::Invalid, "same key", Some("1")),
        ("key,txt=\n1,x\n2\n", ErrorKind::Invalid, "1 cells", None),
        (&long, ErrorKind::Invalid, "", None),
    ] {
        place.put("list.csv", text);
        let planned = place.list("o", "list.csv").plan();
        if word.is_empty() {
            // Odd, but it can be meant.
            planned.unwrap();
            continue;
        }
        let error = planned.unwrap_err();
        assert_eq!(error.kind(), kind, "{text:?}: {error}");
        assert!(error.to_string().contains(word), "{text:?}: {error}");
        assert_eq!(error.place("row"), row, "{text:?}: {error}");
    }
    place.put("list.csv", b"key,txt=\n1,\xff\n");
    let error = refusal(&place.list("o", "list.csv"));
    assert!(error.to_string().contains("not UTF-8"), "{error}");
    assert!(error.place("list").unwrap().ends_with("list.csv"));
    assert_eq!(refusal(&place.list("o", "none.csv")).kind(), ErrorKind::NotFound);
}

/// A list as data frames are written: keys, a path that may be missing, and two columns of numbers,
/// the first of which is called `class`.
fn parquet(path: &Path, keys: Option<LogicalType>, class: &str, numbers: Option<LogicalType>) {
    let column = |name: &str, kind, logical, repetition| {
        let column = Type::primitive_type_builder(name, kind).with_logical_type(logical);
        Arc::new(column.with_repetition(repetition).build().unwrap())
    };
    let text = Some(LogicalType::String);
    let columns = vec![
        column("key", PhysicalType::BYTE_ARRAY, keys, Repetition::REQUIRED),
        column("png", PhysicalType::BYTE_ARRAY, text, Repetition::OPTIONAL),
        column(class, PhysicalType::INT64, numbers, Repetition::REQUIRED),
        column("w=", PhysicalType::DOUBLE, None, Repetition::REQUIRED),
    ];
    let schema = Type::group_type_builder("list").with_fields(columns).build().unwrap();
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let file = fs::File::create(path).unwrap();
    let mut writer =
        SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties)).unwrap();
    for rows in [["a", "b"], ["c", "d"]] {
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let keys = rows.map(ByteArray::from);
        column.typed::<ByteArrayType>().write_batch(&keys, None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let path = [ByteArray::from("a.png")];
        column.typed::<ByteArrayType>().write_batch(&path, Some(&[0, 1]), None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int64Type>().write_batch(&[7, -1], None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<DoubleType>().write_batch(&[0.5, 2.0], None, None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
}

#[test]
fn parquet_list_packs_like_the_same_csv_list() {
    let place = Place::new();
    place.put("a.png", "a");
    place.put("list.csv", "key,png,cls=,w=\na,,7,0.5\nb,a.png,-1,2\nc,,7,0.5\nd,a.png,-1,2\n");
    pack(&place.list("csv", "list.csv"));
    let shards = |out: &str| {
        let mut made = place.made(out);
        made.retain(|name, _| name.ends_with(".tar"));
        made
    };
    let path = place.path("in/list.parquet");
    for keys in [Some(LogicalType::String), None] {
        parquet(&path, keys, "cls=", None);
        pack(&place.list("parquet", "list.parquet"));
        assert_eq!(shards("csv"), shards("parquet"));
        fs::remove_dir_all(place.path("parquet")).unwrap();
    }
    let time = LogicalType::timestamp(true, TimeUnit::MILLIS);
    for (class, numbers) in [("cls", None), ("cls=", Some(time))] {
        parquet(&path, None, class, numbers);
        let error = refusal(&place.list("parquet", "list.parquet"));
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_eq!(
            (error.place("column"), error.place("row")),
            (Some(class), Some("1")),
            "{error}"
        );
    }
}

#[test]
fn damaged_parquet_list_is_rejected_or_read() {
    let place = Place::new();
    place.put("a.png", "a");
    let path = place.path("in/list.parquet");
    parquet(&path, Some(LogicalType::String), "cls=", None);
    let whole = fs::read(&path).unwrap();
    for at in 0..whole.len() {
        fs::write(&path, &whole[..at]).unwrap();
        let error = place.list("o", "list.parquet").plan().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{at}: {error}");
        let mut bytes = whole.clone();
        bytes[at] ^= [0x01, 0x80, 0xff][at % 3];
        fs::write(&path, &bytes).unwrap();
        if let Err(error) = place.list("o", "list.parquet").plan() {
            let kinds = [ErrorKind::Invalid, ErrorKind::NotFound];
            assert!(kinds.contains(&error.kind()), "{at}: {error}");
        }
    }
}

/// Writes the tars that Python's `tarfile` writes, in its three formats, and lists what it reads.
const TARS: &str = r"
import sys, io, tarfile, pathlib
folder = pathlib.Path(sys.argv[1])
for format, name in (tarfile.USTAR_FORMAT, 'u'), (tarfile.GNU_FORMAT, 'g'), (tarfile.PAX_FORMAT, 'p'):
    with tarfile.open(folder / f'{name}.tar', 'w', format=format) as tar:
        for i in range(7):
            deep = '' if name == 'u' else 'd' * 90 + '/é' * 40 + '/'
            for field in 'jpg', 'seg.png', 'CLS', '':
                info = tarfile.TarInfo(f'./{name}/{deep}{i}.{field}')
                data = f'{name}{i}{field}'.encode() * (i * 97)
                info.size, info.mtime, info.uname = len(data), i, 'someone'
                tar.addfile(info, io.BytesIO(data))
        tar.addfile(tarfile.TarInfo('README'))
";

const LISTED: &str = r"
import sys, tarfile, hashlib
for name in sys.argv[1:]:
    with tarfile.open(name) as tar:
        for member in tar:
            if '.' in member.name.rsplit('/')[-1]:
                data = tar.extractfile(member).read()
                print(member.name.lower(), len(data), hashlib.sha256(data).hexdigest())
";

fn python(script: &str, arguments: &[&Path]) -> String {
    let output = Command::new("python3")
        .args(["-c", script])
        .args(arguments)
        .stderr(Stdio::inherit())
        .output()
        .expect("python3 is needed for this test");
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn tars_are_repacked_without_loss() {
    let place = Place::new();
    python(TARS, &[&place.path("in")]);
    let paths = ["in/p.tar", "in/u.tar", "in/g.tar"].map(|name| place.path(name));
    let paths: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
    let limits = Limits { samples: 4, bytes: u64::MAX };
    pack(&Packing { limits, ..place.tars("o", &paths, false) });
    let before: Vec<Sample> = paths.iter().flat_map(|path| samples(path)).collect();
    assert_eq!(before.len(), 21);
    assert_eq!(before[1].0, format!("./p/{}{}/1", "d".repeat(90), "/é".repeat(40)));
    assert_eq!(place.samples("o"), before);
    let made: Vec<PathBuf> = place
        .made("o")
        .keys()
        .filter(|n| n.ends_with(".tar"))
        .map(|n| place.path("o").join(n))
        .collect();
    assert_eq!(made.len(), 6);
    let made: Vec<&Path> = made.iter().map(PathBuf::as_path).collect();
    assert_eq!(python(LISTED, &made), python(LISTED, &paths));

    // Repacked shards repacked are the same.
    pack(&Packing { limits, ..place.tars("again", &made, false) });
    for (name, bytes) in place.made("o").iter().filter(|(name, _)| name.ends_with(".tar")) {
        assert!(place.made("again")[name] == *bytes, "{name}");
    }
}

#[test]
fn repeated_keys_are_rejected_or_prefixed() {
    let place = Place::new();
    for name in ["a.tar", "b.tar"] {
        let mut tar = tar::Builder::new(fs::File::create(place.path("in").join(name)).unwrap());
        for key in ["1", "2"] {
            let mut header = tar::Header::new_gnu();
            header.set_size(1);
            tar.append_data(&mut header, format!("{key}.txt"), &name.as_bytes()[..1]).unwrap();
        }
        tar.finish().unwrap();
    }
    let (a, b) = (place.path("in/a.tar"), place.path("in/b.tar"));
    let error = refusal(&place.tars("o", &[&a, &b], false));
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(error.place("key"), Some("1"));
    assert!(error.place("first").unwrap().ends_with("in/a.tar at 512"), "{error}");
    assert!(error.place("second").unwrap().ends_with("in/b.tar at 512"), "{error}");
    assert!(error.to_string().contains("--prefix-keys"), "{error}");
    pack(&place.tars("o", &[&a, &b], true));
    let txt = |key, text| one(key, &[("txt", text)]);
    let expected = [txt("a/1", "a"), txt("a/2", "a"), txt("b/1", "b"), txt("b/2", "b")];
    assert_eq!(place.samples("o"), expected);
    let error = refusal(&place.tars("p", &[&a, &a], true));
    assert!(error.to_string().contains("same key") && error.advice().is_none(), "{error}");

    // A glob that also matches what was made finds other samples at every run.
    let made = place.path("o/o-001.tar");
    let error = refusal(&place.tars("o", &[&a, &made], true));
    assert!(error.to_string().contains("name of an output shard"), "{error}");
}

#[test]
fn hostile_tars_are_rejected_or_packed_whole() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hostile");
    let (mut refused, mut packed) = (0, 0);
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "tar") {
            continue;
        }
        let name = path.file_stem().unwrap().to_str().unwrap();
        let place = Place::new();
        let packing = place.tars("o", &[&path], false);
        let kind = match name {
            "zero-length" | "others" | "links" | "pax-size" | "blank-numbers"
            | "one-zero-block" => {
                pack(&packing);
                assert_eq!(place.samples("o"), samples(&path), "{name}");
                packed += 1;
                continue;
            }
            "no-members" => ErrorKind::NotFound,
            "gzip" | "dot-dot" => ErrorKind::Invalid,
            "duplicate-field" | "reserved-field" | "not-utf8" => ErrorKind::BadSample,
            _ => ErrorKind::Corrupt,
        };
        let error = refusal(&packing);
        assert_eq!(error.kind(), kind, "{name}: {error}");
        if kind != ErrorKind::NotFound {
            assert_eq!(error.place("url"), path.to_str(), "{name}: {error}");
            assert!(error.place("offset").is_some() || name == "gzip", "{name}: {error}");
        }
        assert!(!place.path("o").exists(), "{name}");
        refused += 1;
    }
    assert_eq!((packed, refused), (6, 26));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn samples_of_any_size_are_packed_unchanged(
        sizes in prop::collection::vec(prop_oneof![0usize..3000, Just(512), Just(0)], 1..40),
        samples in 1u64..20,
        room in 6000u64..30_000,
        seed in prop::option::of(any::<u64>()),
    ) {
        let place = Place::new();
        let expected: BTreeMap<String, Vec<u8>> = sizes
            .iter()
            .enumerate()
            .map(|(i, &len)| (format!("{i:03}"), vec![i as u8; len]))
            .collect();
        for (key, bytes) in &expected {
            place.put(&format!("{key}.bin"), bytes);
        }
        let packing = Packing {
            limits: Limits { samples, bytes: room },
            shuffle: seed,
            threads: NonZero::new(3).unwrap(),
            ..place.packing("o")
        };
        pack(&packing);
        let mut seen = BTreeMap::new();
        for (key, fields) in place.samples("o") {
            prop_assert_eq!(fields.len(), 1);
            prop_assert!(seen.insert(key, fields[0].1.clone()).is_none());
        }
        prop_assert_eq!(seen, expected);
        for (name, bytes) in place.made("o") {
            prop_assert!(!name.ends_with(".tar") || bytes.len() as u64 <= room);
        }
    }
}

#[test]
fn lists_are_read_with_any_separator() {
    let place = Place::new();
    place.tree();
    let comma = "key,jpg,cls=\na,0.jpg,7\nb,1.jpg,\"1;2\"\n";
    place.put("comma.csv", comma);
    place.put("semicolon.csv", "key;jpg;cls=\na;0.jpg;7\nb;1.jpg;\"1;2\"\n");
    place.put("tab.csv", comma.replace(',', "\t"));
    place.put("tab.tsv", comma.replace(',', "\t"));
    let objects = [
        r#"{"key": "a", "jpg": "0.jpg", "cls=": 7}"#,
        "",
        r#"{"cls=": "1;2", "jpg": "1.jpg", "key": "b", "txt=": null}"#,
    ];
    place.put("objects.jsonl", objects.join("\n"));
    let lists = ["comma.csv", "semicolon.csv", "tab.csv", "tab.tsv", "objects.jsonl"];
    for list in lists {
        pack(&place.list(list, list));
        let samples = place.samples(list);
        let keys: Vec<_> = samples.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["a", "b"], "{list}");
        for ((_, fields), (jpg, cls)) in samples.iter().zip([(0, "7"), (1, "1;2")]) {
            let fields: BTreeMap<_, _> = fields.iter().cloned().collect();
            assert_eq!(fields["jpg"], vec![jpg; 1000], "{list}");
            assert_eq!(fields["cls"], cls.as_bytes(), "{list}");
            assert_eq!(fields.len(), 2, "{list}");
        }
    }
}

#[test]
fn broken_json_lists_are_rejected_with_their_line() {
    let place = Place::new();
    place.put("broken.jsonl", "{\"key\": \"a\", \"cls=\": 1}\n[1, 2]\n");
    let error = refusal(&place.list("o", "broken.jsonl"));
    assert_eq!((error.kind(), error.place("line")), (ErrorKind::Invalid, Some("2")));
    place.put("number.jsonl", "{\"key\": 1, \"cls=\": 1}\n");
    let error = refusal(&place.list("o", "number.jsonl"));
    assert_eq!((error.kind(), error.place("column")), (ErrorKind::Invalid, Some("key")));
}

#[test]
fn notes_of_operating_systems_are_left_out() {
    let place = Place::new();
    place.tree();
    pack(&place.packing("plain"));
    for note in
        [".DS_Store", "sub/.DS_Store", "sub/._x.jpg", "._0.jpg", "Thumbs.db", "sub/desktop.ini"]
    {
        place.put(note, "note");
    }
    pack(&place.packing("noted"));
    assert_eq!(place.samples("noted"), place.samples("plain"));
    let hidden = place.put("sub/.hidden.jpg", "x");
    let error = refusal(&place.packing("hidden"));
    assert_eq!((error.kind(), error.place("path")), (ErrorKind::Invalid, hidden.to_str()));
}

#[test]
fn members_that_lie_apart_are_gathered_on_request() {
    let place = Place::new();
    let mut builder = tar::Builder::new(Vec::new());
    for (name, data) in [("b.jpg", "B"), ("a.jpg", "A"), ("b.cls", "2"), ("a.cls", "1")] {
        let mut header = tar::Header::new_gnu();
        header.set_size(data.len() as u64);
        builder.append_data(&mut header, name, data.as_bytes()).unwrap();
    }
    let apart = place.put("apart.tar", builder.into_inner().unwrap());
    for prefix_keys in [false, true] {
        let error = refusal(&place.tars("o", &[&apart], prefix_keys));
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("--sort"), "{error}");
    }
    let input = Input::Tars { paths: vec![apart], prefix_keys: false, sort: true };
    pack(&Packing { input, ..place.packing("o") });
    let sample = |key: &str, jpg: &str, cls: &str| {
        let field = |name: &str, data: &str| (name.to_owned(), data.as_bytes().to_vec());
        (key.to_owned(), vec![field("jpg", jpg), field("cls", cls)])
    };
    assert_eq!(place.samples("o"), [sample("a", "A", "1"), sample("b", "B", "2")]);
}

#[test]
fn small_compressed_tar_is_rejected_naming_its_format() {
    let place = Place::new();
    let small = place.put("small.tar.gz", b"\x1f\x8b\x08\0\0\0\0\0\0\x03");
    let error = refusal(&place.tars("o", &[&small], false));
    assert_eq!((error.kind(), error.place("format")), (ErrorKind::Invalid, Some("gzip")));
}

/// Returns a JPEG of the decoder's fixtures.
fn photo(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../loader/decode/tests/data");
    fs::read(folder.join(name)).unwrap()
}

#[test]
fn photos_get_an_index_of_the_planned_length() {
    let place = Place::new();
    for (number, ending) in ["jpg", "JPEG", "seg.jpg"].into_iter().enumerate() {
        place.put(&format!("{number}.{ending}"), photo("wide-420.jpg"));
        place.put(&format!("{number}.cls"), number.to_string());
    }
    for (number, name) in ["wide-progressive.jpg", "wide-restarts.jpg"].into_iter().enumerate() {
        place.put(&format!("other-{number}.jpg"), photo(name));
    }
    // A header longer than what is read at first, and files that are no photos.
    let long = [&photo("tall-444.jpg")[..2], &[0xff, 0xe1, 0xff, 0xff], &vec![0; 65_533]].concat();
    place.put("p-long.jpg", [&long, &photo("tall-444.jpg")[2..]].concat());
    place.put("q.jpg", b"no photo");
    let damaged = photo("wide-420.jpg");
    place.put("damaged.jpg", &damaged[..damaged.len() - 500]);
    place.put("r.bin", photo("wide-420.jpg"));

    let plain = place.packing("plain");
    let packing = Packing { jpeg_index: true, ..place.packing("o") };
    pack(&plain);
    let plan = packing.plan().unwrap();
    let (count, bytes) = plan.indexes();
    assert_eq!(count, 5, "one of them for a damaged photo, which is empty");
    assert_eq!(plan.pack(&|_| {}).unwrap(), 0);
    let whole = place.made("o");
    fs::remove_file(place.path("o/o-001.tar")).unwrap();
    assert_eq!(packing.plan().unwrap().pack(&|_| {}).unwrap(), plan.shards().count() - 1);
    assert_eq!(place.made("o"), whole);
    for shard in plan.shards() {
        assert_eq!(fs::metadata(&shard.path).unwrap().len(), shard.bytes);
    }

    let (mut indexed, mut added) = (0, 0);
    let (with, without) = (place.samples("o"), place.samples("plain"));
    assert_eq!(with.len(), without.len());
    for ((key, fields), (plain_key, plain_fields)) in with.iter().zip(&without) {
        assert_eq!(key, plain_key);
        for ((name, bytes), (plain_name, plain)) in fields.iter().zip(plain_fields) {
            assert_eq!(name, plain_name);
            let mut expected = Vec::new();
            match name.as_str() {
                "bin" => expected.extend_from_slice(plain),
                _ => added += forebay_jpeg::add_index(plain, &mut expected) as u64,
            }
            assert!(*bytes == expected, "{key}.{name}");
            indexed += u64::from(forebay_jpeg::Indexed::open(bytes).is_some());
        }
    }
    assert_eq!((indexed, added), (count - 1, bytes));
}

#[test]
fn repacking_adds_an_index_once_and_keeps_it() {
    let place = Place::new();
    for number in 0..5 {
        place.put(&format!("{number}.jpg"), photo("wide-420.jpg"));
    }
    pack(&place.packing("plain"));
    pack(&Packing { jpeg_index: true, ..place.packing("files") });
    let shards = |out: &str| [0, 1].map(|n| place.path(&format!("{out}/o-{n:03}.tar")));
    let again = |out: &str, from: &str, jpeg_index: bool| {
        let [first, second] = shards(from);
        let packing = Packing { jpeg_index, ..place.tars(out, &[&first, &second], false) };
        let planned = packing.plan().unwrap().indexes().0;
        pack(&packing);
        planned
    };
    assert_eq!(again("tars", "plain", true), 5);
    assert_eq!(again("twice", "tars", true), 0, "they have one");
    assert_eq!(again("kept", "tars", false), 0);
    for out in ["tars", "twice", "kept"] {
        assert!(place.samples(out) == place.samples("files"), "{out}");
    }
}

#[test]
fn index_is_part_of_the_plan() {
    let place = Place::new();
    place.put("a.jpg", photo("wide-420.jpg"));
    let packing = place.packing("o");
    pack(&packing);
    let with = Packing { jpeg_index: true, ..packing };
    assert_eq!(refusal(&with).kind(), ErrorKind::Invalid, "shards without it lie there");
}
