//! Verdict on the bytes of a shard: do they match the checksum of the store, or of their own
//! stream?
//!
//! A verdict outlives the shard and holds nothing of it. Samples are handed out before it is
//! known, so readers keep the verdict, not the shard.

use std::sync::Arc;

use forebay_error::Error;
use tokio::sync::SetOnce;

/// Verdict on the bytes of one fill, known at its end. A shard from a tier was compared before it
/// was committed.
#[derive(Debug, Clone)]
pub struct Verdict(Arc<SetOnce<Option<Error>>>);

impl Verdict {
    /// A verdict that is not known yet.
    pub(crate) fn pending() -> Self {
        Self(Arc::default())
    }

    /// A good verdict.
    pub(crate) fn good() -> Self {
        Self(Arc::new(SetOnce::new_with(Some(None))))
    }

    /// Sets the verdict: the reason why no byte can be trusted, or none. The first call counts.
    pub(crate) fn settle(&self, wrong: Option<Error>) {
        let _: Result<(), _> = self.0.set(wrong);
    }

    /// The verdict, if known: an error if no byte of the shard can be trusted.
    #[must_use]
    pub fn known(&self) -> Option<Result<(), &Error>> {
        self.0.get().map(|wrong| wrong.as_ref().map_or(Ok(()), Err))
    }

    /// Returns true if no byte of the shard can be trusted.
    #[must_use]
    pub fn is_wrong(&self) -> bool {
        matches!(self.known(), Some(Err(_)))
    }

    /// Waits until the verdict is known.
    pub async fn settled(&self) {
        self.0.wait().await;
    }

    /// Returns true if both verdicts are of one fill.
    #[must_use]
    pub fn is_of_the_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
