//! Disks of other sector sizes: files behind loop devices, with a file system.
//!
//! A disk is unmounted and detached however a test ends. A process without the rights gets no
//! disk, and its test is skipped.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::node::Daemon;

/// Size for a few shards and the file system's metadata.
const BYTES: u64 = 192 << 20;

/// A mounted disk.
pub struct LoopDisk {
    device: String,
    mounted: bool,
    folder: TempDir,
}

impl LoopDisk {
    /// A disk with sectors of this many bytes.
    ///
    /// # Errors
    /// The failed command.
    ///
    /// # Panics
    /// If its file cannot be created.
    pub fn new(sector: u32) -> Result<Self, String> {
        let folder = Daemon::disk();
        let image = folder.path().join("image");
        let file = File::create(&image).expect("the folder is writable");
        file.set_len(BYTES).expect("a sparse file takes no room");
        std::fs::create_dir(folder.path().join("mount")).expect("the folder is writable");
        let image = image.display().to_string();
        let device =
            run("losetup", &["--find", "--show", "--sector-size", &sector.to_string(), &image])?;
        let device = device.trim().to_owned();
        let mut disk = Self { device, mounted: false, folder };
        run("mkfs.ext4", &["-q", "-F", "-b", "4096", &disk.device])?;
        run("mount", &[&disk.device, &disk.path().display().to_string()])?;
        disk.mounted = true;
        Ok(disk)
    }

    /// Mount point.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("mount")
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        // A failed test may have files open: the mount ends with them.
        let unmount = |path: &Path| run("umount", &["--lazy", &path.display().to_string()]);
        let unmounted = if self.mounted { unmount(&self.path()).map(drop) } else { Ok(()) };
        let detached = run("losetup", &["--detach", &self.device]).map(drop);
        if !std::thread::panicking() {
            assert_eq!((unmounted, detached), (Ok(()), Ok(())), "a disk is left behind");
        }
    }
}

fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}
