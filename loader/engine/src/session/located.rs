//! Places of members that a job's own index has, and the parts of shards that it read by them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_error::{Error, ErrorKind, Result};
use forebay_policy::access::Spent;
use forebay_shard::{Catalogue, Index, Member, Sample};
use forebay_store::{Places, ShardHandle, Urgency};
use forebay_wire::message::{self, IndexedSample};

use super::JobData;

/// Places of a job's samples, by shard.
#[derive(Debug, Default)]
pub(crate) struct Located(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    places: HashMap<u32, Arc<Places>>,
    /// Cost of the parts read so far of shards that are not here.
    spent: HashMap<u32, Spent>,
}

impl Located {
    /// Sets the places of the samples that are read from now on, of `shards` shards.
    ///
    /// # Errors
    /// `Invalid` for places that no shard of the job can have.
    pub(super) fn set(&self, located: Vec<message::Located>, shards: usize) -> Result<()> {
        let mut places = HashMap::with_capacity(located.len());
        for one in located {
            let shard = one.shard;
            let read = places_of(one).filter(|_| (shard as usize) < shards);
            let read = read.ok_or_else(|| {
                Error::new(ErrorKind::Invalid, "the places of samples are inconsistent")
                    .at("shard", shard)
            })?;
            places.insert(shard, Arc::new(read));
        }
        self.state().places = places;
        Ok(())
    }

    /// Forgets the places of all shards: the next run gave none.
    pub(super) fn clear(&self) {
        self.state().places.clear();
    }

    /// Places of samples of a shard, if the job gave some.
    pub(super) fn of(&self, shard: u32) -> Option<Arc<Places>> {
        self.state().places.get(&shard).cloned()
    }

    /// Forgets the places of a shard, which is read as a whole.
    fn forget(&self, shard: u32) {
        self.state().places.remove(&shard);
    }

