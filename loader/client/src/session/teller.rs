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
        let Some(connection) = wanted.connection.clone().filter(|one| one.has_room()) else {
            return;
        };
        // If it is gone, the next one is told when it is found.
        let _ = connection.tell_progress(&wanted.progress);
        if std::mem::take(&mut wanted.owes_bad) {
            let _ = connection.tell(&wanted.bad);
        }
    }

    /// Asks it what the next batch waits for.
    pub(crate) fn ask_awaited(&self) {
        let mut wanted = self.0.wanted();
        let run = wanted.run;
        let Some(connection) = &wanted.connection else { return };
        // If it is gone, that is the reason of the wait. One that reads nothing is asked in vain.
        let is_asked = || !connection.has_room() || connection.explain(run).is_ok();
        if connection.explains() && is_asked() {
            // An earlier answer is good until the next.
            if matches!(wanted.question, Question::None) {
                wanted.question = Question::Asked;
            }
        }
    }
}
