//! The daemon this machine would run: tiers, memory, socket.
//!
//! It comes from the daemon's own source (the configuration, or an embedded daemon's defaults), so
//! that the checks describe a daemon that would really run.

use std::path::{Path, PathBuf};

use forebay_client::{NODE_SOCKET, RuntimeDirectory, cache_directory, wanted_capacity};
use forebay_config::embedded;
use forebay_config::settings::{NodeTier, memory_tiers};
use forebay_config::{Config, Places};
use forebay_error::{Error, ErrorKind, Result};
use forebay_node::NodeMemory;
use forebay_store::Class;

use super::finding::{Finding, listed, size};
use crate::daemon::CONFIG;

/// The check's name.
const CHECK: &str = "config";

/// The daemon that would run.
#[derive(Debug)]
pub(super) struct Plan {
    /// The file it goes by, and where that says what; none for an embedded daemon.
    file: Option<(PathBuf, Places)>,
    /// Configuration; none for an embedded daemon.
    config: Option<Config>,
    /// Tiers.
    pub(super) tiers: Vec<NodeTier>,
    /// Bytes of frames, slabs and tiers in memory together.
    pub(super) memory: u64,
    /// Socket for trainers, if there is a place.
    pub(super) socket: Option<PathBuf>,
}

impl Plan {
    /// Returns the requested plan: a configuration, an embedded daemon with its cache in `cache`,
    /// or the daemon of this machine. Without a usable one the machine can be checked all the same.
    pub(super) fn make(config: Option<&Path>, cache: Option<&Path>) -> (Self, Finding) {
        match (config, cache) {
            (Some(config), _) => Self::of_node(config),
            (None, None) if Path::new(CONFIG).exists() => Self::of_node(CONFIG.as_ref()),
            (None, cache) => Self::of_private(cache),
        }
    }

    fn of_node(path: &Path) -> (Self, Finding) {
        let mut plan = Self {
            file: None,
            config: None,
            tiers: Vec::new(),
            memory: embedded::memory() as u64,
            socket: Some(NODE_SOCKET.into()),
        };
        let read = Config::read(path).and_then(|config| Ok((config.tiers()?, config)));
        let (tiers, config) = match read {
            Ok(read) => read,
            Err(error) => return (plan, refused(path, &error)),
        };
        // Read a second time for its lines alone; a file that is gone by now has none to name.
        let text = std::fs::read_to_string(path).unwrap_or_default();
        plan.file = Some((path.to_owned(), Places::of(path, &text)));
        plan.tiers = tiers;
        if let Some(memory) = config.daemon.memory {
            plan.memory = memory.as_u64();
        }
        plan.socket = Some(config.socket());
        plan.config = Some(config);
        let finding = plan.told(&path.display().to_string());
        (plan, finding)
    }

    fn of_private(cache: Option<&Path>) -> (Self, Finding) {
        let socket = match cache {
            Some(cache) => {
                std::path::absolute(cache).map(|cache| RuntimeDirectory::of(&cache)).ok()
            }
            None => RuntimeDirectory::of_this_user().ok(),
        };
        let socket = socket.map(|directory| directory.socket());
        let memory = embedded::memory() as u64;
        let mut plan = Self { file: None, config: None, tiers: Vec::new(), memory, socket };
        let tier = || -> Result<NodeTier> {
            let path = match cache {
                Some(cache) => std::path::absolute(cache).map_err(|error| {
                    Error::from_io("find the cache directory", &error).at("cache", cache.display())
                })?,
                None => cache_directory()?,
            };
            let capacity = embedded::capacity(&path, wanted_capacity()?)?;
            Ok(NodeTier::at("cache", Class::Nvme, path, capacity))
        };
        match tier() {
            Ok(tier) => plan.tiers.push(tier),
            Err(error) => {
                let mend = advice(&error, "set FOREBAY_CACHE to a directory on a local disk");
                return (plan, Finding::wrong(CHECK, without_advice(&error), mend));
            }
        }
        let finding = plan.told("no configuration: an embedded daemon, as a job starts it");
        (plan, finding)
    }

