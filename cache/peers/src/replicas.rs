//! Second copies of staged files on other nodes: the requests and their client.
//!
//! The node that has the file asks another one to keep a copy. That one fetches the file block by
//! block, and answers once its copy is durable. It asks from time to time if the copy is needed.

use forebay_error::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::client::{Peers, json};
use crate::message::{MAX_BYTES, Reply};
use crate::peer::Failure;

/// Path of a request to keep the second copy of a file: a [`KeepFile`], answered by frames.
pub const KEEP_FILE: &str = "/peer/1/keep-file";

/// Path of bytes of a file: a [`FileBytes`], answered as ranges of shards are.
pub const FILE_BYTES: &str = "/peer/1/file-bytes";

/// Path of a question about files: [`FilesAsked`], answered by [`FileState`]s as JSON.
pub const FILE_STATES: &str = "/peer/1/file-states";

/// Maximum bytes of a [`KeepFile`]: the checksums of the largest file take 10 MiB as text.
pub const MAX_KEEP_FILE: usize = 16 << 20;

/// Maximum number of files in a question: 40 bytes of text each, in half of a request's limit.
pub const MAX_FILES_ASKED: usize = 800;

/// A request to keep the second copy of a file.
#[derive(Clone, Serialize, Deserialize)]
pub struct KeepFile {
    /// URL of the checkpoint.
    pub url: String,
    /// Record of the file, as the tier has it.
    pub record: String,
    /// Endpoint and credentials of the destination, for the case that the node is lost. The keeper
    /// holds them in memory only.
    pub origin: std::collections::BTreeMap<String, String>,
}

/// A request for bytes of a file whose second copy the asker is about to keep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileBytes {
    /// Identity of the file.
    pub id: String,
    /// First byte.
    pub start: u64,
    /// Number of bytes.
    pub len: u64,
}

impl FileBytes {
    /// Rejects a request for too much.
    ///
    /// # Errors
    /// `Invalid` with the limit.
    pub fn check(&self) -> Result<()> {
        let end = self.start.checked_add(self.len);
        match end.is_some() && self.len > 0 && self.len <= MAX_BYTES {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Invalid, "a request asks for no bytes or too many")
                .at("bytes", self.len)
                .at("limit", MAX_BYTES)),
        }
    }
}

/// A question about files whose second copies the asker keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesAsked {
    /// Identities of the files.
    pub ids: Vec<String>,
}

/// State of a file at the node that it was saved on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileState {
    /// It is on its way to the store: the copy is needed.
    OnItsWay,
    /// It is in the store, or was removed: nobody needs the copy.
    Done,
    /// It is damaged: the copy is to go to the store.
    Damaged,
    /// The node knows nothing of it.
    Unknown,
}

impl Peers {
    /// Has a member keep the second copy of a file. Returns once the copy is durable.
    ///
    /// # Errors
    /// The error of the node, or of the way to it.
    pub async fn keep_file(&self, node: &str, request: &KeepFile) -> Result<()> {
        let peer = self.member(node)?;
        let kept = async {
            let mut frames = self.frames(&peer, KEEP_FILE, request).await?;
            loop {
                match frames.next().await? {
                    Reply::Waiting => {}
                    Reply::Kept => return Ok(()),
                    Reply::Failed(error) => return Err(Failure::told(error)),
                    _ => return Err(frames.wrong("no answer about a copy")),
                }
            }
        };
        kept.await.map_err(|failure: Failure| peer.noted(failure))
    }

    /// Reads bytes of a member's file into `into`.
    ///
    /// # Errors
    /// The error of the node, or of the way to it; `Corrupt` for other bytes than it sent, or
    /// fewer than were asked for.
    pub async fn file_bytes(&self, node: &str, ask: &FileBytes, into: &mut [u8]) -> Result<()> {
        let peer = self.member(node)?;
        let wanted = into.len();
        let filled = async { self.fill(&peer, (FILE_BYTES, json(ask)?), vec![into]).await };
        let lens = filled.await.map_err(|failure| peer.noted(failure))?;
        match lens[..] == [wanted] {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Corrupt, "a node sent too few bytes of a file")
                .at("node", node)
                .at("id", &ask.id)
                .at("offset", ask.start)),
        }
    }

    /// Asks a member for the states of files, one for each.
    ///
    /// # Errors
    /// The error of the node, or of the way to it; `Invalid` for another number of answers.
    pub async fn file_states(&self, node: &str, asked: &FilesAsked) -> Result<Vec<FileState>> {
        let peer = self.member(node)?;
        let states: Vec<FileState> = self.answered(&peer, FILE_STATES, json(asked)).await?;
        match states.len() == asked.ids.len() {
            true => Ok(states),
            false => Err(Error::new(ErrorKind::Invalid, "a node's answer is malformed")
                .at("node", node)
                .at("answers", states.len())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_for_too_many_bytes_of_a_file_are_rejected() {
        let ask = |start, len| FileBytes { id: String::new(), start, len }.check();
        assert_eq!(ask(0, MAX_BYTES), Ok(()));
        for (start, len) in [(0, 0), (0, MAX_BYTES + 1), (u64::MAX, 1)] {
            assert_eq!(ask(start, len).unwrap_err().kind(), ErrorKind::Invalid);
        }
    }
}
