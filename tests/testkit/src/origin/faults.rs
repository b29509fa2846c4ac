//! Rules of injected faults. They change at run time and apply to bodies already on their way.

use std::collections::{BTreeMap, BTreeSet};

use hyper::StatusCode;
use tokio::sync::watch;

#[derive(Debug, Clone, Default)]
pub(super) struct Rules {
    /// Object offset per key at which bytes stall.
    pub(super) stalls: BTreeMap<String, u64>,
    /// Body bytes after which a connection breaks, and the number of times, per key.
    pub(super) cuts: BTreeMap<String, (u64, u32)>,
    /// Number of requests that still fail, and their status.
    pub(super) fail: (u32, u16),
    /// Keys whose bodies break at their current byte.
    pub(super) broken: BTreeSet<String>,
    /// Keys that are answered with 403.
    pub(super) denied: BTreeSet<String>,
}

pub(super) struct Faults(watch::Sender<Rules>);

impl Faults {
    pub(super) fn new() -> Self {
        Self(watch::Sender::new(Rules::default()))
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut Rules)) {
        self.0.send_modify(change);
    }

    pub(super) fn watch(&self) -> watch::Receiver<Rules> {
        self.0.subscribe()
    }

    /// Returns the status to reject this request with, if any. Uses up one planned failure.
    pub(super) fn refusal(&self, key: &str) -> Option<StatusCode> {
        let mut refused = None;
        self.0.send_modify(|rules| {
            let (left, status) = &mut rules.fail;
            if *left > 0 {
                *left -= 1;
                refused = StatusCode::from_u16(*status).ok();
            } else if rules.denied.contains(key) {
                refused = Some(StatusCode::FORBIDDEN);
            }
        });
        refused
    }

    /// Returns the number of body bytes after which this GET breaks, if it does. Uses up one
    /// planned cut.
    pub(super) fn cut(&self, key: &str) -> Option<u64> {
        let mut cut = None;
        self.0.send_modify(|rules| {
            if let Some((bytes, left)) = rules.cuts.get_mut(key)
                && *left > 0
            {
                *left -= 1;
                cut = Some(*bytes);
            }
        });
        cut
    }
}
