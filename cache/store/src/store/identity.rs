//! Which version of an object its URL stands for now.
//!
//! One rule: the origin is asked once for everybody who waits, and nobody who has an answer waits
//! for another: an old answer is used while a fresh one is fetched beside it. So a warm epoch goes
//! on while the origin is away, and a replaced object is noticed at the second use after the limit.
//!
//! What is certainly not here yet, and can be fetched at once, is asked for by its first bytes, which say
//! as much: that saves a round trip before the first sample.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::Origin;
use forebay_source::{Bill, Rank, Source, Stat, Stretch};
use forebay_uring::Span;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use tokio::sync::OwnedSemaphorePermit;

use super::Store;
use crate::directory::ShardName;

/// How long an object's identity is taken as unchanged before its origin is asked again. Training
/// sets are written once; a minute keeps an epoch over 10⁵ shards from asking 10⁵ times a minute.
const IDENTITY_TTL: Duration = Duration::from_secs(60);

/// The first bytes of an object, for whoever takes them first.
#[derive(Clone, Default)]
pub(crate) struct Head(Arc<Mutex<Option<Box<dyn Stretch>>>>);

impl Head {
    pub(crate) fn take(&self) -> Option<Box<dyn Stretch>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// First bytes, and the right to have asked for them.
struct First {
    stretch: Box<dyn Stretch>,
    _right: OwnedSemaphorePermit,
}

#[async_trait]
impl Stretch for First {
    async fn fill(&mut self, into: Span) -> Result<Span> {
        self.stretch.fill(into).await
    }

    fn ends_at(&self) -> Option<u64> {
        self.stretch.ends_at()
    }
}

/// What an origin said of an object, and perhaps its first bytes.
#[derive(Clone)]
pub(super) struct Begun {
    pub(super) stat: Stat,
    pub(super) head: Head,
}

/// What an origin said, or will say, and when it was asked.
pub(crate) struct Identity {
    begun: Shared<BoxFuture<'static, Result<Begun>>>,
    asked: Instant,
    /// How urgently the first bytes were asked for, if they were.
    rank: Option<Rank>,
}

impl Identity {
    /// How long ago the origin was asked.
    pub(super) fn age(&self) -> Duration {
        self.asked.elapsed()
    }

    /// What it said, if it did.
    pub(super) fn said(&self) -> Option<Result<&Stat, &Error>> {
        self.begun.peek().map(|begun| begun.as_ref().map(|begun| &begun.stat))
    }

    fn ask(source: &Arc<dyn Source>, url: &str, bill: &Bill) -> Self {
        if source.is_remote() {
            bill.asked();
        }
        let (source, url) = (source.clone(), url.to_owned());
        Self::of(async move { Ok(Begun { stat: source.stat(&url).await?, head: Head::default() }) })
    }

    /// Asks for the first bytes.
    fn begin(
        source: &Arc<dyn Source>,
        url: &str,
        rank: &Rank,
        right: OwnedSemaphorePermit,
    ) -> Self {
        let (source, url, of) = (source.clone(), url.to_owned(), rank.clone());
        let begun = Self::of(async move {
            let begun = source.begin(&url, &of).await?;
            let first = |stretch| Box::new(First { stretch, _right: right }) as Box<dyn Stretch>;
            let head = Head(Arc::new(Mutex::new(begun.head.map(first))));
            Ok(Begun { stat: begun.stat, head })
        });
        Self { rank: Some(rank.clone()), ..begun }
    }

    fn of(begun: impl Future<Output = Result<Begun>> + Send + 'static) -> Self {
        Self { begun: begun.boxed().shared(), asked: Instant::now(), rank: None }
    }
}

impl Store {
    /// Length and version of the object at `url`, and its first bytes if nobody had to ask for them
    /// before.
    pub(super) async fn identity(
        &self,
        source: &Arc<dyn Source>,
        url: &str,
        rank: &Rank,
    ) -> Result<Begun> {
        let key = (source.scope().to_owned(), url.to_owned());
        let (begun, refresh, _awaited) = {
            let mut identities = self.inner.commons.identities();
            let ask = || match self.first_of(source.endpoint(), url) {
                Some(right) => {
                    rank.bill_to(|| self.bill(url));
                    Identity::begin(source, url, rank, right)
                }
                None => Identity::ask(source, url, &self.bill(url)),
            };
            let known = identities.get_or_insert_mut(key.clone(), ask);
            // It may still wait for its turn.
            let awaited = known.rank.as_ref().and_then(|before| {
                before.lift(rank);
                rank.is_awaited().then(|| before.awaited())
            });
            let old = known.asked.elapsed() >= IDENTITY_TTL
                && known.begun.peek().is_some_and(Result::is_ok);
            if old {
                // One fresh answer at a time: the next is due when this one is as old.
                known.asked = Instant::now();
            }
            (known.begun.clone(), old, awaited)
        };
        if refresh {
            tokio::spawn(self.clone().refresh(key.clone(), source.clone()));
        }
        let answer = begun.clone().await;
        if answer.is_err() {
            let mut identities = self.inner.commons.identities();
            // Everybody who waited has this error; whoever asks next asks the origin.
            if identities.peek(&key).is_some_and(|known| known.begun.ptr_eq(&begun)) {
                identities.pop(&key);
            }
        }
        answer
    }

    /// Bytes of an object that was asked for before, as its origin has them.
    pub(super) fn known_length(&self, source: &dyn Source, url: &str) -> Option<u64> {
        let key = (source.scope().to_owned(), url.to_owned());
        let identities = self.inner.commons.identities();
        let begun = identities.peek(&key)?.begun.peek()?.as_ref().ok()?;
        Some(begun.stat.len)
    }

    /// The right to ask for an object's first bytes, if no version of it can be here and a fetch of it would
    /// begin now.
    fn first_of(&self, endpoint: &str, url: &str) -> Option<OwnedSemaphorePermit> {
        let (endpoint, url) = (endpoint.to_owned(), url.to_owned());
        // Any version: what is looked for is what all have in common.
        let name = ShardName::new(&Origin { endpoint, url, version: String::new() });
        let is_new = self.inner.tiers.iter().all(|tier| tier.certainly_lacks(&name));
        is_new.then(|| self.inner.commons.flights.head()).flatten()
    }

    async fn refresh(self, key: (String, String), source: Arc<dyn Source>) {
        let fresh = Identity::ask(&source, &key.1, &self.bill(&key.1));
        match fresh.begun.clone().await {
            Ok(_) => drop(self.inner.commons.identities().put(key, fresh)),
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) =>
            {
                self.inner.commons.identities().pop(&key);
            }
            Err(error) => tracing::debug!(%error, "kept an object's old identity"),
        }
    }
}
