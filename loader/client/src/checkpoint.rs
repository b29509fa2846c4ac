//! Files of checkpoints: written through the node's disk, read from the nearest place.
//!
//! ```text
//!   write ─copy, CRC─▶ slot of lent memory ─Write─▶ daemon ─Done─▶ slot is free
//!   read  ◀─CRC, copy─ slot of lent memory ◀─Done── daemon ◀─Read─ block wanted next
//! ```
//! Each connection has a ring of slots, one block each. The caller's thread copies and takes
//! checksums while the daemon's disk works on other slots.

mod push;
mod reader;
mod restore;
mod writer;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result, shown};
use forebay_wire::checkpoint::{BLOCK, Level, Place, Published, Removed, Reply, Request};
use forebay_wire::fork::Generation;
use forebay_wire::frame::Receiver;
use forebay_wire::lent::Lent;
use forebay_wire::message;

use crate::address::Address;
use crate::connection::{Connection, is_silent, unexpected};
use crate::deadline::Deadline;

pub use forebay_wire::checkpoint::{Commit, FileId};
pub use push::Push;
pub use reader::CheckpointReader;
pub use writer::{CheckpointWriter, SaveConfig};

/// Place of a checkpoint, and the way to it.
#[derive(Debug, Clone)]
pub struct CheckpointPlace {
    /// The daemon.
    pub address: Address,
    /// URL of the checkpoint, or of a folder of checkpoints.
    pub url: String,
    /// Key of a file below it; empty for the checkpoint itself.
    pub name: String,
    /// Endpoint and credentials.
    pub origin: BTreeMap<String, String>,
    /// Time that the daemon has for each answer.
    pub timeout: Duration,
    /// Called every now and then during a wait; its error ends the wait.
    pub watch: Watch,
}

/// Look at what may end a wait, such as a signal.
#[derive(Clone)]
pub struct Watch(Arc<dyn Fn() -> Result<()> + Send + Sync>);

impl Watch {
    /// Calls a function.
    pub fn new(look: impl Fn() -> Result<()> + Send + Sync + 'static) -> Self {
        Self(Arc::new(look))
    }
}

