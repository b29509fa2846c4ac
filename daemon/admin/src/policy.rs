//! The configuration that the daemon goes by, and another in its place.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json as Answer};
use forebay_api::applied::Sent;
use forebay_api::requests::Wish;
use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_node::Node;
use forebay_node::reload::audited;
use forebay_policy::simulate::Trace;
use serde::Deserialize;
use serde_json::Value;

use super::Rehearsal;
use super::access::Caller;
use super::body::{Json, Query};
use super::refusal::Refusal;

/// Rounds of a job through its shards that a trace tells of, at most: what is further away decides
/// nothing.
const ROUNDS_MAX: u64 = 100;

/// Length of a trace.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Ahead {
    /// Number of rounds in which each job reads its shards.
    #[serde(default = "four")]
    #[param(default = 4, minimum = 1, maximum = 100)]
    rounds: u64,
}

fn four() -> u64 {
    4
}

/// Returns the expected reads of known jobs, in the form that `forebay policy simulate` takes, and
/// the recent decisions for them.
#[utoipa::path(get, path = "/api/v1/trace", tag = "policy",
    params(Ahead),
    responses((status = 200, description = "A trace.", body = Object)))]
pub(super) async fn trace(
    State(node): State<Arc<Node>>,
    Query(Ahead { rounds }): Query<Ahead>,
) -> Result<Answer<Trace>, Refusal> {
    if !(1..=ROUNDS_MAX).contains(&rounds) {
        let error = Error::new(ErrorKind::Invalid, "a trace has 1 to 100 rounds");
        return Err(error.at("rounds", rounds).into());
    }
    let store = node.store.clone();
    // Orders are made for it: a matter of a second for a million shards.
    let trace = tokio::task::spawn_blocking(move || store.trace(rounds)).await;
    let trace = trace.map_err(std::io::Error::other).doing("record a trace")?;
    if trace.jobs.is_empty() {
        let what = "no job has announced its reads to this daemon";
        return Err(Error::new(ErrorKind::NotFound, what)
            .advise(
                "start a job with known sample counts: with a manifest, or after its first epoch",
            )
            .into());
    }
    Ok(Answer(trace))
}

/// Puts a configuration in force, all of it or nothing; answered with what changes, and what stands
/// in the way.
#[utoipa::path(post, path = "/api/v1/policy", tag = "policy",
    params(Rehearsal),
    request_body = Wish,
    responses((status = 200, description = "The result.", body = Object)))]
pub(super) async fn apply(
    State(node): State<Arc<Node>>,
    Extension(caller): Extension<Caller>,
    Query(Rehearsal { dry_run }): Query<Rehearsal>,
    Json(Wish { file }): Json<Wish>,
) -> Result<Answer<Value>, Refusal> {
    let sent = file.map(|file| Sent { name: file.name, bytes: file.text.into_bytes() });
    let applied = node.apply(sent, dry_run).await;
    if !dry_run {
        audited(&applied).into_iter().for_each(|entry| caller.note(&node, entry));
    }
    let applied = applied.map_err(Refusal::of_meaning)?;
    Ok(Answer(serde_json::to_value(&applied).expect("numbers and strings always encode")))
}
