//! A node daemon with a user of its own, and clients of other users.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use forebay_testkit::is_root;
use serde_json::Value;
use tempfile::TempDir;

use crate::node::{Daemon, daemon_status};
use crate::patience::eventually;
use crate::process::actor;
use crate::trainer::TrainerJob;

/// User and group of the daemon, unused on any system.
const DAEMON: u32 = 44_100;

/// A node daemon; killed when dropped.
pub struct SharedNode {
    folder: TempDir,
    daemon: Option<Child>,
}

impl SharedNode {
    /// A daemon with `more` in its configuration, where `{}` is its folder. `None`, which skips the
    /// test, without root.
    ///
    /// # Panics
    /// If it does not start, or if the test may not be skipped.
    #[must_use]
    pub fn new(daemon: &str, more: &str) -> Option<Self> {
        if !is_root("the daemon and its jobs are different users") {
            return None;
        }
        let folder = Daemon::disk();
        let at = |name: &str| folder.path().join(name);
        permit(folder.path(), 0o755);
        for name in ["cache", "run", "log"] {
            fs::create_dir(at(name)).expect("the folder is writable");
            permit(&at(name), 0o755);
            chown(at(name), Some(DAEMON), Some(DAEMON)).expect("root gives files away");
        }
        let here = folder.path().to_str().expect("a path of words");
        let text = format!(
            "[daemon]\nsocket = {:?}\nmemory = '512MiB'\n{daemon}\n\
             [[tier]]\nname = 'nvme'\npath = {:?}\ncapacity = '256MiB'\n{}",
            at("run/d.sock"),
            at("cache"),
            more.replace("{}", here)
        );
        fs::write(at("forebay.toml"), text).expect("the folder is writable");
        let mut node = Self { folder, daemon: None };
        node.start();
        Some(node)
    }

    /// Starts it again after [`SharedNode::end`].
    ///
    /// # Panics
    /// If it does not listen.
    pub fn start(&mut self) {
        let daemon = Command::new(actor())
            .args(["daemon", "--config"])
            .arg(self.path("forebay.toml"))
            .uid(DAEMON)
            .gid(DAEMON)
            .spawn()
            .expect("the actor starts");
        self.daemon = Some(daemon);
        eventually("the daemon answers", || daemon_status(&self.socket()).is_ok());
    }

    /// Stops it by SIGTERM and waits.
    ///
    /// # Panics
    /// If it fails.
    pub fn end(&mut self) {
        let Some(mut daemon) = self.daemon.take() else { return };
        let pid = i32::try_from(daemon.id()).ok().and_then(rustix::process::Pid::from_raw);
        let pid = pid.expect("a process id");
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
        assert!(daemon.wait().expect("a child can be waited for").success());
    }

    /// User and group of the daemon.
    #[must_use]
    pub fn user() -> u32 {
        DAEMON
    }

    /// A path in its folder.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Socket of the node.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.path("run/d.sock")
    }

    /// Status document, as root sees it.
    ///
    /// # Panics
    /// If it does not answer.
    #[must_use]
    pub fn status(&self) -> Value {
        daemon_status(&self.socket()).expect("the daemon answers root")
    }

    /// Output of a trainer with this user and group that plays a job at the socket of this name.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn play(&self, socket: &str, (uid, gid): (u32, u32), part: &TrainerJob) -> Output {
        let mut trainer = self.actor((uid, gid));
        trainer.arg("once").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut trainer = trainer.spawn().expect("the actor starts");
        let part = serde_json::to_string(&(self.path(socket), part)).expect("it is JSON");
        let mut stdin = trainer.stdin.take().expect("piped just above");
        stdin.write_all(part.as_bytes()).expect("the actor reads its part");
        drop(stdin);
        trainer.wait_with_output().expect("a child can be waited for")
    }

    /// Output of the command line, run by a user with this group at the socket of this name.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn forebay(
        &self,
        socket: &str,
        user: (u32, u32),
        environment: &BTreeMap<String, String>,
        arguments: &[&str],
    ) -> Output {
        let mut command = self.actor(user);
        command
            .args(arguments)
            .env("FOREBAY_DAEMON", format!("unix:{}", self.path(socket).display()))
            .envs(environment);
        command.output().expect("the actor starts")
    }

    fn actor(&self, (uid, gid): (u32, u32)) -> Command {
        let mut command = Command::new(actor());
        command.uid(uid).gid(gid).current_dir(self.folder.path());
        command
    }

    /// Complete lines of its audit log, `log/audit.jsonl`.
    ///
    /// # Panics
    /// If one is not JSON.
    #[must_use]
    pub fn audit(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.path("log/audit.jsonl")).unwrap_or_default();
        let (whole, _) = text.rsplit_once('\n').unwrap_or_default();
        whole.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
    }
}

impl Drop for SharedNode {
    fn drop(&mut self) {
        if let Some(daemon) = &mut self.daemon {
            // Fails if it ended by itself.
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

fn permit(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("root changes modes");
}
