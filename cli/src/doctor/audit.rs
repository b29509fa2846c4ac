//! Checks the audit log: write access to its folder, and space for its files.
//!
//! The configuration bounds the log, so all of it must fit; files that no rotation ever removes are
//! reported.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use forebay_config::settings::AuditConfig;
use forebay_error::{Error, Result};
use rustix::fs::Access;

use super::finding::{Finding, size};
use super::mount_facts::MountFacts;
use super::plan::{Plan, advice, without_advice};

const CHECK: &str = "audit";

/// Write bits of all but the owner.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// Mode bit of a folder in which users may remove only their own files.
const STICKY: u32 = 0o1000;

/// The log that the daemon would keep, and where its folder lies; none without `[audit]`.
pub(super) fn check(
    plan: &Plan,
    look: impl FnOnce(&Path) -> Result<MountFacts>,
) -> Option<Finding> {
    let config = match plan.config()?.audit() {
        Ok(config) => config?,
        Err(error) => return Some(refused(plan, &error)),
    };
    let folder = config.path.parent().unwrap_or(Path::new("/")).to_owned();
    Some(match look(&folder) {
        Ok(facts) => judge(plan, &config, &facts),
        Err(error) => Finding::wrong(
            CHECK,
            without_advice(&error),
            format!("see `findmnt --target {}` and `dmesg`", folder.display()),
        ),
    })
}

fn refused(plan: &Plan, error: &Error) -> Finding {
    let place = plan.place("audit", 0, "path");
    Finding::wrong(CHECK, without_advice(error), format!("{place}: {}", advice(error, "mend it")))
}

fn judge(plan: &Plan, config: &AuditConfig, facts: &MountFacts) -> Finding {
    let (file, folder) = (config.path.display(), facts.nearest.display());
    let place = |key| plan.place("audit", 0, key);
    let Kept { held, beyond } = kept(config);
    let most = config.max_bytes.saturating_mul(u64::from(config.keep).saturating_add(1));
    let free = facts.space.available.saturating_add(held);
    let found = fs::symlink_metadata(&config.path).ok();
    let is_other = found.as_ref().is_some_and(|found| !found.is_file());
    let is_closed = found.is_some()
        && rustix::fs::access(&config.path, Access::READ_OK | Access::WRITE_OK).is_err();
    let mode = facts.mode & 0o7777;
    let is_shared = mode & WRITABLE_BY_OTHERS != 0 && mode & STICKY == 0;
    let finding = if is_other {
        let mend =
            format!("{}: name a regular file, or a path that does not exist yet", place("path"));
        Finding::wrong(CHECK, format!("{file} is not a regular file"), mend)
    } else if is_closed {
        let owner = found.map_or(0, |found| found.uid());
        Finding::wrong(
            CHECK,
            format!("this user may not write to {file}, which is uid {owner}'s"),
            format!("run as the daemon's user, or `chown USER {file}`, USER being the daemon's"),
        )
    } else if !facts.writable {
        Finding::wrong(
            CHECK,
            format!("this user may not create files in {folder} (mode {mode:o})"),
            format!(
                "run as the daemon's user, or `install -d -o USER -m 700 {folder}`, USER being the daemon's, or {}: name another folder",
                place("path")
            ),
        )
    } else if facts.exists && is_shared {
        Finding::warn(
            CHECK,
            format!("other users may write to {folder} (mode {mode:o}), and so remove the log"),
            format!("`chmod go-w {folder}`"),
        )
    } else if free < most {
        Finding::warn(
            CHECK,
            format!(
                "{file} and {} older files may take {}; {} are free",
                config.keep,
                size(most),
                size(free)
            ),
            format!("free some, or {}: keep fewer", place("keep")),
        )
    } else if let Some(beyond) = beyond {
        Finding::warn(
            CHECK,
            format!(
                "{beyond} is beyond the {} files of the rotation: nothing removes it",
                config.keep
            ),
            format!("move away what lies there beyond `.{}`", config.keep),
        )
    } else {
        let what = if found.is_some() { "goes on" } else { "would be made" };
        Finding::ok(CHECK, format!("{file} {what}; {} at most, {} free", size(most), size(free)))
    };
    let finding = finding.figure("most_bytes", most).figure("held_bytes", held);
    finding.figure("available_bytes", facts.space.available)
}

/// Existing files of the log.
#[derive(Default)]
struct Kept {
    /// Bytes of the files that are kept.
    held: u64,
    /// One that no rotation touches any more.
    beyond: Option<String>,
}

