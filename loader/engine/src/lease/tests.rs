//! The queue against a model: each sample is finally delivered once, whatever happens in between.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::queue::Offer;
use super::{Entry, Joining, Queue};
use forebay_wire::leases::{LogPosition, Mark};

fn joining(member: u64, rank: u32, world_size: u32, shards: u32) -> Joining {
    Joining {
        member,
        rank,
        world_size,
        shards,
        from: None,
        log: None,
        acknowledged: Vec::new(),
        received: Vec::new(),
        fresh: format!("log-{member}"),
    }
}

/// One rank as its trainer sees it: held shards, received samples, and trained ones.
#[derive(Debug, Default)]
struct Rank {
    member: Option<u64>,
    /// Next sample of each turn being read.
    reading: BTreeMap<u32, u64>,
    /// Received, unacknowledged batches.
    batches: Vec<Vec<Mark>>,
    /// Acknowledged progress, recorded by the queue or not.
    unheard: Vec<Mark>,
}

/// An event of one rank.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// It takes a shard.
    Take(usize),
    /// It receives a batch of this many samples.
    Receive(usize, u64),
    /// It acknowledges its first batch; the queue records it, or its daemon dies before.
    Acknowledge(usize, bool),
    /// It dies, and another takes its place.
    Die(usize),
    /// Daemon dies, and the written log is read again: all ranks but perhaps one come back.
    Restart(Option<usize>),
    /// All ranks end, and resume from this state in a world of another size.
    Resume(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let rank = 0..4_usize;
    let step = prop_oneof![
        4 => rank.clone().prop_map(Step::Take),
        8 => (rank.clone(), 1..7_u64).prop_map(|(rank, samples)| Step::Receive(rank, samples)),
        6 => (rank.clone(), any::<bool>()).prop_map(|(rank, heard)| Step::Acknowledge(rank, heard)),
        1 => rank.clone().prop_map(Step::Die),
        1 => proptest::option::of(rank).prop_map(Step::Restart),
        1 => (1..5_u32).prop_map(Step::Resume),
    ];
    proptest::collection::vec(step, 0..200)
}

/// The queue, its written log, its ranks, and the finally delivered samples.
struct World {
    slot: Option<Queue>,
    written: Option<Queue>,
    counts: Vec<u64>,
    ranks: Vec<Rank>,
    delivered: BTreeSet<(u32, u64)>,
    members: u64,
    now: u64,
}

impl World {
    fn new(counts: Vec<u64>, ranks: usize) -> Self {
        let ranks = (0..ranks).map(|_| Rank::default()).collect();
        let mut world = Self {
            slot: None,
            written: None,
            counts,
            ranks,
            delivered: BTreeSet::new(),
            members: 0,
            now: 0,
        };
        world.join_all(None);
        world
    }

    fn shards(&self) -> u32 {
        u32::try_from(self.counts.len()).unwrap()
    }

    fn world(&self) -> u32 {
        u32::try_from(self.ranks.len()).unwrap()
    }

    fn join_all(&mut self, from: Option<&LogPosition>) {
        for rank in 0..self.ranks.len() {
            self.join(rank, from);
        }
    }

    fn join(&mut self, rank: usize, from: Option<&LogPosition>) {
        self.members += 1;
        let mut who =
            joining(self.members, u32::try_from(rank).unwrap(), self.world(), self.shards());
        who.from = from.cloned();
        let before = self.slot.as_ref().map(|queue| queue.log().to_owned());
        let held = Queue::join(&mut self.slot, &who, self.now, None).unwrap();
        assert_eq!(held, [], "whoever is new holds nothing");
        if before.is_some_and(|before| before != self.slot.as_ref().unwrap().log()) {
            assert_eq!(self.ranks.len(), 1, "only who is alone begins anew");
            self.delivered.clear();
        }
        self.ranks[rank] = Rank { member: Some(self.members), ..Rank::default() };
        self.write();
    }

    /// Acts as a keeper: only the entries reach the stored log.
    fn write(&mut self) {
        let queue = self.slot.as_mut().unwrap();
        let entries: Vec<Entry> = queue.entries();
        match &mut self.written {
            Some(written) if written.log() == queue.log() => {
                for entry in &entries {
                    written.apply(entry);
                }
            }
            written => *written = Some(queue.clone()),
        }
        assert_eq!(self.written.as_ref().unwrap().place(), queue.place());
    }

    fn take(&mut self, rank: usize) -> Offer {
        let member = self.ranks[rank].member.unwrap();
        let queue = self.slot.as_mut().unwrap();
        let (offer, from) = queue.take(member).unwrap();
        if let Offer::Turn(turn) = offer {
            queue.count(member, turn, self.counts[turn as usize]).unwrap();
            if from < self.counts[turn as usize] {
                let again = self.ranks[rank].reading.insert(turn, from);
                assert_eq!(again, None, "what one reads nobody gets");
            }
        }
        self.write();
        offer
    }

