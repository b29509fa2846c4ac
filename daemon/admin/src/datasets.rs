//! Data sets: what is said of each, and what it holds.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use forebay_error::{Error, ErrorKind, Result};
use forebay_node::Node;
use forebay_store::{Cache, Dataset, Evict, Holding};
use serde::Serialize;
use utoipa::ToSchema;

use super::body::Path;
use super::refusal::Refusal;

/// A data set, and what it holds on all tiers.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(super) struct Described {
    /// Name; `(rest)` for URLs that no rule matches.
    name: String,
    /// URLs that belong to it.
    r#match: String,
    /// Cache mode of its shards.
    cache: Cache,
    /// In which order they are given up.
    evict: Evict,
    /// Nothing of it is evicted.
    pin: bool,
    /// Seconds after which a copy is fetched anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl_seconds: Option<u64>,
    /// Seconds before which a copy is not evicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    dont_evict_seconds: Option<u64>,
    /// Bytes that others leave it.
    min_bytes: u64,
    /// Bytes that it may hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_bytes: Option<u64>,
    /// Lower ones give up their shards first.
    priority: i32,
    /// True if data read once bypasses the cache.
    scan_bypass: bool,
    /// The tiers that it may lie on; none: any.
    tiers: Vec<String>,
    /// Bytes a second that it takes from its origins, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    bandwidth: Option<u64>,
    /// Bytes that it holds.
    used_bytes: u64,
    /// Shards of it, arriving ones included.
    shards: usize,
}

impl Described {
    fn of(rule: Dataset, Holding { used_bytes, shards, .. }: Holding) -> Self {
        let Dataset {
            name,
            matches,
            cache,
            evict,
            pin,
            ttl,
            dont_evict_time,
            min_bytes,
            max_bytes,
            priority,
            scan_bypass,
            tiers,
            bandwidth,
        } = rule;
        Self {
            name,
            r#match: matches.as_str().to_owned(),
            cache,
            evict,
            pin,
            ttl_seconds: ttl.map(|ttl| ttl.as_secs()),
            dont_evict_seconds: dont_evict_time.map(|time| time.as_secs()),
            min_bytes,
            max_bytes,
            priority,
            scan_bypass,
            tiers,
            bandwidth,
            used_bytes,
            shards,
        }
    }
}

fn all(node: &Node) -> Vec<Described> {
    let (rules, holdings) = (node.store.datasets(), node.store.holdings().datasets);
    rules.into_iter().zip(holdings).map(|(rule, holding)| Described::of(rule, holding)).collect()
}

/// Each data set in the order of its rule; last what belongs to none.
#[utoipa::path(get, path = "/api/v1/datasets", tag = "datasets",
    responses((status = 200, body = Vec<Described>)))]
pub(super) async fn list(State(node): State<Arc<Node>>) -> Json<Vec<Described>> {
    Json(all(&node))
}

/// One data set.
#[utoipa::path(get, path = "/api/v1/datasets/{name}", tag = "datasets",
    params(("name" = String, Path, description = "Its name")),
    responses((status = 200, body = Described)))]
pub(super) async fn show(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
) -> Result<Json<Described>, Refusal> {
    let found = all(&node).into_iter().find(|of| of.name == name);
    let found = found.ok_or_else(|| {
        Error::new(ErrorKind::NotFound, "there is no data set with this name")
            .at("dataset", name)
            .advise("see `forebay dataset ls`")
    })?;
    Ok(Json(found))
}
