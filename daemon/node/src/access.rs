//! Access control, from the kernel's credentials of a client and the socket that it came by.
//! A client that no rule names has no rights. Users and groups are numbers here; names were looked
//! up when the configuration was read, so no connection waits for a name service.
//! ```text
//!   checkpoints rule of a checkpoint's URL, and the clients that may write there
//!   datasets    data set of a URL, and the clients that may read it
//!   limits      limits on jobs and opens of a tenant or a user
//!   nodes       the same for the jobs of other nodes
//!   permit      the same checks, as a connection's sources ask them
//! ```

mod checkpoints;
mod datasets;
mod limits;
mod nodes;
mod permit;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use forebay_config::settings::{
    AccessConfig, Allow, Door, NodeTenant, TenantLimits, UserLimits, Who, overflow,
};
use forebay_error::{Error, ErrorKind, Result};
use forebay_store::Dataset;
use forebay_wire::credentials::Credentials;
use tokio::sync::watch;
use xxhash_rust::xxh3::xxh3_64;

use checkpoints::Checkpoints;
use datasets::Datasets;
pub use limits::{Holder, SessionPermit, Usage};
pub use nodes::NodeGuard;
pub use permit::Rights;

/// A client that may come in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admitted {
    /// True if the client may administer, and read all that the daemon may.
    pub is_admin: bool,
    /// True if the client may read whatever the daemon has, files of all users included: it is the
    /// daemon's own user, or root.
    pub reads_all: bool,
    /// The tenant whose jobs its jobs are.
    pub tenant: Option<String>,
    /// Identifies the user, whichever way it connects: queues of leased shards and outputs of
    /// commands belong to one user.
    pub owner: u64,
    who: Who,
}

/// The access policy, replaced as a whole.
#[derive(Debug)]
pub struct Policy {
    /// The node is its own user's alone.
    private: bool,
    groups: Vec<u32>,
    admin_group: Option<u32>,
    limits: UserLimits,
    tenants: Vec<NodeTenant>,
    datasets: Datasets,
    checkpoints: Checkpoints,
}

impl Policy {
    /// The rules of a node; `private`: it serves its own user alone.
    #[must_use]
    pub fn new(
        private: bool,
        tenants: Vec<NodeTenant>,
        datasets: &[Dataset],
        config: AccessConfig,
    ) -> Self {
        let AccessConfig { groups, admin_group, allow, writers, limits } = config;
        let datasets = Datasets::new(datasets, allow);
        let checkpoints = Checkpoints::new(writers);
        Self { private, groups, admin_group, limits, tenants, datasets, checkpoints }
    }

    /// Each list of those who may read or write something.
    fn allows(&self) -> impl Iterator<Item = &Allow> {
        self.datasets.allows().chain(self.checkpoints.allows())
    }

    /// Returns true if the daemon's own socket serves other users.
    pub fn serves_others(&self) -> bool {
        let has_members =
            |name: &String| self.tenant(name).is_some_and(|one| !one.groups.is_empty());
        let names_somebody = |allow: &Allow| {
            let Allow { users, groups, tenants } = allow;
            !users.is_empty() || !groups.is_empty() || tenants.iter().any(has_members)
        };
        !self.private
            && (!self.groups.is_empty()
                || self.admin_group.is_some()
                || self.allows().any(names_somebody))
    }

    fn tenant(&self, name: &str) -> Option<&NodeTenant> {
        self.tenants.iter().find(|tenant| tenant.rule.name == name)
    }

    fn admits(&self, client: &Credentials, door: &Door) -> Result<Admitted> {
        if let Some(name) = &door.tenant {
            let tenant = self.tenant(name).ok_or_else(|| {
                let what =
                    "the tenant whose socket this is has been taken out of the configuration";
                Error::new(ErrorKind::PermissionDenied, what).at("tenant", name)
            })?;
            let (who, owner) = (any_of(tenant), owner_behind(name, client.uid));
            let (is_admin, reads_all, tenant) = (false, false, who.tenant.clone());
            return Ok(Admitted { is_admin, reads_all, tenant, owner, who });
        }
        let is_own = client.uid == rustix::process::geteuid().as_raw();
        let is_named = !self.private
            && (client.uid == 0 || self.admin_group.is_some_and(|gid| client.is_in(gid)));
        let is_admin = door.admin && (is_own || is_named);
        let is_its = |tenant: &&NodeTenant| tenant.groups.iter().any(|gid| client.is_in(*gid));
        let tenant = self.tenants.iter().find(is_its).map(|tenant| tenant.rule.name.clone());
        let groups = std::iter::once(client.gid).chain(client.groups.iter().copied()).collect();
        let who = Who { uid: Some(client.uid), groups, tenant: tenant.clone() };
        let is_served = !self.private
            && (self.groups.iter().any(|gid| client.is_in(*gid))
                || self.allows().any(|allow| allow.names(&who)));
        if !is_admin && !is_served {
            let what = "this daemon does not serve this user";
            return Err(Error::new(ErrorKind::PermissionDenied, what).at("uid", client.uid).advise(
                "have one of its groups named in [daemon] groups, or in the `allow` of a [[dataset]] or \
                 [[checkpoint]]",
            ));
        }
        // Other admins read files of users only as far as they can open them.
        let reads_all = is_admin && (is_own || client.uid == 0);
        Ok(Admitted { is_admin, reads_all, tenant, owner: u64::from(client.uid), who })
    }

