//! A publication against a model of its origin: any order of receipts, repeats and crashes.

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::samples;

/// Time in manifests.
const NOW: u64 = 1_700_000_000_000;

fn id(number: u8) -> FileId {
    FileId::from_bytes([number; 16])
}

fn file(number: u8) -> Receipt {
    samples::receipt_of(number, &format!("__{number}_0.distcp"), u64::from(number))
}

/// Record of a `.metadata` whose commit names the files with these numbers.
fn record(files: &[u8]) -> Record {
    let commit = Commit {
        ids: files.iter().map(|number| id(*number)).collect(),
        step: Some(7),
        overwrite: false,
        replaced: Vec::new(),
    };
    let metadata = samples::record_of(id(0), FileName::metadata(), 3);
    Record { commit: Some(commit), ..metadata }
}

#[test]
fn publication_goes_through_its_steps() {
    let mut publication = Publication::new(&record(&[2, 1])).unwrap();
    assert_eq!(publication.next(NOW), Step::Await(vec![id(2), id(1)]));
    publication.note_receipt(file(1)).unwrap();
    assert_eq!(publication.next(NOW), Step::Await(vec![id(2)]));
    assert_eq!(publication.note_manifest().unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(publication.note_metadata().unwrap_err().kind(), ErrorKind::Invalid);
    publication.note_receipt(file(2)).unwrap();

    let Step::PutManifest(manifest) = publication.next(NOW) else { panic!("no manifest") };
    assert_eq!(Manifest::decode(&manifest.encode().unwrap()).unwrap(), manifest);
    assert_eq!((manifest.attempt, manifest.published_at_ms, manifest.step), (id(0), NOW, Some(7)));
    let ids: Vec<_> = manifest.entries().map(|entry| entry.id).collect();
    assert_eq!(ids, [id(2), id(1), id(0)]);
    assert_eq!(publication.note_metadata().unwrap_err().kind(), ErrorKind::Invalid);

    publication.note_manifest().unwrap();
    assert_eq!(publication.next(NOW), Step::PutMetadata);
    publication.note_metadata().unwrap();
    publication.note_manifest().unwrap();
    assert_eq!(publication.next(NOW), Step::Done);
}

#[test]
fn attempt_of_metadata_alone_is_published_at_once() {
    let publication = Publication::new(&record(&[])).unwrap();
    assert!(matches!(publication.next(NOW), Step::PutManifest(_)));
}

#[test]
fn published_record_has_nothing_left_to_do() {
    let record = Record { progress: Progress::Published { at_ms: NOW }, ..record(&[1]) };
    assert_eq!(Publication::new(&record).unwrap().next(NOW), Step::Done);
}

#[test]
fn file_without_a_commit_publishes_nothing() {
    let record = Record { commit: None, ..record(&[]) };
    assert_eq!(Publication::new(&record).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn receipts_of_other_files_are_rejected() {
    let noted = |publication: &mut Publication, receipt: Receipt| {
        let error = publication.note_receipt(receipt).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        (error.place("name").unwrap().to_owned(), error.place("other").map(str::to_owned))
    };
    let mut publication = Publication::new(&record(&[1, 2])).unwrap();
    publication.note_receipt(file(1)).unwrap();
    let name = file(1).name.to_string();
    assert_eq!(noted(&mut publication, file(3)), (file(3).name.to_string(), None));
    let same_name = Receipt { name: file(1).name, ..file(2) };
    assert_eq!(noted(&mut publication, same_name), (name.clone(), Some(id(1).to_string())));
    let other_bytes = Receipt { blocks: vec![9], ..file(1) };
    assert_eq!(noted(&mut publication, other_bytes), (name, None));
    let metadata = Receipt { name: FileName::metadata(), ..file(2) };
    assert_eq!(noted(&mut publication, metadata), (crate::METADATA.to_owned(), None));
    assert_eq!(publication.next(NOW), Step::Await(vec![id(2)]));
}

#[test]
fn later_receipt_of_a_file_counts() {
    let mut publication = Publication::new(&record(&[1])).unwrap();
    let later = Receipt { tag: "later".to_owned(), uploaded_at_ms: NOW, ..file(1) };
    for receipt in [file(1), later, file(1)] {
        publication.note_receipt(receipt).unwrap();
    }
    let Step::PutManifest(manifest) = publication.next(NOW) else { panic!("no manifest") };
    assert_eq!(manifest.files[0].tag.as_deref(), Some("later"));
}

/// One thing that happens to an attempt.
#[derive(Debug, Clone)]
enum Event {
    /// A daemon puts the receipt of one of its files.
    Uploaded(Index),
    /// The publisher sees one of the receipts at the origin, maybe again.
    Seen(Index),
    /// The publisher sees all receipts at the origin.
    Listed,
    /// The publisher does its next step.
    Done,
    /// The publisher does its next step and dies before it notes that.
    DoneUnnoted,
    /// The publisher dies.
    Crashed,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => any::<Index>().prop_map(Event::Uploaded),
        3 => any::<Index>().prop_map(Event::Seen),
        1 => Just(Event::Listed),
        3 => Just(Event::Done),
        1 => Just(Event::DoneUnnoted),
        1 => Just(Event::Crashed),
    ]
}

/// An origin that checks each put.
#[derive(Debug, Default)]
struct Origin {
    receipts: Vec<u8>,
    manifest: Option<Manifest>,
    has_metadata: bool,
}

impl Origin {
    /// Does the next step and returns it.
    fn put(&mut self, publication: &Publication, files: &[u8]) -> Step {
        let step = publication.next(NOW);
        match &step {
            Step::Await(missing) => assert!(!missing.is_empty()),
            Step::PutManifest(manifest) => {
                let ids: Vec<_> = manifest.files.iter().map(|entry| entry.id).collect();
                assert_eq!(ids, files.iter().map(|number| id(*number)).collect::<Vec<_>>());
                assert!(files.iter().all(|number| self.receipts.contains(number)));
                let before = self.manifest.replace(manifest.clone());
                assert!(before.is_none_or(|before| before == *manifest), "one manifest");
            }
            Step::PutMetadata => {
                assert!(self.manifest.is_some(), "the manifest comes first");
                assert!(files.iter().all(|number| self.receipts.contains(number)));
                self.has_metadata = true;
            }
            Step::Done => assert!(self.has_metadata),
        }
        step
    }
}

fn note(publication: &mut Publication, step: &Step) {
    match step {
        Step::PutManifest(_) => publication.note_manifest().unwrap(),
        Step::PutMetadata => publication.note_metadata().unwrap(),
        Step::Await(_) | Step::Done => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 4096, failure_persistence: None, ..ProptestConfig::default()
    })]

    /// The origin sees receipts, one manifest and `.metadata` in this order in any history. Once
    /// everything was uploaded, an undisturbed publisher ends.
    #[test]
    fn any_history_gives_one_order_of_steps(
        files in prop::collection::btree_set(1..=8_u8, 0..6),
        events in prop::collection::vec(event(), 0..60),
    ) {
        let files: Vec<_> = files.into_iter().rev().collect();
        let record = record(&files);
        let (mut origin, mut publication) = (Origin::default(), Publication::new(&record).unwrap());
        let begin = || Publication::new(&record).unwrap();
        for event in events {
            match event {
                Event::Uploaded(which) if !files.is_empty() => {
                    let number = *which.get(&files);
                    if !origin.receipts.contains(&number) {
                        origin.receipts.push(number);
                    }
                }
                Event::Seen(which) if !origin.receipts.is_empty() => {
                    publication.note_receipt(file(*which.get(&origin.receipts))).unwrap();
                }
                Event::Listed => for number in &origin.receipts {
                    publication.note_receipt(file(*number)).unwrap();
                },
                Event::Done => {
                    let step = origin.put(&publication, &files);
                    note(&mut publication, &step);
                }
                Event::DoneUnnoted => {
                    origin.put(&publication, &files);
                    publication = begin();
                }
                Event::Crashed => publication = begin(),
                Event::Uploaded(_) | Event::Seen(_) => {}
            }
        }
        publication = begin();
        for number in &files {
            publication.note_receipt(file(*number)).unwrap();
        }
        origin.receipts.clone_from(&files);
        for _ in 0..3 {
            let step = origin.put(&publication, &files);
            note(&mut publication, &step);
        }
        prop_assert_eq!(publication.next(NOW), Step::Done);
        prop_assert!(origin.has_metadata);
    }
}
