//! A trainer's state of its leased shards, so that it can continue at another daemon.
//!
//! A batch's samples are delivered once the consumer acknowledges them, and recorded once a daemon
//! confirms; acknowledgements in between are sent to the next daemon.

use std::collections::VecDeque;

use forebay_error::{Error, Result};
use forebay_wire::leases::{LogPosition, Mark, Sharing};
use forebay_wire::message::Batch;

/// A run of leased shards.
#[derive(Debug)]
pub(crate) struct Leased {
    sharing: Sharing,
    /// Batches that came and are not acknowledged, with their numbers.
    received: VecDeque<(u64, Vec<Mark>)>,
    /// Acknowledged but not recorded marks, each with the acknowledgement's number.
    acknowledged: VecDeque<(u64, Vec<Mark>)>,
    number: u64,
    noted: u64,
    place: Option<LogPosition>,
    /// Number of the last acknowledgement that no log will hold, and the reason.
    unrecorded: Option<(u64, Error)>,
}

impl Leased {
    /// A run that begins as `sharing` says; in the log of `before`, if that is of the same epoch.
    pub(crate) fn new(mut sharing: Sharing, before: Option<&Self>) -> Self {
        let of = |sharing: &Sharing| (sharing.group.clone(), sharing.epoch, sharing.take);
        let before = before.filter(|before| of(&before.sharing) == of(&sharing));
        if let Some(place) = before.and_then(|before| before.place.as_ref()) {
            sharing.log = Some(place.log.clone());
        }
        let (received, acknowledged) = (VecDeque::new(), VecDeque::new());
        // The first is what answers the run itself.
        let number = 1;
        let (noted, place, unrecorded) = (0, None, None);
        Self { sharing, received, acknowledged, number, noted, place, unrecorded }
    }

    /// Returns the request to a daemon that continues the run.
    pub(crate) fn sharing(&self) -> Sharing {
        let all = |batches: &VecDeque<(u64, Vec<Mark>)>| {
            batches.iter().flat_map(|(_, marks)| marks).copied().collect()
        };
        let log = self.place.as_ref().map(|place| place.log.clone());
        Sharing {
            log: log.or_else(|| self.sharing.log.clone()),
            acknowledged: all(&self.acknowledged),
            received: all(&self.received),
            number: self.number,
            ..self.sharing.clone()
        }
    }

    /// A batch came.
    pub(crate) fn receive(&mut self, batch: &Batch) {
        self.sharing.batch = batch.index.saturating_add(1);
        self.received.push_back((batch.index, Mark::of(batch)));
    }

    /// The consumer is done with the batches before number `before`: what is to be told, under
    /// which number.
    pub(crate) fn acknowledge(&mut self, before: u64) -> (u64, Vec<Mark>) {
        self.sharing.done = self.sharing.done.max(before);
        let done = self.received.partition_point(|(index, _)| *index < before);
        let marks: Vec<_> = self.received.drain(..done).flat_map(|(_, marks)| marks).collect();
        self.number += 1;
        self.acknowledged.push_back((self.number, marks.clone()));
        (self.number, marks)
    }

    /// A daemon noted the acknowledgements up to that number.
    pub(crate) fn note(&mut self, number: u64, place: LogPosition) {
        self.acknowledged.retain(|(later, _)| *later > number);
        self.noted = self.noted.max(number);
        self.place = Some(place);
    }

    /// No daemon will record the acknowledgements so far.
    pub(crate) fn refuse_all(&mut self, error: Error) {
        self.refuse(self.number, error);
    }

    /// A daemon will not record the acknowledgements up to that number.
    pub(crate) fn refuse(&mut self, number: u64, error: Error) {
        // The daemon's answers may overtake each other.
        if self.unrecorded.as_ref().is_none_or(|(upto, _)| *upto <= number) {
            self.unrecorded = Some((number, error));
        }
    }

    /// Returns the log's position once the acknowledgement with that number is recorded, or the
    /// reason once it will not be.
    pub(crate) fn place(&self, number: u64) -> Option<Result<LogPosition>> {
        let recorded = self.place.as_ref().filter(|_| self.noted >= number);
        let refused = self.unrecorded.as_ref().filter(|(upto, _)| *upto >= number);
        let refused = refused.map(|(_, error)| Err(error.clone()));
        recorded.map(|place| Ok(place.clone())).or(refused)
    }
}

#[cfg(test)]
mod tests {
    use forebay_error::ErrorKind;

    use super::*;

    fn leased() -> Leased {
        let sharing = Sharing {
            group: String::new(),
            rank: 0,
            world_size: 1,
            is_spread: false,
            epoch: 0,
            take: 0,
            member: 0,
            batch: 0,
            done: 0,
            from: None,
            log: None,
            acknowledged: Vec::new(),
            received: Vec::new(),
            number: 0,
            keeper: None,
        };
        Leased::new(sharing, None)
    }

    #[test]
    fn answers_that_overtake_each_other_count_all() {
        let mut leased = leased();
        let numbers: Vec<_> = (0..3).map(|before| leased.acknowledge(before).0).collect();
        let place = LogPosition { log: "log".to_owned(), position: 7, next: 0, open: Vec::new() };
        leased.note(numbers[0], place.clone());
        for number in [numbers[2], numbers[1]] {
            leased.refuse(number, Error::new(ErrorKind::Closed, "the run is over"));
        }
        assert_eq!(leased.place(numbers[0]).unwrap().unwrap(), place);
        for number in &numbers[1..] {
            assert_eq!(leased.place(*number).unwrap().unwrap_err().kind(), ErrorKind::Closed);
        }
        let (later, _) = leased.acknowledge(3);
        assert!(leased.place(later).is_none(), "not answered yet");
    }
}
