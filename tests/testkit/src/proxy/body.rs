//! An answer's body on its way to the client: counted, changed, stalled or cut.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::TryStreamExt;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, BodyStream, StreamBody};
use hyper::body::Frame;
use s3s::StdError;

use super::Shared;
use super::forward::{Downstream, wait};
use super::rules::{Fault, Until};

/// Body of every answer.
pub(super) type Answer = UnsyncBoxBody<Bytes, StdError>;

/// Faults and counters of one body.
pub(super) struct Passage {
    pub(super) shared: Arc<Shared>,
    pub(super) downstream: Arc<Downstream>,
    pub(super) path: String,
    pub(super) faults: Vec<Fault>,
    pub(super) until: Until,
}

/// An event at a byte of a body.
enum Event {
    Break { by_reset: bool },
    Hold,
    Call(Arc<dyn Fn() + Send + Sync>),
}

struct Flow {
    passage: Passage,
    /// Events to come, the last first.
    events: Vec<(u64, Event)>,
    /// Offset from which bytes come one by one, and the interval between them.
    drip: Option<(u64, Duration)>,
    /// Offset of a byte to change.
    garbled: Option<u64>,
    /// Bytes that have passed.
    at: u64,
    /// Bytes taken from the server and not passed on yet.
    held: Bytes,
}

/// Applies the faults of `passage` to `body`.
pub(super) fn under(body: Answer, passage: Passage) -> Answer {
    let mut events: Vec<_> = passage.faults.iter().filter_map(event).collect();
    events.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
    let garbled = passage.faults.iter().find_map(|fault| match fault {
        Fault::Garble(at) => Some(*at),
        _ => None,
    });
    let drip = passage.faults.iter().find_map(|fault| match fault {
        Fault::Drip(at, every) => Some((*at, *every)),
        _ => None,
    });
    let flow = Flow { passage, events, drip, garbled, at: 0, held: Bytes::new() };
    let data = Box::pin(
        BodyStream::new(body).try_filter_map(|frame| async { Ok(frame.into_data().ok()) }),
    );
    let stream = futures::stream::try_unfold((flow, data), |(mut flow, mut data)| async move {
        loop {
            flow.happen().await?;
            if !flow.held.is_empty() {
                flow.wait_for_drop().await;
                break;
            }
            match data.try_next().await? {
                Some(next) => flow.held = next,
                None => {
                    // For hyper a body shorter than its head says has failed.
                    tokio::task::yield_now().await;
                    return Ok(None);
                }
            }
        }
        Ok::<_, StdError>(Some((Frame::data(flow.piece()), (flow, data))))
    });
    BodyExt::boxed_unsync(StreamBody::new(stream))
}

fn event(fault: &Fault) -> Option<(u64, Event)> {
    match fault {
        Fault::Reset(at) => Some((*at, Event::Break { by_reset: true })),
        Fault::Cut(at) => Some((*at, Event::Break { by_reset: false })),
        Fault::Stall(at) => Some((*at, Event::Hold)),
        Fault::CallAt(at, hook) => Some((*at, Event::Call(Arc::clone(hook)))),
        _ => None,
    }
}

impl Flow {
    /// Runs the events that are due at this byte.
    async fn happen(&mut self) -> Result<(), StdError> {
        while let Some((_, event)) = self.events.pop_if(|(at, _)| *at <= self.at) {
            match event {
                Event::Call(hook) => hook(),
                Event::Hold => {
                    let _stalled =
                        self.passage.shared.tally.present(|traffic| &mut traffic.stalled);
                    self.passage.until.changed().await;
                }
                Event::Break { by_reset } => {
                    // hyper sends its buffer when the body pauses, and drops it when the body
                    // fails.
                    tokio::task::yield_now().await;
                    if by_reset {
                        self.passage.downstream.reset_at_end();
                    }
                    return Err("the connection was broken by the test".into());
                }
            }
        }
        Ok(())
    }

    /// Waits until the next byte of a dripping body is due.
    async fn wait_for_drop(&mut self) {
        let Some((_, every)) = self.drip.filter(|(at, _)| *at <= self.at) else { return };
        tokio::select! {
            () = wait(every) => {}
            () = self.passage.until.changed() => self.drip = None,
        }
    }

    /// Takes the bytes before the next event.
    fn piece(&mut self) -> Bytes {
        let next = self.events.last().map_or(u64::MAX, |(at, _)| at - self.at);
        let next = self.drip.map_or(next, |(at, _)| next.min(at.saturating_sub(self.at).max(1)));
        // At most the held length, so it fits.
        let len = next.min(self.held.len() as u64) as usize;
        let mut piece = self.held.split_to(len);
        let garbled = self.garbled.and_then(|at| at.checked_sub(self.at));
        if let Some(at) = garbled.filter(|at| *at < len as u64) {
            let mut wrong = BytesMut::from(&piece[..]);
            wrong[at as usize] = !wrong[at as usize];
            piece = wrong.freeze();
        }
        self.at += len as u64;
        let path = self.passage.path.clone();
        let tally = &self.passage.shared.tally;
        tally.add(|traffic| *traffic.bytes.entry(path).or_default() += len as u64);
        piece
    }
}
