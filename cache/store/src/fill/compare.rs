//! A shard's bytes against what its origin says of them.
//!
//! One rule: what differs is not kept, and whoever waits for more of it hears why. The origin is asked
//! once the first bytes are there, so that nobody waits for its answer but the end of the shard.

use std::ops::Deref;

use forebay_error::{Error, Result};
use forebay_source::Comparison;

use super::Job;
use super::parts::Arrived;
use crate::tier::shutting_down;

impl Job {
    /// Compares the parts of a plain shard, in order, as they come.
    ///
    /// # Errors
    /// `Corrupt` if they are not what the origin says; else why they do not come.
    pub(super) async fn compare(&self) -> Result<()> {
        let compared = self.compare_parts().await;
        if let Err(error) = &compared {
            self.parts.fail(error);
        }
        self.parts.compared(usize::MAX);
        compared
    }

    async fn compare_parts(&self) -> Result<()> {
        let first = self.parts.next_compared(0).await?;
        if first.is_none() {
            // What is unpacked is compared on its way to the unpacker.
            return Ok(());
        }
        if let Some(comparison) = self.vouched().await {
            self.compare_all(comparison, first).await?;
        }
        // What else may go wrong says nothing against what came.
        self.growth.acquit();
        Ok(())
    }

    async fn compare_all(&self, mut comparison: Comparison, mut next: Arrived) -> Result<()> {
        let mut part = 0;
        while let Some((frame, held)) = next.take() {
            (comparison, _) = self.take_in(comparison, frame.frozen(), held).await?;
            drop(frame);
            part += 1;
            self.parts.compared(part);
            next = self.parts.next_compared(part).await?;
        }
        comparison.finish().map_err(|error| self.differs(error))
    }

    /// The bytes are not what the origin says: nothing of them stays.
    pub(super) fn differs(&self, error: Error) -> Error {
        let error = error.at("url", &self.url);
        self.spoil(&error);
        error
    }

    /// What the origin says of the shard.
    pub(super) async fn vouched(&self) -> Option<Comparison> {
        self.source.vouched(&self.url, &self.stat).await
    }

    /// Compares the first `held` of these bytes, which come back.
    pub(super) async fn take_in<B: Deref<Target = [u8]> + Send + 'static>(
        &self,
        mut comparison: Comparison,
        bytes: B,
        held: usize,
    ) -> Result<(Comparison, B)> {
        let is_slow = comparison.is_slow();
        let take_in = move || comparison.update(&bytes[..held]).map(|()| (comparison, bytes));
        let taken = match is_slow {
            true => tokio::task::spawn_blocking(take_in).await.map_err(|_| shutting_down())?,
            // Some 0.3 ms: shorter than handing it to another thread would be worth.
            false => take_in(),
        };
        taken.map_err(|error| self.differs(error))
    }
}
