//! Replies about second copies of checkpoints' files.

use std::sync::{Arc, Weak};

use async_trait::async_trait;
use bytes::Bytes;
use forebay_error::{Error, ErrorKind, Result};
use forebay_peers::message::{RANGE_HEAD, Reply};
use forebay_peers::replicas::{FileBytes, FileState, FilesAsked, KeepFile, MAX_KEEP_FILE};
use forebay_shard::checksum::crc32c;
use forebay_uring::Span;
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};

use crate::answer::{
    Answers, Body, MEMORY_WAIT, Sent, alive, busy, document, frames, paced, read, read_up_to,
};

/// Files of checkpoints on this node, as far as other nodes ask for them.
#[async_trait]
pub trait Replicas: Send + Sync {
    /// Keeps the second copy of a file of the member `home`. Returns once it is durable.
    ///
    /// # Errors
    /// `Full` without room for it; those of the device and of the way to the member.
    async fn keep(&self, home: &str, request: KeepFile) -> Result<()>;

    /// Reads bytes of a file for the member that is about to keep its second copy, into the start
    /// of a span.
    ///
    /// # Errors
    /// `NotFound` for a file that this node has not, or that the member was not asked to keep.
    async fn read(&self, member: &str, asked: &FileBytes, into: Span) -> Result<Span>;

    /// Returns the states of files for the node that keeps their second copies.
    fn states(&self, asked: &FilesAsked) -> Vec<FileState>;
}

impl Answers {
    fn replicas(&self) -> Option<Arc<dyn Replicas>> {
        self.replicas.get().and_then(Weak::upgrade)
    }

    pub(crate) async fn keep_file(
        self: Arc<Self>,
        request: Request<Incoming>,
        member: &str,
    ) -> Result<Response<Body>> {
        let request: KeepFile = read_up_to(request, MAX_KEEP_FILE).await?;
        self.guard.may_keep(member, &request.url)?;
        let Some(replicas) = self.replicas() else { return Ok(busy()) };
        let member = member.to_owned();
        Ok(frames(move |frames| async move {
            let reply = match alive(&frames, replicas.keep(&member, request)).await? {
                Ok(()) => Reply::Kept,
                Err(error) => Reply::Failed(error),
            };
            frames.reply(&reply).await
        }))
    }

    pub(crate) async fn file_bytes(
        self: Arc<Self>,
        request: Request<Incoming>,
        member: &str,
    ) -> Result<Response<Body>> {
        let asked: FileBytes = read(request).await?;
        asked.check()?;
        let Some(replicas) = self.replicas() else { return Ok(busy()) };
        let len = usize::try_from(asked.len).unwrap_or(usize::MAX);
        let room = len.next_multiple_of(forebay_uring::GRANULE);
        let Ok(leased) = tokio::time::timeout(MEMORY_WAIT, self.lease(room)).await else {
            return Ok(busy());
        };
        let span = replicas.read(member, &asked, leased?).await?;
        let bytes = Sent::new(span, 0..len);
        let mut head = Vec::with_capacity(RANGE_HEAD);
        // `FileBytes::check` bounds the length.
        head.extend_from_slice(&(len as u32).to_le_bytes());
        head.extend_from_slice(&crc32c(bytes.as_ref()).to_le_bytes());
        Ok(paced(self, vec![Bytes::from(head), Bytes::from_owner(bytes)]))
    }

    pub(crate) async fn file_states(&self, request: Request<Incoming>) -> Result<Response<Body>> {
        let asked: FilesAsked = read(request).await?;
        let replicas = self
            .replicas()
            .ok_or_else(|| Error::new(ErrorKind::Unavailable, "the node is starting: ask again"))?;
        Ok(document(StatusCode::OK, &replicas.states(&asked)))
    }
}
