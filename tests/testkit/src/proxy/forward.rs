//! Forwarding of requests, with the faults that they meet.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use percent_encoding::percent_decode_str;
use rustix::net::sockopt::set_socket_linger;
use s3s::StdError;
use tokio::net::TcpStream;

use super::Shared;
use super::body::{Answer, Passage, under};
use super::rules::{Fault, Until};

/// Client's side of a connection.
pub(super) struct Downstream(OwnedFd);

impl Downstream {
    /// Returns the socket and a second descriptor of it.
    pub(super) fn of(socket: TcpStream) -> std::io::Result<(Self, TcpStream)> {
        // Parts of an answer are sent as they come, as by a server.
        socket.set_nodelay(true)?;
        let socket = socket.into_std()?;
        let own = OwnedFd::from(socket.try_clone()?);
        Ok((Self(own), TcpStream::from_std(socket)?))
    }

    /// Turns the end of the connection into a reset.
    pub(super) fn reset_at_end(&self) {
        // Fails if the connection has ended.
        let _ = set_socket_linger(&self.0, Some(Duration::ZERO));
    }
}

/// Answers a request of the client; an error ends its connection.
pub(super) async fn answer(
    shared: Arc<Shared>,
    downstream: Arc<Downstream>,
    request: Request<Incoming>,
) -> Result<Response<Answer>, StdError> {
    let path = percent_decode_str(request.uri().path()).decode_utf8_lossy().into_owned();
    let method = request.method().clone();
    let (faults, until) = shared.rules.of(&request);
    shared.tally.add(|traffic| {
        traffic.requests += 1;
        traffic.faults += faults.len() as u64;
        *traffic.asked.entry(path.clone()).or_default() += 1;
    });
    let answered = head(&shared, &downstream, request, &faults, until.clone()).await;
    let status = answered.as_ref().map_or(0, |answer| answer.status().as_u16());
    let name = method.as_str().to_owned();
    shared.tally.add(|traffic| *traffic.answers.entry((name, status)).or_default() += 1);
    let answer = answered?;
    if method == Method::HEAD {
        return Ok(answer.map(|_| empty()));
    }
    if !answer.status().is_success() {
        return Ok(answer);
    }
    let passage = Passage { shared, downstream, path, faults, until };
    Ok(answer.map(|body| under(body, passage)))
}

/// Builds the answer's head, with the server's body.
async fn head(
    shared: &Shared,
    downstream: &Downstream,
    request: Request<Incoming>,
    faults: &[Fault],
    mut until: Until,
) -> Result<Response<Answer>, StdError> {
    for fault in faults {
        match fault {
            Fault::Delay(by) => wait(*by).await,
            Fault::Call(hook) => hook(),
            Fault::ResetBeforeHead => {
                downstream.reset_at_end();
                return Err("the connection was reset by the test".into());
            }
            Fault::StallBeforeHead => {
                let _stalled = shared.tally.present(|traffic| &mut traffic.stalled);
                until.changed().await;
            }
            Fault::Refuse { status, code, retry_after } => {
                let mut answer = refusal(*status, code);
                if let Some(when) = retry_after {
                    let when = HeaderValue::from_str(&when.text())?;
                    answer.headers_mut().insert(RETRY_AFTER, when);
                }
                return Ok(answer);
            }
            _ => {}
        }
    }
    let mut answer = ask(shared, request).await?;
    for fault in faults {
        if let Fault::LoseAnswer = fault {
            // The server has done all that it was asked for.
            drop(answer.into_body().collect().await);
            downstream.reset_at_end();
            return Err("the connection was reset by the test".into());
        }
        if let Fault::Header(name, change) = fault {
            let headers = answer.headers_mut();
            let was = headers.get(name).and_then(|value| value.to_str().ok().map(str::to_owned));
            match change(was.as_deref()) {
                Some(value) => drop(headers.insert(name, HeaderValue::from_str(&value)?)),
                None => drop(headers.remove(name)),
            }
        }
    }
    Ok(answer)
}

/// Sends a request to the server on a connection of its own.
async fn ask(shared: &Shared, request: Request<Incoming>) -> Result<Response<Answer>, StdError> {
    let socket = TcpStream::connect(shared.upstream).await?;
    socket.set_nodelay(true)?;
    let (mut sender, connection) =
        http1::Builder::new().preserve_header_case(true).handshake(TokioIo::new(socket)).await?;
    // The connection ends with its one answer, or with the client.
    tokio::spawn(async move { drop(connection.await) });
    let answer = sender.send_request(request).await?;
    Ok(answer.map(|body| body.map_err(StdError::from).boxed_unsync()))
}

/// The delay is the fault that the test asked for, not a wait for a condition.
#[allow(clippy::disallowed_methods, reason = "the delay itself is what is made here")]
pub(super) async fn wait(by: Duration) {
    tokio::time::sleep(by).await;
}

/// An error document in the form of S3.
fn refusal(status: u16, code: &str) -> Response<Answer> {
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>{code}</Code><Message>made by a test</Message></Error>"
    );
    let body = Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync();
    let mut answer = Response::new(body);
    *answer.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    answer
}

fn empty() -> Answer {
    Full::new(Bytes::new()).map_err(|never| match never {}).boxed_unsync()
}
