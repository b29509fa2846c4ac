//! Scrubs: every byte at rest compared with what its origin sent, begun, watched and stopped.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use forebay_api::scrubs::Scrubbing;
use forebay_error::Result;
use forebay_node::Node;
use forebay_node::audit::Entry;
use forebay_node::scrubs::RegisteredScrub;
use serde::Deserialize;

use super::access::Caller;
use super::body::{Path, Query};
use super::lines::followed;
use super::refusal::Refusal;

/// Options of a scrub.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Begun {
    /// Tell what is wrong, and leave it.
    #[serde(default)]
    dry_run: bool,
    /// It is told of line by line, and ends with the connection; else it goes on by itself.
    #[serde(default)]
    follow: bool,
}

/// The scrub that runs, and the last that ended.
#[utoipa::path(get, path = "/api/v1/scrubs", tag = "scrubs",
    responses((status = 200, body = Vec<Scrubbing>)))]
pub(super) async fn list(State(node): State<Arc<Node>>) -> Json<Vec<Scrubbing>> {
    Json(node.scrubs.describe())
}

/// Checks every byte at rest, beside other work, and drops what is wrong.
#[utoipa::path(post, path = "/api/v1/scrubs", tag = "scrubs",
    params(Begun),
    responses(
        (status = 201, description = "It continues in the background.", body = Scrubbing),
        (status = 200, description = "Lines of JSON until its end.", body = String,
            content_type = "application/x-ndjson"),
    ))]
pub(super) async fn begin(
    State(node): State<Arc<Node>>,
    Extension(caller): Extension<Caller>,
    Query(Begun { dry_run, follow }): Query<Begun>,
) -> Result<Response, Refusal> {
    let begun = node.scrubs.begin(node.store.clone(), node.sessions.enter(), dry_run);
    let what = if dry_run { "tell" } else { "mend" };
    caller.note(&node, Entry::of("scrub", &begun).what(what));
    let scrub = begun?;
    if follow {
        return Ok(followed(scrub.progress(), Following(scrub), told));
    }
    Ok((StatusCode::CREATED, Json(scrub.describe())).into_response())
}

/// Stops a scrub: what it found so far is told.
#[utoipa::path(delete, path = "/api/v1/scrubs/{number}", tag = "scrubs",
    params(("number" = u64, Path, description = "Its number")),
    responses((status = 200, body = Scrubbing)))]
pub(super) async fn stop(
    State(node): State<Arc<Node>>,
    Extension(caller): Extension<Caller>,
    Path(number): Path<u64>,
) -> Result<Json<Scrubbing>, Refusal> {
    let stopped = node.scrubs.stop(number);
    caller.note(&node, Entry::of("scrub", &stopped).what(&format!("stop {number}")));
    Ok(Json(stopped?))
}

/// A scrub that ends when nobody follows it any more.
struct Following(RegisteredScrub);

impl Drop for Following {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Returns the progress of a scrub, and true at its end.
fn told(scrub: Scrubbing) -> (Result<Scrubbing>, bool) {
    match scrub.error.clone() {
        Some(problem) => (Err(problem.into_error()), true),
        None => {
            let is_over = scrub.scrub.done;
            (Ok(scrub), is_over)
        }
    }
}
