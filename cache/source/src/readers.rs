//! Files are opened, looked at and read by processes of their own: readers.
//!
//! This process touches no file system that shards come from. A system call on a mount
//! that hangs cannot be ended, not even by SIGKILL; made here it would keep a killed daemon's lock
//! and socket alive. A reader has neither: the worst that hangs is a process that has nothing.
//!
//! ```text
//!   ask ──▶ the mount that the path lies on    mountinfo.rs   from a table; nothing is touched
//!            └─▶ a seat, and its reader        seats.rs, mount.rs   bounds, time limit, replacement
//!                 └─▶ socket ──▶ process       process.rs ── message.rs ── child.rs
//!                       bytes ◀── memory of the reader's, read as a file
//! ```

mod child;
mod client;
mod counts;
mod message;
mod mount;
mod mountinfo;
mod process;
mod seats;

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use child::{Opener, serve, serve_layouts_of};
pub(crate) use client::ClientReaders;
use client::Users;
pub use client::{Client, Ending, Handover, Permit};
pub use counts::FileCounts;
pub(crate) use message::{PIECE, Request};
pub(crate) use mount::Loan;
use mount::Mount;
pub use mountinfo::mount_point;
use mountinfo::{MountId, MountTable};

use crate::queue::{Queue, QueuePermit, Rank};

/// Mounts that are read from at once. Nodes have a few; the bound is for whoever names paths below
/// many automounts. With [`mount::READERS`] on each, readers' memory stays below 256 MiB.
const MOUNTS: usize = 16;

/// Shards of all mounts together that are fetched at once. The store fetches four: one turn is left
/// for what comes over the network, whatever mounts hang.
const SHARDS: usize = 3;

/// Starts readers and asks them. Cheap to clone.
#[derive(Clone)]
pub struct Readers(Arc<Inner>);

struct Inner {
    /// Program and arguments of a reader.
    command: Arc<[OsString]>,
    limit: Duration,
    table: Mutex<MountTable>,
    mounts: Mutex<HashMap<MountId, Arc<Mount>>>,
    users: Users,
    turns: Arc<Queue>,
}

/// A mount's readers, for an admin.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MountReport {
    /// Mount point; for files that a client opens, the name of its connection.
    #[schema(value_type = String)]
    pub mount: PathBuf,
    /// True if a client opens the files.
    pub by_client: bool,
    /// True if the last request to it timed out.
    pub hangs: bool,
    /// Processes that read from it.
    pub readers: Vec<u32>,
    /// Those among them that were killed and stay until the file system lets them go.
    pub stuck: Vec<u32>,
    /// Counters.
    #[serde(flatten)]
    pub counts: FileCounts,
}

/// The right to fetch one more shard, while it is held. See [`crate::Source::turn`].
#[derive(Debug, Default)]
pub struct Turn(Option<[QueuePermit; 2]>);

impl Turn {
    /// Returns true if a more urgent request than the unawaited rest of `rank`'s is in the queue.
    #[must_use]
    pub fn is_contested(&self, rank: &Rank) -> bool {
        self.0.iter().flatten().any(|place| place.is_contested(rank))
    }
}

impl Readers {
    /// Readers that `command` starts; a file system that does not answer one of them within `limit`
    /// hangs. Starts nothing yet.
    ///
    /// # Errors
    /// `Invalid` for no time at all; or if the system does not tell its mounts.
    pub(crate) fn new(command: Vec<OsString>, limit: Duration) -> Result<Self> {
        if limit.is_zero() {
            return Err(Error::new(ErrorKind::Invalid, "file systems need some time to answer"));
        }
        Ok(Self(Arc::new(Inner {
            command: command.into(),
            limit,
            table: Mutex::new(MountTable::open()?),
            mounts: Mutex::default(),
            users: Users::default(),
            turns: Queue::new(SHARDS),
        })))
    }

    /// Returns the running readers, by mount.
    #[must_use]
    pub fn report(&self) -> Vec<MountReport> {
        let mut report: Vec<_> = self.mounts().values().map(|mount| mount.report()).collect();
        // Most connections' clients open nothing: who only asks for this is one of them.
        let clients = self.0.users.pools();
        let reports = clients.iter().map(|pool| pool.report());
        report.extend(reports.filter(|report| !report.readers.is_empty()));
        report.sort_by(|one, other| one.mount.cmp(&other.mount));
        report
    }

    /// Returns the counters of files that clients open, ended clients included.
    #[must_use]
    pub fn opened_by_clients(&self) -> FileCounts {
        self.0.users.counts()
    }

    /// Has a reader of the mount that `path` lies on answer `request`, for which these servers of
    /// its file system are asked. Whoever drops the future leaves the reader its time to answer: it
    /// is not killed for that.
    pub(crate) async fn ask(
        &self,
        path: &Path,
        request: &Request,
        servers: Vec<u32>,
    ) -> Result<Loan> {
        ask(self.mount(path)?, request, servers).await
    }

    /// Readers of what this client opens.
    pub(crate) fn of_client(&self, client: &Client) -> ClientReaders {
        self.0.users.readers(client, self.0.command.clone(), self.0.limit)
    }

    /// Waits for the turn of a shard at `path`.
    pub(crate) async fn turn(&self, path: &Path, rank: &Rank) -> Result<Turn> {
        self.turn_on(&*self.mount(path)?, rank).await
    }

    /// Waits for the turn of a shard that this client opens.
    pub(crate) async fn turn_of(&self, client: &ClientReaders, rank: &Rank) -> Result<Turn> {
        self.turn_on(&*client.pool()?, rank).await
    }

    async fn turn_on(&self, mount: &Mount, rank: &Rank) -> Result<Turn> {
        // The mount's first: what waits for a mount that hangs must not hold what others need.
        let here = mount.turns().place(rank).await?;
        let any = self.0.turns.place(rank).await?;
        Ok(Turn(Some([here, any])))
    }

    fn mount(&self, path: &Path) -> Result<Arc<Mount>> {
        let (id, point) = self.0.table.lock().unwrap_or_else(PoisonError::into_inner).of(path)?;
        let mut mounts = self.mounts();
        if let Some(mount) = mounts.get(&id) {
            return Ok(mount.clone());
        }
        if mounts.len() >= MOUNTS {
            mounts.retain(|_, mount| !mount.is_idle());
        }
        if mounts.len() >= MOUNTS {
            let error = Error::new(ErrorKind::Unavailable, "shards are read from too many mounts");
            return Err(error.at("mounts", MOUNTS).advise("read from fewer at once"));
        }
        let mount = Mount::new(point, self.0.command.clone(), self.0.limit, None);
        mounts.insert(id, mount.clone());
        Ok(mount)
    }

    fn mounts(&self) -> MutexGuard<'_, HashMap<MountId, Arc<Mount>>> {
        self.0.mounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Has a reader of these answer `request`, in a task of its own.
async fn ask(mount: Arc<Mount>, request: &Request, servers: Vec<u32>) -> Result<Loan> {
    let frame = message::encode(request)?;
    let asked = tokio::spawn(async move { mount.ask(&frame, servers).await });
    asked.await.unwrap_or_else(|_| Err(Error::shutting_down()))
}
