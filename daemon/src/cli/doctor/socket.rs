//! Where trainers find the daemon: the socket's folder, and whether one answers.
//!
//! One rule: no daemon is started for it, and no folder made.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use forebay_client::{Connection, Deadline};
use forebay_error::{Error, ErrorKind, Result};
use forebay_wire::message::{Reply, Request};
use rustix::fs::Access;
use serde_json::Value;

use super::finding::Finding;
use super::plan::{Plan, advice, without_advice};
use crate::cli::ANSWER_TIMEOUT;

const CHECK: &str = "socket";

/// The kernel takes paths up to here, an end included.
const PATH_MAX: usize = 108;

/// Of a folder's mode: anybody may write; unless it is sticky, anybody may put a socket of their own in
/// the daemon's place.
const WRITABLE_BY_OTHERS: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// A daemon that answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    /// Its process.
    pub(super) pid: u32,
    /// Its release.
    release: String,
    /// Jobs connected to it.
    jobs: usize,
}

/// Asks whoever listens at `path` who it is.
pub(super) fn ask(path: &Path) -> Result<Answer> {
    let deadline = Deadline::after(ANSWER_TIMEOUT);
    let connection = Connection::open(path, &deadline)?;
    let Reply::Status(json) = connection.ask(&Request::Status, &deadline)? else {
        return Err(crate::cli::unexpected());
    };
    let status: Value = serde_json::from_str(&json).map_err(|error| {
        Error::new(ErrorKind::Invalid, format!("the daemon's status cannot be read: {error}"))
    })?;
    let release = status.get("release").and_then(Value::as_str).unwrap_or("unknown").to_owned();
    let jobs = status.get("jobs").and_then(Value::as_array).map_or(0, Vec::len);
    Ok(Answer { pid: connection.daemon_pid, release, jobs })
}

/// `asked`: what [`ask`] came to.
pub(super) fn check(plan: &Plan, asked: Option<&Result<Answer>>) -> Finding {
    let (Some(path), Some(asked)) = (&plan.socket, asked) else {
        return Finding::wrong(
            CHECK,
            "there is no runtime directory that is this user's alone",
            "set XDG_RUNTIME_DIR to a directory of mode 0700 that is this user's",
        );
    };
    let place = || plan.place("daemon", 0, "socket");
    let shown = path.display();
    if path.as_os_str().len() >= PATH_MAX {
        let found = format!("{shown} is longer than the {PATH_MAX} bytes that a socket's path has");
        return Finding::wrong(CHECK, found, format!("{}: choose a shorter path", place()));
    }
    match asked {
        Ok(answer) => {
            let Answer { pid, release, jobs } = answer;
            let ours = env!("CARGO_PKG_VERSION");
            let found =
                format!("a daemon answers at {shown}: release {release}, pid {pid}, {jobs} jobs");
            let finding = match release == ours {
                true => Finding::ok(CHECK, found),
                false => Finding::warn(
                    CHECK,
                    format!("{found}; installed is {ours}"),
                    "restart it when jobs allow: `systemctl restart UNIT`; they reconnect",
                ),
            };
            finding.figure("pid", *pid).figure("daemon_release", release.as_str())
        }
        Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Unavailable) => {
            let mend = advice(error, "see who holds the socket: `ss -xlp`");
            Finding::wrong(CHECK, without_advice(error), mend)
        }
        Err(error) => nobody(path, error, &place()),
    }
}

/// Nobody answers: whether somebody could.
fn nobody(path: &Path, error: &Error, place: &str) -> Finding {
    let shown = path.display();
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            let found = format!("{shown} is there and is no socket");
            return Finding::wrong(CHECK, found, format!("`rm {shown}`, or {place}: name another"));
        }
        // A daemon that starts takes the place of one that is gone, whose socket the kernel refuses; one
        // that hangs is in the way.
        Ok(_) if !error.message().contains("refused") => {
            let mend = "`ss -xlp` names the process that holds it: end that one";
            return Finding::wrong(CHECK, without_advice(error), mend);
        }
        _ => {}
    }
    let Some(folder) = path.parent() else {
        return Finding::wrong(CHECK, format!("{shown} has no folder"), place.to_owned());
    };
    let Ok(found) = fs::metadata(folder) else {
        return unmade(folder);
    };
    let mode = found.mode();
    if mode & WRITABLE_BY_OTHERS != 0 && mode & STICKY == 0 {
        return Finding::wrong(
            CHECK,
            format!(
                "anybody may put a socket of their own into {} (mode {:o})",
                folder.display(),
                mode & 0o7777
            ),
            format!("`chmod o-w {}`", folder.display()),
        );
    }
    if rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK).is_err() {
        return Finding::warn(
            CHECK,
            format!("no daemon answers, and this user may make no socket in {}", folder.display()),
            format!("run as the daemon's user, or `chown USER {}`", folder.display()),
        );
    }
    Finding::ok(CHECK, format!("no daemon runs; {} takes its socket", folder.display()))
        .figure("folder_mode", format!("{:o}", mode & 0o7777))
}

