//! The queue of one epoch, and the log that it is made by.
//!
//! Its rule: [`Queue::apply`] alone changes what is dealt and done, by one entry of the log at a time;
//! whoever repeats the entries has the queue.

use std::collections::{BTreeMap, BTreeSet};

use forebay_error::{Error, ErrorKind, Result};
use forebay_wire::leases::{Mark, Place};
use serde::{Deserialize, Serialize};

/// One line of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// A trainer takes part.
    Joined {
        /// Its name in the log.
        member: u64,
        /// Its rank.
        rank: u32,
    },
    /// It does no longer: what it holds comes back.
    Left {
        /// Who.
        member: u64,
    },
    /// A turn is leased, from where it was left on.
    Taken {
        /// Which.
        turn: u32,
        /// By whom.
        by: u64,
    },
    /// A turn's samples are counted.
    Counted {
        /// Which.
        turn: u32,
        /// How many.
        samples: u64,
    },
    /// So many of a turn's samples are delivered for good.
    Done {
        /// Which.
        turn: u32,
        /// Samples, from the first on.
        upto: u64,
    },
}

/// A turn that was dealt and is not done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Open {
    upto: u64,
    samples: Option<u64>,
    by: Option<u64>,
}

/// Somebody who takes part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Seat {
    rank: u32,
    /// When it is given up, by the keeper's clock; `None` while its end would be seen.
    until: Option<u64>,
    /// Its daemon was lost, and it did not come back so far.
    #[serde(default)]
    awaited: bool,
}

/// Who wants to take part, and with what.
#[derive(Debug, Clone)]
pub struct Joining {
    /// Its name in the log.
    pub member: u64,
    /// Its rank.
    pub rank: u32,
    /// Ranks of the job.
    pub world_size: u32,
    /// Shards of an epoch.
    pub shards: u32,
    /// What the epoch begins with, if not with its first shard.
    pub from: Option<Place>,
    /// The log that it has a part in already.
    pub log: Option<String>,
    /// Of that log, what it acknowledged,
    pub acknowledged: Vec<Mark>,
    /// and what it received.
    pub received: Vec<Mark>,
    /// The name of the log that begins if none goes on.
    pub fresh: String,
}

/// What there is to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Offer {
    /// This turn.
    Turn(u32),
    /// Nothing now; others hold what is left.
    Nothing,
    /// Nothing any more.
    Over,
}

/// What to say where there is no queue any more.
pub(super) fn gone() -> Error {
    Error::new(ErrorKind::NotFound, "the lease log of this epoch is gone")
        .advise("begin anew from the last state_dict(), on every rank")
}

/// The queue of one epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    log: String,
    position: u64,
    shards: u32,
    world_size: u32,
    next: u32,
    open: BTreeMap<u32, Open>,
    seats: BTreeMap<u64, Seat>,
    /// Who ever took part.
    ranks: BTreeSet<u32>,
    /// The place in another log that it began with.
    began: Option<(String, u64)>,
    /// Entries since [`Queue::entries`] was asked.
    #[serde(skip)]
    fresh: Vec<Entry>,
}

impl Queue {
    fn new(who: &Joining) -> Result<Self> {
        let mut queue = Self {
            log: who.fresh.clone(),
            position: 0,
            shards: who.shards,
            world_size: who.world_size,
            next: 0,
            open: BTreeMap::new(),
            seats: BTreeMap::new(),
            ranks: BTreeSet::new(),
            began: None,
            fresh: Vec::new(),
        };
        if let Some(from) = &who.from {
            let fits =
                from.next <= who.shards && from.open.iter().all(|mark| mark.turn < from.next);
            if !fits {
                return Err(Error::new(
                    ErrorKind::Invalid,
                    "the state names shards that the job has not",
                )
                .at("shards", who.shards)
                .advise("give the state of a loader over the same shards"));
            }
            queue.next = from.next;
            let open = |mark: &Mark| (mark.turn, Open { upto: mark.upto, ..Open::default() });
            queue.open = from.open.iter().map(open).collect();
            queue.began = Some((from.log.clone(), from.position));
        }
        Ok(queue)
    }

