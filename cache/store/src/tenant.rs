//! Tenants: the groups that share a node, and the limits of each.
//!
//! A shard that many want is charged to the tenant that brought it in, until it leaves. A use
//! by another tenant is a hit, and is not charged to that tenant.

use forebay_error::{Error, ErrorKind, Result};

/// Maximum bytes of a tenant's name: it is stored beside each shard, in the space of the URL.
const NAME_BYTES: usize = 128;

/// Limits of one tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    /// Name, for admins.
    pub name: String,
    /// Bytes that other tenants cannot evict.
    pub min_bytes: u64,
    /// Maximum number of bytes.
    pub max_bytes: Option<u64>,
}

impl Tenant {
    /// Rejects limits that contradict each other, and names that cannot be stored.
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
            return refuse("quota.max is below quota.min".to_owned());
        }
        Ok(())
    }
}
