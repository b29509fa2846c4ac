//! One shard in use: arriving or whole, its index, and reads of its records.
//!
//! One rule: while anybody holds a [`Lease`] its file is not evicted under them, and whoever waits
//! for room hears of its end. Holders keep it for a read, never for an epoch.
//!
//! A shard whose tier fails in mid-use is lost to the tier, not to its readers: from then on they read
//! it through, from its origin, checked as ever; one that is compressed there is fetched anew.

mod verdict;

use std::collections::BTreeMap;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::checksum::crc32c;
use forebay_shard::{Catalogue, Index, Member, Origin};
use forebay_source::{Rank, Source, Stat};
use forebay_uring::{DiskFile, Engine, GRANULE, Read, Span};
use tokio::sync::{SetOnce, watch};

use crate::budget::{Budget, Space};
use crate::directory::ShardName;
use crate::fill::{self, Blocks, Parts};
use crate::ledger::Payer;
use crate::tier::WeakTier;
use crate::traffic::Traffic;
pub use verdict::Verdict;

/// How far a shard is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// Samples complete so far.
    pub samples: u64,
    /// True once `samples` is the shard's count.
    pub counted: bool,
    /// Why no more will come, if none will.
    pub failed: Option<Error>,
}

/// A shard's growing index and who waits for it.
#[derive(Debug, Clone)]
pub(crate) struct Growth {
    index: Arc<RwLock<Catalogue>>,
    progress: Arc<watch::Sender<Progress>>,
    /// How many samples those want who wait, and how many of them want so many. Whoever watches it hears when
    /// those change who want most.
    wants: Arc<watch::Sender<BTreeMap<u64, usize>>>,
    /// Its length, once it is known.
    len: Arc<OnceLock<u64>>,
    /// Set where its origin's bytes are compressed, and these are what they hold; or where it sends them only
    /// as a whole.
    unpacked: Arc<OnceLock<()>>,
    /// Whether what came is right.
    verdict: Verdict,
    /// Set once nothing of it is under way any more.
    settled: Arc<SetOnce<()>>,
    /// Whether all of it was there when it was opened: its index was read, not made.
    came_whole: bool,
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
            settled: Arc::default(),
            came_whole: false,
        }
    }

    /// A whole shard's index and length at once.
    pub(crate) fn whole(index: Index, len: u64) -> Self {
        let progress =
            Progress { samples: index.samples.len() as u64, counted: true, failed: None };
        Self {
            index: Arc::new(RwLock::new(Catalogue::whole(index))),
            progress: Arc::new(watch::Sender::new(progress)),
            wants: Arc::default(),
            len: Arc::new(OnceLock::from(len)),
            unpacked: Arc::default(),
            verdict: Verdict::good(),
            settled: Arc::new(SetOnce::new_with(Some(()))),
            came_whole: true,
        }
    }

    /// Its fill is over, however it ended.
    pub(crate) fn settle(&self) {
        // Of one that ended early nobody will ever know more.
        self.verdict.settle(None);
        // Once is enough.
        let _ = self.settled.set(());
    }

    /// All that came is what it should be, as far as anybody says.
    pub(crate) fn acquit(&self) {
        self.verdict.settle(None);
    }

    /// Its origin's bytes are compressed, or come only as a whole.
    pub(crate) fn unpack(&self) {
        self.unpacked.get_or_init(|| ());
    }

    /// Whether its origin has no ranges of it, as far as is known.
    pub(crate) fn is_unpacked(&self) -> bool {
        self.unpacked.get().is_some()
    }

    /// Whether somebody waits for samples now.
    pub(crate) fn is_awaited(&self) -> bool {
        !self.wants.borrow().is_empty()
    }

    /// How many samples there are, and how many those want who wait for most; zero if nobody waits.
    pub(crate) fn wanted(&self) -> (u64, u64) {
        (self.progress.borrow().samples, most(&self.wants.borrow()))
    }

    /// Hears of it when more is wanted, or less.
    pub(crate) fn watch_wants(&self) -> watch::Receiver<BTreeMap<u64, usize>> {
        self.wants.subscribe()
    }

    /// Waits until somebody waits for more than there is.
    pub(crate) async fn more_wanted(&self) {
        let have = self.progress.borrow().samples;
        // The sender is this one's own.
        let _ = self.watch_wants().wait_for(|wants| most(wants) > have).await;
    }

    /// Somebody waits for so many samples, until this is dropped.
    fn want(&self, samples: u64) -> Want<'_> {
        self.change_wants(|wants| *wants.entry(samples).or_default() += 1);
        Want { growth: self, samples }
    }

    fn change_wants(&self, change: impl FnOnce(&mut BTreeMap<u64, usize>)) {
        self.wants.send_if_modified(|wants| {
            let before = most(wants);
            change(wants);
            most(wants) != before
        });
    }

    /// Takes over sample `at` of the indexer's own index, and everything before it.
    pub(crate) fn add(&self, from: &Index, at: usize) {
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        if let Catalogue::Plain(index) = &mut *index {
            copy_upto(index, from, at + 1);
        }
        drop(index);
        self.progress.send_modify(|progress| progress.samples = at as u64 + 1);
    }

    /// The indexer saw the archive's end, and all `len` bytes.
    pub(crate) fn counted(&self, from: &Index, len: u64) {
        self.len.get_or_init(|| len);
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        *index = Catalogue::whole(from.clone());
        drop(index);
        self.progress.send_modify(|progress| progress.counted = true);
    }

    /// No more comes; `wrong`: what came cannot be trusted either.
    pub(crate) fn fail(&self, error: &Error, wrong: Option<&Error>) {
        // First: who hears that no more comes is to know this, too.
        if let Some(wrong) = wrong {
            self.verdict.settle(Some(wrong.clone()));
        }
        self.progress.send_modify(|progress| progress.failed = Some(error.clone()));
    }

    pub(crate) fn index(&self) -> RwLockReadGuard<'_, Catalogue> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A wait for samples.
