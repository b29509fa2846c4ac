//! Consecutive bytes of one version of a shard, over as many replies as it takes.
//!
//! A reply that breaks off is resumed at the byte. One that is late gets a second request
//! beside it for what is missing; once that one answers, whichever is behind is dropped. One that
//! never falls silent but sends next to nothing is given up, and asked for again. One that is not
//! read rests, and may lose its place to others.

use std::ops::Range;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::{Buf, Bytes};
use forebay_error::{Error, ErrorKind, Result};
use forebay_uring::Span;

use super::Object;
use super::attempts::{Attempts, Failed};
use super::link::{Hedge, Rest};
use super::reply::Reply;
use crate::RangeRead;
use crate::queue::{QueuePermit, Rank};
use crate::stat::{Binding, Stat};

/// A stretch of an object.
pub(super) struct ObjectRead {
    object: Object,
    stat: Stat,
    /// Bytes not delivered yet.
    left: Range<u64>,
    rank: Rank,
    attempts: Attempts,
    /// Taken from a reply, and not given out yet.
    held: Bytes,
    stage: Stage,
    place: Option<QueuePermit>,
    /// Keeps stage and place between two reads.
    rest: Option<Rest>,
    floor: Floor,
    /// True if its bytes were paid for, where they are limited.
    paid: bool,
    /// End of a stream without length, once it is there.
    end: Option<u64>,
}

/// Bytes a second below which a reply is given up: a part would take a quarter of an hour, longer
/// than any job waits.
const SLOWEST: u64 = 4096;

/// Speed of a reply, over [`crate::Limits::read_timeout`] at a time.
#[derive(Debug, Default)]
struct Floor {
    /// Time waited for bytes; none before the first.
    waited: Option<Duration>,
    bytes: u64,
}

impl Floor {
    /// Notes bytes that took this time. Returns the bytes a second if they are too few.
    fn note(&mut self, bytes: usize, took: Duration, over: Duration) -> Result<(), u64> {
        // The wait for the first byte has its own limit.
        let Some(waited) = &mut self.waited else {
            self.waited = Some(Duration::ZERO);
            return Ok(());
        };
        *waited += took;
        self.bytes += bytes as u64;
        if *waited < over {
            return Ok(());
        }
        let speed = (self.bytes as f64 / waited.as_secs_f64()) as u64;
        *self = Self { waited: Some(Duration::ZERO), bytes: 0 };
        if speed < SLOWEST { Err(speed) } else { Ok(()) }
    }
}

/// A request that is not read at present, and its place.
pub(super) struct Paused {
    stage: Stage,
    place: QueuePermit,
    rank: Rank,
}

impl Paused {
    /// Returns its urgency: smaller goes first.
    pub(super) fn level(&self) -> u64 {
        self.rank.level()
    }

    /// Ends it, and gives its place back.
    pub(super) fn abandon(self) {
        // The time of a reply that was not read says nothing of the endpoint.
        match self.stage {
            Stage::One { reply, .. } => reply.abandon(),
            Stage::Two { first, second, .. } => {
                first.into_iter().chain([second]).for_each(Reply::abandon);
            }
            Stage::Idle => {}
        }
    }
}

/// State of the request.
enum Stage {
    /// Nothing.
    Idle,
    /// A reply, when to look whether it is late, and how many of its bytes are here already.
    One { reply: Reply, look: Option<Instant>, skip: u64 },
    /// A second reply beside the first, which may have failed since; the first was at `from` then.
    Two { first: Option<Reply>, second: Reply, hedge: Hedge, from: u64 },
}

/// Next step.
enum Next {
    First(Result<Bytes, Failed>),
    Second(Result<Bytes, Failed>),
    Look,
}

impl Stage {
    async fn next(&mut self) -> Next {
        match self {
            // Asked for by nobody: there is something under way whenever something is waited for.
            Self::Idle => Next::Look,
            Self::One { reply, look: None, .. } => Next::First(reply.chunk().await),
            Self::One { reply, look: Some(look), .. } => {
                match tokio::time::timeout_at((*look).into(), reply.chunk()).await {
                    Ok(chunk) => Next::First(chunk),
                    Err(_) => Next::Look,
                }
            }
            Self::Two { first: Some(first), second, .. } => tokio::select! {
                biased;
                chunk = first.chunk() => Next::First(chunk),
                chunk = second.chunk() => Next::Second(chunk),
            },
            Self::Two { first: None, second, .. } => Next::Second(second.chunk().await),
        }
    }
}