    /// Describes the plan, unless its memory is too small for the daemon itself.
    fn told(&self, of: &str) -> Finding {
        let least = self.least();
        let (memory, names) = (size(self.memory), self.tiers.iter().map(|tier| &tier.name));
        let names = listed(&names.collect::<Vec<_>>());
        let finding = if self.memory > least {
            Finding::ok(CHECK, format!("{of}: tiers {names}, {memory} of memory"))
        } else {
            Finding::wrong(
                CHECK,
                format!(
                    "{of}: {memory} of memory are too small for what the daemon and its memory tiers take ({})",
                    size(least)
                ),
                format!(
                    "{}: set memory to {} at least",
                    self.place("daemon", 0, "memory"),
                    size(least.saturating_add(SLABS_LEAST))
                ),
            )
        };
        finding.figure("memory_bytes", self.memory).figure("tiers", self.tiers.len())
    }

    /// Bytes of the daemon's fixed parts and of tiers in memory, which leave the rest to slabs.
    pub(super) fn least(&self) -> u64 {
        let all = usize::try_from(self.memory).unwrap_or(usize::MAX);
        let in_cluster = self.config().is_some_and(|config| config.cluster.is_some());
        let memory = NodeMemory::new(all, &self.tiers, in_cluster);
        (memory.fixed() as u64).saturating_add(memory_tiers(&self.tiers))
    }

    /// Tiers that have a directory, with their place among all.
    pub(super) fn on_disk(&self) -> impl Iterator<Item = (usize, &NodeTier, &Path)> {
        let all = self.tiers.iter().enumerate();
        all.filter_map(|(at, tier)| Some((at, tier, tier.path.as_deref()?)))
    }

    /// Bytes that each disk's engine registers: all of the memory that is not a tier.
    pub(super) fn registered(&self) -> u64 {
        self.memory.saturating_sub(memory_tiers(&self.tiers))
    }

    /// Returns a node daemon's configuration; none for an embedded one.
    pub(super) fn config(&self) -> Option<&Config> {
        self.config.as_ref()
    }

    /// Returns true for a node's daemon, which has a configuration file.
    pub(super) fn is_node(&self) -> bool {
        self.file.is_some()
    }

    /// Returns the place of a key of the `at`-th table `section`: `file:line` of the key if it is
    /// written, else of its table, else of the file.
    pub(super) fn place(&self, section: &str, at: usize, key: &str) -> String {
        let Some((path, places)) = &self.file else {
            return match key {
                "path" => "FOREBAY_CACHE".to_owned(),
                "capacity" => "FOREBAY_CAPACITY".to_owned(),
                _ => format!("{CONFIG}, for a node's daemon"),
            };
        };
        match places.of_key(section, at, key) {
            Some(place) => format!("{}:{}", path.display(), place.line),
            None => path.display().to_string(),
        }
    }
}

/// Memory for slabs that the daemon recommends beside frames and memory tiers.
pub(super) const SLABS_LEAST: u64 = 512 << 20;

/// A configuration that cannot be gone by.
fn refused(path: &Path, error: &Error) -> Finding {
    let otherwise = match error.kind() {
        ErrorKind::NotFound => "write one with a [[tier]] (name, path, capacity)".to_owned(),
        _ => {
            let line = error.place("line").map(|line| format!(":{line}")).unwrap_or_default();
            let path = path.display();
            format!("edit {path}{line}; `forebay config check {path}` lists all mistakes")
        }
    };
    Finding::wrong(CHECK, without_advice(error), advice(error, &otherwise))
}

/// An error's advice, or what is said where it has none.
pub(super) fn advice(error: &Error, otherwise: &str) -> String {
    error.advice().unwrap_or(otherwise).to_owned()
}

/// An error's text on one line, without its advice.
pub(super) fn without_advice(error: &Error) -> String {
    let places: Vec<_> = error.places().map(|(name, value)| format!("{name}={value}")).collect();
    let message = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
    match places.is_empty() {
        true => message,
        false => format!("{message} ({})", places.join(", ")),
    }
}

