//! Comparison of a shard's bytes with the checksum of its origin.
//!
//! A shard that differs is not kept, and its waiting readers get the reason. The origin is
//! asked for the checksum when the first bytes are there. So only the end of the shard waits for
//! the answer.

use std::ops::Deref;

use forebay_error::{Error, Result};
use forebay_source::Comparison;

use super::Fill;
use crate::parts::Arrived;

impl Fill {
    /// Compares the parts of a plain shard, in order, as they come.
    ///
    /// # Errors
    /// `Corrupt` if they differ from the origin's checksum; the error of the fill if it fails.
    pub(super) async fn compare(&self) -> Result<()> {
        let compared = self.compare_parts().await;
        if let Err(error) = &compared {
            self.parts.fail(error);
        }
        self.parts.move_comparison(usize::MAX);
        compared
    }

    async fn compare_parts(&self) -> Result<()> {
        let first = self.parts.next_compared(0).await?;
        if first.is_none() {
            // A compressed shard is compared before it is unpacked.
            return Ok(());
        }
        if let Some(comparison) = self.origin_checksum().await {
            self.compare_all(comparison, first).await?;
        }
        // Later errors do not make these bytes wrong.
        self.growth.mark_good();
        Ok(())
    }

    async fn compare_all(&self, mut comparison: Comparison, mut next: Arrived) -> Result<()> {
        let mut part = 0;
        while let Some((frame, held)) = next.take() {
            (comparison, _) = self.compare_bytes(comparison, frame.frozen(), held).await?;
            drop(frame);
            part += 1;
            self.parts.move_comparison(part);
            next = self.parts.next_compared(part).await?;
        }
        comparison.finish().map_err(|error| self.mark_different(error))
    }

    /// Marks the shard as untrusted: its bytes differ from the origin's checksum.
    pub(super) fn mark_different(&self, error: Error) -> Error {
        let error = error.at("url", self.url());
        self.distrust(&error);
        error
    }

    /// Checksum of the shard that the origin gives.
    pub(super) async fn origin_checksum(&self) -> Option<Comparison> {
        self.request.source.origin_checksum(self.url(), &self.request.stat).await
    }

    /// Compares the first `held` of these bytes, and returns them.
    pub(super) async fn compare_bytes<B: Deref<Target = [u8]> + Send + 'static>(
        &self,
        mut comparison: Comparison,
        bytes: B,
        held: usize,
    ) -> Result<(Comparison, B)> {
        let is_slow = comparison.is_slow();
        let take_in = move || comparison.update(&bytes[..held]).map(|()| (comparison, bytes));
        let taken = match is_slow {
            true => {
                tokio::task::spawn_blocking(take_in).await.map_err(|_| Error::shutting_down())?
            }
            // Takes 0.3 ms: less than a switch to another thread is worth.
            false => take_in(),
        };
        taken.map_err(|error| self.mark_different(error))
    }
}
