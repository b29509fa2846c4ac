//! Data sets of other libraries become shards with the same values.
//!
//! `foreign/make.py` wrote the inputs with the libraries themselves.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};

use forebay_error::{Error, ErrorKind};
use forebay_shard::pack::{Columns, Input, Limits, Packing, is_mds, is_table};
use forebay_shard::{Indexer, Plain};
use serde_json::{Value, json};
use tempfile::TempDir;

type Fields = BTreeMap<String, Vec<u8>>;

fn foreign(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign").join(name)
}

fn tables() -> Vec<PathBuf> {
    [0, 1].map(|part| foreign(&format!("train-0000{part}-of-00002.parquet"))).into()
}

/// The samples that a library wrote, by the names that fields should have.
fn wanted(name: &str) -> Vec<Fields> {
    let found: Value = serde_json::from_slice(&fs::read(foreign("samples.json")).unwrap()).unwrap();
    let field = |(name, hex): (&String, &Value)| {
        let hex = hex.as_str().unwrap();
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (name.clone(), (0..hex.len()).step_by(2).map(byte).collect())
    };
    let samples = found[name].as_array().unwrap().iter();
    samples.map(|sample| sample.as_object().unwrap().iter().map(field).collect()).collect()
}

fn packing(input: Input, folder: &Path) -> Packing {
    Packing {
        input,
        pattern: folder.join("out/o-{:03d}.tar").to_str().unwrap().to_owned(),
        limits: Limits { samples: 2, bytes: u64::MAX },
        shuffle: None,
        manifest: None,
        jpeg_index: false,
        threads: NonZero::new(3).unwrap(),
    }
}

fn pack(input: Input, folder: &Path) -> usize {
    packing(input, folder).plan().unwrap().pack(&|_| {}).unwrap()
}

fn refusal(input: Input) -> Error {
    let place = TempDir::new().unwrap();
    packing(input, place.path()).plan().unwrap_err()
}

/// The packed samples, in order.
fn packed(folder: &Path) -> Vec<(String, Fields)> {
    let mut tars: Vec<PathBuf> = fs::read_dir(folder.join("out"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "tar"))
        .collect();
    tars.sort();
    let mut found = Vec::new();
    for path in tars {
        let file = fs::File::open(&path).unwrap();
        let (len, bytes) = (file.metadata().unwrap().len(), fs::read(&path).unwrap());
        let index = Indexer::new(Plain::new(file), len).finish().unwrap();
        for sample in &index.samples {
            assert_eq!(sample.bad, None);
            let fields = index.members_of(sample).iter().map(|member| {
                let data = bytes[member.offset as usize..member.end() as usize].to_vec();
                (index.fields[member.field as usize].clone(), data)
            });
            found.push((sample.key.clone(), fields.collect()));
        }
    }
    found
}

fn assert_numbered(found: Vec<(String, Fields)>, wanted: Vec<Fields>) {
    assert_eq!(found.len(), wanted.len());
    for (number, ((key, fields), wanted)) in found.into_iter().zip(wanted).enumerate() {
        assert_eq!(key, format!("{number:09}"));
        assert_eq!(fields.keys().collect::<Vec<_>>(), wanted.keys().collect::<Vec<_>>());
        for (name, data) in fields {
            assert_eq!(data, wanted[&name], "{name} of {number}");
        }
    }
}

fn mds(path: &Path) -> Input {
    Input::Mds { path: path.to_owned(), columns: Columns::default() }
}

fn of_tables(columns: Columns) -> Input {
    Input::Tables { paths: tables(), columns }
}

#[test]
fn mds_folder_keeps_every_value() {
    let place = TempDir::new().unwrap();
    assert!(is_mds(&foreign("mds")));
    pack(mds(&foreign("mds")), place.path());
    assert_numbered(packed(place.path()), wanted("mds"));
}

#[test]
fn parquet_rows_keep_values_and_names_of_classes() {
    let place = TempDir::new().unwrap();
    assert!(tables().iter().all(|path| is_table(path).unwrap()));
    pack(of_tables(Columns::default()), place.path());
    assert_numbered(packed(place.path()), wanted("parquet"));
    let classes = fs::read(place.path().join("out/o.classes.json")).unwrap();
    let classes: Value = serde_json::from_slice(&classes).unwrap();
    assert_eq!(classes, json!({"cls": ["ant", "bee", "cat"]}));
}

