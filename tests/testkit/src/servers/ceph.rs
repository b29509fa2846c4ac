//! Ceph: a storage cluster of one node with its S3 gateway and its parallel file system. Many
//! laboratories run the gateway as their S3 store. The file system, mounted by FUSE, stripes files
//! over objects and can hang.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_error::{Doing, Error, ErrorKind, Result};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::service::{Service, free_port, missing};
use crate::{Requirement, pause};

/// Script that starts everything, prints `ready`, and waits for the end.
const SCRIPT: &str = include_str!("ceph.sh");

/// A running cluster.
pub struct Ceph {
    gateway: SocketAddr,
    folder: TempDir,
    /// Stopped before the folder is removed.
    service: Option<Service>,
}

impl Ceph {
    /// Access key of the gateway's only user.
    pub const ACCESS_KEY: &str = "AK";
    /// Secret key of that user.
    pub const SECRET_KEY: &str = "SKSKSKSK";

    /// Returns the requirement of a cluster and its mount that this machine lacks, if any.
    #[must_use]
    pub fn missing() -> Option<Requirement> {
        let fuse = std::fs::File::options().read(true).write(true).open("/dev/fuse");
        if !rustix::process::geteuid().is_root() {
            Some(Requirement::Root)
        } else if fuse.is_err() {
            Some(Requirement::Fuse)
        } else {
            None
        }
    }

    /// Starts a cluster: half a minute on two cores, and 0.7 GB of memory while it runs.
    ///
    /// # Errors
    /// If it is not installed or does not start.
    pub fn start() -> Result<Self> {
        let programs = ["ceph-mon", "ceph-mgr", "ceph-osd", "ceph-mds", "radosgw", "ceph-fuse"];
        let is_there = |program: &&str| Path::new("/usr/bin").join(program).exists();
        if let Some(program) = programs.iter().find(|program| !is_there(program)) {
            return Err(missing(program));
        }
        let folder = TempDir::new().doing("make a temp directory")?;
        let (gateway, monitor) = (free_port()?, free_port()?);
        let mut command = Command::new("bash");
        command.args(["-c", SCRIPT, "ceph"]).arg(folder.path());
        command.args([monitor.port().to_string(), gateway.port().to_string()]);
        command.args([Self::ACCESS_KEY, Self::SECRET_KEY]);
        let service = Service::start("ceph", &command, &folder.path().join("log"))?;
        let mut ceph = Self { gateway, folder, service: Some(service) };
        let ready = ceph.folder.path().join("ready");
        let service = ceph.service.as_mut().expect("taken only by drop");
        service.wait_until(|| ready.exists())?;
        Ok(ceph)
    }

    /// Address of its S3 gateway.
    #[must_use]
    pub fn gateway(&self) -> SocketAddr {
        self.gateway
    }

    /// Mount point of its file system.
    #[must_use]
    pub fn mount(&self) -> PathBuf {
        self.folder.path().join("mount")
    }

    /// Stops the data daemons, so that uncached reads hang, or continues them.
    ///
    /// # Errors
    /// If a daemon cannot be signalled.
    pub fn freeze(&self, frozen: bool) -> Result<()> {
        let none = || Error::new(ErrorKind::Invalid, "there is no process id");
        let pid = std::fs::read_to_string(self.folder.path().join("osd.pid"))
            .doing("find the daemon that serves data")?;
        let pid: i32 = pid.trim().parse().map_err(|_| none())?;
        if frozen {
            return pause(pid.unsigned_abs());
        }
        let pid = Pid::from_raw(pid).ok_or_else(none)?;
        kill_process(pid, Signal::CONT).map_err(std::io::Error::from).doing("continue a daemon")
    }
}

impl Drop for Ceph {
    fn drop(&mut self) {
        // Lazily: a daemon that a failed test left may still hold files.
        let _ = Command::new("umount").arg("--lazy").arg(self.mount()).output();
        drop(self.service.take());
    }
}
