//! The one error type of Forebay: what happened, where, and what the caller must do.
//!
//! The [`ErrorKind`] alone decides what a caller does next; the text is for people. Kinds
//! map 1:1 onto the Python exceptions and cross the wire unchanged, so a message written next to
//! the system call that failed is the message a training script prints.
//!
//! ```
//! use forebay_error::{Error, ErrorKind};
//! let error = Error::new(ErrorKind::NotFound, "the shard does not exist")
//!     .at("url", "s3://bucket/train-000000.tar")
//!     .advise("check the URL, or list the bucket");
//! assert_eq!(
//!     error.to_string(),
//!     "the shard does not exist (url=s3://bucket/train-000000.tar); \
//!      check the URL, or list the bucket",
//! );
//! ```

mod problem;
mod redaction;
mod text;

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use problem::{PROBLEM, Place, Problem};
pub use redaction::redacted;
pub use text::{is_hidden, printable, printable_char};

/// A result whose error is Forebay's.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Action required of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The named thing does not exist: fix the name; a retry cannot help.
    NotFound,
    /// The caller may not do this: fix credentials, modes or policy.
    PermissionDenied,
    /// Retries were spent without an answer: try again later, or mend the endpoint.
    Unavailable,
    /// Bytes differ from what they must be: the origin's copy needs repair.
    Corrupt,
    /// One sample cannot be used: skip it or fix it; the rest of its shard is good.
    BadSample,
    /// A budget (disk, memory, slab) is spent: raise it, free some, or ask for less.
    Full,
    /// The request makes no sense: fix the argument, option or file named.
    Invalid,
    /// The other side is gone or shutting down: open again.
    Closed,
}

impl ErrorKind {
    /// The kind's name, the same in Rust, Python, logs and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NotFound => "NotFound",
            Self::PermissionDenied => "PermissionDenied",
            Self::Unavailable => "Unavailable",
            Self::Corrupt => "Corrupt",
            Self::BadSample => "BadSample",
            Self::Full => "Full",
            Self::Invalid => "Invalid",
            Self::Closed => "Closed",
        }
    }
}

/// Error with place and advice. Cheap to clone: one flight may fail for many waiters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Error(Box<Body>);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Body {
    kind: ErrorKind,
    message: String,
    places: Vec<(String, String)>,
    advice: Option<String>,
}

