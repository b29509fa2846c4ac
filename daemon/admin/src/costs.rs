//! What jobs cost.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use forebay_api::costs::CostReport;
use forebay_node::{Node, report};

/// What was fetched and written for jobs, and how long their GPUs waited, since the daemon started; with the prices of its configuration.
#[utoipa::path(get, path = "/api/v1/costs", tag = "jobs", responses((status = 200, body = CostReport)))]
pub(super) async fn costs(State(node): State<Arc<Node>>) -> Json<CostReport> {
    Json(report::costs(&node).await)
}
