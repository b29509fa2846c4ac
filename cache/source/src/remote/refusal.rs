//! Meaning of a store's error for the caller.
//!
//! The text is composed here from harmless facts (status, S3 error code, the system's own message);
//! a store's body or a signed URL is never repeated.

use std::error::Error as _;
use std::time::{Duration, SystemTime};

use forebay_error::{Error, ErrorKind};
use object_store::Error as Refusal;

use super::attempts::{Again, Failed};
use super::error_document::element;
use super::link::Blame;
use super::wire::Noted;
use super::{protocol, tls};
use crate::credentials::Identity;

/// Longer messages of the system are cut.
const MESSAGE_CHARS: usize = 160;

/// S3 error codes that mean the wrong region was asked.
const WRONG_REGION: [&str; 3] =
    ["AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"];

/// Error codes that mean that credentials ran out, or were withdrawn.
const STALE: [&str; 5] = [
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidToken",
    "TokenRefreshRequired",
    "RequestExpired",
];

/// Error codes that mean that the keys are wrong, which they are after others replaced them.
const REPLACED: [&str; 4] =
    ["AuthFailure", "InvalidAccessKeyId", "InvalidClientTokenId", "SignatureDoesNotMatch"];

/// S3 error code of a signature whose time is too far from the store's.
const SKEWED: &str = "RequestTimeTooSkewed";

/// Facts about a store for the wording of errors.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// The address that requests go to.
    pub(super) endpoint: String,
    /// The region that requests to S3 are signed for.
    pub(super) region: Option<String>,
    /// Advice if access is denied.
    pub(super) access_advice: String,
    /// Identity of the credentials, if they can be renewed.
    pub(super) identity: Option<Identity>,
    /// True if each bucket has a host of its own, which may not exist.
    pub(super) has_own_host: bool,
    /// The proxy that requests go by, and the setting that names it.
    pub(super) proxy: Option<(String, String)>,
}

impl Refusals {
    /// Explains object_store's error about `url`, tells if a retry may help, and which party it
    /// counts against.
    pub(super) fn explain(
        &self,
        refusal: &Refusal,
        url: &str,
        noted: &Noted,
        answers: u64,
    ) -> Failed {
        let error = self.error(refusal, url, noted);
        let reason = reason(refusal);
        let status = noted.status().or_else(|| status(&reason));
        let again = match error.kind() {
            _ if self.renewed(refusal, answers) => Again::Renewed,
            // The version that was asked for does not come back.
            ErrorKind::Unavailable if is_changed(refusal, status) => Again::Never,
            ErrorKind::Unavailable => Again::Later(noted.retry_after),
            // One reply may have been garbled on its way.
            ErrorKind::Invalid if error.place(protocol::FAULT) == Some(protocol::REPLY) => {
                Again::Once
            }
            _ => Again::Never,
        };
        let blame = match (again, status) {
            (Again::Later(_), Some(_)) => Blame::Folder,
            // Another server's, to which one object leads.
            (Again::Later(_), None) if noted.was_redirected => Blame::Object,
            (Again::Later(_), None) if protocol::is_connect(refusal) && !self.has_own_host => {
                Blame::Endpoint
            }
            (Again::Later(_), None) => Blame::Folder,
            _ => Blame::Object,
        };
        Failed { error, again, blame, status }
    }

    /// Returns the number of credentials so far: taken before a request, for [`Refusals::explain`].
    pub(super) fn answers(&self) -> u64 {
        self.identity.as_ref().map_or(0, Identity::answers)
    }

    /// Returns true if the next attempt uses other credentials than the rejected one, which began
    /// when [`Refusals::answers`] gave `answers`.
    fn renewed(&self, refusal: &Refusal, answers: u64) -> bool {
        let Some(identity) = &self.identity else { return false };
        let reason = reason(refusal);
        // The answer to a HEAD has no body and so no code. S3 says 400 where a token ran out.
        let stale = match (s3_code(&reason), status(&reason)) {
            (Some(code), _) => STALE.contains(&code) || REPLACED.contains(&code),
            (None, Some(status)) => return self.renewed_after(status, answers),
            (None, None) => false,
        };
        stale && identity.refused(answers)
    }

    /// The same, of an answer that has no more than a status.
    pub(super) fn renewed_after(&self, status: u16, answers: u64) -> bool {
        matches!(status, 400 | 401 | 403)
            && self.identity.as_ref().is_some_and(|identity| identity.refused(answers))
    }

