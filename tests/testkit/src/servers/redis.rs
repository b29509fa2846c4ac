//! Redis and Valkey: queues of assignments and member lists of several nodes.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_error::{Doing, Result};
use tempfile::TempDir;

use super::service::{Service, free_port, missing, tool};

/// A Redis or Valkey that writes nothing to the disk: when it stops, it forgets everything.
pub struct Redis {
    program: PathBuf,
    password: Option<String>,
    address: SocketAddr,
    folder: TempDir,
    service: Option<Service>,
}

impl Redis {
    /// Starts a Redis server.
    ///
    /// # Errors
    /// If it is missing or does not start.
    pub fn start() -> Result<Self> {
        Self::run(redis()?, None)
    }

    /// Starts a Redis server that answers with this password only.
    ///
    /// # Errors
    /// As [`Redis::start`].
    pub fn with_password(password: &str) -> Result<Self> {
        Self::run(redis()?, Some(password.to_owned()))
    }

    /// Starts a Valkey server.
    ///
    /// # Errors
    /// As [`Redis::start`].
    pub fn valkey() -> Result<Self> {
        let installed = PathBuf::from("/usr/bin/valkey-server");
        let program = if installed.exists() { installed } else { tool("valkey/valkey-server")? };
        Self::run(program, None)
    }

    fn run(program: PathBuf, password: Option<String>) -> Result<Self> {
        let folder = TempDir::new().doing("make a temp directory")?;
        let address = free_port()?;
        let mut redis = Self { program, password, address, folder, service: None };
        redis.restart()?;
        Ok(redis)
    }

    /// Stops the server.
    pub fn stop(&mut self) {
        self.service = None;
    }

    /// Starts the server again on its port, without its data.
    ///
    /// # Errors
    /// As [`Redis::start`].
    pub fn restart(&mut self) -> Result<()> {
        self.stop();
        let mut command = Command::new(&self.program);
        command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        command.arg("--port").arg(self.address.port().to_string());
        command.arg("--dir").arg(self.folder.path());
        if let Some(password) = &self.password {
            command.arg("--requirepass").arg(password);
        }
        let mut service =
            Service::start("redis-server", &command, &self.folder.path().join("log"))?;
        service.wait_for(self.address)?;
        self.service = Some(service);
        Ok(())
    }

    /// URL of the server, without the password.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// URL of the server with a password.
    #[must_use]
    pub fn url_with(&self, password: &str) -> String {
        format!("redis://:{password}@{}", self.address)
    }
}

fn redis() -> Result<PathBuf> {
    let program = Path::new("/usr/bin/redis-server");
    if program.exists() { Ok(program.to_owned()) } else { Err(missing("redis-server")) }
}
