//! Settings of a node: plain values, checked and resolved, from which the daemon is started.
//!
//! Nothing here opens, starts or connects to anything.

mod cluster;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_source::{Limits, Rules};
use forebay_store::{
    CheckpointRule, Class, Dataset, Encryption, Files, KeepFree, Tenant, Watermarks,
};
use forebay_uring::{EngineChoice, Faults};
use serde::{Deserialize, Serialize};

use crate::http::{Tls, Token};

pub use cluster::{ClusterConfig, MembersSource, PeerTlsFiles};

/// Settings of a node.
#[derive(Clone)]
pub struct NodeConfig {
    /// Tiers.
    pub tiers: Vec<NodeTier>,
    /// Rules for data sets.
    pub datasets: Vec<Dataset>,
    /// Stores that may be read, and their options.
    pub sources: Rules,
    /// Tenants of the node; a job belongs to the first that has one of its groups.
    pub tenants: Vec<NodeTenant>,
    /// Rules for checkpoints; the first whose pattern matches a checkpoint's URL applies.
    pub checkpoints: Vec<CheckpointRule>,
    /// Bytes of frames, slabs and tiers in memory together, at most.
    pub memory: usize,
    /// The I/O engine.
    pub io: EngineChoice,
    /// Bounds on requests to origins.
    pub limits: Limits,
    /// Program and arguments of a process that runs [`forebay_source::serve`]: shards that are
    /// files are read by those.
    pub reader: Vec<OsString>,
    /// Program and arguments of a process that runs [`forebay_source::lend`], which finds AWS
    /// credentials.
    pub lender: Vec<OsString>,
    /// True if the node belongs to its jobs' own user, so that files in their home count.
    pub own: bool,
    /// True if the daemon opens files that jobs name without a source's rule; otherwise the clients
    /// open them.
    pub opens_named: bool,
    /// Users served beside the node's own, and their rights.
    pub access: AccessConfig,
    /// Audit log of denials and changes; without it they go to the daemon's log only.
    pub audit: Option<AuditConfig>,
    /// Storage of queues of leased shards.
    pub leases: LeasesConfig,
    /// Place of the node in a cluster; none: it shares its cache with no other node.
    pub cluster: Option<ClusterConfig>,
    /// Interval between checks of devices.
    pub look_after: Duration,
    /// The daemon's own directory, for what must be known before the tiers are; none: it remembers
    /// nothing.
    pub state: Option<PathBuf>,
    /// Operations on directories.
    pub files: Arc<dyn Files>,
    /// Fault injection into the disks' I/O, for tests.
    pub faults: Option<Arc<dyn Faults>>,
}

/// Interval between checks of devices: a disk that others fill, or a failing one, is detected
/// within this time even when idle. A check costs a few system calls.
pub const LOOK_AFTER: Duration = Duration::from_secs(5);

/// A tier of a node.
#[derive(Debug, Clone)]
pub struct NodeTier {
    /// Name, for admins.
    pub name: String,
    /// Kind of storage.
    pub class: Class,
    /// Directory; none for memory.
    pub path: Option<PathBuf>,
    /// Bytes it may hold, at most.
    pub capacity: u64,
    /// Space of its disk that is left to others.
    pub keep_free: KeepFree,
    /// If given, shards are evicted ahead of need.
    pub watermarks: Option<Watermarks>,
    /// Bytes that may be written a day without anybody waiting for them.
    pub writes_per_day: Option<u64>,
    /// True if its directory must not lie on the root's file system.
    pub require_mount: bool,
    /// Encryption of its files.
    pub encryption: Option<Encryption>,
}

impl NodeTier {
    /// A tier of `class` in a directory, and nothing else asked of it.
    #[must_use]
    pub fn at(name: &str, class: Class, path: PathBuf, capacity: u64) -> Self {
        Self {
            name: name.to_owned(),
            class,
            path: Some(path),
            capacity,
            keep_free: KeepFree::Bytes(0),
            watermarks: None,
            writes_per_day: None,
            require_mount: false,
            encryption: None,
        }
    }
}

/// Returns the bytes of the tiers that are memory by their configuration.
#[must_use]
pub fn memory_tiers(tiers: &[NodeTier]) -> u64 {
    let memory = tiers.iter().filter(|tier| tier.path.is_none());
    memory.fold(0, |sum, tier| sum.saturating_add(tier.capacity))
}

/// The directory in which a node with these tiers notes its leases: on the first that is on a disk.
pub fn leases_directory(tiers: &[NodeTier]) -> Option<PathBuf> {
    tiers.iter().find_map(|tier| Some(tier.path.as_ref()?.join("leases")))
}

/// The directory of a node daemon's own state: systemd's `STATE_DIRECTORY`, else root's or the
/// user's own.
#[must_use]
pub fn state_directory() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(given) = set("STATE_DIRECTORY") {
        return std::env::split_paths(&given).next();
    }
    if rustix::process::geteuid().is_root() {
        return Some(PathBuf::from("/var/lib/forebay"));
    }
    let home = || set("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    let base = set("XDG_STATE_HOME").map(PathBuf::from).or_else(home)?;
    Some(base.join("forebay"))
}

/// A tenant of a node.
#[derive(Debug, Clone)]
pub struct NodeTenant {
    /// Limits of its share.
    pub rule: Tenant,
    /// Groups whose members' jobs belong to it.
    pub groups: Vec<u32>,
    /// Limits on jobs and opens.
    pub limits: TenantLimits,
}

