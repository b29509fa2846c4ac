//! Tenants: those who share a node, and what each may hold of it.
//!
//! One rule: what is wanted by many is charged to whoever brought it in, until it leaves. So a use by
//! another is a hit, and takes nothing of what that other may hold.

use forebay_error::{Error, ErrorKind, Result};

/// Bytes of a tenant's name: it is kept beside each shard, where the shard's URL needs the room.
const NAME_BYTES: usize = 128;

/// What one tenant may hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    /// What admins call it.
    pub name: String,
    /// Others do not push it below this many bytes.
    pub min_bytes: u64,
    /// It holds this many bytes at most.
    pub max_bytes: Option<u64>,
}

impl Tenant {
    /// Refuses limits that contradict each other, and a name that cannot be kept.
    ///
    /// # Errors
    /// `Invalid` naming the tenant and the options.
    pub fn check(&self) -> Result<()> {
        let refuse =
            |what: String| Err(Error::new(ErrorKind::Invalid, what).at("tenant", &self.name));
        if self.name.is_empty() || self.name.len() > NAME_BYTES {
            return refuse(format!("a tenant's name has 1 to {NAME_BYTES} bytes"));
        }
        if self.max_bytes.is_some_and(|max| max < self.min_bytes) {
            return refuse("the quota's max is below its min".to_owned());
        }
        Ok(())
    }
}
