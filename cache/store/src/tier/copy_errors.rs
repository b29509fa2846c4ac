//! Errors of copies, as opposed to errors of devices.

use forebay_error::{Error, ErrorKind};

/// Returns true if a copy that cannot be opened is bad itself, so that it is useless. Limits and
/// device errors are not its fault.
pub(super) fn is_the_copys_fault(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound | ErrorKind::Invalid)
}
