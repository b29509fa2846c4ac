//! State of a daemon: health, an overview for all, the full status for admins.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use forebay_api::status::Status;
use forebay_error::{Error, ErrorKind};
use forebay_node::gpus::Viewer;
use forebay_node::{Node, report};
use forebay_store::{Class, Condition, Mode, TierReport};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa::openapi::OpenApi;

use super::access::{self, Caller};
use super::refusal::Refusal;
use crate::metrics::{Audience, Format, Scrape};

/// Answer of a healthy daemon.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Well {
    ok: bool,
}

/// Public state: health and load, without names of data.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Overview {
    /// The daemon's release.
    release: &'static str,
    /// Seconds since it started.
    uptime_seconds: f64,
    /// Each tier, the fastest first.
    tiers: Vec<TierOverview>,
    /// Number of connected jobs.
    jobs: usize,
    /// True if the caller is an admin, to whom `/api/v1/status` gives the full status.
    is_admin: bool,
}

/// Public state of a tier.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct TierOverview {
    name: String,
    class: Class,
    mode: Mode,
    condition: Condition,
    /// Bytes it may hold.
    capacity_bytes: u64,
    /// Bytes it holds.
    used_bytes: u64,
    /// Shards opened that were on it.
    hits: u64,
    /// Shards opened that were not.
    misses: u64,
}

impl From<TierReport> for TierOverview {
    fn from(tier: TierReport) -> Self {
        let TierReport { name, class, mode, condition, counters, .. } = tier;
        Self {
            name,
            class,
            mode,
            condition,
            capacity_bytes: counters.capacity_bytes,
            used_bytes: counters.used_bytes,
            hits: counters.hits,
            misses: counters.misses,
        }
    }
}

/// Reports that the daemon runs.
#[utoipa::path(get, path = "/healthz", tag = "state", responses((status = 200, body = Well)))]
pub(super) async fn healthz() -> Json<Well> {
    Json(Well { ok: true })
}

/// Reports readiness: at least one tier accepts shards.
#[utoipa::path(get, path = "/readyz", tag = "state", responses(
    (status = 200, body = Well),
))]
pub(super) async fn readyz(State(node): State<Arc<Node>>) -> Result<Json<Well>, Refusal> {
    let takes = |tier: &TierReport| tier.mode == Mode::Enabled && tier.condition.is_in_use();
    if node.store.tiers().iter().any(takes) {
        return Ok(Json(Well { ok: true }));
    }
    Err(Error::new(ErrorKind::Unavailable, "no tier accepts shards")
        .advise("see `forebay tier ls`; jobs read from origins meanwhile")
        .into())
}

/// This document.
#[utoipa::path(get, path = "/api/v1/openapi.json", tag = "state", responses((status = 200, body = Object)))]
pub(super) async fn document(Extension(document): Extension<Arc<OpenApi>>) -> Json<OpenApi> {
    Json((*document).clone())
}

/// Reports the daemon's state in a few figures, without names of data, jobs and tenants.
#[utoipa::path(get, path = "/api/v1/overview", tag = "state", responses((status = 200, body = Overview)))]
pub(super) async fn overview(
    State(node): State<Arc<Node>>,
    Extension(caller): Extension<Caller>,
) -> Json<Overview> {
    let jobs = node.sessions.lock().await.len();
    Json(Overview {
        release: env!("CARGO_PKG_VERSION"),
        uptime_seconds: node.started.elapsed().as_secs_f64(),
        tiers: node.store.tiers().into_iter().map(TierOverview::from).collect(),
        jobs,
        is_admin: access::sees_names(&caller),
    })
}

/// Metrics for a monitoring system: OpenMetrics if the request accepts it, else Prometheus' older
/// text. A caller that is not an admin, or that comes over TCP without the token, gets no names of
/// data, jobs, tenants and origins.
#[utoipa::path(get, path = "/metrics", tag = "state", responses(
    (status = 200, description = "Families of samples", content(
        (String = "text/plain"), (String = "application/openmetrics-text")))))]
pub(super) async fn metrics(
    State(node): State<Arc<Node>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let format = Format::accepted(accept);
    let is_admin = access::sees_names(&caller);
    let audience = if is_admin { Audience::Admins } else { Audience::Anybody };
    let status = report::status(&node, Viewer::Scrape).await;
    let text = Scrape::new(status, audience).into_text(format);
    let text = text.map_err(|_| Error::new(ErrorKind::Invalid, "a family has the wrong kind"))?;
    Ok(([(header::CONTENT_TYPE, format.content_type())], text).into_response())
}

/// All of the daemon's state.
#[utoipa::path(get, path = "/api/v1/status", tag = "state", responses((status = 200, body = Status)))]
pub(super) async fn status(State(node): State<Arc<Node>>) -> Json<Status> {
    Json(report::status(&node, Viewer::Status).await)
}
