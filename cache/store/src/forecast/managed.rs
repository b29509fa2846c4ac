//! Shards that the forecast decides about.
//!
//! A job announces everything it will read. For each shard the current rules and the members of the
//! cluster give its role. A kept shard is fetched and evicted by the forecast. A guest, which
//! another node keeps, is only evicted by it. No table hears of the other shards, and their readers
//! fetch them themselves.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_policy::{JobId, Role, Shard};
use forebay_source::Options;

use super::{Forecast, ForecastJob, ForecastState, ForeseenShard, ReadContext, Scope};
use crate::directory::ObjectKey;

/// Returns true if the forecast fetches a shard.
pub(super) fn managed(shards: &[Option<ForeseenShard>], shard: Shard) -> bool {
    role(shards, shard) == Role::Kept
}

fn role(shards: &[Option<ForeseenShard>], shard: Shard) -> Role {
    let known = shards.get(shard as usize).and_then(Option::as_ref);
    known.map_or(Role::Apart, |known| known.role)
}

/// A shard that jobs read, and the settings of one reader.
pub(crate) struct AnnouncedShard {
    pub(crate) object: ObjectKey,
    via: Arc<ReadContext>,
    at: u32,
}

impl AnnouncedShard {
    pub(crate) fn url(&self) -> Option<&str> {
        self.via.urls.get(self.at as usize).map(String::as_str)
    }

    pub(crate) fn options(&self) -> &Options {
        &self.via.options
    }
}

impl ForecastJob {
    /// Returns true if it is a job of this node.
    pub(super) fn is_of_node(&self) -> bool {
        self.via.scope != Scope::Cluster
    }

    /// Shards that the forecast fetches.
    pub(super) fn managed(&self, shards: &[Option<ForeseenShard>]) -> impl Iterator<Item = Shard> {
        self.shards.iter().copied().filter(|shard| managed(shards, *shard))
    }
}

impl ForecastState {
    /// Id of a shard that the forecast evicts.
    pub(super) fn foreseen(&self, object: ObjectKey) -> Option<Shard> {
        let shard = self.numbers.get(&object).copied();
        shard.filter(|shard| role(&self.shards, *shard) != Role::Apart)
    }
}

impl Forecast {
    /// Shards that one job reads, or that all jobs read, so that the caller can decide about each.
    pub(crate) fn announced_shards(&self, job: Option<JobId>) -> Vec<AnnouncedShard> {
        let state = self.state();
        let known = state.shards.iter().flatten();
        let read = known.filter_map(|known| {
            let mut readers = known.readers.iter();
            let (reader, at) = readers.find(|(reader, _)| job.is_none_or(|job| job == *reader))?;
            let via = state.readers.get(reader)?.via.clone();
            Some(AnnouncedShard { object: known.object, via, at: *at })
        });
        read.collect()
    }