struct Want<'a> {
    growth: &'a Growth,
    samples: u64,
}

impl Drop for Want<'_> {
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

/// The right to a shard's file, until dropped.
#[derive(Debug)]
pub struct Lease {
    // Dropped in this order: the count is down when waiters look again.
    shard: Arc<Shard>,
    _end: EndOfLease,
    asked: Duration,
    /// Whoever took it, who pays for what is read past the tiers.
    payer: Option<Payer>,
    /// Whether it is for no batch, but to bring the shard to another tier.
    is_for_move: bool,
}

/// Wakes whoever waits for room on the shard's tier.
#[derive(Debug)]
struct EndOfLease(Option<Arc<Budget>>);

impl Drop for EndOfLease {
    fn drop(&mut self) {
        if let Some(budget) = &self.0 {
            budget.wake();
        }
    }
}

impl Lease {
    pub(crate) fn new(shard: Arc<Shard>) -> Self {
        let end = EndOfLease(shard.home.as_ref().map(|home| home.budget.clone()));
        Self { shard, _end: end, asked: Duration::ZERO, payer: None, is_for_move: false }
    }

    /// The same, for whoever pays.
    pub(crate) fn paid_by(self, payer: Payer) -> Self {
        Self { payer: Some(payer), ..self }
    }

    /// The same, to bring the shard to another tier.
    pub(crate) fn for_move(self) -> Self {
        Self { is_for_move: true, ..self }
    }

    /// The same right to another shard.
    pub(crate) fn to(self, shard: Arc<Shard>) -> Self {
        Self {
            asked: self.asked,
            payer: self.payer,
            is_for_move: self.is_for_move,
            ..Self::new(shard)
        }
    }

