//! Another node of the cluster: its failures and their counts.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_cluster::Member;
use forebay_error::{Error, ErrorKind};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Time for which a node is left alone after its first failure; doubled by each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest time for which a node is left alone: it is back within this time after a restart.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Reason why a shard did not come from the node that was asked.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Fallback {
    /// The node failed shortly before and is left alone.
    Down,
    /// No connection, or one that broke.
    Connection,
    /// A certificate was not accepted: the node's, or ours.
    Certificate,
    /// It sent nothing for too long.
    Silence,
    /// It stayed busy.
    Busy,
    /// It has no copy, or another version. Not counted: it is asked because it might have one.
    Absent,
    /// Wrong bytes, or a malformed reply.
    Corrupt,
    /// It failed on the shard: its own origin, its rules or its disk.
    Failed,
}

impl Fallback {
    /// All counted reasons, in the order of reports.
    pub const ALL: [Self; 7] = [
        Self::Down,
        Self::Connection,
        Self::Certificate,
        Self::Silence,
        Self::Busy,
        Self::Corrupt,
        Self::Failed,
    ];

    /// Returns the name in reports and metric labels.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Connection => "connection",
            Self::Certificate => "certificate",
            Self::Silence => "silence",
            Self::Busy => "busy",
            Self::Absent => "absent",
            Self::Corrupt => "corrupt",
            Self::Failed => "failed",
        }
    }

    /// Returns true if the node itself is at fault, not only this shard on it.
    fn is_of_the_node(self) -> bool {
        matches!(self, Self::Connection | Self::Certificate | Self::Silence)
    }
}

/// A failed request: the reason, and the error.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) reason: Fallback,
    pub(crate) error: Error,
}

impl Failure {
    /// An error of the node about the shard.
    pub(crate) fn told(error: Error) -> Self {
        let is_absent =
            error.kind() == ErrorKind::NotFound || error.place("reason") == Some("changed");
        Self::new(if is_absent { Fallback::Absent } else { Fallback::Failed }, error)
    }

    /// Fewer bytes than the shard has.
    pub(crate) fn shortened() -> Self {
        let error = Error::new(ErrorKind::Corrupt, "a node's copy is shorter than the shard");
        Self::new(Fallback::Corrupt, error)
    }

    pub(crate) fn new(reason: Fallback, error: Error) -> Self {
        Self { reason, error }
    }
}

pub(crate) type Asked<T> = Result<T, Failure>;

/// Another node.
#[derive(Debug)]
pub struct Peer {
    pub(crate) member: Member,
    health: Mutex<Health>,
    pub(crate) requests: AtomicU64,
    pub(crate) received: AtomicU64,
    fallbacks: Mutex<HashMap<Fallback, u64>>,
}

#[derive(Debug, Default)]
struct Health {
    failures: u32,
    down_until: Option<Instant>,
    last_error: Option<Error>,
}

impl Health {
    /// Returns true while the node is left alone.
    fn is_down(&self) -> bool {
        self.down_until.is_some_and(|until| Instant::now() < until)
    }
}

/// A node of the cluster, as this node sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PeerReport {
    /// Name.
    pub name: String,
    /// Host and port.
    pub address: String,
    /// Share of the shards that it owns.
    pub slots: u16,
    /// True if it is this node.
    pub is_self: bool,
    /// True if it failed and is left alone for now.
    pub is_down: bool,
    /// Last error, if it is down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Requests to it.
    pub requests: u64,
    /// Bytes of shards received from it.
    pub received_bytes: u64,
    /// Shards and records that did not come from it, by reason.
    pub fallbacks: Vec<(Fallback, u64)>,
}

impl Peer {
    pub(crate) fn new(member: Member) -> Self {
        Self {
            member,
            health: Mutex::default(),
            requests: AtomicU64::new(0),
            received: AtomicU64::new(0),
            fallbacks: Mutex::default(),
        }
    }

    /// Returns the name of the node.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.member.name
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true while the node is left alone.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.health().is_down()
    }

    pub(crate) fn note_success(&self) {
        let mut health = self.health();
        if health.failures > 0 {
            tracing::info!(node = self.name(), "a node of the cluster is back");
        }
        *health = Health::default();
    }

    /// Counts a failure, and leaves the node alone if it is at fault. That a node has no copy is an
    /// answer.
    pub(crate) fn note(&self, failure: &Failure) {
        if failure.reason == Fallback::Absent {
            return;
        }
        let mut fallbacks = self.fallbacks.lock().unwrap_or_else(PoisonError::into_inner);
        *fallbacks.entry(failure.reason).or_default() += 1;
        drop(fallbacks);
        if !failure.reason.is_of_the_node() {
            return;
        }
        let mut health = self.health();
        // Requests that were under way together count as one failure.
        if health.is_down() {
            return;
        }
        let pause = FIRST_PAUSE.saturating_mul(1 << health.failures.min(5)).min(LONGEST_PAUSE);
        if health.failures == 0 {
            let error = &failure.error;
            tracing::warn!(node = self.name(), address = self.member.address, %error, "a node of the cluster does not answer");
        }
        health.failures += 1;
        health.down_until = Some(Instant::now() + pause);
        health.last_error = Some(failure.error.clone());
    }

    /// Counts a failure and returns its error.
    pub(crate) fn noted(&self, failure: Failure) -> Error {
        self.note(&failure);
        failure.error.at("node", self.name())
    }

    pub(crate) fn report(&self) -> PeerReport {
        let health = self.health();
        let is_down = health.is_down();
        let error = health.last_error.as_ref().map(ToString::to_string);
        drop(health);
        let fallbacks = self.fallbacks.lock().unwrap_or_else(PoisonError::into_inner);
        let mut fallbacks: Vec<_> = fallbacks.iter().map(|(why, count)| (*why, *count)).collect();
        fallbacks.sort_unstable();
        PeerReport {
            name: self.member.name.clone(),
            address: self.member.address.clone(),
            slots: self.member.slots,
            is_self: false,
            is_down,
            error,
            requests: self.requests.load(Ordering::Relaxed),
            received_bytes: self.received.load(Ordering::Relaxed),
            fallbacks,
        }
    }
}
