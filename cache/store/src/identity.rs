//! Identity of an object: length and version, as its origin reports them, and perhaps its first
//! bytes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use forebay_error::{Error, Result};
use forebay_source::{Bill, PeerTimes, RangeRead, Rank, Source, Stat};
use forebay_uring::Span;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use tokio::sync::OwnedSemaphorePermit;

/// Time for which an object's identity is taken as unchanged before its origin is asked again.
/// Training sets are written once. A minute keeps an epoch over 10⁵ shards from asking 10⁵ times a
/// minute.
pub(crate) const IDENTITY_TTL: Duration = Duration::from_secs(60);

/// First bytes of an object, for the first caller that takes them.
#[derive(Clone, Default)]
pub(crate) struct Head(Arc<Mutex<Option<Box<dyn RangeRead>>>>);

impl Head {
    pub(crate) fn take(&self) -> Option<Box<dyn RangeRead>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// First bytes, and the permit for their request.
struct First {
    stretch: Box<dyn RangeRead>,
    _right: OwnedSemaphorePermit,
}

#[async_trait]
impl RangeRead for First {
    async fn fill(&mut self, into: Span) -> Result<Span> {
        self.stretch.fill(into).await
    }

    fn ends_at(&self) -> Option<u64> {
        self.stretch.ends_at()
    }
}

/// Answer of an origin about an object, perhaps with its first bytes.
#[derive(Clone)]
pub(crate) struct Begun {
    pub(crate) stat: Stat,
    pub(crate) head: Head,
}

/// Answer of an origin, there or still to come.
pub(crate) type Asked = Shared<BoxFuture<'static, Result<Begun>>>;

/// Answer of an origin, and the time of the question.
pub(crate) struct Identity {
    pub(crate) begun: Asked,
    pub(crate) asked: Instant,
    /// Urgency of the request, if first bytes were requested.
    pub(crate) rank: Option<Rank>,
    /// Times in which another node was asked.
    pub(crate) peer_times: Option<PeerTimes>,
}

impl Identity {
    /// Time since the origin was asked.
    pub(crate) fn age(&self) -> Duration {
        self.asked.elapsed()
    }

    /// Answer of the origin, if it is there.
    pub(crate) fn said(&self) -> Option<Result<&Stat, &Error>> {
        self.begun.peek().map(|begun| begun.as_ref().map(|begun| &begun.stat))
    }

    pub(crate) fn ask(source: &Arc<dyn Source>, url: &str, bill: &Bill) -> Self {
        if source.is_remote() {
            bill.asked();
        }
        let (source, url, peer_times) =
            (source.clone(), url.to_owned(), source.peer_times().cloned());
        let begun =
            Self::of(
                async move { Ok(Begun { stat: source.stat(&url).await?, head: Head::default() }) },
            );
        Self { peer_times, ..begun }.driven()
    }

    /// An answer that is here.
    pub(crate) fn known(stat: Stat) -> Self {
        let known = Self::of(async move { Ok(Begun { stat, head: Head::default() }) });
        // It counts as open until somebody looked at it.
        let _ = known.begun.clone().now_or_never();
        known
    }

    /// Requests the first bytes.
    pub(crate) fn begin(
        source: &Arc<dyn Source>,
        url: &str,
        rank: &Rank,
        right: OwnedSemaphorePermit,
    ) -> Self {
        let (source, url, of) = (source.clone(), url.to_owned(), rank.clone());
        let peer_times = source.peer_times().cloned();
        let begun = Self::of(async move {
            let begun = source.begin(&url, &of).await?;
            let first = |stretch| Box::new(First { stretch, _right: right }) as Box<dyn RangeRead>;
            let head = Head(Arc::new(Mutex::new(begun.head.map(first))));
            Ok(Begun { stat: begun.stat, head })
        });
        Self { rank: Some(rank.clone()), peer_times, ..begun }.driven()
    }

