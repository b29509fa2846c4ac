//! Facts about the mount of a tier's directory: file system, mount, owner, space.
//!
//! They are read once, within a time limit, and judged elsewhere: a hanging mount affects only its
//! own tier's checks.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use forebay_config::embedded;
use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_store::{Occupant, occupant};
use rustix::fs::Access;

use super::machine::Machine;

/// A file system that does not answer a look within this time hangs.
const PATIENCE: Duration = Duration::from_secs(10);

/// File systems that lie in memory.
const IN_MEMORY: [&str; 3] = ["tmpfs", "ramfs", "devtmpfs"];

/// A mounted file system, as `/proc/self/mountinfo` has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    /// Path.
    pub(super) at: PathBuf,
    /// Type; for FUSE, with the program behind it if that is known.
    pub(super) kind: String,
    /// The device, or what stands for one.
    pub(super) source: String,
    /// Options of the mount and of the file system.
    pub(super) options: Vec<String>,
}

impl Mount {
    pub(super) fn has(&self, option: &str) -> bool {
        self.options.iter().any(|have| have == option)
    }

    pub(super) fn is_in_memory(&self) -> bool {
        IN_MEMORY.contains(&self.kind.as_str())
    }
}

/// Free space of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FreeSpace {
    /// Bytes of all of it.
    pub(super) total: u64,
    /// Bytes that an unprivileged user may still write.
    pub(super) available: u64,
    /// Files that can still be made; none where they are not counted.
    pub(super) files_left: Option<u64>,
    /// Bytes of shards that are there already.
    pub(super) held: u64,
}

/// Facts about a directory.
#[derive(Debug, Clone)]
pub(super) struct MountFacts {
    /// The directory, or the nearest one above it, links followed.
    pub(super) nearest: PathBuf,
    /// True if it is the directory itself.
    pub(super) exists: bool,
    /// The mount it lies on, if the kernel tells.
    pub(super) mount: Option<Mount>,
    /// The device's number, major and minor.
    pub(super) device: (u32, u32),
    /// The owner, and the mode.
    pub(super) owner: u32,
    pub(super) mode: u32,
    pub(super) space: FreeSpace,
    /// True if this user may write there.
    pub(super) writable: bool,
    /// The directory's fitness as a daemon's cache.
    pub(super) occupant: Result<Occupant>,
}

impl MountFacts {
    /// Looks at `directory`, for as long as a file system that is well needs at most.
    ///
    /// # Errors
    /// `Unavailable` if it does not answer; whatever keeps it from being looked at.
    pub(super) fn look(machine: &Machine, directory: &Path) -> Result<Self> {
        let (sender, looked) = mpsc::channel();
        let (machine, of) = (machine.clone(), directory.to_owned());
        let look = move || {
            // The caller may have stopped waiting; a hanging thread ends with the process.
            let _unheard = sender.send(Self::of(&machine, &of));
        };
        let thread = std::thread::Builder::new().name("fb-look".to_owned()).spawn(look);
        thread.doing("start a thread")?;
        looked
            .recv_timeout(PATIENCE)
            .unwrap_or_else(|_| {
                Err(Error::new(ErrorKind::Unavailable, "the file system does not answer")
                    .at("seconds", PATIENCE.as_secs()))
            })
            .map_err(|error| error.at("directory", directory.display()))
    }

    fn of(machine: &Machine, directory: &Path) -> Result<Self> {
        let nearest = forebay_client::existing(directory);
        let exists = nearest == directory;
        let nearest = std::fs::canonicalize(nearest).doing("find the directory")?;
        let stat = rustix::fs::stat(&nearest).doing("stat the directory")?;
        let space = rustix::fs::statvfs(&nearest).doing("read a disk's free space")?;
        // A file system that does not count files reports a total of zero.
        let files_left = (space.f_files > 0).then_some(space.f_favail);
        let space = FreeSpace {
            total: space.f_blocks.saturating_mul(space.f_frsize),
            available: space.f_bavail.saturating_mul(space.f_frsize),
            files_left,
            held: embedded::held_bytes(directory),
        };
        let mounts = machine.proc("self/mountinfo").unwrap_or_default();
        let occupant = if exists { occupant(&nearest) } else { Ok(Occupant::Nobody) };
        Ok(Self {
            exists,
            mount: mount_of(&mounts, &nearest),
            device: (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev)),
            owner: stat.st_uid,
            mode: stat.st_mode,
            space,
            writable: rustix::fs::access(&nearest, Access::WRITE_OK | Access::EXEC_OK).is_ok(),
            occupant,
            nearest,
        })
    }

    /// The mount's type, for messages.
    pub(super) fn kind(&self) -> &str {
        self.mount.as_ref().map_or("unknown", |mount| &mount.kind)
    }
}

