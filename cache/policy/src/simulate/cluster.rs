//! A cluster under one job: bytes from the origin and between nodes, epoch by epoch.
//!
//! Bytes are counted and no time passes. Shards are equal. Each epoch permutes them anew, cuts the
//! row into lanes and gives each node its own, as a loader does. A node keeps the shards that it
//! owns and has room for; of all others it reads records from their owners, who read what they have
//! no room for from the origin. In the room that its own shards leave, a node keeps copies of
//! others' shards, as long as it will read them again ([`guests`]).

mod alone;
mod guests;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use alone::{Cache, NodeReads, Reads};
use forebay_error::{Error, ErrorKind, Result};
use guests::{GuestRead, Guests};
use serde::Serialize;

use crate::evict::Evict;

pub use alone::Alone;

/// A node's number.
pub type NodeNumber = u32;

/// Owner of a shard among the nodes that are left.
pub type Heirs = Box<dyn Fn(u32) -> NodeNumber>;

/// Epochs that fill the caches: the first fetches everything, the second finds it.
const WARM_EPOCHS: u64 = 2;

/// Epochs that a node alone foresees, as a daemon does.
const FORESEEN_EPOCHS: u64 = 8;

/// Largest number of reads that are played: 256 MiB of shards and their units.
const READS_MAX: u64 = 1 << 25;

/// Cluster and job.
#[derive(Debug, Clone)]
pub struct Cluster {
    /// Shards that each node's cache holds.
    pub rooms: Vec<u64>,
    /// Weight of each node in placement.
    pub slots: Vec<u16>,
    /// Owner of each shard.
    pub owners: Vec<NodeNumber>,
    /// Lanes of the job's order, of which each node reads equally many in a row. `None` if ranks
    /// take slices: each node then reads a part of every shard.
    pub lanes: Option<u32>,
    /// Number of epochs that are counted.
    pub epochs: u64,
    /// Seed of the orders.
    pub seed: u64,
}

/// Results: the first epoch, the mean of those counted, and each of them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClusterReport {
    /// The epoch that finds every cache empty.
    pub cold: Figures,
    /// Means of the counted epochs.
    pub warm: Figures,
    /// The counted epochs.
    pub epochs: Vec<Figures>,
    /// Shards of the most loaded owner, over the mean of nodes of its slots.
    pub imbalance: f64,
    /// Part of the data set whose owners have no room for it.
    pub without_room: f64,
}

/// Bytes of an epoch, in data sets.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Bytes from the origin.
    pub origin: f64,
    /// Bytes from nodes to others.
    pub peer: f64,
    /// The same if nodes copied no shards of others.
    pub records: f64,
    /// Bytes written to caches.
    pub written: f64,
    /// Bytes that a node receives from others, over those that it reads.
    pub received: Spread,
    /// Bytes that a node sends to others, over those that it reads.
    pub served: Spread,
    /// Caches without a cluster that foresee every read.
    pub clairvoyant: Alone,
    /// Caches without a cluster that evict the shard used longest ago.
    pub lru: Alone,
}

/// A figure of all nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Spread {
    /// Least.
    pub min: f64,
    /// Mean.
    pub mean: f64,
    /// Most.
    pub max: f64,
}

/// Effects of lost nodes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Loss {
    /// The lost nodes: those that kept most.
    pub nodes: Vec<NodeNumber>,
    /// Bytes that they kept and their heirs fetch from the origin, in data sets.
    pub anew: f64,
    /// Bytes from the origin in each later epoch: what finds no room.
    pub origin: f64,
    /// Shards of the most loaded owner, over the mean of nodes of its slots, from then on.
    pub imbalance: f64,
}

/// A part of a shard that a node reads at once; shards have as many units as there are lanes.
#[derive(Debug, Clone, Copy)]
struct Piece {
    shard: u32,
    units: u64,
}