impl Default for Watch {
    fn default() -> Self {
        Self::new(|| Ok(()))
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

/// Time between looks during a wait: a person takes it for at once.
const LOOK: Duration = Duration::from_millis(50);

impl CheckpointPlace {
    fn place(&self) -> Place {
        Place { url: self.url.clone(), name: self.name.clone(), origin: self.origin.clone() }
    }

    /// Waits until the files of the checkpoint on this node have reached a level (`staged`,
    /// `uploaded`), or until it is visible (`published`).
    ///
    /// # Errors
    /// `Unavailable` if it is not reached within the timeout; the daemon's error if it will not be.
    pub fn wait(&self, level: Level) -> Result<()> {
        let request = Request::Await { place: self.place(), level };
        match self.ask(request)? {
            Reply::Reached => Ok(()),
            _ => Err(unexpected()),
        }
    }

    /// Returns the URL of the newest published checkpoint below the folder.
    ///
    /// # Errors
    /// The daemon's error; `Unavailable` if it does not answer within the timeout.
    pub fn latest(&self) -> Result<Option<String>> {
        match self.ask(Request::Latest(self.place()))? {
            Reply::Latest(url) => Ok(url),
            _ => Err(unexpected()),
        }
    }

    /// Returns the files of the published checkpoint.
    ///
    /// # Errors
    /// `NotFound` if nothing is published there; as [`CheckpointPlace::latest`].
    pub fn list(&self) -> Result<Published> {
        match self.ask(Request::List(self.place()))? {
            Reply::Published(published) => Ok(published),
            _ => Err(unexpected()),
        }
    }

    /// Gives the daemon this place's credentials for uploads that wait for some; returns the number
    /// of the checkpoint's files that are not in the store yet.
    ///
    /// # Errors
    /// `PermissionDenied` if this user may not save there; as [`CheckpointPlace::latest`].
    pub fn resume(&self) -> Result<u64> {
        match self.ask(Request::Resume(self.place()))? {
            Reply::Resumed { files } => Ok(files),
            _ => Err(unexpected()),
        }
    }

    /// Removes the checkpoint: what waits on this node, and what is published. With `dry_run` it
    /// only counts.
    ///
    /// # Errors
    /// `NotFound` if there is nothing of it; `Invalid` if Forebay did not publish it;
    /// `PermissionDenied` if this user may not save there.
    pub fn remove(&self, dry_run: bool) -> Result<Removed> {
        match self.ask(Request::Remove { place: self.place(), dry_run })? {
            Reply::Removed(removed) => Ok(removed),
            _ => Err(unexpected()),
        }
    }

    fn ask(&self, request: Request) -> Result<Reply> {
        let deadline = Deadline::after(self.timeout);
        let connection = self.address.connect(&deadline)?;
        connection.may_block(false)?;
        connection.put(&message::Request::Checkpoint(Box::new(request)), &deadline)?;
        take(&connection, &mut Receiver::default(), self)
    }
}

/// Waits for an answer.
fn take(
    connection: &Connection,
    receiver: &mut Receiver,
    place: &CheckpointPlace,
) -> Result<Reply> {
    let deadline = Deadline::after(place.timeout);
    loop {
        match connection.take(receiver, &deadline.or_after(LOOK)) {
            Err(error) if is_silent(&error) && !deadline.has_passed() => (place.watch.0)()?,
            Err(error) if is_silent(&error) => {
                let what = "a checkpoint's request was not served in time";
                return Err(Error::new(ErrorKind::Unavailable, what)
                    .at("url", shown(&place.url))
                    .at("seconds", place.timeout.as_secs_f64())
                    .advise(
                        "look at `forebay checkpoint ls`; if the store is slow, raise timeout= (`forebay checkpoint wait --timeout`)",
                    ));
            }
            taken => return answer(taken?),
        }
    }
}

/// A connection that carries one file, and the memory lent for it.
struct Line {
    made_in: Generation,
    connection: Connection,
    receiver: Receiver,
    lent: Lent,
    place: CheckpointPlace,
    /// Slots that may be used so far: the daemon backs more meanwhile.
    backed: usize,
    /// True while the daemon backs more.
    grows: bool,
    /// Slots that were used so far.
    begun: usize,
    /// Slots that were used, and are free again.
    free: Vec<usize>,
}

impl Drop for Line {
    fn drop(&mut self) {
        // A child that was forked meanwhile has the socket as well: the daemon would not see its
        // end, and keep the lent memory.
        if self.made_in.is_now() {
            self.connection.shut();
        }
    }
}

impl Line {
    /// Connects and begins a file; returns the daemon's first answer as well.
    fn begin(place: &CheckpointPlace, request: Request) -> Result<(Self, Reply)> {
        let deadline = Deadline::after(place.timeout);
        let connection = place.address.connect(&deadline)?;
        connection.may_block(false)?;
        connection.put(&message::Request::Checkpoint(Box::new(request)), &deadline)?;
        let mut receiver = Receiver::default();
        let reply = take(&connection, &mut receiver, place)?;
        let (Reply::Ready { memory } | Reply::Found { memory, .. }) = &reply else {
            return Err(unexpected());
        };
        let lent = Lent::map(receiver.take_descriptor()?, *memory)?;
        if (lent.len() as u64) < BLOCK {
            let what = "the daemon lends less memory than a block";
            return Err(Error::new(ErrorKind::Invalid, what).at("bytes", lent.len()));
        }
        let (place, free) = (place.clone(), Vec::new());
        let mut line = Self {
            made_in: Generation::now(),
            connection,
            receiver,
            lent,
            place,
            backed: 0,
            grows: true,
            begun: 0,
            free,
        };
        while line.backed == 0 {
            if line.hear()?.is_some() {
                return Err(unexpected());
            }
        }
        Ok((line, reply))
    }

    /// Number of blocks that the lent memory holds.
    fn slots(&self) -> usize {
        self.lent.len() / BLOCK as usize
    }

    /// Number of slots that may be used now.
    fn free_slots(&self) -> usize {
        self.free.len() + self.backed - self.begun
    }

    /// Takes a slot, if there is one.
    fn slot(&mut self) -> Option<usize> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        let is_backed = self.begun < self.backed;
        self.begun += usize::from(is_backed);
        is_backed.then(|| self.begun - 1)
    }

    fn send(&self, request: Request) -> Result<()> {
        let request = message::Request::Checkpoint(Box::new(request));
        self.connection.put(&request, &Deadline::after(self.place.timeout))
    }

    /// Waits for a message: an answer, or none if it was about the lent memory.
    fn hear(&mut self) -> Result<Option<Reply>> {
        match take(&self.connection, &mut self.receiver, &self.place)? {
            Reply::Backed { bytes, grows } => {
                self.grows = grows;
                let slots = usize::try_from(bytes / BLOCK).unwrap_or(usize::MAX);
                self.backed = slots.clamp(self.backed, self.slots());
                Ok(None)
            }
            answer => Ok(Some(answer)),
        }
    }

    /// Waits for an answer.
    fn receive(&mut self) -> Result<Reply> {
        loop {
            if let Some(answer) = self.hear()? {
                return Ok(answer);
            }
        }
    }
}

fn answer(reply: message::Reply) -> Result<Reply> {
    match reply {
        message::Reply::Checkpoint(reply) => Ok(*reply),
        message::Reply::Failed { error, .. } => Err(error),
        _ => Err(unexpected()),
    }
}
