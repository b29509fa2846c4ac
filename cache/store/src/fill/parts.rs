//! Which parts of a filling shard are in memory.
//!
//! One rule: a frame is given back as soon as it is written, compared with what its origin says of it, and
//! the indexer is [`RETAINED`] parts past it, or as many as there are when the fill lets others go first;
//! and at once when the fill fails: nobody waits for a part of a failed fill.
//!
//! A shard that is unpacked has no length before its last part is here: until then there may always be
//! one more.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::UNKNOWN;
use forebay_source::Binding;
use forebay_uring::Frozen;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::{PART_BYTES, RETAINED, WINDOW, given_up};

/// A part in memory; its place in the window is free when the last reader let go of it.
#[derive(Debug)]
pub(crate) struct Frame {
    bytes: Frozen,
    _window: OwnedSemaphorePermit,
}

/// A part, and how many bytes of the shard it holds; `None` if the shard ends before it.
pub(super) type Arrived = Option<(Arc<Frame>, usize)>;

#[derive(Debug)]
struct State {
    /// The shard's length, or [`UNKNOWN`].
    len: u64,
    /// Frames by part; `None` is a part still coming, or one given back.
    frames: Vec<Option<Arc<Frame>>>,
    /// CRC32C of each part that is where it stays.
    sums: Vec<Option<u32>>,
    /// Parts that came from the origin and are where they stay.
    landed: usize,
    /// The part that the indexer is at.
    passed: usize,
    /// The first part that it may still need, or that is retained behind it,
    indexed: usize,
    /// the first that is not compared yet,
    compared: usize,
    /// and the first that either of them may still need.
    kept_from: usize,
    failed: Option<Error>,
    /// Why a compressed shard breaks off where it does.
    broken: Option<Error>,
    /// What its origin sends is a whole that its end may prove wrong.
    sealed: bool,
    /// Nothing is being written any more.
    over: bool,
}

/// How far those are that go through the parts in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    /// The part that the indexer is at.
    pub(super) passed: usize,
    /// The first that is not compared yet.
    compared: usize,
}

impl Seen {
    /// Whether nobody needs anything before `part` any more.
    pub(super) fn is_past(self, part: u64) -> bool {
        self.passed.min(self.compared) as u64 >= part
    }
}

/// The parts of one fill.
#[derive(Debug)]
pub(crate) struct Parts {
    state: Mutex<State>,
    arrived: Condvar,
    window: Arc<Semaphore>,
    /// Told of each part that is kept, and of the end.
    changed: Notify,
}

impl State {
    fn new(len: u64) -> Self {
        let parts = match len {
            UNKNOWN => 0,
            _ => usize::try_from(len.div_ceil(PART_BYTES as u64)).unwrap_or(usize::MAX),
        };
        Self {
            len,
            frames: vec![None; parts],
            sums: vec![None; parts],
            landed: 0,
            passed: 0,
            indexed: 0,
            compared: 0,
            kept_from: 0,
            failed: None,
            broken: None,
            sealed: false,
            over: false,
        }
    }

    /// Gives back what nobody needs in memory any more.
    fn release(&mut self) {
        let upto = self.indexed.min(self.compared).min(self.frames.len());
        if upto > self.kept_from {
            let from = std::mem::replace(&mut self.kept_from, upto);
            for (frame, sum) in self.frames.iter_mut().zip(&self.sums).take(upto).skip(from) {
                if sum.is_some() {
                    *frame = None;
                }
            }
        }
    }

    /// A part; `None` while it is not there.
    fn look(&self, part: usize) -> Option<Result<Arrived>> {
        if let Some(error) = &self.failed {
            return Some(Err(error.clone()));
        }
        match self.frames.get(part) {
            Some(Some(frame)) => Some(Ok(Some((frame.clone(), self.held(part))))),
            None if self.held(part) == 0 => Some(self.broken.clone().map_or(Ok(None), Err)),
            None => None,
            Some(None) if part >= self.kept_from => None,
            Some(None) => {
                let error = Error::new(ErrorKind::Invalid, "a part was asked for twice");
                Some(Err(error.at("part", part)))
            }
        }
    }

    /// Bytes of the shard in a part.
    fn held(&self, part: usize) -> usize {
        let left = self.len.saturating_sub(part as u64 * PART_BYTES as u64);
        usize::try_from(left).map_or(PART_BYTES, |left| left.min(PART_BYTES))
    }
}

impl Parts {
    /// Of a shard that is `len` bytes long, unless only its end tells.
    pub(crate) fn new(len: u64, binding: Binding) -> Arc<Self> {
        let len = if binding == Binding::Stream { UNKNOWN } else { len };
        let state = State::new(len);
        Arc::new(Self {
            state: Mutex::new(state),
            arrived: Condvar::new(),
            window: Arc::new(Semaphore::new(WINDOW)),
            changed: Notify::new(),
        })
    }

