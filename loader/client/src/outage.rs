//! Outages: from the loss of a daemon until another one delivers.
//!
//! A daemon that takes a job and is gone again at once has not ended the outage: the time limit
//! goes on, and the next attempt waits. So a job never hurries from daemon to daemon.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_error::Result;

use crate::deadline::{Closing, Deadline};

/// Time after which a connection has ended an outage although nothing came, as between two epochs.
const STEADY: Duration = Duration::from_secs(5);

/// Pause before the next attempt in one outage: a daemon starts in less.
const AGAIN: Duration = Duration::from_millis(500);

/// Time limit of an outage.
#[derive(Default)]
pub(crate) struct Outage(Option<Deadline>);

impl Outage {
    /// Notes the loss of a daemon that was connected since then; `has_delivered`: a message came
    /// from it. Returns the time limit to find another, after a pause if the last one did not help.
    ///
    /// # Errors
    /// `Closed` if the loader closes meanwhile.
    pub(crate) fn begin(
        &mut self,
        connected: Instant,
        has_delivered: bool,
        closing: &Arc<Closing>,
        timeout: Duration,
    ) -> Result<Deadline> {
        if has_delivered || connected.elapsed() >= STEADY {
            self.0 = None;
        }
        match &self.0 {
            Some(limit) => {
                limit.pause(AGAIN)?;
                Ok(limit.clone())
            }
            None => Ok(self.0.insert(closing.or_after(timeout)).clone()),
        }
    }
}