    fn receive(&mut self, rank: usize, samples: u64) {
        let rank = &mut self.ranks[rank];
        let mut marks: BTreeMap<u32, u64> = BTreeMap::new();
        for _ in 0..samples {
            let Some((&turn, next)) = rank.reading.iter_mut().next() else { break };
            *next += 1;
            let upto = *next;
            marks.insert(turn, upto);
            if upto == self.counts[turn as usize] {
                rank.reading.remove(&turn);
            }
        }
        if !marks.is_empty() {
            rank.batches.push(marks.iter().map(|(&turn, &upto)| Mark { turn, upto }).collect());
        }
    }

    fn acknowledge(&mut self, rank: usize, heard: bool) {
        let rank = &mut self.ranks[rank];
        if !rank.batches.is_empty() {
            rank.unheard.extend(rank.batches.remove(0));
        }
        if heard {
            let told = std::mem::take(&mut rank.unheard);
            let before = self.slot.as_ref().unwrap().place();
            let queue = self.slot.as_mut().unwrap();
            queue.acknowledge(rank.member.unwrap(), &told).unwrap();
            self.write();
            self.deliver(&before, &told);
        }
    }

    /// Records acknowledged samples, each at most once.
    fn deliver(&mut self, before: &LogPosition, told: &[Mark]) {
        let mut from: BTreeMap<u32, u64> =
            before.open.iter().map(|mark| (mark.turn, mark.upto)).collect();
        for mark in told {
            let from = from.entry(mark.turn).or_insert(mark.upto);
            for sample in *from..mark.upto {
                assert!(self.delivered.insert((mark.turn, sample)), "{mark:?} came twice");
            }
            *from = mark.upto.max(*from);
        }
    }

    fn die(&mut self, rank: usize) {
        // Its acknowledgement was in flight, and arrived.
        self.acknowledge_all_told(rank);
        self.slot.as_mut().unwrap().leave(self.ranks[rank].member.unwrap());
        self.write();
        self.join(rank, self.begun().as_ref());
    }

    fn acknowledge_all_told(&mut self, rank: usize) {
        let batches = std::mem::take(&mut self.ranks[rank].batches);
        self.acknowledge(rank, true);
        self.ranks[rank].batches = batches;
    }

    /// Returns the start of the epoch that a joining rank must name.
    fn begun(&self) -> Option<LogPosition> {
        let json = serde_json::to_value(self.slot.as_ref().unwrap()).unwrap();
        let (log, position) =
            serde_json::from_value::<Option<(String, u64)>>(json["began"].clone()).unwrap()?;
        Some(LogPosition { log, position, next: 0, open: Vec::new() })
    }

    fn restart(&mut self, missing: Option<usize>) {
        let mut queue = self.written.clone().unwrap();
        queue.entries();
        queue.await_all(self.now + 10);
        self.slot = Some(queue);
        for rank in 0..self.ranks.len() {
            if Some(rank) == missing.map(|missing| missing % self.ranks.len()) {
                continue;
            }
            let before = self.slot.as_ref().unwrap().place();
            let mine = &self.ranks[rank];
            let mut who = joining(
                mine.member.unwrap(),
                u32::try_from(rank).unwrap(),
                self.world(),
                self.shards(),
            );
            who.log = Some(before.log.clone());
            who.acknowledged = mine.unheard.clone();
            who.received = mine.batches.concat();
            let held = Queue::join(&mut self.slot, &who, self.now, None).unwrap();
            self.write();
            let told = std::mem::take(&mut self.ranks[rank].unheard);
            self.deliver(&before, &told);
            let left = |mark: &&Mark| mark.upto < self.counts[mark.turn as usize];
            let held = held.iter().filter(left).map(|mark| (mark.turn, mark.upto));
            let before = std::mem::take(&mut self.ranks[rank].reading);
            let now: BTreeMap<_, _> = held.collect();
            assert_eq!(now, before, "it reads on where it was");
            self.ranks[rank].reading = now;
        }
        if let Some(missing) = missing {
            let missing = missing % self.ranks.len();
            self.now += 10;
            self.slot.as_mut().unwrap().expire(self.now);
            self.write();
            // Its acknowledgement was lost: its own loss, not the queue's.
            self.join(missing, self.begun().as_ref());
        }
    }

    fn resume(&mut self, world: u32) {
        for rank in 0..self.ranks.len() {
            self.acknowledge_all_told(rank);
        }
        let place = self.slot.as_ref().unwrap().place();
        (self.slot, self.written) = (None, None);
        self.ranks = (0..world).map(|_| Rank::default()).collect();
        self.join_all(Some(&place));
    }