/// Tables and MDS are packed with an index, and equal what is packed without and repacked with it.
#[test]
fn photos_of_tables_get_an_index() {
    for input in [of_tables(Columns::default()), mds(&foreign("mds"))] {
        let place = TempDir::new().unwrap();
        let with = Packing { jpeg_index: true, ..packing(input.clone(), place.path()) };
        let plan = with.plan().unwrap();
        assert!(plan.indexes().0 > 0, "there are photos");
        plan.pack(&|_| {}).unwrap();
        let plain = TempDir::new().unwrap();
        pack(input, plain.path());
        let (with, plain) = (packed(place.path()), packed(plain.path()));
        assert_eq!(with.len(), plain.len());
        let mut count = 0;
        for ((key, fields), (plain_key, plain_fields)) in with.iter().zip(&plain) {
            assert_eq!(key, plain_key);
            assert!(fields.keys().eq(plain_fields.keys()));
            for (name, bytes) in fields {
                let mut expected = Vec::new();
                let added = forebay_jpeg::add_index(&plain_fields[name], &mut expected);
                assert!(*bytes == expected, "{key}.{name}");
                count += u64::from(added > 0);
            }
        }
        assert_eq!(count, plan.indexes().0);
    }
}

#[test]
fn columns_are_renamed_left_out_and_taken_as_keys() {
    let fields = [("image", Some("photo")), ("box", None), ("score", Some("score"))];
    let fields = fields.map(|(column, name)| (column.to_owned(), name.map(str::to_owned)));
    let columns = Columns { fields: fields.into(), key: Some("id".to_owned()) };
    let place = TempDir::new().unwrap();
    pack(of_tables(columns), place.path());
    let found = packed(place.path());
    assert_eq!(found[5].0, "id-5");
    assert_eq!(found[5].1.keys().collect::<Vec<_>>(), ["cls", "photo", "score", "txt"]);
    // One row has no caption.
    assert_eq!(found[4].1.keys().collect::<Vec<_>>(), ["cls", "photo", "score"]);

    let place = TempDir::new().unwrap();
    let all: Value = serde_json::from_slice(&fs::read(foreign("mds/index.json")).unwrap()).unwrap();
    let left_out = |name: &Value| (name.as_str().unwrap().to_owned(), None);
    let mut fields: BTreeMap<_, _> =
        all["shards"][0]["column_names"].as_array().unwrap().iter().map(left_out).collect();
    fields.insert("jpeg".to_owned(), Some("jpg".to_owned()));
    let columns = Columns { fields, key: Some("int".to_owned()) };
    pack(Input::Mds { path: foreign("mds"), columns }, place.path());
    let found = packed(place.path());
    assert_eq!(found[3].0, "-3");
    assert_eq!(found[3].1.keys().collect::<Vec<_>>(), ["jpg"]);

    let columns = Columns { key: Some("nothing".to_owned()), ..Columns::default() };
    for error in
        [refusal(of_tables(columns.clone())), refusal(Input::Mds { path: foreign("mds"), columns })]
    {
        assert_eq!((error.kind(), error.place("column")), (ErrorKind::NotFound, Some("nothing")));
    }
}

#[test]
fn interrupted_packing_goes_on_from_any_shard() {
    for input in [of_tables(Columns::default()), mds(&foreign("mds"))] {
        let place = TempDir::new().unwrap();
        let out = place.path().join("out");
        assert_eq!(pack(input.clone(), place.path()), 0);
        let bytes = |number: u32| fs::read(out.join(format!("o-00{number}.tar"))).unwrap();
        let whole = [bytes(0), bytes(1), bytes(2)];
        fs::remove_file(out.join("o-001.tar")).unwrap();
        fs::remove_file(out.join("o-002.tar")).unwrap();
        let classes = out.join("o.classes.json");
        let has_classes = fs::remove_file(&classes).is_ok();
        assert_eq!(pack(input, place.path()), 1);
        assert_eq!([bytes(0), bytes(1), bytes(2)], whole);
        assert_eq!(classes.exists(), has_classes);
    }
}

