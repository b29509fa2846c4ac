//! Of which shards foresight decides.
//!
//! Its rule: a job tells all that it will read, whatever becomes of it; the rules in force say shard by shard whether foresight
//! decides that. Of what it does not decide no table hears, and its readers fetch it for themselves.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_policy::{JobId, Shard};

use super::{Forecast, Foreseen, Reader, State, Via};
use crate::directory::ObjectKey;

/// Whether foresight decides of a shard.
pub(super) fn ours(shards: &[Option<Foreseen>], shard: Shard) -> bool {
    shards.get(shard as usize).and_then(Option::as_ref).is_some_and(|known| known.is_ours)
}

/// A shard that jobs read, and how one of them asks for it.
pub(crate) struct Read {
    pub(crate) object: ObjectKey,
    via: Arc<Via>,
    at: u32,
}

impl Read {
    pub(crate) fn url(&self) -> Option<&str> {
        self.via.urls.get(self.at as usize).map(String::as_str)
    }
}

impl Reader {
    /// Its shards of which foresight decides.
    pub(super) fn ours(&self, shards: &[Option<Foreseen>]) -> impl Iterator<Item = Shard> {
        self.shards.iter().copied().filter(|shard| ours(shards, *shard))
    }
}

impl State {
    /// The number of a shard of which foresight decides.
    pub(super) fn ours(&self, object: ObjectKey) -> Option<Shard> {
        self.numbers.get(&object).copied().filter(|shard| ours(&self.shards, *shard))
    }
}

impl Forecast {
    /// The shards that a job reads, or all jobs do: for who is to say of which of them foresight decides.
    pub(crate) fn read_by(&self, job: Option<JobId>) -> Vec<Read> {
        let state = self.state();
        let known = state.shards.iter().flatten();
        let read = known.filter_map(|known| {
            let mut readers = known.readers.iter();
            let (reader, at) = readers.find(|(reader, _)| job.is_none_or(|job| job == *reader))?;
            let via = state.readers.get(reader)?.via.clone();
            Some(Read { object: known.object, via, at: *at })
        });
        read.collect()
    }

    /// Foresight decides of these shards from now on, or does so no more; whether that is new of any. The tables are to be told.
    pub(crate) fn decide(&self, decided: &[(ObjectKey, bool)]) -> bool {
        let state = &mut *self.state();
        let mut is_new = false;
        for (object, is_ours) in decided {
            // Whoever read it may have gone since.
            let Some(shard) = state.numbers.get(object).copied() else { continue };
            let Some(known) = &mut state.shards[shard as usize] else { continue };
            if known.is_ours == *is_ours {
                continue;
            }
            known.is_ours = *is_ours;
            for (reader, at) in &known.readers {
                let of = state.readers.get(reader).and_then(|of| of.ours.get(*at as usize));
                if let Some(of) = of {
                    of.store(*is_ours, Ordering::Relaxed);
                }
            }
            state.foresight.set_apart(shard, !is_ours);
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

    /// A job that reads these, one after the other, and of which of them foresight decides.
    fn join(forecast: &Forecast, job: JobId, names: &[&str]) -> Arc<[AtomicBool]> {
        let urls = names.iter().map(|name| (*name).to_owned()).collect();
        let options = Options::default();
        let via =
            Arc::new(Via { tenant: None, owner: job, job: None, client: None, options, urls });
        let objects: Vec<_> = names.iter().map(|name| (object(name), BYTES)).collect();
        forecast.join(job, ("job", via), &objects, |shards| {
            Box::new(Epochs::new(shards.clone(), move |number| {
                let starts = (0..).step_by(BYTES as usize);
                let one = |(&shard, start)| Use { shard, start, end: start + BYTES };
                let uses: Vec<_> = shards.iter().zip(starts).map(one).collect();
                let bytes = BYTES * uses.len() as u64;
                (number == 0).then_some(Epoch { uses, bytes })
            }))
        })
    }

    fn told(ours: &[AtomicBool]) -> Vec<bool> {
        ours.iter().map(|one| one.load(Ordering::Relaxed)).collect()
    }

    fn next(forecast: &Forecast) -> Option<ObjectKey> {
        forecast.next().ok().map(|next| next.object)
    }

    #[test]
    fn nothing_is_decided_of_a_shard_before_the_rules_say_so_nor_after_they_say_otherwise() {
        let forecast = Forecast::new();
        let ours = join(&forecast, 1, &["a", "b"]);
        assert_eq!(told(&ours), [false, false]);
        assert_eq!((next(&forecast), forecast.number(object("a"))), (None, None));
        assert_eq!(forecast.needed(object("a")), None);

        let read = forecast.read_by(Some(1));
        assert_eq!(read.iter().filter_map(Read::url).collect::<Vec<_>>(), ["a", "b"]);
        assert!(forecast.read_by(Some(2)).is_empty());
        assert!(forecast.decide(&[(object("a"), true), (object("nobody's"), true)]));
        assert!(!forecast.decide(&[(object("a"), true)]), "that is not new");
        assert_eq!(told(&ours), [true, false]);
        assert_eq!((next(&forecast), forecast.needed(object("a"))), (Some(object("a")), Some(NOW)));
        assert_eq!(forecast.number(object("b")), None);
        assert_eq!(forecast.report(0).jobs[0].shards, 1);
        let trace = forecast.trace(0, 1);
        assert_eq!((trace.jobs[0].shards.len(), trace.jobs[0].uses.len()), (1, 1));

        // Who comes later hears of it at once, and of what changes as the others do.
        let later = join(&forecast, 2, &["b", "a"]);
        assert_eq!(told(&later), [false, true]);
        assert_eq!(forecast.read_by(None).len(), 2);
        assert!(forecast.decide(&[(object("a"), false), (object("b"), true)]));
        assert_eq!((told(&ours), told(&later)), (vec![false, true], vec![true, false]));
        assert_eq!((next(&forecast), forecast.number(object("a"))), (Some(object("b")), None));
    }

    #[test]
    fn a_fetch_that_ends_under_other_rules_has_ended() {
        let forecast = Forecast::new();
        join(&forecast, 1, &["a"]);
        forecast.decide(&[(object("a"), true)]);
        let shard = forecast.next().ok().map(|next| next.shard).unwrap();
        forecast.begins(shard);
        assert_eq!(next(&forecast), None, "it is on its way");
        forecast.decide(&[(object("a"), false)]);
        forecast.ended(object("a"), None);
        assert_eq!(next(&forecast), None);
        forecast.decide(&[(object("a"), true)]);
        assert_eq!(next(&forecast), Some(object("a")), "it is wanted again");
    }
}
