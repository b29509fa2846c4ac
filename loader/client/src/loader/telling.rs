//! Reports a job's progress to the daemon, for its status.
//!
//! A trainer never waits for an observer. A thread sends the reports; a report has the counts at
//! the time of sending, so one of two concurrent calls is enough.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Sender, bounded};
use forebay_error::{Doing, Result};
use forebay_wire::clock::now_ns;
use forebay_wire::fork::Generation;
use forebay_wire::message::Progress;

use super::Tally;
use crate::session::Teller;

/// Interval of progress reports to the daemon: short enough for a live screen.
const EVERY: Duration = Duration::from_secs(1);

/// A moment that has no number: nobody waits.
const NEVER: u64 = 0;

/// A thread that tells.
pub(super) struct Telling {
    word: Arc<Word>,
    /// Time of the last report, or of one about to be sent, in nanoseconds of [`now_ns`].
    told_ns: AtomicU64,
    /// Nothing once it is to end.
    asked: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    made_in: Generation,
}

/// Report and receiver.
struct Word {
    teller: Teller,
    tally: Tally,
    /// Since when the consumer waits of whose wait the daemon is to hear.
    waits_since_ns: AtomicU64,
    /// True if the daemon is to be asked what the consumer waits for.
    asks: AtomicBool,
}

impl Word {
    fn tell(&self) {
        self.teller.tell_progress(|| {
            let waiting_ns = match self.waits_since_ns.load(Ordering::Relaxed) {
                NEVER => 0,
                since => now_ns().saturating_sub(since),
            };
            Progress { waiting_ns, ..self.tally.lock().progress() }
        });
        if self.asks.swap(false, Ordering::Relaxed) {
            self.teller.ask_awaited();
        }
    }
}

impl Telling {
    /// One that tells what `tally` counts.
    ///
    /// # Errors
    /// `Unavailable` if the system refuses the thread.
    pub(super) fn new(teller: Teller, tally: Tally) -> Result<Self> {
        let (waits_since_ns, asks) = (AtomicU64::new(NEVER), AtomicBool::new(false));
        let word = Arc::new(Word { teller, tally, waits_since_ns, asks });
        let (asked, calls) = bounded(1);
        let told = word.clone();
        let thread = std::thread::Builder::new()
            .name("fb-tell".into())
            .spawn(move || calls.iter().for_each(|()| told.tell()))
            .doing("start the thread that reports progress to the daemon")?;
        Ok(Self {
            word,
            told_ns: AtomicU64::new(NEVER),
            asked: Some(asked),
            thread: Some(thread),
            made_in: Generation::now(),
        })
    }

    /// The consumer waits since then, and still does.
    pub(super) fn waits(&self, since_ns: u64) {
        self.word.waits_since_ns.store(since_ns, Ordering::Relaxed);
        self.now_and_then();
    }

    /// Has the daemon asked what the consumer waits for.
    pub(super) fn asks(&self) {
        self.word.asks.store(true, Ordering::Relaxed);
        self.soon();
    }

    /// The consumer has what it waited for.
    pub(super) fn waits_no_more(&self) {
        self.word.waits_since_ns.store(NEVER, Ordering::Relaxed);
    }

    /// Has the daemon told, unless it heard just now.
    pub(super) fn now_and_then(&self) {
        if now_ns() > self.told_ns.load(Ordering::Relaxed) + EVERY.as_nanos() as u64 {
            self.soon();
        }
    }

    /// Has the daemon told.
    pub(super) fn soon(&self) {
        self.told_ns.store(now_ns(), Ordering::Relaxed);
        if let Some(asked) = &self.asked {
            // A queued call will report this, too.
            let _ = asked.try_send(());
        }
    }

    /// Tells it here and now.
    pub(super) fn at_once(&self) {
        self.told_ns.store(now_ns(), Ordering::Relaxed);
        self.word.tell();
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        self.asked = None;
        let Some(thread) = self.thread.take() else { return };
        // A forked child has no threads to end; the parent's go on.
        if self.made_in.is_now() {
            // Panics of the thread were reported when they happened.
            let _ = thread.join();
        } else {
            std::mem::forget(thread);
        }
    }
}