    /// Returns the error of credentials that S3 no longer accepts. It answers with 400 as well as
    /// with 403.
    fn rejected_credentials(&self, code: &str, reason: &str) -> Option<Error> {
        if STALE.contains(&code) {
            let what = "the credentials expired or were withdrawn";
            let advice = format!("renew them, then begin the job anew; {}", self.access_advice);
            return Some(Error::new(ErrorKind::PermissionDenied, what).advise(advice));
        }
        if code != SKEWED {
            return None;
        }
        let what = "this machine's clock differs too much from the store's";
        let error = Error::new(ErrorKind::PermissionDenied, what);
        let offset = clock_offset(reason, SystemTime::now());
        let error =
            offset.into_iter().fold(error, |error, ahead| error.at("clock_offset_seconds", ahead));
        Some(error.advise("set the clock, for instance by NTP: `timedatectl set-ntp true`"))
    }

    /// Names the proxy and the setting to mend.
    fn by_proxy(&self, error: Error) -> Error {
        let Some((proxy, setting)) = &self.proxy else { return error };
        let error = error.at("proxy", proxy);
        match setting.as_str() {
            "" => error.advise("check the proxy of this machine's settings"),
            "proxy" => error.at("setting", setting).advise("check the `proxy` of the [[source]]"),
            variable => error.at("setting", variable).advise(format!(
                "check the proxy; {variable} names it, and NO_PROXY names hosts that need none"
            )),
        }
    }

    /// Returns true if the reply names another region of the bucket than requests are signed for.
    fn is_elsewhere(&self, noted: &Noted) -> bool {
        let (asked, found) = (&self.region, &noted.bucket_region);
        asked.as_ref().zip(found.as_ref()).is_some_and(|(asked, found)| asked != found)
    }

    /// Returns the error of a bucket in another region, which it names if the store did.
    fn other_region(&self, noted: &Noted) -> Error {
        let error = Error::new(ErrorKind::Invalid, "the bucket lies in another region");
        let error = self.region.iter().fold(error, |error, asked| error.at("region", asked));
        match &noted.bucket_region {
            Some(region) => error.at("bucket_region", region).advise(format!(
                "set AWS_REGION={region}, or region = \"{region}\" in the [[source]] that matches"
            )),
            None => error.advise(
                "set AWS_REGION, or `region` in the [[source]] that matches, to the bucket's region",
            ),
        }
    }

    fn error(&self, refusal: &Refusal, url: &str, noted: &Noted) -> Error {
        if let Some(error) = own(refusal) {
            let denied = error.kind() == ErrorKind::PermissionDenied;
            let error = if denied && error.advice().is_none() {
                error.advise(&self.access_advice)
            } else {
                error
            };
            return error.at("url", url).at("endpoint", &self.endpoint);
        }
        let known = tls::failure(refusal).or_else(|| protocol::failure(refusal, noted));
        if let Some(error) = known {
            return error.at("url", url).at("endpoint", &self.endpoint);
        }
        let reason = reason(refusal);
        let code = s3_code(&reason);
        // A body that broke off is asked for again inside of object_store, and what is refused then
        // comes as no more than a message.
        let status = status(&reason);
        let placed = |error: Error| {
            let error = error.at("url", url).at("endpoint", &self.endpoint);
            let error = status.into_iter().fold(error, |error, status| error.at("status", status));
            code.into_iter().fold(error, |error, code| error.at("code", code))
        };
        if let Some(error) = code.and_then(|code| self.rejected_credentials(code, &reason)) {
            return placed(error);
        }
        let error = match refusal {
            _ if matches!(refusal, Refusal::NotFound { .. }) || status == Some(404) => {
                let what = match code {
                    Some("NoSuchBucket") => "the bucket does not exist",
                    _ => "the object does not exist",
                };
                Error::new(ErrorKind::NotFound, what).advise("check the URL's spelling")
            }
            _ if matches!(
                refusal,
                Refusal::PermissionDenied { .. } | Refusal::Unauthenticated { .. }
            ) || matches!(status, Some(401 | 403)) =>
            {
                let what = "access to the object was denied";
                Error::new(ErrorKind::PermissionDenied, what).advise(&self.access_advice)
            }
            _ if is_changed(refusal, status) => return crate::stat::changed(url),
            Refusal::InvalidPath { .. } => {
                Error::new(ErrorKind::Invalid, "the URL's path cannot be an object's name")
            }
            _ if code.is_some_and(|code| WRONG_REGION.contains(&code))
                || reason.contains("configured region")
                || self.is_elsewhere(noted) =>
            {
                self.other_region(noted)
            }
            _ if status.is_some_and(|status| status != 407 && is_final(status)) => {
                let what = format!("the store rejected the request: {}", harmless(&reason));
                Error::new(ErrorKind::Invalid, what)
            }
            _ if status == Some(407) => {
                let what = "the proxy demands a name and a password";
                self.by_proxy(Error::new(ErrorKind::PermissionDenied, what))
            }
            _ if self.proxy.is_some() && protocol::is_connect(refusal) => {
                let what = format!("no connection by the proxy: {}", harmless(&reason));
                self.by_proxy(Error::new(ErrorKind::Unavailable, what))
            }
            _ => {
                let what = format!("the store does not answer: {}", harmless(&reason));
                Error::new(ErrorKind::Unavailable, what)
                    .advise("check that the endpoint is up and reachable from this machine")
            }
        };
        placed(error)
    }
}

