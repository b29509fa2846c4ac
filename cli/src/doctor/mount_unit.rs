//! Checks that the daemon's unit waits for the mounts of its tiers.
//!
//! Without `RequiresMountsFor`, systemd may start the daemon before a disk is mounted.

use std::fs;
use std::path::{Path, PathBuf};

use super::finding::Finding;
use super::mount_facts::MountFacts;
use super::plan::Plan;

const CHECK: &str = "mount_unit";

/// Directories of units, the first before the others: systemd.unit(5).
const UNITS: [&str; 4] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

/// A unit that starts a daemon, and the paths whose mounts it requires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DaemonUnit {
    name: String,
    required: Vec<PathBuf>,
}

impl DaemonUnit {
    /// The first unit of this machine that starts a daemon.
    pub(super) fn find() -> Option<Self> {
        Self::find_in(&UNITS.map(Path::new))
    }

    fn find_in(directories: &[&Path]) -> Option<Self> {
        let entries = directories.iter().filter_map(|directory| fs::read_dir(directory).ok());
        let mut files = entries.flatten().flatten().map(|entry| entry.path());
        files.find_map(|path| {
            let name = path.file_name()?.to_str().filter(|name| name.ends_with(".service"))?;
            let mut text = fs::read_to_string(&path).ok().filter(|text| starts_daemon(text))?;
            for directory in directories {
                text.push_str(&drop_ins(&directory.join(format!("{name}.d"))));
            }
            let values = text.lines().filter_map(|line| line.strip_prefix("RequiresMountsFor="));
            let required = values.flat_map(str::split_whitespace).map(PathBuf::from).collect();
            Some(Self { name: name.to_owned(), required })
        })
    }

    /// Returns true if it waits for what is mounted at `point`.
    fn requires(&self, point: &Path) -> bool {
        self.required.iter().any(|path| path.starts_with(point))
    }
}

/// Returns true if a unit runs `forebay daemon`, or `forebayd`.
fn starts_daemon(text: &str) -> bool {
    let mut starts = text.lines().filter_map(|line| line.strip_prefix("ExecStart="));
    starts.any(|line| {
        let mut words = line.split_whitespace().map(|word| word.rsplit('/').next());
        match words.next().flatten() {
            Some("forebayd") => true,
            Some("forebay") => words.any(|word| word == Some("daemon")),
            _ => false,
        }
    })
}

/// Text of all files in a directory of drop-ins.
fn drop_ins(directory: &Path) -> String {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    let texts = paths.into_iter().filter_map(|path| fs::read_to_string(path).ok());
    texts.fold(String::new(), |all, text| all + "\n" + &text)
}

/// `None` for an embedded daemon, which has no unit.
pub(super) fn check(
    plan: &Plan,
    at: usize,
    facts: &MountFacts,
    unit: Option<&DaemonUnit>,
) -> Option<Finding> {
    if !plan.is_node() {
        return None;
    }
    let tier = plan.tiers.get(at)?;
    let path = tier.path.as_ref()?.display();
    let point = facts.mount.as_ref().map_or(Path::new("/"), |mount| &mount.at);
    let finding = match unit {
        _ if point == Path::new("/") && tier.require_mount => Finding::wrong(
            CHECK,
            format!("{path} lies on the root's file system, and require_mount is set"),
            format!("mount its disk, or change {}", plan.place("tier", at, "require_mount")),
        ),
        _ if point == Path::new("/") => {
            Finding::ok(CHECK, "the directory lies on the root's file system".to_owned())
        }
        None => Finding::skipped(CHECK, "no systemd unit starts a daemon here"),
        Some(unit) if unit.requires(point) => {
            Finding::ok(CHECK, format!("{} waits for {}", unit.name, point.display()))
        }
        Some(unit) => Finding::warn(
            CHECK,
            format!("{} may start before {} is mounted", unit.name, point.display()),
            format!("`systemctl edit {}`, [Unit] RequiresMountsFor={path}", unit.name),
        ),
    };
    Some(finding.figure("mount", point.display().to_string()))
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::super::plan::test_plan;
    use super::*;

    fn found(unit: Option<&DaemonUnit>, point: &str, required: bool) -> Finding {
        let (plan, _folder) = test_plan(&format!(
            "[[tier]]\nname = 'a'\npath = '/mnt/a/cache'\ncapacity = '1GiB'\nrequire_mount = \
             {required}\n"
        ));
        let mut facts = MountFacts::on("ext4", &[]);
        facts.mount.as_mut().unwrap().at = point.into();
        check(&plan, 0, &facts, unit).unwrap()
    }

    #[test]
    fn unit_has_to_wait_for_the_mount_of_a_tier() {
        let unit = |required: &[&str]| DaemonUnit {
            name: "forebayd.service".to_owned(),
            required: required.iter().map(PathBuf::from).collect(),
        };
        let verdict = |unit: &DaemonUnit| found(Some(unit), "/mnt/a", false).verdict;
        assert_eq!(verdict(&unit(&["/mnt/a/cache"])), Verdict::Ok);
        assert_eq!(verdict(&unit(&["/x", "/mnt/a"])), Verdict::Ok);
        assert_eq!(verdict(&unit(&["/mnt"])), Verdict::Warn);
        let mend = found(Some(&unit(&[])), "/mnt/a", false).mend.unwrap();
        assert!(mend.contains("RequiresMountsFor=/mnt/a/cache"), "{mend}");
        assert_eq!(found(None, "/mnt/a", false).verdict, Verdict::Skipped);
        assert_eq!(found(None, "/", false).verdict, Verdict::Ok);
        assert_eq!(found(None, "/", true).verdict, Verdict::Wrong);
    }

    #[test]
    fn unit_of_the_daemon_is_found_with_its_drop_ins() {
        let folder = tempfile::tempdir().unwrap();
        let find = || DaemonUnit::find_in(&[folder.path()]);
        let other = "[Service]\nExecStart=/usr/bin/forebay status\n";
        fs::write(folder.path().join("other.service"), other).unwrap();
        assert_eq!(find(), None);
        let own = "[Unit]\nRequiresMountsFor=/a /b\n[Service]\nExecStart=/usr/bin/forebay daemon\n";
        fs::write(folder.path().join("own.service"), own).unwrap();
        let drop_ins = folder.path().join("own.service.d");
        fs::create_dir(&drop_ins).unwrap();
        fs::write(drop_ins.join("x.conf"), "[Unit]\nRequiresMountsFor=/c\n").unwrap();
        let unit = find().unwrap();
        assert_eq!(unit.name, "own.service");
        assert!(["/a", "/b", "/c"].iter().all(|path| unit.requires(Path::new(path))));
    }
}