    /// Sets the role of each shard. Returns true if that changed any; then the tables must be told.
    pub(crate) fn set_roles(&self, decided: &[(ObjectKey, Role)]) -> bool {
        let state = &mut *self.state();
        let mut is_new = false;
        for (object, role) in decided {
            // Its readers may be gone.
            let Some(shard) = state.numbers.get(object).copied() else { continue };
            let Some(known) = &mut state.shards[shard as usize] else { continue };
            if known.role == *role {
                continue;
            }
            known.role = *role;
            for (reader, at) in &known.readers {
                let of = state.readers.get(reader).and_then(|of| of.managed.get(*at as usize));
                if let Some(of) = of {
                    of.store(*role == Role::Kept, Ordering::Relaxed);
                }
            }
            state.foresight.set_role(shard, *role);
            is_new = true;
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use forebay_policy::{Epoch, Epochs, NOW, Use};
    use forebay_source::Options;

    use super::*;

    const BYTES: u64 = 1000;

    fn object(name: &str) -> ObjectKey {
        ObjectKey::new("", name)
    }

    /// Adds a job that reads these shards one after the other.
    fn join(forecast: &Forecast, job: JobId, names: &[&str]) -> Arc<[AtomicBool]> {
        let urls = names.iter().map(|name| (*name).to_owned()).collect();
        let options = Options::default();
        let via = Arc::new(ReadContext {
            scope: Scope::Node(1.0),
            tenant: None,
            owner: job,
            job: None,
            client: None,
            options,
            urls,
        });
        let objects: Vec<_> = names.iter().map(|name| (object(name), BYTES)).collect();
        forecast.add_job(job, ("job", via), &objects, |shards| {
            Box::new(Epochs::new(shards.clone(), move |number| {
                let starts = (0..).step_by(BYTES as usize);
                let one = |(&shard, start)| Use { shard, start, end: start + BYTES };
                let uses: Vec<_> = shards.iter().zip(starts).map(one).collect();
                let bytes = BYTES * uses.len() as u64;
                (number == 0).then_some(Epoch { uses, bytes })
            }))
        })
    }

    fn values(managed: &[AtomicBool]) -> Vec<bool> {
        managed.iter().map(|one| one.load(Ordering::Relaxed)).collect()
    }

    fn next(forecast: &Forecast) -> Option<ObjectKey> {
        forecast.next_fetch().ok().map(|next| next.object)
    }

    #[test]
    fn forecast_manages_only_shards_that_rules_allow() {
        let forecast = Forecast::new();
        let managed = join(&forecast, 1, &["a", "b"]);
        assert_eq!(values(&managed), [false, false]);
        assert_eq!((next(&forecast), forecast.shard_id(object("a"))), (None, None));
        assert_eq!(forecast.next_use(object("a")), None);

        let read = forecast.announced_shards(Some(1));
        assert_eq!(read.iter().filter_map(AnnouncedShard::url).collect::<Vec<_>>(), ["a", "b"]);
        assert!(forecast.announced_shards(Some(2)).is_empty());
        assert!(forecast.set_roles(&[(object("a"), Role::Kept), (object("nobody's"), Role::Kept)]));
        assert!(!forecast.set_roles(&[(object("a"), Role::Kept)]), "that is not new");
        assert_eq!(values(&managed), [true, false]);
        assert_eq!(
            (next(&forecast), forecast.next_use(object("a"))),
            (Some(object("a")), Some(NOW))
        );
        assert_eq!(forecast.shard_id(object("b")), None);
        assert_eq!(forecast.report(0).jobs[0].shards, 1);
        let trace = forecast.trace(0, 1);
        assert_eq!((trace.jobs[0].shards.len(), trace.jobs[0].uses.len()), (1, 1));

        // A later job gets the decisions at once, and each change as the others do.
        let later = join(&forecast, 2, &["b", "a"]);
        assert_eq!(values(&later), [false, true]);
        assert_eq!(forecast.announced_shards(None).len(), 2);
        assert!(forecast.set_roles(&[(object("a"), Role::Apart), (object("b"), Role::Kept)]));
        assert_eq!((values(&managed), values(&later)), (vec![false, true], vec![true, false]));
        assert_eq!((next(&forecast), forecast.shard_id(object("a"))), (Some(object("b")), None));
    }

    #[test]
    fn fetch_may_end_under_other_rules() {
        let forecast = Forecast::new();
        join(&forecast, 1, &["a"]);
        forecast.set_roles(&[(object("a"), Role::Kept)]);
        let shard = forecast.next_fetch().ok().map(|next| next.shard).unwrap();
        forecast.note_fetch_start(shard);
        assert_eq!(next(&forecast), None, "it is on its way");
        forecast.set_roles(&[(object("a"), Role::Apart)]);
        forecast.note_fetch_end(object("a"), None);
        assert_eq!(next(&forecast), None);
        forecast.set_roles(&[(object("a"), Role::Kept)]);
        assert_eq!(next(&forecast), Some(object("a")), "it is wanted again");
    }
}
