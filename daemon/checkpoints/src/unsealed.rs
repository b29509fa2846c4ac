//! A file of a tier that is not whole yet.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_checkpoint::FileId;
use forebay_error::{ErrorKind, Result};
use forebay_store::StagedFile;

use crate::Inner;

/// A file that is being written. Dropped before it is sealed, it is removed.
pub(crate) struct Unsealed {
    file: StagedFile,
    is_sealed: AtomicBool,
}

impl Inner {
    /// Creates a file with room for `bytes`, on one of the tiers. Files that are in the store
    /// already make room.
    ///
    /// # Errors
    /// `Full` if there is no room.
    pub(crate) async fn stage(&self, id: FileId, bytes: u64, tiers: &[String]) -> Result<Unsealed> {
        loop {
            match self.store.stage(&id.to_string(), bytes, tiers).await {
                Err(error) if error.kind() == ErrorKind::Full && self.free().await => {}
                staged => {
                    return Ok(Unsealed { file: staged?, is_sealed: AtomicBool::new(false) });
                }
            }
        }
    }
}

impl Unsealed {
    /// Makes the file durable, with this record, and returns it.
    ///
    /// # Errors
    /// Those of the device.
    pub(crate) async fn seal(&self, len: u64, record: Vec<u8>) -> Result<StagedFile> {
        self.file.seal(len, record).await?;
        self.is_sealed.store(true, Ordering::Relaxed);
        Ok(self.file.clone())
    }
}

impl Deref for Unsealed {
    type Target = StagedFile;

    fn deref(&self) -> &StagedFile {
        &self.file
    }
}

impl Drop for Unsealed {
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if !self.is_sealed.load(Ordering::Relaxed) {
            let file = self.file.clone();
            runtime.spawn(async move {
                if let Err(error) = file.remove().await {
                    let what = "an unfinished file of a checkpoint stays until the next start";
                    tracing::warn!(id = file.id(), %error, "{what}");
                }
            });
        }
    }
}