    /// Returns the limits on the jobs and opens of a tenant, or of a user without one.
    pub fn limits(&self, tenant: Option<&str>) -> TenantLimits {
        let of_a_user = TenantLimits { sessions: self.limits.sessions, ..TenantLimits::default() };
        tenant.and_then(|name| self.tenant(name)).map_or(of_a_user, |one| one.limits)
    }

    /// Returns the limits on connections and on the jobs of users.
    pub fn user_limits(&self) -> UserLimits {
        self.limits
    }

    /// Refuses a URL that this client may not have read.
    pub fn may_read(&self, client: &Admitted, url: &str) -> Result<()> {
        match client.is_admin {
            true => Ok(()),
            false => self.datasets.may_read(&client.who, url),
        }
    }

    /// Refuses the URL of a checkpoint that this client may not write. A node writes only what a
    /// rule matches, for admins as well; a user's own daemon writes all that its user may.
    ///
    /// # Errors
    /// `PermissionDenied` with the URL.
    pub fn may_write(&self, client: &Admitted, url: &str) -> Result<()> {
        match self.private {
            true => Ok(()),
            false => self.checkpoints.may_write(&client.who, client.is_admin, url),
        }
    }

    /// Rejects the second copy of a file of another node, which judged its writer: users have other
    /// numbers there. Without a rule for the URL this node would never bring it to the store.
    ///
    /// # Errors
    /// `PermissionDenied` with the URL.
    pub fn may_keep(&self, url: &str) -> Result<()> {
        self.checkpoints.may_keep(url)
    }

    /// Refuses a URL that jobs of this tenant may not have read here. Another node asks, whose
    /// users and groups have other numbers: the name of the tenant and its groups on this node
    /// count.
    pub fn tenant_may_read(&self, name: &str, url: &str) -> Result<()> {
        let tenant = self.tenant(name).ok_or_else(|| {
            Error::new(ErrorKind::PermissionDenied, "this node has no tenant of this name")
                .at("tenant", name)
                .at("url", url)
                .advise("give all nodes of a cluster the same [[tenant]] rules")
        })?;
        self.datasets.may_read(&any_of(tenant), url)
    }

    /// Refuses a pattern that can mean nothing that this client may have read.
    pub fn may_list(&self, client: &Admitted, pattern: &str) -> Result<()> {
        match client.is_admin {
            true => Ok(()),
            false => self.datasets.may_list(&client.who, pattern),
        }
    }
}

/// Returns the rights of any job of a tenant: users have other numbers where it comes from.
fn any_of(tenant: &NodeTenant) -> Who {
    let name = tenant.rule.name.clone();
    Who { uid: None, groups: tenant.groups.clone(), tenant: Some(name) }
}

/// Tells a user behind a tenant's socket from those of this machine, and of other tenants, who have
/// the same number.
fn owner_behind(tenant: &str, uid: u32) -> u64 {
    /// No user of this machine's.
    const ELSEWHERE: u64 = 1 << 63;
    ELSEWHERE | (xxh3_64(tenant.as_bytes()) & !u64::from(u32::MAX)) | u64::from(uid)
}

/// Decides by what is in force now.
#[derive(Debug)]
pub struct Access {
    policy: watch::Sender<Arc<Policy>>,
    overflow_uid: u32,
}

impl Access {
    /// Puts a policy in force.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self { policy: watch::Sender::new(Arc::new(policy)), overflow_uid: overflow(0) }
    }

    /// Returns the policy in force.
    pub fn policy(&self) -> Arc<Policy> {
        self.policy.borrow().clone()
    }

    /// Watches the policy in force.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Policy>> {
        self.policy.subscribe()
    }

    /// Puts another policy in force; who is connected feels it with what it next asks for.
    pub fn replace(&self, tenants: Vec<NodeTenant>, datasets: &[Dataset], config: AccessConfig) {
        let private = self.policy.borrow().private;
        self.policy.send_replace(Arc::new(Policy::new(private, tenants, datasets, config)));
    }

    /// As whom a client may come in.
    ///
    /// # Errors
    /// `PermissionDenied` for one that may not.
    pub fn admit(&self, client: &Credentials, door: &Door) -> Result<Admitted> {
        if client.uid == self.overflow_uid {
            let what = "this machine does not know the user";
            return Err(Error::new(ErrorKind::PermissionDenied, what)
                .at("uid", client.uid)
                .advise("run the job as a user that the daemon's namespace knows, too"));
        }
        self.policy().admits(client, door)
    }
}
