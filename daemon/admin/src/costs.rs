//! Costs of jobs.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use forebay_api::costs::CostReport;
use forebay_node::{Node, report};

/// Returns bytes fetched and written for jobs, and their GPUs' waiting time, since the daemon
/// started; priced by the current configuration.
#[utoipa::path(get, path = "/api/v1/costs", tag = "jobs", responses((status = 200, body = CostReport)))]
pub(super) async fn costs(State(node): State<Arc<Node>>) -> Json<CostReport> {
    Json(report::costs(&node).await)
}
