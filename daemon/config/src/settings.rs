//! Settings of a node: plain values, checked and resolved, from which the daemon is started.
//!
//! Rule: nothing here opens, starts or connects to anything.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_source::{Limits, Rules};
use forebay_store::{Class, Dataset, Files, KeepFree, Tenant, Watermarks};
use forebay_uring::{EngineChoice, Faults};
use serde::{Deserialize, Serialize};

use crate::http::{Tls, Token};

/// What a node is made of.
#[derive(Clone)]
pub struct NodeConfig {
    /// Where shards rest.
    pub tiers: Vec<NodeTier>,
    /// How data sets are kept.
    pub datasets: Vec<Dataset>,
    /// Which stores may be read, and how.
    pub sources: Rules,
    /// Who shares the node; a job belongs to the first that has one of its groups.
    pub tenants: Vec<NodeTenant>,
    /// Bytes of frames, slabs and tiers in memory together, at most.
    pub memory: usize,
    /// The I/O engine.
    pub io: EngineChoice,
    /// Bounds on requests to origins.
    pub limits: Limits,
    /// Program and arguments of a process that runs [`forebay_source::serve`]: shards that are files
    /// are read by those.
    pub reader: Vec<OsString>,
    /// Program and arguments of a process that runs [`forebay_source::lend`], which finds AWS
    /// credentials.
    pub lender: Vec<OsString>,
    /// Whether the node is its jobs' own user's alone, so that files in their home count.
    pub own: bool,
    /// Whether it opens files that jobs name, though no source's rule says so; else their clients do.
    pub opens_named: bool,
    /// Who else than its own user is served, and on what.
    pub access: AccessConfig,
    /// Where it is noted who was refused what, and who changed what; nowhere but in the log, if not here.
    pub audit: Option<AuditConfig>,
    /// Where queues of leased shards are kept.
    pub leases: LeasesConfig,
    /// How often devices are looked after.
    pub look_after: Duration,
    /// What changes directories.
    pub files: Arc<dyn Files>,
    /// What meddles with the disks' I/O: a test's business.
    pub faults: Option<Arc<dyn Faults>>,
}

/// How often devices are looked after: a disk that others fill, or one that fails, is noticed within
/// this time though nobody touches it. A look costs a few system calls.
pub const LOOK_AFTER: Duration = Duration::from_secs(5);

/// A tier of a node.
#[derive(Debug, Clone)]
pub struct NodeTier {
    /// What admins call it.
    pub name: String,
    /// What it is made of.
    pub class: Class,
    /// Its directory; none for memory.
    pub path: Option<PathBuf>,
    /// Bytes it may hold, at most.
    pub capacity: u64,
    /// What of its disk is left to others.
    pub keep_free: KeepFree,
    /// Where given, shards leave ahead of need.
    pub watermarks: Option<Watermarks>,
    /// Bytes that may be written a day without anybody waiting for them.
    pub writes_per_day: Option<u64>,
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
        }
    }
}

/// The directory in which a node with these tiers notes its leases: on the first that is on a disk.
pub fn leases_directory(tiers: &[NodeTier]) -> Option<PathBuf> {
    tiers.iter().find_map(|tier| Some(tier.path.as_ref()?.join("leases")))
}

/// A tenant of a node.
#[derive(Debug, Clone)]
pub struct NodeTenant {
    /// What it may hold.
    pub rule: Tenant,
    /// Whose members' jobs are its jobs.
    pub groups: Vec<u32>,
    /// How many jobs it may have, and open.
    pub limits: TenantLimits,
}

/// Who may do what on a node, as its administrator says.
#[derive(Debug, Clone, Default)]
pub struct AccessConfig {
    /// Groups whose members' jobs are served, on what they open themselves.
    pub groups: Vec<u32>,
    /// The group whose members administer.
    pub admin_group: Option<u32>,
    /// Who may read a data set, by its name. One that is not here is for admins only.
    pub allow: BTreeMap<String, Allow>,
}

/// Who may read a data set.
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
    /// True if `who` may read the data set.
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
    /// Where it lies.
    pub path: PathBuf,
    /// Whose everybody is who comes by it, whatever the kernel says of user and groups.
    pub tenant: Option<String>,
    /// Whether admins are admins here.
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
    /// Its groups.
    pub groups: Vec<u32>,
    /// Its tenant.
    pub tenant: Option<String>,
}

/// Whom the kernel names for a user or a group that this namespace does not know, unless it was told
/// otherwise.
const OVERFLOW: u32 = 65_534;

/// Where it says so, of users and of groups.
const OVERFLOW_FILES: [&str; 2] = ["/proc/sys/kernel/overflowuid", "/proc/sys/kernel/overflowgid"];

/// The kernel's stand-ins for users (0) or groups (1) that this namespace does not know.
pub fn overflow(which: usize) -> u32 {
    let told = std::fs::read_to_string(OVERFLOW_FILES[which]);
    told.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(OVERFLOW)
}

/// How often jobs may be opened.
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

/// What a tenant's jobs may be.
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

/// Jobs at once, unless told otherwise: a node's ranks, with a loader or two for training and one for
/// validation each, several times over.
const SESSIONS: u32 = 128;

/// Jobs a second, unless told otherwise: all of [`SESSIONS`] that come again at once after a restart pass,
/// a loop that opens and closes does not for long.
const OPENS: Opens =
    Opens { count: NonZeroU32::new(32).expect("not zero"), per: Duration::from_secs(1) };

/// Where the audit log lies, and how much of it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditConfig {
    /// Its file. Older ones lie beside it, with `.1`, `.2` … behind the name.
    pub path: PathBuf,
    /// Bytes of one file, at most.
    pub max_bytes: u64,
    /// Older files that are kept.
    pub keep: u32,
}

/// A socket beside the daemon's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenConfig {
    /// Where it lies, and as whom peers come by it.
    pub door: Door,
    /// The group of its file; none: the daemon's.
    pub group: Option<u32>,
    /// The mode of its file.
    pub mode: u32,
}

/// How the API is to be had over TCP.
#[derive(Debug, Clone)]
pub struct HttpConfig {
    /// Where it listens.
    pub address: SocketAddr,
    /// What the machine is called by those who ask, beside its addresses and `localhost`.
    pub names: Vec<String>,
    /// What admins show; none: nobody is one by a token.
    pub token: Option<Token>,
    /// How it speaks TLS, if it does.
    pub tls: Option<Tls>,
}

/// Where queues are kept.
#[derive(Debug, Clone, Default)]
pub struct LeasesConfig {
    /// Where this daemon notes its own, so that they outlive it; none: they do not.
    pub directory: Option<PathBuf>,
    /// The server that all jobs' are kept by, as in `redis://host:6379`.
    pub redis: Option<String>,
    /// Whether jobs may name one.
    pub named_by_jobs: bool,
}

/// How lines are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}
