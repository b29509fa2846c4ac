//! Which version of an object its URL stands for now.
//!
//! One rule: the origin is asked once for everybody who waits, and nobody who has an answer waits
//! for another: an old answer is used while a fresh one is fetched beside it. So a warm epoch goes
//! on while the origin is away, and a replaced object is noticed at the second use after the limit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_error::{ErrorKind, Result};
use forebay_source::{Source, Stat};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};

use super::Store;

/// How long an object's identity is taken as unchanged before its origin is asked again. Training
/// sets are written once; a minute keeps an epoch over 10⁵ shards from asking 10⁵ times a minute.
const IDENTITY_TTL: Duration = Duration::from_secs(60);

/// What an origin said, or will say, and when it was asked.
pub(crate) struct Identity {
    stat: Shared<BoxFuture<'static, Result<Stat>>>,
    asked: Instant,
}

impl Identity {
    fn ask(source: &Arc<dyn Source>, url: &str) -> Self {
        let (source, url) = (source.clone(), url.to_owned());
        let stat = async move { source.stat(&url).await }.boxed().shared();
        Self { stat, asked: Instant::now() }
    }
}

impl Store {
    /// Length and version of the object at `url`.
    pub(super) async fn identity(&self, source: &Arc<dyn Source>, url: &str) -> Result<Stat> {
        let key = (source.endpoint().to_owned(), url.to_owned());
        let (stat, refresh) = {
            let mut identities = self.0.commons.identities();
            let known = identities.get_or_insert_mut(key.clone(), || Identity::ask(source, url));
            let old = known.asked.elapsed() >= IDENTITY_TTL
                && known.stat.peek().is_some_and(Result::is_ok);
            if old {
                // One fresh answer at a time: the next is due when this one is as old.
                known.asked = Instant::now();
            }
            (known.stat.clone(), old)
        };
        if refresh {
            tokio::spawn(self.clone().refresh(key.clone(), source.clone()));
        }
        let answer = stat.clone().await;
        if answer.is_err() {
            let mut identities = self.0.commons.identities();
            // Everybody who waited has this error; whoever asks next asks the origin.
            if identities.peek(&key).is_some_and(|known| known.stat.ptr_eq(&stat)) {
                identities.pop(&key);
            }
        }
        answer
    }

    async fn refresh(self, key: (String, String), source: Arc<dyn Source>) {
        let fresh = Identity::ask(&source, &key.1);
        match fresh.stat.clone().await {
            Ok(_) => drop(self.0.commons.identities().put(key, fresh)),
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) =>
            {
                self.0.commons.identities().pop(&key);
            }
            Err(error) => tracing::debug!(%error, "kept an object's old identity"),
        }
    }
}