impl Cluster {
    /// Plays the job.
    ///
    /// # Errors
    /// `Invalid` for a cluster that makes no sense, or an endless simulation.
    pub fn play(&self) -> Result<ClusterReport> {
        self.check()?;
        let kept = self.residents();
        let played = WARM_EPOCHS + self.epochs;
        let (mut epochs, mut reads) = (Vec::new(), Reads::new(self.readers()));
        for epoch in 0..played + FORESEEN_EPOCHS {
            let row = self.row(epoch);
            let mut bytes = Bytes::new(self.nodes());
            if self.lanes.is_none() {
                self.read_slices(&kept, &mut bytes);
            }
            for reader in 0..self.readers() {
                let pieces = self.pieces(reader, &row);
                if self.lanes.is_some() {
                    pieces.iter().for_each(|piece| self.read(reader, *piece, &kept, &mut bytes));
                }
                reads.add(reader, &pieces);
            }
            if epoch == 0 {
                bytes.fill(&kept, self.units());
            }
            if epoch < played {
                bytes.records = bytes.received.iter().sum();
                epochs.push(bytes);
            }
        }
        self.read_guests(&reads, &kept, &mut epochs);
        let mut epochs: Vec<_> = epochs.iter().map(|bytes| bytes.figures(self.total())).collect();
        self.play_alone(&reads, &mut epochs);
        let cold = epochs[0].clone();
        epochs.drain(..WARM_EPOCHS as usize);
        Ok(ClusterReport {
            cold,
            warm: Figures::mean(&epochs),
            epochs,
            imbalance: imbalance(&self.owned(), &self.slots),
            without_room: share(kept.iter().filter(|kept| !**kept).count(), kept.len()),
        })
    }

    /// Returns what the loss of the `count` nodes costs that keep most. `heir` gives the owner of
    /// each of their shards among the others.
    ///
    /// # Errors
    /// `Invalid` if no node is left, or an heir is lost itself.
    pub fn lose(
        &self,
        count: usize,
        heirs: impl FnOnce(&[NodeNumber]) -> Result<Heirs>,
    ) -> Result<Loss> {
        self.check()?;
        if count >= self.nodes() {
            let what = "a cluster that loses all its nodes is none";
            return Err(Error::new(ErrorKind::Invalid, what).at("nodes", self.nodes()));
        }
        let (kept, mut owned) = (self.residents(), self.owned());
        let mut resident = vec![0_u64; self.nodes()];
        for (owner, _) in self.owners.iter().zip(&kept).filter(|(_, kept)| **kept) {
            resident[*owner as usize] += 1;
        }
        let mut nodes: Vec<NodeNumber> = (0..).take(self.nodes()).collect();
        nodes.sort_by_key(|node| std::cmp::Reverse(resident[*node as usize]));
        nodes.truncate(count);
        let mut is_lost = vec![false; self.nodes()];
        nodes.iter().for_each(|node| is_lost[*node as usize] = true);
        let heir = heirs(&nodes)?;
        let (mut anew, mut without_room) = (0, 0);
        for (shard, (owner, kept)) in (0..).zip(self.owners.iter().zip(&kept)) {
            if !is_lost[*owner as usize] {
                without_room += usize::from(!kept);
                continue;
            }
            let heir = heir(shard) as usize;
            if is_lost.get(heir).is_none_or(|lost| *lost) {
                let what = "the heir of a shard is lost itself";
                return Err(Error::new(ErrorKind::Invalid, what).at("shard", shard));
            }
            owned[heir] += 1;
            anew += usize::from(*kept);
            match resident[heir] < self.rooms[heir] {
                true => resident[heir] += 1,
                false => without_room += 1,
            }
        }
        let left = (0..self.nodes()).filter(|node| !is_lost[*node]);
        let (owned, slots): (Vec<u64>, Vec<u16>) =
            left.map(|node| (owned[node], self.slots[node])).unzip();
        Ok(Loss {
            nodes,
            anew: share(anew, kept.len()),
            origin: share(without_room, kept.len()),
            imbalance: imbalance(&owned, &slots),
        })
    }

    fn check(&self) -> Result<()> {
        let wrong = |what: &str| Err(Error::new(ErrorKind::Invalid, what.to_owned()));
        let nodes = self.nodes();
        if nodes == 0 || self.slots.len() != nodes || self.slots.contains(&0) {
            return wrong("a cluster has nodes, and each of them slots");
        }
        if u32::try_from(nodes).is_err() || u32::try_from(self.owners.len()).is_err() {
            return wrong("a cluster has fewer than four billion nodes and shards");
        }
        if self.owners.is_empty() || self.owners.iter().any(|owner| *owner as usize >= nodes) {
            return wrong("every shard is owned by a node");
        }
        if self.lanes.is_some_and(|lanes| lanes == 0 || !(lanes as usize).is_multiple_of(nodes)) {
            return wrong("nodes read equally many lanes each");
        }
        let epochs = (WARM_EPOCHS + FORESEEN_EPOCHS).saturating_add(self.epochs);
        let pieces = self.owners.len() as u64 + u64::from(self.lanes.unwrap_or(0));
        if self.epochs == 0 || pieces.saturating_mul(epochs) > READS_MAX {
            return Err(Error::new(ErrorKind::Invalid, "too few or too many reads to play")
                .at("shards", self.owners.len())
                .at("epochs", self.epochs)
                .advise("play at least one epoch, and fewer or larger shards"));
        }
        Ok(())
    }

