//! Removal of a checkpoint that somebody asks for: files that wait on this node, and what is
//! published.

use std::sync::Arc;

use forebay_checkpoint::{MANIFEST, Manifest, Progress, Record, object_url, receipt_name};
use forebay_error::{Error, ErrorKind, Result, shown};
use forebay_source::{Options, Overwrite, Sink, UploadId};
use forebay_wire::checkpoint::{Place, Removed};
use futures::{FutureExt, StreamExt, TryStreamExt};

use crate::load::{is_published, manifest_of};
use crate::names::is_anothers;
use crate::registry::Tracked;
use crate::{Checkpoints, Inner, checked_url};

/// Objects removed at once.
const REMOVED_AT_ONCE: usize = 16;

impl Checkpoints {
    /// Removes a checkpoint, or a file of its own: what waits on this node, then what is in the
    /// store. With `dry_run` it only counts.
    ///
    /// # Errors
    /// `NotFound` if there is nothing of it; `Invalid` for a checkpoint that Forebay did not
    /// publish; those of the store, where a later call goes on.
    pub async fn remove(&self, place: Place, dry_run: bool) -> Result<Removed> {
        self.inner.resumed.wait().await;
        let (url, options) = (checked_url(&place.url)?, Options::from(place.origin));
        let sink = self.inner.sink(&url, &options)?;
        let files = self.inner.registry.select(|record| record.named_url() == url);
        let has_nothing_there = |file: &Arc<Tracked>| file.record().progress == Progress::Staged;
        let manifest = match manifest_of(&*sink, &url).await {
            // A bucket that does not exist, say, must not keep them here for ever.
            Err(_) if !files.is_empty() && files.iter().all(has_nothing_there) => None,
            found => found?,
        };
        if files.is_empty() && manifest.is_none() {
            return Err(nothing(&*sink, &url).await?);
        }
        let mut removed = Removed::default();
        for file in &files {
            let record = file.record();
            removed.local_files += 1;
            removed.local_bytes += record.len;
            let is_named = manifest.as_ref().is_some_and(|all| has(all, &record));
            if is_stored(&record) && !is_named {
                removed.stored_files += 1;
                removed.stored_bytes += record.len;
            }
        }
        for entry in manifest.iter().flat_map(Manifest::entries) {
            removed.stored_files += 1;
            removed.stored_bytes += entry.len;
        }
        if dry_run {
            return Ok(removed);
        }
        if let Some(manifest) = &manifest {
            // Out of sight before the first byte goes.
            sink.delete(&object_url(&url, &manifest.metadata.name)).await?;
        }
        for file in &files {
            self.inner.registry.cancel(file).await?;
            self.inner.clear(&*sink, &file.record()).await?;
        }
        if let Some(manifest) = &manifest {
            self.inner.remove_published(&*sink, &url, manifest).await?;
        }
        Ok(removed)
    }
}

impl Inner {
    /// Removes a published checkpoint: out of sight first, then what its manifest names.
    pub(crate) async fn remove_published(
        &self,
        sink: &dyn Sink,
        url: &str,
        manifest: &Manifest,
    ) -> Result<()> {
        let keys = forebay_checkpoint::removal(manifest);
        let (Some((first, rest)), Some(last)) = (keys.split_first(), keys.last()) else {
            return Ok(());
        };
        sink.delete(&object_url(url, first)).await?;
        let between = &rest[..rest.len().saturating_sub(1)];
        remove_objects(sink, url, between).await?;
        sink.delete(&object_url(url, last)).await
    }

    /// Removes from the store what a file that was removed here has there.
    pub(crate) async fn clear(&self, sink: &dyn Sink, record: &Record) -> Result<()> {
        let place = object_url(&record.url, &record.name);
        // Two files for one object, or its upload, are not under way beside this.
        let _alone = self.places.lock(&place).await;
        match &record.progress {
            Progress::Uploading { .. } => abort_upload(sink, record).await,
            Progress::Uploaded { .. } | Progress::Published { .. } if record.commit.is_none() => {
                remove_objects(sink, &record.url, &keys_of(record)).await
            }
            _ => Ok(()),
        }
    }

    /// Aborts the upload of a file that will not be brought: its parts would stay in the store,
    /// where no list shows them.
    pub(crate) async fn abandon_upload(&self, record: &Record, options: &Options) {
        let aborted = match self.sink(&record.url, options) {
            Ok(sink) => abort_upload(&*sink, record).await,
            Err(error) => Err(error),
        };
        if let Err(error) = aborted {
            let (url, name) = (shown(&record.url), record.name.as_str());
            tracing::warn!(url, name, %error, "parts of an abandoned upload may stay in the store");
        }
    }

    /// Undoes the upload or the publication of a file that was removed in the midst of it.
    pub(crate) async fn undo(&self, tracked: &Tracked) {
        if let Err(error) = self.try_to_undo(tracked).await {
            let record = tracked.record();
            let (url, name) = (shown(&record.url), record.name.as_str());
            tracing::warn!(url, name, %error, "an object of a removed checkpoint may stay");
        }
    }