impl ObjectRead {
    pub(super) fn new(object: Object, stat: Stat, left: Range<u64>, rank: Rank) -> Self {
        let is_stream = stat.binding == Binding::Stream;
        let left = if is_stream { left.start..u64::MAX } else { left };
        let attempts = Attempts::new(object.limits());
        let (held, stage, place, rest) = (Bytes::new(), Stage::Idle, None, None);
        // The bytes of a stream are paid for as they come.
        let (floor, paid, end) = (Floor::default(), is_stream, None);
        Self { object, stat, left, rank, attempts, held, stage, place, rest, floor, paid, end }
    }

    /// The same, whose first reply is there already.
    pub(super) fn begun(mut self, reply: Reply, place: QueuePermit) -> Self {
        self.paid = true;
        // Any object can be asked for again from the first byte on.
        self.rest(self.watch(reply), place);
        self
    }

    /// Lets a request rest until the next read.
    fn rest(&mut self, stage: Stage, place: QueuePermit) {
        let rank = self.rank.clone();
        self.rest = Some(self.object.link().rest(Paused { stage, place, rank }));
    }

    /// Takes the reply and its place back, as far as they are there.
    fn resume(&mut self) {
        let Some(rest) = self.rest.take() else { return };
        match rest.end() {
            Some(Paused { stage, place, .. }) => (self.stage, self.place) = (stage, Some(place)),
            // Losing the place is no failure.
            None => self.attempts = Attempts::new(self.object.limits()),
        }
    }

    /// Ends the request if all came; else it rests until the next read.
    fn pause(&mut self) {
        let stage = std::mem::replace(&mut self.stage, Stage::Idle);
        let Some(place) = self.place.take() else { return };
        if self.left.is_empty() || self.end.is_some() {
            return;
        }
        match self.stat.binding {
            Binding::Strong | Binding::Weak => self.rest(stage, place),
            // Only all of it can be asked for again.
            Binding::Sequential | Binding::Stream => {
                (self.stage, self.place) = (stage, Some(place));
            }
        }
    }

    /// Returns the next bytes of the object, at most `room`; none at the end of a stream.
    async fn some(&mut self, room: usize) -> Result<Bytes, Failed> {
        while self.held.is_empty() {
            if matches!(self.stage, Stage::Idle) {
                if !std::mem::replace(&mut self.paid, true) {
                    self.object.link().pay(self.left.end - self.left.start).await;
                }
                if self.place.is_none() {
                    let place = self.object.link().place(&self.rank).await;
                    self.place = Some(place.map_err(Failed::for_good)?);
                }
                self.stage = self.watch(self.ask());
                self.floor = Floor::default();
            }
            let since = Instant::now();
            let next = self.stage.next().await;
            let took = since.elapsed();
            match next {
                Next::First(Ok(chunk)) if chunk.is_empty() => break,
                Next::First(Ok(chunk)) => self.take(chunk),
                Next::First(Err(failed)) => match &mut self.stage {
                    Stage::Two { first, .. } => *first = None,
                    _ => return Err(failed),
                },
                Next::Second(Ok(chunk)) => self.second_answered(chunk),
                Next::Second(Err(failed)) => self.second_failed(failed)?,
                Next::Look => self.look(),
            }
            self.check_speed(took)?;
        }
        Ok(self.held.split_to(self.held.len().min(room)))
    }

    /// Gives up a reply that sends next to nothing.
    fn check_speed(&mut self, took: Duration) -> Result<(), Failed> {
        let over = self.object.limits().read_timeout;
        if self.held.is_empty() && self.floor.waited.is_none() {
            return Ok(());
        }
        self.floor.note(self.held.len(), took, over).map_err(|speed| {
            self.held.clear();
            let error = Error::new(ErrorKind::Unavailable, "the store sends next to nothing");
            let error = error.at("url", self.object.url()).at("bytes_per_second", speed);
            Failed::for_now(error.advise("check the store and the network to it"))
        })
    }

    /// A request for what is left.
    fn ask(&self) -> Reply {
        if let Some(bill) = self.rank.bill() {
            bill.asked();
        }
        let (object, stat) = (self.object.clone(), self.stat.clone());
        Reply::ask(object, stat, self.left.clone(), self.attempts.deadline())
    }

    /// A first reply, and when to look after it.
    fn watch(&self, reply: Reply) -> Stage {
        let look = match self.stat.binding {
            Binding::Strong | Binding::Weak => Some(self.late(&reply).unwrap_or_else(next_look)),
            // An object that cannot be read in part is not requested twice.
            Binding::Sequential | Binding::Stream => None,
        };
        Stage::One { reply, look, skip: 0 }
    }

    /// Returns the time at which a reply counts as late, if that is known by now. One of which
    /// nothing came is late once its first byte is.
    fn late(&self, reply: &Reply) -> Option<Instant> {
        let due = if reply.has_begun() { reply.whole() } else { 0 };
        let late = self.object.link().late_after(due);
        late.map(|late| reply.asked() + late)
    }

