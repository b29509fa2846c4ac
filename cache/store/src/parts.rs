//! Parts of an arriving shard that are in memory.
//!
//! A frame is released as soon as it is written, compared with the origin's checksum, and
//! [`RETAINED`] parts behind the indexer, or any number if the fill is paused. If the fill fails,
//! all frames are released at once: nobody waits for a part of a failed fill.
//!
//! The length of an unpacked shard is unknown until its last part is here.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::UNKNOWN;
use forebay_source::Binding;
use forebay_uring::Frozen;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::held::HeldBytes;
use crate::sizes::{PART_BYTES, RETAINED, WINDOW};

/// A part in memory. Its place in the window comes free when the last reader drops it.
#[derive(Debug)]
pub(crate) struct Frame {
    bytes: Frozen,
    _window: OwnedSemaphorePermit,
}

/// A part, and the bytes of the shard in it; `None` if the shard ends before it.
pub(crate) type Arrived = Option<(Arc<Frame>, usize)>;

#[derive(Debug)]
struct PartsState {
    /// Length of the shard, or [`UNKNOWN`].
    len: u64,
    /// Frames by part; `None` if the part is still coming or was released.
    frames: Vec<Option<Arc<Frame>>>,
    /// CRC32C of each stored part.
    sums: Vec<Option<u32>>,
    /// Number of stored parts that came from the origin.
    landed: usize,
    /// The part that the indexer is at.
    passed: usize,
    /// First part that the indexer may still need, or that is retained behind it,
    indexed: usize,
    /// first part that is not compared yet,
    compared: usize,
    /// and first part that either of them may still need.
    kept_from: usize,
    failed: Option<Error>,
    /// Error at which a compressed shard ends early.
    broken: Option<Error>,
    /// True if the end of the origin's bytes may prove all of them wrong.
    sealed: bool,
    /// True once nothing is being written any more.
    over: bool,
}

/// Progress of the indexer and of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PartsProgress {
    /// The part that the indexer is at.
    pub(crate) passed: usize,
    /// First part that is not compared yet.
    compared: usize,
}

impl PartsProgress {
    /// Returns true if both have passed all parts before `part`.
    pub(crate) fn is_past(self, part: u64) -> bool {
        self.passed.min(self.compared) as u64 >= part
    }
}

/// Parts of one fill.
#[derive(Debug)]
pub(crate) struct Parts {
    state: Mutex<PartsState>,
    arrived: Condvar,
    window: Arc<Semaphore>,
    /// Notified of each stored part, and of the end.
    changed: Notify,
}

impl PartsState {
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

    /// Releases frames that are no longer needed.
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

    /// Looks for a part; `None` while it is missing.
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
                let error = Error::new(ErrorKind::Invalid, "a part was requested twice");
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
    /// Creates the parts of a shard of `len` bytes; the length of a stream is unknown.
    pub(crate) fn new(len: u64, binding: Binding) -> Arc<Self> {
        let len = if binding == Binding::Stream { UNKNOWN } else { len };
        let state = PartsState::new(len);
        Arc::new(Self {
            state: Mutex::new(state),
            arrived: Condvar::new(),
            window: Arc::new(Semaphore::new(WINDOW)),
            changed: Notify::new(),
        })
    }

    /// Length of the shard, or [`UNKNOWN`].
    pub(crate) fn len(&self) -> u64 {
        self.lock().len
    }

    /// Starts anew with an unknown number of parts: the origin's bytes are compressed, or a stream.
    /// Called before the first part arrives. `sealed`: the end of the bytes may prove all of them
    /// wrong.
    pub(crate) fn unpack(&self, sealed: bool) {
        let mut state = self.lock();
        let failed = state.failed.take();
        // The origin's checksum is of the packed bytes.
        *state = PartsState { failed, sealed, compared: usize::MAX, ..PartsState::new(UNKNOWN) };
        drop(state);
        self.arrived.notify_all();
        self.changed.notify_waiters();
    }

    /// Sets the length of the shard, before its last part arrives. `broken`: the error that ends it
    /// early.
    pub(crate) fn end_at(&self, len: u64, broken: Option<Error>) {
        let mut state = self.lock();
        (state.len, state.broken) = (len, broken);
        drop(state);
        self.arrived.notify_all();
    }

