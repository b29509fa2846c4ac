//! NUMA node of a directory's disk, and pinning of threads to it.
//!
//! A thread is pinned only where that can help and is certain: the machine has several nodes, the
//! kernel names the disk's, and the process may use processors of it. Everything else leaves the
//! thread alone.
//! ```text
//!  directory ─stat─► MAJ:MIN ─► /sys/dev/block/MAJ:MIN ─► …/pci0000:80/…/nvme0/nvme0n1/nvme0n1p1
//!                                                          nearest `numa_node` upwards: the node
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use forebay_error::{Doing, Error, ErrorKind, Result};
use rustix::thread::CpuSet;

/// Block devices deep that a stacked device (LVM on RAID on partitions) is looked through: real
/// stacks have three layers, and a bound ends a loop that the kernel should never show.
const MAX_STACK: u32 = 8;

/// The node of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Home {
    pub(super) node: u32,
    /// The node's processors.
    cpus: Vec<usize>,
}

impl Home {
    /// The node of the disk behind `directory`, or behind its nearest parent that exists: a cache
    /// directory may be yet to be made. `None` where pinning is of no use or nothing is known.
    pub(super) fn near(directory: &Path) -> Option<Self> {
        let stat = directory.ancestors().find_map(|place| rustix::fs::stat(place).ok())?;
        let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
        Self::of_device(Path::new("/sys"), major, minor)
    }

    /// The same for a device number, in the sysfs mounted at `sys`.
    fn of_device(sys: &Path, major: u32, minor: u32) -> Option<Self> {
        let nodes = sys.join("devices/system/node");
        if parse_list(&read(&nodes.join("online"))?)?.len() < 2 {
            return None;
        }
        let device = fs::canonicalize(sys.join(format!("dev/block/{major}:{minor}"))).ok()?;
        let node = node_of(&device, MAX_STACK)?;
        let cpus = parse_list(&read(&nodes.join(format!("node{node}/cpulist")))?)?;
        Some(Self { node, cpus })
    }

    /// Keeps the calling thread on the node's processors, those of them that it may use now.
    pub(super) fn pin(&self) -> Result<()> {
        let allowed =
            rustix::thread::sched_getaffinity(None).doing("read the thread's affinity")?;
        let mut wanted = CpuSet::new();
        // A set holds so many processors; those beyond cannot be named.
        let named = self.cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU);
        named.filter(|cpu| allowed.is_set(**cpu)).for_each(|cpu| wanted.set(*cpu));
        if wanted.count() == 0 {
            return Err(Error::new(
                ErrorKind::PermissionDenied,
                "none of the node's processors may be used",
            )
            .at("node", self.node));
        }
        rustix::thread::sched_setaffinity(None, &wanted).doing("pin a thread to its node")
    }
}

/// The node that a block device's directory in sysfs stands for: its own, or the one that all the
/// devices it is made of agree on.
fn node_of(device: &Path, stack: u32) -> Option<u32> {
    let own = device.ancestors().find_map(|place| read(&place.join("numa_node")));
    if let Some(text) = own {
        return parse_node(&text);
    }
    let stack = stack.checked_sub(1)?;
    let mut nodes = parts(device).into_iter().map(|part| node_of(&part, stack));
    let first = nodes.next()??;
    nodes.all(|node| node == Some(first)).then_some(first)
}

