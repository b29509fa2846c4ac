//! A future that goes on epoch after epoch, each made when somebody looks that far.

use std::collections::{HashSet, VecDeque};
use std::fmt;

use super::{Future, Shard, Use};

/// Epochs that one looks ahead for the next use of a shard: a job that draws an eighth of its data
/// set for each epoch comes to a shard again within eight of them in two of three cases.
const LOOK: usize = 8;

/// Reads of one epoch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Epoch {
    /// Uses in order of their start, counted from the epoch's start. A shard may have several.
    pub uses: Vec<Use>,
    /// Bytes that the job reads in it.
    pub bytes: u64,
}

/// Epochs one after the other, as `make` gives them by their number; none is the end.
pub struct Epochs<F> {
    make: F,
    /// The shards that any of them may read.
    shards: HashSet<Shard>,
    /// Number created so far.
    count: u64,
    /// Those that somebody may still ask about.
    made: VecDeque<Made>,
}

struct Made {
    /// Uses and bytes before it.
    first: u64,
    start: u64,
    epoch: Epoch,
    /// Uses sorted by shard.
    by_shard: Vec<(Shard, u32)>,
}

impl Made {
    /// The first use that is not its own, and where it begins.
    fn past(&self) -> (u64, u64) {
        (self.first + self.epoch.uses.len() as u64, self.start + self.epoch.bytes)
    }

    fn at(&self, place: usize) -> Use {
        let Use { shard, start, end } = self.epoch.uses[place];
        Use { shard, start: self.start + start, end: self.start + end }
    }
}

impl<F> fmt::Debug for Epochs<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Epochs").field("made", &self.count).finish_non_exhaustive()
    }
}

impl<F: FnMut(u64) -> Option<Epoch>> Epochs<F> {
    /// Epochs of these shards.
    pub fn new(shards: impl IntoIterator<Item = Shard>, make: F) -> Self {
        Self { make, shards: shards.into_iter().collect(), count: 0, made: VecDeque::new() }
    }

    /// Makes one epoch more; whether there was one. One that reads nothing, or no byte, is the end:
    /// as many as one likes could follow it, all of them where it begins.
    fn grow(&mut self) -> bool {
        let goes_on = |epoch: &Epoch| !epoch.uses.is_empty() && epoch.bytes > 0;
        let made = (self.make)(self.count).filter(goes_on);
        let Some(epoch) = made else { return false };
        self.count += 1;
        let (first, start) = self.made.back().map_or((0, 0), Made::past);
        let places = epoch.uses.iter().zip(0..);
        let mut by_shard: Vec<_> = places.map(|(one, place)| (one.shard, place)).collect();
        by_shard.sort_unstable();
        self.made.push_back(Made { first, start, epoch, by_shard });
        true
    }
}

impl<F: FnMut(u64) -> Option<Epoch> + Send> Future for Epochs<F> {
    fn at(&mut self, index: u64) -> Option<Use> {
        loop {
            if let Some(made) = self.made.iter().find(|made| index < made.past().0) {
                return index.checked_sub(made.first).map(|place| made.at(place as usize));
            }
            if !self.grow() {
                return None;
            }
        }
    }

    fn next(&mut self, shard: Shard, index: u64) -> Option<Use> {
        self.use_of(shard, index, 0)
    }

    fn second(&mut self, shard: Shard, index: u64) -> Option<Use> {
        self.use_of(shard, index, 1)
    }
}

impl<F: FnMut(u64) -> Option<Epoch> + Send> Epochs<F> {
    /// The use of `shard` from number `index` on, after so many others of it.
    fn use_of(&mut self, shard: Shard, index: u64, mut others: usize) -> Option<Use> {
        if !self.shards.contains(&shard) {
            return None;
        }
        while self.made.len() > 1 && self.made.front().is_some_and(|made| made.past().0 <= index) {
            self.made.pop_front();
        }
        for ahead in 0..LOOK {
            if self.made.len() <= ahead && !self.grow() {
                return None;
            }
            let made = &self.made[ahead];
            // Places fit: an epoch's uses are in memory.
            let from = index.saturating_sub(made.first).min(u64::from(u32::MAX)) as u32;
            let at = made.by_shard.partition_point(|one| *one < (shard, from));
            let of_shard = made.by_shard[at..].iter().take_while(|(other, _)| *other == shard);
            let mut uses = of_shard.map(|(_, place)| made.at(*place as usize));
            if let Some(found) = uses.nth(others) {
                return Some(found);
            }
            others -= made.by_shard[at..].iter().take_while(|(other, _)| *other == shard).count();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epochs(lists: &'static [&'static [Shard]]) -> Epochs<impl FnMut(u64) -> Option<Epoch>> {
        let shards = lists.iter().flat_map(|list| list.iter().copied());
        Epochs::new(shards, |number| {
            let list = lists.get(usize::try_from(number).unwrap())?;
            let one = |(&shard, start): (&Shard, u64)| Use { shard, start, end: start + 1 };
            Some(Epoch { uses: list.iter().zip(0..).map(one).collect(), bytes: list.len() as u64 })
        })
    }

    #[test]
    fn uses_continue_across_epochs() {
        let mut future = epochs(&[&[0, 1, 2], &[2, 0], &[1, 1, 0]]);
        let all: Vec<_> = (0..).map_while(|index| future.at(index)).collect();
        let seen: Vec<_> = all.iter().map(|one| one.shard).collect();
        assert_eq!(seen, [0, 1, 2, 2, 0, 1, 1, 0]);
        assert!(all.iter().zip(0..).all(|(one, at)| (one.start, one.end) == (at, at + 1)));
        for index in 0..8 {
            for shard in 0..3 {
                let later = all[index as usize..].iter().find(|one| one.shard == shard);
                assert_eq!(future.next(shard, index), later.copied(), "{shard} from {index}");
                let mut uses = all[index as usize..].iter().filter(|one| one.shard == shard);
                assert_eq!(future.second(shard, index), uses.nth(1).copied());
            }
        }
        assert_eq!(future.next(7, 0), None);
        assert!(future.made.len() <= 2, "what is over is forgotten");
    }

    /// Epochs without bytes all begin at once; a search for the first would not end.
    #[test]
    fn epochs_without_bytes_have_no_uses() {
        let uses = vec![Use { shard: 0, start: 0, end: 0 }];
        let mut future = Epochs::new([0], |_| Some(Epoch { uses: uses.clone(), bytes: 0 }));
        assert_eq!((future.at(0), future.next(0, 0)), (None, None));
    }

    #[test]
    fn lookups_stop_after_a_fixed_number_of_epochs() {
        let mut looked = 0;
        let mut future = Epochs::new([0, 1], |_| {
            looked += 1;
            Some(Epoch { uses: vec![Use { shard: 0, start: 0, end: 1 }], bytes: 1 })
        });
        assert_eq!(future.next(1, 0), None);
        assert_eq!(future.next(2, 0), None, "a stranger makes nobody look");
        drop(future);
        assert_eq!(looked, LOOK);
    }
}
