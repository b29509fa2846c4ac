//! Nodes that know nothing of each other: each keeps whole shards for itself.

use std::collections::BinaryHeap;

use serde::Serialize;

use super::{FORESEEN_EPOCHS, Piece};
use crate::evict::Evict;

/// Priority of a shard that is not read again as far as one looks.
pub(super) const NEVER: usize = usize::MAX;

/// Bytes of nodes without a cluster in an epoch, in data sets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Alone {
    /// Bytes from the origin.
    pub origin: f64,
    /// Bytes written to caches.
    pub written: f64,
}

impl Alone {
    /// Adds a part of another.
    pub(super) fn add(&mut self, other: Self, part: f64) {
        self.origin += other.origin * part;
        self.written += other.written * part;
    }
}

/// Reads of a node: shards with the units read of each, in order, and the ends of its epochs.
#[derive(Clone, Default)]
pub(super) struct NodeReads {
    pub(super) shards: Vec<u32>,
    pub(super) units: Vec<u32>,
    pub(super) ends: Vec<usize>,
}

/// Reads of every reader.
pub(super) struct Reads(Vec<NodeReads>);

impl Reads {
    pub(super) fn new(readers: usize) -> Self {
        Self(vec![NodeReads::default(); readers])
    }

    /// Adds an epoch of a reader.
    pub(super) fn add(&mut self, reader: usize, pieces: &[Piece]) {
        let NodeReads { shards, units, ends } = &mut self.0[reader];
        shards.extend(pieces.iter().map(|piece| piece.shard));
        // At most the lanes, or the nodes.
        units.extend(pieces.iter().map(|piece| u32::try_from(piece.units).unwrap_or(u32::MAX)));
        ends.push(shards.len());
    }

    pub(super) fn of(&self, reader: usize) -> &NodeReads {
        &self.0[reader]
    }
}

/// Cache of one node after the other.
pub(super) struct Cache {
    /// Priority of each cached shard: that of the highest is evicted first.
    cached: Vec<Option<usize>>,
    /// Next read of each shard, while reads are passed backwards.
    next: Vec<usize>,
}

impl Cache {
    pub(super) fn new(shards: usize) -> Self {
        Self { cached: vec![None; shards], next: vec![NEVER; shards] }
    }

    /// Plays a reader whose cache holds `room` shards, and returns the shards of each epoch.
    pub(super) fn play(
        &mut self,
        reads: &Reads,
        reader: usize,
        room: u64,
        evict: Evict,
    ) -> Vec<Alone> {
        let NodeReads { shards, ends, .. } = reads.of(reader);
        let priorities: Vec<usize> = match evict {
            Evict::Clairvoyant => self.next_reads(shards, ends),
            _ => (0..shards.len()).rev().collect(),
        };
        let (mut epochs, mut first_out) = (Vec::with_capacity(ends.len()), BinaryHeap::new());
        let (mut cached, mut at) = (0, 0);
        for end in ends {
            let mut alone = Alone::default();
            for (shard, priority) in shards[at..*end].iter().zip(&priorities[at..*end]) {
                let was = self.cached[*shard as usize].replace(*priority);
                if was.is_none() {
                    alone.origin += 1.0;
                    if room == 0 {
                        self.cached[*shard as usize] = None;
                        continue;
                    }
                    alone.written += 1.0;
                    match cached == room {
                        true => self.evict(&mut first_out),
                        false => cached += 1,
                    }
                }
                first_out.push((*priority, *shard));
            }
            at = *end;
            epochs.push(alone);
        }
        shards.iter().for_each(|shard| self.cached[*shard as usize] = None);
        epochs
    }

    /// Evicts the first shard in line; entries that are older than its last read count for nothing.
    fn evict(&mut self, first_out: &mut BinaryHeap<(usize, u32)>) {
        while let Some((priority, shard)) = first_out.pop() {
            let cached = &mut self.cached[shard as usize];
            if *cached == Some(priority) {
                *cached = None;
                return;
            }
        }
    }

    /// Returns the next read of each read's shard, as far as one looks.
    pub(super) fn next_reads(&mut self, shards: &[u32], ends: &[usize]) -> Vec<usize> {
        let mut nexts = vec![NEVER; shards.len()];
        let Some(last) = ends.len().checked_sub(1) else { return nexts };
        for (epoch, end) in ends.iter().enumerate().rev() {
            let foreseen = ends[(epoch + FORESEEN_EPOCHS as usize).min(last)];
            let begin = epoch.checked_sub(1).map_or(0, |before| ends[before]);
            for at in (begin..*end).rev() {
                let next = std::mem::replace(&mut self.next[shards[at] as usize], at);
                nexts[at] = if next < foreseen { next } else { NEVER };
            }
        }
        shards.iter().for_each(|shard| self.next[*shard as usize] = NEVER);
        nexts
    }
}
