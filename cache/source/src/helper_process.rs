//! Helper processes of the daemon: readers of files that may hang, and chains of credentials.
//!
//! A helper inherits nothing but what its caller gives it, and ends with the caller.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;

use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_uring::close_on_exec;
use rustix::fs::{Access, access};
use rustix::io::Errno;
use rustix::process::geteuid;
use tokio::process::{Child, Command};

/// Helper process before its start.
pub(crate) struct HelperProcess {
    /// Program and arguments.
    pub(crate) command: Command,
}

impl HelperProcess {
    /// Prepares the process without input and output, which the caller may set.
    ///
    /// # Errors
    /// `Invalid` for an empty command line.
    pub(crate) fn new(line: &[OsString]) -> Result<Self> {
        let Some((program, arguments)) = line.split_first() else {
            return Err(Error::new(ErrorKind::Invalid, "no command to start a helper process"));
        };
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir("/")
            .stdin(Stdio::null())
            // A reader of the daemon's output would wait for the end of a helper that hangs.
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A Ctrl-C in a terminal reaches the daemon alone; children of a helper end with it.
            .process_group(0)
            .kill_on_drop(true);
        Ok(Self { command })
    }

    /// Starts the process.
    ///
    /// # Errors
    /// The spawn's error, with the program's path; `Closed` while the runtime shuts down.
    pub(crate) async fn start(self) -> Result<Child> {
        let mut command = self.command;
        let program = Path::new(command.as_std().get_program()).display().to_string();
        // Loading a program may wait for a disk. The command is dropped there, with its copies of
        // descriptors: the caller then sees the other ends close.
        let spawned = tokio::task::spawn_blocking(move || {
            if let Err(error) = close_on_exec() {
                // Descriptors of this process are closed all the same; inherited ones are not.
                tracing::warn!(%error, "helper processes inherit descriptors of the daemon's parent");
            }
            command.spawn().doing("start a helper process")
        });
        let closed = |_| Error::shutting_down();
        let spawned = spawned.await.map_err(closed)?.map_err(|error| error.at("program", &program));
        spawned.map_err(|error| check_program(Path::new(&program), None).err().unwrap_or(error))
    }
}

/// User of another process, as the kernel judges its access by modes; lists of access beside the
/// modes are not looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramUser {
    /// User.
    pub uid: u32,
    /// Groups.
    pub gids: Vec<u32>,
}

impl ProgramUser {
    /// Returns true if this user may enter a folder, or execute a program. What this process
    /// cannot look at is taken for allowed.
    fn may_execute(&self, path: &Path) -> bool {
        let Ok(found) = path.metadata() else { return true };
        let (owner, group, all) = (0o100, 0o010, 0o001);
        let bit = match (self.uid == found.uid(), self.gids.contains(&found.gid())) {
            _ if self.uid == 0 => owner | group | all,
            (true, _) => owner,
            (false, true) => group,
            (false, false) => all,
        };
        found.mode() & bit != 0 || (self.uid == 0 && found.is_dir())
    }
}

/// Checks that `user`, or this process, may start helper processes by this command line.
///
/// # Errors
/// `PermissionDenied` with the first folder that the user cannot enter, or the program that it
/// cannot execute; `Invalid` if there is no such program.
pub fn check_helper_process(line: &[OsString], user: Option<&ProgramUser>) -> Result<()> {
    match line.first() {
        Some(program) => check_program(Path::new(program), user),
        None => Ok(()),
    }
}

fn check_program(program: &Path, user: Option<&ProgramUser>) -> Result<()> {
    let at = |kind, what: &str, path: &Path| {
        let user = user.map_or_else(|| geteuid().as_raw(), |user| user.uid);
        let error = Error::new(kind, what.to_owned()).at("path", path.display()).at("uid", user);
        error.at("program", program.display())
    };
    let advice = "install Forebay where the daemon's user may execute it, such as /opt or /usr";
    // The shell's search finds a program without a folder.
    if program.parent().is_none_or(|folder| folder.as_os_str().is_empty()) {
        return Ok(());
    }
    let mut folders: Vec<_> = program.ancestors().skip(1).collect();
    folders.reverse();
    let denied = |path: &&Path| match user {
        Some(user) => !user.may_execute(path),
        None => access(*path, Access::EXEC_OK) == Err(Errno::ACCESS),
    };
    if let Some(folder) = folders.into_iter().find(denied) {
        let what = "this user cannot enter the folder of the program of helper processes";
        return Err(at(ErrorKind::PermissionDenied, what, folder).advise(advice));
    }
    if access(program, Access::EXISTS).is_err() {
        let what = "the program of helper processes does not exist";
        return Err(at(ErrorKind::Invalid, what, program).advise(advice));
    }
    if denied(&program) {
        let what = "this user cannot execute the program of helper processes";
        return Err(at(ErrorKind::PermissionDenied, what, program).advise(advice));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn missing_program_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("none");
        let error = check_helper_process(&[program.clone().into()], None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert_eq!(error.place("path"), program.to_str(), "{error}");
    }

    #[test]
    fn program_without_execute_permission_is_denied() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("plain");
        fs::write(&program, b"no program").unwrap();
        let error = check_helper_process(&[program.clone().into()], None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        assert_eq!(error.place("path"), program.to_str(), "{error}");
        assert!(check_helper_process(&["/bin/sh".into()], None).is_ok());
        assert!(check_helper_process(&["sh".into()], None).is_ok());
    }

    /// The first folder that another user cannot enter is named, whoever looks.
    #[test]
    fn folder_closed_to_the_daemons_user_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let closed = folder.path().join("venv");
        let program = closed.join("bin/forebay");
        fs::create_dir_all(program.parent().unwrap()).unwrap();
        fs::write(&program, b"program").unwrap();
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
        mode(&program, 0o755).unwrap();
        mode(folder.path(), 0o755).unwrap();
        mode(&closed, 0o750).unwrap();
        let found = closed.metadata().unwrap();
        let check = |uid, gid| {
            let user = ProgramUser { uid, gids: vec![gid] };
            check_helper_process(&[program.clone().into()], Some(&user))
        };
        let (uid, gid) = (found.uid() + 1, found.gid() + 1);
        let error = check(uid, gid).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        assert_eq!(error.place("path"), closed.to_str(), "{error}");
        assert_eq!(error.place("uid"), Some(&*uid.to_string()), "{error}");
        assert!(check(uid, found.gid()).is_ok() && check(found.uid(), gid).is_ok());
        assert!(check(0, gid).is_ok());
    }
}
