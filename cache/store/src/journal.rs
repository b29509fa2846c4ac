//! What comes in, told as it happens to whoever listens.
//!
//! Its rule: where nobody listens, nothing is told; who listens too slowly misses what is oldest, and learns how much that was.
//! Nothing that fetches ever waits for a listener.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

/// What is kept for whoever listens slowly: a part is 8 MiB, so this is a second of 64 Gbit/s.
const KEPT: usize = 1024;

/// A piece of work on a shard that is on its way in.
#[derive(Debug, Clone)]
pub struct Happened {
    /// The shard.
    pub url: Arc<str>,
    /// What was done.
    pub work: Work,
    /// From when,
    pub since: Instant,
    /// until when.
    pub until: Instant,
}

/// What is done for a shard that comes in.
#[derive(Debug, Clone)]
pub enum Work {
    /// These bytes of its object came from the origin.
    Fetched(Range<u64>),
    /// All of it was made durable and visible on this tier.
    Kept(Arc<str>),
}

/// Where it is told.
#[derive(Debug, Clone)]
pub(crate) struct Journal(broadcast::Sender<Happened>);

/// Somebody who listens.
#[derive(Debug)]
pub struct Listener(broadcast::Receiver<Happened>);

impl Journal {
    pub(crate) fn new() -> Self {
        Self(broadcast::Sender::new(KEPT))
    }

    /// Tells of work that began at `since` and ended now.
    pub(crate) fn tell(&self, url: &str, since: Instant, work: impl FnOnce() -> Work) {
        if self.0.receiver_count() > 0 {
            let happened = Happened { url: url.into(), work: work(), since, until: Instant::now() };
            // Whoever listened may have left just now.
            let _ = self.0.send(happened);
        }
    }

    pub(crate) fn listen(&self) -> Listener {
        Listener(self.0.subscribe())
    }
}

impl Listener {
    /// What happened next, and how much before it was missed; `None` once the store is gone.
    pub async fn next(&mut self) -> Option<(Happened, u64)> {
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
    async fn who_listens_too_slowly_learns_what_was_missed() {
        let journal = Journal::new();
        let mut made = 0;
        let mut tell = |journal: &Journal| {
            journal.tell("s3://b/0.tar", Instant::now(), || {
                made += 1;
                Work::Fetched(made..made + 1)
            });
        };
        tell(&journal);
        let mut listener = journal.listen();
        (0..KEPT as u64 + 3).for_each(|_| tell(&journal));
        let (happened, missed) = listener.next().await.expect("the journal is there");
        assert_eq!(missed, 3);
        // What nobody listened to was not even made.
        assert!(matches!(&happened.work, Work::Fetched(range) if *range == (4..5)), "{happened:?}");
        assert_eq!(listener.next().await.expect("another").1, 0);
    }
}
