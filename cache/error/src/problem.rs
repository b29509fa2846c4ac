//! An error as HTTP says it: a problem document (RFC 9457), with Forebay's kind, places and advice.
//!
//! A problem and an error are the same thing in two forms; nothing of an error is lost on
//! the way.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Error, ErrorKind};

/// The media type of a problem.
pub const PROBLEM: &str = "application/problem+json";

/// Error with place and advice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// The kind, in a few words.
    pub title: String,
    /// The HTTP status that it goes with.
    pub status: u16,
    /// Message.
    pub detail: String,
    /// Action required of the caller, in a word: the kind, as in every other interface of Forebay.
    pub kind: ErrorKind,
    /// Places, the innermost first.
    pub places: Vec<Place>,
    /// Advice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

/// One place of a problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Place {
    /// Kind of place: `url`, `tier`, `path`.
    pub name: String,
    /// Name.
    pub value: String,
}

/// Returns HTTP's status and title of a kind of error.
fn of_kind(kind: ErrorKind) -> (u16, &'static str) {
    match kind {
        ErrorKind::NotFound => (404, "Not found"),
        ErrorKind::PermissionDenied => (403, "Not allowed"),
        ErrorKind::Invalid => (400, "Invalid request"),
        ErrorKind::Full => (507, "A limit is reached"),
        ErrorKind::Unavailable => (503, "Temporarily unavailable"),
        ErrorKind::Closed => (503, "Shutting down"),
        ErrorKind::Corrupt | ErrorKind::BadSample => (500, "Corrupt bytes"),
    }
}

impl From<&Error> for Problem {
    fn from(error: &Error) -> Self {
        let (status, title) = of_kind(error.kind());
        let place = |(name, value): (&str, &str)| Place { name: name.into(), value: value.into() };
        Self {
            title: title.to_owned(),
            status,
            detail: error.message().to_owned(),
            kind: error.kind(),
            places: error.places().map(place).collect(),
            advice: error.advice().map(str::to_owned),
        }
    }
}

impl Problem {
    /// The error that it is.
    // No `From`: a second way to make errors would have every `?` say which one it means.
    #[must_use]
    pub fn into_error(self) -> Error {
        let Self { detail, kind, places, advice, .. } = self;
        let error = Error::new(kind, detail);
        let error = places.into_iter().fold(error, |error, at| error.at(&at.name, at.value));
        match advice {
            Some(advice) => error.advise(advice),
            None => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_survives_the_http_problem_format() {
        let error = Error::new(ErrorKind::Full, "no room")
            .at("url", "s3://b/k.tar")
            .at("offset", 512)
            .advise("free some");
        let text = serde_json::to_string(&Problem::from(&error)).unwrap();
        let problem: Problem = serde_json::from_str(&text).unwrap();
        assert_eq!(problem.status, 507);
        assert_eq!(problem.into_error(), error);
    }
}