    /// Takes part, in the log that goes on or in one that begins; what it holds already comes back.
    ///
    /// A rank that comes anew while none of the others is there begins the epoch anew; every other one
    /// joins.
    ///
    /// # Errors
    /// `NotFound` if the log to go on with is gone, `Closed` if others have what it received, `Invalid` if
    /// the ranks do not agree on what they read.
    pub fn join(
        slot: &mut Option<Self>,
        who: &Joining,
        now: u64,
        until: Option<u64>,
    ) -> Result<Vec<Mark>> {
        if let Some(queue) = slot {
            queue.expire(now);
        }
        if let Some(log) = &who.log {
            let queue = slot.as_mut().filter(|queue| queue.log == *log);
            let queue = queue.ok_or_else(|| gone().at("log", log))?;
            return queue.rejoin(who, until);
        }
        let goes_on = slot.as_ref().is_some_and(|queue| {
            let others = queue.seats.values().any(|seat| seat.rank != who.rank && !seat.awaited);
            others || (!queue.ranks.contains(&who.rank) && queue.agrees(who).is_ok())
        });
        if !goes_on {
            *slot = Some(Self::new(who)?);
        }
        let queue = slot.as_mut().expect("made just above, if there was none");
        queue.agrees(who)?;
        queue.sit(who, until);
        Ok(Vec::new())
    }

    fn agrees(&self, who: &Joining) -> Result<()> {
        let began = who.from.as_ref().map(|from| (from.log.clone(), from.position));
        if (self.shards, self.world_size) != (who.shards, who.world_size) {
            return Err(Error::new(
                ErrorKind::Invalid,
                "the ranks of one job read different things",
            )
            .at("shards", format!("{} and {}", self.shards, who.shards))
            .at("world_size", format!("{} and {}", self.world_size, who.world_size))
            .advise("give every rank the same arguments, or jobs names of their own (job=)"));
        }
        if self.began != began {
            return Err(Error::new(ErrorKind::Invalid, "the ranks go on from different states")
                .at("from", format!("{} and {}", from(self.began.as_ref()), from(began.as_ref())))
                .advise("load one and the same state_dict() on every rank"));
        }
        Ok(())
    }

    fn sit(&mut self, who: &Joining, until: Option<u64>) {
        if !self.seats.contains_key(&who.member) {
            self.add(Entry::Joined { member: who.member, rank: who.rank });
        }
        self.believe(who.member, until);
    }

    /// Comes back after its daemon was lost, or begins another run of the same epoch.
    fn rejoin(&mut self, who: &Joining, until: Option<u64>) -> Result<Vec<Mark>> {
        for mark in who.acknowledged.iter().chain(&who.received) {
            let is_safe = match self.open.get(&mark.turn) {
                Some(open) => open.by == Some(who.member) || open.upto >= mark.upto,
                None => mark.turn < self.next,
            };
            if !is_safe {
                let what = "this rank was away for so long that others have what it held";
                return Err(Error::new(ErrorKind::Closed, what)
                    .at("turn", mark.turn)
                    .advise("begin anew from the last state_dict(), on every rank"));
            }
        }
        self.sit(who, until);
        self.acknowledge(who.member, &who.acknowledged)?;
        let received = |turn: u32| {
            let of = who.received.iter().filter(|mark| mark.turn == turn);
            of.map(|mark| mark.upto).max().unwrap_or(0)
        };
        let held = self.open.iter().filter(|(_, open)| open.by == Some(who.member));
        Ok(held
            .map(|(turn, open)| Mark { turn: *turn, upto: open.upto.max(received(*turn)) })
            .collect())
    }

    /// What `member` may have next: what came back first, then the next shard. Beyond its first a member
    /// gets one only while it holds less than each rank's share of what is left (guided self-scheduling), so
    /// that who comes first or is slow does not hoard what others wait for.
    pub(super) fn offer(&self, member: u64) -> Offer {
        if let Some((turn, _)) = self.open.iter().find(|(_, open)| open.by.is_none()) {
            return Offer::Turn(*turn);
        }
        let left = self.shards - self.next;
        let held = self.open.values().filter(|open| open.by == Some(member)).count();
        let share = left.div_ceil(self.world_size) as usize;
        if left > 0 && (held < share || self.world_size == 1) {
            return Offer::Turn(self.next);
        }
        if left == 0 && self.open.is_empty() { Offer::Over } else { Offer::Nothing }
    }

    /// Leases what there is to be had, with how far it was delivered.
    ///
    /// # Errors
    /// `Closed` if `member` takes no part any more.
    pub(super) fn take(&mut self, member: u64) -> Result<(Offer, u64)> {
        self.is_seated(member)?;
        let offer = self.offer(member);
        let Offer::Turn(turn) = offer else { return Ok((offer, 0)) };
        self.add(Entry::Taken { turn, by: member });
        Ok((offer, self.open.get(&turn).map_or(0, |open| open.upto)))
    }

    /// Notes a turn's samples.
    ///
    /// # Errors
    /// `Closed` if `member` takes no part any more.
    pub(super) fn count(&mut self, member: u64, turn: u32, samples: u64) -> Result<()> {
        self.is_seated(member)?;
        if self.open.get(&turn).is_some_and(|open| open.samples != Some(samples)) {
            self.add(Entry::Counted { turn, samples });
        }
        Ok(())
    }

