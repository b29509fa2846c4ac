//! Whether the bytes that came of a shard turned out to be what its store, or its own stream, vouches for.
//!
//! One rule: it outlives the shard and holds nothing of it. Samples are handed out before it is known, so
//! whoever took some keeps this, not the shard, to hear of it.

use std::sync::Arc;

use forebay_error::Error;
use tokio::sync::SetOnce;

/// What is known of the bytes of one fill, or will be at its end. A shard that lay on a tier has nothing to wait
/// for: it was compared before it came to lie there.
#[derive(Debug, Clone)]
pub struct Verdict(Arc<SetOnce<Option<Error>>>);

impl Verdict {
    /// Nothing is known yet.
    pub(crate) fn pending() -> Self {
        Self(Arc::default())
    }

    /// There is nothing to be said against it.
    pub(crate) fn good() -> Self {
        Self(Arc::new(SetOnce::new_with(Some(None))))
    }

    /// It is known: why nothing of it can be trusted, or that nothing is said against it. The first word counts.
    pub(crate) fn settle(&self, wrong: Option<Error>) {
        let _: Result<(), _> = self.0.set(wrong);
    }

    /// What is known, if it is: why nothing of the shard can be trusted, or that nothing is said against it.
    #[must_use]
    pub fn known(&self) -> Option<Result<(), &Error>> {
        self.0.get().map(|wrong| wrong.as_ref().map_or(Ok(()), Err))
    }

    /// Whether it is known that nothing of the shard can be trusted.
    #[must_use]
    pub fn is_wrong(&self) -> bool {
        matches!(self.known(), Some(Err(_)))
    }

    /// Waits until it is known.
    pub async fn settled(&self) {
        self.0.wait().await;
    }

    /// Whether both are of one fill.
    #[must_use]
    pub fn is_of_the_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
