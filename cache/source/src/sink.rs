//! Ways to write to stores: whole objects, and large ones in parts.
//!
//! An object is there as a whole or not at all, and an answer means that it is there to stay. An
//! upload in parts outlives the process: whoever knows its id and its parts' tags goes on with it.
//! Requests that may be repeated are repeated here, as for reads.

use async_trait::async_trait;
use bytes::Bytes;
use forebay_error::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// Place of an error that says more than its kind.
pub const REASON: &str = "reason";

/// Reason of an `Invalid`: the object is there already, and may not be overwritten.
pub const EXISTS: &str = "exists";

/// Reason of a `NotFound`: the store knows no such upload, or lost parts of it.
pub const NO_UPLOAD: &str = "no-upload";

/// Least bytes of each part but the last: S3's limit, and Google's.
pub const PART_BYTES_MIN: u64 = 5 << 20;

/// Most parts of an upload: S3's limit, and Google's.
pub const PARTS_MAX: u32 = 10_000;

/// Most objects of a listing: those of hundreds of checkpoints of a thousand ranks fit, in some ten
/// MiB of names.
pub const LISTED_MAX: usize = 100_000;

/// Right of a write to replace an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overwrite {
    /// The write replaces an object that is there.
    Allowed,
    /// The write fails if there is an object.
    Rejected,
}

/// A name that a store gave, as text for a journal.
macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// The name as it was once given.
            pub fn new(text: impl Into<String>) -> Self {
                Self(text.into())
            }

            /// Returns the text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
    };
}

name! {
    /// One state of an object: its ETag without quotes, or a file's version.
    Tag
}
name! {
    /// An upload in parts. Empty where the store knows an upload by its object alone.
    UploadId
}
name! {
    /// A part that arrived, for [`Sink::complete`].
    PartTag
}

impl Tag {
    /// An ETag as a header or a document has it.
    pub(crate) fn of_etag(etag: &str) -> Self {
        Self(etag.trim_matches('"').to_owned())
    }
}

impl PartTag {
    /// A part of `len` bytes, and the store's own name of it.
    pub(crate) fn of(len: u64, name: &str) -> Self {
        Self(format!("{len}:{name}"))
    }

    /// Returns length and name.
    pub(crate) fn parts(&self) -> Result<(u64, &str)> {
        let parts = self.0.split_once(':').and_then(|(len, name)| Some((len.parse().ok()?, name)));
        parts.ok_or_else(|| Error::new(ErrorKind::Invalid, "unknown form of a part's tag"))
    }
}

/// An object that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Length in bytes.
    pub len: u64,
    /// State.
    pub tag: Tag,
    /// Version, in buckets that keep several.
    pub version: Option<String>,
}

/// An object of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// Name below the listed folder.
    pub name: String,
    /// Length in bytes.
    pub len: u64,
}

/// A store that objects are written to.
///
/// Besides the errors named, all fail with `PermissionDenied` naming the URL, `Unavailable` once
/// the retries are spent, `Full` if the store has no room, and `Invalid` for a URL that is not of
/// this store.
#[async_trait]
pub trait Sink: Send + Sync {
    /// The store's identity, such as `http://127.0.0.1:9000` or `file`.
    fn endpoint(&self) -> &str;

    /// Returns a name of what answers for an object, and falls silent as one: the store; of a file,
    /// its mount.
    fn server(&self, url: &str) -> String {
        let _ = url;
        self.endpoint().to_owned()
    }

    /// Writes an object as a whole.
    ///
    /// # Errors
    /// `Invalid` with [`REASON`] = [`EXISTS`] if there is one that may not be replaced.
    async fn put(&self, url: &str, bytes: Bytes, overwrite: Overwrite) -> Result<Tag>;

    /// Begins an upload in parts of `part_bytes` each, the last of which may be shorter. Nothing is
    /// there before [`Sink::complete`]; if the answer is lost, an upload may stay behind that only
    /// the store's own rules remove.
    ///
    /// # Errors
    /// `Invalid` for parts below [`PART_BYTES_MIN`].
    async fn begin_upload(&self, url: &str, part_bytes: u64) -> Result<UploadId>;

    /// Writes a part; `number` counts from 0. Parts may come in any order and several at once, and
    /// one may come again.
    ///
    /// # Errors
    /// `NotFound` with [`REASON`] = [`NO_UPLOAD`] if the upload is lost: begin anew. `Invalid` for
    /// a number from [`PARTS_MAX`] on, and for a part without bytes.
    async fn upload_part(
        &self,
        url: &str,
        upload: &UploadId,
        number: u32,
        bytes: Bytes,
    ) -> Result<PartTag>;

