//! One line of the audit log.
//!
//! A client's text is quoted, cut, and stripped of control characters for terminals; URLs are
//! written without their secret parts.

use std::net::SocketAddr;
use std::time::SystemTime;

use forebay_error::{Error, Result, printable_char, shown};
use forebay_wire::credentials::Credentials;
use serde::{Serialize, Serializer};

/// Characters of one field, at most: a URL's worth.
const FIELD: usize = 1024;

/// Result of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It may not be.
    Denied,
    /// It is done, or has begun.
    Done,
    /// It may be, and could not.
    Failed,
}

/// Origin of an event.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Whom {
    #[serde(skip_serializing_if = "Option::is_none")]
    /// User id, from the kernel.
    pub uid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    /// Group id, from the kernel.
    pub gid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    /// Process id, from the kernel.
    pub pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    /// Tenant.
    pub tenant: Option<String>,
    /// The certificate that he showed, by its SHA-256.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// Endpoint of the connection: a socket's path or an address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

impl Whom {
    /// A user of whom nothing else is known.
    #[cfg(test)]
    pub fn user(uid: u32) -> Self {
        Self { uid: Some(uid), ..Self::default() }
    }

    /// Somebody over TCP.
    pub fn from(address: SocketAddr) -> Self {
        Self { by: Some(address.to_string()), ..Self::default() }
    }

    /// A client of a socket.
    pub fn of(client: &Credentials, tenant: Option<&str>, by: &std::path::Path) -> Self {
        Self {
            uid: Some(client.uid),
            gid: Some(client.gid),
            pid: client.pid,
            tenant: tenant.map(str::to_owned),
            certificate: None,
            by: Some(by.display().to_string()),
        }
    }
}

/// One event.
#[derive(Debug, Serialize)]
pub struct Entry {
    #[serde(serialize_with = "rfc3339")]
    time: SystemTime,
    event: &'static str,
    outcome: Outcome,
    #[serde(flatten)]
    whom: Whom,
    #[serde(skip_serializing_if = "Option::is_none")]
    what: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dataset: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

fn rfc3339<S: Serializer>(time: &SystemTime, to: S) -> std::result::Result<S::Ok, S::Error> {
    to.collect_str(&humantime::format_rfc3339_micros(*time))
}

impl Entry {
    /// Something that ended so.
    pub fn new(event: &'static str, outcome: Outcome) -> Self {
        Self {
            time: SystemTime::now(),
            event,
            outcome,
            whom: Whom::default(),
            what: None,
            url: None,
            dataset: None,
            count: None,
            reason: None,
        }
    }

    /// Something that was refused, by the error that says so.
    pub fn denied(event: &'static str, error: &Error) -> Self {
        Self::new(event, Outcome::Denied).because(error)
    }

    /// Something that was done, or failed.
    pub fn of<T>(event: &'static str, outcome: &Result<T>) -> Self {
        match outcome {
            Ok(_) => Self::new(event, Outcome::Done),
            Err(error) => Self::new(event, Outcome::Failed).because(error),
        }
    }

    /// Lines that there are none of.
    pub(super) fn lost(count: u64) -> Self {
        let reason = "lines were lost: the disk was too slow, or one user exceeded its share";
        let lost = Self::new("lost", Outcome::Failed);
        Self { count: Some(count), reason: Some(reason.to_owned()), ..lost }
    }

    /// Sets the origin.
    pub fn by(self, whom: &Whom) -> Self {
        let tenant = whom.tenant.as_deref().map(bounded);
        Self { whom: Whom { tenant, ..whom.clone() }, ..self }
    }

    /// Sets a description of a few words.
    pub fn what(self, what: &str) -> Self {
        Self { what: Some(bounded(what)).filter(|what| !what.is_empty()), ..self }
    }

    /// The shard, or pattern, that it was about.
    pub fn url(self, url: &str) -> Self {
        Self { url: Some(bounded(&shown(url))), ..self }
    }

    fn because(self, error: &Error) -> Self {
        let place = |name: &str| error.place(name).map(bounded);
        Self {
            url: place("url").or(place("urls")),
            dataset: place("dataset"),
            reason: Some(bounded(error.message())),
            ..self
        }
    }

    pub(super) fn is_denial(&self) -> bool {
        self.outcome == Outcome::Denied
    }

    /// A number for whoever did it: behind a tenant's socket all users are one.
    pub(super) fn user(&self) -> u64 {
        match (&self.whom.tenant, self.whom.uid) {
            (Some(tenant), _) => (1 << 63) | xxhash_rust::xxh3::xxh3_64(tenant.as_bytes()),
            (None, uid) => uid.map_or(1 << 32, u64::from),
        }
    }

    /// The same for the daemon's own log.
    pub(super) fn log(&self) {
        let Self { event, whom, what, url, dataset, reason, .. } = self;
        let Whom { uid, tenant, by, .. } = whom;
        match self.outcome {
            Outcome::Denied => {
                tracing::warn!(event, uid, tenant, by, what, url, dataset, reason, "denied");
            }
            Outcome::Failed => {
                tracing::warn!(event, uid, tenant, by, what, url, dataset, reason, "failed");
            }
            Outcome::Done => tracing::info!(event, uid, tenant, by, what, url, "done"),
        }
    }

    /// As it is written.
    pub(super) fn line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).expect("numbers and strings always encode");
        line.push(b'\n');
        line
    }
}

/// No longer than a field may be, and without what terminals act on.
fn bounded(text: &str) -> String {
    let mut bounded: String = text.chars().take(FIELD).map(printable_char).collect();
    if text.chars().nth(FIELD).is_some() {
        bounded.push('…');
    }
    bounded
}
