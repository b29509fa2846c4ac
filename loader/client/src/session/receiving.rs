//! The receiving thread of a session: batches of one daemon after another.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crossbeam_channel::Sender;
use forebay_error::{Error, ErrorKind, Result};
use forebay_wire::clock::now_ns;
use forebay_wire::frame::Receiver;
use forebay_wire::message::{self, Progress, Reply};

use super::maps::Maps;
use super::{Question, RawBatch, Rest, Shared, Wanted, register};
use crate::connection::Connection;
use crate::deadline::{Deadline, TIMEOUT_MAX};
use crate::outage::Outage;

/// Daemons whose batches may wait in the queue: that of the present, and those lost while the
/// consumer paused.
const QUEUED_DAEMONS: usize = 4;

/// The receiving thread: daemon after daemon until the session closes or none is to be had.
pub(super) fn receive(shared: &Shared, first: Arc<Connection>, batches: &Sender<RawBatch>) {
    let (mut connection, mut outage) = (first, Outage::default());
    loop {
        let connected = Instant::now();
        let Some(loss) = receive_from(shared, &connection, batches) else { return };
        let Loss { error: lost, is_told, has_delivered } = loss;
        connection.shut();
        {
            let mut wanted = shared.wanted();
            wanted.connection = None;
            wanted.question = Question::None;
            wanted.lost = Some(lost.clone());
            if wanted.is_ahead {
                // No other daemon knows which versions it has.
                (wanted.rest, wanted.has_failed) = (None, true);
            }
            wanted.refuse_if_over();
        }
        shared.noted.notify_all();
        tracing::warn!(error = %lost, "lost the daemon; looking for another");
        let (closing, timeout) = (&shared.closing, shared.config.timeout);
        // A consumer that takes nothing needs no other daemon, and its batches keep slabs mapped.
        let most = QUEUED_DAEMONS * shared.config.open.prefetch as usize;
        let has_place = || Ok((batches.len() <= most).then_some(()));
        if closing.or_after(TIMEOUT_MAX).retry(has_place).is_err() {
            // The loader closes.
            return;
        }
        let limit = outage.begin(connected, has_delivered, closing, timeout);
        let next = match limit {
            // The loader closes.
            Err(_) => return,
            Ok(_) if is_told && is_lasting(&lost) => Err(lost),
            Ok(limit) => reconnect(shared, &limit, &lost),
        };
        match next {
            Ok(Some(next)) => connection = next,
            Ok(None) => return,
            Err(error) => {
                // Set once: this thread ends here.
                let _ = shared.lost.set(error.clone());
                shared.noted.notify_all();
                let run = shared.wanted().run;
                shared.ended(run, true);
                // Nobody listens any more: the session is being dropped.
                let _ = batches.send(RawBatch::Failed { run, error });
                return;
            }
        }
    }
}

impl Wanted {
    /// Records the arrival of a batch; returns false if it belongs to an earlier run.
    fn receive(&mut self, batch: &message::Batch) -> bool {
        if batch.run != self.run {
            return false;
        }
        self.question = Question::None;
        match &mut self.rest {
            Some(Rest::Play(begin)) => begin.batch = batch.index.saturating_add(begin.step),
            Some(Rest::Share) => self.leased.as_mut().expect("set with the run").receive(batch),
            rest => *rest = None,
        }
        true
    }
}

/// Loss of a daemon.
struct Loss {
    error: Error,
    /// True if the error is the last word of the daemon.
    is_told: bool,
    /// True if something came from it before.
    has_delivered: bool,
}

