//! The one spelling of a URL by which others than a daemon's own people are served.
//!
//! One object, one spelling. What is allowed and what is not is told apart by URLs, so a
//! second way to write one is refused, with the first in the advice; nobody guesses what a server
//! makes of it.

use std::borrow::Cow;

use forebay_error::{Error, ErrorKind, Result};

/// Schemes that are another's, and that one.
const ALSO_CALLED: [(&str, &str); 5] =
    [("gcs", "gs"), ("azure", "az"), ("abfs", "az"), ("wasb", "az"), ("wasbs", "az")];

/// The scheme of URLs that name an account of Azure's, …
const WITH_ACCOUNT: &str = "abfss";

/// … whose hosts end so, …
const ACCOUNTS: &str = ".dfs.core.windows.net";

/// … and also so.
const ACCOUNTS_TOO: &str = ".blob.core.windows.net";

/// Revision the Hub uses by default.
const HUB_REVISION: &str = "@main";

/// A URL as data sets are compared with it: of a web server's without the query, of a file its
/// path.
///
/// # Errors
/// `PermissionDenied` for one that is written otherwise than it would be, with that in the advice.
pub fn settled(url: &str) -> Result<Cow<'_, str>> {
    if forebay_error::command(url).is_some() {
        return Ok(Cow::Borrowed(url));
    }
    let Some((scheme, rest)) = url.split_once("://").filter(|(scheme, _)| *scheme != "file") else {
        return Ok(path(url));
    };
    match scheme {
        "http" | "https" => web(url),
        _ => object(url, scheme, rest).map(|()| Cow::Borrowed(url)),
    }
}

/// A path without what names nothing. Its file's own rights decide who reads it, by whatever name,
/// so there is nothing to refuse.
fn path(url: &str) -> Cow<'_, str> {
    let path = url.strip_prefix("file:").unwrap_or(url);
    let path = path.strip_prefix("//").filter(|_| url.starts_with("file:")).unwrap_or(path);
    let is_plain =
        |path: &str| !path.split('/').skip(1).any(|name| matches!(name, "" | "." | ".."));
    if is_plain(path) {
        return Cow::Borrowed(path);
    }
    let mut names = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    Cow::Owned(format!("/{}", names.join("/")))
}

/// An object of a bucket or a container: its key is taken as it is.
fn object(url: &str, scheme: &str, rest: &str) -> Result<()> {
    let (host, key) = rest.split_once('/').unwrap_or((rest, ""));
    // A job names a million, most of them so.
    let is_odd = |byte: u8| byte.is_ascii_uppercase() || byte == b'@';
    if !["s3", "gs", "az"].contains(&scheme) || host.bytes().any(is_odd) {
        let plain = plain_object(scheme, host, key);
        if plain != url && plain.strip_suffix('/') != Some(url) {
            let plain = forebay_error::shown(&plain);
            return Err(otherwise(url).advise(format!("write it as {plain}")));
        }
    }
    // A bucket by itself is a pattern's beginning.
    match key.is_empty() || !key.split('/').any(|name| matches!(name, "" | "." | "..")) {
        true => Ok(()),
        false => Err(otherwise(url).advise("write the key without empty names, `.` and `..`")),
    }
}

/// The same object, by the names that are not another's.
fn plain_object(scheme: &str, host: &str, key: &str) -> String {
    let host = host.to_ascii_lowercase();
    let host = match host.strip_suffix(ACCOUNTS_TOO) {
        Some(account) if account.contains('@') => format!("{account}{ACCOUNTS}"),
        _ => host,
    };
    let lower = scheme.to_ascii_lowercase();
    let called = ALSO_CALLED.iter().find(|(other, _)| *other == lower).map(|(_, ours)| *ours);
    let scheme = match called.unwrap_or(&lower) {
        "az" if host.contains('@') => WITH_ACCOUNT,
        WITH_ACCOUNT if !host.contains('@') => "az",
        scheme => scheme,
    };
    match scheme {
        "hf" => {
            let mut names: Vec<_> = key.splitn(3, '/').collect();
            if let Some(name) = names.get_mut(1) {
                *name = name.strip_suffix(HUB_REVISION).unwrap_or(name);
            }
            format!("{scheme}://{host}/{}", names.join("/"))
        }
        _ => format!("{scheme}://{host}/{key}"),
    }
}

