//! Publication of a checkpoint: receipts of all files, the manifest, `.metadata` last.
//!
//! The store is the meeting point. The daemon with `.metadata` waits for the receipts of exactly
//! the files that the commit names, whichever node uploads them. Until `.metadata` is there, no
//! reader sees anything of the checkpoint.

use std::time::Duration;

use bytes::Bytes;
use forebay_checkpoint::{
    FileId, LEFTOVER, MANIFEST, Manifest, Progress, Publication, Receipt, Record, Step,
    is_leftover, object_url, receipt_name,
};
use forebay_error::{Error, ErrorKind, Result, shown};
use forebay_source::{EXISTS, Overwrite, REASON, Sink};
use futures::{FutureExt, StreamExt, TryStreamExt};

use crate::Inner;
use crate::clock::now_ms;
use crate::lanes::Lane;
use crate::load::{METADATA_MAX, manifest_of, visible_manifest};
use crate::names::{exists, unfinished};
use crate::registry::Tracked;

/// Largest receipt: that of the largest file, whose checksums take 100 MiB as text.
const RECEIPT_MAX: usize = 128 << 20;

/// Receipts asked for at once.
const ASKED_AT_ONCE: usize = 16;

/// Time between looks for receipts of other nodes: a fraction of the time of an upload.
const LOOKS: Duration = Duration::from_secs(2);

impl Inner {
    /// Publishes the checkpoint whose `.metadata` this file is.
    ///
    /// # Errors
    /// Those of the store; `Invalid` if it can never be published.
    pub(crate) async fn publish(&self, tracked: &Tracked) -> Result<()> {
        let record = tracked.record();
        let sink = self.sink(&record.url, &tracked.options())?;
        let mut publication = Publication::new(&record)?;
        let (mut alone, mut named) = (None, None);
        loop {
            match publication.next(now_ms()) {
                Step::Await(missing) => {
                    self.check_way(&*sink, &record).await?;
                    for receipt in self.receipts(&*sink, &record.url, &missing).await? {
                        publication.note_receipt(receipt)?;
                    }
                    if publication.missing().next().is_some() {
                        self.await_receipts(tracked, &record).await?;
                    }
                }
                Step::PutManifest(manifest) => {
                    // Two saves of one URL must not get in each other's way.
                    let place = object_url(&record.url, &record.name);
                    alone = Some(self.places.lock(&place).await);
                    self.check_age(&*sink, &record).await?;
                    named = Some(manifest.clone());
                    self.put_manifest(&*sink, tracked, manifest).await?;
                    publication.note_manifest()?;
                }
                Step::PutMetadata => {
                    if let Some(named) = &named {
                        self.check_files(&*sink, tracked, named).await?;
                    }
                    self.put_metadata(&*sink, tracked, &record).await?;
                    self.check_manifest(&*sink, &record).await?;
                    publication.note_metadata()?;
                }
                Step::Done => break,
            }
        }
        let url = shown(&record.url);
        tracing::info!(
            url,
            files = record.commit.iter().map(|all| all.ids.len()).sum::<usize>(),
            "published a checkpoint"
        );
        self.counts.published.add(1);
        self.note_published(&record).await?;
        drop(alone);
        self.remove_replaced(tracked).await?;
        self.tidy(&record.url).await;
        Ok(())
    }

