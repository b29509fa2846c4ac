//! Record of a staged file: everything that a daemon needs to bring it to its origin, after any
//! crash and under any configuration.
//!
//! Destination and identity stand here and are never derived from the configuration. Credentials
//! never stand here.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};

use forebay_error::{Error, ErrorKind, Result, redacted};
use serde::{Deserialize, Serialize};

use crate::blocks;
use crate::id::FileId;
use crate::keys::object_url;
use crate::level::Level;
use crate::name::FileName;
use crate::parts::PARTS_MAX;
use crate::sealed::{self, Document};

/// Record of one staged file: a sealed document beside its data on a tier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Identity of the file.
    pub id: FileId,
    /// URL of the checkpoint, without a slash at its end.
    pub url: String,
    /// Key below that URL.
    pub name: FileName,
    /// True for a file of its own: it belongs to no checkpoint, and is visible once it is at the
    /// origin.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_lone: bool,
    /// Length in bytes.
    pub len: u64,
    /// CRC32C of each [`BLOCK_BYTES`](crate::BLOCK_BYTES), the last one shorter.
    #[serde(with = "blocks")]
    pub blocks: Vec<u32>,
    /// Time at which it was durable on this node, in milliseconds since 1970.
    pub staged_at_ms: u64,
    /// Name of the job.
    pub job: String,
    /// Tenant of the job, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// User id of the job's process.
    pub user: u32,
    /// Options of the destination without secrets, such as `AWS_ENDPOINT_URL`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<BTreeMap<String, String>>,
    /// Node whose file this is the second copy of; none for a file of this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<String>,
    /// Node that keeps the second copy, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keeper: Option<String>,
    /// Commit of the attempt; on `.metadata` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<Commit>,
    /// Progress towards the origin.
    pub progress: Progress,
}

/// Commit of an attempt: the files without which it is not whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commit {
    /// Files of all ranks, `.metadata` not among them.
    pub ids: Vec<FileId>,
    /// Step of the training, as the job names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// True if the attempt replaces a checkpoint at the same URL.
    #[serde(default)]
    pub overwrite: bool,
    /// Keys of the replaced checkpoint that nothing names once this one is visible.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaced: Vec<String>,
}

/// Progress of a staged file towards its origin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Progress {
    /// Nothing of it is at the origin.
    Staged,
    /// Some parts, from the first on, are at the origin.
    Uploading {
        /// Identity of the upload at the store.
        upload: String,
        /// Bytes of each part, the last one shorter.
        part_bytes: u64,
        /// Tags of the parts that the store has, from the first on.
        parts: Vec<String>,
    },
    /// It is at the origin.
    Uploaded {
        /// Tag that the store gave the object.
        tag: String,
        /// Time, in milliseconds since 1970.
        at_ms: u64,
    },
    /// It is part of a visible checkpoint.
    Published {
        /// Time at which that was saved, in milliseconds since 1970.
        at_ms: u64,
    },
    /// It cannot get to its origin without somebody's help.
    Failed {
        /// Text for people.
        reason: String,
    },
}

impl Progress {
    /// Returns the level of durability that the file has reached.
    #[must_use]
    pub fn level(&self) -> Level {
        match self {
            Self::Staged | Self::Uploading { .. } | Self::Failed { .. } => Level::Staged,
            Self::Uploaded { .. } => Level::Uploaded,
            Self::Published { .. } => Level::Published,
        }
    }

    fn check(&self, len: u64) -> Result<()> {
        let Self::Uploading { part_bytes, parts, .. } = self else { return Ok(()) };
        let all = len.checked_div(*part_bytes).map(|_| len.div_ceil(*part_bytes));
        match all.is_some_and(|all| all <= PARTS_MAX && parts.len() as u64 <= all) {
            true => Ok(()),
            false => {
                let what = "the parts of an upload do not fit its file";
                let error = Error::new(ErrorKind::Invalid, what);
                Err(error.at("part_bytes", part_bytes).at("parts", parts.len()))
            }
        }
    }
}

impl Record {
    /// Returns the record as sealed bytes.
    ///
    /// # Errors
    /// `Invalid` if it contradicts itself, or holds a secret.
    pub fn encode(&self) -> Result<Vec<u8>> {
        sealed::encode(self)
    }

