//! Excerpts of shards that a job reads instead of whole ones.
//!
//! The trainer has the places of members. It is asked for those of a shard when the shard is looked
//! at first, and the answer is kept for a while. Rule: the job's estimate decides if it is asked at
//! all, the places of a shard decide about that shard.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_error::{Error, ErrorKind, Result};
use forebay_policy::access::{Estimate, REQUEST_BYTES};
use forebay_shard::{Catalogue, Excerpt, Member, wanted_members};
use forebay_source::Options;
use forebay_store::{ExcerptPlaces, ShardHandle, Store, Urgency};
use forebay_wire::message::{self, Extent, Joined, Open, PartsEstimate};
use lru::LruCache;
use tokio::sync::{mpsc, watch};

use super::assembly::SamplePlace;
use super::located::samples_of;
use super::{Event, JobData};

/// Memory for places of one job: those of a shard of a thousand samples take some 200 KB, so that
/// windows of hundreds of shards find theirs here. Others are asked for again.
const KEPT_BYTES: usize = 64 << 20;

/// Memory of a shard's entry, of each sample and of each member: upper bounds.
const SHARD_BYTES: usize = 512;
const SAMPLE_BYTES: usize = 160;
const MEMBER_BYTES: usize = 80;

/// Places of a shard, once the trainer answered; none if the whole shard is read.
type Answer = Option<Result<Answered>>;

/// Answer about a shard.
#[derive(Debug, Clone, Default)]
struct Answered {
    places: Option<Arc<ExcerptPlaces>>,
    /// Cost of what is wanted of it, by which the answer was given.
    estimate: Option<Estimate>,
    /// Memory of the places.
    bytes: usize,
}

/// Excerpts of one job.
pub(crate) struct Excerpts {
    asked: Mutex<Asked>,
    events: mpsc::Sender<Event>,
}

/// Questions for the places of shards, and their answers.
struct Asked {
    shards: LruCache<u32, Question>,
    /// Memory that the answers take.
    bytes: usize,
}

struct Question {
    answer: watch::Sender<Answer>,
    bytes: usize,
}

/// Way in which a job reads its shards, and the reason.
#[derive(Debug, Clone)]
pub(crate) struct Reading {
    pub(crate) estimate: Estimate,
}

impl Reading {
    /// Reads what a trainer declared; none if its shards are read whole in any case.
    pub(super) fn of(
        parts: Option<PartsEstimate>,
        spec: &Open,
        joined: &[Joined],
        store: &Store,
    ) -> Option<Self> {
        let PartsEstimate { bytes, requests, whole_bytes } = parts?;
        // A part of a join is what its job wants of it. Other shards are like the first: if it may
        // have no excerpt, the node is to foresee whole ones.
        let may_be = joined.is_empty()
            && spec
                .urls
                .first()
                .is_some_and(|url| store.keeps_excerpts(url, &Options::from(spec.origin.clone())));
        may_be.then_some(Self { estimate: Estimate { bytes, requests, whole_bytes } })
    }

    /// Returns the bytes that a job keeps of its shards, as far as is known.
    pub(super) fn scaled(&self, extent: &Extent) -> Extent {
        let share = self.estimate.bytes as f64 / self.estimate.whole_bytes.max(1) as f64;
        let of = |bytes: &u64| (*bytes as f64 * share.min(1.0)) as u64;
        Extent { bytes: extent.bytes.iter().map(of).collect(), ..*extent }
    }
}

impl Excerpts {
    pub(super) fn new(events: mpsc::Sender<Event>) -> Self {
        let asked = Asked { shards: LruCache::unbounded(), bytes: 0 };
        Self { asked: Mutex::new(asked), events }
    }

    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the trainer's answer.
    fn answer(&self, shard: u32, answer: Result<Answered>) {
        let mut asked = self.asked();
        // Unasked answers are nobody's.
        let Some(question) = asked.shards.get_mut(&shard) else { return };
        let bytes = SHARD_BYTES + answer.as_ref().map_or(0, |answered| answered.bytes);
        let before = std::mem::replace(&mut question.bytes, bytes);
        question.answer.send_replace(Some(answer));
        asked.bytes = asked.bytes + bytes - before;
        while asked.bytes > KEPT_BYTES && asked.shards.len() > 1 {
            let Some((_, oldest)) = asked.shards.pop_lru() else { return };
            asked.bytes -= oldest.bytes;
        }
    }

    /// Places of a shard; none if the whole shard is read.
    async fn of(&self, shard: u32) -> Result<Option<Arc<ExcerptPlaces>>> {
        loop {
            let known = self.asked().shards.get(&shard).map(|known| known.answer.subscribe());
            let mut answer = match known {
                Some(answer) => answer,
                None => self.ask(shard).await?,
            };
            // Ends without an answer if other shards took its place meanwhile.
            if let Ok(found) = answer.wait_for(Option::is_some).await {
                return found
                    .clone()
                    .unwrap_or_else(|| Ok(Answered::default()))
                    .map(|all| all.places);
            }
        }
    }

