//! Scrubs: every byte at rest compared with what its origin sent.
//!
//! One at a time. It is as fast as many would be, and leaves the devices to jobs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_api::scrubs::Scrubbing;
use forebay_error::{Error, ErrorKind, Problem, Result};
use forebay_store::{Scrub, Store};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::sessions::Present;

/// Ended ones that are still told of.
const REMEMBERED: usize = 1;

/// A scrub in the node's list.
#[derive(Debug, Clone)]
pub struct RegisteredScrub {
    progress: watch::Receiver<Scrubbing>,
    task: AbortHandle,
}

impl RegisteredScrub {
    /// Watches the scrub to its end; updates come at most as often as it changes.
    pub fn progress(&self) -> watch::Receiver<Scrubbing> {
        self.progress.clone()
    }

    /// Returns the progress.
    pub fn describe(&self) -> Scrubbing {
        self.progress.borrow().clone()
    }

    /// Checks no more.
    pub fn stop(&self) {
        self.task.abort();
    }

    fn is_running(&self) -> bool {
        !self.progress.borrow().scrub.done
    }
}

/// The scrub of a node that runs, and the last that ended.
#[derive(Debug, Default)]
pub struct Scrubs {
    list: Mutex<Vec<RegisteredScrub>>,
    made: AtomicU64,
}

impl Scrubs {
    /// Begins one; `keep`: what is wrong is told and left.
    ///
    /// # Errors
    /// `Unavailable` if one is under way.
    pub fn begin(&self, store: Store, present: Present, keep: bool) -> Result<RegisteredScrub> {
        let mut list = self.list();
        if let Some(running) = list.iter().find(|scrub| scrub.is_running()) {
            return Err(Error::new(ErrorKind::Unavailable, "a scrub is running already")
                .at("number", running.describe().number)
                .advise("wait for its end, or end the `forebay scrub` that runs"));
        }
        let number = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        let told = Scrubbing { number, ..Scrubbing::default() };
        let (sender, progress) = watch::channel(told.clone());
        let end = End { told, sender };
        tracing::info!(number, "begins a scrub");
        let task = tokio::spawn(async move {
            // An embedded daemon stays for it.
            let _present = present;
            let mut end = end;
            let tell = |scrub: &Scrub| {
                end.told.scrub = scrub.clone();
                end.sender.send_replace(end.told.clone());
            };
            let ended = store.scrub(keep, tell).await;
            end.end(ended);
        });
        let registered = RegisteredScrub { progress, task: task.abort_handle() };
        if list.len() > REMEMBERED {
            list.remove(0);
        }
        list.push(registered.clone());
        Ok(registered)
    }

    /// The one that runs, and the last that ended.
    pub fn describe(&self) -> Vec<Scrubbing> {
        self.list().iter().map(RegisteredScrub::describe).collect()
    }

    /// Stops one; with what it found.
    ///
    /// # Errors
    /// `NotFound` if none of this number runs.
    pub fn stop(&self, number: u64) -> Result<Scrubbing> {
        let list = self.list();
        let is_it =
            |scrub: &&RegisteredScrub| scrub.is_running() && scrub.describe().number == number;
        let scrub = list.iter().find(is_it).ok_or_else(|| {
            Error::new(ErrorKind::NotFound, "no scrub with this number is running")
                .at("number", number)
        })?;
        scrub.stop();
        Ok(scrub.describe())
    }

    fn list(&self) -> MutexGuard<'_, Vec<RegisteredScrub>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says that a scrub is over, however that came.
struct End {
    told: Scrubbing,
    sender: watch::Sender<Scrubbing>,
}

impl End {
    fn end(&mut self, ended: Result<Scrub>) {
        match ended {
            Ok(scrub) => self.told.scrub = scrub,
            Err(error) => self.told.error = Some(Problem::from(&error)),
        }
        self.told.scrub.done = true;
    }
}

impl Drop for End {
    fn drop(&mut self) {
        if !self.told.scrub.done {
            let stopped = Error::new(ErrorKind::Closed, "the scrub was stopped early");
            self.end(Err(stopped));
        }
        let Scrubbing { number, scrub, .. } = &self.told;
        tracing::info!(number, shards = scrub.shards_done, wrong = scrub.wrong, "ended a scrub");
        self.sender.send_replace(self.told.clone());
    }
}
