//! A file on a file system that can be made to hang, as a parallel file system does when a server
//! is gone. Reads then stay in the kernel, and SIGKILL does not end their process.
//!
//! The file system thaws and is unmounted however a test ends. Without FUSE, nbdkit and
//! nbdfuse the test is skipped.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use forebay_testkit::{Requirement, skip};
use tempfile::TempDir;

use crate::patience::eventually;
use crate::user_home::stat_of;

/// A mounted file and its servers.
pub struct HangingFile {
    name: String,
    /// nbdkit: serves the bytes, and pauses on request.
    server: Child,
    /// nbdfuse: the file system.
    mount: Child,
    folder: TempDir,
}

impl HangingFile {
    /// A file system with one file of this name and content; `None`, which skips the test, without
    /// FUSE.
    ///
    /// # Panics
    /// If there is no temp directory, if a server does not start, or if the test may not be
    /// skipped.
    #[must_use]
    pub fn new(name: &str, bytes: &[u8]) -> Option<Self> {
        let missing = ["nbdkit", "nbdfuse"].into_iter().find(|program| {
            let told = Command::new(program).arg("--version").stdout(Stdio::null()).status();
            !told.is_ok_and(|status| status.success())
        });
        if let Some(missing) = missing {
            skip(Requirement::Fuse, &format!("{missing} is not installed"));
            return None;
        }
        if let Err(error) = std::fs::File::options().read(true).write(true).open("/dev/fuse") {
            skip(Requirement::Fuse, &format!("/dev/fuse cannot be opened: {error}"));
            return None;
        }
        let folder = TempDir::new().expect("a temp directory can be made");
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("disk"), bytes).expect("the folder is writable");
        std::fs::create_dir(at("mount")).expect("the folder is writable");
        let argument = |name: &str, path: PathBuf| format!("{name}={}", path.display());
        let server = Command::new("nbdkit")
            .args(["--foreground", "--exit-with-parent", "--readonly", "--filter=pause"])
            .arg("--unix")
            .arg(at("nbd.sock"))
            .arg("--pidfile")
            .arg(at("nbd.pid"))
            .args(["file".to_owned(), argument("file", at("disk"))])
            .arg(argument("pause-control", at("pause.sock")))
            .stdin(Stdio::null())
            .spawn()
            .expect("nbdkit starts");
        eventually("nbdkit serves", || at("nbd.pid").exists());
        let mount = Command::new("nbdfuse")
            .args(["--readonly", "--pidfile"])
            .arg(at("fuse.pid"))
            .arg(at("mount").join(name))
            .arg("--unix")
            .arg(at("nbd.sock"))
            .stdin(Stdio::null())
            .spawn()
            .expect("nbdfuse starts");
        let mut hanging = Self { name: name.to_owned(), server, mount, folder };
        let mut refused = false;
        eventually("nbdfuse serves, or ends", || {
            refused = hanging.mount.try_wait().is_ok_and(|ended| ended.is_some());
            refused || hanging.folder.path().join("fuse.pid").exists()
        });
        if refused {
            skip(Requirement::Fuse, "nbdfuse cannot mount");
            return None;
        }
        Some(hanging)
    }

    /// Path of the file.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("mount").join(&self.name)
    }

    /// Mount point.
    #[must_use]
    pub fn mount(&self) -> PathBuf {
        self.folder.path().join("mount")
    }

    /// Makes reads hang from now on.
    ///
    /// # Panics
    /// If the server rejects the command.
    pub fn freeze(&self) {
        assert_eq!(self.control(b'p').expect("the server listens"), b'P');
    }

    /// Answers hanging reads.
    ///
    /// # Panics
    /// If the server rejects the command.
    pub fn thaw(&self) {
        assert_eq!(self.control(b'r').expect("the server listens"), b'R');
    }

    fn control(&self, word: u8) -> std::io::Result<u8> {
        let mut socket = UnixStream::connect(self.folder.path().join("pause.sock"))?;
        socket.write_all(&[word])?;
        let mut answer = [0];
        socket.read_exact(&mut answer)?;
        Ok(answer[0])
    }
}

impl Drop for HangingFile {
    fn drop(&mut self) {
        // Hanging reads must end before the unmount. Fails if nothing hangs or the server is gone.
        let _ = self.control(b'r');
        let _ = Command::new("umount").arg("--lazy").arg(self.mount()).status();
        for child in [&mut self.mount, &mut self.server] {
            // nbdfuse ends with its file system.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Process ids of the running readers of the daemon with this process id.
#[must_use]
pub fn readers_of(pid: u32) -> Vec<u32> {
    let listed = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = listed.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_reader = |child: &u32| {
        let command = std::fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
        stat_of(*child).is_some_and(|stat| stat.parent == pid) && command.ends_with(b"\0reader\0")
    };
    pids.filter(is_reader).collect()
}

/// True if a process is in an uninterruptible system call on a FUSE file system.
#[must_use]
pub fn hangs(pid: u32) -> bool {
    // Short waits for a disk differ only in the kernel function, where the kernel shows it.
    let place = std::fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
    let is_here = place.contains("fuse") || place == "request_wait_answer";
    is_here && stat_of(pid).is_some_and(|stat| stat.state == 'D')
}