    /// Cost of what is wanted of a shard, if its places are known.
    fn estimate(&self, shard: u32) -> Option<Estimate> {
        let asked = self.asked();
        let answer = asked.shards.peek(&shard)?.answer.borrow();
        answer.as_ref()?.as_ref().ok()?.estimate
    }

    /// Asks the trainer about a shard, unless that was done meanwhile; returns the answer to come.
    async fn ask(&self, shard: u32) -> Result<watch::Receiver<Answer>> {
        // Room first: a run that ends while it waits for room must leave no question unasked.
        let gone = |_| Error::new(ErrorKind::Closed, "the trainer is gone");
        let room = self.events.reserve().await.map_err(gone)?;
        let mut asked = self.asked();
        if let Some(known) = asked.shards.get(&shard) {
            return Ok(known.answer.subscribe());
        }
        let (sender, answer) = watch::channel(None);
        asked.shards.put(shard, Question { answer: sender, bytes: 0 });
        room.send(Event::Locate { shard });
        Ok(answer)
    }
}

impl JobData {
    /// Opens the excerpt of a shard; none if the job reads it as a whole.
    ///
    /// # Errors
    /// As [`forebay_store::Store::open_excerpt`]; the trainer's, if it cannot tell the places.
    pub(super) async fn open_excerpt(
        &self,
        shard: u32,
        urgency: Urgency,
    ) -> Result<Option<ShardHandle>> {
        let Some(excerpts) = &self.excerpts else { return Ok(None) };
        let Some(wanted) = excerpts.of(shard).await? else { return Ok(None) };
        self.store.open_excerpt(self.url(shard), &self.origin, &wanted, urgency).await
    }

    /// Fetches what the job reads of a shard, behind all that is awaited.
    ///
    /// # Errors
    /// As [`forebay_store::Store::shard`].
    pub(super) async fn fetch_ahead(&self, shard: u32) -> Result<ShardHandle> {
        match self.open_excerpt(shard, Urgency::Ahead).await? {
            Some(open) => Ok(open),
            None => self.store.shard(self.url(shard), &self.origin, Urgency::Ahead).await,
        }
    }

    /// Waits for the first `samples` samples of a shard, which takes room as one fetched ahead.
    /// Returns true if all that the job reads of it are there.
    ///
    /// # Errors
    /// As [`forebay_store::Store::wait_for_samples`].
    pub(super) async fn wait_for_samples(&self, shard: u32, samples: u64) -> Result<bool> {
        match self.open_excerpt(shard, Urgency::Ahead).await? {
            Some(open) => open.wait(samples).await.map(|_| open.progress().counted),
            None => self.store.wait_for_samples(self.url(shard), &self.origin, samples).await,
        }
    }

    /// Returns the way in which the job reads a shard and the reason, a sentence for people; none
    /// if it does not read the shard, or its trainer does not know the places of its samples.
    pub(super) fn reading_of(&self, url: &str) -> Option<String> {
        let reading = self.reading.as_ref()?;
        let shard = self.spec.urls.iter().position(|one| one == url)?;
        let known = self.excerpts.as_ref().and_then(|excerpts| excerpts.estimate(shard as u32));
        Some(known.unwrap_or(reading.estimate).why())
    }

    /// Returns true if the job reads excerpts of its shards.
    pub(super) fn reads_excerpts(&self) -> bool {
        self.excerpts.is_some()
    }

    /// Judges the failure of an excerpt whose object is not the one that was indexed. Returns the
    /// error if it is another failure; none if the shard is read as a whole from now on.
    ///
    /// # Errors
    /// As [`forebay_store::Store::judge_ranges`].
    pub(super) async fn changed_excerpt(&self, shard: u32, error: Error) -> Result<Option<Error>> {
        let Some(excerpts) = self.excerpts.as_ref().filter(|_| is_changed(&error)) else {
            return Ok(Some(error));
        };
        let Some(wanted) = excerpts.of(shard).await? else { return Ok(Some(error)) };
        self.store.judge_ranges(self.url(shard), &self.origin, wanted.places(), error).await?;
        // Its store compresses it, or sends no ranges of it.
        excerpts.answer(shard, Ok(Answered::default()));
        Ok(None)
    }

    /// Compares what came of an excerpt with the trainer's index.
    ///
    /// # Errors
    /// As [`forebay_store::Store::check_excerpt`].
    pub(super) fn check_excerpt(
        &self,
        number: u32,
        shard: &ShardHandle,
        places: &[SamplePlace],
    ) -> Result<()> {
        let ordinals = places.iter().filter(|place| place.shard == number);
        self.store.check_excerpt(shard, ordinals.map(|place| place.ordinal))
    }

    /// Takes the trainer's places of a shard.
    pub(super) fn placed(&self, shard: u32, located: Result<message::Located>) {
        let Some(excerpts) = &self.excerpts else { return };
        let answer = located.and_then(|located| {
            let read = Located::read(located, self.spec.fields.as_deref()).ok_or_else(|| {
                Error::new(ErrorKind::Invalid, "the places of samples are inconsistent")
                    .at("shard", shard)
            })?;
            let (estimate, bytes) = (read.estimate(), read.memory());
            let places = estimate.takes_parts().then(|| Arc::new(read.into_places()));
            let bytes = if places.is_some() { bytes } else { 0 };
            Ok(Answered { places, estimate: Some(estimate), bytes })
        });
        excerpts.answer(shard, answer);
    }
}

