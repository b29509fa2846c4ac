//! How long a job waits for a store that does not answer.
//!
//! Its rule: a job that has begun outlasts a store's bad hour, as far as its trainer's time limit goes; one
//! that has not is told at once, for then a wrong address is likelier than an outage. What another attempt
//! cannot mend is told at once, too.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_store::Store;

/// The pause between two attempts, each of which has retries of its own within the source.
const PAUSE: Duration = Duration::from_secs(1);

/// A job's patience.
pub(crate) struct Patience {
    /// Whose it is, for the log.
    job: String,
    store: Store,
    limit: Duration,
    begun: AtomicBool,
}

impl Patience {
    /// To wait for `limit` at most, once the job of this name has begun.
    pub(super) fn new(limit: Duration, job: &str, store: &Store) -> Self {
        let (job, store) = (job.to_owned(), store.clone());
        Self { job, store, limit, begun: AtomicBool::new(false) }
    }

    /// The job has had something, now or under an earlier daemon.
    pub(super) fn begun(&self) {
        self.begun.store(true, Ordering::Relaxed);
    }

    /// What comes of this, if it comes in time.
    pub(super) async fn bound<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::time::timeout(self.limit, work).await.ok()
    }

    /// Something is tried from now on.
    pub(super) fn waiting(&self) -> Waiting<'_> {
        Waiting { patience: self, since: Instant::now() }
    }
}

/// What a job waits for, and since when.
pub(super) struct Waiting<'a> {
    patience: &'a Patience,
    since: Instant,
}

impl Waiting<'_> {
    /// Waits until the next attempt, after one that failed with `error`.
    ///
    /// # Errors
    /// That one, if there is to be no other.
    pub(super) async fn after(&self, error: Error) -> Result<()> {
        let is_over = self.since.elapsed() + PAUSE >= self.patience.limit;
        let has_begun = self.patience.begun.load(Ordering::Relaxed);
        if error.kind() != ErrorKind::Unavailable || is_over || !has_begun {
            return Err(error);
        }
        let Patience { job, store, .. } = self.patience;
        let (url, tenant, session) = (error.place("url"), store.tenant(), store.session());
        let dataset = url.map(|url| store.dataset_of(url));
        tracing::warn!(session, job, tenant, dataset, url, %error, "a job waits for its store");
        pause().await;
        Ok(())
    }
}

/// The pause between two attempts.
#[expect(clippy::disallowed_methods, reason = "a pause has no other condition than its end")]
pub(super) async fn pause() {
    tokio::time::sleep(PAUSE).await;
}
