//! Table of one tier's shards: their state, their users, and the open files.
//!
//! A shard is in use while anybody holds its `Arc`, even if it has left the list of open
//! shards. So no shard is opened twice, and none is evicted under a handle.

#[cfg(test)]
mod fixture;
mod foresight;
mod recharge;
mod victim;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use forebay_policy::{NEVER, PartitionNumber, Shard as Number, Slot};
use forebay_source::Binding;
use futures::future::{BoxFuture, Shared};

use super::copy::CopyReport;
use super::entry::{Entry, FillPace, NewEntry, ShardState, ShardUse, is_idle, is_idle_but_for};
use super::partition::{Partition, PartitionEntry, age};
use super::request::ReservedRoom;
use crate::budget::Space;
use crate::clock;
use crate::directory::{ObjectKey, ShardName};
use crate::forecast::Forecast;
use crate::open_shards::OpenShards;
use crate::shard::{Body, Shard};
use crate::shares::{Charge, NOBODY, Provenance, Shares};

/// End of a removal.
pub(super) type Removal = BoxFuture<'static, ()>;

pub(super) struct ShardTable {
    names: HashMap<ShardName, Slot>,
    /// Announced shards, by their ids in the forecast.
    numbers: HashMap<Number, Slot>,
    forecast: Arc<Forecast>,
    /// Number of shards by label; all versions of a shard have the same label.
    labels: HashMap<u64, u32>,
    /// Number of excerpts.
    excerpts: usize,
    /// Every shard on the tier, arriving ones included.
    entries: Vec<Option<Entry>>,
    vacant: Vec<Slot>,
    /// Created on their first use.
    partitions: Vec<Partition>,
    places: HashMap<Charge, usize>,
    /// Forecast ids of removed partitions.
    free_places: Vec<PartitionNumber>,
    /// Shares under the current rules.
    shares: Arc<Shares>,
    /// Uses so far, arrivals included.
    uses: u64,
    open: OpenShards,
    /// Shards being opened, begun or moved, with the number of tasks that do so.
    opening: HashMap<ShardName, usize>,
    /// Shards whose files are being removed; their names are taken until then.
    pub(super) leaving: HashMap<ShardName, Shared<Removal>>,
    /// Shards whose files could not be removed: their bytes are still there.
    pub(super) stuck: Vec<Entry>,
    /// Bytes of shards written by a newer release.
    pub(super) newer: Option<Space>,
    claims: HashMap<ShardName, usize>,
    /// Shards pinned by an admin.
    pinned: HashSet<ShardName>,
    /// Shards that the rules do not want here.
    unwanted: HashSet<ShardName>,
}

impl ShardTable {
    /// Creates an empty table.
    pub(super) fn new(shares: Arc<Shares>, forecast: Arc<Forecast>) -> Self {
        Self {
            names: HashMap::new(),
            numbers: HashMap::new(),
            forecast,
            labels: HashMap::new(),
            excerpts: 0,
            entries: Vec::new(),
            vacant: Vec::new(),
            partitions: Vec::new(),
            places: HashMap::new(),
            free_places: Vec::new(),
            shares,
            uses: 0,
            open: OpenShards::new(),
            opening: HashMap::new(),
            leaving: HashMap::new(),
            stuck: Vec::new(),
            newer: None,
            claims: HashMap::new(),
            pinned: HashSet::new(),
            unwanted: HashSet::new(),
        }
    }

    /// Pins a shard, if it is here.
    pub(super) fn pin(&mut self, name: &ShardName) {
        if self.names.contains_key(name) {
            self.pinned.insert(name.clone());
        }
    }

    /// Removes the pin of a shard.
    pub(super) fn unpin(&mut self, name: &ShardName) {
        self.pinned.remove(name);
    }

    fn partition_of(&mut self, charge: Charge) -> usize {
        *self.places.entry(charge).or_insert_with(|| {
            let place = self.free_places.pop().or_else(|| self.forecast.new_partition_id());
            self.partitions.push(Partition::new(&self.shares, charge, place));
            self.partitions.len() - 1
        })
    }

    /// Partition of shards with this charge.
    pub(super) fn partition_mut(&mut self, charge: Charge) -> &mut Partition {
        let at = self.partition_of(charge);
        &mut self.partitions[at]
    }

    /// Returns true if a shard with the label of this one is here; its versions have that label.
    pub(super) fn has_label(&self, name: &ShardName) -> bool {
        self.labels.contains_key(&name.label())
    }