/// The mount that a path lies on: the one furthest down, and of those in one place the last.
fn mount_of(mountinfo: &str, path: &Path) -> Option<Mount> {
    let mounts = mountinfo.lines().filter_map(parse);
    let over = mounts.filter(|mount| path.starts_with(&mount.at));
    // The last of several mounts in one place hides those before it.
    over.max_by_key(|mount| mount.at.components().count())
}

/// One line: `36 35 98:0 /root /mnt rw,noatime shared:1 - ext4 /dev/sda1 rw,errors=continue`.
fn parse(line: &str) -> Option<Mount> {
    let (own, file_system) = line.split_once(" - ")?;
    let mut own = own.split(' ').skip(4);
    let (at, options) = (plain(own.next()?), own.next()?);
    let mut file_system = file_system.split(' ');
    let (kind, source) = (file_system.next()?, plain(file_system.next()?));
    let more = file_system.next().unwrap_or_default();
    let options = options.split(',').chain(more.split(',')).map(str::to_owned).collect();
    Some(Mount { at: at.into(), kind: kind.to_owned(), source, options })
}

/// A text whose blanks, tabs, line breaks and backslashes the kernel wrote as octal numbers.
fn plain(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .into_iter()
        .fold(text.to_owned(), |text, (octal, plain)| text.replace(octal, plain))
}

#[cfg(test)]
impl MountFacts {
    /// A whole, empty, private directory on a large ext4, to be changed by a test.
    pub(super) fn sound() -> Self {
        let mount = Mount {
            at: "/mnt/nvme0".into(),
            kind: "ext4".to_owned(),
            source: "/dev/nvme0n1p1".to_owned(),
            options: ["rw", "relatime"].map(str::to_owned).to_vec(),
        };
        let space =
            FreeSpace { total: 4 << 40, available: 3 << 40, files_left: Some(1 << 27), held: 0 };
        Self {
            nearest: "/mnt/nvme0/forebay".into(),
            exists: true,
            mount: Some(mount),
            device: (259, 1),
            owner: rustix::process::geteuid().as_raw(),
            mode: 0o40_700,
            space,
            writable: true,
            occupant: Ok(Occupant::Nobody),
        }
    }

    /// The same on another file system.
    pub(super) fn on(kind: &str, options: &[&str]) -> Self {
        let mut facts = Self::sound();
        let mount = facts.mount.as_mut().unwrap();
        mount.kind = kind.to_owned();
        mount.options = options.iter().map(|option| (*option).to_owned()).collect();
        facts
    }
}

#[cfg(test)]
mod tests {
    use super::super::machine::Recorded;
    use super::*;

    const MOUNTS: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw\n\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\n\
36 27 259:1 / /mnt/nvme0 rw,noatime shared:1 - xfs /dev/nvme0n1p1 rw,attr2,inode64\n\
37 27 0:40 / /mnt/my\\040disk rw - fuse.sshfs user@host:/ rw,user_id=0\n\
38 36 0:41 / /mnt/nvme0 ro,relatime master:2 - tmpfs none rw,size=4k\n";

    #[test]
    fn deepest_and_last_mount_counts() {
        let kind = |path: &str| mount_of(MOUNTS, path.as_ref()).map(|mount| mount.kind);
        assert_eq!(kind("/mnt").as_deref(), Some("ext4"));
        assert_eq!(kind("/mnt/my disk/a").as_deref(), Some("fuse.sshfs"));
        assert_eq!(kind("/mnt/nvme01").as_deref(), Some("ext4"), "no folder of that name");
        let hidden = mount_of(MOUNTS, "/mnt/nvme0/forebay".as_ref()).unwrap();
        assert!(hidden.is_in_memory() && hidden.has("ro") && hidden.has("size=4k"), "{hidden:?}");
        assert_eq!(mount_of("nonsense\n", "/".as_ref()), None);
    }

    #[test]
    fn a_directory_that_is_not_there_is_judged_by_the_one_above() {
        let folder = tempfile::tempdir().unwrap();
        let recorded = Recorded::new().proc("self/mountinfo", MOUNTS);
        let unmade = folder.path().join("a/b");
        let facts = MountFacts::look(&recorded.machine, &unmade).unwrap();
        assert!(!facts.exists && facts.writable);
        assert_eq!(facts.nearest, std::fs::canonicalize(folder.path()).unwrap());
        assert_eq!(facts.kind(), "ext4");
        assert!(facts.space.total >= facts.space.available);
        let made = MountFacts::look(&recorded.machine, folder.path()).unwrap();
        assert!(made.exists && made.occupant == Ok(Occupant::Nobody));
        std::fs::write(folder.path().join("thesis.tex"), "").unwrap();
        let foreign = MountFacts::look(&recorded.machine, folder.path()).unwrap();
        assert_eq!(foreign.occupant.unwrap_err().kind(), ErrorKind::Invalid);
    }
}
