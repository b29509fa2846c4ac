//! Names that files of other saves have. An object of a published checkpoint is replaced only once
//! a commit that asks for it is durable here, and only while this save is the latest.
//!
//! `Writer` draws names that nothing else has. A pushed folder keeps its own, so two pushes to one
//! URL meet in each object.

use std::sync::Arc;

use forebay_checkpoint::{BLOCK_BYTES, Entry, FileId, METADATA, Manifest, Record, object_url};
use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::checksum::crc32c;
use forebay_source::{EXISTS, Options, REASON, Sink};
use futures::{FutureExt, StreamExt, TryStreamExt};
use tokio::sync::OwnedRwLockReadGuard;

use crate::Inner;
use crate::load::{is_published, manifest_of, published_manifest};
use crate::publish::replaces;

/// Reason of an `Invalid`: nobody said yet if the file may replace another one.
pub(crate) const UNCOMMITTED: &str = "uncommitted";

/// Objects asked for at once.
const ASKED_AT_ONCE: usize = 16;

impl Inner {
    /// Looks before the first byte of a file goes to an object that is there, and holds the URL:
    /// this node publishes nothing else there meanwhile. Nothing is held for a new object.
    ///
    /// # Errors
    /// As [`Inner::check_name`].
    pub(crate) async fn hold_name(
        &self,
        sink: &dyn Sink,
        record: &Record,
        place: &str,
    ) -> Result<Option<OwnedRwLockReadGuard<()>>> {
        if record.is_lone || sink.head(place).await?.is_none() {
            return Ok(None);
        }
        let held = self.places.share(&object_url(&record.url, METADATA)).await;
        self.check_name(sink, record).await?;
        Ok(Some(held))
    }

    /// Looks if another save has the name of a file.
    ///
    /// # Errors
    /// `Invalid` if it is that of a published checkpoint, or of one that is being published, which
    /// the file's commit does not replace; with [`REASON`] = [`UNCOMMITTED`] before its commit is
    /// here. `Closed` if a later save is published: this one is dropped.
    pub(crate) async fn check_name(&self, sink: &dyn Sink, record: &Record) -> Result<()> {
        let manifest = manifest_of(sink, &record.url).await?;
        let is_visible = is_published(sink, &record.url).await?;
        let has = |of: &Manifest| is_anothers(of, record.name.as_str(), record.id);
        let is_taken = match &manifest {
            Some(of) => has(of) || of.before.as_deref().is_some_and(has),
            // Of another writer, whose files nobody knows.
            None => is_visible,
        };
        if !is_taken {
            return Ok(());
        }
        let Some(metadata) = self.commit_of(record) else {
            let what = "the object is a published checkpoint's: its commit is to say if it goes";
            return Err(Error::new(ErrorKind::Invalid, what)
                .at("url", object_url(&record.url, &record.name))
                .at(REASON, UNCOMMITTED));
        };
        match replaces(&metadata) {
            true => self.check_age(sink, &metadata).await,
            false if is_visible => Err(exists(&record.url)),
            false => Err(unfinished(&record.url)),
        }
    }

    /// Drops a save that is older than the visible checkpoint of its URL.
    ///
    /// # Errors
    /// `Closed` if it was dropped.
    pub(crate) async fn check_age(&self, sink: &dyn Sink, metadata: &Record) -> Result<()> {
        match published_manifest(sink, &metadata.url).await? {
            Some(later) if later.saved_at_ms > metadata.staged_at_ms => {
                self.remove_outdone(sink, metadata, &later).await?;
                let what = "a later save of this checkpoint is published already";
                Err(Error::new(ErrorKind::Closed, what).at("url", &metadata.url))
            }
            _ => Ok(()),
        }
    }

    /// Returns the `.metadata` here whose commit names a file.
    pub(crate) fn commit_of(&self, record: &Record) -> Option<Arc<Record>> {
        let names = |one: &Record| {
            let commit = one.commit.as_ref().filter(|_| one.url == record.url);
            commit.is_some_and(|commit| commit.ids.contains(&record.id))
        };
        self.registry.select(names).first().map(|file| file.record())
    }

    /// Fails if an object is not the file that a manifest names any more.
    ///
    /// # Errors
    /// `Invalid` if another save wrote there; those of the store.
    pub(crate) async fn check_objects(
        &self,
        sink: &dyn Sink,
        (url, options): (&str, &Options),
        manifest: &Manifest,
    ) -> Result<()> {
        let check = |entry: &Entry| {
            let (entry, place) = (entry.clone(), object_url(url, &entry.name));
            let checked = async move {
                let found = sink.head(&place).await?;
                let is_same = match &found {
                    Some(found) if entry.tag.as_deref() == Some(found.tag.as_str()) => true,
                    // The same bytes, put again; or a file system that numbers files by node.
                    Some(found) => {
                        found.len == entry.len && self.has_bytes(&place, options, &entry).await?
                    }
                    None => false,
                };
                if is_same { Ok(()) } else { Err(replaced(url, &entry)) }
            };
            checked.boxed()
        };
        let checked: Vec<_> = manifest.files.iter().map(check).collect();
        futures::stream::iter(checked).buffer_unordered(ASKED_AT_ONCE).try_collect().await
    }

    /// Returns true if an object has the bytes of an entry.
    async fn has_bytes(&self, place: &str, options: &Options, entry: &Entry) -> Result<bool> {
        let source = self.store.origin(place, options)?;
        let (stat, rank) = (source.stat(place).await?, self.store.rank_now());
        if stat.len != entry.len {
            return Ok(false);
        }
        for (number, wanted) in (0..).zip(&entry.blocks) {
            let start = number * BLOCK_BYTES;
            let len = usize::try_from(BLOCK_BYTES.min(entry.len - start)).unwrap_or(usize::MAX);
            let span = self.store.frames().lease(len).await?;
            let span = source.read_part(place, &stat, start, span, &rank).await?;
            if crc32c(&span[..len]) != *wanted {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Returns true if a manifest has a file of this name that is not this one.
pub(crate) fn is_anothers(manifest: &Manifest, name: &str, id: FileId) -> bool {
    manifest.entries().any(|entry| entry.name.as_str() == name && entry.id != id)
}

/// Returns the error of a save to a published checkpoint that it does not replace.
pub(crate) fn exists(url: &str) -> Error {
    Error::new(ErrorKind::Invalid, "a checkpoint is published there already")
        .at("url", url)
        .at(REASON, EXISTS)
        .advise(
            "save to another URL, or replace it: overwrite=True (`forebay checkpoint push \
             --overwrite`)",
        )
}

/// Returns the error for an attempt whose manifest is there, and whose `.metadata` is not.
pub(crate) fn unfinished(url: &str) -> Error {
    Error::new(ErrorKind::Invalid, "another save to this URL has not been published yet")
        .at("url", url)
        .at(REASON, EXISTS)
        .advise(
            "save to another URL; if the node of that save is lost, `forebay checkpoint rm`, or \
             a save that overwrites, clears the way",
        )
}

/// Returns the error for a file that another save replaced before it was published.
fn replaced(url: &str, entry: &Entry) -> Error {
    let what = "another save to this URL replaced a file of this one before it was published";
    Error::new(ErrorKind::Invalid, what)
        .at("url", url)
        .at("name", &entry.name)
        .advise("save again, to a URL of its own")
}