    fn nodes(&self) -> usize {
        self.rooms.len()
    }

    /// Returns the nodes whose reads differ: with slices all nodes read the same shards.
    fn readers(&self) -> usize {
        self.lanes.map_or(1, |_| self.nodes())
    }

    /// Returns the units of a shard: lanes then begin and end between two units.
    fn units(&self) -> u64 {
        self.lanes.map_or(self.nodes() as u64, u64::from)
    }

    /// Returns the units of the data set.
    fn total(&self) -> f64 {
        self.units() as f64 * self.owners.len() as f64
    }

    /// Returns the shards in the order of an epoch.
    fn row(&self, epoch: u64) -> Vec<u32> {
        let mut row: Vec<u32> = (0..).take(self.owners.len()).collect();
        // Drawn: generators whose seeds follow each other resemble each other.
        let mut seeds = fastrand::Rng::with_seed(self.seed);
        let seed = (0..=epoch).fold(0, |_, _| seeds.u64(..));
        fastrand::Rng::with_seed(seed).shuffle(&mut row);
        row
    }

    /// Returns what a node reads of a row, in the order of its reading: its lanes side by side.
    fn pieces(&self, reader: usize, row: &[u32]) -> Vec<Piece> {
        let Some(lanes) = self.lanes.map(u64::from) else {
            return row.iter().map(|shard| Piece { shard: *shard, units: 1 }).collect();
        };
        let each = lanes / self.nodes() as u64;
        // The units of a lane are as many as there are shards.
        let len = row.len() as u64;
        let mut pieces = Vec::with_capacity(row.len() / self.nodes() + 2 * each as usize);
        for lane in (0..each).map(|lane| reader as u64 * each + lane) {
            let (mut at, end) = (lane * len, (lane + 1) * len);
            while at < end {
                let units = (lanes - at % lanes).min(end - at);
                let shard = row[usize::try_from(at / lanes).expect("in memory")];
                pieces.push((at - lane * len, Piece { shard, units }));
                at += units;
            }
        }
        pieces.sort_by_key(|(at, _)| *at);
        pieces.into_iter().map(|(_, piece)| piece).collect()
    }

    fn owned(&self) -> Vec<u64> {
        let mut owned = vec![0; self.nodes()];
        self.owners.iter().for_each(|owner| owned[*owner as usize] += 1);
        owned
    }

    /// Returns for each shard if its owner keeps it: the first that it has room for.
    fn residents(&self) -> Vec<bool> {
        let mut rooms = self.rooms.clone();
        let mut keeps = |owner: &NodeNumber| {
            let room = &mut rooms[*owner as usize];
            let keeps = *room > 0;
            *room -= u64::from(keeps);
            keeps
        };
        self.owners.iter().map(&mut keeps).collect()
    }

    fn read(&self, reader: usize, piece: Piece, kept: &[bool], bytes: &mut Bytes) {
        let owner = self.owners[piece.shard as usize] as usize;
        if owner != reader {
            bytes.received[reader] += piece.units;
            bytes.served[owner] += piece.units;
        }
        if !kept[piece.shard as usize] {
            bytes.origin += piece.units;
        }
    }

    /// Counts what guests change: a read of one costs nothing, and a copy is a whole shard.
    fn read_guests(&self, reads: &Reads, kept: &[bool], epochs: &mut [Bytes]) {
        if self.lanes.is_none() {
            // A slice is a small part of a shard.
            return;
        }
        let mut cache = Cache::new(self.owners.len());
        let mut residents = vec![0; self.nodes()];
        for (owner, _) in self.owners.iter().zip(kept).filter(|(_, kept)| **kept) {
            residents[*owner as usize] += 1;
        }
        for (reader, resident) in residents.iter().enumerate() {
            let NodeReads { shards, units, ends } = reads.of(reader);
            let next = cache.next_reads(shards, ends);
            let mut guests = Guests::new(self.rooms[reader] - resident, self.owners.len());
            let mut at = 0;
            for (bytes, end) in epochs.iter_mut().zip(ends) {
                for at in at..*end {
                    let (shard, read) = (shards[at], u64::from(units[at]));
                    let owner = self.owners[shard as usize] as usize;
                    // Only a whole copy of the owner is copied.
                    if owner == reader || !kept[shard as usize] {
                        continue;
                    }
                    let whole = self.units();
                    let received = match guests.read(shard, next[at], 2 * read > whole) {
                        GuestRead::Here => 0,
                        GuestRead::Records => read,
                        GuestRead::Copied => {
                            bytes.written += whole;
                            whole
                        }
                    };
                    bytes.received[reader] = bytes.received[reader] + received - read;
                    bytes.served[owner] = bytes.served[owner] + received - read;
                }
                at = *end;
            }
        }
    }

