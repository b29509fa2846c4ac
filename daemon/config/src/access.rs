//! Access settings: `allow` of a data set or of checkpoints, limits of a tenant, `[[listen]]`,
//! `[audit]`.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytesize::ByteSize;
use forebay_client::NODE_SOCKET;
use forebay_error::{Error, ErrorKind, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de};

use super::accounts::{Group, User};
use super::{Config, schema};
use crate::settings::AuditConfig;
use crate::settings::ListenConfig;
use crate::settings::{
    AccessConfig, Allow as Allowed, CONNECTIONS, Door, Opens, TenantLimits, UserLimits,
};

/// One file of the audit log, unless told otherwise: some hundred thousand lines.
pub(super) const AUDIT_SIZE: u64 = 64 << 20;

/// The least that one may be: a few of the longest lines.
const AUDIT_SIZE_MIN: u64 = 64 << 10;

/// Older files of it, unless told otherwise: half a gigabyte in all.
pub(super) const AUDIT_KEEP: u32 = 7;

/// The most that are kept: each rotation renames all of them.
const AUDIT_KEEP_MAX: u32 = 1000;

/// Default mode of a socket: its user and its group may connect.
const MODE: u32 = 0o660;

/// Every bit that a socket's mode may have.
const MODE_MAX: u32 = 0o777;

/// The kernel's room for a socket's path and its terminator, in bytes.
const SOCKET_PATH: usize = 108;

/// Opens in a time, at most: more than a daemon serves.
const OPENS_MAX: u32 = 1_000_000;

/// The units of time that a rate of jobs may have, and their seconds.
const TIMES: [(&str, u64); 3] = [("s", 1), ("min", 60), ("h", 3600)];

/// `allow = { users, groups, tenants }`: who may read a data set, or write checkpoints; one of them
/// is enough.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Allow {
    /// These users, by name or uid.
    #[serde(default)]
    pub users: Vec<User>,
    /// Members of these groups.
    #[serde(default)]
    pub groups: Vec<Group>,
    /// Jobs of these tenants.
    #[serde(default)]
    pub tenants: Vec<String>,
}

impl Allow {
    pub(super) fn is_empty(&self) -> bool {
        self.users.is_empty() && self.groups.is_empty() && self.tenants.is_empty()
    }

    pub(super) fn resolved(&self) -> Result<Allowed> {
        Ok(Allowed {
            users: self.users.iter().map(User::uid).collect::<Result<_>>()?,
            groups: self.groups.iter().map(Group::gid).collect::<Result<_>>()?,
            tenants: self.tenants.clone(),
        })
    }
}

/// `[[listen]]`: a socket beside the daemon's own, and as whom peers come by it.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Listen {
    /// Path of the socket.
    pub path: PathBuf,
    /// Tenant of everyone who connects here; none: the peer's groups decide.
    pub tenant: Option<String>,
    /// True if admins may administer through this socket.
    #[serde(default)]
    pub admin: bool,
    /// The group of its file.
    pub group: Option<Group>,
    /// The mode of its file: who may write to it may connect.
    #[serde(default, deserialize_with = "mode")]
    #[schemars(with = "schema::Mode")]
    pub mode: Option<u32>,
}

impl Listen {
    pub(super) fn mode(&self) -> u32 {
        self.mode.unwrap_or(MODE)
    }

    /// The socket as a node opens it.
    pub fn node(&self) -> Result<ListenConfig> {
        let refuse = |what: &str, advice: &str| {
            let error = Error::new(ErrorKind::Invalid, what.to_owned());
            Err(error.at("listen", self.path.display()).advise(advice.to_owned()))
        };
        check_socket(&self.path, "path")
            .map_err(|error| error.at("listen", self.path.display()))?;
        if self.tenant.is_some() && self.admin {
            return refuse(
                "`admin` does not apply to a socket with `tenant`: its users are not identified",
                "leave `admin` out, or `tenant`",
            );
        }
        let group = self.group.as_ref().map(Group::gid).transpose()?;
        let door = Door { path: self.path.clone(), tenant: self.tenant.clone(), admin: self.admin };
        Ok(ListenConfig { door, group, mode: self.mode() })
    }
}

/// Rejects a path that no socket can have; `key` is its key in the file.
pub(crate) fn check_socket(path: &Path, key: &str) -> Result<()> {
    let invalid = |what: &str, advice: String| {
        let what = format!("the socket's `{key}` {what}");
        Err(Error::new(ErrorKind::Invalid, what).advise(advice))
    };
    if !path.is_absolute() {
        return invalid("must be absolute", "begin it with `/`".to_owned());
    }
    if path.as_os_str().len() >= SOCKET_PATH {
        return invalid("is too long", format!("give one of {} bytes at most", SOCKET_PATH - 1));
    }
    Ok(())
}

/// An octal number, as `chmod` takes it.
fn mode<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    let Some(text) = Option::<String>::deserialize(from)? else { return Ok(None) };
    let parsed = u32::from_str_radix(text.trim(), 8).ok().filter(|mode| *mode <= MODE_MAX);
    let wrong = || de::Error::custom(format!("`{text}` is not a mode like \"0660\""));
    parsed.ok_or_else(wrong).map(Some)
}

