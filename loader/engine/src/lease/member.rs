//! A trainer's part in a queue.
//!
//! Its rule: every call is one change of the queue, complete in itself; what was going on when it was cut
//! off, nobody needs to know.

use std::sync::Arc;

use forebay_error::Result;
use forebay_wire::leases::{Mark, Place};

use super::queue::Offer;
use super::{Joining, Leases, Name, Queue};

/// A shard to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Its turn.
    pub turn: u32,
    /// The first of its samples that is wanted, in the turn's order.
    pub from: u64,
}

/// What there is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// This.
    Lease {
        /// What.
        lease: Lease,
        /// The turn that is dealt next.
        next: u32,
    },
    /// Nothing now: ask again when the log is longer than that.
    Nothing {
        /// Entries of the log.
        position: u64,
    },
    /// Nothing any more: every sample is acknowledged.
    Over,
}

/// One that takes part.
pub struct Member {
    leases: Arc<dyn Leases>,
    name: Name,
    number: u64,
}

impl Member {
    /// Takes part; with the shards that it holds from before.
    ///
    /// # Errors
    /// As [`Queue::join`], or why the queue cannot be reached.
    pub async fn join(
        leases: Arc<dyn Leases>,
        name: Name,
        who: &Joining,
    ) -> Result<(Self, Vec<Lease>, Place)> {
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
        let place = place.expect("whoever joined has a queue");
        Ok((Self { leases, name, number: who.member }, held, place))
    }

    /// Leases the next shard, if there is one.
    ///
    /// # Errors
    /// `Closed` if this member was given up, or why the queue cannot be reached.
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

    /// Notes how many samples a shard has: with the last of them it is done.
    ///
    /// # Errors
    /// As [`Member::take`].
    pub async fn count(&self, turn: u32, samples: u64) -> Result<()> {
        let number = self.number;
        self.change(|queue| queue.count(number, turn, samples)).await
    }

    /// Notes what was delivered for good.
    ///
    /// # Errors
    /// As [`Member::take`].
    pub async fn acknowledge(&self, marks: &[Mark]) -> Result<Place> {
        let number = self.number;
        self.change(|queue| {
            queue.acknowledge(number, marks)?;
            Ok(queue.place())
        })
        .await
    }

    /// Waits until there may be something to take.
    ///
    /// # Errors
    /// Why the queue cannot be reached.
    pub async fn changed(&self, position: u64) -> Result<()> {
        self.leases.changed(&self.name, position).await
    }

    /// Gives back what it holds.
    ///
    /// # Errors
    /// Why the queue cannot be reached; then what it holds comes back when nobody believes in it any more.
    pub async fn leave(&self) -> Result<()> {
        let number = self.number;
        self.change(|queue| {
            queue.leave(number);
            Ok(())
        })
        .await
    }

    /// How often it must say that it is there, if its end would not be seen.
    #[must_use]
    pub fn heartbeat(&self) -> Option<std::time::Duration> {
        // Three in a row may be lost.
        self.leases.believes().map(|believes| believes / 4)
    }

    /// Whether every member reads through this daemon's cache.
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
        Ok(outcome.expect("a change that was made has an outcome"))
    }
}

fn until(now: u64, believes: Option<std::time::Duration>) -> Option<u64> {
    let millis = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    believes.map(|time| now.saturating_add(millis(time)))
}
