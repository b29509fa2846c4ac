//! Writing side: a client's file, block by block, until it is staged.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_checkpoint::{
    Commit, FILE_BYTES_MAX, FileId, FileName, Progress, Record, block_count, object_url,
};
use forebay_error::{Error, ErrorKind, Result};
use forebay_source::Options;
use forebay_uring::{GRANULE, LentRegion};
use forebay_wire::checkpoint::{BLOCK, Block, Save};

use crate::clock::now_after_ms;
use crate::saves::UnderWay;
use crate::unsealed::Unsealed;
use crate::{Checkpoints, Inner, checked_url};

/// Bytes by which a file grows beyond its expected length, at most. It doubles before: few calls
/// for a large file, and little room held that a small one does not use.
const GROWTH: u64 = 256 << 20;

/// Client that saves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Writer {
    /// Tenant of its jobs.
    pub tenant: Option<String>,
    /// User id.
    pub user: u32,
}

/// A file that a client is writing. Dropped before it is sealed, it is removed.
pub struct Saving {
    inner: Arc<Inner>,
    file: Unsealed,
    draft: Draft,
    blocks: Mutex<BTreeMap<u64, (u64, u32)>>,
    /// Bytes of room; held while it grows.
    room: tokio::sync::Mutex<u64>,
    _under_way: UnderWay,
}

/// Facts for the record of a file that is not sealed yet.
struct Draft {
    id: FileId,
    url: String,
    name: FileName,
    is_lone: bool,
    job: String,
    writer: Writer,
    options: Options,
}

impl Checkpoints {
    /// Begins to save a file: takes its room before the first byte.
    ///
    /// # Errors
    /// `Invalid` for a place that nothing can be written to; `PermissionDenied` by the rules;
    /// `Full` if there is no room, or the rule's `max` is reached.
    pub async fn save(&self, save: Save, writer: Writer) -> Result<Saving> {
        self.inner.resumed.wait().await;
        let Save { place, id, expected, is_lone, job } = save;
        let url = checked_url(&place.url)?;
        let name = FileName::new(place.name)?;
        let options = Options::from(place.origin);
        let id = FileId::from_bytes(id);
        if expected > FILE_BYTES_MAX {
            return Err(too_large(expected));
        }
        // Rejects a place before room is made for it.
        self.inner.sink(&url, &options)?;
        let under_way = self.inner.saves.begin();
        let file = self.inner.stage(&url, id, expected).await?;
        Ok(Saving {
            inner: self.inner.clone(),
            file,
            draft: Draft { id, url, name, is_lone, job, writer, options },
            blocks: Mutex::default(),
            room: tokio::sync::Mutex::new(expected),
            _under_way: under_way,
        })
    }

    /// Makes a file durable, and begins to upload it.
    ///
    /// # Errors
    /// `Invalid` if blocks are missing; those of the device.
    pub async fn seal(&self, saving: Arc<Saving>, len: u64, commit: Option<Commit>) -> Result<()> {
        let record = saving.record(len, commit)?;
        let (bytes, options) = (record.encode()?, saving.draft.options.clone());
        let add = |file| {
            self.inner.counts.saved.add(record.len);
            self.inner.supply(&record.url, &options);
            self.inner.registry.add(file, record, options)
        };
        let tracked = saving.file.seal(len, bytes, add).await?;
        self.tasks.upload(&self.inner, tracked);
        Ok(())
    }
}

impl Saving {
    /// Writes a block from lent memory.
    ///
    /// # Errors
    /// `Invalid` for a block that is none of the file; `Full` if there is no room; those of the
    /// device.
    pub async fn write(&self, block: Block, lent: &LentRegion) -> Result<()> {
        let Block { number, memory, len, crc } = block;
        let start = number.checked_mul(BLOCK).filter(|start| *start < FILE_BYTES_MAX);
        let (Some(start), 1..=BLOCK) = (start, len) else {
            return Err(Error::new(ErrorKind::Invalid, "a block is none of the file")
                .at("block", number)
                .at("len", len));
        };
        // The file is cut to its length when it is sealed.
        let padded = len.next_multiple_of(GRANULE as u64);
        let span = || lent.span(memory..memory.saturating_add(padded));
        // Rejects memory that is none before room is made.
        span()?;
        self.inner.raise(&self.file.claim, start + len).await?;
        self.make_room(start + padded).await?;
        // A disk that others fill has less room than the tier may use.
        while let Err(error) = self.file.write(start, span()?).await {
            if error.kind() != ErrorKind::Full || !self.inner.free().await {
                return Err(error);
            }
        }
        match self.blocks().insert(number, (len, crc)) {
            None => Ok(()),
            Some(_) => Err(Error::new(ErrorKind::Invalid, "a block is written twice")
                .at("block", number)
                .at("name", &self.draft.name)),
        }
    }

    async fn make_room(&self, end: u64) -> Result<()> {
        let mut room = self.room.lock().await;
        let Some(need) = end.checked_sub(*room).filter(|need| *need > 0) else { return Ok(()) };
        let mut more = need.max((*room).min(GROWTH));
        while let Err(error) = self.file.grow(*room, more).await {
            match error.kind() {
                ErrorKind::Full if more > need => more = need,
                ErrorKind::Full if self.inner.free().await => {}
                _ => return Err(error),
            }
        }
        *room += more;
        Ok(())
    }

    /// URL of what becomes visible.
    #[must_use]
    pub fn url(&self) -> String {
        match self.draft.is_lone {
            true => object_url(&self.draft.url, &self.draft.name),
            false => self.draft.url.clone(),
        }
    }

    /// Returns true for a file that completes something: a file of its own, or a checkpoint's
    /// `.metadata`. Others are parts.
    #[must_use]
    pub fn completes(&self) -> bool {
        self.draft.is_lone || self.draft.name.is_metadata()
    }

    fn record(&self, len: u64, commit: Option<Commit>) -> Result<Record> {
        let blocks = self.blocks();
        let count = block_count(len);
        let is_whole = blocks.len() as u64 == count
            && (0..count).all(|number| {
                let wanted = BLOCK.min(len - number * BLOCK);
                blocks.get(&number).is_some_and(|(len, _)| *len == wanted)
            });
        if !is_whole {
            return Err(Error::new(ErrorKind::Invalid, "the file does not have all its blocks")
                .at("name", &self.draft.name)
                .at("len", len)
                .at("blocks", blocks.len()));
        }
        let Draft { id, url, name, is_lone, job, writer, options } = &self.draft;
        let is_same = |record: &Record| (&record.url, &record.name) == (url, name);
        let before = self.inner.registry.select(is_same);
        let last = before.iter().map(|file| file.record().staged_at_ms).max();
        Ok(Record {
            id: *id,
            url: url.clone(),
            name: name.clone(),
            is_lone: *is_lone,
            len,
            blocks: blocks.values().map(|(_, crc)| *crc).collect(),
            staged_at_ms: now_after_ms(last),
            job: job.clone(),
            tenant: writer.tenant.clone(),
            user: writer.user,
            endpoint: Some(options.without_secrets()),
            home: None,
            keeper: None,
            commit,
            progress: Progress::Staged,
        })
    }

    fn blocks(&self) -> MutexGuard<'_, BTreeMap<u64, (u64, u32)>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn too_large(bytes: u64) -> Error {
    Error::new(ErrorKind::Invalid, "the file is larger than stores take")
        .at("bytes", bytes)
        .at("limit", FILE_BYTES_MAX)
        .advise("save it in several files")
}
