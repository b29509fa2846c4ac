//! Shards by their URLs: what is let go of, and whether cache and origin agree.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use axum::{Extension, Json};
use forebay_error::{Error, ErrorKind, Problem, Result};
use forebay_source::Options;
use forebay_store::{Checked, Copy, Store};
use futures::{StreamExt, stream};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Rehearsal;
use super::access::Caller;
use super::body::{List, Query};
use super::lines::lines;
use super::refusal::Refusal;
use crate::audit::Entry;
use crate::compose::Node;

/// Shards looked for at once for one request.
const AT_ONCE: usize = 8;

/// Shards that are here.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Shards {
    /// URLs, as jobs name them; patterns of URLs (`*`, `**`, `[ab]`); names of data sets.
    pub(crate) urls: Vec<String>,
}

/// What became of a shard's copies.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Evicted {
    pub(crate) url: String,
    /// How many there were, on all tiers.
    pub(crate) copies: u64,
    /// Whether they are gone.
    pub(crate) dropped: bool,
}

/// Drops every copy of shards now, whatever their version, on every tier, pinned ones too.
///
/// Jobs that read one finish with the old copy, and those that come to one that still arrives join them; the next use fetches it
/// anew.
#[utoipa::path(post, path = "/api/v1/evictions", tag = "shards",
    params(Rehearsal),
    request_body = Shards,
    responses((status = 200, body = Vec<Evicted>)))]
pub(super) async fn evict(
    State(node): State<Arc<Node>>,
    Extension(caller): Extension<Caller>,
    Query(Rehearsal { dry_run }): Query<Rehearsal>,
    List(Shards { urls }): List<Shards>,
) -> Result<Json<Vec<Evicted>>, Refusal> {
    let mut evicted = Vec::new();
    for text in urls {
        for url in node.store.meant(&text).await.map_err(Refusal::of_meaning)? {
            let forgot = node.store.forget(&url, dry_run).await;
            if !dry_run {
                caller.note(&node, Entry::of("evict", &forgot).url(&url));
            }
            let copies = forgot?;
            evicted.push(Evicted { url, copies, dropped: !dry_run });
        }
    }
    Ok(Json(evicted))
}

/// Shards to be compared with their origins.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Check {
    #[schema(min_items = 1)]
    pub(crate) urls: Vec<String>,
    /// Endpoint and credentials to reach them, by the names of their environment variables.
    #[serde(default)]
    pub(crate) origin: BTreeMap<String, String>,
    /// Every byte of whole copies is read, and compared with what the origin sent.
    #[serde(default)]
    pub(crate) verify: bool,
}

/// A shard, here and at its origin.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Finding {
    pub(crate) url: String,
    /// What is here; where the origin does not tell its version, `stale` is any copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) copy: Option<Copy>,
    /// The tier that has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tier: Option<String>,
    /// Bytes of the origin's object, if it told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes: Option<u64>,
    /// Bytes that are here of one that is not whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) here_bytes: Option<u64>,
    /// What the origin answered, if that was no version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) origin: Option<Problem>,
    /// What of the copy differs from what the origin sent, if that was looked for and found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) flaw: Option<Problem>,
    /// Why the shard cannot be asked for at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<Problem>,
}

impl Finding {
    fn of(url: String, found: Result<Checked>) -> Self {
        let problem = |error: &Error| Problem::from(error);
        match found {
            Ok(Checked { copy, tier, bytes, here, origin, flaw }) => Self {
                url,
                copy: Some(copy),
                tier,
                bytes,
                here_bytes: here,
                origin: origin.as_ref().map(problem),
                flaw: flaw.as_ref().map(problem),
                error: None,
            },
            Err(error) => Self {
                url,
                copy: None,
                tier: None,
                bytes: None,
                here_bytes: None,
                origin: None,
                flaw: None,
                error: Some(problem(&error)),
            },
        }
    }
}

/// Compares what the cache has of shards with what their origins have now.
///
/// A line for each, in their order: `{"told": …}` with a finding.
#[utoipa::path(post, path = "/api/v1/checks", tag = "shards",
    request_body = Check,
    responses(
        (status = 200, description = "A line of JSON for each shard.", body = String,
            content_type = "application/x-ndjson"),
    ))]
pub(super) async fn check(
    State(node): State<Arc<Node>>,
    Extension(caller): Extension<Caller>,
    List(Check { urls, origin, verify }): List<Check>,
) -> Result<Response, Refusal> {
    if urls.is_empty() {
        return Err(Error::new(ErrorKind::Invalid, "a check of no shards").into());
    }
    let store = caller.store(&node);
    let origin = Arc::new(Options::from(origin));
    let check = move |url: String| {
        let (store, origin) = (store.clone(), origin.clone());
        async move { Ok(finding(&store, url, &origin, verify).await) }
    };
    Ok(lines(stream::iter(urls).map(check).buffered(AT_ONCE)))
}

async fn finding(store: &Store, url: String, origin: &Options, verify: bool) -> Finding {
    let found = store.check(&url, origin, verify).await;
    Finding::of(url, found)
}
