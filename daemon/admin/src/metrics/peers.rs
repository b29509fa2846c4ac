//! Families of the node's cluster: what it got from other nodes, and what it gave them.
//!
//! Nodes are counted together: a cluster of thousands would have a million series. `forebay cluster
//! ls` shows each node.

use forebay_api::status::Status;
use forebay_peers::{ClusterReport, Fallback};

use super::family::{Family, Sample, Value};

pub(super) const FAMILIES: &[Family] = &[
    Family::gauge("forebay_cluster_members", &[], "Members of the node's cluster.", |status| {
        one(status, |cluster| (cluster.members.len() as u64).into())
    }),
    Family::gauge(
        "forebay_peer_down",
        &[],
        "Members that did not answer and are left alone for now.",
        |status| {
            let down = |cluster: &ClusterReport| {
                cluster.members.iter().filter(|member| member.is_down).count() as u64
            };
            one(status, |cluster| down(cluster).into())
        },
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
        "Connections rejected for their certificate.",
        |status| one(status, |cluster| cluster.serving.rejected.into()),
    ),
];

/// A sample of a node in a cluster; none of any other.
fn one(status: &Status, of: impl Fn(&ClusterReport) -> Value) -> Vec<Sample> {
    status.cluster.iter().map(|cluster| Sample::new([""; 0], of(cluster))).collect()
}

fn sum(cluster: &ClusterReport, of: fn(&forebay_peers::PeerReport) -> u64) -> u64 {
    cluster.members.iter().map(of).sum()
}
