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
    greeting: Mutex<LastGreeting>,
}

/// Facts from a node's greeting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Greeted {
    /// Seconds by which its clock is ahead of this node's; negative if it is behind.
    pub clock_ahead_seconds: i64,
    /// True if it has the rules of this node for data sets and sources.
    pub has_same_rules: bool,
    /// True if it leaves the cluster in good order.
    pub is_draining: bool,
}

/// Outcome of a node's last greeting.
#[derive(Debug, Default)]
struct LastGreeting {
    /// Time of the last greeting, answered or not.
    at: Option<Instant>,
    /// Facts of the last one that was answered.
    greeted: Option<Greeted>,
    /// Greetings in a row that were not answered.
    unanswered: u32,
}

/// Unanswered greetings after which it is logged: a node that restarts misses one.
const UNANSWERED_TOLD: u32 = 2;

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
    /// True if it did not answer its last greeting.
    pub is_silent: bool,
    /// Facts from its last greeting; none before the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub greeted: Option<Greeted>,
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
            greeting: Mutex::default(),
        }
    }

    fn greeting(&self) -> MutexGuard<'_, LastGreeting> {
        self.greeting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the time since the last greeting, and true if it was not answered.
    pub(crate) fn greeting_age(&self) -> (Duration, bool) {
        let greeting = self.greeting();
        let age = greeting.at.map_or(Duration::MAX, |at| at.elapsed());
        (age, greeting.unanswered > 0)
    }

    /// Notes the outcome of a greeting; none: there was no answer in time. Each change is logged
    /// once.
    pub(crate) fn note_greeting(&self, answer: Option<forebay_error::Result<Greeted>>) {
        let (node, address) = (self.name(), &self.member.address);
        let mut greeting = self.greeting();
        greeting.at = Some(Instant::now());
        let greeted = match answer {
            Some(Ok(greeted)) => greeted,
            failed => {
                greeting.unanswered = greeting.unanswered.saturating_add(1);
                if greeting.unanswered == UNANSWERED_TOLD {
                    let error = failed.and_then(Result::err).map(|error| error.to_string());
                    tracing::warn!(
                        node,
                        address,
                        error,
                        "a node of the cluster answers no greeting"
                    );
                }
                return;
            }
        };
        greeting.unanswered = 0;
        let before = greeting.greeted.replace(greeted.clone());
        drop(greeting);
        let had_same_rules = before.as_ref().is_none_or(|before| before.has_same_rules);
        match (had_same_rules, greeted.has_same_rules) {
            (true, false) => tracing::warn!(
                node,
                "a node has other rules for data sets and sources: shards of some are not shared"
            ),
            (false, true) => tracing::info!(node, "a node has the same rules again"),
            _ => {}
        }
        let was_skewed = before.as_ref().is_some_and(Greeted::is_skewed);
        if greeted.is_skewed() && !was_skewed {
            let ahead = greeted.clock_ahead_seconds;
            tracing::warn!(node, ahead, "the clock of a node differs by many seconds");
        }
        if greeted.is_draining != before.is_some_and(|before| before.is_draining) {
            tracing::info!(node, is_draining = greeted.is_draining, "a node leaves or comes back");
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
        let (is_silent, greeted) = {
            let greeting = self.greeting();
            (greeting.unanswered > 0, greeting.greeted.clone())
        };
        PeerReport {
            name: self.member.name.clone(),
            address: self.member.address.clone(),
            slots: self.member.slots,
            is_self: false,
            is_down,
            error,
            is_silent,
            greeted,
            requests: self.requests.load(Ordering::Relaxed),
            received_bytes: self.received.load(Ordering::Relaxed),
            fallbacks,
        }
    }
}
