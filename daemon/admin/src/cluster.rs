//! The node's cluster: its members, and the owner of a shard.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json as Answer};
use forebay_api::requests::ClusterUse;
use forebay_error::{Error, ErrorKind, Result};
use forebay_node::Node;
use forebay_node::audit::Entry;
use forebay_node::cluster::Cluster;
use forebay_peers::{ClusterReport, DrainReport, OwnerReport};
use serde::Deserialize;

use super::Rehearsal;
use super::access::Caller;
use super::body::{Json, Query};
use super::refusal::Refusal;

/// The shard.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Which {
    /// URL, as jobs name it.
    url: String,
}

/// The members, as this node sees them.
#[utoipa::path(get, path = "/api/v1/cluster", tag = "cluster",
    responses((status = 200, body = ClusterReport)))]
pub(super) async fn show(State(node): State<Arc<Node>>) -> Result<Answer<ClusterReport>, Refusal> {
    Ok(Answer(cluster(&node)?.report()))
}

/// Has the node leave its cluster in good order, or come back; answered with its place then. It
/// serves the other nodes on.
#[utoipa::path(put, path = "/api/v1/cluster", tag = "cluster",
    params(Rehearsal),
    request_body = ClusterUse,
    responses((status = 200, body = DrainReport)))]
pub(super) async fn change(
    State(node): State<Arc<Node>>,
    Extension(caller): Extension<Caller>,
    Query(Rehearsal { dry_run }): Query<Rehearsal>,
    Json(ClusterUse { draining }): Json<ClusterUse>,
) -> Result<Answer<DrainReport>, Refusal> {
    let cluster = cluster(&node)?;
    if dry_run {
        return Ok(Answer(cluster.drain_report()));
    }
    let changed = cluster.set_draining(draining).await;
    let what = if draining { "drain" } else { "undo drain" };
    caller.note(&node, Entry::of("cluster", &changed).what(what));
    Ok(Answer(changed?))
}

/// Returns the node's cluster.
fn cluster(node: &Node) -> Result<&Cluster> {
    node.cluster.as_ref().ok_or_else(|| {
        Error::new(ErrorKind::NotFound, "this node is in no cluster")
            .advise("add [cluster] to its configuration")
    })
}

/// The node that owns a shard.
#[utoipa::path(get, path = "/api/v1/cluster/owner", tag = "cluster",
    params(Which),
    responses((status = 200, body = OwnerReport)))]
pub(super) async fn owner(
    State(node): State<Arc<Node>>,
    Query(Which { url }): Query<Which>,
) -> Result<Answer<OwnerReport>, Refusal> {
    Ok(Answer(node.store.owner(&url)?))
}
