//! The node's cluster: its members, and the owner of a shard.

use std::sync::Arc;

use axum::Json as Answer;
use axum::extract::State;
use forebay_error::{Error, ErrorKind, Result};
use forebay_node::Node;
use forebay_peers::{ClusterReport, OwnerReport};
use serde::Deserialize;

use super::body::Query;
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
    let cluster = node.cluster.as_ref().ok_or_else(|| {
        Error::new(ErrorKind::NotFound, "this node is in no cluster")
            .advise("add [cluster] to its configuration")
    })?;
    Ok(Answer(cluster.report()))
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
