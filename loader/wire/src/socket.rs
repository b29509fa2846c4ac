//! Paths of sockets, of any length.
//!
//! The kernel takes 107 bytes. A longer path is named through a descriptor of its folder, which
//! stays open for as long as the name is in use.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use forebay_error::{Doing, Error, ErrorKind, Result};
use rustix::fs::OFlags;

/// Bytes of a socket's address, an end included.
const PATH_MAX: usize = 108;

/// Path that a socket's address can hold.
#[derive(Debug)]
pub struct SocketPath {
    path: PathBuf,
    _folder: Option<File>,
}

impl SocketPath {
    /// Makes an address of `path`, whose folder must exist if it is long.
    ///
    /// # Errors
    /// The error of opening the folder; `Invalid` if the name in it is too long, too.
    pub fn of(path: &Path) -> Result<Self> {
        if path.as_os_str().len() < PATH_MAX {
            return Ok(Self { path: path.to_owned(), _folder: None });
        }
        let too_long = || Error::new(ErrorKind::Invalid, "the name of the socket is too long");
        let (folder, name) = path.parent().zip(path.file_name()).ok_or_else(too_long)?;
        let flags = i32::try_from((OFlags::PATH | OFlags::DIRECTORY).bits())
            .expect("the flags of open(2) are an int");
        let folder = OpenOptions::new().read(true).custom_flags(flags).open(folder);
        let folder = folder.doing("open the socket's folder")?;
        let path = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
        match path.as_os_str().len() < PATH_MAX {
            true => Ok(Self { path, _folder: Some(folder) }),
            false => Err(too_long()),
        }
    }

    /// Returns a path that an address can hold, while `self` lives.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn sockets_at_long_paths_connect() {
        let root = std::env::temp_dir().join(format!("fb-socket-{}", std::process::id()));
        let folder = root.join("f".repeat(PATH_MAX)).join("g".repeat(PATH_MAX));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("d.sock");
        assert!(UnixListener::bind(&path).is_err());
        let listener = UnixListener::bind(SocketPath::of(&path).unwrap().path()).unwrap();
        UnixStream::connect(SocketPath::of(&path).unwrap().path()).unwrap();
        listener.accept().unwrap();
        std::fs::remove_dir_all(root).unwrap();
    }
}
