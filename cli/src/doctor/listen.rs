//! The sockets of `[[listen]]`: whether the daemon can make them, and who can then connect.
//!
//! As for the daemon's own socket nothing is made; who may be served is the configuration's word,
//! who may connect the file's.

use std::fs;

use forebay_config::settings::ListenConfig;
use forebay_serve::is_open;
use rustix::process::{getegid, geteuid, getgroups};

use super::finding::Finding;
use super::plan::{Plan, advice, without_advice};
use super::socket;

const CHECK: &str = "listen";

/// Write bits of a mode: its user, its group, anybody.
const WRITABLE: u32 = 0o222;
const WRITABLE_BY_GROUP: u32 = 0o020;

/// A finding for each of them.
pub(super) fn check(plan: &Plan) -> Vec<Finding> {
    let all = plan.config().map(|config| config.listen.as_slice()).unwrap_or_default();
    let each = all.iter().enumerate().map(|(at, listen)| {
        let place = |key| plan.place("listen", at, key);
        match listen.node() {
            Ok(config) => judge(&config, place),
            Err(error) => {
                // The configuration's own check rejects all other mistakes.
                let mend = format!("{}: {}", place("group"), advice(&error, "mend it"));
                Finding::wrong(CHECK, without_advice(&error), mend)
            }
        }
        .figure("path", listen.path.display().to_string())
    });
    each.collect()
}

fn judge(config: &ListenConfig, place: impl Fn(&'static str) -> String) -> Finding {
    let ListenConfig { door, group, mode } = config;
    let shown = door.path.display();
    if let Some(gid) = group.filter(|gid| !may_give_to(*gid)) {
        return Finding::wrong(
            CHECK,
            format!("this user is not in group {gid}, and so may not give {shown} to it"),
            format!(
                "run as the daemon's user; if that is not in it: `usermod -aG {gid} USER`, or under systemd \
                 SupplementaryGroups={gid}"
            ),
        );
    }
    if mode & WRITABLE == 0 {
        let mend = format!("{}: set mode = \"0660\"", place("mode"));
        return Finding::wrong(
            CHECK,
            format!("no user may connect to {shown} (mode {mode:o})"),
            mend,
        );
    }
    if group.is_some() && mode & WRITABLE_BY_GROUP == 0 {
        let mend = format!("{}: set mode = \"0660\"", place("mode"));
        let found = format!("the group of {shown} may not connect to it (mode {mode:o})");
        return Finding::warn(CHECK, found, mend);
    }
    if let Some(tenant) = door.tenant.as_deref().filter(|_| is_open(&door.path, *mode)) {
        return Finding::warn(
            CHECK,
            format!("every user of this machine can connect to {shown} as tenant {tenant}"),
            format!(
                "{}: give it a group, or put it in a folder that only root can enter",
                place("mode")
            ),
        );
    }
    let folder = socket::folder(CHECK, &door.path, &place("path"));
    // One that lies there is a daemon's, or was: who listens is looked at by the daemon's own.
    let is_there = fs::symlink_metadata(&door.path).is_ok();
    match folder {
        Some(finding) => finding,
        None if is_there => {
            Finding::ok(CHECK, format!("{shown} exists, mode {mode:o} by its rule"))
        }
        None => Finding::ok(CHECK, format!("{shown} can be made, mode {mode:o}")),
    }
}

/// Returns true if this user may give a file to a group: root, or a member.
fn may_give_to(gid: u32) -> bool {
    geteuid().is_root()
        || getegid().as_raw() == gid
        || getgroups().is_ok_and(|groups| groups.iter().any(|group| group.as_raw() == gid))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::super::finding::Verdict;
    use super::super::plan::test_plan;
    use super::*;
    use forebay_config::settings::Door;

    fn of(socket: &Path, more: &str) -> Finding {
        let (plan, _folder) = test_plan(&format!(
            "[[tier]]\nname = 'a'\npath = '/mnt/a'\ncapacity = '1GiB'\n[[tenant]]\nname = 'pods'\n\
             [[listen]]\npath = {socket:?}\n{more}\n"
        ));
        let mut found = check(&plan);
        assert_eq!(found.len(), 1);
        found.remove(0)
    }

    #[test]
    fn creatable_socket_is_ok() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("pods/f.sock");
        let fine = of(&socket, "tenant = 'pods'");
        assert_eq!(fine.verdict, Verdict::Ok, "{fine:?}");
        assert!(fine.found.contains("can be made, mode 660"), "{fine:?}");
        assert!(!folder.path().join("pods").exists());
        let own = getegid().as_raw();
        assert_eq!(of(&socket, &format!("tenant = 'pods'\ngroup = {own}")).verdict, Verdict::Ok);
        fs::create_dir(folder.path().join("pods")).unwrap();
        fs::write(&socket, "").unwrap();
        let taken = of(&socket, "tenant = 'pods'");
        assert_eq!(taken.verdict, Verdict::Wrong, "no socket lies there: {taken:?}");
    }

    #[test]
    fn unknown_and_foreign_groups_are_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("forebay.toml");
        let text = "[[tier]]\nname = 'a'\npath = '/mnt/a'\ncapacity = '1GiB'\n\
                    [[listen]]\npath = '/run/f.sock'\ngroup = 'no-such-group-anywhere'\n";
        fs::write(&config, text).unwrap();
        let (_, none) = Plan::make(Some(&config), None);
        assert_eq!(none.verdict, Verdict::Wrong);
        assert!(none.found.contains("line=7"), "{none:?}");
        assert!(none.mend.unwrap().contains("getent group"));
        let door = Door { path: folder.path().join("f.sock"), tenant: None, admin: false };
        let others = ListenConfig { door, group: Some(44_999), mode: 0o660 };
        let others = judge(&others, |key| format!("f:{key}"));
        // Root gives files to whom it likes.
        let wanted = if geteuid().is_root() { Verdict::Ok } else { Verdict::Wrong };
        assert_eq!(others.verdict, wanted, "{others:?}");
    }

    #[test]
    fn implausible_socket_modes_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let socket = folder.path().join("f.sock");
        let with = |rest: &str| of(&socket, &format!("tenant = 'pods'\n{rest}"));
        let nobody = with("mode = '0555'");
        assert_eq!(nobody.verdict, Verdict::Wrong);
        assert!(nobody.mend.unwrap().contains("forebay.toml:10"));
        let own = getegid().as_raw();
        let closed = with(&format!("mode = '0600'\ngroup = {own}"));
        assert_eq!(closed.verdict, Verdict::Warn, "{closed:?}");
        assert_eq!(with("mode = '0600'").verdict, Verdict::Ok);
        let open = with("mode = '0666'");
        assert_eq!(open.verdict, Verdict::Warn);
        assert!(open.found.contains("tenant pods"), "{open:?}");
        // A socket without a tenant identifies each peer, so anybody may connect.
        let door = Door { path: socket.clone(), tenant: None, admin: false };
        let jobs = judge(&ListenConfig { door, group: None, mode: 0o666 }, str::to_owned);
        assert_eq!(jobs.verdict, Verdict::Ok, "{jobs:?}");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(with("mode = '0666'").verdict, Verdict::Ok, "only root can enter");
    }
}