impl Error {
    /// An error of `kind`; `message` is lower-case prose without a full stop.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Body { kind, message: message.into(), places: Vec::new(), advice: None }))
    }

    /// An error from a system call; `doing` says what was attempted ("open the tier's directory").
    ///
    /// The kind follows the errno: what a caller can mend differs between a missing file, a mode,
    /// a full disk and a failing device.
    #[must_use]
    pub fn from_io(doing: &str, error: &io::Error) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                ErrorKind::PermissionDenied
            }
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::OutOfMemory => ErrorKind::Full,
            io::ErrorKind::InvalidInput
            | io::ErrorKind::InvalidFilename
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::AlreadyExists => ErrorKind::Invalid,
            io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::UnexpectedEof => ErrorKind::Closed,
            _ => ErrorKind::Unavailable,
        };
        Self::new(kind, format!("failed to {doing}: {error}"))
    }

    /// Returns the error of work that the end of the daemon cuts off.
    #[must_use]
    pub fn shutting_down() -> Self {
        Self::new(ErrorKind::Closed, "the daemon is shutting down")
    }

    /// Adds where it happened, as one `name=value` pair (url, key, offset, path, …). A `url` is
    /// added as it may be [`shown`].
    #[must_use]
    pub fn at(mut self, name: &str, value: impl fmt::Display) -> Self {
        let value = value.to_string();
        let value = if name == "url" { shown(&value) } else { value };
        let place = (name.to_owned(), value);
        // Layers that know the same place name it once.
        if !self.0.places.contains(&place) {
            self.0.places.push(place);
        }
        self
    }

    /// Adds what the reader should do next, as an imperative.
    #[must_use]
    pub fn advise(mut self, advice: impl Into<String>) -> Self {
        self.0.advice = Some(advice.into());
        self
    }

    /// Returns the action required of the caller.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the message, without place and advice.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns the advice, if any.
    #[must_use]
    pub fn advice(&self) -> Option<&str> {
        self.0.advice.as_deref()
    }

    /// The value given for place `name`, if any.
    #[must_use]
    pub fn place(&self, name: &str) -> Option<&str> {
        self.0.places.iter().find(|(have, _)| have == name).map(|(_, value)| value.as_str())
    }

    /// Every place, in the order it was added (the innermost first).
    pub fn places(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.places.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

/// Prefix of commands' URLs.
const PIPE: &str = "pipe:";

/// The command that a URL is (`pipe:cat /data/000.tar`), if it is one.
#[must_use]
pub fn command(url: &str) -> Option<&str> {
    url.strip_prefix(PIPE)
}

/// A URL as errors and logs may show it: without what a query or a user part may hold, which is
/// where signatures and passwords are; of a command only its name, and the paths and URLs it is
/// given. Characters that are not seen are replaced.
#[must_use]
pub fn shown(url: &str) -> String {
    printable(&without_secrets(url))
}

fn without_secrets(url: &str) -> String {
    if let Some(command) = command(url) {
        // Variables set for a command stand in place of its name.
        let is_name = |at: usize, word: &str| at == 0 && !word.contains('=');
        let words = command.split_whitespace().enumerate().map(|(at, word)| {
            let place = word.trim_start_matches(['\'', '"']);
            match place.split_once("://") {
                Some((scheme, _)) if scheme.chars().all(char::is_alphanumeric) => {
                    without_secrets(place)
                }
                None if place.starts_with('/') || is_name(at, word) => place.to_owned(),
                _ => "…".to_owned(),
            }
        });
        return format!("{PIPE}{}", words.collect::<Vec<_>>().join(" "));
    }
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let rest = rest.split_once('?').map_or(rest, |(plain, _)| plain);
    let host_end = rest.find('/').unwrap_or(rest.len());
    let host = rest[..host_end].rfind('@').map_or(0, |at| at + 1);
    format!("{scheme}://{}", &rest[host..])
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        for (i, (name, value)) in self.0.places.iter().enumerate() {
            let value = printable(value);
            write!(f, "{}{name}={value}", if i == 0 { " (" } else { ", " })?;
        }
        if !self.0.places.is_empty() {
            f.write_str(")")?;
        }
        match &self.0.advice {
            Some(advice) => write!(f, "; {advice}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

/// Names what was being done when a system call failed, at the call itself.
pub trait Doing<T> {
    /// Turns an `io::Error` into an [`Error`] whose text starts "failed to `doing`".
    ///
    /// # Errors
    /// The same failure, with its kind taken from the errno.
    fn doing(self, doing: &str) -> Result<T>;
}

impl<T, E: Into<io::Error>> Doing<T> for std::result::Result<T, E> {
    fn doing(self, doing: &str) -> Result<T> {
        self.map_err(|error| Error::from_io(doing, &error.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_full_maps_to_full_and_io_error_to_unavailable() {
        let full = Error::from_io("write a part", &io::Error::from_raw_os_error(28));
        assert_eq!(full.kind(), ErrorKind::Full);
        assert!(full.to_string().starts_with("failed to write a part: No space left"), "{full}");
        let device = Error::from_io("read", &io::Error::from_raw_os_error(5));
        assert_eq!(device.kind(), ErrorKind::Unavailable);
    }

    #[test]
    fn shown_urls_hold_no_secrets() {
        assert_eq!(shown("https://u:p@h/a@b.tar?sig=s"), "https://h/a@b.tar");
        assert_eq!(shown("s3://b/k.tar"), "s3://b/k.tar");
        assert_eq!(shown("/d/what?.tar"), "/d/what?.tar");
        assert_eq!(
            shown("pipe:curl -H 'Authorization: Bearer t' 'https://u:p@h/a.tar?sig=s' | cat /d/k"),
            "pipe:curl … … … … https://h/a.tar … … /d/k"
        );
        assert_eq!(shown("pipe:x --with=t,https://h/"), "pipe:x …");
        assert_eq!(shown("pipe:TOKEN=t"), "pipe:…");
        let error = Error::new(ErrorKind::NotFound, "no such shard").at("url", "http://h/a?sig=s");
        assert_eq!(error.place("url"), Some("http://h/a"));
    }

    #[test]
    fn place_named_twice_is_shown_once() {
        let error = Error::new(ErrorKind::Corrupt, "damaged").at("url", "a.tar").at("part", 1);
        let error = error.at("url", "a.tar").at("part", 2);
        assert_eq!(error.to_string(), "damaged (url=a.tar, part=1, part=2)");
    }

    #[test]
    fn error_survives_a_json_round_trip() {
        let error = Error::new(ErrorKind::Corrupt, "checksum differs")
            .at("url", "http://h/a.tar")
            .at("offset", 512)
            .advise("repair the shard at its origin");
        let text = serde_json::to_string(&error).unwrap();
        let back: Error = serde_json::from_str(&text).unwrap();
        assert_eq!(back, error);
        assert_eq!(back.place("offset"), Some("512"));
        assert_eq!(back.kind().name(), "Corrupt");
    }
}
