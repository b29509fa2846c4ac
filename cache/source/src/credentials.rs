//! Credentials that run out: asked for once, kept while they are good, renewed beside the requests.
//!
//! Many requests that want the same credentials make one question. What is still valid is
//! served while a renewal is under way or failed; only without any does a request wait, and only
//! for so long.

mod lending;
mod program;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use forebay_error::{Error, ErrorKind, Result};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;

pub(crate) use lending::Lending;
pub use program::lend;

/// Intervals and timeouts of requests for credentials.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// Credentials are renewed this long before they run out: as the services that lend them advise
    /// …
    ahead: Duration,
    /// … but never before this share of their time is left, for those that last some minutes only.
    share: u32,
    /// A request without an answer fails after this: a command that signs somebody in asks
    /// several services, each of which may be tried again.
    patience: Duration,
    /// The least time between a renewal that failed and the next: a service that is down is not
    /// asked once per part.
    pause: Duration,
    /// Credentials younger than this are not dropped because a store refused them: they were fresh,
    /// so fresh ones would fare no better.
    settled: Duration,
}

const PACE: Pace = Pace {
    ahead: Duration::from_secs(300),
    share: 4,
    patience: Duration::from_secs(60),
    pause: Duration::from_secs(1),
    settled: Duration::from_secs(30),
};

/// Credentials, as lent.
#[derive(Debug, Clone)]
struct Lent {
    key: Arc<AwsCredential>,
    /// Time of expiry, if any.
    expiry: Option<SystemTime>,
}

/// A lender of credentials.
#[async_trait]
trait Lender: fmt::Debug + Send + Sync {
    async fn lend(&self) -> Result<Lent>;
}

/// One question under way, for all who wait for its answer.
type Flight = Shared<BoxFuture<'static, Result<Arc<AwsCredential>>>>;

/// The credentials of somebody, as long as they are asked for.
#[derive(Debug, Clone)]
pub(crate) struct Identity(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    lender: Box<dyn Lender>,
    pace: Pace,
    state: Mutex<CredentialState>,
}

#[derive(Debug, Default)]
struct CredentialState {
    kept: Option<Kept>,
    flight: Option<Flight>,
    /// Time and error of the last failed request.
    failed: Option<(Instant, Error)>,
    /// Number of answers so far.
    answers: u64,
}

#[derive(Debug)]
struct Kept {
    lent: Lent,
    since: Instant,
    /// From then on it is renewed.
    renew: Option<SystemTime>,
}

impl Identity {
    fn new(lender: impl Lender + 'static, pace: Pace) -> Self {
        Self(Arc::new(Inner { lender: Box::new(lender), pace, state: Mutex::default() }))
    }

    fn state(&self) -> MutexGuard<'_, CredentialState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Credentials that are valid now.
    ///
    /// # Errors
    /// The reason there are none.
    pub(crate) async fn get(&self) -> Result<Arc<AwsCredential>> {
        let flight = {
            let mut state = self.state();
            let now = SystemTime::now();
            let valid = state.kept.as_ref().filter(|kept| kept.lasts_beyond(now));
            if let Some(kept) = valid {
                let key = Arc::clone(&kept.lent.key);
                if kept.renew.is_some_and(|renew| renew <= now) && !self.paused(&state) {
                    // Nobody waits for it.
                    drop(self.ask(&mut state));
                }
                return Ok(key);
            }
            if let (None, true, Some((_, error))) =
                (&state.flight, self.paused(&state), &state.failed)
            {
                return Err(error.clone());
            }
            self.ask(&mut state)
        };
        flight.await
    }

    /// Returns the number of answers so far: taken before a request, passed to
    /// [`Identity::refused`] after it.
    pub(crate) fn answers(&self) -> u64 {
        self.state().answers
    }

    /// A store refused what was current when [`Identity::answers`] gave `answers`: whether another
    /// attempt will be made with other credentials.
    pub(crate) fn refused(&self, answers: u64) -> bool {
        let mut state = self.state();
        if state.answers != answers || state.flight.is_some() {
            return true;
        }
        let settled = |kept: &Kept| kept.since.elapsed() >= self.0.pace.settled;
        let old = state.kept.as_ref().is_some_and(settled);
        if old {
            state.kept = None;
        }
        old
    }

    /// Asks again with the next request, which uses what is still valid meanwhile: the files that
    /// credentials come from may have changed.
    fn renew(&self) {
        if let Some(kept) = &mut self.state().kept {
            kept.renew = Some(SystemTime::UNIX_EPOCH);
        }
    }

    fn paused(&self, state: &CredentialState) -> bool {
        state.failed.as_ref().is_some_and(|(when, _)| when.elapsed() < self.0.pace.pause)
    }

