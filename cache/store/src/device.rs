//! Deadlines of calls on a tier's disk.
//!
//! A disk may stop to answer without an error. Nobody waits for it longer than [`ANSWER_TIMEOUT`]:
//! the tier is down, and the shard comes from elsewhere. The kernel keeps the memory of an
//! unanswered read or write until it is done with it.

use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};

/// Maximum time for a disk to answer: a spinning disk that writes its longest queue, 22 parts of
/// 4 MiB, takes a few seconds.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Reason of an error, in its place `reason`.
const SILENT: &str = "no-answer";

/// Error of a disk that does not answer.
pub(crate) fn silent() -> Error {
    let error = Error::new(ErrorKind::Unavailable, "the device does not answer");
    error.at("reason", SILENT).at("seconds", ANSWER_TIMEOUT.as_secs())
}

/// Returns true if a disk did not answer.
pub(crate) fn is_silent(error: &Error) -> bool {
    error.place("reason") == Some(SILENT)
}

/// Waits for an answer of a disk.
///
/// # Errors
/// [`silent`] if it does not come in time.
pub(crate) async fn answer<T>(call: impl Future<Output = T>) -> Result<T> {
    tokio::time::timeout(ANSWER_TIMEOUT, call).await.map_err(|_| silent())
}
