//! Index of a shard while it grows, and the samples that readers wait for.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::{Catalogue, Index, IndexPart};
use tokio::sync::{SetOnce, watch};

use super::Verdict;

/// Progress of an arriving shard.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// Number of complete samples.
    pub samples: u64,
    /// True once `samples` is the final count.
    pub counted: bool,
    /// Reason why no more samples will come.
    pub failed: Option<Error>,
}

/// Growing index of a shard, and its waiting readers.
#[derive(Debug, Clone)]
pub(crate) struct Growth {
    pub(super) index: Arc<RwLock<Catalogue>>,
    pub(super) progress: Arc<watch::Sender<Progress>>,
    /// Number of waiting readers by the number of samples they want. Watchers are notified when the
    /// largest number changes.
    wants: Arc<watch::Sender<BTreeMap<u64, usize>>>,
    /// Length of the shard, once known.
    pub(super) len: Arc<OnceLock<u64>>,
    /// Set if the origin's bytes are compressed, or come only as a whole.
    unpacked: Arc<OnceLock<()>>,
    /// Verdict on the bytes that came.
    pub(super) verdict: Verdict,
    /// Set once all bytes are here and others may be fetched.
    pub(super) fetched: Arc<SetOnce<()>>,
    /// Set once the fill is over.
    pub(super) settled: Arc<SetOnce<()>>,
    /// Bytes that an earlier fill had left on the tier.
    resumed: Arc<AtomicU64>,
    /// True if the whole shard was here when it was opened: its index was read, not built.
    pub(super) came_whole: bool,
}

impl Growth {
    pub(crate) fn new() -> Self {
        Self {
            index: Arc::default(),
            progress: Arc::new(watch::Sender::default()),
            wants: Arc::default(),
            len: Arc::default(),
            unpacked: Arc::default(),
            verdict: Verdict::pending(),
            fetched: Arc::default(),
            settled: Arc::default(),
            resumed: Arc::default(),
            came_whole: false,
        }
    }

    /// Index and length of a whole shard.
    pub(crate) fn whole(index: Index, len: u64) -> Self {
        let samples = index.samples.len() as u64;
        Self::known(Catalogue::whole(index), samples, len)
    }

    /// Catalogue, number of samples and length of a whole shard.
    pub(crate) fn known(catalogue: Catalogue, samples: u64, len: u64) -> Self {
        let progress = Progress { samples, counted: true, failed: None };
        Self {
            index: Arc::new(RwLock::new(catalogue)),
            progress: Arc::new(watch::Sender::new(progress)),
            wants: Arc::default(),
            len: Arc::new(OnceLock::from(len)),
            unpacked: Arc::default(),
            verdict: Verdict::good(),
            fetched: Arc::new(SetOnce::new_with(Some(()))),
            settled: Arc::new(SetOnce::new_with(Some(()))),
            resumed: Arc::default(),
            came_whole: true,
        }
    }

    /// Counts bytes that an earlier fill had left on the tier.
    pub(crate) fn add_resumed(&self, bytes: u64) {
        self.resumed.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes that an earlier fill had left on the tier.
    pub(crate) fn resumed(&self) -> u64 {
        self.resumed.load(Ordering::Relaxed)
    }

    /// Marks the end of the fill, however it ended.
    pub(crate) fn settle(&self) {
        // Nobody will learn more about a fill that ended early.
        self.verdict.settle(None);
        self.mark_fetched();
        // A second call changes nothing.
        let _ = self.settled.set(());
    }

    /// Notes that all bytes are here and the turn of the fill is over.
    pub(crate) fn mark_fetched(&self) {
        // A second call changes nothing.
        let _ = self.fetched.set(());
    }

    /// Declares the bytes that came good, as far as is known.
    pub(crate) fn mark_good(&self) {
        self.verdict.settle(None);
    }

    /// Notes that the origin's bytes are compressed, or come only as a whole.
    pub(crate) fn mark_unpacked(&self) {
        self.unpacked.get_or_init(|| ());
    }

    /// Returns true if the origin has no ranges of the shard, as far as is known.
    pub(crate) fn is_unpacked(&self) -> bool {
        self.unpacked.get().is_some()
    }

    /// Length of the shard, if it is known.
    pub(crate) fn known_len(&self) -> Option<u64> {
        self.len.get().copied()
    }

    /// Waits for so many samples, or for the last one, without a claim to them.
    ///
    /// # Errors
    /// The error of the fill, if it ended early.
    pub(crate) async fn grown(&self, samples: u64) -> Result<Progress> {
        let enough = |p: &Progress| p.samples >= samples || p.counted || p.failed.is_some();
        let mut watch = self.progress.subscribe();
        let progress = watch.wait_for(enough).await.map(|progress| progress.clone());
        let progress =
            progress.map_err(|_| Error::new(ErrorKind::Closed, "the fill was abandoned"))?;
        match progress {
            Progress { failed: Some(error), samples: have, .. } if have < samples => Err(error),
            progress => Ok(progress),
        }
    }

    /// Returns true if a reader waits for samples.
    pub(crate) fn is_awaited(&self) -> bool {
        !self.wants.borrow().is_empty()
    }

    /// Number of complete samples, and the largest number that a reader waits for; zero if none
    /// waits.
    pub(crate) fn wanted(&self) -> (u64, u64) {
        (self.progress.borrow().samples, most(&self.wants.borrow()))
    }

    /// Watches the largest number of samples that a reader waits for.
    pub(crate) fn watch_wants(&self) -> watch::Receiver<BTreeMap<u64, usize>> {
        self.wants.subscribe()
    }

    /// Waits until a reader waits for more samples than there are.
    pub(crate) async fn more_wanted(&self) {
        let have = self.progress.borrow().samples;
        // Cannot fail: `self` holds the sender.
        let _ = self.watch_wants().wait_for(|wants| most(wants) > have).await;
    }

    /// Registers a reader that waits for so many samples, until dropped.
    pub(super) fn want(&self, samples: u64) -> SampleWait<'_> {
        self.change_wants(|wants| *wants.entry(samples).or_default() += 1);
        SampleWait { growth: self, samples }
    }

