//! Journal of arriving shards, for listeners.
//!
//! Without listeners nothing is reported. A slow listener misses the oldest events and learns
//! their number. A fetch never waits for a listener.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

/// Events kept for slow listeners: a part is 8 MiB, so this is a second of 64 Gbit/s.
const KEPT: usize = 1024;

/// A finished step of an arriving shard.
#[derive(Debug, Clone)]
pub struct FetchEvent {
    /// URL of the shard.
    pub url: Arc<str>,
    /// Kind of step.
    pub work: FetchStep,
    /// Start of the step,
    pub since: Instant,
    /// and its end.
    pub until: Instant,
}

/// Steps of an arriving shard.
#[derive(Debug, Clone)]
pub enum FetchStep {
    /// These bytes of the object came from the origin.
    Fetched(Range<u64>),
    /// The whole shard is durable and visible on this tier.
    Kept(Arc<str>),
}

/// Sender of the events.
#[derive(Debug, Clone)]
pub(crate) struct Journal(broadcast::Sender<FetchEvent>);

/// Receiver of the events.
#[derive(Debug)]
pub struct Listener(broadcast::Receiver<FetchEvent>);

impl Journal {
    pub(crate) fn new() -> Self {
        Self(broadcast::Sender::new(KEPT))
    }

    /// Reports a step that began at `since` and ends now.
    pub(crate) fn tell(&self, url: &str, since: Instant, work: impl FnOnce() -> FetchStep) {
        if self.0.receiver_count() > 0 {
            let happened =
                FetchEvent { url: url.into(), work: work(), since, until: Instant::now() };
            // The last listener may just have left.
            let _ = self.0.send(happened);
        }
    }

    pub(crate) fn listen(&self) -> Listener {
        Listener(self.0.subscribe())
    }
}

impl Listener {
    /// Next event, and the number of events missed before it; `None` once the store is gone.
    pub async fn next(&mut self) -> Option<(FetchEvent, u64)> {
        let mut missed = 0;
        loop {
            match self.0.recv().await {
                Ok(happened) => return Some((happened, missed)),
                Err(RecvError::Lagged(more)) => missed += more,
                Err(RecvError::Closed) => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn slow_listener_learns_number_of_missed_events() {
        let journal = Journal::new();
        let mut made = 0;
        let mut tell = |journal: &Journal| {
            journal.tell("s3://b/0.tar", Instant::now(), || {
                made += 1;
                FetchStep::Fetched(made..made + 1)
            });
        };
        tell(&journal);
        let mut listener = journal.listen();
        (0..KEPT as u64 + 3).for_each(|_| tell(&journal));
        let (happened, missed) = listener.next().await.expect("the journal is there");
        assert_eq!(missed, 3);
        // Without a listener the event was not even made.
        assert!(
            matches!(&happened.work, FetchStep::Fetched(range) if *range == (4..5)),
            "{happened:?}"
        );
        assert_eq!(listener.next().await.expect("another").1, 0);
    }
}