    async fn receipts(
        &self,
        sink: &dyn Sink,
        url: &str,
        missing: &[FileId],
    ) -> Result<Vec<Receipt>> {
        let ask = |id: &FileId| {
            let place = object_url(url, receipt_name(*id));
            let asked = async move {
                let found = sink.get(&place, RECEIPT_MAX).await?;
                let found = found.map(|bytes| Receipt::decode(&bytes)).transpose();
                found.map_err(|error| error.at("url", place))
            };
            asked.boxed()
        };
        let asked: Vec<_> = missing.iter().map(ask).collect();
        let found: Vec<_> =
            futures::stream::iter(asked).buffer_unordered(ASKED_AT_ONCE).try_collect().await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// Fails if a checkpoint is visible that this one may not replace, or drops this one if that is
    /// later. Receipts need not be waited for then.
    async fn check_way(&self, sink: &dyn Sink, record: &Record) -> Result<()> {
        self.check_age(sink, record).await?;
        let place = object_url(&record.url, &record.name);
        let is_in_the_way = !replaces(record)
            && sink.head(&place).await?.is_some()
            && !self.is_put(sink, record).await?;
        if is_in_the_way { Err(exists(&record.url)) } else { Ok(()) }
    }

    /// Waits until receipts may have come.
    async fn await_receipts(&self, tracked: &Tracked, record: &Record) -> Result<()> {
        if tracked.is_removed().await {
            return Err(
                Error::new(ErrorKind::Closed, "the save was removed").at("url", &record.url)
            );
        }
        if is_leftover(record.staged_at_ms, now_ms()) {
            let what = "files of a checkpoint were never uploaded by other nodes";
            return Err(Error::new(ErrorKind::Invalid, what)
                .at("url", &record.url)
                .at("hours", LEFTOVER.as_secs() / 3600)
                .advise("look at the daemons of the other ranks; the checkpoint stays invisible"));
        }
        // An upload of this node tells at once.
        let mut changed = self.registry.subscribe();
        drop(tokio::time::timeout(LOOKS, changed.changed()).await);
        Ok(())
    }

    /// Puts the manifest, unless another checkpoint is in the way.
    async fn put_manifest(
        &self,
        sink: &dyn Sink,
        tracked: &Tracked,
        mut manifest: Manifest,
    ) -> Result<()> {
        let record = tracked.record();
        let place = object_url(&record.url, MANIFEST);
        if self.is_put(sink, &record).await? {
            // Before a crash.
            return Ok(());
        }
        let before = visible_manifest(sink, &record.url).await?;
        let is_visible = sink.head(&object_url(&record.url, &record.name)).await?.is_some();
        let replaces = replaces(&record);
        if is_visible && !replaces {
            return Err(exists(&record.url));
        }
        if let Some(before) = before.filter(|_| replaces) {
            let keys = forebay_checkpoint::replaced(&before, &manifest);
            self.registry.note_replaced(tracked, keys).await?;
            manifest.before = Some(Box::new(before)).filter(|_| is_visible);
        }
        match sink.put(&place, manifest.encode()?.into(), overwrite(&record)).await {
            Ok(_) => Ok(()),
            Err(error) if error.place(REASON) == Some(EXISTS) => Err(unfinished(&record.url)),
            Err(error) => Err(error),
        }
    }

    /// Returns true if the manifest in the store is that of this attempt.
    async fn is_put(&self, sink: &dyn Sink, record: &Record) -> Result<bool> {
        let there = manifest_of(sink, &record.url).await?;
        Ok(there.is_some_and(|there| there.attempt == record.id))
    }

    /// Fails if an object is not that of the manifest any more, which is taken back then: it is in
    /// the way of others, and nothing is visible by it.
    async fn check_files(
        &self,
        sink: &dyn Sink,
        tracked: &Tracked,
        named: &Manifest,
    ) -> Result<()> {
        let record = tracked.record();
        let checked = self.check_objects(sink, (&record.url, &tracked.options()), named).await;
        let is_wrong = checked.as_ref().is_err_and(|error| error.kind() == ErrorKind::Invalid);
        if is_wrong && !replaces(&record) && self.is_put(sink, &record).await? {
            sink.delete(&object_url(&record.url, MANIFEST)).await?;
        }
        checked
    }

    /// Fails if another node put its manifest meanwhile: then the next attempt decides anew.
    async fn check_manifest(&self, sink: &dyn Sink, record: &Record) -> Result<()> {
        match self.is_put(sink, record).await? {
            true => Ok(()),
            false => {
                let what = "another save of this checkpoint is published at the same time";
                Err(Error::new(ErrorKind::Unavailable, what).at("url", &record.url))
            }
        }
    }

    async fn put_metadata(
        &self,
        sink: &dyn Sink,
        tracked: &Tracked,
        record: &Record,
    ) -> Result<()> {
        let place = object_url(&record.url, &record.name);
        if record.len > METADATA_MAX as u64 {
            return Err(Error::new(ErrorKind::Invalid, "the checkpoint's .metadata is too large")
                .at("url", place)
                .at("bytes", record.len)
                .at("limit", METADATA_MAX));
        }
        let bytes = self.whole(tracked, record, &self.lanes.of(&sink.server(&place))).await?;
        match sink.put(&place, bytes.clone(), overwrite(record)).await {
            Ok(_) => Ok(()),
            Err(error) if error.place(REASON) == Some(EXISTS) => {
                // Put before a crash, or another attempt's.
                let there = sink.get(&place, METADATA_MAX);
                match there.await? {
                    Some(there) if there == bytes => Ok(()),
                    _ => Err(exists(&record.url)),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Reads a small file as a whole, compared block by block.
    async fn whole(&self, tracked: &Tracked, record: &Record, lane: &Lane) -> Result<Bytes> {
        let mut bytes = Vec::new();
        let step = forebay_checkpoint::BLOCK_BYTES;
        for at in (0..record.len).step_by(usize::try_from(step).unwrap_or(usize::MAX)) {
            let len = step.min(record.len - at);
            bytes.extend_from_slice(&self.part(tracked, record, lane, (at, len)).await?);
        }
        Ok(bytes.into())
    }

    /// Notes that the files of a checkpoint on this node are published.
    async fn note_published(&self, metadata: &Record) -> Result<()> {
        let at_ms = metadata.staged_at_ms;
        let ids = metadata.commit.iter().flat_map(|commit| &commit.ids);
        for id in ids.chain([&metadata.id]) {
            if let Some(file) = self.registry.get(*id) {
                self.registry.note(&file, Progress::Published { at_ms }).await?;
            }
        }
        Ok(())
    }
}

/// Returns true for a commit that replaces a published checkpoint.
pub(crate) fn replaces(metadata: &Record) -> bool {
    metadata.commit.as_ref().is_some_and(|commit| commit.overwrite)
}

fn overwrite(metadata: &Record) -> Overwrite {
    if replaces(metadata) { Overwrite::Allowed } else { Overwrite::Rejected }
}