    /// The shard's length, or [`UNKNOWN`].
    pub(crate) fn len(&self) -> u64 {
        self.lock().len
    }

    /// Nobody knows how many parts come: what their origin sends is compressed (then it is `sealed`: its end
    /// may prove all of it wrong), or ends when it ends. Said before the first arrives.
    pub(super) fn unpack(&self, sealed: bool) {
        let mut state = self.lock();
        let failed = state.failed.take();
        // What its origin says of it is said of the bytes before they are unpacked.
        *state = State { failed, sealed, compared: usize::MAX, ..State::new(UNKNOWN) };
        drop(state);
        self.arrived.notify_all();
        self.changed.notify_waiters();
    }

    /// The shard has `len` bytes; said before its last part arrives. `broken`: more would come, but for
    /// this fault of its origin's.
    pub(super) fn end_at(&self, len: u64, broken: Option<Error>) {
        let mut state = self.lock();
        (state.len, state.broken) = (len, broken);
        drop(state);
        self.arrived.notify_all();
    }

    /// Waits until one more part fits the window.
    pub(super) async fn admit(&self) -> Result<OwnedSemaphorePermit> {
        self.window.clone().acquire_owned().await.map_err(|_| given_up())
    }

    /// A place in the window, if there is one now.
    pub(super) fn try_admit(&self) -> Option<OwnedSemaphorePermit> {
        self.window.clone().try_acquire_owned().ok()
    }

    /// Publishes a part that came from its origin.
    pub(super) fn arrived(&self, part: u64, frame: Frame) {
        let part = usize::try_from(part).expect("parts are counted in usize");
        let mut state = self.lock();
        if part >= state.frames.len() {
            state.frames.resize(part + 1, None);
            state.sums.resize(part + 1, None);
        }
        if state.failed.is_none() {
            state.frames[part] = Some(Arc::new(frame));
        }
        drop(state);
        self.arrived.notify_all();
        self.changed.notify_waiters();
    }

    /// Notes that an arrived part is where it stays, and the checksum of what its origin sent.
    pub(super) fn kept(&self, part: u64, crc32c: u32) {
        let part = usize::try_from(part).expect("parts are counted in usize");
        let mut state = self.lock();
        state.sums[part] = Some(crc32c);
        if part < state.kept_from {
            state.frames[part] = None;
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Waits until the parts that `range` touches, which have arrived, can be read from where they
    /// stay, or were given up.
    pub(crate) async fn settled(&self, range: &Range<u64>) {
        let settled = |state: &State| {
            state.over
                || parts_of(range).all(|part| state.sums.get(part).is_none_or(Option::is_some))
        };
        self.until(settled).await;
    }

    /// Notes that one more part came from the origin and is kept.
    pub(super) fn add_landed(&self) {
        self.lock().landed += 1;
        self.changed.notify_waiters();
    }

    /// Waits until so many parts came from the origin and are kept; with how many there are then.
    pub(super) async fn landed(&self, parts: usize) -> usize {
        self.until(|state| state.landed >= parts).await;
        self.lock().landed
    }

    /// Waits until the fill fails.
    pub(super) async fn failed(&self) {
        self.until(|state| state.failed.is_some()).await;
    }

    async fn until(&self, come: impl Fn(&State) -> bool) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Before the look: what changes after it is heard of.
            changed.as_mut().enable();
            if come(&self.lock()) {
                return;
            }
            changed.await;
        }
    }

    /// Nothing is being written any more.
    pub(super) fn end(&self) {
        self.lock().over = true;
        self.changed.notify_waiters();
    }

    /// The checksums of the parts that are where they stay.
    pub(crate) fn sums(&self) -> Vec<Option<u32>> {
        self.lock().sums.clone()
    }

    /// Bytes of the parts that are where they stay.
    pub(crate) fn kept_bytes(&self) -> u64 {
        let state = self.lock();
        let kept = (0..).zip(&state.sums).filter(|(_, sum)| sum.is_some());
        kept.map(|(part, _)| state.held(part) as u64).sum()
    }

    /// Ends every wait with `error`, unless another came before, and gives all frames back; which it was.
    pub(crate) fn fail(&self, error: &Error) -> Error {
        let mut state = self.lock();
        let first = state.failed.get_or_insert_with(|| error.clone()).clone();
        state.frames.fill(None);
        drop(state);
        self.window.close();
        self.arrived.notify_all();
        self.changed.notify_waiters();
        first
    }

