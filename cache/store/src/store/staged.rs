//! Files of checkpoints: staged on a tier, durable before anyone hears of it, read back for uploads
//! and restores.
//!
//! The store keeps bytes and an opaque record of each file. The record's meaning belongs to the
//! layer that uploads.

use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use forebay_source::{Options, Rank, Sink, Source};
use forebay_uring::{Arena, DiskFile, LentSpan, Span};

use super::Store;
use crate::tier::Tier;

/// A file of a checkpoint on a tier. Cheap to clone.
#[derive(Clone)]
pub struct StagedFile {
    tier: Tier,
    id: String,
    file: DiskFile,
}

/// A file that was staged before this daemon began.
pub struct FoundStagedFile {
    /// The file.
    pub file: StagedFile,
    /// Record that it was sealed with last.
    pub record: Vec<u8>,
}

impl Store {
    /// Creates a file on the fastest disk tier that has room for `bytes`, and evicts shards that
    /// nobody reads for it. `tiers`: names of the tiers it may use; empty: any. `id`: 32
    /// hexadecimal digits.
    ///
    /// # Errors
    /// `Full` if no tier has room; `Invalid` for an identity in use and without a disk tier; those
    /// of the devices.
    pub async fn stage(&self, id: &str, bytes: u64, tiers: &[String]) -> Result<StagedFile> {
        let is_allowed =
            |tier: &&Tier| tiers.is_empty() || tiers.iter().any(|name| name == tier.name());
        let mut failed = None;
        for tier in self.inner.tiers.iter().filter(is_allowed).filter(|tier| tier.may_stage()) {
            match tier.stage(id, bytes).await {
                Ok(file) => {
                    let (tier, id) = (tier.clone(), id.to_owned());
                    return Ok(StagedFile { tier, id, file });
                }
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or_else(|| {
            Error::new(ErrorKind::Unavailable, "no disk tier takes checkpoints now").advise(
                "look at `forebay tier ls`; checkpoints need a tier with a path and a key that \
                     lasts, if it is encrypted",
            )
        }))
    }

    /// Returns the files that are staged, with their records. A file whose record cannot be read
    /// is logged and left alone.
    ///
    /// # Errors
    /// If a tier cannot be listed, for the tiers that fail.
    pub async fn staged(&self) -> (Vec<FoundStagedFile>, Vec<Error>) {
        let (mut found, mut failed) = (Vec::new(), Vec::new());
        for tier in self.inner.tiers.iter().filter(|tier| tier.is_readable()) {
            let names = match tier.staged().await {
                Ok(names) => names,
                Err(error) => {
                    failed.push(error);
                    continue;
                }
            };
            for id in names {
                let opened =
                    async { Ok((tier.read_record(&id).await?, tier.open_staged(&id).await?)) };
                match opened.await {
                    Ok((record, file)) => {
                        let file = StagedFile { tier: tier.clone(), id, file };
                        found.push(FoundStagedFile { file, record });
                    }
                    Err(error) => failed.push(error),
                }
            }
        }
        (found, failed)
    }

    /// Bytes of all staged files.
    #[must_use]
    pub fn staged_bytes(&self) -> u64 {
        self.inner.tiers.iter().map(Tier::staged_bytes).sum()
    }

    /// Returns the way to write below a URL, as far as the rules of sources allow this client to
    /// reach it. The caller has checked the rules for writing.
    ///
    /// # Errors
    /// As [`forebay_source::Sources::sink`].
    pub fn sink(&self, url: &str, options: &Options) -> Result<Arc<dyn Sink>> {
        self.inner.sources.sink(url, options, self.client.as_ref())
    }

    /// Returns the source of an object that is no shard.
    ///
    /// # Errors
    /// As [`forebay_source::Sources::open_for`].
    pub fn origin(&self, url: &str, options: &Options) -> Result<Arc<dyn Source>> {
        self.inner.sources.open_for(url, options, self.client.as_ref())
    }

    /// Rank of what a client waits for.
    #[must_use]
    pub fn rank_now(&self) -> Rank {
        Rank::now(self.owner)
    }

    /// Memory for blocks on their way to a client: the frames of fills.
    #[must_use]
    pub fn frames(&self) -> &Arena {
        &self.inner.shared.frames
    }
}

impl StagedFile {
    /// Identity of the file.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Name of its tier.
    #[must_use]
    pub fn tier(&self) -> &str {
        self.tier.name()
    }

    /// Takes room for `bytes` more, where it has room for `from` so far.
    ///
    /// # Errors
    /// `Full` if there is none; those of the device.
    pub async fn grow(&self, from: u64, bytes: u64) -> Result<()> {
        self.tier.grow_staged((&self.id, &self.file), from, bytes).await
    }

    /// Writes a client's bytes at an offset, a multiple of 4 KiB.
    ///
    /// # Errors
    /// `Full` if the disk has no space; those of the device.
    pub async fn write(&self, at: u64, from: LentSpan) -> Result<()> {
        self.tier.write_staged(&self.file, at, from).await
    }

    /// Writes the daemon's own bytes at an offset, a multiple of 4 KiB.
    ///
    /// # Errors
    /// As [`StagedFile::write`].
    pub async fn write_copy(&self, at: u64, from: Span) -> Result<()> {
        self.tier.write_staged_copy(&self.file, at, from).await
    }

    /// Makes the file durable and visible, cut to `len` bytes, with this record.
    ///
    /// # Errors
    /// Those of the device.
    pub async fn seal(&self, len: u64, record: Vec<u8>) -> Result<()> {
        self.tier.seal_staged((&self.id, &self.file), len, record).await
    }

    /// Replaces the record.
    ///
    /// # Errors
    /// Those of the device.
    pub async fn save_record(&self, record: Vec<u8>) -> Result<()> {
        self.tier.save_record(&self.id, record).await
    }

    /// Reads the first `len` bytes of a span from an offset, a multiple of 4 KiB.
    ///
    /// # Errors
    /// Those of the device; `Corrupt` if the file is shorter.
    pub async fn read(&self, at: u64, into: Span, len: usize) -> Result<Span> {
        self.tier.read_staged(&self.file, at, into, len).await
    }

    /// Reads `len` bytes from an offset, a multiple of 4 KiB, into a client's memory.
    ///
    /// # Errors
    /// As [`StagedFile::read`].
    pub async fn read_lent(&self, at: u64, into: LentSpan, len: usize) -> Result<()> {
        self.tier.read_staged_lent(&self.file, at, into, len).await
    }

    /// Removes the file and frees its room.
    ///
    /// # Errors
    /// Those of the device; then the file keeps its room.
    pub async fn remove(&self) -> Result<()> {
        self.tier.remove_staged(&self.id).await
    }
}
