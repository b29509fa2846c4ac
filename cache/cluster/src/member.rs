//! Members of a cluster, and the text of a member list.

use std::collections::HashMap;

use forebay_error::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Maximum number of members: twice the largest cluster that placement is simulated for.
pub const MAX_MEMBERS: usize = 8192;

/// Bytes of cache that give a member one slot: a node of 2 TiB has 16, so that a difference of a
/// tenth between nodes shows.
const SLOT_BYTES: u64 = 128 << 30;

/// Maximum number of slots of a member. A lookup costs a hash for each slot of the cluster.
pub const MAX_SLOTS: u16 = 256;

/// Longest name of a member: that of a DNS name.
const MAX_NAME: usize = 253;

/// A node of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
pub struct Member {
    /// Name in the node's certificate. It identifies the node; the address does not.
    pub name: String,
    /// Host and port of its peer server.
    pub address: String,
    /// Share of the shards that it owns, relative to the slots of all members.
    pub slots: u16,
}

impl Member {
    /// Checks name, address and slots.
    ///
    /// # Errors
    /// `Invalid` naming the member and what is wrong.
    pub fn check(&self) -> Result<()> {
        let invalid = |what: &str| {
            let error = Error::new(ErrorKind::Invalid, what.to_owned());
            error.at("member", &self.name).at("address", &self.address)
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        if self.name.is_empty() || self.name.len() > MAX_NAME || !self.name.chars().all(is_name) {
            return Err(invalid("invalid name of a member")
                .advise("use the DNS name in the node's certificate"));
        }
        let port = self.address.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        if !port.is_some_and(|(_, port)| port.parse::<u16>().is_ok_and(|port| port > 0)) {
            return Err(invalid("invalid address of a member").advise("write host:port"));
        }
        if self.slots == 0 || self.slots > MAX_SLOTS {
            return Err(invalid("invalid number of slots")
                .at("slots", self.slots)
                .advise("use 1 to 256, in proportion to the caches of the nodes"));
        }
        Ok(())
    }
}

/// Returns the slots of a node whose cache holds `capacity` bytes.
#[must_use]
pub fn slots_of(capacity: u64) -> u16 {
    let slots = (capacity.saturating_add(SLOT_BYTES / 2)) / SLOT_BYTES;
    u16::try_from(slots).unwrap_or(MAX_SLOTS).clamp(1, MAX_SLOTS)
}

/// Parses a member list: a line `NAME HOST:PORT [SLOTS]` for each member, one slot if none are
/// given. Empty lines and text behind `#` count for nothing.
///
/// # Errors
/// `Invalid` with the line of a malformed or doubled member; `Invalid` for more than
/// [`MAX_MEMBERS`]. An empty list is no error here: its reader knows what it had before.
pub fn parse_members(text: &str) -> Result<Vec<Member>> {
    let mut members = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let at = |error: Error| error.at("line", number);
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(name) = words.next() else { continue };
        let malformed = || {
            let what = "a line of a member list has a name, an address and perhaps slots";
            at(Error::new(ErrorKind::Invalid, what)).advise("write: node17 10.0.0.17:9481 16")
        };
        let address = words.next().ok_or_else(malformed)?;
        let slots = words.next().map_or(Ok(1), |slots| slots.parse().map_err(|_| malformed()))?;
        if words.next().is_some() {
            return Err(malformed());
        }
        let member = Member { name: name.to_owned(), address: address.to_owned(), slots };
        member.check().map_err(at)?;
        members.push(member);
    }
    check_list(&members)?;
    Ok(members)
}

/// Rejects a list with a doubled name, or with too many members.
///
/// # Errors
/// `Invalid` naming the member, or the limit.
pub(crate) fn check_list(members: &[Member]) -> Result<()> {
    if members.len() > MAX_MEMBERS {
        return Err(Error::new(ErrorKind::Invalid, "the member list is too long")
            .at("members", members.len())
            .at("limit", MAX_MEMBERS));
    }
    let mut addresses = HashMap::new();
    for Member { name, address, .. } in members {
        if let Some(other) = addresses.insert(name, address) {
            let error = Error::new(ErrorKind::Invalid, "two members have one name");
            let error = error.at("member", name).at("address", address).at("other", other);
            return Err(error.advise("give each node a name and a certificate of its own"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn member_list_is_read_line_by_line() {
        let text = "# the rack\nnode1 10.0.0.1:9481 16\n\n node2  [fd00::2]:9481 # new\n";
        let members = parse_members(text).unwrap();
        let shown: Vec<_> =
            members.iter().map(|m| (m.name.as_str(), m.address.as_str(), m.slots)).collect();
        assert_eq!(shown, [("node1", "10.0.0.1:9481", 16), ("node2", "[fd00::2]:9481", 1)]);
        assert_eq!(parse_members("# nobody\n").unwrap(), []);
    }

    #[test]
    fn malformed_members_are_rejected_with_their_line() {
        for line in [
            "node1",
            "node1 10.0.0.1",
            "node1 :9481",
            "node1 10.0.0.1:0",
            "node1 10.0.0.1:99999",
            "node1 10.0.0.1:9481 0",
            "node1 10.0.0.1:9481 257",
            "node1 10.0.0.1:9481 many",
            "node1 10.0.0.1:9481 1 more",
            "no/de 10.0.0.1:9481",
        ] {
            let error = parse_members(&format!("node0 10.0.0.9:9481\n{line}\n")).unwrap_err();
            assert_eq!(
                (error.kind(), error.place("line")),
                (ErrorKind::Invalid, Some("2")),
                "{line}"
            );
        }
    }

    #[test]
    fn two_members_of_one_name_are_rejected() {
        let error = parse_members("a h:1\nb h:2\na h:3\n").unwrap_err();
        assert_eq!((error.kind(), error.place("member")), (ErrorKind::Invalid, Some("a")));
        assert_eq!((error.place("address"), error.place("other")), (Some("h:3"), Some("h:1")));
    }

    #[test]
    fn list_of_too_many_members_is_rejected() {
        let text: String = (0..=MAX_MEMBERS).map(|n| format!("n{n} h:1\n")).collect();
        let error = parse_members(&text).unwrap_err();
        assert_eq!((error.kind(), error.place("members")), (ErrorKind::Invalid, Some("8193")));
    }

    #[test]
    fn slots_follow_the_capacity() {
        let slots = [0, 64 << 30, 2 << 40, 3 << 40, u64::MAX].map(slots_of);
        assert_eq!(slots, [1, 1, 16, 24, 256]);
    }
}
