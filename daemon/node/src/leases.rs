//! Storage of the queues of jobs that lease their shards: this daemon, or a Redis server that
//! several share.
//!
//! A node daemon connects only where its configuration allows; an embedded one, which belongs to
//! its jobs' user, connects where its jobs ask.

mod local;
mod log;
mod redis;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use forebay_config::settings::LeasesConfig;
use forebay_engine::lease::Leases;
use forebay_error::{Error, ErrorKind, Result};

use local::Local;
use redis::Redis;

/// Servers that an embedded daemon's jobs may name, all together: each is a connection.
const SERVERS_MAX: usize = 16;

/// Storage back ends of queues.
pub struct Keepers {
    config: LeasesConfig,
    local: Arc<Local>,
    servers: Mutex<HashMap<String, Arc<Redis>>>,
}

impl Keepers {
    /// Keepers by these settings.
    #[must_use]
    pub fn new(config: LeasesConfig) -> Self {
        let local = Arc::new(Local::new(config.directory.clone()));
        Self { config, local, servers: Mutex::default() }
    }

    /// Returns the storage back end of a job that names `asked`.
    pub fn of(&self, asked: Option<&str>, is_spread: bool) -> Result<Arc<dyn Leases>> {
        let url = match (&self.config.redis, asked) {
            (Some(configured), asked) if asked.is_none_or(|asked| asked == configured) => {
                configured
            }
            (None, None) if is_spread => {
                let what =
                    "the ranks of this job are on several nodes without shared storage for leases";
                return Err(Error::new(ErrorKind::Invalid, what).advise(
                    "name a Redis server: [leases] redis of the nodes' daemons, or FOREBAY_LEASES",
                ));
            }
            (None, None) => return Ok(self.local.clone()),
            (None, Some(asked)) if self.config.named_by_jobs => asked,
            (_, _) => {
                let what = "this daemon may not use the job's lease server";
                return Err(Error::new(ErrorKind::PermissionDenied, what).advise(
                    "unset FOREBAY_LEASES, or ask an admin to name the server in [leases] redis",
                ));
            }
        };
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = servers.get(url) {
            return Ok(server.clone());
        }
        if servers.len() >= SERVERS_MAX {
            return Err(Error::new(
                ErrorKind::Full,
                "jobs of this daemon name too many lease servers",
            )
            .at("servers", servers.len()));
        }
        let server = Arc::new(Redis::new(url)?);
        servers.insert(url.to_owned(), server.clone());
        Ok(server)
    }
}
