//! URLs matched by a rule.
//!
//! A URL is compared in the form it will be requested in: escapes, `..`, ports and letter case of
//! hosts are normalized first, and a prefix ends where a name ends.

use std::borrow::Cow;

use forebay_error::{Error, ErrorKind, Result};
use glob::{MatchOptions, Pattern};
use url::Url;

/// `*` stays within one folder, `**` crosses them, as for data sets.
const MATCHING: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: false,
};

/// The characters of patterns.
const GLOB: [char; 3] = ['*', '?', '['];

/// A prefix, or a pattern.
#[derive(Clone)]
pub(super) struct Matches {
    text: String,
    /// None: a prefix.
    pattern: Option<Pattern>,
}

impl Matches {
    pub(super) fn new(text: &str) -> Result<Self> {
        let refuse = |what: String| Err(Error::new(ErrorKind::Invalid, what).at("match", text));
        if text.is_empty() {
            return refuse("`match` is empty".to_owned());
        }
        let local = text.strip_prefix("file://").unwrap_or(text);
        if !local.contains("://") && !local.starts_with('/') && !local.starts_with("**") {
            return refuse(
                "`match` names no source: write a URL, a path from `/` on, or \"**\"".to_owned(),
            );
        }
        let host =
            local.split_once("://").map_or("", |(_, rest)| rest.split('/').next().unwrap_or(""));
        if local.starts_with("http") && host.contains('@') {
            return refuse("`match` may not hold a user name or password".to_owned());
        }
        if !local.contains(GLOB) {
            return Ok(Self { text: plain(local)?.into_owned(), pattern: None });
        }
        match Pattern::new(local) {
            Ok(pattern) => Ok(Self { text: local.to_owned(), pattern: Some(pattern) }),
            Err(error) => refuse(format!("`match` is not a pattern: {error}")),
        }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// The scheme it is about, `file` for paths; none where it is about any.
    pub(super) fn scheme(&self) -> Option<&str> {
        match self.literal().split_once("://") {
            Some((scheme, _)) => Some(scheme),
            None if self.text.starts_with('/') => Some("file"),
            None => None,
        }
    }

    /// Returns true if a [`plain`] URL matches.
    pub(super) fn has(&self, url: &str) -> bool {
        match &self.pattern {
            Some(pattern) => pattern.matches_with(url, MATCHING),
            None => begins(url, &self.text),
        }
    }

    /// Returns true if it matches every URL that `other` matches.
    pub(super) fn covers(&self, other: &Self) -> bool {
        let all = match (&self.pattern, self.text.strip_suffix("**")) {
            (None, _) => Some(self.text.as_str()),
            (Some(_), Some(rest)) if !rest.contains(GLOB) => Some(rest),
            _ => None,
        };
        let within = |prefix: &str| match (prefix, &other.pattern) {
            ("", _) => true,
            (_, None) => begins(&other.text, prefix),
            // Text after the literal part may belong to the name it ends with.
            (_, Some(_)) => {
                let whole = prefix.ends_with('/') || other.literal() != prefix;
                whole && begins(other.literal(), prefix)
            }
        };
        self.text == other.text || all.is_some_and(within)
    }

    /// Returns true if it spells out the host of `url`.
    pub(super) fn names_host_of(&self, url: &str) -> bool {
        let Some((scheme, rest)) = url.split_once("://") else { return true };
        let host = rest.split('/').next().unwrap_or_default();
        begins(self.literal(), &format!("{scheme}://{host}"))
    }

    /// The server that it spells out, if it is about one.
    pub(super) fn server(&self) -> Option<Url> {
        let literal = self.literal();
        let (_, rest) = literal.split_once("://")?;
        // A pattern may go on within the name of a host, or within a port.
        let is_whole = self.pattern.is_none() || rest.contains('/');
        Url::parse(literal).ok().filter(|_| is_whole)
    }

    /// Returns the text before a pattern's first special character.
    fn literal(&self) -> &str {
        match self.pattern {
            Some(_) => self.text.split(GLOB).next().unwrap_or_default(),
            None => &self.text,
        }
    }
}

/// Returns true if `url` is `prefix`, or continues it with another name.
fn begins(url: &str, prefix: &str) -> bool {
    let rest = url.strip_prefix(prefix);
    rest.is_some_and(|rest| rest.is_empty() || prefix.ends_with('/') || rest.starts_with('/'))
}

/// A URL as it is asked for, without its query; a path as it is.
pub(super) fn plain(url: &str) -> Result<Cow<'_, str>> {
    let invalid = |what: &str| Error::new(ErrorKind::Invalid, what).at("url", url);
    let Some((scheme, rest)) = url.split_once("://") else {
        return path(url.strip_prefix("file:").unwrap_or(url)).map_err(invalid);
    };
    match scheme {
        "file" => path(rest).map_err(invalid),
        "http" | "https" => {
            let mut parsed = Url::parse(url).map_err(|_| invalid("invalid URL"))?;
            if !parsed.username().is_empty() || parsed.password().is_some() {
                return Err(invalid("a URL may not hold a user name or password"));
            }
            parsed.set_query(None);
            parsed.set_fragment(None);
            Ok(Cow::Owned(parsed.into()))
        }
        // Object stores take a key as it is; `..` is no key.
        _ => Ok(Cow::Borrowed(url)),
    }
}

fn path(path: &str) -> Result<Cow<'_, str>, &'static str> {
    match path.split('/').any(|name| name == ".." || name == ".") {
        true => Err("a path may not hold `.` or `..` here"),
        false => Ok(Cow::Borrowed(path)),
    }
}

/// Returns the likely scope of a rule for `url`: its bucket, its server, or its folder.
pub(super) fn root(url: &str) -> String {
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let host = rest.split('/').next().unwrap_or_default();
            format!("{scheme}://{host}/")
        }
        None => url.rsplit_once('/').map_or("/".to_owned(), |(folder, _)| format!("{folder}/")),
    }
}
