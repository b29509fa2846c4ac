//! Mount of a path, from the kernel's table.
//!
//! The path is compared as written and never followed, since following it asks the very file system
//! that may hang. A path through a symbolic link counts for the mount that holds the link.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use forebay_error::{Doing, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The kernel's number of a mount. One that is mounted anew in the same place has another.
pub(super) type MountId = u64;

/// The mounts of this process's namespace.
pub(super) struct MountTable {
    file: File,
    mounts: Vec<(MountId, PathBuf)>,
}

impl MountTable {
    pub(super) fn open() -> Result<Self> {
        let file = File::open("/proc/self/mountinfo").doing("open the table of mounts")?;
        let mut table = Self { file, mounts: Vec::new() };
        table.read()?;
        Ok(table)
    }

    /// The mount that `path` lies on, and where it is mounted.
    pub(super) fn of(&mut self, path: &Path) -> Result<(MountId, PathBuf)> {
        if self.has_changed()? {
            self.read()?;
        }
        let above = self.mounts.iter().filter(|(_, point)| path.starts_with(point));
        // The last of several mounts in one place is on top.
        let nearest = above.max_by_key(|(_, point)| point.components().count());
        // A process whose root is no mount point has none above some paths: those are one group.
        Ok(nearest.cloned().unwrap_or((0, PathBuf::from("/"))))
    }

    /// The kernel marks the open table when a mount comes or goes.
    fn has_changed(&self) -> Result<bool> {
        let mut marks = [PollFd::new(&self.file, PollFlags::PRI)];
        poll(&mut marks, Some(&Timespec::default())).doing("read the table of mounts")?;
        Ok(marks[0].revents().intersects(PollFlags::PRI | PollFlags::ERR))
    }

    fn read(&mut self) -> Result<()> {
        let mut text = Vec::new();
        self.file.rewind().doing("read the table of mounts")?;
        self.file.read_to_end(&mut text).doing("read the table of mounts")?;
        self.mounts = text.split(|byte| *byte == b'\n').filter_map(parse).collect();
        Ok(())
    }
}

/// Returns the mount point that `path` lies on, as the kernel's table has it. Nothing but the table
/// is read.
///
/// # Errors
/// If the table cannot be read.
pub fn mount_point(path: &Path) -> Result<PathBuf> {
    MountTable::open()?.of(path).map(|(_, point)| point)
}

/// Number and place of the mount that a line describes.
fn parse(line: &[u8]) -> Option<(MountId, PathBuf)> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    // In between: the parent's number, the device, and what of the file system is the mount's root.
    let point = fields.nth(3)?;
    Some((id, PathBuf::from(OsString::from_vec(unescape(point)))))
}

/// The kernel writes blanks and backslashes as three octal digits.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *first == b'\\');
        let code = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|code| u8::from_str_radix(code, 8).ok()) {
            Some(byte) => {
                plain.push(byte);
                rest = &after[3..];
            }
            None => {
                plain.push(*first);
                rest = after;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str) -> MountTable {
        let mounts = text.lines().filter_map(|line| parse(line.as_bytes())).collect();
        MountTable { file: File::open("/proc/self/mountinfo").unwrap(), mounts }
    }

    #[test]
    fn deepest_mount_above_a_path_is_found() {
        let mut table = table(
            "21 1 8:1 / / rw - ext4 /dev/sda rw\n\
             30 21 0:40 / /mnt/a\\040b rw,relatime shared:1 - nfs4 host:/x rw\n\
             31 21 0:41 / /mnt/a rw - lustre mgs:/x rw\n\
             33 21 0:42 / /over rw - ext4 x rw\n\
             34 33 0:43 / /over rw - fuse x rw\n\
             not a line\n",
        );
        for (path, id) in [
            ("/x.tar", 21),
            ("/mnt/x.tar", 21),
            ("/mnt/a/x.tar", 31),
            ("/mnt/a b/d/x.tar", 30),
            ("/mnt/ab/x.tar", 21),
            ("/over/x.tar", 34),
        ] {
            assert_eq!(table.of(Path::new(path)).unwrap().0, id, "{path}");
        }
    }

    #[test]
    fn mount_table_of_this_machine_is_read() {
        let (_, point) = MountTable::open().unwrap().of(Path::new("/proc/self/stat")).unwrap();
        assert_eq!(point, Path::new("/proc"));
    }

    #[test]
    fn mount_points_with_blanks_are_read() {
        let line = b"30 21 0:40 / /mnt/a\\040b rw - nfs4 host:/x rw";
        assert_eq!(parse(line), Some((30, PathBuf::from("/mnt/a b"))));
        assert_eq!(parse(b""), None);
        assert_eq!(mount_point(Path::new("/proc/self/stat")).unwrap(), Path::new("/proc"));
    }
}
