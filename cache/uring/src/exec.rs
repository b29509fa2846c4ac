//! Descriptors that child processes inherit.

use forebay_error::{Doing, Result};

/// The first descriptor that is not standard input, output or error.
const FIRST: libc::c_uint = 3;

/// Closes every descriptor but the three standard ones in programs that are started from here on.
///
/// Ours are opened so anyway. But whoever started this process may have left it some of theirs,
/// such as a lock or a pipe that somebody waits on; a child that hangs would hold them for ever.
///
/// # Errors
/// `Unavailable` if the kernel cannot (before Linux 5.11), `PermissionDenied` if a sandbox forbids
/// it.
pub fn close_on_exec() -> Result<()> {
    let (all, flags) = (libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
    // By its number: the C library has a name for it only since glibc 2.34.
    // SAFETY: no memory is passed, and a flag is set on descriptors whose owners keep them open.
    let code = unsafe { libc::syscall(libc::SYS_close_range, FIRST, all, flags) };
    match code {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()).doing("keep descriptors from a child"),
    }
}