#[cfg(test)]
pub(super) fn test_plan(text: &str) -> (Plan, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("forebay.toml");
    std::fs::write(&path, text).unwrap();
    let (plan, finding) = Plan::make(Some(&path), None);
    assert_eq!(finding.verdict, super::finding::Verdict::Ok, "{finding:?}");
    (plan, folder)
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;

    const TEXT: &str = "[daemon]\nmemory = '4GiB' # all of it\n\n\
                        [[tier]]\nname = 'ram'\nclass = 'memory'\ncapacity = '1GiB'\n\
                        [[tier]] # the drive\nname = 'nvme0'\npath = '/mnt/a'\ncapacity = '2GiB'\n";

    #[test]
    fn plan_follows_the_file_and_knows_its_lines() {
        let (plan, folder) = test_plan(TEXT);
        assert_eq!(plan.memory, 4 << 30);
        assert_eq!(plan.registered(), 3 << 30);
        assert_eq!(plan.socket.as_deref(), Some(NODE_SOCKET.as_ref()));
        let disks: Vec<_> = plan.on_disk().map(|(at, tier, _)| (at, tier.name.as_str())).collect();
        assert_eq!(disks, [(1, "nvme0")]);
        let file = folder.path().join("forebay.toml").display().to_string();
        assert_eq!(plan.place("daemon", 0, "memory"), format!("{file}:2"));
        assert_eq!(plan.place("tier", 1, "capacity"), format!("{file}:11"));
        assert_eq!(plan.place("tier", 1, "class"), format!("{file}:8"), "not written: its table");
        assert_eq!(plan.place("tier", 2, "class"), file);
    }

    #[test]
    fn line_numbers_are_right_in_yaml_and_inline_toml() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text, lines) in [
            (
                "forebay.yaml",
                "daemon: {memory: 4GiB}\ntier:\n- name: ram\n  class: memory\n  capacity: 1GiB\n\
                 # The drive: it is\n- {name: nvme0,\n   path: /mnt/a, capacity: 2GiB}\n",
                [1, 8, 7],
            ),
            (
                "forebay.toml",
                "daemon.memory = '4GiB'\ntier = [\n{ name = 'ram', class = 'memory', capacity = '1GiB' },\n\
                 { name = 'nvme0', path = '/mnt/a', capacity = '2GiB' },\n]\n",
                [1, 4, 4],
            ),
        ] {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            let (plan, finding) = Plan::make(Some(&path), None);
            assert_eq!(finding.verdict, Verdict::Ok, "{finding:?}");
            let keys = [("daemon", 0, "memory"), ("tier", 1, "capacity"), ("tier", 1, "class")];
            for ((section, at, key), line) in keys.into_iter().zip(lines) {
                let place = format!("{}:{line}", path.display());
                assert_eq!(plan.place(section, at, key), place, "{key}");
            }
        }
    }

    #[test]
    fn unreadable_configuration_is_wrong_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("forebay.toml");
        let look = || Plan::make(Some(&path), None).1;
        let absent = look();
        assert_eq!(absent.verdict, Verdict::Wrong);
        assert!(absent.mend.unwrap().contains("[[tier]]"));
        std::fs::write(&path, TEXT.replace("4GiB", "4 parsecs")).unwrap();
        let broken = look();
        assert_eq!(broken.verdict, Verdict::Wrong);
        assert!(broken.found.contains("line=2") && !broken.found.contains('\n'), "{broken:?}");
        assert!(broken.mend.unwrap().contains("forebay.toml:2; `forebay config check"));
    }

    #[test]
    fn memory_too_small_for_a_slab_is_wrong_at_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("forebay.toml");
        std::fs::write(&path, TEXT.replace("4GiB", "1GiB")).unwrap();
        let finding = Plan::make(Some(&path), None).1;
        assert_eq!(finding.verdict, Verdict::Wrong, "{finding:?}");
        assert!(finding.mend.unwrap().contains("forebay.toml:2"));
    }

    /// The daemon itself would not start.
    #[test]
    fn fixed_parts_of_the_daemon_count() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("forebay.toml");
        let text = "[daemon]\nmemory = 'MEMORY'\n\
                    [[tier]]\nname = 'nvme0'\npath = '/mnt/a'\ncapacity = '2GiB'\n";
        // Frames take 208 MiB, long requests 32 MiB.
        for (memory, verdict) in [("240MiB", Verdict::Wrong), ("256MiB", Verdict::Ok)] {
            std::fs::write(&path, text.replace("MEMORY", memory)).unwrap();
            assert_eq!(Plan::make(Some(&path), None).1.verdict, verdict, "{memory}");
        }
    }

    #[test]
    fn private_daemon_has_one_tier_in_forebay_cache() {
        let folder = tempfile::tempdir().unwrap();
        let (plan, finding) = Plan::make(None, Some(folder.path()));
        assert_eq!(finding.verdict, Verdict::Ok, "{finding:?}");
        assert_eq!(plan.tiers.len(), 1);
        assert!(!plan.is_node() && plan.tiers[0].path.as_deref() == Some(folder.path()));
        assert_eq!(plan.place("tier", 0, "path"), "FOREBAY_CACHE");
    }
}
