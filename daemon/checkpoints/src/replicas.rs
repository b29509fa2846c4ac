//! Second copies of this node's files on other nodes, made on request.
//!
//! A file whose disk is lost with its node is lost, until it is in the store. A second copy on
//! another node closes that gap. The keeper holds it until the file is in the store, and brings it
//! there itself if this node stays away.

use std::sync::Arc;

use forebay_checkpoint::{Level, Progress, Record};
use forebay_cluster::ObjectKey;
use forebay_error::{Error, ErrorKind, Result, shown};
use forebay_peers::Peers;
use forebay_peers::replicas::{FileBytes, FileState, FilesAsked, KeepFile};
use forebay_uring::Span;

use crate::registry::Tracked;
use crate::wait::is_at;
use crate::{Inner, is_on_its_way};

/// Nodes asked to keep a copy. More than three that fail at once are a fault of this node's link.
const CANDIDATES: usize = 4;

impl Inner {
    /// Has another node keep the second copy of a file. A file that is in the store needs none.
    ///
    /// # Errors
    /// `Invalid` without a cluster; the error of the last node that was asked.
    pub(crate) async fn replicate(&self, tracked: &Tracked) -> Result<()> {
        let _alone = tracked.copying.lock().await;
        let record = tracked.record();
        if is_at(&record, Level::Replicated) {
            return Ok(());
        }
        if let Progress::Failed { reason } = &record.progress {
            return Err(Error::new(ErrorKind::Corrupt, reason.clone()).at("url", &record.url));
        }
        let peers = self.peers()?;
        let request = KeepFile {
            url: record.url.clone(),
            record: as_text(&record)?,
            origin: tracked.options().into_map(),
        };
        let mut failed = None;
        for node in candidates(peers, &record) {
            tracked.let_read(&node);
            match peers.keep_file(&node, &request).await {
                Ok(()) => return self.registry.note_keeper(tracked, node).await,
                Err(error) => {
                    let (url, name) = (shown(&record.url), record.name.as_str());
                    tracing::warn!(url, name, node, %error, "a node keeps no second copy");
                    failed = Some(error);
                }
            }
        }
        Err(failed.unwrap_or_else(|| {
            Error::new(ErrorKind::Unavailable, "no other node is in the cluster")
                .at("url", &record.url)
                .advise("see `forebay cluster ls`; add a node, or wait for `uploaded`")
        }))
    }

    /// The other nodes.
    ///
    /// # Errors
    /// `Invalid` if this node is in no cluster.
    pub(crate) fn peers(&self) -> Result<&Arc<Peers>> {
        self.peers.as_ref().ok_or_else(|| {
            Error::new(ErrorKind::Invalid, "this node is in no cluster: nobody keeps a second copy")
                .advise("wait for `uploaded`, or configure a [cluster]")
        })
    }

    /// Reads bytes of a file for the node that was asked to keep its copy.
    pub(crate) async fn read_for(&self, node: &str, asked: &FileBytes, into: Span) -> Result<Span> {
        let file = asked.id.parse().ok().and_then(|id| self.registry.get(id));
        let none = || {
            Error::new(ErrorKind::NotFound, "no file of this node was to be copied there")
                .at("id", &asked.id)
                .at("node", node)
        };
        let tracked = file.filter(|file| file.may_read(node)).ok_or_else(none)?;
        let len = usize::try_from(asked.len).unwrap_or(usize::MAX);
        tracked.file.read(asked.start, into, len).await
    }

    /// States of files for a node that keeps their copies.
    pub(crate) fn states_of(&self, asked: &FilesAsked) -> Vec<FileState> {
        let state = |id: &String| {
            let Ok(id) = id.parse() else { return FileState::Unknown };
            match self.registry.get(id) {
                Some(file) => state(&file.record()),
                None if self.registry.had(id) => FileState::Done,
                None => FileState::Unknown,
            }
        };
        asked.ids.iter().map(state).collect()
    }
}

fn state(record: &Record) -> FileState {
    match &record.progress {
        Progress::Failed { .. } => FileState::Damaged,
        _ if is_on_its_way(record) => FileState::OnItsWay,
        _ => FileState::Done,
    }
}

/// Returns the record as the keeper gets it.
fn as_text(record: &Record) -> Result<String> {
    let record = Record { progress: Progress::Staged, keeper: None, ..record.clone() };
    String::from_utf8(record.encode()?)
        .map_err(|_| Error::new(ErrorKind::Invalid, "a record is no text").at("url", &record.url))
}

/// Nodes that may keep the copy of a file, in an order that spreads files over the cluster.
fn candidates(peers: &Peers, record: &Record) -> Vec<String> {
    let ring = peers.ring();
    let key = ObjectKey::new(&record.url, &record.id.to_string());
    let all = ring.candidates(key, ring.members().len());
    let others = all.into_iter().filter(|member| member.name != peers.own());
    others.take(CANDIDATES).map(|member| member.name.clone()).collect()
}
