//! Upload of a staged file: parts that are read back and compared, a journal, a receipt.
//!
//! A file is read from the tier and each block is compared with the checksum that its writer took,
//! before a byte of it leaves the node. The record on the tier is the journal: an upload goes on
//! after a restart with the parts that the store has. A failure never ends an upload, unless its
//! bytes are damaged: it is shown, and tried again later.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use bytes::Bytes;
use forebay_checkpoint::{
    BLOCK_BYTES, Progress, Receipt, Record, object_url, part_bytes, receipt_name,
};
use forebay_error::{Error, ErrorKind, Result, shown};
use forebay_shard::checksum::crc32c;
use forebay_source::{NO_UPLOAD, Overwrite, PartTag, REASON, Sink, Tag, UploadId};
use forebay_uring::Frozen;
use futures::{FutureExt, StreamExt, TryStreamExt};

use crate::Inner;
use crate::clock::now_ms;
use crate::lanes::{Lane, PART_MEMORY};
use crate::names::UNCOMMITTED;
use crate::registry::Tracked;

/// Parts in flight of all uploads: four of 16 MiB fill 10 Gbit/s at 50 ms.
const PARTS_AT_ONCE: usize = 4;

/// Largest part: all the memory of a store. Files up to 625 GiB have smaller ones.
const PART_MAX: u64 = PART_MEMORY as u64;

/// Parts after which the journal is written. A crash uploads as many again, at most.
const JOURNALLED: usize = 16;

/// Waits between attempts of an upload that fails: the store recovers within seconds mostly, and
/// an hour without it costs sixty requests.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Way to the object that a file becomes.
#[derive(Clone, Copy)]
struct Target<'a> {
    sink: &'a dyn Sink,
    lane: &'a Lane,
    place: &'a str,
}

/// Bytes of a span as a request's body.
struct Body(Frozen);

impl AsRef<[u8]> for Body {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Inner {
    /// Brings a file to the store, and the checkpoint into sight if the file is its `.metadata`.
    pub(crate) async fn bring(&self, tracked: &Tracked) {
        let mut waits = ExponentialBuilder::new()
            .with_min_delay(RETRY.0)
            .with_max_delay(RETRY.1)
            .without_max_times()
            .with_jitter()
            .build();
        loop {
            // This try is the one that was asked for until now.
            let _: Option<()> = tracked.retry.notified().now_or_never();
            let asked = tracked.asked();
            let Err(error) = self.try_to_bring(tracked).await else { return };
            if tracked.is_removed().await {
                if tracked.is_cancelled() {
                    self.undo(tracked).await;
                }
                return;
            }
            let record = tracked.record();
            if error.place(REASON) == Some(UNCOMMITTED) {
                tracked.await_commit(|| self.commit_of(&record).is_some()).await;
                continue;
            }
            let (url, name) = (shown(&record.url), record.name.as_str());
            let (job, tenant) = (&record.job, record.tenant.as_deref());
            tracing::warn!(url, name, job, tenant, %error, "a checkpoint's file is not uploaded yet");
            if error.kind() == ErrorKind::Corrupt {
                let failed = Progress::Failed { reason: error.to_string() };
                let is_known = matches!(record.progress, Progress::Failed { .. });
                if !is_known && let Err(error) = self.registry.note(tracked, failed).await {
                    tracing::warn!(url, name, %error, "failed to note that a file is damaged");
                }
                self.abandon_upload(&record, &tracked.options()).await;
                self.registry.note_trouble(tracked, tracked.asked(), error);
                return;
            }
            let is_final = error.kind() == ErrorKind::Invalid;
            if !self.registry.note_trouble(tracked, asked, with_advice(error)) {
                continue;
            }
            let wait = waits.next().unwrap_or(RETRY.1);
            match is_final {
                // Only somebody's request can help.
                true => tracked.retry.notified().await,
                false => drop(tokio::time::timeout(wait, tracked.retry.notified()).await),
            }
        }
    }