/// Normalizes a web server's URL: all but the query identifies the object, and servers differ in
/// how they read escapes, doubled slashes and the like.
fn web(url: &str) -> Result<Cow<'_, str>> {
    let plain = super::pattern::plain(url)?;
    let before_query = url.split('?').next().unwrap_or_default();
    if plain != before_query {
        return Err(otherwise(url).advise(format!("write it as {plain}")));
    }
    let named = plain.split_once("://").and_then(|(_, rest)| rest.split_once('/'));
    let (host, path) = named.unwrap_or_default();
    let host = host.split(':').next().unwrap_or_default();
    if host.ends_with('.') {
        return Err(otherwise(url).advise("write its host without the dot at the end"));
    }
    let is_doubled = path.split('/').rev().skip(1).any(str::is_empty);
    if is_doubled || path.contains(';') || !escapes_are_plain(path) {
        let advice = "write its path without doubled slashes, `;`, and escapes of what needs none";
        return Err(otherwise(url).advise(advice));
    }
    Ok(plain)
}

/// Returns true if every escape is necessary, and none could be read as a separator.
fn escapes_are_plain(path: &str) -> bool {
    path.split('%').skip(1).all(|rest| {
        let digits = rest.get(..2).unwrap_or_default();
        let is_upper = !digits.bytes().any(|digit| digit.is_ascii_lowercase());
        let is_needed = u8::from_str_radix(digits, 16).is_ok_and(|byte| {
            let is_separator = matches!(byte, b'/' | b'\\' | b'%' | b';' | b'?' | b'#' | 0);
            let is_free = byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,=:@".contains(&byte);
            !is_separator && !is_free
        });
        digits.len() == 2 && is_upper && is_needed
    })
}

fn otherwise(url: &str) -> Error {
    let what = "this daemon accepts only normalized URLs from other users";
    Error::new(ErrorKind::PermissionDenied, what).at("url", url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_urls_are_accepted() {
        for url in [
            "s3://bucket/a/0.tar",
            "s3://bucket/a%2e/%73.tar?x#y",
            "s3://bucket",
            "gs://b/k",
            "az://c/k",
            "abfss://c@account.dfs.core.windows.net/k",
            "hf://datasets/Org/Name/a/0.tar",
            "hf://datasets/org/name@v2/0.tar",
            "hf://datasets/org/name/x@main/0.tar",
            "http://host:8080/a/0.tar",
            "https://host/a%20b/%C3%A9.tar",
            "pipe:cat //x/../y",
            "/data/0.tar",
        ] {
            assert_eq!(settled(url).unwrap(), url);
        }
        for (url, plain) in [
            ("https://host/0.tar?signature=s", "https://host/0.tar"),
            ("file:///data/0.tar", "/data/0.tar"),
            ("file:/data/0.tar", "/data/0.tar"),
            ("//data/./x/../0.tar", "/data/0.tar"),
            ("/../data//0.tar", "/data/0.tar"),
            ("/data/", "/data"),
        ] {
            assert_eq!(settled(url).unwrap(), plain, "{url}");
        }
    }

    #[test]
    fn non_canonical_urls_are_rejected() {
        for url in [
            "S3://bucket/0.tar",
            "s3://Bucket/0.tar",
            "s3://bucket//0.tar",
            "s3://bucket/a//0.tar",
            "s3://bucket/a/../0.tar",
            "s3://bucket/./0.tar",
            "s3://bucket/0.tar/",
            "gcs://b/k",
            "azure://c/k",
            "abfs://c/k",
            "wasbs://c@account.blob.core.windows.net/k",
            "abfss://c@account.blob.core.windows.net/k",
            "abfss://c@Account.dfs.core.windows.net/k",
            "hf://datasets/org/name@main/0.tar",
            "http://Host/0.tar",
            "HTTP://host/0.tar",
            "http://host:80/0.tar",
            "http://host/a/../0.tar",
            "http://host/a/%2e%2e/0.tar",
            "http://host/%73ecret/0.tar",
            "http://host/secret%2F0.tar",
            "http://host/secret%2f0.tar",
            "http://host/%c3%a9.tar",
            "http://host/é.tar",
            "http://host//secret/0.tar",
            "http://host/secret;x/0.tar",
            "http://host/secret/0.tar#x",
            "http://host\\secret/0.tar",
            "http://host/a%",
            "http://host/a%2",
            "http://ho\tst/0.tar",
            "http://127.1/0.tar",
            "http://host./0.tar",
            "http://host.:8080/0.tar",
        ] {
            let error = settled(url).err().unwrap_or_else(|| panic!("{url} is plain"));
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{url}");
            assert!(
                error.advice().is_some_and(|advice| advice.contains("write ")),
                "{url}: {error}"
            );
        }
        let error = settled("http://u:hunter2@host/0.tar").unwrap_err().to_string();
        assert!(error.contains("user name") && !error.contains("hunter2"), "{error}");
        let error = settled("gcs://b/k?signature=s").unwrap_err().to_string();
        assert!(error.contains("write it as gs://b/k"), "{error}");
    }
}
