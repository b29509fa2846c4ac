//! Manifest of an attempt: the files of one checkpoint, described before `.metadata` makes them
//! visible.

use std::collections::HashSet;

use forebay_error::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::blocks;
use crate::id::FileId;
use crate::name::FileName;
use crate::receipt::Receipt;
use crate::sealed::{self, Document};

/// One file of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Identity of the file.
    pub id: FileId,
    /// Key below the checkpoint's URL.
    pub name: FileName,
    /// Length in bytes.
    pub len: u64,
    /// CRC32C of each [`BLOCK_BYTES`](crate::BLOCK_BYTES), the last one shorter.
    #[serde(with = "blocks")]
    pub blocks: Vec<u32>,
    /// Tag that the store gave the object; none for `.metadata`, which is put after the manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

impl From<&Receipt> for Entry {
    fn from(receipt: &Receipt) -> Self {
        let Receipt { id, name, len, blocks, tag, uploaded_at_ms: _ } = receipt.clone();
        Self { id, name, len, blocks, tag: Some(tag) }
    }
}

/// All files of one attempt. It lies at [`MANIFEST`](crate::MANIFEST).
///
/// A checkpoint is visible once its `.metadata` is there and is the one that the manifest
/// describes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Identity of the attempt: that of its `.metadata`.
    pub attempt: FileId,
    /// Files of all ranks.
    pub files: Vec<Entry>,
    /// The file that makes the checkpoint visible.
    pub metadata: Entry,
    /// Time at which the commit was durable on its node, in milliseconds since 1970: the age of the
    /// checkpoint, however long its upload took.
    pub saved_at_ms: u64,
    /// Time of the publication, in milliseconds since 1970.
    pub published_at_ms: u64,
    /// Step of the training, as the job names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// Manifest of the checkpoint that this one replaces, until that one's files are removed. Its
    /// `.metadata` is the visible one until this one's takes its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Box<Manifest>>,
}

impl Manifest {
    /// Returns the manifest as sealed bytes.
    ///
    /// # Errors
    /// `Invalid` if it contradicts itself.
    pub fn encode(&self) -> Result<Vec<u8>> {
        sealed::encode(self)
    }

    /// Reads what [`Manifest::encode`] wrote.
    ///
    /// # Errors
    /// `Corrupt` if any bit differs, `Invalid` if a newer release wrote it.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        sealed::decode(bytes)
    }

    /// Returns the manifest of the checkpoint that a `.metadata` makes visible: this one, or the
    /// one before while this one replaces it. Bytes of neither are damaged, which a reader finds
    /// by this one. Bytes of both are those of a folder that was pushed again: its files are
    /// replaced by then, so this one describes them.
    #[must_use]
    pub fn visible(mut self, metadata: &[u8]) -> Self {
        let before = self.before.take();
        let blocks = blocks::of(metadata);
        let has =
            |of: &Self| of.metadata.len == metadata.len() as u64 && of.metadata.blocks == blocks;
        match before {
            Some(before) if has(&before) && !has(&self) => *before,
            _ => self,
        }
    }

    /// Returns all files, `.metadata` last.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.files.iter().chain([&self.metadata])
    }
}

impl Document for Manifest {
    const NOUN: &'static str = "manifest";

    fn check(&self) -> Result<()> {
        let (mut ids, mut names) = (HashSet::new(), HashSet::new());
        for entry in self.entries() {
            let refuse = |what: &str| {
                let error = Error::new(ErrorKind::Invalid, what.to_owned());
                Err(error.at("name", &entry.name).at("id", entry.id))
            };
            blocks::check(entry.len, &entry.blocks)
                .map_err(|error| error.at("name", &entry.name))?;
            if !names.insert(&entry.name) {
                return refuse("two files of a checkpoint have the same name");
            }
            if !ids.insert(entry.id) {
                return refuse("two files of a checkpoint have the same id");
            }
            let is_metadata = std::ptr::eq(entry, &raw const self.metadata);
            if entry.name.is_metadata() != is_metadata {
                return refuse("a manifest describes `.metadata` apart from other files");
            }
            if entry.tag.is_none() != is_metadata {
                return refuse("all files but `.metadata` have the tag of their object");
            }
        }
        if self.attempt != self.metadata.id {
            let what = "an attempt has the id of its `.metadata`";
            return Err(Error::new(ErrorKind::Invalid, what).at("id", self.attempt));
        }
        match &self.before {
            None => Ok(()),
            Some(before) if before.before.is_none() => before.check(),
            Some(before) => {
                let what = "a manifest describes one checkpoint before its own, at most";
                Err(Error::new(ErrorKind::Invalid, what).at("id", before.attempt))
            }
        }
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
        fn manifest_survives_its_bytes_and_finds_damage(
            manifest in samples::manifest(), damage in damage()
        ) {
            check_seal(&manifest, &damage);
        }
    }