/// `[audit]`: where it is noted who was refused what, and who changed what.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Audit {
    /// Path of the log; older files have `.1`, `.2` … appended.
    pub path: PathBuf,
    /// Largest size of one file.
    #[schemars(with = "Option<schema::Size>")]
    pub max_size: Option<ByteSize>,
    /// Older files that are kept.
    pub keep: Option<u32>,
}

impl Audit {
    /// The log as a node opens it.
    pub(super) fn node(&self) -> Result<AuditConfig> {
        let refuse = |what: String| {
            Err(Error::new(ErrorKind::Invalid, what).at("audit", self.path.display()))
        };
        if !self.path.is_absolute() {
            return refuse("the audit log's `path` must be absolute".to_owned());
        }
        let max_bytes = self.max_size.map_or(AUDIT_SIZE, |size| size.as_u64());
        if max_bytes < AUDIT_SIZE_MIN {
            return refuse(format!("`max_size` is below {AUDIT_SIZE_MIN} bytes"));
        }
        let keep = self.keep.unwrap_or(AUDIT_KEEP);
        if keep > AUDIT_KEEP_MAX {
            return refuse(format!("`keep` is above {AUDIT_KEEP_MAX} files"));
        }
        Ok(AuditConfig { path: self.path.clone(), max_bytes, keep })
    }
}

/// Parses the rate at which jobs may be opened: `32/s`, `600/min`.
pub(super) fn opens<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Opens>, D::Error> {
    let Some(text) = Option::<String>::deserialize(from)? else { return Ok(None) };
    let parsed = text.split_once('/').and_then(|(count, time)| {
        let (_, seconds) = TIMES.iter().find(|(name, _)| *name == time.trim())?;
        let count = count.trim().parse().ok().filter(|count| *count <= OPENS_MAX)?;
        Some(Opens { count: NonZeroU32::new(count)?, per: Duration::from_secs(*seconds) })
    });
    let wrong =
        || de::Error::custom(format!("`{text}` is not a rate like \"32/s\" or \"600/min\""));
    parsed.ok_or_else(wrong).map(Some)
}

impl super::Tenant {
    /// Returns the limits on jobs and opens.
    pub(super) fn limits(&self) -> Result<TenantLimits> {
        let default = TenantLimits::default();
        let sessions = self.sessions.unwrap_or(default.sessions);
        if sessions == 0 {
            let error = Error::new(ErrorKind::Invalid, "`sessions` must be at least 1");
            return Err(error.at("tenant", &self.name));
        }
        Ok(TenantLimits { sessions, opens: self.opens.unwrap_or(default.opens) })
    }
}

impl super::Daemon {
    /// Returns the limits on connections and on the jobs of users.
    pub(super) fn user_limits(&self) -> Result<UserLimits> {
        let default = UserLimits::default();
        let limits = UserLimits {
            connections: self.max_connections.map_or(default.connections, |most| most as usize),
            sessions: self.max_sessions_per_user.unwrap_or(default.sessions),
        };
        if !CONNECTIONS.contains(&limits.connections) {
            let (least, most) = (CONNECTIONS.start(), CONNECTIONS.end());
            return Err(Error::new(ErrorKind::Invalid, "`max_connections` is out of range")
                .advise(format!("give {least} to {most}")));
        }
        if limits.sessions == 0 {
            let what = "`max_sessions_per_user` must be at least 1";
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        Ok(limits)
    }
}

impl Config {
    /// Users served beside the daemon's own, and their rights.
    pub fn access(&self) -> Result<AccessConfig> {
        let mut allow = BTreeMap::new();
        for dataset in &self.dataset {
            if let Some(named) = &dataset.allow {
                let resolved =
                    named.resolved().map_err(|error| error.at("dataset", &dataset.name))?;
                allow.insert(dataset.name.clone(), resolved);
            }
        }
        Ok(AccessConfig {
            groups: self.daemon.groups.iter().map(Group::gid).collect::<Result<_>>()?,
            admin_group: self.daemon.admin_group.as_ref().map(Group::gid).transpose()?,
            allow,
            writers: self.writers()?,
            limits: self.daemon.user_limits()?,
        })
    }

    /// The sockets beside the daemon's own.
    ///
    /// # Errors
    /// `Invalid` naming the socket whose keys contradict each other.
    pub fn listens(&self) -> Result<Vec<ListenConfig>> {
        self.listen.iter().map(Listen::node).collect()
    }

    /// The audit log, if there is to be one.
    ///
    /// # Errors
    /// `Invalid` naming what it cannot be like.
    pub fn audit(&self) -> Result<Option<AuditConfig>> {
        self.audit.as_ref().map(Audit::node).transpose()
    }

    /// The daemon's own socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.daemon.socket.clone().unwrap_or_else(|| NODE_SOCKET.into())
    }

    /// Returns true if peers can connect as this tenant through a socket of its own.
    pub(super) fn has_socket(&self, tenant: &str) -> bool {
        self.listen.iter().any(|listen| listen.tenant.as_deref() == Some(tenant))
    }
}
