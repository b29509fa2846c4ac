//! The list in force, and the state of its source.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use forebay_cluster::{Member, Ring};
use forebay_error::{Error, ErrorKind, Result};
use tokio::sync::watch;

use super::MembersReport;
use super::source::Answer;

/// List of members in force.
pub(super) struct List {
    source: String,
    own: Member,
    ring: watch::Sender<Arc<Ring>>,
    state: Mutex<State>,
}

/// State of the source; each change of it is logged once.
#[derive(Default)]
struct State {
    /// Time of the last good answer.
    since: Option<SystemTime>,
    /// Reason why the last answer does not count.
    error: Option<String>,
    left_out: usize,
    /// True if the last good list does not have this node.
    is_missing: bool,
    /// True if this node left.
    has_left: bool,
}

impl List {
    /// Returns a list without members.
    pub(super) fn new(source: String, own: Member) -> Self {
        Self { source, own, ring: watch::Sender::default(), state: Mutex::default() }
    }

    pub(super) fn ring(&self) -> Arc<Ring> {
        self.ring.borrow().clone()
    }

    pub(super) fn changed(&self) -> watch::Receiver<Arc<Ring>> {
        self.ring.subscribe()
    }

    /// Notes that this node is not listed because it left, or that it is back.
    pub(super) fn note_left(&self, has_left: bool) {
        self.state().has_left = has_left;
    }

    /// Puts an answer in force if it is good; otherwise the list in force stays.
    ///
    /// # Errors
    /// That of the answer, which is logged and reported.
    pub(super) fn take(&self, answer: Result<Answer>) -> Result<()> {
        let read = answer.and_then(|answer| {
            if answer.members.is_empty() {
                return Err(Error::new(ErrorKind::Invalid, "the member list is empty"));
            }
            Ok((Ring::new(answer.members)?, answer.left_out, answer.why))
        });
        match read {
            Ok((ring, left_out, why)) => {
                self.heard(&ring, left_out, why.as_deref());
                self.put(ring);
                Ok(())
            }
            Err(error) => {
                let error = error.at("source", &self.source);
                let text = error.to_string();
                let mut state = self.state();
                if state.error.as_ref() != Some(&text) {
                    tracing::warn!(%error, "the member list stays as it is");
                    state.error = Some(text);
                }
                Err(error)
            }
        }
    }

    /// Notes what a good answer says beside the members.
    fn heard(&self, ring: &Ring, left_out: usize, why: Option<&str>) {
        let mut state = self.state();
        if state.error.take().is_some() && state.since.is_some() {
            tracing::info!(source = self.source, "the source of the member list answers again");
        }
        state.since = Some(SystemTime::now());
        if left_out > 0 && state.left_out == 0 {
            let why = why.unwrap_or_default();
            tracing::warn!(source = self.source, left_out, why, "entries that name no member");
        }
        state.left_out = left_out;
        let is_missing = ring.member(&self.own.name).is_none();
        if is_missing && !state.is_missing && !state.has_left {
            tracing::warn!(
                source = self.source,
                name = self.own.name,
                "this node is not in the member list: it owns no shards"
            );
        }
        state.is_missing = is_missing;
    }

    fn put(&self, ring: Ring) {
        self.ring.send_if_modified(|current| {
            let differs = **current != ring;
            if differs {
                tracing::info!(
                    members = ring.members().len(),
                    before = current.members().len(),
                    "the members of the cluster changed"
                );
                *current = Arc::new(ring);
            }
            differs
        });
    }

    pub(super) fn report(&self) -> MembersReport {
        let ring = self.ring();
        let state = self.state();
        MembersReport {
            source: self.source.clone(),
            is_listed: ring.member(&self.own.name).is_some(),
            members: ring.members().to_vec(),
            is_frozen: state.error.is_some(),
            since: state.since.map(|time| humantime::format_rfc3339_seconds(time).to_string()),
            last_error: state.error.clone(),
            left_out: state.left_out,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