    fn change_wants(&self, change: impl FnOnce(&mut BTreeMap<u64, usize>)) {
        self.wants.send_if_modified(|wants| {
            let before = most(wants);
            change(wants);
            most(wants) != before
        });
    }

    /// Copies the samples up to `at` from the indexer's own index. Those that another node indexed
    /// before are known.
    pub(crate) fn add(&self, from: &Index, at: usize) {
        if self.progress.borrow().samples > at as u64 {
            return;
        }
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        if let Catalogue::Plain(index) = &mut *index {
            copy_upto(index, from, at + 1);
        }
        drop(index);
        self.progress.send_modify(|progress| progress.samples = at as u64 + 1);
    }

    /// Appends the samples that another node indexed.
    ///
    /// # Errors
    /// As [`forebay_shard::Index::append`].
    pub(crate) fn append(&self, part: IndexPart, most: u64) -> Result<()> {
        let more = part.len();
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        match &mut *index {
            Catalogue::Plain(index) => index.append(part, most)?,
            Catalogue::Packed(_) | Catalogue::Sparse(..) => return Err(behind_the_last()),
        }
        drop(index);
        self.progress.send_modify(|progress| progress.samples += more);
        Ok(())
    }

    /// Completes the index: the other node sent all samples of a shard of `len` bytes. On an error,
    /// nothing changes.
    ///
    /// # Errors
    /// `Corrupt` if a member ends behind them, or the index was complete.
    pub(crate) fn finish(&self, len: u64, is_unpacked: bool) -> Result<()> {
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        let Catalogue::Plain(grown) = &mut *index else { return Err(behind_the_last()) };
        if grown.members.iter().any(|member| member.end() > len) {
            let what = "another node sent a member that ends behind the shard";
            return Err(Error::new(ErrorKind::Corrupt, what).at("len", len));
        }
        let whole = Catalogue::whole(std::mem::take(grown));
        // Readers that learn of the end must find it.
        if is_unpacked {
            self.mark_unpacked();
        }
        self.verdict.settle(None);
        self.end_with(index, whole, len);
        Ok(())
    }

    /// Completes the index: the indexer saw the end of the archive, and all `len` bytes.
    pub(crate) fn complete(&self, from: &Index, len: u64) {
        let whole = Catalogue::whole(from.clone());
        self.end_with(self.index.write().unwrap_or_else(PoisonError::into_inner), whole, len);
    }

    fn end_with(&self, mut index: RwLockWriteGuard<'_, Catalogue>, whole: Catalogue, len: u64) {
        self.len.get_or_init(|| len);
        *index = whole;
        drop(index);
        self.progress.send_modify(|progress| progress.counted = true);
    }

    /// Ends the growth with an error. `wrong`: reason why the bytes that came cannot be trusted
    /// either.
    pub(crate) fn fail(&self, error: &Error, wrong: Option<&Error>) {
        // Set first: readers that get the error must find the verdict.
        if let Some(wrong) = wrong {
            self.verdict.settle(Some(wrong.clone()));
        }
        self.progress.send_modify(|progress| progress.failed = Some(error.clone()));
    }

    pub(crate) fn index(&self) -> RwLockReadGuard<'_, Catalogue> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }
}

fn behind_the_last() -> Error {
    Error::new(ErrorKind::Corrupt, "another node sent samples behind the last one")
}

/// A waiting reader.
pub(super) struct SampleWait<'a> {
    growth: &'a Growth,
    samples: u64,
}

impl Drop for SampleWait<'_> {
    fn drop(&mut self) {
        self.growth.change_wants(|wants| {
            if let Some(those) = wants.get_mut(&self.samples) {
                *those -= 1;
                if *those == 0 {
                    wants.remove(&self.samples);
                }
            }
        });
    }
}

fn most(wants: &BTreeMap<u64, usize>) -> u64 {
    wants.last_key_value().map_or(0, |(samples, _)| *samples)
}

fn copy_upto(to: &mut Index, from: &Index, samples: usize) {
    to.fields.extend_from_slice(&from.fields[to.fields.len()..]);
    to.samples.extend_from_slice(&from.samples[to.samples.len()..samples]);
    let members = to.samples.last().map_or(0, |sample| sample.members.end as usize);
    to.members.extend_from_slice(&from.members[to.members.len()..members]);
}

#[cfg(test)]
mod tests;
