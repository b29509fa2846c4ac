//! What is on the tier, who uses it, and what is kept open.
//!
//! One rule: a shard is in use while anybody holds its `Arc`, whatever the list of open shards has
//! forgotten meanwhile. So no shard is opened twice, and none is evicted under a lease.

mod recharge;

pub(crate) use recharge::Judged;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use forebay_source::Binding;
use futures::future::{BoxFuture, Shared};
use lru::LruCache;

use super::presence::Kept;
use super::room::{Room, Urgency};
use super::shelf::{Shelf, Standing, Terms, age};
use crate::budget::{Budget, Space};
use crate::directory::{ObjectKey, ShardName};
use crate::forecast::Forecast;
use crate::shard::{Body, Shard};
use crate::shares::{Charge, NOBODY, Provenance, Shares};
use crate::store::Copy;
use forebay_policy::{Moment, NEVER, NOW, Place, Shard as Number, Slot};

/// Shards kept open though nobody reads them now: a file descriptor each, a quarter of the usual
/// limit of 1,024.
pub const OPEN_SHARDS: usize = 256;

/// Bytes of indexes kept with them. A sample takes some 150 bytes, so this holds 1.7 million: all
/// shards of a large window.
const OPEN_INDEX_BYTES: usize = 256 << 20;

/// The end of a removal.
pub(super) type Gone = BoxFuture<'static, ()>;

pub(super) struct Table {
    names: HashMap<ShardName, Slot>,
    /// Shards that jobs told to read, by their numbers in the forecast.
    numbers: HashMap<Number, Slot>,
    forecast: Arc<Forecast>,
    /// How many there are of each label: versions of one shard have the same.
    labels: HashMap<u64, u32>,
    /// Every shard on the tier, arriving ones included.
    entries: Vec<Option<Entry>>,
    vacant: Vec<Slot>,
    /// Made when they are first needed.
    shelves: Vec<Shelf>,
    places: HashMap<Charge, usize>,
    /// What shelves were called in the forecast that are no more.
    free_places: Vec<Place>,
    /// By the rules that count now.
    shares: Arc<Shares>,
    /// Uses so far, comings in included.
    uses: u64,
    open: OpenShards,
    /// Shards being opened, begun or moved, and by how many.
    opening: HashMap<ShardName, usize>,
    /// Shards whose files are being removed; their names are free again afterwards.
    pub(super) leaving: HashMap<ShardName, Shared<Gone>>,
    /// Shards whose files could not be removed: their bytes are still there.
    pub(super) stuck: Vec<Entry>,
    /// Bytes of shards that a newer release left here.
    pub(super) newer: Option<Space>,
    claims: HashMap<ShardName, usize>,
    /// Shards that an admin keeps.
    pinned: HashSet<ShardName>,
    /// Shards that the rules do not want here.
    unwanted: HashSet<ShardName>,
}

/// One shard on the tier.
pub(super) struct Entry {
    name: ShardName,
    of: Provenance,
    object: ObjectKey,
    /// Its number, if a job told to read it.
    number: Option<Number>,
    shelf: usize,
    at: Standing,
    /// Not used yet: the use it was fetched for is no second one.
    fresh: bool,
    /// When it was used last, by the count of uses.
    used: u64,
    /// How often it was used since it came to this node.
    pub(super) uses: u32,
    /// It arrives from another tier: nobody reads it before it is whole.
    moves: bool,
    /// It leaves when its fill ends.
    doomed: bool,
    state: State,
    pace: Pace,
    pub(super) space: Arc<Space>,
    /// The shard, while it arrives or is open.
    shard: Weak<Shard>,
    /// The same, where nothing else holds its bytes: in memory.
    kept: Option<Arc<Shard>>,
}

/// How much of a shard is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Its bytes are on their way.
    Arriving,
    /// Its fill did not end; the next goes on with what is there.
    Partial,
    /// All of it.
    Whole,
    /// Its archive breaks off: what is there is served, and has no sidecar.
    Broken,
}

/// How far the fill of an arriving shard is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    /// Its turn has not come.
    Waits,
    /// It ends some time.
    Runs,
    /// It waits for more room than it has.
    Short,
}

impl State {
    /// Whether a shard can be served from the tier.
    pub(crate) fn is_whole(self) -> bool {
        matches!(self, Self::Whole | Self::Broken)
    }
}

