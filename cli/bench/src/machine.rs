//! Machine of a measurement.
//!
//! A figure without its machine and its release is not a figure. An unknown fact is left out, never
//! guessed.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use forebay_error::{Doing, Result};
use serde::Serialize;

/// A machine, as its kernel describes it, and the release that was measured on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// The processor's name; where the kernel tells none, the architecture.
    pub cpu: String,
    /// Cores that this process may use, by its affinity and its control group.
    pub cores: usize,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// The kernel's release.
    pub kernel: String,
    /// Storage of the measured files, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,
    /// Forebay's release.
    pub release: &'static str,
}

/// A file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Storage {
    /// Mounted source: a device, a server's export.
    pub source: String,
    /// Type.
    pub file_system: String,
    /// Bytes it has room for, used ones included.
    pub bytes: u64,
}

impl Machine {
    /// This machine.
    ///
    /// # Errors
    /// The error of reading `/proc`.
    pub fn this() -> Result<Self> {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").doing("read the processor's name")?;
        let meminfo = fs::read_to_string("/proc/meminfo").doing("read the amount of memory")?;
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease");
        Ok(Self {
            cpu: cpu(&cpuinfo).unwrap_or(std::env::consts::ARCH).to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory(&meminfo).unwrap_or_default(),
            kernel: kernel.doing("read the kernel's release")?.trim().to_owned(),
            storage: None,
            release: env!("CARGO_PKG_VERSION"),
        })
    }

    /// The same with what `directory` lies on.
    ///
    /// # Errors
    /// The error of reading the directory.
    pub fn with_storage(mut self, directory: &Path) -> Result<Self> {
        let directory = directory.canonicalize().doing("find a directory")?;
        let mounts = fs::read_to_string("/proc/self/mountinfo").doing("read the mounts")?;
        let room = rustix::fs::statvfs(&directory).doing("read a file system's size")?;
        self.storage = mount_of(&mounts, &directory).map(|(file_system, source)| Storage {
            source,
            file_system,
            bytes: room.f_blocks.saturating_mul(room.f_frsize),
        });
        Ok(self)
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cpu, cores, memory_bytes, kernel, storage, release } = self;
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        write!(f, "Forebay {release} on {cpu}, {cores} cores, {:.1} GiB", gib(*memory_bytes))?;
        write!(f, ", Linux {kernel}")?;
        if let Some(Storage { source, file_system, bytes }) = storage {
            write!(f, ", {source} ({file_system}, {:.0} GiB)", gib(*bytes))?;
        }
        Ok(())
    }
}

/// The processor's name in `/proc/cpuinfo`; kernels of some architectures tell none.
fn cpu(cpuinfo: &str) -> Option<&str> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim())
}

/// Bytes of memory in `/proc/meminfo`, which counts in KiB and calls them kB.
fn memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

/// Type and source of what is mounted where `path` lies: proc_pid_mountinfo(5). Of mounts over one
/// another the last counts.
fn mount_of(mountinfo: &str, path: &Path) -> Option<(String, String)> {
    let mounts = mountinfo.lines().filter_map(|line| {
        let (mount, device) = line.split_once(" - ")?;
        let at = PathBuf::from(unescaped(mount.split(' ').nth(4)?));
        let mut device = device.split(' ');
        let kind = (device.next()?.to_owned(), unescaped(device.next()?));
        path.starts_with(&at).then(|| (at.components().count(), kind))
    });
    // The last of equals.
    mounts.max_by_key(|(depth, _)| *depth).map(|(_, kind)| kind)
}

/// A mount's path or source, in which the kernel writes spaces, tabs, line ends and backslashes as
/// octal numbers.
fn unescaped(text: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.into_iter().fold(text.to_owned(), |text, (code, plain)| text.replace(code, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_and_memory_are_parsed_from_proc() {
        let cpuinfo = "processor\t: 0\nmodel name\t: A Processor @ 2.00GHz\nmodel name\t: other\n";
        assert_eq!(cpu(cpuinfo), Some("A Processor @ 2.00GHz"));
        assert_eq!(cpu("processor\t: 0\nCPU part\t: 0xd40\n"), None);
        assert_eq!(memory("MemFree: 1 kB\nMemTotal:       16384 kB\n"), Some(16 << 20));
        assert_eq!(memory("MemTotal: many kB\n"), None);
    }

    #[test]
    fn path_belongs_to_its_deepest_and_latest_mount() {
        let mounts = "\
22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/root rw\n\
30 22 259:2 / /mnt/nv\\040me rw - xfs /dev/nvme0n1 rw\n\
31 22 0:40 / /mnt rw - tmpfs none rw\n\
32 22 0:41 / /mnt rw - nfs4 server:/export rw\n";
        let on = |path: &str| mount_of(mounts, Path::new(path)).unwrap();
        let named = |kind: &str, source: &str| (kind.to_owned(), source.to_owned());
        assert_eq!(on("/mnt/nv me/cache"), named("xfs", "/dev/nvme0n1"));
        assert_eq!(on("/mnt/other"), named("nfs4", "server:/export"));
        assert_eq!(on("/mnthome"), named("ext4", "/dev/root"));
    }

    #[test]
    fn this_machine_is_described() {
        let machine = Machine::this().unwrap().with_storage(Path::new("/")).unwrap();
        assert!(machine.cores > 0 && machine.memory_bytes > 0 && !machine.kernel.is_empty());
        assert!(machine.to_string().contains(&machine.kernel), "{machine}");
        assert!(Machine::this().unwrap().with_storage(Path::new("/no/such")).is_err());
    }
}
