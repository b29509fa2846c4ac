//! Rights of one connection, checked again and again while it lasts.
//!
//! The client's identity is fixed when it connects; its rights follow the policy in force now.
//! Every denial is logged where it is decided.

use std::sync::{Arc, Mutex, PoisonError};

use forebay_error::{Error, ErrorKind, Result};
use forebay_source::Permit;
use forebay_wire::credentials::Credentials;

use super::{Access, Admitted, Door, Policy};
use crate::audit::{Audit, Entry, Whom};

/// The rights of a client.
pub struct Rights {
    access: Arc<Access>,
    audit: Arc<Audit>,
    client: Credentials,
    door: Arc<Door>,
    /// As whom it came in by the policy that was asked last.
    standing: Mutex<(Arc<Policy>, Arc<Admitted>)>,
}

impl Rights {
    /// A client that may connect.
    pub fn of(
        access: &Arc<Access>,
        audit: &Arc<Audit>,
        client: Credentials,
        door: &Arc<Door>,
    ) -> Result<Self> {
        let admitted = access.admit(&client, door).inspect_err(|error| {
            let whom = Whom::of(&client, door.tenant.as_deref(), &door.path);
            audit.note(Entry::denied("connect", error).by(&whom));
        })?;
        let standing = Mutex::new((access.policy(), Arc::new(admitted)));
        let (access, audit, door) = (access.clone(), audit.clone(), door.clone());
        Ok(Self { access, audit, client, door, standing })
    }

    /// As whom the client counts now.
    ///
    /// # Errors
    /// As [`Access::admit`], if it would not be let in any more.
    pub fn now(&self) -> Result<(Arc<Policy>, Arc<Admitted>)> {
        let mut standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        let policy = self.access.policy();
        if !Arc::ptr_eq(&policy, &standing.0) {
            *standing = (policy, Arc::new(self.access.admit(&self.client, &self.door)?));
        }
        Ok(standing.clone())
    }

    /// The same when it came in, or was asked last.
    pub fn last(&self) -> Arc<Admitted> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    /// Refuses what only admins may do: `what`, which the audit log calls `event`.
    pub fn administers(&self, event: &'static str, what: &str) -> Result<()> {
        let refused = match self.now() {
            Ok((_, admitted)) if admitted.is_admin => return Ok(()),
            Ok(_) => {
                let what = "other users may only run jobs on this daemon";
                Error::new(ErrorKind::PermissionDenied, what).advise(
                    "connect as a member of its admin_group, or as the daemon's user, through the daemon's own socket",
                )
            }
            Err(error) => error,
        };
        self.note(Entry::denied(event, &refused).what(what));
        Err(refused)
    }

    /// Refuses a job by the first of its URLs that this client may not read.
    pub fn read_all(&self, urls: &[String]) -> Result<()> {
        let (policy, admitted) = self.now().map_err(|error| self.refused("open", error))?;
        let refused = urls.iter().find_map(|url| policy.may_read(&admitted, url).err());
        refused.map_or(Ok(()), |error| Err(self.refused("open", error)))
    }

    /// Refuses a checkpoint that this client may not save.
    pub fn save_checkpoint(&self, url: &str) -> Result<()> {
        let asked = self.now().and_then(|(policy, admitted)| policy.may_write(&admitted, url));
        asked.map_err(|error| self.refused("save", error))
    }

    /// Refuses a checkpoint that this client may not read. Who may save there may read there.
    pub fn read_checkpoint(&self, url: &str) -> Result<()> {
        let asked =
            self.now().and_then(|(policy, admitted)| match policy.may_write(&admitted, url) {
                Ok(()) => Ok(()),
                Err(_) => policy.may_read(&admitted, url),
            });
        asked.map_err(|error| self.refused("read", error))
    }

    /// Returns true if this client may save there.
    pub fn may_save(&self, url: &str) -> bool {
        self.now().is_ok_and(|(policy, admitted)| policy.may_write(&admitted, url).is_ok())
    }

    /// Notes that something was refused.
    pub fn refused(&self, event: &'static str, error: Error) -> Error {
        self.audit.note(Entry::denied(event, &error).by(&self.whom()));
        error
    }

    /// Notes what the client did, or failed to do.
    pub fn note(&self, entry: Entry) {
        self.audit.note(entry.by(&self.whom()));
    }

    /// The client's user id.
    pub fn uid(&self) -> u32 {
        self.client.uid
    }

    /// The client's process, for people who look.
    pub fn pid(&self) -> Option<u32> {
        self.client.pid
    }

    fn whom(&self) -> Whom {
        Whom::of(&self.client, self.last().tenant.as_deref(), &self.door.path)
    }
}

impl Permit for Rights {
    fn read(&self, url: &str) -> Result<()> {
        let asked = self.now().and_then(|(policy, admitted)| policy.may_read(&admitted, url));
        asked.map_err(|error| self.refused("read", error))
    }

    fn list(&self, pattern: &str) -> Result<()> {
        let asked = self.now().and_then(|(policy, admitted)| policy.may_list(&admitted, pattern));
        asked.map_err(|error| self.refused("list", error))
    }

    fn shows(&self, url: &str) -> bool {
        self.now().is_ok_and(|(policy, admitted)| policy.may_read(&admitted, url).is_ok())
    }

    fn tenant(&self) -> Option<String> {
        let (_, admitted) = self.now().ok()?;
        admitted.tenant.clone().filter(|_| !admitted.is_admin)
    }
}