    /// The question under way, or a new one. It goes on though nobody waits any more: the next who
    /// asks is served by it.
    fn ask(&self, state: &mut CredentialState) -> Flight {
        if let Some(flight) = &state.flight {
            return flight.clone();
        }
        let task = tokio::spawn(self.clone().answer());
        let ended = |joined: Result<_, _>| joined.unwrap_or_else(|_| Err(Error::shutting_down()));
        let flight = task.map(ended).boxed().shared();
        state.flight = Some(flight.clone());
        flight
    }

    async fn answer(self) -> Result<Arc<AwsCredential>> {
        let asked = tokio::time::timeout(self.0.pace.patience, self.0.lender.lend()).await;
        let lent = asked.unwrap_or_else(|_| Err(silent(self.0.pace.patience)));
        let mut state = self.state();
        state.flight = None;
        match lent {
            Ok(lent) => {
                state.failed = None;
                state.answers += 1;
                let key = Arc::clone(&lent.key);
                state.kept = Some(Kept::new(lent, &self.0.pace));
                Ok(key)
            }
            Err(error) => {
                if state.kept.is_some() {
                    tracing::warn!(%error, "failed to renew credentials; the old ones are used");
                }
                state.failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }
}

impl Kept {
    fn new(lent: Lent, pace: &Pace) -> Self {
        let now = SystemTime::now();
        let renew = lent.expiry.map(|expiry| {
            let left = expiry.duration_since(now).unwrap_or_default();
            expiry - pace.ahead.min(left / pace.share)
        });
        Self { lent, since: Instant::now(), renew }
    }

    fn lasts_beyond(&self, now: SystemTime) -> bool {
        self.lent.expiry.is_none_or(|expiry| expiry > now)
    }
}

#[async_trait]
impl CredentialProvider for Identity {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let wrapped = |error| object_store::Error::Generic { store: "S3", source: Box::new(error) };
        self.get().await.map_err(wrapped)
    }
}

fn silent(patience: Duration) -> Error {
    let what = format!("no credentials within {} seconds", patience.as_secs());
    Error::new(ErrorKind::Unavailable, what)
        .advise("check that the credential service answers: `aws sts get-caller-identity`")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    /// Lends what a test says, when it says so.
    #[derive(Debug, Default, Clone)]
    struct Bank(Arc<Desk>);

    #[derive(Debug)]
    struct Desk {
        asked: AtomicU64,
        /// Answers that may be given.
        may: Semaphore,
        /// Seconds that what is lent lasts; none: for ever.
        lasts: Mutex<Option<u64>>,
        closed: Mutex<bool>,
    }

    impl Default for Desk {
        fn default() -> Self {
            let (asked, may) = (AtomicU64::new(0), Semaphore::new(0));
            Self { asked, may, lasts: Mutex::new(None), closed: Mutex::new(false) }
        }
    }

    #[async_trait]
    impl Lender for Bank {
        async fn lend(&self) -> Result<Lent> {
            let number = self.0.asked.fetch_add(1, Ordering::SeqCst);
            self.0.may.acquire().await.unwrap().forget();
            if *self.0.closed.lock().unwrap() {
                return Err(Error::new(ErrorKind::Unavailable, "closed"));
            }
            let lasts = *self.0.lasts.lock().unwrap();
            Ok(Lent {
                key: Arc::new(AwsCredential {
                    key_id: format!("key {number}"),
                    secret_key: "hunter2".to_owned(),
                    token: None,
                }),
                expiry: lasts.map(|secs| SystemTime::now() + Duration::from_secs(secs)),
            })
        }
    }

    /// Nothing waits for time to pass: every pause is over at once, or never.
    const AT_ONCE: Pace = Pace { pause: Duration::ZERO, settled: Duration::ZERO, ..PACE };

    impl Identity {
        /// One that may be dropped at any time, and asked again.
        pub(crate) fn renewable() -> Self {
            let bank = Bank::default();
            bank.0.may.add_permits(Semaphore::MAX_PERMITS);
            Self::new(bank, AT_ONCE)
        }
    }

    /// A question that nobody will answer fails the test, instead of hanging it.
    const PATIENCE: Duration = Duration::from_secs(30);

    async fn id(identity: &Identity) -> String {
        let got = tokio::time::timeout(PATIENCE, identity.get()).await;
        got.expect("nobody answers").unwrap().key_id.clone()
    }

    #[tokio::test]
    async fn concurrent_callers_share_one_request() {
        let bank = Bank::default();
        let identity = Identity::new(bank.clone(), PACE);
        let asking: Vec<_> = (0..100)
            .map(|_| {
                tokio::spawn({
                    let identity = identity.clone();
                    async move { id(&identity).await }
                })
            })
            .collect();
        // A caller that gives up takes nothing from the others.
        asking[0].abort();
        bank.0.may.add_permits(1);
        for asked in asking.into_iter().skip(1) {
            assert_eq!(asked.await.unwrap(), "key 0");
        }
        assert_eq!(id(&identity).await, "key 0");
        assert_eq!(bank.0.asked.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn expiring_credentials_are_renewed_in_the_background() {
        let bank = Bank::default();
        // Due for renewal from the first moment, and far from running out.
        *bank.0.lasts.lock().unwrap() = Some(3600);
        let pace = Pace { ahead: Duration::from_secs(3600), share: 1, ..AT_ONCE };
        let identity = Identity::new(bank.clone(), pace);
        bank.0.may.add_permits(1);
        assert_eq!(id(&identity).await, "key 0");
        // The bank is silent now; nobody waits for it, and it is asked once.
        for _ in 0..10 {
            assert_eq!(id(&identity).await, "key 0");
        }
        let flight = identity.state().flight.clone().expect("a renewal is under way");
        *bank.0.closed.lock().unwrap() = true;
        bank.0.may.add_permits(1);
        assert_eq!(flight.await.unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(id(&identity).await, "key 0", "it is still valid");
        *bank.0.closed.lock().unwrap() = false;
        *bank.0.lasts.lock().unwrap() = None;
        let flight = identity.state().flight.clone().expect("it is asked again");
        bank.0.may.add_permits(1);
        flight.await.unwrap();
        assert_eq!(id(&identity).await, "key 2");
        assert_eq!(bank.0.asked.load(Ordering::SeqCst), 3);
    }

    #[tokio::test]
    async fn expired_credentials_are_not_served() {
        let bank = Bank::default();
        *bank.0.lasts.lock().unwrap() = Some(0);
        let identity = Identity::new(bank.clone(), AT_ONCE);
        bank.0.may.add_permits(2);
        assert_eq!((id(&identity).await, id(&identity).await), ("key 0".into(), "key 1".into()));
        *bank.0.closed.lock().unwrap() = true;
        bank.0.may.add_permits(1);
        assert_eq!(identity.get().await.unwrap_err().kind(), ErrorKind::Unavailable);
    }

    #[tokio::test]
    async fn failing_provider_is_not_asked_again_during_a_pause() {
        let bank = Bank::default();
        *bank.0.closed.lock().unwrap() = true;
        let pace = Pace { pause: Duration::from_secs(3600), ..PACE };
        let identity = Identity::new(bank.clone(), pace);
        bank.0.may.add_permits(100);
        for _ in 0..10 {
            assert!(identity.get().await.is_err());
        }
        assert_eq!(bank.0.asked.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn rejected_credentials_are_renewed_once() {
        let bank = Bank::default();
        let identity = Identity::new(bank.clone(), AT_ONCE);
        bank.0.may.add_permits(2);
        assert_eq!(id(&identity).await, "key 0");
        let before = identity.answers();
        // Three requests were under way with it.
        assert!(identity.refused(before));
        assert_eq!(id(&identity).await, "key 1");
        assert!(identity.refused(before), "the others are to try again with the new one");
        assert!(identity.refused(before));
        assert_eq!(id(&identity).await, "key 1");
        assert_eq!(bank.0.asked.load(Ordering::SeqCst), 2);

        let bank = Bank::default();
        bank.0.may.add_permits(1);
        let fresh = Identity::new(bank, PACE);
        assert_eq!(id(&fresh).await, "key 0");
        assert!(!fresh.refused(fresh.answers()), "another would fare no better");
    }

    #[tokio::test]
    async fn reload_renews_credentials_that_do_not_expire() {
        let bank = Bank::default();
        let identity = Identity::new(bank.clone(), AT_ONCE);
        bank.0.may.add_permits(1);
        assert_eq!(id(&identity).await, "key 0");
        assert_eq!(id(&identity).await, "key 0", "they do not expire");
        identity.renew();
        assert_eq!(id(&identity).await, "key 0", "nobody waits");
        let flight = identity.state().flight.clone().expect("a renewal is under way");
        bank.0.may.add_permits(1);
        flight.await.unwrap();
        assert_eq!(id(&identity).await, "key 1");
        assert_eq!(bank.0.asked.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn silent_provider_times_out() {
        let pace = Pace { patience: Duration::from_millis(10), ..PACE };
        let identity = Identity::new(Bank::default(), pace);
        let error = identity.get().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(!format!("{identity:?}").contains("hunter2"));
    }
}
