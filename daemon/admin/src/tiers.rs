//! Tiers: what each holds, and how it is used.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json as Answer};
use forebay_api::requests::TierUse;
use forebay_error::{Error, ErrorKind, Result};
use forebay_node::Node;
use forebay_node::audit::Entry;
use forebay_store::{Mode, TierReport};

use super::Rehearsal;
use super::access::Caller;
use super::body::{Json, Path, Query};
use super::refusal::Refusal;

/// Each tier, the fastest first.
#[utoipa::path(get, path = "/api/v1/tiers", tag = "tiers",
    responses((status = 200, body = Vec<TierReport>)))]
pub(super) async fn list(State(node): State<Arc<Node>>) -> Answer<Vec<TierReport>> {
    Answer(node.store.tiers())
}

/// One tier.
#[utoipa::path(get, path = "/api/v1/tiers/{name}", tag = "tiers",
    params(("name" = String, Path, description = "Its name")),
    responses((status = 200, body = TierReport)))]
pub(super) async fn show(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
) -> Result<Answer<TierReport>, Refusal> {
    Ok(Answer(find(&node, &name)?))
}

/// Uses a tier otherwise from now on; answered with the tier as it is then.
#[utoipa::path(put, path = "/api/v1/tiers/{name}", tag = "tiers",
    params(("name" = String, Path, description = "Its name"), Rehearsal),
    request_body = TierUse,
    responses((status = 200, body = TierReport)))]
pub(super) async fn change(
    State(node): State<Arc<Node>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    Query(Rehearsal { dry_run }): Query<Rehearsal>,
    Json(TierUse { mode }): Json<TierUse>,
) -> Result<Answer<TierReport>, Refusal> {
    if dry_run {
        return Ok(Answer(find(&node, &name)?));
    }
    let changed = node.store.set_mode(&name, mode).await;
    caller.note(&node, Entry::of("tier", &changed).what(&format!("{} {name}", verb(mode))));
    changed.map_err(|error| match error.kind() {
        // It would make sense in another state of the tier's.
        ErrorKind::Invalid => Refusal::with_status(&error, StatusCode::CONFLICT),
        _ => error.into(),
    })?;
    Ok(Answer(find(&node, &name)?))
}

/// Verb of a mode, in admins' terms.
fn verb(mode: Mode) -> &'static str {
    match mode {
        Mode::Enabled => "enable",
        Mode::Draining => "drain",
        Mode::Disabled => "disable",
    }
}

fn find(node: &Node, name: &str) -> Result<TierReport> {
    let tiers = node.store.tiers();
    if let Some(tier) = tiers.iter().find(|tier| tier.name == name) {
        return Ok(tier.clone());
    }
    let names: Vec<_> = tiers.iter().map(|tier| tier.name.as_str()).collect();
    Err(Error::new(ErrorKind::NotFound, "there is no tier with this name")
        .at("tier", name)
        .advise(format!("name one of {}", names.join(", "))))
}