    /// Adds the cost of a read. Returns true once the shard, of `len` bytes, is worth fetching.
    fn spend(&self, shard: u32, (bytes, requests): (u64, u64), len: u64) -> bool {
        let mut state = self.state();
        let spent = state.spent.entry(shard).or_default();
        spent.add(bytes, requests);
        let is_due = spent.pays_for(len);
        if is_due {
            // If it finds no room, it is tried again after as many reads.
            state.spent.remove(&shard);
        }
        is_due
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl JobData {
    /// Opens a shard for samples that are awaited: by ranges where the request has their places, by
    /// an excerpt where the job reads those, else as a whole.
    ///
    /// # Errors
    /// As [`forebay_store::Store::open_ranges`] and [`forebay_store::Store::shard`].
    pub(super) async fn open_shard(&self, shard: u32) -> Result<ShardHandle> {
        let url = self.url(shard);
        if let Some(places) = self.located.of(shard)
            && let Some(open) = self.store.open_ranges(url, &self.origin, &places).await?
        {
            return Ok(open);
        }
        match self.open_excerpt(shard, Urgency::Needed).await? {
            Some(open) => Ok(open),
            None => self.store.shard(url, &self.origin, Urgency::Needed).await,
        }
    }

    /// Notes a read of parts of a shard that is not here: its bytes and its requests. A shard whose
    /// parts have cost as much as the whole is fetched, behind all that is awaited.
    pub(super) fn note_parts(&self, shard: u32, read: (u64, u64)) {
        let Some(places) = self.located.of(shard) else { return };
        if !self.located.spend(shard, read, places.shard_len()) {
            return;
        }
        let (store, url) = (self.store.clone(), self.url(shard).to_owned());
        let origin = self.origin.clone();
        tokio::spawn(async move {
            if let Err(error) = store.shard(&url, &origin, Urgency::Ahead).await {
                let url = forebay_error::shown(&url);
                tracing::debug!(url, %error, "a shard is read by parts: it cannot be fetched");
            }
        });
    }

    /// Judges a read of parts of a shard that failed. Returns if the shard is to be read as a whole
    /// from now on.
    ///
    /// # Errors
    /// As [`forebay_store::Store::judge_ranges`].
    pub(super) async fn judge_parts(&self, shard: u32, error: Error) -> Result<()> {
        let Some(places) = self.located.of(shard) else { return Err(error) };
        self.store.judge_ranges(self.url(shard), &self.origin, &places, error).await?;
        self.located.forget(shard);
        Ok(())
    }
}

/// Reads places from the wire; none if they are inconsistent.
fn places_of(located: message::Located) -> Option<Places> {
    let (version, bytes, total) = (located.version.clone(), located.bytes, located.total);
    let (at, index) = samples_of(located)?;
    Some(Places::new(version, bytes, total, Catalogue::Sparse(at, index)))
}

/// Reads samples and their places in the shard from the wire; none if they are inconsistent.
pub(super) fn samples_of(located: message::Located) -> Option<(Vec<usize>, Index)> {
    let message::Located { bytes, total, fields, samples, .. } = located;
    let (mut at, mut index) = (Vec::with_capacity(samples.len()), Index::default());
    for (place, IndexedSample { key, bad, members }) in samples {
        if place >= total {
            return None;
        }
        let place = usize::try_from(place).ok()?;
        if at.last().is_some_and(|last| *last >= place) {
            return None;
        }
        at.push(place);
        let start = u32::try_from(index.members.len()).ok()?;
        for message::Indexed { field, offset, len, crc32c } in members {
            let end = offset.checked_add(len)?;
            if end > bytes || field as usize >= fields.len() {
                return None;
            }
            index.members.push(Member { field, offset, len, crc32c });
        }
        let own = &index.members[start as usize..];
        let (offset, end) =
            (own.first().map_or(0, |one| one.offset), own.last().map_or(0, Member::end));
        let members = start..u32::try_from(index.members.len()).ok()?;
        index.samples.push(Sample { key, offset, end, members, bad });
    }
    index.fields = fields;
    Some((at, index))
}

#[cfg(test)]
pub(in crate::session) mod tests {
    use forebay_wire::message::Indexed;

    use super::*;

    pub(in crate::session) fn located(
        total: u64,
        samples: &[(u64, u64, u64, u32)],
    ) -> message::Located {
        let sample = |&(place, offset, len, field): &(u64, u64, u64, u32)| {
            let members = vec![Indexed { field, offset, len, crc32c: 0 }];
            (place, IndexedSample { key: place.to_string(), bad: None, members })
        };
        message::Located {
            shard: 0,
            version: None,
            bytes: 10_000,
            total,
            fields: vec!["jpg".to_owned()],
            samples: samples.iter().map(sample).collect(),
        }
    }

    #[test]
    fn places_outside_of_the_shard_are_rejected() {
        let places = |total, samples: &[_]| {
            Located::default().set(vec![located(total, samples)], 1).map_err(|error| error.kind())
        };
        assert_eq!(places(9, &[(0, 512, 9488, 0), (8, 0, 1, 0)]), Ok(()));
        for (total, samples) in [
            (9, &[(0, 512, 9489, 0)][..]),
            (9, &[(0, u64::MAX, 2, 0)]),
            (9, &[(9, 0, 1, 0)]),
            (9, &[(0, 0, 1, 1)]),
            (9, &[(2, 0, 1, 0), (2, 0, 1, 0)]),
            (9, &[(2, 0, 1, 0), (1, 0, 1, 0)]),
        ] {
            assert_eq!(places(total, samples), Err(ErrorKind::Invalid), "{samples:?}");
        }
        let other = Located::default().set(vec![located(9, &[])], 0);
        assert_eq!(other.unwrap_err().kind(), ErrorKind::Invalid, "there is no such shard");
    }

    #[test]
    fn samples_are_found_by_their_places_alone() {
        let job = Located::default();
        job.set(vec![located(9, &[(3, 512, 7, 0), (8, 1024, 9, 0)])], 1).unwrap();
        assert!(job.of(0).is_some() && job.of(1).is_none());
        job.set(Vec::new(), 1).unwrap();
        assert!(job.of(0).is_none());
    }
}
