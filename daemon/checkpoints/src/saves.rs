//! Saves under way: uploads let them pass.
//!
//! A training run waits for a save, nobody for the start of an upload. An upload reads the disk and
//! takes CPU time as soon as a file is staged, while other ranks still write theirs, or the
//! coordinator its `.metadata`.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

/// Time without a save after which uploads begin: the coordinator gathers the ranks' results before
/// it writes `.metadata`.
const QUIET: Duration = Duration::from_millis(100);

/// Longest time that an upload lets saves pass: jobs that save all the time must not fill a tier.
const PASSED_BY: Duration = Duration::from_secs(1);

/// Saves under way.
#[derive(Clone)]
pub(crate) struct Saves(Arc<watch::Sender<State>>);

struct State {
    under_way: usize,
    /// Time at which the last one ended.
    ended: Instant,
}

/// A save until it is dropped.
pub(crate) struct UnderWay(Saves);

impl Default for Saves {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(State { under_way: 0, ended: Instant::now() })))
    }
}

impl Saves {
    /// Begins a save.
    pub(crate) fn begin(&self) -> UnderWay {
        self.0.send_modify(|state| state.under_way += 1);
        UnderWay(self.clone())
    }

    /// Waits until no file was being saved for a moment, within limits.
    pub(crate) async fn pass(&self) {
        let mut state = self.0.subscribe();
        let quiet = async {
            loop {
                let ended = match state.wait_for(|state| state.under_way == 0).await {
                    Ok(state) => state.ended,
                    Err(_) => return,
                };
                tokio::select! {
                    () = sleep_until(ended + QUIET) => return,
                    _begun = state.wait_for(|state| state.under_way > 0) => {}
                }
            }
        };
        // Either way the upload begins.
        let _: Result<(), _> = timeout(PASSED_BY, quiet).await;
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.0.send_modify(|state| {
            state.under_way -= 1;
            state.ended = Instant::now();
        });
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn uploads_begin_a_moment_after_the_last_save() {
        let saves = Saves::default();
        sleep_until(Instant::now() + QUIET).await;
        assert!(saves.pass().now_or_never().is_some(), "nothing was saved lately");
        let (first, second) = (saves.begin(), saves.begin());
        let waiting = saves.clone();
        let waiting = tokio::spawn(async move {
            waiting.pass().await;
            Instant::now()
        });
        drop(first);
        // Longer than the moment, by which nothing may change.
        sleep_until(Instant::now() + 2 * QUIET).await;
        drop(second);
        // The coordinator's file begins before the moment is over, as a rule.
        let metadata = saves.begin();
        sleep_until(Instant::now() + QUIET / 2).await;
        let last = Instant::now();
        drop(metadata);
        let begun = waiting.await.unwrap();
        assert!(begun >= last + QUIET, "{:?} after the last save", begun - last);
    }

    #[tokio::test]
    async fn endless_saves_hold_no_upload() {
        let saves = Saves::default();
        let _endless = saves.begin();
        assert!(saves.pass().now_or_never().is_none());
        saves.pass().await;
    }
}
