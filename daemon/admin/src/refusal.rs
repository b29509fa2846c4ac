//! Problem documents as responses.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use forebay_error::{Error, ErrorKind, PROBLEM, Problem};

/// A problem on its way out.
#[derive(Debug)]
pub(super) struct Refusal(Problem);

impl Refusal {
    /// An error that HTTP has a status of its own for.
    pub(super) fn with_status(error: &Error, status: StatusCode) -> Self {
        Self(Problem { status: status.as_u16(), ..Problem::from(error) })
    }

    /// The error that it is.
    pub(super) fn error(&self) -> Error {
        self.0.clone().into_error()
    }

    /// A well-formed request that makes no sense: no schema can express it.
    pub(super) fn of_meaning(error: Error) -> Self {
        match error.kind() {
            ErrorKind::Invalid => Self::with_status(&error, StatusCode::UNPROCESSABLE_ENTITY),
            _ => error.into(),
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self(Problem::from(&error))
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Self(problem) = self;
        let status = StatusCode::from_u16(problem.status);
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(problem)).into_response();
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM));
        response
    }
}
