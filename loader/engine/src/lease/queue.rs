//! Queue of one epoch, and the log it is made from.
//!
//! Rule: [`Queue::apply`] alone changes the state, by one entry of the log at a time. Replaying the
//! entries gives the queue.

use std::collections::{BTreeMap, BTreeSet};

use forebay_error::{Error, ErrorKind, Result};
use forebay_wire::leases::{LogPosition, Mark};
use serde::{Deserialize, Serialize};

/// One entry of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// A trainer joined.
    Joined {
        /// Member number.
        member: u64,
        /// Rank.
        rank: u32,
    },
    /// A trainer left: its shards return.
    Left {
        /// Member number.
        member: u64,
    },
    /// A turn was taken, at its present progress.
    Taken {
        /// The turn.
        turn: u32,
        /// The member.
        by: u64,
    },
    /// A turn's samples were counted.
    Counted {
        /// The turn.
        turn: u32,
        /// Sample count.
        samples: u64,
    },
    /// Samples of a turn were finally delivered.
    Done {
        /// The turn.
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

/// A present member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Seat {
    rank: u32,
    /// Expiry by the keeper's clock; `None` if its end would be noticed.
    until: Option<u64>,
    /// True if its daemon was lost and it has not come back.
    #[serde(default)]
    awaited: bool,
}

/// A member that wants to join.
#[derive(Debug, Clone)]
pub struct Joining {
    /// Member number.
    pub member: u64,
    /// Rank.
    pub rank: u32,
    /// Ranks of the job.
    pub world_size: u32,
    /// Shards of an epoch.
    pub shards: u32,
    /// Start of the epoch, if not its first shard.
    pub from: Option<LogPosition>,
    /// The log it already takes part in.
    pub log: Option<String>,
    /// Progress it acknowledged in that log.
    pub acknowledged: Vec<Mark>,
    /// Progress it received in that log.
    pub received: Vec<Mark>,
    /// Name of a new log, if none continues.
    pub fresh: String,
}

/// A shard available to a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Offer {
    /// This turn.
    Turn(u32),
    /// None for now; others hold the rest.
    Nothing,
    /// None any more.
    Over,
}

/// Error for a queue that no longer exists.
pub(super) fn gone() -> Error {
    Error::new(ErrorKind::NotFound, "the queue of this epoch no longer exists")
        .advise("resume from the last state_dict(), on every rank")
}

