//! Time a job waits for a store that does not answer.
//!
//! A job that has started outlasts an outage, within its trainer's timeout. A job that has
//! not started fails at once, because a wrong address is likelier than an outage. Errors that a
//! retry cannot mend are reported at once, too.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_source::Options;
use forebay_store::{Repeats, Store, gave_way};

use super::awaited::{Waiting, of_shard};

/// Pause between two attempts, each of which has retries of its own in the source.
const PAUSE: Duration = Duration::from_secs(1);

/// Patience of a job.
pub(crate) struct Patience {
    /// Name of the job, for the log.
    job: String,
    store: Store,
    limit: Duration,
    begun: AtomicBool,
    /// Attempts that failed, for the log.
    failed: Repeats,
}

impl Patience {
    /// Makes the patience of a job: `limit` at most, once it has started.
    pub(super) fn new(limit: Duration, job: &str, store: &Store) -> Self {
        let (job, store) = (job.to_owned(), store.clone());
        Self { job, store, limit, begun: AtomicBool::new(false), failed: Repeats::default() }
    }

    /// Records that the job received something, now or under an earlier daemon.
    pub(super) fn begun(&self) {
        self.begun.store(true, Ordering::Relaxed);
    }

    /// Runs `work` within the limit; `None` if it takes longer.
    pub(super) async fn bound<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::time::timeout(self.limit, work).await.ok()
    }

    /// Starts a wait now, which is listed as `listed`.
    pub(super) fn waiting(&self, listed: Waiting) -> Patient<'_> {
        Patient { patience: self, since: Instant::now(), listed }
    }
}

/// A wait of a job, with its start.
pub(super) struct Patient<'a> {
    patience: &'a Patience,
    since: Instant,
    listed: Waiting,
}

impl Patient<'_> {
    /// Makes one attempt at a shard. A job that has not started waits no longer than its limit, and
    /// learns what it waited for.
    pub(super) async fn within<T>(
        &self,
        url: &str,
        options: &Options,
        attempt: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let Patience { limit, begun, store, .. } = self.patience;
        let mut attempt = std::pin::pin!(attempt);
        let left = limit.saturating_sub(self.since.elapsed());
        if !limit.is_zero()
            && let Ok(done) = tokio::time::timeout(left, &mut attempt).await
        {
            return done;
        }
        if limit.is_zero() || begun.load(Ordering::Relaxed) {
            return attempt.await;
        }
        let error = Error::new(ErrorKind::Unavailable, "the first samples did not come in time")
            .at("url", url)
            .at("waited_s", self.since.elapsed().as_secs())
            .advise(
                "check the store and the way to it; if it is slow, raise the loader's timeout=",
            );
        Err(of_shard(error, store, url, options, None))
    }

    /// Waits until the next attempt, after one failed with `error`.
    ///
    /// # Errors
    /// That error, if there is no further attempt.
    pub(super) async fn after(&self, error: Error) -> Result<()> {
        let is_over = self.since.elapsed() + PAUSE >= self.patience.limit;
        let has_begun = self.patience.begun.load(Ordering::Relaxed);
        let may_wait = has_begun || gave_way(&error);
        if error.kind() != ErrorKind::Unavailable || is_over || !may_wait {
            return Err(error);
        }
        self.listed.failed(&error);
        let Patience { job, store, failed, .. } = self.patience;
        if let Some(attempts) = failed.note(Instant::now()) {
            let (url, tenant, session) = (error.place("url"), store.tenant(), store.session());
            let dataset = url.map(|url| store.dataset_of(url));
            tracing::warn!(session, job, tenant, dataset, url, attempts, %error, "a job waits for its store");
        }
        pause().await;
        Ok(())
    }
}

/// Waits between two attempts.
#[expect(clippy::disallowed_methods, reason = "a pause ends by time alone")]
pub(super) async fn pause() {
    tokio::time::sleep(PAUSE).await;
}
