//! Pins: what admins keep at run time, and take back.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use forebay_api::requests::{Pin, Wanted};
use forebay_error::Result;
use forebay_node::Node;
use forebay_node::audit::Entry;
use serde::Deserialize;

use super::Rehearsal;
use super::access::Caller;
use super::body::{List, Query};
use super::refusal::Refusal;

/// The pin.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Which {
    /// As it was pinned.
    pin: String,
    /// Tell whether there is such a pin, and change nothing.
    #[serde(default)]
    dry_run: bool,
}

/// Every pin: URLs, and patterns of URLs.
#[utoipa::path(get, path = "/api/v1/pins", tag = "pins", responses((status = 200, body = Vec<String>)))]
pub(super) async fn list(State(node): State<Arc<Node>>) -> Json<Vec<String>> {
    Json(node.store.pins())
}

/// Pins shards: what is here stays, and what of it comes later, until the pin is taken back.
#[utoipa::path(post, path = "/api/v1/pins", tag = "pins",
    params(Rehearsal),
    request_body = Wanted,
    responses((status = 200, body = Vec<Pin>)))]
pub(super) async fn pin(
    State(node): State<Arc<Node>>,
    Extension(caller): Extension<Caller>,
    Query(Rehearsal { dry_run }): Query<Rehearsal>,
    List(Wanted { pins }): List<Wanted>,
) -> Result<Json<Vec<Pin>>, Refusal> {
    let mut pinned = Vec::with_capacity(pins.len());
    for pin in pins {
        let done = node.store.pin(&pin, dry_run).await;
        if !dry_run {
            caller.note(&node, Entry::of("pin", &done).what("pin").url(&pin));
        }
        let shards = done.map_err(Refusal::of_meaning)?;
        pinned.push(Pin { pin, shards });
    }
    Ok(Json(pinned))
}

/// Takes back a pin; answered with those that are left.
#[utoipa::path(delete, path = "/api/v1/pins", tag = "pins",
    params(Which),
    responses((status = 200, body = Vec<String>)))]
pub(super) async fn unpin(
    State(node): State<Arc<Node>>,
    Extension(caller): Extension<Caller>,
    Query(Which { pin, dry_run }): Query<Which>,
) -> Result<Json<Vec<String>>, Refusal> {
    let done = node.store.unpin(&pin, dry_run).await;
    if !dry_run {
        caller.note(&node, Entry::of("pin", &done).what("unpin").url(&pin));
    }
    done?;
    Ok(Json(node.store.pins()))
}
