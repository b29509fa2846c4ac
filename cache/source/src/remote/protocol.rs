//! Replies that break HTTP or its promises: what came in place of an answer.
//!
//! Such a fault concerns its object, and the next attempt most likely meets it again. So it is
//! named at once, with what was answered, and no endpoint counts as down for it.

use std::error::Error as StdError;

use forebay_error::{Error, ErrorKind};

use super::wire::Noted;

/// The place of an error that tells the kind of fault.
pub(super) const FAULT: &str = "fault";

/// … which is a reply.
pub(super) const REPLY: &str = "reply";

/// Statuses that may mean a header of the request that the server does not know: `If-Match`.
pub(super) const UNCONDITIONAL: [u16; 4] = [400, 405, 412, 501];

/// Statuses of servers that do not answer HEAD.
pub(super) const NO_HEAD: [u16; 3] = [400, 405, 501];

/// Start of object_store's messages about a part that is not the one asked for.
const OTHER_RANGE: &str = "Requested ";

/// The same about a `Content-Range` that is none.
const NO_RANGE: [&str; 2] = ["Content-Range header", "Failed to parse value for CONTENT_RANGE"];

/// Returns the error of a reply that is none, or not to the request; `None` for any other failure.
pub(super) fn failure(refusal: &object_store::Error, noted: &Noted) -> Option<Error> {
    let fault = |what: &str| Error::new(ErrorKind::Invalid, what).at(FAULT, REPLY);
    if let Some(error) = cause::<hyper::Error>(refusal).filter(|error| error.is_parse()) {
        let what = match error.is_parse_too_large() {
            true => "the store's reply has headers that are too large",
            false => "the store's reply is not HTTP",
        };
        return Some(
            fault(what)
                .at("reply", error)
                .advise("check that the endpoint is the store itself, and what stands before it"),
        );
    }
    let head = noted.head.as_ref()?;
    let answered = |error: Error| {
        let error = error.at("status", head.status);
        match &head.content_range {
            Some(range) => error.at("content_range", range),
            None => error,
        }
    };
    let text = innermost(refusal);
    // Of S3 it means another region.
    let is_web = matches!(refusal, object_store::Error::Generic { store: "HTTP", .. });
    if is_web && (300..400).contains(&head.status) && head.status != 304 {
        let what = "the server redirects without saying where";
        return Some(answered(fault(what)).advise("check the URL, and the server's redirects"));
    }
    if text.starts_with(OTHER_RANGE) && head.content_range.is_some() {
        let what = "the store answered with another range than was asked for";
        return Some(
            answered(fault(what)).advise("check the server, and any proxy or cache before it"),
        );
    }
    if NO_RANGE.iter().any(|start| text.starts_with(start)) {
        let what = "the store answered with a part and does not say which";
        return Some(
            answered(fault(what)).advise("check the server, and any proxy or cache before it"),
        );
    }
    None
}

/// Returns true if no connection was made.
pub(super) fn is_connect(refusal: &object_store::Error) -> bool {
    cause::<reqwest::Error>(refusal).is_some_and(reqwest::Error::is_connect)
}

/// The error of this type among the causes.
fn cause<T: StdError + 'static>(refusal: &object_store::Error) -> Option<&T> {
    let mut next = refusal.source();
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// Text of the innermost cause.
fn innermost(refusal: &object_store::Error) -> String {
    let (mut next, mut text) = (refusal.source(), refusal.to_string());
    while let Some(error) = next {
        text = error.to_string();
        next = error.source();
    }
    text
}
