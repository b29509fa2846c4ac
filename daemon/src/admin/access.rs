//! Who asks, and whether they may.
//!
//! One rule: [`may_administer`] is the only place where that is decided. What anybody may ask is on routes
//! that do not come here.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use forebay_error::{Error, ErrorKind};
use forebay_store::Store;
use forebay_wire::peer::Credentials;

use super::refusal::Refusal;
use crate::compose::Node;

/// Who is at the other end of a connection, or of one request.
#[derive(Debug, Clone)]
pub(crate) enum Caller {
    /// A process of this machine, by the kernel's word.
    Peer(Arc<Credentials>),
    /// Somebody over TCP who showed the token.
    Bearer,
    /// Somebody over TCP.
    Anybody,
}

/// Whether a caller may see what is others', and change what the daemon does.
fn may_administer(node: &Node, caller: &Caller) -> bool {
    match caller {
        Caller::Peer(peer) => node.is_own(peer),
        Caller::Bearer => true,
        Caller::Anybody => false,
    }
}

/// The cache as a caller uses it: what it brings in is charged to its tenant.
pub(super) fn store_for(node: &Node, caller: &Caller) -> Store {
    match caller {
        Caller::Peer(peer) => node.store_for(peer),
        Caller::Bearer | Caller::Anybody => node.store.for_tenant(None),
    }
}

/// Lets admins through, before a byte of what they send is read.
pub(super) async fn admins_only(
    State(node): State<Arc<Node>>,
    Extension(caller): Extension<Caller>,
    request: Request,
    next: Next,
) -> Response {
    if may_administer(&node, &caller) {
        return next.run(request).await;
    }
    let (method, path) = (request.method().as_str(), request.uri().path());
    tracing::warn!(?caller, method, path, "refused an admin's request");
    match caller {
        Caller::Peer(_) => Refusal::from(
            Error::new(
                ErrorKind::PermissionDenied,
                "this daemon lets other users run jobs, and nothing else",
            )
            .advise("ask as the user that it runs as"),
        )
        .into_response(),
        Caller::Bearer | Caller::Anybody => {
            let error = Error::new(ErrorKind::PermissionDenied, "this needs the daemon's token")
                .advise("send `Authorization: Bearer …` with what `token_file` holds");
            let problem = Refusal::with_status(&error, StatusCode::UNAUTHORIZED);
            let challenge = HeaderValue::from_static("Bearer realm=\"forebay\"");
            ([(header::WWW_AUTHENTICATE, challenge)], problem).into_response()
        }
    }
}