/// Queue of one epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    log: String,
    position: u64,
    shards: u32,
    world_size: u32,
    next: u32,
    open: BTreeMap<u32, Open>,
    seats: BTreeMap<u64, Seat>,
    /// Ranks that ever joined.
    ranks: BTreeSet<u32>,
    /// Position in another log that it started from.
    began: Option<(String, u64)>,
    /// Entries since the last call of [`Queue::entries`].
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
                    "the state names shards that the job does not have",
                )
                .at("shards", who.shards)
                .advise("load the state of a loader over the same shards"));
            }
            queue.next = from.next;
            let open = |mark: &Mark| (mark.turn, Open { upto: mark.upto, ..Open::default() });
            queue.open = from.open.iter().map(open).collect();
            queue.began = Some((from.log.clone(), from.position));
        }
        Ok(queue)
    }

    /// Joins an existing log or starts one; returns the progress of shards the member still holds.
    ///
    /// A rank that joins anew while no other member is present restarts the epoch; every other one
    /// continues it.
    ///
    /// # Errors
    /// `NotFound` if the log to continue is gone, `Closed` if others hold what it received,
    /// `Invalid` if the ranks disagree on their data.
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
        let queue = slot.as_mut().expect("created above if there was none");
        queue.agrees(who)?;
        queue.sit(who, until);
        Ok(Vec::new())
    }

    fn agrees(&self, who: &Joining) -> Result<()> {
        let began = who.from.as_ref().map(|from| (from.log.clone(), from.position));
        if (self.shards, self.world_size) != (who.shards, who.world_size) {
            return Err(Error::new(ErrorKind::Invalid, "the ranks of one job read different data")
                .at("shards", format!("{} and {}", self.shards, who.shards))
                .at("world_size", format!("{} and {}", self.world_size, who.world_size))
                .advise(
                    "give every rank the same arguments, or give each job its own name (job=)",
                ));
        }
        if self.began != began {
            return Err(Error::new(ErrorKind::Invalid, "the ranks resume from different states")
                .at("from", format!("{} and {}", from(self.began.as_ref()), from(began.as_ref())))
                .advise("load the same state_dict() on every rank"));
        }
        Ok(())
    }

    fn sit(&mut self, who: &Joining, until: Option<u64>) {
        if !self.seats.contains_key(&who.member) {
            self.add(Entry::Joined { member: who.member, rank: who.rank });
        }
        self.believe(who.member, until);
    }

    /// Rejoins after its daemon was lost, or for another run of the same epoch.
    fn rejoin(&mut self, who: &Joining, until: Option<u64>) -> Result<Vec<Mark>> {
        for mark in who.acknowledged.iter().chain(&who.received) {
            let is_safe = match self.open.get(&mark.turn) {
                Some(open) => open.by == Some(who.member) || open.upto >= mark.upto,
                None => mark.turn < self.next,
            };
            if !is_safe {
                let what = "this rank was away so long that others took its shards";
                return Err(Error::new(ErrorKind::Closed, what)
                    .at("turn", mark.turn)
                    .advise("resume from the last state_dict(), on every rank"));
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

    /// Chooses the next shard for `member`: returned ones first, then the next turn. After its
    /// first shard, a member gets one only while it holds less than a rank's share of the rest
    /// (guided self-scheduling), so that an early or slow member does not hoard shards.
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

    /// Takes the available shard; returns it with its progress.
    ///
    /// # Errors
    /// `Closed` if `member` is no longer part of the queue.
    pub(super) fn take(&mut self, member: u64) -> Result<(Offer, u64)> {
        self.is_seated(member)?;
        let offer = self.offer(member);
        let Offer::Turn(turn) = offer else { return Ok((offer, 0)) };
        self.add(Entry::Taken { turn, by: member });
        Ok((offer, self.open.get(&turn).map_or(0, |open| open.upto)))
    }

    /// Records a turn's sample count.
    ///
    /// # Errors
    /// `Closed` if `member` is no longer part of the queue.
    pub(super) fn count(&mut self, member: u64, turn: u32, samples: u64) -> Result<()> {
        self.is_seated(member)?;
        if self.open.get(&turn).is_some_and(|open| open.samples != Some(samples)) {
            self.add(Entry::Counted { turn, samples });
        }
        Ok(())
    }

    /// Records progress of `member` in its shards; marks of other shards are ignored.
    ///
    /// # Errors
    /// `Closed` if `member` is no longer part of the queue.
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

    /// Extends the expiry of `member`; returns true if it is part of the queue.
    pub(super) fn believe(&mut self, member: u64, until: Option<u64>) -> bool {
        let seat = self.seats.get_mut(&member);
        seat.map(|seat| (seat.until, seat.awaited) = (until, false)).is_some()
    }

    /// Returns the shards of `member` to the queue.
    pub(super) fn leave(&mut self, member: u64) {
        if self.seats.contains_key(&member) {
            self.add(Entry::Left { member });
        }
    }

    /// Returns the shards of expired members to the queue.
    pub fn expire(&mut self, now: u64) {
        let is_over = |seat: &Seat| seat.until.is_some_and(|until| until <= now);
        let gone = self.seats.iter().filter(|(_, seat)| is_over(seat)).map(|(member, _)| *member);
        for member in gone.collect::<Vec<_>>() {
            self.leave(member);
        }
    }

    /// Gives every member of a queue loaded from its keeper until `until` to report.
    pub fn await_all(&mut self, until: u64) {
        for seat in self.seats.values_mut() {
            (seat.until, seat.awaited) = (Some(until), true);
        }
    }

    /// Returns the next expiry of a member.
    #[must_use]
    pub fn expiry(&self) -> Option<u64> {
        self.seats.values().filter_map(|seat| seat.until).min()
    }

    /// True if there are no members.
    #[must_use]
    pub fn is_left(&self) -> bool {
        self.seats.is_empty()
    }

    /// Returns the log's name.
    #[must_use]
    pub fn log(&self) -> &str {
        &self.log
    }

    /// Returns the number of entries of the log.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Returns the next turn to deal; all turns before it were dealt.
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// Returns the log's state.
    #[must_use]
    pub fn place(&self) -> LogPosition {
        let open = self.open.iter().map(|(turn, open)| Mark { turn: *turn, upto: open.upto });
        LogPosition {
            log: self.log.clone(),
            position: self.position,
            next: self.next,
            open: open.collect(),
        }
    }

    /// Returns the entries since the last call.
    pub fn entries(&mut self) -> Vec<Entry> {
        std::mem::take(&mut self.fresh)
    }

    fn is_seated(&self, member: u64) -> Result<()> {
        match self.seats.contains_key(&member) {
            true => Ok(()),
            false => {
                Err(Error::new(ErrorKind::Closed, "this rank expired, and others took its shards")
                    .at("log", &self.log)
                    .advise("resume from the last state_dict(), on every rank"))
            }
        }
    }

    fn add(&mut self, entry: Entry) {
        self.apply(&entry);
        self.fresh.push(entry);
    }

    /// Applies an entry of the log.
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

    /// Closes a turn whose samples are all delivered.
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
