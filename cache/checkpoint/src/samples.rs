//! Samples of documents for tests.

use proptest::prelude::*;

use crate::blocks::{BLOCK_BYTES, block_count};
use crate::id::FileId;
use crate::manifest::{Entry, Manifest};
use crate::name::FileName;
use crate::receipt::Receipt;
use crate::record::{Commit, Progress, Record};

fn blocks_of(len: u64) -> Vec<u32> {
    (0..block_count(len)).map(|at| 0x9E37_79B9_u32.wrapping_mul(at as u32 + 1)).collect()
}

pub(crate) fn receipt_of(number: u8, name: &str, len: u64) -> Receipt {
    Receipt {
        id: FileId::from_bytes([number; 16]),
        name: FileName::new(name).unwrap(),
        len,
        blocks: blocks_of(len),
        tag: format!("tag of {name}"),
        uploaded_at_ms: u64::from(number),
    }
}

pub(crate) fn record_of(id: FileId, name: FileName, len: u64) -> Record {
    Record {
        id,
        url: "s3://runs/a".to_owned(),
        name,
        is_lone: false,
        len,
        blocks: blocks_of(len),
        staged_at_ms: 1,
        job: "job".to_owned(),
        tenant: None,
        user: 0,
        endpoint: None,
        home: None,
        keeper: None,
        commit: None,
        progress: Progress::Staged,
    }
}

/// A manifest of files with these names and lengths, numbered from 1.
pub(crate) fn manifest_of(files: &[(&str, u64)]) -> Manifest {
    let entry =
        |(number, (name, len)): (u8, &(&str, u64))| Entry::from(&receipt_of(number, name, *len));
    let attempt = FileId::from_bytes([0xff; 16]);
    let metadata =
        Entry { id: attempt, name: FileName::metadata(), len: 1, blocks: vec![3], tag: None };
    Manifest {
        attempt,
        files: (1..).zip(files).map(entry).collect(),
        metadata,
        saved_at_ms: 1,
        published_at_ms: 2,
        step: None,
        before: None,
    }
}

fn id() -> impl Strategy<Value = FileId> {
    any::<[u8; 16]>().prop_map(FileId::from_bytes)
}

/// Names of all characters that JSON writes in a way of its own.
fn name() -> impl Strategy<Value = FileName> {
    "[a-z\"é%{}: ]{1,8}(/[a-z.]{3,6})?".prop_filter_map("no name", |text| FileName::new(text).ok())
}

fn contents() -> impl Strategy<Value = (u64, Vec<u32>)> {
    (0..3 * BLOCK_BYTES).prop_flat_map(|len| {
        let count = block_count(len) as usize;
        (Just(len), prop::collection::vec(any::<u32>(), count))
    })
}

pub(crate) fn receipt() -> impl Strategy<Value = Receipt> {
    (id(), name(), contents(), any::<String>(), any::<u64>()).prop_map(
        |(id, name, (len, blocks), tag, uploaded_at_ms)| Receipt {
            id,
            name,
            len,
            blocks,
            tag,
            uploaded_at_ms,
        },
    )
}

pub(crate) fn manifest() -> impl Strategy<Value = Manifest> {
    let files = prop::collection::vec(receipt(), 0..4);
    (files, id(), contents(), any::<(u64, u64)>(), any::<Option<u64>>()).prop_filter_map(
        "names or ids are not unique",
        |(files, attempt, (len, blocks), (saved_at_ms, published_at_ms), step)| {
            let metadata =
                Entry { id: attempt, name: FileName::metadata(), len, blocks, tag: None };
            let files = files.iter().map(Entry::from).collect();
            let manifest = Manifest {
                attempt,
                files,
                metadata,
                saved_at_ms,
                published_at_ms,
                step,
                before: None,
            };
            manifest.encode().is_ok().then_some(manifest)
        },
    )
}

fn progress() -> impl Strategy<Value = Progress> {
    prop_oneof![
        Just(Progress::Staged),
        (any::<String>(), 1_u64 << 20..16 << 20).prop_map(|(upload, part_bytes)| {
            Progress::Uploading { upload, part_bytes, parts: Vec::new() }
        }),
        (any::<String>(), any::<u64>()).prop_map(|(tag, at_ms)| Progress::Uploaded { tag, at_ms }),
        any::<u64>().prop_map(|at_ms| Progress::Published { at_ms }),
        any::<String>().prop_map(|reason| Progress::Failed { reason }),
    ]
}

pub(crate) fn record() -> impl Strategy<Value = Record> {
    let commit = (prop::collection::btree_set(id(), 0..4), any::<Option<u64>>(), any::<bool>());
    let commit = commit.prop_map(|(ids, step, overwrite)| Commit {
        ids: ids.into_iter().collect(),
        step,
        overwrite,
        replaced: if overwrite { vec!["a/\"b".to_owned()] } else { Vec::new() },
    });
    let copies =
        (any::<Option<String>>(), any::<bool>()).prop_map(|(node, is_home)| match is_home {
            true => (node, None),
            false => (None, node),
        });
    let owner = (any::<String>(), any::<Option<String>>(), any::<u32>(), any::<bool>());
    let file = (id(), name(), contents(), any::<u64>());
    (file, owner, prop::option::of(commit), progress(), copies).prop_filter_map(
        "ids are not unique",
        |(
            (id, name, (len, blocks), staged_at_ms),
            (job, tenant, user, is_lone),
            commit,
            progress,
            (home, keeper),
        )| {
            let name = if commit.is_some() { FileName::metadata() } else { name };
            let record = Record {
                is_lone,
                len,
                blocks,
                staged_at_ms,
                job,
                tenant,
                user,
                home,
                keeper,
                commit,
                progress,
                ..record_of(id, name, 0)
            };
            record.encode().is_ok().then_some(record)
        },
    )
}