    /// Waits until one more part fits the window.
    pub(crate) async fn admit(&self) -> Result<OwnedSemaphorePermit> {
        self.window.clone().acquire_owned().await.map_err(|_| abandoned())
    }

    /// Takes a place in the window, if one is free.
    pub(crate) fn try_admit(&self) -> Option<OwnedSemaphorePermit> {
        self.window.clone().try_acquire_owned().ok()
    }

    /// Publishes a part that came from the origin.
    pub(crate) fn arrived(&self, part: u64, frame: Frame) {
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

    /// Notes that a part is stored, and the checksum of its bytes.
    pub(crate) fn note_stored(&self, part: u64, crc32c: u32) {
        let part = usize::try_from(part).expect("parts are counted in usize");
        let mut state = self.lock();
        state.sums[part] = Some(crc32c);
        if part < state.kept_from {
            state.frames[part] = None;
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Waits until the parts in `range`, which have arrived, are stored or abandoned.
    pub(crate) async fn wait_stored(&self, range: &Range<u64>) {
        let settled = |state: &PartsState| {
            state.over
                || parts_of(range).all(|part| state.sums.get(part).is_none_or(Option::is_some))
        };
        self.until(settled).await;
    }

    /// Forgets the parts from the first missing one on, and returns its number: they will be
    /// requested again. Nothing is being written.
    pub(crate) fn retract(&self) -> u64 {
        let mut state = self.lock();
        let is_missing =
            |(frame, sum): (&Option<Arc<Frame>>, &Option<u32>)| frame.is_none() && sum.is_none();
        let first = state.frames.iter().zip(&state.sums).position(is_missing);
        let first = first.unwrap_or(state.frames.len());
        state.frames[first..].fill(None);
        let forgotten = state.sums[first..].iter_mut().filter_map(Option::take).count();
        // Parts that an earlier fill left here were not counted.
        state.landed = state.landed.saturating_sub(forgotten);
        first as u64
    }

    /// Counts a stored part that came from the origin.
    pub(crate) fn add_landed(&self) {
        self.lock().landed += 1;
        self.changed.notify_waiters();
    }

    /// Waits until that many parts from the origin are stored. Returns their current number.
    pub(crate) async fn wait_landed(&self, parts: usize) -> usize {
        self.until(|state| state.landed >= parts).await;
        self.lock().landed
    }

    /// Waits until the fill fails.
    pub(crate) async fn failed(&self) {
        self.until(|state| state.failed.is_some()).await;
    }

    async fn until(&self, come: impl Fn(&PartsState) -> bool) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Enabled before the check: later changes are not missed.
            changed.as_mut().enable();
            if come(&self.lock()) {
                return;
            }
            changed.await;
        }
    }

    /// Notes that nothing is being written any more.
    pub(crate) fn end(&self) {
        self.lock().over = true;
        self.changed.notify_waiters();
    }

    /// Checksums of the stored parts.
    pub(crate) fn sums(&self) -> Vec<Option<u32>> {
        self.lock().sums.clone()
    }

    /// Bytes of the stored parts.
    pub(crate) fn kept_bytes(&self) -> u64 {
        let state = self.lock();
        let kept = (0..).zip(&state.sums).filter(|(_, sum)| sum.is_some());
        kept.map(|(part, _)| state.held(part) as u64).sum()
    }

    /// Ends every wait with `error`, unless an earlier one came, and releases all frames. Returns
    /// the error that counts.
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

    /// Moves the indexer past everything before `offset`. At the end of the shard nothing is
    /// retained.
    pub(crate) fn move_indexer(&self, offset: u64) {
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

    /// Progress of the indexer and of the comparison.
    pub(crate) fn progress(&self) -> PartsProgress {
        let state = self.lock();
        PartsProgress { passed: state.passed, compared: state.compared }
    }

    /// Waits until one of them moves.
    ///
    /// # Errors
    /// If the fill fails.
    pub(crate) async fn wait_for_progress(&self, before: PartsProgress) -> Result<()> {
        let now =
            |state: &PartsState| PartsProgress { passed: state.passed, compared: state.compared };
        self.until(|state| state.failed.is_some() || now(state) != before).await;
        match self.lock().failed {
            Some(_) => Err(abandoned()),
            None => Ok(()),
        }
    }

    /// Releases every frame that the rest of the fill does not need.
    pub(crate) fn release_passed(&self) {
        let mut state = self.lock();
        state.indexed = state.indexed.max(state.passed);
        state.release();
    }

    /// Moves the comparison up to this part, or to the end if there is nothing to compare.
    pub(crate) fn move_comparison(&self, upto: usize) {
        let mut state = self.lock();
        state.compared = state.compared.max(upto);
        state.release();
        drop(state);
        self.arrived.notify_all();
        self.changed.notify_waiters();
    }

    /// Waits for a part to compare, as [`Parts::wait`]; `None` if the shard is unpacked.
    pub(crate) async fn next_compared(&self, part: usize) -> Result<Arrived> {
        let look = |state: &PartsState| match state.compared {
            usize::MAX => Some(Ok(None)),
            _ => state.look(part),
        };
        self.until(|state| look(state).is_some()).await;
        look(&self.lock()).unwrap_or_else(|| Err(abandoned()))
    }

    /// Waits for the first part. Returns true if it is the whole shard: nobody waits for another.
    pub(crate) async fn comes_at_once(&self) -> bool {
        let is_shown = |state: &PartsState| state.len == UNKNOWN || state.look(0).is_some();
        self.until(is_shown).await;
        self.lock().len <= PART_BYTES as u64
    }

    /// Waits until every part is compared.
    ///
    /// # Errors
    /// The error of the fill, if it fails.
    pub(crate) async fn compared(&self) -> Result<()> {
        self.until(|state| state.failed.is_some() || state.compared == usize::MAX).await;
        self.lock().failed.clone().map_or(Ok(()), Err)
    }

    /// Blocks until every part is compared.
    ///
    /// # Errors
    /// The error of the fill, if it fails.
    pub(crate) fn wait_compared(&self) -> Result<()> {
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

    /// Blocks until `part` is in memory. Returns it and the bytes of the shard in it; `None` if the
    /// shard ends before it.
    pub(crate) fn wait(&self, part: usize) -> Result<Arrived> {
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

    /// Returns the error at which the shard ends early, if there is one.
    pub(crate) fn broken(&self) -> Result<()> {
        self.lock().broken.clone().map_or(Ok(()), Err)
    }

    /// If the end of the parts may prove them wrong: blocks until all have come, and releases each
    /// at once.
    ///
    /// # Errors
    /// The error at which the shard ends early.
    pub(crate) fn drain(&self) -> Result<()> {
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

    /// Frames of all parts in `range`, if all are in memory.
    pub(crate) fn held(&self, range: &Range<u64>) -> Option<Vec<Arc<Frame>>> {
        let state = self.lock();
        parts_of(range).map(|part| state.frames.get(part)?.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, PartsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Frame {
    pub(crate) fn new(bytes: Frozen, window: OwnedSemaphorePermit) -> Self {
        Self { bytes, _window: window }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes, without the place in the window.
    pub(crate) fn frozen(&self) -> Frozen {
        self.bytes.clone()
    }
}

/// Parts that `range` touches.
pub(crate) fn parts_of(range: &Range<u64>) -> Range<usize> {
    let part = |offset: u64| usize::try_from(offset / PART_BYTES as u64).unwrap_or(usize::MAX);
    let end = if range.is_empty() { part(range.start) } else { part(range.end - 1) + 1 };
    part(range.start)..end
}

/// Returns `range` of the shard in its frames. Its copy is the only one of a cold sample.
pub(crate) fn bytes_of(frames: &[Arc<Frame>], range: &Range<u64>) -> HeldBytes {
    let first = parts_of(range).start as u64 * PART_BYTES as u64;
    let place = |offset: u64| usize::try_from(offset - first).expect("parts are counted in usize");
    let (mut start, end) = (place(range.start), place(range.end));
    let mut pieces = Vec::with_capacity(frames.len());
    for (number, frame) in frames.iter().enumerate() {
        let begin = number * PART_BYTES;
        let upto = end.min(begin + frame.bytes().len());
        pieces.push((frame.frozen(), start - begin..upto - begin));
        start = upto;
    }
    HeldBytes::new(range.clone(), pieces)
}

/// Error of waits for a fill that nobody runs any more.
pub(crate) fn abandoned() -> Error {
    Error::new(ErrorKind::Closed, "the fill was abandoned")
}

#[cfg(test)]
mod tests;