    /// The same, for whoever waited so long to hear which version of it the origin has.
    pub(crate) fn asked_for(self, asked: Duration) -> Self {
        Self { asked, ..self }
    }

    /// How long its origin was waited for, to say which version of it there is. What the opening took beyond
    /// that went to the tier where it lies, or to the beginning of its fill.
    #[must_use]
    pub fn asked(&self) -> Duration {
        self.asked
    }

    /// Reads ranges, each into a span as long as its footprint. What failed shows when a member of
    /// it is checked; the span comes back either way, unless it was the origin that failed.
    ///
    /// Ranges whose frames are still in memory are copied from them; all others are read together,
    /// from the tier, or from the origin if the tier does not have them any more: then whoever holds this pays.
    pub async fn read(&self, wanted: Vec<(Range<u64>, Span)>) -> Vec<Placed> {
        self.shard.read(wanted, self).await
    }

    pub(crate) fn shard(&self) -> &Arc<Shard> {
        &self.shard
    }
}

impl Deref for Lease {
    type Target = Shard;

    fn deref(&self) -> &Shard {
        &self.shard
    }
}

/// Where a shard's bytes are.
#[derive(Debug)]
pub(crate) enum Body {
    /// In a file of a tier.
    Disk { engine: Engine, file: DiskFile },
    /// In a tier's memory.
    Memory(Arc<Blocks>),
    /// Nowhere here: it is read through.
    Origin,
}

/// The tier a shard in use belongs to.
#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) tier: WeakTier,
    pub(crate) budget: Arc<Budget>,
    /// Held for as long as the file may be open, and what tells this copy from its successors.
    pub(crate) space: Arc<Space>,
}

/// A shard in use.
pub struct Shard {
    pub(crate) name: ShardName,
    pub(crate) url: String,
    pub(crate) growth: Growth,
    pub(crate) body: Body,
    /// The fill's frames while it runs.
    pub(crate) parts: Mutex<Option<Arc<Parts>>>,
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) home: Option<Home>,
    pub(crate) source: Arc<dyn Source>,
    pub(crate) stat: Stat,
    /// How urgently it is wanted while it arrives.
    pub(crate) rank: Rank,
    /// Why its tier does not have it any more, if so.
    pub(crate) lost: Arc<OnceLock<Error>>,
}

