//! Shards that are what a command says: `pipe:aws s3 cp s3://bucket/000.tar -`.
//!
//! The daemon runs nothing. The job that names a command runs it, in its own process and
//! with its own rights, and writes into a pipe of the daemon's; what comes out is one stream, whose
//! length shows at its end and which cannot be asked for again from the middle.
//!
//! Nobody can say which version of what a command reads it will bring. So a copy stands for what
//! its URL means for as long as it is kept, and only for the user whose command brought it:
//! another's may say something else, or may not read it at all.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_uring::Span;
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::time::timeout;

use crate::queue::Rank;
use crate::readers::{Client, ClientReaders, Ending, Handover, Readers, Turn};
use crate::stat::{Binding, Stat};
use crate::{RangeRead, Source};

/// Longest silence of a command: as long as a trainer waits for a batch by default. A restore from
/// an archive, say, takes its time before the first byte.
const SILENCE: Duration = Duration::from_secs(300);

/// Bytes that a command may be ahead of its reader: what any process may ask of the kernel unless
/// its administrator said otherwise. With the usual 64 KiB both sides would wake for every sixteen
/// pages.
const AHEAD: usize = 1 << 20;

/// Returns the error for a command outside a job.
pub(crate) fn only_in_jobs() -> Error {
    let what = "only the job that names a command runs it";
    Error::new(ErrorKind::Invalid, what)
        .advise("run the job, or `forebay index --allow-pipe`, which caches its output, too")
}

/// The commands of one client.
pub(crate) struct Commands {
    readers: Readers,
    client: ClientReaders,
    handover: Arc<dyn Handover>,
    /// Endpoint in the cache keys of commands.
    endpoint: String,
    /// With whom what is said of one may be shared.
    scope: String,
}

impl Commands {
    /// The commands that a client runs; they take turns with what it opens.
    pub(crate) fn new(readers: Readers, client: &Client, by_client: ClientReaders) -> Self {
        Self {
            readers,
            client: by_client,
            handover: client.handover.clone(),
            endpoint: format!("pipe of user {}", client.user),
            scope: format!("pipe of {}", client.name),
        }
    }

    /// Has the client run a command.
    async fn run(&self, url: &str) -> Result<Running> {
        let (output, theirs) = pipe_with(PipeFlags::CLOEXEC).doing("make a pipe")?;
        // Only this end: commands expect to be made to wait.
        fcntl_setfl(&output, OFlags::NONBLOCK).doing("make a pipe")?;
        if let Err(error) = fcntl_setpipe_size(&output, AHEAD) {
            tracing::debug!(%error, "a command's pipe stays as it is");
        }
        let output = pipe::Receiver::from_owned_fd(output).doing("make a pipe")?;
        let ending = self.handover.run(url, theirs).await?;
        Ok(Running { output, ending, has_ended: false, said: 0 })
    }
}

#[async_trait]
impl Source for Commands {
    async fn stat(&self, _: &str) -> Result<Stat> {
        Ok(Stat::new(0, String::new(), Binding::Stream))
    }

    async fn range_read<'a>(
        &'a self,
        url: &'a str,
        _: &'a Stat,
        _: Range<u64>,
        rank: &'a Rank,
    ) -> Result<Box<dyn RangeRead + 'a>> {
        Ok(Box::new(Output { commands: self, url, rank, running: None, len: None }))
    }

    async fn turn(&self, _: &str, rank: &Rank) -> Result<Turn> {
        self.readers.turn_of(&self.client, rank).await
    }

    fn endpoint(&self) -> &str {
        &self.endpoint
    }

    fn scope(&self) -> &str {
        &self.scope
    }
}

/// A command at work; who drops it ends it.
struct Running {
    output: pipe::Receiver,
    ending: Ending,
    has_ended: bool,
    /// Bytes so far.
    said: u64,
}

impl Running {
    /// The next bytes; none once all came and the command succeeded.
    async fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        loop {
            let read = tokio::select! {
                read = timeout(SILENCE, self.output.read(into)) => read.map_err(|_| silent())?,
                // A job that is gone says so here, even if something still holds the pipe.
                ended = &mut self.ending, if !self.has_ended => {
                    ended?;
                    self.has_ended = true;
                    continue;
                }
            };
            let read = read.doing("read a command's output")?;
            self.said += read as u64;
            if read == 0 && !self.has_ended {
                timeout(SILENCE, &mut self.ending).await.map_err(|_| silent())??;
                self.has_ended = true;
            }
            return Ok(read);
        }
    }
}

/// Output of a command, from the first byte on.
struct Output<'a> {
    commands: &'a Commands,
    url: &'a str,
    /// Rank, which names the bill.
    rank: &'a Rank,
    running: Option<Running>,
    /// Set once it has said everything.
    len: Option<u64>,
}

#[async_trait]
impl RangeRead for Output<'_> {
    async fn fill(&mut self, mut into: Span) -> Result<Span> {
        let at = |error: Error| error.at("url", self.url);
        let running = match &mut self.running {
            Some(running) => running,
            None => self.running.insert(self.commands.run(self.url).await.map_err(at)?),
        };
        let mut have = 0;
        while have < into.len() && self.len.is_none() {
            match running.read(&mut into[have..]).await.map_err(at)? {
                0 => self.len = Some(running.said),
                read => {
                    have += read;
                    if let Some(bill) = self.rank.bill() {
                        bill.took(read as u64);
                    }
                }
            }
        }
        Ok(into)
    }

    fn ends_at(&self) -> Option<u64> {
        self.len
    }
}

fn silent() -> Error {
    let what = "the command is silent and does not end";
    Error::new(ErrorKind::Unavailable, what)
        .at("seconds", SILENCE.as_secs())
        .advise("run it by hand, as the job's user, to see where it hangs")
}
