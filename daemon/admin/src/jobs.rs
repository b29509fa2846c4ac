//! Jobs: who is connected, and what becomes of them.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use forebay_api::status::Job;
use forebay_error::{Error, ErrorKind, Result};
use forebay_node::Node;
use forebay_node::audit::{Entry, Outcome};
use forebay_node::sessions::RegisteredSession;

use super::Rehearsal;
use super::access::Caller;
use super::body::{Path, Query};
use super::refusal::Refusal;

/// Jobs connected now.
#[utoipa::path(get, path = "/api/v1/jobs", tag = "jobs", responses((status = 200, body = Vec<Job>)))]
pub(super) async fn list(State(node): State<Arc<Node>>) -> Json<Vec<Job>> {
    Json(node.sessions.lock().await.iter().map(RegisteredSession::describe).collect())
}

/// One job.
#[utoipa::path(get, path = "/api/v1/jobs/{session}", tag = "jobs",
    params(("session" = u64, Path, description = "Its number")),
    responses((status = 200, body = Job)))]
pub(super) async fn show(
    State(node): State<Arc<Node>>,
    Path(session): Path<u64>,
) -> Result<Json<Job>, Refusal> {
    Ok(Json(find(&node, session).await?.describe()))
}

/// Stops a job: its trainer is told so by an error, and gets no more batches from this session.
#[utoipa::path(delete, path = "/api/v1/jobs/{session}", tag = "jobs",
    params(("session" = u64, Path, description = "Its number"), Rehearsal),
    responses((status = 200, body = Job)))]
pub(super) async fn stop(
    State(node): State<Arc<Node>>,
    Extension(caller): Extension<Caller>,
    Path(session): Path<u64>,
    Query(Rehearsal { dry_run }): Query<Rehearsal>,
) -> Result<Json<Job>, Refusal> {
    let registered = find(&node, session).await?;
    let job = registered.describe();
    if !dry_run {
        registered.stop();
        let what = format!("stop {session} {}", job.name);
        caller.note(&node, Entry::new("job", Outcome::Done).what(&what));
    }
    Ok(Json(job))
}

async fn find(node: &Node, session: u64) -> Result<RegisteredSession> {
    let sessions = node.sessions.lock().await;
    sessions.iter().find(|of| of.number() == session).cloned().ok_or_else(|| {
        Error::new(ErrorKind::NotFound, "no job with this number is connected")
            .at("job", session)
            .advise("see `forebay job ls`")
    })
}
