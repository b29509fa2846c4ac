//! Readers of files that a client opens: with its rights, not the daemon's.
//!
//! A reader of such files has a socket to the client beside the one to the daemon. It asks there
//! for the descriptor of what it is to read.
//!
//! No descriptor of a client's ever enters the daemon. One may be of a file system that
//! the client itself is, and then even closing it can take for ever. So the daemon makes the pair
//! of sockets and hands both ends on; what hangs, hangs in a process that serves this client alone.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use forebay_error::{Doing, Error, ErrorKind, Result};
use futures::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::counts::{Counts, FileCounts};
use super::message::Request;
use super::mount::{Loan, Mount, SHARDS};
use super::process::ClientSocket;
use crate::queue::{Queue, relieved};

/// Processes that read for one user, over all its connections: one or two each for the ranks of a
/// few jobs, and 256 MiB of memory.
const USER_READERS: usize = 64;

/// Shards of a user other than the daemon's own that are fetched at once. With two, two users whose
/// files hang would take every turn there is.
const USER_SHARDS: usize = 1;

/// A command's end, once it has come: that it succeeded, or why not. Whoever drops it before wants
/// nothing of the command any more.
pub type Ending = BoxFuture<'static, Result<()>>;

/// Sends requests to a client.
#[async_trait]
pub trait Handover: Send + Sync {
    /// Sends one end of a pair of sockets; over it a reader will ask for files.
    ///
    /// # Errors
    /// `Closed` if the client is gone.
    async fn hand(&self, socket: OwnedFd) -> Result<()>;

    /// Has the client run the command of `url`, and what it says go to `output`.
    ///
    /// # Errors
    /// `Closed` if the client is gone, `Invalid` if its release runs none.
    async fn run(&self, url: &str, output: OwnedFd) -> Result<Ending>;
}

/// Rights of a client.
pub trait Permit: Send + Sync {
    /// Refuses a URL that the client may not read, whether there is anything behind it or not.
    ///
    /// # Errors
    /// `PermissionDenied` naming the URL, and what would allow it.
    fn read(&self, url: &str) -> Result<()>;

    /// Refuses a pattern that can mean nothing that the client may read.
    ///
    /// # Errors
    /// As [`Permit::read`].
    fn list(&self, pattern: &str) -> Result<()>;

    /// Returns true if a list may name a URL to the client.
    fn shows(&self, url: &str) -> bool;

    /// Returns the tenant by which other nodes judge what the client's job reads there; none if it
    /// has none, or may read everything.
    fn tenant(&self) -> Option<String> {
        None
    }
}

/// A client that opens files for the daemon, and runs commands.
#[derive(Clone)]
pub struct Client {
    /// Unique name of its connection.
    pub name: String,
    /// User of its processes, as a unique number.
    pub user: u64,
    /// The client's rights; none: it may read all that the daemon may.
    pub permit: Option<Arc<dyn Permit>>,
    /// The way to it.
    pub handover: Arc<dyn Handover>,
}

/// Time for which a new process waits for one of the user's to end, before one that nobody asks
/// ends for it: a request that is answered takes less.
const RELIEF: Duration = Duration::from_millis(250);

/// State shared by the connections of one user.
struct User {
    turns: Arc<Queue>,
    readers: Arc<Semaphore>,
    /// The readers of each of its clients.
    pools: Mutex<Vec<Weak<Mount>>>,
}

impl User {
    fn pools(&self) -> Vec<Arc<Mount>> {
        let pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.iter().filter_map(Weak::upgrade).collect()
    }

    fn add(&self, pool: &Arc<Mount>) {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.retain(|pool| pool.strong_count() > 0);
        pools.push(Arc::downgrade(pool));
    }

    /// Ends the process that nobody has asked for longest.
    fn end_idle(&self) {
        let pools = self.pools();
        let idle = pools.iter().filter_map(|pool| Some((pool.idle_since()?, pool)));
        if let Some((_, pool)) = idle.min_by_key(|(since, _)| *since) {
            pool.end_oldest();
        }
    }
}

/// The right to have one more process of a user's. It outlives connections: whoever comes back
/// finds what still hangs counted.
pub(super) struct Right {
    _permit: OwnedSemaphorePermit,
    _user: Arc<User>,
}

