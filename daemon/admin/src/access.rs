//! Identity of a caller, and its right to administer.
//!
//! [`administers`] is the only check, repeated for each request. Public routes do not call it; one
//! of them gives admins more ([`sees_names`]). An admin's action is logged where it is done.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use forebay_config::http::Fingerprint;
use forebay_error::{Error, ErrorKind, Result};
use forebay_node::Node;
use forebay_node::access::Rights;
use forebay_node::audit::{Entry, Whom};
use forebay_store::Store;

use super::refusal::Refusal;

/// Identity of the other end of a connection, or of one request's sender.
#[derive(Clone)]
pub enum Caller {
    /// A process of this machine, by the kernel's word and the socket that it came by.
    Client(Arc<Rights>),
    /// Somebody over TCP who showed the token.
    Bearer(SocketAddr),
    /// Somebody over TCP who showed an admin's certificate.
    Certified(SocketAddr, Fingerprint),
    /// Somebody over TCP.
    Anybody(SocketAddr),
}

impl Caller {
    /// Notes what the caller did, or failed to do, or was refused.
    pub(super) fn note(&self, node: &Node, entry: Entry) {
        match self {
            Self::Client(rights) => rights.note(entry),
            Self::Bearer(from) | Self::Anybody(from) => {
                node.audit.note(entry.by(&Whom::from(*from)));
            }
            Self::Certified(from, certificate) => {
                let certificate = Some(certificate.shown().to_owned());
                node.audit.note(entry.by(&Whom { certificate, ..Whom::from(*from) }));
            }
        }
    }

    /// The cache as the caller uses it: what it brings in is charged to its tenant.
    pub(super) fn store(&self, node: &Node) -> Store {
        match self {
            Self::Client(rights) => node.store_for(rights.last().tenant.as_deref()),
            Self::Bearer(_) | Self::Certified(..) | Self::Anybody(_) => node.store_for(None),
        }
    }
}

/// Refuses whoever may not see what is others', and change what the daemon does; a refusal is
/// noted.
fn administers(node: &Node, caller: &Caller, event: &'static str, what: &str) -> Result<()> {
    match caller {
        Caller::Client(rights) => rights.administers(event, what),
        Caller::Bearer(_) | Caller::Certified(..) => Ok(()),
        Caller::Anybody(_) => {
            let what_it_takes = "this request needs the daemon's token, or an admin's certificate";
            let error = Error::new(ErrorKind::PermissionDenied, what_it_takes)
                .advise("send `Authorization: Bearer …` with the content of `token_file`");
            caller.note(node, Entry::denied(event, &error).what(what));
            Err(error)
        }
    }
}

/// Returns true if the caller is shown names as well. Hiding names is not a denial: nothing is
/// logged.
pub(super) fn sees_names(caller: &Caller) -> bool {
    match caller {
        Caller::Client(rights) => rights.now().is_ok_and(|(_, admitted)| admitted.is_admin),
        Caller::Bearer(_) | Caller::Certified(..) => true,
        Caller::Anybody(_) => false,
    }
}

/// Returns the audit log's name of the event at a path.
fn event(path: &str) -> &'static str {
    let kinds = [
        ("/api/v1/tiers", "tier"),
        ("/api/v1/evictions", "evict"),
        ("/api/v1/pins", "pin"),
        ("/api/v1/warm-ups", "warm"),
        ("/api/v1/checks", "check"),
        ("/api/v1/scrubs", "scrub"),
        ("/api/v1/jobs", "job"),
        ("/api/v1/shards", "explain"),
        ("/api/v1/cluster", "cluster"),
        ("/api/v1/checkpoints", "checkpoint"),
        ("/api/v1/policy", "policy"),
        ("/api/v1/trace", "policy"),
    ];
    kinds.iter().find(|(start, _)| path.starts_with(start)).map_or("status", |(_, event)| event)
}

/// Lets admins through, before a byte of what they send is read.
pub(super) async fn admins_only(
    State(node): State<Arc<Node>>,
    Extension(caller): Extension<Caller>,
    request: Request,
    next: Next,
) -> Response {
    let (method, path) = (request.method().as_str(), request.uri().path());
    let Err(error) = administers(&node, &caller, event(path), &format!("{method} {path}")) else {
        return next.run(request).await;
    };
    match caller {
        Caller::Client(_) => Refusal::from(error).into_response(),
        Caller::Bearer(_) | Caller::Certified(..) | Caller::Anybody(_) => {
            let refusal = Refusal::with_status(&error, StatusCode::UNAUTHORIZED);
            let challenge = HeaderValue::from_static("Bearer realm=\"forebay\"");
            ([(header::WWW_AUTHENTICATE, challenge)], refusal).into_response()
        }
    }
}