    fn play(&mut self, step: Step) {
        let of = |rank: usize, world: &Self| rank % world.ranks.len();
        match step {
            Step::Take(rank) => drop(self.take(of(rank, self))),
            Step::Receive(rank, samples) => self.receive(of(rank, self), samples),
            Step::Acknowledge(rank, heard) => self.acknowledge(of(rank, self), heard),
            Step::Die(rank) => self.die(of(rank, self)),
            Step::Restart(missing) => self.restart(missing),
            Step::Resume(world) => self.resume(world),
        }
    }

    /// All ranks read to the end.
    fn finish(&mut self) {
        let mut over = 0;
        while over < self.ranks.len() {
            over = 0;
            for rank in 0..self.ranks.len() {
                over += usize::from(self.take(rank) == Offer::Over);
                self.receive(rank, 3);
                self.acknowledge(rank, true);
            }
        }
    }
}

proptest! {
    #[test]
    fn each_sample_is_delivered_once(
        counts in proptest::collection::vec(0..9_u64, 1..12),
        ranks in 1..5_usize,
        steps in steps(),
    ) {
        let mut world = World::new(counts.clone(), ranks);
        for step in steps {
            world.play(step);
        }
        world.finish();
        let all = (0_u32..).zip(&counts).flat_map(|(turn, &count)| (0..count).map(move |i| (turn, i)));
        prop_assert_eq!(world.delivered, all.collect());
        prop_assert_eq!(world.slot.unwrap().place().open, []);
    }
}

fn join(slot: &mut Option<Queue>, who: &Joining) -> forebay_error::Result<Vec<Mark>> {
    Queue::join(slot, who, 0, None)
}

fn turn(slot: &mut Option<Queue>, member: u64) -> Offer {
    slot.as_mut().unwrap().take(member).unwrap().0
}

#[test]
fn returned_shard_is_leased_first_from_its_position() {
    let mut slot = None;
    join(&mut slot, &joining(1, 0, 2, 10)).unwrap();
    join(&mut slot, &joining(2, 1, 2, 10)).unwrap();
    assert_eq!(turn(&mut slot, 1), Offer::Turn(0));
    assert_eq!(turn(&mut slot, 2), Offer::Turn(1));
    let queue = slot.as_mut().unwrap();
    queue.count(1, 0, 8).unwrap();
    queue.acknowledge(1, &[Mark { turn: 0, upto: 5 }]).unwrap();
    queue.leave(1);
    assert_eq!(queue.take(2).unwrap(), (Offer::Turn(0), 5));
    let error = queue.acknowledge(1, &[Mark { turn: 0, upto: 6 }]).unwrap_err();
    assert_eq!(error.kind(), forebay_error::ErrorKind::Closed);
}

/// A rank acknowledges only shards that it holds.
#[test]
fn acknowledgement_without_a_lease_changes_nothing() {
    let mut slot = None;
    join(&mut slot, &joining(1, 0, 2, 4)).unwrap();
    join(&mut slot, &joining(2, 1, 2, 4)).unwrap();
    assert_eq!(turn(&mut slot, 1), Offer::Turn(0));
    let queue = slot.as_mut().unwrap();
    queue.count(1, 0, 8).unwrap();
    let before = queue.place();
    queue.acknowledge(2, &[Mark { turn: 0, upto: 8 }, Mark { turn: 3, upto: 1 }]).unwrap();
    assert_eq!(queue.place(), before);
}

#[test]
fn rank_holds_at_most_its_share_of_remaining_shards() {
    let mut slot = None;
    join(&mut slot, &joining(1, 0, 3, 5)).unwrap();
    join(&mut slot, &joining(2, 1, 3, 5)).unwrap();
    // A rank's share of four remaining shards is two, of three it is one.
    assert_eq!(turn(&mut slot, 1), Offer::Turn(0));
    assert_eq!(turn(&mut slot, 1), Offer::Turn(1));
    assert_eq!(turn(&mut slot, 1), Offer::Nothing);
    assert_eq!(turn(&mut slot, 2), Offer::Turn(2));
    assert_eq!(turn(&mut slot, 2), Offer::Nothing);
    join(&mut slot, &joining(3, 2, 3, 5)).unwrap();
    assert_eq!(turn(&mut slot, 3), Offer::Turn(3));
    slot.as_mut().unwrap().count(2, 2, 1).unwrap();
    slot.as_mut().unwrap().acknowledge(2, &[Mark { turn: 2, upto: 1 }]).unwrap();
    assert_eq!(turn(&mut slot, 2), Offer::Turn(4), "the fast one gets what is left");
}

