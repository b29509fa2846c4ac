//! A file system for one test.

use std::path::Path;
use std::process::Command;

use forebay_testkit::{Requirement, skip};
use tempfile::TempDir;

use crate::patience::eventually;

/// A tmpfs, unmounted when dropped.
pub struct Mount(Option<TempDir>);

impl Mount {
    /// A mounted tmpfs; `None`, which skips the test, where this process may not mount.
    ///
    /// # Panics
    /// If there is no temp directory, or if the test may not be skipped.
    #[must_use]
    pub fn new(options: &str) -> Option<Self> {
        let directory = TempDir::new().expect("there is a temp directory");
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", options, "forebay-test"]).arg(directory.path());
        match command.output() {
            Ok(done) if done.status.success() => Some(Self(Some(directory))),
            refused => {
                skip(Requirement::Mount, &format!("no tmpfs can be mounted: {refused:?}"));
                None
            }
        }
    }

    /// Mount point.
    ///
    /// # Panics
    /// Never: it is there until dropped.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.as_ref().expect("taken only by drop").path()
    }

    /// Unmounts it; its directory stays.
    ///
    /// # Panics
    /// If it stays in use.
    pub fn unmount(&self) {
        eventually("it is unmounted", || {
            Command::new("umount").arg(self.path()).status().expect("umount runs").success()
        });
    }

    /// Mounts a new tmpfs in the same place.
    ///
    /// # Panics
    /// If it cannot be mounted.
    pub fn mount_again(&self, options: &str) {
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", options, "forebay-test"]).arg(self.path());
        assert!(command.status().expect("mount runs").success());
    }

    /// Remounts it with other options, again and again while a file is open for writing.
    ///
    /// # Panics
    /// If the remount keeps failing.
    pub fn remount(&self, options: &str) {
        let options = format!("remount,{options}");
        eventually("it is mounted with other options", || {
            let done = Command::new("mount").args(["-o", &options]).arg(self.path()).status();
            done.expect("mount runs").success()
        });
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Lazily: a daemon that a failed test left may still hold files.
        let _ = Command::new("umount").arg("--lazy").arg(self.path()).status();
        drop(self.0.take());
    }
}
