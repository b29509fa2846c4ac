//! moto: S3 and the XML API of Google's storage, in Python. It checks no signatures.

use std::net::SocketAddr;
use std::process::Command;

use forebay_error::{Doing, Result};
use tempfile::TempDir;

use super::service::{Service, free_port, tool};

/// A running moto.
pub struct Moto {
    address: SocketAddr,
    _folder: TempDir,
    _service: Service,
}

impl Moto {
    /// Starts a server without buckets.
    ///
    /// # Errors
    /// If it is not installed or does not start.
    pub fn start() -> Result<Self> {
        let folder = TempDir::new().doing("make a temp directory")?;
        let address = free_port()?;
        let mut command = Command::new(tool("moto/bin/moto_server")?);
        command.args(["-H", "127.0.0.1", "-p", &address.port().to_string()]);
        let mut service = Service::start("moto", &command, &folder.path().join("log"))?;
        service.wait_for(address)?;
        Ok(Self { address, _folder: folder, _service: service })
    }

    /// Address of the server.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}
