//! The cluster in words, for every text that shows it.

use forebay_error::printable;
use forebay_peers::{ClusterReport, PeerReport};

/// Returns the state of a member, in a word or two.
#[must_use]
pub fn member_state(member: &PeerReport) -> &'static str {
    let is_draining = member.greeted.as_ref().is_some_and(|greeted| greeted.is_draining);
    match member {
        PeerReport { is_self: true, .. } => "this node",
        PeerReport { is_down: true, .. } => "down",
        PeerReport { is_silent: true, .. } => "silent",
        _ if is_draining => "draining",
        _ => "up",
    }
}

/// Returns true if a member is as it should be.
#[must_use]
pub fn is_well(member: &PeerReport) -> bool {
    !member.is_down && !member.is_silent && differences(member).is_empty()
}

/// Returns what its last greeting told that is not as it should be.
#[must_use]
pub fn differences(member: &PeerReport) -> Vec<String> {
    let Some(greeted) = &member.greeted else { return Vec::new() };
    let mut found = Vec::new();
    if !greeted.has_same_rules {
        found.push("other rules for data sets and sources".to_owned());
    }
    if greeted.is_skewed() {
        let seconds = greeted.clock_ahead_seconds;
        let side = if seconds > 0 { "ahead" } else { "behind" };
        found.push(format!("its clock is {} s {side}", seconds.unsigned_abs()));
    }
    found
}

/// Returns the counts of fallbacks by reason, as `3 down, 1 silence`; empty if there are none.
#[must_use]
pub fn fallbacks(member: &PeerReport) -> String {
    let counts = member.fallbacks.iter().map(|(why, count)| format!("{count} {}", why.name()));
    counts.collect::<Vec<_>>().join(", ")
}

/// Returns what is not in order about the node's own place in its cluster, a sentence each.
#[must_use]
pub fn own_troubles(cluster: &ClusterReport) -> Vec<String> {
    let node = printable(&cluster.node);
    let mut told = Vec::new();
    if cluster.is_frozen {
        let error = cluster.list_error.as_deref().unwrap_or("it gives no list");
        let source = printable(&cluster.source);
        told.push(format!("the member list is an older one: {source}: {}", printable(error)));
    }
    match (cluster.is_draining, cluster.is_listed) {
        (true, true) => told.push(format!("{node} is draining, and still in the member list")),
        (true, false) => told.push(format!("{node} is draining: it left the member list")),
        (false, false) => {
            told.push(format!("{node} is not in the member list: the others reject it"));
        }
        (false, true) => {}
    }
    told
}