/// Access settings of a node.
#[derive(Debug, Clone, Default)]
pub struct AccessConfig {
    /// Groups whose members' jobs are served, on what they open themselves.
    pub groups: Vec<u32>,
    /// The group whose members administer.
    pub admin_group: Option<u32>,
    /// Readers of a data set, by its name. A data set not listed is for admins only.
    pub allow: BTreeMap<String, Allow>,
    /// Writers of checkpoints, in the order of the rules.
    pub writers: Vec<Writers>,
    /// Limits on connections and on the jobs of users.
    pub limits: UserLimits,
}

/// Limits on connections, and on the jobs of users without a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserLimits {
    /// Connections at once, of all users together.
    pub connections: usize,
    /// Jobs at once of one user.
    pub sessions: u32,
}

impl Default for UserLimits {
    fn default() -> Self {
        Self { connections: DEFAULT_CONNECTIONS, sessions: SESSIONS }
    }
}

/// Connections at once, unless told otherwise: a node runs tens of ranks; this stops a runaway
/// script, not a cluster.
const DEFAULT_CONNECTIONS: usize = 1024;

/// Accepted limits on connections: one user's jobs and an admin at least; a connection takes a
/// descriptor or two, of which a process has a million at most.
pub const CONNECTIONS: RangeInclusive<usize> = 128..=65_536;

/// Writers of the checkpoints that a rule matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Writers {
    /// The rule.
    pub rule: CheckpointRule,
    /// Users, groups and tenants beside the admins; none: admins only.
    pub allow: Option<Allow>,
}

/// Readers of a data set, or writers of checkpoints.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allow {
    /// These users, …
    pub users: Vec<u32>,
    /// … members of these groups, …
    pub groups: Vec<u32>,
    /// … and jobs of these tenants.
    pub tenants: Vec<String>,
}

impl Allow {
    /// True if `who` is one of them.
    #[must_use]
    pub fn names(&self, who: &Who) -> bool {
        let tenant = |name: &String| who.tenant.as_ref() == Some(name);
        who.uid.is_some_and(|uid| self.users.contains(&uid))
            || self.groups.iter().any(|gid| who.groups.contains(gid))
            || self.tenants.iter().any(tenant)
    }
}

/// A socket that peers come by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Door {
    /// Path of the socket.
    pub path: PathBuf,
    /// Tenant of everyone who connects here, whatever the kernel says of user and groups.
    pub tenant: Option<String>,
    /// True if admins are admins here.
    pub admin: bool,
}

impl Door {
    /// The daemon's own socket.
    #[must_use]
    pub fn main(path: PathBuf) -> Self {
        Self { path, tenant: None, admin: true }
    }
}

/// As whom a peer counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Who {
    /// None where numbers mean nothing.
    pub uid: Option<u32>,
    /// Groups.
    pub groups: Vec<u32>,
    /// Tenant.
    pub tenant: Option<String>,
}

/// The kernel's default stand-in for a user or a group unknown in this namespace.
const OVERFLOW: u32 = 65_534;

/// Files with the actual stand-ins, for users and for groups.
const OVERFLOW_FILES: [&str; 2] = ["/proc/sys/kernel/overflowuid", "/proc/sys/kernel/overflowgid"];

/// The kernel's stand-ins for users (0) or groups (1) that this namespace does not know.
pub fn overflow(which: usize) -> u32 {
    let told = std::fs::read_to_string(OVERFLOW_FILES[which]);
    told.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(OVERFLOW)
}

/// Rate at which jobs may be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opens {
    /// So many …
    pub count: NonZeroU32,
    /// … in so long.
    pub per: Duration,
}

impl fmt::Display for Opens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = match self.per.as_secs() {
            1 => "s",
            60 => "min",
            _ => "h",
        };
        write!(f, "{}/{unit}", self.count)
    }
}

/// Limits of a tenant's jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TenantLimits {
    /// So many at once.
    pub sessions: u32,
    /// Opened so often; as many as may be at once are opened at once.
    pub opens: Opens,
}

impl Default for TenantLimits {
    fn default() -> Self {
        Self { sessions: SESSIONS, opens: OPENS }
    }
}

/// Jobs at once, unless told otherwise: a node's ranks, with a loader or two for training and one
/// for validation each, several times over.
const SESSIONS: u32 = 128;

/// Jobs a second, unless told otherwise: all of [`SESSIONS`] that come again at once after a
/// restart pass, a loop that opens and closes does not for long.
const OPENS: Opens =
    Opens { count: NonZeroU32::new(32).expect("not zero"), per: Duration::from_secs(1) };

/// Path and size of the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditConfig {
    /// Path of the log. Older files have `.1`, `.2` … appended.
    pub path: PathBuf,
    /// Bytes of one file, at most.
    pub max_bytes: u64,
    /// Older files that are kept.
    pub keep: u32,
}

/// A socket beside the daemon's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenConfig {
    /// The socket, and the identity of peers that connect to it.
    pub door: Door,
    /// The group of its file; none: the daemon's.
    pub group: Option<u32>,
    /// The mode of its file.
    pub mode: u32,
}

/// TCP settings of the API.
#[derive(Debug, Clone)]
pub struct HttpConfig {
    /// Address to listen on.
    pub address: SocketAddr,
    /// Host names of the machine in requests, beside its addresses and `localhost`.
    pub names: Vec<String>,
    /// Token of admins; none: no token makes an admin.
    pub token: Option<Token>,
    /// TLS settings, if any.
    pub tls: Option<Tls>,
}

/// Storage of queues.
#[derive(Debug, Clone, Default)]
pub struct LeasesConfig {
    /// Directory for this daemon's own queues, which then survive a restart; none: they do not.
    pub directory: Option<PathBuf>,
    /// The server that all jobs' are kept by, as in `redis://host:6379`.
    pub redis: Option<String>,
    /// True if jobs may name a server.
    pub named_by_jobs: bool,
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}