fn kept(config: &AuditConfig) -> Kept {
    let mut kept = Kept::default();
    let name = config.path.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
    let folder = config.path.parent().and_then(|folder| fs::read_dir(folder).ok());
    for entry in folder.into_iter().flatten().flatten() {
        let other = entry.file_name().to_string_lossy().into_owned();
        let Some(rest) = other.strip_prefix(&*name) else { continue };
        let number = match rest.strip_prefix('.') {
            None if rest.is_empty() => Some(0),
            None => None,
            Some(number) => number.parse::<u32>().ok(),
        };
        match number {
            None => {}
            Some(number) if number > config.keep => kept.beyond = Some(other),
            Some(_) => kept.held += entry.metadata().map_or(0, |found| found.len()),
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use forebay_error::ErrorKind;

    use super::super::finding::Verdict;
    use super::super::plan::test_plan;
    use super::*;

    const TIER: &str = "[[tier]]\nname = 'a'\npath = '/mnt/a'\ncapacity = '1GiB'\n";

    fn of(folder: &Path, change: impl FnOnce(&mut MountFacts)) -> Finding {
        let path = folder.join("log/audit.jsonl");
        let (plan, _folder) =
            test_plan(&format!("{TIER}[audit]\npath = {path:?}\nmax_size = '1MiB'\nkeep = 3\n"));
        let look = |at: &Path| {
            assert_eq!(at, folder.join("log"));
            let mut facts = MountFacts::sound();
            change(&mut facts);
            Ok(facts)
        };
        check(&plan, look).unwrap()
    }

    #[test]
    fn usable_audit_log_is_ok_and_a_missing_one_has_no_finding() {
        let folder = tempfile::tempdir().unwrap();
        let fine = of(folder.path(), |_| {});
        assert_eq!(fine.verdict, Verdict::Ok, "{fine:?}");
        assert!(fine.found.contains("4.0 MiB at most"), "{fine:?}");
        let (plan, _folder) = test_plan(TIER);
        assert!(check(&plan, |_| panic!("nobody looks")).is_none());
    }

    #[test]
    fn unwritable_and_world_writable_folders_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        let closed = of(folder.path(), |facts| facts.writable = false);
        assert_eq!(closed.verdict, Verdict::Wrong);
        assert!(closed.mend.unwrap().contains("forebay.toml:6"));
        let open = of(folder.path(), |facts| facts.mode = 0o40_777);
        assert_eq!(open.verdict, Verdict::Warn);
        assert!(open.mend.unwrap().contains("chmod go-w"));
        assert_eq!(of(folder.path(), |facts| facts.mode = 0o41_777).verdict, Verdict::Ok);
    }

    #[test]
    fn retained_logs_must_fit_and_count_as_free_space() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        fs::create_dir(&log).unwrap();
        let room = |bytes: u64| move |facts: &mut MountFacts| facts.space.available = bytes;
        let full = of(folder.path(), room((4 << 20) - 1));
        assert_eq!(full.verdict, Verdict::Warn);
        assert!(full.mend.unwrap().contains("forebay.toml:8"));
        assert_eq!(of(folder.path(), room(4 << 20)).verdict, Verdict::Ok);
        fs::write(log.join("audit.jsonl.3"), vec![0; 1 << 20]).unwrap();
        assert_eq!(of(folder.path(), room(3 << 20)).verdict, Verdict::Ok);
        // Files that are not part of the log do not count; its files beyond the configured number
        // do.
        fs::write(log.join("audit.jsonl.gz"), "").unwrap();
        fs::write(log.join("audit.jsonlx"), "").unwrap();
        assert_eq!(of(folder.path(), |_| {}).verdict, Verdict::Ok);
        fs::write(log.join("audit.jsonl.4"), "").unwrap();
        let beyond = of(folder.path(), |_| {});
        assert_eq!(beyond.verdict, Verdict::Warn);
        assert!(beyond.found.contains("audit.jsonl.4"), "{beyond:?}");
    }

    #[test]
    fn folder_as_log_and_hanging_mount_are_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        fs::create_dir_all(log.join("audit.jsonl")).unwrap();
        fs::set_permissions(&log, fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(of(folder.path(), |_| {}).verdict, Verdict::Wrong);
        let (plan, _folder) = test_plan(&format!("{TIER}[audit]\npath = '/log/a'\n"));
        let hangs = Error::new(ErrorKind::Unavailable, "the file system does not answer");
        let finding = check(&plan, |_| Err(hangs)).unwrap();
        assert_eq!(finding.verdict, Verdict::Wrong);
        assert!(finding.mend.unwrap().contains("findmnt"));
    }
}
