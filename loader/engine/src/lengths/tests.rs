use forebay_shard::members::{Value, Writer, path_of};
use forebay_shard::{Index, Manifest, ManifestShard, Member, Sample};
use proptest::prelude::*;

use super::*;
use crate::filter::Filter;

const URL: &str = "s3://bucket/0.tar";

/// Columns: tokens, a number that is no integer, a text.
fn index(rows: &[(Value, u64)]) -> (MemberIndex, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = path_of(&folder.path().join("m.json"));
    let mut writer = Writer::create(&path, &["tokens".to_owned()]).unwrap();
    writer.begin(1 << 40, "").unwrap();
    let mut offset = 512;
    for (at, (value, len)) in rows.iter().enumerate() {
        let member = Member { field: 0, offset, len: *len, crc32c: 0 };
        let end = member.end();
        let sample = Sample { key: format!("k{at}"), offset, end, members: 0..1, bad: None };
        let fields = vec!["npy".to_owned()];
        let index = Index { fields, members: vec![member], samples: Vec::new() };
        writer.add(&index, &sample, vec![value.clone()]).unwrap();
        offset = end.next_multiple_of(512) + 512;
    }
    let shard = ManifestShard { url: URL.to_owned(), samples: rows.len() as u64, bytes: None };
    writer.finish(&Manifest::new(vec![shard]).unwrap()).unwrap();
    (MemberIndex::open(&path).unwrap(), folder)
}

fn column(name: &str) -> LengthsOf {
    LengthsOf {
        field: "tokens".to_owned(),
        source: LengthSource::Column(name.to_owned()),
        is_optional: false,
        budget: 100,
        max_len: None,
        is_alone: false,
    }
}

fn sizes(fields: &[&str]) -> LengthsOf {
    let fields = fields.iter().map(|field| (*field).to_owned()).collect();
    let source = LengthSource::Member { fields, header: 128, item: 4 };
    LengthsOf { source, ..column("") }
}

fn shard(choice: Option<&Arc<Choice>>) -> ShardSamples<'_> {
    ShardSamples { url: URL, number: 0, choice }
}

#[test]
fn lengths_come_from_a_column_or_from_sizes() {
    let (index, _folder) =
        index(&[(Value::Int(3), 132), (Value::Float(2.0), 128), (Value::Int(100), 528)]);
    let of = column("tokens");
    assert_eq!(of.read(&index, &[shard(None)]).unwrap(), [3, 2, 100]);
    // The list names the shard twice.
    let twice = sizes(&["bin", "npy"]).read(&index, &[shard(None), shard(None)]).unwrap();
    assert_eq!(twice, [1, 0, 100, 1, 0, 100]);
    let choice = Filter::new(&["tokens != 2".to_owned()], &index).unwrap();
    let choice = choice.choose(&index, &[0]).unwrap();
    assert_eq!(of.read(&index, &[shard(Some(&choice[0]))]).unwrap(), [3, 100]);
}

#[test]
fn sample_without_a_length_is_named() {
    for (value, len) in [
        (Value::Absent, 128),
        (Value::Int(-1), 130),
        (Value::Float(0.5), 127),
        (Value::Text("9".to_owned()), 129),
    ] {
        // Numbers and texts make no column, so a text is alone.
        let (index, _folder) = index(&[(value.clone(), len)]);
        let of = column("tokens");
        let error = of.read(&index, &[shard(None)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{value:?}");
        for (place, expected) in [("field", "tokens"), ("column", "tokens"), ("key", "k0")] {
            assert_eq!(error.place(place), Some(expected), "{value:?}");
        }
        let optional = LengthsOf { is_optional: true, ..of };
        assert_eq!(optional.read(&index, &[shard(None)]).unwrap(), [0], "{value:?}");
        if len != 128 {
            let error = sizes(&["npy"]).read(&index, &[shard(None)]).unwrap_err();
            assert_eq!(error.place("key"), Some("k0"));
        }
    }
}

#[test]
fn sample_beyond_the_budget_follows_the_policy() {
    let (index, _folder) = index(&[(Value::Int(7), 0), (Value::Int(101), 0)]);
    let read = |of: LengthsOf| of.read(&index, &[shard(None)]);
    assert_eq!(read(LengthsOf { max_len: Some(5), ..column("tokens") }).unwrap(), [5, 5]);
    assert_eq!(read(LengthsOf { is_alone: true, ..column("tokens") }).unwrap(), [7, 101]);
    let error = read(column("tokens")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    for (place, expected) in [("key", "k1"), ("tokens", "101"), ("budget", "100"), ("url", URL)] {
        assert_eq!(error.place(place), Some(expected));
    }
}

#[test]
fn unknown_name_is_an_error_with_the_nearest() {
    let (index, _folder) = index(&[(Value::Int(7), 0)]);
    let of = column("token");
    let error = of.read(&index, &[shard(None)]).unwrap_err();
    assert_eq!((error.place("meant"), error.place("columns")), (Some("tokens"), Some("tokens")));
    let error = sizes(&["npz"]).read(&index, &[shard(None)]).unwrap_err();
    assert_eq!((error.place("meant"), error.place("source")), (Some("npy"), Some("npz")));
}

proptest! {
    #[test]
    fn lengths_are_those_of_the_rows(rows in prop::collection::vec(0_i64..100, 1..3000)) {
        let values: Vec<_> = rows.iter().map(|row| (Value::Int(*row), 128 + 4 * *row as u64)).collect();
        let (index, _folder) = index(&values);
        let expected: Vec<u32> = rows.iter().map(|row| *row as u32).collect();
        let of = column("tokens");
        prop_assert_eq!(&of.read(&index, &[shard(None)]).unwrap(), &expected);
        prop_assert_eq!(&sizes(&["npy"]).read(&index, &[shard(None)]).unwrap(), &expected);
    }
}
