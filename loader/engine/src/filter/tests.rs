//! Filters against a model that looks at each sample by itself.

use std::collections::HashSet;
use std::path::Path;

use forebay_shard::members::{Value, Writer, path_of};
use forebay_shard::{Index, Manifest, ManifestShard, Member, Sample};
use forebay_wire::message::{Order, Shuffle};
use proptest::prelude::*;

use super::*;
use crate::plan::{Known, Located, Sequence, Share};

const COLUMNS: [&str; 3] = ["width", "score", "lang"];

type Row = [Value; 3];

/// Writes the index of shards with these rows.
fn index(shards: &[Vec<Row>], folder: &Path) -> MemberIndex {
    let path = path_of(&folder.join("m.json"));
    let mut writer = Writer::create(&path, &COLUMNS.map(str::to_owned)).unwrap();
    let mut listed = Vec::new();
    for (number, rows) in shards.iter().enumerate() {
        writer.begin(512 * (1 + rows.len() as u64), "").unwrap();
        for (at, row) in rows.iter().enumerate() {
            let member = Member { field: 0, offset: 512 * (1 + at as u64), len: 0, crc32c: 0 };
            let (offset, members) = (member.offset, vec![member]);
            let key = at.to_string();
            let sample = Sample { key, offset, end: offset, members: 0..1, bad: None };
            let fields = vec!["jpg".to_owned()];
            let index = Index { fields, members, samples: Vec::new() };
            writer.add(&index, &sample, row.to_vec()).unwrap();
        }
        let url = format!("{number}.tar");
        listed.push(ManifestShard { url, samples: rows.len() as u64, bytes: None });
    }
    writer.finish(&Manifest::new(listed).unwrap()).unwrap();
    MemberIndex::open(&path).unwrap()
}

fn small() -> MemberIndex {
    let row = |width: i64, score: Option<f64>, lang: &str| {
        let score = score.map_or(Value::Absent, Value::Float);
        [Value::Int(width), score, Value::Text(lang.to_owned())]
    };
    let rows = vec![
        row(100, Some(0.5), "de"),
        row(200, None, "en"),
        row(300, Some(-1.25), "fr"),
        [Value::Absent, Value::Absent, Value::Absent],
        row(400, Some(0.0), "it's"),
    ];
    let folder = tempfile::tempdir().unwrap();
    index(&[rows], folder.path())
}

fn passing(index: &MemberIndex, filter: &str) -> Result<Vec<u32>> {
    let filter = Filter::new(&[filter.to_owned()], index)?;
    Ok(filter.choose(index, &[0])?[0].passing.iter().collect())
}

#[test]
fn filters_choose_what_they_say() {
    let index = small();
    for (filter, expected) in [
        ("width >= 200", &[1, 2, 4][..]),
        ("width>=200 and lang!='fr'", &[1, 4]),
        ("width < 200 or width > 300", &[0, 4]),
        ("width < 300 and score < 1 or lang = \"en\"", &[0, 1]),
        ("width < 300 and (score < 1 or lang = 'en')", &[0, 1]),
        ("lang in ('de', 'fr')", &[0, 2]),
        ("lang not in ('de', 'fr')", &[1, 4]),
        // A comparison with an absent value does not hold; `not` turns that around.
        ("not lang in ('de', 'fr')", &[1, 3, 4]),
        ("not (width > 200)", &[0, 1, 3]),
        ("not not width > 200", &[2, 4]),
        ("score is null", &[1, 3]),
        ("score IS NOT NULL", &[0, 2, 4]),
        ("score between -1.25 and 0", &[2, 4]),
        ("width not between 200 and 300", &[0, 4]),
        ("width in (100, 200.0, 300.5)", &[0, 1]),
        ("width > 299.5", &[2, 4]),
        ("score = 0", &[4]),
        ("score in (0, 0.5)", &[0, 4]),
        ("score <> 0", &[0, 2]),
        ("lang == 'it''s'", &[4]),
        ("width > 1e99", &[]),
        ("width >= true", &[0, 1, 2, 4]),
    ] {
        assert_eq!(passing(&index, filter).unwrap(), expected, "{filter}");
    }
}

