//! The API over TCP, where the kernel says nothing of who asks.
//!
//! A browser is not to be made an admin's unknowing hand. Whoever asks must mean this
//! daemon by a name that is its own, and a page of another's may ask nothing.

mod connections;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use forebay_config::http::{Tls, Token};
use forebay_config::settings::HttpConfig;
use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_node::Node;
use forebay_node::audit::Entry;
use forebay_store::Repeats;
use tokio::net::{TcpListener, TcpStream};

use super::Api;
use super::access::Caller;
use super::refusal::Refusal;
use connections::Connections;

/// Pause, at most, after a connection that could not be taken: descriptors are used up, and the
/// kernel gives no sign when one is free again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A bound port.
#[derive(Debug)]
pub struct HttpListener {
    listener: TcpListener,
    gate: Arc<Gate>,
    tls: Option<Tls>,
}

/// Admission of requests.
#[derive(Debug)]
pub(super) struct Gate {
    names: Vec<String>,
    token: Option<Token>,
}

impl HttpListener {
    /// Binds the port.
    ///
    /// # Errors
    /// `Unavailable` if it is taken, `PermissionDenied` if this user may not have it.
    pub async fn bind(config: HttpConfig) -> Result<Self> {
        let HttpConfig { address, names, token, tls } = config;
        let at = |error: Error| error.at("http", address);
        let listener = TcpListener::bind(address).await.doing("listen for HTTP").map_err(at)?;
        let bound = listener.local_addr().doing("listen for HTTP").map_err(at)?;
        let is_tls = tls.is_some();
        tracing::info!(address = %bound, token = token.is_some(), tls = is_tls, "listening for HTTP");
        if token.is_some() && !is_tls && !bound.ip().is_loopback() {
            tracing::warn!(address = %bound, "the token crosses the network in plain text: set `http_tls`");
        }
        let names = names.into_iter().map(|name| name.to_ascii_lowercase()).collect();
        Ok(Self { listener, gate: Arc::new(Gate { names, token }), tls })
    }

    /// Serves whoever connects, until it is dropped.
    pub async fn serve(self, node: Arc<Node>) {
        let api = Api::new(&node).behind(&self.gate, &node);
        let (mut connections, failed) = (Connections::default(), Repeats::default());
        loop {
            connections.room().await;
            match self.listener.accept().await {
                Ok((stream, from)) => {
                    let (api, tls, node) = (api.clone(), self.tls.clone(), node.clone());
                    connections.add(from.ip(), |activity| {
                        let answer =
                            from_fn(move |request, next| activity.clone().answer(request, next));
                        let api = Api { routes: api.routes.layer(answer) };
                        talk(api, tls, node, stream, from)
                    });
                }
                Err(error) => {
                    if let Some(times) = failed.note(Instant::now()) {
                        tracing::error!(times, %error, "failed to accept an HTTP connection");
                    }
                    // One that ends gives some back.
                    let _ = tokio::time::timeout(ACCEPT_PAUSE, connections.ended()).await;
                }
            }
        }
    }
}

/// Serves a connection, inside of TLS where that is spoken.
async fn talk(api: Api, tls: Option<Tls>, node: Arc<Node>, stream: TcpStream, from: SocketAddr) {
    let caller = Caller::Anybody(from);
    let Some(tls) = tls else { return api.serve(stream, caller).await };
    match tls.accept(stream).await {
        Ok((stream, None)) => api.serve(stream, caller).await,
        Ok((stream, Some(who))) => api.serve(stream, Caller::Certified(from, who)).await,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            caller.note(&node, Entry::denied("connect", &error));
        }
        Err(error) => tracing::debug!(%from, %error, "ended an admin's connection"),
    }
}

impl Gate {
    /// Refuses what does not mean this daemon, and says whether an admin sends it.
    fn judge(&self, request: &Request) -> Result<bool, Refusal> {
        let host = self.host(request)?;
        if let Some(origin) = request.headers().get(header::ORIGIN) {
            let is_ours = ["http", "https"]
                .iter()
                .any(|scheme| origin.as_bytes() == format!("{scheme}://{host}").as_bytes());
            if !is_ours {
                let what = "cross-origin requests are not allowed";
                return Err(Error::new(ErrorKind::PermissionDenied, what).into());
            }
        }
        let Some(shown) = one(request.headers(), &header::AUTHORIZATION)? else {
            return Ok(false);
        };
        let bearer = shown.get(..7).filter(|scheme| scheme.eq_ignore_ascii_case(b"bearer "));
        let is_known = bearer.is_some()
            && self.token.as_ref().is_some_and(|token| token.is(shown[7..].trim_ascii()));
        if is_known {
            return Ok(true);
        }
        let error = Error::new(ErrorKind::PermissionDenied, "wrong token")
            .advise("send `Authorization: Bearer …` with the content of `token_file`");
        Err(Refusal::with_status(&error, StatusCode::UNAUTHORIZED))
    }

    /// Returns the host the request names: an address, which no name service can redirect,
    /// `localhost`, or a configured name.
    fn host(&self, request: &Request) -> Result<String, Refusal> {
        let misdirected = |what: &str| {
            let error = Error::new(ErrorKind::Invalid, what)
                .advise("use the address, or add the name to `http_names` of the configuration");
            Refusal::with_status(&error, StatusCode::MISDIRECTED_REQUEST)
        };
        let said = one(request.headers(), &header::HOST)?;
        let said = said.ok_or_else(|| misdirected("the request has no Host"))?;
        let nonsense = || misdirected("the request's Host is invalid");
        let said = std::str::from_utf8(said).map_err(|_| nonsense())?;
        let meant: Authority = said.parse().map_err(|_| nonsense())?;
        // One in the first line counts for more, and is to be the same.
        if request.uri().authority().is_some_and(|authority| *authority != meant) {
            return Err(misdirected("the request has two Hosts"));
        }
        let name = meant.host().trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
        let is_ours =
            name.parse::<IpAddr>().is_ok() || name == "localhost" || self.names.contains(&name);
        if is_ours { Ok(said.to_owned()) } else { Err(misdirected("unknown host name")) }
    }
}

/// A header that may be there once.
fn one<'h>(headers: &'h HeaderMap, name: &header::HeaderName) -> Result<Option<&'h [u8]>, Refusal> {
    let mut all = headers.get_all(name).iter();
    match (all.next(), all.next()) {
        (_, Some(_)) => {
            Err(Error::new(ErrorKind::Invalid, "a header is repeated").at("header", name).into())
        }
        (first, None) => Ok(first.map(|value| value.as_bytes())),
    }
}

/// Lets through who means this daemon, and notes who it is.
pub(super) async fn judged(
    State((gate, node)): State<(Arc<Gate>, Arc<Node>)>,
    Extension(caller): Extension<Caller>,
    mut request: Request,
    next: Next,
) -> Response {
    match gate.judge(&request) {
        Ok(is_admin) => {
            if let (true, Caller::Anybody(from)) = (is_admin, &caller) {
                request.extensions_mut().insert(Caller::Bearer(*from));
            }
            next.run(request).await
        }
        Err(refusal) => {
            let what = format!("{} {}", request.method(), request.uri().path());
            caller.note(&node, Entry::denied("http", &refusal.error()).what(&what));
            refusal.into_response()
        }
    }
}
