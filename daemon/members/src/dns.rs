//! A member list in DNS: the addresses of one name. Each new address is asked for its name and
//! slots, because addresses are not identities.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use forebay_cluster::{MAX_MEMBERS, Member};
use forebay_error::{Doing, Error, ErrorKind, Result};
use futures::StreamExt;
use tokio::time::{Instant, timeout};

use super::source::{Answer, Source};
use super::{Greet, Greeting};

/// Interval between two questions.
const EVERY: Duration = Duration::from_secs(10);

/// Time for the resolver's answer: as long as its own first attempt.
const LOOKUP_WITHIN: Duration = Duration::from_secs(5);

/// Time for a greeting: a node that is slower is no help either.
const GREET_WITHIN: Duration = Duration::from_secs(1);

/// Greetings at once: handshakes of a large cluster take seconds, and not all of its processors.
const GREETINGS: usize = 32;

/// Age at which a greeting is repeated: another node may get the address, or other slots.
const GREETED_AGAIN: Duration = Duration::from_secs(60);

/// A name.
pub(super) struct Dns {
    name: String,
    port: u16,
    own: Member,
    group: String,
    greet: Arc<dyn Greet>,
    /// Greetings of the addresses in the last answer.
    greeted: HashMap<SocketAddr, Greeted>,
}

struct Greeted {
    greeting: Greeting,
    at: Instant,
}

impl Dns {
    pub(super) fn new(
        name: String,
        port: u16,
        own: Member,
        group: String,
        greet: Arc<dyn Greet>,
    ) -> Self {
        Self { name, port, own, group, greet, greeted: HashMap::new() }
    }

    async fn look_up(&self) -> Result<BTreeSet<SocketAddr>> {
        let asked = timeout(LOOKUP_WITHIN, tokio::net::lookup_host((&*self.name, self.port)));
        let late = |_| Error::new(ErrorKind::Unavailable, "the resolver does not answer");
        let found = asked.await.map_err(late)?.doing("look the members up")?;
        Ok(found.take(MAX_MEMBERS + 1).collect())
    }

    /// Greets the addresses that are new or were greeted long ago, and returns the members.
    async fn members(&mut self, addresses: BTreeSet<SocketAddr>) -> Result<Answer> {
        if addresses.len() > MAX_MEMBERS {
            let error = Error::new(ErrorKind::Invalid, "the name has too many addresses");
            return Err(error.at("limit", MAX_MEMBERS));
        }
        self.greeted.retain(|address, _| addresses.contains(address));
        let is_due = |address: &&SocketAddr| {
            let greeted = self.greeted.get(address);
            address.to_string() != self.own.address
                && greeted.is_none_or(|greeted| greeted.at.elapsed() >= GREETED_AGAIN)
        };
        let due: Vec<_> = addresses.iter().filter(is_due).copied().collect();
        let greet = &self.greet;
        let greetings = futures::stream::iter(due).map(|address| async move {
            let shown = address.to_string();
            let late = |_| Error::new(ErrorKind::Unavailable, "a node is slow to greet");
            let greeting = timeout(GREET_WITHIN, greet.greet(&shown)).await.map_err(late);
            (address, greeting.and_then(|greeting| greeting))
        });
        let greetings: Vec<_> = greetings.buffer_unordered(GREETINGS).collect().await;
        let mut answer = Answer::default();
        for (address, greeting) in greetings {
            match greeting {
                Ok(greeting) => {
                    self.greeted.insert(address, Greeted { greeting, at: Instant::now() });
                }
                // It was a member and may be one again: links to it judge for themselves.
                Err(_) if self.greeted.contains_key(&address) => {}
                Err(error) => answer.leave_out(&error.at("address", address)),
            }
        }
        // An address of each family may belong to one node: the list has the first.
        let mut taken = BTreeSet::new();
        for address in addresses {
            let Some(member) = self.member(address) else { continue };
            match member.check() {
                Err(error) => answer.leave_out(&error),
                Ok(()) if address.is_ipv6() && taken.contains(&(member.name.clone(), false)) => {}
                Ok(()) => {
                    taken.insert((member.name.clone(), address.is_ipv6()));
                    answer.members.push(member);
                }
            }
        }
        if answer.members.is_empty() {
            let what = "no address of the name is a member's of this group";
            let error = Error::new(ErrorKind::Unavailable, what).at("addresses", answer.left_out);
            return Err(match answer.why {
                Some(why) => error.at("first", why),
                None => error,
            });
        }
        Ok(answer)
    }

    /// Returns the member at an address, if one of this group is known there.
    fn member(&self, address: SocketAddr) -> Option<Member> {
        let shown = address.to_string();
        if shown == self.own.address {
            return Some(self.own.clone());
        }
        let greeting = &self.greeted.get(&address)?.greeting;
        let Greeting { name, group, slots } = greeting.clone();
        (group == self.group).then_some(Member { name, address: shown, slots })
    }
}