/// Returns true if the object changed since: it has another version, or it is shorter and the
/// requested range lies behind its end.
fn is_changed(refusal: &Refusal, status: Option<u16>) -> bool {
    matches!(refusal, Refusal::Precondition { .. } | Refusal::NotModified { .. })
        || matches!(status, Some(412 | 416))
}

/// A refusal that the next attempt meets again: of all that a client is told of its request, only
/// "too slow" and "too often" pass; of a server's own troubles, only what it never learnt stays.
fn is_final(status: u16) -> bool {
    (300..500).contains(&status) && !matches!(status, 408 | 425 | 429)
        || matches!(status, 501 | 505 | 510)
}

/// Returns this crate's own error inside object_store's: the reason there are no credentials.
fn own(refusal: &Refusal) -> Option<Error> {
    let mut cause = refusal.source();
    while let Some(error) = cause {
        if let Some(own) = error.downcast_ref::<Error>() {
            return Some(own.clone());
        }
        cause = error.source();
    }
    None
}

/// The innermost cause, which says most.
fn reason(refusal: &Refusal) -> String {
    let mut cause = refusal.source();
    let mut text = refusal.to_string();
    while let Some(error) = cause {
        text = error.to_string();
        cause = error.source();
    }
    text
}

/// Start of object_store's messages about a status.
const STATUS: &str = "status code: ";

/// Start of those about one of several requests that were sent as one.
const ONE_OF_SEVERAL: &str = "(code: ";

/// Start of those about an error document behind a good status.
const DOCUMENT: &str = "error response: ";

/// The HTTP status in object_store's message, if it holds one.
fn status(reason: &str) -> Option<u16> {
    let (_, status) = reason.split_once(STATUS).or_else(|| reason.rsplit_once(ONE_OF_SEVERAL))?;
    status.get(..3)?.parse().ok()
}

/// The status without the body that follows it, or a short message of the system.
fn harmless(reason: &str) -> String {
    let text = match (reason.split_once(STATUS), reason.split_once(DOCUMENT)) {
        (Some((_, status)), _) => status.split(':').next().unwrap_or_default(),
        (None, Some(_)) => "an error after a good status",
        (None, None) => reason.lines().next().unwrap_or_default(),
    };
    text.trim().chars().take(MESSAGE_CHARS).collect()
}

/// Returns seconds by which this clock, at `now`, is ahead of the store's, if the store's error
/// document has its own time.
fn clock_offset(reason: &str, now: SystemTime) -> Option<i64> {
    let server = element(reason, "ServerTime")?;
    let server = humantime::parse_rfc3339(server).ok()?;
    let seconds = |ahead: Duration| i64::try_from(ahead.as_secs()).ok();
    match now.duration_since(server) {
        Ok(ahead) => seconds(ahead),
        Err(behind) => seconds(behind.duration()).map(|seconds| -seconds),
    }
}

