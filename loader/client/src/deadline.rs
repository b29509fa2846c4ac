//! Until when a wait may last, and who may end it sooner.
//!
//! Every wait on the way to a daemon goes through a [`Deadline`], so that none outlasts
//! the caller's time limit or the close of its loader.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use backon::{BackoffBuilder, ExponentialBuilder};
use forebay_error::{Doing, Error, ErrorKind, Result};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// The longest time limit: a year is far beyond any job, and small enough to be added to any clock.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// First pause between two looks at what notifies nobody (a lock, a full socket, a daemon's
/// return), doubled each time …
const PAUSE_FIRST: Duration = Duration::from_millis(20);

/// … up to this, so that the change is seen soon after.
const PAUSE_LAST: Duration = Duration::from_millis(500);

/// Until when a wait may last.
#[derive(Debug, Clone)]
pub struct Deadline {
    at: Instant,
    closing: Option<Arc<Closing>>,
}

impl Deadline {
    /// `timeout` from now; more than [`TIMEOUT_MAX`] is that.
    #[must_use]
    pub fn after(timeout: Duration) -> Self {
        Self { at: Instant::now() + timeout.min(TIMEOUT_MAX), closing: None }
    }

    /// This deadline, or `timeout` from now if that comes first.
    pub(crate) fn or_after(&self, timeout: Duration) -> Self {
        Self { at: self.at.min(Self::after(timeout).at), closing: self.closing.clone() }
    }

    /// Returns the time left.
    pub(crate) fn left(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    pub(crate) fn has_passed(&self) -> bool {
        Instant::now() >= self.at
    }

    /// Returns true if the loader closes.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.as_ref().is_some_and(|closing| closing.is_closed())
    }

    /// Waits for `event` (or the end) of `of`: false if the deadline passes first.
    ///
    /// # Errors
    /// `Closed` if the loader closes meanwhile.
    pub(crate) fn wait_for(&self, of: impl AsFd, event: PollFlags) -> Result<bool> {
        loop {
            let mut polled = vec![PollFd::new(&of, event)];
            polled
                .extend(self.closing.iter().map(|closing| PollFd::new(&closing.0, PollFlags::IN)));
            let ready = poll_until(&mut polled, self.at)?;
            match polled.as_slice() {
                [_, closing] if !closing.revents().is_empty() => return Err(closed()),
                _ if ready > 0 => return Ok(true),
                _ if self.has_passed() => return Ok(false),
                _ => {}
            }
        }
    }

    /// Waits for `pause`, or until the deadline.
    ///
    /// # Errors
    /// `Closed` if the loader closes meanwhile.
    pub(crate) fn pause(&self, pause: Duration) -> Result<()> {
        let until = self.at.min(Instant::now() + pause.min(TIMEOUT_MAX));
        while Instant::now() < until {
            let closing = self.closing.iter();
            let mut polled: Vec<_> =
                closing.map(|closing| PollFd::new(&closing.0, PollFlags::IN)).collect();
            if poll_until(&mut polled, until)? > 0 {
                return Err(closed());
            }
        }
        Ok(())
    }

    /// Tries until there is something, with growing pauses; `None` if the deadline passes first.
    ///
    /// # Errors
    /// The error of a try, or `Closed` if the loader closes meanwhile.
    pub fn retry<T>(&self, mut attempt: impl FnMut() -> Result<Option<T>>) -> Result<Option<T>> {
        let mut pauses = pauses();
        loop {
            if let Some(found) = attempt()? {
                return Ok(Some(found));
            }
            if self.has_passed() {
                return Ok(None);
            }
            self.pause(pauses.next().unwrap_or(PAUSE_LAST))?;
        }
    }
}

/// Waits for any of these; zero if none came, which may be before `until` after a signal.
fn poll_until(polled: &mut [PollFd<'_>], until: Instant) -> Result<usize> {
    let left = until.saturating_duration_since(Instant::now());
    let timeout = Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: left.subsec_nanos().into(),
    };
    match poll(polled, Some(&timeout)) {
        Err(rustix::io::Errno::INTR) => Ok(0),
        polled => polled.doing("wait for the daemon"),
    }
}

/// Growing pauses between two looks.
fn pauses() -> impl Iterator<Item = Duration> {
    ExponentialBuilder::default()
        .with_min_delay(PAUSE_FIRST)
        .with_max_delay(PAUSE_LAST)
        .with_jitter()
        .without_max_times()
        .build()
}

/// Told once that a loader closes; ends every wait under a deadline of its own.
#[derive(Debug)]
pub(crate) struct Closing(OwnedFd);

impl Closing {
    pub(crate) fn new() -> Result<Arc<Self>> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Arc::new(Self(event.doing("make an event descriptor")?)))
    }

    pub(crate) fn close(&self) {
        // A counter that cannot be raised further has been raised before.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    pub(crate) fn is_closed(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        loop {
            match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&now)) {
                Err(rustix::io::Errno::INTR) => {}
                polled => return polled.is_ok_and(|ready| ready > 0),
            }
        }
    }

    /// `timeout` from now, or the close.
    pub(crate) fn or_after(self: &Arc<Self>, timeout: Duration) -> Deadline {
        Deadline { closing: Some(self.clone()), ..Deadline::after(timeout) }
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the loader is closed").advise("make a new one")
}