    /// Reads what [`Record::encode`] wrote.
    ///
    /// # Errors
    /// `Corrupt` if any bit differs, `Invalid` if a newer release wrote it.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        sealed::decode(bytes)
    }

    /// Returns the level of durability that the file has reached.
    #[must_use]
    pub fn level(&self) -> Level {
        match &self.progress {
            // The copy on this node is damaged.
            Progress::Failed { .. } => Level::Staged,
            progress if self.keeper.is_some() => progress.level().max(Level::Replicated),
            progress => progress.level(),
        }
    }

    /// Returns the URL by which people name the save that it is part of: that of the object for a
    /// file of its own, else that of the checkpoint.
    #[must_use]
    pub fn named_url(&self) -> Cow<'_, str> {
        match self.is_lone {
            true => object_url(&self.url, &self.name).into(),
            false => self.url.as_str().into(),
        }
    }

    /// Rejects a commit of a file that makes nothing visible, and one without which `.metadata`
    /// would never become visible.
    fn check_commit(&self) -> Result<()> {
        let refuse = |what: &str| Err(Error::new(ErrorKind::Invalid, what.to_owned()));
        let Some(commit) = &self.commit else {
            return match self.name.is_metadata() {
                true => refuse("the record of `.metadata` has no commit"),
                false => Ok(()),
            };
        };
        if !self.name.is_metadata() {
            return refuse("only the record of `.metadata` has a commit");
        }
        let mut ids = HashSet::from([self.id]);
        match commit.ids.iter().find(|id| !ids.insert(**id)) {
            None => Ok(()),
            Some(id) => refuse("a commit names a file twice, or its `.metadata`")
                .map_err(|error| error.at("file", id)),
        }
    }

    /// Rejects a copy of a copy.
    fn check_copies(&self) -> Result<()> {
        match (&self.home, &self.keeper) {
            (Some(home), Some(keeper)) => {
                Err(Error::new(ErrorKind::Invalid, "a second copy has none of its own")
                    .at("home", home)
                    .at("keeper", keeper))
            }
            _ => Ok(()),
        }
    }

    /// Rejects options of the destination that hold a secret: the record is on a disk.
    fn check_endpoint(&self) -> Result<()> {
        let holds_secret = |(name, value): &(&String, &String)| {
            let text = format!("{name}={value}");
            redacted(&text) != text
        };
        match self.endpoint.iter().flatten().find(holds_secret) {
            None => Ok(()),
            Some((name, _)) => {
                let what = "an option of a checkpoint's destination holds a secret";
                Err(Error::new(ErrorKind::Invalid, what).at("option", name))
            }
        }
    }
}

impl Document for Record {
    const NOUN: &'static str = "record";

