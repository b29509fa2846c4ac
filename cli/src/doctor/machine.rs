//! Facts of this machine in `/proc` and `/sys`.
//!
//! Checks read those two only through here, so that a test can put a recorded machine under them.
//! An unknown fact is `None`, never an error: kernels differ.

use std::fs;
use std::path::{Path, PathBuf};

/// Roots of the kernel's files, and the process to ask about.
#[derive(Debug, Clone)]
pub(super) struct Machine {
    proc: PathBuf,
    sys: PathBuf,
    /// The daemon that runs, if one does; else limits are those that one started here would
    /// inherit.
    daemon: Option<u32>,
}

/// A resource limit, as `/proc/PID/limits` shows it; unlimited is the highest number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limit {
    pub(super) soft: u64,
    pub(super) hard: u64,
}

/// The capability that spares a process the limit on locked memory, by its bit.
const CAP_IPC_LOCK: u32 = 14;

/// Content of `uid_map` in the machine's own user namespace: every user is itself.
const EVERY_USER: [&str; 3] = ["0", "0", "4294967295"];

impl Machine {
    /// This machine.
    pub(super) fn this() -> Self {
        Self { proc: "/proc".into(), sys: "/sys".into(), daemon: None }
    }

    /// The same with the limits of a daemon that runs, if this is its process: who listens may have
    /// been given the socket by another, and have ended.
    pub(super) fn with_daemon(mut self, pid: u32) -> Self {
        let command = fs::read(self.proc.join(format!("{pid}/cmdline"))).unwrap_or_default();
        let is_daemon = command.split(|byte| *byte == 0).any(|word| word == b"daemon");
        self.daemon = is_daemon.then_some(pid);
        self
    }

    /// Returns true if a daemon runs: the limits are then its own, and it holds its memory already.
    pub(super) fn has_daemon(&self) -> bool {
        self.daemon.is_some()
    }

    /// Returns the owner of the limits.
    pub(super) fn whose(&self) -> String {
        match self.daemon {
            Some(pid) => format!("the daemon (pid {pid})"),
            None => "a process started from here".to_owned(),
        }
    }

    /// A file of `/proc`.
    pub(super) fn proc(&self, path: &str) -> Option<String> {
        read(&self.proc.join(path))
    }

    /// A file of the process's directory in `/proc`.
    pub(super) fn process(&self, file: &str) -> Option<String> {
        match self.daemon {
            Some(pid) => self.proc(&format!("{pid}/{file}")),
            None => self.proc(&format!("self/{file}")),
        }
    }

    /// A file of `/sys`.
    pub(super) fn sys(&self, path: impl AsRef<Path>) -> Option<String> {
        read(&self.sys.join(path))
    }

    /// Returns the path of an entry of `/sys`.
    pub(super) fn sys_path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.sys.join(path)
    }

    /// A number in a file of `/sys`.
    pub(super) fn sys_number(&self, path: impl AsRef<Path>) -> Option<u64> {
        self.sys(path)?.parse().ok()
    }

    /// The kernel's release.
    pub(super) fn kernel(&self) -> String {
        self.proc("sys/kernel/osrelease").unwrap_or_else(|| "unknown".to_owned())
    }

    /// Returns true if the kernel is known to be older than this.
    pub(super) fn kernel_is_before(&self, major: u32, minor: u32) -> bool {
        let release = self.kernel();
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(is)), Some(Ok(is_minor))) => (is, is_minor) < (major, minor),
            _ => false,
        }
    }

    /// A resource limit by its name in `/proc/PID/limits`.
    pub(super) fn limit(&self, name: &str) -> Option<Limit> {
        let limits = self.process("limits")?;
        let rest = limits.lines().find_map(|line| line.strip_prefix(name))?;
        let mut columns = rest.split_whitespace().map(|column| match column {
            "unlimited" => Some(u64::MAX),
            number => number.parse().ok(),
        });
        Some(Limit { soft: columns.next()??, hard: columns.next()?? })
    }

    /// Returns true if the daemon listens on a TCP port; none where this user may not look. False
    /// without a daemon.
    pub(super) fn listens_on(&self, port: u16) -> Option<bool> {
        const LISTENS: &str = "0A";
        let Some(pid) = self.daemon else { return Some(false) };
        let mut sockets = Vec::new();
        for file in ["net/tcp", "net/tcp6"] {
            let table = self.process(file).unwrap_or_default();
            // `sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode`, numbers
            // in hexadecimal.
            for line in table.lines().skip(1) {
                let columns: Vec<_> = line.split_whitespace().collect();
                let [_, local, _, LISTENS, _, _, _, _, _, inode, ..] = columns[..] else {
                    continue;
                };
                let at =
                    local.rsplit_once(':').and_then(|(_, at)| u16::from_str_radix(at, 16).ok());
                if at == Some(port) {
                    sockets.push(format!("socket:[{inode}]"));
                }
            }
        }
        let open = fs::read_dir(self.proc.join(format!("{pid}/fd"))).ok()?;
        let open = open.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
        let mut open = open.filter_map(|to| to.into_os_string().into_string().ok());
        Some(open.any(|to| sockets.contains(&to)))
    }

    /// Returns true if the limit on locked memory does not apply: the capability counts only if it
    /// is one of the machine, not of a user namespace.
    pub(super) fn may_lock_any(&self) -> bool {
        let effective = self.process("status").and_then(|status| {
            let hex = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
            u64::from_str_radix(hex.trim(), 16).ok()
        });
        let in_namespace = self
            .process("uid_map")
            .is_some_and(|map| !map.split_whitespace().eq(EVERY_USER.iter().copied()));
        effective.is_some_and(|bits| bits >> CAP_IPC_LOCK & 1 == 1) && !in_namespace
    }

    /// Returns true if system calls of this process are filtered, as in containers.
    pub(super) fn is_filtered(&self) -> bool {
        const FILTER: &str = "2";
        self.process("status").is_some_and(|status| {
            let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
            mode.is_some_and(|mode| mode.trim() == FILTER)
        })
    }

    /// A line of `/proc/meminfo`, in bytes.
    pub(super) fn meminfo(&self, name: &str) -> Option<u64> {
        let text = self.proc("meminfo")?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    }
}