    async fn try_to_bring(&self, tracked: &Tracked) -> Result<()> {
        let record = tracked.record();
        match &record.progress {
            Progress::Published { .. } => return self.remove_replaced(tracked).await,
            Progress::Failed { reason } => {
                return Err(Error::new(ErrorKind::Corrupt, reason.clone())
                    .at("url", object_url(&record.url, &record.name)));
            }
            Progress::Uploaded { .. } => {}
            // Its bytes are put last, by the publication.
            _ if record.commit.is_some() => {}
            Progress::Staged | Progress::Uploading { .. } => {
                self.saves.pass().await;
                let Some(tag) = self.upload(tracked).await? else { return Ok(()) };
                let at_ms = now_ms();
                if !record.is_lone {
                    self.put_receipt(tracked, &tag, at_ms).await?;
                }
                let uploaded = Progress::Uploaded { tag: tag.as_str().to_owned(), at_ms };
                self.registry.note(tracked, uploaded).await?;
            }
        }
        match record.commit.is_some() {
            true => self.publish(tracked).await,
            false => Ok(()),
        }
    }

    async fn put_receipt(&self, tracked: &Tracked, tag: &Tag, at_ms: u64) -> Result<()> {
        let record = tracked.record();
        let sink = self.sink(&record.url, &tracked.options())?;
        let receipt = Receipt {
            id: record.id,
            name: record.name.clone(),
            len: record.len,
            blocks: record.blocks.clone(),
            tag: tag.as_str().to_owned(),
            uploaded_at_ms: at_ms,
        };
        let place = object_url(&record.url, receipt_name(record.id));
        sink.put(&place, receipt.encode()?.into(), Overwrite::Allowed).await?;
        Ok(())
    }

    /// Uploads the bytes of a file; none if a later file of its own takes its place.
    async fn upload(&self, tracked: &Tracked) -> Result<Option<Tag>> {
        let record = tracked.record();
        let place = object_url(&record.url, &record.name);
        // Two versions of an object must not arrive in the wrong order.
        let _alone = self.places.lock(&place).await;
        if record.is_lone && self.is_superseded(&record) {
            self.registry.remove(tracked).await?;
            self.abandon_upload(&record, &tracked.options()).await;
            return Ok(None);
        }
        let sink = self.sink(&record.url, &tracked.options())?;
        let lane = self.lanes.of(&sink.server(&place));
        let _turn = lane.turn().await?;
        let _held = self.hold_name(&*sink, &record, &place).await?;
        let to = Target { sink: &*sink, lane: &lane, place: &place };
        self.put_bytes(tracked, &record, &to).await.map(Some)
    }

    /// Returns true if a later file of its own is to replace this one.
    fn is_superseded(&self, of: &Record) -> bool {
        let is_later = |record: &Record| {
            record.is_lone
                && (&record.url, &record.name) == (&of.url, &of.name)
                && (record.staged_at_ms, record.id) > (of.staged_at_ms, of.id)
        };
        !self.registry.select(is_later).is_empty()
    }

    async fn put_bytes(&self, tracked: &Tracked, record: &Record, to: &Target<'_>) -> Result<Tag> {
        let Target { sink, lane, place } = *to;
        if record.len <= part_bytes(record.len) {
            let bytes = self.part(tracked, record, lane, (0, record.len)).await?;
            self.pay(record, record.len).await;
            let tag = sink.put(place, bytes, Overwrite::Allowed).await?;
            self.counts.uploaded.add(record.len);
            return Ok(tag);
        }
        let done = self.upload_in_parts(tracked, to).await;
        match done {
            Err(error) if error.place(REASON) == Some(NO_UPLOAD) => {
                self.registry.note(tracked, Progress::Staged).await?;
                Err(Error::new(ErrorKind::Unavailable, "the store lost an upload: it begins anew")
                    .at("url", place))
            }
            done => done,
        }
    }