#[test]
fn input_that_changed_after_the_plan_is_reported() {
    let place = TempDir::new().unwrap();
    let copies: Vec<PathBuf> = tables()
        .iter()
        .enumerate()
        .map(|(number, path)| {
            let copy = place.path().join(format!("{number}.parquet"));
            fs::copy(path, &copy).unwrap();
            copy
        })
        .collect();
    let input = Input::Tables { paths: copies.clone(), columns: Columns::default() };
    let plan = packing(input, place.path()).plan().unwrap();
    fs::copy(&copies[0], &copies[1]).unwrap();
    assert_eq!(plan.pack(&|_| {}).unwrap_err().kind(), ErrorKind::Corrupt);
}

/// A copy of the MDS folder with one change of its index.
fn changed_index(place: &Path, pointer: &str, value: Value) -> Input {
    let folder = place.join("mds");
    fs::create_dir_all(&folder).unwrap();
    for name in ["shard.00000.mds", "shard.00001.mds", "shard.00002.mds"] {
        drop(fs::copy(foreign("mds").join(name), folder.join(name)));
    }
    let mut index: Value =
        serde_json::from_slice(&fs::read(foreign("mds/index.json")).unwrap()).unwrap();
    *index.pointer_mut(pointer).unwrap() = value;
    fs::write(folder.join("index.json"), index.to_string()).unwrap();
    mds(&folder)
}

#[test]
fn contradicting_mds_index_is_rejected_with_its_place() {
    let zip = json!({"basename": "shard.00000.mds.zstd", "bytes": 9, "hashes": {}});
    for (pointer, value, kind) in [
        ("/shards/0/samples", json!(99), ErrorKind::Corrupt),
        ("/shards/0/raw_data/bytes", json!(3), ErrorKind::Corrupt),
        ("/shards/0/column_sizes/2", json!(40), ErrorKind::Corrupt),
        ("/shards/0/column_sizes/3", json!(4), ErrorKind::Corrupt),
        ("/shards/0/column_encodings/0", json!("list[jpeg]"), ErrorKind::Invalid),
        ("/shards/0/column_encodings/0", json!("jpeg_array"), ErrorKind::Invalid),
        ("/shards/0/column_names", json!(["a"]), ErrorKind::Invalid),
        ("/shards/0/raw_data/basename", json!("../mds/shard.00000.mds"), ErrorKind::Invalid),
        ("/shards/0/raw_data/basename", json!("/etc/hosts"), ErrorKind::Invalid),
        ("/shards/0/raw_data/basename", json!("missing.mds"), ErrorKind::NotFound),
        ("/shards/0/format", json!("xsv"), ErrorKind::Invalid),
        ("/shards/0/version", json!(3), ErrorKind::Invalid),
        ("/shards", json!(7), ErrorKind::Invalid),
    ] {
        let place = TempDir::new().unwrap();
        let error = refusal(changed_index(place.path(), pointer, value));
        assert_eq!(error.kind(), kind, "{pointer}: {error}");
        assert!(error.place("path").is_some(), "{error}");
    }
    // Compressed shards are not read, unless they lie there unpacked, too.
    let place = TempDir::new().unwrap();
    let input = changed_index(place.path(), "/shards/0/zip_data", zip);
    assert!(packing(input.clone(), place.path()).plan().is_ok());
    fs::remove_file(place.path().join("mds/shard.00000.mds")).unwrap();
    let error = refusal(input);
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.advice().unwrap().contains("zstd -d"), "{error}");
}

#[test]
fn damaged_mds_shard_is_rejected_or_read() {
    let place = TempDir::new().unwrap();
    let input = changed_index(place.path(), "/shards/0/version", json!(2));
    let path = place.path().join("mds/shard.00000.mds");
    let whole = fs::read(&path).unwrap();
    // The head, the start of the first sample, and some of the rest.
    for at in (0..400).chain((400..whole.len()).step_by(97)) {
        let mut bytes = whole.clone();
        bytes[at] ^= [0x01, 0x80, 0xff][at % 3];
        fs::write(&path, &bytes).unwrap();
        let planned = packing(input.clone(), place.path()).plan();
        if let Err(error) = planned {
            let kinds = [ErrorKind::Invalid, ErrorKind::Corrupt];
            assert!(kinds.contains(&error.kind()), "{at}: {error}");
        }
    }
}

