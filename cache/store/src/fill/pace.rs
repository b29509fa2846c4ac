//! Speed of a fill's origin, and what a fill does if it is next to nothing.

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Instant;

use forebay_error::{Error, ErrorKind, Result};

use super::endpoints::{Pace, Pulse};
use super::flights::{Counted, Yield};
use super::{Fill, Running};

/// Reason of an error, in its place `reason`: the fill gave its turn to others.
const GAVE_WAY: &str = "gave-way";

/// Returns true if a fill ended only to let others go first: the next attempt waits its turn.
#[must_use]
pub fn gave_way(error: &Error) -> bool {
    error.place("reason") == Some(GAVE_WAY)
}

impl Fill {
    /// Counts a request that waits for its bytes, until dropped.
    pub(super) fn asks(&self) -> Counted<'_> {
        Counted::one_more(&self.asking)
    }

    /// Counts the bytes that came, if a request waits for more.
    pub(super) fn count(&self, pulse: &mut Pulse) -> Pace {
        match self.asking.load(Ordering::Relaxed) {
            0 => Pace::Unknown,
            _ => pulse.count(self.request.rank.received(), Instant::now()),
        }
    }

    /// Runs work on one reply, or on a stream that cannot be entered in its middle.
    ///
    /// # Errors
    /// Those of the work; `Unavailable` if the fill gives its turn to others.
    pub(super) async fn paced<T>(
        &self,
        running: &mut Running<'_>,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let (mut work, mut pulse) = (pin!(work), Pulse::new());
        loop {
            tokio::select! {
                done = &mut work => return done,
                () = pulse.tick() => match self.count(&mut pulse) {
                    Pace::Unknown => {}
                    Pace::Fast => running.mark_fast(),
                    Pace::Slow => self.yield_whole(running.note_slow())?,
                },
            }
        }
    }

    /// Ends a fill that cannot continue later, if it gave up its turn.
    pub(super) fn yield_whole(&self, given: Yield) -> Result<()> {
        match given {
            Yield::Nothing | Yield::Place => Ok(()),
            Yield::Turn => {
                let what = "the store sends next to nothing, and shards of others wait";
                let error = Error::new(ErrorKind::Unavailable, what).at("url", self.url());
                Err(error
                    .at("endpoint", self.request.source.endpoint())
                    .at("reason", GAVE_WAY)
                    .advise("check the store; the shard is requested again when it is read"))
            }
        }
    }
}