impl std::fmt::Debug for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shard").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Shard {
    /// Its name on the tier.
    #[must_use]
    pub fn name(&self) -> &ShardName {
        &self.name
    }

    /// Where it comes from.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its length in bytes, of the plain tar. Of one that its origin keeps compressed, this is known with its
    /// count of samples; before, it is what the origin's object has.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.growth.len.get().copied().unwrap_or(self.stat.len)
    }

    /// Whether it has no bytes at all (never: a tar has end blocks).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is known of its samples now.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.growth.progress.borrow().clone()
    }

    /// Whether all of it was here when it was opened: its index was read, not made while it came.
    #[must_use]
    pub fn came_whole(&self) -> bool {
        self.growth.came_whole
    }

    /// Waits until at least `samples` samples are complete, or all there are.
    ///
    /// # Errors
    /// What ended the fill, if it ended early.
    pub async fn wait(&self, samples: u64) -> Result<Progress> {
        let enough = |p: &Progress| p.samples >= samples || p.counted || p.failed.is_some();
        // Before the look: its fill is to know how far it is needed.
        let waits = (!enough(&self.progress()))
            .then(|| (Instant::now(), self.growth.want(samples), self.rank.awaited()));
        let mut watch = self.growth.progress.subscribe();
        let progress = watch.wait_for(enough).await.map(|progress| progress.clone());
        if let Some((began, ..)) = &waits {
            self.traffic.waits.since(*began);
        }
        match progress {
            Ok(Progress { failed: Some(error), samples: have, .. }) if have < samples => Err(error),
            Ok(progress) => Ok(progress),
            Err(_) => Err(Error::new(ErrorKind::Closed, "the fill was given up")),
        }
    }

    /// Whether what came of it is right: known at its end, when samples were handed out already.
    #[must_use]
    pub fn verdict(&self) -> &Verdict {
        &self.growth.verdict
    }

    /// Bytes of it that are where they stay.
    #[must_use]
    pub fn kept_bytes(&self) -> u64 {
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        parts.map_or_else(|| self.len(), |parts| parts.kept_bytes())
    }

    /// Waits until nothing of it is under way any more, and it is on its tier for good.
    ///
    /// # Errors
    /// What ended the fill, or why its tier did not keep it.
    pub async fn settled(&self) -> Result<()> {
        self.growth.settled.wait().await;
        match (self.progress().failed, self.lost.get()) {
            (Some(error), _) => Err(error),
            (None, Some(error)) => Err(error.clone()),
            (None, None) => Ok(()),
        }
    }

    /// The index as far as it is known. Held for look-ups only: the indexer waits for it.
    pub fn index(&self) -> RwLockReadGuard<'_, Catalogue> {
        self.growth.index()
    }

    /// The bytes that a read of `range` transfers: `range` grown to what every disk is content with,
    /// so that a slot which was cut for one tier suits any other.
    #[must_use]
    pub fn footprint(range: &Range<u64>) -> Range<u64> {
        let align = GRANULE as u64;
        range.start / align * align..range.end.next_multiple_of(align)
    }

    /// As [`Lease::read`].
    async fn read(&self, wanted: Vec<(Range<u64>, Span)>, lease: &Lease) -> Vec<Placed> {
        let read_bytes =
            if lease.is_for_move { &self.traffic.move_bytes } else { &self.traffic.tier_bytes };
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut placed = Vec::with_capacity(wanted.len());
        let mut pending = Vec::new();
        for (range, mut span) in wanted {
            let Range { start, end } = Self::footprint(&range);
            if (span.len() as u64) < end - start {
                // The origin failed on it before, and kept the memory.
                let what = "the memory for a range was lost with its last read";
                let outcome = Err(Error::new(ErrorKind::Unavailable, what));
                placed.push(Some(Placed { span, start, from_tier: false, outcome }));
                continue;
            }
            let held = parts.as_ref().and_then(|parts| parts.held(&range));
            let here = match (held, &self.body) {
                (Some(frames), _) => {
                    self.copy(&frames, &range, start, &mut span);
                    Some(false)
                }
                (None, Body::Memory(blocks)) if self.lost.get().is_none() => {
                    let at = usize::try_from(range.start - start).expect("within a granule");
                    let len = usize::try_from(range.end - range.start).expect("within a span");
                    let is_there = blocks.copy(range.start, &mut span[at..at + len]);
                    read_bytes.fetch_add(len as u64, Ordering::Relaxed);
                    is_there.then_some(true)
                }
                (None, _) => None,
            };
            match here {
                Some(from_tier) => {
                    placed.push(Some(Placed { span, start, from_tier, outcome: Ok(()) }));
                }
                None => {
                    if let Some(parts) = &parts {
                        // A record of several parts may reach into one that is still written.
                        parts.settled(&range).await;
                    }
                    pending.push(Pending { at: placed.len(), start, end: range.end, span });
                    placed.push(None);
                }
            }
        }
        let through = match (&self.body, self.lost.get()) {
            (Body::Disk { engine, file }, None) => {
                self.read_disk(engine, file, pending, read_bytes, &mut placed).await
            }
            _ => pending,
        };
        let reads =
            through.into_iter().map(|pending| self.read_through(pending, lease.payer.as_ref()));
        for (at, read) in futures::future::join_all(reads).await {
            placed[at] = Some(read);
        }
        placed.into_iter().flatten().collect()
    }

    /// Reads from the tier's file; what the device failed on comes back.
    async fn read_disk(
        &self,
        engine: &Engine,
        file: &DiskFile,
        pending: Vec<Pending>,
        read_bytes: &AtomicU64,
        placed: &mut [Option<Placed>],
    ) -> Vec<Pending> {
        let mut reads = Vec::with_capacity(pending.len());
        let mut places = Vec::with_capacity(pending.len());
        for Pending { at, start, end, span } in pending {
            reads.push(Read { file: file.clone(), offset: start, into: span });
            places.push((at, start, end));
        }
        let mut failed = Vec::new();
        for (operation, (at, start, end)) in engine.read_many(reads).into_iter().zip(places) {
            let done = operation.await;
            let outcome = match done.result {
                // Of the engine's errors these two are about the request or the daemon's end.
                Err(error) if !matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Closed) => {
                    self.lose(&error);
                    failed.push(Pending { at, start, end, span: done.span });
                    continue;
                }
                Err(error) => Err(error),
                Ok(transferred) => {
                    read_bytes.fetch_add(transferred as u64, Ordering::Relaxed);
                    let reached = start + transferred as u64;
                    let cut = || Error::new(ErrorKind::Corrupt, "the copy on the tier is cut");
                    if reached < end { Err(cut().at("offset", reached)) } else { Ok(()) }
                }
            };
            placed[at] = Some(Placed { span: done.span, start, from_tier: true, outcome });
        }
        failed
    }

    /// The same shard without a tier, read from its origin: it holds no file and no room.
    pub(crate) fn read_only_through(&self, traffic: &Arc<Traffic>) -> Arc<Self> {
        let why = self.lost.get().cloned();
        let why = why.unwrap_or_else(|| Error::new(ErrorKind::Unavailable, "no tier has it"));
        Arc::new(Self {
            name: self.name.clone(),
            url: self.url.clone(),
            growth: self.growth.clone(),
            body: Body::Origin,
            parts: Mutex::default(),
            traffic: traffic.clone(),
            home: None,
            source: self.source.clone(),
            stat: self.stat.clone(),
            rank: self.rank.clone(),
            lost: Arc::new(OnceLock::from(why)),
        })
    }

    /// The same shard without a tier, read by way of this source.
    pub(crate) fn read_by(&self, source: Arc<dyn Source>) -> Arc<Self> {
        Arc::new(Self {
            name: self.name.clone(),
            url: self.url.clone(),
            growth: self.growth.clone(),
            body: Body::Origin,
            parts: Mutex::new(self.parts.lock().unwrap_or_else(PoisonError::into_inner).clone()),
            traffic: self.traffic.clone(),
            home: None,
            source,
            stat: self.stat.clone(),
            rank: self.rank.clone(),
            lost: self.lost.clone(),
        })
    }

    /// Whether its ranges come from its origin: no tier took it, or the one that did has lost it.
    #[must_use]
    pub fn is_read_through(&self) -> bool {
        self.lost.get().is_some() || matches!(self.body, Body::Origin)
    }

    /// Whether what it holds can be had only by asking for it once more: its tier lost it, and its origin
    /// keeps it compressed.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.growth.is_unpacked() && self.lost.get().is_some()
    }

    /// Whether a stream that turned out broken is kept for those who read it: if anything of it is good, and
    /// in a file, which a tier keeps no longer than its readers do.
    pub(crate) fn outlives_its_fault(&self) -> bool {
        matches!(self.body, Body::Disk { .. }) && self.progress().samples > 0
    }

    /// Where it came from, and which version of it.
    pub(crate) fn origin(&self) -> Origin {
        Origin {
            endpoint: self.source.endpoint().to_owned(),
            url: self.url.clone(),
            version: self.stat.version.clone(),
        }
    }

    /// The device failed under a reader: the tier hears of it, and readers go to the origin.
    fn lose(&self, error: &Error) {
        if self.lost.set(error.clone()).is_ok()
            && let Some(tier) = self.home.as_ref().and_then(|home| home.tier.upgrade())
        {
            tier.lost(self, error);
        }
    }

    /// Reads a range from the origin. Of what it keeps compressed, or sends only as a whole, it has no ranges:
    /// that is fetched anew when the shard is next asked for.
    async fn read_through(&self, pending: Pending, payer: Option<&Payer>) -> (usize, Placed) {
        let Pending { at, start, end, mut span } = pending;
        if self.growth.is_unpacked() {
            let what = "no tier keeps the shard, and its origin sends it only as a whole";
            let error = Error::new(ErrorKind::Unavailable, what).at("url", &self.url);
            let error = error.advise(
                "read it again once a tier takes it (see `forebay tier ls`), or store it as a plain tar",
            );
            return (at, Placed { span, start, from_tier: false, outcome: Err(error) });
        }
        // The span is the source's until it succeeds.
        let stub = span.split_to(0);
        // Not on the bill of whoever had it opened: this is for one reader alone.
        let rank = Rank::now(0);
        if let Some(payer) = payer {
            rank.bill_to(|| payer.bill(&self.url));
        }
        let read = self.source.read_part(&self.url, &self.stat, start, span, &rank).await;
        let placed = match read {
            Ok(span) => {
                self.traffic.through_bytes.fetch_add(end - start, Ordering::Relaxed);
                Placed { span, start, from_tier: false, outcome: Ok(()) }
            }
            Err(error) => Placed { span: stub, start, from_tier: false, outcome: Err(error) },
        };
        (at, placed)
    }

    fn copy(&self, frames: &[Arc<fill::Frame>], range: &Range<u64>, start: u64, span: &mut Span) {
        assert!(
            !self.traffic.no_copies.load(Ordering::Relaxed),
            "a payload byte was copied where a test forbids it"
        );
        let from = usize::try_from(range.start - start).expect("within the alignment");
        let len = usize::try_from(range.end - range.start).expect("within a span");
        fill::copy(frames, range, &mut span[from..from + len]);
        self.traffic.copied_bytes.fetch_add(len as u64, Ordering::Relaxed);
    }
}