#[test]
fn single_rank_may_hold_all_shards() {
    let mut slot = None;
    join(&mut slot, &joining(1, 0, 1, 3)).unwrap();
    for wanted in 0..3 {
        assert_eq!(turn(&mut slot, 1), Offer::Turn(wanted));
    }
    assert_eq!(turn(&mut slot, 1), Offer::Nothing);
}

#[test]
fn rank_joins_present_members_or_starts_anew() {
    let mut slot = None;
    join(&mut slot, &joining(1, 0, 2, 4)).unwrap();
    assert_eq!(turn(&mut slot, 1), Offer::Turn(0));
    slot.as_mut().unwrap().leave(1);
    // Rank 1 joins for the first time with nobody present: it takes over.
    join(&mut slot, &joining(2, 1, 2, 4)).unwrap();
    assert_eq!(slot.as_ref().unwrap().log(), "log-1");
    // Rank 0 comes back while rank 1 is there: it joins.
    join(&mut slot, &joining(3, 0, 2, 4)).unwrap();
    assert_eq!(slot.as_ref().unwrap().log(), "log-1");
    for member in [2, 3] {
        slot.as_mut().unwrap().leave(member);
    }
    // Both are gone: this is another start of the job.
    join(&mut slot, &joining(4, 0, 2, 4)).unwrap();
    assert_eq!(slot.as_ref().unwrap().log(), "log-4");
    assert_eq!(slot.as_ref().unwrap().place().next, 0);
}

/// Awaited members count as absent: a job restarted at once starts anew.
#[test]
fn restarted_daemon_drops_absent_members() {
    let mut slot = None;
    join(&mut slot, &joining(1, 0, 2, 4)).unwrap();
    join(&mut slot, &joining(2, 1, 2, 4)).unwrap();
    slot.as_mut().unwrap().await_all(10);
    let mut back = joining(2, 1, 2, 4);
    back.log = Some("log-1".into());
    let mut coming = slot.clone();
    join(&mut coming, &back).unwrap();
    join(&mut coming, &joining(3, 0, 2, 4)).unwrap();
    assert_eq!(coming.unwrap().log(), "log-1");
    join(&mut slot, &joining(3, 0, 2, 4)).unwrap();
    assert_eq!(slot.unwrap().log(), "log-3");
}

#[test]
fn disagreeing_ranks_are_rejected() {
    let from =
        |position| Some(LogPosition { log: "before".into(), position, next: 1, open: Vec::new() });
    let mut slot = None;
    join(&mut slot, &Joining { from: from(5), ..joining(1, 0, 2, 4) }).unwrap();
    for who in [
        joining(2, 1, 2, 4),
        Joining { from: from(6), ..joining(2, 1, 2, 4) },
        Joining { from: from(5), ..joining(2, 1, 2, 5) },
        Joining { from: from(5), ..joining(2, 1, 3, 4) },
    ] {
        let error = join(&mut slot, &who).unwrap_err();
        assert_eq!(error.kind(), forebay_error::ErrorKind::Invalid, "{who:?}");
    }
    join(&mut slot, &Joining { from: from(5), ..joining(2, 1, 2, 4) }).unwrap();
    let beyond = LogPosition { log: "before".into(), position: 0, next: 9, open: Vec::new() };
    let error =
        join(&mut None, &Joining { from: Some(beyond), ..joining(1, 0, 1, 4) }).unwrap_err();
    assert_eq!(error.kind(), forebay_error::ErrorKind::Invalid);
}

#[test]
fn expired_rank_learns_its_samples_went_to_others() {
    let mut slot = None;
    join(&mut slot, &joining(1, 0, 2, 4)).unwrap();
    join(&mut slot, &joining(2, 1, 2, 4)).unwrap();
    assert_eq!(turn(&mut slot, 1), Offer::Turn(0));
    slot.as_mut().unwrap().leave(1);
    assert_eq!(turn(&mut slot, 2), Offer::Turn(0));
    let back = |received: Vec<Mark>| Joining {
        log: Some("log-1".into()),
        received,
        ..joining(1, 0, 2, 4)
    };
    let error = join(&mut slot, &back(vec![Mark { turn: 0, upto: 2 }])).unwrap_err();
    assert_eq!(error.kind(), forebay_error::ErrorKind::Closed);
    assert_eq!(join(&mut slot, &back(Vec::new())).unwrap(), [], "it lost nothing");
    let elsewhere = Joining { log: Some("other".into()), ..joining(1, 0, 2, 4) };
    let error = join(&mut slot, &elsewhere).unwrap_err();
    assert_eq!(error.kind(), forebay_error::ErrorKind::NotFound);
}
