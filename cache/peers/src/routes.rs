//! Routes: the nodes to ask for each shard.
//!
//! A placement costs a hash for each slot of the cluster: 65,536 with 4,096 nodes of 2 TiB. Batches
//! ask for the same shards again and again, so placements are remembered for one member list.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_cluster::{Member, ObjectKey, Ring};
use lru::LruCache;
use tokio::sync::watch;

use crate::peer::Peer;

/// Placements remembered: 100 bytes each, so 7 MB, for more shards than a node has open or asks
/// about within minutes.
const PLACED: NonZeroUsize = NonZeroUsize::new(65_536).expect("not zero");

/// Candidates of a shard that are asked for it, and the most nodes that keep it.
pub const CANDIDATES: usize = 2;

/// Part of this node in a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// It owns the shard, or the list does not have this node: the others reject it then.
    Owner,
    /// It is the next candidate: it keeps the second copy, where there are two.
    Next,
    /// Others keep it.
    None,
}

/// Nodes that may have a shard.
#[derive(Debug, Clone)]
pub struct Route {
    /// The owner; none if it is this node, or if the list does not have this node.
    pub owner: Option<Arc<Peer>>,
    /// The next candidate; none if it is this node, or if there is none.
    pub next: Option<Arc<Peer>>,
    /// Part of this node.
    pub own: Part,
}

impl Route {
    /// Returns true if this node keeps the shard, of which the cluster keeps so many copies.
    #[must_use]
    pub fn keeps(&self, copies: u8) -> bool {
        match self.own {
            Part::Owner => true,
            Part::Next => copies > 1,
            Part::None => false,
        }
    }

    /// Returns the other nodes that may have a whole copy, in the order of asking.
    pub(crate) fn others(&self) -> Vec<Arc<Peer>> {
        self.owner.iter().chain(&self.next).cloned().collect()
    }
}

/// Routes of one member list.
struct Placed {
    ring: Arc<Ring>,
    routes: LruCache<ObjectKey, Route>,
    /// Placements worked out so far.
    #[cfg(test)]
    count: u64,
}

/// Routes of all shards, and the nodes on them.
pub(crate) struct Routes {
    own: String,
    ring: watch::Receiver<Arc<Ring>>,
    known: Mutex<HashMap<String, Arc<Peer>>>,
    placed: Mutex<Placed>,
}

impl Routes {
    /// Creates the routes of the node named `own`.
    pub(crate) fn new(own: &str, ring: watch::Receiver<Arc<Ring>>) -> Self {
        let placed = Placed {
            ring: ring.borrow().clone(),
            routes: LruCache::new(PLACED),
            #[cfg(test)]
            count: 0,
        };
        Self { own: own.to_owned(), ring, known: Mutex::default(), placed: Mutex::new(placed) }
    }

    /// Returns the name of this node.
    pub(crate) fn own(&self) -> &str {
        &self.own
    }

    /// Returns the ring in force.
    pub(crate) fn ring(&self) -> Arc<Ring> {
        self.ring.borrow().clone()
    }

    /// Returns the route of a shard.
    pub(crate) fn of(&self, key: ObjectKey) -> Route {
        let ring = self.ring();
        if let Some(route) = self.placed(&ring).routes.get(&key) {
            return route.clone();
        }
        // Without the lock: other shards are found meanwhile.
        let route = self.place(&ring, key);
        let mut placed = self.placed(&ring);
        #[cfg(test)]
        {
            placed.count += 1;
        }
        placed.routes.put(key, route.clone());
        route
    }

    /// Returns the node behind a member.
    pub(crate) fn peer(&self, member: &Member) -> Arc<Peer> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match known.get(&member.name) {
            Some(peer) if peer.member == *member => peer.clone(),
            // Another address: earlier failures say nothing about it.
            _ => {
                let ring = self.ring();
                known.retain(|name, _| ring.member(name).is_some());
                let peer = Arc::new(Peer::new(member.clone()));
                known.insert(member.name.clone(), peer.clone());
                peer
            }
        }
    }

    fn place(&self, ring: &Ring, key: ObjectKey) -> Route {
        if ring.member(&self.own).is_none() {
            return Route { owner: None, next: None, own: Part::Owner };
        }
        let candidates = ring.candidates(key, CANDIDATES);
        let is_own = |at: usize| candidates.get(at).is_some_and(|member| member.name == self.own);
        let other = |at: usize| {
            Some(self.peer(candidates.get(at).filter(|member| member.name != self.own)?))
        };
        let own = match (is_own(0), is_own(1)) {
            (true, _) => Part::Owner,
            (false, true) => Part::Next,
            (false, false) => Part::None,
        };
        Route { owner: other(0), next: other(1), own }
    }

    /// Returns what is remembered of this ring; nothing yet, if it is another one than before.
    fn placed(&self, ring: &Arc<Ring>) -> MutexGuard<'_, Placed> {
        let mut placed = self.placed.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&placed.ring, ring) {
            placed.ring = ring.clone();
            placed.routes.clear();
        }
        placed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(nodes: usize) -> Arc<Ring> {
        let member = |number: usize| Member {
            name: format!("node{number}"),
            address: format!("10.0.0.1:{}", number + 1),
            slots: 16,
        };
        Arc::new(Ring::new((0..nodes).map(member).collect()).unwrap())
    }

    fn key(shard: usize) -> ObjectKey {
        ObjectKey::new("http://127.0.0.1:9000", &format!("s3://bucket/{shard:06}.tar"))
    }

    fn placements(routes: &Routes) -> u64 {
        routes.placed.lock().unwrap().count
    }

    /// An epoch of 10 shards in 100 batches places each once, and once more after each change of
    /// the list.
    #[test]
    fn shards_are_placed_once_for_each_member_list() {
        let (sender, receiver) = watch::channel(ring(4));
        let routes = Routes::new("node0", receiver);
        let read = |routes: &Routes| {
            for _ in 0..100 {
                (0..10).for_each(|shard| drop(routes.of(key(shard))));
            }
        };
        read(&routes);
        assert_eq!(placements(&routes), 10);
        sender.send_replace(ring(5));
        read(&routes);
        assert_eq!(placements(&routes), 20);
    }

    #[test]
    fn routes_follow_the_ring() {
        let (sender, receiver) = watch::channel(ring(4));
        let routes = Routes::new("node0", receiver);
        for nodes in [4, 1, 0, 6] {
            let ring = ring(nodes);
            sender.send_replace(ring.clone());
            for shard in 0..50 {
                let Route { owner, next, own } = routes.of(key(shard));
                let names: Vec<_> =
                    ring.candidates(key(shard), 2).iter().map(|m| m.name.clone()).collect();
                let at = |at: usize| names.get(at).cloned();
                let part = match names.iter().position(|name| name == "node0") {
                    Some(0) => Part::Owner,
                    Some(_) => Part::Next,
                    None if names.is_empty() => Part::Owner,
                    None => Part::None,
                };
                assert_eq!(own, part);
                let name = |peer: Option<Arc<Peer>>| peer.map(|peer| peer.name().to_owned());
                assert_eq!(name(owner), at(0).filter(|name| name != "node0"));
                assert_eq!(name(next), at(1).filter(|name| name != "node0"));
            }
        }
    }
}
