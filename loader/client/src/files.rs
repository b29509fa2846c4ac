//! Files that this process opens for its daemon, with its own rights.
//!
//! It opens what it asked the daemon to read, and nothing else, for reading and no more. Each
//! process that reads for the daemon is answered by a thread of its own, so that a file system that
//! hangs keeps nobody waiting but who asked for its files.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_wire::files::answer;
use forebay_wire::message::Request;
use rustix::fs::{Mode, OFlags, open};

/// Readers that are answered at once. A daemon has as many for one user at most.
const READERS: usize = 64;

/// The paths that a daemon was asked to read.
#[derive(Debug, Default)]
pub(crate) struct Files {
    named: Mutex<BTreeSet<Box<str>>>,
    /// Readers that are answered.
    readers: AtomicUsize,
}

impl Files {
    /// Notes which files a request names.
    pub(crate) fn note(&self, request: &Request) {
        let urls = match request {
            Request::Open(open) => open.urls.as_slice(),
            Request::Index { url, .. } | Request::Members { url, .. } => std::slice::from_ref(url),
            _ => return,
        };
        self.lock().extend(urls.iter().filter_map(|url| path_of(url)).map(Box::from));
    }

    /// Answers a process that reads for the daemon, for as long as it asks.
    pub(crate) fn serve(self: &Arc<Self>, socket: OwnedFd) {
        if self.readers.fetch_add(1, Ordering::Relaxed) >= READERS {
            self.readers.fetch_sub(1, Ordering::Relaxed);
            // The reader finds its socket closed, and says so.
            tracing::warn!(limit = READERS, "the daemon has more readers than are answered");
            return;
        }
        let (files, socket) = (self.clone(), UnixStream::from(socket));
        let serving = std::thread::Builder::new().name("fb-files".into()).spawn(move || {
            if let Err(error) = answer(&socket, |path| files.open(path)) {
                tracing::warn!(%error, "a daemon's reader gets no more answers");
            }
            files.readers.fetch_sub(1, Ordering::Relaxed);
        });
        if let Err(error) = serving {
            self.readers.fetch_sub(1, Ordering::Relaxed);
            tracing::warn!(%error, "failed to start a thread that opens files for the daemon");
        }
    }

    fn open(&self, path: &str) -> Result<OwnedFd> {
        if !self.lock().contains(path) {
            let what = "the daemon requested a file that this job does not name";
            return Err(Error::new(ErrorKind::PermissionDenied, what).at("path", path));
        }
        // A pipe must not make us wait for its writer.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = open(path, flags, Mode::empty()).doing("open the shard for the daemon");
        opened.map_err(|error| error.at("path", path))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<Box<str>>> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The path that a URL names, if it names one.
fn path_of(url: &str) -> Option<&str> {
    match url.strip_prefix("file:") {
        Some(rest) => Some(rest.strip_prefix("//").unwrap_or(rest)),
        None => Some(url).filter(|url| url.starts_with('/')),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn only_named_files_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        for name in ["a.tar", "b.tar", "c.tar", "d.tar"] {
            std::fs::write(path(name), name).unwrap();
        }
        let files = Files::default();
        for url in [
            path("a.tar"),
            format!("file://{}", path("b.tar")),
            format!("file:{}", path("c.tar")),
            format!("s3:/{}", path("d.tar")),
        ] {
            files.note(&Request::Index { url, origin: BTreeMap::new() });
        }
        for name in ["a.tar", "b.tar", "c.tar"] {
            let fd = files.open(&path(name)).unwrap();
            assert!(rustix::io::write(&fd, b"x").is_err(), "it was opened for writing");
        }
        for path in [path("d.tar"), path("../a.tar"), "/etc/passwd".to_owned()] {
            assert_eq!(files.open(&path).unwrap_err().kind(), ErrorKind::PermissionDenied);
        }
    }
}
