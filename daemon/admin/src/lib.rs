//! The admin API: HTTP and JSON, on the daemon's socket, and over TCP where that is configured.
//!
//! ```text
//!   Api            routes, and the OpenAPI document made of them   lib.rs
//!     access         identity of the caller, and its rights          access.rs
//!     body           bounded input of a request                      body.rs
//!     refusal        problem documents                               refusal.rs
//!     tcp            the same over TCP, with a token or TLS          tcp.rs
//!     document       the part of the document common to all routes   document.rs
//!     lines          progress of long work, line by line             lines.rs
//!     page           the status page                                 page.rs
//!     state, costs, cluster, checkpoints, jobs, tiers, datasets, shards, explain, pins, warm_ups,
//!     scrubs, policy
//!                    one file for each kind of object
//! ```
//! A route is declared once, with its description, so that the document and the served routes
//! cannot differ.

mod access;
mod body;
mod checkpoints;
mod cluster;
mod costs;
mod datasets;
mod document;
mod explain;
mod jobs;
mod lines;
mod metrics;
mod page;
mod pins;
mod policy;
mod refusal;
mod scrubs;
mod shards;
mod state;
mod tcp;
mod tiers;
mod warm_ups;

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::{Extension, Router};
use forebay_error::{Error, ErrorKind};
use forebay_node::Node;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite};
use utoipa::openapi::OpenApi as Document;
use utoipa::{IntoParams, OpenApi};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub use access::Caller;
use document::Described;
pub use metrics::metrics_document;
use refusal::Refusal;
use tcp::Gate;
pub use tcp::HttpListener;

/// Time for the head of a request to arrive; an idle connection ends then, too.
const HEAD_WITHIN: Duration = Duration::from_secs(10);

/// Bytes of a request's head: a URL of a kilobyte and a token, many times over.
const HEAD: usize = 16 << 10;

/// Query of many requests.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct Rehearsal {
    /// Tell what would change, and change nothing.
    #[serde(default)]
    dry_run: bool,
}

/// The routes, ready to serve connections. Cheap to clone.
#[derive(Clone)]
pub struct Api {
    routes: Router,
}

impl Api {
    /// The API of a node.
    #[must_use]
    pub fn new(node: &Arc<Node>) -> Self {
        let (routes, document) = declared(node);
        let document = Arc::new(document);
        let routes = routes.layer(Extension(document)).with_state(node.clone());
        Self { routes: routes.fallback(nothing).method_not_allowed_fallback(not_so) }
    }

    /// The same for those of whom the kernel says nothing: each request is judged by itself.
    fn behind(self, gate: &Arc<Gate>, node: &Arc<Node>) -> Self {
        let state = (gate.clone(), node.clone());
        Self { routes: self.routes.layer(from_fn_with_state(state, tcp::judged)) }
    }

    /// Serves a connection of this caller's to its end.
    pub async fn serve<S>(&self, stream: S, caller: Caller)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let routes = self.routes.clone().layer(Extension(caller));
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_WITHIN)
            .max_buf_size(HEAD)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
        if let Err(error) = served.await {
            tracing::debug!(%error, "ended an admin's connection");
        }
    }
}

/// Every route, and the document that says so.
fn declared(node: &Arc<Node>) -> (Router<Arc<Node>>, Document) {
    let mut for_all = OpenApiRouter::with_openapi(Described::openapi())
        .routes(routes!(page::page))
        .routes(routes!(page::style))
        .routes(routes!(page::script))
        .routes(routes!(state::healthz))
        .routes(routes!(state::readyz))
        .routes(routes!(state::document))
        .routes(routes!(state::overview))
        .routes(routes!(state::metrics));
    let mut for_admins = OpenApiRouter::new()
        .routes(routes!(state::status))
        .routes(routes!(costs::costs))
        .routes(routes!(jobs::list))
        .routes(routes!(jobs::show, jobs::stop))
        .routes(routes!(tiers::list))
        .routes(routes!(tiers::show, tiers::change))
        .routes(routes!(datasets::list))
        .routes(routes!(datasets::show))
        .routes(routes!(explain::explain))
        .routes(routes!(cluster::show, cluster::change))
        .routes(routes!(cluster::owner))
        .routes(routes!(checkpoints::list))
        .routes(routes!(shards::evict))
        .routes(routes!(shards::check))
        .routes(routes!(pins::list, pins::pin, pins::unpin))
        .routes(routes!(warm_ups::list, warm_ups::begin))
        .routes(routes!(warm_ups::show, warm_ups::stop))
        .routes(routes!(scrubs::list, scrubs::begin))
        .routes(routes!(scrubs::stop))
        .routes(routes!(policy::apply))
        .routes(routes!(policy::trace))
        .route_layer(from_fn_with_state(node.clone(), access::admins_only));
    document::complete(for_all.get_openapi_mut(), false);
    document::complete(for_admins.get_openapi_mut(), true);
    for_all.merge(for_admins).split_for_parts()
}

async fn nothing() -> Refusal {
    Error::new(ErrorKind::NotFound, "there is nothing at this path")
        .advise("see /api/v1/openapi.json")
        .into()
}

async fn not_so() -> Refusal {
    let error = Error::new(ErrorKind::Invalid, "this path does not support the method")
        .advise("see /api/v1/openapi.json");
    Refusal::with_status(&error, StatusCode::METHOD_NOT_ALLOWED)
}
