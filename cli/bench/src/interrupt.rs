//! SIGINT and SIGTERM while a benchmark runs.
//!
//! The first of them ends what is measured, not the process: what there is is told, and what was
//! made is removed. Another one, or a minute in which that does not come to its end, ends the
//! process.

use std::os::fd::OwnedFd;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use forebay_error::{Doing, Error, ErrorKind, Result};
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;

/// Time for a measurement to end: a contest's loaders end within half of it.
const END_TIMEOUT: Duration = Duration::from_secs(60);

/// A signal that asked a benchmark to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interrupt {
    /// SIGINT, as by Ctrl-C.
    Int,
    /// SIGTERM.
    Term,
}

/// The first that came. Signals are the whole process's, and so is this.
static CAUGHT: Mutex<Option<Interrupt>> = Mutex::new(None);

/// Wakes whoever lets time pass.
static WAKE: Condvar = Condvar::new();

/// A signal closes its other end, which wakes a thread that waits for a process, too.
static LINE: OnceLock<OwnedFd> = OnceLock::new();

impl Interrupt {
    /// Returns the exit code a shell expects after this signal.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Int => 130,
            Self::Term => 143,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Int => "SIGINT",
            Self::Term => "SIGTERM",
        }
    }
}

/// From now on these signals end what is measured, in place of the process.
///
/// # Errors
/// `Unavailable` if signals cannot be listened for.
pub fn watch() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.doing("listen for signals")?;
    let within = runtime.enter();
    let mut signals = [SignalKind::interrupt(), SignalKind::terminate()]
        .into_iter()
        .map(|kind| signal(kind).doing("listen for signals"))
        .collect::<Result<Vec<_>>>()?;
    drop(within);
    let (here, other) = pipe_with(PipeFlags::CLOEXEC).doing("listen for signals")?;
    if LINE.set(here).is_err() {
        // Somebody listens already.
        return Ok(());
    }
    let listen = move || {
        let first = runtime.block_on(next(&mut signals));
        *caught_so_far() = Some(first);
        WAKE.notify_all();
        drop(other);
        let again = runtime.block_on(async { timeout(END_TIMEOUT, next(&mut signals)).await });
        std::process::exit(again.unwrap_or(first).exit_code().into());
    };
    thread::Builder::new().name("signals".to_owned()).spawn(listen).doing("listen for signals")?;
    Ok(())
}

async fn next(signals: &mut [Signal]) -> Interrupt {
    let [interrupt, terminate] = signals else { return std::future::pending().await };
    tokio::select! {
        _ = interrupt.recv() => Interrupt::Int,
        _ = terminate.recv() => Interrupt::Term,
    }
}

/// The signal that came, if one did.
#[must_use]
pub fn caught() -> Option<Interrupt> {
    *caught_so_far()
}

/// Asked for between any two steps of a benchmark.
///
/// # Errors
/// `Closed` once a signal came.
pub(crate) fn check() -> Result<()> {
    match caught() {
        None => Ok(()),
        Some(by) => {
            Err(Error::new(ErrorKind::Closed, format!("{} ended the benchmark", by.name())))
        }
    }
}

/// Lets time pass, for what nothing else ends: emulated work, and a request that is not due yet.
///
/// # Errors
/// `Closed` once a signal came.
pub(crate) fn wait_until(due: Instant) -> Result<()> {
    let mut caught = caught_so_far();
    while caught.is_none() {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        (caught, _) = WAKE.wait_timeout(caught, left).unwrap_or_else(PoisonError::into_inner);
    }
    drop(caught);
    check()
}

/// Returns the descriptor that a signal closes; none if no handler is installed.
pub(crate) fn line() -> Option<&'static OwnedFd> {
    LINE.get()
}

fn caught_so_far() -> MutexGuard<'static, Option<Interrupt>> {
    CAUGHT.lock().unwrap_or_else(PoisonError::into_inner)
}
