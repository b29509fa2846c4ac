//! Connections that have not greeted yet: bounded in number.
//!
//! Rule: when too many wait, the one that has waited longest is closed. A client greets at once, so
//! silent connections keep nobody out.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;

/// Connections without a greeting at once: the ranks and tools of a node, all at the same moment.
const WAITING: usize = 64;

/// Connections that have not greeted yet, oldest first.
#[derive(Debug, Clone, Default)]
pub(crate) struct Greetings(Arc<Mutex<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    /// By the order in which they came; no handle until the task is known.
    connections: BTreeMap<u64, Option<AbortHandle>>,
}

/// A connection that has not greeted yet, until dropped.
#[derive(Debug)]
pub(crate) struct Greeting {
    all: Greetings,
    number: u64,
}

impl Greetings {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection.
    pub(crate) fn begin(&self) -> Greeting {
        let mut waiting = self.waiting();
        let number = waiting.next;
        waiting.next += 1;
        waiting.connections.insert(number, None);
        Greeting { all: self.clone(), number }
    }

    /// Names the task of a connection, and closes the oldest connection beyond the limit.
    pub(crate) fn serve_by(&self, number: u64, task: AbortHandle) {
        let mut waiting = self.waiting();
        // It may have greeted already.
        if let Some(handle) = waiting.connections.get_mut(&number) {
            *handle = Some(task);
        }
        if waiting.connections.len() > WAITING
            && let Some((number, Some(oldest))) = waiting.connections.pop_first()
        {
            tracing::warn!(number, limit = WAITING, "closed a connection that does not greet");
            oldest.abort();
        }
    }
}

impl Greeting {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Greeting {
    fn drop(&mut self) {
        self.all.waiting().connections.remove(&self.number);
    }
}
