//! A file of a tier that is not whole yet.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_checkpoint::FileId;
use forebay_error::{ErrorKind, Result};
use forebay_store::StagedFile;

use crate::Inner;
use crate::claims::Claim;

/// A file that is being written. Dropped before it is sealed, it is removed.
pub(crate) struct Unsealed {
    file: StagedFile,
    /// Bytes below the rule's `max`. A removal shares them, as they count until it is done.
    pub(crate) claim: Arc<Claim>,
    is_sealed: AtomicBool,
}

impl Inner {
    /// Creates a file with room for `bytes`, on one of the tiers of the rule of `url`. Files that
    /// are in the store already make room.
    ///
    /// # Errors
    /// `Full` if there is no room, or the rule's `max` is reached.
    pub(crate) async fn stage(&self, url: &str, id: FileId, bytes: u64) -> Result<Unsealed> {
        let claim = Arc::new(self.claim(url, bytes).await?);
        let rule = self.store.checkpoint_rule(url);
        let tiers = rule.map(|rule| rule.tiers).unwrap_or_default();
        loop {
            match self.store.stage(&id.to_string(), bytes, &tiers).await {
                Err(error) if error.kind() == ErrorKind::Full && self.free().await => {}
                staged => {
                    return Ok(Unsealed {
                        file: staged?,
                        claim,
                        is_sealed: AtomicBool::new(false),
                    });
                }
            }
        }
    }
}

impl Unsealed {
    /// Makes the file durable, with this record, and has `add` count it from then on.
    ///
    /// # Errors
    /// Those of the device.
    pub(crate) async fn seal<T>(
        &self,
        len: u64,
        record: Vec<u8>,
        add: impl FnOnce(StagedFile) -> T,
    ) -> Result<T> {
        self.file.seal(len, record).await?;
        self.is_sealed.store(true, Ordering::Relaxed);
        Ok(self.claim.end_with(|| add(self.file.clone())))
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
            let (file, claim) = (self.file.clone(), self.claim.clone());
            runtime.spawn(async move {
                if let Err(error) = file.remove().await {
                    let what = "an unfinished file of a checkpoint stays until the next start";
                    tracing::warn!(id = file.id(), %error, "{what}");
                    // So do its bytes.
                    std::mem::forget(claim);
                }
            });
        }
    }
}
