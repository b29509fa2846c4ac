//! Target of a fill's parts.

use std::sync::{Arc, OnceLock};

use forebay_error::{Error, ErrorKind, Result};
use forebay_uring::{Arena, DiskFile, Engine, EnginePlace, Frozen, GRANULE};
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};

use super::{check_in_time, check_written};
use crate::blocks::Blocks;
use crate::device;
use crate::directory::{Directory, ShardName};

/// Target of a fill's parts.
pub(crate) enum Target {
    /// A file of a cache directory.
    Disk(DiskTarget),
    /// Memory: the frames themselves stay.
    Memory(Arc<Blocks>),
    /// None: the shard is read through, and only its index stays.
    Nowhere,
}

/// Data file of a shard; that of a small shard is created by its commit.
pub(crate) type DataFile = Arc<OnceCell<DiskFile>>;

/// A file of a cache directory, being written.
pub(crate) struct DiskTarget {
    pub(crate) engine: Engine,
    pub(crate) file: DataFile,
    pub(crate) directory: Arc<Directory>,
    pub(crate) name: ShardName,
    /// Permits of the disk to write a part.
    pub(crate) writes: Arc<Semaphore>,
    /// Memory to encrypt parts in, on an encrypted tier: the frames themselves are read meanwhile.
    pub(crate) bounce: Option<Arena>,
    /// Checksums of the parts that an earlier fill left here.
    pub(crate) here: Vec<Option<u32>>,
}

/// All bytes of a small shard, and the permit to write them.
pub(super) struct Permitted {
    bytes: Frozen,
    _permit: OwnedSemaphorePermit,
}

impl Permitted {
    /// Creates the file of the shard if it does not exist yet, and writes it. Readers see a new
    /// file once it is written. Blocks.
    pub(super) fn store(
        self,
        directory: &Directory,
        name: &ShardName,
        place: &EnginePlace,
        file: &DataFile,
    ) -> Result<()> {
        let new = match file.get() {
            Some(file) => file.clone(),
            None => directory.create_data(place, name, 0)?,
        };
        let len = self.bytes.len();
        check_written(0, len, place.write_frozen(&new, 0, self.bytes)?)?;
        // Set once: a shard has one fill.
        let _ = file.set(new);
        Ok(())
    }
}

/// Returns the file.
///
/// # Errors
/// `Invalid` if it is not created yet.
pub(super) fn opened(file: &DataFile) -> Result<&DiskFile> {
    let why = || Error::new(ErrorKind::Invalid, "the shard's file does not exist yet");
    file.get().ok_or_else(why)
}

impl DiskTarget {
    /// Runs blocking work on the directory on a blocking thread.
    pub(super) async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Directory, &ShardName) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (directory, name) = (self.directory.clone(), self.name.clone());
        let done = tokio::task::spawn_blocking(move || work(&directory, &name));
        device::answer(done).await?.map_err(|_| Error::shutting_down())?
    }

    /// Returns the file, after creating it with `len` bytes reserved if it does not exist yet, and
    /// if there is no `fault`.
    pub(super) async fn created(&self, len: u64, fault: Arc<OnceLock<Error>>) -> Result<&DiskFile> {
        let create = async || {
            let (place, fault) = (self.place().await?, fault.clone());
            self.on_disk(move |directory, name| {
                check_in_time(&fault)?;
                directory.create_data(&place, name, len)
            })
            .await
        };
        self.file.get_or_try_init(create).await
    }

    /// Returns the file.
    ///
    /// # Errors
    /// `Invalid` if it is not created yet.
    pub(super) fn opened(&self) -> Result<&DiskFile> {
        opened(&self.file)
    }

    /// Writes a part. The write starts with the call if the disk has a permit left.
    ///
    /// # Errors
    /// As [`DiskTarget::opened`].
    pub(super) fn write(
        &self,
        offset: u64,
        bytes: Frozen,
    ) -> Result<impl Future<Output = Result<usize>> + Send + use<>> {
        let (engine, writes) = (self.engine.clone(), self.writes.clone());
        let file = self.opened()?.clone();
        // A task holds the permit until the kernel is done with the frame, even if nobody waits.
        let bounce = self.bounce.clone();
        let begin = move |permit: OwnedSemaphorePermit| match bounce {
            None => {
                let writing = engine.write_frozen(&file, offset, bytes);
                tokio::spawn(async move {
                    let done = writing.await;
                    drop(permit);
                    done.result
                })
            }
            Some(bounce) => tokio::spawn(async move {
                let memory = bounce.lease(bytes.len()).await?;
                // Takes a millisecond: less than a switch to another thread is worth.
                let done = engine.write_encrypted(&file, offset, &bytes, memory).await;
                drop(permit);
                done.result
            }),
        };
        let begun = match writes.clone().try_acquire_owned() {
            Ok(permit) => Ok(begin(permit)),
            Err(_) => Err(begin),
        };
        Ok(async move {
            let writing = match begun {
                Ok(writing) => writing,
                Err(begin) => {
                    let permit = device::answer(writes.acquire_owned()).await?;
                    begin(permit.map_err(|_| Error::shutting_down())?)
                }
            };
            device::answer(writing).await?.map_err(|_| Error::shutting_down())?
        })
    }

    /// Unit of the lengths that are written.
    pub(super) fn block(&self) -> usize {
        self.file.get().map_or(GRANULE, |file| file.alignment().offset)
    }

    /// Length up to which the last write of a shard of `len` bytes reaches.
    pub(super) fn padded(&self, len: u64) -> u64 {
        len.next_multiple_of(self.block() as u64)
    }

    /// Takes a place for operations on the file that a blocking thread carries out.
    pub(super) async fn place(&self) -> Result<EnginePlace> {
        device::answer(self.engine.place()).await?
    }

    /// Takes the disk's permit to write a part, for all bytes of a small shard.
    pub(super) async fn permit(&self, bytes: Frozen) -> Result<Permitted> {
        let permit = device::answer(self.writes.clone().acquire_owned()).await?;
        Ok(Permitted { bytes, _permit: permit.map_err(|_| Error::shutting_down())? })
    }

    /// Reserves disk space from `from` up to `to`, so that a full disk shows before the write.
    pub(super) async fn extend(&self, from: u64, to: u64) -> Result<()> {
        let (file, len) = (self.opened()?.clone(), to.saturating_sub(from));
        if len == 0 {
            return Ok(());
        }
        self.on_disk(move |_, _| file.reserve(from, len)).await
    }
}
