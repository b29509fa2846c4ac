//! What a simulated job reads: shards in an order that is drawn anew for each epoch, or always the same.

use std::collections::VecDeque;

use super::Order;
use crate::foresight::{Future, Shard, Use};

/// Epochs that one looks ahead for the next use of a shard: a job that reads a random eighth of its data set in each epoch
/// comes to a shard again within eight in two of three cases.
const LOOK: usize = 8;

/// A shard that an epoch does not read.
const UNREAD: u32 = u32::MAX;

/// A job's epochs, one after the other. Two of the same parameters are alike.
#[derive(Debug, Clone)]
pub(super) struct Epochs {
    seed: u64,
    /// Its shards, and their bytes.
    shards: Vec<(Shard, u64)>,
    order: Order,
    window: usize,
    epochs: u64,
    /// Those that somebody may still ask about.
    made: VecDeque<Epoch>,
}

#[derive(Debug, Clone)]
struct Epoch {
    number: u64,
    /// How many uses and bytes were before it.
    first: u64,
    uses: Vec<Use>,
    /// Which of its uses is a shard's, by the shard.
    place: Vec<u32>,
    end: u64,
}

impl Epoch {
    fn past(&self) -> u64 {
        self.first + self.uses.len() as u64
    }
}

impl Epochs {
    pub(super) fn new(
        seed: u64,
        shards: Vec<(Shard, u64)>,
        (order, window): (Order, usize),
        epochs: u64,
    ) -> Self {
        Self { seed, shards, order, window: window.max(1), epochs, made: VecDeque::new() }
    }

    /// Shards that an epoch reads.
    pub(super) fn uses_per_epoch(&self) -> u64 {
        match self.order {
            Order::Fixed | Order::Reshuffled => self.shards.len() as u64,
            Order::Drawn { one_in } => self.shards.len() as u64 / u64::from(one_in.max(1)),
        }
    }

    fn make(&self, number: u64, first: u64, start: u64) -> Epoch {
        let mut shards = self.shards.clone();
        if self.order != Order::Fixed {
            // Drawn, too: numbers in a row make generators that resemble each other.
            let mut seeds = fastrand::Rng::with_seed(self.seed);
            let seed = (0..=number).fold(0, |_, _| seeds.u64(..));
            fastrand::Rng::with_seed(seed).shuffle(&mut shards);
        }
        shards.truncate(self.uses_per_epoch() as usize);
        let top = self.shards.iter().map(|(shard, _)| shard + 1).max().unwrap_or(0);
        let mut place = vec![UNREAD; top as usize];
        let mut uses = Vec::with_capacity(shards.len());
        let mut start = start;
        for window in shards.chunks(self.window) {
            let end = start + window.iter().map(|(_, bytes)| bytes).sum::<u64>();
            for &(shard, _) in window {
                place[shard as usize] = uses.len() as u32;
                uses.push(Use { shard, start, end });
            }
            start = end;
        }
        Epoch { number, first, uses, place, end: start }
    }

    /// Makes one epoch more, unless that was the last.
    fn grow(&mut self) -> bool {
        let after = |last: &Epoch| (last.number + 1, last.past(), last.end);
        let (number, first, start) = self.made.back().map_or((0, 0, 0), after);
        // One that reads nothing would be followed by as many as one likes.
        let goes_on = number < self.epochs && self.uses_per_epoch() > 0;
        if goes_on {
            self.made.push_back(self.make(number, first, start));
        }
        goes_on
    }
}

impl Future for Epochs {
    fn at(&mut self, index: u64) -> Option<Use> {
        loop {
            if let Some(epoch) = self.made.iter().find(|epoch| index < epoch.past()) {
                return index.checked_sub(epoch.first).map(|at| epoch.uses[at as usize]);
            }
            if !self.grow() {
                return None;
            }
        }
    }

    fn next(&mut self, shard: Shard, index: u64) -> Option<Use> {
        while self.made.front().is_some_and(|epoch| epoch.past() <= index) && self.made.len() > 1 {
            self.made.pop_front();
        }
        let reads = self.made.front().is_none_or(|epoch| (shard as usize) < epoch.place.len());
        for ahead in (0..LOOK).take_while(|_| reads) {
            if self.made.len() <= ahead && !self.grow() {
                return None;
            }
            let epoch = &self.made[ahead];
            let place = epoch.place.get(shard as usize).copied().unwrap_or(UNREAD);
            if place != UNREAD && epoch.first + u64::from(place) >= index {
                return Some(epoch.uses[place as usize]);
            }
        }
        None
    }
}