impl Entry {
    /// Whether this is the copy that holds `space`, and can be served.
    pub(super) fn is_copy(&self, space: &Weak<Space>) -> bool {
        self.is_whole() && std::ptr::eq(Arc::as_ptr(&self.space), space.as_ptr())
    }

    /// Whether this is the copy that a shard is read from.
    pub(super) fn holds(&self, shard: &Shard) -> bool {
        shard.home.as_ref().is_some_and(|home| Arc::ptr_eq(&home.space, &self.space))
    }

    pub(super) fn name(&self) -> &ShardName {
        &self.name
    }

    /// What it is a version of.
    pub(super) fn object(&self) -> ObjectKey {
        self.object
    }

    pub(super) fn state(&self) -> State {
        self.state
    }

    /// Whether its bytes are fetched.
    fn is_fetched(&self) -> bool {
        self.state == State::Arriving && !self.moves
    }

    pub(super) fn since(&self) -> SystemTime {
        self.at.since
    }

    /// Whether it can be served from the tier.
    pub(super) fn is_whole(&self) -> bool {
        self.state.is_whole()
    }
}

/// What room is made for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Need {
    /// Whom the newcomer is charged to; none if room is made ahead of need.
    pub(super) charge: Option<Charge>,
    pub(super) urgency: Urgency,
    pub(super) short: Short,
    /// It will only pass: it pushes out nobody who stays, unless a trainer waits.
    pub(super) passes: bool,
    /// It is a shard on its way that needs more than it has.
    pub(super) grows: bool,
    /// When it is needed: of what jobs told to need, only what is needed later goes. None: it does not matter.
    pub(super) than: Option<Moment>,
}

/// What is short, and so whose shards can make room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Short {
    /// The tier: anybody's can.
    Tier,
    /// The newcomer's data set, or its tenant: only theirs can.
    Dataset,
    Tenant,
    /// Both: best what belongs to both.
    Both,
}

impl Need {
    /// The need of a tier for what nobody waits for, but is needed next.
    pub(super) fn ahead(charge: Option<Charge>) -> Self {
        let (urgency, short) = (Urgency::Ahead, Short::Tier);
        Self { charge, urgency, short, passes: false, grows: false, than: Some(NOW) }
    }

    /// Whether shards charged like this can make room.
    fn concerns(self, other: Charge) -> bool {
        let own = |own: fn(Charge) -> usize| self.charge.map(own) == Some(own(other));
        let (dataset, tenant) = (own(|charge| charge.dataset), own(|charge| charge.tenant));
        match self.short {
            Short::Tier => true,
            Short::Dataset => dataset,
            Short::Tenant => tenant,
            Short::Both => dataset && tenant,
        }
    }
}

/// Shards open ahead of their next use.
pub(crate) struct OpenShards {
    by_use: LruCache<ShardName, (Arc<Shard>, usize)>,
    index_bytes: usize,
}