#[test]
fn damaged_table_is_rejected_or_read() {
    let place = TempDir::new().unwrap();
    let path = place.path().join("a.parquet");
    let whole = fs::read(&tables()[0]).unwrap();
    let input = Input::Tables { paths: vec![path.clone()], columns: Columns::default() };
    for at in (0..whole.len()).step_by(13) {
        let mut bytes = whole.clone();
        bytes[at] ^= [0x01, 0x80, 0xff][at % 3];
        fs::write(&path, &bytes).unwrap();
        if let Err(error) = packing(input.clone(), place.path()).plan() {
            let kinds = [ErrorKind::Invalid, ErrorKind::Corrupt];
            assert!(kinds.contains(&error.kind()), "{at}: {error}");
        }
        if at % 91 == 0 {
            fs::write(&path, &whole[..at]).unwrap();
            let error = packing(input.clone(), place.path()).plan().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{at}: {error}");
        }
    }
}

#[test]
fn rows_of_tables_are_not_shuffled() {
    let place = TempDir::new().unwrap();
    let given = packing(of_tables(Columns::default()), place.path());
    let error = Packing { shuffle: Some(1), ..given }.plan().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[test]
fn folders_of_other_formats_are_named() {
    for (files, word) in [
        (vec!["train-00000-of-00001.parquet", "sub/test.parquet"], "Parquet"),
        (vec!["dataset_info.json", "state.json", "data-00000-of-00001.arrow"], "to_parquet"),
        (vec!["dataset_dict.json", "train/data-00000-of-00001.arrow"], "to_parquet"),
    ] {
        let place = TempDir::new().unwrap();
        let folder = place.path().join("in");
        for file in files {
            fs::create_dir_all(folder.join(file).parent().unwrap()).unwrap();
            fs::write(folder.join(file), "x").unwrap();
        }
        let error = refusal(Input::Folder(folder));
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(word), "{error}");
    }
    let place = TempDir::new().unwrap();
    fs::write(place.path().join("index.json"), "{\"chunks\": [], \"config\": {}}").unwrap();
    let error = refusal(mds(place.path()));
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("LitData"), "{error}");
}

#[test]
fn class_folders_become_numbers_in_order_of_names() {
    let place = TempDir::new().unwrap();
    let folder = place.path().join("in");
    // `a-b/` sorts before `a/`, and `a` before `a-b`.
    for file in ["a-b/1.jpg", "a/1.jpg", "a/2.jpg", "Z/x/3.JPG"] {
        fs::create_dir_all(folder.join(file).parent().unwrap()).unwrap();
        fs::write(folder.join(file), file).unwrap();
    }
    pack(Input::ClassFolder(folder.clone()), place.path());
    let labels: Vec<_> = packed(place.path())
        .into_iter()
        .map(|(key, fields)| {
            assert_eq!(
                fields["jpg"].to_ascii_lowercase(),
                format!("{key}.jpg").to_lowercase().as_bytes()
            );
            (key, String::from_utf8(fields["cls"].clone()).unwrap())
        })
        .collect();
    let wanted = [("Z/x/3", "0"), ("a-b/1", "2"), ("a/1", "1"), ("a/2", "1")];
    assert_eq!(labels, wanted.map(|(key, class)| (key.to_owned(), class.to_owned())));
    let classes = fs::read(place.path().join("out/o.classes.json")).unwrap();
    assert_eq!(
        serde_json::from_slice::<Value>(&classes).unwrap(),
        json!({"cls": ["Z", "a", "a-b"]})
    );

    fs::write(folder.join("a/1.cls"), "7").unwrap();
    let error = refusal(Input::ClassFolder(folder.clone()));
    assert_eq!((error.kind(), error.place("field")), (ErrorKind::Invalid, Some("cls")));
    fs::remove_file(folder.join("a/1.cls")).unwrap();
    fs::write(folder.join("alone.jpg"), "x").unwrap();
    assert_eq!(refusal(Input::ClassFolder(folder)).kind(), ErrorKind::Invalid);
}
