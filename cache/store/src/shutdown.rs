//! Error of work that the end of the daemon cuts off.

use forebay_error::{Error, ErrorKind};

pub(crate) fn shutting_down() -> Error {
    Error::new(ErrorKind::Closed, "the daemon is shutting down")
}