    /// Reads a slice of each shard on each node, which sums up to one unit each.
    fn read_slices(&self, kept: &[bool], bytes: &mut Bytes) {
        let nodes = self.nodes() as u64;
        for (node, owned) in self.owned().into_iter().enumerate() {
            bytes.received[node] = kept.len() as u64 - owned;
            bytes.served[node] = owned * (nodes - 1);
        }
        bytes.origin = nodes * kept.iter().filter(|kept| !**kept).count() as u64;
    }

    /// Plays the same reads on nodes that know nothing of each other.
    fn play_alone(&self, reads: &Reads, epochs: &mut [Figures]) {
        let shards = self.owners.len() as f64;
        let mut cache = Cache::new(self.owners.len());
        for reader in 0..self.readers() {
            // Nodes that read the same differ in their caches at most.
            let mut rooms: BTreeMap<u64, u32> = BTreeMap::new();
            match self.lanes {
                Some(_) => *rooms.entry(self.rooms[reader]).or_default() += 1,
                None => self.rooms.iter().for_each(|room| *rooms.entry(*room).or_default() += 1),
            }
            for (room, nodes) in rooms {
                let part = f64::from(nodes) / shards;
                let clairvoyant = cache.play(reads, reader, room, Evict::Clairvoyant);
                let lru = cache.play(reads, reader, room, Evict::Lru);
                for (figures, (clairvoyant, lru)) in
                    epochs.iter_mut().zip(clairvoyant.into_iter().zip(lru))
                {
                    figures.clairvoyant.add(clairvoyant, part);
                    figures.lru.add(lru, part);
                }
            }
        }
    }
}

/// Units that nodes read in an epoch.
struct Bytes {
    origin: u64,
    written: u64,
    records: u64,
    received: Vec<u64>,
    served: Vec<u64>,
}

impl Bytes {
    fn new(nodes: usize) -> Self {
        let (received, served) = (vec![0; nodes], vec![0; nodes]);
        Self { origin: 0, written: 0, records: 0, received, served }
    }

    /// Adds the arrival of all shards that are kept.
    fn fill(&mut self, kept: &[bool], units: u64) {
        let units = units * kept.iter().filter(|kept| **kept).count() as u64;
        self.origin += units;
        self.written += units;
    }

    fn figures(&self, total: f64) -> Figures {
        let nodes = self.received.len() as f64;
        let peer: u64 = self.received.iter().sum();
        Figures {
            origin: self.origin as f64 / total,
            peer: peer as f64 / total,
            records: self.records as f64 / total,
            written: self.written as f64 / total,
            received: Spread::new(&self.received, total / nodes),
            served: Spread::new(&self.served, total / nodes),
            ..Figures::default()
        }
    }
}

impl Figures {
    fn mean(epochs: &[Self]) -> Self {
        let mut mean = Self::default();
        let part = (epochs.len() as f64).recip();
        for one in epochs {
            mean.origin += one.origin * part;
            mean.peer += one.peer * part;
            mean.records += one.records * part;
            mean.written += one.written * part;
            mean.received.add(one.received, part);
            mean.served.add(one.served, part);
            mean.clairvoyant.add(one.clairvoyant, part);
            mean.lru.add(one.lru, part);
        }
        mean
    }
}

impl Spread {
    /// Makes the spread of units over what a node reads.
    fn new(units: &[u64], reads: f64) -> Self {
        let of = |units: u64| units as f64 / reads;
        Self {
            min: of(units.iter().copied().min().unwrap_or(0)),
            mean: of(units.iter().sum()) / (units.len() as f64).max(1.0),
            max: of(units.iter().copied().max().unwrap_or(0)),
        }
    }

    fn add(&mut self, other: Self, part: f64) {
        self.min += other.min * part;
        self.mean += other.mean * part;
        self.max += other.max * part;
    }
}

/// Returns the shards of the most loaded owner over those of the mean one, by slots.
fn imbalance(owned: &[u64], slots: &[u16]) -> f64 {
    let (all, slots_of_all): (u64, u64) =
        (owned.iter().sum(), slots.iter().map(|slots| u64::from(*slots)).sum());
    let load = |(owned, slots): (&u64, &u16)| *owned as f64 / f64::from(*slots);
    let most = owned.iter().zip(slots).map(load).fold(0.0, f64::max);
    most * slots_of_all as f64 / (all as f64).max(1.0)
}

fn share(part: usize, whole: usize) -> f64 {
    part as f64 / whole.max(1) as f64
}
