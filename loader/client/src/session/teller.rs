//! Word of a job's consumer to its daemon.

use std::sync::Arc;

use forebay_wire::message::Progress;

use super::{Question, Shared};

/// Tells the daemon of a session how far the job's consumer came, from whatever thread.
#[derive(Debug)]
pub(crate) struct Teller(Arc<Shared>);

impl Teller {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self(shared)
    }

    /// Tells it what `progress` says now; the daemon after it hears of it, too.
    pub(crate) fn tell_progress(&self, progress: impl FnOnce() -> Progress) {
        let mut wanted = self.0.wanted();
        // Counted behind the lock: what was counted later is not told earlier.
        wanted.progress = progress();
        if let Some(connection) = wanted.connection.as_ref().filter(|one| one.has_room()) {
            // If it is gone, the next one is told when it is found.
            let _ = connection.tell_progress(&wanted.progress);
        }
    }

    /// Asks it what the next batch waits for.
    pub(crate) fn ask_awaited(&self) {
        let mut wanted = self.0.wanted();
        let run = wanted.run;
        let connection = wanted.connection.as_ref().filter(|one| one.has_room());
        let Some(connection) = connection else { return };
        // If it is gone, that is the reason of the wait.
        if connection.explains() && connection.explain(run).is_ok() {
            // An earlier answer is good until the next.
            if matches!(wanted.question, Question::None) {
                wanted.question = Question::Asked;
            }
        }
    }
}
