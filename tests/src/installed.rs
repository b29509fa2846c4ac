//! A daemon as an admin installs it: configuration file, process, log.
//!
//! A daemon is killed when its test drops it, however the test ends. Several daemons may
//! follow each other in one folder; each has a log of its own.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use rustix::process::{Pid, Signal, kill_process};

use crate::node::daemon_status;
use crate::patience::eventually;

/// A configuration and the folder of its daemons.
pub struct Installation {
    actor: PathBuf,
    place: PathBuf,
    memory: u64,
    environment: Vec<(String, PathBuf)>,
}

/// A running daemon; killed when dropped.
pub struct Installed {
    child: Child,
    log: PathBuf,
}

impl Installation {
    /// An installation in the folder `place`. Its daemons run the program `actor` with `memory`
    /// bytes; `rest` is the rest of their configuration: tiers, rules.
    ///
    /// # Panics
    /// If the configuration cannot be written.
    #[must_use]
    pub fn new(actor: &str, place: &Path, memory: u64, rest: &str) -> Self {
        let (actor, environment) = (actor.into(), Vec::new());
        let this = Self { actor, place: place.to_owned(), memory, environment };
        this.configure(rest);
        this
    }

    /// Replaces the configuration, as an editor does, by a rename. `rest` as in
    /// [`Installation::new`].
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn configure(&self, rest: &str) {
        let (aside, text) = (self.place.join("aside.toml"), self.text(rest));
        fs::write(&aside, text).expect("the folder is writable");
        fs::rename(aside, self.config()).expect("the folder is writable");
    }

    /// Text of its configuration with this `rest`.
    #[must_use]
    pub fn text(&self, rest: &str) -> String {
        let Self { memory, .. } = self;
        format!("[daemon]\nsocket = {:?}\nmemory = '{memory}B'\n{rest}", self.socket())
    }

    /// Adds a path to the daemon's environment.
    #[must_use]
    pub fn with(mut self, name: &str, path: PathBuf) -> Self {
        self.environment.push((name.to_owned(), path));
        self
    }

    /// Path of its configuration file.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.place.join("forebay.toml")
    }

    /// Socket of its daemons.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.place.join("d.sock")
    }

    /// The command line, addressed to its daemon.
    #[must_use]
    pub fn forebay(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.actor);
        command.args(arguments);
        command.env("FOREBAY_DAEMON", format!("unix:{}", self.socket().display()));
        command
    }

    /// Starts the next daemon and waits until it answers.
    ///
    /// # Panics
    /// If it does not.
    #[must_use]
    pub fn start(&self) -> Installed {
        let mut logs = (1..).map(|number| self.place.join(format!("log-{number}")));
        let log = logs.find(|log| !log.exists()).expect("there are always more numbers");
        let mut command = Command::new(&self.actor);
        command.arg("daemon").arg("--config").arg(self.config()).env("FOREBAY_LOG", "info");
        command.envs(self.environment.iter().map(|(name, path)| (name, path)));
        command.stderr(File::create(&log).expect("the folder is writable"));
        let mut installed = Installed { child: command.spawn().expect("the actor starts"), log };
        let pid = u64::from(installed.pid());
        eventually("the daemon answers", || {
            let ended = installed.child.try_wait().expect("a child can be asked for");
            assert!(ended.is_none(), "the daemon ended, {ended:?}: {}", installed.log());
            daemon_status(&self.socket()).is_ok_and(|status| status["pid"] == pid)
        });
        installed
    }
}

impl Installed {
    /// Process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// If the process is gone.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).expect("a process id");
        kill_process(pid, signal).expect("it runs until now");
    }

    /// Text of its log so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Address of its API over TCP, from a field of its log.
    ///
    /// # Panics
    /// If it has none.
    #[must_use]
    pub fn http_address(&self) -> SocketAddr {
        let log = self.log();
        let fields = log.split_whitespace().filter_map(|word| word.strip_prefix("address="));
        let address = fields.filter_map(|address| address.parse().ok()).next();
        address.unwrap_or_else(|| panic!("it does not listen for HTTP: {log}"))
    }

    /// Peak memory in bytes as the kernel counts it, shared memory included.
    ///
    /// # Panics
    /// If the process is gone.
    #[must_use]
    pub fn peak_memory(&self) -> u64 {
        let path = format!("/proc/{}/status", self.pid());
        let status = fs::read_to_string(path).expect("a process has a status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let number = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        1024 * number.expect("the kernel counts memory")
    }

    /// Stops it by SIGTERM and waits.
    ///
    /// # Panics
    /// If it fails.
    pub fn stop(mut self) {
        self.signal(Signal::TERM);
        let ended = self.child.wait().expect("a child can be waited for");
        assert!(ended.success(), "the daemon ended badly, {ended:?}: {}", self.log());
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        // Fails if it ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
