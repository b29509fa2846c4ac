//! Input of a request: path, query and body, each bounded, each rejected with a problem document.
//!
//! Memory is allocated as bytes arrive. Each route limits its body, large bodies are read one at a
//! time, and a slow sender is disconnected.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use forebay_error::{Error, ErrorKind};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;

use super::refusal::Refusal;

/// Bytes of an ordinary request's body: a configuration of some thousand data sets.
const PLAIN: usize = 1 << 20;

/// Bytes of a body that lists shards: what a warm-up may name, with room for quotes and commas.
const LISTS: usize = 160 << 20;

/// Time for a body to arrive. A list of a million shards crosses a socket in a second.
const ARRIVES_WITHIN: Duration = Duration::from_secs(60);

/// Lists are read by so many requests at once: together they take twice [`LISTS`] at most.
static READING_LISTS: Semaphore = Semaphore::const_new(1);

/// A small JSON document.
pub(super) struct Json<T>(pub(super) T);

/// A JSON document that may list a million shards.
pub(super) struct List<T>(pub(super) T);

/// Path parameters of a request.
pub(super) struct Path<T>(pub(super) T);

/// Query of a request.
pub(super) struct Query<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, _: &S) -> Result<Self, Refusal> {
        read(request, PLAIN).await.map(Self)
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for List<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, _: &S) -> Result<Self, Refusal> {
        // Never closed. It is held until the list is read, not while it is worked on.
        let _turn = READING_LISTS.acquire().await;
        read(request, LISTS).await.map(Self)
    }
}

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let taken = axum::extract::Path::from_request_parts(parts, state).await;
        let refused = |why: PathRejection| senseless("the path", &why.body_text());
        taken.map(|axum::extract::Path(taken)| Self(taken)).map_err(refused)
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let taken = axum::extract::Query::from_request_parts(parts, state).await;
        let refused = |why: QueryRejection| senseless("the query", &why.body_text());
        taken.map(|axum::extract::Query(taken)| Self(taken)).map_err(refused)
    }
}

fn senseless(what: &str, why: &str) -> Refusal {
    Error::new(ErrorKind::Invalid, format!("{what} cannot be read: {why}"))
        .advise("see /api/v1/openapi.json")
        .into()
}

async fn read<T: DeserializeOwned>(request: Request, limit: usize) -> Result<T, Refusal> {
    let kind = request.headers().get(header::CONTENT_TYPE);
    let is_json = kind.and_then(|kind| kind.to_str().ok()).is_some_and(|kind| {
        kind.split(';')
            .next()
            .is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
    });
    if !is_json {
        let what = Error::new(ErrorKind::Invalid, "the body's content type is not JSON")
            .advise("send it with `Content-Type: application/json`");
        return Err(Refusal::with_status(&what, StatusCode::UNSUPPORTED_MEDIA_TYPE));
    }
    let bytes = arrive(request.into_body(), limit).await?;
    // A list of values would be taken for an object whose names were left out.
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(senseless("the body", "it is not an object"));
    }
    serde_json::from_slice(&bytes).map_err(|why| senseless("the body", &why.to_string()))
}

async fn arrive(body: Body, limit: usize) -> Result<Bytes, Refusal> {
    let collected = tokio::time::timeout(ARRIVES_WITHIN, Limited::new(body, limit).collect()).await;
    match collected {
        Err(_) => {
            let late = Error::new(ErrorKind::Unavailable, "the body did not arrive in time")
                .at("seconds", ARRIVES_WITHIN.as_secs());
            Err(Refusal::with_status(&late, StatusCode::REQUEST_TIMEOUT))
        }
        Ok(Err(why)) if why.is::<LengthLimitError>() => {
            let large = Error::new(ErrorKind::Invalid, "the body is too large").at("limit", limit);
            Err(Refusal::with_status(&large, StatusCode::PAYLOAD_TOO_LARGE))
        }
        Ok(Err(why)) => Err(senseless("the body", &why.to_string())),
        Ok(Ok(whole)) => Ok(whole.to_bytes()),
    }
}
