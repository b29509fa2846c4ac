//! Control groups of a process (cgroups(7)), of both versions, and their limits.
//!
//! A limit of any group above counts as much as one of its own; the tightest decides.

use std::fs;
use std::path::{Path, PathBuf};

/// Places below `/sys` where groups of version 2 are mounted.
const UNIFIED: [&str; 2] = ["fs/cgroup", "fs/cgroup/unified"];

/// cgroup v1's value for no limit: the highest whole page.
const V1_NO_LIMIT: u64 = 1 << 62;

/// Directories of the groups that a process is in, from its own upwards.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ControlGroups {
    /// Groups of version 2; empty without them.
    unified: Vec<PathBuf>,
    /// Groups of version 1, by controller.
    first: Vec<(String, Vec<PathBuf>)>,
}

impl ControlGroups {
    /// Returns the groups that `/proc/PID/cgroup` names with this text, as `sys` shows them.
    #[must_use]
    pub fn of(text: &str, sys: &Path) -> Self {
        let mut groups = Self::default();
        for line in text.lines() {
            let mut parts = line.splitn(3, ':');
            let (Some(_), Some(controllers), Some(path)) =
                (parts.next(), parts.next(), parts.next())
            else {
                continue;
            };
            if controllers.is_empty() {
                let mut roots = UNIFIED.iter().map(|root| sys.join(root));
                let root = roots.find(|root| root.join("cgroup.controllers").exists());
                groups.unified = root.map(|root| upwards(&root, path)).unwrap_or_default();
                continue;
            }
            for controller in controllers.split(',') {
                let roots = [controllers, controller].map(|name| sys.join("fs/cgroup").join(name));
                if let Some(root) = roots.iter().find(|root| root.exists()) {
                    groups.first.push((controller.to_owned(), upwards(root, path)));
                }
            }
        }
        groups
    }

    /// Returns true if anything is known of a controller.
    #[must_use]
    pub fn knows(&self, controller: &str) -> bool {
        !self.unified.is_empty() || self.first.iter().any(|(name, _)| name == controller)
    }

    /// Returns the lowest number that `read` finds in a controller's groups, and where.
    pub fn tightest<T: PartialOrd>(
        &self,
        controller: &str,
        read: impl Fn(&Path) -> Option<T>,
    ) -> Option<(T, &Path)> {
        let first = self.first.iter().filter(|(name, _)| name == controller);
        let all = self.unified.iter().chain(first.flat_map(|(_, groups)| groups));
        let mut found: Option<(T, &Path)> = None;
        for group in all {
            if let Some(value) = read(group)
                && found.as_ref().is_none_or(|(least, _)| value < *least)
            {
                found = Some((value, group));
            }
        }
        found
    }

    /// Returns the limit on memory, and the group that has it.
    #[must_use]
    pub fn memory_max(&self) -> Option<(u64, &Path)> {
        let files = ["memory.max", "memory.limit_in_bytes"];
        files.into_iter().filter_map(|file| self.memory(file)).min()
    }

    /// Returns the memory above which the group is throttled, and the group.
    #[must_use]
    pub fn memory_high(&self) -> Option<(u64, &Path)> {
        self.memory("memory.high")
    }

    fn memory(&self, file: &str) -> Option<(u64, &Path)> {
        self.tightest("memory", |group| {
            number(&group.join(file)).filter(|value| *value < V1_NO_LIMIT)
        })
    }
}

/// Returns the number in a file; none for a word.
#[must_use]
pub fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Returns the group's directory and those above it, down to the mount `root`. In a namespace of
/// control groups the path may be one that is not to be seen: then there is the root alone.
fn upwards(root: &Path, path: &str) -> Vec<PathBuf> {
    let group = root.join(path.trim_start_matches('/'));
    let seen = if group.exists() { &group } else { root };
    seen.ancestors().take_while(|group| group.starts_with(root)).map(Path::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tightest_control_group_limits_memory() {
        let sys = tempfile::tempdir().unwrap();
        let put = |file: &str, text: &str| {
            let path = sys.path().join("fs/cgroup").join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("cgroup.controllers", "memory\n");
        put("job/memory.max", "1073741824\n");
        put("job/step/memory.max", "max\n");
        put("memory/slurm/memory.limit_in_bytes", "536870912\n");
        put("memory/memory.limit_in_bytes", "9223372036854771712\n");
        let limit =
            |text: &str| ControlGroups::of(text, sys.path()).memory_max().map(|(limit, _)| limit);
        assert_eq!(limit("0::/job/step\n"), Some(1 << 30));
        assert_eq!(limit("0::/job\n"), Some(1 << 30));
        assert_eq!(limit("0::/other\n"), None);
        assert_eq!(limit("4:cpu,memory:/slurm\n2:pids:/\n0::/\n"), Some(512 << 20));
        assert_eq!(limit(""), None);
        // A container's path is the machine's, and its own group is the root.
        put("memory.max", "268435456\n");
        assert_eq!(limit("0::/docker/abc\n"), Some(256 << 20));
    }
}