    /// Notes how far `member` came with what it holds. What it does not hold is none of its business.
    ///
    /// # Errors
    /// `Closed` if `member` takes no part any more.
    pub(super) fn acknowledge(&mut self, member: u64, marks: &[Mark]) -> Result<()> {
        self.is_seated(member)?;
        for &Mark { turn, upto } in marks {
            let open = self.open.get(&turn);
            if open.is_some_and(|open| open.by == Some(member) && open.upto < upto) {
                self.add(Entry::Done { turn, upto });
            }
        }
        Ok(())
    }

    /// Believes in `member` until then; whether it takes part at all.
    pub(super) fn believe(&mut self, member: u64, until: Option<u64>) -> bool {
        let seat = self.seats.get_mut(&member);
        seat.map(|seat| (seat.until, seat.awaited) = (until, false)).is_some()
    }

    /// Takes what `member` holds back.
    pub(super) fn leave(&mut self, member: u64) {
        if self.seats.contains_key(&member) {
            self.add(Entry::Left { member });
        }
    }

    /// Takes back what those hold in whom nobody believes any more.
    pub fn expire(&mut self, now: u64) {
        let is_over = |seat: &Seat| seat.until.is_some_and(|until| until <= now);
        let gone = self.seats.iter().filter(|(_, seat)| is_over(seat)).map(|(member, _)| *member);
        for member in gone.collect::<Vec<_>>() {
            self.leave(member);
        }
    }

    /// Of a queue that was read from where it is kept: everybody has until then to say that it is there.
    pub fn await_all(&mut self, until: u64) {
        for seat in self.seats.values_mut() {
            (seat.until, seat.awaited) = (Some(until), true);
        }
    }

    /// When somebody will be given up next.
    #[must_use]
    pub fn expiry(&self) -> Option<u64> {
        self.seats.values().filter_map(|seat| seat.until).min()
    }

    /// Whether nobody takes part.
    #[must_use]
    pub fn is_left(&self) -> bool {
        self.seats.is_empty()
    }

    /// The log's name.
    #[must_use]
    pub fn log(&self) -> &str {
        &self.log
    }

    /// Entries of the log.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Turns that were dealt: those before this one.
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// Where the log stands.
    #[must_use]
    pub fn place(&self) -> Place {
        let open = self.open.iter().map(|(turn, open)| Mark { turn: *turn, upto: open.upto });
        Place {
            log: self.log.clone(),
            position: self.position,
            next: self.next,
            open: open.collect(),
        }
    }

    /// The entries since this was last asked.
    pub fn entries(&mut self) -> Vec<Entry> {
        std::mem::take(&mut self.fresh)
    }

    fn is_seated(&self, member: u64) -> Result<()> {
        match self.seats.contains_key(&member) {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::Closed,
                "this rank was given up, and others have what it held",
            )
            .at("log", &self.log)
            .advise("begin anew from the last state_dict(), on every rank")),
        }
    }

    fn add(&mut self, entry: Entry) {
        self.apply(&entry);
        self.fresh.push(entry);
    }

    /// Does what an entry of the log says.
    pub fn apply(&mut self, entry: &Entry) {
        self.position += 1;
        match *entry {
            Entry::Joined { member, rank } => {
                self.seats.insert(member, Seat { rank, until: None, awaited: false });
                self.ranks.insert(rank);
            }
            Entry::Left { member } => {
                self.seats.remove(&member);
                for open in self.open.values_mut().filter(|open| open.by == Some(member)) {
                    open.by = None;
                }
            }
            Entry::Taken { turn, by } => {
                self.open.entry(turn).or_default().by = Some(by);
                self.next = self.next.max(turn.saturating_add(1)).min(self.shards);
            }
            Entry::Counted { turn, samples } => {
                if let Some(open) = self.open.get_mut(&turn) {
                    open.samples = Some(samples);
                }
                self.settle(turn);
            }
            Entry::Done { turn, upto } => {
                if let Some(open) = self.open.get_mut(&turn) {
                    open.upto = open.upto.max(upto);
                }
                self.settle(turn);
            }
        }
    }

    /// A turn is done when all its samples are.
    fn settle(&mut self, turn: u32) {
        let is_done = |open: &Open| open.samples.is_some_and(|samples| open.upto >= samples);
        if self.open.get(&turn).is_some_and(is_done) {
            self.open.remove(&turn);
        }
    }
}

/// Name of the position that a rank resumes from.
fn from(began: Option<&(String, u64)>) -> String {
    began.map_or_else(|| "the start".to_owned(), |(log, position)| format!("{log} at {position}"))
}