    async fn upload_in_parts(&self, tracked: &Tracked, to: &Target<'_>) -> Result<Tag> {
        let Target { sink, lane, place } = *to;
        let record = tracked.record();
        let (upload, part, mut tags) = match record.progress.clone() {
            Progress::Uploading { upload, part_bytes, parts } => {
                let tags: Vec<_> = parts.into_iter().map(PartTag::new).collect();
                (UploadId::new(upload), part_bytes, tags)
            }
            _ => {
                let part = part_bytes(record.len);
                if part > PART_MAX {
                    return Err(Error::new(
                        ErrorKind::Invalid,
                        "the file needs parts beyond memory",
                    )
                    .at("url", place)
                    .at("len", record.len)
                    .advise("save it in files of 600 GiB at most"));
                }
                (sink.begin_upload(place, part).await?, part, Vec::new())
            }
        };
        let count = record.len.div_ceil(part);
        let journal = |tags: &[PartTag]| Progress::Uploading {
            upload: upload.as_str().to_owned(),
            part_bytes: part,
            parts: tags.iter().map(|tag| tag.as_str().to_owned()).collect(),
        };
        if tags.is_empty()
            && let Err(error) = self.registry.note(tracked, journal(&tags)).await
        {
            // Nobody else knows of it.
            sink.abort(place, &upload).await?;
            return Err(error);
        }
        let from = tags.len() as u64;
        let parts: Vec<_> = (from..count)
            .map(|number| {
                let (upload, record) = (&upload, &record);
                let work = async move {
                    let len = part.min(record.len - number * part);
                    let bytes = self.part(tracked, record, lane, (number * part, len)).await?;
                    self.pay(record, len).await;
                    let number = u32::try_from(number).unwrap_or(u32::MAX);
                    let tag = sink.upload_part(place, upload, number, bytes).await?;
                    self.counts.uploaded.add(len);
                    Ok(tag)
                };
                work.boxed()
            })
            .collect();
        let mut parts = futures::stream::iter(parts).buffered(PARTS_AT_ONCE);
        while let Some(tag) = parts.try_next().await? {
            tags.push(tag);
            if tags.len() % JOURNALLED == 0 {
                self.registry.note(tracked, journal(&tags)).await?;
            }
        }
        // Nothing was there when the upload began; another node may have published since.
        if !record.is_lone && sink.head(place).await?.is_some() {
            self.check_name(sink, &record).await?;
        }
        sink.complete(place, &upload, &tags).await
    }

    /// Reads a part back, and compares each block of it.
    pub(crate) async fn part(
        &self,
        tracked: &Tracked,
        record: &Record,
        lane: &Lane,
        (at, len): (u64, u64),
    ) -> Result<Bytes> {
        let Ok(bytes) = usize::try_from(len) else { return Ok(Bytes::new()) };
        if bytes == 0 {
            return Ok(Bytes::new());
        }
        let span = self.lanes.lease(lane, bytes).await?;
        let span = tracked.file.read(at, span, bytes).await?;
        // CPU time of a part: milliseconds, at the speed of memory.
        let first = at / BLOCK_BYTES;
        for (number, block) in (first..).zip(span[..bytes].chunks(BLOCK_BYTES as usize)) {
            let wanted = usize::try_from(number).ok().and_then(|at| record.blocks.get(at));
            if wanted != Some(&crc32c(block)) {
                let what = "a staged file differs from what was saved: it is not uploaded";
                return Err(Error::new(ErrorKind::Corrupt, what)
                    .at("url", object_url(&record.url, &record.name))
                    .at("tier", tracked.file.tier())
                    .at("offset", number * BLOCK_BYTES)
                    .advise("check the disk and the memory of the trainer; save again"));
            }
        }
        Ok(Bytes::from_owner(Body(span.freeze().head(bytes))))
    }

    /// Waits until the rule's bandwidth allows these bytes.
    async fn pay(&self, record: &Record, bytes: u64) {
        if let Some(rate) = self.rate(&record.url) {
            rate.take(bytes).await;
        }
    }
}

/// The error, with the way to supply what only a client has.
fn with_advice(error: Error) -> Error {
    if error.kind() != ErrorKind::PermissionDenied {
        return error;
    }
    let resume = "`forebay checkpoint push --resume URL` supplies those of its environment";
    let advice = match error.advice() {
        Some(advice) => format!("{advice}; {resume}"),
        None => resume.to_owned(),
    };
    error.advise(advice)
}