/// Returns the `<Code>` of an S3 error document, if it is one word.
fn s3_code(reason: &str) -> Option<&str> {
    let code = element(reason, "Code")?;
    let one_word = !code.is_empty() && code.bytes().all(|byte| byte.is_ascii_alphanumeric());
    one_word.then_some(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explain(text: &str) -> Error {
        let refusals = Refusals {
            endpoint: "http://e".to_owned(),
            access_advice: "set keys".to_owned(),
            ..Refusals::default()
        };
        let refusal = Refusal::Generic { store: "S3", source: text.into() };
        refusals.explain(&refusal, "s3://b/k.tar?token=hunter2", &Noted::default(), 0).error
    }

    #[test]
    fn error_shows_no_response_body() {
        let text = "Server returned non-2xx status code: 503 Service Unavailable: \
                    <Error><Code>SlowDown</Code><StringToSign>hunter2</StringToSign></Error>";
        let error = explain(text);
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let shown = error.to_string();
        assert_eq!((error.place("status"), error.place("code")), (Some("503"), Some("SlowDown")));
        assert!(shown.contains("endpoint=http://e") && !shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn error_behind_a_good_status_shows_only_its_code() {
        let error = explain(
            "Server returned error response: <Error><Code>InternalError</Code>hunter2</Error>",
        );
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(error.place("code"), Some("InternalError"));
        assert!(!error.to_string().contains("hunter2"), "{error}");
        let one = explain("Bulk delete request failed for key k: Forbidden (code: 403)");
        assert_eq!(one.kind(), ErrorKind::PermissionDenied);
    }

    /// Errors have this form when a broken body is requested again.
    #[test]
    fn http_status_determines_the_error_kind() {
        let of = |status: &str| {
            explain(&format!("Server returned non-2xx status code: {status}: <Error></Error>"))
        };
        assert_eq!(of("403 Forbidden").kind(), ErrorKind::PermissionDenied);
        assert_eq!(of("401 Unauthorized").kind(), ErrorKind::PermissionDenied);
        assert_eq!(of("404 Not Found").kind(), ErrorKind::NotFound);
        assert_eq!(of("412 Precondition Failed").kind(), ErrorKind::Unavailable);
        assert_eq!(of("410 Gone").kind(), ErrorKind::Invalid);
    }

    #[test]
    fn wrong_region_error_names_the_variable() {
        let text = "Server returned non-2xx status code: 400 Bad Request: \
                    <Error><Code>AuthorizationHeaderMalformed</Code></Error>";
        for text in [
            text,
            "Received redirect without LOCATION, this normally indicates an incorrectly configured region",
        ] {
            let error = explain(text);
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains("AWS_REGION"), "{error}");
        }
        let other = explain("Server returned non-2xx status code: 400 Bad Request: x");
        assert_eq!(other.kind(), ErrorKind::Invalid);
        assert!(!other.to_string().contains("AWS_REGION"), "{other}");
    }

    #[test]
    fn stale_credentials_and_skewed_clocks_deny_permission() {
        let of = |status: &str, body: &str| {
            explain(&format!(
                "Server returned non-2xx status code: {status}: <Error>{body}</Error>"
            ))
        };
        for status in ["400 Bad Request", "403 Forbidden"] {
            for code in STALE {
                let error = of(status, &format!("<Code>{code}</Code>"));
                assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{status} {code}: {error}");
                assert_eq!(error.place("code"), Some(code), "{error}");
                assert_eq!(error.place("status"), status.get(..3), "{error}");
                assert!(error.advice().unwrap().contains("set keys"), "{error}");
            }
            let skewed =
                "<Code>RequestTimeTooSkewed</Code><ServerTime>2001-01-01T00:00:00Z</ServerTime>";
            let error = of(status, skewed);
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
            let offset: i64 = error.place("clock_offset_seconds").unwrap().parse().unwrap();
            assert!(offset > 20 * 365 * 24 * 3600, "{offset}");
            // A store that keeps its time to itself.
            let error = of(status, "<Code>RequestTimeTooSkewed</Code>");
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
            assert_eq!(error.place("clock_offset_seconds"), None, "{error}");
        }
    }

    #[test]
    fn clock_offset_has_the_sign_of_this_clock() {
        let body = |time: &str| format!("<ServerTime>{time}</ServerTime>");
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(3600);
        assert_eq!(clock_offset(&body("1970-01-01T00:00:00Z"), now), Some(3600));
        assert_eq!(clock_offset(&body("1970-01-01T02:00:00.000Z"), now), Some(-3600));
        for other in ["", "soon", "1970-13-01T00:00:00Z"] {
            assert_eq!(clock_offset(&body(other), now), None, "{other}");
        }
    }

    #[tokio::test]
    async fn expired_credentials_are_distinguished_from_denials() {
        let says = |status: &str, code: &str| Refusal::Generic {
            store: "S3",
            source: format!("Server returned non-2xx status code: {status}: {code}").into(),
        };
        for (status, code, again) in [
            ("400 Bad Request", "<Error><Code>ExpiredToken</Code></Error>", true),
            ("403 Forbidden", "<Error><Code>ExpiredToken</Code></Error>", true),
            ("403 Forbidden", "<Error><Code>InvalidAccessKeyId</Code></Error>", true),
            ("403 Forbidden", "<Error><Code>SignatureDoesNotMatch</Code></Error>", true),
            ("401 Unauthorized", "", true),
            // As a HEAD is answered.
            ("400 Bad Request", "", true),
            ("403 Forbidden", "<Error><Code>AccessDenied</Code></Error>", false),
            ("404 Not Found", "", false),
            ("503 Service Unavailable", "", false),
        ] {
            let identity = Identity::renewable();
            identity.get().await.unwrap();
            let refusals = Refusals {
                endpoint: String::new(),
                access_advice: String::new(),
                identity: Some(identity),
                ..Refusals::default()
            };
            let before = refusals.answers();
            assert_eq!(refusals.renewed(&says(status, code), before), again, "{status} {code}");
        }
    }
}
