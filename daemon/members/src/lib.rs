//! Member list of a cluster: follows one source (a file, a DNS name, a Redis server) and keeps the
//! ring of the members current.
//!
//! Rule: the last good list stays in force until the source gives another good one. A source that
//! fails, or whose list is empty, malformed, too long or ambiguous, changes nothing.

mod dns;
mod file;
mod list;
mod redis;
mod source;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use forebay_cluster::{Member, Ring};
use forebay_config::settings::MembersSource;
use forebay_error::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};
use utoipa::ToSchema;

use list::List;
use source::Source;

/// Time for the first answer of a source: a node starts without it rather than late.
const FIRST_WITHIN: Duration = Duration::from_secs(5);

/// Share of an interval by which it varies, so that nodes started together do not ask together.
const JITTER: f64 = 0.1;

/// Identity of a node, as it tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Greeting {
    /// Name in the node's certificate.
    pub name: String,
    /// Name of its cluster.
    pub group: String,
    /// Share of the shards that it owns, relative to the slots of all members.
    pub slots: u16,
}

/// Asks a node at an address for its identity. DNS needs it, whose answers carry no names.
#[async_trait]
pub trait Greet: Send + Sync {
    /// Returns the identity of the node at `address`, a host and a port.
    async fn greet(&self, address: &str) -> Result<Greeting>;
}

/// State of the member list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MembersReport {
    /// Source of the list, without secrets.
    pub source: String,
    /// Members in force, by name.
    pub members: Vec<Member>,
    /// True if the source's last answer was none, or no good one: the list is an older one.
    pub is_frozen: bool,
    /// Time of the last good answer (RFC 3339); none: there was none yet.
    pub since: Option<String>,
    /// Reason why the list is frozen.
    pub last_error: Option<String>,
    /// Entries of the last good answer that name no member, and are left out.
    pub left_out: usize,
    /// True if this node is in the list.
    pub is_listed: bool,
}

/// Member list that follows its source until it is dropped.
pub struct Members {
    list: Arc<List>,
    asks: mpsc::Sender<Ask>,
}

/// A wish of this node: to leave the list, or to be on it again.
struct Ask {
    leaves: bool,
    answer: oneshot::Sender<Result<()>>,
}

impl Members {
    /// Follows the list of `source` as `own`. Waits for its first answer, up to five seconds. If
    /// that is none, the ring is empty until there is one.
    ///
    /// # Errors
    /// `Invalid` for an address that names no server; the error of a file that cannot be read, or
    /// whose list is empty or malformed.
    pub async fn start(
        source: MembersSource,
        own: Member,
        group: &str,
        greet: Arc<dyn Greet>,
    ) -> Result<Self> {
        own.check()?;
        let must_answer = matches!(source, MembersSource::File(_));
        let mut source = source::open(source, &own, group, greet)?;
        let list = Arc::new(List::new(source.shown(), own));
        let first = match timeout(FIRST_WITHIN, source.read(&[])).await {
            Ok(first) => first,
            Err(_) => Err(Error::new(ErrorKind::Unavailable, "the first answer takes too long")),
        };
        let taken = list.take(first);
        if must_answer {
            taken?;
        }
        let (asks, asked) = mpsc::channel(1);
        tokio::spawn(follow(list.clone(), source, asked));
        Ok(Self { list, asks })
    }

    /// Returns the ring of the members in force.
    #[must_use]
    pub fn ring(&self) -> Arc<Ring> {
        self.list.ring()
    }

    /// Returns a receiver that hears of every other ring.
    #[must_use]
    pub fn changed(&self) -> watch::Receiver<Arc<Ring>> {
        self.list.changed()
    }

    /// Returns the state of the list.
    #[must_use]
    pub fn report(&self) -> MembersReport {
        self.list.report()
    }

    /// Takes this node off the list, where nodes register themselves, and follows the list on. The
    /// other sources list a node for as long as their administrators do.
    ///
    /// # Errors
    /// The server's. The node's entry then expires by itself, for it is not renewed any more.
    pub async fn leave(&self) -> Result<()> {
        self.ask(true).await
    }

    /// Puts this node back on the list, where nodes register themselves.
    ///
    /// # Errors
    /// The server's. The node registers as soon as it answers.
    pub async fn join(&self) -> Result<()> {
        self.ask(false).await
    }

    async fn ask(&self, leaves: bool) -> Result<()> {
        let closed = || Error::new(ErrorKind::Closed, "nothing follows the member list any more");
        let (answer, done) = oneshot::channel();
        self.asks.send(Ask { leaves, answer }).await.map_err(|_| closed())?;
        done.await.map_err(|_| closed())?
    }
}

/// Reads the source at its interval, and when the node leaves or comes back, until nobody holds the
/// list.
async fn follow(list: Arc<List>, mut source: Box<dyn Source>, mut asks: mpsc::Receiver<Ask>) {
    loop {
        let varies = 1.0 + JITTER * (2.0 * fastrand::f64() - 1.0);
        let next = Instant::now() + source.interval().mul_f64(varies);
        let done = tokio::select! {
            () = sleep_until(next) => None,
            asked = asks.recv() => match asked {
                None => return,
                Some(Ask { leaves, answer }) => {
                    list.note_left(leaves);
                    let done = if leaves { source.leave().await } else { source.join().await };
                    Some((answer, done))
                }
            },
        };
        let known = list.ring();
        // The list keeps the error.
        let _ = list.take(source.read(known.members()).await);
        if let Some((answer, result)) = done {
            // Nobody may wait for it any more.
            let _ = answer.send(result);
        }
    }
}