/// A range on its way into its span.
struct Pending {
    /// Its place in the answer.
    at: usize,
    /// The shard's offset of the span's first byte.
    start: u64,
    /// The last byte that is wanted ends here.
    end: u64,
    span: Span,
}

/// Bytes of a shard in a span, not yet checked.
#[derive(Debug)]
pub struct Placed {
    span: Span,
    /// The shard's offset of the span's first byte.
    start: u64,
    from_tier: bool,
    outcome: Result<()>,
}

impl Placed {
    /// Where `member`'s data lies in the span's region, once its checksum is confirmed.
    ///
    /// # Errors
    /// `Corrupt` if the bytes are not those the indexer saw, or what the read failed with.
    pub fn check(&self, member: &Member) -> Result<usize> {
        self.outcome.clone()?;
        let from = usize::try_from(member.offset - self.start).unwrap_or(usize::MAX);
        let len = usize::try_from(member.len).unwrap_or(usize::MAX);
        let bytes = from.checked_add(len).and_then(|end| self.span.get(from..end));
        match bytes {
            Some(bytes) if crc32c(bytes) == member.crc32c => Ok(self.span.offset() + from),
            _ => Err(Error::new(ErrorKind::Corrupt, "a member differs from what the origin sent")
                .at("offset", member.offset)),
        }
    }

    /// Whether the bytes came from the tier, not from frames of a running fill.
    #[must_use]
    pub fn from_tier(&self) -> bool {
        self.from_tier
    }

    /// The memory, if the read did not fail; nothing of it is checked.
    pub(crate) fn whole(self) -> Result<Span> {
        self.outcome.map(|()| self.span)
    }

    /// The memory, to be kept for as long as the bytes are in use.
    #[must_use]
    pub fn into_span(self) -> Span {
        self.span
    }
}
