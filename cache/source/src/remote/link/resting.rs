//! Replies that are not read at present, and the places that they hold.
//!
//! A reply keeps its place while its reader waits for memory, for a turn, or for an earlier part.
//! The request that the reader waits for may need a place itself, and there may be no other. So a
//! request that waits takes the place of a reply that has rested for [`REST`]. The reader asks
//! again for what is left.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Link;
use crate::remote::range_read::Paused;

/// Time for which a reply keeps its place unread: an NVMe drive takes less to write all parts that
/// wait for it, and a job that waits hardly notices so much. A hard disk takes longer; what the
/// network had brought of such a reply comes twice.
pub(super) const REST: Duration = Duration::from_millis(500);

/// The resting replies of a link, the longest resting first.
#[derive(Default)]
pub(super) struct Resting(Mutex<Replies>);

#[derive(Default)]
struct Replies {
    next: u64,
    by_number: BTreeMap<u64, (Instant, Paused)>,
}

/// A rest of one reply. Dropping it ends the reply.
pub(in crate::remote) struct Rest {
    link: Arc<Link>,
    number: u64,
}

impl Rest {
    /// Returns the reply; `None` if a request took its place.
    pub(in crate::remote) fn end(self) -> Option<Paused> {
        self.link.resting.take(self.number)
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        drop(self.link.resting.take(self.number));
    }
}

impl Link {
    /// Lets a reply rest: its place is another's if it is needed.
    pub(in crate::remote) fn rest(self: &Arc<Self>, reply: Paused) -> Rest {
        let mut replies = self.resting.replies();
        let number = replies.next;
        replies.next += 1;
        replies.by_number.insert(number, (Instant::now(), reply));
        Rest { link: self.clone(), number }
    }
}

impl Resting {
    /// Ends a reply that has rested for [`REST`]: the least urgent, and the longest resting of
    /// those.
    pub(super) fn end_one(&self) {
        let ended = {
            let mut replies = self.replies();
            let rested =
                replies.by_number.iter().take_while(|(_, (since, _))| since.elapsed() >= REST);
            // The first of the least urgent ones.
            let number = rested.min_by_key(|(_, (_, reply))| Reverse(reply.level()));
            let number = number.map(|(number, _)| *number);
            number.and_then(|number| replies.by_number.remove(&number))
        };
        if let Some((_, reply)) = ended {
            reply.abandon();
        }
    }

    fn take(&self, number: u64) -> Option<Paused> {
        self.replies().by_number.remove(&number).map(|(_, reply)| reply)
    }

    fn replies(&self) -> MutexGuard<'_, Replies> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Resting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Resting").field(&self.replies().by_number.len()).finish()
    }
}