    /// Text at the origin, which releases to come must read.
    #[test]
    fn format_of_a_manifest_never_changes() {
        let [zeros, ones] = ["00".repeat(16), "01".repeat(16)];
        let signed = format!(
            "{{\"format\":1,\"attempt\":\"{ones}\",\"files\":[{{\"id\":\"{zeros}\",\
             \"name\":\"__0_0.distcp\",\"len\":1,\"blocks\":\"00000007\",\"tag\":\"e\"}}],\
             \"metadata\":{{\"id\":\"{ones}\",\"name\":\".metadata\",\"len\":0,\"blocks\":\"\"}},\
             \"saved_at_ms\":1690000000000,\"published_at_ms\":1700000000000,\"step\":42"
        );
        let file = Entry {
            id: FileId::from_bytes([0; 16]),
            name: FileName::new("__0_0.distcp").unwrap(),
            len: 1,
            blocks: vec![7],
            tag: Some("e".to_owned()),
        };
        let attempt = FileId::from_bytes([1; 16]);
        let manifest = Manifest {
            attempt,
            files: vec![file],
            metadata: Entry {
                id: attempt,
                name: FileName::metadata(),
                len: 0,
                blocks: Vec::new(),
                tag: None,
            },
            saved_at_ms: 1_690_000_000_000,
            published_at_ms: 1_700_000_000_000,
            step: Some(42),
            before: None,
        };
        assert_eq!(manifest.encode().unwrap(), sealed(&signed));
        assert_eq!(Manifest::decode(&sealed(&signed)).unwrap(), manifest);
        check_each_bit(&manifest);
        let without_step = signed.replace(",\"step\":42", "");
        assert_eq!(Manifest::decode(&sealed(&without_step)).unwrap().step, None);
    }

    #[test]
    fn visible_is_the_manifest_of_the_metadata_that_is_there() {
        let of = |bytes: &[u8], id: u8| {
            let mut manifest = samples::manifest_of(&[("a", 5)]);
            manifest.attempt = FileId::from_bytes([id; 16]);
            manifest.metadata.id = manifest.attempt;
            manifest.metadata.len = bytes.len() as u64;
            manifest.metadata.blocks = blocks::of(bytes);
            manifest
        };
        let (old, new) = (of(b"old", 7), of(b"new", 8));
        let both = Manifest { before: Some(Box::new(old.clone())), ..new.clone() };
        assert_eq!(Manifest::decode(&both.encode().unwrap()).unwrap(), both);
        assert_eq!(both.clone().visible(b"old"), old);
        for metadata in [&b"new"[..], b"nem", b"olds", b""] {
            assert_eq!(both.clone().visible(metadata), new);
        }
        let again = Manifest { before: Some(Box::new(of(b"new", 7))), ..new.clone() };
        assert_eq!(again.visible(b"new"), new, "pushed again under the same names");
        let three = Manifest { before: Some(Box::new(both)), ..of(b"third", 9) };
        assert_eq!(three.encode().unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn contradictory_manifests_are_neither_written_nor_read() {
        let good = samples::manifest_of(&[("a", 5), ("b", 0)]);
        let other = |change: fn(&mut Manifest)| {
            let mut manifest = good.clone();
            change(&mut manifest);
            manifest
        };
        for (manifest, name) in [
            (other(|of| of.files[1].name = of.files[0].name.clone()), Some("a")),
            (other(|of| of.files[1].id = of.files[0].id), Some("b")),
            (other(|of| of.files[1].id = of.attempt), Some(".metadata")),
            (other(|of| of.files[1].name = FileName::metadata()), Some(".metadata")),
            (other(|of| of.metadata.name = FileName::new("m").unwrap()), Some("m")),
            (other(|of| of.files[0].tag = None), Some("a")),
            (other(|of| of.metadata.tag = Some(String::new())), Some(".metadata")),
            (other(|of| of.files[0].len = 0), Some("a")),
            (other(|of| of.metadata.blocks = vec![1, 2]), Some(".metadata")),
            (other(|of| of.attempt = of.files[0].id), None),
        ] {
            let error = manifest.encode().unwrap_err();
            assert_eq!((error.kind(), error.place("name")), (ErrorKind::Invalid, name), "{error}");
            let json = serde_json::to_string(&manifest).unwrap();
            let fields = json.strip_prefix('{').unwrap().strip_suffix('}').unwrap();
            let error = Manifest::decode(&sealed(&format!("{{\"format\":1,{fields}"))).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        }
    }
}