/// A small file's text; the kernel ends most with a line break that says nothing.
fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim_end().to_owned())
}

#[cfg(test)]
impl Machine {
    /// This process is the daemon, whatever it is called.
    pub(super) fn is_daemon(&mut self, pid: u32) {
        self.daemon = Some(pid);
    }
}

/// A recorded machine, for tests.
#[cfg(test)]
pub(super) struct Recorded {
    /// Folder of the recording, until it drops.
    _root: tempfile::TempDir,
    /// It, as checks see it.
    pub(super) machine: Machine,
}

#[cfg(test)]
impl Recorded {
    /// A machine that tells nothing yet.
    pub(super) fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let (proc, sys) = (root.path().join("proc"), root.path().join("sys"));
        Self { _root: root, machine: Machine { proc, sys, daemon: None } }
    }

    fn put(&self, path: PathBuf, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// It tells this in `/proc`.
    pub(super) fn proc(self, path: &str, text: &str) -> Self {
        self.put(self.machine.proc.join(path), text);
        self
    }

    /// It tells this in `/sys`.
    pub(super) fn sys(self, path: &str, text: &str) -> Self {
        self.put(self.machine.sys.join(path), text);
        self
    }

    /// A link in `/sys` to another place there.
    pub(super) fn link(self, path: &str, to: &str) -> Self {
        let path = self.machine.sys.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(self.machine.sys.join(to), path).unwrap();
        self
    }

    /// A daemon runs on it.
    pub(super) fn with_daemon(mut self, pid: u32) -> Self {
        self = self.proc(&format!("{pid}/cmdline"), "forebay\0daemon\0");
        self.machine = self.machine.clone().with_daemon(pid);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: &str = "\
Limit                     Soft Limit           Hard Limit           Units     \n\
Max open files            1024                 524288               files     \n\
Max locked memory         8388608              unlimited            bytes     \n";

    #[test]
    fn limits_are_those_of_the_daemon_if_one_runs() {
        let recorded = Recorded::new().proc("self/limits", LIMITS);
        let files = recorded.machine.limit("Max open files");
        assert_eq!(files, Some(Limit { soft: 1024, hard: 524_288 }));
        let locked = recorded.machine.limit("Max locked memory");
        assert_eq!(locked, Some(Limit { soft: 8 << 20, hard: u64::MAX }));
        assert_eq!(recorded.machine.limit("Max stars"), None);
        let recorded = recorded.proc("77/limits", "Max open files 5 6 files\n").with_daemon(77);
        let files = recorded.machine.limit("Max open files");
        assert_eq!(files, Some(Limit { soft: 5, hard: 6 }));
        assert!(recorded.machine.whose().contains("77"));
    }

    #[test]
    fn unrelated_process_is_not_the_daemon() {
        let recorded = Recorded::new().proc("77/cmdline", "/usr/bin/vi\0daemon.c\0");
        assert!(!recorded.machine.clone().with_daemon(77).has_daemon());
    }

    #[test]
    fn capability_in_a_user_namespace_does_not_count() {
        let all = "Name:\tx\nCapEff:\t000001ffffffffff\nSeccomp:\t0\n";
        let own = Recorded::new().proc("self/status", all);
        assert!(own.machine.may_lock_any());
        let own = own.proc("self/uid_map", "         0          0 4294967295\n");
        assert!(own.machine.may_lock_any() && !own.machine.is_filtered());
        let inner = own.proc("self/uid_map", "0 100000 65536\n");
        assert!(!inner.machine.may_lock_any());
        let none = Recorded::new().proc("self/status", "CapEff:\t0000000000000000\nSeccomp:\t2\n");
        assert!(!none.machine.may_lock_any() && none.machine.is_filtered());
        assert!(!Recorded::new().machine.may_lock_any());
    }

    #[test]
    fn kernels_are_compared_by_number() {
        let before = |release: &str| {
            let recorded = Recorded::new().proc("sys/kernel/osrelease", release);
            recorded.machine.kernel_is_before(6, 1)
        };
        assert!(before("5.19.0-50-generic\n") && before("6.0.9\n") && before("4.18.0-553.el8\n"));
        assert!(!before("6.1.0\n") && !before("6.18.44-x\n") && !before("10.0.1\n"));
        assert!(!before("nonsense") && !Recorded::new().machine.kernel_is_before(6, 1));
    }

    #[test]
    fn meminfo_is_read_in_bytes() {
        let recorded = Recorded::new().proc("meminfo", "MemTotal:  24 kB\nMemTotals: 1 kB\n");
        assert_eq!(recorded.machine.meminfo("MemTotal"), Some(24 * 1024));
        assert_eq!(recorded.machine.meminfo("MemAvailable"), None);
    }
}