/// Returns true if an object was replaced while it was read.
pub(super) fn is_changed(error: &Error) -> bool {
    error.place("reason") == Some("changed")
}

/// Samples of a shard that a job reads, and the layout of the members that it wants.
struct Located {
    /// Version, bytes and samples of the shard.
    shard: (Option<String>, u64, u64),
    excerpt: Excerpt,
    catalogue: Catalogue,
    /// Places in the shard of the samples that have bytes in the excerpt.
    rows: Vec<u64>,
}

impl Located {
    /// Reads places from the wire; none if they are inconsistent.
    fn read(located: message::Located, wanted: Option<&[Vec<String>]>) -> Option<Self> {
        let shard = (located.version.clone(), located.bytes, located.total);
        let (at, mut index) = samples_of(located)?;
        let (mut excerpt, mut rows) = (Excerpt::default(), Vec::with_capacity(at.len()));
        for (place, sample) in at.iter().zip(&index.samples) {
            if sample.bad.is_some() {
                continue;
            }
            let members = sample.members.start as usize..sample.members.end as usize;
            let own = &mut index.members[members];
            let (chosen, _) = wanted_members(&index.fields, own, wanted);
            let chosen: Vec<Member> = chosen.into_iter().map(|(_, member)| *member).collect();
            let before = excerpt.samples();
            for (old, new) in chosen.iter().zip(excerpt.add(&chosen)?) {
                let same = own.iter_mut().find(|one| **one == *old)?;
                same.offset = new.offset;
            }
            if excerpt.samples() > before {
                rows.push(*place as u64);
            }
        }
        Some(Self { shard, excerpt, catalogue: Catalogue::Sparse(at, index), rows })
    }

    /// Returns the cost of the excerpt and of the shard.
    fn estimate(&self) -> Estimate {
        let (bytes, requests) = self.excerpt.cost(REQUEST_BYTES);
        Estimate { bytes, requests, whole_bytes: self.shard.1 }
    }

    /// Returns the memory that it takes, or more.
    fn memory(&self) -> usize {
        let Catalogue::Sparse(_, index) = &self.catalogue else { return 0 };
        let keys: usize = index.samples.iter().map(|sample| sample.key.len()).sum();
        keys + SAMPLE_BYTES * index.samples.len() + MEMBER_BYTES * index.members.len()
    }

    fn into_places(self) -> ExcerptPlaces {
        ExcerptPlaces::new(self.shard, self.excerpt, self.catalogue, self.rows)
    }
}

#[cfg(test)]
mod tests {
    use super::super::located::tests::located;
    use super::*;

    #[test]
    fn members_are_placed_in_the_excerpt() {
        let jpg = [vec!["png".to_owned(), "jpg".to_owned()]];
        let places = [(3, 512, 7, 0), (5, 2048, 0, 0), (8, 4096, 600, 0)];
        let read = Located::read(located(9, &places), Some(&jpg)).unwrap();
        // A sample without bytes is in the catalogue alone.
        assert_eq!((read.rows, read.excerpt.samples()), (vec![3, 8], 2));
        let Catalogue::Sparse(at, index) = read.catalogue else { panic!("places of some samples") };
        assert_eq!(at, [3, 5, 8]);
        let offsets: Vec<_> = index.members.iter().map(|member| member.offset).collect();
        assert_eq!(offsets, [512, 1024, 1536]);
        let json = [vec!["json".to_owned()]];
        let none = Located::read(located(9, &places), Some(&json)).unwrap();
        assert!(none.rows.is_empty() && none.excerpt.is_empty());
    }

    /// A run that ends while it waits for room in the queue leaves no question that nobody asked.
    #[tokio::test]
    async fn question_of_an_ended_run_is_asked_by_the_next() {
        let (events, mut told) = mpsc::channel(1);
        let excerpts = Excerpts::new(events.clone());
        events.send(Event::Locate { shard: 9 }).await.unwrap();
        assert!(futures::poll!(std::pin::pin!(excerpts.of(0))).is_pending());
        assert!(matches!(told.recv().await, Some(Event::Locate { shard: 9 })));
        let mut next = std::pin::pin!(excerpts.of(0));
        assert!(futures::poll!(&mut next).is_pending());
        assert!(matches!(told.try_recv(), Ok(Event::Locate { shard: 0 })));
        excerpts.answer(0, Ok(Answered::default()));
        assert!(next.await.unwrap().is_none());
    }

    #[test]
    fn inconsistent_places_are_rejected() {
        assert!(Located::read(located(9, &[(3, 512, 7, 0), (3, 1024, 7, 0)]), None).is_none());
        assert!(Located::read(located(9, &[(9, 512, 7, 0)]), None).is_none());
    }
}