    /// Time at which a reply counts as late, whatever is usual: a second request still has the time
    /// to show if the first is at fault.
    fn late_at_most(&self, reply: &Reply) -> Instant {
        let limits = self.object.limits();
        reply.asked() + (limits.read_timeout / 2).max(limits.late)
    }

    fn take(&mut self, mut chunk: Bytes) {
        if let Stage::One { skip, .. } = &mut self.stage {
            let here = (*skip).min(chunk.len() as u64);
            *skip -= here;
            // At most the chunk's length, as just compared.
            chunk.advance(here as usize);
        }
        self.held = chunk;
    }

    /// Asks a second time for what is missing, if the reply is late and that much may come twice.
    fn look(&mut self) {
        let stage = std::mem::replace(&mut self.stage, Stage::Idle);
        let Stage::One { reply: first, skip, .. } = stage else { return };
        let now = Instant::now();
        let look = match self.late(&first) {
            None if now < self.late_at_most(&first) => Some(next_look()),
            Some(late) if late > now => Some(late),
            None | Some(_) => None,
        };
        let missing = self.left.end - self.left.start;
        let hedge = look.is_none().then(|| self.object.link().hedge(missing)).flatten();
        self.stage = match hedge {
            None => {
                // No more may come twice now. One that is silent is looked at again.
                let look = look.or_else(|| (!first.has_begun()).then(next_look));
                Stage::One { reply: first, look, skip }
            }
            Some(hedge) => {
                let (first, second, from) = (Some(first), self.ask(), self.left.start);
                Stage::Two { first, second, hedge, from }
            }
        };
    }

    /// The second one has an answer: whichever is behind now goes.
    fn second_answered(&mut self, chunk: Bytes) {
        let stage = std::mem::replace(&mut self.stage, Stage::Idle);
        let Stage::Two { first, second, hedge, from } = stage else { return };
        let came = self.left.start - from;
        match first {
            Some(reply) if came > chunk.len() as u64 => {
                // The first one woke up, and is ahead.
                hedge.twice(chunk.len() as u64);
                self.stage = Stage::One { reply, look: None, skip: 0 };
            }
            _ => {
                hedge.twice(came);
                self.stage = Stage::One { reply: second, look: None, skip: came };
                self.take(chunk);
            }
        }
    }

    fn second_failed(&mut self, failed: Failed) -> Result<(), Failed> {
        match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Two { first: Some(reply), .. } => {
                tracing::debug!(error = %failed.error, "a second request failed");
                self.stage = Stage::One { reply, look: None, skip: 0 };
                Ok(())
            }
            _ => Err(failed),
        }
    }

    /// Waits for the next attempt.
    async fn again(&mut self, failed: Failed) -> Result<()> {
        (self.stage, self.place) = (Stage::Idle, None);
        self.attempts.again(failed, self.object.link()).await
    }
}

/// Interval between checks for a late reply while the usual time is unknown.
const UNKNOWN: Duration = Duration::from_millis(250);

fn next_look() -> Instant {
    Instant::now() + UNKNOWN
}

#[async_trait]
impl RangeRead for ObjectRead {
    async fn fill(&mut self, mut into: Span) -> Result<Span> {
        self.resume();
        let left = self.left.end - self.left.start;
        let len = usize::try_from(left).map_or(into.len(), |left| left.min(into.len()));
        let mut filled = 0;
        if self.stat.binding == Binding::Stream && self.end.is_none() {
            self.object.link().pay(len as u64).await;
        }
        while filled < len && self.end.is_none() {
            match self.some(len - filled).await {
                Ok(bytes) if bytes.is_empty() => self.end = Some(self.left.start),
                Ok(bytes) => {
                    into[filled..filled + bytes.len()].copy_from_slice(&bytes);
                    filled += bytes.len();
                    self.left.start += bytes.len() as u64;
                    self.attempts.got(bytes.len());
                    self.rank.note_received(bytes.len() as u64);
                }
                Err(failed) => self.again(failed).await?,
            }
        }
        self.pause();
        Ok(into)
    }

    fn ends_at(&self) -> Option<u64> {
        self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floor_rejects_next_to_nothing_and_ignores_the_first_wait() {
        let (second, over) = (Duration::from_secs(1), Duration::from_secs(30));
        let mut floor = Floor::default();
        floor.note(1, over, over).unwrap();
        for _ in 1..30 {
            floor.note(256, second, over).unwrap();
        }
        assert_eq!(floor.note(256, second, over), Err(256));
        for _ in 0..60 {
            floor.note(SLOWEST as usize, second, over).unwrap();
        }
    }
}
