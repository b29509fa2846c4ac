//! Rights of other nodes: the owner of a shard judges the tenant for whose job a node asks.
//!
//! The asking node has judged the job by its own rules. A request without a tenant is judged by the
//! rules for sources and data sets alone.

use std::sync::Arc;

use forebay_error::{Error, Result};
use forebay_peer_server::Guard;

use super::Access;
use crate::audit::{Audit, Entry, Whom};

/// Event of a rejected connection of another node.
const CONNECT: &str = "peer_connect";
/// Event of a rejected request of another node.
const READ: &str = "peer_read";
/// Event of a rejected second copy.
const KEEP: &str = "peer_keep";
/// Event of a request of this node that another one rejected.
const ASK: &str = "peer_ask";

/// Judge of what other nodes ask for. Each rejection is in the audit log.
pub struct NodeGuard {
    access: Arc<Access>,
    audit: Arc<Audit>,
}

impl NodeGuard {
    /// Judges by the policy in force.
    #[must_use]
    pub fn new(access: &Arc<Access>, audit: &Arc<Audit>) -> Self {
        Self { access: access.clone(), audit: audit.clone() }
    }

    /// Notes that another node rejected a request of this one.
    pub fn note_ask(&self, node: &str, error: &Error) {
        let whom = whom(node, error.place("tenant"));
        self.audit.note(Entry::denied(ASK, error).by(&whom));
    }
}

impl Guard for NodeGuard {
    fn may_read(&self, node: &str, tenant: Option<&str>, url: &str) -> Result<()> {
        let Some(tenant) = tenant else { return Ok(()) };
        self.access.policy().tenant_may_read(tenant, url).inspect_err(|error| {
            self.audit.note(Entry::denied(READ, error).by(&whom(node, Some(tenant))));
        })
    }

    fn may_keep(&self, node: &str, url: &str) -> Result<()> {
        self.access.policy().may_keep(url).inspect_err(|error| {
            self.audit.note(Entry::denied(KEEP, error).by(&whom(node, None)));
        })
    }

    fn note_rejected(&self, from: &str, error: &Error) {
        self.audit.note(Entry::denied(CONNECT, error).by(&whom(from, None)));
    }
}

/// A node, by its name or address.
fn whom(node: &str, tenant: Option<&str>) -> Whom {
    Whom { by: Some(node.to_owned()), tenant: tenant.map(str::to_owned), ..Whom::default() }
}
