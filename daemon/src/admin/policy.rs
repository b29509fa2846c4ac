//! The configuration that the daemon goes by, and another in its place.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json as Answer};
use forebay_error::Result;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::Rehearsal;
use super::access::Caller;
use super::body::{Json, Query};
use super::refusal::Refusal;
use crate::compose::Node;
use crate::reload::{Sent, audited};

/// What the daemon is to go by.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wish {
    /// The file; none: the daemon's own, as it is now.
    #[serde(default)]
    pub(crate) file: Option<ConfigurationFile>,
}

/// A configuration file as somebody sends it.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConfigurationFile {
    /// What it is called: the ending says in which language it is.
    pub(crate) name: String,
    /// What it says.
    pub(crate) text: String,
}

/// Puts a configuration in force, all of it or nothing; answered with what changes, and what stands in the way.
#[utoipa::path(post, path = "/api/v1/policy", tag = "policy",
    params(Rehearsal),
    request_body = Wish,
    responses((status = 200, description = "What came of it.", body = Object)))]
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
