//! Redis: the queue of assignments for jobs on several nodes.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use forebay_error::{Doing, Result};
use tempfile::TempDir;

use super::service::{Service, free_port, missing};

/// A running Redis that writes nothing to the disk.
pub struct Redis {
    address: SocketAddr,
    _folder: TempDir,
    _service: Service,
}

impl Redis {
    /// Starts a server.
    ///
    /// # Errors
    /// If it is missing or does not start.
    pub fn start() -> Result<Self> {
        let program = Path::new("/usr/bin/redis-server");
        if !program.exists() {
            return Err(missing("redis-server"));
        }
        let folder = TempDir::new().doing("make a temp directory")?;
        let address = free_port()?;
        let mut command = Command::new(program);
        command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        command.arg("--port").arg(address.port().to_string()).arg("--dir").arg(folder.path());
        let mut service = Service::start("redis-server", &command, &folder.path().join("log"))?;
        service.wait_for(address)?;
        Ok(Self { address, _folder: folder, _service: service })
    }

    /// URL of the server.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }
}
