//! Shards by their URLs: what is let go of, and whether cache and origin agree.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use axum::{Extension, Json};
use forebay_api::requests::{Check, Evicted, Finding, Shards};
use forebay_error::{Error, ErrorKind, Result};
use forebay_node::Node;
use forebay_node::audit::Entry;
use forebay_source::Options;
use forebay_store::Store;
use futures::{StreamExt, stream};

use super::Rehearsal;
use super::access::Caller;
use super::body::{List, Query};
use super::lines::lines;
use super::refusal::Refusal;

/// Shards looked for at once for one request.
const AT_ONCE: usize = 8;

/// Drops every copy of shards now, whatever their version, on every tier, pinned ones too.
///
/// Jobs that read one finish with the old copy, and those that come to one that still arrives join
/// them; the next use fetches it anew.
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
        for url in node.store.select(&text).await.map_err(Refusal::of_meaning)? {
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
