//! Work that Ctrl-C cuts short. Its rule: what may wait on locks and sockets runs on a thread of
//! its own, and whoever asked for it looks for signals meanwhile.

use std::sync::mpsc;
use std::time::Duration;

use forebay_error::{Doing, Error, ErrorKind, Result};
use pyo3::prelude::*;

use crate::errors::Failure;

/// Interval between checks for signals.
const SIGNAL_CHECK: Duration = Duration::from_millis(50);

/// Returns the result of `work`, unless a signal comes first: then the result is dropped when it is
/// there.
pub(crate) fn interruptible<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T, Failure> {
    let (sender, done) = mpsc::channel();
    std::thread::Builder::new()
        .name(name.into())
        .spawn(move || {
            // If nobody waits any more, what came of it is dropped here.
            let _ = sender.send(work());
        })
        .doing("start a thread")?;
    loop {
        match done.recv_timeout(SIGNAL_CHECK) {
            Ok(done) => return Ok(done?),
            Err(mpsc::RecvTimeoutError::Timeout) => Python::attach(|py| py.check_signals())?,
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(Error::new(ErrorKind::Closed, "a thread ended early").into());
            }
        }
    }
}
