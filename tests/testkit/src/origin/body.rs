//! A response body that is counted, stalled or cut.

use std::sync::Arc;

use bytes::Bytes;
use futures::TryStreamExt;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, BodyStream, StreamBody};
use hyper::body::{Body, Frame};
use s3s::StdError;
use tokio::sync::watch;

use super::answer::Origin;
use super::faults::Rules;

/// Body of every response.
pub(super) type Answer = UnsyncBoxBody<Bytes, StdError>;

/// State of a body on its way.
struct Flow {
    origin: Arc<Origin>,
    key: String,
    rules: watch::Receiver<Rules>,
    /// Object offset of the next byte.
    at: u64,
    /// Bytes until the connection breaks.
    cut: Option<u64>,
    /// Bytes taken from the inner body and not sent yet.
    held: Bytes,
}

/// Applies the origin's faults and counts to `inner`, which starts at object offset `at` of `key`.
pub(super) fn faulted<B>(inner: B, origin: &Arc<Origin>, key: &str, at: u64) -> Answer
where
    B: Body<Data = Bytes, Error = StdError> + Send + 'static,
{
    let flow = Flow {
        origin: Arc::clone(origin),
        key: key.to_owned(),
        rules: origin.faults.watch(),
        at,
        cut: origin.faults.cut(key),
        held: Bytes::new(),
    };
    let data = Box::pin(
        BodyStream::new(inner).try_filter_map(|frame| async { Ok(frame.into_data().ok()) }),
    );
    let stream = futures::stream::try_unfold((flow, data), |(mut flow, mut data)| async move {
        while flow.held.is_empty() {
            match data.try_next().await? {
                Some(next) => flow.held = next,
                None => return Ok(None),
            }
        }
        let piece = flow.next_piece().await?;
        Ok::<_, StdError>(Some((Frame::data(piece), (flow, data))))
    });
    BodyExt::boxed_unsync(StreamBody::new(stream))
}

impl Flow {
    /// Returns the next bytes that the rules let pass.
    async fn next_piece(&mut self) -> Result<Bytes, StdError> {
        let passing = self.wait_for_room().await?.min(self.held.len() as u64);
        let passing = match self.cut {
            Some(0) => {
                // hyper sends its buffer when the body pauses, and drops it when the body fails.
                tokio::task::yield_now().await;
                return Err("the connection was cut by the test".into());
            }
            Some(left) => passing.min(left),
            None => passing,
        };
        // `passing` is at most the held length, so it fits.
        let piece = self.held.split_to(passing as usize);
        self.at += passing;
        self.cut = self.cut.map(|left| left - passing);
        let key = self.key.clone();
        self.origin.counts.add(|counts| *counts.bytes.entry(key).or_default() += passing);
        Ok(piece)
    }

    /// Returns the number of bytes that may pass; waits while it is zero.
    async fn wait_for_room(&mut self) -> Result<u64, StdError> {
        let room = |rules: &Rules, key: &str, at: u64| match rules.stalls.get(key) {
            _ if rules.broken.contains(key) => Some(Err("the connection was cut by the test")),
            Some(from) => from.checked_sub(at).filter(|room| *room > 0).map(Ok),
            None => Some(Ok(u64::MAX)),
        };
        if let Some(now) = room(&self.rules.borrow_and_update(), &self.key, self.at) {
            return Ok(now?);
        }
        let _stalled = self.origin.counts.present(|counts| &mut counts.stalled);
        let (key, at) = (&self.key, self.at);
        let rules = self.rules.wait_for(|rules| room(rules, key, at).is_some()).await?;
        Ok(room(&rules, key, at).expect("it was waited for")?)
    }
}