impl Table {
    /// An empty table.
    pub(super) fn new(shares: Arc<Shares>, forecast: Arc<Forecast>) -> Self {
        Self {
            names: HashMap::new(),
            numbers: HashMap::new(),
            forecast,
            labels: HashMap::new(),
            entries: Vec::new(),
            vacant: Vec::new(),
            shelves: Vec::new(),
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

    /// An admin keeps a shard, if it is here.
    pub(super) fn pin(&mut self, name: &ShardName) {
        if self.names.contains_key(name) {
            self.pinned.insert(name.clone());
        }
    }

    /// An admin keeps a shard no more.
    pub(super) fn unpin(&mut self, name: &ShardName) {
        self.pinned.remove(name);
    }

    fn shelf_of(&mut self, charge: Charge) -> usize {
        *self.places.entry(charge).or_insert_with(|| {
            let place = self.free_places.pop().or_else(|| self.forecast.place());
            self.shelves.push(Shelf::new(&self.shares, charge, place));
            self.shelves.len() - 1
        })
    }

    /// Where shards that are charged like this stand.
    pub(super) fn shelf_mut(&mut self, charge: Charge) -> &mut Shelf {
        let at = self.shelf_of(charge);
        &mut self.shelves[at]
    }

    /// Whether a version of this shard, or one that is called like it, is here.
    pub(super) fn has_label(&self, name: &ShardName) -> bool {
        self.labels.contains_key(&name.label())
    }

    /// Whether a shard is here, and nobody reads it, or is about to.
    pub(super) fn is_resting(&self, name: &ShardName) -> bool {
        self.get(name).is_some_and(|entry| is_idle(entry, &self.open, &self.opening))
    }

    /// Any shard that nobody reads, or is about to.
    pub(super) fn any_resting(&self) -> Option<ShardName> {
        let mut entries = self.entries.iter().flatten();
        let resting = entries.find(|entry| is_idle(entry, &self.open, &self.opening));
        resting.map(|entry| entry.name.clone())
    }

    /// A shard came whole from another tier, where it was used so often. On a disk it is opened anew
    /// by whoever reads it: what filled it has no origin to fall back to.
    pub(super) fn moved(&mut self, shard: &Arc<Shard>, uses: u32) {
        let in_memory = matches!(shard.body, Body::Memory(_));
        if let Some(entry) = self.get(shard.name()).filter(|entry| !entry.is_whole()) {
            self.tell_found(entry.number, entry.shelf);
        }
        if let Some(entry) = self.get_mut(shard.name()) {
            (entry.uses, entry.fresh, entry.state, entry.moves) =
                (uses, false, State::Whole, false);
            match in_memory {
                true => entry.kept = Some(shard.clone()),
                false => entry.shard = Weak::new(),
            }
        }
    }

    /// A shard is being opened, begun or moved: it does not leave meanwhile.
    pub(super) fn hold(&mut self, name: &ShardName) {
        *self.opening.entry(name.clone()).or_default() += 1;
    }

    /// The end of that.
    pub(super) fn release(&mut self, name: &ShardName) {
        decrease(&mut self.opening, name);
    }

    /// Shards on each shelf.
    pub(super) fn shards(&self) -> Vec<(Charge, usize)> {
        self.shelves.iter().map(|shelf| (shelf.charge, shelf.shards())).collect()
    }

    /// Every shard's name, the one used longest ago first.
    pub(super) fn names(&self) -> Vec<ShardName> {
        self.by_use().into_iter().map(|entry| entry.name.clone()).collect()
    }

    /// Every shard's hash, in the same order.
    pub(super) fn recency(&self) -> Vec<u64> {
        self.by_use().into_iter().map(|entry| entry.name.hash()).collect()
    }

    fn by_use(&self) -> Vec<&Entry> {
        let mut entries: Vec<_> = self.entries.iter().flatten().collect();
        entries.sort_by_key(|entry| entry.used);
        entries
    }

    /// Every whole shard that has a sidecar, in no order, and its bytes. Who looks at them later
    /// keeps no space reserved by that.
    pub(super) fn whole_shards(&self) -> Vec<(ShardName, Weak<Space>, u64)> {
        let whole = self.entries.iter().flatten().filter(|entry| entry.state == State::Whole);
        whole
            .map(|entry| (entry.name.clone(), Arc::downgrade(&entry.space), entry.at.bytes))
            .collect()
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

    /// The shard, if it is arriving or open; using it makes it recent among those open.
    pub(super) fn in_use(&mut self, name: &ShardName) -> Option<(Arc<Shard>, State)> {
        if self.is_stale(name) {
            return None;
        }
        let entry = self.get(name).filter(|entry| !entry.moves || entry.is_whole())?;
        let found = (entry.shard.upgrade()?, entry.state);
        self.open.by_use.promote(name);
        Some(found)
    }

    /// Forgets every shard; whoever reads one still may.
    pub(super) fn clear(&mut self) {
        let names: Vec<_> = self.names.keys().cloned().collect();
        for name in names {
            self.forget(&name, false);
        }
        (self.newer, self.stuck) = (None, Vec::new());
    }

    /// Whether the files of an earlier copy could not be removed.
    pub(super) fn is_stuck(&self, name: &ShardName) -> bool {
        self.stuck.iter().any(|entry| entry.name == *name)
    }

    /// Shards that are called like this one, its other versions among them, with those that are arriving or
    /// open.
    pub(super) fn called_like(&self, name: &ShardName) -> Vec<(ShardName, Option<Arc<Shard>>)> {
        if !self.has_label(name) {
            return Vec::new();
        }
        let label = name.label();
        let entries = self.entries.iter().flatten().filter(|entry| entry.name.label() == label);
        entries.map(|entry| (entry.name.clone(), entry.shard.upgrade())).collect()
    }

    /// Every shard, and where it comes from.
    pub(super) fn all(&self) -> impl Iterator<Item = (&ShardName, &str)> {
        self.entries.iter().flatten().map(|entry| (&entry.name, &*entry.of.url))
    }

    /// Whether a copy is older than its data set allows, and nobody needs it now.
    pub(super) fn is_stale(&self, name: &ShardName) -> bool {
        let Some(entry) = self.get(name) else { return false };
        let ttl = self.shelves[entry.shelf].rule().ttl;
        ttl.is_some_and(|ttl| age(entry.at.since, SystemTime::now()) >= ttl)
            && is_idle(entry, &self.open, &HashMap::new())
            && !self.claims.contains_key(name)
    }

    /// A shard begins to arrive.
    /// `moved`: from another tier, and since when it is on this node.
    pub(super) fn begun(
        &mut self,
        (shard, object): (&Arc<Shard>, ObjectKey),
        space: Arc<Space>,
        room: &Room,
        moved: Option<SystemTime>,
    ) {
        let name = shard.name().clone();
        self.enter(Entrant {
            since: moved.unwrap_or_else(SystemTime::now),
            passes: room.passes,
            moves: moved.is_some(),
            shard: Arc::downgrade(shard),
            ..Entrant::new(name, object, room.of.clone(), space, State::Arriving)
        });
    }

    /// The turn of an arriving shard has come.
    pub(super) fn runs(&mut self, shard: &Shard) {
        if let Some(entry) = self.get_mut(shard.name()).filter(|entry| entry.holds(shard)) {
            entry.pace = Pace::Runs;
            if let Some(number) = entry.number.filter(|_| entry.is_fetched()) {
                self.forecast.runs(number);
            }
        }
    }

    /// An arriving shard lets others go first, or goes on.
    pub(super) fn paced(&mut self, name: &ShardName, space: &Arc<Space>, pace: Pace) {
        if let Some(entry) = self.get_mut(name).filter(|entry| Arc::ptr_eq(&entry.space, space)) {
            entry.pace = pace;
        }
    }

    /// An arriving shard holds more or less than before, or is `short` of room.
    pub(super) fn resized(&mut self, name: &ShardName, space: &Arc<Space>, short: bool) {
        let Some(&slot) = self.names.get(name) else { return };
        let Some(entry) = self.entries[slot as usize].as_mut() else { return };
        if Arc::ptr_eq(&entry.space, space) {
            entry.pace = if short { Pace::Short } else { Pace::Runs };
            self.shelves[entry.shelf].resize(&mut entry.at, space.bytes());
        }
    }

    /// Whether an arriving shard only passes; as far as is known here.
    pub(super) fn passes(&self, name: &ShardName) -> bool {
        self.get(name).is_some_and(|entry| entry.at.passes)
    }

    /// An arriving shard is to leave as soon as its fill ends.
    pub(super) fn doom(&mut self, name: &ShardName) {
        if let Some(entry) = self.get_mut(name) {
            entry.doomed = true;
        }
    }

    pub(super) fn is_doomed(&self, name: &ShardName) -> bool {
        self.get(name).is_some_and(|entry| entry.doomed)
    }

    /// A shard was found on the tier. What is not all there goes before what is.
    pub(super) fn found(
        &mut self,
        (name, object): (ShardName, ObjectKey),
        of: Provenance,
        space: Space,
        (since, state): (SystemTime, State),
    ) {
        let passes = state == State::Partial;
        let space = Arc::new(space);
        self.enter(Entrant { since, passes, ..Entrant::new(name, object, of, space, state) });
    }

    /// A fill ended early; the next goes on with what it left, unless that goes before.
    pub(super) fn partial(&mut self, name: &ShardName) {
        if let Some(Entry { object, of, space, .. }) = self.forget(name, false) {
            self.left((name, object), of, space);
        }
    }

    /// A part of a shard is here.
    pub(super) fn left(
        &mut self,
        (name, object): (&ShardName, ObjectKey),
        of: Provenance,
        space: Arc<Space>,
    ) {
        let state = State::Partial;
        let entrant = Entrant::new(name.clone(), object, of, space, state);
        self.enter(Entrant { passes: true, ..entrant });
    }

    /// The room of a shard of which a part is here, for the fill that goes on with it. It stays charged
    /// to whoever brought the part.
    pub(super) fn resume(&mut self, name: &ShardName) -> Option<Room> {
        let entry = self.get(name).filter(|entry| entry.state == State::Partial)?;
        let (object, space, of) = (entry.object, entry.space.clone(), entry.of.clone());
        let charge = self.shelves[entry.shelf].charge;
        self.forget(name, false);
        let passes = self.passes_by(charge, object, name.hash(), space.bytes(), true);
        Some(Room { passes, space, of })
    }

    /// Whether a shard that comes in now only passes: see [`Shelf::passes`]. What jobs told to need stays.
    pub(super) fn passes_by(
        &mut self,
        charge: Charge,
        object: ObjectKey,
        identity: u64,
        bytes: u64,
        room: bool,
    ) -> bool {
        let is_foreseen = self.forecast.number(object).is_some();
        let shelf = self.shelf_mut(charge);
        !(is_foreseen && shelf.looks_forward()) && shelf.passes(identity, bytes, room)
    }

    fn enter(&mut self, entrant: Entrant) {
        let Entrant { name, object, of, space, since, state, passes, moves, shard } = entrant;
        // Two entries of one name would be one too many to find again.
        self.forget(&name, false);
        self.uses += 1;
        let used = self.uses;
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.entries.push(None);
            Slot::try_from(self.entries.len() - 1).expect("fewer shards than four billion")
        });
        let at = Standing { slot, bytes: space.bytes(), since, passes, foreseen: false };
        let charge = self.shares.charge_of(&of);
        // Its room may have been reserved by other rules.
        space.charge_to(self.shares.budgets(charge));
        let shelf = self.shelf_of(charge);
        self.shelves[shelf].insert(at, name.hash());
        self.names.insert(name.clone(), slot);
        *self.labels.entry(name.label()).or_default() += 1;
        let fresh = state != State::Whole;
        self.entries[slot as usize] = Some(Entry {
            name,
            of,
            object,
            number: None,
            shelf,
            at,
            fresh,
            used,
            uses: 0,
            moves,
            doomed: false,
            state,
            pace: Pace::Waits,
            space,
            shard,
            kept: None,
        });
        self.know(slot, self.forecast.number(object));
    }

    /// Jobs said that they will read other shards than before.
    pub(super) fn look_forward(&mut self) {
        for slot in 0..self.entries.len() {
            let Some(entry) = &self.entries[slot] else { continue };
            let number = self.forecast.number(entry.object);
            if entry.number != number {
                // As many as were given out.
                self.know(slot as Slot, number);
            }
        }
    }

    /// A shard has this number in the forecast from now on, which hears where it lies.
    fn know(&mut self, slot: Slot, number: Option<Number>) {
        // Of several versions the one that came last counts: nobody will read the others.
        let other = number.and_then(|number| self.numbers.insert(number, slot));
        if let Some(other) = other.filter(|other| *other != slot) {
            self.know_nothing_of(other);
        }
        self.know_nothing_of(slot);
        let Some(number) = number else { return };
        self.numbers.insert(number, slot);
        let Some(entry) = self.entries[slot as usize].as_mut() else { return };
        entry.number = Some(number);
        let shelf = &mut self.shelves[entry.shelf];
        if entry.state != State::Partial && shelf.looks_forward() {
            shelf.foresee(&mut entry.at, entry.name.hash(), true);
        }
        let (is_fetched, is_whole, shelf) = (entry.is_fetched(), entry.is_whole(), entry.shelf);
        match (is_fetched, is_whole) {
            (true, _) => self.forecast.began(number),
            (false, true) => self.tell_found(Some(number), shelf),
            (false, false) => {}
        }
    }

    /// The forecast is not to count on a shard any more.
    fn know_nothing_of(&mut self, slot: Slot) {
        let Some(entry) = self.entries[slot as usize].as_mut() else { return };
        let Some(number) = entry.number.take() else { return };
        let shelf = &mut self.shelves[entry.shelf];
        shelf.foresee(&mut entry.at, entry.name.hash(), false);
        match (entry.is_fetched(), entry.is_whole(), shelf.place) {
            (true, ..) => self.forecast.failed(number),
            (false, true, Some(place)) => self.forecast.left(number, place),
            _ => {}
        }
        if self.numbers.get(&number) == Some(&slot) {
            self.numbers.remove(&number);
        }
    }

    fn tell_found(&self, number: Option<Number>, shelf: usize) {
        if let (Some(number), Some(place)) = (number, self.shelves[shelf].place) {
            self.forecast.found(number, place);
        }
    }

    /// A shard was opened, or begun.
    pub(super) fn opened(&mut self, shard: &Arc<Shard>) {
        let Some(entry) = self.get_mut(shard.name()) else { return };
        if entry.state == State::Partial {
            // Its fill failed before this came to be told.
            return;
        }
        entry.shard = Arc::downgrade(shard);
        if entry.is_whole() && entry.kept.is_none() {
            self.open.keep(shard.name().clone(), shard);
        }
    }

    /// A shard's bytes are all there, as far as they will ever be.
    pub(super) fn whole(&mut self, shard: &Arc<Shard>, state: State) {
        let Some(&slot) = self.names.get(shard.name()) else { return };
        if let Some(entry) = self.entries[slot as usize].as_mut() {
            let place = self.shelves[entry.shelf].place;
            if let (Some(number), Some(place), true) = (entry.number, place, entry.is_fetched()) {
                self.forecast.arrived(number, place);
            }
            entry.state = state;
            match shard.body {
                // Its next run may say something else: whoever comes after those who read it now asks anew.
                _ if state == State::Broken && shard.stat.binding == Binding::Stream => {}
                Body::Memory(_) => entry.kept = Some(shard.clone()),
                Body::Disk { .. } | Body::Origin => self.open.keep(shard.name().clone(), shard),
            }
        }
    }

    /// Takes a shard out; whoever reads it still may.
    pub(super) fn forget(&mut self, name: &ShardName, evicted: bool) -> Option<Entry> {
        self.open.forget(name);
        self.pinned.remove(name);
        self.unwanted.remove(name);
        let slot = self.names.remove(name)?;
        self.know_nothing_of(slot);
        if let Some(left) = self.labels.get_mut(&name.label()) {
            *left -= 1;
            if *left == 0 {
                self.labels.remove(&name.label());
            }
        }
        let entry = self.entries[slot as usize].take()?;
        self.vacant.push(slot);
        self.shelves[entry.shelf].remove(entry.at, evicted);
        Some(entry)
    }

    /// Somebody needs a shard soon.
    pub(super) fn claim(&mut self, name: &ShardName) {
        *self.claims.entry(name.clone()).or_default() += 1;
    }

    /// Somebody begins to use a shard; with how often that was so since it came to this node.
    pub(super) fn used(&mut self, name: &ShardName) -> u32 {
        let Some(&slot) = self.names.get(name) else { return 0 };
        let Some(entry) = self.entries[slot as usize].as_mut() else { return 0 };
        self.uses += 1;
        (entry.used, entry.uses) = (self.uses, entry.uses.saturating_add(1));
        if !std::mem::take(&mut entry.fresh) {
            self.shelves[entry.shelf].hit(&mut entry.at, entry.name.hash());
        }
        entry.uses
    }

    /// The end of a claim.
    pub(super) fn unclaim(&mut self, name: &ShardName) {
        decrease(&mut self.claims, name);
    }

    /// A copy on the tier of this name, as it stands.
    pub(super) fn kept(&self, name: &ShardName, tier: &str) -> Option<Kept> {
        let entry = self.get(name)?;
        let shelf = &self.shelves[entry.shelf];
        let (rule, age) = (shelf.rule(), age(entry.at.since, SystemTime::now()));
        let left = |of: Option<Duration>| Some(of?.saturating_sub(age).as_secs());
        Some(Kept {
            tier: tier.to_owned(),
            state: match entry.state {
                State::Arriving => Copy::Arriving,
                State::Partial => Copy::Partial,
                State::Whole => Copy::Whole,
                State::Broken => Copy::Broken,
            },
            bytes: entry.at.bytes,
            tenant: (shelf.charge.tenant != NOBODY.tenant)
                .then(|| self.shares.tenant(shelf.charge).name.clone()),
            age_seconds: age.as_secs(),
            uses: entry.uses,
            in_use: !is_idle(entry, &self.open, &self.opening),
            claimed: self.claims.contains_key(name),
            pinned: self.pinned.contains(name),
            passes: entry.at.passes,
            within_minimum: shelf.terms(None).may_lose < entry.at.bytes,
            kept_for_seconds: left(rule.dont_evict_time).filter(|left| *left > 0),
            stale_in_seconds: left(rule.ttl),
            needed_in_seconds: self.forecast.needed(entry.object).filter(|at| *at < NEVER).map(
                |at| Duration::from_micros(at.saturating_sub(self.forecast.now())).as_secs_f64(),
            ),
        })
    }

    /// Whether waiting may make room: bytes are on their way out, or somebody uses a shard that
    /// could go otherwise. What stays by its rules does not count.
    pub(super) fn may_come_free(&self, need: Need, tier: &Budget) -> bool {
        if need.short == Short::Both {
            // One of them alone makes no room.
            let either = [Short::Dataset, Short::Tenant].map(|short| Need { short, ..need });
            return either.iter().all(|need| self.may_come_free(*need, tier));
        }
        let now = SystemTime::now();
        let mut resting = 0;
        let busy = self.entries.iter().flatten().any(|entry| {
            let of = &self.shelves[entry.shelf];
            if !need.concerns(of.charge) {
                return false;
            }
            resting += entry.at.bytes;
            let terms = of.terms(need.charge);
            let is_kept = self.pinned.contains(&entry.name) || of.rule().pin && !entry.at.passes;
            let by_rule = !is_kept && terms.allow(entry.at, now);
            // Who is short itself, or whose turn has not come, may wait for this very one.
            let ends = !need.grows || entry.state != State::Arriving || entry.pace == Pace::Runs;
            by_rule && ends && !is_idle(entry, &self.open, &self.opening)
        });
        let short = need.charge.map(|charge| self.shares.of(charge));
        let held = match (short, need.short) {
            // What other tiers hold of it does not come free here.
            (Some([share, _]), Short::Dataset) | (Some([_, share]), Short::Tenant) => {
                let shelves = self.shelves.iter().filter(|shelf| need.concerns(shelf.charge));
                share.reserved_here(shelves.map(Shelf::bytes).sum())
            }
            _ => {
                let newer = self.newer.as_ref().map_or(0, Space::bytes);
                let stuck: u64 = self.stuck.iter().map(|entry| entry.at.bytes).sum();
                tier.used().saturating_sub(newer + stuck)
            }
        };
        busy || held > resting
    }

    /// Whether bytes come that wait for no room themselves.
    pub(super) fn is_filling(&self) -> bool {
        let comes = |entry: &Entry| entry.state == State::Arriving && entry.pace == Pace::Runs;
        self.entries.iter().flatten().any(comes)
    }

    /// Whether bytes are on their way that will be evictable once they are here.
    pub(super) fn is_arriving(&self) -> bool {
        self.entries.iter().flatten().any(|entry| entry.state == State::Arriving)
    }

    /// The shard that goes next, if any may go, and whether its policy named it.
    pub(super) fn victim(&mut self, need: Need) -> Option<(ShardName, bool)> {
        let now = SystemTime::now();
        let scopes: &[Short] = match &need.short {
            Short::Both => &[Short::Both, Short::Tenant],
            one => std::slice::from_ref(one),
        };
        let lasts: &[bool] = match need.urgency {
            Urgency::Needed => &[false, true],
            Urgency::Ahead => &[false],
        };
        let mut tries = lasts.iter().flat_map(|last| scopes.iter().map(|short| (*short, *last)));
        let (slot, named) =
            tries.find_map(|(short, last)| self.search(Need { short, ..need }, now, last))?;
        self.entries[slot as usize].as_ref().map(|entry| (entry.name.clone(), named))
    }

    /// Goes through the shelves, the least important first. As a `last` resort what somebody
    /// claimed may go, and what is more important than the newcomer.
    fn search(&mut self, need: Need, now: SystemTime, last: bool) -> Option<(Slot, bool)> {
        let priority = need.charge.map_or(i32::MAX, |charge| self.shares.priority(charge));
        let mut order: Vec<usize> = (0..self.shelves.len()).collect();
        order.retain(|at| need.concerns(self.shelves[*at].charge));
        let Self { entries, shelves, open, opening, claims, pinned, numbers, forecast, .. } = self;
        // Shared from here on, so that each shelf's rule can borrow them again.
        let (entries, open, opening, claims, pinned) =
            (&*entries, &*open, &*opening, &*claims, &*pinned);
        order.sort_by_cached_key(|at| {
            let shelf = &shelves[*at];
            (shelf.rule().priority, std::cmp::Reverse(shelf.above_minimum()))
        });
        let may_go = |terms: Terms| {
            // What costs least to ask comes first: a search may pass many.
            move |slot: Slot| {
                entries[slot as usize].as_ref().is_some_and(|entry| {
                    terms.allow(entry.at, now)
                        && is_idle(entry, open, opening)
                        && (last || !claims.contains_key(&entry.name))
                        && !pinned.contains(&entry.name)
                })
            }
        };
        for at in &order {
            let shelf = &shelves[*at];
            let terms = shelf.terms(need.charge);
            if let Some(spare) = shelf.spare(now, &mut may_go(terms)) {
                return Some((spare, false));
            }
        }
        if need.passes && !last {
            return None;
        }
        order.retain(|at| {
            let shelf = &shelves[*at];
            let more_important = !last && shelf.rule().priority > priority;
            let keeps_all = shelf.terms(need.charge).may_lose == 0;
            !(shelf.rule().pin || more_important || keeps_all)
        });
        let than = need.than.filter(|_| !last);
        while let Some(first) = order.first() {
            let priority = shelves[*first].rule().priority;
            let alike = order.partition_point(|at| shelves[*at].rule().priority == priority);
            let alike: Vec<usize> = order.drain(..alike).collect();
            for at in &alike {
                let shelf = &mut shelves[*at];
                let terms = shelf.terms(need.charge);
                if let Some(victim) = shelf.victim(&mut may_go(terms)) {
                    return Some((victim, true));
                }
            }
            let forward =
                alike.iter().map(|at| &shelves[*at]).filter(|shelf| shelf.looks_forward());
            let places: Vec<Place> = forward.filter_map(|shelf| shelf.place).collect();
            let mut may_go = |number: Number| {
                let slot = numbers.get(&number).copied();
                let entry = slot.and_then(|slot| Some((slot, entries[slot as usize].as_ref()?)));
                entry.is_some_and(|(slot, entry)| {
                    may_go(shelves[entry.shelf].terms(need.charge))(slot)
                })
            };
            if let Some(gone) = forecast.last(&places, than, &mut may_go)
                && let Some(slot) = numbers.get(&gone)
            {
                return Some((*slot, true));
            }
        }
        None
    }
}

/// What comes to the table.
struct Entrant {
    name: ShardName,
    object: ObjectKey,
    of: Provenance,
    space: Arc<Space>,
    since: SystemTime,
    state: State,
    passes: bool,
    moves: bool,
    shard: Weak<Shard>,
}

impl Entrant {
    /// One that comes now to stay, from its origin.
    fn new(
        name: ShardName,
        object: ObjectKey,
        of: Provenance,
        space: Arc<Space>,
        state: State,
    ) -> Self {
        let (since, shard) = (SystemTime::now(), Weak::new());
        Self { name, object, of, space, since, state, passes: false, moves: false, shard }
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

/// Whether nobody reads a whole shard, or is about to.
fn is_idle(entry: &Entry, open: &OpenShards, opening: &HashMap<ShardName, usize>) -> bool {
    let kept = usize::from(open.by_use.contains(&entry.name)) + usize::from(entry.kept.is_some());
    entry.state != State::Arriving
        && entry.shard.strong_count() <= kept
        && !opening.contains_key(&entry.name)
}

impl OpenShards {
    pub(crate) fn new() -> Self {
        Self { by_use: LruCache::unbounded(), index_bytes: 0 }
    }

    pub(crate) fn get(&mut self, name: &ShardName) -> Option<Arc<Shard>> {
        self.by_use.get(name).map(|(shard, _)| shard.clone())
    }

    pub(crate) fn forget_url(&mut self, url: &str) {
        let shards = self.by_use.iter().filter(|(_, (shard, _))| shard.url() == url);
        let names: Vec<_> = shards.map(|(name, _)| name.clone()).collect();
        names.iter().for_each(|name| self.forget(name));
    }

    pub(crate) fn keep(&mut self, name: ShardName, shard: &Arc<Shard>) {
        let bytes = shard.index().bytes();
        self.forget(&name);
        self.by_use.put(name, (shard.clone(), bytes));
        self.index_bytes += bytes;
        while self.by_use.len() > OPEN_SHARDS
            || (self.index_bytes > OPEN_INDEX_BYTES && self.by_use.len() > 1)
        {
            let Some((_, (_, bytes))) = self.by_use.pop_lru() else { break };
            self.index_bytes -= bytes;
        }
    }

    pub(crate) fn forget(&mut self, name: &ShardName) {
        if let Some((_, bytes)) = self.by_use.pop(name) {
            self.index_bytes -= bytes;
        }
    }
}
