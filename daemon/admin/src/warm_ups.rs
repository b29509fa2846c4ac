//! Warm-ups: fetches that no job wants yet, begun, watched and stopped.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use forebay_api::requests::WarmUp;
use forebay_api::warm::Warming;
use forebay_error::{Error, ErrorKind, Result};
use forebay_node::Node;
use forebay_node::audit::Entry;
use forebay_node::warm::RegisteredWarmUp;
use forebay_source::{Options, Rate};
use serde::Deserialize;

use super::access::Caller;
use super::body::{List, Path, Query};
use super::lines::followed;
use super::refusal::Refusal;

/// Bytes a second that a limit may say: a petabyte is none.
const BANDWIDTH: std::ops::RangeInclusive<u64> = 1..=1_000_000_000_000_000;

/// Options of a warm-up.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Begun {
    /// It is told of line by line, and ends with the connection; else it goes on by itself.
    #[serde(default)]
    follow: bool,
}

/// Warm-ups that run, and the last that ended.
#[utoipa::path(get, path = "/api/v1/warm-ups", tag = "warm-ups",
    responses((status = 200, body = Vec<Warming>)))]
pub(super) async fn list(State(node): State<Arc<Node>>) -> Json<Vec<Warming>> {
    Json(node.warm_ups.describe())
}

/// Fetches shards into the cache, behind what jobs want.
#[utoipa::path(post, path = "/api/v1/warm-ups", tag = "warm-ups",
    params(Begun),
    request_body = WarmUp,
    responses(
        (status = 201, description = "It continues in the background.", body = Warming),
        (status = 200, description = "Lines of JSON until its end.", body = String,
            content_type = "application/x-ndjson"),
    ))]
pub(super) async fn begin(
    State(node): State<Arc<Node>>,
    Extension(caller): Extension<Caller>,
    Query(Begun { follow }): Query<Begun>,
    List(WarmUp { urls, origin, bandwidth }): List<WarmUp>,
) -> Result<Response, Refusal> {
    if let Some(wrong) = bandwidth.filter(|bandwidth| !BANDWIDTH.contains(bandwidth)) {
        let what = "the bandwidth is out of range";
        let error = Error::new(ErrorKind::Invalid, what).at("bandwidth", wrong);
        return Err(error.advise("give bytes per second, from 1 to 10^15, or leave it out").into());
    }
    let pace = bandwidth.map(|bandwidth| Arc::new(Rate::new(bandwidth)));
    let store = caller.store(&node).paced(pace);
    let what = format!("begin with {} shards", urls.len());
    let begun = node.warm_ups.begin(&node.sessions, &store, urls, Options::from(origin), bandwidth);
    caller.note(&node, Entry::of("warm", &begun).what(&what));
    let warm = begun?;
    let progress = warm.progress();
    if follow {
        return Ok(followed(progress, Following(warm), told));
    }
    let begun = progress.borrow().clone();
    Ok((StatusCode::CREATED, Json(begun)).into_response())
}

/// One warm-up, and what failed of it.
#[utoipa::path(get, path = "/api/v1/warm-ups/{number}", tag = "warm-ups",
    params(("number" = u64, Path, description = "Its number")),
    responses((status = 200, body = Warming)))]
pub(super) async fn show(
    State(node): State<Arc<Node>>,
    Path(number): Path<u64>,
) -> Result<Json<Warming>, Refusal> {
    Ok(Json(node.warm_ups.find(number)?))
}

/// Stops a warm-up: no more shards are begun, those under way arrive.
#[utoipa::path(delete, path = "/api/v1/warm-ups/{number}", tag = "warm-ups",
    params(("number" = u64, Path, description = "Its number")),
    responses((status = 200, body = Warming)))]
pub(super) async fn stop(
    State(node): State<Arc<Node>>,
    Extension(caller): Extension<Caller>,
    Path(number): Path<u64>,
) -> Result<Json<Warming>, Refusal> {
    let stopped = node.warm_ups.stop(number);
    caller.note(&node, Entry::of("warm", &stopped).what(&format!("stop {number}")));
    stopped?;
    Ok(Json(node.warm_ups.find(number)?))
}

/// A warm-up that ends when nobody follows it any more.
struct Following(RegisteredWarmUp);

impl Drop for Following {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Returns the progress of a warm-up, and true at its end.
fn told(warm: Warming) -> (Result<Warming>, bool) {
    let is_over = warm.done;
    (Ok(warm), is_over)
}