    /// The indexer is done with everything before `offset`; at the end nothing is retained.
    pub(super) fn pass(&self, offset: u64) {
        let mut state = self.lock();
        let retained = if offset >= state.len { 0 } else { RETAINED };
        let part = if offset >= state.len { u64::MAX } else { offset / PART_BYTES as u64 };
        let upto = usize::try_from(part).unwrap_or(usize::MAX).min(state.frames.len());
        state.passed = state.passed.max(upto);
        state.indexed = state.indexed.max(upto.saturating_sub(retained));
        state.release();
        drop(state);
        self.changed.notify_waiters();
    }

    /// How far the indexer and the comparison are.
    pub(super) fn seen(&self) -> Seen {
        let state = self.lock();
        Seen { passed: state.passed, compared: state.compared }
    }

    /// Waits until they are further.
    ///
    /// # Errors
    /// That the fill failed.
    pub(super) async fn gone_on(&self, before: Seen) -> Result<()> {
        let now = |state: &State| Seen { passed: state.passed, compared: state.compared };
        self.until(|state| state.failed.is_some() || now(state) != before).await;
        match self.lock().failed {
            Some(_) => Err(given_up()),
            None => Ok(()),
        }
    }

    /// Gives back every frame that is not needed for what is to come.
    pub(super) fn let_go(&self) {
        let mut state = self.lock();
        state.indexed = state.indexed.max(state.passed);
        state.release();
    }

    /// Every part before this one is what its origin says, or there is nothing to compare.
    pub(super) fn compared(&self, upto: usize) {
        let mut state = self.lock();
        state.compared = state.compared.max(upto);
        state.release();
        drop(state);
        self.arrived.notify_all();
        self.changed.notify_waiters();
    }

    /// The same as [`Parts::wait`], of the parts that are to be compared: of what is unpacked there are
    /// none.
    pub(super) async fn next_compared(&self, part: usize) -> Result<Arrived> {
        let look = |state: &State| match state.compared {
            usize::MAX => Some(Ok(None)),
            _ => state.look(part),
        };
        self.until(|state| look(state).is_some()).await;
        look(&self.lock()).unwrap_or_else(|| Err(given_up()))
    }

    /// Blocks until every part is compared.
    ///
    /// # Errors
    /// Why the fill failed, if it did.
    pub(super) fn wait_compared(&self) -> Result<()> {
        let mut state = self.lock();
        loop {
            match &state.failed {
                Some(error) => return Err(error.clone()),
                None if state.compared == usize::MAX => return Ok(()),
                None => {
                    state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Blocks until `part` is in memory, and says how many bytes of the shard it holds; `None` if the
    /// shard ends before it.
    pub(super) fn wait(&self, part: usize) -> Result<Arrived> {
        let mut state = self.lock();
        loop {
            match state.look(part) {
                Some(looked) => return looked,
                None => {
                    state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Why the shard breaks off where it does, if it does.
    pub(super) fn broken(&self) -> Result<()> {
        self.lock().broken.clone().map_or(Ok(()), Err)
    }

    /// Blocks until every part has come, giving each back at once, if their end tells more of them.
    ///
    /// # Errors
    /// Why they break off, if they do.
    pub(super) fn drain(&self) -> Result<()> {
        let mut part = match &*self.lock() {
            state if state.sealed => state.kept_from,
            _ => return Ok(()),
        };
        while self.wait(part)?.is_some() {
            part += 1;
            let mut state = self.lock();
            state.indexed = part;
            state.release();
        }
        Ok(())
    }

    /// Every frame that `range` touches, if all are in memory.
    pub(crate) fn held(&self, range: &Range<u64>) -> Option<Vec<Arc<Frame>>> {
        let state = self.lock();
        parts_of(range).map(|part| state.frames.get(part)?.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Frame {
    pub(super) fn new(bytes: Frozen, window: OwnedSemaphorePermit) -> Self {
        Self { bytes, _window: window }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes for whoever needs them longer than the place in the window.
    pub(super) fn frozen(&self) -> Frozen {
        self.bytes.clone()
    }
}

/// The parts that `range` touches.
pub(super) fn parts_of(range: &Range<u64>) -> Range<usize> {
    let part = |offset: u64| usize::try_from(offset / PART_BYTES as u64).unwrap_or(usize::MAX);
    let end = if range.is_empty() { part(range.start) } else { part(range.end - 1) + 1 };
    part(range.start)..end
}

/// Copies `range` of the shard out of the frames that hold it: the only copy of a cold sample.
pub(crate) fn copy(frames: &[Arc<Frame>], range: &Range<u64>, into: &mut [u8]) {
    let first = parts_of(range).start as u64 * PART_BYTES as u64;
    let mut at = usize::try_from(range.start - first).expect("an offset inside a part");
    let mut done = 0;
    for frame in frames {
        let len = (frame.bytes().len() - at).min(into.len() - done);
        into[done..done + len].copy_from_slice(&frame.bytes()[at..at + len]);
        done += len;
        at = 0;
    }
}
