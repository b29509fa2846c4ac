//! A trainer's part in a queue.
//!
//! Every call is one complete change of the queue, so an interrupted caller leaves nothing to
//! undo.

use std::sync::Arc;

use forebay_error::Result;
use forebay_wire::leases::{LogPosition, Mark};

use super::queue::Offer;
use super::{Joining, Leases, Name, Queue};

/// A shard to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Turn.
    pub turn: u32,
    /// First wanted sample, in the turn's order.
    pub from: u64,
}

/// Answer of the queue to a member that asks for a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// A shard.
    Lease {
        /// The shard.
        lease: Lease,
        /// The turn to be dealt next.
        next: u32,
    },
    /// None for now: ask again when the log is longer.
    Nothing {
        /// Entries of the log so far.
        position: u64,
    },
    /// None any more: every sample is acknowledged.
    Over,
}

/// A member of a queue.
pub struct Member {
    leases: Arc<dyn Leases>,
    name: Name,
    number: u64,
}

impl Member {
    /// Joins a queue; returns the shards that the member still holds.
    ///
    /// # Errors
    /// As [`Queue::join`], or the reason the queue cannot be reached.
    pub async fn join(
        leases: Arc<dyn Leases>,
        name: Name,
        who: &Joining,
    ) -> Result<(Self, Vec<Lease>, LogPosition)> {
        let believes = leases.believes();
        let (mut held, mut place) = (Vec::new(), None);
        leases
            .change(&name, &mut |slot, now| {
                held = Queue::join(slot, who, now, until(now, believes))?;
                place = slot.as_ref().map(Queue::place);
                Ok(())
            })
            .await?;
        let held = held.iter().map(|mark| Lease { turn: mark.turn, from: mark.upto }).collect();
        let place = place.expect("a joined member has a queue");
        Ok((Self { leases, name, number: who.member }, held, place))
    }

    /// Takes the next shard, if there is one.
    ///
    /// # Errors
    /// `Closed` if this member was removed, or the reason the queue cannot be reached.
    pub async fn take(&self) -> Result<Taken> {
        let number = self.number;
        self.change(|queue| {
            Ok(match queue.take(number)? {
                (Offer::Turn(turn), from) => {
                    Taken::Lease { lease: Lease { turn, from }, next: queue.next() }
                }
                (Offer::Nothing, _) => Taken::Nothing { position: queue.position() },
                (Offer::Over, _) => Taken::Over,
            })
        })
        .await
    }

    /// Records the sample count of a shard, which is done with its last sample.
    ///
    /// # Errors
    /// As [`Member::take`].
    pub async fn count(&self, turn: u32, samples: u64) -> Result<()> {
        let number = self.number;
        self.change(|queue| queue.count(number, turn, samples)).await
    }

    /// Records final progress.
    ///
    /// # Errors
    /// As [`Member::take`].
    pub async fn acknowledge(&self, marks: &[Mark]) -> Result<LogPosition> {
        let number = self.number;
        self.change(|queue| {
            queue.acknowledge(number, marks)?;
            Ok(queue.place())
        })
        .await
    }

    /// Waits until there may be a shard to take.
    ///
    /// # Errors
    /// The reason the queue cannot be reached.
    pub async fn changed(&self, position: u64) -> Result<()> {
        self.leases.changed(&self.name, position).await
    }

    /// Returns its shards to the queue.
    ///
    /// # Errors
    /// The reason the queue cannot be reached; its shards then return when the member expires.
    pub async fn leave(&self) -> Result<()> {
        let number = self.number;
        self.change(|queue| {
            queue.leave(number);
            Ok(())
        })
        .await
    }

    /// Interval of heartbeats, if the end of this member would go unnoticed.
    #[must_use]
    pub fn heartbeat(&self) -> Option<std::time::Duration> {
        // Three heartbeats in a row may be lost.
        self.leases.believes().map(|believes| believes / 4)
    }

    /// True if every member reads through this daemon's cache.
    #[must_use]
    pub fn is_near(&self) -> bool {
        self.leases.is_near()
    }

    async fn change<T: Send>(
        &self,
        mut change: impl FnMut(&mut Queue) -> Result<T> + Send,
    ) -> Result<T> {
        let (mut outcome, believes) = (None, self.leases.believes());
        let number = self.number;
        self.leases
            .change(&self.name, &mut |slot, now| {
                let Some(queue) = slot else { return Err(super::queue::gone()) };
                queue.expire(now);
                queue.believe(number, until(now, believes));
                outcome = Some(change(queue)?);
                Ok(())
            })
            .await?;
        Ok(outcome.expect("an applied change has an outcome"))
    }
}

fn until(now: u64, believes: Option<std::time::Duration>) -> Option<u64> {
    let millis = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    believes.map(|time| now.saturating_add(millis(time)))
}
