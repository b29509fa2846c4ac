//! Work that is told step by step: a response of JSON documents, one a line, until the work is
//! over.
//!
//! The work belongs to whoever reads the lines. When they go, it ends.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use forebay_error::{Error, Problem};
use futures::{Stream, StreamExt, stream};
use serde::Serialize;
use tokio::sync::watch;

/// Media type of such a response: newline-delimited JSON.
pub(super) const LINES: &str = "application/x-ndjson";

/// One line.
#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Line<T> {
    /// Progress of the work; the last one reports its end.
    Told(T),
    /// It failed, and is over.
    Failed(Problem),
}

/// A response that tells of `work` whenever it changes, to its end, and lets go of it then or when
/// nobody reads any more. What is told of a state, and whether it is the last, `judge` says.
pub(super) fn followed<S, T>(
    progress: watch::Receiver<S>,
    work: impl Send + 'static,
    judge: fn(S) -> (Result<T, Error>, bool),
) -> Response
where
    S: Clone + Send + Sync + 'static,
    T: Serialize + Send + 'static,
{
    let begun = Some((progress, work, true));
    lines(stream::unfold(begun, move |state| async move {
        let (mut progress, work, is_first) = state?;
        if !is_first && progress.changed().await.is_err() {
            return None;
        }
        let (told, is_last) = judge(progress.borrow_and_update().clone());
        Some((told, (!is_last).then_some((progress, work, false))))
    }))
}

/// A response that tells what a stream gives.
pub(super) fn lines<T: Serialize>(
    told: impl Stream<Item = Result<T, Error>> + Send + 'static,
) -> Response {
    let line = |told: Result<T, Error>| {
        let line = match told {
            Ok(told) => Line::Told(told),
            Err(error) => Line::Failed(Problem::from(&error)),
        };
        let mut line = serde_json::to_vec(&line).expect("numbers and strings always encode");
        line.push(b'\n');
        Ok::<_, Infallible>(Bytes::from(line))
    };
    ([(header::CONTENT_TYPE, LINES)], Body::from_stream(told.map(line))).into_response()
}
