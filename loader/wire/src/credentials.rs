//! Identity of the process at the other end of a Unix socket, as the kernel reports it.
//!
//! Nothing that it sends counts. The kernel notes user and groups when it connects.
//! Later changes of the process, or of the socket's holder, have no effect.

use std::os::fd::{AsRawFd, BorrowedFd};

use forebay_error::{Doing, Error, ErrorKind, Result};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;

/// Number of groups that most users stay below: one call then returns all.
const GROUPS_USUAL: usize = 32;

/// Largest number of groups of a process: Linux's `NGROUPS_MAX`.
const GROUPS_MAX: usize = 65_536;

/// User and groups of a connected process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Process id, if it is visible in this namespace; for display, never for decisions.
    pub pid: Option<u32>,
}

impl Credentials {
    /// Returns the credentials of the process that connected `socket`.
    ///
    /// # Errors
    /// The system call's error if the socket is not a Unix socket, or the kernel is older than
    /// 4.13.
    pub fn of(socket: BorrowedFd<'_>) -> Result<Self> {
        // Not rustix's call: its process ids are never zero, and the kernel's may be.
        let client = getsockopt(&socket, PeerCredentials).map_err(std::io::Error::from);
        let client = client.doing("read a client's credentials")?;
        let groups = groups(socket)?;
        Ok(Self {
            uid: client.uid(),
            gid: client.gid(),
            groups,
            // Zero: the process is in a namespace that this one does not see.
            pid: u32::try_from(client.pid()).ok().filter(|pid| *pid != 0),
        })
    }

    /// True if the process is in a group, primary or supplementary.
    #[must_use]
    pub fn is_in(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

fn groups(socket: BorrowedFd<'_>) -> Result<Vec<u32>> {
    let mut room = GROUPS_USUAL;
    loop {
        let mut groups: Vec<libc::gid_t> = vec![0; room];
        let bytes = size_of_val(groups.as_slice());
        let mut len = libc::socklen_t::try_from(bytes).expect("bounded by GROUPS_MAX");
        // rustix supports SO_PEERCRED, but not this. SAFETY: the descriptor is borrowed and so
        // open; `groups` is writable for `len` bytes, the most the kernel writes there, and any
        // bits are a gid; `len` outlives the call.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        // Bytes it wrote, or would need.
        let told = len as usize / size_of::<libc::gid_t>();
        if result == 0 {
            groups.truncate(told);
            return Ok(groups);
        }
        let error = std::io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) {
            return Err(error).doing("read a client's groups");
        }
        if told <= room || told > GROUPS_MAX {
            let what = "the kernel reports more groups than a process may have";
            return Err(Error::new(ErrorKind::Invalid, what).at("groups", told));
        }
        room = told;
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn kernel_reports_credentials_of_this_process() {
        let (near, _far) = UnixStream::pair().unwrap();
        let client = Credentials::of(near.as_fd()).unwrap();
        assert_eq!(client.uid, rustix::process::geteuid().as_raw());
        assert_eq!(client.gid, rustix::process::getegid().as_raw());
        assert_eq!(client.pid, Some(std::process::id()));
        let own = rustix::process::getgroups().unwrap();
        assert_eq!(client.groups, own.iter().map(|gid| gid.as_raw()).collect::<Vec<_>>());
        assert!(client.is_in(client.gid) && client.groups.iter().all(|gid| client.is_in(*gid)));
        assert!(!client.is_in(u32::MAX), "nobody is in the group that is none");
    }

    /// More groups than the first call has room for, set in this thread alone.
    #[test]
    fn long_group_lists_are_read_in_full() {
        if !forebay_skip::is_root("a thread chooses its groups") {
            return;
        }
        let many: Vec<u32> = (1..=1000).map(|gid| gid * 7).collect();
        let gids: Vec<_> = many.iter().map(|gid| rustix::process::Gid::from_raw(*gid)).collect();
        std::thread::spawn(move || {
            rustix::thread::set_thread_groups(&gids).unwrap();
            let (near, _far) = UnixStream::pair().unwrap();
            let client = Credentials::of(near.as_fd()).unwrap();
            assert_eq!(client.groups, many);
            assert!(client.is_in(7000) && !client.is_in(7001));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn credentials_of_a_plain_file_are_an_error() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(Credentials::of(file.as_fd()).is_err());
    }
}
