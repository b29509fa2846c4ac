//! Memory of tiers that a trainer maps, and the loans that outlive its session.
//!
//! A session may end while its trainer still reads a batch: views are kept beyond it, and batches
//! that were received before a connection broke are decoded. A slab is of one session, but memory
//! of a tier is used for other shards. So the trainer holds one end of a socket and sends a
//! byte when it reads no more; the kernel closes that end with the trainer's last process.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use forebay_error::{Doing, Result};
use forebay_store::ShardLoan;
use forebay_uring::Region;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::runtime::Handle;

/// Memory of a tier that the trainer knows.
#[derive(Debug)]
pub(super) struct SharedMemory {
    region: Arc<Region>,
    /// Has a byte once the trainer reads no more, and ends with its last process.
    line: UnixStream,
}

impl SharedMemory {
    /// Returns the memory, and the end of its line that goes to the trainer.
    ///
    /// # Errors
    /// If the process has no descriptors left.
    pub(super) fn new(region: &Arc<Region>) -> Result<(Self, OwnedFd)> {
        let pair = UnixStream::pair().and_then(|(line, theirs)| Ok((line, theirs.into_std()?)));
        let (line, theirs) = pair.doing("make a line to a trainer")?;
        Ok((Self { region: region.clone(), line }, theirs.into()))
    }

    pub(super) fn is_of(&self, region: &Arc<Region>) -> bool {
        Arc::ptr_eq(&self.region, region)
    }

    /// Waits until the trainer does not read the memory any more. Returns false if that is unknown.
    async fn unused(mut self) -> bool {
        self.line.read(&mut [0]).await.is_ok()
    }
}

/// Keeps loans of a session that has ended until its trainer uses none of the memory.
pub(super) fn keep_until_unused(loans: Vec<ShardLoan>, memories: Vec<SharedMemory>) {
    if loans.is_empty() {
        return;
    }
    let kept = KeptLoans(loans);
    // Without a runtime the daemon is about to end.
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn(async move {
            for memory in memories {
                if !memory.unused().await {
                    return;
                }
            }
            kept.end();
        });
    }
}

/// Loans of a trainer that may still read. Dropped in any other way than by [`KeptLoans::end`], as
/// when the daemon ends, they are not returned: nothing is to be written over what it reads.
struct KeptLoans(Vec<ShardLoan>);

impl KeptLoans {
    fn end(mut self) {
        self.0.clear();
    }
}

impl Drop for KeptLoans {
    fn drop(&mut self) {
        std::mem::take(&mut self.0).into_iter().for_each(std::mem::forget);
    }
}
