//! Greetings of the members: is a node there, does its clock agree, has it the same rules?
//!
//! Nothing depends on them. A node that does not answer is asked for shards all the same; the
//! request that fails decides.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use forebay_error::Result;
use futures::StreamExt;
use tokio::sync::watch;

use crate::client::Peers;
use crate::message::Greeting;
use crate::peer::{Greeted, Peer};

/// Largest difference between the clocks of two nodes that is no trouble. Clocks that are kept by
/// NTP differ by milliseconds; beyond this, logs and the ages of versions contradict each other.
pub const MAX_CLOCK_SKEW: Duration = Duration::from_secs(5);

/// Interval at which members are looked through for those that are due.
const EVERY: Duration = Duration::from_secs(5);

/// Age at which the greeting of a node that answered is repeated: an admin who has a node drain, or
/// changes its rules, waits for the others to know.
const REPEATED_AFTER: Duration = Duration::from_secs(20);

/// Maximum number of greetings of one look: the largest cluster is greeted within ten minutes.
const MAX_GREETINGS: usize = 64;

/// Greetings at once: a handshake takes a few milliseconds of a processor.
const AT_ONCE: usize = 8;

/// Time for a greeting.
const WITHIN: Duration = Duration::from_secs(2);

impl Greeted {
    /// Compares a node's greeting with this node's clock and the digest of its rules.
    #[must_use]
    pub fn of(greeting: &Greeting, rules: &str) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.map_or(0, |now| now.as_secs());
        let seconds = |time: u64| i64::try_from(time).unwrap_or(i64::MAX);
        Self {
            clock_ahead_seconds: seconds(greeting.unix_time).saturating_sub(seconds(now)),
            has_same_rules: greeting.rules == rules,
            is_draining: greeting.is_draining,
        }
    }

    /// Returns true if its clock differs by more than [`MAX_CLOCK_SKEW`].
    #[must_use]
    pub fn is_skewed(&self) -> bool {
        self.clock_ahead_seconds.unsigned_abs() > MAX_CLOCK_SKEW.as_secs()
    }
}

/// Greets the members for as long as it is polled; `own`: this node's greeting.
pub async fn greet_members(peers: Arc<Peers>, own: watch::Receiver<Greeting>) {
    let mut look = tokio::time::interval(EVERY);
    loop {
        look.tick().await;
        let mut due: Vec<_> = peers.others().into_iter().filter_map(due).collect();
        due.sort_by_key(|(age, _)| std::cmp::Reverse(*age));
        due.truncate(MAX_GREETINGS);
        let greetings = due.into_iter().map(|(_, peer)| greet(&peers, peer, &own));
        futures::stream::iter(greetings).for_each_concurrent(AT_ONCE, |greeting| greeting).await;
    }
}

/// Returns a node that is due, with the age of its last greeting.
fn due(peer: Arc<Peer>) -> Option<(Duration, Arc<Peer>)> {
    let (age, is_silent) = peer.greeting_age();
    let wanted = if is_silent { Duration::ZERO } else { REPEATED_AFTER };
    (age >= wanted).then_some((age, peer))
}

async fn greet(peers: &Peers, peer: Arc<Peer>, own: &watch::Receiver<Greeting>) {
    let greeting = tokio::time::timeout(WITHIN, peers.greet_member(&peer)).await;
    let greeted = |greeting: Greeting| Greeted::of(&greeting, &own.borrow().rules);
    peer.note_greeting(greeting.ok().map(|greeting: Result<_>| greeting.map(greeted)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greeting_is_compared_with_clock_and_rules() {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let greeting = |unix_time: u64, rules: &str| Greeting {
            name: "node1".into(),
            group: "default".into(),
            slots: 1,
            protocol: 1,
            oldest_protocol: 1,
            unix_time,
            rules: rules.into(),
            is_draining: false,
        };
        let same = Greeted::of(&greeting(now, "a"), "a");
        assert!(same.has_same_rules && !same.is_skewed());
        assert!(!Greeted::of(&greeting(now, "b"), "a").has_same_rules);
        for (time, is_skewed) in
            [(now - 3, false), (now + 3, false), (now - 60, true), (0, true), (u64::MAX, true)]
        {
            assert_eq!(Greeted::of(&greeting(time, "a"), "a").is_skewed(), is_skewed, "{time}");
        }
    }
}