/// The folder is not there: a daemon makes it, if it may.
fn unmade(folder: &Path) -> Finding {
    let parent = crate::embedded::existing(folder);
    let shown = folder.display();
    if rustix::fs::access(parent, Access::WRITE_OK | Access::EXEC_OK).is_ok() {
        return Finding::ok(CHECK, format!("no daemon runs; one that starts makes {shown}"));
    }
    Finding::wrong(
        CHECK,
        format!("{shown} is not there, and this user may not make it in {}", parent.display()),
        format!(
            "`install -d -o USER {shown}` as root; under systemd: `systemctl edit UNIT`, [Service] \
             RuntimeDirectory=forebay"
        ),
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    use super::super::finding::Verdict;
    use super::super::plan::test_plan;
    use super::*;

    fn plan(socket: &Path) -> (Plan, tempfile::TempDir) {
        test_plan(&format!(
            "[daemon]\nsocket = '{}'\n[[tier]]\nname = 'a'\npath = '/mnt/a'\ncapacity = '1GiB'\n",
            socket.display()
        ))
    }

    fn of(socket: &Path) -> Finding {
        let (plan, _folder) = plan(socket);
        check(&plan, Some(&ask(socket)))
    }

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_daemon_that_answers_is_named_and_an_older_one_is_to_be_restarted() {
        let (plan, _folder) = plan("/run/f.sock".as_ref());
        let answer = |release: &str| Answer { pid: 7, release: release.to_owned(), jobs: 2 };
        let ours = check(&plan, Some(&Ok(answer(env!("CARGO_PKG_VERSION")))));
        assert_eq!(ours.verdict, Verdict::Ok);
        assert!(ours.found.contains("pid 7, 2 jobs"), "{ours:?}");
        let older = check(&plan, Some(&Ok(answer("0.0.1"))));
        assert_eq!(older.verdict, Verdict::Warn);
        assert!(older.mend.unwrap().contains("restart"));
    }

    #[test]
    fn a_folder_that_takes_a_socket_is_ok() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(of(&folder.path().join("f.sock")).verdict, Verdict::Ok);
        let unmade = of(&folder.path().join("a/b/f.sock"));
        assert_eq!(unmade.verdict, Verdict::Ok);
        assert!(unmade.found.contains("makes"), "{unmade:?}");
        assert!(!folder.path().join("a").exists());
        // What a daemon that was killed leaves is in nobody's way.
        let left = folder.path().join("left.sock");
        drop(UnixListener::bind(&left).unwrap());
        assert_eq!(of(&left).verdict, Verdict::Ok);
    }

    #[test]
    fn a_folder_that_anybody_writes_to_is_wrong_unless_it_is_sticky() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("f.sock");
        mode(folder.path(), 0o777);
        let open = of(&socket);
        assert_eq!(open.verdict, Verdict::Wrong);
        assert!(open.mend.unwrap().contains("chmod o-w"));
        mode(folder.path(), 0o1777);
        assert_eq!(of(&socket).verdict, Verdict::Ok);
    }

    #[test]
    fn what_is_no_socket_and_what_is_too_long_are_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("f.sock");
        fs::write(&file, "").unwrap();
        let finding = of(&file);
        assert_eq!(finding.verdict, Verdict::Wrong);
        assert!(finding.mend.unwrap().contains("rm "));
        let long = of(&folder.path().join("x".repeat(PATH_MAX)));
        assert_eq!(long.verdict, Verdict::Wrong);
        assert!(long.mend.unwrap().contains("forebay.toml:2"));
    }

    #[test]
    fn nowhere_to_put_it_is_wrong() {
        let (mut plan, _folder) = plan("/run/f.sock".as_ref());
        plan.socket = None;
        assert_eq!(check(&plan, None).verdict, Verdict::Wrong);
    }
}
