//! Content of a shard: samples, their fields, and the source of each field's bytes.
//!
//! A name that enters here comes out of every reader as the same key and the same field.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path};

use forebay_error::{Error, ErrorKind, Result};

use super::archive;
use crate::key::{RESERVED, field_name, split_key};

/// Source of a field's bytes.
#[derive(Debug)]
pub(super) enum Content {
    /// A whole file, as it was when it was planned.
    File(Box<Path>, Stamp),
    /// The bytes themselves.
    Text(Box<str>),
    /// A part of a file, by its place among the inputs.
    Piece { file: u32, offset: u64 },
    /// Bytes of a new header, and a part of a file behind it.
    Headed { head: Box<[u8]>, file: u32, offset: u64 },
    /// A cell of a table, by its place among the inputs and its row from 0.
    Cell { file: u32, row: u64, column: u32 },
}

/// Modification time of a file: a write during packing must be detected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    seconds: i64,
    nanoseconds: i64,
}

impl Stamp {
    pub(super) fn of(file: &Metadata) -> Self {
        Self { seconds: file.mtime(), nanoseconds: file.mtime_nsec() }
    }

    pub(super) fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.seconds.to_le_bytes());
        bytes[8..].copy_from_slice(&self.nanoseconds.to_le_bytes());
        bytes
    }
}

/// One member of a shard.
#[derive(Debug)]
pub(super) struct Field {
    /// The member's name: key, dot, and the field's name.
    pub(super) name: Box<str>,
    /// Bytes of the member, an index included.
    pub(super) len: u64,
    pub(super) content: Content,
    /// Bytes of the index that a photo gets; 0 if it gets none.
    pub(super) index_bytes: u64,
}

impl Field {
    /// Plans an index of so many bytes.
    pub(super) fn add_index(&mut self, bytes: u64) {
        self.len += bytes;
        self.index_bytes += bytes;
    }
}

/// A future sample; it has at least one field.
#[derive(Debug)]
pub(super) struct Sample(Box<[Field]>);

impl Sample {
    /// A sample of fields in the order given: each its name, its length and its content.
    ///
    /// # Errors
    /// `Invalid` if there is no field, if one comes twice, or if a reader would see another key or
    /// field than is meant.
    pub(super) fn new<'a>(
        key: &str,
        parts: impl IntoIterator<Item = (&'a str, u64, Content)>,
    ) -> Result<Self> {
        let mut fields: Vec<Field> = Vec::new();
        let mut names: Vec<String> = Vec::new();
        for (suffix, len, content) in parts {
            let field = field_name(suffix);
            if RESERVED.contains(&field.as_str()) {
                return Err(invalid("a field has a reserved name", key).at("field", suffix));
            }
            if names.contains(&field) {
                return Err(invalid("a sample has the same field twice", key).at("field", suffix));
            }
            let name = format!("{key}.{suffix}");
            if split_key(&name) != Some((key, suffix)) || name.contains('\0') {
                return Err(invalid("readers would parse another key or field", key)
                    .at("field", suffix)
                    .advise(
                        "a key's last part has no dot and is not empty, a field has no slash",
                    ));
            }
            if !stays_below(&name) {
                return Err(invalid("a key escapes the folder a tar is unpacked in", key)
                    .advise("use keys without '..' and without a slash in front"));
            }
            names.push(field);
            fields.push(Field { name: name.into(), len, content, index_bytes: 0 });
        }
        if fields.is_empty() {
            return Err(invalid("a sample has no field", key));
        }
        Ok(Self(fields.into()))
    }

    /// The sample with one more field.
    ///
    /// # Errors
    /// As [`Sample::new`].
    pub(super) fn with(self, field: &str, len: u64, content: Content) -> Result<Self> {
        let key = self.key().to_owned();
        let start = key.len() + 1;
        let mut fields = self.0.into_vec();
        let names: Vec<Box<str>> = fields.iter().map(|field| field.name.clone()).collect();
        let old = fields.drain(..).zip(&names);
        let parts = old.map(|(old, name)| (&name[start..], old.len, old.content));
        Self::new(&key, parts.chain([(field, len, content)]))
    }

    pub(super) fn key(&self) -> &str {
        let first = self.0.first().map_or("", |field| &field.name);
        split_key(first).map_or(first, |(key, _)| key)
    }

    pub(super) fn fields(&self) -> &[Field] {
        &self.0
    }

    pub(super) fn fields_mut(&mut self) -> &mut [Field] {
        &mut self.0
    }

    /// Returns its length in a tar, with headers and padding.
    pub(super) fn tar_bytes(&self) -> u64 {
        let members = self.0.iter().map(|field| archive::member_bytes(&field.name, field.len));
        members.fold(0, u64::saturating_add)
    }
}

fn stays_below(name: &str) -> bool {
    let leads_out = |part| !matches!(part, Component::Normal(_) | Component::CurDir);
    !Path::new(name).components().any(leads_out)
}

fn invalid(what: &str, key: &str) -> Error {
    Error::new(ErrorKind::Invalid, what).at("key", key)
}
