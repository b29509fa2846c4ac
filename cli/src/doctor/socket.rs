//! Socket for trainers: its folder, and the daemon that answers.
//!
//! The check starts no daemon and makes no folder.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use forebay_api::status::Status;
use forebay_client::{Admin, Connection, Deadline};
use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_peers::ClusterReport;
use forebay_source::ProgramUser;
use forebay_wire::socket::SocketPath;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{UnixCredentials, getsockopt};
use rustix::fs::Access;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::geteuid;

use super::finding::Finding;
use super::plan::{Plan, advice, without_advice};
use crate::ANSWER_TIMEOUT;

const CHECK: &str = "socket";

/// Mode bit that lets anybody write to a folder; unless it is sticky, anybody may replace the
/// daemon's socket.
const WRITABLE_BY_OTHERS: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// Listener of the socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listener {
    /// Process, if this namespace knows it.
    pub(super) pid: Option<u32>,
    /// User.
    uid: u32,
    /// The daemon's answer; none if it is another user's.
    told: Option<Told>,
}

impl Listener {
    /// Returns the daemon's part in a cluster.
    pub(super) fn cluster(&self) -> Option<&ClusterReport> {
        self.told.as_ref()?.cluster.as_ref()
    }

    /// Returns the listener's user if that is another one, with the groups of its process.
    pub(super) fn program_user(&self) -> Option<ProgramUser> {
        if self.uid == geteuid().as_raw() {
            return None;
        }
        let status =
            self.pid.and_then(|pid| fs::read_to_string(format!("/proc/{pid}/status")).ok());
        let numbers = |key: &str| {
            let line = status.as_ref()?.lines().find_map(|line| line.strip_prefix(key))?;
            Some(line.split_whitespace().filter_map(|gid| gid.parse().ok()).collect::<Vec<u32>>())
        };
        let gids = ["Gid:", "Groups:"].into_iter().filter_map(numbers).flatten().collect();
        Some(ProgramUser { uid: self.uid, gids })
    }
}

/// A daemon's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Told {
    release: String,
    /// Jobs connected to it.
    jobs: usize,
    /// Part of the node in a cluster.
    cluster: Option<ClusterReport>,
}

/// Returns the listener at `path`, if any.
pub(super) fn ask(path: &Path) -> Result<Option<Listener>> {
    let Some(credentials) = peer(path).map_err(|error| error.at("socket", path.display()))? else {
        return Ok(None);
    };
    let (uid, pid) = (credentials.uid(), u32::try_from(credentials.pid()).ok());
    // Another's daemon turns us away: no need to ask.
    let told = if uid == geteuid().as_raw() { Some(tell(path)?) } else { None };
    Ok(Some(Listener { pid: pid.filter(|pid| *pid > 0), uid, told }))
}

/// Returns the listener's credentials from the kernel.
///
/// A listener outside this process namespace has process id 0, which rustix has no value for.
fn peer(path: &Path) -> Result<Option<UnixCredentials>> {
    let doing = "connect to the daemon";
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let socket = socket.doing("make a socket")?;
    let place = match SocketPath::of(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        place => place?,
    };
    let address = SocketAddrUnix::new(place.path()).doing(doing)?;
    match connect(&socket, &address) {
        Err(Errno::NOENT | Errno::CONNREFUSED | Errno::NOTDIR) => return Ok(None),
        // The backlog is full and stays so: a healthy daemon accepts at once.
        Err(Errno::AGAIN) => {
            return Err(Error::new(ErrorKind::Unavailable, "the daemon accepts no connections"));
        }
        tried => tried.doing(doing)?,
    }
    let credentials = getsockopt(&socket, PeerCredentials).map_err(std::io::Error::from);
    credentials.doing("read the listener's credentials").map(Some)
}

/// Asks this user's own daemon what it is.
fn tell(path: &Path) -> Result<Told> {
    let deadline = Deadline::after(ANSWER_TIMEOUT);
    let admin = Admin::of(Connection::open(path, &deadline)?)?;
    let Status { release, jobs, cluster, .. } = admin.get("/api/v1/status", &deadline)?;
    Ok(Told { release, jobs: jobs.len(), cluster })
}