/// Receives until the daemon is lost or nobody wants batches (`None`).
fn receive_from(
    shared: &Shared,
    connection: &Arc<Connection>,
    batches: &Sender<RawBatch>,
) -> Option<Loss> {
    let mut receiver = Receiver::default();
    let mut maps = Maps::default();
    let (mut told, mut has_delivered) = (None, false);
    loop {
        let reply = match connection.receive(&mut receiver) {
            Ok(reply) => reply,
            Err(_) if shared.closing.is_closed() => return None,
            Err(error) => {
                let is_told = told.is_some();
                return Some(Loss { error: told.unwrap_or(error), is_told, has_delivered });
            }
        };
        // The last word of a daemon that ends the connection.
        told = match &reply {
            Reply::Failed { run: None, error } => Some(error.clone()),
            _ => None,
        };
        let is_memory = matches!(reply, Reply::Slab { .. } | Reply::Memory { .. });
        has_delivered |= told.is_none() && !is_memory;
        let raw = match reply {
            reply @ (Reply::Slab { .. } | Reply::Memory { .. }) => {
                match maps.add(&reply, &mut receiver, shared.config.open.prefetch) {
                    Ok(()) => continue,
                    Err(error) => {
                        if matches!(reply, Reply::Memory { .. }) {
                            shared.borrow_no_more(&error);
                        }
                        return Some(Loss { error, is_told: false, has_delivered });
                    }
                }
            }
            reply @ (Reply::Batch(_) | Reply::Placed { .. } | Reply::Lent { .. }) => {
                let (batch, offsets, lease) = match maps.lease(reply, connection) {
                    Ok(leased) => leased,
                    Err(error) => return Some(Loss { error, is_told: false, has_delivered }),
                };
                if !shared.wanted().receive(&batch) {
                    continue;
                }
                RawBatch::Batch { batch, offsets, lease: Arc::new(lease), arrived_ns: now_ns() }
            }
            Reply::End(end) => {
                shared.ended(end.run, false);
                RawBatch::End(end)
            }
            Reply::Failed { run: Some(run), error } => {
                shared.ended(run, true);
                RawBatch::Failed { run, error }
            }
            Reply::Locate { shard } => {
                shared.placing.iter().for_each(|placing| placing.ask(connection, shard));
                continue;
            }
            other => {
                shared.told(other);
                continue;
            }
        };
        if batches.send(raw).is_err() {
            return None;
        }
    }
}

/// Finds another daemon within the limit of the outage and resumes the run there; `None` if the
/// session closes meanwhile.
fn reconnect(
    shared: &Shared,
    deadline: &Deadline,
    lost: &Error,
) -> Result<Option<Arc<Connection>>> {
    if deadline.has_passed() {
        // Others took the job, and were gone again.
        return Err(gone(shared, ErrorKind::Unavailable, Some(lost)));
    }
    let mut last = None;
    let asks = (shared.trace.is_some(), shared.borrows.load(Ordering::Relaxed));
    let found = deadline.retry(|| match register(&shared.config, asks, deadline) {
        Ok((connection, _)) => Ok(Some(connection)),
        Err(error) if is_lasting(&error) => Err(error),
        Err(error) => {
            shared.wanted().lost = Some(error.clone());
            last = Some(error);
            Ok(None)
        }
    });
    let error = match found {
        _ if shared.closing.is_closed() => return Ok(None),
        Ok(Some(connection)) => match resume(shared, connection) {
            Ok(resumed) => return Ok(resumed),
            Err(error) => Some(error),
        },
        Ok(None) => last,
        Err(error) => Some(error),
    };
    let kind = error.as_ref().map_or(ErrorKind::Unavailable, Error::kind);
    Err(gone(shared, kind, error.as_ref()))
}

/// Returns the error of an outage that lasts too long.
fn gone(shared: &Shared, kind: ErrorKind, last: Option<&Error>) -> Error {
    let gone = Error::new(kind, "the daemon has ended and no other replaced it")
        .at("waited_for", "daemon")
        .at("reason", "lost");
    last.into_iter()
        .fold(gone, |gone, error| gone.at("last", error))
        .at("timeout_s", shared.config.timeout.as_secs())
        .advise("read its log, start it again, and resume from the last state_dict()")
}

/// Returns true if another daemon would give the same error.
fn is_lasting(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Invalid | ErrorKind::PermissionDenied | ErrorKind::Full)
}

/// Asks the next daemon for what is left of the run; `None` if the session closes.
///
/// # Errors
/// `Invalid` if the daemon's release knows no such run.
fn resume(shared: &Shared, connection: Arc<Connection>) -> Result<Option<Arc<Connection>>> {
    let mut wanted = shared.wanted();
    if shared.closing.is_closed() {
        return Ok(None);
    }
    match wanted.ask(&connection) {
        Err(error) if error.kind() == ErrorKind::Invalid => return Err(error),
        // If this daemon is gone, too, the next receive says so.
        _ => {}
    }
    wanted.reconnects += 1;
    wanted.connection = Some(connection.clone());
    wanted.lost = None;
    if !wanted.bad.counts.is_empty() {
        let _ = connection.tell(&wanted.bad);
    }
    if wanted.progress != Progress::default() {
        let _ = connection.tell_progress(&wanted.progress);
    }
    Ok(Some(connection))
}