    /// Returns true if a shard is here and nobody reads it, or is about to.
    pub(super) fn is_idle(&self, name: &ShardName) -> bool {
        self.get(name).is_some_and(|entry| is_idle(entry, &self.open, &self.opening))
    }

    /// Any shard that nobody reads, or is about to.
    pub(super) fn any_idle(&self) -> Option<ShardName> {
        let mut entries = self.entries.iter().flatten();
        let resting = entries.find(|entry| is_idle(entry, &self.open, &self.opening));
        resting.map(|entry| entry.name.clone())
    }

    /// Completes a move from another tier, where the shard was used this often. On a disk, readers
    /// open it anew: the fill's handle has no origin to fall back to.
    pub(super) fn finish_move(&mut self, shard: &Arc<Shard>, uses: u32) {
        let in_memory = matches!(shard.body, Body::Memory(_));
        if let Some(entry) = self.get(shard.name()).filter(|entry| !entry.is_whole()) {
            self.report_present(entry.number, entry.partition);
        }
        if let Some(entry) = self.get_mut(shard.name()) {
            (entry.uses, entry.fresh, entry.state, entry.moves) =
                (uses, false, ShardState::Whole, false);
            match in_memory {
                true => entry.kept = Some(shard.clone()),
                false => entry.shard = Weak::new(),
            }
        }
    }

    /// Marks a shard as being opened, begun or moved: it is not evicted meanwhile.
    pub(super) fn begin_opening(&mut self, name: &ShardName) {
        *self.opening.entry(name.clone()).or_default() += 1;
    }

    /// Removes that mark.
    pub(super) fn end_opening(&mut self, name: &ShardName) {
        decrease(&mut self.opening, name);
    }

    /// Number of shards in each partition.
    pub(super) fn counts(&self) -> Vec<(Charge, usize)> {
        self.partitions.iter().map(|partition| (partition.charge, partition.shards())).collect()
    }

    /// Names of all shards, least recently used first.
    pub(super) fn names_by_use(&self) -> Vec<ShardName> {
        self.by_use().into_iter().map(|entry| entry.name.clone()).collect()
    }

    /// Hashes of all shards, in the same order.
    pub(super) fn hashes_by_use(&self) -> Vec<u64> {
        self.by_use().into_iter().map(|entry| entry.name.hash()).collect()
    }

    fn by_use(&self) -> Vec<&Entry> {
        let mut entries: Vec<_> = self.entries.iter().flatten().collect();
        entries.sort_by_key(|entry| entry.used);
        entries
    }

    /// Every whole shard with a sidecar, in no order, with its bytes. The weak spaces keep no bytes
    /// reserved.
    pub(super) fn whole_shards(&self) -> Vec<(ShardName, Weak<Space>, u64)> {
        let whole = self.entries.iter().flatten().filter(|entry| entry.state == ShardState::Whole);
        whole
            .map(|entry| (entry.name.clone(), Arc::downgrade(&entry.space), entry.at.bytes))
            .collect()
    }

