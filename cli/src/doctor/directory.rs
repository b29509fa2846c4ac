//! Checks that a tier's directory is usable: occupant, owner, write access.
//!
//! The check fails exactly where a daemon would fail at its start.

use forebay_store::Occupant;
use rustix::process::geteuid;

use super::finding::Finding;
use super::mount_facts::MountFacts;
use super::plan::{Plan, advice, without_advice};

const CHECK: &str = "directory";

/// Mode bits: directories, and write access of all but the owner.
const TYPE: u32 = 0o170_000;
const DIRECTORY: u32 = 0o040_000;
const WRITABLE_BY_OTHERS: u32 = 0o022;

pub(super) fn check(plan: &Plan, at: usize, facts: &MountFacts) -> Finding {
    let shown = facts.nearest.display();
    let place = plan.place("tier", at, "path");
    let mode = facts.mode & 0o7777;
    let of = |uid: u32| match uid {
        uid if uid == geteuid().as_raw() => "this user's".to_owned(),
        uid => format!("uid {uid}'s"),
    };
    let finding = if facts.mode & TYPE != DIRECTORY {
        Finding::wrong(CHECK, format!("{shown} is not a directory"), format!("{place}: name one"))
    } else if let Err(error) = &facts.occupant {
        let mend = format!("{place}: {}", advice(error, "name an empty directory"));
        Finding::wrong(CHECK, format!("{shown}: {}", without_advice(error)), mend)
    } else if !facts.writable && facts.mount.as_ref().is_some_and(|mount| mount.has("ro")) {
        Finding::skipped(CHECK, format!("{shown} is mounted read-only"))
    } else if !facts.writable {
        let owner = of(facts.owner);
        Finding::wrong(
            CHECK,
            format!("this user may not write to {shown}, which is {owner} (mode {mode:o})"),
            format!("run as its owner, or `chown USER {shown}`, USER being the daemon's"),
        )
    } else if !facts.exists {
        Finding::ok(CHECK, format!("does not exist yet: a daemon makes it below {shown}"))
    } else if mode & WRITABLE_BY_OTHERS != 0 {
        Finding::warn(
            CHECK,
            format!("other users may write to {shown} (mode {mode:o}), and so replace shards"),
            format!("`chmod 700 {shown}`"),
        )
    } else {
        let what = match facts.occupant {
            Ok(Occupant::Cache) => "a Forebay cache",
            _ => "empty",
        };
        Finding::ok(CHECK, format!("{shown} is {what}, {}, mode {mode:o}", of(facts.owner)))
    };
    finding.figure("owner", facts.owner).figure("mode", format!("{mode:o}"))
}

#[cfg(test)]
mod tests {
    use forebay_error::{Error, ErrorKind};

    use super::super::finding::Verdict;
    use super::super::plan::test_plan;
    use super::*;

    fn of(change: impl FnOnce(&mut MountFacts)) -> Finding {
        let (plan, _folder) =
            test_plan("[[tier]]\nname = 'a'\npath = '/mnt/a'\ncapacity = '1GiB'\n");
        let mut facts = MountFacts::sound();
        change(&mut facts);
        check(&plan, 0, &facts)
    }

    #[test]
    fn empty_own_and_missing_directories_are_ok() {
        assert!(of(|_| ()).found.contains("empty, this user's, mode 700"));
        assert!(of(|facts| facts.occupant = Ok(Occupant::Cache)).found.contains("a Forebay cache"));
        let unmade = of(|facts| facts.exists = false);
        assert_eq!(unmade.verdict, Verdict::Ok);
        assert!(unmade.found.contains("makes it"), "{unmade:?}");
    }

    #[test]
    fn directories_rejected_by_the_daemon_are_wrong() {
        let foreign = Error::new(ErrorKind::Invalid, "not empty").advise("name an empty one");
        let foreign = of(|facts| facts.occupant = Err(foreign));
        assert_eq!(foreign.verdict, Verdict::Wrong);
        let mend = foreign.mend.unwrap();
        assert!(mend.contains("forebay.toml:3") && mend.contains("name an empty one"), "{mend}");
        let closed = of(|facts| {
            facts.writable = false;
            facts.owner = 4242;
        });
        assert_eq!(closed.verdict, Verdict::Wrong);
        assert!(closed.found.contains("uid 4242's"), "{closed:?}");
        let read_only = of(|facts| {
            *facts = MountFacts::on("ext4", &["ro", "relatime"]);
            facts.writable = false;
        });
        assert_eq!(read_only.verdict, Verdict::Skipped, "the mount is what is wrong");
        assert_eq!(of(|facts| facts.mode = 0o100_600).verdict, Verdict::Wrong, "a file");
    }

    #[test]
    fn group_writable_directory_is_a_warning() {
        let open = of(|facts| facts.mode = 0o40_775);
        assert_eq!(open.verdict, Verdict::Warn);
        assert!(open.mend.unwrap().contains("chmod 700"));
        assert_eq!(of(|facts| facts.mode = 0o40_755).verdict, Verdict::Ok);
    }
}
