//! Helper processes of the daemon: readers of files that may hang, and chains of credentials.
//!
//! A helper inherits nothing but what its caller gives it, and ends with the caller.

use std::ffi::OsString;
use std::path::Path;
use std::process::Stdio;

use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_uring::close_on_exec;
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
        let closed = |_| Error::new(ErrorKind::Closed, "shutting down");
        spawned.await.map_err(closed)?.map_err(|error| error.at("program", program))
    }
}
