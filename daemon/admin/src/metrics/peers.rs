//! Families of the node's cluster: what it got from other nodes, and what it gave them.
//!
//! Nodes are counted together: a cluster of thousands would have a million series. `forebay cluster
//! ls` shows each node.

use forebay_api::status::Status;
use forebay_peers::{ClusterReport, Fallback, Greeted, PeerReport};

use super::family::{Family, Sample, Value};

pub(super) const FAMILIES: &[Family] = &[
    Family::gauge("forebay_cluster_members", &[], "Members of the node's cluster.", |status| {
        one(status, |cluster| (cluster.members.len() as u64).into())
    }),
    Family::gauge(
        "forebay_peer_down",
        &[],
        "Members that did not answer the last request or greeting.",
        |status| {
            let down = |cluster: &ClusterReport| {
                let is_down = |member: &&PeerReport| member.is_down || member.is_silent;
                cluster.members.iter().filter(is_down).count() as u64
            };
            one(status, |cluster| down(cluster).into())
        },
    ),
    Family::gauge(
        "forebay_cluster_listed",
        &[],
        "1 if the member list has this node, and it can share; 0 if others reject it.",
        |status| one(status, |cluster| u64::from(cluster.is_listed).into()),
    ),
    Family::gauge(
        "forebay_cluster_draining",
        &[],
        "1 if this node leaves the cluster in good order.",
        |status| one(status, |cluster| u64::from(cluster.is_draining).into()),
    ),
    Family::gauge(
        "forebay_cluster_frozen",
        &[],
        "1 if the source of the member list gave no good list last, and an older one is in force.",
        |status| one(status, |cluster| u64::from(cluster.is_frozen).into()),
    ),
    Family::gauge(
        "forebay_cluster_certificate_end_seconds",
        &[],
        "End of the validity of this node's certificate, in seconds since 1970.",
        |status| {
            let end = |cluster: &ClusterReport| cluster.certificate.ends_unix;
            let cluster = status.cluster.iter().filter_map(end);
            cluster.map(|end| Sample::new([""; 0], end)).collect()
        },
    ),
    Family::gauge(
        "forebay_peer_other_rules",
        &[],
        "Members whose rules for data sets and sources differ from this node's.",
        |status| one(status, |cluster| greeted(cluster, |greeted| !greeted.has_same_rules).into()),
    ),
    Family::gauge(
        "forebay_peer_skewed_clocks",
        &[],
        "Members whose clock differs from this node's by more than 5 s.",
        |status| one(status, |cluster| greeted(cluster, Greeted::is_skewed).into()),
    ),
    Family::counter("forebay_peer_requests_total", &[], "Requests to other nodes.", |status| {
        one(status, |cluster| sum(cluster, |member| member.requests).into())
    }),
    Family::counter(
        "forebay_peer_received_bytes_total",
        &[],
        "Bytes of shards received from other nodes.",
        |status| one(status, |cluster| sum(cluster, |member| member.received_bytes).into()),
    ),
    Family::counter(
        "forebay_peer_fallbacks_total",
        &["reason"],
        "Shards and records that did not come from the node that was asked, by reason.",
        |status| {
            let of = |cluster: &ClusterReport, why: Fallback| {
                let counts = cluster.members.iter().flat_map(|member| &member.fallbacks);
                counts.filter(|(reason, _)| *reason == why).map(|(_, count)| count).sum::<u64>()
            };
            let Some(cluster) = &status.cluster else { return Vec::new() };
            let all = Fallback::ALL.into_iter();
            all.map(|why| Sample::new([why.name()], of(cluster, why))).collect()
        },
    ),
    Family::counter(
        "forebay_peer_served_requests_total",
        &[],
        "Requests of other nodes that were answered, errors included.",
        |status| one(status, |cluster| cluster.serving.requests.into()),
    ),
    Family::counter(
        "forebay_peer_sent_bytes_total",
        &[],
        "Bytes of shards sent to other nodes.",
        |status| one(status, |cluster| cluster.serving.sent_bytes.into()),
    ),
    Family::counter(
        "forebay_peer_busy_total",
        &[],
        "Requests of other nodes that found the serving memory full.",
        |status| one(status, |cluster| cluster.serving.busy.into()),
    ),
    Family::counter(
        "forebay_peer_failed_total",
        &[],
        "Requests of other nodes that failed on a shard.",
        |status| one(status, |cluster| cluster.serving.failed.into()),
    ),
    Family::counter(
        "forebay_peer_rejected_total",
        &[],
        "Connections and requests rejected for their certificate.",
        |status| one(status, |cluster| cluster.serving.rejected.into()),
    ),
];

/// A sample of a node in a cluster; none of any other.
fn one(status: &Status, of: impl Fn(&ClusterReport) -> Value) -> Vec<Sample> {
    status.cluster.iter().map(|cluster| Sample::new([""; 0], of(cluster))).collect()
}

/// Members of which a greeting says so.
fn greeted(cluster: &ClusterReport, is: impl Fn(&Greeted) -> bool) -> u64 {
    let greeted = cluster.members.iter().filter_map(|member| member.greeted.as_ref());
    greeted.filter(|greeted| is(greeted)).count() as u64
}

fn sum(cluster: &ClusterReport, of: fn(&PeerReport) -> u64) -> u64 {
    cluster.members.iter().map(of).sum()
}