/// Users that have connections.
#[derive(Default)]
pub(super) struct Users {
    known: Mutex<HashMap<u64, Weak<User>>>,
    /// Counters of all clients' readers.
    counts: Arc<Counts>,
}

/// A client, as its readers know it.
pub(super) struct Attached {
    handover: Arc<dyn Handover>,
    user: Arc<User>,
    /// Counters of all clients.
    counts: Arc<Counts>,
}

/// The readers of what one client opens.
#[derive(Clone)]
pub(crate) struct ClientReaders {
    pool: Weak<Mount>,
    /// Keeps them there; none: they are there for as long as others hold them.
    _held: Option<Arc<Mount>>,
}

impl Users {
    /// Readers of what this client opens. Starts nothing yet.
    pub(super) fn readers(
        &self,
        client: &Client,
        command: Arc<[OsString]>,
        limit: Duration,
    ) -> ClientReaders {
        let mut users = self.lock();
        users.retain(|_, known| known.strong_count() > 0);
        let known = users.entry(client.user).or_default();
        let user = known.upgrade().unwrap_or_else(|| {
            let turns = if client.permit.is_none() { SHARDS } else { USER_SHARDS };
            Arc::new(User {
                turns: Queue::new(turns),
                readers: Arc::new(Semaphore::new(USER_READERS)),
                pools: Mutex::default(),
            })
        });
        *known = Arc::downgrade(&user);
        let (handover, counts) = (client.handover.clone(), self.counts.clone());
        let attached = Attached { handover, user: user.clone(), counts };
        let point = PathBuf::from(format!("files of {}", client.name));
        let pool = Mount::new(point, command, limit, Some(attached));
        user.add(&pool);
        ClientReaders { pool: Arc::downgrade(&pool), _held: Some(pool) }
    }

    /// The readers of each client that is there.
    pub(super) fn pools(&self) -> Vec<Arc<Mount>> {
        let users: Vec<_> = self.lock().values().filter_map(Weak::upgrade).collect();
        users.iter().flat_map(|user| user.pools()).collect()
    }

    /// Returns the counters of all clients' readers, ended ones included.
    pub(super) fn counts(&self) -> FileCounts {
        self.counts.read()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Weak<User>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientReaders {
    /// Has one of them answer `request`.
    pub(crate) async fn ask(&self, request: &Request, servers: Vec<u32>) -> Result<Loan> {
        super::ask(self.pool()?, request, servers).await
    }

    /// The same, that keep no process waiting for a client that is gone.
    pub(crate) fn lent(&self) -> Self {
        Self { pool: self.pool.clone(), _held: None }
    }

    pub(super) fn pool(&self) -> Result<Arc<Mount>> {
        let gone = || Error::new(ErrorKind::Closed, "the job that names the shard is gone");
        self.pool.upgrade().ok_or_else(gone)
    }
}

impl Attached {
    pub(super) fn counts(&self) -> &Counts {
        &self.counts
    }

    pub(super) fn turns(&self) -> Arc<Queue> {
        self.user.turns.clone()
    }

    /// A socket to the client, for one more reader; its other end is on its way there.
    pub(super) async fn socket(&self, limit: Duration) -> Result<ClientSocket> {
        let right = self.user.readers.clone().acquire_owned();
        // Each of the user's connections keeps some for its next request.
        let right = relieved(right, RELIEF, || self.user.end_idle());
        let right = tokio::time::timeout(limit, right).await;
        let Ok(right) = right else {
            let error =
                Error::new(ErrorKind::Unavailable, "too many reader processes for one user");
            return Err(error.at("limit", USER_READERS).advise("run fewer jobs at once on a node"));
        };
        let right = right.map_err(|_| Error::shutting_down())?;
        let (near, far) = UnixStream::pair().doing("make a socket to a client")?;
        // A client that reads nothing takes no socket, either.
        let Ok(handed) = tokio::time::timeout(limit, self.handover.hand(far.into())).await else {
            let what = "a client does not take sockets for its files";
            return Err(Error::new(ErrorKind::Unavailable, what).at("seconds", limit.as_secs()));
        };
        handed?;
        let right = Right { _permit: right, _user: self.user.clone() };
        Ok(ClientSocket { socket: near.into(), right })
    }
}
