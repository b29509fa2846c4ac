//! What a daemon is and does now: health, an overview for all, the whole of it for admins.

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

/// That it is well.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Well {
    ok: bool,
}

/// What anybody may know: how the daemon does, and of nobody's data.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Overview {
    /// The daemon's release.
    release: &'static str,
    /// Seconds since it started.
    uptime_seconds: f64,
    /// Each tier, the fastest first.
    tiers: Vec<TierOverview>,
    /// How many jobs are connected.
    jobs: usize,
    /// Whether whoever asks is an admin, and is told everything by `/api/v1/status`.
    is_admin: bool,
}

/// What anybody may know of a tier.
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

/// Whether the daemon runs.
#[utoipa::path(get, path = "/healthz", tag = "state", responses((status = 200, body = Well)))]
pub(super) async fn healthz() -> Json<Well> {
    Json(Well { ok: true })
}

/// Whether it can keep shards: one of its tiers, at least, takes some.
#[utoipa::path(get, path = "/readyz", tag = "state", responses(
    (status = 200, body = Well),
))]
pub(super) async fn readyz(State(node): State<Arc<Node>>) -> Result<Json<Well>, Refusal> {
    let takes =
        |tier: &TierReport| tier.mode == Mode::Enabled && tier.condition == Condition::Normal;
    if node.store.tiers().iter().any(takes) {
        return Ok(Json(Well { ok: true }));
    }
    Err(Error::new(ErrorKind::Unavailable, "no tier takes shards")
        .advise("see `forebay tier ls`: jobs read from origins meanwhile")
        .into())
}

/// This document.
#[utoipa::path(get, path = "/api/v1/openapi.json", tag = "state", responses((status = 200, body = Object)))]
pub(super) async fn document(Extension(document): Extension<Arc<OpenApi>>) -> Json<OpenApi> {
    Json((*document).clone())
}

/// How the daemon does, in a few figures, without names of data, jobs and tenants.
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

/// What a monitoring system scrapes: OpenMetrics where that is accepted, else Prometheus' older text. Whoever is no admin, and
/// whoever asks over TCP without the token, is told nothing by name of data, jobs, tenants and origins.
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
    let text = text.map_err(|_| Error::new(ErrorKind::Invalid, "a family is not of its kind"))?;
    Ok(([(header::CONTENT_TYPE, format.content_type())], text).into_response())
}

/// All of the daemon's state.
#[utoipa::path(get, path = "/api/v1/status", tag = "state", responses((status = 200, body = Status)))]
pub(super) async fn status(State(node): State<Arc<Node>>) -> Json<Status> {
    Json(report::status(&node, Viewer::Status).await)
}