#[async_trait]
impl Source for Dns {
    async fn read(&mut self, _: &[Member]) -> Result<Answer> {
        let addresses = self.look_up().await.map_err(|error| error.at("name", &self.name))?;
        self.members(addresses).await
    }

    fn interval(&self) -> Duration {
        EVERY
    }

    fn shown(&self) -> String {
        format!("dns {}:{}", self.name, self.port)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Nodes by their addresses.
    #[derive(Default)]
    struct Nodes(Mutex<HashMap<String, Greeting>>);

    impl Nodes {
        fn put(&self, address: &str, name: &str, group: &str) {
            let greeting = Greeting { name: name.to_owned(), group: group.to_owned(), slots: 2 };
            self.0.lock().unwrap().insert(address.to_owned(), greeting);
        }
    }

    #[async_trait]
    impl Greet for Nodes {
        async fn greet(&self, address: &str) -> Result<Greeting> {
            let nodes = self.0.lock().unwrap();
            let nobody = || Error::new(ErrorKind::Unavailable, "nobody answers");
            nodes.get(address).cloned().ok_or_else(nobody)
        }
    }

    fn name(nodes: &Arc<Nodes>) -> Dns {
        let own = Member { name: "own".to_owned(), address: "10.0.0.1:9481".to_owned(), slots: 1 };
        Dns::new("peers".to_owned(), 9481, own, "pool".to_owned(), nodes.clone())
    }

    async fn read(dns: &mut Dns, addresses: &[&str]) -> Result<Vec<(String, String)>> {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        let answer = dns.members(addresses).await?;
        Ok(answer.members.into_iter().map(|member| (member.name, member.address)).collect())
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, at)| ((*name).to_owned(), (*at).to_owned())).collect()
    }

    #[tokio::test]
    async fn members_follow_the_addresses() {
        let nodes = Arc::new(Nodes::default());
        let mut dns = name(&nodes);
        let (a, b, c) = ("10.0.0.2:9481", "10.0.0.3:9481", "10.0.0.4:9481");
        nodes.put(a, "a", "pool");
        nodes.put(b, "b", "elsewhere");
        let own = ("own", "10.0.0.1:9481");
        let all = read(&mut dns, &[own.1, a, b, c]).await.unwrap();
        assert_eq!(all, pairs(&[own, ("a", a)]));
        // One that is greeted late joins; one that is silent stays while its address does.
        nodes.put(c, "c", "pool");
        nodes.0.lock().unwrap().remove(a);
        assert_eq!(read(&mut dns, &[a, c]).await.unwrap(), pairs(&[("a", a), ("c", c)]));
        assert_eq!(read(&mut dns, &[c]).await.unwrap(), pairs(&[("c", c)]));
        // It is greeted anew, and does not answer.
        assert_eq!(read(&mut dns, &[a, c]).await.unwrap(), pairs(&[("c", c)]));
        let error = read(&mut dns, &[a]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }

    #[tokio::test]
    async fn addresses_of_both_families_are_one_member() {
        let nodes = Arc::new(Nodes::default());
        let mut dns = name(&nodes);
        let (four, six) = ("10.0.0.2:9481", "[fd00::2]:9481");
        nodes.put(four, "a", "pool");
        nodes.put(six, "a", "pool");
        assert_eq!(read(&mut dns, &[six, four]).await.unwrap(), pairs(&[("a", four)]));
        assert_eq!(read(&mut dns, &[six]).await.unwrap(), pairs(&[("a", six)]));
    }

    /// The ring of such a list is an error, which names both.
    #[tokio::test]
    async fn two_addresses_of_one_name_are_both_listed() {
        let nodes = Arc::new(Nodes::default());
        let mut dns = name(&nodes);
        let (one, other) = ("10.0.0.2:9481", "10.0.0.3:9481");
        nodes.put(one, "a", "pool");
        nodes.put(other, "a", "pool");
        assert_eq!(
            read(&mut dns, &[one, other]).await.unwrap(),
            pairs(&[("a", one), ("a", other)])
        );
    }

    #[tokio::test]
    async fn invalid_greetings_are_left_out() {
        let nodes = Arc::new(Nodes::default());
        let mut dns = name(&nodes);
        nodes.put("10.0.0.2:9481", "no/de", "pool");
        let addresses = ["10.0.0.1:9481", "10.0.0.2:9481"].map(|address| address.parse().unwrap());
        let answer = dns.members(addresses.into()).await.unwrap();
        assert_eq!((answer.members.len(), answer.left_out), (1, 1));
    }
}