/// `asked`: what [`ask`] came to.
pub(super) fn check(plan: &Plan, asked: Option<&Result<Option<Listener>>>) -> Finding {
    let (Some(path), Some(asked)) = (&plan.socket, asked) else {
        return Finding::wrong(
            CHECK,
            "this user has no cache directory, and so no socket",
            "set FOREBAY_CACHE to a directory on a local disk",
        );
    };
    let place = || plan.place("daemon", 0, "socket");
    let shown = path.display();
    match asked {
        Ok(Some(listener)) => somebody(path, listener),
        Ok(None) => nobody(path, &place()),
        Err(error) if error.kind() == ErrorKind::Invalid => {
            let mend = format!("{}: choose a shorter path", place());
            Finding::wrong(CHECK, format!("{shown}: {}", without_advice(error)), mend)
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Finding::skipped(
            CHECK,
            format!("this user has no access to it: {}", without_advice(error)),
        ),
        Err(error) => {
            let hold = "`ss -xlp` names the process that holds the socket: end that one";
            Finding::wrong(CHECK, without_advice(error), advice(error, hold))
        }
    }
}

/// Somebody listens: who.
fn somebody(path: &Path, listener: &Listener) -> Finding {
    let Listener { pid, uid, told } = listener;
    let shown = path.display();
    let whose = pid.map_or_else(|| "not of this namespace".to_owned(), |pid| format!("pid {pid}"));
    let finding = match told {
        None => Finding::ok(
            CHECK,
            format!("uid {uid}'s daemon listens at {shown}, {whose}; only that user gets details"),
        ),
        Some(Told { release, jobs, .. }) => {
            let ours = env!("CARGO_PKG_VERSION");
            let found =
                format!("a daemon answers at {shown}: release {release}, {whose}, {jobs} jobs");
            match release == ours {
                true => Finding::ok(CHECK, found),
                false => Finding::warn(
                    CHECK,
                    format!("{found}; installed is {ours}"),
                    "restart it when jobs allow: `systemctl restart UNIT`; they reconnect",
                ),
            }
            .figure("daemon_release", release.as_str())
        }
    };
    finding.figure("pid", *pid).figure("uid", *uid)
}

/// Nobody answers: whether somebody could.
fn nobody(path: &Path, place: &str) -> Finding {
    if let Some(finding) = folder(CHECK, path, place) {
        return finding;
    }
    let above = path.parent().unwrap_or(path).display();
    match path.parent().and_then(|folder| fs::metadata(folder).ok()) {
        None => Finding::ok(CHECK, format!("no daemon runs; a new one makes {above}")),
        Some(found) => Finding::ok(CHECK, format!("no daemon runs; {above} can hold its socket"))
            .figure("folder_mode", format!("{:o}", found.mode() & 0o7777)),
    }
}

/// Returns the obstacle to a socket at `path`, if any.
pub(super) fn folder(check: &'static str, path: &Path, place: &str) -> Option<Finding> {
    let shown = path.display();
    // A daemon that starts takes the place of a socket whose daemon is gone, and of nothing else.
    if fs::symlink_metadata(path).is_ok_and(|found| !found.file_type().is_socket()) {
        let found = format!("{shown} exists and is not a socket");
        return Some(Finding::wrong(
            check,
            found,
            format!("`rm {shown}`, or {place}: name another"),
        ));
    }
    let Some(folder) = path.parent() else {
        return Some(Finding::wrong(check, format!("{shown} has no folder"), place.to_owned()));
    };
    let Ok(found) = fs::metadata(folder) else {
        return unmade(check, folder);
    };
    let mode = found.mode();
    if mode & WRITABLE_BY_OTHERS != 0 && mode & STICKY == 0 {
        return Some(Finding::wrong(
            check,
            format!(
                "any user may put a socket into {} (mode {:o})",
                folder.display(),
                mode & 0o7777
            ),
            format!("`chmod o-w {}`", folder.display()),
        ));
    }
    if rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK).is_err() {
        return Some(Finding::warn(
            check,
            format!("this user may not create a socket in {}", folder.display()),
            format!("run as the daemon's user, or `chown USER {}`", folder.display()),
        ));
    }
    None
}