    fn check(&self) -> Result<()> {
        let is_url = !self.url.is_empty() && !self.url.ends_with('/');
        let url = match is_url {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::Invalid,
                "a checkpoint's URL is not empty and has no slash at its end",
            )),
        };
        url.and_then(|()| blocks::check(self.len, &self.blocks))
            .and_then(|()| self.check_commit())
            .and_then(|()| self.check_endpoint())
            .and_then(|()| self.check_copies())
            .and_then(|()| self.progress.check(self.len))
            .map_err(|error| error.at("url", &self.url).at("name", &self.name).at("id", self.id))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::samples;
    use crate::sealed::tests::{check_each_bit, check_seal, damage, sealed};

    proptest! {
        #[test]
        fn record_survives_its_bytes_and_finds_damage(
            record in samples::record(), damage in damage()
        ) {
            check_seal(&record, &damage);
        }
    }

    /// Text on disks, which releases to come must read.
    #[test]
    fn format_of_a_record_never_changes() {
        let [zeros, ones] = ["00".repeat(16), "01".repeat(16)];
        let head = format!(
            "{{\"format\":1,\"id\":\"{zeros}\",\"url\":\"s3://runs/a\",\"name\":\".metadata\",\
             \"len\":1,\"blocks\":\"00000007\",\"staged_at_ms\":1700000000000,\"job\":\"j\""
        );
        let (metadata, id) = (FileName::metadata(), FileId::from_bytes([0; 16]));
        let plain = Record {
            commit: Some(Commit {
                ids: vec![FileId::from_bytes([1; 16])],
                step: Some(42),
                overwrite: true,
                replaced: vec!["b".to_owned()],
            }),
            tenant: Some("vision".to_owned()),
            endpoint: Some([("AWS_REGION".to_owned(), "r".to_owned())].into()),
            ..samples::record_of(id, metadata, 1)
        };
        let plain = Record {
            url: "s3://runs/a".to_owned(),
            blocks: vec![7],
            staged_at_ms: 1_700_000_000_000,
            job: "j".to_owned(),
            user: 1000,
            ..plain
        };
        let body = format!(
            ",\"tenant\":\"vision\",\"user\":1000,\"endpoint\":{{\"AWS_REGION\":\"r\"}},\
             \"commit\":{{\"ids\":[\"{ones}\"],\"step\":42,\"overwrite\":true,\
             \"replaced\":[\"b\"]}}"
        );
        let [upload, tag, reason] = ["u", "e", "why"].map(str::to_owned);
        for (progress, text) in [
            (Progress::Staged, "{\"state\":\"staged\"}"),
            (
                Progress::Uploading { upload, part_bytes: 16_777_216, parts: vec!["e".to_owned()] },
                "{\"state\":\"uploading\",\"upload\":\"u\",\"part_bytes\":16777216,\"parts\":[\"e\"]}",
            ),
            (
                Progress::Uploaded { tag, at_ms: 9 },
                "{\"state\":\"uploaded\",\"tag\":\"e\",\"at_ms\":9}",
            ),
            (Progress::Published { at_ms: 9 }, "{\"state\":\"published\",\"at_ms\":9}"),
            (Progress::Failed { reason }, "{\"state\":\"failed\",\"reason\":\"why\"}"),
        ] {
            let record = Record { progress, ..plain.clone() };
            let bytes = sealed(&format!("{head}{body},\"progress\":{text}"));
            assert_eq!(
                record.encode().unwrap(),
                bytes,
                "{}",
                record.encode().unwrap().escape_ascii()
            );
            assert_eq!(Record::decode(&bytes).unwrap(), record);
            check_each_bit(&record);
        }
    }

    #[test]
    fn contradictory_records_are_not_written() {
        let file = samples::record_of(FileId::from_bytes([3; 16]), FileName::new("a").unwrap(), 5);
        let commit = |ids: &[u8]| Commit {
            ids: ids.iter().map(|byte| FileId::from_bytes([*byte; 16])).collect(),
            step: None,
            overwrite: false,
            replaced: Vec::new(),
        };
        let metadata =
            Record { name: FileName::metadata(), commit: Some(commit(&[1, 2])), ..file.clone() };
        assert!(file.encode().is_ok() && metadata.encode().is_ok());
        let with = |commit: Option<Commit>| Record { commit, ..metadata.clone() };
        let to = |url: &str| Record { url: url.to_owned(), ..file.clone() };
        let at = |name: &str, value: &str| Record {
            endpoint: Some([(name.to_owned(), value.to_owned())].into()),
            ..file.clone()
        };
        let uploading = |part_bytes: u64, parts: usize| Record {
            progress: Progress::Uploading {
                upload: String::new(),
                part_bytes,
                parts: vec![String::new(); parts],
            },
            ..file.clone()
        };
        for record in [
            Record { commit: Some(commit(&[1])), ..file.clone() },
            Record { blocks: Vec::new(), ..file.clone() },
            with(None),
            with(Some(commit(&[1, 1]))),
            with(Some(commit(&[1, 3]))),
            to(""),
            to("s3://runs/a/"),
            at("AWS_SECRET_ACCESS_KEY", "x"),
            at("AWS_SESSION_TOKEN", "x"),
            at("AWS_ENDPOINT_URL", "https://user:secret@store.example"),
            uploading(0, 0),
            uploading(5, 2),
            uploading(3, 3),
        ] {
            let error = record.encode().unwrap_err();
            let id = record.id.to_string();
            assert_eq!((error.kind(), error.place("id")), (ErrorKind::Invalid, Some(&*id)));
        }
        assert!(at("AWS_ENDPOINT_URL", "https://store.example:9000").encode().is_ok());
        assert!(uploading(3, 2).encode().is_ok());
    }

    #[test]
    fn progress_has_a_level() {
        let levels = [
            (Progress::Staged, Level::Staged),
            (Progress::Failed { reason: String::new() }, Level::Staged),
            (Progress::Uploaded { tag: String::new(), at_ms: 0 }, Level::Uploaded),
            (Progress::Published { at_ms: 0 }, Level::Published),
        ];
        for (progress, level) in levels {
            assert_eq!(progress.level(), level);
        }
    }
}