    async fn try_to_undo(&self, tracked: &Tracked) -> Result<()> {
        let record = tracked.record();
        let sink = self.sink(&record.url, &tracked.options())?;
        if record.commit.is_some() {
            return match manifest_of(&*sink, &record.url).await? {
                Some(manifest) if manifest.attempt == record.id => {
                    self.remove_published(&*sink, &record.url, &manifest).await
                }
                _ => Ok(()),
            };
        }
        let is_another = |other: &Record| {
            (&other.url, &other.name) == (&record.url, &record.name) && other.id != record.id
        };
        let place = object_url(&record.url, &record.name);
        let _alone = self.places.lock(&place).await;
        if !self.registry.select(is_another).is_empty() {
            // The object will be that of the later file.
            return Ok(());
        }
        let there = manifest_of(&*sink, &record.url).await?;
        let is_named =
            |key: &String| there.as_ref().is_some_and(|it| is_anothers(it, key, record.id));
        let gone: Vec<_> = keys_of(&record).into_iter().filter(|key| !is_named(key)).collect();
        remove_objects(&*sink, &record.url, &gone).await
    }

    /// Removes a save that was not published before a later one of the same URL.
    pub(crate) async fn remove_outdone(
        &self,
        sink: &dyn Sink,
        metadata: &Record,
        later: &Manifest,
    ) -> Result<()> {
        let url = shown(&metadata.url);
        tracing::info!(url, "drops a save: a later one of this checkpoint is published already");
        let ids = metadata.commit.iter().flat_map(|commit| &commit.ids).chain([&metadata.id]);
        for file in ids.filter_map(|id| self.registry.get(*id)) {
            let record = file.record();
            self.registry.remove(&file).await?;
            self.abandon_upload(&record, &file.options()).await;
            let is_named = |key: &String| later.entries().any(|entry| entry.name.as_str() == key);
            let gone: Vec<_> = keys_of(&record).into_iter().filter(|key| !is_named(key)).collect();
            remove_objects(sink, &record.url, &gone).await?;
        }
        Ok(())
    }

    /// Removes what nothing names since a checkpoint was replaced, as its writer asked; whatever
    /// stays is removed after the next start.
    pub(crate) async fn remove_replaced(&self, tracked: &Tracked) -> Result<()> {
        let record = tracked.record();
        let Some(commit) = record.commit.as_ref().filter(|commit| !commit.replaced.is_empty())
        else {
            return Ok(());
        };
        let sink = self.sink(&record.url, &tracked.options())?;
        let now = manifest_of(&*sink, &record.url).await?;
        // A later save may have taken names up again.
        let is_named = |key: &String| {
            now.iter().flat_map(Manifest::entries).any(|entry| entry.name.as_str() == key)
                || !self.registry.select(|one| is_later_at(one, &record, key)).is_empty()
        };
        let gone: Vec<_> = commit.replaced.iter().filter(|key| !is_named(key)).cloned().collect();
        remove_objects(&*sink, &record.url, &gone).await?;
        if let Some(ours) = now.filter(|now| now.attempt == record.id && now.before.is_some()) {
            // Readers need not look at two any more.
            let alone = Manifest { before: None, ..ours };
            let place = object_url(&record.url, MANIFEST);
            sink.put(&place, alone.encode()?.into(), Overwrite::Allowed).await?;
        }
        self.registry.note_replaced(tracked, Vec::new()).await
    }
}

/// Returns true for a file of a key that was saved after another one of its URL.
fn is_later_at(record: &Record, than: &Record, key: &str) -> bool {
    record.url == than.url && record.name.as_str() == key && record.staged_at_ms > than.staged_at_ms
}

/// Keys of a file's objects in the store: its bytes, and its receipt.
fn keys_of(record: &Record) -> [String; 2] {
    [record.name.to_string(), receipt_name(record.id)]
}

/// Aborts the upload of a file, if one is under way.
async fn abort_upload(sink: &dyn Sink, record: &Record) -> Result<()> {
    let Progress::Uploading { upload, .. } = &record.progress else { return Ok(()) };
    let place = object_url(&record.url, &record.name);
    sink.abort(&place, &UploadId::new(upload.clone())).await
}

/// Removes objects below a URL.
async fn remove_objects(sink: &dyn Sink, url: &str, keys: &[String]) -> Result<()> {
    let remove = |key: &String| {
        let place = object_url(url, key);
        async move { sink.delete(&place).await }.boxed()
    };
    let all: Vec<_> = keys.iter().map(remove).collect();
    futures::stream::iter(all).buffer_unordered(REMOVED_AT_ONCE).try_collect().await
}

/// Returns true if the manifest names this very file.
fn has(manifest: &Manifest, record: &Record) -> bool {
    manifest.entries().any(|entry| entry.id == record.id)
}

/// Returns true if an object of the file is in the store.
fn is_stored(record: &Record) -> bool {
    matches!(record.progress, Progress::Uploaded { .. } | Progress::Published { .. })
}

/// Makes the error for a URL with nothing of Forebay's.
async fn nothing(sink: &dyn Sink, url: &str) -> Result<Error> {
    Ok(match is_published(sink, url).await? {
        true => Error::new(ErrorKind::Invalid, "Forebay did not publish this checkpoint")
            .at("url", url)
            .advise("remove it with the tools of its store"),
        false => Error::new(ErrorKind::NotFound, "there is no such checkpoint").at("url", url),
    })
}