/// The folder is not there: a daemon makes it, if it may.
fn unmade(check: &'static str, folder: &Path) -> Option<Finding> {
    let parent = forebay_client::existing(folder);
    let shown = folder.display();
    if rustix::fs::access(parent, Access::WRITE_OK | Access::EXEC_OK).is_ok() {
        return None;
    }
    Some(Finding::wrong(
        check,
        format!("{shown} does not exist, and this user may not create it in {}", parent.display()),
        format!(
            "`install -d -o USER {shown}` as root; under systemd: `systemctl edit UNIT`, [Service] \
             RuntimeDirectory=forebay"
        ),
    ))
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
    fn running_daemon_is_named_and_an_older_one_needs_a_restart() {
        let (plan, _folder) = plan("/run/f.sock".as_ref());
        let listener = |release: Option<&str>| Listener {
            pid: Some(7),
            uid: 4242,
            told: release.map(|release| Told {
                release: release.to_owned(),
                jobs: 2,
                cluster: None,
            }),
        };
        let of = |release| check(&plan, Some(&Ok(Some(listener(release)))));
        let ours = of(Some(env!("CARGO_PKG_VERSION")));
        assert_eq!(ours.verdict, Verdict::Ok);
        assert!(ours.found.contains("pid 7, 2 jobs"), "{ours:?}");
        let older = of(Some("0.0.1"));
        assert_eq!(older.verdict, Verdict::Warn);
        assert!(older.mend.unwrap().contains("restart"));
        let others = of(None);
        assert_eq!((others.verdict, &others.figures["pid"]), (Verdict::Ok, &7.into()));
        assert!(others.found.contains("uid 4242's"), "{others:?}");
        let closed = Error::new(ErrorKind::PermissionDenied, "Permission denied");
        assert_eq!(check(&plan, Some(&Err(closed))).verdict, Verdict::Skipped);
    }

    #[test]
    fn peer_comes_from_the_kernel_and_a_hung_listener_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("f.sock");
        let listening = UnixListener::bind(&socket).unwrap();
        let credentials = peer(&socket).unwrap().unwrap();
        assert_eq!(credentials.pid().unsigned_abs(), std::process::id());
        // Nobody takes these connections: its line fills up.
        rustix::net::listen(&listening, 0).unwrap();
        let mut waiting = Vec::new();
        let full = loop {
            match peer_and_stay(&socket) {
                Ok(stays) => waiting.push(stays),
                Err(errno) => break errno,
            }
        };
        assert_eq!(full, Errno::AGAIN);
        let finding = of(&socket);
        assert_eq!(finding.verdict, Verdict::Wrong);
        assert!(finding.mend.unwrap().contains("ss -xlp"));
    }

    fn peer_and_stay(path: &Path) -> std::result::Result<std::os::fd::OwnedFd, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(socket)
    }

    #[test]
    fn folder_accepting_a_socket_is_ok() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(of(&folder.path().join("f.sock")).verdict, Verdict::Ok);
        let unmade = of(&folder.path().join("a/b/f.sock"));
        assert_eq!(unmade.verdict, Verdict::Ok);
        assert!(unmade.found.contains("makes"), "{unmade:?}");
        assert!(!folder.path().join("a").exists());
        // The socket of a killed daemon is no obstacle.
        let left = folder.path().join("left.sock");
        drop(UnixListener::bind(&left).unwrap());
        assert_eq!(of(&left).verdict, Verdict::Ok);
    }

    #[test]
    fn world_writable_folder_needs_the_sticky_bit() {
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
    fn plain_file_and_overlong_path_are_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("f.sock");
        fs::write(&file, "").unwrap();
        let finding = of(&file);
        assert_eq!(finding.verdict, Verdict::Wrong);
        assert!(finding.mend.unwrap().contains("rm "));
        // A configuration file with such a path is rejected; an embedded daemon's is made up.
        let (mut plan, _folder) = plan("/run/f.sock".as_ref());
        plan.socket = Some(folder.path().join("x".repeat(200)));
        assert_eq!(check(&plan, None).verdict, Verdict::Wrong);
    }

    #[test]
    fn missing_socket_path_is_wrong() {
        let (mut plan, _folder) = plan("/run/f.sock".as_ref());
        plan.socket = None;
        assert_eq!(check(&plan, None).verdict, Verdict::Wrong);
    }
}