/// Returns the parts of a virtual block device: the slaves of a mapped or RAID device (or of the
/// whole device, for a partition), the controllers of an NVMe drive that is reached by several.
fn parts(device: &Path) -> Vec<PathBuf> {
    let entries = |directory: PathBuf, prefix: &str| -> Vec<PathBuf> {
        let Ok(listing) = fs::read_dir(directory) else { return Vec::new() };
        let named =
            listing.flatten().filter(|e| e.file_name().to_string_lossy().starts_with(prefix));
        // Only what lies elsewhere: a part below the device itself would lead back to it.
        let real = named.filter_map(|entry| fs::canonicalize(entry.path()).ok());
        real.filter(|part| !part.starts_with(device) && !device.starts_with(part)).collect()
    };
    let whole = device.join("partition").exists().then(|| device.parent()).flatten();
    let whole = whole.unwrap_or(device);
    let slaves = entries(whole.join("slaves"), "");
    if slaves.is_empty() { entries(whole.join("device"), "nvme") } else { slaves }
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// A `numa_node` file: −1 says that the device hangs on none.
fn parse_node(text: &str) -> Option<u32> {
    text.trim().parse().ok()
}

/// A kernel list such as `0-3,8,10-11`, in full; `None` if it is none or has no end.
fn parse_list(text: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for piece in text.trim().split(',').filter(|piece| !piece.is_empty()) {
        let (first, last) = piece.split_once('-').unwrap_or((piece, piece));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        // Beyond what a set can hold there is nothing to name, and a bound keeps nonsense small.
        numbers.extend(first..=last.min(CpuSet::MAX_CPU));
    }
    (!numbers.is_empty()).then_some(numbers)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn kernel_lists_are_read_in_full() {
        assert_eq!(parse_list("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(parse_list("0\n"), Some(vec![0]));
        for nonsense in ["\n", "", "a-b", "1-", "-1", "4-2"] {
            assert_eq!(parse_list(nonsense), None, "{nonsense:?}");
        }
        assert!(parse_list("0-18446744073709551615").is_some_and(|all| all.len() <= 1025));
    }

    #[test]
    fn negative_numa_node_means_none() {
        assert_eq!(parse_node("1\n"), Some(1));
        assert_eq!(parse_node("-1\n"), None);
        assert_eq!(parse_node(""), None);
    }

    /// A sysfs of two nodes.
    struct Sys(tempfile::TempDir);

    impl Sys {
        fn new(online: &str) -> Self {
            let sys = Self(tempfile::tempdir().unwrap());
            sys.file("devices/system/node/online", online);
            sys.file("devices/system/node/node0/cpulist", "0-1\n");
            sys.file("devices/system/node/node1/cpulist", "2-3,6\n");
            sys
        }

        fn file(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn link(&self, path: &str, to: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink(self.0.path().join(to), path).unwrap();
        }

        /// An NVMe partition on node `node`, as device `number`.
        fn drive(&self, name: &str, number: &str, node: &str) {
            let pci = format!("devices/pci0000:80/0000:{name}");
            self.file(&format!("{pci}/numa_node"), node);
            self.file(&format!("{pci}/nvme/{name}/{name}n1/{name}n1p1/partition"), "1\n");
            let whole = format!("{pci}/nvme/{name}/{name}n1");
            self.link(&format!("dev/block/{number}"), &format!("{whole}/{name}n1p1"));
            self.link(&format!("{whole}/device"), &format!("{pci}/nvme/{name}"));
        }

        fn home(&self, minor: u32) -> Option<(u32, Vec<usize>)> {
            let home = Home::of_device(self.0.path(), 259, minor)?;
            Some((home.node, home.cpus))
        }
    }

    #[test]
    fn drive_has_the_numa_node_of_its_slot() {
        let sys = Sys::new("0-1\n");
        sys.drive("nvme0", "259:1", "1\n");
        sys.drive("nvme1", "259:2", "-1\n");
        assert_eq!(sys.home(1), Some((1, vec![2, 3, 6])));
        assert_eq!(sys.home(2), None, "the kernel does not know");
        assert_eq!(sys.home(3), None, "there is no such device: tmpfs, overlay");
    }

    #[test]
    fn single_node_machine_has_no_preferred_node() {
        let sys = Sys::new("0\n");
        sys.drive("nvme0", "259:1", "0\n");
        assert_eq!(sys.home(1), None);
    }

    #[test]
    fn stacked_device_has_the_common_node_of_its_parts() {
        let sys = Sys::new("0-1\n");
        sys.drive("nvme0", "259:1", "1\n");
        sys.drive("nvme1", "259:2", "1\n");
        sys.drive("nvme2", "259:3", "0\n");
        for (minor, parts) in [(10, ["259:1", "259:2"]), (11, ["259:2", "259:3"])] {
            let raid = format!("devices/virtual/block/md{minor}");
            for part in parts {
                sys.link(&format!("{raid}/slaves/{part}"), &format!("dev/block/{part}"));
            }
            sys.link(&format!("dev/block/259:{minor}"), &raid);
        }
        assert_eq!(sys.home(10), Some((1, vec![2, 3, 6])));
        assert_eq!(sys.home(11), None, "its parts hang on both");
        // A volume on a partition of the first of them, and one made of itself.
        sys.file("devices/virtual/block/md10/md10p1/partition", "1\n");
        sys.link("devices/virtual/block/dm-0/slaves/md10p1", "devices/virtual/block/md10/md10p1");
        sys.link("dev/block/259:20", "devices/virtual/block/dm-0");
        assert_eq!(sys.home(20), Some((1, vec![2, 3, 6])));
        sys.link("devices/virtual/block/dm-1/slaves/dm-2", "devices/virtual/block/dm-2");
        sys.link("devices/virtual/block/dm-2/slaves/dm-1", "devices/virtual/block/dm-1");
        sys.link("dev/block/259:21", "devices/virtual/block/dm-1");
        assert_eq!(sys.home(21), None);
    }

    #[test]
    fn multipath_drive_has_the_node_of_its_controllers() {
        let sys = Sys::new("0-1\n");
        sys.drive("nvme0", "259:1", "1\n");
        let subsystem = "devices/virtual/nvme-subsystem/nvme-subsys0";
        sys.link(&format!("{subsystem}/nvme0"), "devices/pci0000:80/0000:nvme0/nvme/nvme0");
        sys.file(&format!("{subsystem}/nvme0n1/size"), "8\n");
        sys.link(&format!("{subsystem}/nvme0n1/device"), subsystem);
        sys.link("dev/block/259:9", &format!("{subsystem}/nvme0n1"));
        assert_eq!(sys.home(9), Some((1, vec![2, 3, 6])));
    }

    #[test]
    fn pinned_thread_stays_on_its_allowed_cpus() {
        // On a thread of its own, whose affinity dies with it.
        std::thread::spawn(|| {
            let allowed = rustix::thread::sched_getaffinity(None).unwrap();
            let first = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).unwrap();
            Home { node: 0, cpus: vec![first, usize::MAX] }.pin().unwrap();
            let pinned = rustix::thread::sched_getaffinity(None).unwrap();
            assert!(pinned.is_set(first));
            assert_eq!(pinned.count(), 1);
            let elsewhere = Home { node: 1, cpus: vec![first + 1] };
            assert_eq!(elsewhere.pin().unwrap_err().kind(), ErrorKind::PermissionDenied);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn missing_directory_has_the_disk_of_its_parent() {
        // The machine's own value does not matter; both answers must agree.
        let directory = tempfile::tempdir().unwrap();
        let unmade = directory.path().join("a/b");
        assert_eq!(Home::near(&unmade), Home::near(directory.path()));
    }
}
