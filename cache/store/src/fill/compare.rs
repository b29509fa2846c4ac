//! A shard's bytes against what its origin says of them.
//!
//! One rule: what differs is not kept, and whoever waits for more of it hears why. The origin is asked
//! once the first bytes are there, so that nobody waits for its answer but the end of the shard.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_error::{Error, Result};
use forebay_source::Comparison;
use forebay_uring::Span;

use super::{Frame, Job};
use crate::tier::shutting_down;

/// Bytes of a shard as somebody holds them.
pub(super) trait Held: Send + 'static {
    fn bytes(&self) -> &[u8];
}

impl Held for Arc<Frame> {
    fn bytes(&self) -> &[u8] {
        Frame::bytes(self)
    }
}

impl Held for Span {
    fn bytes(&self) -> &[u8] {
        self
    }
}

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
        let mut next = self.parts.next_compared(0).await?;
        if next.is_none() {
            return Ok(());
        }
        let Some(mut comparison) = self.vouched().await else { return Ok(()) };
        let mut part = 0;
        while let Some((frame, held)) = next.take() {
            (comparison, _) = self.take_in(comparison, frame, held).await?;
            part += 1;
            self.parts.compared(part);
            next = self.parts.next_compared(part).await?;
        }
        comparison.finish().map_err(|error| self.differs(error))
    }

    /// The bytes are not what the origin says: nothing of them stays.
    pub(super) fn differs(&self, error: Error) -> Error {
        self.spoilt.store(true, Ordering::Relaxed);
        error.at("url", &self.url)
    }

    /// What the origin says of the shard.
    pub(super) async fn vouched(&self) -> Option<Comparison> {
        self.source.vouched(&self.url, &self.stat).await
    }

    /// Compares the first `held` bytes that `of` has, which comes back.
    pub(super) async fn take_in<H: Held>(
        &self,
        mut comparison: Comparison,
        of: H,
        held: usize,
    ) -> Result<(Comparison, H)> {
        let is_slow = comparison.is_slow();
        let take_in = move || comparison.update(&of.bytes()[..held]).map(|()| (comparison, of));
        let taken = match is_slow {
            true => tokio::task::spawn_blocking(take_in).await.map_err(|_| shutting_down())?,
            // Some 0.3 ms: shorter than handing it to another thread would be worth.
            false => take_in(),
        };
        taken.map_err(|error| self.differs(error))
    }
}