    /// Has the question answered though all who asked leave: until then it keeps a reader of its
    /// mount, or a request to its store, from others.
    fn driven(self) -> Self {
        let (answer, waiting) = (self.begun.clone(), self.begun.clone());
        tokio::spawn(async move {
            let Ok(Begun { head, .. }) = answer.await else { return };
            // The list of identities and this task alone: whoever else asked holds one or the other
            // until the first bytes are taken.
            let is_left = waiting.strong_count().is_none_or(|have| have <= 2);
            if is_left && Arc::strong_count(&head.0) <= 2 {
                drop(head.take());
            }
        });
        self
    }

    /// The same question, with its answer passed through `then`.
    pub(crate) fn after<F>(self, then: impl FnOnce(Asked) -> F) -> Self
    where
        F: Future<Output = Result<Begun>> + Send + 'static,
    {
        Self { rank: self.rank, peer_times: self.peer_times, ..Self::of(then(self.begun)) }
    }

    fn of(begun: impl Future<Output = Result<Begun>> + Send + 'static) -> Self {
        Self { begun: begun.boxed().shared(), asked: Instant::now(), rank: None, peer_times: None }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use forebay_error::ErrorKind;
    use forebay_source::Binding;
    use tokio::sync::Semaphore;

    use super::*;

    /// Limit of a wait that a failure would make endless.
    const PATIENCE: Duration = Duration::from_secs(20);

    /// A source whose answers wait, as if for a reader, and take its only seat meanwhile.
    struct Seated(Arc<Semaphore>);

    #[async_trait]
    impl Source for Seated {
        async fn stat(&self, _url: &str) -> Result<Stat> {
            let _seat = self.0.acquire().await.unwrap();
            tokio::task::yield_now().await;
            Ok(Stat::new(1, "v".to_owned(), Binding::Weak))
        }

        async fn begin(&self, url: &str, _rank: &Rank) -> Result<forebay_source::Begun> {
            let stat = self.stat(url).await?;
            Ok(forebay_source::Begun { stat, head: Some(Box::new(FirstBytes)) })
        }

        async fn range_read<'a>(
            &'a self,
            _url: &'a str,
            _stat: &'a Stat,
            _range: Range<u64>,
            _rank: &'a Rank,
        ) -> Result<Box<dyn RangeRead + 'a>> {
            Err(Error::new(ErrorKind::Invalid, "no test reads"))
        }

        fn endpoint(&self) -> &str {
            "seated://"
        }
    }

    struct FirstBytes;

    #[async_trait]
    impl RangeRead for FirstBytes {
        async fn fill(&mut self, into: Span) -> Result<Span> {
            Ok(into)
        }
    }

    fn source() -> Arc<dyn Source> {
        Arc::new(Seated(Arc::new(Semaphore::new(1))))
    }

    /// A look that is dropped in the middle, as those of a run that ends.
    #[tokio::test]
    async fn abandoned_question_keeps_no_reader() {
        let source = source();
        let identity = Identity::ask(&source, "a", &Bill::default());
        let mut asking = identity.begun.clone();
        assert!(futures::poll!(&mut asking).is_pending());
        drop(asking);
        let other = Identity::ask(&source, "b", &Bill::default());
        let answer = tokio::time::timeout(PATIENCE, other.begun).await;
        assert!(answer.is_ok_and(|answer| answer.is_ok()));
        assert!(identity.said().is_some_and(|said| said.is_ok()));
    }

    #[tokio::test]
    async fn first_bytes_that_nobody_takes_are_released() {
        let (source, rights) = (source(), Arc::new(Semaphore::new(1)));
        let begin = || {
            let right = rights.clone().try_acquire_owned().unwrap();
            Identity::begin(&source, "a", &Rank::now(0), right)
        };
        // Whoever waits gets them.
        let identity = begin();
        let begun = identity.begun.clone().await.unwrap();
        tokio::task::yield_now().await;
        assert!(begun.head.take().is_some());
        drop((identity, begun));
        let abandoned = begin();
        let right = tokio::time::timeout(PATIENCE, rights.acquire()).await;
        assert!(right.is_ok());
        assert!(abandoned.said().is_some_and(|said| said.is_ok()));
    }
}
