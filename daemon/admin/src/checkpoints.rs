//! Checkpoints that files of this node belong to.

use std::sync::Arc;

use axum::Json as Answer;
use axum::extract::State;
use forebay_checkpoints::CheckpointsReport;
use forebay_node::Node;

/// Checkpoints on their way to a store, and those whose files are on this node's disks.
#[utoipa::path(get, path = "/api/v1/checkpoints", tag = "checkpoints",
    responses((status = 200, body = CheckpointsReport)))]
pub(super) async fn list(State(node): State<Arc<Node>>) -> Answer<CheckpointsReport> {
    Answer(node.checkpoints.report())
}