    /// Every whole shard in memory.
    pub(super) fn shards_in_memory(&self) -> Vec<Weak<Shard>> {
        let kept = self.entries.iter().flatten().filter_map(|entry| entry.kept.as_ref());
        kept.map(Arc::downgrade).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    pub(super) fn get(&self, name: &ShardName) -> Option<&Entry> {
        self.entries[*self.names.get(name)? as usize].as_ref()
    }

    fn get_mut(&mut self, name: &ShardName) -> Option<&mut Entry> {
        self.entries[*self.names.get(name)? as usize].as_mut()
    }

    /// The shard, if it is arriving or open. Marks it as recently used among the open ones.
    pub(super) fn in_use(&mut self, name: &ShardName) -> Option<(Arc<Shard>, ShardState)> {
        if self.is_stale(name) {
            return None;
        }
        let entry = self.get(name).filter(|entry| !entry.moves || entry.is_whole())?;
        let found = (entry.shard.upgrade()?, entry.state);
        self.open.promote(name);
        Some(found)
    }

    /// Removes every shard from the table; readers keep theirs.
    pub(super) fn clear(&mut self) {
        let names: Vec<_> = self.names.keys().cloned().collect();
        for name in names {
            self.remove(&name, false);
        }
        (self.newer, self.stuck) = (None, Vec::new());
    }

    /// Returns true if the files of an earlier copy could not be removed.
    pub(super) fn is_stuck(&self, name: &ShardName) -> bool {
        self.stuck.iter().any(|entry| entry.name == *name)
    }

    /// Shards with the label of this one, such as its other versions, and their handles if they are
    /// arriving or open.
    pub(super) fn with_same_label(&self, name: &ShardName) -> Vec<(ShardName, Option<Arc<Shard>>)> {
        if !self.has_label(name) {
            return Vec::new();
        }
        let label = name.label();
        let entries = self.entries.iter().flatten().filter(|entry| entry.name.label() == label);
        entries.map(|entry| (entry.name.clone(), entry.shard.upgrade())).collect()
    }

    /// Bytes of the excerpts of the object at `url` other than `own`.
    pub(super) fn excerpt_bytes(&self, own: &ShardName, url: &str) -> u64 {
        if self.excerpts == 0 || !self.has_label(own) {
            return 0;
        }
        let entries = self.entries.iter().flatten();
        let others = entries
            .filter(|entry| entry.name.is_excerpt() && entry.name != *own && *entry.of.url == *url);
        others.map(|entry| entry.at.bytes).sum()
    }

    /// Number of removed shards whose files are still there.
    pub(super) fn leaving(&self) -> usize {
        self.leaving.len() + self.stuck.len()
    }

    /// Number of excerpts among the shards.
    pub(super) fn excerpts(&self) -> usize {
        self.excerpts
    }

    /// Every shard, with its URL.
    pub(super) fn urls(&self) -> impl Iterator<Item = (&ShardName, &str)> {
        self.entries.iter().flatten().map(|entry| (&entry.name, &*entry.of.url))
    }

    /// Returns true if a copy is older than its data set allows, and not in use.
    pub(super) fn is_stale(&self, name: &ShardName) -> bool {
        let Some(entry) = self.get(name) else { return false };
        let ttl = self.partitions[entry.partition].rule().ttl;
        ttl.is_some_and(|ttl| age(entry.at.since, clock::now()) >= ttl)
            // A trainer that reads a copy in place keeps it, as others do; it is not served anew.
            && is_idle_but_for(entry.loans(), entry, &self.open)
            && !self.claims.contains_key(name)
    }

    /// Adds an arriving shard. `moved`: the time of its arrival on this node, if it comes from
    /// another tier.
    pub(super) fn add_arriving(
        &mut self,
        (shard, object): (&Arc<Shard>, ObjectKey),
        space: Arc<Space>,
        room: &ReservedRoom,
        moved: Option<SystemTime>,
    ) {
        let name = shard.name().clone();
        self.insert(NewEntry {
            since: moved.unwrap_or_else(clock::now),
            unadmitted: room.unadmitted,
            moves: moved.is_some(),
            shard: Arc::downgrade(shard),
            ..NewEntry::new(name, object, room.of.clone(), space, ShardState::Arriving)
        });
    }

    /// Notes that the turn of an arriving shard's fill has come.
    pub(super) fn note_fill_start(&mut self, shard: &Shard) {
        if let Some(entry) = self.get_mut(shard.name()).filter(|entry| entry.holds(shard)) {
            entry.pace = FillPace::Running;
            if let Some(number) = entry.number.filter(|_| entry.is_fetched()) {
                self.forecast.note_transfer_start(number);
            }
        }
    }

    /// Sets the pace of an arriving shard's fill.
    pub(super) fn set_pace(&mut self, name: &ShardName, space: &Arc<Space>, pace: FillPace) {
        if let Some(entry) = self.get_mut(name).filter(|entry| Arc::ptr_eq(&entry.space, space)) {
            entry.pace = pace;
        }
    }

    /// Updates the bytes of an arriving shard. `short`: true if it waits for more room.
    pub(super) fn update_bytes(&mut self, name: &ShardName, space: &Arc<Space>, short: bool) {
        let Some(&slot) = self.names.get(name) else { return };
        let Some(entry) = self.entries[slot as usize].as_mut() else { return };
        if Arc::ptr_eq(&entry.space, space) {
            entry.pace = if short { FillPace::WaitsForRoom } else { FillPace::Running };
            self.partitions[entry.partition].resize(&mut entry.at, space.bytes());
        }
    }

    /// Returns true if an arriving shard was not admitted.
    pub(super) fn is_unadmitted(&self, name: &ShardName) -> bool {
        self.get(name).is_some_and(|entry| entry.at.unadmitted)
    }

    /// Marks an arriving shard for removal when its fill ends.
    pub(super) fn mark_for_removal(&mut self, name: &ShardName) {
        if let Some(entry) = self.get_mut(name) {
            entry.remove_when_filled = true;
        }
    }

    pub(super) fn is_marked_for_removal(&self, name: &ShardName) -> bool {
        self.get(name).is_some_and(|entry| entry.remove_when_filled)
    }

    /// Adds a shard found on the tier. Partial shards are evicted before whole ones.
    pub(super) fn add_found(
        &mut self,
        (name, object): (ShardName, ObjectKey),
        of: Provenance,
        space: Space,
        (since, state): (SystemTime, ShardState),
    ) {
        let unadmitted = state == ShardState::Partial;
        let space = Arc::new(space);
        self.insert(NewEntry {
            since,
            unadmitted,
            ..NewEntry::new(name, object, of, space, state)
        });
    }

    /// Keeps the part of a shard whose fill ended early, for the next fill.
    pub(super) fn keep_partial(&mut self, name: &ShardName) {
        if let Some(Entry { object, of, space, .. }) = self.remove(name, false) {
            self.add_partial((name, object), of, space);
        }
    }

    /// Adds a partial shard.
    pub(super) fn add_partial(
        &mut self,
        (name, object): (&ShardName, ObjectKey),
        of: Provenance,
        space: Arc<Space>,
    ) {
        let state = ShardState::Partial;
        let entrant = NewEntry::new(name.clone(), object, of, space, state);
        self.insert(NewEntry { unadmitted: true, ..entrant });
    }

    /// Takes the room of a partial shard for the fill that resumes it. The shard stays charged to
    /// the tenant that brought the part.
    pub(super) fn take_partial(&mut self, name: &ShardName) -> Option<ReservedRoom> {
        let entry = self.get(name).filter(|entry| entry.state == ShardState::Partial)?;
        let (object, space, of) = (entry.object, entry.space.clone(), entry.of.clone());
        let charge = self.partitions[entry.partition].charge;
        self.remove(name, false);
        let unadmitted = self.denies_admission(charge, object, name.hash(), space.bytes(), true);
        Some(ReservedRoom { unadmitted, space, of })
    }

    /// Returns true if a new shard is not admitted: see [`Partition::unadmitted`]. Announced shards
    /// are always admitted.
    pub(super) fn denies_admission(
        &mut self,
        charge: Charge,
        object: ObjectKey,
        identity: u64,
        bytes: u64,
        room: bool,
    ) -> bool {
        let is_foreseen = self.forecast.shard_id(object).is_some();
        let partition = self.partition_mut(charge);
        !(is_foreseen && partition.uses_forecast())
            && partition.denies_admission(identity, bytes, room)
    }

    fn insert(&mut self, entrant: NewEntry) {
        let NewEntry { name, object, of, space, since, state, unadmitted, moves, shard } = entrant;
        // A second entry of the same name could never be found.
        self.remove(&name, false);
        self.uses += 1;
        let used = self.uses;
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.entries.push(None);
            Slot::try_from(self.entries.len() - 1).expect("fewer shards than four billion")
        });
        let at = PartitionEntry { slot, bytes: space.bytes(), since, unadmitted, foreseen: false };
        let charge = self.shares.charge_of(&of);
        // The room may have been reserved under other rules.
        space.charge_to(self.shares.budgets(charge));
        let partition = self.partition_of(charge);
        self.partitions[partition].insert(at, name.hash());
        self.names.insert(name.clone(), slot);
        *self.labels.entry(name.label()).or_default() += 1;
        self.excerpts += usize::from(name.is_excerpt());
        let fresh = state != ShardState::Whole;
        self.entries[slot as usize] = Some(Entry {
            name,
            of,
            object,
            number: None,
            partition,
            at,
            fresh,
            warmed: false,
            used,
            uses: 0,
            moves,
            remove_when_filled: false,
            state,
            pace: FillPace::Queued,
            space,
            shard,
            kept: None,
        });
        self.link_forecast(slot, self.forecast.shard_id(object));
    }

    /// Notes that a shard was opened or begun.
    pub(super) fn note_opened(&mut self, shard: &Arc<Shard>) {
        let Some(entry) = self.get_mut(shard.name()) else { return };
        if entry.state == ShardState::Partial {
            // Its fill failed before this call.
            return;
        }
        entry.shard = Arc::downgrade(shard);
        if entry.is_whole() && entry.kept.is_none() {
            self.open.keep(shard.name().clone(), shard);
        }
    }

    /// Keeps a shard open no longer: the next use opens it anew.
    pub(super) fn close(&mut self, name: &ShardName) {
        self.open.forget(name);
        if let Some(entry) = self.get_mut(name).filter(|entry| entry.is_whole()) {
            entry.shard = Weak::new();
        }
    }

    /// Marks a shard as complete, whole or broken.
    pub(super) fn finish_fill(&mut self, shard: &Arc<Shard>, state: ShardState) {
        let Some(&slot) = self.names.get(shard.name()) else { return };
        if let Some(entry) = self.entries[slot as usize].as_mut() {
            let place = self.partitions[entry.partition].place;
            if let (Some(number), Some(place), true) = (entry.number, place, entry.is_fetched()) {
                self.forecast.note_arrived(number, place);
            }
            entry.state = state;
            entry.warmed = shard.rank.is_behind();
            match shard.body {
                // The next run of the stream may differ: later readers request it anew.
                _ if state == ShardState::Broken && shard.stat.binding == Binding::Stream => {}
                Body::Memory(_) => entry.kept = Some(shard.clone()),
                Body::Disk { .. } | Body::Origin | Body::Ranges => {
                    self.open.keep(shard.name().clone(), shard);
                }
            }
        }
    }

    /// Removes a shard from the table; readers keep theirs.
    pub(super) fn remove(&mut self, name: &ShardName, evicted: bool) -> Option<Entry> {
        self.open.forget(name);
        self.pinned.remove(name);
        self.unwanted.remove(name);
        let slot = self.names.remove(name)?;
        self.unlink_forecast(slot);
        if let Some(left) = self.labels.get_mut(&name.label()) {
            *left -= 1;
            if *left == 0 {
                self.labels.remove(&name.label());
            }
        }
        let entry = self.entries[slot as usize].take()?;
        self.excerpts -= usize::from(name.is_excerpt());
        self.vacant.push(slot);
        self.partitions[entry.partition].remove(entry.at, evicted);
        Some(entry)
    }

    /// Claims a shard for a job that needs it soon.
    pub(super) fn claim(&mut self, name: &ShardName) {
        *self.claims.entry(name.clone()).or_default() += 1;
    }

    /// Notes that a job begins to use a shard; `None` if it is not here.
    pub(super) fn record_use(&mut self, name: &ShardName) -> Option<ShardUse> {
        let &slot = self.names.get(name)?;
        let entry = self.entries[slot as usize].as_mut()?;
        self.uses += 1;
        (entry.used, entry.uses) = (self.uses, entry.uses.saturating_add(1));
        let is_first = std::mem::take(&mut entry.fresh);
        if !is_first {
            self.partitions[entry.partition].hit(&mut entry.at, entry.name.hash());
        }
        Some(ShardUse { uses: entry.uses, is_hit: !is_first || entry.warmed })
    }

    /// Ends a claim.
    pub(super) fn unclaim(&mut self, name: &ShardName) {
        decrease(&mut self.claims, name);
    }

    /// Report on the copy of this name.
    pub(super) fn report_copy(&self, name: &ShardName, tier: &str) -> Option<CopyReport> {
        let entry = self.get(name)?;
        let partition = &self.partitions[entry.partition];
        let (rule, age) = (partition.rule(), age(entry.at.since, clock::now()));
        let left = |of: Option<Duration>| Some(of?.saturating_sub(age).as_secs());
        Some(CopyReport {
            tier: tier.to_owned(),
            state: entry.state.into(),
            excerpt: name.is_excerpt(),
            bytes: entry.at.bytes,
            tenant: (partition.charge.tenant != NOBODY.tenant)
                .then(|| self.shares.tenant(partition.charge).name.clone()),
            age_seconds: age.as_secs(),
            uses: entry.uses,
            in_use: !is_idle(entry, &self.open, &self.opening),
            claimed: self.claims.contains_key(name),
            pinned: self.pinned.contains(name),
            passes: entry.at.unadmitted,
            within_minimum: partition.terms(None).may_lose < entry.at.bytes,
            kept_for_seconds: left(rule.dont_evict_time).filter(|left| *left > 0),
            stale_in_seconds: left(rule.ttl),
            needed_in_seconds: self.forecast.next_use(entry.object).filter(|at| *at < NEVER).map(
                |at| Duration::from_micros(at.saturating_sub(self.forecast.now())).as_secs_f64(),
            ),
        })
    }
}

fn decrease(counts: &mut HashMap<ShardName, usize>, name: &ShardName) {
    if let Some(count) = counts.get_mut(name) {
        *count -= 1;
        if *count == 0 {
            counts.remove(name);
        }
    }
}

#[cfg(test)]
mod tests;