#[test]
fn wrong_filters_are_rejected_with_position() {
    let index = small();
    for (filter, position) in [
        ("", "1"),
        ("width", "6"),
        ("width >", "8"),
        ("width > 3 lang = 'de'", "11"),
        ("(width > 3", "11"),
        ("width > 3)", "10"),
        ("wide > 3 or widht > 3", "1"),
        ("width > 3 or é > 3", "14"),
        ("width > 3 and and", "15"),
        ("width > 'a'", "9"),
        ("lang = 3", "8"),
        ("lang in ('de', 3)", "16"),
        ("lang < 'de'", "8"),
        ("lang = 'de", "11"),
        ("width in 3", "10"),
        ("width between 3 or 4", "17"),
        ("width not 3", "11"),
        ("width is 3", "10"),
        ("width > 3x", "9"),
        ("width > inf", "9"),
        ("3 < width", "1"),
    ] {
        let error = passing(&index, filter).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{filter}");
        assert_eq!(error.place("position"), Some(position), "{filter}: {error}");
    }
    let error = passing(&index, "widht > 3").unwrap_err();
    assert_eq!((error.place("column"), error.place("meant")), (Some("widht"), Some("width")));
    assert_eq!(error.place("columns"), Some("width, score, lang"));
    assert_eq!(passing(&index, "zzz > 3").unwrap_err().place("meant"), None);
    for text in ["(".repeat(100_000), "not ".repeat(10_000), "(".repeat(65) + "width > 3"] {
        assert_eq!(passing(&index, &text).unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert_eq!(passing(&index, &("not ".repeat(1000) + "width > 300")).unwrap(), [4]);
}

fn rows() -> impl Strategy<Value = Row> {
    let width = prop_oneof![Just(Value::Absent), (0_i64..9).prop_map(Value::Int)];
    let score = prop_oneof![
        Just(Value::Absent),
        (0_i64..4).prop_map(Value::Int),
        (0_u8..9).prop_map(|n| Value::Float(f64::from(n) / 2.0)),
    ];
    let lang = prop_oneof![Just(Value::Absent), "[a-c]".prop_map(Value::Text)];
    (width, score, lang).prop_map(|(width, score, lang)| [width, score, lang])
}

/// The filter of the properties below, for one sample.
fn model([width, score, lang]: &Row, least: i64) -> bool {
    let number = |value: &Value| match value {
        Value::Int(number) => Some(*number as f64),
        Value::Float(number) => Some(*number),
        Value::Absent | Value::Text(_) => None,
    };
    let wide = number(width).is_some_and(|width| width >= least as f64);
    let good = number(score).is_some_and(|score| score < 2.0);
    wide && (good || *lang == Value::Text("a".into())) || *lang == Value::Absent
}

fn filter(least: i64) -> Vec<String> {
    vec![format!("width >= {least} and (score < 2 or lang = 'a') or lang is null")]
}

/// All samples of an epoch, in order: (shard, place in it).
fn play(order: &Order, choices: &Choices, lanes: u32) -> Vec<(u32, u64)> {
    let counts = choices.counts();
    let shards = u32::try_from(counts.len()).unwrap();
    let mut sequence = Sequence::new(order, shards, Some(counts.clone()), lanes, 1);
    let known = |shard: u32| Known::Exactly(counts[shard as usize]);
    let located = (0..).map_while(|at| match sequence.locate(at, &known) {
        Located::Sample { shard, ordinal } => Some((shard, ordinal)),
        _ => None,
    });
    let place = |(shard, nth): (u32, u64)| {
        (shard, choices.of(shard).unwrap().place(nth).expect("a sample that passes"))
    };
    located.map(place).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// An epoch has the samples that pass, once each, on however many ranks, and after it goes on
    /// with others from wherever.
    #[test]
    fn filtered_epoch_has_passing_samples_once(
        shards in prop::collection::vec(prop::collection::vec(rows(), 0..60), 1..8),
        least in 0_i64..9, seed: u64, lanes in 1_u32..4, stop in 0.0..1.0,
        worlds in (1_u32..5, 1_u32..5), batch_size in 1_u32..7,
    ) {
        prop_assume!(lanes as usize <= shards.len());
        let folder = tempfile::tempdir().unwrap();
        let index = index(&shards, folder.path());
        let numbers: Vec<usize> = (0..shards.len()).collect();
        let choices = Filter::new(&filter(least), &index).unwrap();
        let choices = Choices::new(choices.choose(&index, &numbers).unwrap());
        let expected: HashSet<(u32, u64)> = (0_u32..).zip(&shards).flat_map(|(shard, rows)| {
            let passing = (0_u64..).zip(rows).filter(|(_, row)| model(row, least));
            passing.map(move |(at, _)| (shard, at)).collect::<Vec<_>>()
        }).collect();
        let order = Order { shuffle: Shuffle::Window, ..Order::shuffled(2, seed, batch_size) };
        let all = play(&order, &choices, lanes);
        prop_assert_eq!(all.len(), expected.len());
        prop_assert_eq!(all.iter().copied().collect::<HashSet<_>>(), expected);
        prop_assert_eq!(choices.counts().iter().sum::<u64>(), all.len() as u64);

        // Ranks of one world up to a batch, those of another from there on.
        let total = all.len() as u64;
        let global = u64::from(batch_size * worlds.0);
        let base = ((total as f64 * stop) as u64 / global * global).min(total);
        let mut seen: Vec<u64> = Vec::new();
        for (world_size, base, until) in [(worlds.0, 0, base), (worlds.1, base, total)] {
            for rank in 0..world_size {
                let order = Order { rank, world_size, ..order.clone() };
                let share = Share::new(&order, lanes, base);
                let batches = (0..share.batches(total)).flat_map(|batch| {
                    share.positions(batch, Some(total)).collect::<Vec<_>>()
                });
                let mine = batches.filter(|(at, valid)| *valid && *at < until);
                seen.extend(mine.map(|(at, _)| at));
            }
        }
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..total).collect::<Vec<_>>());

        // As a daemon gets it.
        let wire: Vec<_> = choices.all().iter().map(|choice| choice.to_wire(false)).collect();
        let back = Choices::from_wire(&wire, Some(&choices.counts())).unwrap();
        prop_assert_eq!(&back, &choices);
        prop_assert_eq!(back.hash(), choices.hash());
    }

    #[test]
    fn hostile_choices_are_rejected(
        bytes in prop::collection::vec(any::<u8>(), 0..64), samples in 0_u64..99,
    ) {
        let chosen = forebay_wire::message::Chosen {
            samples, version: None, digest: None, passing: bytes,
        };
        if let Ok(choices) = Choices::from_wire(std::slice::from_ref(&chosen), Some(&[1])) {
            prop_assert!(choices.of(0).unwrap().place(0).unwrap() < samples);
        }
    }
}

#[test]
fn choices_of_another_job_are_rejected() {
    let chosen = Choice::all(3).unwrap().to_wire(false);
    let one = std::slice::from_ref(&chosen);
    assert!(Choices::from_wire(one, Some(&[3])).is_ok());
    for counts in [None, Some(&[2][..]), Some(&[3, 3]), Some(&[])] {
        let error = Choices::from_wire(one, counts).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    let beyond = forebay_wire::message::Chosen { samples: 2, ..chosen.clone() };
    assert!(Choices::from_wire(&[beyond], Some(&[3])).is_err());
    let mut longer = chosen;
    longer.passing.push(0);
    assert!(Choices::from_wire(&[longer], Some(&[3])).is_err());
}
