//! Data sets: what is said of each, and what it holds.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use forebay_api::datasets::DatasetReport;
use forebay_error::{Error, ErrorKind, Result};
use forebay_node::Node;
use forebay_store::{Dataset, Holding};

use super::body::Path;
use super::refusal::Refusal;

fn report(rule: Dataset, Holding { used_bytes, shards, .. }: Holding) -> DatasetReport {
    DatasetReport {
        name: rule.name,
        r#match: rule.matches.as_str().to_owned(),
        cache: rule.cache,
        evict: rule.evict,
        pin: rule.pin,
        ttl_seconds: rule.ttl.map(|ttl| ttl.as_secs()),
        dont_evict_seconds: rule.dont_evict_time.map(|time| time.as_secs()),
        min_bytes: rule.min_bytes,
        max_bytes: rule.max_bytes,
        priority: rule.priority,
        scan_bypass: rule.scan_bypass,
        tiers: rule.tiers,
        bandwidth: rule.bandwidth,
        peers: rule.peers,
        copies: rule.copies,
        used_bytes,
        shards,
    }
}

fn all(node: &Node) -> Vec<DatasetReport> {
    let (rules, holdings) = (node.store.datasets(), node.store.holdings().datasets);
    rules.into_iter().zip(holdings).map(|(rule, holding)| report(rule, holding)).collect()
}

/// Each data set in the order of its rule; last what belongs to none.
#[utoipa::path(get, path = "/api/v1/datasets", tag = "datasets",
    responses((status = 200, body = Vec<DatasetReport>)))]
pub(super) async fn list(State(node): State<Arc<Node>>) -> Json<Vec<DatasetReport>> {
    Json(all(&node))
}

/// One data set.
#[utoipa::path(get, path = "/api/v1/datasets/{name}", tag = "datasets",
    params(("name" = String, Path, description = "Its name")),
    responses((status = 200, body = DatasetReport)))]
pub(super) async fn show(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
) -> Result<Json<DatasetReport>, Refusal> {
    let found = all(&node).into_iter().find(|of| of.name == name);
    let found = found.ok_or_else(|| {
        Error::new(ErrorKind::NotFound, "there is no data set with this name")
            .at("dataset", name)
            .advise("see `forebay dataset ls`")
    })?;
    Ok(Json(found))
}
