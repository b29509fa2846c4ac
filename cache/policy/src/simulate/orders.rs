//! The orders that a trace names.

use super::{Order, Reader, Trace};
use crate::foresight::{Epoch, Epochs, Future, Use};

impl Trace {
    /// Returns a job's reads in the order that the trace names.
    #[must_use]
    pub fn future(&self, job: usize) -> Box<dyn Future> {
        let reader = self.jobs[job].clone();
        if !reader.uses.is_empty() {
            let shards: Vec<_> = reader.uses.iter().map(|one| one.shard).collect();
            let bytes = reader.uses.iter().map(|one| one.end).max().unwrap_or(0);
            let epoch = Epoch { uses: reader.uses, bytes };
            return Box::new(Epochs::new(shards, move |number| {
                (number == 0).then(|| epoch.clone())
            }));
        }
        let bytes = self.shards.clone();
        let shards = reader.shards.clone();
        Box::new(Epochs::new(shards, move |number| {
            (number < reader.epochs).then(|| reader.epoch(number, &bytes))
        }))
    }

    /// Bytes that a job reads in an epoch, of those that are alike.
    pub(super) fn epoch_bytes(&self, reader: &Reader) -> u64 {
        let all: u64 = reader.shards.iter().map(|shard| self.shards[*shard as usize]).sum();
        all / u64::from(reader.order.one_in())
    }
}

impl Order {
    /// Returns the number of shards of which an epoch reads one.
    pub(super) fn one_in(self) -> u32 {
        match self {
            Self::Fixed | Self::Reshuffled => 1,
            Self::Drawn { one_in } => one_in.max(1),
        }
    }
}

impl Reader {
    fn epoch(&self, number: u64, bytes: &[u64]) -> Epoch {
        let mut shards = self.shards.clone();
        if self.order != Order::Fixed {
            // Drawn, too: numbers in a row make generators that resemble each other.
            let mut seeds = fastrand::Rng::with_seed(self.seed);
            let seed = (0..=number).fold(0, |_, _| seeds.u64(..));
            fastrand::Rng::with_seed(seed).shuffle(&mut shards);
        }
        shards.truncate(shards.len() / self.order.one_in() as usize);
        let (mut uses, mut start) = (Vec::with_capacity(shards.len()), 0);
        for window in shards.chunks(self.window.max(1)) {
            let end = start + window.iter().map(|shard| bytes[*shard as usize]).sum::<u64>();
            uses.extend(window.iter().map(|&shard| Use { shard, start, end }));
            start = end;
        }
        Epoch { uses, bytes: start }
    }
}