    /// Makes an object of the parts, in the order of their numbers; one that is there is replaced.
    ///
    /// # Errors
    /// `NotFound` with [`REASON`] = [`NO_UPLOAD`] if the upload is lost, or was completed by an
    /// earlier call: [`Sink::head`] tells. `Invalid` for parts that make no object.
    async fn complete(&self, url: &str, upload: &UploadId, parts: &[PartTag]) -> Result<Tag>;

    /// Gives an upload up, with its parts; one that is lost is given up. Azure has no such request:
    /// it drops parts by itself a week later.
    ///
    /// # Errors
    /// As above.
    async fn abort(&self, url: &str, upload: &UploadId) -> Result<()>;

    /// Returns length and state of an object; `None` if there is none.
    ///
    /// # Errors
    /// As above.
    async fn head(&self, url: &str) -> Result<Option<Found>>;

    /// Returns a small object as a whole; `None` if there is none.
    ///
    /// # Errors
    /// `Corrupt` for one of more than `limit` bytes.
    async fn get(&self, url: &str, limit: usize) -> Result<Option<Bytes>>;

    /// Removes an object, if there is one.
    ///
    /// # Errors
    /// As above.
    async fn delete(&self, url: &str) -> Result<()>;

    /// Returns the objects in a folder and all folders below it, by name; unfinished writes are
    /// none. Of files, those that a crash left a week ago are removed.
    ///
    /// # Errors
    /// `Full` for more than [`LISTED_MAX`].
    async fn list(&self, folder: &str) -> Result<Vec<Named>>;

    /// Returns true if the store honours [`Overwrite::Rejected`]. A store that does not say so is
    /// tried once, with a small object in `folder`.
    ///
    /// # Errors
    /// As above.
    async fn conditional(&self, folder: &str) -> Result<bool>;
}

/// Returns the error of a write to what is there already.
pub(crate) fn exists(url: &str) -> Error {
    Error::new(ErrorKind::Invalid, "the object exists already")
        .at("url", url)
        .at(REASON, EXISTS)
        .advise("choose another name, or remove the object first")
}

/// Returns true if an error says that there is an object.
pub(crate) fn is_exists(error: &Error) -> bool {
    error.place(REASON) == Some(EXISTS)
}

/// Returns the error of an upload that the store no longer knows.
pub(crate) fn no_upload(url: &str) -> Error {
    Error::new(ErrorKind::NotFound, "the store knows no such upload")
        .at("url", url)
        .at(REASON, NO_UPLOAD)
        .advise("look whether the object is there; otherwise begin the upload anew")
}

/// Returns true if an error says that an upload is lost.
pub(crate) fn is_no_upload(error: &Error) -> bool {
    error.place(REASON) == Some(NO_UPLOAD)
}

/// Returns the error of an object that is larger than it may be.
pub(crate) fn too_large(url: &str, limit: usize) -> Error {
    Error::new(ErrorKind::Corrupt, "the object is larger than its kind can be")
        .at("url", url)
        .at("limit", limit)
        .advise("look what wrote it; remove it if it is no longer needed")
}

/// Returns the error of a listing that is too long.
pub(crate) fn too_many(folder: &str) -> Error {
    Error::new(ErrorKind::Full, "the folder holds too many objects")
        .at("url", folder)
        .at("limit", LISTED_MAX)
        .advise("move some of them to another folder")
}

/// Refuses parts that some store would refuse at the end of an upload.
pub(crate) fn check_part_bytes(url: &str, part_bytes: u64) -> Result<()> {
    if part_bytes >= PART_BYTES_MIN {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Invalid, "the parts of an upload are too small")
        .at("url", url)
        .at("part_bytes", part_bytes)
        .at("least", PART_BYTES_MIN))
}

/// Refuses what no store takes as a part.
pub(crate) fn check_part(url: &str, number: u32, bytes: &Bytes) -> Result<()> {
    if number < PARTS_MAX && !bytes.is_empty() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Invalid, "invalid part of an upload")
        .at("url", url)
        .at("part", number)
        .at("len", bytes.len())
        .at("parts", PARTS_MAX))
}

/// Refuses parts that make no object: none, or too many.
pub(crate) fn check_parts(url: &str, parts: &[PartTag]) -> Result<()> {
    if (1..=PARTS_MAX as usize).contains(&parts.len()) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Invalid, "an upload has no part, or too many")
        .at("url", url)
        .at("parts", parts.len())
        .advise("write an empty object as a whole"))
}
